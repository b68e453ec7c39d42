/* Jinja's expressions. Operators, from loosest to tightest:
 *
 *     if-else, or, and, not, comparison, + -, ~, * / // %, **, sign, . [] () | is
 *
 * There is one function per level. Filters and tests bind tighter than any operator, so
 * `not x is defined` is not (x is defined).
 */
#include "text/jinja_internal.h"

#include <string.h>

static bool is_type(const struct kg_jinja_parser *p, enum kg_jinja_token_type type)
{
    return p->at->type == type;
}

static kg_status parse_unary(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                             bool with_filters);

/* ---- arguments ---- */

static kg_status parse_argument(struct kg_jinja_node **out, struct kg_jinja_parser *p)
{
    struct kg_jinja_node *n;

    if (is_type(p, KG_JT_MUL) || is_type(p, KG_JT_POW)) {
        n = kg_jinja_node_new(p, KG_JN_SPREAD);
        if (!n)
            return p->err->code;
        n->flag = is_type(p, KG_JT_POW);
        p->at++;
        *out = n;
        return kg_jinja_parse_expr(&n->a, p);
    }
    if (!is_type(p, KG_JT_NAME) || p->at[1].type != KG_JT_ASSIGN)
        return kg_jinja_parse_expr(out, p);
    n = kg_jinja_node_new(p, KG_JN_NAMED);
    if (!n)
        return p->err->code;
    n->value = kg_jv_text(p->at->text.bytes, p->at->text.n);
    p->at += 2;
    *out = n;
    return kg_jinja_parse_expr(&n->a, p);
}

/* The items after an opening bracket, up to and including the closing one. */
static kg_status parse_list(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                            enum kg_jinja_token_type close, const char *what,
                            kg_status (*one)(struct kg_jinja_node **,
                                             struct kg_jinja_parser *))
{
    while (!kg_jinja_skip(p, close)) {
        KG_TRY(one(out, p));
        out = &(*out)->next;
        if (kg_jinja_skip(p, KG_JT_COMMA))
            continue;
        return kg_jinja_expect(p, close, what);
    }
    return KG_OK;
}

static kg_status parse_arguments(struct kg_jinja_node **out, struct kg_jinja_parser *p)
{
    return parse_list(out, p, KG_JT_RPAREN, ", or )", parse_argument);
}

/* ---- primaries ---- */

static kg_status parse_pair(struct kg_jinja_node **out, struct kg_jinja_parser *p)
{
    struct kg_jinja_node *n = kg_jinja_node_new(p, KG_JN_PAIR);

    if (!n)
        return p->err->code;
    *out = n;
    KG_TRY(kg_jinja_parse_expr(&n->a, p));
    KG_TRY(kg_jinja_expect(p, KG_JT_COLON, ":"));
    return kg_jinja_parse_expr(&n->b, p);
}

/* ( ), (a), (a,), (a, b) */
static kg_status parse_parens(struct kg_jinja_node **out, struct kg_jinja_parser *p)
{
    if (is_type(p, KG_JT_RPAREN)) {
        *out = kg_jinja_node_new(p, KG_JN_TUPLE);
        if (!*out)
            return p->err->code;
    } else {
        KG_TRY(kg_jinja_parse_tuple(out, p, false));
    }
    return kg_jinja_expect(p, KG_JT_RPAREN, ")");
}

static kg_status parse_strings(struct kg_jinja_node *n, struct kg_jinja_parser *p)
{
    size_t total = 0;
    size_t at = 0;
    char *text;

    for (const struct kg_jinja_token *t = p->at; t->type == KG_JT_STRING; t++)
        total += t->text.n;
    if (p->at[1].type != KG_JT_STRING) {
        n->value = kg_jv_text(p->at->text.bytes, total);
        p->at++;
        return KG_OK;
    }
    text = kg_pool_alloc(&p->t->pool, total + 1, 1, p->err);
    if (!text)
        return p->err->code;
    for (; is_type(p, KG_JT_STRING); p->at++) {
        memcpy(text + at, p->at->text.bytes, p->at->text.n);
        at += p->at->text.n;
    }
    n->value = kg_jv_text(text, total);
    return KG_OK;
}

