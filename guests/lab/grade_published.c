/* The graders of published runs, `mathd` and `ema-pg` (the EMA-PG and DeepScaleR line).
 *
 * They are rules on strings, reproduced step by step with their oddities, so that results
 * can be compared with published ones; use them for nothing else. The grader that reads
 * mathematics is `default` (grade.c).
 */
#include "math/math_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct swap {
    const char *from;
    const char *to;
};

/* Replace every occurrence, left to right. */
static kg_status replace(struct kg_str *s, const char *from, const char *to,
                         struct kg_err *err)
{
    struct kg_str out = {0};
    size_t len = strlen(from);
    size_t i = 0;
    kg_status status = KG_OK;

    if (s->len < len || !strstr(kg_str_text(s), from))
        return KG_OK;
    while (i < s->len) {
        if (s->len - i >= len && memcmp(s->data + i, from, len) == 0) {
            KG_TRY_GOTO(fail, kg_str_puts(&out, to, err));
            i += len;
        } else {
            KG_TRY_GOTO(fail, kg_str_putc(&out, s->data[i++], err));
        }
    }
    kg_str_release(s);
    *s = out;
    return KG_OK;
fail:
    kg_str_release(&out);
    return status;
}

static kg_status replace_all(struct kg_str *s, const struct swap *rows, size_t n,
                             struct kg_err *err)
{
    for (size_t i = 0; i < n; i++)
        KG_TRY(replace(s, rows[i].from, rows[i].to, err));
    return KG_OK;
}
#define ROWS(table) table, sizeof(table) / sizeof *(table)

static bool has(const struct kg_str *s, const char *what)
{
    return strstr(kg_str_text(s), what) != NULL;
}

static void cut_front(struct kg_str *s, size_t n)
{
    if (n == 0)
        return;
    memmove(s->data, s->data + n, s->len - n + 1);
    s->len -= n;
}

static void cut_back(struct kg_str *s, size_t n)
{
    s->len -= n;
    s->data[s->len] = 0;
}

static void trim(struct kg_str *s)
{
    size_t front = 0;

    while (s->len > 0 && isspace((unsigned char)s->data[s->len - 1]))
        cut_back(s, 1);
    while (front < s->len && isspace((unsigned char)s->data[front]))
        front++;
    cut_front(s, front);
}

/* Removes \text{..} around a whole text of one line. */
static void unwrap_text(struct kg_str *s)
{
    static const char lead[] = "\\text{";
    size_t n = sizeof lead - 1;

    if (s->len < n + 2 || memcmp(s->data, lead, n) != 0 || s->data[s->len - 1] != '}' ||
        memchr(s->data, '\n', s->len))
        return;
    cut_back(s, 1);
    cut_front(s, n);
}

/* ---- mathd ---- */

/* \frac12 to \frac{1}{2}.   *bad: the published code raises an error here */
static kg_status fix_fractions(struct kg_str *s, bool *bad, struct kg_err *err)
{
    struct kg_str out = {0};
    const char *p = kg_str_text(s);
    const char *next;
    kg_status status = KG_OK;

    while ((next = strstr(p, "\\frac")) != NULL) {
        KG_TRY_GOTO(fail, kg_str_append(&out, p, (size_t)(next - p) + 5, err));
        p = next + 5;
        if (*p == '{')
            continue;
        if (!p[0]) {
            *bad = true;
            goto fail;
        }
        /* too short for two arguments: the published code leaves the whole text as is */
        if (!p[1] || strncmp(p + 1, "\\frac", 5) == 0)
            goto fail;
        KG_TRY_GOTO(fail, kg_str_printf(&out, err, p[1] == '{' ? "{%c}%c" : "{%c}{%c}",
                                        p[0], p[1]));
        p += 2;
    }
    KG_TRY_GOTO(fail, kg_str_puts(&out, p, err));
    kg_str_release(s);
    *s = out;
    return KG_OK;
fail:
    kg_str_release(&out);
    return status;
}

