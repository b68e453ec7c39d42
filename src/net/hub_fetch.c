/* Fetches files in parts, many at once, from one thread. A file is written to
 * DIGEST.kedge-part next to its final place; DIGEST.kedge-have records how much of each
 * part is there, so an interrupted pull requests only the rest. The first part of a file
 * is requested alone: a server that replies with the whole file (200) does not support
 * ranges. A complete file is read once for its digest, in small steps between network
 * events, and then renamed. Nothing is trusted before its digest matches. */
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
    PART_BYTES = 32 << 20,
    STALL_S = 30,
    BACKOFF_MS = 500,
    MAX_IN_FLIGHT = 64,
    MAX_REDIRECTS = 5,
    MAX_CUTS = 50,      /* of one part, each after some bytes */
    MAX_SIGNATURES = 3, /* that ran out before another part was whole */
    HASH_BYTES = 4 << 20,
    POLL_MS = 200,
    PROGRESS_MS = 10000,
    MAX_HAVE_BYTES = 1 << 24,
};

/* ASK_ONE: whether the server knows ranges is not known yet. */
enum blob_state { WAITING, ASK_ONE, OPEN, WHOLE, HASHING, DONE };

struct blob {
    const struct kg_hub_file *file; /* borrowed */
    enum blob_state state;
    struct kg_file_writer writer;
    uint64_t *got; /* (n_parts) bytes of each part that are there; owned */
    bool *taken;   /* (n_parts) in flight or done; owned */
    size_t n_parts, left;
    char *url;           /* owned: where a redirection led, NULL: the hub is asked */
    unsigned generation; /* raised whenever url changes */
    int signatures;
    bool left_over;    /* a pull before this one left some of it */
    bool lost;         /* a write failed: bytes of `got` are nowhere */
    struct kg_map map; /* while HASHING */
    uint64_t hashed;
    struct kg_digest digest;
    struct blob *next; /* that waits for its digest */
};

struct flight {
    bool used;
    struct blob *blob;
    size_t part;
    uint64_t at, end;  /* bytes of the file: the next, and after the last */
    uint64_t asked;    /* at, when it was asked for */
    struct kg_str url; /* owned: where */
    /* that of the blob, if it was asked; 0: the hub itself was asked */
    unsigned generation;
    int redirects, cuts;
};

struct fetch {
    const struct kg_hub_site *site;
    const struct kg_hub_pull_opts *opts;
    const char *commit, *dir; /* of the blobs */
    struct kg_http_client *client;
    struct blob *blobs; /* (n) owned */
    size_t n, done;
    size_t first; /* the blobs before it have no part that nobody fetches */
    struct blob *hash_first, *hash_last; /* those HASHING, as they came */
    struct flight flights[MAX_IN_FLIGHT];
    int in_flight;
    uint64_t part_bytes, bytes, there, fetched, room;
    /* what a callback refused: the client knows only that it did */
    struct kg_err why;
    bool failed;
};

/* ---- what is there ---- */

#define PART ".kedge-part"
#define HAVE ".kedge-have"

/* The blob, or what stands beside it until it is whole. */
static struct kg_path path_of(const struct fetch *f, const struct blob *b,
                              const char *end)
{
    char name[KG_DIGEST_TEXT + 16];

    snprintf(name, sizeof name, "%s%s", b->file->digest, end);
    return kg_path_in(f->dir, name);
}

static uint64_t part_first(const struct fetch *f, size_t part)
{
    return part * f->part_bytes;
}

static uint64_t part_size(const struct fetch *f, const struct blob *b, size_t part)
{
    uint64_t left = b->file->bytes - part_first(f, part);

    return left < f->part_bytes ? left : f->part_bytes;
}

static void forget_parts(struct fetch *f, struct blob *b)
{
    for (size_t i = 0; i < b->n_parts; i++) {
        f->there -= b->got[i];
        b->got[i] = 0;
        b->taken[i] = false;
    }
    b->left = b->n_parts;
}

