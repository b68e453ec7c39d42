/* The page of plots: complete in one file, every metric with its meaning, gaps as gaps,
 * several runs in one plot, text escaped, and a size that does not grow with the run. */
#include "report/report.h"

#include "base/folder_testing.h"
#include "base/log.h"
#include "recipe/options.h"
#include "report/report_plot.h"

#include <math.h>

#define OK(expr)                                                                         \
    do {                                                                                 \
        if ((expr) != KG_OK)                                                             \
            fail_msg("%s", err.message);                                                 \
    } while (0)

#define LINE(phase, step, rest)                                                          \
    "{\"phase\": \"" phase "\", \"step\": " #step ", " rest "}\n"

static struct kg_str page;

/* ---- run directories made by hand ---- */

static void put_config(const char *name, char *const *assignments, size_t n)
{
    struct kg_config *config;
    struct kg_str text = {0};
    char path[64];

    OK(kg_file_make_dirs(in_dir(name), &err));
    OK(kg_train_config(&config, NULL, assignments, n, &err));
    OK(kg_config_dump_yaml(&text, config, true, &err));
    snprintf(path, sizeof path, "%s/config.yaml", name);
    put(path, kg_str_text(&text));
    kg_str_release(&text);
    kg_config_free(config);
}

static void make_run(const char *name, const char *assignment, const char *metrics)
{
    char *const assignments[] = {"model.path=models/<small>",
                                 (char *)(uintptr_t)assignment};
    char path[64];

    put_config(name, assignments, 2);
    snprintf(path, sizeof path, "%s/manifest.json", name);
    put(path, "{\"kedge\": \"0.0.9\", \"started_unix\": 86400, \"threads\": 3, "
              "\"system\": \"Test\", \"parameters\": 12000000, \"train_prompts\": 5, "
              "\"validation_prompts\": 6, \"compute_dtype\": \"fp32\", \"inputs\": {}}");
    snprintf(path, sizeof path, "%s/metrics.jsonl", name);
    put(path, metrics);
}

static void make_page(const char *const *names, size_t n)
{
    struct kg_report_run *runs[KG_REPORT_RUNS];

    for (size_t i = 0; i < n; i++)
        OK(kg_report_run_open(&runs[i], in_dir(names[i]), &err));
    kg_str_clear(&page);
    OK(kg_report_page(&page, runs, n, &err));
    for (size_t i = 0; i < n; i++)
        kg_report_run_free(runs[i]);
}

static const char *const one[] = {"one"};
static const char *const both[] = {"one", "two"};

static int end(void **state)
{
    kg_str_release(&page);
    return remove_dir(state);
}

/* ---- reading the page ---- */

static size_t count(const char *part)
{
    size_t n = 0;

    for (const char *at = page.data; (at = strstr(at, part)); at += strlen(part))
        n++;
    return n;
}

static void has(const char *part)
{
    if (count(part) == 0)
        fail_msg("the page has no: %s", part);
}

/* The plot with this title, to its end.   valid until the next call */
static const char *plot_titled(const char *title)
{
    static char text[1 << 16];
    char begin[128];
    const char *at;
    size_t n;

    snprintf(begin, sizeof begin, "<figure><h3>%s</h3>", title);
    at = strstr(page.data, begin);
    if (!at)
        fail_msg("the page has no plot '%s'", title);
    n = (size_t)(strstr(at, "</figure>") - at);
    assert_true(n < sizeof text);
    memcpy(text, at, n);
    text[n] = '\0';
    return text;
}

/* The number of separate strokes in the line (class l) of colour c0. */
static int strokes(const char *plot)
{
    const char *path = strstr(plot, "<path class=\"l c0");
    int n = 0;

    assert_non_null(path);
    for (path = strstr(path, " d=\"") + 4; *path != '"'; path++)
        n += *path == 'M';
    return n;
}

