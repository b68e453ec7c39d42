/* Tests of folders: making, listing, removing, replacing. */
#include "base/file.h"

#include "base/folder_testing.h"

#include <errno.h>
#include <limits.h>
#include <unistd.h>

static void makes_whole_paths(void **state)
{
    (void)state;
    assert_int_equal(kg_file_make_dirs(in_dir("a/b//c/"), &err), KG_OK);
    assert_true(kg_file_is_dir(in_dir("a/b/c")));
    assert_int_equal(kg_file_make_dirs(in_dir("a/b/c"), &err), KG_OK);
    put("file", "x");
    assert_int_equal(kg_file_make_dirs(in_dir("file/d"), &err), KG_EIO);
    assert_non_null(strstr(err.message, "/file: expected a folder, found a file"));
    assert_false(kg_file_is_dir(in_dir("file")));
    assert_true(kg_file_exists(in_dir("file")));
}

static void trying_a_folder_leaves_nothing(void **state)
{
    char name[300];

    (void)state;
    put("file", "x");
    assert_int_equal(kg_file_try_dirs(in_dir("try/b//c/"), &err), KG_OK);
    assert_false(kg_file_exists(in_dir("try")));
    assert_int_equal(kg_file_make_dirs(in_dir("try/b"), &err), KG_OK);
    assert_int_equal(kg_file_try_dirs(in_dir("try/b/c"), &err), KG_OK);
    assert_false(kg_file_exists(in_dir("try/b/c")));
    assert_int_equal(kg_file_try_dirs(in_dir("try/b"), &err), KG_OK);
    assert_true(kg_file_is_dir(in_dir("try/b")));
    assert_int_equal(kg_file_try_dirs(in_dir("file"), &err), KG_EIO);
    assert_int_equal(kg_file_try_dirs("/proc/x", &err), KG_ENOTFOUND);
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_int_not_equal(kg_file_try_dirs(name, &err), KG_OK);
    assert_int_not_equal(kg_file_try_dirs("/dev/null", &err), KG_OK);
    assert_true(kg_file_exists("/dev/null"));
}

static void lists_names_in_byte_order(void **state)
{
    char **names;
    size_t n;

    (void)state;
    put("b", "");
    put("a", "");
    put("B", "");
    put(".hidden", "");
    assert_int_equal(kg_file_list(&names, &n, dir, &err), KG_OK);
    assert_int_equal(n, 4);
    assert_string_equal(names[0], ".hidden");
    assert_string_equal(names[1], "B");
    assert_string_equal(names[2], "a");
    assert_string_equal(names[3], "b");
    kg_file_names_free(names, n);
    assert_int_equal(kg_file_list(&names, &n, in_dir("none"), &err), KG_ENOTFOUND);
    assert_null(names);
}

static void listing_survives_failed_allocations(void **state)
{
    char **names;
    size_t n;

    (void)state;
    for (char c = 'a'; c < 'm'; c++)
        put((char[]){c, '\0'}, "");
    for (uint64_t at = 1;; at++) {
        kg_mem_fail_at(at);
        kg_status status = kg_file_list(&names, &n, dir, &err);
        kg_mem_fail_at(0);
        if (status == KG_OK)
            break;
        assert_int_equal(status, KG_ENOMEM);
        assert_int_equal(kg_mem_current_bytes(), 0);
    }
    assert_int_equal(n, 12);
    kg_file_names_free(names, n);
}

static void removing_does_not_follow_links(void **state)
{
    (void)state;
    assert_int_equal(kg_file_make_dirs(in_dir("keep"), &err), KG_OK);
    put("keep/file", "x");
    assert_int_equal(kg_file_make_dirs(in_dir("tree/sub"), &err), KG_OK);
    put("tree/sub/file", "y");
    assert_int_equal(symlink("../keep", in_dir("tree/link")), 0);
    assert_int_equal(symlink("keep", in_dir("link")), 0);
    assert_int_equal(kg_file_remove_tree(in_dir("tree"), &err), KG_OK);
    assert_int_equal(kg_file_remove_tree(in_dir("link"), &err), KG_OK);
    assert_false(kg_file_exists(in_dir("tree")));
    assert_false(kg_file_exists(in_dir("link")));
    holds("keep/file", "x");
    assert_int_equal(kg_file_remove_tree(in_dir("absent"), &err), KG_OK);
}

static void a_finished_folder_takes_its_name(void **state)
{
    (void)state;
    assert_int_equal(kg_file_make_dirs(in_dir("new"), &err), KG_OK);
    put("new/file", "1");
    assert_int_equal(kg_file_rename_dir(in_dir("new"), in_dir("final"), &err), KG_OK);
    holds("final/file", "1");
    assert_int_equal(kg_file_make_dirs(in_dir("new"), &err), KG_OK);
    put("new/file", "2");
    assert_int_equal(kg_file_rename_dir(in_dir("new"), in_dir("final"), &err), KG_OK);
    holds("final/file", "2");
    assert_false(kg_file_exists(in_dir("new")));
    assert_int_equal(kg_file_rename_dir(in_dir("none"), in_dir("final"), &err),
                     KG_ENOTFOUND);
    holds("final/file", "2");
}

