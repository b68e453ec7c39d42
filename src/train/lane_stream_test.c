/* Gradients by buckets over ranks, each a thread, against one process that has whole
 * gradients: every number of ranks and lanes; lanes of no, one and many packs; and a pack
 * that fails on one rank.
 */
#include "train/step/lane_sum.h"

#include "base/clock.h"
#include "base/mem.h"
#include "ranks/ranks_testing.h"
#include "tensor/selfcheck.h"
#include "train/failing_device_testing.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Buckets of different sizes, one of them empty; shards end inside buckets. */
enum { BUCKETS = 5, N = 3 * KG_SLAB_PIECE + 40, SEQUENCES = 14, BUDGET = 10 };
static const int64_t ends[BUCKETS] = {N, 70, 70, 33, 2};
static const int64_t tokens[SEQUENCES] = {9, 4, 0, 7, 7, 30, 1, 2, 2, 11, 5, 5, 6, 3};

static struct kg_cut cut_of(const void *of, int i)
{
    const int64_t first = i + 1 < BUCKETS ? ends[i + 1] : 0;

    (void)of;
    return (struct kg_cut){first, ends[i] - first};
}

/* ---- gradients of a pack ---- */

struct work {
    struct kg_ranks ranks;
    const struct kg_backend *backend;
    int lanes;
    int fails_at;       /* which call of this rank; 0: none */
    int transfer_fails; /* which transfer of its device; 0: none */
    int calls;
    struct kg_str said; /* sequences of packs, in lane order */
    size_t list[SEQUENCES];
    size_t n;
    struct kg_slab grads;
    struct kg_lane_sum sum;
    kg_status status;
    struct kg_err err;
    bool still_talks;
};

static kg_status call(struct work *w, struct kg_err *e)
{
    if (++w->calls != w->fails_at)
        return KG_OK;
    return kg_fail(e, KG_ENONFINITE, "a pack");
}

static void add(float *to, const struct work *w, int64_t first, int64_t n)
{
    for (size_t k = 0; k < w->n; k++)
        for (int64_t i = 0; i < n; i++)
            to[i] += (float)((first + i) % 1009 - 500) /
                     (float)(1 + w->list[k] * (size_t)((first + i) % 13 + 1));
}

static kg_status forward(bool *any, void *context, const size_t *list, size_t n,
                         bool begins, struct kg_err *e)
{
    struct work *w = context;

    (void)begins;
    memcpy(w->list, list, n * sizeof *list);
    w->n = n;
    *any = list[0] != 3; /* a pack without a gradient */
    KG_TRY(kg_str_append(&w->said, list, n * sizeof *list, e));
    return call(w, e);
}

static kg_status backward(void *context, struct kg_grads grads, int i, struct kg_err *e)
{
    struct work *w = context;

    assert_int_equal(grads.first, cut_of(NULL, i).first);
    KG_TRY(call(w, e));
    add(grads.data, w, grads.first, cut_of(NULL, i).n);
    return KG_OK;
}

/* The same gradients lane by lane, in packs, into the whole slab. */
static kg_status lane(void *context, const size_t *list, size_t n, struct kg_err *e)
{
    struct work *w = context;

    for (size_t i = 0, j; i < n; i = j) {
        int64_t sum = tokens[list[i]];
        bool any;

        for (j = i + 1; j < n && sum + tokens[list[j]] <= BUDGET; j++)
            sum += tokens[list[j]];
        KG_TRY(forward(&any, w, list + i, j - i, i == 0, e));
        if (any)
            add(w->grads.data, w, 0, N);
    }
    return KG_OK;
}

static struct kg_lane_job job_of(struct work *w, const struct kg_lane_stages *stages)
{
    return (struct kg_lane_job){.lanes = w->lanes,
                                .lengths = {.tokens = tokens, .budget = BUDGET},
                                .n = SEQUENCES,
                                .work = lane,
                                .context = w,
                                .said = &w->said,
                                .cut = true,
                                .stages = stages};
}

static const struct kg_lane_stages by_buckets = {
    .buckets = {.n = BUCKETS, .elements = N, .cut = cut_of},
    .forward = forward,
    .backward = backward};

/* ---- one update on every rank ---- */

static void take_grads(struct work *w)
{
    const int n = w->ranks.n > 1 ? w->ranks.n : 1;

    NEED(kg_slab_init(&w->grads, w->backend, kg_cut_of(N, w->ranks.me, n).n, "gradients",
                      err));
}

static void *update(void *of)
{
    struct work *w = of;
    const struct kg_lane_job job = job_of(w, &by_buckets);
    bool any = w->ranks.me == 1;
    struct kg_err e;

    kg_threads_set(1);
    transfers_left = w->transfer_fails;
    w->status = kg_lane_sum_run(&w->sum, &w->grads, &job, &w->ranks, &w->err);
    transfers_left = 0;
    kg_ranks_forgive(&w->ranks);
    w->still_talks = kg_ranks_any(&w->ranks, &any, "afterwards", &e) == KG_OK && any;
    return NULL;
}

