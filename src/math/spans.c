/* How far numbers and formulas extend in running text ("The area is 3\sqrt{2} cm"). Bytes
 * are read as values and operators in turn. An operator continues the span; a second
 * value after a blank does so only if it can be a factor. A letter that is also a word
 * (a, A, I) or a unit (m, s, g) cannot. Text without any command has no formula. The
 * span ends with the last value, before a hyphen or full stop. */
#include "math/math_internal.h"

#include <ctype.h>
#include <string.h>

enum { MAX_GROUP = 1024 }; /* bytes of an argument that are read */

size_t kg_math_brace_end(const char *text, size_t n)
{
    int depth = 0;

    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\\' && i + 1 < n) {
            i++;
            continue;
        }
        depth += (text[i] == '{') - (text[i] == '}');
        if (depth == 0)
            return i;
    }
    return n;
}

/* ---- numbers ---- */

/* Bytes of a thousands separator ("," or "{,}" or ",\!") that a digit follows; or 0. */
static size_t comma(const char *p, const char *end)
{
    static const char *const commas[] = {"{,}", ",\\!", ","};

    for (size_t i = 0; i < sizeof commas / sizeof *commas; i++) {
        size_t n = strlen(commas[i]);

        if ((size_t)(end - p) > n && memcmp(p, commas[i], n) == 0 &&
            kg_math_digit_at(p + n, end))
            return n;
    }
    return 0;
}

/* Bytes of the repeating digits ".(3)" at p; 0 for none. */
static size_t repeating(const char *p, const char *end)
{
    const char *at = p + 2;

    if (end - p < 4 || p[0] != '.' || p[1] != '(')
        return 0;
    while (kg_math_digit_at(at, end))
        at++;
    return at > p + 2 && at < end && *at == ')' ? (size_t)(at + 1 - p) : 0;
}

const char *kg_math_number_end(const char *p, const char *end)
{
    const char *from = p;

    for (;;) {
        size_t step = kg_math_digit_at(p, end) ||
                      (p < end && *p == '.' && kg_math_digit_at(p + 1, end));

        if (!step && p > from)
            step = comma(p, end);
        if (!step && p > from && repeating(p, end))
            return p + repeating(p, end);
        if (!step)
            break;
        p += step;
    }
    if (p > from && p < end && (*p == 'e' || *p == 'E') &&
        (kg_math_digit_at(p + 1, end) ||
         (p + 1 < end && (p[1] == '-' || p[1] == '+') && kg_math_digit_at(p + 2, end)))) {
        for (p += 2; kg_math_digit_at(p, end);)
            p++;
    }
    return p;
}

size_t kg_math_sign_word(struct kg_math_text t)
{
    static const char *const signs[] = {"negative ", "minus "};

    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        if (t.n > strlen(signs[i]) &&
            strncasecmp(t.text, signs[i], strlen(signs[i])) == 0)
            return strlen(signs[i]);
    }
    return 0;
}

bool kg_math_is_number_words(struct kg_math_text t)
{
    size_t from = kg_math_sign_word(t);
    bool any = false;

    while (t.n > from && t.text[t.n - 1] == '.')
        t.n--;
    for (size_t i = from; i < t.n; i++) {
        size_t word = i;

        while (i < t.n && isalpha((unsigned char)t.text[i]))
            i++;
        const struct kg_math_command *row = kg_math_beside_find(t.text + word, i - word);
        if ((i < t.n && !kg_char_in(" -", t.text[i])) ||
            (i > word && !(row && (row->group == KG_MATH_G_NUMBER ||
                                   (any && (row->group == KG_MATH_G_SCALE ||
                                            row->group == KG_MATH_G_AND ||
                                            row->group == KG_MATH_G_QUALIFIER))))))
            return false;
        any = any || i > word;
    }
    return any;
}

/* ---- formulas ---- */

/* The group of the command at p.   *n <- its bytes with its arguments, 0 if one of them
 * is not closed */
static enum kg_math_group command_at(size_t *n, const char *p, const char *end)
{
    const char *at = p + 1;

    *n = 0;
    if (p == end || *p != '\\')
        return KG_MATH_G_SYMBOL;
    while (at < end && isalpha((unsigned char)*at))
        at++;
    const struct kg_math_command *row = kg_math_command_find(p + 1, (size_t)(at - p - 1));
    while (row && at < end && *at == '{') {
        size_t room = end - at < MAX_GROUP ? (size_t)(end - at) : MAX_GROUP;
        size_t close = kg_math_brace_end(at, room);

        if (close == room)
            return KG_MATH_G_SYMBOL;
        at += close + 1;
    }
    *n = (size_t)(at - p);
    return row ? row->group : KG_MATH_G_SYMBOL;
}

size_t kg_math_value_command(const char *p, const char *end)
{
    size_t n;
    enum kg_math_group group = command_at(&n, p, end);

    return group == KG_MATH_G_FRAC || group == KG_MATH_G_SQRT ||
                   group == KG_MATH_G_BINOM || group == KG_MATH_G_CONST
               ? n
               : 0;
}

/* Bytes of an operator at p; 0 for none. */
static size_t operator_at(const char *p, const char *end)
{
    size_t n;
    enum kg_math_group group = command_at(&n, p, end);

    if (kg_char_in("+-*/=^", *p))
        return 1;
    return group == KG_MATH_G_TIMES || group == KG_MATH_G_OVER || group == KG_MATH_G_PM
               ? n
               : 0;
}

/* Bytes of a value without command at p: a number, a letter or, after ^, a group; 0 for
 * none. */
static size_t plain_value(const char *p, const char *end, char before)
{
    size_t room = end - p < MAX_GROUP ? (size_t)(end - p) : MAX_GROUP;
    size_t close;

    if (*p == '{' && before == '^') {
        close = kg_math_brace_end(p, room);
        return close < room ? close + 1 : 0;
    }
    if (isalpha((unsigned char)*p))
        return p + 1 == end || !isalpha((unsigned char)p[1]);
    return (size_t)(kg_math_number_end(p, end) - p);
}

/* Whether the letter at p, after a space, is a factor: it cannot be a word or a unit, or
 * it has a power. */
static bool starts_factor(const char *p, const char *end)
{
    return isalpha((unsigned char)*p) &&
           (!kg_char_in("aAImsghL", *p) || (p + 1 < end && p[1] == '^'));
}

const char *kg_math_bare_end(const char *p, const char *end)
{
    const char *from = p;
    const char *last = p;
    bool joined = true; /* the next value continues the span even after spaces */
    bool command = false;

    while (p < end) {
        size_t n = kg_math_value_command(p, end);

        command = command || n;
        if (!n && (joined || p == last || starts_factor(p, end)))
            n = plain_value(p, end, p > from ? p[-1] : ' ');
        if (n) {
            last = p += n;
            joined = false;
            continue;
        }
        n = operator_at(p, end);
        if (!n && *p != ' ')
            break;
        joined = joined || n;
        p += n ? n : 1;
    }
    return command ? last : from;
}
