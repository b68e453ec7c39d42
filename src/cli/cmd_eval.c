/* kedge eval: a suite of sets, or one set named by flags, sampled and graded; the code
 * that validates during training.
 *
 * One path for both: without SUITE.yaml there is one set, named "val". A flag about a set
 * is given to every set of the suite, so that `--problems 5 -n 2` tries a suite out.
 */
#include "cli/cli.h"
#include "cli/load.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/signal.h"
#include "data/hub.h"
#include "eval/compare.h"
#include "eval/remote.h"
#include "eval/runner.h"
#include "ranks/launch.h"
#include "ranks/same.h"
#include "task/wording.h"

#include <stdio.h>
#include <string.h>

static const char *out_dir, *data_dir, *reference, *dump_path;
static const char *only_sets, *without_sets;
static const char *base_url, *key_file;
static const char *api;                         /* NULL: not given; */
static int64_t in_flight, timeout_s, max_batch; /* 0: so */
static bool json, dry_run;
static int ranks = 1;
static int64_t wait_s; /* 0: not given */
static struct kg_flag_list stops;
static struct kg_flag_keys given; /* of the suite */

#define KEY(type, name)      KEY_OF(KG_OPT_##type, name)
#define KEY_OF(type, name)   type, false, NULL, &given, name, NULL, NULL
#define SAMPLING_TYPE(field) KG_TO_TYPE(((struct kg_sampling *)0)->field)
#define SAMPLING_KEY(field, key, flag, letter, arg, usual, min, max, zero, help, ...)    \
    {                                                                                    \
        flag, letter, KEY_OF(SAMPLING_TYPE(field), key), arg,                            \
            help " (default " #usual ")", min, max, NULL, zero                           \
    }

