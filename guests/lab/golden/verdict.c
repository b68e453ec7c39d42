/* Compares a number with the expected one, under the tolerance of the case: the
 * difference may be rel times the size of the expected one, plus abs. The first failure
 * is kept with its place, and the worst error relative to its bound, so a growing error
 * is seen before it fails. Equal infinities are equal; a NaN of the authors is not
 * compared. */
#include "lab/golden/golden_internal.h"

#include <math.h>
#include <string.h>

void kg_golden_compare(struct kg_golden_case *g, const char *what, int64_t i,
                       double found, double expected)
{
    struct kg_golden_tolerance t = g->tolerance;
    double gap = found == expected ? 0 : fabs(found - expected); /* infinities too */
    double size = t.single ? fmax(1, fabs(expected)) : fabs(expected);

    g->compared++;
    if (size + t.abs / t.rel > 0 && gap / (size + t.abs / t.rel) > g->worst)
        g->worst = gap / (size + t.abs / t.rel);
    if (gap <= t.rel * size + t.abs || g->bad.code != KG_OK)
        return;
    (void)kg_fail(&g->bad, KG_ECONFLICT, "%s[%lld]: expected %.17g, found %.17g", what,
                  (long long)i, expected, found);
}

static kg_status against(struct kg_golden_case *g, const struct kg_json *v,
                         const char *key, double found, struct kg_err *err)
{
    const char *text = kg_json_text(v, NULL);

    if (text && strcmp(text, "nan") == 0)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "expected.%s is nan: the reference gives no number", key);
    if (!kg_json_is_number(v))
        return kg_fail(err, KG_EFORMAT, "expected.%s: expected a number, found %s", key,
                       kg_json_type_name(v));
    kg_golden_compare(g, key, 0, found, kg_json_real(v, NAN));
    return KG_OK;
}

kg_status kg_golden_expect(struct kg_golden_case *g, const char *key, double found,
                           struct kg_err *err)
{
    const struct kg_json *v = kg_golden_at(g, "expected", key);

    return v ? against(g, v, key, found, err) : KG_OK;
}

kg_status kg_golden_metric_of(struct kg_golden_case *g, const char *key,
                              struct kg_golden_part part, double found,
                              struct kg_err *err)
{
    const struct kg_json *v = kg_json_get(kg_golden_at(g, "expected", "metrics"), key);

    if (kg_json_type(v) == KG_JSON_ARRAY)
        v = kg_json_at(v, (size_t)part.i);
    else if (part.i != part.n - 1)
        return KG_OK;
    return kg_json_type(v) == KG_JSON_NULL ? KG_OK : against(g, v, key, found, err);
}

kg_status kg_golden_metric(struct kg_golden_case *g, const char *key, double found,
                           struct kg_err *err)
{
    return kg_golden_metric_of(g, key, (struct kg_golden_part){0, 1, 0}, found, err);
}
