/* Packs whose sequences begin with the same tokens, which are computed once. Rows have
 * the bits that they have in each sequence alone, and gradients equal the sums without
 * sharing. Device kernels give the CPU's bits of both; attention by the matrix
 * instruction keeps the bits of its own forward.
 */
#include "model/model_testing.h"
#include "model/rows.h"

#include <math.h>
#include <omp.h>

/* A prompt that ends within its second block of keys, completions of it, and one
 * unrelated sequence. */
enum { PROMPT = 70, LONGEST = 120, N_SEQS = 6, ROOM = 640 };

static const char *const names[] = {
    "gemma2",       "gemma3_text", "granite",       "llama",     "llama_bias",
    "llama_yarn",   "mistral",     "mixtral",       "olmo2",     "olmoe",
    "phi3",         "qwen2",       "phi3_longrope", "qwen2_moe", "qwen2_moe_window",
    "qwen2_window", "qwen3",       "qwen3_bias",    "qwen3_moe", "qwen3_moe_window",
    "smollm3"};
enum { N_NAMES = sizeof names / sizeof *names, NEXT_NAME = SANITIZED ? 4 : 1 };

/* Sequence s begins with the first `same` tokens of sequence `of`; its tokens from
 * `first` on are wanted. The last one is the third branch on its path. */
static const struct {
    int n, same, of, first;
} shapes[N_SEQS] = {
    {PROMPT + 9, 0, 0, PROMPT},
    {PROMPT + 31, PROMPT, 0, PROMPT},
    {40, 0, 2, 1},
    {PROMPT + 1, PROMPT, 0, PROMPT},
    {LONGEST, PROMPT + 20, 1, PROMPT + 15}, /* one more turn; 5 shared ones are wanted */
    {LONGEST - 3, LONGEST - 30, 4, LONGEST - 30},
};
enum { SAVED = PROMPT + PROMPT + (PROMPT + 15) + (LONGEST - 30) };

struct subject {
    const char *on; /* backend_name of its memory */
    struct kg_model *m;
    struct kg_rows *rows;
    int32_t tokens[N_SEQS][LONGEST];
    float *grads; /* (n_elements) */
    float logp[N_SEQS * LONGEST], entropy[N_SEQS * LONGEST];
    int64_t n_rows;
};

static struct kg_rows_seq seq_of(const struct subject *s, int i)
{
    return (struct kg_rows_seq){.tokens = s->tokens[i],
                                .n = (size_t)shapes[i].n,
                                .most = (size_t)shapes[i].first};
}

/* A reference model; or, with head_dim, a random one with such heads and a window that
 * ends within a block. */
static struct kg_model *opened(const char *dir, enum kg_dtype ct, int head_dim)
{
    const struct kg_model_opts opts = {.backend = backend(), .ct = ct, .trainable = true};
    struct kg_model_config c;
    struct kg_model *m = NULL;

    if (head_dim == 0) {
        NEED(kg_model_open(&m, dir, &opts, err));
        return m;
    }
    NEED(kg_model_config_read(&c, dir, err));
    c.head_dim = head_dim;
    c.window = c.window > 0 ? 40 : 0;
    c.init_range = 0.2f;
    NEED(kg_model_create(&m, &c, &opts, 5, err));
    return m;
}

static void subject_open(struct subject *s, const char *name, enum kg_dtype ct,
                         int head_dim, bool share, bool checkpoint)
{
    const struct kg_rows_opts opts = {
        .max_tokens = ROOM, .backward = true, .checkpoint = checkpoint, .share = share};
    char dir[128];
    snprintf(dir, sizeof dir, "tests/data/reference/%s", name);
    s->on = backend_name;
    s->m = opened(dir, ct, head_dim);
    for (int i = 0; i < N_SEQS; i++) {
        test_tokens(s->tokens[i], LONGEST, s->m->config.vocab, (uint32_t)i + 3);
        memcpy(s->tokens[i], s->tokens[shapes[i].of],
               (size_t)shapes[i].same * sizeof *s->tokens[i]);
    }
    NEED(kg_rows_create(&s->rows, s->m, &opts, err));
    s->grads = buffer_of(s->m->n_elements, sizeof *s->grads);
}

static void subject_close(struct subject *s)
{
    backend_name = s->on;
    buffer_free(s->grads);
    kg_rows_free(s->rows);
    kg_model_free(s->m);
}

static void pack(struct subject *s)
{
    kg_rows_begin(s->rows, s->m, 0);
    for (int i = 0; i < N_SEQS; i++) {
        const struct kg_rows_seq q = seq_of(s, i);
        assert_true(kg_rows_fits_seq(s->rows, &q));
        kg_rows_add_seq(s->rows, &q);
        for (int t = shapes[i].first; t < shapes[i].n; t++)
            kg_rows_want(s->rows, kg_rows_at(s->rows, (size_t)t - 1), s->tokens[i][t], 1,
                         NULL);
    }
}

