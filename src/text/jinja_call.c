/* Members, operators, calls and the global functions of templates. Filters, tests,
 * methods and functions are rows: a name, parameter names, and a function of a value and
 * arguments. One function binds named and positional arguments for all, as Python does.
 * Values behave as in Python: negative indices count from the end, slices never fail,
 * integer division rounds down, text consists of characters, not bytes. But integers have
 * 64 bits; overflow is an error. A function counts many values before it makes them. */
#include "text/jinja_internal.h"
#include "text/unicode.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- rows ---- */

const struct kg_jinja_row *kg_jinja_find(const struct kg_jinja_row *table,
                                         struct kg_jv_text name)
{
    for (; table->name; table++)
        if (strlen(table->name) == name.n && memcmp(table->name, name.bytes, name.n) == 0)
            return table;
    return NULL;
}

/* The index of a name in "old,new,count"; -1 if it is not listed. */
static int parameter_index(const char *params, struct kg_jv_text name)
{
    size_t n;

    for (int i = 0; *params; i++, params += n + (params[n] == ',')) {
        n = strcspn(params, ",");
        if (n == name.n && memcmp(params, name.bytes, n) == 0)
            return i;
    }
    return -1;
}

static size_t count_parameters(const char *params)
{
    size_t n = *params != 0;

    for (; *params; params++)
        n += *params == ',';
    return n;
}

static kg_status bind(struct kg_jinja *j, const struct kg_jinja_row *row,
                      struct kg_jinja_args *args)
{
    size_t most = count_parameters(row->params);

    memset(args->by, 0, sizeof args->by);
    if (args->n > most)
        return kg_jinja_fail(j, "expected at most %zu arguments of '%s', found %zu", most,
                             row->name, args->n);
    for (size_t i = 0; i < args->n; i++)
        args->by[i] = &args->pos[i];
    for (size_t i = 0; i < args->n_named; i++) {
        int at = parameter_index(row->params, args->names[i]);

        if (at < 0 || args->by[at])
            return kg_jinja_fail(j, "expected the arguments (%s) of '%s', found '%.*s'",
                                 row->params, row->name, (int)args->names[i].n,
                                 args->names[i].bytes);
        args->by[at] = &args->named[i];
    }
    for (size_t i = 0; i < row->need; i++)
        if (!args->by[i])
            return kg_jinja_fail(j, "expected %zu arguments of '%s' (%s), found %zu",
                                 row->need, row->name, row->params,
                                 args->n + args->n_named);
    return KG_OK;
}

kg_status kg_jinja_call_row(struct kg_jv *out, struct kg_jinja *j,
                            const struct kg_jinja_row *row, const struct kg_jv *in,
                            struct kg_jinja_args *args)
{
    if (row->params)
        KG_TRY(bind(j, row, args));
    return row->run(out, j, in, args);
}

/* loop(items) of a recursive loop */
static kg_status call_loop(struct kg_jv *out, struct kg_jinja *j,
                           const struct kg_jinja_loop *loop,
                           const struct kg_jinja_args *args)
{
    struct kg_jinja_scope *scope = j->scope;
    size_t mark = j->out->len;

    if (!loop->node || args->n != 1)
        return kg_jinja_fail(j, "expected a recursive loop and one list to call it with");
    KG_TRY(kg_jinja_deeper(j));
    j->scope = loop->scope;
    KG_TRY(kg_jinja_run_loop(j, loop->node, &args->pos[0], loop->depth0 + 1));
    j->scope = scope;
    j->depth--;
    return kg_jinja_cut(out, j, mark);
}

/* A method of markup returns markup; if it returns a list, its items are markup too. */
static kg_status make_safe(struct kg_jv *out, struct kg_jinja *j)
{
    out->safe = out->type == KG_JV_TEXT;
    if (out->type != KG_JV_LIST)
        return KG_OK;
    KG_TRY(kg_jinja_pay(j, out->u.list->n));
    for (size_t i = 0; i < out->u.list->n; i++)
        out->u.list->items[i].safe = true; /* all are text */
    return KG_OK;
}

