/* Tokenizer files from a GGUF file's metadata.
 *
 * `gpt2` has tokens in ByteLevel's spelling, merges, and the name of a pre-tokenizer: a
 * tokenizer.json, whose pre_tokenizer is a row of a table. `llama` has pieces, scores and
 * types: a tokenizer.model. Other kinds are refused by name.
 */
#include "data/gguf_model.h"
#include "data/json.h"

#include <string.h>

#define KEY "tokenizer.ggml."

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, UNUSED = 5, BYTE = 6 };

/* ---- tokens ---- */

static kg_status refuse(const struct kg_gguf *g, const char *key, const char *expected,
                        struct kg_err *err)
{
    const struct kg_gguf_value *v = kg_gguf_get(g, key);
    size_t n;
    const char *text = kg_gguf_text(v, &n);

    return kg_fail(err, KG_EUNSUPPORTED, "%s: %s: expected %s, found %.*s",
                   g->files[0].path, key, expected, text ? (int)(n < 40 ? n : 40) : 40,
                   text ? text : "none");
}

static kg_status need_model(const struct kg_gguf *g, const char *model,
                            struct kg_err *err)
{
    const struct kg_gguf_value *v = kg_gguf_get(g, KEY "model");

    if (v && !kg_gguf_is(v, "gpt2") && !kg_gguf_is(v, "llama") &&
        !kg_gguf_is(v, "no_vocab"))
        return refuse(g, KEY "model", "gpt2 or llama", err);
    if (kg_gguf_is(v, model))
        return KG_OK;
    return kg_fail(err, KG_ENOTFOUND,
                   "%s: expected " KEY "model %s, found another tokenizer",
                   g->files[0].path, model);
}

/* Walks tokens together with their types and scores. */
struct tokens {
    struct kg_gguf_walk text, type, score;
};

static kg_status begin_tokens(struct tokens *t, const struct kg_gguf *g,
                              struct kg_err *err)
{
    *t = (struct tokens){.text = {.array = kg_gguf_get(g, KEY "tokens")},
                         .type = {.array = kg_gguf_get(g, KEY "token_type")},
                         .score = {.array = kg_gguf_get(g, KEY "scores")}};
    if (kg_gguf_items(t->text.array) == kg_gguf_items(t->type.array) &&
        kg_gguf_items(t->text.array) > 0 && t->text.array->of == KG_GGUF_TEXT)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "%s: expected strings as " KEY "tokens and one token_type for each, "
                   "found %llu and %llu",
                   g->files[0].path, (unsigned long long)kg_gguf_items(t->text.array),
                   (unsigned long long)kg_gguf_items(t->type.array));
}

static bool next_token(struct tokens *t)
{
    (void)kg_gguf_next(&t->type);
    (void)kg_gguf_next(&t->score);
    return kg_gguf_next(&t->text);
}

static int64_t type_of(const struct tokens *t) { return kg_gguf_int(&t->type.item, 0); }

/* The text of the token whose id the key holds.   returns NULL if there is none */
static const char *token_text(const struct kg_gguf *g, const char *key, size_t *n)
{
    struct kg_gguf_walk walk = {.array = kg_gguf_get(g, KEY "tokens")};
    const int64_t id = kg_gguf_int(kg_gguf_get(g, key), -1);

    while (id >= 0 && kg_gguf_next(&walk))
        if (walk.i == (uint64_t)id)
            return kg_gguf_text(&walk.item, n);
    return NULL;
}

static kg_status put_string(struct kg_str *out, const char *before,
                            const struct kg_gguf_value *v, struct kg_err *err)
{
    size_t n;
    const char *text = kg_gguf_text(v, &n);

    KG_TRY(kg_str_puts(out, before, err));
    return kg_json_put_string(out, text ? text : "", n, err);
}

/* ---- tokenizer.json ---- */

#define END   "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define WORDS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(after)                                                                     \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" after "|[^\\r\\n\\p{L}\\p{N}]?" UPPER   \
    "+" LOWER "*" after

