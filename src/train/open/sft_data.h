/* Sequences for SFT: tokens, each with its source. Tokens of source MODEL are loss
 * tokens, the others are context.
 *
 * Every piece of text is tokenised separately, as in a rollout: the prompt, each turn of
 * the model, each observation. So an SFT sequence has exactly the tokens of the episode
 * that it describes.
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
    struct kg_ids tokens; /* all sequences, concatenated */
    /* (T) owned: enum kg_source. The first token of a sequence is never MODEL, because it
     * cannot be predicted. */
    uint8_t *source;
    size_t *begin;   /* (n+1) owned: sequence i is tokens[begin[i] .. begin[i+1]) */
    size_t *learned; /* (n) owned: number of MODEL tokens of each, at least one */
    size_t n;
    size_t source_capacity;
    size_t begin_capacity;
    size_t learned_capacity;
    size_t longest;
    int64_t dropped_too_long;
};

/* Settings for every sequence. */
struct kg_sft_opts {
    size_t max_tokens; /* longer sequences are dropped and counted */
    enum kg_special special;
    int32_t eos; /* appended to every sequence that ends with the model; -1: none */
    struct kg_prompt_opts prompt;
};

/* Uses prompt and solution of every record (a record without one is an error).
 * errors: EINVAL (no sequences left) */
kg_status kg_sft_from_dataset(struct kg_sft_set *set, const struct kg_dataset *data,
                              const struct kg_tokenizer *tok,
                              const struct kg_sft_opts *opts,
                              struct kg_err *err) KG_MUST_CHECK;

/* Reads records of a file (data/records.h), each one of
 *   {"text"}                 loss on all but the first token
 *   prompt and response      one of prompt, question, problem, instruction (with input);
 *                            one of response, completion, solution, answer, output: loss
 *                            on the response
 *   prompt and "segments"    [{"source": "model" or "tool", "text"}, ...]: an episode;
 *                            loss on the model's text
 *   {"messages"}             a conversation (or ShareGPT's "conversations"), rendered by
 *                            the chat template with "tools": loss on the assistant's
 *                            turns with their end tokens
 * A prompt is made by text/prompt.h and may also be a list of messages.
 * errors: EFORMAT, EUNSUPPORTED with the place, EINVAL (no loss token or sequence) */
kg_status kg_sft_from_jsonl(struct kg_sft_set *set, const char *path,
                            const struct kg_tokenizer *tok,
                            const struct kg_sft_opts *opts,
                            struct kg_err *err) KG_MUST_CHECK;
void kg_sft_set_release(struct kg_sft_set *set);

#endif
