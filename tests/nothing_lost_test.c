/* What a run loses to a full disk, to a kill at any point of a save, to a stop request,
 * to memory that runs out or to a grader that dies: nothing, or one step. And how a run
 * handles numbers that are not finite.
 *
 * The model has a few thousand weights and the task is the digit task, so a run takes
 * hundredths of a second and every point of failure can be tried.
 */
#define ROOT "build/test-runs/lost"
#include "overflow_testing.h"
#include "run_testing.h"

#include "base/mem.h"
#include "data/jsonl.h"
#include "tensor/backend_testing.h"
#include "train/keep/checkpoint.h"
#include "train/keep/run_dir.h"

#include <errno.h>
#include <math.h>
#include <signal.h>

#define TINY  ROOT "/tiny"
#define WHOLE ROOT "/whole" /* the uninterrupted run */

/* TIDYING: allocations in a row whose failure a run may survive, because they only serve
 * the search for files that a killed writer left */
enum { MOST_REQUESTS = 400, TORTURES = 60, TIDYING = 20 };

static const char *const tiny[] = {
    "model.path=" TINY,  "model.dtype=fp32",  "run.threads=1",
    "rollout.prompts=2", "rollout.samples=3", "rollout.max_tokens=6",
    "sft.steps=3",       "sft.batch=4",       "algo.preset=ema-pg",
    "kl.beta=0.05",      "kl.target=1e-3", /* so that the coefficient moves */
    "kl.horizon=30",     "anchor.period=1",   "optim.lr=1e-2",
    "eval.every=2",      "eval.problems=3",   NULL,
};

/* ---- a tiny model, runs ---- */

/* Saves a model with random weights of a fixed seed, changed by `change`, and the digit
 * tokenizer in dir. */
static void make_model(const char *dir, void (*change)(struct kg_model *m))
{
    struct kg_model_opts opts = {.ct = KG_F32};
    struct kg_model_save save = {.dtype = KG_F32, .source_dir = DIGITS};
    struct kg_model_config config;
    struct kg_model *m;

    NEED(kg_model_config_read(&config, DIGITS, err));
    config.hidden = 32;
    config.ffn = 32;
    config.layers = 1;
    config.heads = 2;
    config.kv_heads = 1;
    config.head_dim = 16;
    config.tied = false;
    NEED(kg_model_create(&m, &config, &opts, 7, err));
    if (change)
        change(m);
    NEED(kg_file_remove_tree(dir, err));
    NEED(kg_file_make_dirs(dir, err));
    NEED(kg_model_save(m, dir, &save, err));
    kg_model_free(m);
}

static int setup(void **state)
{
    (void)state;
    run_also = tiny;
    NEED(kg_file_remove_tree(ROOT, err));
    NEED(kg_file_make_dirs(ROOT, err));
    make_model(TINY, NULL);
    NEED(train(WHOLE, false, NULL, err));
    return 0;
}

/* With dynamic sampling, the number of prompts that a step takes depends on the
 * completions, so a checkpoint must save the position in the row of prompts. */
static void resumes_where_the_row_of_prompts_was_left(void **state)
{
    static const char *const all[] = {"rollout.dynamic=true",
                                      "rollout.dynamic_metric=reward",
                                      "rollout.max_refills=500", NULL};
    static const char *const half[] = {"rollout.dynamic=true",
                                       "rollout.dynamic_metric=reward",
                                       "rollout.max_refills=500", "train.steps=2", NULL};
    struct kg_json_doc doc;

    (void)state;
    NEED(kg_file_remove_tree(ROOT "/row", err));
    NEED(kg_file_remove_tree(ROOT "/row-halved", err));
    NEED(train(ROOT "/row", false, all, err));
    NEED(train(ROOT "/row-halved", false, half, err));
    NEED(train(ROOT "/row-halved", true, all, err));
    assert_same_run(ROOT "/row", ROOT "/row-halved", 4);
    NEED(kg_json_read(&doc, ROOT "/row/checkpoints/latest/state.json", 1 << 16, err));
    assert_true(kg_json_int(kg_json_get(doc.root, "prompts"), 0) > 4 * 2);
    kg_json_release(&doc);
}

/* ---- a save that fails ---- */

/* Opens a run that is at step 0 and has saved a checkpoint of it. */
static void open_run(struct kg_run *run, struct kg_config **config, const char *dir,
                     const char *const *extra)
{
    NEED(kg_file_remove_tree(dir, err));
    *config = config_of(dir, extra);
    NEED(kg_run_open(run, *config, err));
    NEED(kg_run_dir_create(&run->in, &run->state, run->work.ahead.all, &run->log, err));
    NEED(kg_run_dir_cut(&run->in, &run->state, run->work.ahead.all, &run->log, err));
    run->state.count.sft_step = 3;
    NEED(kg_run_start_rl(&run->in, &run->state, err));
    NEED(kg_checkpoint_save(run, err));
}

static void close_run(struct kg_run *run, struct kg_config *config)
{
    kg_run_close(run);
    kg_config_free(config);
}

