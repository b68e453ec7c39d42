/* Lines of JSON, read one at a time, and zstd files of them, written frame by frame. The
 * reader holds one line (of limited length) and one document. Each frame is complete, and
 * the caller knows the file's length after it. A file can therefore be truncated to a
 * checkpoint and continued, and remains a valid .zst file. */
#include "data/jsonl.h"

#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <zstd.h>

enum { CHUNK_BYTES = 4096, COMPRESSION_LEVEL = 3, OUT_BYTES = 64 << 10 };

struct kg_jsonl {
    FILE *stream;
    bool owns_stream;
    char *name;                      /* owned */
    struct kg_json_builder *builder; /* owned */
    struct kg_str line;              /* the current one, without its line break */
    int64_t number;                  /* of the current line, from 1 */
};

/* ---- reading lines ---- */

kg_status kg_jsonl_open_stream(struct kg_jsonl **r, FILE *stream, const char *name,
                               struct kg_err *err)
{
    *r = NULL;
    struct kg_jsonl *fresh = kg_mem_calloc(1, sizeof *fresh, name, err);
    if (!fresh)
        return KG_ENOMEM;
    fresh->stream = stream;
    fresh->line.max = KG_JSONL_MAX_LINE_BYTES;
    fresh->name = kg_mem_strdup(name, err);
    if (!fresh->name ||
        kg_json_builder_create(&fresh->builder, KG_JSONL_MAX_LINE_BYTES, err) != KG_OK) {
        kg_jsonl_close(fresh);
        return KG_ENOMEM;
    }
    *r = fresh;
    return KG_OK;
}

kg_status kg_jsonl_open(struct kg_jsonl **r, const char *path, struct kg_err *err)
{
    *r = NULL;
    if (kg_file_is_dir(path))
        return kg_fail(err, KG_EIO, "%s: expected a file of JSON lines, found a folder",
                       path);
    FILE *stream = fopen(path, "re");
    if (!stream)
        return kg_fail(err, errno == ENOENT || errno == ENOTDIR ? KG_ENOTFOUND : KG_EIO,
                       "%s: cannot open: %s", path, strerror(errno));
    kg_status status = kg_jsonl_open_stream(r, stream, path, err);
    if (status != KG_OK) {
        fclose(stream);
        return status;
    }
    (*r)->owns_stream = true;
    return KG_OK;
}

void kg_jsonl_close(struct kg_jsonl *r)
{
    if (!r)
        return;
    if (r->owns_stream)
        fclose(r->stream);
    kg_json_builder_free(r->builder);
    kg_str_release(&r->line);
    kg_mem_free(r->name);
    kg_mem_free(r);
}

/* Reads up to a line break, the end, or a full chunk.   *last: the last byte, or EOF */
static size_t read_chunk(char chunk[CHUNK_BYTES], FILE *stream, int *last)
{
    size_t n = 0;

    do {
        *last = getc_unlocked(stream);
        if (*last == EOF || *last == '\n')
            break;
        chunk[n++] = (char)*last;
    } while (n < CHUNK_BYTES);
    return n;
}

/* Reads the next line into r->line.   *more: false at the end of the stream */
static kg_status read_line(struct kg_jsonl *r, bool *more, struct kg_err *err)
{
    char chunk[CHUNK_BYTES];
    int last = 0;

    kg_str_clear(&r->line);
    r->number++;
    do {
        size_t n = read_chunk(chunk, r->stream, &last);
        if (n > KG_JSONL_MAX_LINE_BYTES - r->line.len)
            return kg_fail(err, KG_EFORMAT,
                           "%s line %lld: expected at most %d bytes, found a longer line",
                           r->name, (long long)r->number, KG_JSONL_MAX_LINE_BYTES);
        KG_TRY(kg_str_append(&r->line, chunk, n, err));
    } while (last != EOF && last != '\n');
    if (last == EOF && ferror(r->stream))
        return kg_fail(err, KG_EIO, "%s line %lld: cannot read: %s", r->name,
                       (long long)r->number, strerror(errno));
    *more = last == '\n' || r->line.len > 0;
    return KG_OK;
}

