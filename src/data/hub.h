/* The cache that HuggingFace's libraries keep on the disk, found as they find it. Reads
 * alone; net/hub_pull.h fills it.
 *
 *   ROOT/models--ORG--NAME/refs/main               the commit that "main" was fetched as
 *   ROOT/models--ORG--NAME/snapshots/COMMIT/FILE   a link to
 *   ROOT/models--ORG--NAME/blobs/HASH              its bytes
 *
 * and datasets--ORG--NAME of data sets likewise; models--NAME of a model that is named
 * without ORG ("gpt2").
 * ROOT is HF_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else
 * ~/.cache/huggingface/hub. These, and what net/hub.h names, are the only variables of
 * the environment that decide what kedge reads: a cache that two programs share is where
 * both look for it.
 */
#ifndef KG_DATA_HUB_H
#define KG_DATA_HUB_H

#include "base/file.h"
#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

enum kg_hub_kind { KG_HUB_MODEL, KG_HUB_DATA };

enum { KG_HUB_ID_MAX = 96, KG_HUB_REVISION_MAX = 200, KG_HUB_FILE_MAX = 1024 };

struct kg_hub_name {
    enum kg_hub_kind kind;
    char id[KG_HUB_ID_MAX + 1]; /* ORG/NAME; NAME of a model */
    char
        revision[KG_HUB_REVISION_MAX + 1]; /* branch, tag or commit; "main": none given */
    bool revised;                          /* one was given */
    char file[KG_HUB_FILE_MAX + 1];        /* "": the whole of it */
};

/* Whether the text has the form [ORG/]NAME[@REVISION]. */
bool kg_hub_is_id(const char *text);
/* Whether it begins with hf://, as files of data sets do. */
bool kg_hub_is_address(const char *text);
/* ORG/NAME[@REVISION] of that kind, of a model without ORG too, or
 * hf://[datasets/]ORG/NAME[@REVISION][/FILE], which is a data set.
 * errors: EINVAL, with what is wrong in it */
kg_status kg_hub_name_read(struct kg_hub_name *name, const char *text,
                           enum kg_hub_kind kind, struct kg_err *err) KG_MUST_CHECK;
/* A path inside a repository: relative, without "..", "." or empty parts, printable. */
bool kg_hub_is_inside(const char *file);
/* 40 hexadecimal digits. */
bool kg_hub_is_commit(const char *text);

/* A variable of the environment, NULL where it is unset or empty.   borrowed */
const char *kg_hub_variable(const char *name);
/* The folder of HF_HOME, or what stands for it.   errors: ENOTFOUND (no HOME), EINVAL */
kg_status kg_hub_home(struct kg_path *out, struct kg_err *err) KG_MUST_CHECK;
/* ROOT.   errors: the same */
kg_status kg_hub_root(struct kg_path *out, struct kg_err *err) KG_MUST_CHECK;
/* ROOT/models--ORG--NAME, or models--NAME.   errors: the same */
kg_status kg_hub_folder(struct kg_path *out, const struct kg_hub_name *name,
                        struct kg_err *err) KG_MUST_CHECK;
/* What refs/ says of the revision, which may be a commit itself; "" where it says
 * nothing.   errors: EFORMAT (no commit in the file), EIO */
kg_status kg_hub_commit(char commit[41], const struct kg_hub_name *name,
                        struct kg_err *err) KG_MUST_CHECK;

struct kg_hub_found {
    bool cached; /* path is in the cache; else it is the text as it came */
    struct kg_path path;
    /* where cached: the name with the commit that it stood for, ORG/NAME@COMMIT */
    char pinned[KG_HUB_ID_MAX + KG_HUB_FILE_MAX + 64];
};
/* The folder of a model: a folder of that name, else [ORG/]NAME[@REVISION] in the cache.
 * What has not that form is left as it is, for whoever opens it.
 * errors: NOTFOUND, with the `kedge pull` that fetches it; EFORMAT (a link that leaves
 * the cache or leads nowhere) */
kg_status kg_hub_find_model(struct kg_hub_found *out, const char *text,
                            struct kg_err *err) KG_MUST_CHECK;
/* The same of a file of a data set, hf://ORG/NAME[@REVISION]/FILE. */
kg_status kg_hub_find_file(struct kg_hub_found *out, const char *text,
                           struct kg_err *err) KG_MUST_CHECK;

/* Whether a folder is a snapshot in a cache, by its path: id becomes [ORG/]NAME, commit
 * the folder's name. */
bool kg_hub_is_snapshot(char id[KG_HUB_ID_MAX + 1], char commit[41], const char *dir);

#endif
