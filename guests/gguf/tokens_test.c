/* Tokenizers of GGUF files: for every pre-tokenizer name the tokens are those of
 * llama.cpp, or of the original model; and a tokenizer that is written reads back with
 * the same tokens. */
#include "text/tokenizer.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/need_testing.h"
#include "data/jsonl.h"
#include "data/source.h"
#include "gguf/gguf_write.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DATA "tests/data/gguf/"

static char dir[64], file[96];

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/kg_gguf_tokens_XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(file, sizeof file, "%s/x.gguf", dir);
    return 0;
}

static int teardown(void **state)
{
    struct kg_err e;
    (void)state;
    return kg_file_remove_tree(dir, &e) == KG_OK ? 0 : -1;
}

/* ---- files ---- */

static void finish(struct kg_gguf_writer *w, size_t rows)
{
    const struct kg_quant *type = kg_quant_named("F16");
    const int64_t shape[2] = {(int64_t)rows, 1};
    NEED(kg_gguf_declare(w, "token_embd.weight", 2, shape, type, err));
    NEED(kg_gguf_begin(w, file, err));
    for (size_t i = 0; i < rows; i++)
        NEED(kg_gguf_put(w, "\0", 2, err));
    NEED(kg_gguf_pad(w, err));
    NEED(kg_gguf_end(w, err));
    kg_gguf_writer_release(w);
}

/* Writes vocab.gguf with another pre-tokenizer name. */
static void write_pre(const char *pre)
{
    struct kg_gguf_writer w = {.open = false};
    struct kg_gguf g;
    NEED(kg_gguf_open(&g, DATA "vocab.gguf", err));
    for (size_t i = 0; i < g.n_values; i++)
        if (strcmp(g.values[i].key, "tokenizer.ggml.pre") != 0)
            NEED(kg_gguf_put_value(&w, &g.values[i], err));
    NEED(kg_gguf_put_text(&w, "tokenizer.ggml.pre", pre, strlen(pre), err));
    finish(&w, (size_t)g.tensors[0].shape[0]);
    kg_gguf_close(&g);
}

/* Writes the tokenizer of a model folder as a GGUF file. */
static void write_tokenizer(const char *from, size_t rows)
{
    struct kg_gguf_writer w = {.open = false};
    bool none;
    NEED(kg_gguf_put_text(&w, "general.architecture", "llama", 5, err));
    NEED(kg_gguf_put_tokenizer(&w, from, rows, &none, err));
    assert_false(none);
    finish(&w, rows);
}

/* ---- tokens ---- */

enum { TEXTS = 2000, HUNDRED = 100, PRES = 16 };
static struct kg_json_doc texts_of[TEXTS];

static void read_texts(void)
{
    struct kg_jsonl *r;
    bool more;
    NEED(kg_jsonl_open(&r, DATA "texts.jsonl", err));
    for (size_t i = 0; i < TEXTS; i++) {
        NEED(kg_jsonl_next(r, &texts_of[i], &more, err));
        assert_true(more);
    }
    kg_jsonl_close(r);
}

/* SHA-1 of the ids of a hundred texts, each followed by -1. */
static void hash_hundred(char hash[KG_DIGEST_TEXT], const struct kg_tokenizer *tok,
                         const struct kg_json_doc *of)
{
    struct kg_digest d;
    struct kg_ids ids = {0};
    kg_digest_begin(&d, KG_SHA1);
    for (size_t i = 0; i < HUNDRED; i++) {
        size_t n;
        const char *text = kg_json_text(kg_json_get(of[i].root, "text"), &n);
        ids.n = 0;
        NEED(kg_tokenizer_encode(&ids, tok, text, n, (struct kg_encode_opts){0}, err));
        if (ids.n > 0) /* without ids the array may be NULL */
            kg_digest_put(&d, ids.ids, ids.n * sizeof *ids.ids);
        kg_digest_put(&d, (const int32_t[]){-1}, sizeof(int32_t));
    }
    kg_digest_end(hash, &d);
    kg_ids_release(&ids);
}

