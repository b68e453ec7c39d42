/* The environments of a run, as lists in its manifest.json: an entry for the start, and
 * one more for every resume in a different one.
 *
 *     "devices": [{"kind": "cpu"}, {"kind": "cuda", .., "since": "step-000040"}]
 *
 * An entry has named facts. The caller decides what a difference means.
 */
#ifndef KG_TRAIN_PAST_H
#define KG_TRAIN_PAST_H

#include "base/status.h"
#include "base/str.h"

struct kg_past_fact {
    const char *name, *text;
};
enum { KG_PAST_FACTS = 12 };
struct kg_past_entry {
    struct kg_past_fact fact[KG_PAST_FACTS]; /* text is borrowed */
    int n;
};

struct kg_past_list {
    const char *name;
    /* the assumed start of runs whose manifest has no such list */
    struct kg_past_fact before;
};

/* Appends `"NAME": [entry]` for a new run. */
kg_status kg_past_json(struct kg_str *out, const struct kg_past_list *list,
                       const struct kg_past_entry *entry,
                       struct kg_err *err) KG_MUST_CHECK;
/* Appends the differences between the last entry of the manifest's list and this one:
 * "kind: expected cuda, found cpu; .."; nothing if equal.   errors: EFORMAT */
kg_status kg_past_compare(struct kg_str *diff, const char *manifest,
                          const struct kg_past_list *list,
                          const struct kg_past_entry *entry,
                          struct kg_err *err) KG_MUST_CHECK;
/* Adds an entry, valid since the checkpoint of this name ("": from the beginning). */
kg_status kg_past_add(const char *manifest, const struct kg_past_list *list,
                      const struct kg_past_entry *entry, const char *since,
                      struct kg_err *err) KG_MUST_CHECK;

#endif
