/* The table of metrics and the runs agree: every number that a run writes has a row, and
 * every row gets a number in one of a few runs, which together switch everything on. */
#include "train/rl_testing.h"

#include "base/clock.h"
#include "ranks/ranks_testing.h"
#include "train/metric_testing.h"

#define ROOT "build/test-runs/metric-table"

enum { MAX_ROWS = 400 };

static const char *const steps[] = {"train.steps=2", "train.updates_per_step=2",
                                    "eval.problems=8", "data.val=" ROOT "/sources.jsonl",
                                    NULL};

static const char *const topk[] = {"sft.steps=2",
                                   "sft.batch=4",
                                   "sft.val=" ROOT "/sources.jsonl",
                                   "algo.preset=ema-pg",
                                   "kl.beta=0.05",
                                   "kl.top_k=3",
                                   "eval.anchor=true",
                                   "eval.reference=" DATA,
                                   "data.train=" ROOT "/sources.jsonl",
                                   "rollout.top_p=0.9",
                                   NULL};
static const char *const regions[] = {"algo.surrogate=dppo-binary-tv",
                                      "algo.mask=trm-max",
                                      "algo.mask_delta=0.1",
                                      "kl.estimator=k3",
                                      "kl.beta=0.05",
                                      "anchor.kind=copy",
                                      "anchor.kappa=1e-3",
                                      "rollout.max_staleness=1",
                                      NULL};
static const char *const filtered[] = {
    "algo.advantage=remax",          "rollout.dynamic=true",
    "rollout.dynamic_metric=reward", "rollout.overlong_buffer=11",
    "rollout.max_refills=1000",      NULL};
static const char *const episodes[] = {"episode.env=calculator", "episode.turns=1",
                                       "episode.turn_tokens=9",  "episode.obs_tokens=9",
                                       "episode.context=64",     "episode.window=16",
                                       "algo.reproduction=true", NULL};

/* A model with experts and the loss that balances their load. */
static const char *const balanced[] = {"model.path=" ROOT "/model",
                                       "train.router_aux=0.01",
                                       "train.steps=1",
                                       "sft.steps=1",
                                       "sft.batch=4",
                                       NULL};

/* Graded by an external program. */
static const char *const external[] = {"task.name=external",
                                       "task.command=sed -u 's/.*/{\"score\": 1, "
                                       "\"words\": 2}/'",
                                       "task.rewards=[a=external, b=external]",
                                       "algo.tis=2",
                                       "train.old_logp=recompute",
                                       "train.steps=1",
                                       "kl.in=advantage-future",
                                       "kl.estimator=k1",
                                       "kl.beta=0.01",
                                       "anchor.kind=fixed",
                                       NULL};
static bool seen[MAX_ROWS];

static void train_and_look(const char *dir, const char *const *extra)
{
    const char *const *const lists[] = {rl_base, steps, extra};
    struct kg_config *config;

    fresh(dir);
    config = config_from(dir, lists, 3);
    NEED(kg_train_run(config, false, false, err));
    kg_config_free(config);
    metrics_have_rows(dir, seen);
}

/* The model gets the characters of the digit task as tokenizer. */
static void train_with_experts(const char *dir)
{
    assert_int_equal(system("cp -r tests/data/reference/qwen3_moe " ROOT
                            "/model && cp -f " DATA "/token* " ROOT "/model"),
                     0);
    train_and_look(dir, balanced);
    /* two experts per token: 0.01 x 2 with an even load */
    assert_true(fabs(last_metric(dir, "loss/router_aux") - 0.02) < 0.005);
    assert_true(last_metric(dir, "experts/load_max") >= 1);
    assert_true(last_metric(dir, "experts/load_worst") >=
                last_metric(dir, "experts/load_max"));
    assert_true(last_metric(dir, "experts/entropy") <= log(6));
}

