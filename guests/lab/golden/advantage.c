/* Family advantages: rewards of a batch in, advantages of its tokens out. The authors'
 * arrays are [B,T] with holes and groups in any order; kedge's are rows of completions,
 * group by group, without holes. Most of this file maps one to the other and back, so
 * that a wrong number is named by its index in the case. If the authors' code works in
 * single precision, or divides by another number than its paper, the exception is listed
 * by the estimator's name. */
#include "lab/golden/golden_internal.h"

#include <math.h>
#include <string.h>

/* Rows of the case in the order of their groups. */
struct layout {
    int64_t B, T, G, N;
    int64_t *row;         /* (B) row of the case at place i */
    int64_t *group_begin; /* (G+1) */
    int64_t *seq_begin;   /* (B+1) */
    int64_t *at;          /* (N) position in [B,T] of the case */
    uint8_t *mask;        /* (N) */
};

static const struct kg_golden_name names[] = {
    {"grpo", "grpo"},
    {"grpo_vectorized", "grpo-floor"},
    {"grpo_passk", "passk"},
    {"rpg", "rpg"},
    {"rpg_batchmean", "batch-mean"},
    {"rloo", "rloo"},
    {"rloo_vectorized", "rloo-vectorized"},
    {"opo", "opo"},
    {"gpg", "gpg"},
    {"remax", "remax"},
    {"gae", "gae"},
    {"reinforce_plus_plus", "reinforce++"},
    {"reinforce_plus_plus_baseline", "reinforce++-baseline"},
    {"optimal_token_baseline", "token-baseline"},
    {"tir_optimal_token_baseline", "token-baseline"},
    {"maxrl", "maxrl"},
    {"maxrl_skyrl", "maxrl-eps"},
    {"gdpo_trl", "gdpo"},
    {"gdpo_nemo", "gdpo"},
    {"gdpo_verl", "gdpo-token"},
    {NULL, NULL},
};

/* The row of algo.advantage for an estimator with its options. */
static kg_status row_of(const char **row, const struct kg_golden_case *g,
                        struct kg_err *err)
{
    const char *name;
    bool std, batch, tail, given = kg_golden_at(g, "config", "norm_by_std") != NULL;

    KG_TRY(kg_golden_text(&name, g, "estimator", err));
    KG_TRY(kg_golden_bool(&std, g, "norm_by_std", err));
    KG_TRY(kg_golden_bool(&batch, g, "norm_by_batch_std", err));
    KG_TRY(kg_golden_bool(&tail, g, "handle_zero_tail", err));
    KG_TRY(kg_golden_rename(row, names, "estimator", name, err));
    std = std || !given;
    if (strcmp(*row, "grpo") == 0)
        *row = batch ? "batch-std" : std ? "grpo" : "dr-grpo";
    else if (strcmp(*row, "grpo-floor") == 0)
        *row = std ? "grpo-floor" : "dr-grpo";
    else if (strcmp(*row, "passk") == 0)
        *row = std ? "passk-std" : "passk";
    else if (strcmp(*row, "token-baseline") == 0)
        *row = tail ? "token-baseline-tail" : "token-baseline";
    return KG_OK;
}

static kg_status room_of(struct layout *l, struct kg_golden_case *g, struct kg_err *err)
{
    l->row = kg_golden_room(g, l->B, sizeof *l->row, err);
    l->group_begin = kg_golden_room(g, l->B + 1, sizeof *l->group_begin, err);
    l->seq_begin = kg_golden_room(g, l->B + 1, sizeof *l->seq_begin, err);
    l->at = kg_golden_room(g, l->B * l->T, sizeof *l->at, err);
    l->mask = kg_golden_room(g, l->B * l->T, 1, err);
    return l->row && l->group_begin && l->seq_begin && l->at && l->mask ? KG_OK
                                                                        : err->code;
}

/* Groups in the order of their first rows. */
static void place_groups(struct layout *l, const double *group)
{
    int64_t placed = 0;

    for (int64_t first = 0; first < l->B; first++) {
        bool seen = false;

        for (int64_t r = 0; r < first && !seen; r++)
            seen = group[r] == group[first];
        if (seen)
            continue;
        for (int64_t r = first; r < l->B; r++)
            if (group[r] == group[first])
                l->row[placed++] = r;
        l->group_begin[++l->G] = placed;
    }
}

