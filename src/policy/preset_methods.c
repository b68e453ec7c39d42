/* Methods: what makes an algorithm, and nothing of a run's size.
 *
 * Values that a method shares with the defaults are given where its authors give them, so
 * that a change of a default cannot change a method.
 */
#include "policy/presets_internal.h"

KG_VALUES grpo[] = {
    {"algo.advantage", "grpo"},
    {"algo.surrogate", "ppo-clip"},
    {"algo.clip_low", "0.2"},
    {"algo.clip_high", "0.2"},
    {"algo.aggregate", "seq-mean-token-mean"},
    {"kl.estimator", "k3"},
    {"kl.beta", "0.001"},
    {"kl.importance", "false"},
    {"anchor.kind", "fixed"},
    KG_END,
};
KG_VALUES ema_pg[] = {
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
    KG_END,
};
KG_VALUES ema_pg_published[] = {
    {"algo.ratio_clamp", "0"},
    {"kl.gradient", "published"},
    KG_END,
};
KG_VALUES ema_pg_math[] = {
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
    KG_END,
};
KG_VALUES dapo[] = {
    {"rollout.dynamic", "true"},      {"rollout.dynamic_metric", "accuracy"},
    {"algo.advantage", "grpo"},       {"algo.surrogate", "ppo-clip"},
    {"algo.clip_low", "0.2"},         {"algo.clip_high", "0.28"},
    {"algo.aggregate", "token-mean"}, {"kl.estimator", "none"},
    {"anchor.kind", "none"},          KG_END,
};
KG_VALUES dr_grpo[] = {
    {"algo.advantage", "dr-grpo"},
    {"algo.surrogate", "ppo-clip"},
    {"algo.clip_low", "0.2"},
    {"algo.clip_high", "0.2"},
    {"algo.aggregate", "seq-mean-token-sum-norm"},
    {"kl.estimator", "none"},
    {"anchor.kind", "none"},
    KG_END,
};
KG_VALUES reinforcepp[] = {
    {"algo.advantage", "reinforce++"},
    {"algo.surrogate", "ppo-clip"},
    {"algo.clip_low", "0.2"},
    {"algo.clip_high", "0.2"},
    {"algo.aggregate", "token-mean"},
    {"algo.gamma", "1"},
    {"kl.in", "reward"},
    {"kl.estimator", "k1"},
    {"kl.beta", "0.001"},
    {"anchor.kind", "fixed"},
    KG_END,
};
KG_VALUES reinforcepp_baseline[] = {
    {"algo.advantage", "reinforce++-baseline"},
    {"algo.surrogate", "ppo-clip"},
    {"algo.clip_low", "0.2"},
    {"algo.clip_high", "0.2"},
    {"algo.aggregate", "token-mean"},
    {"kl.estimator", "k2"},
    {"kl.beta", "0.001"},
    {"kl.importance", "false"},
    {"anchor.kind", "fixed"},
    KG_END,
};
KG_VALUES rloo[] = {
    {"algo.advantage", "rloo"},
    {"algo.surrogate", "reinforce"},
    {"algo.aggregate", "seq-mean-token-sum"},
    {"kl.estimator", "none"},
    {"anchor.kind", "none"},
    KG_END,
};
KG_VALUES gspo[] = {
    {"algo.advantage", "grpo"},
    {"algo.surrogate", "gspo"},
    {"algo.clip_low", "0.0003"},
    {"algo.clip_high", "0.0004"},
    {"algo.aggregate", "seq-mean-token-mean"},
    {"kl.estimator", "none"},
    {"anchor.kind", "none"},
    KG_END,
};
KG_VALUES cispo[] = {
    {"algo.advantage", "grpo"},       {"algo.surrogate", "cispo"},
    {"algo.clip_low", "1"},           {"algo.clip_high", "4"},
    {"algo.aggregate", "token-mean"}, {"kl.estimator", "none"},
    {"anchor.kind", "none"},          KG_END,
};
KG_VALUES tis[] = {
    {"algo.advantage", "grpo"},
    {"algo.surrogate", "ppo-clip"},
    {"algo.clip_low", "0.2"},
    {"algo.clip_high", "0.2"},
    {"algo.aggregate", "token-mean"},
    {"algo.tis", "2"},
    {"algo.tis_level", "token"},
    {"train.old_logp", "recompute"},
    {"kl.estimator", "none"},
    {"anchor.kind", "none"},
    KG_END,
};
KG_VALUES icepop[] = {
    {"algo.advantage", "grpo"},
    {"algo.surrogate", "ppo-clip"},
    {"algo.clip_low", "0.2"},
    {"algo.clip_high", "0.2"},
    {"algo.aggregate", "token-mean"},
    {"algo.mask", "icepop"},
    {"algo.tis", "5"},
    {"algo.tis_low", "0.5"},
    {"algo.tis_level", "token"},
    {"train.old_logp", "recompute"},
    {"kl.estimator", "none"},
    {"anchor.kind", "none"},
    KG_END,
};
KG_VALUES opsm[] = {
    {"algo.advantage", "grpo"},
    {"algo.surrogate", "ppo-clip"},
    {"algo.clip_low", "0.2"},
    {"algo.clip_high", "0.2"},
    {"algo.aggregate", "seq-mean-token-mean"},
    {"algo.mask", "off-policy"},
    {"algo.mask_delta", "0.0001"},
    {"kl.estimator", "none"},
    {"anchor.kind", "none"},
    KG_END,
};
KG_VALUES maxrl[] = {
    {"algo.advantage", "maxrl"},      {"algo.surrogate", "ppo-clip"},
    {"algo.clip_low", "0.2"},         {"algo.clip_high", "0.2"},
    {"algo.aggregate", "token-mean"}, {"kl.estimator", "none"},
    {"anchor.kind", "none"},          KG_END,
};
KG_VALUES gdpo[] = {
    {"algo.advantage", "gdpo"},       {"algo.surrogate", "ppo-clip"},
    {"algo.clip_low", "0.2"},         {"algo.clip_high", "0.2"},
    {"algo.aggregate", "token-mean"}, {"kl.estimator", "none"},
    {"anchor.kind", "none"},          KG_END,
};
KG_VALUES ipo[] = {
    {"algo.advantage", "dr-grpo"},
    {"algo.surrogate", "ipo"},
    {"algo.delta_low", "0.1"},
    {"algo.delta_high", "0.1"},
    {"algo.aggregate", "token-mean"},
    {"kl.estimator", "none"},
    {"kl.beta", "0.001"},
    {"anchor.kind", "none"},
    KG_END,
};
/* tau (log r)^2 is twice tau times K2 to the policy that sampled. */
KG_VALUES prime_rl[] = {
    {"algo.advantage", "dr-grpo"},
    {"algo.surrogate", "dppo-binary-tv"},
    {"algo.delta_low", "0.2"},
    {"algo.delta_high", "0.2"},
    {"algo.truncate", "0"},
    {"algo.aggregate", "token-mean"},
    {"kl.estimator", "k2"},
    {"kl.beta", "0.002"},
    {"kl.importance", "false"},
    {"anchor.kind", "iterative"},
    KG_END,
};
KG_VALUES remax[] = {
    {"algo.advantage", "remax"},
    {"algo.surrogate", "reinforce"},
    {"algo.aggregate", "seq-mean-token-sum"},
    {"kl.estimator", "none"},
    {"anchor.kind", "none"},
    KG_END,
};
KG_VALUES opo[] = {
    {"algo.advantage", "opo"},
    {"algo.surrogate", "reinforce"},
    {"algo.aggregate", "seq-mean-token-sum"},
    {"train.updates_per_step", "1"},
    {"kl.estimator", "none"},
    {"anchor.kind", "none"},
    KG_END,
};
KG_VALUES gpg[] = {
    {"algo.advantage", "gpg"},
    {"algo.surrogate", "gpg"},
    {"algo.gpg_norm", "1"},
    {"algo.aggregate", "token-mean"},
    {"kl.estimator", "none"},
    {"anchor.kind", "none"},
    KG_END,
};
KG_VALUES gmpo[] = {
    {"algo.advantage", "grpo"},
    {"algo.surrogate", "gmpo"},
    {"algo.clip_low", "0.4"},
    {"algo.clip_high", "0.4"},
    {"algo.aggregate", "seq-mean-token-mean"},
    {"kl.estimator", "none"},
    {"anchor.kind", "none"},
    KG_END,
};
KG_VALUES sapo[] = {
    {"algo.advantage", "grpo"},
    {"algo.surrogate", "sapo"},
    {"algo.tau_pos", "1"},
    {"algo.tau_neg", "1.05"},
    {"algo.aggregate", "seq-mean-token-mean"},
    {"kl.estimator", "none"},
    {"anchor.kind", "none"},
    KG_END,
};
KG_VALUES pass_at_k[] = {
    {"algo.advantage", "passk-std"},  {"algo.surrogate", "ppo-clip"},
    {"algo.clip_low", "0.2"},         {"algo.clip_high", "0.2"},
    {"algo.aggregate", "token-mean"}, {"kl.estimator", "none"},
    {"anchor.kind", "none"},          KG_END,
};
KG_VALUES dppo_binary_tv[] = {
    {"algo.advantage", "dr-grpo"},
    {"algo.surrogate", "dppo-binary-tv"},
    {"algo.delta_low", "0.2"},
    {"algo.delta_high", "0.2"},
    {"algo.truncate", "5"},
    {"algo.aggregate", "token-mean"},
    {"kl.estimator", "none"},
    {"anchor.kind", "none"},
    KG_END,
};
KG_VALUES dppo_binary_kl[] = {
    {"algo.surrogate", "dppo-binary-kl"},
    {"algo.delta_low", "0.05"},
    {"algo.delta_high", "0.05"},
    KG_END,
};
KG_VALUES dppo_topk_tv[] = {
    {"algo.surrogate", "dppo-topk-tv"},
    {"algo.top_k", "20"},
    KG_END,
};
KG_VALUES dppo_topk_kl[] = {
    {"algo.surrogate", "dppo-topk-kl"},
    {"algo.delta_low", "0.05"},
    {"algo.delta_high", "0.05"},
    KG_END,
};
KG_VALUES pg_is[] = {
    {"algo.advantage", "dr-grpo"},
    {"algo.surrogate", "pg-is"},
    {"algo.truncate", "0"},
    {"algo.aggregate", "token-mean"},
    {"kl.estimator", "none"},
    {"anchor.kind", "none"},
    KG_END,
};
KG_VALUES pg_tis[] = {
    {"algo.truncate", "5"},
    KG_END,
};
KG_VALUES grpo_clip_higher[] = {
    {"algo.advantage", "dr-grpo"},
    {"algo.surrogate", "ratio-mask"},
    {"algo.clip_low", "0.2"},
    {"algo.clip_high", "0.28"},
    {"algo.truncate", "0"},
    {"algo.aggregate", "token-mean"},
    {"kl.estimator", "none"},
    {"anchor.kind", "none"},
    KG_END,
};
KG_VALUES minirl[] = {
    {"algo.surrogate", "minirl"},
    {"train.old_logp", "recompute"},
    KG_END,
};
KG_VALUES minirl_tis[] = {
    {"algo.truncate", "3"},
    KG_END,
};
KG_VALUES rpg_fkl[] = {
    {"algo.surrogate", "rpg-fkl"}, {"algo.advantage", "rpg"},
    {"algo.clip_low", "0.2"},      {"algo.clip_high", "0.28"},
    {"algo.dual_clip", "10"},      {"algo.aggregate", "token-mean"},
    {"kl.estimator", "none"},      {"kl.beta", "0.0001"},
    {"anchor.kind", "none"},       KG_END,
};
KG_VALUES rpg_rkl[] = {
    {"algo.surrogate", "rpg-rkl"},
    KG_END,
};
KG_VALUES rpg_ufkl[] = {
    {"algo.surrogate", "rpg-ufkl"},
    KG_END,
};
KG_VALUES rpg_urkl[] = {
    {"algo.surrogate", "rpg-urkl"},
    KG_END,
};
KG_VALUES rpg_reinforce_fkl[] = {
    {"algo.surrogate", "rpg-reinforce-fkl"},
    KG_END,
};
KG_VALUES rpg_reinforce_rkl[] = {
    {"algo.surrogate", "rpg-reinforce-rkl"},
    KG_END,
};
KG_VALUES rpg_reinforce_ufkl[] = {
    {"algo.surrogate", "rpg-reinforce-ufkl"},
    KG_END,
};
KG_VALUES rpg_reinforce_urkl[] = {
    {"algo.surrogate", "rpg-reinforce-urkl"},
    KG_END,
};
KG_VALUES rpg_released_reinforce[] = {
    {"algo.advantage", "rpg"},        {"algo.surrogate", "ppo-clip"},
    {"algo.clip_low", "0.2"},         {"algo.clip_high", "0.28"},
    {"algo.dual_clip", "10"},         {"algo.ratio_clamp", "0"},
    {"algo.aggregate", "token-mean"}, {"kl.estimator", "none"},
    {"anchor.kind", "none"},          KG_END,
};
KG_VALUES rpg_released_fkl[] = {
    {"kl.estimator", "rpg-fkl"},
    {"kl.beta", "0.0001"},
    {"kl.importance", "false"},
    {"anchor.kind", "iterative"},
    KG_END,
};
KG_VALUES rpg_released_rkl[] = {
    {"kl.estimator", "rpg-rkl"},
    KG_END,
};
KG_VALUES rpg_released_ufkl[] = {
    {"kl.estimator", "rpg-ufkl"},
    KG_END,
};
KG_VALUES rpg_released_urkl[] = {
    {"kl.estimator", "rpg-urkl"},
    KG_END,
};
KG_VALUES rpg_released_js[] = {
    {"kl.estimator", "jeffreys-released"},
    KG_END,
};
KG_VALUES rpg_released_ujs[] = {
    {"kl.estimator", "jeffreys"},
    KG_END,
};
KG_VALUES distill_reverse[] = {
    {"algo.advantage", "batch-mean"},
    {"algo.surrogate", "none"},
    {"algo.aggregate", "token-mean"},
    {"kl.estimator", "topk-reverse"},
    {"kl.beta", "1"},
    {"kl.top_k", "32"},
    {"kl.tail", "true"},
    {"kl.gradient", "corrected"},
    {"kl.importance", "true"},
    {"anchor.kind", "fixed"},
    KG_END,
};
KG_VALUES distill_forward[] = {
    {"kl.estimator", "topk-forward"},
    KG_END,
};
KG_VALUES distill_offline[] = {
    {"kl.tail", "false"},
    KG_END,
};

