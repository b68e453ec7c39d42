/* Option rows of training and the order in which a recipe is put together.
 *
 * Keys of algo, kl and anchor are those that policy/ reads; a preset is
 * weaker than anything the user wrote, wherever it was written.
 */
#include "recipe/options.h"

#include "policy/presets.h"
#include "task/wording.h"
#include "text/prompt.h"

#include <string.h>

static const struct kg_opt_row rows[] = {
    {"run.dir", KG_OPT_STRING, NULL, 0, 0, NULL,
     "folder of the run: logs, dumps, checkpoints", true},
    {"run.seed", KG_OPT_INT, "1", 0, 1e15, NULL, "seed of every random draw of the run",
     false},
    {"run.threads", KG_OPT_INT, "0", 0, 1024, NULL,
     "threads; 0 uses every core (results do not depend on it)", true},

    {"model.path", KG_OPT_STRING, NULL, 0, 0, NULL,
     "HuggingFace checkpoint folder to start from", false},
    {"model.dtype", KG_OPT_CHOICE, "auto", 0, 0, "auto|bf16|fp32",
     "type of product inputs; auto is bf16", false},

    {"init.from", KG_OPT_STRING, "", 0, 0, NULL,
     "run, or a checkpoint of one, that this run starts from (in the place of "
     "model.path)",
     false},
    {"init.parts", KG_OPT_LIST, "model", 0, 0, NULL,
     "what it takes from there: model, anchor, optimizer; with steps it goes on counting "
     "(steps, place in the data, schedule)",
     false},

    {"task.name", KG_OPT_CHOICE, "qa-number", 0, 0,
     "arithmetic|countdown|digits|qa-number|math|search-qa|none|external",
     "where problems come from and how answers are graded", false},
    {"task.level", KG_OPT_STRING, "", 0, 0, NULL,
     "difficulty of generated problems, such as easy or easy+hard", false},
    {"task.count", KG_OPT_INT, "20000", 1, 1e9, NULL, "generated training problems",
     false},
    {"task.val_count", KG_OPT_INT, "500", 1, 1e7, NULL, "generated held-out problems",
     false},
    {"task.command", KG_OPT_STRING, "", 0, 0, NULL,
     "external grader: command that reads and answers JSONL", false},
    {"task.life", KG_OPT_CHOICE, "auto", 0, 0, "auto|run|batch",
     "external grader: its program is started once a run, or for every batch; auto finds "
     "out which it is made for",
     true},
    {"task.env", KG_OPT_STRING, "", 0, 0, NULL,
     "external grader: names of environment variables that it gets besides PATH, HOME, "
     "the locale and the like, separated by commas",
     true},
    {"task.rewards", KG_OPT_LIST, "", 0, 0, NULL,
     "several rewards instead of the task's one: NAME=TASK or NAME=external COMMAND "
     "each; "
     "the first says what is correct",
     false},
    {"task.reward_weights", KG_OPT_LIST, "", 0, 0, NULL,
     "weight of each of task.rewards in their sum; empty: 1 each", false},
    {"task.grader", KG_OPT_CHOICE, "default", 0, 0, "default|ema-pg|mathd|dapo",
     "task math: how answers are graded (docs/grader.md)", false},
    {"task.wrong_reward", KG_OPT_REAL, "0", -1e6, 0.999999, NULL,
     "reward of a wrong answer, where a right one has 1 (published graders of "
     "mathematics: -1); one that is not graded has 0",
     false},
    {"task.keep_thinking", KG_OPT_BOOL, "false", 0, 0, NULL,
     "task math: an answer may stand before </think>", false},
    {"task.metric", KG_OPT_CHOICE, "em", 0, 0, "em|subem|f1|format",
     "task search-qa: what is rewarded (docs/grader.md)", false},
    {"task.answer_tags", KG_OPT_CHOICE, "1", 0, 0, "1|2",
     "task search-qa: pairs of answer tags that an answer needs, those of the prompt "
     "counted where it is 2",
     false},
    {"task.wording", KG_OPT_CHOICE, "kedge", 0, 0, KG_WORDING_CHOICES,
     "search agents: instruction around a question and remark on a wrong turn; "
     "search-r1: "
     "those of the published runs, word for word",
     false},
    {"task.format_structure", KG_OPT_REAL, "0.2", 0, 1, NULL,
     "metric format: score of a valid format without a right answer", false},
    {"task.format_final", KG_OPT_REAL, "0.1", 0, 1, NULL,
     "metric format: score of a wrong answer in no valid format", false},
    {"task.format_retrieval", KG_OPT_REAL, "0", 0, 1, NULL,
     "metric format: added where a gold answer was retrieved", false},
    {"task.exclude", KG_OPT_STRING, "", 0, 0, NULL,
     "task math: ids (else lines) of records to leave out, separated by commas; "
     "FILE:NAME "
     "is of that file alone",
     false},
    {"task.bad_golds", KG_OPT_CHOICE, "stop", 0, 0, "stop|drop",
     "task math: records whose gold answer does not grade itself right, which nobody can "
     "answer, stop the run, or are left out, named and counted",
     false},
    {"task.timeout_ms", KG_OPT_INT, "30000", 1, 3.6e6, NULL,
     "external grader: time limit of one batch", true},

    {"data.train", KG_OPT_LIST, "", 0, 0, NULL,
     "files of training problems (not for generated tasks): JSONL, JSON array, .gz or "
     ".zst of them, Parquet",
     false},
    {"data.weights", KG_OPT_LIST, "", 0, 0, NULL,
     "a whole number for each file of data.train: how many of every (sum) prompts are "
     "its own; empty: all files are shuffled into one",
     false},
    {"data.val", KG_OPT_LIST, "", 0, 0, NULL, "files of validation problems", false},
    {"data.unique", KG_OPT_BOOL, "false", 0, 0, NULL,
     "of the records of a file with equal prompt, gold answer and data_source the first "
     "alone (published validation files hold each problem 32 times)",
     false},
    {"data.prompt_key", KG_OPT_STRING, "", 0, 0, NULL,
     "column of the prompt; empty: verl's schema and usual names", false},
    {"data.answer_key", KG_OPT_STRING, "", 0, 0, NULL, "column of the answer", false},
    {"data.template", KG_OPT_STRING, "", 0, 0, NULL,
     "text around the problem; {prompt} is replaced", false},
    {"data.templates", KG_OPT_LIST, "", 0, 0, NULL,
     "the same for each file of data.train; {prompt} alone is the prompt as it is",
     false},
    {"data.val_templates", KG_OPT_LIST, "", 0, 0, NULL,
     "the same for each file of data.val; empty: data.template for all", false},
    {"data.user_turn", KG_OPT_BOOL, "false", 0, 0, NULL,
     "a question, in its template, is the user's turn of the chat template; else text",
     false},
    {"data.system", KG_OPT_STRING, "", 0, 0, NULL,
     "system prompt in front of every conversation (data.user_turn, or lists of "
     "messages)",
     false},
    {"data.opening", KG_OPT_STRING, "", 0, 0, NULL,
     "text that the assistant's turn begins with, such as \"<think>\\n\": added where "
     "the chat template does not write it",
     false},
    {"data.chat_template", KG_OPT_STRING, "auto", 0, 0, NULL,
     "user turns and lists of messages are rendered by: auto (the model's chat template, "
     "if it has one), none, or a file or folder with one, which must apply to every "
     "prompt",
     false},
    {"data.max_prompt_tokens", KG_OPT_INT, "1024", 1, 1e6, NULL,
     "longer prompts are handled as data.overlong says", false},
    {"data.overlong", KG_OPT_CHOICE, "drop", 0, 0, "drop|error",
     "over-long prompts: drop and count, or stop", false},
    {"data.add_special", KG_OPT_CHOICE, "auto", 0, 0, KG_SPECIAL_CHOICES,
     "whether the tokenizer adds its special tokens (BOS); auto: to text, not to what a "
     "chat template rendered",
     false},

    {"rollout.data", KG_OPT_STRING, "", 0, 0, NULL,
     "JSONL of prompts with responses: answers are read from it instead of sampled "
     "(offline distillation)",
     false},
    {"rollout.prompts", KG_OPT_INT, "32", 1, 1e6, NULL, "prompts of one step", false},
    {"rollout.samples", KG_OPT_INT, "8", 1, 4096, NULL,
     "answers sampled for each prompt (group size)", false},
    {"rollout.max_tokens", KG_OPT_INT, "512", 1, 1e6, NULL,
     "longest answer in tokens; of an episode, of one turn (episode.turn_tokens)", false},
    {"rollout.temperature", KG_OPT_REAL, "1", 1e-3, 100, NULL,
     "sampling temperature; the policy is what is sampled", false},
    {"rollout.top_p", KG_OPT_REAL, "1", 1e-6, 1, NULL, "nucleus; 1 is off", false},
    {"rollout.top_k", KG_OPT_INT, "0", 0, 512, NULL, "most likely tokens kept; 0 is off",
     false},
    {"rollout.min_p", KG_OPT_REAL, "0", 0, 1, NULL,
     "smallest probability kept, relative to the largest; 0 is off", false},
    {"rollout.stop", KG_OPT_LIST, "", 0, 0, NULL, "strings that end an answer", false},
    {"rollout.dynamic", KG_OPT_BOOL, "false", 0, 0, NULL,
     "learn from prompts whose answers differ alone, sampling until there are enough",
     false},
    {"rollout.dynamic_metric", KG_OPT_CHOICE, "accuracy", 0, 0, "accuracy|reward",
     "what must differ", false},
    {"rollout.oversample", KG_OPT_REAL, "1", 1, 1000, NULL,
     "dynamic sampling: prompts of a generation batch, as a multiple of rollout.prompts",
     false},
    {"rollout.max_refills", KG_OPT_INT, "20", 1, 1e6, NULL,
     "dynamic sampling: generation batches of a step after which too few are an error",
     true},
    {"rollout.overlong_buffer", KG_OPT_INT, "0", 0, 1e6, NULL,
     "tokens before the limit over which the reward falls by length; 0 is off", false},
    {"rollout.overlong_factor", KG_OPT_REAL, "1", 0, 1e6, NULL,
     "how far it has fallen at the limit", false},
    {"rollout.max_batch", KG_OPT_INT, "64", 1, 65536, NULL,
     "sequences that decode together (results do not depend on it)", true},
    {"rollout.kv_tokens", KG_OPT_INT, "0", 0, 1e9, NULL,
     "KV cache in tokens; 0 is enough for max_batch full answers", true},
    {"rollout.lag", KG_OPT_INT, "0", 0, 64, NULL,
     "sample from the weights of n steps ago (known off-policyness)", false},
    {"rollout.dtype", KG_OPT_CHOICE, "same", 0, 0, "same|bf16|fp32",
     "product inputs of the sampler", false},

    {"episode.env", KG_OPT_CHOICE, "none", 0, 0, "none|search|calculator",
     "what an answer's turns talk to; none: an answer is one turn", false},
    {"episode.turns", KG_OPT_INT, "4", 0, 1000, NULL,
     "turns in which a tool may be called; one more follows without", false},
    {"episode.turn_tokens", KG_OPT_INT, "0", 0, 1e6, NULL,
     "longest turn of the model in tokens; 0 is rollout.max_tokens", false},
    {"episode.obs_tokens", KG_OPT_INT, "500", 1, 1e6, NULL,
     "longest observation in tokens; what is longer is cut", false},
    {"episode.context", KG_OPT_INT, "4096", 2, 1e7, NULL,
     "longest episode in tokens, prompt and observations included; one that would pass "
     "it "
     "ends as truncated",
     false},
    {"episode.answer_tokens", KG_OPT_INT, "0", 0, 1e7, NULL,
     "longest answer of an episode in tokens, observations included, whatever its "
     "prompt; "
     "0 is what episode.context leaves",
     false},
    {"episode.window", KG_OPT_INT, "0", 0, 1e7, NULL,
     "a turn that begins with more text is sampled from the newest so many tokens; 0 is "
     "all. Each turn is trained in the context that it was sampled from; with "
     "algo.reproduction in the whole text (mismatch/window)",
     false},
    {"episode.open", KG_OPT_INT, "0", 0, 1e6, NULL,
     "episodes in progress, those that wait for a tool included; 0 is twice "
     "rollout.max_batch (results do not depend on it)",
     true},

    {"search.where", KG_OPT_STRING, "", 0, 0, NULL,
     "episode.env search: an index file, or http://HOST:PORT/retrieve", true},
    {"search.topk", KG_OPT_INT, "3", 1, 1000, NULL, "passages for a query", false},
    {"search.when_down", KG_OPT_CHOICE, "stop", 0, 0, "stop|observe",
     "a retriever that stays down stops the run behind its last whole step, or is told "
     "to "
     "the model and counted (episode/failed)",
     true},
    {"search.timeout_ms", KG_OPT_INT, "30000", 1, 3.6e6, NULL,
     "time limit of one request to the retriever", true},
    {"search.tries", KG_OPT_INT, "4", 1, 1000, NULL, "tries before it counts as down",
     true},

    {"algo.preset", KG_OPT_STRING, "", 0, 0, NULL,
     "method or published run (`kedge presets`): its values hold where you give none",
     false},
    {"algo.advantage", KG_OPT_STRING, "grpo", 0, 0, NULL, "how rewards become advantages",
     false},
    {"algo.surrogate", KG_OPT_STRING, "ppo-clip", 0, 0, NULL,
     "policy-gradient loss of a token", false},
    {"algo.aggregate", KG_OPT_STRING, "token-mean", 0, 0, NULL,
     "how token losses become one number", false},
    {"algo.mask", KG_OPT_STRING, "none", 0, 0, NULL,
     "mask of whole answers: those too far from the sampler lose their policy term",
     false},
    {"algo.mask_delta", KG_OPT_REAL, "0", 0, 1e6, NULL,
     "algo.mask: divergence beyond which an answer is too far", false},
    {"algo.clip_low", KG_OPT_REAL, "0.2", 0, 1e6, NULL,
     "ratio below 1 - clip_low is clipped", false},
    {"algo.clip_high", KG_OPT_REAL, "0.2", 0, 1e6, NULL,
     "ratio above 1 + clip_high is clipped", false},
    {"algo.dual_clip", KG_OPT_REAL, "0", 0, 1e6, NULL,
     "bound c of the dual clip for negative advantages; 0 is off", false},
    {"algo.entropy_coef", KG_OPT_REAL, "0", 0, 100, NULL,
     "entropy bonus: coefficient of the entropy that is taken off the loss, averaged as "
     "the loss is",
     false},
    {"algo.length_norm", KG_OPT_INT, "0", 0, 1e6, NULL,
     "constant length of seq-mean-token-sum-norm and seq-mean-token-norm; 0 is the "
     "longest answer",
     false},
    {"algo.mask_truncated", KG_OPT_BOOL, "false", 0, 0, NULL,
     "answers cut by the limit carry no policy loss", false},

    {"algo.ratio_clamp", KG_OPT_REAL, "20", 0, 700, NULL,
     "log-ratios are cut to +- this; 0 is off", false},
    {"algo.truncate", KG_OPT_REAL, "0", 0, 1e9, NULL,
     "dppo, pg-is, minirl: upper bound C of the ratio; 0 is off", false},
    {"algo.delta_low", KG_OPT_REAL, NULL, 0, 1e6, NULL,
     "dppo: divergence allowed where the advantage is negative (ratio-relax: least "
     "probability that is masked)",
     false},
    {"algo.delta_high", KG_OPT_REAL, NULL, 0, 1e6, NULL,
     "dppo: divergence allowed where it is positive (ratio-relax: the same)", false},
    {"algo.top_k", KG_OPT_INT, NULL, 1, 512, NULL, "dppo-topk: ids of the sampler used",
     false},
    {"algo.tau_pos", KG_OPT_REAL, NULL, 1e-9, 1e6, NULL,
     "sapo: temperature where the advantage is positive", false},
    {"algo.tau_neg", KG_OPT_REAL, NULL, 1e-9, 1e6, NULL,
     "sapo: temperature where it is negative", false},
    {"algo.tis", KG_OPT_REAL, "0", 0, 1e9, NULL,
     "truncated importance sampling: cap of the weight old/sampler; 0 is off", false},
    {"algo.tis_low", KG_OPT_REAL, "0", 0, 1e9, NULL,
     "algo.tis: lower bound of the weight; 0 is off", false},
    {"algo.tis_level", KG_OPT_CHOICE, "token", 0, 0, "token|sequence",
     "algo.tis: weight of the token, or of its whole answer", false},
    {"algo.gamma", KG_OPT_REAL, NULL, 0, 1, NULL, "discount of token-level advantages",
     false},
    {"algo.lambda", KG_OPT_REAL, NULL, 0, 1, NULL, "GAE's lambda", false},
    {"algo.gpg_norm", KG_OPT_REAL, NULL, 1e-12, 1e9, NULL,
     "gpg: divisor of the advantage", false},
    {"algo.std_eps", KG_OPT_REAL, NULL, 1e-12, 1, NULL,
     "algo.advantage grpo, gdpo: added to the deviation that is divided by", false},
    {"algo.cov_ratio", KG_OPT_REAL, NULL, 0, 1, NULL,
     "kl-cov, clip-cov: share of tokens selected", false},
    {"algo.cov_low", KG_OPT_REAL, NULL, -1e9, 1e9, NULL,
     "clip-cov: lower bound of the covariance", false},
    {"algo.cov_high", KG_OPT_REAL, NULL, -1e9, 1e9, NULL,
     "clip-cov: upper bound of the covariance", false},
    {"algo.cov_coef", KG_OPT_REAL, NULL, 0, 1e9, NULL,
     "kl-cov: penalty of the selected tokens", false},
    {"algo.rpg_detach", KG_OPT_BOOL, NULL, 0, 0, NULL,
     "rpg: detach the regularised advantage", false},
    {"algo.count_eps", KG_OPT_REAL, NULL, 0, 1e-3, NULL,
     "added to token counts that are divided by", false},
    {"algo.reproduction", KG_OPT_BOOL, "false", 0, 0, NULL,
     "let published compositions through that mislead (such as K1 as a loss off-policy); "
     "under truncated sampling ratios of the full softmax, under episode.window of the "
     "whole text",
     false},

    {"kl.estimator", KG_OPT_STRING, "none", 0, 0, NULL, "KL estimator against the anchor",
     false},
    {"kl.beta", KG_OPT_REAL, "0", 0, 1e3, NULL, "KL coefficient, per token", false},
    {"kl.in", KG_OPT_CHOICE, "loss", 0, 0, "loss|reward|advantage|advantage-future",
     "a term of the loss, or taken off the reward of every token, off its advantage, off "
     "that and the advantage of all tokens before it",
     false},
    {"kl.target", KG_OPT_REAL, "0", 0, 1e6, NULL,
     "KL a token that the coefficient is steered to; 0 is off", false},
    {"kl.horizon", KG_OPT_REAL, "10000", 1e-9, 1e12, NULL,
     "answers over which kl.target changes the coefficient", false},
    {"kl.top_k", KG_OPT_INT, "32", 0, 1e6, NULL,
     "k of the Top-k KL; at or above the vocabulary it is exact", false},
    {"kl.tail", KG_OPT_BOOL, "true", 0, 0, NULL,
     "Top-k KL: estimate the tail from the sampled token", false},
    {"kl.gradient", KG_OPT_CHOICE, "corrected", 0, 0, "published|corrected",
     "Top-k KL: unbiased gradient of the head, or the form of the paper", false},
    {"kl.importance", KG_OPT_BOOL, "true", 0, 0, NULL,
     "importance weight on what was sampled from older weights", false},
    {"kl.iw_lower", KG_OPT_REAL, "0", 0, 1e6, NULL,
     "lower clip of the importance weight; 0 is none", false},
    {"kl.iw_upper", KG_OPT_REAL, "0", 0, 1e6, NULL,
     "upper clip of the importance weight; 0 is none", false},
    {"kl.clamp", KG_OPT_BOOL, "true", 0, 0, NULL,
     "the published clamps: log w at +-20 (K3, K3++, K5, the forward tail), the value at "
     "+-10 (K3, K3++, RPG's); where one holds the gradient is 0 or the tail's",
     false},
    {"kl.after_filter", KG_OPT_BOOL, "false", 0, 0, NULL,
     "leave filtered answers out of the KL too (biases it)", false},

    {"anchor.kind", KG_OPT_CHOICE, "none", 0, 0, "none|fixed|ema|iterative|copy",
     "what the KL is measured against", false},
    {"anchor.eta", KG_OPT_REAL, "0.9", 0, 1, NULL,
     "EMA: weight that the old anchor keeps", false},
    {"anchor.period", KG_OPT_INT, "10", 1, 1e9, NULL,
     "steps or updates between two moves of the anchor", false},
    {"anchor.unit", KG_OPT_CHOICE, "steps", 0, 0, "steps|updates",
     "what anchor.period counts", false},
    {"anchor.kappa", KG_OPT_REAL, "0", 0, 1e6, NULL,
     "copy: replaced too when the moving average of the token KL passes it; 0 is off",
     false},
    {"anchor.smoothing", KG_OPT_REAL, "0.9", 0, 0.999999, NULL,
     "weight that the old moving average keeps, an update", false},
    {"anchor.path", KG_OPT_STRING, "", 0, 0, NULL,
     "checkpoint that the anchor starts from: a teacher, a saved anchor", false},

    {"optim.kind", KG_OPT_STRING, "adamw", 0, 0, NULL,
     "optimizer of RL: adamw or schedule-free", false},
    {"optim.lr", KG_OPT_REAL, "1e-6", 0, 10, NULL, "learning rate", false},
    {"optim.beta1", KG_OPT_REAL, "0.9", 0, 0.999999, NULL,
     "beta1; schedule-free: share of the average in what is trained", false},
    {"optim.beta2", KG_OPT_REAL, "0.999", 0, 0.999999, NULL, "beta2", false},
    {"optim.eps", KG_OPT_REAL, "1e-8", 0, 1, NULL, "epsilon", false},
    {"optim.weight_decay", KG_OPT_REAL, "0.01", 0, 10, NULL, "decoupled weight decay",
     false},
    {"optim.decay", KG_OPT_CHOICE, "all", 0, 0, "all|matrices",
     "what weight decay reaches: every weight, as torch's AdamW over all parameters, or "
     "neither norms nor biases",
     false},
    {"optim.clip_norm", KG_OPT_REAL, "1", 0, 1e9, NULL,
     "clip of the global gradient norm; 0 is off", false},
    {"optim.schedule", KG_OPT_CHOICE, "constant", 0, 0, "constant|linear|cosine",
     "learning rate after the warm-up", false},
    {"optim.warmup_steps", KG_OPT_INT, "0", 0, 1e9, NULL, "steps of linear warm-up",
     false},
    {"optim.warmup", KG_OPT_CHOICE, "updates", 0, 0, "updates|steps",
     "the warm-up rises with every update, or once a step: from 0 in the first, as "
     "verl's does",
     false},
    {"optim.evaluate", KG_OPT_CHOICE, "average", 0, 0, "average|trained",
     "schedule-free: what is validated and written, the average or the weights that are "
     "trained and sample",
     false},
    {"optim.min_lr", KG_OPT_REAL, "0", 0, 10, NULL, "where linear and cosine end", false},

    {"train.steps", KG_OPT_INT, "100", 0, 1e9, NULL,
     "RL steps; 0 runs the warm start alone", true},
    {"train.updates_per_step", KG_OPT_INT, "1", 1, 4096, NULL,
     "optimizer updates of one step's samples", false},
    {"train.micro_tokens", KG_OPT_INT, "4096", 16, 1e7, NULL,
     "tokens of one forward and backward", false},
    {"train.checkpoint_layers", KG_OPT_BOOL, "true", 0, 0, NULL,
     "keep layer inputs only and compute the rest again in the backward (same bits, less "
     "memory)",
     true},
    {"train.old_logp", KG_OPT_CHOICE, "sampled", 0, 0, "sampled|recompute",
     "log-probs that the ratio refers to", false},
    {"train.max_skips", KG_OPT_INT, "3", 1, 1000, NULL,
     "non-finite steps in a row that stop the run", true},

    {"sft.steps", KG_OPT_INT, "0", 0, 1e9, NULL,
     "supervised updates before RL; 0 is none", false},
    {"sft.epochs", KG_OPT_REAL, "0", 0, 1e6, NULL,
     "the same in passes over its sequences, in the place of sft.steps", false},
    {"sft.data", KG_OPT_STRING, "", 0, 0, NULL,
     "file for it; empty: data.train, or the task's worked solutions", false},
    {"sft.val", KG_OPT_STRING, "", 0, 0, NULL,
     "file of the same forms that is held out: its loss is measured (val_loss)", false},
    {"sft.eval_every", KG_OPT_INT, "0", 0, 1e9, NULL,
     "updates between two measurements of sft.val; 0: before the first and after the "
     "last",
     true},
    {"sft.level", KG_OPT_STRING, "", 0, 0, NULL,
     "difficulty of generated problems; empty: task.level", false},
    {"sft.count", KG_OPT_INT, "4000", 1, 1e9, NULL,
     "generated problems with worked solutions", false},
    {"sft.fault_rate", KG_OPT_REAL, "0", 0, 1, NULL,
     "share of worked solutions with a faulty step", false},
    {"sft.batch", KG_OPT_INT, "32", 1, 1e6, NULL, "sequences of one update", false},
    {"sft.lr", KG_OPT_REAL, "1e-5", 0, 10, NULL,
     "learning rate; random weights want more (1e-3)", false},
    {"sft.warmup_steps", KG_OPT_INT, "10", 0, 1e9, NULL, "updates of linear warm-up",
     false},
    {"sft.schedule", KG_OPT_CHOICE, "cosine", 0, 0, "constant|linear|cosine",
     "learning rate after the warm-up", false},
    {"sft.weight_decay", KG_OPT_REAL, "0.01", 0, 10, NULL, "AdamW weight decay", false},
    {"sft.decay", KG_OPT_CHOICE, "all", 0, 0, "all|matrices", "as optim.decay", false},
    {"sft.max_tokens", KG_OPT_INT, "2048", 2, 1e6, NULL,
     "longer sequences are dropped and counted", false},

    {"eval.every", KG_OPT_INT, "0", 0, 1e9, NULL,
     "steps between validations; 0: none but the last", true},
    {"eval.at_start", KG_OPT_BOOL, "true", 0, 0, NULL,
     "validate before the first RL step", true},
    {"eval.problems", KG_OPT_INT, "200", 1, 1e7, NULL,
     "validation problems used of each file", true},
    {"eval.samples", KG_OPT_INT, "1", 1, 4096, NULL, "answers for each of them", true},
    {"eval.temperature", KG_OPT_REAL, "1", 0, 100, NULL, "0 is greedy", true},
    {"eval.top_p", KG_OPT_REAL, "1", 1e-6, 1, NULL, "nucleus; 1 is off", true},
    {"eval.anchor", KG_OPT_BOOL, "false", 0, 0, NULL, "validate the anchor too", true},
    {"eval.reference", KG_OPT_STRING, "", 0, 0, NULL,
     "checkpoint that validation measures the KL to (val/kl)", true},

    {"checkpoint.every", KG_OPT_INT, "0", 0, 1e9, NULL,
     "steps between checkpoints; 0: the last step alone", true},
    {"checkpoint.keep", KG_OPT_INT, "2", 1, 1e6, NULL, "newest checkpoints kept", true},
    {"checkpoint.dtype", KG_OPT_CHOICE, "bf16", 0, 0, "bf16|fp32",
     "type of the weights in model/ and anchor/", true},

    {"log.rollouts", KG_OPT_BOOL, "true", 0, 0, NULL,
     "dump every trajectory of every step", true},
    {"log.validation", KG_OPT_BOOL, "false", 0, 0, NULL,
     "dump every answer of every validation", true},
    {"log.tensorboard", KG_OPT_BOOL, "true", 0, 0, NULL,
     "write TensorBoard event files beside metrics.jsonl", true},
    {"log.watchdog_s", KG_OPT_REAL, "300", 0, 1e9, NULL,
     "seconds without any progress after which a warning says what is waited for; 0: "
     "never",
     true},
    {"log.report", KG_OPT_BOOL, "true", 0, 0, NULL,
     "write report.html, a page of plots, at every checkpoint and at the end", true},
    {NULL, KG_OPT_STRING, NULL, 0, 0, NULL, NULL, false},
};

