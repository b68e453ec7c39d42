/* Lanes are added one after another by a binary counter, so a sum over C lanes holds at
 * most log2(C) slabs besides the one in use: one for each full level.
 *
 * Slabs are passed on by pointer. a + b and b + a have the same bits, so a new slab is
 * added to in place, whichever operand it is.
 */
#include "train/step/lane_sum.h"

#include "base/mem.h"
#include "ranks/lanes.h"
#include "ranks/ranks.h"
#include "train/step/lane_exchange.h"

static void take_over(struct kg_slab *to, struct kg_slab *from)
{
    *to = *from;
    *from = (struct kg_slab){0};
}

/* Adds the level's sum to `carry`; its slab becomes a spare. */
static kg_status carry_level(struct kg_lane_sum *s, int level, struct kg_slab *carry,
                             struct kg_err *err)
{
    KG_TRY(kg_slab_add(carry, &s->level[level], err));
    take_over(&s->spare[s->n_spare++], &s->level[level]);
    return KG_OK;
}

static kg_status take_spare(struct kg_slab *out, struct kg_lane_sum *s,
                            const struct kg_slab *like, struct kg_err *err)
{
    if (s->n_spare == 0)
        return kg_slab_init(out, like->backend, like->n, "sums of lanes", err);
    KG_TRY(kg_slab_zero(&s->spare[s->n_spare - 1], err));
    take_over(out, &s->spare[--s->n_spare]);
    return KG_OK;
}

/* Maximum slabs in use at once: the finished blocks, and the current block's levels. */
static int slabs_of(struct kg_share s)
{
    int levels[2 * KG_TREE_LEVELS], most = 0;
    int n = kg_tree_cover(levels, (int)s.first, (int)s.end);

    for (int i = 0; i < n; i++)
        most = i + levels[i] > most ? i + levels[i] : most;
    return most;
}

int kg_lane_sum_slabs(int lanes, int ranks)
{
    int most = 0;

    if (ranks < 2)
        return kg_tree_room(lanes) - 1;
    for (int r = 0; r < ranks; r++) {
        int n = slabs_of(kg_share_of(lanes, r, ranks));

        most = n > most ? n : most;
    }
    return most;
}

kg_status kg_lane_sum_push(struct kg_lane_sum *s, struct kg_slab *lane,
                           struct kg_err *err)
{
    struct kg_slab fresh = {0};
    int rest = kg_tree_push(&s->tree);

    for (int level = 0; level < rest; level++)
        KG_TRY(carry_level(s, level, lane, err));
    KG_TRY(take_spare(&fresh, s, lane, err));
    take_over(&s->level[rest], lane);
    take_over(lane, &fresh);
    return KG_OK;
}

kg_status kg_lane_sum_finish(struct kg_lane_sum *s, struct kg_slab *last,
                             struct kg_err *err)
{
    int levels[KG_TREE_LEVELS];
    int n = kg_tree_finish(&s->tree, levels);

    for (int i = 0; i < n; i++)
        KG_TRY(carry_level(s, levels[i], last, err));
    return KG_OK;
}

void kg_lane_sum_drop(struct kg_lane_sum *s)
{
    s->tree = (struct kg_tree){0};
    for (int level = 0; level < KG_TREE_LEVELS; level++)
        if (s->level[level].data)
            take_over(&s->spare[s->n_spare++], &s->level[level]);
}

void kg_lane_sum_release(struct kg_lane_sum *s)
{
    kg_lane_sum_drop(s);
    while (s->n_spare > 0)
        kg_slab_release(&s->spare[--s->n_spare]);
    kg_lane_stream_release(&s->stream);
}

/* ---- an update by lanes ---- */

struct deal {
    int32_t *lane; /* (n) of each sequence */
    size_t *list;  /* (n) the sequences of one lane */
    const struct kg_lane_job *job;
};

static kg_status one_lane(const struct deal *d, int lane, struct kg_err *err)
{
    const struct kg_lane_job *job = d->job;
    size_t n = 0;

    for (size_t i = 0; i < job->n; i++)
        if (d->lane[i] == lane)
            d->list[n++] = i;
    return n > 0 ? job->work(job->context, d->list, n, err) : KG_OK;
}

