/* Replays of dumped steps: the run's own algorithm gives what the run logged; other
 * algorithms are compared with the exact KL; the run's folder is not changed. */
#define ROOT "build/test-runs/replay"
#include "run_testing.h"

#include "base/sanitized_testing.h"
#include "data/jsonl.h"
#include "lab/replay.h"

#include <math.h>

enum { MOST = 16, NEXT = SANITIZED ? 4 : 1 /* step in a list of methods */ };

/* In a run's micro-batch, prompts of two groups that begin alike share a prefix; a replay
 * computes group by group. In bf16 that changes a gradient by 1e-5 of its norm, so fp32
 * is used. */
#define FINE "model.dtype=fp32"

static const char *const own[] = {"algo.preset=ema-pg",
                                  "kl.beta=0.05",
                                  "kl.top_k=4",
                                  "anchor.period=1",
                                  "train.updates_per_step=1",
                                  "checkpoint.keep=9",
                                  "eval.at_start=false",
                                  FINE,
                                  NULL};
static const char *const lagged[] = {"algo.preset=dppo-topk-kl",
                                     "algo.top_k=4",
                                     "rollout.lag=2",
                                     "train.steps=4",
                                     "train.updates_per_step=1",
                                     "checkpoint.keep=9",
                                     "eval.at_start=false",
                                     NULL};

static const char *const nucleus[] = {"algo.preset=grpo",
                                      "rollout.top_p=0.8",
                                      "train.steps=2",
                                      "train.updates_per_step=1",
                                      "checkpoint.keep=9",
                                      "eval.at_start=false",
                                      NULL};
static const char *const published_nucleus[] = {
    "algo.preset=grpo",         "algo.reproduction=true",
    "rollout.top_p=0.8",        "train.steps=2",
    "train.updates_per_step=1", "checkpoint.keep=9",
    "eval.at_start=false",      NULL};

/* Three rewards per completion; "odd" grades only every other completion. */
#define SEVERAL                                                                          \
    "algo.preset=gdpo", FINE,                                                            \
        "task.rewards=[digits=digits, short=external sed -u -f " ROOT                    \
        "/short.sed, odd=external sed -u -f " ROOT "/odd.sed]",                          \
        "task.reward_weights=[1, 0.5, 0.3]", "train.steps=2",                            \
        "train.updates_per_step=1", "checkpoint.keep=9", "eval.at_start=false"
static const char *const several[] = {SEVERAL, NULL};
/* With their sum as the reward, a completion that lacks one of them is left out. */
static const char *const by_sum[] = {SEVERAL, "algo.advantage=grpo", NULL};

static void write_graders(void)
{
    static const char short_sed[] = "s/.*\"response\": *\"[^\"]\\{0,6\\}\".*/"
                                    "{\"score\": 0.7}/\nt\ns/.*/{\"score\": 0.1}/\n",
                      odd_sed[] = "s/.*\"response\": *\"[^\"]*[13579]\".*/"
                                  "{\"score\": null}/\nt\ns/.*/{\"score\": 1}/\n";

    NEED(kg_file_write_atomic(ROOT "/short.sed", short_sed, strlen(short_sed), err));
    NEED(kg_file_write_atomic(ROOT "/odd.sed", odd_sed, strlen(odd_sed), err));
}

static const char *const spans[] = {"rollout.max_staleness=2", NULL};

static int make_runs(void **state)
{
    (void)state;
    fresh(ROOT "/own");
    fresh(ROOT "/several");
    write_graders();
    must_train(ROOT "/several", false, several);
    fresh(ROOT "/by_sum");
    must_train(ROOT "/by_sum", false, by_sum);
    fresh(ROOT "/lagged");
    fresh(ROOT "/nucleus");
    fresh(ROOT "/published_nucleus");
    must_train(ROOT "/nucleus", false, nucleus);
    must_train(ROOT "/published_nucleus", false, published_nucleus);
    must_train(ROOT "/own", false, own);
    must_train(ROOT "/lagged", false, lagged);
    return 0;
}

