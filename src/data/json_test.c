/* Tests of JSON reading and writing. */
#include "data/json.h"

#include "base/file.h"
#include "base/mem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct kg_err err;

static void parse(struct kg_json_doc *doc, const char *text)
{
    if (kg_json_parse(doc, text, strlen(text), "doc", &err) != KG_OK)
        fail_msg("%s", err.message);
}

static void refuses(const char *text, size_t n, const char *part)
{
    struct kg_json_doc doc;

    memset(&err, 0, sizeof err);
    assert_int_equal(kg_json_parse(&doc, text, n, "doc", &err), KG_EFORMAT);
    assert_null(doc.root);
    if (!strstr(err.message, part) || strchr(err.message, '\n'))
        fail_msg("message without '%s': %s", part, err.message);
}

static void values_have_their_types(void **state)
{
    struct kg_json_doc doc;
    size_t len;

    (void)state;
    parse(&doc, "{\"i\":-7,\"r\":2.5,\"s\":\"a\\u0000b\",\"t\":true,\"n\":null,\"l\":[1,["
                "2]],\"o\":{}}");
    assert_int_equal(kg_json_int(kg_json_get(doc.root, "i"), 0), -7);
    assert_true(kg_json_real(kg_json_get(doc.root, "r"), 0) == 2.5);
    assert_true(kg_json_real(kg_json_get(doc.root, "i"), 0) == -7.0);
    assert_int_equal(kg_json_int(kg_json_get(doc.root, "r"), 99), 99);
    assert_memory_equal(kg_json_text(kg_json_get(doc.root, "s"), &len), "a\0b", 4);
    assert_int_equal(len, 3);
    assert_true(kg_json_bool(kg_json_get(doc.root, "t"), false));
    assert_int_equal(kg_json_type(kg_json_get(doc.root, "n")), KG_JSON_NULL);
    assert_int_equal(kg_json_size(kg_json_get(doc.root, "l")), 2);
    assert_int_equal(
        kg_json_int(kg_json_at(kg_json_at(kg_json_get(doc.root, "l"), 1), 0), 0), 2);
    assert_string_equal(kg_json_key_at(doc.root, 1), "r");
    assert_ptr_equal(kg_json_value_at(doc.root, 1), kg_json_get(doc.root, "r"));
    assert_null(kg_json_get(doc.root, "absent"));
    assert_null(kg_json_at(doc.root, 0));
    assert_null(kg_json_key_at(doc.root, 7));
    assert_null(kg_json_text(NULL, &len));
    assert_int_equal(kg_json_size(NULL), 0);
    kg_json_release(&doc);
    kg_json_release(&doc);
}

static void large_objects_keep_order_and_find_every_key(void **state)
{
    struct kg_str text = {0};
    struct kg_json_doc doc;
    char key[16];

    (void)state;
    for (int i = 0; i < 5000; i++)
        assert_int_equal(
            kg_str_printf(&text, &err, "%c\"k%d\":%d", i ? ',' : '{', i * 7919 % 5000, i),
            KG_OK);
    assert_int_equal(kg_str_putc(&text, '}', &err), KG_OK);
    parse(&doc, kg_str_text(&text));
    assert_int_equal(kg_json_size(doc.root), 5000);
    for (int i = 0; i < 5000; i++) {
        snprintf(key, sizeof key, "k%d", i * 7919 % 5000);
        assert_string_equal(kg_json_key_at(doc.root, (size_t)i), key);
        assert_int_equal(kg_json_int(kg_json_get(doc.root, key), -1), i);
    }
    assert_null(kg_json_get(doc.root, "k5000"));
    kg_json_release(&doc);
    kg_str_release(&text);
}

