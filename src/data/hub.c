/* Finds a snapshot by its name.
 *
 * A name is parsed before it becomes part of a path, and its parts contain no character
 * with a meaning in paths, so a name cannot lead out of its own folder. Others wrote the
 * folder's contents, so a link is followed only if it ends inside the cache.
 */
#include "data/hub.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REF_BYTES = 4096, MAX_DEPTH = 8 };

static const char prefix[] = "hf://";
static const char *const folders[] = {
    [KG_HUB_MODEL] = "models", [KG_HUB_DATA] = "datasets"};
static const char *const pull_flags[] = {
    [KG_HUB_MODEL] = "", [KG_HUB_DATA] = "--data-set "};

/* ---- names ---- */

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           c == '_';
}

/* A part of an id. Two dashes in it would make the folder's name ambiguous. */
static bool is_part(const char *text, size_t n)
{
    if (n == 0 || !is_word(text[0]) || !is_word(text[n - 1]))
        return false;
    for (size_t i = 1; i < n; i++)
        if (!is_word(text[i]) && (!kg_char_in(".-", text[i]) || text[i] == text[i - 1]))
            return false;
    return true;
}

bool kg_hub_is_inside(const char *file)
{
    const char *at = file;

    if (strlen(file) > KG_HUB_FILE_MAX)
        return false;
    for (const char *p = file; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127 || *p == '\\')
            return false;
    while (true) {
        size_t n = strcspn(at, "/");

        if (n == 0 || (n == 1 && at[0] == '.') || (n == 2 && strncmp(at, "..", 2) == 0))
            return false;
        if (!at[n])
            return true;
        at += n + 1;
    }
}

bool kg_hub_is_commit(const char *text)
{
    return strlen(text) == 40 && strspn(text, "0123456789abcdef") == 40;
}

static bool is_revision(const char *text)
{
    for (const char *p = text; *p; p++)
        if (!is_word(*p) && !kg_char_in(".-/+", *p))
            return false;
    return *text != '-' && strlen(text) <= KG_HUB_REVISION_MAX && kg_hub_is_inside(text);
}

/* Bytes of ORG/NAME, or of NAME, at the start of the text. */
static size_t id_bytes(const char *text)
{
    size_t org = strcspn(text, "/@");

    return text[org] == '/' ? org + 1 + strcspn(text + org + 1, "/@") : org;
}

/* Such a name is a mistyped path of a file, not a model. */
static bool is_file_name(const char *text, size_t n)
{
    static const char *const ends[] = {".safetensors", ".json", ".jsonl", ".yaml",
                                       ".gguf",        ".bin",  ".model"};

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t end = strlen(ends[i]);

        if (n > end && memcmp(text + n - end, ends[i], end) == 0)
            return true;
    }
    return false;
}

/* The hub's oldest models have no ORG, also in the cache. Data sets must have it, because
 * the part after a data set's name is a file. */
static bool is_name(const char *text, size_t n, enum kg_hub_kind kind)
{
    const char *slash = memchr(text, '/', n);

    if (n > KG_HUB_ID_MAX || (!slash && kind == KG_HUB_DATA))
        return false;
    return slash ? is_part(text, (size_t)(slash - text)) &&
                       is_part(slash + 1, n - (size_t)(slash + 1 - text))
                 : is_part(text, n) && !is_file_name(text, n);
}

bool kg_hub_is_id(const char *text)
{
    size_t n = id_bytes(text);

    return is_name(text, n, KG_HUB_MODEL) &&
           (!text[n] || (text[n] == '@' && is_revision(text + n + 1)));
}

bool kg_hub_is_address(const char *text)
{
    return strncmp(text, prefix, sizeof prefix - 1) == 0;
}

/* A revision before a file has no slash, except the hub's refs/pr/1 and
 * refs/convert/parquet. */
