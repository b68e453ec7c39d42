/* The emulation of devices finds what it must: races, barriers that some threads never
 * reach, memory of the wrong kind or beyond its end. */
#include "emu/emu_testing.h"
#include "tensor/backend_testing.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = KG_TRIAL_THREADS };

static struct kg_err err;

static const struct kg_backend *emu(void)
{
    const struct kg_backend *be;

    assert_int_equal(kg_emu_open(&be, &err), KG_OK);
    return be;
}

static void *there(size_t bytes)
{
    void *p = kg_buf_alloc(emu(), bytes, "test", &err);

    assert_non_null(p);
    return p;
}

/* Runs a trial on 0, 1, 2, ..   returns its status; y <- its result */
static kg_status trial(enum kg_trial t, enum kg_emu_schedule order, float *y)
{
    float x[THREADS], *in = there(sizeof x), *out = there(sizeof x);
    kg_status status;

    for (int i = 0; i < THREADS; i++)
        x[i] = (float)i;
    assert_int_equal(kg_buf_put(emu(), in, x, sizeof x, &err), KG_OK);
    kg_emu_schedule(order);
    status = kg_trial_run(t, out, in, &err);
    if (status == KG_OK)
        assert_int_equal(kg_buf_get(emu(), y, out, sizeof x, &err), KG_OK);
    kg_emu_schedule(KG_EMU_ROUND_ROBIN);
    kg_buf_free(emu(), in);
    kg_buf_free(emu(), out);
    return status;
}

static bool is_reverse(const float *y)
{
    for (int i = 0; i < THREADS; i++)
        if (!(y[i] == (float)(THREADS - 1 - i)))
            return false;
    return true;
}

static void a_kernel_without_a_fault_is_the_same_in_all_schedules(void **state)
{
    float y[THREADS];

    (void)state;
    for (int order = 0; order < KG_EMU_SCHEDULES; order++) {
        assert_int_equal(trial(KG_TRIAL_GOOD, (enum kg_emu_schedule)order, y), KG_OK);
        assert_true(is_reverse(y));
        assert_int_equal(trial(KG_TRIAL_COPIES, (enum kg_emu_schedule)order, y), KG_OK);
        assert_true(is_reverse(y));
    }
}

static void a_missing_barrier_shows_in_the_schedules(void **state)
{
    float y[KG_EMU_SCHEDULES][THREADS];

    (void)state;
    for (int order = 0; order < KG_EMU_SCHEDULES; order++) {
        assert_int_equal(
            trial(KG_TRIAL_NO_BARRIER, (enum kg_emu_schedule)order, y[order]), KG_OK);
        assert_false(is_reverse(y[order]));
    }
    assert_memory_not_equal(y[KG_EMU_FORWARD], y[KG_EMU_BACKWARD], sizeof *y);
}

static void what_nobody_wrote_is_no_number(void **state)
{
    float y[THREADS];

    (void)state;
    assert_int_equal(trial(KG_TRIAL_GOOD, KG_EMU_FORWARD, y), KG_OK);
    assert_int_equal(trial(KG_TRIAL_UNSET, KG_EMU_FORWARD, y), KG_OK);
    assert_true(isnan(y[THREADS - 1 - 5]));
}

static void a_copy_is_there_when_it_was_waited_for(void **state)
{
    float y[THREADS];

    (void)state;
    for (int order = 0; order < KG_EMU_SCHEDULES; order++) {
        assert_int_equal(trial(KG_TRIAL_COPIES, (enum kg_emu_schedule)order, y), KG_OK);
        assert_int_equal(trial(KG_TRIAL_LATE, (enum kg_emu_schedule)order, y), KG_OK);
        assert_true(isnan(y[order == KG_EMU_BACKWARD ? THREADS - 1 : 0]));
    }
}

static void a_place_that_others_read_is_not_copied_to(void **state)
{
    float y[THREADS];

    (void)state;
    for (int order = 0; order < KG_EMU_SCHEDULES; order++) {
        assert_int_equal(trial(KG_TRIAL_OVER, (enum kg_emu_schedule)order, y), KG_OK);
        assert_false(is_reverse(y));
    }
}