const struct kg_flag kg_eval_flags[] = {
    {"model", 'm', KG_TO(kg_load.dir), "DIR",
     "checkpoint folder, or ORG/NAME of the hub's cache (docs/hub.md); with --base-url a "
     "model's name there",
     0, 0, NULL},
    {"adapter", 0, KG_KEY_IF(KG_ADAPTER_KEY, "--model&--base-url=", kg_load.adapter),
     KG_MODEL_ARG, "PEFT folder of adapters beside the checkpoint's weights", 0, 0, NULL},
    KG_FLAGS_IF("--base-url=", kg_ignore_flags),
    {"base-url", 0, KG_TO(base_url), "URL",
     "evaluate a server of OpenAI's API, such as http://127.0.0.1:8000/v1", 0, 0, NULL},
    {"api", 0, KG_IF("--base-url", api), "WHICH",
     "of the server: chat or completions (default chat)", 0, 0, "chat|completions"},
    {"key-file", 0, KG_IF("--base-url", key_file), "FILE", "key of the server: one line",
     0, 0, NULL},
    {"in-flight", 0, KG_IF("--base-url", in_flight), "N",
     "requests at once to the server (default 16)", 1, 4096, NULL},
    {"timeout-s", 0, KG_IF("--base-url", timeout_s), "S",
     "time for one answer of the server (default 600)", 1, 86400, NULL},
    {"out", 'o', KG_TO(out_dir), "DIR",
     "folder that keeps every sample; the same command goes on where it stopped", 0, 0,
     NULL},
    {"data-dir", 0, KG_TO(data_dir), "DIR",
     "where the data files of a suite lie (default: here)", 0, 0, NULL},
    {"sets", 0, KG_IF("SUITE&--without=", only_sets), "NAMES",
     "of a suite: evaluate these sets alone, \"a,b\"", 0, 0, NULL},
    {"without", 0, KG_IF("SUITE", without_sets), "NAMES",
     "of a suite: leave these sets out", 0, 0, NULL},
    {"dry-run", 0, KG_TO(dry_run), NULL,
     "say what would be evaluated, and which files are missing", 0, 0, NULL},
    {"data", 'd', KEY(STRING, "data"), "FILE",
     "without a suite: the problems (default: those that the task generates)", 0, 0,
     NULL},
    {"grader", 0, KEY(STRING, "grader"), "MODE",
     "task math: default, ema-pg, mathd or dapo (default default)", 0, 0, NULL},
    {"keep-thinking", 0, KEY(BOOL, "keep_thinking"), NULL,
     "task math: an answer may stand before </think>", 0, 0, NULL},
    {"unique", 0, KEY(BOOL, "unique"), NULL,
     "of records with equal problem and answer the first alone", 0, 0, NULL},
    {"exclude", 0, KEY(STRING, "exclude"), "IDS",
     "task math: ids (else lines) of records to leave out, \"a,b\"", 0, 0, NULL},
    {"bad-golds", 0, KEY(STRING, "bad_golds"), "WHAT",
     "task math: records that nobody can answer stop it, or are dropped (default stop)",
     0, 0, "stop|drop"},
    {"task", 0, KEY(STRING, "task"), "NAME",
     "how answers are graded (default qa-number; see kedge task)", 0, 0, NULL},
    {"level", 0, KEY(STRING, "level"), "LEVEL",
     "difficulty of problems that the task generates", 0, 0, NULL},
    {"problems", 0, KEY(INT, "problems"), "N",
     "problems used at most (default 500; of a suite: all)", 1, 1e7, NULL},
    {"n", 'n', KEY(INT, "samples"), "N", "answers for each problem (default 1)", 1,
     KG_EVAL_MAX_N, NULL},
    {"max-tokens", 0, KEY(INT, "max_tokens"), "N", "longest answer (default 512)", 1, 1e6,
     NULL},
    KG_SAMPLING_KEYS(SAMPLING_KEY, ),
    {"stop", 0, KG_TO(stops), "STR", "string that ends an answer; may be repeated", 0, 0,
     NULL},
    {"seed", 0, KEY(INT, "suite.seed"), "S", "seed of the draws (default 1)", 0, 1e15,
     NULL},
    {"reference", 0, KG_IF("--base-url=", reference), KG_MODEL_ARG,
     "print the KL to this checkpoint on the sampled tokens", 0, 0, NULL},
    {"dump", 0, KG_TO(dump_path), "FILE",
     "without --out: write every answer with its grade as JSONL", 0, 0, NULL},
    KG_FLAGS_OF(kg_prompt_flags),
    {"add-special", 0, KEY(STRING, "add_special"), "WHICH",
     "BOS in front of a prompt: auto (of text), true or false (default auto)", 0, 0,
     KG_SPECIAL_CHOICES},
    {"prompt-key", 0, KEY(STRING, "prompt_key"), "KEY", "column of the problem", 0, 0,
     NULL},
    {"answer-key", 0, KEY(STRING, "answer_key"), "KEY", "column of the answer", 0, 0,
     NULL},
    {"metric", 0, KEY(STRING, "metric"), "NAME",
     "task search-qa: what is rewarded (default em)", 0, 0, "em|subem|f1|format"},
    {"answer-tags", 0, KEY(STRING, "answer_tags"), "N",
     "task search-qa: pairs of tags that an answer needs (default 1)", 0, 0, "1|2"},
    {"wording", 0, KEY(STRING, "wording"), "NAME",
     "search agents: words of instruction and remark (default kedge)", 0, 0,
     KG_WORDING_CHOICES},
    {"env", 0, KEY(STRING, "env"), "NAME",
     "answers are episodes that talk to it (default none)", 0, 0,
     "none|search|calculator"},
    {"search", 0, KEY(STRING, "search_where"), "WHERE",
     "env search: an index file, or http://HOST:PORT/retrieve", 0, 0, NULL},
    {"search-kind", 0, KEY(STRING, "search_kind"), "KIND",
     "env search: bm25, dense or hybrid: by what an index finds (default bm25)", 0, 0,
     "bm25|dense|hybrid"},
    {"search-model", 0, KEY(STRING, "search_model"), "DIR",
     "env search: folder of the encoder of dense and hybrid, or ORG/NAME of the hub", 0,
     0, NULL},
    {"search-vectors", 0, KEY(STRING, "search_vectors"), "CODE",
     "env search: fp16 or int8, a number of a vector in memory; the answers are the same "
     "(default fp16)",
     0, 0, "fp16|int8"},
    {"search-topk", 0, KEY(INT, "search_topk"), "N",
     "env search: passages for a query (default 3)", 1, 1000, NULL},
    {"turns", 0, KEY(INT, "turns"), "N",
     "turns with tools; one more follows without (default 4)", 0, 1000, NULL},
    {"command", 0, KEY(STRING, "command"), "CMD", "external grader", 0, 0, NULL},
    {"timeout-ms", 0, KEY(INT, "timeout_ms"), "MS", "its time limit (default 30000)", 1,
     3.6e6, NULL},
    {"ranks", 0, KG_IF("--model&--base-url=&--dry-run=", ranks), "N",
     "as N processes of this machine, with the bytes of one", 1, 64, NULL},
    {"wait-s", 0, KG_IF("--model&--base-url=&--dry-run=", wait_s), "S",
     "of several processes: for one that says nothing, before all end (default 600)", 1,
     1e7, NULL},
    {"max-batch", 0, KG_IF("--base-url=", max_batch), "N",
     "sequences that decode together (default 64)", 1, 65536, NULL},
    KG_FLAGS_IF("--base-url=", kg_compute_flags),
    KG_FLAGS_IF("--base-url=", kg_device_flags),
    {"json", 0, KG_IF("=*", json), NULL, "one JSON object on stdout", 0, 0, NULL},
    {0},
};

