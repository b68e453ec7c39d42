/* kedge doctor under a launcher: lists the ranks and checks that they can share a run.
 *
 * It sums lanes as for a gradient (train/step/lane_sum.h), with numbers whose sum
 * depends on the order of additions: once on all ranks, once on this rank alone.
 */
#include "cli/cli.h"

#include "base/clock.h"
#include "base/mem.h"
#include "data/json.h"
#include "ranks/launch.h"
#include "ranks/mpi.h"
#include "ranks/nccl.h"
#include "tensor/selfcheck.h"
#include "train/step/lane_sum.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

/* more than one bucket of the exchange, but not a multiple of a bucket */
enum { ELEMENTS = (1 << 20) + 4099, LANES_A_RANK = 3 };

/* ---- the sum ---- */

/* A gradient, and one lane's share of it; values: host memory to fill and read them. */
struct gradient {
    struct kg_slab sum, lane;
    float *values; /* (ELEMENTS) owned */
};

/* Numbers of widely varying size, different in each lane. */
static void fill(float *values, size_t lane)
{
    for (int64_t i = 0; i < ELEMENTS; i++) {
        uint32_t h = ((uint32_t)i * 2654435761u) ^ ((uint32_t)lane * 0x9e3779b9u);

        h = (h ^ h >> 15) * 0x85ebca6bu;
        values[i] = (float)(int32_t)h / (float)(1u << (h & 15));
    }
}

static kg_status add_lane(void *context, const size_t *list, size_t n, struct kg_err *err)
{
    struct gradient *g = context;

    for (size_t s = 0; s < n; s++) {
        fill(g->values, list[s]);
        KG_TRY(kg_slab_write(&g->lane, 0, g->values, ELEMENTS, err));
        KG_TRY(kg_slab_add(&g->sum, &g->lane, err));
    }
    return KG_OK;
}

static kg_status take(struct gradient *g, const struct kg_backend *be, struct kg_err *err)
{
    KG_TRY(kg_slab_init(&g->sum, be, ELEMENTS, "sum", err));
    KG_TRY(kg_slab_init(&g->lane, be, ELEMENTS, "sum", err));
    return kg_mem_new(&g->values, ELEMENTS, sizeof *g->values, "sum", err);
}

static void release(struct gradient *g)
{
    kg_slab_release(&g->sum);
    kg_slab_release(&g->lane);
    kg_mem_free(g->values);
}

static kg_status sum(struct gradient *g, const int64_t *tokens, int lanes,
                     struct kg_ranks *ranks, struct kg_err *err)
{
    struct kg_lane_sum s = {0};
    struct kg_str said = {0};
    const struct kg_lane_job job = {.lanes = lanes,
                                    .lengths = {.tokens = tokens},
                                    .n = (size_t)lanes,
                                    .work = add_lane,
                                    .context = g,
                                    .said = &said};
    kg_status status = kg_lane_sum_run(&s, &g->sum, &job, ranks, err);

    kg_lane_sum_release(&s);
    kg_str_release(&said);
    return status;
}

/* Compares the bits of both sums; overwrites found->values. */
static kg_status compare(struct gradient *found, const struct gradient *expected,
                         struct kg_err *err)
{
    const float *x = found->values, *y = expected->sum.data;

    KG_TRY(kg_slab_read(found->values, &found->sum, 0, ELEMENTS, err));
    for (int64_t i = 0; i < ELEMENTS; i++)
        if (memcmp(&x[i], &y[i], sizeof *x) != 0)
            return kg_fail(err, KG_ECONFLICT, "element %lld: expected %.9g, found %.9g",
                           (long long)i, (double)y[i], (double)x[i]);
    return KG_OK;
}

/* Compares the sum of all ranks on `be` with the sum of this rank alone on its CPU. Ranks
 * agree on errors before the exchange, so that none waits for a rank that failed. */
