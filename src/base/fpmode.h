/* The calling thread's floating-point mode: rounding, and treatment of subnormals.
 *
 * kedge needs KG_FP_EXACT: IEEE arithmetic, round to nearest, subnormals kept. Every
 * process starts in this mode, but a library linked with -ffast-math or a caller of
 * libkedge may have changed it. Code that needs a mode sets it and restores the old one.
 * Compilers may move arithmetic across a change of mode, so the arithmetic goes into a
 * function that is not inlined.
 */
#ifndef KG_BASE_FPMODE_H
#define KG_BASE_FPMODE_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
/* KG_FP_FLUSH treats subnormal operands and results as zero. _CUT, or-ed into a mode,
 * rounds towards zero. _FLAGS are the sticky exception bits, not part of the mode. */
enum {
    KG_FP_EXACT = 0x1f80,
    KG_FP_FLUSH = 0x9fc0,
    KG_FP_CUT = 0x6000,
    KG_FP_FLAGS = 0x3f
};
static inline unsigned kg_fp_mode(void) { return _mm_getcsr(); }
static inline void kg_fp_set_mode(unsigned mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
enum { KG_FP_EXACT = 0, KG_FP_FLUSH = 1 << 24, KG_FP_CUT = 3 << 22, KG_FP_FLAGS = 0 };
static inline unsigned kg_fp_mode(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return (unsigned)mode;
}
static inline void kg_fp_set_mode(unsigned mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode));
}
#else
enum { KG_FP_EXACT = 0, KG_FP_FLUSH = 0, KG_FP_CUT = 0, KG_FP_FLAGS = 0 };
static inline unsigned kg_fp_mode(void) { return KG_FP_EXACT; }
static inline void kg_fp_set_mode(unsigned mode) { (void)mode; }
#endif

/* In mode KG_FP_FLUSH, ARM detects a subnormal result before rounding and x86 after it.
 * The two differ only if a subnormal rounds up to 2^-126: ARM then flushes it and sets
 * its underflow flag.
 * results: memory that holds all results since the last call.
 * returns whether the flag was set, and clears it; always false if the CPU detects after
 * rounding */
static inline bool kg_fp_underflowed(const void *results)
{
    uint64_t flags = 0;
#if defined(__aarch64__)
    enum { UNDERFLOW = 8 };
    __asm__ volatile("mrs %0, fpsr" : "=r"(flags) : "r"(results) : "memory");
    flags &= UNDERFLOW;
    if (flags)
        __asm__ volatile("msr fpsr, xzr" : : : "memory");
#else
    (void)results;
#endif
    return flags != 0;
}

/* Sets KG_FP_EXACT if needed.   returns the previous mode */
static inline unsigned kg_fp_enter(void)
{
    unsigned mode = kg_fp_mode();
    if ((mode & ~(unsigned)KG_FP_FLAGS) != KG_FP_EXACT)
        kg_fp_set_mode(KG_FP_EXACT);
    return mode;
}
static inline void kg_fp_leave(unsigned mode)
{
    if ((mode & ~(unsigned)KG_FP_FLAGS) != KG_FP_EXACT)
        kg_fp_set_mode(mode);
}

#endif
