/* Tests of streamed text: chunks never hold part of a character or of a stop string, and
 * together they are the finished answer. */
#include "serve/text.h"

#include "base/mem.h"
#include "base/need_testing.h"
#include "base/rng.h"
#include "rollout/rollout.h"
#include "text/unicode.h"

#include <string.h>

static struct kg_tokenizer *tok;
static int32_t byte_ids[256]; /* ids of the single bytes */

static int setup(void **state)
{
    (void)state;
    NEED(kg_tokenizer_open(&tok, "tests/data/tokenizer/small", err));
    for (int32_t id = 0; id < kg_tokenizer_vocab_size(tok); id++) {
        struct kg_str one = {0};
        NEED(kg_tokenizer_decode(&one, tok, &id, 1, false, err));
        if (one.len == 1 && !kg_tokenizer_is_special(tok, id))
            byte_ids[(unsigned char)one.data[0]] = id;
        kg_str_release(&one);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kg_tokenizer_close(tok);
    return kg_mem_current_bytes() != 0;
}

/* Adds the bytes of the text one by one; `expected` has '|' after each chunk. */
static void tells(const char *text, const char *const *stops, int n_stops,
                  enum kg_finish finish, const char *expected)
{
    struct kg_serve_text t = {0};
    struct kg_str out = {0};
    for (const char *c = text; *c; c++) {
        size_t before = out.len;
        NEED(kg_serve_text_add(&out, &t, tok, byte_ids[(unsigned char)*c], stops, n_stops,
                               err));
        if (out.len > before)
            NEED(kg_str_putc(&out, '|', err));
    }
    NEED(kg_serve_text_end(&out, &t, stops, n_stops, finish, err));
    assert_string_equal(kg_str_text(&out), expected);
    kg_serve_text_release(&t);
    kg_str_release(&out);
}

static void characters_are_told_whole(void **state)
{
    (void)state;
    tells("a\303\251b", NULL, 0, KG_FINISH_STOP, "a|\303\251|b|");
    tells("\360\237\230\200", NULL, 0, KG_FINISH_STOP, "\360\237\230\200|");
    tells("\342\202", NULL, 0, KG_FINISH_LENGTH, "\342\202"); /* never completed */
    tells("\342x", NULL, 0, KG_FINISH_STOP, "\342x|");
    tells("\377a", NULL, 0, KG_FINISH_STOP, "\377|a|");
}

static void what_may_be_a_stop_string_is_held_back(void **state)
{
    const char *const stops[] = {"aab", "xyz"};
    (void)state;
    tells("caaab", stops, 2, KG_FINISH_STRING, "c|a|");
    tells("caac", stops, 2, KG_FINISH_STOP, "c|aac|");
    tells("xyaab", stops, 2, KG_FINISH_STRING, "xy|"); /* sent when the a came */
    tells("aa", stops, 2, KG_FINISH_LENGTH, "aa");
    tells("xyz", stops, 2, KG_FINISH_STRING, "");
}

/* Random tokens, among them special tokens and parts of stop strings. */
static void check_told(const struct kg_tokenizer *tokenizer)
{
    static const char *const stops[] = {"e", "th", "<|", "\303\251"};
    const struct kg_rng_key key = {1, KG_RNG_TEST};
    for (uint32_t round = 0; round < 300; round++) {
        struct kg_serve_text told = {0};
        struct kg_str out = {0};
        struct kg_str raw = {0};
        struct kg_str whole = {0};
        struct kg_traj t = {.prompt_n = 0};
        int n_stops = (int)(round % 5);
        size_t at;
        t.finish = KG_FINISH_LENGTH;
        for (uint32_t i = 0; i < 60 && t.finish == KG_FINISH_LENGTH; i++) {
            struct kg_traj_step step = {
                .token = (int32_t)kg_rng_below(
                    key, round, i, 0, (uint64_t)kg_tokenizer_vocab_size(tokenizer))};
            size_t seen = raw.len;
            NEED(kg_traj_push(&t, &step, err));
            NEED(kg_tokenizer_decode(&raw, tokenizer, &step.token, 1, false, err));
            NEED(kg_serve_text_add(&out, &told, tokenizer, step.token, stops, n_stops,
                                   err));
            if (kg_stop_find(&at, &raw, seen, stops, n_stops))
                t.finish = KG_FINISH_STRING;
        }
        NEED(kg_serve_text_end(&out, &told, stops, n_stops, t.finish, err));
        NEED(kg_rollout_text(&whole, tokenizer, &t, stops, n_stops, err));
        assert_string_equal(kg_str_text(&out), kg_str_text(&whole));
        kg_serve_text_release(&told);
        kg_str_release(&out);
        kg_str_release(&raw);
        kg_str_release(&whole);
        kg_traj_release(&t);
    }
}

static void all_that_was_told_is_the_answer(void **state)
{
    struct kg_tokenizer *sentencepiece;
    (void)state;
    check_told(tok);
    NEED(kg_tokenizer_open(&sentencepiece, "tests/data/tokenizer/spm", err));
    check_told(sentencepiece);
    kg_tokenizer_close(sentencepiece);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(characters_are_told_whole),
        cmocka_unit_test(what_may_be_a_stop_string_is_held_back),
        cmocka_unit_test(all_that_was_told_is_the_answer),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
