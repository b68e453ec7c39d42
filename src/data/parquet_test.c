/* Tests of reading Parquet: files of three writers, compared with the rows that pyarrow
 * reads, and damage of every kind. tests/data/parquet/README.md describes the files. */
#include "data/parquet.h"

#include "base/folder_testing.h"
#include "data/thrift.h"
#include "data/unpack.h"

#define FOLDER "tests/data/parquet/"

static struct kg_str read_all(const char *path)
{
    struct kg_str s = {0};

    if (kg_file_read(&s, path, 64 << 20, &err) != KG_OK)
        fail_msg("%s", err.message);
    return s;
}

/* The golden row in the spelling of kedge's JSON writer. */
static void golden_row(struct kg_str *out, const char *line, size_t n)
{
    struct kg_json_doc doc;

    assert_int_equal(kg_json_parse(&doc, line, n, "golden", &err), KG_OK);
    kg_str_clear(out);
    assert_int_equal(kg_json_put_value(out, doc.root, &err), KG_OK);
    kg_json_release(&doc);
}

static void same_rows(struct kg_parquet_rows *rows, const struct kg_str *golden,
                      const char *name)
{
    const char *p = kg_str_text(golden);
    struct kg_json_doc doc = {0};
    struct kg_str expected = {0};
    struct kg_str found = {0};
    bool more;

    for (int row = 1;; row++, p = strchr(p, '\n') + 1) {
        if (kg_parquet_rows_next(rows, &doc, &more, &err) != KG_OK)
            fail_msg("%s", err.message);
        if (more != (*p != 0))
            fail_msg("%s: another number of rows than %d", name, row);
        if (!more)
            break;
        golden_row(&expected, p, (size_t)(strchr(p, '\n') - p));
        kg_str_clear(&found);
        assert_int_equal(kg_json_put_value(&found, doc.root, &err), KG_OK);
        if (strcmp(kg_str_text(&expected), kg_str_text(&found)) != 0)
            fail_msg("%s row %d: expected %s\nfound %s", name, row,
                     kg_str_text(&expected), kg_str_text(&found));
    }
    kg_json_release(&doc);
    kg_str_release(&expected);
    kg_str_release(&found);
}

static void file_reads_as_its_golden_rows(void **state)
{
    const char *name = *state;
    char path[256];
    struct kg_str golden;
    struct kg_parquet *file;
    struct kg_parquet_rows *rows;

    snprintf(path, sizeof path, FOLDER "%.*s.jsonl", (int)strcspn(name, "_."), name);
    golden = read_all(path);
    snprintf(path, sizeof path, FOLDER "%s", name);
    if (kg_parquet_open(&file, path, &err) != KG_OK)
        fail_msg("%s", err.message);
    assert_int_equal(kg_parquet_rows_open(&rows, file, &err), KG_OK);
    same_rows(rows, &golden, name);
    kg_parquet_rows_close(rows);
    kg_parquet_close(file);
    kg_str_release(&golden);
}

/* ---- damage ---- */

/* Reads every row.   returns the first failure, or KG_OK */
static kg_status read_bytes(const void *bytes, size_t n)
{
    struct kg_json_doc doc = {0};
    struct kg_parquet_rows *rows = NULL;
    struct kg_parquet *file;
    bool more = true;
    kg_status status = kg_parquet_open_bytes(&file, bytes, n, "x.parquet", &err);

    if (status != KG_OK)
        return status;
    status = kg_parquet_rows_open(&rows, file, &err);
    while (status == KG_OK && more)
        status = kg_parquet_rows_next(rows, &doc, &more, &err);
    kg_json_release(&doc);
    kg_parquet_rows_close(rows);
    kg_parquet_close(file);
    return status;
}

static void a_cut_file_is_refused_at_every_length(void **state)
{
    struct kg_str whole = read_all(FOLDER "digits-test.parquet");

    (void)state;
    assert_int_equal(read_bytes(whole.data, whole.len), KG_OK);
    for (size_t n = 0; n < whole.len; n++) {
        /* a separate allocation, so that a sanitizer sees a read past the end */
        void *cut = kg_mem_copy(whole.data, n, "cut", &err);

        assert_int_equal(read_bytes(cut, n), KG_EFORMAT);
        kg_mem_free(cut);
    }
    kg_str_release(&whole);
}

/* Reads a file of one row with one column x, a required int64, in one page without data.
 * encoding: of the page, twice its number */
