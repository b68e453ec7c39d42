/* Option rows of training, and the order in which a recipe is put together.
 *
 * A row is bound to a field of struct kg_recipe, or of an options struct in it. policy/
 * has the rows of an algorithm, task/ those of a retriever. A value of the user, in the
 * recipe or on the command line, overrides the preset's.
 */
#include "recipe/options.h"

#include "policy/presets.h"
#include "ranks/lanes.h"
#include "rollout/sampling.h"
#include "task/rows.h"
#include "text/prompt.h"

#include <string.h>

#define AT(field)  KG_OPT_AT(struct kg_recipe, field)
#define KEY(field) #field, AT(field)

#define WARM "sft.steps>0|sft.epochs>0"
#define MADE "task.name=" KG_TASKS_MADE
#define MATH KG_IF_GRADES("math", "task.name", "task.rewards")
#define FORMAT                                                                           \
    KG_IF_GRADES("search-qa", "task.name", "task.rewards") "&task.metric=format"
#define BF16_ON_GPU "model.device!cpu&model.dtype!fp32|rollout.dtype=bf16"

static const struct kg_opt_row first_rows[] = {
    {KEY(run.dir), NULL, 0, 0, NULL, "folder of the run: logs, dumps, checkpoints", true},
    {KEY(run.seed), "1", 0, 1e15, NULL, "seed of all random numbers of the run", false},
    {KEY(run.threads), "0", 0, 1024, NULL,
     "threads; 0 uses every core (results do not depend on it)",
     KG_FREE_ON_RESUME | KG_FREE_BY_RANK},

    {KEY(model.path), NULL, 0, 0, NULL,
     "HuggingFace checkpoint folder to start from, or ORG/NAME of the hub's cache "
     "(docs/hub.md)",
     false},
    {KEY(model.dtype), "auto", 0, 0, "auto|bf16|fp32",
     "type of product inputs; auto is bf16", false},
    {KEY(model.base_dtype), "same", 0, 0, "same|q8_0|q4_0|q4_k|as_stored",
     "storage type of frozen weights: blocks of 8 or 4 bits, or the blocks of a GGUF "
     "file (docs/lora.md); same: model.dtype",
     false, "lora.rank>0|model.adapter&model.dtype!fp32&model.device=cpu,auto"},
    {KEY(model.device), "cpu", 0, 0, NULL,
     "cpu, cuda (the first GPU), cuda:N, or auto: a GPU if one is usable (docs/gpu.md)",
     false},
    {KEY(model.adapter), "", 0, 0, NULL,
     "PEFT folder of adapters for model.path to train further (docs/lora.md)", false},
    {KEY(model.ignore), "", 0, 0, NULL,
     "unknown fields of config.json to ignore, because they have no effect on this model "
     "(docs/formats.md)",
     false},
    {KEY(lora.rank), "0", 0, 65536, NULL,
     "rank of adapters to train on frozen weights; 0: train all weights (docs/lora.md)",
     false},
    {KEY(lora.alpha), "16", 1e-6, 1e6, NULL,
     "the adapter's output is multiplied by alpha / rank", false, "lora.rank>0"},
    {KEY(lora.targets), "all-linear", 0, 0, NULL,
     "matrices that have an adapter in every layer, such as [q_proj, v_proj]; "
     "all-linear: all except embedding and head",
     false, "lora.rank>0"},
    {KEY(lora.rslora), "false", 0, 0, NULL, "rank-stabilised LoRA: alpha / sqrt(rank)",
     false, "lora.rank>0"},
    {KEY(device.products), "auto", 0, 0, "auto|cublas|own|exact",
     "bf16 products on a GPU: cublas: NVIDIA's cuBLASLt; own: kedge's kernels; exact: "
     "slow kernels with the CPU's bits; auto: cublas on sm_90 and sm_100, else own "
     "(docs/gpu.md)",
     false, BF16_ON_GPU},
    {KEY(device.libraries), "", 0, 0, NULL,
     "folder of cuBLASLt; empty: kedge searches for it (docs/gpu.md)",
     KG_FREE_ON_RESUME | KG_FREE_BY_RANK, BF16_ON_GPU "&device.products=auto,cublas"},
    {KEY(device.may_change), "false", 0, 0, NULL,
     "allow --resume on another kind of device, driver or library: bits differ after the "
     "change, which manifest.json records",
     true},

    {KEY(init.from), "", 0, 0, NULL,
     "run or checkpoint that this run starts from (instead of model.path)", false},
    {KEY(init.parts), "model", 0, 0, NULL,
     "parts to take from init.from: model, anchor, optimizer, steps (step count, "
     "position in the data, learning-rate schedule)",
     false},

    {KEY(task.name), "qa-number", 0, 0,
     "arithmetic|countdown|digits|qa-number|math|search-qa|none|environment|external",
     "the task: source of problems and grading of completions", false},
    {"task.level", AT(task_opts.level), "", 0, 0, NULL,
     "difficulty of generated problems, such as easy or easy+hard", false,
     MADE "&@" KG_NEEDS_GENERATED},
    {"task.count", AT(task_opts.count), "20000", 1, 1e9, NULL,
     "generated training problems", false, MADE "&data.train=&rollout.data="},
    {KEY(task.val_count), "500", 1, 1e7, NULL, "generated held-out problems", false,
     MADE "&data.val="},
    KG_TASK_ROWS("task.", struct kg_recipe, task_opts., "task.name", "task.rewards",
                 "episode.env"),
    {"task.env", AT(task_opts.env), "", 0, 0, NULL,
     "external grader: comma-separated names of environment variables that it gets in "
     "addition to PATH, HOME, the locale and a few more",
     true, KG_IF_PROGRAM("task.name", "task.rewards")},
    {KEY(task.rewards), "", 0, 0, NULL,
     "several rewards instead of the task's reward, each NAME=TASK or NAME=external "
     "COMMAND; the first decides what is correct",
     false},
    {KEY(task.reward_weights), "", 0, 0, NULL,
     "weight of each of task.rewards in the sum; empty: 1 each", false},
    {"task.wrong_reward", AT(task_opts.wrong_reward), "0", -1e6, 0.999999, NULL,
     "reward of a wrong answer; a right one has 1 (published graders of mathematics: -1)",
     false},
    {"task.undecided", AT(task_opts.undecided), "wrong", 0, 0, "ungraded|wrong",
     "task math: verdict in training if an answer cannot be read or decided; ungraded: "
     "left out of its group (docs/tasks.md)",
     false, MATH},
    {"task.format_structure", AT(task_opts.format.structure), "0.2", 0, 1, NULL,
     "metric format: score of a valid format without a right answer", false, FORMAT},
    {"task.format_final", AT(task_opts.format.final), "0.1", 0, 1, NULL,
     "metric format: score of a wrong answer without a valid format", false, FORMAT},
    {"task.format_retrieval", AT(task_opts.format.retrieval), "0", 0, 1, NULL,
     "metric format: amount that is added if a gold answer was retrieved", false, FORMAT},

    {KEY(data.train), "", 0, 0, NULL,
     "files of training problems, instead of generated ones: JSONL, JSON array (also "
     ".gz, .zst), Parquet; hf://ORG/NAME/FILE: in the hub's cache (docs/hub.md)",
     false},
    {KEY(data.weights), "", 0, 0, NULL,
     "relative number of prompts from each file of data.train, whole numbers from 1; "
     "empty: all files are shuffled together",
     false},
    {KEY(data.val), "", 0, 0, NULL, "files of validation problems", false},
    KG_RECORD_ROWS("data.", struct kg_recipe, task_opts., NULL),
    KG_PROMPT_ROWS("data.", struct kg_recipe, task_opts.prompt.),
    {KEY(data.templates), "", 0, 0, NULL,
     "data.template for each file of data.train; {prompt} alone leaves the prompt "
     "unchanged",
     false},
    {KEY(data.val_templates), "", 0, 0, NULL,
     "data.template for each file of data.val; empty: data.template for all", false,
     "data.val"},
    {KEY(data.chat_template), "auto", 0, 0, NULL,
     "chat template for user turns and lists of messages: auto (the model's template, "
     "if it has one), none, or a file or folder, which must apply to every prompt",
     false},
    {KEY(data.max_prompt_tokens), "1024", 1, 1e6, NULL,
     "largest number of tokens of a prompt; data.overlong decides about longer ones",
     false},
    {"data.overlong", AT(data.drop_overlong), "drop", 0, 0, "error|drop",
     "prompts over data.max_prompt_tokens: drop and count them, or stop with an error",
     false},
    {KEY(data.add_special), "auto", 0, 0, KG_SPECIAL_CHOICES,
     "whether the tokenizer adds its special tokens (BOS); auto: to text, not to the "
     "output of a chat template",
     false},

    {KEY(rollout.data), "", 0, 0, NULL,
     "JSONL of prompts with completions, which are read instead of sampled (offline "
     "distillation)",
     false},
    {KEY(rollout.prompts), "32", 1, 1e6, NULL, "prompts of one step", false},
    {KEY(rollout.samples), "8", 1, 4096, NULL,
     "completions sampled for each prompt (group size)", false},
    {"rollout.max_tokens", AT(rollout.sampling.max_tokens), "512", 1, 1e6, NULL,
     "longest completion in tokens; in episodes, the default of episode.turn_tokens",
     false},
    KG_SAMPLING_ROWS("rollout.", struct kg_recipe, rollout.sampling., false, NULL, NULL),
    {KEY(rollout.stop), "", 0, 0, NULL, "strings that end a completion", false},
    {KEY(rollout.dynamic), "false", 0, 0, NULL,
     "dynamic sampling: learn only from prompts whose completions differ in "
     "rollout.dynamic_metric, and sample until there are enough",
     false},
    {"rollout.dynamic_metric", AT(rollout.dynamic_reward), "accuracy", 0, 0,
     "accuracy|reward",
     "dynamic sampling: value in which the completions of a prompt must differ", false,
     "rollout.dynamic=true"},
    {KEY(rollout.oversample), "1", 1, 1000, NULL,
     "dynamic sampling: prompts of a generation batch, as a multiple of rollout.prompts",
     false, "rollout.dynamic=true"},
    {KEY(rollout.max_refills), "20", 1, 1e6, NULL,
     "dynamic sampling: largest number of generation batches per step; if they give too "
     "few prompts, the run fails",
     true, "rollout.dynamic=true"},
    {KEY(rollout.overlong_buffer), "0", 0, 1e6, NULL,
     "overlong penalty: tokens before the limit over which the reward falls; 0 is off",
     false},
    {KEY(rollout.overlong_factor), "1", 0, 1e6, NULL,
     "overlong penalty: reward subtracted at the limit", false,
     "rollout.overlong_buffer>0"},
    {"rollout.max_batch", AT(rollout.engine.max_batch), "64", 1, 65536, NULL,
     "sequences decoded together (results do not depend on it)", true},
    {"rollout.kv_tokens", AT(rollout.engine.kv_tokens), "0", 0, 1e9, NULL,
     "KV cache in tokens; 0: enough for max_batch full completions; layers with a "
     "sliding window cache only their window",
     true},
    {KEY(rollout.lag), "0", 0, 64, NULL,
     "sample from the weights of n steps ago (known off-policyness)", false},
    {KEY(rollout.max_staleness), "0", 0, 64, NULL,
     "largest age of a token in steps: completions begin up to n steps early and are "
     "sampled by several versions of the weights (docs/training.md); 0: the age is "
     "rollout.lag",
     false,
     "rollout.dynamic=false&episode.env=none,search,calculator&episode.window=0&"
     "rollout.data=&rollout.router_replay=false"},
    {KEY(rollout.tool_steps), "0", 0, 64, NULL,
     "with rollout.max_staleness: an episode that calls its tool continues n steps "
     "later, so that steps do not wait for tools; 0: a step waits",
     false, "rollout.max_staleness>0&episode.env=search"},
    {KEY(rollout.dtype), "same", 0, 0, "same|bf16|fp32",
     "type of product inputs in the sampler", false},
    {KEY(rollout.router_replay), "false", 0, 0, NULL,
     "route the trainer's tokens to the experts that the sampler chose", false,
     "rollout.lag>0|rollout.dtype!same|train.updates_per_step>1"},

    {"episode.env", AT(episode_env), "none", 0, 0, "none|search|calculator|external",
     "environment of the model's turns; none: a completion is one turn", false},
    KG_PLAYER_ROWS("episode.", struct kg_recipe, episode.env_opts.,
                   "episode.env=external"),
    KG_EPISODE_ROWS("episode.", struct kg_recipe, episode., "episode.env!none",
                    "episode.env=search,calculator"),
    {KEY(episode.turn_tokens), "0", 0, 1e6, NULL,
     "longest turn of the model in tokens; 0 is rollout.max_tokens", false,
     "episode.env!none"},
    {KEY(episode.context), "4096", 2, 1e7, NULL,
     "longest episode in tokens, with prompt and observations; a longer one is truncated",
     false, "episode.env!none"},
    {KEY(episode.open), "0", 0, 1e6, NULL,
     "episodes in progress, including those that wait for a tool; 0: twice "
     "rollout.max_batch (results do not depend on it)",
     true, "episode.env!none"},
    KG_SEARCH_ROWS("search.", struct kg_recipe, episode.env_opts., "episode.env=search",
                   "&model.device!cpu"),
    {0},
};

