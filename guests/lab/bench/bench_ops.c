/* The operations that take most of a model's time, one by one, on a device or on the CPU:
 * products of layers, attention, the vocabulary head and the optimizer.
 *
 * Each is compared with the ceiling that bounds it (products or copies), measured in the
 * same run. Work counts what is computed: the causal half of attention, and the logits
 * again in the head's backward.
 */
#include "lab/bench/lab_bench.h"

#include "base/clock.h"
#include "base/mem.h"
#include "tensor/backend.h"

#include <math.h>
#include <stdio.h>

enum { MOST_TURNS = 1000, BUFFERS = 8 };
static const double WORK_SECONDS = 0.05; /* of one repetition */

const struct kg_bench_ops_sizes kg_bench_ops_device = {
    .rows = {64, 512, 4096, 8192},
    .head_rows = 2048,
    .vocab = 151936,
    .sequences = 4,
    .length = 2048,
    .weights = 128 << 20,
    .repeats = 3,
    .layers = 5,
    .widths = 2,
};
/* The same operations, small enough for the CPU. */
const struct kg_bench_ops_sizes kg_bench_ops_host = {
    .rows = {64, 256, 512, 1024},
    .head_rows = 256,
    .vocab = 20000,
    .sequences = 1,
    .length = 512,
    .weights = 8 << 20,
    .repeats = 3,
    .layers = 3,
    .widths = 1,
};

struct work {
    struct kg_bench_report *r;
    const struct kg_bench_ops_sizes *sizes;
    kg_status (*call)(struct work *w, struct kg_err *err);
    int64_t turns;          /* of a repetition */
    void *buffers[BUFFERS]; /* owned, the backend's */
    int n_buffers;
    struct kg_mat a, b, c; /* of products */
    struct kg_attn attn;
    struct kg_vec lse;
    struct kg_mat o, dq, dk, dv, dout;
    struct kg_head head;
    struct kg_head_out out;
    struct kg_head_grad grad;
    double *numbers; /* of the head's rows; owned, as are the next two */
    float *logp;
    int32_t *target;
    struct kg_adamw adamw;
    struct kg_vec weights, gradients;
    struct kg_mat m, v;
};

static void release(struct work *w)
{
    for (int i = 0; i < w->n_buffers; i++)
        kg_buf_free(w->r->be, w->buffers[i]);
    kg_mem_free(w->numbers);
    kg_mem_free(w->logp);
    kg_mem_free(w->target);
}

/* Numbers of either sign, about 0.01, in both dtypes. */
static kg_status fill(const struct kg_backend *be, char *to, uint64_t bytes,
                      struct kg_err *err)
{
    enum { WORDS = 1 << 20 };
    uint16_t *words = kg_mem_calloc(WORDS, sizeof *words, "operands", err);
    kg_status status = words ? KG_OK : err->code;

    for (uint32_t i = 0; words && i < WORDS; i++)
        words[i] = (uint16_t)(0x3c00u | (i * 2654435761u >> 20 & 0x81ffu));
    for (uint64_t at = 0; status == KG_OK && at < bytes; at += WORDS * sizeof *words) {
        uint64_t rest = bytes - at, piece = WORDS * sizeof *words;

        status = kg_buf_put(be, to + at, words, rest < piece ? rest : piece, err);
    }
    kg_mem_free(words);
    return status;
}

static kg_status take(void *slot, struct work *w, uint64_t bytes, struct kg_err *err)
{
    char **at = slot;

    *at = kg_buf_alloc(w->r->be, bytes, "operands", err);
    if (!*at)
        return err->code;
    w->buffers[w->n_buffers++] = *at;
    return fill(w->r->be, *at, bytes, err);
}

static kg_status matrix(struct kg_mat *m, struct work *w, enum kg_dtype dtype,
                        int64_t rows, int64_t cols, struct kg_err *err)
{
    *m = kg_mat(NULL, dtype, rows, cols);
    return take(&m->data, w, (uint64_t)(rows * cols) * kg_dtype_traits(dtype)->bytes,
                err);
}

