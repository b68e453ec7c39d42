/* Exchanges of ranks over shared memory; each rank is a thread. */
#include "ranks/ranks.h"
#include "ranks/ranks_testing.h"

#include "base/clock.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 4, LARGE = 3 << 20 };

static struct rank_sockets sockets;

static int join(void **state)
{
    (void)state;
    ranks_join(&sockets, RANKS);
    return 0;
}

static int part(void **state)
{
    (void)state;
    ranks_part(&sockets, -1);
    return 0;
}

struct rank {
    struct kg_ranks ranks;
    void (*work)(struct kg_ranks *r);
};

static void *run(void *rank)
{
    struct rank *x = rank;

    x->work(&x->ranks);
    return NULL;
}

static void on_all(void (*work)(struct kg_ranks *r))
{
    struct rank x[RANKS];
    pthread_t thread[RANKS];

    for (int p = 0; p < RANKS; p++) {
        x[p].work = work;
        NEED(kg_ranks_on_sockets(&x[p].ranks, p, RANKS, sockets.fd[p], sockets.rings,
                                 err));
        x[p].ranks.wait_s = 0.4;
        assert_int_equal(pthread_create(&thread[p], NULL, run, &x[p]), 0);
    }
    for (int p = 0; p < RANKS; p++)
        pthread_join(thread[p], NULL);
    for (int p = 0; p < RANKS; p++)
        kg_ranks_close(&x[p].ranks);
}

/* ---- what arrives ---- */

static char letter(int from, int to, size_t i)
{
    return (char)('a' + ((size_t)(from * 7 + to * 3) + i) % 23);
}

static size_t size(int from, int to) { return (size_t)(from + to) * LARGE / (2 * RANKS); }

static void exchange(struct kg_ranks *r)
{
    struct kg_ranks_part out[RANKS], in[RANKS];
    char *bytes = calloc(2 * RANKS, LARGE);

    for (int p = 0; p < RANKS; p++) {
        out[p] = (struct kg_ranks_part){bytes + p * LARGE, size(r->me, p)};
        in[p] = (struct kg_ranks_part){bytes + (RANKS + p) * LARGE, size(p, r->me)};
        for (size_t i = 0; i < out[p].n; i++)
            ((char *)out[p].data)[i] = letter(r->me, p, i);
    }
    NEED(kg_ranks_exchange(r, out, in, "test", err));
    for (int p = 0; p < RANKS; p++)
        for (size_t i = 0; i < in[p].n; i++)
            assert_int_equal(((char *)in[p].data)[i], letter(p, r->me, i));
    free(bytes);
}

static void what_is_sent_arrives(void **state)
{
    (void)state;
    on_all(exchange);
}

/* Where copy_lent collects the lent bytes, LARGE for each rank. */
struct loan {
    char *bytes; /* (ranks, LARGE) */
    int ranks;
    int calls;
};

static void copy_lent(void *context, void *const *lent, size_t at, size_t n)
{
    struct loan *l = context;

    for (int p = 0; p < l->ranks; p++) {
        if (!lent[p])
            continue;
        assert_int_equal((uintptr_t)lent[p] % 64, 0);
        memcpy(l->bytes + (size_t)p * LARGE + at, lent[p], n);
        memset(lent[p], 0, n);
    }
    l->calls++;
}

/* Each rank receives me * 300001 bytes from every other rank; rank 0 receives none. */
static void lend_to_all(struct kg_ranks *r)
{
    const size_t mine = (size_t)r->me * 300001;
    struct kg_ranks_part out[RANKS];
    struct loan loan = {calloc(RANKS, LARGE), r->n, 0};
    const struct kg_ranks_user user = {copy_lent, &loan};
    char *sent = calloc(RANKS, LARGE);

    assert_true(kg_ranks_lends(r));
    for (int p = 0; p < r->n; p++) {
        out[p] = (struct kg_ranks_part){sent + p * LARGE,
                                        p == r->me ? 0 : (size_t)p * 300001};
        for (size_t i = 0; i < out[p].n; i++)
            ((char *)out[p].data)[i] = letter(r->me, p, i);
    }
    NEED(kg_ranks_lend(r, out, mine, &user, "test", err));
    assert_true(loan.calls > 1 || r->me == 0);
    for (int p = 0; p < r->n; p++)
        for (size_t i = 0; i < mine && p != r->me; i++)
            assert_int_equal(loan.bytes[(size_t)p * LARGE + i], letter(p, r->me, i));
    free(sent);
    free(loan.bytes);
}