/* compress: positions outside the mask are left out, not kept as holes. */
static kg_status layout_of(struct layout *l, struct kg_golden_case *g, bool compress,
                           struct kg_err *err)
{
    struct kg_golden_array rewards, group, mask;

    *l = (struct layout){0};
    KG_TRY(kg_golden_input(&rewards, g, "token_level_rewards",
                           (struct kg_golden_shape){2, {-1, -1}}, err));
    l->B = rewards.d[0], l->T = rewards.d[1];
    KG_TRY(kg_golden_array(&mask, g, "inputs", "response_mask",
                           (struct kg_golden_shape){2, {l->B, l->T}}, err));
    KG_TRY(kg_golden_input(&group, g, "group", (struct kg_golden_shape){1, {l->B}}, err));
    KG_TRY(kg_golden_ids(&mask, "response_mask", 2, err));
    KG_TRY(room_of(l, g, err));
    place_groups(l, group.x);
    for (int64_t i = 0; i < l->B; i++) {
        for (int64_t t = 0; t < l->T; t++) {
            int64_t at = l->row[i] * l->T + t;
            bool counts = !mask.x || mask.x[at] != 0;

            if (compress && !counts)
                continue;
            l->mask[l->N] = counts;
            l->at[l->N++] = at;
        }
        l->seq_begin[i + 1] = l->N;
    }
    return KG_OK;
}

/* out: (N) values of an input [B,T]; NULL if the case lacks it */
static kg_status place(const double **out, struct kg_golden_case *g,
                       const struct layout *l, const char *key, struct kg_err *err)
{
    struct kg_golden_array a;
    double *x;

    *out = NULL;
    KG_TRY(kg_golden_array(&a, g, "inputs", key,
                           (struct kg_golden_shape){2, {l->B, l->T}}, err));
    if (!a.x)
        return KG_OK;
    KG_TRY(kg_golden_reals(&x, g, l->N, err));
    for (int64_t n = 0; n < l->N; n++)
        x[n] = a.x[l->at[n]];
    *out = x;
    return KG_OK;
}

/* out: (B) values of an input [B], in the order of l->row; NULL if the case lacks it */
static kg_status place_rows(const double **out, struct kg_golden_case *g,
                            const struct layout *l, const char *key, struct kg_err *err)
{
    struct kg_golden_array a;
    double *x;

    *out = NULL;
    KG_TRY(
        kg_golden_array(&a, g, "inputs", key, (struct kg_golden_shape){1, {l->B}}, err));
    if (!a.x)
        return KG_OK;
    KG_TRY(kg_golden_reals(&x, g, l->B, err));
    for (int64_t i = 0; i < l->B; i++)
        x[i] = a.x[l->row[i]];
    *out = x;
    return KG_OK;
}

/* Separate rewards [B,P] and their weights [P], if the case has them. */
static kg_status place_parts(struct kg_policy_scores *in, struct kg_golden_case *g,
                             const struct layout *l, struct kg_err *err)
{
    struct kg_golden_array parts, weights;
    double *x;

    KG_TRY(kg_golden_array(&parts, g, "inputs", "reward_parts",
                           (struct kg_golden_shape){2, {l->B, -1}}, err));
    if (!parts.x)
        return KG_OK;
    KG_TRY(kg_golden_input(&weights, g, "reward_weights",
                           (struct kg_golden_shape){1, {parts.d[1]}}, err));
    KG_TRY(kg_golden_reals(&x, g, parts.n, err));
    for (int64_t i = 0; i < l->B; i++)
        memcpy(x + i * parts.d[1], parts.x + l->row[i] * parts.d[1],
               (size_t)parts.d[1] * sizeof *x);
    in->part = x, in->part_weight = weights.x, in->n_parts = (int)parts.d[1];
    return KG_OK;
}

