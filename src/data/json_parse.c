/* JSON text into calls of a builder, exactly as RFC 8259. The lexer finds the end of the
 * next token; a function per rule checks which tokens may follow, and recurses as deep as
 * the builder's limit allows. So every error has a token to quote and its place. Text is
 * read in place, plain strings by whole words; lines are counted only for an error. A
 * string is decoded directly into the document's memory. */
#include "data/json_internal.h"

#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Kinds of tokens. Brackets, comma, colon, the quote of a string and the first letter of
 * true, false and null are kinds, too. */
enum { END = 0, INTEGER = '0', REAL = '.', INVALID = '?' };
enum {
    QUOTED_BYTES = 20,
    NUMBER_BYTES = 64,
    SMALL_DIGITS = 18,
    HEX = 4,
    PLACE_BYTES = 48
};

struct parser {
    struct kg_json_builder *b; /* borrowed, like all pointers here */
    const char *text, *end;
    const char *token, *at; /* the last token is [token, at) */
    char kind;
    struct kg_err *err;
};

/* ---- errors ---- */

/* "line 2 column 7": the end of the last token; columns count characters. A text of one
 * line gets only the column, because a prefix already names the line. */
static void put_place(char place[PLACE_BYTES], const struct parser *p)
{
    int line = 1, column = 0;

    for (const char *c = p->text; c < p->at; c++) {
        line += *c == '\n';
        column = *c == '\n' ? 0 : column + ((*c & 0xc0) != 0x80);
    }
    if (p->text < p->end && memchr(p->text, '\n', (size_t)(p->end - p->text)))
        snprintf(place, PLACE_BYTES, "line %d column %d", line, column);
    else
        snprintf(place, PLACE_BYTES, "column %d", column);
}

static KG_PRINTF(2, 3) kg_status refuse(const struct parser *p, const char *fmt, ...)
{
    size_t n = (size_t)(p->at - p->token);
    char what[128], near[QUOTED_BYTES + 1] = "";
    const char *end = "";
    char place[PLACE_BYTES];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    put_place(place, p);
    /* the message stays on one line */
    for (size_t i = 0; n <= QUOTED_BYTES && i < n; i++)
        near[i] = (unsigned char)p->token[i] < ' ' ? ' ' : p->token[i];
    if (p->token == p->end)
        end = " near end of file";
    return kg_fail(p->err, KG_EFORMAT, "%s: expected JSON, found an error: %s%s%s%s",
                   place, what, *near ? " near '" : end, near, *near ? "'" : "");
}

/* ---- tokens ---- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_letter(char c) { return (c | ' ') >= 'a' && (c | ' ') <= 'z'; }

static bool take(struct parser *p, const char *set)
{
    if (p->at == p->end || !kg_char_in(set, *p->at))
        return false;
    p->at++;
    return true;
}

static bool take_all(struct parser *p, bool (*is)(char))
{
    const char *from = p->at;

    while (p->at < p->end && is(*p->at))
        p->at++;
    return p->at > from;
}

/* Starts after a minus sign, or at the first digit.   returns the kind */
static char scan_number(struct parser *p)
{
    char kind = INTEGER;

    if (take(p, "0") ? p->at < p->end && is_digit(*p->at) : !take_all(p, is_digit))
        return INVALID;
    if (take(p, ".")) {
        kind = REAL;
        if (!take_all(p, is_digit))
            return INVALID;
    }
    if (take(p, "eE")) {
        kind = REAL;
        take(p, "+-");
        if (!take_all(p, is_digit))
            return INVALID;
    }
    return kind;
}

/* Scans the whole word even if it is invalid, because errors quote it. */
static char scan_word(struct parser *p)
{
    static const char *const words[] = {"true", "false", "null"};

    if (is_letter(*p->token))
        take_all(p, is_letter);
    size_t n = (size_t)(p->at - p->token);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i]) == n && memcmp(words[i], p->token, n) == 0)
            return *words[i];
    return INVALID;
}

/* Starts at the backslash. */
static kg_status scan_escape(struct parser *p)
{
    int digits = 0;

    p->at++;
    if (take(p, "\"\\/bfnrt"))
        return KG_OK;
    if (take(p, "u"))
        while (digits < HEX && take(p, "0123456789abcdefABCDEF"))
            digits++;
    if (digits == HEX)
        return KG_OK;
    if (p->at < p->end)
        p->at += kg_utf8_length(p->at, (size_t)(p->end - p->at));
    return refuse(p, "invalid escape");
}

