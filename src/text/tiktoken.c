/* tokenizer.model in Llama 3's form: one line per token, with its bytes in base64 and its
 * rank, which is its id.
 *
 * The file has neither the pattern that splits text nor the special tokens. kedge uses
 * Llama 3's pattern, and the special tokens of added_tokens_decoder in
 * tokenizer_config.json; without these, the 256 of Llama 3.1, after the last rank.
 */
#include "text/pieces.h"

#include "base/mem.h"
#include "text/bytelevel.h"

#include <stdio.h>
#include <string.h>

enum { N_SPECIALS = 256, MAX_TOKEN_DIGITS = 1024 };

/* ---- lines ---- */

struct lines {
    const char *at; /* borrowed: the next line */
    const char *end;
    size_t number; /* of the current line, from 1 */
};
struct line {
    const char *bytes; /* borrowed; base64 */
    size_t n;
    int64_t rank;
};

/* The number in [at, end); -1 unless it is below KG_VOCAB_MAX_IDS. */
static int64_t read_rank(const char *at, const char *end)
{
    int64_t rank = at == end ? -1 : 0;
    for (; at < end && rank >= 0; at++) {
        bool digit = *at >= '0' && *at <= '9';
        rank = digit ? rank * 10 + (*at - '0') : -1;
        rank = rank < KG_VOCAB_MAX_IDS ? rank : -1;
    }
    return rank;
}

/* The next line that is not empty.   *more <- false at the end */
static kg_status next_line(struct kg_reader *r, struct lines *s, struct line *line,
                           bool *more)
{
    while (s->at < s->end && *s->at == '\n') {
        s->at++;
        s->number++;
    }
    *more = s->at < s->end;
    if (!*more)
        return KG_OK;
    const char *end = memchr(s->at, '\n', (size_t)(s->end - s->at));
    end = end ? end : s->end;
    const char *space = memchr(s->at, ' ', (size_t)(end - s->at));
    *line = (struct line){.bytes = s->at, .rank = -1};
    if (space) {
        line->n = (size_t)(space - s->at);
        line->rank = read_rank(space + 1, end);
    }
    if (line->rank < 0 || line->n == 0 || line->n > MAX_TOKEN_DIGITS)
        return kg_fail(r->err, KG_EFORMAT,
                       "%s: line %zu: expected a token in base64, a space and a rank "
                       "below %d",
                       r->where, s->number, KG_VOCAB_MAX_IDS);
    s->at = end;
    return KG_OK;
}

/* ---- tokens ---- */

static kg_status put_token(struct kg_reader *r, const struct lines *s,
                           const struct line *line)
{
    bool valid;
    kg_str_clear(&r->scratch);
    KG_TRY(kg_base64_decode(&r->scratch, line->bytes, line->n, &valid, r->err));
    if (!valid)
        return kg_fail(r->err, KG_EFORMAT,
                       "%s: line %zu: expected a token in base64, found '%.*s'", r->where,
                       s->number, line->n < 40 ? (int)line->n : 40, line->bytes);
    if (kg_vocab_put(&r->tok->vocab, line->rank, kg_str_text(&r->scratch), r->scratch.len,
                     0, r->err) != KG_OK)
        return kg_err_prefix(r->err, "%s: line %zu", r->where, s->number);
    return KG_OK;
}

/* The number of tokens, one per line. Their ranks must be 0 to n - 1. */
static kg_status count_tokens(struct kg_reader *r, struct lines s, int64_t *n)
{
    struct line line;
    bool more;
    *n = 0;
    for (;;) {
        KG_TRY(next_line(r, &s, &line, &more));
        if (!more)
            return KG_OK;
        ++*n;
    }
}

