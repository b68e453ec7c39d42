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
    KG_TRIAL_LEFT,   /* or never, ... */
    KG_TRIAL_ASKEW,  /* or begin anywhere */
    KG_TRIAL_ASKS,   /* for too much */
};
kg_status kg_trial_run(enum kg_trial trial, float *y, const float *x,
                       struct kg_err *err) KG_GUEST;

/* y (16 x 8) <- a (16 x 16) times b (8 x 16) transposed, both bf16, by one warp
 * askew: rows of a begin beside a multiple of sixteen bytes */
kg_status kg_trial_mma(float *y, const uint16_t *a, const uint16_t *b, int askew,
                       struct kg_err *err) KG_GUEST;

#ifdef __cplusplus
}
#endif
#endif
