/* The MPI transport on a simulated shim: what it posts, whom it names when nothing
 * arrives, and how it ends. tests/ranks_test.sh uses a real MPI. */
#include "ranks/mpi.h"

#include "base/mem.h"
#include "base/need_testing.h"
#include "ranks/lost.h"
#include "ranks/message.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 3, MOST = 16 };

/* ---- the library ---- */
struct note { /* as in ranks/mpi.c, then the ranks that its sender waits for */
    int32_t kind;
    uint32_t question;
    int32_t who, by;
    unsigned char waits[RANKS];
};
enum { ASK, ANSWER, LOST, UNLIKE };
enum { HEAD = sizeof(struct kg_ranks_head), SHORT = 4096 - HEAD };

static struct {
    struct list {
        struct kg_mpi_piece posted[MOST];
        int n;
    } slot[KG_MPI_SLOTS];
    int me;
    int silent;       /* operations of this rank never complete; -1: none */
    const char *what; /* name of the message that all others send */
    size_t bytes;     /* its length */
    enum lie { TRUTH, KIND, LENGTH, MARK, NOISE, CUT, LONGER, CUT_TEXT, LONGER_TEXT } lie;
    uint64_t length; /* the false length, or the seed of NOISE */
    bool late;       /* completes after the timeout, as if rank 1 had lost its core */
    const char *fails;
    int parted, closed, ended;
    enum { RETURNS, STAYS_IN_PART, STAYS_IN_CLOSE, FAILS_TO_PART } end;
    struct note told[MOST], coming; /* coming: from rank 0 */
    int to[MOST], n_told;
    enum { NOTHING, COMES, ANSWERS, ANSWERS_LATE } note; /* unasked, or a reply (late) */
} world;

static const char *open_world(int *me, int *n)
{
    *me = world.me;
    *n = RANKS;
    return NULL;
}

static const char *open_nothing(int *me, int *n)
{
    *me = *n = 0;
    return "no daemon answers";
}

static void library(char text[KG_MPI_TEXT]) { strcpy(text, "Made Up MPI 1.0"); }

static const char *start(int slot, const struct kg_mpi_piece *pieces, int first, int n)
{
    assert_true(n <= MOST);
    for (int i = first; i < n; i++)
        world.slot[slot].posted[i] = pieces[i];
    world.slot[slot].n = n;
    return NULL;
}

/* Writes the head of a message and, if the message is short, its bytes.   returns bytes
 * received */
static int fill_frame(char *frame, int rank)
{
    const size_t behind = world.bytes > SHORT ? 0 : world.bytes;
    const struct kg_ranks no_kind = {0};
    struct kg_ranks_head head;

    kg_ranks_head_make(&head, &no_kind, world.lie == KIND ? "another thing" : world.what,
                       world.lie == LENGTH ? world.length : world.bytes);
    if (world.lie == MARK)
        head.mark[0] ^= 1;
    for (size_t i = 0; i < sizeof head && world.lie == NOISE; i++)
        ((unsigned char *)&head)[i] = (unsigned char)(151 * (i + world.length) >> 3);
    memcpy(frame, &head, sizeof head);
    memset(frame + HEAD, 'a' + rank, behind);
    return world.lie == CUT      ? (int)world.length
           : world.lie == LONGER ? (int)(HEAD + behind) + 1
                                 : (int)(HEAD + behind);
}

/* Like MPI, fills at most the bytes of the posted receive. */
static int fill(const struct kg_mpi_piece *p)
{
    if (p->tag == 0)
        return fill_frame(p->data, p->rank);
    memset(p->data, 'a' + p->rank, (size_t)p->n);
    return world.lie == CUT_TEXT      ? p->n - 1
           : world.lie == LONGER_TEXT ? KG_MPI_TOO_MANY
                                      : p->n;
}

/* Completes one posted operation per call, the last first, and fills receives with a
 * letter that depends on the sending rank. */
static const char *test_world(int slot, int *done, int *came, int *n_done)
{
    struct list *l = &world.slot[slot];
    int i = l->n - 1;

    *n_done = 0;
    while (i >= 0 && (l->posted[i].n == 0 || l->posted[i].rank == world.silent))
        i--;
    if (i < 0)
        return world.fails;
    came[0] = l->posted[i].in ? fill(&l->posted[i]) : 0;
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
    assert_int_equal(status, world.lie ? KG_RANKS_EXIT_UNLIKE : KG_RANKS_EXIT_LOST);
    world.ended++;
}

