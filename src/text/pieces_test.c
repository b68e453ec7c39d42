/* Tests of tokenizers made of pieces: the tokenizer.model files of SentencePiece and
 * tiktoken, and the tokenizer.json files converted from SentencePiece's. Ids and texts
 * are compared with sentencepiece, tiktoken and HuggingFace's tokenizers; also what is
 * refused.
 */
#include "text/tokenizer.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/need_testing.h"
#include "data/jsonl.h"
#include "text/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DATA   "tests/data/tokenizer/"
#define SHARED "../shared/data/tokenizers/"

static const struct kg_encode_opts PLAIN = {.parse_special = true};
static const struct kg_encode_opts BARE = {0};

static struct kg_tokenizer *open_dir(const char *dir)
{
    struct kg_tokenizer *tok;
    NEED(kg_tokenizer_open(&tok, dir, err));
    return tok;
}

/* Opens a folder, or a tokenizer.json under another name. */
static struct kg_tokenizer *open_data(const char *name)
{
    char path[128];
    struct kg_tokenizer *tok;
    struct kg_str text = {0};
    snprintf(path, sizeof path, DATA "%s", name);
    if (!strstr(name, ".json"))
        return open_dir(path);
    NEED(kg_file_read(&text, path, 1 << 20, err));
    NEED(kg_tokenizer_parse(&tok, kg_str_text(&text), text.len, path, err));
    kg_str_release(&text);
    return tok;
}

static void encode(struct kg_ids *ids, const struct kg_tokenizer *tok, const char *text,
                   size_t n, struct kg_encode_opts opts)
{
    ids->n = 0;
    NEED(kg_tokenizer_encode(ids, tok, text, n, opts, err));
}

static void assert_ids(const struct kg_tokenizer *tok, const char *text,
                       struct kg_encode_opts opts, const int32_t *want, size_t n)
{
    struct kg_ids ids = {0};
    encode(&ids, tok, text, strlen(text), opts);
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.ids, want, n * sizeof *want);
    kg_ids_release(&ids);
}

/* ---- vectors ---- */

static const char *text_of(const struct kg_json_doc *row, const char *key)
{
    return kg_json_text(kg_json_get(row->root, key), NULL);
}

static void check_ids(const struct kg_tokenizer *tok, struct kg_ids *ids,
                      const struct kg_json_doc *row)
{
    size_t n;
    const struct kg_json *want = kg_json_get(row->root, "ids");
    const char *text = kg_json_text(kg_json_get(row->root, "text"), &n);
    const struct kg_encode_opts opts = {
        .parse_special = kg_json_bool(kg_json_get(row->root, "parse_special"), true),
        .add_special = kg_json_bool(kg_json_get(row->root, "add_special"), false),
    };
    assert_non_null(text);
    encode(ids, tok, text, n, opts);
    bool same = ids->n == kg_json_size(want);
    for (size_t i = 0; same && i < ids->n; i++)
        same = ids->ids[i] == kg_json_int(kg_json_at(want, i), -1);
    if (!same)
        fail_msg("%s: other ids for '%s'", row->where, text);
}

static void check_text(const struct kg_tokenizer *tok, const struct kg_ids *ids,
                       const struct kg_json_doc *row)
{
    struct kg_str text = {0};
    size_t n;
    const char *want = kg_json_text(kg_json_get(row->root, "decoded"), &n);
    if (!want)
        return;
    NEED(kg_tokenizer_decode_text(&text, tok, ids->ids, ids->n, false, err));
    if (text.len != n || memcmp(kg_str_text(&text), want, n) != 0)
        fail_msg("%s: '%s' came back as '%s'", row->where, want, kg_str_text(&text));
    kg_str_release(&text);
}

/* Checks the rows whose `key` is `value`, and with `texts` also what their ids decode to.
 *   returns the number of rows */
static int check_rows(const struct kg_tokenizer *tok, const char *path, const char *key,
                      const char *value, bool texts)
{
    struct kg_jsonl *r;
    struct kg_json_doc row = {0};
    struct kg_ids ids = {0};
    bool more = true;
    int n = 0;
    NEED(kg_jsonl_open(&r, path, err));
    for (;;) {
        NEED(kg_jsonl_next(r, &row, &more, err));
        if (!more)
            break;
        const char *found = text_of(&row, key);
        if (!found || strcmp(found, value) != 0)
            continue;
        check_ids(tok, &ids, &row);
        if (texts)
            check_text(tok, &ids, &row);
        n++;
    }
    kg_ids_release(&ids);
    kg_json_release(&row);
    kg_jsonl_close(r);
    return n;
}

