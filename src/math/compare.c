/* Whether two trees are the same answer: lists, tuples, intervals, relations, matrices
 * and words by their own rules, what they are made of by decide.c.
 *
 * Three values all the way: a part that is wrong makes the whole wrong, a part that is
 * undecided leaves the whole undecided, whatever stands beside it.
 */
#include "math/math_internal.h"

#include <ctype.h>
#include <string.h>

typedef enum kg_math_verdict verdict;

struct items {
    int node[KG_MATH_MAX_ITEMS];
    int n;
    bool more; /* than fit */
};

static verdict compare(struct kg_math_compare *c, int gold, int answer);

static const struct kg_math_node *at(const struct kg_math_compare *c, int node)
{
    return &c->tree->nodes[node];
}

static verdict say(struct kg_math_compare *c, verdict v, const char *reason)
{
    strncpy(c->decider.reason, reason, sizeof c->decider.reason - 1);
    return v;
}

static verdict both(verdict a, verdict b)
{
    if (a == KG_MATH_WRONG || b == KG_MATH_WRONG)
        return KG_MATH_WRONG;
    return a == KG_MATH_RIGHT ? b : a;
}

/* ---- copies ---- */

/* A copy with \pm taken as the sign (0: kept), and the name `from` replaced by `to`. */
struct change {
    int sign;
    int from;
    int to;
};

static int copy(struct kg_math_tree *t, int node, const struct change *change)
{
    struct kg_math_node n = t->nodes[node];
    int fresh;

    if (!node)
        return 0;
    if (change->from && kg_math_same_tree(t, node, change->from))
        return change->to;
    n.a = (uint16_t)copy(t, n.a, change);
    n.b = (uint16_t)copy(t, n.b, change);
    if (n.kind == KG_MATH_PM && change->sign) {
        if ((change->sign > 0) == (n.op == 0))
            return n.a;
        return kg_math_node(t, KG_MATH_NEG, 0, n.a, 0);
    }
    fresh = kg_math_node(t, n.kind, n.op, n.a, n.b);
    if (fresh)
        t->nodes[fresh] = n;
    return fresh;
}

static bool is_pm(const struct kg_math_node *n) { return n->kind == KG_MATH_PM; }

/* ---- what a node is ---- */

static bool is_number_node(const struct kg_math_node *n)
{
    return n->kind == KG_MATH_SYM || n->kind == KG_MATH_OPAQUE;
}

static bool has_variable(const struct kg_math_compare *c, int node)
{
    return kg_math_any(c->tree, node, is_number_node);
}

static bool is_decimal(const struct kg_math_compare *c, int node)
{
    for (; node; node = at(c, node)->a) {
        if (at(c, node)->kind == KG_MATH_NUM && at(c, node)->op == 0 &&
            strchr(kg_math_leaf_text(c->tree, node), '.'))
            return true;
        if (is_decimal(c, at(c, node)->b))
            return true;
    }
    return false;
}

/* What is only a name for what stands on the other side of =: x, f(x), |AB|, S_1 : S_2,
 * (p, q); not 2x, x + y or x^2. */
static bool is_name(const struct kg_math_compare *c, int node)
{
    const struct kg_math_node *n = at(c, node);

    switch ((enum kg_math_kind)n->kind) {
    case KG_MATH_SYM:
    case KG_MATH_WORDS:
    case KG_MATH_OPAQUE:
    case KG_MATH_CONST:
        return true;
    case KG_MATH_MUL:
        while (at(c, node)->kind == KG_MATH_MUL)
            node = at(c, node)->a;
        /* the inverse of a function */
        if (at(c, node)->kind == KG_MATH_POW &&
            at(c, at(c, node)->b)->kind == KG_MATH_NEG)
            node = at(c, node)->a;
        return is_name(c, node);
    case KG_MATH_FUNC:
        return n->op == KG_MATH_ABS && is_name(c, n->a);
    case KG_MATH_UNIT:
    case KG_MATH_TUPLE:
        return is_name(c, n->a);
    case KG_MATH_DIV:
    case KG_MATH_RATIO:
        return is_name(c, n->a) && is_name(c, n->b);
    case KG_MATH_LIST:
        return is_name(c, n->a) && (!n->b || is_name(c, n->b));
    default:
        return false;
    }
}

static bool is_relation(const struct kg_math_compare *c, int node, int op)
{
    return at(c, node)->kind == KG_MATH_REL && at(c, node)->op == op;
}

