/* Finds the answer in a response.
 *
 * It is the first of these that occurs: "the final answer is .. I hope" (a form that many
 * prompts request), the last \boxed{} with those that belong to it, the whole text if it
 * is a bare answer, the text after the last "answer:" or "answer is", the last formula or
 * number.
 */
#include "math/math_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ---- searching in text ---- */

static bool starts_with(const char *text, size_t n, const char *word)
{
    size_t len = strlen(word);

    return len <= n && strncasecmp(text, word, len) == 0;
}

/* The last occurrence of word, ignoring case; NULL if there is none. */
static const char *last_of(const char *text, size_t n, const char *word)
{
    for (size_t i = n; i-- > 0;) {
        if (starts_with(text + i, n - i, word))
            return text + i;
    }
    return NULL;
}

/* Whether "not", but not "or not", precedes text[at]; delimiters between are ignored. */
static bool is_denied(const char *text, size_t at)
{
    while (at > 0 && kg_char_in(" $\\(*", text[at - 1]))
        at--;
    if (at < 3 || strncasecmp(text + at - 3, "not", 3) != 0 ||
        (at > 3 && isalpha((unsigned char)text[at - 4])))
        return false;
    return at < 6 || strncasecmp(text + at - 6, "or ", 3) != 0;
}

static const char *find_text(const char *text, size_t n, const char *what)
{
    size_t len = strlen(what);

    for (size_t i = 0; i + len <= n; i++) {
        if (memcmp(text + i, what, len) == 0)
            return text + i;
    }
    return NULL;
}

/* ---- boxes ---- */

struct box {
    size_t from; /* offset of the command */
    size_t to;   /* offset after the closing brace */
    const char *text;
    size_t n;
};

/* Whether text[i] is inside $..$, judged by the 512 bytes of its line before it. */
static bool in_dollars(const char *text, size_t i)
{
    bool in = false;

    for (size_t k = i; k > 0 && i - k < 512 && text[k - 1] != '\n'; k--)
        in ^= text[k - 1] == '$' && !(k > 1 && text[k - 2] == '\\');
    return in;
}

/* A box without braces: \boxed 42, \boxed\frac12. It ends at a $ or the end of the line;
 * outside a formula also at a space. */
static bool bare_box(struct box *out, const char *text, size_t n, size_t i, size_t from)
{
    bool formula = in_dollars(text, i);
    size_t end = from;

    if (from == n ||
        !(isdigit((unsigned char)text[from]) || kg_char_in("\\-+.([", text[from]) ||
          (isalpha((unsigned char)text[from]) &&
           !(from + 1 < n && isalpha((unsigned char)text[from + 1])))))
        return false;
    while (end < n && !kg_char_in("$\n", text[end]) && (formula || text[end] != ' '))
        end++;
    while (end > from && kg_char_in(" .,;:!*", text[end - 1]))
        end--;
    *out = (struct box){i, end, text + from, end - from};
    return end > from;
}

/* The box whose command starts at text[i]. bare: also \framebox, or without braces. */
static bool box_at(struct box *out, const char *text, size_t n, size_t i, bool bare)
{
    static const char *const names[] = {"\\boxed", "\\fbox", "\\framebox"};
    size_t brace = i;

    for (size_t k = 0; k < (bare ? 3 : 2) && brace == i; k++) {
        if (starts_with(text + i, n - i, names[k]))
            brace = i + strlen(names[k]);
    }
    if (brace == i)
        return false;
    while (brace < n && text[brace] == ' ')
        brace++;
    if (brace == n || text[brace] != '{')
        return bare && bare_box(out, text, n, i, brace);
    size_t room = n - brace < KG_MATH_MAX_STRING ? n - brace : KG_MATH_MAX_STRING;
    size_t end = brace + kg_math_brace_end(text + brace, room);
    if (end == brace + room)
        return false;
    *out = (struct box){i, end + 1, text + brace + 1, end - brace - 1};
    return true;
}

static bool last_box(struct box *out, const char *text, size_t n, bool bare)
{
    for (size_t i = n; i-- > 0;) {
        if (text[i] == '\\' && box_at(out, text, n, i, bare))
            return true;
    }
    return false;
}