static void assert_balanced(void)
{
    /* cells, and code in cells, are closed implicitly */
    static const char *const tags[] = {"svg",   "figure", "figcaption", "details", "div",
                                       "table", "span",   "b",          "h1"};

    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        char open[32], attributes[32], close[32];

        snprintf(open, sizeof open, "<%s>", tags[i]);
        snprintf(attributes, sizeof attributes, "<%s ", tags[i]);
        snprintf(close, sizeof close, "</%s>", tags[i]);
        assert_int_equal(count(open) + count(attributes), count(close));
    }
}

/* The page must contain nothing that a browser would fetch or run. */
static void assert_alone(void)
{
    static const char *const parts[] = {"<script", "http:",   "https:", "src=", "url(",
                                        "@import", "<link",   "onload", "<img", "<iframe",
                                        "-nan",    "d=\"nan", " nan"};

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (count(parts[i]) > 0)
            fail_msg("the page has: %s", parts[i]);
    assert_true(strncmp(page.data, "<!DOCTYPE html>", 15) == 0);
    assert_balanced();
}

/* ---- one run ---- */

static const char metrics[] = LINE("sft", 1, "\"loss\": 2.5, \"seconds\": 1")
    LINE("sft", 2, "\"loss\": 1.5, \"seconds\": 2") LINE(
        "validation", 0,
        "\"val/accuracy\": 0.25, \"val/accuracy_stderr\": 0.125, "
        "\"val/seconds\": 3")
        LINE("rl", 1,
             "\"reward/mean\": 0.25, \"reward/mean_stderr\": 0.01, \"kl/value\": 1, "
             "\"policy/clip_dual\": 0, \"seconds/step\": 60, \"mine\": 4, "
             "\"reward/source/a&b\": 1, \"reward/source/c\": 2")
            LINE("rl", 2,
                 "\"reward/mean\": 0.5, \"reward/mean_stderr\": 0.01, \"kl/value\": 2, "
                 "\"policy/clip_dual\": 0, \"seconds/step\": 60, \"mine\": 5, "
                 "\"reward/source/a&b\": 2, \"reward/source/c\": 1")
                LINE("rl", 3, "\"kl/value\": \"nan\"") LINE(
                    "rl", 4,
                    "\"reward/mean\": 0.75, \"kl/value\": 4, \"policy/clip_dual\": 0")
                    LINE("validation", 4,
                         "\"val/accuracy\": 0.5, \"val/accuracy_stderr\": 0.0625, "
                         "\"val/seconds\": 4, \"val_anchor/entropy\": 2");

static void a_run_is_told_with_its_numbers(void **state)
{
    (void)state;
    make_run("one", "preset=ema-pg", metrics);
    make_page(one, 1);
    assert_alone();
    has("<title>one</title>");
    has("0.0.9");
    has("1970-01-02 00:00 UTC");
    has("models/&#60;small&#62;, 12 million parameters");
    has("ema-pg: advantage grpo, surrogate ppo-clip");
    has("4 of 100");
    has("2.2 min"); /* 1 + 2 + 60 + 60 + 3 + 4 seconds */
    has("0.25 &plusmn; 0.12 &rarr; <b>0.5 &plusmn; 0.062</b>");
    has("algo.preset");
    assert_int_equal(count(">run.dir<"), 0);
}

static void the_rank_that_others_wait_for_is_named(void **state)
{
    static const char of_ranks[] = LINE(
        "rl", 1,
        "\"seconds/waiting/rank/0\": 2.5, \"seconds/waiting/rank/1\": 0.5, "
        "\"seconds/slowest_rank\": 1")
        LINE("rl", 2,
             "\"seconds/waiting/rank/0\": 0.25, \"seconds/waiting/rank/1\": 0.5, "
             "\"seconds/slowest_rank\": 0");

    (void)state;
    make_run("one", "preset=ema-pg", of_ranks);
    make_page(one, 1);
    has("rank 1, which waited 1.0 s; others up to 2.8 s");
    has("<b>seconds/slowest_rank</b> the slowest rank: it waits least");
    make_run("one", "preset=ema-pg", metrics);
    make_page(one, 1);
    assert_int_equal(count("slowest rank"), 0);
}

