/* Training on episodes that an external program plays: the bits of a run do not depend on
 * how many episodes the program plays at once, on threads, batches or a kill; each
 * sampled token is trained once, in the context in which it was sampled; and a program
 * that asks for one turn gets the turn that kedge samples without it.
 *
 * The program is this test, started again (environment_testing.h).
 */
#include "train/rl_testing.h"

#include "base/signal.h"
#include "rollout/score_testing.h"
#include "tensor/backend_testing.h"
#include "train/environment_testing.h"
#include "train/same_testing.h"
#include "train/step/sums.h"

#include <signal.h>

#define ROOT "build/test-runs/environment"

enum { STEPS = 3 };

static char command[1200];
static const char *const base[] = {
    "model.path=" ROOT "/model",
    "model.dtype=fp32",
    "task.name=environment",
    "data.train=" ROOT "/train.jsonl",
    "data.val=" ROOT "/train.jsonl",
    "eval.problems=4",
    "rollout.prompts=3",
    "rollout.samples=3",
    "rollout.max_batch=4",
    "rollout.max_tokens=9",
    "episode.env=external",
    "episode.turns=2",
    "episode.context=200",
    "optim.lr=1e-2",
    "train.steps=3",
    "train.updates_per_step=1",
    "kl.estimator=k3",
    "kl.beta=0.1",
    "anchor.kind=ema",
    "algo.entropy_coef=0.01",
    "eval.at_start=false",
    "run.threads=1",
    command,
    NULL,
};

static void play_fault(struct play *x, const char *episode)
{
    (void)x, (void)episode;
    _exit(9);
}

/* ---- set-up ---- */

static int setup(void **state)
{
    (void)state;
    fresh(ROOT);
    /* in a child process, because the tests fork */
    assert_int_equal(
        make_agent_apart(ROOT, "the sea and the tea are as easy as a ear", 9, false), 0);
    put_file(ROOT, "model/chat_template.jinja",
             "{% for m in messages %}[{{ m.role[0] }}]{{ m.content }}\n{% endfor %}"
             "{% if add_generation_prompt %}[a]{% endif %}");
    put_questions(ROOT);
    return 0;
}

static struct kg_config *config(const char *dir, const char *const *extra)
{
    const char *const *const lists[] = {base, extra};

    return config_from(dir, lists, 2);
}

static void train(const char *dir, bool resume, const char *const *extra)
{
    struct kg_config *c = config(dir, extra);

    if (!resume)
        NEED(kg_file_remove_tree(dir, err));
    NEED(kg_train_run(c, resume, false, err));
    kg_config_free(c);
}

static void open_episodes(struct opened *o, const char *dir, const char *const *extra)
{
    NEED(kg_file_remove_tree(dir, err));
    open_config(o, config(dir, extra));
}

/* ---- the bits ---- */

static void the_bits_do_not_depend_on_how_episodes_are_played(void **state)
{
    static const struct {
        const char *mode;
        int threads;
        const char *extra[4];
    } rows[] = {
        {"talk", 1, {"rollout.max_batch=1", NULL}},
        {"talk", 4, {NULL}},
        {"talk", 9, {"rollout.max_batch=16", NULL}},
        {"talk", 9, {"episode.open=9", "rollout.max_batch=2", NULL}},
        {"talk", 3, {"episode.open=5", NULL}},
        {"talk", 9, {"run.threads=2", NULL}},
        {"talk", 9, {"rollout.kv_tokens=1000", NULL}},
        {"talk", 9, {"episode.timeout_ms=100000", "rollout.max_batch=3", NULL}},
        {"ids", 4, {NULL}},
        {"ids", 9, {"rollout.max_batch=9", "run.threads=2", NULL}},
        {"ids", 2, {"episode.open=6", "rollout.kv_tokens=2000", NULL}},
        {"once", 9, {"rollout.max_batch=2", NULL}},
    };
    const char *last = "";

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(last, rows[i].mode) != 0) {
            play_command(command, sizeof command, rows[i].mode, 1);
            train(ROOT "/alone", false, NULL);
            last = rows[i].mode;
        }
        play_command(command, sizeof command, rows[i].mode, rows[i].threads);
        train(ROOT "/other", false, rows[i].extra);
        assert_same_run(ROOT "/alone", ROOT "/other", STEPS);
    }
}

/* A server gives the bits of a program. A run may be resumed with a server at another
 * address. */
