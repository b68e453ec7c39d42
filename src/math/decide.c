/* Whether two trees are the same number or function, by exact arithmetic alone.
 *
 * Numbers: rational ones are compared as such. Others are first enclosed in balls, and
 * balls that do not overlap are certainly different. Only numbers that may be equal are
 * passed to Calcium, which proves that the difference is zero or is not, or cannot tell:
 * then the verdict is undecided.
 *
 * Functions: the symbols of both sides get rational values (integers if symbols are in
 * exponents or factorials) at several points. A difference at one point is a proof;
 * equality, exact at every point, is taken for identity. Values are positive, unless |..|
 * or a root of a name occurs, so that sqrt(x^2) is |x| and not x; a point at which a root
 * has a negative radicand is skipped, so that sqrt(x) sqrt(y) is sqrt(xy).
 */
#include "math/flint_internal.h"

#include <math.h>
#include <stdio.h>

enum {
    BALL_BITS = 160,
    POINTS = 4,       /* points that must agree */
    POINTS_MANY = 12, /* the same if values are whole, or functions have steps */
    POINTS_CA = 2,    /* of them proved by Calcium if values are not rational */
    MAX_POINTS = 36,  /* points tried, because a value may be undefined */
};

static enum kg_math_verdict because(struct kg_math_decider *d, enum kg_math_verdict v,
                                    const char *reason)
{
    snprintf(d->reason, sizeof d->reason, "%s", reason);
    return v;
}

/* ---- contents of a tree ---- */

/* Whether the node counts as a name; sums and products are evaluated instead. */
static bool is_opaque(const struct kg_math_node *n)
{
    return n->kind == KG_MATH_OPAQUE && !kg_math_is_series(n);
}

static bool is_variable(const struct kg_math_node *n)
{
    return n->kind == KG_MATH_SYM || is_opaque(n);
}

static bool is_abs(const struct kg_math_node *n)
{
    return n->kind == KG_MATH_FUNC && n->op == KG_MATH_ABS;
}

/* Whether a name is below a root or in the base of a power with a fractional exponent. */
static bool has_root(const struct kg_math_tree *t, int node)
{
    const struct kg_math_node *n = &t->nodes[node];

    return node && ((n->kind == KG_MATH_FUNC &&
                     (n->op == KG_MATH_SQRT || n->op == KG_MATH_ROOT) &&
                     kg_math_any(t, n->a, is_variable)) ||
                    (n->kind == KG_MATH_POW && t->nodes[n->b].kind == KG_MATH_DIV &&
                     kg_math_any(t, n->a, is_variable)) ||
                    has_root(t, n->a) || has_root(t, n->b));
}

static bool is_combinatorial(const struct kg_math_node *n)
{
    return n->kind == KG_MATH_FUNC &&
           (n->op == KG_MATH_FACTORIAL || n->op == KG_MATH_BINOMIAL ||
            n->op == KG_MATH_GCD || n->op == KG_MATH_LCM);
}

static bool is_stepped(const struct kg_math_node *n)
{
    return n->kind == KG_MATH_FUNC &&
           (n->op == KG_MATH_ABS || n->op == KG_MATH_FLOOR || n->op == KG_MATH_CEIL ||
            n->op == KG_MATH_MAX || n->op == KG_MATH_MIN);
}

/* Whether symbols need whole values: in exponents, factorials or limits of sums. */
static bool wants_whole(const struct kg_math_tree *t, int node)
{
    for (; node; node = t->nodes[node].a) {
        const struct kg_math_node *n = &t->nodes[node];
        const struct kg_math_node *base = &t->nodes[n->a];

        if (is_combinatorial(n) && kg_math_any(t, node, is_variable))
            return true;
        if (kg_math_is_series(n) &&
            (kg_math_any(t, kg_math_part(t, node, KG_MATH_LOW), is_variable) ||
             kg_math_any(t, kg_math_part(t, node, KG_MATH_HIGH), is_variable)))
            return true;
        if (n->kind == KG_MATH_POW &&
            !(base->kind == KG_MATH_CONST && base->op == KG_MATH_E) &&
            kg_math_any(t, n->b, is_variable))
            return true;
        if (wants_whole(t, n->b))
            return true;
    }
    return false;
}

/* The number of points that must agree: more if a few may agree by chance, because all
 * are even or on the same side of a step. */
