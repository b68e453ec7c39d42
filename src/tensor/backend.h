/* The backend contract: every operation of the model, typed, over row-major matrix views.
 *
 * Three nouns. A backend is a table of functions; a buffer is memory of that backend; an
 * operation is a kg_op_* function, which checks shapes and dtypes once (op.c) and calls
 * the backend's slot. There is no graph. cpu/ is the specification; another backend
 * returns the same numbers.
 *
 * Exactness rules that every implementation keeps (they carry promises 1 and 3):
 *  - a row of a forward output depends on that row's inputs and the weights only: never
 *    on the number of rows, on its neighbours, or on the number of threads;
 *  - sums over tokens (weight gradients, norm weights, biases) run over a partition that
 *    depends on the shapes alone, combined in a fixed order;
 *  - inside an enclosing parallel region an operation runs on the calling thread, same
 *    bits.
 *
 * The letters: N rows (tokens), D model width, H heads, Hk KV heads, hd head dimension, F
 * ffn width, V vocabulary, K top-k. "ct" is the compute dtype of a model: KG_BF16 or
 * KG_F32.
 */
#ifndef KG_TENSOR_BACKEND_H
#define KG_TENSOR_BACKEND_H

#include "base/idset.h"
#include "base/rng.h"
#include "base/status.h"
#include "tensor/dtype.h"

#include <stdbool.h>
#include <stdint.h>

/* Where what a pointer points to lies. kg_mat.data, kg_vec.data, kg_ivec.data and
 * kg_attn.seqs are memory of the backend, and carry their lengths, as is what draws are
 * made by. All else is the host's: the arguments themselves, and the head's arrays of a
 * few numbers a row. */

/* n fp32: weights of norms, biases, what a forward keeps, slabs of an optimizer. Never
 * owns. */
struct kg_vec {
    float *data; /* NULL: none, where that is allowed */
    int64_t n;
};
static inline struct kg_vec kg_vec(float *data, int64_t n)
{
    return (struct kg_vec){data, n};
}
/* n ids or positions. Never owns, never written. */
struct kg_ivec {
    const int32_t *data;
    int64_t n;
};
static inline struct kg_ivec kg_ivec(const int32_t *data, int64_t n)
{
    return (struct kg_ivec){data, n};
}

/* How the elements of a matrix lie. Weights that products read lie as their backend reads
 * them best (kg_weights); the CPU in panels: sixteen rows together, whose steps (single
 * fp32, pairs of bf16) stand side by side, so that a product reads them as they come. A
 * row of bf16 is padded by zeros to KG_PRODUCT_BLOCK, the last panel to sixteen rows.
 * kg_op_cast packs and unpacks. */
enum kg_layout {
    KG_ROWS, /* row r at data + r*stride elements */
    /* dword (r%16) of the sixteen dwords of step s at data + r/16*16*stride elements:
     * elements 2s and 2s+1 of row r in bf16, element s in fp32 */
    KG_PANELS,
    /* the same, but the sixteen steps of a block of bf16 are eight of its even elements
     * and then eight of its odd ones, of each pair the earlier in the upper half: what
     * the chains of kg_matmul_kind read without taking pairs apart */
    KG_SPLIT_PANELS,
};
/* rows of a panel; factors of a product that are summed as one, see kg_matmul_kind */
enum { KG_PANEL = 16, KG_PRODUCT_CHUNK = 1024, KG_PRODUCT_BLOCK = 32 };

/* A view: rows x cols elements. Never owns. */
struct kg_mat {
    void *data;
    enum kg_dtype dtype;
    int64_t rows;
    int64_t cols;
    int64_t stride; /* elements from one row to the next, >= cols */
    enum kg_layout layout;
};

static inline struct kg_mat kg_mat(void *data, enum kg_dtype dtype, int64_t rows,
                                   int64_t cols)
{
    return (struct kg_mat){data, dtype, rows, cols, cols, KG_ROWS};
}
/* Panels of this layout in kg_panels_bytes of 64-byte aligned memory. */
static inline struct kg_mat kg_panels(enum kg_layout layout, void *data,
                                      enum kg_dtype dtype, int64_t rows, int64_t cols)
{
    int64_t stride = dtype == KG_BF16 ? (cols + KG_PRODUCT_BLOCK - 1) / KG_PRODUCT_BLOCK *
                                            KG_PRODUCT_BLOCK
                                      : cols;
    return (struct kg_mat){data, dtype, rows, cols, stride, layout};
}
uint64_t kg_panels_bytes(enum kg_dtype dtype, int64_t rows, int64_t cols);
/* Rows [first, first+n) of m; of panels, first is a multiple of KG_PANEL. */
struct kg_mat kg_mat_rows(struct kg_mat m, int64_t first, int64_t n);
/* dst <- n elements of m in m's dtype from element `first`, counted row by row, whatever
 * the layout. For files and tests: one element at a time. */
void kg_mat_read(void *dst, struct kg_mat m, int64_t first, int64_t n);
void kg_mat_write(struct kg_mat m, const void *src, int64_t first, int64_t n);

/* ---- products ---- */
enum kg_matmul_kind {
    /* C[M,N] = A[M,K] B[N,K]^T      y = x W^T, the forward of a linear layer */
    KG_MATMUL_NT,
    KG_MATMUL_NN, /* C[M,N] = A[M,K] B[K,N]        dx = dy W */
    /* C[M,N] = A[K,M]^T B[K,N]      dW = dy^T x, summed over tokens K; C is fp32 */
    KG_MATMUL_TN,
};

/* An element of a product, bit for bit, on every machine (but see the end for bf16 by a
 * device's matrix instruction). The K factors are taken in order and in chunks of
 * KG_PRODUCT_CHUNK.
 *   fp32: a chunk is one chain from +0, s <- fma(a_k, b_k, s); chunks are added in order,
 *         subnormals kept.
 *   bf16: a chunk is blocks of KG_PRODUCT_BLOCK factors, the last one padded by zeros. Of
 *         a block the even factors are one chain from +0 and the odd ones another;
 *         sum <- sum + (even + odd), from +0, block by block and on through the chunks.
 *         Subnormal factors and results are zero of their sign in all of this (whether a
 *         result is subnormal is decided after its rounding).
 * Then
 *   NT, NN: what c held, if it is accumulated onto, is added to the sum;
 *   TN: each chunk is a sum of its own and added to c as it comes, so 2 x 1024 tokens at
 *       once and one after the other give the same gradient
 * with subnormals kept, and a bf16 c is rounded to nearest even, subnormals kept. The
 * payload of a NaN is not defined.
 *
 * bf16 by a device's matrix instruction (cuda/product_mma.cu): NT and NN are one chain
 * of instructions of 16 factors from +0, the last one padded by zeros; TN is such a chain
 * for each chunk. The rest is as above. In which order an instruction adds, and what it
 * does to subnormals, is the device's: the same at every place of every tile, so that the
 * rules at the top hold. */

