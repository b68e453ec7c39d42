/* Numbers, names, arguments, and what follows a value: powers, subscripts, %, !, degrees.
 * Numbers are written in many ways: 1,234 and 0.(3), 5 1/2, 3\frac12, 4.5e33, or with
 * dots for repeating digits. Each becomes one exact value, never a floating-point
 * number. Context resolves ambiguity: a comma in brackets separates;
 * elsewhere, three digits after it make it a thousands separator. Postfixes bind before
 * any operator. */
#include "math/math_internal.h"

#include <ctype.h>
#include <string.h>

enum { MAX_NAME = 100 }; /* bytes of a name that gets a subscript or argument */

/* ---- raw text ---- */

const char *kg_math_raw_group(struct kg_math_parser *p, size_t *n)
{
    int depth = 0;

    if (kg_math_look(p) != '{')
        return NULL;
    const char *from = p->p + 1;
    for (; p->p < p->end; p->p++) {
        depth += (*p->p == '{') - (*p->p == '}');
        if (depth == 0) {
            *n = (size_t)(p->p++ - from);
            return from;
        }
    }
    kg_math_parse_fail(p, "a brace is not closed");
    return NULL;
}

const char *kg_math_raw_arg(struct kg_math_parser *p, size_t *n)
{
    size_t len;

    if (kg_math_look(p) == '{')
        return kg_math_raw_group(p, n);
    if (p->p == p->end)
        return NULL;
    const char *text = p->p;
    kg_math_ahead(p, &len);
    *n = *text == '\\' && len > 1 ? len : 1;
    p->p += *n;
    return text;
}

/* Bytes of a style command at text, which names leave out; 0 if there is none. */
static size_t style_length(const char *text, size_t n)
{
    size_t len = 0;

    if (text[0] != '\\')
        return 0;
    while (1 + len < n && isalpha((unsigned char)text[1 + len]))
        len++;
    const struct kg_math_command *row = len ? kg_math_command_find(text + 1, len) : NULL;
    return row && (row->group == KG_MATH_G_STYLE || row->group == KG_MATH_G_TEXT)
               ? len + 1
               : 0;
}

int kg_math_name(struct kg_math_parser *p, enum kg_math_kind kind, const char *lead,
                 const char *text, size_t n)
{
    char name[128];
    size_t used = strlen(lead);

    if (used >= sizeof name - 1)
        return kg_math_parse_fail(p, "too long a name");
    memcpy(name, lead, used);
    for (size_t i = 0; i < n && used < sizeof name - 1;) {
        size_t style = style_length(text + i, n - i);

        if (style == 0 && !isspace((unsigned char)text[i]) && !kg_char_in("{}", text[i]))
            name[used++] = text[i];
        i += style ? style : 1;
    }
    return kg_math_leaf(p->t, kind, 0, name, used);
}

/* ---- numbers ---- */

/* Groups of three digits at p, each after separator c: ",234,567".   returns the end */
static const char *thousands(const char *p, const char *end, char c)
{
    while (end - p >= 4 && *p == c && kg_math_digit_at(p + 1, end) &&
           kg_math_digit_at(p + 2, end) && kg_math_digit_at(p + 3, end) &&
           !kg_math_digit_at(p + 4, end))
        p += 4;
    return p;
}

struct number {
    char text[512];
    size_t n;
    bool whole;
};

static bool put_digits(struct number *out, const char *from, const char *to)
{
    for (; from < to; from++) {
        if (!isdigit((unsigned char)*from) && *from != '.')
            continue;
        if (out->n == sizeof out->text)
            return false;
        out->text[out->n++] = *from;
    }
    return true;
}

/* The end of the integer part at p->p, with its groups of thousands. */
static const char *whole_end(struct kg_math_parser *p)
{
    const char *at = p->p;
    bool commas = !(p->flags & KG_MATH_NO_THOUSANDS) && p->brackets == 0;

    while (kg_math_digit_at(at, p->end))
        at++;
    if (at - p->p > 3 || at == p->p || *p->p == '0')
        return at;
    const char *more = commas ? thousands(at, p->end, ',') : at;
    if (more > at)
        return more;
    more = thousands(at, p->end, ' ');
    return more < p->end && *more == '/' ? at : more; /* the mixed number 5 121/144 */
}

