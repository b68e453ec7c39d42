/* Every form of tokenizer that src/ reads (forms_testing.h), what is refused, and
 * character maps and splitting by themselves. */
#include "text/forms_testing.h"

#include "text/cut.h"
#include "text/normalizer.h"
#include "text/unicode.h"

static void every_form_gives_the_ids_of_the_library(void **state)
{
    (void)state;
    check_forms(false, 90);
}

/* ---- what is refused ---- */

#define UNIGRAM                                                                          \
    "{\"type\":\"Unigram\",\"unk_id\":0,\"byte_fallback\":false,\"vocab\":[[\"?\",0],"   \
    "[\"a\",-1],[\"ab\",-1.5]]}"

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
        {"null", "null", "null", "{\"type\":\"WordPiece\"}",
         "model.type: WordPiece: expected a kedge with guests/retriever"},
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

/* ---- character maps ---- */

/* Whatever the units of the trie contain, nothing outside it is read, and the output is
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
        for (size_t i = 0; i < 64; i++) { /* small offsets: walks often stay inside */
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

/* ---- splitting ---- */

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

static void every_failed_allocation_is_a_status(void **state)
{
    (void)state;
    every_allocation_fails(
        "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},"
        "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"b+\"},\"content\":\"c\"},"
        "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAAAAABhAA==\"}]}",
        UNIGRAM);
    every_allocation_fails("{\"type\":\"BertNormalizer\"}", UNIGRAM);
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