#define METHOD KG_PRESET_METHOD
static const struct kg_preset rows[] = {
    {"grpo", METHOD, NULL, "group advantages, PPO clip, K3 to the initial weights",
     "Shao et al. 2024, arXiv 2402.03300", grpo},
    {"ema-pg", METHOD, NULL,
     "EMA anchor and Top-k reverse KL with tail, corrected gradient", KG_EMA_PAPER,
     ema_pg},
    {"ema-pg-published", METHOD, "ema-pg",
     "ema-pg with the published gradient of the Top-k KL, and no clamp of the ratio",
     KG_EMA_PAPER, ema_pg_published},
    {"ema-pg-math", METHOD, NULL,
     "as released for mathematics: EMA anchor and K3, no Top-k", KG_EMA_PAPER,
     ema_pg_math},
    {"dapo", METHOD, NULL, "clip-higher, token mean, dynamic sampling, no KL",
     "Yu et al. 2025, arXiv 2503.14476", dapo},
    {"dr-grpo", METHOD, NULL,
     "no deviation, no length of the answer: sums over a constant (algo.length_norm)",
     "Liu et al. 2025, arXiv 2503.20783", dr_grpo},
    {"reinforce++", METHOD, NULL,
     "returns less K1 to the initial weights, whitened over the batch; PPO clip",
     "Hu 2025, arXiv 2501.03262", reinforcepp},
    {"reinforce++-baseline", METHOD, NULL,
     "group mean, whitened over the batch; K2 in the loss", "Hu 2025, arXiv 2501.03262",
     reinforcepp_baseline},
    {"rloo", METHOD, NULL, "leave-one-out baseline, plain score function",
     "Ahmadian et al. 2024, arXiv 2402.14740", rloo},
    {"gspo", METHOD, NULL, "sequence ratio, clipped per sequence",
     "Zheng et al. 2025, arXiv 2507.18071", gspo},
    {"cispo", METHOD, NULL, "clipped ratio as a weight; no token is dropped",
     "MiniMax 2025, arXiv 2506.13585", cispo},
    {"tis", METHOD, NULL,
     "PPO clip on recomputed log-probs, weighted by min(old / sampler, 2)",
     "Yao et al. 2025, Your efficient RL framework secretly brings you off-policy RL",
     tis},
    {"icepop", METHOD, NULL,
     "PPO clip on recomputed log-probs; tokens whose weight old / sampler leaves 0.5 .. "
     "5 "
     "are dropped",
     "Ling Team 2025, arXiv 2510.18855; bounds of verl and NeMo-RL", icepop},
    {"opsm", METHOD, NULL,
     "grpo without a KL and without completions of A < 0 that the policy has moved away "
     "from",
     "DeepSeek-AI 2025, arXiv 2512.02556; delta of slime", opsm},
    {"maxrl", METHOD, NULL,
     "group mean, divided by it: maximum likelihood of a right answer",
     "Tajwar et al. 2026, arXiv 2602.02710; SkyRL, examples/train/algorithms/maxrl",
     maxrl},
    {"gdpo", METHOD, NULL,
     "of several rewards (task.rewards): each normalised by itself before their sum",
     "Liu et al. 2026, arXiv 2601.05242", gdpo},
    {"ipo", METHOD, NULL,
     "masked where |mu - p| passes 0.1, a squared log-ratio to the sampler",
     "prime-rl, loss type ipo", ipo},
    {"prime-rl", METHOD, NULL,
     "dppo-binary-tv with a squared log-ratio to the sampler: prime-rl's default loss",
     "prime-rl, loss type default", prime_rl},
    {"remax", METHOD, NULL,
     "the reward of the greedy answer as baseline, plain score function",
     "Li et al. 2023, arXiv 2310.10505", remax},
    {"opo", METHOD, NULL, "length-weighted baseline, exactly on-policy, no KL",
     "Hao et al. 2025, arXiv 2505.23585", opo},
    {"gpg", METHOD, NULL,
     "plain score function, advantages scaled by the share of answers with reward",
     "Chu et al. 2025, arXiv 2504.02546", gpg},
    {"gmpo", METHOD, NULL, "geometric mean of token ratios, clipped in log space",
     "Zhao et al. 2025, arXiv 2507.20673", gmpo},
    {"sapo", METHOD, NULL, "a soft gate instead of a clip",
     "Gao et al. 2025, arXiv 2511.20347", sapo},
    {"pass@k", METHOD, NULL,
     "the best answer of a group alone, by its lead over the second",
     "Tang et al. 2025, arXiv 2503.19595", pass_at_k},
    {"dppo-binary-tv", METHOD, NULL,
     "trust region in total variation of the sampled token", KG_DPPO_PAPER,
     dppo_binary_tv},
    {"dppo-binary-kl", METHOD, "dppo-binary-tv",
     "trust region in the KL of the sampled token", KG_DPPO_PAPER, dppo_binary_kl},
    {"dppo-topk-tv", METHOD, "dppo-binary-tv",
     "trust region in total variation over the sampler's top 20", KG_DPPO_PAPER,
     dppo_topk_tv},
    {"dppo-topk-kl", METHOD, "dppo-topk-tv",
     "trust region in the KL over the sampler's top 20", KG_DPPO_PAPER, dppo_topk_kl},
    {"pg-is", METHOD, NULL, "ratio to the sampler, no trust region", KG_DPPO_PAPER,
     pg_is},
    {"pg-tis", METHOD, "pg-is",
     "pg-is with the ratio cut at 5 (CISPO in the terms of that paper)", KG_DPPO_PAPER,
     pg_tis},
    {"grpo-clip-higher", METHOD, NULL, "masks on the ratio to the sampler, 0.8 to 1.28",
     KG_DPPO_PAPER, grpo_clip_higher},
    {"minirl", METHOD, "grpo-clip-higher",
     "the same masks on the ratio to recomputed log-probs",
     "Zheng et al. 2025, arXiv 2512.01374", minirl},
    {"minirl-tis", METHOD, "minirl", "minirl with the ratio cut at 3",
     "Zheng et al. 2025, arXiv 2512.01374", minirl_tis},
    {"rpg-fkl", METHOD, NULL,
     "forward KL to the sampling policy, differentiable (Algorithm 1)", KG_RPG_PAPER,
     rpg_fkl},
    {"rpg-rkl", METHOD, "rpg-fkl", "reverse KL, differentiable (Algorithm 1)",
     KG_RPG_PAPER, rpg_rkl},
    {"rpg-ufkl", METHOD, "rpg-fkl",
     "unnormalised forward KL, differentiable (Algorithm 1)", KG_RPG_PAPER, rpg_ufkl},
    {"rpg-urkl", METHOD, "rpg-fkl",
     "unnormalised reverse KL, differentiable (Algorithm 1)", KG_RPG_PAPER, rpg_urkl},
    {"rpg-reinforce-fkl", METHOD, "rpg-fkl", "forward KL, score function (Algorithm 2)",
     KG_RPG_PAPER, rpg_reinforce_fkl},
    {"rpg-reinforce-rkl", METHOD, "rpg-rkl", "reverse KL, score function (Algorithm 2)",
     KG_RPG_PAPER, rpg_reinforce_rkl},
    {"rpg-reinforce-ufkl", METHOD, "rpg-ufkl",
     "unnormalised forward KL, score function (Algorithm 2)", KG_RPG_PAPER,
     rpg_reinforce_ufkl},
    {"rpg-reinforce-urkl", METHOD, "rpg-urkl",
     "unnormalised reverse KL, score function (Algorithm 2)", KG_RPG_PAPER,
     rpg_reinforce_urkl},
    {"rpg-released-reinforce", METHOD, NULL,
     "what the released score-function scripts compute: dual clip, group mean, no KL at "
     "all",
     KG_RPG_PAPER ", code", rpg_released_reinforce},
    {"rpg-released-fkl", METHOD, "rpg-released-reinforce",
     "what the released scripts compute: dual clip of the plain advantage, plus rpg_fkl",
     KG_RPG_PAPER ", code", rpg_released_fkl},
    {"rpg-released-rkl", METHOD, "rpg-released-fkl",
     "what the released scripts compute: dual clip of the plain advantage, plus rpg_rkl",
     KG_RPG_PAPER ", code", rpg_released_rkl},
    {"rpg-released-ufkl", METHOD, "rpg-released-fkl",
     "what the released scripts compute: dual clip of the plain advantage, plus rpg_ufkl",
     KG_RPG_PAPER ", code", rpg_released_ufkl},
    {"rpg-released-urkl", METHOD, "rpg-released-fkl",
     "what the released scripts compute: dual clip of the plain advantage, plus rpg_urkl",
     KG_RPG_PAPER ", code", rpg_released_urkl},
    {"rpg-released-js", METHOD, "rpg-released-fkl",
     "what the released scripts compute: dual clip of the plain advantage, plus rpg_js "
     "with the released sign",
     KG_RPG_PAPER ", code", rpg_released_js},
    {"rpg-released-ujs", METHOD, "rpg-released-fkl",
     "what the released scripts compute: dual clip of the plain advantage, plus rpg_ujs, "
     "half of the Jeffreys divergence",
     KG_RPG_PAPER ", code", rpg_released_ujs},
    {"distill-reverse", METHOD, NULL,
     "the teacher (anchor.path) by Top-k reverse KL on own answers",
     KG_EMA_PAPER ", sections on Top-k KL", distill_reverse},
    {"distill-forward", METHOD, "distill-reverse",
     "the teacher by Top-k forward KL on own answers, its largest ids",
     KG_EMA_PAPER ", sections on Top-k KL", distill_forward},
    {"distill-offline", METHOD, "distill-forward",
     "the teacher by truncated forward KL on given answers",
     KG_EMA_PAPER ", sections on Top-k KL", distill_offline},
};

struct kg_preset_table kg_preset_methods(void)
{
    return (struct kg_preset_table){rows, sizeof rows / sizeof rows[0]};
}
