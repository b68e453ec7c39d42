/* Token embedding and its gradient.
 *
 * The gradient adds rows to a table, and a token may occur many times. Positions are
 * sorted by id, then by position: each token counts the tokens that come before it in
 * this order. These n^2 comparisons cost little against a layer's products and need no
 * work of the host. A block then has all rows of one id in a strip of columns, and adds
 * them in token order: no atomics, and the CPU's sums.
 */
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
/* The positions of one id: places[first..first+n), ascending. n is 0 except at the
 * first. */
struct run {
    int32_t first;
    int32_t n;
};

/* A thread per token: counts smaller ids, and earlier tokens with the same id. */
static __global__ void order(struct run *runs, int32_t *places, struct kg_ivec tokens)
{
    const int64_t n = kg_cuda_flat();
    int32_t smaller = 0, earlier = 0, equal = 0;

    if (n >= tokens.n)
        return;
    for (int64_t i = 0; i < tokens.n; i++) {
        const bool same = tokens.data[i] == tokens.data[n];

        smaller += tokens.data[i] < tokens.data[n];
        earlier += same && i < n;
        equal += same;
    }
    places[smaller + earlier] = (int32_t)n;
    runs[n] = {smaller, earlier > 0 ? 0 : equal};
}

static __global__ void add_runs(struct kg_mat dtable, struct kg_mat dx,
                                struct kg_ivec tokens, const struct run *runs,
                                const int32_t *places)
{
    const struct run run = runs[blockIdx.x];
    const int64_t id = tokens.data[blockIdx.x], end = kg_cuda_end(dx.cols);

    if (run.n == 0)
        return;
    for (int64_t d = kg_cuda_first(); d < end; d += KG_ROW_THREADS) {
        float sum = kg_cuda_load(dtable, id, d);

        for (int32_t i = 0; i < run.n; i++)
            sum += kg_cuda_load(dx, places[run.first + i], d);
        kg_cuda_store(dtable, id, d, sum);
    }
}

kg_status kg_cuda_embed_bwd(struct kg_mat dtable, struct kg_mat dx, struct kg_ivec tokens,
                            struct kg_err *err)
{
    const int64_t n = tokens.n;
    struct run *runs;
    int32_t *places;

    if (dx.rows == 0 || dx.cols == 0)
        return KG_OK;
    runs = (struct run *)kg_cuda_scratch((uint64_t)n * (sizeof *runs + sizeof *places),
                                         err);
    if (!runs)
        return err->code;
    places = (int32_t *)(runs + n);
    KG_LAUNCH(order, kg_cuda_all(n), KG_FLAT_THREADS, runs, places, tokens);
    KG_LAUNCH(add_runs, kg_cuda_rows(n, dx.cols), KG_ROW_THREADS, dtable, dx, tokens,
              (const struct run *)runs, (const int32_t *)places);
    return kg_dev_done("embed_bwd", err);
}
