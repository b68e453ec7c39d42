/* kedge chat: a conversation in the terminal, answered token by token.
 *
 * The conversation is tokens. A new message is rendered with all before it. The text that
 * the rendering adds after the last completion is tokenised and appended, so the model's
 * completions stay the tokens that it sampled. Only if the template rewrites earlier
 * turns (Qwen3 drops their thinking), the whole conversation is tokenised again, and a
 * message says so once.
 */
#include "base/printable.h"
#include "cli/cli.h"
#include "cli/load.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "data/source.h"
#include "rollout/rollout.h"
#include "serve/text.h"
#include "text/chat_template.h"
#include "text/messages.h"
#include "text/unicode.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *chat_template = "auto";
static const char *system_text;
static const char *date;
static struct kg_sampling sampled = {.temperature = 0.7f, KG_TRUNCATION_OFF};
static int64_t max_tokens = 1024;
static int64_t max_len;
static int64_t seed = -1;

const struct kg_flag kg_chat_flags[] = {
    KG_FLAGS_OF(kg_model_flags),
    KG_FLAGS_OF(kg_ignore_flags),
    {"system", 's', KG_TO(system_text), "TEXT",
     "system message (default: the template's)"},
    {"chat-template", 0, KG_TO(chat_template), "CHOICE",
     "auto (the model folder's), or a file or folder (default auto)"},
    {"date", 0, KG_TO(date), "YYYY-MM-DD",
     "date for chat templates that use it (default: the day of the start)"},
    KG_TEMPERATURE_FLAG(0.7, sampled),
    KG_TRUNCATION_FLAGS(sampled),
    {"max-tokens", 0, KG_TO(max_tokens), "N",
     "largest number of tokens of a completion (default 1024)", 1, INT_MAX / 2},
    {"max-len", 0, KG_TO(max_len), "N",
     "largest number of tokens of the conversation (default: the model's positions, at "
     "most 32,768)",
     2, INT_MAX / 2},
    {"seed", 0, KG_TO(seed), "S",
     "seed of sampling; the same seed and messages give the same completions (default: "
     "from the clock)",
     0, 1e18},
    KG_FLAGS_OF(kg_compute_flags),
    KG_FLAGS_OF(kg_device_flags),
    {0},
};

enum { MOST_POSITIONS = 32768 };

struct chat {
    struct kg_loaded l;
    struct kg_chat_template *tmpl;
    struct kg_rollout *engine;
    struct kg_sampling sampling;
    int32_t max_len;
    int64_t now_s;          /* fixed, or turns would be rewritten at midnight */
    struct kg_str messages; /* JSON objects, separated by commas */
    struct kg_str known;    /* the text of the tokens of t */
    struct kg_ids ids;      /* the prompt of q */
    struct kg_request q;
    struct kg_traj t;
    size_t turn_from; /* token of t at which the current completion begins */
    bool parked;      /* the engine keeps t between two turns */
    bool finished;    /* the current completion */
    struct kg_serve_text text;
    struct kg_str out;
    bool said_rewritten;
    bool leaves;      /* the user typed /quit */
    bool interactive; /* stdin is a terminal */
    bool terminal;    /* stdout is a terminal */
};

/* ---- Ctrl-C ends a completion ---- */

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

/* ---- messages ---- */

static kg_status add_message(struct chat *c, const char *role, const char *text, size_t n,
                             struct kg_err *err)
{
    if (kg_utf8_check(text, n, err) != KG_OK)
        return kg_err_prefix(err, "%s", role);
    KG_TRY(kg_str_printf(&c->messages, err, "%s{\"role\": \"%s\", \"content\": ",
                         c->messages.len > 0 ? ", " : "", role));
    KG_TRY(kg_json_put_string(&c->messages, text, n, err));
    return kg_str_putc(&c->messages, '}', err);
}

static kg_status render(struct kg_str *out, const struct chat *c, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_str json = {0};
    kg_status status = kg_str_printf(&json, err, "[%s]", kg_str_text(&c->messages));
    if (status == KG_OK)
        status = kg_json_parse(&doc, json.data, json.len, "messages", err);
    if (status == KG_OK) {
        const struct kg_conversation talk = {.messages = doc.root,
                                             .n = kg_json_size(doc.root),
                                             .now_s = c->now_s,
                                             .generate = true};
        status = kg_conversation_render(out, &talk, c->tmpl, err);
    }
    kg_json_release(&doc);
    kg_str_release(&json);
    return status;
}

/* ---- output of the engine ---- */

/* Appends text as valid UTF-8: U+FFFD replaces invalid bytes and, for a terminal, control
 * characters, which the terminal would execute. */