static void a_server_plays_as_a_program_does(void **state)
{
    static const struct {
        const char *mode;
        int threads;
        const char *extra[3];
    } rows[] = {
        {"talk", 1, {NULL}},
        {"talk", 9, {"rollout.max_batch=16", NULL}},
        {"talk", 4, {"episode.open=9", "rollout.max_batch=2", NULL}},
        {"ids", 4, {"run.threads=2", NULL}},
        {"once", 9, {"rollout.kv_tokens=1000", NULL}},
    };
    static const char *const part[] = {"checkpoint.every=1", "train.steps=1", NULL};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_task_child *server;

        play_command(command, sizeof command, rows[i].mode, 3);
        train(ROOT "/alone", false, NULL);
        server = play_server(command, sizeof command, ROOT, rows[i].mode,
                             rows[i].threads);
        train(ROOT "/other", false, rows[i].extra);
        assert_same_run(ROOT "/alone", ROOT "/other", STEPS);
        train(ROOT "/other", false, part);
        kg_task_child_kill(server);
        server = play_server(command, sizeof command, ROOT, rows[i].mode, 2);
        train(ROOT "/other", true, rows[i].extra);
        assert_same_steps(ROOT "/alone", ROOT "/other", STEPS);
        kg_task_child_kill(server);
    }
}

/* Killed while the program plays, then resumed with other limits. */
static void a_killed_run_goes_on_with_the_same_bits(void **state)
{
    static const char *const often[] = {"checkpoint.every=1", NULL};
    static const char *const other[] = {"checkpoint.every=1", "rollout.max_batch=9",
                                        NULL};

    (void)state;
    play_command(command, sizeof command, "talk", 3);
    train(ROOT "/whole", false, often);
    for (int step = 1; step < STEPS; step++) {
        char saved[128];
        pid_t child;
        int ended;

        NEED(kg_file_remove_tree(ROOT "/killed", err));
        snprintf(saved, sizeof saved, ROOT "/killed/checkpoints/step-%06d", step);
        child = fork();
        if (child == 0) {
            struct kg_config *c = config(ROOT "/killed", often);

            NEED_IN_CHILD(kg_train_run(c, false, false, err));
            _exit(0);
        }
        while (!kg_file_exists(saved) && waitpid(child, &ended, WNOHANG) == 0)
            usleep(2000);
        kill(child, SIGKILL);
        (void)waitpid(child, &ended, 0);
        train(ROOT "/killed", true, other);
        assert_same_steps(ROOT "/whole", ROOT "/killed", STEPS);
    }
}

/* ---- recorded log-probs ---- */

static double number_of(const struct kg_traj *t, const struct kg_further_names *names,
                        const char *name)
{
    for (int k = 0; k < names->n; k++)
        if (strcmp(names->name[k], name) == 0 && t->further.said >> k & 1)
            return t->further.x[k];
    return -1;
}

/* Scores every part again by itself: the log-probs must be the recorded ones. */
static void check_parts(const struct kg_traj *t, const struct kg_model *m)
{
    for (size_t i = 0; i < kg_traj_n_parts(t, false); i++) {
        const struct kg_traj_part p = kg_traj_part(t, i, false);
        float logp[200];
        struct kg_score_seq q = {.tokens = t->tokens + p.from,
                                 .n = p.end - p.from,
                                 .temperature = t->temperature,
                                 .logp = logp};

        assert_true(p.begin > p.from && p.end > p.begin);
        score_one(m, &q, 0, 0);
        for (size_t j = p.begin; j < p.end; j++)
            assert_true(t->source[j] != KG_SOURCE_MODEL ||
                        logp[j - p.from] == t->logp[j]);
    }
}

static void what_was_sampled_is_recorded_once_in_its_context(void **state)
{
    static const char *const modes[] = {"talk", "ids", "once"};
    static const char *const more[] = {"rollout.top_p=0.97", NULL};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct opened o;
        struct kg_rl_batch b = {0};
        size_t parts = 0;

        play_command(command, sizeof command, modes[i], 3);
        open_episodes(&o, ROOT "/record", more);
        NEED(kg_rl_sample(&b, &o.run.in, &o.run.state, &o.run.work, err));
        for (size_t k = 0; k < b.n_trajs; k++) {
            const struct kg_traj *t = &b.trajs[k];
            const struct kg_further_names *names = &o.run.log.further;

            assert_true(t->graded);
            assert_int_equal(t->sample, k % 3);
            assert_true((double)kg_traj_model_tokens(t) ==
                        number_of(t, names, "sampled"));
            assert_true(number_of(t, names, "rewards/first") == 1);
            assert_true(number_of(t, names, "status/ok") == 1);
            assert_int_equal(t->episode.turns, i == 2 ? 1 : 3);
            check_parts(t, o.run.state.model);
            parts += kg_traj_n_parts(t, false) - 1;
        }
        assert_true(i == 0 ? parts > 3 : parts == 0);
        kg_rl_batch_release(&b);
        NEED(kg_rl_step(&o.run, err));
        assert_true(last_metric(ROOT "/record", "mismatch/first_update_max") == 0);
        close_run(&o);
    }
}

