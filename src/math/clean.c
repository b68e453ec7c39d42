/* Normalises formula text before it is parsed: spacing, sizes of brackets, money, Unicode
 * signs, doubled backslashes. It drops what carries no value, and gives each other sign
 * one spelling in LaTeX. So a new spelling is a row of a table here, not a case in the
 * parser. It makes one pass, and the first row that matches applies. Whether \\ ends a
 * matrix row or is a doubled backslash is decided once per text. */
#include "math/math_internal.h"

#include <ctype.h>
#include <string.h>

struct rewrite {
    const char *from;
    const char *to;
};

/* Commands (without backslash) that change only the look: they are dropped. The text that
 * they enclose stays, in its braces. */
static const struct dress {
    const char *names;
    int args;     /* dropped with it: {..} or one character */
    bool options; /* a [..] after it is dropped too */
} dresses[] = {
    {" left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr middle "
     "displaystyle textstyle scriptstyle limits nolimits nonumber hfill textdollar "
     "thinspace mathord tiny scriptsize footnotesize small normalsize large Large LARGE "
     "huge Huge selectfont bfseries itshape ttfamily rmfamily sffamily boldmath "
     "centering noindent mathstrut strut mathrel mathop mathbin mathopen mathclose "
     "mathpunct mathinner displaylimits scriptscriptstyle allowbreak relax protect "
     "medspace thickspace negthinspace notag hfil pounds euro yen ensuremath num ",
     0, false},
    {" smash framebox makebox bbox ", 0, true},
    {" textcolor color colorbox raisebox scalebox parbox ", 1, true},
    {" phantom hphantom vphantom label tag href class style cssId hspace vspace mspace ",
     1, false},
    {" fcolorbox ", 2, true},
    {" fontsize resizebox ", 2, false},
};

/* Commands that are replaced whole. */
static const struct rewrite commands[] = {
    {"quad", " "},           {"qquad", " "},
    {"lbrace", "\\{"},       {"rbrace", "\\}"},
    {"lbrack", "["},         {"rbrack", "]"},
    {"langle", "("},         {"rangle", ")"},
    {"vert", "|"},           {"colon", ":"},
    {"lparen", "("},         {"rparen", ")"},
    {"space", " "},          {"enspace", " "},
    {"iff", "\\Rightarrow"}, {"percent", "%"},
    {"dotsm", "\\cdots"},    {"ell", "\\ell"},
    {"centerdot", "\\cdot"}, {"implies", "\\Rightarrow"},
    {"newline", " "},        {"AA", "\\text{angstrom}"},
    {"dotsb", "\\cdots"},    {"dd", "d"},
    {"ohm", "\\Omega"},      {"Bbb", "\\mathbb"},
    {"imath", "i "},         {"jmath", "j "},
};

/* Signs in UTF-8. */
static const struct rewrite signs[] = {
    {"×", "\\times "},    {"÷", "\\div "},    {"·", "\\cdot "},
    {"⋅", "\\cdot "},     {"√", "\\sqrt "},   {"°", "^\\circ "},
    {"≤", "\\le "},       {"≥", "\\ge "},     {"≠", "\\ne "},
    {"≈", "\\approx "},   {"∞", "\\infty "},  {"∪", "\\cup "},
    {"∩", "\\cap "},      {"∈", "\\in "},     {"∅", "\\emptyset "},
    {"±", "\\pm "},       {"½", "\\frac12 "}, {"¼", "\\frac14 "},
    {"¾", "\\frac34 "},   {"⅓", "\\frac13 "}, {"⅔", "\\frac23 "},
    {"⅛", "\\frac18 "},   {"⅜", "\\frac38 "}, {"⅝", "\\frac58 "},
    {"⅞", "\\frac78 "},   {"…", "\\dots "},   {"∂", "\\partial "},
    {"∇", "\\nabla "},    {"∠", "\\angle "},  {"∡", "\\measuredangle "},
    {"△", "\\triangle "}, {"∑", "\\sum "},    {"∏", "\\prod "},
    {"∫", "\\int "},      {"→", "\\to "},     {"⇒", "\\Rightarrow "},
    {"≡", "\\equiv "},    {"≅", "\\cong "},   {"∼", "\\sim "},
    {"∥", "\\parallel "}, {"⊥", "\\perp "},   {"⊂", "\\subset "},
    {"⊆", "\\subseteq "}, {"∉", "\\notin "},  {"∖", "\\setminus "},
    {"∧", "\\land "},     {"∨", "\\lor "},    {"℃", "^\\circ C"},
    {"℉", "^\\circ F"},
};
static const struct rewrite alphabet[] = {
    {"π", "\\pi "},       {"ℝ", "\\R "},        {"α", "\\alpha "},
    {"β", "\\beta "},     {"θ", "\\theta "},    {"λ", "\\lambda "},
    {"γ", "\\gamma "},    {"δ", "\\delta "},    {"ε", "\\epsilon "},
    {"ζ", "\\zeta "},     {"η", "\\eta "},      {"κ", "\\kappa "},
    {"μ", "\\mu "},       {"µ", "\\mu "},       {"ν", "\\nu "},
    {"ξ", "\\xi "},       {"ρ", "\\rho "},      {"σ", "\\sigma "},
    {"τ", "\\tau "},      {"φ", "\\phi "},      {"ϕ", "\\phi "},
    {"χ", "\\chi "},      {"ψ", "\\psi "},      {"ω", "\\omega "},
    {"Γ", "\\Gamma "},    {"Δ", "\\Delta "},    {"Θ", "\\Theta "},
    {"Λ", "\\Lambda "},   {"Ξ", "\\Xi "},       {"Π", "\\Pi "},
    {"Σ", "\\Sigma "},    {"Φ", "\\Phi "},      {"Ψ", "\\Psi "},
    {"Ω", "\\Omega "},    {"ℓ", "\\ell "},      {"Å", "\\text{angstrom}"},
    {"ℕ", "\\mathbb{N}"}, {"ℤ", "\\mathbb{Z}"}, {"ℚ", "\\mathbb{Q}"},
    {"ℂ", "\\mathbb{C}"}, {"â", "\\hat{a}"},    {"î", "\\hat{i}"},
    {"ĵ", "\\hat{j}"},    {"ŷ", "\\hat{y}"},    {"ẑ", "\\hat{z}"},
    {"ā", "\\bar{a}"},    {"ȳ", "\\bar{y}"},
};
/* Punctuation and spaces. Characters that look alike (minus, dashes, spaces, zero width)
 * are written by number. */
