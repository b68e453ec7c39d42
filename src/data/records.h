/* Reads records from JSON lines or a JSON array (plain, gzip or zstd), or from a Parquet
 * file (not compressed as a whole).
 *
 * The format is detected from the content, never from the name: PAR1, the magic bytes of
 * gzip or zstd, or text. Text that begins with [ is an array of objects. An object whose
 * first value is a list of objects with the key data, train, validation or test is read
 * as that list; if it has more keys, a warning is logged.
 */
#ifndef KG_DATA_RECORDS_H
#define KG_DATA_RECORDS_H

#include "base/status.h"
#include "data/json.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_records; /* opaque reader */

/* A command for messages; it converts an object of columns (lists) to JSON lines. */
#define KG_RECORDS_OF_COLUMNS                                                            \
    "python3 -c 'import json, sys; d = json.load(sys.stdin); "                           \
    "[print(json.dumps(dict(zip(d, r)))) for r in zip(*d.values())]' < FILE > "          \
    "FILE.jsonl"

kg_status kg_records_open(struct kg_records **r, const char *path,
                          struct kg_err *err) KG_MUST_CHECK;
void kg_records_close(struct kg_records *r); /* NULL is allowed */

/* Reads the next record, an object; doc->where has the file and the place. *more is false
 * at the end. doc is released and refilled.
 * errors: EFORMAT, EUNSUPPORTED with the place (line, element, column and page), EIO */
kg_status kg_records_next(struct kg_records *r, struct kg_json_doc *doc, bool *more,
                          struct kg_err *err) KG_MUST_CHECK;

/* Number of the last record returned, from 1: its line, element or row. */
int64_t kg_records_number(const struct kg_records *r);
/* The unit of that number: "line", "element" or "row". */
const char *kg_records_unit(const struct kg_records *r);
/* "JSON lines", "JSON array, gzip", "Parquet", ... */
const char *kg_records_format(const struct kg_records *r);

#endif
