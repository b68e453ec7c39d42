/* Measures the parts of a step: a CPU backend whose operations add up their time and
 * work. Each operation belongs to a part, with its own ceiling: multiply-adds of
 * registers, or reads of memory. Packing inside an operation belongs to the product;
 * casts include the packing of new weights. The time of an operation on all threads,
 * minus what they computed, is waiting.
 *
 * If each thread runs operations of its own (decoding many rows), those of all threads
 * are counted, and a second of one of T threads counts as 1 / T. */
#include "bench/measure.h"

#include "base/clock.h"

#include <omp.h>
#include <time.h>

enum part {
    FORWARD,
    BACK_INPUTS,
    BACK_WEIGHTS,
    CASTS,
    ATTENTION,
    ATTENTION_BACK,
    NORMS,
    ROPE,
    ACTIVATIONS,
    EMBEDDING,
    HEAD,
    HEAD_BACK,
    OPTIMIZER,
    COPIES,
    DRAWING,
    PARTS
};

static const struct {
    const char *name;
    enum kg_bench_ceiling ceiling; /* of products: in the report's dtype */
} rows[PARTS] = {
    [FORWARD] = {"x W^T", KG_BENCH_PEAK},
    [BACK_INPUTS] = {"dy W", KG_BENCH_PEAK},
    [BACK_WEIGHTS] = {"dy^T x", KG_BENCH_PEAK},
    [CASTS] = {"casts, weights packed", KG_BENCH_MEMORY},
    [ATTENTION] = {"attention", KG_BENCH_PEAK_FP32},
    [ATTENTION_BACK] = {"attention, backward", KG_BENCH_PEAK_FP32},
    [NORMS] = {"norms", KG_BENCH_MEMORY},
    [ROPE] = {"rope", KG_BENCH_MEMORY},
    [ACTIVATIONS] = {"activations, biases", KG_BENCH_MEMORY},
    [EMBEDDING] = {"embedding", KG_BENCH_MEMORY},
    [HEAD] = {"head", KG_BENCH_PEAK},
    [HEAD_BACK] = {"head, backward", KG_BENCH_PEAK},
    [OPTIMIZER] = {"optimizer", KG_BENCH_MEMORY},
    [COPIES] = {"copies, zeros, sums", KG_BENCH_MEMORY},
    [DRAWING] = {"drawing tokens", KG_BENCH_MEMORY},
};

struct tally {
    double seconds[PARTS];
    double computed[PARTS]; /* CPU seconds, summed over threads */
    double work[PARTS];     /* FLOP, or bytes read and written */
    double whole;           /* seconds */
    double times;           /* steps that these sums cover */
    double clocks;          /* seconds spent on reading CPU time */
};

static const struct kg_backend *cpu;
static struct kg_backend timed;
static struct tally now, kept;

/* CPU time, and the wall clock before and after reading it. */
struct instant {
    double before, after;
    double computed;
};

static struct instant instant(void)
{
    struct instant i = {.before = kg_clock_seconds()};
    struct timespec t;

    clock_gettime(omp_in_parallel() ? CLOCK_THREAD_CPUTIME_ID : CLOCK_PROCESS_CPUTIME_ID,
                  &t);
    i.computed = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    i.after = kg_clock_seconds();
    return i;
}

static void tally(enum part p, struct instant since, double work)
{
    const struct instant end = instant();
    const double clocks = since.after - since.before + end.after - end.before;

#pragma omp critical(parts)
    {
        now.seconds[p] += (end.before - since.after) / omp_get_num_threads();
        now.computed[p] += end.computed - since.computed;
        now.work[p] += work;
        now.clocks += clocks / omp_get_num_threads();
    }
}

static double bytes_of(struct kg_mat m)
{
    return (double)(m.rows * m.cols) * (double)kg_dtype_traits(m.dtype)->bytes;
}

/* Body of a slot: calls the CPU's operation, and adds its time and `work` to a part. */
#define TIMED(part, work, call)                                                          \
    const struct instant since = instant();                                              \
    kg_status status = cpu->call;                                                        \
    tally(part, since, work);                                                            \
    return status

