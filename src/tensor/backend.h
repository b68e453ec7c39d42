/* The backend contract: all operations of a model, typed, over row-major matrix views.
 *
 * Three nouns. A backend is a table of functions; a buffer is memory of that backend; an
 * operation is a kg_op_* function, which checks shapes and dtypes once (op*.c) and calls
 * the backend's slot. There is no graph. cpu/ is the specification; other backends return
 * its bits, except in products and attention by a device's matrix instruction (below).
 *
 * Exactness rules that every implementation keeps (docs/exactness.md builds on them):
 *  - a row of a forward output depends on that row's inputs and the weights only: never
 *    on the number of rows, on its neighbours, or on the number of threads;
 *  - sums over tokens (weight gradients, norm weights, biases) run over a partition that
 *    depends on the shapes alone, combined in a fixed order;
 *  - inside an enclosing parallel region an operation runs on the calling thread, with
 *    the same bits.
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

/* Memory spaces: the data of kg_mat, kg_vec, kg_ivec and kg_codes, kg_attn.seqs, the
 * arrays of kg_route, kg_groups and kg_draws, kg_head.kept and kg_rounded.to are in
 * backend memory. All else is on the host: arguments, and the arrays of kg_op_head. */

/* n fp32 values: weights of norms, biases, values kept by a forward, slabs of an
 * optimizer. Does not own them. */
struct kg_vec {
    float *data; /* NULL: absent, if allowed */
    int64_t n;
};
static inline struct kg_vec kg_vec(float *data, int64_t n)
{
    return (struct kg_vec){data, n};
}
/* n ids or positions, borrowed and read-only. */
struct kg_ivec {
    const int32_t *data;
    int64_t n;
};
static inline struct kg_ivec kg_ivec(const int32_t *data, int64_t n)
{
    return (struct kg_ivec){data, n};
}

/* Layout of a matrix. Weights in products use the layout that their backend reads best
 * (kg_weights); on the CPU this is panels: sixteen rows interleaved step by step (a step
 * is one fp32 or a pair of bf16), so that a product reads memory sequentially. Rows of
 * bf16 are zero-padded to KG_PRODUCT_BLOCK, the last panel to sixteen rows. kg_op_cast
 * packs and unpacks. */
enum kg_layout {
    KG_ROWS, /* row r at data + r*stride elements */
    /* dword (r%16) of step s is at data + r/16*16*stride elements plus sixteen dwords per
     * step; it holds elements 2s and 2s+1 of row r in bf16, element s in fp32 */
    KG_PANELS,
    /* KG_PANELS, but the first eight steps of a bf16 block hold its even elements and the
     * next eight its odd ones; the earlier element of a pair is in the upper half. The
     * chains of kg_matmul_kind read them without unpacking */
    KG_SPLIT_PANELS,
};
/* KG_PANEL: rows per panel. KG_PRODUCT_CHUNK, KG_PRODUCT_BLOCK: length along K of a chunk
 * and of a bf16 block within it; kg_matmul_kind defines the order of the sums. */
enum { KG_PANEL = 16, KG_PRODUCT_CHUNK = 1024, KG_PRODUCT_BLOCK = 32 };

struct kg_quant;
/* A view of rows x cols elements. Does not own them. */
struct kg_mat {
    void *data;
    enum kg_dtype dtype;
    int64_t rows;
    int64_t cols;
    int64_t stride; /* elements from one row to the next, >= cols */
    enum kg_layout layout;
    /* type of the quantized blocks in the panels (coded.h), which operations only read;
     * NULL: plain elements */
    const struct kg_quant *quant;
};

static inline struct kg_mat kg_mat(void *data, enum kg_dtype dtype, int64_t rows,
                                   int64_t cols)
{
    return (struct kg_mat){data, dtype, rows, cols, cols, KG_ROWS, NULL};
}
/* A view of panels in kg_panels_bytes of 64-byte aligned memory. */
static inline struct kg_mat kg_panels(enum kg_layout layout, void *data,
                                      enum kg_dtype dtype, int64_t rows, int64_t cols)
{
    int64_t stride = dtype == KG_BF16 ? (cols + KG_PRODUCT_BLOCK - 1) / KG_PRODUCT_BLOCK *
                                            KG_PRODUCT_BLOCK
                                      : cols;
    return (struct kg_mat){data, dtype, rows, cols, stride, layout, NULL};
}
uint64_t kg_panels_bytes(enum kg_dtype dtype, int64_t rows, int64_t cols);
/* Rows [first, first+n) of m; if m is in panels, first is a multiple of KG_PANEL. */
struct kg_mat kg_mat_rows(struct kg_mat m, int64_t first, int64_t n);
/* Columns [first, first+n) of m, whose layout is KG_ROWS. */
static inline struct kg_mat kg_mat_cols(struct kg_mat m, int64_t first, int64_t n)
{
    if (m.data)
        m.data = (char *)m.data + (size_t)first * kg_dtype_traits(m.dtype)->bytes;
    m.cols = n;
    return m;
}
/* dst <- n elements of m from element `first`, in m's dtype and row-major order for any
 * layout; kg_mat_write is the inverse. For files and tests: one element at a time. */
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

/* The definition of a product: every element bit for bit, on every machine (for the
 * exception, see the end). The K factors are taken in order, in chunks of
 * KG_PRODUCT_CHUNK.
 *   fp32: a chunk is one chain from +0, s <- fma(a_k, b_k, s); chunks are added in order;
 *     subnormals are kept.
 *   bf16: a chunk is divided into blocks of KG_PRODUCT_BLOCK factors, the last one padded
 *     by zeros. In a block, the even factors are one chain from +0 and the odd ones
 *     another; sum <- sum + (even + odd), from +0, block by block across chunks.
 *     Subnormal factors and (after rounding) results become zeros of their sign.
 * Then
 *   NT, NN: with accumulation, c's old value is added to the sum;
 *   TN: each chunk is a separate sum, added to c in order, so 2048 tokens give the same
 *     gradient in one call as in two of 1024.
 * These additions keep subnormals. A bf16 c is rounded to nearest even, subnormals kept.
 * The payload of a NaN is undefined.
 *
 * Exception: bf16 products by a device's matrix instruction (cuda/product_own.cu). NT and
 * NN are one chain of instructions of 16 factors from +0, the last padded by zeros; TN is
 * such a chain for each chunk. Accumulation and rounding of c are as above. The device
 * defines the order of additions inside an instruction, and how it treats subnormals;
 * both are the same at every position in every tile, so the rules at the top hold. */

