/* The report of benchmarks: shares, bars, and one JSON object per row. Measured values
 * are not tested. */
#include "lab/bench/lab_bench.h"

#include "base/clock.h"
#include "emu/emu.h"
#include "ranks/ranks_testing.h"
#include "tensor/backend_testing.h"
#include "tensor/selfcheck.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct kg_bench_timing timing = {
    .seconds = {4, 2, 3}, .n = 3, .ceiling = 1e9};
static const struct kg_bench_rate rate = {
    "decode", 1e9, "GB/s", {.limit = 0.7, .at_most = false}};

/* A report whose ceilings are measured so briefly that they mean nothing. */
static struct kg_bench_report brief_report(struct kg_str *out,
                                           const struct kg_backend *be, enum kg_dtype ct)
{
    return (struct kg_bench_report){
        .out = out, .be = be, .ct = ct, .gemm_side = 128, .ceiling_time = 1e-3};
}

static void best_and_median_do_not_depend_on_the_order(void **state)
{
    (void)state;
    assert_true(kg_bench_best(&timing) == 2);
    assert_true(kg_bench_median(&timing) == 3);
}

static void a_rate_below_its_bar_is_not_met(void **state)
{
    struct kg_str out = {0};
    struct kg_bench_report r = {.out = &out};
    struct kg_bench_rate easy = rate;
    struct kg_err err;

    (void)state;
    easy.bar.limit = 0.5;
    assert_int_equal(kg_bench_put_rate(&r, &rate, &timing, &err), KG_OK);
    assert_non_null(strstr(kg_str_text(&out), "50.0 %"));
    assert_non_null(strstr(kg_str_text(&out), "[at least 70 %: NOT MET, by 20 %]\n"));
    kg_str_clear(&out);
    assert_int_equal(kg_bench_put_rate(&r, &easy, &timing, &err), KG_OK);
    assert_non_null(strstr(kg_str_text(&out), "[at least 50 %: met]\n"));
    kg_str_release(&out);
}

/* The ceiling is the lower of two bounds; the row says so if it is the memory's. */
static void what_must_be_read_bounds_a_rate(void **state)
{
    struct kg_str out = {0};
    struct kg_bench_report r = {.out = &out};
    struct kg_bench_timing both = timing;
    struct kg_err err;

    (void)state;
    both.memory = timing.ceiling / 2;
    assert_int_equal(kg_bench_put_rate(&r, &rate, &both, &err), KG_OK);
    assert_non_null(strstr(kg_str_text(&out), "100.0 % (memory)  [at least 70 %: met]"));
    kg_str_clear(&out);
    both.memory = timing.ceiling * 2;
    assert_int_equal(kg_bench_put_rate(&r, &rate, &both, &err), KG_OK);
    assert_non_null(
        strstr(kg_str_text(&out), "50.0 %  [at least 70 %: NOT MET, by 20 %]"));
    kg_str_release(&out);
}

static void memory_above_its_bar_is_not_met(void **state)
{
    struct kg_bench_bar most = {128 << 20, true};
    struct kg_str out = {0};
    struct kg_bench_report r = {.out = &out};
    struct kg_err err;

    (void)state;
    assert_int_equal(kg_bench_put_bytes(&r, "memory", 127.0 * (1 << 20), most, &err),
                     KG_OK);
    assert_non_null(strstr(kg_str_text(&out), "[at most 128 MiB: met]"));
    kg_str_clear(&out);
    assert_int_equal(kg_bench_put_bytes(&r, "memory", 129.0 * (1 << 20), most, &err),
                     KG_OK);
    assert_non_null(strstr(kg_str_text(&out), "[at most 128 MiB: NOT MET, by 1 MiB]"));
    kg_str_release(&out);
}