static void malformed_text_is_refused_with_its_place(void **state)
{
    char deep[6000];

    (void)state;
#define REFUSES(text, part) refuses(text, sizeof text - 1, part)
    REFUSES("", "doc: column");
    REFUSES("{\"a\":1,\n\"a\":2}", "the same key twice");
    REFUSES("{} x", "column 4");
    REFUSES("{\n\n]", "line 3");
    REFUSES("[NaN]", "column");
    REFUSES("[Infinity]", "column");
    REFUSES("[1e999]", "beyond 1.8e308");
    REFUSES("[18446744073709551616]", "an integer beyond 64 bits");
    REFUSES("[\"\xff\"]", "doc");
    REFUSES("[1,]", "doc");
    REFUSES("['a']", "doc");
    REFUSES("[1]\0[2]", "doc: expected JSON without NUL, found one at byte 3");
    REFUSES("[1\0]", "found one at byte 2");
    REFUSES("\xef\xbb\xbf[1]", "doc: expected JSON, found a byte-order mark (EF BB BF)");
    REFUSES("{\"a\\u0000b\":1}", "doc");
    REFUSES("[\"\\ud800\"]", "doc");
    memset(deep, '[', sizeof deep / 2);
    memset(deep + sizeof deep / 2, ']', sizeof deep / 2);
    refuses(deep, sizeof deep,
            "doc: column 65: expected JSON, found an error: lists or "
            "objects nested more than 64 deep near '['");
    refuses(deep + sizeof deep / 2 - 65, 2 * 65, "column 65");
}

/* For a text of one line the error gives the column alone, because callers that read
 * lines print the line's number. part: words of the message after the place. */
static void errors_say_where_and_what_is_wrong(void **state)
{
    static const struct {
        const char *text, *place, *part;
    } rows[] = {
        {"", "column 0", "end of file"},
        {"{\"a\": x}", "column 7", "near 'x'"},
        {"[1, NaN]", "column 7", "near 'NaN'"},
        {"{\"a\" 1}", "column 6", "expected ':' after a key"},
        {"{\"a\":1,}", "column 8", "expected a key in quotes, or '}'"},
        {"{\"a\":1]", "column 7", "expected ',' or '}'"},
        {"[\"\xc3\xa9\" 1]", "column 6", "expected ',' or ']'"},
        {"[1\n\n2]", "line 3 column 1", "expected ',' or ']'"},
        {"[1", "column 2", "expected ',' or ']'"},
        {"[1]\n\x01", "line 2 column 1", "near ' '"},
        {"\xff", "column 0", "0xff"},
        {"[01]", "column 2", "near '0'"},
        {"[1.]", "column 3", "near '1.'"},
        {"[\"ab", "column 4", "ends in the middle"},
        {"[\"a\nb\"]", "line 1 column 3", "a line break inside a string"},
        {"[\"\\x\"]", "column 4", "escape"},
        {"[\"\\u12g4\"]", "column 7", "escape"},
        {"[\"\\udc00\"]", "column 9", "Unicode"},
        {"[9223372036854775808]", "column 20", "an integer beyond 64 bits"},
        {"[-1e400]", "column 7", "a number beyond 1.8e308"},
        {"[1,\n {\"k\":0, \"l\":1, \"k\":2}]", "line 2 column 19", "the same key twice"},
        {"{\"a\\u0000\":1}", "column 10", "NUL"},
        {"[\"\\ud800\\u0041\"]", "column 15", "Unicode '\\uD800\\u0041'"},
        {"[tru\xff]", "column 4", "near 'tru'"},
    };
    char start[100];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(start, sizeof start,
                 "doc: %s: expected JSON, found an error: ", rows[i].place);
        refuses(rows[i].text, strlen(rows[i].text), rows[i].part);
        assert_memory_equal(err.message, start, strlen(start));
    }
}

static void is_text(const struct kg_json *v, const char *expected)
{
    size_t n;

    assert_string_equal(kg_json_text(v, &n), expected);
    assert_int_equal(n, strlen(expected));
}

/* Strings are written eight bytes at a time, so a special character is tried at every
 * offset. */