/* ---- the slots ---- */
static kg_status timed_matmul(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                              enum kg_matmul_kind kind, bool accumulate,
                              struct kg_err *err)
{
    const double depth = (double)(kind == KG_MATMUL_TN ? a.rows : a.cols);

    TIMED((enum part)(FORWARD + (int)kind), 2.0 * (double)(c.rows * c.cols) * depth,
          matmul(c, a, b, kind, accumulate, err));
}
static kg_status timed_matmul_shared(const struct kg_product *to, int n, struct kg_mat a,
                                     struct kg_err *err)
{
    double work = 0;

    for (int j = 0; j < n; j++)
        work += 2.0 * (double)(to[j].c.rows * to[j].c.cols) * (double)a.cols;
    TIMED(FORWARD, work, matmul_shared(to, n, a, err));
}
static kg_status timed_cast(struct kg_mat dst, struct kg_mat src, struct kg_err *err)
{
    TIMED(CASTS, bytes_of(dst) + bytes_of(src), cast(dst, src, err));
}
static kg_status timed_embed(struct kg_mat x, struct kg_mat table, struct kg_ivec tokens,
                             struct kg_err *err)
{
    TIMED(EMBEDDING, 2 * bytes_of(x), embed(x, table, tokens, err));
}
static kg_status timed_embed_bwd(struct kg_mat dtable, struct kg_mat dx,
                                 struct kg_ivec tokens, struct kg_err *err)
{
    TIMED(EMBEDDING, 3 * bytes_of(dx), embed_bwd(dtable, dx, tokens, err));
}
static kg_status timed_rmsnorm(struct kg_mat y, struct kg_vec inv, struct kg_mat x,
                               struct kg_vec w, float eps, struct kg_err *err)
{
    TIMED(NORMS, bytes_of(x) + bytes_of(y), rmsnorm(y, inv, x, w, eps, err));
}
static kg_status timed_rmsnorm_bwd(struct kg_mat dx, bool accumulate, struct kg_vec dw,
                                   struct kg_mat dy, struct kg_mat x, struct kg_vec w,
                                   struct kg_vec inv, struct kg_err *err)
{
    TIMED(NORMS, bytes_of(x) + bytes_of(dy) + (1 + accumulate) * bytes_of(dx),
          rmsnorm_bwd(dx, accumulate, dw, dy, x, w, inv, err));
}
static kg_status timed_rope(struct kg_mat x, const struct kg_turn *by, bool inverse,
                            struct kg_err *err)
{
    TIMED(ROPE, 2 * bytes_of(x), rope(x, by, inverse, err));
}
static kg_status timed_bias(struct kg_mat y, struct kg_vec b, struct kg_err *err)
{
    TIMED(ACTIVATIONS, 2 * bytes_of(y), bias(y, b, err));
}
static kg_status timed_bias_bwd(struct kg_vec db, struct kg_mat dy, struct kg_err *err)
{
    TIMED(ACTIVATIONS, bytes_of(dy), bias_bwd(db, dy, err));
}
static kg_status timed_swiglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up,
                              struct kg_err *err)
{
    TIMED(ACTIVATIONS, bytes_of(h) + bytes_of(gate) + bytes_of(up),
          swiglu(h, gate, up, err));
}
static kg_status timed_swiglu_bwd(struct kg_mat dgate, struct kg_mat dup,
                                  struct kg_mat dh, struct kg_mat gate, struct kg_mat up,
                                  struct kg_err *err)
{
    TIMED(ACTIVATIONS,
          bytes_of(dgate) + bytes_of(dup) + bytes_of(dh) + bytes_of(gate) + bytes_of(up),
          swiglu_bwd(dgate, dup, dh, gate, up, err));
}