/* What a product is of. */
struct kg_factors {
    struct kg_mat a;
    struct kg_mat b;
};

/* ---- attention ---- */
/* keys per block: of the online softmax and of the paged cache */
enum { KG_KV_BLOCK = 64 };

/* Query rows [row, row+n_rows) of one sequence, at positions pos, pos+1, ... The query at
 * position p sees the keys 0..p of its sequence, or with a window the last `window` of
 * them; both ways each sees the keys 0..pos+n_rows-1. Key j stands in row keys + j of k,
 * or, with a table of blocks, in row blocks[keys + j/64]*64 + j%64. No query row is of
 * two sequences. */
struct kg_attn_seq {
    int32_t row;
    int32_t n_rows;
    int32_t pos;
    int32_t keys;
};

struct kg_attn {
    struct kg_mat q; /* (N, H*hd) ct */
    struct kg_mat k; /* (rows of the pool or of the pack, Hk*hd) ct */
    struct kg_mat v; /* as k */
    int n_heads;
    int n_kv_heads;
    int head_dim;
    float scale;                    /* 1/sqrt(hd) */
    int32_t window;                 /* keys that a query sees at most; 0: all before it */
    bool both_ways;                 /* and those behind it; without a window */
    float softcap;                  /* scores are cap tanh(score / cap); 0: as they are */
    const struct kg_attn_seq *seqs; /* (n_seqs) */
    int32_t n_seqs;
    struct kg_ivec blocks; /* of all sequences; none: their keys lie in one piece each */
};

/* ---- vocabulary head ---- */
/* Columns of a tile: sums over the vocabulary are made tile by tile. Small vocabularies
 * still give several, so that few rows can be shared among threads. */
static inline int64_t kg_head_tile_width(int64_t vocab)
{
    int64_t width = (vocab / 8 + 63) / 64 * 64;

    if (width < 256)
        return 256;
    return width < 2048 ? width : 2048;
}

/* Tiles of which a backend makes logits at most, where it does not make all at once. */
enum { KG_HEAD_STRIP_TILES = 2 };

/* A second head over the same vocabulary, whose q = softmax(z') is the constant of an
 * exact KL. */
struct kg_head_anchor {
    struct kg_mat hidden;  /* (N,Da) ct */
    struct kg_mat weight;  /* (V,Da) ct, rows or panels */
    const float *inv_temp; /* (N) or NULL for 1 */
    float softcap;         /* as of the head */
};

/* What the head reads.
 * z[n,v] = cap(hidden[n] . weight[v]) * inv_temp[n],   cap(x) = softcap tanh(x / softcap)
 * logp[n,v] = z[n,v] - lse[n] */
struct kg_head {
    struct kg_mat hidden;   /* (N,D) ct */
    struct kg_mat weight;   /* (V,D) ct, rows or panels */
    const float *inv_temp;  /* (N) or NULL for 1 */
    float softcap;          /* 0: cap(x) = x */
    const int32_t *target;  /* (N) sampled token, -1 for none; or NULL */
    const int32_t *indices; /* (N,K) vocabulary ids, -1 for an unused slot; or NULL */
    int k;                  /* K of indices */
    int top_k;              /* how many of the largest to return; 0 for none */
    /* (N) ids of which the mass is wanted, n 0: of all; or NULL */
    const struct kg_idset *sets;
    const struct kg_head_anchor *anchor; /* borrowed; NULL where no exact KL is wanted */
    /* kg_head_kept_bytes(N, K) of the backend's memory, 64-byte aligned: the forward
     * leaves there what it was asked and found, and the backward of the same rows and
     * questions reads it there, instead of the host's lse, entropy, kl_reverse,
     * anchor_lse, temperatures and ids, which then cross once. The forward is to be asked
     * for lse, and for all else of these that the backward uses: what it was not asked is
     * not there.
     * NULL, or where a backend keeps nothing: it reads them from the host */
    void *kept;
};

/* Of an array of n elements in a row of such arrays. */
static inline uint64_t kg_head_kept_array(int64_t n, size_t each)
{
    return ((uint64_t)n * each + 255) / 256 * 256;
}
/* Temperatures of both heads, targets, ids; lse, R, the anchor's lse; entropy. */
static inline uint64_t kg_head_kept_bytes(int64_t n, int64_t k)
{
    return 4 * kg_head_kept_array(n, 4) + kg_head_kept_array(n * k, 4) +
           3 * kg_head_kept_array(n, 8);
}

/* inv_temp, or NULL where all n are 1 */
static inline const float *kg_not_one(const float *inv_temp, int64_t n)
{
    for (int64_t i = 0; inv_temp && i < n; i++)
        if (inv_temp[i] != 1.0f)
            return inv_temp;
    return NULL;
}

/* Forward results; a NULL pointer is not wanted. Arrays are the caller's. */
struct kg_head_out {
    double *lse;      /* (N) log sum_v exp z */
    float *logp;      /* (N) at target; 0 where target is -1 */
    float *logp_at;   /* (N,K) at indices; -inf in unused slots */
    float *entropy;   /* (N) nats */
    int32_t *top_ids; /* (N,top_k) largest first, ties by smaller id */
    float *top_logp;  /* (N,top_k) */
    /* (N,V) the z themselves: decode steps only, never a training batch */
    float *logits;
    double *set_logp; /* (N) log sum_{v in set} p_v; 0 for all ids */
    /* (N) sum_v p_v (logp_v - logq_v); with an anchor only, as the two below */
    double *kl_reverse;
    double *kl_forward; /* (N) sum_v q_v (logq_v - logp_v) */
    double *anchor_lse; /* (N) */
};

/* How a row's token is drawn from p = softmax(z): see rollout/rollout.h for what is kept
 * and rollout/sampler.c for how. */
struct kg_draw {
    double u;      /* in [0, 1) */
    float top_p;   /* 1: off */
    float min_p;   /* 0: off */
    int32_t top_k; /* 0: off */
    bool greedy;   /* the largest, ties by smaller id; nothing else is looked at */
};
struct kg_drawn {
    int32_t token;  /* 0 where lse is not finite */
    float logp;     /* z[token] - lse: of the full softmax */
    int32_t n_kept; /* ids that truncation kept; 0: all */
    float cut;      /* -log of their mass */
};
/* Tokens of a head's rows. All this is the backend's memory, but for logits, and so is
 * what the head finds of the rows: nothing crosses, and what they are drawn by can come
 * with a pack, temperatures too. */