kg_status kg_jinja_call(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *f,
                        struct kg_jinja_args *args)
{
    if (f->type == KG_JV_LOOP)
        return call_loop(out, j, f->u.loop, args);
    if (f->type == KG_JV_UNDEFINED)
        return kg_jinja_fail(j, "expected a function, '%.*s' is undefined",
                             (int)(f->u.text.n > 80 ? 80 : f->u.text.n), f->u.text.bytes);
    if (f->type != KG_JV_CALLABLE)
        return kg_jinja_fail(j, "expected a function, found %s", kg_jv_type_name(f));
    if (f->u.callable->macro) {
        memset(args->by, 0, sizeof args->by);
        return kg_jinja_run_macro(out, j, f->u.callable, args);
    }
    KG_TRY(kg_jinja_call_row(out, j, f->u.callable->row, &f->u.callable->self, args));
    return f->u.callable->self.safe ? make_safe(out, j) : KG_OK;
}

/* ---- members ---- */

static kg_status method(struct kg_jv *out, struct kg_jinja *j,
                        const struct kg_jinja_row *row, const struct kg_jv *self)
{
    out->type = KG_JV_CALLABLE;
    out->u.callable = kg_pool_alloc(&j->pool, 1, sizeof *out->u.callable, j->err);
    if (!out->u.callable)
        return j->err->code;
    out->u.callable->row = row;
    out->u.callable->self = *self;
    return KG_OK;
}

static const struct kg_jinja_row *methods_of(const struct kg_jv *a)
{
    static const struct kg_jinja_row none[] = {{0}};

    switch (a->type) {
    case KG_JV_TEXT:
        return kg_jinja_text_methods;
    case KG_JV_LIST:
        return a->u.list->kind <= KG_JV_RANGE ? kg_jinja_list_methods : none;
    case KG_JV_LOOP:
        return kg_jinja_loop_methods;
    case KG_JV_DICT:
        return a->u.dict->is_namespace ? none : kg_jinja_dict_methods;
    default:
        return none;
    }
}

/* loop.index and similar attributes; false if there is none of that name. */
static bool loop_attr(struct kg_jv *out, const struct kg_jinja_loop *loop,
                      struct kg_jv_text name)
{
    static const char *const names[] = {"index",     "index0", "revindex",
                                        "revindex0", "first",  "last",
                                        "length",    "depth",  "depth0"};
    const int64_t i = (int64_t)loop->i;
    const int64_t n = (int64_t)loop->items->n;
    const int64_t values[] = {i + 1,       i,          n - i, n - i - 1,
                              i == 0,      i + 1 == n, n,     loop->depth0 + 1,
                              loop->depth0};

    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        if (strlen(names[k]) != name.n || memcmp(names[k], name.bytes, name.n) != 0)
            continue;
        *out = k == 4 || k == 5 ? kg_jv_bool(values[k]) : kg_jv_int(values[k]);
        return true;
    }
    *out = kg_jv_undefined(name);
    if (name.n != 8 || (memcmp(name.bytes, "previtem", 8) != 0 &&
                        memcmp(name.bytes, "nextitem", 8) != 0))
        return false;
    if (name.bytes[0] == 'p' && i > 0)
        *out = loop->items->items[i - 1];
    if (name.bytes[0] == 'n' && i + 1 < n)
        *out = loop->items->items[i + 1];
    return true;
}

static kg_status fail_undefined(struct kg_jinja *j, const struct kg_jv *a,
                                struct kg_jv_text name)
{
    return kg_jinja_fail(j, "expected a value with '%.*s', '%.*s' is undefined",
                         (int)(name.n > 80 ? 80 : name.n), name.bytes,
                         (int)(a->u.text.n > 80 ? 80 : a->u.text.n), a->u.text.bytes);
}

kg_status kg_jinja_attr(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *a,
                        struct kg_jv_text name)
{
    const struct kg_jinja_row *row = kg_jinja_find(methods_of(a), name);
    const struct kg_jv *found = NULL;
    struct kg_jv key = kg_jv_text(name.bytes, name.n);