static kg_status read_empty_page(unsigned char encoding)
{
    static const unsigned char page[] = {0x15, 0, 0x15, 0,    0x15, 0, 0x2c, 0x15, 2,
                                         0x15, 0, 0x15, 0x06, 0x15, 6, 0,    0};
    static const unsigned char footer[] = {
        0x15, 2,    0x19, 0x2c,                                     /* version, schema */
        0x48, 6,    's',  'c',  'h',  'e',  'm',  'a',  0x15, 2, 0, /* the root */
        0x15, 4,    0x25, 0,    0x18, 1,    'x',  0,    /* int64 x, required */
        0x16, 2,    0x19, 0x1c, 0x19, 0x1c,             /* 1 row, 1 group */
        0x26, 8,    0x1c, 0x15, 4,    0x19, 0x15, 0x0a, /* chunk at 4 */
        0x19, 0x18, 1,    'x',  0x15, 0,    0x16, 2,    /* path, plain, 1 value */
        0x16, 0x22, 0x16, 0x22, 0x26, 8,    0,    0,    /* 17 bytes, at 4 */
        0x16, 0x22, 0x16, 2,    0,    0};               /* size of the row group */
    unsigned char file[4 + sizeof page + sizeof footer + 8] = "PAR1";
    unsigned char *at = file + 4;

    memcpy(at, page, sizeof page);
    at[10] = encoding;
    memcpy(at += sizeof page, footer, sizeof footer);
    at += sizeof footer;
    *at = sizeof footer;
    memcpy(at + 4, "PAR1", 4);
    return read_bytes(file, sizeof file);
}

static void a_page_without_bytes_has_no_values(void **state)
{
    enum { PLAIN = 0, DELTA = 5 };

    (void)state;
    assert_int_equal(read_empty_page(2 * DELTA), KG_EFORMAT);
    if (!strstr(err.message, "expected 1 values, found 0 left"))
        fail_msg("%s", err.message);
    assert_int_equal(read_empty_page(2 * PLAIN), KG_EFORMAT);
}

/* Changing any byte gives an error or another value, never a crash. step: one byte in
 * `step` is changed */
static void check_bytes(const char *name, size_t step)
{
    struct kg_str whole = read_all(name);
    size_t refused = 0;

    for (size_t i = 0; i < whole.len; i += step) {
        char kept = whole.data[i];

        whole.data[i] = (char)(kept ^ (i % 2 ? 0xff : 0x10));
        refused += read_bytes(whole.data, whole.len) != KG_OK;
        whole.data[i] = kept;
    }
    assert_true(refused > whole.len / step / 4);
    assert_int_equal(read_bytes(whole.data, whole.len), KG_OK);
    kg_str_release(&whole);
}

static void any_byte_may_be_wrong(void **state)
{
    (void)state;
    check_bytes(FOLDER "nested_v2.parquet", 1);
    check_bytes(FOLDER "hadoop.parquet", 1);
    check_bytes(FOLDER "codecs_lz4.parquet", 7);
    check_bytes(FOLDER "codecs_brotli.parquet", 7);
}

/* Hadoop splits frames that are longer than its buffer: the total length, then blocks,
 * each with its length. Lengths that do not match the data are refused. */
