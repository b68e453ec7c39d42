/* Every form of a tokenizer that kedge reads: ids against HuggingFace's `tokenizers` (of
 * a tokenizer.model against `sentencepiece`), and the texts that they decode to.
 *
 * tools/oracle/make_tokenizer_forms.py writes the file: models by name, and forms that
 * put the other parts around one of them. KEDGE_FORMS names another such file.
 */
#include "text/tokenizer.h"

#include "base/mem.h"
#include "base/need_testing.h"
#include "data/jsonl.h"
#include "text/base64.h"
#include "text/charsmap.h"
#include "text/cut.h"
#include "text/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMS "tests/data/tokenizer/forms.jsonl"

enum { MAX_MODELS = 64 };
struct forms {
    char *names[MAX_MODELS];          /* owned */
    struct kg_str models[MAX_MODELS]; /* owned */
    size_t n_models;
    size_t n_forms;
    size_t n_rows;
    size_t n_wrong;
    const char *only; /* NULL, or the one form that is wanted */
};

static void forms_release(struct forms *f)
{
    for (size_t i = 0; i < f->n_models; i++) {
        kg_mem_free(f->names[i]);
        kg_str_release(&f->models[i]);
    }
}

static void keep_model(struct forms *f, const struct kg_json *line)
{
    assert_in_range(f->n_models, 0, MAX_MODELS - 1);
    f->names[f->n_models] = kg_mem_strdup(kg_json_text(kg_json_get(line, "name"), NULL),
                                          &(struct kg_err){0});
    NEED(kg_json_put_value(&f->models[f->n_models], kg_json_get(line, "model"), err));
    f->n_models++;
}

static const char *model_named(const struct forms *f, const char *name)
{
    for (size_t i = 0; i < f->n_models; i++)
        if (strcmp(f->names[i], name) == 0)
            return kg_str_text(&f->models[i]);
    fail_msg("no model '%s'", name);
    return NULL;
}

/* The form's parts put around its model. */
static struct kg_tokenizer *open_json(const struct forms *f, const struct kg_json *line,
                                      const char *form)
{
    static const char *const parts[] = {"normalizer", "pre_tokenizer", "post_processor",
                                        "decoder", "added_tokens"};
    struct kg_tokenizer *tok;
    struct kg_str text = {0};
    NEED(kg_str_puts(&text, "{\"version\":\"1.0\"", err));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        NEED(kg_str_printf(&text, err, ",\"%s\":", parts[i]));
        NEED(kg_json_put_value(&text, kg_json_get(line, parts[i]), err));
    }
    NEED(kg_str_puts(&text, ",\"model\":", err));
    NEED(kg_str_puts(
        &text, model_named(f, kg_json_text(kg_json_get(line, "model"), NULL)), err));
    NEED(kg_str_puts(&text, "}", err));
    NEED(kg_tokenizer_parse(&tok, text.data, text.len, form, err));
    kg_str_release(&text);
    return tok;
}

static struct kg_tokenizer *open_model(const struct kg_json *line, const char *form)
{
    struct kg_tokenizer *tok;
    struct kg_str bytes = {0};
    bool valid;
    size_t n;
    const char *text = kg_json_text(kg_json_get(line, "file"), &n);
    NEED(kg_base64_decode(&bytes, text, n, &valid, err));
    assert_true(valid);
    NEED(kg_tokenizer_parse_model(&tok, bytes.data, bytes.len, form, err));
    kg_str_release(&bytes);
    return tok;
}