    if (a->type == KG_JV_UNDEFINED)
        return fail_undefined(j, a, name);
    if (a->type == KG_JV_LOOP && loop_attr(out, a->u.loop, name))
        return KG_OK;
    if (row)
        return method(out, j, row, a);
    if (a->type == KG_JV_DICT)
        KG_TRY(kg_jv_dict_get(&found, j, a->u.dict, &key));
    *out = found ? *found : kg_jv_undefined(name);
    return KG_OK;
}

/* The i-th character of a text; undefined beyond the text. */
static struct kg_jv character_at(struct kg_jv_text t, int64_t i)
{
    uint32_t cp;
    size_t at = 0;

    for (; i > 0 && at < t.n; i--)
        at += kg_utf8_decode(&cp, t.bytes + at);
    if (i < 0 || at >= t.n)
        return kg_jv_undefined((struct kg_jv_text){"the character", 13});
    return kg_jv_text(t.bytes + at, kg_utf8_decode(&cp, t.bytes + at));
}

kg_status kg_jinja_item(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *a,
                        const struct kg_jv *key)
{
    const struct kg_jv *found = NULL;
    int64_t i;

    *out = kg_jv_undefined((struct kg_jv_text){"that member", 11});
    if (a->type == KG_JV_UNDEFINED) {
        struct kg_jv text;

        KG_TRY(kg_jv_str(&text, j, key));
        return fail_undefined(j, a, text.u.text);
    }
    if (a->type == KG_JV_DICT && !a->u.dict->is_namespace && key->type != KG_JV_DICT &&
        (key->type != KG_JV_LIST || key->u.list->kind == KG_JV_TUPLE)) {
        KG_TRY(kg_jv_dict_get(&found, j, a->u.dict, key));
        if (found) {
            *out = *found;
            return KG_OK;
        }
    }
    if (a->type == KG_JV_LIST && a->u.list->kind <= KG_JV_RANGE &&
        kg_jv_as_int(&i, key)) {
        i += i < 0 ? (int64_t)a->u.list->n : 0;
        if (i >= 0 && (size_t)i < a->u.list->n)
            *out = a->u.list->items[i];
        return KG_OK;
    }
    if (a->type == KG_JV_TEXT && kg_jv_as_int(&i, key)) {
        KG_TRY(kg_jinja_pay(j, a->u.text.n / 16));
        i += i < 0 ? (int64_t)kg_jv_chars(a->u.text) : 0;
        *out = character_at(a->u.text, i);
        out->safe = a->safe && out->type == KG_JV_TEXT;
        return KG_OK;
    }
    return key->type == KG_JV_TEXT ? kg_jinja_attr(out, j, a, key->u.text) : KG_OK;
}

kg_status kg_jinja_path(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *a,
                        const struct kg_jv *path)
{
    struct kg_jv from = *a;

    if (path->type != KG_JV_TEXT)
        return kg_jinja_item(out, j, &from, path);
    *out = from;
    const char *at = path->u.text.bytes;
    const char *end = at + path->u.text.n;
    for (;;) {
        const char *dot = at < end ? memchr(at, '.', (size_t)(end - at)) : NULL;
        struct kg_jv key = kg_jv_text(at, (size_t)((dot ? dot : end) - at));
        int64_t i = 0;
        size_t k = 0;

        for (; k < key.u.text.n && k < 18 && at[k] >= '0' && at[k] <= '9'; k++)
            i = 10 * i + (at[k] - '0');
        if (k && k == key.u.text.n)
            key = kg_jv_int(i);
        from = *out;
        KG_TRY(kg_jinja_item(out, j, &from, &key));
        if (!dot)
            return KG_OK;
        at = dot + 1;
    }
}

/* ---- slices ---- */

/* The indices that a slice takes, as in Python: n of them from `first` by `step`. */
struct range {
    int64_t first;
    int64_t end;
    int64_t n;
    int64_t step;
};

