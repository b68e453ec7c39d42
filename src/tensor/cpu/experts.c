/* Experts: which expert gets which token, sums of their outputs, and the gradients of
 * both.
 *
 * Products use kg_cpu_matmul, once per expert on the rows gathered for it, so backend.h
 * defines each element as for any product. Everything else is computed row by row in a
 * fixed order. Only the assignment of places walks all tokens, on one thread.
 */
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/parallel_internal.h"

/* ---- routes ---- */
/* p = softmax(z), summed in order of experts. */
static void softmax(float *p, const float *z, int32_t n)
{
    float top = z[0], sum = 0;
    for (int32_t e = 1; e < n; e++)
        top = z[e] > top ? z[e] : top;
    for (int32_t e = 0; e < n; e += KG_LANES) {
        const int lanes = kg_cpu_lanes(n - e);
        const struct kg_v16 x = kg_v16_sub(kg_v16_load_n(z + e, lanes), kg_v16_set1(top));
        kg_v16_store_n(p + e, kg_v16_exp(x), lanes);
    }
    for (int32_t e = 0; e < n; e++)
        sum += p[e];
    for (int32_t e = 0; e < n; e++)
        p[e] /= sum;
}

/* The k largest, ties by smaller index; a NaN is chosen if it is the first one left. */
static void choose(int32_t *ids, const float *p, int32_t n, int32_t k)
{
    bool taken[KG_MAX_EXPERTS] = {false};
    for (int32_t i = 0; i < k; i++) {
        int32_t best = 0;
        while (taken[best])
            best++;
        for (int32_t e = best + 1; e < n; e++)
            if (!taken[e] && p[e] > p[best])
                best = e;
        taken[best] = true;
        ids[i] = best;
    }
}

/* Sum of the chosen p, in order of slots. */
static float chosen_sum(const float *p, const int32_t *ids, int32_t k)
{
    float sum = 0;
    for (int32_t i = 0; i < k; i++)
        sum += p[ids[i]];
    return sum;
}

static void route_token(const struct kg_route *r, struct kg_mat logits,
                        const int32_t *given, int64_t n)
{
    float *p = kg_cpu_f32(r->p, n), *w = kg_cpu_f32(r->weight, n);
    int32_t *ids = r->ids + n * r->k;
    softmax(p, kg_cpu_f32(logits, n), r->n_experts);
    if (given && given[n * r->k] >= 0)
        memcpy(ids, given + n * r->k, (size_t)r->k * sizeof *ids);
    else
        choose(ids, p, r->n_experts, r->k);
    const float sum = r->normalise ? chosen_sum(p, ids, r->k) : 1.0f;
    for (int32_t i = 0; i < r->k; i++)
        w[i] = p[ids[i]] / sum;
}

/* Counts each expert's places, then assigns them in order of tokens and slots. */
static void place_slots(const struct kg_route *r, int64_t slots)
{
    int32_t next[KG_MAX_EXPERTS] = {0};
    for (int64_t s = 0; s < slots; s++)
        next[r->ids[s]]++;
    r->first[0] = 0;
    for (int32_t e = 0; e < r->n_experts; e++) {
        r->first[e + 1] = r->first[e] + next[e];
        next[e] = r->first[e];
    }
    for (int64_t s = 0; s < slots; s++) {
        r->place[s] = next[r->ids[s]]++;
        r->token[r->place[s]] = (int32_t)(s / r->k);
    }
}

kg_status kg_cpu_route(const struct kg_route *r, struct kg_mat logits,
                       struct kg_ivec given, struct kg_err *err)
{
    (void)err;
    const int64_t work = logits.rows * r->n_experts * (r->k + 4);
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(work))
    for (int64_t n = 0; n < logits.rows; n++)
        route_token(r, logits, given.data, n);
    place_slots(r, logits.rows * r->k);
    return KG_OK;
}

/* With w_i = p_i / S:   dp_i = (dw_i - sum_j dw_j w_j) / S;   dz = p (dp - sum p dp) */
static void route_token_bwd(struct kg_mat dlogits, const struct kg_route *r,
                            const float *dw, const float *dp, int64_t n)
{
    const float *p = kg_cpu_f32(r->p, n), *w = kg_cpu_f32(r->weight, n);
    const int32_t *ids = r->ids + n * r->k;
    const float sum = r->normalise ? chosen_sum(p, ids, r->k) : 1.0f;
    float *dz = kg_cpu_f32(dlogits, n);
    float mean = 0, whole = 0;
    for (int32_t e = 0; e < r->n_experts; e++)
        dz[e] = dp ? dp[e] : 0.0f;
    for (int32_t i = 0; i < r->k && r->normalise; i++)
        mean += dw[i] * w[i];
    for (int32_t i = 0; i < r->k; i++)
        dz[ids[i]] += (dw[i] - mean) / sum;
    for (int32_t e = 0; e < r->n_experts; e++)
        whole += p[e] * dz[e];
    for (int32_t e = 0; e < r->n_experts; e++)
        dz[e] = p[e] * (dz[e] - whole);
}

kg_status kg_cpu_route_bwd(struct kg_mat dlogits, const struct kg_route *r,
                           struct kg_mat dweight, struct kg_vec dp, struct kg_err *err)
{
    (void)err;
    const int64_t work = dlogits.rows * r->n_experts * 4;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(work))
    for (int64_t n = 0; n < dlogits.rows; n++)
        route_token_bwd(dlogits, r, kg_cpu_f32(dweight, n), dp.data, n);
    return KG_OK;
}

/* ---- products ---- */
/* Rows [first, first+n). Not kg_mat_rows, because an expert's rows begin anywhere. */
static struct kg_mat rows_of(struct kg_mat m, int64_t first, int64_t n)
{
    m.data = (char *)m.data + first * m.stride * (int64_t)kg_dtype_traits(m.dtype)->bytes;
    m.rows = n;
    return m;
}

