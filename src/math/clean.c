/* Formula text made plain before it is read: spacing, sizes of brackets, money, Unicode
 * signs, doubled backslashes.
 *
 * What it drops carries no value, and what it replaces has one spelling in LaTeX
 * already. So the parser meets one way to write a thing, where authors and models have
 * ten, and a new spelling is a row of a table here rather than a case there. It goes
 * through the text once, the first row that matches, and does not look at structure:
 * whether \\ ends a row or is a backslash written twice is decided once for the whole
 * text, by whether it has rows at all.
 */
#include "math/math_internal.h"

#include <ctype.h>
#include <string.h>

struct rewrite {
    const char *from;
    const char *to;
};

/* Commands (without backslash) that are dropped or replaced whole. */
static const struct rewrite commands[] = {
    {"left", ""},
    {"right", ""},
    {"big", ""},
    {"Big", ""},
    {"bigg", ""},
    {"Bigg", ""},
    {"bigl", ""},
    {"bigr", ""},
    {"Bigl", ""},
    {"Bigr", ""},
    {"biggl", ""},
    {"biggr", ""},
    {"Biggl", ""},
    {"Biggr", ""},
    {"middle", ""},
    {"displaystyle", ""},
    {"textstyle", ""},
    {"scriptstyle", ""},
    {"limits", ""},
    {"nolimits", ""},
    {"quad", " "},
    {"qquad", " "},
    {"nonumber", ""},
    {"hfill", ""},
    {"lbrace", "\\{"},
    {"rbrace", "\\}"},
    {"lbrack", "["},
    {"rbrack", "]"},
    {"langle", "("},
    {"rangle", ")"},
    {"vert", "|"},
    {"colon", ":"},
    {"textdollar", ""},
    {"lparen", "("},
    {"rparen", ")"},
    {"thinspace", ""},
    {"space", " "},
    {"enspace", " "},
    {"iff", "\\Rightarrow"},
    {"percent", "%"},
    {"dotsm", "\\cdots"},
    {"ell", "\\ell"},
    {"centerdot", "\\cdot"},
    {"mathord", ""},
    {"hspace", ""},
    {"implies", "\\Rightarrow"},
};

/* Signs in UTF-8. */
static const struct rewrite signs[] = {
    {"\xc3\x97", "\\times "},        /* times */
    {"\xc3\xb7", "\\div "},          /* division */
    {"\xe2\x88\x92", "-"},           /* minus */
    {"\xe2\x80\x93", "-"},           /* en dash */
    {"\xe2\x80\x94", "-"},           /* em dash */
    {"\xc2\xb7", "\\cdot "},         /* middle dot */
    {"\xe2\x8b\x85", "\\cdot "},     /* dot operator */
    {"\xcf\x80", "\\pi "},           /* pi */
    {"\xe2\x88\x9a", "\\sqrt "},     /* root */
    {"\xc2\xb0", "^\\circ "},        /* degree */
    {"\xe2\x89\xa4", "\\le "},       /* at most */
    {"\xe2\x89\xa5", "\\ge "},       /* at least */
    {"\xe2\x89\xa0", "\\ne "},       /* not equal */
    {"\xe2\x89\x88", "\\approx "},   /* about */
    {"\xe2\x88\x9e", "\\infty "},    /* infinity */
    {"\xe2\x88\xaa", "\\cup "},      /* union */
    {"\xe2\x88\xa9", "\\cap "},      /* intersection */
    {"\xe2\x88\x88", "\\in "},       /* element of */
    {"\xe2\x88\x85", "\\emptyset "}, /* empty set */
    {"\xc2\xb1", "\\pm "},           /* plus or minus */
    {"\xc2\xbd", "\\frac12 "},       /* one half */
    {"\xc2\xbc", "\\frac14 "},       /* one quarter */
    {"\xc2\xbe", "\\frac34 "},       /* three quarters */
    {"\xe2\x85\x93", "\\frac13 "},   /* one third */
    {"\xe2\x85\x94", "\\frac23 "},   /* two thirds */
    {"\xe2\x85\x9b", "\\frac18 "},   /* one eighth */
    {"\xe2\x85\x9c", "\\frac38 "},   /* three eighths */
    {"\xe2\x85\x9d", "\\frac58 "},   /* five eighths */
    {"\xe2\x85\x9e", "\\frac78 "},   /* seven eighths */
    {"\xe3\x80\x81", ","},           /* ideographic comma */
    {"\xe3\x80\x82", " "},           /* ideographic full stop */
    {"\xc2\xa0", " "},               /* hard space */
    {"\xe2\x80\x89", " "},           /* thin space */
    {"\xe2\x80\xaf", " "},           /* narrow hard space */
    {"\xe2\x80\x99", "'"},           /* apostrophe */
    {"\xe2\x82\xac", ""},            /* euro */
    {"\xc2\xa3", ""},                /* pound */
    {"\xc2\xa5", ""},                /* yen */
    {"\xe2\x84\x9d", "\\R "},
    {"\xe2\x80\xa6", "\\dots "},
    {"\xce\xb1", "\\alpha "},
    {"\xce\xb2", "\\beta "},
    {"\xce\xb8", "\\theta "},
    {"\xce\xbb", "\\lambda "},
};