static int points_for(const struct kg_math_tree *t, int a, int b, bool whole)
{
    if (!kg_math_any(t, a, is_variable) && !kg_math_any(t, b, is_variable))
        return 1;
    return whole || kg_math_any(t, a, is_stepped) || kg_math_any(t, b, is_stepped) ||
                   has_root(t, a) || has_root(t, b)
               ? POINTS_MANY
               : POINTS;
}

/* ---- values and proofs, inside a session ---- */

/* Two values at one point. */
struct pair {
    fmpq_t qa;
    fmpq_t qb;
    acb_t a;
    acb_t b;
    bool rational;
};

static void pair_init(struct pair *p)
{
    fmpq_init(p->qa);
    fmpq_init(p->qb);
    acb_init(p->a);
    acb_init(p->b);
    p->rational = false;
}

static void pair_clear(struct pair *p)
{
    fmpq_clear(p->qa);
    fmpq_clear(p->qb);
    acb_clear(p->a);
    acb_clear(p->b);
}

/* returns false if one of the two has no value */
static bool pair_eval(struct pair *p, struct kg_math_eval *e, int a, int b)
{
    e->undefined = false;
    p->rational = kg_math_eval_fmpq(e, p->qa, a) && kg_math_eval_fmpq(e, p->qb, b);
    if (p->rational) {
        acb_set_fmpq(p->a, p->qa, e->prec);
        acb_set_fmpq(p->b, p->qb, e->prec);
        return true;
    }
    if (e->undefined)
        return false;
    return kg_math_eval_acb(e, p->a, a) && kg_math_eval_acb(e, p->b, b);
}

static void context_init(ca_ctx_t ctx, struct kg_math_eval *e)
{
    ca_ctx_init(ctx);
    ca_ctx_set_option(ctx, CA_OPT_PREC_LIMIT, 1024);
    ca_ctx_set_option(ctx, CA_OPT_QQBAR_DEG_LIMIT, 120);
    e->ctx = ctx;
}

/* Calcium's verdict on a == b. */
static truth_t prove(struct kg_math_eval *e, int a, int b)
{
    ca_ctx_t ctx;
    ca_t x;
    ca_t y;
    truth_t word = T_UNKNOWN;

    context_init(ctx, e);
    ca_init(x, ctx);
    ca_init(y, ctx);
    if (kg_math_eval_ca(e, x, a) && kg_math_eval_ca(e, y, b)) {
        ca_sub(x, x, y, ctx);
        word = ca_check_is_zero(x, ctx);
    }
    ca_clear(x, ctx);
    ca_clear(y, ctx);
    ca_ctx_clear(ctx);
    return word;
}

/* Calcium's verdict on a(p) b(q) == a(q) b(p), where p and q are two points. */
static truth_t prove_cross(struct kg_math_eval *e, int a, int b, const int points[2])
{
    const int tree[4] = {a, b, a, b}; /* at points p, q, q, p */
    ca_ctx_t ctx;
    ca_t x[4];
    truth_t word = T_UNKNOWN;
    bool ok = true;

    context_init(ctx, e);
    for (int i = 0; i < 4; i++)
        ca_init(x[i], ctx);
    for (int i = 0; i < 4 && ok; i++) {
        e->point = points[i == 1 || i == 2];
        ok = kg_math_eval_ca(e, x[i], tree[i]);
    }
    if (ok) {
        ca_mul(x[0], x[0], x[1], ctx);
        ca_mul(x[2], x[2], x[3], ctx);
        ca_sub(x[0], x[0], x[2], ctx);
        word = ca_check_is_zero(x[0], ctx);
    }
    for (int i = 0; i < 4; i++)
        ca_clear(x[i], ctx);
    ca_ctx_clear(ctx);
    return word;
}

/* out <- x 10^decimals, rounded.   returns false if it is too large to tell */
static bool rounded(fmpz_t out, const arb_t x, slong decimals)
{
    arb_t s;

    arb_init(s);
    arb_set_ui(s, 10);
    arb_pow_ui(s, s, (ulong)decimals, BALL_BITS);
    arb_mul(s, x, s, BALL_BITS);
    bool ok = arb_is_finite(s) && arf_cmpabs_2exp_si(arb_midref(s), BALL_BITS) < 0;
    if (ok)
        arf_get_fmpz(out, arb_midref(s), ARF_RND_NEAR);
    arb_clear(s);
    return ok;
}

static bool same_rounded(const arb_t a, const arb_t b, slong decimals)
{
    fmpz_t x;
    fmpz_t y;

    fmpz_init(x);
    fmpz_init(y);
    bool same = rounded(x, a, decimals) && rounded(y, b, decimals) && fmpz_equal(x, y);
    fmpz_clear(x);
    fmpz_clear(y);
    return same;
}