/* Fails unless the checkpoint `name` has all files and both its models load. */
static void assert_loads(const char *dir, const char *name)
{
    static const char *const files[] = {"model/model.safetensors",
                                        "anchor/model.safetensors", "state.safetensors",
                                        "state.json", "model/token_ids.json"};
    struct kg_model_opts opts = {.ct = KG_F32};
    struct kg_model *m;
    char path[512];

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/checkpoints/%s/%s", dir, name, files[i]);
        if (!kg_file_exists(path))
            fail_msg("%s is not there", path);
    }
    snprintf(path, sizeof path, "%s/checkpoints/%s/anchor", dir, name);
    NEED(kg_model_open(&m, path, &opts, err));
    kg_model_free(m);
    snprintf(path, sizeof path, "%s/checkpoints/%s/model", dir, name);
    NEED(kg_model_open(&m, path, &opts, err));
    kg_model_free(m);
}

static void assert_loads_into(struct kg_run *run, const char *name)
{
    struct kg_counters before = run->state.count;
    bool found;

    NEED(kg_checkpoint_load(run, &found, err));
    assert_true(found);
    assert_string_equal(run->state.saved_name, name);
    run->state.count = before;
    run->state.saved_name[0] = '\0';
}

/* Lets file request n of a save of step 1 fail: step 0 must stay complete and loadable,
 * no partial file may remain, and the next save must succeed.   returns whether the save
 * failed */
static bool save_fails_at(struct kg_run *run, uint64_t n, int error_number,
                          kg_status expected)
{
    struct kg_err found = {0};
    char name[KG_CHECKPOINT_NAME];
    kg_status status;

    kg_file_fail_at(n, error_number);
    status = kg_checkpoint_save(run, &found);
    kg_file_fail_at(0, 0);
    assert_false(kg_file_exists(ROOT "/full/checkpoints/.saving"));
    assert_false(kg_file_exists(ROOT "/full/checkpoints/latest.tmp"));
    assert_loads(ROOT "/full", "latest");
    assert_loads(ROOT "/full", "step-000000");
    if (status != KG_OK) {
        assert_int_equal(status, expected);
        assert_int_equal(found.code, expected);
        assert_true(strlen(found.message) > 0);
        NEED(kg_checkpoint_newest(name, ROOT "/full", err));
        assert_loads_into(run, name);
        NEED(kg_checkpoint_save(run, err));
    }
    assert_loads(ROOT "/full", "step-000001");
    return status != KG_OK;
}

static void back_to_step_0(struct kg_run *run)
{
    NEED(kg_file_remove_tree(ROOT "/full/checkpoints/step-000001", err));
    NEED(kg_file_link("step-000000", ROOT "/full/checkpoints/latest", err));
    run->state.saved_name[0] = '\0';
}

static void keeps_the_last_checkpoint_whatever_request_of_a_save_fails(void **state)
{
    struct kg_run run;
    struct kg_config *config;
    int quiet = 0, failed = 0;

    (void)state;
    open_run(&run, &config, ROOT "/full", NULL);
    NEED(kg_rl_step(&run, err));
    for (uint64_t n = 1; n < MOST_REQUESTS && quiet < 4; n++) {
        bool full = n % 2 == 1;
        bool fails = save_fails_at(&run, n, full ? ENOSPC : EIO,
                                   full ? KG_ENOSPACE : KG_EIO);

        failed += fails;
        quiet = fails ? 0 : quiet + 1;
        back_to_step_0(&run);
    }
    assert_true(failed > 60);
    assert_int_equal(quiet, 4); /* every request was tried */
    close_run(&run, config);
}

/* As above, but the save replaces a checkpoint of the same name. EINVAL makes the atomic
 * exchange of two names look unsupported, so the save falls back to two renames. */
static void keeps_a_checkpoint_when_its_replacement_fails(void **state)
{
    static const int errors[] = {ENOSPC, EINVAL};
    struct kg_run run;
    struct kg_config *config;

    (void)state;
    open_run(&run, &config, ROOT "/full", NULL);
    NEED(kg_rl_step(&run, err));
    NEED(kg_checkpoint_save(&run, err));
    for (size_t e = 0; e < 2; e++)
        for (uint64_t n = 1; n < 160; n += 3 - e) {
            struct kg_err found = {0};

            run.state.saved_name[0] = '\0';
            kg_file_fail_at(n, errors[e]);
            kg_status status = kg_checkpoint_save(&run, &found);
            kg_file_fail_at(0, 0);
            assert_true(status == KG_OK || status == KG_ENOSPACE || status == KG_EIO);
            assert_loads(ROOT "/full", "step-000000");
            assert_loads_into(&run, "step-000001");
            assert_loads(ROOT "/full", "latest");
            assert_false(kg_file_exists(ROOT "/full/checkpoints/step-000001.old"));
            assert_false(kg_file_exists(ROOT "/full/checkpoints/.saving"));
        }
    close_run(&run, config);
}

/* Saves while a step runs: the rollout only reads the weights that are being written, and
 * training waits for the writer. Expects the files of a save that ran alone. */
static void writes_beside_a_step(const char *const *extra)
{
    struct kg_run run;
    struct kg_config *config;

    open_run(&run, &config, ROOT "/full", extra);
    NEED(kg_rl_step(&run, err));
    NEED(kg_checkpoint_save(&run, err));
    NEED(kg_file_remove_tree(ROOT "/at-once", err));
    NEED(kg_file_rename_dir(ROOT "/full/checkpoints/step-000001", ROOT "/at-once", err));
    back_to_step_0(&run);
    NEED(kg_checkpoint_begin(&run, err));
    NEED(kg_rl_step(&run, err));
    assert_null(run.saving);
    assert_string_equal(run.state.saved_name, "step-000001");
    assert_same_file(ROOT "/at-once", ROOT "/full/checkpoints/step-000001",
                     "manifest.json"); /* hashes of all files */
    assert_loads(ROOT "/full", "latest");
    close_run(&run, config);
}

