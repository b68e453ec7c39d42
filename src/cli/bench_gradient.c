/* Both begin behind an agreement and end with the slowest rank. Turns are paired, since a
 * machine's rate moves: the share is the median of the pairs'.
 */
#include "cli/bench_gradient.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/sort.h"
#include "tensor/selfcheck.h"
#include "train/lane_exchange.h"

enum { ELEMENTS = 1 << 24, TURNS = 9 };
static const double at_most = 1.1;

struct gradient {
    struct kg_ranks *ranks;
    struct kg_slab lane, sum;
    struct kg_ranks_part *parts; /* (2, ranks): out and in, of the bytes alone */
    double *seconds;             /* (ranks) */
    uint64_t sent;               /* by this rank in one exchange of the gradient */
};

static kg_status take_memory(struct gradient *g, struct kg_ranks *r, struct kg_err *err)
{
    const struct kg_backend *cpu = kg_backend_cpu_variant(0);
    const size_t n = (size_t)r->n;

    *g = (struct gradient){.ranks = r};
    KG_TRY(kg_slab_init(&g->lane, cpu, ELEMENTS, "bench ranks", err));
    KG_TRY(kg_slab_init(&g->sum, cpu, ELEMENTS, "bench ranks", err));
    g->parts = kg_mem_calloc(2 * n, sizeof *g->parts, "bench ranks", err);
    if (g->parts)
        g->seconds = kg_mem_calloc(n, sizeof *g->seconds, "bench ranks", err);
    return g->seconds ? KG_OK : err->code;
}

static void release(struct gradient *g)
{
    kg_slab_release(&g->lane);
    kg_slab_release(&g->sum);
    kg_mem_free(g->parts);
    kg_mem_free(g->seconds);
}

/* Each rank's cut to its owner, and added there. */
static kg_status exchange(struct gradient *g, struct kg_err *err)
{
    const struct kg_lane_blocks own = {.block = {&g->lane}, .n = 1};
    const uint64_t before = g->ranks->sent;

    KG_TRY(kg_lane_exchange(&g->sum, &own, g->ranks->n, true, g->ranks, err));
    g->sent = g->ranks->sent - before;
    return KG_OK;
}

/* The same cuts, to where nobody adds them. */
static kg_status move_bytes(struct gradient *g, struct kg_err *err)
{
    const int n = g->ranks->n, me = g->ranks->me;
    const struct kg_cut own = kg_cut_of(ELEMENTS, me, n);
    float *room = g->sum.data;

    for (int p = 0; p < n; p++) {
        const struct kg_cut its = kg_cut_of(ELEMENTS, p, n);

        g->parts[p] = g->parts[n + p] = (struct kg_ranks_part){0};
        if (p == me)
            continue;
        g->parts[p] = (struct kg_ranks_part){g->lane.data + its.first,
                                             (size_t)its.n * sizeof(float)};
        g->parts[n + p] = (struct kg_ranks_part){room, (size_t)own.n * sizeof(float)};
        room += own.n;
    }
    return kg_ranks_exchange(g->ranks, g->parts, g->parts + n, "bench ranks", err);
}

static kg_status timed(double *seconds, struct gradient *g,
                       kg_status (*work)(struct gradient *g, struct kg_err *err),
                       struct kg_err *err)
{
    struct kg_ranks *r = g->ranks;
    double since;

    KG_TRY(kg_ranks_agree(r, KG_OK, "bench ranks: begin", err));
    since = kg_clock_seconds();
    KG_TRY(work(g, err));
    g->seconds[r->me] = kg_clock_seconds() - since;
    KG_TRY(kg_ranks_gather_equal(r, g->seconds, sizeof *g->seconds, "bench ranks", err));
    *seconds = 0;
    for (int p = 0; p < r->n; p++)
        *seconds = g->seconds[p] > *seconds ? g->seconds[p] : *seconds;
    return KG_OK;
}

static kg_status put(struct kg_str *out, const struct gradient *g, double share,
                     double part, double whole, bool json, struct kg_err *err)
{
    return kg_str_printf(
        out, err,
        json ? "{\"name\": \"exchange of a gradient beside its bytes alone\", \"ranks\": "
               "%d, \"bytes\": %llu, \"share\": %.4g, \"part\": %.4g, \"whole\": %.4g, "
               "\"unit\": \"s\", \"at_most\": %g, \"met\": %s}\n"
             : "a gradient over %d ranks, each sends %llu bytes: %.3f of the time of its "
               "bytes alone (%.3g of %.3g s)  [at most %g: %s]\n",
        g->ranks->n, (unsigned long long)g->sent, share, part, whole, at_most,
        json               ? share <= at_most ? "true" : "false"
        : share <= at_most ? "met"
                           : "NOT MET");
}

static kg_status take_turns(struct kg_str *out, struct gradient *g, bool json,
                            struct kg_err *err)
{
    double whole[TURNS], part[TURNS], share[TURNS], warm;

    KG_TRY(timed(&warm, g, exchange, err));
    KG_TRY(timed(&warm, g, move_bytes, err));
    for (int i = 0; i < TURNS; i++) {
        KG_TRY(timed(&part[i], g, exchange, err));
        KG_TRY(timed(&whole[i], g, move_bytes, err));
        share[i] = part[i] / whole[i];
    }
    kg_sort_doubles(share, TURNS);
    kg_sort_doubles(part, TURNS);
    kg_sort_doubles(whole, TURNS);
    return kg_ranks_agree(
        g->ranks,
        put(out, g, share[TURNS / 2], part[TURNS / 2], whole[TURNS / 2], json, err),
        "bench ranks", err);
}

kg_status kg_bench_gradient(struct kg_str *out, struct kg_ranks *ranks, bool json,
                            struct kg_err *err)
{
    struct gradient g;
    kg_status status = kg_ranks_agree(ranks, take_memory(&g, ranks, err), "bench ranks",
                                      err);

    if (status == KG_OK)
        status = take_turns(out, &g, json, err);
    release(&g);
    return status;
}
