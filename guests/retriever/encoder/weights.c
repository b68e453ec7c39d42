/* The weights of an encoder from safetensors: finds every tensor, checks it against
 * config.json, converts it to fp32 and puts it where the backend reads it.
 *
 * Two tables list the tensors by name, shape and destination. They are walked twice: to
 * compute the total memory, and to fill it.
 */
#include "retriever/encoder/encoder_internal.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/phase.h"
#include "data/safetensors.h"

#include <stdio.h>
#include <string.h>

/* ---- which tensors ---- */
enum dim { ONE, DIM, FFN, VOCAB, POSITIONS, TYPES };
enum kind {
    TABLE,   /* rows are looked up */
    PRODUCT, /* read by products */
    FIRST,   /* a matrix whose first row is kept, as a vector */
    VECTOR,
};
struct tensor {
    const char *name;
    enum dim rows, cols;
    enum kind kind;
    size_t slot; /* offset of a struct kg_mat or struct kg_vec */
};

#define OF(field)  offsetof(struct kg_encoder, field)
#define OFL(field) offsetof(struct kg_encoder_layer, field)
static const struct tensor EMBEDDINGS[] = {
    {"embeddings.word_embeddings.weight", VOCAB, DIM, TABLE, OF(words)},
    {"embeddings.position_embeddings.weight", POSITIONS, DIM, TABLE, OF(positions)},
    {"embeddings.token_type_embeddings.weight", TYPES, DIM, FIRST, OF(type)},
    {"embeddings.LayerNorm.weight", ONE, DIM, VECTOR, OF(norm.w)},
    {"embeddings.LayerNorm.bias", ONE, DIM, VECTOR, OF(norm.b)},
};
/* after "encoder.layer.N." */
static const struct tensor LAYER[] = {
    {"attention.self.query.weight", DIM, DIM, PRODUCT, OFL(q.w)},
    {"attention.self.query.bias", ONE, DIM, VECTOR, OFL(q.b)},
    {"attention.self.key.weight", DIM, DIM, PRODUCT, OFL(k.w)},
    {"attention.self.key.bias", ONE, DIM, VECTOR, OFL(k.b)},
    {"attention.self.value.weight", DIM, DIM, PRODUCT, OFL(v.w)},
    {"attention.self.value.bias", ONE, DIM, VECTOR, OFL(v.b)},
    {"attention.output.dense.weight", DIM, DIM, PRODUCT, OFL(o.w)},
    {"attention.output.dense.bias", ONE, DIM, VECTOR, OFL(o.b)},
    {"attention.output.LayerNorm.weight", ONE, DIM, VECTOR, OFL(norm1.w)},
    {"attention.output.LayerNorm.bias", ONE, DIM, VECTOR, OFL(norm1.b)},
    {"intermediate.dense.weight", FFN, DIM, PRODUCT, OFL(up.w)},
    {"intermediate.dense.bias", ONE, FFN, VECTOR, OFL(up.b)},
    {"output.dense.weight", DIM, FFN, PRODUCT, OFL(down.w)},
    {"output.dense.bias", ONE, DIM, VECTOR, OFL(down.b)},
    {"output.LayerNorm.weight", ONE, DIM, VECTOR, OFL(norm2.w)},
    {"output.LayerNorm.bias", ONE, DIM, VECTOR, OFL(norm2.b)},
};
enum {
    N_EMBEDDINGS = sizeof EMBEDDINGS / sizeof *EMBEDDINGS,
    N_LAYER = sizeof LAYER / sizeof *LAYER
};

/* Ignored tensors: heads of pretraining, and position ids. */
static const char *const BESIDE[] = {"pooler.", "cls.", "lm_head.",
                                     "embeddings.position_ids"};

static int64_t size_of(const struct kg_encoder_config *c, enum dim d)
{
    const int64_t sizes[] = {1, c->dim, c->ffn, c->vocab, c->rows, c->types};

    return sizes[d];
}

