/* Rows of the tables against the exact gradient, every outcome enumerated.
 *
 * A vocabulary of KG_EXACT_VOCAB ids is small enough to sum over. A KL estimator is
 * compared, at one context, with the divergence of its row. A surrogate or a mask is
 * compared, over all completions of KG_EXACT_TOKENS tokens, with the objective that the
 * policy should improve:
 *
 *     -E_{y~p}[A(y)] = -E_{y~mu}[A(y) prod_t p(y_t) / mu(y_t)]
 *
 * Loss and gradients come from kg_policy_loss, as in a run.
 * Probabilities, logits and rewards are fixed numbers, the same on every machine.
 */
#ifndef KG_LAB_EXACT_H
#define KG_LAB_EXACT_H

#include "base/status.h"
#include "policy/algo.h"

#include <stddef.h>

enum { KG_EXACT_VOCAB = 10, KG_EXACT_TOKENS = 3, KG_EXACT_HEAD = 3, KG_EXACT_PLACES = 3 };

/* Nats at which rows are compared: KL(p||q) for a KL estimator; for the others the mean
 * KL(mu||p) of the tokens of a completion, a measure of staleness. */
extern const double kg_exact_kl_nats[KG_EXACT_PLACES];
extern const double kg_exact_stale_nats[KG_EXACT_PLACES];

/* An estimator's gradient, in units of the norm of the exact one. */
struct kg_exact_gradient {
    double bias;   /* |E[g] - exact| */
    double noise;  /* sqrt(E|g|^2 - |E[g]|^2), of one sample */
    double cosine; /* of E[g] with the exact gradient; NAN if E[g] is 0 */
    double length; /* |E[g]| */
};

struct kg_exact_kl {
    double kl;          /* the divergence of the row */
    double value_bias;  /* (E[value] - kl) / kl; NAN for rows that shape rewards alone */
    double value_noise; /* standard deviation of the value, over kl */
    struct kg_exact_gradient in_loss; /* NANs for rows that shape rewards alone */
    /* gradient if the value is subtracted from its own token's advantage */
    struct kg_exact_gradient in_advantage;
    /* as in_loss, with y drawn from an older policy, with the importance weight and
     * without; NANs for rows whose tokens are drawn by q */
    struct kg_exact_gradient stale, stale_unweighted;
};

struct kg_exact_region {
    struct kg_exact_gradient gradient;
    double
        stopped; /* share of tokens with an advantage and no gradient, by probability */
};

/* Keys and values as text; a row ignores keys that it does not take. */
struct kg_exact_keys {
    const char **key, **value; /* (n) borrowed */
    size_t n;
};

/* Whether row i of the table takes the key: it reads it (kg_policy_reads), or it masks by
 * the weight old/sampler and the key is a bound of it. */
bool kg_exact_takes(enum kg_policy_table table, size_t i, const char *key);

/* Working memory of comparisons: about 10 MB. */
struct kg_exact;
kg_status kg_exact_create(struct kg_exact **exact, struct kg_err *err) KG_MUST_CHECK;
void kg_exact_free(struct kg_exact *exact); /* NULL is allowed */

/* For row i of KG_TABLE_KL, with kl.top_k KG_EXACT_HEAD. The stale policy is as far from
 * p as q is.   errors: those of kg_algo_set and kg_policy_loss */
kg_status kg_exact_kl_row(struct kg_exact_kl out[KG_EXACT_PLACES], struct kg_exact *exact,
                          size_t i, const struct kg_exact_keys *keys,
                          struct kg_err *err) KG_MUST_CHECK;

/* For row i of KG_TABLE_SURROGATE or KG_TABLE_MASK. A mask is put on the surrogate
 * importance. Bounds are taken from kg_exact_preset, or else are the defaults; algo.top_k
 * is KG_EXACT_HEAD, and a KL inside the row is off. old is mu; it is p where that preset
 * recomputes old log-probs, as in the first update of a step. NANs: the row has no bound
 * without a value of algo.mask_delta.
 * errors: those of kg_algo_set, kg_policy_loss and kg_policy_select */
kg_status kg_exact_region_row(struct kg_exact_region out[KG_EXACT_PLACES],
                              struct kg_exact *exact, enum kg_policy_table table,
                              size_t i, const struct kg_exact_keys *keys,
                              struct kg_err *err) KG_MUST_CHECK;

/* The method of that name, else the first one that uses the row; NULL: none. */
const struct kg_preset *kg_exact_preset(enum kg_policy_table table, size_t i);

#endif