/* The last box that no "not" precedes: "\boxed{6} (not \boxed{5})" has the answer 6. */
static bool last_meant_box(struct box *out, const char *text, size_t n)
{
    do {
        if (!last_box(out, text, n, true))
            return false;
        n = out->from;
    } while (is_denied(text, out->from));
    return true;
}

const char *kg_math_last_boxed(const char *text, size_t n, size_t *len)
{
    struct box box;

    if (n > KG_MATH_MAX_RESPONSE) {
        text += n - KG_MATH_MAX_RESPONSE;
        n = KG_MATH_MAX_RESPONSE;
    }
    if (!last_box(&box, text, n, false))
        return NULL;
    *len = box.n;
    return box.text;
}

/* Whether the text between two boxes makes them one answer: below 200 bytes, no empty
 * line, and no word but one "and" or "or" (commands and \text{} do not count). */
static bool joins_boxes(const char *text, size_t n)
{
    int words = 0;

    for (size_t i = 0; i < n;) {
        size_t len = 0;

        if (text[i] == '\\' && starts_with(text + i, n - i, "\\text{")) {
            i += 5 + kg_math_brace_end(text + i + 5, n - i - 5) + 1;
            continue;
        }
        while (i + len < n && isalpha((unsigned char)text[i + len]))
            len++;
        if (len > 1 && (i == 0 || text[i - 1] != '\\')) {
            if (!(len == 3 && starts_with(text + i, len, "and")) &&
                !(len == 2 && starts_with(text + i, len, "or")))
                return false;
            words++;
        }
        if (text[i] == '\n' && i + 1 < n && text[i + 1] == '\n')
            return false;
        i += len ? len : 1;
    }
    return words <= 1 && n < 200;
}

/* Whether the last box was cut off: \boxed{12 without its brace. An earlier box is then
 * not the answer. */
static bool ends_in_open_box(struct kg_math_text t)
{
    struct box box;
    size_t i = t.n;

    while (i-- > 0 &&
           !(t.text[i] == '\\' && starts_with(t.text + i, t.n - i, "\\boxed{")))
        ;
    return i < t.n && !box_at(&box, t.text, t.n, i, false);
}

static kg_status put_boxes(struct kg_math_found *found, const char *text, size_t n,
                           struct kg_err *err)
{
    struct box boxes[16];
    size_t count = 0;
    size_t end = n;

    while (count < 16 && last_meant_box(&boxes[count], text, end)) {
        if (count > 0 &&
            !joins_boxes(text + boxes[count].to, boxes[count - 1].from - boxes[count].to))
            break;
        end = boxes[count++].from;
    }
    for (size_t i = count; i-- > 0;) {
        KG_TRY(kg_str_append(&found->text, boxes[i].text, boxes[i].n, err));
        if (i)
            KG_TRY(kg_str_puts(&found->text, ", ", err));
    }
    found->any = count > 0;
    return KG_OK;
}

/* ---- running text or formula ---- */

/* Bytes of the UTF-8 letter of running text (Arabic, CJK, ..) at text; 0 if none. */
static size_t foreign_letter(const char *text, size_t n)
{
    unsigned char c = (unsigned char)text[0];

    if (c >= 0xe3 && c < 0xf0 && n >= 3)
        return c == 0xe3 && (unsigned char)text[1] == 0x80 ? 0 : 3;
    if (c >= 0xd8 && c <= 0xdf && n >= 2)
        return 2;
    return 0;
}

/* The position after the command whose backslash is at text[i], and after its argument if
 * that is not a formula: \text{..}, \mathrm{..}, \begin{..}. */
static size_t skip_command(const char *text, size_t n, size_t i)
{
    while (i < n && text[i] == '\\')
        i++;
    size_t from = i;
    while (i < n && isalpha((unsigned char)text[i]))
        i++;
    if (i == from)
        return i < n ? i + 1 : n;
    const struct kg_math_command *row = kg_math_command_find(text + from, i - from);
    if (i < n && text[i] == '{' &&
        ((row && (row->group == KG_MATH_G_TEXT || row->group == KG_MATH_G_STYLE ||
                  row->group == KG_MATH_G_OPERATOR)) ||
         starts_with(text + from, i - from, "begin") ||
         starts_with(text + from, i - from, "end")))
        i += kg_math_brace_end(text + i, n - i);
    return i < n ? i : n;
}