/* ---- the walk ---- */
struct job {
    struct kg_encoder *e;
    struct kg_st_set *set;
    const char *prefix;  /* of all names */
    unsigned char *next; /* free memory of the backend */
    float *rows;         /* owned; host: the current tensor in fp32 */
    void *staged;        /* owned; in the backend's memory if packed */
    uint32_t seed;       /* of random weights */
};
typedef kg_status visit_fn(struct job *j, const struct tensor *t, const char *name,
                           void *slot, struct kg_err *err);

struct name {
    char text[160];
};
static struct name name_of(const struct job *j, int32_t layer, const char *suffix)
{
    struct name n;

    if (layer < 0)
        snprintf(n.text, sizeof n.text, "%s%s", j->prefix, suffix);
    else
        snprintf(n.text, sizeof n.text, "%sencoder.layer.%d.%s", j->prefix, (int)layer,
                 suffix);
    return n;
}

static kg_status walk(struct job *j, visit_fn *visit, struct kg_err *err)
{
    struct kg_encoder *e = j->e;

    for (size_t i = 0; i < N_EMBEDDINGS; i++)
        KG_TRY(visit(j, &EMBEDDINGS[i], name_of(j, -1, EMBEDDINGS[i].name).text,
                     (char *)e + EMBEDDINGS[i].slot, err));
    for (int32_t l = 0; l < e->config.layers; l++)
        for (size_t i = 0; i < N_LAYER; i++)
            KG_TRY(visit(j, &LAYER[i], name_of(j, l, LAYER[i].name).text,
                         (char *)&e->layers[l] + LAYER[i].slot, err));
    return KG_OK;
}

/* ---- memory ---- */
static uint64_t tensor_bytes(const struct kg_backend *be,
                             const struct kg_encoder_config *c, const struct tensor *t)
{
    const int64_t rows = t->kind == FIRST ? 1 : size_of(c, t->rows);
    const int64_t cols = size_of(c, t->cols);
    const uint64_t bytes = t->kind == PRODUCT ? kg_weights_bytes(be, KG_F32, rows, cols)
                                              : (uint64_t)(rows * cols) * sizeof(float);

    return (bytes + 63) / 64 * 64;
}

uint64_t kg_encoder_weights_bytes(const struct kg_backend *be,
                                  const struct kg_encoder_config *c)
{
    uint64_t embeddings = 0, layer = 0;

    for (size_t i = 0; i < N_EMBEDDINGS; i++)
        embeddings += tensor_bytes(be, c, &EMBEDDINGS[i]);
    for (size_t i = 0; i < N_LAYER; i++)
        layer += tensor_bytes(be, c, &LAYER[i]);
    return embeddings + (uint64_t)c->layers * layer;
}

uint64_t kg_encoder_staged_bytes(const struct kg_encoder_config *c)
{
    int64_t widest = 0;

    for (size_t i = 0; i < N_EMBEDDINGS + N_LAYER; i++) {
        const struct tensor *t = i < N_EMBEDDINGS ? &EMBEDDINGS[i]
                                                  : &LAYER[i - N_EMBEDDINGS];
        const int64_t n = size_of(c, t->rows) * size_of(c, t->cols);

        widest = n > widest ? n : widest;
    }
    return (uint64_t)widest * sizeof(float);
}

/* ---- reading ---- */
static kg_status check(const struct kg_st_tensor *found, const char *name, int64_t rows,
                       int64_t cols, bool vector, struct kg_err *err)
{
    const int n = vector ? 1 : 2;

    if (found->n_dims == n && found->shape[n - 1] == cols &&
        (vector || found->shape[0] == rows))
        return KG_OK;
    return kg_fail(err, KG_ESHAPE,
                   "%s: tensor %s: expected %lld x %lld by config.json, found %lld "
                   "dimensions, %lld x %lld",
                   found->file, name, (long long)rows, (long long)cols,
                   (long long)found->n_dims,
                   (long long)(found->n_dims > 1 ? found->shape[0] : 1),
                   (long long)(found->n_dims > 0 ? found->shape[found->n_dims - 1] : 1));
}

