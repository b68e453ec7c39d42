/* Tests of tokenizers: ids against HuggingFace's, exact decoding over all of Unicode, and
 * what is refused.
 *
 * Large vocabularies are not in the repository; their tests read
 * ../shared/data/tokenizers and are skipped if it is absent.
 */
#include "text/tokenizer.h"

#include "base/file.h"
#include "base/mem.h"
#include "data/jsonl.h"
#include "text/unicode.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DATA   "tests/data/tokenizer/"
#define SHARED "../shared/data/tokenizers/"

static struct kg_err err;
static const struct kg_encode_opts PLAIN = {.parse_special = true};

static struct kg_tokenizer *open_dir(const char *dir)
{
    struct kg_tokenizer *tok;
    if (kg_tokenizer_open(&tok, dir, &err) != KG_OK)
        fail_msg("%s", err.message);
    return tok;
}

static struct kg_tokenizer *open_file(const char *path)
{
    struct kg_tokenizer *tok;
    struct kg_str text = {0};
    if (kg_file_read(&text, path, 1 << 28, &err) != KG_OK ||
        kg_tokenizer_parse(&tok, kg_str_text(&text), text.len, path, &err) != KG_OK)
        fail_msg("%s", err.message);
    kg_str_release(&text);
    return tok;
}

static void encode(struct kg_ids *ids, const struct kg_tokenizer *tok, const char *text)
{
    ids->n = 0;
    if (kg_tokenizer_encode(ids, tok, text, strlen(text), PLAIN, &err) != KG_OK)
        fail_msg("'%s': %s", text, err.message);
}

static void assert_ids(const struct kg_tokenizer *tok, const char *text,
                       const int32_t *want, size_t n)
{
    struct kg_ids ids = {0};
    encode(&ids, tok, text);
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.ids, want, n * sizeof *want);
    kg_ids_release(&ids);
}

static void assert_decodes(const struct kg_tokenizer *tok, const struct kg_ids *ids,
                           const char *want)
{
    struct kg_str text = {0};
    assert_int_equal(kg_tokenizer_decode(&text, tok, ids->ids, ids->n, false, &err),
                     KG_OK);
    assert_string_equal(kg_str_text(&text), want);
    kg_str_release(&text);
}

/* ---- vectors ---- */

/* Encodes the row's text and compares the ids with `want`. */
static void check_row(const struct kg_tokenizer *tok, const struct kg_json_doc *row,
                      const struct kg_json *want)
{
    struct kg_ids ids = {0};
    size_t n;
    const char *text = kg_json_text(kg_json_get(row->root, "text"), &n);
    const struct kg_encode_opts opts = {
        .parse_special = kg_json_bool(kg_json_get(row->root, "parse_special"), true),
        .add_special = kg_json_bool(kg_json_get(row->root, "add_special"), false),
    };
    assert_non_null(text);
    if (kg_tokenizer_encode(&ids, tok, text, n, opts, &err) != KG_OK)
        fail_msg("%s: %s", row->where, err.message);
    bool same = ids.n == kg_json_size(want);
    for (size_t i = 0; same && i < ids.n; i++)
        same = ids.ids[i] == kg_json_int(kg_json_at(want, i), -1);
    if (!same)
        fail_msg("%s: other ids for '%s'", row->where, text);
    kg_ids_release(&ids);
}

static bool row_is(const struct kg_json_doc *row, const char *key, const char *value)
{
    const char *found = kg_json_text(kg_json_get(row->root, key), NULL);
    return found && strcmp(found, value) == 0;
}

/* Checks the rows whose `key` is `value` (all if key is NULL); the expected ids are under
 * `ids_key`.   returns the number of rows */
static int check_rows(const struct kg_tokenizer *tok, const char *path, const char *key,
                      const char *value, const char *ids_key)
{
    struct kg_jsonl *r;
    struct kg_json_doc row = {0};
    bool more = true;
    int n = 0;
    assert_int_equal(kg_jsonl_open(&r, path, &err), KG_OK);
    for (;;) {
        assert_int_equal(kg_jsonl_next(r, &row, &more, &err), KG_OK);
        if (!more)
            break;
        if (key && !row_is(&row, key, value))
            continue;
        check_row(tok, &row, kg_json_get(row.root, ids_key));
        n++;
    }
    kg_json_release(&row);
    kg_jsonl_close(r);
    return n;
}

