/* Loads NCCL, joins the ranks, and moves data.
 *
 * The communicator is non-blocking: no call waits for other ranks. Its state is polled,
 * with a timeout as in all waits. A communicator that failed, or that a rank did not
 * join, is aborted, which removes its kernels from the device.
 */
#include "ranks/nccl.h"

#include "base/clock.h"
#include "base/library.h"
#include "base/mem.h"
#include "ranks/nccl_calls.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WITHOUT "ranks.link=host needs no NCCL (docs/ranks.md)"

struct kg_ranks_nccl {
    char path[PATH_MAX];
    char version[KG_NCCL_VERSION];
    void *object;
    struct kg_nccl_calls call;
    void *comm; /* NULL: not joined, or given up */
    const struct kg_backend *be;
    struct kg_ranks_part *parts; /* (2, ranks) owned; out and in of an exchange */
    const void **lent;           /* (2 ranks) owned; the memory of parts */
};

/* ---- finding the library ---- */

kg_status kg_ranks_nccl_find(char *path, const char *folder, struct kg_err *err)
{
    struct kg_library_search s = {.file = KG_NCCL_LIBRARY, .path = path};

    if (folder) {
        kg_library_look_at(&s, folder);
    } else {
        kg_library_look_in(&s, "/usr/local/cuda/lib64");
        kg_library_look_as_loader(&s);
        kg_library_look_among_wheels(&s, "nvidia/nccl/lib");
    }
    return s.found ? KG_OK
                   : kg_fail(err, KG_ENOTFOUND,
                             "nccl: no " KG_NCCL_LIBRARY " in %s; " WITHOUT, s.places);
}

/* ---- its symbols and version ---- */

static const struct {
    const char *name;
    size_t at;
} symbols[] = {
#define SYMBOL(name, field)                                                              \
    {                                                                                    \
        name, offsetof(struct kg_nccl_calls, field)                                      \
    }
    SYMBOL("ncclGetVersion", version),
    SYMBOL("ncclGetErrorString", error),
    SYMBOL("ncclGetUniqueId", id),
    SYMBOL("ncclCommInitRankConfig", init),
    SYMBOL("ncclGroupStart", group_start),
    SYMBOL("ncclGroupEnd", group_end),
    SYMBOL("ncclSend", send),
    SYMBOL("ncclRecv", recv),
    SYMBOL("ncclCommGetAsyncError", async_error),
    SYMBOL("ncclCommAbort", give_up),
};

static kg_status check_version(struct kg_ranks_nccl *x, struct kg_err *err)
{
    int v = 0;

    if (x->call.version(&v) != KG_NCCL_OK)
        return kg_fail(err, KG_EDEVICE, "nccl: %s reports no version; " WITHOUT, x->path);
    snprintf(x->version, sizeof x->version, "%d.%d.%d", v / 10000, v / 100 % 100,
             v % 100);
    if (v >= KG_NCCL_OLDEST)
        return KG_OK;
    if (v < 10000) /* 2804 was 2.8.4 */
        snprintf(x->version, sizeof x->version, "%d.%d.%d", v / 1000, v / 100 % 10,
                 v % 100);
    return kg_fail(err, KG_ECONFLICT,
                   "nccl: %s: expected version %d.%d or newer, found %s; " WITHOUT,
                   x->path, KG_NCCL_OLDEST / 10000, KG_NCCL_OLDEST / 100 % 100,
                   x->version);
}

/* Symbols come before the version: the error names one that is missing. */
static kg_status load(struct kg_ranks_nccl *x, const char *folder, struct kg_err *err)
{
    KG_TRY(kg_ranks_nccl_find(x->path, folder, err));
    /* stays loaded after dlclose, as cuBLASLt does (tensor/cuda/blas.cu) */
    x->object = dlopen(x->path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!x->object)
        return kg_fail(err, KG_EFORMAT, "nccl: %s; " WITHOUT, dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *at = dlsym(x->object, symbols[i].name);

        if (!at)
            return kg_fail(err, KG_EFORMAT,
                           "nccl: %s: expected the symbol %s, found none; " WITHOUT,
                           x->path, symbols[i].name);
        memcpy((char *)&x->call + symbols[i].at, &at, sizeof at);
    }
    return check_version(x, err);
}

