/* What model.c, load.c and save.c share: the hidden part of a model and its list of
 * parameters.
 *
 * Not a contract: nothing outside src/model includes it.
 */
#ifndef KG_MODEL_MODEL_INTERNAL_H
#define KG_MODEL_MODEL_INTERNAL_H

#include "data/safetensors.h"
#include "model/model.h"

#include <string.h>

/* A tensor of the slabs starts at a multiple of this many elements (64 bytes of fp32);
 * the gap stays 0. */
enum { KG_PARAM_ALIGN = 32 };
/* A matrix in panels starts at a multiple of this many bytes. */
enum { KG_COMPUTE_ALIGN = 64 };

/* kg_model.priv */
struct kg_model_priv {
    struct kg_st_set *set; /* owned; the checkpoint while it is read, or NULL */
    unsigned char *panels; /* owned, the backend's; what products read */
    float *vectors;        /* owned, the backend's; norms and biases of a model opened for
                              inference, or NULL */
    char *names;           /* owned; storage of every param.name */
    bool shares; /* all of that but what products read of adapters is another model's */
    struct kg_adapter *adapters; /* owned */
    /* KG_HOST_LAYERS: */
    unsigned char *layers; /* (L layer_bytes) owned, the host's; what products read of
                              them; NULL: it is made of the master weights */
    uint64_t layer_bytes;
    unsigned char *room; /* in panels; borrowed: where a layer is fetched to */
    int32_t there;       /* the layer that the room holds; -1: none */
};

/* Where what products read of a matrix lies for good. */
struct kg_stored {
    const struct kg_backend *backend;
    struct kg_mat mat;
};
struct kg_stored kg_param_stored(const struct kg_model *m, const struct kg_param *p);

/* Gives p, whose rows and cols are known, its place behind the slabs' present end.
 * errors: SHAPE (more elements than can be counted) */
kg_status kg_param_place(struct kg_model *m, struct kg_param *p,
                         struct kg_err *err) KG_MUST_CHECK;
/* Where p, the last of the list, is of the same tensor as those before it, it is the next
 * of its rows. */
void kg_param_join(const struct kg_model *m, struct kg_param *p);

enum { KG_NAME_BYTES = 96 /* of a parameter */ };
/* "model.layers.3.self_attn.q_proj.weight": how long its module's name is */
static inline size_t kg_module_bytes(const struct kg_param *p)
{
    return strlen(p->name) - strlen(".weight");
}
/* lora_select.c: what adapter a matrix has */
struct kg_lora_choice {
    int32_t rank; /* 0: none */
    double alpha;
    int rank_rule; /* as in kg_adapter */
};
/* out: (n_base). Targets of m->lora that mean "all" become their names.
 * of_folder: for errors, adapter_config.json says it, not the keys of a recipe
 * errors: EINVAL (a target or a pattern is no matrix's; a rank above what one has; too
 * many steps of all patterns together), EFORMAT, UNSUPPORTED (regular expressions) */
kg_status kg_lora_choose(struct kg_lora_choice *out, struct kg_model *m, bool of_folder,
                         struct kg_err *err) KG_MUST_CHECK;
/* lora.c: what every target of m->lora has beside it, behind the parameters that are
 * listed, which it freezes.   name: room for the names of two a layer's parameter;
 * folder: whose adapter_config.json m->lora is, NULL: a recipe's
 * errors: as kg_lora_choose; UNSUPPORTED (some of a layer's experts, or unlike ones) */
kg_status kg_lora_list(struct kg_model *m, char *name, const char *folder,
                       struct kg_err *err) KG_MUST_CHECK;
/* Whether it has some beside matrices of experts. */
bool kg_lora_on_experts(const struct kg_model *m);
/* Values of adapters: A uniform in +-1/sqrt(in), B 0; or those of a folder.
 * errors: those of files; SHAPE, DTYPE, UNSUPPORTED, NONFINITE, by tensor */
kg_status kg_lora_init(struct kg_model *m, uint64_t seed,
                       struct kg_err *err) KG_MUST_CHECK;
kg_status kg_lora_load(struct kg_model *m, const char *dir,
                       struct kg_err *err) KG_MUST_CHECK;
