/* Whether two trees are the same answer: lists, tuples, intervals, relations, matrices
 * and words have their own rules; decide.c compares their parts.
 *
 * Every comparison has three values: a wrong part makes the whole wrong; otherwise an
 * undecided part leaves the whole undecided.
 */
#include "math/math_internal.h"

#include <ctype.h>
#include <string.h>

verdict kg_math_conclude(struct kg_math_compare *c, verdict v, const char *reason)
{
    strncpy(c->decider.reason, reason, sizeof c->decider.reason - 1);
    return v;
}

verdict kg_math_both(verdict a, verdict b)
{
    if (a == KG_MATH_WRONG || b == KG_MATH_WRONG)
        return KG_MATH_WRONG;
    return a == KG_MATH_RIGHT ? b : a;
}

/* ---- copies ---- */

/* What copy() changes: \pm becomes the sign (0: kept), sub-tree `from` becomes `to`. */
struct change {
    int sign;
    int from;
    int to;
};

static int copy(struct kg_math_tree *t, int node, const struct change *change)
{
    struct kg_math_node n = t->nodes[node];

    if (!node)
        return 0;
    if (change->from && kg_math_same_tree(t, node, change->from))
        return change->to;
    n.a = (uint16_t)copy(t, n.a, change);
    n.b = (uint16_t)copy(t, n.b, change);
    if (n.kind != KG_MATH_PM && n.a == t->nodes[node].a && n.b == t->nodes[node].b)
        return node; /* unchanged, so shared */
    if (n.kind == KG_MATH_PM && change->sign) {
        if ((change->sign > 0) == (n.op == 0))
            return n.a;
        return kg_math_node(t, KG_MATH_NEG, 0, n.a, 0);
    }
    int fresh = kg_math_node(t, n.kind, n.op, n.a, n.b);
    n.size = t->nodes[fresh].size;
    if (fresh)
        t->nodes[fresh] = n;
    return fresh;
}

int kg_math_replaced(struct kg_math_compare *c, int node, int from, int to)
{
    const struct change change = {.from = from, .to = to};

    return copy(c->tree, node, &change);
}

static bool is_pm(const struct kg_math_node *n) { return n->kind == KG_MATH_PM; }

/* ---- kinds of nodes ---- */

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
    for (; node; node = kg_math_at(c, node)->a) {
        if (kg_math_at(c, node)->kind == KG_MATH_NUM && kg_math_at(c, node)->op == 0 &&
            strchr(kg_math_leaf_text(c->tree, node), '.'))
            return true;
        if (is_decimal(c, kg_math_at(c, node)->b))
            return true;
    }
    return false;
}

/* Whether the node only names the other side of =: x, f(x), |AB|, S_1 : S_2, (p, q); not
 * 2x, x + y or x^2. */
bool kg_math_is_name(const struct kg_math_compare *c, int node)
{
    const struct kg_math_node *n = kg_math_at(c, node);

    switch ((enum kg_math_kind)n->kind) {
    case KG_MATH_SYM:
    case KG_MATH_WORDS:
    case KG_MATH_OPAQUE:
    case KG_MATH_CONST:
        return true;
    case KG_MATH_MUL:
        while (kg_math_at(c, node)->kind == KG_MATH_MUL)
            node = kg_math_at(c, node)->a;
        /* f^{-1}(x) names the inverse of a function */
        if (kg_math_at(c, node)->kind == KG_MATH_POW &&
            kg_math_at(c, kg_math_at(c, node)->b)->kind == KG_MATH_NEG)
            node = kg_math_at(c, node)->a;
        return kg_math_is_name(c, node);
    case KG_MATH_FUNC:
        return n->op == KG_MATH_ABS && kg_math_is_name(c, n->a);
    case KG_MATH_UNIT:
    case KG_MATH_TUPLE:
        return kg_math_is_name(c, n->a);
    case KG_MATH_DIV:
    case KG_MATH_RATIO:
        return kg_math_is_name(c, n->a) && kg_math_is_name(c, n->b);
    case KG_MATH_LIST:
        return kg_math_is_name(c, n->a) && (!n->b || kg_math_is_name(c, n->b));
    default:
        return false;
    }
}

bool kg_math_is_relation(const struct kg_math_compare *c, int node, int op)
{
    return kg_math_at(c, node)->kind == KG_MATH_REL && kg_math_at(c, node)->op == op;
}

/* The last part c of a = b = c; the node itself if it is no equation. */
static int last_part(const struct kg_math_compare *c, int node)
{
    while (kg_math_is_relation(c, node, KG_MATH_EQ))
        node = kg_math_at(c, node)->b;
    return node;
}

/* Drops parts without a value: units, degrees, "x in" before a set, and one side of
 * \approx (the left if it is a name, else the right); a = b = c becomes a = c. */
