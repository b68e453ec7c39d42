/* Assigns each rank a device of its host, and checks that all devices compute alike.
 *
 *   cpu      CPUs
 *   cuda     one device each: the ranks of a host that see the same devices take them in
 *            order. A launcher may show each rank only its own device, or all devices
 *   cuda:N   device N; one rank per host
 *   auto     refused: some ranks could find a device and others none
 */
#ifndef KG_RANKS_DEVICES_H
#define KG_RANKS_DEVICES_H

#include "ranks/ranks.h"
#include "tensor/device.h"

/* The devices that a rank can choose from. */
struct kg_ranks_sight {
    char host[KG_RANKS_HOST];
    struct kg_device_list devices;
};
/* device (n): the index that each rank takes among the devices it sees; asked: N of
 * cuda:N, or -1 for one each. The result is the same on every rank.
 * errors: EINVAL (more ranks than devices, or two ranks on one; names ranks and host) */
kg_status kg_ranks_deal_devices(int *device, const struct kg_ranks_sight *all, int n,
                                int asked, struct kg_err *err) KG_MUST_CHECK;

/* A device as in struct kg_device_opts. */
struct kg_ranks_device {
    char name[64];
};
/* d out: the device of this rank if the run's device is `asked`; `asked` itself for a
 * single process and for devices other than GPUs. Collective.
 * errors: of kg_ranks_deal_devices and kg_device_list, EINVAL (auto); on all ranks */
kg_status kg_ranks_choose_device(struct kg_ranks_device *d, struct kg_ranks *r,
                                 const char *asked, struct kg_err *err) KG_MUST_CHECK;

/* Checks that devices, drivers, libraries and plans are alike on all ranks, and that
 * fixed products give the same bits. CPUs are checked by kg_ranks_check_alike instead.
 * Collective.   errors: ECONFLICT, naming rank, host and the difference; reported on all
 * ranks */
kg_status kg_ranks_check_devices(struct kg_ranks *r, const struct kg_backend *be,
                                 struct kg_err *err) KG_MUST_CHECK;

#endif
