/* Operands: functions, brackets, matrices, commands, letters. LaTeX gives the look of a
 * formula, not its meaning, so the meaning of sin^{-1} x, f(2), |a|b|c| and \sin 2x cos y
 * is guessed; each guess is a function here, with its case in the comment. Functions are
 * reduced to the few that the evaluators know (no cot or sinh after this file). What is
 * parsed but not evaluated is kept as text: equal to the same text, undecided otherwise.
 */
#include "math/math_internal.h"

#include <ctype.h>
#include <string.h>

/* ---- functions ---- */

static int call(struct kg_math_tree *t, int func, int a)
{
    return kg_math_node(t, KG_MATH_FUNC, func, a, 0);
}

static int over(struct kg_math_tree *t, int a, int b)
{
    return kg_math_node(t, KG_MATH_DIV, 0, a, b);
}

/* (e^a + sign e^-a) / 2 */
static int hyperbolic(struct kg_math_tree *t, int sign, int a)
{
    int minus = call(t, KG_MATH_EXP, kg_math_node(t, KG_MATH_NEG, 0, a, 0));

    if (sign < 0)
        minus = kg_math_node(t, KG_MATH_NEG, 0, minus, 0);
    return over(t, kg_math_node(t, KG_MATH_ADD, 0, call(t, KG_MATH_EXP, a), minus),
                kg_math_small(t, 2));
}

/* A call in terms of functions that the evaluators know. base: of \log, 0 if none. */
static int build_call(struct kg_math_tree *t, int func, int a, int base)
{
    switch (func) {
    case KG_MATH_COT:
        return over(t, call(t, KG_MATH_COS, a), call(t, KG_MATH_SIN, a));
    case KG_MATH_SEC:
        return over(t, kg_math_small(t, 1), call(t, KG_MATH_COS, a));
    case KG_MATH_CSC:
        return over(t, kg_math_small(t, 1), call(t, KG_MATH_SIN, a));
    case KG_MATH_SINH:
        return hyperbolic(t, -1, a);
    case KG_MATH_COSH:
        return hyperbolic(t, 1, a);
    case KG_MATH_TANH:
        return over(t, hyperbolic(t, -1, a), hyperbolic(t, 1, a));
    case KG_MATH_LG:
        base = kg_math_small(t, 10);
        /* fall through */
    case KG_MATH_LOG:
        if (base)
            return over(t, call(t, KG_MATH_LN, a), call(t, KG_MATH_LN, base));
        return call(t, KG_MATH_LN, a);
    default:
        return call(t, func, a);
    }
}

/* Whether the next factor belongs to the argument of a function written without
 * brackets: \sin 2x, but not the \cos of \sin b \cos a. */
static bool continues_argument(struct kg_math_parser *p)
{
    size_t len;
    char c = kg_math_look(p);

    if (c == '(' || c == '[' || !kg_math_starts_value(p))
        return false;
    const struct kg_math_command *row = kg_math_ahead(p, &len);
    return !row || row->group == KG_MATH_G_CONST || row->group == KG_MATH_G_FRAC ||
           row->group == KG_MATH_G_SQRT || row->group == KG_MATH_G_STYLE;
}

static int bare_argument(struct kg_math_parser *p)
{
    bool negative = kg_math_eat(p, "-");
    int node = kg_math_parse_postfix(p);

    while (node && continues_argument(p)) {
        int right = kg_math_parse_postfix(p);

        node = right ? kg_math_node(p->t, KG_MATH_MUL, 0, node, right) : 0;
    }
    return node && negative ? kg_math_node(p->t, KG_MATH_NEG, 0, node, 0) : node;
}

/* The inverse function of a trigonometric one, or -1. */
static int inverse(int func)
{
    switch (func) {
    case KG_MATH_SIN:
        return KG_MATH_ASIN;
    case KG_MATH_COS:
        return KG_MATH_ACOS;
    case KG_MATH_TAN:
        return KG_MATH_ATAN;
    default:
        return -1;
    }
}

static bool is_minus_one(const struct kg_math_tree *t, int node)
{
    const struct kg_math_node *n = &t->nodes[node];

    return n->kind == KG_MATH_NEG && kg_math_is_whole(t, n->a) &&
           strcmp(kg_math_leaf_text(t, n->a), "1") == 0;
}

/* Whether the argument is in brackets, possibly inside braces: the power after \sin{(x)}
 * applies to the sine. */
