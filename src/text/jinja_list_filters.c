/* Filters over lists: members, order, choosing and mapping. Jinja's generators are
 * complete lists here, because limits can count them; templates notice no difference.
 * Iterables (a list, the characters of a text, the keys of a mapping) become a list
 * first. Sorting is a stable merge, as in Python; comparing values without an order is an
 * error. Filters that take the name of another pass the remaining arguments to it. */
#include "text/jinja_internal.h"

#include <string.h>

/* ---- members ---- */

static kg_status f_list(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                        const struct kg_jinja_args *args)
{
    const struct kg_jv_list *items;

    (void)args;
    KG_TRY(kg_jv_iterate(&items, j, in));
    KG_TRY(kg_jv_list_new(out, j, items->n, KG_JV_PLAIN));
    for (size_t i = 0; i < items->n; i++)
        KG_TRY(kg_jv_push(j, out, &items->items[i]));
    return KG_OK;
}

static kg_status end_of(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                        bool last)
{
    const struct kg_jv_list *items;

    KG_TRY(kg_jv_iterate(&items, j, in));
    *out = kg_jv_undefined((struct kg_jv_text){"a member of an empty list", 25});
    if (items->n)
        *out = items->items[last ? items->n - 1 : 0];
    return KG_OK;
}

static kg_status f_first(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                         const struct kg_jinja_args *args)
{
    (void)args;
    return end_of(out, j, in, false);
}

/* As Python's reversed(), which takes no generator; a character of markup is markup. */
static kg_status f_last(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                        const struct kg_jinja_args *args)
{
    (void)args;
    if (in->type == KG_JV_LIST && in->u.list->kind == KG_JV_GENERATOR)
        return kg_jinja_fail(j, "expected a list, found a generator: add |list");
    KG_TRY(end_of(out, j, in, true));
    out->safe = out->safe || (in->safe && out->type == KG_JV_TEXT);
    return KG_OK;
}

static kg_status f_reverse(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                           const struct kg_jinja_args *args)
{
    bool is_spent = in->type == KG_JV_LIST && in->u.list->kind == KG_JV_GENERATOR;
    const struct kg_jv_list *items;
    size_t mark = j->out->len;

    (void)args;
    KG_TRY(kg_jv_iterate(&items, j, in));
    if (in->type == KG_JV_TEXT) {
        for (size_t i = items->n; i-- > 0;)
            KG_TRY(kg_jv_put(j, &items->items[i]));
        KG_TRY(kg_jinja_cut(out, j, mark));
        out->safe = in->safe;
        return KG_OK;
    }
    KG_TRY(kg_jv_list_new(out, j, items->n, is_spent ? KG_JV_PLAIN : KG_JV_GENERATOR));
    for (size_t i = items->n; i-- > 0;)
        KG_TRY(kg_jv_push(j, out, &items->items[i]));
    return KG_OK;
}

static kg_status f_items(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                         const struct kg_jinja_args *args)
{
    struct kg_jv_text name = {"items", 5};

    if (in->type == KG_JV_UNDEFINED)
        return kg_jv_list_new(out, j, 0, KG_JV_GENERATOR);
    if (in->type != KG_JV_DICT || in->u.dict->is_namespace)
        return kg_jinja_fail(j, "expected an object, found %s", kg_jv_type_name(in));
    KG_TRY(kg_jinja_find(kg_jinja_dict_methods, name)->run(out, j, in, args));
    out->u.list->kind = KG_JV_GENERATOR;
    return KG_OK;
}

static kg_status f_join(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                        const struct kg_jinja_args *args)
{
    const struct kg_jv_list *items;
    size_t mark = j->out->len;

    KG_TRY(kg_jv_iterate(&items, j, in));
    for (size_t i = 0; i < items->n; i++) {
        struct kg_jv v = items->items[i];

        if (i && args->by[0])
            KG_TRY(kg_jv_put(j, args->by[0]));
        if (args->by[1])
            KG_TRY(kg_jinja_path(&v, j, &items->items[i], args->by[1]));
        KG_TRY(kg_jv_put(j, &v));
    }
    return kg_jinja_cut(out, j, mark);
}

