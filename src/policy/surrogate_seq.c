/* Terms whose ratio belongs to the whole sequence.
 *
 * All tokens of a sequence carry one weight w, so the loss of a sequence is w sum_t
 * term_t, and coef[t] = d(sum_u term_u)/dlogp_t is what loss.c multiplies by w.
 */
#include "base/real.h"
#include "policy/policy_internal.h"

#include <math.h>

enum { LOG_RATIO_MAX = 10, LOG_W_MAX = 20 };
static const double log_w_min = -18.420680743952367; /* log 1e-8 */

/* s = exp(mean_t log r_t), with the straight-through form s_t = sg(s) p_t / sg(p_t): each
 * token's term has the derivative of its own log-prob only. */
void kg_pg_gspo(struct kg_pg_out *out, const struct kg_pg_in *in, int64_t n,
                struct kg_pg_call call)
{
    struct kg_algo algo = *call.algo;
    double sum = 0, mean;

    algo.dual_clip = 0; /* not part of the method */
    for (int64_t t = 0; t < n; t++)
        sum += in[t].logp - in[t].old;
    mean = sum / (double)(n > 0 ? n : 1);
    for (int64_t t = 0; t < n; t++)
        kg_pg_dual_clip(&out[t], kg_exp(fmin(mean, LOG_RATIO_MAX)), mean <= LOG_RATIO_MAX,
                        in[t].advantage, &algo);
}

/* log s = mean_t x_t,  x_t = log r_t clamped to at most high where A > 0, to at least
 * -low where A < 0, and 0 where A = 0.  Each of the n terms is -Abar s, so d(sum_u
 * term_u)/dlogp_t = n (-Abar s) 1[x_t not clamped] / n. */
void kg_pg_gmpo(struct kg_pg_out *out, const struct kg_pg_in *in, int64_t n,
                struct kg_pg_call call)
{
    const struct kg_algo *algo = call.algo;
    double count = (double)n + algo->count_eps, sum = 0, advantage = 0, is = 0, term;

    for (int64_t t = 0; t < n; t++) {
        double x = in[t].logp - in[t].old, a = in[t].advantage;

        out[t].ratio = kg_exp(x);
        if (a > 0 && x > algo->clip_high)
            out[t].clip = KG_CLIP_HIGH;
        if (a < 0 && x < -algo->clip_low)
            out[t].clip = KG_CLIP_LOW;
        out[t].clips = out[t].clip != KG_CLIP_NONE;
        x = a > 0 ? fmin(x, algo->clip_high) : a < 0 ? fmax(x, -algo->clip_low) : 0;
        sum += x;
        advantage += a;
        is += in[t].is_weight == 1 ? 0 : kg_log(in[t].is_weight + 1e-10);
    }
    term = -advantage / count * kg_exp(sum / count) * kg_exp(is / count);
    for (int64_t t = 0; t < n; t++) {
        bool flat = out[t].clips || in[t].advantage == 0;

        out[t].value = term;
        out[t].coef = flat ? 0 : (double)n / count * term;
    }
}

/* w = prod_t p / mu of the sequence, phi(w) = w^k exp(lambda (1 - w)), with k and lambda
 * by the sign of the first advantage: phi(1) = 1, and the maximum is at w = k / lambda.
 * Clamps are those of the released code. Each token's term is -sg(phi) A log p. */
void kg_pg_vespo(struct kg_pg_out *out, const struct kg_pg_in *in, int64_t n,
                 struct kg_pg_call call)
{
    const struct kg_algo *algo = call.algo;
    bool up = n > 0 && in[0].advantage >= 0;
    double k = up ? algo->vespo_k_pos : algo->vespo_k_neg;
    double lambda = up ? algo->vespo_lambda_pos : algo->vespo_lambda_neg;
    double sum = 0, w, phi;

    for (int64_t t = 0; t < n; t++)
        sum += fmax(fmin(in[t].logp - in[t].mu, LOG_W_MAX), -LOG_W_MAX);
    sum = fmax(fmin(sum, LOG_W_MAX), -LOG_W_MAX);
    w = kg_exp(sum);
    phi = kg_exp(k * fmax(sum, log_w_min) + lambda * (1 - w));
    for (int64_t t = 0; t < n; t++) {
        out[t].ratio = w;
        out[t].value = -phi * in[t].advantage * in[t].logp;
        out[t].coef = -phi * in[t].advantage;
    }
}
