/* Makes requests from begun completions, and joins their results.
 *
 * A piece of a completion is an ordinary request: its prompt is the text so far, and it
 * counts its draws from where the last piece ended. A piece of an episode also has the
 * state that rollout/episode.h keeps. So if the weights do not change, the pieces are,
 * bit for bit, the completion that a single request samples.
 */
#include "train/step/begun.h"

#include "base/mem.h"
#include "recipe/options.h"
#include "train/step/rl_batch.h"

#include <stdio.h>
#include <string.h>

/* ---- the schedule ---- */

int64_t kg_begun_steps(const struct kg_recipe *r)
{
    int64_t steps = r->rollout.max_staleness - r->rollout.lag;

    return steps > 0 ? steps : 0;
}

/* Number of later versions that can sample completion i. */
static int64_t versions_left(const struct kg_begun *g, size_t i)
{
    return (int64_t)(i / (g->n / (size_t)(g->steps + 1)));
}

/* Maximum number of tokens of completion i after this version. */
static int64_t tokens_due(const struct kg_begun *g, size_t i)
{
    int64_t due = (g->steps - versions_left(g, i) + 1) * g->slice;

    return due < g->max_tokens ? due : g->max_tokens;
}

/* Whether this version skips completion i because its tool call is pending. The last
 * version waits for the tool instead. */
static bool rests(const struct kg_begun *g, size_t i)
{
    return g->trajs[i].episode.asked > 1 && versions_left(g, i) > 0;
}

/* ---- keys that begun completions exclude ---- */

static kg_status refuse(const char *key, const char *found, const char *why,
                        struct kg_err *err)
{
    return kg_fail(err, KG_EINVAL,
                   "rollout.max_staleness: expected 0 with %s %s, %s; set it to 0 or use "
                   "rollout.lag",
                   key, found, why);
}

/* Refuses passes with the sampler's weights, since a completion has several versions. */
static kg_status check_passes(const struct kg_run_inputs *in, struct kg_err *err)
{
    const struct kg_algo *a = &in->algo;

    if (a->anchor->kind == KG_ANCHOR_ITERATIVE && kg_rl_asks_anchor(a, NULL))
        return refuse("kl.estimator", kg_algo_row_name(a, KG_TABLE_KL),
                      "which needs another pass by the sampler, for its top ids", err);
    if (in->recipe.train.recompute)
        return KG_OK;
    if (kg_recipe_records_kept(&in->recipe))
        return refuse("truncated sampling", "and train.old_logp sampled",
                      "which needs another pass by the sampler, for the mass kept", err);
    if (kg_algo_needs(a) & KG_NEED_SUM_SQ)
        return refuse("algo.advantage", kg_algo_row_name(a, KG_TABLE_ADVANTAGE),
                      "which needs another pass by the sampler, for sum p^2", err);
    return KG_OK;
}

kg_status kg_begun_check(const struct kg_run_inputs *in, struct kg_err *err)
{
    int n = in->recipe.rollout.max_staleness, lag = in->recipe.rollout.lag;

    if (n > 0 && n < lag)
        return kg_fail(err, KG_EINVAL,
                       "rollout.max_staleness: expected 0 or at least rollout.lag (%d), "
                       "the smallest age, found %d",
                       lag, n);
    if (kg_begun_steps(&in->recipe) == 0)
        return KG_OK;
    if (kg_algo_needs(&in->algo) & KG_NEED_GREEDY)
        return refuse("algo.advantage", kg_algo_row_name(&in->algo, KG_TABLE_ADVANTAGE),
                      "whose greedy completion is by one version of the weights", err);
    return check_passes(in, err);
}

/* ---- bytes ---- */

/* The first bytes of packed completions: another build of kedge refuses to read them. */
static void name_build(char name[64])
{
    memset(name, 0, 64);
    snprintf(name, 64, "kedge %s, completions of %zu bytes\n", KG_VERSION,
             sizeof(struct kg_traj));
}

static kg_status unpack(struct kg_begun *g, const struct kg_str *bytes,
                        struct kg_err *err)
{
    struct kg_traj_bytes from = {bytes->data, bytes->len};
    char expected[64], found[64] = "";

    name_build(expected);
    KG_TRY(kg_traj_bytes_take(found, &from, sizeof found, err));
    if (memcmp(found, expected, sizeof found) != 0)
        return kg_fail(err, KG_EFORMAT, "expected '%.40s', found '%.40s'", expected,
                       found);
    for (size_t i = 0; i < g->n && from.left > 0; i++)
        KG_TRY(kg_traj_unpack(&g->trajs[i], &from, err));
    if (from.left == 0)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT, "expected at most %zu completions, found more", g->n);
}

