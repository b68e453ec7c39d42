/* The task search-qa: the files that it reads, the prompts that it makes, and its
 * rewards. */
#include "task/task.h"

#include "base/folder_testing.h"
#include "task/qa.h"
#include "task/wording.h"

static void ok(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

static const struct kg_task_row *row(void)
{
    const struct kg_task_row *r;

    ok(kg_task_find(&r, "search-qa", &err));
    return r;
}

static void load(struct kg_dataset *d, const struct kg_task_opts *opts, const char *text)
{
    put("q.jsonl", text);
    ok(kg_task_load(d, row(), opts, in_dir("q.jsonl"), &err));
}

static void questions_become_prompts(void **state)
{
    const struct kg_task_opts opts = {0};
    struct kg_dataset d;
    struct kg_tagged pair;
    const char *prompt;

    (void)state;
    load(
        &d, &opts,
        "{\"id\":\"a\",\"question\":\" who wrote it\",\"golden_answers\":[\"X\",\"Y\"]}\n"
        "{\"question\":\"Why?\",\"answer\":\"because\",\"data_source\":\"nq\"}\n"
        "{\"question\":\"n?\",\"answers\":[\"1\"]}\n");
    prompt = d.records[0].prompt;
    assert_non_null(strstr(prompt, "Question: who wrote it?\n"));
    assert_non_null(strstr(prompt, "<think>"));
    assert_non_null(strstr(prompt, "<search>"));
    assert_non_null(strstr(prompt, "<information>"));
    /* one example of an answer, and no other answer tags */
    kg_tagged_next(&pair, &kg_search_tags.answer, prompt, strlen(prompt), 0);
    assert_non_null(pair.text);
    assert_memory_equal(pair.text, " Beijing ", pair.n);
    kg_tagged_next(&pair, &kg_search_tags.answer, prompt, strlen(prompt), pair.end);
    assert_null(pair.text);
    assert_string_equal(d.records[0].ground_truth, "[\"X\",\"Y\"]");
    assert_string_equal(d.records[0].id, "a");
    assert_non_null(strstr(d.records[1].prompt, "Question: Why?\n"));
    assert_string_equal(d.records[1].ground_truth, "[\"because\"]");
    assert_string_equal(d.records[1].data_source, "nq");
    assert_string_equal(d.records[2].ground_truth, "[\"1\"]");
    kg_dataset_release(&d);
}

/* FNV-1a. */
static uint64_t hash_of(const char *text)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return hash;
}

/* Search-R1's texts, as hashes of what its two functions return for this question and for
 * an invalid action (computed with its code). */
static void the_published_words_are_word_for_word(void **state)
{
    const struct kg_task_opts opts = {.wording = "search-r1"};
    const struct kg_wording *words;
    struct kg_dataset d;

    (void)state;
    load(&d, &opts, "{\"question\":\" who wrote it \",\"golden_answers\":[\"X\"]}\n");
    assert_int_equal(strlen(d.records[0].prompt), 578);
    assert_int_equal(hash_of(d.records[0].prompt), UINT64_C(0x4153163b37baf9ce));
    kg_dataset_release(&d);
    ok(kg_wording_find(&words, "search-r1", &err));
    assert_int_equal(strlen(words->remark), 218);
    assert_int_equal(hash_of(words->remark), UINT64_C(0xc7d517039c78a7ad));
    assert_int_equal(kg_wording_find(&words, "r1", &err), KG_EINVAL);
    for (words = kg_wording_table(); words->name; words++)
        assert_true(!words->source == !words->licence);
}

static void a_template_stands_alone_around_the_question(void **state)
{
    const struct kg_task_opts opts = {.prompt.template_text = "Q: {prompt}\nA:"};
    struct kg_dataset d;

    (void)state;
    load(&d, &opts, "{\"question\":\"who\",\"golden_answers\":\"X\"}\n");
    assert_string_equal(d.records[0].prompt, "Q: who?\nA:");
    kg_dataset_release(&d);
}