static int64_t clamp(int64_t at, int64_t n, bool back)
{
    at += at < 0 ? n : 0;
    if (at < 0)
        return back ? -1 : 0;
    if (at >= n)
        return back ? n - 1 : n;
    return at;
}

static kg_status slice_range(struct range *r, struct kg_jinja *j, int64_t n,
                             const struct kg_jv bounds[3])
{
    r->step = 1;
    for (int i = 0; i < 3; i++)
        if (bounds[i].type != KG_JV_NONE && bounds[i].type != KG_JV_INT &&
            bounds[i].type != KG_JV_BOOL)
            return kg_jinja_fail(j, "expected whole numbers as bounds, found %s",
                                 kg_jv_type_name(&bounds[i]));
    if (kg_jv_as_int(&r->step, &bounds[2]) && r->step == 0)
        return kg_jinja_fail(j, "expected a step that is not 0");
    if (r->step > INT64_MAX / 4 || r->step < -INT64_MAX / 4)
        return kg_jinja_fail(j, "expected a smaller step");
    r->first = r->step > 0 ? 0 : n - 1;
    r->end = r->step > 0 ? n : -1;
    if (kg_jv_as_int(&r->first, &bounds[0]))
        r->first = clamp(r->first, n, r->step < 0);
    if (kg_jv_as_int(&r->end, &bounds[1]))
        r->end = clamp(r->end, n, r->step < 0);
    r->n = r->step > 0 ? (r->end - r->first + r->step - 1) / r->step
                       : (r->first - r->end - r->step - 1) / -r->step;
    r->n = r->n < 0 ? 0 : r->n;
    return KG_OK;
}

static kg_status slice_text(struct kg_jv *out, struct kg_jinja *j, struct kg_jv_text t,
                            const struct range *r)
{
    const struct kg_jv whole = kg_jv_text(t.bytes, t.n);
    const struct kg_jv_list *chars;
    size_t mark = j->out->len;
    uint32_t cp;

    if (r->step == 1) { /* borrowed: nothing is copied */
        size_t at = 0;

        for (int64_t i = 0; i < r->first && at < t.n; i++)
            at += kg_utf8_decode(&cp, t.bytes + at);
        size_t end = at;
        for (int64_t i = 0; i < r->n && end < t.n; i++)
            end += kg_utf8_decode(&cp, t.bytes + end);
        *out = kg_jv_text(t.bytes + at, end - at);
        return KG_OK;
    }
    KG_TRY(kg_jv_iterate(&chars, j, &whole));
    for (int64_t i = 0; i < r->n; i++)
        KG_TRY(kg_jv_put(j, &chars->items[r->first + i * r->step]));
    return kg_jinja_cut(out, j, mark);
}

kg_status kg_jinja_range(struct kg_jv *out, struct kg_jinja *j, const int64_t bounds[3],
                         int64_t n)
{
    int64_t *range = kg_pool_alloc(&j->pool, 3, sizeof *range, j->err);

    if (!range)
        return j->err->code;
    memcpy(range, bounds, 3 * sizeof *range);
    KG_TRY(kg_jv_list_new(out, j, n > 0 ? (size_t)n : 0, KG_JV_RANGE));
    out->u.list->range = range;
    for (int64_t i = 0; i < n; i++)
        out->u.list->items[out->u.list->n++] = kg_jv_int(range[0] + i * range[2]);
    return KG_OK;
}

/* A slice of a range multiplies steps: unbounded in Python, an error on overflow here. */
static kg_status slice_of_range(struct kg_jv *out, struct kg_jinja *j,
                                const int64_t of[3], const struct range *r)
{
    const int64_t at[3] = {r->first, r->end, r->step};
    int64_t bounds[3];

    for (int i = 0; i < 3; i++)
        if (__builtin_mul_overflow(at[i], of[2], &bounds[i]) ||
            (i < 2 && __builtin_add_overflow(of[0], bounds[i], &bounds[i])))
            return kg_jinja_fail(j, "expected a smaller step");
    return kg_jinja_range(out, j, bounds, r->n);
}

