/* Parameters whose names differ: the C of an antiderivative, the k of all solutions.
 *
 * A name that stands for any value may be another name on the other side, but x may not.
 * So only a name that looks like a parameter is one: C or C_1, if it is added once, and
 * the term that has its role on the other side (c, K, A, B); k, l, m or n, if its side
 * declares it as an integer, or if it is the only one of them and multiplies pi in a sum.
 * Two antiderivatives in one variable may differ by a constant, so their derivatives are
 * compared.
 */
#include "math/math_internal.h"

#include <ctype.h>
#include <string.h>

enum { MAX_NAMES = 3, MAX_SEEN = 12 };

struct names {
    int node[MAX_SEEN];
    int n;
};

static bool has(const struct kg_math_compare *c, const struct names *names, int node)
{
    for (int i = 0; i < names->n; i++) {
        if (kg_math_same_tree(c->tree, names->node[i], node))
            return true;
    }
    return false;
}

static void collect(const struct kg_math_compare *c, struct names *out, int node)
{
    const struct kg_math_node *n = kg_math_at(c, node);

    if (!node)
        return;
    if (n->kind == KG_MATH_SYM && out->n < MAX_SEEN && !has(c, out, node))
        out->node[out->n++] = node;
    collect(c, out, n->a);
    collect(c, out, n->b);
}

/* How often the name occurs in the tree. */
static int count(const struct kg_math_compare *c, int node, int name)
{
    if (!node)
        return 0;
    if (kg_math_same_tree(c->tree, node, name))
        return 1;
    return count(c, kg_math_at(c, node)->a, name) +
           count(c, kg_math_at(c, node)->b, name);
}

/* Whether a term of the sum is the name alone. */
static bool is_term(const struct kg_math_compare *c, int sum, int name)
{
    const struct kg_math_node *n = kg_math_at(c, sum);

    if (n->kind == KG_MATH_ADD)
        return is_term(c, n->a, name) || is_term(c, n->b, name);
    return kg_math_same_tree(c->tree, sum, name);
}

/* Whether the name is in a product with pi. */
static bool turns(const struct kg_math_compare *c, int node, int name)
{
    const struct kg_math_node *n = kg_math_at(c, node);
    struct names here = {.n = 0};

    if (!node)
        return false;
    if (n->kind == KG_MATH_MUL && kg_math_any(c->tree, node, kg_math_is_pi)) {
        collect(c, &here, node);
        return has(c, &here, name);
    }
    return turns(c, n->a, name) || turns(c, n->b, name);
}

static bool is_sum(const struct kg_math_node *n) { return n->kind == KG_MATH_ADD; }

static bool is_symbol(const struct kg_math_node *n)
{
    return n->kind == KG_MATH_SYM || n->kind == KG_MATH_OPAQUE;
}

/* Whether the tree is linear in the name, with a number as its factor. */
static bool is_linear(const struct kg_math_compare *c, int node, int name)
{
    const struct kg_math_node *n = kg_math_at(c, node);

    if (count(c, node, name) == 0)
        return true;
    switch ((enum kg_math_kind)n->kind) {
    case KG_MATH_SYM:
        return true;
    case KG_MATH_NEG:
        return is_linear(c, n->a, name);
    case KG_MATH_ADD:
        return is_linear(c, n->a, name) && is_linear(c, n->b, name);
    case KG_MATH_DIV:
        return is_linear(c, n->a, name) && !kg_math_any(c->tree, n->b, is_symbol);
    case KG_MATH_MUL:
        return count(c, n->a, name) == 0
                   ? is_linear(c, n->b, name) && !kg_math_any(c->tree, n->a, is_symbol)
                   : is_linear(c, n->a, name) && !kg_math_any(c->tree, n->b, is_symbol);
    default:
        return false;
    }
}

/* One of k, l, m, n. */
static bool is_whole_letter(const struct kg_math_compare *c, int name)
{
    const char *text = kg_math_leaf_text(c->tree, name);

    return text[0] && kg_char_in("klmn", text[0]) && !text[1];
}

static bool is_declared(const struct kg_math_compare *c, int side, int name)
{
    for (int list = c->whole[side]; list; list = kg_math_at(c, list)->b) {
        if (kg_math_same_tree(c->tree, kg_math_at(c, list)->a, name))
            return true;
    }
    return false;
}

/* Whether the name counts periods: pi/4 + 2 k pi. Outside a sum only k and n do, and only
 * in the value of an unknown: x = 2 k pi, but an area may be m pi. */
