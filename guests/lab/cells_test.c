/* Rows become cells: what is averaged, what is paired, and what is refused. */
#include "lab/cells.h"
#include "report/report_plot.h"

#include "base/file.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char path[] = "/tmp/kedge-cells-XXXXXX";
static struct kg_err err;
static const char *const files[] = {path};
static const char *const metrics[] = {"x", "y"};

static struct kg_cells_opts plain(void)
{
    return (struct kg_cells_opts){.files = files,
                                  .n_files = 1,
                                  .by = "cell",
                                  .pair = "seed",
                                  .match = "",
                                  .metric = metrics,
                                  .n_metrics = 2};
}

static const char three[] =
    "{\"cell\": \"b/one\", \"seed\": 2, \"x\": 1, \"y\": 5}\n"
    "{\"cell\": \"b/one\", \"seed\": 1, \"x\": 3, \"y\": 5}\n"
    "{\"cell\": \"b/two\", \"seed\": 1, \"x\": 13, \"y\": 5}\n"
    "{\"cell\": \"b/two\", \"seed\": 2, \"x\": 11, \"y\": 5}\n"
    "{\"cell\": \"a\", \"seed\": 2, \"x\": 1, \"y\": 4, \"more\": [1]}\n"
    "{\"cell\": \"a\", \"seed\": 1, \"x\": 2, \"y\": 4}\n";

static void put(const char *text)
{
    assert_int_equal(kg_file_write_atomic(path, text, strlen(text), &err), KG_OK);
}

static int setup(void **state)
{
    int fd = mkstemp(path);

    (void)state;
    return fd < 0 || close(fd);
}

static int teardown(void **state)
{
    (void)state;
    return unlink(path);
}

static void read_cells(struct kg_cells *c, const struct kg_cells_opts *opts)
{
    if (kg_cells_read(c, opts, &err) != KG_OK)
        fail_msg("%s", err.message);
}

static void cells_are_means_in_order_of_first_mention(void **state)
{
    struct kg_cells_opts opts = plain();
    struct kg_str table = {0};
    struct kg_cells c;

    (void)state;
    put(three);
    read_cells(&c, &opts);
    assert_int_equal(c.n, 3);
    assert_string_equal(c.cell[0].name, "b/one");
    assert_string_equal(c.cell[2].name, "a");
    assert_true(c.cell[0].of[0].value == 2 && c.cell[1].of[0].value == 12);
    assert_true(c.cell[0].of[0].low == 1 && c.cell[0].of[0].high == 3);
    assert_true(c.cell[2].of[1].low == 4 && c.cell[2].of[1].high == 4);
    assert_int_equal(kg_cells_table(&table, &c, &opts, &err), KG_OK);
    assert_string_equal(table.data, "| cell | rows | x | y |\n|---|---|---|---|\n"
                                    "| `b/one` | 2 | 2 [1, 3] | 5 [5, 5] |\n"
                                    "| `b/two` | 2 | 12 [11, 13] | 5 [5, 5] |\n"
                                    "| `a` | 2 | 1.5 [1, 2] | 4 [4, 4] |\n");
    kg_str_release(&table);
    kg_cells_release(&c);
    opts.match = "b/";
    read_cells(&c, &opts);
    assert_int_equal(c.n, 2);
    kg_cells_release(&c);
}

/* A grid that is half done: incomplete cells are left out of the table, and counted. */
static void cells_that_are_not_whole_are_left_out_and_counted(void **state)
{
    struct kg_cells_opts opts = plain();
    struct kg_str table = {0};
    struct kg_cells c;

    (void)state;
    put("{\"cell\": \"a\", \"seed\": 1, \"x\": 1, \"y\": 4}\n"
        "{\"cell\": \"b\", \"seed\": 1, \"x\": 1, \"y\": 4}\n"
        "{\"cell\": \"b\", \"seed\": 2, \"x\": 1, \"y\": 4}\n");
    opts.at_least = 2;
    read_cells(&c, &opts);
    assert_int_equal(c.n, 1);
    assert_string_equal(c.cell[0].name, "b");
    assert_int_equal(c.left_out, 1);
    assert_int_equal(kg_cells_table(&table, &c, &opts, &err), KG_OK);
    assert_non_null(strstr(table.data, "\n1 cell with fewer than 2 rows is left out.\n"));
    kg_str_clear(&table);
    assert_int_equal(kg_cells_json(&table, &c, &opts, &err), KG_OK);
    assert_non_null(strstr(table.data, ", \"left_out\": 1}\n"));
    kg_str_release(&table);
    kg_cells_release(&c);
}

