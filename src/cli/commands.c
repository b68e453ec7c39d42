/* The table of commands. A new command is a row here and a file cmd_<name>.c.
 *
 * Help, the man page, the shell completion and the parsing of arguments all use
 * this table and the tables of flags that it points to. None of them can omit a command
 * or name a flag that does not exist. A row has a command's arguments and an example; its
 * own file has the code.
 */
#include "cli/cli.h"

#include <string.h>

static const struct kg_flag no_flags[] = {{0}};

const struct kg_command kg_commands[] = {
    {"demo", "train a small model from random weights by two methods", kg_cmd_demo,
     "[flags] [section.key=value ...]", kg_demo_flags,
     "Makes a tokenizer and a model of a million parameters, teaches it faulty "
     "arithmetic by SFT, trains it by GRPO and by EMA-PG, and prints accuracy, KL and "
     "entropy before and after: about a minute on two fast cores. It needs neither "
     "network nor files. Parts that an earlier demo in DIR finished are reused.",
     -1, NULL, NULL, NULL, NULL},
    {"train", "train a policy by reinforcement learning", kg_cmd_train,
     "[flags] [preset=NAME] [RECIPE] [section.key=value ...]", kg_train_flags,
     "RECIPE is a YAML file; assignments override it. A preset (preset=NAME, short for "
     "algo.preset; `kedge presets` lists them) has the lowest priority. The run "
     "directory (run.dir) gets config.yaml, metrics.jsonl, rollouts/ and "
     "checkpoints/step-NNNNNN/{model,anchor}. SIGINT, SIGTERM and SIGHUP finish the "
     "step, save and exit with status 128 + the signal; 0 means that the run is "
     "complete. SIGUSR1 makes every command report what it is doing.",
     -1, NULL, NULL, NULL, NULL},
    {"sft", "supervised training: only the SFT of a recipe", kg_cmd_sft,
     "[flags] [RECIPE] [section.key=value ...]", kg_train_flags,
     "Runs the SFT of a recipe without its RL steps. Data are JSONL of prompt and "
     "response, episodes (prompt and segments), conversations (messages), or text. The "
     "loss covers only the model's text.",
     -1, NULL, NULL, NULL, NULL},
    {"distill", "train towards a teacher checkpoint (anchor.path)", kg_cmd_distill,
     "[flags] [RECIPE] [section.key=value ...]", kg_train_flags,
     "Like `train`, but the KL to the teacher is the whole loss and there is no reward: "
     "on the policy's own completions (preset distill-reverse or distill-forward), or on "
     "those of rollout.data (preset distill-offline). One completion per prompt by "
     "default (rollout.samples).",
     -1, NULL, NULL, NULL, NULL},
    {"replay", "loss and gradient of a dumped step with another algorithm", kg_cmd_replay,
     "[flags] RUN STEP [preset=NAME] [section.key=value ...]", kg_replay_flags,
     "Takes the trajectories of RUN/rollouts and the newest checkpoint before STEP "
     "(whose name it prints), and computes the whole step as one update: loss, norm of "
     "the gradient, its variance over groups of completions, and its cosines to the "
     "gradients of the exact objective (the ratio of the whole completion to the "
     "sampler, no clip, no mask, the exact KL) and of the exact KL alone. Keys of algo, "
     "kl and anchor, and train.old_logp, change the algorithm. Nothing is written into "
     "RUN.",
     -1, NULL, NULL, NULL, "lab"},
    {"report", "a page of plots of one or several runs", kg_cmd_report,
     "[flags] RUN [RUN...] | --metrics", kg_report_flags,
     "Writes one HTML file without scripts from metrics.jsonl and config.yaml of each "
     "run: a summary, first and last numbers, differences of the configs, and a plot of "
     "every metric with its meaning. Several runs share each plot. A run writes its own "
     "report.html at every checkpoint and at its end (log.report).",
     -1, NULL, NULL, NULL, NULL},
    {"table", "summary of rows of results: means, paired differences", kg_cmd_table,
     "[flags] --metric KEY FILE [FILE...]", kg_table_flags,
     "A row is a line of JSON. Rows with the same text under --by are a cell. Prints, as "
     "Markdown, the mean of each cell with a 95 % bootstrap interval (10,000 seeded "
     "resamples). With --against it prints the mean paired difference of each cell from "
     "the cell named there, with p-values adjusted by Holm over all cells of the table. "
     "Rows are paired by --pair; a pair that is missing in either cell is an error.",
     -1, NULL, NULL, NULL, "lab"},
    {"eval", "accuracy of a model on a suite of sets or on one task", kg_cmd_eval,
     "--model DIR [SUITE.yaml] [flags] [section.key=value ...] | compare DIR_A DIR_B",
     kg_eval_flags,
     "SUITE.yaml names sets of problems and how they are sampled and graded "
     "(docs/evaluate.md; suites/ has the published protocols); assignments override it, "
     "and a flag for a set applies to all of its sets. Without a suite, --task and "
     "--data define a single set, val.\n\nPrints avg@n (the mean over problems of the "
     "share of right answers among n), pass@k and maj@k with their standard errors over "
     "problems. A sample depends only on the model, the seed, the set, the problem and "
     "the sample's number, so --out DIR can continue after any interruption and ends "
     "with the same bytes.\n\n`compare` takes two finished folders of the same problems "
     "and prints B - A of every metric with a paired 95 % interval. Its only flag is "
     "--json.",
     -1, NULL, NULL, "!compare", NULL},
    {"generate", "complete prompts", kg_cmd_generate, "--model DIR [flags] [PROMPT]",
     kg_generate_flags,
     "With PROMPT the completion is printed as text. With --jsonl every line of stdin is "
     "{\"prompt\": text}, {\"prompt\": [messages]}, which the chat template renders "
     "(with \"tools\": [...], if it has them), or {\"ids\": [...]}. Every completion is "
     "a line {\"ids\", \"logprobs\", \"text\", \"finish_reason\"} on stdout, in input "
     "order, --n lines for each input. Input keys that set sampling are refused; other "
     "keys are ignored.\n\nA log-prob is that of the full softmax at the temperature "
     "(temperature 0: at 1), bit for bit what `kedge score` prints for the same ids. "
     "Truncation applies in the order top-k, top-p, min-p. The finish reason is stop (an "
     "end token), stop_string, or length.",
     1, NULL, NULL, NULL, NULL},
    {"chat", "talk to a checkpoint in the terminal", kg_cmd_chat, "--model DIR [flags]",
     kg_chat_flags,
     "A line is a message; the completion is printed as it is sampled. Ctrl-C ends a "
     "completion, /new begins another conversation, /quit and Ctrl-D leave, /help lists "
     "such commands; write // for a message that begins with /. The conversation is kept "
     "as tokens: the model's turns are never tokenised again, unless the chat template "
     "rewrites them.",
     0, NULL, NULL, NULL, NULL},
    {"serve", "OpenAI's API over HTTP for a checkpoint", kg_cmd_serve,
     "--model DIR [flags]", kg_serve_flags,
     "Serves /v1/models, /v1/completions and /v1/chat/completions, streamed or whole, "
     "/health, and /metrics for Prometheus. Requests share one running batch. Completion "
     "i of a request with a seed is sampled with seed + i, independent of other "
     "requests; `kedge generate --served` gives the same bits. SIGTERM finishes open "
     "requests, then exits. See docs/serve.md.",
     0, NULL, NULL, NULL, NULL},
    {"score", "log-probs of given tokens by the training forward pass", kg_cmd_score,
     "--model DIR [flags] < LINES", kg_score_flags,
     "Every line of stdin is {\"ids\": [...]}, every line of stdout {\"logprobs\": "
     "[null, lp(ids[1] | ids[0]), ...]}. Numbers are printed with enough digits for the "
     "same float32.",
     0, NULL, NULL, NULL, NULL},
    {"tokenize", "text to token ids and back", kg_cmd_tokenize,
     "--model DIR [flags] < LINES", kg_tokenize_flags,
     "Every line of stdin is {\"text\": text}, every line of stdout {\"ids\": [...]}; "
     "with --decode the other way round. A folder with only tokenizer.json or "
     "tokenizer.model is enough.",
     0, NULL, NULL, NULL, NULL},
    {"embed", "texts to vectors, by an encoder", kg_cmd_embed,
     "--model DIR [flags] < LINES", kg_embed_flags,
     "DIR is a BERT-shaped encoder (E5, MiniLM, BGE) in the layout of "
     "sentence-transformers. Every line of stdin is {\"text\": text}, or with --lines "
     "the text itself; every line of stdout {\"vector\": [...]}. The vector of a text "
     "does not depend on other texts or the number of threads, bit for bit. See "
     "docs/search.md.",
     0, NULL, NULL, NULL, "retriever"},
    {"chat-template", "render messages by a model's chat template", kg_cmd_chat_template,
     "--model DIR|FILE [flags] < LINES", kg_chat_template_flags,
     "Every line of stdin is {\"messages\": [...], \"tools\", \"add_generation_prompt\", "
     "...}, every line of stdout {\"text\"}. Every key is a variable of the template. "
     "The template is chat_template.jinja or in tokenizer_config.json, whose special "
     "tokens are the defaults of bos_token, eos_token and the like.",
     0, NULL, NULL, NULL, NULL},
    {"inspect", "contents of a checkpoint, and the memory it needs", kg_cmd_inspect,
     "[flags] DIR", kg_inspect_flags,
     "Config and tensors are checked as strictly as by the commands that compute with "
     "them.",
     1, NULL, NULL, NULL, NULL},
    {"export", "write a checkpoint as a GGUF file, for llama.cpp", kg_cmd_export,
     "MODEL --to FILE.gguf [flags]", kg_export_flags,
     "MODEL is a checkpoint folder or a GGUF file. Metadata, tokenizer and chat template "
     "go into the file. Adapters are not merged: write them to a file of their own with "
     "--adapter, or run kedge merge first. Export refuses a model that llama.cpp would "
     "compute differently, and names the field.",
     1, NULL, NULL, NULL, "gguf"},
    {"merge", "merge adapters into their base: write one checkpoint", kg_cmd_merge,
     "--model DIR --adapter DIR [flags] OUT", kg_merge_flags,
     "Every weight that has an adapter becomes W + s B A, rounded once to --dtype; all "
     "else is copied. Unmerged adapters round separately, so log-probs of the merged "
     "checkpoint are close to theirs, not equal.",
     1, NULL, NULL, NULL, NULL},
    {"new", "write a randomly initialised checkpoint", kg_cmd_new, "[flags] DIR",
     kg_new_flags,
     "Writes config.json, model.safetensors and the tokenizer's files. DIR must be "
     "absent or empty. The tokenizer is copied from a folder (--tokenizer) or trained on "
     "a text file (--train-tokenizer FILE --vocab N: one document a line, or the "
     "\"text\" of each line when the name ends in .jsonl).",
     1, NULL, NULL, NULL, NULL},
    {"pull", "fetch a model or a data set from the hub", kg_cmd_pull,
     "[flags] [ORG/]NAME[@REVISION] | hf://ORG/NAME[@REVISION]/FILE", kg_pull_flags,
     "Fetches into the cache of HuggingFace's libraries and prints the folder there; "
     "every command then takes the name instead of a folder. Fetches the files of a "
     "model that kedge reads, all files of a data set, or FILE. Checks lengths and "
     "digests; an interrupted pull continues. HF_HOME and HF_HUB_CACHE set the cache, "
     "HF_ENDPOINT the hub, HF_TOKEN or the file HF_HOME/token the access token "
     "(docs/hub.md).",
     1, NULL, NULL, NULL, NULL},
    {"task", "list the tasks, or print generated problems", kg_cmd_task, "[flags] [TASK]",
     kg_task_flags, NULL, 1, NULL, NULL, NULL, NULL},
    {"wiki", "generate a made-up world to train a search agent", kg_cmd_wiki,
     "[flags] corpus DIR | episodes INDEX OUT.jsonl", kg_wiki_flags,
     "corpus: writes corpus.jsonl (passages on made-up works, people and places), "
     "train.jsonl and test.jsonl (questions that need two searches; the two files share "
     "no names) and tokenizer.jsonl (text for kedge new --train-tokenizer).\n\nepisodes: "
     "plays training questions against an index of that corpus, a share of them with "
     "faults, and writes the episodes for SFT. --seed and --works must be the values "
     "used for the corpus.",
     3, NULL, NULL, NULL, "lab"},
    {"data", "inspect, check and convert a data file", kg_cmd_data,
     "[flags] check|head|convert FILE", kg_data_flags,
     "FILE is JSON lines or a JSON array of objects (also gzip, zstd), or Parquet; the "
     "content decides.\n\ncheck: reads every record as training will, and prints how "
     "many have a prompt, an answer, a worked solution. head: prints the first records "
     "as JSON lines. convert: writes all of them.",
     2, NULL, NULL, NULL, NULL},
    {"search", "build, query and serve an index of passages", kg_cmd_search,
     "[flags] index CORPUS INDEX | query INDEX [QUERY] | serve INDEX | check INDEX | "
     "bench INDEX|URL QUESTIONS",
     kg_search_flags,
     "index: CORPUS is JSON lines (or any format of `kedge data`) of {\"id\", "
     "\"contents\"}, the first line of the contents being the title, or of {\"title\", "
     "\"text\"}. INDEX is one file, replaced when the new file is complete. query: QUERY "
     "is any text, there is no query language; without it every line of stdin is "
     "{\"query\": text}, every line of stdout {\"passages\": [{\"id\", \"contents\", "
     "\"score\"}], \"scored\", \"cut\"}. serve: Search-R1's protocol, POST /retrieve of "
     "{\"queries\", \"topk\", \"return_scores\"}, and GET /health and /metrics; SIGTERM "
     "ends it. bench: sends the queries ({\"query\"} or {\"question\"}) of a file for "
     "--seconds and prints queries per second and percentiles of latency. check: reads "
     "the whole file and compares its hash. With --dense an index also has vectors of an "
     "encoder, and --kind searches by vectors (dense) or by vectors and words "
     "(hybrid).\n\ndocs/search.md goes from a corpus to a served index.",
     3, NULL, NULL, NULL, "retriever"},
    {"grade", "grade given answers", kg_cmd_grade, "[flags] < LINES", kg_grade_flags,
     "Every line of stdin is {\"answer\" or \"response\": text, \"gold\": text or list "
     "of alternatives}, every line of stdout {\"verdict\": "
     "\"right\"|\"wrong\"|\"undecided\", \"extracted\", \"reason\"}. Optional keys: "
     "form (auto, answer, text, response, choice, bracket), precision (decimals, "
     "a tolerance, or a list of them), strict, allow_set_relation_comp. With --kind "
     "qa-*: {\"prediction\" (an answer) or \"response\" (a text with answer tags), "
     "\"golden_answers\": text or list} in, {\"score\", \"answer\"} out. "
     "docs/grader.md says what each mode and kind does.",
     0, NULL, &kg_grade_kind, NULL, NULL},
    {"show", "show an episode of a dump, coloured by source", kg_cmd_show, "[flags] FILE",
     kg_show_flags,
     "FILE is a dump of a run (RUN/rollouts/*.jsonl.zst), of an evaluation, or episodes "
     "as text; compressed or not. Prompt, model and tool each have a colour, or tags. "
     "Numbers are read from the dump: the sampler's log-prob, the advantage, log p/q to "
     "the anchor.",
     1, NULL, NULL, NULL, NULL},
    {"algorithms", "the tables of algorithms and presets, as Markdown", kg_cmd_algorithms,
     "[flags] [check [NAME...] [KEY=VALUE...]]", kg_algorithms_flags,
     "An algorithm is one row from each table; `kedge train --keys` lists its "
     "keys.\n\n`check` compares KL estimators, surrogates and masks (all, or those "
     "named) with the exact value and gradient. It sums over every outcome of a small "
     "vocabulary; nothing is sampled. KEY=VALUE sets a bound or another key that the "
     "rows read. docs/which.md explains the columns.",
     -1, NULL, NULL, NULL, "lab"},
    {"presets", "published methods and recipes, with every value and its source",
     kg_cmd_presets, "[flags] [NAME]", kg_presets_flags,
     "Without NAME, prints a list. With NAME, or --all, prints every value of algo, kl "
     "and anchor, and the preset's other values, with their source: the preset, one that "
     "it builds on, or the default.",
     1, NULL, NULL, NULL, NULL},
    {"policy", "check losses and gradients against golden cases", kg_cmd_policy,
     "[flags] check DIR", kg_policy_flags,
     "Evaluates every case of every *.json file in DIR (docs/formats.md) in double, "
     "names each that fails or is skipped with the reason, and ends with `N passed, N "
     "failed, N skipped`. A number passes if it differs by at most 1e-10 times its size "
     "plus 1e-12; the relative error printed is the difference over size + 0.01. Status "
     "1: a case failed, or none passed.",
     2, NULL, NULL, NULL, "lab"},
    {"doctor", "check which promises hold on this machine", kg_cmd_doctor, "[flags]",
     kg_doctor_flags, NULL, 0, NULL, NULL, NULL, NULL},
    {"bench", "benchmarks against the ceilings of this machine", kg_cmd_bench,
     "[flags] [NAME]", kg_bench_flags,
     "Without NAME all of them run, in about eight minutes on two idle cores, with 10 GB "
     "of memory.\n\nA ceiling is measured again next to every row that refers to it; a "
     "row is the best of its repetitions. A row with a target ends with the target and "
     "whether it is met.",
     1, kg_bench_term, NULL, NULL, NULL},
    {"man", "print the man page", kg_cmd_man, "", no_flags, NULL, 0, NULL, NULL, NULL,
     NULL},
    {"completion", "print completion for a shell", kg_cmd_completion, "[bash|zsh]",
     no_flags,
     "Completes commands, flags, keys of a recipe (section.key=) and their choices. "
     "`make install` puts the files in place; without it, `source <(kedge completion)` "
     "in either shell does.",
     1, NULL, NULL, NULL, NULL},
    {0},
};

const struct kg_command *kg_command_find(const char *name)
{
    for (const struct kg_command *c = kg_commands; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

/* Commands that compute with a model, or fetch one, and cannot share the work. */
bool kg_command_is_single(const struct kg_command *c)
{
    static const char *const names[] = {"serve", "replay", "generate",
                                        "chat",  "score",  "pull"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(c->name, names[i]) == 0)
            return true;
    return false;
}
