/* Between sampling and the loss: the KL in the reward, its controller, length penalties,
 * dynamic sampling, greedy completions, sums of squares; and their metrics. */
#include "train/rl_testing.h"

#include "data/jsonl.h"
#include "policy/shaping.h"
#include "rollout/score_testing.h"
#include "train/same_testing.h"
#include "train/step/rl_log.h"

#define ROOT "build/test-runs/reward"

/* Runs one step; tests read the numbers that it logged one by one. */
static void step(struct opened *o) { NEED(kg_rl_step(&o->run, err)); }

/* ---- the KL in the reward ---- */

/* The reward of hand-made trajectory i, minus its KL. */
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
        disturb(o.run.state.anchor);
        make_trajs(&b, 0, false);
        NEED(kg_rl_prepare(&b, &o.run.in, &o.run.state, &o.run.work, err));
        NEED(kg_rl_train(&totals, &a, &b, &o.run, err));
        for (size_t i = 0; i < N_TRAJS; i++) {
            double other = worth(&b, i ^ 1, 0.25), own = worth(&b, i, 0.25);

            assert_true(own != b.trajs[i].reward);
            assert_true(fabs(b.advantage[b.begin[i]] - (own - other) / 2) < 1e-12);
        }
        assert_true(totals.kl == 0 && totals.metrics.kl_tokens == 0);
        assert_true(totals.kl_taken != 0 && totals.updates == 2);
        kg_rl_batch_release(&b);
        close_run(&o);
    }
}

/* The KL is subtracted from the advantage of every token of the model. A tool's tokens
 * have no KL, and with advantage-future they pass on the KL of later tokens. */
static void the_kl_comes_off_advantages_of_single_tokens(void **state)
{
    static const char *const places[] = {"kl.in=advantage", "kl.in=advantage-future"};

    (void)state;
    for (int k = 0; k < 2; k++) {
        const char *extra[] = {places[k],         "kl.estimator=k2",
                               "kl.beta=0.25",    "algo.advantage=dr-grpo",
                               "anchor.kind=ema", "kl.target=0.1",
                               "kl.horizon=100",  NULL};
        struct opened o;
        struct kg_rl_batch b = {0};
        struct kg_rl_totals totals = {0};
        struct kg_policy_advantage a;
        double most = 0, mean = 0;

        open_run(&o, ROOT "/off", extra);
        disturb(o.run.state.anchor);
        make_trajs(&b, 0, false);
        NEED(kg_rl_prepare(&b, &o.run.in, &o.run.state, &o.run.work, err));
        NEED(kg_rl_train(&totals, &a, &b, &o.run, err));
        for (size_t i = 0; i < N_TRAJS; i++) {
            double plain = (b.trajs[i].reward - b.trajs[i ^ 1].reward) / 2, sum = 0;
            int64_t length = b.begin[i + 1] - b.begin[i];

            assert_int_equal(length, kg_traj_model_tokens(&b.trajs[i]));
            for (int64_t t = b.begin[i + 1] - 1; t >= b.begin[i]; t--) {
                double d = b.old_logp[t] - b.anchor_logp[t], kl = d * d / 2;

                sum += kl;
                kl = 0.25 * (k ? sum : kl);
                assert_true(fabs(b.advantage[t] - (plain - kl)) < 1e-12);
                most = fmax(most, kl);
            }
            mean += sum / (double)length / N_TRAJS;
        }
        assert_true(most > 0 && fabs(totals.kl_taken_max - most) < 1e-12);
        assert_true(fabs(totals.kl_taken - mean) < 1e-12);
        assert_true(totals.kl == 0 && totals.metrics.kl_tokens == 0);
        kg_rl_batch_release(&b);
        close_run(&o);
    }
}

/* A run logs the KL, adapts beta to it, and resumes to the same bits. */
static void a_run_of_it_is_resumed_to_the_bit(void **state)
{
    static const char *const keys[] = {
        "kl.in=advantage-future", "kl.estimator=k1",
        "kl.beta=0.05",           "kl.target=0.001",
        "kl.horizon=100",         "anchor.kind=ema",
        "anchor.period=1",        "train.updates_per_step=2",
        "eval.problems=1",        NULL};
    static const char *const steps[] = {"train.steps=2", "train.steps=1"};
    static const char *const dirs[] = {ROOT "/taken", ROOT "/broken-off"};

    (void)state;
    for (int i = 0; i < 3; i++) {
        const char *const length[] = {steps[i == 1], NULL};
        const char *const *const lists[] = {rl_base, keys, length};
        struct kg_config *c;

        if (i < 2)
            fresh(dirs[i]);
        c = config_from(dirs[i > 0], lists, 3);
        NEED(kg_train_run(c, i == 2, false, err));
        kg_config_free(c);
    }
    assert_same_file(dirs[0], dirs[1], "checkpoints/step-000002/model/model.safetensors");
    assert_true(last_metric(dirs[0], "kl/taken_max") > 0);
    assert_true(last_metric(dirs[0], "kl/value") != 0);
    assert_true(last_metric(dirs[0], "loss/kl") == 0);
    assert_true(last_metric(dirs[0], "kl/beta") != 0.05); /* adapted */
}