/* a = b = c.   returns the last part, or node itself */
static int last_part(const struct kg_math_compare *c, int node)
{
    while (is_relation(c, node, KG_MATH_EQ))
        node = at(c, node)->b;
    return node;
}

/* Drop what carries no value: units, degrees, what follows about-equal, "x in" before a
 * set; a = b = c is a = c. */
static int strip(struct kg_math_compare *c, int node)
{
    for (;;) {
        const struct kg_math_node *n = at(c, node);

        if (n->kind == KG_MATH_UNIT || n->kind == KG_MATH_DEGREE) {
            node = n->a;
        } else if (is_relation(c, node, KG_MATH_APPROX)) {
            node = is_name(c, n->a) ? n->b : n->a;
        } else if (is_relation(c, node, KG_MATH_IN) && is_name(c, n->a)) {
            node = n->b;
        } else if (is_relation(c, node, KG_MATH_EQ) && is_relation(c, n->b, KG_MATH_EQ)) {
            node = kg_math_node(c->tree, KG_MATH_REL, KG_MATH_EQ, n->a,
                                last_part(c, node));
        } else if (is_relation(c, node, KG_MATH_EQ) &&
                   is_relation(c, n->b, KG_MATH_APPROX)) {
            node = kg_math_node(c->tree, KG_MATH_REL, KG_MATH_EQ, n->a, at(c, n->b)->a);
        } else {
            return node;
        }
    }
}

/* ---- lists ---- */

static void gather(struct kg_math_compare *c, struct items *out, int node)
{
    struct change plus = {.sign = 1};
    struct change minus = {.sign = -1};

    if (out->n + 2 > KG_MATH_MAX_ITEMS) {
        out->more = true;
        return;
    }
    if (at(c, node)->kind == KG_MATH_LIST) {
        for (; node && !out->more; node = at(c, node)->b)
            gather(c, out, at(c, node)->a);
        return;
    }
    if (!kg_math_any(c->tree, node, is_pm)) {
        out->node[out->n++] = node;
        return;
    }
    out->node[out->n++] = copy(c->tree, node, &plus);
    out->node[out->n++] = copy(c->tree, node, &minus);
}

static verdict in_order(struct kg_math_compare *c, const struct items *g,
                        const struct items *a)
{
    verdict v = KG_MATH_RIGHT;

    if (g->n != a->n)
        return say(c, KG_MATH_WRONG, "the number of parts is different");
    for (int i = 0; i < g->n && v != KG_MATH_WRONG; i++) {
        c->item = i;
        v = both(v, compare(c, g->node[i], a->node[i]));
    }
    return v;
}

/* Whether `one` is among the items; swapped: it is the answer's. */
static verdict among(struct kg_math_compare *c, int one, const struct items *items,
                     bool swapped)
{
    verdict best = KG_MATH_WRONG;

    for (int i = 0; i < items->n && best != KG_MATH_RIGHT; i++) {
        verdict v;

        if (swapped)
            c->item = i;
        v = swapped ? compare(c, items->node[i], one) : compare(c, one, items->node[i]);
        best = v == KG_MATH_WRONG ? best : v;
    }
    return best;
}

/* As sets: every item of each side is among the other's. */
static verdict in_any_order(struct kg_math_compare *c, const struct items *g,
                            const struct items *a)
{
    verdict v = KG_MATH_RIGHT;

    if (g->more || a->more)
        return say(c, KG_MATH_UNDECIDED, "too many items in a list");
    for (int i = 0; i < g->n && v != KG_MATH_WRONG; i++) {
        c->item = i;
        v = both(v, among(c, g->node[i], a, false));
    }
    for (int i = 0; i < a->n && v != KG_MATH_WRONG; i++)
        v = both(v, among(c, a->node[i], g, true));
    if (v == KG_MATH_WRONG)
        return say(c, v, "an item has no counterpart");
    return v;
}

static verdict lists(struct kg_math_compare *c, int gold, int answer, bool ordered)
{
    struct items g = {.n = 0};
    struct items a = {.n = 0};

    if (gold)
        gather(c, &g, gold);
    if (answer)
        gather(c, &a, answer);
    return ordered ? in_order(c, &g, &a) : in_any_order(c, &g, &a);
}

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
static bool is_falling(int op) { return op == KG_MATH_GT || op == KG_MATH_GE; }