/* ---- flags as keys of the suite ---- */

/* A list as options.h keeps it: items joined by line breaks. */
static kg_status give_stops(struct kg_suite *s, struct kg_err *err)
{
    struct kg_str list = {0};
    kg_status status = KG_OK;

    for (int i = 0; i < stops.n && status == KG_OK; i++) {
        status = i ? kg_str_putc(&list, '\n', err) : KG_OK;
        for (const char *p = stops.items[i]; *p && status == KG_OK; p++)
            status = *p == '\n'   ? kg_str_puts(&list, "\\n", err)
                     : *p == '\\' ? kg_str_puts(&list, "\\\\", err)
                                  : kg_str_putc(&list, *p, err);
    }
    if (status == KG_OK && stops.n > 0)
        status = kg_suite_set_all(s, "stops", kg_str_text(&list), "--stop", err);
    kg_str_release(&list);
    return status;
}

/* The flags that other commands have, too. */
static kg_status give_prompt(struct kg_suite *s, struct kg_err *err)
{
    const struct kg_prompt_opts *how = &kg_prompt_how;
    const struct {
        const char *flag, *key, *text;
    } rows[] = {
        {"--template", "template", how->template_text},
        {"--user-turn", "user_turn", how->user_turn ? "true" : NULL},
        {"--system", "system", how->system},
        {"--opening", "opening", how->opening},
        {"--chat-template", "chat_template", kg_prompt_chat},
        {"--date", "date", how->date},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].text)
            KG_TRY(kg_suite_set_all(s, rows[i].key, rows[i].text, rows[i].flag, err));
    return KG_OK;
}

static kg_status give_flags(struct kg_suite *s, struct kg_err *err)
{
    char flag[32];

    for (int i = 0; i < given.n; i++) {
        const char *key = given.flags[i]->key;

        snprintf(flag, sizeof flag, "--%s", given.flags[i]->name);
        if (strchr(key, '.'))
            KG_TRY(kg_config_set(s->config, key, given.texts[i], false, flag, err));
        else
            KG_TRY(kg_suite_set_all(s, key, given.texts[i], flag, err));
    }
    KG_TRY(give_prompt(s, err));
    KG_TRY(give_stops(s, err));
    if (only_sets)
        KG_TRY(kg_suite_pick(s, only_sets, false, "--sets", err));
    return without_sets ? kg_suite_pick(s, without_sets, true, "--without", err) : KG_OK;
}

/* What a set without a suite is, where it differs from the defaults of suites. */
static kg_status give_defaults(struct kg_suite *s, struct kg_err *err)
{
    KG_TRY(kg_config_set(s->config, "defaults.task", "qa-number", true, "default", err));
    return kg_config_set(s->config, "defaults.problems", "500", true, "default", err);
}

/* The model's name there is known once the server was asked. */
static kg_status give_server(struct kg_suite *s, struct kg_err *err)
{
    KG_TRY(kg_config_set(s->config, "server.url", base_url, false, "--base-url", err));
    return api ? kg_config_set(s->config, "server.api", api, false, "--api", err) : KG_OK;
}

/* A model of the hub under its name and commit, wherever the cache lies. */
static kg_status give_folder(struct kg_suite *s, const char *key, const char *dir,
                             const char *flag, struct kg_err *err)
{
    char id[KG_HUB_ID_MAX + 1], commit[41], pinned[KG_HUB_ID_MAX + 48];

    if (!kg_hub_is_snapshot(id, commit, dir))
        return kg_config_set(s->config, key, dir, false, flag, err);
    snprintf(pinned, sizeof pinned, "%s@%s", id, commit);
    return kg_config_set(s->config, key, pinned, false, flag, err);
}

static kg_status give_model(struct kg_suite *s, struct kg_err *err)
{
    enum kg_dtype ct;

    KG_TRY(kg_load_dtype(&ct, kg_load.dtype, err));
    KG_TRY(give_folder(s, "model.path", kg_load.dir, "--model", err));
    if (kg_load.adapter)
        KG_TRY(give_folder(s, "model.adapter", kg_load.adapter, "--adapter", err));
    KG_TRY(kg_config_set(s->config, "model.dtype", kg_dtype_traits(ct)->name, false,
                         "--dtype", err));
    if (kg_load.base_dtype)
        KG_TRY(kg_config_set(s->config, "model.base_dtype", kg_load.base_dtype, false,
                             "--base-dtype", err));
    return kg_config_set(s->config, "model.device",
                         kg_load.device ? kg_load.device : "cpu", false, "--device", err);
}

