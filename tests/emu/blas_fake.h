/* Additional interface of the tests' fake cuBLASLt (blas_fake.c). */
#ifndef KG_EMU_BLAS_FAKE_H
#define KG_EMU_BLAS_FAKE_H

#include <stdint.h>

/* Compile-time defaults: its version, the status of its start, and the name of its
 * product function. */
#ifndef FAKE_VERSION
#define FAKE_VERSION 130100
#define FAKE_STATUS  KG_LT_OK
#define FAKE_MATMUL  cublasLtMatmul
#endif

/* "Same bits" means those of STEADY. */
enum kg_fake_plan {
    KG_FAKE_STEADY,
    KG_FAKE_FEW,       /* same bits; refuses more than 256 rows */
    KG_FAKE_HALVES,    /* other bits; the fastest */
    KG_FAKE_ODD,       /* fast; other bits for odd numbers of rows above 16 */
    KG_FAKE_GAP,       /* fast; other bits for 100 to 130 rows */
    KG_FAKE_SLOW,      /* same bits */
    KG_FAKE_SPLIT,     /* other bits; declares split sums, which may be forbidden */
    KG_FAKE_WORKSPACE, /* other bits; needs workspace, which may be forbidden */
    KG_FAKE_BIG,       /* same bits; refuses 64 rows and fewer */
    KG_FAKE_MANY,      /* other bits for more than 1,024 rows */
    KG_FAKE_WIDE,      /* other bits if N is more than 512 */
    KG_FAKE_HUGE,      /* other bits for more than 3,000 rows */
    KG_FAKE_NARROW,    /* other bits if C is bf16 */
    KG_FAKE_ADDS,      /* fast; other bits if C is accumulated */
    KG_FAKE_SHORT,     /* no product: the last eight factors are left out */
};

enum kg_fake_mode {
    KG_FAKE_USUAL,
    KG_FAKE_NONE_FOR_FEW, /* BIG is the reference; plans for few rows have other bits */
    KG_FAKE_NOTHING,      /* only forbidden plans */
    KG_FAKE_EMPTY,        /* no plans */
    KG_FAKE_OTHER_MANY,   /* MANY is the reference */
    KG_FAKE_OTHER_WIDE,   /* WIDE is the only plan */
    KG_FAKE_OTHER_HUGE,   /* HUGE is the reference */
    KG_FAKE_BY_ADDING,    /* ADDS is offered for few rows */
    KG_FAKE_OTHER_NARROW, /* NARROW is the reference */
    KG_FAKE_WRONG,        /* SHORT is the fastest */
    KG_FAKE_TWO_CLASSES,  /* HALVES before STEADY for many rows, one of each for few */
    KG_FAKE_OTHER_FEW,    /* as USUAL, but FEW alone is offered for few rows */
    KG_FAKE_FIFTH,        /* STEADY, of which all for few rows are, after four HALVES */
};

/* The last product since the mode was set: its plan, its rows, and the factors per
 * sum. */
struct kg_fake_last {
    enum kg_fake_plan plan;
    int64_t rows;
    int64_t factors;
};

void kg_fake_set(enum kg_fake_mode mode);
/* How many factors STEADY adds at once; 16, the default, are the bits of kedge's own
 * kernel, emulated. */
void kg_fake_add(int64_t factors);
struct kg_fake_last kg_fake_last(void);
double kg_fake_seconds(void); /* simulated time of all products */
int kg_fake_things(void);     /* handles and descriptions not destroyed */

#endif
