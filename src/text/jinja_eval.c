/* Runs the tree: statements write to the output, expressions give values.
 *
 * Scopes are a chain of small tables in the pool. A loop, a macro and a block that
 * captures text open one; `if` and `set` do not. A macro keeps the scope in which it was
 * defined.
 */
#include "text/jinja_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static kg_status eval_node(struct kg_jv *out, struct kg_jinja *j,
                           const struct kg_jinja_node *n) KG_MUST_CHECK;

kg_status kg_jinja_fail(struct kg_jinja *j, const char *fmt, ...)
{
    char message[KG_ERR_MESSAGE_BYTES];
    va_list args;

    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return kg_fail(j->err, KG_EFORMAT, "%s", message);
}

kg_status kg_jinja_pay(struct kg_jinja *j, size_t n)
{
    if (n > (size_t)j->steps)
        return kg_jinja_fail(j, "expected a rendering of at most %lld steps, found more",
                             (long long)j->limits.steps);
    j->steps -= (int64_t)n;
    return KG_OK;
}

kg_status kg_jinja_deeper(struct kg_jinja *j)
{
    if (j->depth >= j->limits.depth)
        return kg_jinja_fail(j, "expected calls and values at most %d deep, found more",
                             j->limits.depth);
    j->depth++;
    return KG_OK;
}

kg_status kg_jinja_emit(struct kg_jinja *j, const char *bytes, size_t n)
{
    if (n > j->limits.output_bytes - (j->out->len - j->out_begin))
        return kg_jinja_fail(j, "expected a rendering of at most %zu bytes, found more",
                             j->limits.output_bytes);
    KG_TRY(kg_jinja_pay(j, n / 64));
    return kg_str_append(j->out, bytes, n, j->err);
}

kg_status kg_jinja_cut(struct kg_jv *out, struct kg_jinja *j, size_t mark)
{
    size_t n = j->out->len - mark;
    char *bytes = kg_pool_alloc(&j->pool, n + 1, 1, j->err);

    if (!bytes)
        return j->err->code;
    if (n)
        memcpy(bytes, j->out->data + mark, n);
    j->out->len = mark;
    if (j->out->data)
        j->out->data[mark] = 0;
    *out = kg_jv_text(bytes, n);
    return KG_OK;
}

/* ---- scopes ---- */

static kg_status scope_push(struct kg_jinja *j, struct kg_jinja_scope *up)
{
    struct kg_jinja_scope *scope = kg_pool_alloc(&j->pool, 1, sizeof *scope, j->err);

    if (!scope)
        return j->err->code;
    scope->up = up;
    j->scope = scope;
    return KG_OK;
}

static kg_status scope_set(struct kg_jinja *j, struct kg_jv_text name,
                           const struct kg_jv *value)
{
    struct kg_jv key = kg_jv_text(name.bytes, name.n);

    return kg_jv_dict_set(j, &j->scope->vars, &key, value);
}

static bool same(struct kg_jv_text a, struct kg_jv_text b)
{
    return a.n == b.n && memcmp(a.bytes, b.bytes, a.n) == 0;
}

static kg_status look_up(struct kg_jv *out, struct kg_jinja *j, struct kg_jv_text name)
{
    for (const struct kg_jinja_scope *s = j->scope; s; s = s->up) {
        KG_TRY(kg_jinja_pay(j, s->vars.n / 4));
        for (size_t i = 0; i < s->vars.n; i++)
            if (same(s->vars.keys[i].u.text, name)) {
                *out = s->vars.values[i];
                return KG_OK;
            }
    }
    const struct kg_jinja_row *row = kg_jinja_find(kg_jinja_functions, name);
    *out = kg_jv_undefined(name);
    if (!row)
        return KG_OK;
    out->type = KG_JV_CALLABLE;
    out->u.callable = kg_pool_alloc(&j->pool, 1, sizeof *out->u.callable, j->err);
    if (!out->u.callable)
        return j->err->code;
    out->u.callable->row = row;
    return KG_OK;
}

/* ---- assigning ---- */

