/* Compares rows of the tables with the exact gradient, by enumerating every outcome.
 *
 * A vocabulary of KG_EXACT_VOCAB ids is small enough to sum over. At one context, a KL
 * estimator is compared with the divergence that it estimates. Over all completions of
 * KG_EXACT_TOKENS tokens, a surrogate or mask is compared with the objective that the
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

/* Divergences, in nats, at which rows are compared. For KL estimators: KL(p||q). For
 * other rows, staleness: the mean KL(mu||p) over a completion's tokens. */
extern const double kg_exact_kl_nats[KG_EXACT_PLACES];
extern const double kg_exact_stale_nats[KG_EXACT_PLACES];

/* An estimator's gradient g, in units of the exact gradient's norm. */
struct kg_exact_gradient {
    double bias;   /* |E[g] - exact gradient| */
    double noise;  /* sqrt(E|g|^2 - |E[g]|^2), for one sample */
    double cosine; /* cosine of E[g] and the exact gradient; NAN if E[g] is 0 */
    double length; /* |E[g]| */
};

struct kg_exact_kl {
    double kl;          /* the divergence of the row */
    double value_bias;  /* (E[value] - kl) / kl; NAN for rows that only shape rewards */
    double value_noise; /* standard deviation of the value / kl */
    struct kg_exact_gradient in_loss; /* NANs for rows that only shape rewards */
    /* gradient if the value is subtracted from its own token's advantage */
    struct kg_exact_gradient in_advantage;
    /* in_loss for y drawn from an older policy, with and without the importance weight;
     * NANs for rows that need y drawn from q */
    struct kg_exact_gradient stale, stale_unweighted;
};

struct kg_exact_region {
    struct kg_exact_gradient gradient;
    double stopped; /* probability of tokens that have an advantage but no gradient */
};

/* Keys and values as text; a row ignores keys that it does not take. */
struct kg_exact_keys {
    const char **key, **value; /* (n) borrowed */
    size_t n;
};

/* Whether row i of the table takes the key: the row reads the key (kg_policy_reads), or
 * the key bounds the weight old/sampler by which the row masks. */
bool kg_exact_takes(enum kg_policy_table table, size_t i, const char *key);

/* Working memory of comparisons: about 10 MB. */
struct kg_exact;
kg_status kg_exact_create(struct kg_exact **exact, struct kg_err *err) KG_MUST_CHECK;
void kg_exact_free(struct kg_exact *exact); /* NULL is allowed */

/* For row i of KG_TABLE_KL, with kl.top_k KG_EXACT_HEAD. The stale policy has the same KL
 * to p as q.   errors: those of kg_algo_set and kg_policy_loss */
kg_status kg_exact_kl_row(struct kg_exact_kl out[KG_EXACT_PLACES], struct kg_exact *exact,
                          size_t i, const struct kg_exact_keys *keys,
                          struct kg_err *err) KG_MUST_CHECK;

/* For row i of KG_TABLE_SURROGATE or KG_TABLE_MASK. A mask is combined with the surrogate
 * `importance`. Bounds come from kg_exact_preset, else from the defaults; algo.top_k is
 * KG_EXACT_HEAD, and a KL inside the row is off. old is mu, or p if that preset
 * recomputes old log-probs, as in a step's first update. out is NANs if the row reads
 * algo.mask_delta and that is 0.
 * errors: those of kg_algo_set, kg_policy_loss and kg_policy_select */
kg_status kg_exact_region_row(struct kg_exact_region out[KG_EXACT_PLACES],
                              struct kg_exact *exact, enum kg_policy_table table,
                              size_t i, const struct kg_exact_keys *keys,
                              struct kg_err *err) KG_MUST_CHECK;

/* The method with the row's name, else the first that uses the row; NULL: none. */
const struct kg_preset *kg_exact_preset(enum kg_policy_table table, size_t i);

#endif
