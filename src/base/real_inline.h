/* The bodies of kg_exp, kg_expm1, kg_log and kg_log1p of real.h, for compilation as
 * device code. real.c compiles the same text and explains it. */
#ifndef KG_BASE_REAL_INLINE_H
#define KG_BASE_REAL_INLINE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Prefix of each function; device code needs its own qualifier. */
#ifndef KG_REAL
#define KG_REAL static inline
#endif

static const double kg_real_ln2_high = 0x1.62e42feep-1; /* 32 bits: n times it is exact */
static const double kg_real_ln2_low = 0x1.a39ef35793c76p-33;
static const double kg_real_per_ln2 = 0x1.71547652b82fep+0;
static const double kg_real_to_integer = 0x1.8p52; /* x + this - this: x rounded */

KG_REAL uint64_t kg_real_bits(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

KG_REAL double kg_real_of_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* 2^n, -1022 <= n <= 1023 */
KG_REAL double kg_real_power_of_2(int64_t n)
{
    return kg_real_of_bits((uint64_t)(n + 1023) << 52);
}

/* ---- exponentials ---- */
/* (e^r - 1 - r) / r^2 for |r| <= 0.36 */
KG_REAL double kg_real_exp_tail(double r)
{
    static const double c[] = {1.0 / 2,          1.0 / 6,         1.0 / 24,
                               1.0 / 120,        1.0 / 720,       1.0 / 5040,
                               1.0 / 40320,      1.0 / 362880,    1.0 / 3628800,
                               1.0 / 39916800,   1.0 / 479001600, 1.0 / 6227020800,
                               1.0 / 87178291200};
    double p = c[12];
    for (int i = 11; i >= 0; i--)
        p = p * r + c[i];
    return p;
}

/* x = n ln 2 + high + low, |high| <= ln 2 / 2 */
struct kg_real_near {
    int64_t n;
    double high;
    double low;
};

KG_REAL struct kg_real_near kg_real_near_ln2(double x)
{
    double n = (x * kg_real_per_ln2 + kg_real_to_integer) - kg_real_to_integer;
    double a = x - n * kg_real_ln2_high;
    double b = n * kg_real_ln2_low;
    double high = a - b;
    return (struct kg_real_near){(int64_t)n, high, (a - high) - b};
}

/* e^(high + low) - 1 */
KG_REAL double kg_real_expm1_near(struct kg_real_near r)
{
    double square = r.high * r.high;
    return r.high + (square * kg_real_exp_tail(r.high) + (r.low + r.high * r.low));
}

KG_REAL double kg_real_exp(double x)
{
    if (!(x > -746.0))
        return x < 0.0 ? 0.0 : x;
    if (x > 710.0)
        return INFINITY;
    struct kg_real_near r = kg_real_near_ln2(x);
    double p = 1.0 + kg_real_expm1_near(r);
    if (r.n > 1000)
        return p * kg_real_power_of_2(r.n - 100) * 0x1p100;
    if (r.n < -1000)
        return p * kg_real_power_of_2(r.n + 100) * 0x1p-100;
    return p * kg_real_power_of_2(r.n);
}

KG_REAL double kg_real_expm1(double x)
{
    if (!(x > -50.0))
        return x < 0.0 ? -1.0 : x;
    if (x > 40.0)
        return kg_real_exp(x); /* 1 is below half an ulp of e^x */
    struct kg_real_near r = kg_real_near_ln2(x);
    if (r.n == 0)
        return x == 0.0 ? x : kg_real_expm1_near(r);
    /* 2^n (q + 1) - 1: the larger of 2^n - 1 and 2^n q first, then its rounding error */
    double scale = kg_real_power_of_2(r.n);
    double square = r.high * r.high;
    double rest = square * kg_real_exp_tail(r.high) + (r.low + r.high * r.low);
    double a = scale - 1.0;
    double lost = r.n > 0 ? (scale - a) - 1.0 : scale - (a + 1.0);
    double b = scale * r.high;
    double sum = a + b;
    double back = sum - a;
    return sum + (((a - (sum - back)) + (b - back)) + lost + scale * rest);
}

/* ---- logarithms ---- */
/* log(1+f) - f + f^2/2 = s (f^2/2 + 2 s^2/3 + 2 s^4/5 + ..), s = f / (2 + f) */
KG_REAL double kg_real_log_tail(double f, double half)
{
    static const double c[] = {2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11,
                               2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21};
    double s = f / (2.0 + f);
    double z = s * s;
    double p = c[9];
    for (int i = 8; i >= 0; i--)
        p = p * z + c[i];
    return s * (half + z * p);
}

/* log(2^e (1+f)) + low */
KG_REAL double kg_real_log_of_parts(double f, int64_t e, double low)
{
    double half = 0.5 * f * f;
    double tail = kg_real_log_tail(f, half);
    if (e == 0)
        return f - (half - (tail + low));
    double n = (double)e;
    return n * kg_real_ln2_high - ((half - (tail + (n * kg_real_ln2_low + low))) - f);
}

/* x = 2^e (1+f) with 1+f in [sqrt(1/2), sqrt 2), x normal */
KG_REAL double kg_real_split(double x, int64_t *e)
{
    uint64_t u = kg_real_bits(x);
    *e = (int64_t)(u >> 52) - 1023;
    double m = kg_real_of_bits((u & 0xfffffffffffffu) | 0x3ff0000000000000u);
    if (m >= 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        *e += 1;
    }
    return m - 1.0;
}

KG_REAL double kg_real_log(double x)
{
    int64_t e;
    if (!(x > 0.0))
        return x == 0.0 ? -INFINITY : NAN;
    if (x > 0x1.fffffffffffffp+1023)
        return x;
    bool small = x < 0x1p-1022;
    double f = kg_real_split(small ? x * 0x1p54 : x, &e);
    return kg_real_log_of_parts(f, small ? e - 54 : e, 0.0);
}

KG_REAL double kg_real_log1p(double x)
{
    int64_t e;
    if (!(x > -1.0))
        return x == -1.0 ? -INFINITY : NAN;
    if (x > 0x1p60)
        return kg_real_log(x);
    if (fabs(x) < 0x1p-54)
        return x;
    if (x > -0.29 && x < 0.41)
        return kg_real_log_of_parts(x, 0, 0.0);
    double u = 1.0 + x;
    double lost = x > 1.0 ? 1.0 - (u - x) : x - (u - 1.0);
    double f = kg_real_split(u, &e);
    return kg_real_log_of_parts(f, e, lost / u);
}

#endif