static size_t revision_bytes(const char *text)
{
    size_t n = strcspn(text, "/");

    for (int more = strncmp(text, "refs/", 5) == 0 ? 2 : 0; more > 0 && text[n]; more--)
        n += 1 + strcspn(text + n + 1, "/");
    return n;
}

static kg_status take_revision(struct kg_hub_name *name, const char *text, size_t n,
                               const char *whole, struct kg_err *err)
{
    name->revised = true;
    snprintf(name->revision, sizeof name->revision, "%.*s",
             (int)(n > INT_MAX ? INT_MAX : n), text);
    if (n <= KG_HUB_REVISION_MAX && is_revision(name->revision))
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "%.300s: expected a branch, a tag or a commit after @, found '%.100s'",
                   whole, text);
}

static kg_status take_file(struct kg_hub_name *name, const char *text, const char *whole,
                           struct kg_err *err)
{
    if (!kg_hub_is_inside(text))
        return kg_fail(
            err, KG_EINVAL,
            "%.300s: expected a path inside the data set after its name, found '%.200s'",
            whole, text);
    snprintf(name->file, sizeof name->file, "%s", text);
    return KG_OK;
}

kg_status kg_hub_name_read(struct kg_hub_name *name, const char *text,
                           enum kg_hub_kind kind, struct kg_err *err)
{
    const char *at = text;
    bool address = kg_hub_is_address(text);

    *name = (struct kg_hub_name){.kind = address ? KG_HUB_DATA : kind,
                                 .revision = "main"};
    if (address)
        at += sizeof prefix - 1;
    if (address && strncmp(at, "datasets/", 9) == 0)
        at += 9;
    size_t n = id_bytes(at);
    if (!is_name(at, n, name->kind) || (!address && at[n] == '/'))
        return kg_fail(
            err, KG_EINVAL,
            "%.300s: expected %s (letters, digits, '.', '_', '-'), found '%.200s'", text,
            address                     ? "hf://ORG/NAME[@REVISION]/FILE"
            : name->kind == KG_HUB_DATA ? "ORG/NAME[@REVISION]"
                                        : "[ORG/]NAME[@REVISION]",
            at);
    memcpy(name->id, at, n);
    at += n;
    if (*at == '@') {
        n = address ? revision_bytes(at + 1) : strlen(at + 1);
        KG_TRY(take_revision(name, at + 1, n, text, err));
        at += n + 1;
    }
    return *at == '/' ? take_file(name, at + 1, text, err) : KG_OK;
}

/* ---- where the cache is ---- */

const char *kg_hub_variable(const char *name)
{
    const char *value = getenv(name);

    return value && *value ? value : NULL;
}

/* Expands a leading ~, which a variable has if no shell expanded it. */
static kg_status expand(struct kg_path *out, const char *dir, const char *below,
                        struct kg_err *err)
{
    const char *home = kg_hub_variable("HOME");
    bool tilde = dir[0] == '~' && (dir[1] == '/' || !dir[1]);
    int n;

    if (tilde && !home)
        return kg_fail(
            err, KG_ENOTFOUND,
            "the hub's cache: expected HF_HOME or HOME in the environment, found "
            "neither");
    n = snprintf(out->text, sizeof out->text, "%s%s%s", tilde ? home : "", dir + tilde,
                 below);
    if (n >= 0 && (size_t)n < sizeof out->text / 2)
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "the hub's cache: expected a shorter path, found %.100s..", dir);
}

kg_status kg_hub_home(struct kg_path *out, struct kg_err *err)
{
    const char *home = kg_hub_variable("HF_HOME"),
               *xdg = kg_hub_variable("XDG_CACHE_HOME");

    if (home)
        return expand(out, home, "", err);
    return xdg ? expand(out, xdg, "/huggingface", err)
               : expand(out, "~/.cache/huggingface", "", err);
}

