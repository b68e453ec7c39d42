/* A frozen base in 4 or 8 bits gives the same bits as the same values in bf16: weights,
 * losses, and gradients of adapters. It takes less memory, and what cannot be rounded is
 * refused by name.
 */
#include "gguf/export.h"
#include "model/model_internal.h"
#include "model/model_testing.h"

static char root[] = "/tmp/kg_base_dtype_XXXXXX";

static int setup(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
    struct kg_err e;
    (void)state;
    return kg_file_remove_tree(root, &e) == KG_OK ? 0 : -1;
}

/* These cover columns in whole blocks of 256, of 32 and of neither; rows of q and k in
 * llama.cpp's order; a tied head; experts. */
static const char *const archs[] = {"llama_bias", "qwen3", "mixtral", "olmoe"};
static const char *const types[] = {"q8_0", "q4_0", "q4_k"};
enum { N_ARCHS = 4, N_TYPES = 3 };

static const char *path_of(const char *arch, const char *end)
{
    static char paths[2][128];
    static int turn;
    char *to = paths[turn ^= 1];
    snprintf(to, sizeof paths[0], "%s/%s%s", root, arch, end);
    return to;
}

static void write_model(const char *arch)
{
    const struct kg_model_opts opts = {.ct = KG_F32, .trainable = true};
    struct kg_model_config c;
    struct kg_model *m;
    char from[128];
    snprintf(from, sizeof from, "tests/data/reference/%s", arch);
    NEED(kg_model_config_read(&c, from, err));
    c.hidden = 256;
    c.ffn = 288;
    c.experts.ffn = c.experts.n ? c.ffn : 0;
    c.init_range = 0.1f;
    NEED(kg_model_create(&m, &c, &opts, 7, err));
    NEED(kg_model_save(m, path_of(arch, ""), &(struct kg_model_save){.dtype = KG_F32},
                       err));
    kg_model_free(m);
}

static void write_gguf(const char *arch, const char *type)
{
    const struct kg_export_opts opts = {.type = type};
    char end[32];
    snprintf(end, sizeof end, "-%s.gguf", type);
    NEED(kg_model_export(path_of(arch, ""), path_of(arch, end), &opts, err));
}

/* with: opens for training adapters, else for inference */
static struct kg_model *open_as(const char *path, const char *base_dtype, bool with)
{
    const struct kg_lora lora = {.rank = 3, .alpha = 5};
    const struct kg_model_opts opts = {.ct = KG_BF16,
                                       .trainable = with,
                                       .base_dtype = base_dtype,
                                       .lora = with ? &lora : NULL,
                                       .seed = 3};
    struct kg_model *m = NULL;
    NEED(kg_model_open(&m, path, &opts, err));
    return m;
}

static void same_weights(const struct kg_model *a, const struct kg_model *b)
{
    for (size_t i = 0; i < a->n_params; i++) {
        const int64_t n = kg_param_count(&a->params[i]);
        float *x = test_alloc((size_t)n, sizeof *x), *y = test_alloc((size_t)n, 4);
        NEED(kg_param_read(x, KG_F32, a, &a->params[i], NULL, 0, n, err));
        NEED(kg_param_read(y, KG_F32, b, &b->params[i], NULL, 0, n, err));
        if (memcmp(x, y, (size_t)n * sizeof *x) != 0)
            fail_msg("%s has other values", a->params[i].name);
        kg_mem_free(x);
        kg_mem_free(y);
    }
}

/* Sets the adapters' weights, so that B is not zero and they have an effect. */
static void move(struct kg_model *m)
{
    float *w = test_alloc((size_t)m->n_elements, sizeof *w);
    for (int64_t i = 0; i < m->n_elements; i++)
        w[i] = 0.02f * (float)((i * 7919) % 31 - 15);
    NEED(kg_slab_write(&m->master, 0, w, m->n_elements, err));
    NEED(kg_model_refresh(m, err));
    kg_mem_free(w);
}

static double loss_of(struct kg_model *m, float *grads)
{
    int32_t tokens[40];
    const int32_t lengths[] = {23, 1, 16};
    const int32_t *const seqs[] = {tokens, tokens + 23, tokens + 24};
    struct kg_acts *acts = NULL;
    test_tokens(tokens, 40, m->config.vocab, 5);
    struct test_pack t = test_pack_of(seqs, lengths, 3);
    NEED(kg_acts_create(&acts, m, 40, true, err));
    const double nll = test_nll(m, acts, &t, 0.7, grads);
    kg_acts_free(acts);
    test_pack_release(&t);
    return nll;
}

