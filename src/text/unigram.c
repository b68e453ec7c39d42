/* The trie and Viterbi's walk over it. The sorted pieces are split into ranges with the
 * same first byte, these by the next byte, and so on: every range is a node. Nodes are
 * made by depth, so the children of a node are adjacent. The walk goes forward once: at
 * every character, all pieces that begin there are tried, and each end keeps its best
 * split; on a tie, the one found first. */
#include "text/unigram.h"

#include "base/mem.h"
#include "text/unicode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NODES = 1 << 28 };

struct kg_unigram *kg_unigram_create(size_t n, struct kg_err *err)
{
    struct kg_unigram *u = kg_mem_calloc(1, sizeof *u, "scores", err);

    if (!u)
        return NULL;
    u->n_scores = (int32_t)n;
    u->scores = kg_mem_calloc(n + 1, sizeof *u->scores, "scores", err);
    if (u->scores)
        return u;
    kg_mem_free(u);
    return NULL;
}

void kg_unigram_free(void *own)
{
    struct kg_unigram *u = own;

    if (!u)
        return;
    kg_mem_free(u->nodes);
    kg_mem_free(u->scores);
    kg_mem_free(u);
}

void kg_unigram_work_release(struct kg_unigram_work *work)
{
    kg_mem_free(work->steps);
    *work = (struct kg_unigram_work){0};
}

/* ---- the trie ---- */

struct key {
    const char *bytes; /* borrowed */
    size_t n;
    int32_t id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct key *x = a;
    const struct key *y = b;
    const int order = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);

    return order ? order : x->n < y->n ? -1 : x->n > y->n;
}

/* The keys of a node while the trie is built. */
struct span {
    uint32_t from, to;
    uint32_t depth;
};
struct builder {
    struct kg_unigram *u;
    const struct key *keys;
    struct span *spans; /* owned; one per node */
    size_t capacity;
    struct kg_err *err;
};

static kg_status push_node(struct builder *b, struct span span, uint8_t byte)
{
    struct kg_unigram *u = b->u;

    KG_TRY(kg_mem_grow(&u->nodes, &u->capacity, u->n_nodes + 1, sizeof *u->nodes,
                       MAX_NODES, "pieces", b->err));
    KG_TRY(kg_mem_grow(&b->spans, &b->capacity, u->n_nodes + 1, sizeof *b->spans,
                       MAX_NODES, "pieces", b->err));
    u->nodes[u->n_nodes] = (struct kg_unigram_node){.id = -1, .byte = byte};
    b->spans[u->n_nodes++] = span;
    return KG_OK;
}

/* Sets the piece of a node and makes its children. */
static kg_status fill_node(struct builder *b, size_t at)
{
    struct span s = b->spans[at];
    const struct key *keys = b->keys;

    if (s.from < s.to && keys[s.from].n == s.depth)
        b->u->nodes[at].id = keys[s.from++].id;
    b->u->nodes[at].first = (uint32_t)b->u->n_nodes;
    while (s.from < s.to) {
        const char byte = keys[s.from].bytes[s.depth];
        uint32_t to = s.from;

        while (to < s.to && keys[to].bytes[s.depth] == byte)
            to++;
        KG_TRY(push_node(b, (struct span){s.from, to, s.depth + 1}, (uint8_t)byte));
        b->u->nodes[at].n++;
        s.from = to;
    }
    return KG_OK;
}

static kg_status build_from(struct kg_unigram *u, const struct key *keys, uint32_t n,
                            struct kg_err *err)
{
    struct builder b = {.u = u, .keys = keys, .err = err};
    kg_status status = push_node(&b, (struct span){0, n, 0}, 0);

    for (size_t i = 0; i < u->n_nodes && status == KG_OK; i++)
        status = fill_node(&b, i);
    kg_mem_free(b.spans);
    return status;
}

/* Two pieces of equal text would need two ids in one node.   keys: sorted */
static kg_status refuse_twins(const struct key *keys, uint32_t n, struct kg_err *err)
{
    for (uint32_t i = 1; i < n; i++)
        if (keys[i].n == keys[i - 1].n &&
            memcmp(keys[i].bytes, keys[i - 1].bytes, keys[i].n) == 0)
            return kg_fail(err, KG_EFORMAT,
                           "expected pieces of different text, found the same text as "
                           "ids %d and %d",
                           (int)keys[i - 1].id, (int)keys[i].id);
    return KG_OK;
}

kg_status kg_unigram_build(struct kg_unigram *u, const struct kg_vocab *vocab,
                           struct kg_err *err)
{
    struct key *keys = kg_mem_calloc((size_t)u->n_scores + 1, sizeof *keys, "pieces",
                                     err);
    uint32_t n = 0;

    if (!keys)
        return err->code;
    for (int32_t id = 0; id < u->n_scores; id++) {
        struct key key = {.id = id};

        key.bytes = kg_vocab_key(vocab, id, &key.n);
        if (key.bytes && key.n > 0 && !isnan(u->scores[id]))
            keys[n++] = key;
    }
    qsort(keys, n, sizeof *keys, by_bytes);
    kg_status status = refuse_twins(keys, n, err);
    if (status == KG_OK)
        status = build_from(u, keys, n, err);
    kg_mem_free(keys);
    return status;
}

/* ---- the walk ---- */

static const struct kg_unigram_node *
child(const struct kg_unigram *u, const struct kg_unigram_node *node, uint8_t byte)
{
    const struct kg_unigram_node *low = u->nodes + node->first;
    size_t n = node->n;

    while (n > 1) {
        const size_t half = n / 2;
        if (low[half].byte <= byte) {
            low += half;
            n -= half;
        } else {
            n = half;
        }
    }
    return n == 1 && low->byte == byte ? low : NULL;
}

static void offer(const struct kg_unigram *u, struct kg_unigram_step *step, double score,
                  int32_t id, size_t start)
{
    const double sum = u->single ? (double)(float)score : score;

    if (!isnan(step->score) && !(sum > step->score))
        return;
    step->score = sum;
    step->id = id;
    step->start = (uint32_t)start;
}

/* Offers all pieces that begin at `at` as continuations of the best split up to there. */
static void try_pieces(struct kg_unigram_step *steps, const struct kg_unigram *u,
                       const char *text, size_t at, size_t n)
{
    const double score = steps[at].score;
    const struct kg_unigram_node *node = u->nodes;
    uint32_t cp;
    const size_t character = kg_utf8_decode(&cp, text + at);
    bool known = false;

    for (size_t end = at; end < n;) {
        node = child(u, node, (uint8_t)text[end]);
        if (!node)
            break;
        end++;
        if (node->id < 0)
            continue;
        offer(u, &steps[end], u->scores[node->id] + score, node->id, at);
        known |= end - at == character;
    }
    if (!known)
        offer(u, &steps[at + character], u->unknown + score, -1, at);
}

kg_status kg_unigram_cut(struct kg_unigram_work *work, const struct kg_unigram *u,
                         const char *text, size_t n, struct kg_err *err)
{
    uint32_t cp;

    if (n >= UINT32_MAX)
        return kg_fail(err, KG_EFORMAT, "a text of %zu bytes is too long to tokenize", n);
    KG_TRY(kg_mem_grow(&work->steps, &work->capacity, n + 1, sizeof *work->steps,
                       (size_t)UINT32_MAX + 1, "pieces of a text", err));
    for (size_t i = 0; i <= n; i++)
        work->steps[i].score = NAN;
    work->steps[0].score = 0;
    for (size_t i = 0; i < n; i += kg_utf8_decode(&cp, text + i))
        try_pieces(work->steps, u, text, i, n);
    return KG_OK;
}
