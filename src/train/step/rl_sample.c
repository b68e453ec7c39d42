/* From prompts to graded completions: rollout, dynamic sampling with refill, shaping, the
 * greedy completions of a baseline.
 *
 * Prompts come from an endless sequence of epochs (train/open/epochs.h). A run counts how
 * many it has taken (count.prompts). The random numbers of a prompt are keyed by its
 * position in that sequence, so they do not depend on earlier draws.
 */
#include "train/step/rl_batch.h"

#include "base/clock.h"
#include "base/mem.h"
#include "eval/gather.h"
#include "policy/shaping.h"
#include "recipe/options.h"
#include "rollout/sampling.h"
#include "train/open/open.h"
#include "train/step/begun.h"
#include "train/step/sums.h"

#include <math.h>
#include <string.h>

enum { MOST_TRAJS = 1 << 28 };

static kg_status choose_prompts(struct kg_request *requests, size_t n,
                                const struct kg_run_inputs *in, uint64_t place,
                                struct kg_err *err)
{
    uint32_t *prompts = kg_mem_calloc(n, sizeof *prompts, "prompts of a step", err);
    kg_status status = prompts ? kg_run_prompts_at(prompts, n, place, in, err)
                               : err->code;

    for (size_t i = 0; status == KG_OK && i < n; i++)
        requests[i] = (struct kg_request){.prompt = in->train.ids[prompts[i]].ids,
                                          .prompt_n = in->train.ids[prompts[i]].n,
                                          .prompt_index = prompts[i],
                                          .draw = place + i,
                                          .n_samples = in->recipe.rollout.samples};
    kg_mem_free(prompts);
    return status;
}

/* ---- a generation batch ---- */

struct generation {
    struct kg_request *requests; /* (n_prompts) owned, as the arrays below */
    size_t n_prompts;
    struct kg_traj *trajs; /* (n) moved to the batch one by one */
    struct kg_grade *grades;
    size_t n;
};

static void generation_release(struct generation *g)
{
    for (size_t i = 0; g->trajs && i < g->n; i++)
        kg_traj_release(&g->trajs[i]);
    kg_mem_free(g->trajs);
    kg_mem_free(g->grades);
    kg_mem_free(g->requests);
}

static kg_status generation_init(struct generation *g, size_t n_prompts, size_t n,
                                 struct kg_err *err)
{
    *g = (struct generation){.n_prompts = n_prompts, .n = n};
    g->requests = kg_mem_calloc(n_prompts, sizeof *g->requests, "requests", err);
    g->trajs = g->requests ? kg_mem_calloc(g->n, sizeof *g->trajs, "trajectories", err)
                           : NULL;
    g->grades = g->trajs ? kg_mem_calloc(g->n, sizeof *g->grades, "grades", err) : NULL;
    if (g->grades)
        return KG_OK;
    generation_release(g);
    return err->code;
}

/* Makes room for n more trajectories in every array of the batch. */
static kg_status make_room(struct kg_rl_batch *b, size_t n, struct kg_err *err)
{
    size_t trajs = b->n_trajs, grades = trajs, drop = trajs, spare = b->n_spare;

    KG_TRY(kg_mem_grow(&b->trajs, &trajs, b->n_trajs + n, sizeof *b->trajs, MOST_TRAJS,
                       "trajectories", err));
    KG_TRY(kg_mem_grow(&b->grades, &grades, b->n_trajs + n, sizeof *b->grades, MOST_TRAJS,
                       "grades", err));
    KG_TRY(kg_mem_grow(&b->drop, &drop, b->n_trajs + n, 1, MOST_TRAJS,
                       "dropped trajectories", err));
    return kg_mem_grow(&b->spare, &spare, b->n_spare + n, sizeof *b->spare, MOST_TRAJS,
                       "spare trajectories", err);
}

static void move_in(struct kg_rl_batch *b, struct generation *g, size_t i, bool drop)
{
    b->drop[b->n_trajs] = drop;
    b->grades[b->n_trajs] = g->grades[i];
    b->trajs[b->n_trajs++] = g->trajs[i];
    g->trajs[i] = (struct kg_traj){0};
}

static void move_aside(struct kg_rl_batch *b, struct kg_traj *t)
{
    b->spare[b->n_spare++] = *t;
    *t = (struct kg_traj){0};
}

