/* Failures of system calls: those that tests request, and errno as a status with a
 * message. The contract is in file_internal.h. */
#include "base/file_internal.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static _Atomic uint64_t fail_number; /* 0: off */
static _Atomic int fail_errno;

void kg_file_fail_at(uint64_t n, int error_number)
{
    atomic_store(&fail_errno, error_number);
    atomic_store(&fail_number, n);
}

static _Atomic bool skip_syncs;

void kg_file_skip_syncs(bool skip) { atomic_store(&skip_syncs, skip); }

bool kg_file_fails(void)
{
    uint64_t n = atomic_load(&fail_number);

    while (n > 0)
        if (atomic_compare_exchange_weak(&fail_number, &n, n - 1)) {
            if (n == 1)
                errno = atomic_load(&fail_errno);
            return n == 1;
        }
    return false;
}

static bool is_link(const char *path)
{
    struct stat info;

    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

kg_status kg_file_fail(struct kg_err *err, const char *path, const char *doing)
{
    int e = errno;
    kg_status code = KG_EIO;

    if (e == ENOENT && is_link(path))
        return kg_fail(err, KG_EIO, "%s: cannot %s: %s (a link that leads nowhere)", path,
                       doing, strerror(e));
    if (e == ENOENT || e == ENOTDIR)
        code = KG_ENOTFOUND;
    if (e == ENOSPC || e == EDQUOT)
        code = KG_ENOSPACE;
    if (e == ENOMEM)
        code = KG_ENOMEM;
    return kg_fail(err, code, "%s: cannot %s: %s", path, doing, strerror(e));
}

/* For a pipe, a terminal, or a folder of some file systems there is nothing to sync, and
 * fsync fails with EINVAL. */
int kg_file_sync_fd(int fd)
{
    if (kg_file_fails())
        return -1;
    if (atomic_load(&skip_syncs))
        return 0;
    return fsync(fd) == 0 || errno == EINVAL ? 0 : -1;
}
