/* Fetches files, several at once and each as one stream, from one thread. A file is
 * written to DIGEST.kedge-part next to its final place, and renamed when its digest
 * matches. An interrupted stream, also that of an earlier pull, continues at the end of
 * that file. Every request goes to the hub first, because an address to which it
 * redirects is valid only for a while. Nothing is trusted before its digest matches. */
#include "net/hub_internal.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/signal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    IN_FLIGHT = 8,
    STALL_S = 30,
    BACKOFF_MS = 500,
    MAX_REDIRECTS = 5,
    MAX_CUTS = 50, /* interruptions of a stream, each after some bytes */
    HASH_BYTES = 4 << 20,
    POLL_MS = 200,
    PROGRESS_MS = 10000,
};

struct stream {
    const struct kg_hub_file *file; /* borrowed */
    bool done;
    bool left_over; /* an earlier pull left a part file */
    uint64_t at;    /* bytes in the part file */
    uint64_t asked; /* `at` when the rest was requested */
    struct kg_digest digest;
    struct kg_file_writer writer; /* of the part file, while it is fetched */
    struct kg_str url;            /* owned: of the current request */
    int redirects, cuts;
};

struct fetch {
    const struct kg_hub_site *site;
    const struct kg_hub_pull_opts *opts;
    const char *commit, *dir; /* of the blobs */
    struct kg_http_client *client;
    struct stream *streams; /* (n) owned; each digest once */
    size_t n, done;
    size_t next; /* index of the next stream to start */
    uint64_t bytes, there, fetched;
    struct kg_err why; /* error of a callback: the client reports only that it failed */
    bool failed;
};

static kg_status stopped(const struct fetch *f, struct kg_err *err)
{
    return kg_fail(err, KG_EINTERRUPTED,
                   "%s: stopped at %.2f of %.2f GB; the same pull continues there",
                   f->opts->name.id, (double)f->there / 1e9, (double)f->bytes / 1e9);
}

/* ---- files already in the cache ---- */

/* The complete file; part_path is the file until then. */
static struct kg_path blob_path(const struct fetch *f, const struct stream *s)
{
    return kg_path_in(f->dir, s->file->digest);
}

static struct kg_path part_path(const struct fetch *f, const struct stream *s)
{
    char name[KG_DIGEST_TEXT + 16];

    snprintf(name, sizeof name, "%s.kedge-part", s->file->digest);
    return kg_path_in(f->dir, name);
}

static void begin_digest(struct stream *s)
{
    char head[40];

    kg_digest_begin(&s->digest, s->file->kind);
    if (s->file->kind == KG_SHA1) { /* git hashes "blob LENGTH" and a NUL first */
        snprintf(head, sizeof head, "blob %" PRIu64, s->file->bytes);
        kg_digest_put(&s->digest, head, strlen(head) + 1);
    }
}

/* Hashes the part file of an earlier pull, so that the stream can continue it. */
static kg_status digest_left_over(struct fetch *f, struct stream *s, struct kg_err *err)
{
    kg_status status = KG_OK;
    struct kg_map map;
    uint64_t n;

    KG_TRY(kg_map_open(&map, part_path(f, s).text, err));
    for (; s->at < map.bytes && status == KG_OK; s->at += n, f->there += n) {
        n = map.bytes - s->at < HASH_BYTES ? map.bytes - s->at : HASH_BYTES;
        kg_digest_put(&s->digest, map.data + s->at, n);
        kg_map_let_go(map.data + s->at, n);
        kg_log_progress(PROGRESS_MS, "%s: reading the existing part of %s",
                        f->opts->name.id, s->file->path);
        if (kg_signal_stop_requested())
            status = stopped(f, err);
    }
    kg_map_close(&map);
    return status;
}

static kg_status look(struct fetch *f, struct stream *s, struct kg_err *err)
{
    const struct kg_path blob = blob_path(f, s), part = part_path(f, s);
    uint64_t bytes;

    if (kg_file_is_regular(blob.text)) {
        KG_TRY(kg_file_size(&bytes, blob.text, err));
        if (bytes == s->file->bytes) {
            s->done = true;
            f->there += bytes;
            f->done++;
            return KG_OK;
        }
    }
    begin_digest(s);
    if (!kg_file_is_regular(part.text))
        return KG_OK;
    KG_TRY(kg_file_size(&bytes, part.text, err));
    s->left_over = bytes > 0 && bytes <= s->file->bytes;
    return s->left_over ? digest_left_over(f, s, err) : KG_OK;
}

