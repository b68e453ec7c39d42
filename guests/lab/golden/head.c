/* The plain head: softmax and its gradient over whole rows, in double.
 *
 *     dloss/dz_v = 1[v in J] a_v - p_v sum_J a  -  c p_v (log p_v + H)
 *                + a_kl p_v (d_v - KL)   or   a_kl (p_v - q_v)
 */
#include "lab/golden/golden.h"

#include <math.h>
#include <stddef.h>

static double log_sum_exp(const double *z, int64_t n)
{
    double top = -INFINITY, sum = 0;

    for (int64_t v = 0; v < n; v++)
        top = fmax(top, z[v]);
    for (int64_t v = 0; v < n; v++)
        sum += exp(z[v] - top);
    return top + log(sum);
}

static void forward_row(struct kg_golden_rows *r, int64_t n)
{
    const double *z = r->logits + n * r->vocab;
    const double *q = r->anchor ? r->anchor + n * r->vocab : NULL;
    double lse = log_sum_exp(z, r->vocab), lse_q = q ? log_sum_exp(q, r->vocab) : 0;
    double h = 0, kl = 0;

    for (int64_t v = 0; v < r->vocab; v++) {
        double lp = z[v] - lse, lq = q ? q[v] - lse_q : lp;

        h -= exp(lp) * lp;
        kl += (r->kl == KG_GOLDEN_FORWARD ? -exp(lq) : exp(lp)) * (lp - lq);
    }
    r->logp[n] = z[r->tokens[n]] - lse;
    r->entropy[n] = h;
    if (r->kl != KG_GOLDEN_NO_KL)
        r->kl_exact[n] = kl;
    for (int64_t j = n * r->k; j < (n + 1) * r->k; j++) {
        r->logp_at[j] = z[r->ids[j]] - lse;
        if (q)
            r->anchor_at[j] = q[r->ids[j]] - lse_q;
    }
}

static kg_status forward(struct kg_golden_rows *rows, void *self, struct kg_err *err)
{
    (void)self, (void)err;
    for (int64_t n = 0; n < rows->n; n++)
        forward_row(rows, n);
    return KG_OK;
}

static double of(const double *x, int64_t n) { return x ? x[n] : 0; }

static void backward_row(double *out, const struct kg_golden_rows *r,
                         const struct kg_golden_coefs *c, int64_t n)
{
    const double *z = r->logits + n * r->vocab;
    const double *q = r->anchor ? r->anchor + n * r->vocab : z;
    double lse = log_sum_exp(z, r->vocab), lse_q = log_sum_exp(q, r->vocab);
    double sum = of(c->logp, n);

    for (int64_t j = n * r->k; j < (n + 1) * r->k; j++)
        sum += of(c->logp_at, j);
    for (int64_t v = 0; v < r->vocab; v++) {
        double lp = z[v] - lse, lq = q[v] - lse_q, p = exp(lp);

        out[v] = -p * sum - of(c->entropy, n) * p * (lp + r->entropy[n]);
        if (r->kl == KG_GOLDEN_FORWARD)
            out[v] += of(c->kl_exact, n) * (p - exp(lq));
        if (r->kl == KG_GOLDEN_REVERSE)
            out[v] += of(c->kl_exact, n) * p * (lp - lq - r->kl_exact[n]);
    }
    out[r->tokens[n]] += of(c->logp, n);
    for (int64_t j = n * r->k; j < (n + 1) * r->k; j++)
        out[r->ids[j]] += of(c->logp_at, j);
}

static kg_status backward(double *dlogits, const struct kg_golden_rows *rows,
                          const struct kg_golden_coefs *coefs, void *self,
                          struct kg_err *err)
{
    (void)self, (void)err;
    for (int64_t n = 0; n < rows->n; n++)
        backward_row(dlogits + n * rows->vocab, rows, coefs, n);
    return KG_OK;
}

const struct kg_golden_head kg_golden_plain_head = {forward, backward, NULL};