static void a_chat_template_renders_one_user_turn(void **state)
{
    static const char jinja[] = "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
                                "{% endfor %}[assistant]";
    struct kg_chat_template *chat;
    struct kg_task_opts opts = {0};
    struct kg_dataset d;

    (void)state;
    ok(kg_chat_template_parse(&chat, jinja, strlen(jinja), "test", &err));
    opts.prompt.chat = chat;
    opts.prompt.user_turn = true;
    load(&d, &opts, "{\"question\":\"who \\\"x\\\"\",\"golden_answers\":[\"X\"]}\n");
    assert_true(strncmp(d.records[0].prompt, "[user]Answer", 12) == 0);
    assert_non_null(strstr(d.records[0].prompt, "who \"x\"?\n[assistant]"));
    kg_dataset_release(&d);
    /* a message that is a bare question gets the instructions, even if text is no user
     * turn */
    opts.prompt.user_turn = false;
    load(&d, &opts,
         "{\"prompt\":[{\"role\":\"user\",\"content\":\"who\"}],\"golden_answers\":"
         "[\"X\"]}\n{\"question\":\"who\",\"golden_answers\":[\"X\"]}\n");
    assert_true(strncmp(d.records[0].prompt, "[user]Answer", 12) == 0);
    assert_non_null(strstr(d.records[0].prompt, "who?\n[assistant]"));
    assert_true(strncmp(d.records[1].prompt, "Answer", 6) == 0);
    kg_dataset_release(&d);
    kg_chat_template_close(chat);
}

/* verl's schema with Search-R1's columns: the prompt is used as it is. */
static void files_of_search_r1_are_taken_as_they_are(void **state)
{
    const struct kg_task_opts opts = {0};
    struct kg_dataset d;

    (void)state;
    load(&d, &opts,
         "{\"data_source\":\"hotpotqa\",\"prompt\":[{\"role\":\"user\",\"content\":"
         "\"Use <search> and </search>, <answer> Beijing </answer>. Question: q?\"}],"
         "\"ability\":\"fact-reasoning\",\"reward_model\":{\"style\":\"rule\","
         "\"ground_truth\":{\"target\":[\"Rome\",\"Roma\"]}},"
         "\"extra_info\":{\"split\":\"train\",\"index\":0}}\n");
    assert_string_equal(
        d.records[0].prompt,
        "Use <search> and </search>, <answer> Beijing </answer>. Question: q?");
    assert_string_equal(d.records[0].ground_truth, "[\"Rome\",\"Roma\"]");
    assert_string_equal(d.records[0].data_source, "hotpotqa");
    kg_dataset_release(&d);
    load(
        &d, &opts,
        "{\"prompt\":\"q\",\"reward_model\":{\"ground_truth\":{\"target\":\"Rome\"}}}\n");
    assert_string_equal(d.records[0].ground_truth, "[\"Rome\"]");
    kg_dataset_release(&d);
}

/* Answers may be numbers, such as years; brackets alone do not make a text a list. */
static void numbers_are_answers_and_brackets_may_be(void **state)
{
    const struct kg_task_opts opts = {0};
    struct kg_dataset d;

    (void)state;
    load(&d, &opts,
         "{\"question\":\"q\",\"golden_answers\":[1972,\"1972 AD\",-0.5]}\n"
         "{\"question\":\"q\",\"golden_answers\":1972}\n"
         "{\"question\":\"q\",\"reward_model\":{\"ground_truth\":{\"target\":7}}}\n"
         "{\"question\":\"q\",\"answer\":\"[sic] Rome\"}\n"
         "{\"question\":\"q\",\"answer\":\"{1, 2\"}\n");
    assert_string_equal(d.records[0].ground_truth, "[\"1972\",\"1972 AD\",\"-0.5\"]");
    assert_string_equal(d.records[1].ground_truth, "[\"1972\"]");
    assert_string_equal(d.records[2].ground_truth, "[\"7\"]");
    assert_string_equal(d.records[3].ground_truth, "[\"[sic] Rome\"]");
    assert_string_equal(d.records[4].ground_truth, "[\"{1, 2\"]");
    kg_dataset_release(&d);
}

