/* For tests/gpu_check_test: a stand-in for CUPTI (-DLIBRARY), and a process to trace,
 * whose argument is the library made of tools/gpu_trace.c. The stand-in reports steps of
 * 40 us. Each begins with `embed` (2 us), has two kernels of 10 us that overlap by 5 us,
 * and a copy of 5 us. The later buffers come first.
 */
#include <cupti.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef LIBRARY
enum { STEPS = 4, OF_A_STEP = 4 };

static CUpti_BuffersCallbackRequestFunc ask;
static CUpti_BuffersCallbackCompleteFunc done;
static union record {
    CUpti_Activity any;
    CUpti_ActivityKernel9 kernel;
    CUpti_ActivityMemcpy6 copy;
} records[STEPS][OF_A_STEP];
static int step, next;

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc give,
                                           CUpti_BuffersCallbackCompleteFunc take)
{
    ask = give;
    done = take;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind)
{
    (void)kind;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid,
                                       CUpti_Activity **record)
{
    (void)buffer, (void)valid;
    if (next == OF_A_STEP)
        return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = &records[step][next++].any;
    return CUPTI_SUCCESS;
}

static void kernel(union record *r, const char *name, uint64_t start, uint64_t ns)
{
    r->kernel.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    r->kernel.name = name;
    r->kernel.start = start;
    r->kernel.end = start + ns;
}

CUptiResult cuptiActivityFlushAll(uint32_t flag)
{
    (void)flag;
    for (step = STEPS - 1; step >= 0; step--) {
        const uint64_t at = 1000000 + 40000 * (uint64_t)step;
        union record *r = records[step];
        uint8_t *buffer;
        size_t size, most;

        kernel(&r[0], "_Z5embed6kg_mat", at, 2000);
        kernel(&r[1], "_Z9attentionILi64ELb1ELb0EEv7kg_attn", at + 5000, 10000);
        kernel(&r[2], "nvjet_sm90_tst", at + 10000, 10000);
        r[3].copy.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
        r[3].copy.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_DTOH;
        r[3].copy.start = at + 30000;
        r[3].copy.end = at + 35000;
        ask(&buffer, &size, &most);
        next = 0;
        done(NULL, 0, buffer, size, 1);
    }
    return CUPTI_SUCCESS;
}
#else
int main(int argc, char **argv)
{
    void *tracer = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    int (*begin)(void);

    if (!tracer) {
        fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "expected a library");
        return 1;
    }
    *(void **)&begin = dlsym(tracer, "InitializeInjection");
    return begin && begin() == 1 ? 0 : 1;
}
#endif
