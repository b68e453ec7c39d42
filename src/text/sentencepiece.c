/* tokenizer.model as SentencePiece writes it: a protocol buffer of pieces with scores,
 * and of settings that prepare text for them. It is a BPE, whose merges are recovered
 * (pieces.c), or a Unigram, computed in float32 as sentencepiece does. Other models are
 * refused by the name of the field; fields about training are skipped. source:
 * sentencepiece_model.proto, unigram_model.cc.
 *
 * SentencePiece itself finds no special tokens in text. Here they are added tokens, as in
 * HuggingFace's classes, so `legacy` of tokenizer_config.json matters: a space is put
 * before every part of a text between added tokens; if legacy is false, only before the
 * first part, if the text begins with it and not with a space. */
#include "text/pieces.h"

#include "base/mem.h"
#include "data/protobuf.h"
#include "text/unicode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum piece_type {
    NORMAL = 1,
    UNKNOWN = 2,
    CONTROL = 3,
    USER_DEFINED = 4,
    UNUSED = 5,
    BYTE = 6,
};
enum { MODEL_UNIGRAM = 1, MODEL_BPE = 2, MAX_PIECE_BYTES = 1024 };

struct piece {
    const char *text; /* borrowed from the file */
    size_t n;
    float score;
    uint64_t type; /* enum piece_type */
    int32_t id;
};

struct model {
    struct piece *pieces; /* owned; by id */
    size_t n;
    size_t capacity;
    uint64_t type; /* model type */
    bool parts[6]; /* which parts of the message exist, by number */
    bool byte_fallback;
    bool space_as_suffix;
    bool dummy_prefix;
    bool removes_spaces;
    bool escapes_spaces;
    const unsigned char *charsmap; /* borrowed from the file; NULL: none */
    size_t n_charsmap;
    int32_t bos; /* -1: none */
    int32_t eos;
};

static kg_status refuse(struct kg_reader *r, const char *field, const char *found,
                        const char *expected)
{
    return kg_fail(r->err, KG_EUNSUPPORTED, "%s: %s is %s, expected %s", r->where, field,
                   found, expected);
}

/* ---- protocol buffer messages ---- */

static kg_status next_field(struct kg_reader *r, struct kg_protobuf *p,
                            struct kg_protobuf_field *f, bool *more)
{
    if (kg_protobuf_next(p, f, more, r->err) != KG_OK)
        return kg_err_prefix(r->err, "%s", r->where);
    return KG_OK;
}

static kg_status read_piece(struct kg_reader *r, struct model *m, struct kg_protobuf p)
{
    struct kg_protobuf_field f;
    bool more;
    KG_TRY(kg_mem_grow(&m->pieces, &m->capacity, m->n + 1, sizeof *m->pieces,
                       KG_VOCAB_MAX_IDS, "pieces", r->err));
    struct piece *piece = &m->pieces[m->n];
    *piece = (struct piece){.text = "", .type = NORMAL, .id = (int32_t)m->n};
    for (;;) {
        KG_TRY(next_field(r, &p, &f, &more));
        if (!more)
            break;
        if (f.number == 1 && f.wire == KG_PROTOBUF_BYTES) {
            piece->text = (const char *)f.bytes;
            piece->n = f.n;
        } else if (f.number == 2 && f.wire == KG_PROTOBUF_32BIT) {
            piece->score = kg_protobuf_float(&f);
        } else if (f.number == 3 && f.wire == KG_PROTOBUF_VARINT) {
            piece->type = f.value;
        }
    }
    if (piece->n == 0 || piece->n > MAX_PIECE_BYTES ||
        kg_utf8_valid_prefix(piece->text, piece->n) != piece->n || isnan(piece->score) ||
        piece->type < NORMAL || piece->type > BYTE)
        return kg_fail(
            r->err, KG_EFORMAT,
            "%s: piece %zu: expected UTF-8 text of at most %d bytes, a score and a "
            "known type",
            r->where, m->n, MAX_PIECE_BYTES);
    m->n++;
    return KG_OK;
}

