/* The transformer's backward: from dloss/dhidden to the gradient of every parameter.
 *
 * It mirrors forward.c line by line, last line first. dx below is the gradient of the
 * residual stream; it stays fp32 from the top to the embedding and every branch adds to
 * it. What a product reads is rounded to ct, once; norms, biases, rotations and sums stay
 * fp32.
 *
 * The one idea: for y = x W^T the backward is dW += dy^T x and dx = dy W; all else is
 * bookkeeping of buffers. A layer's own buffers are overwritten by their gradients once
 * they have been read, so a kept forward serves one backward. The caller zeroes grads;
 * everything here adds to them.
 */
#include "model/acts_internal.h"

#include "base/phase.h"

#include <assert.h>

/* *out <- x in ct, as products read it: x if ct is fp32, else rounded into `store`. */
static kg_status rounded(struct kg_mat *out, const struct kg_walk *p, struct kg_mat store,
                         struct kg_mat x, struct kg_err *err)
{
    *out = p->m->ct == KG_F32 ? x : store;
    return p->m->ct == KG_F32 ? KG_OK : kg_op_cast(p->m->backend, store, x, err);
}

/* db += sum dy, if there is a trained bias */
static kg_status bias_bwd(const struct kg_walk *p, const struct kg_param *bias,
                          struct kg_mat dy, struct kg_grads grads, struct kg_err *err)
{
    const bool wanted = bias && bias->offset >= 0;
    return wanted ? kg_op_bias_bwd(p->m->backend, kg_grad_of(grads, bias), dy, err)
                  : KG_OK;
}

/* The end of a branch: x_out = x_in + residual_scale norm(y W^T + b). */
struct end {
    const struct kg_param *bias, *norm; /* NULL when absent */
    struct kg_mat out;                  /* (N,D) fp32, input of norm in the forward */
    struct kg_vec inv;                  /* (N) of the forward */
};

/* *dy <- gradient of y W^T in ct, given dx; its memory may be acts->dh, or dx itself */
static kg_status end_bwd(struct kg_mat *dy, const struct kg_walk *p, const struct end *e,
                         struct kg_mat dx, struct kg_grads grads, struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;
    const float scale = (float)p->m->config.residual_scale;
    struct kg_mat d = dx;
    if (e->norm || scale != 0.0f) {
        d = kg_mat_rows(p->acts->dh, 0, p->pack->n);
        KG_TRY(kg_op_cast(be, d, dx, err));
    }
    if (scale != 0.0f)
        KG_TRY(kg_op_scale(be, kg_all_of(d), scale, err));
    if (e->norm)
        KG_TRY(kg_op_rmsnorm_bwd(be, d, false, kg_grad_of(grads, e->norm), d, e->out,
                                 kg_param_vector(e->norm), e->inv, err));
    KG_TRY(bias_bwd(p, e->bias, d, grads, err));
    return rounded(dy, p, kg_mat_rows(p->acts->dy, 0, p->pack->n), d, err);
}

/* dx += gradient of norm's input x, given acts->dh; without a norm, dx += dh */
static kg_status begin_bwd(const struct kg_walk *p, const struct kg_param *norm,
                           struct kg_mat dx, struct kg_mat x, struct kg_vec inv,
                           struct kg_grads grads, struct kg_err *err)
{
    const struct kg_mat dh = kg_mat_rows(p->acts->dh, 0, p->pack->n);
    if (!norm)
        return kg_op_add(p->m->backend, kg_all_of(dx), kg_all_of(dh), err);
    return kg_op_rmsnorm_bwd(p->m->backend, dx, true, kg_grad_of(grads, norm), dh, x,
                             kg_param_vector(norm), inv, err);
}

/* ---- FFN half ---- */

kg_status kg_walk_gated_bwd(const struct kg_walk *p, const struct kg_layer_acts *a,
                            struct kg_mat dact, struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;
    return p->m->config.act == KG_ACT_SILU
               ? kg_op_swiglu_bwd(be, a->gate, a->up, dact, a->gate, a->up, err)
               : kg_op_geglu_bwd(be, a->gate, a->up, dact, a->gate, a->up, err);
}

