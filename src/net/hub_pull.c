/* One pull: the list, the files, then links and ref.
 *
 * Links are made after the last file, and the ref is written after the last link: so a
 * reader of the cache finds either the previous snapshot or this one, complete.
 */
#include "net/hub_internal.h"

#include <stdio.h>
#include <string.h>

/* ---- the snapshot ---- */

/* Makes the folder that contains `path`. */
static kg_status make_folder_of(const char *path, struct kg_err *err)
{
    struct kg_path folder;

    snprintf(folder.text, sizeof folder.text, "%s", path);
    char *slash = strrchr(folder.text, '/');
    if (slash)
        *slash = '\0';
    return kg_file_make_dirs(folder.text, err);
}

/* SNAPSHOT/a/b -> ../../../blobs/DIGEST */
static kg_status make_link(const char *snapshot, const struct kg_hub_file *file,
                           struct kg_err *err)
{
    struct kg_path path = kg_path_in(snapshot, file->path);
    struct kg_str target = {0};
    kg_status status = make_folder_of(path.text, err);

    for (const char *p = file->path; p && status == KG_OK; p = strchr(p + 1, '/'))
        status = kg_str_puts(&target, "../", err);
    if (status == KG_OK)
        status = kg_str_printf(&target, err, "../blobs/%s", file->digest);
    if (status == KG_OK)
        status = kg_file_link(target.data, path.text, err);
    kg_str_release(&target);
    return status;
}

static kg_status make_snapshot(struct kg_hub_pulled *out, const struct kg_hub_list *list,
                               const struct kg_hub_name *name, const char *folder,
                               struct kg_err *err)
{
    out->dir = kg_path_in(kg_path_in(folder, "snapshots").text, list->commit);
    memcpy(out->commit, list->commit, sizeof out->commit);
    for (size_t i = 0; i < list->n; i++) {
        if (!list->files[i].wanted)
            continue;
        KG_TRY(make_link(out->dir.text, &list->files[i], err));
        out->files++;
        out->bytes += list->files[i].bytes;
    }
    struct kg_path path = kg_path_in(kg_path_in(folder, "refs").text, name->revision);

    if (kg_hub_is_commit(name->revision))
        return KG_OK;
    KG_TRY(make_folder_of(path.text, err));
    return kg_file_write_atomic(path.text, list->commit, strlen(list->commit), err);
}

/* ---- the pull ---- */

/* Only one process at a time fills a repository's folder: .locks/NAME/kedge.lock, next to
 * the locks of HuggingFace's libraries. */
static kg_status lock(struct kg_file_lock *l, const char *folder, struct kg_err *err)
{
    struct kg_path root, path;

    KG_TRY(kg_hub_root(&root, err));
    path = kg_path_in(kg_path_in(root.text, ".locks").text, strrchr(folder, '/') + 1);
    path = kg_path_in(path.text, "kedge.lock");
    KG_TRY(make_folder_of(path.text, err));
    return kg_file_lock_take(l, path.text, err);
}

/* A revision that is a commit must be the list's; a branch or tag may be any commit. */
static kg_status check_commit(const struct kg_hub_list *list,
                              const struct kg_hub_name *name, struct kg_err *err)
{
    if (!kg_hub_is_commit(name->revision) || strcmp(name->revision, list->commit) == 0)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT, "%s: expected the commit %s, found %s in the list",
                   name->id, name->revision, list->commit);
}

static kg_status pull(struct kg_hub_pulled *out, const struct kg_hub_site *site,
                      const struct kg_hub_pull_opts *opts, const char *folder,
                      struct kg_err *err)
{
    struct kg_path blobs = kg_path_in(folder, "blobs");
    struct kg_hub_list list;
    kg_status status;

    KG_TRY(kg_hub_list_get(&list, site, opts, err));
    KG_TRY_GOTO(out, check_commit(&list, &opts->name, err));
    KG_TRY_GOTO(out, kg_hub_list_choose(&list, opts, err));
    KG_TRY_GOTO(out, kg_file_make_dirs(blobs.text, err));
    KG_TRY_GOTO(out, kg_hub_fetch(&out->fetched, &list, site, opts, blobs.text, err));
    status = make_snapshot(out, &list, &opts->name, folder, err);
out:
    kg_hub_list_release(&list);
    return status;
}

kg_status kg_hub_pull(struct kg_hub_pulled *out, const struct kg_hub_pull_opts *opts,
                      struct kg_err *err)
{
    struct kg_file_lock held = {0};
    struct kg_hub_site site;
    struct kg_path folder;
    struct kg_err why;

    memset(out, 0, sizeof *out);
    KG_TRY(kg_hub_folder(&folder, &opts->name, err));
    if (kg_file_try_dirs(folder.text, &why) != KG_OK)
        return kg_fail(err, why.code,
                       "%.200s: expected a writable folder, found: %.200s; "
                       "HF_HOME=DIR names another",
                       folder.text, why.message);
    KG_TRY(kg_hub_site_open(&site, err));
    kg_status status = lock(&held, folder.text, err);
    if (status == KG_OK)
        status = pull(out, &site, opts, folder.text, err);
    kg_file_lock_release(&held);
    kg_hub_site_close(&site);
    return status;
}