static void replay(struct kg_replay *out, const char *dir, int64_t step,
                   const char *const *extra)
{
    char *assignments[16];
    size_t n = 0;

    for (; extra && extra[n]; n++)
        assignments[n] = (char *)(uintptr_t)extra[n];
    NEED(kg_replay_run(out, dir, step, assignments, n, err));
}

static double logged(const char *dir, const char *name, int step)
{
    double values[MOST];
    int n = metrics_of(values, MOST, dir, name);

    assert_true(step <= n);
    return values[step - 1];
}

/* The dump has no top ids: the same weights give them again. Sums over groups and over
 * micro-batches differ by rounding. */
static void its_own_algorithm_gives_what_the_run_logged(void **state)
{
    (void)state;
    for (int step = 1; step <= 4; step++) {
        struct kg_replay r;
        double loss = logged(ROOT "/own", "loss/total", step),
               norm = logged(ROOT "/own", "optim/grad_norm", step);

        replay(&r, ROOT "/own", step, NULL);
        assert_int_equal(r.weights_step, step - 1);
        assert_int_equal(r.answers, 16);
        assert_int_equal(r.groups, 4);
        assert_true(r.apart_max == 0);
        assert_true(fabs(r.row[KG_REPLAY_LOSS].value - loss) < 1e-12);
        assert_true(fabs(r.row[KG_REPLAY_LOSS].norm - norm) <= 1e-6 * norm);
        assert_true(fabs(r.row[KG_REPLAY_POLICY].value + r.row[KG_REPLAY_KL].value -
                         loss) < 1e-12);
    }
}

/* The dump does not have what nucleus sampling kept either: the same weights keep the
 * same tokens. */
static void a_nucleus_is_found_again(void **state)
{
    static const char *const dirs[] = {ROOT "/nucleus", ROOT "/published_nucleus"};
    double norms[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct kg_replay r;

        norms[i] = logged(dirs[i], "optim/grad_norm", 2);
        replay(&r, dirs[i], 2, NULL);
        assert_true(r.apart_max == 0);
        assert_true(fabs(r.row[KG_REPLAY_LOSS].value - logged(dirs[i], "loss/total", 2)) <
                    1e-12);
        assert_true(fabs(r.row[KG_REPLAY_LOSS].norm - norms[i]) <= 1e-6 * norms[i]);
    }
    assert_true(norms[0] != norms[1]);
}

static void the_exact_kl_agrees_with_itself(void **state)
{
    static const char *const exact[] = {"kl.estimator=exact-forward", NULL};
    struct kg_replay r;

    (void)state;
    replay(&r, ROOT "/own", 3, exact);
    assert_true(r.row[KG_REPLAY_KL].norm > 0);
    assert_true(r.row[KG_REPLAY_KL].norm == r.row[KG_REPLAY_EXACT].norm);
    assert_true(r.row[KG_REPLAY_KL].variance == r.row[KG_REPLAY_EXACT].variance);
    assert_true(fabs(r.row[KG_REPLAY_KL].cosine - 1) < 1e-9);
}

/* Known order: the head of 4 ids is closer to the exact gradient than one sampled token,
 * and the corrected gradient closer than the published one. */
static void estimators_are_compared_with_the_exact_kl(void **state)
{
    static const char *const published[] = {"kl.gradient=published", NULL};
    static const char *const k1[] = {"kl.estimator=k1", NULL};
    struct kg_replay corrected, with_mass, sampled;

    (void)state;
    replay(&corrected, ROOT "/own", 4, NULL);
    replay(&with_mass, ROOT "/own", 4, published);
    replay(&sampled, ROOT "/own", 4, k1);
    assert_true(corrected.row[KG_REPLAY_KL].cosine > 0.9);
    assert_true(with_mass.row[KG_REPLAY_KL].cosine < corrected.row[KG_REPLAY_KL].cosine);
    assert_true(sampled.row[KG_REPLAY_KL].cosine < with_mass.row[KG_REPLAY_KL].cosine);
    assert_true(corrected.row[KG_REPLAY_POLICY].norm ==
                sampled.row[KG_REPLAY_POLICY].norm);
}

/* Per group: the exact KL and a head of the whole vocabulary have neither bias nor noise.
 * K1 is pure noise, so its bias is the whole exact gradient. Without noise the bias is
 * the whole error. */
