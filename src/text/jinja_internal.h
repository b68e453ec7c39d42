/* The interpreter of chat_template.h: text -> tokens -> tree -> output.
 *
 * There are two lifetimes, each a pool that is freed as a whole: the template (tokens,
 * tree) and one rendering (values, scopes). A value is small and copied; the data that it
 * points to is immutable, except in namespaces. Text is UTF-8 that points into the
 * template, the variables or the pool, so slices cost nothing. Lengths and positions that
 * a template sees count characters.
 *
 * Filters, tests, methods of text, lists and objects, and global functions are all rows
 * of tables of one function type, kg_jinja_fn.
 */
#ifndef KG_TEXT_JINJA_INTERNAL_H
#define KG_TEXT_JINJA_INTERNAL_H

#include "base/pool.h"
#include "base/status.h"
#include "base/str.h"
#include "text/chat_template.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- values ---- */

enum kg_jv_type {
    KG_JV_UNDEFINED,
    KG_JV_NONE,
    KG_JV_BOOL,
    KG_JV_INT,
    KG_JV_REAL,
    KG_JV_TEXT,
    KG_JV_LIST,
    KG_JV_DICT,
    KG_JV_LOOP,
    KG_JV_CALLABLE
};

struct kg_jv_text {
    const char *bytes; /* borrowed */
    size_t n;
};
struct kg_jv {
    enum kg_jv_type type;
    bool safe; /* TEXT only: it is markup, so text that is joined to it is escaped */
    union {
        bool truth;
        int64_t integer;
        double real;
        struct kg_jv_text text; /* TEXT; UNDEFINED: the name that was not found */
        struct kg_jv_list *list;
        struct kg_jv_dict *dict;
        struct kg_jinja_loop *loop;
        struct kg_jv_callable *callable;
    } u;
};

/* How a list behaves in Python. The first three can be indexed, the first two become
 * JSON. A generator is true even if empty, has no length and can be read once. */
enum kg_jv_list_kind {
    KG_JV_PLAIN,
    KG_JV_TUPLE,
    KG_JV_RANGE,
    KG_JV_KEYS, /* KEYS, VALUES and ITEMS: views of a dict */
    KG_JV_VALUES,
    KG_JV_ITEMS,
    KG_JV_GENERATOR
};
struct kg_jv_list {
    struct kg_jv *items;
    size_t n;
    size_t capacity;
    enum kg_jv_list_kind kind;
    bool consumed;
    const int64_t *range; /* (3) start, stop, step; RANGE only */
};
struct kg_jv_dict {
    struct kg_jv *keys;
    struct kg_jv *values;
    size_t n;
    size_t capacity;
    bool is_namespace;
};

struct kg_jinja; /* one rendering */
struct kg_jinja_args {
    const struct kg_jv *pos; /* (n) */
    size_t n;
    const struct kg_jv_text *names; /* (n_named) */
    const struct kg_jv *named;      /* (n_named) */
    size_t n_named;
    /* one per parameter of the row; a NULL was not given */
    const struct kg_jv *by[6];
};
/* in: the filtered or tested value, or the object of a method; NULL for a function */
typedef kg_status kg_jinja_fn(struct kg_jv *out, struct kg_jinja *j,
                              const struct kg_jv *in, const struct kg_jinja_args *args);
struct kg_jinja_row {
    const char *name;
    /* "old,new,count"; NULL: the function reads args itself */
    const char *params;
    size_t need; /* number of required params */
    kg_jinja_fn *run;
};

struct kg_jinja_scope;
struct kg_jv_callable {
    const struct kg_jinja_row *row;    /* a function or a method */
    struct kg_jv self;                 /* the object of a method */
    const struct kg_jinja_node *macro; /* a macro or a call block; then row is NULL */
    struct kg_jinja_scope *scope;      /* where the macro was defined */
};

struct kg_jinja_loop {
    const struct kg_jv_list *items;
    size_t i;
    int64_t depth0;
    const struct kg_jinja_node *node; /* node of a recursive loop; else NULL */
    struct kg_jinja_scope *scope;     /* the scope around the loop */
    struct kg_jv changed;             /* the last argument of loop.changed */
};

/* ---- tree ---- */