/* log10 |x| of the midpoint; -1e9 for zero, infinity and NaN. */
static double log10_size(const arb_t x)
{
    arf_t mantissa;
    fmpz_t exponent;
    double log = -1e9;

    if (arf_is_special(arb_midref(x)))
        return log;
    arf_init(mantissa);
    fmpz_init(exponent);
    arf_frexp(mantissa, exponent, arb_midref(x));
    log = fmax(log, log10(fabs(arf_get_d(mantissa, ARF_RND_NEAR))) +
                        fmpz_get_d(exponent) * log10(2));
    fmpz_clear(exponent);
    arf_clear(mantissa);
    return log;
}

/* The decimals to which two values are rounded: more if one of them is small but not
 * zero, so that 2e-19 is not 0. */
static slong decimals_for(const acb_t gold, const acb_t x, int decimals)
{
    double logs[] = {
        fmax(log10_size(acb_realref(gold)), log10_size(acb_imagref(gold))),
        fmax(log10_size(acb_realref(x)), log10_size(acb_imagref(x))),
    };
    double smallest = 0;

    for (size_t i = 0; i < 2; i++) {
        if (logs[i] > -1e9)
            smallest = fmin(smallest, logs[i]);
    }
    return smallest < -3 ? decimals - 1 - (slong)floor(smallest) : decimals;
}

static bool is_near(const struct kg_math_near *near, const acb_t gold, const acb_t x)
{
    slong decimals = decimals_for(gold, x, near->decimals);
    acb_t difference;

    if (!(near->absolute > 0))
        return same_rounded(acb_realref(gold), acb_realref(x), decimals) &&
               same_rounded(acb_imagref(gold), acb_imagref(x), decimals);
    acb_init(difference);
    acb_sub(difference, gold, x, BALL_BITS);
    acb_abs(acb_realref(difference), difference, BALL_BITS);
    double size = arf_get_d(arb_midref(acb_realref(difference)), ARF_RND_NEAR);
    acb_clear(difference);
    return size <= near->absolute * (1 + 1e-9);
}

/* Whether both balls are small enough to determine the decimals that are compared. */
static bool is_close_enclosure(const struct kg_math_near *near, const struct pair *p)
{
    double bits = -log2(10) * (double)(decimals_for(p->a, p->b, near->decimals) + 1);
    mag_srcptr radius[] = {arb_radref(acb_realref(p->a)), arb_radref(acb_imagref(p->a)),
                           arb_radref(acb_realref(p->b)), arb_radref(acb_imagref(p->b))};

    if (near->absolute > 0)
        bits = log2(near->absolute / 10);
    for (size_t i = 0; i < sizeof radius / sizeof *radius; i++) {
        if (!mag_is_zero(radius[i]) && mag_get_d_log2_approx(radius[i]) > bits)
            return false;
    }
    return true;
}

/* ---- equality ---- */

/* The verdict at one point; KG_MATH_RIGHT: no difference so far. */
static enum kg_math_verdict at_point(struct kg_math_decider *d, struct kg_math_eval *e,
                                     const struct pair *p,
                                     const struct kg_math_near *near)
{
    bool differ = p->rational ? !fmpq_equal(p->qa, p->qb) : !acb_overlaps(p->a, p->b);

    if (!differ && near && near->on && !p->rational && !is_close_enclosure(near, p))
        return because(d, KG_MATH_UNDECIDED, "the numbers are too large");
    if (!differ || (near && near->on && is_near(near, p->a, p->b)))
        return KG_MATH_RIGHT;
    if (e->opaque)
        return because(d, KG_MATH_UNDECIDED,
                       "sums, integrals or limits that are not evaluated differ");
    return because(d, KG_MATH_WRONG, "the values differ");
}

struct tally {
    int good;      /* points at which both sides have a value */
    int zeros;     /* other points, where both are zero: that proves little */
    bool rational; /* rational and equal at all good points */
    int used[MAX_POINTS];
};

static bool are_zero(const struct pair *p)
{
    return p->rational && fmpq_is_zero(p->qa) && fmpq_is_zero(p->qb);
}

