/* Trees as rigorous complex balls: two that do not overlap are different for certain. */
#include "math/flint_internal.h"

enum {
    MAX_ARGUMENT = 1000000, /* of a factorial that is no whole number */
    MAX_EXPONENT_BITS = 64, /* larger ones go by the exponential function */
};

static bool defined(struct kg_math_eval *e, const acb_t x)
{
    if (acb_is_finite(x))
        return true;
    e->undefined = true;
    return false;
}

/* The trigonometric functions take 30 degrees as pi / 6. */
static bool angle(struct kg_math_eval *e, acb_t out, int node)
{
    acb_t pi;

    if (!kg_math_eval_acb(e, out, node))
        return false;
    if (e->tree->nodes[node].kind != KG_MATH_DEGREE)
        return true;
    acb_init(pi);
    acb_const_pi(pi, e->prec);
    acb_mul(out, out, pi, e->prec);
    acb_div_ui(out, out, 180, e->prec);
    acb_clear(pi);
    return true;
}

static bool power(struct kg_math_eval *e, acb_t out, const struct kg_math_node *n)
{
    const struct kg_math_node *base = &e->tree->nodes[n->a];
    acb_t x;
    fmpq_t q;
    bool ok;

    acb_init(x);
    fmpq_init(q);
    if (base->kind == KG_MATH_CONST && base->op == KG_MATH_E) {
        ok = kg_math_eval_acb(e, out, n->b);
        acb_exp(out, out, e->prec);
    } else if (kg_math_eval_fmpq(e, q, n->b) && fmpz_is_one(fmpq_denref(q)) &&
               fmpz_bits(fmpq_numref(q)) <= MAX_EXPONENT_BITS) {
        ok = kg_math_eval_acb(e, out, n->a);
        acb_pow_fmpz(out, out, fmpq_numref(q), e->prec);
    } else {
        ok = kg_math_eval_acb(e, out, n->a) && kg_math_eval_acb(e, x, n->b);
        acb_pow(out, out, x, e->prec);
    }
    fmpq_clear(q);
    acb_clear(x);
    return ok && defined(e, out);
}

/* The real root where there is one: of a negative number with an odd index. */
static bool root(struct kg_math_eval *e, acb_t out, const struct kg_math_node *n)
{
    slong index;
    bool flip;

    if (!kg_math_eval_acb(e, out, n->a) || !kg_math_eval_whole(e, &index, n->b, 10000) ||
        index < 1)
        return false;
    flip = index % 2 && acb_is_real(out) && arb_is_negative(acb_realref(out));
    if (flip)
        acb_neg(out, out);
    acb_root_ui(out, out, (ulong)index, e->prec);
    if (flip)
        acb_neg(out, out);
    return defined(e, out);
}

static bool gamma_plus_one(struct kg_math_eval *e, acb_t out, int node)
{
    if (!kg_math_eval_acb(e, out, node))
        return false;
    acb_add_ui(out, out, 1, e->prec);
    if (arf_cmpabs_d(arb_midref(acb_realref(out)), MAX_ARGUMENT) > 0) {
        e->large = true;
        return false;
    }
    acb_gamma(out, out, e->prec);
    return defined(e, out);
}

static bool rounded(struct kg_math_eval *e, acb_t out, int func, int node)
{
    if (!kg_math_eval_acb(e, out, node) || !acb_is_real(out))
        return false;
    if (func == KG_MATH_FLOOR)
        arb_floor(acb_realref(out), acb_realref(out), e->prec);
    else
        arb_ceil(acb_realref(out), acb_realref(out), e->prec);
    return true;
}

