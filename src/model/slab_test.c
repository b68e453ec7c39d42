/* Slabs of lengths around a piece, copies between them and the host, and shards against
 * counting. */
#include "model/slab.h"

#include "base/mem.h"
#include "base/need_testing.h"
#include "tensor/backend_testing.h"

#include <string.h>

enum { PIECE = KG_SLAB_PIECE };
static const int64_t lengths[] = {1,         PIECE - 1, PIECE,
                                  PIECE + 1, 3 * PIECE, 5 * PIECE + 7};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

/* n different values. */
static struct kg_slab make(int64_t n, float sign)
{
    struct kg_slab s;
    NEED(kg_slab_init(&s, backend(), n, "test", err));
    for (int64_t i = 0; i < n; i++) {
        assert_true(s.data[i] == 0);
        s.data[i] = sign * (float)(i + 1);
    }
    return s;
}

static void test_whole_slabs_are_copied_swapped_added_and_zeroed(void **state)
{
    (void)state;
    for (int l = 0; l < LENGTHS; l++) {
        const int64_t n = lengths[l];
        struct kg_slab a = make(n, 1), b = make(n, -1), c = make(n, 3);
        NEED(kg_slab_swap(&a, &b, err));
        NEED(kg_slab_copy(&c, &a, err));
        NEED(kg_slab_add(&c, &a, err));
        for (int64_t i = 0; i < n; i++)
            assert_true(a.data[i] == -(float)(i + 1) && b.data[i] == (float)(i + 1) &&
                        c.data[i] == -2 * (float)(i + 1));
        NEED(kg_slab_zero(&a, err));
        for (int64_t i = 0; i < n; i++)
            assert_true(a.data[i] == 0 && b.data[i] != 0);
        kg_slab_release(&a);
        kg_slab_release(&b);
        kg_slab_release(&c);
        kg_slab_release(&c);
        assert_null(c.data);
    }
}

static void test_ranges_go_to_the_host_and_back(void **state)
{
    (void)state;
    struct kg_slab s = make(2 * PIECE, 1);
    char unaligned[4 * sizeof(float) + 1];
    NEED(kg_slab_read(unaligned + 1, &s, PIECE - 2, 4, err));
    NEED(kg_slab_write(&s, 0, unaligned + 1, 4, err));
    for (int64_t i = 0; i < 6; i++)
        assert_true(s.data[i] == (float)(i < 4 ? PIECE - 1 + i : i + 1));
    NEED(kg_slab_read(unaligned, &s, s.n, 0, err));
    kg_slab_release(&s);
}

static void test_what_does_not_fit_is_refused(void **state)
{
    (void)state;
    static const int64_t outside[][2] = {{-1, 2}, {0, 9}, {8, 1}, {9, 0}, {4, -1}};
    struct kg_slab s = make(8, 1), longer = make(9, 1), none = {0};
    struct kg_err why;
    float host[9] = {0};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        const int64_t first = outside[i][0], n = outside[i][1];
        assert_int_equal(kg_slab_read(host, &s, first, n, &why), KG_ESHAPE);
        assert_int_equal(kg_slab_write(&s, first, host, n, &why), KG_ESHAPE);
    }
    assert_int_equal(kg_slab_write(&none, 0, host, 1, &why), KG_ESHAPE);
    assert_int_equal(kg_slab_copy(&s, &longer, &why), KG_ESHAPE);
    assert_int_equal(kg_slab_copy(&longer, &s, &why), KG_ESHAPE);
    assert_int_equal(kg_slab_swap(&s, &none, &why), KG_ESHAPE);
    assert_int_equal(kg_slab_add(&s, &longer, &why), KG_ESHAPE);
    assert_true(s.data[0] == 1 && longer.data[8] == 9);
    kg_slab_release(&s);
    kg_slab_release(&longer);
}

static void test_a_hash_tells_every_value_from_another(void **state)
{
    (void)state;
    struct kg_slab s = make(2 * PIECE + 3, 1);
    uint64_t before, again, other;
    NEED(kg_slab_hash(&before, &s, err));
    NEED(kg_slab_hash(&again, &s, err));
    assert_true(before == again);
    for (int64_t i = 0; i < s.n; i += 4099) {
        const float kept = s.data[i];
        s.data[i] = -kept;
        NEED(kg_slab_hash(&other, &s, err));
        assert_true(other != before);
        s.data[i] = kept;
    }
    s.n--;
    NEED(kg_slab_hash(&other, &s, err));
    assert_true(other != before);
    s.n++;
    kg_slab_release(&s);
}