static void faults_are_named_and_the_next_kernel_runs(void **state)
{
    static const struct {
        enum kg_trial trial;
        const char *says;
    } rows[] = {
        {KG_TRIAL_SOME_BARRIER, "for others of its block, of 128 threads 64 are done"},
        {KG_TRIAL_OTHER_BARRIER, "threads 0 and 64 of a block meet at lines "},
        {KG_TRIAL_LANES, "an exchange of lanes 0xffff at line "},
        {KG_TRIAL_TOO_MANY, "a block of 2048 threads, expected whole warps, 1024 "},
        {KG_TRIAL_NO_BLOCK, "a grid of 0 x 1 x 1 blocks"},
        {KG_TRIAL_LEFT, " ends before 1 copies that it began"},
        {KG_TRIAL_ASKEW, " begins at no multiple of 16"},
        {KG_TRIAL_ASKS, "101392 bytes of shared memory, expected 101376 at most"},
    };
    float y[THREADS];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int order = 0; order < KG_EMU_SCHEDULES; order++) {
            assert_int_equal(trial(rows[i].trial, (enum kg_emu_schedule)order, y),
                             KG_EDEVICE);
            if (!strstr(err.message, rows[i].says) ||
                strncmp(err.message, "trial: reverse", 14) != 0)
                fail_msg("expected \"%s\" in \"%s\"", rows[i].says, err.message);
            assert_int_equal(trial(KG_TRIAL_GOOD, KG_EMU_FORWARD, y), KG_OK);
            assert_true(is_reverse(y));
        }
}

/* ---- memory ---- */
static void memory_of_the_host_is_no_argument(void **state)
{
    float x[THREADS] = {0}, *y = there(sizeof x);

    (void)state;
    assert_int_equal(kg_trial_run(KG_TRIAL_GOOD, y, x, &err), KG_EDEVICE);
    assert_string_equal(err.message,
                        "trial: reverse: an argument is not memory of the device");
    assert_int_equal(kg_op_ema(emu(), kg_vec(y, 8), kg_vec(x, 8), 0.5f, &err),
                     KG_EDEVICE);
    assert_int_equal(kg_buf_copy(emu(), y, x, sizeof x, &err), KG_EDEVICE);
    assert_int_equal(kg_buf_get(emu(), y, x, sizeof x, &err), KG_EDEVICE);
    assert_int_equal(kg_buf_put(emu(), x, y, sizeof x, &err), KG_EDEVICE);
    assert_int_equal(kg_buf_put(emu(), y, x, sizeof x, &err), KG_OK);
    kg_buf_free(emu(), y);
}

static void a_fetch_wants_pinned_memory(void **state)
{
    float x[THREADS] = {1, 2}, *y = there(sizeof x);
    char *pinned = kg_buf_pin(emu(), sizeof x, "a test", &err);

    (void)state;
    assert_non_null(pinned);
    assert_int_equal(kg_buf_put(emu(), y, x, sizeof x, &err), KG_OK);
    assert_int_equal(kg_buf_fetch(emu(), pinned, y, sizeof x, &err), KG_OK);
    assert_memory_equal(pinned, x, sizeof x);
    assert_int_equal(kg_buf_fetch(emu(), pinned + 4, y, sizeof x - 4, &err), KG_OK);
    assert_memory_equal(pinned + 4, x, sizeof x - 4);
    assert_int_equal(kg_buf_fetch(emu(), pinned + 4, y, sizeof x, &err), KG_EDEVICE);
    assert_string_equal(err.message, "fetch: fetch: memory that is not page-locked");
    assert_int_equal(kg_buf_fetch(emu(), x, y, sizeof x, &err), KG_EDEVICE);
    assert_int_equal(kg_buf_fetch(emu(), pinned, x, sizeof x, &err), KG_EDEVICE);
    kg_buf_unpin(emu(), pinned);
    assert_int_equal(kg_buf_fetch(emu(), pinned, y, 4, &err), KG_EDEVICE);
    kg_buf_unpin(emu(), NULL);
    kg_buf_free(emu(), y);
}

