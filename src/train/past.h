/* What a run was made on, as lists of its manifest.json say: an entry for what it began
 * on, and one more for every resume on something else.
 *
 *     "devices": [{"kind": "cpu"}, {"kind": "cuda", .., "since": "step-000040"}]
 *
 * An entry is facts by name. What a difference means is for whoever compares.
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
    struct kg_past_fact fact[KG_PAST_FACTS]; /* what they point to is borrowed */
    int n;
};

struct kg_past_list {
    const char *name;
    /* what a run is taken to have begun on whose manifest has no such list */
    struct kg_past_fact before;
};

/* Append `"NAME": [entry]` of a run that begins. */
kg_status kg_past_json(struct kg_str *out, const struct kg_past_list *list,
                       const struct kg_past_entry *entry,
                       struct kg_err *err) KG_MUST_CHECK;
/* Append where the last entry of the manifest's list and this one differ: "kind: expected
 * cuda, found cpu; .."; nothing where they do not.   errors: EFORMAT */
kg_status kg_past_compare(struct kg_str *diff, const char *manifest,
                          const struct kg_past_list *list,
                          const struct kg_past_entry *entry,
                          struct kg_err *err) KG_MUST_CHECK;
/* One entry more, since the checkpoint of this name ("": since the beginning). */
kg_status kg_past_add(const char *manifest, const struct kg_past_list *list,
                      const struct kg_past_entry *entry, const char *since,
                      struct kg_err *err) KG_MUST_CHECK;

#endif
