/* The buffers of one forward and backward, and the walk that forward.c and
 * backward.c share.
 *
 * Internal to src/model. Letters as in tensor/backend.h; Q = H hd, Kd = Hk hd. Every
 * buffer has max_tokens rows of which a walk uses the first N.
 */
#ifndef KG_MODEL_ACTS_INTERNAL_H
#define KG_MODEL_ACTS_INTERNAL_H

#include "model/model.h"

/* Activations of one layer's experts. R = N K rows; Fe and Fs are the widths of an expert
 * and of the shared one. */
struct kg_expert_acts {
    struct kg_route route;
    struct kg_mat gate;  /* (R,Fe) ct; the backward overwrites it with dgate */
    struct kg_mat up;    /* (R,Fe) ct */
    struct kg_mat sgate; /* (N,Fs) ct; no data without a shared expert */
    struct kg_mat sup;   /* (N,Fs) ct; as sgate; if kg_joins, the adjacent columns */
    struct kg_mat share; /* (N,1) fp32: sigmoid, weight of the shared expert */
};
/* Scratch for experts. */
struct kg_expert_scratch {
    struct kg_mat logits; /* (N,E) fp32, then their gradients */
    struct kg_mat narrow; /* (N,E) ct: gradients of logits, rounded */
    struct kg_mat rows;   /* (R,D) ct, grouped by expert: rows of h2, then of dy */
    struct kg_mat act;    /* (R,Fe) ct */
    struct kg_mat dact;   /* (R,Fe) fp32 */
    struct kg_mat out;    /* (R,D) fp32: output of experts, then the gradient of rows */
    struct kg_mat dw;     /* (N,K) fp32: gradient of weights */
    struct kg_mat sact;   /* (N,Fs) ct */
    struct kg_mat dsact;  /* (N,Fs) fp32 */
    struct kg_mat dshare; /* (N,1) fp32 */
    struct kg_mat sone;   /* (N,1) ct: dshare, rounded */
};

/* Activations of one layer. */
struct kg_layer_acts {
    struct kg_vec inv1; /* (N) norm1's inverse RMS */
    struct kg_mat h1;   /* (N,D) ct, normed input */
    /* (N,Q) and (N,Kd) fp32, before the head norm; only with QK-norm. If kg_joins, they
     * are adjacent columns, with v_raw; otherwise v_raw has no data */
    struct kg_mat q_raw, k_raw, v_raw;
    struct kg_vec inv_q; /* (N,H), or (N) for a norm over the whole projection */
    struct kg_vec inv_k; /* (N,Hk) */
    struct kg_mat q;     /* (N,Q) ct, rotated; the backward overwrites it with dq */
    struct kg_mat k;     /* (N,Kd) ct */
    struct kg_mat v;     /* (N,Kd) ct */
    struct kg_mat o;     /* (N,Q) ct, attention output */
    struct kg_vec lse;   /* (N,H) */
    struct kg_mat x_mid; /* (N,D) fp32, residual stream between attention and FFN */
    struct kg_vec inv2;  /* (N) norm2's inverse RMS */
    struct kg_mat h2;    /* (N,D) ct */
    struct kg_mat gate;  /* (N,F) ct; the backward overwrites it with dgate */
    struct kg_mat up;    /* (N,F) ct; if kg_joins, the columns after gate's */
    struct kg_expert_acts experts; /* replace gate and up in a layer with experts */
    /* with norms after attention and feed-forward: their outputs */
    struct kg_mat out1; /* (N,D) fp32 */
    struct kg_mat out2; /* (N,D) fp32 */
    struct kg_vec inv3; /* (N) post1's inverse RMS */
    struct kg_vec inv4; /* (N) post2's inverse RMS */
};

/* Keys of all J positions of all sequences, for a pack with shared prefixes. */
struct kg_key_acts {
    struct kg_mat k, v;   /* (J,Kd) ct */
    struct kg_mat dk, dv; /* (J,Kd) fp32 */
};

/* Consecutive rows of a pack with the same adapters. */
struct kg_mix_run {
    const struct kg_model *model; /* the model of these adapters */
    int64_t first, n;
};