static kg_status fix_roots(struct kg_str *s, bool *bad, struct kg_err *err)
{
    struct kg_str out = {0};
    const char *p = kg_str_text(s);
    const char *next;
    kg_status status = KG_OK;

    while ((next = strstr(p, "\\sqrt")) != NULL) {
        KG_TRY_GOTO(fail, kg_str_append(&out, p, (size_t)(next - p) + 5, err));
        p = next + 5;
        if (*p == '{')
            continue;
        if (!*p || strncmp(p, "\\sqrt", 5) == 0) {
            *bad = true;
            goto fail;
        }
        KG_TRY_GOTO(fail, kg_str_printf(&out, err, "{%c}", *p++));
    }
    KG_TRY_GOTO(fail, kg_str_puts(&out, p, err));
    kg_str_release(s);
    *s = out;
    return KG_OK;
fail:
    kg_str_release(&out);
    return status;
}

/* A whole number as Python prints it: no sign but -, no leading zero. */
static bool is_plain_int(const char *p, size_t n)
{
    size_t sign = n > 0 && p[0] == '-';

    if (n == sign || (p[sign] == '0' && n > 1))
        return false;
    for (size_t i = sign; i < n; i++) {
        if (!isdigit((unsigned char)p[i]))
            return false;
    }
    return true;
}

static kg_status fix_slash(struct kg_str *s, struct kg_err *err)
{
    const char *text = kg_str_text(s);
    const char *slash = strchr(text, '/');
    struct kg_str out = {0};
    kg_status status;

    if (!slash || strchr(slash + 1, '/') || !is_plain_int(text, (size_t)(slash - text)) ||
        !is_plain_int(slash + 1, strlen(slash + 1)))
        return KG_OK;
    status = kg_str_printf(&out, err, "\\frac{%.*s}{%s}", (int)(slash - text), text,
                           slash + 1);
    if (status != KG_OK) {
        kg_str_release(&out);
        return status;
    }
    kg_str_release(s);
    *s = out;
    return KG_OK;
}

/* "k = 3": up to two bytes before the only = are dropped */
static void drop_name(struct kg_str *s)
{
    const char *text = kg_str_text(s);
    const char *equals = strchr(text, '=');

    if (equals && !strchr(equals + 1, '=') && equals - text <= 2)
        cut_front(s, (size_t)(equals - text) + 1);
}

/* Cuts the text at the only "\text{ ", which begins a unit. */
static void drop_unit(struct kg_str *s, bool *bad)
{
    char *unit = s->len ? strstr(s->data, "\\text{ ") : NULL;

    if (!unit)
        return;
    if (strstr(unit + 7, "\\text{ "))
        *bad = true;
    else
        cut_back(s, s->len - (size_t)(unit - s->data));
}

static kg_status strip_string(struct kg_str *s, bool *bad, struct kg_err *err)
{
    static const struct swap first[] = {
        {"\n", ""},        {"\\!", ""},    {"\\\\", "\\"},  {"tfrac", "frac"},
        {"dfrac", "frac"}, {"\\left", ""}, {"\\right", ""}, {"^{\\circ}", ""},
        {"^\\circ", ""},   {"\\$", ""},
    };
    static const struct swap second[] = {{"\\%", ""}, {" .", " 0."}, {"{.", "{0."}};

    KG_TRY(replace_all(s, ROWS(first), err));
    drop_unit(s, bad);
    if (*bad)
        return KG_OK;
    KG_TRY(replace_all(s, ROWS(second), err));
    if (s->len == 0)
        return KG_OK;
    if (s->data[0] == '.') {
        KG_TRY(kg_str_putc(s, '0', err));
        memmove(s->data + 1, s->data, s->len - 1);
        s->data[0] = '0';
    }
    drop_name(s);
    KG_TRY(fix_roots(s, bad, err));
    if (*bad)
        return KG_OK;
    KG_TRY(replace(s, " ", "", err));
    KG_TRY(fix_fractions(s, bad, err));
    if (*bad)
        return KG_OK;
    if (strcmp(kg_str_text(s), "0.5") == 0) {
        kg_str_clear(s);
        KG_TRY(kg_str_puts(s, "\\frac{1}{2}", err));
    }
    return fix_slash(s, err);
}

