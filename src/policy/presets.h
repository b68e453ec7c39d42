/* Presets: named sets of option values. Anything that the user sets overrides them.
 *
 * A preset is data: keys and texts as in a recipe; recipe/ applies them. A method defines
 * an algorithm without sizes. A recipe reproduces a published run: it adds sizes, lengths
 * and learning rates to a method (`base`). A preset's values override those of its base.
 */
#ifndef KG_POLICY_PRESETS_H
#define KG_POLICY_PRESETS_H

#include "base/status.h"
#include "policy/algo.h"

#include <stddef.h>

struct kg_preset_value {
    const char *key; /* a recipe's key; NULL ends the list */
    const char *value;
    const char *from; /* name of the preset that sets it: this one or a base */
};

enum kg_preset_kind { KG_PRESET_METHOD, KG_PRESET_RECIPE };

struct kg_preset {
    const char *name;
    enum kg_preset_kind kind;
    const char *base; /* the preset that this one extends, or NULL */
    const char *help;
    const char *source; /* publication */
    const struct kg_preset_value
        *values; /* its own, then the bases' that it does not override; key NULL ends */
};

/* errors: ENOTFOUND, lists valid names */
kg_status kg_preset_find(const struct kg_preset **preset, const char *name,
                         struct kg_err *err) KG_MUST_CHECK;
size_t kg_preset_count(void); /* methods first */
const struct kg_preset *kg_preset_at(size_t i);
/* The value of a key; NULL: none. */
const char *kg_preset_get(const struct kg_preset *preset, const char *key);
/* Applies the preset's values of algo.*, kl.* and anchor.* to algo, and ignores all
 * others (train.*, rollout.*, ...).   errors: those of kg_algo_set */
kg_status kg_preset_apply(struct kg_algo *algo, const struct kg_preset *preset,
                          struct kg_err *err) KG_MUST_CHECK;
const char *kg_preset_kind_name(enum kg_preset_kind kind);

#endif
