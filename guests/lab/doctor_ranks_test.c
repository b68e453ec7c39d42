/* What kedge doctor reports of ranks on devices: whether an NCCL joins them bit for bit.
 */
#include "cli/cli.h"

#include "base/clock.h"
#include "base/folder_testing.h"
#include "emu/nccl_testing.h"
#include "ranks/ranks_testing.h"

#include <limits.h>
#include <string.h>

enum { RANKS = 2 };

struct asked {
    const char *backend, *folder, *fails; /* fails: value of FAKE_NCCL */
    const char *says;                     /* says: NULL if NCCL is not mentioned */
    const char *environment[RANKS];       /* VIRTUAL_ENV of ranks, if no folder */
    bool json, ok;
};

static int as_rank(struct kg_ranks *r, void *user)
{
    const struct asked *a = user;
    const struct kg_backend *be;
    struct kg_str out = {0};
    struct kg_err e;
    bool ok = true;

    if (a->fails)
        setenv("FAKE_NCCL", a->fails, true);
    if (a->environment[r->me])
        setenv("VIRTUAL_ENV", a->environment[r->me], true);
    if (kg_backend_open(&be, a->backend, &e) != KG_OK ||
        kg_doctor_ranks(&out, &ok, r, be, a->folder, a->json, &e) != KG_OK)
        return 1;
    if (a->says ? !strstr(kg_str_text(&out), a->says)
                : strstr(kg_str_text(&out), "NCCL") != NULL) {
        fprintf(stderr, "rank %d: %s\n", r->me, kg_str_text(&out));
        return 2;
    }
    kg_str_release(&out);
    return ok == a->ok && !r->nccl ? 0 : 3;
}

static void all_say(struct asked a)
{
    int ended[RANKS];

    ranks_run(ended, RANKS, as_rank, &a);
    for (int p = 0; p < RANKS; p++)
        assert_int_equal(ended[p], 0);
}

#define SUM "a gradient that NCCL moves between GPUs has the bits of one process"

static void what_joins_gpus_is_tried(void **state)
{
    (void)state;
    make_good_nccl(in_dir("there"));
    all_say((struct asked){.backend = "far",
                           .folder = in_dir("there"),
                           .says = "holds   " SUM "\n",
                           .ok = true});
    all_say((struct asked){.backend = "far",
                           .folder = in_dir("there"),
                           .fails = "send@1",
                           .says = "FAILS   " SUM ": rank 1 ("});
    all_say((struct asked){.backend = "far",
                           .folder = in_dir("nowhere"),
                           .says = "FAILS   " SUM ": rank 0 ("});
    all_say((struct asked){.backend = "far",
                           .folder = in_dir("nowhere"),
                           .json = true,
                           .says = "{\"check\": \"sum by nccl\", \"result\": "
                                   "\"FAILS\", \"why\": \"rank 0 ("});
    all_say((struct asked){.backend = "cpu", .folder = in_dir("there"), .ok = true});
}

/* NCCL is where a wheel would install it, for no rank, for the first rank alone, or for
 * both. Only a library that no rank has counts as none. */
static void what_some_ranks_lack_is_no_none(void **state)
{
    const char *const nowhere = in_dir("nowhere"), *const there = in_dir("environment");
    char path[PATH_MAX], folders[300];

    (void)state;
    unsetenv("VIRTUAL_ENV");
    if (kg_ranks_nccl_find(path, NULL, &err) == KG_OK) {
        print_message("skip: %s would be found by every rank\n", path);
        skip();
    }
    snprintf(folders, sizeof folders, "%s/lib/python3.0/site-packages/nvidia/nccl/lib",
             there);
    assert_int_equal(kg_file_make_dirs(folders, &err), KG_OK);
    make_good_nccl(folders);
    all_say((struct asked){.backend = "far",
                           .environment = {nowhere, nowhere},
                           .says = "none    " SUM ": rank 0 (",
                           .ok = true});
    all_say((struct asked){.backend = "far",
                           .environment = {there, nowhere},
                           .says = "FAILS   " SUM ": rank 1 ("});
    all_say((struct asked){.backend = "far",
                           .environment = {there, there},
                           .says = "holds   " SUM "\n",
                           .ok = true});
}

/* The JSON line of one process without a launcher escapes the path. */
static void the_line_of_json_is_json(void **state)
{
    const char *const folder = in_dir("a\"b");
    const struct kg_backend *be;
    struct kg_str out = {0};

    (void)state;
    assert_int_equal(kg_backend_open(&be, "far", &err), KG_OK);
    make_good_nccl(folder);
    assert_int_equal(kg_doctor_nccl(&out, be, folder, true, &err), KG_OK);
    assert_non_null(strstr(kg_str_text(&out), "/a\\\"b/libnccl.so.2\"}}\n"));
    assert_int_equal(kg_doctor_nccl(&out, be, in_dir("nowhere"), true, &err),
                     KG_ENOTFOUND);
    assert_non_null(strstr(err.message, "--nccl: nccl: no libnccl.so.2 in "));
    kg_str_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_joins_gpus_is_tried, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(what_some_ranks_lack_is_no_none, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(the_line_of_json_is_json, make_dir, remove_dir),
    };

    kg_threads_set(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
