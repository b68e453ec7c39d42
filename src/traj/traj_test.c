/* Trajectories: records stay aligned with their tokens, a failed call changes nothing,
 * the dump reads back. */
#include "traj/traj.h"

#include "base/mem.h"
#include "data/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BOUND = 256 };
static struct kg_err err;

/* Asserts that s holds n ids: first, first + 10, ... */
static void assert_kept(const struct kg_idset *s, int32_t first, int32_t n)
{
    struct kg_idset_walk w;

    assert_int_equal(s->n, n);
    if (n > 0)
        kg_idset_begin(&w, s);
    for (int32_t i = 0; i < n; i++, kg_idset_next(&w, s))
        assert_int_equal(w.id, first + 10 * i);
    assert_true(n == 0 || w.id == BOUND);
}

static kg_status push(struct kg_traj *t, int32_t token, int32_t kept_n)
{
    const int32_t top_ids[2] = {token, token + 1};
    const float top_logp[2] = {-0.5f * (float)token, -9};
    uint64_t words[BOUND / 64] = {0};
    uint8_t packed[BOUND / 8];
    struct kg_traj_step step = {.token = token,
                                .logp = -0.25f * (float)token,
                                .top_ids = top_ids,
                                .top_logp = top_logp,
                                .cut = kept_n > 0 ? 0.25f : 0};

    for (int32_t i = 0; i < kept_n; i++)
        words[(token + 10 * i) / 64] |= (uint64_t)1 << ((token + 10 * i) % 64);
    step.kept = kg_idset_pack(packed, words, BOUND);
    return kg_traj_push(t, &step, &err);
}

static void records_stay_with_their_tokens(void **state)
{
    const int32_t prompt[3] = {7, 8, 9};
    const int32_t tool[2] = {70, 80};
    struct kg_traj t = {.top_k = 2};

    (void)state;
    assert_int_equal(kg_traj_append(&t, prompt, 3, KG_SOURCE_PROMPT, &err), KG_OK);
    for (int32_t i = 0; i < 40; i++)
        assert_int_equal(push(&t, i, i % 4), KG_OK);
    assert_int_equal(kg_traj_append(&t, tool, 2, KG_SOURCE_TOOL, &err), KG_OK);
    for (int32_t i = 40; i < 100; i++)
        assert_int_equal(push(&t, i, i % 4), KG_OK);

    assert_int_equal(t.n, 105);
    assert_int_equal(t.prompt_n, 3);
    assert_int_equal(kg_traj_model_tokens(&t), 100);
    for (size_t at = 3, behind = 0; at < 105; at++) {
        int32_t i = (int32_t)(at < 43 ? at - 3 : at - 5);
        struct kg_idset kept = kg_traj_kept(&t, at, &behind);

        if (at == 43 || at == 44) {
            assert_int_equal(t.source[at], KG_SOURCE_TOOL);
            assert_true(t.logp[at] == 0 && t.top_ids[2 * at] == 0 && t.kept_n[at] == 0);
            continue;
        }
        assert_int_equal(t.tokens[at], i);
        assert_int_equal(t.source[at], KG_SOURCE_MODEL);
        assert_true(t.logp[at] == -0.25f * (float)i);
        assert_int_equal(t.top_ids[2 * at + 1], i + 1);
        assert_true(t.top_logp[2 * at] == -0.5f * (float)i);
        assert_kept(&kept, i, i % 4);
        if (at == 104)
            assert_int_equal(behind, t.kept_total);
    }
    assert_int_equal(t.cut_n, 75);
    assert_true(t.cut_nats == 75 * 0.25);
    kg_traj_release(&t);
    assert_null(t.tokens);
}

static void what_others_wrote_is_kept_and_has_no_record(void **state)
{
    const int32_t words[3] = {7, 8, 9};
    struct kg_traj t = {.top_k = 1}; /* the smallest record */

    (void)state;
    assert_int_equal(kg_traj_append(&t, words, 2, KG_SOURCE_PROMPT, &err), KG_OK);
    assert_int_equal(kg_traj_append(&t, words + 2, 1, KG_SOURCE_PROMPT, &err), KG_OK);
    assert_int_equal(push(&t, 5, 2), KG_OK);
    assert_int_equal(kg_traj_append(&t, words, 3, KG_SOURCE_TOOL, &err), KG_OK);
    assert_int_equal(kg_traj_append(&t, NULL, 0, KG_SOURCE_TOOL, &err), KG_OK);
    assert_int_equal(t.n, 7);
    assert_int_equal(t.prompt_n, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(t.tokens[i], words[i]);
        assert_int_equal(t.tokens[4 + i], words[i]);
    }
    assert_true(t.top_ids[3] == 5 && t.top_logp[3] == -2.5f && t.kept_n[3] == 2);
    for (size_t at = 0; at < 7; at++)
        if (at != 3)
            assert_true(t.logp[at] == 0 && t.top_ids[at] == 0 && t.top_logp[at] == 0 &&
                        t.kept_n[at] == 0);
    kg_traj_release(&t);
}

