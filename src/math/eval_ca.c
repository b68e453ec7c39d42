/* Trees as exact numbers of Calcium, which can prove that a difference is zero. */
#include "math/flint_internal.h"

enum {
    MAX_POWER = 400, /* of a number that is not rational */
    MAX_BITS = 512,  /* of a rational inside others: Calcium factors what it roots */
};

static bool defined(struct kg_math_eval *e, const ca_t x)
{
    if (ca_check_is_number(x, e->ctx) == T_TRUE)
        return true;
    e->undefined = true;
    return false;
}

static bool angle(struct kg_math_eval *e, ca_t out, int node)
{
    ca_t pi;

    if (!kg_math_eval_ca(e, out, node))
        return false;
    if (e->tree->nodes[node].kind != KG_MATH_DEGREE)
        return true;
    ca_init(pi, e->ctx);
    ca_pi(pi, e->ctx);
    ca_mul(out, out, pi, e->ctx);
    ca_div_ui(out, out, 180, e->ctx);
    ca_clear(pi, e->ctx);
    return true;
}

static bool whole_power(struct kg_math_eval *e, ca_t out, int base, const fmpq_t q)
{
    slong n;

    if (!fmpz_fits_si(fmpq_numref(q)) ||
        FLINT_ABS(n = fmpz_get_si(fmpq_numref(q))) > MAX_POWER) {
        e->large = true;
        return false;
    }
    if (!kg_math_eval_ca(e, out, base))
        return false;
    ca_pow_si(out, out, n, e->ctx);
    return true;
}

static bool power(struct kg_math_eval *e, ca_t out, const struct kg_math_node *n)
{
    const struct kg_math_node *base = &e->tree->nodes[n->a];
    ca_t x;
    fmpq_t q;
    bool ok;

    ca_init(x, e->ctx);
    fmpq_init(q);
    if (base->kind == KG_MATH_CONST && base->op == KG_MATH_E) {
        ok = kg_math_eval_ca(e, out, n->b);
        if (ok)
            ca_exp(out, out, e->ctx);
    } else if (kg_math_eval_fmpq(e, q, n->b) && fmpz_is_one(fmpq_denref(q))) {
        ok = whole_power(e, out, n->a, q);
    } else {
        ok = kg_math_eval_ca(e, out, n->a) && kg_math_eval_ca(e, x, n->b);
        if (ok)
            ca_pow(out, out, x, e->ctx);
    }
    fmpq_clear(q);
    ca_clear(x, e->ctx);
    return ok && defined(e, out);
}

static bool root(struct kg_math_eval *e, ca_t out, const struct kg_math_node *n)
{
    slong index;
    fmpq_t q;
    ca_t exponent;
    bool flip;

    if (!kg_math_eval_ca(e, out, n->a) || !kg_math_eval_whole(e, &index, n->b, 60) ||
        index < 1)
        return false;
    flip = index % 2 && ca_check_is_negative_real(out, e->ctx) == T_TRUE;
    if (flip)
        ca_neg(out, out, e->ctx);
    fmpq_init(q);
    ca_init(exponent, e->ctx);
    fmpq_set_si(q, 1, (ulong)index);
    ca_set_fmpq(exponent, q, e->ctx);
    ca_pow(out, out, exponent, e->ctx);
    ca_clear(exponent, e->ctx);
    fmpq_clear(q);
    if (flip)
        ca_neg(out, out, e->ctx);
    return defined(e, out);
}

