/* Pre-token patterns on PCRE2, and their translation from Oniguruma's dialect.
 *
 * The translation is a whitelist: a construct is copied only if it is known to mean the
 * same to both engines; others are rewritten, or refused with their offset. PCRE2's JIT
 * is used where the system allows it; the interpreter gives the same matches, slower, and
 * takes over if the JIT's fixed stack is too small.
 */
#include "text/pretoken.h"

#include "base/mem.h"
#include "text/pcre_internal.h"

#include <ctype.h>
#include <string.h>

enum { MAX_PATTERN_BYTES = 1 << 16, MAX_GROUP_DEPTH = 64 };

/* Unicode's White_Space, written as the inside of a class. */
static const char SPACE_SET[] = "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-"
                                "\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

/* Letters and numbers assigned after Unicode 14, up to 16, in pairs first-last: the
 * tables of PCRE2 10.42 lack them, those of HuggingFace's current builds have them. To a
 * PCRE2 that knows them the lists add nothing. */
static const char NEW_LETTERS[] = "\\x{1c89}-\\x{1c8a}\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{"
                                  "a7dc}\\x{105c0}-\\x{105f3}\\x{10d4a}-\\x{10d65}"
                                  "\\x{10d6f}-\\x{10d85}\\x{10ec2}-\\x{10ec4}\\x{1123f}-"
                                  "\\x{11240}\\x{11380}-\\x{11389}\\x{1138b}"
                                  "\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}\\x{113d1}"
                                  "\\x{113d3}\\x{11bc0}-\\x{11be0}\\x{11f02}"
                                  "\\x{11f04}-\\x{11f10}\\x{11f12}-\\x{11f33}\\x{1342f}"
                                  "\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}"
                                  "\\x{16100}-\\x{1611d}\\x{16d40}-\\x{16d6c}\\x{18cff}"
                                  "\\x{1b132}\\x{1b155}\\x{1df25}-\\x{1df2a}"
                                  "\\x{1e030}-\\x{1e06d}\\x{1e4d0}-\\x{1e4eb}\\x{1e5d0}-"
                                  "\\x{1e5ed}\\x{1e5f0}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}"
                                  "\\x{31350}-\\x{323af}";
static const char NEW_NUMBERS[] = "\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-"
                                  "\\x{11bf9}\\x{11f50}-\\x{11f59}\\x{16130}-\\x{16139}"
                                  "\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1d2c0}-"
                                  "\\x{1d2d3}\\x{1e4f0}-\\x{1e4f9}\\x{1e5f1}-\\x{1e5fa}";

/* ---- translation ---- */

struct translator {
    const char *in;
    size_t n;
    size_t at;
    struct kg_str *out;
    struct kg_err *err;
};

static int peek(const struct translator *t, size_t ahead)
{
    return t->at + ahead < t->n ? (unsigned char)t->in[t->at + ahead] : -1;
}

static kg_status refuse(const struct translator *t, const char *what, size_t bytes)
{
    size_t shown = bytes < t->n - t->at ? bytes : t->n - t->at;
    return kg_fail(t->err, KG_EUNSUPPORTED,
                   "pattern offset %zu: %s '%.*s' is not supported", t->at, what,
                   (int)shown, t->in + t->at);
}

static kg_status copy(struct translator *t, size_t bytes)
{
    KG_TRY(kg_str_append(t->out, t->in + t->at, bytes, t->err));
    t->at += bytes;
    return KG_OK;
}

/* Bytes up to the next '}', inclusive, if a '{' is at `from`; else 0. */
static size_t braced(const struct translator *t, size_t from)
{
    if (peek(t, from) != '{')
        return 0;
    for (size_t i = from + 1; peek(t, i) >= 0; i++)
        if (peek(t, i) == '}')
            return i + 1;
    return 0;
}

/* Appends a set, given as the inside of a class. */
static kg_status put_set(struct translator *t, const char *set, const char *more,
                         bool negated, bool in_class)
{
    if (in_class && negated)
        return refuse(t, "class with", 2);
    return in_class
               ? kg_str_printf(t->out, t->err, "%s%s", set, more)
               : kg_str_printf(t->out, t->err, "[%s%s%s]", negated ? "^" : "", set, more);
}

static kg_status translate_property(struct translator *t, bool in_class)
{
    size_t bytes = braced(t, 2);
    bool negated = peek(t, 1) == 'P';
    bool single = bytes == 5; /* \p{X} */
    if (!bytes)
        return refuse(t, "escape", 3);
    if (single && peek(t, 3) == 'L')
        KG_TRY(put_set(t, "\\p{L}", NEW_LETTERS, negated, in_class));
    else if (single && peek(t, 3) == 'N')
        KG_TRY(put_set(t, "\\p{N}", NEW_NUMBERS, negated, in_class));
    else
        return copy(t, bytes);
    t->at += bytes;
    return KG_OK;
}

static kg_status translate_space(struct translator *t, bool in_class)
{
    KG_TRY(put_set(t, SPACE_SET, "", peek(t, 1) == 'S', in_class));
    t->at += 2;
    return KG_OK;
}