/* Pre-tokenizers by llama.cpp's names. */
static const struct pre {
    const char *names;
    const char *pattern; /* NULL: ByteLevel's own */
    bool digits;         /* splits off each digit first */
    bool nfc;
    bool ignore_merges;
    bool begins; /* default of add_bos_token */
} PRES[] = {
    {"gpt-2 olmo phi-2", NULL, false, false, false, false},
    {"smollm starcoder refact command-r codeshell", NULL, true, false, false, false},
    {"qwen2 deepseek-r1-qwen", WORDS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" END, false, true,
     false, false},
    {"llama-bpe llama3 llama-v3 falcon3",
     WORDS "{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" END, false, false, true, true},
    {"dbrx smaug-bpe", WORDS "{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" END, false, false,
     false, false},
    {"tekken", CASED("") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" END, false, false,
     true, true},
    {"gpt-4o",
     CASED("(?i:'s|'t|'re|'ve|'m|'ll|'d)?") "|\\p{N}{1,3}| "
                                            "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" END,
     false, false, false, false},
};

static kg_status find_pre(const struct pre **pre, const struct kg_gguf *g,
                          struct kg_err *err)
{
    const size_t n_pres = sizeof PRES / sizeof *PRES;
    size_t n, i = 0;
    const char *text = kg_gguf_text(kg_gguf_get(g, KEY "pre"), &n);
    char name[64] = "";

    if (text && n < sizeof name)
        memcpy(name, text, n);
    while (i < n_pres && !kg_gguf_names(PRES[i].names, name))
        i++;
    *pre = &PRES[i < n_pres ? i : 0];
    if (i < n_pres)
        return KG_OK;
    return refuse(g, KEY "pre",
                  "one of gpt-2, olmo, phi-2, smollm, starcoder, refact, command-r, "
                  "codeshell, qwen2, deepseek-r1-qwen, llama-bpe, falcon3, dbrx, "
                  "smaug-bpe, tekken, gpt-4o",
                  err);
}

/* ---- the name of a pre-tokenizer ---- */

/* The steps of a pre_tokenizer, in the form of a row of PRES. */
struct steps {
    const char *pattern;
    bool digits, bytes, other;
};

static void read_steps(struct steps *s, const struct kg_json *step)
{
    const struct kg_json *list = kg_json_get(step, "pretokenizers");
    const char *type = kg_json_text(kg_json_get(step, "type"), NULL);
    const char *pattern = kg_json_text(kg_json_get(kg_json_get(step, "pattern"), "Regex"),
                                       NULL);

    for (size_t i = 0; i < kg_json_size(list); i++)
        read_steps(s, kg_json_at(list, i));
    if (type && strcmp(type, "Digits") == 0 &&
        kg_json_bool(kg_json_get(step, "individual_digits"), false))
        s->digits = true;
    else if (type && strcmp(type, "Split") == 0 && pattern && !s->pattern)
        s->pattern = pattern;
    else if (type && strcmp(type, "ByteLevel") == 0 &&
             !kg_json_bool(kg_json_get(step, "add_prefix_space"), false))
        s->bytes = true;
    else
        s->other = s->other || !list;
}

static bool same_steps(const struct pre *pre, const struct steps *s, bool ignore_merges)
{
    return pre->digits == s->digits && pre->ignore_merges == ignore_merges &&
           (pre->pattern ? s->pattern && strcmp(pre->pattern, s->pattern) == 0
                         : !s->pattern);
}

kg_status kg_gguf_pre_of(const char **pre, size_t *n, const struct kg_json *tokenizer,
                         struct kg_err *err)
{
    const struct kg_json *model = kg_json_get(tokenizer, "model");
    const struct kg_json *normalizer = kg_json_get(tokenizer, "normalizer");
    const bool ignores = kg_json_bool(kg_json_get(model, "ignore_merges"), false);
    struct steps s = {0};

    read_steps(&s, kg_json_get(tokenizer, "pre_tokenizer"));
    const char *type = kg_json_text(kg_json_get(normalizer, "type"), NULL);
    const bool other = s.other || !s.bytes ||
                       (kg_json_type(normalizer) != KG_JSON_NULL &&
                        !(type && strcmp(type, "NFC") == 0));
    for (size_t i = 0; i < sizeof PRES / sizeof *PRES && !other; i++)
        if (same_steps(&PRES[i], &s, ignores)) {
            *pre = PRES[i].names;
            *n = strcspn(*pre, " ");
            return KG_OK;
        }
    return kg_fail(err, KG_EUNSUPPORTED,
                   "tokenizer.json: expected a byte-level BPE with the pre_tokenizer of "
                   "GPT-2, SmolLM, Qwen2, Llama 3, OLMo 2, Tekken or GPT-4o, which GGUF "
                   "has names for, found another tokenizer");
}