/* Whether the word is running text: not in capitals (AB is a segment), not known to the
 * parser, and with two letters only if very common (dt is a product). */
static bool is_running(const char *text, size_t len)
{
    static const char shortest[] = " is of to so we be by if no he it as us my la le de ";
    char spaced[5] = {' ', (char)tolower((unsigned char)text[0]),
                      len == 2 ? text[1] : ' ', ' ', 0};
    bool lower = false;

    if (len == 2)
        return strstr(shortest, spaced) != NULL;
    for (size_t i = 0; i < len; i++)
        lower = lower || islower((unsigned char)text[i]);
    for (size_t i = 1; i < len; i++) {
        if (isupper((unsigned char)text[i]))
            return false; /* RCs is a product */
    }
    const struct kg_math_command *row = kg_math_word_find(text, len);
    return len > 2 && lower &&
           (!row || row->group == KG_MATH_G_QUALIFIER || row->group == KG_MATH_G_SCALE ||
            row->group == KG_MATH_G_ABOUT);
}

/* The number of words of running text outside \text{} and similar commands; 99 if a colon
 * follows one, or for foreign letters. */
static int running_words(const char *text, size_t n)
{
    int words = 0;

    for (size_t i = 0; i < n;) {
        size_t len = 0;

        if (foreign_letter(text + i, n - i))
            return 99;
        if (text[i] == '\\') {
            i = skip_command(text, n, i);
            continue;
        }
        while (i + len < n && isalpha((unsigned char)text[i + len]))
            len++;
        if (is_running(text + i, len)) {
            if (i + len < n && text[i + len] == ':' && len > 2)
                return 99;
            words++;
        }
        i += len ? len : 1;
    }
    return words;
}

bool kg_math_is_prose(struct kg_math_text t)
{
    return t.n > 0 && running_words(t.text, t.n) >= 1;
}

/* ---- candidates: formulas and numbers in running text ---- */

struct candidate {
    const char *text;
    size_t n;
    const char *end; /* after the candidate and its closing delimiter */
    bool formula;
    bool bare; /* a formula without delimiters */
};

struct delimiters {
    const char *open;
    const char *close;
};
static const struct delimiters delimiters[] = {
    {"$$", "$$"},
    {"$", "$"},
    {"\\(", "\\)"},
    {"\\[", "\\]"},
    {"\\begin{align*}", "\\end{align*}"},
    {"\\begin{align}", "\\end{align}"},
    {"\\begin{equation}", "\\end{equation}"},
    {"\\begin{equation*}", "\\end{equation*}"},
};

enum { DELIMITERS = sizeof delimiters / sizeof *delimiters };

/* An iterator over the candidates of a text. clear[i]: no closing delimiter i starts
 * between `at` and there, so that unclosed openings are not searched repeatedly. */
struct walk {
    const char *start;
    const char *at;
    const char *end;
    const char *clear[DELIMITERS];
};

static struct walk walk_of(struct kg_math_text t)
{
    return (struct walk){.start = t.text, .at = t.text, .end = t.text + t.n};
}

static const char *find_between(const char *from, const char *end, const char *what)
{
    return from < end ? find_text(from, (size_t)(end - from), what) : NULL;
}

/* The closing delimiter for a formula whose inside starts at `inside`, or NULL. */
static const char *find_close(struct walk *w, size_t i, const char *inside)
{
    const char *limit = w->end - inside < KG_MATH_MAX_TEXT ? w->end
                                                           : inside + KG_MATH_MAX_TEXT;
    const char *from = w->clear[i] && w->clear[i] > inside ? w->clear[i] : inside;
    const char *close = delimiters[i].close;
    const char *found = find_between(from, limit, close);
    size_t tail = strlen(close) - 1;

    /* \$ is money, not a delimiter */
    while (found && *close == '$' && found > inside && found[-1] == '\\')
        found = find_between(found + 1, limit, close);

    /* a delimiter across the limit has not been seen */
    if (!found && (size_t)(limit - inside) > tail && limit - (ptrdiff_t)tail > from)
        w->clear[i] = limit - tail;
    return found;
}

