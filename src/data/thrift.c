/* Thrift's compact protocol: varints, zigzag, and a walk over tagged fields.
 *
 * The one idea: the first problem sticks. After it every read gives zero and the walk
 * ends, so callers check once at the end instead of at every byte.
 */
#include "data/thrift.h"

#include <string.h>

enum { VARINT_BYTES = 10 };

static void fail(struct kg_thrift *t, const char *problem)
{
    if (!t->problem)
        t->problem = problem;
    t->p = t->end;
}

static unsigned read_byte(struct kg_thrift *t)
{
    if (t->p < t->end)
        return *t->p++;
    fail(t, "it ends early");
    return 0;
}

static uint64_t read_varint(struct kg_thrift *t)
{
    uint64_t value = 0;

    for (int i = 0; i < VARINT_BYTES; i++) {
        unsigned byte = read_byte(t);

        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (!(byte & 0x80))
            return value;
    }
    fail(t, "an integer is longer than 10 bytes");
    return 0;
}

static int64_t read_zigzag(struct kg_thrift *t)
{
    uint64_t u = read_varint(t);

    return (int64_t)(u >> 1) ^ -(int64_t)(u & 1);
}

static struct kg_thrift_bytes read_bytes(struct kg_thrift *t)
{
    uint64_t n = read_varint(t);
    struct kg_thrift_bytes bytes = {t->p, (size_t)n};

    if (n > (uint64_t)(t->end - t->p)) {
        fail(t, "a text is longer than what is left");
        return (struct kg_thrift_bytes){0};
    }
    t->p += n;
    return bytes;
}

static struct kg_thrift_list read_list_head(struct kg_thrift *t)
{
    unsigned head = read_byte(t);
    uint64_t n = head >> 4;

    if (n == 15)
        n = read_varint(t);
    if (n > (uint64_t)(t->end - t->p)) {
        fail(t, "a list has more elements than bytes are left");
        n = 0;
    }
    return (struct kg_thrift_list){t->p, (uint32_t)n, (int)(head & 15)};
}

/* ---- skipping ---- */

static void skip(struct kg_thrift *t, int type, int depth);

static void skip_n(struct kg_thrift *t, int type, uint64_t n, int depth)
{
    for (uint64_t i = 0; i < n && !t->problem; i++)
        skip(t, type, depth);
}

/* Booleans take a byte in lists, sets and maps; a boolean field is part of its type. */
static void skip_map(struct kg_thrift *t, int depth)
{
    uint64_t n = read_varint(t);
    unsigned types = n ? read_byte(t) : 0;

    if (n > (uint64_t)(t->end - t->p))
        fail(t, "a map has more entries than bytes are left");
    for (uint64_t i = 0; i < n && !t->problem; i++) {
        int key = (int)(types >> 4);
        int value = (int)(types & 15);

        skip_n(t, key <= KG_THRIFT_FALSE ? KG_THRIFT_I8 : key, 1, depth);
        skip_n(t, value <= KG_THRIFT_FALSE ? KG_THRIFT_I8 : value, 1, depth);
    }
}

/* Reads the header of the next field.   *id: the previous field's; set to this field's
 * returns the type, 0 at the end of the struct */
static int next_field(struct kg_thrift *t, int64_t *id)
{
    unsigned head = read_byte(t);

    if (t->problem || (head & 15) == 0)
        return 0;
    *id = head >> 4 ? *id + (head >> 4) : read_zigzag(t);
    if (*id < INT16_MIN || *id > INT16_MAX)
        fail(t, "a field's number has more than 16 bits");
    return t->problem ? 0 : (int)(head & 15);
}

static void skip_struct(struct kg_thrift *t, int depth)
{
    int64_t id = 0;
    int type;

    while ((type = next_field(t, &id)) != 0)
        skip(t, type, depth);
}

static void skip_list(struct kg_thrift *t, int depth)
{
    struct kg_thrift_list list = read_list_head(t);
    bool is_bool = list.type == KG_THRIFT_TRUE || list.type == KG_THRIFT_FALSE;

    skip_n(t, is_bool ? KG_THRIFT_I8 : list.type, list.n, depth);
}