/* "x < 5", "2 < x <= 3" as the interval they mean.   returns 0 where they mean none */
static int as_interval(struct kg_math_compare *c, int node)
{
    const struct kg_math_node *n = at(c, node);
    const struct kg_math_node *m = at(c, n->b);
    bool closed = n->op == KG_MATH_LE || n->op == KG_MATH_GE;
    bool closed2 = m->op == KG_MATH_LE || m->op == KG_MATH_GE;

    if (n->kind != KG_MATH_REL || !(is_rising(n->op) || is_falling(n->op)))
        return 0;
    if (m->kind == KG_MATH_REL) {
        if (at(c, m->b)->kind == KG_MATH_REL || !is_name(c, m->a))
            return 0;
        if (is_rising(n->op) && is_rising(m->op))
            return interval(c, n->a, m->b,
                            (closed ? KG_MATH_LEFT_SQUARE : 0) |
                                (closed2 ? KG_MATH_RIGHT_SQUARE : 0));
        if (is_falling(n->op) && is_falling(m->op))
            return interval(c, m->b, n->a,
                            (closed2 ? KG_MATH_LEFT_SQUARE : 0) |
                                (closed ? KG_MATH_RIGHT_SQUARE : 0));
        return 0;
    }
    if (is_name(c, n->a) == is_name(c, n->b))
        return 0;
    if (is_name(c, n->a) == is_rising(n->op))
        return interval(c, infinity(c, -1), is_name(c, n->a) ? n->b : n->a,
                        closed ? KG_MATH_RIGHT_SQUARE : 0);
    return interval(c, is_name(c, n->a) ? n->b : n->a, infinity(c, 1),
                    closed ? KG_MATH_LEFT_SQUARE : 0);
}

static int everything(struct kg_math_compare *c)
{
    return interval(c, infinity(c, -1), infinity(c, 1), KG_MATH_ROUND);
}

/* The real line without some points: what is left between them.   returns false where
 * their order is not known */
static bool put_gaps(struct kg_math_compare *c, struct items *out, struct items *points)
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

static bool is_reals(const struct kg_math_compare *c, int node)
{
    return at(c, node)->kind == KG_MATH_CONST && at(c, node)->op == KG_MATH_REALS;
}

/* "x != 3", or the reals without {..}: the points that are left out. */
static bool left_out(struct kg_math_compare *c, struct items *points, int node)
{
    const struct kg_math_node *n = at(c, node);

    if (is_relation(c, node, KG_MATH_NE) && is_name(c, n->a)) {
        gather(c, points, n->b);
        return true;
    }
    if (n->kind != KG_MATH_SETOP || n->op != '\\' || !is_reals(c, n->a) ||
        at(c, n->b)->kind != KG_MATH_SET || !at(c, n->b)->a)
        return false;
    gather(c, points, at(c, n->b)->a);
    return true;
}

/* The pieces of a union, relations as intervals.   returns false where a part is none */
static bool pieces(struct kg_math_compare *c, struct items *out, int node)
{
    const struct kg_math_node *n = at(c, node);
    struct items points = {.n = 0};
    int made;

    if (n->kind == KG_MATH_SETOP && n->op == '|')
        return pieces(c, out, n->a) && pieces(c, out, at(c, node)->b);
    if (n->kind == KG_MATH_LIST) {
        for (; node; node = at(c, node)->b) {
            if (!pieces(c, out, at(c, node)->a))
                return false;
        }
        return true;
    }
    if (n->kind == KG_MATH_SET) {
        gather(c, out, n->a);
        return !out->more;
    }
    if (left_out(c, &points, node))
        return put_gaps(c, out, &points);
    made = n->kind == KG_MATH_REL ? as_interval(c, node)
           : is_reals(c, node)    ? everything(c)
                                  : node;
    if (!made || at(c, made)->kind == KG_MATH_SETOP || out->n == KG_MATH_MAX_ITEMS)
        return false;
    out->node[out->n++] = made;
    return true;
}

/* Intersections and differences: part by part. */
static verdict set_parts(struct kg_math_compare *c, int gold, int answer)
{
    const struct kg_math_node *g = at(c, gold);
    const struct kg_math_node *a = at(c, answer);
    verdict v;

    if (g->kind != KG_MATH_SETOP || a->kind != KG_MATH_SETOP || g->op != a->op)
        return say(c, KG_MATH_UNDECIDED, "sets that are not worked out");
    v = compare(c, g->a, a->a);
    return v == KG_MATH_RIGHT ? compare(c, at(c, gold)->b, at(c, answer)->b)
                              : say(c, KG_MATH_UNDECIDED, "sets that are not worked out");
}

