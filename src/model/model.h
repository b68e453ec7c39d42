/* A language model: named parameters, the transformer's forward and backward over packed
 * sequences, and the paged KV cache. Sampler and trainer call the same forward on the
 * same weights.
 *
 * Parameters. `compute` is what products read: bf16 or fp32, in panels, and of a tied
 * embedding and head one copy. A model opened for inference packs the checkpoint while it
 * reads it and keeps nothing else; one opened for training owns fp32 master weights
 * (`master`) beside, and kg_model_refresh packs them again after every update.
 *
 * A model with adapters (lora.h) is frozen but for them: the weights of its checkpoint
 * are as of a model for inference, and slabs hold A and B alone. Models may share one
 * base.
 *
 * Among ranks the master weights may be cut: each has its part of every slab, and what
 * products read is whole everywhere.
 *
 * Of a model on a device the master weights, and what products read of its layers, may
 * lie in the host's memory instead (enum kg_on_host); its results have the same bits.
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
    int64_t file_row; /* where it begins in the rows of the file's tensor, which others */
    int64_t file_rows; /* may share: as many rows as that has */
    int n_dims;        /* 1 or 2 in the file */
    bool is_product;   /* read by products, in ct; else fp32 (norms, biases) */
    int64_t offset;    /* elements, of this tensor in the fp32 slabs; -1: it is frozen */
    struct kg_mat compute; /* (rows, cols) panels of ct; or an fp32 row if !is_product */
    bool plus_one;         /* a norm whose compute is 1 + w */
    float *as_stored;      /* (cols) w of such a norm; the backend's, else NULL */
    float *master; /* (rows, cols) fp32; NULL when opened for inference, frozen or cut */
    const struct kg_adapter *adapter; /* beside it; NULL: none */
};

struct kg_layer_params {
    struct kg_param *norm1, *norm2; /* before attention and feed-forward, or NULL */
    struct kg_param *post1, *post2; /* behind them, or NULL */
    struct kg_param *wq, *wk, *wv, *wo, *wgate, *wup, *wdown;
    struct kg_param *bq, *bk, *bv, *bo;   /* NULL without bias */
    struct kg_param *bgate, *bup, *bdown; /* NULL without bias */
    struct kg_param *qnorm, *knorm;       /* NULL without QK-norm */
    /* Of a layer with experts, whose wgate, wup, wdown are NULL: the router, and expert
     * 0's matrices; expert e's are kg_expert(egate, e). */
    struct kg_param *router, *egate, *eup, *edown;
    struct kg_param *sgate, *sup, *sdown,
        *share;      /* the shared one and its gate, or NULL */
    size_t first, n; /* params of the layer: [first, first+n) */
};

/* The three matrices of an expert follow each other. */
static inline struct kg_param *kg_expert(struct kg_param *of_0, int32_t e)
{
    return of_0 + 3 * (ptrdiff_t)e;
}

enum kg_on_host {
    KG_HOST_NONE,   /* all in the backend's memory */
    KG_HOST_MASTER, /* master weights in the host's */
    /* what products read of the layers too: a forward fetches one layer after the other
     * into room for one. On the CPU, where that takes master weights, the layer is made
     * of them. Forward alone, and from one thread at a time */
    KG_HOST_LAYERS,
};

struct kg_ranks;