static bool call(struct kg_math_eval *e, acb_t out, const struct kg_math_node *n)
{
    slong prec = e->prec;

    switch ((enum kg_math_func)n->op) {
    case KG_MATH_ROOT:
        return root(e, out, n);
    case KG_MATH_FACTORIAL:
        return gamma_plus_one(e, out, n->a);
    case KG_MATH_FLOOR:
    case KG_MATH_CEIL:
        return rounded(e, out, n->op, n->a);
    default:
        break;
    }
    if (n->op > KG_MATH_ATAN || !angle(e, out, n->a))
        return false;
    switch ((enum kg_math_func)n->op) {
    case KG_MATH_SQRT:
        acb_sqrt(out, out, prec);
        break;
    case KG_MATH_ABS:
        acb_abs(acb_realref(out), out, prec);
        arb_zero(acb_imagref(out));
        break;
    case KG_MATH_EXP:
        acb_exp(out, out, prec);
        break;
    case KG_MATH_LN:
        acb_log(out, out, prec);
        break;
    case KG_MATH_SIN:
        acb_sin(out, out, prec);
        break;
    case KG_MATH_COS:
        acb_cos(out, out, prec);
        break;
    case KG_MATH_TAN:
        acb_tan(out, out, prec);
        break;
    case KG_MATH_ASIN:
        acb_asin(out, out, prec);
        break;
    case KG_MATH_ACOS:
        acb_acos(out, out, prec);
        break;
    default:
        acb_atan(out, out, prec);
        break;
    }
    return defined(e, out);
}

static bool constant(acb_t out, int op, slong prec)
{
    switch (op) {
    case KG_MATH_PI:
        acb_const_pi(out, prec);
        return true;
    case KG_MATH_E:
        arb_const_e(acb_realref(out), prec);
        arb_zero(acb_imagref(out));
        return true;
    case KG_MATH_I:
        acb_onei(out);
        return true;
    default:
        return false;
    }
}

static bool binary(struct kg_math_eval *e, acb_t out, const struct kg_math_node *n)
{
    acb_t right;
    bool ok;

    if (n->kind == KG_MATH_POW)
        return power(e, out, n);
    if (!kg_math_eval_acb(e, out, n->a))
        return false;
    acb_init(right);
    ok = kg_math_eval_acb(e, right, n->b);
    if (ok && n->kind == KG_MATH_ADD)
        acb_add(out, out, right, e->prec);
    else if (ok && n->kind == KG_MATH_MUL)
        acb_mul(out, out, right, e->prec);
    else if (ok)
        acb_div(out, out, right, e->prec);
    acb_clear(right);
    return ok && defined(e, out);
}

static bool rational(struct kg_math_eval *e, acb_t out, int node)
{
    fmpq_t q;
    bool ok;

    fmpq_init(q);
    ok = kg_math_eval_fmpq(e, q, node);
    if (ok)
        acb_set_fmpq(out, q, e->prec);
    fmpq_clear(q);
    return ok;
}

bool kg_math_eval_acb(struct kg_math_eval *e, acb_t out, int node)
{
    const struct kg_math_node *n = &e->tree->nodes[node];

    kg_math_step();
    switch ((enum kg_math_kind)n->kind) {
    case KG_MATH_NUM:
    case KG_MATH_SYM:
    case KG_MATH_OPAQUE:
        return rational(e, out, node);
    case KG_MATH_CONST:
        return constant(out, n->op, e->prec);
    case KG_MATH_ADD:
    case KG_MATH_MUL:
    case KG_MATH_DIV:
    case KG_MATH_POW:
        return binary(e, out, n);
    case KG_MATH_NEG:
        if (!kg_math_eval_acb(e, out, n->a))
            return false;
        acb_neg(out, out);
        return true;
    case KG_MATH_PERCENT:
        if (!kg_math_eval_acb(e, out, n->a))
            return false;
        acb_div_ui(out, out, 100, e->prec);
        return true;
    case KG_MATH_DEGREE:
    case KG_MATH_UNIT:
        return kg_math_eval_acb(e, out, n->a);
    case KG_MATH_FUNC:
        if (n->op == KG_MATH_BINOMIAL || n->op >= KG_MATH_GCD)
            return rational(e, out, node);
        if (n->op == KG_MATH_FACTORIAL && rational(e, out, node))
            return true;
        return call(e, out, n);
    default:
        return false;
    }
}