/* All rewards are 0, so only the KL gives advantages: the step has a gradient, and
 * without the KL it has none. */
static void the_kl_alone_moves_weights(void **state)
{
    static const char *const with[] = {"kl.in=reward",
                                       "kl.estimator=k1",
                                       "kl.beta=1",
                                       "anchor.kind=fixed",
                                       "task.name=external",
                                       "task.command=sed -u 's/.*/{\"score\": 0}/'",
                                       NULL};
    struct opened o;

    (void)state;
    open_run(&o, ROOT "/alone", with);
    disturb(o.run.state.anchor);
    step(&o);
    assert_true(last_metric(ROOT "/alone", "optim/updates") == 1);
    assert_true(last_metric(ROOT "/alone", "optim/grad_norm") > 0);
    assert_true(last_metric(ROOT "/alone", "loss/kl") == 0);
    assert_true(last_metric(ROOT "/alone", "kl/value") != 0);
    assert_true(last_metric(ROOT "/alone", "reward/mean") == 0);
    close_run(&o);
}

/* ---- several rewards ---- */

/* low: 1 if the completion begins with 1 or 2; all: 1 for every completion. */
#define SEVERAL                                                                          \
    "task.name=external",                                                                \
        "task.rewards=[low=external sed -u -E -f " ROOT                                  \
        "/low.sed, all=external sed -u -f " ROOT "/all.sed]",                            \
        "rollout.prompts=16"

static void write_graders(void)
{
    static const char low[] =
        "s/.*\"response\": *\"[12].*/{\"score\": 1}/\nt\ns/.*/{\"score\": 0}/\n";
    static const char all[] = "s/.*/{\"score\": 1}/\n";

    NEED(kg_file_make_dirs(ROOT, err));
    NEED(kg_file_write_atomic(ROOT "/low.sed", low, strlen(low), err));
    NEED(kg_file_write_atomic(ROOT "/all.sed", all, strlen(all), err));
}

static void several_rewards_are_summed_kept_and_dumped(void **state)
{
    static const char *const sum[] = {SEVERAL, "task.reward_weights=[1, 0.5]",
                                      "algo.advantage=dr-grpo", NULL};
    struct kg_str text = {0};
    struct opened o;
    double low;

    (void)state;
    write_graders();
    open_run(&o, ROOT "/several", sum);
    step(&o);
    low = last_metric(ROOT "/several", "reward/part/low");
    assert_true(low > 0 && low < 1);
    assert_true(last_metric(ROOT "/several", "reward/part/all") == 1);
    assert_true(last_metric(ROOT "/several", "reward/part_ungraded/low") == 0);
    assert_true(fabs(last_metric(ROOT "/several", "reward/mean") - low - 0.5) < 1e-12);
    assert_true(last_metric(ROOT "/several", "reward/accuracy") == low);
    assert_true(last_metric(ROOT "/several", "grader/starts") == 2);
    NEED(
        kg_zst_read(&text, ROOT "/several/rollouts/step-000001.jsonl.zst", 1 << 24, err));
    assert_non_null(strstr(text.data, "\"reward\":1.5,"));
    assert_non_null(strstr(text.data, "\"rewards\":{\"low\":1"));
    assert_non_null(strstr(text.data, "\"rewards\":{\"low\":0"));
    kg_str_release(&text);
    close_run(&o);
}

static void run_is_refused(const char *const *extra, const char *part)
{
    struct kg_config *config = config_of(ROOT "/none", extra);
    struct kg_run run;
    struct kg_err e = {0};

    assert_int_not_equal(kg_run_open(&run, config, &e), KG_OK);
    if (!strstr(e.message, part))
        fail_msg("expected '%s', found: %s", part, e.message);
    kg_config_free(config);
}

/* The reward that every completion gets contributes nothing. */
static void gdpo_takes_each_reward_by_itself(void **state)
{
    static const char *const each[] = {SEVERAL, "algo.advantage=gdpo", NULL};
    static const char *const one[] = {"task.name=external",
                                      "task.rewards=[low=external true]",
                                      "algo.advantage=gdpo", NULL};
    static const char *const fined[] = {SEVERAL, "algo.advantage=gdpo",
                                        "rollout.overlong_buffer=4", NULL};
    static const char *const few[] = {SEVERAL, "task.reward_weights=[1]", NULL};
    static const char *const idle[] = {SEVERAL, "task.command=true", NULL};
    static const char *const words[] = {SEVERAL, "task.reward_weights=[1, much]", NULL};
    struct opened o;

    (void)state;
    write_graders();
    open_run(&o, ROOT "/gdpo", each);
    step(&o);
    assert_true(fabs(last_metric(ROOT "/gdpo", "advantage/mean")) < 1e-9);
    assert_true(last_metric(ROOT "/gdpo", "advantage/max") > 0.5);
    assert_true(last_metric(ROOT "/gdpo", "optim/grad_norm") > 0);
    close_run(&o);
    run_is_refused(one, "task.rewards");
    run_is_refused(fined, "rollout.overlong_buffer");
    run_is_refused(few, "task.reward_weights");
    run_is_refused(words, "found 'much'");
    run_is_refused(idle, "task.command");
}

