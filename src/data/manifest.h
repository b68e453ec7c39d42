/* The manifest of a folder: DIR/manifest.json, which lists every file below DIR with its
 * length and the hashes of its pieces, so that a bit that has changed since is found.
 *
 *   {"format": 1, "piece_bytes": 67108864, "files": [
 *    {"path": "model/config.json", "bytes": 571, "pieces": ["9f0c..."]}, ...]}
 *
 * Paths are relative, sorted and without "..". A hash is kg_hash_bytes of the piece as 16
 * hexadecimal digits: it finds damage, it does not stop who wants to deceive. Pieces are
 * hashed by as many threads as there are, and say where a file differs. Files that came
 * into the folder afterwards are left alone.
 */
#ifndef KG_DATA_MANIFEST_H
#define KG_DATA_MANIFEST_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#define KG_MANIFEST_NAME "manifest.json"

/* Every file below dir, which nobody writes meanwhile.   errors: EIO, ENOMEM */
kg_status kg_manifest_write(const char *dir, struct kg_err *err) KG_MUST_CHECK;

/* The same where several share the hashing: each lists the folder and hashes some of the
 * pieces, and one that has the hashes of all puts the file. */
struct kg_manifest {
    const char *dir;                /* borrowed */
    struct kg_manifest_file *files; /* (n) owned, sorted */
    size_t n, room;
    uint64_t *hashes; /* (n_pieces) owned: of all files, one after the other */
    size_t n_pieces;
};
/* errors: EIO, ENOMEM */
kg_status kg_manifest_list(struct kg_manifest *m, const char *dir,
                           struct kg_err *err) KG_MUST_CHECK;
/* Pieces [first, end) of n_pieces.   errors: EIO (a file has another length) */
kg_status kg_manifest_hash(struct kg_manifest *m, size_t first, size_t end,
                           struct kg_err *err) KG_MUST_CHECK;
kg_status kg_manifest_put(const struct kg_manifest *m, struct kg_err *err) KG_MUST_CHECK;
void kg_manifest_release(struct kg_manifest *m); /* {0} is allowed */

struct kg_manifest_size {
    size_t files;
    uint64_t bytes;
};
/* Is every file what it was? All are read; the first that is not is named, with the
 * piece. size may be NULL.
 * errors: NOTFOUND (no manifest, or a file of it is gone), EFORMAT (a file or it is
 * damaged), EIO, ENOMEM */
kg_status kg_manifest_check(struct kg_manifest_size *size, const char *dir,
                            struct kg_err *err) KG_MUST_CHECK;
/* The same of the files whose path begins so: "model/". */
kg_status kg_manifest_check_below(struct kg_manifest_size *size, const char *dir,
                                  const char *below, struct kg_err *err) KG_MUST_CHECK;

#endif
