/* Derivatives, integrals, limits and infinite sums, worked out as trees.
 *
 * A derivative is taken by the rules, so it is exact. An antiderivative is found by a few
 * rules and then proved: its derivative must be the integrand, and both (if the upper
 * limit is infinite, the integrand) must be bounded between the limits, which balls show
 * piece by piece. A limit is the value at its point; while numerator and denominator are
 * both proved to be zero there, L'Hopital's rule replaces them by their derivatives. The
 * limit of an infinite sum of rational terms is found by Wynn's two algorithms. They are
 * exact if the terms are exponential polynomials (epsilon) or the partial sums are a
 * rational function (rho), and a whole column agrees; series.c tests this. What none of
 * this settles is kept as text: equal to the same text, undecided otherwise.
 */
#include "math/math_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ORDER = 4, MAX_DEPTH = 12, MAX_HOPITAL = 8 };

/* ---- building trees ---- */

static bool is_number(const struct kg_math_tree *t, int node, const char *text)
{
    return t->nodes[node].kind == KG_MATH_NUM &&
           strcmp(kg_math_leaf_text(t, node), text) == 0;
}

/* Whether the node is a whole number without a sign. */
static bool is_digits(const struct kg_math_tree *t, int node)
{
    return t->nodes[node].kind == KG_MATH_NUM && !strchr(kg_math_leaf_text(t, node), '.');
}

static int number(struct kg_math_tree *t, int value)
{
    int node = kg_math_small(t, value < 0 ? -value : value);

    return value < 0 ? kg_math_node(t, KG_MATH_NEG, 0, node, 0) : node;
}

/* Whether the node is a whole number of at most three digits, with or without a sign. */
static bool is_small(const struct kg_math_tree *t, int node, int *value)
{
    bool minus = t->nodes[node].kind == KG_MATH_NEG;

    node = minus ? t->nodes[node].a : node;
    if (!is_digits(t, node) || t->nodes[node].len > 3)
        return false;
    *value = atoi(kg_math_leaf_text(t, node));
    *value = minus ? -*value : *value;
    return true;
}

static int add(struct kg_math_tree *t, int a, int b)
{
    int x;
    int y;

    if (!a || !b)
        return 0;
    if (is_small(t, a, &x) && is_small(t, b, &y))
        return number(t, x + y);
    return is_number(t, a, "0")   ? b
           : is_number(t, b, "0") ? a
                                  : kg_math_node(t, KG_MATH_ADD, 0, a, b);
}

static int negative(struct kg_math_tree *t, int a)
{
    return !a || is_number(t, a, "0") ? a : kg_math_node(t, KG_MATH_NEG, 0, a, 0);
}

static int times(struct kg_math_tree *t, int a, int b)
{
    if (!a || !b)
        return 0;
    if (is_number(t, a, "0") || is_number(t, b, "1"))
        return a;
    return is_number(t, b, "0") || is_number(t, a, "1")
               ? b
               : kg_math_node(t, KG_MATH_MUL, 0, a, b);
}

static int over(struct kg_math_tree *t, int a, int b)
{
    if (!a || !b)
        return 0;
    return is_number(t, a, "0") || is_number(t, b, "1")
               ? a
               : kg_math_node(t, KG_MATH_DIV, 0, a, b);
}

static int call(struct kg_math_tree *t, int func, int a)
{
    return a ? kg_math_node(t, KG_MATH_FUNC, func, a, 0) : 0;
}

static int power(struct kg_math_tree *t, int a, int b)
{
    if (!a || !b)
        return 0;
    if (is_number(t, b, "0"))
        return number(t, 1);
    return is_number(t, b, "1") ? a : kg_math_node(t, KG_MATH_POW, 0, a, b);
}

/* ---- dependence on a name ---- */

static bool depends(const struct kg_math_tree *t, int node, int name)
{
    const struct kg_math_node *n = &t->nodes[node];

    return node && (kg_math_same_tree(t, node, name) || depends(t, n->a, name) ||
                    depends(t, n->b, name));
}

/* The variable of a derivative or integral. partial: all other names are constant. */
struct by {
    int name;
    bool partial;
};

/* Whether the node is certainly constant. Letters that often name functions (y, f, u) are
 * not, unless the derivative is partial. */
