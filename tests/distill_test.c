/* Distillation, by the loop that trains: a student approaches its teacher on its own
 * completions and on given ones, and what cannot be learned from is refused. */
#define ROOT "build/test-runs/distill"
#include "run_testing.h"

enum { MOST = 64, STEPS = 40 };

#define TEACHER ROOT "/teacher/checkpoints/latest/model"

static const char *const on_policy[] = {
    "anchor.path=" TEACHER, "train.steps=40",  "train.updates_per_step=1",
    "rollout.prompts=16",   "kl.top_k=6",      "optim.lr=3e-3",
    "eval.problems=1",      "rollout.lag=0",   "optim.schedule=linear",
    "rollout.samples=1",    "eval.every=1000", NULL};
static const char *const offline[] = {"anchor.path=" TEACHER,
                                      "train.steps=40",
                                      "train.updates_per_step=1",
                                      "rollout.prompts=16",
                                      "kl.top_k=6",
                                      "optim.lr=3e-3",
                                      "eval.problems=1",
                                      "rollout.data=" DIGITS "/train.jsonl",
                                      "data.train=",
                                      "data.template={prompt}S",
                                      "optim.schedule=linear",
                                      "rollout.samples=1",
                                      "eval.every=1000",
                                      NULL};

/* Makes the teacher: the digit model after a short SFT. */
static int make_teacher(void **state)
{
    static const char *const sft[] = {"sft.steps=25", "sft.lr=1e-3", "train.steps=0",
                                      "eval.at_start=false", NULL};

    (void)state;
    fresh(ROOT "/teacher");
    must_train(ROOT "/teacher", false, sft);
    return 0;
}

/* Trains with the defaults of `kedge distill`, run_base and extra. */
static kg_status distill(const char *dir, bool resume, const char *const *extra,
                         struct kg_err *err)
{
    char run_dir[256];
    char *assignments[64];
    size_t n = 0;
    struct kg_config *config;
    kg_status status;

    snprintf(run_dir, sizeof run_dir, "run.dir=%s", dir);
    for (const char *const *a = run_base; *a; a++)
        if (strncmp(*a, "rollout.samples", 15) != 0)
            assignments[n++] = (char *)(uintptr_t)*a;
    for (const char *const *a = extra; *a; a++)
        assignments[n++] = (char *)(uintptr_t)*a;
    assignments[n++] = run_dir;
    KG_TRY(kg_distill_config(&config, NULL, assignments, n, err));
    status = kg_train_run(config, resume, false, err);
    kg_config_free(config);
    return status;
}

static void assert_comes_near(const char *dir, const char *const *extra)
{
    double kl[MOST], mismatch[MOST], pg[MOST];
    double last = 0;

    fresh(dir);
    NEED(distill(dir, false, extra, err));
    assert_int_equal(metrics_of(kl, MOST, dir, "kl/value"), STEPS);
    assert_int_equal(metrics_of(mismatch, MOST, dir, "mismatch/first_update_max"), STEPS);
    assert_int_equal(metrics_of(pg, MOST, dir, "loss/pg"), STEPS);
    for (int i = 0; i < STEPS; i++)
        assert_true(mismatch[i] == 0 && pg[i] == 0);
    for (int i = STEPS - 5; i < STEPS; i++)
        last += kl[i] / 5;
    printf("%s: KL to the teacher %.3f to %.3f\n", dir, kl[0], last);
    assert_true(last > 0 && last < kl[0] / 5);
}

static void a_student_comes_near_its_teacher_on_its_own_answers(void **state)
{
    (void)state;
    assert_comes_near(ROOT "/own", on_policy);
}

static void a_student_comes_near_its_teacher_on_given_answers(void **state)
{
    double ungraded[MOST];

    (void)state;
    assert_comes_near(ROOT "/given", offline);
    assert_int_equal(metrics_of(ungraded, MOST, ROOT "/given", "reward/ungraded"), STEPS);
    assert_true(ungraded[0] == 1);
}

