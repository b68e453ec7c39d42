/* JSON text into calls of a builder.
 *
 * A text that is decoded is no longer than it stands in the file, quotes included. So one
 * block of the document, as long as the whole text, holds every key and string that is in
 * it, one behind the other, and each is written there as it is read. The builder counts
 * the depth, which bounds the recursion, and finds keys that come twice.
 */
#include "data/json_internal.h"

#include "base/file.h"
#include "data/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT_NUMBER_BYTES = 40, MOST_QUOTED_BYTES = 20 };

struct parser {
    struct kg_json_builder *builder; /* borrowed */
    const char *text;                /* borrowed */
    const char *at;
    const char *end;
    char *decoded; /* where the next string goes */
    struct kg_err *err;
};

static bool is_in(char c, char least, char most) { return c >= least && c <= most; }

/* ---- errors ---- */

/* Put the place of the byte at `at` in front of the error: its line and its column, in
 * characters. */
static kg_status place(const struct parser *p, const char *at)
{
    int64_t line = 1;
    int64_t column = 1;

    for (const char *c = p->text; c < at; c++) {
        column += (*c & 0xc0) != 0x80;
        if (*c != '\n')
            continue;
        line++;
        column = 1;
    }
    return kg_err_prefix(p->err, "line %lld column %lld", (long long)line,
                         (long long)column);
}

/* Bytes of the word at `at`, or of the one character. */
static size_t word_bytes(const char *at, size_t left)
{
    size_t n = 0;

    while (n < left && n < MOST_QUOTED_BYTES &&
           (is_in(at[n], 'a', 'z') || is_in(at[n], 'A', 'Z') || is_in(at[n], '0', '9')))
        n++;
    return n > 0 || left == 0 ? n : kg_utf8_length(at, left);
}

static kg_status bad(const struct parser *p, const char *at, const char *expected)
{
    size_t left = (size_t)(p->end - at);
    size_t n = word_bytes(at, left);

    if (left == 0)
        kg_fail(p->err, KG_EFORMAT, "expected %s, found the end", expected);
    else if (n == 0 || (n == 1 && (*at < ' ' || *at == 0x7f)))
        kg_fail(p->err, KG_EFORMAT, "expected %s, found the byte 0x%02x", expected,
                (unsigned char)*at);
    else if (left >= 3 && memcmp(at, "\xef\xbb\xbf", 3) == 0) /* it is not seen */
        kg_fail(p->err, KG_EFORMAT,
                "expected %s, found a byte-order mark (EF BB BF): JSON has none",
                expected);
    else
        kg_fail(p->err, KG_EFORMAT, "expected %s, found '%.*s'", expected, (int)n, at);
    return place(p, at);
}

/* A call of the builder about what stands at `at`. */
static kg_status placed(const struct parser *p, const char *at, kg_status status)
{
    return status == KG_OK ? KG_OK : place(p, at);
}

/* ---- tokens ---- */

/* The next character that is no space, or -1 at the end. */
static int look(struct parser *p)
{
    while (p->at < p->end &&
           (*p->at == ' ' || *p->at == '\n' || *p->at == '\r' || *p->at == '\t'))
        p->at++;
    return p->at < p->end ? (unsigned char)*p->at : -1;
}

static bool take(struct parser *p, char c)
{
    if (look(p) != c)
        return false;
    p->at++;
    return true;
}

static bool is_digit(const struct parser *p)
{
    return p->at < p->end && is_in(*p->at, '0', '9');
}

/* ---- strings ---- */

/* The four digits behind \u.   returns -1 where they are none */
static int take_hex(struct parser *p)
{
    int code = 0;

    if (p->end - p->at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = p->at[i];
        int digit = is_in(c, '0', '9')   ? c - '0'
                    : is_in(c, 'a', 'f') ? c - 'a' + 10
                    : is_in(c, 'A', 'F') ? c - 'A' + 10
                                         : -1;

        if (digit < 0)
            return -1;
        code = code << 4 | digit;
    }
    p->at += 4;
    return code;
}

static void put_code(struct parser *p, unsigned code)
{
    char *to = p->decoded;

    if (code < 0x80) {
        *to++ = (char)code;
    } else if (code < 0x800) {
        *to++ = (char)(0xc0 | code >> 6);
        *to++ = (char)(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        *to++ = (char)(0xe0 | code >> 12);
        *to++ = (char)(0x80 | (code >> 6 & 0x3f));
        *to++ = (char)(0x80 | (code & 0x3f));
    } else {
        *to++ = (char)(0xf0 | code >> 18);
        *to++ = (char)(0x80 | (code >> 12 & 0x3f));
        *to++ = (char)(0x80 | (code >> 6 & 0x3f));
        *to++ = (char)(0x80 | (code & 0x3f));
    }
    p->decoded = to;
}

/* \uXXXX, and the second half of a pair behind it; p is behind the u. */
static kg_status take_unicode(struct parser *p)
{
    const char *start = p->at - 2;
    int code = take_hex(p);
    int low;

    if (code < 0)
        return bad(p, p->at, "four hexadecimal digits behind \\u");
    if (code >= 0xd800 && code < 0xdc00 && p->end - p->at >= 2 && p->at[0] == '\\' &&
        p->at[1] == 'u') {
        p->at += 2;
        low = take_hex(p);
        code = low >= 0xdc00 && low < 0xe000
                   ? 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00)
                   : 0xd800;
    }
    if (code >= 0xd800 && code < 0xe000) {
        kg_fail(p->err, KG_EFORMAT,
                "expected a whole surrogate pair, found half of one in a string");
        return place(p, start);
    }
    put_code(p, (unsigned)code);
    return KG_OK;
}