#define BYTE_LEVEL(regex)                                                                \
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "    \
    "\"use_regex\": " regex "}"

static kg_status put_pre(struct kg_str *out, const struct pre *pre, struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, ",\n \"normalizer\": ", err));
    KG_TRY(kg_str_puts(out, pre->nfc ? "{\"type\": \"NFC\"}" : "null", err));
    KG_TRY(kg_str_puts(out,
                       ",\n \"pre_tokenizer\": {\"type\": \"Sequence\", "
                       "\"pretokenizers\": [",
                       err));
    if (pre->digits)
        KG_TRY(kg_str_puts(out, "{\"type\": \"Digits\", \"individual_digits\": true}, ",
                           err));
    if (!pre->pattern)
        return kg_str_puts(out, BYTE_LEVEL("true") "]}", err);
    KG_TRY(kg_json_put_text(
        out, "{\"type\": \"Split\", \"pattern\": {\"Regex\": ", pre->pattern, err));
    return kg_str_puts(
        out,
        "}, \"behavior\": \"Isolated\", \"invert\": false}, " BYTE_LEVEL("false") "]}",
        err);
}

static bool is_added(int64_t type)
{
    return type == CONTROL || type == USER || type == UNKNOWN;
}

static kg_status put_added(struct kg_str *out, const struct kg_gguf *g,
                           struct kg_err *err)
{
    const char *comma = "";
    struct tokens t;

    KG_TRY(begin_tokens(&t, g, err));
    KG_TRY(kg_str_puts(out, ",\n \"added_tokens\": [", err));
    while (next_token(&t)) {
        if (!is_added(type_of(&t)) || t.text.item.n == 0)
            continue;
        KG_TRY(kg_str_printf(out, err, "%s{\"id\": %llu, \"special\": %s", comma,
                             (unsigned long long)t.text.i,
                             type_of(&t) == USER ? "false" : "true"));
        KG_TRY(put_string(out,
                          ", \"single_word\": false, \"lstrip\": false, \"rstrip\": "
                          "false, \"normalized\": false, \"content\": ",
                          &t.text.item, err));
        KG_TRY(kg_str_putc(out, '}', err));
        comma = ",\n  ";
    }
    return kg_str_putc(out, ']', err);
}

/* Control and user tokens are in added_tokens; unused ids have no text. */
static kg_status put_vocab(struct kg_str *out, const struct kg_gguf *g,
                           struct kg_err *err)
{
    const char *comma = "";
    struct tokens t;

    KG_TRY(begin_tokens(&t, g, err));
    KG_TRY(kg_str_puts(out, ", \"vocab\": {", err));
    while (next_token(&t)) {
        if (type_of(&t) != NORMAL)
            continue;
        KG_TRY(put_string(out, comma, &t.text.item, err));
        KG_TRY(kg_str_printf(out, err, ": %llu", (unsigned long long)t.text.i));
        comma = ", ";
    }
    return kg_str_puts(out, "}", err);
}

/* Adds BOS before a text and EOS after it, if the file says so. */
static kg_status put_template(struct kg_str *out, const struct kg_gguf *g,
                              const struct pre *pre, struct kg_err *err)
{
    const bool ends = kg_gguf_bool(kg_gguf_get(g, KEY "add_eos_token"), false);
    const bool begins = kg_gguf_bool(kg_gguf_get(g, KEY "add_bos_token"), pre->begins);
    static const char *const keys[] = {KEY "bos_token_id", KEY "eos_token_id"};
    const bool wanted[] = {begins, ends};
    struct kg_str parts[2] = {{0}, {0}}, named = {0};
    kg_status status = KG_OK;

    for (int i = 0; i < 2; i++) {
        size_t n = 0;
        const char *text = wanted[i] ? token_text(g, keys[i], &n) : NULL;

        if (!text)
            continue;
        KG_TRY_GOTO(out, kg_str_puts(&parts[i], "{\"SpecialToken\": {\"id\": ", err));
        KG_TRY_GOTO(out, kg_json_put_string(&parts[i], text, n, err));
        KG_TRY_GOTO(out, kg_str_puts(&parts[i], ", \"type_id\": 0}}", err));
        KG_TRY_GOTO(out, kg_str_puts(&named, named.len > 0 ? ", " : "", err));
        KG_TRY_GOTO(out, kg_json_put_string(&named, text, n, err));
        KG_TRY_GOTO(out, kg_str_puts(&named, ": {\"id\": ", err));
        KG_TRY_GOTO(out, kg_json_put_string(&named, text, n, err));
        KG_TRY_GOTO(out,
                    kg_str_printf(&named, err, ", \"ids\": [%lld], \"tokens\": [",
                                  (long long)kg_gguf_int(kg_gguf_get(g, keys[i]), -1)));
        KG_TRY_GOTO(out, kg_json_put_string(&named, text, n, err));
        KG_TRY_GOTO(out, kg_str_puts(&named, "]}", err));
    }
    if (named.len == 0) {
        status = kg_str_puts(out, ",\n \"post_processor\": null", err);
        goto out;
    }
    status = kg_str_printf(
        out, err,
        ",\n \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [%s%s"
        "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}%s%s], \"pair\": [], "
        "\"special_tokens\": {%s}}",
        kg_str_text(&parts[0]), parts[0].len > 0 ? ", " : "",
        parts[1].len > 0 ? ", " : "", kg_str_text(&parts[1]), kg_str_text(&named));
out:
    kg_str_release(&named);
    kg_str_release(&parts[0]);
    kg_str_release(&parts[1]);
    return status;
}

