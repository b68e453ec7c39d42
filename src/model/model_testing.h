/* Shared by the tests of this folder: tiny checkpoints, packs, and a loss with its
 * gradients.
 *
 * Included by *_test.c only. If a helper fails, the test fails and prints the message of
 * the err.
 */
#ifndef KG_MODEL_MODEL_TESTING_H
#define KG_MODEL_MODEL_TESTING_H

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/need_testing.h"
#include "data/json.h"
#include "data/safetensors.h"
#include "model/model.h"
#include "tensor/backend_testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TEST_UNUSED __attribute__((unused))

enum { TEST_MAX_SEQS = 8 };

/* A pack that owns its arrays. */
struct test_pack {
    struct kg_pack pack;
    int32_t *tokens;
    int32_t *target; /* next token of the row, -1 at the last row of a sequence */
    struct kg_pack_seq seqs[TEST_MAX_SEQS];
};

TEST_UNUSED static void *test_alloc(size_t count, size_t size)
{
    struct kg_err err;
    void *p = kg_mem_calloc(count, size, "test", &err);
    assert_non_null(p);
    return p;
}

/* Packs n whole sequences one after the other. */
TEST_UNUSED static struct test_pack test_pack_of(const int32_t *const *seqs,
                                                 const int32_t *lengths, int32_t n)
{
    struct test_pack t = {0};
    int64_t total = 0;
    assert_true(n <= TEST_MAX_SEQS);
    for (int32_t i = 0; i < n; i++)
        total += lengths[i];
    t.tokens = test_alloc((size_t)total, sizeof(int32_t));
    t.target = test_alloc((size_t)total, sizeof(int32_t));
    int32_t row = 0;
    for (int32_t i = 0; i < n; i++) {
        t.seqs[i] = (struct kg_pack_seq){.n = lengths[i]};
        for (int32_t j = 0; j < lengths[i]; j++, row++) {
            t.tokens[row] = seqs[i][j];
            t.target[row] = j + 1 < lengths[i] ? seqs[i][j + 1] : -1;
        }
    }
    t.pack = (struct kg_pack){t.tokens, total, NULL, n, NULL, 0};
    return t;
}

/* The pack, with its seqs pointing into t at its current address. */
TEST_UNUSED static const struct kg_pack *test_pack_get(struct test_pack *t)
{
    t->pack.seqs = t->seqs;
    return &t->pack;
}

TEST_UNUSED static void test_pack_release(struct test_pack *t)
{
    kg_mem_free(t->tokens);
    kg_mem_free(t->target);
}

/* A fresh model whose products are wide enough for the library's blocked kernels. */
TEST_UNUSED static struct kg_model *test_create_wide(enum kg_dtype ct)
{
    const struct kg_model_opts opts = {.ct = ct, .trainable = true};
    struct kg_model_config c;
    struct kg_model *m = NULL;
    NEED(kg_model_config_read(&c, "tests/data/reference/qwen3", err));
    c.hidden = 320;
    c.ffn = 864;
    c.heads = 5;
    c.kv_heads = 1;
    c.head_dim = 64;
    c.vocab = 256;
    c.init_range = 0.05f;
    NEED(kg_model_create(&m, &c, &opts, 5, err));
    return m;
}

/* Deterministic tokens below `vocab`. */
TEST_UNUSED static void test_tokens(int32_t *out, int32_t n, int32_t vocab, uint32_t salt)
{
    uint32_t x = 2463534242u + 977u * salt;
    for (int32_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        out[i] = (int32_t)(x % (uint32_t)vocab);
    }
}

TEST_UNUSED static struct kg_model *test_open(const char *dir, enum kg_dtype ct,
                                              bool trainable)
{
    const struct kg_model_opts opts = {.ct = ct, .trainable = trainable};
    struct kg_model *m = NULL;
    NEED(kg_model_open(&m, dir, &opts, err));
    return m;
}

/* Sum of -log p of all targets times `weight`; adds its gradients (head included) to
 * grads unless NULL. */
