/* Interface between the fibers (emu.c), asynchronous operations (emu_async.c) and sums of
 * products (emu_sums.c). */
#ifndef KG_EMU_INTERNAL_H
#define KG_EMU_INTERNAL_H

#include "emu/emu.h"

enum { KG_EMU_THREADS = 1024 /* of a block */ };

/* Ends the block with a fault of the running thread. */
_Noreturn void kg_emu_blame(const char *fmt, ...) KG_PRINTF(1, 2);

/* The running thread sleeps until another thread wakes it. */
void kg_emu_sleep(int line);
void kg_emu_wake(unsigned thread);

/* emu.c calls _begin before a block starts, _end when a thread of it ends. */
void kg_emu_async_begin(unsigned threads);
void kg_emu_async_end(unsigned thread);
/* Number of boxes of the block that no thread waited for. */
int kg_emu_boxes_left(void);

enum { KG_EMU_SUMS = 128 /* of a thread, at most */, KG_EMU_FACTORS = 16 };

/* The location of byte `at` of shared memory: sixteen bytes change places within each
 * 1,024. */
static inline char *kg_emu_placed(char *at)
{
    return (char *)((uintptr_t)at ^ ((uintptr_t)at / 128 % 8) * 16);
}

/* A thread's part of a product of four warps, laid out as in kg_mma, of the rows of its
 * warp. registers: instead of a, those of the four lanes of a row; or NULL. eights: sums
 * are rounded after eight factors, too. */
void kg_emu_sum(float *sums, int cols, unsigned thread, const struct kg_emu_factors *a,
                const uint32_t *const *registers, const struct kg_emu_factors *b,
                bool eights);

#endif