int kg_math_strip(struct kg_math_compare *c, int node)
{
    for (;;) {
        const struct kg_math_node *n = kg_math_at(c, node);

        if (n->kind == KG_MATH_UNIT || n->kind == KG_MATH_DEGREE) {
            node = n->a;
        } else if (kg_math_is_relation(c, node, KG_MATH_APPROX)) {
            node = kg_math_is_name(c, n->a) ? n->b : n->a;
        } else if (kg_math_is_relation(c, node, KG_MATH_IN) && kg_math_is_name(c, n->a)) {
            node = n->b;
        } else if (kg_math_is_relation(c, node, KG_MATH_EQ) &&
                   kg_math_is_relation(c, n->b, KG_MATH_EQ)) {
            node = kg_math_node(c->tree, KG_MATH_REL, KG_MATH_EQ, n->a,
                                last_part(c, node));
        } else if (kg_math_is_relation(c, node, KG_MATH_EQ) &&
                   kg_math_is_relation(c, n->b, KG_MATH_APPROX)) {
            node = kg_math_node(c->tree, KG_MATH_REL, KG_MATH_EQ, n->a,
                                kg_math_at(c, n->b)->a);
        } else {
            return node;
        }
    }
}

/* ---- lists ---- */

void kg_math_gather(struct kg_math_compare *c, struct kg_math_items *out, int node)
{
    struct change plus = {.sign = 1};
    struct change minus = {.sign = -1};

    if (out->n + 2 > KG_MATH_MAX_ITEMS) {
        out->more = true;
        return;
    }
    if (kg_math_at(c, node)->kind == KG_MATH_LIST) {
        for (; node && !out->more; node = kg_math_at(c, node)->b)
            kg_math_gather(c, out, kg_math_at(c, node)->a);
        return;
    }
    if (!kg_math_any(c->tree, node, is_pm)) {
        out->node[out->n++] = node;
        return;
    }
    out->node[out->n++] = copy(c->tree, node, &plus);
    out->node[out->n++] = copy(c->tree, node, &minus);
}

verdict kg_math_in_order(struct kg_math_compare *c, const struct kg_math_items *g,
                         const struct kg_math_items *a)
{
    verdict v = KG_MATH_RIGHT;

    if (g->n != a->n)
        return kg_math_conclude(c, KG_MATH_WRONG, "the number of parts is different");
    for (int i = 0; i < g->n && v != KG_MATH_WRONG; i++) {
        c->item = i;
        v = kg_math_both(v, kg_math_compare_inner(c, g->node[i], a->node[i]));
    }
    return v;
}

/* Whether `one` is among the items; swapped: `one` is an item of the answer. */
static verdict among(struct kg_math_compare *c, int one,
                     const struct kg_math_items *items, bool swapped)
{
    verdict best = KG_MATH_WRONG;

    for (int i = 0; i < items->n && best != KG_MATH_RIGHT; i++) {
        if (swapped)
            c->item = i;
        verdict v = swapped ? kg_math_compare_inner(c, items->node[i], one)
                            : kg_math_compare_inner(c, one, items->node[i]);
        best = v == KG_MATH_WRONG ? best : v;
    }
    return best;
}

verdict kg_math_in_any_order(struct kg_math_compare *c, const struct kg_math_items *g,
                             const struct kg_math_items *a)
{
    verdict v = KG_MATH_RIGHT;

    if (g->more || a->more)
        return kg_math_conclude(c, KG_MATH_UNDECIDED, "too many items in a list");
    for (int i = 0; i < g->n && v != KG_MATH_WRONG; i++) {
        c->item = i;
        v = kg_math_both(v, among(c, g->node[i], a, false));
    }
    for (int i = 0; i < a->n && v != KG_MATH_WRONG; i++)
        v = kg_math_both(v, among(c, a->node[i], g, true));
    if (v == KG_MATH_WRONG)
        return kg_math_conclude(c, v, "an item has no counterpart");
    return v;
}

static verdict lists(struct kg_math_compare *c, int gold, int answer, bool ordered)
{
    struct kg_math_items g = {.n = 0};
    struct kg_math_items a = {.n = 0};

    if (gold)
        kg_math_gather(c, &g, gold);
    if (answer)
        kg_math_gather(c, &a, answer);
    return ordered ? kg_math_in_order(c, &g, &a) : kg_math_in_any_order(c, &g, &a);
}

static verdict tuples(struct kg_math_compare *c, int gold, int answer)
{
    const struct kg_math_node *g = kg_math_at(c, gold);
    const struct kg_math_node *a = kg_math_at(c, answer);
    /* two parts may be an interval, where brackets count; more are a vector */
    bool pair = kg_math_list_length(c->tree, g->a) == 2;

    if (pair && g->op != a->op)
        return kg_math_conclude(c, KG_MATH_WRONG, "the brackets are different");
    return lists(c, g->a, a->a, !c->opts->lenient);
}

