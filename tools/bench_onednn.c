/* kedge bench products beside oneDNN's, measured in turns in one process. A yardstick for
 * development: kedge neither links nor needs the library. `make bench-onednn` builds it
 * where the headers are (Debian: libdnnl-dev).
 *
 *   build/release/bench-onednn [bf16|fp32]
 */
#include "base/clock.h"
#include "bench/measure.h"
#include "tensor/backend.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dnnl_engine_t engine;
static dnnl_stream_t stream;

/* Shows what was asked when the library refuses, and ends: a tool has no caller. */
static void must(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return;
    fprintf(stderr, "bench-onednn: %s: expected success, found status %d\n", what,
            (int)status);
    exit(1);
}
#define MUST(call) must(call, #call)

/* A memory of its own of small numbers in the layout of `md`. */
static dnnl_memory_t memory_of(const dnnl_memory_desc_t *md)
{
    dnnl_memory_t m;
    void *data;

    MUST(dnnl_memory_create(&m, md, engine, DNNL_MEMORY_ALLOCATE));
    MUST(dnnl_memory_get_data_handle(m, &data));
    memset(data, 0x3c, dnnl_memory_desc_get_size(md)); /* 0.0115 in bf16 and fp32 */
    return m;
}

static dnnl_memory_desc_t desc(int64_t rows, int64_t cols, enum kg_dtype t,
                               dnnl_format_tag_t tag)
{
    const dnnl_dims_t dims = {rows, cols};
    dnnl_memory_desc_t md;

    MUST(dnnl_memory_desc_init_by_tag(&md, 2, dims, t == KG_BF16 ? dnnl_bf16 : dnnl_f32,
                                      tag));
    return md;
}

/* src (M,K) x weights (K,N) -> dst, as kg_matmul_kind names them; weights in the layout
 * that the library likes best, but for dW, whose operands are made anew each time. */
struct call {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[3];
};

static void make(struct call *c, const struct kg_bench_product *p)
{
    const bool down = p->kind == KG_MATMUL_TN, nt = p->kind == KG_MATMUL_NT;
    const int64_t m = down ? p->n : p->rows, k = down ? p->rows : nt ? p->k : p->n;
    const int64_t n = nt ? p->n : p->k;
    const dnnl_memory_desc_t src = desc(m, k, p->dtype, down ? dnnl_ba : dnnl_ab);
    const dnnl_memory_desc_t weights = desc(k, n, p->dtype,
                                            down ? dnnl_ab : dnnl_format_tag_any);
    const dnnl_memory_desc_t dst = desc(m, n, down ? KG_F32 : p->dtype, dnnl_ab);
    dnnl_matmul_desc_t d;
    dnnl_primitive_desc_t pd;

    MUST(dnnl_matmul_desc_init(&d, &src, &weights, NULL, &dst));
    MUST(dnnl_primitive_desc_create(&pd, &d, NULL, engine, NULL));
    MUST(dnnl_primitive_create(&c->primitive, pd));
    c->args[0] = (dnnl_exec_arg_t){
        DNNL_ARG_SRC, memory_of(dnnl_primitive_desc_query_md(pd, dnnl_query_src_md, 0))};
    c->args[1] = (dnnl_exec_arg_t){
        DNNL_ARG_WEIGHTS,
        memory_of(dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0))};
    c->args[2] = (dnnl_exec_arg_t){
        DNNL_ARG_DST, memory_of(dnnl_primitive_desc_query_md(pd, dnnl_query_dst_md, 0))};
    dnnl_primitive_desc_destroy(pd);
}

static void release(struct call *c)
{
    for (int i = 0; i < 3; i++)
        dnnl_memory_destroy(c->args[i].memory);
    dnnl_primitive_destroy(c->primitive);
}

static void once(const struct call *c)
{
    MUST(dnnl_primitive_execute(c->primitive, stream, 3, c->args));
    MUST(dnnl_stream_wait(stream));
}

/* Few rows walk over copies of the weights that no cache holds, as ours do. */
static kg_status run(double *seconds, const struct kg_bench_product *p,
                     struct kg_err *err)
{
    const int64_t bytes = p->n * p->k * (int64_t)kg_dtype_traits(p->dtype)->bytes;
    const int copies = p->rows <= KG_BENCH_FEW_ROWS ? (int)(KG_BENCH_FROM_MEMORY / bytes)
                                                    : 1;
    struct call *calls = calloc((size_t)copies, sizeof *calls);
    int turns = 0;
    double start;

    if (!calls)
        return kg_fail(err, KG_ENOMEM, "bench-onednn: no memory for %d copies", copies);
    for (int i = 0; i < copies; i++)
        make(&calls[i], p);
    for (int i = 0; i < copies; i++)
        once(&calls[i]); /* warm */
    start = kg_clock_seconds();
    do {
        once(&calls[turns++ % copies]);
    } while (kg_clock_seconds() - start < 0.05);
    *seconds = (kg_clock_seconds() - start) / turns;
    for (int i = 0; i < copies; i++)
        release(&calls[i]);
    free(calls);
    return KG_OK;
}

int main(int argc, char **argv)
{
    const struct kg_bench_rival rival = {.name = "    oneDNN", .run = run};
    struct kg_str out = {0};
    struct kg_bench_report report = {.out = &out, .ct = KG_BF16};
    struct kg_err err;
    kg_status status;

    MUST(dnnl_engine_create(&engine, dnnl_cpu, 0));
    MUST(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    status = argc > 1 ? kg_dtype_parse(&report.ct, argv[1], &err) : KG_OK;
    if (status == KG_OK)
        status = kg_backend_open(&report.be, "cpu", &err);
    if (status == KG_OK)
        status = kg_bench_products_beside(&report, &rival, &err);
    if (status == KG_OK)
        printf("oneDNN %d.%d.%d\n%s", dnnl_version()->major, dnnl_version()->minor,
               dnnl_version()->patch, kg_str_text(&out));
    else
        fprintf(stderr, "bench-onednn: %s\n", err.message);
    kg_str_release(&out);
    return status == KG_OK ? 0 : 1;
}
