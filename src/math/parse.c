/* The grammar of answers, from the outside in: lists, relations, unions, ratios, sums,
 * products, powers. Recursive descent; every descent is counted against the depth limit.
 *
 * It reads LaTeX and plain notation with one grammar. It differs from TeX: 11z^17 has the
 * exponent 17, as its writer means it.
 */
#include "math/math_internal.h"

#include <ctype.h>
#include <string.h>

int kg_math_parse_fail(struct kg_math_parser *p, const char *why)
{
    if (!p->why)
        p->why = why;
    return 0;
}

char kg_math_look(struct kg_math_parser *p)
{
    for (;;) {
        while (p->p < p->end && isspace((unsigned char)*p->p))
            p->p++;
        if (p->end - p->p < 2 || p->p[0] != '{' || p->p[1] != '}')
            break;
        p->p += 2;
    }
    return p->p < p->end ? *p->p : 0;
}

bool kg_math_eat(struct kg_math_parser *p, const char *text)
{
    size_t n = strlen(text);

    kg_math_look(p);
    if ((size_t)(p->end - p->p) < n || memcmp(p->p, text, n) != 0)
        return false;
    p->p += n;
    return true;
}

const struct kg_math_command *kg_math_ahead(struct kg_math_parser *p, size_t *len)
{
    char c = kg_math_look(p);
    bool is_command = c == '\\';
    const char *name = p->p + is_command;
    size_t n = 0;

    *len = 0;
    while (name + n < p->end && isalpha((unsigned char)name[n]))
        n++;
    if (n == 0)
        return NULL;
    *len = n + is_command;
    return is_command ? kg_math_command_find(name, n) : kg_math_word_find(name, n);
}

/* Consumes a command or word of the group.   returns its row or NULL */
static const struct kg_math_command *eat_group(struct kg_math_parser *p,
                                               enum kg_math_group group)
{
    size_t len;
    const struct kg_math_command *row = kg_math_ahead(p, &len);

    if (!row || row->group != group)
        return NULL;
    p->p += len;
    return row;
}

/* ---- lists ---- */

/* Whether \text{..} only joins: it is empty or ends in "and" or "or". *all: in "and" */
static bool joins(const char *text, size_t n, bool *all)
{
    while (n > 0 && (isspace((unsigned char)text[n - 1]) || text[n - 1] == ','))
        n--;
    *all = n >= 3 && strncasecmp(text + n - 3, "and", 3) == 0;
    if (*all)
        return n == 3 || !isalpha((unsigned char)text[n - 4]);
    if (n >= 2 && strncasecmp(text + n - 2, "or", 2) == 0)
        return n == 2 || !isalpha((unsigned char)text[n - 3]);
    return n == 0;
}

static bool eat_joining_text(struct kg_math_parser *p, bool *all)
{
    const char *from = p->p;
    size_t n;

    if (!eat_group(p, KG_MATH_G_TEXT))
        return false;
    const char *text = kg_math_raw_group(p, &n);
    if (text && joins(text, n, all))
        return true;
    p->p = from;
    return false;
}

/* Consumes the separators before an item.   returns 0 for none, ',', ';', '&' for "and"
 * or '|' for "or" */
static char separator(struct kg_math_parser *p)
{
    const struct kg_math_command *row;
    char found = 0;
    bool all;

    for (;;) {
        if (kg_math_eat(p, ",")) {
            found = found ? found : ',';
        } else if ((row = eat_group(p, KG_MATH_G_AND)) != NULL) {
            found = row->op == KG_MATH_ALL ? '&' : '|';
        } else if (kg_math_eat(p, ";")) {
            found = ';';
        } else if (eat_joining_text(p, &all)) {
            found = all ? '&' : '|';
        } else {
            return found;
        }
    }
}

struct items {
    int node[KG_MATH_MAX_ITEMS];
    char before[KG_MATH_MAX_ITEMS]; /* the separator before each item */
    int n;
};

static bool is_assignment(const struct kg_math_tree *t, int node)
{
    return t->nodes[node].kind == KG_MATH_REL && t->nodes[node].op == KG_MATH_EQ;
}

/* The size of the groups if all items are assignments in groups of equal size > 1: "p=5,
 * q=2; p=7, q=2"; else 0. */