/* The operands of a product. */
struct kg_factors {
    struct kg_mat a;
    struct kg_mat b;
};

/* Position embedding: see kg_op_rope. */
struct kg_turn {
    struct kg_ivec pos;     /* (N) */
    struct kg_vec inv_freq; /* (h), h <= head_dim / 2 */
    int head_dim;
    float attention_factor;
};

/* Queries, keys or values after their product: see kg_op_heads. */
struct kg_heads {
    struct kg_mat x;     /* (N,heads*hd) fp32, or `out` itself; overwritten */
    struct kg_vec bias;  /* (heads*hd); data NULL: none */
    bool turned;         /* rotated by rope */
    struct kg_mat out;   /* (N,heads*hd) ct */
    struct kg_mat pool;  /* (any,heads*hd), of out's dtype; data NULL: none */
    struct kg_ivec rows; /* (N) rows of pool */
};
enum { KG_HEADS_AT_ONCE = 3 };

/* One of several products that share their left operand: its result and right operand. */
struct kg_product {
    struct kg_mat c;
    struct kg_mat b;
};
enum { KG_PRODUCTS_AT_ONCE = 3 };

/* ---- attention ---- */
/* keys per block of the online softmax and of the cache */
enum { KG_KV_BLOCK = 64 };

/* Query rows [row, row+n_rows) of one sequence, at positions pos, pos+1, ... The query at
 * position p sees keys 0..p of its sequence, or with a window the last `window` of them;
 * with both_ways each query sees keys 0..pos+n_rows-1. Key j is in row keys + j of k; if
 * there is a table of blocks, in row blocks[keys + j/64]*64 + j%64. Each query row is in
 * one sequence. */
struct kg_attn_seq {
    int32_t row;
    int32_t n_rows;
    int32_t pos;
    int32_t keys;
};

struct kg_attn {
    struct kg_mat q; /* (N, H*hd) ct */
    struct kg_mat k; /* (any, Hk*hd) ct: the cache, or keys of these sequences */
    struct kg_mat v; /* as k */
    int n_heads;
    int n_kv_heads;
    int head_dim;
    float scale;    /* of scores, usually 1/sqrt(hd) */
    int32_t window; /* maximum number of keys that a query sees; 0: no limit */
    bool both_ways; /* a query also sees later keys; requires window 0 */
    float softcap;  /* scores become cap tanh(score / cap); 0: unchanged */
    const struct kg_attn_seq *seqs; /* (n_seqs) */
    int32_t n_seqs;
    struct kg_ivec blocks; /* tables of all sequences; empty: their keys are contiguous */
    int32_t most_keys;     /* no sequence has more keys; 0: unknown. For speed only */
};

/* ---- vocabulary head ---- */
/* Columns per tile: sums over the vocabulary are computed tile by tile. Small
 * vocabularies still have several tiles, so that threads can share few rows. */
static inline int64_t kg_head_tile_width(int64_t vocab)
{
    int64_t width = (vocab / 8 + 63) / 64 * 64;

    if (width < 256)
        return 256;
    return width < 2048 ? width : 2048;
}

/* Maximum number of tiles whose logits a backend computes at once, unless it computes
 * all. */
enum { KG_HEAD_STRIP_TILES = 2 };

/* A second head over the same vocabulary; its q = softmax(z') is a constant in an exact
 * KL. */
struct kg_head_anchor {
    struct kg_mat hidden;  /* (N,Da) ct */
    struct kg_mat weight;  /* (V,Da) ct, rows or panels */
    const float *inv_temp; /* (N) or NULL for 1 */
    float softcap;         /* as in kg_head */
};

/* Inputs of the head.
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
    int top_k;              /* number of top ids; 0: none */
    /* (N) sets whose mass is computed (a set with n = 0: all ids); or NULL */
    const struct kg_idset *sets;
    const struct kg_head_anchor *anchor; /* borrowed; NULL without exact KL */
    /* kg_head_kept_bytes(N, K) bytes of backend memory, 64-byte aligned. The forward
     * leaves ids, temperatures and per-row results here; the backward of the same rows
     * reads them here and ignores the host's arrays, so each is copied once. The forward
     * must compute lse and every other result that the backward uses.
     * If NULL or the backend lacks keeps_heads, the backward reads the host's arrays */
    void *kept;
};

/* Bytes of an array of n elements within `kept`. */
static inline uint64_t kg_head_kept_array(int64_t n, size_t each)
{
    return ((uint64_t)n * each + 255) / 256 * 256;
}
/* For temperatures of both heads, targets, entropy; ids; lse, R and the anchor's lse. */
static inline uint64_t kg_head_kept_bytes(int64_t n, int64_t k)
{
    return 4 * kg_head_kept_array(n, 4) + kg_head_kept_array(n * k, 4) +
           3 * kg_head_kept_array(n, 8);
}

/* inv_temp, or NULL if all n are 1 */
static inline const float *kg_not_one(const float *inv_temp, int64_t n)
{
    for (int64_t i = 0; inv_temp && i < n; i++)
        if (inv_temp[i] != 1.0f)
            return inv_temp;
    return NULL;
}

/* Results of a forward; those with a NULL pointer are not computed. The caller owns all
 * arrays: host memory for kg_op_head, backend memory for kg_op_draw. */
struct kg_head_out {
    double *lse;      /* (N) log sum_v exp z */
    float *logp;      /* (N) log-prob of target; 0 if target is -1 */
    float *logp_at;   /* (N,K) log-probs of indices; -inf in unused slots */
    float *entropy;   /* (N) nats */
    int32_t *top_ids; /* (N,top_k) largest first, ties by smaller id */
    float *top_logp;  /* (N,top_k) */
    float *logits;    /* (N,V) z; for decode steps */
    double *set_logp; /* (N) log sum_{v in set} p_v; 0 for all ids */
    /* (N) sum_v p_v (logp_v - logq_v); needs an anchor, like the next two */
    double *kl_reverse;
    double *kl_forward; /* (N) sum_v q_v (logq_v - logp_v) */
    double *anchor_lse; /* (N) */
};

/* How to draw a row's token from p = softmax(z): rollout/rollout.h defines truncation,
 * rollout/sampler.c the algorithm. */
