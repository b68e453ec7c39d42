/* Completions that span versions of the weights (rollout.max_staleness): which version
 * samples which token, that the recorded log-prob is that version's own, and that such a
 * run has the same bits however it is computed.
 */
#define ROOT "build/test-runs-staleness"
#include "run_testing.h"

#include "rollout/score_testing.h"
#include "train/dump_testing.h"

enum { STEPS = 6 };

#define BASE                                                                             \
    "train.steps=6", "checkpoint.keep=99", "train.updates_per_step=1", "run.threads=1",  \
        "optim.weight_decay=0", "data.val=", "log.report=false"

/* ---- which version samples a token ---- */

static const struct schedule {
    int n, lag, max_tokens;
    const char *extra[6];
} schedules[] = {
    {1, 0, 12, {NULL}},
    {2, 0, 12, {NULL}},
    {3, 0, 12, {"rollout.prompts=3", NULL}},
    {4, 0, 12, {"rollout.samples=2", NULL}},
    {5, 0, 7, {NULL}},
    {8, 0, 12, {"train.updates_per_step=2", NULL}},
    {2, 0, 2, {NULL}},
    {4, 0, 1, {NULL}},
    {2, 1, 12, {NULL}},
    {4, 1, 11, {"rollout.dtype=fp32", NULL}},
    {5, 3, 9, {"rollout.stop=[\"3\", \"12\"]", NULL}},
    {64, 0, 12, {"rollout.prompts=1", "rollout.samples=3", NULL}},
};

/* The formula of train/step/begun.h, for token j after the prompt in a completion that
 * `step` trains on. */
static int64_t version_by_rule(const struct schedule *s, int64_t step, int64_t j)
{
    int64_t pieces = s->n - s->lag + 1;
    int64_t slice = (s->max_tokens + pieces - 1) / pieces;
    int64_t version = step - s->n + j / slice;
    return version < 0 ? 0 : version;
}

static void assert_by_rule(const struct schedule *s, const char *dir, int step)
{
    double sum = 0, most = 0, tokens = 0, logged[STEPS];
    struct dump d;
    read_dump(&d, dir, step + 1);
    for (size_t i = 0; i < d.n; i++) {
        size_t prompt = (size_t)kg_json_int(get(&d, i, "prompt_n"), 0);
        for (size_t j = prompt; j < kg_json_size(get(&d, i, "tokens")); j++) {
            int64_t version = version_at(&d, i, j);
            double age = (double)(step - version);
            assert_int_equal(version, version_by_rule(s, step, (int64_t)(j - prompt)));
            assert_true(version >= 0 && age <= s->n && (age >= s->lag || version == 0));
            sum += age, tokens++;
            most = age > most ? age : most;
        }
    }
    assert_int_equal(metrics_of(logged, STEPS, dir, "staleness/max"), STEPS);
    assert_true(logged[step] == most);
    assert_int_equal(metrics_of(logged, STEPS, dir, "staleness/mean"), STEPS);
    assert_true(logged[step] == sum / tokens);
    release_dump(&d);
}

static void set_schedule(char text[3][64], const struct schedule *s)
{
    snprintf(text[0], 64, "rollout.max_staleness=%d", s->n);
    snprintf(text[1], 64, "rollout.lag=%d", s->lag);
    snprintf(text[2], 64, "rollout.max_tokens=%d", s->max_tokens);
}

static void every_token_has_the_version_that_its_place_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
        char text[3][64];
        const char *all[20] = {BASE, "checkpoint.every=0", text[0], text[1], text[2]};
        size_t n = 11;
        set_schedule(text, &schedules[i]);
        for (const char *const *a = schedules[i].extra; *a; a++)
            all[n++] = *a;
        fresh(ROOT "/rule");
        must_train(ROOT "/rule", false, all);
        for (int step = 0; step < STEPS; step++)
            assert_by_rule(&schedules[i], ROOT "/rule", step);
    }
}

/* ---- recorded log-probs ---- */

/* The model of a version: the run's weights after that many steps. */
static struct kg_model *open_version(const char *dir, int64_t version, enum kg_dtype ct)
{
    const struct kg_model_opts opts = {.ct = ct};
    struct kg_model *m = NULL;
    char path[256] = DIGITS;
    if (version > 0)
        snprintf(path, sizeof path, "%s/checkpoints/step-%06lld/model", dir,
                 (long long)version);
    NEED(kg_model_open(&m, path, &opts, err));
    return m;
}

