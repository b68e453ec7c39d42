/* Shared by commands with a model: folder, device, compute dtype, threads, and token ids
 * of an input line. */
#ifndef KG_CLI_LOAD_H
#define KG_CLI_LOAD_H

#include "base/status.h"
#include "base/str.h"
#include "cli/cli.h"
#include "data/json.h"
#include "data/jsonl.h"
#include "model/model.h"
#include "rollout/sampling.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

#include <stdbool.h>

/* Arguments may name a model or file in the hub's cache (data/hub.h) instead of a path.
 * They are resolved before a command begins, so commands see only paths. */

/* A flag with this argument name takes a checkpoint folder or ORG/NAME[@REVISION]. */
#define KG_MODEL_ARG "MODEL"

/* Replaces a model's name by its folder, in every given flag with KG_MODEL_ARG.   errors:
 * those of kg_hub_find_model, prefixed with the flag */
kg_status kg_cli_find_flags(const struct kg_command *c, struct kg_err *err) KG_MUST_CHECK;

/* Replaces one model's or file's name; NULL stays NULL. The result is never freed.
 * errors: those of kg_hub_find_model, kg_hub_find_file */
kg_status kg_cli_find_model(const char **dir, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_cli_find_file(const char **path, struct kg_err *err) KG_MUST_CHECK;

/* Default number of sequences that generate computes together. */
enum { KG_GENERATE_BATCH = 32 };

/* Targets of the shared flags. */
struct kg_load_args {
    const char *dir;
    const char *adapter;              /* NULL: none */
    const char *dtype;                /* NULL: bf16 */
    const char *base_dtype;           /* NULL: as dtype */
    const char *device;               /* NULL: cpu */
    const char *products, *libraries; /* struct kg_device_opts */
    bool unpinned;                    /* struct kg_device_opts; only set by `bench` */
    int64_t threads;                  /* 0: all cores */
    struct kg_flag_list ignore;       /* fields of config.json */
    struct kg_ranks *ranks; /* each rank has its own device; NULL: a single process */
};

extern struct kg_load_args kg_load;
/* Name of the adapter folder's key, in recipes and commands. */
#define KG_ADAPTER_KEY "model.adapter"
extern const struct kg_flag kg_model_flags[];   /* --model, --adapter */
extern const struct kg_flag kg_ignore_flags[];  /* --ignore */
extern const struct kg_flag kg_compute_flags[]; /* --dtype, --base-dtype.. */
extern const struct kg_flag kg_device_flags[];  /* --device, --products.. */

/* Sampling flags, into a struct kg_sampling (rollout/sampling.h). */
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
    struct kg_tokenizer *tok; /* owned; NULL if the folder has no tokenizer files */
};

/* Looks up a compute dtype by name; NULL: bf16.
 * errors: EINVAL (no such type) */
kg_status kg_load_dtype(enum kg_dtype *ct, const char *name,
                        struct kg_err *err) KG_MUST_CHECK;
/* The fields named by --ignore. */
struct kg_opt_list kg_load_ignored(const struct kg_load_args *args);
/* Opens the backend of --device and related flags, for products in ct. If args has ranks,
 * all must call it, and each opens its own.
 * errors: those of kg_device_open, kg_ranks_choose_device and kg_ranks_check_devices,
 * prefixed with the flag */
kg_status kg_load_device(const struct kg_backend **be, const struct kg_load_args *args,
                         enum kg_dtype ct, struct kg_err *err) KG_MUST_CHECK;
/* Opens the model for inference, with its adapter and tokenizer; the tokenizer's EOS
 * token is added to the EOS set. Sets the number of threads. On failure *l is {0}. */
kg_status kg_load_model(struct kg_loaded *l, const struct kg_load_args *args,
                        struct kg_err *err) KG_MUST_CHECK;
void kg_load_release(struct kg_loaded *l);
/* Makes a model of the base with the adapter of a PEFT folder; base weights are shared.
 * tok: the tokenizer of the base, NULL for none
 * errors: those of reading the folder; ECONFLICT (its tokenizer differs) */
kg_status kg_load_adapter(struct kg_model **out, const struct kg_model *base,
                          const struct kg_tokenizer *tok, const char *dir,
                          struct kg_err *err) KG_MUST_CHECK;
/* Checks --max-len for a loaded model; 0: not given.   errors: EINVAL (exceeds the
 * context length) */
kg_status kg_load_check_length(const struct kg_loaded *l, int64_t max_len,
                               struct kg_err *err) KG_MUST_CHECK;
/* Opens the tokenizer of a folder; NULL if it has none. */
kg_status kg_load_tokenizer(struct kg_tokenizer **tok, const char *dir,
                            struct kg_err *err) KG_MUST_CHECK;

/* Appends the array "ids" of an input line, each in [0, vocab).
 * errors: EFORMAT naming line and index */
kg_status kg_load_ids(struct kg_ids *out, const struct kg_json_doc *doc, int32_t vocab,
                      struct kg_err *err) KG_MUST_CHECK;

#endif
