/* Rollout ranks and trainer ranks together make the run of one process with the same lag:
 * the same checkpoints, dumps and log for several numbers of both, also after a kill and
 * a resume on other numbers.
 */
#define ROOT "build/test-runs/ranks-rollout"
#include "run_testing.h"

#include "base/log.h"
#include "ranks/ranks_testing.h"
#include "recipe/options.h"
#include "train/agent_testing.h"

/* Returns a score and a further number, whose name depends on the completion. */
#define GRADER                                                                           \
    "task.command=sed -u -e 's/.*\\([0-4]\\).*/{\"score\": \\1, \"w\\1\": 2}/' -e t "    \
    "-e 's/.*/{\"score\": 0}/'"

struct order {
    const char *dir;
    bool resume;
    const char *const *extra; /* ends with NULL, as below */
    char rollout[32];
};

static int as_rank(struct kg_ranks *r, void *user)
{
    const struct order *o = user;
    const char *also[40];
    struct kg_config *config;
    struct kg_err e;
    kg_status status;
    int n = 0;

    while (o->extra[n])
        also[n] = o->extra[n], n++;
    also[n++] = o->rollout;
    also[n] = NULL;
    config = config_of(o->dir, also);
    if (getenv("VERBOSE"))
        kg_log_set_stream(stderr, false);
    status = kg_train_run_on(r, config, o->resume, false, &e);
    if (status != KG_OK)
        fprintf(stderr, "rank %d of %d: %s\n", r->me, r->n, e.message);
    kg_config_free(config);
    return status != KG_OK;
}

static struct order order_of(const char *dir, bool resume, int rollout,
                             const char *const *extra)
{
    struct order o = {.dir = dir, .resume = resume, .extra = extra};

    snprintf(o.rollout, sizeof o.rollout, "ranks.rollout=%d", rollout);
    return o;
}

/* n ranks, of which `rollout` sample; n = 1: one process */
static void train_on(int n, int rollout, const char *dir, bool resume,
                     const char *const *extra)
{
    struct order o = order_of(dir, resume, rollout, extra);
    int state[RANKS_MOST];

    ranks_run(state, n, as_rank, &o);
    for (int p = 0; p < n; p++)
        assert_int_equal(state[p], 0);
}

enum { MOST = 4 };
static const struct recipe {
    const char *name;
    struct {
        int ranks, rollout;
    } on[MOST];
    const char *extra[28];
} recipes[] = {
    {"two updates, an EMA anchor at each",
     {{2, 1}, {3, 2}, {5, 2}},
     {"train.lanes=8", "train.micro_tokens=64", "kl.estimator=k3", "kl.beta=0.05",
      "anchor.kind=ema", "anchor.period=1", "rollout.lag=1", NULL}},
    {"lag 2, warm start, dynamic sampling, greedy baseline, schedule-free",
     {{3, 1}, {4, 3}},
     {"train.lanes=3", "ranks.shard=gradients", "sft.steps=6", "sft.lr=1e-3",
      "rollout.dynamic=true", "rollout.dynamic_metric=reward", "rollout.oversample=1.5",
      "rollout.max_refills=20", "optim.kind=schedule-free", "algo.advantage=remax",
      "anchor.kind=ema", "kl.estimator=k2", "kl.beta=0.01", "kl.after_filter=false",
      "rollout.top_p=0.9", "rollout.lag=2", NULL}},
    {"completions that span versions, warm start, recorded Top-k ids",
     {{2, 1}, {4, 2}, {5, 1}},
     {"train.lanes=6", "sft.steps=3", "sft.batch=8", "algo.preset=ema-pg", "kl.beta=0.05",
      "anchor.period=1", "rollout.lag=1", "rollout.max_staleness=3", NULL}},
    {"the same behind a lag of 2, fp32 beside bf16, beyond the run",
     {{3, 1}},
     {"train.lanes=4", "rollout.dtype=fp32", "kl.estimator=k3", "kl.beta=0.05",
      "anchor.kind=ema", "rollout.lag=2", "rollout.max_staleness=8", NULL}},
    {"lag 6, beyond the run, programs that say more, recomputed ratios",
     {{3, 1}},
     {"train.lanes=8", "task.name=external", GRADER,
      "task.rewards=[a=external, b=external]", "algo.tis=2", "train.old_logp=recompute",
      "kl.in=advantage-future", "kl.estimator=k1", "kl.beta=0.01", "anchor.kind=ema",
      "rollout.lag=6", NULL}},
    {"episodes with a tool, sampled by windows, learned by parts",
     {{3, 2}},
     {"train.lanes=4", EPISODES, "rollout.lag=1", "episode.window=72", NULL}},
    {"episodes with a tool that span versions after a lag",
     {{3, 1}},
     {"train.lanes=4", EPISODES, "rollout.lag=1", "rollout.max_staleness=3", NULL}},
};

static void every_split_makes_the_run_of_one(void **state)
{
    (void)state;
    for (const struct recipe *r = recipes; r < recipes + sizeof recipes / sizeof *recipes;
         r++) {
        print_message("  %s\n", r->name);
        fresh(ROOT "/1");
        train_on(1, 0, ROOT "/1", false, r->extra);
        for (int i = 0; i < MOST && r->on[i].ranks > 0; i++) {
            fresh(ROOT "/n");
            train_on(r->on[i].ranks, r->on[i].rollout, ROOT "/n", false, r->extra);
            assert_same_run(ROOT "/1", ROOT "/n", 4);
        }
    }
}