static kg_status read_rows(struct job *j, const struct tensor *t, const char *name,
                           struct kg_err *err)
{
    const struct kg_st_tensor *found = kg_st_find(j->set, name);
    const int64_t rows = size_of(&j->e->config, t->rows);
    const int64_t cols = size_of(&j->e->config, t->cols);
    enum kg_dtype dtype;

    if (!found)
        return kg_fail(err, KG_ENOTFOUND, "%s: tensor %s is missing from the checkpoint",
                       j->e->dir, name);
    KG_TRY(check(found, name, rows, cols, t->kind == VECTOR, err));
    if (kg_dtype_parse(&dtype, found->dtype, err) != KG_OK)
        return kg_err_prefix(err, "%s: tensor %s", found->file, name);
    return kg_dtype_convert(j->rows, KG_F32, found->data, dtype, (size_t)(rows * cols),
                            err);
}

/* Copies j->rows to the backend, in the layout that products read. */
static kg_status put_product(struct kg_mat *slot, struct job *j, int64_t rows,
                             int64_t cols, struct kg_err *err)
{
    const struct kg_backend *be = j->e->backend;
    const struct kg_mat staged = kg_mat(j->staged, KG_F32, rows, cols);

    *slot = kg_weights(be, j->next, KG_F32, rows, cols);
    KG_TRY(
        kg_buf_put(be, j->staged, j->rows, (uint64_t)(rows * cols) * sizeof(float), err));
    return kg_op_cast(be, *slot, staged, err);
}

/* Moves the tensor in j->rows to its place in the backend. */
static kg_status put(struct job *j, const struct tensor *t, void *slot,
                     struct kg_err *err)
{
    const int64_t rows = t->kind == FIRST ? 1 : size_of(&j->e->config, t->rows);
    const int64_t cols = size_of(&j->e->config, t->cols);
    const uint64_t bytes = (uint64_t)(rows * cols) * sizeof(float);

    if (t->kind == PRODUCT) {
        KG_TRY(put_product(slot, j, rows, cols, err));
    } else {
        KG_TRY(kg_buf_put(j->e->backend, j->next, j->rows, bytes, err));
        if (t->kind == TABLE)
            *(struct kg_mat *)slot = kg_mat(j->next, KG_F32, rows, cols);
        else
            *(struct kg_vec *)slot = kg_vec((float *)(void *)j->next, cols);
    }
    j->next += tensor_bytes(j->e->backend, &j->e->config, t);
    return KG_OK;
}

static kg_status load(struct job *j, const struct tensor *t, const char *name, void *slot,
                      struct kg_err *err)
{
    kg_phase_tick();
    KG_TRY(read_rows(j, t, name, err));
    return put(j, t, slot, err);
}

static kg_status draw(struct job *j, const struct tensor *t, const char *name, void *slot,
                      struct kg_err *err)
{
    const int64_t n = size_of(&j->e->config, t->rows) * size_of(&j->e->config, t->cols);

    (void)name;
    for (int64_t i = 0; i < n; i++) {
        j->seed = j->seed * 1664525u + 1013904223u;
        j->rows[i] = (float)(int32_t)j->seed * 0x1p-36f; /* -1/32 .. 1/32 */
    }
    return put(j, t, slot, err);
}

/* ---- unexpected tensors ---- */
static bool among(const struct tensor *rows, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, name) == 0)
            return true;
    return false;
}

static bool is_expected(const struct job *j, const char *name)
{
    int layer, used = 0;

    for (size_t i = 0; i < sizeof BESIDE / sizeof *BESIDE; i++)
        if (strncmp(name, BESIDE[i], strlen(BESIDE[i])) == 0)
            return true;
    if (sscanf(name, "encoder.layer.%9d.%n", &layer, &used) == 1 && used > 0)
        return layer < j->e->config.layers && among(LAYER, N_LAYER, name + used);
    return among(EMBEDDINGS, N_EMBEDDINGS, name);
}

