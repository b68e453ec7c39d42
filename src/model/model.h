/* A language model: named parameters, the transformer's forward and backward over packed
 * sequences, and the paged KV cache. Sampler and trainer call the same forward on the
 * same weights.
 *
 * Parameters. Matrix products read `compute`: bf16, fp32 or quantised, in the layout of
 * the backend; a tied embedding and head share one copy. A model opened for inference
 * packs the checkpoint while reading it and keeps nothing else. A model opened for
 * training also owns fp32 master weights (`master`), packed again after every update.
 *
 * In a model with adapters (lora.h) only the adapters are trained: the base has no master
 * weights, and slabs hold A and B only. Models may share one base.
 *
 * Ranks may shard the master weights: each rank has its shard of every slab and the
 * complete `compute`.
 *
 * For a model on a device, the master weights, or these and `compute` of the layers, may
 * be in host memory instead (enum kg_on_host); the results have the same bits.
 */
#ifndef KG_MODEL_MODEL_H
#define KG_MODEL_MODEL_H

#include "base/mem.h"
#include "base/option.h"
#include "base/status.h"
#include "model/config.h"
#include "model/kv.h"
#include "model/lora.h"
#include "model/slab.h"
#include "tensor/backend.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_param {
    const char *name; /* HF tensor name; owned by the model */
    int64_t rows;     /* 1-D tensors: rows 1 */
    int64_t cols;
    int64_t file_row;      /* first row within the file's tensor */
    int64_t file_rows;     /* rows of that tensor; parameters may be parts of one */
    int n_dims;            /* number of dimensions in the file: 1 or 2 */
    bool is_product;       /* used in products, in ct; else fp32 (norms, biases) */
    int64_t offset;        /* first element in the slabs; -1: frozen */
    struct kg_mat compute; /* (rows, cols) in ct or quantised; fp32 for vectors */
    bool plus_one;         /* a norm with compute = 1 + w */
    float *as_stored;      /* (cols) w if plus_one, in the backend's memory; else NULL */
    float *master;         /* (rows, cols) fp32; NULL for inference, frozen or sharded */
    const struct kg_adapter *adapter; /* adapter of this weight; NULL: none */
};

struct kg_layer_params {
    struct kg_param *norm1, *norm2; /* norms before attention and feed-forward, or NULL */
    struct kg_param *post1, *post2; /* norms after attention and feed-forward, or NULL */
    struct kg_param *wq, *wk, *wv, *wo, *wgate, *wup, *wdown;
    struct kg_param *bq, *bk, *bv, *bo;   /* NULL without bias */
    struct kg_param *bgate, *bup, *bdown; /* NULL without bias */
    struct kg_param *qnorm, *knorm;       /* NULL without QK-norm */
    /* A layer with experts has NULL wgate, wup, wdown; it has the router and expert 0's
     * matrices; expert e's are kg_expert(egate, e). */
    struct kg_param *router, *egate, *eup, *edown;
    struct kg_param *sgate, *sup, *sdown,
        *share;      /* shared expert and its gate, or NULL */
    size_t first, n; /* params of the layer: [first, first+n) */
};

/* The three matrices of an expert are consecutive. */
static inline struct kg_param *kg_expert(struct kg_param *of_0, int32_t e)
{
    return of_0 + 3 * (ptrdiff_t)e;
}

enum kg_on_host {
    KG_HOST_NONE,   /* all in backend memory */
    KG_HOST_MASTER, /* master weights in host memory */
    /* also `compute` of the layers: a forward fetches one layer at a time into a buffer.
     * A CPU model must have master weights; each layer is packed from them. Forward only,
     * one thread at a time */
    KG_HOST_LAYERS,
};

struct kg_ranks;

