/* Turns a line of a dump into pieces. Dumps of runs, samples of an evaluation and
 * scripted episodes have different keys; all become a heading, a text, and pieces of that
 * text with source, token and numbers. If a line has tokens, the text is made of them;
 * else the pieces are segments. A token without text is shown by its id. */
#include "cli/show.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_PIECES = 1 << 24 };

void kg_shown_release(struct kg_shown *s)
{
    kg_str_release(&s->text);
    kg_str_release(&s->heading);
    kg_mem_free(s->pieces);
    memset(s, 0, sizeof *s);
}

static kg_status add_piece(struct kg_shown *s, struct kg_shown_piece piece,
                           struct kg_err *err)
{
    KG_TRY(kg_mem_grow(&s->pieces, &s->capacity, s->n + 1, sizeof *s->pieces, MAX_PIECES,
                       "pieces of an episode", err));
    s->pieces[s->n++] = piece;
    return KG_OK;
}

/* ---- the heading ---- */

/* Whether a value is short enough for the heading: numbers, flags, short texts. */
static bool is_short(const struct kg_json *v)
{
    size_t n;

    switch (kg_json_type(v)) {
    case KG_JSON_ARRAY:
    case KG_JSON_OBJECT:
        return false;
    case KG_JSON_STRING:
        kg_json_text(v, &n);
        return n <= 60;
    default:
        return true;
    }
}

static bool is_text_key(const char *key)
{
    static const char *const keys[] = {"prompt",     "response", "text", "source",
                                       "completion", "solution", NULL};

    for (const char *const *k = keys; *k; k++) {
        if (strcmp(*k, key) == 0)
            return true;
    }
    return false;
}

/* Keys whose values are small objects of names and numbers. */
static bool is_of_graders(const char *key)
{
    return strcmp(key, "rewards") == 0 || strcmp(key, "further") == 0;
}

static kg_status put_heading(struct kg_shown *s, const struct kg_json *root,
                             struct kg_err *err)
{
    for (size_t i = 0; i < kg_json_size(root); i++) {
        const struct kg_json *v = kg_json_value_at(root, i);
        const char *key = kg_json_key_at(root, i);
        char text[KG_NUMBER];

        if ((!is_short(v) && !is_of_graders(key)) || is_text_key(key))
            continue;
        KG_TRY(kg_str_printf(&s->heading, err, "%s%s ", s->heading.len ? ", " : "", key));
        if (kg_json_type(v) == KG_JSON_REAL)
            KG_TRY(kg_str_puts(&s->heading, kg_number(text, kg_json_real(v, 0), 6), err));
        else
            KG_TRY(kg_json_put_value(&s->heading, v, err));
    }
    return KG_OK;
}

/* ---- text ---- */

static kg_status add_text(struct kg_shown *s, const struct kg_json_doc *doc,
                          const struct kg_json *v, const char *key, enum kg_source source,
                          struct kg_err *err)
{
    struct kg_shown_piece piece = {.from = s->text.len, .source = source, .token = -1};
    const char *text = kg_json_text(v, &piece.n);

    if (!text)
        return kg_fail(err, KG_EFORMAT, "%s: key '%s': expected string, found %s",
                       doc->where, key, kg_json_type_name(v));
    KG_TRY(kg_str_append(&s->text, text, piece.n, err));
    return add_piece(s, piece, err);
}

static kg_status source_named(enum kg_source *out, const struct kg_json_doc *doc,
                              const struct kg_json *v, struct kg_err *err)
{
    static const char *const names[KG_SOURCE_COUNT] = {"prompt", "model", "tool"};
    const char *name = kg_json_text(v, NULL);

    for (int i = 0; name && i < KG_SOURCE_COUNT; i++) {
        if (strcmp(name, names[i]) != 0)
            continue;
        *out = (enum kg_source)i;
        return KG_OK;
    }
    return kg_fail(err, KG_EFORMAT,
                   "%s: key 'segments': expected a source of prompt, model or tool, "
                   "found %s",
                   doc->where, name ? name : kg_json_type_name(v));
}

static kg_status read_segments(struct kg_shown *s, const struct kg_json_doc *doc,
                               const struct kg_json *segments, struct kg_err *err)
{
    for (size_t i = 0; i < kg_json_size(segments); i++) {
        const struct kg_json *segment = kg_json_at(segments, i);
        enum kg_source source = KG_SOURCE_PROMPT;

        KG_TRY(source_named(&source, doc, kg_json_get(segment, "source"), err));
        KG_TRY(
            add_text(s, doc, kg_json_get(segment, "text"), "segments.text", source, err));
    }
    return KG_OK;
}

static kg_status read_text(struct kg_shown *s, const struct kg_json_doc *doc,
                           struct kg_err *err)
{
    static const char *const answers[] = {"response", "completion", "text", NULL};
    const struct kg_json *prompt = kg_json_get(doc->root, "prompt");
    const struct kg_json *segments = kg_json_get(doc->root, "segments");