static kg_status check_no_others(const struct job *j, struct kg_err *err)
{
    const size_t n = strlen(j->prefix);

    for (size_t i = 0; i < kg_st_count(j->set); i++) {
        const struct kg_st_tensor *t = kg_st_at(j->set, i);
        const char *name = strncmp(t->name, j->prefix, n) == 0 ? t->name + n : t->name;

        if (!is_expected(j, name))
            return kg_fail(err, KG_EUNSUPPORTED,
                           "%s: tensor %s: not a tensor of a %s encoder with this "
                           "config.json",
                           t->file, t->name, j->e->config.row->model_type);
    }
    return KG_OK;
}

/* Hash of names, types and bytes, in the order of names, so sharding does not matter. */
static uint64_t hash_of(const struct kg_st_set *set)
{
    uint64_t h[4] = {0};

    for (size_t i = 0; i < kg_st_count(set); i++) {
        const struct kg_st_tensor *t = kg_st_at(set, i);

        h[1] = kg_hash_bytes(t->name, strlen(t->name));
        h[2] = kg_hash_bytes(t->dtype, strlen(t->dtype));
        h[3] = kg_hash_bytes(t->data, (size_t)t->bytes);
        h[0] = kg_hash_bytes(h, sizeof h);
    }
    return h[0];
}

static kg_status take_memory(struct job *j, struct kg_err *err)
{
    struct kg_encoder *e = j->e;
    const uint64_t bytes = kg_encoder_weights_bytes(e->backend, &e->config),
                   staged = kg_encoder_staged_bytes(&e->config);

    e->memory = kg_buf_alloc(e->backend, bytes, "weights of the encoder", err);
    if (!e->memory)
        return err->code;
    j->next = e->memory;
    j->staged = kg_buf_alloc(e->backend, staged, "a tensor that is packed", err);
    if (!j->staged)
        return err->code;
    return kg_mem_new(&j->rows, staged, 1, "a tensor", err);
}

/* Fills all tensors by `visit`: load or draw. */
static kg_status fill_by(struct job *j, visit_fn *visit, struct kg_err *err)
{
    struct kg_encoder *e = j->e;

    KG_TRY(kg_mem_new(&e->layers, (size_t)e->config.layers, sizeof *e->layers, "layers",
                      err));
    KG_TRY(take_memory(j, err));
    return walk(j, visit, err);
}

static kg_status fill(struct job *j, struct kg_err *err)
{
    struct kg_encoder *e = j->e;

    j->prefix = "";
    if (!kg_st_find(j->set, EMBEDDINGS[0].name))
        j->prefix = e->config.row->prefix;
    KG_TRY(fill_by(j, load, err));
    KG_TRY(check_no_others(j, err));
    e->hash = hash_of(j->set);
    return KG_OK;
}

kg_status kg_encoder_weights_read(struct kg_encoder *e, struct kg_err *err)
{
    struct job j = {.e = e};

    KG_TRY(kg_st_open_dir(&j.set, e->dir, err));
    kg_status status = fill(&j, err);
    kg_mem_free(j.rows);
    kg_buf_free(e->backend, j.staged);
    kg_st_close(j.set);
    return status;
}

kg_status kg_encoder_weights_draw(struct kg_encoder *e, struct kg_err *err)
{
    struct job j = {.e = e, .prefix = ""};
    const kg_status status = fill_by(&j, draw, err);

    kg_mem_free(j.rows);
    kg_buf_free(e->backend, j.staged);
    return status;
}

kg_status kg_encoder_plan(struct kg_encoder_memory *out, const char *dir,
                          const struct kg_backend *be, struct kg_err *err)
{
    struct kg_encoder_config c;

    KG_TRY(kg_encoder_config_read(&c, dir, err));
    *out = (struct kg_encoder_memory){kg_encoder_weights_bytes(be, &c),
                                      kg_encoder_staged_bytes(&c),
                                      kg_encoder_pack_bytes(&c, c.rows)};
    return KG_OK;
}