static void strings_are_read_and_written_alike_at_every_offset(void **state)
{
    static const struct {
        const char *in, *out;
    } parts[] = {
        {"\\\"", "\""},
        {"\\\\", "\\"},
        {"\\n", "\n"},
        {"\\u00e9", "\xc3\xa9"},
        {"\\u20AC", "\xe2\x82\xac"},
        {"\\uD83d\\uDE00", "\xf0\x9f\x98\x80"},
        {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
        {"\x7f!#[]", "\x7f!#[]"},
    };
    static const char filler[] = "abcdefghijklmnopqrstuvwxyz";
    char text[128], expected[128];
    struct kg_str out = {0};

    (void)state;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        for (int k = 0; k < 26 * 26; k++) {
            struct kg_json_doc doc;

            snprintf(text, sizeof text, "[\"%.*s%s%.*s\", \"\"]", k / 26, filler,
                     parts[i].in, k % 26, filler);
            snprintf(expected, sizeof expected, "%.*s%s%.*s", k / 26, filler,
                     parts[i].out, k % 26, filler);
            parse(&doc, text);
            is_text(kg_json_at(doc.root, 0), expected);
            is_text(kg_json_at(doc.root, 1), "");
            kg_json_release(&doc);
            kg_str_clear(&out);
            assert_int_equal(kg_json_put_string(&out, expected, strlen(expected), &err),
                             KG_OK);
            parse(&doc, kg_str_text(&out));
            is_text(doc.root, expected);
            kg_json_release(&doc);
        }
    }
    kg_str_release(&out);
}

static void numbers_are_exact_to_their_limits(void **state)
{
    struct kg_json_doc doc;

    (void)state;
    parse(&doc, "[9223372036854775807,-9223372036854775808,-0,0e1,-0.0,1E-400,"
                "0.1000000000000000000000000000000000000000000000000000000000001,"
                "123456789012345678901234567890.5,1.7976931348623157e308]");
    assert_int_equal(kg_json_int(kg_json_at(doc.root, 0), 0), INT64_MAX);
    assert_int_equal(kg_json_int(kg_json_at(doc.root, 1), 0), INT64_MIN);
    assert_int_equal(kg_json_type(kg_json_at(doc.root, 2)), KG_JSON_INT);
    assert_int_equal(kg_json_type(kg_json_at(doc.root, 3)), KG_JSON_REAL);
    assert_true(signbit(kg_json_real(kg_json_at(doc.root, 4), 1)));
    assert_true(kg_json_real(kg_json_at(doc.root, 5), 1) == 0);
    assert_true(kg_json_real(kg_json_at(doc.root, 6), 1) == 0.1);
    assert_true(kg_json_real(kg_json_at(doc.root, 7), 1) ==
                123456789012345678901234567890.5);
    assert_true(kg_json_real(kg_json_at(doc.root, 8), 1) == 1.7976931348623157e308);
    kg_json_release(&doc);
}

static void brackets_in_strings_do_not_count_as_depth(void **state)
{
    struct kg_json_doc doc;

    (void)state;
    parse(&doc, "[\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
                "[[[\\\"[[[\"]");
    kg_json_release(&doc);
}