static void writes_beside_a_step_what_it_writes_at_once(void **state)
{
    static const char *const averages[] = {"optim.kind=schedule-free", NULL};

    (void)state;
    writes_beside_a_step(NULL);
    writes_beside_a_step(averages);
}

/* A device's slabs are copied through page-locked pieces while kernels run. The files
 * must equal the CPU's. */
static void a_device_writes_what_the_cpu_writes(void **state)
{
    static const char *const names[] = {"far", "emu"};
    const struct kg_backend *be;
    struct kg_err ignored;

    (void)state;
    if (getenv("KEDGE_TEST_BACKEND"))
        skip();
    writes_beside_a_step(NULL);
    NEED(kg_file_remove_tree(ROOT "/of-cpu", err));
    NEED(kg_file_rename_dir(ROOT "/at-once", ROOT "/of-cpu", err));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (kg_backend_open(&be, names[i], &ignored) != KG_OK)
            continue; /* no C++ compiler */
        setenv("KEDGE_TEST_BACKEND", names[i], 1);
        writes_beside_a_step(NULL);
        unsetenv("KEDGE_TEST_BACKEND");
        assert_same_file(ROOT "/of-cpu", ROOT "/at-once", "state.safetensors");
        assert_same_file(ROOT "/of-cpu", ROOT "/at-once", "model/model.safetensors");
        assert_same_file(ROOT "/of-cpu", ROOT "/at-once", "anchor/model.safetensors");
    }
}

/* A save that fails during a step must end that step before it trains: no weight changes
 * and only this step is lost. */
static void a_failure_beside_a_step_comes_before_its_training(void **state)
{
    struct kg_run run;
    struct kg_config *config;
    uint64_t before, after;

    (void)state;
    open_run(&run, &config, ROOT "/full", NULL);
    NEED(kg_rl_step(&run, err));
    NEED(kg_slab_hash(&before, &run.state.model->master, err));
    for (uint64_t n = 4; n < 60; n += 7) {
        struct kg_err found = {0};
        kg_status status;

        kg_file_fail_at(n, ENOSPC);
        status = kg_checkpoint_begin(&run, &found);
        if (status == KG_OK)
            status = kg_rl_step(&run, &found);
        kg_file_fail_at(0, 0);
        assert_int_equal(status, KG_ENOSPACE);
        assert_false(run.state.midway);
        assert_int_equal(run.state.count.step, 1);
        NEED(kg_slab_hash(&after, &run.state.model->master, err));
        assert_true(before == after);
        assert_false(kg_file_exists(ROOT "/full/checkpoints/.saving"));
        assert_loads(ROOT "/full", "latest");
        NEED(kg_checkpoint_save(&run, err));
        assert_loads(ROOT "/full", "step-000001");
        back_to_step_0(&run);
    }
    close_run(&run, config);
}

static void asks_for_room_before_a_save(void **state)
{
    struct kg_run run;
    struct kg_config *config;
    struct kg_err found = {0};
    int64_t n;

    (void)state;
    open_run(&run, &config, ROOT "/full", NULL);
    n = run.state.model->n_elements;
    run.state.count.step = 1;
    run.state.model->n_elements = (int64_t)1 << 50; /* pretend this size */
    assert_int_equal(kg_checkpoint_save(&run, &found), KG_ENOSPACE);
    run.state.model->n_elements = n;
    assert_non_null(strstr(found.message, "MB free for a checkpoint, found "));
    assert_loads(ROOT "/full", "latest");
    assert_false(kg_file_exists(ROOT "/full/checkpoints/.saving"));
    close_run(&run, config);
}

/* ---- a kill at any point of a save ---- */

static void run_shell(const char *line)
{
    if (system(line) != 0)
        fail_msg("failed: %s", line);
}

/* States that a kill can leave behind in a run that stopped after 2 steps, each made by a
 * line of shell in its checkpoints folder. */
static void resumes_from_whatever_a_killed_save_leaves(void **state)
{
    static const char *const leftovers[] = {
        "mkdir -p .saving/model && echo x >.saving/model/model.safetensors",
        "ln -s nowhere latest.tmp && ln -s nowhere .latest.tmp",
        "rm latest", /* killed before `latest` was made for the first time */
        "rm latest && ln -s step-000001 latest",
        "rm latest && ln -s nowhere latest",
        "mv step-000002 step-000002.old", /* between the two renames */
        "mv step-000002 step-000002.old && mkdir .saving && rm latest",
        "cp -r step-000001 step-000002.old", /* after both renames */
        "mkdir step-9 step-x other && rmdir step-9 && echo x >step-notes",
    };
    static const char *const two[] = {"train.steps=2", NULL};
    char line[512];

    (void)state;
    for (size_t i = 0; i < sizeof leftovers / sizeof *leftovers; i++) {
        NEED(kg_file_remove_tree(ROOT "/killed", err));
        NEED(train(ROOT "/killed", false, two, err));
        snprintf(line, sizeof line, "cd " ROOT "/killed/checkpoints && %s", leftovers[i]);
        run_shell(line);
        NEED(train(ROOT "/killed", true, NULL, err));
        assert_same_run(WHOLE, ROOT "/killed", 4);
        assert_false(kg_file_exists(ROOT "/killed/checkpoints/.saving"));
        assert_false(kg_file_exists(ROOT "/killed/checkpoints/step-000002.old"));
        assert_false(kg_file_exists(ROOT "/killed/checkpoints/step-000001"));
    }
}

