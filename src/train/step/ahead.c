/* Transfers between trainers and rollout ranks: a batch as bytes, and the master weights
 * in the trainers' shards.
 *
 * A batch stays bytes until its step, so that a trainer reads it when a single process
 * would sample it. No checkpoint contains a batch: it is a function of the weights of the
 * last L steps, which the checkpoint contains, and a resumed run samples it again. With a
 * batch come the completions begun after it (train/step/begun.h), so that trainers save
 * what a single process would save.
 */
#include "train/step/ahead.h"

#include "base/mem.h"
#include "base/phase.h"
#include "eval/gather.h"
#include "train/step/rl_batch.h"

#include <assert.h>
#include <string.h>

kg_status kg_ahead_check(const struct kg_recipe *r, const struct kg_ranks *all,
                         struct kg_err *err)
{
    int n = all->n > 1 ? all->n : 1;

    if (r->ranks.rollout < n)
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "ranks.rollout: expected fewer than the run's ranks (%d; set by kedge "
                   "train --ranks N or mpirun -n N), so that some ranks train, found %d",
                   n, r->ranks.rollout);
}

static struct kg_str *batch_of(struct kg_ahead *a, int64_t step, int lag)
{
    struct kg_str *batch = &a->batch[step % (lag + 1)];

    batch->max = SIZE_MAX / 2;
    return batch;
}

/* ---- a batch as bytes ---- */

struct head {
    kg_status status;
    struct kg_err why;
    struct kg_rl_batch batch; /* its pointers only tell which arrays follow */
};

static kg_status put_batch(struct kg_str *out, const struct kg_rl_batch *b,
                           const struct kg_further_names *names, kg_status status,
                           const struct kg_err *why, struct kg_err *err)
{
    const struct kg_eval_items learned = {
        .trajs = b->trajs, .grades = b->grades, .n = b->n_trajs};
    const struct kg_eval_items spare = {.trajs = b->spare, .n = b->n_spare};
    const struct head head = {status, *why, *b};

    KG_TRY(kg_str_append(out, &head, sizeof head, err));
    KG_TRY(kg_eval_items_put(out, &learned, (struct kg_share){0, (int64_t)b->n_trajs},
                             names, err));
    KG_TRY(kg_eval_items_put(out, &spare, (struct kg_share){0, (int64_t)b->n_spare},
                             names, err));
    if (b->drop)
        KG_TRY(kg_str_append(out, b->drop, b->n_trajs, err));
    if (b->greedy)
        KG_TRY(kg_str_append(out, b->greedy, b->n_trajs * sizeof *b->greedy, err));
    KG_TRY(kg_str_append(out, b->times, (size_t)b->n_times * sizeof *b->times, err));
    return kg_str_append(out, b->begun.data, b->begun.len, err);
}

/* Allocates the arrays that the head announces. */
static kg_status make_room(struct kg_rl_batch *b, const struct head *head,
                           struct kg_err *err)
{
    const struct kg_rl_batch *said = &head->batch;
    const struct kg_block block = b->block;
    const size_t n = said->n_trajs + 1;

    *b = *said;
    b->block = block;
    b->drop = NULL;
    b->greedy = NULL;
    b->begun = (struct kg_str){.max = said->begun.max};
    b->sampling_seconds = 0;
    b->trajs = kg_mem_calloc(n, sizeof *b->trajs, "trajectories", err);
    b->grades = kg_mem_calloc(n, sizeof *b->grades, "grades", err);
    b->times = kg_mem_calloc((size_t)said->n_times, sizeof *b->times, "clocks", err);
    b->spare = kg_mem_calloc(said->n_spare + 1, sizeof *b->spare, "trajectories", err);
    if (said->drop)
        b->drop = kg_mem_calloc(n, sizeof *b->drop, "dropped trajectories", err);
    if (said->greedy)
        b->greedy = kg_mem_calloc(n, sizeof *b->greedy, "greedy rewards", err);
    return b->trajs && b->grades && b->spare && b->times && !b->drop == !said->drop &&
                   !b->greedy == !said->greedy
               ? KG_OK
               : KG_ENOMEM;
}

static kg_status take_batch(struct kg_rl_batch *b, struct head *head,
                            struct kg_further_names *names, const struct kg_str *bytes,
                            struct kg_err *err)
{
    struct kg_traj_bytes from = {bytes->data, bytes->len};
    struct kg_eval_items learned, spare;

    KG_TRY(kg_traj_bytes_take(head, &from, sizeof *head, err));
    KG_TRY(make_room(b, head, err));
    learned = (struct kg_eval_items){
        .trajs = b->trajs, .grades = b->grades, .n = b->n_trajs};
    spare = (struct kg_eval_items){.trajs = b->spare, .n = b->n_spare};
    KG_TRY(kg_eval_items_take(&learned, names, &from, err));
    KG_TRY(kg_eval_items_take(&spare, names, &from, err));
    if (b->drop)
        KG_TRY(kg_traj_bytes_take(b->drop, &from, b->n_trajs, err));
    if (b->greedy)
        KG_TRY(kg_traj_bytes_take(b->greedy, &from, b->n_trajs * sizeof *b->greedy, err));
    KG_TRY(
        kg_traj_bytes_take(b->times, &from, (size_t)b->n_times * sizeof *b->times, err));
    return kg_str_append(&b->begun, from.at, from.left, err);
}