static void rows_are_json_objects(void **state)
{
    struct kg_str out = {0};
    struct kg_bench_report r = {.out = &out, .json = true};
    struct kg_bench_share share = {"policy", 1, 200, "s", "a step", {0.02, true}};
    struct kg_bench_bar none = {0};
    struct kg_err err;

    (void)state;
    assert_int_equal(kg_bench_put_rate(&r, &rate, &timing, &err), KG_OK);
    assert_string_equal(kg_str_text(&out),
                        "{\"name\": \"decode\", \"best\": 5e+08, \"median\": 3.333e+08, "
                        "\"unit\": \"GB/s\", \"seconds\": 2, \"ceiling\": 1e+09, "
                        "\"share_of_ceiling\": 0.5, \"at_least\": 0.7, "
                        "\"met\": false}\n");
    kg_str_clear(&out);
    assert_int_equal(kg_bench_put_bytes(&r, "memory", 4096, none, &err), KG_OK);
    assert_string_equal(kg_str_text(&out), "{\"name\": \"memory\", \"bytes\": 4096}\n");
    kg_str_clear(&out);
    assert_int_equal(kg_bench_put_share(&r, &share, &err), KG_OK);
    assert_string_equal(kg_str_text(&out),
                        "{\"name\": \"policy\", \"share\": 0.005, \"of\": \"a step\", "
                        "\"part\": 1, \"whole\": 200, \"unit\": \"s\", "
                        "\"at_most\": 0.02, \"met\": true}\n");
    kg_str_release(&out);
}

static void a_row_that_nobody_has_is_an_error(void **state)
{
    struct kg_str out = {0};
    struct kg_err err;

    (void)state;
    assert_int_equal(kg_bench_run(&out,
                                  &(struct kg_bench_opts){.name = "decode",
                                                          .row = "batch 17",
                                                          .be = backend(),
                                                          .ct = KG_F32},
                                  &err),
                     KG_ENOTFOUND);
    assert_string_equal(err.message,
                        "--row: expected part of a row's name, found 'batch 17', which "
                        "no row of decode has (without --row all are printed)");
    kg_str_release(&out);
}