/* ---- dump ---- */

struct dump {
    struct kg_file_writer file;
    struct kg_cli_target target;
};

static kg_status dump_open(struct dump *d, const char *path, struct kg_err *err)
{
    kg_status status = kg_cli_target_open(&d->target, path, err);

    if (status == KG_OK)
        status = kg_file_writer_open(&d->file, d->target.name.data, err);
    return status == KG_OK ? KG_OK : kg_err_prefix(err, "--dump");
}

static kg_status dump_close(struct dump *d, struct kg_err *err)
{
    KG_TRY(kg_file_writer_close(&d->file, err));
    return kg_cli_target_settle(&d->target, err);
}

static kg_status dump_line(void *user, const char *line, size_t n, struct kg_err *err)
{
    return kg_file_writer_put(&((struct dump *)user)->file, line, n, err);
}

/* ---- the work ---- */

struct evaluation {
    struct kg_ranks ranks;  /* the first writes and prints */
    const char *suite_path; /* NULL: one set */
    char *installed;        /* owned; what suite_path is where it was found there */
    struct kg_suite suite;
    struct kg_eval_set *sets; /* (suite.n) */
    struct kg_loaded policy, ref;
    struct kg_eval_local local;
    struct kg_eval_remote remote;
    struct kg_str key;
    struct kg_eval_report report;
    struct dump dump;
};

static void release(struct evaluation *e)
{
    kg_file_writer_abort(&e->dump.file);
    kg_cli_target_release(&e->dump.target);
    kg_eval_report_release(&e->report);
    kg_suite_sets_free(e->sets, e->suite.n);
    kg_eval_remote_close(&e->remote);
    kg_str_release(&e->key);
    kg_load_release(&e->ref);
    kg_load_release(&e->policy);
    kg_suite_release(&e->suite);
    kg_mem_free(e->installed);
}

/* --data-dir is of the files with a relative path. */
static kg_status check_data_dir(const struct evaluation *e, struct kg_err *err)
{
    for (size_t i = 0; data_dir && i < e->suite.n; i++)
        if (*e->sets[i].said.data && *e->sets[i].said.data != '/')
            return KG_OK;
    if (data_dir)
        return kg_fail(err, KG_EINVAL,
                       "--data-dir: expected a set with a relative path of its data "
                       "file, found none");
    return KG_OK;
}

/* Arguments: at most one suite; what has a = is an assignment. */
static kg_status open_suite(struct evaluation *e, int argc, char **argv,
                            struct kg_err *err)
{
    for (int i = 0; i < argc; i++) {
        if (strchr(argv[i], '='))
            continue;
        if (e->suite_path)
            return kg_fail(err, KG_EINVAL,
                           "expected one suite, found '%.80s' and '%.80s'", e->suite_path,
                           argv[i]);
        e->suite_path = argv[i];
    }
    if (e->suite_path &&
        !(e->suite_path = kg_cli_shared(&e->installed, e->suite_path, err)))
        return err->code;
    KG_TRY(kg_suite_open(&e->suite, e->suite_path, err));
    if (!e->suite_path)
        KG_TRY(give_defaults(&e->suite, err));
    for (int i = 0; i < argc; i++)
        if (strchr(argv[i], '='))
            KG_TRY(kg_config_override(e->suite.config, argv[i], "command line", err));
    KG_TRY(give_flags(&e->suite, err));
    if (base_url)
        KG_TRY(give_server(&e->suite, err));
    else if (kg_load.dir)
        KG_TRY(give_model(&e->suite, err));
    KG_TRY(kg_suite_resolve(&e->suite, err));
    KG_TRY(kg_suite_sets(&e->sets, &e->suite, data_dir, err));
    return check_data_dir(e, err);
}

static kg_status open_models(struct evaluation *e, struct kg_err *err)
{
    kg_load.ranks = &e->ranks;
    struct kg_load_args ref_args = kg_load;
    KG_TRY(kg_load_model(&e->policy, &kg_load, err));
    if (!e->policy.tok)
        return kg_fail(err, KG_ENOTFOUND, "%s: expected a tokenizer, found none",
                       kg_load.dir);
    ref_args.dir = reference;
    ref_args.adapter = NULL;
    if (reference)
        KG_TRY(kg_load_model(&e->ref, &ref_args, err));
    if (e->ref.model && e->ref.model->config.vocab != e->policy.model->config.vocab)
        return kg_fail(err, KG_ESHAPE,
                       "%s: expected the policy's vocabulary of %d, found %d", reference,
                       e->policy.model->config.vocab, e->ref.model->config.vocab);
    e->local = (struct kg_eval_local){
        .model = e->policy.model,
        .tok = e->policy.tok,
        .model_dir = kg_load.dir,
        .adapter_dir = kg_load.adapter,
        .reference = e->ref.model,
        .reference_dir = reference,
        .max_batch = max_batch ? (int32_t)max_batch : 64,
        .score = !e->suite_path || reference,
    };
    kg_eval_local_init(&e->local);
    return KG_OK;
}

