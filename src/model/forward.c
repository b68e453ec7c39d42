/* The transformer's forward: tokens to final-normed hidden states, for training, scoring
 * and decoding.
 *
 * There is one forward. What differs between uses is where keys are read from (this pack,
 * or the pools of the cache) and whether every layer has buffers of its own; the
 * operations and the points where bf16 rounding happens are the same, which is what makes
 * the sampler's log-prob the trainer's.
 *
 * A layer, pre-norm, with the residual stream x in fp32 and everything that products read
 * in ct:
 *     h1 = norm1(x);  q, k, v = h1 W^T + b, [norm of heads], rotate;
 *     x += attention(q, k, v) Wo^T;
 *     h2 = norm2(x);  x += (silu(h2 Wgate^T) * h2 Wup^T) Wdown^T
 * or the same of experts (experts.c).
 */
#include "model/acts_internal.h"
#include "model/model_internal.h"

#include "base/phase.h"

#include <assert.h>
#include <math.h>

/* ---- attention half ---- */
/* One of q and k: product, bias, norm of heads, rotation, all fp32, then one rounding
 * into `out`. */
struct projection {
    const struct kg_param *w, *bias, *norm; /* bias, norm NULL when absent */
    struct kg_mat h;                        /* (N,D) ct */
    struct kg_mat raw;  /* (N,heads*hd) fp32, kept for the norm's backward */
    struct kg_mat wide; /* (N,heads*hd) fp32; `out` itself when ct is fp32 */
    struct kg_mat out;  /* (N,heads*hd) ct */
    struct kg_vec inv;  /* (N heads) */
};

static kg_status project(const struct kg_walk *p, const struct projection *j,
                         struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;
    const struct kg_model_config *c = &p->m->config;
    const struct kg_mat y = j->norm ? j->raw : j->wide;
    KG_TRY(kg_linear(p, y, j->h, j->w, false, err));
    if (j->bias)
        KG_TRY(kg_op_bias(be, y, kg_param_vector(j->bias), err));
    if (j->norm)
        KG_TRY(kg_op_rmsnorm(be, kg_per_head(j->wide, c->head_dim), j->inv,
                             kg_per_head(y, c->head_dim), kg_param_vector(j->norm),
                             c->norm_eps, err));
    KG_TRY(kg_op_rope(be, j->wide, p->pack->pos, p->m->inv_freq, c->head_dim, 1.0f, false,
                      err));
    if (j->wide.data == j->out.data)
        return KG_OK;
    return kg_op_cast(be, j->out, j->wide, err);
}

/* Scratch of N rows where ct needs a rounding, else the destination itself. */
static struct kg_mat widened(const struct kg_walk *p, struct kg_mat scratch,
                             struct kg_mat out)
{
    return p->m->ct == KG_F32 ? out : kg_mat_rows(scratch, 0, p->pack->n);
}

static kg_status values(const struct kg_walk *p, const struct kg_layer_params *w,
                        const struct kg_layer_acts *a, struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;
    if (!w->bv)
        return kg_linear(p, a->v, a->h1, w->wv, false, err);
    const struct kg_mat wide = widened(p, p->acts->vf, a->v);
    KG_TRY(kg_linear(p, wide, a->h1, w->wv, false, err));
    KG_TRY(kg_op_bias(be, wide, kg_param_vector(w->bv), err));
    return wide.data == a->v.data ? KG_OK : kg_op_cast(be, a->v, wide, err);
}

static kg_status queries_keys_values(const struct kg_walk *p,
                                     const struct kg_layer_params *w,
                                     const struct kg_layer_acts *a, struct kg_err *err)
{
    const struct projection q = {w->wq, w->bq,    w->qnorm,
                                 a->h1, a->q_raw, widened(p, p->acts->qf, a->q),
                                 a->q,  a->inv_q};
    const struct projection k = {w->wk, w->bk,    w->knorm,
                                 a->h1, a->k_raw, widened(p, p->acts->kf, a->k),
                                 a->k,  a->inv_k};
    KG_TRY(project(p, &q, err));
    KG_TRY(project(p, &k, err));
    return values(p, w, a, err);
}

struct kg_attn kg_walk_attn(const struct kg_walk *p, const struct kg_layer_acts *a)
{
    const struct kg_model_config *c = &p->m->config;

    return (struct kg_attn){
        .q = a->q,
        .k = a->k,
        .v = a->v,
        .n_heads = c->heads,
        .n_kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .scale = (float)(1.0 / sqrt((double)c->head_dim)),
        .seqs = p->pack->seqs,
        .n_seqs = p->pack->n_seqs,
    };
}

