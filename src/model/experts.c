/* A feed-forward of experts, forward and backward.
 *
 *     z = h2 Wr^T;  p = softmax(z);  a token has the K experts of the largest p;
 *     x += sum_k w_k E_k(h2),   w_k = p_k, or p_k over their sum;
 *     x += s S(h2),  s = sigmoid(h2 ws^T),   if there is a shared expert;
 *     E(h) and S(h) = (silu(h Wgate^T) * h Wup^T) Wdown^T.
 *
 * The one idea: rows are gathered expert by expert, and every product has the rows of one
 * expert. The results are added up token by token in the order of its slots. So a token's
 * bits do not depend on the other tokens of its experts.
 *
 * Backward: with dact_k = dy Wdown_k the gradient of w_k is dact_k . act_k, so an
 * expert's output need not be kept; dWdown_k = dy^T (w_k act_k).
 */
#include "model/acts_internal.h"

static struct kg_ivec slots(const int32_t *of, const struct kg_walk *p,
                            const struct kg_route *r)
{
    return kg_ivec(of, p->pack->n * r->k);
}

/* A matrix (N,1) as a vector. */
static struct kg_vec column(struct kg_mat m) { return kg_vec(m.data, m.rows); }

/* ---- forward ---- */
static kg_status share_forward(const struct kg_walk *p, const struct kg_layer_params *w,
                               const struct kg_layer_acts *a, struct kg_err *err)
{
    const struct kg_expert_acts *x = &a->experts;
    KG_TRY(kg_linear_shared(p, 2, (const struct kg_mat[]){x->sgate, x->sup}, a->h2,
                            (const struct kg_param *const[]){w->sgate, w->sup}, err));
    KG_TRY(kg_linear(p, x->share, a->h2, w->share, false, err));
    return kg_op_sigmoid(p->m->backend, column(x->share), column(x->share), err);
}

static kg_status add_shared(const struct kg_walk *p, const struct kg_layer_params *w,
                            const struct kg_expert_acts *x, struct kg_mat to,
                            struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;
    const struct kg_expert_scratch s = kg_walk_experts(p);
    const struct kg_mat out = kg_mat_rows(s.out, 0, p->pack->n);
    const struct kg_ivec own = {0};
    KG_TRY(kg_op_swiglu(be, s.sact, x->sgate, x->sup, err));
    KG_TRY(kg_linear(p, out, s.sact, w->sdown, false, err));
    return kg_op_combine(be, to, out, x->share, own, true, err);
}

/* From h2 to gate and up of the experts and of the shared one. */
static kg_status open_experts(const struct kg_walk *p, int32_t l,
                              const struct kg_layer_acts *a, struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;
    const struct kg_layer_params *w = &p->m->layers[l];
    const struct kg_expert_scratch s = kg_walk_experts(p);
    const struct kg_route *r = &a->experts.route;
    KG_TRY(kg_linear(p, s.logits, a->h2, w->router, false, err));
    KG_TRY(kg_op_route(be, r, s.logits, kg_walk_given(p, l), err));
    KG_TRY(kg_op_gather_rows(be, s.rows, a->h2, slots(r->token, p, r), err));
    KG_TRY(kg_linear_experts(p, r, a->experts.gate, s.rows, w->egate, err));
    KG_TRY(kg_linear_experts(p, r, a->experts.up, s.rows, w->eup, err));
    return w->share ? share_forward(p, w, a, err) : KG_OK;
}

kg_status kg_experts_forward(const struct kg_walk *p, int32_t l,
                             const struct kg_layer_acts *a, bool whole,
                             struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;
    const struct kg_layer_params *w = &p->m->layers[l];
    const struct kg_expert_acts *x = &a->experts;
    const struct kg_expert_scratch s = kg_walk_experts(p);
    const struct kg_mat to = kg_walk_x(p, l + 1);
    KG_TRY(open_experts(p, l, a, err));
    if (!whole)
        return KG_OK;
    if (p->keep && p->acts->balanced)
        KG_TRY(kg_op_bias_bwd(be, p->acts->p_sum, x->route.p, err));
    KG_TRY(kg_op_swiglu(be, s.act, x->gate, x->up, err));
    KG_TRY(kg_linear_experts(p, &x->route, s.out, s.act, w->edown, err));
    if (to.data != a->x_mid.data)
        KG_TRY(kg_op_cast(be, to, a->x_mid, err));
    KG_TRY(kg_op_combine(be, to, s.out, x->route.weight,
                         slots(x->route.place, p, &x->route), true, err));
    return w->share ? add_shared(p, w, x, to, err) : KG_OK;
}

/* ---- backward ---- */
/* Backward of the weighted sum and of down: gate and up are overwritten by their
 * gradients; s.dw <- gradients of the weights w_k. */
static kg_status close_bwd(const struct kg_walk *p, const struct kg_layer_params *w,
                           const struct kg_expert_acts *x, struct kg_mat dy,
                           struct kg_grads grads, struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;
    const struct kg_expert_scratch s = kg_walk_experts(p);
    const struct kg_route *r = &x->route;
    KG_TRY(kg_op_swiglu(be, s.act, x->gate, x->up, err));
    KG_TRY(kg_op_gather_rows(be, s.rows, dy, slots(r->token, p, r), err));
    KG_TRY(kg_linear_back(p, r, w->edown, s.dact, s.rows, false, err));
    KG_TRY(kg_op_combine_bwd(be, s.dw, s.dact, s.act, r->weight, slots(r->place, p, r),
                             err));
    KG_TRY(kg_linear_grads(p, r, grads, w->edown, s.rows, s.act, err));
    return kg_op_swiglu_bwd(be, x->gate, x->up, s.dact, x->gate, x->up, err);
}

