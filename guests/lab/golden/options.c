/* Options that several families share: clips, importance weights, estimators by their
 * published names, and the divisors of published reductions. The tables translate each
 * code base's names to kedge's. A case with a name that is in no table is skipped,
 * not failed. */
#include "lab/golden/golden_internal.h"

#include <string.h>

kg_status kg_golden_clips(struct kg_golden_batch *e, struct kg_err *err)
{
    KG_TRY(kg_golden_need_real(&e->algo.clip_low, e->g, "clip_ratio_low", err));
    KG_TRY(kg_golden_need_real(&e->algo.clip_high, e->g, "clip_ratio_high", err));
    return kg_golden_real(&e->algo.dual_clip, e->g, "clip_ratio_c", 0, err);
}

kg_status kg_golden_importance(struct kg_golden_batch *e, struct kg_err *err)
{
    KG_TRY(kg_golden_bool(&e->algo.kl_importance, e->g, "kl_iw", err));
    KG_TRY(kg_golden_real(&e->algo.kl_iw_lower, e->g, "kl_iw_clip_lower", 0, err));
    return kg_golden_real(&e->algo.kl_iw_upper, e->g, "kl_iw_clip_upper", 0, err);
}

kg_status kg_golden_estimator(struct kg_golden_batch *e, const char *key,
                              struct kg_err *err)
{
    static const struct kg_golden_name names[] = {
        {"none", "none"},
        {"kl", "k1"},
        {"k1", "k1"},
        {"abs", "abs"},
        {"mse", "k2"},
        {"k2", "k2"},
        {"low_var_kl", "k3"},
        {"k3", "k3"},
        {"k3plusplus", "k3++"},
        {"k4", "k4"},
        {"k5", "k5"},
        {"rpg_fkl", "rpg-fkl"},
        {"rpg_rkl", "rpg-rkl"},
        {"rpg_ufkl", "rpg-ufkl"},
        {"rpg_urkl", "rpg-urkl"},
        {"rpg_js", "jeffreys-released"},
        {"rpg_ujs", "jeffreys"},
        {"rpg_rf_fkl", "reward-fkl"},
        {"rpg_rf_rkl", "reward-rkl"},
        {"rpg_rf_ufkl", "reward-ufkl"},
        {"rpg_rf_urkl", "reward-urkl"},
        {"rpg_rf_fkl_clip_ppo", "reward-fkl"},
        {"rpg_rf_rkl_clip_ppo", "reward-rkl"},
        {"rpg_rf_ufkl_clip_ppo", "reward-ufkl"},
        {"rpg_rf_urkl_clip_ppo", "reward-urkl"},
        {NULL, NULL},
    };
    const char *name, *row;

    KG_TRY(kg_golden_text(&name, e->g, key, err));
    KG_TRY(kg_golden_rename(&row, names, key, *name ? name : "none", err));
    return kg_algo_set(&e->algo, "kl.estimator", row, err);
}

static double info_real(const struct kg_golden_reduction *how, const char *key,
                        double fallback)
{
    return kg_json_real(kg_json_get(how->info, key), fallback);
}

double kg_golden_totals(struct kg_policy_totals *totals,
                        const struct kg_golden_reduction *how)
{
    bool stable = strcmp(how->variant, "stable-rl") == 0;
    bool rpg = strcmp(how->variant, "rpg") == 0;

    totals->length_norm = how->width;
    if (rpg || strcmp(how->variant, "ema-math") == 0)
        totals->tokens += 1e-8;
    if (rpg)
        totals->seqs = how->rows;
    else
        totals->length_eps = 1e-8;
    if (!stable)
        return 1;
    totals->tokens = info_real(how, "batch_num_tokens", totals->tokens);
    totals->seqs = info_real(how, "global_batch_size", totals->seqs);
    totals->length_norm = info_real(how, "loss_scale_factor", totals->length_norm);
    return strcmp(how->mode, "seq-mean-token-sum-norm") == 0
               ? 1
               : info_real(how, "dp_size", 1);
}
