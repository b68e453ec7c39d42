/* Tests of the order of examples: every epoch has each once, and a place does not depend
 * on where one begins to read. */
#include "train/epochs.h"

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
    assert_true(same < EPOCHS - 1); /* epochs are shuffled apart */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_epoch_has_each_example_once),
        cmocka_unit_test(a_place_does_not_depend_on_where_reading_begins),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
