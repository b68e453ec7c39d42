/* Methods of text, lists and objects, as in Python.
 *
 * Templates are written for Python: they call strip, split, items and the like on their
 * values. Methods that change a value (append, update) are refused by name, as in
 * transformers' immutable sandbox. Work is counted as in jinja_filters.c.
 */
#include "text/jinja_internal.h"
#include "text/unicode.h"

#include <string.h>

/* A text argument; NULL if it was not given or is none. */
static kg_status text_arg(const struct kg_jv_text **t, struct kg_jinja *j,
                          const struct kg_jv *v)
{
    *t = NULL;
    if (!v || v->type == KG_JV_NONE)
        return KG_OK;
    if (v->type != KG_JV_TEXT)
        return kg_jinja_fail(j, "expected text, found %s", kg_jv_type_name(v));
    *t = &v->u.text;
    return KG_OK;
}

static kg_status int_arg(int64_t *i, struct kg_jinja *j, const struct kg_jv *v)
{
    if (v && !kg_jv_as_int(i, v))
        return kg_jinja_fail(j, "expected a whole number, found %s", kg_jv_type_name(v));
    return KG_OK;
}

static kg_status pay_text(struct kg_jinja *j, const struct kg_jv *in)
{
    return kg_jinja_pay(j, in->u.text.n / 16);
}

/* ---- strip ---- */

static kg_status strip(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                       const struct kg_jinja_args *args, int sides)
{
    const struct kg_jv_text *chars;

    KG_TRY(pay_text(j, in));
    KG_TRY(text_arg(&chars, j, args->by[0]));
    KG_TRY(kg_jinja_pay(j, chars ? in->u.text.n * (chars->n / 64) : 0));
    struct kg_jv_text t = kg_jv_strip(in->u.text, chars, sides);
    *out = kg_jv_text(t.bytes, t.n);
    return KG_OK;
}

#define STRIP(name, sides)                                                               \
    static kg_status name(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in, \
                          const struct kg_jinja_args *args)                              \
    {                                                                                    \
        return strip(out, j, in, args, sides);                                           \
    }
STRIP(text_lstrip, 1)
STRIP(text_rstrip, 2)
STRIP(text_strip, 3)
#undef STRIP

/* ---- split ---- */

static kg_status push_part(struct kg_jinja *j, struct kg_jv *list, const char *bytes,
                           size_t n)
{
    struct kg_jv part = kg_jv_text(bytes, n);

    return kg_jv_push(j, list, &part);
}

/* split(): at runs of white space, at most `most` times; the rest is one part. */
static kg_status split_space(struct kg_jv *out, struct kg_jinja *j, struct kg_jv_text t,
                             int64_t most)
{
    for (t = kg_jv_strip(t, NULL, 1); t.n; t = kg_jv_strip(t, NULL, 1)) {
        size_t n = 0;
        uint32_t cp;

        if (most >= 0 && (int64_t)out->u.list->n == most)
            return push_part(j, out, t.bytes, t.n);
        while (n < t.n) {
            size_t k = kg_utf8_decode(&cp, t.bytes + n);

            if (kg_jinja_is_space(cp))
                break;
            n += k;
        }
        KG_TRY(push_part(j, out, t.bytes, n));
        t.bytes += n;
        t.n -= n;
    }
    return KG_OK;
}

static kg_status text_split(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                            const struct kg_jinja_args *args)
{
    const struct kg_jv_text *by;
    struct kg_jv_text t = in->u.text;
    int64_t most = -1;

    KG_TRY(pay_text(j, in));
    KG_TRY(text_arg(&by, j, args->by[0]));
    KG_TRY(int_arg(&most, j, args->by[1]));
    KG_TRY(kg_jv_list_new(out, j, 0, KG_JV_PLAIN));
    if (!by)
        return split_space(out, j, t, most);
    if (by->n == 0)
        return kg_jinja_fail(j, "expected text to split at, found empty text");
    while (most < 0 || (int64_t)out->u.list->n < most) {
        int64_t at = kg_jv_find(t, *by, 0);

        if (at < 0)
            break;
        KG_TRY(push_part(j, out, t.bytes, (size_t)at));
        t.bytes += (size_t)at + by->n;
        t.n -= (size_t)at + by->n;
    }
    return push_part(j, out, t.bytes, t.n);
}

static void reverse(struct kg_jv_list *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct kg_jv v = l->items[i];

        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
}

