/* The interface of libkedge_cuda.so: whether there is a device for its kernels, and what
 * the library uses of kedge.
 *
 * The emulation lacks only this file. Each thing that may be missing (a driver, one as
 * new as the linked runtime, a device of this number, kernels for its architecture) has
 * its own error. The last is tested with a kernel that does nothing, not concluded from
 * numbers. Pure functions of base/ and tensor/ are linked in; host memory is allocated by
 * kedge, so that its limits and counts hold.
 */
#include "tensor/cuda/blas.h"
#include "tensor/cuda/cuda_internal.h"
#include <cuda.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

extern "C" {
#include "tensor/cuda/boxes.h"
}

extern "C" const struct kg_backend kg_cuda_table;

static const struct kg_cuda_host *door; /* borrowed, for the process's life */
static int chosen = -1;                 /* the device; -1: none */
bool kg_dev_shown;

extern "C" void *kg_mem_calloc(size_t count, size_t size, const char *what,
                               struct kg_err *err)
{
    if (door)
        return door->calloc(count, size, what, err);
    err->code = KG_ENOMEM; /* before `open`, only kg_fail allocates (long messages) */
    err->message[0] = 0;
    return NULL;
}
extern "C" void kg_mem_free(void *block)
{
    if (door)
        door->free(block);
}

static __global__ void nothing(void) {}

/* ---- the stream and its records ---- */
cudaStream_t kg_dev_stream; /* this and the next three live as long as the process */
cudaStream_t kg_dev_beside;
cudaEvent_t kg_dev_launched;
cudaEvent_t kg_dev_marks[KG_DEV_MARKS];
bool kg_dev_recording;
static pthread_mutex_t busy = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

/* A thread that chose no device would use device 0, and take memory there. */
void kg_dev_come(void)
{
    static thread_local bool here;

    if (!here && chosen >= 0)
        here = cudaSetDevice(chosen) == cudaSuccess;
}

/* A memory location for CUDA 13, which converts to that of CUDA 12. */
struct place {
    cudaMemLocationType type;
    int id;
    operator cudaMemLocation() const { return {type, id}; }
    operator int() const { return id; }
};

/* Tests read their memory between operations. Small allocations stay on the host, and the
 * device reads them over the bus, because migrating a page takes tens of microseconds
 * each way. The advice affects only time, so failures are ignored. */
cudaError_t kg_dev_alloc_shown(void **memory, uint64_t bytes)
{
    enum { SMALL = 1 << 20 };
    const struct place host = {cudaMemLocationTypeHost, cudaCpuDeviceId};
    const struct place device = {cudaMemLocationTypeDevice, chosen};
    const cudaError_t e = cudaMallocManaged(memory, bytes);

    if (e != cudaSuccess || bytes > SMALL)
        return e;
    (void)cudaMemAdvise(*memory, bytes, cudaMemAdviseSetPreferredLocation, host);
    (void)cudaMemAdvise(*memory, bytes, cudaMemAdviseSetAccessedBy, device);
    (void)cudaGetLastError();
    return e;
}

void kg_dev_lock(void)
{
    (void)pthread_mutex_lock(&busy);
    kg_dev_come();
}
void kg_dev_unlock(void) { (void)pthread_mutex_unlock(&busy); }

void kg_dev_record_begin(void)
{
    kg_dev_lock();
    kg_dev_recording = true;
    (void)cudaStreamBeginCapture(kg_dev_stream, cudaStreamCaptureModeThreadLocal);
}

/* The error of a failed capture is cleared: the next operation must not report it. */
void *kg_dev_record_end(void)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t record = NULL;

    kg_dev_recording = false;
    if (cudaStreamEndCapture(kg_dev_stream, &graph) == cudaSuccess && graph)
        (void)cudaGraphInstantiate(&record, graph, 0);
    if (graph)
        (void)cudaGraphDestroy(graph);
    if (!record)
        (void)cudaGetLastError();
    kg_dev_unlock();
    return record;
}

void kg_dev_record_launch(void *record)
{
    (void)cudaGraphLaunch((cudaGraphExec_t)record, KG_DEV_STREAM);
}
/* The record may be running. */
void kg_dev_record_free(void *record)
{
    kg_dev_settle(KG_DEV_STREAM);
    (void)cudaGraphExecDestroy((cudaGraphExec_t)record);
}

/* ---- devices ---- */
struct cuda_number {
    int major, minor;
};
/* 13020 is 13.2 */
static struct cuda_number number_of(int version)
{
    const struct cuda_number n = {version / 1000, version % 1000 / 10};

    return n;
}

/* Finds why the runtime has no driver. It reports the same error if the driver is
 * missing, too old, or does not start. */