static void own_vectors_pass(void **state)
{
    static const char *const files[] = {"spm",
                                        "tiktoken",
                                        "spm_legacy.json",
                                        "spm_first.json",
                                        "spm_always.json",
                                        "spm_never.json"};
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct kg_tokenizer *tok = open_data(files[i]);
        assert_string_equal(kg_tokenizer_kind(tok), "bpe");
        assert_int_equal(
            check_rows(tok, DATA "pieces_vectors.jsonl", "file", files[i], true), 80);
        kg_tokenizer_close(tok);
    }
}

static void published_vectors_pass(void **state)
{
    static const struct {
        const char *dir, *rows;
        int n;
        bool texts; /* not Llama 3's: they lack the space before a '!' */
    } files[] = {{"llama2", "llama2", 42, true},
                 {"llama3", "llama3", 60, false},
                 /* DeepSeek published no tokenizer.model; its vocabulary is Qwen2's */
                 {"qwen2", "deepseek_r1_distill_qwen", 23, true}};
    (void)state;
    if (!kg_file_exists(SHARED "vectors_published.jsonl")) {
        print_message("skip: " SHARED
                      " is absent (the models of Llama 2 and 3 are too large to keep)\n");
        skip();
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char dir[128];
        snprintf(dir, sizeof dir, SHARED "%s", files[i].dir);
        struct kg_tokenizer *tok = open_dir(dir);
        assert_int_equal(check_rows(tok, SHARED "vectors_published.jsonl", "tokenizer",
                                    files[i].rows, files[i].texts),
                         files[i].n);
        kg_tokenizer_close(tok);
    }
}

/* ---- round trips ---- */

static void assert_comes_back(const struct kg_tokenizer *tok, struct kg_ids *ids,
                              const char *text, size_t n, bool continues)
{
    struct kg_str back = {0};
    encode(ids, tok, text, n, (struct kg_encode_opts){.continues = continues});
    NEED((continues ? kg_tokenizer_decode : kg_tokenizer_decode_text)(
        &back, tok, ids->ids, ids->n, false, err));
    if (back.len != n || memcmp(kg_str_text(&back), text, n) != 0)
        fail_msg("'%.*s' came back as '%s'", (int)n, text, kg_str_text(&back));
    kg_str_release(&back);
}

static void characters_come_back(void **state)
{
    struct kg_tokenizer *toks[] = {open_data("spm"), open_data("spm_legacy.json"),
                                   open_data("tiktoken")};
    struct kg_ids ids = {0};
    (void)state;
    for (uint32_t cp = 0; cp < 0x110000; cp += cp < 0x3000 ? 1 : 61) {
        char text[16] = "a ";
        if ((cp >= 0xD800 && cp < 0xE000) || cp == 0x2581)
            continue;
        size_t n = 2 + kg_utf8_encode(text + 2, cp);
        text[n++] = ' ';
        for (size_t i = 0; i < 3; i++) {
            assert_comes_back(toks[i], &ids, text, n, false);
            assert_comes_back(toks[i], &ids, text + 1, n - 1, false);
            assert_comes_back(toks[i], &ids, text + 1, n - 1, true);
        }
    }
    kg_ids_release(&ids);
    for (size_t i = 0; i < 3; i++)
        kg_tokenizer_close(toks[i]);
}

/* The bytes of an id do not depend on its position; only decode_text drops the space that
 * precedes a text. */
static void single_ids_put_together_are_the_whole(void **state)
{
    static const char *const files[] = {"spm", "spm_legacy.json", "spm_always.json"};
    const char *s = "How many \xF0\x9F\xA6\x99 <strip>  are   left?\n</s> Ten";
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct kg_tokenizer *tok = open_data(files[i]);
        struct kg_ids ids = {0};
        struct kg_str whole = {0}, parts = {0}, text = {0};
        encode(&ids, tok, s, strlen(s), PLAIN);
        NEED(kg_tokenizer_decode(&whole, tok, ids.ids, ids.n, false, err));
        NEED(kg_tokenizer_decode_text(&text, tok, ids.ids, ids.n, false, err));
        for (size_t k = 0; k < ids.n; k++)
            NEED(kg_tokenizer_decode(&parts, tok, ids.ids + k, 1, false, err));
        assert_string_equal(kg_str_text(&whole), kg_str_text(&parts));
        assert_int_equal(whole.data[0], ' ');
        assert_string_equal(whole.data + 1, kg_str_text(&text));
        kg_str_release(&whole);
        kg_str_release(&parts);
        kg_str_release(&text);
        kg_ids_release(&ids);
        kg_tokenizer_close(tok);
    }
}

