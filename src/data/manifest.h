/* The manifest of a folder: DIR/manifest.json, which lists every other file below DIR
 * with its length and the hashes of its pieces, so that a later bit flip is found.
 *
 *   {"format": 1, "piece_bytes": 67108864, "files": [
 *    {"path": "model/config.json", "bytes": 571, "pieces": ["9f0c..."]}, ...]}
 *
 * Paths are relative, sorted and without "..". A hash is kg_hash_bytes of the piece as 16
 * hexadecimal digits: it finds damage, not deliberate changes. Pieces let all threads
 * hash in parallel and locate damage. Files added to the folder later are ignored.
 */
#ifndef KG_DATA_MANIFEST_H
#define KG_DATA_MANIFEST_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#define KG_MANIFEST_NAME "manifest.json"

/* Hashes every file below dir, which must not change meanwhile, and writes the manifest.
 * errors: EIO, ENOSPACE, ENOMEM, EINVAL (folders nested more than 8 deep) */
kg_status kg_manifest_write(const char *dir, struct kg_err *err) KG_MUST_CHECK;

/* kg_manifest_write by several processes: each lists the folder and hashes some of the
 * pieces; a process that has all hashes writes the file. */
struct kg_manifest {
    const char *dir;                /* borrowed */
    struct kg_manifest_file *files; /* (n) owned, sorted */
    size_t n, room;
    uint64_t *hashes; /* (n_pieces) owned: for all files in order */
    size_t n_pieces;
};
/* errors: EIO, ENOMEM, EINVAL (as above) */
kg_status kg_manifest_list(struct kg_manifest *m, const char *dir,
                           struct kg_err *err) KG_MUST_CHECK;
/* Hashes pieces [first, end) of n_pieces.   errors: EIO (the length of a file changed) */
kg_status kg_manifest_hash(struct kg_manifest *m, size_t first, size_t end,
                           struct kg_err *err) KG_MUST_CHECK;
kg_status kg_manifest_put(const struct kg_manifest *m, struct kg_err *err) KG_MUST_CHECK;
void kg_manifest_release(struct kg_manifest *m); /* {0} is allowed */

struct kg_manifest_size {
    size_t files;
    uint64_t bytes;
};
/* Reads all files and compares them with the manifest. The error names the first file
 * that differs, and its piece. size may be NULL.
 * errors: ENOTFOUND (no manifest, or a listed file is missing), EFORMAT (a file or the
 * manifest is damaged), EIO, ENOMEM */
kg_status kg_manifest_check(struct kg_manifest_size *size, const char *dir,
                            struct kg_err *err) KG_MUST_CHECK;
#endif