struct kg_model {
    struct kg_model_config config;
    const struct kg_backend *backend;
    const struct kg_backend *host; /* kg_backend_host of it */
    enum kg_on_host on_host;
    const char *whose;                    /* as in the options */
    enum kg_dtype ct;                     /* compute dtype */
    struct kg_lora *lora;                 /* owned; NULL: no adapters */
    int32_t most_rank;                    /* of its adapters; 0 without */
    const struct kg_model *const *others; /* (n_others) borrowed: see kg_model_mix */
    int32_t n_others;
    struct kg_param *params; /* (n_params) owned: embed, layers, norm, head; then A and B
                              * of every adapter, which a checkpoint has not */
    size_t n_params;
    size_t n_base;         /* without those of adapters */
    int64_t n_elements;    /* of all parameters that are not frozen: length of a slab */
    struct kg_slab master; /* (cut.n) owned; without data for inference */
    struct kg_cut cut;     /* of the n_elements: what master, and slabs beside it, have */
    struct kg_ranks *ranks; /* borrowed: who have the others; NULL: master has all */
    struct kg_layer_params *layers; /* (L) owned */
    struct kg_param *embed;         /* (V,D) */
    struct kg_param *norm;          /* (1,D) */
    struct kg_param *head;          /* (V,D); == embed when tied */
    struct kg_vec inv_freq;         /* (hd/2) owned */
    struct kg_vec local_inv_freq;   /* (hd/2) owned; of layers with a rope of their own */
    char *dir;          /* where it was read from; owned, NULL for a fresh one */
    uint64_t base_hash; /* of the checkpoint there, where it has adapters (lora_base.c) */
    void *priv;         /* owned by model.c: maps, slabs, names */
};

struct kg_st_set;

struct kg_model_opts {
    const struct kg_backend *backend; /* NULL: the default */
    enum kg_dtype ct;
    bool trainable; /* own fp32 master weights */
    enum kg_on_host on_host;
    const char *whose; /* names its memory: "anchor's "; of static life, NULL for "" */
    const struct kg_lora *lora;  /* borrowed; its adapters. NULL: none */
    const char *adapter;         /* borrowed; folder of their values. NULL: fresh ones */
    uint64_t seed;               /* of fresh ones */
    const struct kg_model *base; /* borrowed, of an outline: shares its frozen weights */
    /* borrowed: each has a cut (kg_cut_of) of the master weights, by its number, and what
     * products read comes from all of them; then the functions that say so are called by
     * all. NULL, or one: no cuts */
    struct kg_ranks *ranks;
    struct kg_opt_list ignore; /* fields of config.json: see kg_model_config_open */
};

/* A model with its parameters listed and no memory for any: what plans ask. Nothing but
 * kg_model_memory, kg_kv_bytes and kg_model_free is for it.
 * errors: ENOMEM, SHAPE (too many elements) */
kg_status kg_model_outline(struct kg_model **out, const struct kg_model_config *config,
                           const struct kg_model_opts *opts,
                           struct kg_err *err) KG_MUST_CHECK;
/* Read a checkpoint folder; every tensor of the architecture must be there with its
 * shape, and none beyond but those that bear on no log-prob (files.c).
 * errors: NOTFOUND, EFORMAT, SHAPE, DTYPE, UNSUPPORTED, each naming file and tensor */
kg_status kg_model_open(struct kg_model **out, const char *dir,
                        const struct kg_model_opts *opts,
                        struct kg_err *err) KG_MUST_CHECK;
/* The weights of a folder by the names of m's parameters, whatever wrapper saved them. */
kg_status kg_model_open_files(struct kg_st_set **set, const struct kg_model *m,
                              const char *dir, struct kg_err *err) KG_MUST_CHECK;
/* The weights in its files are finite, as training wants them.   set: of the same folder
 * errors: NONFINITE, naming file and tensor */
kg_status kg_model_check_values(const struct kg_model *m, const struct kg_st_set *set,
                                struct kg_err *err) KG_MUST_CHECK;
/* Fresh weights: normal(0, init_range), norms 1, biases 0, by Philox from seed. Always
 * trainable. */
kg_status kg_model_create(struct kg_model **out, const struct kg_model_config *config,
                          const struct kg_model_opts *opts, uint64_t seed,
                          struct kg_err *err) KG_MUST_CHECK;
/* A second trainable model of the same shape and backend whose master weights are copied
 * from src (the EMA anchor).   opts: what else it is. Where src has adapters they alone
 * are copied: the rest is src's, which must outlive it.
 * errors: ENOMEM, UNSUPPORTED (adapters, and another dtype) */
