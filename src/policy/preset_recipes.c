/* Recipes: published runs, a method each with the sizes and rates of its authors.
 *
 * Model, data and grader are the user's to name; everything here is weaker than what is
 * given, so a recipe can be cut down to any machine.
 */
#include "policy/presets_internal.h"

/* What every run of RPG's study shares, and what all but GRPO's filter and shape. */
#define RPG_RUN                                                                          \
    {"data.max_prompt_tokens", "2048"}, {"rollout.prompts", "512"},                      \
        {"rollout.samples", "16"}, {"rollout.max_tokens", "2048"},                       \
        {"rollout.temperature", "1"}, {"rollout.top_p", "1"},                            \
        {"optim.weight_decay", "0.1"}, {"optim.clip_norm", "1"},                         \
        {"optim.schedule", "constant"}, {"optim.warmup_steps", "10"},                    \
        {"optim.warmup", "steps"}, {"train.updates_per_step", "16"},                     \
    {                                                                                    \
        "train.steps", "400"                                                             \
    }
#define RPG_FILTERS                                                                      \
    {"rollout.dynamic", "true"}, {"rollout.dynamic_metric", "accuracy"},                 \
        {"rollout.oversample", "3"}, {"rollout.max_refills", "20"},                      \
        {"rollout.overlong_buffer", "512"}, {"rollout.overlong_factor", "1"},            \
    {                                                                                    \
        "kl.after_filter", "true"                                                        \
    }
KG_VALUES rpg_math[] = {
    RPG_RUN,
    RPG_FILTERS,
    {"optim.lr", "1e-6"},
    KG_END,
};
KG_VALUES dapo_math[] = {
    RPG_RUN,
    RPG_FILTERS,
    {"optim.lr", "1e-6"},
    {"algo.dual_clip", "10"},
    {"algo.ratio_clamp", "0"},
    KG_END,
};
KG_VALUES rpp_math[] = {
    RPG_RUN,
    RPG_FILTERS,
    {"optim.lr", "1e-6"},
    {"kl.in", "loss"},
    {"kl.estimator", "k1"},
    {"kl.beta", "0.0001"},
    {"kl.importance", "false"},
    {"anchor.kind", "iterative"},
    {"algo.clip_high", "0.28"},
    {"algo.dual_clip", "10"},
    {"algo.ratio_clamp", "0"},
    {"algo.reproduction", "true"},
    KG_END,
};
KG_VALUES dppo_8b[] = {
    {"data.max_prompt_tokens", "1024"},
    {"rollout.prompts", "128"},
    {"rollout.samples", "8"},
    {"rollout.max_tokens", "8000"},
    {"rollout.temperature", "1"},
    {"optim.lr", "1e-6"},
    {"train.updates_per_step", "4"},
    {"train.steps", "1400"},
    KG_END,
};
#define DPPO_30B                                                                         \
    {"data.max_prompt_tokens", "1024"}, {"rollout.prompts", "256"},                      \
        {"rollout.samples", "16"}, {"rollout.max_tokens", "16384"},                      \
        {"rollout.temperature", "1"}, {"optim.lr", "1e-6"},                              \
        {"train.updates_per_step", "8"},                                                 \
    {                                                                                    \
        "train.steps", "200"                                                             \
    }
#define R3                                                                               \
    {                                                                                    \
        "rollout.router_replay", "true"                                                  \
    }
KG_VALUES dppo_30b[] = {DPPO_30B, KG_END};
KG_VALUES dppo_30b_r3[] = {DPPO_30B, R3, KG_END};
#define DPPO_LORA                                                                        \
    {"data.max_prompt_tokens", "1024"}, {"rollout.prompts", "128"},                      \
        {"rollout.samples", "8"}, {"rollout.max_tokens", "8000"},                        \
        {"rollout.temperature", "1"}, {"lora.rank", "32"}, {"lora.alpha", "64"},         \
        {"optim.lr", "1e-5"}, {"train.updates_per_step", "8"},                           \
    {                                                                                    \
        "train.steps", "900"                                                             \
    }