static kg_status mathd_normal(struct kg_str *out, const char *text, size_t n,
                              struct kg_err *err)
{
    struct kg_str s = {0};
    bool bad = false;
    kg_status status;

    KG_TRY_GOTO(out, kg_str_append(&s, text, n, err));
    trim(&s);
    unwrap_text(&s);
    trim(&s);
    KG_TRY_GOTO(out, kg_str_append(out, kg_str_text(&s), s.len, err));
    KG_TRY_GOTO(out, strip_string(&s, &bad, err));
    if (bad)
        goto out;
    kg_str_clear(out);
    KG_TRY_GOTO(out, kg_str_append(out, kg_str_text(&s), s.len, err));
out:
    kg_str_release(&s);
    return status;
}

/* Offset of the first `mark`; t.n without one. */
static size_t exact_place(struct kg_math_text t, const char *mark)
{
    size_t n = strlen(mark);
    size_t i = 0;

    while (i + n <= t.n && memcmp(t.text + i, mark, n) != 0)
        i++;
    return i + n <= t.n ? i : t.n;
}

/* The text from the first </think> to the next or the end; without any, all of it. */
static struct kg_math_text after_first_thinking(struct kg_math_text t)
{
    static const char mark[] = "</think>";
    size_t at = exact_place(t, mark);

    if (at == t.n)
        return t;
    struct kg_math_text rest = {t.text + at + sizeof mark - 1,
                                t.n - at - sizeof mark + 1};
    rest.n = exact_place(rest, mark);
    return rest;
}

/* The last \boxed{} of each text, else the whole text. A response must have a box.
 * returns false if it has none */
static bool take_answer(struct kg_math_job *job, struct kg_math_text *answer,
                        struct kg_math_text *gold)
{
    size_t n;

    *answer = job->answer;
    if (job->opts->form == KG_MATH_FORM_RESPONSE && !job->opts->keep_thinking)
        *answer = after_first_thinking(job->answer);
    *gold = job->gold;
    const char *boxed = kg_math_last_boxed(gold->text, gold->n, &n);
    if (boxed)
        *gold = (struct kg_math_text){boxed, n};
    boxed = kg_math_last_boxed(answer->text, answer->n, &n);
    if (boxed)
        *answer = (struct kg_math_text){boxed, n};
    return boxed || job->opts->form != KG_MATH_FORM_RESPONSE;
}

static kg_status mathd_same(bool *same, struct kg_math_text a, struct kg_math_text b,
                            struct kg_err *err)
{
    struct kg_str x = {0};
    struct kg_str y = {0};
    kg_status status;

    KG_TRY_GOTO(out, mathd_normal(&x, a.text, a.n, err));
    KG_TRY_GOTO(out, mathd_normal(&y, b.text, b.n, err));
    *same = strcmp(kg_str_text(&x), kg_str_text(&y)) == 0;
out:
    kg_str_release(&x);
    kg_str_release(&y);
    return status;
}

kg_status kg_math_grade_mathd(struct kg_math_job *job, struct kg_err *err)
{
    struct kg_math_text answer;
    struct kg_math_text gold;
    bool same = false;

    if (!take_answer(job, &answer, &gold))
        return kg_math_say(job, KG_MATH_WRONG, "no boxed answer was found");
    if (answer.n > KG_MATH_MAX_STRING || gold.n > KG_MATH_MAX_STRING)
        return kg_math_say(job, KG_MATH_UNDECIDED, "too long");
    KG_TRY(kg_str_append(&job->result->extracted, answer.text, answer.n, err));
    KG_TRY(mathd_same(&same, answer, gold, err));
    return kg_math_say(job, same ? KG_MATH_RIGHT : KG_MATH_WRONG,
                       same ? "the same string after normalisation"
                            : "different strings after normalisation");
}

