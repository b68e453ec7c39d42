/* Whether a number in running text is not itself the answer, because the words around it
 * change the value ("less than 5", "the square root of 5", "5 out of 6") or because it is
 * part of a formula (x^5, \sum_{k=1}).
 *
 * Words count within the sentence, and only after the last word that states equality: in
 * "the square root of 25, which is 5", 5 is an answer.
 */
#include "math/math_internal.h"

#include <ctype.h>
#include <string.h>

static bool is_among(const char *words, const char *word, size_t n)
{
    char lower[16];

    if (n > sizeof lower)
        return false;
    for (size_t i = 0; i < n; i++)
        lower[i] = (char)tolower((unsigned char)word[i]);
    return kg_str_listed(words, lower, n);
}

static size_t word_length(const char *p, const char *end)
{
    const char *at = p;

    while (at < end && isalpha((unsigned char)*at))
        at++;
    return (size_t)(at - p);
}

static bool altered_before(const char *start, const char *at)
{
    static const char altering[] =
        " than root reciprocal negative except cannot never half third quarter double "
        "twice triple thrice inverse opposite square cube factorial logarithm least most "
        "above below under over between minus plus power multiple divided multiplied "
        "without excluding isn neither nor either sum product difference quotient "
        "remainder after before from next near close far unequal different log ";
    static const char equating[] =
        " is are was were has have had equals equal get gets gives so thus therefore "
        "hence there makes leaves becomes costs ";
    bool altered = false;
    bool number = false; /* seen: "not 5 but 6", unlike "anything but 5" */

    for (const char *p = start; p < at;) {
        size_t n = word_length(p, at);

        number = number || isdigit((unsigned char)*p);
        if (is_among(" but ", p, n))
            altered = !number;
        else if (is_among(altering, p, n))
            altered = true;
        else if (is_among(equating, p, n) || kg_char_in(".;:=\n", *p))
            altered = false;
        p += n ? n : 1;
    }
    return altered;
}

/* Whether the word before "of" is not a quantity: "a total of 5" is 5, "the sine of 5" is
 * not 5. */
static bool is_argument(const char *start, const char *at)
{
    static const char quantities[] =
        " total value answer result amount cost price number length area volume speed "
        "rate profit loss maximum minimum distance average mean score probability radius "
        "height width depth age weight perimeter population salary percentage discount ";

    while (at > start && kg_char_in(" *$\\(", at[-1]))
        at--;
    if (at - start < 3 || strncasecmp(at - 3, " of", 3) != 0)
        return false;
    at -= 3;
    const char *end = at;
    while (at > start && isalpha((unsigned char)at[-1]))
        at--;
    return !is_among(quantities, at, (size_t)(end - at));
}

static bool altered_behind(const char *p, const char *end)
{
    static const char altering[] = " out away to raised choose factorial or over below "
                                   "above plus mod modulo multiplied ";
    static const char joining[] = " of in from "; /* 5 of 6 */

    while (p < end && kg_char_in(" *$", *p))
        p++;
    size_t n = word_length(p, end);
    if (is_among(altering, p, n))
        return true;
    return is_among(joining, p, n) && p + n + 1 < end && isdigit((unsigned char)p[n + 1]);
}

/* Whether a brace is opened after p and not closed. */
static bool is_cut_off(const char *p, const char *end)
{
    int depth = 0;

    for (; p < end; p++)
        depth += (*p == '{') - (*p == '}');
    return depth > 0;
}

bool kg_math_is_altered(const char *start, struct kg_math_text number, bool formula,
                        const char *end)
{
    const char *at = number.text;
    const char *behind = at + number.n;

    if (!formula &&
        ((at > start && kg_char_in("_^{}", at[-1])) ||
         (behind < end && kg_char_in("_^{}", *behind)) ||
         (behind < end && kg_char_in("xyz", *behind) && word_length(behind, end) == 1)))
        return true;
    return is_cut_off(behind, end) || altered_before(start, at) ||
           is_argument(start, at) || altered_behind(behind, end);
}
