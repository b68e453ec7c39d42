/* Protocol buffers: a message is a list of fields, each with a number and one of four
 * wire types that give its length. So unknown fields can be skipped: the caller asks for
 * the next field and takes those that it knows. A nested message is bytes for the same
 * reader. Groups are refused. Every length is compared with the bytes that are left
 * before they are read. */
#include "data/protobuf.h"

#include <string.h>

struct kg_protobuf kg_protobuf_over(const void *bytes, size_t n)
{
    const unsigned char *at = bytes ? bytes : (const unsigned char *)"";

    return (struct kg_protobuf){.at = at, .end = at + n};
}

static kg_status broken(const struct kg_protobuf *p, const char *what, struct kg_err *err)
{
    return kg_fail(err, KG_EFORMAT,
                   "protocol buffer: %s, %zu bytes before the end of its message", what,
                   (size_t)(p->end - p->at));
}

/* Seven bits per byte, the lowest first; at most ten bytes. */
static kg_status read_varint(struct kg_protobuf *p, uint64_t *value, struct kg_err *err)
{
    *value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (p->at == p->end)
            return broken(p, "a number is cut off", err);
        unsigned char byte = *p->at++;
        *value |= shift < 64 ? (uint64_t)(byte & 0x7F) << shift : 0;
        if (byte < 0x80)
            return KG_OK;
    }
    return broken(p, "a number is longer than ten bytes", err);
}

static kg_status read_fixed(struct kg_protobuf *p, size_t n, uint64_t *value,
                            struct kg_err *err)
{
    *value = 0;
    if ((size_t)(p->end - p->at) < n)
        return broken(p, "a number is cut off", err);
    for (size_t i = 0; i < n; i++)
        *value |= (uint64_t)p->at[i] << (8 * i);
    p->at += n;
    return KG_OK;
}

static kg_status read_bytes(struct kg_protobuf *p, struct kg_protobuf_field *field,
                            struct kg_err *err)
{
    uint64_t n;
    KG_TRY(read_varint(p, &n, err));
    if (n > (uint64_t)(p->end - p->at))
        return broken(p, "a field is longer than what is left", err);
    field->bytes = p->at;
    field->n = (size_t)n;
    p->at += n;
    return KG_OK;
}

kg_status kg_protobuf_next(struct kg_protobuf *p, struct kg_protobuf_field *field,
                           bool *more, struct kg_err *err)
{
    uint64_t tag;
    *more = p->at < p->end;
    if (!*more)
        return KG_OK;
    KG_TRY(read_varint(p, &tag, err));
    if (tag >> 3 == 0 || tag >> 3 > UINT32_MAX)
        return broken(p, "a field has no number", err);
    *field = (struct kg_protobuf_field){.number = (uint32_t)(tag >> 3),
                                        .wire = (enum kg_protobuf_wire)(tag & 7)};
    switch (field->wire) {
    case KG_PROTOBUF_VARINT:
        return read_varint(p, &field->value, err);
    case KG_PROTOBUF_64BIT:
        return read_fixed(p, 8, &field->value, err);
    case KG_PROTOBUF_BYTES:
        return read_bytes(p, field, err);
    case KG_PROTOBUF_32BIT:
        return read_fixed(p, 4, &field->value, err);
    }
    return broken(p, "a field has an unknown type", err);
}

float kg_protobuf_float(const struct kg_protobuf_field *field)
{
    uint32_t bits = (uint32_t)field->value;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
