/* Trees as rigorous complex balls: two that do not overlap are certainly different.
 *
 * A ball is a midpoint and a radius, and every operation widens the radius by its
 * rounding error, so the value is always in the ball. So balls can refute an equality and
 * never prove one. A ball that is not finite (a logarithm of zero) has no value. A
 * rational subtree is computed exactly and rounded once.
 */
#include "math/flint_internal.h"

enum {
    MAX_ARGUMENT = 1000000, /* largest argument of the gamma function */
    MAX_EXPONENT_BITS = 64, /* larger ones use acb_pow() */
};

static void init(struct kg_math_eval *e, void *z)
{
    (void)e;
    acb_init(z);
}

static void clear(struct kg_math_eval *e, void *z)
{
    (void)e;
    acb_clear(z);
}

static bool defined(struct kg_math_eval *e, const acb_t z)
{
    if (acb_is_finite(z))
        return true;
    e->undefined = true;
    return false;
}

static bool rational(struct kg_math_eval *e, acb_t z, int node)
{
    fmpq_t q;

    fmpq_init(q);
    bool ok = kg_math_eval_fmpq(e, q, node);
    if (ok)
        acb_set_fmpq(z, q, e->prec);
    fmpq_clear(q);
    return ok;
}

static enum kg_math_answer direct(struct kg_math_eval *e, void *z, int node)
{
    const struct kg_math_node *n = &e->tree->nodes[node];
    bool function = n->kind == KG_MATH_FUNC;
    const struct kg_math_bound *b = n->kind == KG_MATH_BOUND ? kg_math_bound_find(e, node)
                                                             : NULL;

    kg_math_step();
    if (b && b->range)
        acb_set_arb(z, b->range);
    if (n->kind == KG_MATH_BOUND)
        return (b && b->range) || rational(e, z, node) ? KG_MATH_YES : KG_MATH_NO;
    if (function && n->op == KG_MATH_FACTORIAL)
        return rational(e, z, node) ? KG_MATH_YES : KG_MATH_WALK;
    if (n->kind == KG_MATH_NUM || n->kind == KG_MATH_SYM || n->kind == KG_MATH_OPAQUE ||
        (function && (n->op == KG_MATH_BINOMIAL || n->op >= KG_MATH_GCD)))
        return rational(e, z, node) ? KG_MATH_YES : KG_MATH_NO;
    return KG_MATH_WALK;
}

static bool constant(struct kg_math_eval *e, void *z, int op)
{
    acb_zero(z);
    if (op == KG_MATH_PI)
        acb_const_pi(z, e->prec);
    else if (op == KG_MATH_E)
        arb_const_e(acb_realref((acb_ptr)z), e->prec);
    else if (op == KG_MATH_I)
        acb_onei(z);
    else
        return false;
    return true;
}

/* Whether z is negative, where only real roots and logarithms count (e->real). */
static bool unreal(struct kg_math_eval *e, const acb_t z)
{
    bool no = e->real && acb_is_real(z) && arb_is_negative(acb_realref(z));

    e->undefined = e->undefined || no;
    return no;
}

static bool binary(struct kg_math_eval *e, void *z, const void *x, int kind)
{
    if (kind == KG_MATH_POW && unreal(e, z))
        return false;
    if (kind == KG_MATH_ADD)
        acb_add(z, z, x, e->prec);
    else if (kind == KG_MATH_MUL)
        acb_mul(z, z, x, e->prec);
    else if (kind == KG_MATH_DIV)
        acb_div(z, z, x, e->prec);
    else
        acb_pow(z, z, x, e->prec);
    return defined(e, z);
}

static void negate(struct kg_math_eval *e, void *z)
{
    (void)e;
    acb_neg(z, z);
}

static void divide(struct kg_math_eval *e, void *z, ulong by)
{
    acb_div_ui(z, z, by, e->prec);
}

static bool gamma_plus_one(struct kg_math_eval *e, acb_t z)
{
    acb_add_ui(z, z, 1, e->prec);
    if (arf_cmpabs_d(arb_midref(acb_realref(z)), MAX_ARGUMENT) > 0) {
        e->large = true;
        return false;
    }
    acb_gamma(z, z, e->prec);
    return defined(e, z);
}

static bool function(struct kg_math_eval *e, void *z, int op)
{
    static void (*const of[])(acb_t, const acb_t, slong) = {
        [KG_MATH_SQRT] = acb_sqrt, [KG_MATH_EXP] = acb_exp,   [KG_MATH_LN] = acb_log,
        [KG_MATH_SIN] = acb_sin,   [KG_MATH_COS] = acb_cos,   [KG_MATH_TAN] = acb_tan,
        [KG_MATH_ASIN] = acb_asin, [KG_MATH_ACOS] = acb_acos, [KG_MATH_ATAN] = acb_atan,
    };
    acb_ptr out = z;
    arb_ptr real = acb_realref(out);

    if ((op == KG_MATH_SQRT || op == KG_MATH_LN) && unreal(e, z))
        return false;
    if (op == KG_MATH_FACTORIAL)
        return gamma_plus_one(e, z);
    if (op == KG_MATH_FLOOR || op == KG_MATH_CEIL) {
        (op == KG_MATH_FLOOR ? arb_floor : arb_ceil)(real, real, e->prec);
        return acb_is_real(out);
    }
    if (op == KG_MATH_ABS) {
        acb_abs(real, out, e->prec);
        arb_zero(acb_imagref(out));
    } else {
        of[op](z, z, e->prec);
    }
    return defined(e, z);
}

static enum kg_math_answer power(struct kg_math_eval *e, void *z, const fmpz_t exponent)
{
    if (fmpz_bits(exponent) > MAX_EXPONENT_BITS)
        return KG_MATH_WALK;
    acb_pow_fmpz(z, z, exponent, e->prec);
    return defined(e, z) ? KG_MATH_YES : KG_MATH_NO;
}

/* The principal root, but the real one of a negative number with an odd index. */
static bool root(struct kg_math_eval *e, void *z, slong index)
{
    bool flip = index % 2 && acb_is_real(z) && arb_is_negative(acb_realref((acb_ptr)z));

    if (index % 2 == 0 && unreal(e, z))
        return false;
    if (flip)
        acb_neg(z, z);
    acb_root_ui(z, z, (ulong)index, e->prec);
    if (flip)
        acb_neg(z, z);
    return defined(e, z);
}

bool kg_math_eval_acb(struct kg_math_eval *e, acb_t out, int node)
{
    static const struct kg_math_algebra balls = {
        .functions = (2u << KG_MATH_FACTORIAL) - 1 + (1u << KG_MATH_FLOOR) +
                     (1u << KG_MATH_CEIL),
        .terms = 5000,
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

    return kg_math_walk(&balls, e, out, node);
}
