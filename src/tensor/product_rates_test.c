/* How fast products of bf16 are on a device, each kind for layers of 0.5B and 7B models,
 * and attention in both directions: one line each, for tools/gpu-check. Elsewhere, small
 * products run. */
#include "tensor/attention_testing.h"

#include "base/clock.h"

static struct kg_err err;

struct shape {
    int64_t rows, n, k; /* of x (rows, k); W (n, k) */
};

/* Numbers with many set bits: a device computes zeros faster. */
static struct kg_mat numbers(int64_t rows, int64_t cols)
{
    struct kg_mat m = matrix(KG_BF16, rows, cols);
    uint16_t *x = m.data;
    uint32_t state = 1;

    for (int64_t i = 0; i < rows * cols; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (uint16_t)((state >> 16 & 0x83ffu) + (119u << 7));
    }
    return m;
}

struct some {
    struct kg_mat c, a, b;
    enum kg_matmul_kind kind;
    int times;
};

static kg_status multiply(void *arg, struct kg_err *e)
{
    const struct some *s = arg;

    for (int i = 0; i < s->times; i++)
        KG_TRY(kg_op_matmul(backend(), s->c, s->a, s->b, s->kind, true, e));
    return KG_OK;
}

/* Seconds of one of `times`, in a record: the first call chooses plans, the second
 * records, later ones replay. */
static double seconds_of(kg_status (*body)(void *arg, struct kg_err *err), void *arg,
                         int times, const void *out)
{
    static uint64_t key;
    double before = 0;
    float back;

    key++;
    for (int call = 0; call < 4; call++) {
        before = kg_clock_seconds();
        if (kg_op_replay(backend(), key, body, arg, &err) != KG_OK)
            fail_msg("%s", err.message);
        assert_int_equal(kg_buf_get(backend(), &back, out, sizeof back, &err), KG_OK);
    }
    return (kg_clock_seconds() - before) / times;
}

/* The three products of a layer's x, W and y. */
static void measure(struct shape s)
{
    static const char *const names[] = {"x W^T", "dy W", "dy^T x"};
    const struct kg_mat x = numbers(s.rows, s.k), w = numbers(s.n, s.k);
    const struct kg_mat y = numbers(s.rows, s.n);

    for (int kind = KG_MATMUL_NT; kind <= KG_MATMUL_TN; kind++) {
        const bool nt = kind == KG_MATMUL_NT, tn = kind == KG_MATMUL_TN;
        struct some some = {matrix(KG_F32, tn ? s.n : s.rows, nt ? s.n : s.k), nt ? x : y,
                            tn ? x : w, (enum kg_matmul_kind)kind, on_device() ? 20 : 1};
        const double seconds = seconds_of(multiply, &some, some.times, some.c.data);

        print_message("rate: %s, %lld rows, W %lld x %lld|%.4g\n", names[kind],
                      (long long)s.rows, (long long)s.n, (long long)s.k,
                      2e-12 * (double)(s.rows * s.n * s.k) / seconds);
        buffer_free(some.c.data);
    }
    buffer_free(x.data);
    buffer_free(w.data);
    buffer_free(y.data);
}

static void products_are_timed(void **state)
{
    static const struct shape layers[] = {
        {8192, 896, 896},    {8192, 4864, 896},  {8192, 896, 4864},  {8192, 18944, 3584},
        {8192, 3584, 18944}, {512, 18944, 3584}, {512, 3584, 18944}, {512, 4864, 896}};
    const size_t n = on_device() ? sizeof layers / sizeof *layers : 1;
    char text[256];

    (void)state;
    backend()->describe(text, sizeof text);
    print_message("rates of: %s\n", text);
    for (size_t i = 0; i < n; i++)
        measure(on_device() ? layers[i] : (struct shape){72, 136, 40});
}

/* ---- attention ---- */
struct passes {
    struct kg_attn a;
    struct answer out;
    struct kg_mat dout, dq, dk, dv;
    int times;
};

static kg_status attend_all(void *arg, struct kg_err *e)
{
    const struct passes *f = arg;

    for (int i = 0; i < f->times; i++)
        KG_TRY(kg_op_attention(backend(), f->out.o, lse_of(&f->out, &f->a), &f->a, e));
    return KG_OK;
}

static kg_status go_back_all(void *arg, struct kg_err *e)
{
    const struct passes *f = arg;

    for (int i = 0; i < f->times; i++)
        KG_TRY(kg_op_attention_bwd(backend(), f->dq, f->dk, f->dv, f->dout, f->out.o,
                                   lse_of(&f->out, &f->a), &f->a, e));
    return KG_OK;
}

/* Counts what a query and a key that it sees multiply: two products forward, five
 * backward.
 */
static void measure_attention(int heads, int kv_heads, int hd, int n_seqs, int length)
{
    struct problem p = {KG_BF16, .heads = heads, .kv_heads = kv_heads, .hd = hd,
                        .n_seqs = n_seqs};

    for (int s = 0; s < n_seqs; s++)
        p.lengths[s] = length;
    problem_init(&p);
    struct passes f = {attn_of(&p),
                       answer_init(&p, p.n),
                       numbers(p.n, p.q.cols),
                       matrix(KG_F32, p.n, p.q.cols),
                       matrix(KG_F32, p.n, p.k.cols),
                       matrix(KG_F32, p.n, p.k.cols),
                       on_device() ? 20 : 1};
    const double pairs = (double)n_seqs * length * (length + 1) / 2;
    const double work = 2e-12 * pairs * heads * hd;

    print_message("rate: attention forward, head size %d, %d x %d tokens|%.4g\n", hd,
                  n_seqs, length,
                  2 * work / seconds_of(attend_all, &f, f.times, f.out.o.data));
    print_message("rate: attention backward, head size %d, %d x %d tokens|%.4g\n", hd,
                  n_seqs, length,
                  5 * work / seconds_of(go_back_all, &f, f.times, f.dq.data));
    answer_release(&f.out);
    buffer_free(f.dout.data);
    buffer_free(f.dq.data);
    buffer_free(f.dk.data);
    buffer_free(f.dv.data);
    problem_release(&p);
}

static void attention_is_timed(void **state)
{
    (void)state;
    if (!on_device()) {
        measure_attention(2, 1, 64, 1, 130);
        return;
    }
    measure_attention(28, 4, 128, 4, 2048);
    measure_attention(28, 4, 128, 1, 8192);
    measure_attention(14, 2, 64, 4, 2048);
    measure_attention(14, 2, 64, 8, 512);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(products_are_timed),
                                       cmocka_unit_test(attention_is_timed)};

    setenv("KEDGE_TEST_PRODUCTS", "own", 0);
    return RUN_EMULATED(tests, NULL, NULL);
}