static void every_metric_is_there_with_what_it_means(void **state)
{
    (void)state;
    make_run("one", "preset=ema-pg", metrics);
    make_page(one, 1);
    has("<b>reward/mean</b> mean reward of the completions with a");
    has("<b>val/accuracy</b> share of completions that the task calls correct");
    has("<b>loss</b> mean negative log-likelihood");
    has("<b>reward/source/NAME</b> mean reward by <code>data_source</code>");
    assert_non_null(strstr(plot_titled("reward"), "&middot; last "));
    has("a&#38;b 2");
    has("<b>mine</b> (not known to this version of kedge)");
    has("val_anchor/entropy<td class=\"n\">2<td class=\"w\">of the anchor: entropy of");
    has("<summary>Other numbers</summary>");
    /* a metric that never changed has a row and no plot */
    has("<th scope=\"row\">policy/clip_dual<td class=\"n\">0<td class=\"w\">share of "
        "tokens clipped at the bound of dual clip");
    assert_int_equal(count("<b>policy/clip_dual</b>"), 0);
}

static void gaps_are_gaps(void **state)
{
    (void)state;
    make_run("one", "preset=ema-pg", metrics);
    make_page(one, 1);
    assert_int_equal(strokes(plot_titled("KL")), 2);
    assert_non_null(strstr(plot_titled("KL"), "(1 not finite)"));
    assert_int_equal(strokes(plot_titled("accuracy")), 1);
    /* a band only where there is a standard error */
    assert_non_null(strstr(plot_titled("accuracy"), "<path class=\"b c0"));
    assert_null(strstr(plot_titled("KL"), "<path class=\"b c0"));
}

/* out <- vertices of the path of this class, x and y alternating.   returns how many
 * numbers */
static int vertices(double *out, int most, const char *plot, const char *class)
{
    const char *at = strstr(plot, class);
    int n = 0;

    assert_non_null(at);
    at = strstr(at, " d=\"") + 4;
    while (*at != '"') {
        char *end;
        double x = strtod(at, &end);

        if (end == at) { /* a letter; the 0 of h0 is no vertex */
            at += *at == 'h' ? 2 : 1;
            continue;
        }
        assert_true(n < most);
        out[n++] = x;
        at = end;
    }
    return n;
}

/* Steps 1, 2, (3,) 4 have the values 1, 2, 4, so distances in x and y are in proportion 1
 * : 3. */
static void places_are_in_proportion(void **state)
{
    double v[16];

    (void)state;
    make_run("one", "preset=ema-pg", metrics);
    make_page(one, 1);
    assert_int_equal(vertices(v, 16, plot_titled("KL"), "\"l c0"), 6);
    assert_true(fabs((v[2] - v[0]) * 3 - (v[4] - v[0])) < 0.5);
    assert_true(fabs((v[1] - v[3]) * 3 - (v[1] - v[5])) < 0.5);
    assert_true(v[5] < v[3] && v[3] < v[1] && v[5] > 0);
    /* the band of 0.25 +- 0.125 and 0.5 +- 0.0625: upper edge forwards, lower edge
     * backwards */
    assert_int_equal(vertices(v, 16, plot_titled("accuracy"), "\"b c0"), 8);
    assert_true(v[0] == v[6] && v[2] == v[4]);
    assert_true(fabs((v[7] - v[1]) / (v[5] - v[3]) - 2) < 0.05);
}

/* A spike of one step in 15,000 must reach the top of the plot. */
static void a_spike_is_seen(void **state)
{
    static double line[4096], shade[4096];
    struct kg_str log = {0};
    double top = INFINITY, mean_top = INFINITY;
    int n;

    (void)state;
    for (int i = 1; i <= 15000; i++)
        OK(kg_str_printf(&log, &err,
                         "{\"phase\": \"rl\", \"step\": %d, \"kl/value\": %d}\n", i,
                         i == 7777 ? 100 : 0));
    make_run("one", "preset=grpo", kg_str_text(&log));
    kg_str_release(&log);
    make_page(one, 1);
    n = vertices(shade, 4096, plot_titled("KL"), "\"b c0");
    for (int i = 1; i < n; i += 2)
        top = fmin(top, shade[i]);
    n = vertices(line, 4096, plot_titled("KL"), "\"l c0");
    for (int i = 1; i < n; i += 2)
        mean_top = fmin(mean_top, line[i]);
    assert_true(top < 20);
    assert_true(mean_top > top + 100);
}

