/* Top-k KL: exact on a head of k ids, one sampled term for everything outside it.
 *
 * Log-probs are normalised over the whole vocabulary for both policies, never inside the
 * head. The head set is data (the sampler's or the anchor's top k), so it is not
 * differentiated.
 *
 * `published` and `corrected` have the same value; they differ in the head's gradient. On
 * the whole vocabulary the mass sum_j p_j is constant; on a head it is not, and the
 * published tail (K4, K5) leaves its gradient out. Corrected moves it to where it
 * cancels, in the form whose gradient is exactly zero when p = q:
 *                            published         corrected
 *     reverse  dL1/dlogp_j = p_j (d_j + 1)     p_j d_j
 *     forward  dL1/dlogp_j = -q_j              p_j - q_j
 * The importance weight s belongs to the sampled tail alone.
 *
 * The other rows read no sampled token and are biased in value and gradient. With P =
 * sum_j p_j and Q = sum_j q_j over the head, the anchor's top k:
 *     truncated    both policies renormalised on the head: a KL of other distributions
 *     bucket       all other ids are one more event, of mass 1 - P and 1 - Q: a KL of
 *                  coarser distributions, never above the exact one
 *     generalised  the head alone, plus the difference of the masses, so that no term is
 *                  below 0 and p = q is the minimum on the head
 */
#include "base/real.h"
#include "policy/policy_internal.h"

#include <math.h>

enum { LOG_W_MAX = 20 };

static void close_tail(struct kg_kl_out *out, const struct kg_kl_in *in,
                       const struct kg_algo *algo, double value, double coef)
{
    if (out->in_tail && algo->kl_tail) {
        out->tail = in->s * value;
        out->coef = in->s * coef;
    }
    out->value = out->head + out->tail;
}

void kg_kl_topk_reverse(struct kg_kl_out *out, const struct kg_kl_in *in,
                        const struct kg_kl_row *row, const struct kg_algo *algo)
{
    double extra = algo->kl_corrected ? 0 : 1;

    (void)row;
    out->in_tail = true;
    for (int j = 0; j < in->k; j++) {
        double d, p;

        if (in->ids[j] < 0)
            continue;
        if (in->ids[j] == in->token)
            out->in_tail = false;
        d = in->at[j] - in->anchor_at[j];
        p = kg_exp(in->at[j]);
        out->head += p * d;
        out->mass += p;
        out->at[j] = p * (d + extra);
    }
    close_tail(out, in, algo, in->d, in->d);
}

void kg_kl_topk_forward(struct kg_kl_out *out, const struct kg_kl_in *in,
                        const struct kg_kl_row *row, const struct kg_algo *algo)
{
    double x = -in->d, slope = -kg_expm1(x);

    (void)row;
    out->in_tail = true;
    for (int j = 0; j < in->k; j++) {
        double p, q;

        if (in->ids[j] < 0)
            continue;
        if (in->ids[j] == in->token)
            out->in_tail = false;
        p = kg_exp(in->at[j]);
        q = kg_exp(in->anchor_at[j]);
        out->head += q * (in->anchor_at[j] - in->at[j]);
        out->mass += p;
        out->at[j] = (algo->kl_corrected ? p : 0) - q;
    }
    if (algo->kl_clamp && fabs(x) > LOG_W_MAX) {
        x = x > 0 ? LOG_W_MAX : -LOG_W_MAX;
        slope = 1;
    }
    close_tail(out, in, algo, kg_exp(x) * x, slope);
}

/* log sum_j exp(x_j) over the used slots */
static double log_mass(const double *x, const struct kg_kl_in *in)
{
    double most = -INFINITY, sum = 0;

    for (int j = 0; j < in->k; j++)
        if (in->ids[j] >= 0)
            most = fmax(most, x[j]);
    for (int j = 0; j < in->k; j++)
        if (in->ids[j] >= 0)
            sum += kg_exp(x[j] - most);
    return most + kg_log(sum);
}

/* With a_j = p_j / P, b_j = q_j / Q, d_j = log(a_j / b_j):
 *     reverse  R = sum a_j d_j,    dR/dlogp_j = a_j (d_j - R)
 *     forward  F = -sum b_j d_j,   dF/dlogp_j = a_j - b_j
 * Both gradients sum to 0 over the head, so other logits have no gradient. */
void kg_kl_truncated(struct kg_kl_out *out, const struct kg_kl_in *in,
                     const struct kg_kl_row *row, const struct kg_algo *algo)
{
    double P = log_mass(in->at, in), Q = log_mass(in->anchor_at, in);

    (void)algo;
    for (int j = 0; j < in->k; j++) {
        double la = in->at[j] - P, lb = in->anchor_at[j] - Q;

        if (in->ids[j] >= 0)
            out->head += row->forward ? kg_exp(lb) * (lb - la) : kg_exp(la) * (la - lb);
    }
    for (int j = 0; j < in->k; j++) {
        double la = in->at[j] - P, lb = in->anchor_at[j] - Q;

        if (in->ids[j] >= 0)
            out->at[j] = row->forward ? kg_exp(la) - kg_exp(lb)
                                      : kg_exp(la) * (la - lb - out->head);
    }
    out->mass = kg_exp(P);
    out->value = out->head;
}

static const double rest_min = 1e-7; /* as in the released code */

/* The rest is one event. With p' = 1 - P, q' = 1 - Q and t = log(p' / q'):
 *     reverse  R = sum p_j d_j + p' t,         dR/dlogp_j = p_j (d_j - t)
 *     forward  F = -sum q_j d_j - q' t,        dF/dlogp_j = p_j q' / p' - q_j
 * A rest at its lower bound is a constant. */
void kg_kl_bucket(struct kg_kl_out *out, const struct kg_kl_in *in,
                  const struct kg_kl_row *row, const struct kg_algo *algo)
{
    double P = kg_exp(log_mass(in->at, in)), Q = kg_exp(log_mass(in->anchor_at, in));
    double p = fmax(1 - P, rest_min), q = fmax(1 - Q, rest_min), t = kg_log(p / q);
    double moves = 1 - P > rest_min ? 1 : 0;

    (void)algo;
    out->head = row->forward ? -q * t : p * t;
    for (int j = 0; j < in->k; j++) {
        double d = in->at[j] - in->anchor_at[j], pj, qj;

        if (in->ids[j] < 0)
            continue;
        pj = kg_exp(in->at[j]), qj = kg_exp(in->anchor_at[j]);
        out->head += row->forward ? -qj * d : pj * d;
        out->at[j] = row->forward ? moves * pj * q / p - qj
                                  : pj * (d + 1 - moves * (t + 1));
    }
    out->mass = P;
    out->value = out->head;
}

/* sum p_j d_j - p_j + q_j over the head, dvalue/dlogp_j = p_j d_j: no term below 0, and
 * the only minimum is p = q on the head */
void kg_kl_generalised(struct kg_kl_out *out, const struct kg_kl_in *in,
                       const struct kg_kl_row *row, const struct kg_algo *algo)
{
    (void)row, (void)algo;
    for (int j = 0; j < in->k; j++) {
        double d = in->at[j] - in->anchor_at[j], p;

        if (in->ids[j] < 0)
            continue;
        p = kg_exp(in->at[j]);
        out->head += p * d - p + kg_exp(in->anchor_at[j]);
        out->mass += p;
        out->at[j] = p * d;
    }
    out->value = out->head;
}