/* Consumes the repeating digits of 0.(3); else NULL. In 2.5(4), the 4 may be a factor. */
static const char *bracketed_digits(struct kg_math_parser *p, size_t *n)
{
    const char *from = p->p + 1;
    const char *at = from;

    if (!kg_char_in(".,", p->p[-1]) || from >= p->end || from[-1] != '(')
        return NULL;
    while (kg_math_digit_at(at, p->end))
        at++;
    *n = (size_t)(at - from);
    if (at == p->end || *at != ')' || *n == 0)
        return NULL;
    p->p = at + 1;
    return from;
}

/* The repeating digits after a decimal point, written \overline{..}, \bar{..}, \dot{..}
 * or 0.(..); else NULL. */
static const char *repeating(struct kg_math_parser *p, size_t *n)
{
    static const char *const marks[] = {"\\overline", "\\bar", "\\dot"};
    const char *from = p->p;
    const char *text = bracketed_digits(p, n);

    if (text)
        return text;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        if (!kg_math_eat(p, marks[i]))
            continue;
        text = kg_math_raw_group(p, n);
        for (size_t k = 0; text && k < *n; k++)
            text = isdigit((unsigned char)text[k]) ? text : NULL;
        if (text && *n > 0)
            return text;
    }
    p->p = from;
    return NULL;
}

/* The length of the block that repeats at the end: one digit at least three times, or a
 * longer block at least twice; 0 if there is none. */
static size_t repeated_block(const char *digits, size_t n)
{
    for (size_t len = 1; 2 * len <= n; len++) {
        const char *block = digits + n - len;
        size_t times = 1;

        while ((times + 1) * len <= n && memcmp(block - times * len, block, len) == 0)
            times++;
        if (times >= (len == 1 ? 3 : 2))
            return len;
    }
    return 0;
}

/* Consumes the dots of 0.1666\ldots; of a whole number only at the end of the text. */
static bool eat_dots(struct kg_math_parser *p, bool whole)
{
    const char *from = p->p;
    size_t len;
    const struct kg_math_command *row = kg_math_ahead(p, &len);

    if (row && row->group == KG_MATH_G_DOTS) {
        p->p += len;
        if (!whole || kg_math_look(p) == 0)
            return true;
    }
    p->p = from;
    return false;
}

/* number + digits / 99..900..0, exactly: the digits repeat after `places` decimals. */
static int add_repeating(struct kg_math_parser *p, int number, size_t places,
                         const char *digits, size_t n)
{
    char under[640];

    if (n + places > sizeof under)
        return kg_math_parse_fail(p, "too many digits");
    p->t->nodes[number].op = 1; /* exact, not a rounded decimal fraction */
    memset(under, '9', n);
    memset(under + n, '0', places);
    return kg_math_node(
        p->t, KG_MATH_ADD, 0, number,
        kg_math_node(p->t, KG_MATH_DIV, 0, kg_math_leaf(p->t, KG_MATH_NUM, 0, digits, n),
                     kg_math_leaf(p->t, KG_MATH_NUM, 0, under, n + places)));
}

/* Consumes the "e33" of 4.5e33.   returns number 10^33, or number if there is none */
static int with_exponent(struct kg_math_parser *p, int number)
{
    const char *at = p->p + 1;

    if (p->p >= p->end || (*p->p != 'e' && *p->p != 'E'))
        return number;
    bool negative = at < p->end && *at == '-';
    at += at < p->end && (*at == '-' || *at == '+');
    const char *digits = at;
    while (kg_math_digit_at(at, p->end))
        at++;
    if (at == digits || at - digits > 9 || (at < p->end && isalpha((unsigned char)*at)))
        return number;
    p->p = at;
    int exponent = kg_math_leaf(p->t, KG_MATH_NUM, 0, digits, (size_t)(at - digits));
    if (negative)
        exponent = kg_math_node(p->t, KG_MATH_NEG, 0, exponent, 0);
    return kg_math_node(
        p->t, KG_MATH_MUL, 0, number,
        kg_math_node(p->t, KG_MATH_POW, 0, kg_math_small(p->t, 10), exponent));
}

bool kg_math_is_whole(const struct kg_math_tree *t, int node)
{
    return t->nodes[node].kind == KG_MATH_NUM && !strchr(kg_math_leaf_text(t, node), '.');
}