static void bias_and_noise_are_held_apart(void **state)
{
    static const char *const exact[] = {"algo.surrogate=none",
                                        "kl.estimator=exact-reverse", NULL};
    static const char *const whole[] = {"kl.top_k=1000", "kl.importance=false", NULL};
    static const char *const published[] = {"kl.gradient=published", NULL};
    static const char *const k1[] = {"kl.estimator=k1", NULL};
    struct kg_replay r, corrected;

    (void)state;
    replay(&r, ROOT "/own", 4, exact);
    assert_true(r.row[KG_REPLAY_KL].noise == 0);
    assert_true(r.row[KG_REPLAY_KL].bias_squared == 0);
    assert_false(r.row[KG_REPLAY_POLICY].there);
    assert_true(r.row[KG_REPLAY_LOSS].norm == r.row[KG_REPLAY_KL].norm);
    replay(&r, ROOT "/own", 4, whole);
    assert_true(r.row[KG_REPLAY_KL].noise < 1e-5);
    assert_true(fabs(r.row[KG_REPLAY_KL].bias_squared) < 1e-8);
    assert_true(isnan(r.row[KG_REPLAY_LOSS].noise));
    replay(&corrected, ROOT "/own", 4, NULL);
    replay(&r, ROOT "/own", 4, published);
    assert_true(corrected.row[KG_REPLAY_KL].noise > 0);
    assert_true(r.row[KG_REPLAY_KL].bias_squared >
                corrected.row[KG_REPLAY_KL].bias_squared + 0.01);
    replay(&r, ROOT "/own", 4, k1);
    assert_true(r.row[KG_REPLAY_KL].noise > 1);
    /* |D|^2 = bias^2 + noise^2, computed from norms and cosine */
    assert_true(fabs(r.row[KG_REPLAY_KL].bias_squared +
                     pow(r.row[KG_REPLAY_KL].noise, 2) -
                     (1 + pow(r.row[KG_REPLAY_KL].norm / r.row[KG_REPLAY_EXACT].norm, 2) -
                      2 * r.row[KG_REPLAY_KL].cosine * r.row[KG_REPLAY_KL].norm /
                          r.row[KG_REPLAY_EXACT].norm)) < 1e-6);
}

/* ---- the exact objective ---- */

/* With the weights that sampled, every ratio is 1, so before the first update every
 * method has the gradient of its objective. */
static void every_method_begins_at_its_objective(void **state)
{
    static const char *const methods[] = {
        "grpo",           "drpo",          "cppo",         "cppo-calibrated",
        "m2po",           "m2po-released", "dro",          "tis",
        "icepop",         "vespo",         "luspo",        "trm",
        "opsm",           "ipo",           "minirl",       "rpg-urkl",
        "distill-bucket", "vaco",          "vaco-released"};

    (void)state;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i += NEXT) {
        char preset[64];
        const char *const extra[] = {preset, NULL};
        const struct kg_replay_row *row;
        struct kg_replay r;

        snprintf(preset, sizeof preset, "preset=%s", methods[i]);
        replay(&r, ROOT "/own", 2, extra);
        row = &r.row[r.row[KG_REPLAY_POLICY].there ? KG_REPLAY_POLICY : KG_REPLAY_LOSS];
        if (!(row->to_objective > 0.995))
            fail_msg("%s: expected a cosine near 1, found %g", methods[i],
                     row->to_objective);
    }
}

/* The sampler is two steps behind. The objective is the same for all methods, and closest
 * to it is the ratio of the whole completion (vespo with almost no bounds). */
