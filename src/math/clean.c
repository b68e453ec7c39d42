/* Formula text made plain before it is read: spacing, sizes of brackets, money, Unicode
 * signs, doubled backslashes. What it drops carries no value. */
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
    {"\xc2\xb2", "^2"},              /* square */
    {"\xc2\xb3", "^3"},              /* cube */
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
    {"\xef\xbc\x8c", ","},           /* full-width comma */
    {"\xef\xbc\x9b", ";"},           /* full-width semicolon */
    {"\xef\xbc\x9a", ":"},           /* full-width colon */
    {"\xef\xbc\x88", "("},           /* full-width brackets */
    {"\xef\xbc\x89", ")"},
    {"\xe3\x80\x81", ","}, /* ideographic comma */
    {"\xe3\x80\x82", " "}, /* ideographic full stop */
    {"\xc2\xa0", " "},     /* hard space */
    {"\xe2\x80\x89", " "}, /* thin space */
    {"\xe2\x80\xaf", " "}, /* narrow hard space */
    {"\xe2\x80\x99", "'"}, /* apostrophe */
    {"\xe2\x82\xac", ""},  /* euro */
    {"\xc2\xa3", ""},      /* pound */
    {"\xef\xbc\x85", "%"}, /* full-width percent */
    {"\xe2\x84\x9d", "\\R "},
    {"\xce\xb1", "\\alpha "},
    {"\xce\xb2", "\\beta "},
    {"\xce\xb8", "\\theta "},
    {"\xce\xbb", "\\lambda "},
};

/* Two- and three-byte pieces of TeX. */
static const struct rewrite pieces[] = {
    {"\\!", ""},    {"\\,", " "},    {"\\;", " "},    {"\\:", " "},    {"\\ ", " "},
    {"\\>", " "},   {"\\$", ""},     {"\\%", "%"},    {"\\(", " "},    {"\\)", " "},
    {"\\[", " "},   {"\\]", " "},    {"\\&", "&"},    {"\\#", "#"},    {"\\-", ""},
    {"\\/", ""},    {"{,}", ","},    {"~", " "},      {"**", "^"},     {"$", ""},
    {"\\\n", "\n"}, {"!=", "\\ne "}, {"<=", "\\le "}, {">=", "\\ge "}, {"\\|", "\\Vert "},
    {"{.}", "."},   {"\\_", "_"},
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
        return strchr("%${}[](),!;: ", text[2]) != NULL;
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
    else if (strchr("\\{~*$!<>|", text[0]))
        row = match(pieces, sizeof pieces / sizeof *pieces, text, n);
    *taken = row ? strlen(row->from) : 0;
    return row ? row->to : NULL;
}

kg_status kg_math_clean(struct kg_str *out, const char *text, size_t n,
                        struct kg_err *err)
{
    bool rows = has_rows(text, n);
    size_t i = 0;

    while (i < n) {
        size_t taken;
        const char *to;

        if (doubled(text + i, n - i, rows)) {
            i++;
            continue;
        }
        if (n - i >= 2 && text[i] == '\\' && text[i + 1] == '\\') {
            KG_TRY(kg_str_puts(out, rows ? "\\\\" : " ", err));
            i += 2;
            continue;
        }
        if (n - i >= 3 && memcmp(text + i, ",\\!", 3) == 0) {
            /* thousands: nothing may stand between comma and digits */
            KG_TRY(kg_str_putc(out, ',', err));
            for (i += 3; i < n && text[i] == ' ';)
                i++;
            continue;
        }
        to = rewrite_at(text + i, n - i, &taken);
        if (to) {
            KG_TRY(kg_str_puts(out, to, err));
            i += taken;
            continue;
        }
        KG_TRY(kg_str_putc(out, text[i], err));
        i++;
    }
    while (out->len > 0 && strchr(" .,;:\n\t\\", out->data[out->len - 1]))
        out->data[--out->len] = 0;
    for (i = 0; i < out->len && isspace((unsigned char)out->data[i]);)
        i++;
    if (i > 0) {
        memmove(out->data, out->data + i, out->len - i + 1);
        out->len -= i;
    }
    return KG_OK;
}