static void rows_are_chosen_by_a_part_of_their_name(void **state)
{
    static const struct {
        const char *row, *name;
        bool wanted;
    } cases[] = {
        {NULL, "decode 0.5B shape, batch 1", true},
        {"batch 1", "decode 0.5B shape, batch 1", true},
        {"batch 1", "decode 0.5B shape, batch 16", false},
        {"batch 16", "decode 0.5B shape, batch 16", true},
        {"0.5B shape", "decode 0.5B shape, batch 64", true},
        {"135M", "decode 0.5B shape, batch 64", false},
        {"decode", "decode 0.5B shape, batch 64", true},
        {"x W^T, 2", "x W^T, 2048 rows, W 896 x 896", false},
        {"x W^T", "x W^T, 2048 rows, W 896 x 896", true},
        {"W 896 x 4864", "dy W, 512 rows, W 896 x 4864", true},
        {"W 896 x 48", "dy W, 512 rows, W 896 x 4864", false},
        {"dy W", "dy^T x, 512 rows, W 896 x 4864", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct kg_bench_report r = {.row = cases[i].row};

        assert_true(kg_bench_wants(&r, cases[i].name) == cases[i].wanted);
    }
}

static void say_pairs(char *text, size_t bytes)
{
    snprintf(text, bytes,
             "kg_cpu_v4_bf16, tiles of 8 x 32 sums, 5 x 32 of bf16 by an "
             "instruction for pairs");
}
static void say_tiles(char *text, size_t bytes)
{
    snprintf(text, bytes,
             "kg_cpu_v4_amx, tiles of 8 x 32 sums, 32 x 32 of bf16 by tile "
             "registers");
}

/* The bar of a product depends on the instructions that multiply. */
static void the_bar_of_a_product_is_its_instruction_s(void **state)
{
    static const struct kg_backend pairs = {.describe = say_pairs};
    static const struct kg_backend tiles = {.describe = say_tiles};
    static const struct kg_backend fused = {0};
    static const struct {
        const struct kg_backend *be;
        struct kg_bench_product p;
        double bar;
    } cases[] = {
        {&pairs, {KG_MATMUL_NT, 1, 896, 896, KG_BF16}, 0},
        {&pairs, {KG_MATMUL_NT, 8, 896, 896, KG_BF16}, 0},
        {&pairs, {KG_MATMUL_NT, 16, 896, 896, KG_BF16}, 0.80},
        {&pairs, {KG_MATMUL_NT, 64, 896, 896, KG_BF16}, 0.88},
        {&pairs, {KG_MATMUL_NT, 2048, 896, 896, KG_BF16}, 0.88},
        {&pairs, {KG_MATMUL_NN, 512, 896, 896, KG_BF16}, 0.88},
        {&pairs, {KG_MATMUL_TN, 512, 896, 896, KG_BF16}, 0.80},
        {&pairs, {KG_MATMUL_NT, 512, 896, 896, KG_F32}, 0.90},
        {&tiles, {KG_MATMUL_NT, 64, 896, 896, KG_BF16}, 0},
        {&tiles, {KG_MATMUL_NT, 512, 896, 896, KG_BF16}, 0.60},
        {&tiles, {KG_MATMUL_TN, 2048, 896, 896, KG_BF16}, 0.60},
        {&tiles, {KG_MATMUL_TN, 2048, 896, 896, KG_F32}, 0.90},
        {&fused, {KG_MATMUL_NT, 1, 896, 896, KG_BF16}, 0},
        {&fused, {KG_MATMUL_NT, 16, 896, 896, KG_BF16}, 0.85},
        {&fused, {KG_MATMUL_TN, 512, 896, 896, KG_BF16}, 0.85},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_true(kg_bench_product_bar(cases[i].be, &cases[i].p) == cases[i].bar);
}

static int peaks, products, gets;
static double most_flops;

static double count_peak(enum kg_dtype t, double flops)
{
    (void)t;
    peaks++;
    most_flops = flops > most_flops ? flops : most_flops;
    return flops;
}
static kg_status count_product(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                               enum kg_matmul_kind kind, bool accumulate,
                               struct kg_err *err)
{
    (void)c, (void)a, (void)b, (void)kind, (void)accumulate, (void)err;
    products++;
    return KG_OK;
}

static kg_status count_get(void *to, const void *from, uint64_t bytes, struct kg_err *err)
{
    (void)to, (void)from, (void)bytes, (void)err;
    gets++;
    return KG_OK;
}

/* A device's ceiling is measured once, with a warm-up and 20 products. The host's, which
 * other programs use too, is measured again at each call. */
static void a_device_s_ceiling_is_measured_once(void **state)
{
    static const struct {
        enum kg_bench_ceiling kind;
        int *counted;
    } kinds[] = {{KG_BENCH_GEMM, &products},
                 {KG_BENCH_GEMM_FP32, &products},
                 {KG_BENCH_PEAK, &peaks},
                 {KG_BENCH_PEAK_FP32, &peaks}};
    struct kg_backend be = *kg_backend_cpu_variant(0);
    struct kg_bench_report r = brief_report(NULL, &be, KG_BF16);
    unsigned char slab[1];
    struct kg_err err;

    (void)state;
    r.slab = slab; /* never read */
    r.ceiling_time = 1e-12;
    be.peak = count_peak;
    be.matmul = count_product;
    be.get = count_get;
    for (int host = 0; host < 2; host++)
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            double best = 0;

            be.host_memory = host;
            memset(r.known, 0, sizeof r.known);
            peaks = products = gets = 0;
            for (int again = 0; again < 3; again++)
                assert_int_equal(kg_bench_raise(&best, &r, kinds[i].kind, &err), KG_OK);
            assert_int_equal(*kinds[i].counted, host ? 6 : 1 + 20);
            assert_int_equal(gets, host ? 6 : 2);
            assert_true(best > 0);
        }
}

/* The ceiling of a run is the loop in registers, not a product of kedge's own; a backend
 * without such a loop uses a product. */
static void the_ceiling_of_a_run_is_the_registers(void **state)
{
    const int threads = kg_threads_get();
    struct kg_backend be = *kg_backend_cpu_variant(0);
    struct kg_err err;
    double flops;

    (void)state;
    peaks = products = 0;
    be.peak = count_peak;
    be.matmul = count_product;
    kg_threads_set(threads + 1); /* not the number that was measured before */
    assert_int_equal(kg_bench_compute_flops(&flops, &be, KG_BF16, &err), KG_OK);
    assert_int_equal(peaks % 4, 0);
    assert_int_equal(products, 0);
    /* the fake loop takes no time, so the count grows to its maximum */
    assert_true(most_flops >= 1e14 && most_flops < 1e15);
    peaks = 0;
    be.peak = NULL;
    kg_threads_set(threads + 2);
    assert_int_equal(kg_bench_compute_flops(&flops, &be, KG_BF16, &err), KG_OK);
    assert_int_equal(peaks, 0);
    assert_int_equal(products, 4);
    kg_threads_set(threads);
}

static void an_unknown_benchmark_lists_the_valid_ones(void **state)
{
    struct kg_str out = {0};
    struct kg_err err;

    (void)state;
    assert_int_equal(
        kg_bench_run(&out, &(struct kg_bench_opts){.name = "decde", .be = backend()},
                     &err),
        KG_ENOTFOUND);
    for (const struct kg_bench_row *row = kg_bench_table(); row->name; row++)
        assert_non_null(strstr(err.message, row->name));
    assert_non_null(strstr(err.message, "'decde'"));
    kg_str_release(&out);
}

/* Runs the training benchmark with completions and with a tool.   returns 0 */
static int time_training(struct kg_ranks *ranks, void *unused)
{
    const struct kg_bench_async_size size = {
        .steps = 2, .rounds = 1, .prompts = 2, .hidden = 32, .layers = 1};
    static const char *const names[] = {"training, max_staleness 2, lengths of 1 to 160",
                                        "training, max_staleness 2, a tool of 200 ms"};
    struct kg_str out = {0};
    struct kg_bench_report r = {
        .out = &out, .be = backend(), .ranks = ranks, .ct = KG_F32, .json = true};
    struct kg_err err = {0};
    const char *at;

    (void)unused;
    if (ranks)
        kg_threads_set(1); /* a forked child has no other threads */
    if (kg_bench_async_of(&r, &size, &err) != KG_OK)
        fail_msg("%s", err.message);
    at = kg_str_text(&out);
    for (int i = 0; i < 2; i++) {
        at = strstr(at, names[i]);
        assert_non_null(at);
        assert_non_null(strstr(at, "\"of\": \"max_staleness 0\""));
    }
    kg_str_release(&out);
    return 0;
}

static void training_that_spans_versions_is_timed(void **state)
{
    (void)state;
    assert_int_equal(time_training(NULL, NULL), 0);
    ranks_end_well(2, time_training, NULL, "a rollout rank and a trainer");
}

/* The host cannot read the device's memory, so its rate is that of copies. */
static void a_device_has_ceilings(void **state)
{
    const struct kg_backend *far;
    struct kg_str out = {0};
    struct kg_bench_report r;
    struct kg_err err;

    (void)state;
    assert_int_equal(kg_backend_open(&far, "far", &err), KG_OK);
    r = brief_report(&out, far, KG_F32);
    if (kg_bench_ceilings(&r, &err) != KG_OK)
        fail_msg("%s", err.message);
    assert_non_null(strstr(kg_str_text(&out), "best product fp32"));
    assert_non_null(strstr(kg_str_text(&out), "memory copied"));
    assert_null(strstr(kg_str_text(&out), "memory read"));
    kg_buf_free(far, r.slab);
    kg_str_release(&out);
}

/* Each operation has a row, and the head and the optimizer have bars. */
static void operations_are_measured_one_by_one(void **state)
{
    static const struct kg_bench_ops_sizes tiny = {
        .rows = {1, 2, 3, 4},
        .head_rows = 5,
        .vocab = 600,
        .sequences = 2,
        .length = 17,
        .weights = 1000,
        .repeats = 1,
        .layers = 1,
        .widths = 1,
    };
    static const char *const names[] = {
        "product, 4 rows, W 896 x 896",
        "attention forward, head size 128, 2 x 17 tokens",
        "attention backward, head size 128, 2 x 17 tokens",
        "head forward, V 600, D 896, 5 rows",
        "head backward, V 600, D 896, 5 rows",
        "adamw, 1000 weights",
    };
    struct kg_str out = {0};
    struct kg_bench_report r = brief_report(&out, backend(), KG_BF16);
    struct kg_err err;
    int rows = 0;

    (void)state;
    r.json = true;
    if (kg_bench_ops_of(&r, &tiny, &err) != KG_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strstr(kg_str_text(&out), names[i]))
            fail_msg("expected \"%s\" in \"%s\"", names[i], kg_str_text(&out));
    for (const char *at = kg_str_text(&out); (at = strstr(at, "\"ceiling\": ")); at++)
        rows += strtod(at + 11, NULL) > 0;
    assert_int_equal(rows, 4 + 2 + 2 + 1);
    assert_non_null(strstr(kg_str_text(&out), "\"at_least\": 0.85"));
    assert_non_null(strstr(kg_str_text(&out), "\"at_least\": 0.7"));
    kg_buf_free(r.be, r.slab);
    kg_str_release(&out);
}

static const struct kg_bench_shape tiny_shape = {.name = "tiny",
                                                 .hidden = 32,
                                                 .ffn = 64,
                                                 .layers = 1,
                                                 .heads = 2,
                                                 .kv_heads = 1,
                                                 .vocab = 300};

/* A report on emulated kernels. */
static struct kg_bench_report report_on_a_device(struct kg_str *out)
{
    struct kg_bench_report r = {.ct = KG_BF16, .out = out};
    struct kg_err err;

    if (!kg_emu_open) {
        print_message("skip: kernels are not emulated here\n");
        skip();
    }
    assert_int_equal(kg_emu_open(&r.be, &err), KG_OK);
    return r;
}

/* The traffic printed is what was planned: no more copies and waits, bytes at most 2 %
 * more (pieces are rounded up), and at least `share` of the plan. */
static void moves_what_is_planned(const struct kg_str *out, double share)
{
    double up, down, ups, downs, waits, planned[5];
    const char *at = strstr(kg_str_text(out), ", bus ");

    assert_non_null(at);
    assert_int_equal(sscanf(at,
                            ", bus %lf bytes up and %lf down a token, %lf and %lf copies "
                            "and %lf waits a step; planned %lf and %lf and %lf and %lf "
                            "and %lf",
                            &up, &down, &ups, &downs, &waits, &planned[0], &planned[1],
                            &planned[2], &planned[3], &planned[4]),
                     10);
    if (up > 1.02 * planned[0] || up < share * planned[0] || down > 1.02 * planned[1] ||
        down < share * planned[1] || ups > planned[2] || downs > planned[3] ||
        waits > planned[4])
        fail_msg("%s", kg_str_text(out));
}

/* Traffic of the model's start is not counted. */
static void a_decode_step_moves_what_is_planned(void **state)
{
    struct kg_str out = {0};
    struct kg_bench_report r = report_on_a_device(&out);
    struct kg_model *m;
    struct kg_err err;

    (void)state;
    if (kg_bench_model(&m, &r, &tiny_shape, false, &err) != KG_OK ||
        kg_bench_decode_bus(&r, m, 16, 9, &err) != KG_OK)
        fail_msg("%s", err.message);
    moves_what_is_planned(&out, 0.5);
    kg_model_free(m);
    kg_str_release(&out);
}

static void a_training_step_moves_what_is_planned(void **state)
{
    struct kg_str out = {0};
    struct kg_bench_report r = report_on_a_device(&out);
    struct kg_err err;

    (void)state;
    if (kg_bench_train_bus(&r, &tiny_shape, 2, 64, &err) != KG_OK)
        fail_msg("%s", err.message);
    moves_what_is_planned(&out, 0.9);
    kg_str_release(&out);
}

/* A model with experts uses as many parameters per token as a dense one, plus its
 * router. */
static void parameters_of_a_token_are_its_experts(void **state)
{
    struct kg_bench_shape shape = {
        .hidden = 32, .ffn = 64, .layers = 2, .heads = 2, .kv_heads = 1, .vocab = 300};
    const struct kg_bench_report r = {.ct = KG_F32, .be = backend()};
    struct kg_model *dense, *experts;
    struct kg_err err;

    (void)state;
    assert_int_equal(kg_bench_model(&dense, &r, &shape, false, &err), KG_OK);
    shape.experts = 8;
    shape.per_token = 2;
    assert_int_equal(kg_bench_model(&experts, &r, &shape, false, &err), KG_OK);
    assert_true(kg_bench_parameters(experts) ==
                kg_bench_parameters(dense) + 2.0 * 8 * 32);
    kg_model_free(dense);
    kg_model_free(experts);
}

/* Amount of work of a part (seconds times rate), and its share of the step, from its
 * row. */
static double work_of_part(double *share, const char *text, const char *part)
{
    char name[64];
    double seconds, best;
    const char *at;

    snprintf(name, sizeof name, "{\"name\": \"%s\", \"seconds\"", part);
    at = strstr(text, name);
    if (!at)
        fail_msg("no row of %s in\n%s", part, text);
    assert_int_equal(sscanf(at + strlen(name),
                            ": %lf, \"share_of_step\": %lf, \"best\": %lf", &seconds,
                            share, &best),
                     3);
    return seconds * best;
}

/* Times depend on the machine, work does not: gradients of inputs and of weights multiply
 * as much as the forward, the head's backward three times as much as its forward,
 * attention's 2.5 times. */
static void a_training_step_is_taken_apart(void **state)
{
    static const char *const parts[] = {"x W^T",
                                        "dy W",
                                        "dy^T x",
                                        "head",
                                        "head, backward",
                                        "attention",
                                        "attention, backward",
                                        "norms",
                                        "rope",
                                        "activations, biases",
                                        "embedding",
                                        "casts, weights packed",
                                        "optimizer",
                                        "copies, zeros, sums"};
    enum { N = sizeof parts / sizeof *parts };
    const struct kg_backend *cpu = kg_backend_cpu_variant(0);
    struct kg_str out = {0};
    struct kg_bench_report r = brief_report(&out, kg_bench_timed(cpu), KG_BF16);
    double work[N], share, all = 0;
    struct kg_err err;

    (void)state;
    r.json = true;
    if (kg_bench_train_parts_of(&r, &tiny_shape, 2, 32, &err) != KG_OK)
        fail_msg("%s", err.message);
    for (int i = 0; i < N; i++) {
        work[i] = work_of_part(&share, kg_str_text(&out), parts[i]);
        all += share;
        assert_true(work[i] > 0);
    }
    assert_true(all < 1.01);
    assert_true(fabs(work[1] / work[0] - 1) < 0.01);
    assert_true(fabs(work[2] / work[0] - 1) < 0.01);
    assert_true(fabs(work[4] / work[3] - 3) < 0.03);
    assert_true(fabs(work[6] / work[5] - 2.5) < 0.03);
    kg_buf_free(cpu, r.slab);
    kg_str_release(&out);
}

/* Steps of one, few and many sequences. Every part is listed, its work is proportional to
 * the number of sequences, and sampling reads every logit. */
static void a_decode_step_is_taken_apart(void **state)
{
    static const char *const parts[] = {"x W^T",
                                        "head",
                                        "attention",
                                        "norms",
                                        "rope",
                                        "activations, biases",
                                        "embedding",
                                        "casts, weights packed",
                                        "copies, zeros, sums",
                                        "drawing tokens"};
    enum { N = sizeof parts / sizeof *parts };
    static const int batches[] = {1, 3, 8, 40};
    const struct kg_backend *cpu = kg_backend_cpu_variant(0);
    double share, one[N];
    struct kg_err err;

    (void)state;
    for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
        struct kg_str out = {0};
        struct kg_bench_report r = brief_report(&out, kg_bench_timed(cpu), KG_BF16);

        r.json = true;
        if (kg_bench_decode_parts_of(&r, &tiny_shape, batches[b], 6, &err) != KG_OK)
            fail_msg("%s", err.message);
        for (int i = 0; i < N; i++) {
            double work = work_of_part(&share, kg_str_text(&out), parts[i]);

            assert_true(share > 0 && share < 1.01);
            one[i] = b == 0 ? work : one[i];
            assert_true(fabs(work / one[i] / batches[b] - 1) < 0.01);
        }
        kg_buf_free(cpu, r.slab);
        kg_str_release(&out);
    }
}