/* ---- ema-pg: LaTeX to plain text, as the published code has it ---- */

struct macro {
    const char *name;
    const char *text;
};
static const struct macro macros[] = {
    {"infty", "inf"}, {"cup", "U"},    {"cdot", "*"}, {"times", "*"},   {"le", "≤"},
    {"leq", "≤"},     {"ge", "≥"},     {"geq", "≥"},  {"ne", "≠"},      {"neq", "≠"},
    {"pm", "±"},      {"alpha", "α"},  {"beta", "β"}, {"gamma", "γ"},   {"delta", "δ"},
    {"theta", "θ"},   {"lambda", "λ"}, {"mu", "μ"},   {"phi", "ϕ"},     {"omega", "ω"},
    {"tau", "τ"},     {"sigma", "σ"},  {"rho", "ρ"},  {"hbar", "ℏ"},    {"Delta", "Δ"},
    {"Phi", "Φ"},     {"in", "∈"},     {"circ", "∘"}, {"ldots", "..."}, {"quad", " "},
    {"qquad", " "},   {"cap", "∩"},
};
/* macros that become their names */
static const char functions[] =
    " pi sin cos tan log ln exp sec csc cot arcsin arccos arctan max min gcd lim ";

struct latex {
    const char *p;
    const char *end;
    int depth;
};

static kg_status plain(struct kg_str *out, struct latex *l, bool group,
                       struct kg_err *err);

/* One argument: {..}, a macro, or a byte. */
static kg_status plain_arg(struct kg_str *out, struct latex *l, struct kg_err *err)
{
    while (l->p < l->end && *l->p == ' ')
        l->p++;
    if (l->p == l->end)
        return KG_OK;
    if (*l->p == '{') {
        l->p++;
        return plain(out, l, true, err);
    }
    struct latex one = {l->p, l->p + 1, l->depth + 1};
    if (*l->p == '\\')
        while (one.end < l->end && isalpha((unsigned char)*one.end))
            one.end++;
    l->p = one.end;
    return plain(out, &one, false, err);
}

static kg_status plain_root(struct kg_str *out, struct latex *l, struct kg_err *err)
{
    while (l->p < l->end && *l->p == ' ')
        l->p++;
    if (l->p < l->end && *l->p == '[') {
        while (l->p < l->end && *l->p != ']')
            l->p++;
        l->p += l->p < l->end;
    }
    KG_TRY(kg_str_puts(out, "sqrt(", err));
    KG_TRY(plain_arg(out, l, err));
    return kg_str_puts(out, ")", err);
}

static kg_status plain_macro(struct kg_str *out, struct latex *l, struct kg_err *err)
{
    const char *name = ++l->p;

    while (l->p < l->end && isalpha((unsigned char)*l->p))
        l->p++;
    size_t n = (size_t)(l->p - name);
    if (n == 0) {
        char c = l->p < l->end ? *l->p++ : ' ';

        if (c == '!')
            return KG_OK;
        return kg_str_putc(out, kg_char_in(",;: >", c) ? ' ' : c == '\\' ? ';' : c, err);
    }
    while (l->p < l->end && *l->p == ' ')
        l->p++;
    if (n == 4 && memcmp(name, "frac", 4) == 0) {
        KG_TRY(plain_arg(out, l, err));
        KG_TRY(kg_str_puts(out, "/", err));
        return plain_arg(out, l, err);
    }
    if (n == 4 && memcmp(name, "sqrt", 4) == 0)
        return plain_root(out, l, err);
    if ((n == 5 && memcmp(name, "begin", 5) == 0) ||
        (n == 3 && memcmp(name, "end", 3) == 0)) {
        while (l->p < l->end && *l->p++ != '}')
            ;
        return kg_str_putc(out, n == 5 ? '[' : ']', err);
    }
    for (size_t i = 0; i < sizeof macros / sizeof *macros; i++) {
        if (strlen(macros[i].name) == n && memcmp(macros[i].name, name, n) == 0)
            return kg_str_puts(out, macros[i].text, err);
    }
    if (kg_str_listed(functions, name, n))
        return kg_str_append(out, name, n, err);
    return KG_OK;
}

