/* Tests of safetensors: the reference implementation's verdicts, real checkpoints, broken
 * sets, writing. */
#include "data/safetensors.h"

#include "base/mem.h"
#include "base/str.h"
#include "data/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct kg_err err;
static char dir[64];

/* ---- files made by hand ---- */

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/kg_st_test_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return kg_file_remove_tree(dir, &err) == KG_OK ? 0 : -1;
}

static const char *place(const char *name)
{
    static char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* Builds a whole file from its header and `data_bytes` bytes of data. */
static void build(struct kg_str *out, const char *header, size_t data_bytes)
{
    uint64_t n = strlen(header);

    kg_str_clear(out);
    for (int i = 0; i < 8; i++)
        assert_int_equal(kg_str_putc(out, (char)(n >> (8 * i)), &err), KG_OK);
    assert_int_equal(kg_str_puts(out, header, &err), KG_OK);
    for (size_t i = 0; i < data_bytes; i++)
        assert_int_equal(kg_str_putc(out, (char)i, &err), KG_OK);
}

static void write_text(const char *name, const char *text)
{
    assert_int_equal(kg_file_write_atomic(place(name), text, strlen(text), &err), KG_OK);
}

static void write_built(const char *name, const char *header, size_t data_bytes)
{
    struct kg_str file = {0};

    build(&file, header, data_bytes);
    assert_int_equal(kg_file_write_atomic(place(name), file.data, file.len, &err), KG_OK);
    kg_str_release(&file);
}

static void refuses(const char *header, size_t data_bytes, kg_status code,
                    const char *part)
{
    struct kg_str file = {0};
    struct kg_st_set *set;

    build(&file, header, data_bytes);
    memset(&err, 0, sizeof err);
    assert_int_equal(kg_st_open_bytes(&set, file.data, file.len, "mem", &err), code);
    assert_null(set);
    if (!strstr(err.message, part) || !strstr(err.message, "mem"))
        fail_msg("message without '%s': %s", part, err.message);
    kg_str_release(&file);
}

/* ---- cases of the reference implementation ---- */

static size_t decode64(unsigned char *out, const char *text)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned bits = 0;
    size_t n = 0;

    for (size_t i = 0; text[i] && text[i] != '='; i++) {
        const char *at = kg_char_find(letters, text[i]);

        assert_non_null(at);
        bits = bits << 6 | (unsigned)(at - letters);
        if (i % 4 != 0)
            out[n++] = (unsigned char)(bits >> (2 * (3 - i % 4)));
    }
    return n;
}

static void check_case(const char *line, size_t n)
{
    struct kg_json_doc doc;
    struct kg_st_set *set;
    unsigned char *bytes;
    kg_status status;
    size_t got;

    assert_int_equal(kg_json_parse(&doc, line, n, "case", &err), KG_OK);
    bytes = test_malloc(n + 1);
    got = decode64(bytes, kg_json_text(kg_json_get(doc.root, "base64"), NULL));
    assert_int_equal(got, kg_json_int(kg_json_get(doc.root, "bytes"), -1));
    status = kg_st_open_bytes(&set, bytes, got, "case", &err);
    if ((status == KG_OK) !=
        (strcmp(kg_json_text(kg_json_get(doc.root, "result"), NULL), "ok") == 0))
        fail_msg("%s: %s", kg_json_text(kg_json_get(doc.root, "name"), NULL),
                 err.message);
    kg_st_close(set);
    test_free(bytes);
    kg_json_release(&doc);
}

static void verdicts_agree_with_the_reference(void **state)
{
    struct kg_str text = {0};
    int cases = 0;

    (void)state;
    assert_int_equal(
        kg_file_read(&text, "tests/data/safetensors/cases.jsonl", 1 << 20, &err), KG_OK);
    for (char *line = text.data; *line; cases++) {
        char *end = strchr(line, '\n');

        assert_non_null(end);
        check_case(line, (size_t)(end - line));
        line = end + 1;
    }
    assert_int_equal(cases, 16);
    kg_str_release(&text);
}