static void a_text_that_continues_gets_nothing_in_front(void **state)
{
    static const char *const files[] = {"spm", "spm_legacy.json", "spm_first.json",
                                        "spm_always.json"};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct kg_tokenizer *tok = open_data(files[i]);
        struct kg_ids ids = {0};
        struct kg_str text = {0};
        encode(&ids, tok, "one", 3, (struct kg_encode_opts){.continues = true});
        NEED(kg_tokenizer_decode(&text, tok, ids.ids, ids.n, false, err));
        assert_string_equal(kg_str_text(&text), "one");
        kg_str_release(&text);
        kg_ids_release(&ids);
        kg_tokenizer_close(tok);
    }
}

static void decoding_names_the_place_of_a_bad_id(void **state)
{
    struct kg_tokenizer *tok = open_data("spm");
    struct kg_str text = {0};
    struct kg_err why;
    const int32_t ids[] = {300, 300, 620};
    (void)state;
    assert_int_equal(kg_tokenizer_decode_text(&text, tok, ids, 3, false, &why),
                     KG_EINVAL);
    assert_non_null(strstr(why.message, "index 2"));
    kg_str_release(&text);
    kg_tokenizer_close(tok);
}

/* ---- special tokens ---- */

/* Opens the small model with this tokenizer_config.json. */
static struct kg_tokenizer *open_with_config(const char *model, const char *config)
{
    char dir[] = "/tmp/kedge-pieces-XXXXXX";
    char path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/tokenizer.model", dir);
    NEED(kg_file_copy(model, path, err));
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    NEED(kg_file_write_atomic(path, config, strlen(config), err));
    struct kg_tokenizer *tok = open_dir(dir);
    NEED(kg_file_remove_tree(dir, err));
    return tok;
}

static void control_pieces_are_special_tokens(void **state)
{
    struct kg_tokenizer *tok = open_data("spm");
    const int32_t end = 2;
    struct kg_ids ids = {0};
    (void)state;
    assert_int_equal(kg_tokenizer_eos(tok), 2);
    assert_int_equal(kg_tokenizer_find(tok, "<s>"), 1);
    assert_true(kg_tokenizer_is_special(tok, 0) && kg_tokenizer_is_special(tok, 2));
    assert_false(kg_tokenizer_is_special(tok, 5) || kg_tokenizer_is_special(tok, 300));
    assert_ids(tok, "</s>", PLAIN, &end, 1);
    encode(&ids, tok, "</s>", 4, BARE);
    assert_true(ids.n > 1);
    encode(&ids, tok, "hello", 5, (struct kg_encode_opts){.add_special = true});
    assert_int_equal(ids.ids[0], 1);
    kg_ids_release(&ids);
    kg_tokenizer_close(tok);
}

static void legacy_says_where_a_space_is_put_in_front(void **state)
{
    static const struct {
        const char *config, *decoded;
    } rows[] = {
        {"{}", " a</s> b"},
        {"{\"legacy\": true}", " a</s> b"},
        {"{\"add_prefix_space\": false}", "a</s>b"},
    };
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct kg_tokenizer *tok = open_with_config(DATA "spm/tokenizer.model",
                                                    rows[i].config);
        struct kg_ids ids = {0};
        struct kg_str text = {0};
        encode(&ids, tok, "a</s>b", 6, PLAIN);
        NEED(kg_tokenizer_decode(&text, tok, ids.ids, ids.n, false, err));
        assert_string_equal(kg_str_text(&text), rows[i].decoded);
        kg_str_release(&text);
        kg_ids_release(&ids);
        kg_tokenizer_close(tok);
    }
}

static void tokenizer_config_adds_tokens_and_ends(void **state)
{
    static const char config[] =
        "{\"model_max_length\": 1000000000000000019884624838656, \"add_bos_token\": "
        "false, \"add_eos_token\": true, \"eos_token\": "
        "{\"content\": "
        "\"<|im_end|>\"}, \"added_tokens_decoder\": {\"700\": {\"content\": "
        "\"<|im_end|>\", \"lstrip\": false, \"normalized\": false, \"rstrip\": false, "
        "\"single_word\": false, \"special\": true}}}";
    struct kg_tokenizer *tok = open_with_config(DATA "spm/tokenizer.model", config);
    const int32_t want[] = {700, 700};
    (void)state;
    assert_int_equal(kg_tokenizer_vocab_size(tok), 701);
    assert_int_equal(kg_tokenizer_eos(tok), 700);
    assert_true(kg_tokenizer_is_special(tok, 700));
    assert_ids(tok, "<|im_end|>",
               (struct kg_encode_opts){.parse_special = true, .add_special = true}, want,
               2);
    kg_tokenizer_close(tok);
}

