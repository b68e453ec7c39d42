/* Two questions of calculus.c: is a function bounded on an interval, and what is an
 * infinite sum of rational terms?
 *
 * Bounded: the interval is divided into pieces, and the variable is a ball that covers a
 * piece; if all values are finite balls, there is no pole.
 *
 * Sums: Wynn's algorithms make columns from the partial sums. A constant column is the
 * limit: of epsilon if the terms are sums of polynomials times powers, of rho if the
 * partial sums are a rational function of their number. In general the first 24 terms
 * prove nothing about the others (floor(n/30) is 0 for all of them). So only terms of
 * these two shapes are summed, and the column must be constant for longer than the shape
 * has coefficients: a sequence of that shape that satisfies a recurrence for so long
 * satisfies it for ever. Powers must fall, and a denominator must have no later zero.
 */
#include "math/flint_internal.h"

#include <math.h>

enum { BITS = 128, PIECES = 64, SUMS = 24, AGREE = 5 };

/* ---- bounded functions ---- */

static bool real_value(struct kg_math_eval *e, arb_t out, int node)
{
    acb_t z;

    acb_init(z);
    bool ok = kg_math_eval_acb(e, z, node) && acb_is_real(z);
    arb_set(out, acb_realref(z));
    acb_clear(z);
    return ok;
}

static bool bounded(struct kg_math_eval *e, int f, int name, int low, int high)
{
    arb_t from, to, a, b, piece;
    struct kg_math_bound range = {.name = kg_math_leaf_text(e->tree, name),
                                  .range = piece};
    acb_t z;

    arb_init(from);
    arb_init(to);
    arb_init(a);
    arb_init(b);
    arb_init(piece);
    acb_init(z);
    bool ok = real_value(e, from, low) && real_value(e, to, high);
    arb_sub(to, to, from, e->prec);
    e->bound = &range;
    for (ulong i = 0; i < PIECES && ok; i++) {
        arb_mul_ui(a, to, i, e->prec);
        arb_mul_ui(b, to, i + 1, e->prec);
        arb_union(piece, a, b, e->prec);
        arb_div_ui(piece, piece, PIECES, e->prec);
        arb_add(piece, piece, from, e->prec);
        ok = kg_math_eval_acb(e, z, f) && acb_is_finite(z);
    }
    arb_clear(from);
    arb_clear(to);
    arb_clear(a);
    arb_clear(b);
    arb_clear(piece);
    acb_clear(z);
    return ok;
}

bool kg_math_is_bounded(struct kg_math_decider *d, int f, int name, int low, int high)
{
    struct kg_math_eval e = {.tree = d->tree, .prec = BITS};
    struct kg_math_session s;
    volatile bool ok = false;

    kg_math_session_begin(&s, d->budget);
    int stopped = setjmp(s.out);
    if (!stopped)
        ok = bounded(&e, f, name, low, high);
    kg_math_session_end(stopped != 0);
    d->no_memory = d->no_memory || stopped == KG_MATH_STOP_NOMEM;
    return !stopped && ok;
}

/* ---- infinite sums ---- */

/* The form of the terms. Either `count` terms p(k) r^k with polynomials p up to `degree`,
 * where |r| is at most 1 (falls: below 1 in all); or a rational function of that degree.
 * norm: sum of the absolute coefficients if they are whole. */
struct shape {
    bool ok;
    bool falls;
    int count;
    int degree;
    double norm;
};

enum { MAX_DEGREE = SUMS };

static const double no_norm = 1e9; /* coefficients that are not known to be whole */

static bool is_bound(const struct kg_math_node *n) { return n->kind == KG_MATH_BOUND; }

static bool has_bound(const struct kg_math_eval *e, int node)
{
    return kg_math_any(e->tree, node, is_bound);
}