    if (kg_json_type(prompt) == KG_JSON_STRING)
        KG_TRY(add_text(s, doc, prompt, "prompt", KG_SOURCE_PROMPT, err));
    if (kg_json_type(segments) == KG_JSON_ARRAY)
        return read_segments(s, doc, segments, err);
    for (const char *const *key = answers; *key; key++) {
        const struct kg_json *v = kg_json_get(doc->root, *key);

        if (v)
            return add_text(s, doc, v, *key, KG_SOURCE_MODEL, err);
    }
    return kg_fail(err, KG_EFORMAT,
                   "%s: expected tokens, segments, response, completion or text, found "
                   "none of them",
                   doc->where);
}

/* ---- tokens ---- */

struct columns {
    const struct kg_json *tokens, *logp, *anchor;
    const char *source;
};

static kg_status need_columns(struct columns *c, const struct kg_json_doc *doc,
                              struct kg_err *err)
{
    size_t n, n_source;

    KG_TRY(kg_json_need(&c->logp, doc, doc->root, "logp", KG_JSON_ARRAY, err));
    KG_TRY(kg_json_need_text(&c->source, doc, doc->root, "source", err));
    c->anchor = kg_json_get(doc->root, "anchor_logp");
    n = kg_json_size(c->tokens);
    n_source = strlen(c->source);
    if (n_source != n || kg_json_size(c->logp) != n ||
        (c->anchor && kg_json_size(c->anchor) != n))
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected source, logp and anchor_logp of %zu tokens, found "
                       "%zu, %zu and %zu",
                       doc->where, n, n_source, kg_json_size(c->logp),
                       c->anchor ? kg_json_size(c->anchor) : n);
    return KG_OK;
}

static kg_status source_of(enum kg_source *out, char letter,
                           const struct kg_json_doc *doc, struct kg_err *err)
{
    for (int i = 0; i < KG_SOURCE_COUNT; i++) {
        *out = (enum kg_source)i;
        if (kg_source_letter(*out) == letter)
            return KG_OK;
    }
    return kg_fail(err, KG_EFORMAT, "%s: key 'source': expected p, m or t, found '%c'",
                   doc->where, letter);
}

/* A model may have more rows than its tokenizer has tokens, and may sample one of those
 * ids; it is shown as its id. */
static kg_status put_token(struct kg_str *out, const struct kg_tokenizer *tok, int32_t id,
                           bool first, struct kg_err *err)
{
    if (!kg_tokenizer_has(tok, id))
        return kg_str_printf(out, err, "<id %d>", (int)id);
    if (first)
        return kg_tokenizer_decode_text(out, tok, &id, 1, false, err);
    return kg_tokenizer_decode(out, tok, &id, 1, false, err);
}

static kg_status add_token(struct kg_shown *s, const struct kg_json_doc *doc,
                           const struct columns *c, size_t i,
                           const struct kg_tokenizer *tok, struct kg_err *err)
{
    const struct kg_json *logp = kg_json_at(c->logp, i);
    const struct kg_json *anchor = kg_json_at(c->anchor, i);
    struct kg_shown_piece piece = {.from = s->text.len,
                                   .sampled = kg_json_is_number(logp)};
    int64_t token = kg_json_int(kg_json_at(c->tokens, i), -1);

    if (token < 0 || token >= kg_tokenizer_n_ids(tok))
        return kg_fail(
            err, KG_EFORMAT,
            "%s: key 'tokens': expected ids below %d (the model's vocabulary), found "
            "%lld",
            doc->where, kg_tokenizer_n_ids(tok), (long long)token);
    piece.token = (int32_t)token;
    KG_TRY(source_of(&piece.source, c->source[i], doc, err));
    KG_TRY(put_token(&s->text, tok, piece.token, i == 0, err));
    piece.n = s->text.len - piece.from;
    /* written as float32, so the cast restores its bits */
    piece.logp = (float)kg_json_real(logp, 0);
    piece.compared = piece.sampled && kg_json_is_number(anchor);
    piece.divergence = piece.compared ? piece.logp - (float)kg_json_real(anchor, 0) : 0;
    return add_piece(s, piece, err);
}

static kg_status read_tokens(struct kg_shown *s, const struct kg_json_doc *doc,
                             const struct kg_json *tokens, const struct kg_tokenizer *tok,
                             struct kg_err *err)
{
    struct columns c = {.tokens = tokens};

    if (!tok)
        return kg_fail(
            err, KG_EINVAL,
            "%s: expected --model DIR, whose tokenizer turns tokens into text, "
            "found none",
            doc->where);
    KG_TRY(need_columns(&c, doc, err));
    for (size_t i = 0; i < kg_json_size(tokens); i++)
        KG_TRY(add_token(s, doc, &c, i, tok, err));
    return KG_OK;
}

kg_status kg_show_read(struct kg_shown *s, const struct kg_json_doc *doc,
                       const struct kg_tokenizer *tok, struct kg_err *err)
{
    const struct kg_json *tokens = kg_json_get(doc->root, "tokens");
    const struct kg_json *advantage = kg_json_get(doc->root, "advantage");

    kg_str_clear(&s->text);
    kg_str_clear(&s->heading);
    s->n = 0;
    s->has_advantage = kg_json_is_number(advantage);
    s->advantage = kg_json_real(advantage, 0);
    KG_TRY(put_heading(s, doc->root, err));
    if (kg_json_type(tokens) == KG_JSON_ARRAY)
        return read_tokens(s, doc, tokens, tok, err);
    return read_text(s, doc, err);
}
