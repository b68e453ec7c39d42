/* Tests of documents built by calls: they equal parsed ones, reuse their memory, and
 * refuse everything that JSON text may not contain. */
#include "data/json.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct kg_err err;

static struct kg_json_builder *builder_of(size_t max_bytes)
{
    struct kg_json_builder *b;

    assert_int_equal(kg_json_builder_create(&b, max_bytes, &err), KG_OK);
    return b;
}

/* {"a":[1,-2.5,true,null,[],{}],"b":{"c":"x\0y"}}   returns the first failure, or
 * KG_OK */
static kg_status build(struct kg_json_builder *b, struct kg_json_doc *doc)
{
    KG_TRY(kg_json_begin(b, doc, "here", &err));
    KG_TRY(kg_json_open(b, KG_JSON_OBJECT, &err));
    KG_TRY(kg_json_add_key(b, "a", 1, &err));
    KG_TRY(kg_json_open(b, KG_JSON_ARRAY, &err));
    KG_TRY(kg_json_add_int(b, 1, &err));
    KG_TRY(kg_json_add_real(b, -2.5, &err));
    KG_TRY(kg_json_add_bool(b, true, &err));
    KG_TRY(kg_json_add_null(b, &err));
    KG_TRY(kg_json_open(b, KG_JSON_ARRAY, &err));
    KG_TRY(kg_json_close(b, &err));
    KG_TRY(kg_json_add_parsed(b, " {} ", 4, &err));
    KG_TRY(kg_json_close(b, &err));
    KG_TRY(kg_json_add_key(b, "b", 1, &err));
    KG_TRY(kg_json_open(b, KG_JSON_OBJECT, &err));
    KG_TRY(kg_json_add_key(b, "c", 1, &err));
    KG_TRY(kg_json_add_text(b, "x\0y", 3, &err));
    KG_TRY(kg_json_close(b, &err));
    KG_TRY(kg_json_close(b, &err));
    return kg_json_end(b, &err);
}

static void is_text(const struct kg_json_doc *doc, const char *expected)
{
    struct kg_str text = {0};

    assert_int_equal(kg_json_put_value(&text, doc->root, &err), KG_OK);
    assert_string_equal(kg_str_text(&text), expected);
    kg_str_release(&text);
}

static void calls_make_the_document_of_the_text(void **state)
{
    static const char text[] =
        "{\"a\":[1,-2.5,true,null,[],{}],\"b\":{\"c\":\"x\\u0000y\"}}";
    struct kg_json_builder *b = builder_of(SIZE_MAX);
    struct kg_json_doc doc = {0};
    size_t n;

    (void)state;
    assert_int_equal(build(b, &doc), KG_OK);
    is_text(&doc, text);
    assert_string_equal(doc.where, "here");
    kg_json_text(kg_json_get(kg_json_get(doc.root, "b"), "c"), &n);
    assert_int_equal(n, 3);
    assert_int_equal(kg_json_parse_next(&doc, b, text, strlen(text), "there", &err),
                     KG_OK);
    is_text(&doc, text);
    assert_string_equal(doc.where, "there");
    kg_json_builder_free(b); /* the document outlives its builder */
    is_text(&doc, text);
    kg_json_release(&doc);
}

static void a_value_alone_is_a_document(void **state)
{
    struct kg_json_builder *b = builder_of(SIZE_MAX);
    struct kg_json_doc doc = {0};

    (void)state;
    assert_int_equal(kg_json_begin(b, &doc, "here", &err), KG_OK);
    assert_int_equal(kg_json_add_text(b, "", 0, &err), KG_OK);
    assert_int_equal(kg_json_end(b, &err), KG_OK);
    is_text(&doc, "\"\"");
    kg_json_release(&doc);
    kg_json_builder_free(b);
}

static void the_next_document_uses_the_memory_of_the_last(void **state)
{
    struct kg_json_builder *b = builder_of(SIZE_MAX);
    struct kg_json_doc doc = {0};
    struct kg_json_doc kept;
    uint64_t bytes;

    (void)state;
    assert_int_equal(build(b, &doc), KG_OK);
    bytes = kg_mem_current_bytes();
    for (int i = 0; i < 1000; i++)
        assert_int_equal(build(b, &doc), KG_OK);
    assert_int_equal(kg_mem_current_bytes(), bytes);
    /* a document that the caller took is not written to */
    kept = doc;
    memset(&doc, 0, sizeof doc);
    assert_int_equal(kg_json_parse_next(&doc, b, "[2]", 3, "x", &err), KG_OK);
    is_text(&doc, "[2]");
    assert_int_equal(kg_json_int(kg_json_at(kg_json_get(kept.root, "a"), 0), 0), 1);
    kg_json_release(&kept);
    kg_json_release(&doc);
    kg_json_builder_free(b);
}

