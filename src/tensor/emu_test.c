/* The emulation of devices finds what it is for: races, barriers that some never reach,
 * memory of the wrong kind or beyond its end. */
#include "tensor/backend_testing.h"
#include "tensor/cuda/emu_testing.h"

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

/* A trial on 0, 1, 2, ..   returns its status; what it left in y */
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

/* Whether a child ends by a signal, or by a sanitizer's word. */
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
        assert_int_equal(kg_trial_mma(out, in, in + 256, &err), KG_OK);
        assert_int_equal(kg_buf_get(emu(), y, out, sizeof y, &err), KG_OK);
        for (int i = 0; i < 128; i++) {
            double sum = 0;

            for (int k = 0; k < 16; k++)
                sum += (double)kg_bf16_to_f32(a[i / 8 * 16 + k]) *
                       (double)kg_bf16_to_f32(b[i % 8 * 16 + k]);
            assert_true(sum == (double)y[i]);
        }
    }
    kg_emu_schedule(KG_EMU_ROUND_ROBIN);
    kg_buf_free(emu(), in);
    kg_buf_free(emu(), out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_without_a_fault_is_the_same_in_all_schedules),
        cmocka_unit_test(a_missing_barrier_shows_in_the_schedules),
        cmocka_unit_test(what_nobody_wrote_is_no_number),
        cmocka_unit_test(a_copy_is_there_when_it_was_waited_for),
        cmocka_unit_test(faults_are_named_and_the_next_kernel_runs),
        cmocka_unit_test(memory_of_the_host_is_no_argument),
        cmocka_unit_test(a_stray_touch_dies),
        cmocka_unit_test(the_matrix_instruction_multiplies),
    };
    const struct CMUnitTest none[] = {cmocka_unit_test(kernels_are_not_emulated)};

    return kg_emu_open ? cmocka_run_group_tests(tests, NULL, NULL)
                       : cmocka_run_group_tests(none, NULL, NULL);
}
