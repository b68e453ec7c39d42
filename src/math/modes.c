/* The table of modes, and of the forms of an answer.
 *
 * A mode is a rule for all of an answer: how it is found and when it is right. The
 * first row is kedge's own, the others repeat what published runs did, and say whose
 * code they follow. That two modes disagree on an answer is no fault: it is what the
 * table is for. A form says what kind of text is graded, which no mode can know.
 */
#include "math/math_internal.h"

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
    size_t i;

    KG_TRY(kg_str_pick(&i, KG_EINVAL, "mode", name, modes,
                       sizeof modes / sizeof *modes - 1, sizeof *modes, err));
    *mode = &modes[i];
    return KG_OK;
}

kg_status kg_math_form_find(enum kg_math_form *form, const char *name, struct kg_err *err)
{
    size_t i;

    KG_TRY(kg_str_pick(&i, KG_EINVAL, "form", name, forms, sizeof forms / sizeof *forms,
                       sizeof *forms, err));
    *form = (enum kg_math_form)i;
    return KG_OK;
}
