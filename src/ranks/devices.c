/* Devices are told apart by the driver's identifier, not by their number: a rank that
 * sees only one device calls it 0, and its neighbour does the same.
 */
#include "ranks/devices.h"

#include "base/mem.h"
#include "tensor/selfcheck.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- dealing ---- */

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

/* How many of all[0..n) see what `own` sees. */
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

/* Another rank before this one that would compute on its device; -1: none. */
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
    memset(own, 0, sizeof *own);
    gethostname(own->host, sizeof own->host - 1);
    return kg_device_list(&own->devices, err);
}

/* All ranks see the same devices, so all report the same error. */
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

/* asked: of cuda:N, or -1 */
static kg_status choose(struct kg_ranks_device *d, struct kg_ranks *r, int asked,
                        struct kg_err *err)
{
    struct kg_ranks_sight *all = kg_mem_calloc((size_t)r->n, sizeof *all, "devices", err);
    kg_status status = all ? see(&all[r->me], err) : err->code;

    status = kg_ranks_agree(r, status, "devices", err);
    if (status == KG_OK)
        status = kg_ranks_gather_equal(r, all, sizeof *all, "devices", err);
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
                       "expected cpu, cuda or cuda:N, found auto, by which each of "
                       "the %d ranks would choose on its own",
                       r->n);
    if (strcmp(asked, "cuda") == 0)
        return choose(d, r, -1, err);
    if (strncmp(asked, "cuda:", 5) != 0)
        return KG_OK;
    KG_TRY(kg_device_number(&number, asked, err));
    return choose(d, r, number, err);
}

/* ---- alike ---- */

struct print {
    char kind[16];
    int n;
    struct {
        char name[24];
        char value[120];
    } trait[KG_TRAITS];
    char products[24];
};

static kg_status make_print(struct print *p, const struct kg_backend *be,
                            struct kg_err *err)
{
    struct kg_trait traits[KG_TRAITS];
    uint64_t bits;

    memset(p, 0, sizeof *p);
    snprintf(p->kind, sizeof p->kind, "%s", be->name);
    p->n = be->traits(traits);
    for (int i = 0; i < p->n; i++) {
        snprintf(p->trait[i].name, sizeof p->trait[i].name, "%s", traits[i].name);
        snprintf(p->trait[i].value, sizeof p->trait[i].value, "%s", traits[i].value);
    }
    KG_TRY(kg_selfcheck_digest(&bits, be, KG_BF16, err));
    snprintf(p->products, sizeof p->products, "%016llx", (unsigned long long)bits);
    return KG_OK;
}

static kg_status compare(const struct kg_ranks *r, int rank, const char *what,
                         const char *expected, const char *found, struct kg_err *err)
{
    if (strcmp(expected, found) == 0)
        return KG_OK;
    return kg_fail(err, KG_ECONFLICT,
                   "expected the %s of %s, %s, on every rank, found %s on %s: the ranks "
                   "would not compute one run",
                   what, kg_ranks_name(r, 0).text, expected, found,
                   kg_ranks_name(r, rank).text);
}

static kg_status compare_all(const struct kg_ranks *r, const struct print *all,
                             struct kg_err *err)
{
    for (int p = 1; p < r->n; p++) {
        KG_TRY(compare(r, p, "device", all->kind, all[p].kind, err));
        for (int i = 0; i < all->n; i++)
            KG_TRY(compare(r, p, all->trait[i].name, all->trait[i].value,
                           all[p].trait[i].value, err));
        KG_TRY(compare(r, p, "bits of products", all->products, all[p].products, err));
    }
    return KG_OK;
}

kg_status kg_ranks_check_devices(struct kg_ranks *r, const struct kg_backend *be,
                                 struct kg_err *err)
{
    if (r->n < 2 || !be->traits)
        return KG_OK;
    struct print *all = kg_mem_calloc((size_t)r->n, sizeof *all, "devices", err);
    kg_status status = all ? make_print(&all[r->me], be, err) : err->code;
    status = kg_ranks_agree(r, status, "devices", err);
    if (status == KG_OK)
        status = kg_ranks_gather_equal(r, all, sizeof *all, "devices", err);
    if (status == KG_OK) /* the same on all, said once */
        status = kg_ranks_agree(r, r->me == 0 ? compare_all(r, all, err) : KG_OK,
                                "devices", err);
    kg_mem_free(all);
    return status;
}
