/* The benchmark row of a gradient's exchange, with ranks over shared memory; and all that
 * `kedge bench ranks` measures between devices that a fake NCCL joins. */
#include "bench/bench.h"

#include "base/clock.h"
#include "base/folder_testing.h"
#include "bench/bench.h"
#include "emu/nccl_testing.h"
#include "ranks/ranks_testing.h"
#include "tensor/selfcheck.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 2, ELEMENTS = 1 << 21, GRADIENT = ELEMENTS * 4, EXCHANGE = 1 << 18 };

/* returns 0: the row is complete, and a rank sent half the gradient and at most 1 MiB
 * more */
static int check_row(const struct kg_str *out)
{
    const char *bytes = strstr(kg_str_text(out), "\"share\": ");
    long long sent;

    if (!bytes || !strstr(bytes, "\"share_of_both\": ") ||
        !strstr(bytes, "\"at_most\": 1.1, "))
        return 2;
    while (strncmp(bytes, "\"bytes\"", 7) != 0)
        bytes--;
    sent = strtoll(bytes + strlen("\"bytes\": "), NULL, 10);
    return sent >= GRADIENT / 2 && sent < GRADIENT / 2 + (1 << 20) ? 0 : 3;
}

static int as_rank(struct kg_ranks *r, void *user)
{
    struct kg_str out = {0};
    struct kg_err e;
    int found;

    (void)user;
    kg_threads_set(1);
    if (kg_bench_gradient(&out, r, kg_backend_cpu_variant(0), ELEMENTS, true, &e) !=
        KG_OK)
        return 1;
    found = check_row(&out);
    kg_str_release(&out);
    return found;
}

/* As as_rank, between devices; fails: NULL, or the call in which the library fails. */
static int as_gpu(struct kg_ranks *r, void *fails)
{
    const struct kg_backend *be;
    struct kg_str out = {0};
    struct kg_err e = {0};
    int found;

    kg_threads_set(1);
    if (fails)
        setenv("FAKE_NCCL", fails, true);
    if (kg_backend_open(&be, "far", &e) != KG_OK ||
        kg_ranks_nccl_open(r, be, in_dir("nccl"), &e) != KG_OK)
        return 1;
    if (kg_bench_ranks(&out, r, be, EXCHANGE, true, &e) != KG_OK ||
        kg_bench_gradient(&out, r, be, ELEMENTS, true, &e) != KG_OK)
        return fails && strstr(e.message, "nccl") ? 0 : 4;
    found = strstr(kg_str_text(&out), "\"over\": \"nccl 2.28.9\"") ? check_row(&out) : 5;
    kg_str_release(&out);
    kg_ranks_nccl_close(r);
    return found;
}

static void a_gradient_stands_beside_its_bytes(void **state)
{
    int ended[RANKS];

    (void)state;
    ranks_run(ended, RANKS, as_rank, NULL);
    for (int p = 0; p < RANKS; p++)
        assert_int_equal(ended[p], 0);
}

static void what_nccl_joins_is_measured(void **state)
{
    int ended[RANKS];
    char fails[] = "recv@1";

    (void)state;
    make_good_nccl(in_dir("nccl"));
    for (int turn = 0; turn < 2; turn++) {
        ranks_run(ended, RANKS, as_gpu, turn ? fails : NULL);
        for (int p = 0; p < RANKS; p++)
            assert_int_equal(ended[p], 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gradient_stands_beside_its_bytes),
        cmocka_unit_test_setup_teardown(what_nccl_joins_is_measured, make_dir,
                                        remove_dir),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