static void a_large_document_does_not_stay(void **state)
{
    struct kg_json_builder *b = builder_of(SIZE_MAX);
    struct kg_json_doc doc = {0};
    struct kg_str text = {0};
    uint64_t bytes;

    (void)state;
    assert_int_equal(build(b, &doc), KG_OK);
    bytes = kg_mem_current_bytes();
    assert_int_equal(kg_str_puts(&text, "\"", &err), KG_OK);
    for (int i = 0; i < 1 << 16; i++)
        assert_int_equal(kg_str_puts(&text, "0123456789abcdef0123456789abcdef", &err),
                         KG_OK);
    assert_int_equal(kg_str_puts(&text, "\"", &err), KG_OK);
    assert_int_equal(kg_json_parse_next(&doc, b, text.data, text.len, "x", &err), KG_OK);
    assert_true(kg_mem_current_bytes() > bytes + ((uint64_t)4 << 20));
    kg_str_release(&text);
    assert_int_equal(build(b, &doc), KG_OK);
    /* one chunk for the document, one for the parser */
    assert_true(kg_mem_current_bytes() < bytes + ((uint64_t)2 << 20) + 1000);
    kg_json_release(&doc);
    kg_json_builder_free(b);
}

/* [0,0,...] with n zeros, as text. */
static void put_zeros(struct kg_str *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(kg_str_puts(text, i ? ",0" : "[0", &err), KG_OK);
    assert_int_equal(kg_str_puts(text, "]", &err), KG_OK);
}

/* A value takes 32 bytes, and the newest chunk may be almost empty. The parser has freed
 * its own copies of the values when it returns. */
static void a_document_of_text_holds_its_values_alone(void **state)
{
    enum { N = 100000 };
    struct kg_json_builder *b = builder_of(SIZE_MAX);
    struct kg_json_doc doc = {0};
    struct kg_str text = {0};
    uint64_t before = kg_mem_current_bytes();

    (void)state;
    put_zeros(&text, N);
    assert_int_equal(kg_json_parse_next(&doc, b, text.data, text.len, "x", &err), KG_OK);
    kg_str_release(&text);
    kg_json_builder_free(b);
    assert_int_equal(kg_json_size(doc.root), N);
    assert_true(kg_mem_current_bytes() < before + 32 * N + ((uint64_t)5 << 18));
    kg_json_release(&doc);
}

/* The size of an array is known before its values are copied, so the limit refuses it
 * first. */
static void text_counts_for_the_limit_too(void **state)
{
    enum { N = 100000 };
    struct kg_json_builder *enough = builder_of((N + 1) * KG_JSON_VALUE_BYTES);
    struct kg_json_builder *less = builder_of(N * KG_JSON_VALUE_BYTES);
    struct kg_json_doc doc = {0};
    struct kg_str text = {0};

    (void)state;
    put_zeros(&text, N);
    assert_int_equal(kg_json_parse_next(&doc, enough, text.data, text.len, "x", &err),
                     KG_OK);
    assert_int_equal(kg_json_parse_next(&doc, less, text.data, text.len, "x", &err),
                     KG_EFORMAT);
    assert_non_null(strstr(err.message, "x: expected a record of at most 800000 bytes"));
    kg_str_release(&text);
    kg_json_release(&doc);
    kg_json_builder_free(enough);
    kg_json_builder_free(less);
}

/* An object of n keys k0, k1, ...; the last one is k<last>. */
static kg_status object_of(struct kg_json_builder *b, struct kg_json_doc *doc, int n,
                           int last)
{
    char key[16];

    KG_TRY(kg_json_begin(b, doc, "here", &err));
    KG_TRY(kg_json_open(b, KG_JSON_OBJECT, &err));
    for (int i = 0; i < n; i++) {
        int length = snprintf(key, sizeof key, "k%d", i == n - 1 ? last : i);

        KG_TRY(kg_json_add_key(b, key, (size_t)length, &err));
        KG_TRY(kg_json_add_int(b, i, &err));
    }
    KG_TRY(kg_json_close(b, &err));
    return kg_json_end(b, &err);
}