struct kg_draws {
    const struct kg_draw *how; /* (N) */
    const float *inv_temp;     /* (N) or NULL for 1 */
    bool truncates;            /* a row of how, at least */
    struct kg_drawn *drawn;    /* (N) out; the token alone means something where lse is
                                * not finite */
    /* (N, (V+63)/64) out: a bit for each id that was kept, where n_kept > 0; or NULL */
    uint64_t *kept;
    /* (N) or NULL. The host's: a row with an entry, its logits (V) go there, too */
    float *const *logits;
};

/* Backward: the master rule,
 *   dloss/dz_v = a_v 1[v in J] - p_v sum_J a  -  c_H p_v (logp_v + H)
 *                + c_R p_v (logp_v - logq_v - R)  +  c_F (p_v - q_v)
 *                + c_S (1[v in set] p_v / S - p_v),   S = sum_{v in set} p_v
 * The anchor gets no gradient. The coefficients are double, as the policy returns them:
 * where a row nearly cancels (p_y near 1, p near q) a rounded one would be all that is
 * left. */
struct kg_head_grad {
    const double *lse;      /* (N) of the forward */
    const double *a_target; /* (N) dloss/dlogp at target; or NULL */
    /* (N,K) dloss/dlogp at indices, added to a_target's; or NULL */
    const double *a_indices;
    const double *a_entropy;    /* (N) dloss/dH; or NULL */
    const float *entropy;       /* (N) H of the forward, where a_entropy is given */
    const double *a_kl_reverse; /* (N) dloss/dR; or NULL */
    const double *a_kl_forward; /* (N) dloss/dF; or NULL */
    const double *kl_reverse;   /* (N) R of the forward, where a_kl_reverse is given */
    const double *anchor_lse;   /* (N) of the forward, where either is given */
    const double *a_set;        /* (N) dloss/dlog S; or NULL */
    const double *set_logp;     /* (N) of the forward, where a_set is given */
    struct kg_mat dhidden;      /* (N,D) fp32, overwritten */
    struct kg_mat dweight;      /* (V,D) fp32, added to; data NULL when not wanted */
};

/* ---- experts ---- */
enum { KG_MAX_EXPERTS = 1024 };

/* How N tokens are shared out among E experts, K of which each token has. A token's slots
 * are in the order of its experts; the N K rows that experts work on, the places, are
 * expert by expert, and of one expert by token. All of it is the backend's memory. */
struct kg_route {
    int32_t n_experts;    /* E */
    int32_t k;            /* K */
    bool normalise;       /* weights of a token sum to 1 */
    struct kg_mat p;      /* (N,E) fp32: softmax of the logits */
    struct kg_mat weight; /* (N,K) fp32 */
    int32_t *ids;         /* (N,K) experts, largest p first, ties by smaller index */
    int32_t *place;       /* (N,K) where a slot's row stands */
    int32_t *token;       /* (N K) whose row a place is */
    int32_t *first;       /* (E+1) first place of an expert; [E] is N K */
};

/* Matrices of E experts, of one shape each, at equal distances. */
struct kg_groups {
    const int32_t *first; /* (E+1) of a route */
    int32_t n;            /* E */
    int64_t stride;       /* bytes from one expert's matrix to the next */
};

/* ---- optimizer ---- */
struct kg_adamw {
    float lr;
    float beta1;
    float beta2;
    float eps;
    float weight_decay; /* decoupled: w -= lr * decay * w */
    float grad_scale;   /* gradient is multiplied by this first (norm clipping) */
    int64_t step;       /* 1 for the first update: bias correction */
    /* schedule-free alone: weight of the new z in the average x; 1 for the first */
    float average;
    /* with moments in bf16 alone: */
    struct kg_rng_key rounding;
    int64_t first; /* the place of element 0 in the whole: a multiple of KG_DRAW_LANES */
};

/* Moments in bf16 are read as fp32, computed in fp32, and rounded as they are stored, by
 * 16 bits of the counted RNG (kg_f32_to_bf16_drawn); weights are made of what is not
 * rounded yet. Element e of update t, e = first + i, has the word
 *     word[e / 16 % 4] of kg_rng_words(word, rounding, t, B % 2^32, B / 2^32),
 *     B = e / 64 * 16 + e % 16
 * m its lower half, v its upper: sixteen blocks side by side make sixteen lanes of words
 * four times. So bits depend on key, update and place alone, not on cuts or threads. */
enum { KG_DRAW_LANES = 16, KG_DRAW_GROUP = 4 * KG_DRAW_LANES };

/* One thing besides operands that bits of results depend on: a device, its driver. */
struct kg_trait {
    const char *name; /* of static life */
    char value[120];
};
enum { KG_TRAITS = 8 };

/* ---- the table ---- */
/* What has crossed between the host's memory and the backend's since the start; counted
 * atomically. */
struct kg_traffic {
    uint64_t up; /* bytes to the backend */
    uint64_t down;
    uint64_t ups; /* copies */
    uint64_t downs;
    uint64_t replays; /* bodies that were launched as one, see kg_op_replay */
    uint64_t waits;   /* times that the host stood still until the backend was done: of
                       * every put, get, fetch and kg_buf_wait */
};
/* One copy of so many bytes: of t->up and t->ups, or down and downs. */
static inline void kg_traffic_count(uint64_t *sum, uint64_t *copies, uint64_t bytes)
{
    __atomic_fetch_add(sum, bytes, __ATOMIC_RELAXED);
    __atomic_fetch_add(copies, 1, __ATOMIC_RELAXED);
}
static inline void kg_traffic_count_wait(struct kg_traffic *t)
{
    __atomic_fetch_add(&t->waits, 1, __ATOMIC_RELAXED);
}

