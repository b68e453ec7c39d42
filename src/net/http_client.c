/* libcurl's multi interface, with a queue and retries.
 *
 * A request is in one of three places: waiting for its turn or for the end of a pause, in
 * flight in a curl handle, or done and not yet reported. The caller chooses tickets: two
 * requests may have the same one.
 */
#include "net/http_client.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    DEFAULT_IN_FLIGHT = 16,
    DEFAULT_CONNECT_MS = 5000,
    DEFAULT_TIMEOUT_MS = 30000,
    DEFAULT_TRIES = 4,
    DEFAULT_BACKOFF_MS = 250,
    MAX_PAUSE_S = 60,
};

struct kg_http_request {
    struct kg_http_client *c;
    uint64_t ticket;
    char *url;  /* owned */
    char *body; /* owned; NULL: GET */
    size_t body_n;
    char *range; /* owned, or NULL */
    bool no_key;
    bool headed; /* opts.head was called for this try */
    CURL *easy;  /* owned; one for each try, NULL between tries */
    char reason[CURL_ERROR_SIZE + KG_ERR_MESSAGE_BYTES];
    char said[CURL_ERROR_SIZE]; /* curl's error message */
    struct kg_str answer;
    int tries;
    long http_status;
    bool final; /* no retry */
    kg_status status;
    double submitted; /* kg_clock_seconds() */
    double due;       /* no try starts before this second of the clock */
    struct kg_http_request *next;
};

struct queue {
    struct kg_http_request *first, *last;
};

struct kg_http_client {
    struct kg_http_client_opts opts; /* defaults filled in */
    CURLM *multi;
    struct curl_slist *headers; /* owned */
    struct curl_slist *open;    /* headers without the key */
    struct queue waiting;
    struct queue done;
    struct kg_http_request *flying; /* list */
    int in_flight;
    size_t n;    /* requests that are not reported yet */
    bool warned; /* a failed try was logged, and no try has had a response since */
    struct kg_http_client_stats stats;
};

/* ---- queues ---- */

static void push(struct queue *q, struct kg_http_request *r)
{
    r->next = NULL;
    if (q->last)
        q->last->next = r;
    else
        q->first = r;
    q->last = r;
}

static struct kg_http_request *pop(struct queue *q)
{
    struct kg_http_request *r = q->first;
    if (r) {
        q->first = r->next;
        if (q->first == NULL)
            q->last = NULL;
    }
    return r;
}

/* Takes the first request that is due out of the queue.   returns NULL if none is due */
static struct kg_http_request *pop_due(struct queue *q, double now)
{
    struct kg_http_request *before = NULL;
    struct kg_http_request *r = q->first;
    while (r && r->due > now) {
        before = r;
        r = r->next;
    }
    if (r == NULL)
        return NULL;
    if (before)
        before->next = r->next;
    else
        q->first = r->next;
    if (q->last == r)
        q->last = before;
    return r;
}

static void request_free(struct kg_http_request *r)
{
    if (r->easy) {
        (void)curl_multi_remove_handle(r->c->multi, r->easy);
        curl_easy_cleanup(r->easy);
    }
    kg_mem_free(r->url);
    kg_mem_free(r->body);
    kg_mem_free(r->range);
    kg_str_release(&r->answer);
    kg_mem_free(r);
}

static void free_list(struct kg_http_request *r)
{
    while (r) {
        struct kg_http_request *next = r->next;
        request_free(r);
        r = next;
    }
}

/* ---- open and close ---- */

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static CURLcode curl_started;

static void start_curl(void) { curl_started = curl_global_init(CURL_GLOBAL_DEFAULT); }

static int or_default(int value, int otherwise) { return value > 0 ? value : otherwise; }

static kg_status add_header(struct curl_slist **to, const char *line, struct kg_err *err)
{
    struct curl_slist *list = curl_slist_append(*to, line);
    if (list == NULL)
        return kg_fail(err, KG_ENOMEM, "HTTP headers: out of memory");
    *to = list;
    return KG_OK;
}

static kg_status add_usual(struct curl_slist **to, struct kg_err *err)
{
    KG_TRY(add_header(to, "Content-Type: application/json", err));
    return add_header(to, "Expect:", err); /* never wait for a 100 */
}