static bool counts_periods(const struct kg_math_compare *c, int tree, int name)
{
    const char *text = kg_math_leaf_text(c->tree, name);
    struct names all = {.n = 0};

    collect(c, &all, tree);
    for (int i = 0; i < all.n; i++) {
        if (is_whole_letter(c, all.node[i]) &&
            !kg_math_same_tree(c->tree, all.node[i], name))
            return false;
    }
    return count(c, tree, name) == 1 && turns(c, tree, name) &&
           is_linear(c, tree, name) &&
           (kg_math_any(c->tree, tree, is_sum) ||
            (c->of_unknown && kg_char_in("kn", text[0])));
}

enum parameter { NONE, LETTER, PERIODS, CONSTANT, NUMBERED, WHOLE };

static enum parameter kind_of(const struct kg_math_compare *c, int side, int tree,
                              int name)
{
    const char *text = kg_math_leaf_text(c->tree, name);
    bool sum = kg_math_at(c, tree)->kind == KG_MATH_ADD;

    if (is_whole_letter(c, name) && is_declared(c, side, name))
        return WHOLE;
    if (is_whole_letter(c, name) && counts_periods(c, tree, name))
        return PERIODS;
    if (!sum || count(c, tree, name) != 1)
        return NONE;
    if (kg_char_in("CcKk", text[0]) && text[1] == '_' && isdigit((unsigned char)text[2]))
        return NUMBERED;
    if (kg_char_in("CcKk", text[0]) && !text[1] && is_term(c, tree, name))
        return CONSTANT;
    return isupper((unsigned char)text[0]) && !text[1] ? LETTER : NONE;
}

static bool is_whole(enum parameter p) { return p == WHOLE || p == PERIODS; }

/* Whether the gold answer's name and the answer's may be the same parameter. One of two
 * constants of integration must be C, because c and k may be ordinary names. */
static bool match(const struct kg_math_compare *c, int g, enum parameter gold, int a,
                  enum parameter answer)
{
    char of_gold = kg_math_leaf_text(c->tree, g)[0];
    char of_answer = kg_math_leaf_text(c->tree, a)[0];

    if (is_whole(gold) || is_whole(answer))
        return is_whole(gold) && is_whole(answer);
    if (gold == NONE || answer == NONE ||
        !(gold == NUMBERED || answer == NUMBERED ||
          (gold == CONSTANT && answer == CONSTANT)))
        return false;
    return of_gold == 'C' || ((of_gold == 'c' || gold == LETTER) && of_answer == 'C');
}

/* The names of a tree that are parameters, or that the other side lacks. */
static struct names parameters(const struct kg_math_compare *c, int side, int tree,
                               const struct names *all, const struct names *other)
{
    struct names out = {.n = 0};

    for (int i = 0; i < all->n; i++) {
        if (!has(c, other, all->node[i]) ||
            kind_of(c, side, tree, all->node[i]) > PERIODS)
            out.node[out.n++] = all->node[i];
    }
    return out;
}

/* The answer with its i-th name renamed to the gold answer's name order[i], by way of
 * unused names, so that names can be exchanged. */
static int renamed(struct kg_math_compare *c, int answer, const struct names *a,
                   const struct names *g, const int order[MAX_NAMES])
{
    int between[MAX_NAMES];

    for (int i = 0; i < a->n; i++) {
        between[i] = kg_math_leaf(c->tree, KG_MATH_SYM, 0, (char[]){'#', (char)('0' + i)},
                                  2);
        answer = kg_math_replaced(c, answer, a->node[i], between[i]);
    }
    for (int i = 0; i < a->n; i++)
        answer = kg_math_replaced(c, answer, between[i], g->node[order[i]]);
    return answer;
}

/* Whether the answer's name a may be the gold answer's parameter g. A constant of
 * integration also needs a variable in the tree. */
static bool may_be(const struct kg_math_compare *c, int gold, int g, int answer, int a)
{
    enum parameter kind = kind_of(c, KG_MATH_GOLD_SIDE, gold, g);
    struct names all = {.n = 0};
    bool variable = is_whole(kind);

    collect(c, &all, gold);
    for (int i = 0; i < all.n; i++)
        variable = variable || kind_of(c, KG_MATH_GOLD_SIDE, gold, all.node[i]) == NONE;
    return variable && match(c, g, kind, a, kind_of(c, KG_MATH_ANSWER_SIDE, answer, a));
}