/* A pack in the form that operations take. */
struct kg_staged {
    int64_t n;
    struct kg_ivec tokens; /* (N) */
    struct kg_ivec pos;    /* (N) */
    struct kg_ivec rows;   /* (n_rows) indices into the pack */
    struct kg_ivec keys;   /* (J) key rows of all sequences; empty: their own */
    /* before a backward: `keys` holds row n at places[i], key_ends[n-1] <= i <
     * key_ends[n], in ascending order; places (J), key_ends (N) */
    struct kg_ivec key_ends, places;
    struct kg_ivec blocks;  /* tables of all sequences; empty without a cache */
    struct kg_ivec experts; /* (Lx,N,K) preset for tokens; or empty */
    /* by kind of layer; without a cache, KG_KV_ALL serves every layer.
     * kv_rows: (N) cache row that each token's key and value are written to; without a
     * cache, the token's own row */
    struct kg_ivec kv_rows[KG_KV_KINDS];
    const struct kg_attn_seq *seqs[KG_KV_KINDS]; /* (n_seqs) */
    int32_t n_seqs;
    int32_t most_keys;         /* of a sequence, rounded up to a power of two */
    const struct kg_draw *how; /* (n_rows) or NULL */
    const float *inv_temp;     /* (n_rows) or NULL */
    int32_t n_runs;            /* number of kg_acts.runs in use */
    struct kg_ivec from;       /* (N) see kg_op_feed; or empty */
};
/* Staging of a pack: host buffers (kg_stage_banks, one per step that may be in flight)
 * and the backend's copy. */
struct kg_stage {
    int32_t *host;  /* (banks, room) owned, from kg_buf_pin */
    int32_t *there; /* (room) owned, in the backend's memory */
    int64_t room;
    int bank;      /* index of the next pack's bank */
    uint64_t mark; /* of kg_buf_mark: a copy that the next pack waits for; 0: none */
};

struct kg_acts {
    const struct kg_backend *backend;
    struct kg_stage stage;
    struct kg_staged pack; /* the pack of the last forward */
    int64_t max_tokens;
    bool checkpoint;
    int32_t layers;
    int32_t rank;            /* maximum rank of adapters */
    bool mixed;              /* adapters of several models */
    struct kg_mix_run *runs; /* owned, on the host: (max_tokens) if mixed, else (1) */
    enum kg_dtype ct;
    struct kg_mat *x; /* (L+1) (N,D) fp32: input of every layer, and the last output */
    struct kg_layer_acts *layer; /* (L), or (1) with checkpointing */
    struct kg_vec inv;           /* (N) the final norm's inverse RMS */
    struct kg_mat hidden;        /* (N,D) ct */
    /* scratch of forward and backward */
    struct kg_mat act; /* (N,F) ct: silu(gate) up; then its gradient */
    struct kg_mat qf;  /* (N,Q) fp32: dq */
    struct kg_mat kf;  /* (N,Kd) fp32: dk; follows qf in memory, as vf follows kf */
    struct kg_mat vf;  /* (N,Kd) fp32: dv; in the forward, they hold q, k, v */
    struct kg_mat dy;  /* (N,D) ct: gradient of the residual stream, rounded */
    /* (N,D) fp32: gradient of h1 or h2; output of a branch before it is added to x */
    struct kg_mat dh;
    struct kg_mat dout; /* (N,Q) ct: gradient of o */
    /* (N,F) fp32: gate or up before rounding, if they have biases and ct is not fp32 */
    struct kg_mat gate_wide;
    /* for adapters only */
    struct kg_mat low_wide; /* (N,r) fp32: x A^T or dy B; with experts (R,r) */
    struct kg_mat low;      /* (N,r) ct: s low_wide, rounded; is low_wide if ct is fp32 */
    struct kg_vec wide;     /* fp32 sums of the largest result; none if ct is fp32 */
    struct kg_expert_scratch experts;
    int32_t routed;     /* Lx: number of layers with experts */
    int32_t k;          /* K */
    int32_t *chosen;    /* (Lx,N,K) experts of every token; routes point into it */
    int32_t *chosen_h;  /* copy of chosen on the host; owned, NULL before first use */
    bool load_sent;     /* after a wait, chosen_h and p_sum_h are the last forward's */
    uint64_t load_mark; /* marks the end of their copies */
    /* (E) sum over tokens and layers of p in the last kept forward, if `balanced` */
    struct kg_vec p_sum;
    float *p_sum_h;        /* copy of p_sum on the host, after chosen_h */
    struct kg_vec balance; /* (E) dloss/dp, the same for all tokens and layers */
    bool balanced;
    unsigned char *keys_at; /* memory of kg_walk_keys: overlaps hidden, act, dy and dh */
    int64_t max_keys;       /* limit of J */
    unsigned char *slab;    /* owned, in the backend's memory; holds every buffer above */
    int64_t kept;           /* N of the last kept forward; 0: none */
};

