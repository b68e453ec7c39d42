/* However an optimizer batch is split into micro-batches and lanes, its gradient is the
 * same up to fp32 rounding: for every surrogate and every aggregation, with a KL, an
 * entropy bonus, dropped completions and advantages divided by the batch's deviation.
 *
 * The batch is sampled once. Then the weights change, so that ratios are not 1, and the
 * gradient of one update is taken for each algorithm and each split.
 */
#include "train/rl_testing.h"

#include "base/sanitized_testing.h"

#define ROOT "build/test-runs/split"

enum { LONGEST = 40 };

static const double tolerance = 1e-5; /* relative to the gradient's norm */

static struct opened o;
static struct kg_rl_batch batch;
static float *weights; /* at the start of the update */
static float *whole;   /* gradient of the batch in one pack */
static int64_t room;   /* tokens of the pass as configured */

static const char *options[] = {"algo.surrogate=dppo-topk-kl",
                                "algo.top_k=4",
                                "kl.estimator=topk-reverse",
                                "kl.top_k=4",
                                "kl.beta=0.3",
                                "anchor.kind=fixed",
                                "algo.entropy_coef=0.1",
                                "algo.advantage=batch-std",
                                "algo.mask_truncated=true",
                                "algo.delta_low=0.02",
                                "algo.delta_high=0.02",
                                "optim.clip_norm=0",
                                "model.dtype=fp32",
                                "rollout.max_tokens=8",
                                "rollout.prompts=3",
                                "rollout.samples=3",
                                "train.share_prefix=false",
                                NULL};
enum { LAST = sizeof options / sizeof *options - 2 };

/* Keys of surrogates and aggregations that tests choose later. */
static const char *const of_later[][2] = {
    {"algo.clip_low", "0.05"}, {"algo.clip_high", "0.05"}, {"algo.cov_ratio", "0.25"},
    {"algo.cov_low", "-1"},    {"algo.cov_coef", "5"},     {"algo.length_norm", "32"}};

static void *must_alloc(size_t bytes)
{
    struct kg_err err;
    void *p = kg_mem_calloc(1, bytes, "test", &err);

    assert_non_null(p);
    return p;
}

static size_t bytes(void)
{
    return (size_t)o.run.state.model->n_elements * sizeof *weights;
}

static int open_batch(void **state)
{
    int equal = 0;

    (void)state;
    open_run(&o, ROOT, options);
    for (size_t i = 0; i < sizeof of_later / sizeof *of_later; i++)
        NEED(kg_algo_set(&o.run.in.algo, of_later[i][0], of_later[i][1], err));
    disturb(o.run.state.anchor);
    NEED(kg_rl_sample(&batch, &o.run.in, &o.run.state, &o.run.work, err));
    NEED(kg_rl_prepare(&batch, &o.run.in, &o.run.state, &o.run.work, err));
    for (size_t i = 0; i < batch.n_trajs; i++) {
        batch.trajs[i].reward = (double)(i * i % 5) / 4; /* signal in every group */
        equal += batch.trajs[i].finish == KG_FINISH_LENGTH;
    }
    assert_true(equal > 0 && (size_t)equal < batch.n_trajs); /* some are dropped */
    for (int64_t i = 0; i < o.run.state.model->n_elements; i++)
        o.run.state.model->master.data[i] *= 1 + 0.02f * (float)(i % 5 - 2);
    weights = must_alloc(bytes());
    whole = must_alloc(bytes());
    memcpy(weights, o.run.state.model->master.data, bytes());
    room = o.run.work.rows->max_tokens;
    return 0;
}

/* Gradient of the last combination, without shared prompts. */
static float *unshared;

static int open_shared(void **state)
{
    options[LAST] = "train.share_prefix=true";
    return open_batch(state);
}

static int close_batch(void **state)
{
    (void)state;
    if (!unshared) {
        unshared = whole;
        whole = NULL;
    }
    kg_mem_free(whole);
    kg_mem_free(weights);
    kg_rl_batch_release(&batch);
    close_run(&o);
    return 0;
}

/* Takes the gradient of one update, in packs of at most `micro` tokens and in `lanes`
 * lanes.   returns whether there was an update */