static verdict unions(struct kg_math_compare *c, int gold, int answer)
{
    struct items g = {.n = 0};
    struct items a = {.n = 0};

    if (pieces(c, &g, gold) && pieces(c, &a, answer))
        return in_any_order(c, &g, &a);
    if (at(c, gold)->kind == KG_MATH_SETOP || at(c, answer)->kind == KG_MATH_SETOP)
        return set_parts(c, gold, answer);
    return say(c, KG_MATH_WRONG, "a set against something else");
}

static verdict tuples(struct kg_math_compare *c, int gold, int answer)
{
    const struct kg_math_node *g = at(c, gold);
    const struct kg_math_node *a = at(c, answer);
    /* two parts may be an interval, where brackets count; more are a vector */
    bool pair = kg_math_list_length(c->tree, g->a) == 2;

    if (pair && g->op != a->op)
        return say(c, KG_MATH_WRONG, "the brackets are different");
    return lists(c, g->a, a->a, !c->opts->lenient);
}

/* ---- relations ---- */

struct chain {
    int part[40];
    int op[40];
    int n; /* parts */
};

/* The parts of a < b <= c from left to right; of a > b from right to left. */
static void unchain(const struct kg_math_compare *c, struct chain *out, int node)
{
    struct chain forward = {.n = 0};

    while (at(c, node)->kind == KG_MATH_REL && forward.n < 38) {
        forward.part[forward.n] = at(c, node)->a;
        forward.op[forward.n++] = at(c, node)->op;
        node = at(c, node)->b;
    }
    forward.part[forward.n++] = node;
    *out = forward;
    if (!is_falling(forward.op[0]))
        return;
    for (int i = 0; i < forward.n; i++)
        out->part[i] = forward.part[forward.n - 1 - i];
    for (int i = 0; i + 1 < forward.n; i++) {
        int op = forward.op[forward.n - 2 - i];

        out->op[i] = op == KG_MATH_GT   ? KG_MATH_LT
                     : op == KG_MATH_GE ? KG_MATH_LE
                     : op == KG_MATH_LT ? KG_MATH_GT
                     : op == KG_MATH_LE ? KG_MATH_GE
                                        : op;
    }
}

static int difference(struct kg_math_compare *c, int a, int b)
{
    return kg_math_node(c->tree, KG_MATH_ADD, 0, a,
                        kg_math_node(c->tree, KG_MATH_NEG, 0, b, 0));
}

/* f(x) = .. and f(y) = ..: the answer's right side with y renamed to x, or 0. */
static int renamed(struct kg_math_compare *c, int gold, int answer, int right)
{
    const struct kg_math_node *g = at(c, gold);
    const struct kg_math_node *a = at(c, answer);
    struct change change = {0};

    if (g->kind != KG_MATH_MUL || a->kind != KG_MATH_MUL ||
        !kg_math_same_tree(c->tree, g->a, a->a) || at(c, g->b)->kind != KG_MATH_SYM ||
        at(c, a->b)->kind != KG_MATH_SYM)
        return 0;
    change.from = a->b;
    change.to = g->b;
    return copy(c->tree, right, &change);
}

static verdict equations(struct kg_math_compare *c, const struct chain *g,
                         const struct chain *a)
{
    int sign = 0;
    int right;

    if (is_name(c, g->part[0]) && is_name(c, a->part[0])) {
        if (kg_math_same_tree(c->tree, g->part[0], a->part[0]) || c->opts->lenient)
            return compare(c, g->part[1], a->part[1]);
        right = renamed(c, g->part[0], a->part[0], a->part[1]);
        if (right)
            return compare(c, g->part[1], right);
    }
    return kg_math_proportional(&c->decider, difference(c, g->part[0], g->part[1]),
                                difference(c, a->part[0], a->part[1]), &sign);
}

static verdict inequalities(struct kg_math_compare *c, const struct chain *g,
                            const struct chain *a)
{
    int sign = 0;
    verdict v;

    v = kg_math_proportional(&c->decider, difference(c, g->part[0], g->part[1]),
                             difference(c, a->part[0], a->part[1]), &sign);
    if (v != KG_MATH_RIGHT || g->op[0] == KG_MATH_NE)
        return v;
    return sign > 0 ? v : say(c, KG_MATH_WRONG, "the relation is turned round");
}

