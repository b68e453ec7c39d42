/* Shared by tests of runs: checks that every number in a run's metrics.jsonl has a row.
 *
 * Included by *_test.c only.
 */
#ifndef KG_TRAIN_METRIC_TESTING_H
#define KG_TRAIN_METRIC_TESTING_H

#include "base/need_testing.h"
#include "data/jsonl.h"
#include "report/metrics.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static inline void line_has_rows(const struct kg_json_doc *line, bool *seen)
{
    const char *phase = kg_json_text(kg_json_get(line->root, "phase"), NULL);

    assert_non_null(phase);
    for (size_t i = 0; i < kg_json_size(line->root); i++) {
        const char *name = kg_json_key_at(line->root, i);
        const struct kg_metric_row *row;

        if (strcmp(name, "phase") == 0 || strcmp(name, "step") == 0)
            continue;
        row = kg_metric_find(phase, name);
        if (!row)
            fail_msg("%s: a line of phase %s has %s, which has no row in "
                     "src/report/metrics.c",
                     line->where, phase, name);
        else if (seen)
            seen[row - kg_metric_at(0)] = true;
    }
}

/* seen: NULL, or a flag per row, set when the row has a number */
static inline void metrics_have_rows(const char *dir, bool *seen)
{
    struct kg_jsonl *log;
    struct kg_json_doc line = {0};
    char path[256];
    bool more = true;

    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    NEED(kg_jsonl_open(&log, path, err));
    for (;;) {
        NEED(kg_jsonl_next(log, &line, &more, err));
        if (!more)
            break;
        line_has_rows(&line, seen);
    }
    kg_json_release(&line);
    kg_jsonl_close(log);
}

#endif
