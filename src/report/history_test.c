/* What is kept of metrics.jsonl: every number of a short log; extremes, sums and gaps of
 * a long one; the same whether it is read at once or while it grows. */
#include "report/history.h"

#include "base/folder_testing.h"

#include <math.h>

#define OK(expr)                                                                         \
    do {                                                                                 \
        if ((expr) != KG_OK)                                                             \
            fail_msg("%s", err.message);                                                 \
    } while (0)

#define LONG "a name that is longer than any metric's, by far too many bytes"

static struct kg_history history, other;

static void read_text(struct kg_history *h, const char *text)
{
    put("metrics.jsonl", text);
    OK(kg_history_read(h, in_dir("metrics.jsonl"), &err));
}

static int begin(void **state)
{
    kg_history_init(&history);
    kg_history_init(&other);
    return make_dir(state);
}

static int end(void **state)
{
    kg_history_release(&history);
    kg_history_release(&other);
    return remove_dir(state);
}

static const struct kg_series *series(const char *phase, const char *name)
{
    const struct kg_series *s = kg_history_find(&history, phase, name);

    assert_non_null(s);
    return s;
}

static void a_short_log_is_kept_number_by_number(void **state)
{
    const struct kg_series *s;

    (void)state;
    read_text(&history, "{\"phase\": \"sft\", \"step\": 1, \"loss\": 3}\n"
                        "{\"phase\": \"rl\", \"step\": 1, \"reward/mean\": 0.5, "
                        "\"reward/mean_stderr\": 0.125, \"mine\": 7}\n"
                        "{\"phase\": \"validation\", \"step\": 1, \"val/reward\": 0.25}\n"
                        "{\"phase\": \"rl\", \"step\": 2, \"reward/mean\": 0.75, "
                        "\"reward/mean_stderr\": 0.25}\n");
    assert_int_equal(history.lines, 4);
    assert_int_equal(kg_history_phase(&history, "rl")->lines, 2);
    assert_int_equal(kg_history_phase(&history, "rl")->last_step, 2);
    assert_null(kg_history_phase(&history, "test"));
    assert_null(kg_history_find(&history, "sft", "reward/mean"));
    s = series("rl", "reward/mean");
    assert_string_equal(s->row->name, "reward/mean");
    assert_true(s->n == 2 && s->n_points == 2);
    assert_true(s->first == 0.5 && s->last == 0.75 && s->sum == 1.25);
    assert_true(s->first_error == 0.125 && s->last_error == 0.25);
    assert_true(s->points[1].below == 0.5 && s->points[1].above == 1);
    assert_true(s->points[1].low == 0.75 && s->points[1].high == 0.75);
    assert_null(series("rl", "mine")->row);
    assert_true(series("rl", "mine")->n_points == 1);
    assert_true(isnan(series("rl", "mine")->last_error));
    assert_true(series("validation", "val/reward")->last == 0.25);
}

static void what_is_no_finite_number_is_a_gap(void **state)
{
    const struct kg_series *s;

    (void)state;
    read_text(&history, "{\"phase\":\"rl\",\"step\":1,\"kl/value\":1,\"kl/max\":1}\n"
                        "{\"phase\":\"rl\",\"step\":2,\"kl/value\":\"nan\"}\n"
                        "{\"phase\":\"rl\",\"step\":3,\"kl/value\":null}\n"
                        "{\"phase\":\"rl\",\"step\":4,\"kl/value\":\"-inf\"}\n"
                        "{\"phase\":\"rl\",\"step\":5}\n"
                        "{\"phase\":\"rl\",\"step\":6,\"kl/value\":-2}\n");
    s = series("rl", "kl/value");
    assert_int_equal(s->n_points, 6);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(s->points[i].n, i == 0 || i == 5);
    assert_int_equal(s->n, 2);
    assert_int_equal(s->not_finite, 3);
    assert_true(s->low == -2 && s->high == 1 && s->last == -2 && s->last_step == 6);
    assert_int_equal(series("rl", "kl/max")->n_points, 1);
}