/* A trace's mask decides what is trained: here the first token of the second turn, and
 * all but the first of the branch. The other sampled tokens are context; log-probs stay
 * the same. */
static void a_trace_trains_what_its_mask_names(void **state)
{
    struct opened o;
    struct kg_rl_batch b = {0};
    size_t branches = 0;

    (void)state;
    play_command(command, sizeof command, "thin", 3);
    open_episodes(&o, ROOT "/thin", NULL);
    NEED(kg_rl_sample(&b, &o.run.in, &o.run.state, &o.run.work, err));
    for (size_t k = 0; k < b.n_trajs; k++) {
        const struct kg_traj *t = &b.trajs[k];
        const size_t trained = kg_traj_model_tokens(t);
        const size_t first = t->n_windows ? t->windows[0].begin : t->n;

        assert_true(t->graded && t->reward == 1 && t->episode.turns == 3);
        assert_int_equal(t->source[t->n - 1], KG_SOURCE_MODEL);
        assert_int_equal(t->source[first - 1] == KG_SOURCE_MODEL, t->n_windows == 0);
        assert_true(trained >= 1 && trained <= 5);
        for (size_t j = 0; j < t->n; j++)
            assert_true(t->source[j] == KG_SOURCE_MODEL || t->logp[j] == 0);
        check_parts(t, o.run.state.model);
        branches += t->n_windows;
    }
    assert_true(branches > 3);
    kg_rl_batch_release(&b);
    NEED(kg_rl_step(&o.run, err));
    assert_true(last_metric(ROOT "/thin", "mismatch/first_update_max") == 0);
    close_run(&o);
}

/* Tokens, random numbers and log-probs must be those of a turn that kedge samples without
 * an environment. */
static void one_turn_is_the_turn_of_kedge_itself(void **state)
{
    static const char *const own[] = {"episode.env=none", "task.name=none",
                                      "episode.turns=4",  "episode.context=4096",
                                      "episode.command=", NULL};
    struct opened a, b;
    struct kg_rl_batch x = {0}, y = {0};

    (void)state;
    play_command(command, sizeof command, "once", 5);
    open_episodes(&a, ROOT "/played", NULL);
    NEED(kg_rl_sample(&x, &a.run.in, &a.run.state, &a.run.work, err));
    open_episodes(&b, ROOT "/own", own);
    NEED(kg_rl_sample(&y, &b.run.in, &b.run.state, &b.run.work, err));
    assert_int_equal(x.n_trajs, y.n_trajs);
    for (size_t i = 0; i < x.n_trajs; i++) {
        const struct kg_traj *p = &x.trajs[i], *q = &y.trajs[i];

        assert_int_equal(p->n, q->n);
        assert_memory_equal(p->tokens, q->tokens, p->n * sizeof *p->tokens);
        assert_memory_equal(p->source, q->source, p->n);
        assert_memory_equal(p->logp, q->logp, p->n * sizeof *p->logp);
        assert_int_equal(p->finish, q->finish);
    }
    kg_rl_batch_release(&x);
    kg_rl_batch_release(&y);
    close_run(&a);
    close_run(&b);
}

/* Compares tokens of later turns with those of the first turn, position by position. */
static void compare_turns(int *same, int *compared, const struct kg_traj *t)
{
    size_t first = t->prompt_n, at = 0;

    for (size_t j = first; j < t->n; j++) {
        at = t->source[j] != KG_SOURCE_MODEL       ? 0
             : t->source[j - 1] != KG_SOURCE_MODEL ? 0
                                                   : at + 1;
        if (t->source[j] != KG_SOURCE_MODEL || j == first + at ||
            t->source[first + at] != KG_SOURCE_MODEL)
            continue;
        ++*compared;
        *same += t->tokens[j] == t->tokens[first + at];
    }
}

/* At this temperature the next token is almost uniform, so a turn that reused the random
 * numbers of an earlier turn would repeat its tokens. With branches and without. */
