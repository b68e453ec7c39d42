/* Additional interface of the tests' fake cuBLASLt (blas_fake.c). */
#ifndef KG_EMU_BLAS_FAKE_H
#define KG_EMU_BLAS_FAKE_H

#include <stdint.h>

/* Compile-time defaults: its version, the status of cublasLtCreate, and the name under
 * which it exports cublasLtMatmul. */
#ifndef FAKE_VERSION
#define FAKE_VERSION 130100
#define FAKE_STATUS  KG_LT_OK
#define FAKE_MATMUL  cublasLtMatmul
#endif

/* "Same bits": the bits of STEADY; "rows": those of C; "few rows": at most 1,024. */
enum kg_fake_plan {
    KG_FAKE_STEADY,
    KG_FAKE_FEW,       /* same bits; refuses more than 256 rows */
    KG_FAKE_HALVES,    /* other bits; the fastest */
    KG_FAKE_ODD,       /* fast; other bits for odd numbers of rows above 16 */
    KG_FAKE_GAP,       /* fast; other bits for 100 to 130 rows */
    KG_FAKE_SLOW,      /* same bits */
    KG_FAKE_SPLIT,     /* other bits; splits sums, which callers may forbid */
    KG_FAKE_WORKSPACE, /* other bits; needs workspace, which callers may forbid */
    KG_FAKE_BIG,       /* same bits; refuses 64 rows and fewer */
    KG_FAKE_MANY,      /* other bits for more than 1,024 rows */
    KG_FAKE_WIDE,      /* other bits if N is more than 512 */
    KG_FAKE_HUGE,      /* other bits for more than 3,000 rows */
    KG_FAKE_NARROW,    /* other bits if C is bf16 */
    KG_FAKE_ADDS,      /* fast; other bits if C is accumulated */
    KG_FAKE_SHORT,     /* wrong: leaves out the last eight factors */
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
    KG_FAKE_TWO_CLASSES,  /* STEADY's bits and others; for many rows, others first */
    KG_FAKE_OTHER_FEW,    /* as USUAL, but FEW is the only plan for few rows */
    KG_FAKE_FIFTH,        /* four HALVES before STEADY for many rows; same bits for few */
};

/* The last product since kg_fake_set: its plan, rows, and factors per sum. */
struct kg_fake_last {
    enum kg_fake_plan plan;
    int64_t rows;
    int64_t factors;
};

void kg_fake_set(enum kg_fake_mode mode);
/* Sets how many factors STEADY adds at once. The default, 16, gives the bits of kedge's
 * emulated own kernel. */
void kg_fake_add(int64_t factors);
/* Whether all plans refuse sums that stand apart from the result. Returns how many
 * products were refused for this since the last call. */
int kg_fake_in_place(int only);
struct kg_fake_last kg_fake_last(void);
double kg_fake_seconds(void); /* simulated time of all products */
int kg_fake_things(void);     /* live handles and descriptions */

#endif
