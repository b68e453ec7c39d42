/* A CUDA runtime without a device, for tests of the host's code: which calls are made, by
 * which thread, in which order, and what is waited for.
 *
 * It is linked with the objects of libkedge_cuda.so instead of NVIDIA's, which promises
 * nothing about when a stream runs an operation. This one runs everything as late as
 * possible, when a thread waits for it. Kernels compute nothing. What NVIDIA's
 * documentation forbids is an error, as there, or a fault (kg_fake_runtime_fault).
 */
#define _GNU_SOURCE
#include "emu/runtime_fake.h"

#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GRID_YZ = 65535, THREADS = 1024, UNASKED_SHARED = 48 << 10, KERNELS = 256 };

enum kind { COPY, SET, AWAIT, KERNEL };
struct op {
    struct op *next;
    enum kind kind;
    void *to;
    const void *from;
    void *held; /* owned copy of `from`, if that is not page-locked */
    size_t bytes;
    int value;
    struct CUstream_st *other; /* awaited, up to its number-th operation */
    uint64_t number;
};
struct list {
    struct op *first, **end;
};
struct CUstream_st {
    struct CUstream_st *next;
    int device;
    uint64_t begun, done;
    struct list ops;
};
struct CUevent_st {
    struct CUstream_st *stream;
    uint64_t number;
};
struct CUgraph_st {
    struct list ops;
};
struct CUgraphExec_st {
    struct list ops;
};

enum where { DEVICE, MANAGED, PINNED };
struct memory {
    struct memory *next;
    char *at;
    size_t bytes;
    enum where where;
};

static pthread_mutex_t busy = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct CUstream_st *streams;
static struct memory *memories;
static char fault[256];
static int failing;
static _Thread_local int current; /* a thread starts with device 0 */
static _Thread_local int last = cudaSuccess;

/* a capture */
static struct CUgraph_st *graph; /* NULL: none */
static struct CUstream_st *captured;
static pthread_t capturer;
static bool broken;

void kg_fake_runtime_fail(int error) { failing = error; }
const char *kg_fake_runtime_fault(void) { return fault[0] ? fault : NULL; }

static void blame(const char *fmt, ...)
{
    va_list ap;

    if (fault[0])
        return;
    va_start(ap, fmt);
    vsnprintf(fault, sizeof fault, fmt, ap);
    va_end(ap);
}

static cudaError_t say(int e)
{
    if (e != cudaSuccess)
        last = e;
    return (cudaError_t)e;
}

static bool is_lost(void)
{
    return failing != cudaSuccess && failing != cudaErrorMemoryAllocation;
}

/* A call that needs a context makes one on its thread's device. */
static cudaError_t come(const char *call)
{
    if (current != KG_FAKE_GOOD)
        blame("%s by a thread whose device is %d", call, current);
    return is_lost() ? (cudaError_t)failing : cudaSuccess;
}

/* ... and one that waits, or acts at once, breaks a capture by its thread. */
static cudaError_t act(const char *call)
{
    const cudaError_t e = come(call);

    if (e == cudaSuccess && graph && pthread_equal(capturer, pthread_self())) {
        broken = true;
        return cudaErrorStreamCaptureUnsupported;
    }
    return e;
}

/* ---- streams ---- */
static void append(struct list *l, struct op *o)
{
    if (!l->end)
        l->end = &l->first;
    *l->end = o;
    l->end = &o->next;
}

static struct op *copy_of(const struct op *o)
{
    struct op *new = malloc(sizeof *new);

    *new = *o;
    new->next = NULL;
    return new;
}

static void flush(struct CUstream_st *s, uint64_t number);

static void run(struct op *o)
{
    if (o->kind == COPY)
        memmove(o->to, o->held ? o->held : o->from, o->bytes);
    else if (o->kind == SET)
        memset(o->to, o->value, o->bytes);
    else if (o->kind == AWAIT)
        flush(o->other, o->number);
}

static void flush(struct CUstream_st *s, uint64_t number)
{
    while (s->done < number && s->ops.first) {
        struct op *o = s->ops.first;

        s->ops.first = o->next;
        if (!o->next)
            s->ops.end = &s->ops.first;
        s->done++;
        run(o);
        free(o->held);
        free(o);
    }
}

static void flush_all(void)
{
    for (struct CUstream_st *s = streams; s; s = s->next)
        flush(s, s->begun);
}

static cudaError_t ask(struct CUstream_st *s, const struct op *o)
{
    if (graph && s == captured && broken)
        return cudaErrorStreamCaptureInvalidated;
    if (s->device != current)
        blame("a stream of device %d asked by a thread whose device is %d", s->device,
              current);
    if (graph && s == captured) {
        if (!pthread_equal(capturer, pthread_self()))
            blame("a thread asks into the capture of another");
        append(&graph->ops, copy_of(o));
        return cudaSuccess;
    }
    append(&s->ops, copy_of(o));
    s->begun++;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    if (flags != cudaStreamNonBlocking)
        blame("a stream that waits for the default one");
    *s = calloc(1, sizeof **s);
    (*s)->device = current;
    (*s)->next = streams;
    streams = *s;
    return say(come("cudaStreamCreateWithFlags"));
}

