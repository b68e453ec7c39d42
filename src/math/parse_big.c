/* Sums, products, integrals, limits and derivatives.
 *
 * Each becomes a node with the variable, the limits and the body, so that it can be
 * computed. Other forms keep their limits as text and equal only the same text. The d of
 * a derivative is not a factor: dx is one name, and the parser looks for \frac{d}{dx}
 * before it reads \frac as a quotient. A letter with brackets after it may be a function,
 * f(x), and not a product; a body with such a letter is kept as text.
 */
#include "math/math_internal.h"

#include <ctype.h>
#include <string.h>

/* ---- pieces of text ---- */

int kg_math_parse_part(struct kg_math_parser *p, const char *text, size_t n)
{
    struct kg_math_parser inner = *p;

    inner.p = text;
    inner.end = text + n;
    inner.bars = inner.related = 0;
    int node = kg_math_parse_list(&inner);
    return node && kg_math_look(&inner) == 0 ? kg_math_parse_unwrap(&inner, node) : 0;
}

static const char *after_blanks(const char *at, const char *end)
{
    while (at < end && isspace((unsigned char)*at))
        at++;
    return at;
}

/* The end of the word at `at`, or NULL. */
static const char *after_word(const char *at, const char *end, const char *word)
{
    size_t n = strlen(word);

    return (size_t)(end - at) >= n && memcmp(at, word, n) == 0 ? at + n : NULL;
}

/* The end of the d or \partial at `at`, in any font; or NULL. */
static const char *after_d(const char *at, const char *end, bool *partial)
{
    static const char *const marks[] = {
        "\\partial", "d", "\\mathrm{d}", "\\mathrm d", "\\text{d}", "\\rm d", "{\\rm d}"};

    at = after_blanks(at, end);
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        const char *to = after_word(at, end, marks[i]);

        *partial = i == 0;
        if (to)
            return to;
    }
    return NULL;
}

/* The end of the name (a letter or command, with its subscript) at `at`, or NULL. */
static const char *after_name(const char *at, const char *end)
{
    bool command = at < end && *at == '\\';
    const char *to = at + command;

    while (to < end && isalpha((unsigned char)*to) && (command || to == at))
        to++;
    if (to == at + command ||
        (command && !kg_math_is_symbol(at + 1, (size_t)(to - at - 1))))
        return NULL;
    if (to + 1 < end && *to == '_')
        to += to[1] == '{' ? 2 + kg_math_brace_end(to + 1, (size_t)(end - to - 1)) : 2;
    return to < end ? to : end;
}

/* Reads the order "^2" or "^{2}" and moves *at past it; 1 if there is none. */
static int order_at(const char **at, const char *end)
{
    const char *p = after_blanks(*at, end);
    bool braces = end - p > 3 && p[0] == '^' && p[1] == '{' && p[3] == '}';

    if (end - p < 2 || *p != '^' || !isdigit((unsigned char)p[1 + braces]))
        return 1;
    *at = p + (braces ? 4 : 2);
    return p[1 + braces] - '0';
}

/* Whether a letter that is not the variable has brackets after it: f(k). */
static bool applies_name(const char *text, const char *end, const char *variable)
{
    for (const char *p = text; p < end; p++) {
        const char *from = p;

        if (!kg_char_in("([", *p))
            continue;
        while (from > text && isalpha((unsigned char)from[-1]))
            from--;
        if (from == p || (from > text && from[-1] == '\\') ||
            kg_math_word_find(from, (size_t)(p - from)))
            continue;
        if (p[-1] != variable[0] || variable[1])
            return true;
    }
    return false;
}

/* ---- bound names ---- */

/* Whether a name has the variable in a subscript: a_k. */
static bool names_index(const struct kg_math_tree *t, int node, const char *variable)
{
    const struct kg_math_node *n = &t->nodes[node];
    const char *sub = n->kind == KG_MATH_SYM ? strchr(kg_math_leaf_text(t, node), '_')
                                             : NULL;

    return node && ((sub && strstr(sub, variable)) || names_index(t, n->a, variable) ||
                    names_index(t, n->b, variable));
}

