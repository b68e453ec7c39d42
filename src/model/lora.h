/* Low-rank adapters beside the weights of a model: W stays as it is, and of each target
 *     y = x W^T + s (x A^T) B^T,   A (r, in),  B (out, r),
 *     s = alpha / r, or alpha / sqrt(r) rank-stabilised, r and alpha of the target
 * A and B alone are trained. linear.c says what is rounded where.
 * source: Hu et al. 2021, arXiv 2106.09685; Kalajdzievski 2023, arXiv 2312.03732
 *
 * Folders are those of PEFT: adapter_config.json, adapter_model.safetensors.
 */
#ifndef KG_MODEL_LORA_H
#define KG_MODEL_LORA_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_model;
struct kg_param;

enum { KG_LORA_TARGETS = 64, KG_LORA_NAME = 96, KG_LORA_RULES = 1024 };

/* What adapter_config.json says beyond a list of names. Its regular expressions are those
 * of Python: whole names, or ends of names behind a dot (text/pattern.h). */
enum kg_lora_kind {
    KG_LORA_TARGET_RE,  /* whole names, in the place of the list */
    KG_LORA_EXCLUDE,    /* an end of a name, as in the list of targets: no target */
    KG_LORA_EXCLUDE_RE, /* whole names */
    KG_LORA_LAYER,      /* value: only these layers, for ends of names in the list */
    KG_LORA_RANK,       /* ends of names; value: their rank; the first that matches */
    KG_LORA_ALPHA,      /* value: their alpha; likewise */
};
struct kg_lora_rule {
    enum kg_lora_kind kind;
    int32_t text; /* where it begins in kg_lora.text */
    double value;
};

/* Which adapters a model has. `{0}`: none */
struct kg_lora {
    int32_t rank;  /* r, of targets that no rule gives another */
    double alpha;  /* likewise */
    bool rslora;   /* s = alpha / sqrt(r) */
    int n_targets; /* 0: every linear layer, but not embedding and head */
    /* As PEFT has them: ends of modules' names behind a dot, "q_proj" or "mlp.up_proj" of
     * all layers, "model.layers.0.self_attn.q_proj" of one */
    char target[KG_LORA_TARGETS][KG_LORA_NAME];
    int n_rules;
    struct kg_lora_rule rule[KG_LORA_RULES]; /* in the order of the file */
    int32_t n_text;
    char text[1 << 15]; /* of the rules, each ends with a NUL */
};

/* A and B beside a weight. */
struct kg_adapter {
    struct kg_param *a; /* (r, cols) of the weight's, borrowed from the model */
    struct kg_param *b; /* (rows, r) */
    float scale;        /* s */
    int16_t rank_rule;  /* which one its rank is of; -1: none */
};

/* One more target.   what: names it in errors
 * errors: EINVAL (too many, too long, twice) */
kg_status kg_lora_add_target(struct kg_lora *l, const char *name, const char *what,
                             struct kg_err *err) KG_MUST_CHECK;

/* One more rule.   text: "" where it has none
 * errors: EINVAL (too many, too long) */
kg_status kg_lora_add_rule(struct kg_lora *l, enum kg_lora_kind kind, const char *text,
                           double value, const char *what,
                           struct kg_err *err) KG_MUST_CHECK;
static inline const char *kg_lora_rule_text(const struct kg_lora *l, int i)
{
    return l->text + l->rule[i].text;
}
/* How many of a kind there are. */
int kg_lora_count(const struct kg_lora *l, enum kg_lora_kind kind);

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
