/* Episodes longer than their window, from outside: `kedge train` is stopped and resumed,
 * `show` recomputes the log-probs of a dump from the checkpoint that sampled it, `replay`
 * its gradient, and `eval` has the same limits. */
#define ROOT "build/test-runs/long-episodes"
#include "run_testing.h"

#include "data/jsonl.h"
#include "train/agent_testing.h"

#define MODEL ROOT "/model"

static const char keys[] =
    " model.path=" MODEL
    " model.dtype=fp32 task.name=arithmetic task.level=easy task.count=30 "
    "task.val_count=3 rollout.prompts=2 rollout.samples=2 episode.env=calculator "
    "episode.turns=4 episode.turn_tokens=8 episode.obs_tokens=15 episode.context=200 "
    "episode.answer_tokens=110 episode.window=70 kl.estimator=k3 kl.beta=0.1 "
    "anchor.kind=ema optim.lr=1e-2 eval.at_start=false eval.problems=2 "
    "checkpoint.every=1 checkpoint.dtype=fp32 checkpoint.keep=9";

/* out <- stdout of a command, which must succeed */
static void run(struct kg_str *out, const char *fmt, ...)
{
    char command[2048], line[2200];
    va_list list;

    va_start(list, fmt);
    vsnprintf(command, sizeof command, fmt, list);
    va_end(list);
    snprintf(line, sizeof line, "./kedge %s > " ROOT "/out 2> " ROOT "/said", command);
    if (system(line) != 0) {
        NEED(kg_file_read(out, ROOT "/said", 1 << 20, err));
        fail_msg("%s: %s", line, kg_str_text(out));
    }
    kg_str_clear(out);
    NEED(kg_file_read(out, ROOT "/out", 1 << 24, err));
}

static int setup(void **state)
{
    (void)state;
    fresh(ROOT);
    make_agent(ROOT, "1 + 2 = 3 and 4 * 5 = 20 <result> </result>", 7, false);
    return 0;
}

/* Number of lines of a dump that have windows. */
static size_t count_windows(const char *path)
{
    struct kg_str text = {0};
    size_t n = 0;

    NEED(kg_zst_read(&text, path, 1 << 24, err));
    for (const char *at = text.data; (at = strstr(at, "\"windows\":[[")); at++)
        n++;
    kg_str_release(&text);
    return n;
}

/* Every number of the column must be 0: the weights that sampled give the same log-probs
 * to the bit. */
static void expect_no_divergence(const struct kg_str *shown)
{
    size_t seen = 0;
    double token, divergence;

    for (const char *at = shown->data; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        if (sscanf(at, "%lf %lf |", &token, &divergence) != 2)
            continue;
        seen++;
        if (divergence != 0)
            fail_msg("token %g is %g apart", token, divergence);
    }
    assert_true(seen > 30);
}

static void a_long_episode_goes_through_every_command(void **state)
{
    static const char *const files[] = {"checkpoints/step-000003/model/model.safetensors",
                                        "rollouts/step-000003.jsonl.zst"};
    static const char dump[] = ROOT "/resumed/rollouts/step-000003.jsonl.zst";
    struct kg_str out = {0};
    double values[3];

    (void)state;
    run(&out, "train%s run.dir=" ROOT "/whole train.steps=3", keys);
    run(&out, "train%s run.dir=" ROOT "/resumed train.steps=2 run.threads=1", keys);
    run(&out,
        "train --resume%s run.dir=" ROOT "/resumed train.steps=3 "
        "rollout.max_batch=3 run.threads=2",
        keys);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        assert_same_file(ROOT "/whole", ROOT "/resumed", files[i]);
    assert_int_equal(metrics_of(values, 3, ROOT "/whole", "episode/windowed"), 3);
    assert_true(values[2] > 1);
    assert_true(count_windows(dump) > 0);
    run(&out,
        "show %s -m " MODEL " --reference " ROOT
        "/resumed/checkpoints/step-000002/model --divergence --dtype fp32 --no-color "
        "--count 4",
        dump);
    expect_no_divergence(&out);
    run(&out, "replay " ROOT "/resumed 3 --json");
    assert_non_null(strstr(out.data, "\"apart_max\": 0"));
    kg_str_release(&out);
}

/* The completions of a set, under the given limits. */
static void evaluate(struct kg_str *out, const char *name, int batch, const char *limits)
{
    struct kg_str suite = {0};
    char path[128];

    NEED(kg_str_printf(&suite, err,
                       "suite: {name: t}\n"
                       "defaults: {task: arithmetic, level: easy, problems: 6, env: "
                       "calculator, turns: 4, max_tokens: 8, obs_tokens: 15%s}\n"
                       "sets: {a: {samples: 2}}\n",
                       limits));
    NEED(kg_file_write_atomic(ROOT "/suite.yaml", suite.data, suite.len, err));
    run(out,
        "eval " ROOT "/suite.yaml --model " MODEL " --dtype fp32 --out " ROOT
        "/eval-%s --max-batch %d",
        name, batch);
    snprintf(path, sizeof path, ROOT "/eval-%s/samples.jsonl.zst", name);
    kg_str_clear(out);
    NEED(kg_zst_read(out, path, 1 << 24, err));
    kg_str_release(&suite);
}

static void an_evaluation_has_the_same_limits(void **state)
{
    static const char window[] = ", context: 200, answer_tokens: 110, window: 70";
    struct kg_str one = {0}, many = {0}, all = {0};

    (void)state;
    evaluate(&one, "one", 1, window);
    evaluate(&many, "many", 9, window);
    evaluate(&all, "all", 9, ", context: 200, answer_tokens: 110");
    assert_string_equal(one.data, many.data);
    assert_string_not_equal(one.data, all.data);
    kg_str_release(&one);
    kg_str_release(&many);
    kg_str_release(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_episode_goes_through_every_command),
        cmocka_unit_test(an_evaluation_has_the_same_limits),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