static kg_status assign(struct kg_jinja *j, const struct kg_jinja_node *target,
                        const struct kg_jv *value)
{
    const struct kg_jv_list *items;
    size_t i = 0;

    if (target->kind == KG_JN_NAME)
        return scope_set(j, target->value.u.text, value);
    if (target->kind == KG_JN_ATTR) {
        struct kg_jv ns;
        struct kg_jv key = target->value;

        KG_TRY(eval_node(&ns, j, target->a));
        if (ns.type != KG_JV_DICT || !ns.u.dict->is_namespace)
            return kg_jinja_fail(j, "expected a namespace to assign '%.*s' in, found %s",
                                 (int)key.u.text.n, key.u.text.bytes,
                                 kg_jv_type_name(&ns));
        KG_TRY(kg_jinja_check_name(j, &key));
        return kg_jv_dict_set(j, ns.u.dict, &key, value);
    }
    KG_TRY(kg_jv_iterate(&items, j, value));
    for (target = target->list; target; target = target->next, i++) {
        if (i < items->n)
            KG_TRY(scope_set(j, target->value.u.text, &items->items[i]));
    }
    if (i != items->n)
        return kg_jinja_fail(j, "expected %zu values to assign, found %zu", i, items->n);
    return KG_OK;
}

/* ---- expressions ---- */

static kg_status eval_list(struct kg_jv *out, struct kg_jinja *j,
                           const struct kg_jinja_node *n)
{
    KG_TRY(kg_jv_list_new(out, j, 0, n->kind == KG_JN_TUPLE ? KG_JV_TUPLE : KG_JV_PLAIN));
    for (const struct kg_jinja_node *e = n->list; e; e = e->next) {
        struct kg_jv v;

        KG_TRY(eval_node(&v, j, e));
        KG_TRY(kg_jv_push(j, out, &v));
    }
    return KG_OK;
}

static kg_status eval_dict(struct kg_jv *out, struct kg_jinja *j,
                           const struct kg_jinja_node *n)
{
    KG_TRY(kg_jv_dict_new(out, j));
    for (const struct kg_jinja_node *e = n->list; e; e = e->next) {
        struct kg_jv key;
        struct kg_jv value;

        KG_TRY(eval_node(&key, j, e->a));
        KG_TRY(eval_node(&value, j, e->b));
        KG_TRY(kg_jv_dict_set(j, out->u.dict, &key, &value));
    }
    return KG_OK;
}

static kg_status compare_one(bool *holds, struct kg_jinja *j, int op,
                             const struct kg_jv *a, const struct kg_jv *b)
{
    int sign;

    if (op == KG_JT_EQ || op == KG_JT_NE) {
        KG_TRY(kg_jv_equal(holds, j, a, b));
        *holds = *holds == (op == KG_JT_EQ);
        return KG_OK;
    }
    if (op == KG_JT_IN || op == KG_JT_NOT_IN) {
        KG_TRY(kg_jv_contains(holds, j, b, a));
        *holds = *holds == (op == KG_JT_IN);
        return KG_OK;
    }
    KG_TRY(kg_jv_compare(&sign, j, a, b));
    *holds = op == KG_JT_GT   ? sign > 0
             : op == KG_JT_GE ? sign >= 0
             : op == KG_JT_LT ? sign < 0
                              : sign <= 0;
    return KG_OK;
}

/* a < b < c is a < b and b < c. */
static kg_status eval_compare(struct kg_jv *out, struct kg_jinja *j,
                              const struct kg_jinja_node *n)
{
    struct kg_jv left;
    bool holds = true;

    KG_TRY(eval_node(&left, j, n->a));
    for (const struct kg_jinja_node *e = n->list; e && holds; e = e->next) {
        struct kg_jv right;

        KG_TRY(eval_node(&right, j, e->a));
        KG_TRY(compare_one(&holds, j, e->op, &left, &right));
        left = right;
    }
    *out = kg_jv_bool(holds);
    return KG_OK;
}

static kg_status eval_binary(struct kg_jv *out, struct kg_jinja *j,
                             const struct kg_jinja_node *n)
{
    struct kg_jv a;
    struct kg_jv b;

    KG_TRY(eval_node(&a, j, n->a));
    KG_TRY(eval_node(&b, j, n->b));
    return kg_jinja_binary(out, j, n->op, &a, &b);
}