static int by_digest(const void *a, const void *b)
{
    const struct stream *x = a, *y = b;

    return strcmp(x->file->digest, y->file->digest);
}

/* Makes one stream per digest: files with equal contents share one blob. */
static kg_status make_streams(struct fetch *f, const struct kg_hub_list *list,
                              struct kg_err *err)
{
    size_t n = 0;

    f->streams = kg_mem_calloc(list->n, sizeof *f->streams, "files of the hub", err);
    if (!f->streams)
        return KG_ENOMEM;
    for (size_t i = 0; i < list->n; i++)
        if (list->files[i].wanted)
            f->streams[n++].file = &list->files[i];
    qsort(f->streams, n, sizeof *f->streams, by_digest);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || by_digest(&f->streams[i - 1], &f->streams[i]) != 0) {
            f->streams[f->n++].file = f->streams[i].file;
            f->bytes += f->streams[i].file->bytes;
        }
    for (size_t i = 0; i < f->n; i++)
        KG_TRY(look(f, &f->streams[i], err));
    return KG_OK;
}

static kg_status check_room(const struct fetch *f, struct kg_err *err)
{
    uint64_t needed = f->bytes - f->there, room;

    KG_TRY(kg_file_free_bytes(&room, f->dir, err));
    if (needed <= room)
        return KG_OK;
    return kg_fail(err, KG_ENOSPACE, "%s: expected room for %.2f GB, found %.2f GB",
                   f->dir, (double)needed / 1e9, (double)room / 1e9);
}

/* ---- requests ---- */

/* Requests the rest of the file at s->url. */
static kg_status ask(struct fetch *f, struct stream *s, struct kg_err *err)
{
    const char *url = kg_str_text(&s->url);
    char range[32];
    const struct kg_http_ask a = {.url = url,
                                  .ticket = (uint64_t)(s - f->streams),
                                  .range = s->at > 0 ? range : NULL,
                                  .no_key = !kg_http_same_origin(f->site->endpoint, url)};

    s->asked = s->at;
    snprintf(range, sizeof range, "%" PRIu64 "-", s->at);
    return kg_http_client_ask(f->client, &a, err);
}

static kg_status ask_hub(struct fetch *f, struct stream *s, struct kg_err *err)
{
    s->redirects = 0;
    kg_str_clear(&s->url);
    KG_TRY(kg_hub_put_page(&s->url, f->site, &f->opts->name, err));
    KG_TRY(kg_str_printf(&s->url, err, "/resolve/%s/", f->commit));
    KG_TRY(kg_hub_put_escaped(&s->url, s->file->path, true, err));
    return ask(f, s, err);
}

/* Discards the bytes that the stream has. */
static kg_status begin_again(struct fetch *f, struct stream *s, struct kg_err *err)
{
    f->there -= s->at;
    s->at = s->asked = 0;
    begin_digest(s);
    kg_file_writer_abort(&s->writer);
    return kg_file_writer_append(&s->writer, part_path(f, s).text, 0, err);
}

/* If an earlier pull left a part file, a crash may have lost bytes of it, so the whole
 * file is fetched once more. */
static kg_status refuse_digest(struct fetch *f, struct stream *s, const char *found,
                               struct kg_err *err)
{
    if (s->left_over) {
        kg_log_warn("%s: the file continued from an interrupted pull has the wrong "
                    "digest; fetching all of it again",
                    s->file->path);
        s->left_over = false;
        KG_TRY(begin_again(f, s, err));
        return ask_hub(f, s, err);
    }
    kg_file_writer_abort(&s->writer);
    KG_TRY(kg_file_remove_tree(part_path(f, s).text, err));
    return kg_fail(err, KG_EFORMAT,
                   "%s: expected the digest %s, found %s; the file is removed",
                   s->file->path, s->file->digest, found);
}

static kg_status finish(struct fetch *f, struct stream *s, struct kg_err *err)
{
    char found[KG_DIGEST_TEXT];

    kg_digest_end(found, &s->digest);
    if (strcmp(found, s->file->digest) != 0)
        return refuse_digest(f, s, found, err);
    KG_TRY(kg_file_writer_close(&s->writer, err));
    KG_TRY(kg_file_replace(part_path(f, s).text, blob_path(f, s).text, err));
    kg_str_release(&s->url);
    s->done = true;
    f->done++;
    return KG_OK;
}