static kg_status add_key(struct kg_http_client *c, const char *key, struct kg_err *err)
{
    struct kg_str line = {0};
    if (key == NULL)
        return KG_OK;
    if (key[0] == '\0' || strpbrk(key, "\r\n"))
        return kg_fail(err, KG_EINVAL, "key: expected one line of text");
    kg_status status = kg_str_printf(&line, err, "Authorization: Bearer %s", key);
    if (status == KG_OK)
        status = add_header(&c->headers, line.data, err);
    kg_str_release(&line);
    return status;
}

kg_status kg_http_client_open(struct kg_http_client **out,
                              const struct kg_http_client_opts *opts, struct kg_err *err)
{
    kg_status status;
    *out = NULL;
    pthread_once(&curl_once, start_curl);
    if (curl_started != CURLE_OK)
        return kg_fail(err, KG_ENOMEM, "libcurl: %s", curl_easy_strerror(curl_started));
    struct kg_http_client *c = kg_mem_calloc(1, sizeof *c, "HTTP client", err);
    if (c == NULL)
        return err->code;
    struct kg_http_client_opts *o = &c->opts;
    *o = *opts;
    o->bearer_key = NULL; /* add_key copies it into a header */
    o->max_in_flight = or_default(o->max_in_flight, DEFAULT_IN_FLIGHT);
    o->connect_timeout_ms = or_default(o->connect_timeout_ms, DEFAULT_CONNECT_MS);
    o->timeout_ms = or_default(o->timeout_ms, DEFAULT_TIMEOUT_MS);
    o->tries = or_default(o->tries, DEFAULT_TRIES);
    o->backoff_ms = or_default(o->backoff_ms, DEFAULT_BACKOFF_MS);
    if (o->max_response_bytes == 0)
        o->max_response_bytes = (size_t)64 << 20;
    KG_TRY_GOTO(fail, add_usual(&c->headers, err));
    KG_TRY_GOTO(fail, add_usual(&c->open, err));
    KG_TRY_GOTO(fail, add_key(c, opts->bearer_key, err));
    c->multi = curl_multi_init();
    if (c->multi == NULL)
        KG_TRY_GOTO(fail, kg_fail(err, KG_ENOMEM, "libcurl: out of memory"));
    /* keep one idle connection open for each request that may be in flight */
    curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, (long)o->max_in_flight);
    *out = c;
    return KG_OK;
fail:
    kg_http_client_close(c);
    return status;
}

bool kg_http_is_address(const char *where)
{
    return strncmp(where, "http://", 7) == 0 || strncmp(where, "https://", 8) == 0;
}

/* After "://": HOST or [HOST], then maybe :DIGITS, then the end or a path. */
bool kg_http_has_host(const char *url)
{
    const char *host = strstr(url, "://") + 3, *rest;

    if (*host == '[') {
        rest = host + strcspn(host, "]/");
        if (*rest != ']' || rest == host + 1)
            return false;
        rest++;
    } else {
        rest = host + strcspn(host, ":/?#@");
    }
    if (rest == host)
        return false;
    if (*rest == ':') {
        const size_t digits = strspn(rest + 1, "0123456789");
        const long port = digits > 0 && digits < 10 ? strtol(rest + 1, NULL, 10) : 0;
        if (port < 1 || port > 65535)
            return false;
        rest += 1 + digits;
    }
    return !*rest || kg_char_in("/?#", *rest);
}

void kg_http_client_close(struct kg_http_client *c)
{
    if (c == NULL)
        return;
    free_list(c->flying);
    free_list(c->waiting.first);
    free_list(c->done.first);
    curl_slist_free_all(c->headers);
    curl_slist_free_all(c->open);
    if (c->multi)
        curl_multi_cleanup(c->multi);
    kg_mem_free(c);
}

bool kg_http_same_origin(const char *url, const char *other)
{
    size_t n = strcspn(url, ":"), m;

    if (strncmp(url + n, "://", 3) != 0)
        return false;
    m = n + 3 + strcspn(url + n + 3, "/?#");
    return strncasecmp(url, other, m) == 0 && (!other[m] || kg_char_in("/?#", other[m]));
}