static int group_size(const struct kg_math_tree *t, const struct items *items)
{
    int size = 0;
    int run = 0;

    for (int i = 0; i < items->n; i++) {
        if (!is_assignment(t, items->node[i]))
            return 0;
        if (i > 0 && items->before[i] != ',') {
            if (run < 2 || (size && run != size))
                return 0;
            size = run;
            run = 0;
        }
        run++;
    }
    return size && run == size ? size : 0;
}

static int build_list(struct kg_math_tree *t, const struct items *items)
{
    int group = group_size(t, items);
    int list = 0;
    int last = 0;
    char joint = items->n > 1 ? items->before[items->n - 1] : 0;

    for (int i = 1; i < items->n; i++)
        joint = kg_char_in(",", items->before[i]) || items->before[i] == joint ? joint
                                                                               : 0;
    for (int i = 0; i < items->n;) {
        int inner = 0;
        int inner_last = 0;

        if (!group) {
            kg_math_list_add(t, &list, &last, items->node[i++]);
            continue;
        }
        for (int k = 0; k < group; k++)
            kg_math_list_add(t, &inner, &inner_last, items->node[i++]);
        kg_math_list_add(t, &list, &last,
                         kg_math_node(t, KG_MATH_TUPLE, KG_MATH_ROUND, inner, 0));
    }
    if (list)
        t->nodes[list].op = joint == '&' ? KG_MATH_ALL : joint == '|' ? KG_MATH_ANY : 0;
    return list;
}

/* "left \over right", "left \choose right" */
static int infix(struct kg_math_parser *p, int choose, int left)
{
    int right = kg_math_parse_chain(p);

    if (!right)
        return 0;
    return choose ? kg_math_node(p->t, KG_MATH_FUNC, KG_MATH_BINOMIAL, left, right)
                  : kg_math_node(p->t, KG_MATH_DIV, 0, left, right);
}

int kg_math_parse_list(struct kg_math_parser *p)
{
    struct items items = {.n = 0};
    const struct kg_math_command *row;
    char before = 0;

    if (p->depth >= KG_MATH_MAX_DEPTH)
        return kg_math_parse_fail(p, "nested too deep");
    p->depth++;
    do {
        int item = kg_math_parse_chain(p);

        if (!item)
            break;
        if (items.n == KG_MATH_MAX_ITEMS) {
            kg_math_parse_fail(p, "too many items in a list");
            break;
        }
        while ((row = eat_group(p, KG_MATH_G_INFIX)) != NULL && item)
            item = infix(p, row->op, item);
        if (!item)
            break;
        items.before[items.n] = before;
        items.node[items.n++] = item;
        before = separator(p);
        /* a separator at the end separates nothing */
    } while (before && kg_math_look(p) && !kg_char_in(")]}", *p->p));
    p->depth--;
    return p->why || items.n == 0 ? 0 : build_list(p->t, &items);
}

int kg_math_parse_unwrap(struct kg_math_parser *p, int list)
{
    const struct kg_math_node *n = &p->t->nodes[list];

    return list && !n->b ? n->a : list;
}

/* ---- relations ---- */

/* Consumes a relation.   returns its op or -1 */
static int eat_relation(struct kg_math_parser *p)
{
    const struct kg_math_command *row;

    switch (kg_math_look(p)) {
    case '=':
        while (kg_math_eat(p, "="))
            ;
        return KG_MATH_EQ;
    case '<':
        p->p++;
        return KG_MATH_LT;
    case '>':
        p->p++;
        return KG_MATH_GT;
    default:
        row = eat_group(p, KG_MATH_G_REL);
        return row ? row->op : -1;
    }
}

static int parse_ratio(struct kg_math_parser *p)
{
    int left = kg_math_parse_sum(p);

    if (!left || !(kg_math_eat(p, ":") ||
                   (p->t->nodes[left].kind == KG_MATH_NUM && eat_group(p, KG_MATH_G_TO))))
        return left;
    if (p->depth >= KG_MATH_MAX_DEPTH)
        return kg_math_parse_fail(p, "nested too deep");
    p->depth++;
    int right = parse_ratio(p);
    p->depth--;
    return right ? kg_math_node(p->t, KG_MATH_RATIO, 0, left, right) : 0;
}

