/* Tests of the table of tasks, of data sets, of generated problems, and of each task's
 * grading. */
#include "task/task.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/jsonl.h"
#include "task/prompts.h"
#include "task/task_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct kg_err err;
static char path[64];

static const struct kg_task_row *row_of(const char *name)
{
    const struct kg_task_row *row = NULL;

    assert_int_equal(kg_task_find(&row, name, &err), KG_OK);
    return row;
}

static void write_file(const char *text)
{
    int fd;

    snprintf(path, sizeof path, "/tmp/kg_task_test_XXXXXX");
    fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static struct kg_grade grade(const char *task, const char *truth, const char *response)
{
    char *copy = kg_mem_strdup(truth, &err);
    struct kg_record r = {.ground_truth = copy};
    struct kg_grade_item item = {
        .record = &r, .response = response, .n = strlen(response)};
    struct kg_task_opts opts = {0};
    struct kg_grade g = {0};

    if (kg_task_grade(&g, row_of(task), &opts, &item, 1, &err) != KG_OK)
        fail_msg("%s", err.message);
    assert_true(g.graded);
    kg_mem_free(copy);
    return g;
}

static void expect(const char *task, const char *truth, const char *response,
                   bool correct)
{
    if (grade(task, truth, response).correct != correct)
        fail_msg("%s: truth '%s' response '%s': expected %s", task, truth, response,
                 correct ? "right" : "wrong");
}

/* ---- the table ---- */

static void an_unknown_task_lists_the_valid_ones(void **state)
{
    const struct kg_task_row *row;

    (void)state;
    assert_int_equal(kg_task_find(&row, "arithmetics", &err), KG_EINVAL);
    assert_string_equal(err.message,
                        "task: expected one of arithmetic, countdown, digits, "
                        "qa-number, math, search-qa, none, environment, external; "
                        "found 'arithmetics'; did you mean 'arithmetic'?");
    assert_string_equal(row_of("digits")->name, "digits");
}

static void a_data_task_without_a_file_is_refused(void **state)
{
    struct kg_task_opts opts = {.count = 5, .level = "easy"};
    struct kg_dataset d;

    (void)state;
    assert_int_equal(kg_task_load(&d, row_of("digits"), &opts, NULL, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "data file"));
}

/* ---- data sets ---- */

static void read_ok(struct kg_dataset *d, const char *text)
{
    write_file(text);
    if (kg_dataset_read(d, path, "", "", true, &err) != KG_OK)
        fail_msg("%s", err.message);
    unlink(path);
}

static void the_usual_schemas_are_read(void **state)
{
    struct kg_dataset d;

    (void)state;
    read_ok(
        &d,
        "{\"data_source\":\"gsm\",\"prompt\":[{\"role\":\"user\",\"content\":\"p1\"}],"
        "\"reward_model\":{\"style\":\"rule\",\"ground_truth\":\"7\"},\"extra_info\":{"
        "\"i\":1}}\n"
        "{\"question\":\"p2\",\"answer\":18}\n\n"
        "{\"problem\":\"p3\",\"answer\":\"x\",\"solution\":\"so x\"}\n"
        "{\"prompt\":\"p4\",\"completion\":\"c\"}\n"
        "{\"text\":\"p5\",\"ground_truth\":{\"target\":3,\"numbers\":[1,2]}}\n"
        "{\"prompt\":\"p6\",\"completion\":\"\"}\n");
    assert_int_equal(d.n, 6);
    assert_string_equal(d.records[0].prompt, "p1");
    assert_string_equal(d.records[0].ground_truth, "7");
    assert_string_equal(d.records[0].data_source, "gsm");
    assert_string_equal(d.records[0].extra_json, "{\"i\":1}");
    assert_null(d.records[0].solution);
    assert_string_equal(d.records[1].ground_truth, "18");
    assert_string_equal(d.records[1].data_source, "");
    assert_null(d.records[1].extra_json);
    assert_string_equal(d.records[2].solution, "so x");
    assert_int_equal(d.records[2].line, 4);
    assert_string_equal(d.records[3].ground_truth, "c");
    assert_string_equal(d.records[3].solution, "c");
    assert_string_equal(d.records[4].ground_truth, "{\"target\":3,\"numbers\":[1,2]}");
    assert_string_equal(d.records[5].ground_truth, "");
    assert_string_equal(d.records[5].solution, "");
    kg_dataset_release(&d);
}

static void messages_are_rendered_by_a_chat_template(void **state)
{
    static const char text[] =
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
        "{% endfor %}{{ tools }}{% if add_generation_prompt %}"
        "<assistant>{% endif %}{% if messages[0].role == 'nobody' %}"
        "{{ raise_exception('nobody') }}{% endif %}";
    static const char file[] =
        "{\"prompt\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": "
        "\"user\", \"content\": \"q\"}], \"tools\": [1], \"answer\": \"1\"}\n"
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"only\"}], \"answer\": 2}\n"
        "{\"prompt\": \"plain\", \"answer\": 3}\n";
    struct kg_task_opts opts = {0};
    struct kg_chat_template *chat;
    struct kg_dataset d;

    (void)state;
    assert_int_equal(kg_chat_template_parse(&chat, text, sizeof text - 1, "t", &err),
                     KG_OK);
    write_file(file);
    assert_int_equal(kg_task_load(&d, row_of("qa-number"), &opts, path, &err),
                     KG_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "found 2 messages and no template"));
    opts.prompt.chat = chat;
    assert_int_equal(kg_task_load(&d, row_of("qa-number"), &opts, path, &err), KG_OK);
    assert_string_equal(d.records[0].prompt, "<system>s<user>q[1]<assistant>");
    assert_string_equal(d.records[1].prompt, "<user>onlyNone<assistant>");
    assert_string_equal(d.records[2].prompt, "plain");
    kg_dataset_release(&d);
    write_file("{\"prompt\": [{\"role\": \"nobody\", \"content\": \"\"}, {\"role\": "
               "\"user\", \"content\": \"q\"}], \"answer\": 1}\n");
    assert_int_equal(kg_task_load(&d, row_of("qa-number"), &opts, path, &err),
                     KG_EFORMAT);
    assert_non_null(strstr(err.message, "line 1: t line 1 column"));
    assert_non_null(strstr(err.message, "the template refuses: nobody"));
    unlink(path);
    kg_chat_template_close(chat);
}