struct kg_codes;
struct kg_backend {
    const char *name;
    /* one line: instruction set, how products are made */
    void (*describe)(char *text, size_t bytes);
    /* what bits depend on, and how many that are; NULL: on nothing else, as on CPUs,
     * which all agree */
    int (*traits)(struct kg_trait traits[KG_TRAITS]);
    /* whether products of t are those that kg_matmul_kind defines for every machine;
     * NULL: they are */
    bool (*exact)(enum kg_dtype t);
    bool host_memory; /* the host may read and write its memory */
    bool one_caller;  /* operations are called from one thread at a time, and from no
                       * parallel region; get and fetch of what none of them writes
                       * from any */
    bool keeps_heads; /* uses struct kg_head's `kept` */
    const struct kg_traffic *traffic; /* counted; NULL: nothing crosses */
    enum kg_layout weights; /* how those of products lie; KG_ROWS: no panels at all */
    void *(*alloc)(uint64_t bytes, const char *what, struct kg_err *err);
    void (*free)(void *memory);
    /* how much there is, and of it what nobody holds; NULL: that is not known */
    kg_status (*memory)(uint64_t *total, uint64_t *free, struct kg_err *err);
    kg_status (*put)(void *to, const void *from, uint64_t bytes, struct kg_err *err);
    kg_status (*get)(void *to, const void *from, uint64_t bytes, struct kg_err *err);
    /* see kg_buf_pin and kg_buf_fetch; NULL, all three: any memory, and get */
    void *(*pin)(uint64_t bytes, const char *what, struct kg_err *err);
    void (*unpin)(void *memory);
    kg_status (*fetch)(void *to, const void *from, uint64_t bytes, struct kg_err *err);
    /* see kg_buf_put_later and its kin; NULL, all four: put and get, which wait */
    kg_status (*put_later)(void *to, const void *from, uint64_t bytes,
                           struct kg_err *err);
    kg_status (*get_later)(void *to, const void *from, uint64_t bytes,
                           struct kg_err *err);
    kg_status (*mark)(uint64_t *mark, struct kg_err *err);
    kg_status (*wait)(uint64_t mark, struct kg_err *err);
    /* see kg_buf_lend; NULL: there is no such library. And kg_buf_reached; NULL: what
     * was launched is done */
    kg_status (*lend)(int *result, int (*call)(void *arg, void *stream), void *arg,
                      const void *const *memory, size_t n, struct kg_err *err);
    kg_status (*reached)(bool *yes, uint64_t mark, struct kg_err *err);
    kg_status (*copy)(void *to, const void *from, uint64_t bytes, struct kg_err *err);
    kg_status (*zero)(void *to, uint64_t bytes, struct kg_err *err);
    kg_status (*swap)(void *a, void *b, uint64_t bytes, struct kg_err *err);
    /* see kg_op_reserve; NULL: products need no memory */
    kg_status (*reserve)(uint64_t bytes, struct kg_err *err);
    kg_status (*matmul)(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                        enum kg_matmul_kind kind, bool accumulate, struct kg_err *err);
    /* see kg_op_matmul_two; NULL: it is made of three operations */
    kg_status (*matmul_two)(struct kg_mat c, const struct kg_factors f[2],
                            enum kg_matmul_kind kind, bool accumulate,
                            struct kg_err *err);
    kg_status (*embed)(struct kg_mat x, struct kg_mat table, struct kg_ivec tokens,
                       struct kg_err *err);
    kg_status (*embed_bwd)(struct kg_mat dtable, struct kg_mat dx, struct kg_ivec tokens,
                           struct kg_err *err);
    kg_status (*rmsnorm)(struct kg_mat y, struct kg_vec inv, struct kg_mat x,
                         struct kg_vec w, float eps, struct kg_err *err);
    kg_status (*rmsnorm_bwd)(struct kg_mat dx, bool accumulate, struct kg_vec dw,
                             struct kg_mat dy, struct kg_mat x, struct kg_vec w,
                             struct kg_vec inv, struct kg_err *err);
    /* of encoders; NULL, either: they are refused */
    kg_status (*layernorm)(struct kg_mat y, struct kg_mat x, struct kg_vec w,
                           struct kg_vec b, float eps, struct kg_err *err);
    kg_status (*gelu)(struct kg_mat y, struct kg_mat x, struct kg_err *err);
    /* see codes.h; NULL: it is refused */
    kg_status (*scan)(struct kg_mat c, struct kg_mat a, const struct kg_codes *m,
                      struct kg_err *err);
    kg_status (*bias)(struct kg_mat y, struct kg_vec b, struct kg_err *err);
    kg_status (*bias_bwd)(struct kg_vec db, struct kg_mat dy, struct kg_err *err);
    kg_status (*rope)(struct kg_mat x, struct kg_ivec pos, struct kg_vec inv_freq,
                      int head_dim, float attention_factor, bool inverse,
                      struct kg_err *err);
    kg_status (*swiglu)(struct kg_mat h, struct kg_mat gate, struct kg_mat up,
                        struct kg_err *err);
    kg_status (*swiglu_bwd)(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
                            struct kg_mat gate, struct kg_mat up, struct kg_err *err);
    kg_status (*geglu)(struct kg_mat h, struct kg_mat gate, struct kg_mat up,
                       struct kg_err *err);
    kg_status (*geglu_bwd)(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
                           struct kg_mat gate, struct kg_mat up, struct kg_err *err);
    kg_status (*cast)(struct kg_mat dst, struct kg_mat src, struct kg_err *err);
    kg_status (*scatter_rows)(struct kg_mat pool, struct kg_ivec rows, struct kg_mat src,
                              struct kg_err *err);
    kg_status (*gather_rows)(struct kg_mat dst, struct kg_mat src, struct kg_ivec rows,
                             struct kg_err *err);
    /* experts; NULL, any: models of them are refused, see kg_experts_missing */
    kg_status (*route)(const struct kg_route *r, struct kg_mat logits,
                       struct kg_ivec given, struct kg_err *err);
    kg_status (*route_bwd)(struct kg_mat dlogits, const struct kg_route *r,
                           struct kg_mat dweight, struct kg_vec dp, struct kg_err *err);
    kg_status (*matmul_groups)(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                               const struct kg_groups *g, enum kg_matmul_kind kind,
                               bool accumulate, struct kg_err *err);
    kg_status (*combine)(struct kg_mat y, struct kg_mat x, struct kg_mat weight,
                         struct kg_ivec place, bool accumulate, struct kg_err *err);
    kg_status (*combine_bwd)(struct kg_mat dweight, struct kg_mat dx, struct kg_mat x,
                             struct kg_mat weight, struct kg_ivec place,
                             struct kg_err *err);
    kg_status (*sigmoid)(struct kg_vec y, struct kg_vec x, struct kg_err *err);
    kg_status (*sigmoid_bwd)(struct kg_vec dx, struct kg_vec dy, struct kg_vec y,
                             struct kg_err *err);
    kg_status (*attention)(struct kg_mat o, struct kg_vec lse, const struct kg_attn *a,
                           struct kg_err *err);
    kg_status (*attention_bwd)(struct kg_mat dq, struct kg_mat dk, struct kg_mat dv,
                               struct kg_mat dout, struct kg_mat o, struct kg_vec lse,
                               const struct kg_attn *a, struct kg_err *err);
    kg_status (*head)(const struct kg_head_out *out, const struct kg_head *h,
                      struct kg_err *err);
    kg_status (*head_bwd)(const struct kg_head_grad *g, const struct kg_head *h,
                          struct kg_err *err);
    /* NULL: who wants tokens draws them from logits */
    kg_status (*draw)(const struct kg_draws *d, const struct kg_head_out *out,
                      const struct kg_head *h, struct kg_err *err);
    /* NULL: who feeds a token that was drawn waits for it first */
    kg_status (*feed)(int32_t *tokens, struct kg_ivec from, const struct kg_drawn *drawn,
                      struct kg_err *err);
    /* NULL: body is called, see kg_op_replay */
    kg_status (*replay)(uint64_t key, kg_status (*body)(void *arg, struct kg_err *err),
                        void *arg, struct kg_err *err);
    kg_status (*adamw)(struct kg_vec w, struct kg_mat m, struct kg_mat v, struct kg_vec g,
                       const struct kg_adamw *a, struct kg_err *err);
    kg_status (*schedule_free)(struct kg_vec y, struct kg_vec z, struct kg_mat v,
                               struct kg_vec g, const struct kg_adamw *a,
                               struct kg_err *err);
    kg_status (*schedule_free_average)(struct kg_vec x, struct kg_vec y, struct kg_vec z,
                                       float beta1, struct kg_err *err);
    kg_status (*ema)(struct kg_vec avg, struct kg_vec w, float eta, struct kg_err *err);
    kg_status (*add)(struct kg_vec y, struct kg_vec x, struct kg_err *err);
    kg_status (*scale)(struct kg_vec y, float factor, struct kg_err *err);
    kg_status (*sum_squares)(double *out, struct kg_vec x, struct kg_vec minus,
                             struct kg_err *err);
    double (*peak)(enum kg_dtype t, double flops); /* returns FLOP done */
};