static kg_status read_trainer(struct kg_reader *r, struct model *m, struct kg_protobuf p)
{
    struct kg_protobuf_field f;
    bool more;
    for (;;) {
        KG_TRY(next_field(r, &p, &f, &more));
        if (!more)
            return KG_OK;
        switch (f.number) {
        case 3:
            m->type = f.value;
            break;
        case 24:
            m->space_as_suffix = f.value != 0;
            break;
        case 35:
            m->byte_fallback = f.value != 0;
            break;
        case 41:
            m->bos = (int32_t)f.value;
            break;
        case 42:
            m->eos = (int32_t)f.value;
            break;
        default: /* about training, or also given by the type of a piece */
            break;
        }
    }
}

/* normalizer_spec and denormalizer_spec */
static kg_status read_normalizer(struct kg_reader *r, struct model *m,
                                 struct kg_protobuf p, bool denormalizer)
{
    struct kg_protobuf_field f;
    bool more;
    for (;;) {
        KG_TRY(next_field(r, &p, &f, &more));
        if (!more)
            return KG_OK;
        if (f.number == 2 && f.wire == KG_PROTOBUF_BYTES && f.n > 0) {
            if (denormalizer)
                return refuse(r, "denormalizer_spec.precompiled_charsmap",
                              "a map of characters", "none");
            m->charsmap = f.bytes;
            m->n_charsmap = f.n;
        }
        if (f.number > 6)
            return kg_fail(r->err, KG_EUNSUPPORTED,
                           "%s: normalizer_spec: field %u is not known to kedge",
                           r->where, f.number);
        if (denormalizer)
            continue;
        m->dummy_prefix = f.number == 3 ? f.value != 0 : m->dummy_prefix;
        m->removes_spaces = f.number == 4 ? f.value != 0 : m->removes_spaces;
        m->escapes_spaces = f.number == 5 ? f.value != 0 : m->escapes_spaces;
    }
}

static kg_status read_model(struct kg_reader *r, struct model *m, struct kg_protobuf p)
{
    struct kg_protobuf_field f;
    bool more;
    for (;;) {
        KG_TRY(next_field(r, &p, &f, &more));
        if (!more)
            return KG_OK;
        if (f.wire != KG_PROTOBUF_BYTES || f.number > 5)
            return kg_fail(r->err, KG_EFORMAT,
                           "%s: expected the five parts of a SentencePiece model, found "
                           "field %u",
                           r->where, f.number);
        struct kg_protobuf part = kg_protobuf_over(f.bytes, f.n);
        m->parts[f.number] = true;
        if (f.number == 1)
            KG_TRY(read_piece(r, m, part));
        else if (f.number == 2)
            KG_TRY(read_trainer(r, m, part));
        else if (f.number != 4) /* 4: examples for a self-test */
            KG_TRY(read_normalizer(r, m, part, f.number == 5));
    }
}

/* ---- unsupported models ---- */

static kg_status check_model(struct kg_reader *r, const struct model *m)
{
    static const char *const types[] = {"0", "UNIGRAM", "BPE", "WORD", "CHAR"};
    if (!m->parts[2] || !m->parts[3])
        return kg_fail(r->err, KG_EFORMAT,
                       "%s: expected pieces, trainer_spec and normalizer_spec, found no "
                       "%s",
                       r->where, m->parts[2] ? "normalizer_spec" : "trainer_spec");
    if (m->type != MODEL_BPE && m->type != MODEL_UNIGRAM)
        return refuse(r, "trainer_spec.model_type",
                      m->type < 5 ? types[m->type] : "not known", "BPE or UNIGRAM");
    if (m->space_as_suffix)
        return refuse(r, "trainer_spec.treat_whitespace_as_suffix", "true", "false");
    if (!m->escapes_spaces)
        return refuse(r, "normalizer_spec.escape_whitespaces", "false", "true");
    for (size_t i = 0; i < m->n && m->type == MODEL_BPE; i++)
        if (m->pieces[i].type == UNUSED)
            return kg_fail(r->err, KG_EUNSUPPORTED,
                           "%s: piece %zu is of type UNUSED, expected another", r->where,
                           i);
    return KG_OK;
}

