/* Replay: loss and gradient of a dumped step, under the run's algorithm or another.
 *
 * The trajectories come from the dump, the weights from the last checkpoint before the
 * step. The whole batch is one update at these weights. The gradient of each part of the
 * loss is computed. `variance` is that of the gradient's sum over groups,
 *     n / (n - 1) (sum_i |G_i|^2 - |sum_i G_i|^2 / n),   G_i the part of group i of n
 * and cosines are with the gradients of the exact KL and of the exact objective, on the
 * same batch. The exact objective has the algorithm's advantages and weights, and W, the
 * probability ratio of a whole completion to the sampler, without clip or mask:
 *     sum_n weight_n -sg(W) A_n log p_n  +  beta (exact KL)  -  c_H (entropy)
 * Over completions it is unbiased for the weighted -E_p[A] (lab/exact.h). It has no KL if
 * the loss has none, or if there is no anchor model.
 *
 * The KL gradient of the loss is also compared with the exact KL's, group by group: with
 * D_i = G_i - (exact G_i),
 *     noise^2 = n / (n - 1) (sum_i |D_i|^2 - |sum_i D_i|^2 / n)
 *     bias^2  = |sum_i D_i|^2 - noise^2
 * bias^2 is an unbiased estimate of |E sum_i D_i|^2 if groups are independent, so it may
 * be negative. The run's folder is never written.
 */
#ifndef KG_LAB_REPLAY_H
#define KG_LAB_REPLAY_H

#include "base/status.h"
#include "train/keep/checkpoint.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KG_REPLAY_MOST_BYTES ((uint64_t)1 << 32)

enum kg_replay_part {
    KG_REPLAY_LOSS,
    /* the loss without its KL; absent with algo.surrogate none, where the loss is only
     * the KL */
    KG_REPLAY_POLICY,
    KG_REPLAY_KL,        /* only the KL of the loss */
    KG_REPLAY_OBJECTIVE, /* the exact objective */
    KG_REPLAY_EXACT,     /* the exact KL, with the same direction and weight */
    KG_REPLAY_PARTS
};
const char *kg_replay_part_name(enum kg_replay_part part);

struct kg_replay_row {
    bool there;      /* the algorithm has this part */
    double value;    /* value of this part, with weights and coefficients */
    double norm;     /* of its gradient */
    double variance; /* of its gradient; 0 with one group */
    /* cosine of the gradient with those of the exact KL and of the exact objective; NAN
     * if a gradient is absent or zero */
    double cosine, to_objective;
    /* noise / |G| and bias^2 / |G|^2 of the KL's gradient (G: the exact KL's gradient);
     * NAN for other parts, with one group, and if G is 0 or was not kept */
    double noise, bias_squared;
};

struct kg_replay {
    char checkpoint[KG_CHECKPOINT_NAME]; /* "" for the run's initial weights */
    int64_t step;                        /* the step replayed */
    int64_t weights_step;                /* step - 1 if these weights sampled the batch */
    size_t answers, groups;              /* numbers of completions and groups */
    size_t left_out; /* dumped samples that the step did not learn from */
    /* largest gap between recorded and recomputed log-probs; 0 for the same weights */
    double apart_max;
    /* largest gap between advantages (of a sample's first token): 0 under the run's
     * algorithm, unless advantages depend on log-probs that differ */
    double advantage_apart_max;
    /* memory for the gradients of all groups; above KG_REPLAY_MOST_BYTES they are not
     * kept, and noise and bias are unknown */
    uint64_t group_bytes;
    char algorithm[512];
    struct kg_replay_row row[KG_REPLAY_PARTS];
};

/* dir: of the run; assignments (n): preset=NAME, and KEY=VALUE for train.old_logp and the
 * keys of algo, kl and anchor.
 * errors: ENOTFOUND (no run, dump or checkpoint), EINVAL (another key; data missing in
 * the dump), and those of training */
kg_status kg_replay_run(struct kg_replay *out, const char *dir, int64_t step,
                        char *const *assignments, size_t n,
                        struct kg_err *err) KG_MUST_CHECK;

#endif
