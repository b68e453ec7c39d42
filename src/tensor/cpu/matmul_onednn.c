/* Matrix products by oneDNN: the only file that knows the library.
 *
 * It makes single-threaded products of dense blocks and nothing else; matmul.c cuts the
 * work and owns the threads. That is how bits stay the same: for dense row-major operands
 * and one thread the library's chain of sums along K depends on K alone (with more
 * threads it may split K; with strides it takes another implementation with other sums).
 *
 * The idea: each thread keeps its own bounded cache of ready primitives with their memory
 * objects, so that a repeated shape costs a look-up and three pointer writes, and no lock
 * is ever held. The C API changed in oneDNN 3.0 (descriptors became handles); the two
 * functions that differ stand under the one #if of this folder.
 */
#include "base/mem.h"
#include "tensor/cpu/cpu_internal.h"

#include <dnnl.h>
#include <pthread.h>
#include <stdio.h>

enum { CACHE_SETS = 128, CACHE_WAYS = 4 };
enum { ARG_A, ARG_B, ARG_C, ARG_SCRATCH, ARG_COUNT };

struct key {
    int64_t m;
    int64_t n;
    int64_t k;
    uint32_t traits; /* kind, dtypes, accumulate */
};

struct entry {
    struct key key;
    uint64_t used; /* tick of the last use; 0 for an empty entry */
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[ARG_COUNT]; /* memory objects owned */
    size_t scratch_bytes;
};

/* What one thread keeps; freed when the thread ends. */
struct thread_state {
    dnnl_stream_t stream;
    uint64_t tick;
    struct {
        void *block;
        size_t bytes;
    } scratch[KG_CPU_SCRATCH_USES];
    struct entry entries[CACHE_SETS][CACHE_WAYS];
};

static pthread_once_t start_once = PTHREAD_ONCE_INIT;
static pthread_key_t state_key;
static dnnl_engine_t engine; /* lives as long as the process */
static dnnl_status_t engine_status;

static void entry_release(struct entry *e)
{
    for (int i = 0; i < ARG_COUNT; i++)
        if (e->args[i].memory)
            dnnl_memory_destroy(e->args[i].memory);
    if (e->primitive)
        dnnl_primitive_destroy(e->primitive);
    memset(e, 0, sizeof *e);
}

static void state_free(void *block)
{
    struct thread_state *s = block;
    for (int i = 0; i < CACHE_SETS * CACHE_WAYS; i++)
        entry_release(&s->entries[i / CACHE_WAYS][i % CACHE_WAYS]);
    for (int i = 0; i < KG_CPU_SCRATCH_USES; i++)
        kg_mem_free(s->scratch[i].block);
    if (s->stream)
        dnnl_stream_destroy(s->stream);
    kg_mem_free(s);
}

/* Tiles of AMX sum in another order than rows do, and the library chooses by shape. */
static void start(void)
{
    dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
    engine_status = dnnl_engine_create(&engine, dnnl_cpu, 0);
    if (engine_status == dnnl_success && pthread_key_create(&state_key, state_free) != 0)
        engine_status = dnnl_out_of_memory;
}

static kg_status library_fail(struct kg_err *err, dnnl_status_t s, const char *what)
{
    if (s == dnnl_out_of_memory)
        return kg_fail(err, KG_ENOMEM, "oneDNN: out of memory in %s", what);
    return kg_fail(err, KG_EUNSUPPORTED, "oneDNN %s: %s failed with status %d",
                   kg_cpu_library_version(), what, (int)s);
}

/* The calling thread's state, made at its first call.   returns borrowed, or NULL with
 * err set */
static struct thread_state *state_get(struct kg_err *err)
{
    pthread_once(&start_once, start);
    if (engine_status != dnnl_success) {
        library_fail(err, engine_status, "starting the CPU engine");
        return NULL;
    }
    struct thread_state *s = pthread_getspecific(state_key);
    if (s)
        return s;
    s = kg_mem_calloc(1, sizeof *s, "product cache", err);
    if (!s)
        return NULL;
    dnnl_status_t made = dnnl_stream_create(&s->stream, engine,
                                            dnnl_stream_default_flags);
    if (made != dnnl_success || pthread_setspecific(state_key, s) != 0) {
        library_fail(err, made != dnnl_success ? made : dnnl_out_of_memory,
                     "making a stream");
        state_free(s);
        return NULL;
    }
    return s;
}