const struct kg_opt_row *kg_train_option_rows(void) { return rows; }

/* From the lowest base up: a weak value replaces a weak one. */
static kg_status apply_values(struct kg_config *config, const struct kg_preset *preset,
                              struct kg_err *err)
{
    const struct kg_preset *base = kg_preset_base(preset);

    if (base)
        KG_TRY(apply_values(config, base, err));
    for (const struct kg_preset_value *v = preset->values; v->key; v++)
        KG_TRY(kg_config_set(config, v->key, v->value, true, preset->name, err));
    return KG_OK;
}

static kg_status apply_preset(struct kg_config *config, struct kg_err *err)
{
    const char *name = kg_config_text(config, "algo.preset");
    const struct kg_preset *preset;

    if (!*name)
        return KG_OK;
    KG_TRY(kg_preset_find(&preset, name, err));
    return apply_values(config, preset, err);
}

/* preset=NAME is short for algo.preset=NAME. */
static kg_status assign(struct kg_config *config, const char *assignment,
                        struct kg_err *err)
{
    static const char brief[] = "preset=";

    if (strncmp(assignment, brief, sizeof brief - 1) != 0)
        return kg_config_override(config, assignment, "command line", err);
    return kg_config_set(config, "algo.preset", assignment + sizeof brief - 1, false,
                         "command line", err);
}