/* If a template renders a prompt to nothing, the record is refused with its line. */
static void a_prompt_that_a_template_empties_is_refused(void **state)
{
    static const char text[] = "{% if 'river' in messages[0].content %}"
                               "{{ messages[0].content }}{% endif %}";
    static const char file[] =
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"river\"}], \"answer\": 1}\n\n"
        "{\"prompt\": [{\"role\": \"user\", \"content\": \" \"}], \"answer\": 2}\n";
    struct kg_task_opts opts = {0};
    struct kg_chat_template *chat;
    struct kg_dataset d;

    (void)state;
    assert_int_equal(kg_chat_template_parse(&chat, text, sizeof text - 1, "t", &err),
                     KG_OK);
    opts.prompt.chat = chat;
    write_file(file);
    assert_int_equal(kg_task_load(&d, row_of("qa-number"), &opts, path, &err),
                     KG_EFORMAT);
    if (!strstr(err.message, "record 3: expected a prompt, found empty text"))
        fail_msg("%s", err.message);
    assert_null(d.records);
    unlink(path);
    kg_chat_template_close(chat);
}

static void of_joined_files_the_counts_are_sums(void **state)
{
    struct kg_dataset a, b;

    (void)state;
    read_ok(&a, "{\"prompt\":\"p\",\"answer\":\"1\"}\n");
    read_ok(&b, "{\"prompt\":\"q\",\"answer\":\"2\"}\n{\"prompt\":\"r\","
                "\"answer\":\"3\"}\n");
    a.dropped_no_prompt = 1, b.dropped_no_prompt = 2;
    a.dropped_too_long = 3, b.dropped_too_long = 4;
    a.dropped_excluded = 5, b.dropped_excluded = 6;
    a.dropped_repeated = 7, b.dropped_repeated = 8;
    a.repeated = 9, b.repeated = 10;
    assert_int_equal(kg_dataset_join(&a, &b, &err), KG_OK);
    assert_int_equal(a.n, 3);
    assert_string_equal(a.records[0].prompt, "p");
    assert_string_equal(a.records[2].prompt, "r");
    assert_string_equal(kg_dataset_file(&a, 1), kg_dataset_file(&a, 2));
    assert_string_not_equal(kg_dataset_file(&a, 0), kg_dataset_file(&a, 1));
    assert_int_equal(a.dropped_no_prompt, 3);
    assert_int_equal(a.dropped_too_long, 7);
    assert_int_equal(a.dropped_excluded, 11);
    assert_int_equal(a.dropped_repeated, 15);
    assert_int_equal(a.repeated, 19);
    assert_int_equal(b.n, 0);
    kg_dataset_release(&a);
    assert_int_equal(kg_mem_current_bytes(), 0);
}

static void named_columns_override(void **state)
{
    struct kg_dataset d;

    (void)state;
    write_file("{\"prompt\":\"no\",\"ask\":\"yes\",\"meta\":{\"gold\":\"g\"},\"answer\":"
               "\"no\"}\n");
    assert_int_equal(kg_dataset_read(&d, path, "ask", "meta.gold", true, &err), KG_OK);
    assert_string_equal(d.records[0].prompt, "yes");
    assert_string_equal(d.records[0].ground_truth, "g");
    kg_dataset_release(&d);
    assert_int_equal(kg_dataset_read(&d, path, "absent", "", true, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "absent"));
    unlink(path);
}