static void *scratch_get(struct thread_state *s, enum kg_cpu_scratch_use use,
                         size_t bytes, struct kg_err *err)
{
    if (s->scratch[use].bytes >= bytes && s->scratch[use].block)
        return s->scratch[use].block;
    void *block = kg_mem_calloc(1, bytes, "product scratch", err);
    if (!block)
        return NULL;
    kg_mem_free(s->scratch[use].block);
    s->scratch[use].block = block;
    s->scratch[use].bytes = bytes;
    return block;
}

void *kg_cpu_scratch(enum kg_cpu_scratch_use use, size_t bytes, struct kg_err *err)
{
    struct thread_state *s = state_get(err);
    return s ? scratch_get(s, use, bytes, err) : NULL;
}

const char *kg_cpu_library_version(void)
{
    static char text[32]; /* every caller writes the same bytes */
    const dnnl_version_t *v = dnnl_version();
    snprintf(text, sizeof text, "%d.%d.%d", v->major, v->minor, v->patch);
    return text;
}

/* ---- primitives ---- */
static dnnl_data_type_t library_type(enum kg_dtype t)
{
    return t == KG_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* One operand as the library sees it: rows x cols with these strides. */
struct operand {
    dnnl_dims_t dims;
    dnnl_dims_t strides;
    dnnl_data_type_t type;
};

static struct operand operand(int64_t rows, int64_t cols, bool transposed,
                              enum kg_dtype t)
{
    struct operand o = {.dims = {rows, cols}, .type = library_type(t)};
    o.strides[0] = transposed ? 1 : cols;
    o.strides[1] = transposed ? rows : 1;
    return o;
}

#if DNNL_VERSION_MAJOR >= 3
static dnnl_status_t describe(dnnl_primitive_desc_t *pd, const struct operand o[3],
                              dnnl_primitive_attr_t attr)
{
    dnnl_memory_desc_t md[3] = {NULL, NULL, NULL};
    dnnl_status_t s = dnnl_success;
    for (int i = 0; i < 3 && s == dnnl_success; i++)
        s = dnnl_memory_desc_create_with_strides(&md[i], 2, o[i].dims, o[i].type,
                                                 o[i].strides);
    if (s == dnnl_success)
        s = dnnl_matmul_primitive_desc_create(pd, engine, md[0], md[1], NULL, md[2],
                                              attr);
    for (int i = 0; i < 3; i++)
        if (md[i])
            dnnl_memory_desc_destroy(md[i]);
    return s;
}
static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}
#else
static dnnl_status_t describe(dnnl_primitive_desc_t *pd, const struct operand o[3],
                              dnnl_primitive_attr_t attr)
{
    dnnl_memory_desc_t md[3];
    dnnl_status_t s = dnnl_success;
    for (int i = 0; i < 3 && s == dnnl_success; i++)
        s = dnnl_memory_desc_init_by_strides(&md[i], 2, o[i].dims, o[i].type,
                                             o[i].strides);
    dnnl_matmul_desc_t desc;
    if (s == dnnl_success)
        s = dnnl_matmul_desc_init(&desc, &md[0], &md[1], NULL, &md[2]);
    if (s == dnnl_success)
        s = dnnl_primitive_desc_create(pd, &desc, attr, engine, NULL);
    return s;
}
static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}
#endif

static dnnl_status_t attributes(dnnl_primitive_attr_t *attr, bool accumulate)
{
    dnnl_status_t s = dnnl_primitive_attr_create(attr);
    if (s == dnnl_success)
        s = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (s != dnnl_success || !accumulate)
        return s;
    dnnl_post_ops_t ops = NULL;
    s = dnnl_post_ops_create(&ops);
    if (s == dnnl_success)
        s = append_sum(ops);
    if (s == dnnl_success)
        s = dnnl_primitive_attr_set_post_ops(*attr, ops);
    if (ops)
        dnnl_post_ops_destroy(ops);
    return s;
}

