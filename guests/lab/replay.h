/* Replay: the loss and gradient of a dumped step under the run's algorithm or another.
 *
 * The trajectories come from the dump, the weights from the checkpoint that stood before
 * the step. The whole batch is taken as one update at these weights. Each part of the
 * loss has its gradient; variance is that of the sum over groups of answers,
 *     n / (n - 1) (sum_i |G_i|^2 - |sum_i G_i|^2 / n),   G_i the part of group i of n
 * and cosine is to the gradient of the exact KL on the same batch. The KL of the loss is
 * also held against the exact one group by group, D_i = G_i - (exact G_i):
 *     noise^2 = n / (n - 1) (sum_i |D_i|^2 - |sum_i D_i|^2 / n)
 *     bias^2  = |sum_i D_i|^2 - noise^2
 * of which the second is unbiased for |E sum_i D_i|^2 where groups are independent, and
 * so may come out below 0. The run's folder is read and never written.
 */
#ifndef KG_LAB_REPLAY_H
#define KG_LAB_REPLAY_H

#include "base/status.h"
#include "train/checkpoint.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KG_REPLAY_MOST_BYTES ((uint64_t)1 << 32)

enum kg_replay_part {
    KG_REPLAY_LOSS,
    /* without the KL in the loss; absent with algo.surrogate none, where the loss is the
     * KL term, and not computed a second time */
    KG_REPLAY_POLICY,
    KG_REPLAY_KL,    /* that KL alone */
    KG_REPLAY_EXACT, /* the exact KL in its place, of the same direction and weight */
    KG_REPLAY_PARTS
};
const char *kg_replay_part_name(enum kg_replay_part part);

struct kg_replay_row {
    bool there;
    double value;    /* of the loss, weights and coefficients included */
    double norm;     /* of its gradient */
    double variance; /* 0 with one group */
    double cosine;   /* NAN where one of the two gradients is absent or zero */
    /* of the KL term, in units of the exact gradient's norm and its square; NAN
     * elsewhere, with one group, and where the exact gradient is 0 or is not kept */
    double noise, bias_squared;
};

struct kg_replay {
    char checkpoint[KG_CHECKPOINT_NAME]; /* "" for the weights that the run began with */
    int64_t step;                        /* replayed */
    int64_t weights_step;                /* of the weights: step - 1 when they sampled */
    size_t answers, groups;
    size_t left_out;  /* dumped answers that the step did not learn from */
    double apart_max; /* of recorded and present log-probs: 0 with the same weights */
    /* the same of advantages (of an answer's first token): 0 under the run's algorithm,
     * unless log-probs that are apart come into them */
    double advantage_apart_max;
    /* bytes that the gradients of all groups take; above KG_REPLAY_MOST_BYTES they are
     * not kept, and noise and bias are not known */
    uint64_t group_bytes;
    char algorithm[512];
    struct kg_replay_row row[KG_REPLAY_PARTS];
};

/* dir: the run; assignments: preset=NAME, and keys of algo, kl and anchor.
 * errors: NOTFOUND (no run, dump or checkpoint), EINVAL (another key; what the dump does
 * not hold), and those of training */
kg_status kg_replay_run(struct kg_replay *out, const char *dir, int64_t step,
                        char *const *assignments, size_t n,
                        struct kg_err *err) KG_MUST_CHECK;

#endif
