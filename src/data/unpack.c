/* Decompression by snappy, zlib, zstd, lz4 and brotli.
 *
 * Only this file and gz.c use these libraries. The stream is a FILE of our own
 * (fopencookie), so that a reader of lines needs no code for compression. A FILE cannot
 * carry the reason of a failed read, so it is stored separately.
 */
#define _GNU_SOURCE /* fopencookie */
#include "data/unpack.h"

#include "base/file.h"
#include "base/mem.h"

#include <brotli/decode.h>
#include <errno.h>
#include <limits.h>
#include <lz4.h>
#include <snappy-c.h>
#include <stdbool.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

enum { BUFFER_BYTES = 64 << 10, GZIP_OR_ZLIB = 15 + 32, MAX_ZSTD_WINDOW = 1 << 27 };

/* ---- blocks ---- */

static kg_status wrong_size(size_t expected, size_t found, struct kg_err *err)
{
    return kg_fail(err, KG_EFORMAT, "expected %zu bytes when unpacked, found %zu",
                   expected, found);
}

static kg_status unpack_snappy(void *out, size_t bytes, const void *packed, size_t n,
                               struct kg_err *err)
{
    size_t size = 0;

    if (snappy_uncompressed_length(packed, n, &size) != SNAPPY_OK)
        return kg_fail(err, KG_EFORMAT, "expected snappy data, found no length");
    if (size != bytes)
        return wrong_size(bytes, size, err);
    if (snappy_uncompress(packed, n, out, &size) != SNAPPY_OK)
        return kg_fail(err, KG_EFORMAT, "expected snappy data, found it damaged");
    return KG_OK;
}

/* zlib's input pointer is not const; it does not write there */
static unsigned char *input(const void *bytes)
{
    return (unsigned char *)(uintptr_t)bytes;
}

/* Inflates all gzip members of the block. */
static kg_status inflate_all(z_stream *z, size_t bytes, struct kg_err *err)
{
    int code;

    do {
        code = inflate(z, Z_FINISH);
        if (code != Z_STREAM_END)
            return kg_fail(err, KG_EFORMAT,
                           "expected gzip data of %zu bytes when unpacked, found it "
                           "damaged or longer after %zu bytes",
                           bytes, bytes - z->avail_out);
    } while (z->avail_in > 0 && inflateReset(z) == Z_OK);
    if (z->avail_out > 0)
        return wrong_size(bytes, bytes - z->avail_out, err);
    return KG_OK;
}

static kg_status unpack_gzip(void *out, size_t bytes, const void *packed, size_t n,
                             struct kg_err *err)
{
    z_stream z = {.next_in = input(packed),
                  .avail_in = (uInt)n,
                  .next_out = out,
                  .avail_out = (uInt)bytes};

    if (inflateInit2(&z, GZIP_OR_ZLIB) != Z_OK)
        return kg_fail(err, KG_ENOMEM, "no memory for decompression");
    kg_status status = inflate_all(&z, bytes, err);
    inflateEnd(&z);
    return status;
}

static kg_status unpack_zstd(void *out, size_t bytes, const void *packed, size_t n,
                             struct kg_err *err)
{
    size_t size = ZSTD_decompress(out, bytes, packed, n);

    if (ZSTD_isError(size))
        return kg_fail(err, KG_EFORMAT,
                       "expected zstd data of %zu bytes when unpacked, found: %s", bytes,
                       ZSTD_getErrorName(size));
    return size == bytes ? KG_OK : wrong_size(bytes, size, err);
}

static kg_status unpack_brotli(void *out, size_t bytes, const void *packed, size_t n,
                               struct kg_err *err)
{
    size_t size = bytes;

    if (BrotliDecoderDecompress(n, packed, &size, out) != BROTLI_DECODER_RESULT_SUCCESS)
        return kg_fail(
            err, KG_EFORMAT,
            "expected brotli data of %zu bytes when unpacked, found it damaged or longer",
            bytes);
    return size == bytes ? KG_OK : wrong_size(bytes, size, err);
}

