/* Completions without a verdict in a step: they have no advantage and no policy term, and
 * the baseline of their group is that of the others. */
#include "train/agent_testing.h"
#include "train/rl_testing.h"

#define ROOT "build/test-runs/verdict"

/* A program that grades by the completion's first character: `what` earns 1, `null` gives
 * no verdict, anything else earns 0. In SOME_NULL these are 1 or 2, and 3 to 5. */
#define NULL_FOR(what, null)                                                             \
    "sed -u -E 's/.*\"response\": *\"" what ".*/{\"score\": 1}/; t; "                    \
    "s/.*\"response\": *\"" null ".*/{\"score\": null}/; t; s/.*/{\"score\": 0}/'"
#define SOME_NULL NULL_FOR("[12]", "[3-5]")
#define EXTERNAL  "task.name=external"

struct done {
    struct opened o;
    struct kg_rl_batch b;
    struct kg_rl_totals totals;
    struct kg_policy_advantage a;
};

static void sample(struct done *d, const char *dir, const char *const *extra)
{
    *d = (struct done){.b = {0}};
    open_run(&d->o, dir, extra);
    if (d->o.run.state.anchor)
        disturb(d->o.run.state.anchor);
    NEED(kg_rl_sample(&d->b, &d->o.run.in, &d->o.run.state, &d->o.run.work, err));
}

static void train(struct done *d)
{
    struct kg_run *r = &d->o.run;

    NEED(kg_rl_prepare(&d->b, &r->in, &r->state, &r->work, err));
    NEED(kg_rl_train(&d->totals, &d->a, &d->b, r, err));
}

static void done_release(struct done *d)
{
    kg_rl_batch_release(&d->b);
    close_run(&d->o);
}

static size_t count_ungraded(const struct kg_rl_batch *b)
{
    size_t n = 0;

    for (size_t i = 0; i < b->n_trajs; i++)
        n += !b->trajs[i].graded;
    return n;
}

/* Mean reward of the group's completions with a verdict.   n <- their number */
static double mean_of(const struct kg_rl_batch *b, size_t first, size_t *n)
{
    double sum = 0;

    *n = 0;
    for (size_t i = first; i < first + (size_t)b->group; i++) {
        sum += b->trajs[i].graded ? b->trajs[i].reward : 0;
        *n += b->trajs[i].graded;
    }
    return *n > 0 ? sum / (double)*n : 0;
}

/* Checks advantages of dr-grpo, R - mean, and which completions have a term in the
 * loss. */
static void check_left_out(const struct kg_rl_batch *b)
{
    for (size_t i = 0; i < b->n_trajs; i++) {
        const struct kg_traj *t = &b->trajs[i];
        size_t n, first = i / (size_t)b->group * (size_t)b->group;
        double mean = mean_of(b, first, &n);
        double expected = t->graded && n > 1 ? t->reward - mean : 0;

        for (int64_t at = b->begin[i]; at < b->begin[i + 1]; at++) {
            if (fabs(b->advantage[at] - expected) > 1e-12)
                fail_msg("answer %zu: expected an advantage of %g, found %g", i, expected,
                         b->advantage[at]);
            assert_true((b->pg_weight[at] != 0) == t->graded);
            assert_true((b->entropy_weight[at] != 0) == t->graded);
        }
    }
}

/* ---- one grader ---- */

/* The loss's denominator counts completions with a verdict. The KL in the loss covers all
 * completions, unless it comes after the filter. */
