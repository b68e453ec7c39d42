/* Stages: each part that a run takes from an earlier one is taken bit for bit, without
 * the other parts; what does not fit is refused before anything is written.
 */
#define ROOT "build/test-init"
#include "train/rl_testing.h"

#include "data/manifest.h"
#include "data/safetensors.h"
#include "lab/replay.h"
#include "tensor/backend_testing.h"
#include "train/keep/checkpoint.h"
#include "train/same_testing.h"

#define FIRST ROOT "/first"
#define STATE FIRST "/checkpoints/latest/state.safetensors"

/* ---- the first stage ---- */

/* model/ and anchor/ of the checkpoint are bf16, but the stage must take the fp32
 * values. */
static const char *const first_stage[] = {
    "anchor.kind=ema",    "anchor.period=1", "anchor.eta=0.5",
    "kl.estimator=k3",    "kl.beta=0.1",     "train.updates_per_step=2",
    "checkpoint.every=1", "optim.lr=1e-3",   NULL};

static struct kg_config *config_with(const char *dir, const char *const *extra)
{
    const char *const *const lists[] = {rl_base, first_stage, extra};

    return config_from(dir, lists, 3);
}

static void train_with(const char *dir, bool resume, const char *const *extra)
{
    struct kg_config *config = config_with(dir, extra);

    NEED(kg_train_run(config, resume, false, err));
    kg_config_free(config);
}

static int train_first(void **state)
{
    (void)state;
    fresh(FIRST);
    fresh(ROOT "/odd");
    train_with(FIRST, false, (const char *const[]){"train.steps=3", NULL});
    return 0;
}

/* Opens a run of the second stage before its first step. */
static void open_second(struct opened *o, const char *const *extra)
{
    o->config = config_with(ROOT "/second", extra);
    NEED(kg_run_open(&o->run, o->config, err));
    NEED(kg_run_start_rl(&o->run.in, &o->run.state, err));
    NEED(kg_init_rl(&o->run.in, &o->run.state, err));
}

static bool is_tensor(const float *data, const struct kg_run *run, const char *name)
{
    size_t bytes = (size_t)run->state.model->n_elements * sizeof(float);
    const struct kg_st_tensor *t;
    struct kg_st_set *set;
    bool same;

    NEED(kg_st_open_file(&set, STATE, err));
    t = kg_st_find(set, name);
    assert_non_null(t);
    assert_int_equal(t->bytes, bytes);
    same = memcmp(data, t->data, bytes) == 0;
    kg_st_close(set);
    return same;
}

static bool is_zero(const float *data, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (data[i] != 0)
            return false;
    return true;
}

/* Number of updates in the moments of a run's newest checkpoint. */
static int64_t updates_of(const char *dir)
{
    struct kg_counters c;
    char path[256];

    snprintf(path, sizeof path, "%s/checkpoints/latest/state.json", dir);
    NEED(kg_checkpoint_counters(&c, path, err));
    assert_true(c.optim_step > 2);
    return c.optim_before + c.optim_step;
}

/* ---- parts ---- */

static void by_default_the_model_alone_is_taken(void **state)
{
    static const char *const extra[] = {"model.path=", "init.from=" FIRST, NULL};
    struct opened o;
    const struct kg_run *run = &o.run;

    (void)state;
    open_second(&o, extra);
    assert_true(is_tensor(run->state.model->master.data, run, "master"));
    assert_true(is_tensor(run->state.anchor->master.data, run, "master"));
    assert_false(is_tensor(run->state.anchor->master.data, run, "anchor"));
    assert_true(is_zero(run->state.optim->state[0].data, run->state.model->n_elements));
    assert_true(is_zero(run->state.optim->state[1].data, run->state.model->n_elements));
    assert_int_equal(run->state.optim->before, 0);
    close_run(&o);
}

static void every_part_is_taken_bit_for_bit(void **state)
{
    static const char *const extra[] = {
        "model.path=", "init.from=" FIRST "/checkpoints/step-000003",
        "init.parts=[model, anchor, optimizer]", NULL};
    struct opened o;
    const struct kg_run *run = &o.run;

    (void)state;
    open_second(&o, extra);
    assert_true(is_tensor(run->state.model->master.data, run, "master"));
    assert_true(is_tensor(run->state.anchor->master.data, run, "anchor"));
    assert_true(is_tensor(run->state.optim->state[0].data, run, "adam_m"));
    assert_true(is_tensor(run->state.optim->state[1].data, run, "adam_v"));
    assert_int_equal(run->state.optim->before, updates_of(FIRST));
    assert_int_equal(run->state.optim->step, 0);
    assert_int_equal(run->state.count.step, 0);
    close_run(&o);
}

