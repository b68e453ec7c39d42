/* Devices of a run in its manifest: bits depend on each of their facts.
 */
#include "train/keep/device.h"

#include "train/keep/past.h"

_Static_assert(KG_TRAITS + 1 <= KG_PAST_FACTS, "kind, and traits");

static const struct kg_past_list devices = {"devices", {"kind", "cpu"}};

/* traits: those that the entry points to */
static struct kg_past_entry entry_of(struct kg_trait traits[KG_TRAITS],
                                     const struct kg_backend *be)
{
    struct kg_past_entry e = {.fact = {{"kind", be->traits ? be->name : "cpu"}}, .n = 1};
    const int n = be->traits ? be->traits(traits) : 0;

    for (int i = 0; i < n; i++)
        e.fact[e.n++] = (struct kg_past_fact){traits[i].name, traits[i].value};
    return e;
}

kg_status kg_run_device_json(struct kg_str *out, const struct kg_backend *be,
                             struct kg_err *err)
{
    struct kg_trait traits[KG_TRAITS];
    const struct kg_past_entry entry = entry_of(traits, be);

    return kg_past_json(out, &devices, &entry, err);
}

kg_status kg_run_device_check(bool *other, const char *manifest,
                              const struct kg_backend *be, bool may_differ,
                              struct kg_err *err)
{
    struct kg_trait traits[KG_TRAITS];
    const struct kg_past_entry entry = entry_of(traits, be);
    struct kg_str diff = {0};
    kg_status status = kg_past_compare(&diff, manifest, &devices, &entry, err);

    *other = diff.len > 0;
    if (status == KG_OK && *other && !may_differ)
        status = kg_fail(err, KG_ECONFLICT,
                         "%s: expected the device of the run so far, because others give "
                         "other bits: %s (device.may_change=true allows it)",
                         manifest, kg_str_text(&diff));
    kg_str_release(&diff);
    return status;
}

kg_status kg_run_device_add(const char *manifest, const struct kg_backend *be,
                            const char *since, struct kg_err *err)
{
    struct kg_trait traits[KG_TRAITS];
    const struct kg_past_entry entry = entry_of(traits, be);

    return kg_past_add(manifest, &devices, &entry, since, err);
}
