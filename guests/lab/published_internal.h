/* The studies, a file each. */
#ifndef KG_LAB_PUBLISHED_INTERNAL_H
#define KG_LAB_PUBLISHED_INTERNAL_H

#include "lab/published.h"

extern const struct kg_published_study kg_published_ema_pg_math;
extern const struct kg_published_study kg_published_search;
extern const struct kg_published_study kg_published_rpg;
extern const struct kg_published_study kg_published_dapo;
extern const struct kg_published_study kg_published_dppo;
extern const struct kg_published_study kg_published_stability;
extern const struct kg_published_study kg_published_verl;

#define KG_COUNT(array) (sizeof(array) / sizeof *(array))

#endif
