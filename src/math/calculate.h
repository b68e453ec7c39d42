/* A calculator: one expression of numbers, worked out exactly as a rational.
 *
 * Numbers are decimals ("1,234.5", "2e3" is none); operators + - * / ^ (also ** and the
 * signs U+00D7, U+00F7, U+2212), brackets, % behind a number. The value is written as a
 * whole number, as a decimal where that is exact in at most 30 places, else as a fraction
 * with its first 12 decimals. Nothing is rounded in between. Every expression has limits:
 * bytes, depth, bits of a value.
 */
#ifndef KG_MATH_CALCULATE_H
#define KG_MATH_CALCULATE_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    KG_CALCULATE_MAX_BYTES = 2048,
    KG_CALCULATE_MAX_DEPTH = 64,
    KG_CALCULATE_MAX_BITS = 4096, /* of a numerator or denominator */
};

/* Append the value to out, or, with *found false, in plain words why there is none.
 * errors: ENOMEM. Nothing about the text is an error. */
kg_status kg_math_calculate(struct kg_str *out, bool *found, const char *text, size_t n,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