/* Noise with one spike, and a metric that only every third line has. */
static void put_long(struct kg_str *log, int lines)
{
    for (int i = 1; i <= lines; i++) {
        double x = i == 7001 ? 1000 : (i * 37 % 101) / 100.0;

        OK(kg_str_printf(log, &err, "{\"phase\": \"rl\", \"step\": %d, \"kl/value\": %g",
                         i, x));
        if (i % 3 == 0)
            OK(kg_str_printf(log, &err, ", \"kl/max\": %d", i));
        OK(kg_str_puts(log, "}\n", &err));
    }
}

static void a_long_log_keeps_extremes_sums_and_order(void **state)
{
    struct kg_str log = {0};
    const struct kg_history_phase *p;
    const struct kg_series *s;
    uint32_t n = 0, spikes = 0;
    double sum = 0;

    (void)state;
    put_long(&log, 9999);
    read_text(&history, log.data);
    kg_str_release(&log);
    p = kg_history_phase(&history, "rl");
    s = series("rl", "kl/value");
    assert_int_equal(p->width, 8);
    assert_int_equal(p->n_ticks, 1250);
    for (size_t i = 0; i < p->n_ticks; i++) {
        assert_int_equal(p->ticks[i].first_step, 8 * i + 1);
        assert_int_equal(p->ticks[i].last_step, i == 1249 ? 9999 : 8 * i + 8);
        n += s->points[i].n;
        sum += s->points[i].sum;
        spikes += s->points[i].high == 1000;
        assert_true(s->points[i].low <= 1);
    }
    assert_int_equal(n, 9999);
    assert_int_equal(spikes, 1);
    assert_true(fabs(sum - s->sum) < 1e-6);
    assert_true(s->high == 1000 && s->low == 0);
    assert_int_equal(series("rl", "kl/max")->n, 3333);
    assert_true(series("rl", "kl/max")->points[10].low == 81);
    assert_true(series("rl", "kl/max")->points[10].high == 87);
}

static void assert_same_series(const struct kg_series *a, const struct kg_series *b)
{
    assert_non_null(b);
    assert_true(a->n == b->n && a->sum == b->sum && a->last == b->last);
    assert_int_equal(a->n_points, b->n_points);
    for (size_t i = 0; i < a->n_points; i++) {
        const struct kg_history_point *p = &a->points[i], *q = &b->points[i];

        assert_true(p->n == q->n && p->sum == q->sum && p->low == q->low);
        assert_true(p->high == q->high && p->below == q->below && p->above == q->above);
    }
}

static void reading_on_is_reading_at_once(void **state)
{
    struct kg_str log = {0};
    size_t parts[] = {0, 10, 60000, 60001, 200000, 0};

    (void)state;
    put_long(&log, 9999);
    read_text(&other, log.data);
    parts[5] = log.len;
    for (size_t i = 0; i < 6; i++) {
        put("growing", "");
        OK(kg_file_write_atomic(in_dir("growing"), log.data, parts[i], &err));
        OK(kg_history_read(&history, in_dir("growing"), &err));
        assert_true(history.offset <= parts[i] && history.offset + 200 > parts[i]);
    }
    kg_str_release(&log);
    assert_same_series(kg_history_find(&other, "rl", "kl/value"),
                       kg_history_find(&history, "rl", "kl/value"));
    assert_same_series(kg_history_find(&other, "rl", "kl/max"),
                       kg_history_find(&history, "rl", "kl/max"));
}

static void left_out(const char *text, int64_t line, const char *part)
{
    kg_history_release(&history);
    read_text(&history, text);
    assert_int_equal(history.unreadable, 1);
    assert_int_equal(history.first_unreadable, line);
    if (!strstr(history.why.message, part))
        fail_msg("expected %s in: %s", part, history.why.message);
}