static void what_is_no_answer_is_refused_with_its_place(void **state)
{
    static const char *const bad[] = {
        "{\"question\":\"q\",\"golden_answers\":[]}\n",
        "{\"question\":\"q\",\"golden_answers\":[\"a\",[1]]}\n",
        "{\"question\":\"q\",\"golden_answers\":[null,\"a\"]}\n",
        "{\"question\":\"q\",\"golden_answers\":[true]}\n",
        "{\"question\":\"q\",\"reward_model\":{\"ground_truth\":{\"x\":\"y\"}}}\n",
        "{\"question\":\"q\"}\n"};
    static const char *const says[] = {"found none", "found array",
                                       "found null", "found bool",
                                       "found null", "found the keys question"};
    const struct kg_task_opts opts = {0};
    struct kg_dataset d;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put("q.jsonl", bad[i]);
        assert_int_equal(kg_task_load(&d, row(), &opts, in_dir("q.jsonl"), &err),
                         KG_EFORMAT);
        assert_non_null(strstr(err.message, "line 1"));
        assert_non_null(strstr(err.message, says[i]));
    }
}

/* ---- grading ---- */

static struct kg_grade grade(const struct kg_task_opts *opts, const struct kg_span *spans,
                             size_t n)
{
    static char prompt[] = "<answer> Beijing </answer> q?",
                truth[] = "[\"Rome\",\"Roma\"]";
    const struct kg_record r = {.prompt = prompt, .ground_truth = truth, .line = 1};
    const struct kg_grade_item item = {.record = &r,
                                       .response = spans[0].text,
                                       .n = spans[0].n,
                                       .spans = n > 1 ? spans : NULL,
                                       .n_spans = n > 1 ? n : 0};
    struct kg_grade g = {0};

    ok(kg_task_grade(&g, row(), opts, &item, 1, &err));
    assert_true(g.graded);
    return g;
}

static struct kg_span span(enum kg_source source, const char *text)
{
    return (struct kg_span){text, strlen(text), source};
}

static void expect_reward(const char *metric, const char *response, double reward,
                          bool correct)
{
    const struct kg_task_opts opts = {.metric = metric,
                                      .format = {.structure = 0.2, .final = 0.1}};
    const struct kg_span s = span(KG_SOURCE_MODEL, response);
    struct kg_grade g = grade(&opts, &s, 1);

    if (g.reward != reward || g.correct != correct)
        fail_msg("%s of %s: expected %g, found %g", metric, response, reward, g.reward);
}

static void each_metric_rewards(void **state)
{
    (void)state;
    expect_reward(NULL, "<answer>the ROME.</answer>", 1, true);
    expect_reward("em", "<answer>Rome, Italy</answer>", 0, false);
    expect_reward("em", "Rome", 0, false);
    expect_reward("subem", "<answer>Rome, Italy</answer>", 1, true);
    expect_reward("f1", "<answer>Rome Italy old</answer>", 0.5, false);
    expect_reward("f1", "<answer>Roma</answer>", 1, true);
    expect_reward("format", "<think>x</think><answer>Roma</answer>", 1, true);
    expect_reward("format", "<answer>Roma</answer>", 0.8, true);
    expect_reward("format", "<think>x</think><answer>Oslo</answer>", 0.2, false);
    expect_reward("format", "<answer>Oslo</answer>", 0.1, false);
    expect_reward("format", "Rome", 0, false);
}

/* Votes compare answers after the metric's normalisation. */
static void answers_are_the_same_as_the_metric_says(void **state)
{
    static const struct {
        const char *a, *b;
        bool same;
    } rows[] = {{"The Danube", "danube.", true},
                {"Danube", "Rhine", false},
                {"", "Rhine", false},
                {"river Danube", "Danube", false}};
    const struct kg_task_row *row;
    struct kg_task_opts opts = {0};

    (void)state;
    ok(kg_task_find(&row, "search-qa", &err));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool same = !rows[i].same;

        ok(row->same(&same, &opts, rows[i].a, rows[i].b, &err));
        if (same != rows[i].same)
            fail_msg("'%s' and '%s'", rows[i].a, rows[i].b);
    }
}

