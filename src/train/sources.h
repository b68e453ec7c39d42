/* What is known of answers by the data source of their problem: sums, and the metrics of
 * them.
 *
 * The first 16 of a list have their own names, the rest are one, "other".
 */
#ifndef KG_TRAIN_SOURCES_H
#define KG_TRAIN_SOURCES_H

#include "report/metrics.h"
#include "task/prompts.h"

#include <stdbool.h>

enum {
    KG_SOURCES = 16,
    KG_SOURCE_NAME = 100 /* bytes at most, for the names of metrics */
};

struct kg_source_sums {
    const char *name; /* borrowed */
    double answers;
    double judged; /* of these: with a reward, which the next adds */
    double reward;
    double correct;
    double tokens;
    /* over problems, for the standard error: how many, and of the share of right answers
     * of each the sum and the sum of squares */
    double problems, share, share_squared;
};
struct kg_sources {
    struct kg_source_sums row[KG_SOURCES + 1];
    size_t n;
};

/* The data source of prompt i.   borrowed */
const char *kg_source_of(const struct kg_prompts *p, size_t i);
/* Whether there are two of them. */
bool kg_sources_differ(const struct kg_prompts *p);

/* Whether the names of several sources can stand in those of metrics.
 * errors: EINVAL (the source, behind the key whose file has it) */
kg_status kg_sources_check(const struct kg_prompts *p, const char *key,
                           struct kg_err *err) KG_MUST_CHECK;

/* The sums of a source; added when it is new. */
struct kg_source_sums *kg_sources_row(struct kg_sources *s, const char *name);
/* A problem of which `share` of the answers were right. */
void kg_source_problem(struct kg_source_sums *row, double share);

/* reward/source/NAME, accuracy/source/NAME, length/source/NAME, answers/source/NAME, each
 * behind prefix; accuracy_stderr/source/NAME where problems were counted. */
void kg_sources_put(struct kg_metrics *log, const char *prefix,
                    const struct kg_sources *s);

#endif
