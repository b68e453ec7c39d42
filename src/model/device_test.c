/* Every architecture on emulated device kernels. With exact products, log-probs and
 * gradients equal the CPU's bit for bit. With the matrix instruction, a row has the bits
 * of the full forward, whether it is computed token by token, in a chunk, or with other
 * sequences.
 *
 * tensor/ tests every operation in every shape; here they run together.
 */
#include "model/model_testing.h"

#include "model/optim.h"

#include "emu/emu.h"

#include <stdlib.h>

enum { LONG = 70, SHORT = 9, BATCH = 3 };

#define MORE "../shared/data/models/more/"
static const char *const more[] = {
    "mistral_window", "qwen2_window", "llama_yarn", "llama_linear", "llama_dynamic",
    "llama_bias",     "qwen3_bias",   "smollm3",    "olmo2",        "granite",
    "phi3",           "gemma2",       "gemma3",     "qwen3_moe",    "qwen2_moe",
    "mixtral",        "olmoe"};
enum { N_MORE = sizeof more / sizeof *more };

static bool there(char dir[128], const char *where, const char *name)
{
    snprintf(dir, 128, "%s%s", where, name);
    if (kg_file_is_dir(dir))
        return true;
    print_message("skip: %s is absent\n", dir);
    return false;
}

static struct kg_model *open_on(const char *name, const char *dir, enum kg_dtype ct)
{
    struct kg_model *m = NULL;
    backend_name = name;
    const struct kg_model_opts opts = {.backend = backend(), .ct = ct, .trainable = true};
    NEED(kg_model_open(&m, dir, &opts, err));
    return m;
}

/* A copy of device memory; owned. */
static void *got(const void *from, size_t bytes)
{
    void *to = test_alloc(bytes, 1);
    NEED(kg_buf_get(backend(), to, from, bytes, err));
    return to;
}

/* ---- the bits of the CPU ---- */
struct result {
    double nll;
    float *grads; /* owned (n) */
    int64_t n;
};

static struct result run(const char *name, const char *dir, enum kg_dtype ct)
{
    struct kg_model *m = open_on(name, dir, ct);
    struct kg_acts *acts = NULL;
    int32_t a[LONG], b[SHORT];
    const int32_t lengths[] = {LONG, SHORT};
    test_tokens(a, LONG, m->config.vocab, 1);
    test_tokens(b, SHORT, m->config.vocab, 2);
    struct test_pack t = test_pack_of((const int32_t *const[]){a, b}, lengths, 2);
    float *grads = buffer_of(m->n_elements, sizeof *grads);
    NEED(kg_acts_create(&acts, m, LONG + SHORT, false, err));
    struct result r = {.n = m->n_elements};
    r.nll = test_nll(m, acts, &t, 1.0 / (LONG + SHORT), grads);
    r.grads = got(grads, (size_t)r.n * sizeof *grads);
    buffer_free(grads);
    kg_acts_free(acts);
    test_pack_release(&t);
    kg_model_free(m);
    return r;
}

enum { NEXT = SANITIZED ? 4 : 1 }; /* step through the folders */

static void check_same(const char *dir, enum kg_dtype ct)
{
    const struct result want = run("cpu", dir, ct), have = run("emu", dir, ct);
    assert_int_equal(want.n, have.n);
    if (want.nll != have.nll)
        fail_msg("%s: loss %.17g, on the CPU %.17g", dir, have.nll, want.nll);
    for (int64_t i = 0; i < want.n; i++)
        if (want.grads[i] != have.grads[i])
            fail_msg("%s: gradient %lld is %g, on the CPU %g", dir, (long long)i,
                     (double)have.grads[i], (double)want.grads[i]);
    kg_mem_free(want.grads);
    kg_mem_free(have.grads);
}

static void log_probs_and_gradients_have_the_bits_of_the_cpu(void **state)
{
    char dir[128];
    (void)state;
    setenv("KEDGE_TEST_PRODUCTS", "exact", 1);
    for (int i = 0; i < TEST_ALL_ARCHS; i += NEXT)
        for (int ct = 0; ct < (SANITIZED ? 1 : 2) &&
                         there(dir, "tests/data/reference/", test_archs[i]);
             ct++)
            check_same(dir, ct ? KG_BF16 : KG_F32);
}

static void checkpoints_of_other_sizes_have_them_too(void **state)
{
    char dir[128];
    (void)state;
    setenv("KEDGE_TEST_PRODUCTS", "exact", 1);
    for (int i = 0; i < N_MORE; i += NEXT)
        if (there(dir, MORE, more[i]))
            check_same(dir, KG_F32);
}

