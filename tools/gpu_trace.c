/* How long each kernel of a process takes, for tools/gpu-check: by CUPTI, NVIDIA's library
 * of traces, into which a process is put that begins with
 *   CUDA_INJECTION64_PATH=gpu_trace.so   this file, as a library
 *   KEDGE_TRACE=FILE                     what is written when the process ends
 *   KEDGE_TRACE_STEP=NAME                a kernel that a step has once
 *   KEDGE_TRACE_STEPS=N                  its last N steps count
 * Lines of FILE, with tabs: microseconds a step, launches a step, kernel. The first is of
 * all: `step` is its duration, `busy` how much of it some kernel runs.
 *
 * CUPTI is loaded, not linked: it comes with a toolkit or with PyTorch.
 */
#include <cupti.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER = 8 << 20, NAMES = 4096, SHORT = 96 };

struct launch {
    int name;
    uint64_t start, end; /* ns */
};

static struct {
    CUptiResult (*callbacks)(CUpti_BuffersCallbackRequestFunc,
                             CUpti_BuffersCallbackCompleteFunc);
    CUptiResult (*enable)(CUpti_ActivityKind);
    CUptiResult (*next)(uint8_t *, size_t, CUpti_Activity **);
    CUptiResult (*flush)(uint32_t);
} cupti;
static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER;
static char *names[NAMES];
static int n_names;
static struct launch *launches;
static size_t n_launches, room;

/* _Z9attentionILi64ELb1EEvi... is attention<64,1>; a name that is not mangled stays. */
static void shorten(char out[SHORT], const char *name)
{
    char *end;
    long length = strncmp(name, "_Z", 2) == 0 ? strtol(name + 2, &end, 10) : 0;

    if (length <= 0) {
        snprintf(out, SHORT, "%s", name);
        return;
    }
    size_t n = (size_t)snprintf(out, SHORT, "%.*s", (int)length, end);
    const char *at = end + length;
    char before = '<';

    if (*at++ != 'I')
        return;
    for (; n + 8 < SHORT && at[0] == 'L' && (at[1] == 'i' || at[1] == 'b'); at++) {
        const long value = strtol(at + 2, &end, 10);

        n += (size_t)snprintf(out + n, SHORT - n, "%c%ld", before, value);
        before = ',';
        at = end;
    }
    if (before == ',')
        snprintf(out + n, SHORT - n, ">");
}

static int name_of(const char *mangled)
{
    char name[SHORT];

    shorten(name, mangled ? mangled : "?");
    for (int i = 0; i < n_names; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    if (n_names == NAMES)
        return NAMES - 1;
    names[n_names] = strdup(name);
    return n_names++;
}

static void add(const char *name, uint64_t start, uint64_t end)
{
    if (n_launches == room) {
        room = room > 0 ? 2 * room : 1 << 16;
        launches = realloc(launches, room * sizeof *launches);
        if (!launches)
            abort();
    }
    launches[n_launches++] = (struct launch){name_of(name), start, end};
}

static void give(uint8_t **buffer, size_t *size, size_t *most)
{
    *buffer = aligned_alloc(8, BUFFER);
    *size = *buffer ? BUFFER : 0;
    *most = 0;
}

/* A newer library's records begin as older ones; these types are in headers of 12 and 13. */
static void take(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                 size_t valid)
{
    CUpti_Activity *record = NULL;

    (void)context, (void)stream, (void)size;
    pthread_mutex_lock(&busy);
    while (cupti.next(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const CUpti_ActivityKernel9 *k = (const void *)record;

            add(k->name, k->start, k->end);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const CUpti_ActivityMemcpy5 *c = (const void *)record;

            add(c->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? "copy up"
                : c->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? "copy down"
                                                                 : "copy within",
                c->start, c->end);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            const CUpti_ActivityMemset4 *m = (const void *)record;

            add("memset", m->start, m->end);
        }
    }
    pthread_mutex_unlock(&busy);
    free(buffer);
}

static int by_start(const void *a, const void *b)
{
    const struct launch *x = a, *y = b;

    return (x->start > y->start) - (x->start < y->start);
}

/* [*first, *last): the last `steps` between occurrences of `step`.   returns how many */
static int window(size_t *first, size_t *last, const char *step, int steps)
{
    int found = -1;

    *first = *last = n_launches;
    for (size_t i = n_launches; i-- > 0 && found < steps;)
        if (strcmp(names[launches[i].name], step) == 0) {
            if (found < 0)
                *last = i;
            *first = i;
            found++;
        }
    return found;
}

static void put(FILE *out, size_t first, size_t last, int steps)
{
    static double us[NAMES];
    static long n[NAMES];
    uint64_t until = 0; /* some may run beside others */
    double all = 0;

    for (size_t i = first; i < last; i++) {
        const struct launch *l = &launches[i];
        const uint64_t from = l->start > until ? l->start : until;

        us[l->name] += (double)(l->end - l->start) / 1e3;
        n[l->name]++;
        if (l->end > from)
            all += (double)(l->end - from) / 1e3;
        until = l->end > until ? l->end : until;
    }
    fprintf(out, "%.1f\t%.1f\tstep\n%.1f\t0\tbusy\n",
            (double)(launches[last].start - launches[first].start) / 1e3 / steps,
            (double)(last - first) / steps, all / steps);
    for (int i = 0; i < n_names; i++)
        if (n[i] > 0)
            fprintf(out, "%.1f\t%.1f\t%s\n", us[i] / steps, (double)n[i] / steps,
                    names[i]);
}

static void finish(void)
{
    const char *path = getenv("KEDGE_TRACE"), *step = getenv("KEDGE_TRACE_STEP");
    const char *steps = getenv("KEDGE_TRACE_STEPS");
    FILE *out = path ? fopen(path, "w") : NULL;
    size_t first, last;

    cupti.flush(1);
    qsort(launches, n_launches, sizeof *launches, by_start);
    const int found = window(&first, &last, step ? step : "", steps ? atoi(steps) : 1);
    if (out && found > 0)
        put(out, first, last, found);
    if (!out || found <= 0)
        fprintf(stderr,
                "gpu_trace: expected a file in KEDGE_TRACE and two kernels '%s', found "
                "%s, and %d of %zu\n",
                step ? step : "", path ? path : "none", found + 1, n_launches);
    if (out)
        fclose(out);
}

/* The driver calls it before the process makes a context.   returns 1: go on */
__attribute__((visibility("default"))) int InitializeInjection(void);
int InitializeInjection(void)
{
    void *library = dlopen("libcupti.so.13", RTLD_NOW);

    if (!library)
        library = dlopen("libcupti.so.12", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "gpu_trace: expected libcupti.so.13 or .12, found none: %s\n",
                dlerror());
        return 1;
    }
    *(void **)&cupti.callbacks = dlsym(library, "cuptiActivityRegisterCallbacks");
    *(void **)&cupti.enable = dlsym(library, "cuptiActivityEnable");
    *(void **)&cupti.next = dlsym(library, "cuptiActivityGetNextRecord");
    *(void **)&cupti.flush = dlsym(library, "cuptiActivityFlushAll");
    if (!cupti.callbacks || !cupti.enable || !cupti.next || !cupti.flush)
        return 1;
    cupti.callbacks(give, take);
    cupti.enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    cupti.enable(CUPTI_ACTIVITY_KIND_MEMCPY);
    cupti.enable(CUPTI_ACTIVITY_KIND_MEMSET);
    atexit(finish);
    return 1;
}
