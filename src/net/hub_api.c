/* Gets the hub's list of a repository's files, and explains its errors in one line.
 *
 * The list has every file's length and digest, so later responses of file servers need
 * no trust.
 */
#include "net/hub_internal.h"

#include "base/mem.h"
#include "base/printable.h"
#include "base/signal.h"
#include "data/json.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum {
    MAX_TOKEN_BYTES = 4096,
    MAX_FILES = 1 << 20,
    MAX_LIST_BYTES = 256 << 20,
    MAX_REDIRECTS = 5,
    POLL_MS = 200,
};

/* ---- the site ---- */

/* Shows no URL with '@' (maybe a password), and nothing after '?' (maybe a key). */
static kg_status refuse_endpoint(const char *url, struct kg_err *err)
{
    static const char expected[] =
        "HF_ENDPOINT: expected http://HOST[:PORT] or https://HOST[:PORT], found";
    const int n = (int)strcspn(url, "?#");

    if (strchr(url, '@'))
        return kg_fail(err, KG_EINVAL, "%s a name or a password before @", expected);
    return kg_fail(err, KG_EINVAL, "%s '%.*s%s'", expected, n < 200 ? n : 200, url,
                   url[n] ? ".." : "");
}

static kg_status read_endpoint(struct kg_hub_site *site, struct kg_err *err)
{
    const char *given = kg_hub_variable("HF_ENDPOINT");
    const char *url = given ? given : "https://huggingface.co";
    size_t n = strlen(url);

    while (n > 0 && url[n - 1] == '/')
        n--;
    if (!kg_http_is_address(url) || !kg_http_has_host(url) ||
        n >= sizeof site->endpoint || strpbrk(url, " ?#@\r\n"))
        return refuse_endpoint(url, err);
    snprintf(site->endpoint, sizeof site->endpoint, "%.*s", (int)n, url);
    return KG_OK;
}

/* Reads HF_TOKEN_PATH, or HF_HOME/token. A missing file is no error. */
static kg_status read_token_file(struct kg_str *token, struct kg_err *err)
{
    const char *given = kg_hub_variable("HF_TOKEN_PATH");
    struct kg_path path;

    if (given) {
        snprintf(path.text, sizeof path.text, "%s", given);
    } else {
        KG_TRY(kg_hub_home(&path, err));
        path = kg_path_in(path.text, "token");
    }
    if (!kg_file_exists(path.text))
        return KG_OK;
    return kg_file_read(token, path.text, MAX_TOKEN_BYTES, err);
}

static kg_status read_token(struct kg_str *token, struct kg_err *err)
{
    static const char blanks[] = " \t\r\n";
    const char *given = kg_hub_variable("HF_TOKEN");

    if (!given)
        given = kg_hub_variable("HUGGING_FACE_HUB_TOKEN");
    if (given)
        KG_TRY(kg_str_puts(token, given, err));
    else
        KG_TRY(read_token_file(token, err));
    while (token->len > 0 && kg_char_in(blanks, token->data[token->len - 1]))
        token->data[--token->len] = '\0';
    for (size_t i = 0; i < token->len; i++)
        if ((unsigned char)token->data[i] <= ' ' || token->data[i] == 127)
            return kg_fail(
                err, KG_EINVAL,
                "%s: expected a token without blanks, found one with a blank or a "
                "control character",
                given ? "HF_TOKEN" : "the hub's token file");
    return KG_OK;
}

/* Fails offline. The first set variable decides, as in HuggingFace's libraries. */
static kg_status check_online(struct kg_err *err)
{
    static const char *const names[] = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"};
    static const char *const yes[] = {"1", "on", "yes", "true"};
    const char *value = NULL;
    size_t which = 0;

    for (; which < 2 && !value; which++)
        value = kg_hub_variable(names[which]);
    for (size_t i = 0; value && i < sizeof yes / sizeof *yes; i++)
        if (strcasecmp(value, yes[i]) == 0)
            return kg_fail(
                err, KG_EINVAL,
                "%s=%s: expected it unset, because it forbids requests to the hub",
                names[which - 1], value);
    return KG_OK;
}

