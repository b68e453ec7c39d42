/* kedge eval: a suite of sets, or one set named by flags, sampled and graded; the code
 * that validates during training.
 *
 * One path for both: without SUITE.yaml there is one set, named "val". A flag about a set
 * is given to every set of the suite, so that `--problems 5 -n 2` tries a suite out.
 */
#include "cli/cli.h"
#include "cli/load.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/signal.h"
#include "eval/runner.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Numbers are below their range until a flag gives them. */
static struct kg_load_args load;
static const char *out_dir, *data_dir, *reference, *dump_path;
static const char *data_path, *task_name, *grader, *exclude, *level, *template_text,
    *chat_choice, *prompt_key, *answer_key, *command;
static bool keep_thinking, user_turn, json, dry_run;
static struct kg_flag_list stops;
static int64_t count = -1, samples = -1, max_tokens = -1, top_k = -1, seed = -1,
               timeout_ms = -1, max_batch = 64;
static double temperature = -1, top_p = -1;

const struct kg_flag kg_eval_flags[] = {
    {"model", 'm', KG_FLAG_TEXT, &load.dir, "DIR", "checkpoint folder", 0, 0, NULL},
    {"out", 'o', KG_FLAG_TEXT, &out_dir, "DIR",
     "folder that keeps every sample; the same command goes on where it stopped", 0, 0,
     NULL},
    {"data-dir", 0, KG_FLAG_TEXT, &data_dir, "DIR",
     "where the data files of a suite lie (default: here)", 0, 0, NULL},
    {"dry-run", 0, KG_FLAG_TRUE, &dry_run, NULL,
     "say what would be evaluated, and which files are missing", 0, 0, NULL},
    {"data", 'd', KG_FLAG_TEXT, &data_path, "FILE",
     "without a suite: the problems (not for generated tasks)", 0, 0, NULL},
    {"grader", 0, KG_FLAG_TEXT, &grader, "MODE",
     "task math: default, ema-pg, mathd or dapo (default default)", 0, 0, NULL},
    {"keep-thinking", 0, KG_FLAG_TRUE, &keep_thinking, NULL,
     "task math: an answer may stand before </think>", 0, 0, NULL},
    {"exclude", 0, KG_FLAG_TEXT, &exclude, "IDS",
     "task math: ids (else lines) of records to leave out, \"a,b\"", 0, 0, NULL},
    {"task", 0, KG_FLAG_TEXT, &task_name, "NAME",
     "how answers are graded (default qa-number; see kedge task)", 0, 0, NULL},
    {"level", 0, KG_FLAG_TEXT, &level, "LEVEL", "difficulty of generated problems", 0, 0,
     NULL},
    {"problems", 0, KG_FLAG_INT, &count, "N",
     "problems used at most (default 500; of a suite: all)", 1, 1e7, NULL},
    {"n", 'n', KG_FLAG_INT, &samples, "N", "answers for each problem (default 1)", 1,
     KG_EVAL_MAX_N, NULL},
    {"max-tokens", 0, KG_FLAG_INT, &max_tokens, "N", "longest answer (default 512)", 1,
     1e6, NULL},
    {"temperature", 't', KG_FLAG_REAL, &temperature, "T", "0 is greedy (default 1)", 0,
     100, NULL},
    {"top-p", 0, KG_FLAG_REAL, &top_p, "P", "nucleus (default 1: off)", 1e-6, 1, NULL},
    {"top-k", 0, KG_FLAG_INT, &top_k, "K", "most likely ids kept (default 0: off)", 0,
     1e9, NULL},
    {"stop", 0, KG_FLAG_LIST, &stops, "STR",
     "string that ends an answer; may be repeated", 0, 0, NULL},
    {"seed", 0, KG_FLAG_INT, &seed, "S", "seed of the draws (default 1)", 0, 1e15, NULL},
    {"reference", 0, KG_FLAG_TEXT, &reference, "DIR",
     "print the KL to this checkpoint on the sampled tokens", 0, 0, NULL},
    {"dump", 0, KG_FLAG_TEXT, &dump_path, "FILE",
     "without --out: write every answer with its grade as JSONL", 0, 0, NULL},
    {"template", 0, KG_FLAG_TEXT, &template_text, "TEXT",
     "text around the problem; {prompt} is replaced", 0, 0, NULL},
    {"user-turn", 0, KG_FLAG_TRUE, &user_turn, NULL,
     "the problem in its template is one user message of the chat template", 0, 0, NULL},
    {"chat-template", 0, KG_FLAG_TEXT, &chat_choice, "WHICH",
     "for prompts that are messages: auto (the model's), none, or a file", 0, 0, NULL},
    {"prompt-key", 0, KG_FLAG_TEXT, &prompt_key, "KEY", "column of the problem", 0, 0,
     NULL},
    {"answer-key", 0, KG_FLAG_TEXT, &answer_key, "KEY", "column of the answer", 0, 0,
     NULL},
    {"command", 0, KG_FLAG_TEXT, &command, "CMD", "external grader", 0, 0, NULL},
    {"timeout-ms", 0, KG_FLAG_INT, &timeout_ms, "MS", "its time limit (default 30000)", 1,
     3.6e6, NULL},
    {"max-batch", 0, KG_FLAG_INT, &max_batch, "N",
     "sequences that decode together (default 64)", 1, 65536, NULL},
    {"dtype", 0, KG_FLAG_CHOICE, &load.dtype, "TYPE",
     "bf16 or fp32 (default: bf16 where the machine has it)", 0, 0, "bf16|fp32"},
    {"threads", 0, KG_FLAG_INT, &load.threads, "N", "threads (default: all cores)", 0,
     1024, NULL},
    {"json", 0, KG_FLAG_TRUE, &json, NULL, "one JSON object on stdout", 0, 0, NULL},
    {0},
};

