/* What the files of the parser share: parse.c has lists, relations, sums and products,
 * parse_primary.c what stands between operators, parse_big.c sums, integrals, limits and
 * derivatives, parse_atom.c numbers, names, arguments and what is written behind a value,
 * parse_unit.c units and numbers in words. */
#ifndef KG_MATH_PARSE_INTERNAL_H
#define KG_MATH_PARSE_INTERNAL_H

#include "math/math_internal.h"

struct kg_math_parser {
    struct kg_math_tree *t;
    const char *start; /* of all of the text */
    const char *p;
    const char *end;
    int depth;
    int flags;
    int brackets; /* open ( or [: a comma separates */
    int bars;     /* open |: the next one closes */
    int related;  /* right of a relation: \mod belongs to it and is no operator */
    const char *why;
};

/* Each returns a node, or 0 with p->why set. */
int kg_math_parse_list(struct kg_math_parser *p); /* LIST of at least one item */
int kg_math_parse_chain(struct kg_math_parser *p);
int kg_math_parse_sum(struct kg_math_parser *p);
int kg_math_parse_term(struct kg_math_parser *p);
int kg_math_parse_postfix(struct kg_math_parser *p);
int kg_math_parse_primary(struct kg_math_parser *p);
/* An argument of \frac and its kin: {..}, one digit, one letter, or a command. */
int kg_math_parse_arg(struct kg_math_parser *p);
/* One letter: a name, or e or i. */
int kg_math_parse_letter(struct kg_math_parser *p);
/* What stands behind ^. */
int kg_math_parse_script(struct kg_math_parser *p);
int kg_math_parse_number(struct kg_math_parser *p);
/* "twenty-one", "two hundred and five" */
int kg_math_parse_number_words(struct kg_math_parser *p);
/* The quotient of units behind the value `left` (m/s), or the word in brackets behind the
 * number `left` ("5 (apples)"), as WORDS.   returns 0 for none, with nothing consumed */
int kg_math_parse_unit(struct kg_math_parser *p, int left);
int kg_math_parse_bracketed_word(struct kg_math_parser *p, int left);
int kg_math_parse_braces(struct kg_math_parser *p); /* {..} */
bool kg_math_is_whole(const struct kg_math_tree *t, int node);
/* One item: the item. Several: the list. */
int kg_math_parse_unwrap(struct kg_math_parser *p, int list);
int kg_math_parse_fail(struct kg_math_parser *p, const char *why);

/* ---- reading ahead ---- */
char kg_math_look(struct kg_math_parser *p); /* next byte behind spaces, 0 at the end */
bool kg_math_eat(struct kg_math_parser *p, const char *text);
/* The command (\name) or word that comes next, not consumed; NULL for none or a symbol.
 * *len: bytes with the backslash. */
const struct kg_math_command *kg_math_ahead(struct kg_math_parser *p, size_t *len);
/* The inside of the {..} that comes next, consumed; NULL for none. */
const char *kg_math_raw_group(struct kg_math_parser *p, size_t *n);
/* {..}, a command, or one byte, as text; NULL for none. */
const char *kg_math_raw_arg(struct kg_math_parser *p, size_t *n);
/* A name without spaces, braces and style commands, in the pool. */
int kg_math_name(struct kg_math_parser *p, enum kg_math_kind kind, const char *lead,
                 const char *text, size_t n);
bool kg_math_starts_value(struct kg_math_parser *p);
/* Bytes of "mod" that comes next, as a command or a word and with the bracket before it;
 * 0 for none. *is_class: \pmod, or one in brackets. */
size_t kg_math_mod_ahead(struct kg_math_parser *p, bool *is_class);
/* The formula in [text, text + n), read on its own: all of it, or 0. */
int kg_math_parse_part(struct kg_math_parser *p, const char *text, size_t n);
/* A sum, product, integral or limit behind its command; \frac{d}{dx} and its kin (0, with
 * nothing consumed, for other fractions); the d of dx. */
int kg_math_parse_big(struct kg_math_parser *p, const struct kg_math_command *row);
int kg_math_parse_derivative(struct kg_math_parser *p);
int kg_math_parse_differential(struct kg_math_parser *p);

#endif