static void add_stats(struct kg_rollout_stats *sum, const struct kg_rollout_stats *s)
{
    sum->prefill_tokens += s->prefill_tokens;
    sum->decode_tokens += s->decode_tokens;
    sum->decode_steps += s->decode_steps;
    sum->prefill_seconds += s->prefill_seconds;
    sum->decode_seconds += s->decode_seconds;
}

static void add_tools(struct kg_env_stats *sum, const struct kg_env_stats *s)
{
    sum->calls += s->calls;
    sum->requests += s->requests;
    sum->cached += s->cached;
    sum->retries += s->retries;
    sum->failed += s->failed;
    sum->seconds += s->seconds;
}

/* Difference of two counts of tool calls. */
static struct kg_env_stats tools_between(const struct kg_env_stats *from,
                                         const struct kg_env_stats *to)
{
    return (struct kg_env_stats){.calls = to->calls - from->calls,
                                 .requests = to->requests - from->requests,
                                 .cached = to->cached - from->cached,
                                 .retries = to->retries - from->retries,
                                 .failed = to->failed - from->failed,
                                 .seconds = to->seconds - from->seconds};
}

/* Work and time of one rank in a rollout. */
struct effort {
    struct kg_rollout_stats rolled;
    struct kg_env_stats tools;
    double seconds_idle;
};

/* Over ranks, work is summed; times overlap, so the longest counts. */
static void add_effort(struct effort *sum, const struct effort *e)
{
    struct kg_rollout_stats *r = &sum->rolled, before = *r;

    add_stats(r, &e->rolled);
    r->prefill_seconds = fmax(before.prefill_seconds, e->rolled.prefill_seconds);
    r->decode_seconds = fmax(before.decode_seconds, e->rolled.decode_seconds);
    add_tools(&sum->tools, &e->tools);
    sum->seconds_idle = fmax(sum->seconds_idle, e->seconds_idle);
}

static kg_status count_effort(struct kg_rl_batch *b, const struct effort *own,
                              struct kg_ranks *ranks, struct kg_err *err)
{
    struct effort *all, sum = {0};
    kg_status status = kg_ranks_gather_own(&all, ranks, KG_OK, own, sizeof *own,
                                           "rollout", err);

    for (int r = 0; r < (ranks->n > 1 ? ranks->n : 1) && status == KG_OK; r++)
        add_effort(&sum, &all[r]);
    kg_mem_free(all);
    add_stats(&b->rolled, &sum.rolled);
    add_tools(&b->tools, &sum.tools);
    b->seconds_idle += sum.seconds_idle;
    return status;
}

/* Samples this rank's share of the generation. */
static kg_status sample_share(struct generation *g, struct effort *e,
                              const struct kg_run_inputs *in, struct kg_run_work *work,
                              const struct kg_sampling *sampling, struct kg_share mine,
                              struct kg_err *err)
{
    struct kg_request *requests = kg_mem_calloc(g->n_prompts, sizeof *requests,
                                                "requests", err);
    struct kg_env_stats before, after;
    kg_status status = KG_OK;

    if (!requests)
        return err->code;
    size_t n = kg_eval_cut_requests(requests, g->requests, g->n_prompts, mine);
    (void)kg_episodes_stats(&before, work->episodes);
    if (n > 0)
        status = kg_episodes_run(work->episodes, work->engine, g->trajs + mine.first,
                                 requests, n, sampling, &in->train, &e->seconds_idle,
                                 err);
    if (kg_episodes_stats(&after, work->episodes))
        e->tools = tools_between(&before, &after);
    if (n > 0)
        e->rolled = *kg_rollout_stats(work->engine);
    kg_mem_free(requests);
    return status;
}

static kg_status grade_share(struct generation *g, const struct kg_run_inputs *in,
                             struct kg_share mine, struct kg_err *err)
{
    struct kg_eval_opts grading = kg_run_eval_opts(in);

    if (mine.first == mine.end)
        return KG_OK;
    return kg_eval_grade(g->grades + mine.first, NULL, g->trajs + mine.first,
                         (size_t)(mine.end - mine.first), in->tok, &in->train, &grading,
                         err);
}

