/* Finds a shared library that kedge loads at run time. Folders are searched in order and
 * listed in the error if the file is in none. The search stops at the first file found,
 * even if that is broken. */
#ifndef KG_BASE_LIBRARY_H
#define KG_BASE_LIBRARY_H

#include "base/status.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* Set .file and .path; everything else must be zero. */
struct kg_library_search {
    const char *file; /* "libnccl.so.2", borrowed */
    char *path;       /* (PATH_MAX) borrowed; the path of the file if `found` */
    bool found;
    char places[KG_ERR_MESSAGE_BYTES]; /* searched so far: "/a, /b" */
};

/* Looks in one folder; its name is not a pattern. */
void kg_library_look_at(struct kg_library_search *s, const char *folder);
/* Looks in all folders that a glob pattern matches; _below: pattern ROOT/FOLDERS. */
void kg_library_look_in(struct kg_library_search *s, const char *folders);
void kg_library_look_below(struct kg_library_search *s, const char *root,
                           const char *folders);
/* Looks where the dynamic loader looks (dlopen of the name alone). */
void kg_library_look_as_loader(struct kg_library_search *s);
/* Looks in installed Python packages, those of $VIRTUAL_ENV first. folder:
 * "nvidia/nccl/lib" */
void kg_library_look_among_wheels(struct kg_library_search *s, const char *folder);

/* The program's own folders. Its private libraries are loaded only from there. */

enum { KG_PROGRAM_FOLDERS = 2, KG_PROGRAM_PATH = PATH_MAX / 2 };

struct kg_program_folders {
    char text[KG_PROGRAM_FOLDERS][PATH_MAX];
    const char *list[KG_PROGRAM_FOLDERS];
    size_t n;
};

/* The absolute path of the executable.   errors: EIO */
kg_status kg_program_path(char path[KG_PROGRAM_PATH], struct kg_err *err) KG_MUST_CHECK;

/* The folder of the executable, and ../lib/kedge of an installed one.   errors: EIO */
kg_status kg_program_folders(struct kg_program_folders *f,
                             struct kg_err *err) KG_MUST_CHECK;

#endif
