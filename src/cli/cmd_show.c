/* kedge show: lines of a dump, in the terminal. Columns next to the tokens
 * are requested by name, and a requested column must be in the line. With a reference
 * model, log p is printed next to the reference's log q, computed in the context in which
 * the token was drawn (with episode windows, not the whole line). show_read.c turns a
 * line into pieces; this file selects, scores and prints them. */
#include "cli/cli.h"
#include "cli/load.h"
#include "cli/show.h"

#include "base/mem.h"
#include "base/printable.h"
#include "data/records.h"
#include "model/model.h"
#include "rollout/score.h"

#include <stdio.h>
#include <unistd.h>

static const char *reference;
static int64_t first_line = 1, count = 1;
static bool no_colour, as_trace;
static struct kg_show_columns asked;

const struct kg_flag kg_show_flags[] = {
    {"model", 'm', KG_TO(kg_load.dir), KG_MODEL_ARG,
     "folder whose tokenizer turns tokens into text (needed for a dump of tokens)"},
    {"line", 0, KG_TO(first_line), "N", "first line to show (default 1)", 1, 1e15},
    {"count", 'n', KG_TO(count), "N", "lines to show (default 1)", 1, 1e6},
    {"logp", 0, KG_TO(asked.logp), NULL, "log-prob of each sampled token"},
    {"advantage", 0, KG_TO(asked.advantage), NULL, "advantage of each sampled token"},
    {"divergence", 0, KG_TO(asked.divergence), NULL,
     "log p/q to the anchor, from the dump or by --reference"},
    {"reference", 0, KG_TO(reference), KG_MODEL_ARG,
     "--divergence to this checkpoint, scored now in --dtype"},
    {"trace", 0, KG_TO(as_trace), NULL,
     "print the turns as OpenEnv's TrainingTrace: a line of JSON with draw, sample, "
     "reward and trace"},
    {"no-color", 0, KG_TO(no_colour), NULL,
     "mark sources by tags (default if the output is not a terminal)"},
    KG_FLAGS_IF("--reference", kg_compute_flags),
    KG_FLAGS_IF("--reference", kg_device_flags),
    {0},
};

struct showing {
    struct kg_tokenizer *tok; /* NULL: none */
    struct kg_loaded ref;
    struct kg_shown shown;
    struct kg_str out;
    bool colour;
};

/* ---- the reference ---- */

static kg_status score(float *logp, const int32_t *tokens, size_t n, float temperature,
                       const struct kg_model *m, struct kg_err *err)
{
    struct kg_score_seq seq = {
        .tokens = tokens, .n = n, .temperature = temperature, .logp = logp};
    struct kg_rows_opts room = {.max_tokens = (int64_t)n};
    struct kg_rows *rows;

    KG_TRY(kg_rows_create(&rows, m, &room, err));
    kg_status status = kg_score(rows, m, &seq, 1, 0, 0, err);
    kg_rows_free(rows);
    return status;
}

static kg_status compare_part(struct kg_shown *s, const struct kg_shown_part *part,
                              const int32_t *tokens, float *logp, float temperature,
                              const struct kg_model *m, struct kg_err *err)
{
    KG_TRY(score(logp, tokens + part->from, part->end - part->from, temperature, m, err));
    for (size_t i = part->begin; i < part->end; i++) {
        struct kg_shown_piece *p = &s->pieces[i];

        p->compared = p->sampled;
        p->divergence = p->logp - (double)logp[i - part->from];
    }
    return KG_OK;
}

static kg_status compare(struct kg_shown *s, const struct kg_json_doc *doc,
                         float temperature, const struct kg_model *m, struct kg_err *err)
{
    size_t parts = 1 + kg_json_size(kg_json_get(doc->root, "windows"));
    int32_t *tokens = kg_mem_calloc(s->n, sizeof *tokens, "tokens", err);
    float *logp = tokens ? kg_mem_calloc(s->n, sizeof *logp, "log-probs", err) : NULL;
    kg_status status = logp ? KG_OK : err->code;

    for (size_t i = 0; logp && i < s->n; i++)
        tokens[i] = s->pieces[i].token;
    for (size_t i = 0; i < parts && status == KG_OK; i++) {
        struct kg_shown_part part = {0};

        status = kg_show_part_at(&part, doc, i, s->n, err);
        if (status == KG_OK)
            status = compare_part(s, &part, tokens, logp, temperature, m, err);
    }
    kg_mem_free(tokens);
    kg_mem_free(logp);
    return status;
}

