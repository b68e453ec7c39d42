/* Shared by the files parquet*.c: the schema as a tree in one array, the positions of
 * column chunks, and the decoders of runs and deltas. */
#ifndef KG_DATA_PARQUET_INTERNAL_H
#define KG_DATA_PARQUET_INTERNAL_H

#include "base/file.h"
#include "data/parquet.h"
#include "data/thrift.h"
#include "data/unpack.h"

enum { KG_PARQUET_BATCH = 1024 }; /* entries of a column, decoded at once */

/* Physical type of a leaf, numbered as in the format. */
enum kg_parquet_type {
    KG_PARQUET_BOOL = 0,
    KG_PARQUET_INT32 = 1,
    KG_PARQUET_INT64 = 2,
    KG_PARQUET_INT96 = 3,
    KG_PARQUET_FLOAT = 4,
    KG_PARQUET_DOUBLE = 5,
    KG_PARQUET_BYTES = 6,
    KG_PARQUET_FIXED = 7, /* byte strings of one length */
};

/* How the row reader treats a node. */
enum kg_parquet_kind {
    KG_PARQUET_AS_STRUCT,
    KG_PARQUET_AS_LIST,
    KG_PARQUET_AS_MAP,
    KG_PARQUET_AS_PLAIN, /* a leaf, read by its physical type */
    KG_PARQUET_AS_UNSIGNED,
    KG_PARQUET_AS_DECIMAL,
    KG_PARQUET_AS_DATE,
    KG_PARQUET_AS_TIME,
    KG_PARQUET_AS_TIMESTAMP,
    KG_PARQUET_AS_UUID,
    KG_PARQUET_AS_HALF,
};
enum kg_parquet_repetition {
    KG_PARQUET_REQUIRED,
    KG_PARQUET_OPTIONAL,
    KG_PARQUET_REPEATED
};

struct kg_parquet_node {
    char *name; /* owned */
    char *path; /* owned; leaves only */
    enum kg_parquet_kind kind;
    enum kg_parquet_repetition repetition;
    enum kg_parquet_type type; /* leaves */
    int bytes;                 /* FIXED: length of a value */
    int bits;                  /* AS_UNSIGNED */
    int scale; /* DECIMAL; TIME and TIMESTAMP: number of fraction digits */
    bool utc;  /* TIMESTAMP */
    int rep;   /* repetition level, this node included */
    int def;
    size_t n_children; /* 0: a leaf */
    size_t end;        /* index after the last node of this subtree */
    size_t leaf;       /* first leaf of the node */
    size_t n_leaves;
};

struct kg_parquet_group {
    struct kg_thrift_list columns; /* in the footer */
    int64_t rows;
};

struct kg_parquet {
    struct kg_map map; /* open when owns_map */
    bool owns_map;
    const unsigned char *bytes; /* the file */
    size_t n;
    size_t footer_at;              /* offset of the footer */
    char *name;                    /* owned */
    struct kg_parquet_node *nodes; /* owned (n_nodes), parents first; [0]: the root */
    size_t n_nodes;
    size_t *leaves; /* owned (n_leaves): their indices in nodes */
    size_t n_leaves;
    struct kg_parquet_group *groups; /* owned (n_groups) */
    size_t n_groups;
    int64_t rows;
    size_t held_bytes; /* bytes in buffers of open columns */
};

/* Where a column chunk is in the file. */
struct kg_parquet_chunk {
    const unsigned char *at;
    size_t n;
    int64_t values; /* entries: nulls and empty lists included */
    enum kg_codec codec;
};

/* parquet_schema.c */
kg_status kg_parquet_read_schema(struct kg_parquet *file, const struct kg_thrift *footer,
                                 const struct kg_thrift_list *elements,
                                 struct kg_err *err) KG_MUST_CHECK;

/* parquet.c: descriptions of a row group's columns, in order */
struct kg_thrift kg_parquet_chunks(const struct kg_parquet *file, size_t group);
kg_status kg_parquet_next_chunk(struct kg_parquet_chunk *chunk,
                                const struct kg_parquet *file, size_t column,
                                struct kg_thrift *t, struct kg_err *err) KG_MUST_CHECK;