/* Tokens p p m m t | m t t | m (prompt, model, tool): a window opens at each bar. */
static void the_parts_hold_every_sampled_token_once(void **state)
{
    static const int32_t words[2] = {7, 8};
    static const struct kg_traj_part expected[3] = {{0, 2, 4}, {1, 5, 6}, {4, 8, 9}};
    struct kg_traj_notes none = {0};
    struct kg_str line = {0};
    struct kg_traj t = {.episode = {.turns = 3}};

    (void)state;
    assert_int_equal(kg_traj_append(&t, words, 2, KG_SOURCE_PROMPT, &err), KG_OK);
    assert_int_equal(push(&t, 5, 0), KG_OK);
    assert_int_equal(push(&t, 6, 0), KG_OK);
    assert_int_equal(kg_traj_append(&t, words, 1, KG_SOURCE_TOOL, &err), KG_OK);
    assert_int_equal(kg_traj_n_parts(&t, false), 1);
    assert_int_equal(kg_traj_span(&t, false), 5);
    assert_int_equal(kg_traj_open_window(&t, 1, &err), KG_OK);
    assert_int_equal(push(&t, 9, 0), KG_OK);
    assert_int_equal(kg_traj_append(&t, words, 2, KG_SOURCE_TOOL, &err), KG_OK);
    assert_int_equal(kg_traj_open_window(&t, 4, &err), KG_OK);
    assert_int_equal(push(&t, 9, 0), KG_OK);
    assert_int_equal(kg_traj_n_parts(&t, false), 3);
    for (size_t i = 0; i < 3; i++) {
        struct kg_traj_part p = kg_traj_part(&t, i, false);

        assert_memory_equal(&p, &expected[i], sizeof p);
    }
    assert_int_equal(kg_traj_span(&t, false), 4 + 5 + 5);
    assert_int_equal(kg_traj_n_parts(&t, true), 1);
    assert_int_equal(kg_traj_part(&t, 0, true).begin, 2);
    assert_int_equal(kg_traj_part(&t, 0, true).end, 9);
    assert_int_equal(kg_traj_span(&t, true), 9);
    assert_int_equal(kg_traj_put_json(&line, &t, &none, &err), KG_OK);
    assert_non_null(strstr(line.data, ",\"windows\":[[5,1],[8,4]]"));
    kg_str_release(&line);
    kg_traj_release(&t);
}

static void a_trajectory_may_be_the_models_alone(void **state)
{
    struct kg_traj t = {0};

    (void)state;
    assert_int_equal(kg_traj_model_tokens(&t), 0);
    for (int32_t i = 0; i < 100; i++) {
        assert_int_equal(push(&t, i, 0), KG_OK);
        assert_int_equal(kg_traj_model_tokens(&t), i + 1);
    }
    kg_traj_release(&t);
}

/* At most 2^26 tokens: one more is refused before any memory is requested. */
static void a_trajectory_has_a_limit(void **state)
{
    const size_t most = (size_t)1 << 26;
    const int32_t first = 1;
    struct kg_traj t = {0};

    (void)state;
    assert_int_equal(kg_traj_append(&t, &first, 1, KG_SOURCE_PROMPT, &err), KG_OK);
    assert_int_equal(kg_traj_append(&t, NULL, most, KG_SOURCE_TOOL, &err), KG_ENOMEM);
    assert_non_null(strstr(err.message, "a trajectory of at most 67108864 tokens"));
    kg_mem_fail_at(1);
    assert_int_equal(kg_traj_append(&t, NULL, most - 1, KG_SOURCE_TOOL, &err), KG_ENOMEM);
    kg_mem_fail_at(0);
    assert_null(strstr(err.message, "at most 67108864"));
    assert_int_equal(t.n, 1);
    kg_traj_release(&t);
}

static void without_top_k_and_truncation_nothing_is_held_for_them(void **state)
{
    struct kg_traj t = {0};

    (void)state;
    assert_int_equal(push(&t, 5, 0), KG_OK);
    assert_null(t.top_ids);
    assert_null(t.top_logp);
    assert_null(t.kept_n);
    kg_traj_release(&t);
}