/* ---- several runs ---- */

static void runs_lie_over_each_other(void **state)
{
    (void)state;
    make_run("one", "preset=ema-pg", metrics);
    make_run("two", "preset=grpo",
             LINE("rl", 1, "\"reward/mean\": 1, \"kl/value\": 3")
                 LINE("rl", 2, "\"reward/mean\": 0.5"));
    make_page(both, 2);
    assert_alone();
    has("<title>one, two</title>");
    assert_non_null(strstr(plot_titled("reward"), "class=\"l c0 d0 r0\""));
    assert_non_null(strstr(plot_titled("reward"), "class=\"l c1 d0 r1\""));
    has("<input type=\"checkbox\" id=\"s1\" checked>");
    has("body:has(#s1:not(:checked)) :is(figure,figcaption) .r1{display:none}");
    has("<th scope=\"row\">algo.preset<td><code>ema-pg<td><code>grpo");
    assert_int_equal(count("<th scope=\"row\">model.path"), 0);
    has("<th scope=\"row\">reward/mean<td class=\"n\">0.25 &plusmn; 0.01 &rarr; "
        "<b>0.75</b><td class=\"n\">1 &rarr; <b>0.5</b>");
}

static void runs_of_one_name_are_told_apart(void **state)
{
    static const char *const names[] = {"a/run", "b/run"};

    (void)state;
    make_run("a/run", "preset=grpo", metrics);
    make_run("b/run", "preset=grpo", metrics);
    make_page(names, 2);
    has("/a/run</label>");
    has("/b/run</label>");
}

static void the_same_runs_give_the_same_bytes(void **state)
{
    struct kg_str first = {0};

    (void)state;
    make_run("one", "preset=ema-pg", metrics);
    make_page(one, 1);
    OK(kg_str_append(&first, page.data, page.len, &err));
    make_page(one, 1);
    assert_int_equal(first.len, page.len);
    assert_memory_equal(first.data, page.data, page.len);
    kg_str_release(&first);
}

/* ---- size ---- */

static size_t bytes_of(int steps)
{
    struct kg_str log = {0};

    for (int i = 1; i <= steps; i++)
        OK(kg_str_printf(&log, &err,
                         "{\"phase\": \"rl\", \"step\": %d, \"reward/mean\": %.4f, "
                         "\"kl/value\": %.5f}\n",
                         i, sin(i * 0.7), 1 + cos(i * 1.3)));
    make_run("one", "preset=grpo", kg_str_text(&log));
    kg_str_release(&log);
    make_page(one, 1);
    return page.len;
}

/* Two plots, each with one vertex of a line and two of a band in each of 268 columns; a
 * vertex has at most 12 bytes. */
static void the_page_does_not_grow_with_the_run(void **state)
{
    size_t few = bytes_of(3), some = bytes_of(3000), many = bytes_of(15000);

    (void)state;
    assert_true(some > few + 5000);
    assert_true(some < few + 2 * 3 * 268 * 12);
    assert_true(many < few + 2 * 3 * 268 * 12);
}

/* ---- extreme numbers ---- */

static void extreme_numbers_make_a_plot(void **state)
{
    static const char *const pairs[][2] = {
        {"-1.7e308", "1.7e308"}, {"1", "1.0000000000000002"}, {"5e-324", "1e-300"},
        {"-1e-17", "1e17"},      {"1e9", "1000000001"},       {"0", "1e-12"}};

    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char log[256];

        snprintf(log, sizeof log,
                 LINE("rl", 1, "\"kl/value\": %s") LINE("rl", 2, "\"kl/value\": %s"),
                 pairs[i][0], pairs[i][1]);
        make_run("one", "preset=grpo", log);
        make_page(one, 1);
        assert_alone();
        assert_int_equal(strokes(plot_titled("KL")), 1);
    }
}