static void the_anchor_alone_goes_with_another_model(void **state)
{
    static const char *const extra[] = {"init.from=" FIRST, "init.parts=anchor", NULL};
    struct opened o;
    const struct kg_run *run = &o.run;

    (void)state;
    open_second(&o, extra);
    assert_false(is_tensor(run->state.model->master.data, run, "master"));
    assert_true(is_tensor(run->state.anchor->master.data, run, "anchor"));
    close_run(&o);
}

/* Naming an earlier checkpoint of the run starts from that one. */
static void a_checkpoint_is_taken_as_it_is_named(void **state)
{
    static const char *const extra[] = {
        "model.path=", "init.from=" FIRST "/checkpoints/step-000002", NULL};
    struct opened o;

    (void)state;
    open_second(&o, extra);
    assert_false(is_tensor(o.run.state.model->master.data, &o.run, "master"));
    close_run(&o);
}

/* ---- whole runs ---- */

static void train_second(const char *dir, const char *steps, bool resume)
{
    const char *const extra[] = {"model.path=", "init.from=" FIRST,
                                 "init.parts=[model, anchor, optimizer]", steps, NULL};

    train_with(dir, resume, extra);
}

static void a_stage_resumes_to_the_same_bits(void **state)
{
    (void)state;
    fresh(ROOT "/whole");
    fresh(ROOT "/parts");
    train_second(ROOT "/whole", "train.steps=2", false);
    train_second(ROOT "/parts", "train.steps=1", false);
    train_second(ROOT "/parts", "train.steps=2", true);
    assert_same_steps(ROOT "/whole", ROOT "/parts", 2);
}

/* With all parts, `steps` included, as in published 16k and 24k stages, a stage continues
 * like a resumed run. */
static void with_steps_a_stage_is_a_resumed_run(void **state)
{
    static const char *const one[] = {"train.steps=5", "optim.warmup_steps=4", NULL};
    static const char *const first[] = {"train.steps=3", "optim.warmup_steps=4", NULL};
    static const char *const second[] = {
        "model.path=",          "init.from=" ROOT "/begun/checkpoints/step-000003",
        "train.steps=5",        "init.parts=[model, anchor, optimizer, steps]",
        "optim.warmup_steps=4", NULL};
    struct kg_replay r;

    (void)state;
    fresh(ROOT "/at_once");
    fresh(ROOT "/begun");
    fresh(ROOT "/goes_on");
    train_with(ROOT "/at_once", false, one);
    train_with(ROOT "/begun", false, first);
    train_with(ROOT "/goes_on", false, second);
    assert_same_file(ROOT "/at_once", ROOT "/goes_on",
                     "checkpoints/step-000005/state.safetensors");
    assert_same_file(ROOT "/at_once", ROOT "/goes_on", "rollouts/step-000005.jsonl.zst");
    assert_int_equal(updates_of(ROOT "/goes_on"), updates_of(ROOT "/at_once"));
    NEED(kg_replay_run(&r, ROOT "/goes_on", 4, NULL, 0, err));
    assert_int_equal(r.weights_step, 3);
}

/* A third stage counts the updates of both earlier ones. */
static void stages_add_up(void **state)
{
    static const char *const extra[] = {"model.path=", "init.from=" ROOT "/whole",
                                        "init.parts=[model, optimizer]", NULL};
    struct opened o;

    (void)state;
    open_second(&o, extra);
    assert_int_equal(o.run.state.optim->before, updates_of(ROOT "/whole"));
    assert_true(o.run.state.optim->before > updates_of(FIRST) + 2);
    close_run(&o);
}

static void the_plan_says_where_it_starts(void **state)
{
    static const char *const extra[] = {"model.path=", "init.from=" FIRST,
                                        "init.parts=[model, anchor]", NULL};
    struct kg_config *config = config_with(ROOT "/none", extra);
    struct kg_str text = {0};

    (void)state;
    NEED(kg_train_plan(&text, config, false, 1, err));
    assert_non_null(strstr(text.data, "start       " FIRST "/checkpoints/step-000003: "
                                      "model anchor\n"));
    kg_str_release(&text);
    kg_config_free(config);
}

