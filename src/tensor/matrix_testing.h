/* Shared by tests of operations: matrices of either dtype, filled at random, read and
 * written element by element.
 *
 * Included by *_test.c only. A failing helper fails the test.
 */
#ifndef KG_TENSOR_MATRIX_TESTING_H
#define KG_TENSOR_MATRIX_TESTING_H

#include "base/mem.h"
#include "tensor/backend_testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static uint32_t random_state; /* set before draws that must repeat */

static inline double uniform(void) /* (-1, 1) */
{
    random_state = random_state * 1664525u + 1013904223u;
    return (double)(int32_t)random_state / 2147483648.0;
}

/* Zeros of the host; freed by kg_mem_free. */
static inline void *block_of(int64_t count, size_t size)
{
    struct kg_err no_memory;
    void *p = kg_mem_calloc((size_t)count, size, "test", &no_memory);

    assert_non_null(p);
    return p;
}

/* Zeros of the backend; data freed by buffer_free. */
static inline struct kg_mat matrix(enum kg_dtype dtype, int64_t rows, int64_t cols)
{
    return kg_mat(buffer_of(rows * cols, kg_dtype_traits(dtype)->bytes), dtype, rows,
                  cols);
}

static inline double get(struct kg_mat m, int64_t r, int64_t c)
{
    int64_t i = r * m.stride + c;

    return m.dtype == KG_F32 ? (double)((float *)m.data)[i]
                             : (double)kg_bf16_to_f32(((uint16_t *)m.data)[i]);
}

static inline void set(struct kg_mat m, int64_t r, int64_t c, double x)
{
    int64_t i = r * m.stride + c;

    if (m.dtype == KG_F32)
        ((float *)m.data)[i] = (float)x;
    else
        ((uint16_t *)m.data)[i] = kg_f32_to_bf16((float)x);
}

/* Uniform in (-size, size). */
static inline struct kg_mat random_matrix(enum kg_dtype dtype, int64_t rows, int64_t cols,
                                          double size)
{
    struct kg_mat m = matrix(dtype, rows, cols);

    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            set(m, r, c, size * uniform());
    return m;
}

#endif