/* Every token of this version must have the log-prob that the version gives it in the
 * whole text.   returns the number of such tokens */
static size_t assert_records(const struct dump *d, const struct kg_model *m,
                             int64_t version)
{
    int32_t tokens[64];
    float logp[64];
    size_t found = 0;
    for (size_t i = 0; i < d->n; i++) {
        const struct kg_json *ids = get(d, i, "tokens");
        struct kg_score_seq q = {.tokens = tokens,
                                 .n = kg_json_size(ids),
                                 .logp = logp,
                                 .from = 1,
                                 .temperature = 0.8f};
        assert_true(q.n <= 64);
        for (size_t j = 0; j < q.n; j++)
            tokens[j] = (int32_t)kg_json_int(kg_json_at(ids, j), -1);
        score_one(m, &q, 0, 0);
        for (size_t j = (size_t)kg_json_int(get(d, i, "prompt_n"), 0); j < q.n; j++) {
            if (version_at(d, i, j) != version)
                continue;
            found++;
            assert_true((float)kg_json_real(kg_json_at(get(d, i, "logp"), j), 1) ==
                        logp[j]);
        }
    }
    return found;
}

static void records_are_those_of(enum kg_dtype ct, const char *dtype, const char *lag)
{
    const char *const all[] = {BASE,
                               "rollout.max_staleness=3",
                               "rollout.max_tokens=20",
                               "optim.lr=1e-2",
                               "rollout.temperature=0.8",
                               dtype,
                               lag,
                               NULL};
    size_t found = 0, tokens = 0;
    fresh(ROOT "/record");
    must_train(ROOT "/record", false, all);
    for (int step = 0; step < STEPS; step++) {
        struct dump d;
        read_dump(&d, ROOT "/record", step + 1);
        for (size_t i = 0; i < d.n; i++)
            tokens += kg_json_size(get(&d, i, "tokens")) -
                      (size_t)kg_json_int(get(&d, i, "prompt_n"), 0);
        for (int64_t version = step > 3 ? step - 3 : 0; version <= step; version++) {
            struct kg_model *m = open_version(ROOT "/record", version, ct);
            found += assert_records(&d, m, version);
            kg_model_free(m);
        }
        release_dump(&d);
    }
    assert_int_equal(found, tokens);
}

static void a_record_is_that_of_the_version_which_sampled(void **state)
{
    (void)state;
    records_are_those_of(KG_F32, "model.dtype=fp32", "rollout.lag=0");
    records_are_those_of(KG_BF16, "model.dtype=bf16", "rollout.lag=0");
    records_are_those_of(KG_BF16, "model.dtype=bf16", "rollout.lag=2");
}

/* ---- weights that do not change ---- */

static const char *const samplings[][4] = {
    {NULL},
    {"model.dtype=fp32", NULL},
    {"rollout.stop=[\"3\", \"12\", \"7:\"]", NULL},
    {"rollout.stop=[\"00\"]", "rollout.max_batch=3", NULL},
    {"rollout.top_p=0.7", "train.old_logp=recompute", NULL},
    {"rollout.top_k=5", "rollout.min_p=0.1", "train.old_logp=recompute", NULL},
    {"rollout.top_p=0.7", "algo.reproduction=true", NULL},
    {"algo.preset=ema-pg", "kl.beta=0.1", NULL},
    {"algo.preset=dppo-topk-kl", NULL},
    {"rollout.temperature=0.5", "rollout.max_tokens=17", NULL},
    {"rollout.overlong_buffer=6", NULL},
    {"rollout.dtype=fp32", "model.dtype=bf16", NULL},
};

/* With lr 0 the pieces of a completion must equal the completion of one request, with all
 * its records, and steps must learn and log the same as with max_staleness 0. */
static void pieces_are_the_completion_of_one_request(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof samplings / sizeof *samplings; i++) {
        const char *all[20] = {BASE, "checkpoint.every=0", "optim.lr=0",
                               "rollout.max_staleness=0"};
        double whole[STEPS], pieces[STEPS];
        size_t n = 10;
        for (const char *const *a = samplings[i]; *a; a++)
            all[n++] = *a;
        fresh(ROOT "/whole");
        must_train(ROOT "/whole", false, all);
        all[9] = "rollout.max_staleness=3";
        fresh(ROOT "/pieces");
        must_train(ROOT "/pieces", false, all);
        for (int step = 1; step <= STEPS; step++) {
            struct dump a, b;
            read_dump(&a, ROOT "/whole", step);
            read_dump(&b, ROOT "/pieces", step);
            assert_same_lines(&a, &b);
            release_dump(&a);
            release_dump(&b);
        }
        metrics_of(whole, STEPS, ROOT "/whole", "optim/grad_norm");
        assert_int_equal(metrics_of(pieces, STEPS, ROOT "/pieces", "optim/grad_norm"),
                         STEPS);
        assert_memory_equal(whole, pieces, sizeof whole);
    }
}

