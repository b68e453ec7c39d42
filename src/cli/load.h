/* What commands on a model share: the folder, the device, the compute dtype, threads, ids
 * from a line of input.
 */
#ifndef KG_CLI_LOAD_H
#define KG_CLI_LOAD_H

#include "base/status.h"
#include "cli/cli.h"
#include "data/json.h"
#include "data/jsonl.h"
#include "model/model.h"
#include "rollout/sampling.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

/* Sequences that generate computes together where nothing is said. */
enum { KG_GENERATE_BATCH = 32 };

/* Flags that such commands share, and what they fill. */
struct kg_load_args {
    const char *dir;
    const char *adapter;              /* NULL: none */
    const char *dtype;                /* NULL: bf16 */
    const char *device;               /* NULL: cpu */
    const char *products, *libraries; /* struct kg_device_opts */
    bool unpinned;                    /* the same; of `bench` alone */
    int64_t threads;                  /* 0: all cores */
    struct kg_flag_list ignore;       /* fields of config.json */
    struct kg_ranks *ranks;           /* each has a device of its own; NULL: alone */
};

extern struct kg_load_args kg_load;
/* The key by which recipes name the folder of adapters, and commands too. */
#define KG_ADAPTER_KEY "model.adapter"
extern const struct kg_flag kg_model_flags[];   /* --model, --adapter */
extern const struct kg_flag kg_ignore_flags[];  /* --ignore */
extern const struct kg_flag kg_compute_flags[]; /* --dtype, --threads */
extern const struct kg_flag kg_device_flags[];  /* --device, --products.. */

/* Flags of how a token is drawn, into a struct kg_sampling (rollout/sampling.h). */
#define KG_TEMPERATURE_FLAG(usual, into) KG_TEMPERATURE_KEY(KG_SAMPLING_FLAG, usual, into)
#define KG_TRUNCATION_FLAGS(into)        KG_TRUNCATION_KEYS(KG_SAMPLING_FLAG, into)
#define KG_SAMPLING_FLAG(field, key, flag, letter, arg, usual, min, max, zero, help,     \
                         into)                                                           \
    {                                                                                    \
        flag, letter, KG_TO(into.field), arg, help " (default " #usual ")", min, max,    \
            NULL, zero                                                                   \
    }

extern struct kg_prompt_opts kg_prompt_how;
extern const char *kg_prompt_chat; /* NULL: auto */
extern const struct kg_flag kg_prompt_flags[];

struct kg_loaded {
    struct kg_model *model;   /* owned */
    struct kg_tokenizer *tok; /* owned; NULL when the folder has no tokenizer files */
};

/* The compute dtype that a name asks for; NULL takes the best of this machine.
 * errors: UNSUPPORTED */
kg_status kg_load_dtype(enum kg_dtype *ct, const char *name,
                        struct kg_err *err) KG_MUST_CHECK;
/* --ignore */
struct kg_opt_list kg_load_ignored(const struct kg_load_args *args);
/* The backend that --device and the flags beside it name, for products of ct; of ranks,
 * all of which call it, each its own.
 * errors: those of kg_device_open, kg_ranks_choose_device and kg_ranks_check_devices,
 * under the flag's name */
kg_status kg_load_device(const struct kg_backend **be, const struct kg_load_args *args,
                         enum kg_dtype ct, struct kg_err *err) KG_MUST_CHECK;
/* Open the model for inference, with its adapters, and its tokenizer; the tokenizer's end
 * token joins the EOS set. Sets the threads. */
kg_status kg_load_model(struct kg_loaded *l, const struct kg_load_args *args,
                        struct kg_err *err) KG_MUST_CHECK;
void kg_load_release(struct kg_loaded *l);
/* The base with the adapters of a PEFT folder; the base's weights are shared.
 * tok: the base's, NULL for none
 * errors: those of reading it; CONFLICT (it has a tokenizer, and another) */
kg_status kg_load_adapter(struct kg_model **out, const struct kg_model *base,
                          const struct kg_tokenizer *tok, const char *dir,
                          struct kg_err *err) KG_MUST_CHECK;
/* --max-len of a loaded model; 0: not given.   errors: EINVAL (more than it has) */
kg_status kg_load_check_length(const struct kg_loaded *l, int64_t max_len,
                               struct kg_err *err) KG_MUST_CHECK;
/* The tokenizer of a folder, or NULL when it has none. */
kg_status kg_load_tokenizer(struct kg_tokenizer **tok, const char *dir,
                            struct kg_err *err) KG_MUST_CHECK;

/* Append the array "ids" of an input line, each in [0, vocab).
 * errors: EFORMAT naming line and index */
kg_status kg_load_ids(struct kg_ids *out, const struct kg_json_doc *doc, int32_t vocab,
                      struct kg_err *err) KG_MUST_CHECK;

#endif
