/* A reader of TensorBoard's event files for tests: framing with its checksums, the four
 * messages, and the events that a START discards. Written from the format, not from
 * tfevents.c.
 *
 * Included by *_test.c only.
 */
#ifndef KG_REPORT_TFEVENTS_TESTING_H
#define KG_REPORT_TFEVENTS_TESTING_H

#include "base/file.h"
#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_SCALARS = 20000 };

struct scalar {
    int64_t step;
    char name[64];
    float value;
    bool is_void;
};
struct events {
    struct scalar scalar[MAX_SCALARS];
    size_t n;
    int versions, starts;
    int torn; /* files whose last record is cut off, as readers tolerate */
    int64_t last_start;
    double wall_time;
};

/* A message in protocol buffers, field by field. */
struct message {
    const unsigned char *at, *end;
    unsigned field, wire;
    uint64_t number;            /* of wire types 0, 1 and 5 */
    const unsigned char *bytes; /* of wire type 2, like n */
    uint64_t n;
};

static inline uint64_t fixed(const unsigned char *at, int n)
{
    uint64_t x = 0;

    for (int i = 0; i < n; i++)
        x |= (uint64_t)at[i] << (8 * i);
    return x;
}

static inline uint64_t varint(struct message *m)
{
    uint64_t x = 0;

    for (int shift = 0;; shift += 7) {
        unsigned char byte;

        assert_true(m->at < m->end && shift < 64);
        byte = *m->at++;
        x |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return x;
    }
}

static inline bool next_field(struct message *m)
{
    uint64_t key;

    if (m->at == m->end)
        return false;
    key = varint(m);
    m->field = (unsigned)(key >> 3);
    m->wire = key & 7;
    if (m->wire == 0) {
        m->number = varint(m);
    } else if (m->wire == 2) {
        m->n = varint(m);
        assert_true(m->n <= (uint64_t)(m->end - m->at));
        m->bytes = m->at;
        m->at += m->n;
    } else {
        int width = m->wire == 1 ? 8 : 4;

        assert_true((m->wire == 1 || m->wire == 5) && m->end - m->at >= width);
        m->number = fixed(m->at, width);
        m->at += width;
    }
    return true;
}

static inline struct message inside(const struct message *m)
{
    return (struct message){.at = m->bytes, .end = m->bytes + m->n};
}

static inline void read_value(struct events *e, struct message value, int64_t step)
{
    struct scalar *s = &e->scalar[e->n++];

    assert_true(e->n <= MAX_SCALARS);
    *s = (struct scalar){.step = step};
    while (next_field(&value)) {
        uint32_t bits = (uint32_t)value.number;

        if (value.field == 1) {
            assert_true(value.wire == 2 && value.n < sizeof s->name);
            memcpy(s->name, value.bytes, value.n);
        } else {
            assert_true(value.field == 2 && value.wire == 5);
            memcpy(&s->value, &bits, sizeof bits);
        }
    }
}

static inline void read_start(struct events *e, struct message log, int64_t step)
{
    assert_true(next_field(&log) && log.field == 1 && log.number == 1);
    e->starts++;
    e->last_start = step;
    for (size_t i = 0; i < e->n; i++)
        e->scalar[i].is_void = e->scalar[i].is_void || e->scalar[i].step >= step;
}

static inline void read_event(struct events *e, struct message event)
{
    int64_t step = 0;

    while (next_field(&event)) {
        struct message part = inside(&event);

        if (event.field == 1)
            memcpy(&e->wall_time, &event.number, sizeof e->wall_time);
        else if (event.field == 2)
            step = (int64_t)event.number;
        else if (event.field == 3)
            e->versions += event.n == 13 && !memcmp(event.bytes, "brain.Event:2", 13);
        else if (event.field == 7)
            read_start(e, part, step);
        else
            while (event.field == 5 && next_field(&part))
                read_value(e, inside(&part), step);
    }
}

static inline uint32_t unmasked(uint32_t crc)
{
    crc -= 0xa282ead8u;
    return crc >> 17 | crc << 15;
}

/* Every whole record of one file; its checksums hold. */
static inline void read_records(struct events *e, const struct kg_str *file)
{
    const unsigned char *at = (const unsigned char *)file->data, *end = at + file->len;

    while (at < end) {
        uint64_t n;

        n = end - at < 16 ? 0 : fixed(at, 8);
        if (end - at < 16 || n > (uint64_t)(end - at - 16)) {
            e->torn++;
            return;
        }
        assert_int_equal(unmasked((uint32_t)fixed(at + 8, 4)), kg_hash_crc32c(at, 8));
        assert_int_equal(unmasked((uint32_t)fixed(at + 12 + n, 4)),
                         kg_hash_crc32c(at + 12, n));
        read_event(e, (struct message){.at = at + 12, .end = at + 12 + n});
        at += n + 16;
    }
}

/* The event files of a folder in the order of their names.   returns how many */
static inline int read_events(struct events *e, const char *folder)
{
    struct kg_str file = {0};
    struct kg_err why;
    char **names, path[512];
    size_t n;
    int files = 0;

    memset(e, 0, sizeof *e);
    assert_int_equal(kg_file_list(&names, &n, folder, &why), KG_OK);
    for (size_t i = 0; i < n; i++) {
        if (!strstr(names[i], "tfevents"))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        kg_str_clear(&file);
        assert_int_equal(kg_file_read(&file, path, 1 << 26, &why), KG_OK);
        read_records(e, &file);
        files++;
    }
    kg_file_names_free(names, n);
    kg_str_release(&file);
    return files;
}

#endif
