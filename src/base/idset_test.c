/* Sets of ids: walking a packed set gives its ids, and it takes as few bytes as the
 * header says. */
#include "base/idset.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 151936 };
static uint64_t words[(MOST + 63) / 64];
static uint8_t packed[MOST / 8 + 1];

static bool has(int32_t id) { return words[id / 64] >> (id % 64) & 1; }

static void add(int32_t id) { words[id / 64] |= (uint64_t)1 << (id % 64); }

/* Packs the set and checks that a walk gives each id in order.   returns the bytes of the
 * packed set */
static uint32_t check(int32_t bound)
{
    struct kg_idset s;
    struct kg_idset_walk w;
    int32_t n = 0;

    memset(packed, 0xa5, sizeof packed);
    s = kg_idset_pack(packed, words, bound);
    assert_true(s.bytes <= kg_idset_most(bound));
    assert_int_equal(packed[s.bytes], 0xa5); /* nothing is written past the end */
    if (s.n > 0)
        kg_idset_begin(&w, &s);
    for (int32_t id = 0; id < bound && s.n > 0; id++) {
        if (!has(id))
            continue;
        assert_int_equal(w.id, id);
        kg_idset_next(&w, &s);
        n++;
    }
    assert_int_equal(s.n, n);
    if (s.n > 0) {
        assert_int_equal(w.id, bound);
        kg_idset_next(&w, &s); /* the walk stays at its end */
        assert_int_equal(w.id, bound);
    }
    memset(words, 0, sizeof words);
    return s.bytes;
}

static void what_is_packed_is_walked(void **state)
{
    static const int32_t bounds[] = {1, 7, 8, 9, 40, 63, 64, 65, 300, 3000, MOST};
    struct kg_rng_key key = {.seed = 3};

    (void)state;
    for (size_t b = 0; b < sizeof bounds / sizeof *bounds; b++)
        for (uint32_t i = 0; i < 40; i++) {
            double share = kg_rng_uniform(key, b, i, 0);

            share = i < 2 ? (double)i : share * share * share;
            for (int32_t id = 0; id < bounds[b]; id++)
                if (kg_rng_uniform(key, b, i, (uint32_t)id + 1) < share)
                    add(id);
            check(bounds[b]);
        }
}

/* The first, the last and the most distant ids. */
static void the_ends_are_ids_too(void **state)
{
    (void)state;
    add(0);
    assert_int_equal(check(MOST), 1);
    add(MOST - 1);
    assert_int_equal(check(MOST), 3);
    add(127), add(128), add(128 + 128);
    assert_int_equal(check(MOST), 3);
    add(128);
    assert_int_equal(check(MOST), 2);
    add(2), add(5);
    assert_int_equal(check(8), 1);
}

/* n ids, spread evenly over a vocabulary of usual size */
static uint32_t bytes_of(int32_t n)
{
    for (int64_t i = 0; i < n; i++)
        add((int32_t)(i * MOST / n));
    return check(MOST);
}

static void bytes_grow_with_the_ids_up_to_the_bitmap(void **state)
{
    (void)state;
    assert_int_equal(bytes_of(1), 1);
    assert_int_equal(bytes_of(30), 29 * 2 + 1);
    assert_int_equal(bytes_of(1000), 999 * 2 + 1);
    assert_int_equal(bytes_of(5000), 4999 + 1);
    assert_int_equal(bytes_of(50000), MOST / 8);
    assert_int_equal(bytes_of(142399), MOST / 8);
}

/* The list is used while it is shorter than the bitmap: 5 ids below 40 take 5 bytes
 * either way. */
static void the_shorter_of_the_two_is_taken(void **state)
{
    (void)state;
    add(3);
    assert_int_equal(check(40), 1);
    add(0), add(3), add(7), add(39);
    assert_int_equal(check(40), 4);
    add(0), add(3), add(7), add(38), add(39);
    assert_int_equal(check(40), 5);
    add(200);
    assert_int_equal(check(300), 2); /* a difference of two bytes */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_packed_is_walked),
        cmocka_unit_test(the_ends_are_ids_too),
        cmocka_unit_test(the_shorter_of_the_two_is_taken),
        cmocka_unit_test(bytes_grow_with_the_ids_up_to_the_bitmap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
