/* Families misc and ema_update: length rewards, the KL in the reward, its controller, the
 * critic's loss, the anchor's average. Each is a function of a few numbers; the inputs of
 * a case of misc show its function. If the authors' average of weights is in single
 * precision, the tolerance of the case is widened, and the report says so. */
#include "lab/golden/golden_internal.h"

#include "policy/shaping.h"

#include <string.h>

static kg_status adaptive_kl(struct kg_golden_case *g, struct kg_err *err)
{
    struct kg_golden_shape shape = {1, {-1}};
    struct kg_golden_array kl, n, want;
    double coef, target, horizon;

    KG_TRY(kg_golden_input(&kl, g, "current_kl", shape, err));
    shape.d[0] = kl.n;
    KG_TRY(kg_golden_input(&n, g, "n_steps", shape, err));
    KG_TRY(kg_golden_array(&want, g, "expected", "value", shape, err));
    KG_TRY(kg_golden_need_real(&coef, g, "init_kl_coef", err));
    KG_TRY(kg_golden_need_real(&target, g, "target_kl", err));
    KG_TRY(kg_golden_need_real(&horizon, g, "horizon", err));
    for (int64_t i = 0; i < kl.n && want.x; i++) {
        coef = kg_policy_adaptive_kl(coef, kl.x[i], target, horizon, (int64_t)n.x[i]);
        kg_golden_compare(g, "value", i, coef, want.x[i]);
    }
    return KG_OK;
}

struct critic {
    struct kg_golden_array v, old, ret, mask, want;
    double range;
    double *weight; /* (tokens of the mask) */
    int64_t n;
};

static kg_status read_critic(struct critic *c, struct kg_golden_case *g,
                             struct kg_err *err)
{
    struct kg_golden_shape shape = {2, {-1, -1}};

    KG_TRY(kg_golden_input(&c->v, g, "vpreds", shape, err));
    shape = (struct kg_golden_shape){2, {c->v.d[0], c->v.d[1]}};
    KG_TRY(kg_golden_input(&c->old, g, "values", shape, err));
    KG_TRY(kg_golden_input(&c->ret, g, "returns", shape, err));
    KG_TRY(kg_golden_input(&c->mask, g, "response_mask", shape, err));
    KG_TRY(kg_golden_array(&c->want, g, "grad", "vpreds", shape, err));
    KG_TRY(kg_golden_reals(&c->weight, g, c->v.n, err));
    return kg_golden_need_real(&c->range, g, "cliprange_value", err);
}

static kg_status critic_weights(struct critic *c, struct kg_golden_case *g,
                                struct kg_err *err)
{
    struct kg_golden_reduction how = {.rows = (double)c->v.d[0],
                                      .width = (double)c->v.d[1]};
    int64_t *begin = kg_golden_room(g, c->v.d[0] + 1, sizeof *begin, err);
    struct kg_policy_totals totals;
    struct kg_golden_batch e;

    if (!begin)
        return err->code;
    KG_TRY(kg_golden_text(&how.variant, g, "variant", err));
    KG_TRY(kg_golden_text(&how.mode, g, "loss_agg_mode", err));
    how.mode = *how.mode ? how.mode : "token-mean";
    KG_TRY(kg_golden_start(&e, g, err));
    KG_TRY(kg_algo_set(&e.algo, "algo.aggregate", how.mode, err));
    for (int64_t r = 0; r < c->v.d[0]; r++) {
        for (int64_t t = 0; t < c->v.d[1]; t++)
            c->n += c->mask.x[r * c->v.d[1] + t] != 0;
        begin[r + 1] = c->n;
    }
    kg_policy_totals(&totals, &e.algo, c->v.d[0], begin, NULL);
    double scale = kg_golden_totals(&totals, &how);
    KG_TRY(
        kg_policy_weights_of(c->weight, &e.algo, &totals, c->v.d[0], begin, NULL, err));
    for (int64_t i = 0; i < c->n; i++)
        c->weight[i] *= scale;
    return KG_OK;
}

static kg_status value_loss(struct kg_golden_case *g, struct kg_err *err)
{
    struct critic c = {0};
    double loss = 0, clips = 0, count;
    const char *variant;
    int64_t n = 0;

    KG_TRY(read_critic(&c, g, err));
    KG_TRY(critic_weights(&c, g, err));
    KG_TRY(kg_golden_text(&variant, g, "variant", err));
    for (int64_t i = 0; i < c.v.n; i++) {
        bool counts = c.mask.x[i] != 0, clipped;
        double dv = 0, weight = counts ? c.weight[n++] : 0;

        loss += weight * kg_policy_value_loss(&dv, &clipped, c.v.x[i], c.old.x[i],
                                              c.ret.x[i], c.range);
        clips += counts && clipped;
        if (c.want.x)
            kg_golden_compare(g, "grad.vpreds", i, weight * dv, c.want.x[i]);
    }
    count = (double)c.n + (strcmp(variant, "ema-search") == 0 ? 0 : 1e-8);
    KG_TRY(kg_golden_expect(g, "vf_loss", loss, err));
    return kg_golden_expect(g, "vf_clipfrac", clips / count, err);
}

