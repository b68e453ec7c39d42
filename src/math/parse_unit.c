/* Units as they are written (5 m/s, 9.8 \mathrm{m\,s^{-2}}, 5 k\Omega), words in
 * brackets, and numbers in words.
 *
 * A single letter may also be a name. In roman type, or with a command (\Omega, \mu m), a
 * known letter is a unit. In plain text it is one only in a quotient that consists of
 * units alone: `5 m/s` has a unit, `5 m/x` has none. Other units in plain text are in the
 * table of words.
 */
#include "math/math_internal.h"

#include <ctype.h>
#include <string.h>

/* Where a unit may be in a plain quotient; PREFIX: it takes k, m, .. */
enum { ABOVE = 1, BELOW = 2, PREFIX = 4 };

/* Units that are not in the table of words (commands.c). */
static const struct {
    const char *names;
    int flags;
} units[] = {
    {" m L mol ", ABOVE | BELOW | PREFIX},
    {" s K ", BELOW | PREFIX},
    {" g N J W V ", ABOVE | PREFIX},
    {" lb gal ml ", ABOVE | BELOW},
    {" mi mg ", ABOVE},
    {" h hr min sec ms ", BELOW},
    {" A C F H T S l Pa Hz eV Wb Wh cal bar Bq Sv Gy pc \\Omega \\ell ", PREFIX},
    {" cd lm lx sr dyn erg atm amu u in ft yd oz yr d cc ly AU dB rad rev rpm angstrom ",
     0},
};

/* The flags of a unit; -1 for none. */
static int flags_of(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (kg_str_listed(units[i].names, name, n))
            return units[i].flags;
    }
    return -1;
}

/* A walk over the text of a unit. */
struct reader {
    const char *at;
    const char *end;
    int braces;  /* open braces of \mathrm{ and similar commands */
    bool styled; /* roman type or a command was met: a letter is a unit */
    bool below;  /* a / was met */
};

static bool eat(struct reader *r, const char *text)
{
    size_t n = strlen(text);

    if ((size_t)(r->end - r->at) < n || memcmp(r->at, text, n) != 0)
        return false;
    r->at += n;
    return true;
}

/* Skips spaces, and the styles that a unit may have. */
static void skip_style(struct reader *r)
{
    static const char *const styles[] = {"\\mathrm{", "\\text{",   "\\textrm{", "\\mbox{",
                                         "\\rm{",     "\\mathsf{", "\\rm "};

    for (;;) {
        size_t i = 0;

        while (i < sizeof styles / sizeof *styles && !eat(r, styles[i]))
            i++;
        if (i < sizeof styles / sizeof *styles) {
            r->braces += styles[i][strlen(styles[i]) - 1] == '{';
            r->styled = true;
        } else if (eat(r, "\\frac{")) {
            r->braces++;
        } else if (r->braces > 0 && (eat(r, "}") || eat(r, ")"))) {
            r->braces--;
        } else if (!eat(r, " ") && !eat(r, "~")) {
            return;
        }
    }
}

/* Consumes "^2", "^{2}", "^{-1}", or nothing.   returns false for other powers */
static bool eat_power(struct reader *r)
{
    if (!eat(r, "^"))
        return true;
    bool braces = eat(r, "{");
    eat(r, "-");
    if (r->at == r->end || !isdigit((unsigned char)*r->at++))
        return false;
    return !braces || eat(r, "}");
}

/* Whether [from, r->at) is a unit. micro: a \mu or another prefix precedes it. */
static bool is_unit(const struct reader *r, const char *from, bool micro)
{
    size_t n = (size_t)(r->at - from);
    const struct kg_math_command *row = kg_math_word_find(from, n);
    int flags = flags_of(from, n);

    if (r->styled && flags < 0 && n > 1 && kg_char_in("GMkhdcmunp", *from)) {
        flags = flags_of(from + 1, n - 1);
        micro = true;
    }
    if (row)
        return row->group == KG_MATH_G_UNIT || (r->styled && flags >= 0);
    return flags >= 0 && (!micro || flags & PREFIX) &&
           (r->styled || flags & (r->below ? BELOW : ABOVE));
}

