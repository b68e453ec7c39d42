/* Jinja's statements: from tokens to a tree.
 *
 * A block is read up to one of the tags that may end it; the caller names these tags, so
 * nesting needs no separate stack. Depth is bounded, because the walk over the tree
 * recurses as deep. Expressions are in jinja_parse_expr.c.
 */
#include "text/jinja_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 100 };

kg_status kg_jinja_fail_at(const struct kg_chat_template *t, uint32_t line,
                           uint32_t column, struct kg_err *err, const char *fmt, ...)
{
    char message[KG_ERR_MESSAGE_BYTES];
    va_list args;

    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return kg_fail(err, KG_EFORMAT, "%s line %u column %u: %s", t->where, line, column,
                   message);
}

/* ---- the current token ---- */

struct kg_jinja_node *kg_jinja_node_new(struct kg_jinja_parser *p,
                                        enum kg_jinja_kind kind)
{
    struct kg_jinja_node *n = kg_pool_alloc(&p->t->pool, 1, sizeof *n, p->err);

    if (!n)
        return NULL;
    n->kind = kind;
    n->line = p->at->line;
    n->column = p->at->column;
    return n;
}

bool kg_jinja_is_name(const struct kg_jinja_parser *p, const char *name)
{
    return p->at->type == KG_JT_NAME && p->at->text.n == strlen(name) &&
           memcmp(p->at->text.bytes, name, p->at->text.n) == 0;
}

bool kg_jinja_skip(struct kg_jinja_parser *p, enum kg_jinja_token_type type)
{
    bool is = p->at->type == type;

    p->at += is;
    return is;
}

bool kg_jinja_skip_name(struct kg_jinja_parser *p, const char *name)
{
    bool is = kg_jinja_is_name(p, name);

    p->at += is;
    return is;
}

kg_status kg_jinja_unexpected(struct kg_jinja_parser *p, const char *expected)
{
    const struct kg_jinja_token *t = p->at;
    int n = t->text.n > 40 ? 40 : (int)t->text.n;

    while (n > 0 && n < (int)t->text.n &&
           ((unsigned char)t->text.bytes[n] & 0xC0) == 0x80)
        n--;
    if (t->type == KG_JT_END)
        return kg_jinja_fail_at(p->t, t->line, t->column, p->err,
                                "expected %s, found the end of the template", expected);
    return kg_jinja_fail_at(p->t, t->line, t->column, p->err, "expected %s, found '%.*s'",
                            expected, n, t->text.bytes);
}

kg_status kg_jinja_expect(struct kg_jinja_parser *p, enum kg_jinja_token_type type,
                          const char *what)
{
    return kg_jinja_skip(p, type) ? KG_OK : kg_jinja_unexpected(p, what);
}

kg_status kg_jinja_enter(struct kg_jinja_parser *p)
{
    if (p->depth >= MAX_DEPTH)
        return kg_jinja_fail_at(p->t, p->at->line, p->at->column, p->err,
                                "expected blocks and brackets at most %d deep, found "
                                "more",
                                MAX_DEPTH);
    p->depth++;
    return KG_OK;
}

/* ---- blocks ---- */

static kg_status parse_body(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                            const char *ends);

static kg_status end_of_tag(struct kg_jinja_parser *p)
{
    return kg_jinja_expect(p, KG_JT_BLOCK_END, "%}");
}

/* A body, up to and including the tag `end`. */
static kg_status parse_to(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                          const char *end)
{
    KG_TRY(end_of_tag(p));
    KG_TRY(parse_body(out, p, end));
    p->at++;
    return end_of_tag(p);
}