kg_status kg_gguf_tokenizer_json(struct kg_str *out, const struct kg_gguf *g,
                                 struct kg_err *err)
{
    const struct pre *pre;

    KG_TRY(need_model(g, "gpt2", err));
    KG_TRY(find_pre(&pre, g, err));
    KG_TRY(kg_str_puts(out, "{\"version\": \"1.0\"", err));
    KG_TRY(put_added(out, g, err));
    KG_TRY(put_pre(out, pre, err));
    KG_TRY(put_template(out, g, pre, err));
    KG_TRY(kg_str_puts(out, ",\n \"decoder\": " BYTE_LEVEL("true"), err));
    KG_TRY(kg_str_printf(out, err,
                         ",\n \"model\": {\"type\": \"BPE\", \"ignore_merges\": %s",
                         pre->ignore_merges ? "true" : "false"));
    KG_TRY(put_vocab(out, g, err));
    struct kg_gguf_walk walk = {.array = kg_gguf_get(g, KEY "merges")};

    KG_TRY(kg_str_puts(out, ", \"merges\": [", err));
    while (kg_gguf_next(&walk))
        KG_TRY(put_string(out, walk.i > 0 ? ", " : "", &walk.item, err));
    KG_TRY(kg_str_puts(out, "]}", err));
    return kg_str_puts(out, "}\n", err);
}

/* ---- tokenizer.model ---- */

static kg_status put_varint(struct kg_str *out, uint64_t x, struct kg_err *err)
{
    for (; x > 127; x >>= 7)
        KG_TRY(kg_str_putc(out, (char)((x & 127) | 128), err));
    return kg_str_putc(out, (char)x, err);
}

static kg_status put_field(struct kg_str *out, uint32_t field, uint64_t x,
                           struct kg_err *err)
{
    KG_TRY(put_varint(out, field << 3, err));
    return put_varint(out, x, err);
}

static kg_status put_bytes(struct kg_str *out, uint32_t field, const void *bytes,
                           size_t n, struct kg_err *err)
{
    KG_TRY(put_varint(out, field << 3 | 2, err));
    KG_TRY(put_varint(out, n, err));
    return kg_str_append(out, bytes, n, err);
}

/* A user-defined piece has spaces; the text that is searched has U+2581 instead. */
static kg_status put_text(struct kg_str *out, const struct tokens *t, struct kg_err *err)
{
    const unsigned char *text = t->text.item.at;
    const size_t n = (size_t)t->text.item.n;
    size_t spaces = 0;

    for (size_t i = 0; i < n && type_of(t) == USER; i++)
        spaces += text[i] == ' ';
    KG_TRY(put_varint(out, 1 << 3 | 2, err));
    KG_TRY(put_varint(out, n + 2 * spaces, err));
    for (size_t i = 0; i < n; i++)
        KG_TRY(spaces > 0 && text[i] == ' ' ? kg_str_puts(out, "\xe2\x96\x81", err)
                                            : kg_str_putc(out, (char)text[i], err));
    return KG_OK;
}

/* *bytes: whether there are byte tokens. Unused tokens at the end are left out: they are
 * rows of the embedding without text. */
static kg_status put_pieces(struct kg_str *out, const struct kg_gguf *g, bool *bytes,
                            struct kg_str *scratch, struct kg_err *err)
{
    uint64_t n = 0;
    struct tokens t;

