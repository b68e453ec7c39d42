/* The actions qa-* of kedge grade: see grade_qa.c. */
#ifndef KG_CLI_GRADE_QA_H
#define KG_CLI_GRADE_QA_H

#include "data/json.h"
#include "task/qa.h"

struct kg_grade_qa {
    const struct kg_qa_metric *metric; /* NULL: extraction only */
    bool format;
    int pairs; /* number of answer pairs that a response must have */
    struct kg_qa_format scores;
    struct kg_qa_text *golds; /* (n_golds) owned array; texts of the current line */
    size_t n_golds;
    size_t capacity;
};

/* kind: "qa-em", "qa-subem", "qa-f1", "qa-format", "qa-extract".   errors: EINVAL */
kg_status kg_grade_qa_init(struct kg_grade_qa *g, const char *kind,
                           struct kg_err *err) KG_MUST_CHECK;
void kg_grade_qa_release(struct kg_grade_qa *g);
/* Handles one line of the filter; context is a struct kg_grade_qa. */
kg_status kg_grade_qa_line(struct kg_str *out, const struct kg_json_doc *doc,
                           void *context, struct kg_err *err) KG_MUST_CHECK;

#endif
