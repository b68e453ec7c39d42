/* Checkpoints as GGUF files: what is written reads back with every value, and what GGUF
 * cannot express is refused by name. */
#include "gguf/export.h"
#include "model/model_internal.h"
#include "model/model_testing.h"

#include "base/signal.h"
#include "data/gguf.h"
#include "data/source.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static char out[] = "/tmp/kg_export_test_XXXXXX";
static char file[64], again[64];

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(out))
        return -1;
    snprintf(file, sizeof file, "%s/x.gguf", out);
    snprintf(again, sizeof again, "%s/y.gguf", out);
    return 0;
}

static int teardown(void **state)
{
    struct kg_err e;
    (void)state;
    return kg_file_remove_tree(out, &e) == KG_OK ? 0 : -1;
}

static kg_status export(const char *model, const char *path, const char *type,
                        struct kg_err *e)
{
    const struct kg_export_opts opts = {.type = type};
    return kg_model_export(model, path, &opts, e);
}

/* ---- values ---- */

static int64_t count_values(const struct kg_st_tensor *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->n_dims; d++)
        n *= t->shape[d];
    return n;
}

/* The largest difference between two tensors, relative to the largest value of the
 * first. */
static double difference(const struct kg_st_tensor *a, const struct kg_st_tensor *b)
{
    const int64_t n = count_values(a);
    float *x = calloc((size_t)n, sizeof *x), *y = calloc((size_t)n, sizeof *y);
    double most = 0, size = 0;
    assert_int_equal(count_values(b), n);
    NEED(kg_tensor_read(x, a, 0, n, err));
    NEED(kg_tensor_read(y, b, 0, n, err));
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)x[i] - (double)y[i]));
        size = fmax(size, fabs((double)x[i]));
    }
    free(x);
    free(y);
    return size > 0 ? most / size : most;
}

/* The largest difference of all matrices, or of all other tensors. */
static double differences(const struct kg_st_set *a, const struct kg_st_set *b,
                          bool matrices)
{
    double most = 0;
    assert_int_equal(kg_st_count(a), kg_st_count(b));
    for (size_t i = 0; i < kg_st_count(a); i++) {
        const struct kg_st_tensor *t = kg_st_at(a, i), *u = kg_st_find(b, t->name);
        assert_non_null(u);
        assert_int_equal(t->n_dims, u->n_dims);
        assert_memory_equal(t->shape, u->shape, (size_t)t->n_dims * sizeof *t->shape);
        if ((t->n_dims == 2) == matrices)
            most = fmax(most, difference(t, u));
    }
    return most;
}

static void compare(const char *model, const char *path, double matrices, double vectors)
{
    struct kg_st_set *a, *b;
    NEED(kg_source_tensors(&a, model, err));
    NEED(kg_source_tensors(&b, path, err));
    const double m = differences(a, b, true), v = differences(a, b, false);
    if (m > matrices || v > vectors)
        fail_msg("%s: expected differences of %g and %g at most, found %g and %g", model,
                 matrices, vectors, m, v);
    kg_st_close(a);
    kg_st_close(b);
}

/* models of tests/data/reference that GGUF can express */
static const char *const written[] = {
    "granite", "llama_bias",    "llama_yarn", "mixtral",   "olmo2", "olmoe",
    "phi3",    "phi3_longrope", "qwen2",      "qwen2_moe", "qwen3"};
enum { N_WRITTEN = sizeof written / sizeof *written };

static const char *folder(const char *name)
{
    static char path[96];
    snprintf(path, sizeof path, "tests/data/reference/%s", name);
    return path;
}

static void what_is_written_is_read_with_every_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_WRITTEN; i++) {
        struct kg_model_config config;
        NEED(export(folder(written[i]), file, NULL, err));
        compare(folder(written[i]), file, 0, 0);
        NEED(kg_model_config_read(&config, file, err));
    }
}

static void types_round_as_they_do(void **state)
{
    static const struct {
        const char *type;
        double most; /* largest error of a matrix, relative to its largest value */
    } types[] = {{"f32", 0},
                 {"f16", 0x1p-11},
                 {"bf16", 0x1p-8},
                 {"q8_0", 1.0 / 250},
                 {"q4_0", 1.0 / 7}};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        NEED(export(folder("qwen2"), file, types[i].type, err));
        compare(folder("qwen2"), file, types[i].most, 0);
        NEED(export(folder("granite"), file, types[i].type, err));
        compare(folder("granite"), file, types[i].most, 0);
    }
}

/* A fresh model whose rows have 256 values, except those of down_proj, which have
 * `ffn`. */
