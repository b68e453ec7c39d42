/* What file.c and dir.c share: the failure switch, errno as a status, and syncing a
 * folder. */
#ifndef KG_BASE_FILE_INTERNAL_H
#define KG_BASE_FILE_INTERNAL_H

#include "base/status.h"

#include <stdbool.h>

/* True, with errno set, for the one request that kg_file_fail_at named. */
bool kg_file_fails(void);

/* fsync, under both switches of the tests.   returns 0 or -1 */
int kg_file_sync_fd(int fd);

/* "PATH: cannot DOING: TEXT" for errno.   returns NOTFOUND, ENOSPACE, ENOMEM or EIO */
kg_status kg_file_fail(struct kg_err *err, const char *path, const char *doing);

/* fsync a folder / the folder that holds path: a rename in it then survives a crash. */
kg_status kg_file_sync_dir(const char *path, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_file_sync_parent(const char *path, struct kg_err *err) KG_MUST_CHECK;

#endif