/* ---- rules without a reference case ---- */

static void broken_headers_are_refused_with_tensor_and_numbers(void **state)
{
    (void)state;
    refuses("[]", 0, KG_EFORMAT, "expected an object");
    refuses("{\"a\":1}", 0, KG_EFORMAT, "tensor 'a'");
    refuses("{\"a\":{\"dtype\":\"Q9\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
            KG_EFORMAT, "found Q9");
    refuses("{\"a\":{\"shape\":[],\"data_offsets\":[0,4]}}", 4, KG_EFORMAT, "found none");
    refuses("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, KG_EFORMAT,
            "'shape'");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4,
            KG_EFORMAT, "dimension 0");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4,
            KG_EFORMAT, "found number");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,"
            "4]}}",
            4, KG_EUNSUPPORTED, "found 9");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, KG_EFORMAT, "data_offsets");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4,
            KG_EFORMAT, "data_offsets");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4,
            KG_EFORMAT, "found 4..0");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4,
            KG_EFORMAT, "found 0..8");
    refuses("{\"a\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
            KG_EFORMAT, "expected 2 bytes");
    refuses("{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1,
            KG_EFORMAT, "whole bytes");
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2,
            KG_EFORMAT, "found 1");
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
            "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
            3, KG_EFORMAT, "tensor 'b'");
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
            "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
            2, KG_EFORMAT, "the same key twice");
    refuses("{\"__metadata__\":{\"k\":1}}", 0, KG_EFORMAT, "'k'");
    refuses("{\"__metadata__\":[]}", 0, KG_EFORMAT, "__metadata__");
    refuses("{}", 5, KG_EFORMAT, "found 5");
}

static void tensors_are_sorted_and_found(void **state)
{
    const struct kg_st_tensor *t;
    struct kg_str file = {0};
    struct kg_st_set *set;

    (void)state;
    build(&file,
          "{\"__metadata__\":{\"format\":\"pt\"},"
          "\"z\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
          "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,9223372036854775807],\"data_"
          "offsets\":[3,3]},"
          "\"a\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[3,7]}}",
          7);
    assert_int_equal(kg_st_open_bytes(&set, file.data, file.len, "mem", &err), KG_OK);
    assert_int_equal(kg_st_count(set), 3);
    assert_string_equal(kg_st_at(set, 0)->name, "a");
    t = kg_st_find(set, "a");
    assert_ptr_equal(t, kg_st_at(set, 0));
    assert_string_equal(t->dtype, "BF16");
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->shape[1], 2);
    assert_int_equal(t->bytes, 4);
    assert_int_equal(t->data[0], 3);
    assert_null(kg_st_find(set, "__metadata__"));
    assert_null(kg_st_find(set, "b"));
    kg_st_close(set);
    kg_str_release(&file);
}

/* ---- folders ---- */

static const char ONE_A[] =
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
static const char ONE_B[] =
    "{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}";

static void open_fails(kg_status code, const char *part)
{
    struct kg_st_set *set;

    memset(&err, 0, sizeof err);
    assert_int_equal(kg_st_open_dir(&set, dir, &err), code);
    assert_null(set);
    if (!strstr(err.message, part))
        fail_msg("message without '%s': %s", part, err.message);
}

static void a_folder_without_weights_says_what_it_looked_for(void **state)
{
    (void)state;
    open_fails(KG_ENOTFOUND, "model.safetensors.index.json");
}

static void shards_are_seen_as_one_list(void **state)
{
    struct kg_st_set *set;

    (void)state;
    write_built("s1.safetensors", ONE_A, 2);
    write_built("s2.safetensors", ONE_B, 3);
    write_text("model.safetensors.index.json",
               "{\"weight_map\":{\"b\":\"s2.safetensors\",\"a\":\"s1.safetensors\"}}");
    assert_int_equal(kg_st_open_dir(&set, dir, &err), KG_OK);
    assert_int_equal(kg_st_count(set), 2);
    assert_non_null(strstr(kg_st_find(set, "b")->file, "s2.safetensors"));
    kg_st_close(set);
}