static void every_turn_has_draws_of_its_own(void **state)
{
    static const char *const modes[] = {"talk", "ids"};
    static const char *const hot[] = {"rollout.temperature=100", NULL};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct opened o;
        struct kg_rl_batch b = {0};
        int same = 0, compared = 0;

        play_command(command, sizeof command, modes[i], 3);
        open_episodes(&o, ROOT "/draws", hot);
        NEED(kg_rl_sample(&b, &o.run.in, &o.run.state, &o.run.work, err));
        for (size_t k = 0; k < b.n_trajs; k++)
            compare_turns(&same, &compared, &b.trajs[k]);
        if (compared < 40 || 4 * same > compared)
            fail_msg("%s: %d of %d tokens are those of another turn", modes[i], same,
                     compared);
        kg_rl_batch_release(&b);
        close_run(&o);
    }
}

/* A program that writes endless lines without a report must block neither the run nor a
 * stop. alarm() ends the test if it does. */
static void a_stop_ends_a_run_whose_program_only_writes(void **state)
{
    static const char *const commands[] = {"yes", "yes ''", "while :; do echo {}; done",
                                           "yes '{\"episode\": 1}'"};

    (void)state;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        struct opened o;
        pid_t child;
        int ended = -1;

        snprintf(command, sizeof command, "episode.command=%s", commands[i]);
        open_episodes(&o, ROOT "/stopped", NULL);
        child = fork();
        if (child == 0) {
            struct kg_rl_batch b = {0};
            struct kg_err e = {0};

            alarm(60);
            kg_signal_install();
            raise(SIGINT);
            _exit(kg_rl_sample(&b, &o.run.in, &o.run.state, &o.run.work, &e) ==
                          KG_EINTERRUPTED
                      ? 0
                      : 1);
        }
        assert_int_equal(waitpid(child, &ended, 0), child);
        assert_int_equal(ended, 0);
        close_run(&o);
    }
}

/* ---- refusals ---- */

static void what_has_no_effect_or_no_program_is_refused(void **state)
{
    static const struct {
        const char *extra[3], *word;
    } rows[] = {
        {{"episode.command=", NULL}, "expected one of them, the program or the server"},
        {{"task.name=qa-number", NULL},
         "expected both or neither, found external and qa-number"},
        {{"episode.env=calculator", "episode.command=", NULL},
         "expected both or neither, found calculator and environment"},
        {{"episode.env=calculator", NULL}, "episode.command: has an effect only with"},
        {{"episode.obs_tokens=7", NULL}, "episode.obs_tokens: has an effect only with"},
        {{"episode.answer_tokens=7", NULL},
         "episode.answer_tokens: has an effect only with"},
        {{"episode.window=90", NULL}, "episode.window: has an effect only with"},
        {{"episode.context=300", NULL}, "episode.context: expected prompt and"},
        {{"episode.context=3", NULL}, "episode.context: expected more than"},
        {{"search.topk=2", NULL}, "search.topk: has an effect only with"},
        {{"algo.reproduction=true", NULL}, "algo.reproduction: needs one text per episo"},
        {{"algo.reproduction=true", "episode.turns=0", NULL},
         "expected another episode.env than external"},
    };

    (void)state;
    play_command(command, sizeof command, "talk", 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_config *c = config(ROOT "/refused", rows[i].extra);
        struct kg_run run;
        struct kg_err e = {0};

        if (kg_run_open(&run, c, &e) == KG_OK)
            fail_msg("row %zu was not refused", i);
        if (!strstr(e.message, rows[i].word))
            fail_msg("expected '%s' in: %s", rows[i].word, e.message);
        kg_config_free(c);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_plays_as_a_program_does),
        cmocka_unit_test(a_killed_run_goes_on_with_the_same_bits),
        cmocka_unit_test(the_bits_do_not_depend_on_how_episodes_are_played),
        cmocka_unit_test(what_was_sampled_is_recorded_once_in_its_context),
        cmocka_unit_test(a_trace_trains_what_its_mask_names),
        cmocka_unit_test(one_turn_is_the_turn_of_kedge_itself),
        cmocka_unit_test(a_stop_ends_a_run_whose_program_only_writes),
        cmocka_unit_test(every_turn_has_draws_of_its_own),
        cmocka_unit_test(what_has_no_effect_or_no_program_is_refused),
    };

    if (argc >= 4 && (strcmp(argv[1], "play") == 0 || strcmp(argv[1], "serve") == 0))
        return play_main(argv[2], atoi(argv[3]), argv[4]);
    return RUN_SHOWN(tests, setup, NULL);
}
