/* Parameters by other names: the C of an antiderivative, the k of all solutions.
 *
 * A name that stands for any value may be called otherwise, but x may not: so a name is a
 * parameter only where it looks like one. C, c, K, C_1 are, where they are a term of
 * their own or numbered (the other side may then have A and B); a small letter is, beside
 * pi or where it is said to be whole. Of two antiderivatives in one variable a constant
 * may be the difference, so their derivatives are compared.
 */
#include "math/compare_internal.h"

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

/* Whether the name is a term of its own in the sum. */
static bool is_term(const struct kg_math_compare *c, int sum, int name)
{
    const struct kg_math_node *n = kg_math_at(c, sum);

    if (n->kind == KG_MATH_ADD)
        return is_term(c, n->a, name) || is_term(c, n->b, name);
    return n->kind == KG_MATH_NEG ? is_term(c, n->a, name)
                                  : kg_math_same_tree(c->tree, sum, name);
}

static bool is_pi(const struct kg_math_node *n)
{
    return n->kind == KG_MATH_CONST && n->op == KG_MATH_PI;
}

/* Whether the name stands in a product with pi. */
static bool turns(const struct kg_math_compare *c, int node, int name)
{
    const struct kg_math_node *n = kg_math_at(c, node);
    struct names here = {.n = 0};

    if (!node)
        return false;
    if (n->kind == KG_MATH_MUL && kg_math_any(c->tree, node, is_pi)) {
        collect(c, &here, node);
        return has(c, &here, name);
    }
    return turns(c, n->a, name) || turns(c, n->b, name);
}

enum parameter { NONE, LETTER, CONSTANT, NUMBERED, WHOLE };

static enum parameter kind_of(const struct kg_math_compare *c, int tree, int name)
{
    const char *text = kg_math_leaf_text(c->tree, name);
    bool sum = kg_math_at(c, tree)->kind == KG_MATH_ADD;

    if (kg_char_in("CcKk", text[0]) && text[1] == '_' && isdigit((unsigned char)text[2]))
        return sum ? NUMBERED : NONE;
    if (kg_char_in("CcKk", text[0]) && !text[1] && sum && is_term(c, tree, name))
        return CONSTANT;
    if (kg_char_in("kmnl", text[0]) && !text[1] &&
        (c->whole_names || turns(c, tree, name)))
        return WHOLE;
    return sum && isupper((unsigned char)text[0]) && !text[1] ? LETTER : NONE;
}

/* Whether names of these kinds may be the same parameter. */
static bool match(enum parameter a, enum parameter b)
{
    if (a == WHOLE || b == WHOLE)
        return a == b;
    return a != NONE && b != NONE &&
           (a == NUMBERED || b == NUMBERED || (a == CONSTANT && b == CONSTANT));
}

/* The names of a tree that are parameters, or that the other side has not. */
static struct names parameters(const struct kg_math_compare *c, int tree,
                               const struct names *all, const struct names *other)
{
    struct names out = {.n = 0};

    for (int i = 0; i < all->n; i++) {
        if (!has(c, other, all->node[i]) || kind_of(c, tree, all->node[i]) > LETTER)
            out.node[out.n++] = all->node[i];
    }
    return out;
}

/* The answer with its i-th name renamed to the gold answer's name order[i], all at
 * once. */
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
            may = may && match(kind_of(c, gold, g->node[orders[i][k]]),
                               kind_of(c, answer, a->node[k]));
        if (may)
            v = kg_math_equal(&c->decider, gold, renamed(c, answer, a, g, orders[i]),
                              NULL);
    }
    return v;
}

/* The only name that is no constant of integration there; 0 where it is not the only one,
 * or where there is no constant. */
static int variable_of(const struct kg_math_compare *c, int tree)
{
    struct names names = {.n = 0};
    int variable = 0;
    bool constant = false;
    int others = 0;

    collect(c, &names, tree);
    for (int i = 0; i < names.n; i++) {
        enum parameter kind = kind_of(c, tree, names.node[i]);
        bool term = (kind == CONSTANT || kind == NUMBERED) &&
                    is_term(c, tree, names.node[i]);

        constant = constant || term;
        variable = term ? variable : names.node[i];
        others += !term;
    }
    return constant && others == 1 ? variable : 0;
}

/* Without the items that only say that a name is a whole number: k \in Z. */
int kg_math_without_domains(struct kg_math_compare *c, int node)
{
    int list = 0;
    int last = 0;

    if (kg_math_at(c, node)->kind != KG_MATH_LIST)
        return node;
    for (int link = node; link; link = kg_math_at(c, link)->b) {
        const struct kg_math_node *n = kg_math_at(c, kg_math_at(c, link)->a);
        bool domain = n->kind == KG_MATH_REL && n->op == KG_MATH_IN &&
                      strcmp(kg_math_leaf_text(c->tree, n->b), "set:Z") == 0;

        c->whole_names = c->whole_names || domain;
        if (!domain)
            kg_math_list_add(c->tree, &list, &last, kg_math_at(c, link)->a);
    }
    if (!list || kg_math_list_length(c->tree, list) == kg_math_list_length(c->tree, node))
        return node;
    return list == last ? kg_math_at(c, list)->a : list;
}

/* Whether each side has a name that the other has not. */
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

/* Whether items of a list have names of their own: "x < 1 or y > 2". */
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
    struct names g;
    struct names a;
    int variable = variable_of(c, gold);
    int other = variable_of(c, answer);

    collect(c, &all_g, gold);
    collect(c, &all_a, answer);
    g = parameters(c, gold, &all_g, &all_a);
    a = parameters(c, answer, &all_a, &all_g);
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
