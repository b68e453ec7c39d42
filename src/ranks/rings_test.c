/* Rings: what was put comes out in order whatever the sizes of calls, a full ring takes
 * nothing, and who sleeps is woken by whoever moved something, once. */
#include "ranks/rings.h"

#include "base/need_testing.h"

#include <pthread.h>

enum { BYTES = 3 << 20 };

static char letter(size_t i) { return (char)(i * 31 % 251); }

static void *write_all(void *of)
{
    static char bytes[BYTES];
    size_t at = 0;

    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = letter(i);
    while (at < BYTES) {
        size_t most = 1 + at % 9973;

        at += kg_rings_put(of, 0, 1, bytes + at, most < BYTES - at ? most : BYTES - at);
    }
    return NULL;
}

static void bytes_come_in_order(void **state)
{
    static char bytes[BYTES];
    struct kg_rings *rings;
    pthread_t writer;

    (void)state;
    NEED(kg_rings_create(&rings, 2, err));
    assert_int_equal(pthread_create(&writer, NULL, write_all, rings), 0);
    for (size_t at = 0; at < BYTES;) {
        size_t most = 1 + at % 7919;

        at += kg_rings_take(rings, 0, 1, bytes + at,
                            most < BYTES - at ? most : BYTES - at);
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
