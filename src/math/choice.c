/* Finds the letter of a multiple-choice answer.
 *
 * It is the first of these that occurs: the last letter that is announced ("the answer
 * is", \boxed{}), the last after the word option ("option C"), the last that is marked
 * ("(C)", "C.", **C**, alone on its line), the first at the start of a line, the last
 * single letter. A letter that is ruled out ("not A", "A is wrong") does not count, and A
 * and I before another word are words.
 */
#include "math/math_internal.h"

#include <ctype.h>
#include <string.h>

struct letter {
    char name;   /* 'A' to 'J', 0 for none */
    bool marked; /* by brackets, a full stop, emphasis, or a line of its own */
    size_t from; /* range of the letter with its marks */
    size_t to;
};

/* ---- reading words ---- */

/* The byte at i; beyond the text, a line break. */
static char at(struct kg_math_text t, size_t i) { return i < t.n ? t.text[i] : '\n'; }

static bool is_letter(char c) { return isalpha((unsigned char)c) != 0; }

static bool is_blank(char c) { return isspace((unsigned char)c) != 0; }

static size_t word_length(struct kg_math_text t, size_t i)
{
    size_t n = 0;

    while (is_letter(at(t, i + n)) || (n > 0 && at(t, i + n) == '\''))
        n++;
    return n;
}

/* Whether the list has the word, ignoring case; its words have spaces around them. */
static bool is_one_of(const char *list, const char *word, size_t n)
{
    char spaced[16] = " ";

    if (n == 0 || n + 3 > sizeof spaced)
        return false;
    for (size_t i = 0; i < n; i++)
        spaced[1 + i] = (char)tolower((unsigned char)word[i]);
    spaced[n + 1] = ' ';
    return strstr(list, spaced) != NULL;
}

static size_t skip_blanks(struct kg_math_text t, size_t i)
{
    while (i < t.n && is_blank(t.text[i]))
        i++;
    return i;
}

/* ---- one letter ---- */

static bool starts_line(struct kg_math_text t, size_t i)
{
    while (i > 0 && kg_char_in(" *[(", t.text[i - 1]))
        i--;
    return i == 0 || t.text[i - 1] == '\n';
}

static bool ends_line(struct kg_math_text t, size_t i)
{
    while (i < t.n && kg_char_in(" *.)]:", t.text[i]))
        i++;
    return at(t, i) == '\n';
}

/* Whether a round bracket is open before i in its line: "(a, b)" is not choice b. */
static bool in_brackets(struct kg_math_text t, size_t i)
{
    for (size_t k = 0; k < 100 && i-- > 0 && t.text[i] != '\n'; k++) {
        if (kg_char_in("()", t.text[i]))
            return t.text[i] == '(';
    }
    return false;
}

/* Whether the letter at i is marked.   *out <- the range of its marks */
static bool is_marked(struct kg_math_text t, size_t i, struct letter *out)
{
    char before = i > 0 ? t.text[i - 1] : '\n';
    char after = at(t, i + 1);
    bool free = is_blank(before) || kg_char_in("*\"'`:", before);
    bool upper = isupper((unsigned char)t.text[i]);

    if (kg_char_in("([", before) && kg_char_in(")]", after) &&
        (i < 2 || !isalnum((unsigned char)t.text[i - 2]))) {
        *out = (struct letter){0, true, i - 1, i + 2};
        return true;
    }
    *out = (struct letter){0, true, i, i + 2};
    if (free && after == ')')
        return !in_brackets(t, i);
    if (!upper)
        return false;
    if (i > 1 && before == '*' && after == '*')
        return t.text[i - 2] == '*' && at(t, i + 2) == '*';
    if (free && after == '.')
        return is_blank(at(t, i + 2)) || at(t, i + 2) == '*';
    out->to = i + 1;
    return starts_line(t, i) && (after == ':' || ends_line(t, i + 1));
}

/* The A of "A man", the I of "I think": a word; but the A of "A is right" is a choice. */
static bool is_word(struct kg_math_text t, size_t i)
{
    static const char behind[] = " is was because since as for but or and nor not with "
                                 "which by due would must should seems fits matches ";
    size_t next = skip_blanks(t, i + 1);
    size_t n = word_length(t, next);

    if (t.text[i] == 'I')
        return next > i + 1 && n > 0;
    return t.text[i] == 'A' && next > i + 1 && islower((unsigned char)at(t, next)) &&
           !is_one_of(behind, t.text + next, n);
}

