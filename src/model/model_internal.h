/* Shared by the files of src/model: the hidden part of a model and its list of
 * parameters.
 *
 * Internal to src/model.
 */
#ifndef KG_MODEL_MODEL_INTERNAL_H
#define KG_MODEL_MODEL_INTERNAL_H

#include "data/safetensors.h"
#include "model/model.h"

#include <string.h>

/* A tensor in slabs begins at a multiple of this many elements (128 bytes of fp32); the
 * gap stays 0. */
enum { KG_PARAM_ALIGN = 32 };
/* A matrix in panels begins at a multiple of this many bytes. */
enum { KG_COMPUTE_ALIGN = 64 };

/* kg_model.priv */
struct kg_model_priv {
    struct kg_st_set *set; /* owned; the checkpoint while it is being read, or NULL */
    unsigned char *panels; /* owned, in the backend's memory; `compute` of matrices */
    /* owned, in the backend's memory; norms and biases for inference, or NULL */
    float *vectors;
    char *names; /* owned; storage of every param.name */
    bool shares; /* all but `compute` of adapters belongs to another model */
    struct kg_adapter *adapters; /* owned */
    /* KG_HOST_LAYERS: */
    /* (L layer_bytes) owned, on the host; `compute` of layers; NULL: packed from master
     * weights */
    unsigned char *layers;
    uint64_t layer_bytes;
    unsigned char *room; /* in panels; borrowed: buffer for the fetched layer */
    int32_t there;       /* the layer in that buffer; -1: none */
};

/* Where a matrix for products is stored permanently. */
struct kg_stored {
    const struct kg_backend *backend;
    struct kg_mat mat;
};
struct kg_stored kg_param_stored(const struct kg_model *m, const struct kg_param *p);

/* Appends p, whose rows and cols are known, to the slabs.
 * errors: ESHAPE (more elements than can be counted) */
kg_status kg_param_place(struct kg_model *m, struct kg_param *p,
                         struct kg_err *err) KG_MUST_CHECK;
/* If p, the last of the list, is part of the same file tensor as earlier parameters, sets
 * its row range. */
void kg_param_join(const struct kg_model *m, struct kg_param *p);

enum { KG_NAME_BYTES = 96 /* of a parameter */ };
/* "model.layers.3.self_attn.q_proj.weight": length of the module name */
static inline size_t kg_module_bytes(const struct kg_param *p)
{
    return strlen(p->name) - strlen(".weight");
}
/* lora_select.c: the adapter of a matrix */
struct kg_lora_choice {
    int32_t rank; /* 0: none */
    double alpha;
    int rank_rule; /* as in kg_adapter */
};
/* out: (n_base). Targets of m->lora that mean "all" are replaced by names.
 * of_folder: errors refer to adapter_config.json rather than to keys of a recipe
 * errors: EINVAL (a target or pattern without a matrix; a rank above a matrix's; the
 * patterns take too many steps together), EFORMAT, EUNSUPPORTED (regular expressions) */
kg_status kg_lora_choose(struct kg_lora_choice *out, struct kg_model *m, bool of_folder,
                         struct kg_err *err) KG_MUST_CHECK;
/* lora.c: adds adapters for all targets of m->lora after the listed parameters, which
 * become frozen. name: memory for two names per parameter of a layer; folder: source of
 * m->lora, NULL: a recipe
 * errors: as kg_lora_choose; EUNSUPPORTED (only some of a layer's experts, or different
 * adapters for them) */
kg_status kg_lora_list(struct kg_model *m, char *name, const char *folder,
                       struct kg_err *err) KG_MUST_CHECK;
/* Whether some adapters belong to matrices of experts. */
bool kg_lora_on_experts(const struct kg_model *m);
/* Values of new adapters: A uniform in +-1/sqrt(in), B 0. */
kg_status kg_lora_init(struct kg_model *m, uint64_t seed,
                       struct kg_err *err) KG_MUST_CHECK;
/* Opens a folder's tensors and checks names, shapes and base against m; kg_lora_load also
 * reads their values.
 * errors: those of files; ESHAPE, EDTYPE, EUNSUPPORTED, ENONFINITE, by tensor */
kg_status kg_lora_open(struct kg_st_set **set, const struct kg_model *m, const char *dir,
                       struct kg_err *err) KG_MUST_CHECK;
kg_status kg_lora_load(struct kg_model *m, const char *dir,
                       struct kg_err *err) KG_MUST_CHECK;
/* lora_base.c: a hash of the base checkpoint (kg_model.base_hash), written to an adapter
 * folder, and checked when it is loaded. A folder without hash passes.
 * set: has all tensors of the checkpoint
 * errors of _check: ECONFLICT (another base), EFORMAT */
