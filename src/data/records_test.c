/* Tests of reading records from any format: the same records whatever the format and file
 * name, and the place of an error. */
#include "data/records.h"

#include "base/folder_testing.h"
#include "data/jsonl.h"
#include "data/unpack.h"

#include <zlib.h>

static const char lines[] = "{\"a\": 1, \"t\": \"x]}\\\"\"}\n\n{\"a\": 2}\n{\"a\": 3}\n";
static const char array[] =
    "\n [{\"a\": 1, \"t\": \"x]}\\\"\"},\n{\"a\": 2}\n, {\"a\": 3}]\n";

static void put_gzip(const char *name, const char *text, size_t n)
{
    gzFile f = gzopen(in_dir(name), "wb");

    assert_non_null(f);
    assert_int_equal(gzwrite(f, text, (unsigned)n), n);
    assert_int_equal(gzclose(f), Z_OK);
}

static void put_zstd(const char *name, const char *text, size_t n)
{
    struct kg_zst_writer *w;

    assert_int_equal(kg_zst_open(&w, in_dir(name), 0, &err), KG_OK);
    assert_int_equal(kg_zst_put(w, text, n, &err), KG_OK);
    assert_int_equal(kg_zst_close(w, &err), KG_OK);
}

static void has_three(const char *name, const char *format, const char *unit)
{
    struct kg_json_doc doc = {0};
    struct kg_records *r;
    bool more;

    if (kg_records_open(&r, in_dir(name), &err) != KG_OK)
        fail_msg("%s", err.message);
    assert_string_equal(kg_records_format(r), format);
    assert_string_equal(kg_records_unit(r), unit);
    for (int i = 1; i <= 3; i++) {
        if (kg_records_next(r, &doc, &more, &err) != KG_OK)
            fail_msg("%s", err.message);
        assert_true(more);
        assert_int_equal(kg_json_int(kg_json_get(doc.root, "a"), 0), i);
        assert_int_equal(kg_records_number(r), *unit == 'l' && i > 1 ? i + 1 : i);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kg_records_next(r, &doc, &more, &err), KG_OK);
        assert_false(more);
    }
    kg_json_release(&doc);
    kg_records_close(r);
}

static void the_content_says_the_format(void **state)
{
    (void)state;
    put("x", lines);
    has_three("x", "JSON lines", "line");
    put("x.parquet", array);
    has_three("x.parquet", "JSON array", "element");
    put_gzip("x.jsonl", lines, sizeof lines - 1);
    has_three("x.jsonl", "JSON lines, gzip", "line");
    put_gzip("x.jsonl", array, sizeof array - 1);
    has_three("x.jsonl", "JSON array, gzip", "element");
    put_zstd("x.gz", lines, sizeof lines - 1);
    has_three("x.gz", "JSON lines, zstd", "line");
    put_zstd("x.gz", array, sizeof array - 1);
    has_three("x.gz", "JSON array, zstd", "element");
}

/* Reads the file to its end.   returns the error */
static const char *complaint(const char *name)
{
    struct kg_json_doc doc = {0};
    struct kg_records *r;
    bool more = true;
    kg_status status = kg_records_open(&r, in_dir(name), &err);

    if (status == KG_OK) {
        while (status == KG_OK && more)
            status = kg_records_next(r, &doc, &more, &err);
        kg_json_release(&doc);
        kg_records_close(r);
    }
    assert_int_not_equal(status, KG_OK);
    return err.message + strlen(dir) + 1;
}

static void what_is_wrong_has_its_place(void **state)
{
    (void)state;
    put("x", "[{\"a\": 1},\n 7]");
    assert_string_equal(complaint("x"), "x line 2: expected an object as element of the "
                                        "array, found '7'");
    put("x", "[{\"a\": 1}\n{\"a\": 2}]");
    assert_string_equal(complaint("x"),
                        "x line 2: expected ',' or ']' after an element, found '{'");
    put("x", "[{\"a\": 1},\n{\"a\": [}");
    assert_string_equal(complaint("x"),
                        "x line 2: expected the end of an object, found the end");
    put("x", "[{\"a\": 1},\n{\"a\": +}]");
    assert_non_null(strstr(complaint("x"), "x element 2 (line 2): column 7"));
    put("x", "[{\"a\": 1}]\n]");
    assert_string_equal(complaint("x"),
                        "x line 2: expected nothing after the array, found ']'");
    put("x", "[{\"a\": 1}]\n[]");
    assert_string_equal(complaint("x"),
                        "x line 2: expected nothing after the array, found '['");
    put("x", "{\"a\": 1}\n[1]");
    assert_string_equal(complaint("x"), "x line 2: expected a JSON object, found array");
    assert_non_null(strstr(complaint("absent"), "absent: cannot open: No such file"));
    put_gzip("x", "PAR1", 4);
    assert_non_null(
        strstr(complaint("x"), "found it compressed by gzip: decompress it first"));
}