kg_status kg_hub_root(struct kg_path *out, struct kg_err *err)
{
    const char *cache = kg_hub_variable("HF_HUB_CACHE");
    struct kg_path home;

    if (!cache)
        cache = kg_hub_variable("HUGGINGFACE_HUB_CACHE");
    if (cache)
        return expand(out, cache, "", err);
    KG_TRY(kg_hub_home(&home, err));
    *out = kg_path_in(home.text, "hub");
    return KG_OK;
}

kg_status kg_hub_folder(struct kg_path *out, const struct kg_hub_name *name,
                        struct kg_err *err)
{
    char own[KG_HUB_ID_MAX + 32];
    const int org = (int)strcspn(name->id, "/");
    struct kg_path root;

    KG_TRY(kg_hub_root(&root, err));
    snprintf(own, sizeof own, "%s--%.*s%s%s", folders[name->kind], org, name->id,
             name->id[org] ? "--" : "", name->id + org + (name->id[org] == '/'));
    *out = kg_path_in(root.text, own);
    return KG_OK;
}

bool kg_hub_is_snapshot(char id[KG_HUB_ID_MAX + 1], char commit[41], const char *dir)
{
    char real[PATH_MAX];
    char *up, *own, *org;

    if (!realpath(dir, real) || !(up = strrchr(real, '/')) || !kg_hub_is_commit(up + 1))
        return false;
    memcpy(commit, up + 1, 41);
    *up = '\0';
    up = strrchr(real, '/');
    if (!up || strcmp(up, "/snapshots") != 0)
        return false;
    *up = '\0';
    own = strrchr(real, '/');
    if (!own || strncmp(own, "/models--", 9) != 0)
        return false;
    org = own + 9;
    up = strstr(org, "--");
    snprintf(id, KG_HUB_ID_MAX + 1, "%.*s%s%s", (int)(up ? up - org : KG_HUB_ID_MAX), org,
             up ? "/" : "", up ? up + 2 : "");
    return kg_hub_is_id(id);
}

/* ---- finding ---- */

kg_status kg_hub_commit(char commit[41], const struct kg_hub_name *name,
                        struct kg_err *err)
{
    struct kg_path folder, path;
    struct kg_str text = {0};

    commit[0] = '\0';
    if (kg_hub_is_commit(name->revision)) {
        memcpy(commit, name->revision, 41);
        return KG_OK;
    }
    KG_TRY(kg_hub_folder(&folder, name, err));
    path = kg_path_in(kg_path_in(folder.text, "refs").text, name->revision);
    if (!kg_file_exists(path.text))
        return KG_OK;
    kg_status status = kg_file_read(&text, path.text, MAX_REF_BYTES, err);
    while (text.len > 0 && kg_char_in(" \r\n", text.data[text.len - 1]))
        text.data[--text.len] = '\0';
    if (status == KG_OK && !kg_hub_is_commit(kg_str_text(&text)))
        status = kg_fail(err, KG_EFORMAT,
                         "%s: expected a commit of 40 hexadecimal digits, found '%.80s'",
                         path.text, kg_str_text(&text));
    if (status == KG_OK)
        memcpy(commit, text.data, 41);
    kg_str_release(&text);
    return status;
}

static void put_name(char *out, size_t size, const struct kg_hub_name *name,
                     const char *revision)
{
    snprintf(out, size, "%s%s%s%s%s%s", *name->file ? prefix : "", name->id,
             *revision ? "@" : "", revision, *name->file ? "/" : "", name->file);
}

static kg_status not_there(const struct kg_hub_name *name, const char *looked_at,
                           struct kg_err *err)
{
    const char *revision = name->revised ? name->revision : "";
    struct kg_path root;
    char pull[sizeof(struct kg_hub_name)];

    KG_TRY(kg_hub_root(&root, err));
    put_name(pull, sizeof pull, name, revision);
    return kg_fail(
        err, KG_ENOTFOUND, "%s: expected %s (%.200s); to fetch it: kedge pull %s%s", pull,
        name->kind == KG_HUB_MODEL
            ? "a folder of that name, or that model in the hub's cache, found neither"
            : "that data set in the hub's cache, found none",
        looked_at ? looked_at : root.text, *name->file ? "" : pull_flags[name->kind],
        pull);
}

