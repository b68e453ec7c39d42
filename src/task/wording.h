/* The words of a search agent that are given to the model: the instruction around a
 * question, and the remark on a turn without a legal action. One row of a table for each
 * wording, chosen by name; published ones stand word for word, with their source. */
#ifndef KG_TASK_WORDING_H
#define KG_TASK_WORDING_H

#include "base/status.h"

struct kg_wording {
    const char *name;
    const char *source;      /* NULL for kedge's own */
    const char *licence;     /* of the source */
    const char *instruction; /* in front of the question; a line break follows it */
    const char *remark;      /* NULL: made from the tags and what was wrong */
};

/* Names as the choices of an option. */
#define KG_WORDING_CHOICES "kedge|search-r1"

/* Ended by a row with name NULL; the first is what NULL and "" stand for. */
const struct kg_wording *kg_wording_table(void);
/* errors: EINVAL, with the valid names */
kg_status kg_wording_find(const struct kg_wording **w, const char *name,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
