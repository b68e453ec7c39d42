/* The tables behind one look-up, and the option keys as data.
 *
 * A key is a row: its name, what kind of value it takes, and where in struct kg_algo it
 * lands. Range and combination are judged once everything is set, in algo_check.c.
 */
#include "policy/policy_internal.h"

#include "base/str.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct kg_anchor_row anchors[] = {
    {{"none", "no anchor", "", "", KG_SCOPE_TOKEN, 0}, KG_ANCHOR_NONE},
    {{"fixed", "the weights at the start of the run", "q = p(theta_0)", "",
      KG_SCOPE_TOKEN, 0},
     KG_ANCHOR_FIXED},
    {{"ema", "exponential moving average of the policy, every period steps",
      "anchor <- eta anchor + (1 - eta) theta", "Zhang & Ba 2026, arXiv 2602.04417",
      KG_SCOPE_TOKEN, 0},
     KG_ANCHOR_EMA},
    {{"iterative", "the policy that sampled the batch; no second model", "q = old",
      "Zhang et al. 2025, arXiv 2505.17508", KG_SCOPE_TOKEN, 0},
     KG_ANCHOR_ITERATIVE},
    {{"copy", "the policy, copied every period steps or updates, or at a KL of kappa",
      "anchor <- theta; also when m > kappa, m <- s m + (1 - s) KL",
      "Zhang et al. 2025, arXiv 2505.17508", KG_SCOPE_TOKEN, 0},
     KG_ANCHOR_COPY},
};

struct kg_policy_rows kg_anchor_rows(void)
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
        return kg_anchor_rows();
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