static kg_status take_escape(struct parser *p)
{
    static const char letters[] = "\"\\/bfnrt";
    static const char meant[] = "\"\\/\b\f\n\r\t";
    const char *found;

    p->at++;
    if (p->at == p->end)
        return bad(p, p->at, "an escape in a string");
    if (*p->at == 'u') {
        p->at++;
        return take_unicode(p);
    }
    found = *p->at ? strchr(letters, *p->at) : NULL;
    if (!found)
        return bad(p, p->at, "one of \"\\/bfnrtu behind a backslash");
    *p->decoded++ = meant[found - letters];
    p->at++;
    return KG_OK;
}

/* What stands at p, one character or escape. */
static kg_status take_character(struct parser *p)
{
    size_t n;

    if (p->at == p->end)
        return bad(p, p->at, "the end of a string");
    if (*p->at == '\\')
        return take_escape(p);
    n = kg_utf8_length(p->at, (size_t)(p->end - p->at));
    if (n == 0)
        return bad(p, p->at, "UTF-8 in a string");
    if ((unsigned char)*p->at < ' ')
        return bad(p, p->at, "control characters of a string as \\u00XX");
    memcpy(p->decoded, p->at, n);
    p->decoded += n;
    p->at += n;
    return KG_OK;
}

/* Eight bytes are copied whatever they are; those that are not plain are written over. */
static void take_plain(struct parser *p)
{
    size_t n = KG_JSON_WORD_BYTES;
    uint64_t eight;

    while (n == KG_JSON_WORD_BYTES && p->end - p->at >= KG_JSON_WORD_BYTES) {
        memcpy(&eight, p->at, KG_JSON_WORD_BYTES);
        memcpy(p->decoded, &eight, KG_JSON_WORD_BYTES);
        n = kg_json_plain_bytes(eight);
        p->decoded += n;
        p->at += n;
    }
}

/* From the quote on.   *text, *n: in the document, with a NUL behind it */
static kg_status take_string(const char **text, size_t *n, struct parser *p)
{
    *text = p->decoded;
    p->at++;
    take_plain(p);
    while (p->at == p->end || *p->at != '"') {
        KG_TRY(take_character(p));
        take_plain(p);
    }
    p->at++;
    *n = (size_t)(p->decoded - *text);
    *p->decoded++ = 0;
    return KG_OK;
}

/* ---- numbers ---- */

/* At least one digit. */
static kg_status take_digits(struct parser *p)
{
    if (!is_digit(p))
        return bad(p, p->at, "a digit");
    while (is_digit(p))
        p->at++;
    return KG_OK;
}

static bool is_at(const struct parser *p, char a, char b)
{
    return p->at < p->end && (*p->at == a || *p->at == b);
}

/* The digits from start up to p, a sign before them. */
static kg_status add_int(struct parser *p, const char *start)
{
    bool negative = *start == '-';
    uint64_t most = (uint64_t)INT64_MAX + negative;
    uint64_t x = 0;

    for (const char *c = start + negative; c < p->at; c++) {
        unsigned digit = (unsigned)(*c - '0');

        if (x > (most - digit) / 10) {
            kg_fail(p->err, KG_EFORMAT,
                    "expected an integer of 64 bits, found one that is too big");
            return place(p, start);
        }
        x = x * 10 + digit;
    }
    return kg_json_add_int(p->builder, negative ? (int64_t)(0 - x) : (int64_t)x, p->err);
}

static kg_status add_real(struct parser *p, const char *start)
{
    size_t n = (size_t)(p->at - start);
    char shorter[SHORT_NUMBER_BYTES];
    char *copy = shorter;
    double x;

    if (n >= sizeof shorter)
        copy = kg_json_alloc(kg_json_begun(p->builder), n + 1, p->err);
    if (!copy)
        return KG_ENOMEM;
    memcpy(copy, start, n);
    copy[n] = 0;
    x = strtod(copy, NULL);
    if (isfinite(x))
        return kg_json_add_real(p->builder, x, p->err);
    kg_fail(p->err, KG_EFORMAT,
            "expected a number that a double can hold, found an overflow");
    return place(p, start);
}

