/* Events to bytes.
 *
 *   record  = u64 length, u32 crc(length), bytes, u32 crc(bytes)      little-endian
 *   crc     = CRC-32C, rotated right by 15 bits, plus 0xa282ead8
 *   Event   = 1 wall_time double, 2 step int64, 3 file_version string,
 *             5 summary, 7 session_log
 *   Summary = 1 value*;   Value = 1 tag string, 2 simple_value float
 *   SessionLog = 1 status (1 is START)
 *
 * source: tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto and
 * framework/summary.proto */
#include "report/tfevents.h"

#include "base/clock.h"
#include "base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PREFIX  "events.out.tfevents."
#define VERSION "brain.Event:2" /* the first version whose readers know START */

enum { NAME_BYTES = 80, RECORD_BYTES = 16 /* around an event */ };

/* ---- protocol buffers ---- */

enum wire { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static kg_status put_varint(struct kg_str *out, uint64_t x, struct kg_err *err)
{
    for (; x >= 0x80; x >>= 7)
        KG_TRY(kg_str_putc(out, (char)(0x80 | (x & 0x7f)), err));
    return kg_str_putc(out, (char)x, err);
}

/* The n low bytes, little-endian. */
static kg_status put_fixed(struct kg_str *out, uint64_t x, int n, struct kg_err *err)
{
    for (int i = 0; i < n; i++)
        KG_TRY(kg_str_putc(out, (char)(x >> (8 * i)), err));
    return KG_OK;
}

static kg_status put_key(struct kg_str *out, unsigned field, enum wire wire,
                         struct kg_err *err)
{
    return put_varint(out, field << 3 | wire, err);
}

static kg_status put_bytes(struct kg_str *out, unsigned field, const char *bytes,
                           size_t n, struct kg_err *err)
{
    KG_TRY(put_key(out, field, BYTES, err));
    KG_TRY(put_varint(out, n, err));
    return kg_str_append(out, bytes, n, err);
}

static kg_status put_float(struct kg_str *out, unsigned field, double value,
                           struct kg_err *err)
{
    float x = (float)value;
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    KG_TRY(put_key(out, field, FIXED32, err));
    return put_fixed(out, bits, 4, err);
}

static kg_status put_time_and_step(struct kg_str *out, int64_t step, struct kg_err *err)
{
    double now = kg_clock_unix_seconds();
    uint64_t bits;

    memcpy(&bits, &now, sizeof bits);
    KG_TRY(put_key(out, 1, FIXED64, err));
    KG_TRY(put_fixed(out, bits, 8, err));
    KG_TRY(put_key(out, 2, VARINT, err));
    return put_varint(out, (uint64_t)step, err);
}

static kg_status put_value(struct kg_str *summary, const char *name, double value,
                           struct kg_err *err)
{
    struct kg_str one = {0};
    kg_status status;

