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
    int64_t *group_begin; /* (groups+1) owned, as all below */
    int64_t *seq_begin;   /* (n_learned+1) */
    double *reward;       /* (n_learned) */
    double *part;         /* (n_learned,P) several rewards; 0 where one is not graded */
    double weight[KG_TRAJ_PARTS];
    double *old_logp;     /* (tokens) */
    double *greedy;       /* (n_learned) */
    double *token_reward; /* (tokens) as the rest */
    double *sum_sq;
    double *advantage;
    struct kg_policy_scores scores; /* of the above */
};

static void learned_release(struct learned *l)
{
    kg_mem_free(l->group_begin);
    kg_mem_free(l->seq_begin);
    kg_mem_free(l->reward);
    kg_mem_free(l->part);
    kg_mem_free(l->old_logp);
    kg_mem_free(l->greedy);
    kg_mem_free(l->token_reward);
    kg_mem_free(l->sum_sq);
    kg_mem_free(l->advantage);
}

static int64_t learned_tokens(const struct kg_rl_batch *b)
{
    int64_t n = 0;

    for (size_t i = 0; i < b->n_trajs; i++)
        n += kg_rl_learns(b, i) ? b->begin[i + 1] - b->begin[i] : 0;
    return n;
}

static kg_status learned_init(struct learned *l, const struct kg_rl_batch *b,
                              const struct kg_run *run, struct kg_err *err)
{
    size_t n = (size_t)learned_tokens(b), seqs = b->n_learned;
    size_t parts = (size_t)kg_task_rewards_n(run->task_opts.rewards);
    struct {
        double **array;
        size_t count;
    } rows[] = {{&l->reward, seqs},    {&l->part, seqs * parts},
                {&l->old_logp, n},     {&l->greedy, b->greedy ? seqs : 0},
                {&l->token_reward, n}, {&l->sum_sq, b->sum_sq ? n : 0},
                {&l->advantage, n}};

    l->group_begin = kg_mem_calloc(seqs / (size_t)b->group + 1, sizeof *l->group_begin,
                                   "groups", err);
    l->seq_begin = l->group_begin
                       ? kg_mem_calloc(seqs + 1, sizeof *l->seq_begin, "answers", err)
                       : NULL;
    if (!l->seq_begin)
        return err->code;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        *rows[i].array = kg_mem_calloc(rows[i].count, sizeof(double), "advantages", err);
        if (!*rows[i].array)
            return err->code;
    }
    return KG_OK;
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
static kg_status take_kl_off(struct learned *l, struct kg_rl_totals *totals,
                             const struct kg_rl_batch *b, const struct kg_run *run,
                             struct kg_err *err)
{
    if (!run->algo.kl_reward)
        return KG_OK;
    l->scores.token_reward = l->token_reward;
    return kg_policy_kl_reward(l->token_reward, &totals->kl_reward, &run->algo,
                               l->scores.n_seqs, l->seq_begin, b->old_logp,
                               b->anchor_logp, err);
}

kg_status kg_rl_advantages(struct kg_policy_advantage *a, struct kg_rl_totals *totals,
                           struct kg_rl_batch *b, const struct kg_run *run,
                           struct kg_err *err)
{
    struct learned l = {0};
    kg_status status;

    KG_TRY_GOTO(out, learned_init(&l, b, run, err));
    learned_fill(&l, b);
    fill_parts(&l, b, run->task_opts.rewards);
    KG_TRY_GOTO(out, take_kl_off(&l, totals, b, run, err));
    *a = (struct kg_policy_advantage){.token = l.advantage};
    KG_TRY_GOTO(out, kg_policy_advantages(a, &run->algo, &l.scores, err));
    deal(b->advantage, l.advantage, b);
    a->token = NULL; /* the numbers of the step remain */
    status = KG_OK;
out:
    learned_release(&l);
    return status;
}
