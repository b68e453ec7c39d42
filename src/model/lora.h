/* Low-rank adapters (LoRA): W stays unchanged, and for each target
 *     y = x W^T + s (x A^T) B^T,   A (r, in),  B (out, r),
 *     s = alpha / r, or alpha / sqrt(r) if rank-stabilised; r, alpha may differ by target
 * Only A and B are trained. linear.c documents the rounding.
 * source: Hu et al. 2021, arXiv 2106.09685; Kalajdzievski 2023, arXiv 2312.03732
 *
 * Folders have PEFT's format: adapter_config.json, adapter_model.safetensors.
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

/* Rules of adapter_config.json that change targets, r or alpha. Regular expressions have
 * Python's syntax and match whole names or suffixes after a dot (text/pattern.h). */
enum kg_lora_kind {
    KG_LORA_TARGET_RE,  /* expression for whole names; replaces the list of targets */
    KG_LORA_EXCLUDE,    /* suffix, as in that list; modules that match are no targets */
    KG_LORA_EXCLUDE_RE, /* as EXCLUDE: an expression for whole names */
    KG_LORA_LAYER,      /* value: a layer; the list applies only to such layers */
    KG_LORA_RANK,       /* expression for suffixes; value: rank; the first match wins */
    KG_LORA_ALPHA,      /* expression for suffixes; value: alpha; the first match wins */
};
struct kg_lora_rule {
    enum kg_lora_kind kind;
    int32_t text; /* offset in kg_lora.text */
    double value;
};

/* The adapters of a model. `{0}`: none */
struct kg_lora {
    int32_t rank;  /* r, unless a rule sets another */
    double alpha;  /* unless a rule sets another */
    bool rslora;   /* s = alpha / sqrt(r) */
    int n_targets; /* 0: every linear layer except embedding and head */
    /* PEFT's format: suffixes of module names after a dot: "q_proj" or "mlp.up_proj" for
     * all layers, "model.layers.0.self_attn.q_proj" for one */
    char target[KG_LORA_TARGETS][KG_LORA_NAME];
    int n_rules;
    struct kg_lora_rule rule[KG_LORA_RULES]; /* in file order */
    int32_t n_text;
    char text[1 << 15]; /* texts of the rules, NUL terminated */
};

/* A and B of one weight. */
struct kg_adapter {
    struct kg_param *a; /* (r, cols of the weight), borrowed from the model */
    struct kg_param *b; /* (rows, r) */
    float scale;        /* s */
    int16_t rank_rule;  /* index of the rule for its rank; -1: none */
};

/* Adds a target. what: its name in errors
 * errors: EINVAL (too many, too long, duplicate) */
kg_status kg_lora_add_target(struct kg_lora *l, const char *name, const char *what,
                             struct kg_err *err) KG_MUST_CHECK;

/* Adds a rule. text: "" if it has none
 * errors: EINVAL (too many, too long) */
kg_status kg_lora_add_rule(struct kg_lora *l, enum kg_lora_kind kind, const char *text,
                           double value, const char *what,
                           struct kg_err *err) KG_MUST_CHECK;
static inline const char *kg_lora_rule_text(const struct kg_lora *l, int i)
{
    return l->text + l->rule[i].text;
}
/* Number of rules of a kind. */
int kg_lora_count(const struct kg_lora *l, enum kg_lora_kind kind);

/* Reads dir/adapter_config.json: each field is applied, known to have no effect, or
 * refused by name.
 * errors: ENOTFOUND, EFORMAT, EUNSUPPORTED */
kg_status kg_lora_read(struct kg_lora *l, const char *dir,
                       struct kg_err *err) KG_MUST_CHECK;
kg_status kg_lora_parse(struct kg_lora *l, const char *json, size_t n, const char *where,
                        struct kg_err *err) KG_MUST_CHECK;
/* Writes the text that kg_lora_parse reads. base: folder of the base model. */
kg_status kg_lora_write(struct kg_str *out, const struct kg_lora *l, const char *base,
                        struct kg_err *err) KG_MUST_CHECK;

#endif