static void bad_records_are_refused_with_file_and_line(void **state)
{
    static const struct {
        const char *text;
        kg_status code;
        const char *part;
    } rows[] = {
        {"", KG_EINVAL, "at least one record"},
        {"\n\n", KG_EINVAL, "at least one record"},
        {"{\"prompt\":\"p\",\"answer\":\"1\"}\n{\"prompt\":\n", KG_EFORMAT, "line 2"},
        {"[1]\n", KG_EFORMAT, "line 1"},
        {"{\"prompt\":\"p\",\"answer\":\"1\"}\n\n{\"answer\":\"1\"}\n", KG_EFORMAT,
         "line 3"},
        {"{\"prompt\":\"p\",\"gold\":\"1\"}\n", KG_EFORMAT,
         "completion or response, found the keys prompt, gold"},
        {"{\"prompt\":\"p\",\"answer\":null}\n", KG_EFORMAT, "expected an answer"},
        {"{\"prompt\":\"\",\"answer\":\"1\"}\n", KG_EFORMAT, "empty"},
        {"{\"prompt\":7,\"answer\":\"1\"}\n", KG_EFORMAT, "found integer"},
        {"{\"prompt\":[],\"answer\":\"1\"}\n", KG_EFORMAT,
         "expected messages, found none"},
        {"{\"prompt\":[{\"role\":\"user\",\"content\":\"a\\u0000b\"}],\"answer\":\"1\"}"
         "\n",
         KG_EFORMAT, "NUL"},
        {"{\"prompt\":\"a\\u0000b\",\"answer\":\"1\"}\n", KG_EFORMAT, "NUL"},
        {"{\"prompt\":[5],\"answer\":\"1\"}\n", KG_EFORMAT,
         "key 'prompt': expected one prompt, text or messages, found a list of 1 values"},
        {"{\"question\":[\"a\",\"b\"],\"answer\":[\"1\",\"2\"]}\n", KG_EFORMAT,
         "found a list of 2 values. Columns become records by: python3 -c"},
        {"{\"prompt\":[[{\"role\":\"user\",\"content\":\"a\"}]],\"answer\":[1]}\n",
         KG_EFORMAT, "zip(*d.values())"},
    };
    struct kg_dataset d;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_file(rows[i].text);
        memset(&err, 0, sizeof err);
        assert_int_equal(kg_dataset_read(&d, path, NULL, NULL, true, &err), rows[i].code);
        if (!strstr(err.message, rows[i].part) || !strstr(err.message, path))
            fail_msg("message without '%s' or file: %s", rows[i].part, err.message);
        assert_null(d.records);
        unlink(path);
    }
    assert_int_equal(kg_dataset_read(&d, "/tmp/kg_absent.jsonl", NULL, NULL, true, &err),
                     KG_ENOTFOUND);
}