static int parse_set(struct kg_math_parser *p)
{
    int left = parse_ratio(p);
    const struct kg_math_command *row;

    while (left) {
        row = eat_group(p, KG_MATH_G_SETOP);
        /* U is a union between intervals */
        if (!row && !(p->t->nodes[left].kind == KG_MATH_TUPLE && kg_math_eat(p, "U")))
            return left;
        int right = parse_ratio(p);
        left = right ? kg_math_node(p->t, KG_MATH_SETOP, row ? row->op : '|', left, right)
                     : 0;
    }
    return 0;
}

int kg_math_parse_chain(struct kg_math_parser *p)
{
    enum { MAX_CHAIN = 32 };
    int part[MAX_CHAIN];
    int op[MAX_CHAIN];
    const char *from = p->p;
    int n = 0;

    /* drop a leading "=", "\approx" or "about" */
    if (eat_group(p, KG_MATH_G_ABOUT))
        from = p->p;
    op[0] = eat_relation(p);
    if (op[0] >= 0 && op[0] != KG_MATH_EQ && op[0] != KG_MATH_APPROX)
        p->p = from;
    for (;;) {
        if (n == MAX_CHAIN)
            return kg_math_parse_fail(p, "a chain of relations that is too long");
        p->related += n > 0;
        part[n] = parse_set(p);
        p->related -= n > 0;
        if (!part[n])
            return 0;
        op[n] = eat_relation(p);
        if (op[n] < 0)
            break;
        n++;
        if (kg_math_eat(p, "&"))
            continue;
    }
    int chain = part[n];
    while (n-- > 0)
        chain = kg_math_node(p->t, KG_MATH_REL, op[n], part[n], chain);
    return chain;
}

/* ---- sums and products ---- */

/* Consumes a sign.   returns '+', '-', 'p' for \pm, 'm' for \mp, or 0 */
static char eat_sign(struct kg_math_parser *p)
{
    char c = kg_math_look(p);

    if (c == '+' && p->end - p->p >= 3 && memcmp(p->p, "+/-", 3) == 0) {
        p->p += 3;
        return 'p';
    }
    if (c == '+' || c == '-') {
        p->p++;
        return c;
    }
    const struct kg_math_command *row = eat_group(p, KG_MATH_G_PM);
    return row ? "pm"[row->op] : 0;
}

static int signed_node(struct kg_math_tree *t, char sign, int node)
{
    if (!node || sign == '+' || !sign)
        return node;
    if (sign == '-')
        return kg_math_node(t, KG_MATH_NEG, 0, node, 0);
    return kg_math_node(t, KG_MATH_PM, sign == 'm', node, 0);
}

/* Whether the next [ closes an interval such as [2,5[: a bracket is open, and after the [
 * comes a separator or the end. */
static bool closes_open_end(struct kg_math_parser *p)
{
    static const char *const next[] = {",", ")", "\\cup", "\\cap", "\\text"};
    const char *from = p->p;
    bool closes = p->brackets > 0;

    p->p++;
    if (closes && kg_math_look(p) != 0) {
        closes = false;
        for (size_t i = 0; i < sizeof next / sizeof *next; i++)
            closes = closes || kg_math_eat(p, next[i]);
    }
    p->p = from;
    return closes;
}

size_t kg_math_mod_ahead(struct kg_math_parser *p, bool *is_class)
{
    static const char *const words[] = {"\\mathrm{mod}", "\\text{mod}", "\\text{mod }",
                                        "\\operatorname{mod}"};
    const char *from = p->p;
    size_t len;
    size_t n = 0;

    *is_class = kg_math_eat(p, "(");
    for (size_t i = 0; *is_class && i < sizeof words / sizeof *words && !n; i++) {
        if (kg_math_eat(p, words[i]))
            n = (size_t)(p->p - from);
    }
    const struct kg_math_command *row = kg_math_ahead(p, &len);
    if (!n && row &&
        (row->group == KG_MATH_G_MOD || (len == 3 && memcmp(p->p, "mod", 3) == 0))) {
        *is_class = *is_class || row->op == 1;
        n = (size_t)(p->p + len - from);
    }
    p->p = from;
    kg_math_look(p);
    return n ? n - (size_t)(p->p - from) : 0;
}