static kg_status written(struct blob *b, kg_status status)
{
    b->lost |= status != KG_OK;
    return status;
}

/* "kedge 1 BYTES PART_BYTES\n", then how much of each part is there, a line each. */
static kg_status save_have(struct fetch *f, struct blob *b, struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status;

    KG_TRY_GOTO(out, written(b, kg_file_writer_flush(&b->writer, err)));
    KG_TRY_GOTO(out, kg_str_printf(&text, err, "kedge 1 %" PRIu64 " %" PRIu64 "\n",
                                   b->file->bytes, f->part_bytes));
    for (size_t i = 0; i < b->n_parts; i++)
        KG_TRY_GOTO(out, kg_str_printf(&text, err, "%" PRIu64 "\n", b->got[i]));
    status = kg_file_write_atomic(path_of(f, b, HAVE).text, text.data, text.len, err);
out:
    kg_str_release(&text);
    return status;
}

static bool read_have_text(struct fetch *f, struct blob *b, const char *text)
{
    uint64_t bytes, part_bytes;
    int n = 0;

    if (sscanf(text, "kedge 1 %" SCNu64 " %" SCNu64 "%n", &bytes, &part_bytes, &n) != 2 ||
        bytes != b->file->bytes || part_bytes != f->part_bytes)
        return false;
    for (size_t i = 0; i < b->n_parts; i++) {
        char *end;

        text += n;
        b->got[i] = strtoull(text, &end, 10);
        n = (int)(end - text);
        if (n == 0 || b->got[i] > part_size(f, b, i))
            return false;
    }
    return true;
}

static bool has_part_file(const struct fetch *f, const struct blob *b)
{
    struct kg_path path = path_of(f, b, PART);
    struct kg_err ignored;
    uint64_t bytes;

    return kg_file_is_regular(path.text) &&
           kg_file_size(&bytes, path.text, &ignored) == KG_OK && bytes == b->file->bytes;
}

/* What a pull before this one left. Anything odd about it, and the file begins again. */
static void read_have(struct fetch *f, struct blob *b)
{
    struct kg_str text = {0};
    struct kg_err ignored;

    if (!has_part_file(f, b) || !kg_file_is_regular(path_of(f, b, HAVE).text) ||
        kg_file_read(&text, path_of(f, b, HAVE).text, MAX_HAVE_BYTES, &ignored) !=
            KG_OK ||
        !read_have_text(f, b, kg_str_text(&text)))
        memset(b->got, 0, b->n_parts * sizeof *b->got);
    kg_str_release(&text);
    for (size_t i = 0; i < b->n_parts; i++) {
        b->taken[i] = b->got[i] == part_size(f, b, i);
        b->left -= b->taken[i];
        b->left_over |= b->got[i] > 0;
        f->there += b->got[i];
    }
}

static kg_status no_room(const struct fetch *f, uint64_t needed, struct kg_err *err)
{
    return kg_fail(err, KG_ENOSPACE, "%s: expected room for %.2f GB, found %.2f GB",
                   f->dir, (double)needed / 1e9, (double)f->room / 1e9);
}

static kg_status make_blob(struct fetch *f, struct blob *b,
                           const struct kg_hub_file *file, struct kg_err *err)
{
    uint64_t bytes;

    b->file = file;
    struct kg_path path = path_of(f, b, "");
    f->bytes += file->bytes;
    if (kg_file_is_regular(path.text)) {
        KG_TRY(kg_file_size(&bytes, path.text, err));
        if (bytes == file->bytes) {
            b->state = DONE;
            f->there += bytes;
            f->done++;
            return KG_OK;
        }
    }
    if (file->bytes > f->room && !has_part_file(f, b))
        return no_room(f, file->bytes, err); /* before its parts take memory */
    b->n_parts = (size_t)((file->bytes + f->part_bytes - 1) / f->part_bytes);
    b->left = b->n_parts;
    b->got = kg_mem_calloc(b->n_parts, sizeof *b->got, "parts", err);
    b->taken = b->got ? kg_mem_calloc(b->n_parts, sizeof *b->taken, "parts", err) : NULL;
    if (!b->taken)
        return KG_ENOMEM;
    read_have(f, b);
    return KG_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct kg_hub_file *x = *(const struct kg_hub_file *const *)a;
    const struct kg_hub_file *y = *(const struct kg_hub_file *const *)b;

    return (x > y) - (x < y);
}

