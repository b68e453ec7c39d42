/* Reading actions: which pair of tags counts, how its text is trimmed, and 140 recorded
 * trajectories. */
#include "task/action.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/need_testing.h"
#include "data/jsonl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect(const char *text, enum kg_action_kind kind, const char *inside)
{
    struct kg_action a;

    kg_action_read(&a, &kg_search_tags, text, strlen(text));
    if (a.kind != kind)
        fail_msg("%s: expected kind %d, found %d", text, kind, a.kind);
    if (kind == KG_ACTION_NONE) {
        assert_null(a.text);
        return;
    }
    if (a.n != strlen(inside) || memcmp(a.text, inside, a.n) != 0)
        fail_msg("%s: expected '%s', found '%.*s'", text, inside, (int)a.n, a.text);
}

static void the_first_complete_pair_counts(void **state)
{
    (void)state;
    expect("<think>a</think><search> who\nwrote it </search>", KG_ACTION_TOOL,
           "who\nwrote it");
    expect("<answer>42</answer> more", KG_ACTION_ANSWER, "42");
    expect("<search>q</search> info <answer>42</answer>", KG_ACTION_TOOL, "q");
    expect("<answer>42</answer><search>q</search>", KG_ACTION_ANSWER, "42");
    expect("<search></search>", KG_ACTION_TOOL, "");
    expect("<answer> \n </answer>", KG_ACTION_ANSWER, "");
    /* unclosed and nested tags */
    expect("<search>q <answer>42</answer>", KG_ACTION_ANSWER, "42");
    expect("<search>a <search>b</search>", KG_ACTION_TOOL, "a <search>b");
    expect("<search>a <answer>b</answer></search>", KG_ACTION_TOOL,
           "a <answer>b</answer>");
    expect("</search><search>q</search>", KG_ACTION_TOOL, "q");
    expect("<answer>a</search></answer>", KG_ACTION_ANSWER, "a</search>");
}

static void what_is_no_action_is_none(void **state)
{
    (void)state;
    expect("", KG_ACTION_NONE, "");
    expect("plain text", KG_ACTION_NONE, "");
    expect("<search>q", KG_ACTION_NONE, "");
    expect("</search>", KG_ACTION_NONE, "");
    expect("</answer> <answer>", KG_ACTION_NONE, "");
    expect("<Search>q</Search>", KG_ACTION_NONE, "");
    expect("< search>q</search>", KG_ACTION_NONE, "");
    expect("<search>q</answer>", KG_ACTION_NONE, "");
}

/* Text has a length: a tag past its end is not part of it. */
static void nothing_is_read_behind_the_end(void **state)
{
    static const char text[] = "<search>a</search><search>b</search>";
    struct kg_tagged found;
    size_t one = strlen("<search>a</search>");

    (void)state;
    for (size_t n = 0; n <= sizeof text - 1; n++) {
        char *exact = malloc(n + (n == 0)); /* exact, for a sanitizer */

        assert_non_null(exact);
        memcpy(exact, text, n);
        kg_tagged_next(&found, &kg_search_tags.tool, exact, n, 0);
        assert_int_equal(found.text != NULL, n >= one);
        kg_tagged_next(&found, &kg_search_tags.tool, exact, n, 1);
        assert_int_equal(found.text != NULL, n == sizeof text - 1);
        kg_tagged_next(&found, &kg_search_tags.tool, exact, n, one);
        assert_int_equal(found.text != NULL, n == sizeof text - 1);
        assert_true(!found.text || *found.text == 'b');
        free(exact);
    }
    assert_true(found.begin == one && found.end == sizeof text - 1 && found.n == 1);
}

static void white_space_of_any_script_is_trimmed(void **state)
{
    size_t n;

    (void)state;
    expect("<search>\xe3\x80\x80 q\xc2\xa0\x1f\t</search>", KG_ACTION_TOOL, "q");
    expect("<search>\xff q \x80</search>", KG_ACTION_TOOL, "\xff q \x80");
    expect("<search>\xe2\x80\x8bq</search>", KG_ACTION_TOOL, "\xe2\x80\x8bq");
    kg_text_trim(&n, " \xc2", 2);
    assert_int_equal(n, 1);
    kg_text_trim(&n, "", 0);
    assert_int_equal(n, 0);
}