/* Decompresses n bytes.   returns the size, or -1 if damaged or beyond `room` */
static int lz4_block(char *out, size_t room, const char *packed, size_t n)
{
    return n <= INT_MAX && room <= INT_MAX
               ? LZ4_decompress_safe(packed, out, (int)n, (int)room)
               : -1;
}

static kg_status unpack_lz4(void *out, size_t bytes, const void *packed, size_t n,
                            struct kg_err *err)
{
    const int size = lz4_block(out, bytes, packed, n);

    if (size < 0)
        return kg_fail(
            err, KG_EFORMAT,
            "expected lz4 data of %zu bytes when unpacked, found it damaged or longer",
            bytes);
    return (size_t)size == bytes ? KG_OK : wrong_size(bytes, (size_t)size, err);
}

/* A big-endian length at *p, which moves past it.   returns false at the end */
static bool take_length(size_t *length, const unsigned char **p, const unsigned char *end)
{
    const unsigned char *b = *p;

    if (end - b < 4)
        return false;
    *length = (size_t)b[0] << 24 | (size_t)b[1] << 16 | (size_t)b[2] << 8 | b[3];
    *p = b + 4;
    return true;
}

/* Hadoop's frames: the unpacked length of some blocks, then these blocks, each after its
 * packed length.   returns false if the data has another form */
static bool unpack_frames(char *out, size_t bytes, const unsigned char *p, size_t n)
{
    const unsigned char *end = p + n;
    size_t done = 0, whole, length;

    while (p < end) {
        if (!take_length(&whole, &p, end) || whole > bytes - done)
            return false;
        for (whole += done; done < whole; p += length) {
            if (!take_length(&length, &p, end) || length > (size_t)(end - p))
                return false;
            int size = lz4_block(out + done, whole - done, (const char *)p, length);
            if (size <= 0)
                return false;
            done += (size_t)size;
        }
    }
    return done == bytes;
}

kg_status kg_unpack_block(void *out, size_t bytes, enum kg_codec codec,
                          const void *packed, size_t n, struct kg_err *err)
{
    if (n > UINT32_MAX || bytes > UINT32_MAX)
        return kg_fail(err, KG_EINVAL, "expected a block below 4 GiB, found %zu bytes",
                       n > bytes ? n : bytes);
    switch (codec) {
    case KG_CODEC_SNAPPY:
        return unpack_snappy(out, bytes, packed, n, err);
    case KG_CODEC_GZIP:
        return unpack_gzip(out, bytes, packed, n, err);
    case KG_CODEC_ZSTD:
        return unpack_zstd(out, bytes, packed, n, err);
    case KG_CODEC_BROTLI:
        return unpack_brotli(out, bytes, packed, n, err);
    case KG_CODEC_LZ4_HADOOP:
        return unpack_frames(out, bytes, packed, n)
                   ? KG_OK
                   : unpack_lz4(out, bytes, packed, n, err);
    case KG_CODEC_LZ4:
        return unpack_lz4(out, bytes, packed, n, err);
    case KG_CODEC_NONE:
        break;
    }
    if (n != bytes)
        return wrong_size(bytes, n, err);
    memcpy(out, packed, n);
    return KG_OK;
}

uint32_t kg_unpack_crc32(const void *bytes, size_t n)
{
    return (uint32_t)crc32_z(0, bytes, n);
}

/* ---- a file as a stream ---- */

struct kg_unpack {
    FILE *file;   /* owned: the bytes of the file */
    FILE *stream; /* owned: the text, from cookie_read */
    char *path;   /* owned */
    enum kg_codec codec;
    z_stream z;
    bool z_ready;
    ZSTD_DCtx *zstd;     /* owned or NULL */
    bool in_frame;       /* a member or frame has begun and not ended */
    unsigned char *in;   /* owned (BUFFER_BYTES) */
    size_t in_at, in_n;  /* in[in_at..in_n) is not yet unpacked */
    unsigned char *text; /* owned (BUFFER_BYTES): first text, to sniff at */
    size_t text_at, text_n;
    struct kg_err err; /* of the last read that failed */
};

