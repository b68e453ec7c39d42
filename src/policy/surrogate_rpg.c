/* KL-regularised policy gradients: the KL towards the sampling policy lives inside the
 * loss.
 *
 * beta is kl.beta; kl.estimator is none for these rows. r = p / old. Two families:
 * differentiable (Algorithm 1: a dual clip of the regularised advantage) and score
 * function (Algorithm 2), the latter also in the three forms of the released code.
 */
#include "base/real.h"
#include "policy/policy_internal.h"

#include <math.h>

/* Regularised advantage and its derivative with respect to log r. Algorithm 1 lets the
 * gradient flow through it, which adds beta r grad log p: 0 on average under the old
 * policy, but not for a sample. With algo.rpg_detach, a sample's weight of grad log p is
 * that of the exact policy gradient. */
static double regularised(double *slope, double advantage, double x, int kind,
                          const struct kg_algo *algo)
{
    double beta = algo->kl_beta;

    *slope = 0;
    if (kind != KG_RPG_RKL && kind != KG_RPG_URKL)
        return advantage;
    *slope = algo->rpg_detach ? 0 : -beta;
    return advantage - beta * (kind == KG_RPG_RKL ? x + 1 : x);
}

/* With Ahat' = slope:  branch r:     value -r Ahat,    d/dlog r = -r (Ahat + Ahat')
 *                      clipped to b: value -b Ahat,    d/dlog r = -b Ahat'
 *                      c branch:     value -c Ahat,    d/dlog r = -c Ahat' */
void kg_pg_rpg(struct kg_pg_out *out, const struct kg_pg_in *in, struct kg_pg_call call)
{
    const struct kg_algo *algo = call.algo;
    int kind = call.row->kind;
    bool inside;
    double x = kg_pg_log_ratio(in->logp - in->old, algo, &inside), r = kg_exp(x), slope,
           bound;
    double a = regularised(&slope, in->advantage, x, kind, algo);

    kg_pg_dual_clip(out, r, inside, a, algo);
    bound = out->clip == KG_CLIP_DUAL   ? algo->dual_clip
            : out->clip == KG_CLIP_HIGH ? 1 + algo->clip_high
            : out->clip == KG_CLIP_LOW  ? 1 - algo->clip_low
                                        : r;
    out->coef -= inside ? bound * slope : 0;
    if (kind == KG_RPG_FKL)
        out->value -= algo->kl_beta * x;
    if (kind == KG_RPG_UFKL)
        out->value += algo->kl_beta * (r - x - 1);
    if (inside && kind == KG_RPG_FKL)
        out->coef -= algo->kl_beta;
    if (inside && kind == KG_RPG_UFKL)
        out->coef += algo->kl_beta * (r - 1);
}

/* beta times the negative weight of grad log p in the KL's gradient */
static double component(int kind, double r, double beta)
{
    switch (kind) {
    case KG_RPG_FKL:
        return beta;
    case KG_RPG_UFKL:
        return beta * (1 - r);
    case KG_RPG_RKL:
        return -beta * r * (kg_log(r) + 1);
    default:
        return -beta * r * kg_log(r);
    }
}

static void constant(struct kg_pg_out *out, double value, enum kg_clip clip)
{
    out->value = value;
    out->coef = 0;
    out->clip = clip;
    out->clips = 1;
}

/* Algorithm 2. l = -log p >= 0, so the sign of psi = (A + C / r) l is the sign of A + C /
 * r. */
static void paper(struct kg_pg_out *out, const struct kg_pg_in *in, double r,
                  struct kg_pg_call call)
{
    const struct kg_algo *algo = call.algo;
    double l = -in->logp, a = in->advantage,
           c = component(call.row->kind, r, algo->kl_beta);
    double low = 1 - algo->clip_low, high = 1 + algo->clip_high, dual = algo->dual_clip;
    bool positive = a + c / r >= 0;

    out->value = (r * a + c) * l;
    out->coef = -(r * a + c);
    if (positive && r >= high)
        constant(out, (high * a + c) * l, KG_CLIP_HIGH);
    else if (!positive && r <= low)
        constant(out, (low * a + c) * l, KG_CLIP_LOW);
    else if (!positive && dual > 0 && r >= dual)
        constant(out, (dual * a + c) * l, KG_CLIP_DUAL);
}

static void hard(struct kg_pg_out *out, const struct kg_pg_in *in, double r,
                 struct kg_pg_call call)
{
    const struct kg_algo *algo = call.algo;
    double low = 1 - algo->clip_low, high = 1 + algo->clip_high;
    double bounded = fmin(fmax(r, low), high);
    double weight = in->advantage * bounded +
                    component(call.row->kind, bounded, algo->kl_beta);

    out->value = -weight * in->logp;
    out->coef = -weight;
    out->clips = bounded != r;
    out->clips_lower = r < low;
    out->clip = r > high ? KG_CLIP_HIGH : r < low ? KG_CLIP_LOW : KG_CLIP_NONE;
}

/* The released clip: K is computed from the bounded ratio, the constants have -K at both
 * ends and +K at c, and v3 branches on the sign of (A + K / r) log p. Both branches share
 * the term (r A + K) log p. */
static void released(struct kg_pg_out *out, const struct kg_pg_in *in, double r,
                     struct kg_pg_call call)
{
    const struct kg_algo *algo = call.algo;
    double low = 1 - algo->clip_low, high = 1 + algo->clip_high, lp = in->logp;
    double a = in->advantage;
    double k = component(call.row->kind, fmin(fmax(r, low), high), algo->kl_beta);
    bool upper = call.row->style == KG_RPG_CLIP ? a > 0 : (a + k / r) * lp > 0;
    double shared = (r * a + k) * lp, above = (high * a - k) * lp,
           below = (low * a - k) * lp;
    double at_c = (algo->dual_clip * a + k) * lp;
    double first = r < high ? shared : above, inner = r < low ? below : shared;
    double second = !(algo->dual_clip > 0) || r < algo->dual_clip ? inner : at_c;

    out->value = -shared;
    out->coef = -(r * a + k);
    if (upper && r >= high)
        constant(out, -above, KG_CLIP_HIGH);
    else if (!upper && r < low)
        constant(out, -below, KG_CLIP_LOW);
    else if (!upper && algo->dual_clip > 0 && r >= algo->dual_clip)
        constant(out, -at_c, KG_CLIP_DUAL);
    out->clips = (above > first) + (inner > shared);
    out->clips_lower = inner > second && a < 0;
}

void kg_pg_rpg_reinforce(struct kg_pg_out *out, const struct kg_pg_in *in,
                         struct kg_pg_call call)
{
    double r = kg_exp(in->logp - in->old);

    out->ratio = r;
    switch (call.row->style) {
    case KG_RPG_PAPER:
        paper(out, in, r, call);
        break;
    case KG_RPG_HARD:
        hard(out, in, r, call);
        break;
    default:
        released(out, in, r, call);
    }
}