static kg_status plain(struct kg_str *out, struct latex *l, bool group,
                       struct kg_err *err)
{
    if (++l->depth > KG_MATH_MAX_DEPTH) {
        l->p = l->end;
        return KG_OK;
    }
    while (l->p < l->end) {
        if (group && *l->p == '}') {
            l->p++;
            break;
        }
        if (*l->p == '\\') {
            KG_TRY(plain_macro(out, l, err));
        } else if (*l->p == '{') {
            l->p++;
            KG_TRY(plain(out, l, true, err));
        } else {
            KG_TRY(kg_str_putc(out, *l->p == '&' ? ' ' : *l->p, err));
            l->p++;
        }
    }
    l->depth--;
    return KG_OK;
}

/* ---- ema-pg: normalisation ---- */

/* Removes every "UNIT(es)(s) *(^digits)". */
static void drop_units(struct kg_str *s)
{
    static const char *const units[] = {
        "degree", "cm",   "centimeter", "meter", "mile", "second", "minute", "hour",
        "day",    "week", "month",      "year",  "foot", "feet",   "inch",   "yard"};

    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        char *at;

        while (s->len && (at = strstr(s->data, units[i])) != NULL) {
            char *end = at + strlen(units[i]);

            end += strncmp(end, "es", 2) == 0 ? 2 : 0;
            end += *end == 's';
            while (*end == ' ')
                end++;
            if (*end == '^' && isdigit((unsigned char)end[1]))
                for (end++; isdigit((unsigned char)*end);)
                    end++;
            memmove(at, end, strlen(end) + 1);
            s->len -= (size_t)(end - at);
        }
    }
}

/* Removes lead, tail and spaces between them (before) or after: "^ *\circ", ",\! *" */
static void drop_around(struct kg_str *s, const char *lead, const char *tail, bool before)
{
    char *at = s->data;

    while (s->len && (at = strstr(at, lead)) != NULL) {
        char *end = at + strlen(lead);

        while (before && *end == ' ')
            end++;
        if (strncmp(end, tail, strlen(tail)) != 0) {
            at++;
            continue;
        }
        end += strlen(tail);
        while (!before && *end == ' ')
            end++;
        memmove(at, end, strlen(end) + 1);
        s->len -= (size_t)(end - at);
    }
}

/* Removes thousands commas: after a digit, before exactly three digits. */
static void drop_thousands(struct kg_str *s)
{
    size_t i = 1;

    while (i + 3 < s->len + 0 && s->len > 4) {
        const char *p = s->data + i;

        if (*p == ',' && isdigit((unsigned char)p[-1]) && isdigit((unsigned char)p[1]) &&
            isdigit((unsigned char)p[2]) && isdigit((unsigned char)p[3]) &&
            !isdigit((unsigned char)p[4])) {
            memmove(s->data + i, p + 1, strlen(p));
            s->len--;
            i = 1;
            continue;
        }
        i++;
    }
}

/* Reads digits: *value becomes 10 *value + digit for each.   returns their number */
static size_t sum_digits(double *value, const char **p)
{
    size_t n = 0;

    for (; isdigit((unsigned char)**p); (*p)++, n++)
        *value = *value * 10 + (**p - '0');
    return n;
}

/* Reads a number as Python's float() does, in any locale, with enough precision to tell
 * integers from other numbers.   returns false for other texts */