/* dh <- gradient of h2, for act Wdown^T,  act = f(gate) up,  gate, up = h2 W^T + b */
static kg_status dense_bwd(const struct kg_walk *p, const struct kg_layer_params *w,
                           const struct kg_layer_acts *a, struct kg_mat dy,
                           struct kg_mat dh, struct kg_grads grads, struct kg_err *err)
{
    const struct kg_mat act = kg_mat_rows(p->acts->act, 0, p->pack->n);

    KG_TRY(kg_walk_gated(p, a, act, err));
    /* act is read for dWdown first and then overwritten by its own gradient */
    KG_TRY(kg_linear_bwd(p, grads, w->wdown, dy, act, act, false, err));
    KG_TRY(kg_walk_gated_bwd(p, a, act, err));
    KG_TRY(bias_bwd(p, w->bgate, a->gate, grads, err));
    KG_TRY(bias_bwd(p, w->bup, a->up, grads, err));
    KG_TRY(kg_linear_bwd(p, grads, w->wgate, a->gate, a->h2, dh, false, err));
    return kg_linear_bwd(p, grads, w->wup, a->up, a->h2, dh, true, err);
}

/* x_out = x_mid + branch(h2),  h2 = norm2(x_mid) */
static kg_status ffn_bwd(const struct kg_walk *p, int32_t l, struct kg_mat dx,
                         struct kg_grads grads, struct kg_err *err)
{
    const struct kg_layer_params *w = &p->m->layers[l];
    const struct kg_layer_acts a = kg_walk_layer(p, l);
    const struct end down = {w->bdown, w->post2, a.out2, a.inv4};
    const struct kg_mat dh = kg_mat_rows(p->acts->dh, 0, p->pack->n);
    struct kg_mat dy;

    KG_TRY(end_bwd(&dy, p, &down, dx, grads, err));
    KG_TRY(w->router ? kg_experts_bwd(p, l, &a, dy, dh, grads, err)
                     : dense_bwd(p, w, &a, dy, dh, grads, err));
    return begin_bwd(p, w->norm2, dx, a.x_mid, a.inv2, grads, err);
}

/* ---- attention half ---- */
/* A projection to q, k or v, backwards: rotation, norm of heads, bias, product. */
struct projection_bwd {
    const struct kg_param *w, *bias, *norm; /* bias, norm NULL when absent */
    struct kg_mat wide;   /* (N,heads*hd) fp32, gradient after the rotation; destroyed */
    struct kg_mat narrow; /* (N,heads*hd) ct, scratch: `wide` rounded */
    struct kg_mat raw;    /* (N,heads*hd) fp32 of the forward */
    struct kg_vec inv;    /* (N heads) of the forward */
};

static kg_status unrotate(const struct kg_walk *p, int32_t l,
                          const struct projection_bwd *j, struct kg_grads grads,
                          struct kg_err *err)
{
    KG_TRY(kg_walk_unrotate(p, l, j->wide, err));
    if (!j->norm)
        return KG_OK;
    const struct kg_vec w = kg_param_vector(j->norm);
    return kg_op_rmsnorm_bwd(p->m->backend, j->wide, false, kg_grad_of(grads, j->norm),
                             j->wide, j->raw, w,
                             kg_vec(j->inv.data, kg_norm_rows(j->raw, w)), err);
}

/* db += sum dy;  dW += dy^T h;  dh (=|+=) dy W, unless dh has no data */
static kg_status project_bwd(const struct kg_walk *p, const struct projection_bwd *j,
                             struct kg_mat h, struct kg_mat dh, bool accumulate,
                             struct kg_grads grads, struct kg_err *err)
{
    struct kg_mat dy;
    KG_TRY(bias_bwd(p, j->bias, j->wide, grads, err));
    KG_TRY(rounded(&dy, p, j->narrow, j->wide, err));
    return kg_linear_bwd(p, grads, j->w, dy, h, dh, accumulate, err);
}

/* Sums the gradients of a shared key over its sequences, in their order. */
static kg_status add_keys(const struct kg_walk *p, struct kg_mat sum, struct kg_mat each,
                          struct kg_err *err)
{
    return kg_op_sum_rows(p->m->backend, sum, each, p->pack->key_ends, p->pack->places,
                          err);
}