static verdict same_renamed(struct kg_math_compare *c, int gold, int answer,
                            const struct names *g, const struct names *a)
{
    static const int orders[][MAX_NAMES] = {{0, 1, 2}, {1, 0, 2}, {0, 2, 1},
                                            {2, 1, 0}, {1, 2, 0}, {2, 0, 1}};
    static const int count[] = {0, 1, 2, 6};
    verdict v = KG_MATH_WRONG;

    for (int i = 0; i < count[g->n] && v != KG_MATH_RIGHT; i++) {
        bool may = true;

        for (int k = 0; k < a->n; k++)
            may = may && may_be(c, gold, g->node[orders[i][k]], answer, a->node[k]);
        if (may)
            v = kg_math_equal(&c->decider, gold, renamed(c, answer, a, g, orders[i]),
                              NULL);
    }
    return v;
}

/* The variable of an antiderivative: the only name except one constant of integration,
 * which must be C or C_1 in the gold answer.   returns 0 if there is none */
static int variable_of(const struct kg_math_compare *c, int side, int tree)
{
    struct names names = {.n = 0};

    collect(c, &names, tree);
    for (int i = 0; i < names.n && names.n == 2; i++) {
        enum parameter kind = kind_of(c, side, tree, names.node[i]);
        bool clear = side == KG_MATH_ANSWER_SIDE ||
                     kg_math_leaf_text(c->tree, names.node[i])[0] == 'C';

        if ((kind == CONSTANT || kind == NUMBERED) && clear &&
            is_term(c, tree, names.node[i]))
            return names.node[1 - i];
    }
    return 0;
}

/* Whether the item says that a name is a whole number: k \in Z. */
static bool is_domain(const struct kg_math_compare *c, int item)
{
    const struct kg_math_node *n = kg_math_at(c, item);

    return n->kind == KG_MATH_REL && n->op == KG_MATH_IN &&
           kg_math_at(c, n->a)->kind == KG_MATH_SYM &&
           strcmp(kg_math_leaf_text(c->tree, n->b), "set:Z") == 0;
}

/* Whether the name is a parameter of the other items of the list: it occurs in one, in
 * relations only to the right of = (x = k pi, not k > 2), and in no set. */
static bool is_parameter(const struct kg_math_compare *c, int list, int name)
{
    int found = 0;

    for (; list; list = kg_math_at(c, list)->b) {
        int item = kg_math_at(c, list)->a;
        const struct kg_math_node *n = kg_math_at(c, item);
        bool equation = kg_math_is_relation(c, item, KG_MATH_EQ);

        if (is_domain(c, item) || count(c, item, name) == 0)
            continue;
        if ((n->kind == KG_MATH_REL && !(equation && count(c, n->a, name) == 0)) ||
            n->kind == KG_MATH_SET || n->kind == KG_MATH_SETOP)
            return false;
        found++;
    }
    return found > 0;
}

int kg_math_without_domains(struct kg_math_compare *c, int node, int side)
{
    int list = 0;
    int last = 0;

    if (kg_math_at(c, node)->kind != KG_MATH_LIST)
        return node;
    for (int link = node; link; link = kg_math_at(c, link)->b) {
        int item = kg_math_at(c, link)->a;
        int name = kg_math_at(c, item)->a;

        if (is_domain(c, item) && is_parameter(c, node, name))
            c->whole[side] = kg_math_node(c->tree, KG_MATH_LIST, 0, name, c->whole[side]);
        else
            kg_math_list_add(c->tree, &list, &last, item);
    }
    if (!list || kg_math_list_length(c->tree, list) == kg_math_list_length(c->tree, node))
        return node;
    return list == last ? kg_math_at(c, list)->a : list;
}

/* Whether each side has a name that the other lacks. */
static bool differ(const struct kg_math_compare *c, int one, int other)
{
    struct names a = {.n = 0};
    struct names b = {.n = 0};
    bool of_a = false;
    bool of_b = false;

    collect(c, &a, one);
    collect(c, &b, other);
    for (int i = 0; i < a.n; i++)
        of_a = of_a || !has(c, &b, a.node[i]);
    for (int i = 0; i < b.n; i++)
        of_b = of_b || !has(c, &a, b.node[i]);
    return of_a && of_b;
}

/* Whether two items each have a name that the other lacks: "x < 1 or y > 2". */
static bool mixes(const struct kg_math_compare *c, int list)
{
    const struct kg_math_node *n = kg_math_at(c, list);

    for (int link = n->kind == KG_MATH_LIST ? n->b : 0; link;
         link = kg_math_at(c, link)->b) {
        if (differ(c, n->a, kg_math_at(c, link)->a))
            return true;
    }
    return false;
}