static bool is_bracketed(struct kg_math_parser *p)
{
    char c = kg_math_look(p);
    const char *from = p->p;
    size_t n;
    int depth = 0;

    if (c != '{')
        return c == '(' || c == '[';
    const char *group = kg_math_raw_group(p, &n);
    p->p = from;
    if (!group || n < 2 || group[0] != '(')
        return false;
    for (size_t i = 0; i < n; i++) {
        depth += (group[i] == '(') - (group[i] == ')');
        if (depth == 0)
            return i + 1 == n;
    }
    return false;
}

static int parse_function(struct kg_math_parser *p, int func)
{
    int power = 0;
    int base = 0;

    for (;;) {
        if (kg_math_look(p) == '^' && !power) {
            p->p++;
            power = kg_math_parse_script(p);
        } else if (kg_math_look(p) == '_' && !base) {
            p->p++;
            base = kg_math_parse_script(p);
        } else {
            break;
        }
        if (p->why)
            return 0;
    }
    if (power && is_minus_one(p->t, power) && inverse(func) >= 0) {
        func = inverse(func);
        power = 0;
    }
    int arg = is_bracketed(p) ? kg_math_parse_primary(p) : bare_argument(p);
    if (!arg)
        return 0;
    arg = build_call(p->t, func, arg, base);
    return power ? kg_math_node(p->t, KG_MATH_POW, 0, arg, power) : arg;
}

/* ---- brackets ---- */

/* (..), [..], [..); an open end may also be a reversed bracket: ]2,5[. */
static int parse_brackets(struct kg_math_parser *p)
{
    char open = *p->p++;
    int brackets = open == '[' ? KG_MATH_LEFT_SQUARE : 0;
    int bars = p->bars;

    p->brackets++;
    p->bars = 0;
    int list = kg_math_parse_list(p);
    p->bars = bars;
    p->brackets--;
    if (!list)
        return 0;
    if (kg_math_eat(p, "]"))
        brackets |= KG_MATH_RIGHT_SQUARE;
    else if (!kg_math_eat(p, ")") && !kg_math_eat(p, "["))
        return kg_math_parse_fail(p, "a bracket is not closed");
    if (p->t->nodes[list].b)
        return kg_math_node(p->t, KG_MATH_TUPLE, brackets, list, 0);
    if ((brackets != KG_MATH_ROUND && brackets != KG_MATH_SQUARE) || open == ']')
        return kg_math_parse_fail(p, "brackets do not match");
    return p->t->nodes[list].a;
}

/* The condition of {x | ..} or {x \in R : ..}, which describes the same numbers; end: the
 * end of the set.   returns 0 for other sets */
static int builder(struct kg_math_parser *p, const char *end)
{
    static const char *const in[] = {"\\in \\mathbb{R}", "\\in\\mathbb{R}", "\\in \\R",
                                     "\\in \\mathbb R"};
    static const char *const signs[] = {"\\mid", "|", ":"};
    struct kg_math_parser inner = *p;
    size_t i;

    inner.end = end;
    if (!isalpha((unsigned char)kg_math_look(&inner)))
        return 0;
    char name = *inner.p++;
    for (i = sizeof in / sizeof *in; i > 0 && !kg_math_eat(&inner, in[i - 1]);)
        i--;
    for (i = 0; i < sizeof signs / sizeof *signs && !kg_math_eat(&inner, signs[i]);)
        i++;
    if (i == sizeof signs / sizeof *signs ||
        !memchr(inner.p, name, (size_t)(end - inner.p)))
        return 0;
    int node = kg_math_parse_part(p, inner.p, (size_t)(end - inner.p));
    return p->t->nodes[node].kind == KG_MATH_REL || p->t->nodes[node].kind == KG_MATH_LIST
               ? node
               : 0;
}

/* A set after its opening brace: its condition (builder()), its items, or its text. */
static int parse_set_braces(struct kg_math_parser *p)
{
    const char *from = p->p;
    const char *at;
    int list = 0;

    for (at = from; at + 1 < p->end && !(at[0] == '\\' && at[1] == '}');)
        at++;
    list = at + 1 < p->end ? builder(p, at) : 0;
    if (list) {
        p->p = at + 2;
        return list;
    }
    if (kg_math_eat(p, "\\}"))
        return kg_math_node(p->t, KG_MATH_SET, 0, 0, 0);
    p->bars++;
    p->brackets++;
    list = kg_math_parse_list(p);
    p->bars--;
    p->brackets--;
    if (list && kg_math_eat(p, "\\}"))
        return kg_math_node(p->t, KG_MATH_SET, 0, list, 0);
    if (at + 1 >= p->end || !list)
        return kg_math_parse_fail(p, "a set is not closed");
    p->p = at + 2;
    return kg_math_name(p, KG_MATH_OPAQUE, "set:", from, (size_t)(at - from));
}

