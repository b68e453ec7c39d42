/* Algorithms for the library's user: a handle, and the tables to choose from. Keys are
 * set by name and text, as in a recipe, so no struct grows with new options, and the
 * program's presets work here. A handle is checked when it is used, because keys come in
 * any order. A preset's keys other than algo.*, kl.* and anchor.* are ignored.
 */
#include "lib/lib_internal.h"

#include "base/mem.h"
#include "policy/presets.h"

#include <string.h>

static kg_status apply_preset(struct kg_algo *algo, const char *name, struct kg_err *err)
{
    const struct kg_preset *preset;

    KG_TRY(kg_preset_find(&preset, name, err));
    return kg_preset_apply(algo, preset, err);
}

static kg_status create(struct kedge_algo **algo, const char *preset, struct kg_err *err)
{
    struct kedge_algo *new = kg_mem_calloc(1, sizeof *new, "algorithm", err);
    kg_status status = KG_OK;

    if (!new)
        return err->code;
    kg_algo_init(&new->algo);
    if (preset)
        status = apply_preset(&new->algo, preset, err);
    if (status == KG_OK)
        *algo = new;
    else
        kg_mem_free(new);
    return status;
}

int kedge_algo_create(struct kedge_algo **algo, const char *preset, struct kedge_err *err)
{
    struct kg_err e;
    kg_status status = kg_lib_given(algo, "algo", &e);

    return kg_lib_report(status ? status : create(algo, preset, &e), &e, err);
}

void kedge_algo_free(struct kedge_algo *algo) { kg_mem_free(algo); }

static kg_status given3(const void *algo, const void *key, const void *value,
                        struct kg_err *err)
{
    KG_TRY(kg_lib_given(algo, "algo", err));
    KG_TRY(kg_lib_given(key, "key", err));
    return kg_lib_given(value, "value", err);
}

int kedge_algo_set(struct kedge_algo *algo, const char *key, const char *value,
                   struct kedge_err *err)
{
    struct kg_err e;
    kg_status status = given3(algo, key, value, &e);

    if (status == KG_OK)
        status = kg_algo_set(&algo->algo, key, value, &e);
    return kg_lib_report(status, &e, err);
}

int kedge_algo_get(const struct kedge_algo *algo, const char *key, char *text,
                   size_t bytes, struct kedge_err *err)
{
    struct kg_err e;
    kg_status status = given3(algo, key, text, &e);

    if (status == KG_OK)
        status = kg_algo_get(&algo->algo, key, text, bytes, &e);
    return kg_lib_report(status, &e, err);
}

/* ---- needs and checks ---- */

_Static_assert((int)KEDGE_NEED_SELECTION == (int)KG_NEED_SELECTION &&
                   (int)KEDGE_NEED_MU_AT == (int)KG_NEED_MU_AT &&
                   (int)KEDGE_NEED_SUM_SQ == (int)KG_NEED_SUM_SQ &&
                   (int)KEDGE_NEED_PARTS == (int)KG_NEED_PARTS,
               "the public needs equal those of policy/");
_Static_assert((int)KEDGE_SCOPE_BATCH == (int)KG_SCOPE_BATCH,
               "the public scopes equal those of policy/");

static kg_status needs_of(struct kedge_needs *needs, const struct kedge_algo *algo,
                          struct kg_err *err)
{
    struct kedge_needs own;

    KG_LIB_TAKE(own, needs, err);
    KG_TRY(kg_lib_given(algo, "algo", err));
    own.needs = kg_algo_needs(&algo->algo);
    own.scope = (int)kg_algo_scope(&algo->algo);
    own.sampler_top_k = kg_algo_recorded_top_k(&algo->algo);
    own.anchor_top_k = kg_algo_anchor_top_k(&algo->algo);
    kg_lib_give(needs, &own, sizeof own);
    return KG_OK;
}

int kedge_algo_needs(struct kedge_needs *needs, const struct kedge_algo *algo,
                     struct kedge_err *err)
{
    struct kg_err e;

    return kg_lib_report(needs_of(needs, algo, &e), &e, err);
}

kg_status kg_lib_check_algo(const struct kedge_algo *algo, struct kg_err *err)
{
    struct kg_algo_setting any = {.provides = ~0u, .reproduction = true};

    KG_TRY(kg_lib_given(algo, "algo", err));
    return kg_algo_check(&algo->algo, &any, err);
}

static kg_status check(const struct kedge_algo *algo, const struct kedge_setting *setting,
                       struct kg_err *err)
{
    struct kedge_setting own = {.provides = ~0u};

    KG_TRY(kg_lib_given(algo, "algo", err));
    if (setting)
        KG_LIB_TAKE(own, setting, err);
    struct kg_algo_setting s = {
        .vocab = own.vocab,
        .samples = own.samples,
        .off_policy = own.off_policy,
        .sampled_old = own.sampled_old,
        .truncated_sampling = own.truncated_sampling,
        .max_top_k = own.max_top_k,
        .provides = own.provides,
        .reproduction = own.reproduction,
    };
    return kg_algo_check(&algo->algo, &s, err);
}

int kedge_algo_check(const struct kedge_algo *algo, const struct kedge_setting *setting,
                     struct kedge_err *err)
{
    struct kg_err e;

    return kg_lib_report(check(algo, setting, &e), &e, err);
}

/* ---- lists ---- */

const char *kedge_key(size_t i) { return i < kg_algo_n_keys() ? kg_algo_key(i) : NULL; }

static int give_about(struct kedge_about *about, struct kedge_about row)
{
    struct kg_err e;
    struct kedge_about own;

    if (kg_lib_take(&own, sizeof own, about, "about", &e) != KG_OK)
        return 0;
    row.size = own.size;
    kg_lib_give(about, &row, sizeof row);
    return 1;
}

int kedge_row(struct kedge_about *about, size_t i)
{
    for (int t = 0; t < KG_TABLE_COUNT; t++) {
        size_t n = kg_policy_n_rows((enum kg_policy_table)t);
        const struct kg_policy_claims *claims;

        if (i >= n) {
            i -= n;
            continue;
        }
        const struct kg_policy_about *row = kg_policy_row((enum kg_policy_table)t, i);
        claims = kg_policy_row_claims((enum kg_policy_table)t, i);
        return give_about(about,
                          (struct kedge_about){
                              .table = kg_policy_table_key((enum kg_policy_table)t),
                              .name = row->name,
                              .help = row->help,
                              .formula = row->formula,
                              .source = row->source,
                              .needs = row->needs,
                              .gradient = claims ? claims->gradient : "",
                          });
    }
    return 0;
}

int kedge_preset(struct kedge_about *about, size_t i)
{
    const struct kg_preset *preset = kg_preset_at(i);

    if (!preset)
        return 0;
    return give_about(about,
                      (struct kedge_about){.table = kg_preset_kind_name(preset->kind),
                                           .name = preset->name,
                                           .help = preset->help,
                                           .formula = "",
                                           .source = preset->source,
                                           .gradient = ""});
}

int kedge_preset_value(const char **key, const char **value, size_t i, size_t j)
{
    const struct kg_preset *preset = kg_preset_at(i);

    for (const struct kg_preset_value *v = preset ? preset->values : NULL; v && v->key;
         v++)
        if (j-- == 0) {
            *key = v->key;
            *value = v->value;
            return 1;
        }
    return 0;
}