static kg_status eval_sign(struct kg_jv *out, struct kg_jinja *j,
                           const struct kg_jinja_node *n)
{
    struct kg_jv zero = kg_jv_int(0);
    struct kg_jv a;

    KG_TRY(eval_node(&a, j, n->a));
    if (!kg_jv_is_number(&a))
        return kg_jinja_fail(j, "expected a number after a sign, found %s",
                             kg_jv_type_name(&a));
    if (a.type == KG_JV_REAL) {
        *out = kg_jv_real(n->op == KG_JT_SUB ? -a.u.real : a.u.real);
        return KG_OK;
    }
    return kg_jinja_binary(out, j, n->op, &zero, &a);
}

static kg_status eval_slice(struct kg_jv *out, struct kg_jinja *j,
                            const struct kg_jinja_node *n)
{
    const struct kg_jinja_node *of[3] = {n->b, n->c, n->body};
    struct kg_jv bounds[3];
    struct kg_jv a;

    KG_TRY(eval_node(&a, j, n->a));
    for (int i = 0; i < 3; i++) {
        bounds[i] = kg_jv_none();
        if (of[i])
            KG_TRY(eval_node(&bounds[i], j, of[i]));
    }
    return kg_jinja_slice(out, j, &a, bounds);
}

/* The arguments of a call, in lists of the pool. */
struct arguments {
    struct kg_jv pos;
    struct kg_jv names;
    struct kg_jv named;
};

static kg_status spread(struct arguments *to, struct kg_jinja *j,
                        const struct kg_jinja_node *e, const struct kg_jv *v)
{
    const struct kg_jv_list *items;

    if (!e->flag) {
        KG_TRY(kg_jv_iterate(&items, j, v));
        for (size_t i = 0; i < items->n; i++)
            KG_TRY(kg_jv_push(j, &to->pos, &items->items[i]));
        return KG_OK;
    }
    if (v->type != KG_JV_DICT)
        return kg_jinja_fail(j, "expected an object after **, found %s",
                             kg_jv_type_name(v));
    for (size_t i = 0; i < v->u.dict->n; i++) {
        if (v->u.dict->keys[i].type != KG_JV_TEXT)
            return kg_jinja_fail(j, "expected text as keys after **, found %s",
                                 kg_jv_type_name(&v->u.dict->keys[i]));
        KG_TRY(kg_jv_push(j, &to->names, &v->u.dict->keys[i]));
        KG_TRY(kg_jv_push(j, &to->named, &v->u.dict->values[i]));
    }
    return KG_OK;
}

static kg_status eval_arguments(struct kg_jinja_args *args, struct kg_jinja *j,
                                const struct kg_jinja_node *list)
{
    struct arguments to;
    struct kg_jv_text *names;

    memset(args, 0, sizeof *args);
    if (!list)
        return KG_OK;
    KG_TRY(kg_jv_list_new(&to.pos, j, 0, KG_JV_TUPLE));
    KG_TRY(kg_jv_list_new(&to.names, j, 0, KG_JV_TUPLE));
    KG_TRY(kg_jv_list_new(&to.named, j, 0, KG_JV_TUPLE));
    for (const struct kg_jinja_node *e = list; e; e = e->next) {
        bool is_plain = e->kind != KG_JN_NAMED && e->kind != KG_JN_SPREAD;
        struct kg_jv v;

        KG_TRY(eval_node(&v, j, is_plain ? e : e->a));
        if (e->kind == KG_JN_SPREAD)
            KG_TRY(spread(&to, j, e, &v));
        else
            KG_TRY(kg_jv_push(j, is_plain ? &to.pos : &to.named, &v));
        if (e->kind == KG_JN_NAMED)
            KG_TRY(kg_jv_push(j, &to.names, &e->value));
    }
    args->pos = to.pos.u.list->items;
    args->n = to.pos.u.list->n;
    args->named = to.named.u.list->items;
    args->n_named = to.named.u.list->n;
    names = kg_pool_alloc(&j->pool, args->n_named + 1, sizeof *names, j->err);
    if (!names)
        return j->err->code;
    for (size_t i = 0; i < args->n_named; i++)
        names[i] = to.names.u.list->items[i].u.text;
    args->names = names;
    return KG_OK;
}

