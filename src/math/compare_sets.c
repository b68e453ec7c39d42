/* Intervals, unions and what relations mean as sets of real numbers. */
#include "math/compare_internal.h"

/* ---- intervals ---- */

static int infinity(struct kg_math_compare *c, int sign)
{
    int node = kg_math_node(c->tree, KG_MATH_CONST, KG_MATH_INF, 0, 0);

    return sign < 0 ? kg_math_node(c->tree, KG_MATH_NEG, 0, node, 0) : node;
}

static int interval(struct kg_math_compare *c, int low, int high, int brackets)
{
    int list = 0;
    int last = 0;

    kg_math_list_add(c->tree, &list, &last, low);
    kg_math_list_add(c->tree, &list, &last, high);
    return kg_math_node(c->tree, KG_MATH_TUPLE, brackets, list, 0);
}

static bool is_rising(int op) { return op == KG_MATH_LT || op == KG_MATH_LE; }

/* "x < 5", "2 < x <= 3" as the interval they mean.   returns 0 where they mean none */
static int as_interval(struct kg_math_compare *c, int node)
{
    const struct kg_math_node *n = kg_math_at(c, node);
    const struct kg_math_node *m = kg_math_at(c, n->b);
    bool closed = n->op == KG_MATH_LE || n->op == KG_MATH_GE;
    bool closed2 = m->op == KG_MATH_LE || m->op == KG_MATH_GE;

    if (n->kind != KG_MATH_REL || !(is_rising(n->op) || kg_math_is_falling(n->op)))
        return 0;
    if (m->kind == KG_MATH_REL) {
        if (kg_math_at(c, m->b)->kind == KG_MATH_REL || !kg_math_is_name(c, m->a))
            return 0;
        if (is_rising(n->op) && is_rising(m->op))
            return interval(c, n->a, m->b,
                            (closed ? KG_MATH_LEFT_SQUARE : 0) |
                                (closed2 ? KG_MATH_RIGHT_SQUARE : 0));
        if (kg_math_is_falling(n->op) && kg_math_is_falling(m->op))
            return interval(c, m->b, n->a,
                            (closed2 ? KG_MATH_LEFT_SQUARE : 0) |
                                (closed ? KG_MATH_RIGHT_SQUARE : 0));
        return 0;
    }
    if (kg_math_is_name(c, n->a) == kg_math_is_name(c, n->b))
        return 0;
    if (kg_math_is_name(c, n->a) == is_rising(n->op))
        return interval(c, infinity(c, -1), kg_math_is_name(c, n->a) ? n->b : n->a,
                        closed ? KG_MATH_RIGHT_SQUARE : 0);
    return interval(c, kg_math_is_name(c, n->a) ? n->b : n->a, infinity(c, 1),
                    closed ? KG_MATH_LEFT_SQUARE : 0);
}

static int everything(struct kg_math_compare *c)
{
    return interval(c, infinity(c, -1), infinity(c, 1), KG_MATH_ROUND);
}

/* The real line without some points: what is left between them.   returns false where
 * their order is not known */
static bool put_gaps(struct kg_math_compare *c, struct kg_math_items *out,
                     struct kg_math_items *points)
{
    int low = infinity(c, -1);

    if (points->more || out->n + points->n + 1 > KG_MATH_MAX_ITEMS)
        return false;
    for (int i = 1; i < points->n; i++) {
        for (int j = i; j > 0; j--) {
            int sign = kg_math_order(&c->decider, points->node[j - 1], points->node[j]);
            int swap = points->node[j];

            if (sign == 0)
                return false;
            if (sign < 0)
                break;
            points->node[j] = points->node[j - 1];
            points->node[j - 1] = swap;
        }
    }
    for (int i = 0; i < points->n; i++) {
        out->node[out->n++] = interval(c, low, points->node[i], KG_MATH_ROUND);
        low = points->node[i];
    }
    out->node[out->n++] = interval(c, low, infinity(c, 1), KG_MATH_ROUND);
    return true;
}

bool kg_math_is_reals(const struct kg_math_compare *c, int node)
{
    return kg_math_at(c, node)->kind == KG_MATH_CONST &&
           kg_math_at(c, node)->op == KG_MATH_REALS;
}

/* "x != 3", or the reals without {..}: the points that are left out. */
static bool left_out(struct kg_math_compare *c, struct kg_math_items *points, int node)
{
    const struct kg_math_node *n = kg_math_at(c, node);

    if (kg_math_is_relation(c, node, KG_MATH_NE) && kg_math_is_name(c, n->a)) {
        kg_math_gather(c, points, n->b);
        return true;
    }
    if (n->kind != KG_MATH_SETOP || n->op != '\\' || !kg_math_is_reals(c, n->a) ||
        kg_math_at(c, n->b)->kind != KG_MATH_SET || !kg_math_at(c, n->b)->a)
        return false;
    kg_math_gather(c, points, kg_math_at(c, n->b)->a);
    return true;
}

/* The pieces of a union, relations as intervals.   returns false where a part is none */
static bool pieces(struct kg_math_compare *c, struct kg_math_items *out, int node)
{
    const struct kg_math_node *n = kg_math_at(c, node);
    struct kg_math_items points = {.n = 0};
    int made;

    if (n->kind == KG_MATH_SETOP && n->op == '|')
        return pieces(c, out, n->a) && pieces(c, out, kg_math_at(c, node)->b);
    if (n->kind == KG_MATH_LIST) {
        for (; node; node = kg_math_at(c, node)->b) {
            if (!pieces(c, out, kg_math_at(c, node)->a))
                return false;
        }
        return true;
    }
    if (n->kind == KG_MATH_SET) {
        kg_math_gather(c, out, n->a);
        return !out->more;
    }
    if (left_out(c, &points, node))
        return put_gaps(c, out, &points);
    made = n->kind == KG_MATH_REL      ? as_interval(c, node)
           : kg_math_is_reals(c, node) ? everything(c)
                                       : node;
    if (!made || kg_math_at(c, made)->kind == KG_MATH_SETOP ||
        out->n == KG_MATH_MAX_ITEMS)
        return false;
    out->node[out->n++] = made;
    return true;
}

/* Intersections and differences: part by part. */
static verdict set_parts(struct kg_math_compare *c, int gold, int answer)
{
    const struct kg_math_node *g = kg_math_at(c, gold);
    const struct kg_math_node *a = kg_math_at(c, answer);
    verdict v;

    if (g->kind != KG_MATH_SETOP || a->kind != KG_MATH_SETOP || g->op != a->op)
        return kg_math_conclude(c, KG_MATH_UNDECIDED, "sets that are not worked out");
    v = kg_math_compare_inner(c, g->a, a->a);
    return v == KG_MATH_RIGHT
               ? kg_math_compare_inner(c, kg_math_at(c, gold)->b,
                                       kg_math_at(c, answer)->b)
               : kg_math_conclude(c, KG_MATH_UNDECIDED, "sets that are not worked out");
}

verdict kg_math_unions(struct kg_math_compare *c, int gold, int answer)
{
    struct kg_math_items g = {.n = 0};
    struct kg_math_items a = {.n = 0};

    if (pieces(c, &g, gold) && pieces(c, &a, answer))
        return kg_math_in_any_order(c, &g, &a);
    if (kg_math_at(c, gold)->kind == KG_MATH_SETOP ||
        kg_math_at(c, answer)->kind == KG_MATH_SETOP)
        return set_parts(c, gold, answer);
    return kg_math_conclude(c, KG_MATH_WRONG, "a set against something else");
}