static kg_status parse_name(struct kg_jinja_node **out, struct kg_jinja_parser *p)
{
    struct kg_jinja_node *n = kg_jinja_node_new(p, KG_JN_CONST);

    if (!n)
        return p->err->code;
    *out = n;
    if (kg_jinja_skip_name(p, "true") || kg_jinja_skip_name(p, "True"))
        n->value = kg_jv_bool(true);
    else if (kg_jinja_skip_name(p, "false") || kg_jinja_skip_name(p, "False"))
        n->value = kg_jv_bool(false);
    else if (kg_jinja_skip_name(p, "none") || kg_jinja_skip_name(p, "None"))
        n->value = kg_jv_none();
    else {
        n->kind = KG_JN_NAME;
        n->value = kg_jv_text(p->at->text.bytes, p->at->text.n);
        p->uses |= kg_jinja_is_name(p, "varargs") ? KG_JN_USES_VARARGS : 0;
        p->uses |= kg_jinja_is_name(p, "kwargs") ? KG_JN_USES_KWARGS : 0;
        p->t->asks_date |= kg_jinja_is_name(p, "strftime_now");
        p->at++;
    }
    return KG_OK;
}

static kg_status parse_bracketed(struct kg_jinja_node **out, struct kg_jinja_parser *p)
{
    bool is_dict = is_type(p, KG_JT_LBRACE);
    struct kg_jinja_node *n = kg_jinja_node_new(p, is_dict ? KG_JN_DICT : KG_JN_LIST);

    if (!n)
        return p->err->code;
    *out = n;
    p->at++;
    if (is_dict)
        return parse_list(&n->list, p, KG_JT_RBRACE, ", or }", parse_pair);
    return parse_list(&n->list, p, KG_JT_RBRACKET, ", or ]", kg_jinja_parse_expr);
}

kg_status kg_jinja_parse_primary(struct kg_jinja_node **out, struct kg_jinja_parser *p)
{
    struct kg_jinja_node *n;

    switch (p->at->type) {
    case KG_JT_NAME:
        return parse_name(out, p);
    case KG_JT_LPAREN:
        p->at++;
        return parse_parens(out, p);
    case KG_JT_LBRACKET:
    case KG_JT_LBRACE:
        return parse_bracketed(out, p);
    case KG_JT_STRING:
    case KG_JT_INTEGER:
    case KG_JT_FLOAT:
        n = kg_jinja_node_new(p, KG_JN_CONST);
        if (!n)
            return p->err->code;
        *out = n;
        if (is_type(p, KG_JT_STRING))
            return parse_strings(n, p);
        n->value = is_type(p, KG_JT_INTEGER) ? kg_jv_int(p->at->integer)
                                             : kg_jv_real(p->at->real);
        p->at++;
        return KG_OK;
    default:
        return kg_jinja_unexpected(p, "an expression");
    }
}

/* ---- postfixes ---- */

static bool slice_ends(const struct kg_jinja_parser *p)
{
    return is_type(p, KG_JT_RBRACKET) || is_type(p, KG_JT_COLON);
}

/* After [ : an index, or a slice with up to three bounds. */
static kg_status parse_subscript(struct kg_jinja_node *n, struct kg_jinja_parser *p)
{
    n->kind = KG_JN_ITEM;
    if (!is_type(p, KG_JT_COLON))
        KG_TRY(kg_jinja_parse_tuple(&n->b, p, false));
    if (kg_jinja_skip(p, KG_JT_COLON)) {
        n->kind = KG_JN_SLICE;
        if (!slice_ends(p))
            KG_TRY(kg_jinja_parse_expr(&n->c, p));
        if (kg_jinja_skip(p, KG_JT_COLON) && !slice_ends(p))
            KG_TRY(kg_jinja_parse_expr(&n->body, p));
    }
    return kg_jinja_expect(p, KG_JT_RBRACKET, "]");
}