static bool call(struct kg_math_eval *e, ca_t out, const struct kg_math_node *n)
{
    if (n->op == KG_MATH_ROOT)
        return root(e, out, n);
    if (n->op == KG_MATH_FACTORIAL) {
        if (!kg_math_eval_ca(e, out, n->a))
            return false;
        ca_add_ui(out, out, 1, e->ctx);
        ca_gamma(out, out, e->ctx);
        return defined(e, out);
    }
    if (!angle(e, out, n->a))
        return false;
    switch ((enum kg_math_func)n->op) {
    case KG_MATH_SQRT:
        ca_sqrt(out, out, e->ctx);
        break;
    case KG_MATH_ABS:
        ca_abs(out, out, e->ctx);
        break;
    case KG_MATH_EXP:
        ca_exp(out, out, e->ctx);
        break;
    case KG_MATH_LN:
        ca_log(out, out, e->ctx);
        break;
    case KG_MATH_SIN:
        ca_sin_cos(out, NULL, out, e->ctx);
        break;
    case KG_MATH_COS:
        ca_sin_cos(NULL, out, out, e->ctx);
        break;
    case KG_MATH_TAN:
        ca_tan(out, out, e->ctx);
        break;
    case KG_MATH_ASIN:
        ca_asin(out, out, e->ctx);
        break;
    case KG_MATH_ACOS:
        ca_acos(out, out, e->ctx);
        break;
    case KG_MATH_ATAN:
        ca_atan(out, out, e->ctx);
        break;
    case KG_MATH_FLOOR:
        ca_floor(out, out, e->ctx);
        break;
    case KG_MATH_CEIL:
        ca_ceil(out, out, e->ctx);
        break;
    default:
        return false;
    }
    return defined(e, out);
}

static bool constant(struct kg_math_eval *e, ca_t out, int op)
{
    switch (op) {
    case KG_MATH_PI:
        ca_pi(out, e->ctx);
        return true;
    case KG_MATH_E:
        ca_one(out, e->ctx);
        ca_exp(out, out, e->ctx);
        return true;
    case KG_MATH_I:
        ca_i(out, e->ctx);
        return true;
    default:
        return false;
    }
}

static bool binary(struct kg_math_eval *e, ca_t out, const struct kg_math_node *n)
{
    ca_t right;
    bool ok;

    if (n->kind == KG_MATH_POW)
        return power(e, out, n);
    if (!kg_math_eval_ca(e, out, n->a))
        return false;
    ca_init(right, e->ctx);
    ok = kg_math_eval_ca(e, right, n->b);
    if (ok && n->kind == KG_MATH_ADD)
        ca_add(out, out, right, e->ctx);
    else if (ok && n->kind == KG_MATH_MUL)
        ca_mul(out, out, right, e->ctx);
    else if (ok)
        ca_div(out, out, right, e->ctx);
    ca_clear(right, e->ctx);
    return ok && defined(e, out);
}

bool kg_math_eval_ca(struct kg_math_eval *e, ca_t out, int node)
{
    const struct kg_math_node *n = &e->tree->nodes[node];
    fmpq_t q;
    bool rational;
    bool fits;

    fmpq_init(q);
    rational = kg_math_eval_fmpq(e, q, node);
    fits = rational && fmpz_bits(fmpq_numref(q)) + fmpz_bits(fmpq_denref(q)) <= MAX_BITS;
    if (fits)
        ca_set_fmpq(out, q, e->ctx);
    fmpq_clear(q);
    e->large = e->large || (rational && !fits);
    if (rational)
        return fits;
    switch ((enum kg_math_kind)n->kind) {
    case KG_MATH_CONST:
        return constant(e, out, n->op);
    case KG_MATH_ADD:
    case KG_MATH_MUL:
    case KG_MATH_DIV:
    case KG_MATH_POW:
        return binary(e, out, n);
    case KG_MATH_NEG:
        if (!kg_math_eval_ca(e, out, n->a))
            return false;
        ca_neg(out, out, e->ctx);
        return true;
    case KG_MATH_PERCENT:
        if (!kg_math_eval_ca(e, out, n->a))
            return false;
        ca_div_ui(out, out, 100, e->ctx);
        return true;
    case KG_MATH_DEGREE:
    case KG_MATH_UNIT:
        return kg_math_eval_ca(e, out, n->a);
    case KG_MATH_FUNC:
        return call(e, out, n);
    default:
        return false;
    }
}
