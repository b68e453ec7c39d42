/* One look-up for all tables, and the options of an algorithm as rows over struct
 * kg_algo; no other file declares them.
 *
 * A name is a text until kg_algo_choose finds its row. The reader of a recipe checks
 * ranges. When all keys are set, algo_check.c checks combinations, and again the ranges,
 * for callers that set keys one by one.
 */
#include "policy/policy_internal.h"

#include "base/str.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct kg_anchor_row anchors[] = {
    {{"none", "no anchor", "", "", KG_SCOPE_TOKEN, 0, NULL}, KG_ANCHOR_NONE},
    {{"fixed", "the weights at the start of RL, or of anchor.path", "q = p(theta_0)", "",
      KG_SCOPE_TOKEN, 0, NULL},
     KG_ANCHOR_FIXED},
    {{"ema", "exponential moving average of the policy, every period steps or updates",
      "anchor <- eta anchor + (1 - eta) theta", "Zhang & Ba 2026, arXiv 2602.04417",
      KG_SCOPE_TOKEN, 0, "anchor.eta anchor.period anchor.unit"},
     KG_ANCHOR_EMA},
    {{"iterative", "the policy that sampled the batch; no second model", "q = mu",
      "Zhang et al. 2025, arXiv 2505.17508", KG_SCOPE_TOKEN, 0, NULL},
     KG_ANCHOR_ITERATIVE},
    {{"copy", "the policy, copied every period steps or updates, or at a KL of kappa",
      "anchor <- theta; also when m > kappa, m <- s m + (1 - s) KL",
      "Zhang et al. 2025, arXiv 2505.17508", KG_SCOPE_TOKEN, 0,
      "anchor.period anchor.unit anchor.kappa"},
     KG_ANCHOR_COPY},
};

static struct kg_policy_rows anchor_rows(void)
{
    return (struct kg_policy_rows){anchors, KG_COUNT(anchors), sizeof anchors[0]};
}

/* ---- tables ---- */

static struct kg_policy_rows table_of(enum kg_policy_table table)
{
    switch (table) {
    case KG_TABLE_ADVANTAGE:
        return kg_advantage_rows();
    case KG_TABLE_SURROGATE:
        return kg_surrogate_rows();
    case KG_TABLE_KL:
        return kg_kl_rows();
    case KG_TABLE_ANCHOR:
        return anchor_rows();
    case KG_TABLE_MASK:
        return kg_mask_rows();
    case KG_TABLE_PLACE:
        return kg_place_rows();
    default:
        return kg_aggregate_rows();
    }
}

const char *kg_policy_table_key(enum kg_policy_table table)
{
    static const char *const keys[KG_TABLE_COUNT] = {
        "algo.advantage", "algo.surrogate", "kl.estimator", "anchor.kind",
        "algo.aggregate", "algo.mask",      "kl.in"};

    return keys[table];
}

size_t kg_policy_n_rows(enum kg_policy_table table) { return table_of(table).n; }

const struct kg_policy_about *kg_policy_row(enum kg_policy_table table, size_t i)
{
    struct kg_policy_rows t = table_of(table);

    return i < t.n ? (const void *)((const char *)t.rows + i * t.stride) : NULL;
}

const struct kg_policy_claims *kg_policy_row_claims(enum kg_policy_table table, size_t i)
{
    const struct kg_policy_about *about = kg_policy_row(table, i);

    if (about && table == KG_TABLE_KL)
        return &((const struct kg_kl_row *)(const void *)about)->claims;
    if (about && table == KG_TABLE_SURROGATE)
        return &((const struct kg_surrogate_row *)(const void *)about)->claims;
    return NULL;
}

struct kg_policy_nature kg_policy_row_nature(enum kg_policy_table table, size_t i)
{
    const void *about = kg_policy_row(table, i);
    const struct kg_kl_row *kl = table == KG_TABLE_KL ? about : NULL;
    const struct kg_mask_row *mask = table == KG_TABLE_MASK ? about : NULL;

    return (struct kg_policy_nature){.forward = kl && kl->forward,
                                     .iterative = kl && kl->iterative,
                                     .reward_only = kl && kl->reward_only,
                                     .pops = mask && mask->pops};
}

const struct kg_policy_about *kg_policy_find(enum kg_policy_table table, const char *name,
                                             struct kg_err *err)
{
    struct kg_policy_rows t = table_of(table);