static kg_status parse_dot(struct kg_jinja_node *n, struct kg_jinja_parser *p)
{
    n->kind = KG_JN_ATTR;
    if (is_type(p, KG_JT_NAME)) {
        n->value = kg_jv_text(p->at->text.bytes, p->at->text.n);
    } else if (is_type(p, KG_JT_INTEGER)) {
        n->kind = KG_JN_ITEM;
        n->b = kg_jinja_node_new(p, KG_JN_CONST);
        if (!n->b)
            return p->err->code;
        n->b->value = kg_jv_int(p->at->integer);
    } else {
        return kg_jinja_unexpected(p, "a name after .");
    }
    p->at++;
    return KG_OK;
}

kg_status kg_jinja_parse_postfix(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                                 struct kg_jinja_node *node)
{
    while (is_type(p, KG_JT_DOT) || is_type(p, KG_JT_LBRACKET) ||
           is_type(p, KG_JT_LPAREN)) {
        struct kg_jinja_node *n = kg_jinja_node_new(p, KG_JN_CALL);

        if (!n)
            return p->err->code;
        n->a = node;
        if (kg_jinja_skip(p, KG_JT_DOT))
            KG_TRY(parse_dot(n, p));
        else if (kg_jinja_skip(p, KG_JT_LBRACKET))
            KG_TRY(parse_subscript(n, p));
        else {
            p->at++;
            KG_TRY(parse_arguments(&n->list, p));
        }
        node = n;
    }
    *out = node;
    return KG_OK;
}

static kg_status parse_row_name(struct kg_jinja_node *n, struct kg_jinja_parser *p,
                                const char *what)
{
    if (!is_type(p, KG_JT_NAME))
        return kg_jinja_unexpected(p, what);
    n->value = kg_jv_text(p->at->text.bytes, p->at->text.n);
    p->at++;
    return KG_OK;
}

kg_status kg_jinja_parse_filters(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                                 struct kg_jinja_node *in, bool first_named)
{
    while (first_named || kg_jinja_skip(p, KG_JT_PIPE)) {
        struct kg_jinja_node *n = kg_jinja_node_new(p, KG_JN_FILTER);

        if (!n)
            return p->err->code;
        first_named = false;
        n->a = in;
        KG_TRY(parse_row_name(n, p, "the name of a filter"));
        n->row = kg_jinja_find_filter(n->value.u.text);
        if (kg_jinja_skip(p, KG_JT_LPAREN))
            KG_TRY(parse_arguments(&n->list, p));
        in = n;
    }
    *out = in;
    return KG_OK;
}

static bool test_takes_one(const struct kg_jinja_parser *p)
{
    switch (p->at->type) {
    case KG_JT_NAME:
        return !kg_jinja_is_name(p, "else") && !kg_jinja_is_name(p, "or") &&
               !kg_jinja_is_name(p, "and") && !kg_jinja_is_name(p, "if") &&
               !kg_jinja_is_name(p, "is");
    case KG_JT_STRING:
    case KG_JT_INTEGER:
    case KG_JT_FLOAT:
    case KG_JT_LBRACKET:
    case KG_JT_LBRACE:
        return true;
    default:
        return false;
    }
}

/* The test after `is`. */
static kg_status parse_test(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                            struct kg_jinja_node *in)
{
    struct kg_jinja_node *n = kg_jinja_node_new(p, KG_JN_TEST);

    if (!n)
        return p->err->code;
    n->a = in;
    n->flag = kg_jinja_skip_name(p, "not");
    KG_TRY(parse_row_name(n, p, "the name of a test"));
    n->row = kg_jinja_find(kg_jinja_tests, n->value.u.text);
    if (kg_jinja_skip(p, KG_JT_LPAREN))
        KG_TRY(parse_arguments(&n->list, p));
    else if (test_takes_one(p)) {
        KG_TRY(kg_jinja_parse_primary(&n->list, p));
        KG_TRY(kg_jinja_parse_postfix(&n->list, p, n->list));
    }
    *out = n;
    return KG_OK;
}

