/* Shared by file.c, dir.c and map_guard.c: the failure switch, errno as a status, syncing
 * a folder, and the table of maps. */
#ifndef KG_BASE_FILE_INTERNAL_H
#define KG_BASE_FILE_INTERNAL_H

#include "base/file.h"
#include "base/status.h"

#include <stdbool.h>

/* Returns true and sets errno if this is the file system call that kg_file_fail_at chose
 * to fail. */
bool kg_file_fails(void);

/* Registers and unregisters a map with the guard; a full table leaves it unguarded. */
void kg_map_enter(const struct kg_map *map, const char *path);
void kg_map_leave(const struct kg_map *map);

/* fsync, under both test switches.   returns 0 or -1 */
int kg_file_sync_fd(int fd);

/* "PATH: cannot DOING: TEXT" for errno.   returns ENOTFOUND, ENOSPACE, ENOMEM or EIO */
kg_status kg_file_fail(struct kg_err *err, const char *path, const char *doing);

/* Fsyncs a folder / the folder that holds path: a rename in it then survives a crash. */
kg_status kg_file_sync_dir(const char *path, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_file_sync_parent(const char *path, struct kg_err *err) KG_MUST_CHECK;

#endif
