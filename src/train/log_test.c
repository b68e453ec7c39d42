/* TensorBoard's events of a run are, to a reader, the lines of its metrics.jsonl: from
 * the start, after a resume that cut lines off, and where events were off or failed for a
 * while. A run does not end because events cannot be written. */
#include "train/rl_testing.h"

#include "data/jsonl.h"
#include "report/tfevents_testing.h"
#include "train/log.h"

#include <errno.h>
#include <unistd.h>

#define ROOT "build/test-runs/events"

static const char *const base[] = {
    "sft.steps=4",          "sft.batch=4",        "train.steps=5",
    "checkpoint.every=2",   "eval.every=1",       "kl.beta=0",
    "rollout.max_tokens=4", "eval.at_start=true", NULL};

static struct events found;

static void train(const char *dir, bool resume, const char *const *extra)
{
    const char *const *const lists[] = {rl_base, base, extra};
    struct kg_config *config = config_from(dir, lists, 3);

    NEED(kg_train_run(config, resume, false, err));
    kg_config_free(config);
}

/* The next scalar that is not void, or NULL. */
static const struct scalar *next_scalar(size_t *at)
{
    while (*at < found.n && found.scalar[*at].is_void)
        (*at)++;
    return *at < found.n ? &found.scalar[(*at)++] : NULL;
}

static void line_is_said(const struct kg_json_doc *line, size_t *at)
{
    static struct kg_metrics m;
    const char *phase;
    int64_t step;

    NEED(kg_metrics_parse(&m, &phase, &step, line, err));
    for (int i = 0; i < m.n; i++) {
        const struct scalar *s = next_scalar(at);

        assert_non_null(s);
        if (s->step != step || strcmp(s->name, m.row[i].name) != 0 ||
            s->value != (float)m.row[i].value)
            fail_msg("%s: expected %s %g of step %lld, found %s %g of step %lld",
                     line->where, m.row[i].name, m.row[i].value, (long long)step, s->name,
                     (double)s->value, (long long)s->step);
    }
}

/* The events of RUN, or of RUN/sft, must be the log's lines of that phase.   returns the
 * number of event files */
static int events_are_the_lines(const char *run, bool sft)
{
    struct kg_jsonl *log;
    struct kg_json_doc line = {0};
    char folder[256], path[256];
    size_t at = 0;
    bool more = true;
    int files;

    snprintf(folder, sizeof folder, "%s%s", run, sft ? "/sft" : "");
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    files = read_events(&found, folder);
    NEED(kg_jsonl_open(&log, path, err));
    for (;;) {
        NEED(kg_jsonl_next(log, &line, &more, err));
        if (!more)
            break;
        const char *phase = kg_json_text(kg_json_get(line.root, "phase"), NULL);

        if ((strcmp(phase, "sft") == 0) == sft)
            line_is_said(&line, &at);
    }
    assert_null(next_scalar(&at));
    kg_json_release(&line);
    kg_jsonl_close(log);
    return files;
}

/* Removes a checkpoint, as if the run had been killed before it was saved. */
static void forget(const char *run, const char *checkpoint)
{
    char path[256];

    snprintf(path, sizeof path, "%s/checkpoints/%s", run, checkpoint);
    NEED(kg_file_remove_tree(path, err));
}

static void events_are_the_lines_of_the_log(void **state)
{
    (void)state;
    fresh(ROOT "/whole");
    train(ROOT "/whole", false, NULL);
    assert_int_equal(events_are_the_lines(ROOT "/whole", true), 1);
    assert_int_equal(events_are_the_lines(ROOT "/whole", false), 1);
}

static void steps_that_a_resume_does_again_are_said_once(void **state)
{
    (void)state;
    fresh(ROOT "/again");
    train(ROOT "/again", false, NULL);
    forget(ROOT "/again", "step-000005");
    train(ROOT "/again", true, NULL); /* from step 4 */
    assert_int_equal(events_are_the_lines(ROOT "/again", false), 2);
    assert_int_equal(found.last_start, 4);
    assert_int_equal(events_are_the_lines(ROOT "/again", true), 1);
}

/* The checkpoint of step 0 is older than the validation at step 0, so a resume logs it
 * again. A run resumed for no steps must still void the events of lines that were cut
 * off. */
static void a_validation_behind_its_checkpoint_is_said_once(void **state)
{
    static const char *const two[] = {"train.steps=2", "checkpoint.keep=9", NULL};
    static const char *const none[] = {"train.steps=0", "eval.at_start=false",
                                       "checkpoint.keep=9", NULL};

    (void)state;
    fresh(ROOT "/first");
    train(ROOT "/first", false, two);
    forget(ROOT "/first", "step-000002");
    train(ROOT "/first", true, two);
    assert_int_equal(events_are_the_lines(ROOT "/first", false), 2);
    assert_int_equal(found.last_start, 0);
    forget(ROOT "/first", "step-000002");
    train(ROOT "/first", true, none);
    assert_int_equal(events_are_the_lines(ROOT "/first", false), 3);
    assert_true(found.n > 0);
}

