/* Training a byte-level BPE.
 *
 * The texts are split into pre-tokens; equal ones become one word with a count. Then the
 * most frequent pair of neighbours becomes a token, repeatedly; among equal counts, the
 * pair with the smaller ids is first, so the result depends only on the counts. Only
 * words with the merged pair change: every pair has a list of its words, and a heap has
 * the pairs. Both may be out of date: a heap entry is compared with the current count
 * when it is taken, and a listed word may have lost the pair.
 *
 * Ids: 0..255 are the bytes, then the merges in order.
 */

#include "base/mem.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/pretoken.h"
#include "text/tokenizer_internal.h"
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PIECES = 1 << 28, MAX_SYMBOLS = 1 << 30, MAX_PAIRS = 1 << 26, N_BYTES = 256 };

/* A range of train.text: text between special tokens, or a pre-token. */
struct piece {
    const char *bytes; /* borrowed */
    size_t n;
};
struct pieces {
    struct piece *at; /* owned */
    size_t n;
    size_t capacity;
};

struct word {
    int32_t *symbols; /* in train.symbols */
    uint32_t n;
    int64_t count;
};

struct pair {
    int32_t left, right;
    bool touched; /* its count grew in the current merge */
    int64_t count;
    uint32_t *words; /* owned; indices of words that had it when counted */
    size_t n_words;
    size_t capacity;
};

struct candidate {
    int64_t count; /* when it was put on the heap */
    int32_t left, right;
};

struct train {
    struct kg_str text; /* all documents, in NFC, without special tokens */
    struct pieces pieces;
    struct word *words; /* owned */
    size_t n_words;
    int32_t *symbols;   /* owned */
    struct pair *pairs; /* owned */
    size_t n_pairs;
    size_t pairs_capacity;
    struct kg_merges index; /* pair of ids to its index in pairs (in `id`) */
    size_t index_room;
    struct candidate *heap; /* owned */
    size_t n_heap;
    size_t heap_capacity;
    struct kg_err *err;
};

/* ---- text to words ---- */

static kg_status push_piece(struct train *t, struct pieces *pieces, const char *bytes,
                            size_t n)
{
    KG_TRY(kg_mem_grow(&pieces->at, &pieces->capacity, pieces->n + 1, sizeof *pieces->at,
                       MAX_PIECES, "pre-tokens", t->err));
    pieces->at[pieces->n++] = (struct piece){bytes, n};
    return KG_OK;
}

static kg_status cut_pretokens(struct train *t, struct kg_pretoken_scan *scan,
                               const char *text, size_t n)
{
    kg_pretoken_scan_start(scan, text, n);
    for (;;) {
        size_t start, len;
        KG_TRY(kg_pretoken_scan_next(scan, &start, &len, t->err));
        if (len == 0)
            return KG_OK;
        KG_TRY(push_piece(t, &t->pieces, text + start, len));
    }
}

/* Appends the text between special tokens to t->text. `stretches` gets lengths instead of
 * pointers, because the text may still move. */
static kg_status add_document(struct train *t, struct pieces *stretches,
                              const struct kg_added *specials, const char *text)
{
    struct kg_added_scan scan;
    struct kg_added_piece piece;
    size_t n = strlen(text);
    KG_TRY(kg_utf8_check(text, n, t->err));
    kg_added_scan_start(&scan, specials, text, n, true);
    while (kg_added_scan_next(&scan, &piece)) {
        size_t before = t->text.len;
        if (piece.token)
            continue;
        KG_TRY(kg_unicode_nfc(&t->text, text + piece.start, piece.len, t->err));
        KG_TRY(push_piece(t, stretches, NULL, t->text.len - before));
    }
    return KG_OK;
}

static kg_status collect_specials(struct kg_added *set, const struct kg_bpe_train *opts,
                                  struct kg_err *err)
{
    for (size_t i = 0; i < opts->n_specials; i++) {
        char *content = kg_mem_strdup(opts->specials[i], err);
        if (!content)
            return err->code;
        struct kg_added_token token = {
            .content = content, .n = strlen(content), .special = true};
        kg_status status = kg_added_push(set, &token, err);
        kg_mem_free(content);
        KG_TRY(status);
    }
    kg_added_sort(set);
    return KG_OK;
}

