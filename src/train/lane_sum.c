/* Lanes come one after the other, so a sum over C of them holds log2(C) slabs beside the
 * one that is being filled: those of the full levels of a binary counter.
 *
 * Slabs change hands by their pointers. The two operands of an addition may stand either
 * way, a + b and b + a are the same bits, so what arrives is added to in place.
 */
#include "train/lane_sum.h"

#include "base/mem.h"
#include "ranks/lanes.h"

static void take_over(struct kg_slab *to, struct kg_slab *from)
{
    *to = *from;
    *from = (struct kg_slab){0};
}

/* The level's sum goes into `carry`. */
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

int kg_lane_sum_slabs(int lanes) { return kg_tree_room(lanes) - 1; }

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
}

/* ---- an update by lanes ---- */

struct deal {
    int32_t *lane; /* (n) of each sequence */
    size_t *list;  /* (n) those of one lane */
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

static kg_status all_lanes(struct kg_lane_sum *s, struct kg_slab *grads,
                           const struct deal *d, struct kg_err *err)
{
    int lanes = d->job->lanes;

    KG_TRY(kg_slab_zero(grads, err));
    for (int lane = 0; lane < lanes; lane++) {
        KG_TRY(one_lane(d, lane, err));
        if (lane + 1 < lanes)
            KG_TRY(kg_lane_sum_push(s, grads, err));
    }
    return kg_lane_sum_finish(s, grads, err);
}

kg_status kg_lane_sum_run(struct kg_lane_sum *s, struct kg_slab *grads,
                          const struct kg_lane_job *job, struct kg_err *err)
{
    struct deal d = {.job = job};
    kg_status status;

    d.lane = kg_mem_calloc(job->n + 1, sizeof *d.lane, "lanes", err);
    d.list = kg_mem_calloc(job->n + 1, sizeof *d.list, "lanes", err);
    KG_TRY_GOTO(out, d.lane && d.list ? KG_OK : KG_ENOMEM);
    KG_TRY_GOTO(out,
                kg_lanes_deal(d.lane, job->tokens, (int64_t)job->n, job->lanes, err));
    status = all_lanes(s, grads, &d, err);
    if (status != KG_OK)
        kg_lane_sum_drop(s);
out:
    kg_mem_free(d.lane);
    kg_mem_free(d.list);
    return status;
}
