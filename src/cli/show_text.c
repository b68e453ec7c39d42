/* An episode in the terminal. What a tool returned is somebody else's text: control
 * characters never reach the terminal as they are.
 *
 * Who wrote a piece is seen by its colour, or where there is none by the words before
 * it, because a tool's text that looks like the model's is what one wants to find. A
 * run of pieces of one source is a paragraph; where numbers are asked for, the model's
 * tokens become rows of a table, with line ends written out.
 */
#include "cli/show.h"

#include "base/printable.h"

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

static kg_status put_columns(struct kg_str *out, const struct kg_show_columns *c,
                             struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, "  token", err));
    if (c->logp)
        KG_TRY(kg_str_printf(out, err, " %11s", "log p"));
    if (c->advantage)
        KG_TRY(kg_str_printf(out, err, " %11s", "advantage"));
    if (c->divergence)
        KG_TRY(kg_str_printf(out, err, " %11s", "log p/q"));
    return kg_str_putc(out, '\n', err);
}

/* Pieces [from, to) of one source. */
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
    KG_TRY(put_columns(out, c, err));
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