kg_status kg_hub_site_open(struct kg_hub_site *site, struct kg_err *err)
{
    memset(site, 0, sizeof *site);
    KG_TRY(check_online(err));
    KG_TRY(read_endpoint(site, err));
    kg_status status = read_token(&site->token, err);
    if (status != KG_OK)
        kg_hub_site_close(site);
    return status;
}

void kg_hub_site_close(struct kg_hub_site *site)
{
    if (site->token.data)
        memset(site->token.data, 0, site->token.len);
    kg_str_release(&site->token);
}

/* ---- addresses ---- */

kg_status kg_hub_put_escaped(struct kg_str *out, const char *text, bool slashes,
                             struct kg_err *err)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "0123456789-._~";

    for (; *text; text++)
        if (kg_char_in(plain, *text) || (slashes && *text == '/'))
            KG_TRY(kg_str_putc(out, *text, err));
        else
            KG_TRY(kg_str_printf(out, err, "%%%02X", (unsigned char)*text));
    return KG_OK;
}

kg_status kg_hub_put_page(struct kg_str *out, const struct kg_hub_site *site,
                          const struct kg_hub_name *name, struct kg_err *err)
{
    return kg_str_printf(out, err, "%s/%s%s", site->endpoint,
                         name->kind == KG_HUB_DATA ? "datasets/" : "", name->id);
}

/* ---- answers ---- */

static bool is_html(const struct kg_http_answer *a)
{
    const char *type = kg_http_answer_header(a, "Content-Type");

    return (type && strncmp(type, "text/html", 9) == 0) ||
           a->body[strspn(a->body, " \r\n\t")] == '<';
}

/* Copies the hub's reason: X-Error-Message, or "error" of the body, or a default text. */
static void put_words(char *out, size_t size, const struct kg_http_answer *a)
{
    const char *said = kg_http_answer_header(a, "X-Error-Message");
    struct kg_json_doc doc = {0};
    struct kg_err ignored;

    if (!said && !is_html(a) &&
        kg_json_parse(&doc, a->body, a->body_n, "", &ignored) == KG_OK)
        said = kg_json_text(kg_json_get(doc.root, "error"), NULL);
    if (said)
        kg_printable_copy(out, size, said, false);
    else
        snprintf(out, size, "%s", is_html(a) ? "an HTML page" : "no reason given");
    kg_json_release(&doc);
}

static const char *const nouns[] = {[KG_HUB_MODEL] = "model", [KG_HUB_DATA] = "data set"};

static bool is_code(const struct kg_http_answer *a, const char *code)
{
    const char *found = kg_http_answer_header(a, "X-Error-Code");

    return found && strcmp(found, code) == 0;
}

/* A 401 or 403: the account has no access, or there is no such public repository. */
static kg_status explain_refusal(const struct kg_hub_site *site,
                                 const struct kg_hub_name *name, const char *what,
                                 const struct kg_http_answer *a, struct kg_err *err)
{
    const char *page = name->kind == KG_HUB_DATA ? "datasets/" : "";
    bool gated = is_code(a, "GatedRepo") || (a->http_status == 403 && !is_html(a));
    char words[200];

    put_words(words, sizeof words, a);
    if (gated && site->token.len > 0)
        return kg_fail(
            err, KG_EINVAL,
            "%s: expected access, found %d (%s): accept the licence at %s/%s%s with "
            "the account of the token",
            what, a->http_status, words, site->endpoint, page, name->id);
    if (gated)
        return kg_fail(
            err, KG_EINVAL,
            "%s: expected access, found %d (%s): accept the licence at %s/%s%s and "
            "set HF_TOKEN",
            what, a->http_status, words, site->endpoint, page, name->id);
    return kg_fail(
        err, KG_EINVAL,
        "%s: expected access, found %d (%s): no public %s of that name at %s; %s", what,
        a->http_status, words, nouns[name->kind], site->endpoint,
        site->token.len > 0 ? "the token has no access to a private one"
                            : "for a private one set HF_TOKEN");
}