/* grads = the sum of lanes [first, end), which are a subtree or the whole tree. */
static kg_status some_lanes(struct kg_lane_sum *s, struct kg_slab *grads,
                            const struct deal *d, int first, int end, struct kg_err *err)
{
    KG_TRY(kg_slab_zero(grads, err));
    for (int lane = first; lane < end; lane++) {
        KG_TRY(one_lane(d, lane, err));
        if (lane + 1 < end)
            KG_TRY(kg_lane_sum_push(s, grads, err));
    }
    return kg_lane_sum_finish(s, grads, err);
}

/* ---- over ranks ---- */

/* This rank's lanes as blocks; the last block is in `grads`. */
struct blocks {
    int levels[2 * KG_TREE_LEVELS];
    struct kg_slab slab[2 * KG_TREE_LEVELS]; /* owned: all but the last block */
    int n;
};

static kg_status own_blocks(struct blocks *b, struct kg_lane_sum *s,
                            struct kg_slab *grads, const struct deal *d, int first,
                            struct kg_err *err)
{
    for (int i = 0; i < b->n; i++) {
        int end = first + (1 << b->levels[i]);
        struct kg_slab fresh = {0};

        KG_TRY(some_lanes(s, grads, d, first, end, err));
        first = end;
        if (i + 1 == b->n)
            break;
        KG_TRY(take_spare(&fresh, s, grads, err));
        take_over(&b->slab[i], grads);
        take_over(grads, &fresh);
    }
    return KG_OK;
}

static kg_status own_and_theirs(struct kg_lane_sum *s, struct kg_slab *grads,
                                const struct deal *d, struct kg_ranks *ranks,
                                struct kg_err *err)
{
    struct kg_share mine = kg_share_of(d->job->lanes, ranks->me, ranks->n);
    struct blocks b = {.n = 0};
    struct kg_lane_blocks made;

    b.n = made.n = kg_tree_cover(b.levels, (int)mine.first, (int)mine.end);
    for (int i = 0; i < b.n; i++)
        made.block[i] = i + 1 < b.n ? &b.slab[i] : grads;
    kg_status status = own_blocks(&b, s, grads, d, (int)mine.first, err);
    status = kg_ranks_agree(ranks, status, "gradient", err);
    if (status == KG_OK)
        status = kg_lane_exchange(grads, &made, d->job->lanes, d->job->cut, ranks, err);
    if (status == KG_OK)
        status = kg_ranks_str_gather(d->job->said, ranks, "terms of lanes", err);
    for (int i = 0; i < b.n; i++)
        if (b.slab[i].data)
            take_over(&s->spare[s->n_spare++], &b.slab[i]);
    return status;
}

static kg_status all_lanes(struct kg_lane_sum *s, struct kg_slab *grads,
                           const struct deal *d, struct kg_ranks *ranks,
                           struct kg_err *err)
{
    if (ranks->n < 2)
        return some_lanes(s, grads, d, 0, d->job->lanes, err);
    if (d->job->stages)
        return kg_lane_stream_run(&s->stream, grads, d->job, d->lane, ranks, err);
    return own_and_theirs(s, grads, d, ranks, err);
}

kg_status kg_lane_sum_run(struct kg_lane_sum *s, struct kg_slab *grads,
                          const struct kg_lane_job *job, struct kg_ranks *ranks,
                          struct kg_err *err)
{
    struct deal d = {.job = job};
    kg_status status;

    d.lane = kg_mem_calloc(job->n + 1, sizeof *d.lane, "lanes", err);
    d.list = kg_mem_calloc(job->n + 1, sizeof *d.list, "lanes", err);
    KG_TRY_GOTO(out, d.lane && d.list ? KG_OK : KG_ENOMEM);
    KG_TRY_GOTO(out,
                kg_lanes_deal(d.lane, &job->lengths, (int64_t)job->n, job->lanes, err));
    status = all_lanes(s, grads, &d, ranks, err);
    if (status != KG_OK)
        kg_lane_sum_drop(s);
out:
    kg_mem_free(d.lane);
    kg_mem_free(d.list);
    return status;
}