typedef kg_status (*defaults_fn)(struct kg_config *config, struct kg_err *err);

/* What the user wrote, then defaults of a command, then the preset. */
static kg_status build(struct kg_config **config, const char *path,
                       char *const *assignments, size_t n, defaults_fn defaults,
                       struct kg_err *err)
{
    const struct kg_opt_row *const tables[] = {rows};
    kg_status status;

    KG_TRY(kg_config_create(config, tables, 1, err));
    if (path)
        KG_TRY_GOTO(fail, kg_config_load_yaml(*config, path, err));
    for (size_t i = 0; i < n; i++)
        KG_TRY_GOTO(fail, assign(*config, assignments[i], err));
    if (defaults)
        KG_TRY_GOTO(fail, defaults(*config, err));
    KG_TRY_GOTO(fail, apply_preset(*config, err));
    return KG_OK;
fail:
    kg_config_free(*config);
    *config = NULL;
    return status;
}

kg_status kg_train_config(struct kg_config **config, const char *path,
                          char *const *assignments, size_t n, struct kg_err *err)
{
    return build(config, path, assignments, n, NULL, err);
}

static kg_status distill_defaults(struct kg_config *config, struct kg_err *err)
{
    bool offline = *kg_config_text(config, "rollout.data");
    const char *preset = offline ? "distill-offline" : "distill-reverse";

    KG_TRY(kg_config_set(config, "algo.preset", preset, true, "kedge distill", err));
    return kg_config_set(config, "rollout.samples", "1", true, "kedge distill", err);
}

kg_status kg_distill_config(struct kg_config **config, const char *path,
                            char *const *assignments, size_t n, struct kg_err *err)
{
    kg_status status = KG_OK;

    KG_TRY(build(config, path, assignments, n, distill_defaults, err));
    if (!*kg_config_text(*config, "anchor.path"))
        status = kg_fail(err, KG_EINVAL,
                         "anchor.path: expected the checkpoint of a teacher, found none");
    else if (strcmp(kg_config_text(*config, "algo.surrogate"), "none") != 0)
        status = kg_fail(err, KG_EINVAL,
                         "algo.surrogate: distillation learns from the teacher alone; "
                         "expected none, found %s (kedge train has both)",
                         kg_config_text(*config, "algo.surrogate"));
    if (status == KG_OK)
        return KG_OK;
    kg_config_free(*config);
    *config = NULL;
    return status;
}

bool kg_config_has_sft(const struct kg_config *c)
{
    return kg_config_int(c, "sft.steps") > 0 || kg_config_real(c, "sft.epochs") > 0;
}