/* Forward and backward of a loss that weights rows differently; overwrites s->grads. */
static void run(struct subject *s)
{
    const struct kg_rows_ask ask = {.entropy = true};
    struct kg_rows *p = s->rows;
    pack(s);
    NEED(kg_rows_forward(p, true, err));
    NEED(kg_rows_ask(p, &ask, err));
    s->n_rows = p->n_rows;
    for (int64_t i = 0; i < p->n_rows; i++) {
        s->logp[i] = p->logp[i];
        s->entropy[i] = p->entropy[i];
        p->a_logp[i] = (double)(i % 7 - 2) / (double)p->n_rows;
        p->a_entropy[i] = 0;
    }
    memset(s->grads, 0, (size_t)s->m->n_elements * sizeof *s->grads);
    NEED(kg_rows_backward(p, s->grads, false, err));
}

/* |a - b| / |b| */
static double distance(const struct subject *a, const struct subject *b)
{
    double off = 0, size = 0;
    for (int64_t i = 0; i < a->m->n_elements; i++) {
        const double d = (double)a->grads[i] - (double)b->grads[i];
        off += d * d;
        size += (double)b->grads[i] * (double)b->grads[i];
    }
    return sqrt(off / size);
}

static void compare(const char *name, enum kg_dtype ct, int head_dim, double most)
{
    struct subject alone, shared;
    double d;
    subject_open(&alone, name, ct, head_dim, false, true);
    subject_open(&shared, name, ct, head_dim, true, true);
    run(&alone);
    run(&shared);
    assert_int_equal(kg_rows_saved(alone.rows), 0);
    assert_int_equal(kg_rows_saved(shared.rows), SAVED);
    assert_int_equal(kg_rows_tokens(shared.rows), kg_rows_tokens(alone.rows) - SAVED);
    assert_int_equal(shared.n_rows, alone.n_rows);
    assert_memory_equal(shared.logp, alone.logp, (size_t)alone.n_rows * sizeof(float));
    assert_memory_equal(shared.entropy, alone.entropy,
                        (size_t)alone.n_rows * sizeof(float));
    d = distance(&shared, &alone);
    if (!(d < most && d > 0))
        fail_msg("%s: expected gradients %g apart at most, found %g", name, most, d);
    subject_close(&alone);
    subject_close(&shared);
}

static void rows_keep_their_bits_and_gradients_their_sums(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i += NEXT_NAME) {
        compare(names[i], KG_F32, 0, 2e-6);
        compare(names[i], KG_BF16, 0, 1e-2);
    }
}

/* Each layer keeps its buffers, or all layers share one set; 1 to 4 threads. */
static void neither_checkpointing_nor_threads_change_a_bit(void **state)
{
    const int before = omp_get_max_threads();
    (void)state;
    for (int i = 0; i < N_NAMES; i += SANITIZED ? 7 : 4) {
        struct subject a, b;
        subject_open(&a, names[i], KG_BF16, 0, true, true);
        subject_open(&b, names[i], KG_BF16, 0, true, false);
        run(&a);
        for (int threads = 1; threads <= 4; threads *= 2) {
            omp_set_num_threads(threads);
            run(&b);
            assert_memory_equal(a.grads, b.grads,
                                (size_t)a.m->n_elements * sizeof(float));
        }
        omp_set_num_threads(before);
        subject_close(&a);
        subject_close(&b);
    }
}

/* Sharing depends on tokens, on `most` and on the experts that are given. */
static void only_what_is_equal_is_shared(void **state)
{
    enum { CHOICES = 16 };
    const struct kg_rows_opts opts = {.max_tokens = ROOM, .experts = true, .share = true};
    uint16_t experts[PROMPT * CHOICES] = {0};
    int32_t tokens[PROMPT];
    struct kg_rows_seq q = {tokens, PROMPT, PROMPT - 1, experts};
    struct kg_model *m = test_open("tests/data/reference/qwen3_moe", KG_F32, false);
    struct kg_rows *p;
    const int c = kg_model_config_choices(&m->config);

    (void)state;
    assert_true(c > 0 && c <= CHOICES);
    test_tokens(tokens, PROMPT, m->config.vocab, 1);
    NEED(kg_rows_create(&p, m, &opts, err));
    kg_rows_begin(p, m, 0);
    assert_int_equal(kg_rows_shared(p, &q), 0);
    kg_rows_add_seq(p, &q);
    assert_int_equal(kg_rows_shared(p, &q), PROMPT - 1);
    q.most = 12;
    assert_int_equal(kg_rows_shared(p, &q), 12);
    q.most = PROMPT - 1;
    tokens[33]++;
    assert_int_equal(kg_rows_shared(p, &q), 33);
    experts[20 * c + c - 1] = 1;
    assert_int_equal(kg_rows_shared(p, &q), 20);
    q.experts = NULL; /* routers choose */
    assert_int_equal(kg_rows_shared(p, &q), 0);
    kg_rows_add_seq(p, &q);
    assert_int_equal(kg_rows_shared(p, &q), PROMPT - 1);
    kg_rows_free(p);
    kg_model_free(m);
}

