/* Low-rank adapters beside the weights of a model: W stays as it is, and of each target
 *     y = x W^T + s (x A^T) B^T,   A (r, in),  B (out, r),
 *     s = alpha / r, or alpha / sqrt(r) rank-stabilised
 * A and B alone are trained. linear.c says what is rounded where.
 * source: Hu et al. 2021, arXiv 2106.09685; Kalajdzievski 2023, arXiv 2312.03732
 *
 * Folders are those of PEFT: adapter_config.json, adapter_model.safetensors.
 */
#ifndef KG_MODEL_LORA_H
#define KG_MODEL_LORA_H

#include "base/status.h"
#include "base/str.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

struct kg_model;
struct kg_param;

enum { KG_LORA_TARGETS = 64, KG_LORA_NAME = 96 };

/* Which adapters a model has. `{0}`: none */
struct kg_lora {
    int32_t rank; /* r */
    double alpha;
    bool rslora;   /* s = alpha / sqrt(r) */
    int n_targets; /* 0: every linear layer, but not embedding and head */
    /* As PEFT has them: ends of modules' names behind a dot, "q_proj" or "mlp.up_proj" of
     * all layers, "model.layers.0.self_attn.q_proj" of one */
    char target[KG_LORA_TARGETS][KG_LORA_NAME];
};

/* s */
static inline float kg_lora_scale(const struct kg_lora *l)
{
    const double r = (double)l->rank;
    return (float)(l->alpha / (l->rslora ? sqrt(r) : r));
}

/* A and B beside a weight. */
struct kg_adapter {
    struct kg_param *a; /* (r, cols) of the weight's, borrowed from the model */
    struct kg_param *b; /* (rows, r) */
};

/* One more target.   what: names it in errors
 * errors: EINVAL (too many, too long, twice) */
kg_status kg_lora_add_target(struct kg_lora *l, const char *name, const char *what,
                             struct kg_err *err) KG_MUST_CHECK;

/* dir/adapter_config.json: every field honoured, known to be without effect, or refused
 * by name.
 * errors: NOTFOUND, EFORMAT, UNSUPPORTED */
kg_status kg_lora_read(struct kg_lora *l, const char *dir,
                       struct kg_err *err) KG_MUST_CHECK;
kg_status kg_lora_parse(struct kg_lora *l, const char *json, size_t n, const char *where,
                        struct kg_err *err) KG_MUST_CHECK;
/* The text of such a file, base: folder of the weights beside which they were trained. */
kg_status kg_lora_write(struct kg_str *out, const struct kg_lora *l, const char *base,
                        struct kg_err *err) KG_MUST_CHECK;

#endif
