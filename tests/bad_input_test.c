/* How train, sft, eval and task answer bad input: one line that says what was expected,
 * what was found and where, the right exit status, and no files left.
 *
 * Each row makes its input with a line of shell, runs ./kedge and checks what remains.
 * Shell variables: W a folder of this test, D a checkpoint with data, T arguments of a
 * small training run into $W/run, E arguments of a small evaluation. (cli_test.c has the
 * rows of generate, score, tokenize, inspect and new.)
 */
#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct bad {
    const char *name;
    const char *make;  /* shell; NULL for nothing */
    const char *args;  /* after ./kedge */
    int status;        /* expected exit status */
    const char *words; /* in the error */
    const char *after; /* shell that must succeed; NULL: no run directory was made */
};

static char work[] = "/tmp/kedge-bad-XXXXXX";
static struct kg_str said;

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(work))
        return 1;
    setenv("W", work, 1);
    setenv("D", "tests/data/verl_digit_llama", 1);
    setenv("T",
           "model.path=tests/data/verl_digit_llama task.name=digits "
           "data.train=tests/data/verl_digit_llama/train.jsonl rollout.prompts=2 "
           "rollout.samples=2 rollout.max_tokens=4 train.steps=2",
           1);
    setenv("E",
           "--model tests/data/verl_digit_llama --task digits --problems 2 "
           "--max-tokens 4 --data tests/data/verl_digit_llama/test.jsonl",
           1);
    return 0;
}

static int teardown(void **state)
{
    struct kg_err err;

    (void)state;
    kg_str_release(&said);
    return kg_file_remove_tree(work, &err) != KG_OK;
}