static void every_failed_allocation_of_reading_is_a_status(void **state)
{
    uint64_t before = kg_mem_current_bytes();
    kg_status status = KG_ENOMEM;
    int n = 0;

    (void)state;
    write_file(
        "{\"prompt\":\"p\",\"answer\":\"1\",\"solution\":\"s\",\"extra_info\":[1]}\n");
    while (status != KG_OK && n < 200) {
        struct kg_dataset d;

        kg_mem_fail_at((uint64_t)++n);
        status = kg_dataset_read(&d, path, NULL, NULL, true, &err);
        kg_mem_fail_at(0);
        assert_true(status == KG_OK || status == KG_ENOMEM);
        kg_dataset_release(&d);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
    assert_true(n > 10 && n < 200);
    unlink(path);
}

static void a_template_surrounds_the_prompt(void **state)
{
    struct kg_task_opts opts = {.prompt.template_text = "Question: {prompt}\nAnswer:"};
    struct kg_dataset d;

    (void)state;
    write_file("{\"prompt\":\"2+2?\",\"answer\":\"4\"}\n");
    assert_int_equal(kg_task_load(&d, row_of("qa-number"), &opts, path, &err), KG_OK);
    assert_string_equal(d.records[0].prompt, "Question: 2+2?\nAnswer:");
    kg_dataset_release(&d);
    opts.prompt.template_text = "no place";
    assert_int_equal(kg_task_load(&d, row_of("qa-number"), &opts, path, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "{prompt}"));
    unlink(path);
}

static void parquet_gives_the_records_of_its_json_lines(void **state)
{
    struct kg_task_opts opts = {.command = "true"};
    struct kg_dataset a;
    struct kg_dataset b;

    (void)state;
    assert_int_equal(kg_task_load(&a, row_of("external"), &opts,
                                  "tests/data/parquet/duckdb_snappy.parquet", &err),
                     KG_OK);
    assert_int_equal(kg_task_load(&b, row_of("external"), &opts,
                                  "tests/data/parquet/duckdb.jsonl", &err),
                     KG_OK);
    assert_int_equal(a.n, 300);
    assert_int_equal(b.n, 300);
    for (size_t i = 0; i < a.n; i++) {
        assert_string_equal(a.records[i].prompt, b.records[i].prompt);
        assert_string_equal(a.records[i].ground_truth, b.records[i].ground_truth);
        assert_int_equal(a.records[i].line, i + 1);
        assert_int_equal(atoi(a.records[i].ground_truth), i);
    }
    assert_string_equal(a.unit, "row");
    assert_string_equal(b.unit, "line");
    kg_dataset_release(&a);
    kg_dataset_release(&b);
}

/* As in a published validation file: problems repeat, in another order. */
static void a_problem_that_stands_again_is_counted_or_left_out(void **state)
{
    static const char text[] =
        "{\"problem\":\"p\",\"answer\":\"1\"}\n{\"problem\":\"q\",\"answer\":\"2\"}\n"
        "{\"problem\":\"q\",\"answer\":\"2\",\"id\":\"x\"}\n"
        "{\"problem\":\"p\",\"answer\":\"1\",\"data_source\":\"s\"}\n"
        "{\"problem\":\"p\",\"answer\":\"1\"}\n{\"problem\":\"p\",\"answer\":\"2\"}\n"
        "{\"problem\":\"q\",\"answer\":\"2\"}\n";
    static const int64_t lines[] = {1, 2, 4, 6};
    struct kg_task_opts opts = {.unique = true};
    struct kg_dataset d;

    (void)state;
    write_file(text);
    assert_int_equal(kg_task_load(&d, row_of("qa-number"), &opts, path, &err), KG_OK);
    assert_int_equal(d.n, 4);
    for (size_t i = 0; i < d.n; i++)
        assert_int_equal(d.records[i].line, lines[i]);
    assert_int_equal(d.dropped_repeated, 3);
    assert_int_equal(d.repeated, 0);
    kg_dataset_release(&d);
    opts.unique = false;
    assert_int_equal(kg_task_load(&d, row_of("qa-number"), &opts, path, &err), KG_OK);
    assert_int_equal(d.n, 7);
    assert_int_equal(d.dropped_repeated, 0);
    assert_int_equal(d.repeated, 3);
    kg_dataset_release(&d);
    unlink(path);
    assert_int_equal(kg_mem_current_bytes(), 0);
}

/* A warning appears if a problem is repeated, and only then. */
static void a_repeated_problem_is_told(void **state)
{
    char name[] = "x.jsonl", said[512];
    struct kg_dataset d = {.name = name, .n = 3};

    (void)state;
    for (int repeated = 0; repeated < 2; repeated++) {
        FILE *log = tmpfile();
        size_t n;

        assert_non_null(log);
        d.repeated = repeated;
        kg_log_set_stream(log, false);
        kg_dataset_warn_repeated(&d, "data.unique");
        kg_log_set_stream(stderr, false);
        rewind(log);
        n = fread(said, 1, sizeof said - 1, log);
        said[n] = 0;
        fclose(log);
        assert_int_equal(n > 0, repeated);
    }
    assert_non_null(strstr(said, "x.jsonl: 1 of 3 records repeat a problem"));
    assert_non_null(strstr(said, "data.unique keeps the first"));
}

/* ---- generated problems ---- */

static void generate(struct kg_dataset *d, const char *task,
                     const struct kg_task_opts *opts)
{
    if (kg_task_load(d, row_of(task), opts, NULL, &err) != KG_OK)
        fail_msg("%s", err.message);
}

static bool solution_is_right(const char *task, const struct kg_record *r)
{
    struct kg_grade g = {0};

    assert_int_equal(row_of(task)->grade(&g, r, r->solution, strlen(r->solution), &err),
                     KG_OK);
    return g.correct;
}

static void same_records(const struct kg_record *a, const struct kg_record *b)
{
    assert_string_equal(a->prompt, b->prompt);
    assert_string_equal(a->solution, b->solution);
    assert_string_equal(a->ground_truth, b->ground_truth);
    assert_string_equal(a->data_source, b->data_source);
    assert_int_equal(a->line, b->line);
}

static const char *const generators[] = {"arithmetic", "countdown"};

static void problem_i_depends_on_its_index_alone(void **state)
{
    struct kg_task_opts all = {
        .seed = 3, .level = "easy+hard", .count = 200, .fault_rate = 0.5};
    struct kg_task_opts part = all;
    struct kg_dataset whole;
    struct kg_dataset tail;

    (void)state;
    part.first_index = 150;
    part.count = 50;
    for (size_t g = 0; g < 2; g++) {
        generate(&whole, generators[g], &all);
        generate(&tail, generators[g], &part);
        for (size_t i = 0; i < 50; i++)
            same_records(&whole.records[150 + i], &tail.records[i]);
        kg_dataset_release(&whole);
        kg_dataset_release(&tail);
    }
}

static void seeds_and_levels_differ_and_levels_take_turns(void **state)
{
    struct kg_task_opts opts = {.seed = 3, .level = "easy+hard", .count = 10};
    struct kg_dataset a;
    struct kg_dataset b;

    (void)state;
    generate(&a, "arithmetic", &opts);
    opts.seed = 4;
    generate(&b, "arithmetic", &opts);
    assert_string_equal(a.records[0].data_source, "arithmetic/easy");
    assert_string_equal(a.records[1].data_source, "arithmetic/hard");
    assert_string_equal(a.records[2].data_source, "arithmetic/easy");
    assert_string_not_equal(a.records[0].prompt, b.records[0].prompt);
    kg_dataset_release(&a);
    kg_dataset_release(&b);
}

static void solutions_grade_right_unless_faulty(void **state)
{
    static const struct {
        const char *task, *level;
    } made[] = {{"arithmetic", "easy"},        {"arithmetic", "medium"},
                {"arithmetic", "hard"},        {"arithmetic", "long-easy"},
                {"arithmetic", "long-medium"}, {"arithmetic", "long-hard"},
                {"countdown", "easy"},         {"countdown", "medium"},
                {"countdown", "hard"},         {"countdown", "small"}};
    struct kg_task_opts opts = {.seed = 11, .count = 500};
    struct kg_dataset right;
    struct kg_dataset faulty;

    (void)state;
    for (size_t m = 0; m < sizeof made / sizeof *made; m++) {
        const char *task = made[m].task;
        size_t wrong = 0;

        opts.level = made[m].level;
        opts.fault_rate = 0;
        generate(&right, task, &opts);
        opts.fault_rate = 1;
        generate(&faulty, task, &opts);
        for (size_t i = 0; i < 500; i++) {
            if (!solution_is_right(task, &right.records[i]))
                fail_msg("%s %s", right.records[i].prompt, right.records[i].solution);
            wrong += !solution_is_right(task, &faulty.records[i]);
            assert_string_equal(right.records[i].prompt, faulty.records[i].prompt);
            assert_string_equal(right.records[i].ground_truth,
                                faulty.records[i].ground_truth);
        }
        assert_true(wrong >= (strcmp(task, "arithmetic") == 0 ? 500 : 495));
        kg_dataset_release(&right);
        kg_dataset_release(&faulty);
    }
}

static void the_fault_rate_is_the_share_of_wrong_solutions(void **state)
{
    struct kg_task_opts opts = {
        .seed = 5, .level = "easy", .count = 2000, .fault_rate = 0.3};
    struct kg_dataset d;
    int wrong = 0;

    (void)state;
    generate(&d, "arithmetic", &opts);
    for (size_t i = 0; i < d.n; i++)
        wrong += !solution_is_right("arithmetic", &d.records[i]);
    assert_in_range(wrong, 540, 660);
    kg_dataset_release(&d);
}

/* Reduces a problem to its numbers, commas and dots, and the first letters of "finds" and
 * "loses". */
static void put_problem(char out[64], const char *prompt)
{
    size_t n = 0;

    for (const char *c = prompt; *c && n < 63; c++) {
        bool verb = strncmp(c, ", finds", 7) == 0 || strncmp(c, ", loses", 7) == 0;

        if (verb || kg_char_in("0123456789,.", *c))
            out[n++] = verb ? c[2] : *c;
    }
    out[n] = 0;
}

static int compare_problems(const void *a, const void *b)
{
    char x[64];
    char y[64];

    put_problem(x, ((const struct kg_record *)a)->prompt);
    put_problem(y, ((const struct kg_record *)b)->prompt);
    return strcmp(x, y);
}

static void held_out_problems_are_never_trained_on(void **state)
{
    struct kg_task_opts train = {.seed = 1, .level = "easy+medium", .count = 20000};
    struct kg_task_opts held = {
        .seed = 2, .level = "easy+hard", .count = 3000, .held_out = true};
    struct kg_dataset a;
    struct kg_dataset b;

    (void)state;
    for (size_t g = 0; g < 2; g++) {
        generate(&a, generators[g], &train);
        generate(&b, generators[g], &held);
        qsort(a.records, a.n, sizeof *a.records, compare_problems);
        for (size_t i = 0; i < b.n; i++) {
            if (bsearch(&b.records[i], a.records, a.n, sizeof *a.records,
                        compare_problems))
                fail_msg("in both parts: %s", b.records[i].prompt);
        }
        kg_dataset_release(&a);
        kg_dataset_release(&b);
    }
}

static void wrong_generator_options_are_refused(void **state)
{
    static const struct {
        struct kg_task_opts opts;
        const char *part;
    } rows[] = {
        {{.level = "easy", .count = 0}, "at least 1"},
        {{.level = "easy+silly", .count = 1},
         "levels, joined by '+': expected one of easy, medium, hard, "
         "long-easy, long-medium, long-hard; found 'silly'"},
        {{.level = "", .count = 1}, "expected one of easy"},
        {{.level = "easy+", .count = 1}, "expected one of easy"},
        {{.level = NULL, .count = 1}, "expected one of easy"},
        {{.level = "easy", .count = 1, .fault_rate = 1.5}, "fault rate"},
    };
    struct kg_dataset d;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(
            kg_task_load(&d, row_of("arithmetic"), &rows[i].opts, NULL, &err), KG_EINVAL);
        if (!strstr(err.message, rows[i].part))
            fail_msg("message without '%s': %s", rows[i].part, err.message);
    }
}