/* tools/oracle/make_gguf.py wrote the expected hashes. */
static void tokens_are_those_expected(void **state)
{
    struct kg_jsonl *r;
    struct kg_json_doc doc = {0};
    bool more = true;
    (void)state;
    read_texts();
    NEED(kg_jsonl_open(&r, DATA "tokens.jsonl", err));
    for (size_t p = 0; p < PRES; p++) {
        struct kg_tokenizer *tok;
        NEED(kg_jsonl_next(r, &doc, &more, err));
        assert_true(more);
        const char *pre = kg_json_text(kg_json_get(doc.root, "pre"), NULL);
        write_pre(pre);
        NEED(kg_tokenizer_open(&tok, file, err));
        for (size_t i = 0; i < TEXTS / HUNDRED; i++) {
            char hash[KG_DIGEST_TEXT];
            const struct kg_json *want = kg_json_at(kg_json_get(doc.root, "hashes"), i);
            hash_hundred(hash, tok, texts_of + HUNDRED * i);
            if (strcmp(hash, kg_json_text(want, NULL)) != 0)
                fail_msg("%s: tokens of texts.jsonl, lines %zu to %zu, are not "
                         "those expected",
                         pre, HUNDRED * i + 1, HUNDRED * (i + 1));
        }
        kg_tokenizer_close(tok);
        kg_json_release(&doc);
    }
    NEED(kg_jsonl_next(r, &doc, &more, err));
    assert_false(more);
    kg_jsonl_close(r);
    for (size_t i = 0; i < TEXTS; i++)
        kg_json_release(&texts_of[i]);
}

static const char *const texts[] = {
    "Hello, world!", " leading",  "a  b   c ",    "line\n\n x",
    "12345 1 22",    "it's IT'S", "naïve über",   "日本語",
    "🙂👍🏽",  "x=1;y+=2",  "CamelCaseURL", "\t\r\n",
    "e\xcc\x81",     ""};

static void same_tokens(const struct kg_tokenizer *a, const struct kg_tokenizer *b)
{
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct kg_ids x = {0}, y = {0};
        const struct kg_encode_opts opts = {0};
        NEED(kg_tokenizer_encode(&x, a, texts[i], strlen(texts[i]), opts, err));
        NEED(kg_tokenizer_encode(&y, b, texts[i], strlen(texts[i]), opts, err));
        assert_int_equal(x.n, y.n);
        if (x.n > 0)
            assert_memory_equal(x.ids, y.ids, x.n * sizeof *x.ids);
        kg_ids_release(&x);
        kg_ids_release(&y);
    }
}

static void a_tokenizer_that_is_written_is_read_as_it_was(void **state)
{
    static const char *const folders[] = {"tests/data/tokenizer/small",
                                          "tests/data/tokenizer/spm"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct kg_tokenizer *a, *b;
        NEED(kg_tokenizer_open(&a, folders[i], err));
        write_tokenizer(folders[i], (size_t)kg_tokenizer_n_ids(a) + 3);
        NEED(kg_tokenizer_open(&b, file, err));
        same_tokens(a, b);
        assert_int_equal(kg_tokenizer_n_ids(b), kg_tokenizer_n_ids(a) + 3);
        assert_false(kg_tokenizer_has(b, kg_tokenizer_n_ids(a) + 1));
        for (int32_t id = 0; id < kg_tokenizer_vocab_size(a); id++)
            assert_int_equal(kg_tokenizer_is_special(a, id),
                             kg_tokenizer_is_special(b, id));
        kg_tokenizer_close(a);
        kg_tokenizer_close(b);
    }
}

/* llama.cpp searches user-defined pieces in the text as given, so they are written with
 * spaces. */
static void pieces_of_users_have_spaces(void **state)
{
    struct kg_gguf g;
    (void)state;
    write_tokenizer("tests/data/tokenizer/spm", 600);
    NEED(kg_gguf_open(&g, file, err));
    struct kg_gguf_walk text = {.array = kg_gguf_get(&g, "tokenizer.ggml.tokens")};
    struct kg_gguf_walk type = {.array = kg_gguf_get(&g, "tokenizer.ggml.token_type")};
    for (int i = 0; i <= 4; i++)
        assert_true(kg_gguf_next(&text) && kg_gguf_next(&type));
    assert_int_equal(kg_gguf_int(&type.item, 0), 4);
    assert_true(kg_gguf_is(&text.item, "   "));
    kg_gguf_close(&g);
}

static void unknown_names_are_refused(void **state)
{
    static const char *const names[] = {"default", "qwen",     "gpt2", "deepseek-llm",
                                        "viking",  "chatglm4", "",     "llama"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct kg_tokenizer *tok;
        struct kg_err e;
        write_pre(names[i]);
        assert_int_equal(kg_tokenizer_open(&tok, file, &e), KG_EUNSUPPORTED);
        assert_non_null(strstr(e.message, "tokenizer.ggml.pre: expected one of gpt-2,"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_those_expected),
        cmocka_unit_test(a_tokenizer_that_is_written_is_read_as_it_was),
        cmocka_unit_test(pieces_of_users_have_spaces),
        cmocka_unit_test(unknown_names_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