static kg_status refuse_driver(struct kg_err *err)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*ask)(int *) = NULL;
    int version = 0, runtime = 0;

    if (!driver)
        return kg_fail(err, KG_EDEVICE, "cuda: expected an NVIDIA driver, found none: %s",
                       dlerror());
    *(void **)&ask = dlsym(driver, "cuDriverGetVersion");
    if (!ask || ask(&version) != 0)
        return kg_fail(err, KG_EDEVICE,
                       "cuda: cannot read the driver's version from libcuda.so.1");
    (void)cudaRuntimeGetVersion(&runtime);
    const struct cuda_number d = number_of(version), r = number_of(runtime);

    return kg_fail(err, KG_EDEVICE,
                   "cuda: expected a driver of CUDA %d.0 or newer that starts, found one "
                   "of CUDA %d.%d",
                   r.major, d.major, d.minor);
}

static kg_status count_devices(int *n, struct kg_err *err)
{
    const cudaError_t e = cudaGetDeviceCount(n);

    if (e == cudaSuccess && *n > 0)
        return KG_OK;
    if (e == cudaErrorInsufficientDriver)
        return refuse_driver(err);
    if (e == cudaSuccess || e == cudaErrorNoDevice)
        return kg_fail(err, KG_EDEVICE, "cuda: the driver has no device");
    return kg_fail(err, KG_EDEVICE, "cuda: cannot count the devices: %s",
                   cudaGetErrorString(e));
}

static kg_status describe_device(char *text, size_t bytes, int device, struct kg_err *err)
{
    struct cudaDeviceProp p;
    const cudaError_t e = cudaGetDeviceProperties(&p, device);

    if (e != cudaSuccess)
        return kg_fail(err, KG_EDEVICE, "cuda:%d: %s", device, cudaGetErrorString(e));
    snprintf(text, bytes, "cuda:%d %s (sm_%d%d, %.1f GiB)", device, p.name, p.major,
             p.minor, (double)p.totalGlobalMem / (double)(1 << 30));
    return KG_OK;
}

/* Appends where cuBLASLt would be found, or why not. */
static void say_blas(char *text, size_t bytes)
{
    const size_t used = strlen(text);
    char path[PATH_MAX];
    struct kg_err none;

    if (kg_blas_find(path, NULL, &none) == KG_OK)
        snprintf(text + used, bytes - used, "; %s", path);
    else
        snprintf(text + used, bytes - used, "; %s", none.message);
}

static kg_status devices(char *text, size_t bytes, struct kg_err *err)
{
    int n = 0, driver = 0;

    KG_TRY(count_devices(&n, err));
    (void)cudaDriverGetVersion(&driver);
    const struct cuda_number d = number_of(driver);

    snprintf(text, bytes, "driver of CUDA %d.%d", d.major, d.minor);
    for (int i = 0; i < n; i++) {
        char one[320];
        const size_t used = strlen(text);

        KG_TRY(describe_device(one, sizeof one, i, err));
        snprintf(text + used, bytes - used, "; %s", one);
    }
    say_blas(text, bytes);
    return KG_OK;
}

/* The UUID; if a device is divided, that of the part. */
static void name_device(char text[40], const unsigned char *uuid)
{
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", uuid[i]);
}

static kg_status list(struct kg_device_list *l, struct kg_err *err)
{
    int n = 0;

    KG_TRY(count_devices(&n, err));
    l->n = n < KG_DEVICES_MOST ? n : KG_DEVICES_MOST;
    for (int i = 0; i < l->n; i++) {
        struct cudaDeviceProp p;
        const cudaError_t e = cudaGetDeviceProperties(&p, i);

        if (e != cudaSuccess)
            return kg_fail(err, KG_EDEVICE, "cuda:%d: %s", i, cudaGetErrorString(e));
        name_device(l->id[i].text, (const unsigned char *)p.uuid.bytes);
        l->id[i].major = p.major;
        l->id[i].minor = p.minor;
    }
    return KG_OK;
}

int kg_dev_traits(struct kg_trait traits[KG_TRAITS])
{
    struct cudaDeviceProp p;
    int driver = 0, runtime = 0;
    const bool known = cudaGetDeviceProperties(&p, chosen) == cudaSuccess;

    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    const struct cuda_number d = number_of(driver), r = number_of(runtime);

    traits[0].name = "gpu";
    if (known)
        snprintf(traits[0].value, sizeof traits[0].value, "%.80s (sm_%d%d)", p.name,
                 p.major, p.minor);
    else
        snprintf(traits[0].value, sizeof traits[0].value, "unknown");
    traits[1].name = "driver";
    snprintf(traits[1].value, sizeof traits[1].value, "CUDA %d.%d", d.major, d.minor);
    traits[2].name = "kernels";
    snprintf(traits[2].value, sizeof traits[2].value, "CUDA %d.%d", r.major, r.minor);
    return 3;
}

/* ---- boxes ---- */
static int hoppers; /* of the chosen device */

int kg_dev_hoppers(void) { return hoppers; }