/* One line; the blanks around it are not of the key. */
static kg_status read_key(struct kg_str *key, struct kg_err *err)
{
    enum { MAX_KEY_BYTES = 4096 };
    static const char blanks[] = " \t\r\n";

    KG_TRY(kg_file_read_stream(key, key_file, MAX_KEY_BYTES, err));
    while (key->len > 0 && kg_char_in(blanks, key->data[key->len - 1]))
        key->data[--key->len] = '\0';
    if (key->len == 0 || strpbrk(key->data, blanks))
        return kg_fail(err, KG_EFORMAT, "%s: expected one line with a key, found %s",
                       key_file, key->len ? "blanks in it" : "none");
    return KG_OK;
}

static kg_status open_server(struct evaluation *e, struct kg_err *err)
{
    struct kg_eval_remote_opts opts = {
        .base_url = base_url,
        .model = kg_load.dir,
        .completions = api && strcmp(api, "completions") == 0,
        .in_flight = in_flight ? (int)in_flight : 16,
        .timeout_ms = (timeout_s ? (int)timeout_s : 600) * 1000};

    if (key_file)
        KG_TRY(read_key(&e->key, err));
    opts.key = key_file ? e->key.data : NULL;
    KG_TRY(kg_eval_remote_open(&e->remote, &opts, err));
    return kg_config_set(e->suite.config, "server.model", e->remote.model, false,
                         base_url, err);
}

/* ---- the dry run ---- */

/* Sets that could not be evaluated. */
struct lacks {
    size_t missing; /* no file */
    size_t bad;     /* a file that cannot be used */
};

/* The first problem as the model reads it. */
static kg_status put_prompt(struct kg_str *out, const struct kg_eval_set *set,
                            const char *model_dir, struct kg_err *err)
{
    const struct kg_record *r = &set->data.records[0];
    struct kg_tokenizer *tok;
    struct kg_ids ids = {0};
    kg_status status;

    KG_TRY(kg_load_tokenizer(&tok, model_dir, err));
    if (!tok)
        return KG_OK;
    KG_TRY_GOTO(out, kg_prompt_encode(&ids, tok, r->prompt, strlen(r->prompt),
                                      r->rendered, set->special, err));
    KG_TRY_GOTO(out, kg_str_puts(out, "    first prompt: ", err));
    KG_TRY_GOTO(out, kg_prompt_show(out, tok, &ids, r->rendered, set->special, "    ",
                                    SIZE_MAX, err));
    status = kg_str_putc(out, '\n', err);
out:
    kg_ids_release(&ids);
    kg_tokenizer_close(tok);
    return status;
}

/* What is in the file of a set. Problems that only a model's chat template can render
 * are read as text where there is no model. */
static kg_status put_problems(struct kg_str *out, struct lacks *lacks,
                              struct kg_eval_set *set, struct kg_err *err)
{
    const char *dir = base_url ? NULL : kg_load.dir;
    struct kg_err found = {0};

    if (!dir && strcmp(set->chat_name, "auto") == 0)
        set->task_opts.prompt = (struct kg_prompt_opts){
            .template_text = set->task_opts.prompt.template_text};
    if (kg_eval_set_load(set, NULL, dir, &found) != KG_OK) {
        lacks->bad++;
        return kg_str_printf(out, err, "    cannot be used: %s\n", found.message);
    }
    KG_TRY(kg_str_printf(out, err, "    %zu problems x %d samples = %lld answers",
                         set->data.n, set->samples,
                         (long long)set->data.n * set->samples));
    if (set->data.dropped_golds)
        KG_TRY(kg_str_printf(out, err, "; %lld left out for their gold answer",
                             (long long)set->data.dropped_golds));
    if (set->data.dropped_repeated)
        KG_TRY(kg_str_printf(out, err, "; %lld repeated records left out",
                             (long long)set->data.dropped_repeated));
    KG_TRY(kg_str_putc(out, '\n', err));
    return dir ? put_prompt(out, set, dir, err) : KG_OK;
}

static kg_status put_plan(struct kg_str *out, struct lacks *lacks,
                          struct kg_eval_set *set, struct kg_err *err)
{
    const struct kg_sampling *s = &set->sampling;