/* A pack is full, too, when its room for keys is used up. The keys of one sequence that
 * fills the pack always have room. */
static void keys_have_room_that_ends(void **state)
{
    enum { N = 33, MOST_TOKENS = 64 };
    const struct kg_rows_opts opts = {.max_tokens = MOST_TOKENS, .share = true};
    int32_t tokens[N];
    const struct kg_rows_seq q = {tokens, N, N - 1, NULL};
    struct kg_model *m = test_open("tests/data/reference/llama", KG_BF16, false);
    struct kg_rows *p;
    int64_t n = 0, most;

    (void)state;
    test_tokens(tokens, N, m->config.vocab, 1);
    NEED(kg_rows_create(&p, m, &opts, err));
    most = kg_rows_max_keys(p);
    assert_true(most >= MOST_TOKENS && most <= 8 * MOST_TOKENS);
    kg_rows_begin(p, m, 0);
    for (; kg_rows_fits_seq(p, &q); n++)
        kg_rows_add_seq(p, &q);
    assert_int_equal(n, most / N);
    assert_int_equal(kg_rows_tokens(p), N + n - 1);
    assert_int_equal(kg_rows_saved(p), (n - 1) * (N - 1));
    kg_rows_free(p);
    kg_model_free(m);
}

/* The plan for packs that share is exact but for 8 KiB. One thread, and no test before
 * it: with several, it varies which thread allocates or frees which scratch. */
static void the_memory_plan_is_what_is_taken(void **state)
{
    const int threads = omp_get_max_threads();
    const struct kg_rows_opts opts = {
        .max_tokens = ROOM, .backward = true, .checkpoint = true, .share = true};
    struct subject s;
    uint64_t before, taken;
    struct kg_bytes plan;

    (void)state;
    need_host_memory();
    omp_set_num_threads(1);
    subject_open(&s, "qwen3", KG_BF16, 0, true, true);
    run(&s); /* allocates the thread's scratch */
    before = kg_mem_current_bytes();
    plan = kg_rows_memory(s.m, &opts);
    kg_rows_free(s.rows);
    taken = kg_mem_current_bytes();
    NEED(kg_rows_create(&s.rows, s.m, &opts, err));
    run(&s);
    assert_true(before > taken);
    assert_true(kg_mem_current_bytes() - taken >= plan.there + plan.host);
    assert_true(kg_mem_current_bytes() - taken < plan.there + plan.host + 8192);
    subject_close(&s);
    omp_set_num_threads(threads);
}

/* ---- on kernels for devices ---- */
/* A shared pack of a model, computed on the CPU and on this backend. */
static void compare_with_the_cpu(const char *name, enum kg_dtype ct)
{
    const char *here = backend_name;
    struct subject want, got;

    backend_name = "cpu";
    subject_open(&want, name, ct, 0, true, true);
    run(&want);
    backend_name = here;
    subject_open(&got, name, ct, 0, true, true);
    run(&got);
    assert_int_equal(kg_rows_saved(got.rows), SAVED);
    assert_memory_equal(got.logp, want.logp, (size_t)want.n_rows * sizeof(float));
    assert_memory_equal(got.entropy, want.entropy, (size_t)want.n_rows * sizeof(float));
    for (int64_t i = 0; i < want.m->n_elements; i++)
        if (memcmp(&got.grads[i], &want.grads[i], sizeof(float)) != 0)
            fail_msg("%s: gradient %lld: expected %a, found %a", name, (long long)i,
                     (double)want.grads[i], (double)got.grads[i]);
    subject_close(&want);
    subject_close(&got);
}

static void kernels_have_the_bits_of_the_cpu(void **state)
{
    (void)state;
    compare_with_the_cpu("gemma2", KG_F32);
    compare_with_the_cpu("qwen3_moe", KG_F32);
    if (has_exact_products())
        compare_with_the_cpu("qwen2_window", KG_BF16);
}

/* Causal alone, with a window, and with a window and a softcap. */
static void the_matrix_instruction_keeps_its_bits(void **state)
{
    (void)state;
    compare("qwen2", KG_BF16, 64, 1e-2);
    compare("qwen2_window", KG_BF16, 128, 1e-2);
    compare("gemma2", KG_BF16, 64, 1e-2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_memory_plan_is_what_is_taken),
        cmocka_unit_test(rows_keep_their_bits_and_gradients_their_sums),
        cmocka_unit_test(neither_checkpointing_nor_threads_change_a_bit),
        cmocka_unit_test(only_what_is_equal_is_shared),
        cmocka_unit_test(keys_have_room_that_ends),
    };
    const struct CMUnitTest of_kernels[] = {
        cmocka_unit_test(kernels_have_the_bits_of_the_cpu),
        cmocka_unit_test(the_matrix_instruction_keeps_its_bits),
    };
    const int failed = RUN_SHOWN(tests, NULL, NULL);

    return failed + RUN_EMULATED(of_kernels, NULL, NULL);
}