static enum kg_math_verdict walk_points(struct kg_math_decider *d, struct kg_math_eval *e,
                                        struct tally *tally, int a, int b, int points,
                                        const struct kg_math_near *near)
{
    enum kg_math_verdict v = KG_MATH_RIGHT;
    struct pair p;
    int tries = points == 1 ? 1 : MAX_POINTS;

    pair_init(&p);
    tally->rational = true;
    for (e->point = 0; e->point < tries && tally->good < points && v == KG_MATH_RIGHT;
         e->point++) {
        if (!pair_eval(&p, e, a, b))
            continue;
        if (are_zero(&p)) {
            tally->zeros++;
            continue;
        }
        tally->used[tally->good++] = e->point;
        tally->rational = tally->rational && p.rational && fmpq_equal(p.qa, p.qb);
        v = at_point(d, e, &p, near);
    }
    pair_clear(&p);
    return v;
}

static enum kg_math_verdict prove_points(struct kg_math_decider *d,
                                         struct kg_math_eval *e,
                                         const struct tally *tally, int a, int b)
{
    int points = tally->good < POINTS_CA ? tally->good : POINTS_CA;

    for (int i = 0; i < points; i++) {
        e->point = tally->used[i];
        truth_t word = prove(e, a, b);
        if (word == T_FALSE)
            return because(d, e->opaque ? KG_MATH_UNDECIDED : KG_MATH_WRONG,
                           "the values differ");
        if (word == T_UNKNOWN)
            return because(d, KG_MATH_UNDECIDED,
                           e->large ? "the numbers are too large"
                                    : "equal to many digits, but not proved equal");
    }
    return because(d, KG_MATH_RIGHT, "the values are equal");
}

/* The arguments of a comparison. It runs in a session, which a limit of time or memory
 * ends by a jump out of FLINT. */
struct question {
    int a, b;
    const struct kg_math_near *near; /* equality */
    int *sign;                       /* proportionality: sign of the factor */
};
typedef enum kg_math_verdict (*compare_fn)(struct kg_math_decider *d,
                                           const struct question *q);

static enum kg_math_verdict in_session(struct kg_math_decider *d, compare_fn compare,
                                       const struct question *q)
{
    struct kg_math_session s;
    enum kg_math_verdict v;

    kg_math_session_begin(&s, d->budget);
    int stopped = setjmp(s.out);
    if (stopped)
        v = because(d, KG_MATH_UNDECIDED,
                    kg_math_stop_reason((enum kg_math_stop)stopped));
    else
        v = compare(d, q);
    kg_math_session_end(stopped != 0);
    d->no_memory = d->no_memory || stopped == KG_MATH_STOP_NOMEM;
    return v;
}

static enum kg_math_verdict equal(struct kg_math_decider *d, const struct question *q)
{
    const struct kg_math_near *near = q->near;
    const int a = q->a, b = q->b;
    const struct kg_math_tree *t = d->tree;
    bool variables = kg_math_any(t, a, is_variable) || kg_math_any(t, b, is_variable);
    bool roots = variables && (has_root(t, a) || has_root(t, b));
    struct kg_math_eval e = {
        .tree = t,
        .prec = BALL_BITS,
        .whole = variables && (wants_whole(t, a) || wants_whole(t, b)),
        .negative = kg_math_any(t, a, is_abs) || kg_math_any(t, b, is_abs) || roots,
        .real = roots,
        .opaque = kg_math_any(t, a, is_opaque) || kg_math_any(t, b, is_opaque),
    };
    struct tally tally = {0};
    enum kg_math_verdict v;

    v = walk_points(d, &e, &tally, a, b, points_for(t, a, b, e.whole), near);
    if (roots && v == KG_MATH_RIGHT && tally.good + tally.zeros < 2) {
        e.real = e.negative = false; /* too few points have real roots */
        tally = (struct tally){0};
        v = walk_points(d, &e, &tally, a, b, points_for(t, a, b, e.whole), near);
    }
    if (v != KG_MATH_RIGHT)
        return v;
    if (tally.good + tally.zeros < (variables ? 2 : 1))
        return because(d, KG_MATH_UNDECIDED,
                       e.large       ? "the numbers are too large"
                       : e.undefined ? "a value is not defined"
                                     : "a part has no value that can be computed");
    if (near && near->on)
        return because(d, KG_MATH_RIGHT,
                       "equal to the number of decimals that is compared");
    if (tally.rational)
        return because(d, KG_MATH_RIGHT, "the values are equal");
    return prove_points(d, &e, &tally, a, b);
}

enum kg_math_verdict kg_math_equal(struct kg_math_decider *d, int a, int b,
                                   const struct kg_math_near *near)
{
    const struct question q = {.a = a, .b = b, .near = near};

    return in_session(d, equal, &q);
}