/* Offset of the last `part` that ends at or before `end`; -1: none. */
static int64_t find_last(struct kg_jv_text t, struct kg_jv_text part, size_t end)
{
    if (part.n > end)
        return -1;
    for (int64_t at = (int64_t)(end - part.n); at >= 0; at--)
        if (memcmp(t.bytes + at, part.bytes, part.n) == 0)
            return at;
    return -1;
}

static kg_status text_rsplit(struct kg_jv *out, struct kg_jinja *j,
                             const struct kg_jv *in, const struct kg_jinja_args *args)
{
    const struct kg_jv_text *by;
    struct kg_jv_text t = in->u.text;
    int64_t most = -1;

    KG_TRY(kg_jinja_pay(j, t.n));
    KG_TRY(text_arg(&by, j, args->by[0]));
    KG_TRY(int_arg(&most, j, args->by[1]));
    if (most < 0)
        return text_split(out, j, in, args);
    if (!by || by->n == 0)
        return kg_jinja_fail(j, "expected text to split at from the right");
    KG_TRY(kg_jinja_pay(j, t.n * (by->n / 64)));
    KG_TRY(kg_jv_list_new(out, j, 0, KG_JV_PLAIN));
    while ((int64_t)out->u.list->n < most) {
        int64_t at = find_last(t, *by, t.n);

        if (at < 0)
            break;
        KG_TRY(push_part(j, out, t.bytes + at + by->n, t.n - (size_t)at - by->n));
        t.n = (size_t)at;
    }
    KG_TRY(push_part(j, out, t.bytes, t.n));
    reverse(out->u.list);
    return KG_OK;
}

static kg_status text_splitlines(struct kg_jv *out, struct kg_jinja *j,
                                 const struct kg_jv *in, const struct kg_jinja_args *args)
{
    struct kg_jv_text t = in->u.text;
    bool keep = args->by[0] && kg_jv_truth(args->by[0]);

    KG_TRY(pay_text(j, in));
    KG_TRY(kg_jv_list_new(out, j, 0, KG_JV_PLAIN));
    while (t.n) {
        size_t end;
        size_t n = kg_jv_line(&end, t);

        KG_TRY(push_part(j, out, t.bytes, keep ? end : n));
        t.bytes += end;
        t.n -= end;
    }
    return KG_OK;
}

/* ---- searching ---- */

static kg_status text_ends(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                           const struct kg_jv *what, bool at_end)
{
    const struct kg_jv *items = what;
    size_t n = 1;
    bool holds = false;

    if (what->type == KG_JV_LIST && what->u.list->kind == KG_JV_TUPLE) {
        items = what->u.list->items;
        n = what->u.list->n;
    }
    for (size_t i = 0; i < n && !holds; i++) {
        struct kg_jv_text t = in->u.text;
        const struct kg_jv_text *part;

        KG_TRY(text_arg(&part, j, &items[i]));
        if (!part)
            return kg_jinja_fail(j, "expected text, found None");
        KG_TRY(kg_jinja_pay(j, 1 + part->n / 64));
        holds = part->n <= t.n && memcmp(at_end ? t.bytes + t.n - part->n : t.bytes,
                                         part->bytes, part->n) == 0;
    }
    *out = kg_jv_bool(holds);
    return KG_OK;
}

static kg_status text_startswith(struct kg_jv *out, struct kg_jinja *j,
                                 const struct kg_jv *in, const struct kg_jinja_args *args)
{
    return text_ends(out, j, in, args->by[0], false);
}

static kg_status text_endswith(struct kg_jv *out, struct kg_jinja *j,
                               const struct kg_jv *in, const struct kg_jinja_args *args)
{
    return text_ends(out, j, in, args->by[0], true);
}

static kg_status text_remove(struct kg_jv *out, struct kg_jinja *j,
                             const struct kg_jv *in, const struct kg_jinja_args *args,
                             bool at_end)
{
    struct kg_jv_text t = in->u.text;
    const struct kg_jv_text *part;

    KG_TRY(text_arg(&part, j, args->by[0]));
    KG_TRY(text_ends(out, j, in, args->by[0], at_end));
    if (out->u.truth && part) {
        t.bytes += at_end ? 0 : part->n;
        t.n -= part->n;
    }
    *out = kg_jv_text(t.bytes, t.n);
    return KG_OK;
}

static kg_status text_removeprefix(struct kg_jv *out, struct kg_jinja *j,
                                   const struct kg_jv *in,
                                   const struct kg_jinja_args *args)
{
    return text_remove(out, j, in, args, false);
}

