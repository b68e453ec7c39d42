/* The benchmarks and the report that relates them to the ceilings measured beside
 * them. */
#include "train/bench.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "model/optim.h"
#include "rollout/rollout.h"
#include "train/pass.h"

#include <stdlib.h>
#include <string.h>

enum { REPEATS = 5 };

struct kg_bench_report {
    struct kg_str *out;
    bool json;
    double gemm_bf16; /* FLOP/s; measured at first need */
    double gemm_fp32;
    double bandwidth; /* bytes/s, reading */
};

/* ---- timing ---- */

struct timing {
    double best;
    double median;
};

typedef kg_status (*work_fn)(void *user, struct kg_err *err);

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static kg_status time_it(struct timing *t, int repeats, work_fn work, void *user,
                         struct kg_err *err)
{
    double seconds[REPEATS];

    KG_TRY(work(user, err)); /* warm */
    for (int i = 0; i < repeats; i++) {
        double start = kg_clock_seconds();

        KG_TRY(work(user, err));
        seconds[i] = kg_clock_seconds() - start;
    }
    qsort(seconds, (size_t)repeats, sizeof *seconds, by_value);
    t->best = seconds[0];
    t->median = seconds[repeats / 2];
    return KG_OK;
}

/* value per second at the best and the median time, and the share of the ceiling */
static kg_status emit(struct kg_bench_report *r, const char *name, struct timing t,
                      double work, const char *unit, double ceiling, struct kg_err *err)
{
    double best = work / t.best, median = work / t.median;

    if (r->json)
        return kg_str_printf(r->out, err,
                             "{\"name\": \"%s\", \"best\": %.4g, \"median\": %.4g, "
                             "\"unit\": \"%s\", \"share_of_ceiling\": "
                             "%.4g, \"seconds\": %.4g}\n",
                             name, best, median, unit, ceiling > 0 ? best / ceiling : 0.0,
                             t.best);
    KG_TRY(kg_str_printf(r->out, err, "%-44s %10.1f %-8s (median %.1f)", name, best / 1e9,
                         unit, median / 1e9));
    if (ceiling > 0)
        KG_TRY(kg_str_printf(r->out, err, "  %5.1f %% of the ceiling",
                             100 * best / ceiling));
    return kg_str_putc(r->out, '\n', err);
}

static kg_status emit_bytes(struct kg_bench_report *r, const char *name, double bytes,
                            struct kg_err *err)
{
    if (r->json)
        return kg_str_printf(r->out, err, "{\"name\": \"%s\", \"bytes\": %.0f}\n", name,
                             bytes);
    return kg_str_printf(r->out, err, "%-44s %10.1f MiB\n", name, bytes / (1 << 20));
}

/* ---- ceilings ---- */

struct gemm {
    struct kg_mat a, b, c;
};

static kg_status run_gemm(void *user, struct kg_err *err)
{
    const struct gemm *g = user;

    return kg_op_matmul(kg_backend_cpu(), g->c, g->a, g->b, KG_MATMUL_NT, false, err);
}

/* n x n x n, best of `repeats` */
static kg_status time_gemm(struct timing *t, enum kg_dtype dtype, int64_t n, int repeats,
                           struct kg_err *err)
{
    size_t bytes = kg_dtype_traits(dtype)->bytes;
    unsigned char *slab = kg_mem_calloc((size_t)(n * n), 2 * bytes + 4, "GEMM ceiling",
                                        err);
    struct gemm g;
    kg_status status;

    if (!slab)
        return err->code;
    g.a = kg_mat(slab, dtype, n, n);
    g.b = kg_mat(slab + (size_t)(n * n) * bytes, dtype, n, n);
    g.c = kg_mat(slab + (size_t)(n * n) * 2 * bytes, KG_F32, n, n);
    status = time_it(t, repeats, run_gemm, &g, err);
    kg_mem_free(slab);
    return status;
}

static kg_status gemm_ceiling(double *flops, struct timing *t, enum kg_dtype dtype,
                              struct kg_err *err)
{
    const double n = 2048;

    KG_TRY(time_gemm(t, dtype, (int64_t)n, REPEATS, err));
    *flops = 2 * n * n * n / t->best;
    return KG_OK;
}