static void a_failed_push_leaves_the_trajectory_as_it_was(void **state)
{
    struct kg_traj t = {.top_k = 2};
    size_t behind = 0;
    int failures = 0;

    (void)state;
    for (int32_t i = 0; i < 200; i++) {
        kg_mem_fail_at((uint64_t)(1 + i % 7));
        if (push(&t, i, 1) != KG_OK) {
            failures++;
            kg_mem_fail_at(0);
            assert_int_equal(t.n, i);
            assert_int_equal(t.cut_n, i);
            assert_int_equal(push(&t, i, 1), KG_OK);
        }
        kg_mem_fail_at(0);
        assert_int_equal(t.tokens[t.n - 1], i);
    }
    assert_true(failures > 3);
    for (int32_t i = 0; i < 200; i++) {
        struct kg_idset kept = kg_traj_kept(&t, (size_t)i, &behind);

        assert_kept(&kept, i, 1);
        assert_true(t.tokens[i] == i && t.top_ids[2 * i] == i);
    }
    kg_traj_release(&t);
}

static void several_rewards_are_dumped_by_name(void **state)
{
    const struct kg_traj_notes notes = {.part_names = {"right", "brief"}};
    struct kg_traj t = {.graded = true, .n_parts = 2, .part = {0.25, NAN}};
    struct kg_str out = {0};

    (void)state;
    assert_int_equal(kg_traj_put_json(&out, &t, &notes, &err), KG_OK);
    assert_non_null(strstr(out.data, ",\"rewards\":{\"right\":0.25,\"brief\":null}"));
    kg_str_clear(&out);
    t.n_parts = 0;
    assert_int_equal(kg_traj_put_json(&out, &t, &notes, &err), KG_OK);
    assert_null(strstr(out.data, "rewards"));
    kg_str_release(&out);
}

/* Sorted by name, not in order of arrival; a value that no grader gave is null. */
static void what_graders_say_besides_is_dumped_by_name(void **state)
{
    struct kg_further_names names = {.n = 0};
    const struct kg_traj_notes notes = {.further = &names, .further_mask = 3},
                               of_all = {.further = &names, .further_mask = 7},
                               of_none = {.further = &names};
    struct kg_traj t = {.graded = true};
    struct kg_str out = {0};
    int k;

    (void)state;
    assert_int_equal(kg_further_find(&k, &names, "words", &err), KG_OK);
    t.further.x[k] = 12.5;
    t.further.said = 1;
    assert_int_equal(kg_further_find(&k, &names, "kind", &err), KG_OK);
    assert_int_equal(k, 1);
    assert_int_equal(kg_further_find(&k, &names, "all", &err), KG_OK);
    assert_int_equal(kg_further_find(&k, &names, "words", &err), KG_OK);
    assert_int_equal(k, 0);
    assert_int_equal(kg_traj_put_json(&out, &t, &notes, &err), KG_OK);
    assert_non_null(strstr(out.data, ",\"further\":{\"kind\":null,\"words\":12.5}"));
    assert_int_equal(kg_traj_put_json(&out, &t, &of_all, &err), KG_OK);
    assert_non_null(strstr(out.data, "{\"all\":null,\"kind\":null,\"words\":12.5}"));
    kg_str_clear(&out);
    assert_int_equal(kg_traj_put_json(&out, &t, &of_none, &err), KG_OK);
    assert_null(strstr(out.data, "further"));
    kg_str_release(&out);
}

static void numbers_besides_have_a_bound(void **state)
{
    struct kg_further_names names = {.n = 0};
    char name[8];
    int k;

    (void)state;
    for (int i = 0; i < KG_FURTHER; i++) {
        snprintf(name, sizeof name, "n%d", i);
        assert_int_equal(kg_further_find(&k, &names, name, &err), KG_OK);
        assert_int_equal(k, i);
    }
    assert_int_equal(kg_further_find(&k, &names, "n3", &err), KG_OK);
    assert_int_equal(kg_further_find(&k, &names, "more", &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "at most 16 names"));
    assert_non_null(strstr(err.message, "'more'"));
}

