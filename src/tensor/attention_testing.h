/* Shared by tests of attention: problems of every shape, their results, and a plain
 * version in double.
 *
 * Included by *_test.c only.
 */
#ifndef KG_TENSOR_ATTENTION_TESTING_H
#define KG_TENSOR_ATTENTION_TESTING_H

#include "tensor/matrix_testing.h"
#include "tensor/selfcheck.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SEQS = 8 };

/* Whole sequences, one after the other. */
struct problem {
    enum kg_dtype dtype;
    int heads;
    int kv_heads;
    int hd;
    int window; /* 0: none */
    float softcap;
    int most_keys; /* as in kg_attn */
    int n_seqs;
    int lengths[MAX_SEQS];
    int64_t n;
    struct kg_mat q;
    struct kg_mat k;
    struct kg_mat v;
    struct kg_attn_seq *seqs; /* (n_seqs) */
};

struct answer {
    struct kg_mat o;
    float *lse; /* (rows, heads) */
};

static inline void problem_init(struct problem *p)
{
    random_state = 7;
    p->n = 0;
    p->seqs = buffer_of(p->n_seqs, sizeof *p->seqs);
    for (int s = 0; s < p->n_seqs; s++) {
        int32_t row = (int32_t)p->n;
        p->seqs[s] = (struct kg_attn_seq){
            .row = row, .n_rows = p->lengths[s], .keys = row};
        p->n += p->lengths[s];
    }
    p->q = random_matrix(p->dtype, p->n, (int64_t)p->heads * p->hd, 2.0);
    p->k = random_matrix(p->dtype, p->n, (int64_t)p->kv_heads * p->hd, 2.0);
    p->v = random_matrix(p->dtype, p->n, (int64_t)p->kv_heads * p->hd, 1.0);
}

static inline void problem_release(struct problem *p)
{
    buffer_free(p->q.data);
    buffer_free(p->k.data);
    buffer_free(p->v.data);
    buffer_free(p->seqs);
}

static inline struct kg_attn attn_of(const struct problem *p)
{
    return (struct kg_attn){
        .q = p->q,
        .k = p->k,
        .v = p->v,
        .n_heads = p->heads,
        .n_kv_heads = p->kv_heads,
        .head_dim = p->hd,
        .scale = (float)(1.0 / sqrt(p->hd)),
        .window = p->window,
        .softcap = p->softcap,
        .most_keys = p->most_keys,
        .seqs = p->seqs,
        .n_seqs = p->n_seqs,
    };
}

static inline struct answer answer_init(const struct problem *p, int64_t rows)
{
    return (struct answer){matrix(p->dtype, rows, (int64_t)p->heads * p->hd),
                           buffer_of(rows * p->heads, sizeof(float))};
}

static inline void answer_release(struct answer *a)
{
    buffer_free(a->o.data);
    buffer_free(a->lse);
}

static inline struct kg_vec lse_of(const struct answer *y, const struct kg_attn *a)
{
    return kg_vec(y->lse, a->q.rows * a->n_heads);
}

static inline void attend_on(const struct kg_backend *be, struct answer *out,
                             const struct kg_attn *a)
{
    struct kg_err why;
    kg_status status = kg_op_attention(be, out->o, lse_of(out, a), a, &why);
    if (status != KG_OK)
        fail_msg("%s", why.message);
}
static inline void attend(struct answer *out, const struct kg_attn *a)
{
    attend_on(backend(), out, a);
}

static inline struct answer whole(const struct problem *p)
{
    struct answer out = answer_init(p, p->n);
    struct kg_attn a = attn_of(p);
    attend(&out, &a);
    return out;
}

static inline size_t row_bytes(struct kg_mat m)
{
    return (size_t)m.cols * kg_dtype_traits(m.dtype)->bytes;
}

static inline void assert_rows_equal(const struct answer *a, int64_t ra,
                                     const struct answer *b, int64_t rb, int64_t rows)
{
    size_t bytes = row_bytes(a->o);
    assert_memory_equal((char *)a->o.data + (size_t)ra * bytes,
                        (char *)b->o.data + (size_t)rb * bytes, (size_t)rows * bytes);
}

static inline void assert_lse_equal(const struct answer *a, int64_t ra,
                                    const struct answer *b, int64_t rb, int64_t rows,
                                    int heads)
{
    assert_memory_equal(a->lse + ra * heads, b->lse + rb * heads,
                        (size_t)(rows * heads) * sizeof(float));
}

/* ---- the plain version ---- */
static inline int first_key(const struct problem *p, int i)
{
    return p->window > 0 && i >= p->window ? i - p->window + 1 : 0;
}

