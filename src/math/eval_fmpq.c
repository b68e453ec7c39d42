/* Trees as rational numbers: the cheap way, which most answers take. */
#include "math/flint_internal.h"

#include <string.h>

enum {
    MAX_DIGITS = 600,
    MAX_BITS = 200000,   /* of a power */
    MAX_ARGUMENT = 2000, /* of a factorial */
};

static uint64_t mix(uint64_t h, uint64_t x)
{
    h ^= x + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
    h *= 0xff51afd7ed558ccdu;
    return h ^ (h >> 32);
}

static uint64_t hash_tree(const struct kg_math_tree *t, int node, uint64_t h)
{
    const struct kg_math_node *n = &t->nodes[node];

    if (!node)
        return mix(h, 1);
    h = mix(h, (uint64_t)n->kind << 8 | n->op);
    for (int i = 0; i < n->len; i++)
        h = mix(h, (unsigned char)t->pool[n->text + (uint32_t)i]);
    return hash_tree(t, n->b, hash_tree(t, n->a, h));
}

/* The value that a symbol or an opaque node stands for. */
static void eval_symbol(struct kg_math_eval *e, fmpq_t out, int node)
{
    static const ulong under[] = {101, 103, 107, 109};
    uint64_t h = hash_tree(e->tree, node, mix(77, (uint64_t)e->point));

    if (e->tree->nodes[node].kind == KG_MATH_OPAQUE)
        e->opaque = true;
    if (e->whole) {
        fmpq_set_si(out, (slong)(2 + h % 13), 1);
        return;
    }
    fmpq_set_si(out, (slong)(11 + h % 997), under[(h >> 20) % 4]);
    if (e->negative && (h >> 40) % 2)
        fmpq_neg(out, out);
}

static bool number(struct kg_math_eval *e, fmpq_t out, int node)
{
    const struct kg_math_node *n = &e->tree->nodes[node];
    const char *text = kg_math_leaf_text(e->tree, node);
    char digits[MAX_DIGITS + 1];
    size_t used = 0;
    ulong places = 0;
    bool behind = false;

    if (n->len > MAX_DIGITS) {
        e->large = true;
        return false;
    }
    for (int i = 0; i < n->len; i++) {
        if (text[i] == '.') {
            behind = true;
            continue;
        }
        digits[used++] = text[i];
        places += behind;
    }
    digits[used] = 0;
    if (used == 0 || fmpz_set_str(fmpq_numref(out), digits, 10) != 0)
        return false;
    fmpz_ui_pow_ui(fmpq_denref(out), 10, places);
    fmpq_canonicalise(out);
    return true;
}

bool kg_math_eval_whole(struct kg_math_eval *e, slong *out, int node, slong limit)
{
    fmpq_t q;
    bool ok;

    fmpq_init(q);
    ok = kg_math_eval_fmpq(e, q, node) && fmpz_is_one(fmpq_denref(q));
    if (ok && (!fmpz_fits_si(fmpq_numref(q)) ||
               FLINT_ABS(fmpz_get_si(fmpq_numref(q))) > limit)) {
        e->large = true;
        ok = false;
    }
    if (ok)
        *out = fmpz_get_si(fmpq_numref(q));
    fmpq_clear(q);
    return ok;
}

static bool power(struct kg_math_eval *e, fmpq_t out, int exponent)
{
    slong n;
    slong bits = (slong)fmpz_bits(fmpq_numref(out)) + (slong)fmpz_bits(fmpq_denref(out));

    if (!kg_math_eval_whole(e, &n, exponent, MAX_BITS))
        return false;
    if (fmpq_is_zero(out) && n <= 0) {
        e->undefined = true;
        return false;
    }
    if (bits > 2 && bits * FLINT_ABS(n) > MAX_BITS) {
        e->large = true;
        return false;
    }
    fmpq_pow_si(out, out, n);
    return true;
}

static bool divide(struct kg_math_eval *e, fmpq_t out, const fmpq_t by)
{
    if (fmpq_is_zero(by)) {
        e->undefined = true;
        return false;
    }
    fmpq_div(out, out, by);
    return true;
}

static bool factorial(struct kg_math_eval *e, fmpq_t out, int node)
{
    slong n;

    if (!kg_math_eval_whole(e, &n, node, MAX_ARGUMENT))
        return false;
    if (n < 0) {
        e->undefined = true;
        return false;
    }
    fmpz_fac_ui(fmpq_numref(out), (ulong)n);
    fmpz_one(fmpq_denref(out));
    return true;
}

static bool binomial(struct kg_math_eval *e, fmpq_t out, int over, int under)
{
    slong n;
    slong k;

    if (!kg_math_eval_whole(e, &n, over, MAX_ARGUMENT) ||
        !kg_math_eval_whole(e, &k, under, MAX_ARGUMENT))
        return false;
    if (n < 0 || k < 0) {
        e->undefined = true;
        return false;
    }
    fmpz_bin_uiui(fmpq_numref(out), (ulong)n, (ulong)k);
    fmpz_one(fmpq_denref(out));
    return true;
}