/* A row begins with its about, so a pointer to one is a pointer to the other. */
static void choose(struct kg_algo *algo, enum kg_policy_table table,
                   const struct kg_policy_about *about)
{
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

enum key_type { ROW, REAL, INT, INT64, BOOL, CHOICE };

struct key_row {
    const char *key;
    enum key_type type;
    size_t at;            /* offset in struct kg_algo; of a ROW, the table */
    const char *off, *on; /* CHOICE: the value for false and for true */
};

#define AT(field) offsetof(struct kg_algo, field)
static const struct key_row keys[] = {
    {"algo.advantage", ROW, KG_TABLE_ADVANTAGE, NULL, NULL},
    {"algo.surrogate", ROW, KG_TABLE_SURROGATE, NULL, NULL},
    {"algo.aggregate", ROW, KG_TABLE_AGGREGATE, NULL, NULL},
    {"algo.mask", ROW, KG_TABLE_MASK, NULL, NULL},
    {"algo.mask_delta", REAL, AT(mask_delta), NULL, NULL},
    {"algo.clip_low", REAL, AT(clip_low), NULL, NULL},
    {"algo.clip_high", REAL, AT(clip_high), NULL, NULL},
    {"algo.dual_clip", REAL, AT(dual_clip), NULL, NULL},
    {"algo.ratio_clamp", REAL, AT(ratio_clamp), NULL, NULL},
    {"algo.truncate", REAL, AT(truncate), NULL, NULL},
    {"algo.delta_low", REAL, AT(delta_low), NULL, NULL},
    {"algo.delta_high", REAL, AT(delta_high), NULL, NULL},
    {"algo.top_k", INT, AT(top_k), NULL, NULL},
    {"algo.tau_pos", REAL, AT(tau_pos), NULL, NULL},
    {"algo.tau_neg", REAL, AT(tau_neg), NULL, NULL},
    {"algo.tis", REAL, AT(tis), NULL, NULL},
    {"algo.tis_low", REAL, AT(tis_low), NULL, NULL},
    {"algo.tis_level", CHOICE, AT(tis_sequence), "token", "sequence"},
    {"algo.entropy_coef", REAL, AT(entropy_coef), NULL, NULL},
    {"algo.length_norm", REAL, AT(length_norm), NULL, NULL},
    {"algo.mask_truncated", BOOL, AT(mask_truncated), NULL, NULL},
    {"algo.gamma", REAL, AT(gamma), NULL, NULL},
    {"algo.lambda", REAL, AT(lambda), NULL, NULL},
    {"algo.gpg_norm", REAL, AT(gpg_norm), NULL, NULL},
    {"algo.std_eps", REAL, AT(std_eps), NULL, NULL},
    {"algo.cov_ratio", REAL, AT(cov_ratio), NULL, NULL},
    {"algo.cov_low", REAL, AT(cov_low), NULL, NULL},
    {"algo.cov_high", REAL, AT(cov_high), NULL, NULL},
    {"algo.cov_coef", REAL, AT(cov_coef), NULL, NULL},
    {"algo.rpg_detach", BOOL, AT(rpg_detach), NULL, NULL},
    {"algo.count_eps", REAL, AT(count_eps), NULL, NULL},
    {"kl.estimator", ROW, KG_TABLE_KL, NULL, NULL},
    {"kl.beta", REAL, AT(kl_beta), NULL, NULL},
    {"kl.in", ROW, KG_TABLE_PLACE, NULL, NULL},
    {"kl.target", REAL, AT(kl_target), NULL, NULL},
    {"kl.horizon", REAL, AT(kl_horizon), NULL, NULL},
    {"kl.top_k", INT, AT(kl_top_k), NULL, NULL},
    {"kl.tail", BOOL, AT(kl_tail), NULL, NULL},
    {"kl.gradient", CHOICE, AT(kl_corrected), "published", "corrected"},
    {"kl.importance", BOOL, AT(kl_importance), NULL, NULL},
    {"kl.iw_lower", REAL, AT(kl_iw_lower), NULL, NULL},
    {"kl.iw_upper", REAL, AT(kl_iw_upper), NULL, NULL},
    {"kl.clamp", BOOL, AT(kl_clamp), NULL, NULL},
    {"kl.after_filter", BOOL, AT(kl_after_filter), NULL, NULL},
    {"anchor.kind", ROW, KG_TABLE_ANCHOR, NULL, NULL},
    {"anchor.eta", REAL, AT(anchor_eta), NULL, NULL},
    {"anchor.period", INT64, AT(anchor_period), NULL, NULL},
    {"anchor.unit", CHOICE, AT(anchor_per_update), "steps", "updates"},
    {"anchor.kappa", REAL, AT(anchor_kappa), NULL, NULL},
    {"anchor.smoothing", REAL, AT(anchor_smoothing), NULL, NULL},
};

size_t kg_algo_n_keys(void) { return KG_COUNT(keys); }
const char *kg_algo_key(size_t i) { return keys[i].key; }

static kg_status set_number(char *field, const struct key_row *key, const char *value,
                            struct kg_err *err)
{
    char *end;
    double x = strtod(value, &end);
    bool whole = key->type != REAL;
    double limit = key->type == INT ? 1e9 : 1e15;

    if (end == value || *end != '\0' || !isfinite(x))
        return kg_fail(err, KG_EINVAL, "%s: expected a number, found '%s'", key->key,
                       value);
    if (whole && (x != floor(x) || fabs(x) > limit))
        return kg_fail(err, KG_EINVAL, "%s: expected a whole number up to %g, found '%s'",
                       key->key, limit, value);
    if (key->type == REAL)
        memcpy(field, &x, sizeof x);
    else if (key->type == INT)
        memcpy(field, &(int){(int)x}, sizeof(int));
    else
        memcpy(field, &(int64_t){(int64_t)x}, sizeof(int64_t));
    return KG_OK;
}

static kg_status set_choice(bool *field, const struct key_row *key, const char *value,
                            struct kg_err *err)
{
    const char *off = key->type == BOOL ? "false" : key->off;
    const char *on = key->type == BOOL ? "true" : key->on;

    if (strcmp(value, on) != 0 && strcmp(value, off) != 0)
        return kg_fail(err, KG_EINVAL, "%s: expected %s or %s, found '%s'", key->key, on,
                       off, value);
    *field = strcmp(value, on) == 0;
    return KG_OK;
}

static kg_status set_row(struct kg_algo *algo, const struct key_row *key,
                         const char *value, struct kg_err *err)
{
    const struct kg_policy_about *about = kg_policy_find((enum kg_policy_table)key->at,
                                                         value, err);

    if (!about)
        return err->code;
    choose(algo, (enum kg_policy_table)key->at, about);
    return KG_OK;
}

static const struct key_row *find_key(const char *key, struct kg_err *err)
{
    const char *near;

    for (size_t i = 0; i < KG_COUNT(keys); i++)
        if (strcmp(keys[i].key, key) == 0)
            return &keys[i];
    near = kg_str_nearest(key, keys, KG_COUNT(keys), sizeof keys[0]);
    (void)kg_fail(err, KG_ENOTFOUND,
                  "expected an option of algo, kl or anchor, found '%s'%s%s%s", key,
                  near ? "; nearest is '" : "", near ? near : "", near ? "'" : "");
    return NULL;
}

kg_status kg_algo_set(struct kg_algo *algo, const char *key, const char *value,
                      struct kg_err *err)
{
    const struct key_row *row = find_key(key, err);

    if (!row)
        return err->code;
    if (*value == '\0')
        return KG_OK;
    if (row->type == ROW)
        return set_row(algo, row, value, err);
    if (row->type == BOOL || row->type == CHOICE)
        return set_choice((bool *)((char *)algo + row->at), row, value, err);
    return set_number((char *)algo + row->at, row, value, err);
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

kg_status kg_algo_get(const struct kg_algo *algo, const char *key, char *text,
                      size_t bytes, struct kg_err *err)
{
    const struct key_row *row = find_key(key, err);
    char number[32];
    const char *value = number;

    if (!row)
        return err->code;
    if (row->type == ROW) {
        value = kg_algo_row_name(algo, (enum kg_policy_table)row->at);
    } else {
        const void *field = (const char *)algo + row->at;

        if (row->type == BOOL)
            value = *(const bool *)field ? "true" : "false";
        else if (row->type == CHOICE)
            value = *(const bool *)field ? row->on : row->off;
        else if (row->type == REAL)
            put_real(number, sizeof number, *(const double *)field);
        else
            snprintf(number, sizeof number, "%lld",
                     row->type == INT ? (long long)*(const int *)field
                                      : (long long)*(const int64_t *)field);
    }
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
        .clip_low = 0.2,
        .clip_high = 0.2,
        .ratio_clamp = 20,
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
        .cov_low = 1,
        .cov_high = 5,
        .cov_coef = 1,
        .kl_horizon = 10000,
        .kl_top_k = 32,
        .kl_tail = true,
        .kl_corrected = true,
        .kl_importance = true,
        .kl_clamp = true,
        .anchor_eta = 0.9,
        .anchor_period = 10,
        .anchor_smoothing = 0.9,
    };
    choose(algo, KG_TABLE_ADVANTAGE, kg_policy_find(KG_TABLE_ADVANTAGE, "grpo", &err));
    choose(algo, KG_TABLE_SURROGATE,
           kg_policy_find(KG_TABLE_SURROGATE, "ppo-clip", &err));
    choose(algo, KG_TABLE_KL, kg_policy_find(KG_TABLE_KL, "none", &err));
    choose(algo, KG_TABLE_ANCHOR, kg_policy_find(KG_TABLE_ANCHOR, "none", &err));
    choose(algo, KG_TABLE_AGGREGATE,
           kg_policy_find(KG_TABLE_AGGREGATE, "token-mean", &err));
    choose(algo, KG_TABLE_MASK, kg_policy_find(KG_TABLE_MASK, "none", &err));
    choose(algo, KG_TABLE_PLACE, kg_policy_find(KG_TABLE_PLACE, "loss", &err));
}

/* ---- what the step must supply ---- */

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

bool kg_algo_reads_sample(const struct kg_algo *algo)
{
    bool head = algo->kl->token == kg_kl_topk_forward && !algo->kl_tail;

    return algo->surrogate->token != kg_pg_none || kg_algo_kl_taken(algo) ||
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