static kg_status roll(struct generation *g, struct kg_rl_batch *b,
                      const struct kg_run_inputs *in, const struct kg_run_state *state,
                      struct kg_run_work *work, const struct kg_sampling *sampling,
                      struct kg_err *err)
{
    struct kg_share mine = kg_eval_share(g->requests, g->n_prompts, work->ranks);
    struct kg_eval_items items = {.trajs = g->trajs, .grades = g->grades, .n = g->n};
    struct kg_env_stats unused;
    struct effort e = {0};
    double since = kg_clock_seconds();
    kg_status status = sample_share(g, &e, in, work, sampling, mine, err);

    b->tools_counted = kg_episodes_stats(&unused, work->episodes);
    if (status != KG_OK)
        status = kg_run_tool_failed(work->episodes, state->count.step, status, err);
    else
        status = grade_share(g, in, mine, err);
    b->sampling_seconds += kg_clock_seconds() - since;
    KG_TRY(kg_ranks_agree(work->ranks, status, "rollout", err));
    KG_TRY(count_effort(b, &e, work->ranks, err));
    return kg_eval_gather(&items, mine, in->task_opts.further, work->ranks, err);
}

/* ---- completions that are begun early (train/step/begun.h) ---- */

/* Samples this version's pieces on all ranks and appends them; on failure, none. */
static kg_status sample_pieces(struct kg_begun *all, struct generation *pieces,
                               struct kg_rl_batch *b, const struct kg_run_inputs *in,
                               const struct kg_run_state *state, struct kg_run_work *work,
                               struct kg_err *err)
{
    const struct kg_sampling sampling = kg_run_sampling(in);
    const int64_t version = state->count.step - state->lag;
    struct kg_share mine = kg_eval_share(pieces->requests, pieces->n_prompts,
                                         work->ranks);
    struct kg_eval_items items = {.trajs = pieces->trajs, .n = pieces->n};
    struct effort e = {0};
    kg_status status = sample_share(pieces, &e, in, work, &sampling, mine, err);
    struct kg_env_stats unused;

    b->tools_counted = kg_episodes_stats(&unused, work->episodes);
    if (status != KG_OK)
        status = kg_run_tool_failed(work->episodes, state->count.step, status, err);
    KG_TRY(kg_ranks_agree(work->ranks, status, "rollout", err));
    KG_TRY(count_effort(b, &e, work->ranks, err));
    KG_TRY(kg_eval_gather(&items, mine, NULL, work->ranks, err));
    status = kg_begun_join(all, pieces->trajs, version > 0 ? version : 0, err);
    return kg_ranks_agree(work->ranks, status, "rollout", err);
}

static kg_status add_pieces(struct kg_begun *all, struct kg_rl_batch *b,
                            const struct kg_run_inputs *in,
                            const struct kg_run_state *state, struct kg_run_work *work,
                            struct kg_err *err)
{
    const size_t prompts = all->n / all->group;
    struct generation fresh, pieces;
    kg_status status;

    KG_TRY(generation_init(&fresh, prompts, 1, err));
    KG_TRY_GOTO(out_fresh, generation_init(&pieces, all->n, all->n, err));
    KG_TRY_GOTO(out, choose_prompts(fresh.requests, prompts, in,
                                    (uint64_t)state->count.prompts, err));
    pieces.n_prompts = kg_begun_requests(pieces.requests, all, fresh.requests);
    pieces.n = 0;
    for (size_t i = 0; i < pieces.n_prompts; i++)
        pieces.n += (size_t)pieces.requests[i].n_samples;
    status = sample_pieces(all, &pieces, b, in, state, work, err);
out:
    generation_release(&pieces);
out_fresh:
    generation_release(&fresh);
    return status;
}

/* Takes this step's completions; the others are packed for the next step. */
static kg_status take_step(struct generation *g, struct kg_rl_batch *b,
                           struct kg_begun *all, struct kg_err *err)
{
    KG_TRY(kg_begun_pack(&b->begun, all, g->n, err));
    memcpy(g->trajs, all->trajs, g->n * sizeof *g->trajs);
    memset(all->trajs, 0, g->n * sizeof *g->trajs);
    return KG_OK;
}

/* Non-finite values skip this step, and the begun completions continue in the next. */
static kg_status add_and_take(struct generation *g, struct kg_rl_batch *b,
                              struct kg_begun *all, const struct kg_run_inputs *in,
                              const struct kg_run_state *state, struct kg_run_work *work,
                              struct kg_err *err)
{
    struct kg_err why = {0};
    kg_status status = add_pieces(all, b, in, state, work, &why);