/* gcd, lcm, max, min of a list (or of one value) */
static bool fold(struct kg_math_eval *e, fmpq_t out, int func, int node)
{
    const struct kg_math_node *nodes = e->tree->nodes;
    int list = nodes[node].kind == KG_MATH_TUPLE ? nodes[node].a : 0;
    fmpq_t q;
    bool ok;

    if (!list)
        return kg_math_eval_fmpq(e, out, node);
    fmpq_init(q);
    ok = kg_math_eval_fmpq(e, out, nodes[list].a);
    while (ok && (list = nodes[list].b) != 0) {
        ok = kg_math_eval_fmpq(e, q, nodes[list].a);
        if (ok && (func == KG_MATH_MAX || func == KG_MATH_MIN)) {
            if ((fmpq_cmp(q, out) > 0) == (func == KG_MATH_MAX))
                fmpq_set(out, q);
            continue;
        }
        ok = ok && fmpz_is_one(fmpq_denref(q)) && fmpz_is_one(fmpq_denref(out));
        if (ok && func == KG_MATH_GCD)
            fmpz_gcd(fmpq_numref(out), fmpq_numref(out), fmpq_numref(q));
        else if (ok)
            fmpz_lcm(fmpq_numref(out), fmpq_numref(out), fmpq_numref(q));
    }
    fmpq_clear(q);
    return ok;
}

static bool square_root(fmpq_t out)
{
    if (fmpq_sgn(out) < 0 || !fmpz_is_square(fmpq_numref(out)) ||
        !fmpz_is_square(fmpq_denref(out)))
        return false;
    fmpz_sqrt(fmpq_numref(out), fmpq_numref(out));
    fmpz_sqrt(fmpq_denref(out), fmpq_denref(out));
    return true;
}

static bool call(struct kg_math_eval *e, fmpq_t out, const struct kg_math_node *n)
{
    switch ((enum kg_math_func)n->op) {
    case KG_MATH_FACTORIAL:
        return factorial(e, out, n->a);
    case KG_MATH_BINOMIAL:
        return binomial(e, out, n->a, n->b);
    case KG_MATH_GCD:
    case KG_MATH_LCM:
    case KG_MATH_MAX:
    case KG_MATH_MIN:
        return fold(e, out, n->op, n->a);
    case KG_MATH_SQRT:
        return kg_math_eval_fmpq(e, out, n->a) && square_root(out);
    case KG_MATH_ABS:
        if (!kg_math_eval_fmpq(e, out, n->a))
            return false;
        fmpq_abs(out, out);
        return true;
    case KG_MATH_FLOOR:
    case KG_MATH_CEIL:
        if (!kg_math_eval_fmpq(e, out, n->a))
            return false;
        if (n->op == KG_MATH_FLOOR)
            fmpz_fdiv_q(fmpq_numref(out), fmpq_numref(out), fmpq_denref(out));
        else
            fmpz_cdiv_q(fmpq_numref(out), fmpq_numref(out), fmpq_denref(out));
        fmpz_one(fmpq_denref(out));
        return true;
    default:
        return false;
    }
}

static bool binary(struct kg_math_eval *e, fmpq_t out, const struct kg_math_node *n)
{
    fmpq_t right;
    bool ok;

    if (!kg_math_eval_fmpq(e, out, n->a))
        return false;
    if (n->kind == KG_MATH_POW)
        return power(e, out, n->b);
    fmpq_init(right);
    ok = kg_math_eval_fmpq(e, right, n->b);
    if (ok && n->kind == KG_MATH_ADD)
        fmpq_add(out, out, right);
    else if (ok && n->kind == KG_MATH_MUL)
        fmpq_mul(out, out, right);
    else if (ok)
        ok = divide(e, out, right);
    fmpq_clear(right);
    if (fmpz_bits(fmpq_numref(out)) + fmpz_bits(fmpq_denref(out)) > 2 * MAX_BITS) {
        e->large = true;
        return false;
    }
    return ok;
}

bool kg_math_eval_fmpq(struct kg_math_eval *e, fmpq_t out, int node)
{
    const struct kg_math_node *n = &e->tree->nodes[node];

    kg_math_step();
    switch ((enum kg_math_kind)n->kind) {
    case KG_MATH_NUM:
        return number(e, out, node);
    case KG_MATH_SYM:
    case KG_MATH_OPAQUE:
        eval_symbol(e, out, node);
        return true;
    case KG_MATH_ADD:
    case KG_MATH_MUL:
    case KG_MATH_DIV:
    case KG_MATH_POW:
        return binary(e, out, n);
    case KG_MATH_NEG:
        if (!kg_math_eval_fmpq(e, out, n->a))
            return false;
        fmpq_neg(out, out);
        return true;
    case KG_MATH_PERCENT:
        if (!kg_math_eval_fmpq(e, out, n->a))
            return false;
        fmpq_div_2exp(out, out, 2);
        fmpz_mul_ui(fmpq_denref(out), fmpq_denref(out), 25);
        fmpq_canonicalise(out);
        return true;
    case KG_MATH_DEGREE:
    case KG_MATH_UNIT:
        return kg_math_eval_fmpq(e, out, n->a);
    case KG_MATH_FUNC:
        return call(e, out, n);
    default:
        return false;
    }
}