static void with_a_stale_sampler_rows_leave_the_objective(void **state)
{
    static const char *const surrogates[] = {
        "importance", "reinforce", "ppo-clip", "gspo", "dppo-topk-tv",
        "drpo",       "pg-is",     "cppo",     "ipo",  "m2po"};
    static const char *const whole[] = {
        "algo.surrogate=vespo",       "algo.vespo_k_pos=1",         "algo.vespo_k_neg=1",
        "algo.vespo_lambda_pos=0.01", "algo.vespo_lambda_neg=0.01", NULL};
    struct kg_replay near, r;

    (void)state;
    replay(&near, ROOT "/lagged", 4, whole);
    for (size_t i = 0; i < sizeof surrogates / sizeof *surrogates; i += NEXT) {
        char surrogate[64];
        const char *const extra[] = {surrogate, NULL};

        snprintf(surrogate, sizeof surrogate, "algo.surrogate=%s", surrogates[i]);
        replay(&r, ROOT "/lagged", 4, extra);
        assert_true(r.row[KG_REPLAY_OBJECTIVE].norm ==
                    near.row[KG_REPLAY_OBJECTIVE].norm);
        if (!(r.row[KG_REPLAY_LOSS].to_objective < near.row[KG_REPLAY_LOSS].to_objective))
            fail_msg("%s: expected a cosine below %.9g, found %.9g", surrogates[i],
                     near.row[KG_REPLAY_LOSS].to_objective,
                     r.row[KG_REPLAY_LOSS].to_objective);
    }
}

/* The objective uses the exact KL with the KL's weight, whatever the estimator. */
static void the_objective_has_the_exact_kl(void **state)
{
    static const char *const estimators[] = {"k1",
                                             "k2",
                                             "k3",
                                             "k3++",
                                             "k4",
                                             "topk-reverse",
                                             "abs",
                                             "truncated-reverse",
                                             "exact-reverse",
                                             "bucket-reverse",
                                             "generalised-reverse"};
    double norm = 0;

    (void)state;
    for (size_t i = 0; i < sizeof estimators / sizeof *estimators; i += NEXT) {
        char estimator[64];
        const char *const extra[] = {estimator, "kl.beta=30", NULL};
        struct kg_replay r;

        snprintf(estimator, sizeof estimator, "kl.estimator=%s", estimators[i]);
        replay(&r, ROOT "/own", 4, extra);
        norm = i == 0 ? r.row[KG_REPLAY_OBJECTIVE].norm : norm;
        assert_true(fabs(r.row[KG_REPLAY_OBJECTIVE].norm - norm) <= 1e-6 * norm);
        assert_true((r.row[KG_REPLAY_LOSS].to_objective > 1 - 1e-6) ==
                    (strcmp(estimators[i], "exact-reverse") == 0));
    }
}

static void a_preset_takes_the_place_of_the_algorithm(void **state)
{
    static const char *const dapo[] = {"preset=dapo", NULL};
    struct kg_replay r, before;

    (void)state;
    replay(&before, ROOT "/own", 2, NULL);
    replay(&r, ROOT "/own", 2, dapo);
    assert_non_null(strstr(r.algorithm, "KL none"));
    assert_false(r.row[KG_REPLAY_KL].there);
    assert_true(r.row[KG_REPLAY_EXACT].there); /* against the anchor that the run kept */
    assert_true(r.row[KG_REPLAY_LOSS].norm == r.row[KG_REPLAY_POLICY].norm);
    assert_true(r.row[KG_REPLAY_LOSS].norm == before.row[KG_REPLAY_POLICY].norm);
}

static void older_weights_are_named(void **state)
{
    struct kg_replay r;
    struct kg_err why;

    (void)state;
    replay(&r, ROOT "/own", 1, NULL);
    assert_string_equal(r.checkpoint, "");
    NEED(kg_file_remove_tree(ROOT "/own/checkpoints/step-000002", err));
    replay(&r, ROOT "/own", 3, NULL);
    assert_string_equal(r.checkpoint, "step-000001");
    assert_int_equal(r.weights_step, 1);
    assert_true(r.apart_max > 0);
    assert_int_equal(kg_replay_run(&r, ROOT "/own", 9, NULL, 0, &why), KG_ENOTFOUND);
}

static void a_lagging_sampler_is_put_back(void **state)
{
    (void)state;
    for (int step = 1; step <= 4; step++) {
        double norm = logged(ROOT "/lagged", "optim/grad_norm", step);
        struct kg_replay r;

        replay(&r, ROOT "/lagged", step, NULL);
        assert_true(r.apart_max == 0);
        assert_true(fabs(r.row[KG_REPLAY_LOSS].norm - norm) <= 1e-6 * norm);
    }
}

