/* Numbers that a grader of the user's says of an answer besides its score: a metric each.
 *
 * Which there are is known once they were said: a table of names grows with them, and an
 * answer has the places of those that were said of it. Lists are in the order of the
 * names, so that they do not depend on who came first.
 */
#ifndef KG_TRAJ_FURTHER_H
#define KG_TRAJ_FURTHER_H

#include "base/status.h"
#include "base/str.h"

#include <stdint.h>

enum {
    KG_FURTHER = 16,      /* numbers of a run */
    KG_FURTHER_NAME = 64, /* bytes of a name, with its NUL */
};

struct kg_further_names {
    char name[KG_FURTHER][KG_FURTHER_NAME];
    int n;
};
struct kg_further {
    uint32_t said;  /* bit k: x[k] was said of this answer */
    uint32_t named; /* bit k: of one that was graded together with it */
    double x[KG_FURTHER];
};

/* The place of a name, which is added.   name: of less than KG_FURTHER_NAME bytes
 * errors: EFORMAT (one too many) */
kg_status kg_further_find(int *k, struct kg_further_names *names, const char *name,
                          struct kg_err *err) KG_MUST_CHECK;
/* Their places in the order of the names; the first names->n are set. */
void kg_further_order(int order[KG_FURTHER], const struct kg_further_names *names);
/* {NAME: number, ...} of those in mask, null where it was not said.   appended */
kg_status kg_further_put_json(struct kg_str *out, const struct kg_further *f,
                              const struct kg_further_names *names, uint32_t mask,
                              struct kg_err *err) KG_MUST_CHECK;

#endif
