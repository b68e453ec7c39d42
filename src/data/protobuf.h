/* Protocol buffers, read only: a walk over the fields of one message.
 *
 * A message is a sequence of numbered fields. A nested message is a field of bytes,
 * walked in the same way. Nothing is allocated, and every step consumes at least one
 * byte.
 */
#ifndef KG_DATA_PROTOBUF_H
#define KG_DATA_PROTOBUF_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kg_protobuf_wire {
    KG_PROTOBUF_VARINT = 0,
    KG_PROTOBUF_64BIT = 1,
    KG_PROTOBUF_BYTES = 2,
    KG_PROTOBUF_32BIT = 5,
};

struct kg_protobuf {
    const unsigned char *at; /* borrowed: the next byte */
    const unsigned char *end;
};
struct kg_protobuf_field {
    uint32_t number;
    enum kg_protobuf_wire wire;
    uint64_t value;             /* the bits of a VARINT, 64BIT or 32BIT */
    const unsigned char *bytes; /* borrowed; BYTES only */
    size_t n;
};

struct kg_protobuf kg_protobuf_over(const void *bytes, size_t n);
/* *more is false at the end of the message, where field is not set.
 * errors: EFORMAT, with the number of bytes left in the message */
kg_status kg_protobuf_next(struct kg_protobuf *p, struct kg_protobuf_field *field,
                           bool *more, struct kg_err *err) KG_MUST_CHECK;
float kg_protobuf_float(
    const struct kg_protobuf_field *field); /* value of a 32BIT field */

#endif