/* Whether the text between dollar signs is running text between two sums of money: it has
 * two words or, between single signs, an empty line, or a line break and no command. */
static bool is_money(const struct candidate *c, bool single)
{
    return running_words(c->text, c->n) >= 2 ||
           (single && memchr(c->text, '\n', c->n) &&
            (!memchr(c->text, '\\', c->n) || find_text(c->text, c->n, "\n\n")));
}

static bool formula_at(struct candidate *out, struct walk *w, const char *p)
{
    for (size_t i = 0; i < DELIMITERS; i++) {
        const struct delimiters *d = &delimiters[i];
        size_t open = strlen(d->open);
        const char *inside = p + open;

        if ((size_t)(w->end - p) <= open || memcmp(p, d->open, open) != 0)
            continue;
        const char *close = find_close(w, i, inside);
        if (!close)
            continue;
        *out = (struct candidate){inside, (size_t)(close - inside),
                                  close + strlen(d->close), true, false};
        return out->n > 0 && !(d->open[0] == '$' && is_money(out, open == 1));
    }
    return false;
}

static const char *skip_blanks(const char *p, const char *end)
{
    while (p < end && *p == ' ')
        p++;
    return p;
}

/* The end of a run of numbers and operators at p: "35 + 70 = 105", "13/28", "28 %". */
static const char *run_end(const char *p, const char *end)
{
    const char *at = kg_math_number_end(p, end);

    while (at > p) {
        const char *next = skip_blanks(at, end);

        p = at;
        if (next < end && *next == '%') {
            at = p = next + 1;
            next = skip_blanks(at, end);
        }
        if (next == end || !kg_char_in("+-*/=^", *next))
            return p;
        next = skip_blanks(next + 1, end);
        if (next < end && *next == '-')
            next++;
        if (next < end && *next == '$')
            next++;
        const char *after = kg_math_number_end(next, end);
        at = after > next ? after : p;
    }
    return p;
}

/* A tuple in running text: "(7, 6)". */
static bool plain_tuple(struct candidate *out, const char *p, const char *end)
{
    const char *at = p + 1;
    bool comma = false;
    bool any = false;

    for (; at < end && *at != ')' && *at != ']'; at++) {
        comma = comma || *at == ',';
        any = any || isdigit((unsigned char)*at);
        if (!isdigit((unsigned char)*at) && !kg_char_in(" ,.-/+", *at))
            return false;
    }
    if (at == end || !comma || !any)
        return false;
    *out = (struct candidate){.text = p, .n = (size_t)(at + 1 - p), .end = at + 1};
    return true;
}

/* The number, run of numbers or tuple at p; `start` is where the text starts. */
static bool number_at(struct candidate *out, const char *start, const char *p,
                      const char *end)
{
    const char *from = p;

    if ((*p == '(' || *p == '[') && plain_tuple(out, p, end))
        return true;
    if (!kg_math_digit_at(p, end) && !(*p == '.' && kg_math_digit_at(p + 1, end)))
        return false;
    const char *to = run_end(p, end);
    while (from > start && (from[-1] == '$' || from[-1] == '\\'))
        from--;
    if (from > start && from[-1] == '-' &&
        (from - 1 == start || !(isalnum((unsigned char)from[-2]) || from[-2] == ')')))
        from--;
    else
        from = p;
    *out = (struct candidate){.text = from, .n = (size_t)(to - from), .end = to};
    return true;
}

/* The formula without delimiters at p, which begins with a command, or with a number
 * before one. It includes a minus sign before it. */
static bool bare_at(struct candidate *out, const char *start, const char *p,
                    const char *end)
{
    const char *from = p;

    if (*p == '\\' ? !kg_math_value_command(p, end) : !kg_math_digit_at(p, end))
        return false;
    const char *to = kg_math_bare_end(p, end);
    if (to == p)
        return false;
    if (from > start && from[-1] == '-' &&
        (from - 1 == start || isspace((unsigned char)from[-2])))
        from--;
    *out = (struct candidate){from, (size_t)(to - from), to, true, true};
    return true;
}

