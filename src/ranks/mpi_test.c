/* The transport over MPI, on a shim that is made up: what is posted, who is named when
 * nothing comes, and how it ends. With MPI itself: tests/ranks_test.sh. */
#include "ranks/mpi.h"

#include "base/mem.h"
#include "base/need_testing.h"
#include "ranks/lost.h"

#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 3, MOST = 16 };

/* ---- the library ---- */
struct note { /* as ranks/mpi.c has it, and whom a rank waits for */
    int32_t kind;
    uint32_t question;
    int32_t who, by;
    unsigned char waits[RANKS];
};
enum { ASK, ANSWER, LOST };

static struct {
    struct list {
        struct kg_mpi_piece posted[MOST];
        int n;
    } slot[KG_MPI_SLOTS];
    int silent; /* nothing ends of this rank; -1: of none */
    bool late;  /* once it is asked for, it ends while the process has no core */
    const char *fails;
    int parted, closed, ended;
    enum { RETURNS, STAYS_IN_PART, STAYS_IN_CLOSE, FAILS_TO_PART } end;
    struct note told[MOST], coming; /* from rank 0 */
    int to[MOST], n_told;
    enum { NOTHING, COMES, ANSWERS, ANSWERS_LATE } note; /* to what it asked, or before */
} world;

static const char *open_world(int *me, int *n)
{
    *me = 1;
    *n = RANKS;
    return NULL;
}

static const char *open_nothing(int *me, int *n)
{
    *me = *n = 0;
    return "no daemon answers";
}

static void library(char text[KG_MPI_TEXT]) { strcpy(text, "Made Up MPI 1.0"); }

static const char *start(int slot, const struct kg_mpi_piece *pieces, int n)
{
    assert_true(n <= MOST);
    memcpy(world.slot[slot].posted, pieces, (size_t)n * sizeof *pieces);
    world.slot[slot].n = n;
    return NULL;
}

/* One at a time, the last first; what comes in is filled with its rank. */
static const char *test_world(int slot, int *done, int *n_done)
{
    struct list *l = &world.slot[slot];
    int i = l->n - 1;

    *n_done = 0;
    while (i >= 0 && (l->posted[i].n == 0 || l->posted[i].rank == world.silent))
        i--;
    if (i < 0)
        return world.fails;
    if (l->posted[i].in)
        memset(l->posted[i].data, 'a' + l->posted[i].rank, (size_t)l->posted[i].n);
    l->posted[i].n = 0;
    done[(*n_done)++] = i;
    return NULL;
}

static const size_t note_bytes = offsetof(struct note, waits) + RANKS;

static void tell(int rank, const void *note, int n)
{
    assert_int_equal(n, note_bytes);
    assert_true(world.n_told < MOST);
    memcpy(&world.told[world.n_told], note, note_bytes);
    world.to[world.n_told++] = rank;
}

static int hear(void *note, int n)
{
    assert_int_equal(n, note_bytes);
    if (world.late && world.n_told > 0) {
        const struct timespec past_the_limit = {0, 60000000};

        nanosleep(&past_the_limit, NULL);
        world.silent = -1;
        world.late = false;
    }
    if (world.note == NOTHING || (world.note != COMES && world.n_told == 0))
        return -1;
    if (world.note != COMES)
        world.coming.question = world.told[0].question - (world.note == ANSWERS_LATE);
    memcpy(note, &world.coming, note_bytes);
    world.note = NOTHING;
    return 0;
}

static const char *part_world(void)
{
    world.parted++;
    while (world.end == STAYS_IN_PART)
        pause();
    return world.end == FAILS_TO_PART ? "the network is gone" : NULL;
}
static void close_world(void)
{
    assert_int_equal(world.parted, 1);
    world.closed++;
    while (world.end == STAYS_IN_CLOSE)
        pause();
}
static void end_world(int status)
{
    assert_int_equal(status, KG_RANKS_EXIT_LOST);
    world.ended++;
}

static const struct kg_mpi made_up = {
    KG_MPI_INTERFACE, "openmpi",   open_world, library,  start, test_world, tell, hear,
    part_world,       close_world, 0.1,        end_world};

static int join(void **state)
{
    (void)state;
    memset(&world, 0, sizeof world);
    world.silent = -1;
    return 0;
}

