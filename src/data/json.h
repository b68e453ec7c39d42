/* JSON: a parsed document with borrowed, typed look-ups, and a writer that appends to a
 * kg_str.
 *
 * A struct kg_json is a value inside a document and lives as long as the document. A
 * builder makes documents; the text parser uses the builder. Errors of kg_json_need
 * and its kin begin with the document's `where` (a file name, "stdin line 12"), and name
 * the key and what was found.
 */
#ifndef KG_DATA_JSON_H
#define KG_DATA_JSON_H

#include "base/pool.h"
#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_json; /* opaque value */
struct kg_json_doc {
    struct kg_json *root; /* in the pool */
    char *where;          /* in the pool */
    struct kg_pool pool;  /* owned: all memory of the document */
};

enum kg_json_type {
    KG_JSON_NULL,
    KG_JSON_BOOL,
    KG_JSON_INT,
    KG_JSON_REAL,
    KG_JSON_STRING,
    KG_JSON_ARRAY,
    KG_JSON_OBJECT
};

/* Parses UTF-8 text. Refuses duplicate keys, trailing text, NaN, integers beyond 64 bits,
 * and depth over 64.   errors: EFORMAT with the column, and in a text of several lines
 * the line */
kg_status kg_json_parse(struct kg_json_doc *doc, const char *text, size_t n,
                        const char *where, struct kg_err *err) KG_MUST_CHECK;
/* Detects a Git LFS pointer: a checkout without LFS has one instead of a large file.
 * errors: EFORMAT (text is a pointer) */
kg_status kg_json_check_fetched(const char *text, size_t n,
                                struct kg_err *err) KG_MUST_CHECK;
/* Reads a settings file. Here integers beyond 64 bits become real numbers (in records
 * they are errors), because transformers writes "no limit" as a model_max_length of
 * 1000000000000000019884624838656. */
kg_status kg_json_read(struct kg_json_doc *doc, const char *path, uint64_t max_bytes,
                       struct kg_err *err) KG_MUST_CHECK;
void kg_json_release(struct kg_json_doc *doc); /* {0} allowed */

/* ---- look-ups: never fail; for NULL or another type: NULL, 0 or the fallback ---- */
enum kg_json_type kg_json_type(const struct kg_json *v); /* NULL pointer: KG_JSON_NULL */
const char *kg_json_type_name(const struct kg_json *v);
const struct kg_json *kg_json_get(const struct kg_json *object,
                                  const char *key); /* NULL if absent */
size_t kg_json_size(const struct kg_json *v);       /* number of members; 0: no list */
const struct kg_json *kg_json_at(const struct kg_json *array, size_t i);
const char *kg_json_key_at(const struct kg_json *object, size_t i); /* insertion order */
const struct kg_json *kg_json_value_at(const struct kg_json *object, size_t i);
const char *kg_json_text(const struct kg_json *v, size_t *len); /* NULL if not a string */
bool kg_json_is_number(const struct kg_json *v);
double kg_json_real(const struct kg_json *v, double fallback); /* integers too */
int64_t kg_json_int(const struct kg_json *v, int64_t fallback);
bool kg_json_bool(const struct kg_json *v, bool fallback);

