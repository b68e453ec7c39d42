/* DPPO: the scaling study, the stability study, and the example of verl.
 *
 * Three studies of one method, whose sources need not agree: the paper's appendices,
 * the released code, and defaults of its trainer. Each row says which of them it
 * follows, and what holds of all three stands once. A value that no page gives is the
 * code's default, with the file that has it, for that is what ran.
 */
#include "lab/published_internal.h"

#define PAPER_C "paper, Appendix C"
#define PAPER_E "paper, Appendix E"
#define CODE    "verl/trainer/ppo/core_algos.py"
#define YAML    "verl/trainer/config/_generated_ppo_trainer.yaml (default)"
#define REWARD  "verl/utils/reward_score/math_dapo.py"

/* Rows that hold of all three, with their source. */
#define COMMON_ROWS(defaults)                                                            \
    {NULL, "task.name", "math", NULL, REWARD, NULL},                                     \
        {NULL, "run.seed", "not said", "1", defaults, "torch's default there"},          \
        {NULL, "rollout.temperature", "1", NULL, defaults, NULL},                        \
        {NULL, "rollout.top_p", "1", NULL, defaults, NULL},                              \
        {NULL, "rollout.top_k", "0", NULL, defaults, "-1 there, which is off"},          \
        {NULL, "rollout.min_p", "0", NULL, defaults, NULL},                              \
        {NULL, "rollout.lag", "0", NULL, defaults, NULL},                                \
        {NULL, "rollout.dynamic", "false", NULL, defaults, NULL},                        \
        {NULL, "rollout.overlong_buffer", "0", NULL, defaults, NULL},                    \
        {NULL, "task.keep_thinking", "false", NULL, REWARD, NULL},                       \
        {NULL, "algo.dual_clip", "0", NULL, CODE, "none in these modes"},                \
        {NULL, "algo.entropy_coef", "0", NULL, defaults, NULL},                          \
        {NULL, "algo.mask", "none", NULL, CODE, NULL},                                   \
        {NULL, "algo.tis", "0", NULL, CODE, NULL},                                       \
        {NULL, "algo.mask_truncated", "false", NULL, CODE, NULL},                        \
        {NULL, "algo.ratio_clamp", "20", NULL, CODE, "there from above alone"},          \
        {NULL, "algo.advantage",   "dr-grpo",                                            \
         NULL, "paper, Section 5", "reward less group mean"},                            \
        {NULL, "kl.estimator", "none", NULL, "paper, Section 5", NULL},                  \
        {NULL, "kl.after_filter",  "false",                                              \
         NULL, "paper, Section 5", "nothing is filtered"},                               \
        {NULL, "anchor.kind", "none", NULL, "paper, Section 5", NULL},                   \
        {NULL, "optim.kind", "adamw", NULL, defaults, NULL},                             \
        {NULL, "optim.beta1", "0.9", NULL, defaults, NULL},                              \
        {NULL, "optim.beta2", "0.999", NULL, defaults, NULL},                            \
        {NULL, "optim.eps", "1e-8", NULL, "torch.optim.AdamW (default)", NULL},          \
        {NULL, "optim.weight_decay", "0.01", NULL, defaults, NULL},                      \
        {NULL, "optim.clip_norm", "1", NULL, defaults, NULL},                            \
        {NULL, "optim.schedule", "constant", NULL, defaults, NULL},                      \
        {NULL, "optim.warmup_steps", "0", NULL, defaults, NULL},                         \
    {                                                                                    \
        NULL, "eval.anchor", "false", NULL, defaults, NULL                               \
    }

/* Prompts of DAPO's file. */
#define DATASET "verl/utils/dataset/rl_dataset.py"
#define MESSAGE_ROWS                                                                     \
    {NULL, "data.template", "",                                                          \
     NULL, "(the file)",    "the file's prompts contain the instruction"},               \
        {NULL,    "data.user_turn",                                                      \
         "false", NULL,                                                                  \
         DATASET, "the file has lists of messages, which the template renders"},         \
        {NULL, "data.system", "", NULL, DATASET, NULL},                                  \
        {NULL, "data.opening", "", NULL, DATASET, NULL},                                 \
        {NULL, "data.chat_template", "auto", NULL, DATASET, NULL},                       \
    {                                                                                    \
        NULL, "data.add_special", "auto", NULL, DATASET, NULL                            \
    }

