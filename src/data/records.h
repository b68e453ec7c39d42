/* One source of records, whatever the file is: JSON lines, a JSON array, either of them
 * packed by gzip or zstd, or Parquet.
 *
 * The format is told from the content, never from the name: a file begins with PAR1, with
 * the marks of gzip or zstd, or with text. Text with [ is an array of objects, and so is
 * the list of an object that begins with it ({"data": [..]}).
 */
#ifndef KG_DATA_RECORDS_H
#define KG_DATA_RECORDS_H

#include "base/status.h"
#include "data/json.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_records; /* opaque reader */

/* For messages: what makes records of one object with a list for each key. */
#define KG_RECORDS_OF_COLUMNS                                                            \
    "python3 -c 'import json, sys; d = json.load(sys.stdin); "                           \
    "[print(json.dumps(dict(zip(d, r)))) for r in zip(*d.values())]' < FILE > "          \
    "FILE.jsonl"

kg_status kg_records_open(struct kg_records **r, const char *path,
                          struct kg_err *err) KG_MUST_CHECK;
void kg_records_close(struct kg_records *r); /* NULL is allowed */

/* The next record, an object; doc->where says the file and the place. *more is false at
 * the end. doc is released and refilled.
 * errors: EFORMAT, EUNSUPPORTED with the place (line, element, or row and column), EIO */
kg_status kg_records_next(struct kg_records *r, struct kg_json_doc *doc, bool *more,
                          struct kg_err *err) KG_MUST_CHECK;

/* Of the record last returned, from 1: its line, its element, its row. */
int64_t kg_records_number(const struct kg_records *r);
/* "line", "element" or "row": what the number counts. */
const char *kg_records_unit(const struct kg_records *r);
/* "JSON lines", "JSON array, gzip", "Parquet", ... */
const char *kg_records_format(const struct kg_records *r);

#endif
