/* Weights of 4 and 8 bits have the bits of the same weights in bf16: in every product, on
 * every instruction set that this machine runs, for any number of rows and threads.
 */
#include "tensor/coded.h"

#include "base/sanitized_testing.h"
#include "tensor/matrix_testing.h"
#include "tensor/selfcheck.h"

#include <math.h>
#include <omp.h>

static struct kg_err err;

static const char *const types[] = {"Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"};
enum { N_TYPES = sizeof types / sizeof *types };

/* Writes a scale: any finite fp16, of any sign and size. */
static void set_half(unsigned char *at)
{
    const uint16_t nasty[] = {0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x7bff, 0xfbff};
    const uint32_t u = (uint32_t)(int32_t)(uniform() * 32767) & 0xffffu;
    uint16_t h = (uint16_t)((u & 0x8fffu) | 0x2000u);

    h = uniform() > 0.6 ? nasty[u % 8] : h;
    memcpy(at, &h, sizeof h);
}

static void random_block(const struct kg_quant *q, unsigned char *block)
{
    for (int i = 0; i < q->bytes; i++)
        block[i] = (unsigned char)(int)(uniform() * 128 + 128);
    set_half(strcmp(q->name, "Q6_K") == 0 ? block + 208 : block);
    if (q->form.low)
        set_half(block + 2);
}

/* One matrix as panels of codes, as panels of bf16, and as rows. */
struct both {
    struct kg_mat coded, plain;
    struct kg_mat rows; /* bf16, as a reader of blocks rounds it */
};

static void both_init(struct both *b, const struct kg_backend *be, const char *type,
                      int64_t rows, int64_t cols)
{
    const struct kg_quant *q = kg_quant_named(type);
    unsigned char *blocks = block_of(cols / q->values, (size_t)q->bytes);

    b->rows = kg_mat(block_of(rows * cols, 2), KG_BF16, rows, cols);
    b->coded = b->plain = kg_panels(be->weights, NULL, KG_BF16, rows, cols);
    b->coded.quant = q;
    b->plain.data = kg_buf_alloc(be, kg_mat_bytes(b->plain), "test", &err);
    b->coded.data = kg_buf_alloc(be, kg_mat_bytes(b->coded), "test", &err);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < cols / q->values; i++) {
            float x[KG_QUANT_MAX];

            random_block(q, blocks + i * q->bytes);
            q->widen(x, blocks + i * q->bytes);
            for (int k = 0; k < q->values; k++)
                set(b->rows, r, i * q->values + k, (double)x[k]);
        }
        assert_int_equal(kg_coded_put(b->coded, r, blocks, &err), KG_OK);
    }
    assert_int_equal(kg_op_cast(be, b->plain, b->rows, &err), KG_OK);
    kg_mem_free(blocks);
}

static void both_release(struct both *b, const struct kg_backend *be)
{
    kg_mem_free(b->rows.data);
    kg_buf_free(be, b->plain.data);
    kg_buf_free(be, b->coded.data);
}

/* ---- one operation on both ---- */
/* An operation with a weight. x: activations; out: room for the result. */
struct op {
    const char *name;
    void (*run)(const struct kg_backend *be, struct kg_mat out, struct kg_mat weight,
                struct kg_mat x, enum kg_dtype to);
};

