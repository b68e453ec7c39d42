/* Where the program itself is: libraries that belong to it are found by their place
 * alone.
 */
#ifndef KG_BASE_PROGRAM_H
#define KG_BASE_PROGRAM_H

#include "base/status.h"

#include <limits.h>
#include <stddef.h>

enum { KG_PROGRAM_FOLDERS = 2 };

struct kg_program_folders {
    char text[KG_PROGRAM_FOLDERS][PATH_MAX];
    const char *list[KG_PROGRAM_FOLDERS];
    size_t n;
};

/* The program's own folder, and ../lib/kedge of an installed one.   errors: EIO */
kg_status kg_program_folders(struct kg_program_folders *f,
                             struct kg_err *err) KG_MUST_CHECK;

#endif