/* Copies up and down again, in pinned memory. */
static void a_copy_belongs_to_itself_until_it_is_waited_for(void **state)
{
    const size_t bytes = THREADS * sizeof(float);
    float *up = kg_buf_pin(emu(), bytes, "a test", &err);
    float *down = kg_buf_pin(emu(), bytes, "a test", &err), *y = there(bytes), first;
    uint64_t mark;

    (void)state;
    for (int i = 0; i < THREADS; i++)
        up[i] = (float)i;
    assert_int_equal(kg_buf_put_later(emu(), y, up, bytes, &err), KG_OK);
    assert_int_equal(kg_buf_get_later(emu(), down, y, bytes, &err), KG_OK);
    assert_int_equal(kg_buf_mark(emu(), &mark, &err), KG_OK);
    assert_int_equal(kg_buf_wait(emu(), mark - 1, &err), KG_OK);
    assert_true(isnan(down[0]) && isnan(down[THREADS - 1]));
    assert_int_equal(kg_buf_wait(emu(), mark, &err), KG_OK);
    assert_memory_equal(down, up, bytes);
    assert_int_equal(kg_buf_put_later(emu(), y, up, bytes, &err), KG_OK);
    up[3] = -1;
    assert_int_equal(kg_buf_settle(emu(), &err), KG_EDEVICE);
    assert_string_equal(err.message,
                        "wait: wait: what goes up was changed before it was waited for");
    assert_int_equal(kg_buf_get_later(emu(), down, y, bytes, &err), KG_OK);
    down[3] = 3;
    assert_int_equal(kg_buf_settle(emu(), &err), KG_EDEVICE);
    assert_non_null(strstr(err.message, "was written before it was waited for"));
    assert_true(down[3] == 3 && down[4] == 4);
    assert_int_equal(kg_buf_get_later(emu(), &first, y, sizeof first, &err), KG_EDEVICE);
    assert_non_null(strstr(err.message, "memory that is not page-locked"));
    assert_int_equal(kg_buf_get_later(emu(), down, y, bytes, &err), KG_OK);
    kg_buf_unpin(emu(), down);
    assert_int_equal(kg_buf_settle(emu(), &err), KG_EDEVICE);
    assert_non_null(strstr(err.message, "a copy of it was not waited for"));
    kg_buf_unpin(emu(), up);
    kg_buf_free(emu(), y);
}

/* A device zeros asynchronously, so alloc must call kg_dev_done. */
static void memory_is_zero_when_it_is_given(void **state)
{
    char *p, x[8];

    (void)state;
    p = there(sizeof x);
    assert_true(kg_emu_is_asked());
    assert_int_equal(kg_buf_get(emu(), x, p, sizeof x, &err), KG_OK);
    assert_memory_equal(x, ((const char[sizeof x]){0}), sizeof x);
    kg_buf_free(emu(), p);
}

static void a_lost_device_is_no_lack_of_memory(void **state)
{
    (void)state;
    (void)kg_emu_lose(0);
    assert_null(kg_buf_alloc(emu(), 8, "the anchor", &err));
    (void)kg_emu_lose(-1);
    assert_int_equal(err.code, KG_EDEVICE);
    assert_string_equal(err.message, "the anchor: the device is lost");
    kg_buf_free(emu(), there(8));
}

/* Whether a signal or a sanitizer ends a child that acts. */
static bool dies(void (*act)(void *), void *arg)
{
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        act(arg);
        _exit(0);
    }
    assert_true(waitpid(child, &status, 0) == child);
    return status != 0;
}

static void touch(void *p) { *(volatile char *)p = 1; }

static void write_beyond(void *y) { (void)trial(KG_TRIAL_BEYOND, KG_EMU_FORWARD, y); }