static int parse_enclosed(struct kg_math_parser *p, int func)
{
    size_t len;
    int bars = p->bars;

    p->bars = 0;
    int list = kg_math_parse_list(p);
    p->bars = bars;
    const struct kg_math_command *row = list ? kg_math_ahead(p, &len) : NULL;
    if (!row || row->group != KG_MATH_G_CLOSE || row->op != func)
        return kg_math_parse_fail(p, "a bracket is not closed");
    p->p += len;
    return call(p->t, func, kg_math_parse_unwrap(p, list));
}

/* ---- environments ---- */

static int parse_row(struct kg_math_parser *p)
{
    int row = 0;
    int last = 0;

    do {
        int cell = kg_math_parse_chain(p);

        if (!cell)
            return 0;
        kg_math_list_add(p->t, &row, &last, cell);
    } while (kg_math_eat(p, "&"));
    return row;
}

static int parse_matrix(struct kg_math_parser *p, bool determinant)
{
    int rows = 0;
    int last = 0;
    int brackets = p->brackets;
    int bars = p->bars;
    size_t n;

    p->brackets = 1;
    p->bars = 0;
    for (;;) {
        int row = parse_row(p);
        bool ended = false;

        if (!row)
            return 0;
        kg_math_list_add(p->t, &rows, &last, row);
        while (kg_math_eat(p, "\\\\") || kg_math_eat(p, "\\hline"))
            ended = true;
        if (kg_math_eat(p, "\\end"))
            break;
        if (!ended)
            return kg_math_parse_fail(p, "a matrix is not closed");
    }
    p->brackets = brackets;
    p->bars = bars;
    kg_math_raw_group(p, &n);
    return kg_math_node(p->t, KG_MATH_MATRIX, determinant, rows, 0);
}

static bool ends_in(const char *text, size_t n, const char *tail)
{
    size_t len = strlen(tail);

    while (n > 0 && text[n - 1] == '*')
        n--;
    return n >= len && memcmp(text + n - len, tail, len) == 0;
}

/* The text between \begin{..} and \end{..}, as an OPAQUE node. */
static int opaque_environment(struct kg_math_parser *p)
{
    const char *from = p->p;
    size_t n;

    while (p->end - p->p >= 4 && memcmp(p->p, "\\end", 4) != 0)
        p->p++;
    int node = kg_math_name(p, KG_MATH_OPAQUE, "", from, (size_t)(p->p - from));
    if (!kg_math_eat(p, "\\end") || !kg_math_raw_group(p, &n))
        return kg_math_parse_fail(p, "an environment is not closed");
    return node;
}

/* Rows of one cell each become a list. If a row has more cells (a condition), the result
 * is the table; if parsing fails, the text. */
static int parse_cases(struct kg_math_parser *p)
{
    const char *from = p->p;
    int brackets = p->brackets;
    int bars = p->bars;
    int table = parse_matrix(p, false);
    int list = 0;
    int last = 0;

    if (!table) {
        p->p = from;
        p->why = NULL;
        p->brackets = brackets;
        p->bars = bars;
        return opaque_environment(p);
    }
    for (int row = p->t->nodes[table].a; row; row = p->t->nodes[row].b) {
        int cells = p->t->nodes[row].a;

        if (p->t->nodes[cells].b)
            return table;
        kg_math_list_add(p->t, &list, &last, p->t->nodes[cells].a);
    }
    return kg_math_parse_unwrap(p, list);
}

/* The content of a table with one cell, which is not a matrix; else the table itself. */
static int only_cell(const struct kg_math_tree *t, int table)
{
    const struct kg_math_node *rows = &t->nodes[t->nodes[table].a];
    const struct kg_math_node *row = &t->nodes[rows->a];

    return table && !rows->b && !row->b ? row->a : table;
}

static int parse_environment(struct kg_math_parser *p)
{
    size_t n;
    size_t skipped;
    const char *name = kg_math_raw_group(p, &n);

    if (!name)
        return kg_math_parse_fail(p, "an environment without a name");
    if (ends_in(name, n, "array")) {
        kg_math_raw_group(p, &skipped);
        return only_cell(p->t, parse_matrix(p, false));
    }
    if (ends_in(name, n, "matrix"))
        return parse_matrix(p, name[0] == 'v' || name[0] == 'V');
    if (ends_in(name, n, "cases") || ends_in(name, n, "aligned"))
        return parse_cases(p);
    return opaque_environment(p);
}

