/* A device inside this process: it runs the CPU's operations on memory that counts as
 * separate from host memory. A chosen transfer of a rank, each of which is a thread, can
 * fail. For a single test program.
 */
#ifndef KG_TRAIN_FAILING_DEVICE_TESTING_H
#define KG_TRAIN_FAILING_DEVICE_TESTING_H

#include "tensor/backend.h"

static _Thread_local int transfers_left; /* 1: the next transfer fails; 0: none does */
static struct kg_backend device;
static const struct kg_backend *cpu;

static kg_status transfer(struct kg_err *e)
{
    if (transfers_left == 0 || --transfers_left > 0)
        return KG_OK;
    return kg_fail(e, KG_EDEVICE, "a device that fell off");
}

static kg_status get(void *to, const void *from, uint64_t bytes, struct kg_err *e)
{
    KG_TRY(transfer(e));
    return cpu->get(to, from, bytes, e);
}

static kg_status put(void *to, const void *from, uint64_t bytes, struct kg_err *e)
{
    KG_TRY(transfer(e));
    return cpu->put(to, from, bytes, e);
}

static int open_device(void **state)
{
    (void)state;
    cpu = kg_backend_cpu_variant(0);
    device = *cpu;
    device.host_memory = false;
    device.get = get;
    device.put = put;
    return 0;
}

#endif