uint64_t kg_lora_base_hash(const struct kg_model *m, const struct kg_st_set *set);
/* Sets m->base_hash from the files of m->dir, if m shares a base without adapters. */
kg_status kg_lora_read_base(struct kg_model *m, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_lora_write_base(const struct kg_model *m, const char *dir,
                             struct kg_err *err) KG_MUST_CHECK;
kg_status kg_lora_check_base(const struct kg_model *m, const char *dir,
                             struct kg_err *err) KG_MUST_CHECK;
/* w[i] += s (B A)[first + i], for a weight of m with an adapter; fp32, i < n */
kg_status kg_lora_add(float *w, const struct kg_model *m, const struct kg_param *p,
                      int64_t first, int64_t n, struct kg_err *err) KG_MUST_CHECK;

/* Checks that a tensor of a file has p's shape and a readable type, *dtype. by: where the
 * shape comes from, for errors */
struct kg_st_tensor;
kg_status kg_param_check(enum kg_dtype *dtype, const struct kg_param *p,
                         const struct kg_st_tensor *t, const char *by,
                         struct kg_err *err) KG_MUST_CHECK;

/* kg_tensor_find finds and checks p's tensor in a set; kg_tensor_read reads n values of a
 * tensor from `first` on, as fp32.   errors: ENOTFOUND, ESHAPE, EDTYPE, by tensor */
struct kg_st_set;
kg_status kg_tensor_find(enum kg_dtype *dtype, const struct kg_st_set *set,
                         const struct kg_param *p, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_tensor_read(float *to, const struct kg_st_tensor *t, int64_t first,
                         int64_t n, struct kg_err *err) KG_MUST_CHECK;

/* files.c: after all tensors of m were found, refuses other tensors in set, or skips and
 * logs them. Treats other inconsistencies of the folder in the same way.
 * errors: EUNSUPPORTED, by tensor */
kg_status kg_model_check_others(const struct kg_model *m, const struct kg_st_set *set,
                                struct kg_err *err) KG_MUST_CHECK;

/* base_dtype.c: sets compute.quant of the matrices that opts.base_dtype names.
 * errors: EUNSUPPORTED (no matrix of that type, or not on this backend), those of the
 * files */
kg_status kg_model_choose_types(struct kg_model *m, const struct kg_model_opts *opts,
                                struct kg_err *err) KG_MUST_CHECK;
/* Row r of a matrix in blocks <- x (cols), rounded to nearest as llama.cpp does.
 * blocks: room for those of a row
 * errors: ENONFINITE */
kg_status kg_model_code_row(const struct kg_param *p, int64_t r, const float *x,
                            unsigned char *blocks, struct kg_err *err) KG_MUST_CHECK;
/* Logs the number of matrices of each type. */
void kg_model_say_types(const struct kg_model *m);

/* Allocates `compute` of every matrix of an outline. */
kg_status kg_model_attach_panels(struct kg_model *m, struct kg_err *err) KG_MUST_CHECK;

/* Allocates norms and biases outside a master slab; sets their compute. */
kg_status kg_model_attach_vectors(struct kg_model *m, struct kg_err *err) KG_MUST_CHECK;

/* Stores (cols) values from be's memory as the compute of a vector. */
kg_status kg_model_put_vector(const struct kg_model *m, const struct kg_param *p,
                              const struct kg_backend *be, const float *from,
                              struct kg_err *err) KG_MUST_CHECK;

/* Makes layer l's `compute` available until another layer is fetched. */
kg_status kg_model_fetch_layer(const struct kg_model *m, int32_t l,
                               struct kg_err *err) KG_MUST_CHECK;

/* Allocates the master slab; sets master of every trained param. */
kg_status kg_model_attach_master(struct kg_model *m, struct kg_err *err) KG_MUST_CHECK;
/* Allocates all memory of a model without adapters; sets compute of every param. */
kg_status kg_model_attach_slabs(struct kg_model *m, struct kg_err *err) KG_MUST_CHECK;

/* Whether an update itself writes what products read of p (kg_adamw.rounded): bf16 in
 * rows, on the device of the master weights. */
static inline bool kg_param_is_rounded(const struct kg_model *m, const struct kg_param *p)
{
    return p->is_product && m->ct == KG_BF16 && m->backend->weights == KG_ROWS &&
           !m->ranks && m->on_host == KG_HOST_NONE;
}
/* kg_model_refresh; rounded: without the `compute` that updates write */
kg_status kg_model_refresh_but(struct kg_model *m, bool rounded,
                               struct kg_err *err) KG_MUST_CHECK;

/* Stores those of elements [first, first+n) of the master slab that are in this rank's
 * shard. */
kg_status kg_model_put_master(struct kg_model *m, int64_t first, const float *values,
                              int64_t n, struct kg_err *err) KG_MUST_CHECK;
/* Packs fp32 rows `from` of the host, which begin at `row` of p, and copies them to the
 * device. piece: host buffer for the panels */
kg_status kg_model_send_rows(const struct kg_model *m, const struct kg_param *p,
                             int64_t row, struct kg_mat from, void *piece,
                             struct kg_err *err) KG_MUST_CHECK;
/* Collects `compute` from the shards of all ranks (collect.c). */
kg_status kg_model_collect(struct kg_model *m, struct kg_err *err) KG_MUST_CHECK;

/* Reads n elements of p from `first` on as `dtype`.   weights: a slab of m; NULL: reads
 * `compute` */
kg_status kg_param_read(void *dst, enum kg_dtype dtype, const struct kg_model *m,
                        const struct kg_param *p, const struct kg_slab *weights,
                        int64_t first, int64_t n, struct kg_err *err) KG_MUST_CHECK;

static inline int64_t kg_param_count(const struct kg_param *p)
{
    return p->rows * p->cols;
}

#endif
