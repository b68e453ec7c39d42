/* Text to ids through the pipeline of a byte-level BPE.
 *
 * text -> added tokens out (raw) -> NFC -> added tokens out (normalized) -> pre-token
 * stages -> bytes -> merges. Every stage works on borrowed stretches of one text; only
 * NFC and the space in front make copies. A pre-token's bytes are written to the output
 * as ids and merged there in place.
 */
#include "text/tokenizer_internal.h"
#include "text/unicode.h"

struct encoder {
    const struct kg_tokenizer *tok;
    struct kg_ids *out;
    bool with_special;
    struct kg_str normal; /* NFC of the present stretch */
    struct kg_str spaced; /* the present stretch with a space in front */
    struct kg_pretoken_scan scans[KG_MAX_STAGES];
    struct kg_bpe_scratch scratch;
    struct kg_err *err;
};

static kg_status encode_pretoken(struct encoder *e, const char *text, size_t n)
{
    const struct kg_tokenizer *tok = e->tok;
    int32_t whole = tok->ignore_merges ? kg_vocab_find(&tok->vocab, text, n, false) : -1;
    if (whole >= 0)
        return kg_ids_push(e->out, whole, e->err);
    KG_TRY(kg_ids_reserve(e->out, e->out->n + n, e->err));
    int32_t *ids = e->out->ids + e->out->n;
    for (size_t i = 0; i < n; i++) {
        ids[i] = tok->byte_ids[(unsigned char)text[i]];
        if (ids[i] < 0)
            return kg_fail(e->err, KG_EFORMAT,
                           "the vocabulary has no token for byte 0x%02x of '%.*s'",
                           (unsigned char)text[i], n < 40 ? (int)n : 40, text);
    }
    KG_TRY(kg_bpe_merge(ids, &n, &tok->merges, &e->scratch, e->err));
    e->out->n += n;
    return KG_OK;
}

static kg_status run_stages(struct encoder *e, size_t stage, const char *text, size_t n);

/* At most one stage of a tokenizer does this, so one buffer is enough. */
static kg_status space_in_front(struct encoder *e, size_t stage, const char *text,
                                size_t n)
{
    if (text[0] == ' ')
        return run_stages(e, stage + 1, text, n);
    kg_str_clear(&e->spaced);
    KG_TRY(kg_str_putc(&e->spaced, ' ', e->err));
    KG_TRY(kg_str_append(&e->spaced, text, n, e->err));
    return run_stages(e, stage + 1, e->spaced.data, e->spaced.len);
}

static kg_status run_stages(struct encoder *e, size_t stage, const char *text, size_t n)
{
    if (stage == e->tok->n_stages)
        return encode_pretoken(e, text, n);
    if (!e->tok->stages[stage].pattern)
        return space_in_front(e, stage, text, n);
    struct kg_pretoken_scan *scan = &e->scans[stage];
    kg_pretoken_scan_start(scan, text, n);
    for (;;) {
        size_t start, len;
        KG_TRY(kg_pretoken_scan_next(scan, &start, &len, e->err));
        if (len == 0)
            return KG_OK;
        KG_TRY(run_stages(e, stage + 1, text + start, len));
    }
}

static kg_status encode_normalized(struct encoder *e, const char *text, size_t n)
{
    struct kg_added_scan scan;
    struct kg_added_piece piece;
    kg_added_scan_start(&scan, &e->tok->normalized, text, n, e->with_special);
    while (kg_added_scan_next(&scan, &piece)) {
        if (piece.token)
            KG_TRY(kg_ids_push(e->out, piece.token->id, e->err));
        else
            KG_TRY(run_stages(e, 0, text + piece.start, piece.len));
    }
    return KG_OK;
}

static kg_status encode_plain(struct encoder *e, const char *text, size_t n)
{
    if (!e->tok->nfc || kg_unicode_is_surely_nfc(text, n))
        return encode_normalized(e, text, n);
    kg_str_clear(&e->normal);
    KG_TRY(kg_unicode_nfc(&e->normal, text, n, e->err));
    return encode_normalized(e, e->normal.data, e->normal.len);
}

static kg_status encode_text(struct encoder *e, const char *text, size_t n)
{
    struct kg_added_scan scan;
    struct kg_added_piece piece;
    kg_added_scan_start(&scan, &e->tok->raw, text, n, e->with_special);
    while (kg_added_scan_next(&scan, &piece)) {
        if (piece.token)
            KG_TRY(kg_ids_push(e->out, piece.token->id, e->err));
        else
            KG_TRY(encode_plain(e, text + piece.start, piece.len));
    }
    return KG_OK;
}

static kg_status push_all(struct kg_ids *out, const struct kg_ids *ids,
                          struct kg_err *err)
{
    for (size_t i = 0; i < ids->n; i++)
        KG_TRY(kg_ids_push(out, ids->ids[i], err));
    return KG_OK;
}

static void encoder_release(struct encoder *e)
{
    for (size_t i = 0; i < KG_MAX_STAGES; i++)
        kg_pretoken_scan_release(&e->scans[i]);
    kg_bpe_scratch_release(&e->scratch);
    kg_str_release(&e->normal);
    kg_str_release(&e->spaced);
}

kg_status kg_bpe_encode(struct kg_ids *out, const struct kg_tokenizer *tok,
                        const char *text, size_t n, struct kg_encode_opts opts,
                        struct kg_err *err)
{
    kg_status status = KG_OK;
    struct encoder e = {
        .tok = tok, .out = out, .with_special = opts.parse_special, .err = err};
    for (size_t i = 0; i < tok->n_stages; i++)
        if (tok->stages[i].pattern)
            KG_TRY_GOTO(out,
                        kg_pretoken_scan_init(&e.scans[i], tok->stages[i].pattern, err));
    if (opts.add_special)
        KG_TRY_GOTO(out, push_all(out, &tok->prefix, err));
    KG_TRY_GOTO(out, encode_text(&e, text, n));
    if (opts.add_special)
        KG_TRY_GOTO(out, push_all(out, &tok->suffix, err));
out:
    encoder_release(&e);
    return status;
}