/* Whether the node is a fraction of whole numbers below one, as in 3\frac{1}{2}. */
static bool is_proper(const struct kg_math_tree *t, int node)
{
    const struct kg_math_node *n = &t->nodes[node];
    size_t a = t->nodes[n->a].len;
    size_t b = t->nodes[n->b].len;

    return n->kind == KG_MATH_DIV && kg_math_is_whole(t, n->a) &&
           kg_math_is_whole(t, n->b) &&
           (a < b || (a == b && strcmp(kg_math_leaf_text(t, n->a),
                                       kg_math_leaf_text(t, n->b)) < 0));
}

/* "1/2" after "3 ".   returns the fraction or 0, with nothing consumed */
static int plain_fraction(struct kg_math_parser *p)
{
    const char *at = p->p;

    while (kg_math_digit_at(at, p->end))
        at++;
    const char *over = at;
    if (at == p->p || at == p->end || *at != '/' || !kg_math_digit_at(at + 1, p->end))
        return 0;
    const char *under = ++at;
    while (kg_math_digit_at(at, p->end))
        at++;
    return kg_math_node(p->t, KG_MATH_DIV, 0,
                        kg_math_leaf(p->t, KG_MATH_NUM, 0, p->p, (size_t)(over - p->p)),
                        kg_math_leaf(p->t, KG_MATH_NUM, 0, under, (size_t)(at - under)));
}

/* A whole number with a proper fraction after it is their sum. */
static int with_fraction(struct kg_math_parser *p, int number)
{
    const char *from = p->p;
    size_t len;
    const struct kg_math_command *row = kg_math_ahead(p, &len);
    int fraction = 0;

    if (row && row->group == KG_MATH_G_FRAC && *p->p == '\\') {
        fraction = kg_math_parse_primary(p);
    } else if (!row && p->p > from && kg_math_digit_at(p->p, p->end)) {
        fraction = plain_fraction(p);
        while (fraction && p->p < p->end &&
               (kg_math_digit_at(p->p, p->end) || *p->p == '/'))
            p->p++;
    }
    if (fraction && is_proper(p->t, fraction))
        return kg_math_node(p->t, KG_MATH_ADD, 0, number, fraction);
    p->p = from;
    p->why = NULL;
    return number;
}

/* Inside brackets a comma separates: (1,3) is not 1.3. */
static bool is_decimal_comma(const struct kg_math_parser *p, const char *at)
{
    return *at == ',' && (p->flags & KG_MATH_DECIMAL_COMMA) && p->brackets == 0 &&
           kg_math_digit_at(at + 1, p->end);
}

int kg_math_parse_number(struct kg_math_parser *p)
{
    struct number out = {.whole = true};
    const char *at = whole_end(p);
    size_t n;

    if (!put_digits(&out, p->p, at))
        return kg_math_parse_fail(p, "too many digits");
    const char *point = at;
    if (at < p->end && (*at == '.' || is_decimal_comma(p, at))) {
        out.whole = false;
        out.text[out.n < sizeof out.text ? out.n++ : 0] = '.';
        for (at++; kg_math_digit_at(at, p->end);)
            at++;
        if (!put_digits(&out, point + 1, at))
            return kg_math_parse_fail(p, "too many digits");
    }
    p->p = at;
    int node = kg_math_leaf(p->t, KG_MATH_NUM, 0, out.text, out.n);
    const char *digits = out.whole ? NULL : repeating(p, &n);
    if (!digits && eat_dots(p, out.whole)) {
        n = out.whole ? 0 : repeated_block(point + 1, (size_t)(at - point - 1));
        digits = n ? at - n : NULL;
    }
    if (digits)
        return add_repeating(p, node, (size_t)(at - point - 1), digits, n);
    node = with_exponent(p, node);
    return out.whole && p->t->nodes[node].kind == KG_MATH_NUM ? with_fraction(p, node)
                                                              : node;
}

/* ---- arguments and scripts ---- */