static bool next_candidate(struct candidate *out, struct walk *w)
{
    for (; w->at < w->end; w->at++) {
        const char *p = w->at;
        char before = p > w->start ? p[-1] : ' ';
        bool inside_word = isalpha((unsigned char)before) || before == '_';
        bool money = *p == '$' && before == '\\';

        if ((*p == '$' || *p == '\\') && !money && formula_at(out, w, p)) {
            w->at = out->end;
            return true;
        }
        if (*p == '\\' && p + 1 < w->end && kg_char_in("()[]", p[1])) {
            w->at++;
            continue;
        }
        if (!inside_word &&
            (bare_at(out, w->start, p, w->end) || number_at(out, w->start, p, w->end))) {
            w->at = out->end;
            return true;
        }
    }
    return false;
}

static bool has_digit(const struct candidate *c)
{
    for (size_t i = 0; i < c->n; i++) {
        if (isdigit((unsigned char)c->text[i]))
            return true;
    }
    return false;
}

/* Whether the formula is only a name: "the largest $n$ is" */
static bool is_mention(const struct candidate *c)
{
    return c->formula && c->n <= 2 && isalpha((unsigned char)c->text[0]);
}

/* Whether the text between two formulas has only separators, "and" or "or", so that both
 * belong to one answer. */
static bool only_joins(const char *from, const char *to)
{
    while (from < to) {
        size_t n = (size_t)(to - from);

        if (kg_char_in(" ,;.\n\t\"\\", *from))
            from++;
        else if (starts_with(from, n, "and"))
            from += 3;
        else if (starts_with(from, n, "or"))
            from += 2;
        else
            return false;
    }
    return true;
}

/* The text without Markdown emphasis (**12**) or a full stop after the closing marks. */
static struct kg_math_text unmarked(struct kg_math_text t)
{
    size_t end = t.n;

    while (t.n > 0 && kg_char_in("*`", t.text[0])) {
        t.text++;
        t.n--;
        end--;
    }
    while (end > 0 && kg_char_in("*`. ", t.text[end - 1])) {
        end--;
        if (kg_char_in("*`", t.text[end]))
            t.n = end;
    }
    return t;
}

static kg_status put(struct kg_math_found *found, const char *text, size_t n, bool plain,
                     struct kg_err *err)
{
    struct kg_math_text bare = unmarked((struct kg_math_text){text, n});

    found->any = true;
    found->plain = plain;
    return kg_str_append(&found->text, bare.text, bare.n, err);
}

/* Where the candidate starts, opening delimiter included; not before `from`. */
static const char *opening(const struct candidate *c, const char *from)
{
    const char *at = c->text;

    while (at > from && kg_char_in("$\\([", at[-1]))
        at--;
    return at;
}

static const char *skip_marks(const char *p, const char *end)
{
    while (p < end && kg_char_in(" *", *p))
        p++;
    return p;
}

/* Bytes of the words after a value that change it: "3 minus one", "2 hundred thousand";
 * 0 for none. */
static size_t changed_by(const char *p, const char *end)
{
    const char *start = p;
    const char *stop = p;

    for (;;) {
        const struct kg_math_command *row;
        const char *at = p;

        while (at < end && isalpha((unsigned char)*at))
            at++;
        row = at > p ? kg_math_beside_find(p, (size_t)(at - p)) : NULL;
        if (!row || (row->group != KG_MATH_G_QUALIFIER && row->group != KG_MATH_G_SCALE &&
                     row->group != KG_MATH_G_DOZEN))
            return (size_t)(stop - start);
        stop = at;
        p = skip_marks(at, end);
    }
}

/* The word before p if it changes the value at p: "negative 3".   *n: its bytes or 0 */
static const char *changing_word(const char *start, const char *p, size_t *n)
{
    while (p > start && kg_char_in(" *", p[-1]))
        p--;
    const char *end = p;
    while (p > start && isalpha((unsigned char)p[-1]))
        p--;
    *n = (size_t)(end - p);
    const struct kg_math_command *row = *n ? kg_math_beside_find(p, *n) : NULL;
    if (!row || row->group != KG_MATH_G_QUALIFIER || row->op != 1)
        *n = 0;
    return p;
}