static void check_denominators(const struct kg_rl_batch *b, const char *aggregate,
                               bool after_filter)
{
    double tokens = 0, seqs = 0;

    for (size_t i = 0; i < b->n_trajs; i++) {
        tokens += b->trajs[i].graded ? (double)(b->begin[i + 1] - b->begin[i]) : 0;
        seqs += b->trajs[i].graded;
    }
    for (size_t i = 0; i < b->n_trajs; i++) {
        int64_t at = b->begin[i];
        double length = (double)(b->begin[i + 1] - at), all = (double)b->n_trajs;
        bool by_token = strcmp(aggregate, "algo.aggregate=token-mean") == 0;
        bool by_length = strcmp(aggregate, "algo.aggregate=seq-mean-token-mean") == 0;
        double within = by_length ? length : 1;
        double pg = by_token ? 1 / tokens : 1 / within / seqs;
        double kl = by_token ? 1 / (double)b->n : 1 / within / all;

        if (after_filter)
            kl = b->trajs[i].graded ? pg : 0;
        assert_true(fabs(b->kl_weight[at] - kl) < 1e-15);
        if (b->trajs[i].graded)
            assert_true(fabs(b->pg_weight[at] - pg) < 1e-15);
    }
}

static void an_answer_without_a_verdict_is_left_out(void **state)
{
    static const char *const aggregates[] = {"algo.aggregate=token-mean",
                                             "algo.aggregate=seq-mean-token-sum",
                                             "algo.aggregate=seq-mean-token-mean"};
    static const char *const filters[][2] = {
        {"kl.after_filter=false", "rollout.dynamic=false"},
        {"kl.after_filter=true", "rollout.dynamic=true"}};

    (void)state;
    for (int k = 0; k < 6; k++) {
        const char *extra[] = {EXTERNAL,
                               "task.command=" SOME_NULL,
                               "algo.advantage=dr-grpo",
                               "algo.entropy_coef=0.01",
                               "kl.estimator=k2",
                               "kl.beta=0.5",
                               "anchor.kind=fixed",
                               "rollout.prompts=16",
                               aggregates[k / 2],
                               filters[k % 2][0],
                               filters[k % 2][1],
                               NULL};
        struct done d;
        size_t left;

        sample(&d, ROOT "/one", extra);
        train(&d);
        left = count_ungraded(&d.b);
        assert_true(left > 4 && left < d.b.n_trajs - 4);
        check_left_out(&d.b);
        check_denominators(&d.b, aggregates[k / 2], k % 2);
        assert_int_equal(d.totals.updates, 1);
        done_release(&d);
    }
}

/* For every estimator that can be trained with: no advantage for the completion without a
 * verdict, and for the others that of a batch without it. */
static void every_row_leaves_it_out(void **state)
{
    static const char *const rows[] = {"grpo",
                                       "grpo-floor",
                                       "rpg",
                                       "rloo",
                                       "rloo-vectorized",
                                       "opo",
                                       "gpg",
                                       "passk",
                                       "passk-std",
                                       "maxrl",
                                       "maxrl-eps",
                                       "batch-std",
                                       "remax",
                                       "batch-mean",
                                       "reinforce++",
                                       "token-baseline",
                                       "token-baseline-tail",
                                       "reinforce++-baseline"};
    char key[64];

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        const char *extra[] = {EXTERNAL, "task.command=" SOME_NULL, key,
                               "rollout.prompts=8", NULL};
        struct done d;
        double most = 0;

        snprintf(key, sizeof key, "algo.advantage=%s", rows[r]);
        sample(&d, ROOT "/rows", extra);
        train(&d);
        assert_true(count_ungraded(&d.b) > 0);
        for (size_t i = 0; i < d.b.n_trajs; i++)
            for (int64_t at = d.b.begin[i]; at < d.b.begin[i + 1]; at++) {
                assert_true(kg_rl_judged(&d.b, i) || d.b.advantage[at] == 0);
                assert_true(kg_rl_judged(&d.b, i) || d.b.pg_weight[at] == 0);
                most = fmax(most, fabs(d.b.advantage[at]));
            }
        assert_true(most > 0);
        done_release(&d);
    }
}

/* A step without any verdict changes nothing, warns and continues. Metrics of rewards are
 * then absent. */
