/* What the cuBLASLt of tests has beside NVIDIA's names (blas_fake.c). */
#ifndef KG_EMU_BLAS_FAKE_H
#define KG_EMU_BLAS_FAKE_H

#include <stdint.h>

/* Of the library, where it is not compiled otherwise: its version, what it says when it
 * is started, and the name of its product. */
#ifndef FAKE_VERSION
#define FAKE_VERSION 130100
#define FAKE_STATUS  KG_LT_OK
#define FAKE_MATMUL  cublasLtMatmul
#endif

/* The bits are those of STEADY. */
enum kg_fake_plan {
    KG_FAKE_STEADY,
    KG_FAKE_FEW,       /* the bits; refuses more than 256 rows */
    KG_FAKE_HALVES,    /* other bits, the fastest */
    KG_FAKE_ODD,       /* fast; other bits for odd numbers of rows above 16 */
    KG_FAKE_GAP,       /* fast; other bits for 100 to 130 rows */
    KG_FAKE_SLOW,      /* the bits */
    KG_FAKE_SPLIT,     /* other bits; says that it splits sums, which may be forbidden */
    KG_FAKE_WORKSPACE, /* other bits; wants memory, which may be forbidden */
    KG_FAKE_BIG,       /* the bits; refuses 64 rows and fewer */
    KG_FAKE_MANY,      /* other bits for more than 1,024 rows */
    KG_FAKE_WIDE,      /* other bits where N is more than 512 */
    KG_FAKE_HUGE,      /* other bits for more than 3,000 rows */
    KG_FAKE_NARROW,    /* other bits where C is bf16 */
    KG_FAKE_ADDS,      /* fast; other bits where C is added to */
};

enum kg_fake_mode {
    KG_FAKE_USUAL,
    KG_FAKE_NONE_FOR_FEW, /* BIG is the reference; few rows have plans of other bits */
    KG_FAKE_NOTHING,      /* only what was forbidden */
    KG_FAKE_EMPTY,        /* nothing at all */
    KG_FAKE_OTHER_MANY,   /* MANY is the reference */
    KG_FAKE_OTHER_WIDE,   /* WIDE is all that there is */
    KG_FAKE_OTHER_HUGE,   /* HUGE is the reference */
    KG_FAKE_BY_ADDING,    /* few rows have ADDS */
    KG_FAKE_OTHER_NARROW, /* NARROW is the reference */
};

/* The last product since the mode was set: by which plan, of how many rows, whose sums
 * are of how many factors. */
struct kg_fake_last {
    enum kg_fake_plan plan;
    int64_t rows;
    int64_t factors;
};

void kg_fake_set(enum kg_fake_mode mode);
struct kg_fake_last kg_fake_last(void);
double kg_fake_seconds(void); /* that all products would have taken */
int kg_fake_things(void);     /* handles and descriptions that were not destroyed */

#endif