static void a_resume_within_the_warm_start_is_said_once(void **state)
{
    static const char *const two[] = {"checkpoint.keep=9", NULL};

    (void)state;
    fresh(ROOT "/warm");
    train(ROOT "/warm", false, two);
    for (int i = 0; i <= 5; i++) {
        char name[32];

        snprintf(name, sizeof name, "step-%06d", i);
        forget(ROOT "/warm", name);
    }
    train(ROOT "/warm", true, two); /* from sft-000002 */
    assert_int_equal(events_are_the_lines(ROOT "/warm", true), 2);
    assert_int_equal(found.last_start, 2);
    assert_int_equal(events_are_the_lines(ROOT "/warm", false), 2);
}

static void switched_on_late_they_begin_with_what_the_log_has(void **state)
{
    static const char *const off[] = {"log.tensorboard=false", "train.steps=2", NULL};
    static const char *const on[] = {"train.steps=3", NULL};

    (void)state;
    fresh(ROOT "/late");
    train(ROOT "/late", false, off);
    assert_int_equal(read_events(&found, ROOT "/late"), 0);
    assert_false(kg_file_exists(ROOT "/late/sft"));
    train(ROOT "/late", true, on);
    assert_int_equal(events_are_the_lines(ROOT "/late", false), 1);
    assert_int_equal(events_are_the_lines(ROOT "/late", true), 1);
    train(ROOT "/late", true, on); /* SFT's events are complete */
    assert_int_equal(events_are_the_lines(ROOT "/late", true), 1);
}

static void what_was_logged_while_they_were_off_is_said_in_the_end(void **state)
{
    static const char *const begin[] = {"train.steps=2", NULL};
    static const char *const off[] = {"log.tensorboard=false", NULL};
    static const char *const on[] = {"train.steps=6", NULL};

    (void)state;
    fresh(ROOT "/gap");
    train(ROOT "/gap", false, begin);
    train(ROOT "/gap", true, off);
    assert_int_equal(read_events(&found, ROOT "/gap"), 1);
    train(ROOT "/gap", true, on);
    assert_int_equal(events_are_the_lines(ROOT "/gap", false), 2);
    assert_int_equal(found.last_start, 2); /* no earlier than needed */
    assert_int_equal(events_are_the_lines(ROOT "/gap", true), 1);
}

/* Cuts the one event file of a folder in half, as a full disk would. */
static void lose_half(const char *folder)
{
    struct kg_str file = {0};
    char **names, path[256] = "";
    size_t n;

    NEED(kg_file_list(&names, &n, folder, err));
    for (size_t i = 0; i < n; i++)
        if (strstr(names[i], "tfevents"))
            snprintf(path, sizeof path, "%s/%s", folder, names[i]);
    kg_file_names_free(names, n);
    NEED(kg_file_read(&file, path, 1 << 26, err));
    NEED(kg_file_write_atomic(path, file.data, file.len / 2, err));
    kg_str_release(&file);
}

static void what_they_lack_since_they_failed_is_said_by_a_resume(void **state)
{
    static const char *const more[] = {"train.steps=6", NULL};

    (void)state;
    fresh(ROOT "/failed");
    train(ROOT "/failed", false, NULL);
    lose_half(ROOT "/failed");
    lose_half(ROOT "/failed/sft");
    train(ROOT "/failed", true, more);
    assert_int_equal(events_are_the_lines(ROOT "/failed", false), 2);
    assert_int_equal(found.torn, 1);
    assert_in_range(found.last_start, 1, 4);
    assert_int_equal(events_are_the_lines(ROOT "/failed", true), 2);
    assert_in_range(found.last_start, 1, 3);
}

/* A file has the name of the events' folder. */
static void a_run_goes_on_without_them(void **state)
{
    struct opened o;
    struct kg_metrics m = {.n = 0};

    (void)state;
    open_run(&o, ROOT "/without", NULL);
    NEED(kg_file_write_atomic(ROOT "/without/sft", "", 0, err));
    kg_metrics_put(&m, "loss", 1);
    NEED(kg_run_log_put(&o.run.log, &m, "sft", 1, err));
    assert_true(o.run.log.events_off);
    NEED(kg_run_log_put(&o.run.log, &m, "rl", 1, err));
    assert_true(last_metric(ROOT "/without", "loss") == 1);
    close_run(&o);
    assert_int_equal(read_events(&found, ROOT "/without"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_the_lines_of_the_log),
        cmocka_unit_test(steps_that_a_resume_does_again_are_said_once),
        cmocka_unit_test(a_validation_behind_its_checkpoint_is_said_once),
        cmocka_unit_test(a_resume_within_the_warm_start_is_said_once),
        cmocka_unit_test(switched_on_late_they_begin_with_what_the_log_has),
        cmocka_unit_test(what_was_logged_while_they_were_off_is_said_in_the_end),
        cmocka_unit_test(what_they_lack_since_they_failed_is_said_by_a_resume),
        cmocka_unit_test(a_run_goes_on_without_them),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
