/* Rewards of question answering: SQuAD's metrics, Search-R1's extraction and format.
 *
 * A metric is a row of a table. Texts are normalised first: lower case, ASCII punctuation
 * out, the words a, an, the out, white space collapsed; all of it as Python's str and re
 * do it, because that is what published numbers were made with. Several gold answers are
 * alternatives, the best counts.
 *
 * An episode is read through its spans: answers and tags from what the model wrote,
 * passages from what a tool returned, so that tags inside a passage mean nothing. Any
 * bytes are a text; time is linear in them (n log n for F1).
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

/* Append the normalised text.   errors: ENOMEM */
kg_status kg_qa_normalise(struct kg_str *out, const char *text, size_t n,
                          struct kg_err *err) KG_MUST_CHECK;

/* ---- metrics ---- */
struct kg_qa_metric {
    const char *name;
    const char *help;
    bool exact; /* the score is 0 or 1 and says whether the answer is right */
    /* of a normalised prediction and gold answer, in 0..1 */
    kg_status (*score)(double *score, struct kg_qa_text prediction,
                       struct kg_qa_text gold, struct kg_err *err);
};
const struct kg_qa_metric *kg_qa_metrics(void); /* ended by a row with name NULL */
kg_status kg_qa_metric_find(const struct kg_qa_metric **metric, const char *name,
                            struct kg_err *err) KG_MUST_CHECK;
/* The best over the gold answers.   errors: ENOMEM */
kg_status kg_qa_score(double *score, const struct kg_qa_metric *metric,
                      struct kg_qa_text prediction, const struct kg_qa_text *golds,
                      size_t n_golds, struct kg_err *err) KG_MUST_CHECK;

/* ---- an episode, or a text ---- */
struct kg_qa_episode {
    /* what stands before the model's first word; NULL: nothing. Counts with `pairs` 2 */
    const char *prompt;
    size_t prompt_n;
    const struct kg_span *spans; /* (n_spans) */
    size_t n_spans;
};

/* What is inside the last complete <answer> pair of the model's words, trimmed. pairs 2:
 * only when there are at least two, those of the prompt counted: Search-R1's rule, whose
 * prompt shows one.   returns false, *answer empty: there is none */
bool kg_qa_extract(struct kg_qa_text *answer, const struct kg_qa_episode *e, int pairs);

/* Whether the episode is  think (search information think)* answer  with nothing but
 * white space between. */
bool kg_qa_is_valid(const struct kg_qa_episode *e);
/* The same of one text in which passages stand between <information> tags. Where it holds
 * a prompt, what follows the first "<|im_start|>assistant" is judged.   marker: without
 * that mark nothing is valid, as published */
bool kg_qa_is_valid_text(const char *text, size_t n, bool marker);

/* Whether a tool's span is passages and not a remark. */
bool kg_qa_is_information(const struct kg_span *s);
/* Whether a gold answer stands in a passage that was retrieved, both normalised.
 * errors: ENOMEM */
kg_status kg_qa_is_retrieved(bool *yes, const struct kg_qa_episode *e,
                             const struct kg_qa_text *golds, size_t n_golds,
                             struct kg_err *err) KG_MUST_CHECK;
kg_status kg_qa_is_retrieved_text(bool *yes, const char *text, size_t n,
                                  const struct kg_qa_text *golds, size_t n_golds,
                                  struct kg_err *err) KG_MUST_CHECK;

/* Search-R1's format reward, where s, f, r are the scores of structure, of a final answer
 * and of retrieval (struct kg_qa_format):
 *   right answer:  valid 1,                 else 1 - s
 *   wrong answer:  valid s (+ r retrieved), else f
 *   no answer:     valid s (+ r retrieved), else 0
 * source: Search-R1 qa_em_format.py */
struct kg_qa_facts {
    bool answered, right, valid, retrieved;
};
double kg_qa_format_score(const struct kg_qa_format *f, const struct kg_qa_facts *facts);

#endif