static kg_status put_clean(struct kg_str *out, const struct kg_str *text, bool terminal,
                           struct kg_err *err)
{
    const char *bytes = kg_str_text(text);
    for (size_t i = 0; i < text->len;) {
        size_t left = text->len - i;
        size_t n = kg_utf8_length(bytes + i, left);
        if (n == 0 || (terminal && kg_printable_at(bytes + i, left, true) == 0))
            KG_TRY(kg_str_puts(out, "\xef\xbf\xbd", err));
        else
            KG_TRY(kg_str_append(out, bytes + i, n, err));
        i += n > 0 ? n : kg_utf8_bad_length(bytes + i, left);
    }
    return KG_OK;
}

static kg_status show(struct chat *c, struct kg_err *err)
{
    struct kg_str shown = {0};
    kg_status status = put_clean(&shown, &c->out, c->terminal, err);
    kg_str_clear(&c->out);
    return kg_cli_print(status, &shown, err);
}

static kg_status on_token(void *user, const struct kg_request *q, const struct kg_traj *t,
                          struct kg_err *err)
{
    struct chat *c = user;
    (void)q;
    KG_TRY(kg_serve_text_add(&c->out, &c->text, c->l.tok, t->tokens[t->n - 1], NULL, 0,
                             err));
    return show(c, err);
}

static kg_status on_finished(void *user, const struct kg_request *q, struct kg_traj *t,
                             const struct kg_err *failure, struct kg_err *err)
{
    struct chat *c = user;
    (void)q;
    c->finished = true;
    c->parked = failure == NULL;
    if (failure) {
        *err = *failure;
        return failure->code;
    }
    KG_TRY(kg_serve_text_end(&c->out, &c->text, NULL, 0, t->finish, err));
    return show(c, err);
}

/* ---- a turn ---- */

static kg_status check_room(const struct chat *c, size_t n, struct kg_err *err)
{
    if (n < (size_t)c->max_len)
        return KG_OK;
    return kg_fail(err, KG_ESHAPE,
                   "the conversation would have %zu tokens, the limit is %d: /new begins "
                   "another one",
                   n, c->max_len);
}

static int32_t answer_tokens(const struct chat *c, size_t used)
{
    int64_t room = c->max_len - (int64_t)used;
    return (int32_t)(room < max_tokens ? room : max_tokens);
}

/* Starts a sequence with the tokens of c->ids. */
static kg_status submit(struct chat *c, struct kg_err *err)
{
    if (c->parked)
        kg_rollout_close(c->engine, &c->t);
    c->parked = false;
    kg_traj_release(&c->t);
    c->t = (struct kg_traj){0};
    KG_TRY(check_room(c, c->ids.n, err));
    c->turn_from = c->ids.n;
    c->q = (struct kg_request){.prompt = c->ids.ids,
                               .prompt_n = c->ids.n,
                               .draw = kg_seed_draw((uint64_t)seed),
                               .first_sample = kg_seed_sample((uint64_t)seed),
                               .n_samples = 1,
                               .max_tokens = answer_tokens(c, c->ids.n),
                               .context = c->max_len};
    return kg_rollout_submit(c->engine, &c->q, &c->t, err);
}

/* Continues after the last completion. If the model has sampled the end token, it is not
 * added again. */
static kg_status append(struct chat *c, const struct kg_ids *more, struct kg_err *err)
{
    bool said = c->t.finish == KG_FINISH_STOP && more->n > 0 &&
                more->ids[0] == c->t.tokens[c->t.n - 1];
    const int32_t *ids = more->ids + said;
    size_t n = more->n - said;
    KG_TRY(check_room(c, c->t.n + n, err));
    if (c->parked) {
        c->turn_from = c->t.n + n;
        c->parked = false;
        return kg_rollout_resume(c->engine, &c->t, ids, n, answer_tokens(c, c->turn_from),
                                 err);
    }
    c->ids.n = 0;
    for (size_t i = 0; i < c->t.n; i++)
        KG_TRY(kg_ids_push(&c->ids, c->t.tokens[i], err));
    for (size_t i = 0; i < n; i++)
        KG_TRY(kg_ids_push(&c->ids, ids[i], err));
    return submit(c, err);
}

static kg_status begin_answer(struct chat *c, const struct kg_str *full,
                              struct kg_err *err)
{
    struct kg_encode_opts opts = {.parse_special = true};
    struct kg_ids more = {0};
    size_t n = c->known.len;
    bool goes_on = n > 0 && full->len >= n && memcmp(full->data, c->known.data, n) == 0;
    opts.continues = goes_on;
    if (goes_on) {
        kg_status status = kg_tokenizer_encode(&more, c->l.tok, full->data + n,
                                               full->len - n, opts, err);
        if (status == KG_OK)
            status = append(c, &more, err);
        kg_ids_release(&more);
        return status;
    }
    if (n > 0 && !c->said_rewritten)
        kg_log_warn("the chat template rewrites earlier turns: the conversation is "
                    "tokenised again at every turn");
    c->said_rewritten |= n > 0;
    c->ids.n = 0;
    KG_TRY(kg_tokenizer_encode(&c->ids, c->l.tok, full->data, full->len, opts, err));
    return submit(c, err);
}

