/* Each measurement begins after an agreement and ends with the slowest rank. Measurements
 * alternate, because a machine's speed varies; a share is the median over rounds. If
 * processors move the bytes themselves, as on one machine, additions take extra time,
 * which is reported separately.
 */
#include "bench/bench.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/sort.h"
#include "ranks/nccl.h"
#include "train/step/lane_exchange.h"

enum { TURNS = 9 };
static const double at_most = 1.1;

struct gradient {
    struct kg_ranks *ranks;
    struct kg_slab lane;         /* this rank's lane, then the sum, as in an update */
    float *came;                 /* (lane.n) received by move_bytes, in lane's memory */
    struct kg_ranks_part *parts; /* (2, ranks): sent and received by move_bytes */
    double *seconds;             /* (ranks) */
    uint64_t sent;               /* by this rank in one exchange of the gradient */
};

/* Writes all of the lane, because the system assigns memory only when it is written. */
static kg_status fill(struct kg_slab *lane, struct kg_err *err)
{
    float *values = kg_mem_calloc((size_t)lane->n, sizeof *values, "bench ranks", err);

    if (!values)
        return err->code;
    for (int64_t i = 0; i < lane->n; i++)
        values[i] = 1.0f / (float)(i + 1);
    kg_status status = kg_slab_write(lane, 0, values, lane->n, err);
    kg_mem_free(values);
    return status;
}

static kg_status take_memory(struct gradient *g, struct kg_ranks *r,
                             const struct kg_backend *be, int64_t elements,
                             struct kg_err *err)
{
    const size_t n = (size_t)r->n;

    *g = (struct gradient){.ranks = r};
    KG_TRY(kg_slab_init(&g->lane, be, elements, "bench ranks", err));
    KG_TRY(fill(&g->lane, err));
    g->came = kg_buf_alloc(be, (uint64_t)elements * sizeof *g->came, "bench ranks", err);
    if (g->came)
        g->parts = kg_mem_calloc(2 * n, sizeof *g->parts, "bench ranks", err);
    if (g->parts)
        return kg_mem_new(&g->seconds, n, sizeof *g->seconds, "bench ranks", err);
    return err->code;
}

/* Waits until the backend has done all launched work. */
static kg_status settle(const struct gradient *g, struct kg_err *err)
{
    float one;

    return g->lane.backend->host_memory ? KG_OK : kg_slab_read(&one, &g->lane, 0, 1, err);
}

/* Sends each shard to the rank that owns it, which adds it. */
static kg_status exchange(struct gradient *g, struct kg_err *err)
{
    const struct kg_lane_blocks own = {.block = {&g->lane}, .n = 1};
    const uint64_t before = g->ranks->sent;

    KG_TRY(kg_lane_exchange(&g->lane, &own, g->ranks->n, true, g->ranks, err));
    g->sent = g->ranks->sent - before;
    return settle(g, err);
}

/* The additions of an exchange alone: adds what move_bytes received. */
static kg_status add_bytes(struct gradient *g, struct kg_err *err)
{
    const struct kg_cut own = kg_cut_of(g->lane.n, g->ranks->me, g->ranks->n);

    for (int p = 1; p < g->ranks->n; p++)
        KG_TRY(kg_op_add(g->lane.backend, kg_slab_part(&g->lane, own.first, own.n),
                         kg_vec(g->came + (p - 1) * own.n, own.n), err));
    return settle(g, err);
}

/* The transfer of an exchange alone: moves the same shards, but adds nothing. */
static kg_status move_bytes(struct gradient *g, struct kg_err *err)
{
    const int n = g->ranks->n, me = g->ranks->me;
    const struct kg_cut own = kg_cut_of(g->lane.n, me, n);
    float *room = g->came;

    for (int p = 0; p < n; p++) {
        const struct kg_cut its = kg_cut_of(g->lane.n, p, n);

        g->parts[p] = g->parts[n + p] = (struct kg_ranks_part){0};
        if (p == me)
            continue;
        g->parts[p] = (struct kg_ranks_part){g->lane.data + its.first,
                                             (size_t)its.n * sizeof(float)};
        g->parts[n + p] = (struct kg_ranks_part){room, (size_t)own.n * sizeof(float)};
        room += own.n;
    }
    return (g->lane.backend->host_memory ? kg_ranks_exchange : kg_ranks_nccl_exchange)(
        g->ranks, g->parts, g->parts + n, "bench ranks", err);
}

