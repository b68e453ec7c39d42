/* Kernels with deliberate faults, for the test of the emulation. */
#ifndef KG_EMU_TESTING_H
#define KG_EMU_TESTING_H

#include "emu/emu.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KG_TRIAL_THREADS = 128 };

/* y (128) <- x (128) in reverse order, through shared memory. The faults: */
enum kg_trial {
    KG_TRIAL_GOOD,
    KG_TRIAL_NO_BARRIER,    /* no barrier between write and read */
    KG_TRIAL_SOME_BARRIER,  /* half of the threads do not reach the barrier */
    KG_TRIAL_OTHER_BARRIER, /* half of the threads reach another barrier */
    KG_TRIAL_UNSET,         /* one element of shared memory stays unwritten */
    KG_TRIAL_BEYOND,        /* the last thread writes past shared memory */
    KG_TRIAL_LANES,         /* an exchange without some of the lanes */
    KG_TRIAL_TOO_MANY,      /* more threads than a block has */
    KG_TRIAL_NO_BLOCK,
    KG_TRIAL_COPIES, /* no fault: copies fill dynamic shared memory */
    KG_TRIAL_LATE,   /* the wait for copies follows the read */
    KG_TRIAL_OVER,   /* new copies start while others read */
    KG_TRIAL_LEFT,   /* no wait for copies */
    KG_TRIAL_ASKEW,  /* sources are not aligned to 16 bytes */
    KG_TRIAL_ASKS,   /* requests too much shared memory */
};
kg_status kg_trial_run(enum kg_trial trial, float *y, const float *x,
                       struct kg_err *err) KG_GUEST;

/* y (64 x 128) <- a (64 x 64) b (128 x 64)^T in bf16 by wgmma; one thread copies a and b
 * to shared memory by TMA. The faults: */
enum kg_trial_four {
    KG_FOUR_GOOD,
    KG_FOUR_EARLY,   /* no wait for the factors */
    KG_FOUR_SUMS,    /* sums are read before the wait for products */
    KG_FOUR_WRITTEN, /* sums are written before the wait */
    KG_FOUR_LEFT,    /* no wait for products */
    KG_FOUR_OVER,    /* new factors are copied before the wait for products */
    KG_FOUR_UNBEGUN, /* no kg_products_begin */
    KG_FOUR_SHORT,   /* a barrier expects more bytes than arrive */
    KG_FOUR_BOXES,   /* no wait for the barrier of the boxes */
    KG_FOUR_ASKEW,   /* the destination of a box is not aligned */
    KG_FOUR_MORE,    /* more arrivals at a barrier than it expects */
    KG_FOUR_CASES
};
/* As above in two groups of products: for 64 columns of y, threads write a to shared
 * memory; for the other 64, a is in registers. The faults: */
enum kg_trial_two {
    KG_TWO_GOOD,
    KG_TWO_UNENDED, /* kg_writes_end follows the products */
    KG_TWO_WRITES,  /* no kg_writes_end */
    KG_TWO_CHANGED, /* a register of a changes before the wait for products */
    KG_TWO_FIRST,   /* both sums are read after a wait for one group */
    KG_TWO_AGAIN,   /* no kg_products_begin for products after a wait */
    KG_TWO_PLACE,   /* wrong `eight` in the descriptor of b */
    KG_TWO_CASES
};
kg_status kg_trial_two(enum kg_trial_two trial, float *y, const uint16_t *a,
                       const uint16_t *b, struct kg_err *err) KG_GUEST;
kg_status kg_trial_four(enum kg_trial_four trial, float *y, const uint16_t *a,
                        const uint16_t *b, struct kg_err *err) KG_GUEST;

/* y (16 x 8) <- a (16 x 16) b (8 x 16)^T in bf16, by kg_mma. askew: rows of a begin this
 * many elements after a multiple of sixteen bytes */
kg_status kg_trial_mma(float *y, const uint16_t *a, const uint16_t *b, int askew,
                       struct kg_err *err) KG_GUEST;

#ifdef __cplusplus
}
#endif
#endif