/* ---- order ---- */

static int order(struct kg_math_decider *d, int a, int b)
{
    struct kg_math_eval e = {.tree = d->tree, .prec = BALL_BITS};
    struct pair p;
    int sign = 0;

    pair_init(&p);
    if (pair_eval(&p, &e, a, b) && acb_is_real(p.a) && acb_is_real(p.b)) {
        if (arb_lt(acb_realref(p.a), acb_realref(p.b)))
            sign = -1;
        else if (arb_gt(acb_realref(p.a), acb_realref(p.b)))
            sign = 1;
    }
    pair_clear(&p);
    return sign;
}

int kg_math_order(struct kg_math_decider *d, int a, int b)
{
    struct kg_math_session s;
    volatile int sign = 0;

    if (kg_math_any(d->tree, a, is_variable) || kg_math_any(d->tree, b, is_variable))
        return 0;
    kg_math_session_begin(&s, d->budget);
    int stopped = setjmp(s.out);
    if (!stopped)
        sign = order(d, a, b);
    kg_math_session_end(stopped != 0);
    d->no_memory = d->no_memory || stopped == KG_MATH_STOP_NOMEM;
    return sign;
}

/* ---- proportionality ---- */

/* Whether a(p) b(q) and a(q) b(p) certainly differ; p has the values at one point, q
 * those at another. */
static bool cross_differs(const struct pair *p, const struct pair *q)
{
    acb_t x;
    acb_t y;
    fmpq_t u;
    fmpq_t w;
    bool differs;

    if (p->rational && q->rational) {
        fmpq_init(u);
        fmpq_init(w);
        fmpq_mul(u, p->qa, q->qb);
        fmpq_mul(w, q->qa, p->qb);
        differs = !fmpq_equal(u, w);
        fmpq_clear(u);
        fmpq_clear(w);
        return differs;
    }
    acb_init(x);
    acb_init(y);
    acb_mul(x, p->a, q->b, BALL_BITS);
    acb_mul(y, q->a, p->b, BALL_BITS);
    differs = !acb_overlaps(x, y);
    acb_clear(x);
    acb_clear(y);
    return differs;
}

/* The sign of a / b; 0 if it is unknown. */
static int ratio_sign(const struct pair *p)
{
    acb_t x;
    int sign = 0;

    acb_init(x);
    acb_div(x, p->a, p->b, BALL_BITS);
    if (acb_is_finite(x) && arb_is_positive(acb_realref(x)))
        sign = 1;
    else if (acb_is_finite(x) && arb_is_negative(acb_realref(x)))
        sign = -1;
    acb_clear(x);
    return sign;
}

static enum kg_math_verdict proportional(struct kg_math_decider *d,
                                         const struct question *q)
{
    const int a = q->a, b = q->b;
    int *sign = q->sign;
    const struct kg_math_tree *t = d->tree;
    struct kg_math_eval e = {
        .tree = t,
        .prec = BALL_BITS,
        .whole = wants_whole(t, a) || wants_whole(t, b),
        .negative = true,
    };
    struct pair first;
    struct pair p;
    int good = 0;
    int points = points_for(t, a, b, e.whole);
    int used[MAX_POINTS];
    bool differs = false;
    bool rational = true;

    pair_init(&first);
    pair_init(&p);
    for (; e.point < MAX_POINTS && good < points && !differs; e.point++) {
        struct pair *here = good ? &p : &first;

        if (!pair_eval(here, &e, a, b) || (good == 0 && (*sign = ratio_sign(here)) == 0))
            continue;
        rational = rational && here->rational;
        differs = good > 0 && cross_differs(&first, here);
        used[good++] = e.point;
    }
    pair_clear(&first);
    pair_clear(&p);
    if (differs)
        return because(d, KG_MATH_WRONG, "the relations are different");
    if (good < 2)
        return because(d, KG_MATH_UNDECIDED, "the relations cannot be compared");
    if (!rational && prove_cross(&e, a, b, used) == T_TRUE)
        rational = true;
    return rational
               ? because(d, KG_MATH_RIGHT, "the relations are the same")
               : because(d, KG_MATH_UNDECIDED,
                         "the relations agree to many digits, but that is not a proof");
}

enum kg_math_verdict kg_math_proportional(struct kg_math_decider *d, int a, int b,
                                          int *sign)
{
    const struct question q = {.a = a, .b = b, .sign = sign};

    return in_session(d, proportional, &q);
}
