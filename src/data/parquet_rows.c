/* Rows of a Parquet file: columns joined by their levels. Every leaf has a cursor at its
 * next entry. The definition level says how much of its path exists, the repetition level
 * which list continues. A node asks its first leaf, and all other leaves below it must
 * agree; if not, the file is refused. Each step consumes at least one entry, so no file
 * can loop for ever. */
#include "data/parquet_internal.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

struct cursor {
    struct kg_parquet_column *column; /* owned or NULL */
    struct kg_parquet_batch batch;
    size_t at;       /* entry of the batch */
    size_t value_at; /* value of the batch */
};

struct kg_parquet_rows {
    struct kg_parquet *file;         /* borrowed */
    struct cursor *cursors;          /* owned, one for each leaf */
    size_t group;                    /* the next to be opened, from 0 */
    int64_t left;                    /* rows of the open group */
    int64_t number;                  /* of the row last returned, from 1 */
    struct kg_json_builder *builder; /* owned */
    struct kg_str scratch;           /* of one value */
};

/* ---- cursors ---- */

/* The entry's repetition level, or -1 after the last one. */
static int rep_of(const struct cursor *c)
{
    return c->at < c->batch.n ? c->batch.rep[c->at] : -1;
}

static int def_of(const struct cursor *c)
{
    return c->at < c->batch.n ? c->batch.def[c->at] : -1;
}

static kg_status fill(struct cursor *c, struct kg_err *err)
{
    c->at = 0;
    c->value_at = 0;
    c->batch.n = 0;
    return kg_parquet_column_next(c->column, &c->batch, err);
}

static kg_status advance(struct cursor *c, bool has_value, struct kg_err *err)
{
    c->value_at += has_value;
    return ++c->at < c->batch.n ? KG_OK : fill(c, err);
}

/* Fails: leaf `leaf` disagrees with the first leaf of the node. */
static kg_status disagree(const struct kg_parquet_rows *r, size_t leaf,
                          const struct kg_parquet_node *node, struct kg_err *err)
{
    kg_fail(err, KG_EFORMAT, "row %lld: its levels do not fit those of column '%s'",
            (long long)r->number, r->file->nodes[r->file->leaves[node->leaf]].path);
    return kg_parquet_column_blame(r->cursors[leaf].column, err);
}

/* Adds the row and the node's column to an error of the builder. */
static kg_status placed(const struct kg_parquet_rows *r,
                        const struct kg_parquet_node *node, kg_status status,
                        struct kg_err *err)
{
    if (status == KG_OK)
        return KG_OK;
    kg_err_prefix(err, "row %lld", (long long)r->number);
    return kg_parquet_column_blame(r->cursors[node->leaf].column, err);
}

/* Checks that every leaf of the node is at an entry in which the node is present (or
 * not). */
static kg_status check_presence(struct kg_parquet_rows *r,
                                const struct kg_parquet_node *node, bool present,
                                struct kg_err *err)
{
    for (size_t i = node->leaf; i < node->leaf + node->n_leaves; i++) {
        int def = def_of(&r->cursors[i]);

        if (def < 0 || (def >= node->def) != present)
            return disagree(r, i, node, err);
    }
    return KG_OK;
}

/* Checks that every leaf continues the list of the node (or leaves it). */
static kg_status check_repetition(struct kg_parquet_rows *r,
                                  const struct kg_parquet_node *node, bool again,
                                  struct kg_err *err)
{
    for (size_t i = node->leaf; i < node->leaf + node->n_leaves; i++) {
        int rep = rep_of(&r->cursors[i]);

        if (again ? rep != node->rep : rep >= node->rep)
            return disagree(r, i, node, err);
    }
    return KG_OK;
}

/* The node is absent: skips the one entry that says so in each leaf. */
static kg_status pass_absent(struct kg_parquet_rows *r,
                             const struct kg_parquet_node *node, struct kg_err *err)
{
    KG_TRY(check_presence(r, node, false, err));
    for (size_t i = node->leaf; i < node->leaf + node->n_leaves; i++)
        KG_TRY(advance(&r->cursors[i], false, err));
    return KG_OK;
}

/* ---- nodes ---- */

static kg_status put_node(struct kg_parquet_rows *r, const struct kg_parquet_node *node,
                          struct kg_err *err);

static bool is_present(const struct kg_parquet_rows *r,
                       const struct kg_parquet_node *node)
{
    return def_of(&r->cursors[node->leaf]) >= node->def;
}

static kg_status put_leaf(struct kg_parquet_rows *r, const struct kg_parquet_node *node,
                          bool as_key, struct kg_err *err)
{
    struct cursor *c = &r->cursors[node->leaf];
    const void *values = c->batch.values;
    kg_status status;

    if (def_of(c) != node->def)
        return disagree(r, node->leaf, node, err);
    if (as_key)
        status = kg_parquet_add_key(r->builder, values, c->value_at, err);
    else
        status = kg_parquet_add_value(r->builder, &r->scratch, node, values, c->value_at,
                                      err);
    KG_TRY(placed(r, node, status, err));
    return advance(c, true, err);
}