kg_status kg_jinja_slice(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *a,
                         const struct kg_jv bounds[3])
{
    struct range r;
    size_t n;

    if (a->type != KG_JV_TEXT && (a->type != KG_JV_LIST || a->u.list->kind > KG_JV_RANGE))
        return kg_jinja_fail(j, "expected a list or text to take a slice of, found %s",
                             kg_jv_type_name(a));
    KG_TRY(kg_jv_length(&n, j, a));
    KG_TRY(slice_range(&r, j, (int64_t)n, bounds));
    if (a->type == KG_JV_TEXT) {
        KG_TRY(kg_jinja_pay(j, a->u.text.n / 16));
        KG_TRY(slice_text(out, j, a->u.text, &r));
        out->safe = a->safe;
        return KG_OK;
    }
    if (a->u.list->kind == KG_JV_RANGE)
        return slice_of_range(out, j, a->u.list->range, &r);
    KG_TRY(kg_jv_list_new(out, j, (size_t)r.n, a->u.list->kind));
    for (int64_t i = 0; i < r.n; i++)
        out->u.list->items[out->u.list->n++] = a->u.list->items[r.first + i * r.step];
    return KG_OK;
}

/* ---- operators ---- */

static kg_status fail_operands(struct kg_jinja *j, int op, const struct kg_jv *a,
                               const struct kg_jv *b)
{
    static const char *const signs[] = {"+", "-", "*", "/", "//", "%", "**", "~"};

    for (int i = 0; i < 2; i++) {
        const struct kg_jv *v = i ? b : a;

        if (v->type == KG_JV_UNDEFINED)
            return kg_jinja_fail(j, "expected two values for %s, '%.*s' is undefined",
                                 signs[op - KG_JT_ADD],
                                 (int)(v->u.text.n > 80 ? 80 : v->u.text.n),
                                 v->u.text.bytes);
    }
    return kg_jinja_fail(j, "expected two values for %s, found %s and %s",
                         signs[op - KG_JT_ADD], kg_jv_type_name(a), kg_jv_type_name(b));
}

/* As in Python, from the remainder: rounding cannot lift the quotient over an integer. */
static double floor_divide(double a, double b)
{
    double rest = fmod(a, b), x = (a - rest) / b;

    x = floor(rest != 0 && (rest < 0) != (b < 0) ? x - 1 : x);
    return x == 0 ? copysign(0, a / b) : x;
}

static kg_status real_numbers(struct kg_jv *out, struct kg_jinja *j, int op, double a,
                              double b)
{
    double x;

    if (op == KG_JT_POW && ((a < 0 && isfinite(b) && b != floor(b)) || (a == 0 && b < 0)))
        return kg_jinja_fail(j, "expected a power that is a finite real number");
    if ((op == KG_JT_DIV || op == KG_JT_FLOORDIV || op == KG_JT_MOD) && b == 0)
        return kg_jinja_fail(j, "expected a divisor, found 0");
    switch (op) {
    case KG_JT_ADD:
        x = a + b;
        break;
    case KG_JT_SUB:
        x = a - b;
        break;
    case KG_JT_MUL:
        x = a * b;
        break;
    case KG_JT_DIV:
        x = a / b;
        break;
    case KG_JT_FLOORDIV:
        x = floor_divide(a, b);
        break;
    case KG_JT_MOD:
        x = fmod(a, b);
        x += x != 0 && (x < 0) != (b < 0) ? b : 0;
        break;
    default:
        x = pow(a, b);
        break;
    }
    *out = kg_jv_real(x);
    return KG_OK;
}

static kg_status power(struct kg_jv *out, struct kg_jinja *j, int64_t a, int64_t b)
{
    int64_t x = 1;

    if (b < 0)
        return real_numbers(out, j, KG_JT_POW, (double)a, (double)b);
    for (; b > 0; b--) {
        if (a == 0 || a == 1 || a == -1) {
            x = a == -1 && b % 2 == 0 ? 1 : a;
            break;
        }
        if (__builtin_mul_overflow(x, a, &x))
            return kg_jinja_fail(
                j, "expected a whole number of 64 bits, found a larger one");
    }
    *out = kg_jv_int(x);
    return KG_OK;
}