/* Reads more packed bytes, if all are used. */
static kg_status refill(struct kg_unpack *u, struct kg_err *err)
{
    if (u->in_at < u->in_n)
        return KG_OK;
    u->in_at = 0;
    u->in_n = fread(u->in, 1, BUFFER_BYTES, u->file);
    if (u->in_n == 0 && ferror(u->file))
        return kg_fail(err, KG_EIO, "%s: cannot read: %s", u->path, strerror(errno));
    return KG_OK;
}

static kg_status damaged(const struct kg_unpack *u, const char *why, struct kg_err *err)
{
    return kg_fail(err, KG_EFORMAT, "%s: expected %s data, found it damaged: %s", u->path,
                   u->codec == KG_CODEC_GZIP ? "gzip" : "zstd", why);
}

/* Unpacks from u->in to out.   *made: bytes written to out */
static kg_status step_gzip(struct kg_unpack *u, size_t *made, void *out, size_t n,
                           struct kg_err *err)
{
    if (!u->in_frame && inflateReset(&u->z) != Z_OK)
        return damaged(u, "zlib cannot begin a member", err);
    u->in_frame = true;
    u->z.next_in = u->in + u->in_at;
    u->z.avail_in = (uInt)(u->in_n - u->in_at);
    u->z.next_out = out;
    u->z.avail_out = (uInt)n;
    int code = inflate(&u->z, Z_NO_FLUSH);
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
        return damaged(u, u->z.msg ? u->z.msg : "it does not unpack", err);
    u->in_frame = code != Z_STREAM_END;
    u->in_at = u->in_n - u->z.avail_in;
    *made = n - u->z.avail_out;
    return KG_OK;
}

/* The window that a frame needs, from its header (RFC 8878, 3.1.1.1).   returns 0 if the
 * header is not complete */
static uint64_t zstd_window(const unsigned char *frame, size_t n)
{
    static const size_t sizes[] = {1, 2, 4, 8}, ids[] = {0, 1, 2, 4};
    uint64_t window = 0;
    size_t at, size;

    if (n < 6 || memcmp(frame, "\x28\xb5\x2f\xfd", 4) != 0)
        return 0; /* the header began in bytes that were read earlier */
    if (!(frame[4] & 0x20)) {
        window = (uint64_t)1 << (10 + (frame[5] >> 3));
        return window + window / 8 * (frame[5] & 7);
    }
    at = 5 + ids[frame[4] & 3]; /* one segment: the window is the whole text */
    size = sizes[frame[4] >> 6];
    for (size_t i = size; i > 0 && n >= at + size; i--)
        window = window << 8 | frame[at + i - 1];
    return window;
}

/* A frame of `zstd --long=28` or more is not damaged: it needs more memory than kedge
 * allows a file.   frame: its first n bytes */
static kg_status zstd_failed(const struct kg_unpack *u, size_t code,
                             const unsigned char *frame, size_t n, struct kg_err *err)
{
    const uint64_t window = zstd_window(frame, n);
    char found[32] = "a larger one";

    if (ZSTD_getErrorCode(code) != ZSTD_error_frameParameter_windowTooLarge)
        return damaged(u, ZSTD_getErrorName(code), err);
    if (window > 0)
        snprintf(found, sizeof found, "%llu", (unsigned long long)window);
    return kg_fail(err, KG_EUNSUPPORTED,
                   "%s: expected zstd data with a window of at most %d bytes (zstd "
                   "--long=27), found %s: compress it again with a smaller window",
                   u->path, MAX_ZSTD_WINDOW, found);
}