/* In protocol buffers a later field overrides an earlier one, so appending a trainer_spec
 * changes the ids. */
static void the_model_says_which_token_ends_a_text(void **state)
{
    static const char trainer[] = "\x12\x06\xc8\x02\x07\xd0\x02\x05"; /* bos 7, eos 5 */
    char dir[] = "/tmp/kedge-pieces-XXXXXX";
    char path[64];
    struct kg_str model = {0};
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/tokenizer.model", dir);
    NEED(kg_file_read(&model, DATA "spm/tokenizer.model", 1 << 24, err));
    NEED(kg_str_append(&model, trainer, sizeof trainer - 1, err));
    NEED(kg_file_write_atomic(path, model.data, model.len, err));
    struct kg_tokenizer *tok = open_dir(dir);
    assert_int_equal(kg_tokenizer_eos(tok), 5);
    kg_tokenizer_close(tok);
    kg_str_release(&model);
    NEED(kg_file_remove_tree(dir, err));
}

static void tokens_of_added_tokens_json_need_their_flags(void **state)
{
    char dir[] = "/tmp/kedge-pieces-XXXXXX";
    char path[64];
    struct kg_tokenizer *tok = NULL;
    struct kg_err why;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/tokenizer.model", dir);
    NEED(kg_file_copy(DATA "spm/tokenizer.model", path, err));
    snprintf(path, sizeof path, "%s/added_tokens.json", dir);
    NEED(kg_file_write_atomic(path, "{\"<pad>\": 620}", 14, err));
    assert_int_equal(kg_tokenizer_open(&tok, dir, &why), KG_EUNSUPPORTED);
    assert_non_null(strstr(why.message, "added_tokens_decoder"));
    NEED(kg_file_write_atomic(path, "{}", 2, err));
    NEED(kg_tokenizer_open(&tok, dir, err));
    kg_tokenizer_close(tok);
    NEED(kg_file_remove_tree(dir, err));
}

static void llama3_brings_its_special_tokens(void **state)
{
    struct kg_tokenizer *tok;
    struct kg_str text = {0};
    (void)state;
    NEED(kg_file_read(&text, DATA "tiktoken/tokenizer.model", 1 << 20, err));
    NEED(kg_tokenizer_parse_model(&tok, text.data, text.len, "small.model", err));
    const int32_t n = kg_tokenizer_vocab_size(tok) - 256;
    assert_int_equal(n, 597);
    assert_int_equal(kg_tokenizer_find(tok, "<|begin_of_text|>"), n);
    assert_int_equal(kg_tokenizer_eos(tok), n + 1);
    assert_int_equal(kg_tokenizer_find(tok, "<|reserved_special_token_0|>"), n + 2);
    assert_int_equal(kg_tokenizer_find(tok, "<|finetune_right_pad_id|>"), n + 4);
    assert_int_equal(kg_tokenizer_find(tok, "<|eot_id|>"), n + 9);
    assert_int_equal(kg_tokenizer_find(tok, "<|python_tag|>"), n + 10);
    assert_int_equal(kg_tokenizer_find(tok, "<|reserved_special_token_247|>"), n + 255);
    assert_true(kg_tokenizer_is_special(tok, n + 255));
    assert_ids(tok, "", (struct kg_encode_opts){.add_special = true}, &n, 1);
    kg_str_release(&text);
    kg_tokenizer_close(tok);
}

/* ---- a model made for the test ---- */

struct made {
    int model_type;
    bool no_fallback, removes_spaces, space_as_suffix, keeps_spaces, charsmap;
    int last_type;         /* of the last piece; 0: NORMAL */
    const char *last_text; /* NULL: "ab" */
    int n_bytes;           /* 0: all 256 */
    bool no_score;
    const char *tail; /* appended to the message */
};

static void put_number(struct kg_str *out, int field, uint64_t value)
{
    NEED(kg_str_putc(out, (char)((field << 3 & 0x7F) | (field > 15 ? 0x80 : 0)), err));
    if (field > 15)
        NEED(kg_str_putc(out, (char)(field >> 4), err));
    for (; value > 127; value >>= 7)
        NEED(kg_str_putc(out, (char)(value | 0x80), err));
    NEED(kg_str_putc(out, (char)value, err));
}

