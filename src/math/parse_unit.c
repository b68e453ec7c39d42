/* Units in plain writing that are made of several: m/s, km/h, m/s^2.
 *
 * A single letter may be a name as well, so that it is a unit only inside of such a
 * quotient, and only where the whole quotient is made of units: `5 m/s` has one, `5 m/x`
 * has none. A unit that stands alone is the table of words' to know.
 */
#include "math/parse_internal.h"

#include <ctype.h>
#include <string.h>

enum { ABOVE = 1, BELOW = 2 }; /* where in a quotient it stands */

/* What stands in quotients beside the words of the table of words. */
static const struct unit {
    const char *name;
    int places;
} units[] = {
    {"m", ABOVE | BELOW},   {"s", BELOW},          {"h", BELOW},
    {"g", ABOVE},           {"N", ABOVE},          {"J", ABOVE},
    {"W", ABOVE},           {"V", ABOVE},          {"L", ABOVE | BELOW},
    {"K", BELOW},           {"hr", BELOW},         {"min", BELOW},
    {"sec", BELOW},         {"ms", BELOW},         {"mi", ABOVE},
    {"mg", ABOVE},          {"lb", ABOVE | BELOW}, {"mol", ABOVE | BELOW},
    {"gal", ABOVE | BELOW}, {"ml", ABOVE | BELOW},
};

static bool is_unit(const char *name, size_t n, int place)
{
    const struct kg_math_command *row = kg_math_word_find(name, n);

    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strlen(units[i].name) == n && memcmp(units[i].name, name, n) == 0)
            return units[i].places & place;
    }
    return row && row->group == KG_MATH_G_UNIT;
}

/* A walk over the text of a unit. */
struct reader {
    const char *at;
    const char *end;
    int braces; /* open ones of \mathrm{ and its kin */
};

static bool eat(struct reader *r, const char *text)
{
    size_t n = strlen(text);

    if ((size_t)(r->end - r->at) < n || memcmp(r->at, text, n) != 0)
        return false;
    r->at += n;
    return true;
}

/* Blanks, and the styles that a unit may be set in. */
static void skip_style(struct reader *r)
{
    for (;;) {
        if (eat(r, "\\mathrm{") || eat(r, "\\text{") || eat(r, "\\textrm{"))
            r->braces++;
        else if (r->braces > 0 && eat(r, "}"))
            r->braces--;
        else if (!eat(r, " ") && !eat(r, "~"))
            return;
    }
}

/* "^2", "^{2}", "^{-1}", or nothing.   returns false for other powers */
static bool eat_power(struct reader *r)
{
    bool braces;

    if (!eat(r, "^"))
        return true;
    braces = eat(r, "{");
    eat(r, "-");
    if (r->at == r->end || !isdigit((unsigned char)*r->at++))
        return false;
    return !braces || eat(r, "}");
}

/* One unit with its power. */
static bool eat_unit(struct reader *r, int place)
{
    const char *from;

    skip_style(r);
    from = r->at;
    while (r->at < r->end && isalpha((unsigned char)*r->at))
        r->at++;
    if (r->at == from || !is_unit(from, (size_t)(r->at - from), place))
        return false;
    if (!eat_power(r))
        return false;
    while (r->braces > 0 && eat(r, "}"))
        r->braces--;
    return eat_power(r); /* \mathrm{s}^2 */
}

/* The end of the quotient of units that starts at `at`, NULL for none. */
static const char *quotient_end(const char *at, const char *end)
{
    struct reader r = {at, end, 0};

    if (!eat_unit(&r, ABOVE))
        return NULL;
    skip_style(&r);
    if (!eat(&r, "/") || !eat_unit(&r, BELOW) || r.braces > 0)
        return NULL;
    at = r.at;
    skip_style(&r);
    if (r.at < end && (isalnum((unsigned char)*r.at) || kg_char_in("(^_/*", *r.at)))
        return NULL;
    return at;
}

int kg_math_parse_unit(struct kg_math_parser *p, int left)
{
    char c = kg_math_look(p);
    const char *from = p->p;
    const char *to;
    int words;

    if (c != '\\' && !(isalpha((unsigned char)c) && isspace((unsigned char)from[-1])))
        return 0;
    to = p->t->nodes[left].kind == KG_MATH_UNIT ? NULL : quotient_end(from, p->end);
    if (!to)
        return 0;
    words = kg_math_leaf(p->t, KG_MATH_WORDS, 0, from, (size_t)(to - from));
    p->p = to;
    return words;
}

/* ---- words in brackets ---- */

/* Whether the word is a number that is not the one at node: 5 (six). */
static bool contradicts(const struct kg_math_tree *t, int node, const char *word,
                        size_t n)
{
    static const char *const numbers[] = {"zero", "one",    "two",   "three", "four",
                                          "five", "six",    "seven", "eight", "nine",
                                          "ten",  "eleven", "twelve"};

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char digits[4] = {(char)('0' + i % 10), 0};

        if (i >= 10) {
            digits[0] = '1';
            digits[1] = (char)('0' + i - 10);
        }
        if (strlen(numbers[i]) == n && strncasecmp(numbers[i], word, n) == 0)
            return strcmp(digits, kg_math_leaf_text(t, node)) != 0;
    }
    return n < 4; /* a product of letters, as far as one can tell */
}

int kg_math_parse_bracketed_word(struct kg_math_parser *p, int left)
{
    const char *word;
    size_t n = 0;

    if (kg_math_look(p) != '(' || !isspace((unsigned char)p->p[-1]) ||
        p->t->nodes[left].kind != KG_MATH_NUM)
        return 0;
    word = p->p + 1;
    while (word + n < p->end && isalpha((unsigned char)word[n]))
        n++;
    if (n == 0 || word + n == p->end || word[n] != ')' ||
        contradicts(p->t, left, word, n))
        return 0;
    p->p = word + n + 1;
    return kg_math_leaf(p->t, KG_MATH_WORDS, 0, word, n);
}
