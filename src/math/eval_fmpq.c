/* Trees as rational numbers: the cheap way, enough for most answers. Values are exact, so
 * equal is right and unequal is wrong. A tree with pi or an irrational root has no value
 * here, nor has a number beyond the limits ("too large"). The value of a symbol is a
 * number drawn from its name and the point. */
#include "math/flint_internal.h"

enum {
    MAX_DIGITS = 600,
    MAX_BITS = 200000,   /* bits of a power */
    MAX_ARGUMENT = 2000, /* largest argument of a factorial */
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

/* A pseudo-random value for a symbol or opaque node, by its text and the point. */
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

static bool bound(struct kg_math_eval *e, fmpq_t out, int node)
{
    const struct kg_math_bound *b = kg_math_bound_find(e, node);

    if (!b)
        eval_symbol(e, out, node); /* the body is evaluated outside its sum */
    else if (!b->range)
        fmpq_set_si(out, b->value, 1);
    return !b || !b->range;
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

static bool whole(struct kg_math_eval *e, slong *out, const fmpq_t q, slong limit)
{
    if (!fmpz_is_one(fmpq_denref(q)))
        return false;
    if (!kg_math_is_within(fmpq_numref(q), limit)) {
        e->large = true;
        return false;
    }
    *out = fmpz_get_si(fmpq_numref(q));
    return true;
}

bool kg_math_eval_whole(struct kg_math_eval *e, slong *out, int node, slong limit)
{
    fmpq_t q;

    fmpq_init(q);
    bool ok = kg_math_eval_fmpq(e, q, node) && whole(e, out, q, limit);
    fmpq_clear(q);
    return ok;
}

static enum kg_math_answer power(struct kg_math_eval *e, void *z, const fmpz_t exponent)
{
    fmpq *out = z;
    slong bits = (slong)fmpz_bits(fmpq_numref(out)) + (slong)fmpz_bits(fmpq_denref(out));
    bool within = kg_math_is_within(exponent, MAX_BITS);
    slong n = within ? fmpz_get_si(exponent) : 0;

    if (within && n <= 0 && fmpq_is_zero(out)) {
        e->undefined = true;
        return KG_MATH_NO;
    }
    if (!within || (bits > 2 && bits * FLINT_ABS(n) > MAX_BITS)) {
        e->large = true;
        return KG_MATH_NO;
    }
    fmpq_pow_si(out, out, n);
    return KG_MATH_YES;
}

static bool factorial(struct kg_math_eval *e, fmpq_t out)
{
    slong n;

    if (!whole(e, &n, out, MAX_ARGUMENT))
        return false;
    if (n < 0) {
        e->undefined = true;
        return false;
    }
    fmpz_fac_ui(fmpq_numref(out), (ulong)n);
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

    if (!list)
        return kg_math_eval_fmpq(e, out, node);
    fmpq_init(q);
    bool ok = kg_math_eval_fmpq(e, out, nodes[list].a);
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

static bool function(struct kg_math_eval *e, void *z, int op)
{
    fmpq *out = z;

    if (op == KG_MATH_FACTORIAL)
        return factorial(e, out);
    if (op == KG_MATH_SQRT)
        return square_root(out);
    if (op == KG_MATH_ABS) {
        fmpq_abs(out, out);
        return true;
    }
    if (op == KG_MATH_FLOOR)
        fmpz_fdiv_q(fmpq_numref(out), fmpq_numref(out), fmpq_denref(out));
    else
        fmpz_cdiv_q(fmpq_numref(out), fmpq_numref(out), fmpq_denref(out));
    fmpz_one(fmpq_denref(out));
    return true;
}

static void init(struct kg_math_eval *e, void *z)
{
    (void)e;
    fmpq_init(z);
}

static void clear(struct kg_math_eval *e, void *z)
{
    (void)e;
    fmpq_clear(z);
}

static enum kg_math_answer direct(struct kg_math_eval *e, void *z, int node)
{
    const struct kg_math_node *n = &e->tree->nodes[node];
    bool ok = true;

    kg_math_step();
    if (n->kind == KG_MATH_CONST)
        ok = false;
    else if (n->kind == KG_MATH_SYM || n->kind == KG_MATH_OPAQUE)
        eval_symbol(e, z, node);
    else if (n->kind == KG_MATH_BOUND)
        ok = bound(e, z, node);
    else if (n->kind == KG_MATH_NUM)
        ok = number(e, z, node);
    else if (n->kind == KG_MATH_FUNC && n->op == KG_MATH_BINOMIAL)
        ok = binomial(e, z, n->a, n->b);
    else if (n->kind == KG_MATH_FUNC && n->op >= KG_MATH_GCD && n->op <= KG_MATH_MIN)
        ok = fold(e, z, n->op, n->a);
    else
        return KG_MATH_WALK;
    return ok ? KG_MATH_YES : KG_MATH_NO;
}

static bool binary(struct kg_math_eval *e, void *z, const void *x, int kind)
{
    const fmpq *right = x;
    fmpq *out = z;

    if (kind == KG_MATH_DIV && fmpq_is_zero(right)) {
        e->undefined = true;
        return false;
    }
    if (kind == KG_MATH_ADD)
        fmpq_add(out, out, right);
    else if (kind == KG_MATH_MUL)
        fmpq_mul(out, out, right);
    else
        fmpq_div(out, out, right);
    if (fmpz_bits(fmpq_numref(out)) + fmpz_bits(fmpq_denref(out)) <= 2 * MAX_BITS)
        return true;
    e->large = true;
    return false;
}

static void negate(struct kg_math_eval *e, void *z)
{
    (void)e;
    fmpq_neg(z, z);
}

static void divide(struct kg_math_eval *e, void *z, ulong by)
{
    fmpz_t divisor;

    (void)e;
    fmpz_init_set_ui(divisor, by);
    fmpq_div_fmpz(z, z, divisor);
    fmpz_clear(divisor);
}

bool kg_math_eval_fmpq(struct kg_math_eval *e, fmpq_t out, int node)
{
    static const struct kg_math_algebra rationals = {
        .functions = 1u << KG_MATH_SQRT | 1u << KG_MATH_ABS | 1u << KG_MATH_FACTORIAL |
                     1u << KG_MATH_FLOOR | 1u << KG_MATH_CEIL,
        .terms = 20000,
        .init = init,
        .clear = clear,
        .direct = direct,
        .binary = binary,
        .negate = negate,
        .divide = divide,
        .function = function,
        .power = power,
    };

    return kg_math_walk(&rationals, e, out, node);
}