    for (size_t i = 0; i < t.n; i++)
        if (strcmp(kg_policy_row(table, i)->name, name) == 0)
            return kg_policy_row(table, i);
    (void)kg_str_unknown(KG_ENOTFOUND, kg_policy_table_key(table), name, t.rows, t.n,
                         t.stride, err);
    return NULL;
}

static const struct kg_policy_about *chosen(const struct kg_algo *algo,
                                            enum kg_policy_table table)
{
    switch (table) {
    case KG_TABLE_ADVANTAGE:
        return &algo->advantage->about;
    case KG_TABLE_SURROGATE:
        return &algo->surrogate->about;
    case KG_TABLE_KL:
        return &algo->kl->about;
    case KG_TABLE_ANCHOR:
        return &algo->anchor->about;
    case KG_TABLE_MASK:
        return &algo->mask->about;
    case KG_TABLE_PLACE:
        return &algo->kl_in->about;
    default:
        return &algo->aggregate->about;
    }
}

const char *kg_algo_row_name(const struct kg_algo *algo, enum kg_policy_table table)
{
    return chosen(algo, table)->name;
}

bool kg_policy_reads(const struct kg_policy_about *row, const char *key)
{
    return row->reads && kg_str_listed(row->reads, key, strlen(key));
}

bool kg_policy_is_read(const char *key)
{
    const struct kg_policy_about *row;

    for (int t = 0; t < KG_TABLE_COUNT; t++)
        for (size_t i = 0; (row = kg_policy_row((enum kg_policy_table)t, i)); i++)
            if (kg_policy_reads(row, key))
                return true;
    return false;
}

bool kg_algo_reads(const struct kg_algo *algo, const char *key)
{
    for (int t = 0; t < KG_TABLE_COUNT; t++)
        if (kg_policy_reads(chosen(algo, (enum kg_policy_table)t), key))
            return true;
    return false;
}

/* A row begins with its about, so a pointer to one is a pointer to the other. */
static void choose(struct kg_algo *algo, enum kg_policy_table table,
                   const struct kg_policy_about *about)
{
    algo->name[table] = about->name;
    switch (table) {
    case KG_TABLE_ADVANTAGE:
        algo->advantage = (const void *)about;
        break;
    case KG_TABLE_SURROGATE:
        algo->surrogate = (const void *)about;
        break;
    case KG_TABLE_KL:
        algo->kl = (const void *)about;
        break;
    case KG_TABLE_ANCHOR:
        algo->anchor = (const void *)about;
        break;
    case KG_TABLE_MASK:
        algo->mask = (const void *)about;
        break;
    case KG_TABLE_PLACE:
        algo->kl_in = (const void *)about;
        break;
    default:
        algo->aggregate = (const void *)about;
    }
}

/* ---- keys ---- */