/* Trains as one of three ranks, of which one samples. */
static int train_as_rank(struct kg_ranks *r, void *user)
{
    static const char *const extra[] = {"train.steps=1", "train.lanes=3", "rollout.lag=1",
                                        "ranks.rollout=1", NULL};
    const char *const *const lists[] = {rl_base, extra};
    struct kg_config *config = config_from(user, lists, 2);
    struct kg_err e;
    kg_status status = kg_train_run_on(r, config, false, false, &e);

    kg_config_free(config);
    return status != KG_OK;
}

/* Every rank has its three times, and the log names the slowest. */
static void train_on_ranks(char *dir)
{
    static const char *const what[] = {"sampling", "waiting", "exchange"};
    int state[3];
    char name[64];

    kg_threads_set(1);
    fresh(dir);
    ranks_run(state, 3, train_as_rank, dir);
    for (int p = 0; p < 3; p++) {
        assert_int_equal(state[p], 0);
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "seconds/%s/rank/%d", what[i], p);
            assert_true(last_metric(dir, name) >= 0);
        }
    }
    assert_true(last_metric(dir, "seconds/sampling/rank/0") == 0); /* rank 0 trains */
    assert_true(last_metric(dir, "seconds/sampling/rank/2") > 0);
    metrics_have_rows(dir, seen);
}

static void the_slowest_rank_waits_least(void **state)
{
    const struct kg_rank_times times[] = {{1, 0.5, 0}, {1, 0.25, 9}, {9, 0.375, 0}};
    struct kg_metrics log = {.n = 0};

    (void)state;
    kg_rank_times_put(&log, times, 3);
    assert_true(kg_metrics_get(&log, "seconds/slowest_rank", -1) == 1);
    assert_true(kg_metrics_get(&log, "seconds/sampling/rank/2", -1) == 9);
    assert_true(kg_metrics_get(&log, "seconds/waiting/rank/0", -1) == 0.5);
    assert_true(kg_metrics_get(&log, "seconds/exchange/rank/1", -1) == 9);
}

/* ---- episodes: the digit model cannot call a tool, so every turn gets a digit back
 * ---- */

static kg_status digit_open(void **state, const struct kg_env_opts *opts,
                            struct kg_err *err)
{
    (void)opts, (void)err;
    *state = NULL;
    return KG_OK;
}

static void digit_close(void *state) { (void)state; }

static kg_status digit_step(struct kg_env_result *result, struct kg_str *observation,
                            void *state, const struct kg_env_turn *turn,
                            struct kg_err *err)
{
    (void)state;
    *result = (struct kg_env_result){.valid = true, .called = !turn->last};
    if (turn->last)
        return KG_OK;
    result->next = KG_ENV_OBSERVE;
    return kg_str_puts(observation, "1", err);
}

static void digit_stats(struct kg_env_stats *out, const void *state)
{
    (void)state;
    *out = (struct kg_env_stats){.calls = 1};
}

static void step_with_episodes(const char *dir)
{
    static const struct kg_env_row row = {.name = "digit",
                                          .open = digit_open,
                                          .close = digit_close,
                                          .step = digit_step,
                                          .stats = digit_stats};
    struct opened o;

    open_run(&o, dir, episodes);
    kg_episodes_close(o.run.work.episodes);
    o.run.work.episodes = NULL;
    o.run.in.episode_opts.env = &row;
    NEED(kg_episodes_open(&o.run.work.episodes, o.run.in.tok, &o.run.in.episode_opts,
                          err));
    NEED(kg_rl_step(&o.run, err));
    NEED(kg_run_validate(&o.run, err));
    close_run(&o);
    metrics_have_rows(dir, seen);
}

static void every_number_has_a_row_and_every_row_a_number(void **state)
{
    static const char lines[] =
        "{\"prompt\": \"8,3:9,4\", \"completion\": \"7\", \"data_source\": \"even\"}\n"
        "{\"prompt\": \"3,3:9,6\", \"completion\": \"3\", \"data_source\": \"odd\"}\n";

    (void)state;
    fresh(ROOT);
    NEED(kg_file_make_dirs(ROOT, err));
    NEED(kg_file_write_atomic(ROOT "/sources.jsonl", lines, strlen(lines), err));
    train_and_look(ROOT "/topk", topk);
    train_and_look(ROOT "/regions", regions);
    train_and_look(ROOT "/filtered", filtered);
    train_and_look(ROOT "/external", external);
    train_with_experts(ROOT "/balanced");
    train_on_ranks((char[]){ROOT "/ranks"});
    step_with_episodes(ROOT "/episodes");
    for (size_t i = 0; kg_metric_at(i); i++) {
        assert_true(i < MAX_ROWS);
        if (!seen[i])
            fail_msg("no run wrote %s in a line of phase %s", kg_metric_at(i)->name,
                     kg_metric_at(i)->phase);
    }
}

