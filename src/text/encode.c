/* Text to ids through the pipeline of a tokenizer.json.
 *
 * text -> split at added tokens (raw) -> normalizer -> split at added tokens (normalized)
 * -> pre-token stages -> model. Every stage works on borrowed ranges of one text. Only
 * the normalizer and stages that change text make copies, each into its own buffers.
 */
#include "text/tokenizer_internal.h"

#include <string.h>

struct encoder {
    const struct kg_tokenizer *tok;
    struct kg_ids *out;
    bool with_special;
    bool continues; /* the text follows other tokens */
    bool at_start;  /* the current part starts the text */
    struct kg_normalizer_work normal;
    struct kg_str fronts[KG_MAX_STAGES]; /* the text of a stage, with what it prepends */
    struct kg_cut_scan scans[KG_MAX_STAGES];
    struct kg_token_work work;
    struct kg_err *err;
};

static kg_status run_stages(struct encoder *e, size_t stage, const char *text, size_t n);

/* Nothing is prepended to a text that follows other tokens. */
static bool may_prepend(const struct encoder *e)
{
    return !(e->continues && e->at_start);
}

static kg_status space_in_front(struct encoder *e, size_t stage, const char *text,
                                size_t n)
{
    struct kg_str *front = &e->fronts[stage];
    if (text[0] == ' ' || !may_prepend(e))
        return run_stages(e, stage + 1, text, n);
    kg_str_clear(front);
    KG_TRY(kg_str_putc(front, ' ', e->err));
    KG_TRY(kg_str_append(front, text, n, e->err));
    return run_stages(e, stage + 1, front->data, front->len);
}

/* Splits the text before every mark. */
static kg_status cut_at_marks(struct encoder *e, size_t stage, const char *text, size_t n)
{
    const struct kg_str *mark = &e->tok->stages[stage].mark;
    size_t start = 0;
    for (size_t i = 1; i < n; i++) {
        if (i + mark->len > n || memcmp(text + i, mark->data, mark->len) != 0)
            continue;
        KG_TRY(run_stages(e, stage + 1, text + start, i - start));
        start = i;
    }
    return run_stages(e, stage + 1, text + start, n - start);
}

static kg_status mark_spaces(struct encoder *e, size_t stage, const char *text, size_t n)
{
    const struct kg_pretoken_stage *s = &e->tok->stages[stage];
    const struct kg_str *mark = &s->mark;
    struct kg_str *front = &e->fronts[stage];
    const struct kg_str space = {.data = " ", .len = 1};
    bool marked = text[0] == ' ' ||
                  (n >= mark->len && memcmp(text, mark->data, mark->len) == 0);
    bool wanted = s->front == KG_MARK_ALWAYS ||
                  (s->front == KG_MARK_FIRST && e->at_start);
    kg_str_clear(front);
    if (wanted && !marked && may_prepend(e))
        KG_TRY(kg_str_append(front, mark->data, mark->len, e->err));
    KG_TRY(kg_replace_all(front, text, n, &space, mark, e->err));
    if (s->split)
        return cut_at_marks(e, stage, front->data, front->len);
    return run_stages(e, stage + 1, front->data, front->len);
}

static kg_status cut_text(struct encoder *e, size_t stage, const char *text, size_t n)
{
    struct kg_cut_scan *scan = &e->scans[stage];
    bool first = e->at_start;
    kg_cut_scan_start(scan, text, n);
    for (;;) {
        size_t start, len;
        KG_TRY(kg_cut_scan_next(scan, &start, &len, e->err));
        if (len == 0)
            return KG_OK;
        e->at_start = first && start == 0;
        KG_TRY(run_stages(e, stage + 1, text + start, len));
    }
}

static kg_status run_stages(struct encoder *e, size_t stage, const char *text, size_t n)
{
    if (stage == e->tok->n_stages)
        return e->tok->model->encode(e->out, e->tok, text, n, &e->work, e->err);
    switch (e->tok->stages[stage].kind) {
    case KG_PRETOKEN_CUT:
        return cut_text(e, stage, text, n);
    case KG_PRETOKEN_SPACE:
        return space_in_front(e, stage, text, n);
    case KG_PRETOKEN_MARK:
        return mark_spaces(e, stage, text, n);
    }
    return KG_OK;
}

static kg_status encode_normalized(struct encoder *e, const char *text, size_t n)
{
    struct kg_added_scan scan;
    struct kg_added_piece piece;
    bool first = e->at_start;
    kg_added_scan_start(&scan, &e->tok->normalized, text, n, e->with_special);
    while (kg_added_scan_next(&scan, &piece)) {
        e->at_start = first && piece.start == 0;
        if (piece.token)
            KG_TRY(kg_ids_push(e->out, piece.token->id, e->err));
        else
            KG_TRY(run_stages(e, 0, text + piece.start, piece.len));
    }
    return KG_OK;
}

static kg_status encode_plain(struct encoder *e, const char *text, size_t n)
{
    KG_TRY(kg_normalize(&text, &n, &e->tok->normalizer, text, n, may_prepend(e),
                        &e->normal, e->err));
    return encode_normalized(e, text, n);
}

static kg_status encode_text(struct encoder *e, const char *text, size_t n)
{
    struct kg_added_scan scan;
    struct kg_added_piece piece;
    kg_added_scan_start(&scan, &e->tok->raw, text, n, e->with_special);
    while (kg_added_scan_next(&scan, &piece)) {
        e->at_start = piece.start == 0;
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

kg_status kg_pipeline_encode(struct kg_ids *out, const struct kg_tokenizer *tok,
                             const char *text, size_t n, struct kg_encode_opts opts,
                             struct kg_err *err)
{
    kg_status status = KG_OK;
    struct encoder e = {.tok = tok,
                        .out = out,
                        .with_special = opts.parse_special,
                        .continues = opts.continues,
                        .err = err};
    for (size_t i = 0; i < tok->n_stages; i++)
        if (tok->stages[i].kind == KG_PRETOKEN_CUT)
            KG_TRY_GOTO(out, kg_cut_scan_init(&e.scans[i], &tok->stages[i].cut, err));
    if (opts.add_special)
        KG_TRY_GOTO(out, push_all(out, &tok->prefix, err));
    KG_TRY_GOTO(out, encode_text(&e, text, n));
    if (opts.add_special)
        KG_TRY_GOTO(out, push_all(out, &tok->suffix, err));
out:
    for (size_t i = 0; i < e.tok->n_stages; i++) {
        kg_cut_scan_release(&e.scans[i]);
        kg_str_release(&e.fronts[i]);
    }
    kg_token_work_release(&e.work);
    kg_normalizer_work_release(&e.normal);
    return status;
}