/* Signs that stand above or below the line: runs of them are one script. */
static const struct script {
    const char *sign;
    char place;
    char plain;
} scripts[] = {
    {"\xc2\xb9", '^', '1'},     {"\xc2\xb2", '^', '2'},     {"\xc2\xb3", '^', '3'},
    {"\xe2\x81\xb0", '^', '0'}, {"\xe2\x81\xb4", '^', '4'}, {"\xe2\x81\xb5", '^', '5'},
    {"\xe2\x81\xb6", '^', '6'}, {"\xe2\x81\xb7", '^', '7'}, {"\xe2\x81\xb8", '^', '8'},
    {"\xe2\x81\xb9", '^', '9'}, {"\xe2\x81\xba", '^', '+'}, {"\xe2\x81\xbb", '^', '-'},
    {"\xe2\x81\xbf", '^', 'n'}, {"\xe2\x82\x80", '_', '0'}, {"\xe2\x82\x81", '_', '1'},
    {"\xe2\x82\x82", '_', '2'}, {"\xe2\x82\x83", '_', '3'}, {"\xe2\x82\x84", '_', '4'},
    {"\xe2\x82\x85", '_', '5'}, {"\xe2\x82\x86", '_', '6'}, {"\xe2\x82\x87", '_', '7'},
    {"\xe2\x82\x88", '_', '8'}, {"\xe2\x82\x89", '_', '9'}, {"\xe2\x82\x99", '_', 'n'},
};

/* Two- and three-byte pieces of TeX. */
static const struct rewrite pieces[] = {
    {"\\!", ""},        {"\\,", " "},    {"\\;", " "},        {"\\:", " "},
    {"\\ ", " "},       {"\\>", " "},    {"\\$", ""},         {"\\%", "%"},
    {"\\(", " "},       {"\\)", " "},    {"\\[", " "},        {"\\]", " "},
    {"\\&", "&"},       {"\\#", "#"},    {"\\-", ""},         {"\\/", ""},
    {"{,}", ","},       {"~", " "},      {"**", "^"},         {"$", ""},
    {"\\\n", "\n"},     {"!=", "\\ne "}, {"<=", "\\le "},     {">=", "\\ge "},
    {"\\|", "\\Vert "}, {"{.}", "."},    {"...", "\\ldots "}, {"\\_", "_"},
};

static const struct rewrite *match(const struct rewrite *rows, size_t n, const char *text,
                                   size_t len)
{
    for (size_t i = 0; i < n; i++) {
        size_t size = strlen(rows[i].from);

        if (size <= len && memcmp(rows[i].from, text, size) == 0)
            return &rows[i];
    }
    return NULL;
}

static size_t letters(const char *text, size_t n)
{
    size_t len = 0;

    while (len < n && isalpha((unsigned char)text[len]))
        len++;
    return len;
}

/* A row of `commands` whose name is exactly these letters. */
static const struct rewrite *whole_command(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strlen(commands[i].from) == len && memcmp(commands[i].from, name, len) == 0)
            return &commands[i];
    }
    return NULL;
}

static const struct script *script_at(const char *text, size_t n)
{
    if (n == 0 || (unsigned char)text[0] < 0x80)
        return NULL;
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
        size_t size = strlen(scripts[i].sign);

        if (size <= n && memcmp(scripts[i].sign, text, size) == 0)
            return &scripts[i];
    }
    return NULL;
}

/* The run of raised or lowered signs at text, as ^{..} or _{..}; *taken: its bytes, 0
 * for none. */
static kg_status put_script(struct kg_str *out, size_t *taken, const char *text, size_t n,
                            struct kg_err *err)
{
    const struct script *first = script_at(text, n);
    const struct script *s = first;

    *taken = 0;
    if (!first)
        return KG_OK;
    KG_TRY(kg_str_putc(out, first->place, err));
    KG_TRY(kg_str_putc(out, '{', err));
    for (; s && s->place == first->place; s = script_at(text + *taken, n - *taken)) {
        KG_TRY(kg_str_putc(out, s->plain, err));
        *taken += strlen(s->sign);
    }
    return kg_str_putc(out, '}', err);
}

/* A full-width form of an ASCII sign (U+FF01 to U+FF5E); 0 for none. */
static char full_width(const char *text, size_t n)
{
    unsigned char b = n >= 3 ? (unsigned char)text[1] : 0;
    unsigned char c = n >= 3 ? (unsigned char)text[2] : 0;

    if ((unsigned char)text[0] != 0xef || b < 0xbc || b > 0xbd || c < 0x80 || c > 0xbf)
        return 0;
    c = (unsigned char)((b - 0xbc) * 0x40 + (c - 0x80) + 0x20);
    return c > 0x20 && c < 0x7f ? (char)c : 0;
}