static void put_bytes(struct kg_str *out, int field, const void *bytes, size_t n)
{
    assert_true(field < 16 && n < 128);
    NEED(kg_str_putc(out, (char)(field << 3 | 2), err));
    NEED(kg_str_putc(out, (char)n, err));
    NEED(kg_str_append(out, bytes, n, err));
}

static void put_piece(struct kg_str *out, const char *text, float score, int type)
{
    struct kg_str piece = {0};
    put_bytes(&piece, 1, text, strlen(text));
    NEED(kg_str_putc(&piece, 2 << 3 | 5, err));
    NEED(kg_str_append(&piece, &score, sizeof score, err));
    put_number(&piece, 3, (uint64_t)type);
    put_bytes(out, 1, piece.data, piece.len);
    kg_str_release(&piece);
}

/* Appends the pieces and the settings to the message. */
static void make_more(struct kg_str *out, const struct made *m)
{
    struct kg_str part = {0};
    put_piece(out, "<unk>", 0, 2);
    for (int byte = 0; byte < (m->n_bytes ? m->n_bytes : 256); byte++) {
        char name[16];
        snprintf(name, sizeof name, "<0x%02X>", byte);
        put_piece(out, name, 0, 6);
    }
    put_piece(out, "a", -1, 1);
    put_piece(out, "b", m->no_score ? (float)strtod("nan", NULL) : -2, 1);
    put_piece(out, m->last_text ? m->last_text : "ab", -3,
              m->last_type ? m->last_type : 1);
    put_number(&part, 3, m->model_type ? (uint64_t)m->model_type : 2);
    put_number(&part, 24, m->space_as_suffix);
    put_number(&part, 35, !m->no_fallback);
    put_number(&part, 41, UINT64_MAX); /* no bos: -1 */
    put_bytes(out, 2, part.data, part.len);
    kg_str_clear(&part);
    if (m->charsmap)
        put_bytes(&part, 2, "x", 1);
    put_number(&part, 4, m->removes_spaces);
    put_number(&part, 5, !m->keeps_spaces);
    put_bytes(out, 3, part.data, part.len);
    NEED(kg_str_puts(out, m->tail ? m->tail : "", err));
    kg_str_release(&part);
}

static void make_model(struct kg_str *out, const struct made *m)
{
    kg_str_clear(out);
    make_more(out, m);
}

static void a_made_model_is_read(void **state)
{
    const int32_t want[] = {0xE2 + 1, 0x96 + 1, 0x81 + 1, 259, 257, 1 + 'c'};
    struct kg_tokenizer *tok;
    struct kg_str model = {0};
    (void)state;
    make_model(&model, &(struct made){0});
    NEED(kg_tokenizer_parse_model(&tok, model.data, model.len, "made", err));
    assert_ids(tok, "abac", (struct kg_encode_opts){.add_special = true}, want, 6);
    kg_tokenizer_close(tok);
    /* user-defined pieces are never merged with others */
    make_model(&model, &(struct made){.last_text = "ba", .last_type = 4});
    NEED(kg_tokenizer_parse_model(&tok, model.data, model.len, "made", err));
    const int32_t apart[] = {0xE2 + 1, 0x96 + 1, 0x81 + 1, 257, 259, 258};
    assert_ids(tok, "abab", BARE, apart, 6);
    kg_tokenizer_close(tok);
    kg_str_release(&model);
}

/* Without byte fallback, text that has no token becomes the unknown token. forms_test.c
 * compares ids with sentencepiece. */
static void a_made_unigram_is_read(void **state)
{
    const int32_t want[] = {0, 259, 257, 0};
    struct kg_tokenizer *tok;
    struct kg_str model = {0};
    (void)state;
    make_model(&model, &(struct made){.model_type = 1,
                                      .no_fallback = true,
                                      .removes_spaces = true,
                                      .last_text = "ab"});
    NEED(kg_tokenizer_parse_model(&tok, model.data, model.len, "made", err));
    assert_string_equal(kg_tokenizer_kind(tok), "unigram");
    assert_ids(tok, "  abacd ", BARE, want, 4);
    kg_tokenizer_close(tok);
    kg_str_release(&model);
}

