/* Shared by the files of math/: the job of one grading, the tree, and the steps from text
 * to verdict. */
#ifndef KG_MATH_MATH_INTERNAL_H
#define KG_MATH_MATH_INTERNAL_H

#include "math/math.h"

#include <stdint.h>

/* ---- one grading ---- */
/* The remaining work of one grading, for all alternatives together; see
 * flint_memory.c. */
struct kg_math_budget {
    double deadline; /* seconds of kg_clock_thread_seconds */
    int64_t allocations;
    int64_t steps; /* nodes evaluated */
};
void kg_math_budget_start(struct kg_math_budget *b);
/* The limit that was reached, as a reason (static text); NULL: none. */
const char *kg_math_budget_spent(const struct kg_math_budget *b);

struct kg_math_job {
    const struct kg_math_opts *opts;
    struct kg_math_text answer;
    struct kg_math_text gold; /* the alternative being tried */
    struct kg_math_result *result;
    struct kg_math_tree *tree; /* borrowed scratch */
    struct kg_math_budget budget;
};
/* Sets verdict and reason.   returns KG_OK, so that callers can return its result */
kg_status kg_math_say(struct kg_math_job *job, enum kg_math_verdict v,
                      const char *reason);

/* ---- the tree ----
 * Nodes are binary and in one array of fixed size; a list is a chain of LIST nodes.
 * Sub-trees may be shared. Names are copied into a pool. Index 0 means no node. */
enum kg_math_kind {
    KG_MATH_NONE,
    KG_MATH_NUM,     /* text: digits[.digits] */
    KG_MATH_SYM,     /* text: canonical name */
    KG_MATH_WORDS,   /* text: words of \text{} */
    KG_MATH_CONST,   /* op: enum kg_math_const */
    KG_MATH_ADD,     /* a + b */
    KG_MATH_NEG,     /* -a */
    KG_MATH_MUL,     /* a b */
    KG_MATH_DIV,     /* a / b */
    KG_MATH_POW,     /* a ^ b */
    KG_MATH_FUNC,    /* op: enum kg_math_func; b: second argument or none */
    KG_MATH_PM,      /* op 0: +-a, 1: -+a */
    KG_MATH_PERCENT, /* a% */
    KG_MATH_DEGREE,  /* a degrees */
    KG_MATH_UNIT,    /* a, with the words b after it */
    KG_MATH_LIST,    /* a, then the rest b; op: KG_MATH_ALL for "and", _ANY for "or" */
    KG_MATH_TUPLE,   /* a: LIST; op: enum kg_math_brackets */
    KG_MATH_SET,     /* {a: LIST or none} */
    KG_MATH_SETOP,   /* op: '|' union, '&' intersection, '\\' difference */
    KG_MATH_REL,     /* op: enum kg_math_relation; b may be a REL again: a < b < c */
    KG_MATH_RATIO,   /* a : b */
    KG_MATH_MATRIX,  /* a: LIST of LISTs; op 1: determinant */
    KG_MATH_OPAQUE,  /* text: sum, int, ...; a: LIST of parts; op: enum kg_math_big */
    KG_MATH_BOUND,   /* text: the name bound by a sum, integral or limit */
    KG_MATH_MOD, /* a: LIST of dividend and modulus; b: the remainder; op 1: a class */
};
enum kg_math_const {
    KG_MATH_PI,
    KG_MATH_E,
    KG_MATH_I,
    KG_MATH_INF,
    KG_MATH_EMPTY,
    KG_MATH_REALS,
    KG_MATH_OTHER_SET, /* Z, N, Q, C: text */
};
enum kg_math_func {
    KG_MATH_SQRT,
    KG_MATH_ROOT, /* a: radicand, b: index */
    KG_MATH_ABS,
    KG_MATH_EXP,
    KG_MATH_LN,
    KG_MATH_SIN,
    KG_MATH_COS,
    KG_MATH_TAN,
    KG_MATH_ASIN,
    KG_MATH_ACOS,
    KG_MATH_ATAN,
    KG_MATH_FACTORIAL,
    KG_MATH_BINOMIAL, /* a over b */
    KG_MATH_FLOOR,
    KG_MATH_CEIL,
    KG_MATH_GCD,
    KG_MATH_LCM,
    KG_MATH_MAX,
    KG_MATH_MIN,
    /* the parser replaces these by functions above */
    KG_MATH_COT,
    KG_MATH_SEC,
    KG_MATH_CSC,
    KG_MATH_SINH,
    KG_MATH_COSH,
    KG_MATH_TANH,
    KG_MATH_LOG, /* b: base */
    KG_MATH_LG,
};
/* The kind of an OPAQUE node. Except for AS_TEXT its parts are name, lower limit, upper
 * limit and body. Sum and product: BOUND name, n, m, f. Integral: the same, but limits
 * may be 0 (none). Limit: BOUND name, target, 0, f. Derivative: SYM, order, NUM (1:
 * partial), f. */
