/* One option: a row with its name, default, range and help, bound to a field of a struct.
 *
 * A module that has options exports a struct and rows over it. The row's type is that of
 * the field, so that what a row reads and what its module sees cannot disagree; past
 * kg_opt_put nobody looks a value up by its name. Recipes, suites, flags and the keys of
 * an algorithm are rows.
 */
#ifndef KG_BASE_OPTION_H
#define KG_BASE_OPTION_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A row leaves out the columns at its end that it does not need. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

struct kg_opt_list {
    const char *const *items; /* (n) borrowed; none is empty */
    size_t n;
};

/* By the field: bool, an enum, int64_t (also size_t and uint64_t), int, double, float,
 * const char *, struct kg_opt_list. */
enum kg_opt_type {
    KG_OPT_BOOL, /* with choices, of which there are two: whether it is the second */
    KG_OPT_ENUM, /* the place of a choice */
    KG_OPT_INT,
    KG_OPT_INT32,
    KG_OPT_REAL,
    KG_OPT_FLOAT,
    KG_OPT_STRING, /* with choices one of them */
    /* list of strings; its text is the items joined by line breaks, where a backslash and
     * a line break inside an item stand as \\ and \n. No item is empty. */
    KG_OPT_LIST,
};

struct kg_opt_row {
    const char *key; /* "section.name" */
    enum kg_opt_type type;
    size_t at;            /* of the field in its struct */
    const char *fallback; /* default as text; NULL: must be given where it is used */
    double min;           /* numbers; min == max == 0 means no range */
    double max;
    const char *choices; /* "a|b|c"; NULL: any value of the type */
    const char *help;    /* one line */
    unsigned free;       /* enum kg_opt_free */
    const char *needs;   /* what it needs to act (data/needs.h); NULL: nothing */
    bool or_zero;        /* 0 is allowed beside the range, which is above it */
};
/* Where a value may be another one: when a run is resumed (train.steps; rows say true),
 * and on each rank of a run (run.threads, folders of a machine). */
enum kg_opt_free { KG_FREE_ON_RESUME = 1, KG_FREE_BY_RANK = 2 };

/* type and at of a row, from the field. An enum is unsigned where it has no negative
 * value. */
#define KG_OPT_AT(S, field)                                                              \
    _Generic(((S *)0)->field,                                                            \
        bool: KG_OPT_BOOL,                                                               \
        unsigned: KG_OPT_ENUM,                                                           \
        int64_t: KG_OPT_INT,                                                             \
        uint64_t: KG_OPT_INT,                                                            \
        int: KG_OPT_INT32,                                                               \
        double: KG_OPT_REAL,                                                             \
        float: KG_OPT_FLOAT,                                                             \
        const char *: KG_OPT_STRING,                                                     \
        struct kg_opt_list: KG_OPT_LIST),                                                \
        offsetof(S, field)

/* A row inside a macro of rows, which are mounted at several places. */
#define KG_OPT_ROW(...)                                                                  \
    {                                                                                    \
        __VA_ARGS__                                                                      \
    }

bool kg_opt_is_number(const struct kg_opt_row *row);
/* Whether a and b, which both pass the check, mean the same. */
bool kg_opt_same(const struct kg_opt_row *row, const char *a, const char *b);

/* Is text a value of the row? Text is UTF-8; a number decimal.
 * errors: EINVAL "WHERE: KEY: expected ..., found ..."; where NULL: from KEY on */
kg_status kg_opt_check(const struct kg_opt_row *row, const char *text, const char *where,
                       struct kg_err *err) KG_MUST_CHECK;
/* The number that the row's field of a struct has. */
double kg_opt_number(const struct kg_opt_row *row, const void *of);
/* The same check of the number that the row's field of a struct has. */
kg_status kg_opt_check_field(const struct kg_opt_row *row, const void *of,
                             struct kg_err *err) KG_MUST_CHECK;
/* Whether a number is in the row's range. */
bool kg_opt_allows(const struct kg_opt_row *row, double x);
/* The same refusal; found: how it calls what was given. */
kg_status kg_opt_refuse(const struct kg_opt_row *row, const char *found,
                        const char *where, struct kg_err *err);
/* Put what passed the check into the row's field of a struct; a list cannot be put so,
 * text is borrowed. */
void kg_opt_put(void *into, const struct kg_opt_row *row, const char *text);

#endif