struct kg_draw {
    double u;      /* in [0, 1) */
    float top_p;   /* 1: off */
    float min_p;   /* 0: off */
    int32_t top_k; /* 0: off */
    bool greedy;   /* the largest logit, ties by smaller id; ignores the rest */
};
struct kg_drawn {
    int32_t token;  /* 0 if lse is not finite */
    float logp;     /* z[token] - lse: of the full softmax */
    int32_t n_kept; /* number of ids kept by truncation; 0: all */
    float cut;      /* -log of their mass */
};
/* Draws tokens for the rows of a head. All arrays except `logits` are in backend memory,
 * so only `logits` is copied to the host, and the caller can copy `how` and `inv_temp`
 * together with its other inputs. */
struct kg_draws {
    const struct kg_draw *how; /* (N) */
    const float *inv_temp;     /* (N) or NULL for 1 */
    bool truncates;            /* some row truncates */
    struct kg_drawn *drawn;    /* (N) out; only the token is valid if lse is not finite */
    /* (N, (V+63)/64) out: a bit per kept id, valid if n_kept > 0; or NULL */
    uint64_t *kept;
    /* (N) host arrays of V floats, or NULLs, to copy each row's logits to; or NULL */
    float *const *logits;
};

/* Backward. With J the target and indices of a row, a = a_target + a_indices, and c_H,
 * c_R, c_F, c_S = a_entropy, a_kl_reverse, a_kl_forward, a_set:
 *   dloss/dz_v = a_v 1[v in J] - p_v sum_J a  -  c_H p_v (logp_v + H)
 *                + c_R p_v (logp_v - logq_v - R)  +  c_F (p_v - q_v)
 *                + c_S (1[v in set] p_v / S - p_v),   S = sum_{v in set} p_v
 * The anchor gets no gradient. The coefficients are double, because the rounding error of
 * a float would dominate where a row nearly cancels (p_y near 1, p near q). */
struct kg_head_grad {
    const double *lse;      /* (N) lse of the forward */
    const double *a_target; /* (N) dloss/dlogp at target; or NULL */
    /* (N,K) dloss/dlogp at indices, in addition to a_target; or NULL */
    const double *a_indices;
    const double *a_entropy;    /* (N) dloss/dH; or NULL */
    const float *entropy;       /* (N) H of the forward, with a_entropy */
    const double *a_kl_reverse; /* (N) dloss/dR; or NULL */
    const double *a_kl_forward; /* (N) dloss/dF; or NULL */
    const double *kl_reverse;   /* (N) R of the forward, with a_kl_reverse */
    const double *anchor_lse;   /* (N) anchor_lse of the forward, with a_kl_* */
    const double *a_set;        /* (N) dloss/dlog S; or NULL */
    const double *set_logp;     /* (N) log S of the forward, with a_set */
    struct kg_mat dhidden;      /* (N,D) fp32, overwritten */
    struct kg_mat dweight;      /* (V,D) fp32, added to; data NULL: not computed */
};

/* ---- experts ---- */
enum { KG_MAX_EXPERTS = 1024 };

/* Assignment of N tokens to E experts, K per token: a token has K slots, in the order of
 * its ids. Experts compute N K rows, called places, ordered by expert and, for each
 * expert, by token. All arrays are in backend memory. */
struct kg_route {
    int32_t n_experts;    /* E */
    int32_t k;            /* K */
    bool normalise;       /* a token's weights are divided by their sum */
    struct kg_mat p;      /* (N,E) fp32: softmax of the logits */
    struct kg_mat weight; /* (N,K) fp32 */
    int32_t *ids;         /* (N,K) experts, largest p first, ties by smaller index */
    int32_t *place;       /* (N,K) place of a slot's row */
    int32_t *token;       /* (N K) token of a place */
    int32_t *first;       /* (E+1) first place of each expert; first[E] is N K */
};

/* Matrices of E experts: equal shapes, at equal distances in memory. */
struct kg_groups {
    const int32_t *first; /* (E+1) kg_route.first */
    int32_t n;            /* E */
    int64_t stride;       /* bytes from one expert's matrix to the next */
};

/* ---- optimizer ---- */
/* A run of weights that an update also stores in bf16, rounded as by kg_op_cast: to[i]
 * is the new weight with index first + i among all parameters (like kg_adamw.first). */
struct kg_rounded {
    int64_t first; /* a multiple of KG_DRAW_LANES */
    int64_t n;
    uint16_t *to; /* (n) */
};
struct kg_adamw {
    float lr;
    float beta1;
    float beta2;
    float eps;
    float weight_decay; /* decoupled: w -= lr * decay * w */
    float grad_scale;   /* factor of the gradient (norm clipping) */
    int64_t step;       /* number of the update from 1, for bias correction */
    /* schedule-free only: weight of the new z in the average x; 1 for the first update */
    float average;
    struct kg_rng_key rounding; /* only with moments in bf16 */
    /* index of the operands' element 0 in all parameters: a multiple of KG_DRAW_LANES */
    int64_t first;
    const struct kg_rounded *rounded; /* (n_rounded) ascending, within the operands */
    int32_t n_rounded;
};

/* Moments in bf16 are read as fp32, computed in fp32, and rounded stochastically when
 * stored, by 16 bits of the counted RNG (kg_f32_to_bf16_drawn); weights use the unrounded
 * values. Element e of update t, e = first + i, has the word
 *   word[e / 16 % 4] of kg_rng_words(word, rounding, t, B % 2^32, B / 2^32),
 *   B = e / 64 * 16 + e % 16
 * m uses the word's lower half, v its upper half; sixteen consecutive blocks give four
 * vectors of sixteen words. So bits depend only on key, update and index, not on threads
 * or on how calls divide the array. */
enum { KG_DRAW_LANES = 16, KG_DRAW_GROUP = 4 * KG_DRAW_LANES };

/* A property of the machine that determines bits of results, such as its device. */
struct kg_trait {
    const char *name; /* static */
    char value[120];
};
enum { KG_TRAITS = 8 };

