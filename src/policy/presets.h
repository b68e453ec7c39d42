/* Presets: named sets of option values, weaker than anything the user wrote.
 *
 * A preset is data: keys and texts as a recipe would give them. train/ applies them.
 */
#ifndef KG_POLICY_PRESETS_H
#define KG_POLICY_PRESETS_H

#include "base/status.h"

#include <stddef.h>

struct kg_preset_value {
    const char *key; /* algo.*, kl.* or anchor.*; NULL ends the list */
    const char *value;
};

struct kg_preset {
    const char *name;
    const char *help;
    const char *source;
    const struct kg_preset_value *values; /* ended by key NULL */
};

/* errors: NOTFOUND, valid names listed */
kg_status kg_preset_find(const struct kg_preset **preset, const char *name,
                         struct kg_err *err) KG_MUST_CHECK;
size_t kg_preset_count(void);
const struct kg_preset *kg_preset_at(size_t i);

#endif