/* Starts after the opening quote, ends after the closing one. */
static kg_status scan_string(struct parser *p)
{
    for (;;) {
        p->at += kg_json_plain_prefix(p->at, (size_t)(p->end - p->at));
        if (p->at == p->end)
            return refuse(p, "the text ends in the middle of a value");
        if (*p->at == '\\') {
            KG_TRY(scan_escape(p));
            continue;
        }
        size_t length = kg_utf8_length(p->at, (size_t)(p->end - p->at));
        if (length == 0)
            return refuse(p, "byte 0x%x is not UTF-8", (unsigned char)*p->at);
        if (length == 1 && (unsigned char)*p->at < ' ')
            return *p->at == '\n'
                       ? refuse(p, "a line break inside a string")
                       : refuse(p, "control character 0x%x inside a string", *p->at);
        p->at += length;
        if (p->at[-1] == '"')
            return KG_OK;
    }
}

static kg_status next(struct parser *p)
{
    while (p->at < p->end &&
           (*p->at == ' ' || *p->at == '\n' || *p->at == '\r' || *p->at == '\t'))
        p->at++;
    p->token = p->at;
    p->kind = END;
    if (p->at == p->end)
        return KG_OK;
    size_t length = (unsigned char)*p->at < 0x80
                        ? 1
                        : kg_utf8_length(p->at, (size_t)(p->end - p->at));
    if (length == 0)
        return refuse(p, "byte 0x%x is not UTF-8", (unsigned char)*p->at);
    p->at += length;
    p->kind = *p->token;
    if (p->kind == '"')
        return scan_string(p);
    const bool digit = is_digit(p->kind);
    if (!digit && kg_char_in("[]{},:", p->kind))
        return KG_OK;
    if (digit)
        p->at--;
    p->kind = digit || p->kind == '-' ? scan_number(p) : scan_word(p);
    return KG_OK;
}

/* ---- strings ---- */

static uint32_t hex_of(const char *digits)
{
    return (uint32_t)strtoul(
        (const char[]){digits[0], digits[1], digits[2], digits[3], 0}, NULL, 16);
}

/* A character beyond 16 bits is a pair of escapes; half a pair is invalid.
 * *from: at the letter u of the escape; set to the byte after what was read */
static kg_status decode_unit(char **to, const char **from, const struct parser *p)
{
    uint32_t unit = hex_of(*from + 1);
    uint32_t low = 0;

    *from += 1 + HEX;
    if (unit >= 0xd800 && unit < 0xdc00 && (*from)[0] == '\\' && (*from)[1] == 'u') {
        low = hex_of(*from + 2);
        *from += 2 + HEX;
        if (low < 0xdc00 || low > 0xdfff)
            return refuse(p, "invalid Unicode '\\u%04X\\u%04X'", unit, low);
        unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
    }
    if (unit >= 0xd800 && unit <= 0xdfff)
        return refuse(p, "invalid Unicode '\\u%04X'", unit);
    *to += kg_utf8_encode(*to, unit);
    return KG_OK;
}

/* Decodes the last token, a string, into the document's memory. */
static kg_status decode(const char **text, size_t *n, struct parser *p)
{
    static const char letters[] = "\"\\/bfnrt", plain[] = "\"\\/\b\f\n\r\t";
    const char *from = p->token + 1;
    const char *end = p->at - 1;
    char *to = kg_json_alloc(p->b->doc, (size_t)(end - from) + 1, p->err);

    *text = to;
    if (!to)
        return KG_ENOMEM;
    while (from < end) {
        const char *escape = memchr(from, '\\', (size_t)(end - from));
        size_t run = (size_t)((escape ? escape : end) - from);

        memcpy(to, from, run);
        to += run;
        from += run + (escape != NULL);
        if (!escape)
            break;
        if (*from == 'u')
            KG_TRY(decode_unit(&to, &from, p));
        else
            *to++ = plain[kg_char_find(letters, *from++) - letters];
    }
    *to = 0;
    *n = (size_t)(to - *text);
    return KG_OK;
}

static kg_status add_string(struct parser *p)
{
    const char *text;
    size_t n;

    KG_TRY(decode(&text, &n, p));
    return kg_json_take_text(p->b, text, n, p->err);
}

static kg_status add_key(struct parser *p)
{
    const char *key;
    size_t n;

    if (p->kind != '"')
        return refuse(p, "expected a key in quotes, or '}'");
    KG_TRY(decode(&key, &n, p));
    if (memchr(key, 0, n))
        return refuse(p, "a NUL in a key");
    p->b->place = p->token;
    return kg_json_take_key(p->b, key, n, p->err);
}

/* ---- values ---- */

