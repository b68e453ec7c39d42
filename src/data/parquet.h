/* Parquet files, read only: rows as JSON documents.
 *
 * A file is mapped; its footer is checked on opening, everything else when it is read.
 * Files are untrusted: sizes, counts, offsets, levels, indices and nesting are checked
 * against the file and the limits below before memory is allocated or data read. Errors
 * name the file and the column, with row group and page counted from 1.
 *
 * Supported: data pages v1 and v2; PLAIN, dictionaries, RLE, DELTA_*, BYTE_STREAM_SPLIT;
 * snappy, gzip, zstd, lz4, brotli or no compression; checksums where present. Refused by
 * name: encryption, columns in other files, BIT_PACKED levels, lzo.
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
    KG_PARQUET_MAX_HELD_BYTES = 1 << 30,    /* bytes held by all open columns */
    KG_PARQUET_MAX_DELTA_VALUES = 1 << 24,  /* values of a page in a DELTA encoding */
    KG_PARQUET_MAX_RECORD_BYTES = 64 << 20, /* texts and keys, plus 8 for each value */
    KG_PARQUET_MAX_COLUMNS = 4096,
    KG_PARQUET_MAX_GROUPS = 1 << 20,
    KG_PARQUET_MAX_DEPTH = 24,
};

struct kg_parquet; /* opaque: an open file */

kg_status kg_parquet_open(struct kg_parquet **file, const char *path,
                          struct kg_err *err) KG_MUST_CHECK;
/* A whole file in memory, borrowed while it is open; for tests and fuzzing. */
kg_status kg_parquet_open_bytes(struct kg_parquet **file, const void *bytes, size_t n,
                                const char *where, struct kg_err *err) KG_MUST_CHECK;
void kg_parquet_close(struct kg_parquet *file);

/* A struct becomes an object, a list an array, a map with text keys an object (other maps
 * an array of {"key", "value"}). Text, JSON, enums and bytes without a type: strings,
 * which must be UTF-8. Integers and floats: numbers; an unsigned integer above 2^63 - 1:
 * a string, "9223372036854775808"; NaN and infinities: "nan", "inf", "-inf". Decimals,
 * dates, times, timestamps and UUIDs: strings, "12.50", "2024-02-29", "12:00:00.000",
 * "2024-02-29T12:00:00.000000Z" (Z if the column is in UTC). */
struct kg_parquet_rows; /* opaque */
kg_status kg_parquet_rows_open(struct kg_parquet_rows **r, struct kg_parquet *file,
                               struct kg_err *err) KG_MUST_CHECK; /* file borrowed */
/* The next row as an object. doc is released and refilled. */
kg_status kg_parquet_rows_next(struct kg_parquet_rows *r, struct kg_json_doc *doc,
                               bool *more, struct kg_err *err) KG_MUST_CHECK;
int64_t kg_parquet_rows_number(const struct kg_parquet_rows *r); /* from 1 */
void kg_parquet_rows_close(struct kg_parquet_rows *r);           /* NULL is allowed */

#endif
