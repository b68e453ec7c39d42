/* Evaluates an expression by recursive descent, in FLINT's rationals. Each level of
 * precedence is a function that returns a value, so there is no tree. -2^2 is -4, and
 * powers group to the right. Depth is limited, and the size of a value is checked before
 * it is computed (9^9^9 is refused). If memory or time runs out, FLINT jumps out of the
 * session, so the value is written as text before the session ends. */
#include "math/math.h"

#include "math/flint_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DIGITS = 1000, MAX_PLACES = 30, ABOUT_PLACES = 12, TEXT_BYTES = 1600 };

static const char ZEROS[] = "000000000000000000000000000000";
_Static_assert(sizeof ZEROS == MAX_PLACES + 1, "as many zeros as places");

struct calculation {
    const char *text;
    size_t n;
    size_t at;
    int depth;
    char why[160]; /* not empty: there is no value */
};

static bool refuse(struct calculation *c, const char *why)
{
    snprintf(c->why, sizeof c->why, "%s", why);
    return false;
}

static void skip_blanks(struct calculation *c)
{
    while (c->at < c->n && isspace((unsigned char)c->text[c->at]))
        c->at++;
}

/* Consumes the sign if it comes next; skips spaces before it. */
static bool take(struct calculation *c, const char *sign)
{
    size_t len = strlen(sign);

    skip_blanks(c);
    if (c->n - c->at < len || memcmp(c->text + c->at, sign, len) != 0)
        return false;
    c->at += len;
    return true;
}

static bool take_minus(struct calculation *c)
{
    return take(c, "-") || take(c, "\xe2\x88\x92");
}

/* ** is a power, not two products. */
static bool take_times(struct calculation *c)
{
    skip_blanks(c);
    if (c->n - c->at >= 2 && memcmp(c->text + c->at, "**", 2) == 0)
        return false;
    return take(c, "*") || take(c, "\xc3\x97");
}

static bool take_over(struct calculation *c)
{
    return take(c, "/") || take(c, "\xc3\xb7");
}

static bool within_limits(struct calculation *c, const fmpq_t x)
{
    if (fmpz_bits(fmpq_numref(x)) <= KG_CALCULATE_MAX_BITS &&
        fmpz_bits(fmpq_denref(x)) <= KG_CALCULATE_MAX_BITS)
        return true;
    return refuse(c, "the numbers grow too large");
}

/* ---- numbers ---- */

static bool digit_at(const struct calculation *c, size_t i)
{
    return i < c->n && isdigit((unsigned char)c->text[i]);
}

/* A comma between thousands: three digits follow, no fourth. */
static bool is_thousands(const struct calculation *c, size_t i)
{
    return c->text[i] == ',' && digit_at(c, i + 1) && digit_at(c, i + 2) &&
           digit_at(c, i + 3) && !digit_at(c, i + 4);
}

/* Copies the digits at c->at, without thousands separators where these are allowed.
 * returns their number, or -1 for too many */
static int copy_digits(struct calculation *c, char *digits, int used, bool separators)
{
    int before = used;

    for (; c->at < c->n; c->at++) {
        if (separators && used > before && is_thousands(c, c->at))
            continue;
        if (!digit_at(c, c->at))
            break;
        if (used == MAX_DIGITS)
            return -1;
        digits[used++] = c->text[c->at];
    }
    return used - before;
}

static bool number(struct calculation *c, fmpq_t out)
{
    char digits[MAX_DIGITS + 1];
    int whole = copy_digits(c, digits, 0, true);
    int places = 0;

    if (whole >= 0 && c->at < c->n && c->text[c->at] == '.') {
        c->at++;
        places = copy_digits(c, digits, whole, false);
    }
    if (whole < 0 || places < 0)
        return refuse(c, "a number has too many digits");
    if (whole + places == 0)
        return refuse(c, "a decimal point has no digits");
    digits[whole + places] = 0;
    if (fmpz_set_str(fmpq_numref(out), digits, 10) != 0)
        return refuse(c, "a number cannot be read");
    fmpz_ui_pow_ui(fmpq_denref(out), 10, (ulong)places);
    fmpq_canonicalise(out);
    return within_limits(c, out);
}

/* ---- the grammar ---- */

static bool sum(struct calculation *c, fmpq_t out);