/* The rewards of the dump and the weights of the config give the advantages of the run,
 * bit for bit. */
static void several_rewards_make_the_same_advantages(void **state)
{
    static const char *const summed[] = {"algo.advantage=grpo", NULL};
    static const char *const apart[] = {"algo.advantage=gdpo", NULL};
    struct kg_replay r;

    (void)state;
    for (int step = 1; step <= 2; step++) {
        replay(&r, ROOT "/several", step, NULL);
        assert_int_equal(r.answers, 16);
        assert_true(r.apart_max == 0);
        assert_true(r.advantage_apart_max == 0);
        assert_true(fabs(r.row[KG_REPLAY_LOSS].value -
                         logged(ROOT "/several", "loss/total", step)) < 1e-12);
        assert_true(logged(ROOT "/several", "reward/part/short", step) > 0.1);
    }
    assert_true(logged(ROOT "/several", "advantage/max", 1) > 0);
    replay(&r, ROOT "/several", 1, summed);
    assert_true(r.advantage_apart_max > 0.01);
    /* in step 1 both runs sample the same completions */
    assert_true(fabs(r.row[KG_REPLAY_LOSS].norm -
                     logged(ROOT "/by_sum", "optim/grad_norm", 1)) < 1e-6);
    assert_true(logged(ROOT "/by_sum", "reward/ungraded", 1) > 0);
    replay(&r, ROOT "/by_sum", 1, apart);
    assert_true(fabs(r.row[KG_REPLAY_LOSS].norm -
                     logged(ROOT "/several", "optim/grad_norm", 1)) < 1e-6);
    replay(&r, ROOT "/by_sum", 1, NULL);
    assert_true(r.advantage_apart_max == 0);
}

/* ---- modified dumps ---- */

static const char spoiled_dump[] = ROOT "/spoiled/rollouts/step-000003.jsonl.zst";

/* Copies the run.   returns the text of its third dump */
static struct kg_str copy_run(void)
{
    struct kg_str text = {0};

    fresh(ROOT "/spoiled");
    assert_int_equal(system("cp -r " ROOT "/own " ROOT "/spoiled"), 0);
    NEED(kg_zst_read(&text, spoiled_dump, 1 << 24, err));
    return text;
}

static void put_dump(const struct kg_str *text)
{
    struct kg_zst_writer *w;

    NEED(kg_file_remove_tree(spoiled_dump, err));
    NEED(kg_zst_open(&w, spoiled_dump, 0, err));
    NEED(kg_zst_put(w, text->data, text->len, err));
    NEED(kg_zst_close(w, err));
}

/* Variance is taken over groups: four copies of one group have none. */
static void groups_that_are_the_same_have_no_variance(void **state)
{
    struct kg_str text = copy_run(), same = {0};
    const char *end = text.data;
    struct kg_replay r;

    (void)state;
    for (int i = 0; i < 4; i++)
        end = strchr(end, '\n') + 1;
    for (int i = 0; i < 4; i++)
        NEED(kg_str_append(&same, text.data, (size_t)(end - text.data), err));
    put_dump(&same);
    replay(&r, ROOT "/spoiled", 3, NULL);
    assert_int_equal(r.groups, 4);
    for (int part = 0; part < KG_REPLAY_PARTS; part++) {
        const struct kg_replay_row *row = &r.row[part];

        assert_true(!row->there || row->variance <= 1e-6 * row->norm * row->norm);
    }
    assert_true(r.row[KG_REPLAY_LOSS].norm > 0);
    replay(&r, ROOT "/own", 3, NULL);
    assert_true(r.row[KG_REPLAY_LOSS].variance > 0);
    kg_str_release(&text);
    kg_str_release(&same);
}

