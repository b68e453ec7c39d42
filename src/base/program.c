/* The folders beside the running program, by what the system says of it. */
#include "base/program.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

kg_status kg_program_folders(struct kg_program_folders *f, struct kg_err *err)
{
    static const char *const below[KG_PROGRAM_FOLDERS] = {"", "/../lib/kedge"};
    char own[PATH_MAX / 2];
    const ssize_t bytes = readlink("/proc/self/exe", own, sizeof own - 1);

    own[bytes > 0 ? bytes : 0] = '\0';
    if (!strrchr(own, '/'))
        return kg_fail(err, KG_EIO,
                       "the program's own folder is unknown: /proc/self/exe cannot be "
                       "read");
    *strrchr(own, '/') = '\0';
    f->n = KG_PROGRAM_FOLDERS;
    for (size_t i = 0; i < f->n; i++) {
        snprintf(f->text[i], PATH_MAX, "%s%s", own, below[i]);
        f->list[i] = f->text[i];
    }
    return KG_OK;
}
