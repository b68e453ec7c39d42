/* Between grading and the loss: the KL in the reward, its controller, shaping by length.
 */
#include "train/rl_testing.h"

#include "policy/shaping.h"

#define ROOT "build/test-runs/reward"

/* One step of the run; the numbers that it logged are asked for one by one. */
static void step(struct opened *o) { NEED(kg_rl_step(&o->run, err)); }

/* ---- the KL in the reward ---- */

/* What answer i of hand-made trajectories is worth with the KL taken off. */
static double worth(const struct kg_rl_batch *b, size_t i, double beta)
{
    double r = b->trajs[i].reward;

    for (int64_t t = b->begin[i]; t < b->begin[i + 1]; t++)
        r -= beta * (b->old_logp[t] - b->anchor_logp[t]);
    return r;
}

static void the_kl_comes_off_the_reward_and_leaves_the_loss(void **state)
{
    static const char *const kinds[] = {"anchor.kind=fixed", "anchor.kind=ema",
                                        "anchor.kind=copy"};

    (void)state;
    for (int k = 0; k < 3; k++) {
        const char *extra[] = {"kl.in=reward",
                               "kl.estimator=k1",
                               "kl.beta=0.25",
                               "algo.advantage=dr-grpo",
                               kinds[k],
                               "train.updates_per_step=2",
                               "algo.aggregate=token-mean",
                               NULL};
        struct opened o;
        struct kg_rl_batch b = {0};
        struct kg_rl_totals totals = {0};
        struct kg_policy_advantage a;

        open_run(&o, ROOT "/kl", extra);
        disturb(o.run.anchor);
        make_trajs(&b, 0, false);
        NEED(kg_rl_prepare(&b, &o.run, err));
        NEED(kg_rl_train(&totals, &a, &b, &o.run, err));
        for (size_t i = 0; i < N_TRAJS; i++) {
            double other = worth(&b, i ^ 1, 0.25), own = worth(&b, i, 0.25);

            assert_true(own != b.trajs[i].reward);
            assert_true(fabs(b.advantage[b.begin[i]] - (own - other) / 2) < 1e-12);
        }
        assert_true(totals.kl == 0 && totals.metrics.kl_tokens == 0);
        assert_true(totals.kl_reward != 0 && totals.updates == 2);
        kg_rl_batch_release(&b);
        close_run(&o);
    }
}

/* With every answer worth the same, the KL alone makes advantages: the step has something
 * to learn where without it nothing moves. */
static void the_kl_alone_moves_weights(void **state)
{
    static const char *const with[] = {"kl.in=reward",
                                       "kl.estimator=k1",
                                       "kl.beta=1",
                                       "anchor.kind=fixed",
                                       "task.name=external",
                                       "task.command=sed 's/.*/{\"score\": 0}/'",
                                       NULL};
    struct opened o;

    (void)state;
    open_run(&o, ROOT "/alone", with);
    disturb(o.run.anchor);
    step(&o);
    assert_true(last_metric(ROOT "/alone", "optim/updates") == 1);
    assert_true(last_metric(ROOT "/alone", "optim/grad_norm") > 0);
    assert_true(last_metric(ROOT "/alone", "loss/kl") == 0);
    assert_true(last_metric(ROOT "/alone", "kl/value") != 0);
    assert_true(last_metric(ROOT "/alone", "reward/mean") == 0);
    close_run(&o);
}

/* ---- the controller ---- */

static void the_coefficient_follows_the_kl_of_the_step_before(void **state)
{
    static const char *const where[] = {"kl.in=reward", "kl.in=loss"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *extra[] = {where[i],      "kl.estimator=k2", "anchor.kind=fixed",
                               "kl.beta=0.1", "kl.target=1e-3",  "kl.horizon=40",
                               NULL};
        struct opened o;
        double beta = 0.1;

        open_run(&o, ROOT "/adaptive", extra);
        disturb(o.run.anchor);
        for (int s = 0; s < 3; s++) {
            step(&o);
            assert_true(last_metric(ROOT "/adaptive", "kl/beta") == beta);
            beta = kg_policy_adaptive_kl(beta, last_metric(ROOT "/adaptive", "kl/value"),
                                         1e-3, 40, 16);
            assert_true(fabs(o.run.count.kl_beta / beta - 1) < 1e-12);
            beta = o.run.count.kl_beta;
        }
        assert_true(beta > 0.12); /* far above the target: up by 1.08 a step */
        close_run(&o);
    }
}