/* The two seeds of b/two are 10 above those of b/one, and those of a are 0 and 1 below
 * them, whatever their order in the file. */
static void differences_are_paired_by_seed(void **state)
{
    struct kg_cells_opts opts = plain();
    struct kg_str text = {0};
    struct kg_cells c;

    (void)state;
    put(three);
    opts.against = "b/one";
    read_cells(&c, &opts);
    assert_int_equal(c.n, 2);
    assert_true(c.cell[0].of[0].low == 10 && c.cell[0].of[0].high == 10);
    assert_true(c.cell[0].holm[0] == 2.0 / KG_EVAL_RESAMPLES);
    assert_true(c.cell[1].of[0].low == -1 && c.cell[1].of[0].high == 0);
    assert_int_equal(kg_cells_table(&text, &c, &opts, &err), KG_OK);
    assert_non_null(
        strstr(text.data, "| `b/two` | 2 | **10** [10, 10] | 0.0002 | 0 [0, 0] | 1 |"));
    assert_non_null(strstr(text.data, "| `a` | 2 | -0.5 [-1, 0] |"));
    kg_str_clear(&text);
    assert_int_equal(kg_cells_json(&text, &c, &opts, &err), KG_OK);
    assert_non_null(
        strstr(text.data, "{\"cell\": \"b/two\", \"rows\": 2, \"x\": {\"value\": 10.0"));
    kg_str_release(&text);
    kg_cells_release(&c);
}

/* 0.3 - 0.1 is not exactly 0.2: the rounding error that is left when three differences
 * cancel is shown as 0. */
static void what_rounding_leaves_is_shown_as_0(void **state)
{
    struct kg_cells_opts opts = plain();
    struct kg_str table = {0};
    struct kg_cells c;

    (void)state;
    put("{\"cell\": \"a\", \"seed\": 1, \"x\": 0.3, \"y\": 1}\n"
        "{\"cell\": \"a\", \"seed\": 2, \"x\": 0.1, \"y\": 1}\n"
        "{\"cell\": \"a\", \"seed\": 3, \"x\": 0.1, \"y\": 1}\n"
        "{\"cell\": \"b\", \"seed\": 1, \"x\": 0.1, \"y\": 1}\n"
        "{\"cell\": \"b\", \"seed\": 2, \"x\": 0.2, \"y\": 1}\n"
        "{\"cell\": \"b\", \"seed\": 3, \"x\": 0.2, \"y\": 1}\n");
    opts.against = "b";
    read_cells(&c, &opts);
    assert_true(c.cell[0].of[0].value != 0);
    assert_int_equal(kg_cells_table(&table, &c, &opts, &err), KG_OK);
    assert_non_null(strstr(table.data, "| 3 | 0 [-0.1, 0.2] |"));
    kg_str_release(&table);
    kg_cells_release(&c);
}

/* p is adjusted over the chosen pairs of cells only. */
static void chosen_differences_are_a_family(void **state)
{
    static const char *const chosen[] = {"b/two:b/one", "b/one:a"}, *const bare[] = {"a"},
                             *const absent[] = {"a:c"};
    struct kg_cells_opts opts = plain();
    struct kg_cells c;

    (void)state;
    put(three);
    opts.difference = chosen;
    opts.n_differences = 2;
    read_cells(&c, &opts);
    assert_int_equal(c.n, 2);
    assert_string_equal(c.cell[0].name, "b/two:b/one");
    assert_true(c.cell[0].of[0].value == 10 && c.cell[1].of[0].value == 0.5);
    assert_true(c.cell[0].holm[0] == 2.0 / KG_EVAL_RESAMPLES);
    kg_cells_release(&c);
    opts.n_differences = 1;
    opts.difference = bare;
    assert_int_equal(kg_cells_read(&c, &opts, &err), KG_EINVAL);
    opts.difference = absent;
    assert_int_equal(kg_cells_read(&c, &opts, &err), KG_ENOTFOUND);
}

