/* Sets of real numbers: intervals, unions, differences, and the sets that relations mean.
 *
 * The ends of all intervals and the single points, in order, divide the line into points
 * and open gaps between them. A set has all of such a cell or none of it, so two sets are
 * equal if they have the same cells. If the order is not known (ends with variables),
 * unions are compared piece by piece.
 */
#include "math/math_internal.h"

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

static bool is_unequal(const struct kg_math_node *n)
{
    return n->kind == KG_MATH_REL && n->op == KG_MATH_NE;
}

static bool is_equal(const struct kg_math_node *n)
{
    return n->kind == KG_MATH_REL && n->op == KG_MATH_EQ;
}

static bool is_rising(int op) { return op == KG_MATH_LT || op == KG_MATH_LE; }

/* The interval that "x < 5" or "2 < x <= 3" means.   returns 0 for other nodes */
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

static int as_set(struct kg_math_compare *c, int node);

/* The set of one item. */
static int only(struct kg_math_compare *c, int item)
{
    int list = 0;
    int last = 0;

    if (kg_math_at(c, item)->kind == KG_MATH_SET)
        return item;
    kg_math_list_add(c->tree, &list, &last, item);
    return as_set(c, kg_math_node(c->tree, KG_MATH_SET, 0, list, 0));
}

static int setop(struct kg_math_compare *c, int op, int a, int b)
{
    return kg_math_node(c->tree, KG_MATH_SETOP, op, a, b);
}

/* All real numbers except those of the set. */
static int except(struct kg_math_compare *c, int set)
{
    return setop(c, '\\', kg_math_node(c->tree, KG_MATH_CONST, KG_MATH_REALS, 0, 0), set);
}

/* Whether a node of this kind is a single number. */
static bool is_one(int kind)
{
    return kind == KG_MATH_NUM || kind == KG_MATH_NEG || kind == KG_MATH_DIV ||
           kind == KG_MATH_FUNC;
}

/* The union of the items of a list. But inequalities joined by "and" are intersected, and
 * so is any list with x \ne 0 and no "or"; the 1 of "x \ne 0, 1" is excluded too. */
static int as_joined(struct kg_math_compare *c, int list)
{
    bool excludes = kg_math_any(c->tree, list, is_unequal);
    bool equal = kg_math_any(c->tree, list, is_equal);
    bool any = kg_math_at(c, list)->op == KG_MATH_ANY;
    bool all = excludes ? !any : kg_math_at(c, list)->op == KG_MATH_ALL && !equal;
    int made = 0;

    for (; list; list = kg_math_at(c, list)->b) {
        int item = kg_math_at(c, list)->a;
        int kind = kg_math_at(c, kg_math_strip(c, item))->kind;
        int set = as_set(c, item);

        bool excluded = excludes && made && is_one(kind);

        if (excluded)
            set = except(c, only(c, item));
        made = made ? setop(c, all || excluded ? '&' : '|', made, set) : set;
    }
    return made;
}

/* |x - a| < r as (a - r, a + r), |x - a| > r as the numbers outside.   returns 0 for
 * other nodes */
static int as_distance(struct kg_math_compare *c, int node)
{
    struct kg_math_tree *t = c->tree;
    const struct kg_math_node *n = kg_math_at(c, node);
    const struct kg_math_node *abs = kg_math_at(c, n->a);
    const struct kg_math_node *u = kg_math_at(c, abs->a);
    bool closed = n->op == KG_MATH_LE || n->op == KG_MATH_GE;
    bool shifted = u->kind == KG_MATH_ADD && kg_math_is_name(c, u->a);
    int center = kg_math_small(t, 0);

    if (n->kind != KG_MATH_REL || !(is_rising(n->op) || kg_math_is_falling(n->op)) ||
        abs->kind != KG_MATH_FUNC || abs->op != KG_MATH_ABS ||
        !(shifted || kg_math_is_name(c, abs->a)) ||
        kg_math_order(&c->decider, center, n->b) >= 0)
        return 0;
    if (shifted)
        center = kg_math_node(t, KG_MATH_NEG, 0, u->b, 0);
    int low = kg_math_node(t, KG_MATH_ADD, 0, center,
                           kg_math_node(t, KG_MATH_NEG, 0, n->b, 0));
    int high = kg_math_node(t, KG_MATH_ADD, 0, center, n->b);
    if (is_rising(n->op))
        return interval(c, low, high, closed ? KG_MATH_SQUARE : KG_MATH_ROUND);
    return except(c, interval(c, low, high, closed ? KG_MATH_ROUND : KG_MATH_SQUARE));
}