/* The plan grades the first record, also if there is only one. */
static void the_plan_tries_the_grader(void **state)
{
    static const char *const extra[] = {"task.name=external", "rollout.prompts=1",
                                        "task.command=sed -u 's/.*/{\"score\": 0.25}/'",
                                        "data.train=" ROOT "/one.jsonl", NULL};
    struct kg_str text = {0}, data = {0};
    struct kg_config *config;

    (void)state;
    NEED(kg_file_read(&data, DATA "/train.jsonl", 1 << 20, err));
    NEED(kg_file_write_atomic(ROOT "/one.jsonl", data.data, strcspn(data.data, "\n"),
                              err));
    config = config_of(ROOT "/none", extra);
    NEED(kg_train_plan(&text, config, false, 1, err));
    assert_non_null(strstr(text.data, ": score 0.25, wrong for the first "));
    kg_str_release(&text);
    kg_str_release(&data);
    kg_config_free(config);
}

/* ---- refusals ---- */

static void what_does_not_fit_is_refused(void **state)
{
    static const struct {
        const char *extra[6];
        const char *says;
    } rows[] = {
        {{"init.from=" FIRST}, "model.path: expected none, because init.from"},
        {{"init.from=" FIRST, "init.parts=weights"},
         "init.parts: expected model, anchor, optimizer or steps, found 'weights'"},
        {{"init.from=" FIRST, "init.parts=[model, steps]", "model.path="},
         "expected optimizer too"},
        {{"init.from=" FIRST, "init.parts=[optimizer, steps]", "train.steps=3"},
         "expected more than its 3, found 3"},
        {{"init.from=" FIRST, "init.parts=[]"}, "expected the parts to take"},
        {{"init.parts=anchor"},
         "init.parts: expected init.from, which the parts are taken from"},
        {{"init.from=" ROOT "/nothing", "init.parts=anchor"},
         "init.from: expected a checkpoint or a run that has one"},
        {{"init.from=" FIRST, "init.parts=anchor", "sft.steps=1"}, "SFT would run"},
        {{"init.from=" FIRST, "init.parts=anchor", "anchor.path=" DATA}, "anchor.path: "},
        {{"init.from=" FIRST, "init.parts=anchor", "anchor.kind=iterative",
          "anchor.period=10", "anchor.eta=0.9"},
         "expected an anchor with weights of its own, found anchor.kind iterative"},
        {{"init.from=" FIRST, "init.parts=optimizer", "optim.kind=schedule-free"},
         "optimizer: expected optim.kind adamw, found schedule-free"},
        {{"init.from=" ROOT "/odd", "init.parts=optimizer"}, "expected the shapes"},
    };

    (void)state;
    assert_int_equal(system("cp -r " FIRST "/checkpoints/step-000003 " ROOT "/odd && "
                            "sed -i 's/\"num_attention_heads\": [0-9]*/"
                            "\"num_attention_heads\": 1/; "
                            "s/\"num_key_value_heads\": [0-9]*/"
                            "\"num_key_value_heads\": 1/' " ROOT
                            "/odd/model/config.json"),
                     0);
    NEED(kg_manifest_write(ROOT "/odd", err)); /* other shapes, but intact */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_config *config = config_with(ROOT "/refused", rows[i].extra);
        struct kg_err e = {0};
        struct kg_run run;

        assert_int_not_equal(kg_run_open(&run, config, &e), KG_OK);
        if (!strstr(e.message, rows[i].says))
            fail_msg("expected '%s', found: %s", rows[i].says, e.message);
        kg_config_free(config);
    }
}

static void a_schedule_free_run_is_named_as_one(void **state)
{
    static const char *const extra[] = {"model.path=", "init.from=" ROOT "/free", NULL};
    struct kg_config *config = config_with(ROOT "/refused", extra);
    struct kg_err e = {0};
    struct kg_run run;

    (void)state;
    fresh(ROOT "/free");
    train_with(ROOT "/free", false,
               (const char *const[]){"optim.kind=schedule-free", "train.steps=1", NULL});
    assert_int_equal(kg_run_open(&run, config, &e), KG_EUNSUPPORTED);
    assert_non_null(strstr(e.message, "expected a run with adamw"));
    kg_config_free(config);
}

/* The first stage may continue: the second keeps the checkpoint that it started from. */
static void a_first_stage_may_go_on(void **state)
{
    struct kg_str text = {0};

    (void)state;
    train_with(FIRST, true, (const char *const[]){"train.steps=4", NULL});
    train_second(ROOT "/whole", "train.steps=3", true);
    NEED(kg_file_read(&text, ROOT "/whole/config.yaml", 1 << 20, err));
    assert_non_null(strstr(text.data, FIRST "/checkpoints/step-000003"));
    kg_str_release(&text);
}