static kg_status f_batch(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                         const struct kg_jinja_args *args)
{
    const struct kg_jv_list *items;
    struct kg_jv row = {0};
    int64_t width;

    if (!kg_jv_as_int(&width, args->by[0]) || width < 1)
        return kg_jinja_fail(j, "expected a length of rows of at least 1");
    KG_TRY(kg_jv_iterate(&items, j, in));
    KG_TRY(kg_jv_list_new(out, j, 0, KG_JV_GENERATOR));
    for (size_t i = 0; i < items->n; i++) {
        if (i % (size_t)width == 0) {
            KG_TRY(kg_jv_list_new(&row, j, 0, KG_JV_PLAIN));
            KG_TRY(kg_jv_push(j, out, &row));
        }
        KG_TRY(kg_jv_push(j, &row, &items->items[i]));
    }
    while (row.u.list && args->by[1] && row.u.list->n < (size_t)width)
        KG_TRY(kg_jv_push(j, &row, args->by[1]));
    return KG_OK;
}

static kg_status f_sum(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                       const struct kg_jinja_args *args)
{
    const struct kg_jv_list *items;

    KG_TRY(kg_jv_iterate(&items, j, in));
    *out = args->by[1] ? *args->by[1] : kg_jv_int(0);
    for (size_t i = 0; i < items->n; i++) {
        struct kg_jv v = items->items[i];
        struct kg_jv sum = *out;

        if (args->by[0])
            KG_TRY(kg_jinja_path(&v, j, &items->items[i], args->by[0]));
        KG_TRY(kg_jinja_binary(out, j, KG_JT_ADD, &sum, &v));
    }
    return KG_OK;
}

/* ---- order ---- */

struct order {
    const struct kg_jv *attribute; /* or NULL */
    bool case_sensitive;
    bool reverse;
};

static kg_status sort_key(struct kg_jv *key, struct kg_jinja *j, const struct kg_jv *v,
                          const struct order *o)
{
    const struct kg_jv from = *v;
    struct kg_jinja_args none = {0};

    *key = from;
    if (o->attribute)
        KG_TRY(kg_jinja_path(key, j, &from, o->attribute));
    if (key->type == KG_JV_TEXT && !o->case_sensitive) {
        struct kg_jv text = *key;
        struct kg_jv_text lower = {"lower", 5};

        return kg_jinja_call_row(key, j, kg_jinja_find_filter(lower), &text, &none);
    }
    return KG_OK;
}

/* A stable merge of two sorted halves of rows (key, member). */
static kg_status merge(struct kg_jinja *j, struct kg_jv (*rows)[2], struct kg_jv (*to)[2],
                       const size_t ends[3], bool reverse)
{
    size_t a = ends[0];
    size_t b = ends[1];

    for (size_t i = ends[0]; i < ends[2]; i++) {
        int sign = -1;

        if (a < ends[1] && b < ends[2])
            KG_TRY(kg_jv_compare(&sign, j, &rows[a][0], &rows[b][0]));
        else
            sign = a < ends[1] ? 0 : reverse ? -1 : 1;
        sign = reverse ? -sign : sign;
        memcpy(to[i], sign > 0 ? rows[b++] : rows[a++], sizeof to[i]);
    }
    return KG_OK;
}

static kg_status sort_rows(struct kg_jinja *j, struct kg_jv (**rows)[2], size_t n,
                           bool reverse)
{
    struct kg_jv(*from)[2] = *rows;
    struct kg_jv(*to)[2] = kg_pool_alloc(&j->pool, n + 1, sizeof *to, j->err);

    if (!to)
        return j->err->code;
    for (size_t width = 1; width < n; width *= 2) {
        struct kg_jv(*swap)[2] = from;

        for (size_t at = 0; at < n; at += 2 * width) {
            size_t mid = at + width < n ? at + width : n;
            size_t ends[3] = {at, mid, mid + width < n ? mid + width : n};

            KG_TRY(merge(j, from, to, ends, reverse));
        }
        from = to;
        to = swap;
    }
    *rows = from;
    return KG_OK;
}

static kg_status sort_by(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                         const struct order *o)
{
    const struct kg_jv_list *items;
    struct kg_jv(*rows)[2];

    KG_TRY(kg_jv_iterate(&items, j, in));
    rows = kg_pool_alloc(&j->pool, items->n + 1, sizeof *rows, j->err);
    if (!rows)
        return j->err->code;
    for (size_t i = 0; i < items->n; i++) {
        KG_TRY(sort_key(&rows[i][0], j, &items->items[i], o));
        rows[i][1] = items->items[i];
    }
    KG_TRY(sort_rows(j, &rows, items->n, o->reverse));
    KG_TRY(kg_jv_list_new(out, j, items->n, KG_JV_PLAIN));
    for (size_t i = 0; i < items->n; i++)
        KG_TRY(kg_jv_push(j, out, &rows[i][1]));
    return KG_OK;
}