kg_status kg_bench_gemm_flops(double *flops, enum kg_dtype dtype, struct kg_err *err)
{
    const double n = 1024;
    struct timing t;

    KG_TRY(time_gemm(&t, dtype, (int64_t)n, 3, err));
    *flops = 2 * n * n * n / t.best;
    return KG_OK;
}

struct stream {
    const uint64_t *x;
    int64_t n;
    uint64_t sum; /* kept so that the reads are not dropped */
};

enum { STREAM_BLOCK = 1 << 15 };

/* Plain reads, eight sums at a time: bound by memory, not by arithmetic. */
static uint64_t read_block(const uint64_t *x)
{
    uint64_t s[8] = {0};

    for (int i = 0; i < STREAM_BLOCK; i += 8)
        for (int j = 0; j < 8; j++)
            s[j] += x[i + j];
    return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

static kg_status run_stream(void *user, struct kg_err *err)
{
    struct stream *s = user;
    uint64_t sum = 0;

    (void)err;
#pragma omp parallel for schedule(static) reduction(+ : sum)
    for (int64_t block = 0; block < s->n / STREAM_BLOCK; block++)
        sum += read_block(s->x + block * STREAM_BLOCK);
    s->sum += sum;
    return KG_OK;
}

static kg_status bandwidth_ceiling(double *bytes_per_second, struct timing *t,
                                   struct kg_err *err)
{
    struct stream s = {.n = 64 << 20};
    uint64_t *x = kg_mem_calloc((size_t)s.n, sizeof *x, "bandwidth ceiling", err);
    kg_status status;

    if (!x)
        return err->code;
    for (int64_t i = 0; i < s.n; i += 512)
        x[i] = 1; /* pages of their own */
    s.x = x;
    status = time_it(t, REPEATS, run_stream, &s, err);
    *bytes_per_second = status == KG_OK ? (double)s.n * sizeof *x / t->best : 0;
    kg_mem_free(x);
    return status;
}

/* Measured once a report; a machine without bf16 products has fp32's ceiling. */
static kg_status need_ceilings(struct kg_bench_report *r, struct kg_err *err)
{
    struct timing t;

    if (r->bandwidth > 0)
        return KG_OK;
    KG_TRY(gemm_ceiling(&r->gemm_fp32, &t, KG_F32, err));
    KG_TRY(emit(r, "ceiling: GEMM fp32", t, r->gemm_fp32 * t.best, "GFLOP/s", 0, err));
    r->gemm_bf16 = r->gemm_fp32;
    if (kg_backend_best_dtype(kg_backend_cpu()) == KG_BF16) {
        KG_TRY(gemm_ceiling(&r->gemm_bf16, &t, KG_BF16, err));
        KG_TRY(
            emit(r, "ceiling: GEMM bf16", t, r->gemm_bf16 * t.best, "GFLOP/s", 0, err));
    }
    KG_TRY(bandwidth_ceiling(&r->bandwidth, &t, err));
    return emit(r, "ceiling: memory read", t, r->bandwidth * t.best, "GB/s", 0, err);
}

static kg_status bench_ceilings(struct kg_bench_report *r, struct kg_err *err)
{
    return need_ceilings(r, err);
}

/* ---- models of a given shape ---- */

struct shape {
    const char *name;
    int32_t hidden, ffn, layers, heads, kv_heads, vocab;
};
static const struct shape shape_small = {"D=512 L=8", 512, 1408, 8, 8, 4, 4096};
static const struct shape shape_half_b = {"0.5B shape", 896, 4864, 24, 14, 2, 151936};

static kg_status make_model(struct kg_model **m, const struct shape *s,
                            struct kg_err *err)
{
    struct kg_model_opts opts = {.backend = kg_backend_cpu(),
                                 .ct = kg_backend_best_dtype(kg_backend_cpu()),
                                 .trainable = true};
    struct kg_model_config c = {.vocab = s->vocab,
                                .hidden = s->hidden,
                                .ffn = s->ffn,
                                .layers = s->layers,
                                .heads = s->heads,
                                .kv_heads = s->kv_heads,
                                .head_dim = s->hidden / s->heads,
                                .max_positions = 32768,
                                .norm_eps = 1e-6f,
                                .rope_theta = 1e6,
                                .tied = true,
                                .qkv_bias = true,
                                .init_range = 0.02f,
                                .bos = -1,
                                .dtype_name = ""};

    KG_TRY(kg_arch_find(&c.arch, "qwen2", err));
    return kg_model_create(m, &c, &opts, 1, err);
}

/* Parameters that products read: what a token costs, times two. */
static double product_parameters(const struct kg_model *m)
{
    double n = 0;

    for (size_t i = 0; i < m->n_params; i++)
        n += m->params[i].is_product ? (double)(m->params[i].rows * m->params[i].cols)
                                     : 0;
    return n; /* a tied head is the embedding: counted once, as it is one product */
}

/* ---- training ---- */

struct training {
    struct kg_model *model;
    struct kg_optim *optim;
    struct kg_pass *pass;
    int n_seqs;
    int seq_len;
};

static kg_status run_training(void *user, struct kg_err *err)
{
    struct training *t = user;
    struct kg_rng_key key = {1, KG_RNG_TEST};
    int32_t tokens[2048];
    double norm, lr;

    kg_optim_zero_grads(t->optim);
    kg_pass_begin(t->pass, 0);
    for (int s = 0; s < t->n_seqs; s++) {
        int64_t row;

        for (int i = 0; i < t->seq_len; i++)
            tokens[i] = (int32_t)kg_rng_below(key, (uint64_t)s, (uint32_t)i, 0,
                                              (uint64_t)t->model->config.vocab);
        row = kg_pass_add(t->pass, tokens, (size_t)t->seq_len);
        for (int i = 1; i < t->seq_len; i++)
            kg_pass_want(t->pass, row + i - 1, tokens[i], 1.0f, NULL);
    }
    KG_TRY(kg_pass_forward(t->pass, NULL, err));
    for (int64_t i = 0; i < t->pass->n_rows; i++)
        t->pass->a_logp[i] = -1.0f / (float)t->pass->n_rows;
    KG_TRY(kg_pass_backward(t->pass, t->optim->grads, false, err));
    return kg_optim_update(t->optim, t->model, &norm, &lr, err);
}

static double training_flops(const struct training *t)
{
    const struct kg_model_config *c = &t->model->config;
    double tokens = (double)t->n_seqs * t->seq_len;
    double attention = 6.0 * t->n_seqs * (double)t->seq_len * t->seq_len * c->heads *
                       c->head_dim * c->layers;

    return 6.0 * product_parameters(t->model) * tokens + attention;
}

static kg_status train_shape(struct kg_bench_report *r, const struct shape *s, int n_seqs,
                             int seq_len, struct kg_err *err)
{
    struct training t = {.n_seqs = n_seqs, .seq_len = seq_len};
    struct kg_optim_opts opts = {
        .lr = 1e-5, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .clip_norm = 1};
    struct kg_pass_opts pass = {.max_tokens = (int64_t)n_seqs * seq_len};
    struct timing timing;
    char name[80];
    kg_status status;

    KG_TRY_GOTO(out, make_model(&t.model, s, err));
    KG_TRY_GOTO(out, kg_optim_create(&t.optim, t.model, &opts, err));
    KG_TRY_GOTO(out, kg_pass_create(&t.pass, t.model, &pass, err));
    KG_TRY_GOTO(out, time_it(&timing, 3, run_training, &t, err));
    snprintf(name, sizeof name, "train %s, %d x %d tokens", s->name, n_seqs, seq_len);
    status = emit(r, name, timing, training_flops(&t), "GFLOP/s", r->gemm_bf16, err);
out:
    kg_pass_free(t.pass);
    kg_optim_free(t.optim);
    kg_model_free(t.model);
    return status;
}

static kg_status bench_train(struct kg_bench_report *r, struct kg_err *err)
{
    KG_TRY(need_ceilings(r, err));
    KG_TRY(train_shape(r, &shape_small, 8, 256, err));
    KG_TRY(train_shape(r, &shape_half_b, 8, 256, err));
    return train_shape(r, &shape_half_b, 1, 2048, err);
}

/* ---- decoding ---- */

struct decoding {
    struct kg_rollout *engine;
    const int32_t *prompt;
    int batch;
    int tokens;
    double best_seconds; /* a decode step, from the engine's own clock */
};

static kg_status run_decoding(void *user, struct kg_err *err)
{
    struct decoding *d = user;
    struct kg_sampling s = {.temperature = 1,
                            .top_p = 1,
                            .max_tokens = d->tokens,
                            .ignore_eos = true,
                            .rng = {1, KG_RNG_TEST}};
    struct kg_request request = {
        .prompt = d->prompt, .prompt_n = 8, .n_samples = d->batch};
    struct kg_traj *trajs = kg_mem_calloc((size_t)d->batch, sizeof *trajs,
                                          "decoded sequences", err);
    const struct kg_rollout_stats *stats = kg_rollout_stats(d->engine);
    kg_status status;

    if (!trajs)
        return err->code;
    status = kg_rollout_run(d->engine, trajs, &request, 1, &s, NULL, NULL, err);
    if (stats->decode_steps > 0 &&
        (d->best_seconds == 0 ||
         stats->decode_seconds / (double)stats->decode_steps < d->best_seconds))
        d->best_seconds = stats->decode_seconds / (double)stats->decode_steps;
    for (int i = 0; i < d->batch; i++)
        kg_traj_release(&trajs[i]);
    kg_mem_free(trajs);
    return status;
}

static kg_status decode_batch(struct kg_bench_report *r, const struct kg_model *m,
                              int batch, struct kg_err *err)
{
    static const int32_t prompt[8] = {11, 12, 13, 14, 15, 16, 17, 18};
    struct kg_rollout_opts opts = {.max_batch = batch, .max_len = 128};
    struct decoding d = {
        .prompt = prompt, .batch = batch, .tokens = batch == 1 ? 24 : 12};
    double n = product_parameters(m);
    struct timing whole, step;
    char name[80];
    kg_status status;

    KG_TRY(kg_rollout_create(&d.engine, m, NULL, &opts, err));
    status = time_it(&whole, 3, run_decoding, &d, err);
    kg_rollout_free(d.engine);
    KG_TRY(status);
    step = (struct timing){d.best_seconds, whole.median / (d.tokens + 1)};
    snprintf(name, sizeof name, "decode 0.5B shape, batch %d", batch);
    if (batch == 1)
        return emit(r, name, step, n * (double)kg_dtype_traits(m->ct)->bytes, "GB/s",
                    r->bandwidth, err);
    return emit(r, name, step, 2 * n * batch, "GFLOP/s", r->gemm_bf16, err);
}

static kg_status bench_decode(struct kg_bench_report *r, struct kg_err *err)
{
    struct kg_model *m;
    kg_status status;

    KG_TRY(need_ceilings(r, err));
    KG_TRY(make_model(&m, &shape_half_b, err));
    status = decode_batch(r, m, 1, err);
    if (status == KG_OK)
        status = decode_batch(r, m, 64, err);
    kg_model_free(m);
    return status;
}

/* ---- the vocabulary head ---- */

enum { HEAD_ROWS = 4096, HEAD_D = 896, HEAD_V = 151936, HEAD_K = 32 };

struct head_bench {
    struct kg_head head;
    struct kg_head_out out;
    struct kg_head_grad grad;
};

static kg_status run_head(void *user, struct kg_err *err)
{
    struct head_bench *b = user;

    KG_TRY(kg_op_head(kg_backend_cpu(), &b->out, &b->head, err));
    return kg_op_head_bwd(kg_backend_cpu(), &b->grad, &b->head, err);
}

struct head_arrays {
    uint16_t hidden[HEAD_ROWS * HEAD_D];
    uint16_t weight[(size_t)HEAD_V * HEAD_D];
    float dhidden[HEAD_ROWS * HEAD_D];
    float dweight[(size_t)HEAD_V * HEAD_D];
    int32_t target[HEAD_ROWS];
    int32_t ids[HEAD_ROWS * HEAD_K];
    double lse[HEAD_ROWS];
    float logp[HEAD_ROWS];
    float logp_at[HEAD_ROWS * HEAD_K];
    float a_target[HEAD_ROWS];
    float a_at[HEAD_ROWS * HEAD_K];
};

static void fill_head(struct head_arrays *x)
{
    struct kg_rng_key key = {3, KG_RNG_TEST};

    for (size_t i = 0; i < (size_t)HEAD_V * HEAD_D; i++)
        x->weight[i] = (uint16_t)(0x3c00 | ((i * 2654435761u) & 0x80ff));
    for (size_t i = 0; i < HEAD_ROWS * HEAD_D; i++)
        x->hidden[i] = (uint16_t)(0x3e00 | ((i * 2246822519u) & 0x80ff));
    for (int n = 0; n < HEAD_ROWS; n++) {
        x->target[n] = (int32_t)kg_rng_below(key, (uint64_t)n, 0, 0, HEAD_V);
        x->a_target[n] = 1e-3f;
        for (int k = 0; k < HEAD_K; k++) {
            x->ids[n * HEAD_K + k] = (int32_t)((x->target[n] + 1 + k * 4747) % HEAD_V);
            x->a_at[n * HEAD_K + k] = 1e-4f;
        }
    }
}

static kg_status bench_head(struct kg_bench_report *r, struct kg_err *err)
{
    struct head_arrays *x;
    struct head_bench b;
    struct timing t;
    uint64_t before;
    kg_status status;

    KG_TRY(need_ceilings(r, err));
    if (kg_backend_best_dtype(kg_backend_cpu()) != KG_BF16)
        return kg_str_puts(r->out, "head: not run, this machine has no bf16 products\n",
                           err);
    x = kg_mem_calloc(1, sizeof *x, "head benchmark", err);
    if (!x)
        return err->code;
    fill_head(x);
    b.head = (struct kg_head){.hidden = kg_mat(x->hidden, KG_BF16, HEAD_ROWS, HEAD_D),
                              .weight = kg_mat(x->weight, KG_BF16, HEAD_V, HEAD_D),
                              .target = x->target,
                              .indices = x->ids,
                              .k = HEAD_K};
    b.out = (struct kg_head_out){.lse = x->lse, .logp = x->logp, .logp_at = x->logp_at};
    b.grad = (struct kg_head_grad){
        .lse = x->lse,
        .a_target = x->a_target,
        .a_indices = x->a_at,
        .dhidden = kg_mat(x->dhidden, KG_F32, HEAD_ROWS, HEAD_D),
        .dweight = kg_mat(x->dweight, KG_F32, HEAD_V, HEAD_D)};
    before = kg_mem_current_bytes();
    kg_mem_reset_peak();
    status = time_it(&t, 1, run_head, &b, err);
    if (status == KG_OK)
        status = emit(r, "head V=151936 D=896 N=4096 k=32, fwd+bwd", t,
                      6.0 * HEAD_ROWS * HEAD_V * HEAD_D, "GFLOP/s", r->gemm_bf16, err);
    if (status == KG_OK)
        status = emit_bytes(r, "  extra memory at its peak",
                            (double)(kg_mem_peak_bytes() - before), err);
    if (status == KG_OK)
        status = emit_bytes(r, "  a [tokens x vocabulary] fp32 array",
                            4.0 * HEAD_ROWS * HEAD_V, err);
    kg_mem_free(x);
    return status;
}

/* ---- the table ---- */

static const struct kg_bench_row rows[] = {
    {"ceilings", "GEMM in fp32 and bf16, memory bandwidth", bench_ceilings},
    {"head", "vocabulary head, forward and backward, and its memory", bench_head},
    {"decode", "sampling at the 0.5B shape, batch 1 and 64", bench_decode},
    {"train", "forward, backward and update at D=512 L=8 and the 0.5B shape",
     bench_train},
    {NULL, NULL, NULL},
};

const struct kg_bench_row *kg_bench_table(void) { return rows; }

kg_status kg_bench_run(struct kg_str *out, const char *name, bool json,
                       struct kg_err *err)
{
    struct kg_bench_report report = {.out = out, .json = json};
    bool found = false;

    for (const struct kg_bench_row *row = rows; row->name; row++) {
        if (name && strcmp(name, row->name) != 0)
            continue;
        found = true;
        kg_log_progress(1000, "bench %s", row->name);
        KG_TRY(row->run(&report, err));
    }
    kg_log_progress_end();
    if (!found)
        return kg_fail(err, KG_ENOTFOUND,
                       "expected ceilings, head, decode or train, found %s", name);
    return KG_OK;
}
