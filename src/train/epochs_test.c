/* The order of examples: every epoch has each example once, and the example at a place
 * does not depend on where reading begins. */
#include "train/open/epochs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { EXAMPLES = 7, EPOCHS = 5, PLACES = EXAMPLES * EPOCHS };

static const struct kg_rng_key key = {3, KG_RNG_TEST};

static void take(uint32_t *index, size_t n, uint64_t first)
{
    struct kg_err err;

    assert_int_equal(kg_epochs_take(index, n, first, EXAMPLES, key, &err), KG_OK);
}

static void every_epoch_has_each_example_once(void **state)
{
    uint32_t index[PLACES];
    int same = 0;

    (void)state;
    take(index, PLACES, 0);
    for (int e = 0; e < EPOCHS; e++) {
        unsigned seen = 0;

        for (int i = 0; i < EXAMPLES; i++)
            seen |= 1u << index[e * EXAMPLES + i];
        assert_int_equal(seen, (1u << EXAMPLES) - 1);
        same += e > 0 &&
                memcmp(index, index + e * EXAMPLES, EXAMPLES * sizeof *index) == 0;
    }
    assert_true(same < EPOCHS - 1); /* epochs are shuffled separately */
}

static void a_place_does_not_depend_on_where_reading_begins(void **state)
{
    uint32_t whole[PLACES], part[PLACES];

    (void)state;
    take(whole, PLACES, 0);
    for (int first = 0; first < PLACES; first++) {
        take(part, (size_t)(PLACES - first), (uint64_t)first);
        assert_memory_equal(part, whole + first, (PLACES - first) * sizeof *part);
    }
}

/* ---- weighted parts ---- */

static const struct kg_epochs_part parts[] = {{7, 3}, {5, 1}, {40, 2}};
enum { PARTS = 3, ROUND = 6, ROUNDS = 50, MIXED = ROUND * ROUNDS };

static void mix(uint32_t *index, size_t n, uint64_t first)
{
    struct kg_err err;

    assert_int_equal(kg_epochs_mix(index, n, first, parts, PARTS, 3, &err), KG_OK);
}

static size_t part_of(uint32_t example) { return example < 7 ? 0 : example < 12 ? 1 : 2; }

static void every_round_has_each_part_as_often_as_it_weighs(void **state)
{
    uint32_t index[MIXED];
    int orders = 0;

    (void)state;
    mix(index, MIXED, 0);
    for (int r = 0; r < ROUNDS; r++) {
        uint32_t seen[PARTS] = {0};

        for (int i = 0; i < ROUND; i++) {
            seen[part_of(index[r * ROUND + i])]++;
            orders += r > 0 && part_of(index[r * ROUND + i]) != part_of(index[i]);
        }
        for (int k = 0; k < PARTS; k++)
            assert_int_equal(seen[k], parts[k].weight);
    }
    assert_true(orders > ROUNDS); /* each round shuffles its places */
}

/* The places of one part, read by themselves, are epochs of that part. */
static void each_part_goes_through_its_own_epochs(void **state)
{
    uint32_t index[MIXED];

    (void)state;
    mix(index, MIXED, 0);
    for (size_t k = 0; k < PARTS; k++) {
        int seen[64] = {0};
        size_t n = 0;

        for (int i = 0; i < MIXED; i++) {
            if (part_of(index[i]) != k)
                continue;
            assert_int_equal(seen[index[i]], n / parts[k].n);
            seen[index[i]]++;
            n++;
        }
        assert_int_equal(n, ROUNDS * parts[k].weight);
    }
}

static void a_weighed_place_does_not_depend_on_where_reading_begins(void **state)
{
    uint32_t whole[MIXED], part[MIXED];

    (void)state;
    mix(whole, MIXED, 0);
    for (int first = 0; first < MIXED; first += 7) {
        mix(part, (size_t)(MIXED - first), (uint64_t)first);
        assert_memory_equal(part, whole + first, (MIXED - first) * sizeof *part);
    }
}

static void a_single_part_is_the_row_without_weights(void **state)
{
    static const struct kg_epochs_part one = {EXAMPLES, 4};
    const struct kg_rng_key shuffle = {3, KG_RNG_SHUFFLE};
    uint32_t mixed[PLACES], plain[PLACES];
    struct kg_err err;

    (void)state;
    assert_int_equal(kg_epochs_mix(mixed, PLACES, 0, &one, 1, 3, &err), KG_OK);
    assert_int_equal(kg_epochs_take(plain, PLACES, 0, EXAMPLES, shuffle, &err), KG_OK);
    assert_memory_equal(mixed, plain, sizeof plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_epoch_has_each_example_once),
        cmocka_unit_test(a_place_does_not_depend_on_where_reading_begins),
        cmocka_unit_test(every_round_has_each_part_as_often_as_it_weighs),
        cmocka_unit_test(each_part_goes_through_its_own_epochs),
        cmocka_unit_test(a_weighed_place_does_not_depend_on_where_reading_begins),
        cmocka_unit_test(a_single_part_is_the_row_without_weights),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