static int by_digest(const void *a, const void *b)
{
    const struct kg_hub_file *x = *(const struct kg_hub_file *const *)a;
    const struct kg_hub_file *y = *(const struct kg_hub_file *const *)b;
    int order = strcmp(x->digest, y->digest);

    return order ? order : by_place(a, b);
}

/* The files to fetch, in the order of the list; of several with one digest only the
 * first.
 * returns how many */
static size_t choose(const struct kg_hub_file **out, const struct kg_hub_list *list)
{
    size_t n = 0, kept = 0;

    for (size_t i = 0; i < list->n; i++)
        if (list->files[i].wanted)
            out[n++] = &list->files[i];
    qsort(out, n, sizeof *out, by_digest);
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || strcmp(out[i]->digest, out[kept - 1]->digest) != 0)
            out[kept++] = out[i];
    qsort(out, kept, sizeof *out, by_place);
    return kept;
}

static kg_status make_blobs(struct fetch *f, const struct kg_hub_list *list,
                            struct kg_err *err)
{
    const struct kg_hub_file **files = kg_mem_calloc(list->n, sizeof *files,
                                                     "files of the hub", err);
    kg_status status = files ? KG_OK : KG_ENOMEM;
    size_t n = files ? choose(files, list) : 0;

    if (status == KG_OK)
        f->blobs = kg_mem_calloc(n, sizeof *f->blobs, "files of the hub", err);
    if (!f->blobs)
        status = KG_ENOMEM;
    while (status == KG_OK && f->n < n) {
        f->n++;
        status = make_blob(f, &f->blobs[f->n - 1], files[f->n - 1], err);
    }
    kg_mem_free(files);
    return status;
}

/* Of all that is missing: what is there of a part is on the disk. */
static kg_status check_room(const struct fetch *f, struct kg_err *err)
{
    uint64_t needed = f->bytes - f->there;

    return needed <= f->room ? KG_OK : no_room(f, needed, err);
}

/* ---- asking ---- */

static kg_status put_address(struct kg_str *url, const struct fetch *f,
                             const struct blob *b, struct kg_err *err)
{
    if (b->url)
        return kg_str_puts(url, b->url, err);
    KG_TRY(kg_hub_put_page(url, f->site, &f->opts->name, err));
    KG_TRY(kg_str_printf(url, err, "/resolve/%s/", f->commit));
    return kg_hub_put_escaped(url, b->file->path, true, err);
}

static kg_status ask(struct fetch *f, struct flight *x, struct kg_err *err)
{
    char range[64];
    struct kg_http_ask a = {.ticket = (uint64_t)(x - f->flights), .range = range};

    kg_str_clear(&x->url);
    KG_TRY(put_address(&x->url, f, x->blob, err));
    x->generation = x->blob->url ? x->blob->generation : 0;
    x->asked = x->at;
    snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, x->at, x->end - 1);
    a.url = kg_str_text(&x->url);
    a.no_key = !kg_http_same_origin(f->site->endpoint, a.url);
    return kg_http_client_ask(f->client, &a, err);
}