/* A relation or list as unions and differences of intervals and finite sets; anything
 * else as it is. */
static int as_set(struct kg_math_compare *c, int node)
{
    struct kg_math_tree *t = c->tree;
    const struct kg_math_node *n;
    struct kg_math_items points = {.n = 0};
    int made = 0;
    int last = 0;

    node = kg_math_strip(c, node);
    n = kg_math_at(c, node);
    if (n->kind == KG_MATH_SETOP) {
        made = as_set(c, n->a);
        return setop(c, n->op, made, as_set(c, n->b));
    }
    if (n->kind == KG_MATH_LIST)
        return as_joined(c, node);
    if (n->kind == KG_MATH_SET && n->a) {
        kg_math_gather(c, &points, n->a);
        for (int i = 0; i < points.n; i++)
            kg_math_list_add(t, &made, &last, points.node[i]);
        return kg_math_node(t, KG_MATH_SET, 0, made, 0);
    }
    if (kg_math_is_relation(c, node, KG_MATH_NE) && kg_math_is_name(c, n->a))
        return except(c, only(c, n->b));
    if (kg_math_is_relation(c, node, KG_MATH_EQ) && kg_math_is_name(c, n->a))
        return only(c, n->b);
    made = as_distance(c, node);
    made = made ? made : as_interval(c, node);
    return made ? made : node;
}

/* ---- cells of the line ---- */

/* The ends of intervals and the single points; those of equal value have one rank. */
struct marks {
    int node[KG_MATH_MAX_ITEMS];
    int rank[KG_MATH_MAX_ITEMS];
    int n;
    int distinct;
    int at[KG_MATH_MAX_ITEMS]; /* by rank, one node each */
};

/* Adds a number; numbers of equal value have the same rank.   returns false if the order
 * is unknown */
static bool add_mark(struct kg_math_compare *c, struct marks *m, int node)
{
    int place = 0;
    bool fresh = true;

    if (m->n == KG_MATH_MAX_ITEMS)
        return false;
    for (; place < m->distinct; place++) {
        int sign = kg_math_order(&c->decider, node, m->at[place]);

        if (sign == 0 &&
            kg_math_equal(&c->decider, node, m->at[place], NULL) != KG_MATH_RIGHT)
            return false;
        fresh = sign != 0;
        if (sign <= 0)
            break;
    }
    if (fresh) {
        for (int i = m->distinct++; i > place; i--)
            m->at[i] = m->at[i - 1];
        m->at[place] = node;
        for (int i = 0; i < m->n; i++)
            m->rank[i] += m->rank[i] >= place;
    }
    m->node[m->n] = node;
    m->rank[m->n++] = place;
    return true;
}

/* Adds the ends and points of a set.   returns false unless they are known numbers */
static bool add_marks(struct kg_math_compare *c, struct marks *m, int set)
{
    const struct kg_math_node *n = kg_math_at(c, set);
    int sign;

    if (n->kind == KG_MATH_CONST)
        return n->op == KG_MATH_REALS || n->op == KG_MATH_EMPTY;
    if (n->kind == KG_MATH_SETOP)
        return add_marks(c, m, n->a) && add_marks(c, m, n->b);
    if (n->kind != KG_MATH_SET &&
        (n->kind != KG_MATH_TUPLE || kg_math_list_length(c->tree, n->a) != 2))
        return false;
    for (int list = n->a; list; list = kg_math_at(c, list)->b) {
        int item = kg_math_at(c, list)->a;
        bool infinite = kg_math_is_infinite(c, item, &sign);

        if (infinite ? n->kind == KG_MATH_SET : !add_mark(c, m, item))
            return false;
    }
    return true;
}

/* The cell of a number. Cells are numbered along the line: gap 0, point 1, gap 2, ..; an
 * infinity gets a number before or after all cells. */
static int cell_of(const struct kg_math_compare *c, const struct marks *m, int node)
{
    int sign;

    if (kg_math_is_infinite(c, node, &sign))
        return sign < 0 ? -1 : 2 * m->distinct + 1;
    for (int i = 0; i < m->n; i++) {
        if (m->node[i] == node)
            return 2 * m->rank[i] + 1;
    }
    return -1;
}