/* ---- what is said ---- */
static void every_part_arrives_in_one_exchange(void **state)
{
    struct kg_ranks r;
    char bytes[RANKS * 4] = "";
    uint64_t ends[RANKS] = {4, 8, 12};

    (void)state;
    NEED(kg_ranks_on_shim(&r, &made_up, err));
    memset(bytes + 4, 'm', 4);
    NEED(kg_ranks_gather(&r, bytes, ends, "test", err));
    assert_memory_equal(bytes, "aaaammmmcccc", 12);
    assert_int_equal(world.slot[0].n, 2 * (RANKS - 1));
    assert_true(world.slot[0].posted[0].in && world.slot[0].posted[1].in);
    assert_int_equal(r.sent, 8);
    kg_ranks_close(&r);
    assert_int_equal(world.closed, 1);
    assert_int_equal(world.ended, 0);
}

/* The first that was begun ends first, and only it; each has a place of its own. */
static void several_exchanges_are_on_their_way(void **state)
{
    struct kg_ranks r;
    struct kg_ranks_part none[RANKS] = {{0}}, in[RANKS] = {{0}};
    char bytes[KG_RANKS_AHEAD + 2] = "";

    (void)state;
    NEED(kg_ranks_on_shim(&r, &made_up, err));
    for (int i = 0; i < KG_RANKS_AHEAD; i++) {
        in[i % 2 * 2] = (struct kg_ranks_part){bytes + i, 1};
        in[2 - i % 2 * 2] = (struct kg_ranks_part){0};
        NEED(kg_ranks_begin(&r, none, in, "test", err));
    }
    NEED(kg_ranks_finish(&r, "test", err));
    assert_string_equal(bytes, "a");
    NEED(kg_ranks_finish(&r, "test", err));
    assert_string_equal(bytes, "ac");
    in[0] = (struct kg_ranks_part){bytes + KG_RANKS_AHEAD, 1};
    in[2] = (struct kg_ranks_part){0};
    NEED(kg_ranks_begin(&r, none, in, "test", err));
    for (int i = 2; i <= KG_RANKS_AHEAD; i++)
        NEED(kg_ranks_finish(&r, "test", err));
    assert_string_equal(bytes, "acaca");
    kg_ranks_close(&r);
}

static void a_message_is_no_longer_than_mpi_counts(void **state)
{
    struct kg_ranks r;
    size_t n = ((size_t)5 << 29) + 1; /* 2.5 GiB and a byte */
    struct kg_ranks_part out[RANKS] = {{NULL, n}}, in[RANKS] = {{0}};

    (void)state;
    NEED(kg_ranks_on_shim(&r, &made_up, err));
    NEED(kg_ranks_exchange(&r, out, in, "test", err));
    assert_int_equal(world.slot[0].n, 3);
    assert_ptr_equal((char *)world.slot[0].posted[2].data,
                     (char *)NULL + ((size_t)2 << 30));
    assert_int_equal(r.sent, n);
    kg_ranks_close(&r);
}

static void the_library_has_a_name(void **state)
{
    struct kg_ranks r, alone = {0};
    char text[KG_MPI_TEXT];

    (void)state;
    NEED(kg_ranks_on_shim(&r, &made_up, err));
    kg_ranks_mpi_library(text, &r);
    assert_string_equal(text, "Made Up MPI 1.0");
    kg_ranks_mpi_library(text, &alone);
    assert_string_equal(text, "");
    kg_ranks_close(&r);
}

/* ---- faults ---- */
static void who_is_silent_has_a_name_and_is_waited_for_once(void **state)
{
    struct kg_ranks r;
    struct kg_err why = {0};
    bool x = true;

    (void)state;
    world.silent = 2;
    NEED(kg_ranks_on_shim(&r, &made_up, err));
    r.wait_s = 0.05;
    assert_int_equal(kg_ranks_any(&r, &x, "stop requests", &why), KG_ETIMEOUT);
    assert_non_null(strstr(why.message, "stop requests: rank 1 ("));
    assert_non_null(strstr(why.message, "): nothing from rank 2 for 0 s (ranks.wait_s)"));
    world.slot[0].n = 0;
    assert_int_equal(kg_ranks_any(&r, &x, "again", &why), KG_ETIMEOUT);
    assert_int_equal(world.slot[0].n, 0);
    kg_ranks_close(&r);
    assert_int_equal(world.ended, 1);
    assert_int_equal(world.closed, 0);
}