kg_status kg_model_clone(struct kg_model **out, const struct kg_model *src,
                         const struct kg_model_opts *opts,
                         struct kg_err *err) KG_MUST_CHECK;
/* base with other adapters, or without any (opts: lora, adapter, seed): nothing of base
 * is copied, which must outlive it. */
kg_status kg_model_share(struct kg_model **out, const struct kg_model *base,
                         const struct kg_model_opts *opts,
                         struct kg_err *err) KG_MUST_CHECK;
/* From now on packs of base may hold sequences of others, which share it
 * (kg_model_share): see kg_pack_seq.adapter. Room for packs (kg_acts, kg_rows) is to be
 * taken behind it.   others: (n) borrowed, as what they point to; of base's dtype
 * errors: UNSUPPORTED (adapters beside experts: their rows are gathered by expert) */
kg_status kg_model_mix(struct kg_model *base, const struct kg_model *const *others,
                       int32_t n, struct kg_err *err) KG_MUST_CHECK;
void kg_model_free(struct kg_model *m);

/* Pack what products read from the master weights, after any change of them. By all
 * ranks: of cuts each sends its own, in what products read.
 * errors: ENOMEM, of the ranks (told to all) */
kg_status kg_model_refresh(struct kg_model *m, struct kg_err *err) KG_MUST_CHECK;
/* Bytes of the backend's memory and, where that is another, of the host's. */
struct kg_bytes {
    uint64_t there;
    uint64_t host;
};
/* What a refresh of cuts takes while it lasts: what ranks send, and what goes to a
 * device.   nccl: that joins their devices */
struct kg_bytes kg_model_refresh_bytes(const struct kg_model *m, bool nccl);
/* Memory of what products read, beside the master weights: the backend's. */
uint64_t kg_model_compute_bytes(const struct kg_model *m);
/* What its products may take beside operands: reserved when it is opened. */
uint64_t kg_model_product_bytes(const struct kg_model *m);

static inline uint64_t kg_bytes_sum(struct kg_bytes b) { return b.there + b.host; }
/* What a model holds, were it trainable or not: taken, or of an outline to be taken. */
struct kg_model_memory {
    struct kg_bytes master;
    struct kg_bytes read; /* by products, with norms and biases */
};
struct kg_model_memory kg_model_memory(const struct kg_model *m, bool trainable);

/* The first parameter that is not frozen; all behind it are not. */
static inline size_t kg_model_first_trained(const struct kg_model *m)
{
    return m->lora ? m->n_base : 0;
}

/* Of all parameters those that one token is multiplied by or normed with: of experts its
 * own. Both without what aligns them. */
int64_t kg_model_parameters(const struct kg_model *m);
int64_t kg_model_active_parameters(const struct kg_model *m);
/* Whether anything is trained that a router's choice depends on: it, or what stands below
 * one. */
bool kg_model_moves_routers(const struct kg_model *m);

/* Write dir/ (made if absent; must be empty or absent): config.json, model.safetensors
 * (sharded with an index above shard_bytes; 0 = 4 GiB), and the sidecars found at
 * source_dir (tokenizer files, generation_config.json, chat template; the fields of its
 * config.json that have no effect; NULL: the model's own dir). dtype BF16 or F32; from
 * `weights` if given (e.g. an average), else master.
 * Of a model with adapters these alone are written, as PEFT does (adapter_config.json,
 * adapter_model.safetensors, fp32), or with `merge` the checkpoint that they make. */
