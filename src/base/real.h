/* Elementary functions with the same bits everywhere.
 *
 * C libraries differ in the last bits between versions, and between processors with and
 * without fused multiply-add. The arithmetic of a run uses these functions instead:
 * doubles with only +, -, *, / and comparisons, so every compiler and processor returns
 * the same bits. Errors (except kg_power's) are below 1 ulp; real_test.c measures them
 * against long double. NaN gives NaN.
 */
#ifndef KG_BASE_REAL_H
#define KG_BASE_REAL_H

#include <stdint.h>

double kg_exp(double x);
double kg_expm1(double x); /* e^x - 1, near 0 too */
double kg_log(double x);   /* log(0) = -inf; NaN below 0 */
double kg_log1p(double x); /* log(1 + x), near 0 too */
double kg_sin(double x);   /* |x| <= 2^20 */
double kg_cos(double x);   /* |x| <= 2^20 */
/* x^n for n >= 0 by squaring */
double kg_power(double x, int64_t n);

#endif