kg_status kg_hub_explain(const struct kg_hub_site *site, const struct kg_hub_name *name,
                         const char *what, const struct kg_http_answer *a,
                         struct kg_err *err)
{
    char words[200];

    if (a->status != KG_OK)
        return kg_fail(err, a->status, "%s: %s: %s", what, site->endpoint, a->reason);
    if (a->http_status == 401 || a->http_status == 403)
        return explain_refusal(site, name, what, a, err);
    put_words(words, sizeof words, a);
    if (a->http_status == 404 && is_code(a, "RevisionNotFound"))
        return kg_fail(err, KG_ENOTFOUND,
                       "%s: expected a branch, tag or commit, found no '%s'", what,
                       name->revision);
    if (a->http_status == 404)
        return kg_fail(err, KG_ENOTFOUND, "%s: expected a %s at %s, found none (404, %s)",
                       what, nouns[name->kind], site->endpoint, words);
    return kg_fail(err,
                   a->http_status >= 500 || a->http_status == 429 ? KG_EIO : KG_EFORMAT,
                   "%s: expected a response of %s, found %d (%s)", what, site->endpoint,
                   a->http_status, words);
}

kg_status kg_hub_check_redirect(const char *from, const struct kg_http_answer *a,
                                struct kg_err *err)
{
    int n = (int)strcspn(a->redirect ? a->redirect : "", "?");

    if (a->redirect && kg_http_is_address(a->redirect) &&
        (strncmp(from, "https:", 6) != 0 || strncmp(a->redirect, "https:", 6) == 0))
        return KG_OK;
    return kg_fail(err, KG_EFORMAT, "expected a redirection to %s address, found '%.*s'",
                   strncmp(from, "https:", 6) == 0 ? "an https" : "an", n < 200 ? n : 200,
                   a->redirect ? a->redirect : "");
}

/* ---- the list ---- */

static bool is_digest(const char *text, size_t n)
{
    return text && strlen(text) == n && strspn(text, "0123456789abcdef") == n;
}

static kg_status add_file(struct kg_hub_list *list, const struct kg_json_doc *doc,
                          const struct kg_json *v, struct kg_err *err)
{
    const struct kg_json *lfs = kg_json_get(v, "lfs");
    const char *path, *digest = kg_json_text(kg_json_get(v, "blobId"), NULL);
    struct kg_hub_file *f;
    int64_t bytes;

    KG_TRY(kg_json_need_text(&path, doc, v, "rfilename", err));
    if (!kg_hub_is_inside(path))
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected paths inside the repository, found '%.200s', which "
                       "leads outside",
                       doc->where, path);
    if (kg_json_type(lfs) == KG_JSON_OBJECT)
        digest = kg_json_text(kg_json_get(lfs, "sha256"), NULL);
    else
        lfs = NULL;
    if (!is_digest(digest, lfs ? 64 : 40))
        return kg_fail(err, KG_EFORMAT,
                       "%s: %.200s: expected a digest of %d digits, found '%.80s'",
                       doc->where, path, lfs ? 64 : 40, digest ? digest : "");
    KG_TRY(kg_json_need_int(&bytes, doc, lfs ? lfs : v, "size", 0, INT64_MAX, err));
    KG_TRY(kg_mem_grow(&list->files, &list->capacity, list->n + 1, sizeof *f, MAX_FILES,
                       "files of the hub", err));
    f = &list->files[list->n];
    f->path = kg_mem_strdup(path, err);
    if (!f->path)
        return KG_ENOMEM;
    f->bytes = (uint64_t)bytes;
    f->kind = lfs ? KG_SHA256 : KG_SHA1;
    memcpy(f->digest, digest, strlen(digest) + 1);
    list->n++;
    return KG_OK;
}

