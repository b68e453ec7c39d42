/* Each function does nothing if an earlier one found the file. Otherwise it adds its
 * folder to the list for the error, and searches it. */
#define _GNU_SOURCE
#include "base/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void list_place(struct kg_library_search *s, const char *place)
{
    const size_t used = strlen(s->places);

    snprintf(s->places + used, sizeof s->places - used, "%s%s", used ? ", " : "", place);
}

void kg_library_look_at(struct kg_library_search *s, const char *folder)
{
    if (s->found)
        return;
    list_place(s, folder);
    snprintf(s->path, PATH_MAX, "%s/%s", folder, s->file);
    s->found = access(s->path, F_OK) == 0;
}

void kg_library_look_in(struct kg_library_search *s, const char *folders)
{
    char pattern[PATH_MAX];
    glob_t files;

    if (s->found)
        return;
    list_place(s, folders);
    if (snprintf(pattern, sizeof pattern, "%s/%s", folders, s->file) >= PATH_MAX)
        return;
    if (glob(pattern, 0, NULL, &files) == 0) {
        s->found = true;
        snprintf(s->path, PATH_MAX, "%s", files.gl_pathv[0]);
    }
    globfree(&files);
}

void kg_library_look_below(struct kg_library_search *s, const char *root,
                           const char *folders)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof path, "%s/%s", root, folders) < PATH_MAX)
        kg_library_look_in(s, path);
}

void kg_library_look_as_loader(struct kg_library_search *s)
{
    struct link_map *file;

    if (s->found)
        return;
    list_place(s, "the loader's path");
    void *there = dlopen(s->file, RTLD_LAZY | RTLD_LOCAL);
    if (!there)
        return;
    s->found = dlinfo(there, RTLD_DI_LINKMAP, &file) == 0;
    if (s->found)
        snprintf(s->path, PATH_MAX, "%s", file->l_name);
    dlclose(there);
}

void kg_library_look_among_wheels(struct kg_library_search *s, const char *folder)
{
    const char *environment = getenv("VIRTUAL_ENV");
    char path[PATH_MAX];

    snprintf(path, sizeof path, "lib/python3*/site-packages/%s", folder);
    if (environment && *environment)
        kg_library_look_below(s, environment, path);
    kg_library_look_below(s, "/usr/local/lib/python3*/*-packages", folder);
    kg_library_look_below(s, "/usr/lib/python3/dist-packages", folder);
}

/* ---- the running program ---- */

kg_status kg_program_path(char path[KG_PROGRAM_PATH], struct kg_err *err)
{
    const ssize_t bytes = readlink("/proc/self/exe", path, KG_PROGRAM_PATH - 1);

    path[bytes > 0 ? bytes : 0] = '\0';
    if (!strrchr(path, '/'))
        return kg_fail(err, KG_EIO,
                       "/proc/self/exe: expected the program's path, found none; is "
                       "/proc mounted?");
    return KG_OK;
}

kg_status kg_program_folders(struct kg_program_folders *f, struct kg_err *err)
{
    static const char *const below[KG_PROGRAM_FOLDERS] = {"", "/../lib/kedge"};
    char own[KG_PROGRAM_PATH];

    KG_TRY(kg_program_path(own, err));
    *strrchr(own, '/') = '\0';
    f->n = KG_PROGRAM_FOLDERS;
    for (size_t i = 0; i < f->n; i++) {
        snprintf(f->text[i], PATH_MAX, "%s%s", own, below[i]);
        f->list[i] = f->text[i];
    }
    return KG_OK;
}