/* One method on two tasks with two seeds each. The interquartile mean of 1, 2, 11, 12 is
 * 6.5. The bootstrap draws rows within their task, so it stays between 6 and 7. */
static void profiles_put_tasks_together(void **state)
{
    static const char *const chosen[] = {"m:n"};
    struct kg_cells_opts opts = plain();
    struct kg_cells c;

    (void)state;
    put("{\"cell\": \"t/m\", \"seed\": 1, \"x\": 1, \"y\": 3}\n"
        "{\"cell\": \"u/m\", \"seed\": 1, \"x\": 11, \"y\": 7}\n"
        "{\"cell\": \"t/m\", \"seed\": 2, \"x\": 2, \"y\": 3}\n"
        "{\"cell\": \"u/m\", \"seed\": 2, \"x\": 12, \"y\": 7}\n"
        "{\"cell\": \"t/n\", \"seed\": 1, \"x\": 0, \"y\": 1}\n"
        "{\"cell\": \"t/n\", \"seed\": 2, \"x\": 1, \"y\": 1}\n"
        "{\"cell\": \"u/n\", \"seed\": 1, \"x\": 10, \"y\": 1}\n"
        "{\"cell\": \"u/n\", \"seed\": 2, \"x\": 11, \"y\": 1}\n");
    opts.profile = opts.iqm = true;
    read_cells(&c, &opts);
    assert_int_equal(c.n, 2);
    assert_string_equal(c.cell[0].name, "m");
    assert_int_equal(c.cell[0].rows, 4);
    assert_true(c.cell[0].of[0].value == 6.5 && c.cell[0].of[1].value == 5);
    assert_true(c.cell[0].of[0].low == 6 && c.cell[0].of[0].high == 7);
    assert_true(c.cell[0].of[1].low == 5 && c.cell[0].of[1].high == 5);
    kg_cells_release(&c);
    opts.difference = chosen;
    opts.n_differences = 1;
    read_cells(&c, &opts);
    assert_true(c.cell[0].of[0].low == 1 && c.cell[0].of[0].high == 1);
    assert_true(c.cell[0].of[1].value == 4);
    kg_cells_release(&c);
    /* a task with more rows would have more weight */
    put("{\"cell\": \"t/m\", \"seed\": 1, \"x\": 1, \"y\": 3}\n"
        "{\"cell\": \"u/m\", \"seed\": 1, \"x\": 11, \"y\": 7}\n"
        "{\"cell\": \"v/m\", \"seed\": 1, \"x\": 11, \"y\": 7}\n"
        "{\"cell\": \"v/m\", \"seed\": 2, \"x\": 2, \"y\": 3}\n");
    opts.n_differences = 0;
    assert_int_equal(kg_cells_read(&c, &opts, &err), KG_ECONFLICT);
    assert_non_null(strstr(err.message,
                           "expected the same number of seeds of 'm' in every stratum, "
                           "found 1 in 't' and 2 in 'v'"));
    opts = plain();
    opts.profile = true;
    put(three);
    assert_int_equal(kg_cells_read(&c, &opts, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "expected STRATUM/CELL under 'cell', found 'a'"));
}

/* Seed 1: b is 0.25 above a at the middle of 10 .. 100. Seed 2: the lines have no range
 * in common. */