static bool interval_holds(const struct kg_math_compare *c, const struct marks *m,
                           int tuple, int cell)
{
    const struct kg_math_node *n = kg_math_at(c, tuple);
    int low = cell_of(c, m, kg_math_at(c, n->a)->a);
    int high = cell_of(c, m, kg_math_at(c, kg_math_at(c, n->a)->b)->a);

    return (cell > low || (cell == low && (n->op & KG_MATH_LEFT_SQUARE))) &&
           (cell < high || (cell == high && (n->op & KG_MATH_RIGHT_SQUARE)));
}

static bool holds(const struct kg_math_compare *c, const struct marks *m, int set,
                  int cell)
{
    const struct kg_math_node *n = kg_math_at(c, set);
    bool in = false;

    switch ((enum kg_math_kind)n->kind) {
    case KG_MATH_CONST:
        return n->op == KG_MATH_REALS;
    case KG_MATH_TUPLE:
        return interval_holds(c, m, set, cell);
    case KG_MATH_SETOP:
        in = holds(c, m, n->a, cell);
        if (n->op == '|')
            return in || holds(c, m, n->b, cell);
        return in && holds(c, m, n->b, cell) == (n->op == '&');
    default:
        for (int list = n->a; list && !in; list = kg_math_at(c, list)->b)
            in = cell_of(c, m, kg_math_at(c, list)->a) == cell;
        return in;
    }
}

static verdict cell_by_cell(struct kg_math_compare *c, int gold, int answer)
{
    struct marks m = {.n = 0};

    if (!add_marks(c, &m, gold) || !add_marks(c, &m, answer))
        return kg_math_conclude(c, KG_MATH_UNDECIDED, "these sets cannot be compared");
    for (int cell = 0; cell <= 2 * m.distinct; cell++) {
        if (holds(c, &m, gold, cell) != holds(c, &m, answer, cell))
            return kg_math_conclude(c, KG_MATH_WRONG, "the sets are different");
    }
    return kg_math_conclude(c, KG_MATH_RIGHT, "the sets are the same");
}

/* ---- piece by piece ---- */

/* The pieces of a union.   returns false for other operations, or too many pieces */
static bool pieces(struct kg_math_compare *c, struct kg_math_items *out, int set)
{
    const struct kg_math_node *n = kg_math_at(c, set);

    if (n->kind == KG_MATH_SETOP && n->op == '|')
        return pieces(c, out, n->a) && pieces(c, out, n->b);
    if (n->kind == KG_MATH_SETOP || out->n == KG_MATH_MAX_ITEMS)
        return false;
    if (n->kind == KG_MATH_SET && n->a)
        kg_math_gather(c, out, n->a);
    else
        out->node[out->n++] = set;
    return !out->more;
}

verdict kg_math_unions(struct kg_math_compare *c, int gold, int answer)
{
    struct kg_math_items g = {.n = 0};
    struct kg_math_items a = {.n = 0};

    gold = as_set(c, gold);
    answer = as_set(c, answer);
    gold = is_one(kg_math_at(c, gold)->kind) ? only(c, gold) : gold;
    answer = is_one(kg_math_at(c, answer)->kind) ? only(c, answer) : answer;
    if (c->tree->full)
        return kg_math_conclude(c, KG_MATH_UNDECIDED, "the formulas are too large");
    verdict v = cell_by_cell(c, gold, answer);
    if (v == KG_MATH_RIGHT)
        return v;
    if (!pieces(c, &g, gold) || !pieces(c, &a, answer))
        return v;
    if (g.n == 1 && a.n == 1 &&
        (kg_math_at(c, g.node[0])->kind != KG_MATH_TUPLE ||
         kg_math_at(c, a.node[0])->kind != KG_MATH_TUPLE))
        return kg_math_conclude(c, KG_MATH_WRONG,
                                "a set is compared with another kind of answer");
    verdict piecewise = kg_math_in_any_order(c, &g, &a);
    /* a comparison by pieces accepts near decimals, and decides if cells did not */
    return piecewise == KG_MATH_RIGHT || v == KG_MATH_UNDECIDED ? piecewise : v;
}