static const struct kg_mpi made_up = {
    KG_MPI_INTERFACE, "openmpi",   open_world, library,  start, test_world, tell, hear,
    part_world,       close_world, 0.1,        end_world};

static int join(void **state)
{
    (void)state;
    memset(&world, 0, sizeof world);
    world.me = 1;
    world.silent = -1;
    world.what = "test";
    world.bytes = 1;
    return 0;
}

/* ---- exchanges ---- */
static void every_part_arrives_in_one_exchange(void **state)
{
    struct kg_ranks r;
    char bytes[RANKS * 4] = "";
    uint64_t ends[RANKS] = {4, 8, 12};

    (void)state;
    world.bytes = 4;
    NEED(kg_ranks_on_shim(&r, &made_up, 0, err));
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

/* Exchanges finish one at a time, in the order in which they began, and a slot of a
 * finished exchange is used again. */
static void several_exchanges_are_on_their_way(void **state)
{
    struct kg_ranks r;
    struct kg_ranks_part none[RANKS] = {{0}}, in[RANKS] = {{0}};
    char bytes[KG_RANKS_AHEAD + 2] = "";

    (void)state;
    NEED(kg_ranks_on_shim(&r, &made_up, 0, err));
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
    NEED(kg_ranks_on_shim(&r, &made_up, 0, err));
    NEED(kg_ranks_exchange(&r, out, in, "test", err));
    assert_int_equal(world.slot[0].n, 4); /* the head, then at most 2 GiB per piece */
    assert_ptr_equal((char *)world.slot[0].posted[3].data,
                     (char *)NULL + ((size_t)2 << 30));
    assert_int_equal(r.sent, n);
    kg_ranks_close(&r);
}

static void the_library_has_a_name(void **state)
{
    struct kg_ranks r, alone = {0};
    char text[KG_MPI_TEXT];

    (void)state;
    NEED(kg_ranks_on_shim(&r, &made_up, 0, err));
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
    world.what = "stop requests";
    NEED(kg_ranks_on_shim(&r, &made_up, 0, err));
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

/* ---- which rank is lost ---- */

/* Rank 1 waits until its timeout for rank `silent` while world.coming may arrive.
 * returns its error */
static const char *wait_for(int silent, struct kg_ranks *r)
{
    static struct kg_err why;
    bool x = true;

    world.silent = silent;
    world.what = "stop requests";
    NEED(kg_ranks_on_shim(r, &made_up, 0, err));
    r->wait_s = 0.05;
    assert_int_equal(kg_ranks_any(r, &x, "stop requests", &why), KG_ETIMEOUT);
    return why.message;
}

static void assert_named(const char *message, const char *expected)
{
    if (!strstr(message, expected))
        fail_msg("expected \"%s\", found \"%s\"", expected, message);
}

/* Rank 0 replies that it waits for rank 2, so rank 1 names rank 2 and tells all
 * others. */
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

/* Rank 0 has already sent its part of the next exchange and is computing, so it is not
 * blamed; rank 2 is. */
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
    NEED(kg_ranks_on_shim(&r, &made_up, 0, err));
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
    NEED(kg_ranks_on_shim(&r, &made_up, 0, err));
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

/* Rank 1 receives the loss long before its own timeout and names the lost rank. If the
 * others lost rank 1, it says that they waited for it. */
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
        world.what = "stop requests";
        world.note = COMES;
        world.coming = (struct note){.kind = LOST, .who = -(who + 1), .by = 0};
        NEED(kg_ranks_on_shim(&r, &made_up, 0, err));
        r.wait_s = 600;
        assert_int_equal(kg_ranks_any(&r, &x, "stop requests", &why), KG_ETIMEOUT);
        assert_named(why.message, expected[who]);
        assert_int_equal(world.n_told, 0);
        assert_int_equal(atomic_load(&r.loss->by), 0);
        kg_ranks_close(&r);
    }
}

/* ---- unexpected messages ---- */

/* Rank 2's message of n bytes differs from the expected one in this way: rank 0 refuses
 * it with that error, tells the others and ends the job. */