/* Consumes one unit with its power. */
static bool eat_unit(struct reader *r)
{
    skip_style(r);
    bool micro = eat(r, "\\mu");
    r->styled = r->styled || micro;
    if (micro)
        skip_style(r);
    const char *from = r->at;
    while (r->at < r->end && isalpha((unsigned char)*r->at))
        r->at++;
    if (r->at - from < 2 && (eat(r, "\\Omega") || eat(r, "\\ell")))
        r->styled = true;
    if (r->at == from || !is_unit(r, from, micro) || !eat_power(r))
        return false;
    while (r->braces > 0 && eat(r, "}"))
        r->braces--;
    return eat_power(r); /* \mathrm{s}^2 */
}

/* Consumes what joins units.   returns ' ', '/', '.' for a product sign, or 0 */
static char eat_joint(struct reader *r)
{
    static const char *const signs[] = {"\\cdot", "\\times", "\\bullet", "*"};
    const char *from = r->at;

    skip_style(r);
    if (eat(r, "/")) {
        r->braces += eat(r, "(");
        return '/';
    }
    if (r->at[-1] == '}' && eat(r, "{")) {
        r->braces++; /* the second brace of \frac */
        return '/';
    }
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        if (eat(r, signs[i]))
            return '.';
    }
    return r->at > from ? ' ' : 0;
}

/* The end of the units that start at `at`, NULL for none. */
static const char *units_end(const char *at, const char *end)
{
    struct reader r = {.at = at, .end = end};
    struct reader last;
    char joint;
    bool quotient = false;

    if (!eat_unit(&r))
        return NULL;
    for (;;) {
        last = r;
        joint = eat_joint(&r);
        r.below = joint == '/';
        if (!joint || (joint != '/' && !r.styled) || !eat_unit(&r))
            break;
        quotient = quotient || r.below;
    }
    if ((joint && joint != ' ') || (!last.styled && (!quotient || *at == '\\')))
        return NULL;
    while (last.braces > 0 && (eat(&last, "}") || eat(&last, ")")))
        last.braces--;
    at = last.at;
    skip_style(&last);
    if (last.braces > 0 || (last.at < end && (isalnum((unsigned char)*last.at) ||
                                              kg_char_in("(^_/*", *last.at))))
        return NULL;
    return at;
}

int kg_math_parse_unit(struct kg_math_parser *p, int left)
{
    char c = kg_math_look(p);
    const char *from = p->p;

    if ((c != '\\' && !isalpha((unsigned char)c)) ||
        p->t->nodes[left].kind == KG_MATH_UNIT)
        return 0;
    const char *to = units_end(from, p->end);
    if (!to || (c != '\\' && !isspace((unsigned char)from[-1]) &&
                !memchr(from, '\\', (size_t)(to - from))))
        return 0;
    p->p = to;
    return kg_math_leaf(p->t, KG_MATH_WORDS, 0, "unit", 4);
}

/* ---- numbers in words ---- */

/* Consumes the next word if it is of the group; a hyphen may precede it.   returns its
 * row, or NULL */
static const struct kg_math_command *eat_word(struct kg_math_parser *p,
                                              enum kg_math_group group)
{
    const char *from = p->p;
    size_t len;

    kg_math_eat(p, "-");
    const struct kg_math_command *row = kg_math_ahead(p, &len);
    if (row && row->group == group) {
        p->p += len;
        return row;
    }
    p->p = from;
    return NULL;
}