static bool is_constant(const struct kg_math_tree *t, int node, const struct by *by)
{
    const struct kg_math_node *n = &t->nodes[node];
    const char *text = kg_math_leaf_text(t, node);

    if (!node)
        return true;
    if (kg_math_same_tree(t, node, by->name) || n->kind == KG_MATH_OPAQUE)
        return false;
    if (n->kind == KG_MATH_SYM && !by->partial &&
        !(n->len == 1 && kg_char_in("abckmnABCK", *text)))
        return false;
    return is_constant(t, n->a, by) && is_constant(t, n->b, by);
}

/* ---- derivatives ---- */

static int derive(struct kg_math_tree *t, int node, const struct by *by);

/* The outer factor of the chain rule, func'(a); node: func(a). 0 if it is unknown. */
static int outer(struct kg_math_tree *t, int func, int node, int a)
{
    int one = number(t, 1);
    int square = power(t, a, number(t, 2));

    switch (func) {
    case KG_MATH_SQRT:
        return over(t, one, times(t, number(t, 2), node));
    case KG_MATH_EXP:
        return node;
    case KG_MATH_LN:
        return over(t, one, a);
    case KG_MATH_SIN:
        return call(t, KG_MATH_COS, a);
    case KG_MATH_COS:
        return negative(t, call(t, KG_MATH_SIN, a));
    case KG_MATH_TAN:
        return over(t, one, power(t, call(t, KG_MATH_COS, a), number(t, 2)));
    case KG_MATH_ASIN:
        return over(t, one, call(t, KG_MATH_SQRT, add(t, one, negative(t, square))));
    case KG_MATH_ACOS:
        return negative(t, outer(t, KG_MATH_ASIN, node, a));
    case KG_MATH_ATAN:
        return over(t, one, add(t, one, square));
    case KG_MATH_ABS:
        return over(t, a, node);
    default:
        return 0;
    }
}

/* a^b = b a^(b-1) a' + a^b ln a b' */
static int derive_power(struct kg_math_tree *t, int node, const struct by *by)
{
    int a = t->nodes[node].a;
    int b = t->nodes[node].b;
    bool natural = t->nodes[a].kind == KG_MATH_CONST && t->nodes[a].op == KG_MATH_E;
    int left = 0;
    int right = 0;

    if (!is_constant(t, a, by))
        left = times(t, times(t, b, power(t, a, add(t, b, number(t, -1)))),
                     derive(t, a, by));
    if (!is_constant(t, b, by))
        right = times(t, times(t, node, natural ? number(t, 1) : call(t, KG_MATH_LN, a)),
                      derive(t, b, by));
    return left && right ? add(t, left, right) : left ? left : right;
}

static int derive(struct kg_math_tree *t, int node, const struct by *by)
{
    const struct kg_math_node n = t->nodes[node];
    int one = number(t, 1);

    if (t->full || !node)
        return 0;
    if (kg_math_same_tree(t, node, by->name))
        return one;
    if (is_constant(t, node, by))
        return number(t, 0);
    switch ((enum kg_math_kind)n.kind) {
    case KG_MATH_ADD:
        return add(t, derive(t, n.a, by), derive(t, n.b, by));
    case KG_MATH_NEG:
        return negative(t, derive(t, n.a, by));
    case KG_MATH_MUL:
        return add(t, times(t, derive(t, n.a, by), n.b),
                   times(t, n.a, derive(t, n.b, by)));
    case KG_MATH_DIV:
        if (is_constant(t, n.b, by))
            return over(t, derive(t, n.a, by), n.b);
        return over(t,
                    add(t, times(t, derive(t, n.a, by), n.b),
                        negative(t, times(t, n.a, derive(t, n.b, by)))),
                    power(t, n.b, number(t, 2)));
    case KG_MATH_POW:
        return derive_power(t, node, by);
    case KG_MATH_FUNC:
        if (n.op == KG_MATH_ROOT && is_constant(t, n.b, by))
            return derive(t, power(t, n.a, over(t, one, n.b)), by);
        return n.b ? 0 : times(t, outer(t, n.op, node, n.a), derive(t, n.a, by));
    default:
        return 0;
    }
}

int kg_math_derived(struct kg_math_compare *c, int node, int name, bool partial)
{
    const struct by by = {name, partial};

    return derive(c->tree, node, &by);
}

