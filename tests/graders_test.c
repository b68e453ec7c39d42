/* What user-supplied graders return besides the reward, in whole runs: in metrics, dumps,
 * validation and after a resume; and grader options that are refused because no program
 * runs. */
#define ROOT "build/test-runs/graders"
#include "run_testing.h"

#include "data/jsonl.h"

#include <math.h>

enum { MOST = 32 };

/* Two graders that keep running. `count` returns the key "one" for completions with a 1
 * and the key "other" for the rest; `all` scores every completion 1 and returns nothing
 * else. */
static const char *const extra[] = {"task.name=external",
                                    "task.rewards=[count=external sed -u -n -E -f " ROOT
                                    "/count.sed, all=external sed -u -f " ROOT
                                    "/all.sed]",
                                    "task.reward_weights=[1, 0.5]",
                                    "eval.every=2",
                                    "eval.at_start=true",
                                    "log.validation=true",
                                    NULL};

static const char count_sed[] =
    "/\"response\":\"[^\"]*1/{\n"
    "s/.*/{\"score\": 0.5, \"one\": true, \"what\": \"text\"}/p\nd\n}\n"
    "s/.*/{\"score\": 0.25, \"other\": 3}/p\n";

static int write_graders(void **state)
{
    static const char all[] = "s/.*/{\"score\": 1}/\n";

    (void)state;
    NEED(kg_file_make_dirs(ROOT, err));
    NEED(kg_file_write_atomic(ROOT "/count.sed", count_sed, strlen(count_sed), err));
    NEED(kg_file_write_atomic(ROOT "/all.sed", all, strlen(all), err));
    return 0;
}

static struct kg_str dump_of(const char *dir, const char *name)
{
    struct kg_str text = {0};
    char path[256];

    snprintf(path, sizeof path, "%s/rollouts/%s.jsonl.zst", dir, name);
    NEED(kg_zst_read(&text, path, 1 << 24, err));
    return text;
}

/* Sums over the lines of a dump. */
struct sums {
    double lines, count, one, other;
};

static void check_line(struct sums *s, const struct kg_json *line)
{
    const struct kg_json *said = kg_json_get(line, "further"),
                         *rewards = kg_json_get(line, "rewards"),
                         *one = kg_json_get(said, "count/one"),
                         *other = kg_json_get(said, "count/other");

    assert_int_equal(kg_json_size(said), 2); /* one schema over all lines */
    assert_string_equal(kg_json_key_at(said, 0), "count/one");
    assert_int_equal(kg_json_size(rewards), 2);
    assert_true(kg_json_is_number(one) != kg_json_is_number(other));
    s->lines++;
    s->count += kg_json_real(kg_json_get(rewards, "count"), NAN);
    s->one += kg_json_is_number(one);
    s->other += kg_json_is_number(other);
    if (kg_json_is_number(other))
        assert_true(kg_json_real(other, 0) == 3);
}

static struct sums read_dump(const char *dir, const char *name)
{
    struct kg_str text = dump_of(dir, name);
    struct sums s = {0};

    for (const char *p = text.data; *p; p += strcspn(p, "\n") + 1) {
        struct kg_json_doc doc;

        NEED(kg_json_parse(&doc, p, strcspn(p, "\n"), name, err));
        check_line(&s, doc.root);
        kg_json_release(&doc);
    }
    kg_str_release(&text);
    return s;
}

static double metric(const char *dir, const char *name, int which)
{
    double values[MOST];
    int n = metrics_of(values, MOST, dir, name);

    if (which >= n)
        fail_msg("%s: expected %s of line %d, found %d", dir, name, which, n);
    return values[which];
}

static void what_graders_say_becomes_metrics_and_is_dumped(void **state)
{
    struct sums s, val;

    (void)state;
    fresh(ROOT "/whole");
    must_train(ROOT "/whole", false, extra);
    s = read_dump(ROOT "/whole", "step-000001");
    assert_true(s.lines == 16 && s.one > 0 && s.other > 0);
    assert_true(metric(ROOT "/whole", "reward/further/count/one", 0) == 1);
    assert_true(metric(ROOT "/whole", "reward/further/count/other", 0) == 3);
    assert_true(metric(ROOT "/whole", "reward/part/count", 0) == s.count / 16);
    val = read_dump(ROOT "/whole", "val-000000");
    assert_true(val.lines == 5);
    assert_true(metric(ROOT "/whole", "val/reward/part/count", 0) == val.count / 5);
    assert_true(metric(ROOT "/whole", "val/reward/part/all", 2) == 1);
    assert_true(metric(ROOT "/whole", "val/reward/part_ungraded/all", 0) == 0);
    assert_true(metric(ROOT "/whole", "val/reward", 0) == val.count / 5 + 0.5);
    assert_true(metric(ROOT "/whole", "val/reward/further/count/one", 0) == 1);
}

/* These metrics are compared with the uninterrupted run's; metrics of a grader's process,
 * such as grader/starts, are not. */
static void a_resumed_run_says_the_same(void **state)
{
    const char *half[sizeof extra / sizeof *extra + 1];
    size_t n = 0;

    (void)state;
    for (; extra[n]; n++)
        half[n] = extra[n];
    half[n++] = "train.steps=2";
    half[n] = NULL;
    assert_false(is_measured("reward/further/count/one"));
    assert_true(is_measured("grader/starts"));
    fresh(ROOT "/resumed");
    must_train(ROOT "/resumed", false, half);
    must_train(ROOT "/resumed", true, extra);
    assert_same_log(ROOT "/whole", ROOT "/resumed");
    for (int i = 1; i <= 4; i++) {
        char name[64];

        snprintf(name, sizeof name, "rollouts/step-%06d.jsonl.zst", i);
        assert_same_file(ROOT "/whole", ROOT "/resumed", name);
    }
    assert_same_file(ROOT "/whole", ROOT "/resumed", "rollouts/val-000004.jsonl.zst");
}

/* An option that has no effect is refused by its key. */
static void options_of_a_program_need_one(void **state)
{
    static const char *const options[][2] = {{"task.command=true", "task.command"},
                                             {"task.life=run", "task.life"},
                                             {"task.env=HOME", "task.env"},
                                             {"task.timeout_ms=5", "task.timeout_ms"}};

    (void)state;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const char *plain[] = {options[i][0], "train.steps=1", NULL};
        const char *parts[] = {options[i][0], "task.rewards=[a=digits, b=none]",
                               "train.steps=1", NULL};
        const char *const *both[] = {plain, parts};

        for (int k = 0; k < 2; k++) {
            struct kg_err err = {0};

            fresh(ROOT "/idle");
            assert_int_equal(train(ROOT "/idle", false, both[k], &err), KG_EINVAL);
            if (strncmp(err.message, options[i][1], strlen(options[i][1])) != 0)
                fail_msg("expected %s, found: %s", options[i][1], err.message);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_graders_say_becomes_metrics_and_is_dumped),
        cmocka_unit_test(a_resumed_run_says_the_same),
        cmocka_unit_test(options_of_a_program_need_one),
    };

    return cmocka_run_group_tests_name("graders", tests, write_graders, NULL);
}