/* The rest of an if or elif, up to and including endif. */
static kg_status parse_if(struct kg_jinja_node *n, struct kg_jinja_parser *p)
{
    struct kg_jinja_node *last = n;

    for (;;) {
        KG_TRY(kg_jinja_parse_tuple(&last->a, p, false));
        KG_TRY(end_of_tag(p));
        KG_TRY(parse_body(&last->body, p, "elif else endif"));
        if (!kg_jinja_is_name(p, "elif"))
            break;
        last->other = kg_jinja_node_new(p, KG_JN_IF);
        if (!last->other)
            return p->err->code;
        last = last->other;
        p->at++;
    }
    if (kg_jinja_skip_name(p, "else"))
        return parse_to(&last->other, p, "endif");
    p->at++;
    return end_of_tag(p);
}

/* The target of an assignment: a name, ns.name, or a tuple of names. */
static kg_status parse_target(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                              bool with_attr)
{
    const struct kg_jinja_token *at = p->at;

    if (at->type != KG_JT_NAME && at->type != KG_JT_LPAREN)
        return kg_jinja_unexpected(p, "a name to assign to");
    if (with_attr && at->type == KG_JT_NAME && at[1].type == KG_JT_DOT) {
        KG_TRY(kg_jinja_parse_primary(out, p));
        KG_TRY(kg_jinja_parse_postfix(out, p, *out));
    } else {
        struct kg_jinja_node **tail = out;

        KG_TRY(kg_jinja_parse_primary(out, p));
        if (p->at->type == KG_JT_COMMA) {
            struct kg_jinja_node *tuple = kg_jinja_node_new(p, KG_JN_TUPLE);

            if (!tuple)
                return p->err->code;
            tuple->list = *out;
            *out = tuple;
            tail = &tuple->list->next;
        }
        while (kg_jinja_skip(p, KG_JT_COMMA) && p->at->type == KG_JT_NAME &&
               !kg_jinja_is_name(p, "in")) {
            KG_TRY(kg_jinja_parse_primary(tail, p));
            tail = &(*tail)->next;
        }
    }
    return KG_OK;
}

static kg_status check_target(struct kg_jinja_parser *p, const struct kg_jinja_node *n,
                              bool with_attr)
{
    if (n->kind == KG_JN_NAME ||
        (with_attr && n->kind == KG_JN_ATTR && n->a->kind == KG_JN_NAME))
        return KG_OK;
    if (n->kind != KG_JN_TUPLE || !n->list)
        return kg_jinja_fail_at(p->t, n->line, n->column, p->err,
                                "expected a name to assign to, found an expression");
    for (n = n->list; n; n = n->next)
        if (n->kind != KG_JN_NAME)
            return kg_jinja_fail_at(p->t, n->line, n->column, p->err,
                                    "expected a name to assign to, found an expression");
    return KG_OK;
}

static kg_status parse_for(struct kg_jinja_node *n, struct kg_jinja_parser *p)
{
    KG_TRY(parse_target(&n->a, p, false));
    KG_TRY(check_target(p, n->a, false));
    if (!kg_jinja_skip_name(p, "in"))
        return kg_jinja_unexpected(p, "in");
    KG_TRY(kg_jinja_parse_tuple(&n->b, p, true));
    if (kg_jinja_skip_name(p, "if"))
        KG_TRY(kg_jinja_parse_expr(&n->c, p));
    n->flag = kg_jinja_skip_name(p, "recursive");
    KG_TRY(end_of_tag(p));
    p->loops++;
    KG_TRY(parse_body(&n->body, p, "else endfor"));
    p->loops--;
    if (kg_jinja_skip_name(p, "else"))
        return parse_to(&n->other, p, "endfor");
    p->at++;
    return end_of_tag(p);
}

static kg_status parse_set(struct kg_jinja_node *n, struct kg_jinja_parser *p)
{
    KG_TRY(parse_target(&n->a, p, true));
    KG_TRY(check_target(p, n->a, true));
    if (kg_jinja_skip(p, KG_JT_ASSIGN)) {
        KG_TRY(kg_jinja_parse_tuple(&n->b, p, false));
        return end_of_tag(p);
    }
    n->kind = KG_JN_SET_BLOCK;
    if (p->at->type == KG_JT_PIPE) {
        struct kg_jinja_node *in = kg_jinja_node_new(p, KG_JN_CAPTURED);

        if (!in)
            return p->err->code;
        KG_TRY(kg_jinja_parse_filters(&n->b, p, in, false));
    }
    return parse_to(&n->body, p, "endset");
}

