/* Attention backward: against a plain double reference and finite differences, and bit
 * for bit against other instruction sets, thread counts and divisions of a sequence.
 */
#include "tensor/attention_testing.h"

#include <omp.h>
#include <pthread.h>

struct gradient {
    struct kg_mat dq;
    struct kg_mat dk;
    struct kg_mat dv;
};

static struct gradient gradient_init(const struct problem *p)
{
    struct gradient g = {random_matrix(KG_F32, p->n, p->q.cols, 1.0),
                         random_matrix(KG_F32, p->n, p->k.cols, 1.0),
                         random_matrix(KG_F32, p->n, p->k.cols, 1.0)};
    return g; /* not zero: the operation overwrites */
}

static void gradient_release(struct gradient *g)
{
    buffer_free(g->dq.data);
    buffer_free(g->dk.data);
    buffer_free(g->dv.data);
}

static struct gradient backward_on(const struct kg_backend *be, const struct problem *p,
                                   const struct answer *y, struct kg_mat dout)
{
    struct gradient g = gradient_init(p);
    struct kg_attn a = attn_of(p);
    struct kg_err err;
    kg_status status = kg_op_attention_bwd(be, g.dq, g.dk, g.dv, dout, y->o,
                                           lse_of(y, &a), &a, &err);
    if (status != KG_OK)
        fail_msg("%s", err.message);
    return g;
}
static struct gradient backward(const struct problem *p, const struct answer *y,
                                struct kg_mat dout)
{
    return backward_on(backend(), p, y, dout);
}

/* The derivative of the softcap at the score of query i and key j. */
static double slope_of(const struct problem *p, int s, int i, int j, int h)
{
    int64_t row = p->seqs[s].row;
    int64_t kv = (int64_t)(h / (p->heads / p->kv_heads)) * p->hd;
    double score = 0.0, slope;
    for (int d = 0; p->softcap > 0 && d < p->hd; d++)
        score += get(p->q, row + i, (int64_t)h * p->hd + d) * get(p->k, row + j, kv + d);
    capped(p, score / sqrt(p->hd), &slope);
    return slope;
}

/* One query row's share of the gradients, in double; w: room for 2 values per key. */
static void plain_backward_row(double *dq, double *dk, double *dv,
                               const struct problem *p, int s, int i, int h,
                               struct kg_mat dout, double *w)
{
    int64_t row = p->seqs[s].row;
    int64_t kv = (int64_t)(h / (p->heads / p->kv_heads)) * p->hd;
    int64_t qc = (int64_t)h * p->hd;
    double scale = 1.0 / sqrt(p->hd);
    double mean = 0.0, *dp = w + p->n;
    plain_weights(w, p, s, i, h);
    for (int j = 0; j <= i; j++) {
        dp[j] = 0.0;
        for (int d = 0; d < p->hd; d++)
            dp[j] += get(dout, row + i, qc + d) * get(p->v, row + j, kv + d);
        mean += w[j] * dp[j];
    }
    for (int j = 0; j <= i; j++) {
        double ds = w[j] * (dp[j] - mean) * scale * slope_of(p, s, i, j, h);
        for (int d = 0; d < p->hd; d++) {
            dq[(row + i) * p->q.cols + qc + d] += ds * get(p->k, row + j, kv + d);
            dk[(row + j) * p->k.cols + kv + d] += ds * get(p->q, row + i, qc + d);
            dv[(row + j) * p->k.cols + kv + d] += w[j] * get(dout, row + i, qc + d);
        }
    }
}

static void assert_close(struct kg_mat got, const double *want, double tolerance)
{
    for (int64_t i = 0; i < got.rows * got.cols; i++)
        if (!(fabs((double)((float *)got.data)[i] - want[i]) < tolerance))
            fail_msg("element %lld: %g, expected %g", (long long)i,
                     (double)((float *)got.data)[i], want[i]);
}

