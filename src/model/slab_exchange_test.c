/* Ranges of slabs on devices or on the host, which NCCL moves between ranks: they arrive
 * in the right place, in the expected number of bytes, and a call that fails on one rank
 * fails on all.
 */
#include "model/slab_exchange.h"

#include "base/clock.h"
#include "base/folder_testing.h"
#include "emu/nccl_testing.h"
#include "ranks/message.h"
#include "ranks/ranks_testing.h"
#include "tensor/selfcheck.h"

#include <string.h>

/* Rank 0 sends more than a piece to rank 1, rank 1 sends LITTLE to rank 2; nothing else
 * is sent. */
enum { N = KG_SLAB_SENT + 70, LITTLE = 30, AT = 10 };

static float value(int rank, int64_t i) { return (float)(rank * 1000 + i % 997); }

struct asked {
    const char *folder;
    const char *fails; /* value of FAKE_NCCL; NULL: no failure */
    bool from_host, to_host;
};

struct slabs {
    struct kg_slab from, to;
    float *values; /* (N) */
};

static kg_status take(struct slabs *s, const struct kg_ranks *r, const struct asked *a,
                      const struct kg_backend *far, struct kg_err *e)
{
    const struct kg_backend *host = kg_backend_cpu_variant(0);

    KG_TRY(kg_slab_init(&s->from, a->from_host ? host : far, N, "test", e));
    KG_TRY(kg_slab_init(&s->to, a->to_host ? host : far, N, "test", e));
    s->values = calloc(N, sizeof *s->values);
    for (int64_t i = 0; i < N; i++)
        s->values[i] = value(r->me, i);
    return kg_slab_write(&s->from, 0, s->values, N, e);
}

static kg_status exchange(struct slabs *s, struct kg_ranks *r,
                          const struct kg_backend *far, struct kg_err *e)
{
    struct kg_slab_stretch out[RANKS_MOST] = {{0}}, in[RANKS_MOST] = {{0}};
    struct kg_slab_wire wire;
    kg_status status = kg_slab_wire_open(&wire, r, far, e);

    if (status != KG_OK || !wire.direct)
        _exit(10);
    if (r->me == 0)
        out[1] = (struct kg_slab_stretch){&s->from, 0, N};
    if (r->me == 1) {
        in[0] = (struct kg_slab_stretch){&s->to, 0, N};
        out[2] = (struct kg_slab_stretch){&s->from, AT, LITTLE};
    }
    if (r->me == 2)
        in[1] = (struct kg_slab_stretch){&s->to, 0, LITTLE};
    status = kg_slab_exchange(&wire, out, in, "weights", e);
    if (status == KG_OK && wire.failed.code != KG_OK)
        _exit(11);
    kg_slab_wire_close(&wire);
    return status;
}

/* Whether this rank has exactly what was sent to it. */
static bool came(const struct slabs *s, const struct kg_ranks *r)
{
    const int64_t n = r->me == 1 ? N : r->me == 2 ? LITTLE : 0;
    const int64_t at = r->me == 2 ? AT : 0;
    struct kg_err e;

    if (kg_slab_read(s->values, &s->to, 0, N, &e) != KG_OK)
        return false;
    for (int64_t i = 0; i < N; i++)
        if (s->values[i] != (i < n ? value(r->me - 1, at + i) : 0))
            return false;
    return true;
}

/* Bytes that a rank sends: its range; and to each other rank, an agreement before and
 * after each of two pieces, and the length of the longest range. */
static uint64_t foretold(const struct kg_ranks *r)
{
    static const uint64_t own[] = {N, LITTLE, 0};
    const uint64_t others = (uint64_t)r->n - 1;

    return own[r->me] * sizeof(float) + others * (4 * sizeof(struct kg_ranks_word) + 8);
}

static int as_rank(struct kg_ranks *r, void *user)
{
    const struct asked *a = user;
    const struct kg_backend *far;
    struct slabs s = {.values = NULL};
    struct kg_err e = {0};
    kg_status status;
    uint64_t before;

    if (a->fails)
        setenv("FAKE_NCCL", a->fails, true);
    if (kg_backend_open(&far, "far", &e) != KG_OK ||
        kg_ranks_nccl_open(r, far, a->folder, &e) != KG_OK || take(&s, r, a, far, &e))
        return 2;
    before = r->sent;
    status = exchange(&s, r, far, &e);
    if (a->fails ? status != KG_EDEVICE || !strstr(e.message, "weights: nccl 2.28.9: ")
                 : status != KG_OK)
        return 3;
    if (!a->fails && r->sent - before != foretold(r))
        return 4;
    if (!a->fails && !came(&s, r))
        return 5;
    kg_ranks_forgive(r);
    status = kg_ranks_agree(r, KG_OK, "afterwards", &e);
    kg_slab_release(&s.from);
    kg_slab_release(&s.to);
    free(s.values);
    kg_ranks_close(r);
    return status != KG_OK;
}

static void all_end_well(struct asked a)
{
    ranks_end_well(3, as_rank, &a, a.fails ? a.fails : "nothing fails");
}

static void stretches_come_wherever_they_lie(void **state)
{
    (void)state;
    make_good_nccl(in_dir("there"));
    for (int i = 0; i < 4; i++)
        all_end_well((struct asked){
            .folder = in_dir("there"), .from_host = i & 1, .to_host = i & 2});
}

/* Ranks that send or receive nothing fail, too. */
static void all_hear_of_a_call_that_fails_on_one(void **state)
{
    (void)state;
    make_good_nccl(in_dir("there"));
    for (size_t i = 0; i < NCCL_FAILURES; i++)
        all_end_well(
            (struct asked){.folder = in_dir("there"), .fails = nccl_failures[i]});
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(stretches_come_wherever_they_lie),
        IN_FOLDER(all_hear_of_a_call_that_fails_on_one),
    };

    kg_threads_set(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
