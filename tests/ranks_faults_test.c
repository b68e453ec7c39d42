/* When one rank of a run fails, all ranks end by themselves, one error names rank, host
 * and operation, and another number of ranks resumes the run to the bits of an
 * undisturbed one.
 */
#define ROOT "build/test-runs/ranks-faults"
#include "ranks_run_testing.h"

#include "base/mem.h"
#include "base/signal.h"
#include "model/model.h"

#include <sys/resource.h>

#define SAID ROOT "/said"

/* Scores completions by their length. The grader of the rank whose LANG is "dies" exits
 * after the first step. (LANG, because a grader gets few environment variables.) */
#define GRADER                                                                           \
    "task.command=awk -v rank=\"$LANG\" 'rank == \"dies\" && "                           \
    "system(\"test -e " ROOT "/n/rollouts/step-000001.jsonl.zst\") == 0 {exit 3} "       \
    "{printf(\"{\\\"score\\\": %d}\\n\", length($0) % 3); fflush()}'"

static const char *const updates[] = {"train.lanes=8",
                                      "train.micro_tokens=64",
                                      "kl.estimator=k3",
                                      "kl.beta=0.05",
                                      "anchor.kind=ema",
                                      "anchor.period=1",
                                      "task.name=external",
                                      GRADER,
                                      NULL};

/* ---- runs with a fault ---- */

/* A run on n ranks; rank `which` gets signal `sent` when the file `fact` of the run
 * exists. */
static void signalled(int *ended, int n, int which, int sent, const char *fact,
                      const char *const *extra, const struct upset *upset)
{
    pid_t child[RANKS_MOST];

    fresh(ROOT "/n");
    unlink(SAID);
    start_ranks(child, n, ROOT "/n", false, extra, upset);
    wait_for(ROOT "/n", fact, child[0]);
    kill(child[which], sent);
    all_end(ended, child, n, sent == SIGSTOP ? which : -1);
}

static void upset_run(int *ended, int n, const char *dir, bool resume,
                      const char *const *extra, const struct upset *upset)
{
    pid_t child[RANKS_MOST];

    unlink(SAID);
    start_ranks(child, n, dir, resume, extra, upset);
    all_end(ended, child, n, -1);
}

static int how_often_said(const char *what)
{
    struct kg_str text = {0};
    int n = 0;

    NEED(kg_file_read(&text, SAID, 1 << 20, err));
    for (const char *at = kg_str_text(&text); (at = strstr(at, what)); at++)
        n++;
    kg_str_release(&text);
    return n;
}

static void assert_said(const char *what)
{
    struct kg_str text = {0};

    NEED(kg_file_read(&text, SAID, 1 << 20, err));
    if (!strstr(kg_str_text(&text), what))
        fail_msg("expected \"%s\" in:\n%s", what, kg_str_text(&text));
    kg_str_release(&text);
}

static void assert_all_exit(const int *ended, int n, int status)
{
    for (int r = 0; r < n; r++)
        assert_true(WIFEXITED(ended[r]) && WEXITSTATUS(ended[r]) == status);
}

static bool goes_on(void) { return kg_file_exists(ROOT "/n/config.yaml"); }

static int whole_run(void **state)
{
    (void)state;
    fresh(ROOT);
    fresh(ROOT "/1");
    train_on(1, ROOT "/1", false, updates);
    return 0;
}

/* ---- lost ranks ---- */

static void a_killed_rank_leaves_no_trace_on_another_number_of_ranks(void **state)
{
    static const struct {
        int n, which, then;
        const char *fact;
    } kills[] = {{2, 1, 3, "config.yaml"},
                 {3, 0, 1, "rollouts/step-000001.jsonl.zst"},
                 {4, 2, 2, "checkpoints/step-000002"}};
    static const struct upset heard = {.wait_s = 60, .said = SAID};

    (void)state;
    for (size_t i = 0; i < sizeof kills / sizeof *kills; i++) {
        int ended[RANKS_MOST];
        char gone[32];

        signalled(ended, kills[i].n, kills[i].which, SIGKILL, kills[i].fact, updates,
                  &heard);
        snprintf(gone, sizeof gone, "rank %d is gone", kills[i].which);
        for (int r = 0; r < kills[i].n; r++)
            if (r == kills[i].which)
                assert_true(WIFSIGNALED(ended[r]) && WTERMSIG(ended[r]) == SIGKILL);
            else
                assert_true(WIFEXITED(ended[r]) &&
                            WEXITSTATUS(ended[r]) == KG_RANKS_EXIT_LOST);
        /* nobody blames a rank that left for the same reason, and each reports it once */
        assert_int_equal(how_often_said(gone), kills[i].n - 1);
        assert_int_equal(how_often_said(" is gone"), how_often_said(gone));
        train_on(kills[i].then, ROOT "/n", goes_on(), updates);
        assert_same_run(ROOT "/1", ROOT "/n", 4);
    }
}

