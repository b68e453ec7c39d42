/* kedge eval: avg@n of a checkpoint on a task, with standard error; the code that
 * validates during training. */
#include "cli/cli.h"
#include "cli/load.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/signal.h"
#include "eval/eval.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct kg_load_args load;
static const char *data_path = "";
static const char *task_name = "qa-number";
static const char *grader = "default", *exclude = "";
static bool keep_thinking;
static const char *level = "";
static const char *reference;
static const char *dump_path;
static const char *template_text = "";
static const char *chat_choice = "auto";
static const char *prompt_key = "";
static const char *answer_key = "";
static const char *command = "";
static struct kg_flag_list stops;
static int64_t count = 500, samples = 1, max_tokens = 512, max_batch = 64, seed = 1,
               timeout_ms = 30000;
static double temperature = 1, top_p = 1;
static bool json;

const struct kg_flag kg_eval_flags[] = {
    {"model", 'm', KG_FLAG_TEXT, &load.dir, "DIR", "checkpoint folder", 0, 0, NULL},
    {"data", 'd', KG_FLAG_TEXT, &data_path, "FILE",
     "JSONL of problems (not for generated tasks)", 0, 0, NULL},
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
    {"problems", 0, KG_FLAG_INT, &count, "N", "problems used at most (default 500)", 1,
     1e7, NULL},
    {"n", 'n', KG_FLAG_INT, &samples, "N", "answers for each problem (default 1)", 1,
     4096, NULL},
    {"max-tokens", 0, KG_FLAG_INT, &max_tokens, "N", "longest answer (default 512)", 1,
     1e6, NULL},
    {"temperature", 't', KG_FLAG_REAL, &temperature, "T", "0 is greedy (default 1)", 0,
     100, NULL},
    {"top-p", 0, KG_FLAG_REAL, &top_p, "P", "nucleus (default 1: off)", 1e-6, 1, NULL},
    {"stop", 0, KG_FLAG_LIST, &stops, "STR",
     "string that ends an answer; may be repeated", 0, 0, NULL},
    {"seed", 0, KG_FLAG_INT, &seed, "S", "seed of the draws (default 1)", 0, 1e15, NULL},
    {"reference", 0, KG_FLAG_TEXT, &reference, "DIR",
     "print the KL to this checkpoint on the sampled tokens", 0, 0, NULL},
    {"dump", 0, KG_FLAG_TEXT, &dump_path, "FILE",
     "write every answer with its grade as JSONL", 0, 0, NULL},
    {"template", 0, KG_FLAG_TEXT, &template_text, "TEXT",
     "text around the problem; {prompt} is replaced", 0, 0, NULL},
    {"chat-template", 0, KG_FLAG_TEXT, &chat_choice, "WHICH",
     "for prompts that are lists of messages: auto (the model's), none, or a file", 0, 0,
     NULL},
    {"prompt-key", 0, KG_FLAG_TEXT, &prompt_key, "KEY", "column of the problem", 0, 0,
     NULL},
    {"answer-key", 0, KG_FLAG_TEXT, &answer_key, "KEY", "column of the answer", 0, 0,
     NULL},
    {"command", 0, KG_FLAG_TEXT, &command, "CMD", "external grader", 0, 0, NULL},
    {"timeout-ms", 0, KG_FLAG_INT, &timeout_ms, "MS", "its time limit", 1, 3.6e6, NULL},
    {"max-batch", 0, KG_FLAG_INT, &max_batch, "N",
     "sequences that decode together (default 64)", 1, 65536, NULL},
    {"dtype", 0, KG_FLAG_CHOICE, &load.dtype, "TYPE",
     "bf16 or fp32 (default: bf16 where the machine has it)", 0, 0, "bf16|fp32"},
    {"threads", 0, KG_FLAG_INT, &load.threads, "N", "threads (default: all cores)", 0,
     1024, NULL},
    {"json", 0, KG_FLAG_TRUE, &json, NULL, "one JSON object on stdout", 0, 0, NULL},
    {0},
};

/* ---- dump ---- */

