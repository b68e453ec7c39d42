/* Parquet files, read only: columns as arrays, or rows as JSON documents.
 *
 * A file is a map; its footer is checked when it is opened, everything else when it is
 * reached. It is not trusted: sizes, counts, offsets, levels, indices and nesting are
 * compared with what is there and with the limits below before anything is allocated or
 * read. Errors name the file, the column, the row group and the page, from 1.
 *
 * Read: data pages v1 and v2; PLAIN, dictionaries, RLE, DELTA_*, BYTE_STREAM_SPLIT;
 * snappy, gzip, zstd, lz4, brotli or no compression; checksums where there are any.
 * Refused by name: encryption, columns in other files, BIT_PACKED levels, lzo.
 */
#ifndef KG_DATA_PARQUET_H
#define KG_DATA_PARQUET_H

#include "base/status.h"
#include "data/json.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    KG_PARQUET_MAX_FOOTER_BYTES = 64 << 20,
    KG_PARQUET_MAX_PAGE_BYTES = 256 << 20,  /* unpacked */
    KG_PARQUET_MAX_HELD_BYTES = 1 << 30,    /* by all columns that are open */
    KG_PARQUET_MAX_DELTA_VALUES = 1 << 24,  /* of a page in a DELTA encoding */
    KG_PARQUET_MAX_RECORD_BYTES = 64 << 20, /* texts and keys, 8 more for any value */
    KG_PARQUET_MAX_COLUMNS = 4096,
    KG_PARQUET_MAX_GROUPS = 1 << 20,
    KG_PARQUET_MAX_DEPTH = 24,
    KG_PARQUET_BATCH = 1024,
};

/* How a leaf is stored: the format's own numbers. */
enum kg_parquet_type {
    KG_PARQUET_BOOL = 0,
    KG_PARQUET_INT32 = 1,
    KG_PARQUET_INT64 = 2,
    KG_PARQUET_INT96 = 3,
    KG_PARQUET_FLOAT = 4,
    KG_PARQUET_DOUBLE = 5,
    KG_PARQUET_BYTES = 6,
    KG_PARQUET_FIXED = 7, /* bytes of one length */
};

struct kg_parquet; /* opaque: an open file */

kg_status kg_parquet_open(struct kg_parquet **file, const char *path,
                          struct kg_err *err) KG_MUST_CHECK;
/* A whole file in memory (borrowed for the life of the file); for tests and fuzzing. */
kg_status kg_parquet_open_bytes(struct kg_parquet **file, const void *bytes, size_t n,
                                const char *where, struct kg_err *err) KG_MUST_CHECK;
void kg_parquet_close(struct kg_parquet *file);

int64_t kg_parquet_rows(const struct kg_parquet *file);
size_t kg_parquet_groups(const struct kg_parquet *file);
size_t kg_parquet_columns(const struct kg_parquet *file);     /* leaves */
const char *kg_parquet_writer(const struct kg_parquet *file); /* "" when unknown */

struct kg_parquet_leaf {
    const char *path; /* "a.list.element"; borrowed from the file */
    enum kg_parquet_type type;
    int max_rep; /* lists around the value */
    int max_def; /* what may be absent around it */
};
void kg_parquet_leaf(struct kg_parquet_leaf *leaf, const struct kg_parquet *file,
                     size_t column);

/* ---- columns as arrays ---- */
struct kg_parquet_text {
    const char *data; /* borrowed: until the next batch of the column */
    size_t n;
};
/* n entries, of which n_values hold one (def equals max_def). */
struct kg_parquet_batch {
    size_t n;
    size_t n_values;
    const uint8_t *rep; /* (n), all 0 where max_rep is */
    const uint8_t *def; /* (n), all 0 where max_def is */
    /* (n_values): uint8_t for BOOL, int32_t, int64_t, float, double, else struct
     * kg_parquet_text */
    const void *values;
};
struct kg_parquet_column; /* opaque: a column of one row group */

kg_status kg_parquet_column_open(struct kg_parquet_column **c, struct kg_parquet *file,
                                 size_t group, size_t column,
                                 struct kg_err *err) KG_MUST_CHECK;
/* At most KG_PARQUET_BATCH entries; n is 0 at the end. */
kg_status kg_parquet_column_next(struct kg_parquet_column *c,
                                 struct kg_parquet_batch *batch,
                                 struct kg_err *err) KG_MUST_CHECK;
void kg_parquet_column_close(struct kg_parquet_column *c); /* NULL is allowed */

/* ---- rows as JSON ---- */
/* A struct becomes an object, a list an array, a map with text keys an object (other maps
 * an array of {"key", "value"}). Text, JSON, enums: strings, which must be UTF-8, as must
 * bytes without a type. Integers and floats: numbers (an unsigned one above 2^63 - 1 a
 * string, "9223372036854775808"; NaN and infinities: "nan", "inf", "-inf"). Decimals,
 * dates, times, timestamps and UUIDs: strings, "12.50", "2024-02-29", "12:00:00.000",
 * "2024-02-29T12:00:00.000000Z" (Z where the column says UTC). */
struct kg_parquet_rows; /* opaque */
kg_status kg_parquet_rows_open(struct kg_parquet_rows **r, struct kg_parquet *file,
                               struct kg_err *err) KG_MUST_CHECK; /* file borrowed */
/* The next row as an object. doc is released and refilled. */
kg_status kg_parquet_rows_next(struct kg_parquet_rows *r, struct kg_json_doc *doc,
                               bool *more, struct kg_err *err) KG_MUST_CHECK;
int64_t kg_parquet_rows_number(const struct kg_parquet_rows *r); /* from 1 */
void kg_parquet_rows_close(struct kg_parquet_rows *r);           /* NULL is allowed */

#endif