static void same_training(const char *a_path, const char *a_type, const char *b_path,
                          const char *b_type)
{
    struct kg_model *a = open_as(a_path, a_type, true),
                    *b = open_as(b_path, b_type, true);
    float *x = buffer_of(a->n_elements, sizeof *x), *y = buffer_of(a->n_elements, 4);
    same_weights(a, b);
    move(a);
    move(b);
    assert_true(loss_of(a, x) == loss_of(b, y));
    assert_memory_equal(x, y, (size_t)a->n_elements * sizeof *x);
    buffer_free(x);
    buffer_free(y);
    kg_model_free(a);
    kg_model_free(b);
}

static void as_stored_has_the_bits_of_bf16(void **state)
{
    (void)state;
    for (int i = 0; i < N_ARCHS; i++)
        for (int t = 0; t < N_TYPES; t++) {
            char path[128], end[32];
            snprintf(end, sizeof end, "-%s.gguf", types[t]);
            snprintf(path, sizeof path, "%s", path_of(archs[i], end));
            struct kg_model *a = open_as(path, NULL, false);
            struct kg_model *b = open_as(path, "as_stored", false);
            same_weights(a, b);
            assert_true(loss_of(a, NULL) == loss_of(b, NULL));
            assert_true(kg_model_compute_bytes(b) < kg_model_compute_bytes(a));
            kg_model_free(a);
            kg_model_free(b);
            if (t == i % N_TYPES)
                same_training(path, NULL, path, "as_stored");
        }
}

/* Rounding while opening gives the types and values of a file that `kedge export`
 * rounded. */
static void weights_are_rounded_as_an_export_rounds_them(void **state)
{
    (void)state;
    for (int i = 0; i < N_ARCHS; i++)
        for (int t = 0; t < N_TYPES; t++) {
            char path[128], end[32];
            snprintf(end, sizeof end, "-%s.gguf", types[t]);
            snprintf(path, sizeof path, "%s", path_of(archs[i], end));
            struct kg_model *a = open_as(path_of(archs[i], ""), types[t], false);
            struct kg_model *b = open_as(path, "as_stored", false);
            for (size_t p = 0; p < a->n_base; p++)
                assert_ptr_equal(a->params[p].compute.quant, b->params[p].compute.quant);
            kg_model_free(a);
            kg_model_free(b);
        }
    same_training(path_of("qwen3", ""), "q4_k", path_of("qwen3", "-q4_k.gguf"),
                  "as_stored");
}

/* From blocks of one type to blocks of another. */
static void a_file_may_be_rounded_again(void **state)
{
    (void)state;
    struct kg_model *a = open_as(path_of("qwen3", "-q8_0.gguf"), "q4_0", false);
    for (size_t i = 0; i < a->n_base; i++)
        if (a->params[i].is_product)
            assert_string_equal(a->params[i].compute.quant->name, "Q4_0");
    assert_true(isfinite(loss_of(a, NULL)));
    kg_model_free(a);
}

/* kedge_base.json names the type, so that a reader with another base can tell. */
static void a_folder_of_adapters_says_what_the_base_was_rounded_to(void **state)
{
    static const char *const rows[][2] = {
        {"q4_0", "\"base_dtype\": \"Q4_0\"}\n"},
        {"as_stored", "\"}\n"},
        {NULL, "\"}\n"},
    };
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const char *const dir = path_of("adapter", rows[i][0] ? rows[i][0] : "none");
        struct kg_model *m = open_as(path_of("qwen3", "-q8_0.gguf"), rows[i][0], true);
        struct kg_str text = {0};
        NEED(kg_model_save(m, dir, &(struct kg_model_save){.dtype = KG_F32}, err));
        const struct kg_path file = kg_path_in(dir, "kedge_base.json");
        NEED(kg_file_read(&text, file.text, 1 << 10, err));
        assert_string_equal(kg_str_text(&text) + text.len - strlen(rows[i][1]),
                            rows[i][1]);
        assert_int_equal(strstr(kg_str_text(&text), "base_dtype") != NULL, i == 0);
        kg_str_release(&text);
        kg_model_free(m);
    }
}

static void planned_memory_is_that_of_the_model(void **state)
{
    static const double share[] = {8.5 / 16, 4.5 / 16, 4.625 / 16};
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        const struct kg_model_opts opts = {.ct = KG_BF16, .base_dtype = types[t]};
        struct kg_model_config c;
        struct kg_model *m, *plain;
        NEED(kg_model_config_read(&c, "tests/data/reference/qwen3", err));
        c.hidden = 1024;
        c.ffn = 3072;
        c.heads = 16;
        c.head_dim = 64;
        NEED(kg_model_outline(&m, &c, &opts, err));
        NEED(kg_model_outline(&plain, &c, &(struct kg_model_opts){.ct = KG_BF16}, err));
        assert_float_equal((double)kg_model_compute_bytes(m) /
                               (double)kg_model_compute_bytes(plain),
                           share[t], 0.001);
        kg_model_free(m);
        kg_model_free(plain);
    }
}

