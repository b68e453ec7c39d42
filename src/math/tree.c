/* The tree of an expression: an array of binary nodes and a pool of names, both of fixed
 * size. A node is an index, 0 for none. If the tree is full, new nodes are 0 and a flag
 * is set, so builders check once, at the end. Lists are chains to the right. Nodes are
 * freed only when the tree is cleared. */
#include "math/math_internal.h"

#include <stdio.h>
#include <string.h>

void kg_math_tree_clear(struct kg_math_tree *t)
{
    t->n = 1;
    t->used = 0;
    t->full = false;
    t->nodes[0] = (struct kg_math_node){0};
}

int kg_math_node(struct kg_math_tree *t, enum kg_math_kind kind, int op, int a, int b)
{
    if (t->n == KG_MATH_MAX_NODES) {
        t->full = true;
        return 0;
    }
    t->nodes[t->n] = (struct kg_math_node){.kind = (uint8_t)kind,
                                           .op = (uint8_t)op,
                                           .a = (uint16_t)a,
                                           .b = (uint16_t)b,
                                           .size = 1 + t->nodes[a].size +
                                                   t->nodes[b].size};
    if (t->nodes[t->n].size > KG_MATH_MAX_SIZE) {
        t->full = true;
        return 0;
    }
    return t->n++;
}

int kg_math_leaf(struct kg_math_tree *t, enum kg_math_kind kind, int op, const char *text,
                 size_t n)
{
    int node = kg_math_node(t, kind, op, 0, 0);

    if (n + 1 > (size_t)(KG_MATH_MAX_POOL - t->used)) {
        t->full = true;
        return 0;
    }
    memcpy(t->pool + t->used, text, n);
    t->pool[t->used + (int)n] = 0;
    if (node) {
        t->nodes[node].text = (uint32_t)t->used;
        t->nodes[node].len = (uint16_t)n;
    }
    t->used += (int)n + 1;
    return node;
}

int kg_math_small(struct kg_math_tree *t, int value)
{
    char text[16];
    int n = snprintf(text, sizeof text, "%d", value);

    return kg_math_leaf(t, KG_MATH_NUM, 0, text, (size_t)n);
}

const char *kg_math_leaf_text(const struct kg_math_tree *t, int node)
{
    return t->pool + t->nodes[node].text;
}

bool kg_math_same_tree(const struct kg_math_tree *t, int a, int b)
{
    while (a != b) {
        const struct kg_math_node *x = &t->nodes[a];
        const struct kg_math_node *y = &t->nodes[b];

        if (!a || !b || x->kind != y->kind || x->op != y->op || x->len != y->len ||
            memcmp(t->pool + x->text, t->pool + y->text, x->len) != 0)
            return false;
        /* long chains grow on one side, so recursion follows the other */
        if (x->kind == KG_MATH_LIST) {
            if (!kg_math_same_tree(t, x->a, y->a))
                return false;
            a = x->b;
            b = y->b;
        } else {
            if (!kg_math_same_tree(t, x->b, y->b))
                return false;
            a = x->a;
            b = y->a;
        }
    }
    return true;
}

bool kg_math_any(const struct kg_math_tree *t, int node,
                 bool (*f)(const struct kg_math_node *n))
{
    for (; node; node = t->nodes[node].a) {
        if (f(&t->nodes[node]) || kg_math_any(t, t->nodes[node].b, f))
            return true;
    }
    return false;
}

void kg_math_list_add(struct kg_math_tree *t, int *list, int *last, int item)
{
    int link = kg_math_node(t, KG_MATH_LIST, 0, item, 0);

    if (!link)
        return;
    if (*list) {
        t->nodes[*last].b = (uint16_t)link;
        t->nodes[*list].size += t->nodes[link].size;
    } else {
        *list = link;
    }
    *last = link;
}

int kg_math_list_length(const struct kg_math_tree *t, int list)
{
    int n = 0;

    for (; list; list = t->nodes[list].b)
        n++;
    return n;
}

int kg_math_part(const struct kg_math_tree *t, int node, enum kg_math_part part)
{
    int list = t->nodes[node].a;

    for (int i = 0; i < (int)part; i++)
        list = t->nodes[list].b;
    return t->nodes[list].a;
}

bool kg_math_is_series(const struct kg_math_node *n)
{
    return n->kind == KG_MATH_OPAQUE && (n->op == KG_MATH_SUM || n->op == KG_MATH_PROD);
}

bool kg_math_is_pi(const struct kg_math_node *n)
{
    return n->kind == KG_MATH_CONST && n->op == KG_MATH_PI;
}

bool kg_math_is_infinity(const struct kg_math_node *n)
{
    return n->kind == KG_MATH_CONST && n->op == KG_MATH_INF;
}