/* ---- the KL in the loss with advantages divided by a batch deviation ---- */

/* The loss's KL for hand-made trajectories, and the divisor of their advantages. */
static double kl_of_step(double *std, const char *advantage)
{
    const char *extra[] = {advantage, "kl.estimator=k2", "kl.beta=0.1",
                           "anchor.kind=fixed", NULL};
    struct opened o;
    struct kg_rl_batch b = {0};
    struct kg_rl_totals totals = {0};
    struct kg_policy_advantage a;

    open_run(&o, ROOT "/std", extra);
    disturb(o.run.state.anchor);
    make_trajs(&b, 0, false);
    b.trajs[1].reward = 3;
    NEED(kg_rl_prepare(&b, &o.run.in, &o.run.state, &o.run.work, err));
    NEED(kg_rl_train(&totals, &a, &b, &o.run, err));
    kg_rl_batch_release(&b);
    close_run(&o);
    *std = a.batch_std;
    return totals.kl;
}

static void the_kl_is_divided_by_the_deviation_of_the_batch(void **state)
{
    double none, std, plain = kl_of_step(&none, "algo.advantage=dr-grpo");
    double divided = kl_of_step(&std, "algo.advantage=batch-std");

    (void)state;
    assert_true(none == 0 && plain > 0);
    /* centred rewards -3/2, 3/2, -1/2, 1/2 */
    assert_true(fabs(std - sqrt(5.0 / 3)) < 1e-12);
    assert_true(fabs(divided * (std + 1e-6) / plain - 1) < 1e-12);
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
        disturb(o.run.state.anchor);
        for (int s = 0; s < 3; s++) {
            step(&o);
            assert_true(last_metric(ROOT "/adaptive", "kl/beta") == beta);
            beta = kg_policy_adaptive_kl(beta, last_metric(ROOT "/adaptive", "kl/value"),
                                         1e-3, 40, 16);
            assert_true(fabs(o.run.state.count.kl_beta / beta - 1) < 1e-12);
            beta = o.run.state.count.kl_beta;
        }
        assert_true(beta > 0.12); /* far above the target: x 1.08 per step */
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
    disturb(o.run.state.anchor);
    step(&o);
    step(&o);
    assert_true(last_metric(ROOT "/still", "kl/beta") == 0.1);
    close_run(&o);
}

/* ---- length penalties ---- */

static void long_answers_are_fined_and_the_task_s_reward_stays(void **state)
{
    static const char *const extra[] = {"rollout.overlong_buffer=11",
                                        "rollout.overlong_factor=0.5",
                                        "algo.advantage=batch-mean", NULL};
    struct opened o;
    struct kg_rl_batch b = {0};
    struct kg_rl_totals totals = {0};
    struct kg_policy_advantage a;
    double sum = 0, fined = 0;

    (void)state;
    open_run(&o, ROOT "/long", extra);
    NEED(kg_rl_sample(&b, &o.run.in, &o.run.state, &o.run.work, err));
    NEED(kg_rl_prepare(&b, &o.run.in, &o.run.state, &o.run.work, err));
    for (size_t i = 0; i < b.n_trajs; i++) {
        int64_t length = b.begin[i + 1] - b.begin[i];

        assert_true(b.trajs[i].reward == b.grades[i].reward);
        assert_true(b.trajs[i].shaping == kg_policy_overlong(length, 12, 11, 0.5));
        assert_true(length > 1 ? b.trajs[i].shaping < 0 : b.trajs[i].shaping == 0);
        sum += b.trajs[i].reward + b.trajs[i].shaping;
        fined += b.trajs[i].shaping != 0;
    }
    NEED(kg_rl_train(&totals, &a, &b, &o.run, err));
    NEED(kg_rl_log(&o.run, &b, &totals, &a, err));
    sum /= (double)b.n_trajs, fined /= (double)b.n_trajs;
    assert_true(last_metric(ROOT "/long", "reward/overlong") == fined);
    assert_true(fabs(last_metric(ROOT "/long", "reward/shaped_mean") - sum) < 1e-12);
    for (size_t i = 0; i < b.n_trajs; i++)
        assert_true(fabs(b.advantage[b.begin[i]] -
                         (b.trajs[i].reward + b.trajs[i].shaping - sum)) < 1e-12);
    kg_rl_batch_release(&b);
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

/* ---- dynamic sampling ---- */

enum { WANTED = 4, ROW = 64 };

/* Right if the completion begins with 1 or 2: in some prompts, some of four are. */
#define BEGINS_LOW                                                                       \
    "task.name=external",                                                                \
        "task.command=sed -u -E 's/.*\"response\": *\"[12].*/{\"score\": 1}/; t; "       \
        "s/.*/{\"score\": 0}/'"

/* Trajectories with the same draw and sample must be equal. */
static void assert_same_answer(const struct kg_traj *a, const struct kg_traj *b)
{
    assert_int_equal(a->draw, b->draw);
    assert_int_equal(a->prompt_index, b->prompt_index);
    assert_int_equal(a->sample, b->sample);
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->tokens, b->tokens, a->n * sizeof *a->tokens);
    assert_memory_equal(a->logp, b->logp, a->n * sizeof *a->logp);
}