bool kg_math_starts_value(struct kg_math_parser *p)
{
    size_t len;
    char c = kg_math_look(p);

    if (c == 0)
        return false;
    if (isdigit((unsigned char)c) || c == '{')
        return true;
    if (c == '[')
        return !closes_open_end(p);
    if (c == '.')
        return p->end - p->p > 1 && isdigit((unsigned char)p->p[1]);
    if (c == '|')
        return p->bars == 0;
    if (c == '\\' && p->end - p->p > 1 && p->p[1] == '{')
        return true;
    if (kg_math_mod_ahead(p, &(bool){false}))
        return false;
    if (c == '(')
        return true;
    const struct kg_math_command *row = kg_math_ahead(p, &len);
    if (!row)
        return len > 0 && !(len == 4 && memcmp(p->p, "\\end", 4) == 0);
    switch (row->group) {
    case KG_MATH_G_TIMES:
    case KG_MATH_G_OVER:
    case KG_MATH_G_PM:
    case KG_MATH_G_REL:
    case KG_MATH_G_SETOP:
    case KG_MATH_G_AND:
    case KG_MATH_G_CLOSE:
    case KG_MATH_G_PERCENT:
    case KG_MATH_G_DEGREE:
    case KG_MATH_G_PRIME:
    case KG_MATH_G_INFIX:
    case KG_MATH_G_TO:
        return false;
    default:
        return true;
    }
}

static bool is_name_node(const struct kg_math_node *n)
{
    return n->kind == KG_MATH_SYM || n->kind == KG_MATH_OPAQUE;
}

/* The next word of [*at, end); *at moves past it.   returns its bytes, or 0 */
static size_t next_word(const char **word, const char **at, const char *end)
{
    while (*at < end && !isalpha((unsigned char)**at))
        ++*at;
    *word = *at;
    while (*at < end && isalpha((unsigned char)**at))
        ++*at;
    return (size_t)(*at - *word);
}

/* Whether the first (last: the last) word of WORDS is not in the table of words. */
static bool is_unknown(const struct kg_math_tree *t, int words, bool last)
{
    const char *at = kg_math_leaf_text(t, words);
    const char *end = at + t->nodes[words].len;
    const char *word;
    bool unknown = false;
    size_t n;

    while ((n = next_word(&word, &at, end)) > 0) {
        unknown = !kg_math_beside_find(word, n);
        if (!last)
            break;
    }
    return unknown;
}

/* "3 foo bar": an unknown second word is not part of a unit. */
static bool rambles(const struct kg_math_tree *t, int value, int words)
{
    const struct kg_math_node *n = &t->nodes[value];

    return n->kind == KG_MATH_UNIT && t->nodes[n->b].kind == KG_MATH_WORDS &&
           is_unknown(t, n->b, true) && is_unknown(t, words, false);
}

/* The value as changed by the word next to it ("percent", "million"); itself if the word
 * changes nothing.   returns 0 if the changed value is unknown */
static int with_word(struct kg_math_tree *t, int value, const struct kg_math_command *row)
{
    switch (row ? (enum kg_math_group)row->group : KG_MATH_G_UNIT) {
    case KG_MATH_G_QUALIFIER:
        return 0;
    case KG_MATH_G_RADIAN:
        return kg_math_any(t, value, kg_math_is_pi) ? value : 0;
    case KG_MATH_G_PERCENT:
        return kg_math_node(t, KG_MATH_PERCENT, 0, value, 0);
    case KG_MATH_G_DEGREE:
        return kg_math_node(t, KG_MATH_DEGREE, 0, value, 0);
    case KG_MATH_G_DOZEN:
        return kg_math_node(t, KG_MATH_MUL, 0, value, kg_math_small(t, row->op));
    case KG_MATH_G_SCALE:
        return kg_math_node(t, KG_MATH_MUL, 0, value,
                            kg_math_node(t, KG_MATH_POW, 0, kg_math_small(t, 10),
                                         kg_math_small(t, row->op)));
    default:
        return value;
    }
}

/* Makes words next to a value its unit, without the unit's power. Words such as million,
 * percent and degrees change the value; after "not" or "squared" it is unknown, and the
 * result is a product that has no value. */