static void check_backward(const struct problem *p, enum kg_dtype dout_type,
                           double tolerance)
{
    struct answer y = whole(p);
    struct kg_mat dout = random_matrix(dout_type, p->n, p->q.cols, 1.0);
    struct gradient g = backward(p, &y, dout);
    double *dq = block_of(p->n * p->q.cols, sizeof *dq);
    double *dk = block_of(p->n * p->k.cols, sizeof *dk);
    double *dv = block_of(p->n * p->k.cols, sizeof *dv);
    double *w = block_of(2 * p->n, sizeof *w);
    for (int s = 0; s < p->n_seqs; s++)
        for (int i = 0; i < p->lengths[s]; i++)
            for (int h = 0; h < p->heads; h++)
                plain_backward_row(dq, dk, dv, p, s, i, h, dout, w);
    assert_close(g.dq, dq, tolerance);
    assert_close(g.dk, dk, tolerance);
    assert_close(g.dv, dv, tolerance);
    kg_mem_free(dq);
    kg_mem_free(dk);
    kg_mem_free(dv);
    kg_mem_free(w);
    buffer_free(dout.data);
    gradient_release(&g);
    answer_release(&y);
}

static void backward_matches_plain_version(void **state)
{
    (void)state;
    for (int i = FIRST_SHAPE; i < N_SHAPES; i += NEXT_SHAPE) {
        struct problem p = shapes[i];
        if (by_kernels() && !other_definition(&p))
            continue; /* it has the CPU's bits */
        problem_init(&p);
        check_backward(&p, KG_F32, p.dtype == KG_F32 ? 2e-5 : 2e-2);
        if (p.dtype == KG_BF16)
            check_backward(&p, KG_BF16, 2e-2);
        problem_release(&p);
    }
}

/* sum of o * dout in double arithmetic on fp32 outputs */
static double objective(const struct problem *p, struct kg_mat dout)
{
    struct answer y = whole(p);
    double sum = 0.0;
    for (int64_t r = 0; r < p->n; r++)
        for (int64_t c = 0; c < p->q.cols; c++)
            sum += get(y.o, r, c) * get(dout, r, c);
    answer_release(&y);
    return sum;
}

static void check_difference(const struct problem *p, struct kg_mat x, struct kg_mat dx,
                             struct kg_mat dout)
{
    for (int trial = 0; trial < 20; trial++) {
        int64_t r = (int64_t)((uniform() + 1.0) * 0.5 * (double)x.rows);
        int64_t c = (int64_t)((uniform() + 1.0) * 0.5 * (double)x.cols);
        double old = get(x, r, c);
        set(x, r, c, old + 1e-2);
        double up = objective(p, dout);
        set(x, r, c, old - 1e-2);
        double down = objective(p, dout);
        set(x, r, c, old);
        assert_true(fabs((up - down) / 2e-2 - get(dx, r, c)) < 2e-3);
    }
}

static void backward_matches_finite_differences(void **state)
{
    (void)state;
    struct problem p = {KG_F32,  .heads = 4,  .kv_heads = 2,
                        .hd = 8, .n_seqs = 2, .lengths = {70, 9}};
    problem_init(&p);
    struct answer y = whole(&p);
    struct kg_mat dout = random_matrix(KG_F32, p.n, p.q.cols, 1.0);
    struct gradient g = backward(&p, &y, dout);
    check_difference(&p, p.q, g.dq, dout);
    check_difference(&p, p.k, g.dk, dout);
    check_difference(&p, p.v, g.dv, dout);
    buffer_free(dout.data);
    gradient_release(&g);
    answer_release(&y);
    problem_release(&p);
}

static void assert_gradients_equal(const struct gradient *a, const struct gradient *b)
{
    assert_memory_equal(a->dq.data, b->dq.data, (size_t)a->dq.rows * row_bytes(a->dq));
    assert_memory_equal(a->dk.data, b->dk.data, (size_t)a->dk.rows * row_bytes(a->dk));
    assert_memory_equal(a->dv.data, b->dv.data, (size_t)a->dv.rows * row_bytes(a->dv));
}