/* Whether the text around a candidate makes it another value, hence not the answer. A
 * word directly before it does not count: put_candidate() extracts it too. */
static bool is_altered(const struct candidate *c, struct kg_math_text t)
{
    const struct kg_math_text value = {c->text, (size_t)(c->end - c->text)};
    size_t n;

    changing_word(t.text, opening(c, t.text), &n);
    return n == 0 && kg_math_is_altered(t.text, value, c->formula, t.text + t.n);
}

/* Extracts a candidate of the text t, with the words around it that change its value. */
static kg_status put_candidate(struct kg_math_found *found, const struct candidate *c,
                               struct kg_math_text t, struct kg_err *err)
{
    size_t n;
    const char *before = changing_word(t.text, opening(c, t.text), &n);
    const char *behind = skip_marks(c->end, t.text + t.n);

    if (n > 0) {
        KG_TRY(kg_str_append(&found->text, before, n, err));
        KG_TRY(kg_str_putc(&found->text, ' ', err));
    }
    KG_TRY(put(found, c->text, c->n, !c->formula, err));
    n = changed_by(behind, t.text + t.n);
    if (n > 0) {
        KG_TRY(kg_str_putc(&found->text, ' ', err));
        KG_TRY(kg_str_append(&found->text, behind, n, err));
    }
    return KG_OK;
}

/* Extracts the formulas of the text if it has only formulas and joining words. */
static kg_status put_joined(struct kg_math_found *found, struct kg_math_text t,
                            struct kg_err *err)
{
    struct walk w = walk_of(t);
    const char *behind = t.text;
    struct candidate c;
    size_t start = found->text.len;

    while (next_candidate(&c, &w)) {
        if (!c.formula || !only_joins(behind, opening(&c, behind)))
            goto none;
        if (found->text.len > start)
            KG_TRY(kg_str_puts(&found->text, ", ", err));
        KG_TRY(put(found, c.text, c.n, false, err));
        behind = c.end;
    }
    if (found->any && only_joins(behind, w.end))
        return KG_OK;
none:
    kg_str_clear(&found->text);
    found->any = false;
    return KG_OK;
}

/* Whether `at` comes after "are": "the solutions are $x = 1$ and $x = 2$." */
static bool starts_list(const char *start, const char *at)
{
    while (at > start && kg_char_in(" :\n", at[-1]))
        at--;
    return at - start >= 4 && strncasecmp(at - 4, " are", 4) == 0;
}

enum { MAX_SENTENCE = 1024 }; /* bytes of a sentence that are read */

/* Whether the candidate is an intermediate result: a word such as "then" or "but" comes
 * after it, or the text ends in the middle of a sentence. */
static bool is_on_the_way(const struct candidate *c, const char *end)
{
    static const char onward[] = " then next wait but however need must remains ";
    static const char dangling[] =
        " of to by the a an and with is are we for from that as "
        "get have equals becomes add subtract multiply divide ";
    const char *from = end - c->end > MAX_SENTENCE ? end - MAX_SENTENCE : c->end;
    char spaced[16];
    size_t n = 0;

    if (running_words(c->end, (size_t)(end - c->end)) < 2)
        return false;
    for (const char *p = from; p < end; p += n ? n : 1) {
        for (n = 0; p + n < end && isalpha((unsigned char)p[n]);)
            n++;
        snprintf(spaced, sizeof spaced, " %.*s ", n < 12 ? (int)n : 0, p);
        for (char *s = spaced; *s; s++)
            *s = (char)tolower((unsigned char)*s);
        if (n > 0 &&
            (strstr(onward, spaced) || (p + n == end && strstr(dangling, spaced))))
            return true;
    }
    return kg_char_in(",+-*/=(", end[-1]);
}

/* Whether more than one word of the sentence follows a formula without delimiters. One
 * word is what it counts ("\frac{7}{4} apples."); more may be about something else. */