static void lines_are_compared_where_both_are(void **state)
{
    static const char *const chosen[] = {"b:a"}, *const absent[] = {"b:c"};
    struct kg_cells_opts opts = plain();
    struct kg_str table = {0};
    struct kg_cells c;

    (void)state;
    put("{\"cell\": \"a,1\", \"seed\": 1, \"kl\": 1, \"x\": 0}\n"
        "{\"cell\": \"a,2\", \"seed\": 1, \"kl\": 100, \"x\": 1}\n"
        "{\"cell\": \"b,1\", \"seed\": 1, \"kl\": 1000, \"x\": 1}\n"
        "{\"cell\": \"b,2\", \"seed\": 1, \"kl\": 10, \"x\": 1}\n"
        "{\"cell\": \"a,1\", \"seed\": 2, \"kl\": 1, \"x\": 0}\n"
        "{\"cell\": \"a,2\", \"seed\": 2, \"kl\": 2, \"x\": 1}\n"
        "{\"cell\": \"b,1\", \"seed\": 2, \"kl\": 3, \"x\": 1}\n"
        "{\"cell\": \"b,2\", \"seed\": 2, \"kl\": 4, \"x\": 1}\n"
        "{\"cell\": \"ab,2\", \"seed\": 1, \"kl\": 1, \"x\": 1}\n");
    opts.n_metrics = 1;
    opts.over = "kl";
    opts.difference = chosen;
    opts.n_differences = 1;
    opts.at_least = 2;
    read_cells(&c, &opts);
    assert_int_equal(c.n, 1);
    assert_true(c.cell[0].rows == 1 && c.cell[0].apart == 1);
    assert_true(fabs(c.cell[0].of[0].value - 0.25) < 1e-12);
    assert_int_equal(kg_cells_table(&table, &c, &opts, &err), KG_OK);
    assert_non_null(strstr(table.data, "| `b:a` | 1 | **0.25** [0.25, 0.25] |"));
    assert_non_null(
        strstr(table.data, "\n`b:a`: 1 seed without a range of kl in common.\n"));
    kg_str_release(&table);
    kg_cells_release(&c);
    opts.at_least = 3;
    read_cells(&c, &opts);
    assert_true(c.n == 0 && c.left_out == 1);
    kg_cells_release(&c);
    opts.difference = absent;
    assert_int_equal(kg_cells_read(&c, &opts, &err), KG_ENOTFOUND);
    put("{\"cell\": \"a,1\", \"seed\": 1, \"kl\": 0, \"x\": 0}\n");
    assert_int_equal(kg_cells_read(&c, &opts, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "expected a number above 0 under 'kl', found 0"));
}

/* A seed that only one point of a line has is refused, on either side, and wherever it is
 * in the file. */
static void points_of_other_pairs_are_refused(void **state)
{
    static const char *const rows[] = {
        "{\"cell\": \"a,1\", \"seed\": 1, \"kl\": 1, \"x\": 0}\n",
        "{\"cell\": \"a,2\", \"seed\": 1, \"kl\": 9, \"x\": 1}\n",
        "{\"cell\": \"b,1\", \"seed\": 1, \"kl\": 1, \"x\": 1}\n",
        "{\"cell\": \"b,2\", \"seed\": 1, \"kl\": 9, \"x\": 1}\n"};
    static const char *const more[] = {
        "{\"cell\": \"a,2\", \"seed\": 2, \"kl\": 9, \"x\": 1}\n",
        "{\"cell\": \"b,2\", \"seed\": 2, \"kl\": 9, \"x\": 1}\n"};
    struct kg_cells_opts opts = plain();
    struct kg_cells c;

    (void)state;
    opts.n_metrics = 1;
    opts.over = "kl";
    opts.difference = (const char *const[]){"b:a"};
    opts.n_differences = 1;
    for (size_t i = 0; i < 2; i++) {
        struct kg_str text = {0};

        for (size_t j = 0; j < 4; j++)
            assert_int_equal(kg_str_puts(&text, rows[j], &err), KG_OK);
        assert_int_equal(kg_str_puts(&text, more[i], &err), KG_OK);
        put(text.data);
        assert_int_equal(kg_cells_read(&c, &opts, &err), KG_ECONFLICT);
        assert_non_null(strstr(err.message, i == 0 ? "found 1 in 'b,1' and 2 in 'a,2'"
                                                   : "found 1 in 'b,1' and 2 in 'b,2'"));
        kg_str_release(&text);
    }
}