static verdict relations(struct kg_math_compare *c, int gold, int answer)
{
    struct chain g;
    struct chain a;
    verdict v = KG_MATH_RIGHT;

    unchain(c, &g, gold);
    unchain(c, &a, answer);
    if (g.n != a.n)
        return say(c, KG_MATH_WRONG, "the relations are different");
    for (int i = 0; i + 1 < g.n; i++) {
        if (g.op[i] != a.op[i])
            return say(c, KG_MATH_WRONG, "the relations are different");
    }
    if (g.n == 2 && g.op[0] == KG_MATH_EQ)
        return equations(c, &g, &a);
    if (g.n == 2 && g.op[0] <= KG_MATH_GE)
        return inequalities(c, &g, &a);
    for (int i = 0; i < g.n && v != KG_MATH_WRONG; i++)
        v = both(v, compare(c, g.part[i], a.part[i]));
    return v;
}

/* ---- matrices ---- */

static bool is_matrix(const struct kg_math_compare *c, int node)
{
    return at(c, node)->kind == KG_MATH_MATRIX && at(c, node)->op == 0;
}

static int cell(const struct kg_math_compare *c, int matrix, int row, int column)
{
    int list = at(c, matrix)->a;

    while (list && row-- > 0)
        list = at(c, list)->b;
    list = list ? at(c, list)->a : 0;
    while (list && column-- > 0)
        list = at(c, list)->b;
    return list ? at(c, list)->a : 0;
}

static int rows_of(const struct kg_math_compare *c, int matrix)
{
    return kg_math_list_length(c->tree, at(c, matrix)->a);
}

static int columns_of(const struct kg_math_compare *c, int matrix)
{
    return kg_math_list_length(c->tree, at(c, at(c, matrix)->a)->a);
}

enum { MAX_SIDE = 6, MAX_PRODUCTS = 3 };

/* One cell of a product, sum, or multiple. */
static int make_cell(struct kg_math_compare *c, int kind, int a, int b, int i, int j)
{
    struct kg_math_tree *t = c->tree;
    int sum = 0;

    if (kind == KG_MATH_ADD)
        return kg_math_node(t, KG_MATH_ADD, 0, cell(c, a, i, j), cell(c, b, i, j));
    if (!is_matrix(c, a))
        return kg_math_node(t, KG_MATH_MUL, 0, a, cell(c, b, i, j));
    for (int k = 0; k < columns_of(c, a); k++) {
        int term = kg_math_node(t, KG_MATH_MUL, 0, cell(c, a, i, k), cell(c, b, k, j));

        sum = sum ? kg_math_node(t, KG_MATH_ADD, 0, sum, term) : term;
    }
    return sum;
}

static int make_matrix(struct kg_math_compare *c, int kind, int a, int b, int shape[2])
{
    int rows = 0;
    int last = 0;

    for (int i = 0; i < shape[0]; i++) {
        int row = 0;
        int end = 0;

        for (int j = 0; j < shape[1]; j++)
            kg_math_list_add(c->tree, &row, &end, make_cell(c, kind, a, b, i, j));
        kg_math_list_add(c->tree, &rows, &last, row);
    }
    return kg_math_node(c->tree, KG_MATH_MATRIX, 0, rows, 0);
}

/* Sums and products of matrices, worked out.   returns the matrix, or node itself */
static int matrix_value(struct kg_math_compare *c, int node)
{
    int kind = at(c, node)->kind;
    int a;
    int b;
    int shape[2];

    if (kind != KG_MATH_ADD && kind != KG_MATH_MUL && kind != KG_MATH_NEG)
        return node;
    a = matrix_value(c, at(c, node)->a);
    b = kind == KG_MATH_NEG ? a : matrix_value(c, at(c, node)->b);
    if (kind == KG_MATH_NEG && is_matrix(c, a)) {
        kind = KG_MATH_MUL;
        a = kg_math_node(c->tree, KG_MATH_NEG, 0, kg_math_small(c->tree, 1), 0);
    }
    if (!is_matrix(c, b) || (kind == KG_MATH_ADD && !is_matrix(c, a)) ||
        rows_of(c, b) > MAX_SIDE || columns_of(c, b) > MAX_SIDE ||
        c->products >= MAX_PRODUCTS)
        return node;
    shape[0] = is_matrix(c, a) ? rows_of(c, a) : rows_of(c, b);
    shape[1] = columns_of(c, b);
    if (is_matrix(c, a) &&
        (shape[0] > MAX_SIDE ||
         columns_of(c, a) != (kind == KG_MATH_ADD ? shape[1] : rows_of(c, b)) ||
         (kind == KG_MATH_ADD && shape[0] != rows_of(c, b))))
        return node;
    c->products++;
    return make_matrix(c, kind, a, b, shape);
}

