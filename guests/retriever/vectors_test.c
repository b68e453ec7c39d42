/* Tests of vectors from other programs: files that FAISS and NumPy wrote
 * (tests/data/vectors), truncated, extended, and with changed bytes.
 */
#include "retriever/vectors.h"

#include "base/folder_testing.h"
#include "data/jsonl.h"

#include <math.h>

#define FILES "tests/data/vectors/"

enum { ROWS = 6, COLS = 8, FAISS_HEADER = 45 };

static struct kg_str bytes; /* of a file that is changed */

static int release(void **state)
{
    (void)state;
    kg_str_release(&bytes);
    return kg_mem_current_bytes() != 0;
}

static void load(const char *path)
{
    kg_str_release(&bytes);
    if (kg_file_read(&bytes, path, 1 << 20, &err) != KG_OK)
        fail_msg("%s", err.message);
}

static void expect_refused(kg_status status, kg_status code, const char *words)
{
    if (status != code || !strstr(err.message, words))
        fail_msg("expected status %d and '%s', found %d: %s", code, words, status,
                 err.message);
}

static void refuses_file(const char *path, kg_status code, const char *words)
{
    struct kg_vectors v;

    expect_refused(kg_vectors_open(&v, path, &err), code, words);
    assert_null(v.map.data);
}

static void refuses_bytes(const char *data, size_t n, kg_status code, const char *words)
{
    struct kg_vectors v;
    char *own = malloc(n + 1); /* exact, for a sanitizer */

    memcpy(own, data, n);
    expect_refused(kg_vectors_open_bytes(&v, own, n, "bytes", &err), code, words);
    free(own);
}

/* flat.index is refused with these bytes at offset `at`. */
static void refuses_changed(size_t at, const char *with, size_t n, kg_status code,
                            const char *words)
{
    load(FILES "flat.index");
    memcpy(bytes.data + at, with, n);
    refuses_bytes(bytes.data, bytes.len, code, words);
}

/* ---- what is read ---- */
static void expect_golden(const struct kg_vectors *v, double off)
{
    struct kg_json_doc doc = {0};
    struct kg_jsonl *in;
    float row[COLS];
    bool more;

    assert_int_equal(v->rows, ROWS);
    assert_int_equal(v->cols, COLS);
    assert_int_equal(kg_jsonl_open(&in, "tests/data/encoder/bert/golden.jsonl", &err),
                     KG_OK);
    for (int64_t i = 0; i < ROWS; i++) {
        assert_int_equal(kg_jsonl_next(in, &doc, &more, &err), KG_OK);
        kg_vectors_get(row, v, i, 1);
        for (size_t d = 0; d < COLS; d++)
            assert_float_equal(
                row[d], kg_json_real(kg_json_at(kg_json_get(doc.root, "vector"), d), NAN),
                off);
    }
    kg_json_release(&doc);
    kg_jsonl_close(in);
}

static void files_of_other_programs_are_read(void **state)
{
    static const struct {
        const char *path;
        double off;
        bool distances;
    } files[] = {{FILES "flat.index", 1e-7, false},
                 {FILES "distances.index", 1e-7, true},
                 {FILES "fp32.npy", 1e-7, false},
                 {FILES "fp16.npy", 0x1p-12, false},
                 {FILES "version_2.npy", 1e-7, false}};
    struct kg_vectors v;

    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (kg_vectors_open(&v, files[i].path, &err) != KG_OK)
            fail_msg("%s", err.message);
        expect_golden(&v, files[i].off);
        assert_int_equal(v.distances, files[i].distances);
        kg_vectors_close(&v);
    }
}

/* Whole pages of the map are released and read again. */
static void rows_can_be_read_again(void **state)
{
    struct kg_vectors v;

    (void)state;
    assert_int_equal(kg_vectors_open(&v, FILES "flat.index", &err), KG_OK);
    kg_vectors_let_go(&v, 0, ROWS);
    expect_golden(&v, 1e-7);
    kg_vectors_close(&v);
}

static void a_half_that_is_no_number_is_none(void **state)
{
    static const uint16_t halves[] = {0x3c00, 0x7c00, 0xfc01, 0x0001};
    struct kg_vectors v;
    float row[COLS];

    (void)state;
    load(FILES "fp16.npy");
    memcpy(bytes.data + 128, halves, sizeof halves);
    assert_int_equal(kg_vectors_open_bytes(&v, bytes.data, bytes.len, "b", &err), KG_OK);
    kg_vectors_get(row, &v, 0, 1);
    assert_float_equal(row[0], 1, 0);
    assert_false(isfinite(row[1]));
    assert_false(isfinite(row[2]));
    assert_float_equal(row[3], 0x1p-24f, 0);
    kg_vectors_close(&v);
}

