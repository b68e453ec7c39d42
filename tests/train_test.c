/* The promises of a whole run, on the digit task with its small checkpoint: the same
 * input gives the same bits, for any number of threads, any sampling batch and after kill
 * -9; and which run directories are refused.
 */
#define ROOT "build/test-runs"
#include "run_testing.h"

static const char *const warm_ema_pg[] = {"sft.steps=3",        "sft.batch=8",
                                          "algo.preset=ema-pg", "kl.beta=0.05",
                                          "anchor.period=1",    NULL};

static void trains_alike_on_any_number_of_threads_and_in_any_sampling_batch(void **state)
{
    static const char *const one[] = {"run.threads=1", "rollout.max_batch=3", NULL};
    static const char *const two[] = {"run.threads=2", "rollout.max_batch=64", NULL};

    (void)state;
    fresh(ROOT "/one");
    fresh(ROOT "/two");
    must_train(ROOT "/one", false, one);
    must_train(ROOT "/two", false, two);
    assert_same_run(ROOT "/one", ROOT "/two", 4);
}

static void changes_with_the_seed(void **state)
{
    static const char *const other[] = {"run.seed=2", NULL};
    struct kg_str a = {0}, b = {0};
    struct kg_err err;

    (void)state;
    fresh(ROOT "/seed");
    must_train(ROOT "/seed", false, other);
    assert_int_equal(kg_file_read(&a,
                                  ROOT "/seed/checkpoints/latest/model/model.safetensors",
                                  1u << 30, &err),
                     KG_OK);
    assert_int_equal(kg_file_read(&b,
                                  ROOT "/one/checkpoints/latest/model/model.safetensors",
                                  1u << 30, &err),
                     KG_OK);
    assert_int_not_equal(memcmp(a.data, b.data, a.len), 0);
    kg_str_release(&a);
    kg_str_release(&b);
}

static void resumes_after_kill_9_with_the_bits_of_the_uninterrupted_run(void **state)
{
    static const useconds_t moments[] = {60000, 150000, 250000, 400000, 650000};

    (void)state;
    assert_kills_leave_no_trace(ROOT "/one", ROOT "/killed", moments,
                                sizeof moments / sizeof *moments);
}

static void first_update_has_no_mismatch(void **state)
{
    struct kg_str text = {0};
    struct kg_err err;
    int lines = 0;

    (void)state;
    assert_int_equal(kg_file_read(&text, ROOT "/one/metrics.jsonl", 1u << 24, &err),
                     KG_OK);
    for (const char *at = text.data; (at = strstr(at, "\"mismatch/first_update_max\": "));
         lines++) {
        at += strlen("\"mismatch/first_update_max\": ");
        assert_true(strtod(at, NULL) == 0.0);
    }
    assert_int_equal(lines, 4);
    kg_str_release(&text);
}

static void gradient_does_not_depend_on_micro_batches_beyond_rounding(void **state)
{
    static const char *const small[] = {"train.micro_tokens=32", "sft.steps=0",
                                        "sft.batch=32", "train.steps=1", NULL};
    static const char *const large[] = {"train.micro_tokens=4096", "sft.steps=0",
                                        "sft.batch=32", "train.steps=1", NULL};
    struct kg_str a = {0}, b = {0};
    struct kg_err err;
    double worst = 0;

    (void)state;
    fresh(ROOT "/small");
    fresh(ROOT "/large");
    must_train(ROOT "/small", false, small);
    must_train(ROOT "/large", false, large);
    assert_int_equal(kg_file_read(&a, ROOT "/small/metrics.jsonl", 1u << 24, &err),
                     KG_OK);
    assert_int_equal(kg_file_read(&b, ROOT "/large/metrics.jsonl", 1u << 24, &err),
                     KG_OK);
    {
        const char *key = "\"optim/grad_norm\": ";
        double x = strtod(strstr(a.data, key) + strlen(key), NULL);
        double y = strtod(strstr(b.data, key) + strlen(key), NULL);

        worst = x > y ? x / y - 1 : y / x - 1;
    }
    assert_true(worst < 1e-4);
    kg_str_release(&a);
    kg_str_release(&b);
}