/* Consumes the third of "two thirds".   returns 3, or 0 if there is no fraction */
static int eat_fraction(struct kg_math_parser *p)
{
    static const struct {
        const char *name;
        int value;
    } rows[] = {{"half", 2},  {"halve", 2}, {"third", 3},  {"quarter", 4}, {"fourth", 4},
                {"fifth", 5}, {"sixth", 6}, {"eighth", 8}, {"tenth", 10}};
    const char *from = p->p;
    size_t len;

    kg_math_eat(p, "-");
    kg_math_ahead(p, &len);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t n = strlen(rows[i].name);

        if (len >= n && len <= n + 1 && memcmp(p->p, rows[i].name, n) == 0 &&
            (len == n || p->p[n] == 's')) {
            p->p += len;
            return rows[i].value;
        }
    }
    p->p = from;
    return 0;
}

/* Consumes a number below one hundred.   returns -1 if there is none */
static int below_hundred(struct kg_math_parser *p)
{
    const struct kg_math_command *row = eat_word(p, KG_MATH_G_NUMBER);
    const char *from = p->p;

    if (!row || row->op < 20)
        return row ? row->op : -1;
    const struct kg_math_command *ones = eat_word(p, KG_MATH_G_NUMBER);
    if (ones && ones->op > 0 && ones->op < 10)
        return row->op + ones->op;
    p->p = from;
    return row->op;
}

int kg_math_parse_number_words(struct kg_math_parser *p)
{
    struct kg_math_tree *t = p->t;
    const struct kg_math_command *scale;
    int sum = 0;
    int limit = 16; /* each power of ten is below the one before it */
    int group = below_hundred(p);
    int part;
    int under = group > 0 ? eat_fraction(p) : 0;

    if (under)
        return kg_math_node(t, KG_MATH_DIV, 0, kg_math_small(t, group),
                            kg_math_small(t, under));
    while (group >= 0) {
        scale = eat_word(p, KG_MATH_G_SCALE);
        if (scale && scale->op == 2) {
            const char *from = p->p;

            eat_word(p, KG_MATH_G_AND);
            part = below_hundred(p);
            p->p = part < 0 ? from : p->p;
            group = group * 100 + (part < 0 ? 0 : part);
            scale = eat_word(p, KG_MATH_G_SCALE);
        }
        if (scale && scale->op >= limit)
            return kg_math_parse_fail(p, "a number in words that cannot be read");
        part = kg_math_small(t, group);
        if (scale)
            part = kg_math_node(t, KG_MATH_MUL, 0, part,
                                kg_math_node(t, KG_MATH_POW, 0, kg_math_small(t, 10),
                                             kg_math_small(t, scale->op)));
        sum = sum ? kg_math_node(t, KG_MATH_ADD, 0, sum, part) : part;
        limit = scale ? scale->op : 0;
        group = scale ? below_hundred(p) : -1;
    }
    return sum;
}

/* ---- words in brackets ---- */

/* Whether the word is a number other than the node's ("5 (six)"), or may be a product of
 * letters. */
static bool contradicts(const struct kg_math_tree *t, int node, const char *word,
                        size_t n)
{
    const struct kg_math_command *row = kg_math_beside_find(word, n);
    char digits[4] = "";

    if (!row || row->group != KG_MATH_G_NUMBER)
        return n < 4;
    if (row->op >= 10)
        digits[0] = (char)('0' + row->op / 10);
    digits[strlen(digits)] = (char)('0' + row->op % 10);
    return strcmp(digits, kg_math_leaf_text(t, node)) != 0;
}

int kg_math_parse_bracketed_word(struct kg_math_parser *p, int left)
{
    size_t n = 0;

    if (kg_math_look(p) != '(' || !isspace((unsigned char)p->p[-1]) ||
        p->t->nodes[left].kind != KG_MATH_NUM)
        return 0;
    const char *word = p->p + 1;
    while (word + n < p->end && isalpha((unsigned char)word[n]))
        n++;
    if (n == 0 || word + n == p->end || word[n] != ')' ||
        contradicts(p->t, left, word, n))
        return 0;
    p->p = word + n + 1;
    return kg_math_leaf(p->t, KG_MATH_WORDS, 0, word, n);
}