/* a if the exponent is a k + b for the bound name k and whole a; else 0. */
static slong slope(struct kg_math_eval *e, int node)
{
    const struct kg_math_node *n = &e->tree->nodes[node];
    slong a;
    slong b;

    switch ((enum kg_math_kind)n->kind) {
    case KG_MATH_BOUND:
        return 1;
    case KG_MATH_NEG:
        return -slope(e, n->a);
    case KG_MATH_ADD:
        a = slope(e, n->a);
        b = slope(e, n->b);
        return (a || !has_bound(e, n->a)) && (b || !has_bound(e, n->b)) ? a + b : 0;
    case KG_MATH_MUL:
        if (kg_math_eval_whole(e, &a, n->a, 100))
            return a * slope(e, n->b);
        return kg_math_eval_whole(e, &b, n->b, 100) ? b * slope(e, n->a) : 0;
    default:
        return 0;
    }
}

static struct shape constant_shape(struct kg_math_eval *e, int node)
{
    const struct kg_math_node *n = &e->tree->nodes[node];
    struct shape s = {.count = 1, .norm = no_norm};
    fmpq_t value;

    fmpq_init(value);
    s.ok = kg_math_eval_fmpq(e, value, node);
    if (s.ok && fmpz_is_one(fmpq_denref(value)) &&
        (n->kind == KG_MATH_NUM || n->kind == KG_MATH_NEG))
        s.norm = fabs(fmpq_get_d(value));
    fmpq_clear(value);
    return s;
}

static struct shape product_shape(struct shape a, struct shape b)
{
    struct shape s = {.ok = a.ok && b.ok && a.count * b.count <= MAX_DEGREE &&
                            a.degree + b.degree <= MAX_DEGREE,
                      .falls = a.falls || b.falls,
                      .count = a.count * b.count,
                      .degree = a.degree + b.degree,
                      .norm = a.norm * b.norm};

    return s;
}

/* b^(s k + t) (under: 1 over it); not ok unless it tends to 0. */
static struct shape exponential(struct kg_math_eval *e, int node, bool under)
{
    const struct kg_math_node *n = &e->tree->nodes[node];
    slong up = slope(e, n->b);
    struct shape s = {.count = 1, .norm = no_norm};
    fmpq_t base;

    fmpq_init(base);
    s.ok = up != 0 && kg_math_eval_fmpq(e, base, n->a) && !fmpq_is_zero(base);
    fmpq_abs(base, base);
    int size = s.ok ? fmpq_cmp_si(base, 1) : 0;
    fmpq_clear(base);
    s.falls = s.ok = size != 0 && (size < 0) == ((up > 0) != under);
    return s;
}

static struct shape power_shape(struct kg_math_eval *e, struct shape base, int exponent)
{
    struct shape s = {.ok = true, .count = 1, .norm = 1};
    slong n = 0;

    s.ok = kg_math_eval_whole(e, &n, exponent, MAX_DEGREE) && n > 0;
    for (slong i = 0; i < n && s.ok; i++)
        s = product_shape(s, base);
    return s;
}

/* The form of 1 / node for products of numbers and powers. */
static struct shape divisor_of_powers(struct kg_math_eval *e, int node)
{
    const struct kg_math_node *n = &e->tree->nodes[node];

    if (!has_bound(e, node))
        return constant_shape(e, node);
    if (n->kind == KG_MATH_NEG)
        return divisor_of_powers(e, n->a);
    if (n->kind == KG_MATH_MUL)
        return product_shape(divisor_of_powers(e, n->a), divisor_of_powers(e, n->b));
    if (n->kind == KG_MATH_POW && !has_bound(e, n->a))
        return exponential(e, node, true);
    return (struct shape){.ok = false};
}

/* The form of terms; rational: of polynomials only. */
static struct shape shape_of(struct kg_math_eval *e, int node, bool rational)
{
    const struct kg_math_node *n = &e->tree->nodes[node];
    const struct shape none = {.ok = false};
    struct shape a;
    struct shape b;