static void demands_name_key_and_types(void **state)
{
    const struct kg_json *v;
    struct kg_json_doc doc;
    const char *text;
    int64_t n;

    (void)state;
    parse(&doc, "{\"a\":\"x\",\"i\":12,\"z\":\"p\\u0000q\"}");
    assert_int_equal(kg_json_need(&v, &doc, doc.root, "a", KG_JSON_INT, &err),
                     KG_EFORMAT);
    assert_string_equal(err.message, "doc: key 'a': expected integer, found string");
    assert_int_equal(kg_json_need(&v, &doc, doc.root, "b", KG_JSON_INT, &err),
                     KG_EFORMAT);
    assert_string_equal(err.message, "doc: key 'b': expected integer, found no such key");
    assert_int_equal(kg_json_need(&v, &doc, doc.root, "i", KG_JSON_REAL, &err), KG_OK);
    assert_int_equal(kg_json_need_int(&n, &doc, doc.root, "i", 0, 10, &err), KG_EFORMAT);
    assert_string_equal(err.message,
                        "doc: key 'i': expected an integer of 0..10, found 12");
    assert_int_equal(kg_json_need_int(&n, &doc, doc.root, "i", 0, 12, &err), KG_OK);
    assert_int_equal(n, 12);
    assert_int_equal(kg_json_need_text(&text, &doc, doc.root, "z", &err), KG_EFORMAT);
    assert_int_equal(kg_json_need_text(&text, &doc, doc.root, "a", &err), KG_OK);
    assert_string_equal(text, "x");
    assert_int_equal(
        kg_json_need(&v, &doc, kg_json_get(doc.root, "a"), "k", KG_JSON_INT, &err),
        KG_EFORMAT);
    kg_json_release(&doc);
}

static void floats_read_back_as_the_same_bits(void **state)
{
    struct kg_str out = {0};
    uint32_t bits = 1;

    (void)state;
    for (int i = 0; i < 200000; i++) {
        float x;
        float back;

        bits = bits * 1664525u + 1013904223u;
        memcpy(&x, &bits, sizeof x);
        if (!isfinite(x))
            continue;
        kg_str_clear(&out);
        assert_int_equal(kg_json_put_float(&out, x, &err), KG_OK);
        back = strtof(kg_str_text(&out), NULL);
        assert_memory_equal(&back, &x, sizeof x);
        /* a reader that parses a double and rounds it, as most do, gets the same float */
        back = (float)strtod(kg_str_text(&out), NULL);
        assert_memory_equal(&back, &x, sizeof x);
    }
    kg_str_release(&out);
}

static void doubles_read_back_as_the_same_bits(void **state)
{
    struct kg_str out = {0};
    uint64_t bits = 1;

    (void)state;
    for (int i = 0; i < 100000; i++) {
        double x;
        double back;

        bits = bits * 6364136223846793005u + 1442695040888963407u;
        memcpy(&x, &bits, sizeof x);
        if (!isfinite(x))
            continue;
        kg_str_clear(&out);
        assert_int_equal(kg_json_put_double(&out, x, &err), KG_OK);
        back = strtod(kg_str_text(&out), NULL);
        assert_memory_equal(&back, &x, sizeof x);
    }
    kg_str_release(&out);
}

static void numbers_are_written_short(void **state)
{
    static const struct {
        double x;
        const char *text;
    } rows[] = {{0.1, "0.1"},          {-2, "-2.0"},           {0.0, "0.0"},
                {-0.0, "-0.0"},        {1e20, "1e+20"},        {NAN, "\"nan\""},
                {INFINITY, "\"inf\""}, {-INFINITY, "\"-inf\""}};
    struct kg_str out = {0};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kg_str_clear(&out);
        assert_int_equal(kg_json_put_float(&out, (float)rows[i].x, &err), KG_OK);
        assert_string_equal(kg_str_text(&out), rows[i].text);
        kg_str_clear(&out);
        assert_int_equal(kg_json_put_double(&out, rows[i].x, &err), KG_OK);
        assert_string_equal(kg_str_text(&out), rows[i].text);
    }
    kg_str_release(&out);
}