static const struct kg_parquet_node *next_child(const struct kg_parquet_rows *r,
                                                const struct kg_parquet_node *child)
{
    return r->file->nodes + child->end;
}

static kg_status put_struct(struct kg_parquet_rows *r, const struct kg_parquet_node *node,
                            struct kg_err *err)
{
    const struct kg_parquet_node *child = node + 1;

    KG_TRY(placed(r, node, kg_json_open(r->builder, KG_JSON_OBJECT, err), err));
    for (size_t i = 0; i < node->n_children; i++, child = next_child(r, child)) {
        kg_status status = kg_json_add_key(r->builder, child->name, strlen(child->name),
                                           err);

        KG_TRY(placed(r, child, status, err));
        KG_TRY(put_node(r, child, err));
    }
    return placed(r, node, kg_json_close(r->builder, err), err);
}

/* The element of a list: the only child of its repeated group.   returns NULL if the
 * group itself is the element, as in files of old writers */
static const struct kg_parquet_node *element_of(const struct kg_parquet_node *list,
                                                const struct kg_parquet_node *repeated)
{
    size_t n = strlen(list->name);
    bool old = strcmp(repeated->name, "array") == 0 ||
               (strncmp(repeated->name, list->name, n) == 0 &&
                strcmp(repeated->name + n, "_tuple") == 0);

    return repeated->n_children == 1 && !old ? repeated + 1 : NULL;
}

/* What each repetition becomes: the node itself, its only child, or a key and a value. */
enum item { ITEM_ITSELF, ITEM_CHILD, ITEM_PAIR };

static kg_status put_content(struct kg_parquet_rows *r,
                             const struct kg_parquet_node *node, struct kg_err *err);

static kg_status put_pair(struct kg_parquet_rows *r, const struct kg_parquet_node *key,
                          struct kg_err *err)
{
    KG_TRY(check_presence(r, key, true, err));
    KG_TRY(put_leaf(r, key, true, err));
    return put_node(r, next_child(r, key), err);
}

static kg_status put_item(struct kg_parquet_rows *r,
                          const struct kg_parquet_node *repeated, enum item item,
                          struct kg_err *err)
{
    KG_TRY(check_presence(r, repeated, true, err));
    switch (item) {
    case ITEM_CHILD:
        return put_node(r, repeated + 1, err);
    case ITEM_PAIR:
        return put_pair(r, repeated + 1, err);
    default:
        return put_content(r, repeated, err);
    }
}

static kg_status put_repeated(struct kg_parquet_rows *r,
                              const struct kg_parquet_node *repeated, enum item item,
                              struct kg_err *err)
{
    enum kg_json_type type = item == ITEM_PAIR ? KG_JSON_OBJECT : KG_JSON_ARRAY;
    bool again = is_present(r, repeated);

    KG_TRY(placed(r, repeated, kg_json_open(r->builder, type, err), err));
    if (!again)
        KG_TRY(pass_absent(r, repeated, err));
    while (again) {
        KG_TRY(put_item(r, repeated, item, err));
        again = rep_of(&r->cursors[repeated->leaf]) == repeated->rep;
        if (again)
            KG_TRY(check_repetition(r, repeated, true, err));
    }
    KG_TRY(check_repetition(r, repeated, false, err));
    return placed(r, repeated, kg_json_close(r->builder, err), err);
}

static bool has_text_keys(const struct kg_parquet_node *key)
{
    return key->n_children == 0 && key->kind == KG_PARQUET_AS_PLAIN &&
           key->type == KG_PARQUET_BYTES && key->repetition == KG_PARQUET_REQUIRED;
}

/* Adds a node that is present, or one repetition of it. */
static kg_status put_content(struct kg_parquet_rows *r,
                             const struct kg_parquet_node *node, struct kg_err *err)
{
    const struct kg_parquet_node *child = node + 1;

    if (node->n_children == 0)
        return put_leaf(r, node, false, err);
    switch (node->kind) {
    case KG_PARQUET_AS_LIST:
        return put_repeated(r, child, element_of(node, child) ? ITEM_CHILD : ITEM_ITSELF,
                            err);
    case KG_PARQUET_AS_MAP:
        return put_repeated(r, child, has_text_keys(child + 1) ? ITEM_PAIR : ITEM_ITSELF,
                            err);
    default:
        return put_struct(r, node, err);
    }
}

