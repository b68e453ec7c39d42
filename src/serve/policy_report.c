/* Reads the report of an episode: the verdict and further numbers.
 *
 * It comes from a program of the user, so all of it is checked. An invalid report has no
 * effect: it sets no number and takes none of the limited number of names of a run.
 */
#include "base/log.h"
#include "serve/policy_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double MAX_REWARD = 1e9;   /* limit of external graders, too */
static const double MAX_NUMBER = 1e100; /* squares are finite */

/* If the table of names is full, a number is dropped without an error: the verdict must
 * not depend on which episode used a name first. */
static kg_status take_number(struct kg_policy_numbers *to, struct kg_traj *t,
                             const char *before, const char *key, double x,
                             struct kg_further_names *names, struct kg_err *err)
{
    char name[KG_FURTHER_NAME];
    struct kg_err full;
    int k;

    if (!(fabs(x) <= MAX_NUMBER) ||
        snprintf(name, sizeof name, "%s%s", before, key) >= KG_FURTHER_NAME)
        return kg_fail(err, KG_EFORMAT,
                       "expected |number| at most %g and a name of at most %d bytes, "
                       "found '%s%.80s'",
                       MAX_NUMBER, KG_FURTHER_NAME - 1, before, key);
    for (const char *c = name; *c; c++)
        if (!kg_char_in("_-./", *c) && !(*c >= '0' && *c <= '9') &&
            !((*c | 32) >= 'a' && (*c | 32) <= 'z'))
            return kg_fail(
                err, KG_EFORMAT,
                "expected names of letters, digits, '_', '-', '.' and '/', found '%s'",
                name);
    if (!names)
        return KG_OK;
    if (kg_further_find(&k, names, name, &full) != KG_OK) {
        if (!to->dropped)
            kg_log_warn("%s: %s; this and later new names are dropped", to->key,
                        full.message);
        to->dropped = true;
        return KG_OK;
    }
    t->further.said |= (uint32_t)1 << k;
    t->further.x[k] = x;
    return KG_OK;
}

static kg_status take_numbers(struct kg_policy_numbers *to, struct kg_traj *t,
                              const struct kg_json *numbers, const char *before,
                              struct kg_further_names *names, struct kg_err *err)
{
    if (numbers && kg_json_type(numbers) != KG_JSON_OBJECT &&
        kg_json_type(numbers) != KG_JSON_NULL)
        return kg_fail(err, KG_EFORMAT,
                       "expected objects as rewards and metrics, found %s",
                       kg_json_type_name(numbers));
    for (size_t i = 0; i < kg_json_size(numbers); i++) {
        const struct kg_json *x = kg_json_value_at(numbers, i);

        if (!kg_json_is_number(x) && kg_json_type(x) != KG_JSON_NULL)
            return kg_fail(err, KG_EFORMAT,
                           "expected numbers in rewards and metrics, found %s",
                           kg_json_type_name(x));
        if (kg_json_is_number(x))
            KG_TRY(take_number(to, t, before, kg_json_key_at(numbers, i),
                               kg_json_real(x, 0), names, err));
    }
    return KG_OK;
}

/* Reads the verdict into t. A null reward means that the episode is not graded. */
static kg_status read_verdict(struct kg_policy_numbers *to, struct kg_traj *t,
                              const struct kg_json *report,
                              struct kg_further_names *names, struct kg_err *err)
{
    const struct kg_json *reward = kg_json_get(report, "reward");
    const char *said = kg_json_text(kg_json_get(report, "status"), NULL);

    KG_TRY(take_numbers(to, t, kg_json_get(report, "rewards"), "rewards/", names, err));
    KG_TRY(take_numbers(to, t, kg_json_get(report, "metrics"), "", names, err));
    if (said && strcmp(said, "ok") != 0)
        return kg_fail(err, KG_EFORMAT, "the program reports the status '%.80s'", said);
    if (!reward || (!kg_json_is_number(reward) && kg_json_type(reward) != KG_JSON_NULL) ||
        !(fabs(kg_json_real(reward, 0)) <= MAX_REWARD))
        return kg_fail(err, KG_EFORMAT,
                       "expected a |reward| of at most %g, or null, with status \"ok\"",
                       MAX_REWARD);
    t->graded = kg_json_is_number(reward);
    t->reward = kg_json_real(reward, 0);
    return KG_OK;
}

kg_status kg_policy_read(struct kg_traj *out, struct kg_policy_numbers *to,
                         const struct kg_json *report, struct kg_err *err)
{
    struct kg_further_names names = {0};
    struct kg_traj t = {0};

    if (to->further)
        names = *to->further;
    KG_TRY(read_verdict(to, &t, report, to->further ? &names : NULL, err));
    if (to->further)
        *to->further = names;
    *out = t;
    return KG_OK;
}