/* Digits of a thousand behind ",\\!" and spaces: 10,\\!080, which is one number in
 * brackets too.   returns the bytes up to them, 0 for none */
static size_t tight_thousand(const char *text, size_t n)
{
    size_t i = 3;

    if (n < 6 || memcmp(text, ",\\!", 3) != 0)
        return 0;
    while (i < n && text[i] == ' ')
        i++;
    for (size_t k = 0; k < 3; k++) {
        if (i + k >= n || !isdigit((unsigned char)text[i + k]))
            return 0;
    }
    return i + 3 < n && isdigit((unsigned char)text[i + 3]) ? 0 : i;
}

/* A backslash that is doubled by mistake: a command that we know follows, and no table of
 * rows is open in which it would end a row. */
static bool doubled(const char *text, size_t n, bool rows)
{
    size_t len;

    if (n < 3 || text[0] != '\\' || text[1] != '\\')
        return false;
    len = letters(text + 2, n - 2);
    if (rows)
        return false;
    if (len == 0)
        return kg_char_in("%${}[](),!;: ", text[2]);
    return true;
}

static bool has_rows(const char *text, size_t n)
{
    for (size_t i = 0; i + 6 <= n; i++) {
        if (memcmp(text + i, "\\begin", 6) == 0)
            return true;
    }
    return false;
}

/* How much of the text at *at is rewritten, and into what.   returns NULL for none */
static const char *rewrite_at(const char *text, size_t n, size_t *taken)
{
    const struct rewrite *row = NULL;
    size_t len;

    *taken = 0;
    if (text[0] == '\\' && n > 1 && isalpha((unsigned char)text[1])) {
        len = letters(text + 1, n - 1);
        row = whole_command(text + 1, len);
        *taken = row ? len + 1 : 0;
        /* \left. and \right. draw nothing */
        if (row && row->to[0] == 0 && len + 1 < n && text[len + 1] == '.' &&
            (strcmp(row->from, "left") == 0 || strcmp(row->from, "right") == 0))
            *taken = len + 2;
        return row ? row->to : NULL;
    }
    if ((unsigned char)text[0] >= 0x80)
        row = match(signs, sizeof signs / sizeof *signs, text, n);
    else if (kg_char_in("\\{~*$!<>|.", text[0]))
        row = match(pieces, sizeof pieces / sizeof *pieces, text, n);
    *taken = row ? strlen(row->from) : 0;
    return row ? row->to : NULL;
}

/* One piece of the text made plain; *taken: the bytes that it was. */
static kg_status clean_piece(struct kg_str *out, size_t *taken, const char *text,
                             size_t n, bool rows, struct kg_err *err)
{
    bool behind_digit = out->len > 0 && isdigit((unsigned char)out->data[out->len - 1]);
    const char *to;

    *taken = 1;
    if (doubled(text, n, rows))
        return KG_OK;
    if (n >= 2 && text[0] == '\\' && text[1] == '\\') {
        *taken = 2;
        return kg_str_puts(out, rows ? "\\\\" : " ", err);
    }
    *taken = behind_digit ? tight_thousand(text, n) : 0;
    if (*taken)
        return KG_OK;
    to = rewrite_at(text, n, taken);
    if (to)
        return kg_str_puts(out, to, err);
    KG_TRY(put_script(out, taken, text, n, err));
    if (*taken)
        return KG_OK;
    *taken = full_width(text, n) ? 3 : 1;
    return kg_str_putc(out, *taken == 3 ? full_width(text, n) : text[0], err);
}

static void cut_end(struct kg_str *s)
{
    while (s->len > 0 && kg_char_in(" .,;:\n\t\\", s->data[s->len - 1]))
        s->data[--s->len] = 0;
}

/* Words at the end that say nothing of the value: "42 in total". */
static void cut_idle_words(struct kg_str *s)
{
    static const char *const rows[] = {" in total", " in all"};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t n = strlen(rows[i]);

        if (s->len > n && strcmp(s->data + s->len - n, rows[i]) == 0)
            s->data[s->len -= n] = 0;
    }
    cut_end(s);
}

kg_status kg_math_clean(struct kg_str *out, const char *text, size_t n,
                        struct kg_err *err)
{
    bool rows = has_rows(text, n);
    size_t taken;
    size_t i;

    for (i = 0; i < n; i += taken)
        KG_TRY(clean_piece(out, &taken, text + i, n - i, rows, err));
    cut_end(out);
    cut_idle_words(out);
    for (i = 0; i < out->len && isspace((unsigned char)out->data[i]);)
        i++;
    if (i > 0) {
        memmove(out->data, out->data + i, out->len - i + 1);
        out->len -= i;
    }
    return KG_OK;
}