static kg_status take_list(struct kg_hub_list *list, const struct kg_json_doc *doc,
                           struct kg_err *err)
{
    const struct kg_json *files;
    const char *commit;

    if (kg_json_type(doc->root) != KG_JSON_OBJECT)
        return kg_fail(err, KG_EFORMAT, "%s: expected an object, found %s", doc->where,
                       kg_json_type_name(doc->root));
    KG_TRY(kg_json_need_text(&commit, doc, doc->root, "sha", err));
    if (!kg_hub_is_commit(commit))
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected a commit of 40 hexadecimal digits, found '%.80s'",
                       doc->where, commit);
    memcpy(list->commit, commit, 41);
    KG_TRY(kg_json_need(&files, doc, doc->root, "siblings", KG_JSON_ARRAY, err));
    for (size_t i = 0; i < kg_json_size(files); i++)
        KG_TRY(add_file(list, doc, kg_json_at(files, i), err));
    return KG_OK;
}

kg_status kg_hub_list_parse(struct kg_hub_list *list, const char *text, size_t n,
                            const char *where, struct kg_err *err)
{
    struct kg_json_doc doc = {0};

    memset(list, 0, sizeof *list);
    KG_TRY(kg_json_parse(&doc, text, n, where, err));
    kg_status status = take_list(list, &doc, err);
    kg_json_release(&doc);
    if (status != KG_OK)
        kg_hub_list_release(list);
    return status;
}

void kg_hub_list_release(struct kg_hub_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        kg_mem_free(list->files[i].path);
    kg_mem_free(list->files);
    memset(list, 0, sizeof *list);
}

/* ---- requesting the list ---- */

struct asking {
    struct kg_hub_list *list;
    const struct kg_hub_site *site;
    const struct kg_hub_name *name;
    struct kg_http_client *client;
    struct kg_str url; /* owned */
    int redirects;
};

static kg_status ask(struct asking *q, struct kg_err *err)
{
    const struct kg_http_ask a = {
        .url = kg_str_text(&q->url),
        .no_key = !kg_http_same_origin(q->site->endpoint, kg_str_text(&q->url))};

    return kg_http_client_ask(q->client, &a, err);
}

/* The hub redirects the old name of a renamed repository. */
static kg_status follow(struct asking *q, const struct kg_http_answer *a,
                        struct kg_err *err)
{
    if (++q->redirects > MAX_REDIRECTS)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected a response, found more than %d redirections",
                       q->name->id, MAX_REDIRECTS);
    if (kg_hub_check_redirect(kg_str_text(&q->url), a, err) != KG_OK)
        return kg_err_prefix(err, "%s", q->name->id);
    kg_str_clear(&q->url);
    KG_TRY(kg_str_puts(&q->url, a->redirect, err));
    return ask(q, err);
}

static kg_status take_answer(void *user, const struct kg_http_answer *a,
                             struct kg_err *err)
{
    struct asking *q = user;
    char where[sizeof q->site->endpoint + 64];

    if (a->status == KG_OK && a->http_status >= 300 && a->http_status < 400 &&
        a->redirect)
        return follow(q, a, err);
    if (a->status != KG_OK || a->http_status != 200)
        return kg_hub_explain(q->site, q->name, q->name->id, a, err);
    snprintf(where, sizeof where, "the list of %s", q->site->endpoint);
    if (is_html(a))
        return kg_fail(
            err, KG_EFORMAT,
            "%s: expected JSON, found an HTML page: is it the address of a hub?", where);
    return kg_hub_list_parse(q->list, a->body, a->body_n, where, err);
}

