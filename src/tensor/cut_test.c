/* Every output of a product is in exactly one block, and threads that take blocks as they
 * become free have equal work.
 */
#include "tensor/cut.h"

#include "base/need_testing.h"

#include <stdbool.h>
#include <string.h>

/* Panels of a unit that threads share out, for each instruction set. */
static const int64_t unit_panels[] = {2, 3};
static const int64_t rows[] = {1, 3, 8, 16, 17, 64, 100, 512, 2048, 8192};
static const int64_t widths[] = {64, 896, 1536, 4864, 4870, 8960, 151936};
enum {
    N_UNITS = sizeof unit_panels / sizeof *unit_panels,
    N_ROWS = sizeof rows / sizeof *rows,
    N_WIDTHS = sizeof widths / sizeof *widths,
    MOST_THREADS = 64,
    MOST_ROWS = 256, /* of a block */
    MOST_PANELS = 16,
    /* a matrix is large if threads have at least so many rows times panels */
    LARGE = 4096
};

static struct kg_tiling cut_of(int64_t n, int64_t width, int64_t unit, int64_t threads)
{
    struct kg_tiling c = {
        .rows = n, .panels = (width + 15) / 16, .unit_rows = 1, .unit_panels = unit};
    kg_cut_for(&c, MOST_ROWS, MOST_PANELS, threads);
    return c;
}

/* Rows times panels of the thread that has most, if each thread takes the next block as
 * soon as it is idle. */
static int64_t most_work(const struct kg_tiling *c, int64_t threads)
{
    int64_t work[MOST_THREADS] = {0}, most = 0;
    for (int64_t i = 0; i < c->row_blocks * c->col_blocks; i++) {
        const struct kg_cut_block b = kg_cut_at(c, i);
        int64_t idle = 0;
        for (int64_t t = 1; t < threads; t++)
            idle = work[t] < work[idle] ? t : idle;
        work[idle] += b.rows * b.panels;
        most = work[idle] > most ? work[idle] : most;
    }
    return most;
}

/* returns whether the matrix is large enough */
static bool is_shared_out(int64_t n, int64_t width, int64_t unit, int64_t threads)
{
    const struct kg_tiling c = cut_of(n, width, unit, threads);
    const double mean = (double)(c.rows * c.panels) / (double)threads;
    const int64_t most = most_work(&c, threads);
    if (mean < LARGE)
        return false;
    if ((double)most > 1.1 * mean)
        fail_msg("%lld rows, %lld panels by %lld, %lld threads: %lld where the mean is "
                 "%.1f, %lld x %lld blocks",
                 (long long)n, (long long)c.panels, (long long)unit, (long long)threads,
                 (long long)most, mean, (long long)c.row_blocks, (long long)c.col_blocks);
    return true;
}

static void no_thread_has_more_than_a_tenth_above_the_mean(void **state)
{
    (void)state;
    int large = 0;
    for (int i = 0; i < N_UNITS * N_ROWS * N_WIDTHS; i++)
        for (int64_t threads = 1; threads <= MOST_THREADS; threads++)
            large += is_shared_out(rows[i % N_ROWS], widths[i / N_ROWS % N_WIDTHS],
                                   unit_panels[i / N_ROWS / N_WIDTHS], threads);
    assert_true(large > 1000);
}

static unsigned char seen[2100][24];

static void see(const struct kg_cut_block *b)
{
    assert_true(b->rows > 0 && b->panels > 0 && b->rows <= MOST_ROWS + 32);
    for (int64_t y = b->row; y < b->row + b->rows; y++)
        for (int64_t x = b->panel; x < b->panel + b->panels; x++)
            seen[y][x]++;
}

static void each_is_seen_once(int64_t n, int64_t panels, int64_t threads)
{
    struct kg_tiling c = {.rows = n,
                          .panels = panels,
                          .unit_rows = n % 2 ? 1 : 32,
                          .unit_panels = 1 + panels % 3};
    memset(seen, 0, sizeof seen);
    kg_cut_for(&c, MOST_ROWS, MOST_PANELS, threads);
    for (int64_t i = 0; i < c.row_blocks * c.col_blocks; i++) {
        const struct kg_cut_block b = kg_cut_at(&c, i);
        see(&b);
    }
    for (int64_t i = 0; i < n * panels; i++)
        assert_int_equal(seen[i / panels][i % panels], 1);
}

/* Also if units have 32 rows. */
static void every_output_is_in_one_block(void **state)
{
    (void)state;
    for (int64_t n = 1; n < 2100; n += 1 + n / 3)
        for (int64_t panels = 1; panels <= 24; panels += 3)
            for (int64_t threads = 1; threads <= MOST_THREADS; threads *= 4)
                each_is_seen_once(n, panels, threads);
}

/* No two threads write to one cache line: blocks begin where a unit does. */
static void blocks_begin_with_whole_units(void **state)
{
    (void)state;
    for (int64_t threads = 1; threads <= MOST_THREADS; threads++) {
        const struct kg_tiling c = cut_of(2048, 4870, 2, threads);
        for (int64_t i = 0; i < c.row_blocks * c.col_blocks; i++)
            assert_int_equal(kg_cut_at(&c, i).panel % c.unit_panels, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_thread_has_more_than_a_tenth_above_the_mean),
        cmocka_unit_test(every_output_is_in_one_block),
        cmocka_unit_test(blocks_begin_with_whole_units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