static kg_status sum_on(struct kg_ranks *r, const struct kg_backend *be,
                        struct kg_err *err)
{
    struct gradient all = {.values = NULL}, own = {.values = NULL};
    struct kg_ranks alone = {0};
    const int lanes = LANES_A_RANK * r->n;
    int64_t *tokens = kg_mem_calloc((size_t)lanes, sizeof *tokens, "lanes", err);
    kg_status status = tokens ? KG_OK : err->code;

    for (int l = 0; l < lanes && tokens; l++)
        tokens[l] = 1;
    if (status == KG_OK)
        status = take(&all, be, err);
    if (status == KG_OK)
        status = take(&own, kg_backend_cpu_variant(0), err);
    status = kg_ranks_agree(r, status, "doctor: sum", err);
    if (status == KG_OK)
        status = sum(&all, tokens, lanes, r, err);
    if (status == KG_OK)
        status = sum(&own, tokens, lanes, &alone, err);
    if (status == KG_OK)
        status = compare(&all, &own, err);
    status = kg_ranks_agree(r, status, "doctor: sum", err);
    release(&all);
    release(&own);
    kg_mem_free(tokens);
    return status;
}

/* ---- the checks ---- */

/* The backend, and the path of NCCL that the user gave, or NULL. */
struct link {
    const struct kg_backend *be;
    const char *nccl;
};

static kg_status check_alike(struct kg_ranks *r, const struct link *l, struct kg_err *err)
{
    kg_status status = kg_ranks_check_alike(r, "doctor", err);

    (void)l;
    r->unlike = r->unlike && r->lost; /* one failed check does not end the run */
    return status;
}

static kg_status check_sum(struct kg_ranks *r, const struct link *l, struct kg_err *err)
{
    (void)l;
    return sum_on(r, kg_backend_cpu_variant(0), err);
}

static kg_status check_folder(struct kg_ranks *r, const struct link *l,
                              struct kg_err *err)
{
    (void)l;
    return kg_ranks_check_shared(r, ".", err);
}

/* errors: ENOTFOUND (no rank has NCCL, and no path was given) */
static kg_status check_nccl(struct kg_ranks *r, const struct link *l, struct kg_err *err)
{
    char path[PATH_MAX];
    bool expected = l->nccl || kg_ranks_nccl_find(path, NULL, err) == KG_OK;

    KG_TRY(kg_ranks_any(r, &expected, "doctor: nccl", err));
    kg_status status = kg_ranks_nccl_open(r, l->be, l->nccl, err);
    if (status == KG_OK)
        status = sum_on(r, l->be, err);
    kg_ranks_nccl_close(r);
    return status == KG_ENOTFOUND && expected ? KG_ECONFLICT : status;
}

static const struct {
    const char *name, *text;
    kg_status (*check)(struct kg_ranks *r, const struct link *l, struct kg_err *err);
    bool gpus; /* only for ranks on GPUs; ENOTFOUND is not a failure */
} checks[] = {
    {"ranks alike", "all ranks have the same program and the same bits of products",
     check_alike, false},
    {"sum over ranks", "a gradient over all ranks has the bits of one process", check_sum,
     false},
    {"shared folder", "this folder is the same on all ranks", check_folder, false},
    {"sum by nccl", "a gradient that NCCL moves between GPUs has the bits of one process",
     check_nccl, true},
};

/* ---- the list of ranks ---- */

struct who {
    char host[64];
    int cores, threads;
    bool ok;
};

static kg_status put_rank(struct kg_str *out, int rank, const struct who *w, bool json,
                          struct kg_err *err)
{
    if (json)
        return kg_str_printf(out, err,
                             "{\"rank\": %d, \"host\": \"%s\", \"cores\": %d, "
                             "\"threads\": %d, \"result\": \"%s\"}\n",
                             rank, w->host, w->cores, w->threads,
                             w->ok ? "holds" : "FAILS");
    return kg_str_printf(out, err,
                         "%-6s  the checks above, on rank %d (%s): %d cores online, "
                         "%d threads\n",
                         w->ok ? "holds" : "FAILS", rank, w->host, w->cores, w->threads);
}