static void broken_indexes_are_refused(void **state)
{
    (void)state;
    write_built("s1.safetensors", ONE_A, 2);
    write_text("model.safetensors.index.json",
               "{\"weight_map\":{\"a\":\"s9.safetensors\"}}");
    open_fails(KG_ENOTFOUND, "s9.safetensors");
    write_text("model.safetensors.index.json",
               "{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\"}}");
    open_fails(KG_EFORMAT, "tensor 'b'");
    write_built("s2.safetensors", ONE_B, 3);
    write_text("model.safetensors.index.json",
               "{\"weight_map\":{\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\"}}");
    open_fails(KG_EFORMAT, "tensor 'a'");
    write_built("s2.safetensors", ONE_A, 2);
    write_text("model.safetensors.index.json",
               "{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}}");
    open_fails(KG_EFORMAT, "expected in one file");
    write_text("model.safetensors.index.json",
               "{\"weight_map\":{\"a\":\"../s1.safetensors\"}}");
    open_fails(KG_EFORMAT, "folder of the index");
    write_text("model.safetensors.index.json", "{\"weight_map\":{}}");
    open_fails(KG_EFORMAT, "found 0");
    write_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":1}}");
    open_fails(KG_EFORMAT, "key 'a'");
    write_text("model.safetensors.index.json", "[]");
    open_fails(KG_EFORMAT, "weight_map");
    write_text("model.safetensors.index.json", "{");
    open_fails(KG_EFORMAT, "index.json");
}

static void real_checkpoints_open(void **state)
{
    static const struct {
        const char *dir;
        size_t tensors;
    } rows[] = {
        {"tests/data/verl_digit_llama", 39},
        {"tests/data/models/synthetic_tiny_llama", 0}, /* two shards */
        {"tests/data/models/synthetic_tiny_qwen2", 0},
        {"../shared/data/models/hf2q_tiny_model", 0},
    };
    struct kg_st_set *set;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!kg_file_is_dir(rows[i].dir))
            continue;
        if (kg_st_open_dir(&set, rows[i].dir, &err) != KG_OK)
            fail_msg("%s", err.message);
        assert_non_null(kg_st_find(set, "model.embed_tokens.weight"));
        assert_true(rows[i].tensors == 0 || kg_st_count(set) == rows[i].tensors);
        kg_st_close(set);
    }
}

/* ---- writing ---- */

static const struct kg_st_decl DECLS[] = {
    {"w", "F32", 2, {2, 3}},
    {"nothing", "F32", 1, {0}},
    {"quote\"\xc3\xa9", "BF16", 1, {5}},
    {"scalar", "I64", 0, {0}},
};

/* Tensors may be written in any order, and one tensor in two ranges. */
static void what_is_written_reads_back(void **state)
{
    const float w[6] = {1, -2, 3.5f, 0, 1e-30f, 6};
    const uint16_t half[5] = {1, 2, 3, 4, 5};
    const int64_t scalar = -9;
    struct kg_st_writer *writer;
    struct kg_st_set *set;

    (void)state;
    assert_int_equal(kg_st_writer_open(&writer, place("out.safetensors"), DECLS, 4, &err),
                     KG_OK);
    assert_int_equal(kg_st_writer_put(writer, 0, 8, w + 2, 16, &err), KG_OK);
    assert_int_equal(kg_st_writer_put(writer, 3, 0, &scalar, sizeof scalar, &err), KG_OK);
    assert_int_equal(kg_st_writer_put(writer, 0, 0, w, 8, &err), KG_OK);
    assert_int_equal(kg_st_writer_put(writer, 2, 0, half, sizeof half, &err), KG_OK);
    assert_int_equal(kg_st_writer_put(writer, 1, 0, half, 0, &err), KG_OK);
    assert_int_equal(kg_st_writer_close(writer, &err), KG_OK);

    if (kg_st_open_file(&set, place("out.safetensors"), &err) != KG_OK)
        fail_msg("%s", err.message);
    assert_int_equal(kg_st_count(set), 4);
    assert_memory_equal(kg_st_find(set, "w")->data, w, sizeof w);
    assert_int_equal((uintptr_t)kg_st_find(set, "w")->data % 8, 0);
    assert_memory_equal(kg_st_find(set, "quote\"\xc3\xa9")->data, half, sizeof half);
    assert_memory_equal(kg_st_find(set, "scalar")->data, &scalar, sizeof scalar);
    kg_st_close(set);
}