static kg_status start_streams(struct fetch *f, struct kg_err *err)
{
    size_t most = f->opts->in_flight > 0 ? (size_t)f->opts->in_flight : IN_FLIGHT;

    for (; f->next < f->n && kg_http_client_waiting(f->client) < most; f->next++) {
        struct stream *s = &f->streams[f->next];

        if (s->done)
            continue;
        KG_TRY(kg_file_writer_append(&s->writer, part_path(f, s).text, s->at, err));
        KG_TRY(s->at == s->file->bytes ? finish(f, s, err) : ask_hub(f, s, err));
    }
    return KG_OK;
}

/* ---- data of a response ---- */

/* "bytes FIRST-LAST/ALL", ALL may be "*". */
static kg_status check_range(const struct stream *s, const char *range,
                             struct kg_err *err)
{
    const struct kg_hub_file *file = s->file;
    uint64_t first = 0, last = 0, all = file->bytes;
    int n = 0;

    if (!range ||
        sscanf(range, "bytes %" SCNu64 "-%" SCNu64 "/%n", &first, &last, &n) != 2 ||
        n == 0 || (range[n] != '*' && sscanf(range + n, "%" SCNu64, &all) != 1))
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected bytes FIRST-LAST/ALL, found '%.80s'", file->path,
                       range ? range : "");
    if (all != file->bytes)
        return kg_fail(err, KG_EFORMAT, "%s: expected %" PRIu64 " bytes, found %" PRIu64,
                       file->path, file->bytes, all);
    if (first != s->at || last >= all)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected bytes %" PRIu64 " to %" PRIu64 ", found '%.80s'",
                       file->path, s->at, all - 1, range);
    return KG_OK;
}

/* Status 200 brings the whole file, even if a range was requested. */
static kg_status check_whole(struct fetch *f, struct stream *s, const char *length,
                             struct kg_err *err)
{
    if (length && strtoull(length, NULL, 10) != s->file->bytes)
        return kg_fail(err, KG_EFORMAT, "%s: expected %" PRIu64 " bytes, found %.40s",
                       s->file->path, s->file->bytes, length);
    return s->at > 0 ? begin_again(f, s, err) : KG_OK;
}

static kg_status check_head(struct fetch *f, struct stream *s,
                            const struct kg_http_answer *a, struct kg_err *err)
{
    if (a->http_status == 206)
        return check_range(s, kg_http_answer_header(a, "Content-Range"), err);
    if (a->http_status == 200)
        return check_whole(f, s, kg_http_answer_header(a, "Content-Length"), err);
    return kg_fail(err, KG_EFORMAT, "%s: expected status 200 or 206, found %d",
                   s->file->path, a->http_status);
}

static kg_status put_piece(struct fetch *f, struct stream *s, const char *data, size_t n,
                           struct kg_err *err)
{
    if (n > s->file->bytes - s->at)
        return kg_fail(err, KG_EFORMAT, "%s: expected %" PRIu64 " bytes, found more",
                       s->file->path, s->file->bytes);
    KG_TRY(kg_file_writer_put(&s->writer, data, n, err));
    kg_digest_put(&s->digest, data, n);
    s->at += n;
    f->there += n;
    f->fetched += n;
    return KG_OK;
}

/* Keeps the error of a callback for take_answer. */
static kg_status keep_why(struct fetch *f, kg_status status, const struct kg_err *err)
{
    if (status != KG_OK)
        f->why = *err;
    f->failed |= status != KG_OK;
    return status;
}

static kg_status take_head(void *user, const struct kg_http_answer *a, struct kg_err *err)
{
    struct fetch *f = user;

    return keep_why(f, check_head(f, &f->streams[a->ticket], a, err), err);
}

static kg_status take_piece(void *user, uint64_t ticket, const char *data, size_t n,
                            struct kg_err *err)
{
    struct fetch *f = user;

    return keep_why(f, put_piece(f, &f->streams[ticket], data, n, err), err);
}

/* ---- end of a response ---- */