static void positive_numbers_far_apart_are_logarithmic(void **state)
{
    (void)state;
    make_run("one", "preset=grpo",
             LINE("rl", 1, "\"kl/value\": 1e-5, \"length/mean\": 1e-5")
                 LINE("rl", 2, "\"kl/value\": 1, \"length/mean\": 1"));
    make_page(one, 1);
    assert_non_null(strstr(plot_titled("KL"), "logarithmic scale"));
    assert_non_null(strstr(plot_titled("KL"), ">0.001</text>"));
    assert_null(strstr(plot_titled("length"), "logarithmic"));
}

static void a_run_that_has_not_begun_is_a_page(void **state)
{
    (void)state;
    make_run("one", "preset=grpo", "");
    make_page(one, 1);
    assert_alone();
    has("0 of 100");
    assert_int_equal(count("<figure"), 0);
    OK(kg_file_remove_tree(in_dir("one/manifest.json"), &err));
    put("one/manifest.json", "{}");
    make_page(one, 1);
    has("not known");
    assert_null(strstr(page.data, " threads"));
}

/* ---- failures ---- */

static void a_folder_without_a_run_is_refused(void **state)
{
    struct kg_report_run *run;

    (void)state;
    assert_int_equal(kg_report_run_open(&run, in_dir("absent"), &err), KG_ENOTFOUND);
    assert_non_null(strstr(err.message, "expected a run, found no config.yaml"));
    make_run("one", "preset=grpo", "");
    put("one/manifest.json", "x");
    assert_int_equal(kg_report_run_open(&run, in_dir("one"), &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "manifest.json"));
    assert_null(run);
}

/* A bad line is left out, and both stderr and the page say which; the rest of the run is
 * shown. */
static void what_is_left_out_is_said(void **state)
{
    FILE *said = tmpfile();
    char text[1024] = "";

    (void)state;
    make_run("one", "preset=grpo", metrics);
    make_page(one, 1);
    assert_int_equal(count("left out"), 0);
    make_run("one", "preset=grpo",
             LINE("rl", 1, "\"reward/mean\": 1") "{\"phase\": \"rl\", \n" LINE(
                 "rl", 3, "\"reward/mean\": 0.5"));
    assert_non_null(said);
    kg_log_set_stream(said, false);
    make_page(one, 1);
    kg_log_set_stream(NULL, false);
    rewind(said);
    (void)fread(text, 1, sizeof text - 1, said);
    fclose(said);
    assert_non_null(strstr(text, "metrics.jsonl line 2"));
    assert_non_null(strstr(text, "lines left out of the report: 1"));
    has("left out<td>lines of metrics.jsonl that cannot be read: 1, the first is line "
        "2.");
    has("1 &rarr; <b>0.5</b>");
    assert_alone();
}

static kg_status try_page(uint64_t n)
{
    struct kg_report_run *run = NULL;
    struct kg_str text = {0};
    kg_status status;

    kg_mem_fail_at(n);
    status = kg_report_run_open(&run, in_dir("one"), &err);
    if (status == KG_OK)
        status = kg_report_page(&text, &run, 1, &err);
    kg_mem_fail_at(0);
    kg_report_run_free(run);
    kg_str_release(&text);
    return status;
}