/* A filter or a test: a row over a value. */
static kg_status eval_row(struct kg_jv *out, struct kg_jinja *j,
                          const struct kg_jinja_node *n)
{
    bool is_test = n->kind == KG_JN_TEST;
    struct kg_jinja_args args;
    struct kg_jv in;

    KG_TRY(eval_node(&in, j, n->a));
    if (!n->row)
        return kg_jinja_fail(j, "expected the name of a %s, found '%.*s'",
                             is_test ? "test" : "filter", (int)n->value.u.text.n,
                             n->value.u.text.bytes);
    KG_TRY(eval_arguments(&args, j, n->list));
    KG_TRY(kg_jinja_call_row(out, j, n->row, &in, &args));
    if (is_test)
        *out = kg_jv_bool(kg_jv_truth(out) != n->flag);
    return KG_OK;
}

static kg_status eval_call(struct kg_jv *out, struct kg_jinja *j,
                           const struct kg_jinja_node *n)
{
    struct kg_jinja_args args;
    struct kg_jv f;

    KG_TRY(eval_node(&f, j, n->a));
    KG_TRY(eval_arguments(&args, j, n->list));
    return kg_jinja_call(out, j, &f, &args);
}

static kg_status eval_logic(struct kg_jv *out, struct kg_jinja *j,
                            const struct kg_jinja_node *n)
{
    KG_TRY(eval_node(out, j, n->a));
    if (n->kind == KG_JN_NOT)
        *out = kg_jv_bool(!kg_jv_truth(out));
    else if (kg_jv_truth(out) == (n->kind == KG_JN_AND))
        return eval_node(out, j, n->b);
    return KG_OK;
}

static kg_status eval_cond(struct kg_jv *out, struct kg_jinja *j,
                           const struct kg_jinja_node *n)
{
    struct kg_jv cond;

    KG_TRY(eval_node(&cond, j, n->b));
    if (kg_jv_truth(&cond))
        return eval_node(out, j, n->a);
    *out = kg_jv_undefined((struct kg_jv_text){"the missing else", 16});
    return n->c ? eval_node(out, j, n->c) : KG_OK;
}

static kg_status eval_member(struct kg_jv *out, struct kg_jinja *j,
                             const struct kg_jinja_node *n)
{
    struct kg_jv a;
    struct kg_jv key;

    KG_TRY(eval_node(&a, j, n->a));
    if (n->kind == KG_JN_ATTR)
        return kg_jinja_attr(out, j, &a, n->value.u.text);
    KG_TRY(eval_node(&key, j, n->b));
    return kg_jinja_item(out, j, &a, &key);
}

static kg_status eval_open(struct kg_jv *out, struct kg_jinja *j,
                           const struct kg_jinja_node *n)
{
    switch (n->kind) {
    case KG_JN_CONST:
        *out = n->value;
        return KG_OK;
    case KG_JN_CAPTURED:
        *out = j->captured;
        return KG_OK;
    case KG_JN_NAME:
        return look_up(out, j, n->value.u.text);
    case KG_JN_ATTR:
    case KG_JN_ITEM:
        return eval_member(out, j, n);
    case KG_JN_SLICE:
        return eval_slice(out, j, n);
    case KG_JN_CALL:
        return eval_call(out, j, n);
    case KG_JN_FILTER:
    case KG_JN_TEST:
        return eval_row(out, j, n);
    case KG_JN_BINARY:
        return eval_binary(out, j, n);
    case KG_JN_COMPARE:
        return eval_compare(out, j, n);
    case KG_JN_AND:
    case KG_JN_OR:
    case KG_JN_NOT:
        return eval_logic(out, j, n);
    case KG_JN_SIGN:
        return eval_sign(out, j, n);
    case KG_JN_COND:
        return eval_cond(out, j, n);
    case KG_JN_LIST:
    case KG_JN_TUPLE:
        return eval_list(out, j, n);
    case KG_JN_DICT:
        return eval_dict(out, j, n);
    default:
        return kg_jinja_fail(j, "expected an expression, found a statement");
    }
}

/* The innermost node that fails gives the place. */
static kg_status placed(struct kg_jinja *j, const struct kg_jinja_node *n,
                        kg_status status)
{
    if (status == KG_OK || j->placed)
        return status;
    j->placed = true;
    return kg_err_prefix(j->err, "%s line %u column %u", j->t->where, n->line, n->column);
}