static bool unexpected(struct calculation *c)
{
    skip_blanks(c);
    if (c->at >= c->n)
        return refuse(c, "the expression ends too early");
    if (isprint((unsigned char)c->text[c->at]))
        snprintf(c->why, sizeof c->why, "'%c' at character %zu is not expected there",
                 c->text[c->at], c->at + 1);
    else
        snprintf(c->why, sizeof c->why, "character %zu is not expected there", c->at + 1);
    return false;
}

static bool primary(struct calculation *c, fmpq_t out)
{
    if (take(c, "("))
        return sum(c, out) && (take(c, ")") || unexpected(c));
    if (digit_at(c, c->at) || (c->at < c->n && c->text[c->at] == '.'))
        return number(c, out);
    return unexpected(c);
}

static bool postfix(struct calculation *c, fmpq_t out)
{
    if (!primary(c, out))
        return false;
    while (take(c, "%")) {
        fmpz_mul_ui(fmpq_denref(out), fmpq_denref(out), 100);
        fmpq_canonicalise(out);
        if (!within_limits(c, out))
            return false;
    }
    return true;
}

static bool raise_to(struct calculation *c, fmpq_t base, const fmpq_t exponent)
{
    slong bits = (slong)fmpz_bits(fmpq_numref(base));
    slong den_bits = (slong)fmpz_bits(fmpq_denref(base));

    bits = bits > den_bits ? bits : den_bits;
    if (!fmpz_is_one(fmpq_denref(exponent)))
        return refuse(c, "an exponent is not a whole number");
    if (fmpz_bits(fmpq_numref(exponent)) > 31)
        return refuse(c, "an exponent is too large");
    slong e = fmpz_get_si(fmpq_numref(exponent));
    if (fmpq_is_zero(base) && e < 0)
        return refuse(c, "division by zero");
    /* 0, 1 and -1 have at most one bit, and their powers stay small */
    if (bits > 1 && (bits - 1) * FLINT_ABS(e) > KG_CALCULATE_MAX_BITS)
        return refuse(c, "the numbers grow too large");
    fmpq_pow_si(base, base, e);
    return within_limits(c, base);
}

static bool signed_power(struct calculation *c, fmpq_t out)
{
    bool negative = take_minus(c);
    fmpq_t exponent;
    bool ok;

    if (++c->depth > KG_CALCULATE_MAX_DEPTH)
        return refuse(c, "the expression is nested too deeply");
    if (negative || take(c, "+")) {
        ok = signed_power(c, out);
        if (ok && negative)
            fmpq_neg(out, out);
        c->depth--;
        return ok;
    }
    ok = postfix(c, out);
    if (ok && (take(c, "^") || take(c, "**"))) {
        fmpq_init(exponent);
        ok = signed_power(c, exponent) && raise_to(c, out, exponent);
        fmpq_clear(exponent);
    }
    c->depth--;
    return ok;
}

static bool product(struct calculation *c, fmpq_t out)
{
    bool ok = signed_power(c, out);
    fmpq_t next;

    fmpq_init(next);
    while (ok) {
        bool times = take_times(c);

        if (!times && !take_over(c))
            break;
        ok = signed_power(c, next);
        if (ok && !times && fmpq_is_zero(next))
            ok = refuse(c, "division by zero");
        if (ok && times)
            fmpq_mul(out, out, next);
        else if (ok)
            fmpq_div(out, out, next);
        ok = ok && within_limits(c, out);
    }
    fmpq_clear(next);
    return ok;
}

static bool sum(struct calculation *c, fmpq_t out)
{
    bool ok = product(c, out);
    fmpq_t next;

    fmpq_init(next);
    while (ok) {
        bool plus = take(c, "+");

        if (!plus && !take_minus(c))
            break;
        ok = product(c, next);
        if (ok && plus)
            fmpq_add(out, out, next);
        else if (ok)
            fmpq_sub(out, out, next);
        ok = ok && within_limits(c, out);
    }
    fmpq_clear(next);
    return ok;
}

/* ---- the value as text ---- */

/* Divides x by the prime as often as it can.   returns how often */
static slong take_prime(fmpz_t x, ulong prime)
{
    slong times = 0;

    for (; fmpz_divisible_si(x, (slong)prime); times++)
        fmpz_divexact_ui(x, x, prime);
    return times;
}