static struct kg_mat matrix_of(struct kg_mat m, const struct kg_groups *g, int32_t e)
{
    m.data = (char *)m.data + e * g->stride;
    return m;
}

/* Whether each thread computes whole experts; otherwise threads share each product. */
static bool beside_each_other(const struct kg_groups *g, int64_t work)
{
    int32_t busy = 0;
    for (int32_t e = 0; e < g->n; e++)
        busy += g->first[e + 1] > g->first[e];
    return kg_cpu_use_threads(work) && busy >= 2 * omp_get_max_threads();
}

kg_status kg_cpu_matmul_groups(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                               const struct kg_groups *g, enum kg_matmul_kind kind,
                               bool accumulate, struct kg_err *err)
{
    const bool tn = kind == KG_MATMUL_TN;
    kg_status status = KG_OK;
#pragma omp parallel for schedule(                                                       \
    dynamic) if (beside_each_other(g, a.rows * a.cols * c.cols / 32))
    for (int32_t e = 0; e < g->n; e++) {
        const int64_t first = g->first[e], n = g->first[e + 1] - first;
        const struct kg_mat ce = tn ? matrix_of(c, g, e) : rows_of(c, first, n);
        const struct kg_mat be = tn ? rows_of(b, first, n) : matrix_of(b, g, e);
        struct kg_err mine;
        if (kg_cpu_matmul(ce, rows_of(a, first, n), be, kind, accumulate, &mine) != KG_OK)
            kg_cpu_report(&status, err, &mine);
    }
    return status;
}

/* ---- weighted sums ---- */
static float weight_of(struct kg_mat weight, int64_t n, int64_t k)
{
    return weight.data ? kg_cpu_f32(weight, n)[k] : 1.0f;
}

static void combine_token(struct kg_mat y, struct kg_mat x, struct kg_mat weight,
                          const int32_t *place, int64_t n, bool accumulate)
{
    const int64_t slots = weight.cols;
    for (int64_t d = 0; d < y.cols; d += KG_LANES) {
        const int lanes = kg_cpu_lanes(y.cols - d);
        struct kg_v16 sum = kg_v16_zero();
        for (int64_t k = 0; k < slots; k++) {
            const int64_t row = place ? place[n * slots + k] : n * slots + k;
            sum = kg_v16_fma(kg_v16_set1(weight_of(weight, n, k)),
                             kg_cpu_load(x, row, d, lanes), sum);
        }
        if (accumulate)
            sum = kg_v16_add(kg_cpu_load(y, n, d, lanes), sum);
        kg_cpu_store(y, n, d, sum, lanes);
    }
}

kg_status kg_cpu_combine(struct kg_mat y, struct kg_mat x, struct kg_mat weight,
                         struct kg_ivec place, bool accumulate, struct kg_err *err)
{
    (void)err;
    const int64_t work = y.rows * y.cols * weight.cols;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(work))
    for (int64_t n = 0; n < y.rows; n++)
        combine_token(y, x, weight, place.data, n, accumulate);
    return KG_OK;
}

/* Multiplies dx and x of one place by its weight.   returns their previous dot product */
static float weigh_place(struct kg_mat dx, struct kg_mat x, int64_t row, float weight)
{
    const struct kg_v16 w = kg_v16_set1(weight);
    struct kg_v16 sum = kg_v16_zero();
    for (int64_t f = 0; f < x.cols; f += KG_LANES) {
        const int lanes = kg_cpu_lanes(x.cols - f);
        const struct kg_v16 d = kg_cpu_load(dx, row, f, lanes);
        const struct kg_v16 v = kg_cpu_load(x, row, f, lanes);
        sum = kg_v16_fma(d, v, sum);
        kg_cpu_store(dx, row, f, kg_v16_mul(w, d), lanes);
        kg_cpu_store(x, row, f, kg_v16_mul(w, v), lanes);
    }
    return kg_v16_sum(sum);
}

kg_status kg_cpu_combine_bwd(struct kg_mat dweight, struct kg_mat dx, struct kg_mat x,
                             struct kg_mat weight, struct kg_ivec place,
                             struct kg_err *err)
{
    (void)err;
    const int64_t slots = weight.cols;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(x.rows * x.cols))
    for (int64_t n = 0; n < weight.rows; n++)
        for (int64_t k = 0; k < slots; k++) {
            const int64_t s = n * slots + k;
            kg_cpu_f32(dweight, n)[k] = weigh_place(dx, x, place.data ? place.data[s] : s,
                                                    kg_cpu_f32(weight, n)[k]);
        }
    return KG_OK;
}

/* ---- the gate of a shared expert ---- */
kg_status kg_cpu_sigmoid(struct kg_vec y, struct kg_vec x, struct kg_err *err)
{
    (void)err;
    const struct kg_v16 one = kg_v16_set1(1.0f);
    for (int64_t i = 0; i < x.n; i += KG_LANES) {
        const int lanes = kg_cpu_lanes(x.n - i);
        const struct kg_v16 v = kg_v16_load_n(x.data + i, lanes);
        const struct kg_v16 e = kg_v16_exp(kg_v16_sub(kg_v16_zero(), v));
        kg_v16_store_n(y.data + i, kg_v16_div(one, kg_v16_add(one, e)), lanes);
    }
    return KG_OK;
}

kg_status kg_cpu_sigmoid_bwd(struct kg_vec dx, struct kg_vec dy, struct kg_vec y,
                             struct kg_err *err)
{
    (void)err;
    for (int64_t i = 0; i < y.n; i++)
        dx.data[i] = dy.data[i] * (y.data[i] * (1.0f - y.data[i]));
    return KG_OK;
}