/* ---- integrals ---- */

static int integrate(struct kg_math_tree *t, int f, const struct by *x, int depth);

/* The slope a if u is a x + b and a is not 0; else 0. */
static int slope(struct kg_math_tree *t, int u, const struct by *x)
{
    int a = derive(t, u, x);

    return a && is_constant(t, a, x) && !is_number(t, a, "0") ? a : 0;
}

/* The antiderivative of func(u) with respect to u; 0 if it is unknown. */
static int primitive(struct kg_math_tree *t, int func, int u)
{
    int two = number(t, 2);

    switch (func) {
    case KG_MATH_EXP:
        return call(t, KG_MATH_EXP, u);
    case KG_MATH_SIN:
        return negative(t, call(t, KG_MATH_COS, u));
    case KG_MATH_COS:
        return call(t, KG_MATH_SIN, u);
    case KG_MATH_TAN:
        return negative(t, call(t, KG_MATH_LN, call(t, KG_MATH_COS, u)));
    case KG_MATH_LN:
        return add(t, times(t, u, call(t, KG_MATH_LN, u)), negative(t, u));
    case KG_MATH_SQRT:
        return over(t, times(t, two, times(t, u, call(t, KG_MATH_SQRT, u))),
                    number(t, 3));
    default:
        return 0;
    }
}

/* Integrates u^n and b^u with linear u, and other squares as products. */
static int integrate_power(struct kg_math_tree *t, int f, const struct by *x, int depth)
{
    int u = t->nodes[f].a;
    int n = t->nodes[f].b;
    bool natural = t->nodes[u].kind == KG_MATH_CONST && t->nodes[u].op == KG_MATH_E;
    int two = number(t, 2);
    int a;

    if (is_constant(t, u, x)) {
        a = slope(t, n, x);
        return over(t, f, natural ? a : times(t, a, call(t, KG_MATH_LN, u)));
    }
    a = slope(t, u, x);
    int above = add(t, n, number(t, 1));
    if (is_constant(t, n, x) && a)
        return t->nodes[n].kind == KG_MATH_NEG && is_number(t, t->nodes[n].a, "1")
                   ? over(t, call(t, KG_MATH_LN, call(t, KG_MATH_ABS, u)), a)
                   : over(t, power(t, u, above), times(t, a, above));
    if (!is_number(t, n, "2"))
        return 0;
    if (t->nodes[u].kind != KG_MATH_FUNC ||
        (t->nodes[u].op != KG_MATH_SIN && t->nodes[u].op != KG_MATH_COS))
        return integrate(t, times(t, u, u), x, depth + 1);
    /* sin^2 u and cos^2 u are (1 -+ cos(2 u)) / 2 */
    a = call(t, KG_MATH_COS, times(t, two, t->nodes[u].a));
    a = t->nodes[u].op == KG_MATH_SIN ? negative(t, a) : a;
    return integrate(t, over(t, add(t, number(t, 1), a), two), x, depth + 1);
}

/* Integrates p g by parts: p G - the integral of p' G, where G is the integral of g. */
static int by_parts(struct kg_math_tree *t, int p, int g, const struct by *x, int depth)
{
    int inner = integrate(t, g, x, depth + 1);
    int slope_of = inner ? derive(t, p, x) : 0;

    if (!slope_of || is_number(t, slope_of, "0"))
        return times(t, p, inner);
    int rest = t->nodes[slope_of].kind == KG_MATH_DIV
                   ? over(t, times(t, t->nodes[slope_of].a, inner), t->nodes[slope_of].b)
                   : times(t, slope_of, inner);
    rest = integrate(t, rest, x, depth + 1);
    return rest ? add(t, times(t, p, inner), negative(t, rest)) : 0;
}

static bool is_polynomial(const struct kg_math_tree *t, int f, const struct by *x)
{
    const struct kg_math_node *n = &t->nodes[f];

    if (is_constant(t, f, x) || kg_math_same_tree(t, f, x->name))
        return true;
    if (n->kind == KG_MATH_POW)
        return is_polynomial(t, n->a, x) && is_digits(t, n->b);
    if (n->kind == KG_MATH_DIV)
        return is_polynomial(t, n->a, x) && is_constant(t, n->b, x);
    return (n->kind == KG_MATH_ADD || n->kind == KG_MATH_MUL || n->kind == KG_MATH_NEG) &&
           is_polynomial(t, n->a, x) && (!n->b || is_polynomial(t, n->b, x));
}