static kg_status put_node(struct kg_parquet_rows *r, const struct kg_parquet_node *node,
                          struct kg_err *err)
{
    if (node->repetition == KG_PARQUET_REPEATED)
        return put_repeated(r, node, ITEM_ITSELF, err);
    if (node->repetition == KG_PARQUET_OPTIONAL && !is_present(r, node)) {
        KG_TRY(pass_absent(r, node, err));
        return placed(r, node, kg_json_add_null(r->builder, err), err);
    }
    KG_TRY(check_presence(r, node, true, err));
    return put_content(r, node, err);
}

/* ---- row groups ---- */

static kg_status check_end(struct kg_parquet_rows *r, struct kg_err *err)
{
    for (size_t i = 0; i < r->file->n_leaves; i++) {
        if (r->cursors[i].column && rep_of(&r->cursors[i]) >= 0) {
            kg_fail(err, KG_EFORMAT,
                    "expected the row group to end with row %lld, found more values",
                    (long long)r->number);
            return kg_parquet_column_blame(r->cursors[i].column, err);
        }
    }
    return KG_OK;
}

static void close_group(struct kg_parquet_rows *r)
{
    for (size_t i = 0; i < r->file->n_leaves; i++) {
        kg_parquet_column_close(r->cursors[i].column);
        memset(&r->cursors[i], 0, sizeof r->cursors[i]);
    }
}

static kg_status open_group(struct kg_parquet_rows *r, struct kg_err *err)
{
    struct kg_thrift t = kg_parquet_chunks(r->file, r->group);

    close_group(r);
    r->left = r->file->groups[r->group].rows;
    for (size_t i = 0; i < r->file->n_leaves; i++) {
        struct cursor *c = &r->cursors[i];

        KG_TRY(kg_parquet_column_start(&c->column, r->file, r->group, i, &t, err));
        KG_TRY(fill(c, err));
    }
    r->group++;
    return KG_OK;
}

static kg_status put_row(struct kg_parquet_rows *r, struct kg_err *err)
{
    for (size_t i = 0; i < r->file->n_leaves; i++) {
        if (rep_of(&r->cursors[i]) == 0)
            continue;
        kg_fail(err, KG_EFORMAT, "expected the start of row %lld, found %s",
                (long long)r->number,
                rep_of(&r->cursors[i]) < 0 ? "the end of the column"
                                           : "a list that continues");
        return kg_parquet_column_blame(r->cursors[i].column, err);
    }
    return put_struct(r, r->file->nodes, err);
}

/* ---- the reader ---- */

kg_status kg_parquet_rows_open(struct kg_parquet_rows **r, struct kg_parquet *file,
                               struct kg_err *err)
{
    struct kg_parquet_rows *fresh = kg_mem_calloc(1, sizeof *fresh, "rows", err);

    *r = NULL;
    if (!fresh)
        return KG_ENOMEM;
    fresh->file = file;
    fresh->cursors = kg_mem_calloc(file->n_leaves, sizeof *fresh->cursors, "rows", err);
    if (!fresh->cursors ||
        kg_json_builder_create(&fresh->builder, KG_PARQUET_MAX_RECORD_BYTES, err) !=
            KG_OK) {
        kg_parquet_rows_close(fresh);
        return KG_ENOMEM;
    }
    *r = fresh;
    return KG_OK;
}

void kg_parquet_rows_close(struct kg_parquet_rows *r)
{
    if (!r)
        return;
    if (r->cursors)
        close_group(r);
    kg_mem_free(r->cursors);
    kg_json_builder_free(r->builder);
    kg_str_release(&r->scratch);
    kg_mem_free(r);
}

/* Opens row groups until one has a row.   *more: false if there is none */
static kg_status find_row(struct kg_parquet_rows *r, bool *more, struct kg_err *err)
{
    *more = false;
    while (r->left == 0) {
        KG_TRY(check_end(r, err));
        if (r->group == r->file->n_groups)
            return KG_OK;
        KG_TRY(open_group(r, err));
    }
    *more = true;
    r->left--;
    r->number++;
    return KG_OK;
}

static kg_status build_row(struct kg_parquet_rows *r, struct kg_json_doc *doc,
                           struct kg_err *err)
{
    char where[KG_ERR_MESSAGE_BYTES / 2];

    snprintf(where, sizeof where, "%.300s row %lld", r->file->name, (long long)r->number);
    KG_TRY(kg_json_begin(r->builder, doc, where, err));
    KG_TRY(put_row(r, err));
    return kg_json_end(r->builder, err);
}

kg_status kg_parquet_rows_next(struct kg_parquet_rows *r, struct kg_json_doc *doc,
                               bool *more, struct kg_err *err)
{
    kg_status status = find_row(r, more, err);

    if (status == KG_OK && *more)
        status = build_row(r, doc, err);
    if (status != KG_OK || !*more)
        kg_json_release(doc);
    return status;
}

int64_t kg_parquet_rows_number(const struct kg_parquet_rows *r) { return r->number; }