/* ---- commands ---- */

static int parse_root(struct kg_math_parser *p)
{
    int index = 0;

    if (kg_math_look(p) == '[') {
        p->p++;
        index = kg_math_parse_sum(p);
        if (!index || !kg_math_eat(p, "]"))
            return kg_math_parse_fail(p, "the index of a root is not closed");
    }
    int arg = kg_math_look(p) == '\\' ? kg_math_parse_primary(p) : kg_math_parse_arg(p);
    if (!arg)
        return 0;
    return kg_math_node(p->t, KG_MATH_FUNC, index ? KG_MATH_ROOT : KG_MATH_SQRT, arg,
                        index);
}

/* \frac and \binom: two arguments */
static int parse_pair(struct kg_math_parser *p, bool binomial)
{
    int derivative = binomial ? 0 : kg_math_parse_derivative(p);
    int a = derivative || p->why ? 0 : kg_math_parse_arg(p);
    int b = a ? kg_math_parse_arg(p) : 0;

    if (derivative)
        return derivative;
    if (!b)
        return kg_math_parse_fail(p, "an argument is missing");
    if (binomial)
        return kg_math_node(p->t, KG_MATH_FUNC, KG_MATH_BINOMIAL, a, b);
    return over(p->t, a, b);
}

/* Whether the contents of \text{..} are a formula: "12 cm", "\textbf{42}", "five",
 * "infinity"; not " 3-pointers" after a number. */
static bool starts_formula(const char *text, size_t n)
{
    size_t len = 0;

    if (n > 1 && *text == '-')
        return starts_formula(text + 1, n - 1);
    while (len < n && isalpha((unsigned char)text[len]))
        len++;
    const struct kg_math_command *row = len ? kg_math_word_find(text, len) : NULL;
    return (n > 0 && (isdigit((unsigned char)*text) || *text == '\\')) ||
           (n > 1 && *text == '.' && isdigit((unsigned char)text[1])) ||
           (row && (row->group == KG_MATH_G_NUMBER || row->group == KG_MATH_G_CONST ||
                    row->group == KG_MATH_G_ABOUT));
}

static int parse_text(struct kg_math_parser *p)
{
    const char *from = p->p;
    size_t n;
    const char *text = p->end - from > 2 && memcmp(from, "{}", 2) == 0
                           ? NULL
                           : kg_math_raw_group(p, &n);

    if (!text)
        return kg_math_parse_primary(p); /* \text{\$}5, after cleaning */
    if (kg_str_listed(" const constant ", text, n))
        return kg_math_leaf(p->t, KG_MATH_SYM, 0, "C", 1);
    if (starts_formula(text, n)) {
        p->p = from;
        int node = kg_math_parse_braces(p);
        /* \text{12 cm}^2 */
        if (node && p->t->nodes[node].kind == KG_MATH_UNIT && kg_math_eat(p, "^"))
            return kg_math_parse_script(p) ? node : 0;
        return node;
    }
    return kg_math_leaf(p->t, KG_MATH_WORDS, 0, text, n < 200 ? n : 200);
}

/* \mathrm{..}: several letters are words; other contents are parsed without the style. */
static int parse_style(struct kg_math_parser *p, bool declares)
{
    const char *from = p->p;
    size_t letters = 0;
    size_t n;

    if (kg_math_look(p) != '{')
        return declares ? kg_math_parse_postfix(p) : kg_math_parse_arg(p);
    from = p->p;
    const char *text = kg_math_raw_group(p, &n);
    if (!text)
        return 0;
    for (size_t i = 0; i < n; i++) {
        letters += isalpha((unsigned char)text[i]) != 0;
        if (!isalpha((unsigned char)text[i]) && !kg_char_in(" .~", text[i]))
            letters = n = 0;
    }
    /* \mathrm{~m}: after a space, one letter is a unit too */
    if ((letters >= 2 && !kg_math_word_find(text, n)) ||
        (letters == 1 && n > 1 && *text == ' '))
        return kg_math_leaf(p->t, KG_MATH_WORDS, 0, text, n);
    p->p = from;
    return kg_math_parse_braces(p);
}

static bool is_capitals(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!isupper((unsigned char)text[i]) && text[i] != ' ')
            return false;
    }
    return n > 1;
}

