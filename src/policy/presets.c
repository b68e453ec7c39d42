/* Presets: published recipes as lists of option values.
 *
 * A preset says what makes the method and nothing of a run's size. Values that a recipe
 * shares with the defaults are given where the recipe's authors give them, so that a
 * change of a default cannot change a recipe.
 */
#include "policy/presets.h"

#include "base/str.h"

#include <stdint.h>
#include <string.h>

#define V static const struct kg_preset_value
#define END                                                                              \
    {                                                                                    \
        NULL, NULL                                                                       \
    }

V grpo[] = {
    {"algo.advantage", "grpo"},
    {"algo.surrogate", "ppo-clip"},
    {"algo.clip_low", "0.2"},
    {"algo.clip_high", "0.2"},
    {"algo.aggregate", "seq-mean-token-mean"},
    {"kl.estimator", "k3"},
    {"kl.beta", "0.001"},
    {"kl.importance", "false"},
    {"anchor.kind", "fixed"},
    END,
};
V ema_pg[] = {
    {"algo.advantage", "grpo"},
    {"algo.surrogate", "ppo-clip"},
    {"algo.clip_low", "0.2"},
    {"algo.clip_high", "0.28"},
    {"algo.aggregate", "token-mean"},
    {"kl.estimator", "topk-reverse"},
    {"kl.beta", "0.001"},
    {"kl.top_k", "32"},
    {"kl.tail", "true"},
    {"kl.gradient", "corrected"},
    {"kl.importance", "true"},
    {"anchor.kind", "ema"},
    {"anchor.eta", "0.9"},
    {"anchor.period", "10"},
    END,
};
V ema_pg_search[] = {
    {"algo.advantage", "grpo"},
    {"algo.surrogate", "ppo-clip"},
    {"algo.clip_low", "0.2"},
    {"algo.clip_high", "0.28"},
    {"algo.ratio_clamp", "0"},
    {"algo.aggregate", "token-mean"},
    {"kl.estimator", "topk-reverse"},
    {"kl.beta", "0.001"},
    {"kl.top_k", "32"},
    {"kl.tail", "true"},
    {"kl.gradient", "published"},
    {"kl.importance", "true"},
    {"anchor.kind", "ema"},
    {"anchor.eta", "0.9"},
    {"anchor.period", "10"},
    END,
};
V ema_pg_math[] = {
    {"algo.advantage", "grpo"},
    {"algo.surrogate", "ppo-clip"},
    {"algo.clip_low", "0.2"},
    {"algo.clip_high", "0.28"},
    {"algo.dual_clip", "3"},
    {"algo.aggregate", "seq-mean-token-mean"},
    {"kl.estimator", "k3"},
    {"kl.beta", "0.001"},
    {"kl.importance", "false"},
    {"anchor.kind", "ema"},
    {"anchor.eta", "0.95"},
    {"anchor.period", "10"},
    END,
};
V dapo[] = {
    {"algo.advantage", "grpo"},       {"algo.surrogate", "ppo-clip"},
    {"algo.clip_low", "0.2"},         {"algo.clip_high", "0.28"},
    {"algo.aggregate", "token-mean"}, {"kl.estimator", "none"},
    {"anchor.kind", "none"},          END,
};
V dr_grpo[] = {
    {"algo.advantage", "dr-grpo"},
    {"algo.surrogate", "ppo-clip"},
    {"algo.clip_low", "0.2"},
    {"algo.clip_high", "0.2"},
    {"algo.aggregate", "seq-mean-token-sum-norm"},
    {"kl.estimator", "none"},
    {"anchor.kind", "none"},
    END,
};
V rloo[] = {
    {"algo.advantage", "rloo"},
    {"algo.surrogate", "reinforce"},
    {"algo.aggregate", "seq-mean-token-sum"},
    {"kl.estimator", "none"},
    {"anchor.kind", "none"},
    END,
};
V gspo[] = {
    {"algo.advantage", "grpo"},
    {"algo.surrogate", "gspo"},
    {"algo.clip_low", "0.0003"},
    {"algo.clip_high", "0.0004"},
    {"algo.aggregate", "seq-mean-token-mean"},
    {"kl.estimator", "none"},
    {"anchor.kind", "none"},
    END,
};
V cispo[] = {
    {"algo.advantage", "grpo"},       {"algo.surrogate", "cispo"},
    {"algo.clip_low", "1"},           {"algo.clip_high", "4"},
    {"algo.aggregate", "token-mean"}, {"kl.estimator", "none"},
    {"anchor.kind", "none"},          END,
};
#define DPPO(name, surrogate, delta)                                                     \
    V name[] = {                                                                         \
        {"algo.advantage", "dr-grpo"},    {"algo.surrogate", surrogate},                 \
        {"algo.delta_low", delta},        {"algo.delta_high", delta},                    \
        {"algo.truncate", "5"},           {"algo.top_k", "20"},                          \
        {"algo.aggregate", "token-mean"}, {"kl.estimator", "none"},                      \
        {"anchor.kind", "none"},          END,                                           \
    }
