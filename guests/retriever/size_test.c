/* Tests of predicted sizes: those of files that were written, to the byte. */
#include "search/size.h"

#include "base/folder_testing.h"
#include "retriever/dense/dense_internal.h"

#include <sys/stat.h>

static void must(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

/* Threads keep scratch of the CPU's operations: memory is not counted here. */
static int end(void **state)
{
    (void)state;
    return kg_file_remove_tree(dir, &err) != KG_OK;
}

static uint64_t bytes_of(const char *path)
{
    struct stat s;

    assert_int_equal(stat(path, &s), 0);
    return (uint64_t)s.st_size;
}

static uint64_t vectors_file(int64_t passages, int32_t dim)
{
    struct kg_search_size size;

    kg_search_size(&size, passages, dim);
    return size.vectors_file;
}

/* An index with vectors against the same one without. */
static uint64_t built(int passages, const struct kg_encoder *encoder)
{
    struct kg_index_build_opts o = {.bm25 = kg_bm25_default, .encoder = encoder};
    struct kg_index_info info;
    struct kg_str corpus = {0};

    for (int i = 0; i < passages; i++)
        must(kg_str_printf(&corpus, &err, "{\"id\": %d, \"contents\": \"cat %d\"}\n", i,
                           i));
    put("corpus", corpus.data);
    kg_str_release(&corpus);
    o.corpus = in_dir("corpus");
    o.path = in_dir("index");
    must(kg_index_build(&info, &o, &err));
    assert_int_equal(info.bytes, bytes_of(in_dir("index")));
    return info.bytes;
}

static void an_index_grows_by_what_was_predicted(void **state)
{
    static const int counts[] = {1, 63, 64, 65, 1000};
    struct kg_encoder *e;

    (void)state;
    must(kg_encoder_open(&e, "tests/data/encoder/bert", &(struct kg_encoder_opts){0},
                         &err));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const uint64_t without = built(counts[i], NULL);

        assert_int_equal(built(counts[i], e) - without, vectors_file(counts[i], 8));
    }
    kg_encoder_close(e);
}

/* Widths that no tiny encoder has: the table alone, of zeros. */
static uint64_t written(int64_t passages, int32_t dim)
{
    const char *path = in_dir("table");
    char sql[512];
    sqlite3 *db;
    uint64_t bytes;

    snprintf(sql, sizeof sql,
             "PRAGMA page_size=%d; PRAGMA synchronous=OFF; BEGIN;"
             "CREATE TABLE vector (chunk INTEGER PRIMARY KEY, halves BLOB NOT NULL);"
             "WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n < "
             "%lld) INSERT INTO vector SELECT n, zeroblob(%d * min(64, %lld - 64 * n)) "
             "FROM c; COMMIT;",
             KG_INDEX_PAGE_BYTES, (long long)((passages - 1) / KG_DENSE_ROWS), 2 * dim,
             (long long)passages);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    bytes = bytes_of(path);
    assert_int_equal(remove(path), 0);
    return bytes - KG_INDEX_PAGE_BYTES; /* the first page names the table */
}

static void a_table_of_any_width_is_as_long_as_predicted(void **state)
{
    static const int32_t dims[] = {1, 32, 61, 62, 63, 64, 65, 128, 384, 768, 1024, 4096};

    (void)state;
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int64_t n = 1; n < 20000; n = n * 3 + 1)
            if (written(n, dims[i]) != vectors_file(n, dims[i]))
                fail_msg("%d passages of %d numbers: expected %llu bytes, found %llu",
                         (int)n, dims[i], (unsigned long long)vectors_file(n, dims[i]),
                         (unsigned long long)written(n, dims[i]));
}

/* Wikipedia of 2018 by E5, and the most that there may be. A file is the numbers, and a
 * little for its pages; a pass reads rows to the end. */
static void sizes_of_many_are_right(void **state)
{
    static const int64_t counts[] = {(1 << 22) + 1, 21015324, KG_DENSE_PASSAGES_MAX};
    struct kg_search_size size;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const int64_t n = counts[i];
        const struct kg_codes codes = {(void *)(uintptr_t)64, KG_CODE_F16, n, 768};
        const uint64_t fp16 = (uint64_t)n * 768 * 2;

        kg_search_size(&size, n, 768);
        assert_int_equal(size.vectors_fp16, fp16);
        assert_int_equal(size.vectors_int8, (uint64_t)n * (768 + 8));
        assert_int_equal(size.lengths, (uint64_t)n * 4);
        assert_in_range(size.vectors_file, fp16, fp16 + fp16 / 50);
        assert_in_range(kg_codes_bytes(KG_CODE_F16, n, 768), fp16, fp16 + 16 * 768 * 2);
        assert_int_equal((uintptr_t)kg_codes_rows(&codes, n / 16 * 16, 1).data,
                         64 + n / 16 * 16 * 768 * 2);
    }
    kg_search_size(&size, KG_DENSE_PASSAGES_MAX, KG_DENSE_DIM_MAX);
    assert_int_equal(size.vectors_fp16, 1ull << (26 + 22 + 1));
    assert_int_equal(kg_codes_bytes(KG_CODE_F16, KG_DENSE_PASSAGES_MAX, KG_DENSE_DIM_MAX),
                     1ull << (26 + 22 + 1));
    assert_true(size.vectors_file > size.vectors_fp16);
}

static void an_encoder_takes_what_was_predicted(void **state)
{
    static const char *const folders[] = {"tests/data/encoder/bert",
                                          "tests/data/encoder/xlm-roberta"};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct kg_encoder_outline o;
        struct kg_encoder_info info;
        struct kg_encoder *e;
        uint64_t taken;

        must(kg_encoder_outline(&o, folders[i], &err));
        must(kg_encoder_open(&e, folders[i], &(struct kg_encoder_opts){0}, &err));
        kg_encoder_info(&info, e);
        taken = kg_mem_current_bytes();
        kg_encoder_close(e);
        taken -= kg_mem_current_bytes();
        assert_int_equal(o.dim, info.dim);
        /* beside the weights: its tokenizer and its table of layers */
        assert_true(o.bytes > 0 && taken > o.bytes);
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, make_dir, end)
    const struct CMUnitTest tests[] = {
        T(an_index_grows_by_what_was_predicted),
        T(a_table_of_any_width_is_as_long_as_predicted),
        T(sizes_of_many_are_right),
        T(an_encoder_takes_what_was_predicted),
    };
    return cmocka_run_group_tests_name("size", tests, NULL, NULL);
}