static kg_status eval_node(struct kg_jv *out, struct kg_jinja *j,
                           const struct kg_jinja_node *n)
{
    kg_status status = kg_jinja_pay(j, 1);

    if (status == KG_OK)
        status = kg_jinja_deeper(j);
    if (status == KG_OK) {
        status = eval_open(out, j, n);
        j->depth--;
    }
    return placed(j, n, status);
}

/* ---- statements ---- */

/* Runs a body in a new scope; its output becomes a value. */
static kg_status capture(struct kg_jv *out, struct kg_jinja *j,
                         const struct kg_jinja_node *body)
{
    struct kg_jinja_scope *scope = j->scope;
    size_t mark = j->out->len;

    KG_TRY(scope_push(j, scope));
    KG_TRY(kg_jinja_run(j, body));
    j->scope = scope;
    return kg_jinja_cut(out, j, mark);
}

static kg_status run_captured(struct kg_jv *out, struct kg_jinja *j,
                              const struct kg_jinja_node *n)
{
    struct kg_jv before = j->captured;

    KG_TRY(capture(out, j, n->body));
    if (!n->b)
        return KG_OK;
    j->captured = *out;
    KG_TRY(eval_node(out, j, n->b));
    j->captured = before;
    return KG_OK;
}

static kg_status run_if(struct kg_jinja *j, const struct kg_jinja_node *n)
{
    for (;;) {
        struct kg_jv cond;

        KG_TRY(eval_node(&cond, j, n->a));
        if (kg_jv_truth(&cond))
            return kg_jinja_run(j, n->body);
        if (!n->other || n->other->kind != KG_JN_IF || n->other->next)
            return kg_jinja_run(j, n->other);
        n = n->other;
    }
}

static kg_status set_target(struct kg_jinja *j, const struct kg_jinja_node *n)
{
    struct kg_jv v;

    KG_TRY(eval_node(&v, j, n->b));
    return assign(j, n->a, &v);
}

static kg_status run_with(struct kg_jinja *j, const struct kg_jinja_node *n)
{
    struct kg_jinja_scope *scope = j->scope;

    KG_TRY(scope_push(j, scope));
    struct kg_jinja_scope *inner = j->scope;
    for (const struct kg_jinja_node *e = n->list; e; e = e->next) {
        struct kg_jv v;

        j->scope = scope; /* values do not see each other */
        KG_TRY(eval_node(&v, j, e->b));
        j->scope = inner;
        KG_TRY(assign(j, e->a, &v));
    }
    KG_TRY(kg_jinja_run(j, n->body));
    j->scope = scope;
    return KG_OK;
}

static kg_status make_macro(struct kg_jv *out, struct kg_jinja *j,
                            const struct kg_jinja_node *n)
{
    out->type = KG_JV_CALLABLE;
    out->u.callable = kg_pool_alloc(&j->pool, 1, sizeof *out->u.callable, j->err);
    if (!out->u.callable)
        return j->err->code;
    out->u.callable->macro = n;
    out->u.callable->scope = j->scope;
    return KG_OK;
}

/* {% call f(x) %}: f gets the body as its caller(). */
static kg_status run_call_block(struct kg_jinja *j, const struct kg_jinja_node *n)
{
    struct kg_jinja_args args;
    struct kg_jv f;
    struct kg_jv caller;
    struct kg_jv out;

    KG_TRY(eval_node(&f, j, n->a->a));
    KG_TRY(eval_arguments(&args, j, n->a->list));
    KG_TRY(make_macro(&caller, j, n));
    if (f.type != KG_JV_CALLABLE || !f.u.callable->macro)
        return kg_jinja_fail(j, "expected a macro after call, found %s",
                             kg_jv_type_name(&f));
    args.by[0] = &caller;
    KG_TRY(kg_jinja_run_macro(&out, j, f.u.callable, &args));
    return kg_jv_put(j, &out);
}

static const struct kg_jv *named(const struct kg_jinja_args *args, struct kg_jv_text name)
{
    for (size_t i = 0; i < args->n_named; i++)
        if (same(args->names[i], name))
            return &args->named[i];
    return NULL;
}

