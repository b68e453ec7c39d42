/* Kernels with faults, for the emulation's own test. */
#ifndef KG_EMU_TESTING_H
#define KG_EMU_TESTING_H

#include "emu/emu.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KG_TRIAL_THREADS = 128 };

/* y (128) <- x (128) in reverse, through shared memory. What goes wrong: */
enum kg_trial {
    KG_TRIAL_GOOD,
    KG_TRIAL_NO_BARRIER,    /* between write and read */
    KG_TRIAL_SOME_BARRIER,  /* half of the threads do not come to it */
    KG_TRIAL_OTHER_BARRIER, /* they come to another one */
    KG_TRIAL_UNSET,         /* an element of shared memory is not written */
    KG_TRIAL_BEYOND,        /* the last thread writes past shared memory */
    KG_TRIAL_LANES,         /* an exchange without some of the lanes */
    KG_TRIAL_TOO_MANY,      /* more threads than a block has */
    KG_TRIAL_NO_BLOCK,
    KG_TRIAL_COPIES, /* nothing: shared memory is requested and filled by copies, ... */
    KG_TRIAL_LATE,   /* which are waited for when they were read, ... */
    KG_TRIAL_OVER,   /* or asked for again while others read, ... */
    KG_TRIAL_LEFT,   /* or never, ... */
    KG_TRIAL_ASKEW,  /* or begin anywhere */
    KG_TRIAL_ASKS,   /* for too much */
};
kg_status kg_trial_run(enum kg_trial trial, float *y, const float *x,
                       struct kg_err *err) KG_GUEST;

/* y (64 x 128) <- a (64 x 64) times b (128 x 64) transposed, both bf16, by four warps and
 * a thread that brings them. What goes wrong: */
enum kg_trial_four {
    KG_FOUR_GOOD,
    KG_FOUR_EARLY,   /* factors are not waited for */
    KG_FOUR_SUMS,    /* sums are read before the products are waited for, ... */
    KG_FOUR_WRITTEN, /* ... or written, ... */
    KG_FOUR_LEFT,    /* ... or never waited for */
    KG_FOUR_OVER,    /* factors are brought anew before the products are waited for */
    KG_FOUR_UNBEGUN, /* products are not begun */
    KG_FOUR_SHORT,   /* a barrier expects more bytes than come, ... */
    KG_FOUR_BOXES,   /* ... or its boxes are left, ... */
    KG_FOUR_ASKEW,   /* ... or come to any place, ... */
    KG_FOUR_MORE,    /* ... or more threads arrive than it expects */
    KG_FOUR_CASES
};
/* The same as two groups of products: 64 columns of y by rows of a that the four warps
 * write to shared memory, 64 by a in their registers. What goes wrong: */
enum kg_trial_two {
    KG_TWO_GOOD,
    KG_TWO_UNENDED, /* writes are not ended before the products, ... */
    KG_TWO_WRITES,  /* ... or never */
    KG_TWO_CHANGED, /* a register of a changes before the products are waited for */
    KG_TWO_FIRST,   /* both sums are read when one group was waited for */
    KG_TWO_AGAIN,   /* products after a wait are not begun */
    KG_TWO_PLACE,   /* eight rows of b are not where the products look */
    KG_TWO_CASES
};
kg_status kg_trial_two(enum kg_trial_two trial, float *y, const uint16_t *a,
                       const uint16_t *b, struct kg_err *err) KG_GUEST;
kg_status kg_trial_four(enum kg_trial_four trial, float *y, const uint16_t *a,
                        const uint16_t *b, struct kg_err *err) KG_GUEST;

/* y (16 x 8) <- a (16 x 16) times b (8 x 16) transposed, both bf16, by one warp
 * askew: rows of a begin beside a multiple of sixteen bytes */
kg_status kg_trial_mma(float *y, const uint16_t *a, const uint16_t *b, int askew,
                       struct kg_err *err) KG_GUEST;

#ifdef __cplusplus
}
#endif
#endif