static void the_dump_is_one_line_that_reads_back(void **state)
{
    const int32_t prompt[2] = {3, 4};
    const double advantage = 0.1, anchored = -0.5;
    char bytes[] = "a\n\"b\"\0c";
    const struct kg_str text = {.data = bytes, .len = sizeof bytes - 1};
    const struct kg_traj_notes notes = {
        .advantage = &advantage, .anchor_logp = &anchored, .text = &text};
    struct kg_traj t = {.prompt_index = 12,
                        .draw = 34,
                        .sample = 5,
                        .finish = KG_FINISH_STRING,
                        .reward = 1.0 / 3,
                        .shaping = -2.0 / 7,
                        .graded = true,
                        .temperature = 0.7f};
    struct kg_str out = {0};
    struct kg_json_doc doc;
    const char *found;
    size_t n;

    (void)state;
    assert_int_equal(kg_traj_append(&t, prompt, 2, KG_SOURCE_PROMPT, &err), KG_OK);
    assert_int_equal(push(&t, 3, 0), KG_OK);
    assert_int_equal(kg_traj_append(&t, prompt, 1, KG_SOURCE_TOOL, &err), KG_OK);
    assert_int_equal(kg_traj_put_json(&out, &t, &notes, &err), KG_OK);
    assert_ptr_equal(strchr(out.data, '\n'), out.data + out.len - 1);
    assert_int_equal(kg_json_parse(&doc, out.data, out.len, "dump", &err), KG_OK);
    assert_int_equal(kg_json_int(kg_json_get(doc.root, "prompt_index"), -1), 12);
    assert_int_equal(kg_json_int(kg_json_get(doc.root, "draw"), -1), 34);
    assert_int_equal(kg_json_int(kg_json_get(doc.root, "sample"), -1), 5);
    assert_string_equal(kg_json_text(kg_json_get(doc.root, "finish"), NULL),
                        "stop_string");
    assert_true(kg_json_real(kg_json_get(doc.root, "reward"), 0) == 1.0 / 3);
    assert_true(kg_json_real(kg_json_get(doc.root, "shaping"), 0) == -2.0 / 7);
    assert_true(kg_json_real(kg_json_get(doc.root, "advantage"), 0) == 0.1);
    assert_true((float)kg_json_real(kg_json_get(doc.root, "temperature"), 0) == 0.7f);
    assert_string_equal(kg_json_text(kg_json_get(doc.root, "source"), NULL), "ppmt");
    assert_int_equal(kg_json_size(kg_json_get(doc.root, "tokens")), 4);
    assert_int_equal(kg_json_type(kg_json_at(kg_json_get(doc.root, "logp"), 1)),
                     KG_JSON_NULL);
    assert_true(kg_json_real(kg_json_at(kg_json_get(doc.root, "logp"), 2), 0) == -0.75);
    assert_true(kg_json_real(kg_json_at(kg_json_get(doc.root, "anchor_logp"), 2), 0) ==
                -0.5);
    assert_int_equal(kg_json_type(kg_json_at(kg_json_get(doc.root, "anchor_logp"), 3)),
                     KG_JSON_NULL);
    found = kg_json_text(kg_json_get(doc.root, "text"), &n);
    assert_int_equal(n, text.len);
    assert_memory_equal(found, bytes, n);
    kg_json_release(&doc);
    kg_str_release(&out);
    kg_traj_release(&t);
}

static void an_episode_says_how_it_went(void **state)
{
    const struct kg_traj_notes none = {0};
    struct kg_traj t = {.episode = {.turns = 1}};
    struct kg_str out = {0};

    (void)state;
    assert_int_equal(kg_traj_put_json(&out, &t, &none, &err), KG_OK);
    assert_non_null(strstr(out.data, "\"turns\":1,\"calls\":0,\"invalid\":0,\"failed\":0,"
                                     "\"answered\":false,\"cut\":false"));
    kg_str_clear(&out);
    t.episode = (struct kg_traj_episode){
        .turns = 5, .calls = 4, .invalid = 3, .failed = 2, .answered = true, .cut = true};
    assert_int_equal(kg_traj_put_json(&out, &t, &none, &err), KG_OK);
    assert_non_null(strstr(out.data, "\"turns\":5,\"calls\":4,\"invalid\":3,\"failed\":2,"
                                     "\"answered\":true,\"cut\":true"));
    kg_str_clear(&out);
    t.episode.turns = 0; /* no episode: one completion */
    assert_int_equal(kg_traj_put_json(&out, &t, &none, &err), KG_OK);
    assert_null(strstr(out.data, "turns"));
    kg_str_release(&out);
}

static void an_ungraded_trajectory_has_no_reward(void **state)
{
    const struct kg_traj_notes none = {0};
    struct kg_traj t = {.reward = 1};
    struct kg_str out = {0};

    (void)state;
    assert_int_equal(kg_traj_put_json(&out, &t, &none, &err), KG_OK);
    assert_non_null(
        strstr(out.data, "\"reward\":null,\"graded\":false,\"advantage\":null"));
    assert_null(strstr(out.data, "text"));
    assert_null(strstr(out.data, "anchor_logp"));
    kg_str_release(&out);
}

