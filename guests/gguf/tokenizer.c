/* The tokenizer of a model's folder as metadata: tokenizer.json of byte-level BPE, or a
 * tokenizer.model of SentencePiece, and the chat template.
 *
 * A pre-tokenizer is written by its name, so one without a name in llama.cpp is refused:
 * a file with other tokens than the model's is worse than no file.
 */
#include "gguf/gguf_write.h"

#include "base/mem.h"
#include "data/protobuf.h"
#include "data/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY "tokenizer.ggml."

enum { MAX_BYTES = 256 << 20, MAX_IDS = 1 << 24 };
enum { NORMAL = 1, CONTROL = 3, USER = 4, UNUSED = 5 };

/* ---- arrays ---- */

struct token {
    const char *text; /* borrowed; NULL: a hole */
    size_t n;
    float score;
    int32_t type;
};

struct tokens {
    struct token *all; /* owned */
    size_t n, capacity;
};

static kg_status set(struct tokens *t, int64_t id, struct token token, struct kg_err *err)
{
    if (id < 0 || id >= MAX_IDS)
        return kg_fail(err, KG_EFORMAT,
                       "tokenizer: expected ids from 0 to %d, found %lld", MAX_IDS - 1,
                       (long long)id);
    KG_TRY(kg_mem_grow(&t->all, &t->capacity, (size_t)id + 1, sizeof *t->all, MAX_IDS,
                       "tokens", err));
    t->all[id] = token;
    t->n = (size_t)id >= t->n ? (size_t)id + 1 : t->n;
    return KG_OK;
}

/* llama.cpp searches the raw text for user-defined pieces, so U+2581 becomes a space. */
static kg_status put_user(struct kg_gguf_writer *w, const struct token *token,
                          struct kg_err *err)
{
    static const char space[] = "\xe2\x96\x81";
    struct kg_str text = {0};
    kg_status status = KG_OK;

    for (size_t i = 0; i < token->n && status == KG_OK; i++) {
        const bool is = token->n - i >= 3 && memcmp(token->text + i, space, 3) == 0;

        status = kg_str_putc(&text, is ? ' ' : token->text[i], err);
        i += is ? 2 : 0;
    }
    if (status == KG_OK)
        status = kg_gguf_item_text(w, kg_str_text(&text), text.len, err);
    kg_str_release(&text);
    return status;
}

/* Rows of the model without a token become unused tokens [PADn]. */
static kg_status put_texts(struct kg_gguf_writer *w, const struct tokens *t, size_t rows,
                           bool pieces, struct kg_err *err)
{
    char pad[32];

    KG_TRY(kg_gguf_put_array(w, KEY "tokens", KG_GGUF_TEXT, rows, err));
    for (size_t i = 0; i < rows; i++) {
        const bool has = i < t->n && t->all[i].text;
        const int n = snprintf(pad, sizeof pad, "[PAD%zu]", i);

        if (has && pieces && t->all[i].type == USER)
            KG_TRY(put_user(w, &t->all[i], err));
        else
            KG_TRY(kg_gguf_item_text(w, has ? t->all[i].text : pad,
                                     has ? t->all[i].n : (size_t)n, err));
    }
    return KG_OK;
}

static kg_status put_tokens(struct kg_gguf_writer *w, const struct tokens *t, size_t rows,
                            bool scored, struct kg_err *err)
{
    rows = rows > t->n ? rows : t->n;
    KG_TRY(put_texts(w, t, rows, scored, err));
    KG_TRY(kg_gguf_put_array(w, KEY "token_type", KG_GGUF_I32, rows, err));
    for (size_t i = 0; i < rows; i++)
        KG_TRY(kg_gguf_item_int(w, i < t->n && t->all[i].text ? t->all[i].type : UNUSED,
                                err));
    if (!scored)
        return KG_OK;
    KG_TRY(kg_gguf_put_array(w, KEY "scores", KG_GGUF_F32, rows, err));
    for (size_t i = 0; i < rows; i++)
        KG_TRY(kg_gguf_item_real(w, i < t->n ? t->all[i].score : 0, err));
    return KG_OK;
}

/* ---- tokenizer.json ---- */

static kg_status put_merges(struct kg_gguf_writer *w, const struct kg_json *merges,
                            struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status;

    status = kg_gguf_put_array(w, KEY "merges", KG_GGUF_TEXT, kg_json_size(merges), err);
    for (size_t i = 0; i < kg_json_size(merges) && status == KG_OK; i++) {
        const struct kg_json *merge = kg_json_at(merges, i);
        const char *whole = kg_json_text(merge, NULL);
        const char *left = kg_json_text(kg_json_at(merge, 0), NULL);
        const char *right = kg_json_text(kg_json_at(merge, 1), NULL);

        kg_str_clear(&text);
        status = whole ? kg_str_puts(&text, whole, err)
                       : kg_str_printf(&text, err, "%s %s", left ? left : "",
                                       right ? right : "");
        if (status == KG_OK)
            status = kg_gguf_item_text(w, kg_str_text(&text), text.len, err);
    }
    kg_str_release(&text);
    return status;
}