/* Sets a macro's parameters in the current scope. Defaults see earlier parameters. */
static kg_status bind_parameters(struct kg_jinja *j, const struct kg_jinja_node *macro,
                                 const struct kg_jinja_args *args, size_t *n,
                                 size_t *used)
{
    for (const struct kg_jinja_node *p = macro->list; p; p = p->next, (*n)++) {
        const struct kg_jv *given = named(args, p->value.u.text);
        struct kg_jv v = kg_jv_undefined(p->value.u.text);

        if (given && *n < args->n)
            return kg_jinja_fail(j, "expected parameter '%.*s' once, found it twice",
                                 (int)p->value.u.text.n, p->value.u.text.bytes);
        *used += given != NULL;
        if (given || *n < args->n)
            v = given ? *given : args->pos[*n];
        else if (p->a)
            KG_TRY(eval_node(&v, j, p->a));
        KG_TRY(scope_set(j, p->value.u.text, &v));
    }
    return KG_OK;
}

static bool is_parameter(const struct kg_jinja_node *macro, struct kg_jv_text name)
{
    for (const struct kg_jinja_node *p = macro->list; p; p = p->next)
        if (same(p->value.u.text, name))
            return true;
    return false;
}

/* Sets varargs and kwargs to the remaining arguments; a macro without them takes none. */
static kg_status bind_rest(struct kg_jinja *j, const struct kg_jinja_node *macro,
                           const struct kg_jinja_args *args, size_t n, size_t used)
{
    struct kg_jv rest;

    if (macro->uses & KG_JN_USES_VARARGS) {
        KG_TRY(kg_jv_list_new(&rest, j, 0, KG_JV_TUPLE));
        for (size_t i = n; i < args->n; i++)
            KG_TRY(kg_jv_push(j, &rest, &args->pos[i]));
        KG_TRY(scope_set(j, (struct kg_jv_text){"varargs", 7}, &rest));
    } else if (args->n > n)
        return kg_jinja_fail(j, "expected at most %zu arguments of '%.*s', found %zu", n,
                             (int)macro->value.u.text.n, macro->value.u.text.bytes,
                             args->n);
    if (macro->uses & KG_JN_USES_KWARGS) {
        KG_TRY(kg_jv_dict_new(&rest, j));
        for (size_t i = 0; i < args->n_named; i++) {
            struct kg_jv key = kg_jv_text(args->names[i].bytes, args->names[i].n);

            if (!is_parameter(macro, args->names[i]))
                KG_TRY(kg_jv_dict_set(j, rest.u.dict, &key, &args->named[i]));
        }
        return scope_set(j, (struct kg_jv_text){"kwargs", 6}, &rest);
    }
    if (used < args->n_named)
        return kg_jinja_fail(j, "expected the parameters of '%.*s', found another name",
                             (int)macro->value.u.text.n, macro->value.u.text.bytes);
    return KG_OK;
}

/* args->by[0]: the body of a call block, or NULL */
kg_status kg_jinja_run_macro(struct kg_jv *out, struct kg_jinja *j,
                             const struct kg_jv_callable *macro,
                             const struct kg_jinja_args *args)
{
    struct kg_jinja_scope *scope = j->scope;
    size_t mark = j->out->len;
    size_t n = 0;
    size_t used = 0;

    KG_TRY(kg_jinja_deeper(j));
    KG_TRY(scope_push(j, macro->scope));
    KG_TRY(bind_parameters(j, macro->macro, args, &n, &used));
    KG_TRY(bind_rest(j, macro->macro, args, n, used));
    if (args->by[0])
        KG_TRY(scope_set(j, (struct kg_jv_text){"caller", 6}, args->by[0]));
    KG_TRY(kg_jinja_run(j, macro->macro->body));
    j->scope = scope;
    j->depth--;
    return kg_jinja_cut(out, j, mark);
}

/* ---- loops ---- */

/* The members for which the condition of a loop is true. It is evaluated before the loop
 * starts, so that loop.last and loop.length count only these. */
static kg_status filter_items(const struct kg_jv_list **items, struct kg_jinja *j,
                              const struct kg_jinja_node *n)
{
    struct kg_jinja_scope *scope = j->scope;
    struct kg_jv kept;

    KG_TRY(kg_jv_list_new(&kept, j, 0, KG_JV_PLAIN));
    for (size_t i = 0; i < (*items)->n; i++) {
        struct kg_jv keep;

        KG_TRY(scope_push(j, scope));
        KG_TRY(assign(j, n->a, &(*items)->items[i]));
        KG_TRY(eval_node(&keep, j, n->c));
        if (kg_jv_truth(&keep))
            KG_TRY(kg_jv_push(j, &kept, &(*items)->items[i]));
    }
    j->scope = scope;
    *items = kept.u.list;
    return KG_OK;
}

