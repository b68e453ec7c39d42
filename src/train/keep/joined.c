/* Ranks of a run in its manifest.
 */
#include "train/keep/joined.h"

#include "ranks/mpi.h"
#include "ranks/nccl.h"
#include "train/keep/past.h"

#include <stdio.h>

static const struct kg_past_list joined = {"ranks", {"n", "not written"}};

/* What an entry points to beside r. */
struct words {
    char n[16], over[32 + KG_MPI_TEXT];
};

static void put(struct kg_past_entry *e, const char *name, const char *text)
{
    e->fact[e->n++] = (struct kg_past_fact){name, text};
}

static struct kg_past_entry entry_of(struct words *w, const struct kg_ranks *r)
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
    const struct kg_past_entry entry = entry_of(&w, r);

    return kg_past_json(out, &joined, &entry, err);
}

kg_status kg_run_joined_note(const char *manifest, const struct kg_ranks *r,
                             const char *since, struct kg_err *err)
{
    struct words w;
    const struct kg_past_entry entry = entry_of(&w, r);
    struct kg_str diff = {0};
    kg_status status = kg_past_compare(&diff, manifest, &joined, &entry, err);

    if (status == KG_OK && diff.len > 0)
        status = kg_past_add(manifest, &joined, &entry, since, err);
    kg_str_release(&diff);
    return status;
}