static const struct rewrite marks[] = {
    {"、", ","},     {"。", " "},     {"’", "'"},      {"€", ""},       {"£", ""},
    {"¥", ""},       {"⟨", "("},      {"⟩", ")"},      {"′", "'"},      {"″", "''"},
    {"\u2212", "-"}, {"\u2013", "-"}, {"\u2014", "-"}, {"\u00a0", " "}, {"\u2009", " "},
    {"\u202f", " "}, {"\u00ad", ""},  {"\u200b", ""},  {"\u200a", " "}, {"\u2002", " "},
    {"\u2003", " "}, {"\u3000", " "},
};

/* Combining accents, which come after their letter. */
static const struct rewrite accents[] = {
    {"\xcc\x82", "hat"}, {"\xcc\x83", "tilde"}, {"\xcc\x84", "bar"},
    {"\xcc\x85", "bar"}, {"\xcc\x87", "dot"},   {"\xe2\x83\x97", "vec"},
};

/* Superscript and subscript characters; a run of them is one script. */
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

/* Sequences of one to three bytes, mostly of TeX. */
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

/* The row of `commands` with exactly this name. */
static const struct rewrite *whole_command(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strlen(commands[i].from) == len && memcmp(commands[i].from, name, len) == 0)
            return &commands[i];
    }
    return NULL;
}