enum kg_save_part {
    KG_SAVE_ALL,
    /* of a model whose weights are cut among ranks, into one folder: by one of them all
     * but values, files at their full length; then by each the values of its cut */
    KG_SAVE_FRAME,
    KG_SAVE_VALUES,
};
struct kg_model_save {
    enum kg_dtype dtype;
    const struct kg_slab *weights; /* borrowed, of m->cut; NULL for the model's own */
    const char *source_dir;        /* borrowed, NULL for m->dir */
    uint64_t shard_bytes;
    bool merge; /* W + s B A for every weight that has an adapter, rounded once */
    enum kg_save_part part;
};
kg_status kg_model_save(const struct kg_model *m, const char *dir,
                        const struct kg_model_save *opts,
                        struct kg_err *err) KG_MUST_CHECK;
/* Disk need of a save, sidecars included. */
uint64_t kg_model_save_bytes(const struct kg_model *m, enum kg_dtype dtype);

/* ---- forward over packed sequences ---- */

/* A sequence of a pack: tokens at positions pos, pos+1, ... */
struct kg_pack_seq {
    int32_t n;                  /* 1 or more */
    int32_t pos;                /* 0 without a cache and keys of the pack */
    struct kg_kv_tables blocks; /* of the cache, from position 0 on; none without one */
    /* which adapters are beside the weights: 0 the model's own, if it has any, i > 0
     * those of others[i - 1], with the bits that this one's forward has. Not where a
     * backward follows */
    int32_t adapter;
};
/* N tokens of whole or continued sequences, packed one after the other. The host's. */
struct kg_pack {
    const int32_t *tokens;          /* (N) */
    int64_t n;                      /* N */
    const struct kg_pack_seq *seqs; /* (n_seqs): together N tokens */
    int32_t n_seqs;
    /* Sequences may begin with tokens of another one, which stand here once: of each
     * sequence the rows of positions 0 to pos + n - 1, all one after the other; those
     * from pos on are its own. */
    const int32_t *keys; /* (n_keys) */
    int64_t n_keys;      /* 0: nothing is shared */
};

/* Activations of one packed micro-batch: everything the backward needs. With
 * checkpointing only the input of every layer is kept and the rest is computed again. */
struct kg_acts; /* opaque */
kg_status kg_acts_create(struct kg_acts **out, const struct kg_model *m,
                         int64_t max_tokens, bool checkpoint,
                         struct kg_err *err) KG_MUST_CHECK;
void kg_acts_free(struct kg_acts *acts);
/* Of the last forward's pack the rows, there. */
struct kg_ivec kg_acts_rows(const struct kg_acts *acts);
/* how and inv_temp of d <- those of the last forward, there; NULL where it had none. */
void kg_acts_draws(struct kg_draws *d, const struct kg_acts *acts);
uint64_t kg_acts_bytes(const struct kg_model *m, int64_t max_tokens, bool checkpoint);
/* Keys that a pack which shares may have; at least max_tokens. */
int64_t kg_acts_keys(const struct kg_model *m, int64_t max_tokens);

/* In the place of a token's first expert: it chooses. */
enum { KG_NO_EXPERT = UINT16_MAX };
/* (n,C) out: the experts that tokens [row, row+n) of the last forward had, as kg_forward
 * gives them. */
kg_status kg_acts_experts(uint16_t *out, struct kg_acts *acts, int64_t row, int64_t n,
                          struct kg_err *err) KG_MUST_CHECK;

/* Adds to counts (Lx,E) how many tokens of the last forward each expert has had, layer by
 * layer of the Lx that have any. */
kg_status kg_acts_load(int64_t *counts, struct kg_acts *acts,
                       struct kg_err *err) KG_MUST_CHECK;
/* What kg_acts_load and kg_acts_p_sum give of the last forward, on its way to the host:
 * whoever waits for the backend before they are called has waited for it. */
kg_status kg_acts_load_later(struct kg_acts *acts, struct kg_err *err) KG_MUST_CHECK;
/* Of the host, taken when it is first asked for. */
uint64_t kg_acts_load_bytes(const struct kg_model_config *c, int64_t max_tokens);
/* A loss that is linear in the routers' probabilities p, of forwards from here on that
 * are kept: sum_e balance[e] sum_{l,t} p[l,t,e]; the backward adds its gradient.
 * balance (E) of the host; NULL: no more.   p_sum (E) out, of the host: the sums of p
 * over layers and tokens of the last such forward */