/* The body of each call that accesses what threads share. */
#define LOCKED(e)                                                                        \
    do {                                                                                 \
        cudaError_t result_;                                                             \
                                                                                         \
        pthread_mutex_lock(&busy);                                                       \
        result_ = (e);                                                                   \
        pthread_mutex_unlock(&busy);                                                     \
        return say(result_);                                                             \
    } while (0)

static cudaError_t wait_for(const char *call, struct CUstream_st *s, uint64_t number)
{
    const cudaError_t e = act(call);

    if (e == cudaSuccess)
        flush(s, number);
    return e;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    LOCKED(wait_for("cudaStreamSynchronize", s, s->begun));
}

static cudaError_t wait_for_all(const char *call)
{
    const cudaError_t e = act(call);

    if (e == cudaSuccess && graph)
        blame("%s while another thread captures", call);
    if (e == cudaSuccess)
        flush_all();
    return e;
}
cudaError_t cudaDeviceSynchronize(void) { LOCKED(wait_for_all("cudaDeviceSynchronize")); }

/* ---- events ---- */
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof **event);
    return say(come("cudaEventCreateWithFlags"));
}
static cudaError_t record(struct CUevent_st *event, struct CUstream_st *s)
{
    const cudaError_t e = come("cudaEventRecord");

    if (graph && s == captured)
        blame("an event within a capture, which nobody can wait for");
    event->stream = s;
    event->number = s->begun;
    return e;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s)
{
    LOCKED(record(event, s));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t event, unsigned flags)
{
    const struct op o = {.kind = AWAIT, .other = event->stream, .number = event->number};

    (void)flags;
    LOCKED(come("cudaStreamWaitEvent") == cudaSuccess ? ask(s, &o)
                                                      : (cudaError_t)failing);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (!event->stream)
        return say(cudaSuccess);
    LOCKED(wait_for("cudaEventSynchronize", event->stream, event->number));
}
/* The first query is too early; the next one is not. */
static cudaError_t query(struct CUevent_st *event)
{
    const bool there = !event->stream || event->stream->done >= event->number;
    const cudaError_t e = act("cudaEventQuery");

    if (e == cudaSuccess && !there)
        flush(event->stream, event->number);
    return e != cudaSuccess ? e : there ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventQuery(cudaEvent_t event) { LOCKED(query(event)); }

/* ---- captures ---- */
static cudaError_t begin(struct CUstream_st *s, enum cudaStreamCaptureMode mode)
{
    const cudaError_t e = come("cudaStreamBeginCapture");

    if (mode != cudaStreamCaptureModeThreadLocal)
        blame("a capture that forbids other threads what they do");
    graph = e == cudaSuccess ? calloc(1, sizeof *graph) : NULL;
    captured = s;
    capturer = pthread_self();
    broken = false;
    return e;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    LOCKED(begin(s, mode));
}
static cudaError_t end(cudaGraph_t *made)
{
    *made = broken ? NULL : graph;
    graph = NULL;
    return *made ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *made)
{
    (void)s;
    LOCKED(end(made));
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t from,
                                 unsigned long long flags)
{
    (void)flags;
    *made = calloc(1, sizeof **made);
    (*made)->ops.first = from->ops.first;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    free(g);
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g)
{
    free(g);
    return cudaSuccess;
}
static cudaError_t launch(struct CUgraphExec_st *g, struct CUstream_st *s)
{
    cudaError_t e = come("cudaGraphLaunch");

    for (struct op *o = g->ops.first; o && e == cudaSuccess; o = o->next)
        e = ask(s, o);
    return e;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t s) { LOCKED(launch(g, s)); }

/* ---- memory ---- */
static struct memory **find(const void *p)
{
    struct memory **m = &memories;

    while (*m &&
           !((const char *)p >= (*m)->at && (const char *)p < (*m)->at + (*m)->bytes))
        m = &(*m)->next;
    return m;
}

/* The memory is NaN. */
static cudaError_t take(const char *call, void **p, size_t bytes, enum where where)
{
    cudaError_t e = act(call);
    struct memory *m;

    if (e == cudaSuccess && failing == cudaErrorMemoryAllocation)
        e = cudaErrorMemoryAllocation;
    if (e != cudaSuccess)
        return e;
    m = malloc(sizeof *m);
    *m = (struct memory){memories, aligned_alloc(256, (bytes + 255) / 256 * 256), bytes,
                         where};
    memset(m->at, 0xff, bytes);
    memories = m;
    *p = m->at;
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **p, size_t bytes)
{
    LOCKED(take("cudaMalloc", p, bytes, DEVICE));
}
cudaError_t cudaMallocManaged(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    LOCKED(take("cudaMallocManaged", p, bytes, MANAGED));
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    LOCKED(take("cudaHostAlloc", p, bytes, PINNED));
}
static cudaError_t give_back(const char *call, void *p)
{
    const cudaError_t e = act(call);
    struct memory **at = find(p), *m = *at;

    if (e != cudaSuccess || !p)
        return e;
    if (!m)
        return cudaErrorInvalidValue;
    flush_all();
    *at = m->next;
    free(m->at);
    free(m);
    return cudaSuccess;
}
cudaError_t cudaFree(void *p) { LOCKED(give_back("cudaFree", p)); }
cudaError_t cudaFreeHost(void *p) { LOCKED(give_back("cudaFreeHost", p)); }

static bool lies(const void *p, enum where a, enum where b)
{
    const struct memory *m = *find(p);

    return m && (m->where == a || m->where == b);
}

/* Host memory that is not page-locked is read or written before the call returns. */
static cudaError_t copy(struct op o, enum cudaMemcpyKind kind, struct CUstream_st *s)
{
    const bool up = kind == cudaMemcpyHostToDevice, down = kind == cudaMemcpyDeviceToHost;
    cudaError_t e = come("cudaMemcpyAsync");

    if (e != cudaSuccess || o.bytes == 0)
        return e;
    if ((!down && !lies(o.to, DEVICE, MANAGED)) ||
        (!up && !lies(o.from, DEVICE, MANAGED)))
        return cudaErrorInvalidValue;
    if (up && !lies(o.from, PINNED, PINNED))
        o.held = memcpy(malloc(o.bytes), o.from, o.bytes);
    e = ask(s, &o);
    if (e == cudaSuccess && down && !lies(o.to, PINNED, PINNED))
        e = wait_for("cudaMemcpyAsync", s, s->begun);
    return e;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                            enum cudaMemcpyKind kind, cudaStream_t s)
{
    LOCKED(
        copy((struct op){.kind = COPY, .to = to, .from = from, .bytes = bytes}, kind, s));
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t s)
{
    const struct op o = {.kind = SET, .to = to, .value = value, .bytes = bytes};

    LOCKED(come("cudaMemsetAsync") == cudaSuccess ? ask(s, &o) : (cudaError_t)failing);
}
cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    *left = 1 << 30;
    *all = (size_t)2 << 30;
    return say(come("cudaMemGetInfo"));
}