static kg_status step_zstd(struct kg_unpack *u, size_t *made, void *out, size_t n,
                           struct kg_err *err)
{
    ZSTD_inBuffer in = {u->in, u->in_n, u->in_at};
    ZSTD_outBuffer to = {out, n, 0};
    size_t left = ZSTD_decompressStream(u->zstd, &to, &in);

    if (ZSTD_isError(left))
        return zstd_failed(u, left, u->in + u->in_at, u->in_n - u->in_at, err);
    u->in_frame = left != 0;
    u->in_at = in.pos;
    *made = to.pos;
    return KG_OK;
}

static kg_status step_plain(struct kg_unpack *u, size_t *made, void *out, size_t n)
{
    *made = u->in_n - u->in_at < n ? u->in_n - u->in_at : n;
    memcpy(out, u->in + u->in_at, *made);
    u->in_at += *made;
    return KG_OK;
}

static kg_status step(struct kg_unpack *u, size_t *made, void *out, size_t n,
                      struct kg_err *err)
{
    switch (u->codec) {
    case KG_CODEC_GZIP:
        return step_gzip(u, made, out, n, err);
    case KG_CODEC_ZSTD:
        return step_zstd(u, made, out, n, err);
    default:
        return step_plain(u, made, out, n);
    }
}

/* Unpacks up to n bytes of text.   *made: 0 only at the end */
static kg_status unpack_some(struct kg_unpack *u, size_t *made, void *out, size_t n,
                             struct kg_err *err)
{
    *made = 0;
    while (*made == 0) {
        KG_TRY(refill(u, err));
        size_t before = u->in_n - u->in_at;
        if (before == 0 && !u->in_frame)
            return KG_OK;
        KG_TRY(step(u, made, out, n, err));
        if (before == 0 && *made == 0)
            return damaged(u, "it ends inside a block", err);
    }
    return KG_OK;
}

static ssize_t cookie_read(void *cookie, char *out, size_t n)
{
    struct kg_unpack *u = cookie;
    size_t made = u->text_n - u->text_at < n ? u->text_n - u->text_at : n;

    if (made > 0) {
        memcpy(out, u->text + u->text_at, made);
        u->text_at += made;
        return (ssize_t)made;
    }
    if (unpack_some(u, &made, out, n, &u->err) == KG_OK)
        return (ssize_t)made;
    errno = EIO;
    return -1;
}

static enum kg_codec codec_of(const unsigned char *p, size_t n)
{
    if (n >= 2 && p[0] == 0x1f && p[1] == 0x8b)
        return KG_CODEC_GZIP;
    if (n >= 4 && memcmp(p, "\x28\xb5\x2f\xfd", 4) == 0)
        return KG_CODEC_ZSTD;
    return KG_CODEC_NONE;
}

static kg_status start_codec(struct kg_unpack *u, struct kg_err *err)
{
    KG_TRY(refill(u, err));
    u->codec = codec_of(u->in, u->in_n);
    if (u->codec == KG_CODEC_GZIP)
        u->z_ready = inflateInit2(&u->z, GZIP_OR_ZLIB) == Z_OK;
    if (u->codec == KG_CODEC_ZSTD)
        u->zstd = ZSTD_createDCtx();
    if ((u->codec == KG_CODEC_GZIP && !u->z_ready) ||
        (u->codec == KG_CODEC_ZSTD && !u->zstd))
        return kg_fail(err, KG_ENOMEM, "%s: no memory for decompression", u->path);
    return unpack_some(u, &u->text_n, u->text, BUFFER_BYTES, err);
}

