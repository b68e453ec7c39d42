/* The mode `dapo`: the last "Answer:" line of the last 300 characters, compared as text
 * after Minerva's normalisation. The order of its replacements matters. The mistakes of
 * the published code are reproduced too, because published numbers depend on them: do not
 * improve this file. Regular expressions of the original are small functions over bytes,
 * greedy where the original is. */
#include "math/math_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { LAST_CHARACTERS = 300 };

struct swap {
    const char *from;
    const char *to;
};
static const struct swap swaps[] = {
    {"an ", ""},          {"a ", ""},
    {".$", "$"},          {"\\$", ""},
    {"\\ ", ""},          {" ", ""},
    {"mbox", "text"},     {",\\text{and}", ","},
    {"\\text{and}", ","}, {"\\text{m}", "\\text{}"},
};
/* removed after the swaps */
static const char *const dropped[] = {
    "square",     "ways",       "integers",  "dollars",      "mph",
    "inches",     "hours",      "km",        "units",        "\\ldots",
    "sue",        "points",     "feet",      "minutes",      "digits",
    "cents",      "degrees",    "cm",        "gm",           "pounds",
    "meters",     "meals",      "edges",     "students",     "childrentickets",
    "multiples",  "\\text{s}",  "\\text{.}", "\\text{\ns}",  "\\text{}^2",
    "\\text{}^3", "\\text{\n}", "\\text{}",  "\\mathrm{th}", "^\\circ",
    "^{\\circ}",  "\\;",        ",\\!",      "{,}",          "\"",
    "\\dots"};

static const char *last_byte(const char *text, char c, size_t n)
{
    while (n-- > 0) {
        if (text[n] == c)
            return text + n;
    }
    return NULL;
}

/* Each step reads `in` and appends to `out`. */
static kg_status swap_one(struct kg_str *out, const struct kg_str *in,
                          const struct swap *row, struct kg_err *err)
{
    size_t len = strlen(row->from);

    for (size_t i = 0; i < in->len;) {
        if (in->len - i >= len && memcmp(in->data + i, row->from, len) == 0) {
            KG_TRY(kg_str_puts(out, row->to, err));
            i += len;
        } else {
            KG_TRY(kg_str_putc(out, in->data[i++], err));
        }
    }
    return KG_OK;
}

/* Reduces each line with two dollar signs to the part from the first to the second. */
static kg_status between_dollars(struct kg_str *out, const struct kg_str *in,
                                 struct kg_err *err)
{
    const char *p = kg_str_text(in);
    const char *end = p + in->len;

    while (p < end) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((stop ? stop : end) - p);
        const char *open = memchr(p, '$', n);
        const char *close = open ? memchr(open + 1, '$', (size_t)(p + n - open - 1))
                                 : NULL;

        if (close)
            KG_TRY(kg_str_append(out, open, (size_t)(close - open) + 1, err));
        else
            KG_TRY(kg_str_append(out, p, n, err));
        p += n;
        if (stop)
            KG_TRY(kg_str_putc(out, *p++, err));
    }
    return KG_OK;
}

/* Removes lead, which ends in {, and the next }; greedy: the last } of the line. */
static kg_status unwrap(struct kg_str *out, const struct kg_str *in, const char *lead,
                        bool greedy, struct kg_err *err)
{
    size_t len = strlen(lead);
    const char *p = kg_str_text(in);
    const char *end = p + in->len;

    while (p < end) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        const char *close = NULL;

        stop = stop ? stop : end;
        if ((size_t)(stop - p) >= len && memcmp(p, lead, len) == 0)
            close = greedy ? last_byte(p + len, '}', (size_t)(stop - p) - len)
                           : memchr(p + len, '}', (size_t)(stop - p) - len);
        if (!close) {
            KG_TRY(kg_str_putc(out, *p++, err));
            continue;
        }
        KG_TRY(kg_str_append(out, p + len, (size_t)(close - p) - len, err));
        p = close + 1;
    }
    return KG_OK;
}

/* frac12 to frac{1}{2}, sqrt3 to sqrt{3} */
static kg_status brace_args(struct kg_str *out, const struct kg_str *in, const char *lead,
                            size_t args, struct kg_err *err)
{
    const char *p = kg_str_text(in);
    const char *end = p + in->len;

    while (p < end) {
        if ((size_t)(end - p) < 4 + args || memcmp(p, lead, 4) != 0 || p[4] == '{' ||
            (args == 2 && p[5] == '\n')) {
            KG_TRY(kg_str_putc(out, *p++, err));
            continue;
        }
        KG_TRY(kg_str_puts(out, lead, err));
        for (size_t i = 0; i < args; i++)
            KG_TRY(kg_str_printf(out, err, "{%c}", p[4 + i]));
        p += 4 + args;
    }
    return KG_OK;
}

static void take(struct kg_str *s, struct kg_str *out)
{
    struct kg_str old = *s;

    *s = *out;
    *out = old;
    kg_str_clear(out);
}

/* Removes the commas if the text has only digits and commas. */
static void drop_commas(struct kg_str *s)
{
    size_t used = 0;

    for (size_t i = 0; i < s->len; i++) {
        if (!isdigit((unsigned char)s->data[i]) && s->data[i] != ',')
            return;
        used += s->data[i] != ',';
    }
    if (used == 0)
        return;
    used = 0;
    for (size_t i = 0; i < s->len; i++) {
        if (s->data[i] != ',')
            s->data[used++] = s->data[i];
    }
    s->len = used;
    s->data[used] = 0;
}