enum kg_jinja_kind {
    /* expressions */
    KG_JN_CONST,    /* value */
    KG_JN_NAME,     /* value: name */
    KG_JN_ATTR,     /* a . value */
    KG_JN_ITEM,     /* a [ b ] */
    KG_JN_SLICE,    /* a [ b : c : body ] */
    KG_JN_CALL,     /* a ( list ) */
    KG_JN_NAMED,    /* value = a, inside ( ) */
    KG_JN_SPREAD,   /* * a or ** a (flag), inside ( ) */
    KG_JN_FILTER,   /* a | value ( list ) */
    KG_JN_TEST,     /* a is value ( list ); flag: is not */
    KG_JN_CAPTURED, /* the text of a filter block or set block */
    KG_JN_BINARY,   /* a op b */
    KG_JN_COMPARE,  /* a, then list of OPERAND */
    KG_JN_OPERAND,  /* op a */
    KG_JN_AND,
    KG_JN_OR,
    KG_JN_NOT,   /* a */
    KG_JN_SIGN,  /* op a */
    KG_JN_COND,  /* a if b else c */
    KG_JN_JOIN,  /* list, with ~ */
    KG_JN_LIST,  /* list */
    KG_JN_TUPLE, /* list */
    KG_JN_DICT,  /* list of PAIR */
    KG_JN_PAIR,  /* a : b */
    /* statements */
    KG_JN_DATA,         /* value */
    KG_JN_OUTPUT,       /* a */
    KG_JN_IF,           /* a, body, other */
    KG_JN_FOR,          /* a in b if c, body, other; flag: recursive */
    KG_JN_SET,          /* a = b */
    KG_JN_SET_BLOCK,    /* a, b: filters over CAPTURED or NULL, body */
    KG_JN_MACRO,        /* value, list of NAME with default a, body */
    KG_JN_CALL_BLOCK,   /* a: CALL, list of parameters, body */
    KG_JN_FILTER_BLOCK, /* b over CAPTURED, body */
    KG_JN_WITH,         /* list of SET, body */
    KG_JN_GENERATION,   /* body */
    KG_JN_BREAK,
    KG_JN_CONTINUE
};

enum { KG_JN_USES_VARARGS = 1, KG_JN_USES_KWARGS = 2 };

struct kg_jinja_node {
    enum kg_jinja_kind kind;
    uint32_t line;
    uint32_t column;
    int op; /* enum kg_jinja_token_type */
    bool flag;
    int uses; /* MACRO, CALL_BLOCK */
    struct kg_jv value;
    const struct kg_jinja_row *row; /* FILTER and TEST; NULL: unknown name */
    struct kg_jinja_node *a;
    struct kg_jinja_node *b;
    struct kg_jinja_node *c;
    struct kg_jinja_node *list;
    struct kg_jinja_node *body;
    struct kg_jinja_node *other;
    struct kg_jinja_node *next; /* next in its list */
};

/* ---- tokens ---- */

enum kg_jinja_token_type {
    KG_JT_DATA,
    KG_JT_VARIABLE_BEGIN,
    KG_JT_VARIABLE_END,
    KG_JT_BLOCK_BEGIN,
    KG_JT_BLOCK_END,
    KG_JT_NAME,
    KG_JT_STRING,
    KG_JT_INTEGER,
    KG_JT_FLOAT,
    KG_JT_ADD,
    KG_JT_SUB,
    KG_JT_MUL,
    KG_JT_DIV,
    KG_JT_FLOORDIV,
    KG_JT_MOD,
    KG_JT_POW,
    KG_JT_TILDE,
    KG_JT_LPAREN,
    KG_JT_RPAREN,
    KG_JT_LBRACKET,
    KG_JT_RBRACKET,
    KG_JT_LBRACE,
    KG_JT_RBRACE,
    KG_JT_EQ,
    KG_JT_NE,
    KG_JT_GT,
    KG_JT_GE,
    KG_JT_LT,
    KG_JT_LE,
    KG_JT_IN, /* IN and NOT_IN occur only as operators of the tree */
    KG_JT_NOT_IN,
    KG_JT_ASSIGN,
    KG_JT_DOT,
    KG_JT_COMMA,
    KG_JT_COLON,
    KG_JT_PIPE,
    KG_JT_SEMICOLON,
    KG_JT_END
};

struct kg_jinja_token {
    enum kg_jinja_token_type type;
    uint32_t line;
    uint32_t column;
    struct kg_jv_text text; /* DATA, NAME, STRING (decoded), or the text of an operator */
    int64_t integer;
    double real;
};

