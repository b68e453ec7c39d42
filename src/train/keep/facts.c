/* Devices and ranks of a run in its manifest: bits depend on each fact of a device, and
 * on none of the ranks'.
 */
#include "train/keep/facts.h"

#include "ranks/mpi.h"
#include "ranks/nccl.h"
#include "train/keep/past.h"

#include <stdio.h>

_Static_assert(KG_TRAITS + 1 <= KG_PAST_FACTS, "kind, and traits");

static const struct kg_past_list devices = {"devices", {"kind", "cpu"}};

/* traits: those that the entry points to */
static struct kg_past_entry of_device(struct kg_trait traits[KG_TRAITS],
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
    const struct kg_past_entry entry = of_device(traits, be);

    return kg_past_json(out, &devices, &entry, err);
}

kg_status kg_run_device_check(bool *other, const char *manifest,
                              const struct kg_backend *be, bool may_differ,
                              struct kg_err *err)
{
    struct kg_trait traits[KG_TRAITS];
    const struct kg_past_entry entry = of_device(traits, be);
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
    const struct kg_past_entry entry = of_device(traits, be);

    return kg_past_add(manifest, &devices, &entry, since, err);
}

static const struct kg_past_list joined = {"ranks", {"n", "not written"}};

/* What an entry points to beside r. */
struct words {
    char n[16], over[32 + KG_MPI_TEXT];
};

static void put(struct kg_past_entry *e, const char *name, const char *text)
{
    e->fact[e->n++] = (struct kg_past_fact){name, text};
}

static struct kg_past_entry of_ranks(struct words *w, const struct kg_ranks *r)
{
    const char *nccl = kg_ranks_nccl_version(r);
    struct kg_past_entry e = {.n = 0};
    char mpi[KG_MPI_TEXT];

    snprintf(w->n, sizeof w->n, "%d", r->n > 1 ? r->n : 1);
    put(&e, "n", w->n);
    if (r->n < 2)
        return e;
    kg_ranks_mpi_library(mpi, r);
    snprintf(w->over, sizeof w->over, *mpi ? "%s (%s)" : "%s", r->transport->name, mpi);
    put(&e, "over", w->over);
    put(&e, "link", nccl ? "nccl" : "host");
    if (!nccl)
        return e;
    put(&e, "nccl", nccl);
    put(&e, "library", kg_ranks_nccl_path(r));
    return e;
}

kg_status kg_run_joined_json(struct kg_str *out, const struct kg_ranks *r,
                             struct kg_err *err)
{
    struct words w;
    const struct kg_past_entry entry = of_ranks(&w, r);

    return kg_past_json(out, &joined, &entry, err);
}

kg_status kg_run_joined_note(const char *manifest, const struct kg_ranks *r,
                             const char *since, struct kg_err *err)
{
    struct words w;
    const struct kg_past_entry entry = of_ranks(&w, r);
    struct kg_str diff = {0};
    kg_status status = kg_past_compare(&diff, manifest, &joined, &entry, err);

    if (status == KG_OK && diff.len > 0)
        status = kg_past_add(manifest, &joined, &entry, since, err);
    kg_str_release(&diff);
    return status;
}
