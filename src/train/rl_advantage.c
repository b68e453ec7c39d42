/* From rewards to the advantage of every loss token.
 *
 * Advantages are made of the answers that are learned from; what is in the batch for its
 * KL alone must not enter a mean or a deviation. So their rows are gathered into arrays
 * without holes, and the result is dealt back.
 */
#include "train/rl_step.h"

#include "base/mem.h"
#include "policy/shaping.h"

#include <math.h>
#include <string.h>

struct learned {
    struct kg_block block; /* owned: the arrays below stand in it */
    int64_t *group_begin;  /* (groups+1) */
    int64_t *seq_begin;    /* (n_learned+1) */
    double *reward;        /* (n_learned) */
    double *part;          /* (n_learned,P) several rewards; 0 where one is not graded */
    double *old_logp;      /* (tokens) */
    double *greedy;        /* (n_learned) */
    double *token_reward;  /* (tokens) as the rest */
    double *sum_sq;
    double *advantage;
    double weight[KG_TRAJ_PARTS];
    struct kg_policy_scores scores; /* of the above */
};

enum { GROUPS, BEGINS, ANSWERS, PARTS, GREEDY, TOKENS, SUM_SQ, COUNTS };
static const struct kg_column columns[] = {
    KG_COLUMN(struct learned, group_begin, GROUPS),
    KG_COLUMN(struct learned, seq_begin, BEGINS),
    KG_COLUMN(struct learned, reward, ANSWERS),
    KG_COLUMN(struct learned, part, PARTS),
    KG_COLUMN(struct learned, old_logp, TOKENS),
    KG_COLUMN(struct learned, greedy, GREEDY),
    KG_COLUMN(struct learned, token_reward, TOKENS),
    KG_COLUMN(struct learned, sum_sq, SUM_SQ),
    KG_COLUMN(struct learned, advantage, TOKENS),
    {0},
};

static void learned_release(struct learned *l) { kg_columns_free(&l->block, l, columns); }

static int64_t learned_tokens(const struct kg_rl_batch *b)
{
    int64_t n = 0;

    for (size_t i = 0; i < b->n_trajs; i++)
        n += kg_rl_learns(b, i) ? b->begin[i + 1] - b->begin[i] : 0;
    return n;
}

static kg_status learned_init(struct learned *l, const struct kg_rl_batch *b,
                              const struct kg_task_rewards *rewards, struct kg_err *err)
{
    const size_t n = (size_t)learned_tokens(b), seqs = b->n_learned;
    const size_t counts[COUNTS] = {
        [GROUPS] = seqs / (size_t)b->group + 1,
        [BEGINS] = seqs + 1,
        [ANSWERS] = seqs,
        [PARTS] = seqs * (size_t)kg_task_rewards_n(rewards),
        [GREEDY] = b->greedy ? seqs : 0,
        [TOKENS] = n,
        [SUM_SQ] = b->sum_sq ? n : 0,
    };

    return kg_columns_take(&l->block, l, columns, counts, "advantages", err);
}

/* The tokens of learned answers out of (N) src, without holes. */
static void gather(double *to, const double *src, const struct kg_rl_batch *b)
{
    for (size_t i = 0; src && i < b->n_trajs; i++) {
        size_t n = (size_t)(b->begin[i + 1] - b->begin[i]);

        if (!kg_rl_learns(b, i))
            continue;
        memcpy(to, src + b->begin[i], n * sizeof *to);
        to += n;
    }
}

static void deal(double *to, const double *from, const struct kg_rl_batch *b)
{
    for (size_t i = 0; i < b->n_trajs; i++) {
        size_t n = (size_t)(b->begin[i + 1] - b->begin[i]);

        if (!kg_rl_learns(b, i))
            continue;
        memcpy(to + b->begin[i], from, n * sizeof *to);
        from += n;
    }
}