struct kg_chat_template {
    struct kg_pool pool;
    char *where; /* owned */
    struct kg_jinja_node *root;
    bool asks_date;            /* strftime_now is used */
    struct kg_json_doc config; /* tokenizer_config.json, or {0} */
    /* the template to use instead if the variables have tools; owned, or NULL */
    struct kg_chat_template *with_tools;
};

/* Tokens of a source with LF line ends; the last has type END. DATA is already trimmed.
 * tokens: in the template's pool
 * errors: EFORMAT with line and column */
kg_status kg_jinja_lex(struct kg_jinja_token **tokens, struct kg_chat_template *t,
                       const char *source, size_t n, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_jinja_parse(struct kg_chat_template *t, const struct kg_jinja_token *tokens,
                         struct kg_err *err) KG_MUST_CHECK;
kg_status kg_jinja_fail_at(const struct kg_chat_template *t, uint32_t line,
                           uint32_t column, struct kg_err *err, const char *fmt, ...)
    KG_PRINTF(5, 6);

/* The parser's position and state, for jinja_parse.c and jinja_parse_expr.c. */
struct kg_jinja_parser {
    struct kg_chat_template *t;
    const struct kg_jinja_token *at;
    struct kg_err *err;
    int depth;
    int loops; /* number of loops around this position, within the current macro */
    int uses;  /* KG_JN_USES_ bits of the macro being read */
};
struct kg_jinja_node *kg_jinja_node_new(struct kg_jinja_parser *p,
                                        enum kg_jinja_kind kind);
bool kg_jinja_is_name(const struct kg_jinja_parser *p, const char *name);
bool kg_jinja_skip(struct kg_jinja_parser *p, enum kg_jinja_token_type type);
bool kg_jinja_skip_name(struct kg_jinja_parser *p, const char *name);
kg_status kg_jinja_expect(struct kg_jinja_parser *p, enum kg_jinja_token_type type,
                          const char *what) KG_MUST_CHECK;
kg_status kg_jinja_unexpected(struct kg_jinja_parser *p, const char *expected);
kg_status kg_jinja_parse_expr(struct kg_jinja_node **out,
                              struct kg_jinja_parser *p) KG_MUST_CHECK;
/* Parses a, or a tuple "a, b". no_cond: members have no `if`. */
kg_status kg_jinja_parse_tuple(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                               bool no_cond) KG_MUST_CHECK;
/* Parses the "name(args)|name..." of a filter tag or a set block, applied to `in`. */
kg_status kg_jinja_parse_filters(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                                 struct kg_jinja_node *in,
                                 bool first_named) KG_MUST_CHECK;
kg_status kg_jinja_parse_postfix(struct kg_jinja_node **out, struct kg_jinja_parser *p,
                                 struct kg_jinja_node *node) KG_MUST_CHECK;
kg_status kg_jinja_parse_primary(struct kg_jinja_node **out,
                                 struct kg_jinja_parser *p) KG_MUST_CHECK;
kg_status kg_jinja_enter(struct kg_jinja_parser *p) KG_MUST_CHECK; /* depth++ */

/* ---- one rendering ---- */

struct kg_jinja_scope {
    struct kg_jinja_scope *up;
    struct kg_jv_dict vars;
};

struct kg_jinja {
    const struct kg_chat_template *t;
    const struct kg_chat_opts *opts;
    struct kg_chat_limits limits; /* resolved */
    struct kg_pool pool;
    struct kg_str *out;
    size_t out_begin;
    int64_t steps; /* steps left */
    int depth;
    struct kg_jinja_scope *scope;
    struct kg_jv captured; /* value of KG_JN_CAPTURED */
    enum { KG_JINJA_RUNS, KG_JINJA_BREAKS, KG_JINJA_CONTINUES } flow;
    bool placed; /* err already has line and column */
    struct kg_err *err;
};

kg_status kg_jinja_run(struct kg_jinja *j,
                       const struct kg_jinja_node *list) KG_MUST_CHECK;
/* Fails with EFORMAT; the innermost node adds line and column. */
kg_status kg_jinja_fail(struct kg_jinja *j, const char *fmt, ...) KG_PRINTF(2, 3);
/* Takes work on n bytes or members from the steps left.   errors: EFORMAT (limit) */
kg_status kg_jinja_pay(struct kg_jinja *j, size_t n) KG_MUST_CHECK;
kg_status kg_jinja_deeper(struct kg_jinja *j) KG_MUST_CHECK; /* undone by j->depth-- */
kg_status kg_jinja_emit(struct kg_jinja *j, const char *bytes, size_t n) KG_MUST_CHECK;
/* Moves the output after offset `mark` of out into a value. */
kg_status kg_jinja_cut(struct kg_jv *out, struct kg_jinja *j, size_t mark) KG_MUST_CHECK;

/* Calls a value. */
kg_status kg_jinja_call(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *f,
                        struct kg_jinja_args *args) KG_MUST_CHECK;
kg_status kg_jinja_run_macro(struct kg_jv *out, struct kg_jinja *j,
                             const struct kg_jv_callable *macro,
                             const struct kg_jinja_args *args) KG_MUST_CHECK;
kg_status kg_jinja_run_loop(struct kg_jinja *j, const struct kg_jinja_node *n,
                            const struct kg_jv *items, int64_t depth0) KG_MUST_CHECK;
/* Calls a row after binding the arguments to its parameters. */
kg_status kg_jinja_call_row(struct kg_jv *out, struct kg_jinja *j,
                            const struct kg_jinja_row *row, const struct kg_jv *in,
                            struct kg_jinja_args *args) KG_MUST_CHECK;
const struct kg_jinja_row *kg_jinja_find(const struct kg_jinja_row *table,
                                         struct kg_jv_text name);
extern const struct kg_jinja_row kg_jinja_filters[];
extern const struct kg_jinja_row kg_jinja_list_filters[];
extern const struct kg_jinja_row kg_jinja_tests[];
extern const struct kg_jinja_row kg_jinja_functions[];
extern const struct kg_jinja_row kg_jinja_text_methods[];
extern const struct kg_jinja_row kg_jinja_list_methods[];
extern const struct kg_jinja_row kg_jinja_dict_methods[];
extern const struct kg_jinja_row kg_jinja_loop_methods[];
const struct kg_jinja_row *kg_jinja_find_filter(struct kg_jv_text name);

/* a.name looks for methods first, a[key] for members first. Undefined if a has neither.
 * errors: EFORMAT (a is undefined) */
kg_status kg_jinja_attr(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *a,
                        struct kg_jv_text name) KG_MUST_CHECK;
kg_status kg_jinja_item(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *a,
                        const struct kg_jv *key) KG_MUST_CHECK;
/* Looks up a path such as "a.b.0", for map, selectattr, sort and others. */
kg_status kg_jinja_path(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *a,
                        const struct kg_jv *path) KG_MUST_CHECK;
kg_status kg_jinja_slice(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *a,
                         const struct kg_jv bounds[3]) KG_MUST_CHECK;
/* range(bounds[0], bounds[1], bounds[2]) as a list of n numbers */
kg_status kg_jinja_range(struct kg_jv *out, struct kg_jinja *j, const int64_t bounds[3],
                         int64_t n) KG_MUST_CHECK;
kg_status kg_jinja_binary(struct kg_jv *out, struct kg_jinja *j, int op,
                          const struct kg_jv *a, const struct kg_jv *b) KG_MUST_CHECK;
/* Checks a name of a namespace: it must not begin with _.   errors: EFORMAT */
kg_status kg_jinja_check_name(struct kg_jinja *j, const struct kg_jv *name) KG_MUST_CHECK;
/* text.format(): "{} {0} {name!r:>5}", a row of the text methods. */
kg_status kg_jinja_format(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                          const struct kg_jinja_args *args) KG_MUST_CHECK;
/* text % values, as printf. */
kg_status kg_jinja_percent(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *fmt,
                           const struct kg_jv *values) KG_MUST_CHECK;

/* ---- values ---- */

struct kg_jv kg_jv_bool(bool b);
struct kg_jv kg_jv_int(int64_t i);
struct kg_jv kg_jv_real(double x);
struct kg_jv kg_jv_text(const char *bytes, size_t n); /* borrowed */
struct kg_jv kg_jv_none(void);
struct kg_jv kg_jv_undefined(struct kg_jv_text name);
const char *kg_jv_type_name(const struct kg_jv *v); /* as in Python */
bool kg_jv_is_text(const struct kg_jv *v, const char *text);
bool kg_jv_truth(const struct kg_jv *v);
bool kg_jv_is_number(const struct kg_jv *v); /* true also for bools */
/* false unless v is an integer or a bool; kg_jv_as_real: or a real */
bool kg_jv_as_int(int64_t *i, const struct kg_jv *v);
bool kg_jv_as_real(double *x, const struct kg_jv *v);
kg_status kg_jv_equal(bool *equal, struct kg_jinja *j, const struct kg_jv *a,
                      const struct kg_jv *b) KG_MUST_CHECK;
/* *sign <- below, equal to or above 0, as a - b.   errors: EFORMAT (no order) */
kg_status kg_jv_compare(int *sign, struct kg_jinja *j, const struct kg_jv *a,
                        const struct kg_jv *b) KG_MUST_CHECK;
kg_status kg_jv_contains(bool *in, struct kg_jinja *j, const struct kg_jv *whole,
                         const struct kg_jv *part) KG_MUST_CHECK;
/* Emit v as str(), and as repr(). */
kg_status kg_jv_put(struct kg_jinja *j, const struct kg_jv *v) KG_MUST_CHECK;
kg_status kg_jv_put_repr(struct kg_jinja *j, const struct kg_jv *v) KG_MUST_CHECK;
/* Emits v as str(), escaped for HTML unless it is markup. */
kg_status kg_jv_put_escaped(struct kg_jinja *j, const struct kg_jv *v) KG_MUST_CHECK;
/* str() as a value; text is returned unchanged. */
kg_status kg_jv_str(struct kg_jv *out, struct kg_jinja *j,
                    const struct kg_jv *v) KG_MUST_CHECK;
/* Markup is returned unchanged; else str(), escaped. */
kg_status kg_jv_escape(struct kg_jv *out, struct kg_jinja *j,
                       const struct kg_jv *v) KG_MUST_CHECK;
struct kg_jinja_json {
    bool ensure_ascii;
    bool sort_keys;
    bool indented;
    struct kg_jv_text indent;
    struct kg_jv_text item; /* separators */
    struct kg_jv_text key;
};
kg_status kg_jv_put_json(struct kg_jinja *j, const struct kg_jv *v,
                         const struct kg_jinja_json *how, int level) KG_MUST_CHECK;
kg_status kg_jv_from_json(struct kg_jv *out, struct kg_jinja *j,
                          const struct kg_json *v) KG_MUST_CHECK;

kg_status kg_jv_list_new(struct kg_jv *out, struct kg_jinja *j, size_t capacity,
                         enum kg_jv_list_kind kind) KG_MUST_CHECK;
kg_status kg_jv_push(struct kg_jinja *j, struct kg_jv *list,
                     const struct kg_jv *item) KG_MUST_CHECK;
kg_status kg_jv_dict_new(struct kg_jv *out, struct kg_jinja *j) KG_MUST_CHECK;
/* *found <- the value of a key; NULL: none. */
kg_status kg_jv_dict_get(const struct kg_jv **found, struct kg_jinja *j,
                         const struct kg_jv_dict *d,
                         const struct kg_jv *key) KG_MUST_CHECK;
kg_status kg_jv_dict_set(struct kg_jinja *j, struct kg_jv_dict *d,
                         const struct kg_jv *key,
                         const struct kg_jv *value) KG_MUST_CHECK;
/* The sequence that a for loop iterates: members of a list, keys of an object, characters
 * of a text, nothing for undefined. Iterating consumes a generator.   errors: EFORMAT
 * (not iterable) */
kg_status kg_jv_iterate(const struct kg_jv_list **items, struct kg_jinja *j,
                        const struct kg_jv *v) KG_MUST_CHECK;
/* len(v).   errors: EFORMAT (no length) */
kg_status kg_jv_length(size_t *n, struct kg_jinja *j,
                       const struct kg_jv *v) KG_MUST_CHECK;
size_t kg_jv_chars(struct kg_jv_text t); /* number of characters */
/* strip(). sides: 1 left, 2 right, 3 both; chars NULL: white space */
struct kg_jv_text kg_jv_strip(struct kg_jv_text t, const struct kg_jv_text *chars,
                              int sides);
/* Bytes of the first line of t as str.splitlines() finds it; *end: the same with its line
 * end. */
size_t kg_jv_line(size_t *end, struct kg_jv_text t);
/* Byte offset of the first `part` at or after `from`; -1: none. */
int64_t kg_jv_find(struct kg_jv_text t, struct kg_jv_text part, size_t from);
bool kg_jinja_is_space(uint32_t cp); /* str.isspace of Python */

#endif