kg_status kg_ahead_take(struct kg_rl_batch *b, struct kg_ahead *a, int64_t step,
                        const struct kg_run_inputs *in, struct kg_err *err)
{
    struct kg_str *bytes = batch_of(a, step, in->recipe.rollout.lag);
    struct head head;

    assert(bytes->len > 0);
    kg_status status = take_batch(b, &head, in->task_opts.further, bytes, err);
    kg_str_release(bytes);
    if (status != KG_OK || head.status == KG_OK)
        return status;
    *err = head.why;
    return head.status;
}

/* ---- sampling a batch ---- */

static bool within(const struct kg_run *run, int64_t step)
{
    return step < run->in.recipe.train.steps;
}

/* Gathers the times of the rollout ranks, for the trainers' log. */
static kg_status take_times(struct kg_rl_batch *b, struct kg_ahead *a, struct kg_err *err)
{
    struct kg_rank_times own = kg_rank_times_take(a->all, b->sampling_seconds);

    b->n_times = a->part.n;
    b->times = kg_mem_calloc((size_t)b->n_times, sizeof *b->times, "clocks", err);
    kg_status status = b->times ? KG_OK : err->code;
    KG_TRY(kg_ranks_agree(&a->part, status, "clocks", err));
    return kg_rank_times_gather(b->times, &own, &a->part, err);
}

/* said, why: result of sampling the batch */
static kg_status write_batch(struct kg_rl_batch *b, struct kg_run *run, int64_t step,
                             kg_status said, const struct kg_err *why, struct kg_err *err)
{
    struct kg_ahead *a = &run->work.ahead;

    KG_TRY(take_times(b, a, err));
    return put_batch(batch_of(a, step, run->state.lag), b, run->in.task_opts.further,
                     said, why, err);
}

/* Samples the batch of a step with the weights of L steps earlier. */
static kg_status sample(struct kg_run *run, int64_t step, struct kg_err *err)
{
    struct kg_ahead *a = &run->work.ahead;
    struct kg_run_state then = run->state;
    struct kg_rl_batch b = {0};
    struct kg_err why = {0};

    then.count.step = step;
    then.count.prompts = a->places;
    KG_TRY(kg_run_load_sampler(&run->state, step, err));
    kg_status status = kg_rl_sample(&b, &run->in, &then, &run->work, &why);
    if (status == KG_OK || status == KG_ENONFINITE) {
        a->places += b.places;
        kg_ranks_forgive(&a->part);
        status = write_batch(&b, run, step, status, &why, err);
        kg_rl_take_begun(&run->state, &b);
    } else {
        *err = why;
    }
    kg_rl_batch_release(&b);
    return status;
}

kg_status kg_ahead_sample(struct kg_run *run, struct kg_err *err)
{
    int64_t step = run->state.count.step + run->state.lag;

    if (!within(run, step))
        return KG_OK;
    int phase = kg_phase_begin(0, NULL, "batch of step %lld", (long long)step + 1);
    KG_TRY(sample(run, step, err));
    kg_phase_end(phase);
    return KG_OK;
}

/* ---- transfers ---- */

kg_status kg_ahead_agree(struct kg_ahead *a, kg_status status, const char *what,
                         struct kg_err *err)
{
    if (status == KG_OK || !a->all->told)
        status = kg_ranks_agree(&a->part, status, what, err);
    return kg_ranks_agree(a->all, status, what, err);
}

/* Every trainer gets its batches from one rollout rank. */
static bool serves(const struct kg_ahead *a, int sampler, int trainer)
{
    int n = a->all->n - a->trainers;

    return sampler >= a->trainers && trainer < a->trainers &&
           trainer % n == sampler - a->trainers;
}

/* Sends n bytes to the trainers that this rank serves, or receives them. */
static kg_status hand_on(struct kg_ahead *a, void *bytes, size_t n, struct kg_err *err)
{
    struct kg_ranks *all = a->all;
    struct kg_ranks_part *parts = kg_mem_calloc(2 * (size_t)all->n, sizeof *parts,
                                                "batches", err);
    kg_status status = kg_ranks_agree(all, parts ? KG_OK : err->code, "batches", err);

    for (int p = 0; p < all->n && status == KG_OK; p++) {
        if (serves(a, all->me, p))
            parts[p] = (struct kg_ranks_part){bytes, n};
        if (serves(a, p, all->me))
            parts[all->n + p] = (struct kg_ranks_part){bytes, n};
    }
    if (status == KG_OK)
        status = kg_ranks_exchange(all, parts, parts + all->n, "batches", err);
    kg_mem_free(parts);
    return status;
}