/* ---- what is refused ---- */
static void other_files_are_named(void **state)
{
    (void)state;
    refuses_file(FILES "city_block.index", KG_EUNSUPPORTED,
                 "found IxFl: flat, of another metric");
    refuses_file(FILES "graph.index", KG_EUNSUPPORTED, "found IHNf: HNSW");
    refuses_file(FILES "fp64.npy", KG_EUNSUPPORTED, "'<f4' or '<f2', found '<f8'");
    refuses_file(FILES "big_endian.npy", KG_EUNSUPPORTED, "found '>f4'");
    refuses_file(FILES "columns.npy", KG_EUNSUPPORTED, "found fortran_order: True");
    refuses_file(FILES "one_row.npy", KG_EUNSUPPORTED, "found an array of 1 dimensions");
    refuses_file(FILES "structure.npy", KG_EUNSUPPORTED, "found a structure");
    refuses_file(FILES "README.md", KG_EFORMAT, "that begin with '# Ve'");
    refuses_file(FILES "none", KG_ENOTFOUND, "none");
    refuses_bytes("", 0, KG_EFORMAT, "found 0 bytes that begin with ''");
    refuses_bytes("Ix", 2, KG_EFORMAT, "found 2 bytes that begin with 'Ix'");
    refuses_bytes("IxZZ and more", 13, KG_EFORMAT, "begin with 'IxZZ'");
}

/* A file must have exactly the length that its header says. */
static void a_cut_file_is_refused_at_every_length(void **state)
{
    static const char *const files[] = {FILES "flat.index", FILES "fp32.npy",
                                        FILES "version_2.npy"};

    (void)state;
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        load(files[f]);
        for (size_t n = 6; n < bytes.len; n++)
            refuses_bytes(bytes.data, n, KG_EFORMAT, "it is cut off");
        assert_int_equal(kg_str_append(&bytes, "x", 1, &err), KG_OK);
        refuses_bytes(bytes.data, bytes.len, KG_EFORMAT,
                      "it has more after the last vector");
    }
}

static void a_header_means_what_it_says(void **state)
{
    (void)state;
    refuses_changed(4, "\0\0\0\0", 4, KG_EFORMAT, "found 6 of 0");
    refuses_changed(4, "\377\377\377\377", 4, KG_EFORMAT, "found 6 of -1");
    refuses_changed(4, "\1\0\0\1", 4, KG_EFORMAT, "found 6 of 16777217");
    refuses_changed(8, "\0", 1, KG_EFORMAT, "found 0 of 8");
    refuses_changed(15, "\200", 1, KG_EFORMAT, "of 8");
    refuses_changed(8, "\7", 1, KG_EFORMAT, "expected 269 bytes for 7 vectors of 8");
    refuses_changed(15, "\17", 1, KG_EFORMAT, "expected vectors that a file can hold");
    refuses_changed(32, "\0", 1, KG_EFORMAT, "trained 1 and metric 0");
    refuses_changed(33, "\1", 1, KG_EFORMAT, "metric 0 in an index IxFI, found 1 and 1");
    refuses_changed(37, "\61", 1, KG_EFORMAT, "expected a count of 48 numbers, found 49");
}

/* Writes a header with this description, and four zero bytes.   file (256); returns the
 * length */
static size_t put_npy(char *file, const char *text)
{
    const size_t n = strlen(text);

    memset(file, 0, 256);
    memcpy(file, "\x93NUMPY\x01", 7);
    file[8] = (char)n;
    memcpy(file + 10, text, n);
    return 10 + n + 4;
}

static void refuses_npy(const char *text, kg_status code, const char *words)
{
    char file[256];
    const size_t n = put_npy(file, text);

    refuses_bytes(file, n, code, words);
}

static void a_description_is_read_as_python_writes_it(void **state)
{
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)} 1",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 1)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 1)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808, 1)}",
        "{'descr': '<f4', 'fortran_order': None, 'shape': (1, 1)}",
        "{'descr': '<f4, 'fortran_order': False, 'shape': (1, 1)}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1), 'more': 1}",
    };
    static const char any[] =
        "{\"shape\":(1,2,),'fortran_order':False , 'descr':'<f2'}\n";
    char file[256];
    struct kg_vectors v;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuses_npy(bad[i], KG_EFORMAT, "as its header, found something else");
    refuses_npy("{'descr': '<f4', 'fortran_order': False, 'shape': ()}", KG_EUNSUPPORTED,
                "found an array of 0 dimensions");
    refuses_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1)}",
                KG_EUNSUPPORTED, "found an array of 3 dimensions");
    refuses_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 1)}", KG_EFORMAT,
                "at least one vector");
    refuses_npy("{'descr': '<f4', 'fortran_order': False, "
                "'shape': (4611686018427387904, 2)}",
                KG_EFORMAT, "that a file can hold");
    assert_int_equal(kg_vectors_open_bytes(&v, file, put_npy(file, any), "any", &err),
                     KG_OK);
    assert_true(v.rows == 1 && v.cols == 2 && v.halves);
    load(FILES "fp32.npy");
    bytes.data[6] = 4;
    refuses_bytes(bytes.data, bytes.len, KG_EUNSUPPORTED, "version 1, 2 or 3, found 4");
}

int main(void)
{
#define T(name) cmocka_unit_test_teardown(name, release)
    const struct CMUnitTest tests[] = {
        T(files_of_other_programs_are_read),          T(rows_can_be_read_again),
        T(a_half_that_is_no_number_is_none),          T(other_files_are_named),
        T(a_cut_file_is_refused_at_every_length),     T(a_header_means_what_it_says),
        T(a_description_is_read_as_python_writes_it),
    };
    return cmocka_run_group_tests_name("vectors", tests, NULL, NULL);
}