static bool all_equal(const struct kg_rl_batch *b, size_t first)
{
    for (int i = 1; i < b->group; i++)
        if (b->grades[first + (size_t)i].correct != b->grades[first].correct)
            return false;
    return true;
}

/* The next ROW prompts of the run, sampled without dynamic sampling, which must choose
 * its prompts from these. */
static void sample_row(struct kg_rl_batch *row)
{
    static const char *const extra[] = {BEGINS_LOW, "rollout.prompts=64", NULL};
    struct opened o;

    open_run(&o, ROOT "/row", extra);
    NEED(kg_rl_sample(row, &o.run.in, &o.run.state, &o.run.work, err));
    close_run(&o);
}

/* The row's trajectory with the draw and sample of t. */
static const struct kg_traj *of_row(const struct kg_rl_batch *row,
                                    const struct kg_traj *t)
{
    assert_true(t->draw < ROW);
    return &row->trajs[t->draw * (size_t)row->group + (size_t)t->sample];
}

/* Training must use the first WANTED mixed prompts of the row, in its order, for any size
 * of the generation batch. */
static void check_learned(const struct kg_rl_batch *b, const struct kg_rl_batch *row)
{
    size_t at = 0, groups = 0;

    for (size_t g = 0; g < ROW && groups < WANTED; g++) {
        if (all_equal(row, g * (size_t)row->group))
            continue;
        groups++;
        while (at < b->n_trajs && !kg_rl_learns(b, at))
            at++;
        for (int i = 0; i < row->group; i++, at++) {
            assert_true(kg_rl_learns(b, at));
            assert_same_answer(&b->trajs[at],
                               &row->trajs[g * (size_t)row->group + (size_t)i]);
        }
    }
    assert_int_equal(groups, WANTED);
    while (at < b->n_trajs)
        assert_false(kg_rl_learns(b, at++));
    assert_int_equal(b->n_learned, WANTED * (size_t)b->group);
}

static void check_counts(const struct kg_rl_batch *b)
{
    const struct kg_rl_dynamic *d = &b->dynamic;

    assert_int_equal(b->n_trajs + b->n_spare, d->answers);
    assert_int_equal(d->prompts * b->group, d->answers);
    assert_int_equal(b->places, d->prompts);
    assert_int_equal(d->equal, d->all_right + d->all_wrong);
    assert_int_equal(d->prompts, WANTED + d->equal + d->surplus);
    assert_true(d->equal > 0);
}

static void the_first_mixed_prompts_of_the_row_are_learned_from(void **state)
{
    static const char *const sizes[] = {"rollout.oversample=1", "rollout.oversample=3",
                                        "rollout.oversample=1.25"};
    struct kg_rl_batch row = {0};

    (void)state;
    sample_row(&row);
    for (int i = 0; i < 3; i++) {
        const char *extra[] = {BEGINS_LOW, "rollout.dynamic=true", sizes[i], NULL};
        struct opened o;
        struct kg_rl_batch b = {0};

        open_run(&o, ROOT "/dynamic", extra);
        NEED(kg_rl_sample(&b, &o.run.in, &o.run.state, &o.run.work, err));
        check_learned(&b, &row);
        check_counts(&b);
        assert_int_equal(b.n_trajs, b.n_learned); /* no KL: the rest is in spare */
        for (size_t t = 0; t < b.n_spare; t++)
            assert_same_answer(&b.spare[t], of_row(&row, &b.spare[t]));
        assert_int_equal(o.run.state.count.prompts, 0);
        kg_rl_batch_release(&b);
        close_run(&o);
    }
    kg_rl_batch_release(&row);
}

/* Prepares and trains a batch under `filter`; totals has what the loss saw. */
static void train_dynamic(struct kg_rl_batch *b, struct kg_rl_totals *totals,
                          const char *filter, const char *updates)
{
    const char *extra[] = {BEGINS_LOW,
                           "rollout.dynamic=true",
                           "rollout.oversample=2",
                           "kl.estimator=k2",
                           "kl.beta=0.5",
                           "anchor.kind=fixed",
                           "algo.advantage=batch-mean",
                           "algo.aggregate=token-mean",
                           filter,
                           updates,
                           NULL};
    struct opened o;
    struct kg_policy_advantage a;

    open_run(&o, ROOT "/filter", extra);
    disturb(o.run.state.anchor);
    NEED(kg_rl_sample(b, &o.run.in, &o.run.state, &o.run.work, err));
    NEED(kg_rl_prepare(b, &o.run.in, &o.run.state, &o.run.work, err));
    NEED(kg_rl_train(totals, &a, b, &o.run, err));
    close_run(&o);
}