int kg_math_parse_braces(struct kg_math_parser *p)
{
    int bars = p->bars;

    if (!kg_math_eat(p, "{"))
        return kg_math_parse_fail(p, "an opening brace is missing");
    p->bars = 0;
    int list = kg_math_parse_list(p);
    p->bars = bars;
    if (list && !kg_math_eat(p, "}"))
        return kg_math_parse_fail(p, "a brace is not closed");
    return kg_math_parse_unwrap(p, list);
}

int kg_math_parse_arg(struct kg_math_parser *p)
{
    char c = kg_math_look(p);

    if (c == '{')
        return kg_math_parse_braces(p);
    if (isdigit((unsigned char)c))
        return kg_math_leaf(p->t, KG_MATH_NUM, 0, p->p++, 1);
    if (isalpha((unsigned char)c)) {
        size_t len;

        if (!kg_math_ahead(p, &len))
            return kg_math_parse_letter(p);
    }
    return kg_math_parse_primary(p);
}

int kg_math_parse_script(struct kg_math_parser *p)
{
    char c = kg_math_look(p);
    int node;

    if (p->depth >= KG_MATH_MAX_DEPTH)
        return kg_math_parse_fail(p, "nested too deep");
    p->depth++;
    if (c == '-' || c == '+') {
        p->p++;
        node = kg_math_parse_script(p);
        if (node && c == '-')
            node = kg_math_node(p->t, KG_MATH_NEG, 0, node, 0);
    } else if (isdigit((unsigned char)c)) {
        const char *from = p->p;

        while (kg_math_digit_at(p->p, p->end))
            p->p++;
        node = kg_math_leaf(p->t, KG_MATH_NUM, 0, from, (size_t)(p->p - from));
    } else {
        node = kg_math_parse_arg(p);
    }
    if (node && kg_math_look(p) == '^') {
        p->p++;
        int above = kg_math_parse_script(p);
        node = above ? kg_math_node(p->t, KG_MATH_POW, 0, node, above) : 0;
    }
    p->depth--;
    return node;
}

/* ---- after a value ---- */

/* Adds the subscript to the name; x^2_0 is (x_0)^2. */
static int with_subscript(struct kg_math_parser *p, int node)
{
    struct kg_math_tree *t = p->t;
    char lead[MAX_NAME + 2];
    size_t n;
    int at = node;

    while (t->nodes[at].kind == KG_MATH_POW)
        at = t->nodes[at].a;
    const char *sub = kg_math_raw_arg(p, &n);
    if (!sub || t->nodes[at].len > MAX_NAME)
        return kg_math_parse_fail(p, "a subscript that cannot be read");
    memcpy(lead, kg_math_leaf_text(t, at), t->nodes[at].len);
    lead[t->nodes[at].len] = '_';
    lead[t->nodes[at].len + 1] = 0;
    int named = kg_math_name(p, KG_MATH_SYM, lead, sub, n);
    if (named)
        t->nodes[at] = t->nodes[named];
    return node;
}

static bool takes_subscript(const struct kg_math_tree *t, int node)
{
    int kind;

    while (t->nodes[node].kind == KG_MATH_POW)
        node = t->nodes[node].a;
    kind = t->nodes[node].kind;
    return kind == KG_MATH_SYM || kind == KG_MATH_NUM ||
           (kind == KG_MATH_CONST && t->nodes[node].len);
}

/* x' and x'' are distinct names; after anything else a prime is dropped (minutes,
 * seconds). */
static int with_prime(struct kg_math_parser *p, int node)
{
    struct kg_math_node *n = &p->t->nodes[node];

    if (n->kind != KG_MATH_SYM)
        return node;
    int named = kg_math_name(p, KG_MATH_SYM, kg_math_leaf_text(p->t, node), "'", 1);
    if (named)
        p->t->nodes[node] = p->t->nodes[named];
    return node;
}

/* I(0) is a value of the function I, not a product with zero: it becomes one name.
 * returns false, with nothing consumed, unless a name and a whole number are given */
static bool with_argument(struct kg_math_parser *p, int node)
{
    struct kg_math_tree *t = p->t;
    const char *to = p->p + 1;
    char lead[MAX_NAME + 1];

    while (kg_math_digit_at(to, p->end))
        to++;
    if (t->nodes[node].kind != KG_MATH_SYM || t->nodes[node].len > MAX_NAME ||
        to == p->p + 1 || to == p->end || *to != ')')
        return false;
    memcpy(lead, kg_math_leaf_text(t, node), t->nodes[node].len);
    lead[t->nodes[node].len] = 0;
    int named = kg_math_name(p, KG_MATH_SYM, lead, p->p, (size_t)(to + 1 - p->p));
    if (named)
        t->nodes[node] = t->nodes[named];
    p->p = to + 1;
    return true;
}