static void generated_text_stays_as_it_is(void **state)
{
    struct kg_task_opts opts = {.seed = 1, .level = "hard", .count = 1};
    struct kg_dataset d;

    (void)state;
    generate(&d, "arithmetic", &opts);
    assert_string_equal(
        d.records[0].prompt,
        "Q: Chiara has 9 sheep, finds 7, finds 1, loses 7. How many?\nA:");
    assert_string_equal(d.records[0].solution, " 9 +7=16 +1=17 -7=10 #### 10");
    kg_dataset_release(&d);
}

/* A faulty solution has one wrong step, which must be plausible: no number of sheep is
 * negative. */
static void faulty_solutions_stay_in_range(void **state)
{
    struct kg_task_opts opts = {
        .seed = 7, .level = "hard", .count = 300, .fault_rate = 1};
    struct kg_dataset d;

    (void)state;
    generate(&d, "arithmetic", &opts);
    for (size_t i = 0; i < d.n; i++)
        assert_null(strstr(d.records[i].solution, "=-"));
    kg_dataset_release(&d);
}

static void problems_are_made_without_a_leak(void **state)
{
    uint64_t before = kg_mem_current_bytes();

    (void)state;
    for (size_t i = 0; i < sizeof generators / sizeof *generators; i++) {
        struct kg_task_opts opts = {.seed = 7, .level = "easy+hard", .count = 20};
        struct kg_dataset d;

        generate(&d, generators[i], &opts);
        kg_dataset_release(&d);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
}

/* A seed must always make the same problems: these were made by the first version of the
 * generator. */
static void a_seed_makes_the_problems_that_it_made(void **state)
{
    static const struct {
        const char *task, *level, *truth, *solution;
    } rows[] = {
        {"arithmetic", "easy", "7", " 7 -6=1 +2=3 +4=7 #### 7"},
        {"arithmetic", "medium", "11", " 2 +7=9 -5=4 +7=11 #### 11"},
        {"arithmetic", "hard", "0", " 15 -8=7 -5=2 -2=0 #### 0"},
        {"arithmetic", "long-easy", "4",
         " 3 +1=4 -3=1 +1=2 -1=1 +7=8 -8=0 +2=2 +2=4 #### 4"},
        {"countdown", "easy", "{\"target\":13,\"numbers\":[13,14,14]}",
         " 13+14=27; 27-14=13 #### (13+14)-14"},
        {"countdown", "medium", "{\"target\":73,\"numbers\":[6,37,42]}",
         " 37-6=31; 31+42=73 #### (37-6)+42"},
        {"countdown", "hard", "{\"target\":508,\"numbers\":[5,17,41,90]}",
         " 90*5=450; 450+17=467; 467+41=508 #### ((90*5)+17)+41"},
    };
    struct kg_dataset d;
    char name[64];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_task_opts opts = {.seed = 7, .level = rows[i].level, .count = 3};

        generate(&d, rows[i].task, &opts);
        snprintf(name, sizeof name, "%s (%s)", rows[i].task, rows[i].level);
        assert_string_equal(d.name, name);
        assert_string_equal(d.records[2].ground_truth, rows[i].truth);
        assert_string_equal(d.records[2].solution, rows[i].solution);
        kg_dataset_release(&d);
    }
}

