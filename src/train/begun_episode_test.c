/* Episodes that span versions of the weights (rollout.max_staleness): which version
 * samples which token, that pauses inside and between turns change no sample, and that
 * such a run has the same bits for any batch, threads, stop and kill.
 *
 * The policy has learned its turns beforehand, so that it really searches.
 */
#include "train/rl_testing.h"

#include "base/clock.h"
#include "base/rng.h"
#include "base/sanitized_testing.h"
#include "ranks/ranks_testing.h"
#include "retriever/build.h"
#include "train/agent_testing.h"
#include "train/dump_testing.h"
#include "train/same_testing.h"

#include <signal.h>

#define ROOT "build/test-runs/begun-episode"

enum { STEPS = 5, TURN = 16, TURNS = 2, NEXT = SANITIZED ? 2 : 1 };

static const char *const base[] = {
    "model.path=" ROOT "/learned/checkpoints/latest/model",
    "model.dtype=fp32",
    "task.name=qa-number",
    "data.train=" ROOT "/train.jsonl",
    "rollout.prompts=3",
    "rollout.samples=3",
    "rollout.max_tokens=16",
    "episode.env=search",
    "episode.turns=2",
    "episode.context=400",
    "search.where=" ROOT "/index",
    "search.topk=1",
    "optim.lr=1e-3",
    "algo.entropy_coef=0.01",
    "kl.estimator=k3",
    "kl.beta=0.1",
    "anchor.kind=ema",
    "train.steps=5",
    "train.updates_per_step=1",
    "checkpoint.every=1",
    "eval.at_start=false",
    "log.report=false",
    "run.threads=1",
    NULL,
};

static void learn_turns(void)
{
    static const char *const keys[] = {"model.path=" ROOT "/model",
                                       "model.dtype=fp32",
                                       "task.name=qa-number",
                                       "data.train=" ROOT "/train.jsonl",
                                       "sft.data=" ROOT "/sft.jsonl",
                                       "sft.steps=60",
                                       "sft.lr=2e-2",
                                       "sft.batch=8",
                                       "train.steps=0",
                                       "checkpoint.dtype=fp32",
                                       "eval.at_start=false",
                                       "run.threads=1",
                                       NULL};
    const char *const *const lists[] = {keys};
    struct kg_config *c = config_from(ROOT "/learned", lists, 1);

    NEED(kg_train_run(c, false, false, err));
    kg_config_free(c);
}

static int setup(void **state)
{
    struct kg_index_build_opts opts = {
        .corpus = ROOT "/corpus.jsonl", .path = ROOT "/index", .bm25 = kg_bm25_default};
    struct kg_index_info info;

    (void)state;
    fresh(ROOT);
    make_search_agent(ROOT);
    put_records(ROOT, "corpus.jsonl", "{\"title\": \"%d\", \"text\": \"%d and %d.\"}\n");
    NEED(kg_index_build(&info, &opts, err));
    learn_turns();
    return 0;
}

static kg_status train(const char *dir, bool resume, const char *const *extra,
                       struct kg_err *e)
{
    const char *const *const lists[] = {base, extra};
    struct kg_config *c = config_from(dir, lists, 2);
    kg_status status;

    if (!resume)
        NEED(kg_file_remove_tree(dir, err));
    status = kg_train_run(c, resume, false, e);
    kg_config_free(c);
    return status;
}

static void must_train(const char *dir, bool resume, const char *const *extra)
{
    NEED(train(dir, resume, extra, err));
}

/* ---- which version samples a token ---- */