kg_status kg_ranks_nccl_look(char *path, char *version, const char *folder,
                             struct kg_err *err)
{
    struct kg_ranks_nccl x = {.object = NULL};
    kg_status status = load(&x, folder, err);

    memcpy(path, x.path, sizeof x.path);
    memcpy(version, x.version, sizeof x.version);
    if (x.object)
        dlclose(x.object);
    return status;
}

/* ---- what is in flight ---- */

/* A part uses the communicator of the whole: not every rank of a communicator must take
 * part in an exchange. */
static struct kg_ranks *whole_of(struct kg_ranks *r) { return r->whole ? r->whole : r; }

static void give_up(struct kg_ranks_nccl *x)
{
    if (x->comm)
        (void)x->call.give_up(x->comm);
    x->comm = NULL;
}

static kg_status fail(const struct kg_ranks_nccl *x, int result, const char *what,
                      struct kg_err *err)
{
    return kg_fail(err, KG_EDEVICE, "%s: nccl %s: %s", what, x->version,
                   x->call.error(result));
}

/* A group of sends and receives of one rank. */
struct flight {
    struct kg_ranks_nccl *x;
    const struct kg_ranks_part *out, *in; /* (n) */
    int n, first;                         /* ranks; number of the first in x->comm */
    size_t lent;
};

static bool runs(int result)
{
    return result == KG_NCCL_OK || result == KG_NCCL_IN_PROGRESS;
}

/* A group that was begun is always ended, even after an error. */
static int launch(void *arg, void *stream)
{
    const struct flight *f = arg;
    const struct kg_nccl_calls *call = &f->x->call;
    int e = call->group_start(), ended;

    if (!runs(e))
        return e;
    for (int p = 0; p < f->n && runs(e); p++) {
        if (f->out[p].n > 0)
            e = call->send(f->out[p].data, f->out[p].n, KG_NCCL_INT8, f->first + p,
                           f->x->comm, stream);
        if (f->in[p].n > 0 && runs(e))
            e = call->recv(f->in[p].data, f->in[p].n, KG_NCCL_INT8, f->first + p,
                           f->x->comm, stream);
    }
    ended = call->group_end();
    return runs(e) ? ended : e;
}

/* returns OK, in progress, or the error */
static int look(void *arg, void *stream)
{
    const struct flight *f = arg;
    int state = KG_NCCL_OK, e = f->x->call.async_error(f->x->comm, &state);

    (void)stream;
    return e == KG_NCCL_OK ? state : e;
}

static kg_status lend(struct flight *f, int (*call)(void *arg, void *stream),
                      const char *what, bool *over, struct kg_err *err)
{
    int result;

    KG_TRY(kg_buf_lend(f->x->be, &result, call, f, f->x->lent, f->lent, err));
    *over = result == KG_NCCL_OK;
    return runs(result) ? KG_OK : fail(f->x, result, what, err);
}

/* Waits until NCCL has launched the group. */
static kg_status until_launched(struct flight *f, double wait_s, double since,
                                const char *what, struct kg_err *err)
{
    bool over = false;

    while (!over) {
        KG_TRY(lend(f, look, what, &over, err));
        if (!over && wait_s > 0 && kg_clock_seconds() - since > wait_s / 2)
            return kg_fail(
                err, KG_ETIMEOUT,
                "%s: nccl %s: expected the collective to start within %.3g s (half of "
                "ranks.wait_s), found it still waiting",
                what, f->x->version, wait_s / 2);
        if (!over)
            usleep(50);
    }
    return KG_OK;
}

