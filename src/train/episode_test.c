/* Training on episodes: masks token by token, log-probs that the training pass reproduces
 * bit for bit, metrics, a tool that fails for good, and resuming after it.
 *
 * The policy is a small model over a byte-level tokenizer, so its turns are noise; the
 * environment is a scripted one.
 */
#include "train/rl_testing.h"

#include "rollout/score_testing.h"
#include "tensor/backend_testing.h"
#include "train/agent_testing.h"
#include "train/same_testing.h"
#include "train/step/sums.h"

#define ROOT "build/test-runs/episode"

static const char *const base[] = {
    "model.path=" ROOT "/model",
    "model.dtype=fp32",
    "task.name=arithmetic",
    "task.level=easy",
    "task.count=40",
    "task.val_count=5",
    "rollout.prompts=3",
    "rollout.samples=3",
    "rollout.max_batch=4",
    "episode.env=calculator",
    "episode.turns=2",
    "episode.turn_tokens=9",
    "episode.obs_tokens=15",
    "episode.context=100",
    "optim.lr=1e-2",
    "train.steps=3",
    "train.updates_per_step=1",
    "kl.estimator=k3",
    "kl.beta=0.1",
    "anchor.kind=ema",
    "algo.entropy_coef=0.01",
    "eval.at_start=false",
    "eval.problems=4",
    "run.threads=1",
    NULL,
};

/* ---- an environment that fails at a given call ---- */

struct script {
    int calls;
    int fail_at; /* 0: never */
};
static struct script script;

static kg_status script_open(void **state, const struct kg_env_opts *opts,
                             struct kg_err *e)
{
    (void)opts;
    (void)e;
    *state = &script;
    return KG_OK;
}

static void script_close(void *state) { (void)state; }

/* Every turn but the last may call; the length of its text decides what happens. */
static kg_status script_step(struct kg_env_result *result, struct kg_str *observation,
                             void *state, const struct kg_env_turn *turn,
                             struct kg_err *e)
{
    struct script *s = state;
    size_t n = turn->n % 7;

    if (++s->calls == s->fail_at)
        return kg_fail(e, KG_EIO, "search: expected an answer, found none");
    *result = (struct kg_env_result){.valid = n != 3, .answered = n == 5};
    if (turn->last || n == 5)
        return KG_OK;
    result->called = n != 3;
    result->failed = n == 4;
    result->next = KG_ENV_OBSERVE;
    return kg_str_printf(observation, e, "<result>%zu and %zu</result>", turn->n, n);
}

static const struct kg_env_row script_row = {
    .name = "script", .open = script_open, .close = script_close, .step = script_step};

/* ---- set-up ---- */

static int setup(void **state)
{
    (void)state;
    fresh(ROOT);
    make_agent(ROOT, "1 + 2 = 3 and 4 * 5 = 20 <result> </result>", 7, false);
    return 0;
}

static struct kg_config *config(const char *dir, const char *const *extra)
{
    const char *const *const lists[] = {base, extra};

    return config_from(dir, lists, 2);
}

static void open_episodes(struct opened *o, const char *dir, const char *const *extra)
{
    NEED(kg_file_remove_tree(dir, err));
    open_config(o, config(dir, extra));
}

/* Replaces the calculator by the scripted environment. */
static void use_script(struct kg_run *run, int fail_at)
{
    script = (struct script){.fail_at = fail_at};
    kg_episodes_close(run->work.episodes);
    run->work.episodes = NULL;
    run->in.episode_opts.env = &script_row;
    NEED(kg_episodes_open(&run->work.episodes, run->in.tok, &run->in.episode_opts, err));
}

/* ---- masks ---- */

/* The batch must hold the model's tokens, in order, with their records, and nothing
 * else. */
static void check_flat(const struct kg_rl_batch *b)
{
    int64_t at = 0;
    size_t tools = 0;

    for (size_t i = 0; i < b->n_trajs; i++) {
        const struct kg_traj *t = &b->trajs[i];

        assert_int_equal(b->begin[i], at);
        for (size_t j = 0; j < t->n; j++) {
            tools += t->source[j] == KG_SOURCE_TOOL;
            if (t->source[j] != KG_SOURCE_MODEL) {
                assert_true(t->logp[j] == 0);
                continue;
            }
            assert_int_equal(b->tokens[at], t->tokens[j]);
            assert_true(b->old_logp[at] == (double)t->logp[j]);
            at++;
        }
    }
    assert_int_equal(b->n, at);
    assert_true(tools > 30);
}

/* Compares with log-probs of all positions by the training pass, one episode at a
 * time. */
