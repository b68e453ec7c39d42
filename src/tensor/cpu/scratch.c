/* A thread's memory between operations: one block per use, freed when the thread ends.
 *
 * Kernels need memory for packed operands and tiles of logits, thousands of times per
 * step. Allocating it each time would cost more than a small product, and to allocate it
 * once in advance, every operation would have to tell its size. So a thread keeps the
 * largest block of each use.
 */
#include "base/mem.h"
#include "tensor/cpu/cpu_internal.h"

#include <pthread.h>

struct kept {
    struct {
        void *block;
        size_t bytes;
    } use[KG_CPU_SCRATCH_USES];
};

static pthread_once_t start_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool has_key;

static void kept_free(void *block)
{
    struct kept *k = block;
    for (int i = 0; i < KG_CPU_SCRATCH_USES; i++)
        kg_mem_free(k->use[i].block);
    kg_mem_free(k);
}

static void start(void) { has_key = pthread_key_create(&key, kept_free) == 0; }

/* The calling thread's blocks.   returns borrowed; NULL with err set */
static struct kept *kept_get(struct kg_err *err)
{
    pthread_once(&start_once, start);
    struct kept *k = has_key ? pthread_getspecific(key) : NULL;
    if (k)
        return k;
    k = kg_mem_calloc(1, sizeof *k, "scratch of a thread", err);
    if (!k)
        return NULL;
    if (!has_key || pthread_setspecific(key, k) != 0) {
        kg_fail(err, KG_ENOMEM, "no thread-local storage key is left");
        kg_mem_free(k);
        return NULL;
    }
    return k;
}

void *kg_cpu_scratch(enum kg_cpu_scratch_use use, size_t bytes, struct kg_err *err)
{
    struct kept *k = kept_get(err);
    if (!k)
        return NULL;
    if (k->use[use].block && k->use[use].bytes >= bytes)
        return k->use[use].block;
    void *block = kg_mem_calloc(1, bytes, "product scratch", err);
    if (!block)
        return NULL;
    kg_mem_free(k->use[use].block);
    k->use[use].block = block;
    k->use[use].bytes = bytes;
    return block;
}