static kg_status parse_behind(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                              struct kg_jinja_node *node)
{
    for (;;) {
        if (is_type(p, KG_JT_PIPE))
            KG_TRY(kg_jinja_parse_filters(&node, p, node, false));
        else if (kg_jinja_skip_name(p, "is"))
            KG_TRY(parse_test(&node, p, node));
        else if (is_type(p, KG_JT_LPAREN))
            KG_TRY(kg_jinja_parse_postfix(&node, p, node));
        else
            break;
    }
    *out = node;
    return KG_OK;
}

/* ---- operators ---- */

static kg_status parse_unary_open(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                                  bool with_filters)
{
    struct kg_jinja_node *n;

    if (is_type(p, KG_JT_SUB) || is_type(p, KG_JT_ADD)) {
        n = kg_jinja_node_new(p, KG_JN_SIGN);
        if (!n)
            return p->err->code;
        n->op = (int)p->at->type;
        p->at++;
        KG_TRY(parse_unary(&n->a, p, false));
    } else {
        KG_TRY(kg_jinja_parse_primary(&n, p));
    }
    KG_TRY(kg_jinja_parse_postfix(&n, p, n));
    if (with_filters)
        KG_TRY(parse_behind(&n, p, n));
    *out = n;
    return KG_OK;
}

static kg_status parse_unary(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                             bool with_filters)
{
    KG_TRY(kg_jinja_enter(p));
    kg_status status = parse_unary_open(out, p, with_filters);
    p->depth--;
    return status;
}

/* Binary operators by level, the loosest first; they associate to the left. */
static const enum kg_jinja_token_type levels[][5] = {
    {KG_JT_ADD, KG_JT_SUB, KG_JT_END},
    {KG_JT_TILDE, KG_JT_END},
    {KG_JT_MUL, KG_JT_DIV, KG_JT_FLOORDIV, KG_JT_MOD, KG_JT_END},
    {KG_JT_POW, KG_JT_END},
};
enum { LEVELS = sizeof levels / sizeof *levels };

static bool is_of_level(const struct kg_jinja_parser *p, int level)
{
    for (int i = 0; levels[level][i] != KG_JT_END; i++)
        if (p->at->type == levels[level][i])
            return true;
    return false;
}

static kg_status parse_binary(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                              int level)
{
    struct kg_jinja_node *left;

    if (level == LEVELS)
        return parse_unary(out, p, true);
    KG_TRY(parse_binary(&left, p, level + 1));
    while (is_of_level(p, level)) {
        struct kg_jinja_node *n = kg_jinja_node_new(p, KG_JN_BINARY);

        if (!n)
            return p->err->code;
        n->op = (int)p->at->type;
        n->a = left;
        p->at++;
        KG_TRY(parse_binary(&n->b, p, level + 1));
        left = n;
    }
    *out = left;
    return KG_OK;
}

/* Consumes a comparison operator.   returns KG_JT_END if there is none */
static enum kg_jinja_token_type take_comparison(struct kg_jinja_parser *p)
{
    enum kg_jinja_token_type type = p->at->type;

    if (type >= KG_JT_EQ && type <= KG_JT_LE) {
        p->at++;
        return type;
    }
    if (kg_jinja_skip_name(p, "in"))
        return KG_JT_IN;
    if (kg_jinja_is_name(p, "not") && p->at[1].type == KG_JT_NAME &&
        p->at[1].text.n == 2 && memcmp(p->at[1].text.bytes, "in", 2) == 0) {
        p->at += 2;
        return KG_JT_NOT_IN;
    }
    return KG_JT_END;
}