/* FLOP of one of attention's products: each query with every key that it sees. */
static double product_of(const struct kg_attn *a)
{
    double pairs = 0;

    for (int32_t i = 0; i < a->n_seqs; i++) {
        const double n = a->seqs[i].n_rows;
        pairs += n * a->seqs[i].pos + n * (n + 1) / 2;
    }
    return 2.0 * a->n_heads * a->head_dim * pairs;
}
static kg_status timed_attention(struct kg_mat o, struct kg_vec lse,
                                 const struct kg_attn *a, struct kg_err *err)
{
    TIMED(ATTENTION, 2 * product_of(a), attention(o, lse, a, err));
}
static kg_status timed_attention_bwd(struct kg_mat dq, struct kg_mat dk, struct kg_mat dv,
                                     struct kg_mat dout, struct kg_mat o,
                                     struct kg_vec lse, const struct kg_attn *a,
                                     struct kg_err *err)
{
    TIMED(ATTENTION_BACK, 5 * product_of(a),
          attention_bwd(dq, dk, dv, dout, o, lse, a, err));
}

static double logits_of(const struct kg_head *h)
{
    return 2.0 * (double)h->hidden.rows * (double)h->weight.rows * (double)h->hidden.cols;
}
static kg_status timed_head(const struct kg_head_out *out, const struct kg_head *h,
                            struct kg_err *err)
{
    TIMED(HEAD, logits_of(h), head(out, h, err));
}
static kg_status timed_head_bwd(const struct kg_head_grad *g, const struct kg_head *h,
                                struct kg_err *err)
{
    TIMED(HEAD_BACK, 3 * logits_of(h), head_bwd(g, h, err));
}
static kg_status timed_adamw(struct kg_vec w, struct kg_mat m, struct kg_mat v,
                             struct kg_vec g, const struct kg_adamw *a,
                             struct kg_err *err)
{
    TIMED(OPTIMIZER, 12.0 * (double)w.n + 2 * bytes_of(m) + 2 * bytes_of(v),
          adamw(w, m, v, g, a, err));
}
static kg_status timed_sum_squares(double *out, struct kg_vec x, struct kg_vec minus,
                                   struct kg_err *err)
{
    TIMED(OPTIMIZER, 4.0 * (double)(x.n + minus.n), sum_squares(out, x, minus, err));
}
static kg_status timed_add(struct kg_vec y, struct kg_vec x, struct kg_err *err)
{
    TIMED(COPIES, 12.0 * (double)y.n, add(y, x, err));
}
static kg_status timed_scale(struct kg_vec y, float factor, struct kg_err *err)
{
    TIMED(COPIES, 8.0 * (double)y.n, scale(y, factor, err));
}
static kg_status timed_copy(void *to, const void *from, uint64_t bytes,
                            struct kg_err *err)
{
    TIMED(COPIES, 2.0 * (double)bytes, copy(to, from, bytes, err));
}
static kg_status timed_zero(void *to, uint64_t bytes, struct kg_err *err)
{
    TIMED(COPIES, (double)bytes, zero(to, bytes, err));
}
static kg_status timed_gather_rows(struct kg_mat dst, struct kg_mat src,
                                   struct kg_ivec at, struct kg_err *err)
{
    TIMED(COPIES, 2 * bytes_of(dst), gather_rows(dst, src, at, err));
}
static kg_status timed_sum_rows(struct kg_mat dst, struct kg_mat src, struct kg_ivec ends,
                                struct kg_ivec places, struct kg_err *err)
{
    TIMED(COPIES, bytes_of(dst) + 4.0 * (double)(places.n * src.cols),
          sum_rows(dst, src, ends, places, err));
}
static kg_status timed_scatter_rows(struct kg_mat pool, struct kg_ivec at,
                                    struct kg_mat src, struct kg_err *err)
{
    TIMED(COPIES, 2 * bytes_of(src), scatter_rows(pool, at, src, err));
}

const struct kg_backend *kg_bench_timed(const struct kg_backend *be)
{
    cpu = be;
    timed = *be;
    timed.matmul = timed_matmul;
    timed.matmul_shared = timed_matmul_shared;
    timed.cast = timed_cast;
    timed.embed = timed_embed;
    timed.embed_bwd = timed_embed_bwd;
    timed.rmsnorm = timed_rmsnorm;
    timed.rmsnorm_bwd = timed_rmsnorm_bwd;
    timed.rope = timed_rope;
    timed.bias = timed_bias;
    timed.bias_bwd = timed_bias_bwd;
    timed.swiglu = timed_swiglu;
    timed.swiglu_bwd = timed_swiglu_bwd;
    timed.attention = timed_attention;
    timed.attention_bwd = timed_attention_bwd;
    timed.head = timed_head;
    timed.head_bwd = timed_head_bwd;
    timed.adamw = timed_adamw;
    timed.sum_squares = timed_sum_squares;
    timed.add = timed_add;
    timed.scale = timed_scale;
    timed.copy = timed_copy;
    timed.zero = timed_zero;
    timed.gather_rows = timed_gather_rows;
    timed.sum_rows = timed_sum_rows;
    timed.scatter_rows = timed_scatter_rows;
    return &timed;
}

