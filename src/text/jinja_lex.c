/* Jinja's lexer: template text into data and the tokens of { % % } and { { } }.
 *
 * White space is removed here, as trim_blocks and lstrip_blocks do: a newline after a
 * block or comment, indentation before one, and, if a delimiter has a minus, all white
 * space on that side. A plus keeps the white space.
 */
#include "base/mem.h"
#include "text/jinja_internal.h"
#include "text/unicode.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 1 << 22, MAX_OPEN = 256 };

struct lexer {
    struct kg_chat_template *t;
    const char *source;
    size_t n;
    size_t at;
    bool line_starts; /* the last tag or comment ended with a newline */
    char open[MAX_OPEN];
    int n_open;
    struct kg_jinja_token *tokens; /* owned until it is copied into the pool */
    size_t n_tokens;
    size_t capacity;
    size_t place; /* the offset at `line` and `column` */
    uint32_t line;
    uint32_t column;
    struct kg_err *err;
};

/* Moves line and column (in characters) from the last place to `at`. */
static void place(struct lexer *x, size_t at)
{
    if (at < x->place) {
        x->place = 0;
        x->line = x->column = 1;
    }
    for (; x->place < at; x->place++) {
        bool newline = x->source[x->place] == '\n';
        bool starts = ((unsigned char)x->source[x->place] & 0xC0) != 0x80;

        x->line += newline;
        x->column = newline ? 1 : x->column + starts;
    }
}

static kg_status fail(struct lexer *x, size_t at, const char *expected, const char *found)
{
    place(x, at);
    return kg_jinja_fail_at(x->t, x->line, x->column, x->err, "expected %s, found %s",
                            expected, found);
}

static kg_status push(struct lexer *x, enum kg_jinja_token_type type, size_t at,
                      struct kg_jv_text text)
{
    KG_TRY(kg_mem_grow(&x->tokens, &x->capacity, x->n_tokens + 1, sizeof *x->tokens,
                       MAX_TOKENS, "chat template", x->err));
    place(x, at);
    struct kg_jinja_token *token = &x->tokens[x->n_tokens++];
    *token = (struct kg_jinja_token){type, x->line, x->column, text, 0, 0};
    return KG_OK;
}

static bool starts(const struct lexer *x, size_t at, const char *text)
{
    size_t n = strlen(text);

    return x->n - at >= n && memcmp(x->source + at, text, n) == 0;
}

/* The offset after the white space at `at`. */
static size_t skip_space(const struct lexer *x, size_t at)
{
    uint32_t cp;

    while (at < x->n) {
        size_t k = kg_utf8_decode(&cp, x->source + at);

        if (!kg_jinja_is_space(cp))
            break;
        at += k;
    }
    return at;
}

/* ---- data, comments, raw blocks ---- */

/* Pushes the text before a delimiter, whose sign is '-', '+' or another character. */
static kg_status push_data(struct lexer *x, size_t begin, size_t end, char sign,
                           bool lstrip)
{
    struct kg_jv_text text = {x->source + begin, end - begin};
    size_t line = text.n;

    while (line > 0 && text.bytes[line - 1] != '\n')
        line--;
    if (sign == '-')
        text = kg_jv_strip(text, NULL, 2);
    else if (sign != '+' && lstrip && (line > 0 || x->line_starts) &&
             skip_space(x, begin + line) >= end)
        text.n = line;
    return text.n ? push(x, KG_JT_DATA, begin, text) : KG_OK;
}

/* Consumes the end of a tag at x->at: two characters, perhaps after a sign. newline: also
 * a newline after it.   returns false if there is no end */
static bool take_end(struct lexer *x, const char *end, bool newline)
{
    char sign = x->source[x->at];
    size_t at = x->at + (sign == '-' || sign == '+');

    if (sign == '+' && !newline)
        return false;
    if (!starts(x, at, end))
        return false;
    at += 2;
    if (sign == '-')
        at = skip_space(x, at);
    else if (sign != '+' && newline && at < x->n && x->source[at] == '\n')
        at++;
    x->at = at;
    x->line_starts = x->source[at - 1] == '\n';
    return true;
}

static kg_status lex_comment(struct lexer *x)
{
    size_t begin = x->at;

    for (x->at += 2; x->at < x->n; x->at++)
        if (take_end(x, "#}", true))
            return KG_OK;
    return fail(x, begin, "#} to end this comment", "the end of the template");
}

