/* Sequences for supervised training: tokens, and the first position that carries a
 * loss. */
#ifndef KG_TRAIN_SFT_DATA_H
#define KG_TRAIN_SFT_DATA_H

#include "base/status.h"
#include "task/task.h"
#include "text/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

struct kg_sft_set {
    struct kg_ids tokens; /* all sequences, one after the other */
    size_t *begin;        /* (n+1) owned: sequence i is tokens[begin[i] .. begin[i+1]) */
    /* (n) owned: position within the sequence of the first token with a loss, >= 1 */
    size_t *loss_from;
    size_t n;
    size_t begin_capacity;
    size_t loss_capacity;
    size_t longest;
    int64_t dropped_too_long;
};

/* What every sequence goes through. */
struct kg_sft_opts {
    size_t max_tokens; /* longer sequences are dropped and counted */
    bool add_special;
    int32_t eos; /* appended to every sequence; -1 for none */
};

/* prompt and solution of every record (records without one are an error).
 * errors: EINVAL (nothing left) */
kg_status kg_sft_from_dataset(struct kg_sft_set *set, const struct kg_dataset *data,
                              const struct kg_tokenizer *tok,
                              const struct kg_sft_opts *opts,
                              struct kg_err *err) KG_MUST_CHECK;

/* JSONL of {"text"} (loss on all but the first token) or of a pair: prompt | question |
 * problem with response | completion | solution | answer (loss on the second).
 * template_text: see kg_task_opts. */
kg_status kg_sft_from_jsonl(struct kg_sft_set *set, const char *path,
                            const char *template_text, const struct kg_tokenizer *tok,
                            const struct kg_sft_opts *opts,
                            struct kg_err *err) KG_MUST_CHECK;
void kg_sft_set_release(struct kg_sft_set *set);

#endif
