/* Elementary functions: an argument is brought near 0 with a remainder that keeps its
 * digits, a Taylor polynomial follows, and the large part is added last.
 *
 * Bringing near is where digits are lost: x - n ln 2 cancels, so ln 2 is held in two
 * parts of which the first has so few bits that n times it is exact, and what the
 * difference loses is carried along as a second double. Near 0 a polynomial with the
 * plain coefficients 1/k! may need more terms than a fitted one and needs no
 * explanation. No table and no fused multiply-add: every operation is one that IEEE 754
 * defines to the last bit.
 */
#include "base/real.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static const double ln2_high = 0x1.62e42feep-1; /* 32 bits: n times it is exact */
static const double ln2_low = 0x1.a39ef35793c76p-33;
static const double per_ln2 = 0x1.71547652b82fep+0;
static const double to_integer = 0x1.8p52; /* added, rounds to an integer */

static uint64_t bits_of(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static double of_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* 2^n, -1022 <= n <= 1023 */
static double power_of_2(int64_t n) { return of_bits((uint64_t)(n + 1023) << 52); }

/* ---- exponentials ---- */
/* (e^r - 1 - r) / r^2 for |r| <= 0.36 */
static double exp_tail(double r)
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
struct near {
    int64_t n;
    double high;
    double low;
};

static struct near near_ln2(double x)
{
    double n = (x * per_ln2 + to_integer) - to_integer;
    double a = x - n * ln2_high;
    double b = n * ln2_low;
    double high = a - b;
    return (struct near){(int64_t)n, high, (a - high) - b};
}

/* e^(high + low) - 1 */
static double expm1_near(struct near r)
{
    double square = r.high * r.high;
    return r.high + (square * exp_tail(r.high) + (r.low + r.high * r.low));
}

double kg_exp(double x)
{
    if (!(x > -746.0))
        return x < 0.0 ? 0.0 : x;
    if (x > 710.0)
        return INFINITY;
    struct near r = near_ln2(x);
    double p = 1.0 + expm1_near(r);
    if (r.n > 1000)
        return p * power_of_2(r.n - 100) * 0x1p100;
    if (r.n < -1000)
        return p * power_of_2(r.n + 100) * 0x1p-100;
    return p * power_of_2(r.n);
}

double kg_expm1(double x)
{
    if (!(x > -50.0))
        return x < 0.0 ? -1.0 : x;
    if (x > 40.0)
        return kg_exp(x); /* the 1 is below half of its last digit */
    struct near r = near_ln2(x);
    if (r.n == 0)
        return x == 0.0 ? x : expm1_near(r);
    /* 2^n (q + 1) - 1: the larger of 2^n - 1 and 2^n q first, what it lost after it */
    double scale = power_of_2(r.n);
    double square = r.high * r.high;
    double rest = square * exp_tail(r.high) + (r.low + r.high * r.low);
    double a = scale - 1.0;
    double lost = r.n > 0 ? (scale - a) - 1.0 : scale - (a + 1.0);
    double b = scale * r.high;
    double sum = a + b;
    double back = sum - a;
    return sum + (((a - (sum - back)) + (b - back)) + lost + scale * rest);
}

/* ---- logarithms ---- */
/* log(1+f) - f + f^2/2 = s (f^2/2 + 2 s^2/3 + 2 s^4/5 + ..), s = f / (2 + f) */
static double log_tail(double f, double half)
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
static double log_of_parts(double f, int64_t e, double low)
{
    double half = 0.5 * f * f;
    double tail = log_tail(f, half);
    if (e == 0)
        return f - (half - (tail + low));
    double n = (double)e;
    return n * ln2_high - ((half - (tail + (n * ln2_low + low))) - f);
}

/* x = 2^e (1+f) with 1+f in [sqrt(1/2), sqrt 2), x normal */
static double split(double x, int64_t *e)
{
    uint64_t u = bits_of(x);
    *e = (int64_t)(u >> 52) - 1023;
    double m = of_bits((u & 0xfffffffffffffu) | 0x3ff0000000000000u);
    if (m >= 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        *e += 1;
    }
    return m - 1.0;
}

double kg_log(double x)
{
    int64_t e;
    if (!(x > 0.0))
        return x == 0.0 ? -INFINITY : NAN;
    if (x > 0x1.fffffffffffffp+1023)
        return x;
    bool small = x < 0x1p-1022;
    double f = split(small ? x * 0x1p54 : x, &e);
    return log_of_parts(f, small ? e - 54 : e, 0.0);
}

double kg_log1p(double x)
{
    int64_t e;
    if (!(x > -1.0))
        return x == -1.0 ? -INFINITY : NAN;
    if (x > 0x1p60)
        return kg_log(x);
    if (fabs(x) < 0x1p-54)
        return x;
    if (x > -0.29 && x < 0.41)
        return log_of_parts(x, 0, 0.0);
    double u = 1.0 + x;
    double lost = x > 1.0 ? 1.0 - (u - x) : x - (u - 1.0);
    double f = split(u, &e);
    return log_of_parts(f, e, lost / u);
}

/* ---- circle ---- */
/* high + low = x - n pi/2, n the nearest; pi/2 in three parts of 33 bits and a rest */
static struct near near_quarter(double x)
{
    double n = (x * 0x1.45f306dc9c883p-1 + to_integer) - to_integer;
    double a = x - n * 0x1.921fb544p+0;
    double b = n * 0x1.0b4611a6p-34;
    double c = n * 0x1.3198a2e037073p-69;
    double first = a - b;
    double lost = (a - first) - b;
    double high = first - (c - lost);
    return (struct near){(int64_t)n, high, (first - high) - (c - lost)};
}

static double sin_near(double r, double low)
{
    static const double c[] = {
        -1.0 / 6,        1.0 / 120,        -1.0 / 5040,          1.0 / 362880,
        -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};
    double z = r * r;
    double p = c[7];
    for (int i = 6; i >= 0; i--)
        p = p * z + c[i];
    return r + (r * z * p + low * (1.0 - 0.5 * z));
}

static double cos_near(double r, double low)
{
    static const double c[] = {
        1.0 / 24,        -1.0 / 720,         1.0 / 40320,         -1.0 / 3628800,
        1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000};
    double z = r * r;
    double p = c[6];
    for (int i = 5; i >= 0; i--)
        p = p * z + c[i];
    double half = 0.5 * z;
    double one = 1.0 - half;
    return one + (((1.0 - one) - half) + (z * z * p - r * low));
}

static double quarter(double x, int64_t ahead)
{
    struct near r = near_quarter(x);
    int64_t n = (r.n + ahead) & 3;
    double y = n & 1 ? cos_near(r.high, r.low) : sin_near(r.high, r.low);
    return n & 2 ? -y : y;
}

double kg_sin(double x) { return x == 0.0 ? x : quarter(x, 0); }
double kg_cos(double x) { return quarter(x, 1); }

/* ---- powers ---- */
double kg_power(double x, int64_t n)
{
    double y = 1.0;
    for (; n > 0; n >>= 1, x *= x)
        if (n & 1)
            y *= x;
    return y;
}