bool kg_math_names_conflict(const struct kg_math_compare *c, int gold, int answer)
{
    return differ(c, gold, answer) || mixes(c, gold) || mixes(c, answer);
}

verdict kg_math_same_but_names(struct kg_math_compare *c, int gold, int answer)
{
    struct names all_g = {.n = 0};
    struct names all_a = {.n = 0};
    int variable = variable_of(c, KG_MATH_GOLD_SIDE, gold);
    int other = variable_of(c, KG_MATH_ANSWER_SIDE, answer);

    collect(c, &all_g, gold);
    collect(c, &all_a, answer);
    struct names g = parameters(c, KG_MATH_GOLD_SIDE, gold, &all_g, &all_a);
    struct names a = parameters(c, KG_MATH_ANSWER_SIDE, answer, &all_a, &all_g);
    if (all_g.n < MAX_SEEN && all_a.n < MAX_SEEN && g.n == a.n && g.n > 0 &&
        g.n <= MAX_NAMES && same_renamed(c, gold, answer, &g, &a) == KG_MATH_RIGHT)
        return KG_MATH_RIGHT;
    if (!variable || !other || !kg_math_same_tree(c->tree, variable, other))
        return KG_MATH_WRONG;
    gold = kg_math_derived(c, gold, variable, true);
    answer = kg_math_derived(c, answer, variable, true);
    return gold && answer && !c->tree->full
               ? kg_math_equal(&c->decider, gold, answer, NULL)
               : KG_MATH_WRONG;
}

/* Remainders and residue classes: 17 mod 5 is the number 2; 2 (mod 5) is the set of all
 * numbers with that remainder. The notation tells which is meant. Classes are equal if
 * their moduli are equal and divide the difference. */

int kg_math_class_of(const struct kg_math_compare *c, int node)
{
    const struct kg_math_node *n = kg_math_at(c, node);

    return n->kind == KG_MATH_REL && (n->op == KG_MATH_EQUIV || n->op == KG_MATH_EQ) &&
                   kg_math_is_name(c, n->a) && kg_math_at(c, n->b)->kind == KG_MATH_MOD
               ? n->b
               : node;
}

/* Two remainders are compared as values; if one is a class, both as classes. */
verdict kg_math_classes(struct kg_math_compare *c, int gold, int answer)
{
    struct kg_math_tree *t = c->tree;
    const struct kg_math_node *g = kg_math_at(c, gold);
    const struct kg_math_node *a = kg_math_at(c, answer);
    int g_modulus = kg_math_at(c, kg_math_at(c, g->a)->b)->a;
    int a_modulus = kg_math_at(c, kg_math_at(c, a->a)->b)->a;

    if (!g->op && !a->op)
        return kg_math_compare_inner(c, g->b, a->b);
    int q = kg_math_node(
        t, KG_MATH_DIV, 0,
        kg_math_node(t, KG_MATH_ADD, 0, kg_math_at(c, g->a)->a,
                     kg_math_node(t, KG_MATH_NEG, 0, kg_math_at(c, a->a)->a, 0)),
        g_modulus);
    return kg_math_both(kg_math_compare_inner(c, g_modulus, a_modulus),
                        kg_math_equal(&c->decider, q,
                                      kg_math_node(t, KG_MATH_FUNC, KG_MATH_FLOOR, q, 0),
                                      NULL));
}

/* A class and a number: wrong unless the number is the representative as written; then
 * undecided, because the number alone may not be enough. */
verdict kg_math_class_and_other(struct kg_math_compare *c, int gold, int answer)
{
    bool of_gold = kg_math_at(c, gold)->kind == KG_MATH_MOD;
    const struct kg_math_node *n = kg_math_at(c, of_gold ? gold : answer);
    int number = kg_math_at(c, n->a)->a;
    verdict v = kg_math_compare_inner(c, of_gold ? number : gold,
                                      of_gold ? answer : number);

    return v == KG_MATH_RIGHT
               ? kg_math_conclude(c, KG_MATH_UNDECIDED,
                                  "a congruence class is compared with a number")
               : v;
}

bool kg_math_is_class(const struct kg_math_compare *c, int node)
{
    return kg_math_at(c, node)->kind == KG_MATH_MOD && kg_math_at(c, node)->op == 1;
}