/* Whether the block tag at `at` has this keyword.   *end <- the offset after it */
static bool tag_is(const struct lexer *x, size_t at, const char *name, size_t *end)
{
    at += 2;
    at += at < x->n && (x->source[at] == '-' || x->source[at] == '+');
    at = skip_space(x, at);
    *end = skip_space(x, at + strlen(name));
    return starts(x, at, name);
}

/* {% raw %} ... {% endraw %}; *is false when the tag at x->at is another. */
static kg_status lex_raw(struct lexer *x, bool *is)
{
    size_t begin = x->at;
    size_t end;
    struct lexer ahead = *x;

    *is = tag_is(x, x->at, "raw", &ahead.at) && ahead.at < x->n;
    *is = *is && x->source[ahead.at] != '+' && take_end(&ahead, "%}", true);
    if (!*is)
        return KG_OK;
    /* unlike other tags this one keeps the newline after it */
    if (x->source[ahead.at - 1] == '\n' && starts(x, ahead.at - 3, "%}") &&
        x->source[ahead.at - 4] != '-')
        ahead.at--;
    x->at = ahead.at;
    x->line_starts = x->source[x->at - 1] == '\n';
    for (end = x->at; end + 2 < x->n; end++) {
        struct lexer close = *x;

        if (!starts(x, end, "{%") || !tag_is(x, end, "endraw", &close.at) ||
            close.at >= x->n || !take_end(&close, "%}", true))
            continue;
        KG_TRY(push_data(x, x->at, end, x->source[end + 2], true));
        x->at = close.at;
        x->line_starts = close.line_starts;
        return KG_OK;
    }
    return fail(x, begin, "{% endraw %} to end this block", "the end of the template");
}

/* ---- inside a tag ---- */

static bool is_name_start(uint32_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c >= 128;
}
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static kg_status lex_name(struct lexer *x)
{
    size_t begin = x->at;

    while (x->at < x->n &&
           (is_name_start((unsigned char)x->source[x->at]) || is_digit(x->source[x->at])))
        x->at++;
    return push(x, KG_JT_NAME, begin,
                (struct kg_jv_text){x->source + begin, x->at - begin});
}

/* The offset after the digits at `at`, with single underscores between them. */
static size_t skip_digits(const struct lexer *x, size_t at)
{
    while (at < x->n &&
           (is_digit(x->source[at]) ||
            (x->source[at] == '_' && at + 1 < x->n && is_digit(x->source[at + 1]))))
        at++;
    return at;
}

static kg_status lex_number(struct lexer *x)
{
    size_t begin = x->at;
    size_t end = skip_digits(x, begin);
    char digits[64];
    size_t n = 0;
    bool is_real = false;

    if (end + 1 < x->n && x->source[end] == '.' && is_digit(x->source[end + 1])) {
        is_real = true;
        end = skip_digits(x, end + 1);
    }
    if (end + 1 < x->n && (x->source[end] == 'e' || x->source[end] == 'E')) {
        size_t exponent = end + 1 +
                          (x->source[end + 1] == '-' || x->source[end + 1] == '+');

        if (exponent < x->n && is_digit(x->source[exponent])) {
            is_real = true;
            end = skip_digits(x, exponent);
        }
    }
    for (size_t i = begin; i < end && n < sizeof digits; i++)
        if (x->source[i] != '_')
            digits[n++] = x->source[i];
    if (n == sizeof digits)
        return fail(x, begin, "a number of at most 63 digits", "more");
    digits[n] = 0;
    x->at = end;
    KG_TRY(push(x, is_real ? KG_JT_FLOAT : KG_JT_INTEGER, begin,
                (struct kg_jv_text){x->source + begin, end - begin}));
    errno = 0;
    if (is_real)
        x->tokens[x->n_tokens - 1].real = strtod(digits, NULL);
    else
        x->tokens[x->n_tokens - 1].integer = strtoll(digits, NULL, 10);
    if (!is_real && errno == ERANGE)
        return fail(x, begin, "a whole number of 64 bits", "a larger one");
    return KG_OK;
}