/* ---- arithmetic ---- */

static void arithmetic_judges_the_number_behind_the_marker(void **state)
{
    (void)state;
    expect("arithmetic", "80", " 85 -5=80 #### 80", true);
    expect("arithmetic", "80", "#### 80\nmore 81", true);
    expect("arithmetic", "80", "#### 080", true);
    expect("arithmetic", "80", "#### 70 #### 80", true);
    expect("arithmetic", "80", "#### 80 #### 70", false);
    expect("arithmetic", "80", "#### 80 81", false);
    expect("arithmetic", "80", "####", false);
    expect("arithmetic", "80", " 80", false);
    expect("arithmetic", "80", "", false);
    assert_true(grade("arithmetic", "80", "#### 80").reward == 1);
    assert_true(grade("arithmetic", "80", "#### 81").reward == 0);
}

/* ---- ground truths ---- */

static void a_broken_ground_truth_is_an_error(void **state)
{
    static const struct {
        const char *task;
        const char *truth;
    } rows[] = {
        {"countdown", "46"},
        {"countdown", "{\"target\":46,\"numbers\":[1.5]}"},
        {"countdown", "{\"target\":46,\"numbers\":[1,2,3,4,5,6,7,8,9]}"},
        {"countdown", "{\"numbers\":[1]}"},
        {"arithmetic", "many"},
        {"qa-number", "1 or 2"},
    };
    struct kg_task_opts opts = {0};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_record r = {.ground_truth = kg_mem_strdup(rows[i].truth, &err),
                              .line = 5};
        struct kg_grade_item item = {.record = &r, .response = "1", .n = 1};
        struct kg_grade g;

        assert_int_equal(kg_task_grade(&g, row_of(rows[i].task), &opts, &item, 1, &err),
                         KG_EFORMAT);
        assert_non_null(strstr(err.message, "record 5"));
        kg_mem_free(r.ground_truth);
    }
}

/* ---- digits ---- */

static void digit_rewards_agree_with_the_reference(void **state)
{
    struct kg_json_doc doc = {0};
    struct kg_jsonl *lines;
    bool more = false;
    int cases = 0;

    (void)state;
    assert_int_equal(
        kg_jsonl_open(&lines, "tests/data/verl_digit_llama/reward_cases.jsonl", &err),
        KG_OK);
    while (kg_jsonl_next(lines, &doc, &more, &err) == KG_OK && more) {
        const struct kg_json *rewards = kg_json_get(doc.root, "token_reward");
        const char *truth = kg_json_text(kg_json_get(doc.root, "ground_truth"), NULL);
        const char *response = kg_json_text(kg_json_get(doc.root, "response"), NULL);
        double sum = 0;
        double found = grade("digits", truth, response).reward;

        for (size_t i = 0; i < kg_json_size(rewards); i++)
            sum += kg_json_real(kg_json_at(rewards, i), 0);
        if (!(found > sum - 1e-12 && found < sum + 1e-12))
            fail_msg("%s: expected %g, found %g", response, sum, found);
        cases++;
    }
    assert_int_equal(cases, 30);
    kg_json_release(&doc);
    kg_jsonl_close(lines);
}