static int64_t tokens_learned(const struct kg_rl_batch *b)
{
    int64_t n = 0;

    for (size_t i = 0; i < b->n_trajs; i++)
        n += kg_rl_learns(b, i) ? b->begin[i + 1] - b->begin[i] : 0;
    return n;
}

/* The KL covers all sampled completions. The policy term, and the mean for advantages,
 * cover only those that are learned from. */
static void the_kl_is_of_everything_that_was_sampled(void **state)
{
    struct kg_rl_batch row = {0}, b = {0};
    struct kg_rl_totals totals = {0};
    double sum = 0;
    int64_t learned;

    (void)state;
    sample_row(&row);
    train_dynamic(&b, &totals, "kl.after_filter=false", "train.updates_per_step=1");
    check_learned(&b, &row);
    check_counts(&b);
    learned = tokens_learned(&b);
    assert_int_equal(b.n_spare, 0);
    assert_true(learned < b.n);
    for (size_t i = 0; i < b.n_trajs; i++) {
        bool learns = kg_rl_learns(&b, i);

        for (int64_t t = b.begin[i]; t < b.begin[i + 1]; t++) {
            assert_true(b.pg_weight[t] == (learns ? 1.0 / (double)learned : 0));
            assert_true(b.kl_weight[t] == 1.0 / (double)b.n);
            assert_true(learns || b.advantage[t] == 0);
        }
        sum += b.advantage[b.begin[i]];
    }
    assert_true(fabs(sum) < 1e-12);
    assert_int_equal(totals.metrics.ratios, learned);
    assert_int_equal(totals.metrics.kl_tokens, b.n);
    kg_rl_batch_release(&b);
    kg_rl_batch_release(&row);
}

static void after_the_filter_the_kl_is_of_what_is_left(void **state)
{
    struct kg_rl_batch b = {0};
    struct kg_rl_totals totals = {0};

    (void)state;
    train_dynamic(&b, &totals, "kl.after_filter=true", "train.updates_per_step=1");
    assert_int_equal(b.n_trajs, b.n_learned);
    assert_true(b.n_spare > 0);
    assert_int_equal(totals.metrics.kl_tokens, b.n);
    assert_int_equal(totals.metrics.ratios, b.n);
    kg_rl_batch_release(&b);
}

/* With as many updates as prompts, each update has one prompt to learn from, wherever
 * dropped prompts are; every token is in one update. */
static void updates_share_the_prompts_that_are_learned_from(void **state)
{
    struct kg_rl_batch b = {0};
    struct kg_rl_totals totals = {0};

    (void)state;
    train_dynamic(&b, &totals, "kl.after_filter=false", "train.updates_per_step=4");
    assert_int_equal(totals.updates, 4);
    assert_int_equal(totals.metrics.kl_tokens, b.n);
    assert_int_equal(totals.metrics.ratios, tokens_learned(&b));
    kg_rl_batch_release(&b);
}

/* The next step continues in the row after the last prompt. All samples are dumped. */
static void a_step_counts_the_prompts_that_it_took(void **state)
{
    static const char *const extra[] = {BEGINS_LOW, "rollout.dynamic=true",
                                        "rollout.oversample=1", NULL};
    struct opened o;
    int64_t taken = 0;

    (void)state;
    open_run(&o, ROOT "/taken", extra);
    for (int s = 0; s < 3; s++) {
        step(&o);
        taken += (int64_t)last_metric(ROOT "/taken", "dynamic/prompts");
        assert_int_equal(o.run.state.count.prompts, taken);
        assert_true(last_metric(ROOT "/taken", "groups/all_right") == 0);
        assert_true(last_metric(ROOT "/taken", "groups/all_wrong") == 0);
        assert_true(last_metric(ROOT "/taken", "dynamic/batches") * 4 ==
                    last_metric(ROOT "/taken", "dynamic/prompts"));
    }
    assert_true(taken > 12);
    close_run(&o);
}

static void too_few_mixed_prompts_are_an_error_that_says_so(void **state)
{
    static const char *const extra[] = {
        "task.name=external",     "task.command=sed -u 's/.*/{\"score\": 0}/'",
        "rollout.dynamic=true",   "rollout.max_refills=3",
        "rollout.oversample=1.5", NULL};
    struct opened o;
    struct kg_err e = {0};

    (void)state;
    open_run(&o, ROOT "/few", extra);
    assert_int_equal(kg_rl_step(&o.run, &e), KG_ENOTFOUND);
    assert_non_null(strstr(e.message, "expected 4 prompts"));
    assert_non_null(strstr(e.message, "found 0 in 3 generation batches of 6"));
    assert_non_null(strstr(e.message, "all wrong 18"));
    assert_int_equal(o.run.state.count.step, 0);
    assert_int_equal(o.run.state.count.prompts, 0);
    assert_false(o.run.state.midway);
    close_run(&o);
}