/* Before the rows of policy/. */
static const struct kg_opt_row preset_rows[] = {
    {"algo.preset", AT(preset), "", 0, 0, NULL,
     "method or published run (`kedge presets`), which supplies the values that you do "
     "not give",
     false},
    {0},
};

/* After the rows of policy/. */
static const struct kg_opt_row rows[] = {
    {"algo.reproduction", AT(reproduction), "false", 0, 0, NULL,
     "allow misleading published compositions (such as K1 as a loss off-policy); ratios "
     "use the full softmax under truncated sampling, the whole text under episode.window",
     false},
    {"anchor.path", AT(anchor_path), "", 0, 0, NULL,
     "checkpoint that the anchor starts from: a teacher, a saved anchor", false,
     "anchor.kind!none"},
    {"anchor.place", AT(anchor_on_host), "device", 0, 0, "device|host",
     "where the anchor's weights are: with the model, or on the host, copied layer by "
     "layer (same bits; docs/gpu.md)",
     true, "anchor.kind!none,iterative"},

    {KEY(optim.kind), "adamw", 0, 0, NULL, "optimizer of RL: adamw or schedule-free",
     false},
    {"optim.lr", AT(optim.opts.lr), "1e-6", 0, 10, NULL, "learning rate", false},
    {"optim.beta1", AT(optim.opts.beta1), "0.9", 0, 0.999999, NULL,
     "beta1; schedule-free: share of the average in the trained weights", false},
    {"optim.beta2", AT(optim.opts.beta2), "0.999", 0, 0.999999, NULL, "beta2", false},
    {"optim.eps", AT(optim.opts.eps), "1e-8", 0, 1, NULL, "epsilon", false},
    {"optim.weight_decay", AT(optim.opts.weight_decay), "0.01", 0, 10, NULL,
     "decoupled weight decay", false},
    {"optim.decay", AT(optim.opts.decay_all), "all", 0, 0, "matrices|all",
     "all: decay every weight, as torch's AdamW over all parameters; matrices: all "
     "except norms and biases",
     false},
    {"optim.clip_norm", AT(optim.opts.clip_norm), "1", 0, 1e9, NULL,
     "clip of the global gradient norm; 0 is off", false},
    {"optim.schedule", AT(optim.opts.schedule), "constant", 0, 0,
     "constant|linear|cosine", "learning rate after the warm-up", false},
    {KEY(optim.warmup_steps), "0", 0, 1e9, NULL, "steps of linear warm-up", false},
    {"optim.warmup", AT(optim.stairs), "updates", 0, 0, "updates|steps",
     "raise the rate with every update, or once per step from 0 in the first step, as "
     "verl does",
     false, "optim.warmup_steps>0"},
    {"optim.evaluate", AT(optim.opts.keep_trained), "average", 0, 0, "average|trained",
     "schedule-free: weights for validation and model/: the average, or the weights in "
     "training",
     false, "optim.kind=schedule-free"},
    {"optim.min_lr", AT(optim.opts.min_lr), "0", 0, 10, NULL,
     "final learning rate of linear and cosine", false, "optim.schedule=linear,cosine"},
    {"optim.moments", AT(optim.opts.moments), "fp32", 0, 0, "fp32|bf16",
     "type of the optimizer's moments, also in SFT; bf16 is rounded stochastically and "
     "saves 4 bytes per weight (schedule-free: 2)",
     false},
    {"optim.place", AT(optim.on_host), "device", 0, 0, "device|host",
     "where fp32 weights and moments are: with the model, or on the host, which then "
     "runs the optimizer (same bits; docs/gpu.md)",
     true},

    {KEY(train.steps), "100", 0, 1e9, NULL, "RL steps; 0: only SFT", true},
    {KEY(train.updates_per_step), "1", 1, 4096, NULL, "optimizer updates per step",
     false},
    {KEY(train.micro_tokens), "4096", 16, 1e7, NULL,
     "tokens of a micro-batch (one forward and backward)", false},
    {KEY(train.lanes), "1", 1, KG_LANES_MAX, NULL,
     "parts of an update whose gradients are summed separately and then added as a tree; "
     "each doubling takes one more gradient slab",
     false},
    {KEY(train.checkpoint_layers), "true", 0, 0, NULL,
     "keep only layer inputs and recompute the rest in the backward (same bits, less "
     "memory)",
     true},
    {KEY(train.share_prefix), "true", 0, 0, NULL,
     "compute a prompt once for all its completions in a micro-batch (docs/exactness.md)",
     false, "train.router_aux=0"},
    {"train.old_logp", AT(train.recompute), "sampled", 0, 0, "sampled|recompute",
     "old log-probs of the ratio: recorded by the sampler, or recomputed", false},
    {KEY(train.router_aux), "0", 0, 1e6, NULL,
     "coefficient of the load-balancing loss of experts (docs/training.md); 0: none",
     false},
    {KEY(train.max_skips), "3", 1, 1000, NULL,
     "non-finite steps in a row that stop the run", true},

    {KEY(ranks.wait_s), "600", 0, 1e7, NULL,
     "timeout in seconds for a silent rank, after which the others end and name it; 0: "
     "none",
     true},
    {KEY(ranks.rollout), "0", 0, 65535, NULL,
     "ranks that sample rollout.lag steps ahead while the others train (same bits); 0: "
     "every rank does both",
     true, "rollout.lag>0&train.steps>0&rollout.data="},
    {KEY(ranks.shard), "optimizer", 0, 0, "none|optimizer|gradients",
     "optimizer: each rank holds and updates its shard of master weights, optimizer "
     "state and moving anchor (same bits); gradients: also its shard of gradients, which "
     "are sent by layers for every micro-batch; none: each rank holds everything, and "
     "only rank 0 writes checkpoints",
     true},
    {"ranks.link", AT(ranks.nccl), "host", 0, 0, "host|nccl",
     "path of gradients and weights from GPU to GPU: through host memory, or by NVIDIA's "
     "NCCL (same bits, docs/ranks.md)",
     true, "model.device!cpu"},
    {KEY(ranks.libraries), "", 0, 0, NULL,
     "folder of libnccl.so.2; empty: kedge searches for it (docs/ranks.md)",
     KG_FREE_ON_RESUME | KG_FREE_BY_RANK, "ranks.link=nccl"},

    {KEY(sft.steps), "0", 0, 1e9, NULL, "supervised updates before RL; 0 is none", false},
    {KEY(sft.epochs), "0", 0, 1e6, NULL,
     "length of SFT in passes over its sequences, instead of sft.steps", false},
    {KEY(sft.data), "", 0, 0, NULL,
     "file for SFT; empty: data.train, or the task's worked solutions", false, WARM},
    {KEY(sft.val), "", 0, 0, NULL,
     "held-out file in the same formats, whose loss is measured (val_loss)", false},
    {KEY(sft.eval_every), "0", 0, 1e9, NULL,
     "updates between two measurements of sft.val; 0: before the first and after the "
     "last",
     true, "sft.val"},
    {KEY(sft.level), "", 0, 0, NULL,
     "difficulty of generated problems; empty: task.level", false,
     WARM "&sft.data=&" MADE},
    {KEY(sft.count), "4000", 1, 1e9, NULL, "generated problems with worked solutions",
     false, WARM "&sft.data=&" MADE},
    {KEY(sft.fault_rate), "0", 0, 1, NULL, "share of worked solutions with a wrong step",
     false, WARM "&sft.data=&" MADE},
    {KEY(sft.batch), "32", 1, 1e6, NULL, "sequences of one update", false, WARM},
    {"sft.lr", AT(sft.opts.lr), "1e-5", 0, 10, NULL,
     "learning rate; random weights need more (1e-3)", false, WARM},
    {"sft.warmup_steps", AT(sft.opts.warmup_updates), "10", 0, 1e9, NULL,
     "updates of linear warm-up", false, WARM},
    {"sft.schedule", AT(sft.opts.schedule), "cosine", 0, 0, "constant|linear|cosine",
     "learning rate after the warm-up", false, WARM},
    {"sft.weight_decay", AT(sft.opts.weight_decay), "0.01", 0, 10, NULL,
     "AdamW weight decay", false, WARM},
    {"sft.decay", AT(sft.opts.decay_all), "all", 0, 0, "matrices|all", "as optim.decay",
     false, WARM},
    {KEY(sft.max_tokens), "2048", 2, 1e6, NULL,
     "longest sequence in tokens; longer ones are dropped and counted", false, WARM},

    {KEY(eval.every), "0", 0, 1e9, NULL, "steps between validations; 0: only at the end",
     true, KG_NEEDS_VALIDATION},
    {KEY(eval.at_start), "true", 0, 0, NULL, "validate before the first RL step", true},
    {KEY(eval.problems), "200", 1, 1e7, NULL,
     "largest number of validation problems per file", true, KG_NEEDS_VALIDATION},
    {KEY(eval.samples), "1", 1, 4096, NULL, "completions of each validation problem",
     true, KG_NEEDS_VALIDATION},
    KG_SAMPLING_ROWS("eval.", struct kg_recipe, eval.sampling., true, KG_NEEDS_VALIDATION,
                     KG_NEEDS_VALIDATION "&eval.temperature>0"),
    {KEY(eval.anchor), "false", 0, 0, NULL, "validate the anchor too", true,
     KG_NEEDS_VALIDATION "&anchor.kind!none"},
    {KEY(eval.reference), "", 0, 0, NULL,
     "checkpoint that validation measures the KL to (val/kl)", true, KG_NEEDS_VALIDATION},

    {KEY(checkpoint.every), "0", 0, 1e9, NULL,
     "steps between checkpoints; 0: only at the end", true},
    {KEY(checkpoint.keep), "2", 1, 1e6, NULL, "newest checkpoints kept", true},
    {"checkpoint.dtype", AT(checkpoint.fp32), "bf16", 0, 0, "bf16|fp32",
     "type of the weights in model/ and anchor/", true},

    {KEY(log.rollouts), "true", 0, 0, NULL, "dump every trajectory of every step", true},
    {KEY(log.validation), "false", 0, 0, NULL,
     "dump every completion of every validation", true, KG_NEEDS_VALIDATION},
    {KEY(log.tensorboard), "true", 0, 0, NULL, "also write TensorBoard event files",
     true},
    {KEY(log.watchdog_s), "300", 0, 1e9, NULL,
     "seconds without progress after which a warning names what the run waits for; 0: "
     "never",
     true},
    {KEY(log.report), "true", 0, 0, NULL,
     "write report.html, a page of plots, at every checkpoint and at the end", true},
    {0},
};