/* One writer sets the length of the file, two others write half of it each. If one of
 * them fails, the file stays. */
static void several_write_one_file(void **state)
{
    const float w[6] = {1, -2, 3.5f, 0, 1e-30f, 6};
    const uint16_t half[5] = {1, 2, 3, 4, 5};
    const int64_t nothing = 0;
    struct kg_st_writer *a, *b;
    struct kg_st_set *set;

    (void)state;
    assert_int_equal(kg_st_writer_open(&a, place("out.safetensors"), DECLS, 4, &err),
                     KG_OK);
    assert_int_equal(kg_st_writer_leave(a, &err), KG_OK);
    assert_int_equal(kg_st_writer_join(&a, place("out.safetensors"), DECLS, 4, &err),
                     KG_OK);
    assert_int_equal(kg_st_writer_join(&b, place("out.safetensors"), DECLS, 4, &err),
                     KG_OK);
    assert_int_equal(kg_st_writer_put(b, 0, 12, w + 3, 12, &err), KG_OK);
    assert_int_equal(kg_st_writer_put(b, 2, 0, half, sizeof half, &err), KG_OK);
    assert_int_equal(kg_st_writer_put(a, 0, 0, w, 12, &err), KG_OK);
    assert_int_equal(kg_st_writer_leave(a, &err), KG_OK);
    assert_int_equal(kg_st_writer_leave(b, &err), KG_OK);
    assert_int_equal(kg_st_writer_join(&a, place("out.safetensors"), DECLS, 4, &err),
                     KG_OK);
    kg_st_writer_abort(a);
    if (kg_st_open_file(&set, place("out.safetensors"), &err) != KG_OK)
        fail_msg("%s", err.message);
    assert_memory_equal(kg_st_find(set, "w")->data, w, sizeof w);
    assert_memory_equal(kg_st_find(set, "quote\"\xc3\xa9")->data, half, sizeof half);
    assert_memory_equal(kg_st_find(set, "scalar")->data, &nothing, sizeof nothing);
    kg_st_close(set);

    assert_int_equal(kg_st_writer_join(&a, place("none.safetensors"), DECLS, 4, &err),
                     KG_ENOTFOUND);
    assert_int_equal(truncate(place("out.safetensors"), 40), 0);
    assert_int_equal(kg_st_writer_join(&a, place("out.safetensors"), DECLS, 4, &err),
                     KG_EFORMAT);
}

static void a_writer_refuses_wrong_amounts(void **state)
{
    const float w[7] = {0};
    struct kg_st_writer *writer;

    (void)state;
    for (int twice = 0; twice < 2; twice++) { /* w lacks 4 bytes, then has 4 twice */
        assert_int_equal(
            kg_st_writer_open(&writer, place("out.safetensors"), DECLS, 4, &err), KG_OK);
        assert_int_equal(kg_st_writer_put(writer, 0, 0, w, sizeof w, &err), KG_EINVAL);
        assert_non_null(strstr(err.message, "tensor 'w'"));
        assert_int_equal(kg_st_writer_put(writer, 0, 8, w, 17, &err), KG_EINVAL);
        assert_int_equal(kg_st_writer_put(writer, 0, 25, w, 0, &err), KG_EINVAL);
        assert_int_equal(kg_st_writer_put(writer, 2, 0, w, 10, &err), KG_OK);
        assert_int_equal(kg_st_writer_put(writer, 3, 0, w, 8, &err), KG_OK);
        assert_int_equal(kg_st_writer_put(writer, 0, 4, w, 20, &err), KG_OK);
        if (twice)
            assert_int_equal(kg_st_writer_put(writer, 0, 0, w, 8, &err), KG_OK);
        assert_int_equal(kg_st_writer_close(writer, &err), KG_EINVAL);
        assert_non_null(strstr(err.message, twice ? "found 28" : "found 20"));
        assert_false(kg_file_exists(place("out.safetensors")));
    }
}