/* The weights become NaN: the batch reports it to the step that it was sampled for. */
static void skips_what_is_not_finite(const char *age)
{
    const char *const extra[] = {"train.lanes=4",
                                 "optim.lr=10",
                                 "optim.weight_decay=10",
                                 "optim.beta1=0",
                                 "train.max_skips=100",
                                 "data.val=",
                                 "train.steps=7",
                                 "rollout.lag=2",
                                 "kl.estimator=k3",
                                 "kl.beta=0.05",
                                 "anchor.kind=ema",
                                 age,
                                 NULL};
    double skipped[16];
    int n;

    fresh(ROOT "/1");
    train_on(1, 0, ROOT "/1", false, extra);
    fresh(ROOT "/n");
    train_on(3, 1, ROOT "/n", false, extra);
    assert_same_log(ROOT "/1", ROOT "/n");
    assert_same_file(ROOT "/1", ROOT "/n", "checkpoints/latest/state.safetensors");
    n = metrics_of(skipped, 16, ROOT "/n", "optim/skipped_steps");
    assert_true(n == 7 && skipped[6] >= 2);
}

static void a_batch_that_is_not_finite_is_skipped_in_its_step(void **state)
{
    (void)state;
    skips_what_is_not_finite("rollout.max_staleness=0");
    /* skipped before it could train */
    assert_false(kg_file_exists(ROOT "/n/rollouts/step-000007.jsonl.zst"));
    skips_what_is_not_finite("rollout.max_staleness=4");
}

/* Kills a trainer or a rollout rank; the others end by themselves. */
static void a_killed_rank_leaves_no_trace_on_another_split(void **state)
{
    static const struct {
        int n, rollout, which;
        useconds_t after_us;
        int then, then_rollout;
    } kills[] = {
        {3, 1, 2, 150000, 2, 1}, {2, 1, 0, 300000, 4, 2}, {4, 2, 3, 400000, 1, 0}};
    enum { KILLS = sizeof kills / sizeof *kills };

    (void)state;
    for (size_t k = 0; k < 2 * KILLS; k++) {
        const size_t i = k % KILLS;
        const char *const *extra = recipes[1 + k / KILLS].extra;
        struct order o = order_of(ROOT "/n", false, kills[i].rollout, extra);
        pid_t child[RANKS_MOST];
        int ended[RANKS_MOST];

        if (i == 0) {
            fresh(ROOT "/1");
            train_on(1, 0, ROOT "/1", false, extra);
        }
        fresh(ROOT "/n");
        ranks_start(child, kills[i].n, as_rank, &o);
        usleep(kills[i].after_us);
        kill(child[kills[i].which], SIGKILL);
        ranks_wait(ended, child, kills[i].n);
        train_on(kills[i].then, kills[i].then_rollout, ROOT "/n",
                 kg_file_exists(ROOT "/n/config.yaml"), extra);
        assert_same_run(ROOT "/1", ROOT "/n", 4);
    }
}

#define LONGER                                                                           \
    "train.lanes=8", "kl.estimator=k3", "kl.beta=0.05", "anchor.kind=ema", "rollout.lag=2"

/* A run extended by more steps needs batches that were not sampled before. */
static void a_longer_run_goes_on_with_any_split(void **state)
{
    static const char *const ages[] = {"rollout.max_staleness=0",
                                       "rollout.max_staleness=4"};

    (void)state;
    for (size_t i = 0; i < sizeof ages / sizeof *ages; i++) {
        const char *const less[] = {LONGER, "train.steps=3", ages[i], NULL};
        const char *const more[] = {LONGER, "train.steps=6", ages[i], NULL};

        fresh(ROOT "/1");
        train_on(1, 0, ROOT "/1", false, less);
        train_on(1, 0, ROOT "/1", true, more);
        fresh(ROOT "/n");
        train_on(3, 1, ROOT "/n", false, less);
        train_on(4, 2, ROOT "/n", true, more);
        assert_same_run(ROOT "/1", ROOT "/n", 6);
    }
}

/* ---- refusals ---- */

static void assert_refused(kg_status status, const struct kg_err *e, const char *why)
{
    assert_int_equal(status, KG_EINVAL);
    if (!strstr(e->message, why))
        fail_msg("expected '%s' in '%s'", why, e->message);
}

static void what_has_no_effect_is_refused(void **state)
{
    static const char *const idle[][4] = {
        {"ranks.rollout=1", NULL},
        {"ranks.rollout=1", "rollout.lag=1", "train.steps=0", NULL},
        {"ranks.rollout=1", "rollout.lag=1", "rollout.data=x", NULL},
    };
    static const char *const one[] = {"ranks.rollout=1", "rollout.lag=1", NULL};
    struct kg_config *config;
    struct kg_err e = {0};

    (void)state;
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++) {
        config = config_of(ROOT "/refused", idle[i]);
        assert_refused(kg_effect_check(config, &e), &e,
                       "ranks.rollout: has an effect only with");
        kg_config_free(config);
    }
    fresh(ROOT "/refused");
    config = config_of(ROOT "/refused", one);
    assert_refused(kg_train_run(config, false, false, &e), &e,
                   "ranks.rollout: expected fewer than the run's ranks (1;");
    assert_false(kg_file_exists(ROOT "/refused/config.yaml"));
    kg_config_free(config);
}

static int make_policy(void **state)
{
    (void)state;
    fresh(ROOT);
    return make_agent_apart(ROOT, "1 + 2 = 3 and 4 * 5 = 20 <result> </result>", 7,
                            false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_makes_the_run_of_one),
        cmocka_unit_test(a_batch_that_is_not_finite_is_skipped_in_its_step),
        cmocka_unit_test(a_killed_rank_leaves_no_trace_on_another_split),
        cmocka_unit_test(a_longer_run_goes_on_with_any_split),
        cmocka_unit_test(what_has_no_effect_is_refused),
    };
    static const char *const also[] = {"run.threads=1", NULL};

    run_also = also;
    return cmocka_run_group_tests(tests, make_policy, NULL);
}