struct kg_model {
    struct kg_model_config config;
    const struct kg_backend *backend;
    const struct kg_backend *host; /* kg_backend_host of backend */
    enum kg_on_host on_host;
    const char *whose;                    /* see kg_model_opts */
    enum kg_dtype ct;                     /* compute dtype */
    const char *base_dtype;               /* static; see kg_model_opts */
    struct kg_lora *lora;                 /* owned; NULL: no adapters */
    int32_t most_rank;                    /* highest rank of its adapters; 0: none */
    const struct kg_model *const *others; /* (n_others) borrowed: see kg_model_mix */
    int32_t n_others;
    /* (n_params) owned: embed, layers, norm, head; then A and B of every adapter, which
     * are not in the base checkpoint */
    struct kg_param *params;
    size_t n_params;
    size_t n_base;          /* number of params without those of adapters */
    int64_t n_elements;     /* length of a slab: all trained parameters, with padding */
    struct kg_slab master;  /* (cut.n) owned; empty for inference */
    struct kg_cut cut;      /* this rank's shard of master and of all slabs */
    struct kg_ranks *ranks; /* borrowed: the ranks that have shards; NULL: not sharded */
    struct kg_layer_params *layers; /* (L) owned */
    struct kg_param *embed;         /* (V,D) */
    struct kg_param *norm;          /* (1,D) */
    struct kg_param *head;          /* (V,D); == embed when tied */
    struct kg_vec inv_freq;         /* (kg_rope_pairs) owned by the base, if shared */
    struct kg_vec local_inv_freq;   /* the same for layers with local rope; or empty */
    char *dir;                      /* source folder; owned, NULL for a new model */
    uint64_t base_hash; /* hash of the base, in a model with adapters (lora_base.c) */
    void *priv;         /* owned: struct kg_model_priv */
};

struct kg_st_set;

struct kg_model_opts {
    const struct kg_backend *backend; /* NULL: the default */
    enum kg_dtype ct;
    bool trainable; /* own fp32 master weights */
    /* borrowed; type of the blocks (data/quants.h) that hold frozen matrices;
     * "as_stored": as in the file. Values are decoded and rounded to bf16. NULL: all in
     * ct */
    const char *base_dtype;
    const char *source; /* borrowed; for an outline with as_stored: the checkpoint */
    enum kg_on_host on_host;
    const char *whose; /* prefix of memory names: "anchor's "; static; NULL: "" */
    const struct kg_lora *lora;  /* borrowed; adapters to add. NULL: none */
    const char *adapter;         /* borrowed; folder with their values. NULL: new ones */
    uint64_t seed;               /* for new adapters */
    const struct kg_model *base; /* borrowed; an outline shares its weights; NULL: none */
    /* borrowed: each rank has a shard (kg_cut_of) of the master weights and collects
     * `compute` from all; all must then call the functions documented as collective.
     * NULL, or a single rank: not sharded */
    struct kg_ranks *ranks;
    struct kg_opt_list ignore; /* fields of config.json: see kg_model_config_open */
};

/* Creates a model with its list of parameters but no memory, for planning. Only functions
 * that count bytes or parameters, and kg_model_free, accept it.   errors: ENOMEM, ESHAPE
 * (too many elements), EUNSUPPORTED (backend, base_dtype), those of adapters */
kg_status kg_model_outline(struct kg_model **out, const struct kg_model_config *config,
                           const struct kg_model_opts *opts,
                           struct kg_err *err) KG_MUST_CHECK;
/* Reads a checkpoint folder. Every tensor of the architecture must be present with its
 * shape. Other tensors are refused unless they cannot affect log-probs (files.c).
 * errors: those of kg_model_config_open and kg_model_outline; ENOTFOUND, ESHAPE, EDTYPE,
 * EUNSUPPORTED, each naming the tensor */
kg_status kg_model_open(struct kg_model **out, const char *dir,
                        const struct kg_model_opts *opts,
                        struct kg_err *err) KG_MUST_CHECK;
/* Opens the weights of a folder under the names of m's parameters, with the prefixes of
 * wrapper classes removed. *set: owned; close it with kg_st_close */
kg_status kg_model_open_files(struct kg_st_set **set, const struct kg_model *m,
                              const char *dir, struct kg_err *err) KG_MUST_CHECK;
/* Checks that all weights in the files are finite, as training needs. set: the files that
 * m was opened from   errors: ENONFINITE, naming file and tensor */
kg_status kg_model_check_values(const struct kg_model *m, const struct kg_st_set *set,
                                struct kg_err *err) KG_MUST_CHECK;
/* New weights: normal(0, init_range), norms 1, biases 0, by Philox from seed. Trainable
 * unless opts.base_dtype is set. */