static kg_status read_documents(struct train *t, struct pieces *stretches,
                                const char *const *texts, size_t n,
                                const struct kg_bpe_train *opts)
{
    struct kg_added specials = {0};
    kg_status status = collect_specials(&specials, opts, t->err);
    for (size_t i = 0; i < n && status == KG_OK; i++) {
        status = add_document(t, stretches, &specials, texts[i]);
        if (status != KG_OK)
            kg_err_prefix(t->err, "document %zu", i);
    }
    kg_added_release(&specials);
    return status;
}

static kg_status cut_all(struct train *t, const char *const *texts, size_t n,
                         const struct kg_bpe_train *opts)
{
    kg_status status;
    struct pieces stretches = {0};
    struct kg_pretoken *pattern = NULL;
    struct kg_pretoken_scan scan = {0};
    const char *regex = opts->pattern ? opts->pattern : KG_PATTERN_QWEN2;
    size_t at = 0;
    KG_TRY_GOTO(out, read_documents(t, &stretches, texts, n, opts));
    KG_TRY_GOTO(out, kg_pretoken_create(&pattern, regex, strlen(regex), false, t->err));
    KG_TRY_GOTO(out, kg_pretoken_scan_init(&scan, pattern, t->err));
    for (size_t i = 0; i < stretches.n; i++) {
        KG_TRY_GOTO(
            out, cut_pretokens(t, &scan, kg_str_text(&t->text) + at, stretches.at[i].n));
        at += stretches.at[i].n;
    }
out:
    kg_pretoken_scan_release(&scan);
    kg_pretoken_free(pattern);
    kg_mem_free(stretches.at);
    return status;
}

static int by_bytes(const void *a, const void *b)
{
    const struct piece *x = a;
    const struct piece *y = b;
    int order = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);
    if (order == 0 && x->n != y->n)
        order = x->n < y->n ? -1 : 1;
    return order;
}

/* Equal pieces become one word; its symbols are its bytes. */
static kg_status make_words(struct train *t)
{
    struct pieces *p = &t->pieces;
    if (p->n)
        qsort(p->at, p->n, sizeof *p->at, by_bytes);
    t->words = kg_mem_calloc(p->n, sizeof *t->words, "words", t->err);
    t->symbols = t->words
                     ? kg_mem_calloc(t->text.len, sizeof *t->symbols, "symbols", t->err)
                     : NULL;
    if (!t->symbols)
        return t->err->code;
    int32_t *symbol = t->symbols;
    for (size_t i = 0; i < p->n; i++) {
        if (i && by_bytes(&p->at[i - 1], &p->at[i]) == 0) {
            t->words[t->n_words - 1].count++;
            continue;
        }
        t->words[t->n_words++] = (struct word){symbol, (uint32_t)p->at[i].n, 1};
        for (size_t b = 0; b < p->at[i].n; b++)
            *symbol++ = (unsigned char)p->at[i].bytes[b];
    }
    return KG_OK;
}

/* ---- pairs ---- */

/* Makes room in the index for one more pair. */
static kg_status grow_index(struct train *t)
{
    if (t->n_pairs < t->index_room)
        return KG_OK;
    kg_merges_release(&t->index);
    t->index_room = t->index_room ? 2 * t->index_room : 4096;
    KG_TRY(kg_merges_init(&t->index, t->index_room, t->err));
    for (size_t i = 0; i < t->n_pairs; i++)
        kg_merges_put(&t->index, t->pairs[i].left, t->pairs[i].right, 0, (int32_t)i);
    return KG_OK;
}

static kg_status pair_of(struct train *t, int32_t left, int32_t right, size_t *at)
{
    int32_t found = t->index.slots ? kg_merges_find(&t->index, left, right).id : -1;
    if (found >= 0) {
        *at = (size_t)found;
        return KG_OK;
    }
    KG_TRY(grow_index(t));
    KG_TRY(kg_mem_grow(&t->pairs, &t->pairs_capacity, t->n_pairs + 1, sizeof *t->pairs,
                       MAX_PAIRS, "pairs", t->err));
    *at = t->n_pairs++;
    t->pairs[*at] = (struct pair){.left = left, .right = right};
    kg_merges_put(&t->index, left, right, 0, (int32_t)*at);
    return KG_OK;
}

