/* Files: whole reads, read-only maps, and writes that are either complete or absent.
 *
 * Nearly all file access goes through here, so that one switch can make the n-th call
 * fail and every error names path and reason. These functions know bytes, not formats.
 */
#ifndef KG_BASE_FILE_H
#define KG_BASE_FILE_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

/* Appends the whole file to out. Refuses files larger than max_bytes (the error names the
 * size) and anything but a regular file, because reading a pipe could block forever.
 * errors: ENOTFOUND, EIO (also not a regular file), ENOMEM, EFORMAT (too large) */
kg_status kg_file_read(struct kg_str *out, const char *path, uint64_t max_bytes,
                       struct kg_err *err) KG_MUST_CHECK;
/* kg_file_read for a path that the user chose: pipes and devices are read to the end. */
kg_status kg_file_read_stream(struct kg_str *out, const char *path, uint64_t max_bytes,
                              struct kg_err *err) KG_MUST_CHECK;

/* kg_file_read for a file of secrets. Its owner must be this process's user or root, and
 * its mode must give nobody else any right.   errors: EINVAL (mode or owner), and those
 * of kg_file_read */
kg_status kg_file_read_secret(struct kg_str *out, const char *path, uint64_t max_bytes,
                              struct kg_err *err) KG_MUST_CHECK;

/* A read-only map of a regular file. An empty file maps to data = NULL, bytes = 0.
 * errors: ENOTFOUND, EIO (also not a regular file), ENOMEM */
struct kg_map {
    const unsigned char *data; /* owned map */
    uint64_t bytes;
};
kg_status kg_map_open(struct kg_map *map, const char *path,
                      struct kg_err *err) KG_MUST_CHECK;
void kg_map_close(struct kg_map *map);
/* Drops from memory the pages that lie entirely in a part of a map; a later read loads
 * them from the file again. */
void kg_map_let_go(const void *data, uint64_t bytes);

/* Call once per program. After it, touching a map whose file was truncated ends the
 * process with status 1 and a line that names the file, instead of with SIGBUS. */
void kg_map_guard(void);

/* Writes a temporary file next to path, fsyncs, renames, fsyncs the folder.
 * On failure the temporary file is removed and an old file is untouched. Exception: if
 * the last sync fails, the new file is in place but a crash of the machine may lose it.
 * On success, also removes temporary files that killed writers of this path left, or logs
 * a warning.   errors: ENOTFOUND (no such folder), EIO, ENOSPACE, ENOMEM */
kg_status kg_file_write_atomic(const char *path, const void *bytes, size_t n,
                               struct kg_err *err) KG_MUST_CHECK;

/* kg_file_temporary appends PATH.tmp-PID-N to name, unique to this writer. Such a file
 * outlives a killed process; kg_file_remove_stale removes those of this path whose
 * process no longer runs here, so also those of live processes on other machines or in
 * other containers.   errors: ENOMEM; kg_file_remove_stale: ENOTFOUND (no folder), EIO */
kg_status kg_file_temporary(struct kg_str *name, const char *path,
                            struct kg_err *err) KG_MUST_CHECK;
kg_status kg_file_remove_stale(const char *path, struct kg_err *err) KG_MUST_CHECK;
/* True if path is a regular file whose name has the form that kg_file_temporary makes;
 * false for folders. */
bool kg_file_is_temporary(const char *path);

/* A stream of writes into path, for large files. Bytes are buffered. `_close` flushes,
 * fsyncs and closes; if that fails, it does what `_abort` does: closes and unlinks (but
 * keeps a continued file, without its unflushed bytes). Both leave w = {0}; `_abort` of
 * {0} does nothing. Messages have the path and errno's text; ENOSPACE: disk full. */
struct kg_file_writer {
    int fd;
    unsigned char *buffer; /* owned */
    size_t used;
    uint64_t written; /* offset of the next byte */
    char *path;       /* owned */
    bool continues;   /* opened by _append: _abort and a failed _close keep the file */
};
kg_status kg_file_writer_open(struct kg_file_writer *w, const char *path,
                              struct kg_err *err) KG_MUST_CHECK;
/* Truncates an existing file to `keep_bytes` and continues it, as a resumed run does with
 * its logs. Creates a missing file if keep_bytes is 0.
 * errors: ENOTFOUND, EFORMAT (shorter than keep_bytes), EIO, ENOMEM */