/* ---- a first stage that is deleted ---- */

#define COPY ROOT "/copy"

/* Config of a second stage from a copy of the first, with two more assignments. */
static struct kg_config *from_copy(const char *dir, const char *a, const char *b)
{
    return config_with(
        dir, (const char *const[]){"model.path=", "init.from=" COPY, a, b, NULL});
}

static void train_from_copy(const char *dir, bool resume, const char *parts,
                            const char *steps)
{
    struct kg_config *config = from_copy(dir, parts, steps);

    NEED(kg_train_run(config, resume, false, err));
    kg_config_free(config);
}

static void copy_first(void)
{
    fresh(COPY);
    assert_int_equal(system("cp -r " FIRST " " COPY), 0);
}

/* Leaves the checkpoint of step 0 that a stop before the first step saves.
 */
static void stop_at_step_0(const char *dir, const char *parts)
{
    struct opened o;

    fresh(dir);
    o.config = from_copy(dir, parts, "train.steps=4");
    NEED(kg_init_pin(o.config, false, err));
    NEED(kg_run_open(&o.run, o.config, err));
    NEED(kg_run_dir_create(&o.run.in, &o.run.state, o.run.work.ahead.all, &o.run.log,
                           err));
    NEED(kg_run_dir_cut(&o.run.in, &o.run.state, o.run.work.ahead.all, &o.run.log, err));
    NEED(kg_run_start_rl(&o.run.in, &o.run.state, err));
    NEED(kg_init_rl(&o.run.in, &o.run.state, err));
    NEED(kg_checkpoint_save(&o.run, err));
    close_run(&o);
}

/* Once the second stage has a checkpoint of its own, at step 0 or later or in its SFT, it
 * resumes to the same bits without the first stage. */
static void the_first_stage_is_needed_at_the_start_alone(void **state)
{
    static const char all[] = "init.parts=[model, anchor, optimizer]",
                      warm[] = "sft.steps=2", four[] = "train.steps=4";

    (void)state;
    copy_first();
    fresh(ROOT "/there");
    fresh(ROOT "/gone");
    fresh(ROOT "/warm-there");
    fresh(ROOT "/warm-gone");
    train_from_copy(ROOT "/there", false, all, four);
    train_from_copy(ROOT "/gone", false, all, "train.steps=1");
    stop_at_step_0(ROOT "/gone-at-0", all);
    train_from_copy(ROOT "/warm-there", false, warm, four);
    train_from_copy(ROOT "/warm-gone", false, warm, "train.steps=0");
    NEED(kg_file_remove_tree(COPY, err));
    train_from_copy(ROOT "/gone", true, all, four);
    assert_same_steps(ROOT "/there", ROOT "/gone", 4);
    train_from_copy(ROOT "/gone-at-0", true, all, four);
    assert_same_steps(ROOT "/there", ROOT "/gone-at-0", 4);
    train_from_copy(ROOT "/warm-gone", true, warm, four);
    assert_same_steps(ROOT "/warm-there", ROOT "/warm-gone", 4);
    assert_true(kg_file_exists(ROOT "/gone/checkpoints/latest/model/token_ids.json"));
}

/* Without a checkpoint a resumed run starts from the first stage again, which must not
 * have changed. */
static void a_first_stage_that_changed_at_the_start_is_named(void **state)
{
    static const char all[] = "init.parts=[model, anchor, optimizer]",
                      two[] = "train.steps=2";
    struct kg_config *config;
    struct kg_err e = {0};
    struct kg_run run;

    (void)state;
    copy_first();
    fresh(ROOT "/begun");
    config = from_copy(ROOT "/begun", all, two);
    NEED(kg_init_pin(config, false, err));
    NEED(kg_run_open(&run, config, err));
    NEED(kg_run_dir_create(&run.in, &run.state, run.work.ahead.all, &run.log, err));
    kg_run_close(&run);
    assert_int_equal(system("echo >> " COPY "/checkpoints/latest/state.json"), 0);
    NEED(kg_manifest_write(COPY "/checkpoints/latest", err)); /* changed, but intact */
    assert_int_equal(kg_train_run(config, true, false, &e), KG_ECONFLICT);
    assert_non_null(strstr(e.message, "init.from/state.json: expected "));
    NEED(kg_file_remove_tree(COPY, err));
    assert_int_equal(kg_train_run(config, true, false, &e), KG_ENOTFOUND);
    assert_non_null(strstr(e.message, "init.from: expected a checkpoint or a run"));
    kg_config_free(config);
}