/* Memory objects without data, in the order of ARG_*. */
static dnnl_status_t entry_memories(struct entry *e, const_dnnl_primitive_desc_t pd)
{
    static const dnnl_query_t queries[ARG_COUNT] = {
        dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md,
        dnnl_query_scratchpad_md};
    static const int args[ARG_COUNT] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                        DNNL_ARG_SCRATCHPAD};
    dnnl_status_t s = dnnl_success;
    for (int i = 0; i < ARG_COUNT && s == dnnl_success; i++) {
        e->args[i].arg = args[i];
        s = dnnl_memory_create(&e->args[i].memory,
                               dnnl_primitive_desc_query_md(pd, queries[i], 0), engine,
                               DNNL_MEMORY_NONE);
    }
    e->scratch_bytes = dnnl_memory_desc_get_size(
        dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0));
    return s;
}

static dnnl_status_t entry_make(struct entry *e, const struct kg_cpu_product *p)
{
    struct operand o[3] = {operand(p->m, p->k, p->kind == KG_MATMUL_TN, p->in),
                           operand(p->k, p->n, p->kind == KG_MATMUL_NT, p->in),
                           operand(p->m, p->n, false, p->out)};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t s = attributes(&attr, p->accumulate);
    if (s == dnnl_success)
        s = describe(&pd, o, attr);
    if (s == dnnl_success)
        s = dnnl_primitive_create(&e->primitive, pd);
    if (s == dnnl_success)
        s = entry_memories(e, pd);
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return s;
}

static struct key key_of(const struct kg_cpu_product *p)
{
    uint32_t traits = (uint32_t)p->kind | (uint32_t)p->in << 4 | (uint32_t)p->out << 8 |
                      (uint32_t)p->accumulate << 12;
    return (struct key){p->m, p->n, p->k, traits};
}

static bool key_same(const struct key *a, const struct key *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->traits == b->traits;
}

static uint32_t key_set(const struct key *key)
{
    uint64_t h = (uint64_t)key->m * 0x9e3779b97f4a7c15u;
    h = (h ^ (uint64_t)key->n) * 0xbf58476d1ce4e5b9u;
    h = (h ^ (uint64_t)key->k) * 0x94d049bb133111ebu;
    h = (h ^ key->traits) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 40) % CACHE_SETS;
}

/* The ready primitive of this shape; on a miss the least recently used of its set makes
 * room. */
static struct entry *entry_get(struct thread_state *s, const struct kg_cpu_product *p,
                               struct kg_err *err)
{
    struct key key = key_of(p);
    struct entry *set = s->entries[key_set(&key)];
    struct entry *oldest = &set[0];
    s->tick++;
    for (int i = 0; i < CACHE_WAYS; i++) {
        if (set[i].used && key_same(&set[i].key, &key)) {
            set[i].used = s->tick;
            return &set[i];
        }
        if (set[i].used < oldest->used)
            oldest = &set[i];
    }
    entry_release(oldest);
    dnnl_status_t made = entry_make(oldest, p);
    if (made != dnnl_success) {
        entry_release(oldest);
        library_fail(err, made, p->in == KG_BF16 ? "a bf16 product" : "an fp32 product");
        return NULL;
    }
    oldest->key = key;
    oldest->used = s->tick;
    return oldest;
}

static kg_status run(struct thread_state *s, const struct kg_cpu_product *p,
                     struct kg_err *err)
{
    struct entry *e = entry_get(s, p, err);
    if (!e)
        return err->code;
    void *scratch = scratch_get(s, KG_CPU_SCRATCH_LIBRARY, e->scratch_bytes + 64, err);
    if (!scratch)
        return err->code;
    /* The library's handles are not const; it only writes c and the scratch. */
    void *data[ARG_COUNT] = {(void *)(uintptr_t)p->a, (void *)(uintptr_t)p->b, p->c,
                             scratch};
    dnnl_status_t done = dnnl_success;
    for (int i = 0; i < ARG_COUNT && done == dnnl_success; i++)
        done = dnnl_memory_set_data_handle(e->args[i].memory, data[i]);
    if (done == dnnl_success)
        done = dnnl_primitive_execute(e->primitive, s->stream, ARG_COUNT, e->args);
    if (done == dnnl_success)
        done = dnnl_stream_wait(s->stream);
    return done == dnnl_success ? KG_OK : library_fail(err, done, "running a product");
}

kg_status kg_cpu_library_product(const struct kg_cpu_product *p, struct kg_err *err)
{
    struct thread_state *s = state_get(err);
    if (!s)
        return err->code;
    /* Both making and running a primitive ask OpenMP how many threads there are. The
     * setting belongs to the calling task alone, inside a parallel region too. */
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    kg_status status = run(s, p, err);
    omp_set_num_threads(threads);
    return status;
}
