/* The table of modes, and of the forms of an answer. */
#include "math/math_internal.h"

#include <stdio.h>
#include <string.h>

static const struct kg_math_mode modes[] = {
    {"default", "exact arithmetic on what the answer means", NULL, kg_math_grade_default},
    {"ema-pg", "mathd, or else equal by algebra after string normalisation",
     "EMA-PG math/rllm/rewards/math_reward.py", kg_math_grade_ema_pg},
    {"mathd", "equal strings after the normalisation of the MATH data set",
     "EMA-PG math/rllm grade_answer_mathd", kg_math_grade_mathd},
    {"dapo", "last `Answer:` line, equal strings after Minerva's normalisation",
     "verl/utils/reward_score/math_dapo.py", kg_math_grade_dapo},
    {NULL, NULL, NULL, NULL},
};

static const char *const forms[] = {"auto",     "answer", "text",
                                    "response", "choice", "bracket"};

const struct kg_math_mode *kg_math_modes(void) { return modes; }

kg_status kg_math_mode_find(const struct kg_math_mode **mode, const char *name,
                            struct kg_err *err)
{
    char names[128] = "";

    for (const struct kg_math_mode *m = modes; m->name; m++) {
        size_t used = strlen(names);

        if (strcmp(m->name, name) == 0) {
            *mode = m;
            return KG_OK;
        }
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", m->name);
    }
    return kg_fail(err, KG_EINVAL, "expected a mode of %s, found '%.80s'", names, name);
}

kg_status kg_math_form_find(enum kg_math_form *form, const char *name, struct kg_err *err)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (strcmp(forms[i], name) == 0) {
            *form = (enum kg_math_form)i;
            return KG_OK;
        }
    }
    return kg_fail(err, KG_EINVAL,
                   "expected a form of auto, answer, text, response, choice, bracket, "
                   "found '%.80s'",
                   name);
}
