/* One option: a row with name, default, range and help, bound to a field of a struct.
 *
 * A module with options exports a struct and its rows. A row's type is derived from
 * the field, so the two cannot disagree. After kg_opt_put no code looks a value up by
 * name. Recipes, suites, flags and the keys of an algorithm are rows.
 */
#ifndef KG_BASE_OPTION_H
#define KG_BASE_OPTION_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A row may omit trailing columns. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

struct kg_opt_list {
    const char *const *items; /* (n) borrowed; no item is empty */
    size_t n;
};

/* Derived from the field's type: bool, an enum, int64_t (also size_t and uint64_t), int,
 * double, float, const char *, struct kg_opt_list. */
enum kg_opt_type {
    KG_OPT_BOOL, /* if the row has two choices, the second is true */
    KG_OPT_ENUM, /* index of a choice */
    KG_OPT_INT,
    KG_OPT_INT32,
    KG_OPT_REAL,
    KG_OPT_FLOAT,
    KG_OPT_STRING, /* if the row has choices, one of them */
    /* list of strings; as text, the items are joined by line breaks, and a backslash or a
     * line break inside an item is written \\ or \n. No item is empty. */
    KG_OPT_LIST,
};

struct kg_opt_row {
    const char *key; /* "section.name" */
    enum kg_opt_type type;
    size_t at;            /* offset of the field in its struct */
    const char *fallback; /* default as text; NULL: required where it is used */
    double min;           /* numbers; min == max == 0 means no range */
    double max;
    const char *choices; /* "a|b|c"; NULL: any value of the type */
    const char *help;    /* one line */
    unsigned free;       /* enum kg_opt_free */
    const char *needs;   /* condition for its effect (data/needs.h); NULL: none */
    bool or_zero;        /* 0 is allowed although it is outside the range */
};
/* Where a value may differ: between a run and its --resume (train.steps), or between the
 * ranks of a run (run.threads, local folders). */
enum kg_opt_free { KG_FREE_ON_RESUME = 1, KG_FREE_BY_RANK = 2 };

/* Type and offset of a row, from the field. An enum without negatives is unsigned. */
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

/* A row inside a macro that several tables expand. */
#define KG_OPT_ROW(...)                                                                  \
    {                                                                                    \
        __VA_ARGS__                                                                      \
    }

bool kg_opt_is_number(const struct kg_opt_row *row);
/* Whether a and b mean the same value. Both must have passed kg_opt_check. */
bool kg_opt_same(const struct kg_opt_row *row, const char *a, const char *b);

/* Checks that text is a value of the row. Text is UTF-8; numbers are decimal.
 * errors: EINVAL "WHERE: KEY: expected ..., found ..."; without "WHERE: " if where is
 * NULL */
kg_status kg_opt_check(const struct kg_opt_row *row, const char *text, const char *where,
                       struct kg_err *err) KG_MUST_CHECK;
/* The number in the field that the row describes, in the struct `of`. */
double kg_opt_number(const struct kg_opt_row *row, const void *of);
/* Checks that kg_opt_number is in the row's range.   errors: EINVAL, as kg_opt_check */
kg_status kg_opt_check_field(const struct kg_opt_row *row, const void *of,
                             struct kg_err *err) KG_MUST_CHECK;
/* Whether a number is in the row's range. */
bool kg_opt_allows(const struct kg_opt_row *row, double x);
/* Fails with kg_opt_check's message. found: description of the value */
kg_status kg_opt_refuse(const struct kg_opt_row *row, const char *found,
                        const char *where, struct kg_err *err);
/* Stores a checked value in the row's field of a struct. Strings are borrowed; lists
 * cannot be stored this way. */
void kg_opt_put(void *into, const struct kg_opt_row *row, const char *text);

#endif
