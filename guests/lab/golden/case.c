/* Reads a case: config values, arrays with their shapes, and its memory.
 *
 * A deviation from the format is an error that names section, key, expected and found: a
 * malformed case must not look like a wrong number.
 */
#include "lab/golden/golden_internal.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_BLOCKS = 1 << 20 };

void *kg_golden_room(struct kg_golden_case *g, int64_t n, size_t size, struct kg_err *err)
{
    if (kg_mem_grow(&g->blocks, &g->capacity, g->n_blocks + 1, sizeof *g->blocks,
                    MAX_BLOCKS, "blocks of a golden case", err))
        return NULL;
    void *block = kg_mem_calloc((size_t)(n > 0 ? n : 1), size, "golden case", err);
    if (block)
        g->blocks[g->n_blocks++] = block;
    return block;
}

kg_status kg_golden_reals(double **x, struct kg_golden_case *g, int64_t n,
                          struct kg_err *err)
{
    *x = kg_golden_room(g, n, sizeof **x, err);
    return *x ? KG_OK : err->code;
}

const struct kg_json *kg_golden_at(const struct kg_golden_case *g, const char *section,
                                   const char *key)
{
    const struct kg_json *v = kg_json_get(kg_json_get(g->json, section), key);

    return kg_json_type(v) == KG_JSON_NULL ? NULL : v;
}

/* ---- config ---- */

static kg_status wrong_type(const char *section, const char *key, const char *expected,
                            const struct kg_json *found, struct kg_err *err)
{
    return kg_fail(err, KG_EFORMAT, "%s.%s: expected %s, found %s", section, key,
                   expected, found ? kg_json_type_name(found) : "nothing");
}

kg_status kg_golden_text(const char **text, const struct kg_golden_case *g,
                         const char *key, struct kg_err *err)
{
    const struct kg_json *v = kg_golden_at(g, "config", key);

    *text = "";
    if (!v)
        return KG_OK;
    if (kg_json_type(v) != KG_JSON_STRING)
        return wrong_type("config", key, "a string", v, err);
    *text = kg_json_text(v, NULL);
    return KG_OK;
}

kg_status kg_golden_real(double *x, const struct kg_golden_case *g, const char *key,
                         double fallback, struct kg_err *err)
{
    const struct kg_json *v = kg_golden_at(g, "config", key);

    if (v && !kg_json_is_number(v))
        return wrong_type("config", key, "a number", v, err);
    *x = kg_json_real(v, fallback);
    return KG_OK;
}

kg_status kg_golden_need_real(double *x, const struct kg_golden_case *g, const char *key,
                              struct kg_err *err)
{
    if (!kg_golden_at(g, "config", key))
        return wrong_type("config", key, "a number", NULL, err);
    return kg_golden_real(x, g, key, 0, err);
}

kg_status kg_golden_bool(bool *x, const struct kg_golden_case *g, const char *key,
                         struct kg_err *err)
{
    const struct kg_json *v = kg_golden_at(g, "config", key);

    if (v && kg_json_type(v) != KG_JSON_BOOL)
        return wrong_type("config", key, "true or false", v, err);
    *x = kg_json_bool(v, false);
    return KG_OK;
}

kg_status kg_golden_rename(const char **to, const struct kg_golden_name *rows,
                           const char *key, const char *from, struct kg_err *err)
{
    char what[128];
    size_t n = 0;

    for (; rows[n].from; n++)
        if (strcmp(rows[n].from, from) == 0) {
            *to = rows[n].to;
            return KG_OK;
        }
    snprintf(what, sizeof what, "config.%s", key);
    return kg_str_unknown(*from ? KG_EUNSUPPORTED : KG_EFORMAT, what, from, rows, n,
                          sizeof *rows, err);
}

/* ---- arrays ---- */