/* With ranks.shard=gradients a rank waits for the previous rank of the lane, which may
 * itself wait for another. The rank that hangs must be named all the same. */
static void a_rank_that_hangs_is_waited_for_and_named(void **state)
{
    static const struct upset heard = {.wait_s = 2, .said = SAID};
    const char *divided[sizeof updates / sizeof *updates + 1] = {"ranks.shard=gradients"};

    (void)state;
    memcpy(divided + 1, updates, sizeof updates);
    for (int i = 0; i < 2; i++) {
        int ended[RANKS_MOST];

        signalled(ended, 3, 1, SIGSTOP, "rollouts/step-000001.jsonl.zst",
                  i ? divided : updates, &heard);
        assert_true(WEXITSTATUS(ended[0]) == KG_RANKS_EXIT_LOST);
        assert_true(WEXITSTATUS(ended[2]) == KG_RANKS_EXIT_LOST);
        assert_int_equal(how_often_said(" for 2 s (ranks.wait_s)"), 2);
        assert_int_equal(how_often_said(" rank 1 for 2 s (ranks.wait_s)"), 2);
        train_on(2, ROOT "/n", true, updates);
        assert_same_run(ROOT "/1", ROOT "/n", 4);
    }
}

static void a_stop_signal_to_one_stops_all_behind_the_same_step(void **state)
{
    static const struct upset heard = {.wait_s = 60, .said = SAID};
    int ended[RANKS_MOST];

    (void)state;
    signalled(ended, 3, 2, SIGTERM, "rollouts/step-000001.jsonl.zst", updates, &heard);
    assert_all_exit(ended, 3, STOPPED);
    assert_said("stop requested: saving, then exiting");
    assert_said("by a signal after step");
    assert_false(kg_file_exists(ROOT "/n/checkpoints/step-000004"));
    train_on(2, ROOT "/n", true, updates);
    assert_same_run(ROOT "/1", ROOT "/n", 4);
}

/* Runs `kedge train --resume-if-any` on three ranks.   returns the exit status */
static int begun_or_resumed(void)
{
    const char *const *const lists[] = {run_base, run_also, updates};
    const char *argv[96] = {"./kedge", "train", "--resume-if-any",
                            "--ranks", "3",     "run.dir=" ROOT "/n"};
    int n = 6, ended;
    pid_t child = fork();

    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (const char *const *a = lists[i]; a && *a; a++)
            argv[n++] = *a;
    if (child == 0 && freopen(SAID, "w", stderr))
        execv("./kedge", (char *const *)(uintptr_t)argv);
    if (child == 0)
        _exit(127);
    assert_int_equal(waitpid(child, &ended, 0), child);
    return ended;
}

/* With --resume-if-any a restarted job needs no knowledge of its past: nothing was made,
 * a folder without a checkpoint, some steps, or all. */
static void a_job_that_is_begun_again_goes_on_where_it_was(void **state)
{
    static const struct upset heard = {.wait_s = 60, .said = SAID};
    static const char *const facts[] = {NULL, "config.yaml", "checkpoints/step-000002"};
    int ended[RANKS_MOST];

    (void)state;
    if (!kg_file_exists("./kedge")) {
        print_message("skip: ./kedge is not built\n");
        skip();
    }
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        fresh(ROOT "/n");
        if (facts[i])
            signalled(ended, 2, 1, SIGKILL, facts[i], updates, &heard);
        assert_int_equal(begun_or_resumed(), 0);
        assert_same_run(ROOT "/1", ROOT "/n", 4);
    }
    assert_said("resuming from");
    assert_int_equal(begun_or_resumed(), 0);
    assert_said("all 4 of 4 steps are done");
}

