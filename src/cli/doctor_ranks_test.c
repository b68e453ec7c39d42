/* What kedge doctor says of ranks on devices: whether a NCCL joins them, bit for bit.
 */
#include "cli/doctor_ranks.h"

#include "base/clock.h"
#include "base/folder_testing.h"
#include "ranks/nccl_testing.h"
#include "ranks/ranks_testing.h"

#include <string.h>

enum { RANKS = 2 };

struct asked {
    const char *backend, *folder, *fails; /* fails: what FAKE_NCCL is */
    const char *says;                     /* NULL: nothing of it */
    bool ok;
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
    if (kg_backend_open(&be, a->backend, &e) != KG_OK ||
        kg_doctor_ranks(&out, &ok, r, be, a->folder, false, &e) != KG_OK)
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

#define SUM "a gradient that NCCL moves from GPU to GPU has the bits of one process"

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
                           .says = "none    " SUM ": rank 0 (",
                           .ok = true});
    all_say((struct asked){.backend = "cpu", .folder = in_dir("there"), .ok = true});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_joins_gpus_is_tried, make_dir, remove_dir),
    };

    kg_threads_set(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
