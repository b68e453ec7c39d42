/* Training state of a model: gradients, an optimizer out of a table with its state
 * arrays, the learning-rate schedule, and the EMA anchor.
 *
 * Norms: gradient clipping scales by min(1, clip/(norm + 1e-6)) as
 * torch.nn.utils.clip_grad_norm_.
 * AdamW decays every parameter that is_product (matrices); norms and biases are not
 * decayed... unless decay_all, which is torch.optim.AdamW(model.parameters()) and the
 * default, as the published recipes do that.
 *
 * Of a model whose master weights are the host's (enum kg_on_host) state is there, and
 * the host makes the update: gradients come by pieces, what products read goes back. Bits
 * are the same.
 *
 * Of a model that is cut among ranks (kg_model.ranks) each has state of its cut, updates
 * it, and gets the others' weights; the norm is that of the whole. What updates, moves or
 * measures is then called by all ranks, with the gradient's sum where the cut is.
 *
 * Schedule-free AdamW keeps three points: the gradient is taken at y, z makes the steps,
 * x is their average and what is learned. The model's master weights are y as long as
 * training goes on, so that what samples is what is trained; x is computed for
 * evaluation and for what is written.
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
    /* what the checkpoint calls the state's slabs */
    const char *state[KG_OPTIM_STATES];
    /* state[0] begins as the weights, not as 0, and is fp32 as they are: no moment */
    bool starts_at_weights;
    bool averages; /* what is evaluated and written is not what is trained */
};
size_t kg_optim_n_rows(void);
const struct kg_optim_row *kg_optim_row_at(size_t i);
/* errors: NOTFOUND (valid names listed) */
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
    enum kg_schedule schedule; /* after the warm-up */
    int64_t warmup_updates;    /* linear from lr/warmup to lr */
    /* 0; or the warm-up rises once in so many updates, from 0 for the first of them */
    int64_t warmup_stair;
    int64_t total_updates; /* for linear and cosine: reaches min_lr here */
    double min_lr;
    bool keep_trained;     /* averaging rows: what is trained is evaluated and written */
    enum kg_dtype moments; /* KG_F32, or KG_BF16: rounded by draws, see kg_op_adamw */
    struct kg_rng_key rounding; /* of those draws */
    bool cut_grads; /* of a model that is cut: gradients are there of its cut alone */
};
/* The type of state i; the bytes of all states of n elements. */
enum kg_dtype kg_optim_state_dtype(const struct kg_optim_opts *opts, int i);
uint64_t kg_optim_state_bytes(const struct kg_optim_opts *opts, int64_t n);

struct kg_optim {
    struct kg_optim_opts opts;
    struct kg_slab grads; /* owned; whole, of a model that is cut, too, unless
                           * opts.cut_grads */
    int64_t grads_first;  /* the element of the slabs that they begin with */
    struct kg_slab state[KG_OPTIM_STATES]; /* owned; opts.row says what they are; where
                                            * the master weights are */
    struct kg_slab average; /* of grads, by kg_optim_weights: the model's cut; a view */
    float *room;    /* (KG_SLAB_RUN) owned: gradients on their way to weights of the host;
                  * NULL where they are beside them */
    int64_t step;   /* updates done */
    int64_t before; /* updates that state holds from an earlier run: Adam's bias
                        * correction counts them, the schedule does not */
    double weight_sum; /* averaging rows: sum of lr^2 over the updates done */
};
/* What the row cannot take is refused, with the key of a recipe.   errors: EINVAL */
kg_status kg_optim_check(const struct kg_optim_opts *opts,
                         struct kg_err *err) KG_MUST_CHECK;
/* errors: EINVAL (no master weights, or of the check), ENOMEM */
kg_status kg_optim_create(struct kg_optim **o, const struct kg_model *m,
                          const struct kg_optim_opts *opts,
                          struct kg_err *err) KG_MUST_CHECK;
void kg_optim_free(struct kg_optim *o);
double kg_optim_lr(const struct kg_optim_opts *opts,
                   int64_t update); /* update counted from 1 */

/* Say that `step` updates were done, after their state was read back. */
void kg_optim_resume(struct kg_optim *o, int64_t step);

/* One update from o->grads: norm, clip, the row's step, refresh of the compute copy.
 * A norm that is not finite changes nothing and returns ENONFINITE.   grad_norm out
 * (before clipping), lr out */
kg_status kg_optim_update(struct kg_optim *o, struct kg_model *m, double *grad_norm,
                          double *lr, struct kg_err *err) KG_MUST_CHECK;

/* What is evaluated and written: *weights is the model's master, or the average, which
 * is computed into o->grads; of a cut model's the cut. */
kg_status kg_optim_weights(const struct kg_slab **weights, struct kg_optim *o,
                           const struct kg_model *m, struct kg_err *err) KG_MUST_CHECK;
/* Exchange the model's master with o->grads, bit for bit, and refresh: after
 * kg_optim_weights the model is the average, after a second exchange what is trained.
 * Does nothing for rows that do not average. */
kg_status kg_optim_exchange(struct kg_optim *o, struct kg_model *m,
                            struct kg_err *err) KG_MUST_CHECK;

/* anchor <- eta anchor + (1-eta) model, in fp32, and its compute copy.
 * source: arXiv 2602.04417 */
kg_status kg_anchor_update(struct kg_model *anchor, const struct kg_model *m, double eta,
                           struct kg_err *err) KG_MUST_CHECK;
/* ||m - anchor||_2 and ||m - anchor||_2 / ||m||_2 */
kg_status kg_anchor_distance(double *absolute, double *relative, const struct kg_model *m,
                             const struct kg_model *anchor,
                             struct kg_err *err) KG_MUST_CHECK;

#endif
