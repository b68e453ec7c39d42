/* Shared by the files of the parser. parse.c: lists, relations, sums and products.
 * parse_primary.c: operands. parse_big.c: sums, integrals, limits and derivatives.
 * parse_atom.c: numbers, names, arguments and postfixes. parse_unit.c: units and numbers
 * in words. */
#ifndef KG_MATH_PARSE_INTERNAL_H
#define KG_MATH_PARSE_INTERNAL_H

#include "math/math_internal.h"

struct kg_math_parser {
    struct kg_math_tree *t;
    const char *start; /* of the whole text */
    const char *p;
    const char *end;
    int depth;
    int flags;
    int brackets; /* open ( or [: a comma separates */
    int bars;     /* open |: the next one closes */
    /* right of a relation: \mod belongs to the relation and is not an operator */
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
/* An argument of \frac and similar commands: {..}, one digit, one letter, or a
 * command. */
int kg_math_parse_arg(struct kg_math_parser *p);
/* One letter: a name, or e or i. */
int kg_math_parse_letter(struct kg_math_parser *p);
/* The argument of ^. */
int kg_math_parse_script(struct kg_math_parser *p);
int kg_math_parse_number(struct kg_math_parser *p);
/* "twenty-one", "two hundred and five" */
int kg_math_parse_number_words(struct kg_math_parser *p);
/* Parse after the value `left`: a quotient of units (m/s), or a word in brackets after a
 * number ("5 (apples)"), as WORDS.   returns 0 if there is none; then nothing is
 * consumed */
int kg_math_parse_unit(struct kg_math_parser *p, int left);
int kg_math_parse_bracketed_word(struct kg_math_parser *p, int left);
int kg_math_parse_braces(struct kg_math_parser *p); /* {..} */
bool kg_math_is_whole(const struct kg_math_tree *t, int node);
/* The item of a list of one; else the list. */
int kg_math_parse_unwrap(struct kg_math_parser *p, int list);
int kg_math_parse_fail(struct kg_math_parser *p, const char *why);

/* ---- reading ahead ---- */
char kg_math_look(struct kg_math_parser *p); /* next byte after spaces, 0 at the end */
bool kg_math_eat(struct kg_math_parser *p, const char *text);
/* The next command (\name) or word, not consumed; NULL if there is none or it is a
 * symbol. *len: its bytes, with the backslash. */
const struct kg_math_command *kg_math_ahead(struct kg_math_parser *p, size_t *len);
/* The contents of the next {..}, which is consumed; NULL if there is none. */
const char *kg_math_raw_group(struct kg_math_parser *p, size_t *n);
/* The next {..}, command or byte as text; NULL if there is none. */
const char *kg_math_raw_arg(struct kg_math_parser *p, size_t *n);
/* Copies a name into the pool without spaces, braces and style commands. */
int kg_math_name(struct kg_math_parser *p, enum kg_math_kind kind, const char *lead,
                 const char *text, size_t n);
bool kg_math_starts_value(struct kg_math_parser *p);
/* Bytes of a "mod" that comes next, as command or word, with a bracket before it; 0 if
 * there is none. *is_class: it is \pmod or in brackets. */
size_t kg_math_mod_ahead(struct kg_math_parser *p, bool *is_class);
/* Parses [text, text + n) as a formula of its own; returns 0 unless all is consumed. */
int kg_math_parse_part(struct kg_math_parser *p, const char *text, size_t n);
/* Parse a sum, product, integral or limit after its command; \frac{d}{dx} and similar (0,
 * with nothing consumed, for other fractions); the d of dx. */
int kg_math_parse_big(struct kg_math_parser *p, const struct kg_math_command *row);
int kg_math_parse_derivative(struct kg_math_parser *p);
int kg_math_parse_differential(struct kg_math_parser *p);

#endif