/* Only a process that holds the run's lock may move step-N.old back, because another
 * process may be replacing that checkpoint. Questions and plans must leave it. */
static void who_only_looks_at_a_run_puts_nothing_back(void **state)
{
    static const char *const two[] = {"train.steps=2", NULL};
    const char *old = ROOT "/seen/checkpoints/step-000002.old";
    struct kg_config *config;
    struct kg_str plan = {0};
    struct kg_err e;
    bool resumable;

    (void)state;
    NEED(kg_file_remove_tree(ROOT "/seen", err));
    NEED(train(ROOT "/seen", false, two, err));
    run_shell("cd " ROOT "/seen/checkpoints && mv step-000002 step-000002.old "
              "&& rm ../metrics.jsonl");
    NEED(kg_run_dir_resumable(&resumable, ROOT "/seen", err));
    assert_true(resumable);
    config = config_of(ROOT "/seen", two);
    assert_int_equal(kg_train_plan(&plan, config, false, 1, &e), KG_ECONFLICT);
    assert_non_null(strstr(e.message, "step-000002.old"));
    NEED(kg_train_plan(&plan, config, true, 1, err));
    assert_non_null(strstr(kg_str_text(&plan), "step-000002.old: after step 2 of 2"));
    assert_true(kg_file_is_dir(old));
    assert_false(kg_file_exists(ROOT "/seen/checkpoints/step-000002"));
    kg_str_release(&plan);
    kg_config_free(config);
}

/* ---- a disk that changed what was saved ---- */

#define DAMAGED ROOT "/damaged"

/* Changes n bytes of a file, starting at the fraction `at` of its length: flips a bit if
 * n is 1, writes zeros otherwise. */
static void damage(const char *path, double at, size_t n)
{
    struct kg_str text = {0};
    size_t from;

    NEED(kg_file_read(&text, path, 1u << 30, err));
    assert_true(text.len > n);
    from = (size_t)(at * (double)(text.len - n));
    for (size_t i = from; i < from + n; i++)
        text.data[i] = n == 1 ? (char)(text.data[i] ^ 4) : '\0';
    NEED(kg_file_write_atomic(path, text.data, text.len, err));
    kg_str_release(&text);
}

static void assert_resume_refuses(const char *file, const char *keep)
{
    static const char *const more[] = {"train.steps=3", NULL};
    struct kg_err found = {0};

    if (train(DAMAGED, true, more, &found) == KG_OK)
        fail_msg("%s was damaged and the run resumed", file);
    if (!strstr(found.message, file))
        fail_msg("expected a message that names %s, found: %s", file, found.message);
    NEED(kg_file_copy(keep, file, err));
}

/* A flipped bit at any place, or a page of zeros, is found before any weight changes, and
 * the message names the file. */
static void resume_refuses_a_damaged_checkpoint(void **state)
{
    static const char *const files[] = {"state.safetensors", "state.json",
                                        "model/model.safetensors", "model/config.json",
                                        "anchor/model.safetensors"};
    static const char *const two[] = {"train.steps=2", NULL};
    enum { PLACES = 8, PAGE = 512 };

    (void)state;
    NEED(kg_file_remove_tree(DAMAGED, err));
    NEED(train(DAMAGED, false, two, err));
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        char path[256];

        snprintf(path, sizeof path, DAMAGED "/checkpoints/step-000002/%s", files[f]);
        NEED(kg_file_copy(path, DAMAGED "/kept", err));
        for (int i = 0; i <= PLACES; i++) {
            damage(path, (double)i / PLACES, 1);
            assert_resume_refuses(path, DAMAGED "/kept");
        }
        damage(path, 0.5, strstr(path, ".json") ? 16 : PAGE);
        assert_resume_refuses(path, DAMAGED "/kept");
    }
    NEED(kg_file_remove_tree(DAMAGED "/checkpoints/step-000001", err));
    NEED(train(DAMAGED, true, NULL, err));
    assert_same_run(WHOLE, DAMAGED, 4);
}

static void assert_resume_says(const char *says)
{
    static const char *const more[] = {"train.steps=3", NULL};
    struct kg_err found = {0};

    if (train(DAMAGED, true, more, &found) == KG_OK || !strstr(found.message, says))
        fail_msg("expected '%s', found '%s'", says, found.message);
}

/* kedge never falls back to an older checkpoint silently: the message names the newest
 * intact one and says how to continue from it. */
