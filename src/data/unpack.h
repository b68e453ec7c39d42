/* Decompresses one block of known size, or a file as a stream of text.
 *
 * Memory is bounded: a block must have exactly the size that the caller expects, and a
 * stream holds one buffer and at most 128 MiB of a zstd window.
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
    KG_CODEC_LZ4_HADOOP, /* blocks with length prefixes, or one block (arrow's) */
};

/* Decompresses n bytes to exactly `bytes` bytes.
 * errors: EFORMAT (damaged, or another size), ENOMEM */
kg_status kg_unpack_block(void *out, size_t bytes, enum kg_codec codec,
                          const void *packed, size_t n, struct kg_err *err) KG_MUST_CHECK;
/* CRC-32 as in zlib. */
uint32_t kg_unpack_crc32(const void *bytes, size_t n);

/* A file as text, decompressed if its first bytes identify it as gzip or zstd, regardless
 * of its name. All members or frames are read. */
struct kg_unpack; /* opaque */
/* Kind of text, from its first bytes. */
enum kg_unpack_text {
    KG_TEXT_LINES,
    KG_TEXT_ARRAY,
    KG_TEXT_WRAPPED, /* {"data": [{ or the same with "train", "validation", "test" */
    KG_TEXT_SPREAD,  /* another object over several lines: { and a line break */
    KG_TEXT_PARQUET
};

/* errors: ENOTFOUND, EIO (also: a folder), EFORMAT, EUNSUPPORTED (zstd window), ENOMEM */
kg_status kg_unpack_open(struct kg_unpack **u, const char *path,
                         struct kg_err *err) KG_MUST_CHECK;
void kg_unpack_close(struct kg_unpack *u);
/* Detects the kind of text; consumes nothing. */
enum kg_unpack_text kg_unpack_sniff(const struct kg_unpack *u);
enum kg_codec kg_unpack_codec(const struct kg_unpack *u);
FILE *kg_unpack_stream(struct kg_unpack *u); /* borrowed */
/* After a failed read of the stream: returns the decompressor's error if there is one,
 * else `status` with err unchanged. */
kg_status kg_unpack_explain(const struct kg_unpack *u, kg_status status,
                            struct kg_err *err);

#endif
