/* Shared by the files of the comparison. compare.c: lists, relations, words, values, and
 * the choice between the kinds. compare_sets.c: intervals and unions. compare_matrix.c:
 * matrices. compare_class.c: residue classes. compare_names.c: renamed parameters.
 * calculus.c: evaluation of derivatives, integrals and limits before the comparison. */
#ifndef KG_MATH_COMPARE_INTERNAL_H
#define KG_MATH_COMPARE_INTERNAL_H

#include "math/math_internal.h"

typedef enum kg_math_verdict verdict;

struct kg_math_items {
    int node[KG_MATH_MAX_ITEMS];
    int n;
    bool more; /* there are more than fit */
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

/* Notes the reason and returns v. */
verdict kg_math_conclude(struct kg_math_compare *c, verdict v, const char *reason);
/* Whether a node is only a name for the other side of =. */
bool kg_math_is_name(const struct kg_math_compare *c, int node);
bool kg_math_is_relation(const struct kg_math_compare *c, int node, int op);
/* The items of a list, or a single item; \\pm gives two. */
void kg_math_gather(struct kg_math_compare *c, struct kg_math_items *out, int node);
verdict kg_math_in_order(struct kg_math_compare *c, const struct kg_math_items *g,
                         const struct kg_math_items *a);
/* Compares as sets: each item of either side must be in the other. */
verdict kg_math_in_any_order(struct kg_math_compare *c, const struct kg_math_items *g,
                             const struct kg_math_items *a);

/* The node without parts that carry no value: units, degrees, "x in" before a set. */
int kg_math_strip(struct kg_math_compare *c, int node);
bool kg_math_is_infinite(const struct kg_math_compare *c, int node, int *sign);

/* Compares sets of real numbers; at least one is a union, an interval or all reals. */
verdict kg_math_unions(struct kg_math_compare *c, int gold, int answer);

/* A nested comparison. */
verdict kg_math_compare_inner(struct kg_math_compare *c, int gold, int answer);
/* Combines two parts: wrong if one is wrong, right if both are right. */
verdict kg_math_both(verdict a, verdict b);
/* A residue class without the name that is in it; other nodes unchanged. */
int kg_math_class_of(const struct kg_math_compare *c, int node);
bool kg_math_is_class(const struct kg_math_compare *c, int node);
verdict kg_math_classes(struct kg_math_compare *c, int gold, int answer);
verdict kg_math_class_and_other(struct kg_math_compare *c, int gold, int answer);
/* A list without items such as k \in Z whose name is a parameter of other items; these
 * names are recorded for that side. */
int kg_math_without_domains(struct kg_math_compare *c, int node, int side);
/* A copy of the tree with `from` replaced by `to`. */
int kg_math_replaced(struct kg_math_compare *c, int node, int from, int to);
/* The tree with derivatives, integrals, limits and infinite sums evaluated as far as
 * possible. Finite sums are left to the evaluation. */
int kg_math_worked_out(struct kg_math_compare *c, int node);
/* The derivative with respect to a SYM; partial: all other names are constant.   returns
 * 0 if there is none */
int kg_math_derived(struct kg_math_compare *c, int node, int name, bool partial);
/* Whether both are equal after renaming parameters: constants of integration, and
 * integers in multiples of pi or declared as integers. WRONG also if there are no
 * parameters. */
verdict kg_math_same_but_names(struct kg_math_compare *c, int gold, int answer);

/* Whether each side has a name that the other lacks (x > 1 is not y > 1), or the items of
 * one side do among themselves. */
bool kg_math_names_conflict(const struct kg_math_compare *c, int gold, int answer);

bool kg_math_is_matrix(const struct kg_math_compare *c, int node);
/* Evaluates sums and products of matrices.   returns the matrix, or node unchanged */
int kg_math_matrix_value(struct kg_math_compare *c, int node);
verdict kg_math_matrices(struct kg_math_compare *c, int gold, int answer);

#endif