    if (status == KG_OK || status == KG_ENONFINITE)
        KG_TRY(take_step(g, b, all, err));
    *err = status == KG_OK ? *err : why;
    return status;
}

/* As roll, for completions begun early: all ranks have all, and each grades its share. */
static kg_status roll_begun(struct generation *g, struct kg_rl_batch *b,
                            const struct kg_run_inputs *in,
                            const struct kg_run_state *state, struct kg_run_work *work,
                            struct kg_err *err)
{
    struct kg_share mine = kg_eval_share(g->requests, g->n_prompts, work->ranks);
    struct kg_eval_items items = {.trajs = g->trajs, .grades = g->grades, .n = g->n};
    struct kg_begun all;
    double since = kg_clock_seconds();
    kg_status status = kg_begun_init(&all, &in->recipe, &state->begun, err);

    status = kg_ranks_agree(work->ranks, status, "rollout", err);
    if (status == KG_OK)
        status = add_and_take(g, b, &all, in, state, work, err);
    kg_begun_release(&all);
    KG_TRY(status);
    status = grade_share(g, in, mine, err);
    b->sampling_seconds += kg_clock_seconds() - since;
    KG_TRY(kg_ranks_agree(work->ranks, status, "grading", err));
    for (int64_t i = 0; i < (int64_t)g->n; i++)
        if (i < mine.first || i >= mine.end)
            kg_traj_release(&g->trajs[i]); /* kg_eval_gather returns it with its reward */
    return kg_eval_gather(&items, mine, in->task_opts.further, work->ranks, err);
}

/* Bit set of rewards that have a weight, and a value in at least one of n samples. */
static uint32_t rewards_of(const struct kg_traj *t, size_t n,
                           const struct kg_task_rewards *r)
{
    uint32_t has = 0;

    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < t[i].n_parts; k++)
            if (!isnan(t[i].part[k]) && kg_task_rewards_weight(r, k) != 0)
                has |= (uint32_t)1 << k;
    return has;
}

void kg_rl_compare_sums(struct kg_traj *trajs, size_t n, size_t group,
                        const struct kg_run_inputs *in)
{
    const struct kg_task_rewards *r = in->task_opts.rewards;

    if (kg_algo_needs(&in->algo) & KG_NEED_PARTS)
        return;
    for (size_t first = 0; first < n; first += group) {
        uint32_t all = rewards_of(&trajs[first], group, r);

        for (size_t i = first; i < first + group; i++)
            trajs[i].graded &= rewards_of(&trajs[i], 1, r) == all;
    }
}

/* Samples and grades the next n_prompts prompts. After a failure the batch has the
 * completions that exist, for the dump. */
static kg_status generate(struct generation *g, struct kg_rl_batch *b,
                          const struct kg_run_inputs *in,
                          const struct kg_run_state *state, struct kg_run_work *work,
                          size_t n_prompts, struct kg_err *err)
{
    struct kg_sampling sampling = kg_run_sampling(in);
    uint64_t place = (uint64_t)(state->count.prompts + b->places);
    kg_status status;

    KG_TRY(generation_init(g, n_prompts, n_prompts * (size_t)b->group, err));
    KG_TRY_GOTO(out, make_room(b, g->n, err));
    KG_TRY_GOTO(out, choose_prompts(g->requests, n_prompts, in, place, err));
    b->places += (int64_t)n_prompts;
    status = kg_begun_steps(&in->recipe) > 0
                 ? roll_begun(g, b, in, state, work, err)
                 : roll(g, b, in, state, work, &sampling, err);
    if (status == KG_OK)
        kg_rl_compare_sums(g->trajs, g->n, (size_t)b->group, in);
    for (size_t i = 0; status != KG_OK && i < g->n; i++)
        move_in(b, g, i, false);
out:
    if (status != KG_OK)
        generation_release(g);
    return status;
}

/* ---- dynamic sampling ---- */

static double metric_of(const struct generation *g, size_t i, bool reward)
{
    return reward ? g->trajs[i].reward : g->grades[i].graded && g->grades[i].correct;
}

/* Whether the metric has two different values in the group that begins at trajectory
 * `first`. Completions without a verdict have no value. */
static bool is_mixed(const struct generation *g, size_t first, int32_t group, bool reward)
{
    double one = NAN;

    for (size_t i = first; i < first + (size_t)group; i++) {
        if (!g->trajs[i].graded)
            continue;
        if (metric_of(g, i, reward) != one && !isnan(one))
            return true;
        one = metric_of(g, i, reward);
    }
    return false;
}