static bool is_passing(const struct candidate *c, const char *end)
{
    const char *limit = end - c->end < MAX_SENTENCE ? end : c->end + MAX_SENTENCE;
    const char *stop = c->end;

    if (!c->bare)
        return false;
    while (stop < limit && *stop != '\n' &&
           !(*stop == '.' && (stop + 1 == limit || isspace((unsigned char)stop[1]))))
        stop++;
    return running_words(c->end, (size_t)(stop - c->end)) > 1;
}

/* Extracts the last candidate; after "are", the whole list that ends with it. */
static kg_status put_last(struct kg_math_found *found, struct kg_math_text t,
                          struct kg_err *err)
{
    struct walk w = walk_of(t);
    struct candidate c;
    struct candidate last = {0};
    const char *list = NULL;

    while (next_candidate(&c, &w)) {
        const char *at = opening(&c, last.n ? last.end : t.text);

        if (is_denied(t.text, (size_t)(c.text - t.text)) || is_passing(&c, w.end))
            continue;
        if (!(list && only_joins(last.end, at)))
            list = starts_list(t.text, at) ? at : NULL;
        last = is_mention(&c) && last.n ? last : c;
    }
    if (last.n && (is_on_the_way(&last, w.end) || is_altered(&last, t)))
        return KG_OK;
    if (list && list < opening(&last, list))
        return put(found, list, (size_t)(last.end - list), false, err);
    return last.n ? put_candidate(found, &last, t, err) : KG_OK;
}

/* ---- after a word that announces the answer ---- */

static const char *const anchors[] = {
    "answer is",   "answer:",  "answer**:", "answer:**", "answer :",
    "réponse est", "réponse:", "réponse :", "####",      "答案是",
    "答案：",      "答案:",    "الجواب",    "\nA:"};

bool kg_math_behind_anchor(struct kg_math_text *out, struct kg_math_text t)
{
    const char *best = NULL;
    const char *end = t.text + t.n;

    if (starts_with(t.text, t.n, "A:"))
        best = t.text + 2;
    for (size_t i = 0; i < sizeof anchors / sizeof *anchors; i++) {
        const char *at = last_of(t.text, t.n, anchors[i]);

        if (at && (!best || at + strlen(anchors[i]) > best))
            best = at + strlen(anchors[i]);
    }
    if (!best)
        return false;
    while (best < end && (isspace((unsigned char)*best) || *best == '*' || *best == ':'))
        best++;
    const char *stop = memchr(best, '\n', (size_t)(end - best));
    out->text = best;
    out->n = (size_t)((stop ? stop : end) - best);
    /* a displayed formula may have several lines */
    if (stop && best + 1 < stop && (best[0] == '$' || best[0] == '\\'))
        out->n = (size_t)(end - best);
    return out->n > 0;
}

/* Extracts the first candidate. One without a digit counts only if no words precede it
 * ("in the domain of $f(x)$ is 19" has the answer 19), or if there is no other. */
static kg_status put_first(struct kg_math_found *found, struct kg_math_text t,
                           struct kg_err *err)
{
    struct walk w = walk_of(t);
    struct candidate c;
    struct candidate first = {0};

    while (next_candidate(&c, &w)) {
        if (is_denied(t.text, (size_t)(c.text - t.text)))
            continue;
        if (has_digit(&c) ||
            (!is_mention(&c) && running_words(t.text, (size_t)(c.text - t.text)) == 0))
            return is_altered(&c, t) ? KG_OK : put_candidate(found, &c, t, err);
        first = first.n || is_mention(&c) ? first : c;
    }
    return first.n && !is_altered(&first, t) ? put_candidate(found, &first, t, err)
                                             : KG_OK;
}

static bool has_formula(struct kg_math_text t)
{
    for (size_t i = 0; i < t.n; i++) {
        if (t.text[i] == '$' && (i == 0 || t.text[i - 1] != '\\'))
            return true;
    }
    return find_text(t.text, t.n, "\\(") || find_text(t.text, t.n, "\\[");
}

/* Extracts the whole text if it is nothing but an answer. */
static kg_status put_bare(struct kg_math_found *found, struct kg_math_text t,
                          struct kg_err *err)
{
    int words = t.n ? running_words(t.text, t.n) : 99;
    const char *phrase;