static kg_status whole_numbers(struct kg_jv *out, struct kg_jinja *j, int op, int64_t a,
                               int64_t b)
{
    int64_t x = 0;
    bool over = false;

    if ((op == KG_JT_DIV || op == KG_JT_FLOORDIV || op == KG_JT_MOD) && b == 0)
        return kg_jinja_fail(j, "expected a divisor, found 0");
    switch (op) {
    case KG_JT_ADD:
        over = __builtin_add_overflow(a, b, &x);
        break;
    case KG_JT_SUB:
        over = __builtin_sub_overflow(a, b, &x);
        break;
    case KG_JT_MUL:
        over = __builtin_mul_overflow(a, b, &x);
        break;
    case KG_JT_FLOORDIV:
        over = a == INT64_MIN && b == -1;
        x = over ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;
    case KG_JT_MOD:
        x = b == -1 ? 0 : a % b;
        x += x != 0 && (x < 0) != (b < 0) ? b : 0;
        break;
    case KG_JT_POW:
        return power(out, j, a, b);
    default:
        *out = kg_jv_real((double)a / (double)b);
        return KG_OK;
    }
    if (over)
        return kg_jinja_fail(j, "expected a whole number of 64 bits, found a larger one");
    *out = kg_jv_int(x);
    return KG_OK;
}

/* a + b of two texts or two lists. */
static kg_status join_two(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *a,
                          const struct kg_jv *b)
{
    size_t mark = j->out->len;

    if (a->type == KG_JV_TEXT) {
        bool safe = a->safe || b->safe;

        KG_TRY(safe ? kg_jv_put_escaped(j, a) : kg_jv_put(j, a));
        KG_TRY(safe ? kg_jv_put_escaped(j, b) : kg_jv_put(j, b));
        KG_TRY(kg_jinja_cut(out, j, mark));
        out->safe = safe;
        return KG_OK;
    }
    KG_TRY(kg_jv_list_new(out, j, a->u.list->n + b->u.list->n, a->u.list->kind));
    for (size_t i = 0; i < a->u.list->n; i++)
        out->u.list->items[out->u.list->n++] = a->u.list->items[i];
    for (size_t i = 0; i < b->u.list->n; i++)
        out->u.list->items[out->u.list->n++] = b->u.list->items[i];
    return KG_OK;
}

static kg_status repeat(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *a,
                        int64_t times)
{
    size_t mark = j->out->len;

    if (a->type == KG_JV_TEXT) {
        for (int64_t i = 0; i < times && a->u.text.n; i++) {
            KG_TRY(kg_jinja_pay(j, 1));
            KG_TRY(kg_jv_put(j, a));
        }
        KG_TRY(kg_jinja_cut(out, j, mark));
        out->safe = a->safe;
        return KG_OK;
    }
    KG_TRY(kg_jv_list_new(out, j, 0, a->u.list->kind));
    for (int64_t i = 0; i < times && a->u.list->n; i++)
        for (size_t k = 0; k < a->u.list->n; k++)
            KG_TRY(kg_jv_push(j, out, &a->u.list->items[k]));
    return KG_OK;
}

static bool is_sequence(const struct kg_jv *v)
{
    return v->type == KG_JV_TEXT ||
           (v->type == KG_JV_LIST && v->u.list->kind <= KG_JV_TUPLE);
}

