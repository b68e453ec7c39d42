/* Whom a rank blames at its limit, looked at from inside: what was waited for may come
 * between the last look and the verdict, in a window that no test can aim at.
 */
#include "ranks/sockets.c"

#include "ranks/ranks_testing.h"

enum { RANKS = 4, ME = 0 };

static struct rank_sockets joined;
static struct kg_ranks_loss loss;
static struct kg_ranks rank;
static struct kg_err why;
static struct kg_ranks_part out[RANKS], in[RANKS];
static char bytes[RANKS];

static int join(void **state)
{
    (void)state;
    ranks_join(&joined, RANKS);
    NEED(kg_ranks_on_sockets(&rank, ME, RANKS, joined.fd[ME], joined.rings, err));
    loss = (struct kg_ranks_loss){0};
    rank.loss = &loss;
    rank.wait_s = 1;
    memset(out, 0, sizeof out);
    memset(in, 0, sizeof in);
    return 0;
}

static int part(void **state)
{
    (void)state;
    kg_ranks_close(&rank);
    ranks_part(&joined, -1);
    return 0;
}

/* A byte is owed by rank p. */
static void owe(int p) { in[p] = (struct kg_ranks_part){&bytes[p], 1}; }

static void send_byte(int from)
{
    assert_int_equal(kg_rings_put(joined.rings, from, ME, "x", 1), 1);
}

/* Nothing has room on its way to rank p. */
static void fill(int p)
{
    static char full[1 << 16];

    while (kg_rings_put(joined.rings, ME, p, full, sizeof full) > 0)
        continue;
    out[p] = (struct kg_ranks_part){&bytes[p], 1};
}

static kg_status verdict(void)
{
    struct traffic t = {.r = &rank, .what = "a step"};

    begin(&t, out, in);
    return too_long(&t, &why);
}

static void what_comes_at_the_limit_blames_nobody(void **state)
{
    (void)state;
    owe(1);
    owe(2);
    send_byte(1);
    send_byte(2);
    assert_int_equal(verdict(), KG_OK);
    assert_int_equal(atomic_load(&loss.who), 0);
}

static void who_still_owes_is_blamed(void **state)
{
    (void)state;
    owe(1);
    owe(2);
    send_byte(1);
    assert_int_equal(verdict(), KG_ETIMEOUT);
    assert_non_null(strstr(why.message, "nothing from rank 2 for"));
    assert_int_equal(atomic_load(&loss.who), -3);
}

static void who_takes_nothing_is_blamed_where_nobody_owes(void **state)
{
    (void)state;
    owe(3);
    send_byte(3);
    fill(1);
    assert_int_equal(verdict(), KG_ETIMEOUT);
    assert_non_null(strstr(why.message, "nothing is taken by rank 1 for"));
}

/* All answered, so that nobody is missing: one is named that is waited for directly. */
static void who_owes_is_blamed_first(void **state)
{
    (void)state;
    owe(2);
    fill(1);
    for (int p = 0; p < RANKS; p++)
        atomic_store(&loss.answer[p].to, 1);
    assert_int_equal(verdict(), KG_ETIMEOUT);
    assert_non_null(strstr(why.message, "nothing from rank 2 for"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_comes_at_the_limit_blames_nobody, join,
                                        part),
        cmocka_unit_test_setup_teardown(who_still_owes_is_blamed, join, part),
        cmocka_unit_test_setup_teardown(who_takes_nothing_is_blamed_where_nobody_owes,
                                        join, part),
        cmocka_unit_test_setup_teardown(who_owes_is_blamed_first, join, part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