static void own_vectors_pass(void **state)
{
    static const char *const files[] = {"small/tokenizer.json", "gpt2_prefix.json",
                                        "template.json", "added.json"};
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[128];
        snprintf(path, sizeof path, DATA "%s", files[i]);
        struct kg_tokenizer *tok = open_file(path);
        assert_int_equal(check_rows(tok, DATA "vectors.jsonl", "file", files[i], "ids"),
                         120);
        kg_tokenizer_close(tok);
    }
}

/* Folders, with the names of their rows among the published and the derived vectors. */
static const struct {
    const char *dir, *published, *derived;
    int n_published;
} VOCABULARIES[] = {
    {"gpt2", "gpt2", "gpt2", 36},
    {"qwen2", "qwen2", "qwen2", 36},
    {"qwen2.5", "qwen2", "qwen2", 36},
    {"qwen3", "qwen2", "qwen3", 36},
};

static void published_vectors_pass(void **state)
{
    (void)state;
    if (!kg_file_exists(SHARED "vectors_published.jsonl")) {
        print_message("skip: " SHARED
                      " is absent (GPT-2 and Qwen vocabularies are too large to keep)\n");
        skip();
    }
    for (size_t i = 0; i < sizeof VOCABULARIES / sizeof *VOCABULARIES; i++) {
        char dir[128];
        snprintf(dir, sizeof dir, SHARED "%s", VOCABULARIES[i].dir);
        struct kg_tokenizer *tok = open_dir(dir);
        assert_int_equal(check_rows(tok, SHARED "vectors_published.jsonl", "tokenizer",
                                    VOCABULARIES[i].published, "ids"),
                         VOCABULARIES[i].n_published);
        assert_int_equal(check_rows(tok, SHARED "vectors_derived.jsonl", NULL, NULL,
                                    VOCABULARIES[i].derived),
                         288);
        kg_tokenizer_close(tok);
    }
}

/* ---- round trips ---- */

static void assert_round_trip(const struct kg_tokenizer *tok, struct kg_ids *ids,
                              const char *text, size_t n, bool nfc)
{
    struct kg_str back = {0};
    struct kg_str want = {0};
    ids->n = 0;
    if (kg_tokenizer_encode(ids, tok, text, n, PLAIN, &err) != KG_OK ||
        kg_tokenizer_decode(&back, tok, ids->ids, ids->n, false, &err) != KG_OK)
        fail_msg("'%.*s': %s", (int)n, text, err.message);
    if (nfc)
        assert_int_equal(kg_unicode_nfc(&want, text, n, &err), KG_OK);
    else
        assert_int_equal(kg_str_append(&want, text, n, &err), KG_OK);
    if (back.len != want.len ||
        memcmp(kg_str_text(&back), kg_str_text(&want), want.len) != 0)
        fail_msg("'%.*s' came back as '%s'", (int)n, text, kg_str_text(&back));
    kg_str_release(&back);
    kg_str_release(&want);
}

/* Tries every character at the start, between letters, after a space, doubled, and at the
 * end. */
static void round_trip_everywhere(const struct kg_tokenizer *tok, bool nfc)
{
    struct kg_ids ids = {0};
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char c[4];
        char text[32];
        if (cp >= 0xD800 && cp < 0xE000)
            continue;
        size_t n = kg_utf8_encode(c, cp);
        char *at = text;
        for (const char *form = "cycx cc"; *form; form++) {
            const bool is_c = *form == 'c';
            memcpy(at, is_c ? c : form, is_c ? n : 1);
            at += is_c ? n : 1;
        }
        assert_round_trip(tok, &ids, text, (size_t)(at - text), nfc);
    }
    kg_ids_release(&ids);
}

static void every_code_point_comes_back(void **state)
{
    struct kg_tokenizer *tok = open_dir(DATA "small");
    (void)state;
    round_trip_everywhere(tok, true);
    kg_tokenizer_close(tok);
}

static void every_code_point_comes_back_from_real_vocabularies(void **state)
{
    (void)state;
    if (!kg_file_exists(SHARED "gpt2/tokenizer.json")) {
        print_message("skip: " SHARED
                      " is absent (GPT-2 and Qwen vocabularies are too large to keep)\n");
        skip();
    }
    struct kg_tokenizer *gpt2 = open_dir(SHARED "gpt2");
    round_trip_everywhere(gpt2, false);
    kg_tokenizer_close(gpt2);
    struct kg_tokenizer *qwen3 = open_dir(SHARED "qwen3");
    round_trip_everywhere(qwen3, true);
    kg_tokenizer_close(qwen3);
}