/* ---- the table ---- */
/* Copies between host and backend memory since the start; counted atomically. */
struct kg_traffic {
    uint64_t up; /* bytes to the backend */
    uint64_t down;
    uint64_t ups; /* copies */
    uint64_t downs;
    uint64_t replays; /* bodies launched as a unit, see kg_op_replay */
    /* waits of the host: one per put, get, fetch, and kg_buf_wait for unfinished work */
    uint64_t waits;
};
/* Counts a copy. sum, copies: t->up and t->ups, or t->down and t->downs */
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
    /* one line: instruction set, implementation of products */
    void (*describe)(char *text, size_t bytes);
    /* lists the traits that determine bits; returns their number. NULL: none, all CPUs
     * agree */
    int (*traits)(struct kg_trait traits[KG_TRAITS]);
    /* whether products of t have the bits defined after kg_matmul_kind; NULL: yes */
    bool (*exact)(enum kg_dtype t);
    bool host_memory; /* the host may access buffers directly */
    /* true: one thread at a time calls operations, outside parallel regions; any thread
     * may get and fetch memory that no operation writes */
    bool one_caller;
    bool keeps_heads;                 /* uses struct kg_head's `kept` */
    const struct kg_traffic *traffic; /* counters; NULL: nothing is copied */
    enum kg_layout weights; /* layout of weights in products; KG_ROWS: no panels at all */
    bool coded;             /* reads weights with kg_mat.quant */
    void *(*alloc)(uint64_t bytes, const char *what, struct kg_err *err);
    void (*free)(void *memory);
    /* bytes of total and free memory; NULL: unknown */
    kg_status (*memory)(uint64_t *total, uint64_t *free, struct kg_err *err);
    kg_status (*put)(void *to, const void *from, uint64_t bytes, struct kg_err *err);
    kg_status (*get)(void *to, const void *from, uint64_t bytes, struct kg_err *err);
    /* see kg_buf_pin and kg_buf_fetch; all three NULL: kg_mem_calloc, and get */
    void *(*pin)(uint64_t bytes, const char *what, struct kg_err *err);
    void (*unpin)(void *memory);
    kg_status (*fetch)(void *to, const void *from, uint64_t bytes, struct kg_err *err);
    /* see kg_buf_put_later and related; all four NULL: put and get, which wait */
    kg_status (*put_later)(void *to, const void *from, uint64_t bytes,
                           struct kg_err *err);
    kg_status (*get_later)(void *to, const void *from, uint64_t bytes,
                           struct kg_err *err);
    kg_status (*mark)(uint64_t *mark, struct kg_err *err);
    kg_status (*wait)(uint64_t mark, struct kg_err *err);
    /* see kg_buf_lend (NULL: unsupported) and kg_buf_reached (NULL: always true) */
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
    /* see kg_op_matmul_onto, old disjoint from c; NULL: old is copied to c first */
    kg_status (*matmul_onto)(struct kg_mat c, struct kg_mat old, struct kg_mat a,
                             struct kg_mat b, struct kg_err *err);
    /* see kg_op_matmul_two; NULL: computed by two products and a cast */
    kg_status (*matmul_two)(struct kg_mat c, const struct kg_factors f[2],
                            enum kg_matmul_kind kind, bool accumulate,
                            struct kg_err *err);
    /* see kg_op_matmul_shared; NULL: products run one by one */
    kg_status (*matmul_shared)(const struct kg_product *to, int n, struct kg_mat a,
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
    /* for encoders, which need both; NULL: unsupported */
    kg_status (*layernorm)(struct kg_mat y, struct kg_mat x, struct kg_vec w,
                           struct kg_vec b, float eps, struct kg_err *err);
    kg_status (*gelu)(struct kg_mat y, struct kg_mat x, struct kg_err *err);
    /* see codes.h; NULL: unsupported */
    kg_status (*scan)(struct kg_mat c, struct kg_mat a, const struct kg_codes *m,
                      struct kg_err *err);
    kg_status (*bias)(struct kg_mat y, struct kg_vec b, struct kg_err *err);
    kg_status (*bias_bwd)(struct kg_vec db, struct kg_mat dy, struct kg_err *err);
    kg_status (*rope)(struct kg_mat x, const struct kg_turn *by, bool inverse,
                      struct kg_err *err);
    /* see kg_op_heads; NULL: computed by bias, rope, cast and scatter_rows */
    kg_status (*heads)(const struct kg_heads *h, int n, const struct kg_turn *by,
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
    kg_status (*sum_rows)(struct kg_mat dst, struct kg_mat src, struct kg_ivec ends,
                          struct kg_ivec places, struct kg_err *err);
    /* experts; if any is NULL, kg_experts_missing names it and such models are refused */
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
    /* NULL: the caller draws from logits */
    kg_status (*draw)(const struct kg_draws *d, const struct kg_head_out *out,
                      const struct kg_head *h, struct kg_err *err);
    /* NULL: the caller waits for a drawn token before feeding it */
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

/* Opens the backend of this name; NULL: the default, which is the CPU (in tests, see
 * KEDGE_TEST_BACKEND in docs/extending.md). *be borrowed, static
 * errors: ENOTFOUND (lists valid names), EUNSUPPORTED (the machine cannot run it) */
kg_status kg_backend_open(const struct kg_backend **be, const char *name,
                          struct kg_err *err) KG_MUST_CHECK;
/* "cpu".   errors: EUNSUPPORTED */
kg_status kg_backend_open_cpu(const struct kg_backend **be,
                              struct kg_err *err) KG_MUST_CHECK;
/* Defined by tests (tests/emu/backends.c), where it replaces kg_backend_open. */
kg_status kg_backend_open_tested(const struct kg_backend **be, const char *name,
                                 struct kg_err *err) KG_GUEST;

/* The backend for host memory: `be` itself if its memory is host memory, else the CPU.
 * errors: those of kg_backend_open_cpu */
kg_status kg_backend_host(const struct kg_backend **host, const struct kg_backend *be,
                          struct kg_err *err) KG_MUST_CHECK;

/* A view of weights for products of this backend, in kg_weights_bytes of 64-byte aligned
 * memory: panels or rows. */
static inline struct kg_mat kg_weights(const struct kg_backend *be, void *data,
                                       enum kg_dtype dtype, int64_t rows, int64_t cols)
{
    return be->weights == KG_ROWS ? kg_mat(data, dtype, rows, cols)
                                  : kg_panels(be->weights, data, dtype, rows, cols);
}
uint64_t kg_weights_bytes(const struct kg_backend *be, enum kg_dtype dtype, int64_t rows,
                          int64_t cols);
/* Bytes of the memory that a view spans: rows * stride elements, or whole panels. */
uint64_t kg_mat_bytes(struct kg_mat m);

/* ---- memory ---- */

/* Allocates a buffer: zeroed backend memory, aligned to at least 64 bytes. Errors name
 * `what` and, if known, total and free memory. Views may begin anywhere inside.
 * returns owned pointer, also for 0 bytes, or NULL with err set
 * errors: ENOMEM; EDEVICE (an earlier device operation failed) */
void *kg_buf_alloc(const struct kg_backend *be, uint64_t bytes, const char *what,
                   struct kg_err *err) KG_MUST_CHECK;
void kg_buf_free(const struct kg_backend *be, void *buffer); /* NULL is allowed */

/* Copy between host and backend memory. On return the copy is complete.
 * errors: EINVAL (NULL, or overlapping ranges), EDEVICE */
kg_status kg_buf_put(const struct kg_backend *be, void *to, const void *from,
                     uint64_t bytes, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_buf_get(const struct kg_backend *be, void *to, const void *from,
                     uint64_t bytes, struct kg_err *err) KG_MUST_CHECK;
/* Allocates zeroed page-locked host memory, which a device can access directly, for
 * copies concurrent with operations.
 * returns owned pointer, or NULL with err set.   errors: those of kg_buf_alloc */
void *kg_buf_pin(const struct kg_backend *be, uint64_t bytes, const char *what,
                 struct kg_err *err) KG_MUST_CHECK;
void kg_buf_unpin(const struct kg_backend *be, void *pinned); /* NULL is allowed */
/* As kg_buf_get, from a thread other than the one that calls operations: waits for work
 * launched before, without delaying work launched after. No operation may write the
 * source meanwhile. to: within memory of kg_buf_pin
 * errors: as kg_buf_get */
kg_status kg_buf_fetch(const struct kg_backend *be, void *to, const void *from,
                       uint64_t bytes, struct kg_err *err) KG_MUST_CHECK;
/* As kg_buf_put and kg_buf_get, ordered after earlier and before later launches, without
 * waiting. The host memory must be from kg_buf_pin. Until kg_buf_wait returns for a later
 * mark, do not write or free it, and do not read the result. Call from the thread that
 * calls operations.   errors: as kg_buf_get */
kg_status kg_buf_put_later(const struct kg_backend *be, void *to, const void *from,
                           uint64_t bytes, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_buf_get_later(const struct kg_backend *be, void *to, const void *from,
                           uint64_t bytes, struct kg_err *err) KG_MUST_CHECK;
/* *mark <- a point after all work launched so far; a mark never expires.
 * errors: EDEVICE */
kg_status kg_buf_mark(const struct kg_backend *be, uint64_t *mark,
                      struct kg_err *err) KG_MUST_CHECK;
/* Waits until all work launched before the mark is done, and perhaps the work of a few
 * later marks.   errors: EDEVICE, of launched work */
kg_status kg_buf_wait(const struct kg_backend *be, uint64_t mark,
                      struct kg_err *err) KG_MUST_CHECK;
/* Whether kg_buf_wait would return at once.   errors: EDEVICE, of launched work */
kg_status kg_buf_reached(const struct kg_backend *be, bool *yes, uint64_t mark,
                         struct kg_err *err) KG_MUST_CHECK;
/* *result = call(arg, stream): lets a vendor library access the buffers that contain
 * memory[0..n), in the stream or before the call returns. Its work in the stream is
 * ordered after earlier launches, and complete when a later mark is reached. Call from
 * the thread that calls operations.   errors: EUNSUPPORTED (no such slot), EDEVICE */
kg_status kg_buf_lend(const struct kg_backend *be, int *result,
                      int (*call)(void *arg, void *stream), void *arg,
                      const void *const *memory, size_t n,
                      struct kg_err *err) KG_MUST_CHECK;
/* Waits until all launched work is done.   errors: EDEVICE, of launched work */
kg_status kg_buf_settle(const struct kg_backend *be, struct kg_err *err) KG_MUST_CHECK;
/* Within backend memory: to = from; to = 0 bytes; swap a and b
 * errors: EINVAL (NULL, or overlapping ranges) */
kg_status kg_buf_copy(const struct kg_backend *be, void *to, const void *from,
                      uint64_t bytes, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_buf_zero(const struct kg_backend *be, void *to, uint64_t bytes,
                      struct kg_err *err) KG_MUST_CHECK;
kg_status kg_buf_swap(const struct kg_backend *be, void *a, void *b, uint64_t bytes,
                      struct kg_err *err) KG_MUST_CHECK;

/* Counters since the start, of all threads together; zeros if the backend has none. */
struct kg_traffic kg_buf_traffic(const struct kg_backend *be);
/* sum += the counts since `since` */
void kg_buf_traffic_add(struct kg_traffic *sum, const struct kg_backend *be,
                        struct kg_traffic since);

/* Checks that ids are in 0..end-1. Operations check their ids only if the host can read
 * backend memory; otherwise call this before copying ids there.
 * errors: EINVAL, naming op, name, index and id */
kg_status kg_ids_check(const char *op, const char *name, const int32_t *ids, int64_t n,
                       int64_t end, struct kg_err *err) KG_MUST_CHECK;

/* ---- operations ---- */

/* C = op(A) op(B), or C += op(A) op(B) if `accumulate`.
 * a and b have one dtype (bf16 or fp32); c is fp32, or for NT and NN without accumulate
 * also a's dtype. b is in rows, or for NT and NN in panels (same bits, no packing).
 * numerics: see kg_matmul_kind.   errors: ESHAPE, EDTYPE, EINVAL (layout), ENOMEM */
kg_status kg_op_matmul(const struct kg_backend *be, struct kg_mat c, struct kg_mat a,
                       struct kg_mat b, enum kg_matmul_kind kind, bool accumulate,
                       struct kg_err *err) KG_MUST_CHECK;
/* c = old + a b^T, with the bits of copying old to c and then accumulating; c and old are
 * fp32, and the same memory or disjoint.   errors: as kg_op_matmul, EINVAL (overlap) */
kg_status kg_op_matmul_onto(const struct kg_backend *be, struct kg_mat c,
                            struct kg_mat old, struct kg_mat a, struct kg_mat b,
                            struct kg_err *err) KG_MUST_CHECK;
/* c = a b^T as by kg_op_matmul, for each of n products with the left operand a. A thread
 * may start the next product before others finish one.   n: 1 to KG_PRODUCTS_AT_ONCE
 * errors: as kg_op_matmul */
kg_status kg_op_matmul_shared(const struct kg_backend *be, const struct kg_product *to,
                              int n, struct kg_mat a, struct kg_err *err) KG_MUST_CHECK;
/* c (=|+=) A B + A2 B2, NT or NN, in one pass over c: the two products of kg_op_matmul
 * are added in fp32 in this order and rounded once. The bits equal
 *     wide (=|+=) A B;   wide += A2 B2;   c <- wide
 * wide: fp32 scratch of c's shape; c itself if that is fp32
 * errors: those of kg_op_matmul for either product; ESHAPE (a product has no factors) */
kg_status kg_op_matmul_two(const struct kg_backend *be, struct kg_mat c,
                           const struct kg_factors f[2], struct kg_mat wide,
                           enum kg_matmul_kind kind, bool accumulate,
                           struct kg_err *err) KG_MUST_CHECK;

/* Maximum workspace of products with a bf16 weight (rows, cols): a copy of the weight,
 * and KG_PRODUCT_TRIED rows of operands and results for trials of algorithms
 * (cuda/product_blas.cu). For a head, rows: the width of KG_HEAD_STRIP_TILES tiles. */
enum { KG_PRODUCT_TRIED = 4096, KG_PRODUCT_ROOM_ALIGN = 256 };
static inline uint64_t kg_product_room(int64_t rows, int64_t cols)
{
    const int64_t less = rows < cols ? rows : cols, more = rows + cols - less;
    const int64_t row = 2 * less + 4 * more + 8; /* bf16, fp32, digest */

    return (uint64_t)(2 * rows * cols + KG_PRODUCT_TRIED * row +
                      3 * KG_PRODUCT_ROOM_ALIGN);
}
/* Makes the workspace of products at least `bytes` large, so that products that need no
 * more cannot run out of memory. It stays allocated.   errors: ENOMEM */
kg_status kg_op_reserve(const struct kg_backend *be, uint64_t bytes,
                        struct kg_err *err) KG_MUST_CHECK;

/* x[n,d] = table[tokens[n], d].   x (N,D) fp32 out; table (V,D) ct, rows or panels
 * errors: ESHAPE, EINVAL (token id) */
kg_status kg_op_embed(const struct kg_backend *be, struct kg_mat x, struct kg_mat table,
                      struct kg_ivec tokens, struct kg_err *err) KG_MUST_CHECK;
/* dtable[tokens[n], d] += dx[n,d], in token order.   dtable (V,D) fp32; dx (N,D) fp32 */
kg_status kg_op_embed_bwd(const struct kg_backend *be, struct kg_mat dtable,
                          struct kg_mat dx, struct kg_ivec tokens,
                          struct kg_err *err) KG_MUST_CHECK;

/* Rows of a norm: see kg_op_rmsnorm. */
static inline int64_t kg_norm_rows(struct kg_mat x, struct kg_vec w)
{
    return w.n > 0 ? x.rows * (x.cols / w.n) : 0;
}
/* y[n,d] = w[d] x[n,d] inv[n],   inv[n] = 1 / sqrt(mean_d x^2 + eps)
 * y (N,D) fp32 or ct out, may be x itself; inv (N) out, may be empty; x (N,D) fp32; w (D)
 * fp32. To norm heads separately, pass x and y with P D columns: each row counts as P
 * rows, and inv has N P values. The same holds for kg_op_rmsnorm_bwd. */
kg_status kg_op_rmsnorm(const struct kg_backend *be, struct kg_mat y, struct kg_vec inv,
                        struct kg_mat x, struct kg_vec w, float eps,
                        struct kg_err *err) KG_MUST_CHECK;
/* dx[n,d] (=|+=) inv[n] (w[d] dy[n,d] - x[n,d] inv[n]^2 mean_e(w[e] dy[n,e] x[n,e]))
 * dw[d] += sum_n dy x inv
 * dx, dy, x (N,D) fp32; dw (D), may be empty; dx may be dy if not accumulating */
kg_status kg_op_rmsnorm_bwd(const struct kg_backend *be, struct kg_mat dx,
                            bool accumulate, struct kg_vec dw, struct kg_mat dy,
                            struct kg_mat x, struct kg_vec w, struct kg_vec inv,
                            struct kg_err *err) KG_MUST_CHECK;

/* y[n,d] = w[d] c[n,d] inv[n] + b[d],   c = x - mean_d x,   inv[n] = 1 / sqrt(mean_d c^2
 * + eps);   for encoders, so without a backward
 * y (N,D) fp32 or ct out, may be x itself; x (N,D) fp32; w, b (D)
 * source: Ba et al. 2016 */
kg_status kg_op_layernorm(const struct kg_backend *be, struct kg_mat y, struct kg_mat x,
                          struct kg_vec w, struct kg_vec b, float eps,
                          struct kg_err *err) KG_MUST_CHECK;
/* y = x (1 + erf(x / sqrt 2)) / 2, within 3e-7 (1 + |y|);   without a backward
 * y, x (N,F) fp32 or ct; y may be x itself   source: Hendrycks and Gimpel 2016 */
kg_status kg_op_gelu(const struct kg_backend *be, struct kg_mat y, struct kg_mat x,
                     struct kg_err *err) KG_MUST_CHECK;

/* y[n,d] += b[d]  (y fp32);   db[d] += sum_n dy[n,d]  (dy fp32 or ct) */
kg_status kg_op_bias(const struct kg_backend *be, struct kg_mat y, struct kg_vec b,
                     struct kg_err *err) KG_MUST_CHECK;
kg_status kg_op_bias_bwd(const struct kg_backend *be, struct kg_vec db, struct kg_mat dy,
                         struct kg_err *err) KG_MUST_CHECK;

/* Rotary position embedding in place, in HF's half-split layout. For i < h, with
 * a = pos inv_freq[i] and f = attention_factor:
 *   (x_i, x_{i+h}) <- f (x_i cos a - x_{i+h} sin a,  x_{i+h} cos a + x_i sin a)
 * x (N, heads*hd) fp32, hd even; pos (N); inv_freq (h), 1 <= h <= hd/2: the values of a
 * head from 2h on are unchanged; inverse: rotates back (the backward)
 * numerics: a in fp32 as HF; cos a and sin a within 2^-22 for |a| < 2^20; products in
 * fp32 */
kg_status kg_op_rope(const struct kg_backend *be, struct kg_mat x,
                     const struct kg_turn *by, bool inverse,
                     struct kg_err *err) KG_MUST_CHECK;

/* For each of n: out = x + bias (kg_op_bias), then rotated (kg_op_rope) if `turned`, then
 * rounded once. With a pool, pool[rows[i]] = out[i], and out may be left undefined.
 * n: 1 to KG_HEADS_AT_ONCE, each with N rows
 * errors: those of kg_op_bias, kg_op_rope, kg_op_cast and kg_op_scatter_rows */
kg_status kg_op_heads(const struct kg_backend *be, const struct kg_heads *h, int n,
                      const struct kg_turn *by, struct kg_err *err) KG_MUST_CHECK;

/* h = silu(gate) * up,  silu(x) = x / (1 + exp(-x)).   all: (N,F) ct; computed in fp32 */
kg_status kg_op_swiglu(const struct kg_backend *be, struct kg_mat h, struct kg_mat gate,
                       struct kg_mat up, struct kg_err *err) KG_MUST_CHECK;
/* dgate, dup (N,F) ct out; dh (N,F) fp32 or ct; dgate may share memory with gate, dup
 * with up */
kg_status kg_op_swiglu_bwd(const struct kg_backend *be, struct kg_mat dgate,
                           struct kg_mat dup, struct kg_mat dh, struct kg_mat gate,
                           struct kg_mat up, struct kg_err *err) KG_MUST_CHECK;

/* h = gelu(gate) * up, and its gradients; operands as kg_op_swiglu:
 *     gelu(x) = x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2 */
kg_status kg_op_geglu(const struct kg_backend *be, struct kg_mat h, struct kg_mat gate,
                      struct kg_mat up, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_op_geglu_bwd(const struct kg_backend *be, struct kg_mat dgate,
                          struct kg_mat dup, struct kg_mat dh, struct kg_mat gate,
                          struct kg_mat up, struct kg_err *err) KG_MUST_CHECK;

/* dst = src in dst's dtype and layout; at most one of the two is in panels */
kg_status kg_op_cast(const struct kg_backend *be, struct kg_mat dst, struct kg_mat src,
                     struct kg_err *err) KG_MUST_CHECK;

/* pool[rows[n]] = src[n], rows distinct;   dst[n] = src[rows[n]]   (same dtype) */
kg_status kg_op_scatter_rows(const struct kg_backend *be, struct kg_mat pool,
                             struct kg_ivec rows, struct kg_mat src,
                             struct kg_err *err) KG_MUST_CHECK;
kg_status kg_op_gather_rows(const struct kg_backend *be, struct kg_mat dst,
                            struct kg_mat src, struct kg_ivec rows,
                            struct kg_err *err) KG_MUST_CHECK;
/* dst[n] = +0 + sum_i src[places[i]],   ends[n-1] <= i < ends[n], ends[-1] = 0
 * dst (N,D) and src fp32; ends (N), ascending; places (ends[N-1]) rows of src
 * numerics: added in order of i */
kg_status kg_op_sum_rows(const struct kg_backend *be, struct kg_mat dst,
                         struct kg_mat src, struct kg_ivec ends, struct kg_ivec places,
                         struct kg_err *err) KG_MUST_CHECK;

/* Chooses a token's experts and their weights:
 *   p[n,e] = softmax of logits[n]; ids[n] the K largest, or given[n] unless `given` is
 *   empty or given[n,0] is -1
 *   weight[n,k] = p[n,ids[n,k]], divided by its sum over k if `normalise`; place, token
 *   and first as in struct kg_route.
 * r: its arrays are out; logits (N,E) fp32; given (N K) ids of another forward, or empty
 * numerics: exp of differences to the largest; sums from +0 in order of experts or slots.
 * errors: ESHAPE, EINVAL (invalid expert) */
kg_status kg_op_route(const struct kg_backend *be, const struct kg_route *r,
                      struct kg_mat logits, struct kg_ivec given,
                      struct kg_err *err) KG_MUST_CHECK;
/* dlogits[n,e] = p (g - sum_f p[f] g[f]),   g[n,e] = dp[e] + dweight[n,k] if ids[n,k] is
 * e, where `normalise` first takes dweight back through the division
 * dlogits (N,E) fp32 out; dweight (N,K) fp32; dp (E) the same for all tokens, or empty */
kg_status kg_op_route_bwd(const struct kg_backend *be, struct kg_mat dlogits,
                          const struct kg_route *r, struct kg_mat dweight,
                          struct kg_vec dp, struct kg_err *err) KG_MUST_CHECK;

/* One product of kg_op_matmul per expert, over the rows at its places, so a row's bits do
 * not depend on other tokens. If a library computes the device's other bf16 products,
 * kedge's own kernel for the matrix instruction still computes these.
 *   NT, NN: rows first[e].. of c are the product of these rows of a and matrix e of b
 *   TN: matrix e of c is the product of rows first[e].. of a and of b
 * b (for TN: c) is expert 0's matrix.   errors: as kg_op_matmul; ESHAPE also for g */
kg_status kg_op_matmul_groups(const struct kg_backend *be, struct kg_mat c,
                              struct kg_mat a, struct kg_mat b, const struct kg_groups *g,
                              enum kg_matmul_kind kind, bool accumulate,
                              struct kg_err *err) KG_MUST_CHECK;

/* y[n,d] (=|+=) sum_k weight[n,k] x[place[n,k],d]: one chain from +0 in order of slots,
 * added to y.
 * y (N,D) fp32; x (R,D) fp32; place (N K), or empty: x[n K + k]; weight (N,K) fp32, its
 * data NULL for 1 */
kg_status kg_op_combine(const struct kg_backend *be, struct kg_mat y, struct kg_mat x,
                        struct kg_mat weight, struct kg_ivec place, bool accumulate,
                        struct kg_err *err) KG_MUST_CHECK;
/* Backward of y = sum weight W x. dx holds dy W for every place; w is the place's weight:
 *   dweight = sum_f dx[f] x[f];   dx <- w dx;   x <- w x, whose product with dy is dW
 * dweight (N,K) fp32 out; dx (R,F) fp32; x (R,F) ct; place as in kg_op_combine */
kg_status kg_op_combine_bwd(const struct kg_backend *be, struct kg_mat dweight,
                            struct kg_mat dx, struct kg_mat x, struct kg_mat weight,
                            struct kg_ivec place, struct kg_err *err) KG_MUST_CHECK;

/* y = 1 / (1 + exp(-x)); dx = dy y (1 - y); may be in place */
kg_status kg_op_sigmoid(const struct kg_backend *be, struct kg_vec y, struct kg_vec x,
                        struct kg_err *err) KG_MUST_CHECK;
kg_status kg_op_sigmoid_bwd(const struct kg_backend *be, struct kg_vec dx,
                            struct kg_vec dy, struct kg_vec y,
                            struct kg_err *err) KG_MUST_CHECK;
/* The first operation of experts that a backend lacks; NULL: it lacks none, or is for
 * planning only. */
const char *kg_experts_missing(const struct kg_backend *be);

/* Grouped-query attention, causal or both ways, online softmax over key blocks of
 * KG_KV_BLOCK from position 0; blocks outside a window are skipped.
 * o (N, H*hd) ct out; lse (N H) out, log sum exp of the scaled scores, may be empty; o
 * must not share memory with a->q
 * numerics: each (query row, head) is one fixed sequence of fp32 FMAs, the same for 1 or
 * many query rows. With a device's matrix instruction, the instruction's sums replace the
 * FMAs, and softmax weights are rounded to bf16
 * errors: ESHAPE, EDTYPE, EINVAL */
kg_status kg_op_attention(const struct kg_backend *be, struct kg_mat o, struct kg_vec lse,
                          const struct kg_attn *a, struct kg_err *err) KG_MUST_CHECK;
/* dq (N,H*hd), dk, dv (rows of k, Hk*hd) fp32, overwritten; dout (N,H*hd) fp32 or ct.
 * Requires causal attention and no table of blocks. Sequences share no keys, not even
 * those before pos, and are ordered by their keys.
 * numerics: as the forward. A device's matrix instruction sums dk and dv per query head,
 * over query rows in order from the first row that sees the key's block, and then over
 * the heads in order.   errors: as the forward, EUNSUPPORTED (both_ways)
 * source: Dao et al. 2022 */
kg_status kg_op_attention_bwd(const struct kg_backend *be, struct kg_mat dq,
                              struct kg_mat dk, struct kg_mat dv, struct kg_mat dout,
                              struct kg_mat o, struct kg_vec lse, const struct kg_attn *a,
                              struct kg_err *err) KG_MUST_CHECK;

/* Log-probs, entropy, top-k from hidden states, by vocabulary tiles. The maximum and sums
 * of each (row, tile) are combined in tile order in double, so a row's bits do not depend
 * on N, on the other outputs or on the threads.   memory: O(N tiles) statistics, and one
 * tile of logits per thread.
 * errors: ESHAPE, EDTYPE, EINVAL (id out of range) */
kg_status kg_op_head(const struct kg_backend *be, const struct kg_head_out *out,
                     const struct kg_head *h, struct kg_err *err) KG_MUST_CHECK;
/* Gradients of hidden states and head weights by the rule of struct kg_head_grad.
 * errors: as kg_op_head */
kg_status kg_op_head_bwd(const struct kg_backend *be, const struct kg_head_grad *g,
                         const struct kg_head *h, struct kg_err *err) KG_MUST_CHECK;

/* kg_op_head, then draws a token for every row on the backend. d->how, d->drawn and
 * out->lse must be set; out->logits and h's inv_temp, target, indices, sets and anchor
 * must be NULL.
 * numerics: token, logp and kept set equal kg_sampler_draw's on the same logits, bit for
 * bit.
 * errors: as kg_op_head, EUNSUPPORTED if the backend has no such slot */
kg_status kg_op_draw(const struct kg_backend *be, const struct kg_draws *d,
                     const struct kg_head_out *out, const struct kg_head *h,
                     struct kg_err *err) KG_MUST_CHECK;

/* tokens[n] = drawn[from[n]].token where from[n] >= 0: feeds drawn tokens that the host
 * has not seen. tokens (N); from (N) rows of drawn, or -1; all in backend memory
 * errors: EINVAL (NULL), EUNSUPPORTED if the backend has no such slot */
kg_status kg_op_feed(const struct kg_backend *be, int32_t *tokens, struct kg_ivec from,
                     const struct kg_drawn *drawn, struct kg_err *err) KG_MUST_CHECK;

/* Calls body(arg), which must only call operations: no copies from or to the host, no
 * allocation, no dependence on results. For equal keys body must call the same operations
 * on the same memory, so that a backend may record one call and later launch the record
 * instead of calling body.   errors: those of body, EDEVICE */
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
 * x is not stored: kg_op_schedule_free_average computes it from y and z.
 * y, z, g (n) fp32; v (1,n) fp32 or bf16; b1 in (0, 1]
 * errors: EINVAL.   source: Defazio et al. 2024, arXiv 2405.15682 */
kg_status kg_op_schedule_free(const struct kg_backend *be, struct kg_vec y,
                              struct kg_vec z, struct kg_mat v, struct kg_vec g,
                              const struct kg_adamw *a, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_op_schedule_free_average(const struct kg_backend *be, struct kg_vec x,
                                      struct kg_vec y, struct kg_vec z, float beta1,
                                      struct kg_err *err) KG_MUST_CHECK;

/* avg = eta avg + (1 - eta) w, fp32, eta in [0, 1]. Elements equal to those of w stay
 * exactly equal; eta 0 copies */
kg_status kg_op_ema(const struct kg_backend *be, struct kg_vec avg, struct kg_vec w,
                    float eta, struct kg_err *err) KG_MUST_CHECK;
/* y += x;   y *= factor, fp32 */
kg_status kg_op_add(const struct kg_backend *be, struct kg_vec y, struct kg_vec x,
                    struct kg_err *err) KG_MUST_CHECK;
kg_status kg_op_scale(const struct kg_backend *be, struct kg_vec y, float factor,
                      struct kg_err *err) KG_MUST_CHECK;
/* *out = sum_i (x_i - minus_i)^2 in double over a fixed partition; if minus is empty, it
 * counts as 0. A NaN in x or minus makes *out NaN */
kg_status kg_op_sum_squares(const struct kg_backend *be, double *out, struct kg_vec x,
                            struct kg_vec minus, struct kg_err *err) KG_MUST_CHECK;

/* For benchmarks: executes at least `flops` floating-point operations with the
 * multiply-add instructions of products of type t, on registers only. Its FLOP/s are the
 * machine's peak. */
kg_status kg_op_peak(const struct kg_backend *be, enum kg_dtype t, double flops,
                     struct kg_err *err) KG_MUST_CHECK;

#endif