kg_status kg_hub_list_get(struct kg_hub_list *list, const struct kg_hub_site *site,
                          const struct kg_hub_pull_opts *opts, struct kg_err *err)
{
    struct kg_http_client_opts how = {.bearer_key = site->token.len ? site->token.data
                                                                    : NULL,
                                      .surroundings = true,
                                      .stall_timeout_s = opts->stall_timeout_s,
                                      .backoff_ms = opts->backoff_ms,
                                      .max_response_bytes = MAX_LIST_BYTES};
    struct asking q = {.list = list, .site = site, .name = &opts->name};
    kg_status status;

    memset(list, 0, sizeof *list);
    KG_TRY_GOTO(out, kg_str_printf(&q.url, err, "%s/api/%s/%s/revision/", site->endpoint,
                                   q.name->kind == KG_HUB_DATA ? "datasets" : "models",
                                   q.name->id));
    KG_TRY_GOTO(out, kg_hub_put_escaped(&q.url, q.name->revision, false, err));
    KG_TRY_GOTO(out, kg_str_puts(&q.url, "?blobs=true", err));
    KG_TRY_GOTO(out, kg_http_client_open(&q.client, &how, err));
    KG_TRY_GOTO(out, ask(&q, err));
    while (status == KG_OK && kg_http_client_waiting(q.client) > 0) {
        status = kg_http_client_poll(q.client, POLL_MS, take_answer, &q, err);
        if (status == KG_OK && kg_signal_stop_requested())
            status = kg_fail(err, KG_EINTERRUPTED, "%s: stopped before the hub answered",
                             q.name->id);
    }
out:
    kg_http_client_close(q.client);
    kg_str_release(&q.url);
    if (status != KG_OK)
        kg_hub_list_release(list);
    return status;
}

/* ---- choosing ---- */

static bool ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);

    return n >= m && strcmp(text + n - m, end) == 0;
}

/* consolidated*.safetensors are a second copy of the weights, with other tensor names. */
static bool is_weights(const char *path)
{
    return !strchr(path, '/') && ends_in(path, ".safetensors") &&
           strncmp(path, "consolidated", 12) != 0;
}

static bool is_read(const char *path)
{
    static const char *const ends[] = {".json", ".model", ".jinja"};
    static const char *const names[] = {"merges.txt", "vocab.txt"};

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_in(path, ends[i]))
            return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(path, names[i]) == 0)
            return true;
    return is_weights(path);
}

static bool is_wanted(const char *path, const struct kg_hub_pull_opts *opts)
{
    if (*opts->name.file)
        return strcmp(path, opts->name.file) == 0;
    if (opts->n_include == 0)
        return opts->name.kind == KG_HUB_DATA || is_read(path);
    for (size_t i = 0; i < opts->n_include; i++)
        if (fnmatch(opts->include[i], path, 0) == 0)
            return true;
    return false;
}

kg_status kg_hub_list_choose(struct kg_hub_list *list,
                             const struct kg_hub_pull_opts *opts, struct kg_err *err)
{
    const struct kg_hub_name *name = &opts->name;
    bool weights = name->kind == KG_HUB_DATA || opts->n_include > 0;
    size_t chosen = 0;

    for (size_t i = 0; i < list->n; i++) {
        struct kg_hub_file *f = &list->files[i];

        f->wanted = is_wanted(f->path, opts);
        chosen += f->wanted;
        weights |= is_weights(f->path);
    }
    if (chosen == 0)
        return kg_fail(err, KG_ENOTFOUND,
                       "%s: expected %s%s, found none among its %zu files%s%.200s",
                       name->id, *name->file ? "the file " : "a file that matches",
                       name->file, list->n, list->n ? ", such as " : "",
                       list->n ? list->files[0].path : "");
    if (!weights)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "%s: expected weights in *.safetensors, found none among its %zu "
                       "files; --include PATTERN fetches other files",
                       name->id, list->n);
    return KG_OK;
}
