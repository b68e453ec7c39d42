/* Records from any format: one reader per format, chosen by the start of the file.
 *
 * A JSON array is split into its elements here, one at a time, so that memory holds one
 * element; each is then parsed like a line.
 */
#include "data/records.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/phase.h"
#include "data/jsonl.h"
#include "data/parquet.h"
#include "data/unpack.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK_BYTES = 4096 };

struct kg_records {
    char *path;               /* owned */
    enum kg_unpack_text kind; /* which of the readers below */
    struct kg_unpack *unpack; /* owned; lines and arrays */
    struct kg_jsonl *lines;   /* owned; lines */
    struct kg_parquet *file;  /* owned; Parquet */
    struct kg_parquet_rows *rows;
    struct kg_json_builder *builder; /* owned; arrays */
    struct kg_str element;           /* of an array: its text */
    int64_t number;                  /* of an array: elements so far */
    int64_t line;                    /* of an array: where the reader is, from 1 */
    bool wrapped;                    /* an array in an object */
    bool ended;                      /* of an array: its ] was read */
    char format[40];
};

/* ---- opening ---- */

static kg_status open_parquet(struct kg_records *r, struct kg_err *err)
{
    if (kg_unpack_codec(r->unpack) != KG_CODEC_NONE)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "%s: expected an uncompressed Parquet file, found it compressed "
                       "by %s: decompress it first",
                       r->path,
                       kg_unpack_codec(r->unpack) == KG_CODEC_GZIP ? "gzip" : "zstd");
    kg_unpack_close(r->unpack);
    r->unpack = NULL;
    KG_TRY(kg_parquet_open(&r->file, r->path, err));
    return kg_parquet_rows_open(&r->rows, r->file, err);
}

static void name_format(struct kg_records *r)
{
    static const char *const packed[] = {"", "", ", gzip", ", zstd"};
    const char *name = r->wrapped                 ? "JSON array in an object"
                       : r->kind == KG_TEXT_ARRAY ? "JSON array"
                                                  : "JSON lines";

    if (r->kind == KG_TEXT_PARQUET)
        snprintf(r->format, sizeof r->format, "Parquet");
    else
        snprintf(r->format, sizeof r->format, "%s%s", name,
                 packed[kg_unpack_codec(r->unpack)]);
}

static int next_solid(struct kg_records *r);

static kg_status open_any(struct kg_records *r, const char *path, struct kg_err *err)
{
    r->path = kg_mem_strdup(path, err);
    if (!r->path)
        return KG_ENOMEM;
    r->line = 1;
    r->element.max = KG_JSONL_MAX_LINE_BYTES;
    KG_TRY(kg_unpack_open(&r->unpack, path, err));
    r->kind = kg_unpack_sniff(r->unpack);
    if (r->kind == KG_TEXT_SPREAD)
        return kg_fail(err, KG_EFORMAT,
                       "%s line 1: expected one object per line, found one over several "
                       "lines. If each key holds a column, this makes records "
                       "of them: " KG_RECORDS_OF_COLUMNS,
                       path);
    r->wrapped = r->kind == KG_TEXT_WRAPPED;
    if (r->wrapped)
        r->kind = KG_TEXT_ARRAY;
    name_format(r);
    if (r->kind == KG_TEXT_PARQUET)
        return open_parquet(r, err);
    if (r->kind == KG_TEXT_LINES)
        return kg_jsonl_open_stream(&r->lines, kg_unpack_stream(r->unpack), path, err);
    while (next_solid(r) != '[') { /* kg_unpack_sniff has seen it */
    }
    return kg_json_builder_create(&r->builder, KG_JSONL_MAX_LINE_BYTES, err);
}

kg_status kg_records_open(struct kg_records **r, const char *path, struct kg_err *err)
{
    struct kg_records *fresh = kg_mem_calloc(1, sizeof *fresh, path, err);

    *r = NULL;
    if (!fresh)
        return KG_ENOMEM;
    kg_status status = open_any(fresh, path, err);
    if (status != KG_OK) {
        kg_records_close(fresh);
        return status;
    }
    *r = fresh;
    return KG_OK;
}

void kg_records_close(struct kg_records *r)
{
    if (!r)
        return;
    kg_parquet_rows_close(r->rows);
    kg_parquet_close(r->file);
    kg_jsonl_close(r->lines);
    kg_unpack_close(r->unpack);
    kg_json_builder_free(r->builder);
    kg_str_release(&r->element);
    kg_mem_free(r->path);
    kg_mem_free(r);
}

/* ---- arrays ---- */

static int next_char(struct kg_records *r)
{
    int c = getc_unlocked(kg_unpack_stream(r->unpack));

    r->line += c == '\n';
    return c;
}

/* The next character that is not a space, or EOF. */
static int next_solid(struct kg_records *r)
{
    int c = next_char(r);

    while (c == ' ' || c == '\t' || c == '\r' || c == '\n')
        c = next_char(r);
    return c;
}