/* The best cell of line m is its second, that of line n its first. */
static void the_best_of_lines_are_compared(void **state)
{
    static const char *const chosen[] = {"m,*:n,*", "m,1:n,*"};
    struct kg_cells_opts opts = plain();
    struct kg_cells c;

    (void)state;
    put("{\"cell\": \"m,1\", \"seed\": 1, \"x\": 1}\n"
        "{\"cell\": \"m,2\", \"seed\": 1, \"x\": 5}\n"
        "{\"cell\": \"n,1\", \"seed\": 1, \"x\": 3}\n"
        "{\"cell\": \"n,2\", \"seed\": 1, \"x\": 2}\n");
    opts.n_metrics = 1;
    opts.difference = chosen;
    opts.n_differences = 2;
    read_cells(&c, &opts);
    assert_int_equal(c.n, 2);
    assert_string_equal(c.cell[0].name, "m,2:n,1");
    assert_true(c.cell[0].of[0].value == 2 && c.cell[1].of[0].value == -2);
    kg_cells_release(&c);
}

/* Too many cells are refused instead of ignored, because the best may be among them. */
static void a_line_of_too_many_cells_is_refused(void **state)
{
    static const char *const chosen[] = {"m,*:m,0"};
    struct kg_cells_opts opts = plain();
    struct kg_str rows = {0};
    struct kg_cells c;

    (void)state;
    for (int i = 0; i < 65; i++)
        assert_int_equal(kg_str_printf(&rows, &err,
                                       "{\"cell\": \"m,%d\", \"seed\": 1, \"x\": %d}\n",
                                       i, i),
                         KG_OK);
    put(rows.data);
    opts.n_metrics = 1;
    opts.difference = chosen;
    opts.n_differences = 1;
    assert_int_equal(kg_cells_read(&c, &opts, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "at most 64 cells 'm,...', found 'm,64'"));
    opts.match = "m,6";
    opts.difference = (const char *const[]){"m,*:m,60"};
    read_cells(&c, &opts);
    assert_string_equal(c.cell[0].name, "m,64:m,60");
    kg_cells_release(&c);
    kg_str_release(&rows);
}

/* The start is at 4: rows at 4 or above survive, rows below 2 have collapsed. */
static void rows_are_counted_from_the_start(void **state)
{
    struct kg_cells_opts opts = plain();
    struct kg_str table = {0};
    struct kg_cells c;

    (void)state;
    put("{\"cell\": \"s\", \"seed\": 1, \"x\": 4}\n"
        "{\"cell\": \"d/m,lr1\", \"seed\": 1, \"x\": 4}\n"
        "{\"cell\": \"d/m,lr1\", \"seed\": 2, \"x\": 5}\n"
        "{\"cell\": \"d/m,lr3\", \"seed\": 1, \"x\": 4}\n"
        "{\"cell\": \"d/m,lr3\", \"seed\": 2, \"x\": 3}\n"
        "{\"cell\": \"d/n,lr3\", \"seed\": 1, \"x\": 1}\n"
        "{\"cell\": \"d/n,lr3\", \"seed\": 2, \"x\": 2}\n");
    opts.n_metrics = 1;
    opts.match = "d/";
    opts.start = "s";
    read_cells(&c, &opts);
    assert_int_equal(c.n, 3);
    assert_int_equal(kg_cells_table(&table, &c, &opts, &err), KG_OK);
    assert_non_null(strstr(table.data, "| cell | rows | x | survived | collapsed |\n"));
    assert_non_null(strstr(table.data, "| `d/n,lr3` | 2 | 1.5 [1, 2] | 0 | 1 |\n"));
    kg_str_clear(&table);
    assert_int_equal(kg_survival_table(&table, &c, &err), KG_OK);
    assert_string_equal(table.data, "| | lr1 | lr3 | survive up to |\n|---|---|---|---|\n"
                                    "| `d/m` | 2 of 2 | 1 of 2 | lr1 |\n"
                                    "| `d/n` | - | 0 of 2 (1) | - |\n");
    kg_str_release(&table);
    kg_cells_release(&c);
    opts.start = "t";
    assert_int_equal(kg_cells_read(&c, &opts, &err), KG_ENOTFOUND);
}