static void a_step_without_any_verdict_is_idle(void **state)
{
    static const char *const rows[] = {"algo.advantage=grpo", "algo.advantage=rloo",
                                       "algo.advantage=batch-std",
                                       "algo.advantage=reinforce++"};

    (void)state;
    for (int k = 0; k < 4; k++) {
        const char *extra[] = {EXTERNAL, "task.command=sed -u 's/.*/{\"score\": null}/'",
                               rows[k], "algo.entropy_coef=0.1", NULL};
        struct kg_str text = {0};
        struct opened o;

        open_run(&o, ROOT "/nothing", extra);
        NEED(kg_rl_step(&o.run, err));
        assert_true(last_metric(ROOT "/nothing", "reward/ungraded") == 1);
        assert_true(last_metric(ROOT "/nothing", "groups/equal") == 1);
        assert_true(last_metric(ROOT "/nothing", "groups/all_wrong") == 0);
        assert_true(last_metric(ROOT "/nothing", "optim/updates") == 0);
        assert_true(last_metric(ROOT "/nothing", "optim/idle_updates") == 1);
        assert_true(o.run.log.told_ungraded);
        NEED(kg_file_read(&text, ROOT "/nothing/metrics.jsonl", 1 << 24, err));
        assert_null(strstr(text.data, "\"reward/mean\""));
        kg_str_release(&text);
        close_run(&o);
    }
}

/* A run without any verdict has learned nothing and must fail. One verdict is enough, and
 * a task that grades nothing needs none. */