/* n for u^n with a constant n, 1/2 for a square root, else 1. *base <- u */
static int exponent_of(struct kg_math_tree *t, int *base, int node, const struct by *x)
{
    const struct kg_math_node *n = &t->nodes[node];

    *base = n->a;
    if (n->kind == KG_MATH_POW && is_constant(t, n->b, x))
        return n->b;
    if (n->kind == KG_MATH_FUNC && n->op == KG_MATH_SQRT)
        return over(t, number(t, 1), number(t, 2));
    *base = node;
    return number(t, 1);
}

/* Integrates a / b: sums in a are split, 1 / u^n and 1 / sqrt(u) become powers of u. */
static int integrate_quotient(struct kg_math_tree *t, int f, const struct by *x,
                              int depth)
{
    const struct kg_math_node n = t->nodes[f];
    const struct kg_math_node a = t->nodes[n.a];
    const struct kg_math_node b = t->nodes[n.b];
    int one = number(t, 1);
    int above;
    int base = n.b;

    if ((a.kind == KG_MATH_DIV || a.kind == KG_MATH_MUL) && is_constant(t, a.b, x)) {
        base = integrate(t, over(t, a.a, n.b), x, depth + 1);
        return a.kind == KG_MATH_DIV ? over(t, base, a.b) : times(t, base, a.b);
    }
    int exponent = exponent_of(t, &above, n.a, x);
    if (exponent && kg_math_same_tree(t, above, x->name) &&
        kg_math_same_tree(t, n.b, x->name))
        return integrate(t, power(t, above, add(t, exponent, number(t, -1))), x,
                         depth + 1);
    exponent = one;
    if (a.kind == KG_MATH_ADD)
        return add(t, integrate(t, over(t, a.a, n.b), x, depth + 1),
                   integrate(t, over(t, a.b, n.b), x, depth + 1));
    if (b.kind == KG_MATH_POW && is_constant(t, b.b, x)) {
        base = b.a;
        exponent = b.b;
    } else if (b.kind == KG_MATH_FUNC && b.op == KG_MATH_SQRT) {
        base = b.a;
        exponent = over(t, one, number(t, 2));
    } else if (b.kind == KG_MATH_ADD && is_constant(t, n.a, x) && !slope(t, n.b, x)) {
        return times(t, n.a, call(t, KG_MATH_ATAN, x->name)); /* a guess, tested later */
    }
    if (base == n.b && !slope(t, base, x))
        return 0;
    return integrate(t, times(t, n.a, power(t, base, negative(t, exponent))), x,
                     depth + 1);
}

static int integrate_product(struct kg_math_tree *t, int f, const struct by *x, int depth)
{
    const struct kg_math_node n = t->nodes[f];
    const struct kg_math_node *a = &t->nodes[n.a];
    const struct kg_math_node *b = &t->nodes[n.b];
    int left_base, right_base;
    int left, right;

    if (is_constant(t, n.a, x))
        return times(t, n.a, integrate(t, n.b, x, depth + 1));
    if (is_constant(t, n.b, x))
        return times(t, n.b, integrate(t, n.a, x, depth + 1));
    left = exponent_of(t, &left_base, n.a, x);
    right = exponent_of(t, &right_base, n.b, x);
    if (kg_math_same_tree(t, left_base, right_base) && slope(t, left_base, x))
        return integrate(t, power(t, left_base, add(t, left, right)), x, depth + 1);
    if (a->kind == KG_MATH_FUNC && a->op == KG_MATH_LN && is_polynomial(t, n.b, x))
        return by_parts(t, n.a, n.b, x, depth);
    if (b->kind == KG_MATH_FUNC && b->op == KG_MATH_LN && is_polynomial(t, n.a, x))
        return by_parts(t, n.b, n.a, x, depth);
    if (is_polynomial(t, n.a, x))
        return by_parts(t, n.a, n.b, x, depth);
    return is_polynomial(t, n.b, x) ? by_parts(t, n.b, n.a, x, depth) : 0;
}