/* [text, parse_special, add_special, ids, decoded or null] */
static bool row_is_right(const struct kg_tokenizer *tok, const struct kg_json *row)
{
    struct kg_ids ids = {0};
    struct kg_str text = {0};
    size_t n, n_want;
    const char *s = kg_json_text(kg_json_at(row, 0), &n);
    const char *want = kg_json_text(kg_json_at(row, 4), &n_want);
    const struct kg_json *want_ids = kg_json_at(row, 3);
    const struct kg_encode_opts opts = {
        .parse_special = kg_json_bool(kg_json_at(row, 1), false),
        .add_special = kg_json_bool(kg_json_at(row, 2), false),
    };
    NEED(kg_tokenizer_encode(&ids, tok, s, n, opts, err));
    bool right = ids.n == kg_json_size(want_ids);
    for (size_t i = 0; right && i < ids.n; i++)
        right = ids.ids[i] == kg_json_int(kg_json_at(want_ids, i), -1);
    NEED(kg_tokenizer_decode_text(&text, tok, ids.ids, ids.n, false, err));
    /* bytes that are no UTF-8 by themselves print as they are, there as U+FFFD */
    if (right && want && kg_utf8_is_valid(kg_str_text(&text), text.len))
        right = text.len == n_want && memcmp(kg_str_text(&text), want, n_want) == 0;
    kg_ids_release(&ids);
    kg_str_release(&text);
    return right;
}

static void print_row(const struct kg_tokenizer *tok, const char *form,
                      const struct kg_json *row)
{
    struct kg_str text = {0};
    struct kg_ids ids = {0};
    size_t n;
    const char *s = kg_json_text(kg_json_at(row, 0), &n);
    const struct kg_encode_opts opts = {
        .parse_special = kg_json_bool(kg_json_at(row, 1), false),
        .add_special = kg_json_bool(kg_json_at(row, 2), false),
    };
    NEED(kg_tokenizer_encode(&ids, tok, s, n, opts, err));
    NEED(kg_json_put_value(&text, row, err));
    NEED(kg_str_puts(&text, "\n   kedge: ", err));
    NEED(kg_json_put_ints(&text, ids.ids, ids.n, err));
    NEED(kg_str_puts(&text, " ", err));
    NEED(kg_tokenizer_decode_text(&text, tok, ids.ids, ids.n, false, err));
    print_message("%s: %s\n", form, kg_str_text(&text));
    kg_str_release(&text);
    kg_ids_release(&ids);
}

static void check_form(struct forms *f, const struct kg_json *line)
{
    const char *form = kg_json_text(kg_json_get(line, "form"), NULL);
    const struct kg_json *rows = kg_json_get(line, "rows");
    struct kg_tokenizer *tok;
    size_t wrong = 0;
    if (f->only && strcmp(form, f->only) != 0)
        return;
    tok = kg_json_get(line, "file") ? open_model(line, form) : open_json(f, line, form);
    for (size_t i = 0; i < kg_json_size(rows); i++) {
        if (row_is_right(tok, kg_json_at(rows, i)))
            continue;
        if (wrong++ < 2)
            print_row(tok, form, kg_json_at(rows, i));
    }
    if (wrong > 0)
        print_message("%s: %zu of %zu differ\n", form, wrong, kg_json_size(rows));
    f->n_forms++;
    f->n_rows += kg_json_size(rows);
    f->n_wrong += wrong;
    kg_tokenizer_close(tok);
}

static void every_form_gives_the_ids_of_the_library(void **state)
{
    const char *path = getenv("KEDGE_FORMS");
    struct forms f = {.only = getenv("KEDGE_FORM")};
    struct kg_jsonl *r;
    struct kg_json_doc line = {0};
    bool more = true;
    (void)state;
    NEED(kg_jsonl_open(&r, path ? path : FORMS, err));
    for (;;) {
        NEED(kg_jsonl_next(r, &line, &more, err));
        if (!more)
            break;
        if (kg_json_get(line.root, "form"))
            check_form(&f, line.root);
        else
            keep_model(&f, line.root);
    }
    kg_json_release(&line);
    kg_jsonl_close(r);
    forms_release(&f);
    print_message("%zu forms, %zu texts, %zu differ\n", f.n_forms, f.n_rows, f.n_wrong);
    assert_int_equal(f.n_wrong, 0);
    assert_true(f.only || f.n_forms >= 90);
}

/* ---- what is refused ---- */

#define UNIGRAM                                                                          \
    "{\"type\":\"Unigram\",\"unk_id\":0,\"byte_fallback\":false,\"vocab\":[[\"?\",0],"   \
    "[\"a\",-1],[\"ab\",-1.5]]}"