/* Survival ends at the first rate that fails, because a success after it is luck. Rates
 * are ordered by value: `n` fails at lr3e-6; of `m` nothing is known after its first
 * rate; `o` fails at its first. */
static void survival_ends_at_the_first_that_fails(void **state)
{
    struct kg_cells_opts opts = plain();
    struct kg_str table = {0};
    struct kg_cells c;

    (void)state;
    put("{\"cell\": \"s\", \"seed\": 1, \"x\": 4}\n"
        "{\"cell\": \"d/n,lr1e-5\", \"seed\": 1, \"x\": 4}\n"
        "{\"cell\": \"d/n,lr3e-6\", \"seed\": 1, \"x\": 3}\n"
        "{\"cell\": \"d/n,lr1e-6\", \"seed\": 1, \"x\": 4}\n"
        "{\"cell\": \"d/m,lr1e-5\", \"seed\": 1, \"x\": 4}\n"
        "{\"cell\": \"d/m,lr1e-6\", \"seed\": 1, \"x\": 4}\n"
        "{\"cell\": \"d/o,lr1e-6\", \"seed\": 1, \"x\": 3}\n"
        "{\"cell\": \"d/o,lr1e-5\", \"seed\": 1, \"x\": 4}\n");
    opts.n_metrics = 1;
    opts.match = "d/";
    opts.start = "s";
    read_cells(&c, &opts);
    assert_int_equal(kg_survival_table(&table, &c, &err), KG_OK);
    assert_string_equal(table.data, "| | lr1e-6 | lr3e-6 | lr1e-5 | survive up to |\n"
                                    "|---|---|---|---|---|\n"
                                    "| `d/n` | 1 of 1 | 0 of 1 | 1 of 1 | lr1e-6 |\n"
                                    "| `d/m` | 1 of 1 | - | 1 of 1 | lr1e-6 |\n"
                                    "| `d/o` | 0 of 1 | - | 1 of 1 | none |\n");
    kg_str_release(&table);
    kg_cells_release(&c);
}

/* Each line is drawn from the smaller to the larger abscissa, whatever the order of its
 * points in the file. */
static void lines_are_drawn_in_order(void **state)
{
    struct kg_cells_opts opts = plain();
    struct kg_str svg = {0};
    struct kg_cells c;

    (void)state;
    put("{\"cell\": \"m,2\", \"seed\": 1, \"kl\": 1, \"x\": 1}\n"
        "{\"cell\": \"m,1\", \"seed\": 1, \"kl\": 0.1, \"x\": 0}\n"
        "{\"cell\": \"n,1\", \"seed\": 1, \"kl\": 1, \"x\": 0}\n");
    opts.n_metrics = 1;
    opts.over = "kl";
    read_cells(&c, &opts);
    assert_int_equal(kg_cells_svg(&svg, &c, &opts, &err), KG_OK);
    assert_non_null(
        strstr(svg.data, "<path class=\"l c0 d0\" d=\"M90.4 231.6L599.6 22.4\"/>"));
    assert_non_null(strstr(svg.data, "<path class=\"p c1\" d=\"M599.6 231.6h0\"/>"));
    assert_non_null(strstr(svg.data, ">0.1</text>"));
    assert_non_null(strstr(svg.data, ">m</text>"));
    assert_non_null(strstr(svg.data, ">x over kl, logarithmic</text>"));
    kg_str_release(&svg);
    kg_cells_release(&c);
}