static bool as_float(double *out, const char *text)
{
    const char *p = text + strspn(text, " \t\n");
    bool negative = *p == '-';
    double power = 0;
    size_t places = 0;
    bool down;

    p += *p == '-' || *p == '+';
    *out = 0;
    size_t digits = sum_digits(out, &p);
    if (*p == '.') {
        p++;
        places = sum_digits(out, &p);
    }
    if (digits + places == 0 || digits + places > 300)
        return false;
    if (*p == 'e' || *p == 'E') {
        down = p[1] == '-';
        p += 1 + (p[1] == '-' || p[1] == '+');
        if (!sum_digits(&power, &p))
            return false;
        power = down ? -power : power;
    }
    *out *= pow(10, power - (double)places);
    if (negative)
        *out = -*out;
    return p[strspn(p, " \t\n")] == 0;
}

static bool is_whole(double x)
{
    return x > -9e15 && x < 9e15 && fabs(x - rint(x)) <= 1e-7;
}

/* *yes: the text without thousands commas is an integer, *value */
static kg_status is_int_text(bool *yes, double *value, const char *text, size_t n,
                             struct kg_err *err)
{
    struct kg_str s = {0};
    kg_status status = kg_str_append(&s, text, n, err);

    drop_thousands(&s);
    *yes = status == KG_OK && as_float(value, kg_str_text(&s)) && is_whole(*value);
    kg_str_release(&s);
    return status;
}

/* "1 1/2" to "1+1/2" */
static kg_status join_mixed(struct kg_str *s, struct kg_err *err)
{
    struct kg_str out = {0};
    const char *p = kg_str_text(s);
    kg_status status = KG_OK;

    for (; *p; p++) {
        const char *next = p;

        while (*next == ' ')
            next++;
        if (next > p && out.len && isdigit((unsigned char)out.data[out.len - 1]) &&
            isdigit((unsigned char)*next)) {
            KG_TRY_GOTO(fail, kg_str_putc(&out, '+', err));
            p = next - 1;
            continue;
        }
        KG_TRY_GOTO(fail, kg_str_putc(&out, *p, err));
    }
    kg_str_release(s);
    *s = out;
    return KG_OK;
fail:
    kg_str_release(&out);
    return status;
}

static kg_status to_plain(struct kg_str *s, struct kg_err *err)
{
    struct kg_str out = {0};
    static const struct swap fractions[] = {
        {"\\tfrac", "\\frac"}, {"\\dfrac", "\\frac"}, {"\\frac", " \\frac"}};

    if (!has(s, "\\"))
        return KG_OK;
    KG_TRY(replace_all(s, ROWS(fractions), err));
    struct latex l = {kg_str_text(s), kg_str_text(s) + s->len, 0};
    kg_status status = plain(&out, &l, false, err);
    if (status != KG_OK) {
        kg_str_release(&out);
        return status;
    }
    kg_str_release(s);
    *s = out;
    trim(s);
    return KG_OK;
}

static kg_status put_int(struct kg_str *s, double value, struct kg_err *err)
{
    kg_str_clear(s);
    return kg_str_printf(s, err, "%.0f", value);
}

static kg_status sympy_normal(struct kg_str *s, const char *text, size_t n,
                              struct kg_err *err)
{
    static const struct swap first[] = {{"\\%", "%"},
                                        {"\\$", "$"},
                                        {"$", ""},
                                        {"%", ""},
                                        {" or ", " , "},
                                        {" and ", " , "},
                                        {"million", "*10^6"},
                                        {"billion", "*10^9"},
                                        {"trillion", "*10^12"}};
    double value;
    bool whole;