/* Waits until the device has executed the group. NCCL detects failures of links. */
static kg_status until_moved(struct flight *f, double wait_s, const char *what,
                             struct kg_err *err)
{
    const double since = kg_clock_seconds();
    bool over, moved = false;
    uint64_t mark;

    KG_TRY(until_launched(f, wait_s, since, what, err));
    KG_TRY(kg_buf_mark(f->x->be, &mark, err));
    for (;;) {
        KG_TRY(kg_buf_reached(f->x->be, &moved, mark, err));
        if (moved)
            return KG_OK;
        KG_TRY(lend(f, look, what, &over, err));
        if (wait_s > 0 && kg_clock_seconds() - since > wait_s / 2)
            return kg_fail(
                err, KG_ETIMEOUT,
                "%s: nccl %s: expected the collective to finish within %.3g s (half of "
                "ranks.wait_s), found it still running",
                what, f->x->version, wait_s / 2);
        usleep(50);
    }
}

/* ---- joining ---- */

static kg_status make_id(struct kg_nccl_id *id, const struct kg_ranks_nccl *x,
                         struct kg_err *err)
{
    int e = x->call.id(id);

    return e == KG_NCCL_OK
               ? KG_OK
               : kg_fail(err, KG_EDEVICE, "nccl: %s does not start: %s; " WITHOUT,
                         x->path, x->call.error(e));
}

static kg_status check_same(const struct kg_ranks *r, const char *first,
                            struct kg_err *err)
{
    if (strcmp(first, r->nccl->version) == 0)
        return KG_OK;
    return kg_fail(err, KG_ECONFLICT,
                   "nccl: %s: expected version %s of rank 0 on every rank, found %s",
                   r->nccl->path, first, r->nccl->version);
}

static kg_status init(struct kg_ranks *r, struct kg_nccl_id id, struct kg_err *err)
{
    struct kg_ranks_nccl *x = r->nccl;
    struct kg_nccl_config config = {sizeof config, KG_NCCL_MAGIC, KG_NCCL_CONFIG_VERSION,
                                    0};
    int e = x->call.init(&x->comm, r->n, id, r->me, &config);

    return runs(e) ? KG_OK
                   : kg_fail(err, KG_EDEVICE, "nccl: %s does not start: %s; " WITHOUT,
                             x->path, x->call.error(e));
}

static kg_status join(struct kg_ranks *r, struct kg_err *err)
{
    struct flight f = {.x = r->nccl};
    struct kg_nccl_id id = {0};
    char version[sizeof r->nccl->version];
    kg_status status = r->me == 0 ? make_id(&id, r->nccl, err) : KG_OK;

    memcpy(version, r->nccl->version, sizeof version);
    KG_TRY(kg_ranks_agree(r, status, "nccl", err));
    KG_TRY(kg_ranks_share(r, version, sizeof version, "nccl", err));
    KG_TRY(kg_ranks_agree(r, check_same(r, version, err), "nccl", err));
    KG_TRY(kg_ranks_share(r, &id, sizeof id, "nccl", err));
    KG_TRY(kg_ranks_agree(r, init(r, id, err), "nccl", err));
    status = until_launched(&f, r->wait_s, kg_clock_seconds(), "joining", err);
    return kg_ranks_agree(r, status, "nccl", err);
}

static kg_status create(struct kg_ranks *r, const struct kg_backend *be,
                        const char *folder, struct kg_err *err)
{
    const size_t n = (size_t)r->n;

    if (!be->lend)
        return kg_fail(err, KG_EINVAL,
                       "nccl: expected ranks that compute on GPUs, found %s", be->name);
    r->nccl = kg_mem_calloc(1, sizeof *r->nccl, "nccl", err);
    if (!r->nccl)
        return err->code;
    r->nccl->be = be;
    r->nccl->parts = kg_mem_calloc(2 * n, sizeof *r->nccl->parts, "nccl", err);
    if (r->nccl->parts)
        r->nccl->lent = kg_mem_calloc(2 * n, sizeof *r->nccl->lent, "nccl", err);
    return r->nccl->lent ? load(r->nccl, folder, err) : err->code;
}