static void only_the_cpu_takes_a_step_apart(void **state)
{
    static const char *const names[] = {"decode", "prefill", "train", "head"};
    struct kg_bench_opts opts = {.ct = KG_F32, .parts = true};
    struct kg_str out = {0};
    struct kg_err err = {0};
    char expected[80];

    (void)state;
    assert_int_equal(kg_backend_open(&opts.be, "far", &err), KG_OK);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        opts.name = names[i];
        assert_int_equal(kg_bench_run(&out, &opts, &err), KG_EUNSUPPORTED);
        snprintf(expected, sizeof expected, "%s --parts: expected the CPU, found far",
                 names[i]);
        assert_string_equal(err.message, expected);
    }
    kg_str_release(&out);
}

/* Every multiply-add counts itself in a sum, so a skipped turn of the loop shows in the
 * result. The speed of the loop is not tested. */
static void the_loop_in_registers_does_what_it_is_asked(void **state)
{
    static const double asked[] = {1, 1e3, 1e5, 1e6, 3e6 + 1, 1e7, 2e7, 33554432};
    const struct kg_backend *be;

    (void)state;
    for (int v = 0; (be = kg_backend_cpu_variant(v)); v++)
        for (enum kg_dtype t = KG_F32; t <= KG_BF16; t++) {
            const double turn = be->peak(t, 0); /* one turn of each kind */

            assert_true(turn >= 256 * 2.0 * 16 * 4);
            assert_true(fmod(turn, 256 * 2.0 * 16) == 0);
            for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
                assert_true(be->peak(t, asked[i]) == turn * (floor(asked[i] / turn) + 1));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_that_spans_versions_is_timed),
        cmocka_unit_test(best_and_median_do_not_depend_on_the_order),
        cmocka_unit_test(a_rate_below_its_bar_is_not_met),
        cmocka_unit_test(what_must_be_read_bounds_a_rate),
        cmocka_unit_test(memory_above_its_bar_is_not_met),
        cmocka_unit_test(rows_are_json_objects),
        cmocka_unit_test(an_unknown_benchmark_lists_the_valid_ones),
        cmocka_unit_test(a_device_has_ceilings),
        cmocka_unit_test(a_decode_step_moves_what_is_planned),
        cmocka_unit_test(a_training_step_moves_what_is_planned),
        cmocka_unit_test(operations_are_measured_one_by_one),
        cmocka_unit_test(parameters_of_a_token_are_its_experts),
        cmocka_unit_test(a_training_step_is_taken_apart),
        cmocka_unit_test(a_decode_step_is_taken_apart),
        cmocka_unit_test(only_the_cpu_takes_a_step_apart),
        cmocka_unit_test(a_row_that_nobody_has_is_an_error),
        cmocka_unit_test(rows_are_chosen_by_a_part_of_their_name),
        cmocka_unit_test(the_bar_of_a_product_is_its_instruction_s),
        cmocka_unit_test(a_device_s_ceiling_is_measured_once),
        cmocka_unit_test(the_ceiling_of_a_run_is_the_registers),
        cmocka_unit_test(the_loop_in_registers_does_what_it_is_asked),
    };

    return cmocka_run_group_tests_name("bench/bench", tests, NULL, NULL);
}