TEST_UNUSED static double test_nll(const struct kg_model *m, struct kg_acts *acts,
                                   struct test_pack *t, double weight, float *grads)
{
    const struct kg_pack *pack = test_pack_get(t);
    const size_t n = (size_t)pack->n;
    const int32_t d = m->config.hidden;
    struct kg_mat hidden;
    const struct kg_forward f = {.pack = pack, .keep = grads != NULL};
    NEED(kg_model_forward(&hidden, m, acts, &f, err));
    double *lse = test_alloc(n, sizeof *lse);
    float *logp = test_alloc(n, sizeof *logp);
    double *a = test_alloc(n, sizeof *a);
    float *dhidden = buffer_of((int64_t)n * d, sizeof *dhidden);
    const struct kg_head head = {.hidden = hidden,
                                 .weight = m->head->compute,
                                 .softcap = (float)m->config.logit_softcap,
                                 .target = t->target};
    const struct kg_head_out out = {.lse = lse, .logp = logp};
    NEED(kg_op_head(m->backend, &out, &head, err));
    double nll = 0.0;
    for (size_t i = 0; i < n; i++) {
        a[i] = t->target[i] >= 0 ? -weight : 0.0;
        nll -= t->target[i] >= 0 ? weight * (double)logp[i] : 0.0;
    }
    if (grads) {
        struct kg_head_grad g = {.lse = lse,
                                 .a_target = a,
                                 .dhidden = kg_mat(dhidden, KG_F32, pack->n, d),
                                 .dweight = kg_mat(grads + m->head->offset, KG_F32,
                                                   m->head->rows, m->head->cols)};
        if (m->head->offset < 0)
            g.dweight = (struct kg_mat){0};
        NEED(kg_op_head_bwd(m->backend, &g, &head, err));
        NEED(kg_model_backward(m, acts, g.dhidden, grads, err));
    }
    kg_mem_free(lse);
    kg_mem_free(logp);
    kg_mem_free(a);
    buffer_free(dhidden);
    return nll;
}

/* (L(w + h) - L(w - h)) / 2h for one weight; the loss sums fp32 log-probs in double. */
TEST_UNUSED static double test_slope(struct kg_model *m, struct kg_acts *acts,
                                     struct test_pack *t, double scale, float *w, float h)
{
    const float old = *w;
    *w = old + h;
    NEED(kg_model_refresh(m, err));
    const double above = test_nll(m, acts, t, scale, NULL);
    *w = old - h;
    NEED(kg_model_refresh(m, err));
    const double below = test_nll(m, acts, t, scale, NULL);
    *w = old;
    NEED(kg_model_refresh(m, err));
    return (above - below) / (2.0 * (double)h);
}

TEST_UNUSED static int64_t test_largest(const float *g, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        best = fabsf(g[i]) > fabsf(g[best]) ? i : best;
    return best;
}

/* Compares the largest gradient g of a parameter with the difference of the loss. The
 * loss jumps at a tie of two experts, so one of several step sizes must agree. */
TEST_UNUSED static void test_largest_slope(struct kg_model *m, struct kg_acts *acts,
                                           struct test_pack *t, const struct kg_param *p,
                                           double scale, const float *g)
{
    static const float steps[] = {0.01f, 0.003f, 0.001f};
    const int64_t at = test_largest(g + p->offset, p->rows * p->cols);
    const double have = g[p->offset + at];
    double want = 0;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        want = test_slope(m, acts, t, scale, p->master + at, steps[i]);
        if (fabs(have - want) < 2e-4 + 0.02 * fabs(want))
            return;
    }
    fail_msg("%s %s[%lld]: gradient %g, finite difference %g", m->dir, p->name,
             (long long)at, have, want);
}

/* ---- golden data: tests/data/reference/<arch> ---- */
static const char *const test_archs[] = {
    "qwen2",           "qwen3",      "llama",   "mistral",     "qwen2_window",
    "llama_bias",      "llama_yarn", "olmo2",   "qwen3_bias",  "smollm3",
    "granite",         "phi3",       "gemma2",  "gemma3_text", "phi3_longrope",
    "qwen3_moe",       "qwen2_moe",  "mixtral", "olmoe",       "qwen3_moe_window",
    "qwen2_moe_window"};
/* the last six have experts: experts_test.c tests their bits and slopes */
enum { TEST_ALL_ARCHS = sizeof test_archs / sizeof *test_archs };
enum { TEST_ARCHS = TEST_ALL_ARCHS - 6 };
/* the number of them that are also compared by schedule-free steps */
enum { TEST_FREE_ARCHS = 3 };
enum { TEST_REF_TOKENS = 77, TEST_REF_TARGETS = 75, TEST_REF_STEPS = 10 };