/* Lending works after ordinary messages of any size, among all ranks and among ranks 1 to
 * 3 alone. */
static void lend(struct kg_ranks *r)
{
    struct kg_ranks part;
    bool any = false;

    r->wait_s = 20; /* bytes are compared one by one, which is slow */
    NEED(kg_ranks_any(r, &any, "test", err));
    lend_to_all(r);
    NEED(kg_ranks_any(r, &any, "test", err));
    kg_ranks_split(&part, r, r->me > 0 ? 1 : 0, r->me > 0 ? RANKS - 1 : 1);
    if (r->me > 0)
        lend_to_all(&part);
    exchange(r);
}

static void what_is_sent_can_be_used_where_it_lies(void **state)
{
    (void)state;
    on_all(lend);
}

static void gather(struct kg_ranks *r)
{
    struct kg_str own = {0};
    struct kg_ranks_bytes all = {0};
    size_t at = 0;
    int shared = r->me == 0 ? 42 : 0;
    bool any = r->me == 2, none = false;

    for (int i = 0; i < r->me; i++)
        NEED(kg_str_putc(&own, (char)('0' + r->me), err));
    NEED(kg_ranks_bytes_gather(&all, &own, r, "test", err));
    for (int p = 0; p < RANKS; p++) {
        for (int i = 0; i < p; i++)
            assert_int_equal(all.bytes[at++], '0' + p);
        assert_int_equal(all.ends[p], at);
    }
    NEED(kg_ranks_share(r, &shared, sizeof shared, "test", err));
    assert_int_equal(shared, 42);
    NEED(kg_ranks_any(r, &any, "test", err));
    NEED(kg_ranks_any(r, &none, "test", err));
    assert_true(any && !none);
    kg_ranks_bytes_release(&all);
    kg_str_release(&own);
}

static void all_have_what_each_has(void **state)
{
    (void)state;
    on_all(gather);
}

/* ---- failures ---- */

static void fail_two(struct kg_ranks *r)
{
    struct kg_err e = {0};
    kg_status status = KG_OK;

    NEED(kg_ranks_agree(r, KG_OK, "test", err));
    if (r->me == 1 || r->me == 3)
        status = kg_fail(&e, r->me == 1 ? KG_ENOSPACE : KG_EIO, "of %d", r->me);
    status = kg_ranks_agree(r, status, "test", &e);
    assert_int_equal(status, KG_ENOSPACE);
    assert_non_null(strstr(e.message, "rank 1 ("));
    assert_non_null(strstr(e.message, "of 1"));
    /* the status is already agreed, so this one exchanges nothing */
    assert_int_equal(kg_ranks_agree(r, status, "test", &e), KG_ENOSPACE);
    kg_ranks_forgive(r);
    status = r->me == 3 ? kg_fail(&e, KG_EIO, "again") : KG_OK;
    assert_int_equal(kg_ranks_agree(r, status, "test", &e), KG_EIO);
}

static void all_fail_with_the_lowest_that_fails(void **state)
{
    (void)state;
    on_all(fail_two);
}

static void stay_away(struct kg_ranks *r)
{
    struct kg_err e;

    if (r->me == 2)
        return;
    assert_int_equal(kg_ranks_agree(r, KG_OK, "a step", &e), KG_ETIMEOUT);
    assert_non_null(strstr(e.message, "a step"));
    assert_non_null(strstr(e.message, "nothing from rank 2"));
    assert_int_equal(kg_ranks_agree(r, KG_OK, "another", &e), KG_ETIMEOUT);
    assert_non_null(strstr(e.message, "a step")); /* at once, naming the first wait */
}

static void a_rank_that_says_nothing_is_named(void **state)
{
    (void)state;
    on_all(stay_away);
}