/* A score, capped if the problem has a softcap; *slope: the derivative of the cap. */
static inline double capped(const struct problem *p, double s, double *slope)
{
    double t = p->softcap > 0 ? tanh(s / (double)p->softcap) : 0.0;
    *slope = 1.0 - t * t;
    return p->softcap > 0 ? (double)p->softcap * t : s;
}

/* w[0..i] <- the weights of query i of sequence s.   returns lse */
static inline double plain_weights(double *w, const struct problem *p, int s, int i,
                                   int h)
{
    int64_t row = p->seqs[s].row;
    int64_t kv = (int64_t)(h / (p->heads / p->kv_heads)) * p->hd;
    double top = -INFINITY, sum = 0.0, slope;
    for (int j = 0; j < first_key(p, i); j++)
        w[j] = -INFINITY;
    for (int j = first_key(p, i); j <= i; j++) {
        w[j] = 0.0;
        for (int d = 0; d < p->hd; d++)
            w[j] += get(p->q, row + i, (int64_t)h * p->hd + d) *
                    get(p->k, row + j, kv + d);
        w[j] = capped(p, w[j] / sqrt(p->hd), &slope);
        top = w[j] > top ? w[j] : top;
    }
    for (int j = 0; j <= i; j++)
        sum += exp(w[j] - top);
    for (int j = 0; j <= i; j++)
        w[j] = exp(w[j] - top) / sum;
    return top + log(sum);
}

static const struct problem shapes[] = {
    {KG_F32, .heads = 4, .kv_heads = 4, .hd = 16, .n_seqs = 1, .lengths = {70}},
    {KG_F32, .heads = 4, .kv_heads = 2, .hd = 6, .n_seqs = 3, .lengths = {1, 64, 65}},
    {KG_F32, .heads = 6, .kv_heads = 1, .hd = 40, .n_seqs = 2, .lengths = {33, 130}},
    {KG_F32, .heads = 2, .kv_heads = 2, .hd = 256, .n_seqs = 1, .lengths = {129}},
    {KG_BF16, .heads = 14, .kv_heads = 2, .hd = 64, .n_seqs = 2, .lengths = {100, 40}},
    {KG_BF16, .heads = 3, .kv_heads = 3, .hd = 80, .n_seqs = 1, .lengths = {150}},
    {KG_BF16, .heads = 72, .kv_heads = 1, .hd = 2, .n_seqs = 1, .lengths = {66}},
    {KG_BF16, .heads = 8, .kv_heads = 1, .hd = 128, .n_seqs = 2, .lengths = {5, 67}},
    {KG_F32, .heads = 4, .kv_heads = 2, .hd = 16, .window = 7, .n_seqs = 3,
     .lengths = {1, 64, 140}},
    {KG_F32, .heads = 3, .kv_heads = 1, .hd = 10, .window = 65, .softcap = 1.5f,
     .n_seqs = 2, .lengths = {33, 200}},
    {KG_BF16, .heads = 4, .kv_heads = 1, .hd = 64, .window = 130, .n_seqs = 1,
     .lengths = {270}},
    {KG_BF16, .heads = 3, .kv_heads = 1, .hd = 128, .window = 20, .softcap = 0.8f,
     .n_seqs = 2, .lengths = {130, 9}},
    {KG_BF16, .heads = 2, .kv_heads = 2, .hd = 32, .softcap = 0.8f, .n_seqs = 2,
     .lengths = {100, 40}},
};
enum {
    N_SHAPES = sizeof shapes / sizeof shapes[0],
    FIRST_SHAPE = SANITIZED ? 2 : 0, /* some of each kind */
    NEXT_SHAPE = SANITIZED ? 3 : 1
};

/* A problem of this shape; if length > 0, with one sequence of that length. */
static inline struct problem problem_of(int shape, int length)
{
    struct problem p = shapes[shape];
    if (length > 0) {
        p.n_seqs = 1;
        p.lengths[0] = length;
    }
    problem_init(&p);
    return p;
}

/* Whether the backend uses a matrix instruction for these, with weights in bf16, which
 * differs from the CPU's definition. */
static inline bool other_definition(const struct problem *p)
{
    return by_kernels() && p->dtype == KG_BF16 && (p->hd == 64 || p->hd == 128);
}

/* The i-th instruction set to compare with: on the CPU, all but the backend's own; for
 * kernels, just one. */
static inline const struct kg_backend *other_set(int i)
{
    return kg_backend_cpu_variant(!by_kernels() ? i + 1 : i == 0 ? 0 : 99);
}

#endif