/* ---- who is lost ---- */

/* Rank 1 waits for the ranks of `silent` and the note comes.   returns its error */
static const char *wait_for(int silent, struct kg_ranks *r)
{
    static struct kg_err why;
    bool x = true;

    world.silent = silent;
    NEED(kg_ranks_on_shim(r, &made_up, err));
    r->wait_s = 0.05;
    assert_int_equal(kg_ranks_any(r, &x, "stop requests", &why), KG_ETIMEOUT);
    return why.message;
}

static void assert_named(const char *message, const char *expected)
{
    if (!strstr(message, expected))
        fail_msg("expected \"%s\", found \"%s\"", expected, message);
}

/* Rank 0 answers that it waits for 2: that one is named, by 0, and all hear of it. */
static void who_waits_for_the_lost_is_not_taken_for_it(void **state)
{
    struct kg_ranks r;

    (void)state;
    world.note = ANSWERS;
    world.coming = (struct note){.kind = ANSWER, .waits = {0, 0, 1}};
    assert_named(wait_for(0, &r), "nothing from rank 2 for");
    assert_int_equal(atomic_load(&r.loss->who), -3);
    assert_int_equal(atomic_load(&r.loss->by), 0);
    assert_int_equal(world.n_told, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(world.told[i].kind, i < 2 ? ASK : LOST);
        assert_int_equal(world.to[i], i % 2 ? 2 : 0);
        assert_memory_equal(world.told[i].waits, "\1\0\0", RANKS);
    }
    assert_int_equal(world.told[3].who, -3);
    assert_int_equal(world.told[3].by, 0);
    kg_ranks_close(&r);
}

static void who_does_not_answer_is_named(void **state)
{
    struct kg_ranks r;

    (void)state;
    assert_named(wait_for(0, &r), "nothing from rank 0 for");
    assert_int_equal(atomic_load(&r.loss->by), 1);
    kg_ranks_close(&r);
}

/* Rank 0 has sent what it owes to a later exchange, and is at work. */
static void whose_bytes_are_there_is_not_blamed(void **state)
{
    struct kg_ranks r;
    struct kg_ranks_part none[RANKS] = {{0}}, first[RANKS] = {{0}}, second[RANKS] = {{0}};
    char bytes[3] = "";
    struct kg_err why;

    (void)state;
    world.silent = 2;
    first[2] = (struct kg_ranks_part){bytes, 1};
    second[0] = (struct kg_ranks_part){bytes + 1, 1};
    NEED(kg_ranks_on_shim(&r, &made_up, err));
    r.wait_s = 0.05;
    NEED(kg_ranks_begin(&r, none, first, "test", err));
    NEED(kg_ranks_begin(&r, none, second, "test", err));
    assert_int_equal(kg_ranks_finish(&r, "test", &why), KG_ETIMEOUT);
    assert_named(why.message, "nothing from rank 2 for");
    assert_memory_equal(world.told[0].waits, "\0\0\1", RANKS);
    assert_int_equal(bytes[1], 'a');
    kg_ranks_close(&r);
}

static void what_came_in_time_is_taken_behind_the_limit(void **state)
{
    struct kg_ranks r;
    bool x = false;

    (void)state;
    world.silent = 0;
    world.late = true;
    NEED(kg_ranks_on_shim(&r, &made_up, err));
    r.wait_s = 0.05;
    NEED(kg_ranks_any(&r, &x, "test", err));
    assert_false(world.late);
    kg_ranks_close(&r);
}

static void an_answer_to_a_question_of_before_is_none(void **state)
{
    struct kg_ranks r;

    (void)state;
    world.note = ANSWERS_LATE;
    world.coming = (struct note){.kind = ANSWER, .waits = {0, 0, 1}};
    assert_named(wait_for(0, &r), "nothing from rank 0 for");
    kg_ranks_close(&r);
}