static int with_unit(struct kg_math_parser *p, int value, int words)
{
    struct kg_math_tree *t = p->t;
    const char *word;
    int changed = value;
    size_t n;

    while (t->nodes[words].kind == KG_MATH_POW)
        words = t->nodes[words].a;
    if (rambles(t, value, words))
        return kg_math_node(t, KG_MATH_MUL, 0, value, words);
    const char *at = kg_math_leaf_text(t, words);
    const char *end = at + t->nodes[words].len;
    while (changed && !t->full && (n = next_word(&word, &at, end)) > 0)
        changed = with_word(t, changed, kg_math_beside_find(word, n));
    if (!changed)
        return kg_math_node(t, KG_MATH_MUL, 0, value, words);
    return kg_math_node(t, KG_MATH_UNIT, 0, changed, words);
}

/* An unknown word after a number or its unit ("5 apples"), as WORDS. Short words, and
 * words without a space before them, are products of letters.   returns 0 for none */
static int plain_word(struct kg_math_parser *p, int left)
{
    bool unit = p->t->nodes[left].kind == KG_MATH_UNIT;
    size_t len;
    const struct kg_math_command *row = kg_math_ahead(p, &len);
    const char *word = p->p;
    const struct kg_math_command *beside = len ? kg_math_beside_find(word, len) : NULL;
    bool links = unit && beside && beside->group == KG_MATH_G_LINK;

    if (row ||
        len < (links  ? 1
               : unit ? 2
                      : 4) ||
        *word == '\\' || !isspace((unsigned char)word[-1]) ||
        kg_math_any(p->t, left, is_name_node) ||
        (word + len < p->end && kg_char_in("(_^", word[len])))
        return 0;
    p->p += len;
    return kg_math_leaf(p->t, KG_MATH_WORDS, 0, word, len);
}

/* A unit or words after a value, as WORDS.   returns 0 for none */
static int idle_words(struct kg_math_parser *p, int left)
{
    int words = kg_math_parse_bracketed_word(p, left);

    if (!words && !kg_math_any(p->t, left, is_name_node))
        words = kg_math_parse_unit(p, left);
    return words ? words : plain_word(p, left);
}

static bool is_words(const struct kg_math_tree *t, int node)
{
    while (t->nodes[node].kind == KG_MATH_POW)
        node = t->nodes[node].a;
    return t->nodes[node].kind == KG_MATH_WORDS;
}

/* Whether a name after * or / continues the unit: the s of "5 m/s". */
static bool continues_unit(const struct kg_math_tree *t, char op, int left, int right)
{
    while (t->nodes[right].kind == KG_MATH_POW)
        right = t->nodes[right].a;
    return op != ' ' && t->nodes[left].kind == KG_MATH_UNIT &&
           t->nodes[right].kind == KG_MATH_SYM;
}

static bool next_is(struct kg_math_parser *p, enum kg_math_group group)
{
    size_t len;
    const struct kg_math_command *row = kg_math_ahead(p, &len);

    return row && row->group == group;
}

static int parse_operand(struct kg_math_parser *p)
{
    char sign = eat_sign(p);

    return signed_node(p->t, sign, kg_math_parse_postfix(p));
}

/* Consumes the x of 6.02 x 10^23. */
static bool eat_times_ten(struct kg_math_parser *p)
{
    const char *from = p->p;

    if (kg_math_eat(p, "x") && kg_math_eat(p, "10^")) {
        p->p -= 3;
        return true;
    }
    p->p = from;
    return false;
}

/* Consumes * or / if it is next.   returns '*', '/', ' ' for a product without a sign, 0
 * at the end of the product */
static char eat_product(struct kg_math_parser *p)
{
    if (kg_math_eat(p, "*") || eat_group(p, KG_MATH_G_TIMES) || eat_times_ten(p))
        return '*';
    if (kg_math_eat(p, "/") || eat_group(p, KG_MATH_G_OVER))
        return '/';
    if (kg_math_look(p) == '\\' || !kg_math_starts_value(p)) {
        const char *at = p->p;

        if (eat_joining_text(p, &(bool){false})) {
            p->p = at;
            return 0;
        }
    }
    return kg_math_starts_value(p) ? ' ' : 0;
}