#define AT(field)    KG_OPT_AT(struct kg_algo, field)
#define NAMED(table) AT(name[KG_TABLE_##table])
const struct kg_opt_row kg_algo_rows[] = {
    {"algo.advantage", NAMED(ADVANTAGE), "grpo", 0, 0, NULL,
     "how rewards become advantages", false},
    {"algo.surrogate", NAMED(SURROGATE), "ppo-clip", 0, 0, NULL,
     "policy-gradient loss of a token", false},
    {"algo.aggregate", NAMED(AGGREGATE), "token-mean", 0, 0, NULL,
     "how token losses become one number", false},
    {"algo.mask", NAMED(MASK), "none", 0, 0, NULL,
     "mask that drops the policy term of completions, or of their tokens, that are too "
     "far from the sampler",
     false, "algo.surrogate!none"},
    {"algo.mask_delta", AT(mask_delta), "0", 0, 1e6, NULL,
     "algo.mask: divergence above which a completion is masked", false},
    {"algo.clip_low", AT(clip_low), "0.2", 0, 1e6, NULL,
     "ratio below 1 - clip_low is clipped", false},
    {"algo.clip_high", AT(clip_high), "0.2", 0, 1e6, NULL,
     "ratio above 1 + clip_high is clipped", false},
    {"algo.dual_clip", AT(dual_clip), "0", 0, 1e6, NULL,
     "bound c of the dual clip for negative advantages; 0 is off", false},
    {"algo.entropy_coef", AT(entropy_coef), "0", 0, 100, NULL,
     "entropy bonus: coefficient of the entropy, which is averaged like the loss and "
     "subtracted from it",
     false},
    {"algo.length_norm", AT(length_norm), "0", 0, 1e6, NULL,
     "constant length of seq-mean-token-sum-norm and seq-mean-token-norm; 0 is the "
     "longest completion",
     false},
    {"algo.mask_truncated", AT(mask_truncated), "false", 0, 0, NULL,
     "truncated completions have no policy loss", false,
     "algo.surrogate!none|algo.entropy_coef>0|kl.after_filter=true"},

    {"algo.ratio_clamp", AT(ratio_clamp), "20", 0, 700, NULL,
     "log-ratios are clamped to +- this; 0 is off", false},
    {"algo.truncate", AT(truncate), "0", 0, 1e9, NULL,
     "dppo, cppo, pg-is, ratio-*, minirl: upper bound C of the ratio; 0 is off", false},
    {"algo.delta_low", AT(delta_low), NULL, 0, 1e6, NULL,
     "dppo, drpo, cppo: largest divergence where the advantage is negative (ipo: where p "
     "< mu; ratio-relax: smallest mu that is masked)",
     false},
    {"algo.delta_high", AT(delta_high), NULL, 0, 1e6, NULL,
     "dppo, drpo, cppo: largest divergence where the advantage is positive (ipo: where p "
     "> mu; ratio-relax: smallest mu that is masked)",
     false},
    {"algo.top_k", AT(top_k), NULL, 1, 512, NULL,
     "dppo-topk: number of the sampler's likeliest ids", false},
    {"algo.tau_pos", AT(tau_pos), NULL, 1e-9, 1e6, NULL,
     "sapo: temperature where the advantage is positive", false},
    {"algo.tau_neg", AT(tau_neg), NULL, 1e-9, 1e6, NULL,
     "sapo: temperature where the advantage is negative", false},
    {"algo.tis", AT(tis), "0", 0, 1e9, NULL,
     "truncated importance sampling: cap of the weight old/sampler; 0 is off", false},
    {"algo.tis_low", AT(tis_low), "0", 0, 1e9, NULL,
     "algo.tis: lower bound of the weight; 0 is off", false,
     "algo.tis>0&algo.surrogate!none"},
    {"algo.tis_level", AT(tis_sequence), "token", 0, 0, "token|sequence",
     "algo.tis: weight of the token, or of its whole completion", false,
     "algo.tis>0&algo.surrogate!none"},
    {"algo.gamma", AT(gamma), NULL, 0, 1, NULL, "reinforce++, gae: discount", false,
     "algo.surrogate!none"},
    {"algo.lambda", AT(lambda), NULL, 0, 1, NULL, "GAE's lambda", false},
    {"algo.gpg_norm", AT(gpg_norm), NULL, 1e-12, 1e9, NULL,
     "gpg: divisor of the advantage", false, "algo.surrogate!none"},
    {"algo.std_eps", AT(std_eps), NULL, 1e-12, 1, NULL,
     "algo.advantage grpo, gdpo: added to the deviation before dividing by it", false,
     "algo.surrogate!none"},
    {"algo.cov_ratio", AT(cov_ratio), NULL, 0, 1, NULL,
     "kl-cov, clip-cov: share of tokens selected", false},
    {"algo.cov_low", AT(cov_low), NULL, -1e9, 1e9, NULL,
     "clip-cov: lower bound of the covariance", false},
    {"algo.cov_high", AT(cov_high), NULL, -1e9, 1e9, NULL,
     "clip-cov: upper bound of the covariance", false},
    {"algo.cov_coef", AT(cov_coef), NULL, 0, 1e9, NULL,
     "kl-cov: penalty of the selected tokens", false},
    {"algo.m2_budget", AT(m2_budget), NULL, 0, 1e6, NULL,
     "m2po: largest mean of (log r)^2 over tokens whose r A pushes further from 1",
     false},
    {"algo.prefix_weight", AT(prefix_weight), NULL, 1e-3, 1, NULL,
     "cppo: weight of the divergence at the last token; 1 at the first", false},
    {"algo.prefix_budget", AT(prefix_budget), NULL, 0, 1, NULL,
     "cppo: largest weighted mean divergence of the preceding tokens", false},
    {"algo.vespo_k_pos", AT(vespo_k_pos), NULL, 0, 10, NULL,
     "vespo: exponent of the sequence's ratio where the advantage is at least 0", false},
    {"algo.vespo_k_neg", AT(vespo_k_neg), NULL, 0, 10, NULL,
     "vespo: exponent of the sequence's ratio where the advantage is negative", false},
    {"algo.vespo_lambda_pos", AT(vespo_lambda_pos), NULL, 0.01, 100, NULL,
     "vespo: decay with the sequence's ratio where the advantage is at least 0", false},
    {"algo.vespo_lambda_neg", AT(vespo_lambda_neg), NULL, 0.01, 100, NULL,
     "vespo: decay with the sequence's ratio where the advantage is negative", false},
    {"algo.rpg_detach", AT(rpg_detach), NULL, 0, 0, NULL,
     "rpg-rkl, rpg-urkl: the regularised advantage is a constant", false, "kl.beta>0"},
    {"algo.count_eps", AT(count_eps), NULL, 0, 1e-3, NULL,
     "added to token counts before dividing by them", false},

    {"kl.estimator", NAMED(KL), "none", 0, 0, NULL, "KL estimator against the anchor",
     false},
    {"kl.beta", AT(kl_beta), "0", 0, 1e3, NULL, "KL coefficient, per token", false},
    {"kl.in", NAMED(PLACE), "loss", 0, 0, "loss|reward|advantage|advantage-future",
     "where the KL acts: as a term of the loss, or subtracted from every token's reward, "
     "from its advantage, or from its own and all earlier advantages",
     false},
    {"kl.target", AT(kl_target), "0", 0, 1e6, NULL,
     "KL per token that the coefficient is steered to; 0 is off", false},
    {"kl.horizon", AT(kl_horizon), "10000", 1e-9, 1e12, NULL,
     "completions over which kl.target changes the coefficient", false, "kl.target>0"},
    {"kl.top_k", AT(kl_top_k), "32", 0, 1e6, NULL,
     "k of the Top-k KL; at or above the vocabulary it is exact", false},
    {"kl.tail", AT(kl_tail), "true", 0, 0, NULL,
     "Top-k KL: estimate the tail from the sampled token", false},
    {"kl.gradient", AT(kl_corrected), "corrected", 0, 0, "published|corrected",
     "Top-k KL: gradient of the head as in the paper, or unbiased", false, "kl.top_k>0"},
    {"kl.importance", AT(kl_importance), "true", 0, 0, NULL,
     "importance weights for tokens that older weights sampled", false,
     KG_NEEDS_WEIGHABLE},
    {"kl.iw_lower", AT(kl_iw_lower), "0", 0, 1e6, NULL,
     "lower clip of the importance weight; 0 is none", false,
     KG_NEEDS_WEIGHABLE "&kl.importance=true"},
    {"kl.iw_upper", AT(kl_iw_upper), "0", 0, 1e6, NULL,
     "upper clip of the importance weight; 0 is none", false,
     KG_NEEDS_WEIGHABLE "&kl.importance=true"},
    {"kl.clamp", AT(kl_clamp), "true", 0, 0, NULL,
     "the published clamps: log w at +-20 (K3, K3++, K5, the forward tail), the value at "
     "+-10 (K3, K3++, RPG's); where a clamp is active, the gradient is 0 or that of the "
     "tail",
     false, KG_NEEDS_CLAMPED},
    {"kl.after_filter", AT(kl_after_filter), "false", 0, 0, NULL,
     "leave filtered completions out of the KL too (biases it)", false,
     KG_NEEDS_KL_IN_LOSS "&rollout.dynamic=true|algo.mask_truncated=true"},

    {"anchor.kind", NAMED(ANCHOR), "none", 0, 0, "none|fixed|ema|iterative|copy",
     "policy that the KL refers to", false, "kl.estimator!none|eval.anchor=true"},
    {"anchor.eta", AT(anchor_eta), "0.9", 0, 1, NULL, "EMA: weight of the old anchor",
     false, "kl.estimator!none|eval.anchor=true"},
    {"anchor.period", AT(anchor_period), "10", 1, 1e9, NULL,
     "steps or updates between two changes of the anchor", false,
     "kl.estimator!none|eval.anchor=true"},
    {"anchor.unit", AT(anchor_per_update), "steps", 0, 0, "steps|updates",
     "what anchor.period counts", false, "kl.estimator!none|eval.anchor=true"},
    {"anchor.kappa", AT(anchor_kappa), "0", 0, 1e6, NULL,
     "copy: also replace the anchor when the moving average of the token KL exceeds "
     "this; 0 is off",
     false},
    {"anchor.smoothing", AT(anchor_smoothing), "0.9", 0, 0.999999, NULL,
     "anchor.kappa: weight of the old value in the moving average, per update", false,
     "anchor.kappa>0"},
    {0},
};
#undef AT
#undef NAMED

