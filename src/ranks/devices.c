/* Devices are distinguished by the driver's identifier, not by their number: a rank that
 * sees only one device calls it 0, and so does its neighbour.
 */
#include "ranks/devices.h"

#include "base/mem.h"
#include "ranks/same.h"
#include "tensor/selfcheck.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- choosing a device for each rank ---- */

static bool same_host(const struct kg_ranks_sight *a, const struct kg_ranks_sight *b)
{
    return strcmp(a->host, b->host) == 0;
}

static bool same_sight(const struct kg_ranks_sight *a, const struct kg_ranks_sight *b)
{
    return same_host(a, b) && a->devices.n == b->devices.n &&
           memcmp(a->devices.id, b->devices.id,
                  (size_t)a->devices.n * sizeof *a->devices.id) == 0;
}

/* How many of all[0..n) see the same devices as `own`. */
static int sharing(const struct kg_ranks_sight *all, int n,
                   const struct kg_ranks_sight *own)
{
    int sharers = 0;

    for (int p = 0; p < n; p++)
        sharers += same_sight(&all[p], own);
    return sharers;
}

static kg_status take(int *device, const struct kg_ranks_sight *all, int n, int rank,
                      int asked, struct kg_err *err)
{
    const struct kg_ranks_sight *own = &all[rank];

    *device = asked >= 0 ? asked : sharing(all, rank, own);
    if (*device < own->devices.n)
        return KG_OK;
    if (asked >= 0)
        return kg_fail(err, KG_EINVAL,
                       "rank %d (%s): expected a device from cuda:0 to cuda:%d, found "
                       "cuda:%d",
                       rank, own->host, own->devices.n - 1, asked);
    return kg_fail(err, KG_EINVAL,
                   "expected a device for each of the %d ranks on %s, found %d; start at "
                   "most one rank for each device",
                   sharing(all, n, own), own->host, own->devices.n);
}

/* A lower rank that would use the same device as `rank`; -1: none. */
static int other_on(const int *device, const struct kg_ranks_sight *all, int rank)
{
    const char *id = all[rank].devices.id[device[rank]].text;

    for (int p = 0; p < rank; p++)
        if (same_host(&all[p], &all[rank]) &&
            strcmp(all[p].devices.id[device[p]].text, id) == 0)
            return p;
    return -1;
}

kg_status kg_ranks_deal_devices(int *device, const struct kg_ranks_sight *all, int n,
                                int asked, struct kg_err *err)
{
    for (int p = 0; p < n; p++) {
        KG_TRY(take(&device[p], all, n, p, asked, err));
        int other = other_on(device, all, p);
        if (other >= 0)
            return kg_fail(err, KG_EINVAL,
                           "ranks %d and %d (%s): expected a device each, found one for "
                           "both (cuda:%d, %s); with device cuda each takes its own",
                           other, p, all[p].host, device[p],
                           all[p].devices.id[device[p]].text);
    }
    return KG_OK;
}

/* ---- choosing ---- */

static kg_status see(struct kg_ranks_sight *own, struct kg_err *err)
{
    gethostname(own->host, sizeof own->host - 1);
    return kg_device_list(&own->devices, err);
}

/* All ranks have the same data here, so all report the same error. */
static kg_status deal(struct kg_ranks_device *d, struct kg_ranks *r,
                      const struct kg_ranks_sight *all, int asked, struct kg_err *err)
{
    int *device = kg_mem_calloc((size_t)r->n, sizeof *device, "devices", err);
    kg_status status = device ? KG_OK : err->code;

    status = kg_ranks_agree(r, status, "devices", err);
    if (status == KG_OK)
        status = kg_ranks_deal_devices(device, all, r->n, asked, err);
    if (status == KG_OK)
        snprintf(d->name, sizeof d->name, "cuda:%d", device[r->me]);
    kg_mem_free(device);
    return status;
}

/* asked: N of cuda:N, or -1 */
static kg_status choose(struct kg_ranks_device *d, struct kg_ranks *r, int asked,
                        struct kg_err *err)
{
    struct kg_ranks_sight own = {.host = ""}, *all;
    kg_status status = see(&own, err);

    status = kg_ranks_gather_own(&all, r, status, &own, sizeof own, "devices", err);
    if (status == KG_OK)
        status = deal(d, r, all, asked, err);
    kg_mem_free(all);
    return status;
}

kg_status kg_ranks_choose_device(struct kg_ranks_device *d, struct kg_ranks *r,
                                 const char *asked, struct kg_err *err)
{
    int number;

    snprintf(d->name, sizeof d->name, "%s", asked);
    if (r->n < 2)
        return KG_OK;
    if (strcmp(asked, "auto") == 0)
        return kg_fail(err, KG_EINVAL,
                       "expected cpu, cuda or cuda:N, found auto: each of the %d ranks "
                       "would choose its own device",
                       r->n);
    if (strcmp(asked, "cuda") == 0)
        return choose(d, r, -1, err);
    if (strncmp(asked, "cuda:", 5) != 0)
        return KG_OK;
    KG_TRY(kg_device_number(&number, asked, err));
    return choose(d, r, number, err);
}

/* ---- equal devices ---- */

static kg_status put_facts(struct kg_str *facts, const struct kg_backend *be,
                           struct kg_err *err)
{
    struct kg_trait traits[KG_TRAITS];
    const int n = be->traits(traits);
    uint64_t bits;
    char text[24];

    KG_TRY(kg_ranks_fact(facts, "device", be->name, err));
    for (int i = 0; i < n; i++)
        KG_TRY(kg_ranks_fact(facts, traits[i].name, traits[i].value, err));
    KG_TRY(kg_selfcheck_digest(&bits, be, KG_BF16, err));
    snprintf(text, sizeof text, "%016llx", (unsigned long long)bits);
    return kg_ranks_fact(facts, "bits of products", text, err);
}

kg_status kg_ranks_check_devices(struct kg_ranks *r, const struct kg_backend *be,
                                 struct kg_err *err)
{
    struct kg_str facts = {0};

    if (r->n < 2 || !be->traits)
        return KG_OK;
    kg_status status = put_facts(&facts, be, err);
    status = kg_ranks_check_same(r, status, &facts, "devices", err);
    kg_str_release(&facts);
    return status;
}
