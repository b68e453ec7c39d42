/* Files: whole reads, maps, streams of writes. A reader never sees a half-written file:
 * a file that must be complete is written under a temporary name, synced and renamed, and
 * its folder is synced. A growing log is truncated to a known length when it is resumed.
 * Folders are in dir.c.
 *
 * Before a system call whose failure matters, the code calls kg_file_fails, by which a
 * test makes the n-th such call fail (file_fail.c). */
#define _GNU_SOURCE /* O_CLOEXEC */
#include "base/file.h"

#include "base/file_internal.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/phase.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER_BYTES = 256 << 10, READ_BYTES = 64 << 10 };

static int sys_open(const char *path, int flags)
{
    return kg_file_fails() ? -1 : open(path, flags | O_CLOEXEC, 0666);
}

static ssize_t sys_read(int fd, void *to, size_t n)
{
    ssize_t got;

    if (kg_file_fails())
        return -1;
    do
        got = read(fd, to, n);
    while (got < 0 && errno == EINTR);
    return got;
}

/* Writes all n bytes.   returns 0 or -1 */
static int sys_write(int fd, const unsigned char *from, size_t n)
{
    if (kg_file_fails())
        return -1;
    while (n > 0) {
        ssize_t put = write(fd, from, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return -1;
        from += put;
        n -= (size_t)put;
        kg_phase_tick();
    }
    return 0;
}

static int sys_rename(const char *from, const char *to)
{
    return kg_file_fails() ? -1 : rename(from, to);
}

/* ---- reading ---- */

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode)    ? "a folder"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

enum how { REGULAR, STREAM /* anything but a folder */, SECRET /* closed to others */ };

static kg_status check_kind(const struct stat *st, const char *path, enum how how,
                            struct kg_err *err)
{
    if (S_ISDIR(st->st_mode) || !(how == STREAM || S_ISREG(st->st_mode)))
        return kg_fail(err, KG_EIO, "%s: expected a file, found %s", path,
                       kind_of(st->st_mode));
    if (how == SECRET && (st->st_mode & 077) != 0)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected a file that its owner alone can read (chmod 600), "
                       "found mode %03o",
                       path, (unsigned)st->st_mode & 0777);
    if (how == SECRET && st->st_uid != geteuid() && st->st_uid != 0)
        return kg_fail(err, KG_EINVAL, "%s: expected you as its owner, found user %u",
                       path, (unsigned)st->st_uid);
    return KG_OK;
}

/* *bytes: the file's size, 0 for a pipe */
static kg_status open_to_read(int *fd, uint64_t *bytes, const char *path, enum how how,
                              struct kg_err *err)
{
    struct stat st;

    /* without O_NONBLOCK, opening a pipe would wait for its writer */
    *fd = sys_open(path, O_RDONLY | (how == STREAM ? 0 : O_NONBLOCK));
    if (*fd < 0)
        return kg_file_fail(err, path, "open");
    if (fstat(*fd, &st) != 0) {
        kg_file_fail(err, path, "read its status");
        close(*fd);
        return err->code;
    }
    if (check_kind(&st, path, how, err) != KG_OK) {
        close(*fd);
        return err->code;
    }
    *bytes = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
    return KG_OK;
}

static kg_status too_large(struct kg_err *err, const char *path, uint64_t found,
                           uint64_t max)
{
    return kg_fail(err, KG_EFORMAT, "%s: expected at most %llu bytes, found %llu", path,
                   (unsigned long long)max, (unsigned long long)found);
}

static kg_status read_whole(struct kg_str *out, const char *path, enum how how,
                            uint64_t max_bytes, struct kg_err *err)
{
    int fd;
    uint64_t size;
    uint64_t total = 0;
    size_t before = out->len;

    KG_TRY(open_to_read(&fd, &size, path, how, err));
    unsigned char *buffer = kg_mem_calloc(READ_BYTES, 1, path, err);
    kg_status status = buffer ? KG_OK : KG_ENOMEM;
    if (status == KG_OK && size > max_bytes)
        status = too_large(err, path, size, max_bytes);
    while (status == KG_OK) {
        ssize_t got = sys_read(fd, buffer, READ_BYTES);
        if (got == 0)
            break;
        if (got < 0)
            status = kg_file_fail(err, path, "read");
        else if ((total += (uint64_t)got) > max_bytes) /* a pipe, or a file that grows */
            status = too_large(err, path, total, max_bytes);
        else
            status = kg_str_append(out, buffer, (size_t)got, err);
    }
    if (status != KG_OK && out->data) {
        out->len = before;
        out->data[before] = '\0';
    }
    kg_mem_free(buffer);
    close(fd);
    return status;
}

