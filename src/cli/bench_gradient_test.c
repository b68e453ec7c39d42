/* The row of a gradient's exchange, of ranks over shared memory. */
#include "cli/bench_gradient.h"

#include "base/clock.h"
#include "ranks/ranks_testing.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 2, GRADIENT = 1 << 26 };

/* returns 0: the row is whole, and has the bytes of a half and little more */
static int as_rank(struct kg_ranks *r, void *user)
{
    struct kg_str out = {0};
    const char *bytes;
    long long sent;
    struct kg_err e;

    (void)user;
    kg_threads_set(1);
    if (kg_bench_gradient(&out, r, true, &e) != KG_OK)
        return 1;
    bytes = strstr(kg_str_text(&out), "\"ranks\": 2, \"bytes\": ");
    if (!bytes || !strstr(bytes, "\"share\": ") ||
        !strstr(bytes, "\"share_of_both\": ") || !strstr(bytes, "\"at_most\": 1.1, "))
        return 2;
    sent = strtoll(strstr(bytes, "bytes") + strlen("bytes\": "), NULL, 10);
    kg_str_release(&out);
    return sent >= GRADIENT / 2 && sent < GRADIENT / 2 + (1 << 20) ? 0 : 3;
}

static void a_gradient_stands_beside_its_bytes(void **state)
{
    int ended[RANKS];

    (void)state;
    ranks_run(ended, RANKS, as_rank, NULL);
    for (int p = 0; p < RANKS; p++)
        assert_int_equal(ended[p], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gradient_stands_beside_its_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
