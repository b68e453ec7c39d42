/* Tests of reported phases: what a reader sees, and what counts as progress. */
#include "base/phase.h"

#include "base/clock.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* The only stack that is reported; n is 0 if there is none. */
static struct kg_phase_stack look(void)
{
    struct kg_phase_stack found = {.n = 0}, one;

    for (int i = 0; i < KG_PHASE_THREADS; i++)
        if (kg_phase_look(&one, i)) {
            assert_int_equal(found.n, 0);
            found = one;
        }
    return found;
}

static void describes(int at, const char *expected)
{
    struct kg_phase_stack s = look();
    char text[512];

    assert_true(at < s.n);
    kg_phase_describe(text, sizeof text, &s.phases[at], s.phases[at].since + 12.4);
    assert_string_equal(text, expected);
}

static void phases_nest_and_an_end_ends_what_is_inside(void **state)
{
    int run, step;

    (void)state;
    assert_int_equal(look().n, 0);
    run = kg_phase_begin(200, "steps", "training %s", "x");
    kg_phase_at(run, 12);
    step = kg_phase_begin(64, "sequences", "rollout");
    kg_phase_at(step, 37);
    kg_phase_note(step, "tokens of the longest", 812);
    kg_phase_wait(kg_clock_seconds(), "waiting for %s", "http://x");
    assert_int_equal(look().n, 3);
    describes(0, "training x: 12 of 200 steps, for 12 s");
    describes(1, "rollout: 37 of 64 sequences, tokens of the longest: 812, for 12 s");
    describes(2, "waiting for http://x, for 12 s");
    kg_phase_end(step); /* ends the wait inside it too */
    assert_int_equal(look().n, 1);
    (void)kg_phase_begin(0, "passages", "indexing");
    describes(1, "indexing: 0 passages, for 12 s");
    kg_phase_end(run);
    assert_int_equal(look().n, 0);
    kg_phase_end(step); /* a phase that has ended: nothing happens */
    kg_phase_at(run, 1);
    kg_phase_tick();
    assert_int_equal(look().n, 0);
}

static void work_is_progress_and_waiting_is_not(void **state)
{
    int p = kg_phase_begin(3, "answers", "grading"), w;
    uint64_t before = look().progress;

    (void)state;
    for (int i = 0; i < 3; i++) {
        w = kg_phase_wait(0, "waiting");
        kg_phase_at(p, 0); /* unchanged, so no progress */
        kg_phase_end(w);
        w = kg_phase_idle("waiting for requests");
        kg_phase_end(w);
    }
    assert_true(look().progress == before);
    kg_phase_at(p, 1);
    assert_true(look().progress > before);
    before = look().progress;
    kg_phase_tick();
    assert_true(look().progress > before);
    before = look().progress;
    kg_phase_end(kg_phase_begin(0, NULL, "a part"));
    assert_true(look().progress > before);
    kg_phase_end(p);
}

static void what_is_too_deep_or_too_long_is_not_shown(void **state)
{
    int first = kg_phase_begin(0, NULL, "first"), last = -1;
    char text[16];
    struct kg_phase_stack s;
    uint64_t before;

    (void)state;
    for (int i = 0; i < 2 * KG_PHASE_DEPTH; i++)
        last = kg_phase_begin(5, "units", "%0*d", 2 * KG_PHASE_TEXT, i);
    before = look().progress;
    kg_phase_note(last, "label", 1);
    assert_true(look().progress == before);
    for (int i = 1; i < 4; i++) { /* phases too deep to be shown count as progress */
        kg_phase_at(last, i);
        assert_true(look().progress == before + (uint64_t)i);
    }
    kg_phase_at(last + 1, 3); /* no such phase */
    assert_true(look().progress == before + 3);
    s = look();
    assert_int_equal(s.n, KG_PHASE_DEPTH);
    assert_int_equal(strlen(s.phases[1].text), KG_PHASE_TEXT - 1);
    kg_phase_describe(text, sizeof text, &s.phases[1], 0);
    assert_int_equal(strlen(text), sizeof text - 1);
    kg_phase_end(last);
    assert_int_equal(look().n, KG_PHASE_DEPTH);
    kg_phase_end(first);
    assert_int_equal(look().n, 0);
}

/* ---- threads ---- */

enum { MANY = KG_PHASE_THREADS + 8, ROUNDS = 2000 };
static _Atomic int working;
static pthread_barrier_t all_stand;

static void *work(void *user)
{
    int p = kg_phase_begin(ROUNDS, "rounds", "thread");

    (void)user;
    working += p >= 0;
    pthread_barrier_wait(&all_stand);
    pthread_barrier_wait(&all_stand);
    for (int i = 0; i < ROUNDS; i++) {
        kg_phase_at(p, i + 1);
        if (i % 16 == 0)
            kg_phase_end(kg_phase_wait(0, "waiting"));
    }
    kg_phase_end(p);
    return NULL;
}

static void each_thread_has_a_place_while_there_are_some(void **state)
{
    pthread_t threads[MANY];
    struct kg_phase_stack s;
    int seen = 0;

    (void)state;
    assert_int_equal(pthread_barrier_init(&all_stand, NULL, MANY + 1), 0);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, NULL), 0);
    pthread_barrier_wait(&all_stand);
    for (int i = 0; i < KG_PHASE_THREADS; i++)
        seen += kg_phase_look(&s, i) && strcmp(s.phases[0].text, "thread") == 0;
    assert_int_equal(seen, KG_PHASE_THREADS);
    assert_int_equal(working, KG_PHASE_THREADS);
    pthread_barrier_wait(&all_stand);
    for (int i = 0; i < 200; i++)
        for (int place = 0; place < KG_PHASE_THREADS; place++)
            if (kg_phase_look(&s, place))
                assert_in_range(s.phases[0].done, 0, ROUNDS);
    for (int i = 0; i < MANY; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&all_stand);
    assert_int_equal(look().n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(phases_nest_and_an_end_ends_what_is_inside),
        cmocka_unit_test(work_is_progress_and_waiting_is_not),
        cmocka_unit_test(what_is_too_deep_or_too_long_is_not_shown),
        cmocka_unit_test(each_thread_has_a_place_while_there_are_some),
    };

    return cmocka_run_group_tests_name("phase", tests, NULL, NULL);
}