static kg_status open_part_file(struct fetch *f, struct blob *b, struct kg_err *err)
{
    bool fresh = b->left == b->n_parts && !kg_file_is_regular(path_of(f, b, HAVE).text);
    uint64_t bytes = 0;

    if (kg_file_is_regular(path_of(f, b, PART).text))
        KG_TRY(kg_file_size(&bytes, path_of(f, b, PART).text, err));
    if (fresh || bytes != b->file->bytes) {
        forget_parts(f, b);
        KG_TRY(kg_file_remove_tree(path_of(f, b, PART).text, err));
        bytes = 0;
    }
    KG_TRY(kg_file_writer_append(&b->writer, path_of(f, b, PART).text, bytes, err));
    KG_TRY(kg_file_writer_extend(&b->writer, b->file->bytes, err));
    return KG_OK;
}

/* All of it is there: its digest is next. */
static void queue_hash(struct fetch *f, struct blob *b)
{
    b->state = HASHING;
    if (f->hash_first)
        f->hash_last->next = b;
    else
        f->hash_first = b;
    f->hash_last = b;
}

/* The next part that nobody fetches; SIZE_MAX: none for now. */
static size_t next_part(const struct blob *b)
{
    for (size_t i = 0; i < b->n_parts; i++)
        if (!b->taken[i])
            return i;
    return SIZE_MAX;
}

static struct flight *free_flight(struct fetch *f)
{
    for (int i = 0; i < f->in_flight; i++)
        if (!f->flights[i].used)
            return &f->flights[i];
    return NULL;
}

static bool is_asked(const struct fetch *f, const struct blob *b)
{
    for (int i = 0; i < f->in_flight; i++)
        if (f->flights[i].used && f->flights[i].blob == b)
            return true;
    return false;
}

static kg_status start_part(struct fetch *f, struct flight *x, struct blob *b,
                            size_t part, struct kg_err *err)
{
    *x = (struct flight){.used = true,
                         .blob = b,
                         .part = part,
                         .at = part_first(f, part) + b->got[part],
                         .end = part_first(f, part) + part_size(f, b, part)};
    b->taken[part] = true;
    return ask(f, x, err);
}

static bool has_parts_to_fetch(const struct blob *b)
{
    return b->state == WAITING ||
           ((b->state == ASK_ONE || b->state == OPEN) && next_part(b) != SIZE_MAX);
}

/* Give every free connection a part. */
static kg_status start_parts(struct fetch *f, struct kg_err *err)
{
    while (f->first < f->n && !has_parts_to_fetch(&f->blobs[f->first]))
        f->first++;
    for (size_t i = f->first; i < f->n; i++) {
        struct blob *b = &f->blobs[i];
        struct flight *x = free_flight(f);

        if (!x)
            return KG_OK;
        if (b->state == WAITING) {
            KG_TRY(open_part_file(f, b, err));
            b->state = b->n_parts == 1 ? OPEN : ASK_ONE;
            if (b->left == 0)
                queue_hash(f, b);
        }
        while (x && (b->state == OPEN || (b->state == ASK_ONE && !is_asked(f, b))) &&
               next_part(b) != SIZE_MAX) {
            KG_TRY(start_part(f, x, b, next_part(b), err));
            x = free_flight(f);
        }
    }
    return KG_OK;
}

/* ---- what comes ---- */

/* A refusal of ours, for the line that ends the pull. */
static kg_status refuse(struct fetch *f, struct kg_err *err)
{
    f->why = *err;
    f->failed = true;
    return err->code;
}

/* "bytes FIRST-LAST/ALL", ALL may be "*". */
static kg_status check_range(const struct flight *x, const char *range,
                             struct kg_err *err)
{
    const struct kg_hub_file *file = x->blob->file;
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
    if (first != x->asked || last >= x->end)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected bytes %" PRIu64 " to %" PRIu64 ", found '%.80s'",
                       file->path, x->asked, x->end - 1, range);
    return KG_OK;
}

/* The whole file where a part was asked for: it is all that will be asked. */
static kg_status take_whole(struct fetch *f, struct flight *x, const char *length,
                            struct kg_err *err)
{
    struct blob *b = x->blob;