static void a_damaged_checkpoint_names_the_newest_that_is_whole(void **state)
{
    static const char *const three[] = {"train.steps=3", "checkpoint.keep=100", NULL};

    (void)state;
    NEED(kg_file_remove_tree(DAMAGED, err));
    NEED(train(DAMAGED, false, three, err));
    damage(DAMAGED "/checkpoints/step-000003/state.safetensors", 0.5, 1);
    damage(DAMAGED "/checkpoints/step-000002/model/model.safetensors", 0.5, 1);
    assert_resume_says("; step-000001 is intact: to continue from it, move all later "
                       "ones, up to step-000003, out of " DAMAGED
                       "/checkpoints and resume again");
    NEED(kg_file_remove_tree(DAMAGED "/checkpoints/step-000003", err));
    assert_resume_says("; step-000001 is intact: to continue from it, move all later "
                       "ones, up to step-000002, out of ");
    NEED(kg_file_remove_tree(DAMAGED "/checkpoints/step-000002", err));
    NEED(train(DAMAGED, true, NULL, err));
    assert_same_run(WHOLE, DAMAGED, 4);
}

static void a_missing_log_is_named_on_resume(void **state)
{
    (void)state;
    NEED(kg_file_remove_tree(DAMAGED "/metrics.jsonl", err));
    assert_resume_says(DAMAGED
                       "/metrics.jsonl: expected the log of the steps before the ");
    assert_resume_says("bytes), found no file");
}

/* For each checkpoint of the schedule: with only that one left, as after a kill right
 * after its save, the resumed run must equal the uninterrupted one. */
static void resumes_exactly_from_every_checkpoint(void **state)
{
    static const char *const sft[] = {"sft-000001", "sft-000002", "step-000000",
                                      "step-000001", "step-000003"};
    static const char *const keep[] = {"checkpoint.keep=100", NULL};
    char line[512];

    (void)state;
    NEED(kg_file_remove_tree(ROOT "/all", err));
    NEED(train(ROOT "/all", false, keep, err));
    for (size_t i = 0; i < sizeof sft / sizeof *sft; i++) {
        NEED(kg_file_remove_tree(ROOT "/killed", err));
        snprintf(line, sizeof line,
                 "cp -r " ROOT "/all " ROOT "/killed && cd " ROOT "/killed/checkpoints "
                 "&& for f in sft-* step-*; do [ $f = %s ] || rm -r $f; done; rm latest; "
                 "echo half a line >>../metrics.jsonl; echo mine >../rollouts/step-9.txt",
                 sft[i]);
        run_shell(line);
        NEED(train(ROOT "/killed", true, keep, err));
        assert_same_run(WHOLE, ROOT "/killed", 4);
        assert_true(kg_file_exists(ROOT "/killed/rollouts/step-9.txt"));
    }
}

static void counts_checkpoints_by_number_beyond_a_million(void **state)
{
    static const char *const keep[] = {"checkpoint.keep=2", NULL};
    static const int64_t steps[] = {999999, 1000000, 1000001};
    struct kg_run run;
    struct kg_config *config;

    (void)state;
    open_run(&run, &config, ROOT "/many", keep);
    for (size_t i = 0; i < 3; i++) {
        run.state.count.step = steps[i];
        NEED(kg_checkpoint_save(&run, err));
    }
    assert_loads(ROOT "/many", "step-1000000");
    assert_loads(ROOT "/many", "step-1000001");
    assert_false(kg_file_exists(ROOT "/many/checkpoints/step-999999"));
    assert_loads_into(&run, "step-1000001");
    close_run(&run, config);
}

/* ---- a request to stop ---- */

static char train_steps[48];

/* Waits until the log contains `phase`, 30 s at most. */
static void wait_for(const char *dir, const char *phase)
{
    struct kg_str text = {0};
    char path[512];
    struct kg_err found;

    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    for (int i = 0; i < 6000; i++) {
        kg_str_clear(&text);
        if (kg_file_read(&text, path, 1 << 26, &found) == KG_OK && text.len > 0 &&
            strstr(text.data, phase))
            break;
        usleep(5000);
    }
    assert_non_null(strstr(kg_str_text(&text), phase));
    kg_str_release(&text);
}

/* The child has a million steps, so it cannot end before a busy machine sends the signal.
 * Then the resumed run goes 4 steps further, and must equal a run without a stop.
 * extra: contains train_steps */
static void stops_and_resumes(const char *phase, int signal_number, const char *prefix,
                              const char *const *extra)
{
    char name[KG_CHECKPOINT_NAME];
    int status, last;
    pid_t child;

    NEED(kg_file_remove_tree(ROOT "/stopped", err));
    NEED(kg_file_remove_tree(ROOT "/through", err));
    snprintf(train_steps, sizeof train_steps, "train.steps=1000000");
    child = start_kedge(ROOT "/stopped", false, extra);
    wait_for(ROOT "/stopped", phase);
    kill(child, signal_number);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 128 + signal_number); /* incomplete */
    NEED(kg_checkpoint_newest(name, ROOT "/stopped", err));
    assert_int_equal(strncmp(name, prefix, strlen(prefix)), 0);
    last = 4 + (strcmp(prefix, "step-") == 0 ? atoi(name + 5) : 0);
    snprintf(train_steps, sizeof train_steps, "train.steps=%d", last);
    NEED(train(ROOT "/through", false, extra, err));
    NEED(train(ROOT "/stopped", true, extra, err));
    assert_same_run(ROOT "/through", ROOT "/stopped", last);
}