    if (!has_bound(e, node))
        return constant_shape(e, node);
    switch ((enum kg_math_kind)n->kind) {
    case KG_MATH_BOUND:
        return (struct shape){.ok = true, .count = 1, .degree = 1, .norm = 1};
    case KG_MATH_NEG:
        return shape_of(e, n->a, rational);
    case KG_MATH_ADD:
        a = shape_of(e, n->a, rational);
        b = shape_of(e, n->b, rational);
        a.ok = a.ok && b.ok && a.count + b.count <= MAX_DEGREE;
        a.falls = a.falls && b.falls;
        a.count += b.count;
        a.degree = a.degree > b.degree ? a.degree : b.degree;
        a.norm += b.norm;
        return a;
    case KG_MATH_MUL:
        return product_shape(shape_of(e, n->a, rational), shape_of(e, n->b, rational));
    case KG_MATH_POW:
        if (!has_bound(e, n->a))
            return rational ? none : exponential(e, node, false);
        return power_shape(e, shape_of(e, n->a, rational), n->b);
    case KG_MATH_DIV:
        return rational
                   ? none
                   : product_shape(shape_of(e, n->a, false), divisor_of_powers(e, n->b));
    default:
        return none;
    }
}

enum { MAX_NORM = 1000 };

/* The form of sums and products of quotients of polynomials, with degrees over a common
 * denominator. norm: of the denominators */
static struct shape quotient_shape(struct kg_math_eval *e, int node)
{
    const struct kg_math_node *n = &e->tree->nodes[node];
    struct shape a;
    struct shape b;

    if (has_bound(e, node) && n->kind == KG_MATH_NEG)
        return quotient_shape(e, n->a);
    if (has_bound(e, node) && (n->kind == KG_MATH_ADD || n->kind == KG_MATH_MUL)) {
        a = quotient_shape(e, n->a);
        b = quotient_shape(e, n->b);
        a.norm = a.norm > b.norm ? a.norm : b.norm;
        b.norm = 1;
        b = product_shape(a, b);
        return b;
    }
    a = shape_of(e, n->kind == KG_MATH_DIV ? n->a : node, true);
    a.norm = 1; /* coefficients of numerators do not count */
    if (n->kind != KG_MATH_DIV || !a.ok)
        return a;
    b = shape_of(e, n->b, true);
    b.ok = b.ok && (b.norm <= MAX_NORM || !has_bound(e, n->b));
    b.norm = has_bound(e, n->b) ? b.norm : 1;
    return product_shape(a, b);
}

/* How many entries of a column must be equal; 0 if the terms have another form. *ahead <-
 * the last k at which a denominator may be zero */
static slong proving_length(struct kg_math_eval *e, int body, bool rho, slong *ahead)
{
    struct shape s = rho ? quotient_shape(e, body) : shape_of(e, body, false);
    slong need = rho ? s.degree + 2 : s.count * (s.degree + 1) + 2;

    *ahead = rho && s.ok ? (slong)s.norm + 2 : 0;
    if (!s.ok || (!rho && !s.falls) || need > SUMS)
        return 0;
    return need > AGREE ? need : AGREE;
}

/* Whether the terms have values up to k = ahead, after which no denominator is zero. */
static bool has_terms(struct kg_math_eval *e, int node, slong ahead)
{
    const struct kg_math_tree *t = e->tree;
    struct kg_math_bound k = {
        .name = kg_math_leaf_text(t, kg_math_part(t, node, KG_MATH_NAME))};
    bool ok = kg_math_eval_whole(e, &k.value, kg_math_part(t, node, KG_MATH_LOW), 1000);
    fmpq_t term;

    fmpq_init(term);
    e->bound = &k;
    for (; k.value <= ahead && ok; k.value++)
        ok = kg_math_eval_fmpq(e, term, kg_math_part(t, node, KG_MATH_BODY));
    e->bound = NULL;
    fmpq_clear(term);
    return ok;
}

/* sum[k] <- a_0 + .. + a_k.
 * returns false unless terms are rational and the last is below half of the middle one */