    if (length && strtoull(length, NULL, 10) != b->file->bytes)
        return kg_fail(err, KG_EFORMAT, "%s: expected %" PRIu64 " bytes, found %.40s",
                       b->file->path, b->file->bytes, length);
    if (b->state == OPEN && b->n_parts > 1)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected partial content (206), found the whole file (200)",
                       b->file->path);
    forget_parts(f, b);
    b->state = WHOLE;
    x->part = 0;
    x->at = x->asked = 0;
    x->end = b->file->bytes;
    return KG_OK;
}

static kg_status take_head(void *user, const struct kg_http_answer *a, struct kg_err *err)
{
    struct fetch *f = user;
    struct flight *x = &f->flights[a->ticket];
    kg_status status;

    if (a->http_status == 206)
        status = check_range(x, kg_http_answer_header(a, "Content-Range"), err);
    else if (a->http_status == 200)
        status = take_whole(f, x, kg_http_answer_header(a, "Content-Length"), err);
    else
        status = kg_fail(err, KG_EFORMAT, "%s: expected status 200 or 206, found %d",
                         x->blob->file->path, a->http_status);
    if (status != KG_OK)
        return refuse(f, err);
    if (x->blob->state == ASK_ONE)
        x->blob->state = OPEN;
    return KG_OK;
}

static kg_status write_piece(struct fetch *f, struct flight *x, const char *data,
                             size_t n, struct kg_err *err)
{
    struct blob *b = x->blob;

    if (n > x->end - x->at)
        return kg_fail(err, KG_EFORMAT, "%s: expected %" PRIu64 " bytes, found more",
                       b->file->path, x->end - x->asked);
    if (b->writer.written != x->at)
        KG_TRY(written(b, kg_file_writer_seek(&b->writer, x->at, err)));
    KG_TRY(written(b, kg_file_writer_put(&b->writer, data, n, err)));
    x->at += n;
    b->got[x->part] += n;
    f->there += n;
    f->fetched += n;
    return KG_OK;
}

static kg_status take_piece(void *user, uint64_t ticket, const char *data, size_t n,
                            struct kg_err *err)
{
    struct fetch *f = user;

    return write_piece(f, &f->flights[ticket], data, n, err) == KG_OK ? KG_OK
                                                                      : refuse(f, err);
}

/* ---- what has come ---- */

static kg_status finish_part(struct fetch *f, struct flight *x, struct kg_err *err)
{
    struct blob *b = x->blob;

    x->used = false;
    kg_str_release(&x->url);
    b->signatures = 0;
    b->left = b->state == WHOLE ? 0 : b->left - 1;
    if (b->left > 0)
        return save_have(f, b, err);
    queue_hash(f, b);
    return kg_file_writer_close(&b->writer, err);
}

static kg_status go_on(struct fetch *f, struct flight *x, const struct kg_http_answer *a,
                       struct kg_err *err)
{
    const char *path = x->blob->file->path;

    if (a->status != KG_OK && x->at == x->asked)
        return kg_hub_explain(f->site, &f->opts->name, path, a, err);
    if (++x->cuts > MAX_CUTS || x->at == x->asked)
        return kg_fail(err, KG_EIO,
                       "%s: expected bytes %" PRIu64 " to %" PRIu64
                       ", found the answer cut off at %" PRIu64
                       "; the same pull continues there",
                       path, x->asked, x->end - 1, x->at);
    return ask(f, x, err);
}

static void set_address(struct blob *b, char *url)
{
    kg_mem_free(b->url);
    b->url = url;
    b->generation++;
}

static kg_status follow(struct fetch *f, struct flight *x, const struct kg_http_answer *a,
                        struct kg_err *err)
{
    const char *path = x->blob->file->path;
    char *url;