/* In a copy of the run, replaces `from` by `to` in the last line of the third dump. */
static void spoil(const char *from, const char *to)
{
    struct kg_str text = copy_run(), line = {0};
    size_t at, last = 0;

    for (size_t i = 0; i + 1 < text.len; i++)
        last = text.data[i] == '\n' ? i + 1 : last;
    at = (size_t)(strstr(text.data + last, from) - text.data);
    NEED(kg_str_append(&line, text.data, at, err));
    NEED(kg_str_puts(&line, to, err));
    NEED(kg_str_puts(&line, text.data + at + strlen(from), err));
    put_dump(&line);
    kg_str_release(&text);
    kg_str_release(&line);
}

static void an_unknown_word_of_a_dump_is_named_with_its_line(void **state)
{
    static const struct {
        const char *from, *to, *words;
    } cases[] = {
        {"\"finish\":\"", "\"finish\":\"un", "expected one of none, stop, stop_string"},
        {"\"source\":\"p", "\"source\":\"q", "expected letters p, m and t"},
        {"\"tokens\":[", "\"tokens\":[-1,", "expected tokens, source and logp"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kg_replay r;
        struct kg_err err;

        spoil(cases[i].from, cases[i].to);
        assert_int_equal(kg_replay_run(&r, ROOT "/spoiled", 3, NULL, 0, &err),
                         KG_EFORMAT);
        if (!strstr(err.message, "step-000003.jsonl.zst: line 16: ") ||
            !strstr(err.message, cases[i].words))
            fail_msg("expected '%s', found: %s", cases[i].words, err.message);
    }
}

static void what_cannot_be_replayed_is_refused(void **state)
{
    static const struct {
        char *extra;
        const char *words;
    } cases[] = {{"optim.lr=1", "optim.lr"},
                 {"preset=nothing", "nothing"},
                 {"algo.advantage=remax", "greedy"},
                 {"kl.nothing=1", "kl.nothing"}};
    struct kg_replay r;
    struct kg_err err;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *extra[] = {cases[i].extra};

        if (kg_replay_run(&r, ROOT "/own", 2, extra, 1, &err) == KG_OK)
            fail_msg("%s was not refused", cases[i].extra);
        if (!strstr(err.message, cases[i].words))
            fail_msg("expected '%s', found: %s", cases[i].words, err.message);
    }
    assert_int_equal(kg_replay_run(&r, ROOT "/absent", 1, NULL, 0, &err), KG_ENOTFOUND);
    fresh(ROOT "/spans");
    must_train(ROOT "/spans", false, spans);
    assert_int_equal(kg_replay_run(&r, ROOT "/spans", 2, NULL, 0, &err), KG_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "rollout.max_staleness: expected completions"));
}

/* Compares names, sizes and modification times of all files of the run. */
static void nothing_is_written_into_the_run(void **state)
{
    struct kg_replay r;

    (void)state;
    assert_int_equal(
        system("find " ROOT "/own -printf '%p %s %T@\\n' | sort > " ROOT "/before"), 0);
    replay(&r, ROOT "/own", 4, NULL);
    assert_int_equal(
        system("find " ROOT "/own -printf '%p %s %T@\\n' | sort | cmp - " ROOT "/before"),
        0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_own_algorithm_gives_what_the_run_logged),
        cmocka_unit_test(a_nucleus_is_found_again),
        cmocka_unit_test(the_exact_kl_agrees_with_itself),
        cmocka_unit_test(estimators_are_compared_with_the_exact_kl),
        cmocka_unit_test(bias_and_noise_are_held_apart),
        cmocka_unit_test(every_method_begins_at_its_objective),
        cmocka_unit_test(with_a_stale_sampler_rows_leave_the_objective),
        cmocka_unit_test(the_objective_has_the_exact_kl),
        cmocka_unit_test(a_preset_takes_the_place_of_the_algorithm),
        cmocka_unit_test(nothing_is_written_into_the_run),
        cmocka_unit_test(what_cannot_be_replayed_is_refused),
        cmocka_unit_test(older_weights_are_named),
        cmocka_unit_test(a_lagging_sampler_is_put_back),
        cmocka_unit_test(several_rewards_make_the_same_advantages),
        cmocka_unit_test(groups_that_are_the_same_have_no_variance),
        cmocka_unit_test(an_unknown_word_of_a_dump_is_named_with_its_line),
    };
    return cmocka_run_group_tests(tests, make_runs, NULL);
}
