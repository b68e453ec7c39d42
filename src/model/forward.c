/* The transformer's forward: tokens to final-normed hidden states, for training, scoring
 * and decoding.
 *
 * There is one forward. What differs between uses is where keys are read from (this pack,
 * or the pools of the cache) and whether every layer has buffers of its own; the
 * operations and the points where bf16 rounding happens are the same, so the sampler's
 * log-prob equals the trainer's.
 *
 * A layer, pre-norm, with the residual stream x in fp32 and everything that products read
 * in ct:
 *     h1 = norm1(x);  q, k, v = h1 W^T + b, [norm of heads], rotate;
 *     x += attention(q, k, v) Wo^T;
 *     h2 = norm2(x);  x += (silu(h2 Wgate^T) * h2 Wup^T) Wdown^T
 * or the same for experts (experts.c). Each further feature of a model (arch.h) is tested
 * where it applies: an absent norm, bias or factor is not computed.
 */
#include "model/acts_internal.h"
#include "model/model_internal.h"

#include "base/phase.h"

#include <assert.h>
#include <math.h>

/* ---- attention half ---- */
/* A projection of h1 to q, k or v: product, bias, norm of heads, rotation in fp32, then
 * one rounding to ct. */
struct projection {
    const struct kg_param *w, *bias, *norm; /* bias, norm NULL when absent */
    struct kg_mat raw;  /* (N,heads*hd) fp32, kept for the norm's backward */
    struct kg_mat wide; /* (N,heads*hd) fp32; or `out`, if no rounding follows */
    struct kg_mat out;  /* (N,heads*hd) ct */
    struct kg_vec inv;  /* (N heads) */
};

/* The target of the product. */
static struct kg_mat sums_of(const struct projection *j)
{
    return j->norm ? j->raw : j->wide;
}

/* wide = norm(raw + bias) */
static kg_status norm_heads(const struct kg_walk *p, const struct projection *j,
                            struct kg_err *err)
{
    const struct kg_vec w = kg_param_vector(j->norm);

    if (j->bias)
        KG_TRY(kg_op_bias(p->m->backend, j->raw, kg_param_vector(j->bias), err));
    return kg_op_rmsnorm(p->m->backend, j->wide,
                         kg_vec(j->inv.data, kg_norm_rows(j->raw, w)), j->raw, w,
                         p->m->config.norm_eps, err);
}

/* Where `out` is computed before it is rounded: scratch, or `out` if ct is fp32. */
static struct kg_mat widened(const struct kg_walk *p, struct kg_mat scratch,
                             struct kg_mat out)
{
    return p->m->ct == KG_F32 ? out : kg_mat_rows(scratch, 0, p->pack->n);
}

/* out = sums + b, rounded once.   sums: fp32, or out itself; bias NULL: none */
static kg_status add_bias(const struct kg_walk *p, struct kg_mat out, struct kg_mat sums,
                          const struct kg_param *bias, struct kg_err *err)
{
    if (bias)
        KG_TRY(kg_op_bias(p->m->backend, sums, kg_param_vector(bias), err));
    return sums.data == out.data ? KG_OK : kg_op_cast(p->m->backend, out, sums, err);
}

static struct kg_turn turn_of(const struct kg_walk *p, int32_t l)
{
    const struct kg_model_config *c = &p->m->config;
    const bool local = c->layer[l] & KG_LAYER_LOCAL_ROPE;
    const bool plain = local || c->rope_attention == 0;

    return (struct kg_turn){.pos = p->pack->pos,
                            .inv_freq = local ? p->m->local_inv_freq : p->m->inv_freq,
                            .head_dim = c->head_dim,
                            .attention_factor = plain ? 1.0f : (float)c->rope_attention};
}

/* Operands of kg_op_heads: bias, rotation, rounding, copy to `cache` if it has data. */
static struct kg_heads rest_of(const struct kg_walk *p, int32_t l,
                               const struct projection *j, bool turned,
                               struct kg_mat cache)
{
    const enum kg_kv_kind kind = kg_kv_kind_of(&p->m->config, l);
    struct kg_heads h = {.x = j->wide, .out = j->out, .pool = cache};

    if (j->bias && !j->norm)
        h.bias = kg_param_vector(j->bias);
    h.turned = turned && !(p->m->config.layer[l] & KG_LAYER_NO_ROPE);
    if (cache.data)
        h.rows = p->pack->kv_rows[kind];
    return h;
}

/* Where q, k or v is computed before it is rounded into `out`. If one product computes
 * all three: columns of its result, from `first` on. */