static void without_a_target_the_coefficient_stays(void **state)
{
    static const char *const extra[] = {"kl.estimator=k2", "anchor.kind=fixed",
                                        "kl.beta=0.1", NULL};
    struct opened o;

    (void)state;
    open_run(&o, ROOT "/still", extra);
    disturb(o.run.anchor);
    step(&o);
    step(&o);
    assert_true(last_metric(ROOT "/still", "kl/beta") == 0.1);
    close_run(&o);
}

/* ---- shaping by length ---- */

static void long_answers_are_fined_and_the_task_s_reward_stays(void **state)
{
    static const char *const extra[] = {"rollout.overlong_buffer=11",
                                        "rollout.overlong_factor=0.5",
                                        "algo.advantage=batch-mean", NULL};
    struct opened o;
    struct kg_rl_batch b = {0};
    struct kg_rl_totals totals = {0};
    struct kg_policy_advantage a;
    double sum = 0;

    (void)state;
    open_run(&o, ROOT "/long", extra);
    NEED(kg_rl_sample(&b, &o.run, err));
    NEED(kg_rl_prepare(&b, &o.run, err));
    for (size_t i = 0; i < b.n_trajs; i++) {
        int64_t length = b.begin[i + 1] - b.begin[i];

        assert_true(b.trajs[i].reward == b.grades[i].reward);
        assert_true(b.trajs[i].shaping == kg_policy_overlong(length, 12, 11, 0.5));
        assert_true(length > 1 ? b.trajs[i].shaping < 0 : b.trajs[i].shaping == 0);
        sum += b.trajs[i].reward + b.trajs[i].shaping;
    }
    NEED(kg_rl_train(&totals, &a, &b, &o.run, err));
    for (size_t i = 0; i < b.n_trajs; i++)
        assert_true(
            fabs(b.advantage[b.begin[i]] - (b.trajs[i].reward + b.trajs[i].shaping -
                                            sum / (double)b.n_trajs)) < 1e-12);
    kg_rl_batch_release(&b);
    step(&o);
    assert_true(last_metric(ROOT "/long", "reward/shaped_mean") <
                last_metric(ROOT "/long", "reward/mean"));
    assert_true(last_metric(ROOT "/long", "reward/overlong") > 0);
    close_run(&o);
}

static void a_buffer_longer_than_the_answers_is_refused(void **state)
{
    static const char *const extra[] = {"rollout.overlong_buffer=13", NULL};
    struct kg_config *config = config_of(ROOT "/none", extra);
    struct kg_run run;
    struct kg_err e = {0};

    (void)state;
    assert_int_equal(kg_run_open(&run, config, &e), KG_EINVAL);
    assert_non_null(strstr(e.message, "rollout.overlong_buffer"));
    kg_config_free(config);
}

/* ---- sequence masks ---- */

/* On-policy no answer is away from the sampler; after the first update every one is, and
 * a bound of next to nothing leaves the second update without a gradient. */
static void a_mask_stops_the_update_that_went_too_far(void **state)
{
    static const char *const extra[] = {
        "algo.mask=trm-max",         "algo.mask_delta=1e-14", "train.updates_per_step=2",
        "algo.advantage=batch-mean", "model.dtype=fp32",      NULL};
    struct opened o;

    (void)state;
    open_run(&o, ROOT "/mask", extra);
    step(&o);
    assert_true(last_metric(ROOT "/mask", "optim/updates") == 1);
    assert_true(last_metric(ROOT "/mask", "optim/idle_updates") == 1);
    assert_true(last_metric(ROOT "/mask", "mask/answers") == 0.5);
    assert_true(last_metric(ROOT "/mask", "mask/divergence_max") > 1e-14);
    close_run(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_kl_comes_off_the_reward_and_leaves_the_loss),
        cmocka_unit_test(the_kl_alone_moves_weights),
        cmocka_unit_test(the_coefficient_follows_the_kl_of_the_step_before),
        cmocka_unit_test(without_a_target_the_coefficient_stays),
        cmocka_unit_test(long_answers_are_fined_and_the_task_s_reward_stays),
        cmocka_unit_test(a_mask_stops_the_update_that_went_too_far),
        cmocka_unit_test(a_buffer_longer_than_the_answers_is_refused),
    };

    return cmocka_run_group_tests_name("train/reward", tests, NULL, NULL);
}