/* |a - b| / |b| of all elements. */
static double distance(struct kg_mat a, struct kg_mat b)
{
    double off = 0.0, size = 0.0;

    for (int64_t i = 0; i < a.rows * a.cols; i++) {
        const double x = get(a, i / a.cols, i % a.cols);
        const double y = get(b, i / a.cols, i % a.cols);

        off += (x - y) * (x - y);
        size += y * y;
    }
    return sqrt(off / size);
}

/* If weights and their gradients are rounded to bf16, they are off by at most 1/256. */
static void compare_gradients(const struct problem *p, const struct gradient *a,
                              const struct gradient *b)
{
    if (!other_definition(p)) {
        assert_gradients_equal(a, b);
        return;
    }
    assert_true(distance(a->dq, b->dq) < 0x1p-8);
    assert_true(distance(a->dk, b->dk) < 0x1p-8);
    assert_true(distance(a->dv, b->dv) < 0x1p-8);
}

/* All backends add the same chains, forward and backward. */
static void gradients_agree_and_repeat_in_every_bit(void **state)
{
    (void)state;
    for (int i = FIRST_SHAPE; i < N_SHAPES; i += NEXT_SHAPE) {
        struct problem p = problem_of(i, 0);
        struct answer y = whole(&p);
        struct kg_mat dout = random_matrix(p.dtype, p.n, p.q.cols, 1.0);
        struct gradient g = backward(&p, &y, dout);
        for (int c = 0; other_set(c); c++) {
            struct gradient other = backward_on(other_set(c), &p, &y, dout);
            compare_gradients(&p, &g, &other);
            gradient_release(&other);
        }
        if (other_definition(&p)) {
            struct gradient again = backward(&p, &y, dout);
            assert_gradients_equal(&g, &again);
            gradient_release(&again);
        }
        gradient_release(&g);
        buffer_free(dout.data);
        answer_release(&y);
        problem_release(&p);
    }
}

/* One thread visits pairs of query and key once, several threads may visit them twice:
 * the bits must agree. */
static void threads_change_no_bit_of_gradients(void **state)
{
    (void)state;
    int before = omp_get_max_threads();
    for (int i = FIRST_SHAPE; i < N_SHAPES; i += NEXT_SHAPE) {
        struct problem p = problem_of(i, 0);
        struct answer y = whole(&p);
        struct kg_mat dout = random_matrix(KG_F32, p.n, p.q.cols, 1.0);
        omp_set_num_threads(1);
        struct gradient one = backward(&p, &y, dout);
        for (int threads = 2; threads <= 4; threads += 2) {
            omp_set_num_threads(threads);
            struct gradient many = backward(&p, &y, dout);
            assert_gradients_equal(&one, &many);
            gradient_release(&many);
        }
        gradient_release(&one);
        buffer_free(dout.data);
        answer_release(&y);
        problem_release(&p);
    }
    omp_set_num_threads(before);
}

/* Asserts that `got` equals the rows of sequence s of `whole`, bit for bit. */
static void assert_part_equal(const struct problem *p, int s, struct kg_mat whole,
                              struct kg_mat got)
{
    assert_memory_equal((char *)whole.data + (size_t)p->seqs[s].row * row_bytes(whole),
                        got.data, (size_t)got.rows * row_bytes(got));
}

/* All sequences together decide whether the heads of a group have separate sums; the bits
 * of one sequence must not depend on it. */