static void must(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

static struct kg_mat part(struct kg_mat m, enum kg_dtype t, int64_t rows, int64_t cols)
{
    return kg_mat(m.data, t, rows, cols);
}

static void forward(const struct kg_backend *be, struct kg_mat out, struct kg_mat weight,
                    struct kg_mat x, enum kg_dtype to)
{
    must(kg_op_matmul(be, part(out, to, x.rows, weight.rows),
                      part(x, KG_BF16, x.rows, weight.cols), weight, KG_MATMUL_NT, false,
                      &err));
}

/* Accumulates, with the weight's rows from the second panel on. */
static void added(const struct kg_backend *be, struct kg_mat out, struct kg_mat weight,
                  struct kg_mat x, enum kg_dtype to)
{
    const int64_t n = weight.rows > 16 ? weight.rows - 16 : weight.rows;

    (void)to;
    must(kg_op_matmul(be, part(out, KG_F32, x.rows, n),
                      part(x, KG_BF16, x.rows, weight.cols),
                      kg_mat_rows(weight, weight.rows - n, n), KG_MATMUL_NT, true, &err));
}

static void backward(const struct kg_backend *be, struct kg_mat out, struct kg_mat weight,
                     struct kg_mat x, enum kg_dtype to)
{
    must(kg_op_matmul(be, part(out, to, x.rows, weight.cols),
                      part(x, KG_BF16, x.rows, weight.rows), weight, KG_MATMUL_NN, false,
                      &err));
}

/* With an adapter of rank 5, whose factors are bf16. */
static void adapted(const struct kg_backend *be, struct kg_mat out, struct kg_mat weight,
                    struct kg_mat x, enum kg_dtype to, enum kg_matmul_kind kind)
{
    const bool nt = kind == KG_MATMUL_NT;
    const int64_t n = nt ? weight.rows : weight.cols, k = nt ? weight.cols : weight.rows;
    const struct kg_mat b = part(x, KG_BF16, nt ? n : 5, nt ? 5 : n);
    const struct kg_factors f[2] = {{part(x, KG_BF16, x.rows, k), weight},
                                    {part(x, KG_BF16, x.rows, 5), b}};
    struct kg_mat c = part(out, to, x.rows, n), wide = c;

    wide.data = block_of(x.rows * n, sizeof(float));
    wide.dtype = KG_F32;
    must(kg_op_matmul_two(be, c, f, to == KG_F32 ? c : wide, kind, false, &err));
    kg_mem_free(wide.data);
}

static void forward_adapted(const struct kg_backend *be, struct kg_mat out,
                            struct kg_mat weight, struct kg_mat x, enum kg_dtype to)
{
    adapted(be, out, weight, x, to, KG_MATMUL_NT);
}

static void backward_adapted(const struct kg_backend *be, struct kg_mat out,
                             struct kg_mat weight, struct kg_mat x, enum kg_dtype to)
{
    adapted(be, out, weight, x, to, KG_MATMUL_NN);
}

/* Three products at once. */
static void shared(const struct kg_backend *be, struct kg_mat out, struct kg_mat weight,
                   struct kg_mat x, enum kg_dtype to)
{
    const int64_t n = x.rows * weight.rows * (int64_t)kg_dtype_traits(to)->bytes;
    struct kg_product p[3];

    for (int i = 0; i < 3; i++) {
        p[i] = (struct kg_product){part(out, to, x.rows, weight.rows), weight};
        p[i].c.data = (char *)out.data + i * n;
    }
    must(kg_op_matmul_shared(be, p, 3, part(x, KG_BF16, x.rows, weight.cols), &err));
}

static void embedded(const struct kg_backend *be, struct kg_mat out, struct kg_mat weight,
                     struct kg_mat x, enum kg_dtype to)
{
    int32_t *tokens = block_of(x.rows, sizeof *tokens);

    (void)to;
    for (int64_t i = 0; i < x.rows; i++)
        tokens[i] = (int32_t)(i * 7 % weight.rows);
    must(kg_op_embed(be, part(out, KG_F32, x.rows, weight.cols), weight,
                     kg_ivec(tokens, x.rows), &err));
    kg_mem_free(tokens);
}

static void unpacked(const struct kg_backend *be, struct kg_mat out, struct kg_mat weight,
                     struct kg_mat x, enum kg_dtype to)
{
    (void)x;
    must(kg_op_cast(be, part(out, to, weight.rows, weight.cols), weight, &err));
}

static void read_one_by_one(const struct kg_backend *be, struct kg_mat out,
                            struct kg_mat weight, struct kg_mat x, enum kg_dtype to)
{
    (void)be, (void)x, (void)to;
    kg_mat_read(out.data, weight, 3, weight.rows * weight.cols - 3);
}

/* Two experts with the same matrix, on a third and on two thirds of the rows. */
static void of_experts(const struct kg_backend *be, struct kg_mat out,
                       struct kg_mat weight, struct kg_mat x, enum kg_dtype to)
{
    const int32_t first[3] = {0, (int32_t)(x.rows / 3), (int32_t)x.rows};
    const struct kg_groups g = {first, 2, 0};

    must(kg_op_matmul_groups(be, part(out, to, x.rows, weight.rows),
                             part(x, KG_BF16, x.rows, weight.cols), weight, &g,
                             KG_MATMUL_NT, false, &err));
}

/* Log-probs, and the gradient of hidden states. */
static void headed(const struct kg_backend *be, struct kg_mat out, struct kg_mat weight,
                   struct kg_mat x, enum kg_dtype to)
{
    const int64_t n = x.rows;
    int32_t *target = block_of(n, sizeof *target);
    double *lse = block_of(2 * n, sizeof *lse), *a = lse + n;
    float *logp = (float *)out.data + n * weight.cols; /* (n) */
    const struct kg_head h = {
        .hidden = part(x, KG_BF16, n, weight.cols), .weight = weight, .target = target};
    const struct kg_head_out o = {.lse = lse, .logp = logp};
    const struct kg_head_grad g = {
        .lse = lse, .a_target = a, .dhidden = part(out, KG_F32, n, weight.cols)};

    (void)to;
    for (int64_t i = 0; i < n; i++) {
        target[i] = (int32_t)(i % weight.rows);
        a[i] = 0.5 - (double)(i % 3);
    }
    must(kg_op_head(be, &o, &h, &err));
    must(kg_op_head_bwd(be, &g, &h, &err));
    kg_mem_free(target);
    kg_mem_free(lse);
}

static const struct op ops[] = {
    {"x W^T", forward},
    {"x W^T of some rows, added", added},
    {"dy W", backward},
    {"x W^T beside an adapter", forward_adapted},
    {"dy W beside an adapter", backward_adapted},
    {"three products of one operand", shared},
    {"embedding", embedded},
    {"cast", unpacked},
    {"elements", read_one_by_one},
    {"experts", of_experts},
    {"head", headed},
};

static void equal_on(const struct kg_backend *be, const struct op *op,
                     const struct both *b, struct kg_mat x)
{
    const int64_t n = b->rows.rows, k = b->rows.cols;
    const int64_t most = n > k ? n : k;
    const int64_t room = 3 * x.rows * most + n * k + x.rows;
    struct kg_mat want = kg_mat(block_of(room, 4), KG_F32, room, 1);
    struct kg_mat got = kg_mat(block_of(room, 4), KG_F32, room, 1);

    for (enum kg_dtype to = KG_F32; to <= KG_BF16; to++) {
        op->run(be, want, b->plain, x, to);
        op->run(be, got, b->coded, x, to);
        if (memcmp(want.data, got.data, (size_t)room * 4) != 0) {
            char text[128];

            be->describe(text, sizeof text);
            fail_msg("%s: %s, %s of %lld x %lld, %lld rows to %s: other bits than bf16",
                     text, op->name, b->coded.quant->name, (long long)n, (long long)k,
                     (long long)x.rows, kg_dtype_traits(to)->name);
        }
    }
    kg_mem_free(want.data);
    kg_mem_free(got.data);
}

/* Values of many magnitudes. */
static struct kg_mat activations(int64_t rows, int64_t cols)
{
    enum { ADAPTERS = 5 }; /* rows that follow */
    struct kg_mat x = kg_mat(block_of((rows + ADAPTERS) * cols, 2), KG_BF16, rows, cols);

    for (int64_t i = 0; i < (rows + ADAPTERS) * cols; i++)
        set(x, i / cols, i % cols, ldexp(uniform(), -(int)(i * 31 % 23) * 5));
    return x;
}

static void all_equal(const struct kg_backend *be, const char *type, int64_t n, int64_t k,
                      int64_t most)
{
    static const int64_t rows[] = {1, 2, 3,  4,  5,
                                   8, 9, 17, 40, 300}; /* of 1 to 2 blocks */
    struct both b;

    both_init(&b, be, type, n, k);
    for (size_t r = 0; r < sizeof rows / sizeof *rows && rows[r] <= most;
         r += 1 + SANITIZED) {
        const struct kg_mat x = activations(rows[r], n > k ? n : k);

        for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
            equal_on(be, &ops[i], &b, x);
        kg_mem_free(x.data);
    }
    both_release(&b, be);
}

static void every_operation_has_the_bits_of_bf16_on_every_instruction_set(void **state)
{
    static const int64_t shapes[][2] = {{16, 256}, {51, 512}, {40, 1280}};

    (void)state;
    random_state = 11;
    omp_set_num_threads(1);
    for (int v = 0; kg_backend_cpu_variant(v); v++)
        for (int t = 0; t < N_TYPES; t++)
            for (int s = 0; s < 3; s++)
                all_equal(kg_backend_cpu_variant(v), types[t], shapes[s][0], shapes[s][1],
                          s == 2 && t == 0 ? 300 : 17);
}

static void threads_change_no_bit(void **state)
{
    (void)state;
    random_state = 12;
    for (int threads = 1; threads <= 4; threads++) {
        omp_set_num_threads(threads);
        all_equal(kg_backend_cpu_variant(0), types[threads], 290, 512, 9);
    }
    omp_set_num_threads(1);
}

/* Numbers of columns that are multiples of 32 but not of 256. */
static void rows_need_no_more_than_whole_blocks(void **state)
{
    (void)state;
    random_state = 14;
    for (int64_t k = 32; k <= 352; k += 160)
        for (int t = 0; t < 3; t++)
            all_equal(kg_backend_cpu_variant(0), types[t], 33, k, 5);
}

/* The layout of tile registers, which this machine may not have: elements in order. */
static void panels_in_order_hold_the_same_elements(void **state)
{
    struct kg_backend be = *kg_backend_cpu_variant(0);

    (void)state;
    random_state = 13;
    be.weights = KG_PANELS;
    for (int t = 0; t < N_TYPES; t++) {
        uint16_t *got = block_of(33 * 512, sizeof *got);
        struct both b;

        both_init(&b, &be, types[t], 33, 512);
        kg_mat_read(got, b.coded, 0, 33 * 512);
        assert_memory_equal(got, b.rows.data, 33 * 512 * sizeof *got);
        kg_mem_free(got);
        both_release(&b, &be);
    }
}

static void panels_take_half_or_a_quarter(void **state)
{
    static const double bits[N_TYPES] = {8.5, 4.5, 5, 4.625, 8.5625};

    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        struct kg_mat m = kg_panels(KG_SPLIT_PANELS, NULL, KG_BF16, 4096, 4096);

        m.quant = kg_quant_named(types[t]);
        assert_float_equal((double)kg_mat_bytes(m) * 8 / (4096.0 * 4096), bits[t], 1e-9);
    }
}