static kg_status start(struct kg_unpack *u, const char *path, struct kg_err *err)
{
    u->path = kg_mem_strdup(path, err);
    u->in = u->path ? kg_mem_calloc(BUFFER_BYTES, 1, path, err) : NULL;
    u->text = u->in ? kg_mem_calloc(BUFFER_BYTES, 1, path, err) : NULL;
    if (!u->text)
        return KG_ENOMEM;
    if (kg_file_is_dir(path))
        return kg_fail(err, KG_EIO, "%s: expected a file of records, found a folder",
                       path);
    u->file = fopen(path, "re");
    if (!u->file)
        return kg_fail(err, errno == ENOENT || errno == ENOTDIR ? KG_ENOTFOUND : KG_EIO,
                       "%s: cannot open: %s", path, strerror(errno));
    KG_TRY(start_codec(u, err));
    u->stream = fopencookie(u, "r", (cookie_io_functions_t){.read = cookie_read});
    if (!u->stream)
        return kg_fail(err, KG_ENOMEM, "%s: no memory for a stream", path);
    return KG_OK;
}

kg_status kg_unpack_open(struct kg_unpack **u, const char *path, struct kg_err *err)
{
    struct kg_unpack *fresh = kg_mem_calloc(1, sizeof *fresh, path, err);

    *u = NULL;
    if (!fresh)
        return KG_ENOMEM;
    kg_status status = start(fresh, path, err);
    if (status != KG_OK) {
        kg_unpack_close(fresh);
        return status;
    }
    *u = fresh;
    return KG_OK;
}

void kg_unpack_close(struct kg_unpack *u)
{
    if (!u)
        return;
    if (u->stream)
        fclose(u->stream);
    if (u->file)
        fclose(u->file);
    if (u->z_ready)
        inflateEnd(&u->z);
    ZSTD_freeDCtx(u->zstd);
    kg_mem_free(u->in);
    kg_mem_free(u->text);
    kg_mem_free(u->path);
    kg_mem_free(u);
}

/* Skips spaces from i on.   returns the index after `text` if it follows, otherwise 0 */
static size_t behind(const struct kg_unpack *u, size_t i, const char *text)
{
    const size_t n = strlen(text);

    while (i < u->text_n && kg_char_in(" \t\r\n", u->text[i]))
        i++;
    return i + n <= u->text_n && memcmp(u->text + i, text, n) == 0 ? i + n : 0;
}

/* Whether an object begins with a list of objects whose key is the name of a split. */
static bool is_wrapped(const struct kg_unpack *u)
{
    static const char *const names[] = {"\"data\"", "\"train\"", "\"validation\"",
                                        "\"test\""};
    const size_t from = behind(u, 0, "{");

    for (size_t k = 0; from && k < sizeof names / sizeof *names; k++) {
        size_t i = behind(u, from, names[k]);

        i = i ? behind(u, i, ":") : 0;
        i = i ? behind(u, i, "[") : 0;
        if (i)
            return behind(u, i, "{") || behind(u, i, "]");
    }
    return false;
}

enum kg_unpack_text kg_unpack_sniff(const struct kg_unpack *u)
{
    if (u->text_n >= 4 &&
        (memcmp(u->text, "PAR1", 4) == 0 || memcmp(u->text, "PARE", 4) == 0))
        return KG_TEXT_PARQUET;
    if (is_wrapped(u))
        return KG_TEXT_WRAPPED;
    size_t i = behind(u, 0, "{");
    i += i && i < u->text_n && u->text[i] == '\r';
    if (i && i < u->text_n && u->text[i] == '\n')
        return KG_TEXT_SPREAD;
    return behind(u, 0, "[") ? KG_TEXT_ARRAY : KG_TEXT_LINES;
}

enum kg_codec kg_unpack_codec(const struct kg_unpack *u) { return u->codec; }

FILE *kg_unpack_stream(struct kg_unpack *u) { return u->stream; }

kg_status kg_unpack_explain(const struct kg_unpack *u, kg_status status,
                            struct kg_err *err)
{
    if (status != KG_EIO || !u || u->err.code == KG_OK)
        return status;
    *err = u->err;
    return u->err.code;
}
