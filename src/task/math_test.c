/* The task math: gold answers are checked before a run, each answer of a list counts, and
 * grader modes are respected. */
#include "base/file.h"
#include "base/mem.h"
#include "data/jsonl.h"
#include "math/math.h"
#include "task/task_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct kg_err err;
static char path[] = "/tmp/kedge-math-XXXXXX";

static const struct kg_task_row *row(void)
{
    const struct kg_task_row *r;

    assert_int_equal(kg_task_find(&r, "math", &err), KG_OK);
    return r;
}

static void write_file(const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static struct kg_grade grade(const struct kg_task_opts *opts, char *truth,
                             const char *response)
{
    struct kg_record record = {.ground_truth = truth, .line = 1};
    struct kg_grade_item item = {
        .record = &record, .response = response, .n = strlen(response)};
    struct kg_grade g = {0};

    assert_int_equal(kg_task_grade(&g, row(), opts, &item, 1, &err), KG_OK);
    return g;
}

static void a_response_is_graded(void **state)
{
    struct kg_task_opts opts = {0};
    char half[] = "\\frac{1}{2}";
    char list[] = "[\"\\\\frac{t}{m}\", \"5\"]";
    char sum[] = "\\sum_{k=1}^n a_k";

    (void)state;
    assert_true(grade(&opts, half, "<think>\\boxed{3}</think>So \\boxed{0.5}").correct);
    assert_true(grade(&opts, list, "The answer is 5.").correct);
    assert_false(grade(&opts, half, "I give up").correct);
    assert_true(grade(&opts, half, "I give up").graded);
    assert_false(grade(&opts, sum, "\\boxed{\\sum_{k=0}^n a_k}").graded);
    assert_true(grade(&opts, sum, "\\boxed{\\sum_{k=0}^n a_k}").reward == 0);
}

/* Votes compare extracted answers by mathematical equality. */
static void answers_to_vote_on_are_extracted(void **state)
{
    struct kg_task_opts opts = {0};
    char truth[] = "5";
    struct kg_record record = {.ground_truth = truth, .line = 1};
    static const char response[] = "\\boxed{7}, no. Answer: 0.5";
    struct kg_grade_item item = {
        .record = &record, .response = response, .n = sizeof response - 1};
    struct kg_str out = {0};
    bool same = false;

    (void)state;
    assert_int_equal(kg_task_math_extract(&out, &opts, &item, &err), KG_OK);
    assert_string_equal(kg_str_text(&out), "7");
    kg_str_release(&out);
    assert_int_equal(kg_task_math_same(&same, &opts, "0.5", "\\frac{1}{2}", &err), KG_OK);
    assert_true(same);
    assert_int_equal(kg_task_math_same(&same, &opts, "0.5", "0.6", &err), KG_OK);
    assert_false(same);
}

static void thinking_is_an_option(void **state)
{
    struct kg_task_opts opts = {0};
    char five[] = "5";

    (void)state;
    assert_false(grade(&opts, five, "<think>\\boxed{5}</think>").correct);
    opts.keep_thinking = true;
    assert_true(grade(&opts, five, "<think>\\boxed{5}</think>").correct);
}

/* The JSON array ["1", .., "n"]. */
static char *list_of(int n)
{
    static char text[1024];
    size_t at = 0;

    for (int i = 1; i <= n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s\"%d\"", i > 1 ? "," : "[",
                               i);
    snprintf(text + at, sizeof text - at, "]");
    return text;
}

static void each_of_64_gold_answers_counts(void **state)
{
    struct kg_task_opts opts = {0};
    struct kg_record record = {.ground_truth = list_of(64), .line = 1};
    struct kg_grade_item item = {.record = &record, .response = "\\boxed{1}", .n = 9};
    struct kg_grade g = {0};

    (void)state;
    assert_true(grade(&opts, record.ground_truth, "\\boxed{1}").correct);
    assert_true(grade(&opts, record.ground_truth, "\\boxed{64}").correct);
    assert_false(grade(&opts, record.ground_truth, "\\boxed{65}").correct);
    record.ground_truth = list_of(65);
    assert_int_equal(kg_task_grade(&g, row(), &opts, &item, 1, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "at most 64 gold answers, found 65"));
}

/* Published math graders give 1 and -1. */
static void a_wrong_answer_earns_what_is_said(void **state)
{
    struct kg_task_opts opts = {.wrong_reward = -1};
    char five[] = "5", sum[] = "\\sum_{k=1}^n a_k";

    (void)state;
    assert_true(grade(&opts, five, "\\boxed{5}").reward == 1);
    assert_true(grade(&opts, five, "\\boxed{4}").reward == -1);
    assert_false(grade(&opts, five, "\\boxed{4}").correct);
    assert_true(grade(&opts, sum, "\\boxed{\\sum_{k=0}^n a_k}").reward == -1);
}

/* An answer that is there but cannot be read or decided earns what a wrong answer earns.
 * task.undecided says whether it counts as graded. */
static void what_cannot_be_read_earns_no_more_than_a_wrong_answer(void **state)
{
    static const char *const unreadable[] = {
        "\\boxed{}",          "\\boxed{?}",       "\\boxed{1 1}", "\\boxed{:,}",
        "\\boxed{\\frac{1}}", "\\boxed{5)(}",     "\\boxed{==}",  "\\boxed{5^}",
        "\\boxed{_}",         "\\boxed{\\left(}", "\\boxed{5 +}", "\\boxed{5 /}",
    };
    char five[] = "5";

    (void)state;
    for (size_t i = 0; i < sizeof unreadable / sizeof *unreadable; i++)
        for (int wrong = -2; wrong <= 1; wrong++) {
            struct kg_task_opts opts = {.wrong_reward = wrong / 2.0};
            struct kg_grade g = grade(&opts, five, unreadable[i]);

            if (!g.undecided || g.graded || g.correct)
                fail_msg("%s: expected undecided", unreadable[i]);
            assert_true(kg_grade_reward(&g) == opts.wrong_reward);
            opts.undecided = KG_TASK_UNDECIDED_WRONG;
            g = grade(&opts, five, unreadable[i]);
            assert_true(g.undecided && g.graded && !g.correct);
            assert_true(g.reward == opts.wrong_reward);
        }
}

static const char FILE_TEXT[] =
    "{\"id\":\"a\",\"problem\":\"p\",\"answer\":\"\\\\frac{1}{2}\"}\n"
    "{\"id\":\"b\",\"problem\":\"p\",\"answer\":\"\\\\frac{1}{2\"}\n"
    "{\"problem\":\"p\",\"answer\":[\"x\",\"y\"]}\n"
    "{\"problem\":\"p\",\"answer\":\"so 1 + 2\\n#### 3\"}\n"
    "{\"problem\":\"p\",\"answer\":\"\"}\n";

static void a_gold_answer_that_fails_stops_the_run(void **state)
{
    struct kg_task_opts opts = {0};
    struct kg_dataset d;

    (void)state;
    write_file(FILE_TEXT);
    assert_int_equal(kg_task_load(&d, row(), &opts, path, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "found 2 that are not"));
    assert_non_null(strstr(err.message, "task.exclude=\"b,5\""));
    opts.exclude = "a,b";
    opts.exclude_key = "--exclude";
    assert_int_equal(kg_task_load(&d, row(), &opts, path, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "found 1 that are not; to drop them: "
                                        "--exclude=\"a,b,5\""));
    assert_int_equal(kg_mem_current_bytes(), 0);
}

static void excluded_records_are_left_out(void **state)
{
    struct kg_task_opts opts = {.exclude = "b, 5"};
    struct kg_dataset d;

    (void)state;
    write_file(FILE_TEXT);
    assert_int_equal(kg_task_load(&d, row(), &opts, path, &err), KG_OK);
    assert_int_equal(d.n, 3);
    assert_int_equal(d.dropped_excluded, 2);
    assert_string_equal(d.records[2].ground_truth, "3");
    assert_string_equal(d.records[2].solution, "so 1 + 2\n#### 3");
    kg_dataset_release(&d);
    write_file("{\"problem\":\"p\",\"answer\":\"1\",\"id\":\"b\"}\n"
               "{\"problem\":\"q\",\"answer\":\"2\",\"id\":\"5\"}\n");
    assert_int_equal(kg_task_load(&d, row(), &opts, path, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "expected at least one record, found none"));
    assert_int_equal(kg_mem_current_bytes(), 0);
}

/* "FILE:NAME" applies only to that file, so one list can serve several files. */
static void a_record_is_excluded_by_its_file(void **state)
{
    const char *base = strrchr(path, '/') + 1;
    char exclude[128];
    struct kg_task_opts opts = {.exclude = exclude};
    struct kg_dataset d;

    (void)state;
    write_file(FILE_TEXT);
    snprintf(exclude, sizeof exclude, "other.jsonl:1, %s:b,%s:5", base, base);
    assert_int_equal(kg_task_load(&d, row(), &opts, path, &err), KG_OK);
    assert_int_equal(d.dropped_excluded, 2);
    kg_dataset_release(&d);
    snprintf(exclude, sizeof exclude, "other.jsonl:b,%s:5", base);
    assert_int_equal(kg_task_load(&d, row(), &opts, path, &err), KG_EFORMAT);
    snprintf(exclude + strlen(exclude), 8, ",b");
    assert_int_equal(kg_task_load(&d, row(), &opts, path, &err), KG_OK);
    kg_dataset_release(&d);
}

/* A name that no record of any file has is a mistake, and refused. */
static void a_name_that_no_record_has_is_refused(void **state)
{
    bool met[4] = {false};
    struct kg_task_opts opts = {.exclude = " b,5, nope,5", .excluded = met};
    struct kg_dataset d;

    (void)state;
    write_file(FILE_TEXT);
    assert_int_equal(kg_task_names(opts.exclude), 4);
    assert_int_equal(kg_task_names(""), 0);
    assert_int_equal(kg_task_names(NULL), 0);
    assert_int_equal(kg_task_load(&d, row(), &opts, path, &err), KG_OK);
    kg_dataset_release(&d);
    assert_int_equal(kg_task_check_excluded(&opts, &err), KG_EINVAL);
    assert_string_equal(err.message, "task.exclude: expected ids (or lines) of records "
                                     "of task math, found 'nope', which no record has");
    write_file("{\"id\":\"nope\",\"problem\":\"p\",\"answer\":\"1\"}\n"
               "{\"problem\":\"q\",\"answer\":\"1\"}\n");
    assert_int_equal(kg_task_load(&d, row(), &opts, path, &err), KG_OK);
    kg_dataset_release(&d);
    assert_int_equal(kg_task_check_excluded(&opts, &err), KG_OK);
}

/* With drop_golds, records whose gold answer cannot be graded are dropped, and counted
 * separately from excluded ones. */
static void golds_that_fail_are_dropped_and_counted(void **state)
{
    static const struct {
        const char *file;
        int64_t dropped;
    } real[] = {{"deepscaler_sub_1209", 2}, {"math_train_7474", 2}};
    bool met[1] = {false};
    struct kg_task_opts opts = {.drop_golds = true, .exclude = "p1", .excluded = met};
    struct kg_dataset d;
    char file[128];

    (void)state;
    write_file("{\"id\":\"p1\",\"problem\":\"1\",\"answer\":\"\"}\n"
               "{\"id\":\"p2\",\"problem\":\"2\",\"answer\":\"2\"}\n"
               "{\"id\":\"p3\",\"problem\":\"3\",\"answer\":\" \"}\n");
    assert_int_equal(kg_task_load(&d, row(), &opts, path, &err), KG_OK);
    assert_int_equal(d.n, 1);
    assert_string_equal(d.records[0].id, "p2");
    assert_int_equal(d.dropped_excluded, 1);
    assert_int_equal(d.dropped_golds, 1);
    kg_dataset_release(&d);
    if (access("../shared/data/math", R_OK) != 0) {
        print_message("no ../shared/data/math\n");
        skip();
    }
    for (size_t i = 0; i < sizeof real / sizeof *real; i++) {
        opts = (struct kg_task_opts){.drop_golds = true};
        snprintf(file, sizeof file, "../shared/data/math/%s.jsonl", real[i].file);
        assert_int_equal(kg_task_load(&d, row(), &opts, file, &err), KG_OK);
        assert_int_equal(d.dropped_golds, real[i].dropped);
        kg_dataset_release(&d);
    }
}

/* p2 and p3 are the same problem: excluding one record keeps the other. */
static void one_of_equal_records_is_excluded(void **state)
{
    static const struct {
        const char *exclude, *stays; /* stays NULL: neither stays */
        int64_t excluded, repeated;
    } cases[] = {{"p3", "p2", 0, 1}, {"p2", "p3", 0, 1}, {"p3,p2", NULL, 1, 1}};

    (void)state;
    write_file("{\"id\":\"p2\",\"problem\":\"2\",\"answer\":\"2\"}\n"
               "{\"id\":\"p3\",\"problem\":\"2\",\"answer\":\"2\"}\n"
               "{\"id\":\"p1\",\"problem\":\"1\",\"answer\":\"1\"}\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool met[2] = {false};
        struct kg_task_opts opts = {
            .exclude = cases[i].exclude, .excluded = met, .unique = true};
        struct kg_dataset d;

        assert_int_equal(kg_task_load(&d, row(), &opts, path, &err), KG_OK);
        assert_int_equal(kg_task_check_excluded(&opts, &err), KG_OK);
        assert_int_equal(d.n, cases[i].stays ? 2 : 1);
        if (cases[i].stays)
            assert_string_equal(d.records[0].id, cases[i].stays);
        assert_int_equal(d.dropped_excluded, cases[i].excluded);
        assert_int_equal(d.dropped_repeated, cases[i].repeated);
        kg_dataset_release(&d);
    }
    assert_int_equal(kg_mem_current_bytes(), 0);
}

/* verl's Parquet files are checked like JSONL; a record without an id is named by its
 * row. */
static void golds_in_parquet_are_checked_too(void **state)
{
    static const char *const files[] = {"rpg_aime-2024", "rpg_aime25", "rpg_amc-23"};
    static const size_t rows[] = {960, 960, 1280}, problems[] = {30, 30, 40};
    struct kg_task_opts opts = {0};
    struct kg_dataset d;
    char file[128];

    (void)state;
    if (access("../shared/data/math/raw", R_OK) != 0) {
        print_message("skip: no ../shared/data/math\n");
        skip();
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(file, sizeof file, "../shared/data/math/raw/%s.parquet", files[i]);
        if (kg_task_load(&d, row(), &opts, file, &err) != KG_OK)
            fail_msg("%s", err.message);
        assert_int_equal(d.n, rows[i]);
        assert_int_equal(d.repeated, rows[i] - problems[i]);
        kg_dataset_release(&d);
    }
    snprintf(file, sizeof file, "../shared/data/math/raw/deepscaler_sub_1209.parquet");
    assert_int_equal(kg_task_load(&d, row(), &opts, file, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "found 2 that are not; to drop them: "
                                        "task.exclude=\"266,1188\""));
}

/* Every published data set loads; docs/grader.md lists the records that must be
 * excluded. */
static void published_golds_grade_themselves_right(void **state)
{
    static const struct {
        const char *file;
        const char *exclude;
        size_t n;
    } sets[] = {
        {"aime24", "", 30},
        {"aime25", "", 30},
        {"aime_1983_2023", "", 975},
        {"amc23", "", 40},
        {"amc_2022_2023_83", "", 83},
        {"deepscaler_sub_1209", "dsr_sub/265,dsr_sub/1187", 1207},
        {"gsm8k_test", "", 1319},
        {"gsm8k_train", "", 7473},
        {"math500", "", 500},
        {"math_train_7474", "math_train/5328,math_train/5330", 7472},
        {"minerva_math", "", 272},
        {"olympiadbench_math_text_en_675", "", 675},
        {"svamp", "", 1000},
        /* as published: worked solutions that end with the answer */
        {"raw/gsm8k_test", "", 1319},
        {"raw/gsm8k_train", "", 7473},
        {"raw/math500", "", 500},
    };
    size_t golds = 0;

    (void)state;
    if (access("../shared/data/math", R_OK) != 0) {
        print_message("skip: no ../shared/data/math\n");
        skip();
    }
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        struct kg_task_opts opts = {.exclude = sets[i].exclude};
        struct kg_dataset d;
        char file[128];

        snprintf(file, sizeof file, "../shared/data/math/%s.jsonl", sets[i].file);
        if (kg_task_load(&d, row(), &opts, file, &err) != KG_OK)
            fail_msg("%s", err.message);
        assert_int_equal(d.n, sets[i].n);
        golds += strncmp(sets[i].file, "raw/", 4) != 0 ? d.n + (size_t)d.dropped_excluded
                                                       : 0;
        kg_dataset_release(&d);
    }
    assert_int_equal(golds, 21080); /* quoted in docs/grader.md */
}