/* Checks that path, with all its links followed, is below root. */
static kg_status check_inside(const char *path, const char *root, struct kg_err *err)
{
    char real[PATH_MAX], top[PATH_MAX];

    if (!realpath(root, top) || !realpath(path, real)) {
        if (errno != ENOENT && errno != ENOTDIR)
            return kg_fail(err, KG_EIO, "%.500s: cannot follow its links: %s", path,
                           strerror(errno));
        return kg_fail(err, KG_EFORMAT,
                       "%.500s: expected a file of the hub's cache, found a dangling "
                       "link; kedge pull fetches it again",
                       path);
    }
    size_t n = strlen(top);
    if (strncmp(real, top, n) == 0 && (real[n] == '/' || n == 1))
        return KG_OK;
    return kg_fail(
        err, KG_EFORMAT,
        "%.300s: expected a link to a file of the hub's cache, found one that leaves "
        "it, to %.200s",
        path, real);
}

/* Checks all files in the folder, down to `depth` levels. */
static kg_status check_links(const char *dir, const char *root, int depth,
                             struct kg_err *err)
{
    char **names;
    size_t n;

    KG_TRY(check_inside(dir, root, err));
    KG_TRY(kg_file_list(&names, &n, dir, err));
    kg_status status = KG_OK;
    for (size_t i = 0; i < n && status == KG_OK; i++) {
        struct kg_path path = kg_path_in(dir, names[i]);

        status = check_inside(path.text, root, err);
        if (status == KG_OK && depth > 1 && kg_file_is_dir(path.text))
            status = check_links(path.text, root, depth - 1, err);
    }
    kg_file_names_free(names, n);
    return status;
}

static kg_status find(struct kg_hub_found *out, const struct kg_hub_name *name,
                      struct kg_err *err)
{
    struct kg_path root, folder, snapshot;
    char commit[41];

    KG_TRY(kg_hub_root(&root, err));
    KG_TRY(kg_hub_folder(&folder, name, err));
    KG_TRY(kg_hub_commit(commit, name, err));
    if (!commit[0])
        return not_there(name, NULL, err);
    snapshot = kg_path_in(kg_path_in(folder.text, "snapshots").text, commit);
    if (!kg_file_exists(snapshot.text))
        return not_there(name, snapshot.text, err);
    out->cached = true;
    put_name(out->pinned, sizeof out->pinned, name, commit);
    out->path = *name->file ? kg_path_in(snapshot.text, name->file) : snapshot;
    if (!*name->file)
        return check_links(snapshot.text, root.text, MAX_DEPTH, err);
    if (!kg_file_exists(out->path.text))
        return not_there(name, out->path.text, err);
    return check_inside(out->path.text, root.text, err);
}

static void leave(struct kg_hub_found *out, const char *text)
{
    memset(out, 0, sizeof *out);
    snprintf(out->path.text, sizeof out->path.text, "%s", text);
}

kg_status kg_hub_find_model(struct kg_hub_found *out, const char *text,
                            struct kg_err *err)
{
    struct kg_hub_name name;

    leave(out, text);
    if (kg_file_exists(text) || !kg_hub_is_id(text))
        return KG_OK;
    KG_TRY(kg_hub_name_read(&name, text, KG_HUB_MODEL, err));
    return find(out, &name, err);
}

kg_status kg_hub_find_file(struct kg_hub_found *out, const char *text, struct kg_err *err)
{
    struct kg_hub_name name;

    leave(out, text);
    if (!kg_hub_is_address(text))
        return KG_OK;
    KG_TRY(kg_hub_name_read(&name, text, KG_HUB_DATA, err));
    if (!*name.file)
        return kg_fail(
            err, KG_EINVAL,
            "%.300s: expected a file after the data set's name: hf://ORG/NAME/FILE",
            text);
    return find(out, &name, err);
}
