/* Elementary functions: an argument is reduced to a remainder near 0 that keeps its
 * digits, a Taylor polynomial follows, and the large part is added last.
 *
 * The reduction is where digits are lost: x - n ln 2 cancels. So ln 2 is held in two
 * parts, of which the first has so few bits that n times it is exact, and a second double
 * carries the rounding error of the difference. Near 0 a polynomial with the plain
 * coefficients 1/k! may need more terms than a fitted one, but needs no explanation.
 * There is no table and no fused multiply-add: IEEE 754 defines every operation to the
 * last bit.
 */
#include "base/real.h"

#include "base/real_inline.h"

double kg_exp(double x) { return kg_real_exp(x); }
double kg_expm1(double x) { return kg_real_expm1(x); }
double kg_log(double x) { return kg_real_log(x); }
double kg_log1p(double x) { return kg_real_log1p(x); }

/* ---- circle ---- */
/* high + low = x - n pi/2, n the nearest; pi/2 is two parts of 33 bits and a rest */
static struct kg_real_near near_quarter(double x)
{
    double n = (x * 0x1.45f306dc9c883p-1 + kg_real_to_integer) - kg_real_to_integer;
    double a = x - n * 0x1.921fb544p+0;
    double b = n * 0x1.0b4611a6p-34;
    double c = n * 0x1.3198a2e037073p-69;
    double first = a - b;
    double lost = (a - first) - b;
    double high = first - (c - lost);
    return (struct kg_real_near){(int64_t)n, high, (first - high) - (c - lost)};
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
    struct kg_real_near r = near_quarter(x);
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