static kg_status read_json_tokens(struct tokens *t, const struct kg_json *root,
                                  struct kg_err *err)
{
    const struct kg_json *vocab = kg_json_get(kg_json_get(root, "model"), "vocab");
    const struct kg_json *added = kg_json_get(root, "added_tokens");

    for (size_t i = 0; i < kg_json_size(vocab); i++) {
        const char *key = kg_json_key_at(vocab, i);

        KG_TRY(set(t, kg_json_int(kg_json_value_at(vocab, i), -1),
                   (struct token){key, strlen(key), 0, NORMAL}, err));
    }
    for (size_t i = 0; i < kg_json_size(added); i++) {
        const struct kg_json *item = kg_json_at(added, i);
        struct token token = {.type = CONTROL};

        if (!kg_json_bool(kg_json_get(item, "special"), false))
            token.type = USER;
        token.text = kg_json_text(kg_json_get(item, "content"), &token.n);
        KG_TRY(set(t, kg_json_int(kg_json_get(item, "id"), -1), token, err));
    }
    return KG_OK;
}

/* Whether the post-processor puts a special token before a text. */
static bool begins_with_special(const struct kg_json *processor)
{
    const struct kg_json *steps = kg_json_get(processor, "processors");
    bool found = kg_json_get(kg_json_at(kg_json_get(processor, "single"), 0),
                             "SpecialToken") != NULL;

    for (size_t i = 0; i < kg_json_size(steps); i++)
        found = found || begins_with_special(kg_json_at(steps, i));
    return found;
}

static kg_status put_json(struct kg_gguf_writer *w, const struct kg_json *root,
                          size_t rows, struct kg_err *err)
{
    const struct kg_json *model = kg_json_get(root, "model");
    const char *pre = NULL;
    size_t n = 0;
    struct tokens t = {0};

    KG_TRY(kg_gguf_pre_of(&pre, &n, root, err));
    KG_TRY(kg_gguf_put_text(w, KEY "model", "gpt2", 4, err));
    KG_TRY(kg_gguf_put_text(w, KEY "pre", pre, n, err));
    KG_TRY(kg_gguf_put_bool(w, KEY "add_bos_token",
                            begins_with_special(kg_json_get(root, "post_processor")),
                            err));
    KG_TRY(put_merges(w, kg_json_get(model, "merges"), err));
    kg_status status = read_json_tokens(&t, root, err);
    if (status == KG_OK)
        status = put_tokens(w, &t, rows, false, err);
    kg_mem_free(t.all);
    return status;
}

/* ---- tokenizer.model ---- */

static kg_status read_piece(struct token *token, struct kg_protobuf p, struct kg_err *err)
{
    struct kg_protobuf_field f;
    bool more;

    *token = (struct token){.text = "", .type = NORMAL};
    for (;;) {
        KG_TRY(kg_protobuf_next(&p, &f, &more, err));
        if (!more)
            return KG_OK;
        if (f.number == 1 && f.wire == KG_PROTOBUF_BYTES) {
            token->text = (const char *)f.bytes;
            token->n = f.n;
        } else if (f.number == 2 && f.wire == KG_PROTOBUF_32BIT) {
            token->score = kg_protobuf_float(&f);
        } else if (f.number == 3 && f.wire == KG_PROTOBUF_VARINT) {
            token->type = (int32_t)f.value;
        }
    }
}

/* *front: normalizer_spec.add_dummy_prefix */
static kg_status read_pieces(struct tokens *t, bool *front, struct kg_protobuf p,
                             struct kg_err *err)
{
    struct kg_protobuf_field f, inner;
    struct token token;
    bool more;

    *front = true;
    for (;;) {
        KG_TRY(kg_protobuf_next(&p, &f, &more, err));
        if (!more)
            return KG_OK;
        struct kg_protobuf part = kg_protobuf_over(f.bytes, f.n);
        if (f.number == 1) {
            KG_TRY(read_piece(&token, part, err));
            KG_TRY(set(t, (int64_t)t->n, token, err));
        }
        while (f.number == 3 && more) {
            KG_TRY(kg_protobuf_next(&part, &inner, &more, err));
            if (more && inner.number == 3)
                *front = inner.value != 0;
        }
    }
}

/* Tokens that tokenizer_config.json adds to the pieces. */
static kg_status read_added(struct tokens *t, const struct kg_json *config,
                            struct kg_err *err)
{
    const struct kg_json *added = kg_json_get(config, "added_tokens_decoder");