static void other_models_are_refused_by_name(void **state)
{
    static const struct {
        struct made made;
        const char *named;
    } rows[] = {
        {{.model_type = 4}, "trainer_spec.model_type is CHAR"},
        {{.model_type = 3}, "WORD"},
        {{.model_type = 100}, "not known"},
        {{.space_as_suffix = true}, "treat_whitespace_as_suffix"},
        {{.keeps_spaces = true}, "normalizer_spec.escape_whitespaces"},
        {{.charsmap = true}, "normalizer_spec: precompiled"},
        {{.last_type = 5}, "UNUSED"},
        {{.last_type = 9}, "known type"},
        {{.last_text = "ac"}, "found none for 'c'"},
        {{.last_text = "a"}, "have the same spelling"},
        {{.model_type = 1, .last_text = "a", .last_type = 4}, "pieces of different text"},
        {{.last_text = "\xFF"}, "UTF-8"},
        {{.last_text = ""}, "text"},
        {{.n_bytes = 255}, "<0xFF>"},
        {{.no_score = true}, "score"},
        {{.tail = "\x38\x01"}, "field 7"},
        {{.tail = "\x0a\x05xx"}, "protocol buffer"},
        {{.tail = "\x0b"}, "protocol buffer"},
    };
    (void)state;
    struct kg_str model = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_tokenizer *tok = NULL;
        struct kg_err why;
        make_model(&model, &rows[i].made);
        kg_status status = kg_tokenizer_parse_model(&tok, model.data, model.len, "made",
                                                    &why);
        if ((status != KG_EUNSUPPORTED && status != KG_EFORMAT) ||
            !strstr(why.message, rows[i].named) || !strstr(why.message, "made"))
            fail_msg("row %zu: status %d, %s", i, status,
                     status == KG_OK ? "" : why.message);
    }
    kg_str_release(&model);
}

static void a_model_cut_anywhere_is_refused(void **state)
{
    struct kg_str model = {0};
    (void)state;
    make_model(&model, &(struct made){0});
    for (size_t n = 0; n < model.len; n++) {
        struct kg_tokenizer *tok = NULL;
        struct kg_err why;
        char *part = kg_mem_copy(model.data, n, "part", &why);
        assert_non_null(part);
        assert_int_not_equal(kg_tokenizer_parse_model(&tok, part, n, "made", &why),
                             KG_OK);
        kg_mem_free(part);
    }
    kg_str_release(&model);
}

/* Writes n tokens of 768 bytes each, which are 1024 base64 characters. */
static void put_long_tokens(struct kg_str *out, int n)
{
    char line[1024 + 1];

    kg_str_clear(out);
    memset(line, 'A', sizeof line - 1);
    for (int i = 0; i < n; i++) {
        snprintf(line + 1020, 5, "%04d", i % 10000); /* digits are base64 too */
        NEED(kg_str_printf(out, err, "%s %d\n", line, i));
    }
}

/* 455 x 768^2 is just below the limit of 2^28, 456 x 768^2 above it. */
static void tokens_that_are_too_much_work_are_refused(void **state)
{
    struct kg_tokenizer *tok;
    struct kg_str model = {0};
    struct kg_err why;

    (void)state;
    put_long_tokens(&model, 455);
    NEED(kg_tokenizer_parse_model(&tok, model.data, model.len, "made", err));
    kg_tokenizer_close(tok);
    put_long_tokens(&model, 456);
    assert_int_equal(kg_tokenizer_parse_model(&tok, model.data, model.len, "made", &why),
                     KG_EFORMAT);
    assert_string_equal(why.message, "made: expected tokens whose squared lengths add up "
                                     "to at most 268435456, found 268959744");
    kg_str_release(&model);
}

/* Seconds of CPU time to read a model with n control pieces. */
static double seconds_to_read_controls(int n)
{
    struct kg_tokenizer *tok;
    struct kg_str model = {0};
    clock_t start;
    double seconds;

    for (int i = 0; i < n; i++) {
        char name[16];

        snprintf(name, sizeof name, "<c%d>", i);
        put_piece(&model, name, 0, 3);
    }
    make_more(&model, &(struct made){0});
    start = clock();
    NEED(kg_tokenizer_parse_model(&tok, model.data, model.len, "made", err));
    seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    assert_true(kg_tokenizer_is_special(tok, n - 1));
    kg_tokenizer_close(tok);
    kg_str_release(&model);
    return seconds;
}

/* 80,000 pieces may take 64 times as long as 5,000; with quadratic cost they would take
 * 256 times as long. */