enum kg_math_big {
    KG_MATH_AS_TEXT,
    KG_MATH_SUM,
    KG_MATH_PROD,
    KG_MATH_INT,
    KG_MATH_LIM,
    KG_MATH_DERIVATIVE,
};
enum { KG_MATH_ALL = 1, KG_MATH_ANY };
enum kg_math_brackets { /* bit 0: the left bracket is square; bit 1: the right */
                        KG_MATH_ROUND = 0,
                        KG_MATH_LEFT_SQUARE = 1,
                        KG_MATH_RIGHT_SQUARE = 2,
                        KG_MATH_SQUARE = 3,
};
enum kg_math_relation {
    KG_MATH_EQ,
    KG_MATH_NE,
    KG_MATH_LT,
    KG_MATH_LE,
    KG_MATH_GT,
    KG_MATH_GE,
    KG_MATH_IN,
    KG_MATH_APPROX,
    KG_MATH_EQUIV,
    KG_MATH_TO,
    KG_MATH_OTHER, /* this and larger numbers come from commands.c: similarity, .. */
};

enum {
    KG_MATH_MAX_TEXT = 4096,       /* bytes of an answer to parse */
    KG_MATH_MAX_STRING = 16384,    /* bytes of an answer compared as a string */
    KG_MATH_MAX_RESPONSE = 131072, /* bytes read at the end of a response */
    KG_MATH_MAX_NODES = 3000,
    KG_MATH_MAX_SIZE =
        20000, /* nodes of a sub-tree; walks visit shared nodes repeatedly */
    KG_MATH_MAX_POOL = 16384,
    KG_MATH_MAX_DEPTH = 60,
    KG_MATH_MAX_ITEMS = 64, /* of a list */
};
struct kg_math_node {
    uint8_t kind;
    uint8_t op;
    uint16_t a;
    uint16_t b;
    uint16_t len;
    uint32_t text; /* offset into the pool */
    uint32_t size; /* nodes of the sub-tree; a shared node counts each time */
};
struct kg_math_tree {
    struct kg_math_node nodes[KG_MATH_MAX_NODES];
    char pool[KG_MATH_MAX_POOL];
    int n;
    int used;
    bool full; /* a limit was reached: the tree is incomplete */
};
void kg_math_tree_clear(struct kg_math_tree *t);
int kg_math_node(struct kg_math_tree *t, enum kg_math_kind kind, int op, int a, int b);
int kg_math_leaf(struct kg_math_tree *t, enum kg_math_kind kind, int op, const char *text,
                 size_t n);
/* An integer of at most four digits. */
int kg_math_small(struct kg_math_tree *t, int value);
const char *kg_math_leaf_text(const struct kg_math_tree *t, int node);
bool kg_math_same_tree(const struct kg_math_tree *t, int a, int b);
/* Whether f is true for a node of the tree. */
bool kg_math_any(const struct kg_math_tree *t, int node,
                 bool (*f)(const struct kg_math_node *n));
/* Appends item to *list (0: empty), whose last link is *last. */
void kg_math_list_add(struct kg_math_tree *t, int *list, int *last, int item);
int kg_math_list_length(const struct kg_math_tree *t, int list);
/* A part of an OPAQUE node. */
enum kg_math_part { KG_MATH_NAME, KG_MATH_LOW, KG_MATH_HIGH, KG_MATH_BODY };
int kg_math_part(const struct kg_math_tree *t, int node, enum kg_math_part part);
/* Whether n is a sum or product, evaluated term by term. */
bool kg_math_is_series(const struct kg_math_node *n);
bool kg_math_is_pi(const struct kg_math_node *n);
bool kg_math_is_infinity(const struct kg_math_node *n);

