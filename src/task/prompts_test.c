/* Prompts as tokens: none is truncated; one that is too long is dropped and counted, or
 * refused with its line; prompts of several files are joined. */
#include "task/prompts.h"

#include "base/mem.h"
#include "base/need_testing.h"

#include <stdio.h>
#include <string.h>

static struct kg_tokenizer *tok; /* one token per character */

static int set_up(void **state)
{
    struct kg_err why;

    (void)state;
    return kg_tokenizer_open(&tok, "tests/data/verl_digit_llama", &why) != KG_OK;
}

static int tear_down(void **state)
{
    (void)state;
    kg_tokenizer_close(tok);
    return 0;
}

/* A data set of these prompts, at lines first, first + 1, ... */
static void problems(struct kg_dataset *d, const char *name, const char *const *texts,
                     int64_t first)
{
    memset(d, 0, sizeof *d);
    d->is_file = true;
    d->unit = "line";
    for (int64_t i = 0; texts[i]; i++) {
        char text[64], empty[1] = "";
        struct kg_record r = {.prompt = text,
                              .ground_truth = empty,
                              .data_source = empty,
                              .line = first + i};

        snprintf(text, sizeof text, "%s", texts[i]);
        NEED(kg_dataset_push(d, &r, err));
    }
    d->name = kg_mem_strdup(name, &(struct kg_err){0});
}

static void is_text(const struct kg_prompts *p, size_t i, const char *text)
{
    struct kg_str found = {0};

    assert_true(i < p->n);
    assert_string_equal(p->data->records[p->record[i]].prompt, text);
    NEED(kg_tokenizer_decode(&found, tok, p->ids[i].ids, p->ids[i].n, false, err));
    assert_string_equal(kg_str_text(&found), text);
    kg_str_release(&found);
}

static const char *const texts[] = {"1,2", "1,2,3,4", "3", "1,2,3,4,5", NULL};

static void what_is_too_long_is_dropped_and_counted(void **state)
{
    struct kg_prompts_opts opts = {.max_tokens = 7, .drop_overlong = true};
    struct kg_dataset d;
    struct kg_prompts p;

    (void)state;
    problems(&d, "a.jsonl", texts, 1);
    NEED(kg_prompts_init(&p, &d, tok, &opts, err));
    assert_int_equal(p.n, 3); /* 3, 7 and 1 tokens; the last has 9 */
    for (size_t i = 0; i < 3; i++)
        is_text(&p, i, texts[i]);
    assert_int_equal(p.dropped_too_long, 1);
    assert_int_equal(p.longest, 7);
    kg_prompts_release(&p);
    opts.limit = 2;
    opts.max_tokens = 6;
    NEED(kg_prompts_init(&p, &d, tok, &opts, err));
    assert_int_equal(p.n, 1); /* only the first two were read */
    assert_int_equal(p.dropped_too_long, 1);
    assert_int_equal(p.longest, 3);
    kg_prompts_release(&p);
    assert_true(!p.ids && !p.record && !p.data && p.n == 0 && p.longest == 0);
    kg_prompts_release(&p); /* releasing twice is harmless */
    kg_dataset_release(&d);
}

static void a_prompt_that_must_fit_and_does_not_is_named(void **state)
{
    struct kg_prompts_opts opts = {.max_tokens = 7};
    struct kg_dataset d;
    struct kg_prompts p;
    struct kg_err why;

    (void)state;
    problems(&d, "a.jsonl", texts, 10);
    assert_int_equal(kg_prompts_init(&p, &d, tok, &opts, &why), KG_EINVAL);
    assert_string_equal(why.message, "a.jsonl line 13: expected a prompt of at most 7 "
                                     "tokens, found 9");
    assert_null(p.ids);
    opts.max_tokens = 9;
    NEED(kg_prompts_init(&p, &d, tok, &opts, err));
    assert_int_equal(p.n, 4);
    kg_prompts_release(&p);
    opts = (struct kg_prompts_opts){.max_tokens = 0, .drop_overlong = true};
    assert_int_equal(kg_prompts_init(&p, &d, tok, &opts, &why), KG_EINVAL);
    assert_string_equal(why.message, "a.jsonl: expected a prompt of at most 0 tokens, "
                                     "found none among 4 records");
    d.records[1].prompt[0] = 0;
    d.is_file = false;
    opts.max_tokens = 9;
    assert_int_equal(kg_prompts_init(&p, &d, tok, &opts, &why), KG_EINVAL);
    assert_string_equal(why.message, "a.jsonl problem 11: expected a prompt of at least "
                                     "one token, found none");
    kg_dataset_release(&d);
}

static void prompts_of_files_stand_behind_each_other(void **state)
{
    static const char *const more_texts[] = {"9,9,9,9,9", "8", NULL};
    struct kg_prompts_opts opts = {.max_tokens = 7, .drop_overlong = true};
    struct kg_dataset a, b;
    struct kg_prompts p, q;

    (void)state;
    problems(&a, "a.jsonl", texts, 1);
    problems(&b, "b.jsonl", more_texts, 1);
    NEED(kg_prompts_init(&p, &a, tok, &opts, err));
    NEED(kg_prompts_init(&q, &b, tok, &opts, err));
    NEED(kg_prompts_join(&p, &a, &q, &b, err));
    assert_int_equal(p.n, 4);
    is_text(&p, 0, "1,2");
    is_text(&p, 3, "8"); /* record 5, the sixth of both files; two were dropped */
    assert_int_equal(p.record[3], 5);
    assert_int_equal(p.dropped_too_long, 2);
    assert_int_equal(p.longest, 7);
    assert_true(q.n == 0 && !q.ids && b.n == 0);
    kg_prompts_release(&p);
    kg_dataset_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_too_long_is_dropped_and_counted),
        cmocka_unit_test(a_prompt_that_must_fit_and_does_not_is_named),
        cmocka_unit_test(prompts_of_files_stand_behind_each_other),
    };

    return cmocka_run_group_tests_name("task/prompts", tests, set_up, tear_down);
}
