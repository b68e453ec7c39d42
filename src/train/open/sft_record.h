/* An SFT record as pieces of text, each of one source, before tokenisation. */
#ifndef KG_TRAIN_SFT_RECORD_H
#define KG_TRAIN_SFT_RECORD_H

#include "data/json.h"
#include "text/prompt.h"
#include "traj/traj.h"

#include <stdbool.h>
#include <stddef.h>

struct kg_sft_piece {
    size_t at, n; /* range in the record's text */
    enum kg_source source;
    bool plain; /* untrusted text: special tokens in it are not recognised */
};

struct kg_sft_record {
    struct kg_str text;          /* all pieces, concatenated */
    struct kg_sft_piece *pieces; /* (n) owned; the prompt is first, if any */
    size_t n;
    size_t capacity;
    bool rendered; /* rendered by a chat template */
};
void kg_sft_record_clear(struct kg_sft_record *r);
void kg_sft_record_release(struct kg_sft_record *r);
kg_status kg_sft_record_add(struct kg_sft_record *r, enum kg_source source, bool plain,
                            const char *text, size_t n, struct kg_err *err) KG_MUST_CHECK;

struct kg_sft_reading {
    const struct kg_prompt_opts *prompt;
    const char *end; /* text of the end token; "" for none */
};
/* Clears r and fills it from an object in one of the formats of kg_sft_from_jsonl.
 * errors: EFORMAT, EUNSUPPORTED (the template rewrites turns), those of the template */
kg_status kg_sft_record_read(struct kg_sft_record *r, const struct kg_json *object,
                             const struct kg_sft_reading *how,
                             struct kg_err *err) KG_MUST_CHECK;

#endif