static kg_status overlong(struct kg_golden_case *g, struct kg_err *err)
{
    struct kg_golden_shape shape = {1, {-1}};
    struct kg_golden_array n, score, penalty, reward;
    double most, buffer, factor;

    KG_TRY(kg_golden_input(&n, g, "response_length", shape, err));
    shape.d[0] = n.n;
    KG_TRY(kg_golden_input(&score, g, "score", shape, err));
    KG_TRY(kg_golden_array(&penalty, g, "expected", "overlong_penalty", shape, err));
    KG_TRY(kg_golden_array(&reward, g, "expected", "sequence_reward", shape, err));
    KG_TRY(kg_golden_need_real(&most, g, "max_resp_len", err));
    KG_TRY(kg_golden_need_real(&buffer, g, "overlong_buffer_len", err));
    KG_TRY(kg_golden_need_real(&factor, g, "penalty_factor", err));
    for (int64_t i = 0; i < n.n; i++) {
        double p = kg_policy_overlong((int64_t)n.x[i], (int64_t)most, (int64_t)buffer,
                                      factor);

        if (penalty.x)
            kg_golden_compare(g, "overlong_penalty", i, p, penalty.x[i]);
        if (reward.x)
            kg_golden_compare(g, "sequence_reward", i, score.x[i] + p, reward.x[i]);
    }
    return KG_OK;
}

/* The tokens under the mask, without gaps; score: the KL is subtracted from it. */
struct shaped {
    struct kg_golden_array score, mask, old, ref;
    int64_t *begin, *at;
    double *reward, *logp, *anchor;
};

static kg_status read_shaped(struct shaped *s, struct kg_golden_case *g,
                             const char *score, const char *mask, struct kg_err *err)
{
    struct kg_golden_shape shape = {2, {-1, -1}};
    int64_t n = 0;

    KG_TRY(kg_golden_input(&s->score, g, score, shape, err));
    shape = (struct kg_golden_shape){2, {s->score.d[0], s->score.d[1]}};
    KG_TRY(kg_golden_input(&s->mask, g, mask, shape, err));
    KG_TRY(kg_golden_input(&s->old, g, "old_log_prob", shape, err));
    KG_TRY(kg_golden_input(&s->ref, g, "ref_log_prob", shape, err));
    KG_TRY(kg_golden_reals(&s->reward, g, s->score.n, err));
    KG_TRY(kg_golden_reals(&s->logp, g, s->score.n, err));
    KG_TRY(kg_golden_reals(&s->anchor, g, s->score.n, err));
    s->begin = kg_golden_room(g, s->score.d[0] + 1, sizeof *s->begin, err);
    s->at = kg_golden_room(g, s->score.n, sizeof *s->at, err);
    if (!s->begin || !s->at)
        return err->code;
    for (int64_t i = 0; i < s->score.n; i++) {
        if (s->mask.x[i] != 0) {
            s->reward[n] = s->score.x[i];
            s->logp[n] = s->old.x[i], s->anchor[n] = s->ref.x[i];
            s->at[n++] = i;
        }
        s->begin[i / s->score.d[1] + 1] = n;
    }
    return KG_OK;
}

static kg_status kl_in_reward(struct kg_golden_case *g, struct kg_err *err)
{
    struct shaped s = {0};
    struct kg_golden_array want;
    struct kg_golden_batch e;
    double mean, target, horizon;

    KG_TRY(read_shaped(&s, g, "token_level_scores", "response_mask", err));
    int64_t B = s.score.d[0];
    KG_TRY(kg_golden_array(&want, g, "expected", "token_level_rewards",
                           (struct kg_golden_shape){2, {B, s.score.d[1]}}, err));
    KG_TRY(kg_golden_start(&e, g, err));
    KG_TRY(kg_golden_estimator(&e, "kl_penalty", err));
    KG_TRY(kg_golden_need_real(&e.algo.kl_beta, g, "init_kl_coef", err));
    KG_TRY(kg_golden_need_real(&target, g, "target_kl", err));
    KG_TRY(kg_golden_need_real(&horizon, g, "horizon", err));
    e.algo.count_eps = 1e-8;
    KG_TRY(
        kg_policy_kl_reward(s.reward, &mean, &e.algo, B, s.begin, s.logp, s.anchor, err));
    for (int64_t i = 0; want.x && i < s.begin[B]; i++)
        kg_golden_compare(g, "token_level_rewards", s.at[i], s.reward[i],
                          want.x[s.at[i]]);
    KG_TRY(kg_golden_metric(g, "actor/reward_kl_penalty", mean, err));
    return kg_golden_expect(
        g, "next_coef", kg_policy_adaptive_kl(e.algo.kl_beta, mean, target, horizon, B),
        err);
}