/* ---- ranks that fail ---- */

static int failing; /* the rank with the fault */

static void has_no_room(int me)
{
    const struct rlimit most = {300000, 300000}; /* a log fits, a model does not */

    kg_signal_ignore_writes();
    if (me == failing && setrlimit(RLIMIT_FSIZE, &most) != 0)
        _exit(127);
}

static void no_room_on_one_rank_ends_all(void **state)
{
    static const struct upset full = {.before = has_no_room, .wait_s = 60, .said = SAID};
    int ended[RANKS_MOST];

    (void)state;
    fresh(ROOT "/n");
    failing = 0;
    upset_run(ended, 3, ROOT "/n", false, updates, &full);
    assert_all_exit(ended, 3, 1);
    assert_int_equal(how_often_said("rank 0 ("), 3); /* all name that rank */
    train_on(2, ROOT "/n", goes_on(), updates);
    assert_same_run(ROOT "/1", ROOT "/n", 4);
}

static void has_a_grader_that_dies(int me)
{
    setenv("LANG", me == failing ? "dies" : "lives", 1);
}

static void a_grader_that_dies_on_one_rank_ends_all(void **state)
{
    static const struct upset mortal = {
        .before = has_a_grader_that_dies, .wait_s = 60, .said = SAID};
    int ended[RANKS_MOST];

    (void)state;
    fresh(ROOT "/n");
    failing = 1;
    upset_run(ended, 3, ROOT "/n", false, updates, &mortal);
    assert_all_exit(ended, 3, 1);
    assert_int_equal(how_often_said("of 3: rank 1 ("), 3);
    train_on(2, ROOT "/n", goes_on(), updates);
    assert_same_run(ROOT "/1", ROOT "/n", 4);
}

static uint64_t request; /* number of the allocation that fails */

static void has_no_memory_once(int me)
{
    if (me == failing)
        kg_mem_fail_at(request);
}

/* Whichever allocation fails, all ranks end and none waits forever, or the run succeeds
 * without it. */
static void no_memory_on_one_rank_ends_all(void **state)
{
    static const struct upset poor = {
        .before = has_no_memory_once, .wait_s = 30, .said = SAID};
    int failures = 0;

    (void)state;
    failing = 1;
    for (request = 1; request < 100000; request = request * 5 / 2 + 7) {
        int ended[RANKS_MOST];

        fresh(ROOT "/n");
        upset_run(ended, 2, ROOT "/n", false, updates, &poor);
        if (ended[0] == 0) {
            assert_int_equal(ended[1], 0);
            assert_same_run(ROOT "/1", ROOT "/n", 4);
            continue;
        }
        failures++;
        assert_true(WIFEXITED(ended[0]) && WIFEXITED(ended[1]) && ended[1] != 0);
        assert_said("rank 1");
        assert_int_equal(how_often_said("ranks.wait_s"), 0);
    }
    assert_true(failures >= 4);
    train_on(3, ROOT "/n", goes_on(), updates);
    assert_same_run(ROOT "/1", ROOT "/n", 4);
}

/* Trainer 0 cannot write its dump while trainer 1 is already in the validation, in which
 * the rollout rank takes no part. All must still end. */
static void a_trainer_that_fails_alone_in_a_step_ends_all(void **state)
{
    static const struct upset heard = {.wait_s = 10, .said = SAID};
    static const char *const extra[] = {"train.lanes=8", "ranks.rollout=1",
                                        "rollout.lag=1", "eval.every=1", NULL};
    int ended[RANKS_MOST];

    (void)state;
    fresh(ROOT "/n");
    NEED(kg_file_make_dirs(ROOT "/n/rollouts/step-000002.jsonl.zst/in-its-place", err));
    upset_run(ended, 3, ROOT "/n", false, extra, &heard);
    assert_all_exit(ended, 3, 1);
    assert_int_equal(how_often_said("of 3: rank 0 ("), 3);
}