/* lora_base.c: of what the checkpoint holds (kg_model.base_hash); it says, or checks,
 * beside which one the adapter in dir was trained. A folder that says nothing passes.
 * set: has every tensor of it
 * errors of _check: CONFLICT (another base), EFORMAT */
uint64_t kg_lora_base_hash(const struct kg_model *m, const struct kg_st_set *set);
/* The same of m->dir, of a model that shares a base which has no adapters. */
kg_status kg_lora_read_base(struct kg_model *m, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_lora_write_base(const struct kg_model *m, const char *dir,
                             struct kg_err *err) KG_MUST_CHECK;
kg_status kg_lora_check_base(const struct kg_model *m, const char *dir,
                             struct kg_err *err) KG_MUST_CHECK;
/* w[i] += s (B A)[first + i], of a weight of m that has an adapter; fp32, i < n */
kg_status kg_lora_add(float *w, const struct kg_model *m, const struct kg_param *p,
                      int64_t first, int64_t n, struct kg_err *err) KG_MUST_CHECK;

/* A tensor of a file is p's by shape, and *dtype one that is read.   by: who says the
 * shape, for errors */
struct kg_st_tensor;
kg_status kg_param_check(enum kg_dtype *dtype, const struct kg_param *p,
                         const struct kg_st_tensor *t, const char *by,
                         struct kg_err *err) KG_MUST_CHECK;

/* files.c: after every tensor of m was found, the others of set: refused, or passed over
 * and named in a line, as is what else of the folder is not as it is said.
 * errors: UNSUPPORTED, by tensor */
kg_status kg_model_check_others(const struct kg_model *m, const struct kg_st_set *set,
                                struct kg_err *err) KG_MUST_CHECK;

/* Give an outline the memory that products read; sets compute of every matrix. */
kg_status kg_model_attach_panels(struct kg_model *m, struct kg_err *err) KG_MUST_CHECK;

/* Norms and biases apart from a master slab; sets their compute. */
kg_status kg_model_attach_vectors(struct kg_model *m, struct kg_err *err) KG_MUST_CHECK;

/* What operations read of a vector <- (cols) of be's memory. */
kg_status kg_model_put_vector(const struct kg_model *m, const struct kg_param *p,
                              const struct kg_backend *be, const float *from,
                              struct kg_err *err) KG_MUST_CHECK;

/* What products read of layer l is there, until that of another is asked for. */
kg_status kg_model_fetch_layer(const struct kg_model *m, int32_t l,
                               struct kg_err *err) KG_MUST_CHECK;

/* Its master slab; sets master of every param that is not frozen. */
kg_status kg_model_attach_master(struct kg_model *m, struct kg_err *err) KG_MUST_CHECK;
/* That and the above, of a model without adapters; sets compute of every param. */
kg_status kg_model_attach_slabs(struct kg_model *m, struct kg_err *err) KG_MUST_CHECK;

/* Of elements [first, first+n) of the slabs those that the master weights have. */
kg_status kg_model_put_master(struct kg_model *m, int64_t first, const float *values,
                              int64_t n, struct kg_err *err) KG_MUST_CHECK;
/* What products of a device read of rows from `row` on <- from, of the host: packed there
 * and put.   piece: the host's, of those panels */
kg_status kg_model_send_rows(const struct kg_model *m, const struct kg_param *p,
                             int64_t row, struct kg_mat from, void *piece,
                             struct kg_err *err) KG_MUST_CHECK;
/* What products read <- the cuts of all ranks (collect.c). */
kg_status kg_model_collect(struct kg_model *m, struct kg_err *err) KG_MUST_CHECK;

/* n elements from `first` of param p as `dtype`, from a slab of its model, or with NULL
 * from what products read. */
kg_status kg_param_read(void *dst, enum kg_dtype dtype, const struct kg_model *m,
                        const struct kg_param *p, const struct kg_slab *weights,
                        int64_t first, int64_t n, struct kg_err *err) KG_MUST_CHECK;

static inline int64_t kg_param_count(const struct kg_param *p)
{
    return p->rows * p->cols;
}

#endif
