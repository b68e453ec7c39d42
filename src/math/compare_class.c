/* Remainders and classes of them: 17 mod 5 is the number 2, 2 (mod 5) is all numbers that
 * leave it. Which of the two is meant shows in how it is written, and a class is compared
 * with a class: the same modulus, and a difference that it divides.
 */
#include "math/compare_internal.h"

/* A class of remainders without the name that it is of: x \equiv 7 \pmod{12}. */
int kg_math_class_of(const struct kg_math_compare *c, int node)
{
    const struct kg_math_node *n = kg_math_at(c, node);

    return n->kind == KG_MATH_REL && (n->op == KG_MATH_EQUIV || n->op == KG_MATH_EQ) &&
                   kg_math_is_name(c, n->a) && kg_math_at(c, n->b)->kind == KG_MATH_MOD
               ? n->b
               : node;
}

/* Remainders are compared as values; where one is a class, the moduli must be the same
 * and divide the difference. */
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

/* A class against something else: a number that is not the one that stands for the class
 * is wrong; whether that one is enough is not known. */
verdict kg_math_class_and_other(struct kg_math_compare *c, int gold, int answer)
{
    bool of_gold = kg_math_at(c, gold)->kind == KG_MATH_MOD;
    const struct kg_math_node *n = kg_math_at(c, of_gold ? gold : answer);
    int number = kg_math_at(c, n->a)->a;
    verdict v = kg_math_compare_inner(c, of_gold ? number : gold,
                                      of_gold ? answer : number);

    return v == KG_MATH_RIGHT ? kg_math_conclude(c, KG_MATH_UNDECIDED,
                                                 "a class of remainders and a number")
                              : v;
}

bool kg_math_is_class(const struct kg_math_compare *c, int node)
{
    return kg_math_at(c, node)->kind == KG_MATH_MOD && kg_math_at(c, node)->op == 1;
}