static const struct schedule {
    int n, lag, turn, turns;
    const char *extra[4];
    int tool_steps;
} schedules[] = {
    {1, 0, TURN, TURNS, {NULL}},
    {2, 0, TURN, TURNS, {NULL}},
    {3, 0, TURN, TURNS, {"rollout.max_batch=2", NULL}},
    {4, 0, TURN, TURNS, {"rollout.samples=2", NULL}},
    {8, 0, TURN, TURNS, {NULL}},
    {64, 0, TURN, TURNS, {"rollout.prompts=1", NULL}},
    {2, 1, TURN, TURNS, {NULL}},
    {4, 2, TURN, TURNS, {"rollout.dtype=fp32", NULL}},
    {3, 0, 5, TURNS, {NULL}},
    {5, 0, 3, 4, {NULL}},
    {2, 0, TURN, 0, {NULL}},
    {3, 0, 7, 3, {"rollout.stop=[\"1\", \"</inf\"]", NULL}},
    {3, 0, TURN, TURNS, {NULL}, 1},
    {2, 1, 5, TURNS, {"rollout.max_batch=2", NULL}, 1},
    {5, 0, TURN, TURNS, {NULL}, 2},
    {4, 1, 7, 4, {NULL}, 64},
};

/* The formula of train/step/begun.h for the j-th token that the model wrote; a result
 * below 0 means version 0. */
static int64_t version_by_rule(const struct schedule *s, int64_t step, int64_t j)
{
    const int64_t pieces = s->n - s->lag + 1;
    const int64_t most = (int64_t)(s->turns + 1) * s->turn;

    return step - s->n + j / ((most + pieces - 1) / pieces);
}

/* After a tool call at version `asked`, the episode continues no earlier than at this
 * version. */
static int64_t version_after_call(const struct schedule *s, int64_t step, int64_t asked)
{
    const int64_t last = step - s->lag, next = asked + s->tool_steps;

    return next < last ? next : last;
}

/* returns the number of lines that have several versions */
static size_t assert_by_rule(const struct schedule *s, const char *dir, int step)
{
    struct dump d;
    size_t spanning = 0;

    read_dump(&d, dir, step + 1);
    for (size_t i = 0; i < d.n; i++) {
        const char *source = kg_json_text(get(&d, i, "source"), NULL);
        const bool remarks = kg_json_int(get(&d, i, "invalid"), 0) > 0;
        int64_t drawn = 0, version = INT64_MIN;

        if (s->tool_steps > 0 && remarks)
            continue; /* observations that are not a tool's */
        spanning += kg_json_size(get(&d, i, "versions")) > 1;
        for (size_t j = 0; source[j]; j++) {
            if (source[j] == 't' && source[j - 1] == 'm')
                version = version_after_call(s, step, version);
            if (source[j] != 'm')
                continue;
            if (version < version_by_rule(s, step, drawn))
                version = version_by_rule(s, step, drawn);
            assert_int_equal(version_at(&d, i, j), version < 0 ? 0 : version);
            drawn++;
        }
        assert_true(drawn > 0 && drawn <= (int64_t)(s->turns + 1) * s->turn);
    }
    release_dump(&d);
    return spanning;
}

static void every_token_has_the_version_that_its_place_says(void **state)
{
    size_t spanning = 0;

    (void)state;
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
        const struct schedule *s = &schedules[i];
        char text[5][64];
        const char *all[12] = {text[0], text[1], text[2], text[3], text[4]};
        size_t n = 5;

        snprintf(text[0], 64, "rollout.max_staleness=%d", s->n);
        snprintf(text[1], 64, "rollout.lag=%d", s->lag);
        snprintf(text[2], 64, "episode.turn_tokens=%d", s->turn);
        snprintf(text[3], 64, "episode.turns=%d", s->turns);
        snprintf(text[4], 64, "rollout.tool_steps=%d", s->tool_steps);
        for (const char *const *a = s->extra; *a; a++)
            all[n++] = *a;
        must_train(ROOT "/rule", false, all);
        for (int step = 0; step < STEPS; step++)
            spanning += assert_by_rule(s, ROOT "/rule", step);
    }
    assert_true(spanning > 50);
}

/* ---- weights that do not change ---- */

