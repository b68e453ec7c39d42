/* From rewards to the advantage of every loss token.
 *
 * Only completions that are learned from and have a verdict count in advantages. A
 * completion that is in the batch only for its KL, or has no verdict, must not enter a
 * mean or a deviation; kg_policy_scores.drop excludes it.
 */
#include "train/step/rl_step.h"

#include "base/mem.h"
#include "policy/shaping.h"

#include <math.h>

struct scored {
    struct kg_block block; /* owned: holds the arrays below */
    int64_t *group_begin;  /* (groups+1) */
    double *reward;        /* (n_trajs) */
    double *part;          /* (n_trajs,P) each of several rewards; NaN: not graded */
    double *token_reward;  /* (N) */
    uint8_t *drop;         /* (n_trajs) */
    double weight[KG_TRAJ_PARTS];
    struct kg_policy_scores scores; /* points to the above */
};

enum { GROUPS, ANSWERS, PARTS, TOKENS, COUNTS };
static const struct kg_column columns[] = {
    KG_COLUMN(struct scored, group_begin, GROUPS),
    KG_COLUMN(struct scored, reward, ANSWERS),
    KG_COLUMN(struct scored, part, PARTS),
    KG_COLUMN(struct scored, token_reward, TOKENS),
    KG_COLUMN(struct scored, drop, ANSWERS),
    {0},
};

static void scored_release(struct scored *l) { kg_columns_free(&l->block, l, columns); }

static kg_status scored_init(struct scored *l, const struct kg_rl_batch *b,
                             const struct kg_task_rewards *rewards, struct kg_err *err)
{
    const size_t counts[COUNTS] = {
        [GROUPS] = b->n_trajs / (size_t)b->group + 1,
        [ANSWERS] = b->n_trajs,
        [PARTS] = b->n_trajs * (size_t)kg_task_rewards_n(rewards),
        [TOKENS] = (size_t)b->n,
    };

    return kg_columns_take(&l->block, l, columns, counts, "advantages", err);
}

/* Each of several rewards separately. */
static void fill_parts(struct scored *l, const struct kg_rl_batch *b,
                       const struct kg_task_rewards *rewards)
{
    int n = kg_task_rewards_n(rewards);
    double *part = l->part;

    for (int k = 0; k < n; k++)
        l->weight[k] = kg_task_rewards_weight(rewards, k);
    for (size_t i = 0; i < b->n_trajs; i++)
        for (int k = 0; k < n; k++)
            *part++ = k < b->trajs[i].n_parts ? b->trajs[i].part[k] : NAN;
    l->scores.part = n > 0 ? l->part : NULL;
    l->scores.part_weight = l->weight;
    l->scores.n_parts = n;
}

static void scored_fill(struct scored *l, const struct kg_rl_batch *b)
{
    size_t groups = b->n_trajs / (size_t)b->group;

    for (size_t i = 0; i < b->n_trajs; i++) {
        l->reward[i] = b->trajs[i].reward + b->trajs[i].shaping;
        l->drop[i] = !kg_rl_learns(b, i) || !kg_rl_judged(b, i);
    }
    for (size_t g = 0; g <= groups; g++)
        l->group_begin[g] = (int64_t)g * b->group;
    l->scores = (struct kg_policy_scores){.n_seqs = (int64_t)b->n_trajs,
                                          .n_groups = (int64_t)groups,
                                          .reward = l->reward,
                                          .group_begin = l->group_begin,
                                          .seq_begin = b->begin,
                                          .drop = l->drop,
                                          .greedy = b->greedy,
                                          .old_logp = b->old_logp,
                                          .sum_sq = b->sum_sq};
}

/* kl.in reward: -beta KL per token. Here no sample is in the batch only for its KL. */
static kg_status take_off_rewards(struct scored *l, struct kg_rl_totals *totals,
                                  const struct kg_rl_batch *b, const struct kg_algo *algo,
                                  struct kg_err *err)
{
    if (algo->kl_in->place != KG_PLACE_REWARD)
        return KG_OK;
    l->scores.token_reward = l->token_reward;
    return kg_policy_kl_reward(l->token_reward, &totals->kl_taken, algo, l->scores.n_seqs,
                               b->begin, b->old_logp, b->anchor_logp, err);
}

/* kl.in advantage, advantage-future: subtracts the KL from the finished advantages. */
static kg_status take_off_advantages(struct kg_rl_totals *totals, struct kg_rl_batch *b,
                                     const struct kg_algo *algo, struct kg_err *err)
{
    struct kg_policy_taken taken;

    if (algo->kl_in->place != KG_PLACE_ADVANTAGE)
        return KG_OK;
    KG_TRY(kg_policy_kl_advantage(b->advantage, &taken, algo, (int64_t)b->n_trajs,
                                  b->begin, b->old_logp, b->anchor_logp, err));
    totals->kl_taken = taken.mean_kl;
    totals->kl_taken_max = taken.most;
    return KG_OK;
}

kg_status kg_rl_advantages(struct kg_policy_advantage *a, struct kg_rl_totals *totals,
                           struct kg_rl_batch *b, const struct kg_algo *algo,
                           const struct kg_task_rewards *rewards, struct kg_err *err)
{
    struct scored l = {0};
    kg_status status;

    KG_TRY_GOTO(out, scored_init(&l, b, rewards, err));
    scored_fill(&l, b);
    fill_parts(&l, b, rewards);
    KG_TRY_GOTO(out, take_off_rewards(&l, totals, b, algo, err));
    *a = (struct kg_policy_advantage){.token = b->advantage};
    KG_TRY_GOTO(out, kg_policy_advantages(a, algo, &l.scores, err));
    a->token = NULL; /* only the statistics remain, of samples to learn from */
    a->groups_equal -= (int64_t)((b->n_trajs - b->n_learned) / (size_t)b->group);
    status = take_off_advantages(totals, b, algo, err);
out:
    scored_release(&l);
    return status;
}