static void a_run_without_any_verdict_fails(void **state)
{
    static const struct {
        const char *keys[3];
        bool fails;
    } rows[] = {
        {{"task.command=sed -u 's/.*/{\"score\": null}/'"}, true},
        {{"task.command=sed -u 's/.*/{\"score\": null}/'", "train.steps=1"}, true},
        {{"task.command=sed -u 's/.*/{\"score\": null}/'", "train.steps=3"}, true},
        {{"task.command=sed -u 's/.*/{\"score\": null}/'", "algo.advantage=rloo"}, true},
        {{"task.command=sed -u 's/.*/{\"score\": null}/'", "algo.advantage=remax"}, true},
        {{"task.command=sed -u 's/.*/{\"score\": null}/'", "rollout.samples=2"}, true},
        {{"task.command=sed -u 's/.*/{\"score\": 0}/'"}, false},
        {{"task.command=sed -u 's/.*/{\"score\": 1}/'", "train.steps=1"}, false},
        {{"task.command=" SOME_NULL}, false},
        {{"task.command=" SOME_NULL, "rollout.samples=2"}, false},
        {{"task.name=digits", "train.steps=1"}, false},
        {{"task.command=sed -u 's/.*/{\"score\": null}/'", "algo.preset=distill-reverse",
          "anchor.path=" DATA},
         false},
        {{"task.command=sed -u '1s/.*/{\"score\": 1}/;t;s/.*/{\"score\": null}/'"},
         false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *extra[] = {
            EXTERNAL, "train.steps=2", "eval.at_start=false", NULL, NULL, NULL, NULL};
        struct kg_err e = {0};

        for (int k = 0; k < 3; k++)
            extra[3 + k] = rows[i].keys[k];
        fresh(ROOT "/unjudged");
        struct kg_config *c = config_of(ROOT "/unjudged", extra);
        const kg_status status = kg_train_run(c, false, false, &e);

        if (status != (rows[i].fails ? KG_EFORMAT : KG_OK) ||
            (status != KG_OK && !strstr(e.message, "expected samples with a verdict")))
            fail_msg("row %zu: status %d: %s", i, status, e.message);
        kg_config_free(c);
    }
}

/* Means are over the completions with a verdict. */
static void metrics_are_of_what_was_judged(void **state)
{
    static const char *const extra[] = {EXTERNAL, "task.command=" SOME_NULL,
                                        "rollout.prompts=16", NULL};
    struct done d;
    struct opened o;
    double sum = 0, n = 0;

    (void)state;
    sample(&d, ROOT "/sampled", extra);
    for (size_t i = 0; i < d.b.n_trajs; i++) {
        sum += d.b.trajs[i].graded ? d.b.trajs[i].reward : 0;
        n += d.b.trajs[i].graded;
    }
    open_run(&o, ROOT "/logged", extra);
    NEED(kg_rl_step(&o.run, err));
    assert_true(fabs(last_metric(ROOT "/logged", "reward/mean") - sum / n) < 1e-9);
    assert_true(fabs(last_metric(ROOT "/logged", "reward/ungraded") -
                     (1 - n / (double)d.b.n_trajs)) < 1e-9);
    assert_true(last_metric(ROOT "/logged", "reward/undecided") == 0);
    close_run(&o);
    done_release(&d);
}

/* The verdicts of a group must differ. A 1 and a completion without a verdict are nothing
 * to learn from, by either metric. */
static void dynamic_sampling_compares_verdicts(void **state)
{
    static const char *const metrics[] = {"rollout.dynamic_metric=reward",
                                          "rollout.dynamic_metric=accuracy"};
    static const char *const never[] = {NULL_FOR("[12]", "."), NULL_FOR(".", "[12]"),
                                        "sed -u 's/.*/{\"score\": null}/'"};
    char command[512];

    (void)state;
    for (int k = 0; k < 6; k++) {
        const char *extra[] = {EXTERNAL,
                               command,
                               "rollout.dynamic=true",
                               metrics[k % 2],
                               "rollout.max_refills=2",
                               NULL};
        struct opened o;
        struct kg_err e = {0};

        snprintf(command, sizeof command, "task.command=%s", never[k / 2]);
        open_run(&o, ROOT "/never", extra);
        assert_int_equal(kg_rl_step(&o.run, &e), KG_ENOTFOUND);
        assert_non_null(strstr(e.message, "found 0 in 2 generation batches"));
        close_run(&o);
    }
    for (int k = 0; k < 2; k++) {
        const char *extra[] = {
            EXTERNAL,   "task.command=" SOME_NULL, "rollout.dynamic=true",
            metrics[k], "algo.advantage=dr-grpo",  NULL};
        struct done d;

        sample(&d, ROOT "/mixed", extra);
        train(&d);
        for (size_t g = 0; g < d.b.n_trajs; g += (size_t)d.b.group) {
            bool right = false, wrong = false;

            for (size_t i = g; i < g + (size_t)d.b.group; i++) {
                right |= d.b.trajs[i].graded && d.b.trajs[i].reward == 1;
                wrong |= d.b.trajs[i].graded && d.b.trajs[i].reward == 0;
            }
            assert_true(right && wrong);
        }
        check_left_out(&d.b);
        done_release(&d);
    }
}

/* If the greedy completion has no verdict, its prompt has no baseline and teaches
 * nothing. */
static void a_greedy_answer_without_a_verdict_is_no_baseline(void **state)
{
    static const char *const extra[] = {EXTERNAL, "task.command=" SOME_NULL,
                                        "algo.advantage=remax", "rollout.prompts=24",
                                        NULL};
    struct done d;
    size_t none = 0, some = 0;

    (void)state;
    sample(&d, ROOT "/greedy", extra);
    train(&d);
    for (size_t i = 0; i < d.b.n_trajs; i++) {
        const struct kg_traj *t = &d.b.trajs[i];
        bool known = t->graded && !isnan(d.b.greedy[i]);
        double expected = known ? t->reward - d.b.greedy[i] : 0;

        assert_true(fabs(d.b.advantage[d.b.begin[i]] - expected) < 1e-12);
        assert_true((d.b.pg_weight[d.b.begin[i]] != 0) == known);
        none += isnan(d.b.greedy[i]);
        some += !isnan(d.b.greedy[i]);
    }
    assert_true(none > 0 && some > 0);
    done_release(&d);
}

/* ---- episodes ---- */

/* Turns with a tool between them are one completion, with one verdict or none. */
static void an_episode_without_a_verdict_is_left_out(void **state)
{
    static const char *const turns[] = {"episode.turns=1", "episode.turns=2",
                                        "episode.turns=4"};
    static const char *const windows[] = {"episode.window=0", "episode.window=24"};
    static const char *const updates[] = {"train.updates_per_step=1",
                                          "train.updates_per_step=3"};

    (void)state;
    fresh(ROOT "/model");
    make_agent(ROOT, "0,1:9,3 so 1 + 2 = 3, a calculator", 0, false);
    for (int k = 0; k < 12; k++) {
        const char *extra[] = {EXTERNAL,
                               "task.command=" NULL_FOR("[!-V]", "[^!-n]"),
                               "model.path=" ROOT "/model",
                               "episode.env=calculator",
                               "episode.turn_tokens=9",
                               "episode.obs_tokens=9",
                               "episode.context=80",
                               turns[k / 4],
                               windows[k / 2 % 2],
                               updates[k % 2],
                               "algo.advantage=dr-grpo",
                               "algo.entropy_coef=0.01",
                               "rollout.prompts=9",
                               NULL};
        struct done d;
        size_t left;

        sample(&d, ROOT "/episodes", extra);
        train(&d);
        left = count_ungraded(&d.b);
        assert_true(left > 0 && left < d.b.n_trajs);
        assert_true(d.b.trajs[0].episode.turns > 0);
        check_left_out(&d.b);
        done_release(&d);
    }
}

/* ---- several rewards ---- */

/* If the completions of a group lack different rewards, their sums are not comparable:
 * only those with all rewards are compared. A reward that the whole group lacks is
 * ignored. */
static void an_answer_that_lacks_a_reward_has_no_sum(void **state)
{
    static const struct {
        const char *a, *b, *weights;
        bool some; /* completions are left out */
    } cases[] = {
        {SOME_NULL, NULL_FOR(".", "x"), "[1, 1]", true},
        {NULL_FOR(".", "x"), SOME_NULL, "[1, 1]", true},
        {NULL_FOR("[12]", "x"), SOME_NULL, "[1, -2]", true},
        {SOME_NULL, SOME_NULL, "[1, 0.5]", true},
        {SOME_NULL, NULL_FOR("[6-9]", "[12]"), "[1, 1]", true},
        {SOME_NULL, NULL_FOR("[6-9]", "[0-5]"), "[0.25, 1]", true},
        {NULL_FOR("[0-4]", "x"), NULL_FOR("x", ""), "[1, 1]", false},
        {NULL_FOR("x", ""), NULL_FOR("[0-4]", "x"), "[1, 3]", false},
        {NULL_FOR("[0-4]", "x"), SOME_NULL, "[1, 0]", false},
        {SOME_NULL, NULL_FOR("[0-4]", "x"), "[0, 1]", false},
        {NULL_FOR("[0-4]", "x"), NULL_FOR("[12]", "x"), "[1, 1]", false},
    };
    char rewards[1024], weights[64];

    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const char *extra[] = {
            EXTERNAL, rewards, weights, "algo.advantage=dr-grpo", "rollout.prompts=12",
            NULL};
        struct done d;
        size_t left = 0;

        snprintf(rewards, sizeof rewards, "task.rewards=[a=external %s, b=external %s]",
                 "sh " ROOT "/a.sh", "sh " ROOT "/b.sh");
        snprintf(weights, sizeof weights, "task.reward_weights=%s", cases[c].weights);
        NEED(kg_file_make_dirs(ROOT, err));
        NEED(kg_file_write_atomic(ROOT "/a.sh", cases[c].a, strlen(cases[c].a), err));
        NEED(kg_file_write_atomic(ROOT "/b.sh", cases[c].b, strlen(cases[c].b), err));
        sample(&d, ROOT "/several", extra);
        train(&d);
        for (size_t i = 0; i < d.b.n_trajs; i++)
            left += !d.b.trajs[i].graded;
        if ((left > 0) != cases[c].some)
            fail_msg("case %zu: %zu of %zu answers are left out", c, left, d.b.n_trajs);
        check_left_out(&d.b);
        done_release(&d);
    }
}