static bool flag(const struct kg_jv *v) { return v && kg_jv_truth(v); }

static kg_status f_sort(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                        const struct kg_jinja_args *args)
{
    struct order o = {args->by[2], flag(args->by[1]), flag(args->by[0])};

    return sort_by(out, j, in, &o);
}

static kg_status f_dictsort(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                            const struct kg_jinja_args *args)
{
    struct kg_jv column = kg_jv_int(args->by[1] && kg_jv_is_text(args->by[1], "value"));
    struct order o = {&column, flag(args->by[0]), flag(args->by[2])};
    struct kg_jv pairs;

    if (in->type == KG_JV_UNDEFINED)
        return kg_jinja_fail(j, "expected an object, '%.*s' is undefined",
                             (int)(in->u.text.n > 80 ? 80 : in->u.text.n),
                             in->u.text.bytes);
    KG_TRY(f_items(&pairs, j, in, args));
    return sort_by(out, j, &pairs, &o);
}

static kg_status extreme(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                         const struct kg_jinja_args *args, int wanted)
{
    struct order o = {args->by[1], flag(args->by[0]), false};
    const struct kg_jv_list *items;
    struct kg_jv best = {0};

    KG_TRY(kg_jv_iterate(&items, j, in));
    *out = kg_jv_undefined((struct kg_jv_text){"a member of an empty list", 25});
    for (size_t i = 0; i < items->n; i++) {
        struct kg_jv key;
        int sign = wanted;

        KG_TRY(sort_key(&key, j, &items->items[i], &o));
        if (i)
            KG_TRY(kg_jv_compare(&sign, j, &key, &best));
        if ((wanted < 0 && sign >= 0) || (wanted > 0 && sign <= 0))
            continue;
        best = key;
        *out = items->items[i];
    }
    return KG_OK;
}

static kg_status f_min(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                       const struct kg_jinja_args *args)
{
    return extreme(out, j, in, args, -1);
}

static kg_status f_max(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                       const struct kg_jinja_args *args)
{
    return extreme(out, j, in, args, 1);
}

static kg_status f_unique(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                          const struct kg_jinja_args *args)
{
    struct order o = {args->by[1], flag(args->by[0]), false};
    const struct kg_jv_list *items;
    struct kg_jv seen;

    KG_TRY(kg_jv_iterate(&items, j, in));
    KG_TRY(kg_jv_list_new(out, j, 0, KG_JV_GENERATOR));
    KG_TRY(kg_jv_list_new(&seen, j, 0, KG_JV_PLAIN));
    for (size_t i = 0; i < items->n; i++) {
        struct kg_jv key;
        bool is;

        KG_TRY(sort_key(&key, j, &items->items[i], &o));
        KG_TRY(kg_jv_contains(&is, j, &seen, &key));
        if (is)
            continue;
        KG_TRY(kg_jv_push(j, &seen, &key));
        KG_TRY(kg_jv_push(j, out, &items->items[i]));
    }
    return KG_OK;
}

/* ---- choosing and mapping ---- */

/* The arguments after the first `skip`. */
static struct kg_jinja_args args_from(const struct kg_jinja_args *args, size_t skip)
{
    struct kg_jinja_args rest = *args;
    size_t n = skip < args->n ? skip : args->n;

    if (n > 0)
        rest.pos += n; /* with named arguments only, pos is NULL */
    rest.n -= n;
    return rest;
}

/* select(test, ...), selectattr(attribute, test, ...): the members for which the test
 * (or, without one, truth) is as wanted. */
