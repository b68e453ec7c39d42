/* Matrices: sums and products are expanded into trees, cell by cell, and the comparison
 * of numbers does the arithmetic, so matrices may hold symbols. Trees grow with the cube
 * of the side, so sides and products are limited; larger ones are compared as written. A
 * tuple next to a matrix is a column, or a row if the matrix is one. Inverses and
 * equality up to a factor are not computed. */
#include "math/math_internal.h"

/* ---- matrices ---- */

bool kg_math_is_matrix(const struct kg_math_compare *c, int node)
{
    return kg_math_at(c, node)->kind == KG_MATH_MATRIX && kg_math_at(c, node)->op == 0;
}

static int cell(const struct kg_math_compare *c, int matrix, int row, int column)
{
    int list = kg_math_at(c, matrix)->a;

    while (list && row-- > 0)
        list = kg_math_at(c, list)->b;
    list = list ? kg_math_at(c, list)->a : 0;
    while (list && column-- > 0)
        list = kg_math_at(c, list)->b;
    return list ? kg_math_at(c, list)->a : 0;
}

static int rows_of(const struct kg_math_compare *c, int matrix)
{
    return kg_math_list_length(c->tree, kg_math_at(c, matrix)->a);
}

static int columns_of(const struct kg_math_compare *c, int matrix)
{
    return kg_math_list_length(c->tree, kg_math_at(c, kg_math_at(c, matrix)->a)->a);
}

enum { MAX_SIDE = 6, MAX_PRODUCTS = 3 };

/* One cell of a product, sum, or multiple. */
static int make_cell(struct kg_math_compare *c, int kind, int a, int b, int i, int j)
{
    struct kg_math_tree *t = c->tree;
    int sum = 0;

    if (kind == KG_MATH_ADD)
        return kg_math_node(t, KG_MATH_ADD, 0, cell(c, a, i, j), cell(c, b, i, j));
    if (!kg_math_is_matrix(c, a))
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

int kg_math_matrix_value(struct kg_math_compare *c, int node)
{
    int kind = kg_math_at(c, node)->kind;
    int a;
    int b;
    int shape[2];

    if (kind != KG_MATH_ADD && kind != KG_MATH_MUL && kind != KG_MATH_NEG)
        return node;
    a = kg_math_matrix_value(c, kg_math_at(c, node)->a);
    b = kind == KG_MATH_NEG ? a : kg_math_matrix_value(c, kg_math_at(c, node)->b);
    if (kind == KG_MATH_NEG && kg_math_is_matrix(c, a)) {
        kind = KG_MATH_MUL;
        a = kg_math_node(c->tree, KG_MATH_NEG, 0, kg_math_small(c->tree, 1), 0);
    }
    if (!kg_math_is_matrix(c, b) || (kind == KG_MATH_ADD && !kg_math_is_matrix(c, a)) ||
        rows_of(c, b) > MAX_SIDE || columns_of(c, b) > MAX_SIDE ||
        c->products >= MAX_PRODUCTS)
        return node;
    shape[0] = kg_math_is_matrix(c, a) ? rows_of(c, a) : rows_of(c, b);
    shape[1] = columns_of(c, b);
    if (kg_math_is_matrix(c, a) &&
        (shape[0] > MAX_SIDE ||
         columns_of(c, a) != (kind == KG_MATH_ADD ? shape[1] : rows_of(c, b)) ||
         (kind == KG_MATH_ADD && shape[0] != rows_of(c, b))))
        return node;
    c->products++;
    return make_matrix(c, kind, a, b, shape);
}

/* Every cell in reading order. */
static bool cells(const struct kg_math_compare *c, struct kg_math_items *out, int matrix)
{
    for (int row = kg_math_at(c, matrix)->a; row; row = kg_math_at(c, row)->b) {
        for (int list = kg_math_at(c, row)->a; list; list = kg_math_at(c, list)->b) {
            if (out->n == KG_MATH_MAX_ITEMS)
                return false;
            out->node[out->n++] = kg_math_at(c, list)->a;
        }
    }
    return true;
}

/* ((1,2),(3,4)), a tuple of rows, as a matrix; (1,2) as a column (one_row: as a row).
 * returns 0 for other nodes */
static int as_matrix(struct kg_math_compare *c, int tuple, bool one_row)
{
    struct kg_math_tree *t = c->tree;
    int rows = 0;
    int last = 0;

    if (kg_math_is_matrix(c, tuple))
        return tuple;
    if (kg_math_at(c, tuple)->kind != KG_MATH_TUPLE)
        return 0;
    tuple = kg_math_at(c, tuple)->a;
    if (one_row) {
        kg_math_list_add(t, &rows, &last, tuple);
        tuple = 0;
    }
    for (; tuple; tuple = kg_math_at(c, tuple)->b) {
        int item = kg_math_at(c, tuple)->a;
        int row = 0;
        int end = 0;

        if (kg_math_at(c, item)->kind == KG_MATH_TUPLE)
            row = kg_math_at(c, item)->a;
        else
            kg_math_list_add(t, &row, &end, item);
        kg_math_list_add(t, &rows, &last, row);
    }
    return kg_math_node(t, KG_MATH_MATRIX, 0, rows, 0);
}

verdict kg_math_matrices(struct kg_math_compare *c, int gold, int answer)
{
    struct kg_math_items g = {.n = 0};
    struct kg_math_items a = {.n = 0};

    gold = as_matrix(c, gold, kg_math_is_matrix(c, answer) && rows_of(c, answer) == 1);
    answer = as_matrix(c, answer, gold && rows_of(c, gold) == 1);
    if (!gold || !answer)
        return kg_math_conclude(c, KG_MATH_WRONG, "the answers are of different kinds");
    if (rows_of(c, gold) != rows_of(c, answer) ||
        columns_of(c, gold) != columns_of(c, answer))
        return kg_math_conclude(c, KG_MATH_WRONG, "the matrices have different shapes");
    if (!cells(c, &g, gold) || !cells(c, &a, answer))
        return kg_math_conclude(c, KG_MATH_UNDECIDED, "too many cells in a matrix");
    return kg_math_in_order(c, &g, &a);
}
