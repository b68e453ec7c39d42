/* Files: whole reads, read-only maps, and writes that are either complete or absent.
 *
 * Everything that touches a disk goes through here, so that one switch can make the n-th
 * request fail and every error names path and reason. Nothing here knows what is in a
 * file.
 */
#ifndef KG_BASE_FILE_H
#define KG_BASE_FILE_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

/* Whole file into out (appended). Refuses more than max_bytes and names the size found,
 * and what is no regular file: a pipe in a model's folder would be waited for without
 * end. errors: NOTFOUND, EIO, ENOMEM, EFORMAT (too large) */
kg_status kg_file_read(struct kg_str *out, const char *path, uint64_t max_bytes,
                       struct kg_err *err) KG_MUST_CHECK;
/* The same of a path that a user names for this alone: a pipe is read to its end, too. */
kg_status kg_file_read_stream(struct kg_str *out, const char *path, uint64_t max_bytes,
                              struct kg_err *err) KG_MUST_CHECK;

/* A read-only map of a regular file. An empty file maps to data = NULL, bytes = 0. */
struct kg_map {
    const unsigned char *data; /* owned map */
    uint64_t bytes;
};
kg_status kg_map_open(struct kg_map *map, const char *path,
                      struct kg_err *err) KG_MUST_CHECK;
void kg_map_close(struct kg_map *map);
/* Of a part of a map that has been read: its whole pages are the process's no longer,
 * and come back from the file where they are read again. */
void kg_map_let_go(const void *data, uint64_t bytes);

/* For programs, once: touching a part of a map whose file has been cut off since ends the
 * process with status 1 and a line that names the file. Without it: with SIGBUS. */
void kg_map_guard(void);

/* Write the file under a temporary name beside it, fsync, rename, fsync the folder.
 * On failure the temporary file is gone, and the old one, if any, is untouched; but where
 * that last sync failed, the new one stands and a crash of the machine may take it. What
 * a killed writer of this path left goes away, too, as far as it can (else a warning).
 * errors: EIO, ENOSPACE, ENOMEM */
kg_status kg_file_write_atomic(const char *path, const void *bytes, size_t n,
                               struct kg_err *err) KG_MUST_CHECK;

/* PATH.tmp-PID-N into name: beside the file, and no other writer's. What is killed leaves
 * it there; remove_stale takes away what processes that are gone left of such names for
 * this path. Of another machine's or container's processes it knows nothing: a name of
 * theirs is stale too.   errors: NOTFOUND, EIO (no such folder) */
kg_status kg_file_temporary(struct kg_str *name, const char *path,
                            struct kg_err *err) KG_MUST_CHECK;
kg_status kg_file_remove_stale(const char *path, struct kg_err *err) KG_MUST_CHECK;
/* Whether an entry of a folder is a file of such a name; a folder never is. */
bool kg_file_is_temporary(const char *path);

/* A stream of writes into path, for large files. Bytes are buffered; `_close` flushes,
 * fsyncs and closes, and on failure does what `_abort` does: closes and unlinks (a file
 * that was continued is kept, its unflushed bytes are lost). After either, w is {0}, and
 * `_abort` of {0} does nothing. Errors say the path and errno text; ENOSPACE on a full
 * disk. */
struct kg_file_writer {
    int fd;
    unsigned char *buffer; /* owned */
    size_t used;
    uint64_t written; /* where the next byte goes: what was put, unless sought */
    char *path;       /* owned */
    bool continues;   /* opened by _append: _abort and a failed _close keep the file */
};
kg_status kg_file_writer_open(struct kg_file_writer *w, const char *path,
                              struct kg_err *err) KG_MUST_CHECK;
/* Continue an existing file, cut to `keep_bytes` first (logs on resume). An absent file
 * is made when keep_bytes is 0.
 * errors: NOTFOUND, EFORMAT (shorter than keep_bytes) */