/* Every reward by itself. */
static void fill_parts(struct learned *l, const struct kg_rl_batch *b,
                       const struct kg_task_rewards *rewards)
{
    int n = kg_task_rewards_n(rewards);
    double *part = l->part;

    for (int k = 0; k < n; k++)
        l->weight[k] = kg_task_rewards_weight(rewards, k);
    for (size_t i = 0; i < b->n_trajs; i++) {
        if (!kg_rl_learns(b, i))
            continue;
        for (int k = 0; k < n; k++, part++)
            *part = k < b->trajs[i].n_parts && !isnan(b->trajs[i].part[k])
                        ? b->trajs[i].part[k]
                        : 0;
    }
    l->scores.part = n > 0 ? l->part : NULL;
    l->scores.part_weight = l->weight;
    l->scores.n_parts = n;
}

static void learned_fill(struct learned *l, const struct kg_rl_batch *b)
{
    size_t groups = b->n_learned / (size_t)b->group, at = 0;

    for (size_t i = 0; i < b->n_trajs; i++) {
        if (!kg_rl_learns(b, i))
            continue;
        l->reward[at] = b->trajs[i].reward + b->trajs[i].shaping;
        if (b->greedy)
            l->greedy[at] = b->greedy[i];
        l->seq_begin[at + 1] = l->seq_begin[at] + b->begin[i + 1] - b->begin[i];
        at++;
    }
    for (size_t g = 0; g <= groups; g++)
        l->group_begin[g] = (int64_t)g * b->group;
    gather(l->old_logp, b->old_logp, b);
    gather(l->sum_sq, b->sum_sq, b);
    l->scores = (struct kg_policy_scores){.n_seqs = (int64_t)b->n_learned,
                                          .n_groups = (int64_t)groups,
                                          .reward = l->reward,
                                          .group_begin = l->group_begin,
                                          .seq_begin = l->seq_begin,
                                          .greedy = b->greedy ? l->greedy : NULL,
                                          .old_logp = l->old_logp,
                                          .sum_sq = b->sum_sq ? l->sum_sq : NULL};
}

/* kl.in reward: -beta KL of every token. Nothing is in such a batch for a KL alone, so
 * the arrays of the batch are those of the learned answers. */
static kg_status take_off_rewards(struct learned *l, struct kg_rl_totals *totals,
                                  const struct kg_rl_batch *b, const struct kg_algo *algo,
                                  struct kg_err *err)
{
    if (algo->kl_in->place != KG_PLACE_REWARD)
        return KG_OK;
    l->scores.token_reward = l->token_reward;
    return kg_policy_kl_reward(l->token_reward, &totals->kl_taken, algo, l->scores.n_seqs,
                               l->seq_begin, b->old_logp, b->anchor_logp, err);
}

/* kl.in advantage, advantage-future: off what they have become. */
static kg_status take_off_advantages(struct learned *l, struct kg_rl_totals *totals,
                                     const struct kg_rl_batch *b,
                                     const struct kg_algo *algo, struct kg_err *err)
{
    struct kg_policy_taken taken;

    if (algo->kl_in->place != KG_PLACE_ADVANTAGE)
        return KG_OK;
    KG_TRY(kg_policy_kl_advantage(l->advantage, &taken, algo, l->scores.n_seqs,
                                  l->seq_begin, b->old_logp, b->anchor_logp, err));
    totals->kl_taken = taken.mean_kl;
    totals->kl_taken_max = taken.most;
    return KG_OK;
}

kg_status kg_rl_advantages(struct kg_policy_advantage *a, struct kg_rl_totals *totals,
                           struct kg_rl_batch *b, const struct kg_algo *algo,
                           const struct kg_task_rewards *rewards, struct kg_err *err)
{
    struct learned l = {0};
    kg_status status;

    KG_TRY_GOTO(out, learned_init(&l, b, rewards, err));
    learned_fill(&l, b);
    fill_parts(&l, b, rewards);
    KG_TRY_GOTO(out, take_off_rewards(&l, totals, b, algo, err));
    *a = (struct kg_policy_advantage){.token = l.advantage};
    KG_TRY_GOTO(out, kg_policy_advantages(a, algo, &l.scores, err));
    KG_TRY_GOTO(out, take_off_advantages(&l, totals, b, algo, err));
    deal(b->advantage, l.advantage, b);
    a->token = NULL; /* the numbers of the step remain */
    status = KG_OK;
out:
    learned_release(&l);
    return status;
}