/* A piece can be merged from its characters only if each of them is a piece. */
static kg_status check_characters(struct kg_reader *r, const struct piece *piece)
{
    for (size_t i = 0, n; i < piece->n; i += n) {
        uint32_t cp;
        n = kg_utf8_decode(&cp, piece->text + i);
        if (kg_vocab_find(&r->tok->vocab, piece->text + i, n, false) < 0)
            return kg_fail(r->err, KG_EUNSUPPORTED,
                           "%s: piece %d '%.*s': expected every character of it to be a "
                           "piece, found none for '%.*s'",
                           r->where, piece->id, piece->n < 40 ? (int)piece->n : 40,
                           piece->text, (int)n, piece->text + i);
    }
    return KG_OK;
}

/* ---- pieces into the tokenizer ---- */

static kg_status put_pieces(struct kg_reader *r, const struct model *m)
{
    for (size_t i = 0; i < m->n; i++) {
        const struct piece *piece = &m->pieces[i];
        if (kg_vocab_put(&r->tok->vocab, piece->id, piece->text, piece->n,
                         piece->type == NORMAL ? 0 : KG_VOCAB_RAW, r->err) != KG_OK)
            return kg_err_prefix(r->err, "%s: piece %zu", r->where, i);
    }
    for (size_t i = 0; i < m->n && m->type == MODEL_BPE; i++)
        if (m->pieces[i].type == NORMAL)
            KG_TRY(check_characters(r, &m->pieces[i]));
    return KG_OK;
}