/* Estimators that use each reward separately leave out the missing one, not the
 * completion. */
static void gdpo_leaves_out_the_reward_alone(void **state)
{
    static const char *const rows[] = {"algo.advantage=gdpo",
                                       "algo.advantage=gdpo-token"};

    (void)state;
    NEED(kg_file_make_dirs(ROOT, err));
    NEED(kg_file_write_atomic(ROOT "/a.sh", SOME_NULL, strlen(SOME_NULL), err));
    NEED(kg_file_write_atomic(ROOT "/b.sh", NULL_FOR("[3-9]", "[1]"),
                              strlen(NULL_FOR("[3-9]", "[1]")), err));
    for (int k = 0; k < 2; k++) {
        const char *extra[] = {EXTERNAL,
                               "task.rewards=[a=external sh " ROOT
                               "/a.sh, b=external sh " ROOT "/b.sh]",
                               rows[k], "rollout.prompts=16", NULL};
        struct done d;
        size_t one = 0;

        sample(&d, ROOT "/gdpo", extra);
        train(&d);
        for (size_t i = 0; i < d.b.n_trajs; i++) {
            const double *part = d.b.trajs[i].part;
            bool lacks_one = isnan(part[0]) != isnan(part[1]);

            one += lacks_one;
            assert_true(d.b.trajs[i].graded == !(isnan(part[0]) && isnan(part[1])));
            assert_true((d.b.pg_weight[d.b.begin[i]] != 0) == d.b.trajs[i].graded);
        }
        assert_true(one > 0);
        assert_true(d.a.max > 0);
        done_release(&d);
    }
}

