/* Encodes a pre-token by each model.
 *
 * Text that the vocabulary lacks becomes tokens of single bytes or the unknown id. If the
 * tokenizer has neither, BPE drops the text and Unigram fails. Reading is in
 * tokenizer_json.c. WordPiece is in guests/retriever.
 */
#include "text/tokenizer_internal.h"

#include "text/tokenizer_read.h"
#include "text/unicode.h"

void kg_token_work_release(struct kg_token_work *work)
{
    kg_bpe_scratch_release(&work->bpe);
    kg_unigram_work_release(&work->unigram);
    kg_str_release(&work->text);
}

kg_status kg_model_no_unknown(const char *text, size_t n, struct kg_err *err)
{
    return kg_fail(err, KG_EFORMAT,
                   "the vocabulary has neither a token for '%.*s' nor an unknown token",
                   n < 40 ? (int)n : 40, text);
}

/* Whether these bytes can become byte tokens. */
static bool has_bytes(const struct kg_tokenizer *tok, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (tok->byte_ids[(unsigned char)text[i]] < 0)
            return false;
    return tok->byte_fallback;
}

/* ---- BPE ---- */

/* The symbols that merging starts from. An unknown one is held back (waiting), because
 * adjacent ones may become one token; byte tokens of a character do not end the wait. */
struct symbols {
    int32_t *ids;
    size_t n;
    bool waiting;
};

static void put_known(struct symbols *s, const struct kg_tokenizer *tok, int32_t id)
{
    if (s->waiting)
        s->ids[s->n++] = tok->unknown;
    s->waiting = false;
    s->ids[s->n++] = id;
}

static kg_status put_unknown(struct symbols *s, const struct kg_tokenizer *tok,
                             const char *text, size_t n, struct kg_err *err)
{
    if (tok->unknown == KG_NO_UNKNOWN)
        return KG_OK;
    if (tok->unknown < 0)
        return kg_model_no_unknown(text, n, err);
    if (s->waiting && !tok->fuse_unknown)
        s->ids[s->n++] = tok->unknown;
    s->waiting = true;
    return KG_OK;
}

/* The symbols of a pre-token's bytes. The first loop suffices for vocabularies that have
 * every byte, as most do. */
static kg_status put_bytes(struct symbols *s, const struct kg_tokenizer *tok,
                           const char *text, size_t n, struct kg_err *err)
{
    size_t i = 0;

    for (; i < n && tok->byte_ids[(unsigned char)text[i]] >= 0; i++)
        s->ids[i] = tok->byte_ids[(unsigned char)text[i]];
    s->n = i;
    for (; i < n; i++) {
        const int32_t id = tok->byte_ids[(unsigned char)text[i]];

        if (id >= 0)
            put_known(s, tok, id);
        else
            KG_TRY(put_unknown(s, tok, text + i, 1, err));
    }
    return KG_OK;
}

static kg_status put_chars(struct symbols *s, const struct kg_tokenizer *tok,
                           const char *text, size_t n, struct kg_err *err)
{
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = kg_utf8_decode(&cp, text + i);
        int32_t id = kg_vocab_find(&tok->vocab, text + i, len, false);

        if (id >= 0)
            put_known(s, tok, id);
        else if (!has_bytes(tok, text + i, len))
            KG_TRY(put_unknown(s, tok, text + i, len, err));
        else
            for (size_t k = 0; k < len; k++)
                s->ids[s->n++] = tok->byte_ids[(unsigned char)text[i + k]];
    }
    return KG_OK;
}

static kg_status encode_bpe(struct kg_ids *out, const struct kg_tokenizer *tok,
                            const char *text, size_t n, struct kg_token_work *work,
                            struct kg_err *err)
{
    int32_t whole = tok->ignore_merges ? kg_vocab_find(&tok->vocab, text, n, false) : -1;
    if (whole >= 0)
        return kg_ids_push(out, whole, err);
    KG_TRY(kg_ids_reserve(out, out->n + n, err));
    struct symbols s = {.ids = out->ids + out->n};
    KG_TRY((tok->by_char ? put_chars : put_bytes)(&s, tok, text, n, err));
    if (s.waiting)
        s.ids[s.n++] = tok->unknown;
    KG_TRY(kg_bpe_merge(s.ids, &s.n, &tok->merges, &work->bpe, err));
    out->n += s.n;
    return KG_OK;
}

const struct kg_token_model KG_MODEL_BPE = {"bpe", kg_reader_bpe, encode_bpe, NULL};

/* ---- Unigram ---- */

static bool is_unknown(const struct kg_tokenizer *tok, int32_t id)
{
    return id < 0 || id == tok->unknown;
}

/* Pushes the ids of text without pieces, the last id first. */
static kg_status push_unknown(struct kg_ids *out, const struct kg_tokenizer *tok,
                              const char *text, size_t n, struct kg_err *err)
{
    const struct kg_unigram *u = tok->own;
    const int32_t whole = kg_vocab_find(&tok->vocab, text, n, false);

    if (whole >= 0 && whole < u->n_scores)
        return kg_ids_push(out, whole, err);
    if (has_bytes(tok, text, n)) {
        while (n > 0)
            KG_TRY(kg_ids_push(out, tok->byte_ids[(unsigned char)text[--n]], err));
        return KG_OK;
    }
    if (tok->unknown < 0)
        return kg_model_no_unknown(text, n, err);
    return kg_ids_push(out, tok->unknown, err);
}

static kg_status encode_unigram(struct kg_ids *out, const struct kg_tokenizer *tok,
                                const char *text, size_t n, struct kg_token_work *work,
                                struct kg_err *err)
{
    const size_t before = out->n;
    const struct kg_unigram_step *steps;

    KG_TRY(kg_unigram_cut(&work->unigram, tok->own, text, n, err));
    steps = work->unigram.steps;
    for (size_t end = n, start; end > 0; end = start) {
        const int32_t id = steps[end].id;

        start = steps[end].start;
        if (!is_unknown(tok, id)) {
            KG_TRY(kg_ids_push(out, id, err));
            continue;
        }
        while (start > 0 && is_unknown(tok, steps[start].id))
            start = steps[start].start;
        KG_TRY(push_unknown(out, tok, text + start, end - start, err));
    }
    for (size_t i = before, k = out->n; i + 1 < k; i++) {
        const int32_t id = out->ids[i];

        out->ids[i] = out->ids[--k];
        out->ids[k] = id;
    }
    return KG_OK;
}

const struct kg_token_model KG_MODEL_UNIGRAM = {"unigram", kg_reader_unigram,
                                                encode_unigram, kg_unigram_free};
