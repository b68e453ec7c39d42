/* Rewards of question answering: SQuAD's metrics, Search-R1's extraction and format.
 *
 * A metric is a row of a table. Texts are normalised first: lower case; no ASCII
 * punctuation; no words a, an, the; white space collapsed. Normalisation behaves as
 * Python's str and re, with which published numbers were computed. With several gold
 * answers the best score counts.
 *
 * An episode is read through its spans: answers and tags from model text, passages from
 * tool output, so tags inside a passage mean nothing. Input may be any bytes; the time is
 * linear (n log n for F1).
 */
#ifndef KG_TASK_QA_H
#define KG_TASK_QA_H

#include "base/status.h"
#include "base/str.h"
#include "task/action.h"
#include "task/task.h"

#include <stdbool.h>
#include <stddef.h>

struct kg_qa_text {
    const char *text; /* borrowed */
    size_t n;
};

/* Appends the normalised text.   errors: ENOMEM */
kg_status kg_qa_normalise(struct kg_str *out, const char *text, size_t n,
                          struct kg_err *err) KG_MUST_CHECK;

/* ---- metrics ---- */
struct kg_qa_metric {
    const char *name;
    const char *help;
    bool exact; /* the score is 0 or 1: wrong or right */
    /* score of a normalised prediction and gold answer, in 0..1 */
    kg_status (*score)(double *score, struct kg_qa_text prediction,
                       struct kg_qa_text gold, struct kg_err *err);
};
const struct kg_qa_metric *kg_qa_metrics(void); /* ended by a row with name NULL */
kg_status kg_qa_metric_find(const struct kg_qa_metric **metric, const char *name,
                            struct kg_err *err) KG_MUST_CHECK;
/* The best score over the gold answers.   errors: ENOMEM */
kg_status kg_qa_score(double *score, const struct kg_qa_metric *metric,
                      struct kg_qa_text prediction, const struct kg_qa_text *golds,
                      size_t n_golds, struct kg_err *err) KG_MUST_CHECK;

/* ---- an episode, or a text ---- */
struct kg_qa_episode {
    /* the prompt's text; NULL: none. Read only if `pairs` is 2 */
    const char *prompt;
    size_t prompt_n;
    const struct kg_span *spans; /* (n_spans) */
    size_t n_spans;
};

/* The trimmed contents of the last complete <answer> pair in the model's text. pairs 2:
 * only if there are at least two, counting pairs of the prompt (Search-R1's rule: its
 * prompt contains one).   returns false with *answer empty if there is none */
bool kg_qa_extract(struct kg_qa_text *answer, const struct kg_qa_episode *e, int pairs);

/* Whether the episode is think (search information think)* answer, with only white space
 * in between. */
bool kg_qa_is_valid(const struct kg_qa_episode *e);
/* kg_qa_is_valid for a single text with passages in <information> tags. If it contains a
 * prompt, only the text after the first "<|im_start|>assistant" is judged. marker: a text
 * without "<|im_start|>assistant" is invalid, as in Search-R1 */
bool kg_qa_is_valid_text(const char *text, size_t n, bool marker);

/* Whether a tool's span contains passages rather than a remark. */
bool kg_qa_is_information(const struct kg_span *s);
/* Whether a retrieved passage contains a gold answer, both normalised.
 * errors: ENOMEM */
kg_status kg_qa_is_retrieved(bool *yes, const struct kg_qa_episode *e,
                             const struct kg_qa_text *golds, size_t n_golds,
                             struct kg_err *err) KG_MUST_CHECK;
kg_status kg_qa_is_retrieved_text(bool *yes, const char *text, size_t n,
                                  const struct kg_qa_text *golds, size_t n_golds,
                                  struct kg_err *err) KG_MUST_CHECK;

/* Search-R1's format reward. s, f, r are the scores of structure, final answer and
 * retrieval (struct kg_qa_format):
 *   right answer:  valid 1,                 else 1 - s
 *   wrong answer:  valid s (+ r retrieved), else f
 *   no answer:     valid s (+ r retrieved), else 0
 * source: Search-R1 qa_em_format.py */
struct kg_qa_facts {
    bool answered, right, valid, retrieved;
};
double kg_qa_format_score(const struct kg_qa_format *f, const struct kg_qa_facts *facts);

#endif