static struct kg_mat wide_of(const struct kg_walk *p, const struct kg_layer_acts *a,
                             struct kg_mat alone, int64_t first, struct kg_mat out)
{
    const struct kg_mat one = kg_mat(p->acts->qf.data, KG_F32, p->pack->n,
                                     a->q.cols + a->k.cols + a->v.cols);
    return kg_joins(p->m) ? kg_mat_cols(one, first, out.cols) : widened(p, alone, out);
}

static kg_status queries_keys_values(const struct kg_walk *p, int32_t l,
                                     const struct kg_layer_acts *a, struct kg_err *err)
{
    const struct kg_layer_params *w = &p->m->layers[l];
    const struct kg_mat none = {0};
    const int64_t n_q = a->q.cols, n_k = a->k.cols;
    const struct kg_mat q = wide_of(p, a, p->acts->qf, 0, a->q);
    const struct kg_mat k = wide_of(p, a, p->acts->kf, n_q, a->k);
    const struct kg_mat v = wide_of(p, a, w->bv ? p->acts->vf : a->v, n_q + n_k, a->v);
    const struct projection j[3] = {
        {w->wq, w->bq, w->qnorm, a->q_raw, q, a->q, a->inv_q},
        {w->wk, w->bk, w->knorm, a->k_raw, k, a->k, a->inv_k},
        {.w = w->wv, .bias = w->bv, .out = a->v, .wide = a->v_raw.data ? a->v_raw : v}};
    const struct kg_turn turn = turn_of(p, l);
    struct kg_heads rest[3];
    int n = 0;

    KG_TRY(kg_linear_shared(
        p, 3, (struct kg_mat[]){sums_of(&j[0]), sums_of(&j[1]), sums_of(&j[2])}, a->h1,
        (const struct kg_param *[]){j[0].w, j[1].w, j[2].w}, err));
    for (int i = 0; i < 3; i++) {
        const struct kg_mat cache = !p->kv || i == 0 ? none
                                    : i == 1         ? p->kv->k[l]
                                                     : p->kv->v[l];
        if (j[i].norm)
            KG_TRY(norm_heads(p, &j[i], err));
        rest[n] = rest_of(p, l, &j[i], i < 2, cache);
        n += rest[n].bias.data || rest[n].turned || rest[n].pool.data ||
             j[i].wide.data != j[i].out.data;
    }
    return n > 0 ? kg_op_heads(p->m->backend, rest, n, &turn, err) : KG_OK;
}

kg_status kg_walk_unrotate(const struct kg_walk *p, int32_t l, struct kg_mat x,
                           struct kg_err *err)
{
    const struct kg_turn turn = turn_of(p, l);

    return p->m->config.layer[l] & KG_LAYER_NO_ROPE
               ? KG_OK
               : kg_op_rope(p->m->backend, x, &turn, true, err);
}

/* A shared prefix is in the pack once, but attention reads contiguous keys. */
static kg_status gather_keys(struct kg_attn *attn, const struct kg_walk *p,
                             const struct kg_layer_acts *a, struct kg_err *err)
{
    const struct kg_key_acts keys = kg_walk_keys(p);

    attn->k = keys.k;
    attn->v = keys.v;
    KG_TRY(kg_op_gather_rows(p->m->backend, keys.k, a->k, p->pack->keys, err));
    return kg_op_gather_rows(p->m->backend, keys.v, a->v, p->pack->keys, err);
}

kg_status kg_walk_attn(struct kg_attn *out, const struct kg_walk *p, int32_t l,
                       const struct kg_layer_acts *a, struct kg_err *err)
{
    const struct kg_model_config *c = &p->m->config;

    *out = (struct kg_attn){
        .q = a->q,
        .k = a->k,
        .v = a->v,
        .n_heads = c->heads,
        .n_kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .scale = (float)(c->score_scale != 0 ? c->score_scale
                                             : 1.0 / sqrt((double)c->head_dim)),
        .window = kg_model_config_window(c, l),
        .softcap = (float)c->score_softcap,
        .seqs = p->pack->seqs[KG_KV_ALL],
        .n_seqs = p->pack->n_seqs,
        .most_keys = p->pack->most_keys,
    };
    return p->pack->keys.n > 0 ? gather_keys(out, p, a, err) : KG_OK;
}

static kg_status attend(const struct kg_walk *p, int32_t l, const struct kg_layer_acts *a,
                        struct kg_err *err)
{
    struct kg_attn attn;