static void equal_keys_are_refused_in_objects_of_any_size(void **state)
{
    struct kg_json_builder *b = builder_of(SIZE_MAX);
    struct kg_json_doc doc = {0};

    (void)state;
    for (int n = 2; n < 40; n++) {
        assert_int_equal(object_of(b, &doc, n, n - 1), KG_OK);
        assert_int_equal(kg_json_size(doc.root), n);
        assert_int_equal(kg_json_int(kg_json_get(doc.root, "k1"), -1), 1);
        for (int same = 0; same < n - 1; same++) {
            char expected[100];

            assert_int_equal(object_of(b, &doc, n, same), KG_EFORMAT);
            snprintf(expected, sizeof expected,
                     "expected every key of an object once, found a duplicate of 'k%d'",
                     same);
            assert_string_equal(err.message, expected);
        }
    }
    kg_json_release(&doc);
    kg_json_builder_free(b);
}

static void keys_hold_no_nul(void **state)
{
    struct kg_json_builder *b = builder_of(SIZE_MAX);
    struct kg_json_doc doc = {0};

    (void)state;
    assert_int_equal(kg_json_begin(b, &doc, "here", &err), KG_OK);
    assert_int_equal(kg_json_open(b, KG_JSON_OBJECT, &err), KG_OK);
    assert_int_equal(kg_json_add_key(b, "a\0b", 3, &err), KG_EFORMAT);
    assert_string_equal(err.message, "expected a key without NUL, found one after 'a'");
    kg_json_release(&doc);
    kg_json_builder_free(b);
}

static void depth_is_limited(void **state)
{
    struct kg_json_builder *b = builder_of(SIZE_MAX);
    struct kg_json_doc doc = {0};

    (void)state;
    assert_int_equal(kg_json_begin(b, &doc, "here", &err), KG_OK);
    for (int i = 0; i < 64; i++)
        assert_int_equal(kg_json_open(b, KG_JSON_ARRAY, &err), KG_OK);
    assert_int_equal(kg_json_open(b, KG_JSON_ARRAY, &err), KG_EFORMAT);
    assert_string_equal(err.message, "expected JSON nested at most 64 deep, found more");
    for (int i = 0; i < 64; i++)
        assert_int_equal(kg_json_close(b, &err), KG_OK);
    assert_int_equal(kg_json_end(b, &err), KG_OK);
    kg_json_release(&doc);
    kg_json_builder_free(b);
}

static void texts_keys_and_values_count_for_the_limit(void **state)
{
    /* 10 values, 3 keys of 1 byte, 3 bytes of text */
    struct kg_json_builder *enough = builder_of(10 * KG_JSON_VALUE_BYTES + 3 + 3);
    struct kg_json_builder *less = builder_of(10 * KG_JSON_VALUE_BYTES + 3 + 2);
    struct kg_json_doc doc = {0};

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(build(enough, &doc), KG_OK);
        assert_int_equal(build(less, &doc), KG_EFORMAT);
        assert_string_equal(err.message,
                            "expected a record of at most 85 bytes (strings, keys and 8 "
                            "bytes per value), found a larger one");
    }
    kg_json_release(&doc);
    kg_json_builder_free(enough);
    kg_json_builder_free(less);
}

/* Builds a document with a new builder, then parses a large one with it. */
static kg_status build_twice(void)
{
    struct kg_json_builder *b = NULL;
    struct kg_json_doc doc = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_json_builder_create(&b, SIZE_MAX, &err));
    KG_TRY_GOTO(out, build(b, &doc));
    KG_TRY_GOTO(out, object_of(b, &doc, 500, 499));
out:
    kg_json_release(&doc);
    kg_json_builder_free(b);
    return status;
}

static void every_failed_allocation_is_a_status(void **state)
{
    uint64_t before = kg_mem_current_bytes();
    kg_status status = KG_ENOMEM;
    uint64_t n = 0;

    (void)state;
    while (status == KG_ENOMEM && n < 100) {
        kg_mem_fail_at(++n);
        status = build_twice();
        kg_mem_fail_at(0);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
    assert_int_equal(status, KG_OK);
    assert_true(n > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_make_the_document_of_the_text),
        cmocka_unit_test(a_value_alone_is_a_document),
        cmocka_unit_test(the_next_document_uses_the_memory_of_the_last),
        cmocka_unit_test(a_large_document_does_not_stay),
        cmocka_unit_test(a_document_of_text_holds_its_values_alone),
        cmocka_unit_test(text_counts_for_the_limit_too),
        cmocka_unit_test(equal_keys_are_refused_in_objects_of_any_size),
        cmocka_unit_test(keys_hold_no_nul),
        cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(texts_keys_and_values_count_for_the_limit),
        cmocka_unit_test(every_failed_allocation_is_a_status),
    };

    return cmocka_run_group_tests_name("json_build", tests, NULL, NULL);
}