    if (++x->redirects > MAX_REDIRECTS)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected a file, found more than %d redirections", path,
                       MAX_REDIRECTS);
    if (kg_hub_check_redirect(kg_str_text(&x->url), a, err) != KG_OK)
        return kg_err_prefix(err, "%s", path);
    url = kg_mem_strdup(a->redirect, err);
    if (!url)
        return KG_ENOMEM;
    set_address(x->blob, url);
    return ask(f, x, err);
}

/* An address that a redirection led to is good for a while: then the hub gives another.
 * Several parts ask one address, and each is refused: the first of them ends it, and what
 * stands in its place is not meant by the others. The hub's own refusal is none of
 * these. */
static bool has_run_out(struct flight *x, int http_status)
{
    struct blob *b = x->blob;

    if (x->generation == 0 ||
        (http_status != 401 && http_status != 403 && http_status != 410))
        return false;
    if (x->generation == b->generation) {
        if (++b->signatures > MAX_SIGNATURES)
            return false;
        set_address(b, NULL);
    }
    x->redirects = 0;
    return true;
}

static kg_status take_answer(void *user, const struct kg_http_answer *a,
                             struct kg_err *err)
{
    struct fetch *f = user;
    struct flight *x = &f->flights[a->ticket];
    int code = a->status == KG_OK ? a->http_status : 0;

    if (f->failed) {
        *err = f->why;
        return err->code;
    }
    if (code >= 300 && code < 400 && a->redirect)
        return follow(f, x, a, err);
    if (code == 416)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected %" PRIu64 " bytes, found fewer (416)",
                       x->blob->file->path, x->blob->file->bytes);
    if (code >= 300)
        return has_run_out(x, code)
                   ? ask(f, x, err)
                   : kg_hub_explain(f->site, &f->opts->name, x->blob->file->path, a, err);
    if (x->at == x->end)
        return finish_part(f, x, err);
    return go_on(f, x, a, err);
}

/* ---- the digest ---- */

static kg_status begin_hash(const struct fetch *f, struct blob *b, struct kg_err *err)
{
    char head[40];

    if (b->writer.path)
        KG_TRY(kg_file_writer_close(&b->writer, err));
    KG_TRY(kg_map_open(&b->map, path_of(f, b, PART).text, err));
    kg_digest_begin(&b->digest, b->file->kind);
    if (b->file->kind == KG_SHA1) { /* git's: with a line in front, and its NUL */
        snprintf(head, sizeof head, "blob %" PRIu64, b->file->bytes);
        kg_digest_put(&b->digest, head, strlen(head) + 1);
    }
    return KG_OK;
}

/* What turned out to be another file is of no use to anybody. Where a part of it is older
 * than this pull, the machine may have stopped before all was on the disk: once more. */
static kg_status refuse_digest(struct fetch *f, struct blob *b, const char *found,
                               struct kg_err *err)
{
    KG_TRY(kg_file_remove_tree(path_of(f, b, PART).text, err));
    KG_TRY(kg_file_remove_tree(path_of(f, b, HAVE).text, err));
    if (!b->left_over)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected the digest %s, found %s; the file is removed",
                       b->file->path, b->file->digest, found);
    kg_log_warn("%s: the partial file of an interrupted pull does not match: fetching "
                "the whole file",
                b->file->path);
    b->left_over = false;
    b->state = WAITING;
    if (f->first > (size_t)(b - f->blobs))
        f->first = (size_t)(b - f->blobs);
    b->hashed = 0;
    forget_parts(f, b);
    return KG_OK;
}

static kg_status end_hash(struct fetch *f, struct blob *b, struct kg_err *err)
{
    char found[KG_DIGEST_TEXT];

    f->hash_first = b->next;
    b->next = NULL;
    kg_map_close(&b->map);
    kg_digest_end(found, &b->digest);
    if (strcmp(found, b->file->digest) != 0)
        return refuse_digest(f, b, found, err);
    KG_TRY(kg_file_replace(path_of(f, b, PART).text, path_of(f, b, "").text, err));
    b->state = DONE;
    f->done++;
    return kg_file_remove_tree(path_of(f, b, HAVE).text, err);
}