static kg_status take_number(struct parser *p)
{
    const char *start = p->at;
    bool is_real = false;

    p->at += *p->at == '-';
    if (is_at(p, '0', '0'))
        p->at++; /* and no digit behind it */
    else
        KG_TRY(take_digits(p));
    if (is_at(p, '.', '.')) {
        is_real = true;
        p->at++;
        KG_TRY(take_digits(p));
    }
    if (is_at(p, 'e', 'E')) {
        is_real = true;
        p->at++;
        p->at += is_at(p, '+', '-');
        KG_TRY(take_digits(p));
    }
    return is_real ? add_real(p, start) : add_int(p, start);
}

/* ---- values ---- */

static kg_status take_value(struct parser *p);

/* The word, if it stands at p. */
static bool take_word(struct parser *p, const char *word)
{
    size_t n = strlen(word);

    if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n) != 0)
        return false;
    p->at += n;
    return true;
}

static kg_status take_other(struct parser *p)
{
    if (take_word(p, "true"))
        return kg_json_add_bool(p->builder, true, p->err);
    if (take_word(p, "false"))
        return kg_json_add_bool(p->builder, false, p->err);
    if (take_word(p, "null"))
        return kg_json_add_null(p->builder, p->err);
    return bad(p, p->at, "a JSON value");
}

/* The bracket at p. */
static kg_status open_list(struct parser *p, enum kg_json_type type)
{
    KG_TRY(placed(p, p->at, kg_json_open(p->builder, type, p->err)));
    p->at++;
    return KG_OK;
}

static kg_status close_list(struct parser *p, char bracket, const char *expected)
{
    const char *at = p->at;

    if (!take(p, bracket))
        return bad(p, p->at, expected);
    return placed(p, at, kg_json_close(p->builder, p->err));
}

static kg_status take_array(struct parser *p)
{
    KG_TRY(open_list(p, KG_JSON_ARRAY));
    if (look(p) == ']')
        return close_list(p, ']', "']'");
    do {
        KG_TRY(take_value(p));
    } while (take(p, ','));
    return close_list(p, ']', "',' or ']' behind a value");
}

static kg_status take_member(struct parser *p)
{
    const char *at = p->at;
    const char *key;
    size_t n;

    if (look(p) != '"')
        return bad(p, p->at, "a key in quotes");
    at = p->at;
    KG_TRY(take_string(&key, &n, p));
    KG_TRY(placed(p, at, kg_json_hold_key(p->builder, key, n, p->err)));
    if (!take(p, ':'))
        return bad(p, p->at, "':' behind a key");
    return take_value(p);
}

static kg_status take_object(struct parser *p)
{
    KG_TRY(open_list(p, KG_JSON_OBJECT));
    if (look(p) == '}')
        return close_list(p, '}', "'}'");
    do {
        KG_TRY(take_member(p));
    } while (take(p, ','));
    return close_list(p, '}', "',' or '}' behind a value");
}

static kg_status take_value(struct parser *p)
{
    const char *text;
    size_t n;

    switch (look(p)) {
    case '{':
        return take_object(p);
    case '[':
        return take_array(p);
    case '"':
        KG_TRY(take_string(&text, &n, p));
        return kg_json_hold_text(p->builder, text, n, p->err);
    default:
        return is_digit(p) || is_at(p, '-', '-') ? take_number(p) : take_other(p);
    }
}

kg_status kg_json_add_parsed(struct kg_json_builder *b, const char *text, size_t n,
                             struct kg_err *err)
{
    struct parser p = {.builder = b, .text = text, .at = text, .err = err};

    p.end = text + n;
    p.decoded = kg_json_alloc(kg_json_begun(b), n, err);
    if (!p.decoded)
        return KG_ENOMEM;
    KG_TRY(take_value(&p));
    return look(&p) < 0 ? KG_OK : bad(&p, p.at, "the end behind a JSON value");
}

/* ---- documents ---- */

kg_status kg_json_parse_next(struct kg_json_doc *doc, struct kg_json_builder *b,
                             const char *text, size_t n, const char *where,
                             struct kg_err *err)
{
    kg_status status;

    KG_TRY_GOTO(out, kg_json_begin(b, doc, where, err));
    KG_TRY_GOTO(out, kg_json_add_parsed(b, n ? text : "", n, err));
    KG_TRY_GOTO(out, kg_json_end(b, err));
out:
    if (status == KG_OK)
        return KG_OK;
    kg_json_release(doc);
    return kg_err_prefix(err, "%s", where);
}

kg_status kg_json_parse(struct kg_json_doc *doc, const char *text, size_t n,
                        const char *where, struct kg_err *err)
{
    struct kg_json_builder *b;
    kg_status status;

    memset(doc, 0, sizeof *doc);
    KG_TRY(kg_json_builder_create(&b, SIZE_MAX, err));
    status = kg_json_parse_next(doc, b, text, n, where, err);
    kg_json_builder_free(b);
    return status;
}

kg_status kg_json_read(struct kg_json_doc *doc, const char *path, uint64_t max_bytes,
                       struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status;

    memset(doc, 0, sizeof *doc);
    KG_TRY_GOTO(out, kg_file_read(&text, path, max_bytes, err));
    KG_TRY_GOTO(out, kg_json_parse(doc, kg_str_text(&text), text.len, path, err));
out:
    kg_str_release(&text);
    return status;
}