static void write_wide(const char *dir, int32_t ffn)
{
    const struct kg_model_opts opts = {.ct = KG_F32, .trainable = true};
    struct kg_model_config c;
    struct kg_model *m;
    NEED(kg_model_config_read(&c, folder("qwen3"), err));
    c.hidden = 256;
    c.ffn = ffn;
    NEED(kg_model_create(&m, &c, &opts, 5, err));
    NEED(kg_model_save(m, dir, &(struct kg_model_save){.dtype = KG_F32}, err));
    kg_model_free(m);
}

/* A weight that fp16, or the fp16 scale of a block, cannot hold is refused instead of
 * becoming infinite. */
static void a_weight_that_a_type_cannot_hold_is_refused(void **state)
{
    static const struct {
        const char *type;
        bool is_written;
    } rows[] = {{"f32", true},   {"bf16", true},  {"f16", false}, {"q8_0", false},
                {"q4_0", false}, {"q4_k", false}, {"q6_k", false}};
    const struct kg_model_opts opts = {.ct = KG_F32, .trainable = true};
    struct kg_model_config c;
    struct kg_model *m;
    struct kg_err e;
    char dir[96];
    (void)state;
    snprintf(dir, sizeof dir, "%s/large", out);
    NEED(kg_model_config_read(&c, folder("qwen3"), err));
    c.hidden = c.ffn = 256;
    NEED(kg_model_create(&m, &c, &opts, 5, err));
    NEED(kg_model_put_master(m, m->layers[0].wup->offset + 7, &(float){-1e8f}, 1, err));
    NEED(kg_model_save(m, dir, &(struct kg_model_save){.dtype = KG_F32}, err));
    kg_model_free(m);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const kg_status status = export(dir, file, rows[i].type, &e);
        if (rows[i].is_written != (status == KG_OK) ||
            (status != KG_OK && !strstr(e.message, "at most 65504 in a file of")))
            fail_msg("%s: %s", rows[i].type, status == KG_OK ? "written" : e.message);
    }
    NEED(kg_file_remove_tree(dir, err));
}

static void rows_that_are_no_whole_blocks_have_a_type_by_name(void **state)
{
    static const struct {
        const char *type;
        int32_t ffn;
        const char *down;
        double most; /* as above */
    } cases[] = {
        {"q4_k", 512, "Q4_K", 1.0 / 14}, {"q4_k", 96, "Q8_0", 1.0 / 14},
        {"q4_k", 72, "F16", 1.0 / 14},   {"q6_k", 256, "Q6_K", 1.0 / 60},
        {"q6_k", 32, "Q8_0", 1.0 / 60},  {"q6_k", 40, "F16", 1.0 / 60},
        {"q8_0", 96, "Q8_0", 1.0 / 200}, {"q8_0", 72, "F16", 1.0 / 200},
        {"q4_0", 96, "Q4_0", 1.0 / 7},   {"q4_0", 40, "F16", 1.0 / 7},
        {"bf16", 72, "BF16", 0x1p-8},    {"f16", 40, "F16", 0x1p-11},
    };
    char dir[96];
    (void)state;
    snprintf(dir, sizeof dir, "%s/wide", out);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kg_gguf g;
        write_wide(dir, cases[i].ffn);
        NEED(export(dir, file, cases[i].type, err));
        NEED(kg_gguf_open(&g, file, err));
        assert_string_equal(kg_gguf_find(&g, "blk.0.ffn_down.weight")->type->name,
                            cases[i].down);
        assert_ptr_equal(kg_gguf_find(&g, "blk.1.attn_q.weight")->type,
                         kg_quant_named(cases[i].type));
        kg_gguf_close(&g);
        compare(dir, file, cases[i].most, 0);
        NEED(kg_file_remove_tree(dir, err));
    }
}

/* ---- from a GGUF file ---- */

static void a_file_that_comes_in_goes_out_with_the_same_tensors(void **state)
{
    static const char *const types[] = {"f32", "f16", "bf16", "q8_0", "q4_0"};
    (void)state;
    for (size_t i = 0; i < 2 * 5; i++) {
        struct kg_gguf a, b;
        NEED(export(folder(i % 2 ? "llama_bias" : "mixtral"), file, types[i / 2], err));
        NEED(export(file, again, NULL, err));
        NEED(kg_gguf_open(&a, file, err));
        NEED(kg_gguf_open(&b, again, err));
        assert_int_equal(a.n_tensors, b.n_tensors);
        for (size_t t = 0; t < a.n_tensors; t++) {
            assert_string_equal(a.tensors[t].name, b.tensors[t].name);
            assert_ptr_equal(a.tensors[t].type, b.tensors[t].type);
            assert_int_equal(a.tensors[t].bytes, b.tensors[t].bytes);
            assert_memory_equal(a.tensors[t].data, b.tensors[t].data, a.tensors[t].bytes);
        }
        kg_gguf_close(&a);
        kg_gguf_close(&b);
    }
}

/* ---- what GGUF cannot express ---- */

