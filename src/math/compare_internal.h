/* What the files of the comparison share: compare.c has lists, relations, words,
 * values and the choice between all kinds, compare_sets.c intervals and unions,
 * compare_matrix.c matrices, compare_class.c remainders, compare_names.c parameters by
 * other names, calculus.c what is worked out before anything is compared. */
#ifndef KG_MATH_COMPARE_INTERNAL_H
#define KG_MATH_COMPARE_INTERNAL_H

#include "math/math_internal.h"

typedef enum kg_math_verdict verdict;

struct kg_math_items {
    int node[KG_MATH_MAX_ITEMS];
    int n;
    bool more; /* than fit */
};

static inline const struct kg_math_node *kg_math_at(const struct kg_math_compare *c,
                                                    int node)
{
    return &c->tree->nodes[node];
}

static inline bool kg_math_is_falling(int relation)
{
    return relation == KG_MATH_GT || relation == KG_MATH_GE;
}

/* v, with its reason noted. */
verdict kg_math_conclude(struct kg_math_compare *c, verdict v, const char *reason);
/* What is only a name for what stands on the other side of =. */
bool kg_math_is_name(const struct kg_math_compare *c, int node);
bool kg_math_is_relation(const struct kg_math_compare *c, int node, int op);
/* The items of a list, or one; \\pm is two. */
void kg_math_gather(struct kg_math_compare *c, struct kg_math_items *out, int node);
verdict kg_math_in_order(struct kg_math_compare *c, const struct kg_math_items *g,
                         const struct kg_math_items *a);
/* As sets: every item of each side is among the other's. */
verdict kg_math_in_any_order(struct kg_math_compare *c, const struct kg_math_items *g,
                             const struct kg_math_items *a);

/* Without what carries no value: units, degrees, "x in" before a set. */
int kg_math_strip(struct kg_math_compare *c, int node);
bool kg_math_is_infinite(const struct kg_math_compare *c, int node, int *sign);

/* Sets of real numbers, at least one of them a union, an interval or all. */
verdict kg_math_unions(struct kg_math_compare *c, int gold, int answer);

/* One comparison inside another. */
verdict kg_math_compare_inner(struct kg_math_compare *c, int gold, int answer);
/* Of two parts: wrong if one is, right if both are. */
verdict kg_math_both(verdict a, verdict b);
/* A class of remainders without the name that it is of; other nodes as they are. */
int kg_math_class_of(const struct kg_math_compare *c, int node);
bool kg_math_is_class(const struct kg_math_compare *c, int node);
verdict kg_math_classes(struct kg_math_compare *c, int gold, int answer);
verdict kg_math_class_and_other(struct kg_math_compare *c, int gold, int answer);
/* A list without items as k \in Z whose name is a parameter of the others; the names are
 * noted for that side. */
int kg_math_without_domains(struct kg_math_compare *c, int node, int side);
/* A copy of the tree with `from` replaced by `to`. */
int kg_math_replaced(struct kg_math_compare *c, int node, int from, int to);
/* The tree with its derivatives, integrals, limits and infinite sums worked out, as
 * far as they can be; a sum of terms is left to those who evaluate. */
int kg_math_worked_out(struct kg_math_compare *c, int node);
/* The derivative by a SYM; partial: all other names are constant.   returns 0 for none */
int kg_math_derived(struct kg_math_compare *c, int node, int name, bool partial);
/* Whether they are equal but for the names of their parameters: constants of
 * integration, whole numbers in multiples of pi or said to be whole. WRONG also where
 * there are none. */
verdict kg_math_same_but_names(struct kg_math_compare *c, int gold, int answer);

/* Whether each side has a name that the other has not (x > 1 is not y > 1), or the items
 * of one have. */
bool kg_math_names_conflict(const struct kg_math_compare *c, int gold, int answer);

bool kg_math_is_matrix(const struct kg_math_compare *c, int node);
/* Sums and products of matrices, worked out.   returns the matrix, or node itself */
int kg_math_matrix_value(struct kg_math_compare *c, int node);
verdict kg_math_matrices(struct kg_math_compare *c, int gold, int answer);

#endif