/* Adds sign * count of the word to each of its pairs. If sign > 0, pairs with the token
 * `made` (-1: all pairs) also list the word. */
static kg_status count_word(struct train *t, size_t word, int sign, int32_t made)
{
    const struct word *w = &t->words[word];
    for (uint32_t i = 0; i + 1 < w->n; i++) {
        size_t at;
        KG_TRY(pair_of(t, w->symbols[i], w->symbols[i + 1], &at));
        struct pair *p = &t->pairs[at];
        p->count += sign * w->count;
        if (sign < 0 || (made >= 0 && p->left != made && p->right != made))
            continue;
        p->touched = true;
        if (p->n_words && p->words[p->n_words - 1] == word)
            continue;
        KG_TRY(kg_mem_grow(&p->words, &p->capacity, p->n_words + 1, sizeof *p->words,
                           MAX_SYMBOLS, "words of a pair", t->err));
        p->words[p->n_words++] = (uint32_t)word;
    }
    return KG_OK;
}

/* ---- the heap of candidates ---- */

/* Whether a is merged before b. */
static bool before(const struct candidate *a, const struct candidate *b)
{
    if (a->count != b->count)
        return a->count > b->count;
    return a->left != b->left ? a->left < b->left : a->right < b->right;
}

static kg_status heap_push(struct train *t, const struct pair *p)
{
    struct candidate c = {p->count, p->left, p->right};
    KG_TRY(kg_mem_grow(&t->heap, &t->heap_capacity, t->n_heap + 1, sizeof *t->heap,
                       MAX_SYMBOLS, "candidate pairs", t->err));
    size_t at = t->n_heap++;
    while (at > 0 && before(&c, &t->heap[(at - 1) / 2])) {
        t->heap[at] = t->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    t->heap[at] = c;
    return KG_OK;
}

static struct candidate heap_pop(struct train *t)
{
    struct candidate top = t->heap[0];
    struct candidate last = t->heap[--t->n_heap];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < t->n_heap && before(&t->heap[child + 1], &t->heap[child]))
            child++;
        if (child >= t->n_heap || !before(&t->heap[child], &last))
            break;
        t->heap[at] = t->heap[child];
        at = child;
    }
    t->heap[at] = last;
    return top;
}

/* *at <- the index of the most frequent pair; n_pairs if no pair is left. */
static kg_status best_pair(struct train *t, size_t *at)
{
    while (t->n_heap) {
        struct candidate c = heap_pop(t);
        KG_TRY(pair_of(t, c.left, c.right, at));
        if (t->pairs[*at].count == c.count)
            return KG_OK;
        if (t->pairs[*at].count > 0)
            KG_TRY(heap_push(t, &t->pairs[*at]));
    }
    *at = t->n_pairs;
    return KG_OK;
}

/* Puts the pairs that grew on the heap, with their new counts. */
static kg_status queue_touched(struct train *t)
{
    for (size_t i = 0; i < t->n_pairs; i++) {
        if (!t->pairs[i].touched)
            continue;
        t->pairs[i].touched = false;
        KG_TRY(heap_push(t, &t->pairs[i]));
    }
    return KG_OK;
}

/* ---- merging ---- */

static bool holds(const struct word *w, int32_t left, int32_t right)
{
    for (uint32_t i = 0; i + 1 < w->n; i++)
        if (w->symbols[i] == left && w->symbols[i + 1] == right)
            return true;
    return false;
}

static void rewrite(struct word *w, int32_t left, int32_t right, int32_t made)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        bool hit = i + 1 < w->n && w->symbols[i] == left && w->symbols[i + 1] == right;
        w->symbols[kept++] = hit ? made : w->symbols[i];
        i += hit;
    }
    w->n = kept;
}