static void read_beyond(void *x)
{
    (void)kg_trial_run(KG_TRIAL_GOOD, x, (float *)x + 1, &err);
}

static void a_stray_touch_dies(void **state)
{
    float y[THREADS], *x = there(sizeof y);

    (void)state;
    assert_true(dies(touch, x));
    assert_true(dies(write_beyond, y));
    assert_true(dies(read_beyond, x));
    assert_false(dies(touch, y));
    kg_buf_free(emu(), x);
}

/* ---- matrix instruction ---- */
static void the_matrix_instruction_multiplies(void **state)
{
    uint16_t a[16 * 16], b[8 * 16], *in = there(sizeof a + sizeof b);
    float y[16 * 8], *out = there(sizeof y);

    (void)state;
    for (int i = 0; i < 256; i++)
        a[i] = kg_f32_to_bf16((float)(i * 37 % 101 - 50) / 8);
    for (int i = 0; i < 128; i++)
        b[i] = kg_f32_to_bf16((float)(i * 53 % 89 - 44) / 4);
    assert_int_equal(kg_buf_put(emu(), in, a, sizeof a, &err), KG_OK);
    assert_int_equal(kg_buf_put(emu(), in + 256, b, sizeof b, &err), KG_OK);
    for (int order = 0; order < KG_EMU_SCHEDULES; order++) {
        kg_emu_schedule((enum kg_emu_schedule)order);
        assert_int_equal(kg_trial_mma(out, in, in + 256, 0, &err), KG_OK);
        assert_int_equal(kg_buf_get(emu(), y, out, sizeof y, &err), KG_OK);
        for (int i = 0; i < 128; i++) {
            double sum = 0;

            for (int k = 0; k < 16; k++)
                sum += (double)kg_bf16_to_f32(a[i / 8 * 16 + k]) *
                       (double)kg_bf16_to_f32(b[i % 8 * 16 + k]);
            assert_true(sum == (double)y[i]);
        }
        assert_int_equal(kg_trial_mma(out, in, in + 256, 1, &err), KG_EDEVICE);
        assert_non_null(strstr(err.message, "a row of a matrix at line "));
    }
    kg_emu_schedule(KG_EMU_ROUND_ROBIN);
    kg_buf_free(emu(), in);
    kg_buf_free(emu(), out);
}

/* ---- products of four warps ---- */
enum { FOUR_M = 64, FOUR_N = 128, FOUR_K = 64 };

/* Integers small enough for exact sums. */
static float four_a(int i) { return (float)(i * 37 % 11 - 5); }
static float four_b(int i) { return (float)(i * 53 % 13 - 6); }

static bool is_product(const float *y)
{
    for (int i = 0; i < FOUR_M * FOUR_N; i++) {
        float sum = 0;

        for (int k = 0; k < FOUR_K; k++)
            sum += four_a(i / FOUR_N * FOUR_K + k) * four_b(i % FOUR_N * FOUR_K + k);
        if (!(y[i] == sum))
            return false;
    }
    return true;
}

/* y <- the result of a trial of kg_trial_four, or (two) of kg_trial_two
 * returns its status */
static kg_status trial_of(bool two, int t, enum kg_emu_schedule order, float *y)
{
    enum { A = FOUR_M * FOUR_K, B = FOUR_N * FOUR_K };
    static uint16_t x[A + B];
    const size_t bytes = FOUR_M * FOUR_N * sizeof *y;
    uint16_t *in = there(sizeof x);
    float *out = there(bytes);
    kg_status status;

    for (int i = 0; i < A + B; i++)
        x[i] = kg_f32_to_bf16(i < A ? four_a(i) : four_b(i - A));
    assert_int_equal(kg_buf_put(emu(), in, x, sizeof x, &err), KG_OK);
    kg_emu_schedule(order);
    status = two ? kg_trial_two((enum kg_trial_two)t, out, in, in + A, &err)
                 : kg_trial_four((enum kg_trial_four)t, out, in, in + A, &err);
    if (status == KG_OK)
        assert_int_equal(kg_buf_get(emu(), y, out, bytes, &err), KG_OK);
    kg_emu_schedule(KG_EMU_ROUND_ROBIN);
    kg_buf_free(emu(), in);
    kg_buf_free(emu(), out);
    return status;
}