/* ---- the report ---- */
void kg_bench_parts_begin(void) { now = (struct tally){.times = 1}; }

void kg_bench_parts_draw(double seconds, double tokens, double vocab, double steps)
{
    now.seconds[DRAWING] = seconds;
    now.computed[DRAWING] = seconds * kg_threads_get();
    now.work[DRAWING] = tokens * vocab * sizeof(float);
    now.times = steps;
}

static kg_status put_part(struct kg_bench_report *r, enum part p, double ceiling,
                          struct kg_err *err)
{
    const double seconds = kept.seconds[p], rate = kept.work[p] / seconds;
    const double step = seconds / kept.times;
    const double threads = kg_threads_get() * seconds;
    const double waiting = threads > kept.computed[p] ? 1 - kept.computed[p] / threads
                                                      : 0;
    const char *unit = rows[p].ceiling == KG_BENCH_MEMORY ? "GB/s" : "GFLOP/s";

    if (r->json)
        return kg_str_printf(r->out, err,
                             "{\"name\": \"%s\", \"seconds\": %.4g, \"share_of_step\": "
                             "%.4g, \"best\": %.4g, \"unit\": \"%s\", \"ceiling\": %.4g, "
                             "\"share_of_ceiling\": %.4g, \"waiting\": %.4g}\n",
                             rows[p].name, step, seconds / kept.whole, rate, unit,
                             ceiling, rate / ceiling, waiting);
    return kg_str_printf(r->out, err,
                         "  %-24s %9.3f ms %5.1f %%  %8.1f %-8s ceiling %.1f: %.1f %%; "
                         "threads wait %.1f %%\n",
                         rows[p].name, 1e3 * step, 100 * seconds / kept.whole, rate / 1e9,
                         unit, ceiling / 1e9, 100 * rate / ceiling, 100 * waiting);
}

static kg_status put_parts(struct kg_bench_report *r, const char *name,
                           struct kg_err *err)
{
    struct kg_bench_share share = {.name = name,
                                   .whole = kept.whole / kept.times,
                                   .unit = "s",
                                   .of = "the step is in its parts",
                                   .bar = {0.97, false}};
    double ceilings[KG_BENCH_MEMORY + 1] = {0};

    for (int kind = KG_BENCH_PEAK; kind <= KG_BENCH_MEMORY; kind++)
        for (int i = 0; i < 3; i++)
            KG_TRY(kg_bench_raise(&ceilings[kind], r, (enum kg_bench_ceiling)kind, err));
    for (int p = 0; p < PARTS; p++)
        share.part += kept.seconds[p] / kept.times;
    KG_TRY(kg_bench_put_share(r, &share, err));
    for (int p = 0; p < PARTS; p++)
        if (kept.seconds[p] > 0)
            KG_TRY(put_part(r, (enum part)p, ceilings[rows[p].ceiling], err));
    return KG_OK;
}

/* The best of three runs, after one that allocates pages, less what clocks took. */
kg_status kg_bench_best_parts(struct kg_bench_report *r, const char *name,
                              kg_bench_work_fn run, void *user, struct kg_err *err)
{
    double seconds;

    kept = (struct tally){.whole = 0};
    for (int i = 0; i < 4; i++) {
        kg_bench_parts_begin();
        KG_TRY(run(&seconds, user, err));
        if (i == 0 || (kept.whole > 0 && seconds * now.times >= kept.whole))
            continue;
        kept = now;
        kept.whole = seconds * now.times;
    }
    kept.whole -= kept.clocks;
    return put_parts(r, name, err);
}