/* Parameters after (: "a, b=1", up to and including ). */
static kg_status parse_parameters(struct kg_jinja_node **out, struct kg_jinja_parser *p)
{
    while (!kg_jinja_skip(p, KG_JT_RPAREN)) {
        if (p->at->type != KG_JT_NAME)
            return kg_jinja_unexpected(p, "the name of a parameter");
        KG_TRY(kg_jinja_parse_primary(out, p));
        if ((*out)->kind != KG_JN_NAME)
            return kg_jinja_unexpected(p, "the name of a parameter before this");
        if (kg_jinja_skip(p, KG_JT_ASSIGN))
            KG_TRY(kg_jinja_parse_expr(&(*out)->a, p));
        out = &(*out)->next;
        if (!kg_jinja_skip(p, KG_JT_COMMA))
            return kg_jinja_expect(p, KG_JT_RPAREN, ", or )");
    }
    return KG_OK;
}

/* A body that is a function: break and continue cannot leave a loop around it. */
static kg_status parse_function_body(struct kg_jinja_node *n, struct kg_jinja_parser *p,
                                     const char *end)
{
    int loops = p->loops;
    int uses = p->uses;

    p->loops = p->uses = 0;
    KG_TRY(parse_to(&n->body, p, end));
    n->uses = p->uses;
    p->loops = loops;
    p->uses = uses;
    return KG_OK;
}

static kg_status parse_macro(struct kg_jinja_node *n, struct kg_jinja_parser *p)
{
    if (p->at->type != KG_JT_NAME)
        return kg_jinja_unexpected(p, "the name of a macro");
    n->value = kg_jv_text(p->at->text.bytes, p->at->text.n);
    p->at++;
    KG_TRY(kg_jinja_expect(p, KG_JT_LPAREN, "("));
    KG_TRY(parse_parameters(&n->list, p));
    return parse_function_body(n, p, "endmacro");
}

static kg_status parse_call(struct kg_jinja_node *n, struct kg_jinja_parser *p)
{
    n->value = kg_jv_text("caller", 6);
    if (kg_jinja_skip(p, KG_JT_LPAREN))
        KG_TRY(parse_parameters(&n->list, p));
    KG_TRY(kg_jinja_parse_expr(&n->a, p));
    if (n->a->kind != KG_JN_CALL)
        return kg_jinja_unexpected(p, "a call before this");
    return parse_function_body(n, p, "endcall");
}

static kg_status parse_filter(struct kg_jinja_node *n, struct kg_jinja_parser *p)
{
    struct kg_jinja_node *in = kg_jinja_node_new(p, KG_JN_CAPTURED);

    if (!in)
        return p->err->code;
    KG_TRY(kg_jinja_parse_filters(&n->b, p, in, true));
    return parse_to(&n->body, p, "endfilter");
}

static kg_status parse_with(struct kg_jinja_node *n, struct kg_jinja_parser *p)
{
    struct kg_jinja_node **tail = &n->list;

    while (p->at->type != KG_JT_BLOCK_END) {
        *tail = kg_jinja_node_new(p, KG_JN_SET);
        if (!*tail)
            return p->err->code;
        KG_TRY(kg_jinja_parse_primary(&(*tail)->a, p));
        KG_TRY(check_target(p, (*tail)->a, false));
        KG_TRY(kg_jinja_expect(p, KG_JT_ASSIGN, "="));
        KG_TRY(kg_jinja_parse_expr(&(*tail)->b, p));
        tail = &(*tail)->next;
        if (!kg_jinja_skip(p, KG_JT_COMMA))
            break;
    }
    return parse_to(&n->body, p, "endwith");
}