/* Parts of three ranks and of one: messages of a part stay inside it, errors name a rank
 * by its number in the whole, and a failure in a part reaches all ranks at the next
 * agreement of the whole. */
static void speak_in_parts(struct kg_ranks *r)
{
    struct kg_ranks part;
    struct kg_err e = {0};
    int all[RANKS] = {0};
    kg_status status = KG_OK;

    kg_ranks_split(&part, r, r->me > 0 ? 1 : 0, r->me > 0 ? RANKS - 1 : 1);
    assert_int_equal(part.me, r->me > 0 ? r->me - 1 : 0);
    all[part.me] = 10 + r->me;
    NEED(kg_ranks_gather_equal(&part, all, sizeof *all, "test", err));
    for (int p = 0; p < part.n; p++)
        assert_int_equal(all[p], 10 + part.first + p);
    if (r->me == 2)
        status = kg_fail(&e, KG_ENOSPACE, "the disk is full");
    status = kg_ranks_agree(&part, status, "test", &e);
    assert_int_equal(status, r->me > 0 ? KG_ENOSPACE : KG_OK);
    assert_int_equal(kg_ranks_agree(r, status, "test", &e), KG_ENOSPACE);
    assert_true(strncmp(e.message, "rank 2 (", 8) == 0);
    assert_null(strstr(e.message + 1, "rank"));
    kg_ranks_forgive(&part);
    kg_ranks_forgive(r);
    status = r->me == 3 ? kg_fail(&e, KG_EIO, "again") : KG_OK;
    assert_int_equal(kg_ranks_agree(r, status, "test", &e), KG_EIO);
    assert_true(strncmp(e.message, "rank 3 (", 8) == 0);
}

static void a_part_speaks_by_itself(void **state)
{
    (void)state;
    on_all(speak_in_parts);
}

/* A rank that fails in a part without being able to tell it must not speak to the whole
 * either: the others are left waiting and see it as lost. */
static void a_part_without_memory_is_lost_to_the_whole(void **state)
{
    struct kg_ranks whole = {.n = RANKS}, part;
    struct kg_err e = {0};

    (void)state;
    kg_ranks_split(&part, &whole, 0, 2);
    kg_mem_fail_at(1);
    assert_int_equal(kg_ranks_agree(&part, KG_OK, "test", &e), KG_ENOMEM);
    kg_mem_fail_at(0);
    assert_true(part.lost && whole.lost);
    assert_int_equal(kg_ranks_agree(&whole, KG_OK, "test", &e), KG_ENOMEM);
}

/* A rank that arrives late has no waiting time itself, and the waiting time of a part
 * counts for the whole. */
static void come_late(struct kg_ranks *r)
{
    struct kg_ranks part;
    int all[RANKS] = {0};

    r->wait_s = 20;
    kg_ranks_split(&part, r, r->me > 1 ? 2 : 0, 2);
    if (r->me == 2)
        usleep(400000);
    NEED(kg_ranks_agree(&part, KG_OK, "test", err));
    if (r->me < 2)
        assert_true(r->clock.waiting < 0.2);
    NEED(kg_ranks_agree(r, KG_OK, "test", err));
    assert_true(r->me == 2 ? r->clock.waiting < 0.2 : r->clock.waiting > 0.2);
    assert_true(r->clock.exchange == 0);
    NEED(kg_ranks_gather_equal(r, all, sizeof *all, "test", err));
    assert_true(r->clock.exchange > 0);
}

static void who_waits_for_whom_is_counted(void **state)
{
    (void)state;
    on_all(come_late);
}

/* Sends a byte from one rank to another.   returns seconds that this took here */
static double hand_over(struct kg_ranks *r, int from, int to)
{
    struct kg_ranks_part out[RANKS] = {{0}}, in[RANKS] = {{0}};
    double since = kg_clock_seconds();
    char byte = 0;

    if (r->me == from)
        out[to] = (struct kg_ranks_part){&byte, 1};
    if (r->me == to)
        in[from] = (struct kg_ranks_part){&byte, 1};
    NEED(kg_ranks_exchange(r, out, in, "test", err));
    return kg_clock_seconds() - since;
}