/* Whichever call fails, `final` exists and is complete, with the old or the new
 * contents. */
static void replacing_never_loses_the_folder(void **state)
{
    int failures = 0;

    (void)state;
    for (uint64_t n = 1;; n++) {
        assert_int_equal(kg_file_remove_tree(in_dir("final"), &err), KG_OK);
        assert_int_equal(kg_file_remove_tree(in_dir("new"), &err), KG_OK);
        assert_int_equal(kg_file_make_dirs(in_dir("final/sub"), &err), KG_OK);
        put("final/sub/file", "whole");
        assert_int_equal(kg_file_make_dirs(in_dir("new/sub"), &err), KG_OK);
        put("new/sub/file", "whole");
        kg_file_fail_at(n, EIO);
        kg_status status = kg_file_rename_dir(in_dir("new"), in_dir("final"), &err);
        kg_file_fail_at(0, 0);
        holds("final/sub/file", "whole");
        if (status == KG_OK)
            break;
        assert_int_equal(status, KG_EIO);
        failures++;
    }
    assert_true(failures >= 6);
}

static void file_systems_without_exchange_take_two_steps(void **state)
{
    (void)state;
    assert_int_equal(kg_file_make_dirs(in_dir("final"), &err), KG_OK);
    put("final/file", "old");
    assert_int_equal(kg_file_make_dirs(in_dir("new"), &err), KG_OK);
    put("new/file", "new");
    kg_file_fail_at(4, EINVAL); /* list, open and sync of `new`, then the exchange */
    assert_int_equal(kg_file_rename_dir(in_dir("new"), in_dir("final"), &err), KG_OK);
    holds("final/file", "new");
    assert_false(kg_file_exists(in_dir("final.old")));
    assert_false(kg_file_exists(in_dir("new")));
}

static void sizes_and_free_space(void **state)
{
    uint64_t bytes = 0;

    (void)state;
    put("a", "12345");
    assert_int_equal(kg_file_size(&bytes, in_dir("a"), &err), KG_OK);
    assert_int_equal(bytes, 5);
    assert_int_equal(kg_file_size(&bytes, in_dir("none"), &err), KG_ENOTFOUND);
    assert_int_equal(kg_file_free_bytes(&bytes, dir, &err), KG_OK);
    assert_true(bytes > 0);
    assert_int_equal(kg_file_free_bytes(&bytes, in_dir("none"), &err), KG_ENOTFOUND);
}

static void joins_paths(void **state)
{
    static const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"/", "b", "/b"}, {"", "b", "b"}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path = kg_path_join(cases[i][0], cases[i][1], &err);
        assert_string_equal(path, cases[i][2]);
        kg_mem_free(path);
        assert_string_equal(kg_path_in(cases[i][0], cases[i][1]).text, cases[i][2]);
    }
    kg_mem_fail_at(1);
    assert_null(kg_path_join("a", "b", &err));
    assert_int_equal(err.code, KG_ENOMEM);
}

/* "./././a" names the file a, unless the path is too long for the kernel. */
static void a_path_that_is_too_long_means_no_file(void **state)
{
    char long_dir[PATH_MAX + 3];

    (void)state;
    for (size_t i = 0; i < sizeof long_dir; i++)
        long_dir[i] = "./"[i % 2];
    long_dir[sizeof long_dir - 1] = '\0';
    assert_true(kg_file_exists(long_dir + 4));
    assert_false(kg_file_exists(kg_path_in(long_dir, "").text));
    assert_int_equal(errno, ENAMETOOLONG);
}

/* Whichever call fails, the link points to the old or the new target, and no temporary
 * link is left. */
static void a_link_moves_in_one_step_or_stays(void **state)
{
    kg_status status = KG_EIO;

    (void)state;
    put("a", "a");
    put("b", "b");
    assert_int_equal(symlink("nowhere", in_dir("link.tmp")), 0);
    assert_int_equal(kg_file_link("a", in_dir("link"), &err), KG_OK);
    holds("link", "a");
    for (uint64_t n = 1; status != KG_OK; n++) {
        assert_true(n < 20);
        kg_file_fail_at(n, ENOSPC);
        status = kg_file_link("b", in_dir("link"), &err);
        kg_file_fail_at(0, 0);
        assert_true(status == KG_OK || status == KG_ENOSPACE);
        assert_false(kg_file_exists(in_dir("link.tmp")));
        assert_true(kg_file_exists(in_dir("link")));
    }
    holds("link", "b");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(makes_whole_paths, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(trying_a_folder_leaves_nothing, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(lists_names_in_byte_order, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(listing_survives_failed_allocations, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(removing_does_not_follow_links, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(a_finished_folder_takes_its_name, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(replacing_never_loses_the_folder, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(file_systems_without_exchange_take_two_steps,
                                        make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(sizes_and_free_space, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(joins_paths, make_dir, remove_dir),
        cmocka_unit_test(a_path_that_is_too_long_means_no_file),
        cmocka_unit_test_setup_teardown(a_link_moves_in_one_step_or_stays, make_dir,
                                        remove_dir),
    };

    return cmocka_run_group_tests_name("dir", tests, NULL, NULL);
}