enum { KEYS = sizeof kg_algo_rows / sizeof *kg_algo_rows - 1 };

size_t kg_algo_n_keys(void) { return KEYS; }
const char *kg_algo_key(size_t i) { return kg_algo_rows[i].key; }

/* The table in which the option names a row; KG_TABLE_COUNT: it names none. */
static enum kg_policy_table named_in(const struct kg_opt_row *row)
{
    size_t from = offsetof(struct kg_algo, name), one = sizeof(const char *);
    bool is_name = row->at >= from && row->at < from + KG_TABLE_COUNT * one;

    return is_name ? (enum kg_policy_table)((row->at - from) / one) : KG_TABLE_COUNT;
}

static kg_status choose_named(struct kg_algo *algo, enum kg_policy_table table,
                              const char *name, struct kg_err *err)
{
    const struct kg_policy_about *about = kg_policy_find(table, name, err);

    if (!about)
        return err->code;
    choose(algo, table, about);
    return KG_OK;
}

kg_status kg_algo_choose(struct kg_algo *algo, struct kg_err *err)
{
    for (int t = 0; t < KG_TABLE_COUNT; t++)
        KG_TRY(choose_named(algo, (enum kg_policy_table)t, algo->name[t], err));
    return KG_OK;
}

static const struct kg_opt_row *find_key(const char *key, struct kg_err *err)
{
    for (size_t i = 0; i < KEYS; i++)
        if (strcmp(kg_algo_rows[i].key, key) == 0)
            return &kg_algo_rows[i];
    const char *near = kg_str_nearest(key, kg_algo_rows, KEYS, sizeof *kg_algo_rows);
    (void)kg_fail(err, KG_ENOTFOUND,
                  "expected an option of algo, kl or anchor, found '%s'%s%s%s", key,
                  near ? "; nearest is '" : "", near ? near : "", near ? "'" : "");
    return NULL;
}