/* Every cell in reading order. */
static bool cells(const struct kg_math_compare *c, struct items *out, int matrix)
{
    for (int row = at(c, matrix)->a; row; row = at(c, row)->b) {
        for (int list = at(c, row)->a; list; list = at(c, list)->b) {
            if (out->n == KG_MATH_MAX_ITEMS)
                return false;
            out->node[out->n++] = at(c, list)->a;
        }
    }
    return true;
}

static verdict matrices(struct kg_math_compare *c, int gold, int answer)
{
    struct items g = {.n = 0};
    struct items a = {.n = 0};

    if (is_matrix(c, gold) && is_matrix(c, answer) &&
        (rows_of(c, gold) != rows_of(c, answer) ||
         columns_of(c, gold) != columns_of(c, answer)))
        return say(c, KG_MATH_WRONG, "the matrices have different shapes");
    if (!cells(c, &g, gold))
        return say(c, KG_MATH_UNDECIDED, "too many cells in a matrix");
    if (at(c, answer)->kind == KG_MATH_TUPLE)
        gather(c, &a, at(c, answer)->a);
    else if (!cells(c, &a, answer))
        return say(c, KG_MATH_UNDECIDED, "too many cells in a matrix");
    return in_order(c, &g, &a);
}

/* ---- ratios ---- */

static verdict ratios(struct kg_math_compare *c, int gold, int answer)
{
    const struct kg_math_node *g = at(c, gold);
    const struct kg_math_node *a = at(c, answer);
    verdict v;
    int over;
    int under;

    v = both(compare(c, g->a, a->a), compare(c, g->b, a->b));
    if (v == KG_MATH_RIGHT || at(c, g->b)->kind == KG_MATH_RATIO ||
        at(c, a->b)->kind == KG_MATH_RATIO)
        return v;
    over = kg_math_node(c->tree, KG_MATH_DIV, 0, g->a, g->b);
    under = kg_math_node(c->tree, KG_MATH_DIV, 0, a->a, a->b);
    v = kg_math_equal(&c->decider, over, under, NULL);
    /* 12:00 and 1:00 are times of day */
    return v == KG_MATH_UNDECIDED ? KG_MATH_WRONG : v;
}

/* ---- words ---- */

/* The letters of words, or of a product of letters; false for anything else. */
static bool letters(const struct kg_math_compare *c, int node, char *out, size_t size,
                    size_t *n)
{
    const struct kg_math_node *x = at(c, node);
    const char *text = kg_math_leaf_text(c->tree, node);
    char one[2] = {x->op == KG_MATH_E ? 'e' : 'i', 0};
    size_t len = x->len;

    if (x->kind == KG_MATH_MUL)
        return letters(c, x->a, out, size, n) && letters(c, x->b, out, size, n);
    if (x->kind == KG_MATH_CONST && (x->op == KG_MATH_E || x->op == KG_MATH_I)) {
        text = one;
        len = 1;
    } else if (x->kind != KG_MATH_WORDS && x->kind != KG_MATH_SYM) {
        return false;
    }
    for (size_t i = 0; i < len && *n + 1 < size; i++) {
        if (isalnum((unsigned char)text[i]))
            out[(*n)++] = (char)tolower((unsigned char)text[i]);
    }
    out[*n] = 0;
    return true;
}

static verdict words(struct kg_math_compare *c, int gold, int answer)
{
    char g[256];
    char a[256];
    size_t gn = 0;
    size_t an = 0;

    if (!letters(c, gold, g, sizeof g, &gn) || !letters(c, answer, a, sizeof a, &an))
        return say(c, KG_MATH_WRONG, "words against a formula");
    if (gn == 0 || gn != an || memcmp(g, a, gn) != 0)
        return say(c, KG_MATH_WRONG, "the words are different");
    return say(c, KG_MATH_RIGHT, "the words are the same");
}

/* ---- values ---- */

/* Of b^x and b^y with the same whole number b > 1: x and y, else the two themselves. */
static void drop_base(const struct kg_math_compare *c, int *gold, int *answer)
{
    for (;;) {
        const struct kg_math_node *g = at(c, *gold);
        const struct kg_math_node *a = at(c, *answer);
        const char *base = kg_math_leaf_text(c->tree, g->a);

        if (g->kind != KG_MATH_POW || a->kind != KG_MATH_POW ||
            at(c, g->a)->kind != KG_MATH_NUM || !kg_math_same_tree(c->tree, g->a, a->a) ||
            strchr(base, '.') || base[0] == '0' || strcmp(base, "1") == 0)
            return;
        *gold = g->b;
        *answer = a->b;
    }
}

