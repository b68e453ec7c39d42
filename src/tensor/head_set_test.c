/* Sets of ids in the vocabulary head: their mass and its gradient equal those of the same
 * ids given one by one, for any other rows and number of threads.
 */
#include "tensor/matrix_testing.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { N = 9, D = 12, V = 1300, K = V };

/* Each row has its own set: few ids, most, one, all but one, all. */
struct problem {
    struct kg_mat hidden, weight;
    float *inv_temp;
    int32_t *target;
    int32_t *indices; /* (N,K) the same sets as lists of ids */
    struct kg_idset sets[N];
    uint8_t packed[N][V / 8 + 1];
};

static void add(uint64_t *words, int64_t id)
{
    words[id / 64] |= (uint64_t)1 << (id % 64);
}

static void make_set(struct problem *p, int64_t n)
{
    static const double share[N] = {0.01, 0.5, 0.97, 0.1, 0, 2, 0.003, 0.9, 0};
    uint64_t words[(V + 63) / 64] = {0};
    int32_t k = 0;

    for (int64_t v = 0; v < V; v++)
        if ((uniform() + 1) / 2 < share[n])
            add(words, v);
    if (n == 4)
        add(words, V - 1);
    if (n == 5)
        words[7] &= ~(uint64_t)1;
    p->sets[n] = kg_idset_pack(p->packed[n], words, V);
    for (int32_t v = 0; v < V; v++)
        if (words[v / 64] >> (v % 64) & 1)
            p->indices[n * K + k++] = v;
    p->target[n] = k > 0 ? p->indices[n * K + k / 2] : 3;
    while (k < K)
        p->indices[n * K + k++] = -1;
}

static void problem_init(struct problem *p)
{
    random_state = 5;
    p->hidden = random_matrix(KG_F32, N, D, 2.0);
    p->weight = random_matrix(KG_F32, V, D, 1.0);
    p->inv_temp = block_of(N, sizeof *p->inv_temp);
    p->target = block_of(N, sizeof *p->target);
    p->indices = block_of((int64_t)N * K, sizeof *p->indices);
    for (int64_t n = 0; n < N; n++) {
        p->inv_temp[n] = n % 2 ? 1.25f : 1;
        make_set(p, n);
    }
    assert_int_equal(p->sets[8].n, 0);
    assert_int_equal(p->sets[5].n, V - 1);
}

static void problem_release(struct problem *p)
{
    buffer_free(p->hidden.data);
    buffer_free(p->weight.data);
    kg_mem_free(p->inv_temp);
    kg_mem_free(p->target);
    kg_mem_free(p->indices);
}

struct result {
    double lse[N], set_logp[N];
    float logp[N], entropy[N], *logp_at; /* (N,K) */
    float *dhidden, *dweight;
};

static void result_init(struct result *r)
{
    memset(r, 0, sizeof *r);
    r->logp_at = block_of((int64_t)N * K, sizeof *r->logp_at);
    r->dhidden = buffer_of((int64_t)N * D, sizeof *r->dhidden);
    r->dweight = buffer_of((int64_t)V * D, sizeof *r->dweight);
}

static void result_release(struct result *r)
{
    kg_mem_free(r->logp_at);
    buffer_free(r->dhidden);
    buffer_free(r->dweight);
}

static double a_of(int64_t n) { return n == 2 ? 0 : 0.3 * (double)(n - 3) - 0.1; }

/* Computes rows [first, first+n), gradients from the sets or from the ids one by one. */
static void run(struct result *r, const struct problem *p, int64_t first, int64_t n,
                bool by_ids)
{
    struct kg_err err;
    double a_target[N], a_entropy[N], a_set[N], *a_at = block_of(n * K, sizeof *a_at);
    struct kg_head h = {.hidden = kg_mat_rows(p->hidden, first, n),
                        .weight = p->weight,
                        .inv_temp = p->inv_temp + first,
                        .target = p->target + first,
                        .indices = by_ids ? p->indices + first * K : NULL,
                        .k = by_ids ? K : 0,
                        .sets = by_ids ? NULL : p->sets + first};
    struct kg_head_out out = {.lse = r->lse + first,
                              .logp = r->logp + first,
                              .entropy = r->entropy + first,
                              .logp_at = by_ids ? r->logp_at + first * K : NULL,
                              .set_logp = by_ids ? NULL : r->set_logp + first};
    struct kg_head_grad g = {.lse = r->lse + first,
                             .a_target = a_target,
                             .a_entropy = a_entropy,
                             .entropy = r->entropy + first,
                             .a_indices = by_ids ? a_at : NULL,
                             .a_set = by_ids ? NULL : a_set,
                             .set_logp = by_ids ? NULL : r->set_logp + first,
                             .dhidden = kg_mat(r->dhidden + first * D, KG_F32, n, D),
                             .dweight = kg_mat(r->dweight, KG_F32, V, D)};

    assert_int_equal(kg_op_head(backend(), &out, &h, &err), KG_OK);
    for (int64_t i = 0; i < n; i++) {
        const float *at = r->logp_at + (first + i) * K;
        double sum = 0;

        a_set[i] = a_of(first + i);
        a_target[i] = (first + i) % 3 == 0 ? -a_set[i] : 0.2;
        a_entropy[i] = (first + i) % 4 == 1 ? -0.05 : 0;
        for (int k = 0; by_ids && k < K; k++)
            sum += exp((double)at[k]);
        if (by_ids)
            r->set_logp[first + i] = sum > 0 ? log(sum) : 0;
        for (int k = 0; by_ids && k < K; k++)
            a_at[i * K + k] = sum > 0 ? a_set[i] * exp((double)at[k]) / sum : 0;
    }
    assert_int_equal(kg_op_head_bwd(backend(), &g, &h, &err), KG_OK);
    kg_mem_free(a_at);
}