/* ---- completions that cannot be parsed ---- */

/* The digit model writes no numbers. With -1 for a wrong answer a completion earns -1, or
 * is left out; it never earns more. */
static void what_cannot_be_read_is_wrong_or_left_out(void **state)
{
    static const char *const kinds[] = {"task.undecided=wrong",
                                        "task.undecided=ungraded"};
    static const char data[] = "{\"prompt\": \"0,1:9,3\", \"answer\": \"42\"}\n"
                               "{\"prompt\": \"0,2:9,3\", \"answer\": \"42\"}\n";

    (void)state;
    NEED(kg_file_make_dirs(ROOT, err));
    NEED(kg_file_write_atomic(ROOT "/p.jsonl", data, strlen(data), err));
    for (int k = 0; k < 2; k++) {
        const char *extra[] = {"task.name=math",
                               "data.train=" ROOT "/p.jsonl",
                               "data.val=" ROOT "/p.jsonl",
                               "task.wrong_reward=-1",
                               kinds[k],
                               "rollout.prompts=16",
                               "algo.advantage=dr-grpo",
                               NULL};
        struct done d;
        size_t undecided = 0;

        sample(&d, ROOT "/math", extra);
        train(&d);
        check_left_out(&d.b);
        for (size_t i = 0; i < d.b.n_trajs; i++) {
            if (!d.b.grades[i].undecided)
                continue;
            undecided++;
            assert_true(d.b.trajs[i].graded == (k == 0));
            assert_true(d.b.trajs[i].reward == -1);
            assert_true(d.b.advantage[d.b.begin[i]] <= 0);
        }
        assert_true(undecided > 0 && undecided < d.b.n_trajs);
        done_release(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_without_a_verdict_is_left_out),
        cmocka_unit_test(every_row_leaves_it_out),
        cmocka_unit_test(a_step_without_any_verdict_is_idle),
        cmocka_unit_test(a_run_without_any_verdict_fails),
        cmocka_unit_test(metrics_are_of_what_was_judged),
        cmocka_unit_test(dynamic_sampling_compares_verdicts),
        cmocka_unit_test(a_greedy_answer_without_a_verdict_is_no_baseline),
        cmocka_unit_test(an_episode_without_a_verdict_is_left_out),
        cmocka_unit_test(an_answer_that_lacks_a_reward_has_no_sum),
        cmocka_unit_test(gdpo_leaves_out_the_reward_alone),
        cmocka_unit_test(what_cannot_be_read_is_wrong_or_left_out),
    };

    return cmocka_run_group_tests_name("train/verdict", tests, NULL, NULL);
}