/* ---- numbers that are not finite ---- */

/* The logits are near 0, but the backward overflows: the head's rows are near the largest
 * float, and the norm's gradient is their difference times the normed values. A batch of
 * few tokens overflows, one of many does not. */
static void make_steep_model(void)
{
    struct kg_model_opts opts = {.ct = KG_F32};
    struct kg_model_save save = {.dtype = KG_F32, .source_dir = DIGITS};
    struct kg_model_config config;
    struct kg_model *m;

    NEED_IN_CHILD(kg_model_config_read(&config, DIGITS, err));
    config.layers = 1;
    config.tied = false;
    NEED_IN_CHILD(kg_model_create(&m, &config, &opts, 7, err));
    for (int64_t v = 0; v < m->head->rows; v++)
        for (int64_t d = 0; d < m->head->cols; d++)
            m->head->master[v * m->head->cols + d] = v % 2 ? 3e38f : -3e38f;
    for (int64_t d = 0; d < m->norm->cols; d++)
        m->norm->master[d] = 0;
    NEED_IN_CHILD(kg_file_make_dirs(ROOT "/steep", err));
    NEED_IN_CHILD(kg_model_save(m, ROOT "/steep", &save, err));
    kg_model_free(m);
}

static void write_demonstrations(void)
{
    FILE *f = fopen(ROOT "/demonstrations.jsonl", "w");

    if (!f)
        _exit(127);
    for (int i = 0; i < 8; i++) /* every other response is only the end token */
        fprintf(f, "{\"prompt\": \"1,2:3,%d\", \"response\": \"%s\"}\n", i,
                i % 2 ? "" : "1,2,3,4,5,6,7,8,9,1,2,3,4,5,6");
    fclose(f);
}

/* In a child process, because a process that forks ranks must have no threads. */
static void make_steep(void)
{
    pid_t child = fork();
    int ended;

    if (child == 0) {
        make_steep_model();
        write_demonstrations();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_int_equal(ended, 0);
}

static void a_step_that_is_not_finite_on_one_rank_is_skipped_by_all(void **state)
{
    static const char *const extra[] = {"model.path=" ROOT "/steep",
                                        "model.dtype=fp32",
                                        "train.steps=0",
                                        "train.lanes=4",
                                        "train.max_skips=9",
                                        "sft.data=" ROOT "/demonstrations.jsonl",
                                        "sft.batch=2",
                                        "sft.steps=8",
                                        "sft.lr=1e-41",
                                        "data.val=",
                                        NULL};
    double norms[8];
    int finite;

    (void)state;
    make_steep();
    fresh(ROOT "/skips");
    train_on(1, ROOT "/skips", false, extra);
    finite = metrics_of(norms, 8, ROOT "/skips", "grad_norm");
    assert_true(finite > 2 && finite < 8);
    for (int ranks = 2; ranks <= 3; ranks++) {
        fresh(ROOT "/n");
        train_on(ranks, ROOT "/n", false, extra);
        assert_same_file(ROOT "/skips", ROOT "/n",
                         "checkpoints/latest/model/model.safetensors");
        assert_same_file(ROOT "/skips", ROOT "/n",
                         "checkpoints/latest/state.safetensors");
        assert_same_log(ROOT "/skips", ROOT "/n");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_leaves_no_trace_on_another_number_of_ranks),
        cmocka_unit_test(a_rank_that_hangs_is_waited_for_and_named),
        cmocka_unit_test(a_stop_signal_to_one_stops_all_behind_the_same_step),
        cmocka_unit_test(a_job_that_is_begun_again_goes_on_where_it_was),
        cmocka_unit_test(no_room_on_one_rank_ends_all),
        cmocka_unit_test(a_grader_that_dies_on_one_rank_ends_all),
        cmocka_unit_test(no_memory_on_one_rank_ends_all),
        cmocka_unit_test(a_trainer_that_fails_alone_in_a_step_ends_all),
        cmocka_unit_test(a_step_that_is_not_finite_on_one_rank_is_skipped_by_all),
    };
    static const char *const also[] = {"run.threads=1", NULL};

    run_also = also;
    return cmocka_run_group_tests(tests, whole_run, NULL);
}