/* ---- text to tree ---- */
static inline bool kg_math_digit_at(const char *p, const char *end)
{
    return p < end && *p >= '0' && *p <= '9';
}
/* Appends formula text in plain LaTeX: no sizes, money, Unicode.   errors: ENOMEM */
kg_status kg_math_clean(struct kg_str *out, const char *text, size_t n,
                        struct kg_err *err) KG_MUST_CHECK;
enum kg_math_parse_flags {
    KG_MATH_NO_THOUSANDS = 1,  /* 1,234 is two numbers */
    KG_MATH_DECIMAL_COMMA = 2, /* 1,5 is one number */
};
/* returns the root, or 0 with *why (static text) set if the text cannot be parsed */
int kg_math_parse(struct kg_math_tree *t, const char *text, size_t n, int flags,
                  const char **why);
struct kg_math_command {
    const char *name; /* (n) not ended by a NUL */
    size_t n;
    uint8_t group; /* enum kg_math_group */
    uint8_t op;
};
enum kg_math_group {
    KG_MATH_G_SYMBOL, /* not in the table */
    KG_MATH_G_CONST,
    KG_MATH_G_FUNC,
    KG_MATH_G_FRAC,
    KG_MATH_G_BINOM,
    KG_MATH_G_SQRT,
    KG_MATH_G_TIMES,
    KG_MATH_G_OVER,
    KG_MATH_G_PM,
    KG_MATH_G_REL,
    KG_MATH_G_SETOP,
    KG_MATH_G_TEXT,
    KG_MATH_G_STYLE, /* op 1: applies to all that follows (\bf) */
    KG_MATH_G_ACCENT,
    KG_MATH_G_BIG,
    KG_MATH_G_OPEN,
    KG_MATH_G_CLOSE,
    KG_MATH_G_DEGREE,
    KG_MATH_G_PERCENT,
    KG_MATH_G_AND,
    KG_MATH_G_BLACKBOARD,
    KG_MATH_G_OPERATOR,
    KG_MATH_G_DOTS,
    KG_MATH_G_UNIT,
    KG_MATH_G_SCALE,     /* op: power of ten */
    KG_MATH_G_DOZEN,     /* op: the number that it means, such as 12 */
    KG_MATH_G_RADIAN,    /* a value with pi before it is in radians */
    KG_MATH_G_LINK,      /* joins the words of a unit */
    KG_MATH_G_QUALIFIER, /* changes the value before it; op 1: also the value after it */
    KG_MATH_G_INFIX,     /* \over, \choose: the text before it is its argument */
    KG_MATH_G_TO,        /* 3 to 4 is a ratio */
    KG_MATH_G_MOD,       /* 17 \bmod 5 is a remainder; op 1: a residue class */
    KG_MATH_G_ABOUT,     /* has no meaning before a value ("about") */
    KG_MATH_G_PRIME,
    KG_MATH_G_ANGLE,
    KG_MATH_G_NUMBER, /* op: a number below one hundred */
};
/* The row of a LaTeX command (name: without the backslash) or plain word; NULL: none. */
const struct kg_math_command *kg_math_command_find(const char *name, size_t n);
const struct kg_math_command *kg_math_word_find(const char *name, size_t n);
/* Whether a command without a row is the name of a symbol, such as \alpha. */
bool kg_math_is_symbol(const char *name, size_t n);
/* The row of a word next to a value, ignoring case: a plain word, or one that has a
 * meaning only next to a value. NULL: unknown word. */
const struct kg_math_command *kg_math_beside_find(const char *name, size_t n);

/* ---- deciding ---- */
struct kg_math_near {
    bool on;         /* nearly equal suffices, because a decimal or tolerance is given */
    int decimals;    /* number of decimals that are compared */
    double absolute; /* > 0: |a - b| may be up to this; decimals do not count */
};
struct kg_math_decider {
    const struct kg_math_tree *tree;
    struct kg_math_budget *budget; /* borrowed */
    char reason[96];               /* reason of the last decision */
    bool no_memory;                /* base/mem refused memory: no verdict is valid */
};
/* Whether a and b are the same number or function. */
enum kg_math_verdict kg_math_equal(struct kg_math_decider *d, int a, int b,
                                   const struct kg_math_near *near);
/* -1 for a < b, 1 for a > b, 0 if equal or unknown. */
int kg_math_order(struct kg_math_decider *d, int a, int b);
/* Whether a and b differ by a constant factor, so that they have the same zeros. *sign <-
 * the sign of the factor. */