kg_status kg_http_client_ask(struct kg_http_client *c, const struct kg_http_ask *ask,
                             struct kg_err *err)
{
    struct kg_http_request *r = kg_mem_calloc(1, sizeof *r, "HTTP request", err);
    if (r == NULL)
        return err->code;
    r->c = c;
    r->ticket = ask->ticket;
    r->answer.max = c->opts.max_response_bytes;
    r->body_n = ask->body_n;
    r->no_key = ask->no_key;
    r->url = kg_mem_strdup(ask->url, err);
    if (ask->body)
        r->body = kg_mem_copy(ask->body, ask->body_n, "HTTP body", err);
    if (ask->range)
        r->range = kg_mem_strdup(ask->range, err);
    if (r->url == NULL || (ask->body && r->body == NULL) || (ask->range && !r->range)) {
        request_free(r);
        return err->code;
    }
    r->submitted = kg_clock_seconds();
    push(&c->waiting, r);
    c->n++;
    c->stats.requests++;
    return KG_OK;
}

kg_status kg_http_client_submit(struct kg_http_client *c, const char *url,
                                const char *body, size_t body_n, uint64_t ticket,
                                struct kg_err *err)
{
    const struct kg_http_ask ask = {
        .url = url, .body = body, .body_n = body_n, .ticket = ticket};
    return kg_http_client_ask(c, &ask, err);
}

size_t kg_http_client_waiting(const struct kg_http_client *c) { return c->n; }

void kg_http_client_stats(struct kg_http_client_stats *out,
                          const struct kg_http_client *c)
{
    *out = c->stats;
}

/* ---- one try ---- */

static bool wants_piece(struct kg_http_request *r)
{
    long code = 0;
    if (r->c->opts.piece == NULL)
        return false;
    curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &code);
    return code >= 200 && code < 300;
}

const char *kg_http_answer_header(const struct kg_http_answer *a, const char *field)
{
    struct curl_header *h = NULL;
    CURL *easy = a->of->easy;
    if (!easy || curl_easy_header(easy, field, 0, CURLH_HEADER, -1, &h) != CURLHE_OK)
        return NULL;
    return h->value;
}

static struct kg_http_answer answer_of(const struct kg_http_request *r)
{
    char *redirect = NULL;
    long code = r->http_status;
    if (r->easy) {
        curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &code);
        curl_easy_getinfo(r->easy, CURLINFO_REDIRECT_URL, &redirect);
    }
    return (struct kg_http_answer){.ticket = r->ticket,
                                   .status = r->status,
                                   .reason = r->reason,
                                   .http_status = (int)code,
                                   .body = kg_str_text(&r->answer),
                                   .body_n = r->answer.len,
                                   .redirect = redirect,
                                   .tries = r->tries,
                                   .seconds = kg_clock_seconds() - r->submitted,
                                   .of = r};
}

static kg_status tell_piece(struct kg_http_request *r, const char *data, size_t n,
                            struct kg_err *err)
{
    const struct kg_http_client_opts *o = &r->c->opts;
    r->final = true; /* data given to a callback cannot be taken back */
    if (o->head && !r->headed) {
        const struct kg_http_answer a = answer_of(r);
        r->headed = true;
        KG_TRY(o->head(o->piece_user, &a, err));
    }
    return o->piece(o->piece_user, r->ticket, data, n, err);
}

static kg_status keep(struct kg_http_request *r, const char *data, size_t n,
                      struct kg_err *err)
{
    kg_status status;
    if (n > r->answer.max - r->answer.len)
        status = kg_fail(err, KG_EFORMAT, "the response is larger than %zu bytes",
                         r->answer.max);
    else
        status = kg_str_append(&r->answer, data, n, err);
    r->final |= status != KG_OK;
    return status;
}

/* Called by curl.   returns n, or anything else to end the transfer */
static size_t take_bytes(char *data, size_t one, size_t n, void *user)
{
    struct kg_http_request *r = user;
    struct kg_err err = {0};
    bool piece = wants_piece(r);
    (void)one; /* always 1 */
    if (!piece || !r->c->opts.pieces_alone)
        r->status = keep(r, data, n, &err);
    if (piece && r->status == KG_OK)
        r->status = tell_piece(r, data, n, &err);
    if (r->status == KG_OK)
        return n;
    strncpy(r->reason, err.message, sizeof r->reason - 1);
    return n + 1;
}

/* Timeout of the next try: opts.timeout_ms, or the rest of the request's deadline if it
 * is shorter.   returns 0 if the deadline has passed */
static long time_left_ms(const struct kg_http_request *r, double now)
{
    const struct kg_http_client_opts *o = &r->c->opts;
    if (o->deadline_ms == 0)
        return o->timeout_ms;
    double left = o->deadline_ms - 1e3 * (now - r->submitted);
    if (left < 1)
        return 0;
    return left < o->timeout_ms ? (long)left : o->timeout_ms;
}