static kg_status check(const struct kg_shown *s, const struct kg_json_doc *doc,
                       struct kg_err *err)
{
    bool logp = false, compared = false;

    for (size_t i = 0; i < s->n; i++) {
        logp = logp || s->pieces[i].sampled;
        compared = compared || s->pieces[i].compared;
    }
    if ((asked.logp || asked.divergence) && !logp)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected tokens with their log-probs, found only text",
                       doc->where);
    if (asked.advantage && !s->has_advantage)
        return kg_fail(
            err, KG_EINVAL,
            "%s: expected an advantage, found none (training did not use this line)",
            doc->where);
    if (asked.divergence && !compared)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected anchor_logp (dumped by runs with an anchor) or "
                       "--reference DIR, found neither",
                       doc->where);
    return KG_OK;
}

/* ---- the lines ---- */

static kg_status show_line(struct showing *w, const struct kg_json_doc *doc,
                           int64_t number, struct kg_err *err)
{
    double temperature = kg_json_real(kg_json_get(doc->root, "temperature"), 1);

    if (as_trace) {
        KG_TRY(kg_show_trace(&w->out, doc, err));
        return kg_cli_put_as_it_is(&w->out, err);
    }
    w->shown.line = number;
    KG_TRY(kg_show_read(&w->shown, doc, w->tok, err));
    if (w->ref.model && w->shown.n && w->shown.pieces[0].token >= 0)
        KG_TRY(compare(&w->shown, doc, (float)temperature, w->ref.model, err));
    KG_TRY(check(&w->shown, doc, err));
    KG_TRY(kg_show_text(&w->out, &w->shown, &asked, w->colour, err));
    return kg_cli_put_as_it_is(&w->out, err);
}

static kg_status show_lines(struct showing *w, const char *path, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_records *records;
    int64_t shown = 0, last = 0;
    bool more = true;
    kg_status status;

    KG_TRY(kg_records_open(&records, path, err));
    while (shown < count) {
        KG_TRY_GOTO(out, kg_records_next(records, &doc, &more, err));
        if (!more)
            break;
        last = kg_records_number(records);
        if (last < first_line)
            continue;
        KG_TRY_GOTO(out, show_line(w, &doc, last, err));
        shown++;
    }
    status = shown ? KG_OK
                   : kg_fail(err, KG_ENOTFOUND,
                             "%s: expected a line %lld, found only %lld lines", path,
                             (long long)first_line, (long long)last);
out:
    kg_json_release(&doc);
    kg_records_close(records);
    return status;
}

static kg_status open_models(struct showing *w, struct kg_err *err)
{
    struct kg_load_args args = kg_load;

    if (kg_load.dir) {
        KG_TRY(kg_load_tokenizer(&w->tok, kg_load.dir, err));
        if (!w->tok)
            return kg_fail(err, KG_ENOTFOUND, "%s: expected a tokenizer, found none",
                           kg_load.dir);
    }
    args.dir = reference;
    return reference ? kg_load_model(&w->ref, &args, err) : KG_OK;
}

static kg_status show(struct showing *w, const char *path, struct kg_err *err)
{
    KG_TRY(open_models(w, err));
    if (w->colour && !as_trace)
        KG_TRY(kg_show_legend(&w->out, err));
    return show_lines(w, path, err);
}

/* Prints an episode. Text of tools is untrusted, so control characters are always
 * replaced. The source of each paragraph is shown by its colour, or by a word if there
 * are no colours: text of a tool may imitate the model. If columns of numbers are
 * requested, each token of the model becomes a row of a table, with line ends escaped. */

static const char *const NAMES[KG_SOURCE_COUNT] = {"prompt", "model", "tool"};
/* grey, green, cyan */
static const char *const COLOURS[KG_SOURCE_COUNT] = {"\x1b[90m", "\x1b[32m", "\x1b[36m"};
static const char PLAIN[] = "\x1b[0m";

static kg_status put_number(struct kg_str *out, bool there, double x, struct kg_err *err)
{
    return there ? kg_str_printf(out, err, " %11.6f", x)
                 : kg_str_printf(out, err, " %11s", "-");
}