kg_status kg_file_read(struct kg_str *out, const char *path, uint64_t max_bytes,
                       struct kg_err *err)
{
    return read_whole(out, path, REGULAR, max_bytes, err);
}

kg_status kg_file_read_stream(struct kg_str *out, const char *path, uint64_t max_bytes,
                              struct kg_err *err)
{
    return read_whole(out, path, STREAM, max_bytes, err);
}

kg_status kg_file_read_secret(struct kg_str *out, const char *path, uint64_t max_bytes,
                              struct kg_err *err)
{
    return read_whole(out, path, SECRET, max_bytes, err);
}

kg_status kg_map_open(struct kg_map *map, const char *path, struct kg_err *err)
{
    int fd;
    uint64_t bytes;
    kg_status status = KG_OK;

    *map = (struct kg_map){0};
    KG_TRY(open_to_read(&fd, &bytes, path, REGULAR, err));
    if (bytes > 0) {
        void *data = kg_file_fails() ? MAP_FAILED
                                     : mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            status = kg_file_fail(err, path, "map");
        else
            *map = (struct kg_map){.data = data, .bytes = bytes};
        if (status == KG_OK)
            kg_map_enter(map, path);
    }
    close(fd);
    return status;
}

void kg_map_close(struct kg_map *map)
{
    if (map->data)
        kg_map_leave(map);
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->bytes);
    *map = (struct kg_map){0};
}

void kg_map_let_go(const void *data, uint64_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = ((uintptr_t)data + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)data + bytes) / page * page;

    if (end > first)
        (void)madvise((void *)first, end - first, MADV_DONTNEED);
}

/* ---- the stream of writes ---- */

static kg_status writer_init(struct kg_file_writer *w, const char *path, int flags,
                             struct kg_err *err)
{
    *w = (struct kg_file_writer){.fd = -1};
    w->path = kg_mem_strdup(path, err);
    w->buffer = w->path ? kg_mem_calloc(BUFFER_BYTES, 1, path, err) : NULL;
    if (!w->buffer) {
        kg_file_writer_abort(w);
        return KG_ENOMEM;
    }
    w->fd = sys_open(path, flags);
    if (w->fd < 0) {
        kg_file_fail(err, path, "write");
        kg_file_writer_abort(w);
        return err->code;
    }
    return KG_OK;
}

kg_status kg_file_writer_open(struct kg_file_writer *w, const char *path,
                              struct kg_err *err)
{
    return writer_init(w, path, O_WRONLY | O_CREAT | O_TRUNC, err);
}

static kg_status cut_to(struct kg_file_writer *w, uint64_t keep_bytes, struct kg_err *err)
{
    struct stat st;

    if (kg_file_fails() || fstat(w->fd, &st) != 0)
        return kg_file_fail(err, w->path, "read its status");
    if ((uint64_t)st.st_size < keep_bytes)
        return kg_fail(err, KG_EFORMAT, "%s: expected at least %llu bytes, found %lld",
                       w->path, (unsigned long long)keep_bytes, (long long)st.st_size);
    if (kg_file_fails() || ftruncate(w->fd, (off_t)keep_bytes) != 0)
        return kg_file_fail(err, w->path, "shorten");
    return kg_file_writer_seek(w, keep_bytes, err);
}

kg_status kg_file_writer_append(struct kg_file_writer *w, const char *path,
                                uint64_t keep_bytes, struct kg_err *err)
{
    KG_TRY(writer_init(w, path, keep_bytes > 0 ? O_WRONLY : O_WRONLY | O_CREAT, err));
    w->continues = true;
    kg_status status = cut_to(w, keep_bytes, err);
    if (status != KG_OK)
        kg_file_writer_abort(w);
    return status;
}

kg_status kg_file_writer_flush(struct kg_file_writer *w, struct kg_err *err)
{
    size_t n = w->used;

    /* after a failure the bytes are lost, so that a retry cannot write them twice */
    w->used = 0;
    if (n > 0 && sys_write(w->fd, w->buffer, n) != 0)
        return kg_file_fail(err, w->path, "write");
    return KG_OK;
}

kg_status kg_file_writer_put(struct kg_file_writer *w, const void *bytes, size_t n,
                             struct kg_err *err)
{
    if (n > BUFFER_BYTES - w->used)
        KG_TRY(kg_file_writer_flush(w, err));
    if (n > BUFFER_BYTES) {
        if (sys_write(w->fd, bytes, n) != 0)
            return kg_file_fail(err, w->path, "write");
    } else if (n > 0) {
        memcpy(w->buffer + w->used, bytes, n);
        w->used += n;
    }
    w->written += n;
    return KG_OK;
}