DPPO(dppo_binary_tv, "dppo-binary-tv", "0.2");
DPPO(dppo_binary_kl, "dppo-binary-kl", "0.05");
DPPO(dppo_topk_tv, "dppo-topk-tv", "0.2");
DPPO(dppo_topk_kl, "dppo-topk-kl", "0.05");
#define RPG(name, surrogate)                                                             \
    V name[] = {                                                                         \
        {"algo.advantage", "rpg"}, {"algo.surrogate", surrogate},                        \
        {"algo.clip_low", "0.2"},  {"algo.clip_high", "0.28"},                           \
        {"algo.dual_clip", "10"},  {"algo.aggregate", "token-mean"},                     \
        {"kl.estimator", "none"},  {"kl.beta", "0.0001"},                                \
        {"anchor.kind", "none"},   END,                                                  \
    }
RPG(rpg_fkl, "rpg-fkl");
RPG(rpg_rkl, "rpg-rkl");
RPG(rpg_ufkl, "rpg-ufkl");
RPG(rpg_urkl, "rpg-urkl");
RPG(rpg_reinforce_fkl, "rpg-reinforce-fkl");
RPG(rpg_reinforce_rkl, "rpg-reinforce-rkl");
RPG(rpg_reinforce_ufkl, "rpg-reinforce-ufkl");
RPG(rpg_reinforce_urkl, "rpg-reinforce-urkl");

#define DISTILL(name, estimator, tail)                                                   \
    V name[] = {                                                                         \
        {"algo.advantage", "batch-mean"},                                                \
        {"algo.surrogate", "none"},                                                      \
        {"algo.aggregate", "token-mean"},                                                \
        {"kl.estimator", estimator},                                                     \
        {"kl.beta", "1"},                                                                \
        {"kl.top_k", "32"},                                                              \
        {"kl.tail", tail},                                                               \
        {"kl.gradient", "corrected"},                                                    \
        {"kl.importance", "true"},                                                       \
        {"anchor.kind", "fixed"},                                                        \
        END,                                                                             \
    }
DISTILL(distill_reverse, "topk-reverse", "true");
DISTILL(distill_forward, "topk-forward", "true");
DISTILL(distill_offline, "topk-forward", "false");