/* A letter with an accent is a name of its own; \overline{AB} is the segment AB. */
static int parse_accent(struct kg_math_parser *p, const struct kg_math_command *row)
{
    static const char *const leads[] = {
        "hat:", "bar:", "vec:", "tilde:", "dot:", "ddot:", "line:"};
    const char *from = p->p;
    size_t n;
    const char *text = kg_math_raw_arg(p, &n);

    if (!text)
        return kg_math_parse_fail(p, "an accent over nothing");
    if (row->n == 8 && memcmp(row->name, "overline", 8) == 0 && is_capitals(text, n)) {
        p->p = from;
        return kg_math_parse_braces(p);
    }
    return kg_math_name(p, KG_MATH_SYM, leads[row->op], text, n);
}

/* One point of an angle (a letter with its subscript) at p->p.   returns its bytes */
static size_t point_length(const struct kg_math_parser *p)
{
    size_t room = (size_t)(p->end - p->p);
    size_t n = room > 0 && isupper((unsigned char)*p->p);

    if (n && n + 1 < room && p->p[n] == '_')
        n += p->p[n + 1] == '{' ? 2 + kg_math_brace_end(p->p + n + 1, room - n - 1) : 2;
    while (n && n < room && p->p[n] == '\'')
        n++;
    return n;
}

/* \angle ABC as one name, equal to that of \angle CBA but not of \angle ACB. */
static int parse_angle(struct kg_math_parser *p)
{
    struct kg_math_parser *in = p;
    struct kg_math_parser inner = *p;
    const char *point[3];
    size_t len[3];
    char lead[64] = "angle:";
    int n = 0;

    if (kg_math_look(p) == '{' || *p->p == '\\') {
        size_t ahead;
        const struct kg_math_command *row = kg_math_ahead(p, &ahead);
        size_t group_n;

        if (row && (row->group == KG_MATH_G_STYLE || row->group == KG_MATH_G_TEXT))
            p->p += ahead;
        inner.p = kg_math_raw_arg(p, &group_n);
        inner.end = inner.p ? inner.p + group_n : NULL;
        in = &inner;
    }
    if (!in->p)
        return kg_math_parse_fail(p, "an angle without a name");
    while (n < 3 && kg_math_look(in) && (len[n] = point_length(in)) > 0 && len[n] < 15) {
        point[n] = in->p;
        in->p += len[n++];
    }
    if (n == 0) {
        point[n] = in == p ? kg_math_raw_arg(p, &len[n]) : in->p;
        if (in != p)
            len[n] = (size_t)(in->end - in->p);
        if (!point[n++] || len[0] > 40)
            return kg_math_parse_fail(p, "an angle without a name");
    }
    bool turned = n == 3 && *point[0] > *point[2];
    for (int i = 0; i < n - 1; i++)
        strncat(lead, point[turned ? 2 - i : i], len[turned ? 2 - i : i]);
    return kg_math_name(p, KG_MATH_SYM, lead, point[turned ? 0 : n - 1],
                        len[turned ? 0 : n - 1]);
}

static int parse_operator(struct kg_math_parser *p)
{
    size_t n;

    kg_math_eat(p, "*");
    const char *text = kg_math_raw_group(p, &n);
    if (!text)
        return kg_math_parse_fail(p, "an operator without a name");
    const struct kg_math_command *row = kg_math_command_find(text, n);
    row = row ? row : kg_math_word_find(text, n);
    if (row && row->group == KG_MATH_G_FUNC)
        return parse_function(p, row->op);
    if (kg_math_look(p) == '(')
        return kg_math_parse_fail(p, "an operator that is not known");
    return kg_math_name(p, KG_MATH_SYM, "", text, n);
}

static int parse_blackboard(struct kg_math_parser *p)
{
    const char *text = NULL;
    size_t n = 1;

    if (kg_math_look(p) == '{')
        text = kg_math_raw_group(p, &n);
    else if (p->p < p->end)
        text = p->p++;
    if (!text)
        return kg_math_parse_fail(p, "\\mathbb without a letter");
    if (n == 1 && *text == 'R')
        return kg_math_node(p->t, KG_MATH_CONST, KG_MATH_REALS, 0, 0);
    return kg_math_name(p, KG_MATH_SYM, "set:", text, n);
}