kg_status kg_model_create(struct kg_model **out, const struct kg_model_config *config,
                          const struct kg_model_opts *opts, uint64_t seed,
                          struct kg_err *err) KG_MUST_CHECK;
/* A second, trainable model of the same shape and backend with a copy of src's weights
 * (the EMA anchor). opts: its other settings. If src has adapters, only these are
 * copied; the rest is shared with src, which must outlive it.
 * errors: ENOMEM, EUNSUPPORTED (adapters with another dtype) */
kg_status kg_model_clone(struct kg_model **out, const struct kg_model *src,
                         const struct kg_model_opts *opts,
                         struct kg_err *err) KG_MUST_CHECK;
/* A model of base's weights with other adapters or none (opts: lora, adapter, seed). It
 * shares the weights of base, which must outlive it.
 * errors: ENOMEM, EUNSUPPORTED (another dtype), those of adapters */
kg_status kg_model_share(struct kg_model **out, const struct kg_model *base,
                         const struct kg_model_opts *opts,
                         struct kg_err *err) KG_MUST_CHECK;
/* After this call packs of base may hold sequences of the models in `others`, which share
 * base (kg_model_share); kg_pack_seq.adapter selects the model. Create packs (kg_acts,
 * kg_rows) after it. others: (n) borrowed with the models; of base's dtype
 * errors: EUNSUPPORTED (adapters on matrices of experts) */
kg_status kg_model_mix(struct kg_model *base, const struct kg_model *const *others,
                       int32_t n, struct kg_err *err) KG_MUST_CHECK;
void kg_model_free(struct kg_model *m);

/* Packs `compute` from the master weights. Call it after every change of the master
 * weights. Collective: ranks exchange their shards, rounded to the compute dtype.
 * errors: ENOMEM, those of the ranks (reported on all) */
kg_status kg_model_refresh(struct kg_model *m, struct kg_err *err) KG_MUST_CHECK;
/* Bytes of backend memory, and of host memory if that is separate. */
struct kg_bytes {
    uint64_t there;
    uint64_t host;
};
/* Temporary memory of a sharded refresh. nccl: whether NCCL joins the ranks' devices */
struct kg_bytes kg_model_refresh_bytes(const struct kg_model *m, bool nccl);
/* Bytes of backend memory of the matrices' `compute`, without the master weights. */
uint64_t kg_model_compute_bytes(const struct kg_model *m);
/* Bytes of the largest workspace of m's products, reserved when m is opened. */
uint64_t kg_model_product_bytes(const struct kg_model *m);

static inline uint64_t kg_bytes_sum(struct kg_bytes b) { return b.there + b.host; }
/* Memory that a model uses, or that an outline would use. */
struct kg_model_memory {
    struct kg_bytes master;
    struct kg_bytes read; /* `compute`, with norms and biases */
};
struct kg_model_memory kg_model_memory(const struct kg_model *m, bool trainable);

/* Index of the first trained parameter; all after it are trained too. */
static inline size_t kg_model_first_trained(const struct kg_model *m)
{
    return m->lora ? m->n_base : 0;
}

/* Number of parameters without alignment padding: all, and those that one token uses. */
int64_t kg_model_parameters(const struct kg_model *m);
int64_t kg_model_active_parameters(const struct kg_model *m);
/* Whether some trained parameter affects a router's choice: the router itself, or a
 * parameter before one. */
bool kg_model_moves_routers(const struct kg_model *m);

/* kg_model_save writes into dir, which must be absent or empty: config.json and
 * model.safetensors (above shard_bytes, shards and an index; 0 = 4 GiB). It copies from
 * source_dir the tokenizer files, generation_config.json, chat template, and the fields
 * of config.json that have no effect. dtype: BF16 or F32. A model with adapters is
 * written as PEFT does (adapter_config.json, adapter_model.safetensors, fp32; no base),
 * or with `merge` as a checkpoint without adapters.   errors: ECONFLICT (not empty),
 * ENOTFOUND (source_dir has no model), EDTYPE, ENOMEM, those of files */