static void an_end_is_found_by_its_name(void **state)
{
    enum kg_finish found;

    (void)state;
    for (int f = 0; f < KG_FINISH_COUNT; f++) {
        const char *name = kg_finish_name((enum kg_finish)f);

        assert_int_equal(kg_finish_find(&found, name, "here", &err), KG_OK);
        assert_int_equal(found, f);
    }
    assert_int_equal(kg_finish_find(&found, "stopped", "a.jsonl: line 3", &err),
                     KG_EFORMAT);
    assert_string_equal(err.message,
                        "a.jsonl: line 3: expected one of none, stop, stop_string, "
                        "length, cancelled; found 'stopped'; did you mean 'stop'?");
}

/* kg_traj_extend copies tokens with their records, for every range of another
 * trajectory. */
static void a_part_of_another_trajectory_keeps_its_records(void **state)
{
    const int32_t prompt[3] = {7, 8, 9}, tool[2] = {70, 80};
    struct kg_traj from = {.top_k = 2};

    (void)state;
    assert_int_equal(kg_traj_append(&from, prompt, 3, KG_SOURCE_PROMPT, &err), KG_OK);
    for (int32_t i = 0; i < 8; i++)
        assert_int_equal(push(&from, i, i % 4), KG_OK);
    assert_int_equal(kg_traj_append(&from, tool, 2, KG_SOURCE_TOOL, &err), KG_OK);
    for (int32_t i = 8; i < 12; i++)
        assert_int_equal(push(&from, i, i % 4), KG_OK);
    for (size_t begin = 0; begin <= from.n; begin++) {
        struct kg_traj t = {.top_k = 2};
        size_t behind = 0, other = 0;

        assert_int_equal(kg_traj_append(&t, prompt, 1, KG_SOURCE_PROMPT, &err), KG_OK);
        assert_int_equal(kg_traj_extend(&t, &from, begin, from.n, &err), KG_OK);
        assert_int_equal(t.n, 1 + from.n - begin);
        assert_int_equal(t.prompt_n, 1);
        (void)kg_traj_kept(&t, 0, &other);
        for (size_t j = 0; j < from.n; j++) {
            const struct kg_idset a = kg_traj_kept(&from, j, &behind);
            const size_t k = 1 + j - begin;

            if (j < begin)
                continue;
            const struct kg_idset b = kg_traj_kept(&t, k, &other);

            assert_int_equal(t.tokens[k], from.tokens[j]);
            assert_int_equal(t.source[k], j < 3 ? KG_SOURCE_TOOL : from.source[j]);
            assert_true(t.logp[k] == from.logp[j]);
            assert_memory_equal(t.top_ids + 2 * k, from.top_ids + 2 * j, 8);
            assert_memory_equal(t.top_logp + 2 * k, from.top_logp + 2 * j, 8);
            assert_int_equal(a.n, b.n);
            assert_int_equal(a.bytes, b.bytes);
            assert_true(a.bytes == 0 || memcmp(a.data, b.data, a.bytes) == 0);
        }
        kg_traj_release(&t);
    }
    kg_traj_release(&from);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_stay_with_their_tokens),
        cmocka_unit_test(a_part_of_another_trajectory_keeps_its_records),
        cmocka_unit_test(what_others_wrote_is_kept_and_has_no_record),
        cmocka_unit_test(the_parts_hold_every_sampled_token_once),
        cmocka_unit_test(a_trajectory_may_be_the_models_alone),
        cmocka_unit_test(a_trajectory_has_a_limit),
        cmocka_unit_test(without_top_k_and_truncation_nothing_is_held_for_them),
        cmocka_unit_test(a_failed_push_leaves_the_trajectory_as_it_was),
        cmocka_unit_test(the_dump_is_one_line_that_reads_back),
        cmocka_unit_test(several_rewards_are_dumped_by_name),
        cmocka_unit_test(what_graders_say_besides_is_dumped_by_name),
        cmocka_unit_test(numbers_besides_have_a_bound),
        cmocka_unit_test(an_episode_says_how_it_went),
        cmocka_unit_test(an_ungraded_trajectory_has_no_reward),
        cmocka_unit_test(an_end_is_found_by_its_name),
    };

    return cmocka_run_group_tests_name("traj", tests, NULL, NULL);
}
