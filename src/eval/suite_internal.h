/* Between the files of suites: names of keys, and whether a key has an effect. */
#ifndef KG_EVAL_SUITE_INTERNAL_H
#define KG_EVAL_SUITE_INTERNAL_H

#include "eval/suite.h"

enum { KG_SUITE_KEY_BYTES = 128 };

/* sets.SET.KEY into text.   returns text */
const char *kg_suite_key(char text[KG_SUITE_KEY_BYTES], const char *set, const char *key);

/* What this set says itself and would do nothing in it.   errors: EINVAL, with the key */
kg_status kg_suite_check_own(const struct kg_eval_set *set,
                             const struct kg_config *config,
                             struct kg_err *err) KG_MUST_CHECK;
/* What is given to all sets (defaults, a flag) and would do nothing in any of them; sets
 * that are left out may be those.   errors: EINVAL, with the key or flag */
kg_status kg_suite_check_given(const struct kg_suite *s, const struct kg_eval_set *sets,
                               struct kg_err *err) KG_MUST_CHECK;

#endif