static void check_scores(const struct kg_rl_batch *b, const struct kg_run *run)
{
    for (size_t i = 0; i < b->n_trajs; i++) {
        const struct kg_traj *t = &b->trajs[i];
        float logp[100], anchor[100];
        struct kg_score_seq own = {
            .tokens = t->tokens, .n = t->n, .temperature = t->temperature, .logp = logp};
        struct kg_score_seq other = own;
        int64_t at = b->begin[i];

        other.logp = anchor;
        score_one(run->state.model, &own, 0, 0);
        score_one(run->state.anchor, &other, 0, 0);
        for (size_t j = 0; j < t->n; j++) {
            if (t->source[j] != KG_SOURCE_MODEL)
                continue;
            assert_true(logp[j] == t->logp[j]);
            assert_true(b->anchor_logp[at++] == (double)anchor[j]);
        }
    }
}

static void only_what_the_model_wrote_is_in_the_loss(void **state)
{
    static const char *const more[] = {"rollout.top_p=0.97", NULL};
    struct opened o;
    struct kg_rl_batch b = {0};

    (void)state;
    open_episodes(&o, ROOT "/masks", more);
    use_script(&o.run, 0);
    disturb(o.run.state.anchor);
    NEED(kg_rl_sample(&b, &o.run.in, &o.run.state, &o.run.work, err));
    NEED(kg_rl_prepare(&b, &o.run.in, &o.run.state, &o.run.work, err));
    check_flat(&b);
    check_scores(&b, &o.run);
    kg_rl_batch_release(&b);
    close_run(&o);
}

static void lengths_and_metrics_count_what_the_model_wrote(void **state)
{
    struct opened o;

    (void)state;
    open_episodes(&o, ROOT "/step", NULL);
    use_script(&o.run, 0);
    NEED(kg_rl_step(&o.run, err));
    assert_true(last_metric(ROOT "/step", "mismatch/first_update_max") == 0);
    assert_true(last_metric(ROOT "/step", "length/mean") <= 27);
    assert_true(last_metric(ROOT "/step", "policy/tokens") ==
                9 * last_metric(ROOT "/step", "length/mean"));
    assert_true(last_metric(ROOT "/step", "episode/observed_tokens") > 5);
    assert_true(last_metric(ROOT "/step", "episode/turns") > 1);
    assert_true(last_metric(ROOT "/step", "episode/calls") > 0);
    assert_true(last_metric(ROOT "/step", "episode/seconds_idle") == 0);
    NEED(kg_run_validate(&o.run, err));
    assert_true(last_metric(ROOT "/step", "val/episode/turns") > 1);
    close_run(&o);
}

/* ---- a tool that is down ---- */

static void same_model(const struct kg_run_state *a, const struct kg_run_state *b)
{
    assert_memory_equal(a->model->master.data, b->model->master.data,
                        (size_t)a->model->n_elements * sizeof(float));
    assert_memory_equal(a->anchor->master.data, b->anchor->master.data,
                        (size_t)a->anchor->n_elements * sizeof(float));
}

/* A step that a failing tool ends leaves the run unchanged. The repeated step gives the
 * bits of a run in which nothing failed. */
static void a_step_that_a_tool_broke_off_is_done_again_bit_for_bit(void **state)
{
    struct opened whole, broken;
    struct kg_err e;

    (void)state;
    open_episodes(&whole, ROOT "/whole", NULL);
    use_script(&whole.run, 0);
    open_episodes(&broken, ROOT "/broken", NULL);
    use_script(&broken.run, 0);
    for (int step = 0; step < 2; step++) {
        NEED(kg_rl_step(&whole.run, err));
        script.calls = 0;
        script.fail_at = 8;
        assert_int_equal(kg_rl_step(&broken.run, &e), KG_EIO);
        assert_non_null(strstr(e.message, "continue with kedge train --resume"));
        assert_int_equal(broken.run.state.count.step, step);
        assert_false(broken.run.state.midway);
        script.fail_at = 0;
        NEED(kg_rl_step(&broken.run, err));
    }
    same_model(&whole.run.state, &broken.run.state);
    close_run(&broken);
    close_run(&whole);
}

/* ---- whole runs with the calculator ---- */

static void train(const char *dir, bool resume, const char *const *extra)
{
    struct kg_config *c = config(dir, extra);

    NEED(kg_train_run(c, resume, false, err));
    kg_config_free(c);
}

static void a_resumed_run_of_episodes_gives_the_same_bits(void **state)
{
    static const char *const two[] = {"train.steps=2", NULL};
    static const char *const other_batch[] = {"rollout.max_batch=9", "episode.open=11",
                                              NULL};

    (void)state;
    NEED(kg_file_remove_tree(ROOT "/once", err));
    NEED(kg_file_remove_tree(ROOT "/twice", err));
    train(ROOT "/once", false, NULL);
    train(ROOT "/twice", false, two);
    train(ROOT "/twice", true, other_batch);
    assert_same_file(ROOT "/once", ROOT "/twice",
                     "checkpoints/step-000003/model/model.safetensors");
    assert_true(last_metric(ROOT "/once", "episode/invalid") > 0);
}

