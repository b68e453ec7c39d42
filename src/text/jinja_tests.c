/* The tests of `is`: from a value to true or false.
 *
 * A test is a row, as a filter is, so it may have arguments (`is divisibleby 3`).
 * Operators are also tests with names (`eq`, `lt`), for select and reject. Most tests
 * look at the type alone and are one line. An undefined value is iterable, a sequence and
 * callable, because Jinja's Undefined is an object with those methods: templates rely on
 * such oddities, so they are kept.
 */
#include "text/jinja_internal.h"

#include <string.h>

#define TEST(name, condition)                                                            \
    static kg_status name(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in, \
                          const struct kg_jinja_args *args)                              \
    {                                                                                    \
        (void)j;                                                                         \
        (void)args;                                                                      \
        *out = kg_jv_bool(condition);                                                    \
        return KG_OK;                                                                    \
    }
TEST(is_defined, in->type != KG_JV_UNDEFINED)
TEST(is_undefined, in->type == KG_JV_UNDEFINED)
TEST(is_none, in->type == KG_JV_NONE)
TEST(is_boolean, in->type == KG_JV_BOOL)
TEST(is_true, in->type == KG_JV_BOOL && in->u.truth)
TEST(is_false, in->type == KG_JV_BOOL && !in->u.truth)
TEST(is_integer, in->type == KG_JV_INT)
TEST(is_float, in->type == KG_JV_REAL)
TEST(is_number, kg_jv_is_number(in))
TEST(is_string, in->type == KG_JV_TEXT)
TEST(is_mapping, in->type == KG_JV_DICT && !in->u.dict->is_namespace)
TEST(is_iterable, in->type == KG_JV_TEXT || in->type == KG_JV_LIST ||
                      in->type == KG_JV_UNDEFINED || in->type == KG_JV_LOOP ||
                      (in->type == KG_JV_DICT && !in->u.dict->is_namespace))
TEST(is_sequence, in->type == KG_JV_TEXT || in->type == KG_JV_UNDEFINED ||
                      (in->type == KG_JV_LIST && in->u.list->kind <= KG_JV_RANGE) ||
                      (in->type == KG_JV_DICT && !in->u.dict->is_namespace))
TEST(is_callable,
     in->type == KG_JV_CALLABLE || in->type == KG_JV_LOOP || in->type == KG_JV_UNDEFINED)
TEST(is_filter, in->type == KG_JV_TEXT && kg_jinja_find_filter(in->u.text) != NULL)
TEST(is_test, in->type == KG_JV_TEXT && kg_jinja_find(kg_jinja_tests, in->u.text) != NULL)
TEST(is_escaped, in->safe)
#undef TEST

static kg_status is_equal(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                          const struct kg_jinja_args *args)
{
    bool equal;

    KG_TRY(kg_jv_equal(&equal, j, in, args->by[0]));
    *out = kg_jv_bool(equal);
    return KG_OK;
}

static kg_status is_unequal(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                            const struct kg_jinja_args *args)
{
    KG_TRY(is_equal(out, j, in, args));
    *out = kg_jv_bool(!out->u.truth);
    return KG_OK;
}

/* Whether both are one object; numbers and texts: whether type and value are equal. */
static kg_status is_same(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                         const struct kg_jinja_args *args)
{
    const struct kg_jv *b = args->by[0];
    bool same = in->type == b->type;

    if (same && in->type == KG_JV_LIST)
        same = in->u.list == b->u.list;
    else if (same && in->type == KG_JV_DICT)
        same = in->u.dict == b->u.dict;
    else if (same)
        KG_TRY(kg_jv_equal(&same, j, in, b));
    *out = kg_jv_bool(same);
    return KG_OK;
}

#define ORDER(name, condition)                                                           \
    static kg_status name(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in, \
                          const struct kg_jinja_args *args)                              \
    {                                                                                    \
        int sign;                                                                        \
                                                                                         \
        KG_TRY(kg_jv_compare(&sign, j, in, args->by[0]));                                \
        *out = kg_jv_bool(condition);                                                    \
        return KG_OK;                                                                    \
    }
