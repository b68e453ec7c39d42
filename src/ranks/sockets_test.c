/* Which rank a timeout blames. What a rank waited for may arrive between its last look
 * and the verdict, a window that a test cannot hit from outside, so this file includes
 * the source. Also, heads of messages that no rank of this program would send.
 */
#include "ranks/sockets.c"

#include "ranks/ranks_testing.h"

#include <string.h>

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

/* Rank p owes this rank a byte. */
static void owe(int p) { in[p] = (struct kg_ranks_part){&bytes[p], 1}; }

static void send_byte(int from)
{
    assert_int_equal(kg_rings_put(joined.rings, from, ME, "x", 1), 1);
}

/* Fills the ring to rank p, so that this rank's next byte for p cannot be sent. */
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
    assert_non_null(strstr(why.message, "nothing accepted by rank 1 for"));
}

/* Every rank has replied, so none is missing. The rank that owes a byte is named before
 * the one whose ring is full. */
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

/* ---- heads ---- */

enum { MOST = 20000 };
static unsigned char wanted[MOST + 1];

/* Rank 2 sends this head where n bytes are expected: the exchange is refused and nothing
 * is written. */
static void refuse(const struct kg_ranks_head *head, size_t n, const char *found)
{
    loss = (struct kg_ranks_loss){0};
    memset(wanted, 0x5a, sizeof wanted);
    in[2] = (struct kg_ranks_part){wanted, n};
    assert_int_equal(kg_rings_put(joined.rings, 2, ME, head, sizeof *head), sizeof *head);
    assert_int_equal(exchange(&rank, out, in, "a step", &why), KG_ECONFLICT);
    if (!strstr(why.message, "a step: rank 0 (") || !strstr(why.message, found))
        fail_msg("expected \"%s\", found: %s", found, why.message);
    for (size_t i = 0; i < sizeof wanted; i++)
        assert_int_equal(wanted[i], 0x5a);
    assert_int_equal(atomic_load(&loss.who), ME + 1);
    assert_true(atomic_load(&loss.unlike));
}

static void another_kind_or_length_is_refused_before_a_byte(void **state)
{
    static const size_t lengths[] = {1, 8, 63, 64, 65, 772, MOST};
    struct kg_ranks_head head;

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const size_t n = lengths[i];
        const uint64_t wrong[] = {0,          n - 1,     n + 1, 2 * n, n + (1ull << 32),
                                  1ull << 63, UINT64_MAX};

        kg_ranks_head_make(&head, &rank, "another", n);
        refuse(&head, n, "bytes of 'another': these ranks are not at the same place");
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
            kg_ranks_head_make(&head, &rank, "a step", (size_t)wrong[k]);
            refuse(&head, n, "bytes of 'a step': these ranks");
        }
        for (int byte = 0; byte < (int)sizeof head; byte++) {
            kg_ranks_head_make(&head, &rank, "a step", n);
            ((unsigned char *)&head)[byte] ^= (unsigned char)(1 + byte % 255);
            refuse(&head, n, "found ");
        }
    }
}

/* Another rank left because of an unexpected message: this rank learns it and stops
 * waiting. */
static void what_another_found_unlike_ends_this_one(void **state)
{
    (void)state;
    owe(1);
    atomic_store(&loss.who, 3);
    atomic_store(&loss.unlike, true);
    assert_int_equal(exchange(&rank, out, in, "a step", &why), KG_ECONFLICT);
    assert_non_null(strstr(why.message, "rank 2 got an unexpected message"));
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
        cmocka_unit_test_setup_teardown(another_kind_or_length_is_refused_before_a_byte,
                                        join, part),
        cmocka_unit_test_setup_teardown(what_another_found_unlike_ends_this_one, join,
                                        part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