#define WORDS                                                                            \
    "{\"type\":\"WordPiece\",\"unk_token\":\"?\",\"continuing_subword_prefix\":\"##\","  \
    "\"max_input_chars_per_word\":9,\"vocab\":{\"?\":0,\"a\":1,\"##b\":2}}"

/* A small tokenizer of these parts. */
static kg_status parse_parts(struct kg_tokenizer **tok, const char *normalizer,
                             const char *pre_tokenizer, const char *post_processor,
                             const char *model, struct kg_err *why)
{
    struct kg_str text = {0};
    NEED(kg_str_printf(&text, err,
                       "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":%s,"
                       "\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":null,"
                       "\"model\":%s}",
                       normalizer, pre_tokenizer, post_processor, model));
    kg_status status = kg_tokenizer_parse(tok, text.data, text.len, "made", why);
    kg_str_release(&text);
    return status;
}

#define CHARSMAP(base64)                                                                 \
    "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"" base64 "\"}"

static void other_parts_are_refused_by_name(void **state)
{
    /* normalizer, pre_tokenizer, post_processor, model, what the message must name */
    static const char *const rows[][5] = {
        {CHARSMAP(""), "null", "null", UNIGRAM, "precompiled_charsmap"},
        {CHARSMAP("!!!!"), "null", "null", UNIGRAM, "base64"},
        {CHARSMAP("AAAAAA=="), "null", "null", UNIGRAM, "precompiled_charsmap"},
        {CHARSMAP("CAAAAAAAAAA="), "null", "null", UNIGRAM, "trie"},
        {CHARSMAP("BAAAAAAAAAD/"), "null", "null", UNIGRAM, "UTF-8"},
        {"{\"type\":\"Strip\",\"strip_left\":1}", "null", "null", UNIGRAM, "strip_left"},
        {"{\"type\":\"Strip\",\"middle\":true}", "null", "null", UNIGRAM, "middle"},
        {"{\"type\":\"BertNormalizer\",\"strip_accents\":3}", "null", "null", UNIGRAM,
         "strip_accents"},
        {"{\"type\":\"ByteLevel\"}", "null", "null", UNIGRAM, "ByteLevel"},
        {"null", "{\"type\":\"Digits\",\"three\":true}", "null", UNIGRAM, "three"},
        {"null", "{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"ab\"}", "null",
         UNIGRAM, "delimiter"},
        {"null", "{\"type\":\"Punctuation\",\"behavior\":\"Gone\"}", "null", UNIGRAM,
         "Gone"},
        {"null", "{\"type\":\"ByteLevel\"}", "null", UNIGRAM, "model.type"},
        {"null", "{\"type\":\"ByteLevel\"}", "null", WORDS, "model.type"},
        {"null", "null",
         "{\"type\":\"BertProcessing\",\"sep\":[\"x\",9],\"cls\":[\"x\",1]}", UNIGRAM,
         "post_processor.sep"},
        {"null", "null", "null", "{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[]}",
         "model.vocab"},
        {"null", "null", "null",
         "{\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[[\"a\",0]]}", "model.unk_id"},
        {"null", "null", "null", "{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}", "score"},
        {"null", "null", "null", "{\"type\":\"Unigram\",\"vocab\":[[\"a\",\"b\"]]}",
         "score"},
        {"null", "null", "null", "{\"type\":\"Unigram\",\"vocab\":[[\"a\",1],[\"a\",2]]}",
         "same spelling"},
        {"null", "null", "null",
         "{\"type\":\"Unigram\",\"vocab\":[[\"a\",1]],\"alpha\":2}", "model.alpha"},
        {"null", "null", "null",
         "{\"type\":\"WordPiece\",\"vocab\":{\"a\":0},\"unk_token\":\"a\","
         "\"continuing_subword_prefix\":\"\",\"max_input_chars_per_word\":-1}",
         "max_input_chars_per_word"},
        {"null", "null", "null",
         "{\"type\":\"WordPiece\",\"vocab\":{\"a\":0},\"unk_token\":null,"
         "\"continuing_subword_prefix\":\"\",\"max_input_chars_per_word\":1}",
         "unk_token"},
        {"null", "null", "null", "{\"type\":\"WordLevel\"}", "WordLevel"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_tokenizer *tok = NULL;
        struct kg_err why;
        kg_status status = parse_parts(&tok, rows[i][0], rows[i][1], rows[i][2],
                                       rows[i][3], &why);
        if ((status != KG_EUNSUPPORTED && status != KG_EFORMAT) ||
            !strstr(why.message, rows[i][4]) || !strstr(why.message, "made"))
            fail_msg("row %zu: status %d, %s", i, status,
                     status == KG_OK ? "" : why.message);
    }
}

static void what_is_unknown_needs_a_token(void **state)
{
    struct kg_tokenizer *tok;
    struct kg_ids ids = {0};
    struct kg_err why;
    (void)state;
    NEED(parse_parts(&tok, "null", "null", "null",
                     "{\"type\":\"Unigram\",\"unk_id\":null,\"vocab\":[[\"a\",1]]}",
                     err));
    assert_string_equal(kg_tokenizer_kind(tok), "unigram");
    NEED(kg_tokenizer_encode(&ids, tok, "aa", 2, (struct kg_encode_opts){0}, err));
    assert_int_equal(ids.n, 2);
    assert_int_equal(
        kg_tokenizer_encode(&ids, tok, "axya", 4, (struct kg_encode_opts){0}, &why),
        KG_EFORMAT);
    assert_non_null(strstr(why.message, "'xy'"));
    assert_int_equal(ids.n, 2);
    kg_ids_release(&ids);
    kg_tokenizer_close(tok);
}

static void replacements_of_replacements_are_bounded(void **state)
{
    struct kg_tokenizer *tok;
    struct kg_str norm = {0};
    struct kg_ids ids = {0};
    struct kg_err why;
    (void)state;
    NEED(kg_str_puts(&norm, "{\"type\":\"Sequence\",\"normalizers\":[", err));
    for (int i = 0; i < 30; i++)
        NEED(kg_str_printf(&norm, err,
                           "%s{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},"
                           "\"content\":\"aa\"}",
                           i ? "," : ""));
    NEED(kg_str_puts(&norm, "]}", err));
    NEED(parse_parts(&tok, norm.data, "null", "null", UNIGRAM, err));
    assert_int_equal(
        kg_tokenizer_encode(&ids, tok, "a", 1, (struct kg_encode_opts){0}, &why),
        KG_EFORMAT);
    assert_non_null(strstr(why.message, "a normalized text"));
    kg_str_release(&norm);
    kg_tokenizer_close(tok);
}

/* ---- maps of characters ---- */

/* Whatever the units of a trie say, nothing is read beyond it, and what comes out is
 * UTF-8. */
static void a_random_map_of_characters_is_walked_with_care(void **state)
{
    static const char text[] = "aA\xCC\x81 \xC3\xA9\xEF\xBC\xA1\xF0\x9F\x99\x82 zz~\x7F";
    static const char texts[] = "x\0\xC3\xA9\0yy";
    unsigned char bytes[4 + 4 * 64 + sizeof texts];
    uint64_t random = 1;
    (void)state;
    for (int round = 0; round < 3000; round++) {
        struct kg_charsmap *map;
        struct kg_str out = {0};
        for (size_t i = 0; i < sizeof bytes; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            bytes[i] = (unsigned char)(random >> 56);
        }
        for (size_t i = 0; i < 64; i++) { /* small offsets, to stay inside often */
            bytes[4 + 4 * i + 2] &= round % 2 ? 0xFF : 0x01;
            bytes[4 + 4 * i + 3] &= round % 2 ? 0xFF : 0x80;
        }
        memcpy(bytes, "\0\1\0\0", 4);
        memcpy(bytes + 4 + 4 * 64, texts, sizeof texts);
        NEED(kg_charsmap_create(&map, bytes, sizeof bytes, err));
        NEED(kg_charsmap_longest(&out, map, text, sizeof text - 1, err));
        NEED(kg_charsmap_clusters(&out, map, text, sizeof text - 1, err));
        assert_true(kg_utf8_is_valid(kg_str_text(&out), out.len));
        kg_str_release(&out);
        kg_charsmap_free(map);
    }
}

/* ---- cuts ---- */

static bool is_minus(uint32_t cp) { return cp == '-'; }

static void every_behavior_joins_what_it_should(void **state)
{
    static const struct {
        enum kg_cut_behavior behavior;
        bool invert;
        const char *pieces; /* of "-ab--c-", each ended by a space */
    } rows[] = {
        {KG_CUT_ISOLATED, false, "- ab - - c - "},
        {KG_CUT_REMOVED, false, "ab c "},
        {KG_CUT_REMOVED, true, "- - - - "},
        {KG_CUT_CONTIGUOUS, false, "- ab -- c - "},
        {KG_CUT_WITH_PREVIOUS, false, "- ab- - c- "},
        {KG_CUT_WITH_PREVIOUS, true, "-ab - -c - "},
        {KG_CUT_WITH_NEXT, false, "-ab - -c - "},
        {KG_CUT_WITH_NEXT, true, "- ab- - c- "},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_cutter cut = {
            .is = is_minus, .behavior = rows[i].behavior, .invert = rows[i].invert};
        struct kg_cut_scan scan;
        struct kg_str out = {0};
        size_t start, len;
        NEED(kg_cut_scan_init(&scan, &cut, err));
        kg_cut_scan_start(&scan, "-ab--c-", 7);
        for (;;) {
            NEED(kg_cut_scan_next(&scan, &start, &len, err));
            if (len == 0)
                break;
            NEED(kg_str_append(&out, "-ab--c-" + start, len, err));
            NEED(kg_str_putc(&out, ' ', err));
        }
        assert_string_equal(kg_str_text(&out), rows[i].pieces);
        kg_str_release(&out);
        kg_cut_scan_release(&scan);
    }
}

/* ---- memory ---- */

static kg_status open_and_use(const char *normalizer, const char *model,
                              struct kg_err *why)
{
    struct kg_tokenizer *tok = NULL;
    struct kg_ids ids = {0};
    struct kg_str text = {0};
    kg_status status = parse_parts(&tok, normalizer, "{\"type\":\"BertPreTokenizer\"}",
                                   "null", model, why);
    if (status == KG_OK)
        status = kg_tokenizer_encode(&ids, tok, "Aab, ab\xC3\xA9", 9,
                                     (struct kg_encode_opts){0}, why);
    if (status == KG_OK)
        status = kg_tokenizer_decode_text(&text, tok, ids.ids, ids.n, false, why);
    kg_str_release(&text);
    kg_ids_release(&ids);
    kg_tokenizer_close(tok);
    return status;
}

static void every_failed_allocation_is_a_status(void **state)
{
    static const char *const rows[][2] = {
        {"{\"type\":\"BertNormalizer\"}", WORDS},
        {"{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},"
         "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"b+\"},\"content\":\"c\"},"
         "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAAAAABhAA==\"}]}",
         UNIGRAM},
    };
    uint64_t before = kg_mem_current_bytes();
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        kg_status status = KG_ENOMEM;
        for (uint64_t n = 12; status != KG_OK;
             n++) { /* the test's own text comes first */
            struct kg_err why;
            kg_mem_fail_at(n);
            status = open_and_use(rows[i][0], rows[i][1], &why);
            kg_mem_fail_at(0);
            assert_true(status == KG_OK || status == KG_ENOMEM);
            assert_int_equal(kg_mem_current_bytes(), before);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_gives_the_ids_of_the_library),
        cmocka_unit_test(other_parts_are_refused_by_name),
        cmocka_unit_test(what_is_unknown_needs_a_token),
        cmocka_unit_test(replacements_of_replacements_are_bounded),
        cmocka_unit_test(a_random_map_of_characters_is_walked_with_care),
        cmocka_unit_test(every_behavior_joins_what_it_should),
        cmocka_unit_test(every_failed_allocation_is_a_status),
    };
    return cmocka_run_group_tests_name("forms", tests, NULL, NULL);
}