/* ---- required values: EFORMAT "where: key 'k': expected integer, found string" ---- */
kg_status kg_json_need(const struct kg_json **out, const struct kg_json_doc *doc,
                       const struct kg_json *object, const char *key,
                       enum kg_json_type type, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_json_need_int(int64_t *out, const struct kg_json_doc *doc,
                           const struct kg_json *object, const char *key, int64_t min,
                           int64_t max, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_json_need_text(const char **out, const struct kg_json_doc *doc,
                            const struct kg_json *object, const char *key,
                            struct kg_err *err) KG_MUST_CHECK;

/* ---- building: a document by calls instead of text ----
 * Add values in the order of the text; each goes to the array or object opened last, in
 * an object after its key. The first value is the root. After a failed call the caller
 * releases the document. Errors do not name the place; the caller adds it. */
struct kg_json_builder; /* opaque: makes documents one after another */
enum { KG_JSON_VALUE_BYTES = 8 };

/* max_bytes: limit per document, of the sum of the lengths of texts and keys plus
 * KG_JSON_VALUE_BYTES for each value. */
kg_status kg_json_builder_create(struct kg_json_builder **b, size_t max_bytes,
                                 struct kg_err *err) KG_MUST_CHECK;
void kg_json_builder_free(struct kg_json_builder *b); /* NULL is allowed */

/* doc: {0}, or an old document whose memory is reused. Borrowed until kg_json_end. */
kg_status kg_json_begin(struct kg_json_builder *b, struct kg_json_doc *doc,
                        const char *where, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_json_end(struct kg_json_builder *b, struct kg_err *err) KG_MUST_CHECK;

/* Texts and keys must be UTF-8 and are copied.   errors: ENOMEM, EFORMAT (too many bytes;
 * a NUL in a key) */
kg_status kg_json_add_key(struct kg_json_builder *b, const char *key, size_t n,
                          struct kg_err *err) KG_MUST_CHECK;
kg_status kg_json_add_null(struct kg_json_builder *b, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_json_add_bool(struct kg_json_builder *b, bool truth,
                           struct kg_err *err) KG_MUST_CHECK;
kg_status kg_json_add_int(struct kg_json_builder *b, int64_t x,
                          struct kg_err *err) KG_MUST_CHECK;
kg_status kg_json_add_real(struct kg_json_builder *b, double x, /* finite */
                           struct kg_err *err) KG_MUST_CHECK;
kg_status kg_json_add_text(struct kg_json_builder *b, const char *text, size_t n,
                           struct kg_err *err) KG_MUST_CHECK;
/* Parses text, which must be UTF-8, into the next value.   errors: ENOMEM, EFORMAT with
 * the column, and in a text of several lines the line */
kg_status kg_json_add_parsed(struct kg_json_builder *b, const char *text, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;
/* Opens an array or an object.   errors: ENOMEM, EFORMAT (too large, nested too deep) */
kg_status kg_json_open(struct kg_json_builder *b, enum kg_json_type type,
                       struct kg_err *err) KG_MUST_CHECK;
/* errors: ENOMEM, EFORMAT (duplicate key in an object) */
kg_status kg_json_close(struct kg_json_builder *b, struct kg_err *err) KG_MUST_CHECK;

/* kg_json_parse with a given builder: begin, add_parsed, end. Failure releases doc. */
kg_status kg_json_parse_next(struct kg_json_doc *doc, struct kg_json_builder *b,
                             const char *text, size_t n, const char *where,
                             struct kg_err *err) KG_MUST_CHECK;

/* ---- writing ---- */
/* Appends a quoted, escaped string. UTF-8 passes through; each malformed part
 * (kg_utf8_bad_length) becomes one U+FFFD. */
kg_status kg_json_put_string(struct kg_str *out, const char *text, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;
/* Appends `before` unchanged, then text as a quoted string: a key and its value. */
kg_status kg_json_put_text(struct kg_str *out, const char *before, const char *text,
                           struct kg_err *err) KG_MUST_CHECK;
/* Append the shortest decimal that reads back as the same float32 or float64, always with
 * "." or an exponent: 1 is "1.0". NaN and infinities become "nan", "inf" and "-inf". */
kg_status kg_json_put_float(struct kg_str *out, float x,
                            struct kg_err *err) KG_MUST_CHECK;
kg_status kg_json_put_double(struct kg_str *out, double x,
                             struct kg_err *err) KG_MUST_CHECK;
/* kg_json_put_double, but null if not finite, so that a table's column has one type. */
kg_status kg_json_put_cell(struct kg_str *out, double x,
                           struct kg_err *err) KG_MUST_CHECK;
kg_status kg_json_put_ints(struct kg_str *out, const int32_t *ids, size_t n,
                           struct kg_err *err) KG_MUST_CHECK;
/* Appends a value as compact JSON. */
kg_status kg_json_put_value(struct kg_str *out, const struct kg_json *v,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