/* ---- a row, however it is computed ---- */
struct subject {
    struct kg_model *m;
    int32_t tokens[BATCH][LONG];
    unsigned char *rows; /* owned (LONG) of sequence 0, from its full forward */
    size_t row_bytes;
};

static unsigned char *forward(const struct subject *s, struct kg_acts *acts,
                              struct kg_kv *kv, const struct kg_pack *pack)
{
    struct kg_mat hidden;
    NEED(kg_model_forward(&hidden, s->m, acts,
                          &(struct kg_forward){.pack = pack, .kv = kv}, err));
    return got(hidden.data, (size_t)pack->n * s->row_bytes);
}

static void assert_rows(const struct subject *s, int32_t first, int32_t n,
                        const unsigned char *rows, const char *how)
{
    if (memcmp(rows, s->rows + (size_t)first * s->row_bytes, (size_t)n * s->row_bytes) !=
        0)
        fail_msg("%s: rows %d..%d %s have other bits than in the full forward", s->m->dir,
                 (int)first, (int)(first + n - 1), how);
}

/* Rows [first, first+n) of all sequences. */
static void step(const struct subject *s, struct kg_acts *acts, struct kg_kv *kv,
                 int32_t first, int32_t n)
{
    static const int32_t blocks[BATCH][2] = {{4, 1}, {0, 5}, {2, 3}};
    struct kg_pack_seq seqs[BATCH];
    int32_t tokens[BATCH * LONG];
    for (int32_t b = 0; b < BATCH; b++) {
        seqs[b] = (struct kg_pack_seq){
            .n = n, .pos = first, .blocks = kg_kv_table(blocks[b])};
        memcpy(tokens + b * n, s->tokens[b] + first, (size_t)n * sizeof *tokens);
    }
    const struct kg_pack pack = {tokens, BATCH * n, seqs, BATCH, NULL, 0};
    unsigned char *rows = forward(s, acts, kv, &pack);
    assert_rows(s, first, n, rows, n > 1 ? "in a chunk" : "decoded");
    kg_mem_free(rows);
}

static void check_rows(const char *dir)
{
    struct subject s = {.m = open_on("emu", dir, KG_BF16)};
    struct kg_acts *acts = NULL;
    struct kg_kv *kv = NULL;
    const struct kg_pack_seq alone = {.n = LONG};
    for (int32_t b = 0; b < BATCH; b++)
        test_tokens(s.tokens[b], LONG, s.m->config.vocab, (uint32_t)b);
    s.row_bytes = (size_t)s.m->config.hidden * sizeof(uint16_t);
    NEED(kg_acts_create(&acts, s.m, BATCH * LONG, true, err));
    NEED(kg_kv_create(&kv, s.m, kg_kv_alike(2 * BATCH), err));
    s.rows = forward(&s, acts, NULL, &(struct kg_pack){s.tokens[0], LONG, &alone, 1});
    step(&s, acts, kv, 0, 60);
    for (int32_t i = 60; i + 4 < LONG; i++)
        step(&s, acts, kv, i, 1);
    step(&s, acts, kv, LONG - 4, 4);
    kg_mem_free(s.rows);
    kg_kv_free(kv);
    kg_acts_free(acts);
    kg_model_free(s.m);
}

static void a_row_has_its_bits_however_it_is_computed(void **state)
{
    char dir[128];
    (void)state;
    setenv("KEDGE_TEST_PRODUCTS", "own", 1);
    for (int i = 0; i < TEST_ALL_ARCHS; i += NEXT)
        if (there(dir, "tests/data/reference/", test_archs[i]))
            check_rows(dir);
}

/* ---- updates ---- */
/* The weights that all products read; owned. */
static unsigned char *read_compute(const struct kg_model *m)
{
    unsigned char *all = test_alloc((size_t)m->n_elements, sizeof(float)), *to = all;
    for (size_t i = kg_model_first_trained(m); i < m->n_params; i++) {
        const struct kg_mat w = m->params[i].compute;
        const size_t bytes = (size_t)(w.rows * w.cols) * kg_dtype_traits(w.dtype)->bytes;
        NEED(kg_buf_get(m->backend, to, w.data, bytes, err));
        to += bytes;
    }
    return all;
}

/* An update rounds the weights itself, in one launch per 48 runs of adjacent weights; the
 * bits equal those of a refresh. */
