/* Additional numbers that a user's grader returns besides the score; each becomes a
 * metric.
 *
 * The names are known only when a grader returns them, so a table of names grows as they
 * appear. A completion stores the numbers that it has by index. Output is sorted by name,
 * so it does not depend on the order of appearance.
 */
#ifndef KG_TRAJ_FURTHER_H
#define KG_TRAJ_FURTHER_H

#include "base/status.h"
#include "base/str.h"

#include <stdint.h>

enum {
    KG_FURTHER = 16,      /* numbers per run */
    KG_FURTHER_NAME = 64, /* bytes of a name, with its NUL */
};

struct kg_further_names {
    char name[KG_FURTHER][KG_FURTHER_NAME];
    int n;
};
struct kg_further {
    uint32_t said;  /* bit k: x[k] is set for this completion */
    uint32_t named; /* bit k: set for some completion graded together with it */
    double x[KG_FURTHER];
};

/* The index of a name, which is added if new. name: less than KG_FURTHER_NAME bytes
 * errors: EFORMAT (too many names) */
kg_status kg_further_find(int *k, struct kg_further_names *names, const char *name,
                          struct kg_err *err) KG_MUST_CHECK;
/* The indices sorted by name; sets order[0..names->n). */
void kg_further_order(int order[KG_FURTHER], const struct kg_further_names *names);
/* Appends {NAME: number, ...} for the numbers in mask; null if not set. */
kg_status kg_further_put_json(struct kg_str *out, const struct kg_further *f,
                              const struct kg_further_names *names, uint32_t mask,
                              struct kg_err *err) KG_MUST_CHECK;

#endif