/* An array inside an object, as {"data": [..]}, is read like an array; any other object
 * is refused with the reason. */
static void a_list_in_an_object_is_an_array(void **state)
{
#define THREE "{\"a\": 1}, {\"a\": 2, \"b\": [\"]\"]},\n {\"a\": 3}"
    static const char *const same[] = {
        "{\"data\": [" THREE "]}",
        "{\"train\":[" THREE "]}\n",
        "\n{\n \"data\" :\n [\n" THREE "\n ]\n}\n",
        "{\"test\": [" THREE "]}",
        "{\"validation\": [" THREE "] }",
        "{\"train\": [" THREE "], \"test\": [{\"b\": 1}]}",
        "{\"data\": [" THREE "], \"version\": \"1.0\"}",
    };
    static const char *const refused[][2] = {
        {"{\"data\": [" THREE "]", "found the end"},
        {"{\"data\": [" THREE "]} {}", "found '{'"},
        {"{\"data\": [" THREE "]]", "',' or '}' after the list of an object, found ']'"},
        {"{\"data\": [{\"a\": 1}, 2]}", "expected an object as element"},
        {"{\n \"question\": [\"a\", \"b\"],\n \"answer\": [1, 2]\n}", "zip(*d.values())"},
        {"{\r\n \"question\": \"a\"\r\n}", "found one over several lines"},
    };
    struct kg_records *r;
    (void)state;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        put("x", same[i]);
        has_three("x", "JSON array in an object", "element");
    }
    put_gzip("x.gz", same[0], strlen(same[0]));
    has_three("x.gz", "JSON array in an object, gzip", "element");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        put("x", refused[i][0]);
        if (!strstr(complaint("x"), refused[i][1]))
            fail_msg("%s: %s", refused[i][0], err.message);
    }
    put("x", "{\"data\": [1, 2]}\n{\"data\": []}\n{\"other\": [{\"a\": 1}]}\n");
    assert_int_equal(kg_records_open(&r, in_dir("x"), &err), KG_OK);
    assert_string_equal(kg_records_format(r), "JSON lines");
    kg_records_close(r);
}

static void an_empty_array_has_no_records(void **state)
{
    struct kg_json_doc doc = {0};
    struct kg_records *r;
    bool more = true;

    (void)state;
    put("x", " [ ]\n");
    assert_int_equal(kg_records_open(&r, in_dir("x"), &err), KG_OK);
    assert_int_equal(kg_records_next(r, &doc, &more, &err), KG_OK);
    assert_false(more);
    kg_records_close(r);
}

/* A compressed file truncated at any length, or damaged, is reported as damaged. */
static void damaged(const char *name)
{
    struct kg_str whole = {0};

    assert_int_equal(kg_file_read(&whole, in_dir(name), 1 << 20, &err), KG_OK);
    for (size_t n = 4; n < whole.len; n++) {
        assert_int_equal(kg_file_write_atomic(in_dir("cut"), whole.data, n, &err), KG_OK);
        assert_non_null(strstr(complaint("cut"), "found it damaged"));
    }
    whole.data[whole.len / 2] ^= 0x55;
    assert_int_equal(kg_file_write_atomic(in_dir("cut"), whole.data, whole.len, &err),
                     KG_OK);
    complaint("cut");
    kg_str_release(&whole);
}

/* An empty frame that declares a window of 2^28 + 2^25 bytes, and one that declares 2^28
 * bytes of text. */
static void a_zstd_window_that_is_too_large_is_no_damage(void **state)
{
    static const unsigned char windowed[] = {0x28, 0xb5, 0x2f, 0xfd, 0x00,
                                             0x91, 0x01, 0x00, 0x00},
                               whole[] = {0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0x00,
                                          0x00, 0x00, 0x10, 0x01, 0x00, 0x00};

    (void)state;
    assert_int_equal(kg_file_write_atomic(in_dir("x"), windowed, sizeof windowed, &err),
                     KG_OK);
    assert_non_null(strstr(complaint("x"), "window of at most 134217728 bytes (zstd "
                                           "--long=27), found 301989888: "));
    assert_int_equal(kg_file_write_atomic(in_dir("x"), whole, sizeof whole, &err), KG_OK);
    assert_non_null(strstr(complaint("x"), "found 268435456: "));
}