/* For benchmarks: a model that was never written is rounded as if it had been written and
 * read. */
static void a_fresh_model_is_rounded_too(void **state)
{
    struct kg_model_config c;
    struct kg_model *m, *plain;
    (void)state;
    NEED(kg_model_config_read(&c, "tests/data/reference/qwen3", err));
    c.hidden = 256;
    c.ffn = 512;
    NEED(kg_model_create(&plain, &c, &(struct kg_model_opts){.ct = KG_F32}, 5, err));
    for (int t = 0; t < N_TYPES; t++) {
        const struct kg_model_opts opts = {.ct = KG_BF16, .base_dtype = types[t]};
        NEED(kg_model_create(&m, &c, &opts, 5, err));
        for (size_t i = 0; i < m->n_base; i++) {
            const struct kg_quant *q = m->params[i].compute.quant;
            const int64_t n = m->params[i].rows * m->params[i].cols;
            float *own = kg_mem_calloc((size_t)n, sizeof *own, "test", NULL);
            float *as = kg_mem_calloc((size_t)n, sizeof *as, "test", NULL);
            unsigned char block[KG_QUANT_MAX * 4];
            NEED(kg_param_read(own, KG_F32, m, &m->params[i], NULL, 0, n, err));
            NEED(kg_param_read(as, KG_F32, plain, &plain->params[i], NULL, 0, n, err));
            for (int64_t k = 0; k < n; k += q ? q->values : n) {
                if (!q)
                    continue;
                q->narrow(block, as + k);
                q->widen(as + k, block);
                for (int j = 0; j < q->values; j++)
                    as[k + j] = kg_bf16_to_f32(kg_f32_to_bf16(as[k + j]));
            }
            assert_memory_equal(own, as, (size_t)n * sizeof *own);
            kg_mem_free(own);
            kg_mem_free(as);
        }
        kg_model_free(m);
    }
    kg_model_free(plain);
}

static void what_it_cannot_be_is_refused_by_name(void **state)
{
    struct kg_backend other = *backend();
    const struct kg_lora lora = {.rank = 2, .alpha = 2};
    char gguf[128], folder[128];
    (void)state;
    other.coded = false;
    snprintf(gguf, sizeof gguf, "%s", path_of("llama_bias", "-q8_0.gguf"));
    snprintf(folder, sizeof folder, "%s", path_of("llama_bias", ""));
    const struct {
        struct kg_model_opts opts;
        const char *path, *says;
    } rows[] = {
        {{.ct = KG_F32, .base_dtype = "q8_0"},
         gguf,
         "expected products of bf16, found f"},
        {{.ct = KG_F32, .base_dtype = "as_stored"}, gguf, "as_stored: expected pro"},
        {{.ct = KG_BF16, .base_dtype = "q4_0", .backend = &other},
         gguf,
         "expected the CPU"},
        {{.ct = KG_BF16, .base_dtype = "q4_k", .trainable = true},
         gguf,
         "weights that are"},
        {{.ct = KG_BF16, .base_dtype = "as_stored"}, folder, "expected a GGUF file with"},
        {{.ct = KG_BF16, .base_dtype = "as_stored", .lora = &lora}, folder, "found none"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_model *m = NULL;
        struct kg_err e = {0};
        assert_int_equal(kg_model_open(&m, rows[i].path, &rows[i].opts, &e),
                         KG_EUNSUPPORTED);
        if (!strstr(e.message, rows[i].says) || !strstr(e.message, "base_dtype"))
            fail_msg("row %zu: %s", i, e.message);
    }
}

static void no_backend_that_reads_codes(void **state)
{
    (void)state;
    print_message("skip: the backend reads no blocks of codes\n");
    skip();
}

int main(void)
{
    const struct CMUnitTest none[] = {cmocka_unit_test(no_backend_that_reads_codes)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_stored_has_the_bits_of_bf16),
        cmocka_unit_test(weights_are_rounded_as_an_export_rounds_them),
        cmocka_unit_test(a_file_may_be_rounded_again),
        cmocka_unit_test(a_folder_of_adapters_says_what_the_base_was_rounded_to),
        cmocka_unit_test(planned_memory_is_that_of_the_model),
        cmocka_unit_test(a_fresh_model_is_rounded_too),
        cmocka_unit_test(what_it_cannot_be_is_refused_by_name),
    };
    const struct kg_backend *be;
    NEED(kg_backend_open(&be, NULL, err));
    if (!be->coded)
        return cmocka_run_group_tests(none, NULL, NULL);
    if (setup(NULL) != 0)
        return 1;
    for (int i = 0; i < N_ARCHS; i++) {
        write_model(archs[i]);
        for (int t = 0; t < N_TYPES; t++)
            write_gguf(archs[i], types[t]);
    }
    return cmocka_run_group_tests(tests, NULL, teardown);
}
