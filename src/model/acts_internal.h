/* The buffers of one forward and backward, and the walk that forward.c and
 * backward.c share.
 *
 * Not a contract: nothing outside src/model includes it. Letters as in tensor/backend.h;
 * Q = H hd, Kd = Hk hd. Every buffer has max_tokens rows of which a walk uses the first
 * N.
 */
#ifndef KG_MODEL_ACTS_INTERNAL_H
#define KG_MODEL_ACTS_INTERNAL_H

#include "model/model.h"

/* Of the experts of one layer. R = N K places, Fe and Fs the widths of an expert and of
 * the shared one. */
struct kg_expert_acts {
    struct kg_route route;
    struct kg_mat gate; /* (R,Fe) ct; the backward turns it into dgate */
    struct kg_mat up;   /* (R,Fe) ct */
    struct kg_mat
        sgate;         /* (N,Fs) ct; without data where nothing is shared, as the next */
    struct kg_mat sup; /* (N,Fs) ct */
    struct kg_mat share; /* (N,1) fp32: sigmoid, what the shared one weighs */
};
/* Scratch of the same. */
struct kg_expert_scratch {
    struct kg_mat logits; /* (N,E) fp32, then their gradients */
    struct kg_mat narrow; /* (N,E) ct: those rounded */
    struct kg_mat rows;   /* (R,D) ct, expert by expert: of h2, then of dy */
    struct kg_mat act;    /* (R,Fe) ct */
    struct kg_mat dact;   /* (R,Fe) fp32 */
    struct kg_mat out;    /* (R,D) fp32: what experts made, then the gradient of rows */
    struct kg_mat dw;     /* (N,K) fp32: of weights */
    struct kg_mat sact;   /* (N,Fs) ct */
    struct kg_mat dsact;  /* (N,Fs) fp32 */
    struct kg_mat dshare; /* (N,1) fp32 */
    struct kg_mat sone;   /* (N,1) ct: that rounded */
};

/* What one layer computes on the way from its input to its output. */
struct kg_layer_acts {
    struct kg_vec inv1;  /* (N) of norm1 */
    struct kg_mat h1;    /* (N,D) ct, normed input */
    struct kg_mat q_raw; /* (N,Q) fp32, before the norm of heads; only with QK-norm */
    struct kg_mat k_raw; /* (N,Kd) fp32 */
    struct kg_vec inv_q; /* (N,H), or (N) of a norm over the whole projection */
    struct kg_vec inv_k; /* (N,Hk) */
    struct kg_mat q;     /* (N,Q) ct, rotated; the backward turns it into dq */
    struct kg_mat k;     /* (N,Kd) ct */
    struct kg_mat v;     /* (N,Kd) ct */
    struct kg_mat o;     /* (N,Q) ct, attention output */
    struct kg_vec lse;   /* (N,H) */
    struct kg_mat x_mid; /* (N,D) fp32, residual stream between attention and FFN */
    struct kg_vec inv2;  /* (N) of norm2 */
    struct kg_mat h2;    /* (N,D) ct */
    struct kg_mat gate;  /* (N,F) ct; the backward turns it into dgate */
    struct kg_mat up;    /* (N,F) ct */
    struct kg_expert_acts experts; /* of a layer that has them, in their place */
    /* with norms behind attention and feed-forward: what these gave */
    struct kg_mat out1; /* (N,D) fp32 */
    struct kg_mat out2; /* (N,D) fp32 */
    struct kg_vec inv3; /* (N) of post1 */
    struct kg_vec inv4; /* (N) of post2 */
};

/* Keys of all J positions of all sequences of a pack that share some. */
struct kg_key_acts {
    struct kg_mat k, v;   /* (J,Kd) ct */
    struct kg_mat dk, dv; /* (J,Kd) fp32 */
};

/* Rows of a pack, one after the other, with the same adapters. */
struct kg_run {
    const struct kg_model *model; /* whose adapters */
    int64_t first, n;
};

/* A pack as operations read it. */
struct kg_staged {
    int64_t n;
    struct kg_ivec tokens;  /* (N) */
    struct kg_ivec pos;     /* (N) */
    struct kg_ivec rows;    /* (n_rows) of the pack */
    struct kg_ivec keys;    /* (J) rows of the keys of each sequence; none: their own */
    struct kg_ivec blocks;  /* of all sequences; none without a cache */
    struct kg_ivec experts; /* (Lx,N,K) given to tokens; or none */
    /* for layers of each kind; without a cache KG_KV_ALL's are every layer's */
    struct kg_ivec kv_rows[KG_KV_KINDS];         /* (N) of the pools, or the row itself */
    const struct kg_attn_seq *seqs[KG_KV_KINDS]; /* (n_seqs) */
    int32_t n_seqs;
    const struct kg_draw *how; /* (n_rows) or NULL, as the next */
    const float *inv_temp;     /* (n_rows) */
    int32_t n_runs;            /* of the acts' runs */
    struct kg_ivec from;       /* (N) see kg_op_feed; or none */
};
/* Where it is made, and its copy there. The host has as many banks as copies can be on
 * their way: the one that is written next is nobody's. */