static kg_status go_on(struct fetch *f, struct stream *s, const struct kg_http_answer *a,
                       struct kg_err *err)
{
    if (a->status != KG_OK && s->at == s->asked)
        return kg_hub_explain(f->site, &f->opts->name, s->file->path, a, err);
    if (++s->cuts > MAX_CUTS || s->at == s->asked)
        return kg_fail(err, KG_EIO,
                       "%s: expected %" PRIu64
                       " bytes, found the response cut off at %" PRIu64
                       "; the same pull continues there",
                       s->file->path, s->file->bytes, s->at);
    return ask_hub(f, s, err);
}

static kg_status follow(struct fetch *f, struct stream *s, const struct kg_http_answer *a,
                        struct kg_err *err)
{
    if (++s->redirects > MAX_REDIRECTS)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected a file, found more than %d redirections",
                       s->file->path, MAX_REDIRECTS);
    if (kg_hub_check_redirect(kg_str_text(&s->url), a, err) != KG_OK)
        return kg_err_prefix(err, "%s", s->file->path);
    kg_str_clear(&s->url);
    KG_TRY(kg_str_puts(&s->url, a->redirect, err));
    return ask(f, s, err);
}

static kg_status take_answer(void *user, const struct kg_http_answer *a,
                             struct kg_err *err)
{
    struct fetch *f = user;
    struct stream *s = &f->streams[a->ticket];
    int code = a->status == KG_OK ? a->http_status : 0;

    if (f->failed) {
        *err = f->why;
        return err->code;
    }
    if (code >= 300 && code < 400 && a->redirect)
        return follow(f, s, a, err);
    if (code == 416)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected %" PRIu64 " bytes, found fewer (416)", s->file->path,
                       s->file->bytes);
    if (code >= 300)
        return kg_hub_explain(f->site, &f->opts->name, s->file->path, a, err);
    return s->at == s->file->bytes ? finish(f, s, err) : go_on(f, s, a, err);
}

/* ---- all files ---- */

static kg_status fetch_all(struct fetch *f, struct kg_err *err)
{
    while (f->done < f->n) {
        if (kg_signal_stop_requested())
            return stopped(f, err);
        KG_TRY(start_streams(f, err));
        KG_TRY(kg_http_client_poll(f->client, POLL_MS, take_answer, f, err));
        kg_log_progress(PROGRESS_MS, "%s: %.2f of %.2f GB, %zu of %zu files",
                        f->opts->name.id, (double)f->there / 1e9, (double)f->bytes / 1e9,
                        f->done, f->n);
    }
    return KG_OK;
}

static kg_status open_client(struct fetch *f, struct kg_err *err)
{
    const struct kg_hub_pull_opts *o = f->opts;
    const struct kg_str *token = &f->site->token;
    struct kg_http_client_opts how = {
        .surroundings = true,
        .stall_timeout_s = o->stall_timeout_s > 0 ? o->stall_timeout_s : STALL_S,
        .backoff_ms = o->backoff_ms > 0 ? o->backoff_ms : BACKOFF_MS,
        .bearer_key = token->len > 0 ? token->data : NULL,
        .head = take_head,
        .piece = take_piece,
        .piece_user = f,
        .pieces_alone = true};

    return kg_http_client_open(&f->client, &how, err);
}

/* Flushes incomplete part files: the next pull continues them. */
static void release(struct fetch *f)
{
    struct kg_err why;

    kg_http_client_close(f->client);
    for (size_t i = 0; i < f->n; i++) {
        struct stream *s = &f->streams[i];

        if (s->writer.path && kg_file_writer_flush(&s->writer, &why) != KG_OK)
            kg_log_warn("%s", why.message);
        kg_file_writer_abort(&s->writer);
        kg_str_release(&s->url);
    }
    kg_mem_free(f->streams);
}

kg_status kg_hub_fetch(uint64_t *fetched, const struct kg_hub_list *list,
                       const struct kg_hub_site *site,
                       const struct kg_hub_pull_opts *opts, const char *blobs,
                       struct kg_err *err)
{
    struct fetch f = {.site = site, .opts = opts, .commit = list->commit, .dir = blobs};
    kg_status status = make_streams(&f, list, err);

    if (status == KG_OK)
        status = check_room(&f, err);
    if (status == KG_OK)
        status = open_client(&f, err);
    if (status == KG_OK)
        status = fetch_all(&f, err);
    kg_log_progress_end();
    *fetched = f.fetched;
    release(&f);
    return status;
}
