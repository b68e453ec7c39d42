/* Completions over the course of a run, from its rollout dumps: for a few steps, from
 * first to last, the one with the highest reward, the lowest, and the longest. They show
 * what was learned: a format, a trick or the task. Only some lines of each dump are read;
 * if one cannot be read, the page lacks them and a warning says why. */
#include "report/report_internal.h"

#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "base/utf8.h"
#include "data/records.h"
#include "text/html.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum {
    STEPS = 4,        /* shown per run */
    LINES = 256,      /* read per dump */
    MAX_BYTES = 3000, /* shown per text */
};

enum { HIGHEST, LOWEST, LONGEST, N_SLOTS };
static const char *const titles[N_SLOTS] = {"highest reward", "lowest reward", "longest"};

/* The best completion so far for one slot of a step. */
struct slot {
    int64_t line; /* in the dump, from 1; 0: none yet */
    double reward;
    int64_t tokens;
    struct kg_str html; /* owned */
};

/* ---- one completion ---- */

static kg_status put_text(struct kg_str *out, const char *class, const char *text,
                          size_t n, struct kg_err *err)
{
    size_t shown = n < MAX_BYTES ? n : MAX_BYTES;

    if (shown < n)
        shown -= kg_utf8_cut(text, shown);
    KG_TRY(kg_str_printf(out, err, "<span class=\"%s\">", class));
    KG_TRY(kg_html_put(out, text, shown, err));
    if (shown < n)
        KG_TRY(kg_str_printf(out, err, "</span><small> .. %zu bytes more</small><span>",
                             n - shown));
    return kg_str_puts(out, "</span>", err);
}

/* Prints the prompt, as far as the tokenizer knows its tokens; nothing without one. */
static kg_status put_prompt(struct kg_str *out, const struct kg_json *line,
                            const struct kg_tokenizer *tok, struct kg_err *err)
{
    const struct kg_json *tokens = kg_json_get(line, "tokens");
    size_t n = (size_t)kg_json_int(kg_json_get(line, "prompt_n"), 0);
    struct kg_str text = {0};
    struct kg_err unknown;
    kg_status status = KG_OK;

    for (size_t i = 0; tok && i < n && i < kg_json_size(tokens); i++) {
        int32_t id = (int32_t)kg_json_int(kg_json_at(tokens, i), -1);

        if ((i == 0 ? kg_tokenizer_decode_text
                    : kg_tokenizer_decode)(&text, tok, &id, 1, false, &unknown) != KG_OK)
            break;
    }
    if (text.len > 0)
        status = put_text(out, "q", text.data, text.len, err);
    kg_str_release(&text);
    return status;
}

static kg_status fill(struct slot *s, const struct kg_json *line, int64_t number,
                      const struct kg_tokenizer *tok, struct kg_err *err)
{
    size_t n = 0;
    const char *text = kg_json_text(kg_json_get(line, "text"), &n);
    const char *finish = kg_json_text(kg_json_get(line, "finish"), NULL);
    char reward[KG_NUMBER];

    s->line = number;
    s->reward = kg_json_real(kg_json_get(line, "reward"), 0);
    s->tokens = (int64_t)kg_json_size(kg_json_get(line, "tokens"));
    kg_str_clear(&s->html);
    KG_TRY(kg_str_printf(
        &s->html, err, ": reward %s, %lld tokens, %s, line %lld</b></figcaption><pre>",
        kg_number(reward, s->reward, 4),
        (long long)(s->tokens - kg_json_int(kg_json_get(line, "prompt_n"), 0)),
        finish && strlen(finish) < 20 ? finish : "", (long long)number));
    KG_TRY(put_prompt(&s->html, line, tok, err));
    KG_TRY(put_text(&s->html, "a", text ? text : "", n, err));
    return kg_str_puts(&s->html, "</pre></figure>\n", err);
}

/* ---- one step ---- */

static bool is_better(const struct slot *s, int place, double reward, int64_t tokens)
{
    if (s->line == 0)
        return true;
    if (place == LONGEST)
        return tokens > s->tokens;
    return place == HIGHEST ? reward > s->reward : reward < s->reward;
}

static kg_status look_at(struct slot slots[N_SLOTS], const struct kg_json *line,
                         int64_t number, const struct kg_tokenizer *tok,
                         struct kg_err *err)
{
    const struct kg_json *reward = kg_json_get(line, "reward");
    int64_t tokens = (int64_t)kg_json_size(kg_json_get(line, "tokens"));

    for (int i = 0; kg_json_is_number(reward) && i < N_SLOTS; i++) {
        if (is_better(&slots[i], i, kg_json_real(reward, 0), tokens))
            KG_TRY(fill(&slots[i], line, number, tok, err));
    }
    return KG_OK;
}