static kg_status deliver(struct kg_run *run, int64_t step, struct kg_err *err)
{
    struct kg_ahead *a = &run->work.ahead;
    struct kg_str *batch = batch_of(a, step, run->state.lag);
    size_t n = batch->len;
    kg_status status = KG_OK;

    if (!within(run, step))
        return KG_OK;
    KG_TRY(hand_on(a, &n, sizeof n, err));
    if (!a->samples)
        status = kg_str_extend(batch, n, err);
    KG_TRY(kg_ranks_agree(a->all, status, "batches", err));
    KG_TRY(hand_on(a, batch->data, n, err));
    if (a->samples)
        kg_str_release(batch);
    return KG_OK;
}

kg_status kg_ahead_count(struct kg_run *run, struct kg_err *err)
{
    struct kg_counters count = run->state.count;

    if (run->work.ahead.trainers == 0)
        return KG_OK;
    KG_TRY(kg_ranks_share(run->work.ahead.all, &count, sizeof count, "counters", err));
    if (run->work.ahead.samples)
        run->state.count = count;
    return KG_OK;
}

/* One wire for the whole run: the memory plan counts it once. */
static kg_status take_wire(struct kg_ahead *a, const struct kg_backend *be,
                           struct kg_err *err)
{
    if (!a->wire.ranks)
        KG_TRY(kg_slab_wire_open(&a->wire, a->all, be, err));
    a->wire.failed = (struct kg_err){0};
    return KG_OK;
}

/* Copies a slab of n elements from the trainers' shards to `to` on the rollout ranks.
 * from: on trainers, the whole slab or this trainer's shard */
static kg_status send_slab(struct kg_ahead *a, struct kg_slab *to, struct kg_slab *from,
                           int64_t n, struct kg_err *err)
{
    struct kg_ranks *all = a->all;
    struct kg_slab_stretch *parts = kg_mem_calloc(2 * (size_t)all->n, sizeof *parts,
                                                  "weights", err);
    kg_status status = parts ? take_wire(a, to->backend, err) : err->code;

    status = kg_ranks_agree(all, status, "weights", err);
    for (int p = 0; p < all->n && status == KG_OK; p++) {
        int trainer = a->samples ? p : all->me;

        if (a->samples == (p >= a->trainers))
            continue;
        struct kg_cut cut = kg_cut_of(n, trainer, a->trainers);
        if (a->samples)
            parts[all->n + p] = (struct kg_slab_stretch){to, cut.first, cut.n};
        else
            parts[p] = (struct kg_slab_stretch){from, from->n == n ? cut.first : 0,
                                                cut.n};
    }
    if (status == KG_OK)
        status = kg_slab_exchange(&a->wire, parts, parts + all->n, "weights", err);
    if (status == KG_OK && a->wire.failed.code != KG_OK) {
        *err = a->wire.failed;
        status = err->code;
    }
    kg_mem_free(parts);
    return kg_ranks_agree(all, status, "weights", err);
}

/* Sends the weights from before the next step; they become the newest lagged weights. */
static kg_status send_weights(struct kg_run *run, struct kg_err *err)
{
    struct kg_run_state *s = &run->state;

    return send_slab(&run->work.ahead, &s->lagged[s->count.step % (s->lag + 1)],
                     &s->model->master, s->model->n_elements, err);
}

/* Sends the begun completions of the state to the rollout ranks. */
static kg_status send_begun(struct kg_run *run, struct kg_err *err)
{
    struct kg_ranks *all = run->work.ahead.all;
    struct kg_str *begun = &run->state.begun;
    size_t n = begun->len;
    kg_status status = KG_OK;

    KG_TRY(kg_ranks_share(all, &n, sizeof n, "completions", err));
    if (run->work.ahead.samples) {
        kg_str_clear(begun);
        begun->max = SIZE_MAX / 2;
        status = kg_str_extend(begun, n, err);
    }
    KG_TRY(kg_ranks_agree(all, status, "completions", err));
    return n > 0 ? kg_ranks_share(all, begun->data, n, "completions", err) : KG_OK;
}

kg_status kg_ahead_begin(struct kg_run *run, struct kg_err *err)
{
    struct kg_ahead *a = &run->work.ahead;
    struct kg_run_state *s = &run->state;
    kg_status status = KG_OK;

    if (a->trainers == 0 || a->begun)
        return KG_OK;
    for (int i = 0; i <= s->lag; i++)
        KG_TRY(send_slab(a, &s->lagged[i], &s->lagged[i], s->model->n_elements, err));
    KG_TRY(send_weights(run, err));
    KG_TRY(send_begun(run, err));
    a->places = s->count.prompts;
    for (int64_t step = s->count.step; step < s->count.step + s->lag; step++) {
        if (a->samples && within(run, step))
            status = sample(run, step, err);
        KG_TRY(kg_ahead_agree(a, status, "first batches", err));
        KG_TRY(deliver(run, step, err));
    }
    a->begun = true;
    return KG_OK;
}

kg_status kg_ahead_pass(struct kg_run *run, struct kg_err *err)
{
    if (run->work.ahead.trainers == 0)
        return KG_OK;
    KG_TRY(kg_ahead_count(run, err));
    KG_TRY(deliver(run, run->state.count.step - 1 + run->state.lag, err));
    return send_weights(run, err);
}