/* Reads at most SMALL_DIGITS characters, which cannot overflow: token ids are such. */
static int64_t small_integer(const struct parser *p)
{
    const bool negative = *p->token == '-';
    int64_t x = 0;

    for (const char *c = p->token + negative; c < p->at; c++)
        x = 10 * x + (*c - '0');
    return negative ? -x : x;
}

/* strtoll and strtod need a NUL after the number: all but small integers are copied. */
static kg_status add_number(struct parser *p)
{
    char buffer[NUMBER_BYTES];
    size_t n = (size_t)(p->at - p->token);

    if (p->kind == INTEGER && n <= SMALL_DIGITS)
        return kg_json_add_int(p->b, small_integer(p), p->err);
    char *digits = n < sizeof buffer ? buffer : kg_json_alloc(p->b->doc, n + 1, p->err);
    long long whole;

    if (!digits)
        return KG_ENOMEM;
    memcpy(digits, p->token, n);
    digits[n] = 0;
    errno = 0;
    if (p->kind == INTEGER) {
        whole = strtoll(digits, NULL, 10);
        if (errno == 0)
            return kg_json_add_int(p->b, whole, p->err);
        if (!p->b->wide_integers)
            return refuse(p, "an integer beyond 64 bits");
    }
    double real = strtod(digits, NULL);
    if (!isfinite(real))
        return refuse(p, "a number beyond 1.8e308");
    return kg_json_add_real(p->b, real, p->err);
}

static kg_status add_value(struct parser *p);

/* Starts after the opening bracket, ends at the closing one. */
static kg_status add_members(struct parser *p, char close)
{
    KG_TRY(next(p));
    if (p->kind == close)
        return KG_OK;
    for (;;) {
        if (close == '}') {
            KG_TRY(add_key(p));
            KG_TRY(next(p));
            if (p->kind != ':')
                return refuse(p, "expected ':' after a key");
            KG_TRY(next(p));
        }
        KG_TRY(add_value(p));
        KG_TRY(next(p));
        if (p->kind != ',')
            return p->kind == close ? KG_OK : refuse(p, "expected ',' or '%c'", close);
        KG_TRY(next(p));
    }
}

static kg_status add_list(struct parser *p, enum kg_json_type type, char close)
{
    if (p->b->depth == KG_JSON_MAX_DEPTH)
        return refuse(p, "lists or objects nested more than %d deep", KG_JSON_MAX_DEPTH);
    KG_TRY(kg_json_open(p->b, type, p->err));
    KG_TRY(add_members(p, close));
    kg_status status = kg_json_close(p->b, p->err);
    if (status != KG_EFORMAT)
        return status;
    p->at = p->b->place;
    KG_TRY(next(p));
    return refuse(p, "the same key twice in an object");
}

/* Adds the value that starts with the last token. */
static kg_status add_value(struct parser *p)
{
    switch (p->kind) {
    case '{':
        return add_list(p, KG_JSON_OBJECT, '}');
    case '[':
        return add_list(p, KG_JSON_ARRAY, ']');
    case '"':
        return add_string(p);
    case INTEGER:
    case REAL:
        return add_number(p);
    case 't':
    case 'f':
        return kg_json_add_bool(p->b, p->kind == 't', p->err);
    case 'n':
        return kg_json_add_null(p->b, p->err);
    default:
        return refuse(p, "%s",
                      p->kind == INVALID ? "not a JSON value" : "a value is missing");
    }
}

/* ---- text ---- */

kg_status kg_json_check_fetched(const char *text, size_t n, struct kg_err *err)
{
    static const char pointer[] = "version https://git-lfs.github.com/spec/";

    if (n < sizeof pointer || memcmp(text, pointer, sizeof pointer - 1) != 0)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "expected the file, found a Git LFS pointer to it: `git lfs pull` "
                   "fetches the file");
}

kg_status kg_json_add_parsed(struct kg_json_builder *b, const char *text, size_t n,
                             struct kg_err *err)
{
    struct parser p = {.b = b, .text = text, .end = text + n, .at = text, .err = err};

    /* A byte-order mark and a NUL are invisible in quoted text: special errors name
     * them. */
    const char *nul = memchr(text, 0, n);

    if (nul)
        return kg_fail(err, KG_EFORMAT,
                       "expected JSON without NUL, found one at byte %zu",
                       (size_t)(nul - text));
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        return kg_fail(
            err, KG_EFORMAT,
            "expected JSON, found a byte-order mark (EF BB BF): JSON has none");
    KG_TRY(kg_json_check_fetched(text, n, err));
    KG_TRY(next(&p));
    KG_TRY(add_value(&p));
    KG_TRY(next(&p));
    return p.kind == END ? KG_OK : refuse(&p, "expected the end after one value");
}