static kg_status translate_escape(struct translator *t, bool in_class)
{
    int c = peek(t, 1);
    if (c < 0)
        return refuse(t, "lone", 1);
    if (c == 's' || c == 'S')
        return translate_space(t, in_class);
    if (c == 'p' || c == 'P')
        return translate_property(t, in_class);
    if (c == 'u') {
        /* \uHHHH */
        for (size_t i = 2; i < 6; i++)
            if (peek(t, i) < 0 || !isxdigit(peek(t, i)))
                return refuse(t, "escape", 6);
        KG_TRY(kg_str_printf(t->out, t->err, "\\x{%.4s}", t->in + t->at + 2));
        t->at += 6;
        return KG_OK;
    }
    if (c == 'x' && braced(t, 2))
        return copy(t, braced(t, 2));
    if (c < 0x80 && (kg_char_in("dDnrtfea", (char)c) || ispunct(c) || c == ' '))
        return copy(t, 2);
    return refuse(t, "escape", 2);
}

static kg_status translate_class(struct translator *t)
{
    KG_TRY(copy(t, peek(t, 1) == '^' ? 2 : 1));
    if (peek(t, 0) == ']')
        return refuse(t, "class that begins with", 1);
    while (peek(t, 0) != ']') {
        int c = peek(t, 0);
        if (c < 0)
            return kg_fail(t->err, KG_EFORMAT, "pattern: a class is not closed");
        if (c == '[')
            return refuse(t, "class inside a class", 8);
        if (c == '&' && peek(t, 1) == '&')
            return refuse(t, "intersection", 2);
        KG_TRY(c == '\\' ? translate_escape(t, true) : copy(t, 1));
    }
    return copy(t, 1);
}

static kg_status translate_group(struct translator *t)
{
    static const char *const opens[] = {"(?:", "(?i:", "(?=", "(?!",
                                        "(?>", "(?<=", "(?<!"};
    if (peek(t, 1) == '*')
        return refuse(t, "group", 2);
    if (peek(t, 1) != '?')
        return copy(t, 1);
    for (size_t i = 0; i < sizeof opens / sizeof *opens; i++) {
        size_t len = strlen(opens[i]);
        if (t->n - t->at >= len && memcmp(t->in + t->at, opens[i], len) == 0)
            return copy(t, len);
    }
    return refuse(t, "group", 4);
}

/* {n} {n,} {n,m}; a + or ? after it is a repetition in Oniguruma, but a mode in PCRE2. */
static kg_status translate_counts(struct translator *t)
{
    size_t bytes = braced(t, 0);
    if (bytes < 3 || !isdigit(peek(t, 1)))
        return refuse(t, "quantifier", bytes ? bytes : 1);
    for (size_t i = 1; i + 1 < bytes; i++)
        if (!isdigit(peek(t, i)) && peek(t, i) != ',')
            return refuse(t, "quantifier", bytes);
    if (peek(t, bytes) == '+' || peek(t, bytes) == '?')
        return refuse(t, "quantifier", bytes + 1);
    return copy(t, bytes);
}

static kg_status translate_one(struct translator *t)
{
    switch (peek(t, 0)) {
    case '\\':
        return translate_escape(t, false);
    case '[':
        return translate_class(t);
    case '(':
        return translate_group(t);
    case '{':
        return translate_counts(t);
    case '^':
    case '$':
        return refuse(t, "anchor", 1);
    default:
        return copy(t, 1);
    }
}

/* Translates an Oniguruma pattern for PCRE2. */
static kg_status translate(struct kg_str *out, const char *pattern, size_t n,
                           struct kg_err *err)
{
    struct translator t = {.in = pattern, .n = n, .out = out, .err = err};
    if (n > MAX_PATTERN_BYTES)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "pattern of %zu bytes, at most %d are supported", n,
                       MAX_PATTERN_BYTES);
    while (t.at < t.n)
        KG_TRY(translate_one(&t));
    return KG_OK;
}

/* ---- compiling ---- */

struct kg_pretoken {
    /* owned; sends the library's allocations through base/mem */
    pcre2_general_context *memory;
    pcre2_code *code; /* owned */
};

static void *library_alloc(size_t bytes, void *user)
{
    struct kg_err ignored; /* the library reports NULL in its own way */
    (void)user;
    return kg_mem_calloc(1, bytes, "regular expression", &ignored);
}

static void library_free(void *block, void *user)
{
    (void)user;
    kg_mem_free(block);
}

pcre2_general_context *kg_pcre_memory(struct kg_err *err)
{
    pcre2_general_context *c = pcre2_general_context_create(library_alloc, library_free,
                                                            NULL);

    if (!c)
        kg_fail(err, KG_ENOMEM, "no memory to compile a pattern");
    return c;
}