/* ---- relations ---- */

struct chain {
    int part[40];
    int op[40];
    int n; /* parts */
};

/* Splits a < b <= c into its parts; reverses a chain that begins with > or >=. */
static void unchain(const struct kg_math_compare *c, struct chain *out, int node)
{
    struct chain forward = {.n = 0};

    while (kg_math_at(c, node)->kind == KG_MATH_REL && forward.n < 38) {
        forward.part[forward.n] = kg_math_at(c, node)->a;
        forward.op[forward.n++] = kg_math_at(c, node)->op;
        node = kg_math_at(c, node)->b;
    }
    forward.part[forward.n++] = node;
    *out = forward;
    if (!kg_math_is_falling(forward.op[0]))
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

static bool contains(const struct kg_math_compare *c, int node, int part)
{
    return node && (kg_math_same_tree(c->tree, node, part) ||
                    contains(c, kg_math_at(c, node)->a, part) ||
                    contains(c, kg_math_at(c, node)->b, part));
}

/* For f(x) = .. and f(y) = ..: the answer's right side with y renamed to x; else 0. */
static int renamed(struct kg_math_compare *c, int gold, int answer, int right)
{
    const struct kg_math_node *g = kg_math_at(c, gold);
    const struct kg_math_node *a = kg_math_at(c, answer);
    struct change change = {0};

    if (g->kind != KG_MATH_MUL || a->kind != KG_MATH_MUL ||
        !kg_math_same_tree(c->tree, g->a, a->a) ||
        kg_math_at(c, g->b)->kind != KG_MATH_SYM ||
        kg_math_at(c, a->b)->kind != KG_MATH_SYM || contains(c, right, g->b))
        return 0;
    change.from = a->b;
    change.to = g->b;
    return copy(c->tree, right, &change);
}

/* Whether the node may name an unknown (x, y, \theta); areas and volumes are capitals. */
static bool is_unknown(const struct kg_math_compare *c, int node)
{
    return kg_math_at(c, node)->kind == KG_MATH_SYM &&
           !isupper((unsigned char)kg_math_leaf_text(c->tree, node)[0]);
}

static verdict equations(struct kg_math_compare *c, const struct chain *g,
                         const struct chain *a)
{
    int sign = 0;
    int right;
    verdict v;

    if (kg_math_is_name(c, g->part[0]) && kg_math_is_name(c, a->part[0])) {
        if (kg_math_same_tree(c->tree, g->part[0], a->part[0]) || c->opts->lenient) {
            c->of_unknown = is_unknown(c, g->part[0]);
            v = kg_math_compare_inner(c, g->part[1], a->part[1]);
            c->of_unknown = false;
            return v;
        }
        right = renamed(c, g->part[0], a->part[0], a->part[1]);
        if (right)
            return kg_math_compare_inner(c, g->part[1], right);
    }
    return kg_math_proportional(&c->decider, difference(c, g->part[0], g->part[1]),
                                difference(c, a->part[0], a->part[1]), &sign);
}

static verdict inequalities(struct kg_math_compare *c, const struct chain *g,
                            const struct chain *a)
{
    int sign = 0;
    verdict v = kg_math_proportional(&c->decider, difference(c, g->part[0], g->part[1]),
                                     difference(c, a->part[0], a->part[1]), &sign);

    if (v != KG_MATH_RIGHT || g->op[0] == KG_MATH_NE)
        return v;
    return sign > 0 ? v
                    : kg_math_conclude(c, KG_MATH_WRONG, "the relation is turned round");
}

static verdict relations(struct kg_math_compare *c, int gold, int answer)
{
    struct chain g;
    struct chain a;
    verdict v = KG_MATH_RIGHT;

    unchain(c, &g, gold);
    unchain(c, &a, answer);
    if (g.n != a.n)
        return kg_math_conclude(c, KG_MATH_WRONG, "the relations are different");
    for (int i = 0; i + 1 < g.n; i++) {
        if (g.op[i] != a.op[i])
            return kg_math_conclude(c, KG_MATH_WRONG, "the relations are different");
    }
    if (g.n == 2 && g.op[0] == KG_MATH_EQ)
        return equations(c, &g, &a);
    if (g.n == 2 && g.op[0] <= KG_MATH_GE)
        return inequalities(c, &g, &a);
    for (int i = 0; i < g.n && v != KG_MATH_WRONG; i++)
        v = kg_math_both(v, kg_math_compare_inner(c, g.part[i], a.part[i]));
    return v;
}

/* ---- ratios ---- */

enum { MAX_RATIO = 8 };

static bool is_zero(const struct kg_math_compare *c, int node)
{
    return kg_math_at(c, node)->kind == KG_MATH_NUM &&
           strspn(kg_math_leaf_text(c->tree, node), "0.") ==
               strlen(kg_math_leaf_text(c->tree, node));
}

static int ratio_parts(const struct kg_math_compare *c, int node, int part[MAX_RATIO])
{
    int n = 0;

    for (; kg_math_at(c, node)->kind == KG_MATH_RATIO && n + 1 < MAX_RATIO;
         node = kg_math_at(c, node)->b)
        part[n++] = kg_math_at(c, node)->a;
    part[n++] = node;
    return n;
}

static int product(struct kg_math_compare *c, int a, int b)
{
    return kg_math_node(c->tree, KG_MATH_MUL, 0, a, b);
}

static int without_unit(const struct kg_math_compare *c, int node)
{
    while (kg_math_at(c, node)->kind == KG_MATH_UNIT)
        node = kg_math_at(c, node)->a;
    return node;
}

/* Whether a : b may be a time of day: b is two digits below 60. */
static bool is_clock(const struct kg_math_compare *c, const int part[MAX_RATIO], int n)
{
    int minutes = n == 2 ? without_unit(c, part[1]) : 0;
    const char *text = kg_math_leaf_text(c->tree, minutes);

    return kg_math_at(c, minutes)->kind == KG_MATH_NUM && strlen(text) == 2 &&
           isdigit((unsigned char)text[1]) && text[0] < '6';
}

/* Right if the parts are equal or, except for times of day, if a b' = a' b for the first
 * part with each other part. */
static verdict ratios(struct kg_math_compare *c, int gold, int answer)
{
    int g[MAX_RATIO];
    int a[MAX_RATIO];
    int n = ratio_parts(c, gold, g);
    verdict same = KG_MATH_RIGHT;
    verdict v = KG_MATH_RIGHT;

    if (n != ratio_parts(c, answer, a))
        return kg_math_conclude(c, KG_MATH_WRONG, "the number of parts is different");
    for (int i = 0; i < n && same == KG_MATH_RIGHT; i++)
        same = kg_math_compare_inner(c, g[i], a[i]);
    if (same == KG_MATH_RIGHT || is_zero(c, g[0]) != is_zero(c, a[0]) ||
        is_zero(c, g[n - 1]) || is_zero(c, a[n - 1]) ||
        (is_clock(c, g, n) && is_clock(c, a, n)))
        return same;
    for (int i = 1; i < n && v != KG_MATH_WRONG; i++)
        v = kg_math_both(v, kg_math_equal(&c->decider, product(c, g[0], a[i]),
                                          product(c, a[0], g[i]), NULL));
    return v;
}

/* ---- words ---- */

/* Bytes of the article before the first word. */
static size_t article(const char *text)
{
    static const char *const articles[] = {"a ", "an ", "the "};

    size_t spaces = strspn(text, " ");

    for (size_t i = 0; i < sizeof articles / sizeof *articles; i++) {
        if (strncasecmp(text + spaces, articles[i], strlen(articles[i])) == 0)
            return spaces + strlen(articles[i]);
    }
    return 0;
}

/* Appends letters and digits of words or a product.   returns false for other nodes */
static bool letters(const struct kg_math_compare *c, int node, char *out, size_t size,
                    size_t *n)
{
    const struct kg_math_node *x = kg_math_at(c, node);
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
    for (size_t i = x->kind == KG_MATH_WORDS ? article(text) : 0;
         i < len && *n + 1 < size; i++) {
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
        return kg_math_conclude(c, KG_MATH_WRONG, "words are compared with a formula");
    if (gn == 0 || gn != an || memcmp(g, a, gn) != 0)
        return kg_math_conclude(c, KG_MATH_WRONG, "the words are different");
    return kg_math_conclude(c, KG_MATH_RIGHT, "the words are the same");
}

/* ---- values ---- */

/* Replaces b^x and b^y by x and y while both have the same base, a whole number b > 1. */
static void drop_base(const struct kg_math_compare *c, int *gold, int *answer)
{
    for (;;) {
        const struct kg_math_node *g = kg_math_at(c, *gold);
        const struct kg_math_node *a = kg_math_at(c, *answer);
        const char *base = kg_math_leaf_text(c->tree, g->a);

        if (g->kind != KG_MATH_POW || a->kind != KG_MATH_POW ||
            kg_math_at(c, g->a)->kind != KG_MATH_NUM ||
            !kg_math_same_tree(c->tree, g->a, a->a) || strchr(base, '.') ||
            base[0] == '0' || strcmp(base, "1") == 0)
            return;
        *gold = g->b;
        *answer = a->b;
    }
}

static verdict values(struct kg_math_compare *c, int gold, int answer)
{
    const struct kg_math_opts *o = c->opts;
    struct kg_math_near near = {.decimals = o->decimals ? o->decimals : 6};

    if (!o->n_tolerance && !is_decimal(c, gold) && !is_decimal(c, answer))
        drop_base(c, &gold, &answer);
    int gold_bare = gold;
    int answer_bare = answer;
    if (o->n_tolerance)
        near.absolute = o->tolerance[c->item < o->n_tolerance ? c->item : 0];
    near.on = near.absolute > 0 || is_decimal(c, gold) || is_decimal(c, answer);
    verdict v = kg_math_equal(&c->decider, gold, answer, &near);
    if (v == KG_MATH_RIGHT ||
        (v == KG_MATH_WRONG && kg_math_same_but_names(c, gold, answer) == KG_MATH_RIGHT))
        return KG_MATH_RIGHT;
    /* 28% may also be written 28 */
    while (kg_math_at(c, gold_bare)->kind == KG_MATH_PERCENT)
        gold_bare = kg_math_at(c, gold_bare)->a;
    while (kg_math_at(c, answer_bare)->kind == KG_MATH_PERCENT)
        answer_bare = kg_math_at(c, answer_bare)->a;
    if (gold_bare == gold && answer_bare == answer)
        return v;
    return kg_math_equal(&c->decider, gold_bare, answer_bare, &near);
}

/* Whether the node is a number or a function. */
static bool is_value(const struct kg_math_compare *c, int node)
{
    int kind = kg_math_at(c, node)->kind;

    return kind == KG_MATH_NUM || kind == KG_MATH_SYM || kind == KG_MATH_CONST ||
           (kind >= KG_MATH_ADD && kind <= KG_MATH_FUNC) || kind == KG_MATH_PERCENT ||
           kind == KG_MATH_OPAQUE || kind == KG_MATH_MOD ||
           (kind == KG_MATH_MATRIX && kg_math_at(c, node)->op == 1);
}

bool kg_math_is_infinite(const struct kg_math_compare *c, int node, int *sign)
{
    *sign = 1;
    while (kg_math_at(c, node)->kind == KG_MATH_NEG) {
        *sign = -*sign;
        node = kg_math_at(c, node)->a;
    }
    return kg_math_at(c, node)->kind == KG_MATH_CONST &&
           kg_math_at(c, node)->op == KG_MATH_INF;
}

static bool has_infinity(const struct kg_math_compare *c, int node)
{
    return kg_math_any(c->tree, node, kg_math_is_infinity);
}

static bool is_constant_set(const struct kg_math_compare *c, int node)
{
    return kg_math_at(c, node)->kind == KG_MATH_CONST &&
           kg_math_at(c, node)->op >= KG_MATH_INF;
}

/* a : b as the number a / b; other nodes, such as a : b : c, unchanged. */
static int ratio_value(struct kg_math_compare *c, int node)
{
    const struct kg_math_node *n = kg_math_at(c, node);

    if (n->kind != KG_MATH_RATIO || !is_value(c, n->b) || is_zero(c, n->b))
        return node;
    return kg_math_node(c->tree, KG_MATH_DIV, 0, n->a, n->b);
}

static verdict single(struct kg_math_compare *c, int gold, int answer)
{
    int g = kg_math_at(c, gold)->kind;
    int a = kg_math_at(c, answer)->kind;
    int gs;
    int as;

    if (g == KG_MATH_WORDS || a == KG_MATH_WORDS)
        return words(c, gold, answer);
    if (kg_math_is_infinite(c, gold, &gs) && kg_math_is_infinite(c, answer, &as))
        return kg_math_conclude(c, gs == as ? KG_MATH_RIGHT : KG_MATH_WRONG,
                                gs == as ? "both answers are the same infinity"
                                         : "the infinities have different signs");
    if (kg_math_is_infinite(c, gold, &gs) != kg_math_is_infinite(c, answer, &as) &&
        !(has_infinity(c, gold) && has_infinity(c, answer)))
        return kg_math_conclude(c, KG_MATH_WRONG, "only one answer is infinity");
    if (is_constant_set(c, gold) || is_constant_set(c, answer))
        return kg_math_conclude(c, KG_MATH_WRONG,
                                "a set is compared with another kind of answer");
    if (g == KG_MATH_RATIO && a == KG_MATH_RATIO)
        return ratios(c, gold, answer);
    if (g == KG_MATH_RATIO || a == KG_MATH_RATIO) {
        gold = ratio_value(c, gold);
        answer = ratio_value(c, answer);
    }
    if (is_value(c, gold) && is_value(c, answer))
        return values(c, gold, answer);
    return kg_math_conclude(c, KG_MATH_WRONG, "the answers are of different kinds");
}

/* ---- all kinds ---- */

static bool is_listed(const struct kg_math_compare *c, int node)
{
    return kg_math_at(c, node)->kind == KG_MATH_LIST ||
           (kg_math_at(c, node)->kind != KG_MATH_TUPLE &&
            kg_math_any(c->tree, node, is_pm));
}

/* Whether a pair has a square bracket: it is an interval, neither a point nor a list. */
static bool is_segment(const struct kg_math_compare *c, int tuple)
{
    return kg_math_at(c, tuple)->op != KG_MATH_ROUND &&
           kg_math_list_length(c->tree, kg_math_at(c, tuple)->a) == 2;
}

static bool is_empty_set(const struct kg_math_compare *c, int node)
{
    const struct kg_math_node *n = kg_math_at(c, node);

    return (n->kind == KG_MATH_SET && !n->a) ||
           (n->kind == KG_MATH_CONST && n->op == KG_MATH_EMPTY);
}

/* Whether the node is an inequality, or a list that has one. */
static bool has_inequality(const struct kg_math_compare *c, int node)
{
    const struct kg_math_node *n = kg_math_at(c, node);

    return n->kind == KG_MATH_LIST
               ? has_inequality(c, n->a) || (n->b && has_inequality(c, n->b))
               : n->kind == KG_MATH_REL && n->op >= KG_MATH_NE && n->op <= KG_MATH_GE;
}

static verdict collections(struct kg_math_compare *c, int gold, int answer)
{
    int g = kg_math_at(c, gold)->kind;
    int a = kg_math_at(c, answer)->kind;

    if (g == KG_MATH_SET || a == KG_MATH_SET) {
        int left = g == KG_MATH_SET ? kg_math_at(c, gold)->a : gold;
        int right = a == KG_MATH_SET ? kg_math_at(c, answer)->a : answer;

        if (is_empty_set(c, gold) && is_empty_set(c, answer))
            return kg_math_conclude(c, KG_MATH_RIGHT, "both answers are the empty set");
        if (is_empty_set(c, gold) || is_empty_set(c, answer))
            return kg_math_conclude(c, KG_MATH_WRONG, "only one answer is the empty set");
        if ((g == KG_MATH_TUPLE || a == KG_MATH_TUPLE) && !c->opts->lenient)
            return kg_math_conclude(c, KG_MATH_WRONG, "a set is compared with a tuple");
        return lists(c, left, right, false);
    }
    if ((g == KG_MATH_TUPLE && is_segment(c, gold)) ||
        (a == KG_MATH_TUPLE && is_segment(c, answer)))
        return kg_math_conclude(c, KG_MATH_WRONG, "an interval is compared with a list");
    if (g == KG_MATH_LIST && a == KG_MATH_LIST &&
        kg_math_at(c, gold)->op + kg_math_at(c, answer)->op ==
            KG_MATH_ALL + KG_MATH_ANY &&
        (kg_math_is_name(c, gold) || has_inequality(c, gold) ||
         has_inequality(c, answer)))
        return kg_math_conclude(c, KG_MATH_WRONG, "\"and\" is not \"or\"");
    if (g == KG_MATH_LIST && a == KG_MATH_TUPLE)
        return lists(c, gold, kg_math_at(c, answer)->a, true);
    if (g == KG_MATH_TUPLE && a == KG_MATH_LIST)
        return lists(c, kg_math_at(c, gold)->a, answer, true);
    return lists(c, gold, answer, false);
}

static bool has_relation(const struct kg_math_compare *c, int node)
{
    return (kg_math_at(c, node)->kind == KG_MATH_REL &&
            kg_math_at(c, node)->op != KG_MATH_IN) ||
           (kg_math_at(c, node)->kind == KG_MATH_LIST &&
            has_relation(c, kg_math_at(c, node)->a));
}

/* Compares sets of numbers. With strict_sets, relations do not match a set. */
static verdict sets(struct kg_math_compare *c, int gold, int answer)
{
    if (has_relation(c, answer) && !has_relation(c, gold) && c->opts->strict_sets)
        return kg_math_conclude(c, KG_MATH_WRONG, "expected a set, found a relation");
    return kg_math_unions(c, gold, answer);
}

static bool is_reals(const struct kg_math_compare *c, int node)
{
    return kg_math_at(c, node)->kind == KG_MATH_CONST &&
           kg_math_at(c, node)->op == KG_MATH_REALS;
}

static bool is_set(const struct kg_math_compare *c, int node)
{
    return kg_math_at(c, node)->kind == KG_MATH_TUPLE || is_reals(c, node) ||
           kg_math_at(c, node)->kind == KG_MATH_SETOP;
}

/* Whether the node has only names, like a quantity of a problem: m + n, xy, |a - b|. */
static bool is_made_of_names(const struct kg_math_compare *c, int node)
{
    const struct kg_math_node *n = kg_math_at(c, node);

    switch ((enum kg_math_kind)n->kind) {
    case KG_MATH_SYM:
        return true;
    case KG_MATH_ADD:
    case KG_MATH_MUL:
        return is_made_of_names(c, n->a) && is_made_of_names(c, n->b);
    case KG_MATH_NEG:
        return is_made_of_names(c, n->a);
    case KG_MATH_FUNC:
        return n->op == KG_MATH_ABS && is_made_of_names(c, n->a);
    default:
        return false;
    }
}

/* An equation counts as its right side if its left side is a name, has a value without
 * variables, or has the same value as the right side; in an answer also if the left side
 * is made of names (m + n = 5). It counts as its left side if only the right side is a
 * name (5 = x). */
static int unwrap_equation(struct kg_math_compare *c, int node, int other, bool quantity)
{
    const struct kg_math_node *n = kg_math_at(c, node);

    if (!kg_math_is_relation(c, node, KG_MATH_EQ) ||
        kg_math_at(c, other)->kind == KG_MATH_REL)
        return node;
    if (!kg_math_is_name(c, n->a) && kg_math_is_name(c, n->b) && has_variable(c, n->b) &&
        !has_variable(c, n->a))
        return kg_math_strip(c, n->a);
    if (kg_math_is_name(c, n->a) || !has_variable(c, n->a) ||
        (quantity && !has_variable(c, n->b) && is_made_of_names(c, n->a)) ||
        (is_value(c, n->a) && is_value(c, n->b) &&
         kg_math_equal(&c->decider, n->a, n->b, NULL) == KG_MATH_RIGHT))
        return kg_math_strip(c, n->b);
    return node;
}

/* Converts degrees to radians (45 pi / 180) if the other side has pi. */
static int in_radians(struct kg_math_compare *c, int node, int other)
{
    struct kg_math_tree *t = c->tree;

    if (kg_math_at(c, node)->kind != KG_MATH_DEGREE ||
        !kg_math_any(t, other, kg_math_is_pi))
        return node;
    return product(c, kg_math_at(c, node)->a,
                   kg_math_node(t, KG_MATH_DIV, 0,
                                kg_math_node(t, KG_MATH_CONST, KG_MATH_PI, 0, 0),
                                kg_math_small(t, 180)));
}

/* P(3,4) is the point P. */
static int without_point_name(const struct kg_math_compare *c, int node)
{
    const struct kg_math_node *n = kg_math_at(c, node);
    const char *name = kg_math_leaf_text(c->tree, n->a);

    return n->kind == KG_MATH_MUL && kg_math_at(c, n->a)->kind == KG_MATH_SYM &&
                   kg_math_at(c, n->b)->kind == KG_MATH_TUPLE &&
                   isupper((unsigned char)name[0]) && (name[1] == 0 || name[1] == '_')
               ? n->b
               : node;
}

/* 'a' or 'p' for words that are am, pm, a.m. or p.m. in any case, else 0. */
static char half_of_day(const struct kg_math_compare *c, int node)
{
    const struct kg_math_node *n = kg_math_at(c, node);
    const char *text = kg_math_leaf_text(c->tree, node);
    char plain[3] = "";
    size_t len = 0;

    if (n->kind != KG_MATH_WORDS)
        return 0;
    for (size_t i = 0; i < n->len; i++) {
        if (kg_char_in(". ~", text[i]))
            continue;
        if (len == 2)
            return 0;
        plain[len++] = (char)tolower((unsigned char)text[i]);
    }
    return len == 2 && kg_char_in("ap", plain[0]) && plain[1] == 'm' ? plain[0] : 0;
}

/* 7 am is not 7 pm, though both equal 7. */
static bool other_half_of_day(const struct kg_math_compare *c, int gold, int answer)
{
    const struct kg_math_node *g = kg_math_at(c, gold);
    const struct kg_math_node *a = kg_math_at(c, answer);
    char gold_half = g->kind == KG_MATH_UNIT ? half_of_day(c, g->b) : 0;
    char answer_half = a->kind == KG_MATH_UNIT ? half_of_day(c, a->b) : 0;

    return gold_half && answer_half && gold_half != answer_half;
}

/* Compares two sides of any kind, from which any_kinds() has removed units and names. */
static verdict bare_kinds(struct kg_math_compare *c, int gold, int answer)
{
    int g = kg_math_at(c, gold)->kind;
    int a = kg_math_at(c, answer)->kind;

    if (kg_math_is_matrix(c, gold) || kg_math_is_matrix(c, answer))
        return kg_math_matrices(c, gold, answer);
    if (is_listed(c, gold) || is_listed(c, answer) || g == KG_MATH_SET ||
        a == KG_MATH_SET)
        return collections(c, gold, answer);
    if (g == KG_MATH_TUPLE && a == KG_MATH_TUPLE)
        return tuples(c, gold, answer);
    if (g == KG_MATH_REL && a == KG_MATH_REL)
        return relations(c, gold, answer);
    return single(c, gold, answer);
}

/* Whether to compare as sets of numbers: a side is a union or all reals, or one is an
 * interval and the other a relation or a list with an inequality. */
static bool are_sets(const struct kg_math_compare *c, int gold, int answer)
{
    int g = kg_math_at(c, gold)->kind;
    int a = kg_math_at(c, answer)->kind;

    return g == KG_MATH_SETOP || a == KG_MATH_SETOP || is_reals(c, gold) ||
           is_reals(c, answer) ||
           (is_set(c, gold) && (a == KG_MATH_REL || has_inequality(c, answer))) ||
           (is_set(c, answer) && (g == KG_MATH_REL || has_inequality(c, gold)));
}

static verdict any_kinds(struct kg_math_compare *c, int gold, int answer)
{
    int g = in_radians(c, gold, answer);
    int a = in_radians(c, answer, gold);
    bool conflict = kg_math_names_conflict(c, g, a) && !c->opts->lenient;

    if (other_half_of_day(c, gold, answer))
        return kg_math_conclude(c, KG_MATH_WRONG, "one time is am, the other is pm");
    if (conflict && kg_math_is_relation(c, g, KG_MATH_IN) &&
        kg_math_is_relation(c, a, KG_MATH_IN))
        return kg_math_conclude(c, KG_MATH_WRONG, "the names are different");
    g = kg_math_without_domains(c, g, KG_MATH_GOLD_SIDE);
    a = kg_math_without_domains(c, a, KG_MATH_ANSWER_SIDE);
    gold = kg_math_matrix_value(c, without_point_name(c, kg_math_strip(c, g)));
    answer = kg_math_matrix_value(c, without_point_name(c, kg_math_strip(c, a)));
    if (!conflict && kg_math_is_class(c, kg_math_class_of(c, gold)) &&
        kg_math_is_class(c, kg_math_class_of(c, answer)))
        return kg_math_classes(c, kg_math_class_of(c, gold), kg_math_class_of(c, answer));
    g = unwrap_equation(c, gold, answer, false);
    answer = unwrap_equation(c, answer, gold, true);
    gold = g;
    if (kg_math_at(c, gold)->kind == KG_MATH_MOD &&
        kg_math_at(c, answer)->kind == KG_MATH_MOD)
        return kg_math_classes(c, gold, answer);
    if (kg_math_is_class(c, gold) || kg_math_is_class(c, answer))
        return kg_math_class_and_other(c, gold, answer);
    if (c->tree->full)
        return kg_math_conclude(c, KG_MATH_UNDECIDED, "the formulas are too large");
    if (kg_math_same_tree(c->tree, gold, answer))
        return kg_math_conclude(c, KG_MATH_RIGHT, "the formulas are the same");
    if (are_sets(c, gold, answer))
        return conflict && (has_relation(c, gold) || has_relation(c, answer))
                   ? kg_math_conclude(c, KG_MATH_WRONG, "the names are different")
                   : sets(c, gold, answer);
    verdict v = bare_kinds(c, gold, answer);
    /* such as |x| < 2 and -2 < x < 2 */
    if (v == KG_MATH_WRONG && !conflict && has_inequality(c, gold) &&
        has_inequality(c, answer) && sets(c, gold, answer) == KG_MATH_RIGHT)
        return KG_MATH_RIGHT;
    return v;
}

verdict kg_math_compare_inner(struct kg_math_compare *c, int gold, int answer)
{
    const char *spent = kg_math_budget_spent(c->decider.budget);

    if (c->depth >= KG_MATH_MAX_DEPTH)
        return kg_math_conclude(c, KG_MATH_UNDECIDED, "the formulas are nested too deep");
    if (spent)
        return kg_math_conclude(c, KG_MATH_UNDECIDED, spent);
    c->depth++;
    verdict v = any_kinds(c, gold, answer);
    c->depth--;
    return v;
}

verdict kg_math_compare(struct kg_math_compare *c, int gold, int answer)
{
    c->item = 0;
    c->products = 0;
    c->depth = 0;
    c->whole[KG_MATH_GOLD_SIDE] = c->whole[KG_MATH_ANSWER_SIDE] = 0;
    c->of_unknown = false;
    c->decider.tree = c->tree;
    gold = kg_math_worked_out(c, gold);
    answer = kg_math_worked_out(c, answer);
    verdict v = kg_math_compare_inner(c, gold, answer);
    if (c->tree->full)
        return kg_math_conclude(c, KG_MATH_UNDECIDED, "the formulas are too large");
    return v;
}