struct kg_stage {
    int32_t *host;  /* (banks, room) owned, of kg_buf_pin */
    int32_t *there; /* (room) owned, the backend's */
    int64_t room;
    int bank;      /* of a pack: the next one */
    uint64_t mark; /* behind its last copy, where nobody else waits for that; 0: none */
};

struct kg_acts {
    const struct kg_backend *backend;
    struct kg_stage stage;
    struct kg_staged pack; /* of the last forward */
    int64_t max_tokens;
    bool checkpoint;
    int32_t layers;
    int32_t rank;        /* of adapters that there is room for */
    bool mixed;          /* with adapters of several models */
    struct kg_run *runs; /* owned, the host's: (max_tokens) if mixed, else (1) */
    enum kg_dtype ct;
    struct kg_mat *x; /* (L+1) (N,D) fp32: input of every layer, and the last output */
    struct kg_layer_acts *layer; /* (L), or (1) with checkpointing */
    struct kg_vec inv;           /* (N) of the final norm */
    struct kg_mat hidden;        /* (N,D) ct */
    /* scratch, of the forward and the backward */
    struct kg_mat act;  /* (N,F) ct: silu(gate) up; then its gradient */
    struct kg_mat qf;   /* (N,Q) fp32: q before rounding; then dq */
    struct kg_mat kf;   /* (N,Kd) fp32 */
    struct kg_mat vf;   /* (N,Kd) fp32 */
    struct kg_mat dy;   /* (N,D) ct: gradient of the residual stream, rounded */
    struct kg_mat dh;   /* (N,D) fp32: gradient of h1 or h2; a branch on its way to x */
    struct kg_mat dout; /* (N,Q) ct: gradient of o */
    struct kg_mat gate_wide; /* (N,F) fp32: gate or up before rounding, where they have
                              * biases and ct is not fp32 */
    /* of adapters, without which they are not there */
    struct kg_mat low_wide; /* (N,r) fp32: x A^T or dy B; (R,r) beside experts, as low */
    struct kg_mat low;      /* (N,r) ct: s times that; low_wide itself in fp32 */
    struct kg_vec wide;     /* fp32, the widest of all: sums before their rounding; not in
                             * fp32 */
    struct kg_expert_scratch experts;
    int32_t routed;     /* Lx: layers with experts */
    int32_t k;          /* K */
    int32_t *chosen;    /* (Lx,N,K) experts of every token, of which routes have theirs */
    int32_t *chosen_h;  /* the same on the host; owned, NULL until it is asked for */
    bool load_sent;     /* chosen_h and p_sum_h are the last forward's, once waited for */
    uint64_t load_mark; /* behind their copies */
    struct kg_vec p_sum;   /* (E) sum over tokens and layers of the last kept forward's p,
                            * where `balanced` */
    float *p_sum_h;        /* the same on the host, behind chosen_h */
    struct kg_vec balance; /* (E) dloss/dp of every token in every layer */
    bool balanced;
    unsigned char *keys_at; /* kg_walk_keys, over hidden, act, dy and dh */
    int64_t max_keys;       /* J at most */
    unsigned char *slab;    /* owned, the backend's; every buffer above lies in it */
    int64_t kept;           /* N of the last kept forward, 0 for none */
};

/* One walk through the layers. */
struct kg_walk {
    const struct kg_model *m;
    struct kg_acts *acts;
    const struct kg_staged *pack;
    struct kg_kv *kv; /* or NULL */
    bool keep;
};

/* pack.c: check the pack of f and bring it to the backend, as a->pack.
 * errors: SHAPE, EINVAL, ENOMEM */
kg_status kg_stage_pack(struct kg_acts *a, const struct kg_model *m,
                        const struct kg_forward *f, struct kg_err *err) KG_MUST_CHECK;
/* Of the adapters of m and of all that it is mixed with; 0: there are none. */
int32_t kg_stage_rank(const struct kg_model *m);
/* What is taken for packs of max_tokens at once; tables of blocks may need more. */
int64_t kg_stage_ints(const struct kg_model_config *c, int64_t max_tokens);
/* How many: one more than steps that may be begun before the first of them has ended. */
static inline int kg_stage_banks(const struct kg_backend *be) { return be->feed ? 2 : 1; }
static inline int32_t *kg_stage_host(const struct kg_stage *s, int bank)
{
    return s->host + bank * s->room;
}
/* Room that grows keeps what was there, and waits for what is on its way. */
kg_status kg_stage_room(struct kg_stage *s, const struct kg_backend *be, int64_t ints,
                        struct kg_err *err) KG_MUST_CHECK;
void kg_stage_release(struct kg_stage *s, const struct kg_backend *be);

/* The first N rows of every buffer of layer l, as this walk uses them. */
struct kg_layer_acts kg_walk_layer(const struct kg_walk *p, int32_t l);
/* Of layer l's tokens the experts that are given; or none. */
struct kg_ivec kg_walk_given(const struct kg_walk *p, int32_t l);
/* The first rows of the scratch of experts. */
struct kg_expert_scratch kg_walk_experts(const struct kg_walk *p);
/* The residual stream at the input of layer l (l = L: the output of the last), first N
 * rows. */