enum kg_math_verdict kg_math_proportional(struct kg_math_decider *d, int a, int b,
                                          int *sign);
/* Whether f is certainly bounded while the BOUND name is between low and high. */
bool kg_math_is_bounded(struct kg_math_decider *d, int f, int name, int low, int high);
/* The value of an infinite sum of rational terms, as "n" or "n/m".   returns false if not
 * found */
enum { KG_MATH_SUM_TEXT = 512 };
bool kg_math_sum_limit(struct kg_math_decider *d, char text[KG_MATH_SUM_TEXT], int node);
enum { KG_MATH_GOLD_SIDE, KG_MATH_ANSWER_SIDE, KG_MATH_SIDES };
struct kg_math_compare {
    struct kg_math_decider decider;
    struct kg_math_tree *tree;
    const struct kg_math_opts *opts;
    int item;                 /* index in the gold list, to choose the tolerance */
    int products;             /* matrix products evaluated so far */
    int depth;                /* nesting of comparisons */
    int whole[KG_MATH_SIDES]; /* LIST of each side's names declared as integers, or 0 */
    bool of_unknown;          /* what is compared is the value of an unknown: x = .. */
};
/* Compares answer with gold, both trees in c->tree. */
enum kg_math_verdict kg_math_compare(struct kg_math_compare *c, int gold, int answer);

/* ---- finding the answer ---- */
/* The position of the brace that closes text[0], or n. */
size_t kg_math_brace_end(const char *text, size_t n);
/* The end of the unsigned number at p; p if there is none. */
const char *kg_math_number_end(const char *p, const char *end);
/* Bytes of a command at p that has a value, such as \frac{1}{2} or \pi; 0: none. */
size_t kg_math_value_command(const char *p, const char *end);
/* The end of a formula without delimiters that starts at p: values, adjacent or joined by
 * operators, at least one of them a command.   returns p if there is none */
const char *kg_math_bare_end(const char *p, const char *end);
/* Whether the text from start to end around a number (formula: or a formula) changes its
 * value or makes it part of a larger formula. */
bool kg_math_is_altered(const char *start, struct kg_math_text number, bool formula,
                        const char *end);
struct kg_math_found {
    struct kg_str text; /* owned: the answer */
    bool any;
    bool plain; /* text is from running text, not from a formula */
};
/* The contents of the last \boxed{} or \fbox{}; len < 0 if there is none. */
const char *kg_math_last_boxed(const char *text, size_t n, size_t *len);
/* Keeps the text after the last </think> and before a later <think>.   returns false if a
 * <think> was never closed */
bool kg_math_after_thinking(struct kg_math_text *t);
/* The text before the first end-of-turn token or start of a user's turn. */
struct kg_math_text kg_math_before_end_token(struct kg_math_text t);
kg_status kg_math_extract(struct kg_math_found *found, struct kg_math_text t,
                          enum kg_math_form form, struct kg_err *err) KG_MUST_CHECK;
/* The text without white space at its ends. */
struct kg_math_text kg_math_trimmed(struct kg_math_text t);
/* The last KG_MATH_MAX_RESPONSE bytes of a text. */
struct kg_math_text kg_math_tail(struct kg_math_text t);
/* The text after the last word that announces an answer (white space, * and : skipped):
 * one line, or all the rest if it begins with $ or \.   returns false if there is no such
 * word or text */
bool kg_math_behind_anchor(struct kg_math_text *out, struct kg_math_text t);
/* Bytes of a leading "negative" or "minus" of a number in words; 0 if there is none. */
size_t kg_math_sign_word(struct kg_math_text t);
/* Whether the text is just a number in words: "Twenty-one.", "two hundred and five" */
bool kg_math_is_number_words(struct kg_math_text t);
/* Whether the text contains prose. */
bool kg_math_is_prose(struct kg_math_text t);
/* The formula of a set named by a phrase ("no solution", "all real numbers"), static;
 * NULL in *formula for other texts.   errors: ENOMEM */
kg_status kg_math_phrase(const char **formula, const char *text, size_t n,
                         struct kg_err *err) KG_MUST_CHECK;
/* The letter of a multiple-choice answer; 0 if there is none. */
char kg_math_choice(const char *text, size_t n);

