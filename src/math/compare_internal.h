/* What the files of the comparison share: compare.c has lists, relations, words, values
 * and the choice between all kinds, compare_sets.c intervals and unions,
 * compare_matrix.c matrices. */
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

bool kg_math_is_matrix(const struct kg_math_compare *c, int node);
/* Sums and products of matrices, worked out.   returns the matrix, or node itself */
int kg_math_matrix_value(struct kg_math_compare *c, int node);
verdict kg_math_matrices(struct kg_math_compare *c, int gold, int answer);

#endif