static void of_a_ring_the_next_is_named(void **state)
{
    struct kg_ranks r;

    (void)state;
    world.note = ANSWERS;
    world.coming = (struct note){.kind = ANSWER, .waits = {0, 1, 0}};
    assert_named(wait_for(0, &r), "nothing from rank 0 for");
    kg_ranks_close(&r);
}

static void who_is_asked_answers(void **state)
{
    struct kg_ranks r;

    (void)state;
    world.note = COMES;
    world.coming = (struct note){.kind = ASK, .question = 7};
    wait_for(2, &r);
    assert_int_equal(world.told[0].kind, ANSWER);
    assert_int_equal(world.told[0].question, 7);
    assert_int_equal(world.to[0], 0);
    assert_memory_equal(world.told[0].waits, "\0\0\1", RANKS);
    kg_ranks_close(&r);
}

/* Long before its own limit, and itself where it was taken for lost. */
static void a_loss_that_another_found_is_believed(void **state)
{
    static const char *const expected[] = {NULL, "the others waited for it",
                                           "nothing from rank 2 for"};

    (void)state;
    for (int who = 1; who <= 2; who++) {
        struct kg_ranks r;
        struct kg_err why;
        bool x = true;

        join(state);
        world.silent = 0;
        world.note = COMES;
        world.coming = (struct note){.kind = LOST, .who = -(who + 1), .by = 0};
        NEED(kg_ranks_on_shim(&r, &made_up, err));
        r.wait_s = 600;
        assert_int_equal(kg_ranks_any(&r, &x, "stop requests", &why), KG_ETIMEOUT);
        assert_named(why.message, expected[who]);
        assert_int_equal(world.n_told, 0);
        assert_int_equal(atomic_load(&r.loss->by), 0);
        kg_ranks_close(&r);
    }
}

static void without_memory_for_notes_nobody_is_joined(void **state)
{
    (void)state;
    for (int request = 1; request <= 3; request++) {
        struct kg_ranks r;
        struct kg_err why;

        kg_mem_fail_at(request);
        assert_int_equal(kg_ranks_on_shim(&r, &made_up, &why), KG_ENOMEM);
        kg_mem_fail_at(0);
        assert_int_equal(r.n, 0);
        assert_int_equal(world.ended, request - 1);
    }
}

static void never_end(int status)
{
    (void)status;
    for (;;)
        pause();
}

/* As MPICH's, when the machine of its launcher was lost. */
static void an_abort_that_waits_for_ever_is_left(void **state)
{
    int ended;
    pid_t child = fork();

    (void)state;
    if (child == 0) {
        struct kg_mpi waits = made_up;
        struct kg_ranks r;

        waits.end_all = never_end;
        NEED_IN_CHILD(kg_ranks_on_shim(&r, &waits, err));
        r.lost = true;
        kg_ranks_close(&r);
        _exit(1);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == KG_RANKS_EXIT_LOST);
}

/* Of a rank whose work was done with that status.   returns how the process ends; 42: it
 * went on behind the close */
