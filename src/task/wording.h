/* Texts that a search agent gives to the model: the instruction around a question, and
 * the remark on a turn without a legal action. One row of a table per wording, chosen by
 * name; published wordings are verbatim, with their source. */
#ifndef KG_TASK_WORDING_H
#define KG_TASK_WORDING_H

#include "base/status.h"

struct kg_wording {
    const char *name;
    const char *source;      /* NULL for kedge's own */
    const char *licence;     /* of the source */
    const char *instruction; /* put before the question, followed by a line break */
    const char *remark;      /* NULL: generated from the tags and the error */
};

/* Names as the choices of an option. */
#define KG_WORDING_CHOICES "kedge|search-r1"

/* Ended by a row with name NULL; NULL and "" select the first. */
const struct kg_wording *kg_wording_table(void);
/* errors: EINVAL, with the valid names */
kg_status kg_wording_find(const struct kg_wording **w, const char *name,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