    KG_TRY(begin_tokens(&t, g, err));
    if (kg_gguf_items(t.score.array) != kg_gguf_items(t.text.array))
        return kg_fail(
            err, KG_EFORMAT, "%s: expected as many " KEY "scores as tokens, found %llu",
            g->files[0].path, (unsigned long long)kg_gguf_items(t.score.array));
    while (next_token(&t))
        n = type_of(&t) == UNUSED ? n : t.text.i + 1;
    KG_TRY(begin_tokens(&t, g, err));
    while (next_token(&t) && t.text.i < n) {
        *bytes = *bytes || type_of(&t) == BYTE;
        /* a piece: text, score, type */
        const float score = (float)kg_gguf_real(&t.score.item, 0);

        kg_str_clear(scratch);
        KG_TRY(put_text(scratch, &t, err));
        KG_TRY(put_varint(scratch, 2 << 3 | 5, err));
        KG_TRY(kg_str_append(scratch, &score, sizeof score, err));
        KG_TRY(put_field(scratch, 3, (uint64_t)type_of(&t), err));
        KG_TRY(put_bytes(out, 1, scratch->data, scratch->len, err));
    }
    return KG_OK;
}

static kg_status put_model(struct kg_str *out, const struct kg_gguf *g,
                           struct kg_str *scratch, struct kg_err *err)
{
    enum { BPE = 2 };
    const bool front = kg_gguf_bool(kg_gguf_get(g, KEY "add_space_prefix"), true);
    bool bytes = false;

    KG_TRY(put_pieces(out, g, &bytes, scratch, err));
    kg_str_clear(scratch);
    KG_TRY(put_field(scratch, 3, BPE, err));
    KG_TRY(put_field(scratch, 35, bytes, err));
    KG_TRY(put_bytes(out, 2, scratch->data, scratch->len, err));
    kg_str_clear(scratch);
    KG_TRY(put_field(scratch, 3, front, err));
    KG_TRY(put_field(scratch, 4, false, err));
    return put_bytes(out, 3, scratch->data, scratch->len, err);
}

kg_status kg_gguf_tokenizer_model(struct kg_str *out, const struct kg_gguf *g,
                                  struct kg_err *err)
{
    struct kg_str scratch = {0};

    KG_TRY(need_model(g, "llama", err));
    kg_status status = put_model(out, g, &scratch, err);
    kg_str_release(&scratch);
    return status;
}

/* ---- tokenizer_config.json ---- */

static kg_status put_token(struct kg_str *out, const struct kg_gguf *g, const char *field,
                           const char *key, struct kg_err *err)
{
    size_t n = 0;
    const char *text = token_text(g, key, &n);

    if (!text)
        return KG_OK;
    KG_TRY(kg_str_printf(out, err, ",\n  \"%s\": ", field));
    return kg_json_put_string(out, text, n, err);
}

static kg_status put_bool(struct kg_str *out, const struct kg_gguf *g, const char *field,
                          const char *key, struct kg_err *err)
{
    const struct kg_gguf_value *v = kg_gguf_get(g, key);

    return v ? kg_str_printf(out, err, ",\n  \"%s\": %s", field,
                             kg_gguf_bool(v, false) ? "true" : "false")
             : KG_OK;
}

kg_status kg_gguf_tokenizer_config(struct kg_str *out, const struct kg_gguf *g,
                                   struct kg_err *err)
{
    const struct kg_gguf_value *chat = kg_gguf_get(g, "tokenizer.chat_template");

    KG_TRY(kg_str_puts(out, "{\n  \"clean_up_tokenization_spaces\": false", err));
    KG_TRY(put_token(out, g, "bos_token", KEY "bos_token_id", err));
    KG_TRY(put_token(out, g, "eos_token", KEY "eos_token_id", err));
    KG_TRY(put_token(out, g, "pad_token", KEY "padding_token_id", err));
    KG_TRY(put_token(out, g, "unk_token", KEY "unknown_token_id", err));
    KG_TRY(put_bool(out, g, "add_bos_token", KEY "add_bos_token", err));
    KG_TRY(put_bool(out, g, "add_eos_token", KEY "add_eos_token", err));
    if (chat)
        KG_TRY(put_string(out, ",\n  \"chat_template\": ", chat, err));
    return kg_str_puts(out, "\n}\n", err);
}