/* ---- modes; the published ones are in guests/lab ---- */
kg_status kg_math_grade_default(struct kg_math_job *job, struct kg_err *err);
kg_status kg_math_grade_ema_pg(struct kg_math_job *job, struct kg_err *err) KG_GUEST;
kg_status kg_math_grade_mathd(struct kg_math_job *job, struct kg_err *err) KG_GUEST;
kg_status kg_math_grade_dapo(struct kg_math_job *job, struct kg_err *err) KG_GUEST;

/* Shared by the files of the parser. parse.c: lists, relations, sums and products.
 * parse_primary.c: operands. parse_big.c: sums, integrals, limits and derivatives.
 * parse_atom.c: numbers, names, arguments and postfixes. parse_unit.c: units and numbers
 * in words. */

struct kg_math_parser {
    struct kg_math_tree *t;
    const char *start; /* start of the whole text */
    const char *p;
    const char *end;
    int depth;
    int flags;
    int brackets; /* open ( or [: a comma separates items */
    int bars;     /* open |: the next one closes */
    /* > 0 right of a relation: there \mod belongs to the relation, not to an operand */
    int related;
    const char *why;
};

/* Each returns a node, or 0 with p->why set. */
int kg_math_parse_list(struct kg_math_parser *p); /* LIST of at least one item */
int kg_math_parse_chain(struct kg_math_parser *p);
int kg_math_parse_sum(struct kg_math_parser *p);
int kg_math_parse_term(struct kg_math_parser *p);
int kg_math_parse_postfix(struct kg_math_parser *p);
int kg_math_parse_primary(struct kg_math_parser *p);
/* An argument of \frac and the like: {..}, one digit, one letter, or a command. */
int kg_math_parse_arg(struct kg_math_parser *p);
/* One letter: a name, or the constant e or i. */
int kg_math_parse_letter(struct kg_math_parser *p);
/* The argument of ^. */
int kg_math_parse_script(struct kg_math_parser *p);
int kg_math_parse_number(struct kg_math_parser *p);
/* "twenty-one", "two hundred and five" */
int kg_math_parse_number_words(struct kg_math_parser *p);
/* Parse what follows the value `left`: a quotient of units (m/s), or a word in brackets
 * after a number ("5 (apples)"), as WORDS.   returns 0, with nothing consumed, if there
 * is none */
int kg_math_parse_unit(struct kg_math_parser *p, int left);
int kg_math_parse_bracketed_word(struct kg_math_parser *p, int left);
int kg_math_parse_braces(struct kg_math_parser *p); /* {..} */
bool kg_math_is_whole(const struct kg_math_tree *t, int node);
/* The item of a list that has only one; else the list. */
int kg_math_parse_unwrap(struct kg_math_parser *p, int list);
int kg_math_parse_fail(struct kg_math_parser *p, const char *why);

/* ---- reading ahead ---- */
char kg_math_look(struct kg_math_parser *p); /* next byte after spaces, 0 at the end */
bool kg_math_eat(struct kg_math_parser *p, const char *text);
/* The row of the next command (\name) or word, which is not consumed; NULL if there is
 * none or it is a symbol. *len: bytes of the command or word, with the backslash. */
const struct kg_math_command *kg_math_ahead(struct kg_math_parser *p, size_t *len);
/* The contents of the next {..}, which is consumed; NULL if there is none. */
const char *kg_math_raw_group(struct kg_math_parser *p, size_t *n);
/* The next {..}, command or byte as text; NULL if there is none. */
const char *kg_math_raw_arg(struct kg_math_parser *p, size_t *n);
/* Copies a name into the pool without spaces, braces and style commands. */
int kg_math_name(struct kg_math_parser *p, enum kg_math_kind kind, const char *lead,
                 const char *text, size_t n);
bool kg_math_starts_value(struct kg_math_parser *p);
/* Bytes of the "mod" that comes next, a command or word, and of a ( before it; 0 if there
 * is none. *is_class <- whether it is \pmod or in brackets. */
size_t kg_math_mod_ahead(struct kg_math_parser *p, bool *is_class);
/* Parses [text, text + n) as a formula of its own; returns 0 unless all is consumed. */
int kg_math_parse_part(struct kg_math_parser *p, const char *text, size_t n);
/* Parse a sum, product, integral or limit after its command; \frac{d}{dx} and similar
 * (other fractions give 0, with nothing consumed); dx. */