static void long_pretokens_come_back(void **state)
{
    enum { N = 100000 };
    static const char *const units[] = {"a", "ab", " ", "!?", "\n ", "1"};
    struct kg_tokenizer *tok = open_dir(DATA "small");
    struct kg_ids ids = {0};
    (void)state;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        struct kg_str text = {0};
        while (text.len < N)
            assert_int_equal(kg_str_puts(&text, units[i], &err), KG_OK);
        assert_round_trip(tok, &ids, text.data, text.len, true);
        kg_str_release(&text);
    }
    kg_ids_release(&ids);
    kg_tokenizer_close(tok);
}

static void bytes_of_an_id_do_not_depend_on_its_neighbours(void **state)
{
    struct kg_tokenizer *tok = open_dir(DATA "small");
    struct kg_ids ids = {0};
    struct kg_str whole = {0};
    struct kg_str parts = {0};
    (void)state;
    encode(&ids, tok, "d\xC3\xA9j\xC3\xA0 vu \xF0\x9F\x99\x82 <|im_end|>!");
    assert_int_equal(kg_tokenizer_decode(&whole, tok, ids.ids, ids.n, false, &err),
                     KG_OK);
    for (size_t i = 0; i < ids.n; i++)
        assert_int_equal(kg_tokenizer_decode(&parts, tok, ids.ids + i, 1, false, &err),
                         KG_OK);
    assert_string_equal(kg_str_text(&whole), kg_str_text(&parts));
    kg_str_release(&whole);
    kg_str_release(&parts);
    kg_ids_release(&ids);
    kg_tokenizer_close(tok);
}

/* ---- special tokens ---- */

static void special_tokens_are_known_and_optional(void **state)
{
    struct kg_tokenizer *tok = open_dir(DATA "small");
    struct kg_ids ids = {0};
    struct kg_str text = {0};
    int32_t end = kg_tokenizer_find(tok, "<|im_end|>");
    (void)state;
    assert_string_equal(kg_tokenizer_kind(tok), "bpe");
    assert_int_equal(kg_tokenizer_vocab_size(tok), 600);
    assert_int_equal(end, 597);
    assert_int_equal(kg_tokenizer_eos(tok), end);
    assert_int_equal(kg_tokenizer_find(tok, "a"), -1);
    assert_true(kg_tokenizer_is_special(tok, end));
    assert_false(kg_tokenizer_is_special(tok, 'a') || kg_tokenizer_is_special(tok, -1) ||
                 kg_tokenizer_is_special(tok, 600));
    assert_ids(tok, "<|im_end|>", &end, 1);
    const char *s = "a<|im_end|>b";
    assert_int_equal(
        kg_tokenizer_encode(&ids, tok, s, strlen(s), (struct kg_encode_opts){0}, &err),
        KG_OK);
    assert_true(ids.n > 3);
    assert_decodes(tok, &ids, s);
    encode(&ids, tok, s);
    assert_int_equal(ids.n, 3);
    assert_int_equal(kg_tokenizer_decode(&text, tok, ids.ids, ids.n, true, &err), KG_OK);
    assert_string_equal(kg_str_text(&text), "ab");
    kg_str_release(&text);
    kg_ids_release(&ids);
    kg_tokenizer_close(tok);
}

/* ---- errors ---- */

static void invalid_utf8_is_refused_with_its_offset_and_nothing_is_appended(void **state)
{
    struct kg_tokenizer *tok = open_dir(DATA "small");
    struct kg_ids ids = {0};
    (void)state;
    encode(&ids, tok, "a");
    assert_int_equal(kg_tokenizer_encode(&ids, tok, "good\xC3 text", 10, PLAIN, &err),
                     KG_EFORMAT);
    assert_non_null(strstr(err.message, "byte offset 4"));
    assert_int_equal(ids.n, 1);
    kg_ids_release(&ids);
    kg_tokenizer_close(tok);
}