    for (size_t i = 0; i < kg_json_size(added); i++) {
        const struct kg_json *item = kg_json_value_at(added, i);
        const int64_t id = strtoll(kg_json_key_at(added, i), NULL, 10);
        struct token token = {.type = CONTROL};

        if (id >= 0 && (size_t)id < t->n)
            continue;
        if (!kg_json_bool(kg_json_get(item, "special"), false))
            token.type = USER;
        token.text = kg_json_text(kg_json_get(item, "content"), &token.n);
        KG_TRY(set(t, id, token, err));
    }
    return KG_OK;
}

static kg_status put_bool_of(struct kg_gguf_writer *w, const struct kg_json *config,
                             const char *field, const char *key, bool usual,
                             struct kg_err *err)
{
    return kg_gguf_put_bool(w, key, kg_json_bool(kg_json_get(config, field), usual), err);
}

static kg_status put_pieces(struct kg_gguf_writer *w, const struct kg_str *bytes,
                            const struct kg_json *config, size_t rows, struct kg_err *err)
{
    struct tokens t = {0};
    bool front;
    kg_status status;

    KG_TRY_GOTO(out,
                read_pieces(&t, &front, kg_protobuf_over(bytes->data, bytes->len), err));
    KG_TRY_GOTO(out, read_added(&t, config, err));
    front = front && kg_json_bool(kg_json_get(config, "add_prefix_space"), true);
    KG_TRY_GOTO(out, kg_gguf_put_text(w, KEY "model", "llama", 5, err));
    KG_TRY_GOTO(out, kg_gguf_put_bool(w, KEY "add_space_prefix", front, err));
    KG_TRY_GOTO(out,
                put_bool_of(w, config, "add_bos_token", KEY "add_bos_token", true, err));
    KG_TRY_GOTO(out,
                put_bool_of(w, config, "add_eos_token", KEY "add_eos_token", false, err));
    status = put_tokens(w, &t, rows, true, err);
out:
    kg_mem_free(t.all);
    return status;
}

/* ---- the whole ---- */

static kg_status put_chat(struct kg_gguf_writer *w, const char *model,
                          const struct kg_json *config, struct kg_err *err)
{
    static const char key[] = "tokenizer.chat_template";
    struct kg_str text = {0};
    size_t n;
    const char *given = kg_json_text(kg_json_get(config, "chat_template"), &n);
    kg_status status = kg_source_read(&text, model, "chat_template.jinja", 1 << 20, err);

    if (status == KG_OK)
        status = kg_gguf_put_text(w, key, kg_str_text(&text), text.len, err);
    else if (status == KG_ENOTFOUND)
        status = given ? kg_gguf_put_text(w, key, given, n, err) : KG_OK;
    kg_str_release(&text);
    return status;
}

/* Copies a GGUF file's tokenizer metadata, except the ids that config.json has, too. */
static kg_status copy_values(struct kg_gguf_writer *w, const char *model,
                             struct kg_err *err)
{
    struct kg_gguf g;

    KG_TRY(kg_gguf_open(&g, model, err));
    kg_status status = KG_OK;
    for (size_t i = 0; i < g.n_values && status == KG_OK; i++) {
        const char *key = g.values[i].key;

        if (strncmp(key, "tokenizer.", 10) == 0 && strcmp(key, KEY "bos_token_id") != 0 &&
            strcmp(key, KEY "eos_token_id") != 0 &&
            strcmp(key, KEY "eot_token_id") != 0 && strcmp(key, KEY "eom_token_id") != 0)
            status = kg_gguf_put_value(w, &g.values[i], err);
    }
    kg_gguf_close(&g);
    return status;
}

static kg_status put_folder(struct kg_gguf_writer *w, const char *model,
                            const struct kg_json *config, size_t rows, bool *none,
                            struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_str text = {0};
    kg_status status;

    KG_TRY_GOTO(out,
                kg_source_json_or_none(&doc, model, "tokenizer.json", MAX_BYTES, err));
    if (doc.root) {
        status = put_json(w, doc.root, rows, err);
        goto out;
    }
    status = kg_source_read(&text, model, "tokenizer.model", MAX_BYTES, err);
    *none = status == KG_ENOTFOUND || (status == KG_OK && kg_str_text(&text)[0] != '\n');
    if (*none)
        status = kg_gguf_put_text(w, KEY "model", "no_vocab", 8, err);
    else if (status == KG_OK)
        status = put_pieces(w, &text, config, rows, err);
out:
    kg_json_release(&doc);
    kg_str_release(&text);
    return status;
}

kg_status kg_gguf_put_tokenizer(struct kg_gguf_writer *w, const char *model, size_t rows,
                                bool *none, struct kg_err *err)
{
    struct kg_json_doc config = {0};

    *none = false;
    if (kg_source_is_file(model))
        return copy_values(w, model, err);
    KG_TRY(
        kg_source_json_or_none(&config, model, "tokenizer_config.json", MAX_BYTES, err));
    kg_status status = put_folder(w, model, config.root, rows, none, err);
    if (status == KG_OK)
        status = put_chat(w, model, config.root, err);
    kg_json_release(&config);
    return status;
}