static void lie_about(size_t n, enum lie lie, uint64_t length, const char *expected)
{
    struct kg_ranks r;
    struct kg_ranks_part none[RANKS] = {{0}}, in[RANKS] = {{0}};
    unsigned char *bytes = malloc(n + 1);
    struct kg_err why = {0};

    join(NULL);
    world.me = 0;
    world.bytes = n;
    world.lie = lie;
    world.length = length;
    memset(bytes, 0x5a, n + 1);
    in[2] = (struct kg_ranks_part){bytes, n};
    NEED(kg_ranks_on_shim(&r, &made_up, 0, err));
    assert_int_equal(kg_ranks_exchange(&r, none, in, "test", &why), KG_ECONFLICT);
    assert_true(r.unlike && r.lost);
    assert_named(why.message, "rank 0 (");
    assert_named(why.message, "from rank 2, found ");
    assert_named(why.message, expected);
    for (size_t i = lie < CUT_TEXT ? 0 : n; i <= n; i++)
        assert_int_equal(bytes[i], 0x5a); /* nothing written, or nothing beyond n */
    assert_int_equal(world.n_told, 2);
    assert_int_equal(world.told[0].kind, UNLIKE);
    assert_int_equal(world.told[0].who, 1);
    /* no later exchange begins */
    world.slot[0].n = 0;
    assert_int_equal(kg_ranks_exchange(&r, none, in, "test", &why), KG_ECONFLICT);
    assert_int_equal(world.slot[0].n, 0);
    kg_ranks_close(&r);
    assert_int_equal(world.ended, 1);
    free(bytes);
}

/* Short messages, the longest that is sent with its head (SHORT), and longer ones. */
static const size_t lengths[] = {1, 8, 772, SHORT - 1, SHORT, SHORT + 1, 100000};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static void another_kind_or_length_is_refused_before_a_byte(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_LENGTHS; i++) {
        const size_t n = lengths[i];
        const uint64_t wrong[] = {0,
                                  n - 1,
                                  n + 1,
                                  2 * n,
                                  n / 2,
                                  UINT64_MAX,
                                  (uint64_t)1 << 63,
                                  n + ((uint64_t)1 << 32)};

        lie_about(n, KIND, 0, "bytes of 'another thing'");
        lie_about(n, MARK, 0, "bytes that are not a message of this kedge");
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++)
            if (wrong[k] != n)
                lie_about(n, LENGTH, wrong[k], "bytes of 'test': these ranks are not");
        for (uint64_t seed = 0; seed < 64; seed++)
            lie_about(n, NOISE, seed, "bytes that are not a message");
    }
}

/* The head is right, but MPI reports another number of bytes. */
static void a_message_that_is_cut_or_longer_than_its_head_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_LENGTHS; i++) {
        lie_about(lengths[i], CUT, 0, "found 0");
        lie_about(lengths[i], CUT, HEAD - 1, "found 63");
        lie_about(lengths[i], LONGER, 0, "expected a message of ");
        if (lengths[i] > SHORT) {
            lie_about(lengths[i], CUT_TEXT, 0, "expected a message of ");
            lie_about(lengths[i], LONGER_TEXT, 0, "found more");
        }
    }
}

/* Rank 0 refused a message first and tells rank 1, which fails in the same way. */
static void what_another_found_unlike_ends_all(void **state)
{
    struct kg_ranks r;
    struct kg_err why;
    bool x = true;

    (void)state;
    world.silent = 0;
    world.note = COMES;
    world.coming = (struct note){.kind = UNLIKE, .who = 1, .by = 0};
    NEED(kg_ranks_on_shim(&r, &made_up, 0, err));
    assert_int_equal(kg_ranks_any(&r, &x, "test", &why), KG_ECONFLICT);
    assert_named(why.message, "rank 0 got an unexpected message and ended");
    assert_true(r.unlike);
    world.lie = KIND; /* end_world expects the status of an unlike run */
    kg_ranks_close(&r);
    assert_int_equal(world.ended, 1);
}

