/* Checks that a retrieval server is the expected one. Searching 21 million passages by
 * vectors and searching a sample by words are different environments, which answers do
 * not reveal. So if a server reports its kind of search or its number of passages, they
 * are compared with the expected ones; else (Search-R1's own server) the log says so. The
 * encoder is not compared: a run knows its name, a server its hash.
 */
#include "search/retriever_internal.h"

#include "base/log.h"
#include "base/str.h"
#include "data/json.h"
#include "net/http_client.h"

#include <string.h>

enum { TIMEOUT_MS = 3000, ANSWER_BYTES = 1 << 16 };
static const char retrieve[] = "/retrieve", health[] = "/health";

struct said {
    char kind[16];    /* "": not reported */
    int64_t passages; /* -1: not reported */
    char why[256];    /* why nothing can be compared; "": the server answered */
};

static void read_said(struct said *s, const char *body, size_t n)
{
    struct kg_json_doc doc = {0};
    struct kg_err ignored;
    const char *kind;

    if (kg_json_parse(&doc, body, n, health, &ignored) != KG_OK)
        return;
    kind = kg_json_text(kg_json_get(doc.root, "kind"), NULL);
    s->passages = kg_json_int(kg_json_get(doc.root, "passages"), -1);
    if (kind)
        snprintf(s->kind, sizeof s->kind, "%s", kind);
    kg_json_release(&doc);
}

static kg_status take(void *user, const struct kg_http_answer *a, struct kg_err *err)
{
    struct said *s = user;

    (void)err;
    if (a->status != KG_OK)
        snprintf(s->why, sizeof s->why, "did not answer %s: %.200s", health, a->reason);
    else if (a->http_status != 200)
        snprintf(s->why, sizeof s->why, "did not answer %s: HTTP status %d", health,
                 a->http_status);
    else
        read_said(s, a->body, a->body_n);
    return KG_OK;
}

/* Sends one request, with a client for it alone. */
static kg_status ask(struct said *s, const char *url, struct kg_err *err)
{
    const struct kg_http_client_opts opts = {.tries = 1,
                                             .timeout_ms = TIMEOUT_MS,
                                             .connect_timeout_ms = TIMEOUT_MS,
                                             .max_response_bytes = ANSWER_BYTES};
    struct kg_http_client *c;

    KG_TRY(kg_http_client_open(&c, &opts, err));
    kg_status status = kg_http_client_submit(c, url, NULL, 0, 0, err);
    while (status == KG_OK && kg_http_client_waiting(c) > 0)
        status = kg_http_client_poll(c, TIMEOUT_MS, take, s, err);
    kg_http_client_close(c);
    return status;
}

/* Requests http://HOST:PORT/health for http://HOST:PORT/retrieve. */
static kg_status ask_beside(struct said *s, const char *where, struct kg_err *err)
{
    const size_t n = strlen(where), end = sizeof retrieve - 1;
    struct kg_str url = {0};

    if (n < end || strcmp(where + n - end, retrieve) != 0) {
        snprintf(s->why, sizeof s->why, "was not queried, because its path is not %s",
                 retrieve);
        return KG_OK;
    }
    kg_status status = kg_str_printf(&url, err, "%.*s%s", (int)(n - end), where, health);
    if (status == KG_OK)
        status = ask(s, url.data, err);
    kg_str_release(&url);
    return status;
}

/* Messages name no keys, because recipes and suites spell them differently. */
static kg_status compare(const struct said *s, const struct kg_retriever_opts *opts,
                         struct kg_err *err)
{
    const struct kg_search_how *how = &opts->how;
    const char *kind = kg_search_how_dense(how) ? how->kind : "bm25";

    if (s->kind[0] && strcmp(s->kind, kind) != 0)
        return kg_fail(err, KG_ECONFLICT,
                       "%.200s: expected a server that searches by %s (kind of the "
                       "search), found one that searches by %s",
                       opts->where, kind, s->kind);
    if (s->passages < 0 || how->passages == 0 || how->passages == s->passages)
        return KG_OK;
    return kg_fail(err, KG_ECONFLICT,
                   "%.200s: expected a server with %lld passages, as the search is "
                   "configured, found one with %lld",
                   opts->where, (long long)how->passages, (long long)s->passages);
}

static void warn(const struct said *s, const struct kg_retriever_opts *opts)
{
    if (s->why[0])
        kg_log_warn("%s %s: kedge cannot check how it searches", opts->where, s->why);
    else if (!s->kind[0])
        kg_log_warn("%s does not report its kind of search: kedge cannot check it",
                    opts->where);
    else if (s->passages < 0 && opts->how.passages > 0)
        kg_log_warn("%s does not report its number of passages: kedge cannot check it",
                    opts->where);
}

kg_status kg_retriever_check_server(const struct kg_retriever_opts *opts,
                                    struct kg_err *err)
{
    struct said s = {.passages = -1};

    if (!kg_search_how_dense(&opts->how) && opts->how.passages == 0)
        return KG_OK;
    KG_TRY(ask_beside(&s, opts->where, err));
    KG_TRY(compare(&s, opts, err));
    warn(&s, opts);
    return KG_OK;
}