/* ---- scaling study ---- */

#define SUITE_D "suites/dppo.yaml"
#define R8      "recipes/dppo-math-8b.yaml"
#define R30     "recipes/dppo-math-30b.yaml"
#define LORA    "recipes/dppo-math-30b-lora.yaml"
#define RUN(name, recipe)                                                                \
    {                                                                                    \
        name, recipe, "algo.preset=" name, name, NULL                                    \
    }

static const struct kg_published_run dppo_runs[] = {
    {"dppo-binary-tv-8b", R8, NULL, "dppo-binary-tv-8b", NULL},
    RUN("dppo-binary-kl-8b", R8),
    RUN("pg-tis-8b", R8),
    RUN("grpo-clip-higher-8b", R8),
    {"dppo-binary-tv-30b", R30, NULL, "dppo-binary-tv-30b", NULL},
    RUN("dppo-binary-kl-30b", R30),
    RUN("dppo-topk-tv-30b", R30),
    RUN("dppo-topk-kl-30b", R30),
    RUN("pg-tis-30b", R30),
    RUN("grpo-clip-higher-30b", R30),
    RUN("dppo-binary-tv-30b-r3", R30),
    RUN("dppo-binary-kl-30b-r3", R30),
    RUN("pg-tis-30b-r3", R30),
    RUN("grpo-clip-higher-30b-r3", R30),
    {"dppo-binary-tv-30b-lora", LORA, NULL, "dppo-binary-tv-30b-lora", NULL},
    RUN("dppo-binary-kl-30b-lora", LORA),
    {SUITE_D, NULL, NULL, NULL, SUITE_D},
};