static kg_status put_all(struct kg_str *out, bool *ok, struct kg_ranks *r, bool json,
                         struct kg_err *err)
{
    struct who own = {.cores = (int)sysconf(_SC_NPROCESSORS_ONLN),
                      .threads = kg_threads_get(),
                      .ok = *ok},
               *all;

    gethostname(own.host, sizeof own.host - 1);
    kg_status status = kg_ranks_gather_own(&all, r, KG_OK, &own, sizeof own, "doctor",
                                           err);
    for (int p = 0; p < r->n && status == KG_OK; p++) {
        *ok = *ok && all[p].ok;
        status = put_rank(out, p, &all[p], json, err);
    }
    kg_mem_free(all);
    return kg_ranks_agree(r, status, "doctor", err);
}

/* why: NULL if the check holds */
static kg_status put_verdict(struct kg_str *out, size_t i, const char *verdict,
                             const char *why, bool json, struct kg_err *err)
{
    if (!json)
        return kg_str_printf(out, err, "%-6s  %s%s%s\n", verdict, checks[i].text,
                             why ? ": " : "", why ? why : "");
    KG_TRY(kg_str_printf(out, err, "{\"check\": \"%s\", \"result\": \"%s\"",
                         checks[i].name, verdict));
    if (why)
        KG_TRY(kg_json_put_text(out, ", \"why\": ", why, err));
    return kg_str_puts(out, "}\n", err);
}

/* A failed check is reported and the next one runs; a lost rank ends the command. */
static kg_status put_check(struct kg_str *out, bool *ok, struct kg_ranks *r,
                           const struct link *l, size_t i, bool json, struct kg_err *err)
{
    struct kg_err why = {0};
    kg_status status = checks[i].check(r, l, &why);
    const bool none = checks[i].gpus && status == KG_ENOTFOUND;
    const char *verdict = status == KG_OK ? "holds" : none ? "none" : "FAILS";

    if (r->lost) {
        *err = why;
        return status;
    }
    kg_ranks_forgive(r);
    *ok = *ok && (status == KG_OK || none);
    status = put_verdict(out, i, verdict, status == KG_OK ? NULL : why.message, json,
                         err);
    return kg_ranks_agree(r, status, "doctor", err);
}

kg_status kg_doctor_nccl(struct kg_str *out, const struct kg_backend *be,
                         const char *nccl, bool json, struct kg_err *err)
{
    char path[PATH_MAX], version[KG_NCCL_VERSION];
    struct kg_err why;

    if (!be->lend)
        return KG_OK;
    if (kg_ranks_nccl_look(path, version, nccl, &why) == KG_OK) {
        if (!json)
            return kg_str_printf(out, err, "nccl: %s, %s\n", version, path);
        KG_TRY(kg_json_put_text(out, "{\"nccl\": {\"version\": ", version, err));
        KG_TRY(kg_json_put_text(out, ", \"library\": ", path, err));
        return kg_str_puts(out, "}}\n", err);
    }
    if (!nccl) {
        if (!json)
            return kg_str_printf(out, err, "nccl: none (%s)\n", why.message);
        KG_TRY(kg_json_put_text(out, "{\"nccl\": null, \"why\": ", why.message, err));
        return kg_str_puts(out, "}\n", err);
    }
    *err = why;
    return kg_err_prefix(err, "--nccl");
}

kg_status kg_doctor_ranks(struct kg_str *out, bool *ok, struct kg_ranks *r,
                          const struct kg_backend *be, const char *nccl, bool json,
                          struct kg_err *err)
{
    const struct link link = {be, nccl};
    char library[KG_MPI_TEXT];

    if (r->n < 2)
        return KG_OK;
    KG_TRY(put_all(out, ok, r, json, err));
    kg_ranks_mpi_library(library, r);
    if (!json)
        KG_TRY(kg_ranks_agree(r,
                              kg_str_printf(out, err, "\n%d ranks over %s %s\n", r->n,
                                            r->transport->name, library),
                              "doctor", err));
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        if (!checks[i].gpus || be->lend)
            KG_TRY(put_check(out, ok, r, &link, i, json, err));
    return KG_OK;
}
