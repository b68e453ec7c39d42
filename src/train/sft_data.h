/* Sequences for supervised training: tokens, each with its source. Tokens of source MODEL
 * carry the loss, the others are context.
 *
 * Every piece of text is tokenised by itself, as a rollout does: the prompt, what the
 * model writes in a turn, what a tool answers. So a sequence of supervised training is
 * token for token the episode that it describes.
 */
#ifndef KG_TRAIN_SFT_DATA_H
#define KG_TRAIN_SFT_DATA_H

#include "base/status.h"
#include "task/task.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

struct kg_sft_set {
    struct kg_ids tokens; /* all sequences, one after the other */
    /* (T) owned: enum kg_source. The first token of a sequence is never MODEL: nothing
     * stands before it to predict it from. */
    uint8_t *source;
    size_t *begin;   /* (n+1) owned: sequence i is tokens[begin[i] .. begin[i+1]) */
    size_t *learned; /* (n) owned: its tokens of source MODEL, at least one */
    size_t n;
    size_t source_capacity;
    size_t begin_capacity;
    size_t learned_capacity;
    size_t longest;
    int64_t dropped_too_long;
};

/* What every sequence goes through. */
struct kg_sft_opts {
    size_t max_tokens; /* longer sequences are dropped and counted */
    enum kg_special special;
    int32_t eos; /* appended to every sequence that ends with the model; -1 for none */
    struct kg_prompt_opts prompt;
};

/* prompt and solution of every record (records without one are an error).
 * errors: EINVAL (nothing left) */
kg_status kg_sft_from_dataset(struct kg_sft_set *set, const struct kg_dataset *data,
                              const struct kg_tokenizer *tok,
                              const struct kg_sft_opts *opts,
                              struct kg_err *err) KG_MUST_CHECK;

/* Records of a file (data/records.h), each one of
 *   {"text"}                 loss on all but the first token
 *   prompt and response      prompt | question | problem with response | completion |
 *                            solution | answer: loss on the second
 *   prompt and "segments"    [{"source": "model" or "tool", "text"}, ...]: an episode;
 *                            loss on the model's
 *   {"messages"}             a conversation, rendered by the chat template: loss on the
 *                            assistant's turns with their end token; "tools" is handed on
 * A prompt is made as everywhere (text/prompt.h), and may be a list of messages as well.
 * errors: EFORMAT with the place, EINVAL (no token to learn; nothing left) */
kg_status kg_sft_from_jsonl(struct kg_sft_set *set, const char *path,
                            const struct kg_tokenizer *tok,
                            const struct kg_sft_opts *opts,
                            struct kg_err *err) KG_MUST_CHECK;
void kg_sft_set_release(struct kg_sft_set *set);

#endif