static void expect_refusal(const char *const *extra, const char *word)
{
    struct kg_config *c = config(ROOT "/refused", extra);
    struct kg_run run;
    struct kg_err e;

    assert_int_equal(kg_run_open(&run, c, &e), KG_EINVAL);
    if (!strstr(e.message, word))
        fail_msg("expected '%s' in: %s", word, e.message);
    kg_config_free(c);
}

static void impossible_episodes_are_refused_at_the_start(void **state)
{
    static const char *const no_index[] = {"episode.env=search", NULL};
    static const char *const idle_index[] = {"search.where=x.db", NULL};
    static const char *const no_model[] = {"episode.env=search", "search.where=x.db",
                                           "search.kind=hybrid", NULL};
    static const char *const idle_model[] = {"episode.env=search", "search.where=x.db",
                                             "search.model=m", NULL};
    static const char *const of_a_server[] = {
        "episode.env=search", "search.where=http://h:1/retrieve",
        "search.kind=hybrid", "search.model=m",
        "search.weight=0.3",  NULL};
    static const char *const too_long[] = {"episode.context=300", NULL};
    static const char *const no_room[] = {"episode.context=5", NULL};
    static const char *const overlong[] = {"rollout.overlong_buffer=28", NULL};

    (void)state;
    expect_refusal(no_index, "search.where: expected an index file");
    expect_refusal(idle_index,
                   "search.where: has an effect only with episode.env search");
    expect_refusal(no_model, "search.model: expected the folder of the encoder for "
                             "search.kind hybrid, found none");
    expect_refusal(idle_model,
                   "search.model: has an effect only with search.kind dense or hybrid");
    expect_refusal(of_a_server,
                   "search.weight: has an effect only with search.where other than "
                   "http://*; remove it (default 0.5), found 0.3");
    expect_refusal(too_long, "episode.context: expected prompt and completion within");
    expect_refusal(no_room, "episode.context: expected more than the longest prompt");
    expect_refusal(overlong, "at most the longest completion (27)");
}

static void a_dry_run_says_what_an_episode_is(void **state)
{
    struct kg_config *c = config(ROOT "/dry", NULL);
    struct kg_str out = {0};

    (void)state;
    NEED(kg_train_plan(&out, c, false, 1, err));
    assert_non_null(strstr(out.data, "9 completions of at most 27 tokens"));
    assert_non_null(
        strstr(out.data, "episodes    calculator: 2 turns with tools and one without"));
    kg_str_release(&out);
    kg_config_free(c);
}

static void plan_of(struct kg_str *out, const char *const *assignments)
{
    struct kg_config *c = config(ROOT "/dry", assignments);

    kg_str_clear(out);
    NEED(kg_train_plan(out, c, false, 1, err));
    kg_config_free(c);
}

static void has(const struct kg_str *plan, const char *words)
{
    if (!strstr(plan->data, words))
        fail_msg("expected '%s' in: %s", words, plan->data);
}

static void a_dry_run_says_what_the_retriever_is(void **state)
{
    static const char *const e5[] = {
        "episode.env=search",       "search.where=http://h:1/retrieve",
        "search.kind=dense",        "search.model=intfloat/e5-base-v2",
        "search.passages=21015324", NULL};
    static const char *const untold[] = {"episode.env=search",
                                         "search.where=http://h:1/retrieve", NULL};
    struct kg_str out = {0};

    (void)state;
    plan_of(&out, e5);
    has(&out, "retriever   http://h:1/retrieve, which a plan does not contact, expected "
              "to search by dense of intfloat/e5-base-v2 among 21015324 passages\n");
    plan_of(&out, untold);
    has(&out, "retriever   http://h:1/retrieve, which a plan does not contact\n");
    kg_str_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_the_model_wrote_is_in_the_loss),
        cmocka_unit_test(lengths_and_metrics_count_what_the_model_wrote),
        cmocka_unit_test(a_step_that_a_tool_broke_off_is_done_again_bit_for_bit),
        cmocka_unit_test(a_resumed_run_of_episodes_gives_the_same_bits),
        cmocka_unit_test(impossible_episodes_are_refused_at_the_start),
        cmocka_unit_test(a_dry_run_says_what_an_episode_is),
        cmocka_unit_test(a_dry_run_says_what_the_retriever_is),
    };

    return RUN_SHOWN(tests, setup, NULL);
}