static kg_status merge_pair(struct train *t, size_t at, int32_t made)
{
    int32_t left = t->pairs[at].left;
    int32_t right = t->pairs[at].right;
    /* t->pairs may move, and this pair's list may grow if the merge makes the pair again
     * ("aaa"); only the words listed now are visited. */
    size_t n = t->pairs[at].n_words;
    for (size_t i = 0; i < n; i++) {
        size_t word = t->pairs[at].words[i];
        if (!holds(&t->words[word], left, right))
            continue;
        KG_TRY(count_word(t, word, -1, made));
        rewrite(&t->words[word], left, right, made);
        KG_TRY(count_word(t, word, 1, made));
    }
    return queue_touched(t);
}

/* Two merges may spell the same bytes ("a"+"bc", "ab"+"c"): then both lead to one
 * token. */
static kg_status token_of(struct kg_bpe_result *result, const struct pair *p, int32_t *id,
                          struct kg_err *err)
{
    struct kg_str bytes = {0};
    kg_status status = KG_OK;
    const int32_t halves[2] = {p->left, p->right};
    for (int i = 0; i < 2; i++) {
        size_t n;
        const char *half = kg_vocab_bytes(&result->vocab, halves[i], &n);
        KG_TRY_GOTO(out, kg_str_append(&bytes, half, n, err));
    }
    *id = kg_vocab_find(&result->vocab, bytes.data, bytes.len, false);
    if (*id < 0) {
        KG_TRY_GOTO(out, kg_vocab_put(&result->vocab, result->n_tokens, bytes.data,
                                      bytes.len, 0, err));
        *id = result->n_tokens++;
    }
out:
    kg_str_release(&bytes);
    return status;
}

static kg_status merge_best(struct train *t, struct kg_bpe_result *result,
                            int32_t n_tokens)
{
    size_t at;
    int32_t made;
    KG_TRY(best_pair(t, &at));
    if (at == t->n_pairs)
        return kg_fail(t->err, KG_EINVAL,
                       "the text gives only %d tokens without special ones, expected %d: "
                       "use more text or a smaller vocabulary",
                       result->n_tokens, n_tokens);
    KG_TRY(token_of(result, &t->pairs[at], &made, t->err));
    KG_TRY(kg_mem_grow(&result->merges, &result->merges_capacity, result->n_merges + 1,
                       sizeof *result->merges, MAX_PAIRS, "merges", t->err));
    result->merges[result->n_merges][0] = t->pairs[at].left;
    result->merges[result->n_merges++][1] = t->pairs[at].right;
    return merge_pair(t, at, made);
}

kg_status kg_bpe_learn(struct kg_bpe_result *result, const char *const *texts, size_t n,
                       const struct kg_bpe_train *opts, int32_t n_tokens,
                       struct kg_err *err)
{
    kg_status status;
    struct train t = {.err = err};
    *result = (struct kg_bpe_result){0};
    KG_TRY_GOTO(out, kg_vocab_init(&result->vocab, n_tokens, (size_t)n_tokens, err));
    for (int byte = 0; byte < N_BYTES; byte++) {
        char c = (char)byte;
        KG_TRY_GOTO(out, kg_vocab_put(&result->vocab, byte, &c, 1, 0, err));
    }
    result->n_tokens = N_BYTES;
    KG_TRY_GOTO(out, cut_all(&t, texts, n, opts));
    KG_TRY_GOTO(out, make_words(&t));
    for (size_t i = 0; i < t.n_words; i++)
        KG_TRY_GOTO(out, count_word(&t, i, 1, -1));
    KG_TRY_GOTO(out, queue_touched(&t));
    while (result->n_tokens < n_tokens)
        KG_TRY_GOTO(out, merge_best(&t, result, n_tokens));
out:
    for (size_t i = 0; i < t.n_pairs; i++)
        kg_mem_free(t.pairs[i].words);
    kg_mem_free(t.pairs);
    kg_mem_free(t.pieces.at);
    kg_mem_free(t.words);
    kg_mem_free(t.symbols);
    kg_mem_free(t.heap);
    kg_merges_release(&t.index);
    kg_str_release(&t.text);
    return status;
}

void kg_bpe_result_release(struct kg_bpe_result *result)
{
    kg_vocab_release(&result->vocab);
    kg_mem_free(result->merges);
    *result = (struct kg_bpe_result){0};
}
