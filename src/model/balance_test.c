/* The loss that is linear in the routers' probabilities; train/step/expert_load.h makes
 * the load-balancing loss from it. Value and gradient equal those of transformers'
 * load_balancing_loss_func under torch, and the gradient equals finite differences.
 */
#include "model/model_testing.h"

enum { MOST_E = 8, MOST_CELLS = 3 * MOST_E, STEPS_APART = 5 };

static const char *const names[] = {"qwen3_moe", "qwen2_moe", "mixtral", "olmoe"};
enum { N_NAMES = sizeof names / sizeof *names };

struct balanced {
    struct test_reference r;
    struct kg_model *m;
    struct kg_acts *acts;
    int64_t counts[MOST_CELLS]; /* (Lx,E) */
    float balance[MOST_E], p_sum[MOST_E];
    float *grads;   /* (n_elements) */
    uint16_t *held; /* experts given to a forward; NULL: routers choose */
};

static int32_t routed(const struct balanced *b)
{
    return kg_model_config_routed(&b->m->config, b->m->config.layers);
}

/* The coefficients of transformers' loss: E n_e / (Lx N)^2. */
static void set_balance(struct balanced *b)
{
    const int32_t e_n = b->m->config.experts.n, layers = routed(b);
    const double all = (double)layers * TEST_REF_TOKENS;
    for (int32_t e = 0; e < e_n; e++) {
        int64_t n = 0;
        for (int32_t l = 0; l < layers; l++)
            n += b->counts[l * e_n + e];
        b->balance[e] = (float)(e_n * (double)n / all / all);
    }
    NEED(kg_acts_balance(b->acts, b->balance, err));
}

static void open_balanced(struct balanced *b, const char *name, bool checkpoint)
{
    struct kg_mat hidden;
    *b = (struct balanced){0};
    test_reference_open(&b->r, name);
    b->m = test_open(b->r.dir, KG_F32, true);
    assert_true(routed(b) * b->m->config.experts.n <= MOST_CELLS);
    NEED(kg_acts_create(&b->acts, b->m, TEST_REF_TOKENS, checkpoint, err));
    const struct kg_forward f = {.pack = test_pack_get(&b->r.pack)};
    NEED(kg_model_forward(&hidden, b->m, b->acts, &f, err));
    NEED(kg_acts_load(b->counts, b->acts, err));
    set_balance(b);
    b->grads = buffer_of(b->m->n_elements, sizeof *b->grads);
}

static void close_balanced(struct balanced *b)
{
    buffer_free(b->grads);
    kg_mem_free(b->held);
    kg_acts_free(b->acts);
    kg_model_free(b->m);
    test_reference_close(&b->r);
}

/* The dot product of balance and p_sum of a forward. */
static double loss_of(struct balanced *b)
{
    struct kg_mat hidden;
    const struct kg_forward f = {
        .pack = test_pack_get(&b->r.pack), .keep = true, .experts = b->held};
    double loss = 0;
    NEED(kg_model_forward(&hidden, b->m, b->acts, &f, err));
    NEED(kg_acts_p_sum(b->p_sum, b->acts, err));
    for (int32_t e = 0; e < b->m->config.experts.n; e++)
        loss += (double)b->balance[e] * (double)b->p_sum[e];
    return loss;
}

/* The gradient of that loss alone: log-probs have weight 0. */
static void make_grads(struct balanced *b)
{
    memset(b->grads, 0, (size_t)b->m->n_elements * sizeof *b->grads);
    test_nll(b->m, b->acts, &b->r.pack, 0, b->grads);
}

/* ---- counts and sums ---- */
static void counts_are_of_layers_and_sums_of_probabilities(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        struct balanced b;
        double sum = 0;
        open_balanced(&b, names[i], true);
        const int32_t e_n = b.m->config.experts.n;
        for (int32_t l = 0; l < routed(&b); l++) {
            int64_t of_layer = 0;
            for (int32_t e = 0; e < e_n; e++)
                of_layer += b.counts[l * e_n + e];
            assert_int_equal(of_layer, TEST_REF_TOKENS * b.m->config.experts.k);
        }
        loss_of(&b);
        for (int32_t e = 0; e < e_n; e++)
            sum += (double)b.p_sum[e];
        assert_true(fabs(sum - routed(&b) * TEST_REF_TOKENS) < 1e-3);
        close_balanced(&b);
    }
}