struct kg_mat kg_walk_x(const struct kg_walk *p, int32_t l);
/* Scratch of this pack's attention: nothing else stands there while it runs. */
struct kg_key_acts kg_walk_keys(const struct kg_walk *p);
/* Layer l's attention among the rows of the pack itself; of a pack that shares with the
 * keys of each sequence gathered. */
kg_status kg_walk_attn(struct kg_attn *out, const struct kg_walk *p, int32_t l,
                       const struct kg_layer_acts *a, struct kg_err *err) KG_MUST_CHECK;
/* Queries or keys of layer l turned by their positions, or back. */
kg_status kg_walk_rotate(const struct kg_walk *p, int32_t l, struct kg_mat x,
                         bool inverse, struct kg_err *err) KG_MUST_CHECK;
/* act = f(gate) up, and its gradient in the place of gate and up. */
kg_status kg_walk_gated(const struct kg_walk *p, const struct kg_layer_acts *a,
                        struct kg_mat act, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_walk_gated_bwd(const struct kg_walk *p, const struct kg_layer_acts *a,
                            struct kg_mat dact, struct kg_err *err) KG_MUST_CHECK;

/* Layer l from kg_walk_x(p, l). `whole`: on to kg_walk_x(p, l+1); else to gate and up,
 * which is what the backward of a checkpointed layer needs. */
kg_status kg_layer_forward(const struct kg_walk *p, int32_t l, bool whole,
                           struct kg_err *err) KG_MUST_CHECK;

/* experts.c. x_out = x_mid + the experts of h2 and the shared one; without `whole` to
 * their gates and ups.   a: of a layer with experts, its h2 made */
kg_status kg_experts_forward(const struct kg_walk *p, int32_t l,
                             const struct kg_layer_acts *a, bool whole,
                             struct kg_err *err) KG_MUST_CHECK;
/* dh (N,D) fp32 out: the gradient of h2, for dx (N,D) fp32 of x_out.   dy: dx in ct,
 * which may stand in dh */
kg_status kg_experts_bwd(const struct kg_walk *p, int32_t l,
                         const struct kg_layer_acts *a, struct kg_mat dy,
                         struct kg_mat dh, struct kg_grads grads,
                         struct kg_err *err) KG_MUST_CHECK;

/* linear.c. y = x W^T, or y += where accumulate, with an adapter
 *     y = x W^T + t B^T,   t = s (x A^T)
 * where t is made in fp32 and rounded once to ct, and y is a sum in fp32 (of what it
 * held, of x W^T, of t B^T, in that order) that is rounded once, if at all.
 * y (N,rows) fp32, or ct without accumulate; x (N,cols) ct */
kg_status kg_linear(const struct kg_walk *p, struct kg_mat y, struct kg_mat x,
                    const struct kg_param *w, bool accumulate,
                    struct kg_err *err) KG_MUST_CHECK;
/* dW += dy^T x;   dx = dy W, or dx += where accumulate. A frozen W gets no gradient; with
 * an adapter
 *     dB += dy^T t;   dA += u^T x,   u = s (dy B);   dx += u A
 * and u and dx are rounded as t and y are.
 * dy (N,rows) ct; x (N,cols) ct, may be dx; dx fp32, or ct without accumulate; without
 * data: gradients of what is trained alone */
kg_status kg_linear_bwd(const struct kg_walk *p, struct kg_grads grads,
                        const struct kg_param *w, struct kg_mat dy, struct kg_mat x,
                        struct kg_mat dx, bool accumulate,
                        struct kg_err *err) KG_MUST_CHECK;

/* The same of experts, of_0 expert 0's matrix: rows of y by that of their expert. */
kg_status kg_linear_experts(const struct kg_walk *p, const struct kg_route *r,
                            struct kg_mat y, struct kg_mat x, struct kg_param *of_0,
                            struct kg_err *err) KG_MUST_CHECK;
/* kg_linear_bwd in its two parts, for products whose x changes between them: gradients of
 * what is trained; dx, of fp32.   r: of experts, w expert 0's; NULL: one w for all */
kg_status kg_linear_grads(const struct kg_walk *p, const struct kg_route *r,
                          struct kg_grads grads, struct kg_param *w, struct kg_mat dy,
                          struct kg_mat x, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_linear_back(const struct kg_walk *p, const struct kg_route *r,
                         struct kg_param *w, struct kg_mat dx, struct kg_mat dy,
                         bool accumulate, struct kg_err *err) KG_MUST_CHECK;

/* The gradient of a parameter among those that are there; nothing of a frozen one. */
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

/* (N, heads*hd) seen as rows of what a norm divides: (N*heads, hd), or itself. */
static inline struct kg_mat kg_per_norm(struct kg_mat x, const struct kg_param *norm)
{
    return kg_mat(x.data, x.dtype, x.rows * (x.cols / norm->cols), norm->cols);
}
/* All elements of a matrix whose rows lie one after the other. */
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