static void count_group(struct kg_rl_dynamic *d, const struct generation *g, size_t first,
                        int32_t group)
{
    int32_t correct = 0, judged = 0;

    for (size_t i = first; i < first + (size_t)group; i++) {
        correct += metric_of(g, i, false) != 0;
        judged += g->trajs[i].graded;
        d->reward_sum += g->trajs[i].graded ? g->trajs[i].reward : 0;
    }
    d->answers += group;
    d->judged += judged;
    d->correct += correct;
    d->all_right += judged > 0 && correct >= judged;
    d->all_wrong += judged > 0 && correct == 0;
}

/* Mixed groups are learned from until there are `wanted`. The other groups stay in the
 * batch for their KL, or are set aside. */
static void sort_groups(struct kg_rl_batch *b, struct generation *g,
                        const struct kg_run_inputs *in, size_t wanted)
{
    bool reward = in->recipe.rollout.dynamic_reward;
    bool for_kl = kg_algo_kl_in_loss(&in->algo) && !in->algo.kl_after_filter;
    size_t group = (size_t)b->group;

    for (size_t first = 0; first < g->n; first += group) {
        bool mixed = is_mixed(g, first, b->group, reward);
        bool learn = mixed && b->n_learned < wanted * group;

        count_group(&b->dynamic, g, first, b->group);
        b->dynamic.equal += !mixed;
        b->dynamic.surplus += mixed && !learn;
        b->n_learned += learn ? group : 0;
        for (size_t i = first; i < first + group; i++)
            if (learn || for_kl)
                move_in(b, g, i, !learn);
            else
                move_aside(b, &g->trajs[i]);
    }
    b->dynamic.batches++;
    b->dynamic.prompts += (int64_t)g->n_prompts;
}

static kg_status too_few(const struct kg_rl_batch *b, size_t wanted, struct kg_err *err)
{
    const struct kg_rl_dynamic *d = &b->dynamic;

    return kg_fail(err, KG_ENOTFOUND,
                   "rollout.dynamic: expected %zu prompts whose samples differ, found "
                   "%zu in %lld generation batches of %lld prompts (all right %lld, all "
                   "wrong %lld); use problems of another difficulty, more "
                   "rollout.samples or a larger rollout.max_refills",
                   wanted, b->n_learned / (size_t)b->group, (long long)d->batches,
                   (long long)(d->prompts / d->batches), (long long)d->all_right,
                   (long long)d->all_wrong);
}

static kg_status sample_dynamic(struct kg_rl_batch *b, const struct kg_run_inputs *in,
                                const struct kg_run_state *state,
                                struct kg_run_work *work, size_t wanted,
                                struct kg_err *err)
{
    int64_t most = in->recipe.rollout.max_refills;
    double oversample = in->recipe.rollout.oversample;
    size_t prompts = (size_t)ceil((double)wanted * oversample);

    while (b->n_learned < wanted * (size_t)b->group) {
        struct generation g;

        if (b->dynamic.batches == most)
            return too_few(b, wanted, err);
        KG_TRY(generate(&g, b, in, state, work, prompts, err));
        sort_groups(b, &g, in, wanted);
        generation_release(&g);
    }
    return KG_OK;
}

static kg_status sample_once(struct kg_rl_batch *b, const struct kg_run_inputs *in,
                             const struct kg_run_state *state, struct kg_run_work *work,
                             size_t prompts, struct kg_err *err)
{
    struct generation g;

    KG_TRY(generate(&g, b, in, state, work, prompts, err));
    for (size_t i = 0; i < g.n; i++)
        move_in(b, &g, i, false);
    b->n_learned = b->n_trajs;
    generation_release(&g);
    return KG_OK;
}

/* ---- what training adds to a reward ---- */

/* Overlong shaping. The task's own reward does not change. */
static void shape(struct kg_traj *trajs, size_t n, const struct kg_run_inputs *in)
{
    int64_t buffer = in->recipe.rollout.overlong_buffer;
    int64_t most = kg_recipe_answer_tokens(&in->recipe);
    double factor = in->recipe.rollout.overlong_factor;

    for (size_t i = 0; buffer > 0 && i < n; i++)
        trajs[i].shaping = kg_policy_overlong((int64_t)kg_traj_model_tokens(&trajs[i]),
                                              most, buffer, factor);
}