/* ---- transformers and torch ---- */
static double relative_difference(const float *a, const float *b, int64_t n)
{
    double apart = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        apart += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(apart / fmax(size, 1e-30));
}

/* returns the number of tensors compared */
static size_t compare_grads(const struct balanced *b, const struct kg_st_set *set)
{
    size_t compared = 0;
    for (size_t i = 0; i < b->m->n_params; i++) {
        const struct kg_param *p = &b->m->params[i];
        const struct kg_st_tensor *t = kg_st_find(set, p->name);
        if (!t)
            continue;
        float *want = test_alloc(1, t->bytes);
        memcpy(want, t->data, t->bytes);
        const double apart = relative_difference(b->grads + p->offset, want,
                                                 p->rows * p->cols);
        if (!(apart < 1e-4))
            fail_msg("%s %s: relative difference %g", b->r.dir, p->name, apart);
        kg_mem_free(want);
        compared++;
    }
    return compared;
}

static void value_and_gradient_are_those_of_transformers(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        struct balanced b;
        struct kg_st_set *set = NULL;
        char path[192];
        float loss;
        open_balanced(&b, names[i], false);
        snprintf(path, sizeof path, "%s/router_aux.safetensors", b.r.dir);
        NEED(kg_st_open_file(&set, path, err));
        const struct kg_st_tensor *want = kg_st_find(set, "loss");
        assert_non_null(want);
        memcpy(&loss, want->data, sizeof loss);
        assert_true(fabs(loss_of(&b) - (double)loss) < 1e-5);
        make_grads(&b);
        /* every router, the embeddings, the first q_proj */
        assert_int_equal(compare_grads(&b, set), routed(&b) + 2);
        assert_int_equal(kg_st_count(set), routed(&b) + 3);
        kg_st_close(set);
        close_balanced(&b);
    }
}

/* ---- differences ---- */
/* Gradient minus finite difference, where the gradient of p is largest. */
static double slope_apart(struct balanced *b, const struct kg_param *p)
{
    const float h = 1e-3f;
    const int64_t at = p->offset + test_largest(b->grads + p->offset, p->rows * p->cols);
    float *w = &b->m->master.data[at];
    const float old = *w;
    *w = old + h;
    NEED(kg_model_refresh(b->m, err));
    const double above = loss_of(b);
    *w = old - h;
    NEED(kg_model_refresh(b->m, err));
    const double below = loss_of(b);
    *w = old;
    NEED(kg_model_refresh(b->m, err));
    return fabs((above - below) / (2 * (double)h) - (double)b->grads[at]);
}

static double norm_of(const float *g, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)g[i] * (double)g[i];
    return sqrt(sum);
}

/* Fixes the experts: if a choice changed between w - h and w + h, the loss would jump. */
static void hold_choices(struct balanced *b)
{
    b->held = test_alloc((size_t)TEST_REF_TOKENS *
                             (size_t)kg_model_config_choices(&b->m->config),
                         sizeof *b->held);
    NEED(kg_acts_experts(b->held, b->acts, 0, TEST_REF_TOKENS, err));
}

static void gradients_are_differences_of_the_loss(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        struct balanced b;
        open_balanced(&b, names[i], true);
        make_grads(&b);
        hold_choices(&b);
        const double norm = norm_of(b.grads, b.m->n_elements);
        assert_true(norm > 1e-3);
        for (size_t j = 0; j < b.m->n_params; j += STEPS_APART) {
            const double apart = slope_apart(&b, &b.m->params[j]);
            if (!(apart < 2e-3 * norm))
                fail_msg("%s %s: slope apart by %g, norm of the gradient %g", names[i],
                         b.m->params[j].name, apart, norm);
        }
        close_balanced(&b);
    }
}

/* ---- what it leaves alone ---- */
static void without_coefficients_nothing_is_added(void **state)
{
    (void)state;
    struct balanced b;
    open_balanced(&b, "qwen2_moe", false);
    NEED(kg_acts_balance(b.acts, NULL, err));
    make_grads(&b);
    for (int64_t i = 0; i < b.m->n_elements; i++)
        assert_true(b.grads[i] == 0);
    close_balanced(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_of_layers_and_sums_of_probabilities),
        cmocka_unit_test(value_and_gradient_are_those_of_transformers),
        cmocka_unit_test(gradients_are_differences_of_the_loss),
        cmocka_unit_test(without_coefficients_nothing_is_added),
    };
    return RUN_SHOWN(tests, NULL, NULL);
}