/* Grades the answer if the case has one, else the whole response. */
static bool is_as_expected(const struct kg_json_doc *doc)
{
    const struct kg_json *answer = kg_json_get(doc->root, "answer");
    struct kg_math_opts opts = {.form = answer ? KG_MATH_FORM_ANSWER
                                               : KG_MATH_FORM_RESPONSE};
    struct kg_math_result result = {0};
    struct kg_math_text text, gold;
    bool right;

    text.text = kg_json_text(answer ? answer : kg_json_get(doc->root, "response"),
                             &text.n);
    gold.text = kg_json_text(kg_json_get(doc->root, "gold"), &gold.n);
    assert_int_equal(kg_math_grade(&result, &opts, text, &gold, 1, &err), KG_OK);
    right = result.verdict == KG_MATH_RIGHT;
    kg_math_result_release(&result);
    return right == kg_json_bool(kg_json_get(doc->root, "expected"), false);
}

/* Answers of real models with the verdicts of their original graders. docs/grader.md
 * describes the one case where kedge differs. */
static void verdicts_on_answers_of_models_agree(void **state)
{
    static const struct {
        const char *file;
        int cases;
        int64_t differs; /* idx of the only difference; -1: none */
    } files[] = {{"../shared/data/gsm8k_model_solutions.jsonl", 2640, -1},
                 {"../shared/data/grader_model_outputs.jsonl", 66, 72}};

    (void)state;
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        struct kg_json_doc doc = {0};
        struct kg_jsonl *lines;
        int cases = 0, differ = 0;
        bool more = true;

        if (access(files[f].file, R_OK) != 0) {
            print_message("skip: no %s\n", files[f].file);
            skip();
        }
        assert_int_equal(kg_jsonl_open(&lines, files[f].file, &err), KG_OK);
        for (;; cases++) {
            int64_t idx;

            assert_int_equal(kg_jsonl_next(lines, &doc, &more, &err), KG_OK);
            if (!more)
                break;
            idx = kg_json_int(kg_json_get(doc.root, "idx"), -1);
            if (is_as_expected(&doc))
                continue;
            if (idx != files[f].differs)
                fail_msg("%s: idx %lld", files[f].file, (long long)idx);
            differ++;
        }
        assert_int_equal(cases, files[f].cases);
        assert_int_equal(differ, files[f].differs >= 0);
        kg_json_release(&doc);
        kg_jsonl_close(lines);
    }
}

static int make_file(void **state)
{
    int fd = mkstemp(path);

    (void)state;
    if (fd < 0)
        return 1;
    close(fd);
    return 0;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_response_is_graded),
        cmocka_unit_test(each_of_64_gold_answers_counts),
        cmocka_unit_test(answers_to_vote_on_are_extracted),
        cmocka_unit_test(thinking_is_an_option),
        cmocka_unit_test(a_gold_answer_that_fails_stops_the_run),
        cmocka_unit_test(excluded_records_are_left_out),
        cmocka_unit_test(a_record_is_excluded_by_its_file),
        cmocka_unit_test(a_name_that_no_record_has_is_refused),
        cmocka_unit_test(golds_that_fail_are_dropped_and_counted),
        cmocka_unit_test(one_of_equal_records_is_excluded),
        cmocka_unit_test(a_wrong_answer_earns_what_is_said),
        cmocka_unit_test(what_cannot_be_read_earns_no_more_than_a_wrong_answer),
        cmocka_unit_test(golds_in_parquet_are_checked_too),
        cmocka_unit_test(published_golds_grade_themselves_right),
        cmocka_unit_test(verdicts_on_answers_of_models_agree),
    };

    return cmocka_run_group_tests_name("task math", tests, make_file, remove_file);
}