static kg_status put_row(struct kg_str *out, const struct kg_shown *s, size_t i,
                         const struct kg_show_columns *c, struct kg_err *err)
{
    const struct kg_shown_piece *p = &s->pieces[i];

    KG_TRY(kg_str_printf(out, err, "%7zu", i));
    if (c->logp)
        KG_TRY(put_number(out, p->sampled, p->logp, err));
    if (c->advantage)
        KG_TRY(put_number(out, p->sampled && s->has_advantage, s->advantage, err));
    if (c->divergence)
        KG_TRY(put_number(out, p->compared, p->divergence, err));
    KG_TRY(kg_str_puts(out, "  |", err));
    KG_TRY(kg_printable_put(out, s->text.data + p->from, p->n, false, err));
    return kg_str_puts(out, "|\n", err);
}

/* Pieces [from, to), all of one source. */
static kg_status put_run(struct kg_str *out, const struct kg_shown *s, size_t from,
                         size_t to, const struct kg_show_columns *c, struct kg_err *err)
{
    const struct kg_shown_piece *first = &s->pieces[from];
    const struct kg_shown_piece *last = &s->pieces[to - 1];
    bool table = (c->logp || c->advantage || c->divergence) &&
                 first->source == KG_SOURCE_MODEL && first->token >= 0;

    if (!table)
        return kg_printable_put(out, kg_str_text(&s->text) + first->from,
                                last->from + last->n - first->from, true, err);
    KG_TRY(kg_str_puts(out, "  token", err));
    if (c->logp)
        KG_TRY(kg_str_printf(out, err, " %11s", "log p"));
    if (c->advantage)
        KG_TRY(kg_str_printf(out, err, " %11s", "advantage"));
    if (c->divergence)
        KG_TRY(kg_str_printf(out, err, " %11s", "log p/q"));
    KG_TRY(kg_str_putc(out, '\n', err));
    for (size_t i = from; i < to; i++)
        KG_TRY(put_row(out, s, i, c, err));
    return KG_OK;
}

static kg_status put_source(struct kg_str *out, enum kg_source source, bool colour,
                            struct kg_err *err)
{
    if (colour)
        return kg_str_puts(out, COLOURS[source], err);
    if (out->len && out->data[out->len - 1] != '\n')
        KG_TRY(kg_str_putc(out, '\n', err));
    return kg_str_printf(out, err, "[%s]\n", NAMES[source]);
}

kg_status kg_show_legend(struct kg_str *out, struct kg_err *err)
{
    for (int i = 0; i < KG_SOURCE_COUNT; i++)
        KG_TRY(kg_str_printf(out, err, "%s%s%s%s", COLOURS[i], NAMES[i], PLAIN,
                             i + 1 < KG_SOURCE_COUNT ? ", " : "\n"));
    return KG_OK;
}

kg_status kg_show_text(struct kg_str *out, const struct kg_shown *s,
                       const struct kg_show_columns *columns, bool colour,
                       struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "line %lld: ", (long long)s->line));
    KG_TRY(kg_printable_put(out, kg_str_text(&s->heading), s->heading.len, false, err));
    KG_TRY(kg_str_putc(out, '\n', err));
    for (size_t i = 0; i < s->n;) {
        size_t to = i + 1;

        while (to < s->n && s->pieces[to].source == s->pieces[i].source)
            to++;
        KG_TRY(put_source(out, s->pieces[i].source, colour, err));
        KG_TRY(put_run(out, s, i, to, columns, err));
        if (colour)
            KG_TRY(kg_str_puts(out, PLAIN, err));
        i = to;
    }
    if (out->data[out->len - 1] == '\n')
        return KG_OK;
    return kg_str_putc(out, '\n', err);
}

int kg_cmd_show(int argc, char **argv)
{
    struct showing w = {.colour = !no_colour && isatty(STDOUT_FILENO) == 1};
    struct kg_err err;

    if (argc != 1)
        return kg_cli_usage("expected a file");
    if (reference)
        asked.divergence = true;
    kg_status status = show(&w, argv[0], &err);
    kg_shown_release(&w.shown);
    kg_str_release(&w.out);
    kg_load_release(&w.ref);
    kg_tokenizer_close(w.tok);
    return kg_cli_exit(status, &err);
}