static kg_status read_dump(struct slot slots[N_SLOTS], const char *path,
                           const struct kg_tokenizer *tok, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_records *records = NULL;
    bool more = true;
    kg_status status;

    KG_TRY(kg_records_open(&records, path, err));
    for (int i = 0; i < LINES; i++) {
        KG_TRY_GOTO(out, kg_records_next(records, &doc, &more, err));
        if (!more)
            break;
        KG_TRY_GOTO(out, look_at(slots, doc.root, kg_records_number(records), tok, err));
    }
    status = KG_OK;
out:
    kg_json_release(&doc);
    kg_records_close(records);
    return status;
}

/* A completion may fill several slots, and is shown once. */
static kg_status put_slots(struct kg_report *r, const struct slot slots[N_SLOTS])
{
    for (int i = 0; i < N_SLOTS; i++) {
        bool again = false;

        for (int k = 0; k < i; k++)
            again = again || slots[k].line == slots[i].line;
        if (again || slots[i].line == 0)
            continue;
        KG_TRY(kg_str_printf(r->out, r->err, "<figure><figcaption><b>%s", titles[i]));
        KG_TRY(kg_str_append(r->out, slots[i].html.data, slots[i].html.len, r->err));
    }
    return KG_OK;
}

/* An unreadable dump gives a warning; the page continues without it. */
static kg_status put_step(struct kg_report *r, const struct kg_report_run *run,
                          const char *name, const struct kg_tokenizer *tok)
{
    struct slot slots[N_SLOTS] = {0};
    struct kg_str path = {0};
    struct kg_err why;
    kg_status status = KG_OK;

    KG_TRY_GOTO(out, kg_str_printf(&path, r->err, "%s/rollouts/%s", run->dir, name));
    if (read_dump(slots, path.data, tok, &why) != KG_OK) {
        kg_log_warn("the report lacks completions of a step: %s", why.message);
        goto out;
    }
    KG_TRY_GOTO(out, kg_str_printf(r->out, r->err,
                                   "<details%s><summary>Completions of step %ld",
                                   r->n == 1 ? " open" : "", strtol(name + 5, NULL, 10)));
    if (r->n > 1) {
        KG_TRY_GOTO(out, kg_str_puts(r->out, " of ", r->err));
        KG_TRY_GOTO(out, kg_report_text(r, run->name));
    }
    KG_TRY_GOTO(out, kg_str_puts(r->out, "</summary><div class=\"grid\">\n", r->err));
    KG_TRY_GOTO(out, put_slots(r, slots));
    status = kg_str_puts(r->out, "</div></details>\n", r->err);
out:
    for (int i = 0; i < N_SLOTS; i++)
        kg_str_release(&slots[i].html);
    kg_str_release(&path);
    return status;
}

/* ---- a run ---- */

/* Moves the dumps of RL steps to the front of names, in their order.   returns their
 * number */
static size_t keep_steps(char **names, size_t n)
{
    size_t kept = 0;

    for (size_t i = 0; i < n; i++) {
        if (strncmp(names[i], "step-", 5) != 0 || !strstr(names[i], ".jsonl"))
            continue;
        char *name = names[i];
        names[i] = names[kept];
        names[kept++] = name;
    }
    return kept;
}

/* The tokenizer of the last checkpoint, else of the initial model; NULL: neither. */
static struct kg_tokenizer *tokenizer_of(const struct kg_report_run *run)
{
    struct kg_tokenizer *tok;
    struct kg_err none;

    if (kg_tokenizer_open(&tok, kg_path_in(run->dir, "checkpoints/latest/model").text,
                          &none) == KG_OK ||
        kg_tokenizer_open(&tok, run->recipe.model.path, &none) == KG_OK)
        return tok;
    return NULL;
}

static kg_status put_run(struct kg_report *r, const struct kg_report_run *run)
{
    struct kg_path dumps = kg_path_in(run->dir, "rollouts");
    struct kg_tokenizer *tok = NULL;
    char **names = NULL;
    size_t n = 0, steps, last = SIZE_MAX;
    kg_status status = KG_OK;

    if (!kg_file_exists(dumps.text))
        return KG_OK;
    KG_TRY_GOTO(out, kg_file_list(&names, &n, dumps.text, r->err));
    steps = keep_steps(names, n);
    if (steps > 0)
        tok = tokenizer_of(run);
    for (size_t i = 0; i < STEPS && steps > 0 && status == KG_OK; i++) {
        size_t at = i * (steps - 1) / (STEPS - 1);

        if (at != last)
            status = put_step(r, run, names[at], tok);
        last = at;
    }
out:
    kg_tokenizer_close(tok);
    kg_file_names_free(names, n);
    return status;
}

kg_status kg_report_answers(struct kg_report *r)
{
    KG_TRY(kg_str_puts(r->out, "<h2 id=\"answers\">Completions</h2>\n", r->err));
    KG_TRY(kg_str_printf(
        r->out, r->err,
        "<p><small>From the first %d completions of a step. The prompt is grey; "
        "<code>kedge show</code> prints a whole completion with its numbers. A run "
        "without <code>log.rollouts</code> has none.</small></p>\n",
        LINES));
    for (size_t i = 0; i < r->n; i++)
        KG_TRY(put_run(r, r->runs[i]));
    return KG_OK;
}