/* Binds the name wherever it occurs. An index i is then not the imaginary unit. */
static void bind(struct kg_math_tree *t, int node, int name)
{
    struct kg_math_node *n = &t->nodes[node];
    const char *text = kg_math_leaf_text(t, name);

    if (!node)
        return;
    if ((n->kind == KG_MATH_SYM && strcmp(kg_math_leaf_text(t, node), text) == 0) ||
        (n->kind == KG_MATH_CONST && n->op == KG_MATH_I && strcmp(text, "i") == 0)) {
        *n = t->nodes[name];
        return;
    }
    bind(t, n->a, name);
    bind(t, n->b, name);
}

/* ---- sums, products, integrals, limits ---- */

struct big {
    enum kg_math_big op;
    const struct kg_math_command *row; /* the command */
    const char *text[2];               /* texts of the lower and the upper limit */
    size_t n[2];
    const char *from; /* text of the body */
    const char *to;
    int variable;
    int low, high, body;
};

static int build_big(struct kg_math_tree *t, const struct big *b)
{
    const int part[] = {b->variable, b->low, b->high, b->body};
    int node = kg_math_leaf(t, KG_MATH_OPAQUE, b->op, b->row->name, b->row->n);
    int list = 0;
    int last = 0;

    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        kg_math_list_add(t, &list, &last, part[i]);
    t->nodes[node].a = (uint16_t)list;
    t->nodes[node].size += t->nodes[list].size;
    return node;
}

/* A node with limits as text, which equals only the same text. */
static int build_text(struct kg_math_parser *p, struct big *b)
{
    for (int i = 0; i < 2; i++) {
        int *limit = i ? &b->high : &b->low;

        *limit = b->text[i]
                     ? kg_math_name(p, KG_MATH_SYM, i ? "^" : "_", b->text[i], b->n[i])
                     : 0;
    }
    b->op = KG_MATH_AS_TEXT;
    b->variable = 0;
    return build_big(p->t, b);
}

/* Reads k = 1 or x \to 0 below a sum or limit.   returns false for other forms */
static bool read_index(struct kg_math_parser *p, struct big *b)
{
    const char *text = b->text[0];
    size_t n = b->n[0];

    while (b->op == KG_MATH_LIM && n > 2 && kg_char_in("+-}^{", text[n - 1]) &&
           (text[n - 1] != '}' || kg_char_in("+-", text[n - 2])))
        n--; /* the + of 0^+ */
    int node = text ? kg_math_parse_part(p, text, n) : 0;
    const struct kg_math_node *relation = &p->t->nodes[node];
    if (relation->kind != KG_MATH_REL ||
        relation->op != (b->op == KG_MATH_LIM ? KG_MATH_TO : KG_MATH_EQ))
        return false;
    b->variable = relation->a;
    b->low = relation->b;
    if (p->t->nodes[b->variable].kind == KG_MATH_CONST &&
        p->t->nodes[b->variable].op == KG_MATH_I)
        b->variable = kg_math_leaf(p->t, KG_MATH_SYM, 0, "i", 1);
    return p->t->nodes[b->variable].kind == KG_MATH_SYM;
}

/* Finds the dx that ends the integral that began at p->p; nested ones end at their own.
 * returns its start (*to: its end; *name, *n: the variable), or NULL */
static const char *find_differential(struct kg_math_parser *p, const char **to,
                                     const char **name, size_t *n)
{
    int open = 1;
    int depth = 0;
    bool partial;

    for (const char *at = p->p; at < p->end && depth >= 0; at++) {
        const char *d = depth == 0 ? after_d(at, p->end, &partial) : NULL;

        *name = d ? after_blanks(d, p->end) : NULL;
        *to = d && !partial ? after_name(*name, p->end) : NULL;
        *n = *to ? (size_t)(*to - *name) : 0;
        if (*to && --open == 0)
            return at;
        if (after_word(at, p->end, "\\int"))
            open++;
        depth += (kg_char_in("({[", *at) != 0) - (kg_char_in(")}]", *at) != 0);
        if (*to)
            at = *to - 1;
        while (*at == '\\' && at + 1 < p->end && isalpha((unsigned char)at[1]) &&
               at + 2 < p->end && isalpha((unsigned char)at[2]))
            at++; /* no d inside of \cdot */
    }
    return NULL;
}