static void a_line_that_cannot_be_read_is_counted_and_left_out(void **state)
{
    (void)state;
    left_out("{\"phase\": \"rl\", \"step\": 1, \"a\": 1}\nx\n"
             "{\"phase\": \"rl\", \"step\": 3, \"a\": 3}\n",
             2, "metrics.jsonl line 2");
    assert_int_equal(history.lines, 3);
    assert_int_equal(kg_history_phase(&history, "rl")->lines, 2);
    assert_true(series("rl", "a")->n == 2 && series("rl", "a")->last == 3);
    left_out("{\"phase\": \"test\", \"step\": 1}\n", 1, "found 'test'");
    left_out("{\"step\": 1}\n", 1, "phase");
    left_out("{\"phase\": \"rl\"}\n", 1, "step");
    left_out("{\"phase\": \"rl\", \"step\": 1, \"" LONG LONG LONG "\": 1}\n", 1,
             "names of at most 143");
    kg_history_release(&history);
    read_text(&history, "x\n\n{}\n");
    assert_true(history.unreadable == 3 && history.first_unreadable == 1);
    assert_non_null(strstr(history.why.message, "metrics.jsonl line 3"));
    assert_int_equal(kg_history_read(&history, in_dir("absent"), &err), KG_ENOTFOUND);
}

/* A run with very many data sources, a few of them in each line. */
static void metrics_beyond_the_most_are_counted_and_left_out(void **state)
{
    enum { LINES = 30, IN_A_LINE = 100, ALL = LINES * IN_A_LINE };
    struct kg_str log = {0};

    (void)state;
    for (int line = 0; line < LINES; line++) {
        OK(kg_str_printf(&log, &err, "{\"phase\": \"rl\", \"step\": %d", line));
        for (int i = line * IN_A_LINE; i < (line + 1) * IN_A_LINE; i++)
            OK(kg_str_printf(&log, &err, ", \"reward/source/%d\": %d", i, i));
        OK(kg_str_printf(&log, &err, ", \"loss\": %d}\n", line));
    }
    read_text(&history, log.data);
    kg_str_release(&log);
    assert_int_equal(kg_history_phase(&history, "rl")->n_series, KG_HISTORY_SERIES);
    assert_int_equal(kg_history_phase(&history, "rl")->beyond,
                     ALL + 1 - KG_HISTORY_SERIES);
    assert_int_equal(series("rl", "loss")->n, LINES);
    assert_int_equal(series("rl", "loss")->last, LINES - 1);
    assert_int_equal(series("rl", "reward/source/2046")->last, 2046);
    assert_null(kg_history_find(&history, "rl", "reward/source/2047"));
}

static void survives_allocations_that_fail(void **state)
{
    int failed = 0;

    (void)state;
    put("metrics.jsonl", "{\"phase\": \"rl\", \"step\": 1, \"a\": 1, \"b\": 2}\n"
                         "{\"phase\": \"rl\", \"step\": 2, \"c\": 1, \"d\": 2}\n");
    for (uint64_t n = 1; n < 30; n++) {
        kg_status status;

        kg_mem_fail_at(n);
        status = kg_history_read(&history, in_dir("metrics.jsonl"), &err);
        kg_mem_fail_at(0);
        failed += status != KG_OK;
        assert_true(status == KG_OK || status == KG_ENOMEM);
        kg_history_release(&history);
        assert_int_equal(kg_mem_current_bytes(), 0);
    }
    assert_true(failed > 5);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_short_log_is_kept_number_by_number),
        TEST(what_is_no_finite_number_is_a_gap),
        TEST(a_long_log_keeps_extremes_sums_and_order),
        TEST(reading_on_is_reading_at_once),
        TEST(a_line_that_cannot_be_read_is_counted_and_left_out),
        TEST(metrics_beyond_the_most_are_counted_and_left_out),
        TEST(survives_allocations_that_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