static const struct kg_published_row dppo_rows[] = {
    COMMON_ROWS(YAML),
    MESSAGE_ROWS,
    {"*", "(first prompt)",
     "<|im_start|>user\n"
     "Solve the following math problem step by step. The last line of your response "
     "should be of the form Answer: $Answer (without quotes) where $Answer is the answer "
     "to the problem.\n\n{question}\n\nRemember to put your answer on its own line after "
     "\"Answer:\".<|im_end|>\n<|im_start|>assistant\n",
     NULL, "BytedTsinghua-SIA/DAPO-Math-17k (its prompts)",
     "rendered with the template of Qwen3"},
    {"*-8b", "model.path", "Qwen/Qwen3-8B-Base", "models/Qwen3-8B-Base", PAPER_E,
     "where the user keeps it"},
    {"*-30b *-r3 *-lora", "model.path", "Qwen/Qwen3-30B-A3B-Base",
     "models/Qwen3-30B-A3B-Base", PAPER_E, "where the user keeps it"},
    {NULL, "model.dtype", "bf16", "auto", PAPER_E,
     "bf16 products; master weights are fp32 in both"},
    {"*-30b", "rollout.router_replay", "false", NULL, PAPER_E,
     "without R3: with the same weights sampler and trainer choose the same "
     "experts; in later updates of a step they may differ"},
    {"*-r3", "rollout.router_replay", "true", NULL, PAPER_E,
     "with R3: the sampler's choices in all updates of a step"},
    {NULL, "task.grader", "dapo", NULL, REWARD, NULL},
    {"*-8b", "task.bad_golds", "no check", "drop", REWARD,
     "what nobody can answer teaches nothing; named and counted"},
    {NULL, "task.wrong_reward", "-1", NULL, REWARD, NULL},
    {NULL, "task.undecided", "wrong", NULL, REWARD, NULL},
    {NULL, "data.train", "DAPO-Math, filtered, about 13 k problems",
     "dapo-math-13k.parquet", PAPER_E, "the user's file"},
    {NULL, "data.val", "AIME24 and AIME25", "[aime-2024.parquet, aime-2025.parquet]",
     PAPER_E, "the user's files"},
    {NULL, "data.unique", "not said", "true", "-",
     "files that hold a problem 32 times give it once, and 32 answers to it"},
    {NULL, "data.max_prompt_tokens", "1024", NULL, PAPER_E, NULL},
    {NULL, "data.overlong", "not said", "drop", "-",
     "longer prompts are left out and counted"},
    {"*-8b *-lora", "rollout.prompts", "128", NULL, PAPER_E, NULL},
    {"*-8b *-lora", "rollout.samples", "8", NULL, PAPER_E, NULL},
    {"*-8b *-lora", "rollout.max_tokens", "8000", NULL, PAPER_E, NULL},
    {"*-8b", "train.updates_per_step", "4", NULL, PAPER_E, "mini-batches of 32 prompts"},
    {"*-8b", "train.steps", "1400", NULL, PAPER_E, "the steps that are shown"},
    {"*-8b *-lora", "eval.every", "10", NULL, PAPER_E, NULL},
    {"*-30b *-r3", "rollout.prompts", "256", NULL, PAPER_E, NULL},
    {"*-30b *-r3", "rollout.samples", "16", NULL, PAPER_E, NULL},
    {"*-30b *-r3", "rollout.max_tokens", "16384", NULL, PAPER_E, NULL},
    {"*-30b *-r3", "train.updates_per_step", "8", NULL, PAPER_E,
     "mini-batches of 32 prompts"},
    {"*-30b *-r3", "train.steps", "200", NULL, PAPER_E, "the steps that are shown"},
    {"*-30b *-r3", "eval.every", "5", NULL, PAPER_E, NULL},
    {"*-lora", "train.updates_per_step", "8", NULL, PAPER_E,
     "mini-batches of 16 prompts"},
    {"*-lora", "train.steps", "900", NULL, PAPER_E, "the steps that are shown"},
    {"*-lora", "lora.rank", "32", NULL, PAPER_E, NULL},
    {"*-lora", "lora.alpha", "64", NULL, PAPER_E, NULL},
    {"*-lora", "lora.rslora", "false", NULL, YAML, NULL},
    {"*-lora", "lora.targets", "all-linear", NULL, YAML,
     "router and experts among them; no bias, no dropout"},
    {NULL, "train.old_logp", "sampled", NULL, "paper, Section 5.2",
     "the region is around the sampler"},
    {"dppo-binary-tv-*", "algo.surrogate", "dppo-binary-tv", NULL, PAPER_C, NULL},
    {"dppo-binary-kl-*", "algo.surrogate", "dppo-binary-kl", NULL, PAPER_C, NULL},
    {"dppo-topk-tv-*", "algo.surrogate", "dppo-topk-tv", NULL, PAPER_C, NULL},
    {"dppo-topk-kl-*", "algo.surrogate", "dppo-topk-kl", NULL, PAPER_C, NULL},
    {"pg-tis-*", "algo.surrogate", "pg-is", NULL, PAPER_C " (CISPO)", NULL},
    {"grpo-*", "algo.surrogate", "ratio-mask", NULL, PAPER_C, NULL},
    {"dppo-*-tv-8b dppo-*-tv-30b dppo-*-tv-30b-r3", "algo.delta_low", "0.2", NULL,
     PAPER_E, NULL},
    {"dppo-*-tv-*-lora", "algo.delta_low", "0.15", NULL, PAPER_E, NULL},
    {"dppo-*-tv-8b dppo-*-tv-30b dppo-*-tv-30b-r3", "algo.delta_high", "0.2", NULL,
     PAPER_E, NULL},
    {"dppo-*-tv-*-lora", "algo.delta_high", "0.15", NULL, PAPER_E, NULL},
    {"dppo-*-kl-*", "algo.delta_low", "0.05", NULL, PAPER_E, NULL},
    {"dppo-*-kl-*", "algo.delta_high", "0.05", NULL, PAPER_E, NULL},
    {"dppo-topk-*", "algo.top_k", "20", NULL, PAPER_E, NULL},
    {NULL, "algo.truncate", "5", NULL, PAPER_E, NULL},
    {"grpo-*", "algo.clip_low", "0.2", NULL, PAPER_E, NULL},
    {"grpo-*", "algo.clip_high", "0.27", NULL, PAPER_E, NULL},
    {NULL, "algo.aggregate", "token-mean", NULL, YAML, NULL},
    {"*-8b *-30b *-r3", "optim.lr", "1e-6", NULL, PAPER_E, NULL},
    {"*-lora", "optim.lr", "1e-5", NULL, PAPER_E, NULL},
    {NULL, "eval.at_start", "true", NULL, YAML, NULL},
    {NULL, "eval.problems", "all", "200", PAPER_E, "a bound: all 30 and 30"},
    {NULL, "eval.samples", "32", NULL, PAPER_E, NULL},
    {NULL, "eval.temperature", "0.7", NULL, PAPER_E, NULL},
    {NULL, "eval.top_p", "0.95", NULL, PAPER_E, NULL},
    {NULL, "checkpoint.every", "not said", "10", "-", "a choice"},
    {NULL, "checkpoint.keep", "not said", "2", "-", "a choice"},
    {SUITE_D, "defaults.task", "math", NULL, REWARD, NULL},
    {SUITE_D, "defaults.grader", "dapo", NULL, REWARD, NULL},
    {SUITE_D, "defaults.user_turn", "true", NULL, "verl/utils/dataset/rl_dataset.py",
     NULL},
    {SUITE_D, "defaults.unique", "not said", "true", "-",
     "files that hold a problem 32 times give it once, and 32 answers to it"},
    {SUITE_D, "defaults.template",
     "Solve the following math problem step by step. The last line of your response "
     "should be of the form Answer: $Answer (without quotes) where $Answer is the answer "
     "to the problem.\n\n{prompt}\n\nRemember to put your answer on its own line after "
     "\"Answer:\".",
     NULL, "BytedTsinghua-SIA/DAPO-Math-17k (its prompts)", NULL},
    {SUITE_D, "defaults.samples", "32", NULL, PAPER_E, NULL},
    {SUITE_D, "defaults.temperature", "0.7", NULL, PAPER_E, NULL},
    {SUITE_D, "defaults.top_p", "0.95", NULL, PAPER_E, NULL},
    {SUITE_D, "defaults.max_tokens", "16384", NULL, PAPER_E,
     "--max-tokens 8000 for Qwen3-8B-Base and for adapters"},
    {SUITE_D, "sets.aime24.expect", "30", NULL, PAPER_E, NULL},
    {SUITE_D, "sets.aime25.expect", "30", NULL, PAPER_E, NULL},
};