static void many_control_pieces_take_their_share_of_time(void **state)
{
    double few, many;

    (void)state;
    few = seconds_to_read_controls(5000);
    many = seconds_to_read_controls(80000);
    if (many > 64 * few)
        fail_msg("5,000 control pieces: %g s; 80,000: %g s", few, many);
}

static void lines_that_are_no_ranks_are_refused(void **state)
{
    static const char *const rows[][2] = {
        {"{}", "line 1"},
        {"IQ==", "line 1"},
        {"IQ== x", "line 1"},
        {"IQ== -1", "line 1"},
        {"IQ== 0\nIg== 9", "rank"},
        {"IQ== 0\nI!== 1", "line 2"},
        {"IQ= 0", "base64"},
        {"I 0", "base64"},
        {"IQ== 0\nIQ== 1", "same spelling"},
        {"IQ== 0\nIg== 0", "two tokens"},
        {"IQ== 99999999999999999999", "line 1"},
        {" 0", "line 1"},
        {"=IQ= 0", "base64"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_tokenizer *tok = NULL;
        struct kg_err why;
        kg_status status = kg_tokenizer_parse_model(&tok, rows[i][0], strlen(rows[i][0]),
                                                    "made", &why);
        if (status != KG_EFORMAT || !strstr(why.message, rows[i][1]))
            fail_msg("%s: status %d, %s", rows[i][0], status,
                     status == KG_OK ? "" : why.message);
    }
}

/* ---- tokenizer.json ---- */

/* Reads a tokenizer.json with `from` replaced by `to`. */
static kg_status read_changed(const char *path, const char *from, const char *to,
                              struct kg_err *why)
{
    struct kg_tokenizer *tok = NULL;
    struct kg_str text = {0}, changed = {0};
    NEED(kg_file_read(&text, path, 1 << 20, err));
    const char *at = strstr(text.data, from);
    if (!at)
        fail_msg("'%s' is not in the file", from);
    NEED(kg_str_append(&changed, text.data, (size_t)(at - text.data), err));
    NEED(kg_str_puts(&changed, to, err));
    NEED(kg_str_puts(&changed, at + strlen(from), err));
    kg_status status = kg_tokenizer_parse(&tok, changed.data, changed.len, "changed.json",
                                          why);
    kg_tokenizer_close(tok);
    kg_str_release(&text);
    kg_str_release(&changed);
    return status;
}

static void steps_that_kedge_does_not_do_are_refused_by_name(void **state)
{
    static const char LEGACY[] = DATA "spm_legacy.json";
    static const char FIRST[] = DATA "spm_first.json";
    static const char *const rows[][4] = {
        {LEGACY, "\"Prepend\"", "\"Append\"", "normalizer.type is \"Append\""},
        {LEGACY, "\"prepend\":\"\xE2\x96\x81\"", "\"prepend\":\"\"",
         "normalizer.prepend"},
        {LEGACY, "{\"String\":\" \"}", "{\"Regex\":\"\\\\b\"}", "normalizer"},
        {LEGACY, "{\"String\":\" \"}", "{\"String\":\"\"}", "normalizer.pattern"},
        {LEGACY, "\"pre_tokenizer\":null", "\"pre_tokenizer\":{\"type\":\"Letters\"}",
         "pre_tokenizer.type is \"Letters\""},
        {LEGACY, "\"type\":\"Strip\"", "\"type\":\"CTC\"", "decoder.type is \"CTC\""},
        {LEGACY, "{\"type\":\"ByteFallback\"},", "", "decoder"},
        {LEGACY, "{\"type\":\"Fuse\"},", "", "after Fuse"},
        {LEGACY, "\"start\":1", "\"start\":2", "decoder.start"},
        {LEGACY, "\"stop\":0", "\"stop\":1", "decoder.stop"},
        {LEGACY, "\"content\":\" \",\"start\"", "\"content\":\"x\",\"start\"",
         "decoder.content"},
        {LEGACY, "{\"type\":\"Fuse\"}", "{\"type\":\"Fuse\",\"x\":1}", "decoder.x"},
        {LEGACY, "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}",
         "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Replace\","
         "\"pattern\":{\"String\":\"a\"},\"content\":\"b\"}",
         "before ByteFallback and Fuse"},
        {FIRST, "\"prepend_scheme\":\"first\"", "\"prepend_scheme\":\"last\"",
         "prepend_scheme is \"last\""},
        {FIRST, "\"prepend_scheme\":\"first\"",
         "\"prepend_scheme\":\"first\",\"add_prefix_space\":false", "add_prefix_space"},
        {FIRST, "\"replacement\":\"\xE2\x96\x81\"", "\"replacement\":\"__\"",
         "pre_tokenizer.replacement"},
        {FIRST, "\"split\":false", "\"split\":0", "pre_tokenizer.split"},
        {FIRST, "\"split\":false", "\"split\":false,\"cut\":1", "pre_tokenizer.cut"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_err why;
        kg_status status = read_changed(rows[i][0], rows[i][1], rows[i][2], &why);
        if (status != KG_EUNSUPPORTED || !strstr(why.message, rows[i][3]) ||
            !strstr(why.message, "changed.json"))
            fail_msg("%s: status %d, %s", rows[i][2], status,
                     status == KG_OK ? "" : why.message);
    }
}

static void older_spellings_are_read(void **state)
{
    static const char FIRST[] = DATA "spm_first.json";
    static const char *const rows[][2] = {
        {",\"prepend_scheme\":\"first\"", ""},
        {"\"prepend_scheme\":\"first\"", "\"add_prefix_space\":true,\"str_rep\":\"_\""},
        {"\"prepend_scheme\":\"first\"", "\"add_prefix_space\":false"},
        {"\"decoder\":{\"type\":\"Sequence\",\"decoders\":[",
         "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Metaspace\","
         "\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"never\",\"split\":true}"
         ","},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_err why;
        if (read_changed(FIRST, rows[i][0], rows[i][1], &why) != KG_OK)
            fail_msg("%s: %s", rows[i][1], why.message);
    }
}

/* ---- memory ---- */

static kg_status open_and_use(const char *dir, struct kg_err *err)
{
    struct kg_tokenizer *tok = NULL;
    struct kg_ids ids = {0};
    struct kg_str text = {0};
    const char *s = "How  many\xF0\x9F\xA6\x99 == </s> left";
    kg_status status;
    KG_TRY_GOTO(out, kg_tokenizer_open(&tok, dir, err));
    KG_TRY_GOTO(out, kg_tokenizer_encode(&ids, tok, s, strlen(s), PLAIN, err));
    KG_TRY_GOTO(out, kg_tokenizer_decode_text(&text, tok, ids.ids, ids.n, false, err));
out:
    kg_str_release(&text);
    kg_ids_release(&ids);
    kg_tokenizer_close(tok);
    return status;
}

static void every_failed_allocation_is_a_status(void **state)
{
    static const char *const dirs[] = {DATA "spm", DATA "tiktoken"};
    uint64_t before = kg_mem_current_bytes();
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        kg_status status = KG_ENOMEM;
        for (uint64_t n = 1; status != KG_OK; n++) {
            struct kg_err why;
            kg_mem_fail_at(n);
            status = open_and_use(dirs[i], &why);
            kg_mem_fail_at(0);
            assert_true(status == KG_OK || status == KG_ENOMEM);
            assert_int_equal(kg_mem_current_bytes(), before);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_vectors_pass),
        cmocka_unit_test(published_vectors_pass),
        cmocka_unit_test(characters_come_back),
        cmocka_unit_test(single_ids_put_together_are_the_whole),
        cmocka_unit_test(a_text_that_continues_gets_nothing_in_front),
        cmocka_unit_test(decoding_names_the_place_of_a_bad_id),
        cmocka_unit_test(control_pieces_are_special_tokens),
        cmocka_unit_test(legacy_says_where_a_space_is_put_in_front),
        cmocka_unit_test(tokenizer_config_adds_tokens_and_ends),
        cmocka_unit_test(the_model_says_which_token_ends_a_text),
        cmocka_unit_test(tokens_of_added_tokens_json_need_their_flags),
        cmocka_unit_test(llama3_brings_its_special_tokens),
        cmocka_unit_test(a_made_model_is_read),
        cmocka_unit_test(a_made_unigram_is_read),
        cmocka_unit_test(other_models_are_refused_by_name),
        cmocka_unit_test(a_model_cut_anywhere_is_refused),
        cmocka_unit_test(tokens_that_are_too_much_work_are_refused),
        cmocka_unit_test(many_control_pieces_take_their_share_of_time),
        cmocka_unit_test(lines_that_are_no_ranks_are_refused),
        cmocka_unit_test(steps_that_kedge_does_not_do_are_refused_by_name),
        cmocka_unit_test(older_spellings_are_read),
        cmocka_unit_test(every_failed_allocation_is_a_status),
    };
    return cmocka_run_group_tests_name("pieces", tests, NULL, NULL);
}