static void without_memory_for_notes_nobody_is_joined(void **state)
{
    (void)state;
    for (int request = 1; request <= 12; request++) {
        struct kg_ranks r;
        struct kg_err why;

        kg_mem_fail_at(request);
        assert_int_equal(kg_ranks_on_shim(&r, &made_up, 0, &why), KG_ENOMEM);
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

/* A child process that uses this library exits by itself, with the status of a lost
 * rank. */
static void expect_left(struct kg_mpi waits, double wait_s)
{
    int ended;
    pid_t child = fork();

    if (child == 0) {
        struct kg_ranks r;

        NEED_IN_CHILD(kg_ranks_on_shim(&r, &waits, wait_s, err));
        r.lost = true;
        kg_ranks_close(&r);
        _exit(1);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == KG_RANKS_EXIT_LOST);
}

/* As MPICH's abort hangs when the launcher's host is lost. */
static void an_abort_that_waits_for_ever_is_left(void **state)
{
    struct kg_mpi waits = made_up;

    (void)state;
    waits.end_all = never_end;
    expect_left(waits, 0);
}

static const char *open_never(int *me, int *n)
{
    (void)me;
    (void)n;
    for (;;)
        pause();
    return NULL;
}

/* As Open MPI's MPI_Init hangs when another process stops before it gets there. */
static void a_start_that_does_not_return_is_left(void **state)
{
    struct kg_mpi waits = made_up;

    (void)state;
    waits.open = open_never;
    expect_left(waits, 0.05);
}

/* Closes a rank whose work ended with that status, while the library behaves as `end`
 * says.   returns the exit status; 42: kg_ranks_close returned */
static int ends_with(int end, int exit_status)
{
    int ended;
    pid_t child = fork();

    if (child == 0) {
        struct kg_ranks r;

        world.end = end;
        NEED_IN_CHILD(kg_ranks_on_shim(&r, &made_up, 0, err));
        r.wait_s = 0.05;
        r.exit_status = exit_status;
        kg_ranks_close(&r);
        _exit(42);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    return WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
}

/* A rank that did its work but hangs before the others agree to part exits as having lost
 * them, so that a launcher may retry. A rank that failed keeps its own status, because a
 * retry would not help it. */
static void an_end_that_does_not_return_is_left(void **state)
{
    (void)state;
    assert_int_equal(ends_with(RETURNS, 0), 42);
    assert_int_equal(ends_with(STAYS_IN_PART, 0), KG_RANKS_EXIT_LOST);
    assert_int_equal(ends_with(STAYS_IN_PART, 1), 1);
    assert_int_equal(ends_with(STAYS_IN_CLOSE, 0), 0);
    assert_int_equal(ends_with(STAYS_IN_CLOSE, 7), 7);
}

/* MPI fails to part, so the rank aborts (the simulated abort returns): a job that is
 * started again may succeed. */
static void an_end_that_mpi_refuses_is_an_abort(void **state)
{
    struct kg_ranks r;

    (void)state;
    world.end = FAILS_TO_PART;
    NEED(kg_ranks_on_shim(&r, &made_up, 0, err));
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
    world.what = "stop requests";
    world.fails = "the network is gone";
    NEED(kg_ranks_on_shim(&r, &made_up, 0, err));
    assert_int_equal(kg_ranks_any(&r, &x, "stop requests", &why), KG_EIO);
    assert_non_null(strstr(why.message, "stop requests: rank 1 ("));
    assert_non_null(strstr(why.message, "): MPI: the network is gone"));
    assert_int_equal(world.n_told, 2);
    assert_int_equal(world.told[0].kind, LOST);
    assert_int_equal(world.told[0].who, 2);
    assert_int_equal(atomic_load(&r.loss->by), 1); /* this rank reports the error */
    kg_ranks_close(&r);
    none.open = open_nothing;
    assert_int_equal(kg_ranks_on_shim(&r, &none, 0, &why), KG_EIO);
    assert_string_equal(why.message, "ranks: MPI: no daemon answers");
    assert_int_equal(r.n, 0);
}

/* A lower rank met the same error, so only that rank reports it. */
static void what_mpi_says_to_several_is_said_by_one(void **state)
{
    struct kg_ranks r;
    struct kg_err why = {0};
    bool x = false;

    (void)state;
    world.silent = 0;
    world.what = "stop requests";
    world.fails = "the network is gone";
    world.note = COMES;
    world.coming = (struct note){.kind = LOST, .who = 1, .by = 0};
    NEED(kg_ranks_on_shim(&r, &made_up, 0, err));
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
    assert_int_equal(kg_ranks_on_mpi(&r, "nobody", 0, &err), KG_ENOTFOUND);
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
        cmocka_unit_test_setup(another_kind_or_length_is_refused_before_a_byte, join),
        cmocka_unit_test_setup(a_message_that_is_cut_or_longer_than_its_head_is_refused,
                               join),
        cmocka_unit_test_setup(what_another_found_unlike_ends_all, join),
        cmocka_unit_test_setup(a_start_that_does_not_return_is_left, join),
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