/* Between 2 and 5 there is no 1, 2 or 5 times a power of ten. */
static void a_short_logarithmic_axis_has_ticks(void **state)
{
    struct kg_axis_tick tick[KG_AXIS_TICKS];
    struct kg_axis between = {log10(2.1), log10(4.6), 0, 100, true}, wide = between;

    (void)state;
    assert_int_equal(kg_axis_ticks(tick, &between), 5);
    assert_string_equal(tick[0].text, "2.5");
    assert_string_equal(tick[4].text, "4.5");
    assert_true(kg_axis_place(&between, tick[0].value) > 0);
    wide.high = log10(6);
    wide.low = log10(1.9);
    assert_int_equal(kg_axis_ticks(tick, &wide), 2);
    assert_true(tick[0].value == 2 && tick[1].value == 5);
}

/* Unescaped names would make the plot invalid XML, which viewers refuse. */
static void names_are_escaped_in_a_plot(void **state)
{
    static const char *const key[] = {"x<y"};
    struct kg_cells_opts opts = plain();
    struct kg_str svg = {0};
    struct kg_cells c;

    (void)state;
    put("{\"cell\": \"a<b&c,1\", \"seed\": 1, \"k&l\": 1, \"x<y\": 1}\n");
    opts.metric = key;
    opts.n_metrics = 1;
    opts.over = "k&l";
    read_cells(&c, &opts);
    assert_int_equal(kg_cells_svg(&svg, &c, &opts, &err), KG_OK);
    assert_non_null(strstr(svg.data, ">a&#60;b&#38;c</text>"));
    assert_non_null(strstr(svg.data, ">x&#60;y over k&#38;l, logarithmic</text>"));
    kg_str_release(&svg);
    kg_cells_release(&c);
}

static void what_cannot_be_paired_is_refused(void **state)
{
    static const struct {
        const char *rows, *against, *words;
    } cases[] = {
        {"{\"cell\": \"a\", \"seed\": 1, \"x\": 1}\n", NULL,
         "line 1: expected a number under 'y'"},
        {"{\"seed\": 1, \"x\": 1, \"y\": 1}\n", NULL,
         "expected text or a number under 'cell'"},
        {"{\"cell\": \"a\", \"x\": 1, \"y\": 1}\n", NULL, "under 'seed'"},
        {"{\"cell\": \"a\", \"seed\": 1, \"x\": 1, \"y\": 1}\n{\"cell\": \"a\", "
         "\"seed\": 1, \"x\": 1, "
         "\"y\": 1}\n",
         NULL, "line 2: expected one row of cell 'a' and seed '1'"},
        {"{\"cell\": \"a\", \"seed\": 1, \"x\": 1, \"y\": 1}\n{\"cell\": \"b\", "
         "\"seed\": 2, \"x\": 1, "
         "\"y\": 1}\n",
         "a", "found 2 in 'b' and not in 'a'"},
        {three, "c", "expected a cell 'c'"},
        {"", NULL, "found none"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kg_cells_opts opts = plain();
        struct kg_cells c;

        put(cases[i].rows);
        opts.against = cases[i].against;
        if (kg_cells_read(&c, &opts, &err) == KG_OK)
            fail_msg("'%s' was not refused", cases[i].words);
        if (!strstr(err.message, cases[i].words))
            fail_msg("expected '%s', found: %s", cases[i].words, err.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cells_are_means_in_order_of_first_mention),
        cmocka_unit_test(cells_that_are_not_whole_are_left_out_and_counted),
        cmocka_unit_test(differences_are_paired_by_seed),
        cmocka_unit_test(what_rounding_leaves_is_shown_as_0),
        cmocka_unit_test(chosen_differences_are_a_family),
        cmocka_unit_test(profiles_put_tasks_together),
        cmocka_unit_test(lines_are_compared_where_both_are),
        cmocka_unit_test(points_of_other_pairs_are_refused),
        cmocka_unit_test(the_best_of_lines_are_compared),
        cmocka_unit_test(a_line_of_too_many_cells_is_refused),
        cmocka_unit_test(rows_are_counted_from_the_start),
        cmocka_unit_test(survival_ends_at_the_first_that_fails),
        cmocka_unit_test(lines_are_drawn_in_order),
        cmocka_unit_test(a_short_logarithmic_axis_has_ticks),
        cmocka_unit_test(names_are_escaped_in_a_plot),
        cmocka_unit_test(what_cannot_be_paired_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
