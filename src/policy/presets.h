/* Presets: named sets of option values, weaker than anything the user wrote.
 *
 * A preset is data: keys and texts as a recipe would give them. train/ applies them.
 * A method says what makes an algorithm and nothing of a run's size. A recipe reproduces
 * a published run: it builds on a method (`base`) and adds sizes, lengths, learning
 * rates. A value of a preset is stronger than the same key's of its base.
 */
#ifndef KG_POLICY_PRESETS_H
#define KG_POLICY_PRESETS_H

#include "base/status.h"
#include "policy/algo.h"

#include <stddef.h>

struct kg_preset_value {
    const char *key; /* of train/; NULL ends the list */
    const char *value;
};

enum kg_preset_kind { KG_PRESET_METHOD, KG_PRESET_RECIPE };

struct kg_preset {
    const char *name;
    enum kg_preset_kind kind;
    const char *base; /* preset that this one builds on, or NULL */
    const char *help;
    const char *source;                   /* publication */
    const struct kg_preset_value *values; /* its own, ended by key NULL */
};

/* errors: NOTFOUND, valid names listed */
kg_status kg_preset_find(const struct kg_preset **preset, const char *name,
                         struct kg_err *err) KG_MUST_CHECK;
size_t kg_preset_count(void); /* methods first */
const struct kg_preset *kg_preset_at(size_t i);
/* NULL where it builds on none. */
const struct kg_preset *kg_preset_base(const struct kg_preset *preset);
/* What the preset, or the nearest of those below it, gives the key; NULL: nothing. */
const char *kg_preset_get(const struct kg_preset *preset, const char *key);
/* What the preset and those below it say of the algorithm, onto algo. What they say of
 * the run around it (train.*, rollout.*, ...) is not looked at.
 * errors: those of kg_algo_set */
kg_status kg_preset_apply(struct kg_algo *algo, const struct kg_preset *preset,
                          struct kg_err *err) KG_MUST_CHECK;
const char *kg_preset_kind_name(enum kg_preset_kind kind);

#endif