const struct kg_published_study kg_published_dppo = {
    "DPPO, scaling study",
    "Qi et al. 2026, arXiv 2602.04879. Code: sail-sg/Stable-RL at c6af1d1 (a fork of\n"
    "verl); no launch script is released, so sizes are the paper's and the rest are\n"
    "the defaults of that code. The runs of mixture-of-experts thinking, of other\n"
    "tasks and of RLHF are not listed.",
    dppo_runs,
    KG_COUNT(dppo_runs),
    dppo_rows,
    KG_COUNT(dppo_rows),
};

/* ---- stability study ---- */

#define STABLE "recipes/dppo-stability.yaml"
#define SANITY "sail-sg/Precision-RL, oat/scripts/sanity/"
#define MAIN   "sail-sg/Precision-RL, oat/main.py (r1_distill_qwen)"

static const struct kg_published_run stability_runs[] = {
    {"dppo-binary-tv-stability", STABLE, NULL, "dppo-binary-tv-stability", NULL},
    RUN("dppo-binary-kl-stability", STABLE),
    RUN("dppo-mask-delta-stability", STABLE),
    RUN("pg-is-stability", STABLE),
    RUN("pg-tis-stability", STABLE),
    RUN("grpo-clip-higher-stability", STABLE),
    RUN("minirl-stability", STABLE),
    RUN("minirl-tis-stability", STABLE),
};