static void a_damaged_packed_file_is_refused(void **state)
{
    (void)state;
    put_gzip("x", lines, sizeof lines - 1);
    damaged("x");
    put_zstd("x", lines, sizeof lines - 1);
    damaged("x");
}

static void long_packed_files_come_in_pieces(void **state)
{
    enum { RECORDS = 40000 };
    struct kg_str text = {0};
    struct kg_json_doc doc = {0};
    struct kg_records *r;
    bool more;

    (void)state;
    for (int i = 0; i < RECORDS; i++)
        assert_int_equal(kg_str_printf(&text, &err, "{\"a\": %d}\n", i), KG_OK);
    put_gzip("x", text.data, text.len);
    assert_int_equal(kg_records_open(&r, in_dir("x"), &err), KG_OK);
    for (int i = 0; i < RECORDS; i++) {
        assert_int_equal(kg_records_next(r, &doc, &more, &err), KG_OK);
        assert_int_equal(kg_json_int(kg_json_get(doc.root, "a"), -1), i);
    }
    assert_int_equal(kg_records_next(r, &doc, &more, &err), KG_OK);
    assert_false(more);
    kg_records_close(r);
    kg_str_release(&text);
}

/* Reads all records of a file.   returns the first failure, or KG_OK */
static kg_status read_all(const char *path)
{
    struct kg_json_doc doc = {0};
    struct kg_records *r;
    bool more = true;
    kg_status status = kg_records_open(&r, path, &err);

    if (status != KG_OK)
        return status;
    while (status == KG_OK && more)
        status = kg_records_next(r, &doc, &more, &err);
    kg_json_release(&doc);
    kg_records_close(r);
    return status;
}

static void fails_at_every_allocation(const char *path)
{
    kg_status status = KG_ENOMEM;
    uint64_t n = 0;

    while (status == KG_ENOMEM) {
        kg_mem_fail_at(++n);
        status = read_all(path);
        kg_mem_fail_at(0);
        assert_int_equal(kg_mem_current_bytes(), 0);
    }
    assert_int_equal(status, KG_OK);
    assert_true(n > 5);
}

static void every_failed_allocation_is_a_status(void **state)
{
    (void)state;
    put("x", array);
    fails_at_every_allocation(in_dir("x"));
    put_gzip("x", lines, sizeof lines - 1);
    fails_at_every_allocation(in_dir("x"));
    fails_at_every_allocation("tests/data/parquet/oldlists.parquet");
}

static void blocks_have_the_size_that_is_asked_for(void **state)
{
    /* snappy: length 5, then a literal of 5 bytes */
    static const unsigned char packed[] = {5, 4 << 2, 'h', 'e', 'l', 'l', 'o'};
    char out[8] = {0};

    (void)state;
    assert_int_equal(kg_unpack_block(out, 5, KG_CODEC_SNAPPY, packed, 7, &err), KG_OK);
    assert_string_equal(out, "hello");
    assert_int_equal(kg_unpack_block(out, 6, KG_CODEC_SNAPPY, packed, 7, &err),
                     KG_EFORMAT);
    assert_string_equal(err.message, "expected 6 bytes when unpacked, found 5");
    assert_int_equal(kg_unpack_block(out, 5, KG_CODEC_SNAPPY, packed, 6, &err),
                     KG_EFORMAT);
    assert_int_equal(kg_unpack_block(out, 5, KG_CODEC_ZSTD, packed, 7, &err), KG_EFORMAT);
    assert_int_equal(kg_unpack_block(out, 5, KG_CODEC_GZIP, packed, 7, &err), KG_EFORMAT);
    assert_int_equal(kg_unpack_block(out, 5, KG_CODEC_NONE, packed, 7, &err), KG_EFORMAT);
    assert_int_equal(kg_unpack_crc32("123456789", 9), 0xcbf43926);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_content_says_the_format),
        cmocka_unit_test(what_is_wrong_has_its_place),
        cmocka_unit_test(a_list_in_an_object_is_an_array),
        cmocka_unit_test(an_empty_array_has_no_records),
        cmocka_unit_test(a_zstd_window_that_is_too_large_is_no_damage),
        cmocka_unit_test(a_damaged_packed_file_is_refused),
        cmocka_unit_test(long_packed_files_come_in_pieces),
        cmocka_unit_test(every_failed_allocation_is_a_status),
        cmocka_unit_test(blocks_have_the_size_that_is_asked_for),
    };

    return cmocka_run_group_tests_name("records", tests, make_dir, remove_dir);
}