static void release(struct work *w)
{
    kg_lane_sum_release(&w->sum);
    kg_slab_release(&w->grads);
    kg_str_release(&w->said);
}

/* Common to all ranks; `which`: the rank whose work or device fails. */
struct setting {
    const struct kg_backend *backend;
    int ranks, lanes;
    int which, fails_at, transfer_fails; /* 0: nothing does */
};

static void on_all(struct work *w, struct setting of)
{
    const int ranks = of.ranks;
    struct rank_sockets s;
    pthread_t thread[RANKS_MOST];

    ranks_join(&s, ranks);
    for (int p = 0; p < ranks; p++) {
        w[p] = (struct work){.backend = of.backend, .lanes = of.lanes};
        if (p == of.which) {
            w[p].fails_at = of.fails_at;
            w[p].transfer_fails = of.transfer_fails;
        }
        NEED(kg_ranks_on_sockets(&w[p].ranks, p, ranks, s.fd[p], s.rings, err));
        w[p].ranks.wait_s = 20;
        take_grads(&w[p]);
        assert_int_equal(pthread_create(&thread[p], NULL, update, &w[p]), 0);
    }
    for (int p = 0; p < ranks; p++)
        pthread_join(thread[p], NULL);
    ranks_part(&s, -1);
}

static void alone(struct work *w, int lanes)
{
    struct kg_lane_job job;

    *w = (struct work){.backend = cpu, .lanes = lanes};
    job = job_of(w, NULL);
    take_grads(w);
    NEED(kg_lane_sum_run(&w->sum, &w->grads, &job, &w->ranks, err));
}

/* ---- tests ---- */

/* Bound of the bytes that a rank sends: in every round its bucket to one rank or to all,
 * and stripes to the rank that continues the lane; at the end stripes to the owners of
 * shards. Agreements and terms are `small`. */
static void assert_sent(const struct work *w)
{
    const uint64_t ranks = (uint64_t)w->ranks.n, whole = N * sizeof(float);
    const uint64_t packs = w->said.len / sizeof(size_t); /* at most */
    const uint64_t rounds = (packs + (uint64_t)w->lanes + ranks - 1) / ranks;
    const uint64_t small = 8192 * ranks;

    assert_true(w->ranks.sent <=
                rounds * (whole + whole / ranks + small) + whole / ranks + small);
}

static void assert_cuts_of(struct work *w, const struct work *one)
{
    const int ranks = w[0].ranks.n;

    for (int p = 0; p < ranks; p++) {
        const struct kg_cut cut = kg_cut_of(N, p, ranks);

        assert_int_equal(w[p].status, KG_OK);
        assert_memory_equal(w[p].grads.data, one->grads.data + cut.first,
                            (size_t)cut.n * sizeof(float));
        assert_int_equal(w[p].said.len, one->said.len);
        assert_memory_equal(w[p].said.data, one->said.data, one->said.len);
        assert_sent(&w[p]);
        release(&w[p]);
    }
}

static void every_rank_has_its_cut_of_the_sum_of_one_process(void **state)
{
    static const int lanes[] = {1, 2, 3, 5, 8, 16};

    (void)state;
    for (size_t l = 0; l < sizeof lanes / sizeof *lanes; l++) {
        struct work one, w[RANKS_MOST];

        alone(&one, lanes[l]);
        for (int ranks = 2; ranks <= RANKS_MOST; ranks++) {
            on_all(w,
                   (struct setting){.backend = cpu, .ranks = ranks, .lanes = lanes[l]});
            assert_cuts_of(w, &one);
            on_all(w, (struct setting){
                          .backend = &device, .ranks = ranks, .lanes = lanes[l]});
            assert_cuts_of(w, &one);
        }
        release(&one);
    }
}

static void assert_held(const struct kg_backend *backend, int lanes)
{
    enum { RANKS = 3 };
    const uint64_t before = kg_mem_current_bytes();
    const struct kg_lane_stream_memory plan = kg_lane_stream_memory(
        &by_buckets.buckets, backend, lanes, RANKS, false);
    struct work w[RANKS];
    uint64_t beside = 0, held;

    on_all(w, (struct setting){.backend = backend, .ranks = RANKS, .lanes = lanes});
    for (int p = 0; p < RANKS; p++) {
        beside += (uint64_t)w[p].grads.n * sizeof(float) + w[p].said.capacity;
        /* of the rank's connection */
        beside += RANKS * (2 * sizeof(struct kg_ranks_part) + sizeof(int64_t));
        assert_true(w[p].sum.n_spare == 0);
    }
    held = kg_mem_current_bytes() - before - beside;
    assert_int_equal(held, RANKS * (plan.bucket + plan.stripes + plan.room));
    for (int p = 0; p < RANKS; p++)
        release(&w[p]);
    assert_int_equal(kg_mem_current_bytes(), before);
}