/* The file of trusted certificates. The path compiled into libcurl is that of the system
 * on which kedge was built.   returns NULL if there is none */
static const char *find_certificates(const struct kg_http_client_opts *o)
{
    static const char *const files[] = {
        "/etc/ssl/certs/ca-certificates.crt", /* Debian, Ubuntu, Arch */
        "/etc/pki/tls/certs/ca-bundle.crt",   /* Fedora, RHEL */
        "/etc/ssl/ca-bundle.pem",             /* openSUSE */
        "/etc/ssl/cert.pem",                  /* Alpine */
    };
    const char *named = o->surroundings ? getenv("SSL_CERT_FILE") : NULL;
    if (named && *named)
        return named;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (kg_file_exists(files[i]))
            return files[i];
    return NULL;
}

/* Sets the proxy and the certificates that verify the host. */
static CURLcode set_way(struct kg_http_request *r)
{
    const char *certificates = find_certificates(&r->c->opts);
    CURLcode bad = CURLE_OK;
    if (certificates)
        bad |= curl_easy_setopt(r->easy, CURLOPT_CAINFO, certificates);
    if (!r->c->opts.surroundings)
        return bad |
               curl_easy_setopt(r->easy, CURLOPT_PROXY, ""); /* not the environment's */
    return bad | curl_easy_setopt(r->easy, CURLOPT_HEADEROPT, (long)CURLHEADER_SEPARATE);
}