kg_status kg_begun_init(struct kg_begun *g, const struct kg_recipe *r,
                        const struct kg_str *bytes, struct kg_err *err)
{
    int64_t steps = kg_begun_steps(r);
    int32_t most = (int32_t)kg_recipe_answer_tokens(r);

    *g = (struct kg_begun){
        .n = (size_t)((steps + 1) * r->rollout.prompts * r->rollout.samples),
        .steps = steps,
        .group = (size_t)r->rollout.samples,
        .slice = (int32_t)((most + steps) / (steps + 1)),
        .max_tokens = most,
        .tool_steps = r->rollout.tool_steps,
        .plays = strcmp(r->episode_env, "none") != 0};
    g->trajs = kg_mem_calloc(g->n, sizeof *g->trajs, "trajectories", err);
    if (!g->trajs)
        return err->code;
    if (bytes->len == 0)
        return KG_OK;
    return unpack(g, bytes, err) == KG_OK
               ? KG_OK
               : kg_err_prefix(err, "completions begun for later steps");
}

void kg_begun_release(struct kg_begun *g)
{
    for (size_t i = 0; g->trajs && i < g->n; i++)
        kg_traj_release(&g->trajs[i]);
    kg_mem_free(g->trajs);
}

kg_status kg_begun_pack(struct kg_str *out, const struct kg_begun *g, size_t first,
                        struct kg_err *err)
{
    char name[64];

    name_build(name);
    kg_str_clear(out);
    out->max = SIZE_MAX / 2;
    KG_TRY(kg_str_append(out, name, sizeof name, err));
    for (size_t i = first; i < g->n; i++)
        KG_TRY(kg_traj_pack(out, &g->trajs[i], err));
    return KG_OK;
}

/* ---- pieces ---- */

/* Limits a request to the tokens of this version. */
static void limit(struct kg_request *q, const struct kg_begun *g, size_t i)
{
    q->max_tokens = q->quota = (int32_t)tokens_due(g, i) - q->drawn;
    q->tool_steps = versions_left(g, i) > 0 ? g->tool_steps : 0;
}

static struct kg_request piece_of(const struct kg_begun *g, size_t i)
{
    const struct kg_traj *t = &g->trajs[i];
    int32_t drawn = (int32_t)kg_traj_model_tokens(t);

    return (struct kg_request){.prompt = t->tokens,
                               .prompt_n = t->n,
                               .prompt_index = t->prompt_index,
                               .draw = t->draw,
                               .n_samples = 1,
                               .first_sample = t->sample,
                               .drawn = drawn,
                               .begun = drawn,
                               .paused = g->plays ? t : NULL};
}

size_t kg_begun_requests(struct kg_request *requests, const struct kg_begun *g,
                         const struct kg_request *fresh)
{
    size_t n = 0;

    for (size_t i = 0; i < g->n; i++) {
        if (g->trajs[i].finish != KG_FINISH_NONE || rests(g, i))
            continue;
        if (g->trajs[i].n > 0)
            requests[n] = piece_of(g, i);
        else if (i % g->group == 0)
            requests[n] = fresh[i / g->group];
        else
            continue;
        limit(&requests[n++], g, i);
    }
    return n;
}

static kg_status join(struct kg_traj *t, struct kg_traj *piece, int64_t version,
                      struct kg_err *err)
{
    size_t begin = piece->prompt_n;

    if (t->n == 0) {
        *t = *piece;
        *piece = (struct kg_traj){0};
    } else {
        KG_TRY(kg_traj_extend(t, piece, begin, piece->n, err));
        t->cut_n += piece->cut_n;
        t->cut_nats += piece->cut_nats;
        t->finish = piece->finish;
        t->episode = piece->episode;
    }
    return t->n > begin ? kg_traj_set_version(t, begin, version, err) : KG_OK;
}

kg_status kg_begun_join(struct kg_begun *g, struct kg_traj *pieces, int64_t version,
                        struct kg_err *err)
{
    for (size_t i = 0; i < g->n; i++) {
        struct kg_traj *t = &g->trajs[i];

        if (rests(g, i)) {
            t->episode.asked--;
            continue;
        }
        if (t->finish != KG_FINISH_NONE)
            continue;
        KG_TRY(join(t, pieces++, version, err));
        if (!g->plays && t->finish == KG_FINISH_LENGTH &&
            t->n - t->prompt_n < (size_t)g->max_tokens)
            t->finish = KG_FINISH_NONE;
    }
    return KG_OK;
}
