/* Trees as exact numbers of Calcium, which can prove that a difference is zero. It keeps
 * a number as a formula in a field that grows with new roots and constants, and looks for
 * relations between them. So it decides sqrt(2) sqrt(3) = sqrt(6), which no precision of
 * balls does, but it may run without end. Therefore rational parts stay rational, and
 * powers, roots and digits have small limits. decide.c uses it only for numbers that
 * balls could not separate. */
#include "math/flint_internal.h"

enum {
    MAX_POWER = 400, /* largest exponent of a number that is not rational */
    MAX_INDEX = 60,  /* largest index of a root */
    MAX_BITS = 512,  /* bits of a rational part: Calcium factors radicands */
};

static void init(struct kg_math_eval *e, void *z) { ca_init(z, e->ctx); }
static void clear(struct kg_math_eval *e, void *z) { ca_clear(z, e->ctx); }

static bool defined(struct kg_math_eval *e, const ca_t z)
{
    if (ca_check_is_number(z, e->ctx) == T_TRUE)
        return true;
    e->undefined = true;
    return false;
}

static enum kg_math_answer direct(struct kg_math_eval *e, void *z, int node)
{
    enum kg_math_answer answer = KG_MATH_WALK;
    fmpq_t q;

    fmpq_init(q);
    if (kg_math_eval_fmpq(e, q, node)) {
        bool fits = fmpz_bits(fmpq_numref(q)) + fmpz_bits(fmpq_denref(q)) <= MAX_BITS;

        answer = fits ? KG_MATH_YES : KG_MATH_NO;
        e->large = e->large || !fits;
        if (fits)
            ca_set_fmpq(z, q, e->ctx);
    }
    fmpq_clear(q);
    return answer;
}

static bool constant(struct kg_math_eval *e, void *z, int op)
{
    if (op == KG_MATH_PI)
        ca_pi(z, e->ctx);
    else if (op == KG_MATH_I)
        ca_i(z, e->ctx);
    else
        ca_one(z, e->ctx);
    if (op == KG_MATH_E)
        ca_exp(z, z, e->ctx);
    return op == KG_MATH_PI || op == KG_MATH_E || op == KG_MATH_I;
}

static bool binary(struct kg_math_eval *e, void *z, const void *x, int kind)
{
    if (kind == KG_MATH_ADD)
        ca_add(z, z, x, e->ctx);
    else if (kind == KG_MATH_MUL)
        ca_mul(z, z, x, e->ctx);
    else if (kind == KG_MATH_DIV)
        ca_div(z, z, x, e->ctx);
    else
        ca_pow(z, z, x, e->ctx);
    return defined(e, z);
}

static void negate(struct kg_math_eval *e, void *z) { ca_neg(z, z, e->ctx); }

static void divide(struct kg_math_eval *e, void *z, ulong by)
{
    ca_div_ui(z, z, by, e->ctx);
}

static void sine(ca_t z, const ca_t x, ca_ctx_t ctx) { ca_sin_cos(z, NULL, x, ctx); }
static void cosine(ca_t z, const ca_t x, ca_ctx_t ctx) { ca_sin_cos(NULL, z, x, ctx); }

static void gamma_plus_one(ca_t z, const ca_t x, ca_ctx_t ctx)
{
    ca_add_ui(z, x, 1, ctx);
    ca_gamma(z, z, ctx);
}

static bool function(struct kg_math_eval *e, void *z, int op)
{
    static void (*const of[])(ca_t, const ca_t, ca_ctx_t) = {
        [KG_MATH_SQRT] = ca_sqrt,
        [KG_MATH_ABS] = ca_abs,
        [KG_MATH_EXP] = ca_exp,
        [KG_MATH_LN] = ca_log,
        [KG_MATH_SIN] = sine,
        [KG_MATH_COS] = cosine,
        [KG_MATH_TAN] = ca_tan,
        [KG_MATH_ASIN] = ca_asin,
        [KG_MATH_ACOS] = ca_acos,
        [KG_MATH_ATAN] = ca_atan,
        [KG_MATH_FLOOR] = ca_floor,
        [KG_MATH_CEIL] = ca_ceil,
        [KG_MATH_FACTORIAL] = gamma_plus_one,
    };

    of[op](z, z, e->ctx);
    return defined(e, z);
}

static enum kg_math_answer power(struct kg_math_eval *e, void *z, const fmpz_t exponent)
{
    if (!kg_math_is_within(exponent, MAX_POWER)) {
        e->large = true;
        return KG_MATH_NO;
    }
    ca_pow_si(z, z, fmpz_get_si(exponent), e->ctx);
    return defined(e, z) ? KG_MATH_YES : KG_MATH_NO;
}

/* As in eval_acb.c: the real root of a negative number with an odd index. */
static bool root(struct kg_math_eval *e, void *z, slong index)
{
    bool flip = index % 2 && ca_check_is_negative_real(z, e->ctx) == T_TRUE;
    ca_t exponent;

    if (index > MAX_INDEX) {
        e->large = true;
        return false;
    }
    ca_init(exponent, e->ctx);
    ca_set_si(exponent, index, e->ctx);
    ca_inv(exponent, exponent, e->ctx);
    if (flip)
        ca_neg(z, z, e->ctx);
    ca_pow(z, z, exponent, e->ctx);
    if (flip)
        ca_neg(z, z, e->ctx);
    ca_clear(exponent, e->ctx);
    return defined(e, z);
}

bool kg_math_eval_ca(struct kg_math_eval *e, ca_t out, int node)
{
    static const struct kg_math_algebra exact = {
        .functions = (2u << KG_MATH_FACTORIAL) - 1 + (1u << KG_MATH_FLOOR) +
                     (1u << KG_MATH_CEIL),
        .terms = 40,
        .init = init,
        .clear = clear,
        .direct = direct,
        .constant = constant,
        .binary = binary,
        .negate = negate,
        .divide = divide,
        .function = function,
        .power = power,
        .root = root,
    };

    return kg_math_walk(&exact, e, out, node);
}