static void dynamic_sampling_needs_groups_and_oversampling_needs_it(void **state)
{
    static const char *const lines[][2] = {
        {"rollout.samples=1", "rollout.dynamic=true"},
        {"rollout.oversample=3", "rollout.dynamic=false"}};

    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *extra[] = {lines[i][0], lines[i][1], "algo.advantage=batch-mean",
                               NULL};
        struct kg_config *config = config_of(ROOT "/none", extra);
        struct kg_run run;
        struct kg_err e = {0};

        assert_int_equal(kg_run_open(&run, config, &e), KG_EINVAL);
        assert_non_null(
            strstr(e.message, i == 0 ? "rollout.samples" : "rollout.oversample"));
        kg_config_free(config);
    }
}

/* ---- passes that some advantages need ---- */

/* The baseline is the reward of the completion at temperature 0, with its length penalty.
 * It is sampled once per prompt and not trained. */
static void a_greedy_answer_is_the_baseline_of_its_prompt(void **state)
{
    static const char *const extra[] = {"algo.advantage=remax",
                                        "rollout.overlong_buffer=11",
                                        "rollout.dynamic=true", BEGINS_LOW, NULL};
    struct opened o;
    struct kg_rl_batch b = {0};
    struct kg_rl_totals totals = {0};
    struct kg_policy_advantage a;
    size_t greedy = 0;

    (void)state;
    open_run(&o, ROOT "/greedy", extra);
    NEED(kg_rl_sample(&b, &o.run.in, &o.run.state, &o.run.work, err));
    NEED(kg_rl_prepare(&b, &o.run.in, &o.run.state, &o.run.work, err));
    NEED(kg_rl_train(&totals, &a, &b, &o.run, err));
    for (size_t s = 0; s < b.n_spare; s++) {
        const struct kg_traj *t = &b.spare[s];

        if (t->temperature != 0)
            continue;
        assert_int_equal(t->draw, b.trajs[4 * greedy].draw);
        assert_true(t->reward == 0 || t->reward == 1);
        for (size_t i = 4 * greedy; i < 4 * greedy + 4; i++) {
            double own = b.trajs[i].reward + b.trajs[i].shaping;

            assert_true(b.greedy[i] == t->reward + t->shaping);
            assert_true(fabs(b.advantage[b.begin[i]] - (own - b.greedy[i])) < 1e-12);
        }
        greedy++;
    }
    assert_int_equal(greedy, WANTED);
    assert_int_equal(b.n_trajs, 4 * WANTED);
    assert_true(totals.updates == 1);
    kg_rl_batch_release(&b);
    step(&o);
    assert_true(last_metric(ROOT "/greedy", "reward/greedy_ungraded") == 0);
    assert_true(last_metric(ROOT "/greedy", "reward/greedy_accuracy") >= 0);
    close_run(&o);
}

/* sum_v p_v^2 under the policy of old_logp, per token, against all log-probs; then a step
 * that needs it. */
static void sums_of_squares_are_those_of_the_old_policy(void **state)
{
    static const char *const extra[] = {"algo.advantage=token-baseline",
                                        "train.old_logp=recompute", NULL};
    float logp[MOST], at[MOST * VOCAB];
    int32_t ids[MOST * VOCAB];
    struct opened o;
    struct kg_rl_batch b = {0};
    int64_t n = 0;

    (void)state;
    open_run(&o, ROOT "/squares", extra);
    make_trajs(&b, 0, false);
    NEED(kg_rl_prepare(&b, &o.run.in, &o.run.state, &o.run.work, err));
    assert_int_equal(b.own_passes, 2); /* old log-probs and these sums count as work */
    assert_int_equal(b.anchor_passes, 0);
    for (int i = 0; i < MOST * VOCAB; i++)
        ids[i] = i % VOCAB;
    for (size_t i = 0; i < N_TRAJS; i++) {
        struct kg_traj *t = &b.trajs[i];
        struct kg_score_seq q = {.tokens = t->tokens,
                                 .n = t->n,
                                 .temperature = t->temperature,
                                 .indices = ids,
                                 .logp = logp,
                                 .logp_at = at};

        score_one(o.run.state.model, &q, VOCAB, 0);
        for (size_t j = 0; j < t->n; j++) {
            double sum = 0;

            if (layouts[i][j] != 'm')
                continue;
            for (size_t v = 0; v < VOCAB; v++)
                sum += exp(2 * (double)at[j * VOCAB + v]);
            assert_true(fabs(b.sum_sq[n++] / sum - 1) < 1e-5);
        }
    }
    assert_int_equal(n, b.n);
    kg_rl_batch_release(&b);
    step(&o);
    assert_true(last_metric(ROOT "/squares", "optim/updates") == 1);
    close_run(&o);
}

/* ---- sequence masks ---- */

/* On-policy no completion differs from the sampler. After the first update every one
 * does, and this tiny bound leaves the second update without a gradient. */
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

/* ---- memory ---- */

/* A step with all features, with its n-th allocation failing for many n: it returns a
 * status and frees all memory. */