ORDER(is_less, sign < 0)
ORDER(is_at_most, sign <= 0)
ORDER(is_greater, sign > 0)
ORDER(is_at_least, sign >= 0)
#undef ORDER

static kg_status is_in(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                       const struct kg_jinja_args *args)
{
    bool found;

    KG_TRY(kg_jv_contains(&found, j, args->by[0], in));
    *out = kg_jv_bool(found);
    return KG_OK;
}

/* Whether a whole number, divided by `by`, leaves `rest` (or -rest). */
static kg_status divides(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                         int64_t by, int64_t rest)
{
    int64_t i;

    if (!kg_jv_as_int(&i, in))
        return kg_jinja_fail(j, "expected a whole number, found %s", kg_jv_type_name(in));
    if (by == 0)
        return kg_jinja_fail(j, "expected a divisor, found 0");
    i = by == -1 ? 0 : i % by;
    *out = kg_jv_bool((i < 0 ? -i : i) == rest);
    return KG_OK;
}

static kg_status is_even(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                         const struct kg_jinja_args *args)
{
    (void)args;
    return divides(out, j, in, 2, 0);
}

static kg_status is_odd(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                        const struct kg_jinja_args *args)
{
    (void)args;
    return divides(out, j, in, 2, 1);
}

static kg_status is_divisible(struct kg_jv *out, struct kg_jinja *j,
                              const struct kg_jv *in, const struct kg_jinja_args *args)
{
    int64_t by;

    if (!kg_jv_as_int(&by, args->by[0]))
        return kg_jinja_fail(j, "expected a whole number, found %s",
                             kg_jv_type_name(args->by[0]));
    return divides(out, j, in, by, 0);
}

static kg_status case_test(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                           const char *method)
{
    struct kg_jinja_args none = {0};
    struct kg_jv_text name = {method, strlen(method)};
    struct kg_jv text;

    KG_TRY(kg_jv_str(&text, j, in));
    return kg_jinja_call_row(out, j, kg_jinja_find(kg_jinja_text_methods, name), &text,
                             &none);
}

static kg_status is_upper(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                          const struct kg_jinja_args *args)
{
    (void)args;
    return case_test(out, j, in, "isupper");
}

static kg_status is_lower(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                          const struct kg_jinja_args *args)
{
    (void)args;
    return case_test(out, j, in, "islower");
}

const struct kg_jinja_row kg_jinja_tests[] = {
    {"boolean", "", 0, is_boolean},
    {"callable", "", 0, is_callable},
    {"defined", "", 0, is_defined},
    {"divisibleby", "num", 1, is_divisible},
    {"eq", "other", 1, is_equal},
    {"==", "other", 1, is_equal},
    {"equalto", "other", 1, is_equal},
    {"escaped", "", 0, is_escaped},
    {"even", "", 0, is_even},
    {"false", "", 0, is_false},
    {"filter", "", 0, is_filter},
    {"float", "", 0, is_float},
    {"ge", "other", 1, is_at_least},
    {">=", "other", 1, is_at_least},
    {"gt", "other", 1, is_greater},
    {">", "other", 1, is_greater},
    {"greaterthan", "other", 1, is_greater},
    {"in", "seq", 1, is_in},
    {"integer", "", 0, is_integer},
    {"iterable", "", 0, is_iterable},
    {"le", "other", 1, is_at_most},
    {"<=", "other", 1, is_at_most},
    {"lessthan", "other", 1, is_less},
    {"lower", "", 0, is_lower},
    {"lt", "other", 1, is_less},
    {"<", "other", 1, is_less},
    {"mapping", "", 0, is_mapping},
    {"ne", "other", 1, is_unequal},
    {"!=", "other", 1, is_unequal},
    {"none", "", 0, is_none},
    {"number", "", 0, is_number},
    {"odd", "", 0, is_odd},
    {"sameas", "other", 1, is_same},
    {"sequence", "", 0, is_sequence},
    {"string", "", 0, is_string},
    {"test", "", 0, is_test},
    {"true", "", 0, is_true},
    {"undefined", "", 0, is_undefined},
    {"upper", "", 0, is_upper},
    {0},
};