    KG_TRY(kg_walk_attn(&attn, p, l, a, err));
    if (p->kv) {
        attn.k = p->kv->k[l];
        attn.v = p->kv->v[l];
        attn.seqs = p->pack->seqs[kg_kv_kind_of(&p->m->config, l)];
        attn.blocks = p->pack->blocks;
    }
    return kg_op_attention(p->m->backend, a->o, a->lse, &attn, err);
}

/* ---- branches ---- */
/* The last product of attention or feed-forward, and the optional norm after it. */
struct branch {
    const struct kg_param *w, *bias, *norm; /* bias, norm NULL when absent */
    struct kg_mat y;                        /* (N,cols of w) ct */
    struct kg_mat out; /* (N,D) fp32, kept for the norm's backward; only with norm */
    struct kg_vec inv; /* (N) of norm */
};

/* y = norm(x), or x rounded if norm is NULL */
static kg_status normed(const struct kg_walk *p, struct kg_mat y, struct kg_vec inv,
                        struct kg_mat x, const struct kg_param *norm, struct kg_err *err)
{
    if (!norm)
        return kg_op_cast(p->m->backend, y, x, err);
    return kg_op_rmsnorm(p->m->backend, y, inv, x, kg_param_vector(norm),
                         p->m->config.norm_eps, err);
}

/* x_out = x_in + y W^T + b. x_out may be x_in; the bits are the same. */
static kg_status add_product(const struct kg_walk *p, struct kg_mat x_out,
                             struct kg_mat x_in, const struct branch *b,
                             struct kg_err *err)
{
    KG_TRY(kg_linear_onto(p, x_out, x_in, b->y, b->w, err));
    return b->bias ? kg_op_bias(p->m->backend, x_out, kg_param_vector(b->bias), err)
                   : KG_OK;
}

/* to = norm(y W^T + b) */
static kg_status branch_alone(const struct kg_walk *p, struct kg_mat to,
                              const struct branch *b, struct kg_err *err)
{
    const struct kg_mat out = b->norm ? b->out : to;
    KG_TRY(kg_linear(p, out, b->y, b->w, false, err));
    if (b->bias)
        KG_TRY(kg_op_bias(p->m->backend, out, kg_param_vector(b->bias), err));
    return b->norm ? normed(p, to, b->inv, out, b->norm, err) : KG_OK;
}

/* x_out = x_in + residual_scale norm(y W^T + b) */
static kg_status add_branch(const struct kg_walk *p, struct kg_mat x_out,
                            struct kg_mat x_in, const struct branch *b,
                            struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;
    const float scale = (float)p->m->config.residual_scale;
    const struct kg_mat to = kg_mat_rows(p->acts->dh, 0, p->pack->n);
    if (!b->norm && scale == 0.0f)
        return add_product(p, x_out, x_in, b, err);
    KG_TRY(branch_alone(p, to, b, err));
    if (scale != 0.0f)
        KG_TRY(kg_op_scale(be, kg_all_of(to), scale, err));
    if (x_out.data != x_in.data)
        KG_TRY(kg_op_cast(be, x_out, x_in, err));
    return kg_op_add(be, kg_all_of(x_out), kg_all_of(to), err);
}

kg_status kg_walk_gated(const struct kg_walk *p, const struct kg_layer_acts *a,
                        struct kg_mat act, struct kg_err *err)
{
    return p->m->config.act == KG_ACT_SILU
               ? kg_op_swiglu(p->m->backend, act, a->gate, a->up, err)
               : kg_op_geglu(p->m->backend, act, a->gate, a->up, err);
}

/* Biases are added in fp32, in scratch that gate and up use in turn. */
static kg_status gate_and_up(const struct kg_walk *p, int32_t l,
                             const struct kg_layer_acts *a, struct kg_err *err)
{
    const struct kg_layer_params *w = &p->m->layers[l];
    const struct kg_mat to[2] = {a->gate, a->up};
    const struct kg_param *of[2] = {w->wgate, w->wup};
    const struct kg_param *bias[2] = {w->bgate, w->bup};
    if (!w->bgate && !w->bup)
        return kg_linear_shared(p, 2, to, a->h2, of, err);
    for (int i = 0; i < 2; i++) {
        const struct kg_mat sums = bias[i] ? widened(p, p->acts->gate_wide, to[i])
                                           : to[i];
        KG_TRY(kg_linear(p, sums, a->h2, of[i], false, err));
        KG_TRY(add_bias(p, to[i], sums, bias[i], err));
    }
    return KG_OK;
}

/* The feed-forward half from h2 on. Unless `whole`, only what the backward of a
 * checkpointed layer reads: gate, up, and out2, the input of post2. */
