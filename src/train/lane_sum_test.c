/* The sum of lanes, against sums written out, for every number of lanes up to 64. */
#include "train/step/lane_sum.h"

#include "base/mem.h"
#include "base/need_testing.h"
#include "base/rng.h"

#include <string.h>

enum { MOST = 64, N = 40 };

static const struct kg_backend *be;

static int open_backend(void **state)
{
    (void)state;
    NEED(kg_backend_open(&be, NULL, err));
    return 0;
}

/* Values of widely different sizes, so that another order of addition gives other
 * bits. */
static float value(int lane, int i)
{
    const struct kg_rng_key key = {5, KG_RNG_INIT};
    double u = kg_rng_uniform(key, (uint64_t)lane, 0, (uint32_t)i) - 0.5;

    return (float)(u * (double)(1 << (lane * 7 + i) % 24));
}

static void fill(struct kg_slab *s, int lane)
{
    float host[N];

    for (int i = 0; i < N; i++)
        host[i] = value(lane, i);
    NEED(kg_slab_write(s, 0, host, N, err));
}

static float tree_sum(int from, int to, int i)
{
    int half = 1;

    if (to - from == 1)
        return value(from, i);
    while (half * 2 < to - from)
        half *= 2;
    return tree_sum(from, from + half, i) + tree_sum(from + half, to, i);
}

static int held(const struct kg_lane_sum *s)
{
    int n = s->n_spare;

    for (int level = 0; level < KG_TREE_LEVELS; level++)
        n += s->level[level].data != NULL;
    return n;
}

static void sum_lanes(struct kg_lane_sum *s, struct kg_slab *grads, int lanes)
{
    for (int l = 0; l < lanes; l++) {
        fill(grads, l);
        if (l + 1 < lanes)
            NEED(kg_lane_sum_push(s, grads, err));
        else
            NEED(kg_lane_sum_finish(s, grads, err));
    }
}

static void lanes_are_added_along_the_tree(void **state)
{
    (void)state;
    for (int lanes = 1; lanes <= MOST; lanes++) {
        struct kg_lane_sum s = {0};
        struct kg_slab grads;
        float host[N];
        int unlike = 0;

        NEED(kg_slab_init(&grads, be, N, "gradients", err));
        for (int again = 0; again < 2; again++) {
            sum_lanes(&s, &grads, lanes);
            NEED(kg_slab_read(host, &grads, 0, N, err));
            for (int i = 0; i < N; i++) {
                float plain = 0, sum = tree_sum(0, lanes, i);

                for (int l = 0; l < lanes; l++)
                    plain += value(l, i);
                unlike += memcmp(&plain, &sum, sizeof sum) != 0;
                assert_memory_equal(&host[i], &sum, sizeof sum);
            }
        }
        assert_true(lanes < 4 || unlike > 0);
        assert_int_equal(held(&s), kg_lane_sum_slabs(lanes, 1));
        kg_lane_sum_release(&s);
        kg_slab_release(&grads);
    }
}

/* Pushing a lane leaves the gradients zero; dropping leaves an empty sum. */
static void a_dropped_sum_is_forgotten(void **state)
{
    uint64_t before = kg_mem_current_bytes();
    struct kg_lane_sum s = {0};
    struct kg_slab grads;
    float host[N];

    (void)state;
    NEED(kg_slab_init(&grads, be, N, "gradients", err));
    for (int l = 0; l < 3; l++) {
        fill(&grads, l);
        NEED(kg_lane_sum_push(&s, &grads, err));
        NEED(kg_slab_read(host, &grads, 0, N, err));
        for (int i = 0; i < N; i++)
            assert_true(host[i] == 0);
    }
    kg_lane_sum_drop(&s);
    sum_lanes(&s, &grads, 2);
    NEED(kg_slab_read(host, &grads, 0, N, err));
    for (int i = 0; i < N; i++)
        assert_true(host[i] == value(0, i) + value(1, i));
    kg_lane_sum_release(&s);
    kg_slab_release(&grads);
    assert_int_equal(kg_mem_current_bytes(), before);
}

/* ---- an update by lanes ---- */

struct work {
    struct kg_slab *grads;
    int calls, fails_at; /* 0: never */
};

/* Adds 1 / (1 + index (i + 1)) of each sequence to element i: the order shows in the
 * bits. */
static kg_status add_sequences(void *context, const size_t *list, size_t n,
                               struct kg_err *e)
{
    struct work *w = context;
    float host[N];

    if (++w->calls == w->fails_at)
        return kg_fail(e, KG_ENONFINITE, "lane");
    NEED(kg_slab_read(host, w->grads, 0, N, err));
    for (size_t k = 0; k < n; k++)
        for (int i = 0; i < N; i++)
            host[i] += 1.0f / (float)(1 + list[k] * (size_t)(i + 1));
    NEED(kg_slab_write(w->grads, 0, host, N, err));
    return KG_OK;
}

static kg_status run_lanes(float *host, struct kg_lane_sum *s, struct kg_slab *grads,
                           int fails_at, struct kg_err *e)
{
    static const int64_t tokens[] = {9, 4, 0, 7, 7, 30, 1, 2, 2, 11};
    struct work w = {.grads = grads, .fails_at = fails_at};
    const struct kg_lane_job job = {.lanes = 5,
                                    .lengths = {.tokens = tokens},
                                    .n = 10,
                                    .work = add_sequences,
                                    .context = &w};

    struct kg_ranks alone = {0};

    KG_TRY(kg_lane_sum_run(s, grads, &job, &alone, e));
    return kg_slab_read(host, grads, 0, N, e);
}

/* Whichever lane fails, the next update has the bits of one without a failure before
 * it. */
static void an_update_that_is_given_up_leaves_nothing(void **state)
{
    uint64_t before = kg_mem_current_bytes();
    struct kg_lane_sum s = {0};
    struct kg_slab grads;
    float fresh[N], again[N];
    struct kg_err e;

    (void)state;
    NEED(kg_slab_init(&grads, be, N, "gradients", err));
    NEED(run_lanes(fresh, &s, &grads, 0, err));
    for (int lane = 1; lane <= 5; lane++) {
        assert_int_equal(run_lanes(again, &s, &grads, lane, &e), KG_ENONFINITE);
        NEED(run_lanes(again, &s, &grads, 0, err));
        assert_memory_equal(fresh, again, sizeof fresh);
    }
    kg_lane_sum_release(&s);
    for (uint64_t n = 1;; n++) {
        kg_status status;

        kg_mem_fail_at(n);
        status = run_lanes(again, &s, &grads, 0, &e);
        kg_mem_fail_at(0);
        if (status == KG_OK)
            break;
        assert_int_equal(status, KG_ENOMEM);
        assert_true(n < 20);
        NEED(run_lanes(again, &s, &grads, 0, err));
        assert_memory_equal(fresh, again, sizeof fresh);
        kg_lane_sum_release(&s);
    }
    kg_lane_sum_release(&s);
    kg_slab_release(&grads);
    assert_int_equal(kg_mem_current_bytes(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lanes_are_added_along_the_tree),
        cmocka_unit_test(a_dropped_sum_is_forgotten),
        cmocka_unit_test(an_update_that_is_given_up_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, open_backend, NULL);
}