kg_status kg_acts_balance(struct kg_acts *acts, const float *balance,
                          struct kg_err *err) KG_MUST_CHECK;
kg_status kg_acts_p_sum(float *p_sum, struct kg_acts *acts,
                        struct kg_err *err) KG_MUST_CHECK;

/* Final-normed hidden states of all N rows.
 * kv NULL: whole sequences, keys from this pack. kv given: keys and values go to
 * the sequences' blocks of the pools, and are read there.   acts keeps
 * what the backward needs when `keep`; its buffers serve as scratch otherwise. hidden
 * (N,D) ct out: borrowed from acts, valid until its next use. Inside a parallel region
 * every caller needs acts of its own.
 * errors: SHAPE (N over max_tokens), EINVAL (ids of tokens, blocks, experts), ENOMEM */
struct kg_forward {
    const struct kg_pack *pack;
    struct kg_kv *kv;
    bool keep;
    /* (N,C) the experts that tokens are given, C kg_model_config_choices; NULL: all
     * choose. Their weights are the router's, over those that a token has */
    const uint16_t *experts;
    const int32_t *rows; /* (n_rows) of the pack, which come there with it */
    int64_t n_rows;
    /* by which a token of each is drawn: they come there, too; or NULL */
    const struct kg_draw *how; /* (n_rows) */
    const float *inv_temp;     /* (n_rows) */
    /* whose tokens are those drawn of rows of the step before, or -1: as they are; NULL:
     * all are */
    const int32_t *from; /* (pack->n) */
    int64_t n_drawn;     /* rows of the step before */
    bool later;          /* the pack is on its way when it is staged */
};
kg_status kg_model_forward(struct kg_mat *hidden, const struct kg_model *m,
                           struct kg_acts *acts, const struct kg_forward *f,
                           struct kg_err *err) KG_MUST_CHECK;
/* Its two parts: the pack comes there; operations on it, and nothing else. */
kg_status kg_model_stage(const struct kg_model *m, struct kg_acts *acts,
                         const struct kg_forward *f, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_model_run(struct kg_mat *hidden, const struct kg_model *m,
                       struct kg_acts *acts, const struct kg_forward *f,
                       struct kg_err *err) KG_MUST_CHECK;

/* Where a backward adds: elements [first, ...) of the slabs (layout of kg_param.offset)
 * stand at data, as far as the stages that are made with it reach. */
struct kg_grads {
    float *data; /* fp32, the backend's; borrowed */
    int64_t first;
    bool whole; /* all of the slab: what two stages add to is there in both */
};
static inline struct kg_grads kg_grads_all(float *slab)
{
    return (struct kg_grads){slab, 0, true};
}

/* Backward of the last kept forward: adds to grads (n_elements fp32, same layout as
 * master). dhidden (N,D) fp32 is destroyed. The head's own gradient goes to grads +
 * head->offset by kg_op_head_bwd before or after. */
kg_status kg_model_backward(const struct kg_model *m, struct kg_acts *acts,
                            struct kg_mat dhidden, float *grads,
                            struct kg_err *err) KG_MUST_CHECK;

/* The same in stages, all of which are made in order: 0 the norm before the head, 1 .. L
 * layers from the last to the first, L + 1 the embedding. Each adds to a stretch of the
 * slabs of its own, that of 0 with a head that is not the embedding; stretches are all of
 * the slabs, and may be empty. */
int32_t kg_backward_stages(const struct kg_model *m);
struct kg_cut kg_backward_cut(const struct kg_model *m, int32_t stage);
kg_status kg_model_backward_stage(const struct kg_model *m, struct kg_acts *acts,
                                  struct kg_mat dhidden, struct kg_grads grads,
                                  int32_t stage, struct kg_err *err) KG_MUST_CHECK;

#endif