    KG_TRY(kg_str_append(s, text, n, err));
    unwrap_text(s);
    KG_TRY(replace_all(s, ROWS(first), err));
    drop_units(s);
    drop_around(s, "^", "\\circ", true);
    if (s->len > 1 && s->data[0] == '{' && s->data[s->len - 1] == '}') {
        cut_back(s, 1);
        cut_front(s, 1);
    }
    drop_around(s, ",\\!", "", false);
    if (s->len && as_float(&value, s->data) && is_whole(value))
        KG_TRY(put_int(s, value, err));
    KG_TRY(to_plain(s, err));
    while (has(s, "- "))
        KG_TRY(replace(s, "- ", "-", err));
    KG_TRY(join_mixed(s, err));
    KG_TRY(replace(s, " ", "", err));
    KG_TRY(replace(s, "{", "", err));
    KG_TRY(replace(s, "}", "", err));
    for (size_t i = 0; i < s->len; i++)
        s->data[i] = (char)tolower((unsigned char)s->data[i]);
    KG_TRY(is_int_text(&whole, &value, kg_str_text(s), s->len, err));
    return whole ? put_int(s, value, err) : KG_OK;
}

/* ---- ema-pg: comparison ---- */

/* Algebra is tried if there are at most two letters (sqrt and frac do not count) and no
 * ^{, ^(, ^12 or ^1^. */
static bool may_evaluate(const char *text, size_t n)
{
    bool seen[256] = {false};
    int letters = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        bool next = i + 1 < n;

        if (n - i >= 4 &&
            (memcmp(text + i, "sqrt", 4) == 0 || memcmp(text + i, "frac", 4) == 0)) {
            i += 3;
            continue;
        }
        if (c == '^' && next && (text[i + 1] == '{' || text[i + 1] == '('))
            return false;
        if (c == '^' && i + 2 < n && isdigit((unsigned char)text[i + 1]) &&
            (isdigit((unsigned char)text[i + 2]) || text[i + 2] == '^'))
            return false;
        if ((isalpha(c) || c >= 0xc0) && !seen[c]) {
            seen[c] = true;
            letters++;
        }
    }
    return letters <= 2;
}

static enum kg_math_verdict algebra(struct kg_math_job *job, struct kg_math_text gold,
                                    struct kg_math_text answer, struct kg_err *err)
{
    struct kg_math_decider d = {.tree = job->tree, .budget = &job->budget};
    struct kg_str both = {0};
    const char *why;
    enum kg_math_verdict v = KG_MATH_WRONG;
    int a;
    int b;

    /* the letters of both texts count together */
    if (kg_str_append(&both, gold.text, gold.n, err) == KG_OK &&
        kg_str_append(&both, answer.text, answer.n, err) == KG_OK &&
        may_evaluate(kg_str_text(&both), both.len)) {
        kg_math_tree_clear(job->tree);
        a = kg_math_parse(job->tree, gold.text, gold.n, KG_MATH_NO_THOUSANDS, &why);
        b = a ? kg_math_parse(job->tree, answer.text, answer.n, KG_MATH_NO_THOUSANDS,
                              &why)
              : 0;
        v = b ? kg_math_equal(&d, a, b, NULL) : KG_MATH_WRONG;
    }
    kg_str_release(&both);
    return v;
}

/* "12/7", where one more byte may follow each number: must be reduced to be right */
static bool is_fraction(struct kg_math_text t)
{
    size_t i = 0;
    size_t digits = 0;

    i += i < t.n && t.text[i] == '-';
    for (; i < t.n && isdigit((unsigned char)t.text[i]); i++)
        digits++;
    i += i < t.n && t.text[i] != '/';
    if (!digits || i >= t.n || t.text[i] != '/')
        return false;
    for (i++, digits = 0; i < t.n && isdigit((unsigned char)t.text[i]); i++)
        digits += t.text[i] != '0' || digits > 0;
    return digits > 0 && i + 1 >= t.n;
}

static kg_status same_element(enum kg_math_verdict *v, struct kg_math_job *job,
                              struct kg_math_text gold, struct kg_math_text answer,
                              struct kg_err *err)
{
    bool gold_int;
    bool answer_int;
    double value;

    if (is_fraction(gold) && is_fraction(answer)) {
        *v = gold.n == answer.n && memcmp(gold.text, answer.text, gold.n) == 0;
        return KG_OK;
    }
    KG_TRY(is_int_text(&gold_int, &value, gold.text, gold.n, err));
    KG_TRY(is_int_text(&answer_int, &value, answer.text, answer.n, err));
    *v = gold_int != answer_int ? KG_MATH_WRONG : algebra(job, gold, answer, err);
    return KG_OK;
}