static kg_status attend_bwd(const struct kg_walk *p, int32_t l,
                            const struct kg_layer_acts *a, struct kg_mat dout,
                            struct kg_err *err)
{
    const int64_t n = p->pack->n;
    const bool shares = p->pack->keys.n > 0;
    const struct kg_mat dq = kg_mat_rows(p->acts->qf, 0, n);
    const struct kg_mat dk = kg_mat_rows(p->acts->kf, 0, n);
    const struct kg_mat dv = kg_mat_rows(p->acts->vf, 0, n);
    struct kg_key_acts keys = {.dk = dk, .dv = dv};
    struct kg_attn attn;

    KG_TRY(kg_walk_attn(&attn, p, l, a, err));
    if (shares)
        keys = kg_walk_keys(p);
    KG_TRY(kg_op_attention_bwd(p->m->backend, dq, keys.dk, keys.dv, dout, a->o, a->lse,
                               &attn, err));
    if (!shares)
        return KG_OK;
    KG_TRY(add_keys(p, dk, keys.dk, err));
    return add_keys(p, dv, keys.dv, err);
}

/* Nothing below this layer is trained, so its dx is not needed. If the embedding is
 * frozen, everything except adapters is frozen. */
static bool is_lowest(const struct kg_walk *p, int32_t l)
{
    return l == 0 && p->m->embed->offset < 0;
}

static bool trains_attention(const struct kg_layer_params *w)
{
    return w->wq->offset >= 0 || w->wq->adapter || w->wk->adapter || w->wv->adapter ||
           w->wo->adapter;
}

/* x_mid = x + o Wo^T,  o = attention(q, k, v),  q, k, v = f(h1 W^T + b),
 * h1 = norm1(x) */
static kg_status attention_bwd(const struct kg_walk *p, int32_t l, struct kg_mat dx,
                               struct kg_grads grads, struct kg_err *err)
{
    const struct kg_layer_params *w = &p->m->layers[l];
    const struct kg_layer_acts a = kg_walk_layer(p, l);
    const int64_t n = p->pack->n;
    const struct kg_mat dout = kg_mat_rows(p->acts->dout, 0, n);
    const struct end out = {w->bo, w->post1, a.out1, a.inv3};
    const bool lowest = is_lowest(p, l);
    const struct kg_mat none = {0}, rows = kg_mat_rows(p->acts->dh, 0, n);
    const struct kg_mat dh = lowest ? none : rows;
    struct kg_mat dy;

    KG_TRY(end_bwd(&dy, p, &out, dx, grads, err));
    KG_TRY(kg_linear_bwd(p, grads, w->wo, dy, a.o, dout, false, err));
    KG_TRY(attend_bwd(p, l, &a, dout, err));

    const struct projection_bwd q = {
        w->wq, w->bq, w->qnorm, kg_mat_rows(p->acts->qf, 0, n), a.q, a.q_raw, a.inv_q};
    const struct projection_bwd k = {
        w->wk, w->bk, w->knorm, kg_mat_rows(p->acts->kf, 0, n), a.k, a.k_raw, a.inv_k};
    const struct projection_bwd v = {
        .w = w->wv, .bias = w->bv, .narrow = a.v, .wide = kg_mat_rows(p->acts->vf, 0, n)};
    KG_TRY(unrotate(p, l, &q, grads, err));
    KG_TRY(unrotate(p, l, &k, grads, err));
    KG_TRY(project_bwd(p, &q, a.h1, dh, false, grads, err));
    KG_TRY(project_bwd(p, &k, a.h1, dh, true, grads, err));
    KG_TRY(project_bwd(p, &v, a.h1, dh, true, grads, err));
    if (lowest)
        return KG_OK;
    return begin_bwd(p, w->norm1, dx, kg_walk_x(p, l), a.inv1, grads, err);
}

/* ---- a layer ---- */
static kg_status layer_bwd(const struct kg_walk *p, int32_t l, struct kg_mat dx,
                           struct kg_grads grads, struct kg_err *err)
{
    kg_phase_tick();
    if (p->acts->checkpoint)
        KG_TRY(kg_layer_forward(p, l, false, err));
    KG_TRY(ffn_bwd(p, l, dx, grads, err));
    if (is_lowest(p, l) && !trains_attention(&p->m->layers[l]))
        return KG_OK;
    return attention_bwd(p, l, dx, grads, err);
}