static int integrate(struct kg_math_tree *t, int f, const struct by *x, int depth)
{
    const struct kg_math_node n = t->nodes[f];
    int a;

    if (!f || t->full || depth > MAX_DEPTH)
        return 0;
    if (is_constant(t, f, x))
        return times(t, f, x->name);
    if (kg_math_same_tree(t, f, x->name))
        return over(t, power(t, f, number(t, 2)), number(t, 2));
    switch ((enum kg_math_kind)n.kind) {
    case KG_MATH_ADD:
        return add(t, integrate(t, n.a, x, depth + 1), integrate(t, n.b, x, depth + 1));
    case KG_MATH_NEG:
        return negative(t, integrate(t, n.a, x, depth + 1));
    case KG_MATH_MUL:
        return integrate_product(t, f, x, depth);
    case KG_MATH_DIV:
        if (is_constant(t, n.b, x))
            return over(t, integrate(t, n.a, x, depth + 1), n.b);
        return integrate_quotient(t, f, x, depth);
    case KG_MATH_POW:
        return integrate_power(t, f, x, depth);
    case KG_MATH_FUNC:
        a = n.b ? 0 : slope(t, n.a, x);
        return a ? over(t, primitive(t, n.op, n.a), a) : 0;
    default:
        return 0;
    }
}

/* Whether F' = f: every antiderivative must pass this proof before it counts. */
static bool is_primitive(struct kg_math_compare *c, int F, int f, int name)
{
    struct kg_math_tree *t = c->tree;
    int fresh = kg_math_leaf(t, KG_MATH_SYM, 0, "integrated", 10);
    struct by by = {name, true};
    int slope_of = F ? derive(t, F, &by) : 0;

    return slope_of && !t->full &&
           kg_math_equal(&c->decider, kg_math_replaced(c, slope_of, name, fresh),
                         kg_math_replaced(c, f, name, fresh), NULL) == KG_MATH_RIGHT;
}

/* Whether f has no pole or branch point: polynomials, exponentials, sines and cosines. */
static bool is_entire(const struct kg_math_tree *t, int f, int name)
{
    const struct kg_math_node *n = &t->nodes[f];
    bool left = !n->a || is_entire(t, n->a, name);

    if (!depends(t, f, name) || kg_math_same_tree(t, f, name))
        return true;
    switch ((enum kg_math_kind)n->kind) {
    case KG_MATH_ADD:
    case KG_MATH_MUL:
        return left && is_entire(t, n->b, name);
    case KG_MATH_NEG:
        return left;
    case KG_MATH_DIV:
        return left && !depends(t, n->b, name);
    case KG_MATH_POW:
        return left &&
               (depends(t, n->a, name) ? is_digits(t, n->b) : is_entire(t, n->b, name));
    case KG_MATH_FUNC:
        return left &&
               (n->op == KG_MATH_EXP || n->op == KG_MATH_SIN || n->op == KG_MATH_COS);
    default:
        return false;
    }
}

/* ---- limits ---- */

struct quotient {
    int over;
    int under;
};

/* k for name^k, 0 for the number 1; -1 for anything else. */
static int degree(const struct kg_math_tree *t, int node, int name)
{
    const struct kg_math_node *n = &t->nodes[node];
    int k;

    if (is_number(t, node, "1") || kg_math_same_tree(t, node, name))
        return !is_number(t, node, "1");
    return n->kind == KG_MATH_POW && kg_math_same_tree(t, n->a, name) &&
                   is_small(t, n->b, &k)
               ? k
               : -1;
}

static int monomial(struct kg_math_tree *t, int name, int k)
{
    return power(t, name, number(t, k));
}

/* a + b. If both denominators are powers of the name, the result has the higher one. */
static struct quotient sum_of(struct kg_math_tree *t, struct quotient a,
                              struct quotient b, int name)
{
    int j = degree(t, a.under, name);
    int k = degree(t, b.under, name);

    if (j < 0 || k < 0)
        return (struct quotient){
            add(t, times(t, a.over, b.under), times(t, b.over, a.under)),
            times(t, a.under, b.under)};
    a.over = j < k ? times(t, a.over, monomial(t, name, k - j)) : a.over;
    b.over = k < j ? times(t, b.over, monomial(t, name, j - k)) : b.over;
    return (struct quotient){add(t, a.over, b.over), j < k ? b.under : a.under};
}