enum kg_save_part {
    KG_SAVE_ALL,
    /* for weights sharded over ranks: one rank (FRAME) writes everything but values, with
     * files of full length; then each rank (VALUES) writes the values of its shard */
    KG_SAVE_FRAME,
    KG_SAVE_VALUES,
};
struct kg_model_save {
    enum kg_dtype dtype;
    const struct kg_slab *weights; /* borrowed, (m->cut.n); NULL: the model's weights */
    const char *source_dir;        /* borrowed, NULL for m->dir */
    uint64_t shard_bytes;
    bool merge; /* W + s B A for every weight with an adapter, rounded once */
    enum kg_save_part part;
};
kg_status kg_model_save(const struct kg_model *m, const char *dir,
                        const struct kg_model_save *opts,
                        struct kg_err *err) KG_MUST_CHECK;
/* Bytes on disk of a save without `merge`, including the copied files. */
uint64_t kg_model_save_bytes(const struct kg_model *m, enum kg_dtype dtype);

/* ---- forward over packed sequences ---- */

/* A sequence of a pack: tokens at positions pos, pos+1, ... */
struct kg_pack_seq {
    int32_t n;                  /* 1 or more */
    int32_t pos;                /* 0 without a cache and without kg_pack.keys */
    struct kg_kv_tables blocks; /* cache blocks from position 0 on; or empty */
    /* adapters of this sequence: 0 the model's own, if any; i > 0 those of others[i - 1],
     * with the same bits as a forward of that model. 0 if a backward follows */
    int32_t adapter;
};
/* N tokens of whole or continued sequences, packed one after another, on the host. */
struct kg_pack {
    const int32_t *tokens;          /* (N) */
    int64_t n;                      /* N */
    const struct kg_pack_seq *seqs; /* (n_seqs): together N tokens */
    int32_t n_seqs;
    /* Sequences may share a prefix, which the pack stores once. keys lists, sequence by
     * sequence, the pack's rows of positions 0 to pos + n - 1; the sequence's own rows
     * begin at pos. */
    const int32_t *keys; /* (n_keys) */
    int64_t n_keys;      /* 0: nothing is shared */
};

/* Activations of one packed micro-batch: all that the backward needs. With checkpointing
 * only the input of every layer is kept, and the rest is recomputed.
 * errors: EINVAL (max_tokens), ENOMEM */
struct kg_acts; /* opaque */
kg_status kg_acts_create(struct kg_acts **out, const struct kg_model *m,
                         int64_t max_tokens, bool checkpoint,
                         struct kg_err *err) KG_MUST_CHECK;
void kg_acts_free(struct kg_acts *acts);
/* kg_forward.rows of the last forward, in backend memory. */
struct kg_ivec kg_acts_rows(const struct kg_acts *acts);
/* Makes d->how and d->inv_temp point to the last forward's arrays in backend memory; NULL
 * if the forward had none. */
void kg_acts_draws(struct kg_draws *d, const struct kg_acts *acts);
/* Bytes of acts in backend and host memory. more: number of int32 that a pack stages
 * besides tokens and sequences (keys, preset experts) */
struct kg_bytes kg_acts_bytes(const struct kg_model *m, int64_t max_tokens,
                              bool checkpoint, int64_t more);
/* Maximum kg_pack.n_keys of a pack with shared prefixes; at least max_tokens. */
int64_t kg_acts_keys(const struct kg_model *m, int64_t max_tokens);

/* If this is the first of a token's K experts in a layer, the router chooses there. */
enum { KG_NO_EXPERT = UINT16_MAX };
/* (n,C) out: the experts of tokens [row, row+n) of the last forward, in the format of
 * kg_forward.experts. */
kg_status kg_acts_experts(uint16_t *out, struct kg_acts *acts, int64_t row, int64_t n,
                          struct kg_err *err) KG_MUST_CHECK;

/* Adds to counts (Lx,E) the number of tokens of the last forward per expert, for each of
 * the Lx layers with experts. */
kg_status kg_acts_load(int64_t *counts, struct kg_acts *acts,
                       struct kg_err *err) KG_MUST_CHECK;
/* Starts copying to the host what kg_acts_load and kg_acts_p_sum read. After any later
 * wait for the backend, neither function waits. */