    KG_TRY(kg_math_phrase(&phrase, t.text, t.n, err));
    if (phrase || kg_math_is_number_words(t))
        return put(found, t.text, t.n, true, err);
    if (has_formula(t))
        return words < 99 ? put_joined(found, t, err) : KG_OK;
    if (words <= 1)
        return put(found, t.text, t.n, true, err);
    return KG_OK;
}

static kg_status put_anchored(struct kg_math_found *found, struct kg_math_text t,
                              struct kg_err *err)
{
    struct kg_math_text rest;

    if (!kg_math_behind_anchor(&rest, t))
        return KG_OK;
    KG_TRY(put_bare(found, rest, err));
    return found->any ? KG_OK : put_first(found, rest, err);
}

/* Extracts a bare answer, unless the text announces one ("answer:"). */
static kg_status put_bare_alone(struct kg_math_found *found, struct kg_math_text t,
                                struct kg_err *err)
{
    struct kg_math_text rest;

    return kg_math_behind_anchor(&rest, t) ? KG_OK : put_bare(found, t, err);
}

/* "The final answer is X. I hope it is correct." */
static kg_status put_hoped(struct kg_math_found *found, struct kg_math_text t,
                           struct kg_err *err)
{
    static const char words[] = "final answer is";
    const char *hope = last_of(t.text, t.n, "i hope");
    const char *at = hope ? last_of(t.text, (size_t)(hope - t.text), words) : NULL;
    struct kg_math_text between;

    if (!at)
        return KG_OK;
    between.text = at + sizeof words - 1;
    between.n = (size_t)(hope - between.text);
    while (between.n > 0 && kg_char_in(" .\n", between.text[between.n - 1]))
        between.n--;
    KG_TRY(put_joined(found, between, err));
    return found->any ? KG_OK : put_first(found, between, err);
}

static kg_status put_bracket(struct kg_math_found *found, struct kg_math_text t,
                             struct kg_err *err)
{
    const char *open = last_of(t.text, t.n, "[");

    if (!open)
        return KG_OK;
    const char *close = memchr(open, ']', (size_t)(t.text + t.n - open));
    return close ? put(found, open + 1, (size_t)(close - open - 1), true, err) : KG_OK;
}

struct kg_math_text kg_math_trimmed(struct kg_math_text t)
{
    while (t.n > 0 && isspace((unsigned char)t.text[0])) {
        t.text++;
        t.n--;
    }
    while (t.n > 0 && isspace((unsigned char)t.text[t.n - 1]))
        t.n--;
    return t;
}

struct kg_math_text kg_math_tail(struct kg_math_text t)
{
    if (t.n > KG_MATH_MAX_RESPONSE) {
        t.text += t.n - KG_MATH_MAX_RESPONSE;
        t.n = KG_MATH_MAX_RESPONSE;
    }
    return t;
}

kg_status kg_math_extract(struct kg_math_found *found, struct kg_math_text t,
                          enum kg_math_form form, struct kg_err *err)
{
    typedef kg_status way(struct kg_math_found *, struct kg_math_text, struct kg_err *);
    static way *const ways[] = {put_bare_alone, put_anchored, put_last};

    t = kg_math_trimmed(kg_math_tail(t));
    /* a response of several lines is not a bare answer */
    bool told = form == KG_MATH_FORM_RESPONSE && t.n && memchr(t.text, '\n', t.n);
    if (form == KG_MATH_FORM_BRACKET)
        return put_bracket(found, t, err);
    KG_TRY(put_hoped(found, t, err));
    if (!found->any && form != KG_MATH_FORM_ANSWER && ends_in_open_box(t))
        return KG_OK;
    if (!found->any)
        KG_TRY(put_boxes(found, t.text, t.n, err));
    if (form == KG_MATH_FORM_ANSWER && !found->any)
        return put(found, t.text, t.n, true, err);
    for (size_t i = told; i < sizeof ways / sizeof *ways && !found->any; i++)
        KG_TRY(ways[i](found, t, err));
    return KG_OK;
}
