/* The transport over MPI, on a shim that is made up: what is posted, who is named when
 * nothing comes, and how it ends. With MPI itself: tests/ranks_test.sh. */
#include "ranks/mpi.h"

#include "base/need_testing.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, MOST = 16 };

/* ---- the library ---- */
static struct {
    struct kg_mpi_piece posted[MOST];
    int n;
    int silent; /* nothing ends of this rank; -1: of none */
    const char *fails;
    int closed, ended;
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

static const char *start(const struct kg_mpi_piece *pieces, int n)
{
    assert_true(n <= MOST);
    memcpy(world.posted, pieces, (size_t)n * sizeof *pieces);
    world.n = n;
    return NULL;
}

/* One at a time, the last first; what comes in is filled with its rank. */
static const char *test_world(int *done, int *n_done)
{
    int i = world.n - 1;

    *n_done = 0;
    while (i >= 0 && (world.posted[i].n == 0 || world.posted[i].rank == world.silent))
        i--;
    if (i < 0)
        return world.fails;
    if (world.posted[i].in)
        memset(world.posted[i].data, 'a' + world.posted[i].rank,
               (size_t)world.posted[i].n);
    world.posted[i].n = 0;
    done[(*n_done)++] = i;
    return NULL;
}

static void close_world(void) { world.closed++; }
static void end_world(int status)
{
    assert_int_equal(status, KG_RANKS_EXIT_LOST);
    world.ended++;
}

static const struct kg_mpi made_up = {KG_MPI_INTERFACE, "openmpi", open_world,
                                      library,          start,     test_world,
                                      close_world,      end_world};

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
    assert_int_equal(world.n, 2 * (RANKS - 1));
    assert_true(world.posted[0].in && world.posted[1].in);
    assert_int_equal(r.sent, 8);
    kg_ranks_close(&r);
    assert_int_equal(world.closed, 1);
    assert_int_equal(world.ended, 0);
}

static void a_message_is_no_longer_than_mpi_counts(void **state)
{
    struct kg_ranks r;
    size_t n = ((size_t)5 << 29) + 1; /* 2.5 GiB and a byte */
    struct kg_ranks_part out[RANKS] = {{NULL, n}}, in[RANKS] = {{0}};

    (void)state;
    NEED(kg_ranks_on_shim(&r, &made_up, err));
    NEED(kg_ranks_exchange(&r, out, in, "test", err));
    assert_int_equal(world.n, 3);
    assert_ptr_equal((char *)world.posted[2].data, (char *)NULL + ((size_t)2 << 30));
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
    world.n = 0;
    assert_int_equal(kg_ranks_any(&r, &x, "again", &why), KG_ETIMEOUT);
    assert_int_equal(world.n, 0);
    kg_ranks_close(&r);
    assert_int_equal(world.ended, 1);
    assert_int_equal(world.closed, 0);
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
    kg_ranks_close(&r);
    none.open = open_nothing;
    assert_int_equal(kg_ranks_on_shim(&r, &none, &why), KG_EIO);
    assert_string_equal(why.message, "ranks: MPI: no daemon answers");
    assert_int_equal(r.n, 0);
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
        cmocka_unit_test_setup(a_message_is_no_longer_than_mpi_counts, join),
        cmocka_unit_test_setup(the_library_has_a_name, join),
        cmocka_unit_test_setup(who_is_silent_has_a_name_and_is_waited_for_once, join),
        cmocka_unit_test_setup(an_abort_that_waits_for_ever_is_left, join),
        cmocka_unit_test_setup(what_mpi_says_is_said, join),
        cmocka_unit_test_setup(a_shim_that_is_not_there_is_named, join),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