kg_status kg_jinja_binary(struct kg_jv *out, struct kg_jinja *j, int op,
                          const struct kg_jv *a, const struct kg_jv *b)
{
    size_t mark = j->out->len;
    int64_t i;
    int64_t k;
    double x;
    double y;

    if (op == KG_JT_TILDE) {
        KG_TRY(kg_jv_put(j, a));
        KG_TRY(kg_jv_put(j, b));
        return kg_jinja_cut(out, j, mark);
    }
    if (kg_jv_as_int(&i, a) && kg_jv_as_int(&k, b))
        return whole_numbers(out, j, op, i, k);
    if (kg_jv_as_real(&x, a) && kg_jv_as_real(&y, b))
        return real_numbers(out, j, op, x, y);
    if (op == KG_JT_ADD && is_sequence(a) && a->type == b->type &&
        (a->type == KG_JV_TEXT || a->u.list->kind == b->u.list->kind))
        return join_two(out, j, a, b);
    if (op == KG_JT_MUL && is_sequence(a) && kg_jv_as_int(&k, b))
        return repeat(out, j, a, k);
    if (op == KG_JT_MUL && is_sequence(b) && kg_jv_as_int(&i, a))
        return repeat(out, j, b, i);
    if (op == KG_JT_MOD && a->type == KG_JV_TEXT)
        return kg_jinja_percent(out, j, a, b);
    return fail_operands(j, op, a, b);
}

/* ---- global functions ---- */

enum { MAX_RANGE = 100000 };

static kg_status fn_range(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                          const struct kg_jinja_args *args)
{
    int64_t v[3] = {0, 0, 1};
    int64_t n;

    (void)in;
    for (int i = 0; i < 3; i++)
        if (args->by[i] && !kg_jv_as_int(&v[i], args->by[i]))
            return kg_jinja_fail(j, "expected whole numbers in range(), found %s",
                                 kg_jv_type_name(args->by[i]));
    if (!args->by[1]) {
        v[1] = v[0];
        v[0] = 0;
    }
    for (int i = 0; i < 3; i++)
        if (v[i] > INT64_MAX / 4 || v[i] < -(INT64_MAX / 4) || v[2] == 0)
            return kg_jinja_fail(j, "expected smaller numbers and a step that is not 0");
    n = v[2] > 0 ? (v[1] - v[0] + v[2] - 1) / v[2] : (v[0] - v[1] - v[2] - 1) / -v[2];
    if (n > MAX_RANGE)
        return kg_jinja_fail(j, "expected a range of at most %d numbers, found %lld",
                             MAX_RANGE, (long long)n);
    return kg_jinja_range(out, j, v, n);
}

/* dict(other, a=1), namespace(other, a=1) */
static kg_status fn_dict(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                         const struct kg_jinja_args *args)
{
    (void)in;
    KG_TRY(kg_jv_dict_new(out, j));
    for (size_t i = 0; i < args->n; i++) {
        if (args->pos[i].type != KG_JV_DICT || i > 0)
            return kg_jinja_fail(j, "expected one object, found %s",
                                 kg_jv_type_name(&args->pos[i]));
        for (size_t k = 0; k < args->pos[i].u.dict->n; k++)
            KG_TRY(kg_jv_dict_set(j, out->u.dict, &args->pos[i].u.dict->keys[k],
                                  &args->pos[i].u.dict->values[k]));
    }
    for (size_t i = 0; i < args->n_named; i++) {
        struct kg_jv key = kg_jv_text(args->names[i].bytes, args->names[i].n);

        KG_TRY(kg_jv_dict_set(j, out->u.dict, &key, &args->named[i]));
    }
    return KG_OK;
}

kg_status kg_jinja_check_name(struct kg_jinja *j, const struct kg_jv *name)
{
    if (name->type != KG_JV_TEXT || name->u.text.n == 0 || name->u.text.bytes[0] != '_')
        return KG_OK;
    return kg_jinja_fail(j, "expected a name in a namespace that does not begin with _");
}

static kg_status fn_namespace(struct kg_jv *out, struct kg_jinja *j,
                              const struct kg_jv *in, const struct kg_jinja_args *args)
{
    KG_TRY(fn_dict(out, j, in, args));
    out->u.dict->is_namespace = true;
    for (size_t i = 0; i < out->u.dict->n; i++)
        KG_TRY(kg_jinja_check_name(j, &out->u.dict->keys[i]));
    return KG_OK;
}

