/* A calculator: evaluates one expression of numbers exactly, as a rational.
 *
 * Numbers are decimals such as "1,234.5" ("2e3" is refused). Operators are + - * / ^
 * (also ** and the signs U+00D7, U+00F7, U+2212), brackets, and % after a number. The
 * value is written as an integer, as a decimal if it has at most 30 places, else as a
 * fraction with its first 12 decimals. Intermediate results are exact. Bytes, depth and
 * bits of a value are limited.
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

/* Appends the value to out; if there is none, sets *found to false and appends the reason
 * in plain words.
 * errors: ENOMEM. Nothing about the text is an error. */
kg_status kg_math_calculate(struct kg_str *out, bool *found, const char *text, size_t n,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