kg_status kg_algo_set(struct kg_algo *algo, const char *key, const char *value,
                      struct kg_err *err)
{
    const struct kg_opt_row *row = find_key(key, err);

    if (!row)
        return err->code;
    if (*value == '\0')
        return KG_OK;
    if (named_in(row) < KG_TABLE_COUNT)
        return choose_named(algo, named_in(row), value, err);
    struct kg_opt_row any = *row;
    any.min = any.max = 0; /* algo_check.c checks ranges when all keys are set */
    KG_TRY(kg_opt_check(&any, value, NULL, err));
    kg_opt_put(algo, row, value);
    return KG_OK;
}

/* The fewest digits that read back to the same double. */
static void put_real(char *text, size_t bytes, double x)
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, bytes, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            return;
    }
}

/* "a" or "b" of a row's choices "a|b". */
static const char *choice(char *text, size_t bytes, const char *choices, bool second)
{
    size_t n = strcspn(choices, "|");

    if (second)
        snprintf(text, bytes, "%s", choices + n + 1);
    else
        snprintf(text, bytes, "%.*s", (int)n, choices);
    return text;
}

static const char *text_of(char *text, size_t bytes, const struct kg_algo *algo,
                           const struct kg_opt_row *row)
{
    const void *field = (const char *)algo + row->at;

    if (named_in(row) < KG_TABLE_COUNT)
        return kg_algo_row_name(algo, named_in(row));
    if (row->type == KG_OPT_BOOL)
        return choice(text, bytes, row->choices ? row->choices : "false|true",
                      *(const bool *)field);
    if (row->type == KG_OPT_REAL)
        put_real(text, bytes, *(const double *)field);
    else
        snprintf(text, bytes, "%lld",
                 row->type == KG_OPT_INT32 ? (long long)*(const int *)field
                                           : (long long)*(const int64_t *)field);
    return text;
}

kg_status kg_algo_get(const struct kg_algo *algo, const char *key, char *text,
                      size_t bytes, struct kg_err *err)
{
    const struct kg_opt_row *row = find_key(key, err);
    char own[32];

    if (!row)
        return err->code;
    const char *value = text_of(own, sizeof own, algo, row);
    if (strlen(value) >= bytes)
        return kg_fail(err, KG_EINVAL, "%s: expected room for %zu bytes, found %zu", key,
                       strlen(value) + 1, bytes);
    memcpy(text, value, strlen(value) + 1);
    return KG_OK;
}

