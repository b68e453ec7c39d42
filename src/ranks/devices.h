/* Which device of its host is a rank's, and whether all compute alike.
 *
 *     cpu       CPUs
 *     cuda      each its own: the ranks of a host that see the same devices take them in
 *               their order. A launcher may show each rank one that is its own, or all to
 *               all
 *     cuda:N    the one of this number, of which a host has one rank
 *     auto      refused: some would find a device and others none
 */
#ifndef KG_RANKS_DEVICES_H
#define KG_RANKS_DEVICES_H

#include "ranks/ranks.h"
#include "tensor/device.h"

/* What a rank has to choose from. */
struct kg_ranks_sight {
    char host[KG_RANKS_HOST];
    struct kg_device_list devices;
};
/* device (n): the number that each rank takes of those that it sees; asked: that of
 * cuda:N, or -1 for its own. The same on every rank.
 * errors: EINVAL (more ranks than devices, or two on one; ranks and host are named) */
kg_status kg_ranks_deal_devices(int *device, const struct kg_ranks_sight *all, int n,
                                int asked, struct kg_err *err) KG_MUST_CHECK;

/* As struct kg_device_opts has it. */
struct kg_ranks_device {
    char name[64];
};
/* The device of this rank where `asked` is the run's; alone, and of what is no GPU, what
 * is asked. All ranks call it.
 * errors: those above, of kg_device_list, EINVAL (auto); all hear of each */
kg_status kg_ranks_choose_device(struct kg_ranks_device *d, struct kg_ranks *r,
                                 const char *asked, struct kg_err *err) KG_MUST_CHECK;

/* Whether devices, drivers, libraries and plans are alike on all ranks, and the same bits
 * come out of fixed products. Of CPUs nothing is asked (kg_ranks_check_alike). All ranks
 * call it.   errors: ECONFLICT, naming rank, host and what differs; all hear of it */
kg_status kg_ranks_check_devices(struct kg_ranks *r, const struct kg_backend *be,
                                 struct kg_err *err) KG_MUST_CHECK;

#endif