/* A flipped bit in the first stage's state must be found before the stage starts. */
static void a_damaged_first_stage_is_refused(void **state)
{
    static const char *const extra[] = {"model.path=", "init.from=" COPY, NULL};
    struct kg_config *config;
    struct kg_err e = {0};
    struct kg_run run;
    struct kg_str text = {0};

    (void)state;
    copy_first();
    read_in(&text, COPY "/checkpoints/latest", "state.safetensors");
    text.data[text.len - 2] ^= 1;
    NEED(kg_file_write_atomic(COPY "/checkpoints/latest/state.safetensors", text.data,
                              text.len, err));
    kg_str_release(&text);
    config = config_with(ROOT "/never", extra);
    assert_int_equal(kg_run_open(&run, config, &e), KG_EFORMAT);
    assert_non_null(strstr(e.message, "init.from: "));
    assert_non_null(strstr(e.message, "state.safetensors: damaged"));
    kg_run_close(&run);
    kg_config_free(config);
    NEED(kg_file_remove_tree(COPY, err));
}

/* ---- replay ---- */

static void replay_to_the_bit(struct kg_replay *r, const char *dir, int64_t step)
{
    NEED(kg_replay_run(r, dir, step, NULL, 0, err));
    assert_true(r->apart_max == 0);
}

/* After the first step the run holds what it learned in it. A replay of step 1 needs what
 * the step began with, the weights for the log-probs and the anchor for the KL, which
 * only the first stage still has. */
static void a_replay_takes_the_weights_that_the_step_had(void **state)
{
    static const char *const extra[] = {"model.path=",
                                        "init.from=" COPY,
                                        "init.parts=[model, anchor, optimizer]",
                                        "checkpoint.every=2",
                                        "train.updates_per_step=1",
                                        "train.steps=1",
                                        NULL};
    const char *more[sizeof extra / sizeof *extra];
    struct kg_replay r;
    struct kg_err e = {0};

    (void)state;
    copy_first();
    fresh(ROOT "/again");
    train_with(ROOT "/again", false, extra);
    replay_to_the_bit(&r, ROOT "/again", 1);
    assert_string_equal(r.checkpoint, "");
    assert_true(r.row[KG_REPLAY_KL].value > 0);
    assert_true(fabs(r.row[KG_REPLAY_LOSS].value -
                     last_metric(ROOT "/again", "loss/total")) < 1e-12);

    memcpy(more, extra, sizeof extra);
    more[5] = "train.steps=3";
    train_with(ROOT "/again", true, more);
    NEED(kg_file_remove_tree(ROOT "/again/checkpoints/step-000001", err));
    replay_to_the_bit(&r, ROOT "/again", 1);
    NEED(kg_file_remove_tree(COPY, err));
    replay_to_the_bit(&r, ROOT "/again", 3);
    assert_string_equal(r.checkpoint, "step-000002");
    assert_int_equal(kg_replay_run(&r, ROOT "/again", 1, NULL, 0, &e), KG_ENOTFOUND);
    assert_non_null(strstr(e.message, "init.from: expected a checkpoint or a run"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_default_the_model_alone_is_taken),
        cmocka_unit_test(every_part_is_taken_bit_for_bit),
        cmocka_unit_test(the_anchor_alone_goes_with_another_model),
        cmocka_unit_test(a_checkpoint_is_taken_as_it_is_named),
        cmocka_unit_test(a_stage_resumes_to_the_same_bits),
        cmocka_unit_test(with_steps_a_stage_is_a_resumed_run),
        cmocka_unit_test(stages_add_up),
        cmocka_unit_test(the_plan_says_where_it_starts),
        cmocka_unit_test(the_plan_tries_the_grader),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(a_schedule_free_run_is_named_as_one),
        cmocka_unit_test(a_first_stage_may_go_on),
        cmocka_unit_test(the_first_stage_is_needed_at_the_start_alone),
        cmocka_unit_test(a_first_stage_that_changed_at_the_start_is_named),
        cmocka_unit_test(a_damaged_first_stage_is_refused),
        cmocka_unit_test(a_replay_takes_the_weights_that_the_step_had),
    };

    return RUN_SHOWN(tests, train_first, NULL);
}