static void strings_are_escaped_and_always_valid(void **state)
{
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } rows[] = {
        {"a\"\\\n\t\r\b\f/", 9, "\"a\\\"\\\\\\n\\t\\r\\b\\f/\""},
        {"\0\x01\x1f\x7f", 4, "\"\\u0000\\u0001\\u001f\x7f\""},
        {"h\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 10,
         "\"h\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""},
        {"\xff"
         "a\xc3",
         3,
         "\"\xef\xbf\xbd"
         "a\xef\xbf\xbd\""},
        {"\xc0\x80", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\""},                 /* overlong */
        {"\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""}, /* surrogate */
        {"\xf0\x9f\x98z\xe2\x82", 6, "\"\xef\xbf\xbdz\xef\xbf\xbd\""},   /* truncated */
        {"", 0, "\"\""},
    };
    struct kg_str out = {0};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kg_str_clear(&out);
        assert_int_equal(kg_json_put_string(&out, rows[i].in, rows[i].n, &err), KG_OK);
        assert_string_equal(kg_str_text(&out), rows[i].out);
    }
    kg_str_release(&out);
}

static void written_values_parse_to_the_same_text(void **state)
{
    static const char text[] = "{\"a\":[1,-2.5,3.0,1e+300,true,false,null],\"b\":{\"c\":"
                               "\"\\u0001\\\"x\"},\"d\":[],\"e\":{}}";
    struct kg_json_doc doc;
    struct kg_str out = {0};

    (void)state;
    parse(&doc, text);
    assert_int_equal(kg_json_put_value(&out, doc.root, &err), KG_OK);
    assert_string_equal(kg_str_text(&out), text);
    kg_json_release(&doc);
    kg_str_clear(&out);
    assert_int_equal(
        kg_json_put_ints(&out, (const int32_t[]){1, -20, 2147483647}, 3, &err), KG_OK);
    assert_string_equal(kg_str_text(&out), "[1,-20,2147483647]");
    kg_str_release(&out);
}

/* One string is so long that reading it needs more memory: if that fails, half of the
 * string must not become a value. */
static void put_words(struct kg_str *text)
{
    assert_int_equal(kg_str_printf(text, &err,
                                   "{\"a\":[1,2,3],\"b\":\"%020000d\",\"c\":{\"d\":1.5}}",
                                   7),
                     KG_OK);
}

static void every_failed_allocation_is_a_status(void **state)
{
    struct kg_str text = {0};
    size_t length = 0;
    uint64_t before;
    kg_status status = KG_ENOMEM;
    int n = 0;

    (void)state;
    put_words(&text);
    before = kg_mem_current_bytes();
    while (status != KG_OK && n < 100) {
        struct kg_json_doc doc;

        kg_mem_fail_at((uint64_t)++n);
        status = kg_json_parse(&doc, text.data, text.len, "doc", &err);
        kg_mem_fail_at(0);
        assert_true(status == KG_OK || status == KG_ENOMEM);
        if (status == KG_OK)
            kg_json_text(kg_json_get(doc.root, "b"), &length);
        kg_json_release(&doc);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
    assert_int_equal(length, 20000);
    assert_true(n > 2 && n < 100);
    kg_str_release(&text);
}

static void a_file_is_read_and_named(void **state)
{
    struct kg_json_doc doc;

    (void)state;
    assert_int_equal(kg_json_read(&doc, "tests/data/absent.json", 1 << 20, &err),
                     KG_ENOTFOUND);
    assert_non_null(strstr(err.message, "tests/data/absent.json"));
}

/* Calls kg_json_read on a file with this text. */
static kg_status read_text(struct kg_json_doc *doc, const char *text)
{
    char path[] = "/tmp/kedge-json-XXXXXX";
    int fd = mkstemp(path);
    size_t n = strlen(text);
    kg_status status;

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, n), n);
    close(fd);
    status = kg_json_read(doc, path, 1 << 20, &err);
    unlink(path);
    return status;
}