static kg_status compile_failed(int code, size_t offset, struct kg_err *err)
{
    unsigned char text[160] = "";
    if (code == PCRE2_ERROR_HEAP_FAILED || code == PCRE2_ERROR_NOMEMORY)
        return kg_fail(err, KG_ENOMEM, "no memory to compile a pattern");
    pcre2_get_error_message(code, text, sizeof text);
    return kg_fail(err, KG_EFORMAT, "pattern, translated, offset %zu: %s", offset,
                   (char *)text);
}

static kg_status compile(struct kg_pretoken *p, const char *text, size_t n, bool literal,
                         struct kg_err *err)
{
    uint32_t flags = PCRE2_UTF |
                     (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C);
    int code = 0;
    size_t offset = 0;
    uint32_t matches_empty = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(p->memory);
    if (!context)
        return kg_fail(err, KG_ENOMEM, "no memory to compile a pattern");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, MAX_GROUP_DEPTH);
    p->code = pcre2_compile((PCRE2_SPTR)text, n, flags, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!p->code)
        return compile_failed(code, offset, err);
    pcre2_pattern_info(p->code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty)
        return kg_fail(err, KG_EUNSUPPORTED, "pattern may match the empty text");
    /* Failure only costs speed: pcre2_match() then interprets the pattern. */
    (void)pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE);
    return KG_OK;
}

kg_status kg_pretoken_create(struct kg_pretoken **out, const char *pattern, size_t n,
                             bool literal, struct kg_err *err)
{
    kg_status status;
    struct kg_str translated = {0};
    struct kg_pretoken *p = kg_mem_calloc(1, sizeof *p, "pre-token pattern", err);
    if (!p)
        return err->code;
    p->memory = kg_pcre_memory(err);
    if (!p->memory) {
        status = err->code;
        goto out;
    }
    if (literal)
        KG_TRY_GOTO(out, kg_str_append(&translated, pattern, n, err));
    else
        KG_TRY_GOTO(out, translate(&translated, pattern, n, err));
    KG_TRY_GOTO(out, compile(p, kg_str_text(&translated), translated.len, literal, err));
    *out = p;
    p = NULL;
out:
    kg_str_release(&translated);
    kg_pretoken_free(p);
    return status;
}

void kg_pretoken_free(struct kg_pretoken *p)
{
    if (!p)
        return;
    pcre2_code_free(p->code);
    pcre2_general_context_free(p->memory);
    kg_mem_free(p);
}

/* ---- scanning ---- */

kg_status kg_pretoken_scan_init(struct kg_pretoken_scan *scan,
                                const struct kg_pretoken *pattern, struct kg_err *err)
{
    *scan = (struct kg_pretoken_scan){.pattern = pattern};
    scan->match = pcre2_match_data_create(1, pattern->memory);
    if (!scan->match)
        return kg_fail(err, KG_ENOMEM, "no memory to match a pattern");
    return KG_OK;
}

void kg_pretoken_scan_release(struct kg_pretoken_scan *scan)
{
    pcre2_match_data_free(scan->match);
    *scan = (struct kg_pretoken_scan){0};
}

void kg_pretoken_scan_start(struct kg_pretoken_scan *scan, const char *text, size_t n)
{
    scan->text = text;
    scan->n = n;
    scan->at = 0;
    scan->match_end = 0;
}

static kg_status match_failed(const struct kg_pretoken_scan *scan, int code,
                              struct kg_err *err)
{
    unsigned char text[160] = "";
    if (code == PCRE2_ERROR_NOMEMORY)
        return kg_fail(err, KG_ENOMEM, "no memory to match a pattern");
    pcre2_get_error_message(code, text, sizeof text);
    return kg_fail(err, KG_EFORMAT,
                   "the pre-tokenizer pattern gave up at byte offset %zu: %s", scan->at,
                   (char *)text);
}

static int match_from(struct kg_pretoken_scan *scan)
{
    const pcre2_code *code = scan->pattern->code;
    PCRE2_SPTR text = (PCRE2_SPTR)scan->text;
    int rc = pcre2_match(code, text, scan->n, scan->at, PCRE2_NO_UTF_CHECK, scan->match,
                         NULL);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, text, scan->n, scan->at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         scan->match, NULL);
    return rc;
}

kg_status kg_pretoken_scan_next(struct kg_pretoken_scan *scan, size_t *start, size_t *len,
                                struct kg_err *err)
{
    size_t end = scan->n;
    *start = scan->at;
    *len = 0;
    if (scan->at == scan->n)
        return KG_OK;
    scan->matched = scan->match_end > scan->at;
    if (scan->matched) {
        end = scan->match_end;
    } else {
        int rc = match_from(scan);
        if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
            return match_failed(scan, rc, err);
        if (rc >= 0) {
            const size_t *found = pcre2_get_ovector_pointer(scan->match);
            if (found[1] <= found[0] || found[0] < scan->at)
                return kg_fail(err, KG_EUNSUPPORTED,
                               "the pre-tokenizer pattern matched the empty text");
            scan->match_end = found[1];
            scan->matched = found[0] == scan->at;
            end = scan->matched ? found[1] : found[0];
        }
    }
    *len = end - scan->at;
    scan->at = end;
    return KG_OK;
}