/* A little of the first that waits for it.   *busy: there is more to do */
static kg_status hash_some(bool *busy, struct fetch *f, struct kg_err *err)
{
    struct blob *b = f->hash_first;
    uint64_t n;

    *busy = b != NULL;
    if (!*busy)
        return KG_OK;
    if (b->hashed == 0)
        KG_TRY(begin_hash(f, b, err));
    n = b->map.bytes - b->hashed < HASH_BYTES ? b->map.bytes - b->hashed : HASH_BYTES;
    if (n > 0) {
        kg_digest_put(&b->digest, b->map.data + b->hashed, n);
        kg_map_let_go(b->map.data + b->hashed, n);
    }
    b->hashed += n;
    return b->hashed == b->map.bytes ? end_hash(f, b, err) : KG_OK;
}

/* ---- the whole ---- */

static kg_status stopped(const struct fetch *f, struct kg_err *err)
{
    return kg_fail(err, KG_EINTERRUPTED,
                   "%s: stopped at %.2f of %.2f GB; the same pull continues there",
                   f->opts->name.id, (double)f->there / 1e9, (double)f->bytes / 1e9);
}

static kg_status fetch_all(struct fetch *f, struct kg_err *err)
{
    bool busy = false;

    while (f->done < f->n) {
        if (kg_signal_stop_requested())
            return stopped(f, err);
        KG_TRY(start_parts(f, err));
        if (kg_http_client_waiting(f->client) > 0)
            KG_TRY(
                kg_http_client_poll(f->client, busy ? 0 : POLL_MS, take_answer, f, err));
        KG_TRY(hash_some(&busy, f, err));
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
        .max_in_flight = f->in_flight,
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

/* What has come of files that are not whole stays, with a note of it: the one of before
 * where a write failed. */
static void release(struct fetch *f)
{
    struct kg_err ignored;

    kg_http_client_close(f->client);
    for (int i = 0; i < MAX_IN_FLIGHT; i++)
        kg_str_release(&f->flights[i].url);
    for (size_t i = 0; i < f->n; i++) {
        struct blob *b = &f->blobs[i];
        bool parts = (b->state == OPEN || b->state == ASK_ONE) && !b->lost;

        if (b->writer.path && parts && save_have(f, b, &ignored) != KG_OK)
            kg_log_warn("%s", ignored.message);
        kg_file_writer_abort(&b->writer);
        kg_map_close(&b->map);
        kg_mem_free(b->got);
        kg_mem_free(b->taken);
        kg_mem_free(b->url);
    }
    kg_mem_free(f->blobs);
    kg_mem_free(f);
}

kg_status kg_hub_fetch(uint64_t *fetched, const struct kg_hub_list *list,
                       const struct kg_hub_site *site,
                       const struct kg_hub_pull_opts *opts, const char *blobs,
                       struct kg_err *err)
{
    struct fetch *f = kg_mem_calloc(1, sizeof *f, "downloads", err);
    kg_status status;

    if (!f)
        return KG_ENOMEM;
    f->site = site;
    f->opts = opts;
    f->commit = list->commit;
    f->dir = blobs;
    f->in_flight = opts->in_flight > 0 ? opts->in_flight : IN_FLIGHT;
    f->part_bytes = opts->part_bytes > 0 ? opts->part_bytes : PART_BYTES;
    if (f->in_flight > MAX_IN_FLIGHT)
        f->in_flight = MAX_IN_FLIGHT;
    KG_TRY_GOTO(out, kg_file_free_bytes(&f->room, blobs, err));
    KG_TRY_GOTO(out, make_blobs(f, list, err));
    KG_TRY_GOTO(out, check_room(f, err));
    KG_TRY_GOTO(out, open_client(f, err));
    status = fetch_all(f, err);
    kg_log_progress_end();
out:
    *fetched = f->fetched;
    release(f);
    return status;
}