static kg_status choose(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                        const struct kg_jinja_args *args, bool by_attr, bool wanted)
{
    const struct kg_jinja_row *test = NULL;
    const struct kg_jv_list *items;
    size_t at = by_attr ? 1 : 0;

    if (!kg_jv_truth(in)) /* also for none; arguments are not checked then */
        return kg_jv_list_new(out, j, 0, KG_JV_GENERATOR);
    if (args->n < at)
        return kg_jinja_fail(j, "expected the name of an attribute, found none");
    if (args->n > at) {
        if (args->pos[at].type == KG_JV_TEXT)
            test = kg_jinja_find(kg_jinja_tests, args->pos[at].u.text);
        if (!test)
            return kg_jinja_fail(j, "expected the name of a test, found another %s",
                                 kg_jv_type_name(&args->pos[at]));
    }
    KG_TRY(kg_jv_iterate(&items, j, in));
    KG_TRY(kg_jv_list_new(out, j, 0, KG_JV_GENERATOR));
    for (size_t i = 0; i < items->n; i++) {
        struct kg_jinja_args rest = args_from(args, at + 1);
        struct kg_jv v = items->items[i];

        if (by_attr)
            KG_TRY(kg_jinja_path(&v, j, &items->items[i], &args->pos[0]));
        struct kg_jv is = v;
        if (test)
            KG_TRY(kg_jinja_call_row(&is, j, test, &v, &rest));
        if (kg_jv_truth(&is) == wanted)
            KG_TRY(kg_jv_push(j, out, &items->items[i]));
    }
    return KG_OK;
}

#define CHOOSE(name, by_attr, wanted)                                                    \
    static kg_status name(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in, \
                          const struct kg_jinja_args *args)                              \
    {                                                                                    \
        return choose(out, j, in, args, by_attr, wanted);                                \
    }
CHOOSE(f_select, false, true)
CHOOSE(f_reject, false, false)
CHOOSE(f_selectattr, true, true)
CHOOSE(f_rejectattr, true, false)
#undef CHOOSE

static const struct kg_jv *named(const struct kg_jinja_args *args, const char *name)
{
    for (size_t i = 0; i < args->n_named; i++)
        if (args->names[i].n == strlen(name) &&
            memcmp(args->names[i].bytes, name, args->names[i].n) == 0)
            return &args->named[i];
    return NULL;
}

/* map('filter', ...) or map(attribute='a', default=x) */
static kg_status map_one(struct kg_jv *v, struct kg_jinja *j, const struct kg_jv *item,
                         const struct kg_jinja_args *args)
{
    const struct kg_jv *attribute = args->n ? NULL : named(args, "attribute");
    const struct kg_jv *otherwise = named(args, "default");
    const struct kg_jinja_row *row = NULL;
    struct kg_jinja_args rest = args_from(args, 1);

    if (attribute) {
        KG_TRY(kg_jinja_path(v, j, item, attribute));
        if (v->type == KG_JV_UNDEFINED && otherwise)
            *v = *otherwise;
        return KG_OK;
    }
    if (args->n && args->pos[0].type == KG_JV_TEXT)
        row = kg_jinja_find_filter(args->pos[0].u.text);
    if (!row)
        return kg_jinja_fail(j, "expected the name of a filter, or attribute=");
    KG_TRY(kg_jinja_deeper(j));
    KG_TRY(kg_jinja_call_row(v, j, row, item, &rest));
    j->depth--;
    return KG_OK;
}

static kg_status f_map(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                       const struct kg_jinja_args *args)
{
    const struct kg_jv_list *items;

    if (!kg_jv_truth(in)) /* as in choose() */
        return kg_jv_list_new(out, j, 0, KG_JV_GENERATOR);
    KG_TRY(kg_jv_iterate(&items, j, in));
    KG_TRY(kg_jv_list_new(out, j, 0, KG_JV_GENERATOR));
    for (size_t i = 0; i < items->n; i++) {
        struct kg_jv v;

        KG_TRY(map_one(&v, j, &items->items[i], args));
        KG_TRY(kg_jv_push(j, out, &v));
    }
    return KG_OK;
}

const struct kg_jinja_row kg_jinja_list_filters[] = {
    {"batch", "linecount,fill_with", 1, f_batch},
    {"dictsort", "case_sensitive,by,reverse", 0, f_dictsort},
    {"first", "", 0, f_first},
    {"items", "", 0, f_items},
    {"join", "d,attribute", 0, f_join},
    {"last", "", 0, f_last},
    {"list", "", 0, f_list},
    {"map", NULL, 0, f_map},
    {"max", "case_sensitive,attribute", 0, f_max},
    {"min", "case_sensitive,attribute", 0, f_min},
    {"reject", NULL, 0, f_reject},
    {"rejectattr", NULL, 0, f_rejectattr},
    {"reverse", "", 0, f_reverse},
    {"select", NULL, 0, f_select},
    {"selectattr", NULL, 0, f_selectattr},
    {"sort", "reverse,case_sensitive,attribute", 0, f_sort},
    {"sum", "attribute,start", 0, f_sum},
    {"unique", "case_sensitive,attribute", 0, f_unique},
    {0},
};