static bool is_blank(const struct kg_str *line)
{
    for (size_t i = 0; i < line->len; i++)
        if (!kg_char_in(" \t\r", line->data[i]))
            return false;
    return true;
}

/* Reads the next line that is not blank. */
static kg_status find_line(struct kg_jsonl *r, bool *more, struct kg_err *err)
{
    do
        KG_TRY(read_line(r, more, err));
    while (*more && is_blank(&r->line));
    return KG_OK;
}

static kg_status parse_line(struct kg_jsonl *r, struct kg_json_doc *doc,
                            struct kg_err *err)
{
    char where[KG_ERR_MESSAGE_BYTES / 2];

    snprintf(where, sizeof where, "%.300s line %lld", r->name, (long long)r->number);
    KG_TRY(kg_json_parse_next(doc, r->builder, r->line.data, r->line.len, where, err));
    if (kg_json_type(doc->root) == KG_JSON_OBJECT)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT, "%s: expected a JSON object, found %s", where,
                   kg_json_type_name(doc->root));
}

kg_status kg_jsonl_next(struct kg_jsonl *r, struct kg_json_doc *doc, bool *more,
                        struct kg_err *err)
{
    kg_status status = find_line(r, more, err);

    if (status == KG_OK && *more)
        status = parse_line(r, doc, err);
    if (status != KG_OK || !*more)
        kg_json_release(doc);
    return status;
}

int64_t kg_jsonl_line(const struct kg_jsonl *r) { return r->number; }

/* ---- writing zstd ---- */

struct kg_zst_writer {
    struct kg_file_writer file;
    ZSTD_CCtx *zstd;    /* owned */
    unsigned char *out; /* owned (OUT_BYTES) */
    bool in_frame;      /* bytes were put since the last frame ended */
    bool failed;        /* a write failed: the file may end inside a frame */
};

static void zst_free(struct kg_zst_writer *w)
{
    kg_file_writer_abort(&w->file);
    ZSTD_freeCCtx(w->zstd);
    kg_mem_free(w->out);
    kg_mem_free(w);
}

static kg_status zst_make(struct kg_zst_writer *w, const char *path, struct kg_err *err)
{
    KG_TRY(kg_mem_new(&w->out, OUT_BYTES, 1, path, err));
    w->zstd = ZSTD_createCCtx();
    if (!w->zstd)
        return kg_fail(err, KG_ENOMEM, "%s: no memory for compression", path);
    ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_compressionLevel, COMPRESSION_LEVEL);
    ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_checksumFlag, 1);
    return KG_OK;
}

kg_status kg_zst_open(struct kg_zst_writer **w, const char *path, uint64_t keep_bytes,
                      struct kg_err *err)
{
    kg_status status;

    *w = NULL;
    struct kg_zst_writer *fresh = kg_mem_calloc(1, sizeof *fresh, path, err);
    if (!fresh)
        return KG_ENOMEM;
    KG_TRY_GOTO(fail, zst_make(fresh, path, err));
    if (keep_bytes > 0)
        KG_TRY_GOTO(fail, kg_file_writer_append(&fresh->file, path, keep_bytes, err));
    else
        KG_TRY_GOTO(fail, kg_file_writer_open(&fresh->file, path, err));
    *w = fresh;
    return KG_OK;
fail:
    zst_free(fresh);
    return status;
}

/* Compresses n bytes; with ZSTD_e_end also ends the frame. */
static kg_status compress(struct kg_zst_writer *w, const void *bytes, size_t n,
                          ZSTD_EndDirective how, struct kg_err *err)
{
    ZSTD_inBuffer in = {bytes, n, 0};
    size_t left;

    do {
        ZSTD_outBuffer out = {w->out, OUT_BYTES, 0};
        left = ZSTD_compressStream2(w->zstd, &out, &in, how);
        if (ZSTD_isError(left))
            return kg_fail(err, KG_ENOMEM, "%s: cannot compress: %s", w->file.path,
                           ZSTD_getErrorName(left));
        KG_TRY(kg_file_writer_put(&w->file, w->out, out.pos, err));
    } while (in.pos < in.size || (how == ZSTD_e_end && left > 0));
    return KG_OK;
}

