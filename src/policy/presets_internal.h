/* The two tables of presets. */
#ifndef KG_POLICY_PRESETS_INTERNAL_H
#define KG_POLICY_PRESETS_INTERNAL_H

#include "policy/presets.h"

/* A list of values, and its end. */
#define KG_VALUES static const struct kg_preset_value
#define KG_END                                                                           \
    {                                                                                    \
        NULL, NULL                                                                       \
    }

#define KG_EMA_PAPER  "Zhang & Ba 2026, arXiv 2602.04417"
#define KG_RPG_PAPER  "Zhang et al. 2025, arXiv 2505.17508"
#define KG_RPG_CODE   "complex-reasoning/RPG, recipe/rpg/7b/"
#define KG_DPPO_PAPER "Qi et al. 2026, arXiv 2602.04879"

struct kg_preset_table {
    const struct kg_preset *rows;
    size_t n;
};
struct kg_preset_table kg_preset_methods(void);
struct kg_preset_table kg_preset_recipes(void);

#endif
