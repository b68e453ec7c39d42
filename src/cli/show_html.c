/* The same as one HTML page: no script, no other file.
 *
 * A token's numbers are in its title; its background is the darker the less likely it was
 * (--logp), or the farther from the anchor (--divergence: blue where the policy is above
 * it, red where below). Everything a model wrote goes through text/html.h.
 */
#include "cli/show.h"

#include "base/utf8.h"
#include "text/html.h"

#include <math.h>
#include <string.h>

static const char HEAD[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width\">\n<style>\n"
    "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;"
    "color:#222;background:#fff}\n"
    "h1{font-size:1.3em}h2{font-size:1em;margin:2em 0 0}\n"
    ".h{color:#666;margin:.2em 0 1em;overflow-wrap:anywhere}\n"
    ".p,.m,.t{white-space:pre-wrap;overflow-wrap:anywhere;margin:.3em 0;padding:.4em "
    ".8em;border-left:4px solid;font-family:monospace}\n"
    ".p{border-color:#999;background:#f4f4f4}.m{border-color:#2a7d3f;background:#fff}"
    ".t{border-color:#1c7a9c;background:#eef7fa}\n"
    ".l i{font-style:normal;padding:.1em .5em}\n"
    "b{display:block;font:bold .8em sans-serif;color:#666}\n"
    "</style>\n<title>";

/* By the columns that colour the tokens of the model, see put_colour. */
static kg_status put_legend(struct kg_str *out, const struct kg_show_columns *c,
                            struct kg_err *err)
{
    const char *what = "";

    if (c->divergence)
        what = ", its tokens <span style=\"background:rgba(40,90,220,.4)\">blue where it "
               "is above the anchor</span>, <span "
               "style=\"background:rgba(220,60,40,.4)\">red where below</span>";
    else if (c->logp)
        what = ", its tokens <span style=\"background:rgba(220,120,0,.4)\">the darker "
               "the less likely they were</span>";
    KG_TRY(kg_str_printf(out, err,
                         "<p class=\"l\"><i class=\"p\">prompt</i> <i class=\"m\">model"
                         "</i>%s <i class=\"t\">tool</i></p>\n",
                         what));
    return KG_OK;
}

kg_status kg_show_html_head(struct kg_str *out, const char *title,
                            const struct kg_show_columns *columns, struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, HEAD, err));
    KG_TRY(kg_html_put(out, title, strlen(title), err));
    KG_TRY(kg_str_puts(out, "</title></head><body>\n<h1>", err));
    KG_TRY(kg_html_put(out, title, strlen(title), err));
    KG_TRY(kg_str_puts(out, "</h1>\n", err));
    return put_legend(out, columns, err);
}

kg_status kg_show_html_foot(struct kg_str *out, struct kg_err *err)
{
    return kg_str_puts(out, "</body></html>\n", err);
}

/* ---- tokens ---- */

enum { MAX_JOINED = 8 }; /* tokens that make a character together */

/* How many pieces from i on make whole characters together; the first decides the
 * source. */
static size_t whole_pieces(const struct kg_shown *s, size_t i, size_t to)
{
    const char *text = s->text.data + s->pieces[i].from;

    for (size_t n = 1; i + n < to && n < MAX_JOINED; n++) {
        const struct kg_shown_piece *last = &s->pieces[i + n - 1];
        size_t bytes = last->from + last->n - s->pieces[i].from;

        if (kg_utf8_valid_prefix(text, bytes) == bytes)
            return n;
    }
    return i + MAX_JOINED < to ? MAX_JOINED : to - i;
}

static kg_status put_title(struct kg_str *out, const struct kg_shown *s, size_t i,
                           const struct kg_show_columns *c, struct kg_err *err)
{
    const struct kg_shown_piece *p = &s->pieces[i];

    KG_TRY(kg_str_printf(out, err, "%zu: id %d", i, (int)p->token));
    if (c->logp && p->sampled)
        KG_TRY(kg_str_printf(out, err, ", log p %.6f", p->logp));
    if (c->advantage && s->has_advantage)
        KG_TRY(kg_str_printf(out, err, ", advantage %.6f", s->advantage));
    if (c->divergence && p->compared)
        KG_TRY(kg_str_printf(out, err, ", log p/q %.6f", p->divergence));
    return KG_OK;
}

static kg_status put_colour(struct kg_str *out, const struct kg_shown_piece *p,
                            const struct kg_show_columns *c, struct kg_err *err)
{
    double shade = fmin(0.6, -p->logp * 0.1);

    if (c->divergence && p->compared) {
        shade = fmin(0.6, fabs(p->divergence));
        return kg_str_printf(out, err, "background:rgba(%s,%.3f)",
                             p->divergence >= 0 ? "40,90,220" : "220,60,40", shade);
    }
    return c->logp && p->sampled
               ? kg_str_printf(out, err, "background:rgba(220,120,0,%.3f)", shade)
               : KG_OK;
}

static kg_status put_tokens(struct kg_str *out, const struct kg_shown *s, size_t i,
                            size_t n, const struct kg_show_columns *c, struct kg_err *err)
{
    const struct kg_shown_piece *last = &s->pieces[i + n - 1];
    size_t from = s->pieces[i].from;

    KG_TRY(kg_str_puts(out, "<span title=\"", err));
    for (size_t k = 0; k < n; k++) {
        if (k > 0)
            KG_TRY(kg_str_puts(out, "&#10;", err));
        KG_TRY(put_title(out, s, i + k, c, err));
    }
    KG_TRY(kg_str_puts(out, "\" style=\"", err));
    KG_TRY(put_colour(out, &s->pieces[i], c, err));
    KG_TRY(kg_str_puts(out, "\">", err));
    KG_TRY(kg_html_put(out, s->text.data + from, last->from + last->n - from, err));
    return kg_str_puts(out, "</span>", err);
}

/* Pieces [from, to) of one source. */
static kg_status put_run(struct kg_str *out, const struct kg_shown *s, size_t from,
                         size_t to, const struct kg_show_columns *c, struct kg_err *err)
{
    static const char *const names[KG_SOURCE_COUNT] = {"prompt", "model", "tool"};
    const struct kg_shown_piece *first = &s->pieces[from];
    const struct kg_shown_piece *last = &s->pieces[to - 1];
    bool tokens = (c->logp || c->advantage || c->divergence) &&
                  first->source == KG_SOURCE_MODEL && first->token >= 0;

    KG_TRY(kg_str_printf(out, err, "<div class=\"%c\"><b>%s</b>",
                         kg_source_letter(first->source), names[first->source]));
    for (size_t i = from; tokens && i < to;) {
        size_t n = whole_pieces(s, i, to);

        KG_TRY(put_tokens(out, s, i, n, c, err));
        i += n;
    }
    if (!tokens)
        KG_TRY(kg_html_put(out, kg_str_text(&s->text) + first->from,
                           last->from + last->n - first->from, err));
    return kg_str_puts(out, "</div>\n", err);
}

kg_status kg_show_html(struct kg_str *out, const struct kg_shown *s,
                       const struct kg_show_columns *columns, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "<h2>line %lld</h2>\n<p class=\"h\">",
                         (long long)s->line));
    KG_TRY(kg_html_put(out, kg_str_text(&s->heading), s->heading.len, err));
    KG_TRY(kg_str_puts(out, "</p>\n", err));
    for (size_t i = 0; i < s->n;) {
        size_t to = i + 1;

        while (to < s->n && s->pieces[to].source == s->pieces[i].source)
            to++;
        KG_TRY(put_run(out, s, i, to, columns, err));
        i = to;
    }
    return KG_OK;
}
