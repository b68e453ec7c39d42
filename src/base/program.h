/* The program's own folders. Its private libraries are loaded only from there. */
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

/* The folder of the executable, and ../lib/kedge of an installed one.   errors: EIO */
kg_status kg_program_folders(struct kg_program_folders *f,
                             struct kg_err *err) KG_MUST_CHECK;

#endif