kg_status kg_ranks_nccl_open(struct kg_ranks *r, const struct kg_backend *be,
                             const char *folder, struct kg_err *err)
{
    if (r->n < 2 || r->nccl)
        return KG_OK;
    kg_status status = kg_ranks_agree(r, create(r, be, folder, err), "nccl", err);
    if (status == KG_OK)
        status = join(r, err);
    if (status != KG_OK)
        kg_ranks_nccl_close(r);
    return status;
}

void kg_ranks_nccl_close(struct kg_ranks *r)
{
    struct kg_ranks_nccl *x = r->nccl;

    if (!x || r->whole)
        return;
    give_up(x); /* nothing is in flight: every exchange is waited for */
    if (x->object)
        dlclose(x->object);
    kg_mem_free(x->parts);
    kg_mem_free(x->lent);
    kg_mem_free(x);
    r->nccl = NULL;
}

const char *kg_ranks_nccl_version(const struct kg_ranks *r)
{
    return r->whole ? kg_ranks_nccl_version(r->whole) : r->nccl ? r->nccl->version : NULL;
}

const char *kg_ranks_nccl_path(const struct kg_ranks *r)
{
    return r->whole ? kg_ranks_nccl_path(r->whole) : r->nccl ? r->nccl->path : NULL;
}

/* ---- moving ---- */

/* A rank's own part is copied on the device. */
static kg_status begin(struct flight *f, const struct kg_ranks *r, const char *what,
                       struct kg_err *err)
{
    struct kg_ranks_part *parts = f->x->parts;
    const struct kg_ranks_part own = parts[r->me], to = parts[r->n + r->me];
    bool over;

    parts[r->me] = parts[r->n + r->me] = (struct kg_ranks_part){0};
    for (int i = 0; i < 2 * r->n; i++)
        if (parts[i].n > 0)
            f->x->lent[f->lent++] = parts[i].data;
    if (!f->x->comm)
        return kg_fail(err, KG_EDEVICE, "%s: nccl was aborted earlier", what);
    if (to.n > 0)
        KG_TRY(kg_buf_copy(f->x->be, to.data, own.data, to.n, err));
    return lend(f, launch, what, &over, err);
}

static void count(struct kg_ranks *r, const struct flight *f)
{
    for (int p = 0; p < f->n; p++) {
        r->sent += f->out[p].n;
        if (r->whole)
            r->whole->sent += f->out[p].n;
    }
}

/* If a rank could not begin, all ranks learn it before they wait for their devices. */
static kg_status move(struct kg_ranks *r, struct flight *f, const char *what,
                      struct kg_err *err)
{
    kg_status status = begin(f, r, what, err);

    KG_TRY(kg_ranks_agree(r, status, what, err));
    status = until_moved(f, r->wait_s, what, err);
    if (status == KG_OK)
        count(r, f);
    return kg_ranks_agree(r, status, what, err);
}

kg_status kg_ranks_nccl_exchange(struct kg_ranks *r, const struct kg_ranks_part *out,
                                 const struct kg_ranks_part *in, const char *what,
                                 struct kg_err *err)
{
    const size_t n = (size_t)r->n;
    struct kg_ranks_clock *clock = &whole_of(r)->clock;
    const double since = kg_clock_seconds(), waited = clock->waiting;
    struct kg_ranks_nccl *x = whole_of(r)->nccl;
    struct flight f = {x, x->parts, x->parts + n, r->n, r->first, 0};

    memcpy(x->parts, out, n * sizeof *out);
    memcpy(x->parts + n, in, n * sizeof *in);
    kg_status status = move(r, &f, what, err);
    if (status != KG_OK)
        give_up(x);
    clock->exchange += kg_clock_seconds() - since - (clock->waiting - waited);
    return status;
}