kg_status kg_acts_load_later(struct kg_acts *acts, struct kg_err *err) KG_MUST_CHECK;
/* Bytes of host memory that kg_acts_load allocates at first use. */
uint64_t kg_acts_load_bytes(const struct kg_model_config *c, int64_t max_tokens);
/* Adds a loss that is linear in the routers' probabilities p to later kept forwards:
 * sum_e balance[e] sum_{l,t} p[l,t,e]; the backward adds its gradient. balance (E) on the
 * host; NULL: off. p_sum (E) out, on the host: sums of p over layers and tokens of the
 * last such forward */
kg_status kg_acts_balance(struct kg_acts *acts, const float *balance,
                          struct kg_err *err) KG_MUST_CHECK;
kg_status kg_acts_p_sum(float *p_sum, struct kg_acts *acts,
                        struct kg_err *err) KG_MUST_CHECK;

/* kg_model_forward computes the final-normed hidden states of all N rows.
 * kv NULL: whole sequences with keys of this pack. With kv, keys and values are written
 * to the sequences' cache blocks and read there. With `keep`, acts keeps what the
 * backward needs; otherwise its buffers are scratch. hidden (N,D) ct out: borrowed from
 * acts, valid until its next use. In a parallel region each caller needs its own acts.
 * errors: ESHAPE (N over max_tokens), EINVAL (ids of tokens, blocks, experts), ENOMEM */
struct kg_forward {
    const struct kg_pack *pack;
    struct kg_kv *kv;
    bool keep;
    /* (N,C) preset experts of tokens, C = kg_model_config_choices; NULL: routers choose.
     * The router still gives their weights */
    const uint16_t *experts;
    const int32_t *rows; /* (n_rows) indices in the pack, copied to the backend with it */
    int64_t n_rows;
    /* how to draw a token of each row, copied with the pack; or NULL */
    const struct kg_draw *how; /* (n_rows) */
    const float *inv_temp;     /* (n_rows) */
    /* for each token, the row of the previous step whose drawn token replaces it, or -1;
     * NULL: no replacement */
    const int32_t *from; /* (pack->n) */
    int64_t n_drawn;     /* rows of the previous step */
    bool later;          /* the caller, not the next pack, waits for this pack's copy */
};
kg_status kg_model_forward(struct kg_mat *hidden, const struct kg_model *m,
                           struct kg_acts *acts, const struct kg_forward *f,
                           struct kg_err *err) KG_MUST_CHECK;
/* The two parts of kg_model_forward: _stage copies the pack to the backend, _run runs
 * the operations. */
kg_status kg_model_stage(const struct kg_model *m, struct kg_acts *acts,
                         const struct kg_forward *f, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_model_run(struct kg_mat *hidden, const struct kg_model *m,
                       struct kg_acts *acts, const struct kg_forward *f,
                       struct kg_err *err) KG_MUST_CHECK;

/* Where a backward adds: elements [first, ...) of the slabs (layout of kg_param.offset)
 * are at `data`; only those of the stage that runs need be valid. */
struct kg_grads {
    float *data; /* fp32, in the backend's memory; borrowed */
    int64_t first;
    /* data is the whole slab: stage 0, not the last stage, adds a tied head's gradient */
    bool whole;
};
static inline struct kg_grads kg_grads_all(float *slab)
{
    return (struct kg_grads){slab, 0, true};
}

/* Backward of the last kept forward: adds to grads (n_elements fp32, layout of master).
 * dhidden (N,D) fp32 is destroyed. The head's own gradient is added to grads +
 * head->offset by kg_op_head_bwd, before or after. */
kg_status kg_model_backward(const struct kg_model *m, struct kg_acts *acts,
                            struct kg_mat dhidden, float *grads,
                            struct kg_err *err) KG_MUST_CHECK;

/* kg_model_backward in stages, run in order: 0 the norm before the head, 1 .. L the
 * layers from last to first, L + 1 the embedding. Each stage adds to its own range of the
 * slabs (stage 0 also to an untied head). The ranges cover the slabs and may be empty. */
int32_t kg_backward_stages(const struct kg_model *m);
struct kg_cut kg_backward_cut(const struct kg_model *m, int32_t stage);
kg_status kg_model_backward_stage(const struct kg_model *m, struct kg_acts *acts,
                                  struct kg_mat dhidden, struct kg_grads grads,
                                  int32_t stage, struct kg_err *err) KG_MUST_CHECK;

#endif
