/* Folders: make, list, remove, and replace.
 *
 * The contract is in file.h. The one idea: a folder that must be complete (a checkpoint)
 * is filled under another name and then renamed in one step; an old folder of that name
 * is removed afterwards. Removing never follows a link.
 */
#define _GNU_SOURCE /* renameat2 */
#include "base/file.h"

#include "base/file_internal.h"
#include "base/mem.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { MAX_NAMES = 1 << 24 };

bool kg_file_exists(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0 ||
           (errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG);
}

bool kg_file_is_dir(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool kg_file_is_regular(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

kg_status kg_file_size(uint64_t *bytes, const char *path, struct kg_err *err)
{
    struct stat st;

    if (kg_file_fails() || stat(path, &st) != 0)
        return kg_file_fail(err, path, "read its status");
    *bytes = (uint64_t)st.st_size;
    return KG_OK;
}

kg_status kg_file_free_bytes(uint64_t *bytes, const char *path, struct kg_err *err)
{
    struct statvfs fs;

    if (kg_file_fails() || statvfs(path, &fs) != 0)
        return kg_file_fail(err, path, "read the free space of its disk");
    *bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    return KG_OK;
}

static const char *slash_behind(const char *dir)
{
    size_t n = strlen(dir);

    return n > 0 && dir[n - 1] != '/' ? "/" : "";
}

struct kg_path kg_path_in(const char *dir, const char *name)
{
    struct kg_path p;

    static_assert(sizeof p.text > PATH_MAX, "the kernel counts the NUL");
    snprintf(p.text, sizeof p.text, "%s%s%s", dir, slash_behind(dir), name);
    return p;
}

char *kg_path_join(const char *dir, const char *name, struct kg_err *err)
{
    struct kg_str path = {0};

    if (kg_str_printf(&path, err, "%s%s%s", dir, slash_behind(dir), name) != KG_OK) {
        kg_str_release(&path);
        return NULL;
    }
    return kg_str_take(&path, err);
}

/* ---- syncing ---- */

kg_status kg_file_sync_dir(const char *path, struct kg_err *err)
{
    int fd = kg_file_fails() ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return kg_file_fail(err, path, "open the folder");
    bool failed = kg_file_sync_fd(fd) != 0;
    int e = errno;
    close(fd);
    errno = e;
    return failed ? kg_file_fail(err, path, "sync the folder") : KG_OK;
}

kg_status kg_file_sync_parent(const char *path, struct kg_err *err)
{
    const char *slash = strrchr(path, '/');

    if (!slash)
        return kg_file_sync_dir(".", err);
    if (slash == path)
        return kg_file_sync_dir("/", err);
    char *parent = kg_mem_strdup(path, err);
    if (!parent)
        return KG_ENOMEM;
    parent[slash - path] = '\0';
    kg_status status = kg_file_sync_dir(parent, err);
    kg_mem_free(parent);
    return status;
}

/* ---- making ---- */

static kg_status make_one(const char *path, struct kg_err *err)
{
    int failed = kg_file_fails() ? -1 : mkdir(path, 0777);

    if (failed && errno == EEXIST && !kg_file_is_dir(path))
        return kg_fail(err, KG_EIO, "%s: expected a folder, found a file", path);
    if (failed && errno != EEXIST)
        return kg_file_fail(err, path, "make the folder");
    return KG_OK;
}

kg_status kg_file_make_dirs(const char *path, struct kg_err *err)
{
    char *copy = kg_mem_strdup(path, err);
    kg_status status = KG_OK;

    if (!copy)
        return KG_ENOMEM;
    for (char *p = copy + (*copy == '/'); *p && status == KG_OK; p++)
        if (*p == '/') {
            *p = '\0';
            status = make_one(copy, err);
            *p = '/';
        }
    if (status == KG_OK)
        status = make_one(copy, err);
    kg_mem_free(copy);
    return status;
}

static kg_status try_file(const char *dir, struct kg_err *err)
{
    struct kg_path path = kg_path_in(dir, ".kedge-try-XXXXXX");
    kg_status status = KG_OK;
    int fd = kg_file_fails() ? -1 : mkstemp(path.text);

    if (fd < 0)
        status = kg_file_fail(err, dir, "write into the folder");
    else if (unlink(path.text) != 0)
        status = kg_file_fail(err, path.text, "remove");
    if (fd >= 0)
        close(fd);
    return status;
}

/* Removes the folders of path below its first `there` bytes, the innermost first. */
static void unmake_dirs(char *path, size_t there)
{
    for (size_t n = strlen(path); n > there; n--)
        if (path[n] == '\0' || path[n] == '/') {
            path[n] = '\0';
            (void)rmdir(path); /* another process may have put something there */
        }
}

kg_status kg_file_try_dirs(const char *path, struct kg_err *err)
{
    char *copy = kg_mem_strdup(path, err);
    size_t there = copy ? strlen(copy) : 0;

    if (!copy)
        return KG_ENOMEM;
    while (there > 0 && !kg_file_exists(copy)) {
        while (there > 0 && copy[there] != '/')
            there--;
        copy[there] = '\0';
        while (there > 0 && copy[there - 1] == '/')
            copy[--there] = '\0';
    }
    strcpy(copy, path);
    kg_status status = kg_file_make_dirs(path, err);
    if (status == KG_OK)
        status = try_file(path, err);
    unmake_dirs(copy, there);
    kg_mem_free(copy);
    return status;
}

/* ---- listing ---- */

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_dot(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static kg_status add_name(char ***names, size_t *n, size_t *capacity, const char *name,
                          struct kg_err *err)
{
    KG_TRY(kg_mem_grow(names, capacity, *n + 1, sizeof **names, MAX_NAMES,
                       "folder listing", err));
    (*names)[*n] = kg_mem_strdup(name, err);
    if (!(*names)[*n])
        return KG_ENOMEM;
    *n += 1;
    return KG_OK;
}

kg_status kg_file_list(char ***names, size_t *n, const char *path, struct kg_err *err)
{
    size_t capacity = 0;
    kg_status status = KG_OK;
    struct dirent *entry;

    *names = NULL;
    *n = 0;
    DIR *dir = kg_file_fails() ? NULL : opendir(path);
    if (!dir)
        return kg_file_fail(err, path, "list");
    while (status == KG_OK && (errno = 0, entry = readdir(dir)))
        if (!is_dot(entry->d_name))
            status = add_name(names, n, &capacity, entry->d_name, err);
    if (status == KG_OK && errno != 0)
        status = kg_file_fail(err, path, "list");
    closedir(dir);
    if (status != KG_OK) {
        kg_file_names_free(*names, *n);
        *names = NULL;
        *n = 0;
        return status;
    }
    if (*n > 0)
        qsort(*names, *n, sizeof **names, by_bytes);
    return KG_OK;
}

void kg_file_names_free(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        kg_mem_free(names[i]);
    kg_mem_free(names);
}

/* ---- walking a tree ---- */

static bool is_real_dir(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Calls `visit` with the path of every entry of the folder. */
static kg_status each_entry(const char *path,
                            kg_status (*visit)(const char *, struct kg_err *),
                            struct kg_err *err)
{
    char **names;
    size_t n;
    kg_status status = KG_OK;

    KG_TRY(kg_file_list(&names, &n, path, err));
    for (size_t i = 0; i < n && status == KG_OK; i++) {
        char *entry = kg_path_join(path, names[i], err);
        status = entry ? visit(entry, err) : KG_ENOMEM;
        kg_mem_free(entry);
    }
    kg_file_names_free(names, n);
    return status;
}

kg_status kg_file_remove_tree(const char *path, struct kg_err *err)
{
    if (is_real_dir(path)) {
        KG_TRY(each_entry(path, kg_file_remove_tree, err));
        if (kg_file_fails() || rmdir(path) != 0)
            return kg_file_fail(err, path, "remove the folder");
        return KG_OK;
    }
    if ((kg_file_fails() || unlink(path) != 0) && errno != ENOENT)
        return kg_file_fail(err, path, "remove");
    return KG_OK;
}

/* The names in a folder are part of what must survive a crash; the files were synced when
 * written. */
static kg_status sync_tree(const char *path, struct kg_err *err)
{
    if (!is_real_dir(path))
        return KG_OK;
    KG_TRY(each_entry(path, sync_tree, err));
    return kg_file_sync_dir(path, err);
}

/* ---- renaming ---- */

static kg_status rename_to(const char *from, const char *to, struct kg_err *err)
{
    if (kg_file_fails() || rename(from, to) != 0)
        return kg_file_fail(err, to, "rename the finished folder to this name");
    return kg_file_sync_parent(to, err);
}

/* For file systems that cannot exchange two names: between the two renames `to` is
 * absent, and the old folder is TO.old. */
static kg_status replace_in_two_steps(const char *from, const char *to,
                                      struct kg_err *err)
{
    struct kg_str old = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_str_printf(&old, err, "%s.old", to));
    KG_TRY_GOTO(out, kg_file_remove_tree(old.data, err));
    KG_TRY_GOTO(out, rename_to(to, old.data, err));
    KG_TRY_GOTO(out, rename_to(from, to, err));
    status = kg_file_remove_tree(old.data, err);
out:
    kg_str_release(&old);
    return status;
}

kg_status kg_file_rename_dir(const char *from, const char *to, struct kg_err *err)
{
    struct stat st;

    if (!is_real_dir(from))
        return kg_fail(err, KG_ENOTFOUND, "%s: expected a folder to rename, found none",
                       from);
    KG_TRY(sync_tree(from, err));
    if (lstat(to, &st) != 0)
        return rename_to(from, to, err);
    if (kg_file_fails() ||
        renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) != 0) {
        if (errno != EINVAL && errno != ENOSYS)
            return kg_file_fail(err, to, "replace it with the finished folder");
        return replace_in_two_steps(from, to, err);
    }
    KG_TRY(kg_file_sync_parent(to, err));
    return kg_file_remove_tree(from, err);
}

/* ---- links ---- */

kg_status kg_file_link(const char *target, const char *path, struct kg_err *err)
{
    struct kg_str temporary = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_str_printf(&temporary, err, "%s.tmp", path));
    KG_TRY_GOTO(out, kg_file_remove_tree(temporary.data, err));
    if (kg_file_fails() || symlink(target, temporary.data) != 0) {
        status = kg_file_fail(err, path, "link");
        goto out;
    }
    if (kg_file_fails() || rename(temporary.data, path) != 0) {
        status = kg_file_fail(err, path, "link");
        unlink(temporary.data);
        goto out;
    }
    status = kg_file_sync_parent(path, err);
out:
    kg_str_release(&temporary);
    return status;
}

/* ---- one file ---- */

static kg_status sync_file(const char *path, struct kg_err *err)
{
    int fd = kg_file_fails() ? -1 : open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return kg_file_fail(err, path, "open");
    bool synced = kg_file_sync_fd(fd) == 0;
    close(fd);
    return synced ? KG_OK : kg_file_fail(err, path, "sync");
}

kg_status kg_file_replace(const char *from, const char *to, struct kg_err *err)
{
    KG_TRY(sync_file(from, err));
    if (kg_file_fails() || rename(from, to) != 0)
        return kg_file_fail(err, to, "rename the finished file to this name");
    return kg_file_sync_parent(to, err);
}