static int by_score(const void *a, const void *b)
{
    const struct piece *x = a;
    const struct piece *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* The best score is merged first; equal scores share a rank. Sorts the pieces. */
static kg_status make_merges(struct kg_reader *r, struct model *m)
{
    struct kg_tokenizer *tok = r->tok;
    int32_t next = 0;
    int32_t *rank = kg_mem_calloc((size_t)tok->vocab.n_ids, sizeof *rank, "token ranks",
                                  r->err);
    if (!rank)
        return r->err->code;
    for (int32_t id = 0; id < tok->vocab.n_ids; id++)
        rank[id] = -1;
    qsort(m->pieces, m->n, sizeof *m->pieces, by_score);
    for (size_t i = 0; i < m->n; i++) {
        next += i > 0 && m->pieces[i].score != m->pieces[i - 1].score;
        if (m->pieces[i].type == NORMAL)
            rank[m->pieces[i].id] = next;
    }
    kg_status status = kg_pieces_merge(tok, rank, r->err);
    kg_mem_free(rank);
    return status == KG_OK ? KG_OK : kg_err_prefix(r->err, "%s", r->where);
}

/* ---- Unigram ---- */

/* The score of a piece in a split; NaN: it is never used. A USER_DEFINED piece scores as
 * much as one piece of the best score per byte. */
static double way_score(const struct piece *piece, float most)
{
    if (piece->type == NORMAL)
        return (double)piece->score;
    return piece->type == USER_DEFINED ? (double)((float)piece->n * most) - 0.1 : NAN;
}

static kg_status make_unigram(struct kg_reader *r, const struct model *m)
{
    struct kg_unigram *u = kg_unigram_create(m->n, r->err);
    float least = INFINITY, most = -INFINITY;
    for (size_t i = 0; i < m->n; i++) {
        const float score = m->pieces[i].score;
        if (m->pieces[i].type == NORMAL) {
            least = score < least ? score : least;
            most = score > most ? score : most;
        }
    }
    if (!u)
        return r->err->code;
    r->tok->own = u;
    u->single = true;
    u->unknown = (double)(least - (float)KG_UNKNOWN_PENALTY);
    for (size_t i = 0; i < m->n; i++)
        u->scores[i] = way_score(&m->pieces[i], most);
    if (kg_unigram_build(u, &r->tok->vocab, r->err) != KG_OK)
        return kg_err_prefix(r->err, "%s", r->where);
    return KG_OK;
}

/* ---- characters and spaces ---- */

/* SentencePiece finds USER_DEFINED pieces before it maps characters, kedge after it. */
static kg_status check_map(struct kg_reader *r, const struct model *m,
                           const struct kg_charsmap *map)
{
    for (size_t i = 0; i < m->n; i++) {
        const struct piece *piece = &m->pieces[i];
        if (piece->type != USER_DEFINED)
            continue;
        kg_str_clear(&r->scratch);
        KG_TRY(kg_charsmap_longest(&r->scratch, map, piece->text, piece->n, r->err));
        if (r->scratch.len != piece->n ||
            memcmp(kg_str_text(&r->scratch), piece->text, piece->n) != 0)
            return kg_fail(r->err, KG_EUNSUPPORTED,
                           "%s: piece %zu '%.*s' is USER_DEFINED: expected one that "
                           "normalizer_spec.precompiled_charsmap does not change",
                           r->where, i, piece->n < 40 ? (int)piece->n : 40, piece->text);
    }
    return KG_OK;
}

static kg_status set_map(struct kg_reader *r, const struct model *m)
{
    struct kg_normalizer *norm = &r->tok->normalizer;
    struct kg_charsmap **map;
    if (m->charsmap) {
        KG_TRY(kg_normalizer_add(norm, KG_NORMALIZE_LONGEST, NULL, NULL, r->err));
        map = &kg_normalizer_newest(norm)->map;
        if (kg_charsmap_create(map, m->charsmap, m->n_charsmap, r->err) != KG_OK)
            return kg_err_prefix(r->err, "%s: normalizer_spec", r->where);
        KG_TRY(check_map(r, m, *map));
    }
    return m->removes_spaces
               ? kg_normalizer_add(norm, KG_NORMALIZE_SQUEEZE, NULL, NULL, r->err)
               : KG_OK;
}

static kg_status set_spaces(struct kg_reader *r, const struct model *m,
                            const struct kg_json *config)
{
    struct kg_tokenizer *tok = r->tok;
    bool front = m->dummy_prefix &&
                 kg_json_bool(kg_json_get(config, "add_prefix_space"), true);
    bool legacy = kg_json_bool(kg_json_get(config, "legacy"), true);
    tok->lead = front;
    KG_TRY(
        kg_normalizer_add(&r->texts, KG_NORMALIZE_REPLACE, KG_SPACE_MARK, " ", r->err));
    if (front && !legacy) {
        struct kg_pretoken_stage *stage = &tok->stages[tok->n_stages++];
        stage->kind = KG_PRETOKEN_MARK;
        stage->front = KG_MARK_FIRST;
        return kg_str_puts(&stage->mark, KG_SPACE_MARK, r->err);
    }
    if (front)
        KG_TRY(kg_normalizer_add(&tok->normalizer, KG_NORMALIZE_PREPEND, NULL,
                                 KG_SPACE_MARK, r->err));
    return kg_normalizer_add(&tok->normalizer, KG_NORMALIZE_REPLACE, " ", KG_SPACE_MARK,
                             r->err);
}

/* ---- added tokens ---- */

/* A piece that is never split or merged: found in text whose spaces are marks already. */
static kg_status add_user_defined(struct kg_reader *r, const struct piece *piece)
{
    struct kg_tokenizer *tok = r->tok;
    struct kg_added_token token = {.n = piece->n, .id = piece->id};
    if (kg_pieces_is_added(tok, piece->id))
        return KG_OK;
    if (tok->n_stages > 0)
        return kg_fail(r->err, KG_EUNSUPPORTED,
                       "%s: piece %d '%.*s' is USER_DEFINED: expected legacy of "
                       "tokenizer_config.json to be true, found false",
                       r->where, piece->id, piece->n < 40 ? (int)piece->n : 40,
                       piece->text);
    token.content = kg_mem_copy(piece->text, piece->n, "added token", r->err);
    if (!token.content)
        return r->err->code;
    kg_status status = kg_added_push(&tok->normalized, &token, r->err);
    kg_mem_free(token.content);
    tok->vocab.flags[piece->id] |= KG_VOCAB_ADDED;
    return status;
}

static kg_status add_tokens(struct kg_reader *r, const struct model *m,
                            const struct kg_json *config)
{
    bool given;
    KG_TRY(kg_pieces_add(r, config, &given));
    for (size_t i = 0; i < m->n; i++) {
        const struct piece *piece = &m->pieces[i];
        if (piece->type == UNKNOWN || piece->type == CONTROL)
            KG_TRY(kg_pieces_add_special(r, piece->id));
        else if (piece->type == USER_DEFINED && m->type == MODEL_BPE)
            KG_TRY(add_user_defined(r, piece));
    }
    kg_added_sort(&r->tok->raw);
    kg_added_sort(&r->tok->normalized);
    return KG_OK;
}

/* ---- the whole file ---- */

static int32_t known(const struct model *m, int32_t id)
{
    return id >= 0 && (size_t)id < m->n ? id : -1;
}

/* Sets the unknown token; adjacent unknown characters become one token. */
static kg_status find_unknown(struct kg_reader *r, const struct model *m)
{
    struct kg_tokenizer *tok = r->tok;
    for (size_t i = 0; i < m->n; i++)
        if (m->pieces[i].type == UNKNOWN)
            tok->unknown = m->pieces[i].id;
    tok->fuse_unknown = true;
    if (tok->unknown >= 0 || m->byte_fallback)
        return KG_OK;
    return kg_fail(r->err, KG_EUNSUPPORTED,
                   "%s: expected a piece of type UNKNOWN, or trainer_spec.byte_fallback",
                   r->where);
}

static kg_status build(struct kg_reader *r, struct model *m, const struct kg_json *config)
{
    struct kg_tokenizer *tok = r->tok;
    int64_t n_ids;
    tok->by_char = true;
    tok->byte_fallback = r->decodes_bytes = m->byte_fallback;
    tok->model = m->type == MODEL_BPE ? &KG_MODEL_BPE : &KG_MODEL_UNIGRAM;
    KG_TRY(kg_pieces_n_ids(r, config, (int64_t)m->n, &n_ids));
    KG_TRY(kg_vocab_init(&tok->vocab, n_ids, (size_t)n_ids, r->err));
    KG_TRY(put_pieces(r, m));
    KG_TRY(find_unknown(r, m));
    if (m->byte_fallback) {
        KG_TRY(kg_reader_find_bytes(r));
        for (int byte = 0; byte < 256; byte++)
            if (r->tok->byte_ids[byte] < 0)
                return kg_fail(
                    r->err, KG_EUNSUPPORTED,
                    "%s: byte_fallback: expected a piece for every byte, found "
                    "no '<0x%02X>'",
                    r->where, (unsigned)byte);
    }
    KG_TRY(set_map(r, m));
    KG_TRY(set_spaces(r, m, config));
    KG_TRY(add_tokens(r, m, config));
    KG_TRY(m->type == MODEL_BPE ? make_merges(r, m) : make_unigram(r, m));
    KG_TRY(kg_reader_set_texts(r));
    return kg_pieces_add_ends(r, config, known(m, m->bos), known(m, m->eos));
}

kg_status kg_sentencepiece_parse(struct kg_reader *r,
                                 const struct kg_tokenizer_file *file)
{
    /* the defaults of sentencepiece_model.proto */
    struct model m = {.type = 1,
                      .dummy_prefix = true,
                      .removes_spaces = true,
                      .escapes_spaces = true,
                      .bos = 1,
                      .eos = 2};
    kg_status status = read_model(r, &m, kg_protobuf_over(file->bytes, file->n));
    if (status == KG_OK)
        status = check_model(r, &m);
    if (status == KG_OK)
        status = build(r, &m, file->config);
    kg_mem_free(m.pieces);
    return status;
}