KG_VALUES dppo_tv_lora[] = {
    DPPO_LORA,
    {"algo.delta_low", "0.15"},
    {"algo.delta_high", "0.15"},
    KG_END,
};
KG_VALUES dppo_kl_lora[] = {DPPO_LORA, KG_END};
KG_VALUES stability[] = {
    {"data.max_prompt_tokens", "1024"},
    {"rollout.prompts", "64"},
    {"rollout.samples", "8"},
    {"rollout.max_tokens", "8000"},
    {"rollout.temperature", "1"},
    {"optim.lr", "1e-6"},
    {"train.steps", "3500"},
    {"train.updates_per_step", "4"},
    KG_END,
};
KG_VALUES ema_pg_math_8k[] = {
    {"run.seed", "6725"},
    {"data.max_prompt_tokens", "4096"},
    {"rollout.prompts", "128"},
    {"rollout.samples", "8"},
    {"rollout.max_tokens", "8192"},
    {"rollout.temperature", "1"},
    {"algo.mask_truncated", "true"},
    {"kl.after_filter", "true"},
    {"optim.lr", "1e-6"},
    {"optim.beta1", "0.9"},
    {"optim.beta2", "0.999"},
    {"optim.weight_decay", "0.01"},
    {"optim.clip_norm", "1"},
    {"optim.schedule", "constant"},
    {"optim.warmup_steps", "0"},
    {"train.updates_per_step", "2"},
    {"train.steps", "480"},
    KG_END,
};
KG_VALUES ema_pg_math_16k[] = {
    {"run.seed", "986"},
    {"data.max_prompt_tokens", "4096"},
    {"rollout.prompts", "128"},
    {"rollout.samples", "8"},
    {"rollout.max_tokens", "16384"},
    {"rollout.temperature", "1"},
    {"algo.mask_truncated", "false"},
    {"optim.lr", "1e-6"},
    {"optim.beta1", "0.9"},
    {"optim.beta2", "0.999"},
    {"optim.weight_decay", "0.01"},
    {"optim.clip_norm", "1"},
    {"optim.schedule", "constant"},
    {"optim.warmup_steps", "0"},
    {"train.steps", "800"},
    {"train.updates_per_step", "2"},
    KG_END,
};
KG_VALUES ema_pg_math_24k[] = {
    {"run.seed", "986"},
    {"data.max_prompt_tokens", "4096"},
    {"rollout.prompts", "128"},
    {"rollout.samples", "8"},
    {"rollout.max_tokens", "24576"},
    {"rollout.temperature", "1"},
    {"algo.mask_truncated", "false"},
    {"optim.lr", "1e-6"},
    {"optim.beta1", "0.9"},
    {"optim.beta2", "0.999"},
    {"optim.weight_decay", "0.01"},
    {"optim.clip_norm", "1"},
    {"optim.schedule", "constant"},
    {"optim.warmup_steps", "0"},
    {"train.steps", "1280"},
    {"train.updates_per_step", "2"},
    KG_END,
};
KG_VALUES fixed_anchor[] = {
    {"anchor.kind", "fixed"},
    KG_END,
};
KG_VALUES ema_pg_search[] = {
    {"data.max_prompt_tokens", "2048"},
    {"rollout.prompts", "512"},
    {"rollout.samples", "5"},
    {"rollout.max_tokens", "500"},
    {"rollout.temperature", "1"},
    {"rollout.top_p", "0.95"},
    {"algo.reproduction", "true"},
    {"optim.lr", "1e-6"},
    {"optim.beta1", "0.9"},
    {"optim.beta2", "0.95"},
    {"optim.weight_decay", "0.01"},
    {"optim.clip_norm", "1"},
    {"optim.schedule", "constant"},
    {"optim.warmup_steps", "286"},
    {"optim.warmup", "steps"},
    {"train.updates_per_step", "10"},
    {"train.steps", "1005"},
    KG_END,
};
KG_VALUES grpo_search[] = {
    {"data.max_prompt_tokens", "2048"},
    {"rollout.prompts", "512"},
    {"rollout.samples", "5"},
    {"rollout.max_tokens", "500"},
    {"rollout.temperature", "1"},
    {"rollout.top_p", "0.95"},
    {"algo.aggregate", "token-mean"},
    {"algo.entropy_coef", "0.001"},
    {"algo.ratio_clamp", "0"},
    {"algo.reproduction", "true"},
    {"optim.lr", "1e-6"},
    {"optim.beta1", "0.9"},
    {"optim.beta2", "0.999"},
    {"optim.weight_decay", "0.01"},
    {"optim.clip_norm", "1"},
    {"optim.schedule", "constant"},
    {"optim.warmup_steps", "286"},
    {"optim.warmup", "steps"},
    {"train.updates_per_step", "10"},
    {"train.steps", "1005"},
    KG_END,
};
KG_VALUES rpg_released_reinforce_math[] = {
    RPG_RUN,
    RPG_FILTERS,
    {"optim.lr", "5e-7"},
    KG_END,
};
KG_VALUES rpg_released_urkl_math_schedule_free[] = {
    {"optim.kind", "schedule-free"},
    {"optim.evaluate", "trained"},
    KG_END,
};
KG_VALUES grpo_math[] = {
    RPG_RUN,
    {"optim.lr", "1e-6"},
    {"algo.aggregate", "token-mean"},
    {"algo.ratio_clamp", "0"},
    {"algo.dual_clip", "10"},
    KG_END,
};
KG_VALUES dapo_32b[] = {
    {"data.max_prompt_tokens", "2048"},
    {"rollout.prompts", "512"},
    {"rollout.samples", "16"},
    {"rollout.max_tokens", "20480"},
    {"rollout.temperature", "1"},
    {"rollout.oversample", "3"},
    {"rollout.max_refills", "10"},
    {"rollout.overlong_buffer", "4096"},
    {"rollout.overlong_factor", "1"},
    {"algo.dual_clip", "10"},
    {"optim.lr", "1e-6"},
    {"optim.weight_decay", "0.1"},
    {"optim.clip_norm", "1"},
    {"optim.schedule", "constant"},
    {"optim.warmup_steps", "20"},
    {"optim.warmup", "steps"},
    {"train.steps", "312"},
    {"train.updates_per_step", "16"},
    KG_END,
};
KG_VALUES grpo_clip_higher_8b[] = {
    {"algo.clip_high", "0.27"},
    {"algo.truncate", "5"},
    {"data.max_prompt_tokens", "1024"},
    {"rollout.prompts", "128"},
    {"rollout.samples", "8"},
    {"rollout.max_tokens", "8000"},
    {"rollout.temperature", "1"},
    {"optim.lr", "1e-6"},
    {"train.updates_per_step", "4"},
    {"train.steps", "1400"},
    KG_END,
};
KG_VALUES grpo_clip_higher_30b[] = {
    {"algo.clip_high", "0.27"},
    {"algo.truncate", "5"},
    DPPO_30B,
    KG_END,
};
KG_VALUES grpo_clip_higher_30b_r3[] = {
    {"algo.clip_high", "0.27"}, {"algo.truncate", "5"}, DPPO_30B, R3, KG_END,
};
KG_VALUES dppo_binary_tv_stability[] = {
    {"algo.delta_low", "0.15"},
    {"algo.delta_high", "0.15"},
    {"algo.truncate", "0"},
    {"data.max_prompt_tokens", "1024"},
    {"rollout.prompts", "64"},
    {"rollout.samples", "8"},
    {"rollout.max_tokens", "8000"},
    {"rollout.temperature", "1"},
    {"optim.lr", "1e-6"},
    {"train.steps", "3500"},
    {"train.updates_per_step", "4"},
    KG_END,
};
/* No probability is more than 1 above another: where A > 0 nothing is dropped. */
KG_VALUES mask_delta_stability[] = {
    {"algo.delta_low", "0.5"},
    {"algo.delta_high", "1"},
    {"algo.truncate", "0"},
    {"data.max_prompt_tokens", "1024"},
    {"rollout.prompts", "64"},
    {"rollout.samples", "8"},
    {"rollout.max_tokens", "8000"},
    {"rollout.temperature", "1"},
    {"optim.lr", "1e-6"},
    {"train.steps", "3500"},
    {"train.updates_per_step", "4"},
    KG_END,
};
KG_VALUES dppo_binary_kl_stability[] = {
    {"algo.truncate", "0"},
    {"data.max_prompt_tokens", "1024"},
    {"rollout.prompts", "64"},
    {"rollout.samples", "8"},
    {"rollout.max_tokens", "8000"},
    {"rollout.temperature", "1"},
    {"optim.lr", "1e-6"},
    {"train.steps", "3500"},
    {"train.updates_per_step", "4"},
    KG_END,
};
KG_VALUES pg_tis_stability[] = {
    {"algo.truncate", "3"},
    {"data.max_prompt_tokens", "1024"},
    {"rollout.prompts", "64"},
    {"rollout.samples", "8"},
    {"rollout.max_tokens", "8000"},
    {"rollout.temperature", "1"},
    {"optim.lr", "1e-6"},
    {"train.steps", "3500"},
    {"train.updates_per_step", "4"},
    KG_END,
};
KG_VALUES dppo_binary_tv_verl[] = {
    {"algo.delta_low", "0.15"},
    {"algo.delta_high", "0.15"},
    {"algo.aggregate", "seq-mean-token-norm"},
    {"algo.truncate", "0"},
    {"algo.length_norm", "8192"},
    {"data.max_prompt_tokens", "2048"},
    {"rollout.prompts", "256"},
    {"rollout.samples", "16"},
    {"rollout.max_tokens", "8192"},
    {"rollout.temperature", "1"},
    {"optim.lr", "1e-6"},
    {"train.updates_per_step", "8"},
    {"train.steps", "500"},
    KG_END,
};
KG_VALUES dppo_binary_kl_verl[] = {
    {"algo.aggregate", "seq-mean-token-norm"},
    {"algo.truncate", "0"},
    {"algo.length_norm", "8192"},
    {"data.max_prompt_tokens", "2048"},
    {"rollout.prompts", "256"},
    {"rollout.samples", "16"},
    {"rollout.max_tokens", "8192"},
    {"rollout.temperature", "1"},
    {"optim.lr", "1e-6"},
    {"train.updates_per_step", "8"},
    {"train.steps", "500"},
    KG_END,
};