static void rows_are_found_by_name_source_and_anchor(void **state)
{
    (void)state;
    assert_string_equal(kg_metric_find("rl", "kl/value")->name, "kl/value");
    assert_null(kg_metric_find("sft", "kl/value"));
    assert_null(kg_metric_find("rl", "kl/valu"));
    assert_null(kg_metric_find("rl", "reward/source/"));
    assert_string_equal(kg_metric_find("rl", "reward/source/a/b")->name,
                        "reward/source/NAME");
    assert_string_equal(kg_metric_find("validation", "val_anchor/entropy")->name,
                        "val/entropy");
    assert_string_equal(kg_metric_find("validation", "val_anchor/reward/source/x")->name,
                        "val/reward/source/NAME");
    assert_null(kg_metric_find("rl", "val_anchor/kl/value"));
}

static void groups_are_contiguous_and_have_titles(void **state)
{
    (void)state;
    for (size_t i = 0; kg_metric_at(i); i++) {
        const struct kg_metric_row *row = kg_metric_at(i);

        assert_non_null(kg_metric_group_title(row->group));
        assert_true(i == 0 || row->group >= kg_metric_at(i - 1)->group);
        assert_true(strlen(row->help) > 0 && !strchr(row->help, '\n'));
        assert_ptr_equal(kg_metric_find(row->phase, row->name), row);
    }
}

/* A row without a plot is the standard error of a row with one. */
static void errors_belong_to_metrics(void **state)
{
    char name[KG_METRIC_NAME];

    (void)state;
    for (size_t i = 0; kg_metric_at(i); i++) {
        const struct kg_metric_row *row = kg_metric_at(i), *of = NULL;

        for (size_t j = 0; !row->plot && kg_metric_at(j); j++)
            if (kg_metric_at(j)->plot &&
                kg_metric_stderr(name, sizeof name, kg_metric_at(j)->name) &&
                strcmp(name, row->name) == 0)
                of = kg_metric_at(j);
        assert_true(row->plot || of);
    }
    assert_true(kg_metric_stderr(name, sizeof name, "val/accuracy/source/x"));
    assert_string_equal(name, "val/accuracy_stderr/source/x");
    assert_false(kg_metric_stderr(name, 12, "val/accuracy"));
}

static void errors_are_over_prompts(void **state)
{
    /* two prompts with the means 0 and 1 */
    assert_true(fabs(kg_metrics_stderr(2, 1, 1) - 0.5) < 1e-15);
    assert_true(kg_metrics_stderr(1, 3, 9) == 0);
    /* 1, 2, 4 and 5: a variance of 10 / 3 */
    assert_true(fabs(kg_metrics_stderr(4, 12, 46) - sqrt(10.0 / 12)) < 1e-15);
    assert_true(kg_metrics_stderr(3, 0.3, 0.03) >= 0); /* equal except for rounding */
    (void)state;
    assert_true(last_metric(ROOT "/regions", "reward/mean_stderr") > 0);
    assert_true(last_metric(ROOT "/regions", "reward/mean_stderr") <
                last_metric(ROOT "/regions", "reward/std"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_found_by_name_source_and_anchor),
        cmocka_unit_test(groups_are_contiguous_and_have_titles),
        cmocka_unit_test(errors_belong_to_metrics),
        cmocka_unit_test(the_slowest_rank_waits_least),
        cmocka_unit_test(every_number_has_a_row_and_every_row_a_number),
        cmocka_unit_test(errors_are_over_prompts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
