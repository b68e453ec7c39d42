/* Training state of a model: gradients, AdamW moments, the learning-rate schedule, and
 * the EMA anchor.
 *
 * Norms: gradient clipping scales by min(1, clip/(norm + 1e-6)) as
 * torch.nn.utils.clip_grad_norm_.
 * AdamW decays every parameter that is_product (matrices); norms and biases are not
 * decayed... unless decay_all, which is torch.optim.AdamW(model.parameters()) and the
 * default, as the published recipes do that.
 */
#ifndef KG_MODEL_OPTIM_H
#define KG_MODEL_OPTIM_H

#include "model/model.h"

enum kg_schedule { KG_SCHEDULE_CONSTANT, KG_SCHEDULE_LINEAR, KG_SCHEDULE_COSINE };

struct kg_optim_opts {
    double lr;
    double beta1;
    double beta2;
    double eps;
    double weight_decay;
    bool decay_all;
    double clip_norm;          /* 0: no clipping */
    enum kg_schedule schedule; /* after the warm-up */
    int64_t warmup_updates;    /* linear from lr/warmup to lr */
    int64_t total_updates;     /* for linear and cosine: reaches min_lr here */
    double min_lr;
};

struct kg_optim {
    struct kg_optim_opts opts;
    float *grads; /* (n_elements) owned */
    float *m;     /* (n_elements) owned */
    float *v;     /* (n_elements) owned */
    int64_t n;
    int64_t step; /* updates done */
};
kg_status kg_optim_create(struct kg_optim **o, const struct kg_model *m,
                          const struct kg_optim_opts *opts,
                          struct kg_err *err) KG_MUST_CHECK;
void kg_optim_free(struct kg_optim *o);
void kg_optim_zero_grads(struct kg_optim *o);
double kg_optim_lr(const struct kg_optim_opts *opts,
                   int64_t update); /* update counted from 1 */

/* One update from o->grads: norm, clip, AdamW, refresh of the compute copy.
 * A norm that is not finite changes nothing and returns ENONFINITE.   grad_norm out
 * (before clipping), lr out */
kg_status kg_optim_update(struct kg_optim *o, struct kg_model *m, double *grad_norm,
                          double *lr, struct kg_err *err) KG_MUST_CHECK;

/* anchor <- eta anchor + (1-eta) model, in fp32, and its compute copy.
 * source: arXiv 2602.04417 */
kg_status kg_anchor_update(struct kg_model *anchor, const struct kg_model *m, double eta,
                           struct kg_err *err) KG_MUST_CHECK;
/* ||m - anchor||_2 and ||m - anchor||_2 / ||m||_2 */
kg_status kg_anchor_distance(double *absolute, double *relative, const struct kg_model *m,
                             const struct kg_model *anchor,
                             struct kg_err *err) KG_MUST_CHECK;

#endif