/* The decimal places of x, or -1 if they never end. */
static slong places_of(const fmpq_t x)
{
    slong twos, fives;
    fmpz_t rest;

    fmpz_init_set(rest, fmpq_denref(x));
    twos = take_prime(rest, 2);
    fives = take_prime(rest, 5);
    bool ends = fmpz_is_one(rest);
    fmpz_clear(rest);
    if (!ends)
        return -1;
    return twos > fives ? twos : fives;
}

static kg_status put_whole(struct kg_str *out, const fmpz_t x, struct kg_err *err)
{
    char text[TEXT_BYTES];

    return kg_str_puts(out, fmpz_get_str(text, 10, x), err);
}

/* Appends x, cut after this number of decimal places. */
static kg_status put_decimal(struct kg_str *out, const fmpq_t x, slong places,
                             struct kg_err *err)
{
    char digits[TEXT_BYTES];
    fmpz_t scaled;

    fmpz_init(scaled);
    fmpz_ui_pow_ui(scaled, 10, (ulong)places);
    fmpz_mul(scaled, scaled, fmpq_numref(x));
    fmpz_tdiv_q(scaled, scaled, fmpq_denref(x));
    fmpz_abs(scaled, scaled);
    fmpz_get_str(digits, 10, scaled);
    fmpz_clear(scaled);
    size_t len = strlen(digits);
    if (fmpq_sgn(x) < 0)
        KG_TRY(kg_str_putc(out, '-', err));
    if (len <= (size_t)places)
        return kg_str_printf(out, err, "0.%.*s%s", (int)((size_t)places - len), ZEROS,
                             digits);
    return kg_str_printf(out, err, "%.*s.%s", (int)(len - (size_t)places), digits,
                         digits + len - (size_t)places);
}

static kg_status put_value(struct kg_str *out, const fmpq_t x, struct kg_err *err)
{
    slong places = places_of(x);

    if (places == 0)
        return put_whole(out, fmpq_numref(x), err);
    if (places > 0 && places <= MAX_PLACES)
        return put_decimal(out, x, places, err);
    KG_TRY(put_whole(out, fmpq_numref(x), err));
    KG_TRY(kg_str_putc(out, '/', err));
    KG_TRY(put_whole(out, fmpq_denref(x), err));
    KG_TRY(kg_str_puts(out, " (about ", err));
    KG_TRY(put_decimal(out, x, ABOUT_PLACES, err));
    return kg_str_putc(out, ')', err);
}

/* ---- the session ---- */

static kg_status calculate(struct calculation *c, struct kg_str *out, struct kg_err *err)
{
    kg_status status = KG_OK;
    fmpq_t value;

    fmpq_init(value);
    if (sum(c, value)) {
        skip_blanks(c);
        if (c->at < c->n)
            unexpected(c);
        else
            status = put_value(out, value, err);
    }
    fmpq_clear(value);
    return status;
}

static kg_status in_session(struct calculation *c, struct kg_str *out, struct kg_err *err)
{
    struct kg_math_budget budget;
    struct kg_math_session session;

    kg_math_budget_start(&budget);
    kg_math_session_begin(&session, &budget);
    int stopped = setjmp(session.out);
    kg_status status = stopped ? KG_OK : calculate(c, out, err);
    kg_math_session_end(stopped != 0);
    if (stopped == KG_MATH_STOP_NOMEM)
        return kg_fail(err, KG_ENOMEM, "out of memory in the calculator");
    if (stopped)
        refuse(c, kg_math_stop_reason((enum kg_math_stop)stopped));
    return status;
}

kg_status kg_math_calculate(struct kg_str *out, bool *found, const char *text, size_t n,
                            struct kg_err *err)
{
    struct calculation c = {.text = text, .n = n};
    size_t before = out->len;

    if (n > KG_CALCULATE_MAX_BYTES)
        refuse(&c, "the expression is too long");
    else
        KG_TRY(in_session(&c, out, err));
    *found = c.why[0] == 0;
    if (*found)
        return KG_OK;
    if (out->data)
        out->data[out->len = before] = 0;
    return kg_str_printf(out, err, "no value: %s", c.why);
}