static kg_status parse_compare(struct kg_jinja_node **out, struct kg_jinja_parser *p)
{
    struct kg_jinja_node *n = NULL;
    struct kg_jinja_node **tail = NULL;
    enum kg_jinja_token_type op;

    KG_TRY(parse_binary(out, p, 0));
    while ((op = take_comparison(p)) != KG_JT_END) {
        if (!n) {
            n = kg_jinja_node_new(p, KG_JN_COMPARE);
            if (!n)
                return p->err->code;
            n->a = *out;
            *out = n;
            tail = &n->list;
        }
        *tail = kg_jinja_node_new(p, KG_JN_OPERAND);
        if (!*tail)
            return p->err->code;
        (*tail)->op = (int)op;
        KG_TRY(parse_binary(&(*tail)->a, p, 0));
        tail = &(*tail)->next;
    }
    return KG_OK;
}

static kg_status parse_not(struct kg_jinja_node **out, struct kg_jinja_parser *p)
{
    if (!kg_jinja_is_name(p, "not"))
        return parse_compare(out, p);
    struct kg_jinja_node *n = kg_jinja_node_new(p, KG_JN_NOT);
    if (!n)
        return p->err->code;
    p->at++;
    *out = n;
    KG_TRY(kg_jinja_enter(p));
    kg_status status = parse_not(&n->a, p);
    p->depth--;
    return status;
}

static kg_status parse_logic(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                             bool is_or)
{
    struct kg_jinja_node *left;

    KG_TRY(is_or ? parse_logic(&left, p, false) : parse_not(&left, p));
    while (kg_jinja_skip_name(p, is_or ? "or" : "and")) {
        struct kg_jinja_node *n = kg_jinja_node_new(p, is_or ? KG_JN_OR : KG_JN_AND);

        if (!n)
            return p->err->code;
        n->a = left;
        KG_TRY(is_or ? parse_logic(&n->b, p, false) : parse_not(&n->b, p));
        left = n;
    }
    *out = left;
    return KG_OK;
}

/* An expression without `a if b else c`, such as the list of a for. */
static kg_status parse_or(struct kg_jinja_node **out, struct kg_jinja_parser *p)
{
    return parse_logic(out, p, true);
}

static kg_status parse_cond(struct kg_jinja_node **out, struct kg_jinja_parser *p)
{
    KG_TRY(parse_or(out, p));
    while (kg_jinja_is_name(p, "if")) {
        struct kg_jinja_node *n = kg_jinja_node_new(p, KG_JN_COND);

        if (!n)
            return p->err->code;
        p->at++;
        n->a = *out;
        *out = n;
        KG_TRY(parse_or(&n->b, p));
        if (kg_jinja_skip_name(p, "else"))
            KG_TRY(kg_jinja_parse_expr(&n->c, p));
    }
    return KG_OK;
}

kg_status kg_jinja_parse_expr(struct kg_jinja_node **out, struct kg_jinja_parser *p)
{
    KG_TRY(kg_jinja_enter(p));
    kg_status status = parse_cond(out, p);
    p->depth--;
    return status;
}

static bool tuple_ends(const struct kg_jinja_parser *p)
{
    return is_type(p, KG_JT_VARIABLE_END) || is_type(p, KG_JT_BLOCK_END) ||
           is_type(p, KG_JT_RPAREN) || is_type(p, KG_JT_RBRACKET) ||
           is_type(p, KG_JT_ASSIGN) || kg_jinja_is_name(p, "in");
}

kg_status kg_jinja_parse_tuple(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                               bool no_cond)
{
    KG_TRY(no_cond ? parse_or(out, p) : kg_jinja_parse_expr(out, p));
    if (!is_type(p, KG_JT_COMMA))
        return KG_OK;
    struct kg_jinja_node *n = kg_jinja_node_new(p, KG_JN_TUPLE);
    if (!n)
        return p->err->code;
    n->list = *out;
    *out = n;
    struct kg_jinja_node **tail = &n->list->next;
    while (kg_jinja_skip(p, KG_JT_COMMA) && !tuple_ends(p)) {
        KG_TRY(no_cond ? parse_or(tail, p) : kg_jinja_parse_expr(tail, p));
        tail = &(*tail)->next;
    }
    return KG_OK;
}