int kg_math_parse_term(struct kg_math_parser *p)
{
    int left = kg_math_parse_postfix(p);

    while (left) {
        char op = eat_product(p);
        bool number = op == ' ' && p->t->nodes[left].kind == KG_MATH_NUM;
        bool digits = number && isdigit((unsigned char)kg_math_look(p));

        if (number && next_is(p, KG_MATH_G_NUMBER))
            return kg_math_parse_fail(p, "two numbers side by side");
        if (!op || (op == ' ' && p->t->nodes[left].kind == KG_MATH_TUPLE))
            return left;
        int right = op == ' ' ? idle_words(p, left) : parse_operand(p);
        if (!right && op == ' ')
            right = kg_math_parse_postfix(p);
        if (!right)
            return 0;
        if (digits && p->t->nodes[right].kind == KG_MATH_NUM)
            return kg_math_parse_fail(p, "two numbers side by side");
        if (is_words(p->t, right) || continues_unit(p->t, op, left, right))
            left = with_unit(p, left, right);
        else if (is_words(p->t, left) && op == ' ' &&
                 !kg_math_any(p->t, right, is_name_node))
            left = with_unit(p, right, left);
        else
            left = kg_math_node(p->t, op == '/' ? KG_MATH_DIV : KG_MATH_MUL, 0, left,
                                right);
    }
    return 0;
}

/* A term after + or -, which may have a sign of its own: a + -b. */
static int signed_term(struct kg_math_parser *p, char sign)
{
    char own = eat_sign(p);

    return signed_node(p->t, sign, signed_node(p->t, own, kg_math_parse_term(p)));
}

/* a \bmod b = a - b floor(a / b). If a is one of several terms, \bmod may mean only some
 * of them: an error. A class, a \pmod b, means all of them. */
static int modulo(struct kg_math_parser *p, int a, bool alone, bool is_class,
                  bool bracket)
{
    struct kg_math_tree *t = p->t;
    int b = bracket ? kg_math_parse_sum(p) : kg_math_parse_term(p);
    int list = 0;
    int last = 0;

    if (!b)
        return 0;
    if (bracket && !kg_math_eat(p, ")"))
        return kg_math_parse_fail(p, "a bracket is not closed");
    if (!is_class && (!alone || kg_char_in("+-", kg_math_look(p) ? *p->p : ' ')))
        return kg_math_parse_fail(p, "a remainder among other terms");
    int times = kg_math_node(t, KG_MATH_FUNC, KG_MATH_FLOOR,
                             kg_math_node(t, KG_MATH_DIV, 0, a, b), 0);
    times = kg_math_node(t, KG_MATH_NEG, 0, kg_math_node(t, KG_MATH_MUL, 0, b, times), 0);
    kg_math_list_add(t, &list, &last, a);
    kg_math_list_add(t, &list, &last, b);
    return kg_math_node(t, KG_MATH_MOD, is_class, list,
                        kg_math_node(t, KG_MATH_ADD, 0, a, times));
}

int kg_math_parse_sum(struct kg_math_parser *p)
{
    char sign = eat_sign(p);
    bool alone = true;
    bool is_class = false;

    if (p->depth >= KG_MATH_MAX_DEPTH)
        return kg_math_parse_fail(p, "nested too deep");
    p->depth++;
    int left = signed_term(p, sign);
    while (left && (sign = eat_sign(p)) != 0) {
        int right = signed_term(p, sign);

        left = right ? kg_math_node(p->t, KG_MATH_ADD, 0, left, right) : 0;
        alone = false;
    }
    size_t len = left ? kg_math_mod_ahead(p, &is_class) : 0;
    if (len) {
        bool bracket = *p->p == '(';

        p->p += len;
        left = modulo(p, left, alone, is_class || p->related > 0, bracket);
    }
    p->depth--;
    return left;
}

int kg_math_parse(struct kg_math_tree *t, const char *text, size_t n, int flags,
                  const char **why)
{
    struct kg_math_parser p = {
        .t = t, .start = text, .p = text, .end = text + n, .flags = flags};
    int root = 0;

    if (n > KG_MATH_MAX_TEXT) {
        *why = "too long";
        return 0;
    }
    if (kg_math_look(&p) == 0)
        kg_math_parse_fail(&p, "empty");
    else
        root = kg_math_parse_list(&p);
    if (root && kg_math_look(&p) != 0)
        root = kg_math_parse_fail(&p, "not a formula");
    if (t->full)
        root = kg_math_parse_fail(&p, "too large");
    root = kg_math_parse_unwrap(&p, root);
    *why = root ? NULL : p.why ? p.why : "not a formula";
    return root;
}