static const char *const ways[][4] = {
    {NULL},
    {"rollout.max_batch=2", NULL},
    {"episode.turn_tokens=5", NULL},
    {"episode.turn_tokens=2", "episode.turns=4", NULL},
    {"episode.turns=0", NULL},
    {"episode.obs_tokens=3", NULL},
    {"episode.context=60", NULL},
    {"episode.answer_tokens=40", NULL},
    {"episode.answer_tokens=9", "episode.turn_tokens=4", NULL},
    {"rollout.stop=[\"1\", \"<an\"]", NULL},
    {"rollout.temperature=0.5", "algo.preset=ema-pg", NULL},
    {"rollout.top_p=0.9", "train.old_logp=recompute", NULL},
    {"episode.env=calculator", "search.where=", "search.topk=3", NULL},
};

/* The i-th way also pauses for its tools, or not. */
static const char *const tool_steps[] = {NULL, "rollout.tool_steps=1",
                                         "rollout.tool_steps=2"};

/* With lr 0 the pieces of an episode must equal the episode of one request, with all its
 * records. */
static void pieces_are_the_episode_of_one_request(void **state)
{
    static const char *const ages[] = {"rollout.max_staleness=0",
                                       "rollout.max_staleness=3"};

    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        double turns[2];

        for (int k = 0; k < 2; k++) {
            const char *all[8] = {"optim.lr=0", "optim.weight_decay=0", ages[k]};
            size_t n = 3;

            for (const char *const *a = ways[i]; *a; a++)
                all[n++] = *a;
            if (k > 0)
                all[n] = tool_steps[i % 3];
            must_train(k ? ROOT "/pieces" : ROOT "/whole", false, all);
            turns[k] = last_metric(k ? ROOT "/pieces" : ROOT "/whole", "episode/turns");
            for (int step = 1; k > 0 && step <= STEPS; step++) {
                struct dump a, b;

                read_dump(&a, ROOT "/whole", step);
                read_dump(&b, ROOT "/pieces", step);
                assert_same_lines(&a, &b);
                release_dump(&a);
                release_dump(&b);
            }
        }
        assert_true(turns[0] == turns[1]);
    }
}

/* ---- the same bits ---- */

#define SPANS "rollout.max_staleness=3", "episode.turn_tokens=7", "rollout.tool_steps=1"

static void a_run_is_the_same_on_any_threads_and_in_any_batch(void **state)
{
    static const char *const one[] = {SPANS, NULL};
    static const char *const others[][6] = {
        {SPANS, "run.threads=2", NULL},
        {SPANS, "rollout.max_batch=1", NULL},
        {SPANS, "rollout.max_batch=2", "run.threads=2", NULL},
        {SPANS, "rollout.max_batch=5", "episode.open=5", NULL},
        {SPANS, "rollout.kv_tokens=2000", "rollout.max_batch=3", NULL},
    };

    (void)state;
    must_train(ROOT "/one", false, one);
    assert_true(last_metric(ROOT "/one", "episode/calls") > 0.5);
    assert_true(last_metric(ROOT "/one", "staleness/max") > 0);
    for (size_t i = 0; i < sizeof others / sizeof *others; i += NEXT) {
        must_train(ROOT "/other", false, others[i]);
        assert_same_run(ROOT "/one", ROOT "/other", STEPS);
        assert_same_file(ROOT "/one", ROOT "/other", "checkpoints/latest/begun.bin");
    }
}

/* keys: ends with NULL   returns 0 on success */
static int train_as_rank(struct kg_ranks *r, void *keys)
{
    const char *const *const lists[] = {base, keys};
    struct kg_config *c = config_from(r->n > 1 ? ROOT "/ranks" : ROOT "/one", lists, 2);
    struct kg_err e;
    kg_status status = kg_train_run_on(r, c, false, false, &e);

    if (status != KG_OK)
        fprintf(stderr, "rank %d of %d: %s\n", r->me, r->n, e.message);
    kg_config_free(c);
    return status != KG_OK;
}