struct fault {
    int trial;
    const char *says; /* "": no fault, but a wrong product */
};

/* Each shows in every order, and does not persist; trial 0 is good. */
static void each_shows(bool two, const struct fault *rows, size_t n)
{
    static float y[FOUR_M * FOUR_N];

    for (size_t i = 0; i < n; i++)
        for (int order = 0; order < KG_EMU_SCHEDULES; order++) {
            const bool faults = rows[i].says[0] != 0;

            assert_int_equal(trial_of(two, rows[i].trial, (enum kg_emu_schedule)order, y),
                             faults ? KG_EDEVICE : KG_OK);
            if (faults && !strstr(err.message, rows[i].says))
                fail_msg("expected \"%s\" in \"%s\"", rows[i].says, err.message);
            assert_true(faults || !is_product(y));
            assert_int_equal(trial_of(two, 0, (enum kg_emu_schedule)order, y), KG_OK);
            assert_true(is_product(y));
        }
}

static void what_four_warps_do_not_wait_for_is_no_number(void **state)
{
    static const struct fault rows[] = {
        {KG_FOUR_EARLY, ""},
        {KG_FOUR_SUMS, ""},
        {KG_FOUR_WRITTEN, "sums were written before the wait"},
        {KG_FOUR_LEFT, " ends before 4 products that it began"},
        {KG_FOUR_OVER, ""},
        {KG_FOUR_UNBEGUN, " is not begun"},
        {KG_FOUR_SHORT, " for others of its barrier"},
        {KG_FOUR_BOXES, "a block ends before 2 boxes that it began"},
        {KG_FOUR_ASKEW, "to a multiple of 1024"},
        {KG_FOUR_MORE, " barrier"}, /* too many arrivals, or a second phase */
    };

    (void)state;
    each_shows(false, rows, sizeof rows / sizeof *rows);
}

static void two_sums_are_waited_for_one_by_one(void **state)
{
    static const struct fault rows[] = {
        {KG_TWO_UNENDED, ""},
        {KG_TWO_WRITES, " ends before 4 writes that it began"},
        {KG_TWO_CHANGED, ""},
        {KG_TWO_FIRST, ""},
        {KG_TWO_AGAIN, " is not begun"},
        {KG_TWO_PLACE, ""},
    };

    (void)state;
    each_shows(true, rows, sizeof rows / sizeof *rows);
}

/* ---- records ---- */
struct turn {
    int calls;
    float *y, *x, *more;
    kg_status (*also)(struct turn *t);
};

static kg_status turn_round(void *arg, struct kg_err *e)
{
    struct turn *t = arg;

    t->calls++;
    KG_TRY(kg_trial_run(KG_TRIAL_GOOD, t->y, t->x, e));
    return t->also ? t->also(t) : KG_OK;
}

/* x <- number, number + 1, ..;   returns whether y is its reverse after a replay */
static bool turns(struct turn *t, uint64_t key, int number, const float *y)
{
    float x[THREADS];

    for (int i = 0; i < THREADS; i++)
        x[i] = (float)(number + i);
    assert_int_equal(kg_buf_put(emu(), t->x, x, sizeof x, &err), KG_OK);
    assert_int_equal(kg_op_replay(emu(), key, turn_round, t, &err), KG_OK);
    assert_int_equal(kg_buf_get(emu(), x, y, sizeof x, &err), KG_OK);
    return x[0] == (float)(number + THREADS - 1) && x[THREADS - 1] == (float)number;
}

