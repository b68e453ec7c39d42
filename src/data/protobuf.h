/* Protocol buffers, read only: a walk over the fields of one message.
 *
 * A message is a run of numbered fields; one that holds a message gives its bytes, over
 * which another walk goes. Nothing is allocated, and every step consumes a byte or more.
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
    const unsigned char *at; /* borrowed: what is read next */
    const unsigned char *end;
};
struct kg_protobuf_field {
    uint32_t number;
    enum kg_protobuf_wire wire;
    uint64_t value;             /* of VARINT, 64BIT and 32BIT: the bits */
    const unsigned char *bytes; /* borrowed; of BYTES */
    size_t n;
};

struct kg_protobuf kg_protobuf_over(const void *bytes, size_t n);
/* *more is false at the end of the message, and field is not touched then.
 * errors: EFORMAT, saying how many bytes before the message's end */
kg_status kg_protobuf_next(struct kg_protobuf *p, struct kg_protobuf_field *field,
                           bool *more, struct kg_err *err) KG_MUST_CHECK;
float kg_protobuf_float(const struct kg_protobuf_field *field); /* of 32BIT */

#endif
