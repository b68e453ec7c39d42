/* Lines of JSON: reading with line numbers, and zstd-compressed appending for dumps.
 *
 * A reader holds one line at a time and reads plain text only. A compressed file is a
 * sequence of complete zstd frames, so a resumed run can truncate it at any frame's end.
 */
#ifndef KG_DATA_JSONL_H
#define KG_DATA_JSONL_H

#include "base/status.h"
#include "data/json.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { KG_JSONL_MAX_LINE_BYTES = 64 << 20 };

struct kg_jsonl; /* opaque reader */

kg_status kg_jsonl_open(struct kg_jsonl **r, const char *path,
                        struct kg_err *err) KG_MUST_CHECK;
kg_status kg_jsonl_open_stream(struct kg_jsonl **r, FILE *stream, const char *name,
                               struct kg_err *err) KG_MUST_CHECK; /* stream borrowed */
void kg_jsonl_close(struct kg_jsonl *r);

/* Reads the next object, skipping blank lines. *more is false at the end. doc is released
 * and refilled.
 * errors: EFORMAT "FILE line N: ..." (not JSON, not an object, line too long), EIO */
kg_status kg_jsonl_next(struct kg_jsonl *r, struct kg_json_doc *doc, bool *more,
                        struct kg_err *err) KG_MUST_CHECK;
int64_t kg_jsonl_line(const struct kg_jsonl *r); /* line of the last object, from 1 */

/* ---- compressed writing: each _end_frame completes one zstd frame ---- */
struct kg_zst_writer; /* opaque */
/* keep_bytes: the length to which an existing file is truncated; 0: starts a new file */
kg_status kg_zst_open(struct kg_zst_writer **w, const char *path, uint64_t keep_bytes,
                      struct kg_err *err) KG_MUST_CHECK;
kg_status kg_zst_put(struct kg_zst_writer *w, const void *bytes, size_t n,
                     struct kg_err *err) KG_MUST_CHECK;
kg_status kg_zst_end_frame(struct kg_zst_writer *w, uint64_t *file_bytes,
                           struct kg_err *err) KG_MUST_CHECK;
/* Ends an open frame, syncs, frees w. After a failed put or end_frame it writes nothing
 * more and returns OK: a new file is removed, a continued file keeps its complete frames.
 * NULL is allowed. */
kg_status kg_zst_close(struct kg_zst_writer *w, struct kg_err *err) KG_MUST_CHECK;
/* Aborts: frees w; removes a new file, keeps a continued one. NULL is allowed. */
void kg_zst_abort(struct kg_zst_writer *w);
/* Append the contents of n bytes of zstd frames, or of a .zst file, to out.
 * where: for messages   errors: EFORMAT (damaged, or more than max_bytes), ENOMEM */
kg_status kg_zst_unpack(struct kg_str *out, const void *bytes, size_t n,
                        uint64_t max_bytes, const char *where,
                        struct kg_err *err) KG_MUST_CHECK;
kg_status kg_zst_read(struct kg_str *out, const char *path, uint64_t max_bytes,
                      struct kg_err *err) KG_MUST_CHECK;

#endif
