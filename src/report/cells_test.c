/* Rows into cells: what is averaged, what is paired, and what is refused. */
#include "report/cells.h"

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

/* A grid that is half worked off: what is not whole is not shown, and not kept quiet. */
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
    kg_str_release(&table);
    kg_cells_release(&c);
}

/* The two seeds of two are 10 above those of one, of a 0 and 1 below: whatever stands
 * first in the file. */
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

/* Chosen pairs of cells, over which alone p is adjusted. */
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
        cmocka_unit_test(chosen_differences_are_a_family),
        cmocka_unit_test(what_cannot_be_paired_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
