/* The CPU backend's memory is host memory.
 *
 * So a copy to or from the host is an ordinary copy. All threads copy a long range, in
 * pieces of a megabyte, because one core does not reach the memory's bandwidth. Inside a
 * parallel region the caller copies alone.
 */
#include "base/mem.h"
#include "tensor/cpu/cpu_internal.h"

enum { PIECE = 1 << 20 }; /* bytes */

static size_t piece(uint64_t bytes, uint64_t first)
{
    return bytes - first < PIECE ? (size_t)(bytes - first) : PIECE;
}

void *kg_cpu_alloc(uint64_t bytes, const char *what, struct kg_err *err)
{
    return kg_mem_calloc(bytes, 1, what, err);
}

void kg_cpu_free(void *memory) { kg_mem_free(memory); }

kg_status kg_cpu_copy(void *to, const void *from, uint64_t bytes, struct kg_err *err)
{
    (void)err;
#pragma omp parallel for schedule(static) if (bytes > PIECE && !omp_in_parallel())
    for (uint64_t i = 0; i < bytes; i += PIECE)
        memcpy((char *)to + i, (const char *)from + i, piece(bytes, i));
    return KG_OK;
}

kg_status kg_cpu_zero(void *to, uint64_t bytes, struct kg_err *err)
{
    (void)err;
#pragma omp parallel for schedule(static) if (bytes > PIECE && !omp_in_parallel())
    for (uint64_t i = 0; i < bytes; i += PIECE)
        memset((char *)to + i, 0, piece(bytes, i));
    return KG_OK;
}

static void swap_piece(char *a, char *b, size_t n)
{
    char held[256];

    for (size_t i = 0; i < n; i += sizeof held) {
        size_t part = n - i < sizeof held ? n - i : sizeof held;

        memcpy(held, a + i, part);
        memcpy(a + i, b + i, part);
        memcpy(b + i, held, part);
    }
}

kg_status kg_cpu_swap(void *a, void *b, uint64_t bytes, struct kg_err *err)
{
    (void)err;
#pragma omp parallel for schedule(static) if (bytes > PIECE && !omp_in_parallel())
    for (uint64_t i = 0; i < bytes; i += PIECE)
        swap_piece((char *)a + i, (char *)b + i, piece(bytes, i));
    return KG_OK;
}
