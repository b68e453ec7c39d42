/* Fuzz target: an accepted list of the hub has a commit, digests that can be file names,
 * and no path outside a snapshot; an accepted name can be a folder's name. */
#include "net/hub_internal.h"

#include <stdlib.h>
#include <string.h>

int kg_fuzz_hub_list(const uint8_t *bytes, size_t n);

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_list(const struct kg_hub_list *list)
{
    check(kg_hub_is_commit(list->commit));
    for (size_t i = 0; i < list->n; i++) {
        const struct kg_hub_file *f = &list->files[i];

        check(f->path[0] != '/' && !strstr(f->path, "/../") &&
              strncmp(f->path, "../", 3) != 0);
        check(strlen(f->digest) == (f->kind == KG_SHA1 ? 40 : 64));
        check(strspn(f->digest, "0123456789abcdef") == strlen(f->digest));
    }
}

/* Reads the bytes up to a NUL as a name of each kind. */
static void try_name(const uint8_t *bytes, size_t n)
{
    char text[256];
    struct kg_hub_name name;
    struct kg_err err;

    n = n < sizeof text - 1 ? n : sizeof text - 1;
    memcpy(text, bytes, n);
    text[n] = '\0';
    if (kg_hub_name_read(&name, text, KG_HUB_MODEL, &err) != KG_OK)
        return;
    check(!strstr(name.id, "..") && strchr(name.id, '/') == strrchr(name.id, '/'));
    check(!strstr(name.id, "--") && name.id[0] != '/');
    check(kg_hub_is_inside(name.revision));
    check(!name.file[0] || kg_hub_is_inside(name.file));
}

int kg_fuzz_hub_list(const uint8_t *bytes, size_t n)
{
    struct kg_hub_list list;
    struct kg_err err;

    try_name(bytes, n);
    if (kg_hub_list_parse(&list, (const char *)bytes, n, "fuzz", &err) != KG_OK)
        return 0;
    check_list(&list);
    kg_hub_list_release(&list);
    return 0;
}