/* Tokens outside the mask keep their advantage and are not in the arrays. */
static kg_status kl_in_advantage(struct kg_golden_case *g, struct kg_err *err)
{
    struct shaped s = {0};
    struct kg_policy_taken taken;
    struct kg_golden_array want;
    struct kg_golden_batch e;
    bool future = false;

    KG_TRY(read_shaped(&s, g, "advantages", "info_mask", err));
    KG_TRY(kg_golden_array(&want, g, "expected", "advantages",
                           (struct kg_golden_shape){2, {s.score.d[0], s.score.d[1]}},
                           err));
    KG_TRY(kg_golden_start(&e, g, err));
    KG_TRY(kg_golden_estimator(&e, "kl_penalty", err));
    KG_TRY(kg_golden_need_real(&e.algo.kl_beta, g, "kl_coef", err));
    KG_TRY(kg_golden_bool(&future, g, "use_future_kl_as_reward", err));
    KG_TRY(kg_algo_set(&e.algo, "kl.in", future ? "advantage-future" : "advantage", err));
    KG_TRY(kg_policy_kl_advantage(s.reward, &taken, &e.algo, s.score.d[0], s.begin,
                                  s.logp, s.anchor, err));
    for (int64_t i = 0, n = 0; want.x && i < s.score.n; i++)
        kg_golden_compare(g, "advantages", i,
                          s.mask.x[i] != 0 ? s.reward[n++] : s.score.x[i], want.x[i]);
    return kg_golden_expect(g, "current_kl", taken.mean_kl, err);
}

kg_status kg_golden_misc(struct kg_golden_case *g, struct kg_err *err)
{
    static const struct {
        const char *input;
        kg_status (*run)(struct kg_golden_case *g, struct kg_err *err);
    } kinds[] = {
        {"current_kl", adaptive_kl},    {"vpreds", value_loss},
        {"response_length", overlong},  {"token_level_scores", kl_in_reward},
        {"info_mask", kl_in_advantage},
    };

    for (size_t i = 0; i < KG_COUNT(kinds); i++)
        if (kg_golden_at(g, "inputs", kinds[i].input))
            return kinds[i].run(g, err);
    return kg_fail(err, KG_EUNSUPPORTED,
                   "inputs: expected current_kl, vpreds, response_length, "
                   "token_level_scores or info_mask; found none of them");
}

/* ---- ema_update ---- */

kg_status kg_golden_ema_update(struct kg_golden_case *g, struct kg_err *err)
{
    struct kg_golden_array start, theta, want, due;
    struct kg_golden_batch e;
    const char *dtype;
    double *ema, period;

    KG_TRY(kg_golden_input(&start, g, "theta0", (struct kg_golden_shape){1, {-1}}, err));
    KG_TRY(kg_golden_input(&theta, g, "theta", (struct kg_golden_shape){2, {-1, start.n}},
                           err));
    KG_TRY(kg_golden_array(&want, g, "expected", "ema",
                           (struct kg_golden_shape){2, {theta.d[0], start.n}}, err));
    KG_TRY(kg_golden_array(&due, g, "expected", "updated",
                           (struct kg_golden_shape){1, {theta.d[0]}}, err));
    KG_TRY(kg_golden_start(&e, g, err));
    KG_TRY(kg_algo_set(&e.algo, "anchor.kind", "ema", err));
    KG_TRY(kg_golden_need_real(&e.algo.anchor_eta, g, "tau", err));
    KG_TRY(kg_golden_real(&period, g, "period", 1, err));
    KG_TRY(kg_golden_text(&dtype, g, "dtype", err));
    if (!(period >= 1))
        return kg_fail(err, KG_EFORMAT, "config.period: expected 1 or more, found %g",
                       period);
    e.algo.anchor_period = (int64_t)period;
    if (strcmp(dtype, "float32") == 0) { /* the reference may fuse multiply-adds */
        g->excepted = true;
        g->tolerance.rel = g->tolerance.abs = 1e-6;
    }
    KG_TRY(kg_golden_reals(&ema, g, start.n, err));
    memcpy(ema, start.x, (size_t)start.n * sizeof *ema);
    for (int64_t s = 0; s < theta.d[0]; s++) {
        bool move = kg_policy_anchor_due(&e.algo, s + 1);

        if (due.x)
            kg_golden_compare(g, "updated", s, move, due.x[s]);
        if (move)
            kg_policy_ema(ema, theta.x + s * start.n, start.n, e.algo.anchor_eta);
        for (int64_t i = s * start.n; want.x && i < (s + 1) * start.n; i++)
            kg_golden_compare(g, "ema", i, ema[i - s * start.n], want.x[i]);
    }
    return KG_OK;
}
