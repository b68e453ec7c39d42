/* The load of experts: metrics of counts, computed by hand; and that the balancing loss
 * is that of all tokens of an update, in packs of any size.
 */
#include "train/step/expert_load.h"

#include "base/mem.h"
#include "base/need_testing.h"
#include "tensor/backend_testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define MODEL "tests/data/reference/qwen2_moe"

enum { N = 60, E = 5, K = 3, LAYERS = 3, VOCAB = 48 };

/* Two layers of four experts, two per token. */
static struct kg_expert_load load_of(int64_t counts[8])
{
    return (struct kg_expert_load){.layers = 2, .experts = 4, .k = 2, .counts = counts};
}

static void what_is_logged_is_that_of_the_layers(void **state)
{
    /* ten tokens; one layer even, one with 16 + 4 + 0 + 0 */
    const struct kg_expert_load l = load_of((int64_t[]){5, 5, 5, 5, 16, 4, 0, 0});
    const double entropy = -(0.8 * log(0.8) + 0.2 * log(0.2));
    struct kg_metrics m = {.n = 0};

    (void)state;
    kg_expert_load_put(&m, &l);
    assert_true(fabs(kg_metrics_get(&m, "experts/load_max", -1) - (1 + 3.2) / 2) < 1e-12);
    assert_true(fabs(kg_metrics_get(&m, "experts/load_worst", -1) - 3.2) < 1e-12);
    assert_true(fabs(kg_metrics_get(&m, "experts/unused", -1) - 0.25) < 1e-12);
    assert_true(fabs(kg_metrics_get(&m, "experts/entropy", -1) - (log(4) + entropy) / 2) <
                1e-12);
}

static void of_nothing_nothing_is_logged(void **state)
{
    const struct kg_expert_load none = load_of((int64_t[8]){0}), dense = {0};
    struct kg_metrics m = {.n = 0};

    (void)state;
    kg_expert_load_put(&m, &none);
    kg_expert_load_put(&m, &dense);
    assert_int_equal(m.n, 0);
}

/* ---- the loss ---- */

static struct kg_model *model;
static struct kg_rows *rows;
static struct kg_expert_load load;
static float *grads;

static int open_all(void **state)
{
    const struct kg_model_opts opts = {.ct = KG_F32, .trainable = true};
    const struct kg_rows_opts room = {.max_tokens = N, .backward = true};

    (void)state;
    NEED(kg_model_open(&model, MODEL, &opts, err));
    NEED(kg_rows_create(&rows, model, &room, err));
    NEED(kg_expert_load_init(&load, &model->config, err));
    assert_true(load.layers == LAYERS && load.experts == E && load.k == K);
    grads = buffer_of(model->n_elements, sizeof *grads);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    buffer_free(grads);
    kg_expert_load_release(&load);
    kg_rows_free(rows);
    kg_model_free(model);
    return 0;
}

/* Runs `each` of the four sequences of 15 tokens in one pack, from number `first`. */
static void forward(int first, int each, bool keep)
{
    kg_rows_begin(rows, model, 0);
    for (int s = first; s < first + each; s++) {
        int32_t tokens[N / 4];

        for (int t = 0; t < N / 4; t++)
            tokens[t] = (11 * s + 7 * t + t * t) % VOCAB;
        kg_rows_want(rows, kg_rows_add(rows, tokens, N / 4), tokens[1], 1, NULL);
    }
    NEED(kg_rows_forward(rows, keep, err));
}

static double loss_in_packs_of(int each)
{
    double all = 0, loss;

    memset(grads, 0, (size_t)model->n_elements * sizeof *grads);
    for (int s = 0; s < 4; s += each) {
        forward(s, each, true);
        NEED(kg_rows_ask(rows, NULL, err));
        NEED(kg_expert_load_loss(&loss, &load, rows, err));
        memset(rows->a_logp, 0, (size_t)rows->n_rows * sizeof *rows->a_logp);
        NEED(kg_rows_backward(rows, grads, false, err));
        all += loss;
    }
    return all;
}

/* c E sum_e (n_e / (Lx N)) (sum of p)_e / (Lx N), of one pack with all tokens; Lx:
 * layers. */
static double plain_loss(double c)
{
    double sum = 0;
    float p[E];

    forward(0, 4, true);
    NEED(kg_rows_p_sum(p, rows, err));
    for (int e = 0; e < E; e++) {
        int64_t n = 0;

        for (int l = 0; l < LAYERS; l++)
            n += load.counts[l * E + e];
        sum += (double)n / (LAYERS * N) * (double)p[e] / (LAYERS * N);
    }
    return c * E * sum;
}

static double apart(const float *a, const float *b, int64_t n)
{
    double square = 0, size = 0;

    for (int64_t i = 0; i < n; i++) {
        square += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    assert_true(size > 0);
    return sqrt(square / size);
}

/* Counts are taken over all packs first. Then the losses of packs of any size add up to
 * the loss of the update. */
static void the_loss_is_of_the_update_and_not_of_its_packs(void **state)
{
    const double c = 0.25;
    float *whole = buffer_of(model->n_elements, sizeof *whole);
    int64_t total = 0;
    double loss;

    (void)state;
    for (int s = 0; s < 4; s++) {
        forward(s, 1, false);
        NEED(kg_expert_load_add(&load, rows, err));
    }
    for (int i = 0; i < LAYERS * E; i++)
        total += load.counts[i];
    assert_int_equal(total, LAYERS * N * K);
    NEED(kg_expert_load_balance(&load, rows, c, err));
    loss = loss_in_packs_of(4);
    memcpy(whole, grads, (size_t)model->n_elements * sizeof *whole);
    assert_true(fabs(loss - plain_loss(c)) < 1e-6);
    assert_true(loss > c * K * 0.99 && loss < c * K * 1.5); /* c K if the load is even */
    assert_true(fabs(loss_in_packs_of(1) - loss) < 1e-6);
    assert_true(apart(grads, whole, model->n_elements) < 1e-5);
    NEED(kg_rows_balance(rows, NULL, err));
    kg_expert_load_clear(&load);
    assert_true(load.counts[0] == 0);
    buffer_free(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_logged_is_that_of_the_layers),
        cmocka_unit_test(of_nothing_nothing_is_logged),
        cmocka_unit_test(the_loss_is_of_the_update_and_not_of_its_packs),
    };

    return cmocka_run_group_tests(tests, open_all, close_all);
}
