/* The value of a tree in any of three kinds of numbers: rationals (cheap, exact, no
 * roots), balls (enclose every value, prove that two differ) and Calcium's (prove that
 * two are equal, may be slow). The meaning of a tree is defined once, here: which
 * argument is an angle, which power an exponential. A kind of numbers is a table of
 * operations with its own limits. */
#include "math/flint_internal.h"

#include <string.h>

enum {
    MAX_INDEX = 10000,   /* largest index of a root */
    MAX_LIMIT = 1000000, /* largest limit of a sum */
};

/* Room for a number of any kind. */
union number {
    fmpq rational;
    acb_struct ball;
    ca_struct exact;
};

static bool has(const struct kg_math_algebra *a, int func)
{
    return func < 32 && (a->functions >> func & 1);
}

/* z <- z + x, z x, z / x or z^x, where x is the value of the node. */
static bool combine(const struct kg_math_algebra *a, struct kg_math_eval *e, void *z,
                    int node, int kind)
{
    union number right;

    a->init(e, &right);
    bool ok = kg_math_walk(a, e, &right, node) && a->binary(e, z, &right, kind);
    a->clear(e, &right);
    return ok;
}

static bool power(const struct kg_math_algebra *a, struct kg_math_eval *e, void *z,
                  const struct kg_math_node *n)
{
    const struct kg_math_node *base = &e->tree->nodes[n->a];
    enum kg_math_answer answer = KG_MATH_WALK;
    bool general = has(a, KG_MATH_EXP);
    fmpq_t q;

    if (general && base->kind == KG_MATH_CONST && base->op == KG_MATH_E)
        return kg_math_walk(a, e, z, n->b) && a->function(e, z, KG_MATH_EXP);
    if (!kg_math_walk(a, e, z, n->a))
        return false;
    fmpq_init(q);
    if (kg_math_eval_fmpq(e, q, n->b) && fmpz_is_one(fmpq_denref(q)))
        answer = a->power(e, z, fmpq_numref(q));
    fmpq_clear(q);
    if (answer == KG_MATH_WALK)
        return general && combine(a, e, z, n->b, n->kind);
    return answer == KG_MATH_YES;
}

/* Trigonometric functions take 30 degrees as pi / 6. */
static bool radians(const struct kg_math_algebra *a, struct kg_math_eval *e, void *z)
{
    union number pi;

    a->init(e, &pi);
    bool ok = a->constant(e, &pi, KG_MATH_PI) && a->binary(e, z, &pi, KG_MATH_MUL);
    a->clear(e, &pi);
    if (ok)
        a->divide(e, z, 180);
    return ok;
}

static bool call(const struct kg_math_algebra *a, struct kg_math_eval *e, void *z,
                 const struct kg_math_node *n)
{
    bool degrees = e->tree->nodes[n->a].kind == KG_MATH_DEGREE;
    slong index;

    if (!has(a, n->op) || !kg_math_walk(a, e, z, n->a))
        return false;
    if (n->op == KG_MATH_ROOT)
        return kg_math_eval_whole(e, &index, n->b, MAX_INDEX) && index > 0 &&
               a->root(e, z, index);
    if (degrees && n->op <= KG_MATH_ATAN && has(a, KG_MATH_SIN) && !radians(a, e, z))
        return false;
    return a->function(e, z, n->op);
}

const struct kg_math_bound *kg_math_bound_find(const struct kg_math_eval *e, int node)
{
    const struct kg_math_bound *b = e->bound;

    while (b && strcmp(b->name, kg_math_leaf_text(e->tree, node)) != 0)
        b = b->outer;
    return b;
}

/* A sum or product, term by term. */
static bool series(const struct kg_math_algebra *a, struct kg_math_eval *e, void *z,
                   int node)
{
    const struct kg_math_tree *t = e->tree;
    struct kg_math_bound name = {
        .name = kg_math_leaf_text(t, kg_math_part(t, node, KG_MATH_NAME)),
        .outer = e->bound};
    int kind = t->nodes[node].op == KG_MATH_SUM ? KG_MATH_ADD : KG_MATH_MUL;
    int body = kg_math_part(t, node, KG_MATH_BODY);
    slong high;

    if (!kg_math_eval_whole(e, &name.value, kg_math_part(t, node, KG_MATH_LOW),
                            MAX_LIMIT) ||
        !kg_math_eval_whole(e, &high, kg_math_part(t, node, KG_MATH_HIGH), MAX_LIMIT) ||
        high < name.value)
        return false;
    if (high - name.value >= a->terms) {
        e->large = true;
        return false;
    }
    e->bound = &name;
    bool ok = kg_math_walk(a, e, z, body);
    while (ok && name.value < high) {
        name.value++;
        ok = combine(a, e, z, body, kind);
    }
    e->bound = name.outer;
    return ok;
}

bool kg_math_walk(const struct kg_math_algebra *a, struct kg_math_eval *e, void *z,
                  int node)
{
    const struct kg_math_node *n = &e->tree->nodes[node];
    enum kg_math_answer answer = kg_math_is_series(n)
                                     ? (series(a, e, z, node) ? KG_MATH_YES : KG_MATH_NO)
                                     : a->direct(e, z, node);

    if (answer != KG_MATH_WALK)
        return answer == KG_MATH_YES;
    switch ((enum kg_math_kind)n->kind) {
    case KG_MATH_CONST:
        return a->constant(e, z, n->op);
    case KG_MATH_ADD:
    case KG_MATH_MUL:
    case KG_MATH_DIV:
        return kg_math_walk(a, e, z, n->a) && combine(a, e, z, n->b, n->kind);
    case KG_MATH_POW:
        return power(a, e, z, n);
    case KG_MATH_NEG:
        if (!kg_math_walk(a, e, z, n->a))
            return false;
        a->negate(e, z);
        return true;
    case KG_MATH_PERCENT:
        if (!kg_math_walk(a, e, z, n->a))
            return false;
        a->divide(e, z, 100);
        return true;
    case KG_MATH_DEGREE:
    case KG_MATH_UNIT:
        return kg_math_walk(a, e, z, n->a);
    case KG_MATH_MOD:
        return kg_math_walk(a, e, z, n->b);
    case KG_MATH_FUNC:
        return call(a, e, z, n);
    default:
        return false;
    }
}