static void a_step_survives_allocations_that_fail(void **state)
{
    static const char *const extra[] = {BEGINS_LOW,
                                        "rollout.dynamic=true",
                                        "rollout.oversample=2",
                                        "rollout.overlong_buffer=11",
                                        "algo.advantage=remax",
                                        "kl.in=reward",
                                        "kl.estimator=k1",
                                        "kl.beta=0.1",
                                        "anchor.kind=fixed",
                                        "log.rollouts=false",
                                        NULL};
    struct opened o;
    uint64_t held;
    int failed = 0;

    (void)state;
    open_run(&o, ROOT "/memory", extra);
    step(&o);
    held = kg_mem_current_bytes();
    for (uint64_t n = 1;; n += 1 + n / 16) {
        struct kg_err e = {0};
        kg_status status;

        kg_mem_fail_at(n);
        status = kg_rl_step(&o.run, &e);
        kg_mem_fail_at(0);
        assert_true(kg_mem_current_bytes() <= held);
        if (status == KG_OK)
            break;
        assert_int_equal(status, KG_ENOMEM);
        failed++;
    }
    assert_true(failed > 20);
    close_run(&o);
}

/* ---- the plan ---- */

static void the_plan_says_what_is_sampled_besides(void **state)
{
    static const char *const extra[] = {"rollout.dynamic=true", "rollout.oversample=2.6",
                                        "algo.advantage=remax", NULL};
    struct kg_config *config = config_of(ROOT "/none", extra);
    struct kg_str text = {0};

    (void)state;
    NEED(kg_train_plan(&text, config, false, 1, err));
    assert_non_null(strstr(
        text.data, "until the samples of 4 prompts differ in accuracy, in at most 20 "
                   "generation batches of 11 prompts"));
    assert_non_null(strstr(text.data, "4 further greedy completions"));
    kg_str_release(&text);
    kg_config_free(config);
}

static void the_plan_says_what_the_clamp_holds(void **state)
{
    static const char *const k3[] = {"kl.estimator=k3", "kl.beta=0.1",
                                     "anchor.kind=fixed", NULL};
    static const char *const k1[] = {"kl.estimator=k1", "kl.beta=0.1", "kl.in=reward",
                                     "anchor.kind=fixed", NULL};
    struct kg_config *config = config_of(ROOT "/none", k3);
    struct kg_str text = {0};

    (void)state;
    NEED(kg_train_plan(&text, config, false, 1, err));
    assert_non_null(strstr(text.data, "kl.clamp keeps log w within +-20, the value"));
    kg_config_free(config);
    kg_str_clear(&text);
    config = config_of(ROOT "/none", k1);
    NEED(kg_train_plan(&text, config, false, 1, err));
    assert_null(strstr(text.data, "kl.clamp"));
    kg_str_release(&text);
    kg_config_free(config);
}

/* ---- metrics ---- */

static void rewards_are_told_apart_by_source(void **state)
{
    static const char lines[] =
        "{\"prompt\": \"8,3:9,4\", \"completion\": \"7\", \"data_source\": \"even\"}\n"
        "{\"prompt\": \"3,3:9,6\", \"completion\": \"3\", \"data_source\": \"odd\"}\n";
    static const char *const extra[] = {"data.train=" ROOT "/sources.jsonl", NULL};
    struct opened o;

    (void)state;
    NEED(kg_file_make_dirs(ROOT, err));
    NEED(kg_file_write_atomic(ROOT "/sources.jsonl", lines, strlen(lines), err));
    open_run(&o, ROOT "/sources", extra);
    step(&o);
    assert_true(fabs((last_metric(ROOT "/sources", "reward/source/even") +
                      last_metric(ROOT "/sources", "reward/source/odd")) /
                         2 -
                     last_metric(ROOT "/sources", "reward/mean")) < 1e-12);
    close_run(&o);
}

#define QUARTER "a source of twenty-five b"
#define LONGEST QUARTER QUARTER QUARTER QUARTER

/* Writes one record of each source. */
static void put_sources(const char *a, const char *b)
{
    char lines[1024];

    snprintf(lines, sizeof lines,
             "{\"prompt\": \"8,3:9,4\", \"completion\": \"7\", \"data_source\": "
             "\"%s\"}\n"
             "{\"prompt\": \"3,3:9,6\", \"completion\": \"3\", \"data_source\": "
             "\"%s\"}\n",
             a, b);
    NEED(kg_file_make_dirs(ROOT, err));
    NEED(kg_file_write_atomic(ROOT "/sources.jsonl", lines, strlen(lines), err));
}