/* A weight in the layout that products read. */
static kg_status weight(struct kg_mat *m, struct work *w, int64_t rows, int64_t cols,
                        struct kg_err *err)
{
    const struct kg_backend *be = w->r->be;

    *m = kg_weights(be, NULL, w->r->ct, rows, cols);
    return take(&m->data, w, kg_weights_bytes(be, w->r->ct, rows, cols), err);
}

/* ---- time ---- */
static kg_status run(double *seconds, void *user, struct kg_err *err)
{
    struct work *w = user;
    double start = kg_clock_seconds();

    for (int64_t i = 0; i < w->turns; i++)
        KG_TRY(w->call(w, err));
    KG_TRY(kg_bench_settle(w->r->be, w->buffers[0], err));
    *seconds = (kg_clock_seconds() - start) / (double)w->turns;
    return KG_OK;
}

static kg_status measure(struct work *w, const struct kg_bench_rate *rate,
                         enum kg_bench_ceiling ceiling, struct kg_err *err)
{
    struct kg_bench_job job = {
        .run = run, .user = w, .repeats = w->sizes->repeats, .ceiling = ceiling};
    struct kg_bench_timing t;
    double seconds;

    w->turns = 1;
    KG_TRY(run(&seconds, w, err)); /* warm-up: the backend chooses plans */
    KG_TRY(run(&seconds, w, err));
    w->turns = (int64_t)fmin(ceil(WORK_SECONDS / seconds), MOST_TURNS);
    KG_TRY(kg_bench_time(&t, w->r, &job, err));
    return kg_bench_put_rate(w->r, rate, &t, err);
}

/* ---- products ---- */
static kg_status multiply(struct work *w, struct kg_err *err)
{
    return kg_op_matmul(w->r->be, w->c, w->a, w->b, KG_MATMUL_NT, false, err);
}

static kg_status bench_product(struct work *w, int64_t rows, int64_t n, int64_t k,
                               struct kg_err *err)
{
    char name[80];
    struct kg_bench_rate rate = {
        name, 2.0 * (double)rows * (double)n * (double)k, "GFLOP/s", {0, false}};

    snprintf(name, sizeof name, "product, %lld rows, W %lld x %lld", (long long)rows,
             (long long)n, (long long)k);
    w->call = multiply;
    KG_TRY(matrix(&w->c, w, w->r->ct, rows, n, err));
    KG_TRY(matrix(&w->a, w, w->r->ct, rows, k, err));
    KG_TRY(weight(&w->b, w, n, k, err));
    return measure(w, &rate, kg_bench_compute(w->r, false), err);
}

/* ---- attention ---- */
enum { HEADS = 16, KV_HEADS = 4, HEAD_DIM = 128, WIDTH = HEADS * HEAD_DIM };

static kg_status attend(struct work *w, struct kg_err *err)
{
    return kg_op_attention(w->r->be, w->o, w->lse, &w->attn, err);
}
static kg_status attend_back(struct work *w, struct kg_err *err)
{
    return kg_op_attention_bwd(w->r->be, w->dq, w->dk, w->dv, w->dout, w->o, w->lse,
                               &w->attn, err);
}

static kg_status sequences(struct work *w, struct kg_err *err)
{
    int32_t n = w->sizes->sequences, length = w->sizes->length;
    struct kg_attn_seq *there;
    void *to;

    KG_TRY(take(&to, w, (uint64_t)n * sizeof *there, err));
    KG_TRY(kg_mem_new(&there, (size_t)n, sizeof *there, "sequences", err));
    for (int32_t i = 0; i < n; i++)
        there[i] = (struct kg_attn_seq){i * length, length, 0, i * length};
    kg_status status = kg_buf_put(w->r->be, to, there, (uint64_t)n * sizeof *there, err);
    kg_mem_free(there);
    w->attn.seqs = to;
    w->attn.n_seqs = n;
    return status;
}

