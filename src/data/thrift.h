/* Thrift's compact protocol, read only, as far as Parquet's headers need it.
 *
 * A struct is read by a table of its fields; fields without a row are skipped. A list is
 * not read; only its position is stored. So nothing is allocated here, and the input
 * bounds every loop, because each element takes at least one byte.
 */
#ifndef KG_DATA_THRIFT_H
#define KG_DATA_THRIFT_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { KG_THRIFT_MAX_DEPTH = 24 };

/* Types of the compact protocol. */
enum kg_thrift_type {
    KG_THRIFT_TRUE = 1,
    KG_THRIFT_FALSE = 2,
    KG_THRIFT_I8 = 3,
    KG_THRIFT_I16 = 4,
    KG_THRIFT_I32 = 5,
    KG_THRIFT_I64 = 6,
    KG_THRIFT_DOUBLE = 7,
    KG_THRIFT_BINARY = 8,
    KG_THRIFT_LIST = 9,
    KG_THRIFT_SET = 10,
    KG_THRIFT_MAP = 11,
    KG_THRIFT_STRUCT = 12
};

struct kg_thrift {
    const unsigned char *p; /* borrowed: the next byte */
    const unsigned char *end;
    const char *problem; /* static; NULL: no error. After an error nothing is read */
};

struct kg_thrift_bytes {
    const unsigned char *data; /* borrowed; NULL: the field was absent */
    size_t n;
};
struct kg_thrift_list {
    const unsigned char *at; /* borrowed: the first element; NULL: absent */
    uint32_t n;
    int type; /* of the elements */
};

enum kg_thrift_kind {
    KG_THRIFT_AS_INT,    /* int64_t, from any integer */
    KG_THRIFT_AS_BOOL,   /* int64_t, 0 or 1 */
    KG_THRIFT_AS_BYTES,  /* struct kg_thrift_bytes */
    KG_THRIFT_AS_LIST,   /* struct kg_thrift_list */
    KG_THRIFT_AS_STRUCT, /* read by `sub`, whose offsets are in the same struct */
    KG_THRIFT_AS_TAG,    /* a skipped struct; stores the field's id as int64_t */
};
struct kg_thrift_field {
    int id; /* 0 ends a table */
    enum kg_thrift_kind kind;
    size_t offset; /* in the struct filled */
    const struct kg_thrift_field *sub;
};

/* Fills *out from a struct; the caller has set *out to its defaults. If a STRUCT field
 * with an offset above 0 is present, 1 is added to the int64_t at that offset. */
void kg_thrift_read(struct kg_thrift *t, void *out, const struct kg_thrift_field *fields);
/* Skips a value of this type. */
void kg_thrift_skip(struct kg_thrift *t, int type);
/* A reader that starts at the list's first element and ends where `t` ends. */
struct kg_thrift kg_thrift_enter(const struct kg_thrift *t,
                                 const struct kg_thrift_list *list);

#endif