/* ---- flags as keys of the suite ---- */

static const struct {
    const char *flag;
    const char *key;
    const char **text; /* exactly one of the four */
    int64_t *whole;
    double *real;
    bool *on;
} flag_keys[] = {
    {"--data", "data", &data_path, NULL, NULL, NULL},
    {"--task", "task", &task_name, NULL, NULL, NULL},
    {"--grader", "grader", &grader, NULL, NULL, NULL},
    {"--keep-thinking", "keep_thinking", NULL, NULL, NULL, &keep_thinking},
    {"--exclude", "exclude", &exclude, NULL, NULL, NULL},
    {"--level", "level", &level, NULL, NULL, NULL},
    {"--problems", "problems", NULL, &count, NULL, NULL},
    {"--n", "samples", NULL, &samples, NULL, NULL},
    {"--max-tokens", "max_tokens", NULL, &max_tokens, NULL, NULL},
    {"--temperature", "temperature", NULL, NULL, &temperature, NULL},
    {"--top-p", "top_p", NULL, NULL, &top_p, NULL},
    {"--top-k", "top_k", NULL, &top_k, NULL, NULL},
    {"--template", "template", &template_text, NULL, NULL, NULL},
    {"--user-turn", "user_turn", NULL, NULL, NULL, &user_turn},
    {"--chat-template", "chat_template", &chat_choice, NULL, NULL, NULL},
    {"--prompt-key", "prompt_key", &prompt_key, NULL, NULL, NULL},
    {"--answer-key", "answer_key", &answer_key, NULL, NULL, NULL},
    {"--command", "command", &command, NULL, NULL, NULL},
    {"--timeout-ms", "timeout_ms", NULL, &timeout_ms, NULL, NULL},
};

/* What the flag gives as text; NULL: it was not given. */
static const char *given(size_t i, char number[40])
{
    if (flag_keys[i].text)
        return *flag_keys[i].text;
    if (flag_keys[i].on)
        return *flag_keys[i].on ? "true" : NULL;
    if (flag_keys[i].whole ? *flag_keys[i].whole < 0 : *flag_keys[i].real < 0)
        return NULL;
    if (flag_keys[i].whole)
        snprintf(number, 40, "%lld", (long long)*flag_keys[i].whole);
    else
        snprintf(number, 40, "%.17g", *flag_keys[i].real);
    return number;
}

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

static kg_status give_flags(struct kg_suite *s, struct kg_err *err)
{
    char number[40];

    for (size_t i = 0; i < sizeof flag_keys / sizeof *flag_keys; i++) {
        const char *value = given(i, number);

        if (value)
            KG_TRY(kg_suite_set_all(s, flag_keys[i].key, value, flag_keys[i].flag, err));
    }
    KG_TRY(give_stops(s, err));
    if (seed < 0)
        return KG_OK;
    snprintf(number, sizeof number, "%lld", (long long)seed);
    return kg_config_set(s->config, "suite.seed", number, false, "--seed", err);
}

/* What a set without a suite is, where it differs from the defaults of suites. */
static kg_status give_defaults(struct kg_suite *s, struct kg_err *err)
{
    KG_TRY(kg_config_set(s->config, "defaults.task", "qa-number", true, "default", err));
    return kg_config_set(s->config, "defaults.problems", "500", true, "default", err);
}

static kg_status give_model(struct kg_suite *s, struct kg_err *err)
{
    enum kg_dtype ct;

    KG_TRY(kg_load_dtype(&ct, load.dtype, err));
    KG_TRY(kg_config_set(s->config, "model.path", load.dir, false, "--model", err));
    return kg_config_set(s->config, "model.dtype", kg_dtype_traits(ct)->name, false,
                         "--dtype", err);
}

