/* kedge data: shows a data file of any format, checks it as training reads it, and
 * converts it to JSON lines.
 *
 * `head` and `convert` show records unchanged. `check` uses the reader, keys, task,
 * template and tokenizer of a run, so it refuses and shortens the same records as
 * training.
 */
#include "cli/cli.h"
#include "cli/load.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/printable.h"
#include "data/gz.h"
#include "data/jsonl.h"
#include "data/records.h"
#include "task/prompts.h"
#include "task/task.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { FLUSH_BYTES = 1 << 16 };

static int64_t count = 5;
static const char *out_path;
static const char *prompt_key = "", *answer_key = "";
static bool need_answer;
static const char *task_name = "none", *model_dir, *chat_choice, *add_special = "auto";
static struct kg_prompt_opts how = {.prefix = "--"};
static bool as_json;

const struct kg_flag kg_data_flags[] = {
    {"count", 'n', KG_IF("=head", count), "N", "records to print (default 5)", 1, 1e9},
    {"out", 'o', KG_IF("=convert", out_path), "FILE",
     "output file, compressed if it ends in .gz or .zst (default stdout)"},
    {"prompt-key", 0, KG_IF("=check", prompt_key), "KEY",
     "key of the prompt, as data.prompt_key"},
    {"answer-key", 0, KG_IF("=check", answer_key), "KEY",
     "key of the answer, as data.answer_key"},
    {"need-answer", 0, KG_IF("=check", need_answer), NULL,
     "a record without an answer is an error"},
    {"task", 0, KG_IF("=check", task_name), "NAME",
     "check the file as this task reads it, with its gold answers (default none)"},
    {"model", 'm', KG_IF("=check", model_dir), KG_MODEL_ARG,
     "folder whose tokenizer and chat template render the prompts"},
    {"chat-template", 0, KG_IF("=check", chat_choice), "WHICH",
     "chat template, as data.chat_template: auto (the model's template), none, or a "
     "file"},
    {"template", 0, KG_IF("=check", how.template_text), "TEXT", "as data.template"},
    {"user-turn", 0, KG_IF("=check", how.user_turn), NULL, "as data.user_turn"},
    {"system", 0, KG_IF("=check", how.system), "TEXT", "as data.system"},
    {"opening", 0, KG_IF("=check", how.opening), "TEXT", "as data.opening"},
    {"date", 0, KG_IF("=check", how.date), "YYYY-MM-DD", "as data.date"},
    {"add-special", 0, KG_IF("=check&--model", add_special), "WHICH",
     "as data.add_special", 0, 0, KG_SPECIAL_CHOICES},
    {"json", 0, KG_IF("=check", as_json), NULL, "print the result as one JSON object"},
    {0},
};

/* ---- check ---- */

/* A file as training reads it, and what makes its prompts. */
struct checked {
    struct kg_dataset data;
    struct kg_chat_template *chat; /* NULL: none */
    struct kg_tokenizer *tok;      /* of --model; NULL: none */
    struct kg_prompts prompts;     /* with tok */
    bool as_json;                  /* no template was given, so messages stay JSON */
};

struct totals {
    int64_t answers;
    int64_t solutions;
    int64_t rendered;
    int64_t prompt_bytes;
    int64_t longest;
};

static struct totals add_up(const struct kg_dataset *d)
{
    struct totals t = {0};

    for (size_t i = 0; i < d->n; i++) {
        int64_t n = (int64_t)strlen(d->records[i].prompt);

        t.answers += d->records[i].ground_truth[0] != 0;
        t.solutions += d->records[i].solution != NULL;
        t.rendered += d->records[i].rendered;
        t.prompt_bytes += n;
        t.longest = n > t.longest ? n : t.longest;
    }
    return t;
}

static kg_status put_json(struct kg_str *out, const struct checked *c,
                          const struct totals *t, struct kg_err *err)
{
    KG_TRY(kg_str_printf(
        out, err,
        "{\"format\": \"%s\", \"records\": %zu, \"answers\": %lld, \"solutions\": "
        "%lld, \"prompt_bytes_mean\": %.1f, \"prompt_bytes_max\": %lld, \"%s\": %lld",
        c->data.format, c->data.n, (long long)t->answers, (long long)t->solutions,
        (double)t->prompt_bytes / (double)c->data.n, (long long)t->longest,
        c->as_json ? "messages" : "rendered", (long long)t->rendered));
    if (c->tok)
        KG_TRY(
            kg_str_printf(out, err, ", \"prompt_tokens_max\": %zu", c->prompts.longest));
    return kg_str_puts(out, "}\n", err);
}

