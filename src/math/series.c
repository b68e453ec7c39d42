/* What calculus.c asks of numbers: whether a function is bounded on an interval, and what
 * an infinite sum of rational terms is.
 *
 * Bounded: the interval is cut into pieces, and a ball that holds a piece is put in for
 * the variable; where all values are finite balls there is no pole.
 *
 * Sums: Wynn's algorithms make columns out of the partial sums. A column that is constant
 * is the limit: of epsilon where the terms are sums of polynomials times powers, of rho
 * where the partial sums are a rational function of their number. Both are exact over the
 * rationals; that the terms fall is asked too, since epsilon also has a value for sums
 * that grow without end.
 */
#include "math/flint_internal.h"

#include <math.h>

enum { BITS = 128, PIECES = 64, SUMS = 24, AGREE = 5 };

/* ---- bounded functions ---- */

static bool real_value(struct kg_math_eval *e, arb_t out, int node)
{
    acb_t z;
    bool ok;

    acb_init(z);
    ok = kg_math_eval_acb(e, z, node) && acb_is_real(z);
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
    bool ok;

    arb_init(from);
    arb_init(to);
    arb_init(a);
    arb_init(b);
    arb_init(piece);
    acb_init(z);
    ok = real_value(e, from, low) && real_value(e, to, high);
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
    int stopped;

    kg_math_session_begin(&s, d->budget);
    stopped = setjmp(s.out);
    if (!stopped)
        ok = bounded(&e, f, name, low, high);
    kg_math_session_end(stopped != 0);
    d->no_memory = d->no_memory || stopped == KG_MATH_STOP_NOMEM;
    return !stopped && ok;
}

/* ---- infinite sums ---- */

/* sum[k] = a_0 + .. + a_k. Their terms must fall to less than half on the way.
 * returns false where one is no rational number */
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
    fmpq_clear(term);
    return ok && size < first / 2;
}

static bool is_constant(const fmpq *column, slong n)
{
    for (slong i = 1; i < n; i++) {
        if (!fmpq_equal(column, column + i))
            return false;
    }
    return n >= AGREE;
}

/* The columns of Wynn's epsilon (rho: with k in the place of 1) up to one that is
 * constant, which is left in this[0]. next[n] = last[n + 1] + k / (this[n + 1] -
 * this[n]) */
static bool extrapolate(fmpq *now, fmpq *last, bool rho)
{
    fmpq_t d;
    bool found = false;
    bool ok = true;

    fmpq_init(d);
    for (slong n = 0; n < SUMS + 1; n++)
        fmpq_zero(last + n);
    for (slong k = 1; k < SUMS && ok && !found; k++) {
        if (k % 2 == 1)
            found = is_constant(now, SUMS - k + 1);
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

    if (partial_sums(e, sum, node)) {
        for (int rho = 0; rho < 2 && !found; rho++) {
            for (slong i = 0; i < SUMS; i++)
                fmpq_set(now + i, sum + i);
            found = extrapolate(now, last, rho);
        }
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
    int stopped;

    if (kg_math_any(d->tree, d->tree->nodes[node].a, is_free))
        return false;
    kg_math_session_begin(&s, d->budget);
    stopped = setjmp(s.out);
    if (!stopped)
        ok = sum_limit(&e, text, node);
    kg_math_session_end(stopped != 0);
    d->no_memory = d->no_memory || stopped == KG_MATH_STOP_NOMEM;
    return !stopped && ok;
}
