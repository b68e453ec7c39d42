/* An evaluation over any number of ranks writes the folder of one process: single turns,
 * scored completions, episodes, graders that return further numbers; and what remains
 * when a rank fails or is lost. */
#include "eval/figures_testing.h"

#include "ranks/ranks_testing.h"

enum { RANKS = 5 };

/* Sets with more completions than a round takes, with fewer problems than ranks, with one
 * completion, with a tool, and with a grader that returns a number whose name depends on
 * the completion. */
static const char DATA[] = "{\"question\":\"1,2:\",\"answer\":\"3\"}\n"
                           "{\"question\":\"4,5:\",\"answer\":\"6\"}\n"
                           "{\"question\":\"7,8:\",\"answer\":\"9\"}\n";
static const char SUITE[] =
    "suite: {name: t}\n"
    "defaults: {task: qa-number, data: d.jsonl, max_tokens: 5}\n"
    "sets:\n"
    "  many: {samples: 400, maj_k: [3]}\n"
    "  one: {problems: 1}\n"
    "  tool: {env: calculator, turns: 2, context: 60, samples: 3}\n"
    "  said: {task: external, samples: 20,\n"
    "    command: \"sed -u 's/.*\\\\([0-9]\\\\).*/{\\\"score\\\": \\\\1, "
    "\\\"w\\\\1\\\": 2}/'\"}\n";

/* ---- ranks are processes ---- */

/* What happens to rank 1 in its second round. */
enum harm { NONE, FAILS, ENDS };
static enum harm harm;
static int rounds;
static struct kg_eval_source true_one;

static kg_status harmed_answer(struct kg_eval_source *self, struct kg_eval_set *set,
                               const bool *there, kg_eval_take_fn take, void *user,
                               struct kg_err *e)
{
    if (rounds++ == 1 && harm == ENDS)
        _exit(0);
    if (rounds == 2 && harm == FAILS)
        return kg_fail(e, KG_EIO, "the tool broke");
    return true_one.answer(self, set, there, take, user, e);
}

static kg_status evaluate(struct kg_ranks *r, const char *out, bool score)
{
    struct kg_eval_local local = {
        .model = model, .tok = tok, .model_dir = MODEL, .max_batch = 64, .score = score};
    struct outcome o;
    struct kg_eval_run run = {
        .suite = &o.suite, .source = &local.source, .out = out, .ranks = r};
    kg_status status;

    open_outcome(&o, "s.yaml", NULL);
    for (size_t i = 0; i < o.suite.n; i++)
        if (o.sets[i].episode.env)
            o.sets[i].episode.env = &figures;
    kg_eval_local_init(&local);
    if (r->me == 1 && harm != NONE) {
        true_one = local.source;
        local.source.answer = harmed_answer;
    }
    run.sets = o.sets;
    status = kg_eval_suite(&o.report, &run, &err);
    if (status == KG_OK && (o.report.n_sets > 0) != (r->me == 0))
        status = kg_fail(&err, KG_EINVAL, "expected a report on rank 0 alone");
    release(&o);
    return status;
}

/* The exit status of a rank. */
enum { WELL, FAILED, LOST, OTHERWISE };

struct order {
    const char *out;
    bool score;
};

static int as_rank(struct kg_ranks *r, void *user)
{
    const struct order *order = user;
    kg_status status = evaluate(r, order->out, order->score);

    if (status == KG_OK)
        return WELL;
    if (r->lost)
        return strstr(err.message, "rank 1 is gone") ? LOST : OTHERWISE;
    return strstr(err.message, "set many: rank 1 (") &&
                   strstr(err.message, "the tool broke")
               ? FAILED
               : OTHERWISE;
}

/* expected: exit status of every rank, except rank 1 if it ends at once */
static void evaluate_on(int n, const char *out, bool score, int expected)
{
    struct order order = {out, score};
    int state[RANKS];

    ranks_run(state, n, as_rank, &order);
    for (int p = 0; p < n; p++) {
        assert_true(WIFEXITED(state[p]));
        if (harm != ENDS || p != 1)
            assert_int_equal(WEXITSTATUS(state[p]), expected);
    }
}

/* ---- folders ---- */

static void assert_same_file(const char *name, const char *a, const char *b)
{
    struct kg_str x = {0}, y = {0};

    ok(kg_file_read(&x, kg_path_in(a, name).text, 1 << 28, &err));
    ok(kg_file_read(&y, kg_path_in(b, name).text, 1 << 28, &err));
    if (x.len != y.len || memcmp(kg_str_text(&x), kg_str_text(&y), x.len) != 0)
        fail_msg("%s: expected the bytes of %s in %s", name, a, b);
    kg_str_release(&x);
    kg_str_release(&y);
}

static void assert_same_folder(const char *a, const char *b)
{
    static const char *const names[] = {"config.yaml", "manifest.json",
                                        "samples.jsonl.zst", "problems.jsonl",
                                        "results.json"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_same_file(names[i], a, b);
}

/* in_dir returns a buffer that its next call overwrites. */
static struct kg_path folder(const char *name, int n)
{
    struct kg_path path;

    snprintf(path.text, sizeof path.text, "%s-%d", in_dir(name), n);
    return path;
}

static void every_number_of_ranks_leaves_the_folder_of_one(void **state)
{
    (void)state;
    for (int scored = 0; scored < 2; scored++) {
        struct kg_path one = folder(scored ? "scored" : "plain", 1);

        for (int n = 1; n <= RANKS; n += scored ? 3 : 1) {
            struct kg_path here = folder(scored ? "scored" : "plain", n);

            evaluate_on(n, here.text, scored, WELL);
            if (n > 1)
                assert_same_folder(one.text, here.text);
        }
    }
}

static bool has_journal_of(const char *out, int64_t least)
{
    struct kg_str text = {0};
    int64_t lines = 0;

    ok(kg_file_read(&text, kg_path_in(out, "journal.jsonl").text, 1 << 28, &err));
    for (size_t i = 0; i < text.len; i++)
        lines += text.data[i] == '\n';
    kg_str_release(&text);
    return lines >= least;
}

/* In their first round 2 ranks answer 1,024 of the 1,200 samples of `many`; in the
 * second, rank 0 has 88. Three ranks, or one, continue from that journal. */
static void what_was_answered_before_a_failure_is_taken_up_by_another_number(void **state)
{
    (void)state;
    harm = FAILS;
    evaluate_on(2, folder("failed", 2).text, false, FAILED);
    assert_true(has_journal_of(folder("failed", 2).text, 1024 + 88));
    harm = ENDS;
    evaluate_on(2, folder("ended", 2).text, false, LOST);
    assert_true(has_journal_of(folder("ended", 2).text, 1024));
    harm = NONE;
    evaluate_on(3, folder("failed", 2).text, false, WELL);
    evaluate_on(1, folder("ended", 2).text, false, WELL);
    assert_same_folder(folder("plain", 1).text, folder("failed", 2).text);
    assert_same_folder(folder("plain", 1).text, folder("ended", 2).text);
}

static int make_all(void **state)
{
    if (open_digit_model(state))
        return 1;
    put("d.jsonl", DATA);
    put("s.yaml", SUITE);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_ranks_leaves_the_folder_of_one),
        cmocka_unit_test(
            what_was_answered_before_a_failure_is_taken_up_by_another_number),
    };

    return cmocka_run_group_tests(tests, make_all, close_digit_model);
}