static void what_is_recorded_is_launched_again(void **state)
{
    const size_t bytes = THREADS * sizeof(float);
    struct turn t = {.x = there(bytes), .y = there(bytes)};
    float *y = t.y, *other = there(bytes);

    (void)state;
    for (int call = 1; call <= 4; call++) {
        assert_true(turns(&t, 77, 10 * call, y));
        assert_int_equal(t.calls, call < 2 ? call : 2);
    }
    t.y = other; /* the record has the old arguments */
    assert_true(turns(&t, 77, 5, y));
    assert_true(turns(&t, 78, 6, other));
    assert_int_equal(t.calls, 3);
    kg_buf_free(emu(), there(1)); /* freeing memory ends all records */
    for (int number = 0; number < 3; number++)
        assert_true(turns(&t, 77, number, other));
    assert_int_equal(t.calls, 5);
    kg_buf_free(emu(), t.x);
    kg_buf_free(emu(), y);
    kg_buf_free(emu(), other);
}

static kg_status puts_more(struct turn *t)
{
    const float zero = 0;

    return kg_buf_put(emu(), t->y, &zero, sizeof zero, &err);
}
static kg_status gets(struct turn *t)
{
    float first;

    return kg_buf_get(emu(), &first, t->y, sizeof first, &err);
}
static kg_status takes(struct turn *t)
{
    (void)t;
    return kg_buf_alloc(emu(), 1, "test", &err) ? KG_OK : err.code;
}

static kg_status frees(struct turn *t)
{
    kg_buf_free(emu(), t->more);
    t->more = NULL;
    return kg_trial_run(KG_TRIAL_GOOD, t->y, t->x, &err);
}
static kg_status measures(struct turn *t)
{
    (void)kg_dev_seconds();
    return kg_trial_run(KG_TRIAL_GOOD, t->y, t->x, &err);
}

static void what_cannot_be_recorded_is_a_fault(void **state)
{
    static const struct {
        kg_status (*also)(struct turn *t);
        const char *says;
    } rows[] = {{puts_more, "put: put: it cannot be part of a record"},
                {gets, "get: get: it cannot be part of a record"},
                {takes, ": alloc: it cannot be part of a record"},
                {frees, ": free: it cannot be part of a record"},
                {measures, ": timing: it cannot be part of a record"}};
    const size_t bytes = THREADS * sizeof(float);
    struct turn t = {.x = there(bytes), .y = there(bytes)};

    (void)state;
    for (uint64_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        t.also = rows[i].also;
        t.calls = 0;
        assert_int_equal(kg_op_replay(emu(), i, turn_round, &t, &err), KG_OK);
        t.more = there(1);
        assert_int_equal(kg_op_replay(emu(), i, turn_round, &t, &err), KG_EDEVICE);
        assert_non_null(strstr(err.message, rows[i].says));
        assert_int_equal(t.calls, 2);
        kg_buf_free(emu(), t.more);
        t.more = NULL;
        t.also = NULL;
        for (int number = 0; number < 3; number++)
            assert_true(turns(&t, i, number, t.y));
        assert_int_equal(t.calls, 4);
    }
    kg_buf_free(emu(), t.x);
    kg_buf_free(emu(), t.y);
}

static kg_status fails_at_first(struct turn *t)
{
    return t->calls < 3 ? kg_fail(&err, KG_EINVAL, "call %d", t->calls) : KG_OK;
}
static kg_status fails_at_third(struct turn *t)
{
    return t->calls == 3 ? kg_fail(&err, KG_EINVAL, "call 3") : KG_OK;
}

static void a_body_that_fails_is_called_again(void **state)
{
    const size_t bytes = THREADS * sizeof(float);
    struct turn t = {.x = there(bytes), .y = there(bytes), .also = fails_at_first};

    (void)state;
    for (int call = 1; call < 3; call++) {
        assert_int_equal(kg_op_replay(emu(), 9, turn_round, &t, &err), KG_EINVAL);
        assert_int_equal(t.calls, call);
    }
    for (int number = 0; number < 3; number++)
        assert_true(turns(&t, 9, number, t.y));
    assert_int_equal(t.calls, 4);
    t.also = fails_at_third; /* which is recorded */
    t.calls = 1;
    assert_true(turns(&t, 10, 1, t.y));
    assert_int_equal(kg_op_replay(emu(), 10, turn_round, &t, &err), KG_EINVAL);
    for (int number = 0; number < 3; number++)
        assert_true(turns(&t, 10, number, t.y));
    assert_int_equal(t.calls, 4);
    kg_buf_free(emu(), t.x);
    kg_buf_free(emu(), t.y);
}