/* ---- greedy completions ---- */

/* One request per prompt to learn from, with the draw of its samples. */
static void ask_greedy(struct kg_request *requests, const struct kg_rl_batch *b,
                       const struct kg_run_inputs *in)
{
    size_t group = (size_t)b->group;

    for (size_t i = 0; i < b->n_trajs; i += group) {
        const struct kg_traj *t = &b->trajs[i];

        if (kg_rl_learns(b, i))
            *requests++ = (struct kg_request){
                .prompt = in->train.ids[t->prompt_index].ids,
                .prompt_n = in->train.ids[t->prompt_index].n,
                .prompt_index = t->prompt_index,
                .draw = t->draw,
                .n_samples = 1};
    }
}

/* NaN if the greedy completion has no verdict, or other rewards than its group. */
static double baseline_of(const struct kg_traj *t, const struct kg_rl_batch *b,
                          size_t first, const struct kg_task_rewards *r)
{
    bool known = t->graded &&
                 rewards_of(t, 1, r) == rewards_of(&b->trajs[first], (size_t)b->group, r);

    return known || !b->judges ? t->reward + t->shaping : NAN;
}

static void take_greedy(struct kg_rl_batch *b, const struct generation *g,
                        const struct kg_task_rewards *r)
{
    size_t group = (size_t)b->group, at = 0;

    for (size_t i = 0; i < b->n_trajs; i++) {
        if (!kg_rl_learns(b, i))
            continue;
        b->greedy[i] = baseline_of(&g->trajs[at / group], b, i / group * group, r);
        at++;
    }
    for (size_t i = 0; i < g->n; i++) {
        b->greedy_correct += g->grades[i].graded && g->grades[i].correct;
        b->greedy_ungraded += !g->grades[i].graded;
    }
    b->n_greedy = g->n;
}

static struct kg_sampling greedy_sampling(const struct kg_run_inputs *in)
{
    const struct kg_sampling training = kg_run_sampling(in);

    return (struct kg_sampling){KG_TRUNCATION_OFF, .max_tokens = training.max_tokens,
                                .stops = training.stops, .n_stops = training.n_stops,
                                .rng = training.rng};
}

/* Samples a greedy completion of every prompt for its reward. These completions are
 * dumped but not trained on. */
static kg_status sample_greedy(struct kg_rl_batch *b, const struct kg_run_inputs *in,
                               const struct kg_run_state *state, struct kg_run_work *work,
                               struct kg_err *err)
{
    struct kg_sampling sampling = greedy_sampling(in);
    struct generation g;
    kg_status status;

    size_t prompts = b->n_learned / (size_t)b->group;

    KG_TRY(generation_init(&g, prompts, prompts, err));
    KG_TRY_GOTO(out, make_room(b, g.n, err));
    b->greedy = kg_mem_calloc(b->n_trajs, sizeof *b->greedy, "greedy rewards", err);
    if (!b->greedy) {
        status = err->code;
        goto out;
    }
    ask_greedy(g.requests, b, in);
    status = roll(&g, b, in, state, work, &sampling, err);
    shape(g.trajs, g.n, in);
    if (status == KG_OK)
        take_greedy(b, &g, in->task_opts.rewards);
    for (size_t i = 0; i < g.n; i++)
        move_aside(b, &g.trajs[i]);
out:
    generation_release(&g);
    return status;
}

kg_status kg_rl_sample(struct kg_rl_batch *b, const struct kg_run_inputs *in,
                       const struct kg_run_state *state, struct kg_run_work *work,
                       struct kg_err *err)
{
    size_t prompts = (size_t)in->recipe.rollout.prompts;

    b->group = in->recipe.rollout.samples;
    b->judges = kg_task_judges(in->task, &in->task_opts);
    if (in->recipe.rollout.dynamic)
        KG_TRY(sample_dynamic(b, in, state, work, prompts, err));
    else
        KG_TRY(sample_once(b, in, state, work, prompts, err));
    shape(b->trajs, b->n_trajs, in);
    shape(b->spare, b->n_spare, in);
    b->shaped = in->recipe.rollout.overlong_buffer > 0;
    if (kg_algo_needs(&in->algo) & KG_NEED_GREEDY)
        return sample_greedy(b, in, state, work, err);
    return KG_OK;
}