static bool gradient(int64_t micro, int lanes)
{
    struct kg_rl_totals totals = {0};
    struct kg_policy_advantage a;

    memcpy(o.run.state.model->master.data, weights, bytes());
    NEED(kg_model_refresh(o.run.state.model, err));
    o.run.work.rows->max_tokens = micro;
    o.run.in.recipe.train.lanes = lanes;
    NEED(kg_rl_train(&totals, &a, &batch, &o.run, err));
    o.run.work.rows->max_tokens = room;
    assert_false(totals.skipped);
    assert_true(totals.first_metrics.ratio_max > 1.001); /* off-policy */
    return totals.updates == 1;
}

static double distance(const float *g)
{
    double apart = 0, size = 0;

    for (int64_t i = 0; i < o.run.state.model->n_elements; i++) {
        apart += ((double)g[i] - whole[i]) * ((double)g[i] - whole[i]);
        size += (double)whole[i] * whole[i];
    }
    assert_true(size > 1e-12);
    return sqrt(apart / size);
}

static void choose(const char *key, const char *value)
{
    NEED(kg_algo_set(&o.run.in.algo, key, value, err));
}

/* Distance of the current gradient from `whole`. */
static double apart(const char *surrogate, const char *aggregate, const char *how)
{
    double d = distance(o.run.state.optim->grads.data);

    if (!(d <= tolerance))
        fail_msg("%s, %s: %g apart %s", surrogate, aggregate, d, how);
    return d;
}

static double cut(const char *surrogate, const char *aggregate)
{
    double worst;

    choose("algo.surrogate", surrogate);
    choose("algo.aggregate", aggregate);
    /* rpg surrogates contain their KL */
    choose("kl.estimator", strncmp(surrogate, "rpg-", 4) == 0 ? "none" : "topk-reverse");
    assert_true(gradient(room, 1));
    memcpy(whole, o.run.state.optim->grads.data, bytes());
    assert_true(gradient(LONGEST, 1));
    worst = apart(surrogate, aggregate, "in packs of one");
    assert_true(gradient(64, 1));
    worst = fmax(worst, apart(surrogate, aggregate, "in packs of 64 tokens"));
    assert_true(gradient(64, 4));
    return fmax(worst, apart(surrogate, aggregate, "out of four lanes"));
}

/* Surrogates of whole sequences or batches meet every aggregation, the others one each,
 * in turn. */
static void every_surrogate_has_one_gradient_however_it_is_cut(void **state)
{
    size_t modes = kg_policy_n_rows(KG_TABLE_AGGREGATE);
    double worst = 0;
    int n = 0;

    (void)state;
    for (size_t i = 0; i < kg_policy_n_rows(KG_TABLE_SURROGATE); i++)
        for (size_t m = 0; m < modes; m++) {
            const struct kg_policy_about *row = kg_policy_row(KG_TABLE_SURROGATE, i);

            if ((row->scope == KG_SCOPE_TOKEN && i > 0 && m != i % modes) ||
                (SANITIZED && (i + m) % 3 != 0))
                continue;
            worst = fmax(worst,
                         cut(row->name, kg_policy_row(KG_TABLE_AGGREGATE, m)->name));
            n++;
        }
    printf("    %d compositions, at most %.1e of the gradient's norm apart\n", n, worst);
}

/* With prompts computed once per group, the same batch must have the same gradient. The
 * combination is the last one of the other test. */
static void a_shared_prompt_has_the_same_gradient(void **state)
{
    (void)state;
    memcpy(whole, unshared, bytes());
    assert_true(gradient(room, 1));
    assert_true(kg_rows_saved(o.run.work.rows) > 0);
    assert_true(apart("the last", "the last", "with shared prompts") > 0);
    assert_true(gradient(room, 4));
    apart("the last", "the last", "with shared prompts out of four lanes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_surrogate_has_one_gradient_however_it_is_cut),
    };
    const struct CMUnitTest shared[] = {
        cmocka_unit_test(every_surrogate_has_one_gradient_however_it_is_cut),
        cmocka_unit_test(a_shared_prompt_has_the_same_gradient),
    };
    const int failed = cmocka_run_group_tests_name("train/split", tests, open_batch,
                                                   close_batch);

    return failed + cmocka_run_group_tests_name("train/split, prompts shared", shared,
                                                open_shared, close_batch);
}