kg_status kg_file_writer_append(struct kg_file_writer *w, const char *path,
                                uint64_t keep_bytes, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_file_writer_put(struct kg_file_writer *w, const void *bytes, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;
/* The next byte will be written at offset `at`; gaps read as 0. */
kg_status kg_file_writer_seek(struct kg_file_writer *w, uint64_t at,
                              struct kg_err *err) KG_MUST_CHECK;
/* Makes the file at least `bytes` long; new bytes read as 0. */
kg_status kg_file_writer_extend(struct kg_file_writer *w, uint64_t bytes,
                                struct kg_err *err) KG_MUST_CHECK;
kg_status kg_file_writer_flush(struct kg_file_writer *w,
                               struct kg_err *err) KG_MUST_CHECK;
kg_status kg_file_writer_close(struct kg_file_writer *w,
                               struct kg_err *err) KG_MUST_CHECK;
void kg_file_writer_abort(struct kg_file_writer *w);
/* Flushes, then waits until the bytes are on disk. */
kg_status kg_file_writer_sync(struct kg_file_writer *w, struct kg_err *err) KG_MUST_CHECK;

/* Whether path exists. Dangling and circular links count as existing, as do paths that
 * may not be examined; reading them reports the error. A name too long for the kernel
 * does not exist. */
bool kg_file_exists(const char *path);
bool kg_file_is_dir(const char *path);
bool kg_file_is_regular(const char *path); /* no folder, pipe or device */
kg_status kg_file_size(uint64_t *bytes, const char *path,
                       struct kg_err *err) KG_MUST_CHECK;
/* mkdir -p */
kg_status kg_file_make_dirs(const char *path, struct kg_err *err) KG_MUST_CHECK;
/* Checks that make_dirs would work and a file could be written there. Tries both, then
 * removes what it created. */
kg_status kg_file_try_dirs(const char *path, struct kg_err *err) KG_MUST_CHECK;
/* Does not follow links; an absent path is not an error. */
kg_status kg_file_remove_tree(const char *path, struct kg_err *err) KG_MUST_CHECK;
/* Fsyncs `from` and the folders in it and renames it to `to`, replacing an old `to`:
 * atomically if the file system can exchange names, else `to` is absent for a moment. */
kg_status kg_file_rename_dir(const char *from, const char *to,
                             struct kg_err *err) KG_MUST_CHECK;
kg_status kg_file_copy(const char *from, const char *to,
                       struct kg_err *err) KG_MUST_CHECK;
/* Syncs the complete file `from` and renames it onto `to`, which may be absent. */
kg_status kg_file_replace(const char *from, const char *to,
                          struct kg_err *err) KG_MUST_CHECK;

/* Makes path a symbolic link to target, atomically replacing an old link. Removes an old
 * PATH.tmp, the name of the temporary link.   errors: ENOTFOUND, EIO, ENOSPACE */
kg_status kg_file_link(const char *target, const char *path,
                       struct kg_err *err) KG_MUST_CHECK;

/* Lists the names in a folder, without "." and "..", in byte order. names: owned block of
 * n owned strings; free it with kg_file_names_free */
kg_status kg_file_list(char ***names, size_t *n, const char *path,
                       struct kg_err *err) KG_MUST_CHECK;
void kg_file_names_free(char **names, size_t n);

/* A lock file that one process holds at a time; {0}: not held. The kernel releases it
 * when the process ends, however it ends; the file stays. The lock does not exclude a
 * second take by the same process.
 * errors: ECONFLICT (names the process that holds it), EIO (no locks on this disk) */
struct kg_file_lock {
    int fd;
    bool held;
};
kg_status kg_file_lock_take(struct kg_file_lock *lock, const char *path,
                            struct kg_err *err) KG_MUST_CHECK;
void kg_file_lock_release(struct kg_file_lock *lock);

/* Bytes that an unprivileged process may still write at path.   errors: ENOTFOUND, EIO */
kg_status kg_file_free_bytes(uint64_t *bytes, const char *path,
                             struct kg_err *err) KG_MUST_CHECK;

/* Tests only: the n-th file-system call (open, read, write, sync, rename, ...; 1 = the
 * next) fails once with this errno. n = 0 switches this off. */
void kg_file_fail_at(uint64_t n, int error_number);
/* Tests only: syncs are counted and can fail but do not wait for the disk. The files that
 * a process leaves are the same without the wait. */
void kg_file_skip_syncs(bool skip);

/* dir + "/" + name. A path that is too long is truncated to a length that the kernel
 * refuses, so that it cannot name another file. */
struct kg_path {
    char text[4097];
};
struct kg_path kg_path_in(const char *dir, const char *name);
/* kg_path_in, allocated.   owned; NULL on ENOMEM */
char *kg_path_join(const char *dir, const char *name, struct kg_err *err) KG_MUST_CHECK;

#endif