enum { ROUNDS = 11 };
static int slow; /* rounds in which rank 0 waited more than 50 ms */

/* Rank 0 is asleep when rank 1 sends. A rank that is not woken only looks again after 100
 * ms. */
static void send_to_a_sleeper(struct kg_ranks *r)
{
    r->wait_s = 20;
    for (int i = 0; i < ROUNDS && r->me < 2; i++) {
        if (r->me == 1)
            usleep(2000);
        if (hand_over(r, 1, 0) > 0.05 && r->me == 0)
            slow++;
        (void)hand_over(r, 0, 1); /* both wait here, so no round overlaps the next */
    }
}

static void who_sleeps_is_woken(void **state)
{
    (void)state;
    slow = 0;
    on_all(send_to_a_sleeper);
    assert_in_range(slow, 0, ROUNDS / 2); /* half: the core may be busy */
}

static void collect(struct kg_ranks *r)
{
    struct kg_str own = {0};
    struct kg_ranks_bytes all = {0};

    for (int i = 0; i < r->me; i++)
        NEED(kg_str_putc(&own, (char)('0' + r->me), err));
    NEED(kg_ranks_bytes_collect(&all, &own, r, "test", err));
    assert_int_equal(all.ends[RANKS - 1], 6);
    if (r->me == 0)
        assert_memory_equal(all.bytes, "122333", 6);
    else
        assert_null(all.bytes);
    kg_ranks_bytes_release(&all);
    kg_str_release(&own);
}

static void the_first_has_what_each_said(void **state)
{
    (void)state;
    on_all(collect);
}

static struct kg_ranks_loss loss;

/* Rank 3 is gone. Only rank 1 waits for it, and leaves when it finds out; the others wait
 * for rank 1 and still name rank 3. */
static void wait_in_a_row(struct kg_ranks *r)
{
    struct kg_ranks_part out[RANKS] = {{0}}, in[RANKS] = {{0}};
    struct kg_err e;
    char byte;

    r->loss = &loss;
    if (r->me != 3) {
        in[r->me == 1 ? 3 : 1] = (struct kg_ranks_part){&byte, 1};
        assert_int_equal(kg_ranks_exchange(r, out, in, "a step", &e), KG_EIO);
        assert_non_null(strstr(e.message, "rank 3 is gone"));
    }
    if (r->me == 3 || r->me == 1)
        for (int p = 0; p < RANKS; p++)
            if (p != r->me)
                shutdown(sockets.fd[r->me][p], SHUT_RDWR);
}

static void the_first_that_was_lost_is_blamed_by_all(void **state)
{
    (void)state;
    loss = (struct kg_ranks_loss){0};
    on_all(wait_in_a_row);
    assert_int_equal(atomic_load(&loss.who), 4);
    assert_int_equal(atomic_load(&loss.by), 0); /* the finder stays silent */
}

/* Rank 3 is silent. Rank 2 waits for it, 1 for 2, and 0 for 1; the timeout of rank 0
 * expires first. */
static void wait_in_silence(struct kg_ranks *r)
{
    struct kg_ranks_part out[RANKS] = {{0}}, in[RANKS] = {{0}};
    struct kg_err e;
    char byte;

    r->loss = &loss;
    r->wait_s = r->me == 0 ? 0.6 : 20;
    if (r->me == 3)
        return;
    in[r->me + 1] = (struct kg_ranks_part){&byte, 1};
    assert_int_equal(kg_ranks_exchange(r, out, in, "a step", &e), KG_ETIMEOUT);
    assert_non_null(strstr(e.message, "nothing from rank 3 for"));
}

static void who_waits_for_the_silent_is_not_blamed(void **state)
{
    (void)state;
    loss = (struct kg_ranks_loss){0};
    on_all(wait_in_silence);
    assert_int_equal(atomic_load(&loss.who), -4);
    assert_int_equal(atomic_load(&loss.by), 0);
}