static verdict values(struct kg_math_compare *c, int gold, int answer)
{
    const struct kg_math_opts *o = c->opts;
    struct kg_math_near near = {.decimals = o->decimals ? o->decimals : 6};
    int gold_bare;
    int answer_bare;
    verdict v;

    if (!o->n_tolerance && !is_decimal(c, gold) && !is_decimal(c, answer))
        drop_base(c, &gold, &answer);
    gold_bare = gold;
    answer_bare = answer;
    if (o->n_tolerance)
        near.absolute = o->tolerance[c->item < o->n_tolerance ? c->item : 0];
    near.on = near.absolute > 0 || is_decimal(c, gold) || is_decimal(c, answer);
    v = kg_math_equal(&c->decider, gold, answer, &near);
    if (v == KG_MATH_RIGHT)
        return v;
    /* 28% is written 28 too */
    while (at(c, gold_bare)->kind == KG_MATH_PERCENT)
        gold_bare = at(c, gold_bare)->a;
    while (at(c, answer_bare)->kind == KG_MATH_PERCENT)
        answer_bare = at(c, answer_bare)->a;
    if (gold_bare == gold && answer_bare == answer)
        return v;
    return kg_math_equal(&c->decider, gold_bare, answer_bare, &near);
}

/* Kinds that are numbers or functions. */
static bool is_value(const struct kg_math_compare *c, int node)
{
    int kind = at(c, node)->kind;

    return kind == KG_MATH_NUM || kind == KG_MATH_SYM || kind == KG_MATH_CONST ||
           (kind >= KG_MATH_ADD && kind <= KG_MATH_FUNC) || kind == KG_MATH_PERCENT ||
           kind == KG_MATH_OPAQUE || (kind == KG_MATH_MATRIX && at(c, node)->op == 1);
}

static bool is_infinite(const struct kg_math_compare *c, int node, int *sign)
{
    *sign = 1;
    while (at(c, node)->kind == KG_MATH_NEG) {
        *sign = -*sign;
        node = at(c, node)->a;
    }
    return at(c, node)->kind == KG_MATH_CONST && at(c, node)->op == KG_MATH_INF;
}

static bool is_constant_set(const struct kg_math_compare *c, int node)
{
    return at(c, node)->kind == KG_MATH_CONST && at(c, node)->op >= KG_MATH_INF;
}

static verdict single(struct kg_math_compare *c, int gold, int answer)
{
    int g = at(c, gold)->kind;
    int a = at(c, answer)->kind;
    int gs;
    int as;

    if (g == KG_MATH_WORDS || a == KG_MATH_WORDS)
        return words(c, gold, answer);
    if (is_infinite(c, gold, &gs) && is_infinite(c, answer, &as))
        return say(c, gs == as ? KG_MATH_RIGHT : KG_MATH_WRONG, "infinity");
    if (is_constant_set(c, gold) || is_constant_set(c, answer))
        return say(c, KG_MATH_WRONG, "a set against something else");
    if (g == KG_MATH_RATIO && a == KG_MATH_RATIO)
        return ratios(c, gold, answer);
    if (g == KG_MATH_RATIO && is_value(c, answer))
        return values(
            c, kg_math_node(c->tree, KG_MATH_DIV, 0, at(c, gold)->a, at(c, gold)->b),
            answer);
    if (a == KG_MATH_RATIO && is_value(c, gold))
        return values(
            c, gold,
            kg_math_node(c->tree, KG_MATH_DIV, 0, at(c, answer)->a, at(c, answer)->b));
    if (is_value(c, gold) && is_value(c, answer))
        return values(c, gold, answer);
    return say(c, KG_MATH_WRONG, "answers of different kinds");
}

/* ---- all kinds ---- */

static bool is_listed(const struct kg_math_compare *c, int node)
{
    return at(c, node)->kind == KG_MATH_LIST ||
           (at(c, node)->kind != KG_MATH_TUPLE && kg_math_any(c->tree, node, is_pm));
}