static kg_status timed(double *seconds, struct gradient *g,
                       kg_status (*work)(struct gradient *g, struct kg_err *err),
                       struct kg_err *err)
{
    struct kg_ranks *r = g->ranks;

    KG_TRY(kg_ranks_agree(r, KG_OK, "bench ranks: begin", err));
    double since = kg_clock_seconds();
    kg_status status = work(g, err);
    g->seconds[r->me] = kg_clock_seconds() - since;
    KG_TRY(kg_ranks_agree(r, status, "bench ranks", err));
    KG_TRY(kg_ranks_gather_equal(r, g->seconds, sizeof *g->seconds, "bench ranks", err));
    *seconds = 0;
    for (int p = 0; p < r->n; p++)
        *seconds = g->seconds[p] > *seconds ? g->seconds[p] : *seconds;
    return KG_OK;
}

/* Seconds of each repetition; each array is sorted at the end. */
struct turns {
    double part[TURNS];  /* the exchange */
    double whole[TURNS]; /* its transfer alone */
    double added[TURNS]; /* its additions alone */
    double share[TURNS]; /* part / whole */
    double both[TURNS];  /* part / (whole + added) */
};

static kg_status put(struct kg_str *out, const struct gradient *g, const struct turns *t,
                     bool json, struct kg_err *err)
{
    const double share = t->share[TURNS / 2];
    const bool met = share <= at_most;

    return kg_str_printf(
        out, err,
        json
            ? "{\"name\": \"exchange of a gradient beside its bytes alone\", \"ranks\": "
              "%d, \"bytes\": %llu, \"share\": %.4g, \"part\": %.4g, \"whole\": %.4g, "
              "\"additions\": %.4g, \"share_of_both\": %.4g, \"unit\": \"s\", "
              "\"at_most\": %g, \"met\": %s}\n"
            : "a gradient over %d ranks, each sends %llu bytes: time / time of its bytes "
              "alone %.3f (%.3g s / %.3g s), additions alone %.3g s, time / (bytes + "
              "additions) %.3f  [at most %g: %s]\n",
        g->ranks->n, (unsigned long long)g->sent, share, t->part[TURNS / 2],
        t->whole[TURNS / 2], t->added[TURNS / 2], t->both[TURNS / 2], at_most,
        json  ? met ? "true" : "false"
        : met ? "met"
              : "NOT MET");
}

static kg_status take_turns(struct turns *t, struct gradient *g, struct kg_err *err)
{
    double warm;

    KG_TRY(timed(&warm, g, exchange, err));
    KG_TRY(timed(&warm, g, move_bytes, err));
    for (int i = 0; i < TURNS; i++) {
        KG_TRY(timed(&t->part[i], g, exchange, err));
        KG_TRY(timed(&t->whole[i], g, move_bytes, err));
        KG_TRY(timed(&t->added[i], g, add_bytes, err));
        t->share[i] = t->part[i] / t->whole[i];
        t->both[i] = t->part[i] / (t->whole[i] + t->added[i]);
    }
    kg_sort_doubles(t->share, TURNS);
    kg_sort_doubles(t->both, TURNS);
    kg_sort_doubles(t->part, TURNS);
    kg_sort_doubles(t->whole, TURNS);
    kg_sort_doubles(t->added, TURNS);
    return KG_OK;
}

kg_status kg_bench_gradient(struct kg_str *out, struct kg_ranks *ranks,
                            const struct kg_backend *be, int64_t n, bool json,
                            struct kg_err *err)
{
    struct gradient g;
    struct turns t;
    kg_status status = kg_ranks_agree(ranks, take_memory(&g, ranks, be, n, err),
                                      "bench ranks", err);

    if (status == KG_OK)
        status = take_turns(&t, &g, err);
    if (status == KG_OK)
        status = kg_ranks_agree(ranks, put(out, &g, &t, json, err), "bench ranks", err);
    if (g.came)
        kg_buf_free(g.lane.backend, g.came);
    kg_slab_release(&g.lane);
    kg_mem_free(g.parts);
    kg_mem_free(g.seconds);
    return status;
}