/* Writes f as one quotient whose parts have no quotients in the name, as far as the rules
 * allow. positive: the name is positive, so that sqrt(name^2) is the name. */
static struct quotient as_quotient(struct kg_math_tree *t, int f, int name, bool positive)
{
    const struct kg_math_node n = t->nodes[f];
    int one = number(t, 1);
    struct quotient q = {f, one};
    struct quotient a = q;
    struct quotient b = q;
    int j;

    if (!depends(t, f, name) || n.kind == KG_MATH_BOUND)
        return q;
    a = as_quotient(t, n.a, name, positive);
    if (n.kind == KG_MATH_ADD || n.kind == KG_MATH_MUL || n.kind == KG_MATH_DIV)
        b = as_quotient(t, n.b, name, positive);
    if (n.kind == KG_MATH_DIV)
        b = (struct quotient){b.under, b.over};
    int k = degree(t, a.under, name);
    switch ((enum kg_math_kind)n.kind) {
    case KG_MATH_NEG:
        return (struct quotient){negative(t, a.over), a.under};
    case KG_MATH_ADD:
        return sum_of(t, a, b, name);
    case KG_MATH_MUL:
    case KG_MATH_DIV:
        q = (struct quotient){times(t, a.over, b.over), times(t, a.under, b.under)};
        if (k >= 0 && degree(t, b.under, name) >= 0)
            q.under = monomial(t, name, k + degree(t, b.under, name));
        return q;
    case KG_MATH_POW:
        if (!is_small(t, n.b, &j))
            return (struct quotient){power(t, over(t, a.over, a.under), n.b), one};
        if (j < 0)
            a = (struct quotient){a.under, a.over};
        k = degree(t, a.under, name);
        j = j < 0 ? -j : j;
        return (struct quotient){power(t, a.over, number(t, j)),
                                 k < 0 ? power(t, a.under, number(t, j))
                                       : monomial(t, name, k * j)};
    case KG_MATH_FUNC:
        if (n.b)
            return q;
        if (n.op == KG_MATH_SQRT && positive && k >= 0 && k % 2 == 0)
            return (struct quotient){call(t, KG_MATH_SQRT, a.over),
                                     monomial(t, name, k / 2)};
        return (struct quotient){call(t, n.op, over(t, a.over, a.under)), one};
    default:
        return q;
    }
}

static verdict is_zero(struct kg_math_compare *c, int node)
{
    return node ? kg_math_equal(&c->decider, node, number(c->tree, 0), NULL)
                : KG_MATH_UNDECIDED;
}

static bool is_stepped(const struct kg_math_node *n)
{
    return n->kind == KG_MATH_FUNC &&
           (n->op == KG_MATH_FLOOR || n->op == KG_MATH_CEIL || n->op >= KG_MATH_GCD ||
            n->op == KG_MATH_FACTORIAL);
}

/* The limit of f as the name tends to `at` (positive: from above); 0 if it is unknown. */
static int limit_of(struct kg_math_compare *c, int f, int name, int at, bool positive)
{
    struct kg_math_tree *t = c->tree;
    const struct by by = {name, true};
    const struct kg_math_node n = t->nodes[f];

    if (n.kind == KG_MATH_POW && depends(t, n.b, name)) {
        bool natural = t->nodes[n.a].kind == KG_MATH_CONST &&
                       t->nodes[n.a].op == KG_MATH_E;
        int log = limit_of(c, natural ? n.b : times(t, n.b, call(t, KG_MATH_LN, n.a)),
                           name, at, positive);

        return call(t, KG_MATH_EXP, log);
    }
    struct quotient q = as_quotient(t, f, name, positive);
    for (int i = 0; i < MAX_HOPITAL && q.over && q.under && !t->full; i++) {
        int over_value = kg_math_replaced(c, q.over, name, at);
        int under_value = kg_math_replaced(c, q.under, name, at);
        verdict zero = is_zero(c, under_value);

        if (zero == KG_MATH_WRONG && is_zero(c, over_value) != KG_MATH_UNDECIDED)
            return over(t, over_value, under_value);
        if (zero != KG_MATH_RIGHT || is_zero(c, over_value) != KG_MATH_RIGHT)
            return 0;
        q.over = derive(t, q.over, &by);
        q.under = derive(t, q.under, &by);
    }
    return 0;
}