    KG_TRY_GOTO(out, put_bytes(&one, 1, name, strlen(name), err));
    KG_TRY_GOTO(out, put_float(&one, 2, value, err));
    status = put_bytes(summary, 1, one.data, one.len, err);
out:
    kg_str_release(&one);
    return status;
}

/* ---- records ---- */

static uint32_t masked_crc(const void *bytes, size_t n)
{
    uint32_t crc = kg_hash_crc32c(bytes, n);

    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Writes one record: an event with time, step, and a last field of bytes. */
static kg_status write_event(struct kg_tfevents *t, int64_t step, unsigned field,
                             const char *bytes, size_t n, struct kg_err *err)
{
    struct kg_str event = {0}, record = {0};
    kg_status status;

    KG_TRY_GOTO(out, put_time_and_step(&event, step, err));
    KG_TRY_GOTO(out, put_bytes(&event, field, bytes, n, err));
    KG_TRY_GOTO(out, put_fixed(&record, event.len, 8, err));
    KG_TRY_GOTO(out, put_fixed(&record, masked_crc(record.data, 8), 4, err));
    KG_TRY_GOTO(out, kg_str_append(&record, event.data, event.len, err));
    KG_TRY_GOTO(out, put_fixed(&record, masked_crc(event.data, event.len), 4, err));
    KG_TRY_GOTO(out, kg_file_writer_put(&t->file, record.data, record.len, err));
    status = kg_file_writer_flush(&t->file, err);
out:
    kg_str_release(&event);
    kg_str_release(&record);
    return status;
}

kg_status kg_tfevents_put(struct kg_tfevents *t, const struct kg_metrics *m, int64_t step,
                          struct kg_err *err)
{
    struct kg_str summary = {0};
    kg_status status = KG_OK;

    for (int i = 0; i < m->n && status == KG_OK; i++)
        status = put_value(&summary, m->row[i].name, m->row[i].value, err);
    if (status == KG_OK)
        status = write_event(t, step, 5, summary.data, summary.len, err);
    kg_str_release(&summary);
    return status;
}

/* ---- files ---- */

/* The event file in dir that readers read last; "" if there is none. */
static kg_status last_name(char name[NAME_BYTES], const char *dir, struct kg_err *err)
{
    char **names;
    size_t n;

    name[0] = '\0';
    if (!kg_file_exists(dir))
        return KG_OK;
    KG_TRY(kg_file_list(&names, &n, dir, err));
    for (size_t i = 0; i < n; i++)
        if (strncmp(names[i], PREFIX, strlen(PREFIX)) == 0)
            snprintf(name, NAME_BYTES, "%s", names[i]);
    kg_file_names_free(names, n);
    return KG_OK;
}

bool kg_tfevents_is_name(const char *name)
{
    int64_t seconds;
    int number, end = 0;

    return sscanf(name, PREFIX "%" SCNd64 ".kedge.%d%n", &seconds, &number, &end) == 2 &&
           name[end] == '\0';
}

/* ---- reading back ---- */

static uint64_t get_fixed(const unsigned char *at, int n)
{
    uint64_t x = 0;

    for (int i = 0; i < n; i++)
        x |= (uint64_t)at[i] << (8 * i);
    return x;
}

/* Size of the record at `at`; 0: it is incomplete, or a checksum is wrong. */
static uint64_t record_bytes(const unsigned char *at, uint64_t n)
{
    uint64_t length = n < RECORD_BYTES ? 0 : get_fixed(at, 8);

    if (n < RECORD_BYTES || length > n - RECORD_BYTES ||
        get_fixed(at + 8, 4) != masked_crc(at, 8) ||
        get_fixed(at + 12 + length, 4) != masked_crc(at + 12, length))
        return 0;
    return length + RECORD_BYTES;
}

/* The step of an event of n bytes that begins as put_time_and_step writes it. */
static int64_t step_of(const unsigned char *event, uint64_t n)
{
    uint64_t x = 0;

    for (uint64_t i = 10, shift = 0; i < n && shift < 64; i++, shift += 7) {
        x |= (uint64_t)(event[i] & 0x7f) << shift;
        if (event[i] < 0x80)
            break;
    }
    return (int64_t)x;
}

static kg_status last_step(int64_t *step, const char *path, struct kg_err *err)
{
    struct kg_map map;
    uint64_t n;

    *step = 0;
    KG_TRY(kg_map_open(&map, path, err));
    for (uint64_t at = 0; (n = record_bytes(map.data + at, map.bytes - at)) > 0; at += n)
        *step = step_of(map.data + at + 12, n - RECORD_BYTES);
    kg_map_close(&map);
    return KG_OK;
}

kg_status kg_tfevents_last_step(int64_t *step, const char *dir, struct kg_err *err)
{
    char name[NAME_BYTES];

    KG_TRY(last_name(name, dir, err));
    *step = name[0] ? 0 : -1;
    return strstr(name, ".kedge.") ? last_step(step, kg_path_in(dir, name).text, err)
                                   : KG_OK;
}

/* ---- life ---- */

kg_status kg_tfevents_open(struct kg_tfevents *t, const char *dir, int64_t from,
                           struct kg_err *err)
{
    static const char start[] = {1 << 3 | VARINT, 1};
    char last[NAME_BYTES], name[NAME_BYTES];

    KG_TRY(last_name(last, dir, err));
    /* A name that sorts after the last one, even in the same second or if the clock went
     * back. */
    int64_t now = (int64_t)kg_clock_unix_seconds(), before = 0;
    int number = 0;

    if (sscanf(last, PREFIX "%" SCNd64 ".kedge.%d", &before, &number) != 2)
        number = -1;
    snprintf(name, NAME_BYTES, PREFIX "%010" PRId64 ".kedge.%04d",
             now > before ? now : before, now > before ? 0 : number + 1);
    KG_TRY(kg_file_make_dirs(dir, err));
    KG_TRY(kg_file_writer_append(&t->file, kg_path_in(dir, name).text, 0, err));
    t->open = true;
    kg_status status = write_event(t, 0, 3, VERSION, strlen(VERSION), err);
    if (status == KG_OK)
        status = write_event(t, from, 7, start, sizeof start, err);
    if (status != KG_OK)
        kg_tfevents_abort(t);
    return status;
}

kg_status kg_tfevents_close(struct kg_tfevents *t, struct kg_err *err)
{
    if (!t->open)
        return KG_OK;
    t->open = false;
    return kg_file_writer_close(&t->file, err);
}

void kg_tfevents_abort(struct kg_tfevents *t)
{
    kg_file_writer_abort(&t->file);
    t->open = false;
}