static void neighbours_change_no_bit_of_gradients(void **state)
{
    (void)state;
    for (int i = FIRST_SHAPE; i < N_SHAPES; i += NEXT_SHAPE) {
        struct problem p = problem_of(i, 0);
        struct answer y = whole(&p);
        struct kg_mat dout = random_matrix(KG_F32, p.n, p.q.cols, 1.0);
        struct gradient all = backward(&p, &y, dout);
        for (int s = 0; s < p.n_seqs; s++) {
            const int64_t row = p.seqs[s].row, n = p.lengths[s];
            struct problem one = p;
            struct answer part = {kg_mat_rows(y.o, row, n), y.lse + row * p.heads};
            struct kg_attn_seq seq = {.n_rows = (int32_t)n};
            one.n = n;
            one.n_seqs = 1;
            one.q = kg_mat_rows(p.q, row, n);
            one.k = kg_mat_rows(p.k, row, n);
            one.v = kg_mat_rows(p.v, row, n);
            one.seqs = buffer_with(&seq, 1, sizeof seq);
            struct gradient g = backward(&one, &part, kg_mat_rows(dout, row, n));
            assert_part_equal(&p, s, all.dq, g.dq);
            assert_part_equal(&p, s, all.dk, g.dk);
            assert_part_equal(&p, s, all.dv, g.dv);
            gradient_release(&g);
            buffer_free(one.seqs);
        }
        gradient_release(&all);
        buffer_free(dout.data);
        answer_release(&y);
        problem_release(&p);
    }
}

/* Sequence s without its first `step` quarters; at least its last row is left. */
static void continue_at(struct problem *p, int s, int step)
{
    int32_t pos = p->lengths[s] * step / 4;

    p->seqs[s].row += pos;
    p->seqs[s].n_rows -= pos;
    p->seqs[s].pos = pos;
}

/* A sequence without its first queries has the gradients that it has if dout is 0 for
 * these. (With a matrix instruction, other rows are added together: they are only
 * close.) */
static void continuations_have_the_gradients_of_the_whole(void **state)
{
    (void)state;
    for (int i = FIRST_SHAPE; i < N_SHAPES; i += NEXT_SHAPE)
        for (int step = 1; step < 4; step++) {
            struct problem p = problem_of(i, 0);
            struct answer y = whole(&p);
            struct kg_mat dout = random_matrix(KG_F32, p.n, p.q.cols, 1.0);
            for (int s = 0; s < p.n_seqs; s++)
                for (int r = 0; r < p.lengths[s] * step / 4; r++)
                    memset((float *)dout.data + (p.seqs[s].row + r) * dout.stride, 0,
                           row_bytes(dout));
            struct gradient all = backward(&p, &y, dout);
            for (int s = 0; s < p.n_seqs; s++)
                continue_at(&p, s, step);
            struct gradient rest = backward(&p, &y, dout);
            compare_gradients(&p, &rest, &all);
            gradient_release(&rest);
            gradient_release(&all);
            buffer_free(dout.data);
            answer_release(&y);
            problem_release(&p);
        }
}

static void keys_of_two_sequences_are_refused(void **state)
{
    (void)state;
    struct problem p = problem_of(1, 0);
    struct answer y = whole(&p);
    struct kg_mat dout = random_matrix(KG_F32, p.n, p.q.cols, 1.0);
    struct gradient g = gradient_init(&p);
    struct kg_attn a = attn_of(&p);
    struct kg_err err;

    p.seqs[2].keys = 64;
    if (backend()->host_memory) { /* other memory is not read before use */
        assert_int_equal(kg_op_attention_bwd(backend(), g.dq, g.dk, g.dv, dout, y.o,
                                             lse_of(&y, &a), &a, &err),
                         KG_ESHAPE);
        assert_non_null(strstr(err.message, "sequence 2 begin at row 64, expected 65"));
    }
    buffer_free(dout.data);
    gradient_release(&g);
    answer_release(&y);
    problem_release(&p);
}

