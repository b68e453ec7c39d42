/* Published runs and every value of theirs, as data.
 *
 * A study is a paper or a released code: the runs of it that kedge starts, and rows. A
 * row says what was published for a key and where it stands, and where kedge has another
 * value, which one and why. Nothing of a run reads these tables: docs/published.md prints
 * them, and published_test.c compares them with presets, recipes and suites as the
 * program resolves these.
 */
#ifndef KG_LAB_PUBLISHED_H
#define KG_LAB_PUBLISHED_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

struct kg_published_run {
    const char *name;
    const char *recipe; /* file; NULL: a suite */
    const char *args;   /* assignments after it, separated by spaces; NULL: none */
    const char *preset; /* that says the same of the method, or NULL */
    const char *suite;  /* file of an evaluation; NULL: a run of training */
};

struct kg_published_row {
    /* names of runs, separated by spaces, where * stands for any bytes; NULL: every run
     * of training of the study */
    const char *runs;
    /* of the recipe or suite; in parentheses: what no key says */
    const char *key;
    const char *value;  /* as published, as the key would have it */
    const char *kedge;  /* instead of it; NULL: the same */
    const char *source; /* file of the study's code, or section of its paper */
    const char *note; /* NULL where there is nothing to add; never where kedge differs */
};

struct kg_published_study {
    const char *title;
    const char *about; /* paper, code and its commit */
    const struct kg_published_run *runs;
    size_t n_runs;
    const struct kg_published_row *rows;
    size_t n_rows;
};

size_t kg_published_count(void);
const struct kg_published_study *kg_published_at(size_t i);
/* Whether the row is of the run. */
bool kg_published_applies(const struct kg_published_row *row,
                          const struct kg_published_run *run);
/* The row of a key, NULL where there is none. */
const struct kg_published_row *kg_published_row(const struct kg_published_study *study,
                                                const struct kg_published_run *run,
                                                const char *key);
#endif
