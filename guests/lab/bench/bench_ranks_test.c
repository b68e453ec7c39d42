/* What exchanges between ranks take: the fit, the report of ranks over shared memory
 * (each rank a process), and refusal of bytes that arrive changed. Times are not
 * tested. */
#include "lab/bench/lab_bench.h"

#include "ranks/ranks_testing.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { RANKS = 3 };

static void a_line_is_found_again(void **state)
{
    const double bytes[] = {64, 1024, 65536, 1 << 24};
    double seconds[4];
    struct kg_bench_line line;

    (void)state;
    for (int i = 0; i < 4; i++)
        seconds[i] = 3e-5 + 2e-10 * bytes[i];
    line = kg_bench_fit(bytes, seconds, 4);
    assert_true(fabs(line.alpha / 3e-5 - 1) < 1e-9);
    assert_true(fabs(line.beta / 2e-10 - 1) < 1e-9);
    assert_true(line.worst < 1e-9);
    seconds[3] *= 2;
    assert_true(kg_bench_fit(bytes, seconds, 4).worst > 0.01);
}

static void one_process_exchanges_nothing(void **state)
{
    struct kg_ranks alone = {0};
    struct kg_str out = {0};
    struct kg_err err = {0};

    (void)state;
    assert_int_equal(kg_bench_ranks(&out, &alone, NULL, KG_BENCH_EXCHANGE, false, &err),
                     KG_EINVAL);
    assert_non_null(strstr(err.message, "mpirun -n 2"));
    assert_int_equal(out.len, 0);
}

/* ---- three processes ---- */
static const struct kg_ranks_transport *true_one;

/* Flips one bit of every message of 512 bytes. */
static kg_status damage(const struct kg_ranks *r, const struct kg_ranks_part *out,
                        const struct kg_ranks_part *in, const char *what,
                        struct kg_err *err)
{
    KG_TRY(true_one->exchange(r, out, in, what, err));
    if (strcmp(what, "bench ranks") == 0 && in[0].n == 512)
        ((char *)in[0].data)[511] ^= 1;
    return KG_OK;
}
static const struct kg_ranks_transport damaging = {.name = "damage", .exchange = damage};

static bool has_all_rows(const struct kg_str *out)
{
    const char *text = kg_str_text(out);
    int lines = 0;

    for (size_t i = 0; i < out->len; i++)
        lines += text[i] == '\n';
    return lines == 7 && strstr(text, "\"ranks\": 3, \"bytes\": 64,") &&
           strstr(text, "\"bytes\": 67108864,") &&
           strstr(text, "\"over\": \"shared memory\"");
}

/* Fault of rank 1 alone, which all ranks must report. */
enum harm { NONE, DAMAGED_BYTES, NO_ROOM_FOR_A_SIZE, NO_ROOM_FOR_THE_LINE };

static bool damage_is_named(kg_status status, const struct kg_err *e)
{
    return status == KG_ECONFLICT && strstr(e->message, "rank 1 (") &&
           strstr(e->message, "that rank 0 sent") && strstr(e->message, "at byte 504");
}

static bool measure(struct kg_ranks *r, enum harm harm)
{
    static const size_t room[] = {
        [NO_ROOM_FOR_A_SIZE] = 150, [NO_ROOM_FOR_THE_LINE] = 700};
    struct kg_str out = {0};
    struct kg_err err = {0};
    kg_status status;
    bool as_expected;

    if (harm == DAMAGED_BYTES && r->me == 1) {
        true_one = r->transport;
        r->transport = &damaging;
    } else if (harm != NONE && r->me == 1) {
        out.max = room[harm];
    }
    status = kg_bench_ranks(&out, r, NULL, KG_BENCH_EXCHANGE, true, &err);
    as_expected = harm == NONE ? status == KG_OK && has_all_rows(&out)
                  : harm == DAMAGED_BYTES
                      ? damage_is_named(status, &err)
                      : status != KG_OK && !r->lost && strstr(err.message, "rank 1 (");
    if (!as_expected)
        fprintf(stderr, "rank %d: %s\n%s", r->me, err.message, kg_str_text(&out));
    kg_str_release(&out);
    return as_expected;
}

static int as_rank(struct kg_ranks *r, void *user)
{
    return measure(r, *(enum harm *)user) ? 0 : 1;
}

static void measure_on_all(enum harm harm)
{
    int state[RANKS];

    ranks_run(state, RANKS, as_rank, &harm);
    for (int p = 0; p < RANKS; p++)
        assert_int_equal(state[p], 0);
}

static void every_rank_has_the_report(void **state)
{
    (void)state;
    measure_on_all(NONE);
}

static void bytes_that_changed_on_the_way_are_named(void **state)
{
    (void)state;
    measure_on_all(DAMAGED_BYTES);
}

static void a_report_that_fails_on_one_rank_is_known_to_all(void **state)
{
    (void)state;
    measure_on_all(NO_ROOM_FOR_A_SIZE);
    measure_on_all(NO_ROOM_FOR_THE_LINE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_found_again),
        cmocka_unit_test(one_process_exchanges_nothing),
        cmocka_unit_test(every_rank_has_the_report),
        cmocka_unit_test(bytes_that_changed_on_the_way_are_named),
        cmocka_unit_test(a_report_that_fails_on_one_rank_is_known_to_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