/* The A of A + B and of A = 5 is a name. */
static bool is_operand(struct kg_math_text t, size_t i)
{
    size_t next = i + 1;

    while (at(t, next) == ' ')
        next++;
    if (kg_char_in("+/^=<>_", at(t, next)) ||
        (at(t, next) == '\\' && is_letter(at(t, next + 1))))
        return true;
    while (i > 0 && t.text[i - 1] == ' ')
        i--;
    return i > 0 && kg_char_in("+-/^<>_", t.text[i - 1]);
}

/* Whether c, before `next`, is part of a word, as the apostrophe of "A's" is. */
static bool in_word(char c, char next)
{
    return isalnum((unsigned char)c) || (c == '\'' && is_letter(next));
}

/* The choice letter at i (name 0: none). A lower-case letter must be marked. */
static struct letter letter_at(struct kg_math_text t, size_t i)
{
    char c = i < t.n ? t.text[i] : 0;
    struct letter l = {0};
    bool alone = !in_word(at(t, i + 1), at(t, i + 2)) &&
                 (i == 0 || !(in_word(t.text[i - 1], i > 1 ? t.text[i - 2] : ' ') ||
                              kg_char_in("\\_", t.text[i - 1])));

    if (!alone || toupper((unsigned char)c) < 'A' || toupper((unsigned char)c) > 'J')
        return l;
    if (!is_marked(t, i, &l)) {
        l = (struct letter){0, false, i, i + 1};
        if (islower((unsigned char)c) || is_word(t, i) || is_operand(t, i))
            return l;
    }
    l.name = (char)toupper((unsigned char)c);
    return l;
}

/* ---- words around a letter ---- */

/* The start of the word before i, after skipping marks and spaces.   *n <- its bytes */
static size_t word_before(struct kg_math_text t, size_t i, size_t *n)
{
    while (i > 0 && kg_char_in(" (*[\"`", t.text[i - 1]))
        i--;
    size_t end = i;
    while (i > 0 && end - i < 16 && (is_letter(t.text[i - 1]) || t.text[i - 1] == '\''))
        i--;
    *n = end - i;
    return i;
}

/* "not A", "can't be A or B", "eliminate option A", "A is wrong" */
static bool is_ruled_out(struct kg_math_text t, const struct letter *l)
{
    static const char steps[] = " be option choice answer letter or and nor either a b c "
                                "d e f g h j options ";
    static const char before[] = " not cannot neither than eliminate eliminates "
                                 "eliminating out exclude excluding except unlike ";
    static const char after[] = " wrong incorrect not false too impossible out ";
    size_t i = l->from;
    size_t n;

    for (int steps_left = 8; steps_left > 0; steps_left--) {
        i = word_before(t, i, &n);
        if (!is_one_of(steps, t.text + i, n))
            break;
    }
    if (is_one_of(before, t.text + i, n) ||
        (n > 3 && strncasecmp(t.text + i + n - 3, "n't", 3) == 0))
        return true;
    i = skip_blanks(t, l->to);
    n = word_length(t, i);
    if (is_one_of(" isn't can't cannot ", t.text + i, n))
        return true;
    if (!is_one_of(" is was are ", t.text + i, n))
        return false;
    i = skip_blanks(t, i + n);
    return is_one_of(after, t.text + i, word_length(t, i));
}

/* Whether the letter is joined to another: "A or B", "A, B". */
static bool is_one_of_several(struct kg_math_text t, const struct letter *l)
{
    size_t i = l->to;
    size_t n;

    while (i < t.n && kg_char_in("*)]} ", t.text[i]))
        i++;
    n = kg_char_in(",/&", at(t, i)) ? 1 : word_length(t, i);
    if (n != 1 && !is_one_of(" or and ", t.text + i, n))
        return false;
    if (n == 1 && is_letter(at(t, i)))
        return false;
    i = skip_blanks(t, i + n);
    while (at(t, i) == '(' || at(t, i) == '*')
        i++;
    if (!letter_at(t, i).name)
        return false;
    size_t next = skip_blanks(t, i + 1);
    n = word_length(t, next);
    return n == 0 || is_one_of(" or and ", t.text + next, n);
}

/* ---- announced letters ---- */