static bool partial_sums(struct kg_math_eval *e, fmpq *sum, int node)
{
    const struct kg_math_tree *t = e->tree;
    struct kg_math_bound k = {
        .name = kg_math_leaf_text(t, kg_math_part(t, node, KG_MATH_NAME))};
    int body = kg_math_part(t, node, KG_MATH_BODY);
    fmpq_t term;
    double first = 0;
    double size = 0;
    bool ok = kg_math_eval_whole(e, &k.value, kg_math_part(t, node, KG_MATH_LOW), 1000);

    fmpq_init(term);
    e->bound = &k;
    for (slong i = 0; i < SUMS && ok; i++, k.value++) {
        ok = kg_math_eval_fmpq(e, term, body);
        size = ok ? fabs(fmpq_get_d(term)) : 0;
        first = i == SUMS / 2 ? size : first;
        fmpq_set(sum + i, term);
        if (i > 0)
            fmpq_add(sum + i, sum + i - 1, term);
    }
    e->bound = NULL;
    fmpq_clear(term);
    return ok && size < first / 2;
}

static bool is_constant(const fmpq *column, slong n, slong need)
{
    for (slong i = 1; i < n; i++) {
        if (!fmpq_equal(column, column + i))
            return false;
    }
    return n >= need;
}

/* Computes columns of Wynn's epsilon (rho: with k instead of 1) until one of at least
 * `need` entries is constant; its value is then in now[0].
 * next[n] = last[n + 1] + k / (now[n + 1] - now[n]) */
static bool extrapolate(fmpq *now, fmpq *last, bool rho, slong need)
{
    fmpq_t d;
    bool found = false;
    bool ok = true;

    fmpq_init(d);
    for (slong n = 0; n < SUMS + 1; n++)
        fmpq_zero(last + n);
    for (slong k = 1; k < SUMS && ok && !found; k++) {
        if (k % 2 == 1)
            found = is_constant(now, SUMS - k + 1, need);
        for (slong n = 0; n < SUMS - k && ok && !found; n++) {
            fmpq_sub(d, now + n + 1, now + n);
            ok = !fmpq_is_zero(d);
            if (!ok)
                break;
            fmpq_inv(d, d);
            if (rho)
                fmpq_mul_si(d, d, k);
            fmpq_add(last + n, last + n + 1, d);
        }
        if (!found) {
            fmpq *swap = now;

            now = last;
            last = swap;
        }
    }
    if (found)
        fmpq_set(last, now);
    fmpq_clear(d);
    return found;
}

static bool sum_limit(struct kg_math_eval *e, char *text, int node)
{
    fmpq *sum = _fmpq_vec_init(SUMS + 1);
    fmpq *now = _fmpq_vec_init(SUMS + 1);
    fmpq *last = _fmpq_vec_init(SUMS + 1);
    bool found = false;
    int body = kg_math_part(e->tree, node, KG_MATH_BODY);

    for (int rho = 0; rho < 2 && !found; rho++) {
        slong ahead;
        slong need = proving_length(e, body, rho, &ahead);

        if (!need || !has_terms(e, node, ahead) || !partial_sums(e, sum, node))
            continue;
        for (slong i = 0; i < SUMS; i++)
            fmpq_set(now + i, sum + i);
        found = extrapolate(now, last, rho, need);
    }
    found = found && fmpz_sizeinbase(fmpq_numref(now), 10) +
                             fmpz_sizeinbase(fmpq_denref(now), 10) <
                         KG_MATH_SUM_TEXT - 4;
    if (found)
        fmpq_get_str(text, 10, now);
    _fmpq_vec_clear(sum, SUMS + 1);
    _fmpq_vec_clear(now, SUMS + 1);
    _fmpq_vec_clear(last, SUMS + 1);
    return found;
}

static bool is_free(const struct kg_math_node *n)
{
    return n->kind == KG_MATH_SYM || n->kind == KG_MATH_OPAQUE;
}

bool kg_math_sum_limit(struct kg_math_decider *d, char text[KG_MATH_SUM_TEXT], int node)
{
    struct kg_math_eval e = {.tree = d->tree, .prec = BITS};
    struct kg_math_session s;
    volatile bool ok = false;

    if (kg_math_any(d->tree, d->tree->nodes[node].a, is_free))
        return false;
    kg_math_session_begin(&s, d->budget);
    int stopped = setjmp(s.out);
    if (!stopped)
        ok = sum_limit(&e, text, node);
    kg_math_session_end(stopped != 0);
    d->no_memory = d->no_memory || stopped == KG_MATH_STOP_NOMEM;
    return !stopped && ok;
}
