/* Training state of a model: gradients, the state of an optimizer (a row of a table), the
 * learning-rate schedule, and the EMA anchor.
 *
 * Gradient clipping scales by min(1, clip/(norm + 1e-6)) as
 * torch.nn.utils.clip_grad_norm_. With decay_all (the default, as in published recipes)
 * AdamW decays all parameters, as torch.optim.AdamW(model.parameters()); otherwise only
 * matrices (is_product), not norms and biases.
 *
 * If the master weights are on the host (enum kg_on_host), the state is there too and the
 * host computes the update: gradients are copied to the host in pieces, and the new
 * `compute` is copied back. The bits are the same.
 *
 * If the model is sharded over ranks (kg_model.ranks), each rank has and updates the
 * state of its shard, and receives the weights of the other shards; the norm is that of
 * the whole model. Then kg_optim_update, kg_optim_exchange and the functions of the
 * anchor are collective, and the gradients must have been summed over the ranks.
 *
 * Schedule-free AdamW has three points: gradients are taken at y, z makes the steps, and
 * x, the average of z over the updates, is the learned model. Master weights are y during
 * training, so sampling uses the trained weights; x is computed to evaluate and to save.
 */
#ifndef KG_MODEL_OPTIM_H
#define KG_MODEL_OPTIM_H

#include "model/model.h"

enum kg_schedule { KG_SCHEDULE_CONSTANT, KG_SCHEDULE_LINEAR, KG_SCHEDULE_COSINE };

/* ---- the table of optimizers ---- */
enum { KG_OPTIM_STATES = 2 };
struct kg_optim_row {
    const char *name;
    const char *help; /* one line */
    const char *source;
    /* names of the state slabs in checkpoints */
    const char *state[KG_OPTIM_STATES];
    /* state[0] starts as the weights rather than 0, and is fp32 like them; not a
     * moment */
    bool starts_at_weights;
    bool averages; /* the evaluated and saved weights differ from the trained ones */
};
size_t kg_optim_n_rows(void);
const struct kg_optim_row *kg_optim_row_at(size_t i);
/* errors: ENOTFOUND (lists valid names) */
kg_status kg_optim_find(const struct kg_optim_row **row, const char *name,
                        struct kg_err *err) KG_MUST_CHECK;

struct kg_optim_opts {
    const struct kg_optim_row *row; /* NULL: adamw */
    double lr;
    double beta1;
    double beta2;
    double eps;
    double weight_decay;
    bool decay_all;
    double clip_norm;          /* 0: no clipping */
    enum kg_schedule schedule; /* after warmup */
    int64_t warmup_updates;    /* linear from lr/warmup to lr */
    /* > 0: during the warmup lr rises only after every `warmup_stair` updates, from 0 */
    int64_t warmup_stair;
    int64_t total_updates; /* linear and cosine reach min_lr here */
    double min_lr;
    bool keep_trained;     /* averaging rows: evaluate and save the trained weights */
    enum kg_dtype moments; /* KG_F32, or KG_BF16 with stochastic rounding: kg_op_adamw */
    struct kg_rng_key rounding; /* for that rounding */
    bool cut_grads; /* sharded model: keep only this rank's shard of the gradient */
};
/* The type of state i; the bytes of all states for n elements. */
enum kg_dtype kg_optim_state_dtype(const struct kg_optim_opts *opts, int i);
uint64_t kg_optim_state_bytes(const struct kg_optim_opts *opts, int64_t n);

struct kg_optim {
    struct kg_optim_opts opts;
    struct kg_slab grads; /* owned; whole unless opts.cut_grads */
    int64_t grads_first;  /* element of the slabs at which grads begins */
    /* owned; meaning given by opts.row; in the memory of the master weights */
    struct kg_slab state[KG_OPTIM_STATES];
    struct kg_slab average; /* view in grads: the shard's average (kg_optim_weights) */
    /* (KG_SLAB_RUN) owned: a part of the gradients on the host; NULL unless they are on a
     * device and the master weights on the host */
    float *room;
    /* (n_rounded) owned, room for all parameters: the `compute` that an update writes */
    struct kg_rounded *rounded;
    int32_t n_rounded;
    int64_t step; /* number of updates */
    /* updates of the earlier run that `state` comes from: counted by Adam's bias
     * correction, not by the schedule */
    int64_t before;
    double weight_sum; /* averaging rows: sum of lr^2 over all updates */
};
/* Refuses options that the row does not support.   errors: EINVAL, naming the key */
kg_status kg_optim_check(const struct kg_optim_opts *opts,
                         struct kg_err *err) KG_MUST_CHECK;
/* errors: EINVAL (no master weights; those of kg_optim_check), ENOMEM */
kg_status kg_optim_create(struct kg_optim **o, const struct kg_model *m,
                          const struct kg_optim_opts *opts,
                          struct kg_err *err) KG_MUST_CHECK;
void kg_optim_free(struct kg_optim *o);
double kg_optim_lr(const struct kg_optim_opts *opts,
                   int64_t update); /* update: 1 is the first */

/* Call after the state was loaded. step: number of updates made so far */
void kg_optim_resume(struct kg_optim *o, int64_t step);

/* One update from o->grads: norm, clip, the row's step, refresh of `compute`. A
 * non-finite norm changes nothing and returns ENONFINITE. grad_norm out (before
 * clipping), lr out */
kg_status kg_optim_update(struct kg_optim *o, struct kg_model *m, double *grad_norm,
                          double *lr, struct kg_err *err) KG_MUST_CHECK;

/* *weights: the weights to evaluate and save, for a sharded model those of the shard: the
 * master slab, or the average, which overwrites o->grads. */
kg_status kg_optim_weights(const struct kg_slab **weights, struct kg_optim *o,
                           const struct kg_model *m, struct kg_err *err) KG_MUST_CHECK;
/* Swaps the master slab with the average in o->grads, bit for bit, and refreshes. Call it
 * after kg_optim_weights: the model then is the average. A second call restores the
 * trained weights. Does nothing if the trained weights are the ones to evaluate. */
kg_status kg_optim_exchange(struct kg_optim *o, struct kg_model *m,
                            struct kg_err *err) KG_MUST_CHECK;

/* anchor <- eta anchor + (1-eta) model, in fp32, then refreshes its `compute`.
 * source: arXiv 2602.04417 */
kg_status kg_anchor_update(struct kg_model *anchor, const struct kg_model *m, double eta,
                           struct kg_err *err) KG_MUST_CHECK;
/* ||m - anchor||_2 and ||m - anchor||_2 / ||m||_2 */
kg_status kg_anchor_distance(double *absolute, double *relative, const struct kg_model *m,
                             const struct kg_model *anchor,
                             struct kg_err *err) KG_MUST_CHECK;

#endif