static const struct dress *dress_of(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof dresses / sizeof *dresses; i++) {
        if (kg_str_listed(dresses[i].names, name, len))
            return &dresses[i];
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

/* Appends the superscript or subscript characters at text as ^{..} or _{..}.   *taken <-
 * their bytes, or 0 */
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

/* The ASCII character of a full-width form (U+FF01 to U+FF5E) at text, or 0. */
static char full_width(const char *text, size_t n)
{
    unsigned char b = n >= 3 ? (unsigned char)text[1] : 0;
    unsigned char c = n >= 3 ? (unsigned char)text[2] : 0;

    if ((unsigned char)text[0] != 0xef || b < 0xbc || b > 0xbd || c < 0x80 || c > 0xbf)
        return 0;
    c = (unsigned char)((b - 0xbc) * 0x40 + (c - 0x80) + 0x20);
    return c > 0x20 && c < 0x7f ? (char)c : 0;
}

/* The letter or digit of a mathematical font (U+1D400 to U+1D7FF) at text; 0 for other
 * text, and for the Greek letters of these fonts. */
static char font_letter(const char *text, size_t n)
{
    static const char letter[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

    if (n < 4 || memcmp(text, "\xf0\x9d", 2) != 0)
        return 0;
    unsigned code = ((unsigned char)text[2] & 63u) << 6 | ((unsigned char)text[3] & 63u);
    if (code < 0x400 || code > 0x7ff)
        return 0;
    if (code >= 0x7ce)
        return (char)('0' + (code - 0x7ce) % 10);
    return code < 0x6a4 ? letter[(code - 0x400) % 52] : 0;
}

/* Puts the last letter of out into \hat{..} or similar, for a combining accent at text.
 * *taken <- bytes of the accent, or 0 */
static kg_status put_accent(struct kg_str *out, size_t *taken, const char *text, size_t n,
                            struct kg_err *err)
{
    const struct rewrite *row = (unsigned char)text[0] < 0x80
                                    ? NULL
                                    : match(accents, sizeof accents / sizeof *accents,
                                            text, n);
    char letter = out->len > 0 ? out->data[out->len - 1] : 0;

    *taken = 0;
    if (!row || !isalpha((unsigned char)letter))
        return KG_OK;
    *taken = strlen(row->from);
    out->data[--out->len] = 0;
    return kg_str_printf(out, err, "\\%s{%c}", row->to, letter);
}

/* Bytes of the options and arguments at text that are dropped with their command. */
static size_t arguments(const struct dress *row, const char *text, size_t n)
{
    size_t at = 0;
    int open = row->options ? -1 : 0;

    for (; open < row->args; open++) {
        size_t from = at;

        while (at < n && text[at] == ' ')
            at++;
        if (at < n && open < 0 && text[at] == '[') {
            const char *close = memchr(text + at, ']', n - at);

            at = close ? (size_t)(close + 1 - text) : n;
        } else if (at < n && open >= 0) {
            size_t size = text[at] == '{' ? kg_math_brace_end(text + at, n - at) + 1 : 1;

            at = size < n - at ? at + size : n;
        } else {
            at = from;
        }
    }
    return at;
}

/* A ",\!" before three digits separates thousands, even in brackets: 10,\!080.   returns
 * the bytes before the digits, or 0 */
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

/* Whether a backslash is doubled by mistake: a command follows, and the text has no
 * environment in which \\ would end a row. */
static bool doubled(const char *text, size_t n, bool rows)
{
    if (n < 3 || text[0] != '\\' || text[1] != '\\')
        return false;
    size_t len = letters(text + 2, n - 2);
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

/* The replacement for the text; *taken <- the bytes replaced.   returns NULL for none */
static const char *rewrite_at(const char *text, size_t n, size_t *taken)
{
    const struct rewrite *row = NULL;
    size_t len;

    *taken = 0;
    if (text[0] == '\\' && n > 1 && isalpha((unsigned char)text[1])) {
        len = letters(text + 1, n - 1);
        row = whole_command(text + 1, len);
        const struct dress *dress = row ? NULL : dress_of(text + 1, len);
        /* \quadx is \quad x */
        for (size_t k = 4; k < 6 && !row && !dress && len > k; k++) {
            row = whole_command(text + 1, k);
            row = row && row->to[0] == ' ' ? row : NULL;
            len = row ? k : len;
        }
        *taken = row || dress ? len + 1 : 0;
        if (dress)
            *taken += arguments(dress, text + len + 1, n - len - 1);
        /* \left. and \right. are invisible */
        if (dress && len + 1 < n && text[len + 1] == '.' &&
            kg_str_listed(" left right ", text + 1, len))
            *taken = len + 2;
        if (dress)
            return "";
        return row ? row->to : NULL;
    }
    if ((unsigned char)text[0] >= 0x80) {
        row = match(signs, sizeof signs / sizeof *signs, text, n);
        row = row ? row : match(alphabet, sizeof alphabet / sizeof *alphabet, text, n);
        row = row ? row : match(marks, sizeof marks / sizeof *marks, text, n);
    } else if (kg_char_in("\\{~*$!<>|.", text[0]))
        row = match(pieces, sizeof pieces / sizeof *pieces, text, n);
    *taken = row ? strlen(row->from) : 0;
    return row ? row->to : NULL;
}

/* Appends the plain form of the piece at text; *taken <- the bytes of the piece. */
static kg_status clean_piece(struct kg_str *out, size_t *taken, const char *text,
                             size_t n, bool rows, struct kg_err *err)
{
    bool behind_digit = out->len > 0 && isdigit((unsigned char)out->data[out->len - 1]);

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
    const char *to = rewrite_at(text, n, taken);
    if (to)
        return kg_str_puts(out, to, err);
    KG_TRY(put_script(out, taken, text, n, err));
    if (!*taken)
        KG_TRY(put_accent(out, taken, text, n, err));
    if (*taken)
        return KG_OK;
    *taken = full_width(text, n) ? 3 : font_letter(text, n) ? 4 : 1;
    return kg_str_putc(out,
                       *taken == 3   ? full_width(text, n)
                       : *taken == 4 ? font_letter(text, n)
                                     : text[0],
                       err);
}

static void cut_end(struct kg_str *s)
{
    while (s->len > 0 && kg_char_in(" .,;:\n\t\\", s->data[s->len - 1]))
        s->data[--s->len] = 0;
}

/* Drops words at the end that do not change the value: "42 in total". */
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