static void a_digit_answer_is_correct_only_as_a_whole(void **state)
{
    (void)state;
    expect("digits", "4,8,3", "4,8,3E", true);
    expect("digits", "4,8,3", "4,8,3", true);
    expect("digits", "4,8,3", "4,8,", false);
    expect("digits", "4,8,3", "4,8,3,1", false);
    expect("digits", "", "E", true);
    expect("digits", "", "", true);
    expect("digits", "", "4", false);
    assert_true(grade("digits", "4,8,3", "4,8,3").reward == 5.0 / 6);
    assert_true(grade("digits", "4,8,3", "4,9,3").reward == 2.0 / 6);
}

static void digit_prompts_end_in_the_start_token(void **state)
{
    struct kg_task_opts opts = {0};
    struct kg_dataset d;

    (void)state;
    assert_int_equal(kg_task_load(&d, row_of("digits"), &opts,
                                  "tests/data/verl_digit_llama/test.jsonl", &err),
                     KG_OK);
    assert_int_equal(d.n, 200);
    assert_string_equal(d.records[0].prompt, "7,7:9,4S");
    assert_string_equal(d.records[0].ground_truth, "7,7,7,7");
    assert_string_equal(d.records[0].solution, "7,7,7,7");
    for (size_t i = 0; i < d.n; i++)
        assert_true(solution_is_right("digits", &d.records[i]));
    kg_dataset_release(&d);
    write_file("{\"prompt\":\"1,2:9,3\",\"completion\":\"3 4 5\"}\n");
    assert_int_equal(kg_task_load(&d, row_of("digits"), &opts, path, &err), KG_EFORMAT);
    unlink(path);
}

/* ---- qa-number ---- */