static void ids_out_of_range_are_refused(void **state)
{
    static const int32_t bad[] = {-1, 600, INT32_MAX};
    struct kg_tokenizer *tok = open_dir(DATA "small");
    struct kg_str text = {0};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        int32_t ids[] = {'a', bad[i]};
        assert_int_equal(kg_tokenizer_decode(&text, tok, ids, 2, false, &err), KG_EINVAL);
        assert_non_null(strstr(err.message, "index 1"));
    }
    kg_str_release(&text);
    kg_tokenizer_close(tok);
}

static void rows_of_the_model_beyond_the_vocabulary_have_no_text(void **state)
{
    char dir[] = "/tmp/kedge-tokenizer-XXXXXX";
    char path[64];
    struct kg_str text = {0};
    int32_t ids[] = {'a', 639, 'b'};
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    assert_int_equal(kg_file_copy(DATA "small/tokenizer.json", path, &err), KG_OK);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(kg_file_write_atomic(path, "{\"vocab_size\": 640}", 19, &err),
                     KG_OK);
    struct kg_tokenizer *tok = open_dir(dir);
    assert_int_equal(kg_tokenizer_vocab_size(tok), 600);
    assert_int_equal(kg_tokenizer_decode(&text, tok, ids, 3, false, &err), KG_OK);
    assert_string_equal(kg_str_text(&text), "ab");
    ids[1] = 640;
    assert_int_equal(kg_tokenizer_decode(&text, tok, ids, 3, false, &err), KG_EINVAL);
    kg_str_release(&text);
    kg_tokenizer_close(tok);
    assert_int_equal(kg_file_remove_tree(dir, &err), KG_OK);
}

/* Opens the small tokenizer with a config.json of this many embedding rows. */
static kg_status open_of_rows(const char *dir, int32_t rows)
{
    char text[64];
    struct kg_tokenizer *tok = NULL;
    snprintf(text, sizeof text, "{\"vocab_size\": %d}", (int)rows);
    assert_int_equal(kg_file_write_atomic(kg_path_in(dir, "config.json").text, text,
                                          strlen(text), &err),
                     KG_OK);
    const kg_status status = kg_tokenizer_open(&tok, dir, &err);
    if (status == KG_OK)
        kg_tokenizer_close(tok);
    return status;
}

/* Every token that text can become needs an embedding row; trailing special tokens may
 * lack one. */
static void a_tokenizer_of_another_vocabulary_is_refused(void **state)
{
    char dir[] = "/tmp/kedge-tokenizer-XXXXXX", said[64];
    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(kg_file_copy(DATA "small/tokenizer.json",
                                  kg_path_in(dir, "tokenizer.json").text, &err),
                     KG_OK);
    struct kg_tokenizer *tok = open_dir(dir);
    int32_t last = kg_tokenizer_vocab_size(tok) - 1;
    while (kg_tokenizer_is_special(tok, last))
        last--;
    assert_true(last < kg_tokenizer_vocab_size(tok) - 1);
    kg_tokenizer_close(tok);
    assert_int_equal(open_of_rows(dir, last + 1), KG_OK);
    assert_int_equal(open_of_rows(dir, last), KG_ECONFLICT);
    snprintf(said, sizeof said, "ids below %d (vocab_size", (int)last);
    assert_non_null(strstr(err.message, said));
    snprintf(said, sizeof said, "found id %d:", (int)last);
    assert_non_null(strstr(err.message, said));
    assert_non_null(strstr(err.message, dir));
    assert_int_equal(kg_file_remove_tree(dir, &err), KG_OK);
}

/* Checks an adapter folder with these ids and characters; ids NULL: without a
 * tokenizer. */
static kg_status beside(const struct kg_tokenizer *tok, const char *dir, const char *ids,
                        const char *ordinary)
{
    const struct kg_path path = kg_path_in(dir, "token_ids.json");
    const struct kg_path config = kg_path_in(dir, "tokenizer_config.json");
    if (ids)
        assert_int_equal(kg_file_write_atomic(path.text, ids, strlen(ids), &err), KG_OK);
    assert_int_equal(kg_file_write_atomic(config.text, ordinary, strlen(ordinary), &err),
                     KG_OK);
    return kg_tokenizer_check_beside(tok, dir, &err);
}