/* ---- runs (RLE and bit-packed hybrid), parquet_runs.c ---- */
struct kg_parquet_runs {
    const unsigned char *p; /* borrowed */
    const unsigned char *end;
    int width;                  /* bits of a value, 0 to 32 */
    uint64_t left;              /* values left in this run */
    bool packed;                /* this run is bit-packed; its data is `packs` */
    const unsigned char *packs; /* of the run */
    uint64_t bit;               /* position in packs */
    uint32_t value;             /* value of a run that is not bit-packed */
};
void kg_parquet_runs_start(struct kg_parquet_runs *r, const void *bytes, size_t n,
                           int width);
/* Reads n values into out.   errors: EFORMAT (too few) */
kg_status kg_parquet_runs_take(uint32_t *out, struct kg_parquet_runs *r, size_t n,
                               struct kg_err *err) KG_MUST_CHECK;
/* kg_parquet_runs_take into bytes; values above max are errors. *equal: number of values
 * that are max */
kg_status kg_parquet_levels_take(uint8_t *out, size_t *equal, struct kg_parquet_runs *r,
                                 size_t n, int max, struct kg_err *err) KG_MUST_CHECK;
int kg_parquet_level_width(int max);

/* ---- DELTA_*, parquet_delta.c ---- */
/* A growing buffer, counted in the file's held_bytes; growing loses the contents. */
struct kg_parquet_buffer {
    void *data; /* owned */
    size_t capacity;
};
kg_status kg_parquet_buffer_need(struct kg_parquet_buffer *b, struct kg_parquet *file,
                                 size_t bytes, struct kg_err *err) KG_MUST_CHECK;
void kg_parquet_buffer_release(struct kg_parquet_buffer *b, struct kg_parquet *file);

/* Decodes at most max values into out (int64_t, room for max). *used: bytes of input */
kg_status kg_parquet_delta_ints(int64_t *out, size_t *n_out, size_t *used,
                                const unsigned char *p, size_t n, size_t max,
                                struct kg_err *err) KG_MUST_CHECK;
struct kg_parquet_delta {
    struct kg_parquet_buffer values;   /* int64_t, or struct kg_parquet_text */
    struct kg_parquet_buffer lengths;  /* int64_t */
    struct kg_parquet_buffer prefixes; /* int64_t */
    struct kg_parquet_buffer bytes;    /* texts with a shared prefix, expanded */
};
/* Decodes the texts of a page, at most max, into d->values; *n_out: their number. */
kg_status kg_parquet_delta_texts(struct kg_parquet_delta *d, size_t *n_out,
                                 struct kg_parquet *file, const unsigned char *p,
                                 size_t n, size_t max, bool with_prefixes,
                                 struct kg_err *err) KG_MUST_CHECK;

/* ---- columns as arrays, parquet_column.c ---- */
struct kg_parquet_text {
    const char *data; /* borrowed until the column's next batch */
    size_t n;
};
/* n entries; n_values of them have a value (def equals max_def). */
struct kg_parquet_batch {
    size_t n;
    size_t n_values;
    const uint8_t *rep; /* (n) repetition levels; all 0 if max_rep is 0 */
    const uint8_t *def; /* (n) definition levels; all 0 if max_def is 0 */
    /* (n_values): uint8_t for BOOL; int32_t, int64_t, float or double; else struct
     * kg_parquet_text */
    const void *values;
};
struct kg_parquet_column; /* opaque: a column of one row group */
/* t: at the column's description; moved past it */
kg_status kg_parquet_column_start(struct kg_parquet_column **c, struct kg_parquet *file,
                                  size_t group, size_t column, struct kg_thrift *t,
                                  struct kg_err *err) KG_MUST_CHECK;
/* At most KG_PARQUET_BATCH entries; n is 0 at the end. */
kg_status kg_parquet_column_next(struct kg_parquet_column *c,
                                 struct kg_parquet_batch *batch,
                                 struct kg_err *err) KG_MUST_CHECK;
void kg_parquet_column_close(struct kg_parquet_column *c); /* NULL is allowed */
/* Prepends "FILE: column 'x', row group 1, page 2: " to the error. */
kg_status kg_parquet_column_blame(const struct kg_parquet_column *c, struct kg_err *err);

/* ---- one value of a column into a document, parquet_value.c ---- */
/* scratch: its contents are lost */
kg_status kg_parquet_add_value(struct kg_json_builder *b, struct kg_str *scratch,
                               const struct kg_parquet_node *node, const void *values,
                               size_t i, struct kg_err *err) KG_MUST_CHECK;
/* Adds a text as the key of the next value. */
kg_status kg_parquet_add_key(struct kg_json_builder *b, const void *values, size_t i,
                             struct kg_err *err) KG_MUST_CHECK;

#endif