static void skip(struct kg_thrift *t, int type, int depth)
{
    if (depth > KG_THRIFT_MAX_DEPTH) {
        fail(t, "it is nested too deep");
        return;
    }
    switch (type) {
    case KG_THRIFT_TRUE:
    case KG_THRIFT_FALSE:
        return;
    case KG_THRIFT_I8:
        read_byte(t);
        return;
    case KG_THRIFT_I16:
    case KG_THRIFT_I32:
    case KG_THRIFT_I64:
        read_varint(t);
        return;
    case KG_THRIFT_DOUBLE:
        if (t->end - t->p < 8)
            fail(t, "it ends early");
        else
            t->p += 8;
        return;
    case KG_THRIFT_BINARY:
        read_bytes(t);
        return;
    case KG_THRIFT_LIST:
    case KG_THRIFT_SET:
        skip_list(t, depth + 1);
        return;
    case KG_THRIFT_MAP:
        skip_map(t, depth + 1);
        return;
    case KG_THRIFT_STRUCT:
        skip_struct(t, depth + 1);
        return;
    default:
        fail(t, "a field has a type that the protocol does not know");
    }
}

void kg_thrift_skip(struct kg_thrift *t, int type) { skip(t, type, 0); }

/* ---- reading by a table ---- */

static void put_int(void *out, size_t offset, int64_t value)
{
    memcpy((char *)out + offset, &value, sizeof value);
}

static bool is_integer(int type) { return type >= KG_THRIFT_I8 && type <= KG_THRIFT_I64; }

static void read_int(struct kg_thrift *t, void *out, size_t offset, int type)
{
    if (!is_integer(type)) {
        fail(t, "a field is not an integer where one is expected");
        return;
    }
    put_int(out, offset,
            type == KG_THRIFT_I8 ? (int64_t)(int8_t)read_byte(t) : read_zigzag(t));
}

static void read_struct(struct kg_thrift *t, void *out,
                        const struct kg_thrift_field *fields, int depth);

static void read_sub(struct kg_thrift *t, void *out, const struct kg_thrift_field *f,
                     int depth)
{
    if (f->offset > 0)
        put_int(out, f->offset, 1);
    read_struct(t, out, f->sub, depth + 1);
}

static void read_list(struct kg_thrift *t, void *out, size_t offset)
{
    const unsigned char *start = t->p;
    struct kg_thrift_list list = read_list_head(t);

    memcpy((char *)out + offset, &list, sizeof list);
    if (t->problem)
        return;
    t->p = start;
    skip_list(t, 1);
}

/* The protocol's type of a field of this kind; 0: several types are possible. */
static int type_of(enum kg_thrift_kind kind)
{
    switch (kind) {
    case KG_THRIFT_AS_BYTES:
        return KG_THRIFT_BINARY;
    case KG_THRIFT_AS_LIST:
        return KG_THRIFT_LIST;
    case KG_THRIFT_AS_STRUCT:
    case KG_THRIFT_AS_TAG:
        return KG_THRIFT_STRUCT;
    default:
        return 0;
    }
}

static void read_field(struct kg_thrift *t, void *out, const struct kg_thrift_field *f,
                       int type, int depth)
{
    struct kg_thrift_bytes bytes;

    if (type_of(f->kind) != 0 && type_of(f->kind) != type) {
        fail(t, "a field has another type than expected");
        return;
    }
    switch (f->kind) {
    case KG_THRIFT_AS_INT:
        read_int(t, out, f->offset, type);
        return;
    case KG_THRIFT_AS_BOOL:
        if (type != KG_THRIFT_TRUE && type != KG_THRIFT_FALSE)
            fail(t, "a field is not a boolean where one is expected");
        put_int(out, f->offset, type == KG_THRIFT_TRUE);
        return;
    case KG_THRIFT_AS_BYTES:
        bytes = read_bytes(t);
        memcpy((char *)out + f->offset, &bytes, sizeof bytes);
        return;
    case KG_THRIFT_AS_LIST:
        read_list(t, out, f->offset);
        return;
    case KG_THRIFT_AS_STRUCT:
        read_sub(t, out, f, depth);
        return;
    case KG_THRIFT_AS_TAG:
        put_int(out, f->offset, f->id);
        skip(t, type, depth);
    }
}

static void read_struct(struct kg_thrift *t, void *out,
                        const struct kg_thrift_field *fields, int depth)
{
    int64_t id = 0;
    int type;

    if (depth > KG_THRIFT_MAX_DEPTH)
        fail(t, "it is nested too deep");
    while ((type = next_field(t, &id)) != 0) {
        const struct kg_thrift_field *f = fields;

        while (f->id != 0 && f->id != id)
            f++;
        if (f->id != 0)
            read_field(t, out, f, type, depth);
        else
            skip(t, type, depth);
    }
}

void kg_thrift_read(struct kg_thrift *t, void *out, const struct kg_thrift_field *fields)
{
    read_struct(t, out, fields, 0);
}

struct kg_thrift kg_thrift_enter(const struct kg_thrift *t,
                                 const struct kg_thrift_list *list)
{
    return (struct kg_thrift){list->at, t->end, NULL};
}