/* Consumes the o of 90^o, which is written for a degree sign. */
static bool eat_ring(struct kg_math_parser *p, bool braces)
{
    static const char *const rings[] = {"o", "\\text{o}", "\\mathrm{o}"};
    const char *from = p->p;

    for (size_t i = 0; i < sizeof rings / sizeof *rings; i++) {
        if (kg_math_eat(p, rings[i]) &&
            (braces ? kg_math_eat(p, "}")
                    : p->p == p->end || !isalnum((unsigned char)*p->p)))
            return true;
        p->p = from;
    }
    return false;
}

/* Consumes degree signs or primes after ^, with or without braces.   returns their group,
 * or KG_MATH_G_SYMBOL if the superscript is a power */
static enum kg_math_group eat_raised(struct kg_math_parser *p)
{
    const char *from = p->p;
    bool braces = kg_math_eat(p, "{");
    enum kg_math_group group = KG_MATH_G_SYMBOL;
    const struct kg_math_command *row;
    size_t len;

    if (eat_ring(p, braces))
        return KG_MATH_G_DEGREE;
    while ((row = kg_math_ahead(p, &len)) != NULL &&
           (row->group == KG_MATH_G_DEGREE || row->group == KG_MATH_G_PRIME)) {
        group = row->group;
        p->p += len;
        if (!braces)
            return group;
    }
    if (group != KG_MATH_G_SYMBOL && kg_math_eat(p, "}"))
        return group;
    p->p = from;
    return KG_MATH_G_SYMBOL;
}

/* Consumes the scale C or F after a degree sign. */
static void skip_scale(struct kg_math_parser *p)
{
    static const char *const scales[] = {"\\mathrm{C}", "\\mathrm{F}", "\\text{C}",
                                         "\\text{F}", "\\mathrm{~C}"};

    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        if (kg_math_eat(p, scales[i]))
            return;
    }
    if (kg_math_look(p) && kg_char_in("CF", *p->p) &&
        !(p->p + 1 < p->end && isalpha((unsigned char)p->p[1])))
        p->p++;
}

static int with_power(struct kg_math_parser *p, int node)
{
    int above;

    switch (eat_raised(p)) {
    case KG_MATH_G_DEGREE:
        skip_scale(p);
        return kg_math_node(p->t, KG_MATH_DEGREE, 0, node, 0);
    case KG_MATH_G_PRIME:
        return with_prime(p, node);
    default:
        above = kg_math_parse_script(p);
        return above ? kg_math_node(p->t, KG_MATH_POW, 0, node, above) : 0;
    }
}

int kg_math_parse_postfix(struct kg_math_parser *p)
{
    int node = kg_math_parse_primary(p);
    size_t len;

    while (node) {
        const struct kg_math_command *row;
        char c = kg_math_look(p);

        row = c == '\\' || isalpha((unsigned char)c) ? kg_math_ahead(p, &len) : NULL;
        if (c == '^' || (c == '_' && takes_subscript(p->t, node))) {
            p->p++;
            node = c == '^' ? with_power(p, node) : with_subscript(p, node);
        } else if (c == '(' && with_argument(p, node)) {
            continue;
        } else if (c == '!') {
            p->p++;
            node = kg_math_node(p->t, KG_MATH_FUNC, KG_MATH_FACTORIAL, node, 0);
        } else if (c == '\'' || c == '"') {
            p->p++;
            node = with_prime(p, node);
        } else if (c == '%') {
            p->p++;
            node = kg_math_node(p->t, KG_MATH_PERCENT, 0, node, 0);
        } else if (row &&
                   (row->group == KG_MATH_G_PERCENT || row->group == KG_MATH_G_DEGREE)) {
            p->p += len;
            node = kg_math_node(
                p->t, row->group == KG_MATH_G_DEGREE ? KG_MATH_DEGREE : KG_MATH_PERCENT,
                0, node, 0);
        } else {
            return node;
        }
    }
    return 0;
}