/* more: keys in addition to `offline` */
static void assert_stopping_changes_no_bit(const char *const *more)
{
    const char *whole[32], *half[32];
    size_t n = 0;

    for (; offline[n]; n++)
        whole[n] = half[n] = offline[n];
    for (; *more; more++, n++)
        whole[n] = half[n] = *more;
    whole[n] = "train.steps=4";
    half[n] = "train.steps=2";
    whole[n + 1] = half[n + 1] = "optim.schedule=constant";
    whole[n + 2] = half[n + 2] = NULL;
    fresh(ROOT "/whole");
    fresh(ROOT "/half");
    NEED(distill(ROOT "/whole", false, whole, err));
    NEED(distill(ROOT "/half", false, half, err));
    NEED(distill(ROOT "/half", true, whole, err));
    assert_same_file(ROOT "/whole", ROOT "/half", "checkpoints/latest/state.safetensors");
    assert_same_file(ROOT "/whole", ROOT "/half", "rollouts/step-000004.jsonl.zst");
}

static void stopping_changes_no_bit_of_offline_distillation(void **state)
{
    static const char *const nothing[] = {NULL};

    (void)state;
    assert_stopping_changes_no_bit(nothing);
}

static void nor_of_that_of_adapters(void **state)
{
    static const char *const adapters[] = {"lora.rank=4", "checkpoint.dtype=bf16", NULL};

    (void)state;
    assert_stopping_changes_no_bit(adapters);
    assert_true(kg_file_exists(ROOT "/whole/checkpoints/latest/adapter"));
}

static void what_cannot_be_learned_from_is_refused(void **state)
{
    static const struct {
        const char *extra[6];
        const char *words;
    } cases[] = {
        {{"train.steps=1", NULL}, "anchor.path"},
        {{"anchor.path=" TEACHER, "algo.preset=grpo", NULL}, "algo.surrogate"},
        {{"anchor.path=" TEACHER, "kl.estimator=none", "kl.beta=0", NULL},
         "algo.surrogate"},
        {{"anchor.path=" TEACHER, "kl.in=reward", "kl.estimator=k1", NULL},
         "algo.surrogate"},
        {{"anchor.path=" TEACHER, "rollout.data=" DIGITS "/train.jsonl",
          "kl.estimator=k3", NULL},
         "rollout.data"},
        {{"anchor.path=" TEACHER, "rollout.data=" DIGITS "/train.jsonl", "kl.tail=true",
          "kl.top_k=6", NULL},
         "rollout.data"},
        {{"anchor.path=" TEACHER, "rollout.data=" DIGITS "/train.jsonl",
          "rollout.samples=2", NULL},
         "rollout.samples"},
        {{"anchor.path=" TEACHER, "rollout.data=" DIGITS "/train.jsonl",
          "algo.advantage=remax", NULL},
         "algo.advantage: remax"},
        {{"anchor.path=" TEACHER, "rollout.data=" DIGITS "/train.jsonl",
          "rollout.top_p=0.9", NULL},
         "rollout.data"},
        {{"anchor.path=" TEACHER, "kl.estimator=truncated-forward", "kl.top_k=0", NULL},
         "kl.top_k"},
    };
    struct kg_err err;

    (void)state;
    fresh(ROOT "/refused");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (distill(ROOT "/refused", false, cases[i].extra, &err) == KG_OK)
            fail_msg("case %zu was not refused", i);
        if (!strstr(err.message, cases[i].words))
            fail_msg("case %zu: expected '%s', found: %s", i, cases[i].words,
                     err.message);
        assert_false(kg_file_exists(ROOT "/refused"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_student_comes_near_its_teacher_on_its_own_answers),
        cmocka_unit_test(a_student_comes_near_its_teacher_on_given_answers),
        cmocka_unit_test(stopping_changes_no_bit_of_offline_distillation),
        cmocka_unit_test(nor_of_that_of_adapters),
        cmocka_unit_test(what_cannot_be_learned_from_is_refused),
    };
    return cmocka_run_group_tests(tests, make_teacher, NULL);
}