kg_status kg_zst_put(struct kg_zst_writer *w, const void *bytes, size_t n,
                     struct kg_err *err)
{
    w->in_frame = true;
    kg_status status = compress(w, bytes, n, ZSTD_e_continue, err);
    w->failed = w->failed || status != KG_OK;
    return status;
}

kg_status kg_zst_end_frame(struct kg_zst_writer *w, uint64_t *file_bytes,
                           struct kg_err *err)
{
    kg_status status = KG_OK;

    if (w->in_frame)
        status = compress(w, NULL, 0, ZSTD_e_end, err);
    if (status == KG_OK)
        status = kg_file_writer_flush(&w->file, err);
    w->in_frame = false;
    w->failed = w->failed || status != KG_OK;
    *file_bytes = w->file.written;
    return status;
}

void kg_zst_abort(struct kg_zst_writer *w)
{
    if (w)
        zst_free(w);
}

kg_status kg_zst_close(struct kg_zst_writer *w, struct kg_err *err)
{
    uint64_t file_bytes;
    kg_status status = KG_OK;

    if (!w)
        return KG_OK;
    if (!w->failed) {
        status = kg_zst_end_frame(w, &file_bytes, err);
        if (status == KG_OK)
            status = kg_file_writer_close(&w->file, err);
    }
    zst_free(w);
    return status;
}

/* ---- reading zstd ---- */

static kg_status append_within(struct kg_str *out, const void *bytes, size_t n,
                               size_t start, uint64_t max_bytes, const char *path,
                               struct kg_err *err)
{
    if (out->len - start + n > max_bytes)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected at most %llu bytes when decompressed, found more",
                       path, (unsigned long long)max_bytes);
    return kg_str_append(out, bytes, n, err);
}

/* Decompresses all frames. */
static kg_status decompress(struct kg_str *out, ZSTD_inBuffer in, ZSTD_DCtx *zstd,
                            unsigned char *buffer, uint64_t max_bytes, const char *path,
                            struct kg_err *err)
{
    size_t start = out->len;
    size_t left = 0; /* 0: exactly at the end of a frame */
    size_t made = 0;

    while (in.pos < in.size || made == OUT_BYTES) {
        ZSTD_outBuffer to = {buffer, OUT_BYTES, 0};
        left = ZSTD_decompressStream(zstd, &to, &in);
        if (ZSTD_isError(left))
            return kg_fail(err, KG_EFORMAT,
                           "%s: expected zstd frames, found at byte %zu: %s", path,
                           in.pos, ZSTD_getErrorName(left));
        KG_TRY(append_within(out, buffer, to.pos, start, max_bytes, path, err));
        made = left > 0 ? to.pos : 0;
    }
    if (left > 0)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected a whole last frame, found it truncated at byte %zu",
                       path, in.pos);
    return KG_OK;
}

kg_status kg_zst_unpack(struct kg_str *out, const void *bytes, size_t n,
                        uint64_t max_bytes, const char *where, struct kg_err *err)
{
    unsigned char *buffer = kg_mem_calloc(OUT_BYTES, 1, where, err);
    ZSTD_DCtx *zstd = buffer ? ZSTD_createDCtx() : NULL;
    kg_status status;

    if (zstd)
        status = decompress(out, (ZSTD_inBuffer){bytes, n, 0}, zstd, buffer, max_bytes,
                            where, err);
    else
        status = kg_fail(err, KG_ENOMEM, "%s: no memory for decompression", where);
    ZSTD_freeDCtx(zstd);
    kg_mem_free(buffer);
    return status;
}

kg_status kg_zst_read(struct kg_str *out, const char *path, uint64_t max_bytes,
                      struct kg_err *err)
{
    struct kg_map map;

    KG_TRY(kg_map_open(&map, path, err));
    kg_status status = kg_zst_unpack(out, map.data, map.bytes, max_bytes, path, err);
    kg_map_close(&map);
    return status;
}
