/* One value of a Parquet column as a value of a JSON document.
 *
 * A type that JSON lacks becomes a string without loss: decimals with their scale, times
 * with the column's digits.
 */
#include "data/parquet_internal.h"

#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SECONDS_A_DAY = 86400, JULIAN_1970 = 2440588, MAX_DECIMAL_BYTES = 32 };

static const struct kg_parquet_text *text_at(const void *values, size_t i)
{
    return (const struct kg_parquet_text *)values + i;
}

/* The integer of INT32 or INT64. */
static int64_t int_at(const struct kg_parquet_node *node, const void *values, size_t i)
{
    if (node->type == KG_PARQUET_INT32)
        return ((const int32_t *)values)[i];
    return ((const int64_t *)values)[i];
}

static kg_status check_text(const struct kg_parquet_text *t, struct kg_err *err)
{
    if (kg_utf8_is_valid(t->data, t->n))
        return KG_OK;
    return kg_fail(err, KG_EUNSUPPORTED,
                   "expected UTF-8 text, found %zu bytes that are not", t->n);
}

static kg_status add_unsigned(struct kg_json_builder *b,
                              const struct kg_parquet_node *node, int64_t v,
                              struct kg_err *err)
{
    uint64_t u = (uint64_t)v;
    char digits[24];

    if (node->bits < 64)
        u &= (UINT64_C(1) << node->bits) - 1;
    if (u <= INT64_MAX)
        return kg_json_add_int(b, (int64_t)u, err);
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)u);
    return kg_json_add_text(b, digits, strlen(digits), err);
}

/* ---- decimals ---- */

/* *magnitude: big-endian, without the sign */
static kg_status decimal_of(unsigned char magnitude[MAX_DECIMAL_BYTES], bool *negative,
                            const struct kg_parquet_node *node, const void *values,
                            size_t i, struct kg_err *err)
{
    const bool is_int = node->type == KG_PARQUET_INT32 || node->type == KG_PARQUET_INT64;
    const struct kg_parquet_text *t = is_int ? NULL : text_at(values, i);
    const size_t n = is_int ? sizeof(int64_t) : t->n;
    const uint64_t v = is_int ? (uint64_t)int_at(node, values, i) : 0;

    if (n < 1 || n > MAX_DECIMAL_BYTES)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "expected a decimal of 1 to %d bytes, found %zu",
                       MAX_DECIMAL_BYTES, n);
    *negative = is_int ? v >> 63 : (unsigned char)t->data[0] >> 7;
    memset(magnitude, *negative ? 0xff : 0, MAX_DECIMAL_BYTES);
    for (size_t b = 0; b < n; b++)
        magnitude[MAX_DECIMAL_BYTES - n + b] = is_int ? (unsigned char)(v >> 8 * (7 - b))
                                                      : (unsigned char)t->data[b];
    unsigned carry = *negative;
    for (int b = MAX_DECIMAL_BYTES; *negative && b-- > 0; carry >>= 8) {
        carry += (unsigned char)~magnitude[b];
        magnitude[b] = (unsigned char)carry;
    }
    return KG_OK;
}

/* n /= 10.   returns the remainder; *zero: the quotient is 0 */
static int divide_by_ten(unsigned char n[MAX_DECIMAL_BYTES], bool *zero)
{
    int rest = 0;

    *zero = true;
    for (int b = 0; b < MAX_DECIMAL_BYTES; b++) {
        rest = rest << 8 | n[b];
        n[b] = (unsigned char)(rest / 10);
        rest %= 10;
        *zero &= n[b] == 0;
    }
    return rest;
}

static kg_status put_decimal(struct kg_str *out, const struct kg_parquet_node *node,
                             const void *values, size_t i, struct kg_err *err)
{
    unsigned char magnitude[MAX_DECIMAL_BYTES];
    char digits[3 * MAX_DECIMAL_BYTES];
    char *p = digits + sizeof digits - 1;
    bool negative, zero = false;

    KG_TRY(decimal_of(magnitude, &negative, node, values, i, err));
    *p = 0;
    for (int written = 0; !zero || written <= node->scale;) {
        *--p = (char)('0' + divide_by_ten(magnitude, &zero));
        if (++written == node->scale)
            *--p = '.';
    }
    return kg_str_printf(out, err, "%s%s", negative ? "-" : "", p);
}