/* The hexadecimal digits of \x, \u and \U; true if they are complete and a character. */
static bool read_hex(uint32_t *cp, const char *at, const char *end, int digits)
{
    *cp = 0;
    if (end - at < digits)
        return false;
    for (int i = 0; i < digits; i++) {
        char c = at[i];
        bool letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');

        if (!letter && !is_digit(c))
            return false;
        *cp = *cp * 16 + (uint32_t)(letter ? (c | 32) - 'a' + 10 : c - '0');
    }
    return *cp <= 0x10FFFF && (*cp < 0xD800 || *cp > 0xDFFF);
}

/* Decodes the escape at s (after its backslash) to *to, which advances.   returns bytes
 * read, 0 if it is malformed */
static size_t unescape(char **to, const char *s, const char *end)
{
    static const char from[] = "abfnrtv\\'\"";
    static const char as[] = "\a\b\f\n\r\t\v\\'\"";
    const char *plain = kg_char_find(from, *s);
    int digits = *s == 'x' ? 2 : *s == 'u' ? 4 : *s == 'U' ? 8 : 0;
    uint32_t cp = 0;
    size_t k = 0;

    if (plain) {
        *(*to)++ = as[plain - from];
        return 1;
    }
    if (*s == '\n')
        return 1;
    if (digits) {
        if (!read_hex(&cp, s + 1, end, digits))
            return 0;
        *to += kg_utf8_encode(*to, cp);
        return (size_t)digits + 1;
    }
    for (; k < 3 && s + k < end && s[k] >= '0' && s[k] <= '7'; k++)
        cp = cp * 8 + (uint32_t)(s[k] - '0');
    if (k) {
        *to += kg_utf8_encode(*to, cp);
        return k;
    }
    if (*s == 'N')
        return 0;
    *(*to)++ = '\\'; /* other escapes stay as written */
    k = kg_utf8_decode(&cp, s);
    memcpy(*to, s, k);
    *to += k;
    return k;
}

static kg_status decode_string(struct lexer *x, size_t begin, size_t end)
{
    const char *s = x->source + begin + 1;
    const char *last = x->source + end - 1;
    char *to;

    /* an escape is never shorter than its character */
    char *text = kg_pool_alloc(&x->t->pool, (size_t)(last - s) + 8, 1, x->err);
    if (!text)
        return x->err->code;
    for (to = text; s < last;) {
        if (*s != '\\') {
            *to++ = *s++;
            continue;
        }
        size_t k = unescape(&to, ++s, last);
        if (k == 0)
            return fail(x, (size_t)(s - x->source), "an escape such as \\n or \\u00e9",
                        "a malformed one");
        s += k;
    }
    return push(x, KG_JT_STRING, begin, (struct kg_jv_text){text, (size_t)(to - text)});
}

static kg_status lex_string(struct lexer *x)
{
    size_t begin = x->at;
    char quote = x->source[begin];

    for (x->at++; x->at < x->n && x->source[x->at] != quote; x->at++)
        x->at += x->source[x->at] == '\\';
    if (x->at >= x->n)
        return fail(x, begin, "a closing quote", "the end of the template");
    x->at++;
    return decode_string(x, begin, x->at);
}

static const struct {
    const char *sign;
    enum kg_jinja_token_type type;
} signs[] = {
    {"//", KG_JT_FLOORDIV}, {"**", KG_JT_POW},      {"==", KG_JT_EQ},
    {"!=", KG_JT_NE},       {">=", KG_JT_GE},       {"<=", KG_JT_LE},
    {"+", KG_JT_ADD},       {"-", KG_JT_SUB},       {"*", KG_JT_MUL},
    {"/", KG_JT_DIV},       {"%", KG_JT_MOD},       {"~", KG_JT_TILDE},
    {"(", KG_JT_LPAREN},    {")", KG_JT_RPAREN},    {"[", KG_JT_LBRACKET},
    {"]", KG_JT_RBRACKET},  {"{", KG_JT_LBRACE},    {"}", KG_JT_RBRACE},
    {">", KG_JT_GT},        {"<", KG_JT_LT},        {"=", KG_JT_ASSIGN},
    {".", KG_JT_DOT},       {",", KG_JT_COMMA},     {":", KG_JT_COLON},
    {"|", KG_JT_PIPE},      {";", KG_JT_SEMICOLON},
};