static void finishes_the_step_and_saves_when_asked_to_stop(void **state)
{
    static const char *const rl[] = {train_steps, "checkpoint.every=0", NULL};
    static const char *const long_sft[] = {train_steps, "sft.steps=400", "sft.batch=16",
                                           "checkpoint.every=0", NULL};

    (void)state;
    if (access("./kedge", X_OK) != 0) {
        print_message("skip: ./kedge is not built\n");
        skip();
    }
    stops_and_resumes("\"rl\"", SIGINT, "step-", rl);
    stops_and_resumes("\"sft\"", SIGTERM, "sft-", long_sft);
}

/* ---- a grader that hangs, or dies ---- */

/* The grader hangs in the third step if the file `hang` exists. When asked to stop, the
 * run must end in time, with the checkpoint of step 2. */
static void saves_when_asked_to_stop_while_the_grader_hangs(void **state)
{
    static const char *const extra[] = {
        "task.name=external",
        "data.val=",
        "sft.steps=0",
        "sft.batch=32",
        "checkpoint.every=0",
        "task.timeout_ms=3600000",
        "task.command=while read -r l; do n=$((n + 1)); if [ $n -gt 12 ] && [ -e " ROOT
        "/hang ]; then touch " ROOT "/hangs; sleep 3000; fi; "
        "echo \"{\\\"score\\\": 0.${#l}}\"; done",
        NULL,
    };
    char name[KG_CHECKPOINT_NAME];
    int status;
    pid_t child;

    (void)state;
    if (access("./kedge", X_OK) != 0) {
        print_message("skip: ./kedge is not built\n");
        skip();
    }
    NEED(kg_file_remove_tree(ROOT "/hung", err));
    NEED(kg_file_remove_tree(ROOT "/smooth", err));
    run_shell("rm -f " ROOT "/hang " ROOT "/hangs");
    NEED(train(ROOT "/smooth", false, extra, err));
    run_shell("touch " ROOT "/hang");
    child = start_kedge(ROOT "/hung", false, extra);
    for (int i = 0; i < 6000 && access(ROOT "/hangs", F_OK) != 0; i++)
        usleep(10000);
    kill(child, SIGTERM);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 128 + SIGTERM);
    NEED(kg_checkpoint_newest(name, ROOT "/hung", err));
    assert_string_equal(name, "step-000002");
    run_shell("rm " ROOT "/hang");
    NEED(train(ROOT "/hung", true, extra, err));
    assert_same_run(ROOT "/smooth", ROOT "/hung", 4);
}

static void loses_one_step_when_the_grader_dies(void **state)
{
    /* exits with 7 at the call whose number the file `calls` holds */
    static const char *const extra[] = {
        "task.name=external",
        "data.val=",
        "sft.steps=0",
        "sft.batch=32",
        "checkpoint.every=0",
        "task.command=n=$(cat " ROOT "/calls); echo $((n-1)) >" ROOT "/calls; "
        "[ $n -ne 1 ] || exit 7; sed 's/.*response\":\"\\(.*\\)\",\"gr.*/\\1/' | "
        "while read -r l; do echo \"{\\\"score\\\": 0.${#l}}\"; done",
        NULL,
    };
    char name[KG_CHECKPOINT_NAME];
    struct kg_err found;

    (void)state;
    run_shell("echo 0 >" ROOT "/calls");
    NEED(kg_file_remove_tree(ROOT "/graded", err));
    NEED(kg_file_remove_tree(ROOT "/died", err));
    NEED(train(ROOT "/graded", false, extra, err));
    run_shell("echo 3 >" ROOT "/calls");
    assert_int_not_equal(train(ROOT "/died", false, extra, &found), KG_OK);
    assert_non_null(strstr(found.message, "expected exit status 0, found 7"));
    NEED(kg_checkpoint_newest(name, ROOT "/died", err));
    assert_string_equal(name, "step-000002");
    NEED(train(ROOT "/died", true, extra, err));
    assert_same_run(ROOT "/graded", ROOT "/died", 4);
}

/* ---- numbers that are not finite ---- */

static void put_nan(struct kg_model *m) { m->layers[0].wo->master[3] = NAN; }

static void refuses_weights_that_are_not_finite(void **state)
{
    static const char *const extra[] = {"model.path=" ROOT "/nan", NULL};
    struct kg_err found = {0};

    (void)state;
    make_model(ROOT "/nan", put_nan);
    NEED(kg_file_remove_tree(ROOT "/refused", err));
    assert_int_equal(train(ROOT "/refused", false, extra, &found), KG_ENONFINITE);
    assert_non_null(strstr(found.message, "model.layers.0.self_attn.o_proj.weight: "
                                          "expected finite weights"));
    assert_false(kg_file_exists(ROOT "/refused"));
}

static size_t lines_of(const char *dir, const char *name)
{
    struct kg_str text = {0};
    char path[512];
    size_t n = 0;

    snprintf(path, sizeof path, "%s/rollouts/%s", dir, name);
    NEED(kg_zst_read(&text, path, 1 << 26, err));
    for (size_t i = 0; i < text.len; i++)
        n += text.data[i] == '\n';
    kg_str_release(&text);
    return n;
}