static verdict collections(struct kg_math_compare *c, int gold, int answer)
{
    int g = at(c, gold)->kind;
    int a = at(c, answer)->kind;

    if (g == KG_MATH_SET || a == KG_MATH_SET) {
        int left = g == KG_MATH_SET ? at(c, gold)->a : gold;
        int right = a == KG_MATH_SET ? at(c, answer)->a : answer;

        if (g == KG_MATH_CONST || a == KG_MATH_CONST)
            return !left || !right ? say(c, KG_MATH_RIGHT, "the empty set")
                                   : lists(c, left, right, false);
        if ((g == KG_MATH_TUPLE || a == KG_MATH_TUPLE) && !c->opts->lenient)
            return say(c, KG_MATH_WRONG, "a set against a tuple");
        return lists(c, left, right, false);
    }
    if (g == KG_MATH_LIST && a == KG_MATH_TUPLE)
        return lists(c, gold, at(c, answer)->a, true);
    if (g == KG_MATH_TUPLE && a == KG_MATH_LIST)
        return lists(c, at(c, gold)->a, answer, true);
    return lists(c, gold, answer, false);
}

static bool has_relation(const struct kg_math_compare *c, int node)
{
    return at(c, node)->kind == KG_MATH_REL ||
           (at(c, node)->kind == KG_MATH_LIST && has_relation(c, at(c, node)->a));
}

/* An interval or union against relations that mean one. */
static verdict sets(struct kg_math_compare *c, int gold, int answer)
{
    if (has_relation(c, answer) && !has_relation(c, gold) && !c->opts->relation_as_set)
        return say(c, KG_MATH_WRONG, "a relation where a set is asked for");
    return unions(c, gold, answer);
}

static bool is_set(const struct kg_math_compare *c, int node)
{
    return at(c, node)->kind == KG_MATH_TUPLE || is_reals(c, node) ||
           at(c, node)->kind == KG_MATH_SETOP;
}

/* Of one equation the right side counts, where the left is but a name or has a value of
 * its own. */
static int unwrap_equation(struct kg_math_compare *c, int node, int other)
{
    const struct kg_math_node *n = at(c, node);

    if (!is_relation(c, node, KG_MATH_EQ) || at(c, other)->kind == KG_MATH_REL)
        return node;
    if (is_name(c, n->a) || !has_variable(c, n->a))
        return strip(c, n->b);
    return node;
}

static verdict any_kinds(struct kg_math_compare *c, int gold, int answer)
{
    int g;
    int a;

    gold = matrix_value(c, strip(c, gold));
    answer = matrix_value(c, strip(c, answer));
    g = unwrap_equation(c, gold, answer);
    answer = unwrap_equation(c, answer, gold);
    gold = g;
    if (c->tree->full)
        return say(c, KG_MATH_UNDECIDED, "too large");
    if (kg_math_same_tree(c->tree, gold, answer))
        return say(c, KG_MATH_RIGHT, "the formulas are the same");
    g = at(c, gold)->kind;
    a = at(c, answer)->kind;
    if (g == KG_MATH_SETOP || a == KG_MATH_SETOP || is_reals(c, gold) ||
        is_reals(c, answer) || (is_set(c, gold) && a == KG_MATH_REL) ||
        (g == KG_MATH_REL && is_set(c, answer)))
        return sets(c, gold, answer);
    if (is_matrix(c, gold))
        return is_matrix(c, answer) || a == KG_MATH_TUPLE
                   ? matrices(c, gold, answer)
                   : say(c, KG_MATH_WRONG, "answers of different kinds");
    if (g == KG_MATH_TUPLE && is_matrix(c, answer))
        return matrices(c, answer, gold);
    if (is_listed(c, gold) || is_listed(c, answer) || g == KG_MATH_SET ||
        a == KG_MATH_SET)
        return collections(c, gold, answer);
    if (g == KG_MATH_TUPLE && a == KG_MATH_TUPLE)
        return tuples(c, gold, answer);
    if (g == KG_MATH_REL && a == KG_MATH_REL)
        return relations(c, gold, answer);
    return single(c, gold, answer);
}

static verdict compare(struct kg_math_compare *c, int gold, int answer)
{
    verdict v;

    if (c->depth >= KG_MATH_MAX_DEPTH)
        return say(c, KG_MATH_UNDECIDED, "nested too deep");
    if (kg_math_budget_spent(&c->decider.budget))
        return say(c, KG_MATH_UNDECIDED, "the time limit of an answer was reached");
    c->depth++;
    v = any_kinds(c, gold, answer);
    c->depth--;
    return v;
}

verdict kg_math_compare(struct kg_math_compare *c, int gold, int answer)
{
    verdict v;

    c->item = 0;
    c->products = 0;
    c->depth = 0;
    c->decider.tree = c->tree;
    v = compare(c, gold, answer);
    if (c->tree->full)
        return say(c, KG_MATH_UNDECIDED, "too large");
    return v;
}