static void a_writer_refuses_what_a_reader_would(void **state)
{
    const struct kg_st_decl twice[] = {{"w", "F32", 1, {1}}, {"w", "F32", 1, {1}}};
    const struct kg_st_decl reserved[] = {{"__metadata__", "F32", 1, {1}}};
    const struct kg_st_decl unknown[] = {{"w", "FLOAT", 1, {1}}};
    const struct kg_st_decl huge[] = {{"w", "F32", 2, {INT64_MAX, INT64_MAX}}};
    struct kg_st_writer *writer;

    (void)state;
    assert_int_equal(kg_st_writer_open(&writer, place("x"), twice, 2, &err), KG_EINVAL);
    assert_int_equal(kg_st_writer_open(&writer, place("x"), reserved, 1, &err),
                     KG_EINVAL);
    assert_int_equal(kg_st_writer_open(&writer, place("x"), unknown, 1, &err), KG_EINVAL);
    assert_int_equal(kg_st_writer_open(&writer, place("x"), huge, 1, &err), KG_EINVAL);
    assert_int_equal(kg_st_writer_open(&writer, "/nowhere/at/all/x", DECLS, 4, &err),
                     KG_ENOTFOUND);
    assert_false(kg_file_exists(place("x")));
}

/* ---- out of memory ---- */

static void every_failed_allocation_is_a_status(void **state)
{
    uint64_t before = kg_mem_current_bytes();
    kg_status status = KG_ENOMEM;
    int n = 0;

    (void)state;
    write_built("s1.safetensors", ONE_A, 2);
    write_built("s2.safetensors", ONE_B, 3);
    write_text("model.safetensors.index.json",
               "{\"weight_map\":{\"b\":\"s2.safetensors\",\"a\":\"s1.safetensors\"}}");
    while (status != KG_OK && n < 200) {
        struct kg_st_set *set;

        kg_mem_fail_at((uint64_t)++n);
        status = kg_st_open_dir(&set, dir, &err);
        kg_mem_fail_at(0);
        assert_true(status == KG_OK || status == KG_ENOMEM);
        kg_st_close(set);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
    assert_true(n > 10 && n < 200);
}

static void every_failed_allocation_of_the_writer_is_a_status(void **state)
{
    uint64_t before = kg_mem_current_bytes();
    kg_status status = KG_ENOMEM;
    int n = 0;

    (void)state;
    while (status != KG_OK && n < 200) {
        struct kg_st_writer *writer;

        kg_mem_fail_at((uint64_t)++n);
        status = kg_st_writer_open(&writer, place("x"), DECLS, 4, &err);
        kg_mem_fail_at(0);
        assert_true(status == KG_OK || status == KG_ENOMEM);
        kg_st_writer_abort(writer);
        assert_int_equal(kg_mem_current_bytes(), before);
        assert_false(kg_file_exists(place("x")));
    }
    assert_true(n > 5 && n < 200);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(verdicts_agree_with_the_reference),
        TEST(broken_headers_are_refused_with_tensor_and_numbers),
        TEST(tensors_are_sorted_and_found),
        TEST(a_folder_without_weights_says_what_it_looked_for),
        TEST(shards_are_seen_as_one_list),
        TEST(broken_indexes_are_refused),
        TEST(real_checkpoints_open),
        TEST(what_is_written_reads_back),
        TEST(several_write_one_file),
        TEST(a_writer_refuses_wrong_amounts),
        TEST(a_writer_refuses_what_a_reader_would),
        TEST(every_failed_allocation_is_a_status),
        TEST(every_failed_allocation_of_the_writer_is_a_status),
    };

    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