struct test_reference {
    char dir[128];
    struct test_pack pack;
    double nll;
    double losses[TEST_REF_STEPS + 1];
    double norms[TEST_REF_STEPS];
};

TEST_UNUSED static void test_read_doubles(double *out, size_t n,
                                          const struct kg_json *array)
{
    assert_int_equal(kg_json_size(array), n);
    for (size_t i = 0; i < n; i++)
        out[i] = kg_json_real(kg_json_at(array, i), NAN);
}

TEST_UNUSED static void test_reference_open(struct test_reference *r, const char *arch)
{
    struct kg_json_doc doc;
    char path[192];
    int32_t *seqs[2];
    int32_t lengths[2];
    snprintf(r->dir, sizeof r->dir, "tests/data/reference/%s", arch);
    snprintf(path, sizeof path, "%s/reference.json", r->dir);
    NEED(kg_json_read(&doc, path, 1 << 20, err));
    const struct kg_json *all = kg_json_get(doc.root, "sequences");
    for (size_t i = 0; i < 2; i++) {
        const struct kg_json *ids = kg_json_at(all, i);
        lengths[i] = (int32_t)kg_json_size(ids);
        seqs[i] = test_alloc((size_t)lengths[i], sizeof(int32_t));
        for (int32_t j = 0; j < lengths[i]; j++)
            seqs[i][j] = (int32_t)kg_json_int(kg_json_at(ids, (size_t)j), -1);
    }
    r->pack = test_pack_of((const int32_t *const *)seqs, lengths, 2);
    r->nll = kg_json_real(kg_json_get(doc.root, "nll"), NAN);
    test_read_doubles(r->losses, TEST_REF_STEPS + 1, kg_json_get(doc.root, "losses"));
    test_read_doubles(r->norms, TEST_REF_STEPS, kg_json_get(doc.root, "grad_norms"));
    kg_mem_free(seqs[0]);
    kg_mem_free(seqs[1]);
    kg_json_release(&doc);
}

TEST_UNUSED static void test_reference_close(struct test_reference *r)
{
    test_pack_release(&r->pack);
}

/* |a - b| / |b| over one tensor */
TEST_UNUSED static double test_relative(const float *a, const float *b, int64_t n)
{
    double apart = 0.0;
    double size = 0.0;
    for (int64_t i = 0; i < n; i++) {
        apart += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(apart / fmax(size, 1e-30));
}

static double test_against_tensor(const float *g, const struct kg_param *p,
                                  const struct kg_st_set *set)
{
    const struct kg_st_tensor *t = kg_st_find(set, p->name);
    if (!t)
        fail_msg("%s: no such tensor in the file of gradients", p->name);
    float *want = test_alloc(1, t->bytes);
    memcpy(want, t->data, t->bytes);
    const double diff = test_relative(g + p->offset, want + p->file_row * p->cols,
                                      p->rows * p->cols);
    if (!(diff < 1e-4))
        fail_msg("%s: relative difference %g", p->name, diff);
    kg_mem_free(want);
    return diff;
}

/* Compares all gradients with a file that torch wrote, which must have no other tensor.
 * returns the largest relative difference of a tensor, below 1e-4 */
TEST_UNUSED static double test_against_torch(const struct kg_model *m, const float *g,
                                             const char *dir, const char *file)
{
    char path[192];
    struct kg_st_set *set = NULL;
    size_t tensors = 0;
    double most = 0.0;
    snprintf(path, sizeof path, "%s/%s", dir, file);
    NEED(kg_st_open_file(&set, path, err));
    for (size_t i = kg_model_first_trained(m); i < m->n_params; i++) {
        tensors += m->params[i].file_row == 0;
        most = fmax(most, test_against_tensor(g, &m->params[i], set));
    }
    assert_int_equal(kg_st_count(set), tensors);
    kg_st_close(set);
    return most;
}

/* ---- scratch folders under build/ ---- */
TEST_UNUSED static void test_dir(char out[128], const char *name)
{
    snprintf(out, 128, "build/test-tmp/model-%d-%s", (int)getpid(), name);
    NEED(kg_file_remove_tree(out, err));
    NEED(kg_file_make_dirs(out, err));
}

TEST_UNUSED static void test_dir_remove(const char *dir)
{
    NEED(kg_file_remove_tree(dir, err));
}

#endif