/* ---- kernels ---- */
static struct {
    const void *kernel;
    int shared;
} asked[KERNELS];

static int *shared_of(const void *kernel)
{
    int i = 0;

    while (i < KERNELS - 1 && asked[i].kernel && asked[i].kernel != kernel)
        i++;
    asked[i].kernel = kernel;
    return &asked[i].shared;
}
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute a, int value)
{
    int *const most = shared_of(kernel);

    if (a == cudaFuncAttributeMaxDynamicSharedMemorySize && value < *most)
        blame("a kernel may ask for less than before, which a graph may hold");
    if (a == cudaFuncAttributeMaxDynamicSharedMemorySize)
        *most = value;
    return say(come("cudaFuncSetAttribute"));
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *kernel)
{
    (void)a, (void)kernel;
    return say(current == KG_FAKE_REFUSED ? cudaErrorNoKernelImageForDevice
                                          : cudaSuccess);
}
cudaError_t __cudaGetKernel(cudaKernel_t *k, const void *kernel)
{
    *k = (cudaKernel_t)(uintptr_t)kernel;
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 grid, dim3 block, void **arguments,
                               size_t shared, cudaStream_t s)
{
    const struct op o = {.kind = KERNEL};

    (void)arguments;
    if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > INT32_MAX ||
        grid.y > GRID_YZ || grid.z > GRID_YZ || block.x * block.y * block.z > THREADS ||
        (shared > UNASKED_SHARED &&
         shared > (size_t)*shared_of((const void *)(uintptr_t)k)))
        return say(cudaErrorInvalidConfiguration);
    LOCKED(come("a kernel") == cudaSuccess ? ask(s, &o) : (cudaError_t)failing);
}

static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} configured;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream)
{
    configured.grid = grid;
    configured.block = block;
    configured.shared = shared;
    configured.stream = stream;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared,
                                       void *stream)
{
    *grid = configured.grid;
    *block = configured.block;
    *shared = configured.shared;
    memcpy(stream, &configured.stream, sizeof configured.stream);
    return cudaSuccess;
}

/* ---- devices ---- */
cudaError_t cudaGetDeviceCount(int *n)
{
    *n = KG_FAKE_DEVICES;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= KG_FAKE_DEVICES)
        return say(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "GPU %d", device);
    p->major = device == KG_FAKE_REFUSED ? 7 : 9;
    p->totalGlobalMem = (size_t)2 << 30;
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void)
{
    const int e = last;

    last = is_lost() ? failing : cudaSuccess; /* a lost device keeps its error */
    return (cudaError_t)e;
}
const char *cudaGetErrorString(cudaError_t e)
{
    static _Thread_local char text[32];

    snprintf(text, sizeof text, "error %d", (int)e);
    return text;
}