static kg_status text_removesuffix(struct kg_jv *out, struct kg_jinja *j,
                                   const struct kg_jv *in,
                                   const struct kg_jinja_args *args)
{
    return text_remove(out, j, in, args, true);
}

/* Positions count characters. */
static kg_status place_of(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                          const struct kg_jinja_args *args, bool last)
{
    const struct kg_jv_text *part;
    struct kg_jv_text t = in->u.text;

    KG_TRY(kg_jinja_pay(j, t.n));
    KG_TRY(text_arg(&part, j, args->by[0]));
    if (!part)
        return kg_jinja_fail(j, "expected text, found None");
    KG_TRY(kg_jinja_pay(j, t.n * (part->n / 64)));
    int64_t at = last ? find_last(t, *part, t.n) : kg_jv_find(t, *part, 0);
    if (at > 0) {
        t.n = (size_t)at;
        at = (int64_t)kg_jv_chars(t);
    }
    *out = kg_jv_int(at);
    return KG_OK;
}

static kg_status text_find(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                           const struct kg_jinja_args *args)
{
    return place_of(out, j, in, args, false);
}

static kg_status text_rfind(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                            const struct kg_jinja_args *args)
{
    return place_of(out, j, in, args, true);
}

static kg_status text_index(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                            const struct kg_jinja_args *args)
{
    KG_TRY(place_of(out, j, in, args, false));
    return out->u.integer < 0 ? kg_jinja_fail(j, "expected text that occurs in the value")
                              : KG_OK;
}

static kg_status text_count(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                            const struct kg_jinja_args *args)
{
    const struct kg_jv_text *part;
    int64_t n = 0;

    KG_TRY(pay_text(j, in));
    KG_TRY(text_arg(&part, j, args->by[0]));
    if (!part || part->n == 0)
        return kg_jinja_fail(j, "expected text to count, found none");
    for (int64_t at = kg_jv_find(in->u.text, *part, 0); at >= 0; n++)
        at = kg_jv_find(in->u.text, *part, (size_t)at + part->n);
    *out = kg_jv_int(n);
    return KG_OK;
}

/* ---- classes of characters ---- */

static kg_status all_are(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                         bool (*is)(uint32_t cp))
{
    struct kg_jv_text t = in->u.text;
    bool all = t.n > 0;
    uint32_t cp;

    KG_TRY(pay_text(j, in));
    for (size_t at = 0; at < t.n && all;) {
        at += kg_utf8_decode(&cp, t.bytes + at);
        all = is(cp);
    }
    *out = kg_jv_bool(all);
    return KG_OK;
}

static bool is_numeric(uint32_t cp)
{
    return kg_unicode_is_alnum(cp) && !kg_unicode_is_alpha(cp);
}