static kg_status scores_of(struct kg_policy_scores *in, struct kg_golden_case *g,
                           const struct layout *l, struct kg_err *err)
{
    *in = (struct kg_policy_scores){.n_seqs = l->B,
                                    .n_groups = l->G,
                                    .group_begin = l->group_begin,
                                    .seq_begin = l->seq_begin,
                                    .mask = l->mask};
    KG_TRY(place(&in->token_reward, g, l, "token_level_rewards", err));
    KG_TRY(place(&in->value, g, l, "values", err));
    KG_TRY(place(&in->old_logp, g, l, "old_log_probs", err));
    KG_TRY(place(&in->sum_sq, g, l, "sum_pi_squared", err));
    KG_TRY(place(&in->is_weight, g, l, "rollout_is_weights", err));
    KG_TRY(place_parts(in, g, l, err));
    return place_rows(&in->greedy, g, l, "reward_baselines", err);
}

static kg_status options(struct kg_algo *algo, struct kg_golden_case *g, bool search,
                         struct kg_err *err)
{
    const char *name, *row;

    KG_TRY(kg_golden_text(&name, g, "estimator", err));
    KG_TRY(row_of(&row, g, err));
    KG_TRY(kg_algo_set(algo, "algo.advantage", row, err));
    KG_TRY(kg_golden_real(&algo->gamma, g, "gamma", 1, err));
    KG_TRY(kg_golden_real(&algo->lambda, g, "lam", 1, err));
    KG_TRY(kg_golden_real(&algo->gpg_norm, g, "f_norm", 1, err));
    KG_TRY(kg_golden_real(&algo->std_eps, g, "std_eps", algo->std_eps, err));
    algo->count_eps = search ? 0 : 1e-8;
    if (strcmp(name, "gdpo_nemo") == 0) { /* the reference's last std has no eps */
        g->excepted = true;
        g->tolerance.rel = g->tolerance.abs = 1e-5;
    }
    if (strcmp(name, "grpo_vectorized") == 0) { /* single precision in the reference */
        g->excepted = true;
        g->tolerance.rel = g->tolerance.abs = 1e-4;
    }
    return KG_OK;
}

static kg_status compare(struct kg_golden_case *g, const struct layout *l,
                         const struct kg_policy_advantage *out, struct kg_err *err)
{
    struct kg_golden_shape shape = {2, {l->B, l->T}};
    struct kg_golden_array want, returns;

    KG_TRY(kg_golden_array(&want, g, "expected", "advantages", shape, err));
    KG_TRY(kg_golden_array(&returns, g, "expected", "returns", shape, err));
    for (int64_t n = 0; n < l->N; n++) {
        if (!l->mask[n])
            continue;
        if (want.x)
            kg_golden_compare(g, "advantages", l->at[n], out->token[n], want.x[l->at[n]]);
        /* estimators of whole completions compute no returns: NaN */
        if (returns.x && !isnan(out->returns[n]))
            kg_golden_compare(g, "returns", l->at[n], out->returns[n],
                              returns.x[l->at[n]]);
    }
    return kg_golden_expect(g, "batch_std", out->batch_std, err);
}

kg_status kg_golden_advantages(struct kg_golden_case *g, struct kg_err *err)
{
    struct kg_policy_advantage out = {0};
    struct kg_policy_scores in;
    struct kg_golden_batch e;
    struct layout l;
    const char *repo, *name;

    KG_TRY(kg_golden_text(&repo, g, "repo", err));
    KG_TRY(kg_golden_text(&name, g, "estimator", err));
    bool gaps = strncmp(name, "tir_", 4) == 0 ||
                (strcmp(repo, "stable-rl") == 0 && strcmp(name, "gae") == 0);
    KG_TRY(kg_golden_start(&e, g, err));
    KG_TRY(options(&e.algo, g, strcmp(repo, "ema-search") == 0, err));
    KG_TRY(layout_of(&l, g, gaps, err));
    KG_TRY(scores_of(&in, g, &l, err));
    KG_TRY(kg_golden_reals(&out.token, g, l.N, err));
    KG_TRY(kg_golden_reals(&out.returns, g, l.N, err));
    for (int64_t n = 0; n < l.N; n++)
        out.returns[n] = NAN;
    KG_TRY(kg_policy_advantages(&out, &e.algo, &in, err));
    return compare(g, &l, &out, err);
}
