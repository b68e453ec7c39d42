/* The device's memory, and copies within it, to it and from it. */
#include "tensor/cuda/cuda_internal.h"

struct kg_traffic kg_dev_traffic;

/* ---- marks ---- */
/* Number of marks so far, and the last one that the host knows the device has reached. A
 * wait for all launches reaches every mark before it. Used by all threads. */
static uint64_t marks, seen;

static uint64_t number_of(const uint64_t *count)
{
    return __atomic_load_n(count, __ATOMIC_RELAXED);
}
static void see(uint64_t mark)
{
    uint64_t before = number_of(&seen);

    while (before < mark &&
           !__atomic_compare_exchange_n(&seen, &before, mark, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
        continue;
}
static uint64_t mark_now(void)
{
    const uint64_t mark = __atomic_add_fetch(&marks, 1, __ATOMIC_RELAXED);

    kg_dev_mark(mark);
    return mark;
}

void *kg_cuda_alloc(uint64_t bytes, const char *what, struct kg_err *err)
{
    void *p = kg_dev_alloc(bytes, what, err);

    if (!p)
        return NULL;
    kg_dev_zero(p, bytes);
    if (kg_dev_done(what, err) == KG_OK)
        return p;
    kg_dev_free(p);
    return NULL;
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
    const uint64_t before = number_of(&marks);

    kg_dev_put(to, from, bytes);
    see(before);
    return kg_dev_done("put", err);
}

kg_status kg_cuda_get(void *to, const void *from, uint64_t bytes, struct kg_err *err)
{
    kg_cuda_down(to, from, bytes);
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
    *mark = mark_now();
    return kg_dev_done("mark", err);
}

kg_status kg_cuda_wait(uint64_t mark, struct kg_err *err)
{
    if (mark > number_of(&seen)) {
        kg_dev_wait(mark);
        see(mark);
    }
    return kg_dev_done("wait", err);
}

kg_status kg_cuda_reached(bool *yes, uint64_t mark, struct kg_err *err)
{
    *yes = mark <= number_of(&seen) || kg_dev_reached(mark);
    if (*yes)
        see(mark);
    return kg_dev_done("reached", err);
}

kg_status kg_cuda_lend(int *result, int (*call)(void *arg, void *stream), void *arg,
                       const void *const *memory, size_t n, struct kg_err *err)
{
    kg_dev_lend(memory, n);
    *result = call(arg, KG_DEV_STREAM);
    kg_dev_take_back(memory, n);
    return kg_dev_done("lend", err);
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

/* ---- scratch ---- */
/* Grows to the largest size requested. */
void *kg_cuda_scratch(uint64_t bytes, struct kg_err *err)
{
    static void *kept; /* owned, for the process's life */
    static uint64_t kept_bytes;

    if (bytes <= kept_bytes) {
        kg_dev_spoil(kept, kept_bytes);
        return kept;
    }
    if (kept)
        kg_cuda_free(kept);
    kept = kg_dev_alloc(bytes, "scratch of an operation", err);
    kept_bytes = kept ? bytes : 0;
    return kept;
}

/* Inputs of operations are stored one after another until the host knows that the device
 * has read them, so no operation waits for the copies of another. */
static struct {
    char *base; /* owned, for the process's life */
    uint64_t bytes, used;
    uint64_t mark; /* after the last copy to the device */
} up;

static bool grow_host(uint64_t bytes, struct kg_err *err)
{
    if (up.base)
        kg_dev_unpin(up.base);
    up.base = (char *)kg_dev_pin(bytes, "arrays of an operation", err);
    up.bytes = up.base ? bytes : 0;
    return up.base;
}

void *kg_cuda_host_scratch(uint64_t bytes, struct kg_err *err)
{
    const uint64_t piece = (bytes + 63) / 64 * 64;

    if (up.mark <= number_of(&seen))
        up.used = 0;
    if (up.used + piece > up.bytes) {
        if (up.used > 0 && kg_cuda_wait(up.mark, err) != KG_OK)
            return NULL;
        if (up.used + piece > up.bytes && !grow_host(up.used + piece, err))
            return NULL;
        up.used = 0;
    }
    up.used += piece;
    return up.base + up.used - piece;
}

void kg_cuda_up(void *to, const void *from, uint64_t bytes)
{
    kg_dev_put_later(to, from, bytes);
    up.mark = mark_now();
}

void kg_cuda_down(void *to, const void *from, uint64_t bytes)
{
    const uint64_t before = number_of(&marks);

    kg_dev_get(to, from, bytes);
    see(before);
}
