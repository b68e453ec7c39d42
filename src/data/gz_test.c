/* Packed text reads back unchanged, packing twice gives the same bytes, and a failure
 * leaves no file. */
#include "data/gz.h"

#include "base/folder_testing.h"
#include "data/unpack.h"

#include <errno.h>

enum { LINES = 40000 };

/* Writes text without repetitions, one line per call. */
static kg_status write_all(const char *name)
{
    struct kg_gz_writer *w;
    char line[64];

    KG_TRY(kg_gz_open(&w, in_dir(name), &err));
    for (uint32_t i = 0; i < LINES; i++) {
        int n = snprintf(line, sizeof line, "%u %u\n", i, i * 2654435761u);
        kg_status status = kg_gz_put(w, line, (size_t)n, &err);

        if (status != KG_OK) {
            kg_gz_abort(w);
            return status;
        }
    }
    return kg_gz_close(w, &err);
}

static void what_is_packed_is_what_is_read(void **state)
{
    struct kg_str a = {0}, b = {0};
    struct kg_unpack *u;
    char line[64], expected[64];

    (void)state;
    assert_int_equal(write_all("a.gz"), KG_OK);
    assert_int_equal(write_all("b.gz"), KG_OK);
    assert_int_equal(kg_file_read(&a, in_dir("a.gz"), 1 << 24, &err), KG_OK);
    assert_int_equal(kg_file_read(&b, in_dir("b.gz"), 1 << 24, &err), KG_OK);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.data, b.data, a.len);
    assert_int_equal(kg_unpack_open(&u, in_dir("a.gz"), &err), KG_OK);
    assert_int_equal(kg_unpack_codec(u), KG_CODEC_GZIP);
    for (uint32_t i = 0; i < LINES; i++) {
        snprintf(expected, sizeof expected, "%u %u\n", i, i * 2654435761u);
        assert_non_null(fgets(line, sizeof line, kg_unpack_stream(u)));
        assert_string_equal(line, expected);
    }
    assert_null(fgets(line, sizeof line, kg_unpack_stream(u)));
    kg_unpack_close(u);
    kg_str_release(&a);
    kg_str_release(&b);
}

static void a_failure_leaves_no_file(void **state)
{
    (void)state;
    for (uint64_t n = 1; n < 3; n++) {
        kg_file_fail_at(n, ENOSPC);
        assert_int_equal(write_all("c.gz"), KG_ENOSPACE);
        kg_file_fail_at(0, 0);
        assert_false(kg_file_exists(in_dir("c.gz")));
    }
    for (uint64_t n = 1; n < 3; n++) {
        kg_mem_fail_at(n);
        assert_int_equal(write_all("c.gz"), KG_ENOMEM);
        kg_mem_fail_at(0);
        assert_false(kg_file_exists(in_dir("c.gz")));
    }
    assert_int_equal(kg_mem_current_bytes(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_packed_is_what_is_read),
        cmocka_unit_test(a_failure_leaves_no_file),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