/* Skips words between an announcing word and the letter.   *strong: if "is" or ":" */
static size_t skip_lead(struct kg_math_text t, size_t i, bool *strong)
{
    static const char links[] = " is be was are ";
    static const char idle[] = " would must should the option choice letter therefore "
                               "thus clearly probably most likely definitely indeed ";
    static const char *const styles[] = {"\\boxed{",  "\\text{", "\\textbf{", "\\mathrm{",
                                         "\\mathbf{", "\\(",     "\\["};

    for (int steps = 0; steps < 12; steps++) {
        size_t from = i;
        size_t n;

        for (size_t k = 0; k < sizeof styles / sizeof *styles; k++) {
            n = strlen(styles[k]);
            if (t.n - i >= n && memcmp(t.text + i, styles[k], n) == 0)
                i += n;
        }
        for (; i < t.n && (is_blank(t.text[i]) || kg_char_in("*:=\"'`$({[,", t.text[i]));
             i++)
            *strong = *strong || kg_char_in(":=", t.text[i]);
        n = word_length(t, i);
        if (n > 1 &&
            (is_one_of(links, t.text + i, n) || is_one_of(idle, t.text + i, n))) {
            *strong = *strong || is_one_of(links, t.text + i, n);
            i += n;
        }
        if (i == from)
            break;
    }
    return i;
}

/* Bytes of an announcing word at i, or 0.   *strong <- whether it is \boxed */
static size_t announcer(struct kg_math_text t, size_t i, bool *strong)
{
    size_t n;

    *strong = t.n - i >= 6 && memcmp(t.text + i, "\\boxed", 6) == 0;
    if (*strong)
        return 6;
    if (i > 0 && is_letter(t.text[i - 1]))
        return 0;
    n = word_length(t, i);
    return is_one_of(" answer option choice ", t.text + i, n) ? n : 0;
}

/* The last announced letter; '?' if it is one of several. strong: by "is", ":" or \boxed,
 * not only by a word such as "option". */
static char announced(struct kg_math_text t, bool strong)
{
    char found = 0;

    for (size_t i = 0; i < t.n; i++) {
        bool says;
        size_t n = kg_char_in("aAoOcC\\", t.text[i]) ? announcer(t, i, &says) : 0;

        if (n == 0)
            continue;
        struct letter l = letter_at(t, skip_lead(t, i + n, &says));
        if (!l.name || says != strong || is_ruled_out(t, &l))
            continue;
        found = is_one_of_several(t, &l) ? '?' : l.name;
    }
    return found;
}

/* ---- letters that nothing announces ---- */

/* Whether the letter starts a line with more text, which may be an item of a list of
 * options. */
static bool is_row(struct kg_math_text t, const struct letter *l)
{
    return l->marked && starts_line(t, l->from) && !ends_line(t, l->to);
}

/* Whether there is a list of options: items with different letters. */
static bool has_list(struct kg_math_text t)
{
    char first = 0;

    for (size_t i = 0; i < t.n; i++) {
        struct letter l = letter_at(t, i);

        if (!l.name || !is_row(t, &l))
            continue;
        if (first && first != l.name)
            return true;
        first = l.name;
    }
    return false;
}

/* The last marked letter, the first that starts a line, or the last of all except I.
 * list: items of a list do not count. */
enum where { MARKED, LEADING, ANYWHERE };
static char standing(struct kg_math_text t, enum where where, bool list)
{
    char found = 0;

    for (size_t i = 0; i < t.n; i++) {
        struct letter l = letter_at(t, i);

        if (!l.name || (list && is_row(t, &l)) || is_ruled_out(t, &l))
            continue;
        if (where == LEADING && starts_line(t, l.from))
            return l.name;
        if ((where == MARKED && l.marked) || (where == ANYWHERE && l.name != 'I'))
            found = l.name;
    }
    return found;
}

/* The letter after an announcement, which may be in another language. */
static char behind_anchor(struct kg_math_text t)
{
    struct kg_math_text rest;
    bool strong = false;

    if (!kg_math_behind_anchor(&rest, t))
        return 0;
    return letter_at(rest, skip_lead(rest, 0, &strong)).name;
}

char kg_math_choice(const char *text, size_t n)
{
    struct kg_math_text t = kg_math_trimmed(kg_math_tail((struct kg_math_text){text, n}));
    char found = announced(t, true);

    if (!found)
        found = behind_anchor(t);
    if (!found)
        found = announced(t, false);
    bool list = !found && has_list(t);
    for (int where = MARKED; !found && where <= ANYWHERE; where++)
        found = standing(t, (enum where)where, list);
    return found == '?' ? 0 : found;
}