/* A rank may continue an episode whose tool call another rank made. */
static void a_run_is_the_same_on_any_ranks(void **state)
{
    static const struct {
        int ranks;
        const char *rollout;
    } on[] = {{1, "ranks.rollout=0"},
              {2, "ranks.rollout=0"},
              {2, "ranks.rollout=1"},
              {4, "ranks.rollout=2"}};

    (void)state;
    NEED(kg_file_remove_tree(ROOT "/one", err));
    for (size_t i = 0; i < sizeof on / sizeof *on; i++) {
        const char *keys[] = {SPANS, "rollout.lag=1", "train.lanes=4", on[i].rollout,
                              NULL};

        NEED(kg_file_remove_tree(ROOT "/ranks", err));
        ranks_end_well(on[i].ranks, train_as_rank, keys, on[i].rollout);
        if (i > 0)
            assert_same_run(ROOT "/one", ROOT "/ranks", STEPS);
    }
}

/* Stops after each step (with sanitizers after every second) and resumes. */
static void a_run_goes_on_from_every_step(void **state)
{
    (void)state;
    for (int step = 1; step <= STEPS; step += NEXT) {
        char steps[32];
        const char *const all[] = {SPANS, steps, NULL};

        snprintf(steps, sizeof steps, "train.steps=%d", step);
        must_train(ROOT "/steps", step > 1, all);
    }
    assert_same_steps(ROOT "/one", ROOT "/steps", STEPS);
    assert_same_file(ROOT "/one", ROOT "/steps", "checkpoints/latest/begun.bin");
}

static void train_and_be_killed(const char *dir, double seconds)
{
    static const char *const all[] = {SPANS, NULL};
    char begun[128];
    struct kg_err e;
    int status;
    pid_t child;

    snprintf(begun, sizeof begun, "%s/config.yaml", dir);
    child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(train(dir, kg_file_exists(begun), all, &e) == KG_OK ? 0 : 1);
    usleep((useconds_t)(seconds * 1e6));
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
}

static void a_killed_run_gives_the_bits_of_one_that_was_not(void **state)
{
    static const char *const all[] = {SPANS, NULL};
    struct kg_rng_key key = {(uint64_t)kg_clock_unix_seconds(), KG_RNG_TEST};
    double seconds = -kg_clock_seconds();

    (void)state;
    print_message("moments drawn with seed %llu\n", (unsigned long long)key.seed);
    must_train(ROOT "/unkilled", false, all);
    seconds += kg_clock_seconds();
    for (uint32_t round = 0; round < (SANITIZED ? 1 : 3); round++) {
        NEED(kg_file_remove_tree(ROOT "/killed", err));
        for (uint32_t i = 0; i < 2; i++)
            train_and_be_killed(ROOT "/killed",
                                seconds * kg_rng_uniform(key, round, i, 0));
        must_train(ROOT "/killed", kg_file_exists(ROOT "/killed/config.yaml"), all);
        assert_same_run(ROOT "/unkilled", ROOT "/killed", STEPS);
    }
}

/* ---- refusals ---- */

static void what_needs_one_version_is_refused_by_name(void **state)
{
    static const char *const rows[][2] = {
        {"episode.window=90", "episode.window"},
        {"rollout.dynamic=true", "rollout.dynamic"},
        {"algo.advantage=remax", "rollout.max_staleness: expected 0 with algo.adv"},
        {"rollout.top_p=0.9", "expected 0 with truncated sampling"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *const all[] = {"rollout.max_staleness=2", rows[i][0], NULL};
        struct kg_err e = {0};

        assert_int_not_equal(train(ROOT "/refused", false, all, &e), KG_OK);
        if (!strstr(e.message, rows[i][1]))
            fail_msg("expected \"%s\" in \"%s\"", rows[i][1], e.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_token_has_the_version_that_its_place_says),
        cmocka_unit_test(pieces_are_the_episode_of_one_request),
        cmocka_unit_test(a_run_is_the_same_on_any_threads_and_in_any_batch),
        cmocka_unit_test(a_run_goes_on_from_every_step),
        cmocka_unit_test(a_killed_run_gives_the_bits_of_one_that_was_not),
        cmocka_unit_test(a_run_is_the_same_on_any_ranks),
        cmocka_unit_test(what_needs_one_version_is_refused_by_name),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