static void test_a_slab_that_finds_no_memory_has_none(void **state)
{
    (void)state;
    need_counted_memory();
    struct kg_slab s;
    struct kg_err why;
    kg_mem_fail_at(1);
    assert_int_equal(kg_slab_init(&s, backend(), 5, "moments", &why), KG_ENOMEM);
    kg_mem_fail_at(0);
    assert_non_null(strstr(why.message, "moments"));
    assert_true(!s.data && s.n == 0);
    kg_slab_release(&s);
}

/* ---- shards ---- */
static void check_cuts(int64_t n, int64_t parts)
{
    int64_t at = 0, least = INT64_MAX, most = 0;
    for (int64_t part = 0; part < parts; part++) {
        const struct kg_cut c = kg_cut_of(n, part, parts);
        const int64_t pieces = (c.n + PIECE - 1) / PIECE;
        assert_true(c.first == at && c.n >= 0);
        assert_true(c.n == 0 || c.first % PIECE == 0);
        at += c.n;
        assert_true(c.n % PIECE == 0 || at == n);
        least = pieces < least ? pieces : least;
        most = pieces > most ? pieces : most;
    }
    assert_true(at == n && most - least <= 1);
}

/* The part of a shard within a range; a view of a shard; and sums of pieces that add up
 * to the sum of the whole. */
static void test_a_cut_is_seen_as_a_slab(void **state)
{
    (void)state;
    const struct kg_cut cut = {PIECE, 2 * PIECE};
    static const int64_t ranges[][4] = {{0, PIECE, 0, 0},
                                        {0, PIECE + 1, PIECE, 1},
                                        {PIECE + 3, 5, PIECE + 3, 5},
                                        {0, 9 * PIECE, PIECE, 2 * PIECE},
                                        {3 * PIECE - 1, 7, 3 * PIECE - 1, 1},
                                        {3 * PIECE, 7, 0, 0},
                                        {PIECE, 0, 0, 0}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        const struct kg_cut c = kg_cut_within(cut, ranges[i][0], ranges[i][1]);
        assert_true(c.first == ranges[i][2] && c.n == ranges[i][3]);
    }
    struct kg_slab s = make(3 * PIECE + 5, 1);
    const struct kg_slab view = kg_slab_view(&s, (struct kg_cut){PIECE, 2 * PIECE + 5});
    double pieces[3], all = 0, sum = 0;
    assert_true(view.n == 2 * PIECE + 5 && view.data[0] == (float)(PIECE + 1));
    NEED(kg_slab_square_pieces(pieces, &view, NULL, err));
    NEED(kg_slab_sum_squares(&all, &view, NULL, err));
    for (int i = 0; i < 3; i++)
        sum += pieces[i];
    assert_true(sum == all && kg_slab_pieces(view.n) == 3);
    kg_slab_release(&s);
}

static void test_cuts_are_whole_pieces_and_cover_all_once(void **state)
{
    (void)state;
    for (int64_t pieces = 0; pieces < 20; pieces++)
        for (int64_t parts = 1; parts < 24; parts++)
            for (int64_t more = -1; more <= 1; more++)
                if (pieces * PIECE + more >= 0)
                    check_cuts(pieces * PIECE + more, parts);
    check_cuts(INT64_MAX / 64, 8); /* as many as a model may have */
}

/* The sum of squares of the whole equals the sum over the pieces of all shards, in
 * order. */
static void test_the_squares_of_pieces_are_those_of_the_whole(void **state)
{
    (void)state;
    struct kg_slab s = make(5 * PIECE + 7, 1);
    double whole, sum = 0, part;
    for (int64_t i = 0; i < s.n; i++)
        s.data[i] = 1 / s.data[i] + (float)(i % 13);
    const struct kg_vec none = {0};
    NEED(kg_op_sum_squares(s.backend, &whole, kg_slab_all(&s), none, err));
    for (int64_t p = 0; p < 3; p++) {
        const struct kg_cut c = kg_cut_of(s.n, p, 3);
        for (int64_t i = 0; i < c.n; i += PIECE) {
            NEED(kg_op_sum_squares(s.backend, &part,
                                   kg_slab_part(&s, c.first + i, kg_slab_piece(c.n, i)),
                                   none, err));
            sum += part;
        }
    }
    assert_true(sum == whole);
    kg_slab_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_slabs_are_copied_swapped_added_and_zeroed),
        cmocka_unit_test(test_ranges_go_to_the_host_and_back),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
        cmocka_unit_test(test_a_hash_tells_every_value_from_another),
        cmocka_unit_test(test_a_slab_that_finds_no_memory_has_none),
        cmocka_unit_test(test_cuts_are_whole_pieces_and_cover_all_once),
        cmocka_unit_test(test_a_cut_is_seen_as_a_slab),
        cmocka_unit_test(test_the_squares_of_pieces_are_those_of_the_whole),
    };
    return RUN_SHOWN(tests, NULL, NULL);
}