/* How the prompts were made, and the first prompt. */
static kg_status put_prompts(struct kg_str *out, const struct checked *c,
                             const struct totals *t, struct kg_err *err)
{
    if (t->rendered > 0)
        KG_TRY(kg_str_printf(
            out, err, "%lld prompts are %s\n", (long long)t->rendered,
            c->as_json ? "lists of messages, which training renders by the chat template "
                         "of its model (see them with --model or --chat-template)"
                       : "rendered by the chat template"));
    if (!c->tok && (!c->chat || c->as_json))
        return KG_OK;
    if (!c->tok) {
        const char *first = c->data.records[0].prompt;

        KG_TRY(kg_str_puts(out, "first prompt:\n", err));
        KG_TRY(kg_printable_put(out, first, strlen(first), true, err));
        return kg_str_putc(out, '\n', err);
    }
    KG_TRY(kg_str_printf(
        out, err, "longest prompt %zu tokens; first prompt: ", c->prompts.longest));
    KG_TRY(kg_prompts_show(out, &c->prompts, 0, c->tok, "  ", SIZE_MAX, err));
    return kg_str_putc(out, '\n', err);
}

static kg_status print_check(const struct checked *c, struct kg_err *err)
{
    const struct kg_dataset *d = &c->data;
    struct totals t = add_up(d);
    struct kg_str out = {0};
    kg_status status;

    if (as_json)
        KG_TRY_GOTO(out, put_json(&out, c, &t, err));
    else {
        KG_TRY_GOTO(out, kg_str_printf(
                             &out, err,
                             "%s: %s, %zu records with a prompt (mean %.1f bytes, "
                             "longest %lld), %lld with an answer, %lld with a worked "
                             "solution\n",
                             d->name, d->format, d->n,
                             (double)t.prompt_bytes / (double)d->n, (long long)t.longest,
                             (long long)t.answers, (long long)t.solutions));
        KG_TRY_GOTO(out, put_prompts(&out, c, &t, err));
    }
    status = kg_cli_put(&out, err);
out:
    kg_str_release(&out);
    return status;
}

/* If neither model nor template is given, lists of messages stay JSON. */
static kg_status choose_chat(struct checked *c, struct kg_err *err)
{
    static const char as_it_is[] = "{{ messages | tojson }}";

    c->as_json = !chat_choice && !model_dir;
    if (c->as_json && (how.user_turn || how.opening))
        return kg_fail(
            err, KG_EINVAL,
            "%s: expected a chat template (--model or --chat-template), found none",
            how.user_turn ? "--user-turn" : "--opening");
    if (c->as_json) {
        KG_TRY(kg_chat_template_parse(&c->chat, as_it_is, sizeof as_it_is - 1, "messages",
                                      err));
        how.chat = c->chat;
        return KG_OK;
    }
    if (!model_dir && chat_choice && strcmp(chat_choice, "auto") == 0)
        return kg_fail(err, KG_EINVAL,
                       "--chat-template: expected --model with auto, found none");
    return kg_prompt_choose(&c->chat, &how, chat_choice ? chat_choice : "auto", model_dir,
                            err);
}

static kg_status read_checked(struct checked *c, const char *path, struct kg_err *err)
{
    struct kg_task_opts opts = {
        .prompt_key = prompt_key, .answer_key = answer_key, .need_answer = need_answer};
    const struct kg_task_row *row;
    const struct kg_prompts_opts all = {.max_tokens = SIZE_MAX,
                                        .special = kg_special_named(add_special)};

    KG_TRY(kg_task_find(&row, task_name, err));
    KG_TRY(choose_chat(c, err));
    opts.prompt = how;
    KG_TRY(kg_task_load(&c->data, row, &opts, path, err));
    if (!model_dir)
        return KG_OK;
    KG_TRY(kg_load_tokenizer(&c->tok, model_dir, err));
    return c->tok ? kg_prompts_init(&c->prompts, &c->data, c->tok, &all, err) : KG_OK;
}

/* The file is opened only once: a pipe cannot be read twice. */
static kg_status check(const char *path, struct kg_err *err)
{
    struct checked c = {.as_json = false};
    kg_status status = read_checked(&c, path, err);

    if (status == KG_OK)
        status = print_check(&c, err);
    kg_prompts_release(&c.prompts);
    kg_dataset_release(&c.data);
    kg_chat_template_close(c.chat);
    kg_tokenizer_close(c.tok);
    return status;
}

/* ---- head and convert ---- */

struct sink {
    struct kg_cli_target target; /* for -o */
    struct kg_zst_writer *zst;   /* -o FILE.zst */
    struct kg_gz_writer *gz;     /* -o FILE.gz */
    struct kg_file_writer plain; /* -o FILE */
    struct kg_str text;
};

static bool ends_in(const char *text, const char *tail)
{
    size_t n = strlen(text);
    size_t m = strlen(tail);

    return n >= m && strcmp(text + n - m, tail) == 0;
}

static kg_status sink_open(struct sink *s, const char *path, const char *from,
                           struct kg_err *err)
{
    const char *name;