static int shell(const char *line)
{
    int status = system(line);

    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void read_said(void)
{
    char path[128];
    struct kg_err err;

    snprintf(path, sizeof path, "%s/err", work);
    kg_str_clear(&said);
    if (kg_file_read(&said, path, 1 << 20, &err) != KG_OK)
        fail_msg("%s", err.message);
}

/* Returns the error: the one line that begins with the program's name. After it only the
 * hint at --help may follow, and only with status 2. */
static const char *error_line(const struct bad *bad)
{
    const char *text = kg_str_text(&said);
    const char *line = strncmp(text, "kedge", 5) == 0 ? text : strstr(text, "\nkedge");
    const char *rest;

    if (!line)
        fail_msg("%s: expected an error, found: %s", bad->name, text);
    line += *line == '\n';
    rest = line + strcspn(line, "\n");
    rest += *rest == '\n';
    if (bad->status == 2 ? strncmp(rest, "`kedge", 6) != 0 : *rest != '\0')
        fail_msg("%s: expected one line, found: %s", bad->name, line);
    return line;
}

static void check(const struct bad *bad)
{
    char line[4096];
    int status;

    snprintf(line, sizeof line, "rm -rf \"${W:?}\"/* && %s",
             bad->make ? bad->make : "true");
    if (shell(line) != 0)
        fail_msg("%s: cannot make the input", bad->name);
    snprintf(line, sizeof line, "./kedge </dev/null %s >$W/out 2>$W/err", bad->args);
    status = shell(line);
    read_said();
    if (status != bad->status)
        fail_msg("%s: expected exit status %d, found %d: %s", bad->name, bad->status,
                 status, kg_str_text(&said));
    if (!strstr(error_line(bad), bad->words))
        fail_msg("%s: expected '%s', found: %s", bad->name, bad->words, error_line(bad));
    if (shell(bad->after ? bad->after : "test ! -e $W/run") != 0)
        fail_msg("%s: something is left behind", bad->name);
}

static void check_all(const struct bad *rows, size_t n)
{
    if (access("./kedge", X_OK) != 0) {
        print_message("skip: ./kedge is not built\n");
        skip();
    }
    for (size_t i = 0; i < n; i++)
        check(&rows[i]);
}

#define CHECK_ALL(rows) check_all(rows, sizeof(rows) / sizeof *(rows))

#define TRAIN "train $T run.dir=$W/run "
#define SFT   "sft $T train.steps=0 run.dir=$W/run sft.steps=2 sft.data=$W/s.jsonl "
#define ALONE "sft model.path=$D run.dir=$W/run sft.data=$W/s.jsonl "
#define EVAL  "eval $E "

/* ---- options without effect ---- */

/* An option that this command would not read is refused. */
static void options_without_effect(void **state)
{
    static const struct bad rows[] = {
        {"a reward of no task", NULL, TRAIN "'task.rewards=[\"a=mth\"]'", 1,
         "task.rewards: task: expected one of arithmetic, ", NULL},
        {"a reward of no task, what was found", NULL, TRAIN "'task.rewards=[\"a=mth\"]'",
         1, "found 'mth'", NULL},
        {"user turns without a template", "echo '{\"prompt\": \"p\"}' >$W/d.jsonl",
         "data check --user-turn $W/d.jsonl", 1,
         "--user-turn: expected a chat template (--model or --chat-template)", NULL},
        {"an opening without a template", "echo '{\"prompt\": \"p\"}' >$W/d.jsonl",
         "data check --opening x $W/d.jsonl", 1, "--opening: expected a chat template",
         NULL},
        {"bad golds of a task without golds", NULL,
         "eval -m $D --task digits --data $D/test.jsonl --dry-run --bad-golds drop", 1,
         "--bad-golds: has an effect only with task math; remove it (default stop)",
         NULL},
        {"another's wording of no search", NULL,
         "eval -m $D --task digits --data $D/test.jsonl --dry-run --wording search-r1", 1,
         "--wording: has an effect only with task search-qa or env search; remove it "
         "(default "
         "kedge)",
         NULL},
        {"reach of no decay", NULL,
         TRAIN "--dry-run sft.steps=1 sft.decay=matrices sft.weight_decay=0", 1,
         "sft.decay has no effect", NULL},
        {"reach of no decay, met at once", NULL,
         TRAIN "sft.steps=1 sft.decay=matrices sft.weight_decay=0", 1,
         "sft.decay has no effect", NULL},
        {"sft: steps of RL", NULL, SFT "train.steps=5", 1,
         "train.steps: kedge sft makes no RL steps; expected sft.steps or sft.epochs",
         NULL},
        {"sft: RL's learning rate where no RL can follow", NULL,
         ALONE "sft.steps=1 optim.lr=1e-3", 1,
         "optim.lr: has an effect only on RL updates, but there are no problems "
         "(task.name, "
         "data.train); use sft.lr or remove it (default 1e-6), found 1e-3",
         NULL},
        {"sft: RL's clip where no RL can follow", NULL,
         ALONE "sft.steps=1 optim.clip_norm=0.5", 1, "(default 1), found 0.5", NULL},
        {"sft: RL's default", NULL, ALONE "sft.steps=1 optim.lr=0.000001", 1,
         "s.jsonl: cannot open", NULL},
        {"sft: RL's learning rate in a recipe", "echo 'optim: {lr: 1e-3}' >$W/c.yaml",
         ALONE "$W/c.yaml sft.steps=1", 1, "s.jsonl: cannot open", NULL},
        {"sft: RL may follow", NULL, SFT "optim.lr=1e-3", 1, "s.jsonl: cannot open",
         NULL},
        {"validation of no problems", NULL, TRAIN "eval.problems=5", 1,
         "eval.problems: has an effect only with data.val or task.name arithmetic or "
         "countdown; "
         "remove it (default 200), found 5",
         NULL},
        {"a device that is too small", NULL,
         TRAIN "model.device=cuda --dry-run --device-memory 0.1GB", 1,
         "memory: expected at most 0.10 GB on the device, found 0.", NULL},
        {"a size without a unit", NULL,
         TRAIN "model.device=cuda --dry-run --device-memory 80", 1,
         "--device-memory: expected a size such as 141GB or 80GiB, found '80'", NULL},
        {"the memory of no device", NULL, TRAIN "--dry-run --device-memory 80GiB", 1,
         "model.device: expected cuda", NULL},
    };

    (void)state;
    CHECK_ALL(rows);
}

/* ---- configs ---- */

static void configs(void **state)
{
    static const struct bad rows[] = {
        {"unknown key", NULL, TRAIN "optim.lrr=1", 1, "did you mean 'optim.lr'?", NULL},
        {"unknown section", NULL, TRAIN "optm.lr=1", 1, "unknown section 'optm'", NULL},
        {"out of range", NULL, TRAIN "optim.lr=-1", 1,
         "optim.lr: expected a number from 0 to 10, found '-1'", NULL},
        {"not a number", NULL, TRAIN "train.steps=many", 1, "train.steps: expected",
         NULL},
        {"not one of the choices", NULL, TRAIN "task.name=digit", 1,
         "did you mean 'digits'?", NULL},
        {"no assignment", NULL, TRAIN "optim.lr", 1,
         "expected section.key=value, found 'optim.lr'", NULL},
        {"unknown key in a file", "printf 'optim:\\n  lr: 1\\n  beta: 1\\n' >$W/c.yaml",
         "train $W/c.yaml $T run.dir=$W/run", 1,
         "c.yaml line 3: unknown key 'optim.beta'; did you mean 'optim.beta1'?", NULL},
        {"out of range in a file", "printf 'optim:\\n  lr: 1\\n  beta1: 3\\n' >$W/c.yaml",
         "train $W/c.yaml $T run.dir=$W/run", 1,
         "c.yaml line 3: optim.beta1: expected a number from 0 to 0.999999, found '3'",
         NULL},
        {"malformed YAML", "printf 'optim:\\n  lr: {1\\n  x' >$W/c.yaml",
         "train $W/c.yaml $T run.dir=$W/run", 1, "c.yaml line", NULL},
        {"a list for a number", "printf 'optim:\\n  lr: [1]\\n' >$W/c.yaml",
         "train $W/c.yaml $T run.dir=$W/run", 1, "c.yaml line 2: optim.lr: expected",
         NULL},
        {"missing recipe", NULL, "train $W/c.yaml $T run.dir=$W/run", 1, "c.yaml: cannot",
         NULL},
        {"unknown preset", NULL, TRAIN "algo.preset=ema-pf", 1, "ema-pg", NULL},
        {"unknown preset in short", NULL, TRAIN "preset=ema-pf", 1, "nearest is 'ema-pg'",
         NULL},
        {"two recipes", "echo >$W/c.yaml", "train $W/c.yaml $T run.dir=$W/run $W/c.yaml",
         2, "expected one recipe and section.key=value, found '/tmp/kedge-bad-", NULL},
        {"TIS without recomputed log-probs", NULL, TRAIN "algo.tis=2", 1,
         "algo.tis: the old log-probs are the sampler's", NULL},
        {"more updates than prompts", NULL,
         TRAIN "rollout.prompts=2 train.updates_per_step=3", 1,
         "train.updates_per_step: expected at most rollout.prompts (2), found 3", NULL},
        {"a critic", NULL, TRAIN "algo.advantage=gae", 1, "kedge trains none", NULL},
        {"a group of one", NULL, TRAIN "preset=rloo rollout.samples=1", 1,
         "rollout.samples: algo.advantage rloo compares", NULL},
        {"K1 as a loss, off-policy and unweighted", NULL,
         TRAIN "preset=grpo kl.estimator=k1 train.updates_per_step=2", 1,
         "kl.importance: k1 as a loss pushes", NULL},
        {"unknown advantage", NULL, TRAIN "algo.advantage=gpro", 1,
         "algo.advantage: expected one of grpo", NULL},
        {"unknown KL", NULL, TRAIN "kl.estimator=k9", 1,
         "kl.estimator: expected one of none", NULL},
        {"nothing to do", NULL, TRAIN "train.steps=0", 1, "train.steps 0 and sft.steps 0",
         NULL},
        {"sft without steps", NULL, "sft $T train.steps=0 run.dir=$W/run", 1,
         "sft.steps 0", NULL},
        {"no run directory named", NULL, "train $T", 1, "run.dir", NULL},
        {"empty name of a run directory", NULL, "train $T run.dir=", 1,
         "run.dir: expected a path of 1 to", NULL},
        {"answers beyond the model's positions", NULL, TRAIN "rollout.max_tokens=5000", 1,
         "2048 positions, found 5008, of which the prompt has 8", NULL},
        {"level of a task without", NULL, TRAIN "task.level=easy", 1,
         "task.level: has an effect only with", NULL},
        {"no arguments", NULL, "train", 2, "expected a recipe", NULL},
        {"unknown flag", NULL, TRAIN "--resum", 2, "did you mean --resume?", NULL},
    };

    (void)state;
    CHECK_ALL(rows);
}

static void compositions(void **state)
{
    static const struct bad rows[] = {
        {"a recipe beside a preset that leaves no room for it",
         "printf 'kl:\\n  beta: 0.01\\n' >$W/c.yaml",
         "train preset=dapo $W/c.yaml $T run.dir=$W/run", 1,
         "/c.yaml line 2, with preset dapo", NULL},
        {"published gradient of a row with one", NULL,
         TRAIN "preset=distill-reverse kl.estimator=truncated-reverse kl.top_k=4 "
               "kl.gradient=published",
         1,
         "kl.gradient: has an effect only with kl.estimator topk-reverse or topk-forward",
         NULL},
        {"validation that the sampler refuses", NULL,
         TRAIN "data.val=$D/test.jsonl eval.temperature=1e-5 --dry-run", 1,
         "eval.temperature: expected a number from 0.0001 to 10000, or 0", NULL},
        {"a temperature that rounds to greedy", NULL, TRAIN "eval.temperature=1e-46", 1,
         "eval.temperature: expected a number", NULL},
        {"scores at a temperature that nothing is sampled at", NULL,
         "score -m tests/data/verl_digit_llama -t 1e-37 </dev/null", 2,
         "--temperature: expected a number from 0.0001 to 10000, or 0", NULL},
    };

    (void)state;
    CHECK_ALL(rows);
}

/* ---- checkpoints ---- */

#define LFS  "echo 'version https://git-lfs.github.com/spec/v1' "
#define COPY "cp -r $D $W/m && chmod -R u+w $W/m && cd $W/m && "

static void checkpoints(void **state)
{
    static const struct bad rows[] = {
        {"no model named", NULL, "train task.name=digits run.dir=$W/run", 1, "model.path",
         NULL},
        {"missing folder", NULL, TRAIN "model.path=$W/m", 1, "m/config.json: cannot open",
         NULL},
        {"a run's folder",
         "mkdir -p $W/m/checkpoints/latest && cp -r $D "
         "$W/m/checkpoints/latest/model",
         TRAIN "model.path=$W/m", 1,
         "found a run: its newest model is checkpoints/latest/model in this", NULL},
        {"a run's checkpoint", "mkdir $W/m && cp -r $D $W/m/model", "inspect $W/m", 1,
         "found a run's checkpoint: its model is model/ in this folder", NULL},
        {"adapters alone", "mkdir $W/m && echo '{}' >$W/m/adapter_config.json",
         "eval --model $W/m --data $D/test.jsonl", 1,
         "found adapters: set model.path to their base and model.adapter to this folder",
         NULL},
        {"unknown architecture", COPY "sed -i 's/\"llama\"/\"mamba\"/' config.json",
         TRAIN "model.path=$W/m", 1, "expected one of qwen2, qwen3, llama", NULL},
        {"missing tokenizer", COPY "rm token_ids.json tokenizer_config.json",
         TRAIN "model.path=$W/m", 1, "m: no tokenizer", NULL},
        {"tokenizer of another kind", COPY "echo '{}' >tokenizer.json",
         TRAIN "model.path=$W/m", 1, "tokenizer.json", NULL},
        {"missing weights", COPY "rm model.safetensors", TRAIN "model.path=$W/m", 1,
         "model.safetensors", NULL},
        {"truncated weights", COPY "truncate -s -10 model.safetensors",
         TRAIN "model.path=$W/m", 1, "model.safetensors", NULL},
        {"weights of torch", COPY "mv model.safetensors pytorch_model.bin",
         TRAIN "model.path=$W/m", 1,
         "found pytorch_model.bin: kedge does not read torch's files", NULL},
        {"shards without an index",
         COPY "mv model.safetensors model-00001-of-00001.safetensors", "inspect $W/m", 1,
         "found model-00001-of-00001.safetensors: shards need their", NULL},
        {"weights that Git LFS did not fetch", COPY LFS ">model.safetensors",
         "inspect $W/m", 1, "m/model.safetensors: expected the file, found", NULL},
        {"a tokenizer that Git LFS did not fetch", COPY LFS ">tokenizer.json",
         "inspect $W/m", 1, "m/tokenizer.json: expected the file, found", NULL},
        {"eval: missing folder", NULL, "eval --model $W/m --data $D/test.jsonl", 1,
         "m/config.json: cannot open", NULL},
        {"eval: missing tokenizer", COPY "rm token_ids.json tokenizer_config.json",
         EVAL "--model $W/m", 1, "m: expected a tokenizer, found none", NULL},
        {"eval: reference of another vocabulary", NULL,
         EVAL "--reference tests/data/models/synthetic_tiny_qwen2", 1,
         "expected the policy's vocabulary of 16, found 320", NULL},
        {"eval: missing reference", NULL, EVAL "--reference $W/m", 1, "m/config.json",
         NULL},
        {"eval: no model named", NULL, "eval --data $D/test.jsonl", 2, "--model DIR",
         NULL},
    };

    (void)state;
    CHECK_ALL(rows);
}

/* ---- data ---- */

#define FIRST "printf '{\"prompt\": \"1,2:3,4\", \"answer\": \"3\"}\\n"

static void data_files(void **state)
{
    static const struct bad rows[] = {
        {"missing file", NULL, TRAIN "data.train=$W/d", 1, "d: cannot open", NULL},
        {"no file named", NULL, TRAIN "data.train=", 1, "expected a data file", NULL},
        {"empty file", ": >$W/d", TRAIN "data.train=$W/d", 1,
         "d: expected at least one record, found none", NULL},
        {"malformed line", FIRST "\\n{\"prompt\"\\n' >$W/d", TRAIN "data.train=$W/d", 1,
         "d line 3:", NULL},
        {"not an object", FIRST "[1]\\n' >$W/d", TRAIN "data.train=$W/d", 1,
         "d line 2:", NULL},
        {"no prompt", FIRST "{\"answer\": \"3\"}\\n' >$W/d", TRAIN "data.train=$W/d", 1,
         "d line 2: expected a prompt under", NULL},
        {"empty prompt", FIRST "{\"prompt\": \"\", \"answer\": \"3\"}\\n' >$W/d",
         TRAIN "data.train=$W/d", 1, "d line 2: key 'prompt': expected a prompt", NULL},
        {"no answer", FIRST "{\"prompt\": \"3\"}\\n' >$W/d", TRAIN "data.train=$W/d", 1,
         "d line 2: expected an answer under", NULL},
        {"a NUL in a prompt",
         "printf '{\"prompt\": \"1\\\\u0000\", \"answer\": \"3\"}' >$W/d.jsonl",
         TRAIN "data.train=$W/d.jsonl", 1,
         "line 1: key 'prompt': expected text without NUL, found one at byte 1", NULL},
        {"no such column", NULL, TRAIN "data.prompt_key=zip", 1,
         "line 1: expected a prompt under zip", NULL},
        {"text that the tokenizer lacks",
         FIRST "{\"prompt\": \"x\", \"answer\": \"3\"}\\n' >$W/d",
         TRAIN "data.train=$W/d", 1, "d line 2:", NULL},
        {"validation file broken", FIRST "x\\n' >$W/d", TRAIN "data.val=$W/d", 1,
         "d line 2:", NULL},
        {"overlong prompt",
         FIRST "{\"prompt\": \"1,2:3,4,5\", \"answer\": \"3\"}\\n' >$W/d",
         TRAIN "data.train=$W/d data.max_prompt_tokens=8 data.overlong=error", 1,
         "d line 2: expected a prompt of at most 8 tokens, found 10", NULL},
        {"nothing but overlong prompts", NULL, TRAIN "data.max_prompt_tokens=1", 1,
         "expected a prompt of at most 1 tokens, found none among 800", NULL},
        {"template without a place", NULL, TRAIN "data.template=x", 1,
         "expected a text with {prompt}, found 'x'", NULL},
        {"sft: missing file", NULL, SFT, 1, "s.jsonl: cannot open", NULL},
        {"sft: empty file", ": >$W/s.jsonl", SFT, 1, "s.jsonl: expected", NULL},
        {"sft: malformed line", "printf '{\"text\": \"1\"}\\n{\\n' >$W/s.jsonl", SFT, 1,
         "s.jsonl line 2:", NULL},
        {"sft: no response", "printf '{\"prompt\": \"1\"}\\n' >$W/s.jsonl", SFT, 1,
         "solution, answer, output) or \"segments\", found no response", NULL},
        {"sft: a response that is not a text",
         "printf '{\"prompt\": \"1\", \"answer\": 5}\\n' >$W/s.jsonl", SFT, 1,
         "found a response that is not a text: answer is integer", NULL},
        {"sft: no prompt", "printf '{\"response\": \"1\"}\\n' >$W/s.jsonl", SFT, 1,
         "found no prompt", NULL},
        {"sft: nothing short enough", "printf '{\"text\": \"1,2,3\"}\\n' >$W/s.jsonl",
         SFT "sft.max_tokens=3", 1,
         "at most 3 tokens (sft.max_tokens), found only longer", NULL},
        {"eval: missing file", NULL, EVAL "--data $W/d", 1, "d: cannot open", NULL},
        {"eval: malformed line", FIRST "{\\n' >$W/d", EVAL "--data $W/d", 1,
         "d line 2:", NULL},
        {"eval: no such column", NULL, EVAL "--answer-key zip", 1,
         "expected an answer under zip", NULL},
        {"eval: unknown task", NULL, EVAL "--task digit", 1,
         "task: expected one of arithmetic, countdown, digits", NULL},
        {"eval: no data", NULL, "eval --model $D --task digits", 1,
         "expected a data file, found none", NULL},
        {"eval: no problems", NULL, EVAL "--problems 0", 2, "--problems: expected", NULL},
        {"task: unknown", NULL, "task digit", 1, "task: expected one of arithmetic",
         NULL},
        {"task: reads data", NULL, "task digits", 1, "found one that reads data", NULL},
        {"task: unknown level", NULL, "task arithmetic --level x", 1, "found 'x'", NULL},
    };

    (void)state;
    CHECK_ALL(rows);
}

/* ---- run directories, graders, dumps ---- */

#define STARTED  "./kedge train $T run.dir=$W/run 2>/dev/null"
#define SAME     "diff -r $W/run $W/copy"
#define EXTERNAL "task.name=external "

static void run_directories(void **state)
{
    static const struct bad rows[] = {
        {"a file in the way", ": >$W/file", "train $T run.dir=$W/file/run", 1,
         "file: expected a folder, found a file", "test -f $W/file"},
        {"a file itself", ": >$W/file", "train $T run.dir=$W/file", 1,
         "file: expected a folder, found a file", "test ! -s $W/file"},
        {"a run already", STARTED " && cp -r $W/run $W/copy", TRAIN, 1,
         "continue that run with --resume", SAME},
        {"checkpoints without config",
         STARTED " && rm $W/run/config.yaml && cp -r $W/run $W/copy", TRAIN, 1,
         "found checkpoints/step-000002", SAME},
        {"a log that is none of ours", "mkdir $W/run && echo x >$W/run/metrics.jsonl",
         TRAIN, 1, "found metrics.jsonl", "grep -q x $W/run/metrics.jsonl"},
        {"resume with another config", STARTED " && cp -r $W/run $W/copy",
         TRAIN "--resume optim.lr=2e-3 run.seed=5", 1, "found 2 changes: ", SAME},
        {"resume names what differs", STARTED " && cp -r $W/run $W/copy",
         TRAIN "--resume optim.lr=2e-3", 1, "optim.lr", SAME},
        {"resume without a run", NULL, TRAIN "--resume", 1, "found no config.yaml", NULL},
        {"resume with a broken state",
         STARTED " && echo '{' >$W/run/checkpoints/step-000002/state.json",
         TRAIN "--resume", 1, "step-000002/state.json", "test -d $W/run"},
        {"resume with the state of an older kedge",
         STARTED " && sed -i 's/\"format\": 3/\"format\": 2/' "
                 "$W/run/checkpoints/step-000002/state.json",
         TRAIN "--resume", 1,
         "state.json: expected format 3, found 2, written by an older kedge. The "
         "checkpoint's model "
         "(model/) can still be used: set model.path to it",
         /* this hint works also without the manifest, which older versions did not
          * write */
         "rm $W/run/checkpoints/step-000002/manifest.json && ./kedge train "
         "$T "
         "run.dir=$W/again model.path=$W/run/checkpoints/step-000002/model > $W/out "
         "2>&1"},
        {"resume with a cut log", STARTED " && truncate -s 10 $W/run/metrics.jsonl",
         TRAIN "--resume", 1, "metrics.jsonl: expected at least", "test -d $W/run"},
    };

    (void)state;
    CHECK_ALL(rows);
}

/* Lines of `kedge grade` whose optional keys have the wrong type. */
static void keys_of_grading(void **state)
{
#define LINE(key) "echo '{\"answer\": \"5\", \"gold\": \"5\", " key "}' >$W/in"
    static const struct bad rows[] = {
        {"strict", LINE("\"strict\": \"no\""), "grade <$W/in", 1,
         "line 1: key 'strict': expected true or false, found string", NULL},
        {"relations", LINE("\"allow_set_relation_comp\": 1"), "grade <$W/in", 1,
         "key 'allow_set_relation_comp': expected true or false, found", NULL},
        {"language", LINE("\"language\": 7"), "grade <$W/in", 1,
         "line 1: key 'language': expected string, found", NULL},
        {"form of a response",
         "echo '{\"response\": \"5\", \"gold\": \"5\", \"form\": \"poem\"}' >$W/in",
         "grade <$W/in", 1, "line 1: key 'form': ", NULL},
    };
#undef LINE

    (void)state;
    CHECK_ALL(rows);
}

#define COPIED "mkdir -p $W/m && cp $D/*.json $D/*.safetensors $W/m/ && cd $W/m && "

/* A model folder from elsewhere may contain pipes, loops and folders in place of files.
 * Each command must end at once and name the file. */
static void files_of_a_model_that_are_no_files(void **state)
{
    static const struct bad rows[] = {
        {"weights are a pipe", COPIED "rm model.safetensors && mkfifo model.safetensors",
         "inspect $W/m", 1, "model.safetensors: expected a file, found a pipe", NULL},
        {"config is a pipe", COPIED "rm config.json && mkfifo config.json",
         "inspect $W/m", 1, "config.json: expected a file, found a pipe", NULL},
        {"tokenizer is a pipe", COPIED "rm token_ids.json && mkfifo tokenizer.json",
         "tokenize -m $W/m", 1, "tokenizer.json: expected a file, found a pipe", NULL},
        {"tokenizer's config is a loop",
         COPIED "rm -f tokenizer_config.json && ln -s tokenizer_config.json "
                "tokenizer_config.json",
         "tokenize -m $W/m", 1, "tokenizer_config.json: cannot open: Too many levels",
         NULL},
        {"tokenizer's config leads nowhere",
         COPIED "ln -sf nothing tokenizer_config.json", "tokenize -m $W/m", 1,
         "tokenizer_config.json: cannot open: No such file", NULL},
        {"the folder cannot be looked into", "ln -s l $W/l", "inspect $W/l/m", 1,
         "config.json: cannot open: Too many levels", NULL},
        {"chat: the folder cannot be looked into", "ln -s l $W/l", "chat -m $W/l/m", 1,
         "l/m: cannot read its status: Too many levels", NULL},
        {"weights that cannot be looked at",
         COPIED "rm model.safetensors && ln -s model.safetensors model.safetensors",
         "inspect $W/m", 1, "model.safetensors: cannot open: Too many levels", NULL},
        {"a chat template that cannot be looked at", "ln -s l $W/l",
         "chat-template -m $W/l/m", 1, "l/m: cannot open: Too many levels", NULL},
        {"an index that cannot be looked at", "ln -s l $W/l",
         "search query $W/l/i.db hello", 1,
         "i.db: cannot read its status: Too many levels", NULL},
        {"a checkpoint that cannot be looked at", "ln -s l $W/l",
         "train run.dir=$W/run task.name=digits data.train=$D/train.jsonl "
         "init.from=$W/l/run",
         1, "manifest.json: cannot open: Too many levels", NULL},
        {"chat template leads nowhere", COPIED "ln -sf nothing chat_template.jinja",
         "generate -m $W/m --user-turn --max-tokens 1 1", 1,
         "chat_template.jinja: cannot open: No such file or directory (a link that leads "
         "nowhere)",
         NULL},
        {"tokenizer leads nowhere",
         COPIED "rm token_ids.json && ln -s nothing tokenizer.json",
         "generate -m $W/m --max-tokens 1 1", 1,
         "tokenizer.json: cannot open: No such file or directory (a link", NULL},
        {"generation config leads nowhere", COPIED "ln -sf no generation_config.json",
         "inspect $W/m", 1, "generation_config.json: cannot open", NULL},
        {"inspect: a weight is no number",
         COPIED "printf '\\0\\0\\300\\177' | dd conv=notrunc status=none bs=1 "
                "of=model.safetensors seek=$(($(stat -c %s model.safetensors) - 4))",
         "inspect $W/m", 1, "expected finite weights, found NaN or infinity", NULL},
    };

    (void)state;
    CHECK_ALL(rows);
}

/* A model and its tokenizer are read by two threads. The order of errors must not depend
 * on their speed: the model's error is always reported first. */
static void the_models_error_comes_before_the_tokenizers(void **state)
{
    static const struct bad rows[] = {
        {"a tokenizer that is cut: generate", COPIED "echo '{' >tokenizer.json",
         "generate --model $W/m 1", 1, "m/tokenizer.json: line 2", NULL},
        {"a tokenizer that is cut: score", COPIED "echo '{' >tokenizer.json",
         "score --model $W/m", 1, "m/tokenizer.json: line 2", NULL},
        {"a config that is cut: generate", COPIED "echo '{' >config.json",
         "generate --model $W/m 1", 1, "m/config.json: line 2", NULL},
        {"a config that is cut: score", COPIED "echo '{' >config.json",
         "score --model $W/m", 1, "m/config.json: line 2", NULL},
        {"no weights: generate", COPIED "rm model.safetensors", "generate --model $W/m 1",
         1, "found neither", NULL},
        {"no weights: score", COPIED "rm model.safetensors", "score --model $W/m", 1,
         "found neither", NULL},
        {"no weights, and a tokenizer that is cut: generate",
         COPIED "rm model.safetensors && echo '{' >tokenizer.json",
         "generate --model $W/m 1", 1, "found neither", NULL},
        {"no weights, and a tokenizer that is cut: score",
         COPIED "rm model.safetensors && echo '{' >tokenizer.json", "score --model $W/m",
         1, "found neither", NULL},
        {"both files of JSON are cut: generate",
         COPIED "echo '{' >config.json && echo '{' >tokenizer.json",
         "generate --model $W/m 1", 1, "m/config.json: line 2", NULL},
        {"both files of JSON are cut: score",
         COPIED "echo '{' >config.json && echo '{' >tokenizer.json", "score --model $W/m",
         1, "m/config.json: line 2", NULL},
        {"weights that are cut, and a tokenizer: generate",
         COPIED "truncate -s 100 model.safetensors && echo '{' "
                ">tokenizer.json",
         "generate --model $W/m 1", 1, "m/model.safetensors", NULL},
        {"weights that are cut, and a tokenizer: score",
         COPIED "truncate -s 100 model.safetensors && echo '{' "
                ">tokenizer.json",
         "score --model $W/m", 1, "m/model.safetensors", NULL},
    };

    (void)state;
    CHECK_ALL(rows);
}

static void graders_and_dumps(void **state)
{
    static const struct bad rows[] = {
        {"no command", NULL, TRAIN EXTERNAL, 1, "expected a grading command", NULL},
        {"grader fails", NULL, TRAIN EXTERNAL "'task.command=echo no >&2; exit 3'", 1,
         "expected exit status 0, found 3: no", "test ! -e $W/run/checkpoints/latest"},
        {"grader is silent", NULL, TRAIN EXTERNAL "'task.command=cat >/dev/null'", 1,
         "expected 4 answers, found 0", "test ! -e $W/run/checkpoints/latest"},
        {"grader talks nonsense", NULL, TRAIN EXTERNAL "task.command=cat", 1,
         "expected {\"score\": number or null}", "test ! -e $W/run/rollouts/step-*"},
        {"score too large", NULL,
         TRAIN EXTERNAL "\"task.command=sed 's/.*/{\\\"score\\\": 1e308}/'\"", 1,
         "expected a score of magnitude at most 1e+09, found 1e+308",
         "test ! -e $W/run/checkpoints/latest"},
        {"grader hangs", NULL,
         TRAIN EXTERNAL "'task.command=sleep 60' task.timeout_ms=200", 1,
         "expected its answers within 200 ms", "test -d $W/run"},
        {"eval: grader fails, no dump", NULL,
         EVAL "--task external --command 'exit 3' --dump $W/dump", 1,
         "expected exit status 0, found 3", "! ls $W | grep -q dump"},
        {"eval: a failure keeps the old dump", "echo old >$W/dump",
         EVAL "--task external --command 'exit 3' --dump $W/dump", 1, "found 3",
         "grep -q old $W/dump && test $(ls $W | grep -c dump) = 1"},
        {"eval: dump into no folder", NULL, EVAL "--dump $W/none/dump", 1,
         "--dump: ", "! test -e $W/none"},
        {"eval: dump onto a folder", "mkdir $W/dump", EVAL "--dump $W/dump", 1,
         "dump: cannot write", "rmdir $W/dump && ! ls $W | grep -q dump"},
        {"eval: dump onto a full device", "test -c /dev/full", EVAL "--dump /dev/full", 1,
         "/dev/full: cannot write: No space left", "test -c /dev/full"},
    };

    (void)state;
    CHECK_ALL(rows);
}

/* ---- left-out records are counted and reported before the first step ---- */

/* `policy check` prints each failed golden case as a line on stdout, and its exit status
 * is not 0. */
static void golden_folders(void **state)
{
    static const struct bad rows[] = {
        {"no folder", NULL, "policy check $W/g", 1, "g: cannot list", NULL},
        {"an empty folder", "mkdir $W/g", "policy check $W/g", 1,
         "expected *.json files of cases, found none", NULL},
        {"no folder named", NULL, "policy check", 2, "kedge policy check DIR", NULL},
        {"another verb", NULL, "policy chek tests", 2, "kedge policy check DIR", NULL},
    };
    static const char *const lines[] = {
        "./kedge policy check tests/data/golden > $W/out && "
        "tail -1 $W/out | grep -qx '430 passed, 0 failed, 0 skipped'",
        "mkdir $W/g && printf '{\"family\": ' > $W/g/a.json && "
        "! ./kedge policy check $W/g > $W/out && grep -q '^failed: a.json: ' $W/out && "
        "grep -qx '0 passed, 1 failed, 0 skipped' $W/out",
        "echo '{\"family\": \"kl_new\", \"cases\": [{\"name\": \"n\"}]}' > $W/g/a.json "
        "&& ! ./kedge policy check $W/g > $W/out && "
        "grep -q '^skipped: a.json: n: family: expected one of' $W/out",
        "cp tests/data/golden/kl_full.json $W/g/a.json && sed -i "
        "'0,/\"kl_loss\": *[-0-9.e]*/s//\"kl_loss\": 7/' $W/g/a.json && "
        "! ./kedge policy check --json $W/g > $W/out && grep -q '\"outcome\": "
        "\"failed\", \"reason\": \"kl_loss\\[0\\]: expected 7, found' $W/out && "
        "tail -1 $W/out | grep -q '\"failed\": 1, \"skipped\": 0'",
    };

    (void)state;
    CHECK_ALL(rows);
    assert_int_equal(shell("rm -rf \"${W:?}\"/*"), 0);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (shell(lines[i]) != 0)
            fail_msg("%s", lines[i]);
}

static void what_is_left_out_is_said_before_step_0(void **state)
{
    const char *dropped, *step;

    (void)state;
    if (access("./kedge", X_OK) != 0) {
        print_message("skip: ./kedge is not built\n");
        skip();
    }
    assert_int_equal(
        shell("rm -rf \"${W:?}\"/* && " FIRST
              "{\"prompt\": \"1,2:3,4,5\", \"answer\": \"3\"}\\n' >$W/d && printf "
              "'{\"text\": \"1,2\"}\\n{\"text\": \"1,2,3,4\"}\\n' >$W/s.jsonl && "
              "./kedge " TRAIN "data.train=$W/d data.max_prompt_tokens=8 sft.steps=1 "
              "sft.data=$W/s.jsonl sft.max_tokens=5 2>$W/err"),
        0);
    read_said();
    step = strstr(kg_str_text(&said), "\nsft 1/1");
    dropped = strstr(kg_str_text(&said), "d: 1 prompts, longest 8 tokens; left out: 0 "
                                         "without prompt, 1 over 8 tokens");
    assert_non_null(step);
    assert_non_null(dropped);
    assert_true(dropped < step);
    dropped = strstr(kg_str_text(&said), "SFT: 1 sequences, longest 4 tokens; left "
                                         "out: 1 over 5 tokens");
    assert_non_null(dropped);
    assert_true(dropped < step);
    assert_non_null(strstr(kg_str_text(&said), "a checkpoint takes"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_without_effect),
        cmocka_unit_test(configs),
        cmocka_unit_test(compositions),
        cmocka_unit_test(checkpoints),
        cmocka_unit_test(data_files),
        cmocka_unit_test(run_directories),
        cmocka_unit_test(keys_of_grading),
        cmocka_unit_test(files_of_a_model_that_are_no_files),
        cmocka_unit_test(the_models_error_comes_before_the_tokenizers),
        cmocka_unit_test(graders_and_dumps),
        cmocka_unit_test(golden_folders),
        cmocka_unit_test(what_is_left_out_is_said_before_step_0),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