static const struct kg_opt_row *const tables[] = {first_rows, preset_rows, kg_algo_rows,
                                                  rows};
enum { TABLES = sizeof tables / sizeof *tables };

const struct kg_opt_row *kg_recipe_row(size_t i)
{
    for (size_t t = 0; t < TABLES; t++)
        for (const struct kg_opt_row *row = tables[t]; row->key; row++)
            if (i-- == 0)
                return row;
    return NULL;
}

void kg_recipe_read(struct kg_recipe *r, const struct kg_config *config)
{
    *r = (struct kg_recipe){.task_opts.prompt.prefix = "data."};
    kg_algo_init(&r->algo);
    kg_config_fill(r, config, first_rows);
    kg_config_fill(r, config, preset_rows);
    kg_config_fill(&r->algo, config, kg_algo_rows);
    kg_config_fill(r, config, rows);
    r->episode.env_opts.wording = r->task_opts.wording;
    r->episode.env_opts.section = "episode.";
}

bool kg_recipe_has_sft(const struct kg_recipe *r)
{
    return r->sft.steps > 0 || r->sft.epochs > 0;
}

static kg_status apply_preset(struct kg_config *config, struct kg_err *err)
{
    const struct kg_preset *preset;
    struct kg_recipe r;

    kg_recipe_read(&r, config);
    if (!*r.preset)
        return KG_OK;
    KG_TRY(kg_preset_find(&preset, r.preset, err));
    for (const struct kg_preset_value *v = preset->values; v->key; v++)
        KG_TRY(kg_config_set(config, v->key, v->value, true, v->from, err));
    return KG_OK;
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

/* Sets the user's values; then, for other keys, a command's defaults and the preset's. */
static kg_status build(struct kg_config **config, const char *path,
                       char *const *assignments, size_t n, defaults_fn defaults,
                       struct kg_err *err)
{
    kg_status status;

    KG_TRY(kg_config_create(config, tables, TABLES, err));
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
    struct kg_recipe r;

    kg_recipe_read(&r, config);
    const char *preset = *r.rollout.data ? "distill-offline" : "distill-reverse";
    KG_TRY(kg_config_set(config, "algo.preset", preset, true, "kedge distill", err));
    return kg_config_set(config, "rollout.samples", "1", true, "kedge distill", err);
}

kg_status kg_distill_config(struct kg_config **config, const char *path,
                            char *const *assignments, size_t n, struct kg_err *err)
{
    struct kg_recipe r;
    kg_status status = KG_OK;

    KG_TRY(build(config, path, assignments, n, distill_defaults, err));
    kg_recipe_read(&r, *config);
    if (!*r.anchor_path)
        status = kg_fail(err, KG_EINVAL,
                         "anchor.path: expected the checkpoint of a teacher, found none");
    else if (strcmp(r.algo.name[KG_TABLE_SURROGATE], "none") != 0)
        status = kg_fail(err, KG_EINVAL,
                         "algo.surrogate: distillation learns only from the teacher; "
                         "expected none, found %s (kedge train learns from rewards too)",
                         r.algo.name[KG_TABLE_SURROGATE]);
    if (status == KG_OK)
        return KG_OK;
    kg_config_free(*config);
    *config = NULL;
    return status;
}

/* The limits of episodes out of a recipe: sections episode and search.
 *
 * Only what the keys say of each other is checked here; what depends on the prompts or
 * the model (whether a window can hold the longest prompt) is the run's to check.
 */

static bool has_episodes(const struct kg_recipe *r)
{
    return strcmp(r->episode_env, "none") != 0;
}

static struct kg_episode_opts limits(const struct kg_recipe *r)
{
    struct kg_episode_opts opts = r->episode;

    if (opts.turn_tokens == 0)
        opts.turn_tokens = r->rollout.sampling.max_tokens;
    return opts;
}

static kg_status check_search(const struct kg_recipe *r, struct kg_err *err)
{
    bool searches = strcmp(r->episode_env, "search") == 0;
    const char *where = r->episode.env_opts.retriever;

    if (searches && !*where)
        return kg_fail(err, KG_EINVAL,
                       "search.where: expected an index file or "
                       "http://HOST:PORT/retrieve for episode.env search, found none");
    return searches
               ? kg_search_how_check(&r->episode.env_opts.how, "search.", "model", err)
               : KG_OK;
}

/* Checks a limit that must be below episode.context. */
static kg_status check_below(const struct kg_recipe *r, const char *key, int32_t found,
                             struct kg_err *err)
{
    if (found >= r->episode.context)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected fewer than episode.context (%d), or 0, found %d",
                       key, r->episode.context, found);
    return KG_OK;
}

kg_status kg_episodes_from_recipe(struct kg_episode_opts *opts, const struct kg_recipe *r,
                                  struct kg_err *err)
{
    *opts = limits(r);
    KG_TRY(check_search(r, err));
    KG_TRY(check_below(r, "episode.answer_tokens", opts->answer_tokens, err));
    KG_TRY(check_below(r, "episode.window", opts->window, err));
    return has_episodes(r) ? kg_env_find(&opts->env, r->episode_env, err) : KG_OK;
}

int64_t kg_recipe_answer_tokens(const struct kg_recipe *r)
{
    struct kg_episode_opts opts = limits(r);

    return has_episodes(r) ? kg_episodes_longest(&opts) : r->rollout.sampling.max_tokens;
}