static kg_status make_attention(struct work *w, bool backward, struct kg_err *err)
{
    int64_t rows = (int64_t)w->sizes->sequences * w->sizes->length;
    enum kg_dtype ct = w->r->ct;

    w->attn = (struct kg_attn){.n_heads = HEADS,
                               .n_kv_heads = KV_HEADS,
                               .head_dim = HEAD_DIM,
                               .scale = 1 / sqrtf(HEAD_DIM)};
    KG_TRY(matrix(&w->o, w, ct, rows, WIDTH, err));
    KG_TRY(matrix(&w->attn.q, w, ct, rows, WIDTH, err));
    KG_TRY(sequences(w, err));
    w->lse = kg_vec(NULL, rows * HEADS);
    KG_TRY(take(&w->lse.data, w, (uint64_t)w->lse.n * sizeof(float), err));
    KG_TRY(matrix(&w->attn.k, w, ct, rows, KV_HEADS * HEAD_DIM, err));
    w->attn.v = w->attn.k;
    if (!backward)
        return KG_OK;
    KG_TRY(attend(w, err));
    KG_TRY(matrix(&w->dq, w, KG_F32, rows, WIDTH, err));
    KG_TRY(matrix(&w->dk, w, KG_F32, 2 * rows, KV_HEADS * HEAD_DIM, err));
    w->dv = kg_mat_rows(w->dk, rows, rows);
    w->dk.rows = rows;
    return matrix(&w->dout, w, ct, rows, WIDTH, err);
}

/* Counts two products over the causal half forward, five backward. */
static kg_status bench_attention(struct work *w, bool backward, struct kg_err *err)
{
    double length = w->sizes->length;
    double product = (double)WIDTH * length * (length + 1) * w->sizes->sequences;
    char name[80];
    struct kg_bench_rate rate = {
        name, (backward ? 5 : 2) * product, "GFLOP/s", {0, false}};

    snprintf(name, sizeof name, "attention %s, head size 128, %d x %d tokens",
             backward ? "backward" : "forward", w->sizes->sequences, w->sizes->length);
    w->call = backward ? attend_back : attend;
    KG_TRY(make_attention(w, backward, err));
    /* on the CPU, attention computes in fp32 */
    return measure(w, &rate, kg_bench_compute(w->r, w->r->be->host_memory), err);
}

/* ---- head ---- */
static kg_status find_logp(struct work *w, struct kg_err *err)
{
    return kg_op_head(w->r->be, &w->out, &w->head, err);
}
static kg_status go_back(struct work *w, struct kg_err *err)
{
    return kg_op_head_bwd(w->r->be, &w->grad, &w->head, err);
}

static kg_status take_rows(struct work *w, size_t n, struct kg_err *err)
{
    w->numbers = kg_mem_calloc(2 * n, sizeof *w->numbers, "rows of a head", err);
    w->logp = kg_mem_calloc(n, sizeof *w->logp, "rows of a head", err);
    w->target = kg_mem_calloc(n, sizeof *w->target, "rows of a head", err);
    return w->numbers && w->logp && w->target ? KG_OK : KG_ENOMEM;
}

static kg_status make_head(struct work *w, int64_t d, bool backward, struct kg_err *err)
{
    int64_t n = w->sizes->head_rows, vocab = w->sizes->vocab;

    KG_TRY(take_rows(w, (size_t)n, err));
    for (int64_t i = 0; i < n; i++) {
        w->target[i] = (int32_t)(i * 7919 % vocab);
        w->numbers[n + i] = 1e-3;
    }
    KG_TRY(matrix(&w->head.hidden, w, w->r->ct, n, d, err));
    KG_TRY(weight(&w->head.weight, w, vocab, d, err));
    w->head.target = w->target;
    w->out = (struct kg_head_out){.lse = w->numbers, .logp = w->logp};
    if (!backward)
        return KG_OK;
    KG_TRY(find_logp(w, err));
    w->grad = (struct kg_head_grad){.lse = w->numbers, .a_target = w->numbers + n};
    KG_TRY(matrix(&w->grad.dhidden, w, KG_F32, n, d, err));
    return matrix(&w->grad.dweight, w, KG_F32, vocab, d, err);
}