/* ---- the same bits ---- */

static const char *const spans[] = {
    "rollout.max_staleness=2", "sft.steps=3",      "sft.batch=8",
    "algo.preset=ema-pg",      "kl.beta=0.05",     "anchor.period=1",
    "optim.lr=1e-2",           "log.report=false", NULL};

static void trains_alike_on_any_number_of_threads_and_in_any_sampling_batch(void **state)
{
    static const char *const one[] = {"run.threads=1", "rollout.max_batch=64", NULL};
    static const char *const others[][4] = {
        {"run.threads=2", "rollout.max_batch=64", NULL},
        {"run.threads=2", "rollout.max_batch=3", NULL},
        {"run.threads=1", "rollout.max_batch=1", NULL},
        {"run.threads=3", "rollout.max_batch=17", "rollout.kv_tokens=192", NULL}};
    (void)state;
    fresh(ROOT "/one");
    must_train(ROOT "/one", false, one);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        fresh(ROOT "/other");
        must_train(ROOT "/other", false, others[i]);
        assert_same_run(ROOT "/one", ROOT "/other", 4);
        assert_same_file(ROOT "/one", ROOT "/other", "checkpoints/latest/begun.bin");
    }
}

static void resumes_after_kill_9_with_the_bits_of_the_uninterrupted_run(void **state)
{
    static const useconds_t moments[] = {60000, 150000, 250000, 400000, 650000};
    (void)state;
    assert_kills_leave_no_trace(ROOT "/one", ROOT "/killed", moments,
                                sizeof moments / sizeof *moments);
}

/* Stops after each of 4 steps and resumes. */
static void goes_on_from_every_step(void **state)
{
    (void)state;
    fresh(ROOT "/steps");
    for (int step = 1; step <= 4; step++) {
        char steps[32];
        const char *const all[] = {steps, NULL};
        snprintf(steps, sizeof steps, "train.steps=%d", step);
        must_train(ROOT "/steps", step > 1, all);
    }
    assert_same_steps(ROOT "/one", ROOT "/steps", 4);
    assert_same_file(ROOT "/one", ROOT "/steps", "checkpoints/latest/begun.bin");
}

static void the_largest_age_is_the_lag_where_they_are_equal(void **state)
{
    static const char *const lag[] = {"rollout.max_staleness=0", "rollout.lag=2", NULL};
    static const char *const both[] = {"rollout.max_staleness=2", "rollout.lag=2", NULL};
    (void)state;
    fresh(ROOT "/lag");
    fresh(ROOT "/both");
    must_train(ROOT "/lag", false, lag);
    must_train(ROOT "/both", false, both);
    assert_same_run(ROOT "/lag", ROOT "/both", 4);
}

/* ---- a step that is skipped ---- */

#define BLOWS_UP "train.max_skips=9", "optim.lr=10", "optim.weight_decay=10", "data.val="

/* After the weights overflow, steps have no finite logits and are skipped. Their
 * unfinished completions continue in the next step, the same for any sampling batch. */
static void steps_that_are_skipped_take_their_completions_along(void **state)
{
    static const char *const wide[] = {BLOWS_UP, "rollout.max_batch=64", NULL};
    static const char *const narrow[] = {BLOWS_UP, "rollout.max_batch=2", NULL};
    double skipped[4];
    (void)state;
    fresh(ROOT "/wide");
    fresh(ROOT "/narrow");
    must_train(ROOT "/wide", false, wide);
    must_train(ROOT "/narrow", false, narrow);
    assert_int_equal(metrics_of(skipped, 4, ROOT "/wide", "optim/skipped_steps"), 4);
    assert_true(skipped[3] > 0);
    assert_same_log(ROOT "/wide", ROOT "/narrow");
    assert_same_file(ROOT "/wide", ROOT "/narrow", "checkpoints/latest/begun.bin");
}

/* ---- refusals ---- */

