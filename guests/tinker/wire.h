/* The protocol buffers of Tinker's API: reads batches to learn from, and writes their
 * log-probs and metrics, and samples.
 *
 * A batch becomes flat arrays over the N target tokens of all its data, in order; datum i
 * owns [begin[i], begin[i+1]). Arrays grow datum by datum.
 */
#ifndef KG_TINKER_WIRE_H
#define KG_TINKER_WIRE_H

#include "base/status.h"
#include "base/str.h"
#include "traj/traj.h"

#include <stdbool.h>
#include <stdint.h>

enum { KG_TINKER_TEXT = 128, KG_TINKER_SETTINGS = 64, KG_TINKER_MAX_K = 512 };

/* A value of loss_fn_config, as text. */
struct kg_tinker_setting {
    char key[KG_TINKER_TEXT], value[KG_TINKER_TEXT];
};

/* Named inputs of a datum (loss_fn_inputs); each has a bit in kg_tinker_batch.has. */
enum kg_tinker_input {
    KG_TINKER_TARGET,
    KG_TINKER_WEIGHT,
    KG_TINKER_LOGPROB,
    KG_TINKER_ADVANTAGE,
    KG_TINKER_MASK,
    KG_TINKER_IDS,
    KG_TINKER_ID_LOGPROBS,
    KG_TINKER_COLUMNS,
    KG_TINKER_RATIO_MASK = KG_TINKER_COLUMNS, /* the same as mask */
    KG_TINKER_INPUTS
};

struct kg_tinker_batch {
    char model_id[KG_TINKER_TEXT];
    int64_t seq;
    char loss[KG_TINKER_TEXT];
    bool forward_only;
    struct kg_tinker_setting settings[KG_TINKER_SETTINGS];
    int n_settings;

    int64_t n_data, n; /* N */
    int k;             /* number of ids per token: topk_ids */
    unsigned has;      /* inputs that the data have: 1 << enum kg_tinker_input */
    int32_t vocab;
    const int64_t *begin; /* (n_data+1) points into `begins` */
    /* (N+n_data) the model's input: the tokens of each datum, then its last target */
    const int32_t *tokens;
    union {
        const double *value[KG_TINKER_COLUMNS];
        struct {
            const double *target;        /* (N) */
            const double *weight;        /* (N) 1 if absent */
            const double *logprob;       /* (N) the sampler's */
            const double *advantage;     /* (N) */
            const double *mask;          /* (N) */
            const double *ids, *id_logp; /* (N,k) ids -1: unused slot */
        };
    };
    struct kg_str begins, packed, values[KG_TINKER_COLUMNS]; /* owned: their memory */
};

/* Reads fields 1 and 2 only: model_id and seq.   errors: EFORMAT */
kg_status kg_tinker_read_head(struct kg_tinker_batch *b, const void *bytes, size_t n,
                              struct kg_err *err) KG_MUST_CHECK;
/* b: released by kg_tinker_batch_release, also after a failure. vocab: ids are below it
 * errors: EFORMAT (names datum and field), EUNSUPPORTED (images, sparse tensors), ENOMEM
 */
kg_status kg_tinker_read_batch(struct kg_tinker_batch *b, const void *bytes, size_t n,
                               int32_t vocab, struct kg_err *err) KG_MUST_CHECK;
void kg_tinker_batch_release(struct kg_tinker_batch *b); /* {0} allowed */

/* Appends a ForwardBackwardOutput: logprobs (N), and one metric. */
kg_status kg_tinker_put_output(struct kg_str *out, const struct kg_tinker_batch *b,
                               const float *logp, double loss_sum,
                               struct kg_err *err) KG_MUST_CHECK;

/* A SampleResponse. prompt_logp (n_prompt) or NULL; NaN: the token has no log-prob.
 * top_ids, top_logp (n_prompt,wide) or NULL: of the prompt's tokens */
struct kg_tinker_samples {
    const struct kg_traj *trajs;
    size_t n;
    const float *prompt_logp;
    const int32_t *top_ids;
    const float *top_logp;
    size_t n_prompt;
    int k, sample_k; /* top ids of the prompt, and of sampled tokens; 0: none */
    int wide;        /* number of top ids recorded per row */
};
kg_status kg_tinker_put_samples(struct kg_str *out, const struct kg_tinker_samples *s,
                                struct kg_err *err) KG_MUST_CHECK;

#endif