/* The backward has three products: the logits again, and both gradients. */
static kg_status bench_head(struct work *w, int64_t d, bool backward, struct kg_err *err)
{
    double product = 2.0 * (double)w->sizes->head_rows * w->sizes->vocab * (double)d;
    char name[80];
    struct kg_bench_rate rate = {
        name, (backward ? 3 : 1) * product, "GFLOP/s", {backward ? 0.7 : 0.5, false}};

    snprintf(name, sizeof name, "head %s, V %d, D %lld, %d rows",
             backward ? "backward" : "forward", w->sizes->vocab, (long long)d,
             w->sizes->head_rows);
    w->call = backward ? go_back : find_logp;
    KG_TRY(make_head(w, d, backward, err));
    return measure(w, &rate, kg_bench_compute(w->r, false), err);
}

/* ---- optimizer ---- */
static kg_status update(struct work *w, struct kg_err *err)
{
    w->adamw.step++;
    return kg_op_adamw(w->r->be, w->weights, w->m, w->v, w->gradients, &w->adamw, err);
}

/* Weights and two moments are read and written, gradients read. */
static kg_status bench_optimizer(struct work *w, struct kg_err *err)
{
    enum { MOVED = 7 * sizeof(float) };
    int64_t n = w->sizes->weights;
    char name[80];
    struct kg_bench_rate rate = {name, (double)MOVED * (double)n, "GB/s", {0.85, false}};
    struct kg_mat weights, gradients;

    snprintf(name, sizeof name, "adamw, %lld weights", (long long)n);
    w->call = update;
    w->adamw = (struct kg_adamw){
        .lr = 1e-6f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .grad_scale = 1};
    KG_TRY(matrix(&weights, w, KG_F32, 1, n, err));
    KG_TRY(matrix(&gradients, w, KG_F32, 1, n, err));
    KG_TRY(matrix(&w->m, w, KG_F32, 1, n, err));
    KG_TRY(matrix(&w->v, w, KG_F32, 1, n, err));
    KG_TRY(kg_buf_zero(w->r->be, w->v.data, (uint64_t)n * sizeof(float), err));
    w->weights = kg_vec(weights.data, n);
    w->gradients = kg_vec(gradients.data, n);
    return measure(w, &rate, KG_BENCH_MEMORY, err);
}

/* ---- all ---- */
static const struct {
    int64_t n, k;
} layers[] = {{896, 896}, {4864, 896}, {896, 4864}, {18944, 3584}, {3584, 18944}};
static const int64_t widths[] = {896, 3584};

enum what { PRODUCT, ATTENTION, HEAD, OPTIMIZER };

static kg_status bench_one(struct kg_bench_report *r,
                           const struct kg_bench_ops_sizes *sizes, enum what what,
                           size_t i, size_t j, struct kg_err *err)
{
    struct work w = {.r = r, .sizes = sizes};
    kg_status status = KG_OK;

    if (what == PRODUCT)
        status = bench_product(&w, sizes->rows[j], layers[i].n, layers[i].k, err);
    else if (what == ATTENTION)
        status = bench_attention(&w, i > 0, err);
    else if (what == HEAD)
        status = bench_head(&w, widths[i], j > 0, err);
    else
        status = bench_optimizer(&w, err);
    release(&w);
    return status;
}

kg_status kg_bench_ops_of(struct kg_bench_report *r,
                          const struct kg_bench_ops_sizes *sizes, struct kg_err *err)
{
    const size_t counts[][2] = {
        [PRODUCT] = {sizes->layers, KG_BENCH_OPS_ROWS},
        [ATTENTION] = {2, 1},
        [HEAD] = {sizes->widths, 2},
        [OPTIMIZER] = {1, 1},
    };

    for (enum what what = PRODUCT; what <= OPTIMIZER; what++)
        for (size_t i = 0; i < counts[what][0]; i++)
            for (size_t j = 0; j < counts[what][1]; j++)
                KG_TRY(bench_one(r, sizes, what, i, j, err));
    return KG_OK;
}

kg_status kg_bench_ops(struct kg_bench_report *r, struct kg_err *err)
{
    return kg_bench_ops_of(
        r, r->be->host_memory ? &kg_bench_ops_host : &kg_bench_ops_device, err);
}