static kg_status run_passes(struct kg_jinja *j, const struct kg_jinja_node *n,
                            struct kg_jinja_loop *loop)
{
    struct kg_jv self = {.type = KG_JV_LOOP, .u.loop = loop};

    for (loop->i = 0; loop->i < loop->items->n; loop->i++) {
        KG_TRY(kg_jinja_pay(j, 1));
        KG_TRY(scope_push(j, loop->scope));
        KG_TRY(assign(j, n->a, &loop->items->items[loop->i]));
        KG_TRY(scope_set(j, (struct kg_jv_text){"loop", 4}, &self));
        KG_TRY(kg_jinja_run(j, n->body));
        if (j->flow == KG_JINJA_BREAKS)
            break;
        j->flow = KG_JINJA_RUNS;
    }
    j->flow = KG_JINJA_RUNS;
    return KG_OK;
}

kg_status kg_jinja_run_loop(struct kg_jinja *j, const struct kg_jinja_node *n,
                            const struct kg_jv *items, int64_t depth0)
{
    struct kg_jinja_scope *scope = j->scope;
    struct kg_jinja_loop *loop = kg_pool_alloc(&j->pool, 1, sizeof *loop, j->err);

    if (!loop)
        return j->err->code;
    KG_TRY(kg_jv_iterate(&loop->items, j, items));
    if (n->c)
        KG_TRY(filter_items(&loop->items, j, n));
    loop->depth0 = depth0;
    loop->node = n->flag ? n : NULL;
    loop->scope = scope;
    loop->changed = kg_jv_undefined((struct kg_jv_text){"", 0});
    KG_TRY(run_passes(j, n, loop));
    j->scope = scope;
    return loop->items->n == 0 ? kg_jinja_run(j, n->other) : KG_OK;
}

static kg_status run_for(struct kg_jinja *j, const struct kg_jinja_node *n)
{
    struct kg_jv items;

    KG_TRY(eval_node(&items, j, n->b));
    return kg_jinja_run_loop(j, n, &items, 0);
}

/* ---- lists of statements ---- */

static kg_status run_one(struct kg_jinja *j, const struct kg_jinja_node *n)
{
    struct kg_jv v;

    switch (n->kind) {
    case KG_JN_DATA:
        return kg_jinja_emit(j, n->value.u.text.bytes, n->value.u.text.n);
    case KG_JN_OUTPUT:
        KG_TRY(eval_node(&v, j, n->a));
        return kg_jv_put(j, &v);
    case KG_JN_IF:
        return run_if(j, n);
    case KG_JN_FOR:
        return run_for(j, n);
    case KG_JN_SET:
        return set_target(j, n);
    case KG_JN_SET_BLOCK:
        KG_TRY(run_captured(&v, j, n));
        return assign(j, n->a, &v);
    case KG_JN_FILTER_BLOCK:
        KG_TRY(run_captured(&v, j, n));
        return kg_jv_put(j, &v);
    case KG_JN_MACRO:
        KG_TRY(make_macro(&v, j, n));
        return scope_set(j, n->value.u.text, &v);
    case KG_JN_CALL_BLOCK:
        return run_call_block(j, n);
    case KG_JN_WITH:
        return run_with(j, n);
    case KG_JN_GENERATION:
        KG_TRY(capture(&v, j, n->body));
        return kg_jv_put(j, &v);
    case KG_JN_BREAK:
        j->flow = KG_JINJA_BREAKS;
        return KG_OK;
    case KG_JN_CONTINUE:
        j->flow = KG_JINJA_CONTINUES;
        return KG_OK;
    default:
        return kg_jinja_fail(j, "expected a statement, found an expression");
    }
}

kg_status kg_jinja_run(struct kg_jinja *j, const struct kg_jinja_node *list)
{
    KG_TRY(kg_jinja_deeper(j));
    for (; list && j->flow == KG_JINJA_RUNS; list = list->next) {
        KG_TRY(placed(j, list, kg_jinja_pay(j, 1)));
        KG_TRY(placed(j, list, run_one(j, list)));
    }
    j->depth--;
    return KG_OK;
}