static void what_is_held_is_what_is_planned(void **state)
{
    static const int lanes[] = {1, 4, 7};

    (void)state;
    for (size_t l = 0; l < sizeof lanes / sizeof *lanes; l++) {
        assert_held(cpu, lanes[l]);
        assert_held(&device, lanes[l]);
    }
}

enum { FAILING = 3 }; /* ranks of a run in which one fails */

/* returns whether a failure was reported; false: none happened */
static bool fails_everywhere(struct setting of, kg_status code)
{
    struct work w[FAILING];
    char who[32];
    bool done;

    on_all(w, of);
    snprintf(who, sizeof who, "rank %d (", of.which);
    done = w[0].status == KG_OK;
    for (int p = 0; p < FAILING; p++) {
        assert_int_equal(w[p].status, done ? KG_OK : code);
        assert_true(done || strstr(w[p].err.message, who));
        assert_true(w[p].still_talks);
        release(&w[p]);
    }
    return !done;
}

/* Whichever call fails on whichever rank, all ranks fail and can communicate
 * afterwards. */
static void a_pack_that_fails_on_one_rank_fails_all(void **state)
{
    struct setting of = {.backend = cpu, .ranks = FAILING, .lanes = 2};
    int failures = 0;

    (void)state;
    for (of.which = 0; of.which < FAILING; of.which++)
        for (of.fails_at = 1; fails_everywhere(of, KG_ENONFINITE); of.fails_at++)
            failures++;
    assert_true(failures > 2 * BUCKETS);
}

/* As above, for whichever copy from or to a device. */
static void a_device_that_fails_on_one_rank_fails_all(void **state)
{
    struct setting of = {.backend = &device, .ranks = FAILING, .lanes = 2};
    int failures = 0;

    (void)state;
    for (of.which = 0; of.which < FAILING; of.which++)
        for (of.transfer_fails = 1; fails_everywhere(of, KG_EDEVICE); of.transfer_fails++)
            failures++;
    assert_true(failures > 4 * BUCKETS);
}

/* ---- memory ---- */

struct want {
    int which;   /* the rank that has no memory */
    uint64_t at; /* at this request */
};
enum { DONE, ALL_FAILED, AS_IF_NOTHING };

/* If the allocation belongs to a message, the rank can report nothing: the others find it
 * gone. */
static bool as_expected(const struct work *w, const struct want *want)
{
    char who[32];

    if (w->ranks.me == want->which)
        return w->err.code == KG_ENOMEM;
    snprintf(who, sizeof who, "rank %d (", want->which);
    return w->ranks.lost ? strstr(w->err.message, " is gone") != NULL
                         : w->err.code == KG_ENOMEM && strstr(w->err.message, who);
}

static int update_in_want(struct kg_ranks *r, void *user)
{
    const struct want *want = user;
    struct work w = {.ranks = *r, .backend = &device, .lanes = 5};
    const struct kg_lane_job job = job_of(&w, &by_buckets);

    w.ranks.wait_s = 20;
    take_grads(&w);
    kg_mem_fail_at(r->me == want->which ? want->at : 0);
    w.status = kg_lane_sum_run(&w.sum, &w.grads, &job, &w.ranks, &w.err);
    w.status = kg_ranks_agree(&w.ranks, w.status, "afterwards", &w.err);
    kg_mem_fail_at(0);
    if (w.status == KG_OK)
        return DONE;
    return as_expected(&w, want) ? ALL_FAILED : AS_IF_NOTHING;
}

/* Whichever allocation fails, on the first rank or another: all ranks fail and none waits
 * forever. */
static void a_request_for_memory_that_fails_on_one_rank_fails_all(void **state)
{
    enum { RANKS = 3 };

    (void)state;
    for (int which = 0; which < 2; which++) {
        struct want want = {which, 0};
        int status[RANKS] = {ALL_FAILED};

        while (status[0] != DONE) {
            want.at++;
            ranks_run(status, RANKS, update_in_want, &want);
            for (int p = 0; p < RANKS; p++)
                if (status[p] != status[0] || WEXITSTATUS(status[p]) == AS_IF_NOTHING)
                    fail_msg("rank %d without memory at request %d: rank %d ended by %d",
                             which, (int)want.at, p, status[p]);
        }
        print_message("  rank %d: %d requests\n", which, (int)want.at - 1);
        assert_true(want.at > 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_has_its_cut_of_the_sum_of_one_process),
        cmocka_unit_test(what_is_held_is_what_is_planned),
        cmocka_unit_test(a_pack_that_fails_on_one_rank_fails_all),
        cmocka_unit_test(a_device_that_fails_on_one_rank_fails_all),
        cmocka_unit_test(a_request_for_memory_that_fails_on_one_rank_fails_all),
    };
    return cmocka_run_group_tests(tests, open_device, NULL);
}