    if (!path)
        return KG_OK;
    if (ends_in(path, ".parquet"))
        return kg_fail(
            err, KG_EUNSUPPORTED,
            "%s: expected a name for JSON lines (.jsonl, .jsonl.gz, .jsonl.zst), found "
            ".parquet, which kedge reads but does not write",
            path);
    KG_TRY(kg_cli_target_open(&s->target, path, err));
    /* an output that is not replaced would be truncated before it is read */
    struct stat in, out;

    if (s->target.as_it_is && stat(from, &in) == 0 && stat(s->target.path, &out) == 0 &&
        in.st_dev == out.st_dev && in.st_ino == out.st_ino)
        return kg_fail(
            err, KG_EINVAL,
            "%s: expected an output file other than the input, found a link to it",
            s->target.path);
    name = s->target.name.data;
    if (ends_in(path, ".zst"))
        return kg_zst_open(&s->zst, name, 0, err);
    if (ends_in(path, ".gz"))
        return kg_gz_open(&s->gz, name, err);
    return kg_file_writer_open(&s->plain, name, err);
}

static kg_status sink_flush(struct sink *s, struct kg_err *err)
{
    kg_status status;

    if (s->zst)
        status = kg_zst_put(s->zst, s->text.data, s->text.len, err);
    else if (s->gz)
        status = kg_gz_put(s->gz, s->text.data, s->text.len, err);
    else if (s->plain.path)
        status = kg_file_writer_put(&s->plain, s->text.data, s->text.len, err);
    else
        return kg_cli_put(&s->text, err);
    kg_str_clear(&s->text);
    return status;
}

/* On success, writes the remaining text and renames the file; else removes it. */
static kg_status sink_close(struct sink *s, kg_status status, struct kg_err *err)
{
    if (status == KG_OK && s->text.len > 0)
        status = sink_flush(s, err);
    if (status != KG_OK) {
        kg_zst_abort(s->zst);
        kg_gz_abort(s->gz);
        kg_file_writer_abort(&s->plain);
    } else if (s->zst) {
        status = kg_zst_close(s->zst, err);
    } else if (s->gz) {
        status = kg_gz_close(s->gz, err);
    } else if (s->plain.path) {
        status = kg_file_writer_close(&s->plain, err);
    }
    if (status == KG_OK && s->target.path)
        status = kg_cli_target_settle(&s->target, err);
    kg_cli_target_release(&s->target);
    kg_str_release(&s->text);
    return status;
}

static kg_status copy_records(struct sink *s, struct kg_records *r, int64_t most,
                              struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    kg_status status = KG_OK;
    bool more = true;

    for (int64_t i = 0; i < most; i++) {
        KG_TRY_GOTO(out, kg_records_next(r, &doc, &more, err));
        if (!more)
            break;
        KG_TRY_GOTO(out, kg_json_put_value(&s->text, doc.root, err));
        KG_TRY_GOTO(out, kg_str_putc(&s->text, '\n', err));
        if (s->text.len >= FLUSH_BYTES)
            KG_TRY_GOTO(out, sink_flush(s, err));
    }
out:
    kg_json_release(&doc);
    return status;
}

static kg_status copy_file(const char *path, const char *to, int64_t most,
                           struct kg_err *err)
{
    struct sink sink = {0};
    struct kg_records *r;

    KG_TRY(kg_records_open(&r, path, err));
    kg_status status = sink_open(&sink, to, path, err);
    if (status == KG_OK)
        status = copy_records(&sink, r, most, err);
    status = sink_close(&sink, status, err);
    kg_records_close(r);
    return status;
}

static kg_status head(const char *path, struct kg_err *err)
{
    return copy_file(path, NULL, count, err);
}

static kg_status convert(const char *path, struct kg_err *err)
{
    return copy_file(path, out_path, INT64_MAX, err);
}

/* ---- the command ---- */

static const struct action {
    const char *name;
    kg_status (*run)(const char *path, struct kg_err *err);
} actions[] = {{"check", check}, {"head", head}, {"convert", convert}};

/* Runs an action on a file, or on a data set's file in the hub's cache. */
static kg_status run_on(kg_status (*run)(const char *path, struct kg_err *err),
                        const char *path, struct kg_err *err)
{
    KG_TRY(kg_cli_find_file(&path, err));
    return run(path, err);
}

int kg_cmd_data(int argc, char **argv)
{
    struct kg_err err;

    if (argc != 2)
        return kg_cli_usage("expected check, head or convert, and a file");
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
        if (strcmp(argv[0], actions[i].name) == 0)
            return kg_cli_exit(run_on(actions[i].run, argv[1], &err), &err);
    return kg_cli_usage_unknown(argv[0], &actions[0].name,
                                sizeof actions / sizeof *actions, sizeof *actions);
}