/* Replaces the first dx in a tree by 1: \frac{dx}{x}.   returns its variable, or NULL */
static const char *take_differential(struct kg_math_tree *t, int node)
{
    struct kg_math_node *n = &t->nodes[node];
    const char *text = kg_math_leaf_text(t, node);

    if (!node)
        return NULL;
    if (n->kind == KG_MATH_SYM && n->len > 1 && text[0] == 'd') {
        *n = t->nodes[kg_math_small(t, 1)];
        return text + 1;
    }
    const char *found = take_differential(t, n->a);
    return found ? found : take_differential(t, n->b);
}

/* Reads the body and variable of an integral.   returns false for other forms */
static bool read_integrand(struct kg_math_parser *p, struct big *b)
{
    const char *to;
    const char *name;
    size_t n;
    const char *at = find_differential(p, &to, &name, &n);

    if (at) {
        b->body = after_blanks(b->from, at) == at
                      ? kg_math_small(p->t, 1)
                      : kg_math_parse_part(p, b->from, (size_t)(at - b->from));
        p->p = b->to = to;
    } else {
        b->body = kg_math_parse_term(p);
        b->to = p->p;
        name = b->body ? take_differential(p->t, b->body) : NULL;
        n = name ? strlen(name) : 0;
    }
    b->variable = n ? kg_math_name(p, KG_MATH_SYM, "", name + (*name == '\\'),
                                   n - (*name == '\\'))
                    : 0;
    b->low = b->text[0] ? kg_math_parse_part(p, b->text[0], b->n[0]) : 0;
    return b->variable && b->body && (b->low || !b->text[0]) &&
           (b->text[0] != NULL) == (b->text[1] != NULL);
}

static bool read_body(struct kg_math_parser *p, struct big *b)
{
    bool negative = kg_math_eat(p, "-");

    if (!negative && !kg_math_starts_value(p))
        return false;
    b->body = kg_math_parse_term(p);
    b->to = p->p;
    if (b->body && negative)
        b->body = kg_math_node(p->t, KG_MATH_NEG, 0, b->body, 0);
    return b->body && read_index(p, b) && (b->op == KG_MATH_LIM || b->text[1]);
}

int kg_math_parse_big(struct kg_math_parser *p, const struct kg_math_command *row)
{
    struct big b = {.op = (enum kg_math_big)row->op, .row = row};

    while (kg_math_look(p) == '_' || kg_math_look(p) == '^') {
        int i = *p->p++ == '^';

        b.text[i] = kg_math_raw_arg(p, &b.n[i]);
        if (!b.text[i])
            return kg_math_parse_fail(p, "a limit that cannot be read");
    }
    b.from = b.to = p->p;
    bool ok = b.op == KG_MATH_INT ? read_integrand(p, &b) : read_body(p, &b);
    if (p->why)
        return 0;
    if (ok && b.text[1])
        b.high = kg_math_parse_part(p, b.text[1], b.n[1]);
    if (!ok || b.op == KG_MATH_AS_TEXT || (b.text[1] && !b.high) ||
        applies_name(b.from, b.to, kg_math_leaf_text(p->t, b.variable)) ||
        names_index(p->t, b.body, kg_math_leaf_text(p->t, b.variable)))
        return build_text(p, &b);
    p->t->nodes[b.variable].kind = KG_MATH_BOUND;
    bind(p->t, b.body, b.variable);
    return build_big(p->t, &b);
}

/* ---- derivatives ---- */