static void stops_after_three_rollouts_that_are_not_finite(void **state)
{
    static const char *const extra[] = {
        "model.path=" ROOT "/inf", "sft.steps=0",  "sft.batch=32",
        "eval.at_start=false",     "eval.every=0", NULL};
    char name[KG_CHECKPOINT_NAME];
    struct kg_err found = {0};

    (void)state;
    make_model(ROOT "/inf", overflow_logits);
    NEED(kg_file_remove_tree(ROOT "/logits", err));
    assert_int_equal(train(ROOT "/logits", false, extra, &found), KG_ENONFINITE);
    assert_non_null(strstr(found.message,
                           "step 3: expected finite numbers, found none in 3 "
                           "steps in a row"));
    for (int i = 1; i <= 3; i++) {
        snprintf(name, sizeof name, "skipped-%06d.jsonl.zst", i);
        assert_int_equal(lines_of(ROOT "/logits", name), 6);
    }
    NEED(kg_checkpoint_newest(name, ROOT "/logits", err));
    assert_string_equal(name, "step-000002"); /* step 3 ended the run */
}

/* Two skipped steps are too few for train.max_skips to stop the run. It must still fail
 * at its end, because it learned nothing. */
static void a_run_that_skipped_all_its_steps_fails(void **state)
{
    static const char *const all[] = {"model.path=" ROOT "/inf",
                                      "sft.steps=0",
                                      "sft.batch=32",
                                      "data.val=",
                                      "train.steps=2",
                                      "train.max_skips=3",
                                      NULL};
    struct kg_err found = {0};

    (void)state;
    make_model(ROOT "/inf", overflow_logits);
    NEED(kg_file_remove_tree(ROOT "/all", err));
    assert_int_equal(train(ROOT "/all", false, all, &found), KG_ENONFINITE);
    assert_string_equal(found.message, "expected a step with finite numbers, found none: "
                                       "all 2 were skipped");
}

/* The steps of an earlier stage (init.parts has `steps`) do not count as this run's. */
static void a_stage_that_skipped_all_its_steps_fails(void **state)
{
    static const char *const first[] = {"sft.steps=0", "sft.batch=32",
                                        "data.val=", "train.steps=2", NULL};
    static const char *const second[] = {"model.path=",
                                         "init.from=" ROOT "/first",
                                         "init.parts=[model, optimizer, steps]",
                                         "sft.steps=0",
                                         "sft.batch=32",
                                         "data.val=",
                                         train_steps,
                                         "train.max_skips=9",
                                         "checkpoint.every=1",
                                         "kl.estimator=k3",
                                         "kl.beta=0.1",
                                         "anchor.kind=fixed",
                                         "anchor.period=10",
                                         "anchor.path=" ROOT "/inf",
                                         NULL};
    struct kg_err found = {0};

    (void)state;
    make_model(ROOT "/inf", overflow_logits);
    NEED(kg_file_remove_tree(ROOT "/first", err));
    NEED(kg_file_remove_tree(ROOT "/second", err));
    NEED(train(ROOT "/first", false, first, err));
    snprintf(train_steps, sizeof train_steps, "train.steps=4");
    if (train(ROOT "/second", false, second, &found) != KG_ENONFINITE)
        fail_msg("%s", found.message);
    assert_string_equal(found.message, "expected a step with finite numbers, found none: "
                                       "all 2 were skipped");
    /* nor do they after a resume */
    snprintf(train_steps, sizeof train_steps, "train.steps=6");
    assert_int_equal(train(ROOT "/second", true, second, &found), KG_ENONFINITE);
    assert_non_null(strstr(found.message, "all 4 were skipped"));
}

static void stops_after_three_gradients_that_are_not_finite(void **state)
{
    static const char *const extra[] = {"model.path=" ROOT "/steep", "sft.batch=1",
                                        "sft.data=" ROOT "/end.jsonl", NULL};
    struct kg_err found = {0};

    (void)state;
    make_model(ROOT "/steep", overflow_gradients);
    /* the response is empty, so only the end token is trained */
    run_shell("echo '{\"prompt\": \"1,2:3,4\", \"response\": \"\"}' >" ROOT "/end.jsonl");
    NEED(kg_file_remove_tree(ROOT "/gradient", err));
    assert_int_equal(train(ROOT "/gradient", false, extra, &found), KG_ENONFINITE);
    assert_non_null(strstr(found.message, "sft step 3: expected finite numbers"));
    assert_non_null(strstr(found.message, "the norm of the gradient is"));
    assert_int_equal(lines_of(ROOT "/gradient", "skipped-sft-000001.jsonl.zst"), 1);
    assert_int_equal(lines_of(ROOT "/gradient", "skipped-sft-000003.jsonl.zst"), 1);
}

/* With rollout.lag=1 the weights of the step before sample, so sampling succeeds with
 * broken trained weights: the batch is complete, but its loss is not finite. */