enum { MAX_ELEMENTS = 64 };

/* The parts of (a, b, c) or [a, b), or the text itself. */
static size_t split_tuple(struct kg_math_text parts[MAX_ELEMENTS], struct kg_str *s)
{
    size_t count = 0;

    drop_thousands(s);
    const char *text = kg_str_text(s);
    size_t n = s->len;
    if (n == 0)
        return 0;
    parts[0] = (struct kg_math_text){text, n};
    if (n <= 2 || !kg_char_in("()[]", text[0]) || !kg_char_in("()[]", text[n - 1]))
        return 1;
    for (size_t i = 1; i < n - 1; i++) {
        if (kg_char_in("()[]", text[i]))
            return 1;
    }
    for (size_t from = 1, i = 1; i <= n - 1; i++) {
        if (i < n - 1 && text[i] != ',')
            continue;
        if (count == MAX_ELEMENTS)
            return count;
        parts[count++] = (struct kg_math_text){text + from, i - from};
        from = i + 1;
    }
    return count;
}

static kg_status same_by_algebra(enum kg_math_verdict *v, struct kg_math_job *job,
                                 struct kg_str *gold, struct kg_str *answer,
                                 struct kg_err *err)
{
    struct kg_math_text g[MAX_ELEMENTS];
    struct kg_math_text a[MAX_ELEMENTS];
    char ends[4];

    *v = KG_MATH_RIGHT;
    if (strcmp(kg_str_text(gold), kg_str_text(answer)) == 0)
        return KG_OK;
    *v = KG_MATH_WRONG;
    if (answer->len == 0 || gold->len == 0)
        return KG_OK;
    memcpy(ends,
           (char[]){gold->data[0], answer->data[0], gold->data[gold->len - 1],
                    answer->data[answer->len - 1]},
           4);
    size_t gn = split_tuple(g, gold);
    size_t an = split_tuple(a, answer);
    if ((gn > 1 && (ends[0] != ends[1] || ends[2] != ends[3])) || gn != an)
        return KG_OK;
    *v = KG_MATH_RIGHT;
    for (size_t i = 0; i < gn && *v == KG_MATH_RIGHT; i++)
        KG_TRY(same_element(v, job, g[i], a[i], err));
    return KG_OK;
}

kg_status kg_math_grade_ema_pg(struct kg_math_job *job, struct kg_err *err)
{
    struct kg_math_text answer;
    struct kg_math_text gold;
    struct kg_str x = {0};
    struct kg_str y = {0};
    enum kg_math_verdict v;
    bool same = false;
    kg_status status;

    if (!take_answer(job, &answer, &gold))
        return kg_math_say(job, KG_MATH_WRONG, "no boxed answer was found");
    if (answer.n > KG_MATH_MAX_STRING || gold.n > KG_MATH_MAX_STRING)
        return kg_math_say(job, KG_MATH_UNDECIDED, "too long");
    KG_TRY(kg_str_append(&job->result->extracted, answer.text, answer.n, err));
    KG_TRY(mathd_same(&same, answer, gold, err));
    if (same)
        return kg_math_say(job, KG_MATH_RIGHT, "the same string after normalisation");
    KG_TRY_GOTO(out, sympy_normal(&x, gold.text, gold.n, err));
    KG_TRY_GOTO(out, sympy_normal(&y, answer.text, answer.n, err));
    KG_TRY_GOTO(out, same_by_algebra(&v, job, &x, &y, err));
    kg_math_say(job, v,
                v == KG_MATH_RIGHT   ? "equal by algebra after normalisation"
                : v == KG_MATH_WRONG ? "different after normalisation"
                                     : "algebra after normalisation is undecided");
out:
    kg_str_release(&x);
    kg_str_release(&y);
    return status;
}