/* Whether f tends to 0 as the name tends to infinity, owing to e^(a x) with a < 0. */
static bool vanishes(struct kg_math_compare *c, int f, const struct by *x)
{
    struct kg_math_tree *t = c->tree;
    const struct kg_math_node n = t->nodes[f];
    bool exponential = n.kind == KG_MATH_FUNC && n.op == KG_MATH_EXP;
    bool natural = n.kind == KG_MATH_POW && t->nodes[n.a].kind == KG_MATH_CONST &&
                   t->nodes[n.a].op == KG_MATH_E;
    int a;

    if (exponential || natural) {
        a = slope(t, exponential ? n.a : n.b, x);
        return a && kg_math_order(&c->decider, a, number(t, 0)) < 0;
    }
    switch ((enum kg_math_kind)n.kind) {
    case KG_MATH_NEG:
        return vanishes(c, n.a, x);
    case KG_MATH_ADD:
        return vanishes(c, n.a, x) && vanishes(c, n.b, x);
    case KG_MATH_MUL:
        return (vanishes(c, n.a, x) && is_polynomial(t, n.b, x)) ||
               (vanishes(c, n.b, x) && is_polynomial(t, n.a, x));
    case KG_MATH_DIV:
        return vanishes(c, n.a, x) && is_constant(t, n.b, x);
    default:
        return false;
    }
}

/* The limit of f as the name tends to infinity with that sign. */
static int limit_at_infinity(struct kg_math_compare *c, int f, int name, int sign)
{
    struct kg_math_tree *t = c->tree;
    const struct by by = {name, true};

    if (sign > 0 && vanishes(c, f, &by))
        return number(t, 0);
    f = kg_math_replaced(c, f, name, over(t, number(t, sign), name));
    return t->full ? 0 : limit_of(c, f, name, number(t, 0), true);
}

/* Whether a radicand may be zero at the point. The root then exists on one side only, and
 * the tree does not tell from which side the limit is taken. */
static bool ends_at(struct kg_math_compare *c, int f, int name, int at)
{
    struct kg_math_tree *t = c->tree;
    const struct kg_math_node n = t->nodes[f];
    bool root = (n.kind == KG_MATH_FUNC && n.op <= KG_MATH_ROOT) ||
                (n.kind == KG_MATH_POW && t->nodes[n.b].kind == KG_MATH_DIV);

    if (!f || !depends(t, f, name))
        return false;
    if (root && is_zero(c, kg_math_replaced(c, n.a, name, at)) != KG_MATH_WRONG)
        return true;
    return ends_at(c, n.a, name, at) || ends_at(c, n.b, name, at);
}

static int limit(struct kg_math_compare *c, int node)
{
    struct kg_math_tree *t = c->tree;
    int name = kg_math_part(t, node, KG_MATH_NAME);
    int at = kg_math_part(t, node, KG_MATH_LOW);
    int f = kg_math_part(t, node, KG_MATH_BODY);
    int sign;
    bool infinite = kg_math_is_infinite(c, at, &sign);

    if (kg_math_any(t, f, is_stepped) || (!infinite && ends_at(c, f, name, at)))
        return 0;
    int value = infinite ? limit_at_infinity(c, f, name, sign)
                         : limit_of(c, f, name, at, false);
    return value && !t->full ? value : 0;
}

/* ---- definite integrals ---- */

/* Whether f is bounded between the limits, and so is F unless the upper one is
 * infinite. */
static bool is_regular(struct kg_math_compare *c, int f, int F, int name, int low,
                       int high)
{
    struct kg_math_tree *t = c->tree;
    int sign;

    if (is_entire(t, f, name))
        return true;
    if (!kg_math_is_infinite(c, high, &sign))
        return kg_math_is_bounded(&c->decider, f, name, low, high) &&
               kg_math_is_bounded(&c->decider, F, name, low, high);
    if (kg_math_order(&c->decider, low, number(t, 0)) <= 0)
        return false;
    f = kg_math_replaced(c, f, name, over(t, number(t, 1), name));
    struct quotient q = as_quotient(t, f, name, true);
    return kg_math_is_bounded(&c->decider, over(t, q.over, q.under), name, number(t, 0),
                              over(t, number(t, 1), low));
}