kg_status kg_file_writer_seek(struct kg_file_writer *w, uint64_t at, struct kg_err *err)
{
    if (at == w->written)
        return KG_OK;
    KG_TRY(kg_file_writer_flush(w, err));
    if (lseek(w->fd, (off_t)at, SEEK_SET) < 0)
        return kg_file_fail(err, w->path, "move to an offset");
    w->written = at;
    return KG_OK;
}

kg_status kg_file_writer_extend(struct kg_file_writer *w, uint64_t bytes,
                                struct kg_err *err)
{
    struct stat st;

    KG_TRY(kg_file_writer_flush(w, err));
    if (kg_file_fails() || fstat(w->fd, &st) != 0)
        return kg_file_fail(err, w->path, "read its status");
    if ((uint64_t)st.st_size >= bytes)
        return KG_OK;
    if (kg_file_fails() || ftruncate(w->fd, (off_t)bytes) != 0)
        return kg_file_fail(err, w->path, "lengthen");
    return KG_OK;
}

kg_status kg_file_writer_sync(struct kg_file_writer *w, struct kg_err *err)
{
    KG_TRY(kg_file_writer_flush(w, err));
    return kg_file_sync_fd(w->fd) != 0 ? kg_file_fail(err, w->path, "sync") : KG_OK;
}

static void writer_release(struct kg_file_writer *w)
{
    kg_mem_free(w->buffer);
    kg_mem_free(w->path);
    *w = (struct kg_file_writer){0};
}

kg_status kg_file_writer_close(struct kg_file_writer *w, struct kg_err *err)
{
    kg_status status = kg_file_writer_flush(w, err);

    if (status == KG_OK && kg_file_sync_fd(w->fd) != 0)
        status = kg_file_fail(err, w->path, "sync");
    if (status != KG_OK) {
        kg_file_writer_abort(w);
        return status;
    }
    close(w->fd); /* synced: close has nothing left that could fail */
    writer_release(w);
    return KG_OK;
}

void kg_file_writer_abort(struct kg_file_writer *w)
{
    struct stat st;

    if (!w->path)
        return;
    if (w->fd >= 0) {
        /* never remove a device such as /dev/null */
        bool ours = !w->continues && fstat(w->fd, &st) == 0 && S_ISREG(st.st_mode);
        close(w->fd);
        if (ours)
            unlink(w->path);
    }
    writer_release(w);
}

/* ---- complete or absent ---- */

kg_status kg_file_temporary(struct kg_str *name, const char *path, struct kg_err *err)
{
    static _Atomic unsigned count;

    return kg_str_printf(name, err, "%s.tmp-%ld-%u", path, (long)getpid(),
                         atomic_fetch_add(&count, 1));
}

/* The number of a process after ".tmp-", with or without a count after it.
 * returns 0 for every other ending */
static long process_of(const char *ending)
{
    char *end;

    if (strncmp(ending, ".tmp-", 5) != 0 || !isdigit((unsigned char)ending[5]))
        return 0;
    long pid = strtol(ending + 5, &end, 10);
    if (*end == '-')
        end += 1 + strspn(end + 1, "0123456789");
    return *end == '\0' && pid <= INT_MAX ? pid : 0;
}

bool kg_file_is_temporary(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *ending;

    for (ending = strstr(name, ".tmp-"); ending; ending = strstr(ending + 1, ".tmp-"))
        if (process_of(ending) != 0)
            return kg_file_is_regular(path);
    return false;
}

/* entry: a name in path's folder. A file that cannot be removed only causes a warning,
 * because it does no harm. */
static kg_status remove_if_stale(const char *path, const char *entry, struct kg_err *err)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t n = strlen(base);
    struct kg_str stale = {0};
    long pid = strncmp(entry, base, n) == 0 ? process_of(entry + n) : 0;
    kg_status status;

    if (pid == 0 || kill((pid_t)pid, 0) == 0 || errno != ESRCH)
        return KG_OK;
    status = kg_str_printf(&stale, err, "%.*s%s", (int)(base - path), path, entry);
    if (status == KG_OK && unlink(stale.data) != 0)
        kg_log_warn("%s of process %ld, which has ended, cannot be removed: %s",
                    stale.data, pid, strerror(errno));
    kg_str_release(&stale);
    return status;
}