/* Appends the newest completion, as text after the prompt or as a text of its own. */
static kg_status put_answer(struct kg_str *out, struct chat *c, bool itself,
                            struct kg_err *err)
{
    struct kg_str said = {0};
    const int32_t *ids = c->t.tokens + c->turn_from;
    kg_status status = (itself ? kg_tokenizer_decode_text : kg_tokenizer_decode)(
        &said, c->l.tok, ids, c->t.n - c->turn_from, true, err);
    if (status == KG_OK)
        status = put_clean(out, &said, false, err);
    kg_str_release(&said);
    return status;
}

/* Adds the completion to the messages, and its text to c->known. */
static kg_status keep_answer(struct chat *c, struct kg_str *full, struct kg_err *err)
{
    struct kg_str message = {0};
    kg_status status;
    KG_TRY_GOTO(out, put_answer(full, c, false, err));
    KG_TRY_GOTO(out, put_answer(&message, c, true, err));
    kg_str_release(&c->known);
    c->known = *full;
    *full = (struct kg_str){0};
    status = add_message(c, "assistant", kg_str_text(&message), message.len, err);
out:
    kg_str_release(&message);
    return status;
}

static kg_status answer(struct chat *c, const char *line, size_t n, struct kg_err *err)
{
    struct kg_str full = {0};
    kg_status status;
    kg_serve_text_release(&c->text);
    KG_TRY_GOTO(out, add_message(c, "user", line, n, err));
    KG_TRY_GOTO(out, render(&full, c, err));
    KG_TRY_GOTO(out, begin_answer(c, &full, err));
    c->finished = false;
    interrupted = 0;
    while (!c->finished && !interrupted)
        KG_TRY_GOTO(out, kg_rollout_step(c->engine, NULL, err));
    if (!c->finished)
        kg_rollout_cancel(c->engine, &c->t, 1);
    KG_TRY_GOTO(out, show(c, err));
    status = keep_answer(c, &full, err);
out:
    kg_str_release(&full);
    return status;
}

/* ---- the conversation ---- */

static kg_status begin_conversation(struct chat *c, struct kg_err *err)
{
    kg_str_clear(&c->messages);
    kg_str_clear(&c->known);
    const struct kg_rollout_session session = {
        .sampling = &c->sampling, .token = on_token, .finished = on_finished, .user = c};
    c->parked = false;
    KG_TRY(kg_rollout_begin(c->engine, &session, err));
    kg_traj_release(&c->t);
    c->t = (struct kg_traj){0};
    return system_text ? add_message(c, "system", system_text, strlen(system_text), err)
                       : KG_OK;
}

/* ---- commands of kedge, which the model does not see ---- */

static kg_status leave(struct chat *c, struct kg_err *err)
{
    (void)err;
    c->leaves = true;
    return KG_OK;
}

static kg_status show_commands(struct chat *c, struct kg_err *err);