void kg_algo_init(struct kg_algo *algo)
{
    struct kg_err err;

    *algo = (struct kg_algo){
        .delta_low = 0.15,
        .delta_high = 0.15,
        .top_k = 20,
        .tau_pos = 1,
        .tau_neg = 1.05,
        .gamma = 1,
        .lambda = 1,
        .gpg_norm = 1,
        .std_eps = KG_STD_EPS,
        .rpg_detach = true,
        .cov_ratio = 2e-4,
        .m2_budget = 0.04,
        .prefix_weight = 0.8,
        .prefix_budget = 0.02,
        .vespo_k_pos = 2,
        .vespo_k_neg = 3,
        .vespo_lambda_pos = 3,
        .vespo_lambda_neg = 2,
        .cov_low = 1,
        .cov_high = 5,
        .cov_coef = 1,
    };
    for (size_t i = 0; i < KEYS; i++)
        if (kg_algo_rows[i].fallback)
            kg_opt_put(algo, &kg_algo_rows[i], kg_algo_rows[i].fallback);
    (void)(kg_algo_choose(algo, &err) == KG_OK); /* the defaults name rows */
}

/* ---- inputs that a step must supply ---- */

static bool reads_head(const struct kg_algo *algo, unsigned need)
{
    return algo->kl_top_k > 0 && (algo->kl->about.needs & need);
}

const char *kg_algo_clamps(const struct kg_algo *algo)
{
    return algo->kl_clamp ? algo->kl->clamps : NULL;
}

unsigned kg_algo_needs(const struct kg_algo *algo)
{
    unsigned needs = algo->advantage->about.needs | algo->surrogate->about.needs |
                     algo->kl->about.needs;

    if (algo->kl_top_k == 0 && !(algo->surrogate->about.needs & KG_NEED_TOP_SAMPLER))
        needs &= ~(unsigned)KG_NEED_TOP_SAMPLER;
    if (algo->kl_top_k == 0)
        needs &= ~(unsigned)KG_NEED_TOP_ANCHOR;
    if (algo->anchor->kind == KG_ANCHOR_ITERATIVE &&
        reads_head(algo, KG_NEED_TOP_SAMPLER))
        needs |= KG_NEED_MU_AT;
    if (algo->entropy_coef != 0)
        needs |= KG_NEED_ENTROPY;
    return needs;
}

bool kg_algo_reads_reward(const struct kg_algo *algo)
{
    return algo->surrogate->token != kg_pg_none;
}

bool kg_algo_reads_sample(const struct kg_algo *algo)
{
    bool head = algo->kl->token == kg_kl_topk_forward && !algo->kl_tail;

    return kg_algo_reads_reward(algo) || kg_algo_kl_taken(algo) ||
           !(head || algo->kl->of_context);
}

bool kg_algo_kl_in_loss(const struct kg_algo *algo)
{
    return algo->kl->about.needs != 0 && !kg_algo_kl_taken(algo);
}

bool kg_algo_kl_taken(const struct kg_algo *algo)
{
    return algo->kl_in->place != KG_PLACE_LOSS;
}

enum kg_policy_scope kg_algo_scope(const struct kg_algo *algo)
{
    return algo->surrogate->about.scope;
}

int kg_algo_recorded_top_k(const struct kg_algo *algo)
{
    int k = reads_head(algo, KG_NEED_TOP_SAMPLER) ? algo->kl_top_k : 0;
    bool region = algo->surrogate->about.needs & KG_NEED_TOP_SAMPLER;

    return region && algo->top_k > k ? algo->top_k : k;
}

int kg_algo_anchor_top_k(const struct kg_algo *algo)
{
    return reads_head(algo, KG_NEED_TOP_ANCHOR) ? algo->kl_top_k : 0;
}

int kg_algo_width(const struct kg_algo *algo)
{
    return kg_algo_recorded_top_k(algo) + kg_algo_anchor_top_k(algo);
}

bool kg_algo_exact_when_full(struct kg_algo *algo, int64_t vocab)
{
    struct kg_err err;
    unsigned top = KG_NEED_TOP_SAMPLER | KG_NEED_TOP_ANCHOR;

    if (!(algo->kl->about.needs & top) || vocab <= 0 || algo->kl_top_k < vocab)
        return false;
    choose(algo, KG_TABLE_KL,
           kg_policy_find(KG_TABLE_KL,
                          algo->kl->forward ? "exact-forward" : "exact-reverse", &err));
    return true;
}

bool kg_algo_region_when_full(struct kg_algo *algo, int64_t vocab)
{
    bool region = algo->surrogate->about.needs & KG_NEED_TOP_SAMPLER;

    if (!region || vocab <= 0 || algo->top_k <= vocab)
        return false;
    algo->top_k = (int)vocab;
    return true;
}
