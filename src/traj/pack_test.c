/* A trajectory sent from one process to another arrives unchanged: every array, every
 * bit. */
#include "traj/traj.h"

#include "base/mem.h"
#include "base/need_testing.h"

#include <string.h>

enum { K = 3, V = 100 };

static void push(struct kg_traj *t, int i)
{
    int32_t top[K] = {i, i + 1, i + 2};
    float top_logp[K] = {-0.1f * (float)i, -1, -2};
    uint64_t words[2] = {(uint64_t)i * 77 + 1, 3};
    uint8_t packed[V / 8 + 1];
    struct kg_traj_step step = {.token = i,
                                .logp = -0.3f * (float)i,
                                .top_ids = t->top_k ? top : NULL,
                                .top_logp = t->top_k ? top_logp : NULL};

    if (i % 2)
        step.kept = kg_idset_pack(packed, words, V);
    NEED(kg_traj_push(t, &step, err));
}

/* kind 0: no token; each further kind has more of the optional arrays */
static struct kg_traj make(int kind)
{
    struct kg_traj t = {.top_k = kind > 2 ? K : 0,
                        .choices = kind > 3 ? 2 : 0,
                        .reward = 0.1 * kind,
                        .draw = 7};
    const uint16_t experts[6] = {0, 5, 1, 4, 2, 3};
    const int32_t seen[] = {4, 5, 6};

    if (kind > 0)
        NEED(kg_traj_append(&t, seen, 3, KG_SOURCE_PROMPT, err));
    for (int i = 0; kind > 1 && i < 20; i++)
        push(&t, kind > 3 ? 2 * i + 1 : 2 * i);
    if (kind > 3)
        kg_traj_route(&t, 7, 3, experts);
    if (kind > 4)
        NEED(kg_traj_open_window(&t, 2, err));
    for (int64_t v = 3; kind > 4 && v < 6; v++)
        NEED(kg_traj_set_version(&t, 3 + 4 * (size_t)v, v, err));
    return t;
}

static void assert_same(const struct kg_traj *a, const struct kg_traj *b)
{
    struct kg_str x = {0}, y = {0};
    struct kg_traj_notes notes = {0};
    size_t at = 0, behind = 0;

    NEED(kg_traj_put_json(&x, a, &notes, err));
    NEED(kg_traj_put_json(&y, b, &notes, err));
    assert_string_equal(kg_str_text(&x), kg_str_text(&y));
    assert_int_equal(a->kept_total, b->kept_total);
    for (size_t j = 0; j < a->n; j++) {
        struct kg_idset p = kg_traj_kept(a, j, &at), q = kg_traj_kept(b, j, &behind);

        assert_int_equal(p.n, q.n);
        assert_int_equal(p.bytes, q.bytes);
        if (p.bytes > 0)
            assert_memory_equal(p.data, q.data, p.bytes);
    }
    for (size_t j = 0; j < a->n * (size_t)a->top_k; j++) {
        assert_int_equal(a->top_ids[j], b->top_ids[j]);
        assert_true(a->top_logp[j] == b->top_logp[j]);
    }
    kg_str_release(&x);
    kg_str_release(&y);
}

/* Compares the packed bytes, in which addresses do not occur. */
static void assert_same_bytes(const struct kg_traj *a, const struct kg_traj *b)
{
    struct kg_str x = {0}, y = {0};

    NEED(kg_traj_pack(&x, a, err));
    NEED(kg_traj_pack(&y, b, err));
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.data, y.data, x.len);
    kg_str_release(&x);
    kg_str_release(&y);
}

static void trajectories_arrive_as_they_left(void **state)
{
    struct kg_traj sent[6];
    struct kg_str bytes = {0};
    struct kg_traj_bytes from;

    (void)state;
    for (int i = 0; i < 6; i++) {
        sent[i] = make(i);
        NEED(kg_traj_pack(&bytes, &sent[i], err));
    }
    from = (struct kg_traj_bytes){bytes.data, bytes.len};
    for (int i = 0; i < 6; i++) {
        struct kg_traj t = {0};

        NEED(kg_traj_unpack(&t, &from, err));
        assert_same(&sent[i], &t);
        assert_same_bytes(&sent[i], &t);
        push(&t, 2); /* an unpacked trajectory can grow */
        push(&sent[i], 2);
        assert_same(&sent[i], &t);
        kg_traj_release(&t);
        kg_traj_release(&sent[i]);
    }
    assert_int_equal(from.left, 0);
    kg_str_release(&bytes);
}

static void bytes_that_end_early_are_refused(void **state)
{
    uint64_t before = kg_mem_current_bytes();
    struct kg_traj t = make(5);
    struct kg_str bytes = {0};

    (void)state;
    NEED(kg_traj_pack(&bytes, &t, err));
    for (size_t n = 0; n < bytes.len; n++) {
        struct kg_traj_bytes from = {bytes.data, n};
        struct kg_traj got = {0};
        struct kg_err e;

        assert_int_equal(kg_traj_unpack(&got, &from, &e), KG_EFORMAT);
        kg_traj_release(&got);
    }
    kg_str_release(&bytes);
    kg_traj_release(&t);
    assert_int_equal(kg_mem_current_bytes(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trajectories_arrive_as_they_left),
        cmocka_unit_test(bytes_that_end_early_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
