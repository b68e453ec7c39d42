/* Where the program stands is asked of the system: an installation may be moved whole.
 *
 * No path is compiled in. A name that is no file here is looked for in share/kedge
 * beside the folder that the running program is in, and that it was found there is
 * said, because a recipe that is not one's own should not be taken for it. An absolute
 * path is never looked for elsewhere.
 */
#define _GNU_SOURCE /* readlink */
#include "cli/shared.h"

#include "base/file.h"
#include "base/log.h"
#include "base/str.h"

#include <string.h>
#include <unistd.h>

enum { MAX_PATH_BYTES = 4096 };

const char *kg_cli_shared(char **own, const char *path, struct kg_err *err)
{
    char program[MAX_PATH_BYTES];
    struct kg_str found = {0};
    ssize_t n;
    char *bin;

    *own = NULL;
    if (*path == '/' || kg_file_exists(path))
        return path;
    n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0)
        return path;
    program[n] = '\0';
    bin = strrchr(program, '/');
    if (bin == NULL)
        return path;
    *bin = '\0';
    if (kg_str_printf(&found, err, "%s/../share/kedge/%s", program, path) != KG_OK)
        return NULL;
    if (!kg_file_exists(found.data)) {
        kg_str_release(&found);
        return path;
    }
    *own = kg_str_take(&found, err);
    if (*own)
        kg_log_info("%s: the installed one, %s", path, *own);
    return *own;
}