static int integral(struct kg_math_compare *c, int node)
{
    struct kg_math_tree *t = c->tree;
    int name = kg_math_part(t, node, KG_MATH_NAME);
    int low = kg_math_part(t, node, KG_MATH_LOW);
    int high = kg_math_part(t, node, KG_MATH_HIGH);
    int f = kg_math_part(t, node, KG_MATH_BODY);
    const struct by by = {name, true};
    int F = integrate(t, f, &by, 0);
    int sign;

    if (!F || t->full || !is_primitive(c, F, f, name))
        return 0;
    if (!low) {
        int free_name = kg_math_leaf(t, KG_MATH_SYM, 0, kg_math_leaf_text(t, name),
                                     t->nodes[name].len);

        return add(t, kg_math_replaced(c, F, name, free_name),
                   kg_math_leaf(t, KG_MATH_SYM, 0, "C", 1));
    }
    if (kg_math_any(t, low, kg_math_is_infinity) || !is_regular(c, f, F, name, low, high))
        return 0;
    int upper = kg_math_is_infinite(c, high, &sign) ? limit_at_infinity(c, F, name, sign)
                                                    : kg_math_replaced(c, F, name, high);
    return add(t, sign > 0 ? upper : 0, negative(t, kg_math_replaced(c, F, name, low)));
}

/* ---- infinite sums ---- */

static int infinite_sum(struct kg_math_compare *c, int node)
{
    struct kg_math_tree *t = c->tree;
    char text[KG_MATH_SUM_TEXT];

    if (t->nodes[node].op != KG_MATH_SUM || !kg_math_sum_limit(&c->decider, text, node))
        return 0;
    bool minus = text[0] == '-';
    size_t n = strcspn(text, "/");
    int value = kg_math_leaf(t, KG_MATH_NUM, 0, text + minus, n - minus);
    if (text[n])
        value = over(t, value,
                     kg_math_leaf(t, KG_MATH_NUM, 0, text + n + 1, strlen(text + n + 1)));
    return minus ? negative(t, value) : value;
}

/* ---- evaluation of a tree ---- */

static bool is_big(const struct kg_math_node *n)
{
    return n->kind == KG_MATH_OPAQUE && n->op != KG_MATH_AS_TEXT;
}

static int derivative(struct kg_math_compare *c, int node)
{
    struct kg_math_tree *t = c->tree;
    const struct by by = {kg_math_part(t, node, KG_MATH_NAME),
                          is_number(t, kg_math_part(t, node, KG_MATH_HIGH), "1")};
    int order = kg_math_leaf_text(t, kg_math_part(t, node, KG_MATH_LOW))[0] - '0';
    int f = kg_math_part(t, node, KG_MATH_BODY);

    for (int i = 0; i < order && f && i < MAX_ORDER; i++)
        f = derive(t, f, &by);
    return order > MAX_ORDER ? 0 : f;
}

int kg_math_worked_out(struct kg_math_compare *c, int node)
{
    struct kg_math_tree *t = c->tree;
    struct kg_math_node n = t->nodes[node];
    int value = 0;
    int sign;

    if (!node || !kg_math_any(t, node, is_big))
        return node;
    n.a = (uint16_t)kg_math_worked_out(c, n.a);
    n.b = (uint16_t)kg_math_worked_out(c, n.b);
    int fresh = kg_math_node(t, KG_MATH_NONE, 0, n.a, n.b);
    if (!fresh)
        return 0;
    n.size = t->nodes[fresh].size;
    t->nodes[fresh] = n;
    if (!is_big(&n))
        return fresh;
    if (n.op == KG_MATH_DERIVATIVE)
        value = derivative(c, fresh);
    else if (n.op == KG_MATH_INT)
        value = integral(c, fresh);
    else if (n.op == KG_MATH_LIM)
        value = limit(c, fresh);
    else if (!kg_math_is_infinite(c, kg_math_part(t, fresh, KG_MATH_HIGH), &sign))
        return fresh;
    else
        value = infinite_sum(c, fresh);
    if (!value)
        t->nodes[fresh].op = KG_MATH_AS_TEXT;
    return value ? value : fresh;
}
