/* Tokenizers of GGUF files: tokens are llama.cpp's for every name of a pre-tokenizer, and
 * tokenizers that are written are read with the same tokens. */
#include "text/tokenizer.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/need_testing.h"
#include "data/gguf_model.h"
#include "data/jsonl.h"
#include "data/source.h"

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

/* vocab.gguf with another pre-tokenizer. */
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

/* A model's folder that has only a tokenizer, as a file. */
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

static void expect_ids(const struct kg_tokenizer *tok, const char *text, size_t n,
                       const struct kg_json *want, const char *what)
{
    struct kg_ids ids = {0};
    NEED(kg_tokenizer_encode(&ids, tok, text, n, (struct kg_encode_opts){0}, err));
    bool same = ids.n == kg_json_size(want);
    for (size_t i = 0; same && i < ids.n; i++)
        same = ids.ids[i] == kg_json_int(kg_json_at(want, i), -1);
    if (!same)
        fail_msg("%s: '%.*s': expected llama.cpp's %zu tokens, found %zu or others", what,
                 (int)n, text, kg_json_size(want), ids.n);
    kg_ids_release(&ids);
}

/* tools/oracle/make_gguf.py */
static void tokens_are_those_of_llama_cpp(void **state)
{
    struct kg_str text = {0};
    struct kg_tokenizer *tok = NULL;
    char now[64] = "";
    size_t lines = 0;
    (void)state;
    NEED(kg_file_read(&text, DATA "tokens.jsonl", 1 << 20, err));
    for (char *line = strtok(text.data, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        struct kg_json_doc doc = {0};
        size_t n;
        NEED(kg_json_parse(&doc, line, strlen(line), "tokens.jsonl", err));
        const char *pre = kg_json_text(kg_json_get(doc.root, "pre"), NULL);
        const char *given = kg_json_text(kg_json_get(doc.root, "text"), &n);
        if (strcmp(pre, now) != 0) {
            kg_tokenizer_close(tok);
            write_pre(pre);
            NEED(kg_tokenizer_open(&tok, file, err));
            snprintf(now, sizeof now, "%s", pre);
        }
        expect_ids(tok, given, n, kg_json_get(doc.root, "ids"), pre);
        kg_json_release(&doc);
    }
    assert_int_equal(lines, 15 * 25);
    kg_tokenizer_close(tok);
    kg_str_release(&text);
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
        cmocka_unit_test(tokens_are_those_of_llama_cpp),
        cmocka_unit_test(a_tokenizer_that_is_written_is_read_as_it_was),
        cmocka_unit_test(unknown_names_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