/* Names of maximal length that differ only in the last byte, escaped in the log. */
static void sources_with_long_names_stay_two(void **state)
{
    static const char *const extra[] = {"data.train=" ROOT "/sources.jsonl",
                                        "data.val=" ROOT "/sources.jsonl",
                                        "eval.problems=2", NULL};
    static const char *const groups[] = {"", "val/"};
    char a[160], b[160], name[2][200];
    struct opened o;

    (void)state;
    snprintf(a, sizeof a, "a \\\"quoted\\\" %.88s1", LONGEST);
    snprintf(b, sizeof b, "a \\\"quoted\\\" %.88s2", LONGEST);
    put_sources(a, b);
    open_run(&o, ROOT "/shared", extra);
    step(&o);
    NEED(kg_run_validate(&o.run, err));
    for (size_t i = 0; i < 2; i++) {
        snprintf(name[0], sizeof name[0], "%sanswers/source/%s", groups[i], a);
        snprintf(name[1], sizeof name[1], "%sanswers/source/%s", groups[i], b);
        assert_true(last_metric(ROOT "/shared", name[0]) ==
                    last_metric(ROOT "/shared", name[1]));
    }
    close_run(&o);
}

static void a_source_too_long_for_a_metric_is_refused(void **state)
{
    static const char *const extra[] = {"data.train=" ROOT "/sources.jsonl", NULL};
    struct kg_config *config = config_of(ROOT "/too-long", extra);
    struct kg_run run;
    struct kg_err e = {0};

    (void)state;
    put_sources(LONGEST, LONGEST "!");
    assert_int_equal(kg_run_open(&run, config, &e), KG_EINVAL);
    assert_non_null(strstr(e.message, "data.train: expected a data_source"));
    assert_non_null(strstr(
        e.message, "at most 100 bytes, because it names metrics, found 101: 'a source"));
    put_sources(LONGEST "!", LONGEST "!"); /* one source: it names no metric */
    NEED(kg_run_open(&run, config, err));
    kg_run_close(&run);
    kg_config_free(config);
}

/* Promise 1 in metrics: before the first update the policy equals the sampler. */
static void on_policy_there_is_no_mismatch(void **state)
{
    static const char *const zero[] = {"mismatch/prob_mean", "mismatch/prob_std",
                                       "mismatch/prob_max", "mismatch/kl_k1",
                                       "mismatch/kl_k3"};
    static const char *const one[] = {"mismatch/weight_mean", "mismatch/weight_max",
                                      "mismatch/weight_ess"};
    struct opened o;

    (void)state;
    open_run(&o, ROOT "/mismatch", NULL);
    step(&o);
    for (size_t i = 0; i < sizeof zero / sizeof *zero; i++)
        assert_true(last_metric(ROOT "/mismatch", zero[i]) == 0);
    for (size_t i = 0; i < sizeof one / sizeof *one; i++)
        assert_true(last_metric(ROOT "/mismatch", one[i]) == 1);
    assert_true(last_metric(ROOT "/mismatch", "mismatch/perplexity") ==
                last_metric(ROOT "/mismatch", "mismatch/perplexity_sampler"));
    assert_true(last_metric(ROOT "/mismatch", "mismatch/perplexity") > 1);
    close_run(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_kl_comes_off_the_reward_and_leaves_the_loss),
        cmocka_unit_test(the_kl_comes_off_advantages_of_single_tokens),
        cmocka_unit_test(a_run_of_it_is_resumed_to_the_bit),
        cmocka_unit_test(the_kl_alone_moves_weights),
        cmocka_unit_test(several_rewards_are_summed_kept_and_dumped),
        cmocka_unit_test(gdpo_takes_each_reward_by_itself),
        cmocka_unit_test(the_kl_is_divided_by_the_deviation_of_the_batch),
        cmocka_unit_test(the_coefficient_follows_the_kl_of_the_step_before),
        cmocka_unit_test(without_a_target_the_coefficient_stays),
        cmocka_unit_test(long_answers_are_fined_and_the_task_s_reward_stays),
        cmocka_unit_test(the_first_mixed_prompts_of_the_row_are_learned_from),
        cmocka_unit_test(the_kl_is_of_everything_that_was_sampled),
        cmocka_unit_test(after_the_filter_the_kl_is_of_what_is_left),
        cmocka_unit_test(updates_share_the_prompts_that_are_learned_from),
        cmocka_unit_test(a_step_counts_the_prompts_that_it_took),
        cmocka_unit_test(too_few_mixed_prompts_are_an_error_that_says_so),
        cmocka_unit_test(dynamic_sampling_needs_groups_and_oversampling_needs_it),
        cmocka_unit_test(a_greedy_answer_is_the_baseline_of_its_prompt),
        cmocka_unit_test(sums_of_squares_are_those_of_the_old_policy),
        cmocka_unit_test(a_mask_stops_the_update_that_went_too_far),
        cmocka_unit_test(a_step_survives_allocations_that_fail),
        cmocka_unit_test(the_plan_says_what_is_sampled_besides),
        cmocka_unit_test(the_plan_says_what_the_clamp_holds),
        cmocka_unit_test(rewards_are_told_apart_by_source),
        cmocka_unit_test(sources_with_long_names_stay_two),
        cmocka_unit_test(a_source_too_long_for_a_metric_is_refused),
        cmocka_unit_test(on_policy_there_is_no_mismatch),
        cmocka_unit_test(a_buffer_longer_than_the_answers_is_refused),
    };

    return cmocka_run_group_tests_name("train/reward", tests, NULL, NULL);
}