static void runs_off_policy_on_purpose_and_under_truncated_sampling(void **state)
{
    static const char *const lag[] = {"rollout.lag=2", "train.old_logp=recompute", NULL};
    static const char *const dtype[] = {"rollout.dtype=fp32", "model.dtype=auto", NULL};
    static const char *const nucleus[] = {"rollout.top_p=0.9", "kl.estimator=k3",
                                          "algo.preset=grpo", "anchor.period=10", NULL};

    (void)state;
    fresh(ROOT "/lag");
    must_train(ROOT "/lag", false, lag);
    fresh(ROOT "/dtype");
    must_train(ROOT "/dtype", false, dtype);
    fresh(ROOT "/nucleus");
    must_train(ROOT "/nucleus", false, nucleus);
}

static void refuses_what_would_lose_or_mix_runs(void **state)
{
    static const char *const other[] = {"optim.lr=2e-3", NULL};
    struct kg_err err;

    (void)state;
    assert_int_equal(train(ROOT "/one", false, NULL, &err), KG_ECONFLICT);
    assert_non_null(strstr(err.message, "--resume"));
    assert_int_equal(train(ROOT "/one", true, other, &err), KG_ECONFLICT);
    assert_non_null(strstr(err.message, "optim.lr"));
    fresh(ROOT "/nothing");
    assert_int_equal(train(ROOT "/nothing", true, NULL, &err), KG_ENOTFOUND);
}

/* ---- inputs that change during a run ---- */

#define INPUTS ROOT "/inputs"

static const char *const copied[] = {"config.json",       "generation_config.json",
                                     "model.safetensors", "tokenizer_config.json",
                                     "token_ids.json",    "train.jsonl"};

static void copy_input(const char *name)
{
    char from[256], to[256];
    struct kg_err err = {0};

    snprintf(from, sizeof from, "tests/data/verl_digit_llama/%s", name);
    snprintf(to, sizeof to, INPUTS "/model/%s", name);
    if (kg_file_copy(from, to, &err) != KG_OK)
        fail_msg("%s", err.message);
}

static void put_input(const char *path, const char *text)
{
    struct kg_err err = {0};

    assert_int_equal(kg_file_write_atomic(path, text, strlen(text), &err), KG_OK);
}

/* Changes a byte near the end of an input, or appends one. */
static void change_input(const char *name, bool add)
{
    struct kg_str text = {0};
    char path[256];
    struct kg_err err = {0};

    snprintf(path, sizeof path, INPUTS "/model/%s", name);
    assert_int_equal(kg_file_read(&text, path, 1u << 26, &err), KG_OK);
    if (add)
        assert_int_equal(kg_str_putc(&text, '\n', &err), KG_OK);
    else
        text.data[text.len - 5] ^= 1;
    assert_int_equal(kg_file_write_atomic(path, text.data, text.len, &err), KG_OK);
    kg_str_release(&text);
}

static const char *const on_copies[] = {
    "model.path=" INPUTS "/model",
    "data.train=" INPUTS "/model/train.jsonl",
    "sft.steps=0",
    "sft.batch=32",
    "train.steps=1",
    "eval.at_start=false",
    "data.user_turn=true",
    "data.chat_template=" INPUTS "/chat.jinja",
    "anchor.path=" INPUTS "/anchor",
    NULL,
};

static void resume_is_refused(const char *words)
{
    struct kg_err err = {0};

    if (train(INPUTS "/run", true, on_copies, &err) != KG_ECONFLICT ||
        !strstr(err.message, words))
        fail_msg("expected '%s', found: %s", words, err.message);
}

static void refuses_to_resume_on_other_files_and_names_them(void **state)
{
    struct kg_err err = {0};

    (void)state;
    fresh(INPUTS);
    assert_int_equal(kg_file_make_dirs(INPUTS "/model", &err), KG_OK);
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++)
        copy_input(copied[i]);
    put_input(INPUTS "/chat.jinja", "{{ messages[0].content }}");
    assert_int_equal(symlink("model", INPUTS "/anchor"), 0);
    must_train(INPUTS "/run", false, on_copies);
    put_input(INPUTS "/chat.jinja", "{{ messages[0]['content'] }}");
    resume_is_refused(": data.chat_template: expected 25 bytes");
    put_input(INPUTS "/chat.jinja", "{{ messages[0].content }}");
    put_input(INPUTS "/model/chat_template.jinja", "{{ messages[0].content }}");
    resume_is_refused("model.path/chat_template.jinja: expected no such file, found 25");
    assert_int_equal(kg_file_remove_tree(INPUTS "/model/chat_template.jinja", &err),
                     KG_OK);
    change_input("train.jsonl", true);
    resume_is_refused(
        "manifest.json: expected the input files that the run started with: "
        "data.train: expected ");
    change_input("model.safetensors", false);
    resume_is_refused("; model.path/model.safetensors: expected ");
    resume_is_refused("; anchor.path/model.safetensors: expected ");
    copy_input("train.jsonl");
    copy_input("model.safetensors"); /* another mtime, the same bytes */
    must_train(INPUTS "/run", true, on_copies);
    assert_int_equal(kg_file_remove_tree(INPUTS "/model/generation_config.json", &err),
                     KG_OK);
    resume_is_refused("model.path/generation_config.json: expected ");
    resume_is_refused(", found no such file");
    copy_input("generation_config.json");
    assert_int_equal(kg_file_write_atomic(INPUTS "/model/new.json", "{}", 2, &err),
                     KG_OK);
    resume_is_refused("model.path/new.json: expected no such file, found 2 bytes (hash ");
}