static void numbers_are_found_where_models_write_them(void **state)
{
    static const struct {
        const char *truth;
        const char *response;
        bool correct;
    } rows[] = {
        {"18", "She makes 9 * 2 = $<<9*2=18>>18 a day.\n#### 18", true},
        {"18", "The answer is \\boxed{18}.", true},
        {"18", "The answer is \\boxed{18.00}", true},
        {"18", "\\boxed{17} no, \\boxed{18}", true},
        {"18", "\\boxed{18} no, \\boxed{17}", false},
        {"18", "\\boxed{\\$18} per day, 7 days", true},
        {"18", "\\boxed{18 \\text{ dollars}}", true},
        {"18", "\\boxed{17 or 18}", false},
        {"18", "\\boxed{}", false},
        {"18", "\\boxed{18", true}, /* the box is not closed, so the last number counts */
        {"18", "#### 17\n\\boxed{18}", true},
        {"18", "\\boxed{17}\n#### 18", true},
        {"18", "#### \\boxed{18}", true},
        {"18", "#### $18.", true},
        {"18", "#### +18", true},
        {"18", "#### 18%", true},
        {"18", "#### 17, 18", false},
        {"18", "####", false},
        {"18", "so it is 18", true},
        {"18", "so it is 18.", true},
        {"18", "18 of 20", false},
        {"18", "no number", false},
        {"18", "", false},
        {"18", "#### -18", false},
        {"-18", "#### -18", true},
        {"-18", "#### -$18", true},
        {"-18",
         "#### \xe2\x88\x92"
         "18",
         true},
        {"18", "20-18", true}, /* an operator, not a sign */
        {"18", "x = 20 - 18", true},
        {"1234.5", "#### 1,234.50", true},
        {"1,234", "1234", true},
        {"34.1", "#### 3,4.1", false}, /* a separator needs three digits after it */
        {"70,000", "$70000", true},
        {"1", "3,4,1", true},
        {"0.5", ".5", true},
        {"0.5", "0.50", true},
        {"0.1", "0.10000000000000001", false},
        {"0", "-0.0", true},
        {"5", "005", true},
        {"2", "1/2",
         true}, /* without a marker the last number counts, even in a fraction */
        {"2", "\\boxed{1/2}", false},
        {"18", "\\boxed{\\boxed{18}}", true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect("qa-number", rows[i].truth, rows[i].response, rows[i].correct);
}

static void numbers_too_long_to_hold_equal_nothing(void **state)
{
    char text[300];

    (void)state;
    memset(text, '7', sizeof text - 1);
    text[sizeof text - 1] = 0;
    expect("qa-number", text, text, false);
}

static void worked_answers_split_into_truth_and_solution(void **state)
{
    struct kg_task_opts opts = {0};
    struct kg_dataset d;

    (void)state;
    write_file("{\"question\":\"q\",\"answer\":\"He pays 2*5=10.\\n#### 1,010\"}\n");
    assert_int_equal(kg_task_load(&d, row_of("qa-number"), &opts, path, &err), KG_OK);
    assert_string_equal(d.records[0].ground_truth, "1010");
    assert_string_equal(d.records[0].solution, "He pays 2*5=10.\n#### 1,010");
    assert_true(solution_is_right("qa-number", &d.records[0]));
    kg_dataset_release(&d);
    unlink(path);
    write_file("{\"question\":\"q\",\"answer\":\"4\"}\n{\"question\":\"q\",\"answer\":"
               "\"x+1 or 2\"}\n");
    assert_int_equal(kg_task_load(&d, row_of("qa-number"), &opts, path, &err),
                     KG_EFORMAT);
    assert_non_null(strstr(err.message, "line 2"));
    unlink(path);
}

static void gsm8k_gold_answers_grade_themselves_right(void **state)
{
    static const char *const files[] = {"../shared/data/math/gsm8k_train.jsonl",
                                        "../shared/data/math/raw/gsm8k_train.jsonl"};
    struct kg_task_opts opts = {0};
    struct kg_dataset d;

    (void)state;
    if (!kg_file_exists(files[0])) {
        print_message("skip: %s is not there\n", files[0]);
        skip();
    }
    for (size_t f = 0; f < 2; f++) {
        assert_int_equal(kg_task_load(&d, row_of("qa-number"), &opts, files[f], &err),
                         KG_OK);
        assert_int_equal(d.n, 7473);
        for (size_t i = 0; f == 1 && i < d.n; i++) {
            if (!solution_is_right("qa-number", &d.records[i]))
                fail_msg("line %lld", (long long)d.records[i].line);
        }
        kg_dataset_release(&d);
    }
}

static void verdicts_on_model_solutions_agree_with_gsm8k(void **state)
{
    static const char file[] = "../shared/data/gsm8k_model_solutions.jsonl";
    struct kg_json_doc doc = {0};
    struct kg_jsonl *lines;
    bool more = false;
    int cases = 0;
    int differ = 0;

    (void)state;
    if (!kg_file_exists(file)) {
        print_message("skip: %s is not there\n", file);
        skip();
    }
    assert_int_equal(kg_jsonl_open(&lines, file, &err), KG_OK);
    while (kg_jsonl_next(lines, &doc, &more, &err) == KG_OK && more) {
        const char *gold = kg_json_text(kg_json_get(doc.root, "gold"), NULL);
        const char *response = kg_json_text(kg_json_get(doc.root, "response"), NULL);
        bool expected = kg_json_bool(kg_json_get(doc.root, "expected"), false);

        differ += grade("qa-number", gold, response).correct != expected;
        cases++;
    }
    assert_int_equal(cases, 2640);
    assert_int_equal(differ, 0);
    kg_json_release(&doc);
    kg_jsonl_close(lines);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_task_lists_the_valid_ones),
        cmocka_unit_test(a_data_task_without_a_file_is_refused),
        cmocka_unit_test(the_usual_schemas_are_read),
        cmocka_unit_test(messages_are_rendered_by_a_chat_template),
        cmocka_unit_test(a_prompt_that_a_template_empties_is_refused),
        cmocka_unit_test(of_joined_files_the_counts_are_sums),
        cmocka_unit_test(named_columns_override),
        cmocka_unit_test(bad_records_are_refused_with_file_and_line),
        cmocka_unit_test(every_failed_allocation_of_reading_is_a_status),
        cmocka_unit_test(a_template_surrounds_the_prompt),
        cmocka_unit_test(parquet_gives_the_records_of_its_json_lines),
        cmocka_unit_test(a_problem_that_stands_again_is_counted_or_left_out),
        cmocka_unit_test(a_repeated_problem_is_told),
        cmocka_unit_test(problem_i_depends_on_its_index_alone),
        cmocka_unit_test(seeds_and_levels_differ_and_levels_take_turns),
        cmocka_unit_test(solutions_grade_right_unless_faulty),
        cmocka_unit_test(the_fault_rate_is_the_share_of_wrong_solutions),
        cmocka_unit_test(held_out_problems_are_never_trained_on),
        cmocka_unit_test(wrong_generator_options_are_refused),
        cmocka_unit_test(generated_text_stays_as_it_is),
        cmocka_unit_test(faulty_solutions_stay_in_range),
        cmocka_unit_test(problems_are_made_without_a_leak),
        cmocka_unit_test(a_seed_makes_the_problems_that_it_made),
        cmocka_unit_test(arithmetic_judges_the_number_behind_the_marker),
        cmocka_unit_test(a_broken_ground_truth_is_an_error),
        cmocka_unit_test(digit_rewards_agree_with_the_reference),
        cmocka_unit_test(a_digit_answer_is_correct_only_as_a_whole),
        cmocka_unit_test(digit_prompts_end_in_the_start_token),
        cmocka_unit_test(numbers_are_found_where_models_write_them),
        cmocka_unit_test(numbers_too_long_to_hold_equal_nothing),
        cmocka_unit_test(worked_answers_split_into_truth_and_solution),
        cmocka_unit_test(gsm8k_gold_answers_grade_themselves_right),
        cmocka_unit_test(verdicts_on_model_solutions_agree_with_gsm8k),
    };

    return cmocka_run_group_tests_name("task", tests, NULL, NULL);
}