static void survives_allocations_that_fail(void **state)
{
    int failed = 0;
    uint64_t before;

    (void)state;
    make_run("one", "preset=grpo", metrics);
    before = kg_mem_current_bytes();
    for (uint64_t n = 1; n < 4000; n += 1 + n / 8) {
        kg_status status = try_page(n);

        failed += status != KG_OK;
        assert_true(status == KG_OK || status == KG_ENOMEM);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
    assert_true(failed > 30);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_dir, end)

/* A line of a dump, with the keys that the page reads. */
#define ANSWER(reward, tokens, text)                                                     \
    "{\"finish\":\"stop\",\"reward\":" reward ",\"prompt_n\":1,\"tokens\":[" tokens      \
    "],\"text\":\"" text "\"}\n"

static void answers_are_shown_over_the_course_of_the_run(void **state)
{
    static const char dump[] = ANSWER("0.5", "1,2", "half") ANSWER("1.0", "1,2", "best")
        ANSWER("null", "1,2", "ungraded") ANSWER("0.0", "1,2", "<bad>")
            ANSWER("0.5", "1,2,3,4", "long");
    static const char *const names[] = {"answered"};
    char path[64];

    (void)state;
    make_run("answered", "run.seed=1", LINE("rl", 1, "\"reward/mean\": 0.5"));
    OK(kg_file_make_dirs(in_dir("answered/rollouts"), &err));
    for (int step = 1; step <= 9; step++) {
        snprintf(path, sizeof path, "answered/rollouts/step-%06d.jsonl", step);
        put(path, dump);
    }
    put("answered/rollouts/val-000000.jsonl", "no line of an answer");
    make_page(names, 1);
    has("Completions of step 1<");
    has("Completions of step 3<");
    has("Completions of step 6<");
    has("Completions of step 9<");
    assert_null(strstr(page.data, "Completions of step 2<"));
    has("<b>highest reward: reward 1, 1 tokens, stop, line 2</b>");
    has("<b>lowest reward: reward 0, 1 tokens, stop, line 4</b>");
    has("<b>longest: reward 0.5, 3 tokens, stop, line 5</b>");
    has("&#60;bad&#62;");
    assert_null(strstr(page.data, "<bad>"));
    assert_null(strstr(page.data, "ungraded<"));
}

/* The prompt is shown before its completion if the tokenizer can decode its tokens. */
static void a_prompt_is_shown_as_the_model_read_it(void **state)
{
    static const char *const names[] = {"prompted"};

    (void)state;
    make_run("prompted", "model.path=tests/data/verl_digit_llama",
             LINE("rl", 1, "\"reward/mean\": 0.5"));
    OK(kg_file_make_dirs(in_dir("prompted/rollouts"), &err));
    put("prompted/rollouts/step-000001.jsonl", ANSWER("1.0", "7,8", "fine"));
    make_page(names, 1);
    has("<span class=\"q\">");
    put("prompted/rollouts/step-000001.jsonl", ANSWER("1.0", "null,8", "fine"));
    make_page(names, 1);
    has("Completions of step 1<");
    assert_null(strstr(page.data, "<span class=\"q\">"));
}

/* An unreadable dump gives a warning; the rest of the page is complete. */
static void a_damaged_dump_costs_its_answers_alone(void **state)
{
    static const char *const names[] = {"damaged"};

    (void)state;
    make_run("damaged", "run.seed=1", LINE("rl", 1, "\"reward/mean\": 0.5"));
    OK(kg_file_make_dirs(in_dir("damaged/rollouts"), &err));
    put("damaged/rollouts/step-000001.jsonl", "{\"reward\": 1.0, ");
    put("damaged/rollouts/step-000002.jsonl", ANSWER("1.0", "1,2", "fine"));
    make_page(names, 1);
    assert_null(strstr(page.data, "Completions of step 1<"));
    has("Completions of step 2<");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_run_is_told_with_its_numbers),
        TEST(the_rank_that_others_wait_for_is_named),
        TEST(every_metric_is_there_with_what_it_means),
        TEST(gaps_are_gaps),
        TEST(places_are_in_proportion),
        TEST(a_spike_is_seen),
        TEST(runs_lie_over_each_other),
        TEST(runs_of_one_name_are_told_apart),
        TEST(the_same_runs_give_the_same_bytes),
        TEST(the_page_does_not_grow_with_the_run),
        TEST(extreme_numbers_make_a_plot),
        TEST(positive_numbers_far_apart_are_logarithmic),
        TEST(a_run_that_has_not_begun_is_a_page),
        TEST(a_folder_without_a_run_is_refused),
        TEST(what_is_left_out_is_said),
        TEST(survives_allocations_that_fail),
        TEST(answers_are_shown_over_the_course_of_the_run),
        TEST(a_prompt_is_shown_as_the_model_read_it),
        TEST(a_damaged_dump_costs_its_answers_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