static kg_status parse_generation(struct kg_jinja_node *n, struct kg_jinja_parser *p)
{
    return parse_to(&n->body, p, "endgeneration");
}

static kg_status parse_leave(struct kg_jinja_node *n, struct kg_jinja_parser *p)
{
    (void)n;
    if (p->loops == 0)
        return kg_jinja_unexpected(p, "a loop around break or continue");
    return end_of_tag(p);
}

static const struct {
    const char *name;
    enum kg_jinja_kind kind;
    kg_status (*parse)(struct kg_jinja_node *, struct kg_jinja_parser *);
} tags[] = {
    {"if", KG_JN_IF, parse_if},
    {"for", KG_JN_FOR, parse_for},
    {"set", KG_JN_SET, parse_set},
    {"macro", KG_JN_MACRO, parse_macro},
    {"call", KG_JN_CALL_BLOCK, parse_call},
    {"filter", KG_JN_FILTER_BLOCK, parse_filter},
    {"with", KG_JN_WITH, parse_with},
    {"generation", KG_JN_GENERATION, parse_generation},
    {"break", KG_JN_BREAK, parse_leave},
    {"continue", KG_JN_CONTINUE, parse_leave},
};

static kg_status parse_tag(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                           const char *ends)
{
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        if (!kg_jinja_is_name(p, tags[i].name))
            continue;
        *out = kg_jinja_node_new(p, tags[i].kind);
        if (!*out)
            return p->err->code;
        p->at++;
        return tags[i].parse(*out, p);
    }
    if (*ends)
        return kg_jinja_fail_at(p->t, p->at->line, p->at->column, p->err,
                                "expected a tag or one of %s, found '%.*s'", ends,
                                (int)(p->at->text.n > 40 ? 40 : p->at->text.n),
                                p->at->text.bytes);
    return kg_jinja_unexpected(p, "if, for, set, macro, call, filter, with, generation, "
                                  "break or continue");
}

/* Whether the current token is a name that is listed in ends. */
static bool is_one_of(const struct kg_jinja_parser *p, const char *ends)
{
    return p->at->type == KG_JT_NAME &&
           kg_str_listed(ends, p->at->text.bytes, p->at->text.n);
}

static kg_status parse_output(struct kg_jinja_node **out, struct kg_jinja_parser *p)
{
    *out = kg_jinja_node_new(p, KG_JN_OUTPUT);
    if (!*out)
        return p->err->code;
    KG_TRY(kg_jinja_parse_tuple(&(*out)->a, p, false));
    return kg_jinja_expect(p, KG_JT_VARIABLE_END, "}}");
}

static kg_status parse_body_open(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                                 const char *ends)
{
    for (;; out = *out ? &(*out)->next : out) {
        switch (p->at->type) {
        case KG_JT_DATA:
            *out = kg_jinja_node_new(p, KG_JN_DATA);
            if (!*out)
                return p->err->code;
            (*out)->value = kg_jv_text(p->at->text.bytes, p->at->text.n);
            p->at++;
            break;
        case KG_JT_VARIABLE_BEGIN:
            p->at++;
            KG_TRY(parse_output(out, p));
            break;
        case KG_JT_BLOCK_BEGIN:
            p->at++;
            if (is_one_of(p, ends))
                return KG_OK;
            KG_TRY(parse_tag(out, p, ends));
            break;
        default:
            return *ends ? kg_jinja_unexpected(p, ends) : KG_OK;
        }
    }
}

/* Statements up to one of the tags in ends, whose name is then the current token; "": to
 * the end of the template. */
static kg_status parse_body(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                            const char *ends)
{
    KG_TRY(kg_jinja_enter(p));
    kg_status status = parse_body_open(out, p, ends);
    p->depth--;
    return status;
}

kg_status kg_jinja_parse(struct kg_chat_template *t, const struct kg_jinja_token *tokens,
                         struct kg_err *err)
{
    struct kg_jinja_parser p = {.t = t, .at = tokens, .err = err};

    return parse_body(&t->root, &p, "");
}