static CURLcode set_options(struct kg_http_request *r, long timeout_ms)
{
    const struct kg_http_client_opts *o = &r->c->opts;
    CURLcode bad = CURLE_OK;
    bad |= curl_easy_setopt(r->easy, CURLOPT_URL, r->url);
    bad |= curl_easy_setopt(r->easy, CURLOPT_PRIVATE, r);
    bad |= curl_easy_setopt(r->easy, CURLOPT_ERRORBUFFER, r->said);
    bad |= curl_easy_setopt(r->easy, CURLOPT_HTTPHEADER,
                            r->no_key ? r->c->open : r->c->headers);
    bad |= curl_easy_setopt(r->easy, CURLOPT_USERAGENT, "kedge/" KG_VERSION);
    bad |= curl_easy_setopt(r->easy, CURLOPT_RANGE, r->range);
    bad |= curl_easy_setopt(r->easy, CURLOPT_WRITEFUNCTION, take_bytes);
    bad |= curl_easy_setopt(r->easy, CURLOPT_WRITEDATA, r);
    bad |= curl_easy_setopt(r->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    bad |= curl_easy_setopt(r->easy, CURLOPT_NOSIGNAL, 1L);
    bad |= set_way(r);
    bad |= curl_easy_setopt(r->easy, CURLOPT_CONNECTTIMEOUT_MS,
                            (long)o->connect_timeout_ms);
    bad |= curl_easy_setopt(r->easy, CURLOPT_TIMEOUT_MS,
                            o->stall_timeout_s > 0 ? 0 : timeout_ms);
    bad |= curl_easy_setopt(r->easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    bad |= curl_easy_setopt(r->easy, CURLOPT_LOW_SPEED_TIME, (long)o->stall_timeout_s);
    if (r->body == NULL)
        return bad;
    bad |= curl_easy_setopt(r->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->body_n);
    return bad | curl_easy_setopt(r->easy, CURLOPT_POSTFIELDS, r->body);
}

static void end_try(struct kg_http_request *r, CURLcode code);

static void start_try(struct kg_http_client *c, struct kg_http_request *r, double now)
{
    long timeout_ms = time_left_ms(r, now);
    CURLcode code = CURLE_OUT_OF_MEMORY;
    r->tries++;
    r->http_status = 0;
    r->headed = false;
    r->said[0] = '\0';
    kg_str_clear(&r->answer);
    r->next = c->flying;
    c->flying = r;
    c->in_flight++;
    if (timeout_ms == 0) {
        end_try(r, CURLE_OPERATION_TIMEDOUT);
        return;
    }
    r->easy = curl_easy_init();
    if (r->easy)
        code = set_options(r, timeout_ms);
    if (code == CURLE_OK && curl_multi_add_handle(c->multi, r->easy) != CURLM_OK)
        code = CURLE_OUT_OF_MEMORY;
    if (code != CURLE_OK)
        end_try(r, code);
}

static bool may_pass(CURLcode code, long http_status)
{
    switch (code) {
    case CURLE_OK:
        return http_status == 408 || http_status == 429 || http_status >= 500;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
        return true;
    default:
        return false;
    }
}

static double pause_before_next(const struct kg_http_request *r)
{
    curl_off_t asked = 0;
    double pause = r->c->opts.backoff_ms / 1e3;
    for (int i = 1; i < r->tries && pause < MAX_PAUSE_S; i++)
        pause *= 2;
    if (r->easy)
        curl_easy_getinfo(r->easy, CURLINFO_RETRY_AFTER, &asked);
    pause = asked > 0 ? (double)asked : pause;
    return pause < MAX_PAUSE_S ? pause : MAX_PAUSE_S;
}

/* Decides whether to retry, and sets r->due. */
static bool plan_next(struct kg_http_request *r, CURLcode code, double now)
{
    double pause = pause_before_next(r);
    double deadline = r->submitted + r->c->opts.deadline_ms / 1e3;
    if (r->final || !may_pass(code, r->http_status) || r->tries >= r->c->opts.tries)
        return false;
    if (r->c->opts.deadline_ms > 0 && now + pause >= deadline)
        return false;
    r->due = now + pause;
    return true;
}

static void explain(struct kg_http_request *r, CURLcode code)
{
    struct kg_err err;
    if (code == CURLE_OK || r->status != KG_OK)
        return;
    r->status = code == CURLE_OPERATION_TIMEDOUT ? KG_ETIMEOUT : KG_EIO;
    kg_fail(&err, r->status, "%s (%d %s)", r->said, r->tries,
            r->tries == 1 ? "try" : "tries");
    strncpy(r->reason, err.message, sizeof r->reason - 1);
}

/* Whether the try ended on a new connection before TLS was agreed. A reused connection
 * reports no handshake, so CURLINFO_NUM_CONNECTS excludes it. */
static bool in_handshake(const struct kg_http_request *r)
{
    curl_off_t agreed = 0;
    long local_port = 0, opened = 0;

    if (!r->easy || strncmp(r->url, "https:", 6) != 0)
        return false;
    curl_easy_getinfo(r->easy, CURLINFO_LOCAL_PORT, &local_port);
    curl_easy_getinfo(r->easy, CURLINFO_NUM_CONNECTS, &opened);
    curl_easy_getinfo(r->easy, CURLINFO_APPCONNECT_TIME_T, &agreed);
    return opened > 0 && local_port > 0 && agreed == 0;
}

/* Writes to r->said what failed. A plain HTTP port waits for the rest of the TLS
 * handshake, or replies with text that OpenSSL reads as a TLS version. */
static void say_what_failed(struct kg_http_request *r, CURLcode code, bool handshake)
{
    const struct kg_http_client_opts *o = &r->c->opts;
    const int most_ms = o->timeout_ms < o->connect_timeout_ms ? o->timeout_ms
                                                              : o->connect_timeout_ms;
    char by_curl[CURL_ERROR_SIZE];

    if (!r->said[0])
        snprintf(r->said, sizeof r->said, "%s", curl_easy_strerror(code));
    memcpy(by_curl, r->said, sizeof by_curl);
    if (handshake && code == CURLE_OPERATION_TIMEDOUT)
        snprintf(r->said, sizeof r->said,
                 "expected an answer to the TLS handshake within %g s, found none: is it "
                 "a port of http://?",
                 most_ms / 1e3);
    else if (handshake && code == CURLE_SSL_CONNECT_ERROR)
        snprintf(r->said, sizeof r->said, "expected a TLS handshake, found %.150s%s",
                 by_curl,
                 strstr(by_curl, "version number") || strstr(by_curl, "packet length")
                     ? ": the answer is not TLS, is it a port of http://?"
                     : "");
    else if ((code == CURLE_PEER_FAILED_VERIFICATION ||
              code == CURLE_SSL_CACERT_BADFILE) &&
             find_certificates(o) == NULL)
        snprintf(r->said, sizeof r->said,
                 "expected the system's trusted certificates, found no file of them "
                 "(package ca-certificates%s): %.90s",
                 o->surroundings ? "; SSL_CERT_FILE names another" : "", by_curl);
}

/* Bytes of the URL to show: at most 300, without the query, which may be a secret. */
static int shown_bytes(const char *url)
{
    const size_t n = strcspn(url, "?");
    return n < 300 ? (int)n : 300;
}

/* Logs the first failed try; later ones are silent until a try has had a response. */
static void warn(struct kg_http_request *r, CURLcode code)
{
    if (code != CURLE_OK && !r->c->warned)
        kg_log_warn("%.*s: %s: retrying (%d of %d)", shown_bytes(r->url), r->url, r->said,
                    r->tries + 1, r->c->opts.tries);
    r->c->warned = code != CURLE_OK;
}

static void unlink_flying(struct kg_http_client *c, struct kg_http_request *r)
{
    struct kg_http_request **at = &c->flying;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    c->in_flight--;
}

static void end_try(struct kg_http_request *r, CURLcode code)
{
    struct kg_http_client *c = r->c;
    if (r->easy)
        curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &r->http_status);
    bool again = plan_next(r, code, kg_clock_seconds()), handshake = in_handshake(r);
    unlink_flying(c, r);
    if (r->easy)
        (void)curl_multi_remove_handle(c->multi, r->easy);
    if (r->easy && again) {
        curl_easy_cleanup(r->easy);
        r->easy = NULL;
    }
    if (code != CURLE_OK)
        say_what_failed(r, code, handshake);
    if (again) {
        warn(r, code);
        c->stats.retries++;
        push(&c->waiting, r);
        return;
    }
    c->warned = c->warned && code != CURLE_OK;
    explain(r, code);
    c->stats.failures += r->status != KG_OK;
    push(&c->done, r);
}

/* ---- poll ---- */

static void start_due(struct kg_http_client *c)
{
    double now = kg_clock_seconds();
    while (c->in_flight < c->opts.max_in_flight) {
        struct kg_http_request *r = pop_due(&c->waiting, now);
        if (r == NULL)
            return;
        start_try(c, r, now);
    }
}

/* The time at which the next paused request may start, but at most `until`. */
static double next_start(const struct kg_http_client *c, double until)
{
    if (c->in_flight >= c->opts.max_in_flight)
        return until;
    for (const struct kg_http_request *r = c->waiting.first; r; r = r->next)
        until = r->due < until ? r->due : until;
    return until;
}

static void collect(struct kg_http_client *c)
{
    int left;
    CURLMsg *m;
    while ((m = curl_multi_info_read(c->multi, &left)) != NULL) {
        char *r = NULL;
        if (m->msg != CURLMSG_DONE)
            continue;
        CURLcode code = m->data.result; /* m does not outlive the handle */
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &r);
        end_try((struct kg_http_request *)(void *)r, code);
    }
}