static void skips_a_step_whose_loss_is_not_finite(void **state)
{
    static const char *const lag[] = {"rollout.lag=1", NULL};
    struct kg_run run;
    struct kg_config *config;
    float kept;

    (void)state;
    open_run(&run, &config, ROOT "/loss", lag);
    NEED(kg_rl_step(&run, err));
    kept = run.state.model->norm->master[0];
    run.state.model->norm->master[0] = NAN;
    NEED(kg_model_refresh(run.state.model, err));
    NEED(kg_rl_step(&run, err));
    assert_int_equal(run.state.count.step, 2);
    assert_int_equal(run.state.count.skipped, 1);
    assert_int_equal(run.state.count.skipped_in_row, 1);
    assert_int_equal(run.state.count.anchor_updates, 1); /* none for the skipped step */
    assert_int_equal(lines_of(ROOT "/loss", "skipped-000002.jsonl.zst"), 6);
    run.state.model->norm->master[0] = kept;
    run.state.lagged[1].data[run.state.model->norm->offset] =
        kept; /* step 1's copy, due at step 2 */
    NEED(kg_model_refresh(run.state.model, err));
    NEED(kg_rl_step(&run, err));
    assert_int_equal(run.state.count.step, 3);
    assert_int_equal(run.state.count.skipped, 1);
    assert_int_equal(run.state.count.skipped_in_row, 0);
    close_run(&run, config);
}

/* ---- memory that runs out ---- */

/* leaves out the writers whose failure does not end a run (TensorBoard, report) */
static const char *const one_step[] = {"train.steps=1",    "sft.steps=1",
                                       "eval.problems=2",  "log.tensorboard=false",
                                       "log.report=false", NULL};

static kg_status train_with_failure_at(uint64_t n, struct kg_err *why)
{
    struct kg_config *config;
    kg_status status;

    NEED(kg_file_remove_tree(ROOT "/memory", err));
    config = config_of(ROOT "/memory", one_step);
    kg_mem_fail_at(n);
    status = kg_train_run(config, false, false, why);
    kg_mem_fail_at(0);
    kg_config_free(config);
    return status;
}

/* Number of allocations of a run, by bisection: a failure set at a later one changes
 * nothing. */
static uint64_t count_allocations(void)
{
    uint64_t low = 1, high = 1 << 20;
    struct kg_err found;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;

        if (train_with_failure_at(middle, &found) == KG_OK)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void assert_whole_or_absent(void)
{
    char **names;
    size_t n;

    assert_false(kg_file_exists(ROOT "/memory/checkpoints/.saving"));
    if (!kg_file_is_dir(ROOT "/memory/checkpoints"))
        return;
    NEED(kg_file_list(&names, &n, ROOT "/memory/checkpoints", err));
    for (size_t i = 0; i < n; i++)
        assert_loads(ROOT "/memory", names[i]);
    kg_file_names_free(names, n);
}

static void survives_every_allocation_that_fails(void **state)
{
    struct kg_err found = {0};
    uint64_t all, held;

    (void)state;
    all = count_allocations();
    assert_true(all > 200);
    assert_int_equal(train_with_failure_at(0, &found), KG_OK);
    held = kg_mem_current_bytes();
    for (uint64_t i = 0; i < TORTURES; i++) {
        uint64_t n = 1 + i * (all - 1) / TORTURES, last = n + TIDYING;
        kg_status status = train_with_failure_at(n, &found);

        while (status == KG_OK && n < last)
            status = train_with_failure_at(++n, &found);
        if (status != KG_ENOMEM)
            fail_msg("allocation %llu of %llu: expected out of memory, found %s",
                     (unsigned long long)n, (unsigned long long)all,
                     kg_status_name(status));
        if (kg_mem_current_bytes() > held)
            fail_msg("allocation %llu of %llu: %llu bytes leaked", (unsigned long long)n,
                     (unsigned long long)all,
                     (unsigned long long)(kg_mem_current_bytes() - held));
        assert_whole_or_absent();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resumes_where_the_row_of_prompts_was_left),
        cmocka_unit_test(keeps_the_last_checkpoint_whatever_request_of_a_save_fails),
        cmocka_unit_test(keeps_a_checkpoint_when_its_replacement_fails),
        cmocka_unit_test(writes_beside_a_step_what_it_writes_at_once),
        cmocka_unit_test(a_device_writes_what_the_cpu_writes),
        cmocka_unit_test(a_failure_beside_a_step_comes_before_its_training),
        cmocka_unit_test(asks_for_room_before_a_save),
        cmocka_unit_test(resumes_from_whatever_a_killed_save_leaves),
        cmocka_unit_test(who_only_looks_at_a_run_puts_nothing_back),
        cmocka_unit_test(resume_refuses_a_damaged_checkpoint),
        cmocka_unit_test(a_damaged_checkpoint_names_the_newest_that_is_whole),
        cmocka_unit_test(a_missing_log_is_named_on_resume),
        cmocka_unit_test(resumes_exactly_from_every_checkpoint),
        cmocka_unit_test(counts_checkpoints_by_number_beyond_a_million),
        cmocka_unit_test(finishes_the_step_and_saves_when_asked_to_stop),
        cmocka_unit_test(saves_when_asked_to_stop_while_the_grader_hangs),
        cmocka_unit_test(loses_one_step_when_the_grader_dies),
        cmocka_unit_test(refuses_weights_that_are_not_finite),
        cmocka_unit_test(stops_after_three_rollouts_that_are_not_finite),
        cmocka_unit_test(a_run_that_skipped_all_its_steps_fails),
        cmocka_unit_test(a_stage_that_skipped_all_its_steps_fails),
        cmocka_unit_test(stops_after_three_gradients_that_are_not_finite),
        cmocka_unit_test(skips_a_step_whose_loss_is_not_finite),
        cmocka_unit_test(survives_every_allocation_that_fails),
    };

    return RUN_SHOWN(tests, setup, NULL);
}