/* Brackets must match; inside of them, } } does not end the expression. */
static kg_status balance(struct lexer *x, char sign)
{
    static const char opening[] = "([{";
    static const char closing[] = ")]}";
    const char *as = kg_char_find(closing, sign), *opens = kg_char_find(opening, sign);
    char expected[] = "' '";

    if (opens) {
        if (x->n_open == MAX_OPEN)
            return fail(x, x->at, "at most 256 open brackets", "more");
        x->open[x->n_open++] = closing[opens - opening];
    } else if (as) {
        if (x->n_open == 0)
            return fail(x, x->at, "an expression",
                        "a closing bracket without an opening one");
        expected[1] = x->open[--x->n_open];
        if (expected[1] != sign)
            return fail(x, x->at, expected, "another bracket");
    }
    return KG_OK;
}

static kg_status lex_sign(struct lexer *x)
{
    char found[32];
    size_t n = 1; /* bytes of the character */

    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        size_t k = strlen(signs[i].sign);

        if (!starts(x, x->at, signs[i].sign))
            continue;
        if (k == 1)
            KG_TRY(balance(x, x->source[x->at]));
        x->at += k;
        return push(x, signs[i].type, x->at - k, (struct kg_jv_text){signs[i].sign, k});
    }
    while (n < 4 && x->at + n < x->n && (x->source[x->at + n] & 0xC0) == 0x80)
        n++;
    snprintf(found, sizeof found, "the character '%.*s'", (int)n, x->source + x->at);
    return fail(x, x->at, "an expression", found);
}

/* From { % or { { to the matching end. */
static kg_status lex_tag(struct lexer *x, bool is_block)
{
    size_t begin = x->at;
    const char *end = is_block ? "%}" : "}}";

    KG_TRY(push(x, is_block ? KG_JT_BLOCK_BEGIN : KG_JT_VARIABLE_BEGIN, begin,
                (struct kg_jv_text){x->source + begin, 2}));
    x->at += 2;
    x->at += x->at < x->n && (x->source[x->at] == '-' || x->source[x->at] == '+');
    x->n_open = 0;
    for (;;) {
        size_t at = skip_space(x, x->at);

        x->at = at;
        if (at >= x->n)
            return fail(x, begin, end, "the end of the template");
        char c = x->source[at];
        if (x->n_open == 0 && take_end(x, end, is_block))
            return push(x, is_block ? KG_JT_BLOCK_END : KG_JT_VARIABLE_END, at,
                        (struct kg_jv_text){end, 2});
        if (is_name_start((unsigned char)c))
            KG_TRY(lex_name(x));
        else if (is_digit(c))
            KG_TRY(lex_number(x));
        else if (c == '"' || c == '\'')
            KG_TRY(lex_string(x));
        else
            KG_TRY(lex_sign(x));
    }
}

/* ---- the whole template ---- */

static kg_status lex_next(struct lexer *x)
{
    size_t begin = x->at;
    size_t end = begin;
    bool is_raw;

    while (end < x->n && !starts(x, end, "{%") && !starts(x, end, "{{") &&
           !starts(x, end, "{#"))
        end++;
    if (end == x->n) {
        x->at = end;
        return end > begin ? push(x, KG_JT_DATA, begin,
                                  (struct kg_jv_text){x->source + begin, end - begin})
                           : KG_OK;
    }
    KG_TRY(push_data(x, begin, end, end + 2 < x->n ? x->source[end + 2] : 0,
                     x->source[end + 1] != '{'));
    x->at = end;
    x->line_starts = false;
    if (x->source[end + 1] == '#')
        return lex_comment(x);
    if (x->source[end + 1] == '{')
        return lex_tag(x, false);
    KG_TRY(lex_raw(x, &is_raw));
    return is_raw ? KG_OK : lex_tag(x, true);
}

kg_status kg_jinja_lex(struct kg_jinja_token **tokens, struct kg_chat_template *t,
                       const char *source, size_t n, struct kg_err *err)
{
    struct lexer x = {.t = t,
                      .source = source,
                      .n = n,
                      .line_starts = true,
                      .line = 1,
                      .column = 1,
                      .err = err};
    kg_status status = KG_OK;

    while (x.at < n)
        KG_TRY_GOTO(out, lex_next(&x));
    KG_TRY_GOTO(out, push(&x, KG_JT_END, n, (struct kg_jv_text){"", 0}));
    *tokens = kg_pool_alloc(&t->pool, x.n_tokens, sizeof **tokens, err);
    if (*tokens)
        memcpy(*tokens, x.tokens, x.n_tokens * sizeof **tokens);
    else
        status = err->code;
out:
    kg_mem_free(x.tokens);
    return status;
}