static void rows_of_no_sequence_get_zero(void **state)
{
    (void)state;
    struct problem p = problem_of(1, 0);
    struct answer y = whole(&p);
    struct kg_mat dout = random_matrix(KG_F32, p.n, p.q.cols, 1.0);
    p.n_seqs = 2; /* the third sequence's rows are in no sequence now */
    struct gradient g = backward(&p, &y, dout);
    for (int64_t r = 65; r < p.n; r++) {
        for (int64_t c = 0; c < p.q.cols; c++)
            assert_true(get(g.dq, r, c) == 0.0);
        for (int64_t c = 0; c < p.k.cols; c++)
            assert_true(get(g.dk, r, c) == 0.0 && get(g.dv, r, c) == 0.0);
    }
    buffer_free(dout.data);
    gradient_release(&g);
    answer_release(&y);
    problem_release(&p);
}

/* The call of a new thread, which has no scratch, and its status. */
struct call {
    const struct problem *p;
    const struct answer *y;
    const struct gradient *g;
    struct kg_mat dout;
    bool backward;
    uint64_t fail_at;
    kg_status status;
};

static void *call_on_a_new_thread(void *arg)
{
    struct call *c = arg;
    const struct kg_attn a = attn_of(c->p);
    struct kg_err err;
    omp_set_num_threads(1); /* threads of a team could end after this one */
    kg_mem_fail_at(c->fail_at);
    c->status = c->backward
                    ? kg_op_attention_bwd(backend(), c->g->dq, c->g->dk, c->g->dv,
                                          c->dout, c->y->o, lse_of(c->y, &a), &a, &err)
                    : kg_op_attention(backend(), c->y->o, lse_of(c->y, &a), &a, &err);
    kg_mem_fail_at(0);
    return NULL;
}

/* Each allocation fails in turn, those of a thread's scratch too: the call returns a
 * status, and no memory outlives the thread. */
static void failing_allocations_are_a_status(void **state)
{
    (void)state;
    struct problem p = problem_of(4, 0);
    struct answer y = whole(&p);
    struct kg_mat dout = random_matrix(KG_F32, p.n, p.q.cols, 1.0);
    struct gradient g = gradient_init(&p);
    uint64_t held = kg_mem_current_bytes();
    for (uint64_t n = 1; n <= 4; n++)
        for (int backward = 0; backward < 2; backward++) {
            struct call c = {&p, &y, &g, dout, backward, n, KG_OK};
            pthread_t thread;
            assert_int_equal(pthread_create(&thread, NULL, call_on_a_new_thread, &c), 0);
            assert_int_equal(pthread_join(thread, NULL), 0);
            assert_int_equal(c.status, n <= 3 ? KG_ENOMEM : KG_OK);
            assert_int_equal(kg_mem_current_bytes(), held);
        }
    buffer_free(dout.data);
    gradient_release(&g);
    answer_release(&y);
    problem_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backward_matches_plain_version),
        cmocka_unit_test(backward_matches_finite_differences),
        cmocka_unit_test(gradients_agree_and_repeat_in_every_bit),
        cmocka_unit_test(threads_change_no_bit_of_gradients),
        cmocka_unit_test(neighbours_change_no_bit_of_gradients),
        cmocka_unit_test(continuations_have_the_gradients_of_the_whole),
        cmocka_unit_test(keys_of_two_sequences_are_refused),
        cmocka_unit_test(rows_of_no_sequence_get_zero),
        cmocka_unit_test(failing_allocations_are_a_status),
    };
    /* tests of values: the order of a kernel's threads does not matter */
    const struct CMUnitTest once[] = {
        cmocka_unit_test(backward_matches_plain_version),
        cmocka_unit_test(neighbours_change_no_bit_of_gradients),
        cmocka_unit_test(continuations_have_the_gradients_of_the_whole),
        cmocka_unit_test(rows_of_no_sequence_get_zero),
    };
    /* every kernel in every shape, and more sequences than a warp has lanes */
    const struct CMUnitTest reordered[] = {
        cmocka_unit_test(gradients_agree_and_repeat_in_every_bit),
    };
    const int failed = RUN_FAR_TOO(tests, NULL, NULL);

    return failed + RUN_EMULATED_ONCE(once, NULL, NULL) +
           RUN_EMULATED(reordered, NULL, NULL);
}