static kg_status read_tokens(struct kg_reader *r, struct lines s, int64_t n)
{
    struct line line;
    bool more;
    for (;;) {
        KG_TRY(next_line(r, &s, &line, &more));
        if (!more)
            return KG_OK;
        if (line.rank >= n)
            return kg_fail(r->err, KG_EFORMAT,
                           "%s: line %zu: expected a rank below %lld, the number of "
                           "tokens, found %lld",
                           r->where, s.number, (long long)n, (long long)line.rank);
        KG_TRY(put_token(r, &s, &line));
    }
}

/* ---- special tokens ---- */

/* The i-th special token of Llama 3.1. */
static void name_special(char name[64], int i)
{
    static const char *const named[] = {
        [0] = "begin_of_text",   [1] = "end_of_text",   [4] = "finetune_right_pad_id",
        [6] = "start_header_id", [7] = "end_header_id", [8] = "eom_id",
        [9] = "eot_id",          [10] = "python_tag",
    };
    const int n_named = (int)(sizeof named / sizeof *named);
    int reserved = 0; /* tokens without a name, before the i-th */
    for (int k = 0; k < i; k++)
        reserved += k >= n_named || !named[k];
    if (i < n_named && named[i])
        snprintf(name, 64, "<|%s|>", named[i]);
    else
        snprintf(name, 64, "<|reserved_special_token_%d|>", reserved);
}

static kg_status add_llama3_specials(struct kg_reader *r, int64_t first)
{
    for (int i = 0; i < N_SPECIALS; i++) {
        char name[64];
        name_special(name, i);
        if (kg_vocab_put(&r->tok->vocab, first + i, name, strlen(name), KG_VOCAB_RAW,
                         r->err) != KG_OK)
            return kg_err_prefix(r->err, "%s: special tokens of Llama 3", r->where);
        KG_TRY(kg_pieces_add_special(r, (int32_t)(first + i)));
    }
    return KG_OK;
}

/* ---- the whole file ---- */

static kg_status make_merges(struct kg_reader *r, int64_t n)
{
    struct kg_tokenizer *tok = r->tok;
    int32_t *rank = kg_mem_calloc((size_t)tok->vocab.n_ids, sizeof *rank, "token ranks",
                                  r->err);
    if (!rank)
        return r->err->code;
    for (int32_t id = 0; id < tok->vocab.n_ids; id++)
        rank[id] = id < n ? id : -1;
    kg_status status = kg_pieces_merge(tok, rank, r->err);
    kg_mem_free(rank);
    return status == KG_OK ? KG_OK : kg_err_prefix(r->err, "%s", r->where);
}

kg_status kg_tiktoken_parse(struct kg_reader *r, const struct kg_tokenizer_file *file)
{
    struct kg_tokenizer *tok = r->tok;
    const struct lines s = {file->bytes, file->bytes + file->n, 1};
    int64_t n, n_ids;
    bool given = kg_json_size(kg_json_get(file->config, "added_tokens_decoder")) > 0;
    KG_TRY(count_tokens(r, s, &n));
    KG_TRY(kg_pieces_n_ids(r, file->config, given ? n : n + N_SPECIALS, &n_ids));
    KG_TRY(kg_vocab_init(&tok->vocab, n_ids, (size_t)n_ids, r->err));
    KG_TRY(read_tokens(r, s, n));
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        tok->byte_ids[byte] = kg_vocab_find(&tok->vocab, &c, 1, false);
    }
    KG_TRY(make_merges(r, n));
    tok->ignore_merges = true; /* a piece that is a token is looked up first */
    KG_TRY(kg_reader_cut(r, KG_PATTERN_LLAMA3, strlen(KG_PATTERN_LLAMA3), false));
    KG_TRY(kg_pieces_add(r, file->config, &given));
    if (!given)
        KG_TRY(add_llama3_specials(r, n));
    kg_added_sort(&tok->raw);
    kg_added_sort(&tok->normalized);
    int32_t first = given ? -1 : (int32_t)n; /* begin_of_text, end_of_text */
    return kg_pieces_add_ends(r, file->config, first, given ? -1 : first + 1);
}