static void frames_of_hadoop_have_several_blocks(void **state)
{
    /* LZ4 blocks of literals only: 4 bits with their count, then the bytes */
    static const struct {
        const char *bytes;
        size_t n;
        bool right;
    } rows[] = {
        {"\0\0\0\6\0\0\0\4\x30"
         "abc\0\0\0\4\x30"
         "def",
         20, true},
        {"\0\0\0\3\0\0\0\4\x30"
         "abc\0\0\0\3\0\0\0\4\x30"
         "def",
         24, true},
        {"\0\0\0\6\0\0\0\7\x60"
         "abcdef",
         15, true},
        {"\x60"
         "abcdef",
         7, true},
        {"\0\0\0\6\0\0\0\4\x30"
         "abc\0\0\0\4\x30"
         "de",
         19, false},
        {"\0\0\0\6\0\0\0\4\x30"
         "abc",
         12, false},
        {"\0\0\0\7\0\0\0\7\x60"
         "abcdef",
         15, false},
        {"\0\0\0\5\0\0\0\7\x60"
         "abcdef",
         15, false},
        {"\xff\xff\xff\xff\0\0\0\7\x60"
         "abcdef",
         15, false},
        {"\0\0\0\6\xff\xff\xff\xff\x60"
         "abcdef",
         15, false},
        {"\0\0\0\6\0\0\0\0\x60"
         "abcdef",
         15, false},
        {"\0\0\0\6", 4, false},
        {"", 0, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *packed = kg_mem_copy(rows[i].bytes, rows[i].n, "packed", &err);
        char out[6];
        const kg_status status = kg_unpack_block(out, 6, KG_CODEC_LZ4_HADOOP, packed,
                                                 rows[i].n, &err);
        if ((status == KG_OK) != rows[i].right ||
            (status == KG_OK && memcmp(out, "abcdef", 6) != 0))
            fail_msg("row %zu: status %d", i, status);
        kg_mem_free(packed);
    }
}

/* Sets each byte of `file` to `value` in turn.   returns how many times the error
 * contains `says` */
static int widths_refused(struct kg_str *file, unsigned char value, const char *says)
{
    int n = 0;

    for (size_t i = 0; i < file->len; i++) {
        char kept = file->data[i];

        file->data[i] = (char)value;
        n += read_bytes(file->data, file->len) != KG_OK && strstr(err.message, says);
        file->data[i] = kept;
    }
    return n;
}

static void indices_have_32_bits_at_most(void **state)
{
    struct kg_str whole = read_all(FOLDER "digits-test.parquet");

    (void)state;
    assert_true(widths_refused(&whole, 33, "of at most 32 bits, found 33") > 0);
    assert_int_equal(widths_refused(&whole, 32, "of at most 32 bits"), 0);
    kg_str_release(&whole);
}

static void a_checksum_finds_any_damage_of_a_page(void **state)
{
    struct kg_str whole = read_all(FOLDER "types_v1_snappy.parquet");

    (void)state;
    whole.data[whole.len / 2] ^= 1;
    assert_int_equal(read_bytes(whole.data, whole.len), KG_EFORMAT);
    assert_non_null(strstr(err.message, "x.parquet: column '"));
    assert_non_null(strstr(err.message, "row group "));
    assert_non_null(strstr(err.message, "page "));
    assert_non_null(strstr(err.message, "its checksum does not match: it is damaged"));
    kg_str_release(&whole);
}

static void rows_that_are_no_records_are_refused_with_their_place(void **state)
{
    static const struct {
        const char *name, *place, *message;
    } rows[] = {
        {"equal_keys", "x.key_value.key",
         "expected every key of an object once, found a duplicate of 'a'"},
        {"many_equal_keys", "x.key_value.key",
         "expected every key of an object once, found a duplicate of '0'"},
        {"nul_key", "x.key_value.key", "expected a key without NUL, found one after 'b'"},
        {"not_utf8", "x", "expected UTF-8 text, found 3 bytes that are not"},
        {"large", "x.list.element",
         "expected a record of at most 67108864 bytes (strings, keys and 8 bytes per "
         "value), "
         "found a larger one"},
    };
    char path[256], expected[512];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_str whole;

        snprintf(path, sizeof path, FOLDER "refused/%s.parquet", rows[i].name);
        whole = read_all(path);
        assert_int_not_equal(read_bytes(whole.data, whole.len), KG_OK);
        snprintf(expected, sizeof expected,
                 "x.parquet: column '%s', row group 1, page 2: row 2: %s", rows[i].place,
                 rows[i].message);
        assert_string_equal(err.message, expected);
        kg_str_release(&whole);
    }
}

/* Nesting is bounded in skipped fields too, so nested lists in a footer cannot exhaust
 * the stack. */
static void lists_in_lists_have_a_bound(void **state)
{
    static unsigned char deep[1 << 16]; /* each byte is the head of a list of one list */

    (void)state;
    memset(deep, 0x19, sizeof deep);
    for (size_t n = 16; n <= sizeof deep; n *= 4) {
        struct kg_thrift t = {deep + sizeof deep - n, deep + sizeof deep, NULL};

        kg_thrift_skip(&t, KG_THRIFT_LIST);
        assert_string_equal(t.problem,
                            n == 16 ? "a list has more elements than bytes are left"
                                    : "it is nested too deep");
    }
}

/* A field number of 64 bits plus the delta of the next field would overflow. */
static void a_field_has_a_number_of_16_bits(void **state)
{
    static const unsigned char far[] = {5,    0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                        0xff, 0xff, 1,    0,    0x15, 0,    0};
    struct kg_thrift t = {far, far + sizeof far, NULL};

    (void)state;
    kg_thrift_skip(&t, KG_THRIFT_STRUCT);
    assert_string_equal(t.problem, "a field's number has more than 16 bits");
}