/* ---- dump ---- */

struct dump {
    struct kg_file_writer file;
    struct kg_str temporary; /* empty: what --dump names is written at once */
};

/* Answers go to PATH.tmp-PID, which takes the name when all are there: a failure leaves
 * neither half a file nor less than was there. A device, a pipe or a link is written to
 * as it is. */
static kg_status dump_open(struct dump *d, const char *path, struct kg_err *err)
{
    struct stat st;

    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return kg_file_writer_open(&d->file, path, err);
    KG_TRY(kg_str_printf(&d->temporary, err, "%s.tmp-%ld", path, (long)getpid()));
    if (kg_file_writer_open(&d->file, d->temporary.data, err) != KG_OK)
        return kg_err_prefix(err, "--dump");
    return KG_OK;
}

static kg_status dump_close(struct dump *d, const char *path, struct kg_err *err)
{
    KG_TRY(kg_file_writer_close(&d->file, err));
    if (d->temporary.len == 0 || rename(d->temporary.data, path) == 0)
        return KG_OK;
    kg_fail(err, KG_EIO, "%s: expected to rename %s to it, found: %s", path,
            d->temporary.data, strerror(errno));
    unlink(d->temporary.data);
    return err->code;
}

static kg_status dump_line(void *user, const char *line, size_t n, struct kg_err *err)
{
    return kg_file_writer_put(&((struct dump *)user)->file, line, n, err);
}

/* ---- the work ---- */

struct evaluation {
    const char *suite_path; /* NULL: one set */
    struct kg_suite suite;
    struct kg_eval_set *sets; /* (suite.n) */
    struct kg_loaded policy, ref;
    struct kg_eval_local local;
    struct kg_eval_report report;
    struct dump dump;
};

static void release(struct evaluation *e)
{
    kg_file_writer_abort(&e->dump.file);
    kg_str_release(&e->dump.temporary);
    kg_eval_report_release(&e->report);
    kg_suite_sets_free(e->sets, e->suite.n);
    kg_load_release(&e->ref);
    kg_load_release(&e->policy);
    kg_suite_release(&e->suite);
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
    KG_TRY(kg_suite_open(&e->suite, e->suite_path, err));
    if (!e->suite_path)
        KG_TRY(give_defaults(&e->suite, err));
    for (int i = 0; i < argc; i++)
        if (strchr(argv[i], '='))
            KG_TRY(kg_config_override(e->suite.config, argv[i], "command line", err));
    KG_TRY(give_flags(&e->suite, err));
    if (load.dir)
        KG_TRY(give_model(&e->suite, err));
    KG_TRY(kg_suite_resolve(&e->suite, err));
    return kg_suite_sets(&e->sets, &e->suite, data_dir, err);
}

static kg_status open_models(struct evaluation *e, struct kg_err *err)
{
    struct kg_load_args ref_args = load;

    KG_TRY(kg_load_model(&e->policy, &load, err));
    if (!e->policy.tok)
        return kg_fail(err, KG_ENOTFOUND, "%s: expected a tokenizer, found none",
                       load.dir);
    ref_args.dir = reference;
    if (reference)
        KG_TRY(kg_load_model(&e->ref, &ref_args, err));
    if (e->ref.model && e->ref.model->config.vocab != e->policy.model->config.vocab)
        return kg_fail(err, KG_ESHAPE,
                       "%s: expected the policy's vocabulary of %d, found %d", reference,
                       e->policy.model->config.vocab, e->ref.model->config.vocab);
    e->local = (struct kg_eval_local){
        .model = e->policy.model,
        .tok = e->policy.tok,
        .model_dir = load.dir,
        .reference = e->ref.model,
        .max_batch = (int32_t)max_batch,
        .score = !e->suite_path || reference,
    };
    kg_eval_local_init(&e->local);
    return KG_OK;
}

/* ---- the dry run ---- */

static kg_status put_plan(struct kg_str *out, const struct kg_eval_set *set,
                          struct kg_err *err)
{
    const struct kg_sampling *s = &set->sampling;

    KG_TRY(kg_str_printf(out, err, "%s: task %s", set->name, set->task->name));
    if (strcmp(set->task->name, "math") == 0)
        KG_TRY(kg_str_printf(out, err, " (grader %s)", set->task_opts.grader));
    KG_TRY(kg_str_printf(
        out, err, ", n %d, temperature %g, top_p %g, top_k %d, max_tokens %d\n    ",
        set->samples, (double)s->temperature, (double)s->top_p, s->top_k, s->max_tokens));
    if (set->path.len == 0)
        return kg_str_printf(out, err, "%lld generated problems\n",
                             (long long)set->task_opts.count);
    KG_TRY(kg_str_puts(out, kg_eval_set_has_data(set) ? "found " : "MISSING ", err));
    KG_TRY(kg_eval_set_put_needs(out, set, err));
    return kg_str_putc(out, '\n', err);
}