/* Whether one product computes q, k and v: if weights have layout KG_ROWS, matrices that
 * follow each other in memory form one matrix. */
static inline bool kg_joins(const struct kg_model *m)
{
    return m->backend->weights == KG_ROWS;
}

/* One pass through the layers. */
struct kg_walk {
    const struct kg_model *m;
    struct kg_acts *acts;
    const struct kg_staged *pack;
    struct kg_kv *kv; /* NULL: no cache */
    bool keep;
};

/* kg_acts_create with room to stage `more` further numbers, as in kg_acts_bytes. */
kg_status kg_acts_create_more(struct kg_acts **out, const struct kg_model *m,
                              int64_t max_tokens, bool checkpoint, int64_t more,
                              struct kg_err *err) KG_MUST_CHECK;

/* pack.c: checks the pack of f and copies it to the backend, as a->pack.
 * errors: ESHAPE, EINVAL, ENOMEM */
kg_status kg_stage_pack(struct kg_acts *a, const struct kg_model *m,
                        const struct kg_forward *f, struct kg_err *err) KG_MUST_CHECK;
/* Maximum rank of the adapters of m and of models mixed in; 0: none. */
int32_t kg_stage_rank(const struct kg_model *m);
/* Number of int32 staged at first for packs of max_tokens; block tables may need more. */
int64_t kg_stage_ints(const struct kg_model_config *c, int64_t max_tokens);
/* Number of banks, one per step that may be in flight. */
static inline int kg_stage_banks(const struct kg_backend *be) { return be->feed ? 2 : 1; }
static inline int32_t *kg_stage_host(const struct kg_stage *s, int bank)
{
    return s->host + bank * s->room;
}
/* Grows the staging buffers, keeping their contents; waits for copies in flight. */
kg_status kg_stage_room(struct kg_stage *s, const struct kg_backend *be, int64_t ints,
                        struct kg_err *err) KG_MUST_CHECK;
void kg_stage_release(struct kg_stage *s, const struct kg_backend *be);

/* The buffers of layer l, restricted to the first N rows. */
struct kg_layer_acts kg_walk_layer(const struct kg_walk *p, int32_t l);
/* The preset experts of layer l's tokens; or empty. */
struct kg_ivec kg_walk_given(const struct kg_walk *p, int32_t l);
/* The scratch of experts, restricted to the rows in use. */
struct kg_expert_scratch kg_walk_experts(const struct kg_walk *p);
/* The residual stream at the input of layer l (l = L: the last output), first N rows. */
struct kg_mat kg_walk_x(const struct kg_walk *p, int32_t l);
/* Scratch for this pack's attention; nothing else uses its memory meanwhile. */
struct kg_key_acts kg_walk_keys(const struct kg_walk *p);
/* *out <- the operands of layer l's attention within the pack. For a pack with shared
 * prefixes, gathers the keys of each sequence. */
kg_status kg_walk_attn(struct kg_attn *out, const struct kg_walk *p, int32_t l,
                       const struct kg_layer_acts *a, struct kg_err *err) KG_MUST_CHECK;
/* Rotates gradients of queries or keys of layer l back by their positions. */
kg_status kg_walk_unrotate(const struct kg_walk *p, int32_t l, struct kg_mat x,
                           struct kg_err *err) KG_MUST_CHECK;
