/* What commands on a model share: the folder, the compute dtype, threads, ids from a line
 * of input.
 */
#ifndef KG_CLI_LOAD_H
#define KG_CLI_LOAD_H

#include "base/status.h"
#include "cli/cli.h"
#include "data/json.h"
#include "data/jsonl.h"
#include "model/model.h"
#include "text/tokenizer.h"

/* Targets of the flags that such commands share. */
struct kg_load_args {
    const char *dir;
    const char *dtype; /* NULL: bf16 */
    int64_t threads;   /* 0: all cores */
};

struct kg_loaded {
    struct kg_model *model;   /* owned */
    struct kg_tokenizer *tok; /* owned; NULL when the folder has no tokenizer files */
};

/* The compute dtype that a name asks for; NULL takes the best of this machine.
 * errors: UNSUPPORTED */
kg_status kg_load_dtype(enum kg_dtype *ct, const char *name,
                        struct kg_err *err) KG_MUST_CHECK;
/* Open the model for inference, and its tokenizer; the tokenizer's end token joins the
 * EOS set. Sets the threads. */
kg_status kg_load_model(struct kg_loaded *l, const struct kg_load_args *args,
                        struct kg_err *err) KG_MUST_CHECK;
void kg_load_release(struct kg_loaded *l);
/* The tokenizer of a folder, or NULL when it has none. */
kg_status kg_load_tokenizer(struct kg_tokenizer **tok, const char *dir,
                            struct kg_err *err) KG_MUST_CHECK;

/* Append the array "ids" of an input line, each in [0, vocab).
 * errors: EFORMAT naming line and index */
kg_status kg_load_ids(struct kg_ids *out, const struct kg_json_doc *doc, int32_t vocab,
                      struct kg_err *err) KG_MUST_CHECK;

#endif
