/* Family corrections: surrogates of other trainers with weights and masks that correct
 * the gap between trainer and sampler, from logits. Other trainers have loss, mask and
 * truncated weight in one function; kedge has an option for each. These cases show that
 * the parts together equal the whole. A penalty inside one of those losses is a KL term
 * here; K2 has a factor 1/2, so the squares of prime-rl and DRO have twice its
 * coefficient. */
#include "lab/golden/golden_internal.h"

#include <stddef.h>
#include <string.h>

static const struct kg_golden_name modes[] = {
    {"vanilla", "ppo-clip"},
    {"ipo", "ipo"},
    {"prime_default", "dppo-binary-tv"},
    {"dro", "reinforce"},
    {"vespo", "vespo"},
    {"cppo", "cppo"},
    {"cppo_calibrated", "cppo-calibrated"},
    {"drpo", "drpo"},
    {"m2po", "m2po"},
    {"m2po_released", "m2po-released"},
    {"luspo", "gspo"},
    {NULL, NULL},
};
static const struct kg_golden_name masks[] = {
    {"none", "none"},
    {"icepop", "icepop"},
    {"trm_max", "trm-max"},
    {"trm_mean", "trm-mean"},
    {"opsm", "off-policy-old"},
    {"off_policy_mask", "off-policy"},
    {"vaco", "vaco"},
    {"vaco_old", "vaco-old"},
    {NULL, NULL},
};

#define AT(field)                                                                        \
    {                                                                                    \
#field, offsetof(struct kg_algo, field)                                          \
    }
static kg_status numbers(struct kg_golden_batch *e, struct kg_err *err)
{
    static const struct {
        const char *key;
        size_t at;
    } reals[] = {AT(clip_low),         AT(clip_high),     AT(dual_clip),
                 AT(delta_low),        AT(delta_high),    AT(mask_delta),
                 AT(m2_budget),        AT(prefix_weight), AT(prefix_budget),
                 AT(vespo_k_pos),      AT(vespo_k_neg),   AT(vespo_lambda_pos),
                 AT(vespo_lambda_neg), AT(tis),           AT(tis_low)};

    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        KG_TRY(kg_golden_real((double *)(void *)((char *)&e->algo + reals[i].at), e->g,
                              reals[i].key, 0, err));
    return KG_OK;
}
#undef AT

/* A penalty on the squared log-ratio to the sampler is part of the row, or it is K2 with
 * the sampler as anchor. */
static kg_status regularise(struct kg_golden_batch *e, const char *mode,
                            struct kg_err *err)
{
    KG_TRY(kg_golden_real(&e->algo.kl_beta, e->g, "kl_tau", 0, err));
    if (strcmp(mode, "prime_default") != 0 && strcmp(mode, "dro") != 0)
        return KG_OK;
    if (strcmp(mode, "prime_default") == 0)
        e->algo.kl_beta *= 2;
    e->algo.kl_importance = false;
    e->algo.truncate = 0;
    e->b.anchor_logp = e->b.mu_logp;
    return kg_algo_set(&e->algo, "kl.estimator", "k2", err);
}

kg_status kg_golden_corrections(struct kg_golden_case *g, struct kg_err *err)
{
    const char *mode, *mask, *level, *aggregate, *row;
    struct kg_golden_batch e;
    double eps;

    KG_TRY(kg_golden_text(&mode, g, "loss_mode", err));
    KG_TRY(kg_golden_text(&mask, g, "mask", err));
    KG_TRY(kg_golden_text(&level, g, "tis_level", err));
    KG_TRY(kg_golden_text(&aggregate, g, "loss_agg_mode", err));
    KG_TRY(kg_golden_real(&eps, g, "tokens_eps", 0, err));
    KG_TRY(kg_golden_start(&e, g, err));
    KG_TRY(kg_golden_rename(&row, modes, "loss_mode", mode, err));
    KG_TRY(kg_algo_set(&e.algo, "algo.surrogate", row, err));
    KG_TRY(kg_golden_rename(&row, masks, "mask", *mask ? mask : "none", err));
    KG_TRY(kg_algo_set(&e.algo, "algo.mask", row, err));
    KG_TRY(kg_algo_set(&e.algo, "algo.aggregate", aggregate, err));
    KG_TRY(kg_algo_set(&e.algo, "algo.tis_level", level, err));
    KG_TRY(numbers(&e, err));
    KG_TRY(kg_golden_load(&e, 0, 0, err));
    KG_TRY(regularise(&e, mode, err));
    e.totals.tokens += eps;
    return kg_golden_finish(&e, err);
}