/* A megabyte of opening tags and of partial tags has no pair, and finding none takes
 * linear time. */
static void hostile_text_takes_linear_time(void **state)
{
    static const char *const parts[] = {"<search>", "<answer><search>", "<searc", "<<<",
                                        "</search></answer>"};
    size_t n = 1 << 20;
    char *text = malloc(n + 32);
    double begin = kg_clock_seconds();

    (void)state;
    assert_non_null(text);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct kg_action a;
        size_t len = strlen(parts[i]);

        for (size_t at = 0; at < n; at += len)
            memcpy(text + at, parts[i], len);
        kg_action_read(&a, &kg_search_tags, text, n);
        assert_int_equal(a.kind, KG_ACTION_NONE);
    }
    assert_true(kg_clock_seconds() - begin < 2);
    free(text);
}

/* ---- recorded trajectories ---- */

/* The tags of R1-Searcher, which recorded the trajectories. */
static const struct kg_action_tags RECORDED = {
    .tool = {"<|begin_of_query|>", "<|end_of_query|>"},
    .answer = {"<answer>", "</answer>"},
};
static const struct kg_tag_pair DOCUMENTS = {"<|begin_of_documents|>",
                                             "<|end_of_documents|>"};

struct tally {
    int queries, answers;
    size_t query_bytes, answer_bytes;
};

static void read_rollout(struct tally *t, const struct kg_json *root)
{
    size_t n, recorded_n;
    const char *text = kg_json_text(kg_json_get(root, "trajectory"), &n);
    const char *recorded = kg_json_text(kg_json_get(root, "pred_ans"), &recorded_n);

    for (size_t at = 0;;) {
        struct kg_tagged docs;
        struct kg_action a;

        kg_tagged_next(&docs, &DOCUMENTS, text, n, at);
        kg_action_read(&a, &RECORDED, text + at, (docs.text ? docs.begin : n) - at);
        if (!docs.text) {
            assert_int_equal(a.kind, KG_ACTION_ANSWER);
            assert_int_equal(a.raw.n, recorded_n);
            assert_memory_equal(a.raw.text, recorded, recorded_n);
            t->answers++;
            t->answer_bytes += a.n;
            return;
        }
        assert_int_equal(a.kind, KG_ACTION_TOOL);
        t->queries++;
        t->query_bytes += a.n;
        at = docs.end;
    }
}

/* A turn that documents follow holds a query, every other turn the recorded answer.
 * Another program's regular expressions gave the expected sums. */
static void recorded_rollouts_read_as_recorded(void **state)
{
    static const char file[] = "../shared/data/search/trajectories_bamboogle.jsonl";
    struct kg_json_doc doc = {0};
    struct tally t = {0};
    struct kg_jsonl *in;
    bool more;

    (void)state;
    if (!kg_file_exists(file)) {
        print_message("skip: %s is not there\n", file);
        skip();
    }
    NEED(kg_jsonl_open(&in, file, err));
    for (;;) {
        NEED(kg_jsonl_next(in, &doc, &more, err));
        if (!more)
            break;
        read_rollout(&t, doc.root);
    }
    kg_jsonl_close(in);
    kg_json_release(&doc);
    assert_int_equal(t.answers, 140);
    assert_int_equal(t.queries, 319);
    assert_int_equal(t.query_bytes, 10718);
    assert_int_equal(t.answer_bytes, 1747);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_complete_pair_counts),
        cmocka_unit_test(what_is_no_action_is_none),
        cmocka_unit_test(nothing_is_read_behind_the_end),
        cmocka_unit_test(white_space_of_any_script_is_trimmed),
        cmocka_unit_test(hostile_text_takes_linear_time),
        cmocka_unit_test(recorded_rollouts_read_as_recorded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
