/* TensorBoard's event files, read by the tests' own reader: framing, checksums, values,
 * names in order, what a START discards, and writes that fail. */
#include "report/tfevents.h"

#include "base/clock.h"
#include "base/folder_testing.h"
#include "report/tfevents_testing.h"

#include <errno.h>
#include <math.h>

#define OK(expr) assert_int_equal(expr, KG_OK)

static struct events found;

static void put_step(struct kg_tfevents *t, int64_t step)
{
    struct kg_metrics m = {.n = 0};

    kg_metrics_put(&m, "reward/mean", 0.1 * (double)step);
    kg_metrics_put(&m, "a", -1.5);
    OK(kg_tfevents_put(t, &m, step, &err));
}

static void write_file(int64_t from, int64_t first, int64_t last)
{
    struct kg_tfevents t = {0};

    OK(kg_tfevents_open(&t, dir, from, &err));
    for (int64_t step = first; step <= last; step++)
        put_step(&t, step);
    OK(kg_tfevents_close(&t, &err));
}

static void a_file_holds_its_version_a_start_and_the_numbers(void **state)
{
    (void)state;
    write_file(0, 1, 2);
    assert_int_equal(read_events(&found, dir), 1);
    assert_int_equal(found.versions, 1);
    assert_int_equal(found.torn, 0);
    assert_int_equal(found.starts, 1);
    assert_true(fabs(found.wall_time - kg_clock_unix_seconds()) < 60);
    assert_int_equal(found.n, 4);
    for (size_t i = 0; i < 4; i++) {
        const struct scalar *s = &found.scalar[i];

        assert_int_equal(s->step, 1 + i / 2);
        assert_string_equal(s->name, i % 2 ? "a" : "reward/mean");
        assert_true(s->value == (i % 2 ? -1.5f : (float)(0.1 * (double)s->step)));
        assert_false(s->is_void);
    }
}

static void what_is_not_finite_stays_so_and_steps_may_be_large(void **state)
{
    static const double values[] = {NAN, INFINITY, -INFINITY, 1e300, 5e-324};
    struct kg_tfevents t = {0};
    struct kg_metrics m = {.n = 0};

    (void)state;
    for (int i = 0; i < 5; i++)
        kg_metrics_put(&m, (const char *[]){"a", "b", "c", "d", "e"}[i], values[i]);
    OK(kg_tfevents_open(&t, dir, 0, &err));
    OK(kg_tfevents_put(&t, &m, INT64_MAX, &err));
    OK(kg_tfevents_close(&t, &err));
    read_events(&found, dir);
    assert_int_equal(found.n, 5);
    assert_true(found.scalar[0].step == INT64_MAX);
    assert_true(isnan(found.scalar[0].value));
    for (int i = 1; i < 5; i++)
        assert_true(found.scalar[i].value == (float)values[i]);
}

static void a_step_with_every_metric_fits(void **state)
{
    struct kg_tfevents t = {0};
    static struct kg_metrics m;
    char name[KG_METRIC_NAME];

    (void)state;
    for (int i = 0; i < KG_METRICS_MAX; i++) {
        snprintf(name, sizeof name, "%060d", i);
        kg_metrics_put(&m, name, i);
    }
    OK(kg_tfevents_open(&t, dir, 0, &err));
    OK(kg_tfevents_put(&t, &m, 7, &err));
    OK(kg_tfevents_close(&t, &err));
    read_events(&found, dir);
    assert_int_equal(found.n, KG_METRICS_MAX);
    for (size_t i = 0; i < found.n; i++)
        assert_true(found.scalar[i].value == (float)i);
}

/* The order holds for files that begin within one second, and after files that a wrong
 * clock dated in the future. */
static void files_are_read_in_the_order_they_were_begun(void **state)
{
    static const int64_t alive[] = {1, 2, 3, 4, 5, 6};
    size_t n = 0;

    (void)state;
    put("events.out.tfevents.9999999998.other", "");
    put("events.out.tfevents.9999999999.kedge.0009", "");
    write_file(0, 1, 4);
    write_file(3, 3, 9);
    write_file(5, 5, 6);
    assert_int_equal(read_events(&found, dir), 5);
    assert_int_equal(found.starts, 3);
    assert_true(kg_file_exists(in_dir("events.out.tfevents.9999999999.kedge.0010")));
    assert_true(kg_file_exists(in_dir("events.out.tfevents.9999999999.kedge.0012")));
    for (size_t i = 0; i < found.n; i += 2)
        if (!found.scalar[i].is_void)
            assert_int_equal(found.scalar[i].step, alive[n++]);
    assert_int_equal(n, 6);
}

static int64_t last_step(void)
{
    int64_t step;

    OK(kg_tfevents_last_step(&step, dir, &err));
    return step;
}

static void says_how_far_the_events_of_a_folder_go(void **state)
{
    struct kg_str file = {0};
    int64_t step;

    (void)state;
    OK(kg_tfevents_last_step(&step, in_dir("absent"), &err));
    assert_int_equal(step, -1);
    put("tfevents", "");
    assert_int_equal(last_step(), -1);
    put("events.out.tfevents.0000000001.other", "what another program says");
    assert_int_equal(last_step(), 0);
    write_file(0, 1, 300);
    assert_int_equal(last_step(), 300);
    write_file(7, 1, 0); /* only a start */
    assert_int_equal(last_step(), 7);
    put("events.out.tfevents.9999999999.kedge.0000", "");
    assert_int_equal(last_step(), 0);
    write_file(0, 5, 20000);
    assert_int_equal(last_step(), 20000);
    OK(kg_file_read(&file, in_dir("events.out.tfevents.9999999999.kedge.0001"), 1 << 26,
                    &err));
    OK(kg_file_write_atomic(in_dir("events.out.tfevents.9999999999.kedge.0002"),
                            file.data, file.len - 1, &err));
    assert_int_equal(last_step(), 19999);
    file.data[file.len / 2] ^= 1;
    OK(kg_file_write_atomic(in_dir("events.out.tfevents.9999999999.kedge.0003"),
                            file.data, file.len, &err));
    assert_in_range(last_step(), 5000, 15000);
    kg_str_release(&file);
}

/* Whatever fails: a status, no leak, and what was written before stays readable. */
static void survives_what_fails(void **state)
{
    int failed = 0;

    (void)state;
    for (uint64_t n = 1; n < 40; n++) {
        struct kg_tfevents t = {0};
        struct kg_metrics m = {.n = 0};
        kg_status status;

        kg_metrics_put(&m, "a", 1);
        if (n % 2)
            kg_mem_fail_at(1 + n / 2);
        else
            kg_file_fail_at(n / 2, ENOSPC);
        status = kg_tfevents_open(&t, dir, 0, &err);
        if (status == KG_OK)
            status = kg_tfevents_put(&t, &m, 1, &err);
        kg_mem_fail_at(0);
        kg_file_fail_at(0, 0);
        failed += status != KG_OK;
        if (status != KG_OK)
            assert_int_equal(status, n % 2 ? KG_ENOMEM : KG_ENOSPACE);
        if (t.open)
            kg_tfevents_abort(&t);
        read_events(&found, dir);
    }
    assert_true(failed > 15);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_file_holds_its_version_a_start_and_the_numbers),
        TEST(what_is_not_finite_stays_so_and_steps_may_be_large),
        TEST(a_step_with_every_metric_fits),
        TEST(files_are_read_in_the_order_they_were_begun),
        TEST(says_how_far_the_events_of_a_folder_go),
        TEST(survives_what_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
