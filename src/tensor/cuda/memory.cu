/* The device's memory, and what moves within it and to the host. */
extern "C" {
#include "base/mem.h"
}
#include "tensor/cuda/cuda_internal.h"

struct kg_traffic kg_dev_traffic;

void *kg_cuda_alloc(uint64_t bytes, const char *what, struct kg_err *err)
{
    void *p = kg_dev_alloc(bytes, what, err);

    if (p)
        kg_dev_zero(p, bytes);
    return p;
}

void kg_cuda_free(void *memory)
{
    kg_cuda_forget();
    kg_dev_free(memory);
}

kg_status kg_cuda_memory(uint64_t *total, uint64_t *free, struct kg_err *err)
{
    return kg_dev_memory(total, free, err);
}

kg_status kg_cuda_put(void *to, const void *from, uint64_t bytes, struct kg_err *err)
{
    kg_dev_put(to, from, bytes);
    return kg_dev_done("put", err);
}

kg_status kg_cuda_get(void *to, const void *from, uint64_t bytes, struct kg_err *err)
{
    kg_dev_get(to, from, bytes);
    return kg_dev_done("get", err);
}

void *kg_cuda_pin(uint64_t bytes, const char *what, struct kg_err *err)
{
    return kg_dev_pin(bytes, what, err);
}

void kg_cuda_unpin(void *memory) { kg_dev_unpin(memory); }

kg_status kg_cuda_fetch(void *to, const void *from, uint64_t bytes, struct kg_err *err)
{
    kg_dev_fetch(to, from, bytes);
    return kg_dev_done("fetch", err);
}

kg_status kg_cuda_put_later(void *to, const void *from, uint64_t bytes,
                            struct kg_err *err)
{
    kg_dev_put_later(to, from, bytes);
    return kg_dev_done("put_later", err);
}

kg_status kg_cuda_get_later(void *to, const void *from, uint64_t bytes,
                            struct kg_err *err)
{
    kg_dev_get_later(to, from, bytes);
    return kg_dev_done("get_later", err);
}

kg_status kg_cuda_mark(uint64_t *mark, struct kg_err *err)
{
    static uint64_t marks;

    *mark = ++marks;
    kg_dev_mark(*mark);
    return kg_dev_done("mark", err);
}

kg_status kg_cuda_wait(uint64_t mark, struct kg_err *err)
{
    kg_dev_wait(mark);
    return kg_dev_done("wait", err);
}

kg_status kg_cuda_copy(void *to, const void *from, uint64_t bytes, struct kg_err *err)
{
    kg_dev_copy(to, from, bytes);
    return kg_dev_done("copy", err);
}

kg_status kg_cuda_zero(void *to, uint64_t bytes, struct kg_err *err)
{
    if (bytes > 0)
        kg_dev_zero(to, bytes);
    return kg_dev_done("zero", err);
}

template <typename T> static __global__ void swap(T *a, T *b, int64_t n)
{
    const int64_t i = kg_cuda_flat();

    if (i < n) {
        const T held = a[i];

        a[i] = b[i];
        b[i] = held;
    }
}

kg_status kg_cuda_swap(void *a, void *b, uint64_t bytes, struct kg_err *err)
{
    const int64_t n = (int64_t)bytes, words = n / 4;
    const bool whole = ((uintptr_t)a | (uintptr_t)b | bytes) % 4 == 0;

    if (n > 0 && whole)
        KG_LAUNCH(swap<uint32_t>, kg_cuda_all(words), KG_FLAT_THREADS, (uint32_t *)a,
                  (uint32_t *)b, words);
    else if (n > 0)
        KG_LAUNCH(swap<uint8_t>, kg_cuda_all(n), KG_FLAT_THREADS, (uint8_t *)a,
                  (uint8_t *)b, n);
    return kg_dev_done("swap", err);
}

/* Both grow to the largest that was asked for. */
void *kg_cuda_scratch(uint64_t bytes, struct kg_err *err)
{
    static void *kept; /* owned, of the process's life */
    static uint64_t kept_bytes;

    if (bytes <= kept_bytes)
        return kept;
    if (kept)
        kg_cuda_free(kept);
    kept = kg_dev_alloc(bytes, "scratch of an operation", err);
    kept_bytes = kept ? bytes : 0;
    return kept;
}

void *kg_cuda_host_scratch(uint64_t bytes, struct kg_err *err)
{
    static void *kept; /* as above */
    static uint64_t kept_bytes;

    if (bytes <= kept_bytes)
        return kept;
    kg_mem_free(kept);
    kept = kg_mem_calloc(bytes, 1, "arrays of an operation", err);
    kept_bytes = kept ? bytes : 0;
    return kept;
}