static kg_status fn_raise(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                          const struct kg_jinja_args *args)
{
    struct kg_jv text;

    (void)in;
    KG_TRY(kg_jv_str(&text, j, args->by[0]));
    *out = kg_jv_none();
    return kg_jinja_fail(j, "the template refuses: %.*s",
                         (int)(text.u.text.n > 500 ? 500 : text.u.text.n),
                         text.u.text.bytes);
}

/* Rewrites formats for which Python's strftime differs from C's: the time has no zone and
 * no fraction of a second. */
static size_t as_python(char *to, size_t room, struct kg_jv_text format)
{
    size_t n = 0;

    for (size_t i = 0; i < format.n && n + 8 < room; i++) {
        char letter = i + 1 < format.n ? format.bytes[i + 1] : 0;

        if (format.bytes[i] != '%' || !letter) {
            to[n++] = format.bytes[i];
            continue;
        }
        i++;
        if (letter == 'f')
            n += (size_t)snprintf(to + n, room - n, "000000");
        else if (letter != 'z' && letter != 'Z')
            n += (size_t)snprintf(to + n, room - n, "%%%c", letter);
    }
    return n;
}

static kg_status fn_strftime_now(struct kg_jv *out, struct kg_jinja *j,
                                 const struct kg_jv *in, const struct kg_jinja_args *args)
{
    time_t now = j->opts->now_s ? (time_t)j->opts->now_s : time(NULL);
    char format[256];
    char text[512];
    struct tm tm;
    size_t n;
    size_t mark = j->out->len;

    (void)in;
    if (args->by[0]->type != KG_JV_TEXT || args->by[0]->u.text.n > 126)
        return kg_jinja_fail(
            j, "strftime_now: expected text of at most 126 bytes, found %s",
            args->by[0]->type == KG_JV_TEXT ? "more" : kg_jv_type_name(args->by[0]));
    /* a mark at the end tells an empty result from one that did not fit */
    memcpy(format + as_python(format, sizeof format, args->by[0]->u.text), "|", 2);
    if (!(j->opts->now_s ? gmtime_r(&now, &tm) : localtime_r(&now, &tm)))
        return kg_jinja_fail(j, "strftime_now: expected a time that has a date");
    n = strftime(text, sizeof text, format, &tm);
    if (n == 0)
        return kg_jinja_fail(j, "strftime_now: expected at most %zu bytes, found more",
                             sizeof text - 2);
    KG_TRY(kg_jinja_emit(j, text, n - 1));
    return kg_jinja_cut(out, j, mark);
}

const struct kg_jinja_row kg_jinja_functions[] = {
    {"range", "start,stop,step", 1, fn_range},
    {"dict", NULL, 0, fn_dict},
    {"namespace", NULL, 0, fn_namespace},
    {"raise_exception", "message", 1, fn_raise},
    {"strftime_now", "format", 1, fn_strftime_now},
    {0},
};

/* ---- methods of loop ---- */

static kg_status loop_cycle(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                            const struct kg_jinja_args *args)
{
    if (args->n == 0)
        return kg_jinja_fail(j, "expected values to cycle through, found none");
    *out = args->pos[in->u.loop->i % args->n];
    return KG_OK;
}

static kg_status loop_changed(struct kg_jv *out, struct kg_jinja *j,
                              const struct kg_jv *in, const struct kg_jinja_args *args)
{
    struct kg_jv now;
    bool equal;

    KG_TRY(kg_jv_list_new(&now, j, args->n, KG_JV_TUPLE));
    for (size_t i = 0; i < args->n; i++)
        KG_TRY(kg_jv_push(j, &now, &args->pos[i]));
    KG_TRY(kg_jv_equal(&equal, j, &now, &in->u.loop->changed));
    in->u.loop->changed = now;
    *out = kg_jv_bool(!equal);
    return KG_OK;
}

const struct kg_jinja_row kg_jinja_loop_methods[] = {
    {"cycle", NULL, 0, loop_cycle},
    {"changed", NULL, 0, loop_changed},
    {0},
};