static int ends_with(int end, int exit_status)
{
    int ended;
    pid_t child = fork();

    if (child == 0) {
        struct kg_ranks r;

        world.end = end;
        NEED_IN_CHILD(kg_ranks_on_shim(&r, &made_up, err));
        r.wait_s = 0.05;
        r.exit_status = exit_status;
        kg_ranks_close(&r);
        _exit(42);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    return WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
}

/* Whom nobody joins has lost the others, unless it failed by itself: to begin again would
 * not help it. */
static void an_end_that_does_not_return_is_left(void **state)
{
    (void)state;
    assert_int_equal(ends_with(RETURNS, 0), 42);
    assert_int_equal(ends_with(STAYS_IN_PART, 0), KG_RANKS_EXIT_LOST);
    assert_int_equal(ends_with(STAYS_IN_PART, 1), 1);
    assert_int_equal(ends_with(STAYS_IN_CLOSE, 0), 0);
    assert_int_equal(ends_with(STAYS_IN_CLOSE, 7), 7);
}

/* That made-up abort returns; who began again may find the others. */
static void an_end_that_mpi_refuses_is_an_abort(void **state)
{
    struct kg_ranks r;

    (void)state;
    world.end = FAILS_TO_PART;
    NEED(kg_ranks_on_shim(&r, &made_up, err));
    r.exit_status = 0;
    kg_ranks_close(&r);
    assert_int_equal(world.closed, 0);
    assert_int_equal(world.ended, 1);
}

static void what_mpi_says_is_said(void **state)
{
    struct kg_ranks r;
    struct kg_err why = {0};
    bool x = false;
    struct kg_mpi none = made_up;

    (void)state;
    world.silent = 0;
    world.fails = "the network is gone";
    NEED(kg_ranks_on_shim(&r, &made_up, err));
    assert_int_equal(kg_ranks_any(&r, &x, "stop requests", &why), KG_EIO);
    assert_non_null(strstr(why.message, "stop requests: rank 1 ("));
    assert_non_null(strstr(why.message, "): MPI: the network is gone"));
    assert_int_equal(world.n_told, 2);
    assert_int_equal(world.told[0].kind, LOST);
    assert_int_equal(world.told[0].who, 2);
    assert_int_equal(atomic_load(&r.loss->by), 1); /* it speaks, at once */
    kg_ranks_close(&r);
    none.open = open_nothing;
    assert_int_equal(kg_ranks_on_shim(&r, &none, &why), KG_EIO);
    assert_string_equal(why.message, "ranks: MPI: no daemon answers");
    assert_int_equal(r.n, 0);
}

/* A lower rank found it too: that one speaks. */
static void what_mpi_says_to_several_is_said_by_one(void **state)
{
    struct kg_ranks r;
    struct kg_err why = {0};
    bool x = false;

    (void)state;
    world.silent = 0;
    world.fails = "the network is gone";
    world.note = COMES;
    world.coming = (struct note){.kind = LOST, .who = 1, .by = 0};
    NEED(kg_ranks_on_shim(&r, &made_up, err));
    assert_int_equal(kg_ranks_any(&r, &x, "stop requests", &why), KG_EIO);
    assert_named(why.message, "rank 0 is gone");
    assert_int_equal(world.n_told, 0);
    assert_int_equal(atomic_load(&r.loss->by), 0);
    kg_ranks_close(&r);
}

static void a_shim_that_is_not_there_is_named(void **state)
{
    struct kg_ranks r;
    struct kg_err err = {0};

    (void)state;
    assert_int_equal(kg_ranks_on_mpi(&r, "nobody", &err), KG_ENOTFOUND);
    assert_non_null(strstr(err.message, "expected kedge-mpi-nobody.so"));
    assert_non_null(strstr(err.message, "make mpi"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(every_part_arrives_in_one_exchange, join),
        cmocka_unit_test_setup(several_exchanges_are_on_their_way, join),
        cmocka_unit_test_setup(a_message_is_no_longer_than_mpi_counts, join),
        cmocka_unit_test_setup(the_library_has_a_name, join),
        cmocka_unit_test_setup(who_is_silent_has_a_name_and_is_waited_for_once, join),
        cmocka_unit_test_setup(who_waits_for_the_lost_is_not_taken_for_it, join),
        cmocka_unit_test_setup(who_does_not_answer_is_named, join),
        cmocka_unit_test_setup(whose_bytes_are_there_is_not_blamed, join),
        cmocka_unit_test_setup(what_came_in_time_is_taken_behind_the_limit, join),
        cmocka_unit_test_setup(an_answer_to_a_question_of_before_is_none, join),
        cmocka_unit_test_setup(of_a_ring_the_next_is_named, join),
        cmocka_unit_test_setup(who_is_asked_answers, join),
        cmocka_unit_test_setup(a_loss_that_another_found_is_believed, join),
        cmocka_unit_test_setup(without_memory_for_notes_nobody_is_joined, join),
        cmocka_unit_test_setup(an_abort_that_waits_for_ever_is_left, join),
        cmocka_unit_test_setup(an_end_that_does_not_return_is_left, join),
        cmocka_unit_test_setup(an_end_that_mpi_refuses_is_an_abort, join),
        cmocka_unit_test_setup(what_mpi_says_is_said, join),
        cmocka_unit_test_setup(what_mpi_says_to_several_is_said_by_one, join),
        cmocka_unit_test_setup(a_shim_that_is_not_there_is_named, join),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