static kg_status show_plan(const struct evaluation *e, struct kg_err *err)
{
    struct kg_str out = {0};
    kg_status status = KG_OK;

    for (size_t i = 0; i < e->suite.n && status == KG_OK; i++)
        status = put_plan(&out, &e->sets[i], err);
    if (status == KG_OK)
        status = kg_cli_put(&out, err);
    kg_str_release(&out);
    return status;
}

/* ---- what is printed ---- */

static kg_status put_single(struct kg_str *out, const struct kg_eval_result *r,
                            struct kg_err *err)
{
    if (json)
        return kg_str_printf(
            out, err,
            "{\"accuracy\": %.6g, \"stderr\": %.6g, \"reward\": %.6g, "
            "\"reward_stderr\": %.6g, \"problems\": %lld, \"answers\": %lld, "
            "\"entropy\": %.6g, \"kl\": %.6g, \"kl_k1\": %.6g, \"response_tokens\": "
            "%.6g, \"truncated\": %.6g, \"ungraded\": %.6g, \"seconds\": %.3f",
            r->accuracy, r->accuracy_stderr, r->reward, r->reward_stderr,
            (long long)r->problems, (long long)r->answers, r->entropy, r->kl_k3, r->kl_k1,
            r->response_tokens, r->truncated, r->ungraded, r->seconds);
    return kg_str_printf(
        out, err,
        "accuracy  %.2f %% +- %.2f   (avg@%lld over %lld problems)\nreward    %.4f +- "
        "%.4f\nentropy   %.4f nats a token\nKL        %.5f nats a token (K3; K1 "
        "%.5f)%s\nanswers   %.1f tokens, %.1f %% truncated, %.1f %% could not be "
        "graded\n",
        100 * r->accuracy, 100 * r->accuracy_stderr,
        (long long)(r->answers / r->problems), (long long)r->problems, r->reward,
        r->reward_stderr, r->entropy, r->kl_k3, r->kl_k1,
        reference ? "" : ", no --reference", r->response_tokens, 100 * r->truncated,
        100 * r->ungraded);
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

static kg_status put_one_set(struct kg_str *out, const struct evaluation *e,
                             struct kg_err *err)
{
    const struct kg_eval_set_report *s = &e->report.sets[0];
    struct kg_eval_result r;

    kg_eval_result_fill(&r, &s->score, s->answers, s->n);
    r.seconds = e->report.seconds;
    KG_TRY(put_single(out, &r, err));
    KG_TRY(put_votes(out, &s->score, err));
    return json ? kg_str_puts(out, "}\n", err)
                : kg_str_printf(out, err, "time      %.1f s\n", r.seconds);
}

static kg_status show_report(const struct evaluation *e, struct kg_err *err)
{
    struct kg_str out = {0};
    kg_status status;

    if (!e->suite_path)
        status = put_one_set(&out, e, err);
    else if (json)
        status = kg_eval_report_json(&out, &e->report, &e->suite, e->sets, err);
    else
        status = kg_eval_report_table(&out, &e->report, e->sets, err);
    if (status == KG_OK)
        status = kg_cli_put(&out, err);
    kg_str_release(&out);
    return status;
}

/* ---- the command ---- */

static kg_status evaluate(struct evaluation *e, struct kg_err *err)
{
    struct kg_eval_run run = {.suite = &e->suite,
                              .sets = e->sets,
                              .source = &e->local.source,
                              .out = out_dir,
                              .dump = dump_path ? dump_line : NULL,
                              .user = &e->dump};

    if (e->suite_path)
        KG_TRY(kg_suite_check_data(e->sets, e->suite.n, err));
    KG_TRY(open_models(e, err));
    if (dump_path)
        KG_TRY(dump_open(&e->dump, dump_path, err));
    KG_TRY(kg_eval_suite(&e->report, &run, err));
    if (dump_path)
        KG_TRY(dump_close(&e->dump, dump_path, err));
    return show_report(e, err);
}

static const char *usage_error(void)
{
    if (!load.dir && !dry_run)
        return "expected --model DIR";
    if (out_dir && dump_path)
        return "expected --out or --dump, found both (--out keeps every sample)";
    return NULL;
}

int kg_cmd_eval(int argc, char **argv)
{
    struct evaluation e = {0};
    const char *wrong = usage_error();
    struct kg_err err;
    kg_status status;

    if (wrong)
        return kg_cli_usage("%s", wrong);
    kg_signal_install();
    status = open_suite(&e, argc, argv, &err);
    if (status == KG_OK)
        status = dry_run ? show_plan(&e, &err) : evaluate(&e, &err);
    release(&e);
    return kg_cli_exit(status, &err);
}