static const struct {
    const char *name;
    const char *help;
    kg_status (*run)(struct chat *c, struct kg_err *err);
} commands[] = {
    {"/new", "begin another conversation", begin_conversation},
    {"/help", "show this list", show_commands},
    {"/quit", "leave, as Ctrl-D does", leave},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static kg_status show_commands(struct chat *c, struct kg_err *err)
{
    (void)c;
    (void)err;
    for (size_t i = 0; i < N_COMMANDS; i++)
        kg_log_info("%-6s %s", commands[i].name, commands[i].help);
    kg_log_info("//     a message that begins with one /; Ctrl-C ends a completion");
    return KG_OK;
}

/* Whether the line is / and a word, alone or before a blank. A path is not. */
static bool is_command(const char *line)
{
    size_t n = 1 + strspn(line + (*line == '/'), "abcdefghijklmnopqrstuvwxyz_-");

    return *line == '/' && n > 1 && (line[n] == '\0' || line[n] == ' ');
}

/* If a message cannot be answered (too long, refused by the template), it is removed. */
static kg_status take_line(struct chat *c, const char *line, size_t n, struct kg_err *err)
{
    size_t before = c->messages.len;
    bool escaped = line[0] == '/' && line[1] == '/';
    if (is_command(line)) {
        /* An unknown command prints a message and is not sent to the model. */
        for (size_t i = 0; i < N_COMMANDS; i++)
            if (strcmp(line, commands[i].name) == 0)
                return commands[i].run(c, err);
        kg_log_warn(
            "expected /new, /help or /quit, found '%.60s'; write // for a message "
            "that begins with /",
            line);
        return KG_OK;
    }
    kg_status status = answer(c, line + escaped, n - escaped, err);
    if (status == KG_ESHAPE || status == KG_EFORMAT) {
        kg_log_warn("%s", err->message);
        c->messages.len = before;
        if (c->messages.data)
            c->messages.data[before] = '\0';
        status = KG_OK;
    }
    KG_TRY(kg_str_putc(&c->out, '\n', err));
    KG_TRY(kg_cli_put(&c->out, err));
    return status;
}

/* returns false at the end of the input */
static bool read_line(struct chat *c, char **line, size_t *capacity, size_t *n)
{
    for (;;) {
        interrupted = 0;
        if (c->interactive)
            fputs("> ", stderr);
        ssize_t got = getline(line, capacity, stdin);
        if (got < 0 && interrupted && errno == EINTR) {
            clearerr(stdin);
            fputs("\n", stderr);
            continue;
        }
        if (got < 0)
            return false;
        while (got > 0 && kg_char_in("\r\n", (*line)[got - 1]))
            (*line)[--got] = '\0';
        *n = (size_t)got;
        if (got > 0)
            return true;
    }
}

static kg_status converse(struct chat *c, struct kg_err *err)
{
    char *line = NULL;
    size_t capacity = 0;
    size_t n;
    kg_status status = begin_conversation(c, err);
    if (status == KG_OK && c->interactive)
        kg_log_info("Ctrl-C ends a completion, /new begins another conversation, Ctrl-D "
                    "leaves, /help lists commands");
    while (status == KG_OK && !c->leaves && read_line(c, &line, &capacity, &n))
        status = take_line(c, line, n, err);
    if (c->interactive)
        fputs("\n", stderr);
    free(line); /* allocated by getline */
    return status;
}

static kg_status open_chat(struct chat *c, struct kg_err *err)
{
    uint64_t unused;

    if (kg_file_exists(kg_load.dir))
        KG_TRY(kg_file_size(&unused, kg_load.dir, err));
    if (!kg_source_is_model(kg_load.dir))
        return kg_fail(err, KG_ENOTFOUND,
                       "%s: expected a checkpoint folder or a GGUF file, found none",
                       kg_load.dir);
    KG_TRY(kg_chat_template_choose(&c->tmpl, chat_template, kg_load.dir, err));
    if (c->tmpl == NULL)
        return kg_fail(
            err, KG_ENOTFOUND,
            "%s has no chat template (chat_template.jinja, or chat_template in "
            "tokenizer_config.json): give one with --chat-template FILE",
            kg_load.dir);
    const struct kg_prompt_opts how = {.chat = c->tmpl, .date = date, .prefix = "--"};
    struct kg_chat_day today = kg_chat_today();

    KG_TRY(kg_prompt_check(&how, err));
    KG_TRY(kg_chat_date(&c->now_s, date ? date : today.text, err));
    KG_TRY(kg_load_model(&c->l, &kg_load, err));
    if (c->l.tok == NULL)
        return kg_fail(err, KG_ENOTFOUND, "%s has no tokenizer", kg_load.dir);
    int32_t positions = c->l.model->config.max_positions;
    KG_TRY(kg_load_check_length(&c->l, max_len, err));
    c->max_len = positions < MOST_POSITIONS ? positions : MOST_POSITIONS;
    if (max_len > 0)
        c->max_len = (int32_t)max_len;
    struct kg_rollout_opts opts = {.max_batch = 1, .max_len = c->max_len};
    return kg_rollout_create(&c->engine, c->l.model, c->l.tok, &opts, err);
}

int kg_cmd_chat(int argc, char **argv)
{
    struct chat c = {.interactive = isatty(0), .terminal = isatty(1)};
    struct kg_err err;
    (void)argc;
    (void)argv;
    if (kg_load.dir == NULL)
        return kg_cli_usage("expected --model DIR");
    if (seed < 0)
        seed = (int64_t)(kg_clock_unix_seconds() * 1e3) * KG_SEED_SAMPLES;
    c.sampling = sampled;
    c.sampling.max_tokens = (int32_t)max_tokens;
    c.sampling.rng = kg_seed_key();
    kg_status status = open_chat(&c, &err);
    if (status == KG_OK) {
        /* without SA_RESTART, so that Ctrl-C also discards a line being typed */
        struct sigaction action = {.sa_handler = on_interrupt};
        sigemptyset(&action.sa_mask);
        sigaction(SIGINT, &action, NULL);
        status = converse(&c, &err);
    }
    kg_rollout_free(c.engine);
    kg_traj_release(&c.t);
    kg_ids_release(&c.ids);
    kg_serve_text_release(&c.text);
    kg_str_release(&c.messages);
    kg_str_release(&c.known);
    kg_str_release(&c.out);
    kg_chat_template_close(c.tmpl);
    kg_load_release(&c.l);
    return kg_cli_exit(status, &err);
}