static void send_to_two(struct kg_ranks *r)
{
    struct kg_ranks_part out[RANKS] = {{0}}, in[RANKS] = {{0}};
    char *bytes = calloc(1, LARGE);
    struct kg_err e;

    out[2] = (struct kg_ranks_part){bytes, LARGE};
    if (r->me != 2) {
        assert_int_equal(kg_ranks_exchange(r, out, in, "a step", &e), KG_ETIMEOUT);
        assert_non_null(strstr(e.message, "nothing accepted by rank 2 for"));
    }
    free(bytes);
}

static void a_rank_that_takes_nothing_is_named(void **state)
{
    (void)state;
    on_all(send_to_two);
}

/* Rank 1 sends what it owes and leaves; rank 3 is silent. The bytes of rank 1 are not
 * lent until those of rank 3 are there, so the timeout must blame rank 3. */
static void wait_for_the_last(struct kg_ranks *r)
{
    struct kg_ranks_part out[RANKS] = {{0}};
    struct loan loan = {calloc(RANKS, LARGE), RANKS, 0};
    const struct kg_ranks_user user = {copy_lent, &loan};
    char bytes[256] = "";
    struct kg_err e;

    r->loss = &loss;
    r->wait_s = 2;
    for (int p = 0; p < RANKS; p += 2)
        out[p] = (struct kg_ranks_part){bytes, p == r->me ? 0 : sizeof bytes};
    if (r->me == 1) {
        NEED(kg_ranks_lend(r, out, 0, &user, "a step", err));
        for (int p = 0; p < RANKS; p++)
            if (p != r->me)
                shutdown(sockets.fd[r->me][p], SHUT_RDWR);
    } else if (r->me != 3) {
        assert_int_equal(kg_ranks_lend(r, out, sizeof bytes, &user, "a step", &e),
                         KG_ETIMEOUT);
        assert_non_null(strstr(e.message, "nothing from rank 3 for"));
        assert_int_equal(loan.calls, 0);
    }
    free(loan.bytes);
}

static void whose_bytes_are_there_is_not_blamed(void **state)
{
    (void)state;
    loss = (struct kg_ranks_loss){0};
    on_all(wait_for_the_last);
    assert_int_equal(atomic_load(&loss.who), -4);
}

static void alone_nothing_is_exchanged(void **state)
{
    struct kg_ranks r = {0};
    struct kg_err e;
    bool any = false;
    int x = 7;

    (void)state;
    NEED(kg_ranks_agree(&r, KG_OK, "test", err));
    assert_int_equal(kg_ranks_agree(&r, kg_fail(&e, KG_EIO, "own"), "test", &e), KG_EIO);
    assert_string_equal(e.message, "own");
    NEED(kg_ranks_any(&r, &any, "test", err));
    NEED(kg_ranks_share(&r, &x, sizeof x, "test", err));
    assert_true(!any && x == 7);
    kg_ranks_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_sent_arrives, join, part),
        cmocka_unit_test_setup_teardown(what_is_sent_can_be_used_where_it_lies, join,
                                        part),
        cmocka_unit_test_setup_teardown(all_have_what_each_has, join, part),
        cmocka_unit_test_setup_teardown(all_fail_with_the_lowest_that_fails, join, part),
        cmocka_unit_test_setup_teardown(a_rank_that_says_nothing_is_named, join, part),
        cmocka_unit_test_setup_teardown(a_part_speaks_by_itself, join, part),
        cmocka_unit_test_setup_teardown(who_waits_for_whom_is_counted, join, part),
        cmocka_unit_test_setup_teardown(who_sleeps_is_woken, join, part),
        cmocka_unit_test_setup_teardown(the_first_has_what_each_said, join, part),
        cmocka_unit_test_setup_teardown(the_first_that_was_lost_is_blamed_by_all, join,
                                        part),
        cmocka_unit_test_setup_teardown(who_waits_for_the_silent_is_not_blamed, join,
                                        part),
        cmocka_unit_test_setup_teardown(a_rank_that_takes_nothing_is_named, join, part),
        cmocka_unit_test_setup_teardown(whose_bytes_are_there_is_not_blamed, join, part),
        cmocka_unit_test(a_part_without_memory_is_lost_to_the_whole),
        cmocka_unit_test(alone_nothing_is_exchanged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