static kg_status bad_array(const struct kg_records *r, const char *expected, int found,
                           struct kg_err *err)
{
    if (found == EOF && ferror(kg_unpack_stream(r->unpack)))
        return kg_fail(err, KG_EIO, "%s line %lld: cannot read: %s", r->path,
                       (long long)r->line, strerror(errno));
    if (found == EOF)
        return kg_fail(err, KG_EFORMAT, "%s line %lld: expected %s, found the end",
                       r->path, (long long)r->line, expected);
    return kg_fail(err, KG_EFORMAT, "%s line %lld: expected %s, found '%c'", r->path,
                   (long long)r->line, expected, found);
}

static kg_status extend_element(struct kg_records *r, const char *chunk, size_t n,
                                struct kg_err *err)
{
    if (n > KG_JSONL_MAX_LINE_BYTES - r->element.len)
        return kg_fail(err, KG_EFORMAT,
                       "%s line %lld: expected an element of at most %d bytes, found "
                       "a longer one",
                       r->path, (long long)r->line, KG_JSONL_MAX_LINE_BYTES);
    return kg_str_append(&r->element, chunk, n, err);
}

/* Reads into r->element, from the { that was read to its matching }. */
static kg_status cut_element(struct kg_records *r, struct kg_err *err)
{
    char chunk[CHUNK_BYTES];
    size_t n = 0;
    int depth = 1;
    bool in_text = false;
    bool escaped = false;

    kg_str_clear(&r->element);
    chunk[n++] = '{';
    while (depth > 0) {
        int c = next_char(r);

        if (c == EOF)
            return bad_array(r, "the end of an object", c, err);
        if (n == sizeof chunk) {
            KG_TRY(extend_element(r, chunk, n, err));
            n = 0;
        }
        chunk[n++] = (char)c;
        if (!in_text)
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        in_text ^= c == '"' && !escaped;
        escaped = in_text && c == '\\' && !escaped;
    }
    return extend_element(r, chunk, n, err);
}

/* Reads the end of the array; nothing may follow it. */
static kg_status end_array(struct kg_records *r, struct kg_err *err)
{
    int c = next_solid(r);

    r->ended = true;
    if (r->wrapped && c == ',') {
        kg_log_warn("%s: only the first list of the object is read", r->path);
        return KG_OK;
    }
    if (r->wrapped && c != '}')
        return bad_array(r, "',' or '}' after the list of an object", c, err);
    if (r->wrapped)
        c = next_solid(r);
    if (c != EOF || ferror(kg_unpack_stream(r->unpack)))
        return bad_array(r, "nothing after the array", c, err);
    return KG_OK;
}

static kg_status next_element(struct kg_records *r, struct kg_json_doc *doc, bool *more,
                              struct kg_err *err)
{
    char where[KG_ERR_MESSAGE_BYTES / 2];

    *more = false;
    if (r->ended)
        return KG_OK;
    int c = next_solid(r);
    if (c == ']')
        return end_array(r, err);
    if (r->number > 0 && c != ',')
        return bad_array(r, "',' or ']' after an element", c, err);
    if (r->number > 0)
        c = next_solid(r);
    if (c != '{')
        return bad_array(r, "an object as element of the array", c, err);
    snprintf(where, sizeof where, "%.300s element %lld (line %lld)", r->path,
             (long long)r->number + 1, (long long)r->line);
    KG_TRY(cut_element(r, err));
    r->number++;
    *more = true;
    return kg_json_parse_next(doc, r->builder, r->element.data, r->element.len, where,
                              err);
}

/* ---- records ---- */

kg_status kg_records_next(struct kg_records *r, struct kg_json_doc *doc, bool *more,
                          struct kg_err *err)
{
    kg_status status;

    kg_phase_tick();
    if (r->kind == KG_TEXT_PARQUET)
        return kg_parquet_rows_next(r->rows, doc, more, err);
    if (r->kind == KG_TEXT_LINES) {
        status = kg_jsonl_next(r->lines, doc, more, err);
    } else {
        status = next_element(r, doc, more, err);
        if (status != KG_OK || !*more)
            kg_json_release(doc);
    }
    return kg_unpack_explain(r->unpack, status, err);
}

int64_t kg_records_number(const struct kg_records *r)
{
    switch (r->kind) {
    case KG_TEXT_PARQUET:
        return kg_parquet_rows_number(r->rows);
    case KG_TEXT_ARRAY:
        return r->number;
    default:
        return kg_jsonl_line(r->lines);
    }
}

const char *kg_records_unit(const struct kg_records *r)
{
    return r->kind == KG_TEXT_PARQUET ? "row"
           : r->kind == KG_TEXT_ARRAY ? "element"
                                      : "line";
}

const char *kg_records_format(const struct kg_records *r) { return r->format; }
