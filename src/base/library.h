/* Where a library is that others install and kedge opens when it runs: places are asked
 * one after the other, and listed for who finds none. The first file of the name is the
 * one: where it is broken, no other is tried.
 */
#ifndef KG_BASE_LIBRARY_H
#define KG_BASE_LIBRARY_H

#include "base/status.h"

#include <stdbool.h>

/* {.file, .path}: nowhere was looked yet. */
struct kg_library_search {
    const char *file; /* "libnccl.so.2", borrowed */
    char *path;       /* (PATH_MAX) borrowed; the file, once it is found */
    bool found;
    char places[KG_ERR_MESSAGE_BYTES]; /* asked so far: "/a, /b" */
};

/* In a folder as it was given, whatever characters its name has. */
void kg_library_look_at(struct kg_library_search *s, const char *folder);
/* In a folder, or a pattern of folders. */
void kg_library_look_in(struct kg_library_search *s, const char *folders);
void kg_library_look_below(struct kg_library_search *s, const char *root,
                           const char *folders);
/* By name alone, as programs that are linked against it find it. */
void kg_library_look_as_loader(struct kg_library_search *s);
/* Among Python's packages, of $VIRTUAL_ENV first.   folder: "nvidia/nccl/lib" */
void kg_library_look_among_wheels(struct kg_library_search *s, const char *folder);

#endif
