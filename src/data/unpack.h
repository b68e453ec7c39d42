/* Decompression: one block of known size, and a file as a stream of its text.
 *
 * The libraries stand behind unpack.c alone. What comes out is bounded by the caller:
 * a block has exactly the size that is asked for, a stream holds one buffer.
 */
#ifndef KG_DATA_UNPACK_H
#define KG_DATA_UNPACK_H

#include "base/status.h"

#include <stdint.h>
#include <stdio.h>

enum kg_codec {
    KG_CODEC_NONE,
    KG_CODEC_SNAPPY,
    KG_CODEC_GZIP,
    KG_CODEC_ZSTD,
    KG_CODEC_BROTLI,
    KG_CODEC_LZ4,        /* one block */
    KG_CODEC_LZ4_HADOOP, /* blocks behind their lengths; or one block, as by arrow */
};

/* Exactly `bytes` bytes from n packed ones.
 * errors: EFORMAT (damaged, or of another size), ENOMEM */
kg_status kg_unpack_block(void *out, size_t bytes, enum kg_codec codec,
                          const void *packed, size_t n, struct kg_err *err) KG_MUST_CHECK;
/* The CRC-32 of zlib. */
uint32_t kg_unpack_crc32(const void *bytes, size_t n);

/* A file as the text in it: .gz and .zst are known by their first bytes, whatever the
 * name; all members or frames are read. */
struct kg_unpack; /* opaque */
/* What the text begins with. */
enum kg_unpack_text {
    KG_TEXT_LINES,
    KG_TEXT_ARRAY,
    KG_TEXT_WRAPPED, /* {"data": [{ or "train", "validation", "test" */
    KG_TEXT_SPREAD,  /* another object, over several lines */
    KG_TEXT_PARQUET
};

/* errors: NOTFOUND, EIO (a folder), EFORMAT */
kg_status kg_unpack_open(struct kg_unpack **u, const char *path,
                         struct kg_err *err) KG_MUST_CHECK;
void kg_unpack_close(struct kg_unpack *u);
/* By the first bytes of the text; nothing is consumed. */
enum kg_unpack_text kg_unpack_sniff(const struct kg_unpack *u);
enum kg_codec kg_unpack_codec(const struct kg_unpack *u);
FILE *kg_unpack_stream(struct kg_unpack *u); /* borrowed */
/* A failed read of the stream, by its own reason where there is one; else `status` with
 * err as it is. */
kg_status kg_unpack_explain(const struct kg_unpack *u, kg_status status,
                            struct kg_err *err);

#endif