kg_status kg_file_writer_append(struct kg_file_writer *w, const char *path,
                                uint64_t keep_bytes, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_file_writer_put(struct kg_file_writer *w, const void *bytes, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;
/* The next byte goes to byte `at` of the file; what is left out reads as 0. */
kg_status kg_file_writer_seek(struct kg_file_writer *w, uint64_t at,
                              struct kg_err *err) KG_MUST_CHECK;
/* The file is at least so long; what nobody has put reads as 0. */
kg_status kg_file_writer_extend(struct kg_file_writer *w, uint64_t bytes,
                                struct kg_err *err) KG_MUST_CHECK;
kg_status kg_file_writer_flush(struct kg_file_writer *w,
                               struct kg_err *err) KG_MUST_CHECK;
kg_status kg_file_writer_close(struct kg_file_writer *w,
                               struct kg_err *err) KG_MUST_CHECK;
void kg_file_writer_abort(struct kg_file_writer *w);
/* Flush, and wait until the bytes are on the disk. */
kg_status kg_file_writer_sync(struct kg_file_writer *w, struct kg_err *err) KG_MUST_CHECK;

/* Folders. make_dirs is mkdir -p; remove_tree does not follow links and is silent on an
 * absent path; rename_dir fsyncs the folders of `from` and renames it onto `to` (an old
 * `to` goes away whole, at once where the file system can exchange names). copy writes a
 * temporary file and renames it. */
/* Whether there is something of this name: a link that leads nowhere, or in a circle, is
 * something too, and so is what may not be looked at (a folder of somebody else's): an
 * error tells when it is read. Nothing has a name that is too long for the kernel. */
bool kg_file_exists(const char *path);
bool kg_file_is_dir(const char *path);
bool kg_file_is_regular(const char *path); /* no folder, pipe or device */
kg_status kg_file_size(uint64_t *bytes, const char *path,
                       struct kg_err *err) KG_MUST_CHECK;
kg_status kg_file_make_dirs(const char *path, struct kg_err *err) KG_MUST_CHECK;
/* Whether make_dirs would do, and a file could be written there: it is tried, and what
 * that made is gone again. */
kg_status kg_file_try_dirs(const char *path, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_file_remove_tree(const char *path, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_file_rename_dir(const char *from, const char *to,
                             struct kg_err *err) KG_MUST_CHECK;
kg_status kg_file_copy(const char *from, const char *to,
                       struct kg_err *err) KG_MUST_CHECK;
/* A file that is whole takes the place of another, or of none: synced, renamed. */
kg_status kg_file_replace(const char *from, const char *to,
                          struct kg_err *err) KG_MUST_CHECK;

/* Make path a symbolic link to target; an old link gives way in one step. The temporary
 * link is PATH.tmp.   errors: EIO, ENOSPACE */
kg_status kg_file_link(const char *target, const char *path,
                       struct kg_err *err) KG_MUST_CHECK;

/* Names in a folder without "." and "..", sorted by byte.   names: owned block of owned
 * strings, freed by kg_file_names_free */
kg_status kg_file_list(char ***names, size_t *n, const char *path,
                       struct kg_err *err) KG_MUST_CHECK;
void kg_file_names_free(char **names, size_t n);

/* A file that one process at a time holds, {0} none. The kernel gives it up with the
 * process, however that ends; the file itself stays. A process that holds it is not kept
 * from taking it again.
 * errors: ECONFLICT (names the process that holds it), EIO (no locks on this disk) */
struct kg_file_lock {
    int fd;
    bool held;
};
kg_status kg_file_lock_take(struct kg_file_lock *lock, const char *path,
                            struct kg_err *err) KG_MUST_CHECK;
void kg_file_lock_release(struct kg_file_lock *lock);

/* Bytes that an unprivileged process may still write under path.   errors: EIO */
kg_status kg_file_free_bytes(uint64_t *bytes, const char *path,
                             struct kg_err *err) KG_MUST_CHECK;

/* Tests only: the n-th request to the system that touches a file (open, read, write,
 * sync, rename, ...; 1 = the next) fails once with this errno; 0 switches it off. */
void kg_file_fail_at(uint64_t n, int error_number);
/* Tests only: syncs count as requests and can fail, but do not wait for the disk. What a
 * process that ends or is killed leaves behind is the same without them. */
void kg_file_skip_syncs(bool skip);

/* dir + "/" + name. What is longer than the kernel takes is cut to a length that it
 * refuses, so that no other file is meant. */
struct kg_path {
    char text[4097];
};
struct kg_path kg_path_in(const char *dir, const char *name);
/* The same into a fresh string.   owned; NULL on ENOMEM */
char *kg_path_join(const char *dir, const char *name, struct kg_err *err) KG_MUST_CHECK;

#endif
