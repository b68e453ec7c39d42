/* The losses of Tinker's API as algorithms of policy/. A Tinker loss is a sum over tokens
 * and data, which is algo.aggregate token-sum, and each named loss is a row of kedge: dro
 * is a score function with kl.estimator k2 against the sampler, since
 *
 *     -(A log p - beta/2 (log p/mu)^2) = -A log p + beta (log p/mu)^2 / 2
 *
 * Any other name is a row of algo.surrogate, with the keys of a recipe as its config. */
#include "tinker/tinker.h"

#include <stdlib.h>

struct loss {
    const char *name;
    const char *set[6][2];            /* keys and values, ended by NULL */
    double clip_low, clip_high, beta; /* defaults; 0: the loss does not read it */
};
static const struct loss losses[] = {
    {"cross_entropy", {{"algo.surrogate", "reinforce"}}, 0, 0, 0},
    {"importance_sampling", {{"algo.surrogate", "importance"}}, 0, 0, 0},
    {"ppo", {{"algo.surrogate", "ppo-clip"}}, 0.8, 1.2, 0},
    {"cispo", {{"algo.surrogate", "cispo"}}, 0, 4, 0},
    {"gspo", {{"algo.surrogate", "gspo"}}, 0.8, 1.2, 0},
    {"dro",
     {{"algo.surrogate", "reinforce"},
      {"kl.estimator", "k2"},
      {"kl.importance", "false"},
      {"kl.clamp", "false"},
      {"anchor.kind", "iterative"}},
     0,
     0,
     0.05},
};

static kg_status refuse_server_side(const char *name, struct kg_err *err)
{
    if (strcmp(name, "stable_reinforce") != 0 && strcmp(name, "custom") != 0)
        return KG_OK;
    return kg_fail(
        err, KG_EUNSUPPORTED,
        "loss_fn: %s runs on Tinker's own servers by rules that are not published; use "
        "another loss, or forward_backward_custom with a Python function",
        name);
}

static kg_status find_loss(struct loss *loss, const char *name, struct kg_err *err)
{
    KG_TRY(refuse_server_side(name, err));
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++)
        if (strcmp(losses[i].name, name) == 0) {
            *loss = losses[i];
            return KG_OK;
        }
    *loss = (struct loss){name, {{"algo.surrogate", name}}, 0, 0, 0};
    if (!kg_policy_find(KG_TABLE_SURROGATE, name, err))
        return kg_err_prefix(err,
                             "loss_fn: expected cross_entropy, importance_sampling, ppo, "
                             "cispo, gspo, dro, or a row of algo.surrogate");
    return KG_OK;
}

/* Sets a key that only Tinker has.   *mine: whether it is one */
static kg_status take_own(bool *mine, struct kg_algo *algo, const struct loss *loss,
                          const struct kg_tinker_setting *s, struct kg_err *err)
{
    double *to = strcmp(s->key, "clip_low_threshold") == 0    ? &algo->clip_low
                 : strcmp(s->key, "clip_high_threshold") == 0 ? &algo->clip_high
                 : strcmp(s->key, "beta") == 0                ? &algo->kl_beta
                                                              : NULL;
    char *end;
    *mine = to != NULL;
    if (!to)
        return KG_OK;
    const bool read = to == &algo->kl_beta ? loss->beta > 0 : loss->clip_high > 0;
    if (!read)
        return kg_fail(err, KG_EINVAL, "loss_fn_config: %s has no effect with %s", s->key,
                       loss->name);
    const double x = strtod(s->value, &end);
    if (end == s->value || *end != '\0' || !(x >= 0) ||
        (to == &algo->clip_low && x > 1) || (to == &algo->clip_high && x < 1))
        return kg_fail(err, KG_EINVAL, "loss_fn_config: %s: expected %s, found '%s'",
                       s->key,
                       to == &algo->kl_beta    ? "0 or more"
                       : to == &algo->clip_low ? "0 to 1"
                                               : "1 or more",
                       s->value);
    *to = to == &algo->clip_low ? 1 - x : to == &algo->clip_high ? x - 1 : x;
    return KG_OK;
}

static bool is_run_key(const char *key)
{
    static const char *const keys[] = {"algo.advantage", "anchor.kappa",
                                       "kl.target",      "kl.in",
                                       "anchor.unit",    "algo.mask_truncated"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

static kg_status take_settings(struct kg_algo *algo, const struct loss *loss,
                               const struct kg_tinker_batch *b, struct kg_err *err)
{
    for (int i = 0; i < b->n_settings; i++) {
        const struct kg_tinker_setting *s = &b->settings[i];
        bool mine;
        KG_TRY(take_own(&mine, algo, loss, s, err));
        if (mine)
            continue;
        if (is_run_key(s->key))
            return kg_fail(err, KG_EUNSUPPORTED,
                           "loss_fn_config: expected keys of the loss, found %s, a key "
                           "of the training loop, which the client runs; remove it",
                           s->key);
        if (kg_algo_set(algo, s->key, s->value, err) != KG_OK)
            return kg_err_prefix(err, "loss_fn_config");
    }
    return KG_OK;
}

kg_status kg_tinker_algo(struct kg_algo *algo, const struct kg_tinker_batch *b,
                         int64_t vocab, struct kg_err *err)
{
    const struct kg_algo_setting setting = {
        .vocab = vocab, .sampled_old = true, .max_top_k = KG_TINKER_MAX_K};
    struct loss loss;
    KG_TRY(find_loss(&loss, b->loss, err));
    kg_algo_init(algo);
    KG_TRY(kg_algo_set(algo, "algo.aggregate", "token-sum", err));
    for (int i = 0; loss.set[i][0]; i++)
        KG_TRY(kg_algo_set(algo, loss.set[i][0], loss.set[i][1], err));
    if (loss.clip_high > 0) {
        algo->clip_low = 1 - loss.clip_low;
        algo->clip_high = loss.clip_high - 1;
    }
    if (loss.beta > 0)
        algo->kl_beta = loss.beta;
    KG_TRY(take_settings(algo, &loss, b, err));
    KG_TRY(kg_algo_choose(algo, err));
    kg_algo_region_when_full(algo, vocab);
    return kg_algo_check(algo, &setting, err);
}
