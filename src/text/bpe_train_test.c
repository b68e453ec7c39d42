/* Tests of the BPE trainer: the same input gives the same tokenizer; vocabulary sizes;
 * special tokens. tests/data/tokenizer/vectors.jsonl has the ids that Python's
 * `tokenizers` gives for a trained file. */
#include "text/tokenizer.h"

#include "base/file.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DATA "tests/data/tokenizer/"

static struct kg_err err;
static char dir[64];
static const char *const SPECIALS[] = {"<|im_end|>", "<|im_start|>", "<|endoftext|>"};

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/kedge-bpe-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    return kg_file_remove_tree(dir, &err) == KG_OK ? 0 : -1;
}

static void read_file(struct kg_str *out, const char *folder, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (kg_file_read(out, path, 1 << 24, &err) != KG_OK)
        fail_msg("%s", err.message);
}

static kg_status train(const char *const *texts, size_t n, int32_t vocab,
                       size_t n_specials)
{
    const struct kg_bpe_train opts = {
        .vocab_size = vocab, .specials = SPECIALS, .n_specials = n_specials};
    return kg_bpe_train_write(dir, texts, n, &opts, &err);
}

static void assert_same_file(const char *name)
{
    struct kg_str made = {0};
    struct kg_str kept = {0};
    read_file(&made, dir, name);
    read_file(&kept, DATA "small", name);
    assert_string_equal(made.data, kept.data);
    kg_str_release(&made);
    kg_str_release(&kept);
}

static void the_same_text_gives_the_same_files(void **state)
{
    struct kg_str corpus = {0};
    (void)state;
    read_file(&corpus, DATA, "corpus.txt");
    const char *text = corpus.data;
    assert_int_equal(train(&text, 1, 600, 3), KG_OK);
    assert_same_file("tokenizer.json");
    assert_same_file("tokenizer_config.json");
    kg_str_release(&corpus);
}

static void order_of_documents_does_not_matter(void **state)
{
    static const char *const one[] = {"low lower lowest", "new newer newest wide wider"};
    static const char *const two[] = {"new newer newest wide wider", "low lower lowest"};
    struct kg_str a = {0};
    struct kg_str b = {0};
    (void)state;
    assert_int_equal(train(one, 2, 265, 0), KG_OK);
    read_file(&a, dir, "tokenizer.json");
    assert_int_equal(train(two, 2, 265, 0), KG_OK);
    read_file(&b, dir, "tokenizer.json");
    assert_string_equal(a.data, b.data);
    kg_str_release(&a);
    kg_str_release(&b);
}

static int32_t count_ids(const struct kg_tokenizer *tok, const char *text)
{
    struct kg_ids ids = {0};
    const struct kg_encode_opts opts = {.parse_special = true};
    assert_int_equal(kg_tokenizer_encode(&ids, tok, text, strlen(text), opts, &err),
                     KG_OK);
    int32_t n = (int32_t)ids.n;
    kg_ids_release(&ids);
    return n;
}

static struct kg_tokenizer *trained(const char *text, int32_t vocab, size_t n_specials)
{
    struct kg_tokenizer *tok;
    if (train(&text, 1, vocab, n_specials) != KG_OK ||
        kg_tokenizer_open(&tok, dir, &err) != KG_OK)
        fail_msg("%s", err.message);
    return tok;
}

/* The textbook example of BPE, aaabdaaabac: first aa (4 times, counting overlaps), then
 * the next pairs by count. */
static void frequent_pairs_become_tokens(void **state)
{
    struct kg_tokenizer *tok = trained("aaabdaaabac aaabdaaabac aaabdaaabac", 260, 1);
    (void)state;
    assert_int_equal(kg_tokenizer_vocab_size(tok), 260);
    assert_int_equal(kg_tokenizer_eos(tok), 259);
    assert_int_equal(kg_tokenizer_find(tok, "<|im_end|>"), 259);
    assert_true(count_ids(tok, "aaab") < 4);
    kg_tokenizer_close(tok);
}

static void special_tokens_in_the_text_are_not_learned(void **state)
{
    struct kg_tokenizer *tok = trained("ab<|im_end|>ab<|im_end|>ab<|im_end|>ab<|im_end|>",
                                       258, 1);
    (void)state;
    assert_int_equal(count_ids(tok, "ab"), 1);
    assert_int_equal(count_ids(tok, "<|im_end|>"), 1);
    assert_int_equal(count_ids(tok, "im_end"), 6);
    kg_tokenizer_close(tok);
}

static void too_little_text_names_the_number_reached(void **state)
{
    static const char *const text[] = {"abab"};
    (void)state;
    assert_int_equal(train(text, 1, 512, 0), KG_EINVAL);
    assert_non_null(strstr(err.message, "only 258 tokens"));
    assert_int_equal(train(text, 0, 300, 0), KG_EINVAL);
    assert_non_null(strstr(err.message, "only 256 tokens"));
    assert_int_equal(train(text, 1, 258, 0), KG_OK);
}

static void bad_options_and_texts_are_refused(void **state)
{
    static const char *const text[] = {"fine", "bad \xC3"};
    static const char *const twice[] = {"<a>", "<a>"};
    struct kg_bpe_train opts = {.vocab_size = 300, .specials = twice, .n_specials = 2};
    (void)state;
    assert_int_equal(train(text, 1, 255, 0), KG_EINVAL);
    assert_int_equal(train(text, 1, 258, 3), KG_EINVAL);
    assert_non_null(strstr(err.message, "expected 259"));
    assert_int_equal(train(text, 2, 256, 0), KG_EFORMAT);
    assert_non_null(strstr(err.message, "document 1"));
    assert_int_equal(kg_bpe_train_write(dir, text, 1, &opts, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "twice"));
    opts = (struct kg_bpe_train){.vocab_size = 256, .pattern = "\\w+"};
    assert_int_equal(kg_bpe_train_write(dir, text, 1, &opts, &err), KG_EUNSUPPORTED);
}

static void every_failed_allocation_is_a_status(void **state)
{
    static const char *const text[] = {"low lower lowest caf\x65\xCC\x81<|im_end|>newer"};
    uint64_t before = kg_mem_current_bytes();
    kg_status status = KG_ENOMEM;
    (void)state;
    for (uint64_t n = 1; status != KG_OK; n++) {
        kg_mem_fail_at(n);
        status = train(text, 1, 262, 2);
        kg_mem_fail_at(0);
        assert_true(status == KG_OK || status == KG_ENOMEM);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_text_gives_the_same_files),
        cmocka_unit_test(order_of_documents_does_not_matter),
        cmocka_unit_test(frequent_pairs_become_tokens),
        cmocka_unit_test(special_tokens_in_the_text_are_not_learned),
        cmocka_unit_test(too_little_text_names_the_number_reached),
        cmocka_unit_test(bad_options_and_texts_are_refused),
        cmocka_unit_test(every_failed_allocation_is_a_status),
    };
    return cmocka_run_group_tests_name("bpe_train", tests, make_dir, remove_dir);
}