kg_status kg_file_remove_stale(const char *path, struct kg_err *err)
{
    const char *slash = strrchr(path, '/');
    struct kg_str folder = {0};
    char **names = NULL;
    size_t n = 0;
    kg_status status;

    KG_TRY_GOTO(out, slash ? kg_str_append(&folder, path, (size_t)(slash - path) + 1, err)
                           : kg_str_puts(&folder, ".", err));
    KG_TRY_GOTO(out, kg_file_list(&names, &n, folder.data, err));
    for (size_t i = 0; i < n && status == KG_OK; i++)
        status = remove_if_stale(path, names[i], err);
out:
    kg_file_names_free(names, n);
    kg_str_release(&folder);
    return status;
}

/* Moves the finished file to its name; removes it on failure. */
static kg_status settle(const char *temporary, const char *path, struct kg_err *err)
{
    if (sys_rename(temporary, path) != 0) {
        kg_file_fail(err, path, "rename the finished file to this name");
        unlink(temporary);
        return err->code;
    }
    return kg_file_sync_parent(path, err);
}

static void tidy(const char *path)
{
    struct kg_err why;

    if (kg_file_remove_stale(path, &why) != KG_OK)
        kg_log_warn("%s: temporary files of killed writers cannot be removed: %s", path,
                    why.message);
}

kg_status kg_file_write_atomic(const char *path, const void *bytes, size_t n,
                               struct kg_err *err)
{
    struct kg_str temporary = {0};
    struct kg_file_writer w = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_file_temporary(&temporary, path, err));
    KG_TRY_GOTO(out, kg_file_writer_open(&w, temporary.data, err));
    KG_TRY_GOTO(out, kg_file_writer_put(&w, bytes, n, err));
    KG_TRY_GOTO(out, kg_file_writer_close(&w, err));
    KG_TRY_GOTO(out, settle(temporary.data, path, err));
    tidy(path); /* only warns: the file is written */
out:
    kg_file_writer_abort(&w);
    kg_str_release(&temporary);
    return status;
}

static kg_status copy_into(struct kg_file_writer *w, int fd, const char *from,
                           struct kg_err *err)
{
    unsigned char *buffer = kg_mem_calloc(READ_BYTES, 1, from, err);
    kg_status status = buffer ? KG_OK : KG_ENOMEM;

    while (status == KG_OK) {
        ssize_t got = sys_read(fd, buffer, READ_BYTES);
        if (got == 0)
            break;
        status = got < 0 ? kg_file_fail(err, from, "read")
                         : kg_file_writer_put(w, buffer, (size_t)got, err);
    }
    kg_mem_free(buffer);
    return status;
}

kg_status kg_file_copy(const char *from, const char *to, struct kg_err *err)
{
    int fd;
    uint64_t bytes;
    struct kg_str temporary = {0};
    struct kg_file_writer w = {0};
    kg_status status;

    KG_TRY(open_to_read(&fd, &bytes, from, REGULAR, err));
    KG_TRY_GOTO(out, kg_file_temporary(&temporary, to, err));
    KG_TRY_GOTO(out, kg_file_writer_open(&w, temporary.data, err));
    KG_TRY_GOTO(out, copy_into(&w, fd, from, err));
    KG_TRY_GOTO(out, kg_file_writer_close(&w, err));
    status = settle(temporary.data, to, err);
out:
    kg_file_writer_abort(&w);
    kg_str_release(&temporary);
    close(fd);
    return status;
}

/* ---- one process at a time ---- */

/* If another process has the lock, the error is ECONFLICT and names it. */
static kg_status lock_fd(int fd, const char *path, struct kg_err *err)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    while (kg_file_fails() || fcntl(fd, F_SETLK, &all) != 0) {
        if (errno != EACCES && errno != EAGAIN)
            return kg_file_fail(err, path, "lock");
        if (fcntl(fd, F_GETLK, &all) != 0)
            return kg_file_fail(err, path, "read its lock");
        if (all.l_type != F_UNLCK)
            return kg_fail(err, KG_ECONFLICT,
                           "%s: expected no other process at work, found process %ld",
                           path, (long)all.l_pid);
        all = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET}; /* just released */
    }
    return KG_OK;
}

kg_status kg_file_lock_take(struct kg_file_lock *lock, const char *path,
                            struct kg_err *err)
{
    int fd = sys_open(path, O_RDWR | O_CREAT);

    if (fd < 0)
        return kg_file_fail(err, path, "write");
    kg_status status = lock_fd(fd, path, err);
    if (status == KG_OK)
        *lock = (struct kg_file_lock){.fd = fd, .held = true};
    else
        close(fd);
    return status;
}

void kg_file_lock_release(struct kg_file_lock *lock)
{
    if (lock->held)
        close(lock->fd);
    *lock = (struct kg_file_lock){0};
}