static kg_status feed_forward(const struct kg_walk *p, int32_t l, bool whole,
                              const struct kg_layer_acts *a, struct kg_err *err)
{
    const struct kg_layer_params *w = &p->m->layers[l];
    const struct kg_mat act = kg_mat_rows(p->acts->act, 0, p->pack->n);
    const struct branch down = {w->wdown, w->bdown, w->post2, act, a->out2, a->inv4};
    KG_TRY(gate_and_up(p, l, a, err));
    if (!whole && !w->post2)
        return KG_OK;
    KG_TRY(kg_walk_gated(p, a, act, err));
    return whole ? add_branch(p, kg_walk_x(p, l + 1), a->x_mid, &down, err)
                 : branch_alone(p, kg_mat_rows(p->acts->dh, 0, p->pack->n), &down, err);
}

/* ---- a layer ---- */
kg_status kg_layer_forward(const struct kg_walk *p, int32_t l, bool whole,
                           struct kg_err *err)
{
    const struct kg_layer_params *w = &p->m->layers[l];
    const struct kg_layer_acts a = kg_walk_layer(p, l);
    const struct kg_mat x = kg_walk_x(p, l);
    const struct branch out = {w->wo, w->bo, w->post1, a.o, a.out1, a.inv3};

    kg_phase_tick();
    KG_TRY(normed(p, a.h1, a.inv1, x, w->norm1, err));
    KG_TRY(queries_keys_values(p, l, &a, err));
    KG_TRY(attend(p, l, &a, err));
    KG_TRY(add_branch(p, a.x_mid, x, &out, err));
    KG_TRY(normed(p, a.h2, a.inv2, a.x_mid, w->norm2, err));
    return w->router ? kg_experts_forward(p, l, &a, whole, err)
                     : feed_forward(p, l, whole, &a, err);
}

/* ---- all layers ---- */
kg_status kg_model_stage(const struct kg_model *m, struct kg_acts *acts,
                         const struct kg_forward *f, struct kg_err *err)
{
    assert(acts->layers == m->config.layers && acts->ct == m->ct &&
           acts->rank >= kg_stage_rank(m) && (acts->mixed || m->n_others == 0));
    if (f->kv && f->keep)
        return kg_fail(err, KG_EINVAL,
                       "forward with a cache: expected keep to be false, because there "
                       "is no backward");
    acts->kept = 0;
    return kg_stage_pack(acts, m, f, err);
}

/* The final norm. To divide hidden states by logit_divisor divides all logits by it. */
static kg_status final_norm(const struct kg_walk *p, struct kg_mat hidden,
                            struct kg_err *err)
{
    const struct kg_vec inv = kg_vec(p->acts->inv.data, p->pack->n);
    const struct kg_mat x = kg_walk_x(p, p->m->config.layers);
    const float divisor = (float)p->m->config.logit_divisor;
    if (divisor == 0.0f)
        return normed(p, hidden, inv, x, p->m->norm, err);
    const struct kg_mat wide = kg_mat_rows(p->acts->dh, 0, p->pack->n);
    KG_TRY(normed(p, wide, inv, x, p->m->norm, err));
    KG_TRY(kg_op_scale(p->m->backend, kg_all_of(wide), 1.0f / divisor, err));
    return kg_op_cast(p->m->backend, hidden, wide, err);
}

kg_status kg_model_run(struct kg_mat *hidden, const struct kg_model *m,
                       struct kg_acts *acts, const struct kg_forward *f,
                       struct kg_err *err)
{
    const struct kg_walk p = {m, acts, &acts->pack, f->kv, f->keep};
    const int32_t layers = m->config.layers;
    if (acts->balanced)
        KG_TRY(kg_buf_zero(m->backend, acts->p_sum.data,
                           (uint64_t)acts->p_sum.n * sizeof(float), err));
    KG_TRY(kg_op_embed(m->backend, kg_walk_x(&p, 0), m->embed->compute, p.pack->tokens,
                       err));
    if (m->config.embed_scale != 0)
        KG_TRY(kg_op_scale(m->backend, kg_all_of(kg_walk_x(&p, 0)),
                           (float)m->config.embed_scale, err));
    for (int32_t l = 0; l < layers; l++) {
        KG_TRY(kg_model_fetch_layer(m, l, err));
        KG_TRY(kg_layer_forward(&p, l, true, err));
    }
    *hidden = kg_mat_rows(acts->hidden, 0, f->pack->n);
    KG_TRY(final_norm(&p, *hidden, err));
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