/* act = f(gate) up; and its gradient, written over gate and up. */
kg_status kg_walk_gated(const struct kg_walk *p, const struct kg_layer_acts *a,
                        struct kg_mat act, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_walk_gated_bwd(const struct kg_walk *p, const struct kg_layer_acts *a,
                            struct kg_mat dact, struct kg_err *err) KG_MUST_CHECK;

/* Computes layer l from kg_walk_x(p, l). `whole`: up to kg_walk_x(p, l+1); else up to
 * gate and up, as the backward of a checkpointed layer needs. */
kg_status kg_layer_forward(const struct kg_walk *p, int32_t l, bool whole,
                           struct kg_err *err) KG_MUST_CHECK;

/* experts.c. x_out = x_mid + the experts of h2 and the shared one; if not `whole`, only
 * their gate and up. a: activations of a layer with experts, with h2 computed */
kg_status kg_experts_forward(const struct kg_walk *p, int32_t l,
                             const struct kg_layer_acts *a, bool whole,
                             struct kg_err *err) KG_MUST_CHECK;
/* dh (N,D) fp32 out: the gradient of h2. dy (N,D) ct: the gradient of x_out; may share
 * memory with dh */
kg_status kg_experts_bwd(const struct kg_walk *p, int32_t l,
                         const struct kg_layer_acts *a, struct kg_mat dy,
                         struct kg_mat dh, struct kg_grads grads,
                         struct kg_err *err) KG_MUST_CHECK;

/* linear.c. y = x W^T, or y += with accumulate. With an adapter
 *     y = x W^T + t B^T,   t = s (x A^T)
 * where t is computed in fp32 and rounded once to ct. y is an fp32 sum of its old value,
 * x W^T and t B^T in that order, rounded at most once.
 * y (N,rows) fp32, or ct without accumulate; x (N,cols) ct */
kg_status kg_linear(const struct kg_walk *p, struct kg_mat y, struct kg_mat x,
                    const struct kg_param *w, bool accumulate,
                    struct kg_err *err) KG_MUST_CHECK;
/* y = old + the product of kg_linear; both fp32. They may be one matrix. */
kg_status kg_linear_onto(const struct kg_walk *p, struct kg_mat y, struct kg_mat old,
                         struct kg_mat x, const struct kg_param *w,
                         struct kg_err *err) KG_MUST_CHECK;
/* y[j] = x w[j]^T for each of n weights. Rows without adapters take one operation: one
 * product, if the weights follow each other in memory and all y are adjacent columns of a
 * matrix. n: at most KG_PRODUCTS_AT_ONCE */
kg_status kg_linear_shared(const struct kg_walk *p, int n, const struct kg_mat *y,
                           struct kg_mat x, const struct kg_param *const *w,
                           struct kg_err *err) KG_MUST_CHECK;
/* dW += dy^T x;   dx = dy W, or dx += with accumulate. A frozen W gets no gradient. With
 * an adapter
 *     dB += dy^T t;   dA += u^T x,   u = s (dy B);   dx += u A
 * and u and dx are rounded as t and y are.
 * dy (N,rows) ct; x (N,cols) ct, may be dx; dx fp32, or ct without accumulate; no data:
 * only gradients of trained parameters */
kg_status kg_linear_bwd(const struct kg_walk *p, struct kg_grads grads,
                        const struct kg_param *w, struct kg_mat dy, struct kg_mat x,
                        struct kg_mat dx, bool accumulate,
                        struct kg_err *err) KG_MUST_CHECK;

/* kg_linear for experts: each row of y uses its expert's matrix. of_0: matrix of expert
 * 0 */
kg_status kg_linear_experts(const struct kg_walk *p, const struct kg_route *r,
                            struct kg_mat y, struct kg_mat x, struct kg_param *of_0,
                            struct kg_err *err) KG_MUST_CHECK;
/* kg_linear_bwd in two parts, so that x may change in between: _grads adds gradients of
 * trained parameters, _back computes dx in fp32. r: assigns rows to experts, and w is the
 * matrix of expert 0; NULL: w serves all rows */
kg_status kg_linear_grads(const struct kg_walk *p, const struct kg_route *r,
                          struct kg_grads grads, struct kg_param *w, struct kg_mat dy,
                          struct kg_mat x, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_linear_back(const struct kg_walk *p, const struct kg_route *r,
                         struct kg_param *w, struct kg_mat dx, struct kg_mat dy,
                         bool accumulate, struct kg_err *err) KG_MUST_CHECK;

/* The gradient of a parameter within grads; empty for a frozen one. */
static inline struct kg_vec kg_grad_of(struct kg_grads grads, const struct kg_param *p)
{
    if (p->offset < 0)
        return (struct kg_vec){0};
    return kg_vec(grads.data + (p->offset - grads.first), p->rows * p->cols);
}
static inline struct kg_mat kg_grad_mat(struct kg_grads grads, const struct kg_param *p)
{
    if (p->offset < 0)
        return (struct kg_mat){0};
    return kg_mat(grads.data + (p->offset - grads.first), KG_F32, p->rows, p->cols);
}

/* All elements of a matrix with contiguous rows. */
static inline struct kg_vec kg_all_of(struct kg_mat x)
{
    return kg_vec(x.data, x.rows * x.cols);
}

/* Norm weights and biases are fp32 on every path. */
static inline struct kg_vec kg_param_vector(const struct kg_param *p)
{
    return kg_vec(p->compute.data, p->cols);
}

#endif