static const struct kg_published_row stability_rows[] = {
    COMMON_ROWS(SANITY),
    {NULL, "data.template",
     "{prompt} Please reason step by step, and put your final answer within "
     "\\boxed{}.\n",
     NULL, MAIN, "of the sanity test; the paper prints no prompt"},
    {NULL, "(first prompt)",
     "<｜begin▁of▁sentence｜><｜User｜>{question} "
     "Please reason step by step, and put your final answer within \\boxed{}.\n"
     "<｜Assistant｜><think>\n",
     NULL, MAIN, NULL},
    {NULL, "data.user_turn", "true", NULL, MAIN, NULL},
    {NULL, "data.system", "", NULL, MAIN, NULL},
    {NULL, "data.opening", "<think>\n", NULL, MAIN, NULL},
    {NULL, "data.chat_template", "auto", NULL, MAIN,
     "there the text that the model's template writes"},
    {NULL, "data.add_special", "auto", NULL, MAIN, "the template has the BOS"},
    {NULL, "model.path", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
     "models/DeepSeek-R1-Distill-Qwen-1.5B", PAPER_C, "where the user keeps it"},
    {NULL, "model.dtype", "bf16", "auto", PAPER_C,
     "bf16 products; master weights are fp32 in both"},
    {NULL, "task.grader", "not said", "default", "-",
     "the answer stands in the last box; the sanity test has a grader of oat"},
    {NULL, "task.wrong_reward", "0", NULL, SANITY, NULL},
    {NULL, "task.undecided", "wrong", NULL, SANITY, NULL},
    {NULL, "data.train", "1,460 problems of MATH that the start can solve",
     "sanity-test-r1d-1.5b.parquet", PAPER_C,
     "sail/Sanity-Test-R1D-1.5B at HuggingFace; the user's file"},
    {NULL, "data.val", "AIME", "[aime24.jsonl]", PAPER_C, "the user's file"},
    {NULL, "data.unique", "not said", "true", "-",
     "files that hold a problem 32 times give it once, and 32 answers to it"},
    {NULL, "data.max_prompt_tokens", "1024", NULL, SANITY, NULL},
    {NULL, "data.overlong", "not said", "drop", "-",
     "longer prompts are left out and counted"},
    {NULL, "rollout.prompts", "64", NULL, PAPER_C, NULL},
    {NULL, "rollout.samples", "8", NULL, PAPER_C, NULL},
    {NULL, "rollout.max_tokens", "context of 8,000", "8000", PAPER_C,
     "read as 8,000 of the answer"},
    {NULL, "train.updates_per_step", "4", NULL, PAPER_C, "16 questions each"},
    {NULL, "train.steps", "about 3,500 shown", "3500", "paper, Figure 3",
     "read off the figure"},
    {"dppo-* pg-* grpo-*", "train.old_logp", "sampled", NULL, "paper, Section 5.2",
     "the region is around the sampler"},
    {"minirl-*", "train.old_logp", "recompute", NULL, PAPER_C, NULL},
    {"dppo-binary-tv-*", "algo.surrogate", "dppo-binary-tv", NULL, PAPER_C, NULL},
    {"dppo-binary-kl-*", "algo.surrogate", "dppo-binary-kl", NULL, PAPER_C, NULL},
    {"pg-*", "algo.surrogate", "pg-is", NULL, PAPER_C, NULL},
    {"grpo-*", "algo.surrogate", "ratio-mask", NULL, PAPER_C, NULL},
    {"minirl-*", "algo.surrogate", "minirl", NULL, PAPER_C, NULL},
    {"dppo-mask-delta-*", "algo.surrogate",
     "M = 0 where A < 0 and mu - pi >= delta, else 1", "dppo-binary-tv", PAPER_C,
     "the same but for equality, as no probability is more than 1 above another"},
    {"dppo-mask-delta-*", "algo.delta_low", "0.5", NULL, "paper, Section 5.3",
     "0.8 does not stabilise there"},
    {"dppo-mask-delta-*", "algo.delta_high", "none", "1", PAPER_C,
     "where A > 0 nothing is dropped"},
    {"dppo-binary-tv-*", "algo.delta_low", "0.15", NULL, PAPER_C, NULL},
    {"dppo-binary-tv-*", "algo.delta_high", "0.15", NULL, PAPER_C, NULL},
    {"dppo-binary-kl-*", "algo.delta_low", "0.05", NULL, PAPER_C, NULL},
    {"dppo-binary-kl-*", "algo.delta_high", "0.05", NULL, PAPER_C, NULL},
    {"dppo-* pg-is-* grpo-* minirl-stability", "algo.truncate", "0", NULL, PAPER_C,
     "no bound"},
    {"pg-tis-* minirl-tis-*", "algo.truncate", "3", NULL, PAPER_C, NULL},
    {"grpo-* minirl-*", "algo.clip_low", "0.2", NULL, PAPER_C, NULL},
    {"grpo-* minirl-*", "algo.clip_high", "0.28", NULL, PAPER_C, NULL},
    {NULL, "algo.aggregate", "not said", "token-mean", YAML,
     "the default of the released code"},
    {NULL, "optim.lr", "1e-6", NULL, SANITY, "the paper says of the order of 1e-6"},
    {NULL, "eval.every", "16", NULL, SANITY, NULL},
    {NULL, "eval.at_start", "not said", "true", "-", "a choice"},
    {NULL, "eval.problems", "all 30", "200", PAPER_C, "a bound: all 30"},
    {NULL, "eval.samples", "32", NULL, PAPER_C, NULL},
    {NULL, "eval.temperature", "0.6", NULL, SANITY, NULL},
    {NULL, "eval.top_p", "0.95", NULL, SANITY, NULL},
    {NULL, "checkpoint.every", "not said", "50", "-", "a choice"},
    {NULL, "checkpoint.keep", "not said", "2", "-", "a choice"},
};