static void fields_without_a_key_are_refused_by_name(void **state)
{
    static const struct {
        const char *model, *with;
    } cases[] = {
        {"gemma2", "query_pre_attn_scalar of config.json is 12"},
        {"gemma3_text", "layer_types of config.json is"},
        {"llama", "rope_scaling of config.json is {\"rope_type\":\"llama3\""},
        {"mistral", "sliding_window of config.json is 9"},
        {"qwen2_window", "use_sliding_window of config.json is true"},
        {"qwen2_moe_window", "use_sliding_window of config.json is true"},
        {"qwen3_bias", "rope_scaling of config.json is {\"rope_type\":\"dynamic\""},
        {"qwen3_moe", "mlp_only_layers of config.json is [1]"},
        {"qwen3_moe_window", "use_sliding_window of config.json is true"},
        {"smollm3", "no_rope_layers of config.json is [1,0,1]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kg_err e;
        char path[96];
        snprintf(path, sizeof path, "%s/none.gguf", out);
        assert_int_equal(export(folder(cases[i].model), path, NULL, &e), KG_EUNSUPPORTED);
        if (!strstr(e.message, cases[i].with) || !strstr(e.message, path))
            fail_msg("expected '%s' in: %s", cases[i].with, e.message);
        assert_false(kg_file_exists(path));
    }
}

/* Checks as on reading; tests/llama_cpp_test.c compares values. */
static void adapters_are_refused_beside_another_model(void **state)
{
    static const struct {
        const char *model, *adapter;
        kg_status status;
        const char *with;
    } cases[] = {
        {"phi3", "phi3/adapter", KG_OK, ""},
        {"qwen2", "qwen3/adapter", KG_ECONFLICT,
         "kedge_base.json: expected the adapter's"},
        {"granite", "qwen3/adapter", KG_ECONFLICT, "expected the adapter's base model"},
        {"qwen3", "mixtral/adapter", KG_EINVAL, "adapter_config.json"},
        {"olmo2", "phi3/adapter", KG_EINVAL, "adapter_config.json"},
        {"qwen3", "none", KG_ENOTFOUND, "tests/data/peft/none/adapter_config.json"},
        {"none", "qwen3/adapter", KG_ENOTFOUND, "tests/data/reference/none/config.json"},
        {"qwen3_moe", "qwen3_moe/adapter", KG_OK, ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[128];
        struct kg_err e = {0};
        const struct kg_export_opts opts = {.adapter = path};
        snprintf(path, sizeof path, "tests/data/peft/%s", cases[i].adapter);
        assert_int_equal(kg_model_export(folder(cases[i].model), file, &opts, &e),
                         cases[i].status);
        if (!strstr(e.message, cases[i].with))
            fail_msg("expected '%s' in: %s", cases[i].with, e.message);
    }
}

/* ---- after a killed or stopped writer ---- */

static void files_of_killed_writers_are_removed(void **state)
{
    char stale[128], running[128];
    const pid_t child = fork();
    (void)state;
    if (child == 0)
        _exit(0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    snprintf(stale, sizeof stale, "%s.tmp-%ld-1", file, (long)child);
    snprintf(running, sizeof running, "%s.tmp-%ld-9", file, (long)getpid());
    NEED(kg_file_write_atomic(stale, "x", 1, err));
    NEED(kg_file_write_atomic(running, "x", 1, err));
    NEED(export(folder("qwen3"), file, "q8_0", err));
    assert_false(kg_file_exists(stale));
    assert_true(kg_file_exists(running));
}

/* Must be the last test, because the stop request stays set. */
static void a_signal_leaves_nothing(void **state)
{
    char path[96], **names;
    struct kg_err e;
    size_t n;
    (void)state;
    kg_signal_install();
    raise(SIGINT);
    snprintf(path, sizeof path, "%s/alone/x.gguf", out);
    NEED(kg_file_make_dirs(kg_path_in(out, "alone").text, err));
    assert_int_equal(export(folder("qwen3"), path, NULL, &e), KG_EINTERRUPTED);
    NEED(kg_file_list(&names, &n, kg_path_in(out, "alone").text, err));
    assert_int_equal(n, 0);
    kg_file_names_free(names, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_with_every_bit),
        cmocka_unit_test(types_round_as_they_do),
        cmocka_unit_test(rows_that_are_no_whole_blocks_have_a_type_by_name),
        cmocka_unit_test(a_weight_that_a_type_cannot_hold_is_refused),
        cmocka_unit_test(a_file_that_comes_in_goes_out_with_the_same_tensors),
        cmocka_unit_test(fields_without_a_key_are_refused_by_name),
        cmocka_unit_test(adapters_are_refused_beside_another_model),
        cmocka_unit_test(files_of_killed_writers_are_removed),
        cmocka_unit_test(a_signal_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