static kg_status dimensions(struct kg_golden_array *a, const struct kg_json *v,
                            const char *section, const char *key, struct kg_err *err)
{
    const struct kg_json *shape = kg_json_get(v, "shape");
    int64_t size = (int64_t)kg_json_size(kg_json_get(v, "data")), n = 1;

    if (kg_json_type(shape) != KG_JSON_ARRAY ||
        kg_json_type(kg_json_get(v, "data")) != KG_JSON_ARRAY)
        return wrong_type(section, key, "{\"shape\": [...], \"data\": [...]}", v, err);
    a->rank = (int)kg_json_size(shape);
    if (a->rank > 3)
        return kg_fail(err, KG_EFORMAT, "%s.%s: expected at most 3 dimensions, found %d",
                       section, key, a->rank);
    for (int i = 0; i < a->rank; i++) {
        a->d[i] = kg_json_int(kg_json_at(shape, (size_t)i), -1);
        if (a->d[i] < 0 || a->d[i] > (int64_t)1 << 31)
            return kg_fail(err, KG_EFORMAT, "%s.%s: shape[%d] is not a size", section,
                           key, i);
        n = n > size ? n : n * a->d[i];
    }
    if (n != size)
        return kg_fail(err, KG_EFORMAT, "%s.%s: %lld numbers do not fill its shape",
                       section, key, (long long)size);
    a->n = n;
    return KG_OK;
}

static kg_status fits(const struct kg_golden_array *a, const struct kg_golden_shape *want,
                      const char *section, const char *key, struct kg_err *err)
{
    char expected[80] = "", found[80] = "";
    bool same = a->rank == want->rank;

    for (int i = 0; same && i < a->rank; i++)
        same = want->d[i] < 0 || want->d[i] == a->d[i];
    if (same)
        return KG_OK;
    for (int i = 0; i < want->rank; i++) {
        size_t used = strlen(expected);

        if (want->d[i] < 0)
            snprintf(expected + used, sizeof expected - used, "%s*", i > 0 ? "," : "");
        else
            snprintf(expected + used, sizeof expected - used, "%s%lld", i > 0 ? "," : "",
                     (long long)want->d[i]);
    }
    for (int i = 0; i < a->rank; i++) {
        size_t used = strlen(found);

        snprintf(found + used, sizeof found - used, "%s%lld", i > 0 ? "," : "",
                 (long long)a->d[i]);
    }
    return kg_fail(err, KG_EFORMAT, "%s.%s: expected shape [%s], found [%s]", section,
                   key, expected, found);
}

/* Infinities and NaN are strings. */
static bool number(double *x, const struct kg_json *v)
{
    const char *text = kg_json_text(v, NULL);

    *x = kg_json_real(v, NAN);
    if (!text)
        return kg_json_is_number(v);
    if (strcmp(text, "nan") == 0)
        return true;
    *x = *text == '-' ? -INFINITY : INFINITY;
    return strcmp(text, "inf") == 0 || strcmp(text, "-inf") == 0;
}

kg_status kg_golden_array(struct kg_golden_array *a, struct kg_golden_case *g,
                          const char *section, const char *key,
                          struct kg_golden_shape shape, struct kg_err *err)
{
    const struct kg_json *v = kg_golden_at(g, section, key), *data;
    double *x;

    *a = (struct kg_golden_array){0};
    if (!v)
        return KG_OK;
    KG_TRY(dimensions(a, v, section, key, err));
    KG_TRY(fits(a, &shape, section, key, err));
    KG_TRY(kg_golden_reals(&x, g, a->n, err));
    data = kg_json_get(v, "data");
    for (int64_t i = 0; i < a->n; i++)
        if (!number(&x[i], kg_json_at(data, (size_t)i)))
            return kg_fail(err, KG_EFORMAT, "%s.%s[%lld]: expected a number, found %s",
                           section, key, (long long)i,
                           kg_json_type_name(kg_json_at(data, (size_t)i)));
    a->x = x;
    return KG_OK;
}

kg_status kg_golden_input(struct kg_golden_array *a, struct kg_golden_case *g,
                          const char *key, struct kg_golden_shape shape,
                          struct kg_err *err)
{
    KG_TRY(kg_golden_array(a, g, "inputs", key, shape, err));
    return a->x ? KG_OK : wrong_type("inputs", key, "an array", NULL, err);
}

kg_status kg_golden_ids(const struct kg_golden_array *a, const char *key, int64_t below,
                        struct kg_err *err)
{
    for (int64_t i = 0; a->x && i < a->n; i++)
        if (!(a->x[i] >= 0 && a->x[i] < (double)below && a->x[i] == floor(a->x[i])))
            return kg_fail(err, KG_EFORMAT,
                           "inputs.%s[%lld]: expected a whole number in 0..%lld, found "
                           "%g",
                           key, (long long)i, (long long)below - 1, a->x[i]);
    return KG_OK;
}