/* ---- dates and times ---- */

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* Year, month and day of a day counted from 1970-01-01, in the proleptic Gregorian
 * calendar: eras of 400 years that begin in March. */
static void civil(int64_t days, int64_t *year, int *month, int *day)
{
    int64_t z = days + 719468;
    int64_t era = floor_div(z, 146097);
    int64_t in_era = z - era * 146097;
    int64_t y = (in_era - in_era / 1460 + in_era / 36524 - in_era / 146096) / 365;
    int64_t in_year = in_era - (365 * y + y / 4 - y / 100);
    int64_t m = (5 * in_year + 2) / 153;

    *day = (int)(in_year - (153 * m + 2) / 5 + 1);
    *month = (int)(m < 10 ? m + 3 : m - 9);
    *year = y + era * 400 + (*month <= 2);
}

static kg_status put_date(struct kg_str *out, int64_t days, struct kg_err *err)
{
    int64_t year;
    int month, day;

    civil(days, &year, &month, &day);
    return kg_str_printf(out, err, "%04lld-%02d-%02d", (long long)year, month, day);
}

static int64_t units_a_second(int digits)
{
    return digits == 3 ? 1000 : digits == 6 ? 1000000 : 1000000000;
}

/* units: since midnight */
static kg_status put_clock(struct kg_str *out, int64_t units, int digits,
                           struct kg_err *err)
{
    int64_t one = units_a_second(digits);
    int64_t seconds = units / one;

    return kg_str_printf(out, err, "%02lld:%02lld:%02lld.%0*lld",
                         (long long)(seconds / 3600), (long long)(seconds / 60 % 60),
                         (long long)(seconds % 60), digits, (long long)(units % one));
}

static kg_status put_time(struct kg_str *out, int64_t units, int digits,
                          struct kg_err *err)
{
    if (units < 0 || units >= SECONDS_A_DAY * units_a_second(digits))
        return kg_fail(err, KG_EFORMAT, "expected a time of the day, found %lld",
                       (long long)units);
    return put_clock(out, units, digits, err);
}

static kg_status put_moment(struct kg_str *out, int64_t days, int64_t units, int digits,
                            const char *zone, struct kg_err *err)
{
    KG_TRY(put_date(out, days, err));
    KG_TRY(kg_str_putc(out, 'T', err));
    KG_TRY(put_clock(out, units, digits, err));
    return kg_str_puts(out, zone, err);
}

static kg_status put_timestamp(struct kg_str *out, const struct kg_parquet_node *node,
                               int64_t units, struct kg_err *err)
{
    int64_t a_day = SECONDS_A_DAY * units_a_second(node->scale);
    int64_t in_day = units % a_day;

    in_day += in_day < 0 ? a_day : 0;
    return put_moment(out, floor_div(units, a_day), in_day, node->scale,
                      node->utc ? "Z" : "", err);
}

/* INT96, Spark's old form of a timestamp: nanoseconds of the day, then the Julian day. */
static kg_status put_int96(struct kg_str *out, const struct kg_parquet_text *t,
                           struct kg_err *err)
{
    int64_t nanos;
    int32_t julian;

    memcpy(&nanos, t->data, sizeof nanos);
    memcpy(&julian, t->data + 8, sizeof julian);
    if (nanos < 0 || nanos >= SECONDS_A_DAY * units_a_second(9))
        return kg_fail(err, KG_EFORMAT, "expected nanoseconds of the day, found %lld",
                       (long long)nanos);
    return put_moment(out, (int64_t)julian - JULIAN_1970, nanos, 9, "", err);
}

/* ---- other types ---- */

static kg_status put_uuid(struct kg_str *out, const struct kg_parquet_text *t,
                          struct kg_err *err)
{
    for (int i = 0; i < 16; i++)
        KG_TRY(kg_str_printf(out, err, "%s%02x",
                             i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                             (unsigned char)t->data[i]));
    return KG_OK;
}

static float half_to_float(unsigned h)
{
    int exponent = (int)(h >> 10 & 31);
    float fraction = (float)(h & 1023);
    float x;

    if (exponent == 31)
        x = fraction > 0 ? NAN : INFINITY;
    else if (exponent == 0)
        x = ldexpf(fraction, -24);
    else
        x = ldexpf(fraction + 1024, exponent - 25);
    return h >> 15 ? -x : x;
}

/* The double of the shortest decimal that reads back as the float: 0.1, not
 * 0.100000001490116. */