/* Backward of gate and up: dh <- the gradient of h2. */
static kg_status open_bwd(const struct kg_walk *p, const struct kg_layer_params *w,
                          const struct kg_layer_acts *a, struct kg_mat dh,
                          struct kg_grads grads, struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;
    const struct kg_expert_acts *x = &a->experts;
    const struct kg_expert_scratch s = kg_walk_experts(p);
    const struct kg_route *r = &x->route;
    const struct kg_mat ones = kg_mat(NULL, KG_F32, p->pack->n, r->k);
    KG_TRY(kg_op_gather_rows(be, s.rows, a->h2, slots(r->token, p, r), err));
    KG_TRY(kg_linear_grads(p, r, grads, w->egate, x->gate, s.rows, err));
    KG_TRY(kg_linear_grads(p, r, grads, w->eup, x->up, s.rows, err));
    KG_TRY(kg_linear_back(p, r, w->egate, s.out, x->gate, false, err));
    KG_TRY(kg_linear_back(p, r, w->eup, s.out, x->up, true, err));
    return kg_op_combine(be, dh, s.out, ones, slots(r->place, p, r), false, err);
}

/* *out <- x in ct, as products read it: x if ct is fp32, else rounded into `store`. */
static kg_status rounded(struct kg_mat *out, const struct kg_walk *p, struct kg_mat store,
                         struct kg_mat x, struct kg_err *err)
{
    *out = p->m->ct == KG_F32 ? x : store;
    return p->m->ct == KG_F32 ? KG_OK : kg_op_cast(p->m->backend, store, x, err);
}

static kg_status router_bwd(const struct kg_walk *p, const struct kg_layer_params *w,
                            const struct kg_layer_acts *a, struct kg_mat dh,
                            struct kg_grads grads, struct kg_err *err)
{
    const struct kg_expert_scratch s = kg_walk_experts(p);
    const struct kg_vec none = {0};
    struct kg_mat dz;
    KG_TRY(kg_op_route_bwd(p->m->backend, s.logits, &a->experts.route, s.dw,
                           p->acts->balanced ? p->acts->balance : none, err));
    KG_TRY(rounded(&dz, p, s.narrow, s.logits, err));
    return kg_linear_bwd(p, grads, w->router, dz, a->h2, dh, true, err);
}

/* Backward of the shared expert's sum and of its down, with dact = dy Wdown:
 *     ds = dact . act;   dWdown = dy^T (s act) */
static kg_status close_shared_bwd(const struct kg_walk *p,
                                  const struct kg_layer_params *w,
                                  const struct kg_expert_acts *x, struct kg_mat dy,
                                  struct kg_grads grads, struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;
    const struct kg_expert_scratch s = kg_walk_experts(p);
    const struct kg_ivec own = {0};
    KG_TRY(kg_op_swiglu(be, s.sact, x->sgate, x->sup, err));
    KG_TRY(kg_linear_back(p, NULL, w->sdown, s.dsact, dy, false, err));
    KG_TRY(kg_op_combine_bwd(be, s.dshare, s.dsact, s.sact, x->share, own, err));
    KG_TRY(kg_linear_grads(p, NULL, grads, w->sdown, dy, s.sact, err));
    KG_TRY(kg_op_swiglu_bwd(be, x->sgate, x->sup, s.dsact, x->sgate, x->sup, err));
    return kg_op_sigmoid_bwd(be, column(s.dshare), column(s.dshare), column(x->share),
                             err);
}

/* Backward of the shared expert's gate, up and weight: adds to dh. */
static kg_status open_shared_bwd(const struct kg_walk *p, const struct kg_layer_params *w,
                                 const struct kg_layer_acts *a, struct kg_mat dh,
                                 struct kg_grads grads, struct kg_err *err)
{
    const struct kg_expert_acts *x = &a->experts;
    const struct kg_expert_scratch s = kg_walk_experts(p);
    struct kg_mat dz;
    KG_TRY(kg_linear_bwd(p, grads, w->sgate, x->sgate, a->h2, dh, true, err));
    KG_TRY(kg_linear_bwd(p, grads, w->sup, x->sup, a->h2, dh, true, err));
    KG_TRY(rounded(&dz, p, s.sone, s.dshare, err));
    return kg_linear_bwd(p, grads, w->share, dz, a->h2, dh, true, err);
}

kg_status kg_experts_bwd(const struct kg_walk *p, int32_t l,
                         const struct kg_layer_acts *a, struct kg_mat dy,
                         struct kg_mat dh, struct kg_grads grads, struct kg_err *err)
{
    const struct kg_layer_params *w = &p->m->layers[l];
    KG_TRY(close_bwd(p, w, &a->experts, dy, grads, err));
    if (w->share)
        KG_TRY(close_shared_bwd(p, w, &a->experts, dy, grads, err));
    KG_TRY(open_bwd(p, w, a, dh, grads, err)); /* dh may overwrite dy */
    KG_TRY(router_bwd(p, w, a, dh, grads, err));
    return w->share ? open_shared_bwd(p, w, a, dh, grads, err) : KG_OK;
}