static void a_file_may_have_integers_beyond_64_bits(void **state)
{
    struct kg_json_doc doc;

    (void)state;
    assert_int_equal(read_text(&doc, "[1000000000000000019884624838656, "
                                     "\"\\\"123456789012345678901234567890\", "
                                     "12345678901234567890.5e0,"
                                     "1e-0000000000000000000000]"),
                     KG_OK);
    assert_int_equal(kg_json_type(kg_json_at(doc.root, 0)), KG_JSON_REAL);
    assert_true(kg_json_real(kg_json_at(doc.root, 0), 0) ==
                1000000000000000019884624838656.0);
    assert_int_equal(kg_json_int(kg_json_at(doc.root, 0), -1), -1);
    assert_string_equal(kg_json_text(kg_json_at(doc.root, 1), NULL),
                        "\"123456789012345678901234567890");
    assert_true(kg_json_real(kg_json_at(doc.root, 2), 0) == 12345678901234567890.5);
    assert_true(kg_json_real(kg_json_at(doc.root, 3), 0) == 1);
    kg_json_release(&doc);
}

static void integers_stay_whole_up_to_both_ends_of_64_bits(void **state)
{
    static const double beyond[] = {
        9223372036854775808.0,   -9223372036854775809.0,  9999999999999999999.0,
        -9999999999999999999.0,  18446744073709551616.0,  99999999999999999999.0,
        -99999999999999999999.0, -99999999999999999999.0,
    };
    struct kg_json_doc doc;

    (void)state;
    assert_int_equal(read_text(&doc, "[9223372036854775807,-9223372036854775808,"
                                     "1000000000000000000]"),
                     KG_OK);
    assert_int_equal(kg_json_int(kg_json_at(doc.root, 0), 0), INT64_MAX);
    assert_int_equal(kg_json_int(kg_json_at(doc.root, 1), 0), INT64_MIN);
    assert_int_equal(kg_json_int(kg_json_at(doc.root, 2), 0), 1000000000000000000);
    kg_json_release(&doc);
    assert_int_equal(read_text(&doc, "[9223372036854775808,-9223372036854775809,"
                                     "9999999999999999999,-9999999999999999999,"
                                     "18446744073709551616,99999999999999999999,"
                                     "-99999999999999999999, -99999999999999999999 ]"),
                     KG_OK);
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        assert_int_equal(kg_json_type(kg_json_at(doc.root, i)), KG_JSON_REAL);
        assert_true(kg_json_real(kg_json_at(doc.root, i), 0) == beyond[i]);
    }
    kg_json_release(&doc);
    assert_int_equal(read_text(&doc, "-99999999999999999999"), KG_OK);
    assert_true(kg_json_real(doc.root, 0) == -99999999999999999999.0);
    kg_json_release(&doc);
}

static void columns_count_the_digits_that_the_file_has(void **state)
{
    struct kg_json_doc doc;

    (void)state;
    assert_int_equal(read_text(&doc, "[99999999999999999999, 99999999999999999999, x]"),
                     KG_EFORMAT);
    assert_non_null(strstr(err.message, "column 46: "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_have_their_types),
        cmocka_unit_test(large_objects_keep_order_and_find_every_key),
        cmocka_unit_test(malformed_text_is_refused_with_its_place),
        cmocka_unit_test(errors_say_where_and_what_is_wrong),
        cmocka_unit_test(strings_are_read_and_written_alike_at_every_offset),
        cmocka_unit_test(numbers_are_exact_to_their_limits),
        cmocka_unit_test(brackets_in_strings_do_not_count_as_depth),
        cmocka_unit_test(demands_name_key_and_types),
        cmocka_unit_test(floats_read_back_as_the_same_bits),
        cmocka_unit_test(doubles_read_back_as_the_same_bits),
        cmocka_unit_test(numbers_are_written_short),
        cmocka_unit_test(strings_are_escaped_and_always_valid),
        cmocka_unit_test(written_values_parse_to_the_same_text),
        cmocka_unit_test(every_failed_allocation_is_a_status),
        cmocka_unit_test(a_file_is_read_and_named),
        cmocka_unit_test(a_file_may_have_integers_beyond_64_bits),
        cmocka_unit_test(integers_stay_whole_up_to_both_ends_of_64_bits),
        cmocka_unit_test(columns_count_the_digits_that_the_file_has),
    };

    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
