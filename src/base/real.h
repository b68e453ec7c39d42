/* Elementary functions whose bits are kedge's own.
 *
 * A C library promises no bits: they differ between versions, and within one between
 * processors with fused multiply-add and without. What stands in the arithmetic of a run
 * comes from here: doubles, of which only +, -, *, / and comparisons are asked, so every
 * compiler and processor returns the same. At most 1 ulp off, measured against a library
 * of many digits in real_test.c. NaN gives NaN.
 */
#ifndef KG_BASE_REAL_H
#define KG_BASE_REAL_H

#include <stdint.h>

double kg_exp(double x);
double kg_expm1(double x); /* e^x - 1, near 0 too */
double kg_log(double x);   /* -inf of 0, NaN below */
double kg_log1p(double x); /* log(1 + x), near 0 too */
double kg_sin(double x);   /* |x| <= 2^20 */
double kg_cos(double x);   /* |x| <= 2^20 */
/* x^n for n >= 0 by squaring */
double kg_power(double x, int64_t n);

#endif
