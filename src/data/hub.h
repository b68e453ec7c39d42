/* Reads HuggingFace's cache, in the folder that their libraries use. net/hub.h fills it.
 *
 *   ROOT/models--ORG--NAME/refs/main               commit of "main" at the last fetch
 *   ROOT/models--ORG--NAME/snapshots/COMMIT/FILE   a link to the file
 *   ROOT/models--ORG--NAME/blobs/HASH              with its bytes
 *
 * Data sets use datasets--ORG--NAME; a model without ORG ("gpt2") uses models--NAME. ROOT
 * is HF_HUB_CACHE, else HUGGINGFACE_HUB_CACHE, else HF_HOME/hub, else
 * XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. Environment variables
 * decide what kedge reads only for the hub, whose cache kedge shares with other programs.
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
    char id[KG_HUB_ID_MAX + 1];             /* ORG/NAME; a model may be just NAME */
    char revision[KG_HUB_REVISION_MAX + 1]; /* branch, tag or commit; default "main" */
    bool revised;                           /* a revision was given */
    char file[KG_HUB_FILE_MAX + 1];         /* "": the whole repository */
};

/* Whether text has the form [ORG/]NAME[@REVISION]. A NAME like x.json needs its ORG. */
bool kg_hub_is_id(const char *text);
/* Whether text begins with hf://, as files of data sets do. */
bool kg_hub_is_address(const char *text);
/* Parses ORG/NAME[@REVISION] of this kind (a model may omit ORG/), or a data set's
 * hf://[datasets/]ORG/NAME[@REVISION][/FILE].
 * errors: EINVAL, with what was expected */
kg_status kg_hub_name_read(struct kg_hub_name *name, const char *text,
                           enum kg_hub_kind kind, struct kg_err *err) KG_MUST_CHECK;
/* Whether file is a safe path inside a repository: relative, without control characters,
 * backslashes, and the parts "..", "." and "". */
bool kg_hub_is_inside(const char *file);
/* Whether text is 40 lower-case hexadecimal digits. */
bool kg_hub_is_commit(const char *text);

/* An environment variable; NULL if unset or empty.   borrowed */
const char *kg_hub_variable(const char *name);
/* HF_HOME or its default.   errors: ENOTFOUND (no HOME), EINVAL (path too long) */
kg_status kg_hub_home(struct kg_path *out, struct kg_err *err) KG_MUST_CHECK;
/* ROOT.   errors: the same */
kg_status kg_hub_root(struct kg_path *out, struct kg_err *err) KG_MUST_CHECK;
/* ROOT/models--ORG--NAME, or models--NAME.   errors: the same */
kg_status kg_hub_folder(struct kg_path *out, const struct kg_hub_name *name,
                        struct kg_err *err) KG_MUST_CHECK;
/* The commit that refs/ has for the revision, or the revision if it is a commit; "" if
 * none.   errors: EFORMAT (the file in refs/ has no commit), EIO, those of kg_hub_root */
kg_status kg_hub_commit(char commit[41], const struct kg_hub_name *name,
                        struct kg_err *err) KG_MUST_CHECK;

struct kg_hub_found {
    bool cached; /* path is in the cache; false: path is the text unchanged */
    struct kg_path path;
    /* if cached: the name with its commit, ORG/NAME@COMMIT, hf://ORG/NAME@COMMIT/FILE */
    char pinned[KG_HUB_ID_MAX + KG_HUB_FILE_MAX + 64];
};
/* Finds a model: an existing file or folder of that name, else [ORG/]NAME[@REVISION] in
 * the cache. Any other text is returned unchanged; opening it reports the error.
 * errors: ENOTFOUND, with the `kedge pull` that fetches it; EFORMAT (a link that leaves
 * the cache or is dangling) */
kg_status kg_hub_find_model(struct kg_hub_found *out, const char *text,
                            struct kg_err *err) KG_MUST_CHECK;
/* kg_hub_find_model for a data set's file, hf://ORG/NAME[@REVISION]/FILE; all other text
 * is returned unchanged.   errors: also EINVAL (no FILE) */
kg_status kg_hub_find_file(struct kg_hub_found *out, const char *text,
                           struct kg_err *err) KG_MUST_CHECK;

/* Whether folder dir is a model's snapshot in a cache; if so, sets id to [ORG/]NAME and
 * commit to the folder's name. */
bool kg_hub_is_snapshot(char id[KG_HUB_ID_MAX + 1], char commit[41], const char *dir);

#endif