static void a_set_is_the_sum_of_its_ids(void **state)
{
    struct problem p;
    struct result a, b;

    (void)state;
    problem_init(&p);
    result_init(&a), result_init(&b);
    run(&a, &p, 0, N, false);
    run(&b, &p, 0, N, true);
    for (int64_t n = 0; n < N; n++) {
        assert_true(fabs(a.set_logp[n] - b.set_logp[n]) < 1e-6);
        assert_true((p.sets[n].n == 0) == (a.set_logp[n] == 0));
        assert_true(a.lse[n] == b.lse[n] && a.logp[n] == b.logp[n]);
    }
    for (int64_t i = 0; i < (int64_t)N * D; i++)
        assert_true(fabsf(a.dhidden[i] - b.dhidden[i]) < 2e-6f);
    for (int64_t i = 0; i < (int64_t)V * D; i++)
        assert_true(fabsf(a.dweight[i] - b.dweight[i]) < 2e-6f);
    result_release(&a), result_release(&b);
    problem_release(&p);
}

static void rows_and_threads_change_no_bit(void **state)
{
    struct problem p;
    struct result a, b;
    int before = omp_get_max_threads();

    (void)state;
    problem_init(&p);
    result_init(&a), result_init(&b);
    run(&a, &p, 0, N, false);
    omp_set_num_threads(3);
    for (int64_t n = 0; n < N; n++)
        run(&b, &p, n, 1, false);
    omp_set_num_threads(before);
    assert_memory_equal(a.set_logp, b.set_logp, sizeof a.set_logp);
    assert_memory_equal(a.dhidden, b.dhidden, N * D * sizeof *a.dhidden);
    result_release(&a), result_release(&b);
    problem_release(&p);
}

/* The gradient of log p_y - log S is zero outside the set. */
static void a_renormalised_token_moves_its_set_alone(void **state)
{
    struct problem p;
    struct kg_err err;
    double lse[N], set_logp[N], a[N], minus[N];
    float *dhidden, *dweight;
    struct kg_head h;
    struct kg_head_out out = {.lse = lse, .set_logp = set_logp};
    int32_t inside = 0;

    (void)state;
    problem_init(&p);
    dhidden = buffer_of(D, sizeof *dhidden);
    dweight = buffer_of((int64_t)V * D, sizeof *dweight);
    h = (struct kg_head){.hidden = kg_mat_rows(p.hidden, 3, 1),
                         .weight = p.weight,
                         .target = p.target + 3,
                         .sets = p.sets + 3};
    a[0] = 0.7, minus[0] = -0.7;
    assert_int_equal(kg_op_head(backend(), &out, &h, &err), KG_OK);
    struct kg_head_grad g = {.lse = lse,
                             .a_target = a,
                             .a_set = minus,
                             .set_logp = set_logp,
                             .dhidden = kg_mat(dhidden, KG_F32, 1, D),
                             .dweight = kg_mat(dweight, KG_F32, V, D)};
    assert_int_equal(kg_op_head_bwd(backend(), &g, &h, &err), KG_OK);
    for (int32_t v = 0; v < V; v++) {
        bool in = inside < p.sets[3].n && p.indices[3 * K + inside] == v;

        for (int d = 0; d < D; d++)
            assert_true((dweight[v * D + d] != 0) == in);
        inside += in;
    }
    buffer_free(dhidden);
    buffer_free(dweight);
    problem_release(&p);
}

static void sets_that_do_not_fit_are_refused(void **state)
{
    struct problem p;
    struct kg_err err;
    double set_logp[N];
    struct kg_head_out out = {.set_logp = set_logp};
    struct kg_head h;

    (void)state;
    problem_init(&p);
    h = (struct kg_head){.hidden = p.hidden, .weight = p.weight};
    assert_int_equal(kg_op_head(backend(), &out, &h, &err), KG_EINVAL);
    p.sets[6].bound = V - 1;
    h.sets = p.sets;
    assert_int_equal(kg_op_head(backend(), &out, &h, &err), KG_ESHAPE);
    assert_non_null(strstr(err.message, "row 6"));
    problem_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_set_is_the_sum_of_its_ids),
        cmocka_unit_test(rows_and_threads_change_no_bit),
        cmocka_unit_test(a_renormalised_token_moves_its_set_alone),
        cmocka_unit_test(sets_that_do_not_fit_are_refused),
    };
    const int failed = RUN_FAR_TOO(tests, NULL, NULL);
    return failed + RUN_EMULATED(tests, NULL, NULL);
}