    KG_TRY(kg_str_printf(out, err, "%s: task %s", set->name, set->task->name));
    if (strcmp(set->task->name, "math") == 0)
        KG_TRY(kg_str_printf(out, err, " (grader %s)", set->task_opts.grader));
    if (set->limit)
        KG_TRY(kg_str_printf(out, err, ", %lld problems at most", (long long)set->limit));
    KG_TRY(kg_str_printf(
        out, err, ", n %d, temperature %g, top_p %g, top_k %d, max_tokens %d\n    ",
        set->samples, (double)s->temperature, (double)s->top_p, s->top_k, s->max_tokens));
    if (set->path.len == 0)
        return kg_str_printf(out, err, "%lld generated problems\n",
                             (long long)set->task_opts.count);
    KG_TRY(kg_str_puts(out, kg_eval_set_has_data(set) ? "found " : "MISSING ", err));
    KG_TRY(kg_eval_set_put_needs(out, set, err));
    KG_TRY(kg_str_putc(out, '\n', err));
    if (kg_eval_set_has_data(set))
        return put_problems(out, lacks, set, err);
    lacks->missing++;
    return KG_OK;
}

static kg_status put_plans(struct kg_str *out, struct lacks *lacks,
                           const struct evaluation *e, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "%s: %zu set%s, seed %lld\n",
                         e->suite_path ? e->suite_path : "no suite", e->suite.n,
                         e->suite.n == 1 ? "" : "s",
                         (long long)kg_suite_about(&e->suite).seed));
    for (size_t i = 0; i < e->suite.n; i++)
        KG_TRY(put_plan(out, lacks, &e->sets[i], err));
    for (size_t i = e->suite.n; i < e->suite.n_all; i++)
        KG_TRY(kg_str_printf(out, err, "left out: %s\n", e->suite.names[i]));
    if (lacks->missing)
        KG_TRY(kg_str_printf(out, err,
                             "%zu of %zu sets are missing their file: put it there, name "
                             "the folder by --data-dir, or leave them out by --without\n",
                             lacks->missing, e->suite.n));
    return KG_OK;
}

static kg_status check_model(const char *dir, struct kg_err *err)
{
    const struct kg_opt_list ignore = kg_load_ignored(&kg_load);
    struct kg_model_config config;

    return dir ? kg_model_config_open(&config, dir, &ignore, err) : KG_OK;
}

/* A missing file is what a plan is asked for, and no failure; what the evaluation would
 * refuse when every file is there is one, and a missing model. */
static kg_status show_plan(const struct evaluation *e, struct kg_err *err)
{
    struct lacks lacks = {0};
    struct kg_str out = {0};

    KG_TRY(check_model(base_url ? NULL : kg_load.dir, err));
    KG_TRY(check_model(reference, err));
    kg_status status = kg_cli_print(put_plans(&out, &lacks, e, err), &out, err);
    KG_TRY(status);
    if (lacks.bad)
        return kg_fail(err, KG_EINVAL,
                       "expected usable sets, found %zu of %zu with errors (\"cannot be "
                       "used\" above)",
                       lacks.bad, e->suite.n);
    return kg_suite_check_excluded(&e->suite, e->sets, err);
}

/* ---- what is printed ---- */

/* Without a reference there is no KL: null, or no line. */
static kg_status put_kl(struct kg_str *out, const struct kg_eval_result *r,
                        struct kg_err *err)
{
    if (!reference)
        return json ? kg_str_puts(out, "\"kl\": null, \"kl_k1\": null, ", err) : KG_OK;
    return kg_str_printf(out, err,
                         json ? "\"kl\": %.6g, \"kl_k1\": %.6g, "
                              : "KL        %.5f nats a token (K3; K1 %.5f)\n",
                         r->kl_k3, r->kl_k1);
}

static kg_status put_single(struct kg_str *out, const struct kg_eval_result *r,
                            struct kg_err *err)
{
    if (json) {
        KG_TRY(kg_str_printf(
            out, err,
            "{\"accuracy\": %.6g, \"stderr\": %.6g, \"reward\": %.6g, \"reward_stderr\": "
            "%.6g, \"problems\": %lld, \"answers\": %lld, \"entropy\": %.6g, ",
            r->accuracy, r->accuracy_stderr, r->reward, r->reward_stderr,
            (long long)r->problems, (long long)r->answers, r->entropy));
        KG_TRY(put_kl(out, r, err));
        return kg_str_printf(out, err,
                             "\"response_tokens\": %.6g, \"truncated\": %.6g, "
                             "\"ungraded\": %.6g, \"seconds\": %.3f",
                             r->response_tokens, r->truncated, r->ungraded, r->seconds);
    }
    KG_TRY(kg_str_printf(
        out, err,
        "accuracy  %.2f %% +- %.2f   (avg@%lld over %lld problems)\nreward    %.4f +- "
        "%.4f\nentropy   %.4f nats a token\n",
        100 * r->accuracy, 100 * r->accuracy_stderr,
        (long long)(r->answers / r->problems), (long long)r->problems, r->reward,
        r->reward_stderr, r->entropy));
    KG_TRY(put_kl(out, r, err));
    return kg_str_printf(
        out, err,
        "answers   %.1f tokens, %.1f %% truncated, %.1f %% could not be graded\n",
        r->response_tokens, 100 * r->truncated, 100 * r->ungraded);
}

