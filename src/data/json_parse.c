/* JSON text into calls of a builder, by way of jansson.
 *
 * jansson checks the grammar and decodes strings and numbers. Its values are not what
 * callers see: freeing hundreds of thousands of them one by one costs more than parsing.
 * So its blocks come from a pool of the builder's, which is empty again as soon as the
 * document has copies of the keys and strings.
 */
#include "data/json_internal.h"

#include "base/file.h"

#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

/* jansson's allocator is one for the process. While a thread parses, its blocks come from
 * a scratch pool; at any other time (another user of jansson in the process) they
 * are malloc's. */
struct parsing {
    struct kg_json_doc *scratch; /* borrowed */
    struct kg_err *err;
    bool no_memory;
};
static _Thread_local struct parsing *parsing; /* borrowed; NULL: none */
static pthread_once_t hooks_once = PTHREAD_ONCE_INIT;

static void *hook_malloc(size_t n)
{
    void *block;

    if (!parsing)
        return malloc(n);
    block = kg_json_alloc(parsing->scratch, n, parsing->err);
    parsing->no_memory |= !block;
    return block;
}

static void hook_free(void *block)
{
    if (!parsing)
        free(block);
}

static void install_hooks(void)
{
    json_set_alloc_funcs(hook_malloc, hook_free);
    json_object_seed(0);
}

/* ---- from jansson's values to the builder ---- */

static kg_status add(struct kg_json_builder *b, json_t *v, struct kg_err *err);

static kg_status add_array(struct kg_json_builder *b, json_t *array, struct kg_err *err)
{
    KG_TRY(kg_json_expect(b, json_array_size(array), err));
    KG_TRY(kg_json_open(b, KG_JSON_ARRAY, err));
    for (size_t i = 0; i < json_array_size(array); i++)
        KG_TRY(add(b, json_array_get(array, i), err));
    return kg_json_close(b, err);
}

/* jansson iterates in the order of insertion. */
static kg_status add_object(struct kg_json_builder *b, json_t *object, struct kg_err *err)
{
    KG_TRY(kg_json_open(b, KG_JSON_OBJECT, err));
    for (void *at = json_object_iter(object); at;
         at = json_object_iter_next(object, at)) {
        const char *key = json_object_iter_key(at);

        KG_TRY(kg_json_add_key(b, key, strlen(key), err));
        KG_TRY(add(b, json_object_iter_value(at), err));
    }
    return kg_json_close(b, err);
}

/* The builder counts the depth, which bounds the recursion. */
static kg_status add(struct kg_json_builder *b, json_t *v, struct kg_err *err)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return add_object(b, v, err);
    case JSON_ARRAY:
        return add_array(b, v, err);
    case JSON_STRING:
        return kg_json_add_text(b, json_string_value(v), json_string_length(v), err);
    case JSON_INTEGER:
        return kg_json_add_int(b, json_integer_value(v), err);
    case JSON_REAL:
        return kg_json_add_real(b, json_real_value(v), err);
    case JSON_TRUE:
    case JSON_FALSE:
        return kg_json_add_bool(b, json_is_true(v), err);
    case JSON_NULL:
        break;
    }
    return kg_json_add_null(b, err);
}

/* ---- text ---- */

static kg_status refuse(const json_error_t *error, struct kg_err *err)
{
    char what[JSON_ERROR_TEXT_LENGTH];
    size_t n = strnlen(error->text, sizeof what - 1);

    /* jansson quotes the text near the error: keep the message on one line */
    for (size_t i = 0; i < n; i++)
        what[i] = (unsigned char)error->text[i] < ' ' ? ' ' : error->text[i];
    what[n] = 0;
    return kg_fail(err, KG_EFORMAT,
                   "line %d column %d: expected JSON, found an error: %s", error->line,
                   error->column, what);
}

/* What jansson does not name: a byte-order mark, which is not seen in the text that it
 * quotes, and a NUL, which version 2.14 passes over behind a number or a word. */
static kg_status check_bytes(const char *text, size_t n, struct kg_err *err)
{
    const char *nul = memchr(text, 0, n);

    if (nul)
        return kg_fail(err, KG_EFORMAT,
                       "expected JSON without NUL, found one at byte %zu",
                       (size_t)(nul - text));
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        return kg_fail(
            err, KG_EFORMAT,
            "expected JSON, found a byte-order mark (EF BB BF): JSON has none");
    return KG_OK;
}

kg_status kg_json_add_parsed(struct kg_json_builder *b, const char *text, size_t n,
                             struct kg_err *err)
{
    struct parsing memory = {.scratch = kg_json_scratch(b), .err = err};
    json_error_t error;
    json_t *root;
    kg_status status;

    KG_TRY(check_bytes(text, n, err));
    pthread_once(&hooks_once, install_hooks);
    parsing = &memory;
    /* at most 2,048 levels deep */
    root = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL,
                      &error);
    parsing = NULL;
    /* jansson goes on with half a word when it cannot keep all of it */
    if (memory.no_memory)
        status = KG_ENOMEM;
    else
        status = root ? add(b, root, err) : refuse(&error, err);
    kg_json_empty(memory.scratch);
    return status;
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

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Behind the digits, quoted text or other byte at `at`. */
static const char *pass(const char *at, const char *end)
{
    bool quoted = *at == '"';
    bool digits = is_digit(*at);

    for (at++; at < end; at++) {
        if (quoted && *at == '"')
            return at + 1;
        if (!quoted && !(digits && is_digit(*at)))
            return at;
        if (quoted && *at == '\\' && at + 1 < end)
            at++;
    }
    return end;
}

static bool is_beyond_64_bits(const char *digits, size_t n, bool negative)
{
    const char *last = negative ? "9223372036854775808" : "9223372036854775807";
    size_t most = strlen(last);

    return n > most || (n == most && memcmp(digits, last, n) > 0);
}

/* Are the digits from `at` to `next` an integer, and not a part of another number? */
static bool is_whole(const char *text, const char *at, const char *next, const char *end)
{
    const char *before = at > text && at[-1] == '-' ? at - 1 : at;

    return is_digit(*at) && (before == text || !kg_char_in(".eE+-", before[-1])) &&
           (next == end || !kg_char_in(".eE", *next));
}

/* The last two digits of an integer beyond 64 bits become "e2", which makes it a real
 * number for jansson, and leaves every other byte where errors count it. */
static void widen(char *text, size_t n)
{
    const char *end = text + n;

    for (char *at = text, *next; at < end; at = next) {
        next = at + (pass(at, end) - at);
        if (is_whole(text, at, next, end) &&
            is_beyond_64_bits(at, (size_t)(next - at), at > text && at[-1] == '-'))
            memcpy(next - 2, "e2", 2);
    }
}

kg_status kg_json_read(struct kg_json_doc *doc, const char *path, uint64_t max_bytes,
                       struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status;

    memset(doc, 0, sizeof *doc);
    KG_TRY_GOTO(out, kg_file_read(&text, path, max_bytes, err));
    if (text.len > 0)
        widen(text.data, text.len);
    KG_TRY_GOTO(out, kg_json_parse(doc, kg_str_text(&text), text.len, path, err));
out:
    kg_str_release(&text);
    return status;
}