/* ---- two processes in one run directory ---- */

/* Starts a process that holds a run directory's lock until it is killed. */
static pid_t hold_lock(const char *path)
{
    int ready[2];
    char byte;
    pid_t child;

    assert_int_equal(pipe(ready), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct kg_file_lock held;
        struct kg_err err;

        if (kg_file_lock_take(&held, path, &err) != KG_OK || write(ready[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return child;
}

static void a_second_process_in_a_run_directory_is_refused(void **state)
{
    static const char *const one_step[] = {"sft.steps=0", "sft.batch=32", "train.steps=1",
                                           NULL};
    char words[96];
    struct kg_err err = {0};
    pid_t child;

    (void)state;
    fresh(ROOT "/busy");
    assert_int_equal(kg_file_make_dirs(ROOT "/busy", &err), KG_OK);
    child = hold_lock(ROOT "/busy/lock");
    snprintf(words, sizeof words,
             "/busy/lock: expected no other process at work, found "
             "process %ld",
             (long)child);
    assert_int_equal(train(ROOT "/busy", false, one_step, &err), KG_ECONFLICT);
    assert_non_null(strstr(err.message, words));
    assert_false(kg_file_exists(ROOT "/busy/config.yaml"));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    must_train(ROOT "/busy", false, one_step);
    child = hold_lock(ROOT "/busy/lock");
    assert_int_equal(train(ROOT "/busy", true, one_step, &err), KG_ECONFLICT);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    must_train(ROOT "/busy", true, one_step);
}

static void a_run_whose_checkpoints_are_gone_is_not_begun_anew(void **state)
{
    static const char *const three[] = {"sft.steps=0", "sft.batch=32", "train.steps=3",
                                        "checkpoint.every=1", NULL};
    struct kg_err err = {0};
    uint64_t before, after;

    (void)state;
    fresh(ROOT "/gone");
    must_train(ROOT "/gone", false, three);
    assert_int_equal(kg_file_size(&before, ROOT "/gone/metrics.jsonl", &err), KG_OK);
    assert_int_equal(kg_file_remove_tree(ROOT "/gone/checkpoints", &err), KG_OK);
    assert_int_equal(train(ROOT "/gone", true, three, &err), KG_ENOTFOUND);
    assert_non_null(strstr(err.message, "/gone/checkpoints: expected a checkpoint of "
                                        "the 3 steps in metrics.jsonl"));
    assert_int_equal(kg_file_size(&after, ROOT "/gone/metrics.jsonl", &err), KG_OK);
    assert_true(after == before);
}

static void keeps_the_newest_checkpoints(void **state)
{
    (void)state;
    assert_true(kg_file_is_dir(ROOT "/one/checkpoints/step-000004/model"));
    assert_true(kg_file_is_dir(ROOT "/one/checkpoints/step-000003/anchor"));
    assert_false(kg_file_exists(ROOT "/one/checkpoints/step-000002"));
    assert_false(kg_file_exists(ROOT "/one/checkpoints/.saving"));
}

static void plans_without_writing(void **state)
{
    struct kg_config *config = config_of(ROOT "/planned", NULL);
    struct kg_str out = {0};
    struct kg_err err = {0};

    (void)state;
    fresh(ROOT "/planned");
    if (kg_train_plan(&out, config, false, 1, &err) != KG_OK)
        fail_msg("%s", err.message);
    assert_non_null(strstr(out.data, "on-policy: no"));
    assert_false(kg_file_exists(ROOT "/planned"));
    kg_str_release(&out);
    kg_config_free(config);
}

static void need_plan(kg_status expected, const char *dir, bool resume,
                      const char *const *extra, const char *words)
{
    struct kg_config *config = config_of(dir, extra);
    struct kg_str out = {0};
    struct kg_err err = {0};
    kg_status status = kg_train_plan(&out, config, resume, 1, &err);
    const char *said = status == KG_OK ? kg_str_text(&out) : err.message;

    if (status != expected || !strstr(said, words))
        fail_msg("%s: expected '%s', found: %s", dir, words, said);
    kg_str_release(&out);
    kg_config_free(config);
}

/* A plan must refuse a folder that a run would refuse, and leaves no files. */
static void a_plan_looks_at_the_folder_of_the_run(void **state)
{
    static const char *const other[] = {"kl.beta=0.5", NULL};
    struct kg_err err = {0};

    (void)state;
    need_plan(KG_EIO, "/dev/null", false, NULL, "expected a folder, found a file");
    need_plan(KG_ENOTFOUND, "/proc/run", false, NULL, "/proc/run: cannot make");
    need_plan(KG_ECONFLICT, ROOT "/one", false, NULL, "expected a folder without a run");
    fresh(ROOT "/planned");
    need_plan(KG_ENOTFOUND, ROOT "/planned", true, NULL, "expected a run to resume");
    need_plan(KG_ECONFLICT, ROOT "/one", true, other, "found 1 change: kl.beta");
    need_plan(KG_OK, ROOT "/one", true, NULL,
              "resume      " ROOT "/one/checkpoints/step-000004: after step 4 of 4");
    assert_false(kg_file_exists(ROOT "/planned"));
    assert_int_equal(kg_file_make_dirs(ROOT "/planned/metrics.jsonl", &err), KG_OK);
    assert_int_equal(kg_file_write_atomic(ROOT "/planned/config.yaml", "", 0, &err),
                     KG_OK);
    need_plan(KG_EIO, ROOT "/planned", true, NULL,
              "metrics.jsonl: expected a file of the run");
}

/* With the end of config.yaml cut off, missing keys would get their defaults. */
static void a_config_that_is_cut_off_is_refused(void **state)
{
    static const char path[] = ROOT "/cut/config.yaml";
    static const char *const steps[] = {"train.steps=1", "optim.lr=1e-6", NULL};
    struct kg_str text = {0};
    struct kg_err err = {0};
    const char *at;

    (void)state;
    fresh(ROOT "/cut");
    must_train(ROOT "/cut", false, steps);
    assert_int_equal(kg_file_read(&text, path, 1u << 24, &err), KG_OK);
    at = strstr(text.data, "\ncheckpoint:");
    assert_non_null(at);
    assert_int_equal(
        kg_file_write_atomic(path, text.data, (size_t)(at + 1 - text.data), &err), KG_OK);
    assert_int_equal(train(ROOT "/cut", true, steps, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "the file is truncated"));
    assert_int_equal(kg_file_write_atomic(path, text.data, text.len, &err), KG_OK);
    must_train(ROOT "/cut", true, steps);
    kg_str_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_without_writing),
        cmocka_unit_test(trains_alike_on_any_number_of_threads_and_in_any_sampling_batch),
        cmocka_unit_test(a_plan_looks_at_the_folder_of_the_run),
        cmocka_unit_test(a_config_that_is_cut_off_is_refused),
        cmocka_unit_test(first_update_has_no_mismatch),
        cmocka_unit_test(a_run_whose_checkpoints_are_gone_is_not_begun_anew),
        cmocka_unit_test(keeps_the_newest_checkpoints),
        cmocka_unit_test(changes_with_the_seed),
        cmocka_unit_test(resumes_after_kill_9_with_the_bits_of_the_uninterrupted_run),
        cmocka_unit_test(gradient_does_not_depend_on_micro_batches_beyond_rounding),
        cmocka_unit_test(runs_off_policy_on_purpose_and_under_truncated_sampling),
        cmocka_unit_test(refuses_what_would_lose_or_mix_runs),
        cmocka_unit_test(refuses_to_resume_on_other_files_and_names_them),
        cmocka_unit_test(a_second_process_in_a_run_directory_is_refused),
    };

    run_also = warm_ema_pg;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