static void what_cannot_be_held_is_refused(void **state)
{
    const struct kg_backend *be = kg_backend_cpu_variant(0);
    struct kg_backend other = *be;
    struct both b;
    float x[32] = {0};

    (void)state;
    both_init(&b, be, "Q8_0", 16, 32);
    const struct kg_mat a = kg_mat(x, KG_BF16, 1, 32), c = kg_mat(x + 16, KG_F32, 1, 16);
    const unsigned char infinite[34] = {0, 0x7c}, nan[34] = {1, 0xfc};

    other.coded = false;
    assert_int_equal(kg_op_matmul(&other, c, a, b.coded, KG_MATMUL_NT, false, &err),
                     KG_EINVAL);
    assert_string_equal(err.message, "matmul NT: b is of Q8_0, expected elements");
    assert_int_equal(kg_op_cast(be, b.coded, b.rows, &err), KG_EINVAL);
    assert_string_equal(err.message, "cast: dst is of Q8_0, expected elements");
    assert_int_equal(kg_coded_put(b.coded, 0, infinite, &err), KG_ENONFINITE);
    assert_int_equal(kg_coded_put(b.coded, 7, nan, &err), KG_ENONFINITE);
    assert_non_null(strstr(err.message, "row 7"));
    both_release(&b, be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_has_the_bits_of_bf16_on_every_instruction_set),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(rows_need_no_more_than_whole_blocks),
        cmocka_unit_test(panels_in_order_hold_the_same_elements),
        cmocka_unit_test(panels_take_half_or_a_quarter),
        cmocka_unit_test(what_cannot_be_held_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