static kg_status widen(double *x, float single, struct kg_str *scratch,
                       struct kg_err *err)
{
    kg_str_clear(scratch);
    KG_TRY(kg_json_put_float(scratch, single, err));
    *x = strtod(kg_str_text(scratch), NULL);
    return KG_OK;
}

static kg_status add_double(struct kg_json_builder *b, double x, struct kg_err *err)
{
    if (isnan(x))
        return kg_json_add_text(b, "nan", 3, err);
    if (isinf(x))
        return x > 0 ? kg_json_add_text(b, "inf", 3, err)
                     : kg_json_add_text(b, "-inf", 4, err);
    return kg_json_add_real(b, x, err);
}

static kg_status add_float(struct kg_json_builder *b, struct kg_str *scratch,
                           float single, struct kg_err *err)
{
    double x = (double)single;

    if (isfinite(single))
        KG_TRY(widen(&x, single, scratch, err));
    return add_double(b, x, err);
}

static kg_status add_half(struct kg_json_builder *b, struct kg_str *scratch,
                          const struct kg_parquet_text *t, struct kg_err *err)
{
    const unsigned char *half = (const unsigned char *)t->data;

    return add_float(b, scratch, half_to_float(half[0] | (unsigned)half[1] << 8), err);
}

/* Puts a value that becomes a string, without quotes. */
static kg_status put_text(struct kg_str *out, const struct kg_parquet_node *node,
                          const void *values, size_t i, struct kg_err *err)
{
    switch (node->kind) {
    case KG_PARQUET_AS_DECIMAL:
        return put_decimal(out, node, values, i, err);
    case KG_PARQUET_AS_DATE:
        return put_date(out, int_at(node, values, i), err);
    case KG_PARQUET_AS_TIME:
        return put_time(out, int_at(node, values, i), node->scale, err);
    case KG_PARQUET_AS_TIMESTAMP:
        return put_timestamp(out, node, int_at(node, values, i), err);
    case KG_PARQUET_AS_UUID:
        return put_uuid(out, text_at(values, i), err);
    default:
        return put_int96(out, text_at(values, i), err);
    }
}

static kg_status add_put_text(struct kg_json_builder *b, struct kg_str *scratch,
                              const struct kg_parquet_node *node, const void *values,
                              size_t i, struct kg_err *err)
{
    kg_str_clear(scratch);
    KG_TRY(put_text(scratch, node, values, i, err));
    return kg_json_add_text(b, kg_str_text(scratch), scratch->len, err);
}

static kg_status add_plain(struct kg_json_builder *b, struct kg_str *scratch,
                           const struct kg_parquet_node *node, const void *values,
                           size_t i, struct kg_err *err)
{
    const struct kg_parquet_text *t;

    switch (node->type) {
    case KG_PARQUET_BOOL:
        return kg_json_add_bool(b, ((const uint8_t *)values)[i] != 0, err);
    case KG_PARQUET_INT32:
    case KG_PARQUET_INT64:
        return kg_json_add_int(b, int_at(node, values, i), err);
    case KG_PARQUET_FLOAT:
        return add_float(b, scratch, ((const float *)values)[i], err);
    case KG_PARQUET_DOUBLE:
        return add_double(b, ((const double *)values)[i], err);
    case KG_PARQUET_INT96:
        return add_put_text(b, scratch, node, values, i, err);
    default:
        t = text_at(values, i);
        KG_TRY(check_text(t, err));
        return kg_json_add_text(b, t->data, t->n, err);
    }
}

kg_status kg_parquet_add_value(struct kg_json_builder *b, struct kg_str *scratch,
                               const struct kg_parquet_node *node, const void *values,
                               size_t i, struct kg_err *err)
{
    switch (node->kind) {
    case KG_PARQUET_AS_PLAIN:
        return add_plain(b, scratch, node, values, i, err);
    case KG_PARQUET_AS_UNSIGNED:
        return add_unsigned(b, node, int_at(node, values, i), err);
    case KG_PARQUET_AS_HALF:
        return add_half(b, scratch, text_at(values, i), err);
    default:
        return add_put_text(b, scratch, node, values, i, err);
    }
}

kg_status kg_parquet_add_key(struct kg_json_builder *b, const void *values, size_t i,
                             struct kg_err *err)
{
    const struct kg_parquet_text *t = text_at(values, i);

    KG_TRY(check_text(t, err));
    return kg_json_add_key(b, t->data, t->n, err);
}