/* Kernels for sm_90a run only on 9.0; those of other architectures are empty. */
static int count_hoppers(int device)
{
    struct cudaDeviceProp p;
    const bool there = strstr(KG_CUDA_ARCHITECTURES, "sm_90a") &&
                       cudaGetDeviceProperties(&p, device) == cudaSuccess;

    return there && p.major == 9 && p.minor == 0 ? p.multiProcessorCount : 0;
}

/* Calls the driver that is loaded, because its symbol is the same for every runtime. */
bool kg_dev_boxes(struct kg_boxes *boxes, struct kg_mat m, int rows)
{
    static decltype(&cuTensorMapEncodeTiled) encode;
    const bool wide = m.dtype == KG_F32; /* copied as pairs of halves */
    const cuuint64_t halves = wide ? 2 : 1;
    const cuuint64_t sizes[] = {halves * (cuuint64_t)m.cols, (cuuint64_t)m.rows};
    const cuuint64_t stride = halves * (cuuint64_t)m.stride * sizeof(uint16_t);
    const cuuint32_t box[] = {wide ? 8u : 64u, (cuuint32_t)rows}, steps[] = {1, 1};

    static_assert(sizeof *boxes == sizeof(CUtensorMap), "what the driver describes");
    kg_dev_come();
    if (!encode)
        *(void **)&encode = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL),
                                  "cuTensorMapEncodeTiled");
    return encode &&
           encode((CUtensorMap *)boxes, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, m.data,
                  sizes, &stride, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  wide ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* ---- opening a device ---- */
static kg_status check_kernels(int device, struct kg_err *err)
{
    struct cudaFuncAttributes a;
    char text[320];
    const cudaError_t e = cudaFuncGetAttributes(&a, nothing);

    if (e == cudaSuccess)
        return KG_OK;
    (void)cudaGetLastError();
    KG_TRY(describe_device(text, sizeof text, device, err));
    if (e == cudaErrorNoKernelImageForDevice || e == cudaErrorInvalidDeviceFunction)
        return kg_fail(err, KG_EDEVICE,
                       "%s: no kernels for this architecture; the build has %s", text,
                       KG_CUDA_ARCHITECTURES);
    return kg_fail(err, KG_EDEVICE, "%s: %s", text, cudaGetErrorString(e));
}

/* Streams and events belong to the current device, so none is made on a device that is
 * refused: another one may be chosen later. */
static kg_status choose(int device, struct kg_err *err)
{
    cudaError_t e = cudaSetDevice(device);

    if (e == cudaSuccess)
        KG_TRY(check_kernels(device, err));
    if (e == cudaSuccess)
        e = cudaStreamCreateWithFlags(&kg_dev_stream, cudaStreamNonBlocking);
    if (e == cudaSuccess)
        e = cudaStreamCreateWithFlags(&kg_dev_beside, cudaStreamNonBlocking);
    if (e == cudaSuccess)
        e = cudaEventCreateWithFlags(&kg_dev_launched, cudaEventDisableTiming);
    for (int i = 0; i < KG_DEV_MARKS && e == cudaSuccess; i++)
        e = cudaEventCreateWithFlags(&kg_dev_marks[i], cudaEventDisableTiming);
    if (e != cudaSuccess)
        return kg_fail(err, KG_EDEVICE, "cuda:%d: %s", device, cudaGetErrorString(e));
    hoppers = count_hoppers(device);
    return KG_OK;
}

static kg_status open(const struct kg_backend **be, const struct kg_cuda_host *host,
                      const struct kg_cuda_opts *opts, struct kg_err *err)
{
    const int device = opts->device;
    int n = 0;

    if (chosen >= 0 && chosen != device)
        return kg_fail(err, KG_ECONFLICT,
                       "cuda:%d: expected cuda:%d, the device of this process", device,
                       chosen);
    KG_TRY(count_devices(&n, err));
    if (device >= n)
        return kg_fail(err, KG_EDEVICE, "cuda:%d: expected a device from 0 to %d", device,
                       n - 1);
    if (chosen < 0)
        KG_TRY(choose(device, err));
    chosen = device;
    door = host;
    kg_dev_shown = opts->shown;
    *be = &kg_cuda_table;
    return kg_cuda_use(opts, err);
}

#define CUDA_RELEASE                                                                     \
    "CUDA " KG_BLAS_TEXT(__CUDACC_VER_MAJOR__) "." KG_BLAS_TEXT(__CUDACC_VER_MINOR__)

extern "C" const struct kg_cuda_about kg_backend_cuda_about = {
    .interface = KG_CUDA_INTERFACE,
    .table_bytes = sizeof(struct kg_backend),
    .version = KG_VERSION,
    .architectures = CUDA_RELEASE ", " KG_CUDA_ARCHITECTURES,
    .devices = devices,
    .open = open,
    .list = list,
};