struct dump {
    struct kg_file_writer file;
    struct kg_str line;
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

static kg_status dump_answer(void *user, const struct kg_traj *t,
                             const struct kg_record *r, const struct kg_grade *g,
                             const char *text, struct kg_err *err)
{
    struct dump *d = user;
    struct kg_str *s = &d->line;

    kg_str_clear(s);
    KG_TRY(kg_str_puts(s, "{\"prompt\": ", err));
    KG_TRY(kg_json_put_string(s, r->prompt, strlen(r->prompt), err));
    KG_TRY(kg_str_puts(s, ", \"response\": ", err));
    KG_TRY(kg_json_put_string(s, text, strlen(text), err));
    KG_TRY(kg_str_puts(s, ", \"ground_truth\": ", err));
    KG_TRY(kg_json_put_string(s, r->ground_truth, strlen(r->ground_truth), err));
    KG_TRY(kg_str_printf(
        s, err,
        ", \"problem\": %lld, \"sample\": %d, \"finish_reason\": \"%s\", \"graded\": %s, "
        "\"correct\": %s, \"reward\": ",
        (long long)t->prompt_index, t->sample, kg_finish_name(t->finish),
        g->graded ? "true" : "false", g->correct ? "true" : "false"));
    KG_TRY(kg_json_put_double(s, g->reward, err));
    KG_TRY(kg_str_puts(s, "}\n", err));
    return kg_file_writer_put(&d->file, s->data, s->len, err);
}

/* ---- the work ---- */

struct evaluation {
    struct kg_loaded policy, ref;
    const struct kg_task_row *task;
    struct kg_task_opts task_opts;
    struct kg_chat_template *chat; /* or NULL */
    struct kg_dataset data;
    struct kg_prompts prompts;
    struct dump dump;
};

static void release(struct evaluation *e)
{
    kg_file_writer_abort(&e->dump.file);
    kg_str_release(&e->dump.temporary);
    kg_str_release(&e->dump.line);
    kg_prompts_release(&e->prompts);
    kg_dataset_release(&e->data);
    kg_chat_template_close(e->chat);
    kg_load_release(&e->ref);
    kg_load_release(&e->policy);
}

static kg_status open_data(struct evaluation *e, struct kg_err *err)
{
    struct kg_prompts_opts opts = {
        .max_tokens = (size_t)e->policy.model->config.max_positions - 1,
        .limit = (size_t)count};

    if (*data_path)
        KG_TRY(kg_prompts_chat(&e->chat, chat_choice, load.dir, template_text, err));
    e->task_opts = (struct kg_task_opts){.seed = (uint64_t)seed,
                                         .level = level,
                                         .count = count,
                                         .held_out = true,
                                         .prompt_key = prompt_key,
                                         .answer_key = answer_key,
                                         .template_text = template_text,
                                         .chat = e->chat,
                                         .command = command,
                                         .timeout_ms = (int)timeout_ms,
                                         .grader = grader,
                                         .keep_thinking = keep_thinking,
                                         .exclude = exclude};
    KG_TRY(kg_task_find(&e->task, task_name, err));
    KG_TRY(kg_task_load(&e->data, e->task, &e->task_opts, *data_path ? data_path : NULL,
                        err));
    return kg_prompts_init(&e->prompts, &e->data, e->policy.tok, &opts, err);
}

static kg_status open_all(struct evaluation *e, struct kg_err *err)
{
    struct kg_load_args ref_args = load;

    KG_TRY(kg_load_model(&e->policy, &load, err));
    if (!e->policy.tok)
        return kg_fail(err, KG_ENOTFOUND, "%s: expected a tokenizer, found none",
                       load.dir);
    KG_TRY(open_data(e, err));
    ref_args.dir = reference;
    if (reference)
        KG_TRY(kg_load_model(&e->ref, &ref_args, err));
    if (e->ref.model && e->ref.model->config.vocab != e->policy.model->config.vocab)
        return kg_fail(err, KG_ESHAPE,
                       "%s: expected the policy's vocabulary of %d, found %d", reference,
                       e->policy.model->config.vocab, e->ref.model->config.vocab);
    return dump_path ? dump_open(&e->dump, dump_path, err) : KG_OK;
}

static kg_status report(const struct kg_eval_result *r, struct kg_err *err)
{
    struct kg_str out = {0};
    kg_status status;

    if (json)
        status = kg_str_printf(&out, err,
                               "{\"accuracy\": %.6g, \"stderr\": %.6g, \"reward\": %.6g, "
                               "\"reward_stderr\": %.6g, "
                               "\"problems\": %lld, \"answers\": %lld, \"entropy\": "
                               "%.6g, \"kl\": %.6g, \"kl_k1\": %.6g, "
                               "\"response_tokens\": %.6g, \"truncated\": %.6g, "
                               "\"ungraded\": %.6g, \"seconds\": %.3f}\n",
                               r->accuracy, r->accuracy_stderr, r->reward,
                               r->reward_stderr, (long long)r->problems,
                               (long long)r->answers, r->entropy, r->kl_k3, r->kl_k1,
                               r->response_tokens, r->truncated, r->ungraded, r->seconds);
    else
        status = kg_str_printf(
            &out, err,
            "accuracy  %.2f %% +- %.2f   (avg@%lld over %lld problems)\nreward    %.4f "
            "+- %.4f\n"
            "entropy   %.4f nats a token\nKL        %.5f nats a token (K3; K1 %.5f)%s\n"
            "answers   %.1f tokens, %.1f %% truncated, %.1f %% could not be graded\ntime "
            "     %.1f s\n",
            100 * r->accuracy, 100 * r->accuracy_stderr, (long long)samples,
            (long long)r->problems, r->reward, r->reward_stderr, r->entropy, r->kl_k3,
            r->kl_k1, reference ? "" : ", no --reference", r->response_tokens,
            100 * r->truncated, 100 * r->ungraded, r->seconds);
    if (status == KG_OK)
        status = kg_cli_put(&out, err);
    kg_str_release(&out);
    return status;
}

static kg_status evaluate(struct evaluation *e, struct kg_err *err)
{
    struct kg_eval_opts opts = {
        .task_opts = &e->task_opts,
        .sampling = {.temperature = (float)temperature,
                     .top_p = (float)top_p,
                     .max_tokens = (int32_t)max_tokens,
                     .stops = stops.items,
                     .n_stops = stops.n,
                     .rng = {(uint64_t)seed, KG_RNG_EVAL}},
        .samples = (int32_t)samples,
        .max_batch = (int32_t)max_batch,
        .stop_on_signal = true,
    };
    struct kg_eval_result result;

    KG_TRY(open_all(e, err));
    opts.task = e->task;
    opts.reference = e->ref.model;
    KG_TRY(kg_eval_run(&result, e->policy.model, e->policy.tok, &e->prompts, &opts,
                       dump_path ? dump_answer : NULL, &e->dump, err));
    if (dump_path)
        KG_TRY(dump_close(&e->dump, dump_path, err));
    return report(&result, err);
}

int kg_cmd_eval(int argc, char **argv)
{
    struct evaluation e = {0};
    struct kg_err err;
    kg_status status;

    (void)argc;
    (void)argv;
    if (!load.dir)
        return kg_cli_usage("expected --model DIR");
    kg_signal_install();
    status = evaluate(&e, &err);
    release(&e);
    return kg_cli_exit(status, &err);
}
