/* Grades mathematical answers: right, wrong, or undecided with the reason.
 *
 * The answer is extracted from a response (the last \boxed{}, an `Answer:` line, the last
 * formula or number), parsed into a tree, and compared with the gold answer by exact
 * arithmetic. A comparison without a certain result is undecided, never guessed. A mode
 * is a row of a table: `default` is kedge's own; `ema-pg`, `mathd` and `dapo` reproduce
 * published graders, including their string rules, so that scores can be compared.
 *
 * Each grading has limits (bytes, nodes, depth, digits, work, 48 MiB in FLINT, 0.7 s of
 * processor time); beyond them the verdict is undecided. Otherwise it depends only on the
 * texts and options.
 */
#ifndef KG_MATH_MATH_H
#define KG_MATH_MATH_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

enum kg_math_verdict { KG_MATH_WRONG, KG_MATH_RIGHT, KG_MATH_UNDECIDED };
const char *kg_math_verdict_name(enum kg_math_verdict v);

/* The kind of text that is graded. */
enum kg_math_form {
    KG_MATH_FORM_AUTO,     /* a response or a bare answer, detected */
    KG_MATH_FORM_ANSWER,   /* a bare answer, used whole unless it has a \boxed{} */
    KG_MATH_FORM_TEXT,     /* free text, in which <think> has no meaning */
    KG_MATH_FORM_RESPONSE, /* a whole response: only the text after </think> counts */
    KG_MATH_FORM_CHOICE,   /* a response to multiple choice: a letter is extracted */
    KG_MATH_FORM_BRACKET,  /* a text whose answer is its last [..] */
};

enum { KG_MATH_MAX_TOLERANCES = 16 };
struct kg_math_opts {
    const struct kg_math_mode *mode; /* NULL: default */
    enum kg_math_form form;
    int decimals; /* decimals compared if one side is a decimal fraction; 0: 6 */
    double tolerance[KG_MATH_MAX_TOLERANCES]; /* absolute, one for each item of a list */
    int n_tolerance;  /* 0: decimals are compared; 1: tolerance[0] holds for all items */
    bool lenient;     /* ignores names of variables and the order of tuples */
    bool strict_sets; /* -2 <= x <= 7 does not match x in [-2,7] */
    bool keep_thinking; /* also read the text before </think> */
};

struct kg_math_result {
    enum kg_math_verdict verdict;
    struct kg_str extracted; /* owned; the extracted answer, "" if none */
    char reason[128];        /* why, in plain words; never empty */
};
void kg_math_result_release(struct kg_math_result *r);

/* Grades one answer against n_golds alternatives: right if any matches. r: {0} at first;
 * overwritten.
 * errors: ENOMEM. Nothing about the text is an error. */
struct kg_math_text {
    const char *text;
    size_t n;
};
kg_status kg_math_grade(struct kg_math_result *r, const struct kg_math_opts *opts,
                        struct kg_math_text answer, const struct kg_math_text *golds,
                        size_t n_golds, struct kg_err *err) KG_MUST_CHECK;

/* ---- the table of modes ---- */
struct kg_math_job;
struct kg_math_mode {
    const char *name;
    const char *help;
    const char *source; /* the published grader that it reproduces; NULL: none */
    /* NULL: the mode's guest is not linked */
    kg_status (*grade)(struct kg_math_job *job, struct kg_err *err);
};
const struct kg_math_mode *kg_math_modes(void); /* ended by a row with name NULL */
/* errors: EINVAL (lists the valid names), EUNSUPPORTED (its guest is not linked) */
kg_status kg_math_mode_find(const struct kg_math_mode **mode, const char *name,
                            struct kg_err *err) KG_MUST_CHECK;
/* name: "auto", "answer", ...   errors: EINVAL (lists the valid names) */
kg_status kg_math_form_find(enum kg_math_form *form, const char *name,
                            struct kg_err *err) KG_MUST_CHECK;

/* A calculator: evaluates one expression of numbers exactly, as a rational.
 *
 * Numbers are decimals such as "1,234.5" ("2e3" is refused). Operators are + - * / ^
 * (also ** and the signs U+00D7, U+00F7, U+2212), brackets, and % after an operand. The
 * value is written as an integer, as a decimal if it has at most 30 places, else as a
 * fraction with its first 12 decimals. Intermediate results are exact. Bytes, depth, bits
 * of a value, memory and time are limited.
 */

enum {
    KG_CALCULATE_MAX_BYTES = 2048,
    KG_CALCULATE_MAX_DEPTH = 64,
    KG_CALCULATE_MAX_BITS = 4096, /* bits of a numerator or denominator */
};

/* Appends the value to out; if there is none, sets *found to false and appends the reason
 * in plain words.
 * errors: ENOMEM. Nothing about the text is an error. */
kg_status kg_math_calculate(struct kg_str *out, bool *found, const char *text, size_t n,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