static int parse_known(struct kg_math_parser *p, const struct kg_math_command *row)
{
    switch ((enum kg_math_group)row->group) {
    case KG_MATH_G_CONST:
        return kg_math_node(p->t, KG_MATH_CONST, row->op, 0, 0);
    case KG_MATH_G_FUNC:
        return parse_function(p, row->op);
    case KG_MATH_G_FRAC:
    case KG_MATH_G_BINOM:
        return parse_pair(p, row->group == KG_MATH_G_BINOM);
    case KG_MATH_G_SQRT:
        return parse_root(p);
    case KG_MATH_G_TEXT:
        return parse_text(p);
    case KG_MATH_G_STYLE:
        return parse_style(p, row->op == 1);
    case KG_MATH_G_ACCENT:
        return parse_accent(p, row);
    case KG_MATH_G_BIG:
        return kg_math_parse_big(p, row);
    case KG_MATH_G_OPEN:
        return parse_enclosed(p, row->op);
    case KG_MATH_G_BLACKBOARD:
        return parse_blackboard(p);
    case KG_MATH_G_OPERATOR:
        return parse_operator(p);
    case KG_MATH_G_DOTS:
        return kg_math_leaf(p->t, KG_MATH_SYM, 0, "...", 3);
    case KG_MATH_G_UNIT:
    case KG_MATH_G_SCALE:
    case KG_MATH_G_QUALIFIER:
    case KG_MATH_G_ABOUT:
        return kg_math_leaf(p->t, KG_MATH_WORDS, 0, row->name, row->n);
    case KG_MATH_G_DEGREE:
        return kg_math_leaf(p->t, KG_MATH_SYM, 0, "circ", 4);
    case KG_MATH_G_ANGLE:
        return parse_angle(p);
    case KG_MATH_G_NUMBER:
        p->p -= row->n;
        return kg_math_parse_number_words(p);
    default:
        return kg_math_parse_fail(p, "an operator without a value");
    }
}

int kg_math_parse_letter(struct kg_math_parser *p)
{
    char c = *p->p;
    bool subscript = p->p + 1 < p->end && p->p[1] == '_';

    p->p++;
    if (!subscript && (c == 'e' || c == 'i'))
        return kg_math_node(p->t, KG_MATH_CONST, c == 'e' ? KG_MATH_E : KG_MATH_I, 0, 0);
    return kg_math_leaf(p->t, KG_MATH_SYM, 0, &c, 1);
}

static int parse_command(struct kg_math_parser *p)
{
    size_t len;
    const struct kg_math_command *row = kg_math_ahead(p, &len);
    const char *name = p->p;
    int differential = kg_math_parse_differential(p);

    if (differential)
        return differential;
    if (len == 0)
        return kg_math_parse_fail(p, "not a formula");
    if (!row && *name != '\\')
        return kg_math_parse_letter(p);
    p->p += len;
    if (row)
        return parse_known(p, row);
    if (len == 6 && memcmp(name, "\\begin", 6) == 0)
        return parse_environment(p);
    if (len == 4 && memcmp(name, "\\end", 4) == 0)
        return kg_math_parse_fail(p, "\\end without \\begin");
    if (!kg_math_is_symbol(name + 1, len - 1))
        return kg_math_parse_fail(p, "a command that is not known");
    return kg_math_leaf(p->t, KG_MATH_SYM, 0, name + 1, len - 1);
}

static int primary(struct kg_math_parser *p)
{
    char c = kg_math_look(p);

    if (c == 0)
        return kg_math_parse_fail(p, "a value is missing");
    if (isdigit((unsigned char)c) ||
        (c == '.' && p->end - p->p > 1 && isdigit((unsigned char)p->p[1])))
        return kg_math_parse_number(p);
    if (kg_char_in("([]", c))
        return parse_brackets(p);
    if (c == '{')
        return kg_math_parse_braces(p);
    if (c == '|' && p->bars == 0) {
        p->p++;
        p->bars++;
        int list = kg_math_parse_list(p);
        p->bars--;
        if (list && !kg_math_eat(p, "|"))
            return kg_math_parse_fail(p, "a bar is not closed");
        return list ? call(p->t, KG_MATH_ABS, kg_math_parse_unwrap(p, list)) : 0;
    }
    if (kg_math_eat(p, "\\{"))
        return parse_set_braces(p);
    if (c == '\\' || isalpha((unsigned char)c))
        return parse_command(p);
    return kg_math_parse_fail(p, "not a formula");
}

int kg_math_parse_primary(struct kg_math_parser *p)
{
    if (p->depth >= KG_MATH_MAX_DEPTH)
        return kg_math_parse_fail(p, "nested too deep");
    p->depth++;
    int node = primary(p);
    p->depth--;
    return node;
}