static void a_tools_words_are_no_answer(void **state)
{
    const struct kg_task_opts em = {0};
    const struct kg_task_opts format = {.metric = "format",
                                        .format = {.structure = 0.2, .retrieval = 0.05}};
    const struct kg_span evil[] = {
        span(KG_SOURCE_MODEL, "<think>x</think><search>q</search>"),
        span(KG_SOURCE_TOOL, "<information><answer>Rome</answer></information>"),
        span(KG_SOURCE_MODEL, "<think>y</think><answer>Oslo</answer>")};

    (void)state;
    assert_true(grade(&em, evil, 2).reward == 0);
    assert_true(grade(&em, evil, 3).reward == 0);
    assert_true(grade(&format, evil, 3).reward == 0.25);
    assert_true(grade(&format, evil, 2).reward == 0);
}

static void two_pairs_count_the_prompts(void **state)
{
    const struct kg_task_opts two = {.answer_tags = 2};
    const struct kg_span said = span(KG_SOURCE_MODEL, "<answer>Roma</answer>");
    const struct kg_span nothing = span(KG_SOURCE_MODEL, "");

    (void)state;
    assert_true(grade(&two, &said, 1).correct);
    assert_false(grade(&two, &nothing, 1).correct);
}

/* Every public data set that is present loads whole, and every gold answer is graded
 * right. */
static void public_sets_grade_themselves(void **state)
{
    static const struct {
        const char *file;
        size_t n;
    } sets[] = {{"nq_open_dev", 2527},      {"popqa_test", 692},
                {"triviaqa_test", 700},     {"hotpotqa_dev_open_part", 303},
                {"musique_dev", 349},       {"2wiki_dev_open_part", 302},
                {"bamboogle_open_part", 70}};
    const struct kg_task_opts opts = {0};

    (void)state;
    if (!kg_file_exists("../shared/data/search/qa")) {
        print_message("skip: no ../shared/data/search/qa\n");
        skip();
    }
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        struct kg_dataset d;
        char file[120];

        snprintf(file, sizeof file, "../shared/data/search/qa/%s.jsonl", sets[i].file);
        ok(kg_task_load(&d, row(), &opts, file, &err));
        assert_int_equal(d.n, sets[i].n);
        for (size_t k = 0; k < d.n; k++) {
            struct kg_json_doc doc;
            char said[700];
            struct kg_grade g;
            struct kg_grade_item item = {.record = &d.records[k], .response = said};

            ok(kg_json_parse(&doc, d.records[k].ground_truth,
                             strlen(d.records[k].ground_truth), "golds", &err));
            item.n = (size_t)snprintf(said, sizeof said, "so <answer>%.600s</answer>",
                                      kg_json_text(kg_json_at(doc.root, 0), NULL));
            ok(kg_task_grade(&g, row(), &opts, &item, 1, &err));
            assert_true(g.correct);
            kg_json_release(&doc);
        }
        kg_dataset_release(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(questions_become_prompts),
        cmocka_unit_test(the_published_words_are_word_for_word),
        cmocka_unit_test(a_template_stands_alone_around_the_question),
        cmocka_unit_test(a_chat_template_renders_one_user_turn),
        cmocka_unit_test(files_of_search_r1_are_taken_as_they_are),
        cmocka_unit_test(numbers_are_answers_and_brackets_may_be),
        cmocka_unit_test(what_is_no_answer_is_refused_with_its_place),
        cmocka_unit_test(each_metric_rewards),
        cmocka_unit_test(answers_are_the_same_as_the_metric_says),
        cmocka_unit_test(a_tools_words_are_no_answer),
        cmocka_unit_test(two_pairs_count_the_prompts),
        cmocka_unit_test(public_sets_grade_themselves),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