#define RECIPE KG_PRESET_RECIPE
static const struct kg_preset rows[] = {
    {"ema-pg-math-8k", RECIPE, "ema-pg-math",
     "from DeepSeek-R1-Distill-Qwen-1.5B; truncated answers leave the loss", KG_EMA_PAPER,
     ema_pg_math_8k},
    {"ema-pg-math-16k", RECIPE, "ema-pg-math", "from step 480 of the 8k run",
     KG_EMA_PAPER, ema_pg_math_16k},
    {"ema-pg-math-24k", RECIPE, "ema-pg-math", "from step 800 of the 16k run",
     KG_EMA_PAPER, ema_pg_math_24k},
    {"grpo-ema-pg-math-8k", RECIPE, "ema-pg-math-8k",
     "the baseline of EMA-PG: the same with the anchor where it started", KG_EMA_PAPER,
     fixed_anchor},
    {"grpo-ema-pg-math-16k", RECIPE, "ema-pg-math-16k",
     "the baseline of EMA-PG: the same with the anchor where it started", KG_EMA_PAPER,
     fixed_anchor},
    {"grpo-ema-pg-math-24k", RECIPE, "ema-pg-math-24k",
     "the baseline of EMA-PG: the same with the anchor where it started", KG_EMA_PAPER,
     fixed_anchor},
    {"ema-pg-search", RECIPE, "ema-pg-published",
     "search agent, Qwen2.5-3B; 500 tokens are one turn of it", KG_EMA_PAPER,
     ema_pg_search},
    {"grpo-search", RECIPE, "grpo",
     "the baseline of ema-pg-search, as published by Search-R1, v0.2",
     "Jin et al. 2025, arXiv 2503.09516", grpo_search},
    {"rpg-fkl-math", RECIPE, "rpg-fkl", "DAPO-Math-17k, answers of 2k tokens",
     KG_RPG_PAPER, rpg_math},
    {"rpg-rkl-math", RECIPE, "rpg-rkl", "DAPO-Math-17k, answers of 2k tokens",
     KG_RPG_PAPER, rpg_math},
    {"rpg-ufkl-math", RECIPE, "rpg-ufkl", "DAPO-Math-17k, answers of 2k tokens",
     KG_RPG_PAPER, rpg_math},
    {"rpg-urkl-math", RECIPE, "rpg-urkl", "DAPO-Math-17k, answers of 2k tokens",
     KG_RPG_PAPER, rpg_math},
    {"rpg-reinforce-fkl-math", RECIPE, "rpg-reinforce-fkl",
     "DAPO-Math-17k, answers of 2k tokens", KG_RPG_PAPER, rpg_math},
    {"rpg-reinforce-rkl-math", RECIPE, "rpg-reinforce-rkl",
     "DAPO-Math-17k, answers of 2k tokens", KG_RPG_PAPER, rpg_math},
    {"rpg-reinforce-ufkl-math", RECIPE, "rpg-reinforce-ufkl",
     "DAPO-Math-17k, answers of 2k tokens", KG_RPG_PAPER, rpg_math},
    {"rpg-reinforce-urkl-math", RECIPE, "rpg-reinforce-urkl",
     "DAPO-Math-17k, answers of 2k tokens", KG_RPG_PAPER, rpg_math},
    {"rpg-released-fkl-math", RECIPE, "rpg-released-fkl",
     "DAPO-Math-17k, answers of 2k tokens", KG_RPG_PAPER ", code", rpg_math},
    {"rpg-released-rkl-math", RECIPE, "rpg-released-rkl",
     "DAPO-Math-17k, answers of 2k tokens", KG_RPG_PAPER ", code", rpg_math},
    {"rpg-released-ufkl-math", RECIPE, "rpg-released-ufkl",
     "DAPO-Math-17k, answers of 2k tokens", KG_RPG_PAPER ", code", rpg_math},
    {"rpg-released-urkl-math", RECIPE, "rpg-released-urkl",
     "DAPO-Math-17k, answers of 2k tokens", KG_RPG_PAPER ", code", rpg_math},
    {"rpg-released-js-math", RECIPE, "rpg-released-js",
     "DAPO-Math-17k, answers of 2k tokens", KG_RPG_PAPER ", code", rpg_math},
    {"rpg-released-ujs-math", RECIPE, "rpg-released-ujs",
     "DAPO-Math-17k, answers of 2k tokens", KG_RPG_PAPER ", code", rpg_math},
    {"rpg-released-reinforce-math", RECIPE, "rpg-released-reinforce",
     "DAPO-Math-17k, answers of 2k tokens; half the learning rate", KG_RPG_PAPER ", code",
     rpg_released_reinforce_math},
    {"rpg-released-urkl-math-schedule-free", RECIPE, "rpg-released-urkl-math",
     "the same with the schedule-free AdamW of the released code", KG_RPG_PAPER ", code",
     rpg_released_urkl_math_schedule_free},
    {"grpo-math", RECIPE, "grpo",
     "baseline of RPG: symmetric clip, K3 to a fixed reference, no filters",
     KG_RPG_PAPER "; c = 10: " KG_RPG_CODE "run_grpo_7b.sh", grpo_math},
    {"dapo-math", RECIPE, "dapo", "baseline of RPG: answers of 2k tokens",
     KG_RPG_PAPER "; c = 10: " KG_RPG_CODE "run_dapo_7b.sh", dapo_math},
    {"reinforce++-math", RECIPE, "reinforce++",
     "baseline of RPG as released: K1 as a loss to the sampling policy",
     KG_RPG_PAPER "; " KG_RPG_CODE "run_rfpp_7b_1e-4.sh", rpp_math},
    {"reinforce++-baseline-math", RECIPE, "reinforce++-baseline",
     "baseline of RPG as released: K1 as a loss to the sampling policy",
     KG_RPG_PAPER "; " KG_RPG_CODE "run_rfppb_7b_1e-4.sh", rpp_math},
    {"dapo-32b", RECIPE, "dapo", "Qwen2.5-32B: 16,384 tokens, then 4,096 with a fine",
     "Yu et al. 2025, arXiv 2503.14476; c, weight decay and generation batches: verl, "
     "recipe/dapo/run_dapo_qwen2.5_32b.sh (which warms up over 10 steps)",
     dapo_32b},
    {"dppo-binary-tv-8b", RECIPE, "dppo-binary-tv", "scaling study, Qwen3-8B-Base",
     KG_DPPO_PAPER, dppo_8b},
    {"dppo-binary-tv-30b", RECIPE, "dppo-binary-tv", "scaling study, Qwen3-30B-A3B-Base",
     KG_DPPO_PAPER, dppo_30b},
    {"dppo-binary-kl-8b", RECIPE, "dppo-binary-kl", "scaling study, Qwen3-8B-Base",
     KG_DPPO_PAPER, dppo_8b},
    {"dppo-binary-kl-30b", RECIPE, "dppo-binary-kl", "scaling study, Qwen3-30B-A3B-Base",
     KG_DPPO_PAPER, dppo_30b},
    {"dppo-binary-tv-30b-r3", RECIPE, "dppo-binary-tv",
     "scaling study, Qwen3-30B-A3B-Base, with router replay (R3)", KG_DPPO_PAPER,
     dppo_30b_r3},
    {"dppo-binary-kl-30b-r3", RECIPE, "dppo-binary-kl",
     "scaling study, Qwen3-30B-A3B-Base, with router replay (R3)", KG_DPPO_PAPER,
     dppo_30b_r3},
    {"dppo-binary-tv-30b-lora", RECIPE, "dppo-binary-tv",
     "scaling study, Qwen3-30B-A3B-Base, adapters of rank 32", KG_DPPO_PAPER,
     dppo_tv_lora},
    {"dppo-binary-kl-30b-lora", RECIPE, "dppo-binary-kl",
     "scaling study, Qwen3-30B-A3B-Base, adapters of rank 32", KG_DPPO_PAPER,
     dppo_kl_lora},
    {"pg-tis-8b", RECIPE, "pg-tis", "scaling study, Qwen3-8B-Base", KG_DPPO_PAPER,
     dppo_8b},
    {"pg-tis-30b", RECIPE, "pg-tis", "scaling study, Qwen3-30B-A3B-Base", KG_DPPO_PAPER,
     dppo_30b},
    {"pg-tis-30b-r3", RECIPE, "pg-tis",
     "scaling study, Qwen3-30B-A3B-Base, with router replay (R3)", KG_DPPO_PAPER,
     dppo_30b_r3},
    {"dppo-topk-tv-30b", RECIPE, "dppo-topk-tv", "Top-K ablation, Qwen3-30B-A3B-Base",
     KG_DPPO_PAPER, dppo_30b},
    {"dppo-topk-kl-30b", RECIPE, "dppo-topk-kl", "Top-K ablation, Qwen3-30B-A3B-Base",
     KG_DPPO_PAPER, dppo_30b},
    {"grpo-clip-higher-8b", RECIPE, "grpo-clip-higher", "scaling study, Qwen3-8B-Base",
     KG_DPPO_PAPER, grpo_clip_higher_8b},
    {"grpo-clip-higher-30b", RECIPE, "grpo-clip-higher",
     "scaling study, Qwen3-30B-A3B-Base", KG_DPPO_PAPER, grpo_clip_higher_30b},
    {"grpo-clip-higher-30b-r3", RECIPE, "grpo-clip-higher",
     "scaling study, Qwen3-30B-A3B-Base, with router replay (R3)", KG_DPPO_PAPER,
     grpo_clip_higher_30b_r3},
    {"dppo-binary-tv-stability", RECIPE, "dppo-binary-tv",
     "stability study, DeepSeek-R1-Distill-Qwen-1.5B", KG_DPPO_PAPER,
     dppo_binary_tv_stability},
    {"dppo-binary-kl-stability", RECIPE, "dppo-binary-kl",
     "stability study, DeepSeek-R1-Distill-Qwen-1.5B", KG_DPPO_PAPER,
     dppo_binary_kl_stability},
    {"pg-is-stability", RECIPE, "pg-is", "stability study, DeepSeek-R1-Distill-Qwen-1.5B",
     KG_DPPO_PAPER, stability},
    {"dppo-mask-delta-stability", RECIPE, "dppo-binary-tv",
     "stability study, the diagnostic: PG-IS without the tokens of A < 0 that fell by "
     "more than 0.5",
     KG_DPPO_PAPER, mask_delta_stability},
    {"grpo-clip-higher-stability", RECIPE, "grpo-clip-higher",
     "stability study, DeepSeek-R1-Distill-Qwen-1.5B", KG_DPPO_PAPER, stability},
    {"minirl-stability", RECIPE, "minirl",
     "stability study, DeepSeek-R1-Distill-Qwen-1.5B", KG_DPPO_PAPER, stability},
    {"minirl-tis-stability", RECIPE, "minirl-tis",
     "stability study, DeepSeek-R1-Distill-Qwen-1.5B", KG_DPPO_PAPER, stability},
    {"pg-tis-stability", RECIPE, "pg-tis", "stability study: the ratio cut at 3",
     KG_DPPO_PAPER, pg_tis_stability},
    {"dppo-binary-tv-verl", RECIPE, "dppo-binary-tv",
     "verl's example as it first came: Dr.GRPO's sum, no bound of the ratio",
     KG_DPPO_PAPER "; verl at 8f11888, run_qwen30b_dppo.sh", dppo_binary_tv_verl},
    {"dppo-binary-kl-verl", RECIPE, "dppo-binary-kl",
     "verl's example as it first came: Dr.GRPO's sum, no bound of the ratio",
     KG_DPPO_PAPER "; verl at 8f11888, run_qwen30b_dppo.sh", dppo_binary_kl_verl},
};

struct kg_preset_table kg_preset_recipes(void)
{
    return (struct kg_preset_table){rows, sizeof rows / sizeof rows[0]};
}