static kg_status attend(const struct kg_walk *p, int32_t l, const struct kg_layer_acts *a,
                        struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;
    struct kg_attn attn = kg_walk_attn(p, a);

    if (p->kv) {
        KG_TRY(kg_op_scatter_rows(be, p->kv->k[l], p->pack->kv_rows, a->k, err));
        KG_TRY(kg_op_scatter_rows(be, p->kv->v[l], p->pack->kv_rows, a->v, err));
        attn.k = p->kv->k[l];
        attn.v = p->kv->v[l];
        attn.blocks = p->pack->blocks;
    }
    return kg_op_attention(be, a->o, a->lse, &attn, err);
}

/* x_out = x_in + y W^T, the same bits whether or not both are one buffer. */
static kg_status add_product(const struct kg_walk *p, struct kg_mat x_out,
                             struct kg_mat x_in, struct kg_mat y,
                             const struct kg_param *w, struct kg_err *err)
{
    if (x_out.data != x_in.data)
        KG_TRY(kg_op_cast(p->m->backend, x_out, x_in, err));
    return kg_linear(p, x_out, y, w, true, err);
}

/* ---- a layer ---- */
kg_status kg_layer_forward(const struct kg_walk *p, int32_t l, bool whole,
                           struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;
    const struct kg_layer_params *w = &p->m->layers[l];
    const struct kg_layer_acts a = kg_walk_layer(p, l);
    const struct kg_mat x = kg_walk_x(p, l);
    const float eps = p->m->config.norm_eps;

    kg_phase_tick();
    KG_TRY(kg_op_rmsnorm(be, a.h1, a.inv1, x, kg_param_vector(w->norm1), eps, err));
    KG_TRY(queries_keys_values(p, w, &a, err));
    KG_TRY(attend(p, l, &a, err));
    KG_TRY(add_product(p, a.x_mid, x, a.o, w->wo, err));

    KG_TRY(kg_op_rmsnorm(be, a.h2, a.inv2, a.x_mid, kg_param_vector(w->norm2), eps, err));
    if (w->router)
        return kg_experts_forward(p, l, &a, whole, err);
    KG_TRY(kg_linear(p, a.gate, a.h2, w->wgate, false, err));
    KG_TRY(kg_linear(p, a.up, a.h2, w->wup, false, err));
    if (!whole)
        return KG_OK;
    const struct kg_mat act = kg_mat_rows(p->acts->act, 0, p->pack->n);
    KG_TRY(kg_op_swiglu(be, act, a.gate, a.up, err));
    return add_product(p, kg_walk_x(p, l + 1), a.x_mid, act, w->wdown, err);
}

/* ---- the whole ---- */
kg_status kg_model_stage(const struct kg_model *m, struct kg_acts *acts,
                         const struct kg_forward *f, struct kg_err *err)
{
    assert(acts->layers == m->config.layers && acts->ct == m->ct &&
           acts->rank >= m->lora.rank);
    if (f->kv && f->keep)
        return kg_fail(err, KG_EINVAL,
                       "forward with a cache: nothing can be kept for a backward");
    acts->kept = 0;
    return kg_stage_pack(acts, m, f, err);
}

kg_status kg_model_run(struct kg_mat *hidden, const struct kg_model *m,
                       struct kg_acts *acts, const struct kg_forward *f,
                       struct kg_err *err)
{
    const struct kg_walk p = {m, acts, &acts->pack, f->kv, f->keep};
    const int32_t layers = m->config.layers;
    KG_TRY(kg_op_embed(m->backend, kg_walk_x(&p, 0), m->embed->compute, p.pack->tokens,
                       err));
    for (int32_t l = 0; l < layers; l++) {
        KG_TRY(kg_model_fetch_layer(m, l, err));
        KG_TRY(kg_layer_forward(&p, l, true, err));
    }
    *hidden = kg_mat_rows(acts->hidden, 0, f->pack->n);
    KG_TRY(kg_op_rmsnorm(m->backend, *hidden, kg_vec(acts->inv.data, f->pack->n),
                         kg_walk_x(&p, layers), kg_param_vector(m->norm),
                         m->config.norm_eps, err));
    acts->kept = f->keep ? f->pack->n : 0;
    return KG_OK;
}

kg_status kg_model_forward(struct kg_mat *hidden, const struct kg_model *m,
                           struct kg_acts *acts, const struct kg_forward *f,
                           struct kg_err *err)
{
    KG_TRY(kg_model_stage(m, acts, f, err));
    return kg_model_run(hidden, m, acts, f, err);
}