/* dx as one name if no letter precedes it. */
int kg_math_parse_differential(struct kg_math_parser *p)
{
    bool partial;
    const char *from = after_blanks(p->p, p->end);
    const char *d = after_d(from, p->end, &partial);
    const char *to = d ? after_name(partial ? after_blanks(d, p->end) : d, p->end) : NULL;

    if (!to || (from > p->start && isalpha((unsigned char)from[-1])) ||
        (!partial && *d != '\\' && !kg_char_in("xyztuvwrs", *d)))
        return 0;
    int node = kg_math_name(p, KG_MATH_SYM, partial ? "partial " : "d", d + (*d == '\\'),
                            (size_t)(to - d) - (*d == '\\'));
    p->p = to;
    return node;
}

struct fraction {
    const char *over, *over_end;
    const char *name, *name_end; /* the variable */
    int order;
    bool partial;
};

/* Whether {over} and {under} form a derivative: d.. and dx, of the same order. */
static bool is_derivative(struct fraction *f, const char *under, size_t n)
{
    bool partial;
    const char *end = under + n;

    f->over = after_d(f->over, f->over_end, &f->partial);
    f->name = after_d(under, end, &partial);
    if (!f->over || !f->name || partial != f->partial)
        return false;
    f->order = order_at(&f->over, f->over_end);
    f->over = after_blanks(f->over, f->over_end);
    f->name = after_blanks(f->name, end);
    f->name_end = after_name(f->name, end);
    under = f->name_end;
    return under && order_at(&under, end) == f->order && f->order > 0 &&
           after_blanks(under, end) == end;
}

/* The name of a differential: dy, or with the order d2y and d2x. */
static int differential(struct kg_math_parser *p, const struct fraction *f,
                        const char *name, const char *end)
{
    char lead[] = "partial  ";

    if (!f->partial)
        strcpy(lead, "d ");
    lead[strlen(lead) - 1] = (char)('0' + f->order);
    if (f->order == 1)
        lead[strlen(lead) - 1] = 0;
    return kg_math_name(p, KG_MATH_SYM, lead, name + (*name == '\\'),
                        (size_t)(end - name) - (*name == '\\'));
}

static int of_body(struct kg_math_parser *p, const struct fraction *f, const char *from,
                   const char *to, int body)
{
    static const struct kg_math_command d = {"d", 1, KG_MATH_G_BIG, KG_MATH_DERIVATIVE};
    struct big b = {.op = KG_MATH_DERIVATIVE, .row = &d, .body = body};

    if (!body)
        return 0;
    b.variable = kg_math_name(p, KG_MATH_SYM, "", f->name + (*f->name == '\\'),
                              (size_t)(f->name_end - f->name) - (*f->name == '\\'));
    b.low = kg_math_small(p->t, f->order);
    b.high = kg_math_small(p->t, f->partial);
    if (applies_name(from, to, kg_math_leaf_text(p->t, b.variable)))
        b.op = KG_MATH_AS_TEXT;
    return build_big(p->t, &b);
}

int kg_math_parse_derivative(struct kg_math_parser *p)
{
    const char *from = p->p;
    struct fraction f;
    size_t over_n;
    size_t n = 0;
    int node;

    f.over = kg_math_raw_arg(p, &over_n);
    const char *under = f.over ? kg_math_raw_arg(p, &n) : NULL;
    f.over_end = under ? f.over + over_n : NULL;
    if (!under || !is_derivative(&f, under, n)) {
        p->p = from;
        p->why = NULL;
        return 0;
    }
    from = p->p;
    if (f.over == f.over_end && kg_math_starts_value(p)) {
        node = kg_math_parse_term(p);
        return of_body(p, &f, from, p->p, node);
    }
    if (f.over < f.over_end && after_name(f.over, f.over_end) != f.over_end) {
        node = kg_math_parse_part(p, f.over, (size_t)(f.over_end - f.over));
        return node ? of_body(p, &f, f.over, f.over_end, node)
                    : kg_math_parse_fail(p, "a derivative that cannot be read");
    }
    return kg_math_node(p->t, KG_MATH_DIV, 0, differential(p, &f, f.over, f.over_end),
                        differential(p, &f, f.name, f.name_end));
}