int kg_math_parse_big(struct kg_math_parser *p, const struct kg_math_command *row);
int kg_math_parse_derivative(struct kg_math_parser *p);
int kg_math_parse_differential(struct kg_math_parser *p);

/* Shared by the files that compare two trees. compare.c: lists, relations, words, values,
 * and the choice between the kinds. compare_sets.c: intervals and unions.
 * compare_matrix.c: matrices. compare_names.c: renamed parameters and residue classes.
 * calculus.c: evaluation of derivatives, integrals and limits before the comparison. */

typedef enum kg_math_verdict verdict;

struct kg_math_items {
    int node[KG_MATH_MAX_ITEMS];
    int n;
    bool more; /* some items did not fit */
};

static inline const struct kg_math_node *kg_math_at(const struct kg_math_compare *c,
                                                    int node)
{
    return &c->tree->nodes[node];
}

static inline bool kg_math_is_falling(int relation)
{
    return relation == KG_MATH_GT || relation == KG_MATH_GE;
}

/* Notes the reason and returns v. */
verdict kg_math_conclude(struct kg_math_compare *c, verdict v, const char *reason);
/* Whether a node is only a name for the other side of =. */
bool kg_math_is_name(const struct kg_math_compare *c, int node);
bool kg_math_is_relation(const struct kg_math_compare *c, int node, int op);
/* Adds the items of a list, or a single item; x \pm y becomes two items. */
void kg_math_gather(struct kg_math_compare *c, struct kg_math_items *out, int node);
verdict kg_math_in_order(struct kg_math_compare *c, const struct kg_math_items *g,
                         const struct kg_math_items *a);
/* Compares as sets: each item of either side must be in the other. */
verdict kg_math_in_any_order(struct kg_math_compare *c, const struct kg_math_items *g,
                             const struct kg_math_items *a);

/* The node without parts that carry no value: units, degrees, "x in" before a set. */
int kg_math_strip(struct kg_math_compare *c, int node);
bool kg_math_is_infinite(const struct kg_math_compare *c, int node, int *sign);

/* Compares sets of real numbers; at least one is a union, an interval or all reals. */
verdict kg_math_unions(struct kg_math_compare *c, int gold, int answer);

/* A nested comparison. */
verdict kg_math_compare_inner(struct kg_math_compare *c, int gold, int answer);
/* Combines two parts: wrong if one is wrong, right if both are right, else undecided. */
verdict kg_math_both(verdict a, verdict b);
/* The class in x \equiv 7 \pmod{12}, without the name; other nodes unchanged. */
int kg_math_class_of(const struct kg_math_compare *c, int node);
bool kg_math_is_class(const struct kg_math_compare *c, int node);
verdict kg_math_classes(struct kg_math_compare *c, int gold, int answer);
verdict kg_math_class_and_other(struct kg_math_compare *c, int gold, int answer);
/* Drops items such as k \in Z from a list if their name is a parameter of other items,
 * and records these names for that side. */
int kg_math_without_domains(struct kg_math_compare *c, int node, int side);
/* A copy of the tree with `from` replaced by `to`. */
int kg_math_replaced(struct kg_math_compare *c, int node, int from, int to);
/* The tree with derivatives, integrals, limits and infinite sums evaluated as far as
 * possible; the others become AS_TEXT. Finite sums are left to the evaluators. */
int kg_math_worked_out(struct kg_math_compare *c, int node);
/* The derivative with respect to a SYM; partial: all other names are constant.   returns
 * 0 if none is found */
int kg_math_derived(struct kg_math_compare *c, int node, int name, bool partial);
/* Whether both are equal after renaming parameters: constants of integration, and
 * integers that multiply pi or are declared. WRONG also if there are no parameters. */
verdict kg_math_same_but_names(struct kg_math_compare *c, int gold, int answer);

/* Whether gold and answer each have a name that the other lacks (x > 1 is not y > 1), or
 * two items of a list do. */
bool kg_math_names_conflict(const struct kg_math_compare *c, int gold, int answer);

bool kg_math_is_matrix(const struct kg_math_compare *c, int node);
/* Evaluates sums and products of matrices.   returns the matrix, or node unchanged */
int kg_math_matrix_value(struct kg_math_compare *c, int node);
verdict kg_math_matrices(struct kg_math_compare *c, int gold, int answer);

#endif
