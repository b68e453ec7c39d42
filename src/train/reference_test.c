/* A second checkpoint is accepted if its ids mean the same tokens; else the error names
 * the difference. */
#include "train/open/open.h"

#include "base/file.h"
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DIGITS "tests/data/verl_digit_llama"
#define OTHER  "tests/data/models/synthetic_tiny_llama"
#define ROOT   "build/test-runs/reference"

static const struct kg_model_opts reads = {.ct = KG_F32}, trains = {.trainable = true};

static struct kg_err err;
static struct kg_model *model;
static struct kg_tokenizer *tok;

static int setup(void **state)
{
    struct kg_model_opts opts = {.ct = KG_F32};

    (void)state;
    return kg_model_open(&model, DIGITS, &opts, &err) != KG_OK ||
           kg_tokenizer_open(&tok, DIGITS, &err) != KG_OK;
}

static int teardown(void **state)
{
    (void)state;
    kg_model_free(model);
    kg_tokenizer_close(tok);
    return 0;
}

static void expect_refused(const char *dir, const char *words)
{
    struct kg_model *m = NULL;

    assert_int_equal(kg_reference_open(&m, dir, "anchor.path", model, tok, &reads, &err),
                     KG_ECONFLICT);
    assert_null(m);
    assert_non_null(strstr(err.message, "anchor.path"));
    if (!strstr(err.message, words))
        fail_msg("expected '%s', found: %s", words, err.message);
}

/* Copies the digit checkpoint with another file of ids. */
static void digits_with_ids(const char *ids)
{
    assert_int_equal(system("rm -rf " ROOT " && mkdir -p " ROOT " && cp " DIGITS
                            "/config.json " DIGITS "/model.safetensors " ROOT),
                     0);
    assert_int_equal(kg_file_write_atomic(ROOT "/token_ids.json", ids, strlen(ids), &err),
                     KG_OK);
}

static void the_same_ids_are_taken(void **state)
{
    struct kg_model *m;

    (void)state;
    assert_int_equal(
        kg_reference_open(&m, DIGITS, "anchor.path", model, tok, &trains, &err), KG_OK);
    assert_non_null(m->master.data);
    kg_model_free(m);
}

static void another_vocabulary_is_refused_with_both_numbers(void **state)
{
    (void)state;
    expect_refused(OTHER, "expected the model's vocabulary of 16 tokens");
}

static void other_bytes_of_an_id_are_refused_with_the_id(void **state)
{
    struct kg_str ids = {0};

    (void)state;
    assert_int_equal(kg_file_read(&ids, DIGITS "/token_ids.json", 1 << 16, &err), KG_OK);
    for (size_t i = 0; i < ids.len; i++) /* swaps 3 and 4 */
        if (ids.data[i] == '"' && ids.data[i + 2] == '"')
            ids.data[i + 1] = ids.data[i + 1] == '3'   ? '4'
                              : ids.data[i + 1] == '4' ? '3'
                                                       : ids.data[i + 1];
    digits_with_ids(kg_str_text(&ids));
    expect_refused(ROOT, "is '4' in it and '3' in the model's");
    kg_str_release(&ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_ids_are_taken),
        cmocka_unit_test(another_vocabulary_is_refused_with_both_numbers),
        cmocka_unit_test(other_bytes_of_an_id_are_refused_with_the_id),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