/* Either side may have special tokens, such as padding, that the other lacks. */
static void adapters_with_another_tokenizer_are_refused(void **state)
{
    static const char abc[] = "{\"char_ords\": [97, 98, 99]}";
    char dir[] = "/tmp/kedge-tokenizer-XXXXXX";
    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(kg_file_write_atomic(kg_path_in(dir, "token_ids.json").text,
                                          "{\"a\": 0, \"b\": 1}", 16, &err),
                     KG_OK);
    struct kg_tokenizer *tok = open_dir(dir);
    assert_int_equal(remove(kg_path_in(dir, "token_ids.json").text), 0);
    assert_int_equal(beside(tok, dir, NULL, abc), KG_OK);
    assert_int_equal(beside(tok, dir, "{\"b\": 1, \"a\": 0}", abc), KG_OK);
    assert_int_equal(beside(tok, dir, "{\"a\": 0, \"b\": 1, \"P\": 2}", abc), KG_OK);
    assert_int_equal(beside(tok, dir, "{\"a\": 0, \"b\": 1, \"c\": 2}", abc),
                     KG_ECONFLICT);
    assert_non_null(strstr(err.message, "id 2 is 'c' in it and '' in the model's"));
    assert_int_equal(beside(tok, dir, "{\"a\": 1, \"b\": 0}", abc), KG_ECONFLICT);
    assert_non_null(strstr(err.message, "id 0 is 'b' in it and 'a' in the model's"));
    assert_non_null(strstr(err.message, dir));
    kg_tokenizer_close(tok);
    assert_int_equal(kg_file_remove_tree(dir, &err), KG_OK);
}

/* Reads the small tokenizer with `from` replaced by `to`. */
static kg_status read_changed(const char *from, const char *to)
{
    struct kg_tokenizer *tok = NULL;
    struct kg_str text = {0};
    struct kg_str changed = {0};
    assert_int_equal(kg_file_read(&text, DATA "small/tokenizer.json", 1 << 20, &err),
                     KG_OK);
    const char *at = strstr(text.data, from);
    if (!at)
        fail_msg("'%s' is not in the file", from);
    assert_int_equal(kg_str_append(&changed, text.data, (size_t)(at - text.data), &err),
                     KG_OK);
    assert_int_equal(kg_str_puts(&changed, to, &err), KG_OK);
    assert_int_equal(kg_str_puts(&changed, at + strlen(from), &err), KG_OK);
    kg_status status = kg_tokenizer_parse(&tok, changed.data, changed.len, "changed.json",
                                          &err);
    kg_tokenizer_close(tok);
    kg_str_release(&text);
    kg_str_release(&changed);
    return status;
}