/* pass@k, maj@k and what else the set counts. */
static kg_status put_votes(struct kg_str *out, const struct kg_eval_score *s,
                           struct kg_err *err)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct kg_eval_metric *m = &s->metrics[i];

        if (!strchr(m->name, '@'))
            continue;
        if (json)
            KG_TRY(kg_str_printf(out, err, ", \"%s\": %.6g, \"%s_stderr\": %.6g", m->name,
                                 m->value, m->name, m->stderror));
        else
            KG_TRY(kg_str_printf(out, err, "%-8s  %.2f %% +- %.2f\n", m->name,
                                 100 * m->value, 100 * m->stderror));
    }
    return KG_OK;
}

/* Of episodes: searches, turns, share finished, ... */
static kg_status put_extras(struct kg_str *out, const struct kg_eval_set *set,
                            const struct kg_eval_score *s, struct kg_err *err)
{
    for (int i = 0; i < set->ks.n_extra; i++) {
        const struct kg_eval_metric *m = kg_eval_metric_find(s, set->ks.extra[i]);

        if (json)
            KG_TRY(kg_str_printf(out, err, ", \"%s\": %.6g, \"%s_stderr\": %.6g", m->name,
                                 m->value, m->name, m->stderror));
        else
            KG_TRY(kg_str_printf(out, err, "%-8s  %.3f +- %.3f an episode\n", m->name,
                                 m->value, m->stderror));
    }
    return KG_OK;
}

/* Answers that the model's positions ended, not max_tokens. */
static kg_status put_cut(struct kg_str *out, const struct kg_eval_set_report *r,
                         const struct kg_eval_set *set, struct kg_err *err)
{
    if (json)
        return kg_str_printf(out, err, ", \"cut_short\": %lld", (long long)r->cut_short);
    if (r->cut_short == 0)
        return KG_OK;
    KG_TRY(kg_str_puts(out, "cut short ", err));
    KG_TRY(kg_eval_report_put_cut(out, r, set, err));
    return kg_str_putc(out, '\n', err);
}

static kg_status put_one_set(struct kg_str *out, const struct evaluation *e,
                             struct kg_err *err)
{
    const struct kg_eval_set_report *s = &e->report.sets[0];
    struct kg_eval_result r;

    kg_eval_result_fill(&r, &s->score, s->answers, s->n);
    r.seconds = e->report.seconds;
    KG_TRY(put_single(out, &r, err));
    KG_TRY(put_votes(out, &s->score, err));
    KG_TRY(put_extras(out, &e->sets[0], &s->score, err));
    KG_TRY(put_cut(out, s, &e->sets[0], err));
    return json ? kg_str_puts(out, "}\n", err)
                : kg_str_printf(out, err, "time      %.1f s\n", r.seconds);
}

static kg_status show_report(const struct evaluation *e, struct kg_err *err)
{
    struct kg_str out = {0};
    kg_status status;

    if (!e->suite_path && !base_url)
        status = put_one_set(&out, e, err);
    else if (json)
        status = kg_eval_report_json(&out, &e->report, &e->suite, e->sets, err);
    else
        status = kg_eval_report_table(&out, &e->report, &e->suite, e->sets, err);
    return kg_cli_print(status, &out, err);
}

/* ---- the command ---- */

/* A server is asked by one process. */
static kg_status check_ranks(const struct kg_ranks *r, struct kg_err *err)
{
    if (r->n < 2 && wait_s > 0)
        return kg_fail(err, KG_EINVAL,
                       "--wait-s: expected several processes (--ranks, or a launcher), "
                       "found one");
    if (r->n < 2)
        return KG_OK;
    if (base_url)
        return kg_fail(err, KG_EINVAL,
                       "--base-url: expected one process, found a launcher of %d; "
                       "--in-flight sets the number of concurrent requests",
                       r->n);
    return KG_OK;
}

