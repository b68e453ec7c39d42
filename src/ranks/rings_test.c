/* Rings: bytes come out in the order in which they were put, for parts of any size,
 * copied or read in place; a full ring takes nothing; a sleeping process is woken exactly
 * once. */
#include "ranks/sockets.h"

#include "base/need_testing.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

enum { BYTES = 3 << 20 };

static char letter(size_t i) { return (char)(i * 31 % 251); }

/* Bytes of the part that begins at `at`: a few, some cache lines, or more than a ring. */
static size_t part(size_t at)
{
    size_t n = at % 3 == 0 ? 1 + at % 97 : at % 3 == 1 ? 64 * (1 + at % 50) : 300001;

    return n < BYTES - at ? n : BYTES - at;
}

static void *write_all(void *of)
{
    static char bytes[BYTES];
    size_t at = 0;

    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = letter(i);
    while (at < BYTES) {
        size_t end = at + part(at);

        while (at < end)
            at += kg_rings_put(of, 0, 1, bytes + at, end - at);
    }
    return NULL;
}

/* Reads a part in place. If at least two lines are visible, only half of them are given
 * back at a time. */
static void see_part(char *to, struct kg_rings *rings, size_t n)
{
    for (size_t at = 0; at < n;) {
        void *there;
        size_t seen = kg_rings_see(rings, 0, 1, &there, n - at);

        assert_int_equal((uintptr_t)there % KG_RINGS_LINE, 0);
        assert_true(seen % KG_RINGS_LINE == 0 || seen == n - at);
        if (seen >= 2 * (size_t)KG_RINGS_LINE)
            seen = seen / 2 / KG_RINGS_LINE * KG_RINGS_LINE;
        if (seen == 0)
            continue;
        memcpy(to + at, there, seen);
        memset(there, 0, seen); /* the reader may write here until it gives it back */
        kg_rings_give_back(rings, 0, 1, seen);
        at += seen;
    }
}

static void take_part(char *to, struct kg_rings *rings, size_t n)
{
    for (size_t at = 0; at < n;)
        at += kg_rings_take(rings, 0, 1, to + at, n - at);
}

static void bytes_come_in_order(void **state)
{
    static char bytes[BYTES];
    struct kg_rings *rings;
    pthread_t writer;

    (void)state;
    NEED(kg_rings_create(&rings, 2, err));
    assert_int_equal(pthread_create(&writer, NULL, write_all, rings), 0);
    for (size_t at = 0, turn = 0; at < BYTES; turn++) {
        size_t n = part(at);

        (turn % 2 ? see_part : take_part)(bytes + at, rings, n);
        at += n;
    }
    pthread_join(writer, NULL);
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(bytes[i], letter(i));
    assert_false(kg_rings_has_bytes(rings, 0, 1));
    kg_rings_free(rings);
}

static size_t fill(struct kg_rings *rings, int from, int to)
{
    static const char bytes[1 << 20];
    size_t all = 0, n;

    while ((n = kg_rings_put(rings, from, to, bytes, sizeof bytes)) > 0)
        all += n;
    return all;
}

static void a_full_ring_takes_nothing_and_is_nobody_elses(void **state)
{
    static const int processes[] = {2, 5, KG_RINGS_MOST};
    struct kg_rings *rings;
    char byte;

    (void)state;
    for (int i = 0; i < 3; i++) {
        int n = processes[i];
        size_t room;

        NEED(kg_rings_create(&rings, n, err));
        room = fill(rings, 1, 0);
        assert_true(room >= 1 << 14 && room * (size_t)n * (size_t)n <= 1 << 26);
        assert_false(kg_rings_has_room(rings, 1, 0));
        assert_false(kg_rings_has_bytes(rings, 0, 1));
        assert_int_equal(fill(rings, n - 1, n - 2), n > 2 ? room : 0);
        assert_int_equal(kg_rings_take(rings, 1, 0, &byte, 1), 1);
        assert_true(kg_rings_has_room(rings, 1, 0));
        kg_rings_free(rings);
    }
}

static void who_sleeps_is_woken_once(void **state)
{
    struct kg_rings *rings;

    (void)state;
    NEED(kg_rings_create(&rings, 3, err));
    assert_false(kg_rings_must_wake(rings, 1));
    kg_rings_sleep(rings, 1, true);
    assert_false(kg_rings_must_wake(rings, 2));
    assert_true(kg_rings_must_wake(rings, 1));
    assert_false(kg_rings_must_wake(rings, 1));
    kg_rings_sleep(rings, 1, true);
    kg_rings_sleep(rings, 1, false);
    assert_false(kg_rings_must_wake(rings, 1));
    kg_rings_free(rings);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_come_in_order),
        cmocka_unit_test(a_full_ring_takes_nothing_and_is_nobody_elses),
        cmocka_unit_test(who_sleeps_is_woken_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
