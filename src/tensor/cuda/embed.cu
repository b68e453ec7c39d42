/* Token embedding and its gradient.
 *
 * The gradient adds rows to a table, and a token may occur many times. The host sorts the
 * places of the tokens by id, which keeps their order; a block then has all that one id
 * is given in a strip of columns, and adds it in token order: no atomics, and the CPU's
 * sums.
 */
extern "C" {
#include "base/mem.h"
}
#include "tensor/cuda/cuda_internal.h"

static __global__ void embed(struct kg_mat x, struct kg_mat table, struct kg_ivec tokens)
{
    const int64_t n = blockIdx.x, row = tokens.data[n], end = kg_cuda_end(x.cols);

    for (int64_t d = kg_cuda_first(); d < end; d += KG_ROW_THREADS)
        kg_cuda_store(x, n, d, kg_cuda_load(table, row, d));
}

kg_status kg_cuda_embed(struct kg_mat x, struct kg_mat table, struct kg_ivec tokens,
                        struct kg_err *err)
{
    if (x.rows > 0 && x.cols > 0)
        KG_LAUNCH(embed, kg_cuda_rows(x.rows, x.cols), KG_ROW_THREADS, x, table, tokens);
    return kg_dev_done("embed", err);
}

/* ---- gradient ---- */
/* The places of one id: places[first..first+n) in token order. */
struct run {
    int32_t id;
    int32_t first;
    int32_t n;
};

static __global__ void add_runs(struct kg_mat dtable, struct kg_mat dx,
                                const struct run *runs, const int32_t *places)
{
    const struct run run = runs[blockIdx.x];
    const int64_t end = kg_cuda_end(dx.cols);

    for (int64_t d = kg_cuda_first(); d < end; d += KG_ROW_THREADS) {
        float sum = kg_cuda_load(dtable, run.id, d);

        for (int32_t i = 0; i < run.n; i++)
            sum += kg_cuda_load(dx, places[run.first + i], d);
        kg_cuda_store(dtable, run.id, d, sum);
    }
}

/* ends[id] <- behind the places of id, then places in order.   returns runs */
static int64_t sort_places(struct run *runs, int32_t *places, int32_t *ends,
                           const int32_t *ids, int64_t n, int64_t n_ids)
{
    int64_t n_runs = 0;
    int32_t sum = 0;

    for (int64_t i = 0; i < n; i++)
        ends[ids[i]]++;
    for (int64_t id = 0; id < n_ids; id++) {
        if (ends[id] > 0)
            runs[n_runs++] = {(int32_t)id, sum, ends[id]};
        sum += ends[id];
        ends[id] = sum;
    }
    for (int64_t i = n - 1; i >= 0; i--)
        places[--ends[ids[i]]] = (int32_t)i;
    return n_runs;
}

/* host: runs and places of n tokens, then their ids, then n_ids ends */
static kg_status add_sorted(struct kg_mat dtable, struct kg_mat dx, struct kg_ivec tokens,
                            void *host, struct kg_err *err)
{
    const int64_t n = tokens.n;
    const uint64_t bytes = (uint64_t)n * (sizeof(struct run) + sizeof(int32_t));
    struct run *runs = (struct run *)host;
    int32_t *places = (int32_t *)(runs + n), *ids = places + n;
    void *there = kg_cuda_scratch(bytes, err);
    int64_t n_runs;

    if (!there)
        return err->code;
    kg_dev_get(ids, tokens.data, (uint64_t)n * sizeof *ids);
    KG_TRY(kg_dev_done("embed_bwd", err));
    n_runs = sort_places(runs, places, ids + n, ids, n, dtable.rows);
    kg_dev_put(there, host, bytes);
    KG_LAUNCH(add_runs, kg_cuda_rows(n_runs, dx.cols), KG_ROW_THREADS, dtable, dx,
              (const struct run *)there, (const int32_t *)((struct run *)there + n));
    return kg_dev_done("embed_bwd", err);
}

kg_status kg_cuda_embed_bwd(struct kg_mat dtable, struct kg_mat dx, struct kg_ivec tokens,
                            struct kg_err *err)
{
    const size_t each = sizeof(struct run) + 2 * sizeof(int32_t);
    void *host;
    kg_status status;

    if (dx.rows == 0 || dx.cols == 0)
        return KG_OK;
    host = kg_mem_calloc((size_t)tokens.n * each + (size_t)dtable.rows * sizeof(int32_t),
                         1, "order of tokens", err);
    if (!host)
        return err->code;
    status = add_sorted(dtable, dx, tokens, host, err);
    kg_mem_free(host);
    return status;
}
