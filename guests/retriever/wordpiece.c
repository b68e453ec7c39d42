/* WordPiece, the model of BERT's tokenizer.json: takes the longest token at the start of
 * a word, then repeats on the rest; tokens inside a word carry a prefix ("##"). A word is
 * unknown as a whole if no token begins some rest of it.
 *
 * A row of the trunk's table of models (text/tokenizer_json.c), which reads the parts
 * around the model.
 */
#include "base/mem.h"
#include "text/tokenizer_internal.h"
#include "text/tokenizer_read.h"

struct wordpiece {
    struct kg_str prefix; /* owned; of tokens that continue a word */
    uint64_t max_chars;   /* a longer word is unknown */
    size_t longest;       /* bytes of the longest token */
};

static void free_wordpiece(void *own)
{
    struct wordpiece *w = own;

    if (w)
        kg_str_release(&w->prefix);
    kg_mem_free(w);
}

static kg_status read_wordpiece(struct kg_reader *r, const struct kg_json *model,
                                const struct kg_json *added)
{
    static const struct kg_field fields[] = {
        {"type", KG_FIELD_READ},
        {"unk_token", KG_FIELD_READ},
        {"continuing_subword_prefix", KG_FIELD_READ},
        {"max_input_chars_per_word", KG_FIELD_READ},
        {"vocab", KG_FIELD_READ},
        {NULL, KG_FIELD_READ},
    };
    struct wordpiece *w = kg_mem_calloc(1, sizeof *w, "tokenizer", r->err);
    const struct kg_json *most = kg_json_get(model, "max_input_chars_per_word");
    if (!w)
        return r->err->code;
    r->tok->own = w;
    KG_TRY(kg_reader_check(r, "model", model, fields));
    const struct kg_json *front = kg_json_get(model, "continuing_subword_prefix");
    size_t n;
    const char *text = kg_json_text(front, &n);
    if (!text)
        return kg_reader_refuse(r, "model", "continuing_subword_prefix", front, "text");
    if (kg_json_type(most) != KG_JSON_INT || kg_json_int(most, -1) < 0)
        return kg_reader_refuse(r, "model", "max_input_chars_per_word", most,
                                "a number of 0 or more");
    w->max_chars = (uint64_t)kg_json_int(most, 0);
    KG_TRY(kg_str_append(&w->prefix, text, n, r->err));
    KG_TRY(kg_reader_vocab(r, model, added));
    for (int32_t id = 0; id < r->tok->vocab.n_ids; id++)
        if (r->tok->vocab.lengths[id] > w->longest)
            w->longest = r->tok->vocab.lengths[id];
    return kg_reader_unknown(r, model, true);
}

static bool within_chars(const char *text, size_t n, uint64_t most)
{
    uint64_t chars = 0;

    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)text[i] & 0xC0) != 0x80;
    return chars <= most;
}

/* The longest token at the start of text, whose first `front` bytes are a prefix. *used:
 * the token's bytes without the prefix.   returns its id, or -1 */
static int32_t longest_piece(const struct kg_tokenizer *tok, const char *text, size_t n,
                             size_t front, size_t *used)
{
    const struct wordpiece *w = tok->own;
    size_t end = n < w->longest ? n : w->longest;

    for (; end > front; end--) {
        if (end < n && ((unsigned char)text[end] & 0xC0) == 0x80)
            continue;
        int32_t id = kg_vocab_find(&tok->vocab, text, end, false);
        *used = end - front;
        if (id >= 0)
            return id;
    }
    return -1;
}

static kg_status encode_wordpiece(struct kg_ids *out, const struct kg_tokenizer *tok,
                                  const char *text, size_t n, struct kg_token_work *work,
                                  struct kg_err *err)
{
    const struct wordpiece *w = tok->own;
    const size_t before = out->n, front = w->prefix.len;
    bool known = within_chars(text, n, w->max_chars);

    for (size_t at = 0, used = 0; known && at < n; at += used) {
        int32_t id;

        if (at == 0) {
            id = longest_piece(tok, text, n, 0, &used);
        } else {
            const size_t rest = n - at < w->longest ? n - at : w->longest;
            kg_str_clear(&work->text);
            KG_TRY(kg_str_append(&work->text, kg_str_text(&w->prefix), front, err));
            KG_TRY(kg_str_append(&work->text, text + at, rest, err));
            id = longest_piece(tok, work->text.data, work->text.len, front, &used);
        }
        known = id >= 0;
        if (known)
            KG_TRY(kg_ids_push(out, id, err));
    }
    if (known)
        return KG_OK;
    out->n = before;
    if (tok->unknown < 0)
        return kg_model_no_unknown(text, n, err);
    return kg_ids_push(out, tok->unknown, err);
}

const struct kg_token_model KG_MODEL_WORDPIECE = {"wordpiece", read_wordpiece,
                                                  encode_wordpiece, free_wordpiece};