#define EMA_PAPER  "Zhang & Ba 2026, arXiv 2602.04417"
#define RPG_PAPER  "Zhang et al. 2025, arXiv 2505.17508"
#define DPPO_PAPER "Qi et al. 2026, arXiv 2602.04879"
static const struct kg_preset presets[] = {
    {"grpo", "group advantages, PPO clip, K3 to the initial weights",
     "Shao et al. 2024, arXiv 2402.03300", grpo},
    {"ema-pg", "EMA anchor and Top-k reverse KL with tail, corrected gradient", EMA_PAPER,
     ema_pg},
    {"ema-pg-search", "as published for the search agent: Top-k KL, published gradient",
     EMA_PAPER, ema_pg_search},
    {"ema-pg-math", "as published for mathematics: EMA anchor and K3", EMA_PAPER,
     ema_pg_math},
    {"dapo",
     "clip-higher, token mean, no KL (its sampling filters are options of their own)",
     "Yu et al. 2025, arXiv 2503.14476", dapo},
    {"dr-grpo", "no deviation, no per-answer length; set algo.length_norm",
     "Liu et al. 2025, arXiv 2503.20783", dr_grpo},
    {"rloo", "leave-one-out baseline, plain score function",
     "Ahmadian et al. 2024, arXiv 2402.14740", rloo},
    {"gspo", "sequence ratio, clipped per sequence",
     "Zheng et al. 2025, arXiv 2507.18071", gspo},
    {"cispo", "clipped ratio as a weight; no token is dropped",
     "MiniMax 2025, arXiv 2506.13585", cispo},
    {"dppo-binary-tv", "trust region in total variation of the sampled token", DPPO_PAPER,
     dppo_binary_tv},
    {"dppo-binary-kl", "trust region in the KL of the sampled token", DPPO_PAPER,
     dppo_binary_kl},
    {"dppo-topk-tv", "trust region in total variation over the sampler's top 20",
     DPPO_PAPER, dppo_topk_tv},
    {"dppo-topk-kl", "trust region in the KL over the sampler's top 20", DPPO_PAPER,
     dppo_topk_kl},
    {"rpg-fkl", "forward KL to the sampling policy, differentiable", RPG_PAPER, rpg_fkl},
    {"rpg-rkl", "reverse KL, differentiable", RPG_PAPER, rpg_rkl},
    {"rpg-ufkl", "unnormalised forward KL, differentiable", RPG_PAPER, rpg_ufkl},
    {"rpg-urkl", "unnormalised reverse KL, differentiable", RPG_PAPER, rpg_urkl},
    {"rpg-reinforce-fkl", "forward KL, score function", RPG_PAPER, rpg_reinforce_fkl},
    {"rpg-reinforce-rkl", "reverse KL, score function", RPG_PAPER, rpg_reinforce_rkl},
    {"rpg-reinforce-ufkl", "unnormalised forward KL, score function", RPG_PAPER,
     rpg_reinforce_ufkl},
    {"rpg-reinforce-urkl", "unnormalised reverse KL, score function", RPG_PAPER,
     rpg_reinforce_urkl},
    {"distill-reverse", "the teacher (anchor.path) by Top-k reverse KL on own answers",
     EMA_PAPER ", sections on Top-k KL", distill_reverse},
    {"distill-forward", "the teacher by Top-k forward KL on own answers, its largest ids",
     EMA_PAPER ", sections on Top-k KL", distill_forward},
    {"distill-offline", "the teacher by truncated forward KL on given answers",
     EMA_PAPER ", sections on Top-k KL", distill_offline},
};

size_t kg_preset_count(void) { return sizeof presets / sizeof presets[0]; }

const struct kg_preset *kg_preset_at(size_t i)
{
    return i < kg_preset_count() ? &presets[i] : NULL;
}

kg_status kg_preset_find(const struct kg_preset **preset, const char *name,
                         struct kg_err *err)
{
    struct kg_str names = {.max = KG_ERR_MESSAGE_BYTES};
    kg_status status = KG_OK;

    for (size_t i = 0; i < kg_preset_count(); i++)
        if (strcmp(presets[i].name, name) == 0) {
            *preset = &presets[i];
            return KG_OK;
        }
    for (size_t i = 0; i < kg_preset_count() && status == KG_OK; i++)
        status = kg_str_printf(&names, err, "%s%s", i > 0 ? ", " : "", presets[i].name);
    status = kg_fail(err, KG_ENOTFOUND, "algo.preset: expected one of %s; found '%s'",
                     kg_str_text(&names), name);
    kg_str_release(&names);
    return status;
}
