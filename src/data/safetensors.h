/* safetensors files and sharded checkpoints: strict reading over a map, and writing.
 *
 * A set is one file, or a model.safetensors.index.json with its shards, seen as one list
 * of tensors. Tensor data is borrowed from the map and may be unaligned. Refused, each
 * with file, tensor and numbers: truncated files, trailing bytes, a header that is not
 * JSON, offsets out of range, overlaps, holes, a data size that differs from that of the
 * shape, overflow, duplicate names, an index that names an absent shard or tensor.
 */
#ifndef KG_DATA_SAFETENSORS_H
#define KG_DATA_SAFETENSORS_H

#include "base/file.h"
#include "base/status.h"
#include "data/quants.h"

#include <stdint.h>

enum { KG_ST_MAX_DIMS = 8 };

struct kg_st_tensor {
    const char *name;  /* borrowed from the set */
    const char *dtype; /* "BF16", "F32", "I64", ...; borrowed */
    int n_dims;
    int64_t shape[KG_ST_MAX_DIMS];
    uint64_t bytes;
    const unsigned char *data; /* borrowed from the map */
    const char *file;          /* borrowed: file name, for messages */
    /* set only in sets of other formats: */
    const struct kg_quant *block; /* type of blocks; NULL: single values of dtype */
    /* number of rows of a head whose rotary pairs are adjacent in the file: the file's
     * row 2j is row j, its row 2j + 1 is row paired/2 + j; 0: rows are in order */
    int32_t paired;
    float added; /* the file added this to every value; reading subtracts it */
};

struct kg_st_set; /* opaque */

/* Opens dir/model.safetensors, else dir/model.safetensors.index.json and its shards.
 * errors: ENOTFOUND (neither), EFORMAT, EUNSUPPORTED (more than KG_ST_MAX_DIMS), EIO */
kg_status kg_st_open_dir(struct kg_st_set **set, const char *dir,
                         struct kg_err *err) KG_MUST_CHECK;
kg_status kg_st_open_file(struct kg_st_set **set, const char *path,
                          struct kg_err *err) KG_MUST_CHECK;
/* A whole file in memory, borrowed while the set is open; for tests and fuzzing. */
kg_status kg_st_open_bytes(struct kg_st_set **set, const void *bytes, size_t n,
                           const char *where, struct kg_err *err) KG_MUST_CHECK;
void kg_st_close(struct kg_st_set *set);

size_t kg_st_count(const struct kg_st_set *set);
/* sorted by name */
const struct kg_st_tensor *kg_st_at(const struct kg_st_set *set, size_t i);
/* NULL if absent */
const struct kg_st_tensor *kg_st_find(const struct kg_st_set *set, const char *name);

/* ---- sets of other formats: begin, take the files, add tensors, end ---- */
kg_status kg_st_begin(struct kg_st_set **set, size_t n_files,
                      struct kg_err *err) KG_MUST_CHECK;
/* Moves map into the set.   *where: path, borrowed from the set */
kg_status kg_st_take_file(struct kg_st_set *set, const char **where, struct kg_map *map,
                          const char *path, struct kg_err *err) KG_MUST_CHECK;
/* t: its name is copied, the rest borrowed from the files   errors: ENOMEM */
kg_status kg_st_add(struct kg_st_set *set, const struct kg_st_tensor *t,
                    struct kg_err *err) KG_MUST_CHECK;
/* errors: EFORMAT (a name twice) */
kg_status kg_st_end(struct kg_st_set *set, struct kg_err *err) KG_MUST_CHECK;

/* Renames tensors, once per set. `rename` writes the new name into `to` and returns
 * whether it differs.   errors: EFORMAT (two tensors get one name, or an old name has
 * KG_ST_MAX_NAME / 2 bytes or more), ENOMEM */
enum { KG_ST_MAX_NAME = 1024 };
typedef bool kg_st_rename(char to[KG_ST_MAX_NAME], const char *name, void *context);
kg_status kg_st_rename_all(struct kg_st_set *set, kg_st_rename *rename, void *context,
                           struct kg_err *err) KG_MUST_CHECK;

/* ---- writing: declare all tensors, then put their bytes, in any order ---- */
struct kg_st_decl {
    const char *name;
    const char *dtype;
    int n_dims;
    int64_t shape[KG_ST_MAX_DIMS];
};
struct kg_st_writer; /* opaque */
/* Writes a header with {"format":"pt"} metadata, padded to 8 bytes. path is written
 * directly: write into a temporary folder and rename that. */
kg_status kg_st_writer_open(struct kg_st_writer **out, const char *path,
                            const struct kg_st_decl *decls, size_t n,
                            struct kg_err *err) KG_MUST_CHECK;
/* Writes n bytes of declared tensor `tensor` from its byte `first` on. Each byte is put
 * once; closing checks the count.   errors: EINVAL (more than the tensor has) */
kg_status kg_st_writer_put(struct kg_st_writer *w, size_t tensor, uint64_t first,
                           const void *bytes, size_t n, struct kg_err *err) KG_MUST_CHECK;
/* errors: EINVAL (a tensor is incomplete: the file is removed) */
kg_status kg_st_writer_close(struct kg_st_writer *w, struct kg_err *err) KG_MUST_CHECK;
void kg_st_writer_abort(struct kg_st_writer *w);
/* For a file written by several processes: one opens it and leaves it at full length; the
 * others join it, put their ranges and leave. All declare the same tensors. _leave syncs
 * and closes without checking the counts. Aborting a joined writer keeps the file.
 * errors of _join: ENOTFOUND, EFORMAT (shorter than expected) */
kg_status kg_st_writer_join(struct kg_st_writer **out, const char *path,
                            const struct kg_st_decl *decls, size_t n,
                            struct kg_err *err) KG_MUST_CHECK;
kg_status kg_st_writer_leave(struct kg_st_writer *w, struct kg_err *err) KG_MUST_CHECK;

#endif