static void check_update(const char *kind, bool decay_all, enum kg_dtype moments)
{
    const struct kg_model_opts own = {
        .backend = backend(), .ct = KG_BF16, .trainable = true};
    struct kg_optim_opts opts = {.lr = 0.1,
                                 .beta1 = 0.9,
                                 .beta2 = 0.99,
                                 .eps = 1e-8,
                                 .weight_decay = 0.1,
                                 .decay_all = decay_all,
                                 .moments = moments};
    struct kg_model_config c;
    struct kg_model *m = NULL;
    struct kg_optim *o = NULL;
    double norm, lr;
    NEED(kg_model_config_read(&c, "tests/data/reference/qwen2", err));
    c.layers = 20; /* more runs than a launch takes */
    NEED(kg_model_create(&m, &c, &own, 5, err));
    NEED(kg_optim_find(&opts.row, kind, err));
    NEED(kg_optim_create(&o, m, &opts, err));
    float *grads = test_alloc((size_t)m->n_elements, sizeof *grads);
    for (int64_t i = 0; i < m->n_elements; i++)
        grads[i] = (float)(i * 7 % 1009 - 504);
    NEED(kg_slab_write(&o->grads, 0, grads, m->n_elements, err));
    unsigned char *before = read_compute(m);
    const int64_t launched = kg_emu_lose(-1);
    NEED(kg_optim_update(o, m, &norm, &lr, err));
    const int64_t all = kg_emu_lose(-1) - launched;
    /* runs of a layer: q; k; v; o and the MLP. The embedding belongs to the first q */
    const int64_t runs = 4 * c.layers, want = (runs + 47) / 48 + 1 /* of the norm */;
    if (decay_all && all != want)
        fail_msg("expected %lld launches of an update, found %lld", (long long)want,
                 (long long)all);
    unsigned char *updated = read_compute(m);
    NEED(kg_model_refresh(m, err));
    unsigned char *refreshed = read_compute(m);
    const size_t bytes = (size_t)m->n_elements * sizeof(float);
    assert_memory_equal(updated, refreshed, bytes);
    assert_true(memcmp(updated, before, bytes) != 0);
    kg_mem_free(before);
    kg_mem_free(updated);
    kg_mem_free(refreshed);
    kg_mem_free(grads);
    kg_optim_free(o);
    kg_model_free(m);
}

static void an_update_leaves_what_products_read(void **state)
{
    (void)state;
    backend_name = "emu";
    check_update("adamw", true, KG_F32);
    check_update("adamw", false, KG_BF16);
    check_update("schedule-free", true, KG_BF16);
}

/* ---- launches ---- */
/* A kernel for one token takes a few microseconds, so a step costs what its launches
 * cost. In a layer: two norms; q, k and v; their bias, rotation and copy to the cache;
 * attention; o; gate and up; the activation; down. Outside the layers: the embedding and
 * a norm. */
static void check_launches(const char *name, int of_layer)
{
    static const int32_t blocks[] = {0};
    const struct kg_pack_seq seq = {.n = 1, .blocks = kg_kv_table(blocks)};
    const int32_t token = 3;
    char dir[128];

    if (!there(dir, "tests/data/reference/", name))
        skip();
    struct subject s = {.m = open_on("emu", dir, KG_BF16)};
    struct kg_acts *acts = NULL;
    struct kg_kv *kv = NULL;
    s.row_bytes = (size_t)s.m->config.hidden * sizeof(uint16_t);
    NEED(kg_acts_create(&acts, s.m, 1, true, err));
    NEED(kg_kv_create(&kv, s.m, kg_kv_alike(1), err));
    const int64_t before = kg_emu_lose(-1);
    unsigned char *rows = forward(&s, acts, kv, &(struct kg_pack){&token, 1, &seq, 1});
    assert_int_equal(kg_emu_lose(-1) - before, of_layer * s.m->config.layers + 2);
    kg_mem_free(rows);
    kg_kv_free(kv);
    kg_acts_free(acts);
    kg_model_free(s.m);
}

/* Norms of queries and keys add two. */
static void a_layer_of_a_decode_step_is_nine_launches(void **state)
{
    (void)state;
    setenv("KEDGE_TEST_PRODUCTS", "own", 1);
    check_launches("qwen2", 9);
    check_launches("llama", 9);
    check_launches("qwen3", 11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_probs_and_gradients_have_the_bits_of_the_cpu),
        cmocka_unit_test(checkpoints_of_other_sizes_have_them_too),
        cmocka_unit_test(a_row_has_its_bits_however_it_is_computed),
        cmocka_unit_test(an_update_leaves_what_products_read),
        cmocka_unit_test(a_layer_of_a_decode_step_is_nine_launches),
    };

    return RUN_OPENING_EMULATION(tests);
}