/* The backend of this name; NULL: the default. Both are "cpu" but in tests, which have
 * others and say which is the default.   *be borrowed, of static life
 * errors: NOTFOUND (another name), UNSUPPORTED (the machine cannot run it) */
kg_status kg_backend_open(const struct kg_backend **be, const char *name,
                          struct kg_err *err) KG_MUST_CHECK;
/* "cpu".   errors: UNSUPPORTED */
kg_status kg_backend_open_cpu(const struct kg_backend **be,
                              struct kg_err *err) KG_MUST_CHECK;
/* Of tests (tests/emu/backends.c): it is kg_backend_open where it is linked. */
kg_status kg_backend_open_tested(const struct kg_backend **be, const char *name,
                                 struct kg_err *err) KG_GUEST;

/* Whose memory is the host's beside it: itself where its own is, else the CPU.
 * errors: of kg_backend_open */
kg_status kg_backend_host(const struct kg_backend **host, const struct kg_backend *be,
                          struct kg_err *err) KG_MUST_CHECK;

/* Weights that products of this backend read, in kg_weights_bytes of 64-byte aligned
 * memory: panels or rows. */
static inline struct kg_mat kg_weights(const struct kg_backend *be, void *data,
                                       enum kg_dtype dtype, int64_t rows, int64_t cols)
{
    return be->weights == KG_ROWS ? kg_mat(data, dtype, rows, cols)
                                  : kg_panels(be->weights, data, dtype, rows, cols);
}
uint64_t kg_weights_bytes(const struct kg_backend *be, enum kg_dtype dtype, int64_t rows,
                          int64_t cols);

/* ---- memory ---- */

/* A buffer: zeroed memory of the backend, aligned to 64 bytes at least; `what` names it
 * in the error, and where it is known how much memory there is and how much is free. A
 * view may begin anywhere inside of one.
 * returns owned pointer (never NULL for no bytes), or NULL with err set
 * errors: ENOMEM; EDEVICE (what was asked of a device before has failed) */
void *kg_buf_alloc(const struct kg_backend *be, uint64_t bytes, const char *what,
                   struct kg_err *err) KG_MUST_CHECK;
void kg_buf_free(const struct kg_backend *be, void *buffer); /* NULL is allowed */

/* Host memory to the backend's, and back. What was put may be changed, and what was got
 * be read, when this returns.   errors: EINVAL (NULL) */