const struct kg_published_study kg_published_stability = {
    "DPPO, stability study",
    "Qi et al. 2026, arXiv 2602.04879, Appendix C, with the problems of the sanity\n"
    "test in the same group's sail-sg/Precision-RL (arXiv 2510.26788).",
    stability_runs,
    KG_COUNT(stability_runs),
    stability_rows,
    KG_COUNT(stability_rows),
};

/* ---- verl's example ---- */

#define VERL   "recipes/dppo-verl.yaml"
#define SCRIPT "run_qwen30b_dppo.sh"
#define VYAML  "verl/trainer/config/ppo_megatron_trainer.yaml (default)"

static const struct kg_published_run verl_runs[] = {
    {"dppo-binary-tv-verl", VERL, NULL, "dppo-binary-tv-verl", NULL},
    RUN("dppo-binary-kl-verl", VERL),
};

static const struct kg_published_row verl_rows[] = {
    COMMON_ROWS(VYAML),
    MESSAGE_ROWS,
    {"*", "(first prompt)",
     "<|im_start|>user\n"
     "Solve the following math problem step by step. The last line of your response "
     "should be of the form Answer: $Answer (without quotes) where $Answer is the answer "
     "to the problem.\n\n{question}\n\nRemember to put your answer on its own line after "
     "\"Answer:\".<|im_end|>\n<|im_start|>assistant\n",
     NULL, "BytedTsinghua-SIA/DAPO-Math-17k (its prompts)",
     "rendered with the template of Qwen3"},
    {NULL, "model.path", "Qwen/Qwen3-30B-A3B-Base", "models/Qwen3-30B-A3B-Base", SCRIPT,
     "where the user keeps it"},
    {NULL, "model.dtype", "bf16", "auto", VYAML,
     "bf16 products; master weights are fp32 in both"},
    {NULL, "task.grader", "dapo", NULL, REWARD, NULL},
    {NULL, "task.wrong_reward", "-1", NULL, REWARD, NULL},
    {NULL, "task.undecided", "wrong", NULL, REWARD, NULL},
    {NULL, "data.train", "BytedTsinghua-SIA/DAPO-Math-17k", "dapo-math-17k.parquet",
     SCRIPT, "the user's file"},
    {NULL, "data.val", "BytedTsinghua-SIA/AIME-2024", "aime-2024.parquet", SCRIPT,
     "the user's file"},
    {NULL, "data.unique", "each problem stands 32 times in its file", "true", SCRIPT,
     "each once here, and 32 answers to it"},
    {NULL, "data.max_prompt_tokens", "2048", NULL, SCRIPT, NULL},
    {NULL, "data.overlong", "error", "drop", SCRIPT " (data.truncation)",
     "longer prompts are left out and counted"},
    {NULL, "rollout.prompts", "256", NULL, SCRIPT, NULL},
    {NULL, "rollout.samples", "16", NULL, SCRIPT, NULL},
    {NULL, "rollout.max_tokens", "8192", NULL, SCRIPT, NULL},
    {NULL, "train.updates_per_step", "8", NULL, SCRIPT, "mini-batches of 32 prompts"},
    {NULL, "train.steps", "500", NULL, SCRIPT,
     "total_training_steps; the script of today has 10 epochs in its place"},
    {NULL, "train.old_logp", "sampled", NULL, SCRIPT " (bypass_mode)", NULL},
    {"*-tv-*", "algo.surrogate", "dppo-binary-tv", NULL, SCRIPT " (dppo_tv)", NULL},
    {"*-kl-*", "algo.surrogate", "dppo-binary-kl", NULL, SCRIPT " (dppo_kl)", NULL},
    {"*-tv-*", "algo.delta_low", "0.15", NULL, SCRIPT, "0.20 in the paper's main runs"},
    {"*-tv-*", "algo.delta_high", "0.15", NULL, SCRIPT, "0.20 in the paper's main runs"},
    {"*-kl-*", "algo.delta_low", "0.05", NULL, SCRIPT, NULL},
    {"*-kl-*", "algo.delta_high", "0.05", NULL, SCRIPT, NULL},
    {NULL, "algo.truncate", "10000", "0", SCRIPT " (clip_ratio_c)",
     "no bound; ratios of 10,000 are not met"},
    {NULL, "algo.aggregate", "seq-mean-token-sum-norm", "seq-mean-token-norm", SCRIPT,
     "kedge's name for the trainer's result: micro-batches are weighted by their "
     "completions, a mean over those of the update"},
    {NULL, "algo.length_norm", "8192", NULL, CODE ":agg_loss",
     "the padded length of an answer"},
    {NULL, "optim.lr", "1e-6", NULL, SCRIPT, NULL},
    {NULL, "eval.every", "10", NULL, SCRIPT, NULL},
    {NULL, "eval.at_start", "false", NULL, SCRIPT, NULL},
    {NULL, "eval.problems", "all 30", "200", SCRIPT, "a bound: all 30"},
    {NULL, "eval.samples", "32", NULL, SCRIPT " (n 1, the file has each 32 times)", NULL},
    {NULL, "eval.temperature", "1", NULL, SCRIPT, NULL},
    {NULL, "eval.top_p", "1", NULL, SCRIPT, NULL},
    {NULL, "checkpoint.every", "never", "50", SCRIPT " (save_freq -1)",
     "50 in the script of today"},
    {NULL, "checkpoint.keep", "all", "2", VYAML, "the two newest"},
};

const struct kg_published_study kg_published_verl = {
    "DPPO, verl's example",
    "Code: verl-project/verl at 8f11888, `examples/dppo_trainer/run_qwen30b_dppo.sh`,\n"
    "the first version of the script (25 February 2026). The current one is\n"
    "`run_qwen3_30b_a3b_megatron.sh`; notes name the differences.",
    verl_runs,
    KG_COUNT(verl_runs),
    verl_rows,
    KG_COUNT(verl_rows),
};