/* Reports finished requests. The next poll starts what a callback submits. */
static kg_status tell(struct kg_http_client *c, kg_http_answer_fn done, void *user,
                      struct kg_err *err)
{
    kg_status status = KG_OK;
    while (status == KG_OK && c->done.first) {
        struct kg_http_request *r = pop(&c->done);
        const struct kg_http_answer a = answer_of(r);
        c->n--;
        status = done(user, &a, err);
        request_free(r);
    }
    return status;
}

static kg_status curl_failed(CURLMcode code, struct kg_err *err)
{
    return kg_fail(err, code == CURLM_OUT_OF_MEMORY ? KG_ENOMEM : KG_EIO, "libcurl: %s",
                   curl_multi_strerror(code));
}

kg_status kg_http_client_poll(struct kg_http_client *c, int timeout_ms,
                              kg_http_answer_fn done, void *user, struct kg_err *err)
{
    double until = kg_clock_seconds() + timeout_ms / 1e3;
    while (c->n > 0) {
        int running;
        start_due(c);
        CURLMcode code = curl_multi_perform(c->multi, &running);
        if (code != CURLM_OK)
            return curl_failed(code, err);
        collect(c);
        if (c->done.first)
            return tell(c, done, user, err);
        double now = kg_clock_seconds();
        if (now >= until)
            break;
        double wake = next_start(c, until);
        int wait_ms = wake > now ? (int)(1e3 * (wake - now)) + 1 : 0;
        code = curl_multi_poll(c->multi, NULL, 0, wait_ms, NULL);
        if (code != CURLM_OK)
            return curl_failed(code, err);
    }
    return KG_OK;
}