static const struct refusal {
    const char *extra[5], *message;
} refusals[] = {
    {{"rollout.lag=3", NULL},
     "rollout.max_staleness: expected 0 or at least rollout.lag"},
    {{"rollout.dynamic=true", NULL}, "rollout.max_staleness"},
    {{"episode.env=external", NULL}, "rollout.max_staleness: has an effect only"},
    {{"episode.env=calculator", "episode.window=90", NULL}, "rollout.max_staleness"},
    {{"algo.advantage=remax", NULL}, "rollout.max_staleness: expected 0 with algo.adv"},
    {{"algo.advantage=token-baseline", NULL}, "rollout.max_staleness"},
    {{"rollout.top_p=0.9", NULL}, "expected 0 with truncated sampling"},
    {{"rollout.top_k=4", NULL}, "expected 0 with truncated sampling"},
    {{"rollout.min_p=0.1", NULL}, "expected 0 with truncated sampling"},
    {{"kl.estimator=topk-forward", "kl.beta=0.1", "anchor.kind=iterative", NULL},
     "rollout.max_staleness"},
    {{"rollout.data=" DIGITS "/train.jsonl", NULL}, "rollout.max_staleness"},
    {{"rollout.router_replay=true", NULL}, "rollout.max_staleness"},
};

static void what_needs_one_version_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const char *all[8] = {"rollout.max_staleness=2"};
        struct kg_err err;
        for (size_t k = 0; refusals[i].extra[k]; k++)
            all[k + 1] = refusals[i].extra[k];
        fresh(ROOT "/refused");
        assert_int_not_equal(train(ROOT "/refused", false, all, &err), KG_OK);
        if (!strstr(err.message, refusals[i].message))
            fail_msg("expected \"%s\" in \"%s\"", refusals[i].message, err.message);
        assert_false(kg_file_exists(ROOT "/refused"));
    }
}

static void the_age_of_a_run_and_what_it_has_begun_stay_as_they_were(void **state)
{
    static const char *const other[] = {"rollout.max_staleness=3", NULL};
    static const char *const more[] = {"train.steps=5", NULL};
    struct kg_err err;
    (void)state;
    assert_int_equal(train(ROOT "/steps", true, other, &err), KG_ECONFLICT);
    assert_non_null(strstr(err.message, "rollout.max_staleness"));
    assert_int_equal(unlink(ROOT "/steps/checkpoints/latest/begun.bin"), 0);
    assert_int_not_equal(train(ROOT "/steps", true, more, &err), KG_OK);
    assert_non_null(strstr(err.message, "begun.bin"));
}

/* ---- learning ---- */

/* The reward falls with the length, down to -1, so the end token is all there is to
 * learn. */
static void learns(void **state)
{
    static const char *const ages[] = {
        "rollout.max_staleness=1", "rollout.max_staleness=3", "rollout.max_staleness=8"};
    (void)state;
    for (size_t i = 0; i < sizeof ages / sizeof *ages; i++) {
        const char *const all[] = {ages[i],
                                   "train.steps=30",
                                   "run.threads=1",
                                   "log.report=false",
                                   "train.updates_per_step=1",
                                   "data.val=",
                                   "rollout.prompts=8",
                                   "rollout.samples=8",
                                   "optim.lr=1e-2",
                                   "rollout.max_tokens=24",
                                   "rollout.overlong_buffer=24",
                                   "checkpoint.every=0",
                                   NULL};
        double reward[30];
        fresh(ROOT "/learns");
        must_train(ROOT "/learns", false, all);
        assert_int_equal(metrics_of(reward, 30, ROOT "/learns", "reward/shaped_mean"),
                         30);
        assert_true(reward[0] < -0.5 && reward[29] > -0.1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_token_has_the_version_that_its_place_says),
        cmocka_unit_test(a_record_is_that_of_the_version_which_sampled),
        cmocka_unit_test(pieces_are_the_completion_of_one_request),
        cmocka_unit_test(what_needs_one_version_is_refused_by_name),
        cmocka_unit_test(learns),
    };
    const struct CMUnitTest of_spans[] = {
        cmocka_unit_test(trains_alike_on_any_number_of_threads_and_in_any_sampling_batch),
        cmocka_unit_test(goes_on_from_every_step),
        cmocka_unit_test(resumes_after_kill_9_with_the_bits_of_the_uninterrupted_run),
        cmocka_unit_test(the_age_of_a_run_and_what_it_has_begun_stay_as_they_were),
        cmocka_unit_test(the_largest_age_is_the_lag_where_they_are_equal),
        cmocka_unit_test(steps_that_are_skipped_take_their_completions_along),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    run_also = spans;
    return failed + cmocka_run_group_tests(of_spans, NULL, NULL);
}