/* Everything that is read, on every rank; and what the first writes to. */
static kg_status open_all(struct evaluation *e, struct kg_err *err)
{
    if (e->suite_path)
        KG_TRY(kg_suite_check_data(e->sets, e->suite.n, err));
    KG_TRY(base_url ? open_server(e, err) : open_models(e, err));
    if (e->ranks.n > 1)
        kg_ranks_set_threads(&e->ranks, (int)kg_load.threads);
    return dump_path && e->ranks.me == 0 ? dump_open(&e->dump, dump_path, err) : KG_OK;
}

static kg_status show_all(struct evaluation *e, struct kg_err *err)
{
    if (e->ranks.me > 0)
        return KG_OK;
    if (dump_path)
        KG_TRY(dump_close(&e->dump, err));
    return show_report(e, err);
}

static kg_status evaluate(struct evaluation *e, struct kg_err *err)
{
    struct kg_eval_run run = {.suite = &e->suite,
                              .sets = e->sets,
                              .source = base_url ? &e->remote.source : &e->local.source,
                              .out = out_dir,
                              .dump = dump_path ? dump_line : NULL,
                              .user = &e->dump,
                              .ranks = &e->ranks};

    KG_TRY(kg_ranks_agree(&e->ranks, open_all(e, err), "opening", err));
    KG_TRY(kg_eval_suite(&e->report, &run, err));
    return kg_ranks_agree(&e->ranks, show_all(e, err), "report", err);
}

static kg_status open_checked(struct evaluation *e, int argc, char **argv,
                              struct kg_err *err)
{
    KG_TRY(check_ranks(&e->ranks, err));
    return open_suite(e, argc, argv, err);
}

/* The suite as the flags have it, and the flags that are no keys of it. */
static kg_status check_same(struct evaluation *e, struct kg_err *err)
{
    const char *products = kg_load.products ? kg_load.products : "not given";
    struct kg_str facts = {0};
    char batch[24];

    if (e->ranks.n < 2)
        return KG_OK;
    snprintf(batch, sizeof batch, "%lld", (long long)max_batch);
    kg_status status = kg_config_put_facts(&facts, e->suite.config, err);
    if (status == KG_OK)
        status = kg_ranks_fact(&facts, "--reference", reference ? reference : "not given",
                               err);
    if (status == KG_OK)
        status = kg_ranks_fact(&facts, "--max-batch", batch, err);
    if (status == KG_OK)
        status = kg_ranks_fact(&facts, "--products", products, err);
    status = kg_ranks_check_same(&e->ranks, status, &facts, "suite", err);
    kg_str_release(&facts);
    return status;
}

/* A plan is one process's. */
static kg_status run_as_ranks(struct evaluation *e, int argc, char **argv,
                              struct kg_err *err)
{
    if (dry_run) {
        KG_TRY(open_suite(e, argc, argv, err));
        return show_plan(e, err);
    }
    KG_TRY(
        kg_cli_ranks_begin(&e->ranks, ranks, wait_s ? (double)wait_s : 600, "eval", err));
    kg_signal_install();
    KG_TRY(kg_ranks_agree(&e->ranks, open_checked(e, argc, argv, err), "opening", err));
    KG_TRY(check_same(e, err));
    return evaluate(e, err);
}

static int check_usage(void)
{
    if (!kg_load.dir && !base_url && !dry_run)
        return kg_cli_usage("expected --model DIR, or --base-url URL");
    if (out_dir && dump_path)
        return kg_cli_usage("expected --out or --dump, found both (--out keeps every "
                            "sample)");
    return KG_EXIT_OK;
}

/* kedge eval compare A B */
static kg_status compare(char **dirs, struct kg_err *err)
{
    struct kg_eval_comparison c;
    struct kg_str out = {0};

    KG_TRY(kg_eval_compare(&c, dirs[0], dirs[1], err));
    kg_status status = json ? kg_eval_comparison_json(&out, &c, err)
                            : kg_eval_comparison_table(&out, &c, err);
    status = kg_cli_print(status, &out, err);
    kg_eval_comparison_release(&c);
    return status;
}

int kg_cmd_eval(int argc, char **argv)
{
    struct evaluation e = {0};
    struct kg_err err;

    if (argc > 0 && strcmp(argv[0], "compare") == 0) {
        if (argc != 3)
            return kg_cli_usage("expected compare DIR_A DIR_B, found %d folders",
                                argc - 1);
        return kg_cli_exit(compare(argv + 1, &err), &err);
    }
    if (check_usage() != KG_EXIT_OK)
        return KG_EXIT_USAGE;
    if (!base_url && kg_cli_find_model(&kg_load.dir, &err) != KG_OK)
        return kg_cli_exit(kg_err_prefix(&err, "--model"), &err);
    kg_status status = run_as_ranks(&e, argc, argv, &err);
    release(&e);
    return kg_cli_ranks_end(&e.ranks, status, &err);
}