kg_status kg_buf_put(const struct kg_backend *be, void *to, const void *from,
                     uint64_t bytes, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_buf_get(const struct kg_backend *be, void *to, const void *from,
                     uint64_t bytes, struct kg_err *err) KG_MUST_CHECK;
/* Memory of the host, zeros, that a device copies into by itself (page-locked): for
 * pieces of what is got beside operations.
 * returns owned pointer, or NULL with err set   errors: those of kg_buf_alloc */
void *kg_buf_pin(const struct kg_backend *be, uint64_t bytes, const char *what,
                 struct kg_err *err) KG_MUST_CHECK;
void kg_buf_unpin(const struct kg_backend *be, void *pinned); /* NULL is allowed */
/* As kg_buf_get, from a thread beside the one that calls operations: it waits for what
 * was launched before, and holds up nothing that is launched after. No operation may
 * write what it reads.   to: within memory of kg_buf_pin
 * errors: EINVAL (NULL), EDEVICE */
kg_status kg_buf_fetch(const struct kg_backend *be, void *to, const void *from,
                       uint64_t bytes, struct kg_err *err) KG_MUST_CHECK;
/* As kg_buf_put and kg_buf_get, behind what was launched before and before what is
 * launched after, and the host goes on meanwhile. Its memory is within that of
 * kg_buf_pin, and belongs to the copy until a mark behind it was waited for: it is not
 * written, what is got not read, and none of it given back. From the thread that calls
 * operations.   errors: EINVAL (NULL), EDEVICE */
kg_status kg_buf_put_later(const struct kg_backend *be, void *to, const void *from,
                           uint64_t bytes, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_buf_get_later(const struct kg_backend *be, void *to, const void *from,
                           uint64_t bytes, struct kg_err *err) KG_MUST_CHECK;
/* *mark: behind all that was launched so far; for ever good */
kg_status kg_buf_mark(const struct kg_backend *be, uint64_t *mark,
                      struct kg_err *err) KG_MUST_CHECK;
/* Until all is done that was launched before the mark; of what is behind it no more than
 * a few marks' is waited for.   errors: EDEVICE, of what was launched */
kg_status kg_buf_wait(const struct kg_backend *be, uint64_t mark,
                      struct kg_err *err) KG_MUST_CHECK;
/* Whether kg_buf_wait would return at once.   errors: EDEVICE, of what was launched */
kg_status kg_buf_reached(const struct kg_backend *be, bool *yes, uint64_t mark,
                         struct kg_err *err) KG_MUST_CHECK;
/* *result = call(arg, stream), where a library of the device's vendor moves what begins
 * at memory[0..n) behind what was launched before: into the stream, or before it returns.
 * What it launches is over when a mark behind it is reached. From the thread that calls
 * operations.   errors: UNSUPPORTED where the backend has no such slot, EDEVICE */
kg_status kg_buf_lend(const struct kg_backend *be, int *result,
                      int (*call)(void *arg, void *stream), void *arg,
                      const void *const *memory, size_t n,
                      struct kg_err *err) KG_MUST_CHECK;
/* Until all is done. */
kg_status kg_buf_settle(const struct kg_backend *be, struct kg_err *err) KG_MUST_CHECK;
/* Both the backend's:   to = from;   to = 0;   a, b = b, a
 * errors: EINVAL (NULL, or two ranges that overlap) */
kg_status kg_buf_copy(const struct kg_backend *be, void *to, const void *from,
                      uint64_t bytes, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_buf_zero(const struct kg_backend *be, void *to, uint64_t bytes,
                      struct kg_err *err) KG_MUST_CHECK;
kg_status kg_buf_swap(const struct kg_backend *be, void *a, void *b, uint64_t bytes,
                      struct kg_err *err) KG_MUST_CHECK;

/* What has crossed, of all threads together; zeros where nothing does. */
struct kg_traffic kg_buf_traffic(const struct kg_backend *be);
/* sum += what crossed from `since` on */
void kg_buf_traffic_add(struct kg_traffic *sum, const struct kg_backend *be,
                        struct kg_traffic since);

/* Ids are 0..end-1. An operation checks those it is given where the host may read the
 * backend's memory; whoever puts them into other memory asks here before.
 * errors: EINVAL, naming op, name, place and id */
kg_status kg_ids_check(const char *op, const char *name, const int32_t *ids, int64_t n,
                       int64_t end, struct kg_err *err) KG_MUST_CHECK;

/* ---- operations ---- */

/* C = op(A) op(B), or C += when accumulate.
 * c fp32 or ct; a, b of one dtype (bf16 or fp32); b in rows or, but for TN, in panels
 * (the same bits, and nothing to pack); accumulate needs c fp32.
 * numerics: see kg_matmul_kind.   errors: SHAPE, DTYPE, EINVAL (layout), ENOMEM */
kg_status kg_op_matmul(const struct kg_backend *be, struct kg_mat c, struct kg_mat a,
                       struct kg_mat b, enum kg_matmul_kind kind, bool accumulate,
                       struct kg_err *err) KG_MUST_CHECK;
/* c (=|+=) A B + A2 B2, NT or NN, in one pass over c: each is a product as above, added
 * in fp32 in this order and rounded once, the bits of
 *     wide (=|+=) A B;   wide += A2 B2;   c <- wide
 * wide: of c's shape in fp32: room where a backend makes it so; c itself if that is fp32
 * errors: as of kg_op_matmul, by product; SHAPE (a product without factors) */
kg_status kg_op_matmul_two(const struct kg_backend *be, struct kg_mat c,
                           const struct kg_factors f[2], struct kg_mat wide,
                           enum kg_matmul_kind kind, bool accumulate,
                           struct kg_err *err) KG_MUST_CHECK;

/* What products by a weight (rows, cols) of bf16 may take beside their operands: such a
 * weight, and rows of both its sides, on which ways to make them are tried
 * (cuda/product_blas.cu). Of a head, rows are those of KG_HEAD_STRIP_TILES. */
enum { KG_PRODUCT_TRIED = 4096, KG_PRODUCT_ROOM_ALIGN = 256 };
static inline uint64_t kg_product_room(int64_t rows, int64_t cols)
{
    const int64_t less = rows < cols ? rows : cols, more = rows + cols - less;
    const int64_t row = 2 * less + 4 * more + 8; /* bf16, fp32, digest */

    return (uint64_t)(2 * rows * cols + KG_PRODUCT_TRIED * row +
                      3 * KG_PRODUCT_ROOM_ALIGN);
}
/* Take so much now, where less is there: no product whose room this covers finds the
 * memory full then. It is the backend's, and stays.   errors: ENOMEM */
kg_status kg_op_reserve(const struct kg_backend *be, uint64_t bytes,
                        struct kg_err *err) KG_MUST_CHECK;

/* x[n,d] = table[tokens[n], d].   x (N,D) fp32 out; table (V,D) ct, rows or panels
 * errors: SHAPE, EINVAL (token id) */
kg_status kg_op_embed(const struct kg_backend *be, struct kg_mat x, struct kg_mat table,
                      struct kg_ivec tokens, struct kg_err *err) KG_MUST_CHECK;
/* dtable[tokens[n], d] += dx[n,d], in token order.   dtable (V,D) fp32; dx (N,D) fp32 */
kg_status kg_op_embed_bwd(const struct kg_backend *be, struct kg_mat dtable,
                          struct kg_mat dx, struct kg_ivec tokens,
                          struct kg_err *err) KG_MUST_CHECK;

/* y[n,d] = w[d] x[n,d] inv[n],   inv[n] = 1 / sqrt(mean_d x^2 + eps)
 * y (N,D) fp32 or ct out, may be x itself; inv (N) out, none allowed; x (N,D) fp32; w (D)
 * fp32 */
kg_status kg_op_rmsnorm(const struct kg_backend *be, struct kg_mat y, struct kg_vec inv,
                        struct kg_mat x, struct kg_vec w, float eps,
                        struct kg_err *err) KG_MUST_CHECK;
/* dx[n,d] (=|+=) inv[n] (w[d] dy[n,d] - x[n,d] inv[n]^2 mean_e(w[e] dy[n,e] x[n,e]))
 * dw[d] += sum_n dy x inv
 * dx, dy, x (N,D) fp32; dw (D), none allowed; dx may be dy itself when not
 * accumulating */
kg_status kg_op_rmsnorm_bwd(const struct kg_backend *be, struct kg_mat dx,
                            bool accumulate, struct kg_vec dw, struct kg_mat dy,
                            struct kg_mat x, struct kg_vec w, struct kg_vec inv,
                            struct kg_err *err) KG_MUST_CHECK;

/* y[n,d] = w[d] c[n,d] inv[n] + b[d],   c = x - mean_d x,   inv[n] = 1 / sqrt(mean_d c^2
 * + eps);   for encoders: there is no gradient
 * y (N,D) fp32 or ct out, may be x itself; x (N,D) fp32; w, b (D)
 * source: Ba et al. 2016 */
kg_status kg_op_layernorm(const struct kg_backend *be, struct kg_mat y, struct kg_mat x,
                          struct kg_vec w, struct kg_vec b, float eps,
                          struct kg_err *err) KG_MUST_CHECK;
/* y = x (1 + erf(x / sqrt 2)) / 2, within 3e-7 (1 + |y|);   no gradient either
 * y, x (N,F) fp32 or ct; y may be x itself   source: Hendrycks and Gimpel 2016 */
kg_status kg_op_gelu(const struct kg_backend *be, struct kg_mat y, struct kg_mat x,
                     struct kg_err *err) KG_MUST_CHECK;

/* y[n,d] += b[d]  (y fp32);   db[d] += sum_n dy[n,d]  (dy fp32 or ct) */
kg_status kg_op_bias(const struct kg_backend *be, struct kg_mat y, struct kg_vec b,
                     struct kg_err *err) KG_MUST_CHECK;
kg_status kg_op_bias_bwd(const struct kg_backend *be, struct kg_vec db, struct kg_mat dy,
                         struct kg_err *err) KG_MUST_CHECK;

/* Rotary position embedding in place, HF's half-split layout. For i < h, f the factor,
 * a = pos inv_freq[i]:
 *   (x_i, x_{i+h}) <- f (x_i cos a - x_{i+h} sin a,  x_{i+h} cos a + x_i sin a)
 * x (N, heads*hd) fp32; pos (N); inv_freq (h), 1 <= h <= hd/2: of every head the values
 * from 2h on stay as they are; inverse rotates back (the backward)
 * numerics: angle in fp32 as HF; cos and sin of it within 2^-22 for |a| < 2^20; products
 * in fp32 */
kg_status kg_op_rope(const struct kg_backend *be, struct kg_mat x, struct kg_ivec pos,
                     struct kg_vec inv_freq, int head_dim, float attention_factor,
                     bool inverse, struct kg_err *err) KG_MUST_CHECK;

/* h = silu(gate) * up,  silu(x) = x / (1 + exp(-x)).   all (N,F) ct; computed in fp32 */
kg_status kg_op_swiglu(const struct kg_backend *be, struct kg_mat h, struct kg_mat gate,
                       struct kg_mat up, struct kg_err *err) KG_MUST_CHECK;
/* dgate, dup (N,F) ct out; dh (N,F) fp32 or ct; dgate may share memory with gate, dup
 * with up */
kg_status kg_op_swiglu_bwd(const struct kg_backend *be, struct kg_mat dgate,
                           struct kg_mat dup, struct kg_mat dh, struct kg_mat gate,
                           struct kg_mat up, struct kg_err *err) KG_MUST_CHECK;

/* h = gelu(gate) * up by tanh, with its gradients; all else as of swiglu:
 *     gelu(x) = x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2 */
kg_status kg_op_geglu(const struct kg_backend *be, struct kg_mat h, struct kg_mat gate,
                      struct kg_mat up, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_op_geglu_bwd(const struct kg_backend *be, struct kg_mat dgate,
                          struct kg_mat dup, struct kg_mat dh, struct kg_mat gate,
                          struct kg_mat up, struct kg_err *err) KG_MUST_CHECK;

/* dst = src in dst's dtype and layout */
kg_status kg_op_cast(const struct kg_backend *be, struct kg_mat dst, struct kg_mat src,
                     struct kg_err *err) KG_MUST_CHECK;

/* pool[rows[n]] = src[n];   dst[n] = src[rows[n]]   (same dtype) */
kg_status kg_op_scatter_rows(const struct kg_backend *be, struct kg_mat pool,
                             struct kg_ivec rows, struct kg_mat src,
                             struct kg_err *err) KG_MUST_CHECK;
kg_status kg_op_gather_rows(const struct kg_backend *be, struct kg_mat dst,
                            struct kg_mat src, struct kg_ivec rows,
                            struct kg_err *err) KG_MUST_CHECK;

/* Which experts a token has, and what they weigh:
 *   p[n,e] = softmax of logits[n]; ids[n] the K largest, or those `given` where there are
 *   any and the token's first is not -1
 *   weight[n,k] = p[n,ids[n,k]], of which normalise divides by their sum; place, token,
 *   first as struct kg_route says.
 * r: arrays out; logits (N,E) fp32; given (N K) ids of another forward, or none
 * numerics: exp of differences to the largest; sums from +0 in order of experts or slots.
 * errors: SHAPE, EINVAL (an id that is no expert) */
kg_status kg_op_route(const struct kg_backend *be, const struct kg_route *r,
                      struct kg_mat logits, struct kg_ivec given,
                      struct kg_err *err) KG_MUST_CHECK;
/* dlogits[n,e] = p (g - sum_f p[f] g[f]),   g[n,e] = dp[e] + dweight at e, taken back
 * through the division where there was one
 * dlogits (N,E) fp32 out; dweight (N,K) fp32; dp (E) of every token alike, or none */
kg_status kg_op_route_bwd(const struct kg_backend *be, struct kg_mat dlogits,
                          const struct kg_route *r, struct kg_mat dweight,
                          struct kg_vec dp, struct kg_err *err) KG_MUST_CHECK;

/* For every expert its product, as kg_op_matmul's, of the rows at its places: so a row's
 * bits do not depend on who shares its expert. Where a library makes a device's products
 * of bf16, those of experts are by the matrix instruction.
 *   NT, NN: rows first[e].. of c by those of a and matrix e of b
 *   TN: matrix e of c by rows first[e].. of a and b
 * b, or c of TN, is expert 0's.   errors: as kg_op_matmul, and those of ranges of rows */
kg_status kg_op_matmul_groups(const struct kg_backend *be, struct kg_mat c,
                              struct kg_mat a, struct kg_mat b, const struct kg_groups *g,
                              enum kg_matmul_kind kind, bool accumulate,
                              struct kg_err *err) KG_MUST_CHECK;

/* y[n,d] (=|+=) sum_k weight[n,k] x[place[n,k],d]: one chain from +0 in order of slots,
 * added to what y held.
 * y (N,D) fp32; x (R,D) fp32; weight (N,K) fp32; place (N K), or none: the row itself.
 * weight without data is 1 */
kg_status kg_op_combine(const struct kg_backend *be, struct kg_mat y, struct kg_mat x,
                        struct kg_mat weight, struct kg_ivec place, bool accumulate,
                        struct kg_err *err) KG_MUST_CHECK;
/* For y = sum weight W x, where dx holds dy W of every place: with w the place's weight
 *   dweight = sum_f dx[f] x[f];   dx <- w dx;   x <- w x
 * dweight (N,K) fp32 out; dx (R,F) fp32; x (R,F) ct, whose product with dy is dW then */
kg_status kg_op_combine_bwd(const struct kg_backend *be, struct kg_mat dweight,
                            struct kg_mat dx, struct kg_mat x, struct kg_mat weight,
                            struct kg_ivec place, struct kg_err *err) KG_MUST_CHECK;

/* y = 1 / (1 + exp(-x));   dx = dy y (1 - y); in place, if wanted */
kg_status kg_op_sigmoid(const struct kg_backend *be, struct kg_vec y, struct kg_vec x,
                        struct kg_err *err) KG_MUST_CHECK;
kg_status kg_op_sigmoid_bwd(const struct kg_backend *be, struct kg_vec dx,
                            struct kg_vec dy, struct kg_vec y,
                            struct kg_err *err) KG_MUST_CHECK;
/* The first operation of experts that a backend lacks; NULL: none, or it is a plan. */
const char *kg_experts_missing(const struct kg_backend *be);

/* Grouped-query attention, causal or both ways, online softmax over key blocks of
 * KG_KV_BLOCK from position 0, of which a window leaves out those that it does not touch.
 * o (N, H*hd) ct out; lse (N H) out, log sum exp of the scaled scores, none allowed; a->q
 * is not o
 * numerics: one fixed sequence of operations per (query row, head), for 1 or many query
 * rows: FMAs in fp32; where a device's matrix instruction makes the products, its own,
 * with weights rounded to bf16
 * errors: SHAPE, DTYPE, EINVAL */
kg_status kg_op_attention(const struct kg_backend *be, struct kg_mat o, struct kg_vec lse,
                          const struct kg_attn *a, struct kg_err *err) KG_MUST_CHECK;
/* dq (N,H*hd), dk, dv (rows of k, Hk*hd) fp32, overwritten; dout (N,H*hd) fp32 or ct.
 * Causal, no table of blocks; a sequence's keys are all its own, those before pos too,
 * and sequences stand in the order of their keys.
 * source: Dao et al. 2022 */
kg_status kg_op_attention_bwd(const struct kg_backend *be, struct kg_mat dq,
                              struct kg_mat dk, struct kg_mat dv, struct kg_mat dout,
                              struct kg_mat o, struct kg_vec lse, const struct kg_attn *a,
                              struct kg_err *err) KG_MUST_CHECK;

/* Log-probs, entropy, top-k from hidden states, by vocabulary tiles. A row's bits do not
 * depend on N, on what else is asked, or on the threads: per (row, tile) maximum and
 * sums, combined in tile order in double.   memory: O(N tiles) statistics and one tile
 * per thread.
 * errors: SHAPE, DTYPE, EINVAL (id out of range) */
kg_status kg_op_head(const struct kg_backend *be, const struct kg_head_out *out,
                     const struct kg_head *h, struct kg_err *err) KG_MUST_CHECK;
/* Gradients of hidden states and head weights from sparse gradients on log-probs. */
kg_status kg_op_head_bwd(const struct kg_backend *be, const struct kg_head_grad *g,
                         const struct kg_head *h, struct kg_err *err) KG_MUST_CHECK;

/* kg_op_head, and a token of every row, so that no logits cross to the host.
 * out: lse, top_ids, top_logp at most; h: no more than hidden, weight, top_k.
 * numerics: token, logp and what was kept are
 * kg_sampler_draw's on the same logits, to the bit.   errors: as kg_op_head, UNSUPPORTED
 * where the backend has no such slot */
kg_status kg_op_draw(const struct kg_backend *be, const struct kg_draws *d,
                     const struct kg_head_out *out, const struct kg_head *h,
                     struct kg_err *err) KG_MUST_CHECK;

/* tokens[n] = drawn[from[n]].token where from[n] >= 0: what was drawn is fed and the host
 * has not seen it.   tokens (N); from (N) rows of drawn, or -1; all the backend's
 * errors: SHAPE, EINVAL, UNSUPPORTED where the backend has no such slot */
kg_status kg_op_feed(const struct kg_backend *be, int32_t *tokens, struct kg_ivec from,
                     const struct kg_drawn *drawn, struct kg_err *err) KG_MUST_CHECK;

/* body(arg), where it calls operations alone: nothing comes from the host or goes there,
 * no memory is taken, and nothing depends on what they compute. With equal keys it calls
 * the same ones on the same memory; so a backend may record it at one call and launch the
 * record at later ones, in which it is not called.   errors: those of body, DEVICE */
kg_status kg_op_replay(const struct kg_backend *be, uint64_t key,
                       kg_status (*body)(void *arg, struct kg_err *err), void *arg,
                       struct kg_err *err) KG_MUST_CHECK;

/* AdamW (Loshchilov & Hutter 2019): m = b1 m + (1-b1) g, v = b2 v + (1-b2) g^2,
 * w -= lr (m^ / (sqrt(v^) + eps) + decay w),  g = grad_scale * gradient.
 * w, g (n) fp32; m, v (1,n) fp32 or bf16, see struct kg_adamw */
kg_status kg_op_adamw(const struct kg_backend *be, struct kg_vec w, struct kg_mat m,
                      struct kg_mat v, struct kg_vec g, const struct kg_adamw *a,
                      struct kg_err *err) KG_MUST_CHECK;

/* Schedule-free AdamW. The gradient is at y = (1 - b1) z + b1 x; with
 * d = g / (sqrt(v^) + eps) + decay y and c = a->average
 *     z <- z - lr d,   x <- (1 - c) x + c z,   y <- (1 - b1) z + b1 x
 * x is not kept: _average computes it from y and z.   y, z, g (n) fp32; v (1,n) fp32 or
 * bf16; b1 in (0, 1]
 * errors: EINVAL.   source: Defazio et al. 2024, arXiv 2405.15682 */
kg_status kg_op_schedule_free(const struct kg_backend *be, struct kg_vec y,
                              struct kg_vec z, struct kg_mat v, struct kg_vec g,
                              const struct kg_adamw *a, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_op_schedule_free_average(const struct kg_backend *be, struct kg_vec x,
                                      struct kg_vec y, struct kg_vec z, float beta1,
                                      struct kg_err *err) KG_MUST_CHECK;

/* avg = eta avg + (1 - eta) w, fp32; avg = w stays so to the last bit, and eta 0 copies
 */
kg_status kg_op_ema(const struct kg_backend *be, struct kg_vec avg, struct kg_vec w,
                    float eta, struct kg_err *err) KG_MUST_CHECK;
/* y += x;   y *= factor, fp32 */
kg_status kg_op_add(const struct kg_backend *be, struct kg_vec y, struct kg_vec x,
                    struct kg_err *err) KG_MUST_CHECK;
kg_status kg_op_scale(const struct kg_backend *be, struct kg_vec y, float factor,
                      struct kg_err *err) KG_MUST_CHECK;
/* *out = sum_i (x_i - minus_i)^2 in double over a fixed partition, minus none for 0; NaN
 * stays */
kg_status kg_op_sum_squares(const struct kg_backend *be, double *out, struct kg_vec x,
                            struct kg_vec minus, struct kg_err *err) KG_MUST_CHECK;

/* `flops` at least of multiply-adds in t as products make them, all registers full and
 * nothing read: what no product can pass.   for benchmarks */
kg_status kg_op_peak(const struct kg_backend *be, enum kg_dtype t, double flops,
                     struct kg_err *err) KG_MUST_CHECK;

#endif