/* If there are many keys, the oldest record is discarded. */
static void records_are_of_some_keys(void **state)
{
    enum { KEYS = 70 };
    const size_t bytes = THREADS * sizeof(float);
    struct turn t = {.x = there(bytes), .y = there(bytes)};

    (void)state;
    for (uint64_t key = 0; key < KEYS; key++)
        for (int number = 0; number < 3; number++)
            assert_true(turns(&t, key, number, t.y));
    assert_int_equal(t.calls, 2 * KEYS);
    assert_true(turns(&t, KEYS - 1, 7, t.y));
    assert_int_equal(t.calls, 2 * KEYS);
    assert_true(turns(&t, 0, 7, t.y));
    assert_int_equal(t.calls, 2 * KEYS + 1);
    kg_buf_free(emu(), t.x);
    kg_buf_free(emu(), t.y);
}

/* As a device refuses launches after one that broke the recording. */
static kg_status breaks_a_record(struct turn *t)
{
    return t->calls == 2 ? kg_fail(&err, KG_EDEVICE, "the record is over") : KG_OK;
}

static void a_device_that_records_nothing_computes(void **state)
{
    const size_t bytes = THREADS * sizeof(float);
    struct turn t = {.x = there(bytes), .y = there(bytes)};

    (void)state;
    kg_emu_records(false);
    for (int number = 0; number < 4; number++)
        assert_true(turns(&t, 1, number, t.y));
    assert_int_equal(t.calls, 5); /* twice when recording was tried */
    t = (struct turn){.x = t.x, .y = t.y, .also = breaks_a_record};
    for (int number = 0; number < 3; number++)
        assert_true(turns(&t, 2, number, t.y));
    assert_int_equal(t.calls, 4);
    kg_emu_records(true);
    kg_buf_free(emu(), t.x);
    kg_buf_free(emu(), t.y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_without_a_fault_is_the_same_in_all_schedules),
        cmocka_unit_test(a_missing_barrier_shows_in_the_schedules),
        cmocka_unit_test(what_nobody_wrote_is_no_number),
        cmocka_unit_test(a_copy_is_there_when_it_was_waited_for),
        cmocka_unit_test(a_place_that_others_read_is_not_copied_to),
        cmocka_unit_test(faults_are_named_and_the_next_kernel_runs),
        cmocka_unit_test(memory_of_the_host_is_no_argument),
        cmocka_unit_test(a_fetch_wants_pinned_memory),
        cmocka_unit_test(a_copy_belongs_to_itself_until_it_is_waited_for),
        cmocka_unit_test(memory_is_zero_when_it_is_given),
        cmocka_unit_test(a_lost_device_is_no_lack_of_memory),
        cmocka_unit_test(a_stray_touch_dies),
        cmocka_unit_test(the_matrix_instruction_multiplies),
        cmocka_unit_test(what_four_warps_do_not_wait_for_is_no_number),
        cmocka_unit_test(two_sums_are_waited_for_one_by_one),
        cmocka_unit_test(what_is_recorded_is_launched_again),
        cmocka_unit_test(what_cannot_be_recorded_is_a_fault),
        cmocka_unit_test(a_body_that_fails_is_called_again),
        cmocka_unit_test(records_are_of_some_keys),
        cmocka_unit_test(a_device_that_records_nothing_computes),
    };
    const struct CMUnitTest none[] = {cmocka_unit_test(kernels_are_not_emulated)};

    return kg_emu_open ? cmocka_run_group_tests(tests, NULL, NULL)
                       : cmocka_run_group_tests(none, NULL, NULL);
}