/* Unicode's Numeric_Type=Digit: Nd, and superscript, circled and similar digits. */
static bool is_digit(uint32_t cp)
{
    static const uint32_t more[][2] = {
        {0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
        {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
        {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
        {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
        {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A},
    };

    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (cp >= more[i][0] && cp <= more[i][1])
            return true;
    return kg_unicode_is_digit(cp);
}

#define CLASS(name, is)                                                                  \
    static kg_status name(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in, \
                          const struct kg_jinja_args *args)                              \
    {                                                                                    \
        (void)args;                                                                      \
        return all_are(out, j, in, is);                                                  \
    }
CLASS(text_isdecimal, kg_unicode_is_digit)
CLASS(text_isdigit, is_digit)
CLASS(text_isnumeric, is_numeric)
CLASS(text_isalpha, kg_unicode_is_alpha)
CLASS(text_isalnum, kg_unicode_is_alnum)
CLASS(text_isspace, kg_jinja_is_space)
#undef CLASS

/* Whether the text has letters with a case, all of them in this one. */
static kg_status has_case(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                          bool upper)
{
    struct kg_jv_text t = in->u.text;
    bool some = false;
    bool all = true;
    uint32_t cp;

    KG_TRY(pay_text(j, in));
    for (size_t at = 0; at < t.n;) {
        at += kg_utf8_decode(&cp, t.bytes + at);
        if (!kg_unicode_is_cased(cp))
            continue;
        some = true;
        all = all && (cp == kg_unicode_lower(cp)) == !upper &&
              (!upper || cp == kg_unicode_upper(cp));
    }
    *out = kg_jv_bool(some && all);
    return KG_OK;
}

static kg_status text_isupper(struct kg_jv *out, struct kg_jinja *j,
                              const struct kg_jv *in, const struct kg_jinja_args *args)
{
    (void)args;
    return has_case(out, j, in, true);
}

static kg_status text_islower(struct kg_jv *out, struct kg_jinja *j,
                              const struct kg_jv *in, const struct kg_jinja_args *args)
{
    (void)args;
    return has_case(out, j, in, false);
}

/* ---- methods that are also filters ---- */

static kg_status by_filter(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                           const struct kg_jinja_args *args, const char *name)
{
    const struct kg_jinja_row *row = kg_jinja_find_filter(
        (struct kg_jv_text){name, strlen(name)});

    return row->run(out, j, in, args);
}

#define FILTER(name)                                                                     \
    static kg_status text_##name(struct kg_jv *out, struct kg_jinja *j,                  \
                                 const struct kg_jv *in,                                 \
                                 const struct kg_jinja_args *args)                       \
    {                                                                                    \
        return by_filter(out, j, in, args, #name);                                       \
    }
FILTER(upper)
FILTER(lower)
FILTER(capitalize)
#undef FILTER

/* A word begins after any character without a case: They'Re. */
static kg_status text_title(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                            const struct kg_jinja_args *args)
{
    struct kg_jv_text t = in->u.text;
    size_t mark = j->out->len;
    bool inside = false;
    uint32_t cp;
    char bytes[4];

    (void)args;
    KG_TRY(pay_text(j, in));
    for (size_t at = 0; at < t.n;) {
        at += kg_utf8_decode(&cp, t.bytes + at);
        uint32_t to = inside ? kg_unicode_lower(cp) : kg_unicode_title(cp);
        inside = kg_unicode_is_cased(cp);
        KG_TRY(kg_jinja_emit(j, bytes, kg_utf8_encode(bytes, to)));
    }
    return kg_jinja_cut(out, j, mark);
}

static kg_status text_replace(struct kg_jv *out, struct kg_jinja *j,
                              const struct kg_jv *in, const struct kg_jinja_args *args)
{
    struct kg_jinja_args with = *args;
    struct kg_jv new;

    if (in->safe) {
        KG_TRY(kg_jv_escape(&new, j, args->by[1]));
        with.by[1] = &new;
    }
    return by_filter(out, j, in, &with, "replace");
}

static kg_status text_join(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                           const struct kg_jinja_args *args)
{
    const struct kg_jv_list *items;
    size_t mark = j->out->len;

    KG_TRY(kg_jv_iterate(&items, j, args->by[0]));
    for (size_t i = 0; i < items->n; i++) {
        if (items->items[i].type != KG_JV_TEXT)
            return kg_jinja_fail(j, "expected texts to join, found %s",
                                 kg_jv_type_name(&items->items[i]));
        if (i)
            KG_TRY(kg_jv_put(j, in));
        KG_TRY(in->safe ? kg_jv_put_escaped(j, &items->items[i])
                        : kg_jv_put(j, &items->items[i]));
    }
    return kg_jinja_cut(out, j, mark);
}

const struct kg_jinja_row kg_jinja_text_methods[] = {
    {"strip", "chars", 0, text_strip},
    {"lstrip", "chars", 0, text_lstrip},
    {"rstrip", "chars", 0, text_rstrip},
    {"split", "sep,maxsplit", 0, text_split},
    {"rsplit", "sep,maxsplit", 0, text_rsplit},
    {"splitlines", "keepends", 0, text_splitlines},
    {"startswith", "prefix", 1, text_startswith},
    {"endswith", "suffix", 1, text_endswith},
    {"removeprefix", "prefix", 1, text_removeprefix},
    {"removesuffix", "suffix", 1, text_removesuffix},
    {"find", "sub", 1, text_find},
    {"rfind", "sub", 1, text_rfind},
    {"index", "sub", 1, text_index},
    {"count", "sub", 1, text_count},
    {"isdigit", "", 0, text_isdigit},
    {"isdecimal", "", 0, text_isdecimal},
    {"isnumeric", "", 0, text_isnumeric},
    {"isalpha", "", 0, text_isalpha},
    {"isalnum", "", 0, text_isalnum},
    {"isspace", "", 0, text_isspace},
    {"isupper", "", 0, text_isupper},
    {"islower", "", 0, text_islower},
    {"upper", "", 0, text_upper},
    {"lower", "", 0, text_lower},
    {"capitalize", "", 0, text_capitalize},
    {"title", "", 0, text_title},
    {"replace", "old,new,count", 2, text_replace},
    {"join", "iterable", 1, text_join},
    {"format", NULL, 0, kg_jinja_format},
    {0},
};

/* ---- lists ---- */

static kg_status refuse_change(struct kg_jv *out, struct kg_jinja *j,
                               const struct kg_jv *in, const struct kg_jinja_args *args)
{
    (void)out;
    (void)args;
    return kg_jinja_fail(
        j, "expected a method without side effects, found one that would change a %s",
        kg_jv_type_name(in));
}

static kg_status list_index(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                            const struct kg_jinja_args *args)
{
    const struct kg_jv_list *l = in->u.list;
    bool equal = false;

    for (size_t i = 0; i < l->n; i++) {
        KG_TRY(kg_jv_equal(&equal, j, &l->items[i], args->by[0]));
        if (equal) {
            *out = kg_jv_int((int64_t)i);
            return KG_OK;
        }
    }
    return kg_jinja_fail(j, "expected a value that the list contains, found another");
}

static kg_status list_count(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                            const struct kg_jinja_args *args)
{
    const struct kg_jv_list *l = in->u.list;
    int64_t n = 0;
    bool equal = false;

    for (size_t i = 0; i < l->n; i++) {
        KG_TRY(kg_jv_equal(&equal, j, &l->items[i], args->by[0]));
        n += equal;
    }
    *out = kg_jv_int(n);
    return KG_OK;
}

const struct kg_jinja_row kg_jinja_list_methods[] = {
    {"index", "value", 1, list_index},
    {"count", "value", 1, list_count},
    {"append", NULL, 0, refuse_change},
    {"extend", NULL, 0, refuse_change},
    {"insert", NULL, 0, refuse_change},
    {"pop", NULL, 0, refuse_change},
    {"remove", NULL, 0, refuse_change},
    {"clear", NULL, 0, refuse_change},
    {"reverse", NULL, 0, refuse_change},
    {"sort", NULL, 0, refuse_change},
    {0},
};

/* ---- objects ---- */

static kg_status dict_get(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                          const struct kg_jinja_args *args)
{
    const struct kg_jv *found;

    KG_TRY(kg_jv_dict_get(&found, j, in->u.dict, args->by[0]));
    *out = found ? *found : args->by[1] ? *args->by[1] : kg_jv_none();
    return KG_OK;
}

static kg_status dict_keys(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                           const struct kg_jinja_args *args)
{
    (void)args;
    KG_TRY(kg_jv_list_new(out, j, in->u.dict->n, KG_JV_KEYS));
    for (size_t i = 0; i < in->u.dict->n; i++)
        KG_TRY(kg_jv_push(j, out, &in->u.dict->keys[i]));
    return KG_OK;
}

static kg_status dict_values(struct kg_jv *out, struct kg_jinja *j,
                             const struct kg_jv *in, const struct kg_jinja_args *args)
{
    (void)args;
    KG_TRY(kg_jv_list_new(out, j, in->u.dict->n, KG_JV_VALUES));
    for (size_t i = 0; i < in->u.dict->n; i++)
        KG_TRY(kg_jv_push(j, out, &in->u.dict->values[i]));
    return KG_OK;
}

static kg_status dict_items(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                            const struct kg_jinja_args *args)
{
    (void)args;
    KG_TRY(kg_jv_list_new(out, j, in->u.dict->n, KG_JV_ITEMS));
    for (size_t i = 0; i < in->u.dict->n; i++) {
        struct kg_jv pair;

        KG_TRY(kg_jv_list_new(&pair, j, 2, KG_JV_TUPLE));
        KG_TRY(kg_jv_push(j, &pair, &in->u.dict->keys[i]));
        KG_TRY(kg_jv_push(j, &pair, &in->u.dict->values[i]));
        KG_TRY(kg_jv_push(j, out, &pair));
    }
    return KG_OK;
}

static kg_status dict_copy(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                           const struct kg_jinja_args *args)
{
    (void)j;
    (void)args;
    *out = *in; /* objects do not change */
    return KG_OK;
}

const struct kg_jinja_row kg_jinja_dict_methods[] = {
    {"get", "key,default", 1, dict_get},
    {"items", "", 0, dict_items},
    {"keys", "", 0, dict_keys},
    {"values", "", 0, dict_values},
    {"copy", "", 0, dict_copy},
    {"update", NULL, 0, refuse_change},
    {"pop", NULL, 0, refuse_change},
    {"popitem", NULL, 0, refuse_change},
    {"clear", NULL, 0, refuse_change},
    {"setdefault", NULL, 0, refuse_change},
    {0},
};