/* ---- stages ---- */
/* Before stage 0: the last forward must have kept activations, and dhidden must fit. */
static kg_status check_kept(const struct kg_model *m, const struct kg_acts *acts,
                            struct kg_mat dhidden, struct kg_err *err)
{
    assert(acts->layers == m->config.layers && acts->ct == m->ct);
    assert(m->on_host != KG_HOST_LAYERS);
    if (acts->kept == 0)
        return kg_fail(err, KG_EINVAL,
                       "backward: the last forward kept no activations for it");
    if (dhidden.dtype == KG_F32 && dhidden.rows == acts->kept &&
        dhidden.cols == m->config.hidden)
        return KG_OK;
    return kg_fail(err, KG_ESHAPE,
                   "backward: expected dhidden (%lld, %d) fp32, found (%lld, %lld) %s",
                   (long long)acts->kept, (int)m->config.hidden, (long long)dhidden.rows,
                   (long long)dhidden.cols, kg_dtype_traits(dhidden.dtype)->name);
}

static kg_status last_norm_bwd(const struct kg_walk *p, struct kg_mat dhidden,
                               struct kg_grads grads, struct kg_err *err)
{
    const struct kg_model *m = p->m;
    const struct kg_model_config *c = &m->config;

    KG_TRY(check_kept(m, p->acts, dhidden, err));
    p->acts->kept = 0;
    if (c->logit_divisor != 0)
        KG_TRY(kg_op_scale(m->backend, kg_all_of(dhidden), 1.0f / (float)c->logit_divisor,
                           err));
    return kg_op_rmsnorm_bwd(m->backend, dhidden, false, kg_grad_of(grads, m->norm),
                             dhidden, kg_walk_x(p, c->layers), kg_param_vector(m->norm),
                             kg_vec(p->acts->inv.data, dhidden.rows), err);
}

static kg_status embed_bwd(const struct kg_walk *p, struct kg_mat dhidden,
                           struct kg_grads grads, struct kg_err *err)
{
    const struct kg_model *m = p->m;
    const float scale = (float)m->config.embed_scale;

    if (m->embed->offset < 0)
        return KG_OK;
    if (scale != 0)
        KG_TRY(kg_op_scale(m->backend, kg_all_of(dhidden), scale, err));
    return kg_op_embed_bwd(m->backend, kg_grad_mat(grads, m->embed), dhidden,
                           p->pack->tokens, err);
}

int32_t kg_backward_stages(const struct kg_model *m) { return m->config.layers + 2; }

kg_status kg_model_backward_stage(const struct kg_model *m, struct kg_acts *acts,
                                  struct kg_mat dhidden, struct kg_grads grads,
                                  int32_t stage, struct kg_err *err)
{
    const struct kg_walk p = {.m = m, .acts = acts, .pack = &acts->pack, .keep = true};
    const int32_t layers = m->config.layers;

    if (stage == 0)
        return last_norm_bwd(&p, dhidden, grads, err);
    return stage <= layers ? layer_bwd(&p, layers - stage, dhidden, grads, err)
                           : embed_bwd(&p, dhidden, grads, err);
}

kg_status kg_model_backward(const struct kg_model *m, struct kg_acts *acts,
                            struct kg_mat dhidden, float *grads, struct kg_err *err)
{
    for (int32_t s = 0; s < kg_backward_stages(m); s++)
        KG_TRY(kg_model_backward_stage(m, acts, dhidden, kg_grads_all(grads), s, err));
    return KG_OK;
}

/* Offset of the first trained base parameter from `first` on, or of its adapter. */
static int64_t place_from(const struct kg_model *m, size_t first)
{
    for (size_t i = first; i < m->n_base; i++) {
        const struct kg_param *p = &m->params[i];
        if (p->offset >= 0)
            return p->offset;
        if (p->adapter)
            return p->adapter->a->offset;
    }
    return m->n_elements;
}

/* Index of a part's first parameter; parts: embedding, each layer, final norm and head */
static size_t part_begin(const struct kg_model *m, int32_t part)
{
    const struct kg_layer_params *last = &m->layers[m->config.layers - 1];

    if (part == 0)
        return 0;
    return part <= m->config.layers ? m->layers[part - 1].first : last->first + last->n;
}

struct kg_cut kg_backward_cut(const struct kg_model *m, int32_t stage)
{
    const int32_t part = m->config.layers + 1 - stage;
    const int64_t first = place_from(m, part_begin(m, part));
    const int64_t end = stage == 0 ? m->n_elements
                                   : place_from(m, part_begin(m, part + 1));

    return (struct kg_cut){first, end - first};
}