static void what_is_not_supported_is_refused_by_name(void **state)
{
    /* what to replace, by what, and what the message must name */
    static const char *const rows[][3] = {
        {"\"version\": \"1.0\"", "\"version\": \"2.0\"", "version"},
        {"\"version\"", "\"flavour\": 1, \"version\"", "flavour"},
        {"\"type\": \"BPE\"", "\"type\": \"WordLevel\"", "model.type"},
        {"\"type\": \"BPE\"", "\"type\": \"Unigram\"", "ByteLevel"},
        {"\"dropout\": null", "\"dropout\": 0.1", "model.dropout"},
        {"\"unk_token\": null", "\"unk_token\": 3", "model.unk_token"},
        {"\"byte_fallback\": false", "\"byte_fallback\": true", "byte_fallback"},
        {"\"end_of_word_suffix\": \"\"", "\"end_of_word_suffix\": \"</w>\"",
         "model.end_of_word_suffix"},
        {"\"continuing_subword_prefix\": \"\"", "\"continuing_subword_prefix\": \"##\"",
         "##"},
        {"\"ignore_merges\": false", "\"ignore_merges\": \"no\"", "model.ignore_merges"},
        {"\"ignore_merges\"", "\"max_chars\": 9, \"ignore_merges\"", "model.max_chars"},
        {"{\"type\": \"NFC\"}", "{\"type\": \"NFX\"}", "NFX"},
        {"{\"type\": \"NFC\"}", "{\"type\": \"NFC\", \"left\": 1}", "normalizer.left"},
        {"\"behavior\": \"Isolated\"", "\"behavior\": \"Gone\"", "Gone"},
        {"\"invert\": false", "\"invert\": 1", "invert"},
        {"\"Regex\"", "\"Glob\"", "Glob"},
        {"\"Regex\": \"", "\"Regex\": \"\\\\b", "\\b"},
        {"\"type\": \"Split\"", "\"type\": \"UnicodeScripts\"", "UnicodeScripts"},
        {"\"single_word\": false", "\"single_word\": null", "single_word"},
        {"\"special\": true", "\"special\": 1", "special"},
        {"\"post_processor\": {\"type\": \"ByteLevel\"",
         "\"post_processor\": {\"type\": \"Roberta\"", "Roberta"},
        {"\"decoder\": {\"type\": \"ByteLevel\"", "\"decoder\": {\"type\": \"CTC\"",
         "decoder.type"},
        {"\"decoder\"", "\"decoder\": null, \"other\"", "other"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kg_status status = read_changed(rows[i][0], rows[i][1]);
        if (status != KG_EUNSUPPORTED || !strstr(err.message, rows[i][2]) ||
            !strstr(err.message, "changed.json"))
            fail_msg("%s: status %d, %s", rows[i][1], status, err.message);
    }
}

static void what_is_malformed_is_refused(void **state)
{
    static const char *const rows[][3] = {
        {"\"merges\": [", "\"merges\": [\"a\", ", "left right"},
        {"\"merges\": [", "\"merges\": [[\"a\", \"b\", \"c\"], ", "left right"},
        {"\"merges\": [", "\"merges\": [\"qqqq a\", ", "left half"},
        {"\"merges\": [", "\"merges\": [\"a qqqq\", ", "right half"},
        {"\"merges\": [", "\"merges\": [\"Q Q\", ", "merged token"},
        {"\"merges\": [", "\"merges\": {}, \"x\": [", "no such field"},
        {"\"vocab\": {", "\"vocab\": {\"new\": -1, ", "integer"},
        {"\"vocab\": {", "\"vocab\": {\"new\": 1.5, ", "integer"},
        {"\"vocab\": {", "\"vocab\": {\"new\": 3000000000, ", "integer"},
        {"\"vocab\": {", "\"vocab\": {\"new\": 5, ", "given to two tokens"},
        {"\"id\": 597", "\"id\": 5", "given to two tokens"},
        {"\"content\": \"<|im_end|>\"", "\"content\": \"a\"", "model.vocab"},
        {"\"content\": \"<|im_end|>\"", "\"content\": \"\"", "content"},
        {"\"content\": \"<|im_end|>\"", "\"content\": \"<|im_start|>\"",
         "have the same spelling"},
        {"{", "[", "column"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kg_status status = read_changed(rows[i][0], rows[i][1]);
        if ((status != KG_EFORMAT && status != KG_EUNSUPPORTED) ||
            !strstr(err.message, rows[i][2]) || strchr(err.message, '\n'))
            fail_msg("%s: status %d, %s", rows[i][1], status, err.message);
    }
}

static void an_empty_vocabulary_and_other_kinds_are_refused(void **state)
{
    static const char empty[] = "{\"version\": \"1.0\", \"added_tokens\": [], "
                                "\"normalizer\": null, \"pre_tokenizer\": null,"
                                "\"post_processor\": null, \"decoder\": null, \"model\": "
                                "{\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}}";
    struct kg_tokenizer *tok = NULL;
    (void)state;
    assert_int_equal(kg_tokenizer_parse(&tok, empty, strlen(empty), "empty.json", &err),
                     KG_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "vocab is empty"));
    assert_int_equal(kg_tokenizer_parse(&tok, "[]", 2, "list.json", &err), KG_EFORMAT);
    assert_int_equal(kg_tokenizer_parse(&tok, "{}", 2, "none.json", &err),
                     KG_EUNSUPPORTED);
    assert_int_equal(kg_tokenizer_open(&tok, "tests/data", &err), KG_ENOTFOUND);
    assert_non_null(strstr(err.message, "tokenizer.json"));
    assert_null(tok);
}

/* As in `tokenizers`: the byte is left out without an unk_token, becomes the unk_token,
 * or is an error if the vocabulary lacks the unk_token. */
static void a_byte_that_the_vocabulary_lacks_is_unknown(void **state)
{
    static const char form[] =
        "{\"version\": \"1.0\", \"added_tokens\": [], \"normalizer\": null, "
        "\"pre_tokenizer\": {\"type\": "
        "\"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}, "
        "\"post_processor\": null, \"decoder\": "
        "{\"type\": \"ByteLevel\"}, \"model\": {\"unk_token\": %s, \"vocab\": {\"a\": 0, "
        "\"aa\": 1, \"?\": 2}, \"merges\": [\"a a\"]}}";
    static const int32_t left_out[] = {1, 0}, unknown[] = {1, 2, 2, 0};
    struct kg_tokenizer *tok;
    struct kg_ids ids = {0};
    char json[512];
    static const char *const tokens[] = {"null", "\"?\"", "\"none\""};
    (void)state;
    for (int i = 0; i < 3; i++) {
        const int n = snprintf(json, sizeof json, form, tokens[i]);
        assert_in_range(n, 1, sizeof json - 1);
        if (kg_tokenizer_parse(&tok, json, (size_t)n, "tiny.json", &err) != KG_OK)
            fail_msg("%s", err.message);
        if (i < 2) {
            assert_ids(tok, "aabca", i ? unknown : left_out, i ? 4 : 2);
        } else {
            assert_int_equal(kg_tokenizer_encode(&ids, tok, "ab", 2, PLAIN, &err),
                             KG_EFORMAT);
            assert_non_null(strstr(err.message, "'b'"));
            assert_int_equal(ids.n, 0);
        }
        kg_tokenizer_close(tok);
    }
    kg_ids_release(&ids);
}

/* ---- chars ---- */

static void characters_map_one_to_one(void **state)
{
    static const int32_t want[] = {4, 2, 7, 6, 1};
    struct kg_tokenizer *tok = open_dir(DATA "chars");
    struct kg_ids ids = {0};
    (void)state;
    assert_string_equal(kg_tokenizer_kind(tok), "chars");
    assert_int_equal(kg_tokenizer_vocab_size(tok), 8);
    assert_int_equal(kg_tokenizer_find(tok, "E"), 1);
    assert_true(kg_tokenizer_is_special(tok, 1));
    assert_false(kg_tokenizer_is_special(tok, 7));
    assert_ids(tok,
               "1+\xE6\xB1\x89\xC3\xA9"
               "E",
               want, 5);
    encode(&ids, tok,
           "1+\xE6\xB1\x89"
           "E");
    assert_decodes(tok, &ids,
                   "1+\xE6\xB1\x89"
                   "E");
    assert_int_equal(kg_tokenizer_encode(&ids, tok, "1\xC3\xA9z", 4, PLAIN, &err),
                     KG_EFORMAT);
    assert_non_null(strstr(err.message, "'z' at byte offset 3"));
    assert_int_equal(
        kg_tokenizer_encode(&ids, tok, "1E", 2, (struct kg_encode_opts){0}, &err),
        KG_EFORMAT);
    kg_ids_release(&ids);
    kg_tokenizer_close(tok);
}

/* ---- threads ---- */

struct worker {
    const struct kg_tokenizer *tok;
    const char *text;
    struct kg_ids want;
    bool same;
};

static void *encode_often(void *user)
{
    struct worker *w = user;
    struct kg_err own;
    w->same = true;
    for (int i = 0; i < 200 && w->same; i++) {
        struct kg_ids ids = {0};
        w->same = kg_tokenizer_encode(&ids, w->tok, w->text, strlen(w->text), PLAIN,
                                      &own) == KG_OK &&
                  ids.n == w->want.n &&
                  memcmp(ids.ids, w->want.ids, ids.n * sizeof *ids.ids) == 0;
        kg_ids_release(&ids);
    }
    return NULL;
}

static void one_tokenizer_serves_several_threads(void **state)
{
    struct kg_tokenizer *tok = open_dir(DATA "small");
    struct worker workers[4] = {
        {.tok = tok, .text = "Janet's ducks lay 16 eggs per day."},
        {.tok = tok, .text = "caf\x65\xCC\x81 <|im_end|> \xE6\xB1\x89\xE5\xAD\x97"},
        {.tok = tok, .text = "x = (a + b) * c\n\n\n   return"},
        {.tok = tok,
         .text =
             "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
    };
    pthread_t threads[4];
    (void)state;
    for (int i = 0; i < 4; i++) {
        encode(&workers[i].want, tok, workers[i].text);
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &workers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(workers[i].same);
        kg_ids_release(&workers[i].want);
    }
    kg_tokenizer_close(tok);
}

/* ---- memory ---- */

static kg_status open_and_use(void)
{
    struct kg_tokenizer *tok = NULL;
    struct kg_ids ids = {0};
    struct kg_str text = {0};
    const char *s =
        "caf\x65\xCC\x81 <|im_end|> "
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    kg_status status;
    KG_TRY_GOTO(out, kg_tokenizer_open(&tok, DATA "small", &err));
    KG_TRY_GOTO(out, kg_tokenizer_encode(&ids, tok, s, strlen(s), PLAIN, &err));
    KG_TRY_GOTO(out, kg_tokenizer_decode(&text, tok, ids.ids, ids.n, false, &err));
out:
    kg_str_release(&text);
    kg_ids_release(&ids);
    kg_tokenizer_close(tok);
    return status;
}

/* The normalizer makes several added tokens equal. tokenizers 0.23.3 picks one of them at
 * random each time it opens the file (a row has the answers of 100 runs); kedge always
 * uses the first. */
static void of_added_tokens_that_become_equal_the_first_is_found(void **state)
{
    struct kg_json_doc row = {0};
    struct kg_jsonl *lines;
    bool more = true;
    int n = 0;

    (void)state;
    assert_int_equal(kg_jsonl_open(&lines, "tests/data/tokenizer/together.jsonl", &err),
                     KG_OK);
    for (;; n++) {
        struct kg_tokenizer *tok;
        struct kg_str file = {0};
        int32_t want[8];

        assert_int_equal(kg_jsonl_next(lines, &row, &more, &err), KG_OK);
        if (!more)
            break;
        const struct kg_json *first = kg_json_at(kg_json_get(row.root, "answers"), 0);
        for (size_t i = 0; i < kg_json_size(first); i++)
            want[i] = (int32_t)kg_json_int(kg_json_at(first, i), -1);
        assert_int_equal(kg_json_put_value(&file, kg_json_get(row.root, "file"), &err),
                         KG_OK);
        assert_int_equal(kg_tokenizer_parse(&tok, file.data, file.len, "t.json", &err),
                         KG_OK);
        assert_ids(tok, kg_json_text(kg_json_get(row.root, "text"), NULL), want,
                   kg_json_size(first));
        kg_tokenizer_close(tok);
        kg_str_release(&file);
    }
    assert_int_equal(n, 26);
    kg_json_release(&row);
    kg_jsonl_close(lines);
}

static void every_failed_allocation_is_a_status(void **state)
{
    kg_status status = KG_ENOMEM;
    uint64_t before = kg_mem_current_bytes();
    (void)state;
    for (uint64_t n = 1; status != KG_OK; n++) {
        kg_mem_fail_at(n);
        status = open_and_use();
        kg_mem_fail_at(0);
        assert_true(status == KG_OK || status == KG_ENOMEM);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_vectors_pass),
        cmocka_unit_test(published_vectors_pass),
        cmocka_unit_test(every_code_point_comes_back),
        cmocka_unit_test(every_code_point_comes_back_from_real_vocabularies),
        cmocka_unit_test(long_pretokens_come_back),
        cmocka_unit_test(bytes_of_an_id_do_not_depend_on_its_neighbours),
        cmocka_unit_test(special_tokens_are_known_and_optional),
        cmocka_unit_test(invalid_utf8_is_refused_with_its_offset_and_nothing_is_appended),
        cmocka_unit_test(ids_out_of_range_are_refused),
        cmocka_unit_test(rows_of_the_model_beyond_the_vocabulary_have_no_text),
        cmocka_unit_test(a_tokenizer_of_another_vocabulary_is_refused),
        cmocka_unit_test(adapters_with_another_tokenizer_are_refused),
        cmocka_unit_test(what_is_not_supported_is_refused_by_name),
        cmocka_unit_test(what_is_malformed_is_refused),
        cmocka_unit_test(an_empty_vocabulary_and_other_kinds_are_refused),
        cmocka_unit_test(a_byte_that_the_vocabulary_lacks_is_unknown),
        cmocka_unit_test(characters_map_one_to_one),
        cmocka_unit_test(one_tokenizer_serves_several_threads),
        cmocka_unit_test(of_added_tokens_that_become_equal_the_first_is_found),
        cmocka_unit_test(every_failed_allocation_is_a_status),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