static kg_status normalise(struct kg_str *s, struct kg_str *work, struct kg_err *err)
{
    static const char *const wrappers[] = {"\\text{", "\\textbf{", "\\overline{"};
    static const struct swap dollar = {"$", ""};

    for (size_t i = 0; i < sizeof swaps / sizeof *swaps; i++) {
        KG_TRY(swap_one(work, s, &swaps[i], err));
        take(s, work);
    }
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++) {
        KG_TRY(swap_one(work, s, &(struct swap){dropped[i], ""}, err));
        take(s, work);
    }
    KG_TRY(between_dollars(work, s, err));
    take(s, work);
    for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++) {
        KG_TRY(unwrap(work, s, wrappers[i], false, err));
        take(s, work);
    }
    KG_TRY(unwrap(work, s, "\\boxed{", true, err));
    take(s, work);
    KG_TRY(brace_args(work, s, "frac", 2, err));
    take(s, work);
    KG_TRY(brace_args(work, s, "sqrt", 1, err));
    take(s, work);
    KG_TRY(swap_one(work, s, &dollar, err));
    take(s, work);
    drop_commas(s);
    while (s->len > 0 && isspace((unsigned char)s->data[s->len - 1]))
        s->data[--s->len] = 0;
    return KG_OK;
}

/* Normalises the text after the last =. */
static kg_status minerva(struct kg_str *out, const char *text, size_t n,
                         struct kg_err *err)
{
    struct kg_str work = {0};
    const char *equals = last_byte(text, '=', n);
    kg_status status;
    size_t front = 0;

    if (equals) {
        n -= (size_t)(equals + 1 - text);
        text = equals + 1;
    }
    KG_TRY_GOTO(out, kg_str_append(out, text, n, err));
    KG_TRY_GOTO(out, normalise(out, &work, err));
    while (front < out->len && isspace((unsigned char)out->data[front]))
        front++;
    if (front) {
        memmove(out->data, out->data + front, out->len - front + 1);
        out->len -= front;
    }
out:
    kg_str_release(&work);
    return status;
}

/* The text (*len bytes) after the last "answer :", any case, on its line; NULL: none */
static const char *answer_line(const char *text, size_t n, size_t *len)
{
    const char *end = text + n;
    const char *found = NULL;

    for (const char *p = text; p + 7 <= end;) {
        const char *at = p + 6;

        if (strncasecmp(p, "answer", 6) != 0) {
            p++;
            continue;
        }
        while (at < end && isspace((unsigned char)*at))
            at++;
        if (at == end || *at != ':') {
            p++;
            continue;
        }
        for (at++; at < end && isspace((unsigned char)*at);)
            at++;
        if (at == end)
            break;
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop ? stop : end;
        found = at;
        *len = (size_t)(stop - at);
        p = stop;
    }
    return found;
}

static struct kg_math_text last_characters(struct kg_math_text t)
{
    size_t i = t.n;

    for (int count = 0; i > 0 && count < LAST_CHARACTERS; count++) {
        i--;
        while (i > 0 && ((unsigned char)t.text[i] & 0xc0) == 0x80)
            i--;
    }
    return (struct kg_math_text){t.text + i, t.n - i};
}

/* A bare answer counts as one line: newlines become spaces. */
static kg_status as_line(struct kg_str *out, struct kg_math_text t, struct kg_err *err)
{
    for (size_t i = 0; i < t.n; i++)
        KG_TRY(kg_str_putc(out, t.text[i] == '\n' ? ' ' : t.text[i], err));
    return KG_OK;
}

kg_status kg_math_grade_dapo(struct kg_math_job *job, struct kg_err *err)
{
    struct kg_str whole = {0};
    struct kg_str gold = {0};
    const char *line;
    size_t n;
    kg_status status = KG_OK;

    if (job->opts->form == KG_MATH_FORM_RESPONSE) {
        struct kg_math_text tail = last_characters(job->answer);

        line = answer_line(tail.text, tail.n, &n);
    } else {
        KG_TRY_GOTO(out, as_line(&whole, job->answer, err));
        line = kg_str_text(&whole);
        n = whole.len;
    }
    if (!line) {
        kg_math_say(job, KG_MATH_WRONG, "no Answer: line in the last 300 characters");
        goto out;
    }
    if (n > KG_MATH_MAX_STRING || job->gold.n > KG_MATH_MAX_STRING) {
        kg_math_say(job, KG_MATH_UNDECIDED, "too long");
        goto out;
    }
    KG_TRY_GOTO(out, minerva(&job->result->extracted, line, n, err));
    KG_TRY_GOTO(out, minerva(&gold, job->gold.text, job->gold.n, err));
    bool same = strcmp(kg_str_text(&gold), kg_str_text(&job->result->extracted)) == 0;
    kg_math_say(job, same ? KG_MATH_RIGHT : KG_MATH_WRONG,
                same ? "the same string after normalisation"
                     : "different strings after normalisation");
out:
    kg_str_release(&whole);
    kg_str_release(&gold);
    return status;
}