static void a_row_outlives_its_reader(void **state)
{
    struct kg_json_doc doc = {0};
    struct kg_parquet_rows *rows;
    struct kg_parquet *file;
    struct kg_str text = {0};
    bool more;

    (void)state;
    assert_int_equal(kg_parquet_open(&file, FOLDER "digits-test.parquet", &err), KG_OK);
    assert_int_equal(kg_parquet_rows_open(&rows, file, &err), KG_OK);
    assert_int_equal(kg_parquet_rows_next(rows, &doc, &more, &err), KG_OK);
    kg_parquet_rows_close(rows);
    kg_parquet_close(file);
    assert_string_equal(doc.where, FOLDER "digits-test.parquet row 1");
    assert_int_equal(kg_json_put_value(&text, doc.root, &err), KG_OK);
    assert_non_null(strstr(kg_str_text(&text), "\"prompt\""));
    kg_json_release(&doc);
    kg_str_release(&text);
}

static void every_failed_allocation_is_a_status(void **state)
{
    struct kg_str whole = read_all(FOLDER "digits-test.parquet");
    kg_status status = KG_ENOMEM;

    (void)state;
    for (uint64_t n = 1; status == KG_ENOMEM; n++) {
        uint64_t before = kg_mem_current_bytes();

        kg_mem_fail_at(n);
        status = read_bytes(whole.data, whole.len);
        kg_mem_fail_at(0);
        assert_int_equal(kg_mem_current_bytes(), before);
        n += n > 200 ? n / 8 : 0;
    }
    assert_int_equal(status, KG_OK);
    kg_str_release(&whole);
}

static void what_is_no_parquet_file_is_said(void **state)
{
    (void)state;
    assert_int_equal(read_bytes("PAR1", 4), KG_EFORMAT);
    assert_string_equal(
        err.message, "x.parquet: expected a Parquet file of at least 12 bytes, found 4");
    assert_int_equal(read_bytes("[1, 2, 3, 4, 5]", 15), KG_EFORMAT);
    assert_string_equal(err.message,
                        "x.parquet: expected a Parquet file, found no PAR1 at the start");
    assert_int_equal(read_bytes("PAR1\0\0\0\0PARE", 12), KG_EUNSUPPORTED);
    assert_string_equal(err.message, "x.parquet: its footer is encrypted");
    assert_int_equal(read_bytes("PAR1\xff\xff\xff\x7fPAR1", 12), KG_EFORMAT);
    assert_non_null(strstr(err.message, "found 2147483647 bytes"));
    assert_int_equal(read_bytes("PAR1\0\0\0\0PAR1", 12), KG_EFORMAT);
    assert_string_equal(err.message, "x.parquet: malformed footer: it ends early");
}

static const char *const files[] = {
    "codecs_brotli.parquet", "codecs_brotli_v2.parquet", "codecs_lz4.parquet",
    "codecs_lz4_v2.parquet", "hadoop.parquet",           "digits-test.parquet",
    "digits-train.parquet",  "duckdb_snappy.parquet",    "duckdb_zstd.parquet",
    "int96.parquet",         "lengths.parquet",          "nested_v1.parquet",
    "nested_v2.parquet",     "no_rows.parquet",          "oldlists.parquet",
    "polars_none.parquet",   "polars_zstd.parquet",      "types_delta_gzip.parquet",
    "types_none.parquet",    "types_v1_snappy.parquet",  "types_v2_zstd.parquet",
};
enum { FILES = sizeof files / sizeof *files };

int main(void)
{
    const struct CMUnitTest others[] = {
        cmocka_unit_test(a_cut_file_is_refused_at_every_length),
        cmocka_unit_test(a_page_without_bytes_has_no_values),
        cmocka_unit_test(any_byte_may_be_wrong),
        cmocka_unit_test(frames_of_hadoop_have_several_blocks),
        cmocka_unit_test(indices_have_32_bits_at_most),
        cmocka_unit_test(a_checksum_finds_any_damage_of_a_page),
        cmocka_unit_test(rows_that_are_no_records_are_refused_with_their_place),
        cmocka_unit_test(lists_in_lists_have_a_bound),
        cmocka_unit_test(a_field_has_a_number_of_16_bits),
        cmocka_unit_test(a_row_outlives_its_reader),
        cmocka_unit_test(every_failed_allocation_is_a_status),
        cmocka_unit_test(what_is_no_parquet_file_is_said),
    };
    struct CMUnitTest tests[FILES + sizeof others / sizeof *others];

    for (int i = 0; i < FILES; i++)
        tests[i] = (struct CMUnitTest){files[i], file_reads_as_its_golden_rows, NULL,
                                       NULL, (void *)(uintptr_t)files[i]};
    memcpy(tests + FILES, others, sizeof others);
    return cmocka_run_group_tests_name("parquet", tests, make_dir, remove_dir);
}
