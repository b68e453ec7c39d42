/* WordPiece: ids and decoded texts are those of HuggingFace's `tokenizers`, what is
 * refused, and failed allocations. */
#include "text/forms_testing.h"

static void every_form_gives_the_ids_of_the_library(void **state)
{
    (void)state;
    check_forms(true, 5);
}

#define WORDS                                                                            \
    "{\"type\":\"WordPiece\",\"unk_token\":\"?\",\"continuing_subword_prefix\":\"##\","  \
    "\"max_input_chars_per_word\":9,\"vocab\":{\"?\":0,\"a\":1,\"##b\":2}}"

/* A WordPiece model with these fields is refused, and the message names the bad one. */
static void fields_are_refused_by_name(void **state)
{
    static const struct {
        const char *prefix, *most, *unknown, *more, *named;
    } rows[] = {
        {"\"\"", "-1", "\"a\"", "", "max_input_chars_per_word is -1"},
        {"\"\"", "1.5", "\"a\"", "", "max_input_chars_per_word"},
        {"\"\"", "\"9\"", "\"a\"", "", "max_input_chars_per_word"},
        {"\"\"", "null", "\"a\"", "", "max_input_chars_per_word"},
        {"\"\"", "1", "null", "", "unk_token is null"},
        {"\"\"", "1", "7", "", "unk_token is 7"},
        {"\"\"", "1", "[\"a\"]", "", "unk_token"},
        {"null", "1", "\"a\"", "", "continuing_subword_prefix is null"},
        {"3", "1", "\"a\"", "", "continuing_subword_prefix is 3"},
        {"[]", "1", "\"a\"", "", "continuing_subword_prefix"},
        {"\"\"", "1", "\"a\"", ",\"dropout\":0.1", "model.dropout"},
        {"\"\"", "1", "\"a\"", ",\"merges\":[]", "model.merges"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_tokenizer *tok = NULL;
        struct kg_err why = {0};
        char model[256];
        snprintf(model, sizeof model,
                 "{\"type\":\"WordPiece\",\"vocab\":{\"a\":0},\"unk_token\":%s,"
                 "\"continuing_subword_prefix\":%s,\"max_input_chars_per_word\":%s%s}",
                 rows[i].unknown, rows[i].prefix, rows[i].most, rows[i].more);
        assert_int_equal(parse_parts(&tok, "null", "null", "null", model, &why),
                         KG_EUNSUPPORTED);
        if (!strstr(why.message, rows[i].named) || !strstr(why.message, "made"))
            fail_msg("row %zu: %s", i, why.message);
    }
}

static void it_has_no_bytes(void **state)
{
    struct kg_tokenizer *tok = NULL;
    struct kg_err why;
    (void)state;
    assert_int_equal(
        parse_parts(&tok, "null", "{\"type\":\"ByteLevel\"}", "null", WORDS, &why),
        KG_EUNSUPPORTED);
    assert_non_null(strstr(why.message, "model.type"));
}

static void every_failed_allocation_is_a_status(void **state)
{
    (void)state;
    every_allocation_fails("{\"type\":\"BertNormalizer\"}", WORDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_gives_the_ids_of_the_library),
        cmocka_unit_test(fields_are_refused_by_name),
        cmocka_unit_test(it_has_no_bytes),
        cmocka_unit_test(every_failed_allocation_is_a_status),
    };
    return cmocka_run_group_tests_name("wordpiece", tests, NULL, NULL);
}
