/* Tests of memory limits from control groups, on folders that imitate /proc and /sys. */
#include "base/cgroup.h"

#include "base/folder_testing.h"

static void put_below(const char *name, const char *text)
{
    struct kg_path above;

    snprintf(above.text, sizeof above.text, "%s", in_dir(name));
    *strrchr(above.text, '/') = '\0';
    assert_int_equal(kg_file_make_dirs(above.text, &err), KG_OK);
    put(name, text);
}

static uint64_t limit(void) { return kg_cgroup_memory(in_dir("groups"), in_dir("fs")); }

static void nothing_is_no_limit(void **state)
{
    (void)state;
    assert_true(limit() == UINT64_MAX);
    put("groups", "0::/\n");
    assert_true(limit() == UINT64_MAX);
    put("groups", "no group\n1:memory\n\n");
    put_below("fs/memory.max", "max\n");
    assert_true(limit() == UINT64_MAX);
}

static void version_2_is_the_least_from_the_own_group_up(void **state)
{
    (void)state;
    put("groups", "0::/system.slice/kedge.service\n");
    put_below("fs/system.slice/kedge.service/memory.max", "max\n");
    assert_true(limit() == UINT64_MAX);
    put_below("fs/system.slice/memory.max", "7000\n");
    assert_int_equal(limit(), 7000);
    put_below("fs/system.slice/kedge.service/memory.max", "5000\n");
    assert_int_equal(limit(), 5000);
    put_below("fs/system.slice/memory.max", "4000\n");
    assert_int_equal(limit(), 4000);
    put_below("fs/system.slice/other.service/memory.max", "1000\n");
    assert_int_equal(limit(), 4000);
    put_below("fs/memory.max", "3000\n"); /* a container with its own namespace */
    assert_int_equal(limit(), 3000);
}

static void version_1_counts_the_hierarchy_of_memory(void **state)
{
    (void)state;
    put("groups",
        "9:name=systemd:/a:b\n4:cpu,memory:/slurm/job_1\n2:memoryx:/tiny\n0::/\n");
    put_below("fs/memory/tiny/memory.limit_in_bytes", "1\n");
    put_below("fs/memory/a:b/memory.limit_in_bytes", "2\n");
    put_below("fs/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put_below("fs/memory/slurm/memory.limit_in_bytes", "8000\n");
    assert_int_equal(limit(), 8000);
    put_below("fs/memory/slurm/job_1/memory.limit_in_bytes", "6000\n");
    assert_int_equal(limit(), 6000);
    put("groups", "4:memory:/a:b\n");
    assert_int_equal(limit(), 2);
}

/* The group's path is the host's path, which does not exist in the container, so the
 * limit of the container's root counts. */
static void a_container_without_a_namespace_has_its_root(void **state)
{
    (void)state;
    put("groups", "4:memory:/docker/0123\n");
    put_below("fs/memory/memory.limit_in_bytes", "2048\n");
    assert_int_equal(limit(), 2048);
    put("groups", "0::/../../docker/0123\n");
    put_below("fs/memory.max", "1024\n");
    assert_int_equal(limit(), 1024);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_is_no_limit, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(version_2_is_the_least_from_the_own_group_up,
                                        make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(version_1_counts_the_hierarchy_of_memory,
                                        make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_container_without_a_namespace_has_its_root,
                                        make_dir, remove_dir),
    };

    return cmocka_run_group_tests_name("cgroup", tests, NULL, NULL);
}
