/* Whole models: training steps and decoding, alone and beside a busy process.
 *
 * The shapes are real, the weights random: no time depends on what they are. A busy
 * process beside it is one that never waits; on shared machines that is the usual case,
 * and a program whose threads wait for each other loses much more than its share.
 */
#include "bench/bench_internal.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "model/optim.h"
#include "model/rows.h"
#include "rollout/rollout.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- models of a given shape ---- */

const struct kg_bench_shape kg_bench_small = {"D=512 L=8", 512, 1408, 8, 8, 4, 4096};
const struct kg_bench_shape kg_bench_half_b = {"0.5B shape", 896, 4864,  24,
                                               14,           2,   151936};

kg_status kg_bench_model(struct kg_model **m, const struct kg_bench_report *r,
                         const struct kg_bench_shape *s, bool trainable,
                         struct kg_err *err)
{
    struct kg_model_opts opts = {.backend = r->be, .ct = r->ct, .trainable = trainable};
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
    struct kg_model *model; /* owned */
    struct kg_optim *optim; /* owned */
    struct kg_rows *rows;   /* owned */
    int n_seqs;
    int seq_len;
    struct kg_traffic traffic; /* of its steps */
};

static void fill_rows(struct training *t)
{
    struct kg_rng_key key = {1, KG_RNG_TEST};
    int32_t tokens[2048];

    kg_rows_begin(t->rows, t->model, 0);
    for (int s = 0; s < t->n_seqs; s++) {
        int64_t row;

        for (int i = 0; i < t->seq_len; i++)
            tokens[i] = (int32_t)kg_rng_below(key, (uint64_t)s, (uint32_t)i, 0,
                                              (uint64_t)t->model->config.vocab);
        row = kg_rows_add(t->rows, tokens, (size_t)t->seq_len);
        for (int i = 1; i < t->seq_len; i++)
            kg_rows_want(t->rows, row + i - 1, tokens[i], 1.0f, NULL);
    }
}

static kg_status forward_backward(double *seconds, void *user, struct kg_err *err)
{
    struct training *t = user;
    double start = kg_clock_seconds();

    fill_rows(t);
    KG_TRY(kg_rows_forward(t->rows, true, err));
    KG_TRY(kg_rows_ask(t->rows, NULL, err));
    for (int64_t i = 0; i < t->rows->n_rows; i++)
        t->rows->a_logp[i] = -1.0 / (double)t->rows->n_rows;
    KG_TRY(kg_rows_backward(t->rows, t->optim->grads.data, false, err));
    KG_TRY(kg_bench_settle(t->model->backend, t->optim->grads.data, err));
    *seconds = kg_clock_seconds() - start;
    return KG_OK;
}

static kg_status run_training(double *seconds, void *user, struct kg_err *err)
{
    struct training *t = user;
    const struct kg_traffic before = kg_buf_traffic(t->model->backend);
    double start = kg_clock_seconds(), norm, lr;

    KG_TRY(kg_slab_zero(&t->optim->grads, err));
    KG_TRY(forward_backward(seconds, user, err));
    KG_TRY(kg_optim_update(t->optim, t->model, &norm, &lr, err));
    KG_TRY(kg_bench_settle(t->model->backend, t->optim->grads.data, err));
    *seconds = kg_clock_seconds() - start;
    kg_buf_traffic_add(&t->traffic, t->model->backend, before);
    return KG_OK;
}

static double training_flops(const struct training *t)
{
    const struct kg_model_config *c = &t->model->config;
    double tokens = (double)t->n_seqs * t->seq_len;
    double attention = 6.0 * t->n_seqs * (double)t->seq_len * t->seq_len * c->heads *
                       c->head_dim * c->layers;

    return 6.0 * product_parameters(t->model) * tokens + attention;
}

static void training_release(struct training *t)
{
    kg_rows_free(t->rows);
    kg_optim_free(t->optim);
    kg_model_free(t->model);
}

static kg_status training_init(struct training *t, const struct kg_bench_report *r,
                               const struct kg_bench_shape *s, struct kg_err *err)
{
    struct kg_optim_opts opts = {.lr = 1e-5,
                                 .beta1 = 0.9,
                                 .beta2 = 0.999,
                                 .eps = 1e-8,
                                 .clip_norm = 1,
                                 .decay_all = true};

    KG_TRY(kg_bench_model(&t->model, r, s, true, err));
    return kg_optim_create(&t->optim, t->model, &opts, err);
}

static kg_status training_rows(struct training *t, int n_seqs, int seq_len,
                               struct kg_err *err)
{
    struct kg_rows_opts opts = {.max_tokens = (int64_t)n_seqs * seq_len,
                                .backward = true};

    kg_rows_free(t->rows);
    t->rows = NULL;
    t->n_seqs = n_seqs;
    t->seq_len = seq_len;
    return kg_rows_create(&t->rows, t->model, &opts, err);
}

/* What crosses to a device and back, of so many tokens and steps; beside it what is
 * planned: positions, ids and numbers of tokens. */
static kg_status traffic_row(struct kg_bench_report *r, const char *name,
                             const struct kg_traffic *t, double tokens, double steps,
                             const char *planned, struct kg_err *err)
{
    char label[128], text[200] = "nothing crosses: the memory is the host's";

    if (r->be->traffic)
        snprintf(text, sizeof text,
                 "%.1f bytes up and %.1f down a token, %.1f and %.1f copies a step; "
                 "planned %s; %.0f %% of steps launched as one",
                 (double)t->up / tokens, (double)t->down / tokens, (double)t->ups / steps,
                 (double)t->downs / steps, planned, 100 * (double)t->replays / steps);
    snprintf(label, sizeof label, "%s, bus", name);
    return kg_bench_put_note(r, label, text, err);
}

static kg_status train_row(struct kg_bench_report *r, struct training *t,
                           const char *shape, int repeats, double bar, struct kg_err *err)
{
    struct kg_bench_job job = {
        .run = run_training, .user = t, .repeats = repeats, .ceiling = KG_BENCH_GEMM};
    struct kg_bench_timing timing;
    char name[80];
    struct kg_bench_rate rate = {name, training_flops(t), "GFLOP/s", {bar, false}};

    snprintf(name, sizeof name, "train %s, %d x %d tokens", shape, t->n_seqs, t->seq_len);
    t->traffic = (struct kg_traffic){0};
    KG_TRY(kg_bench_time(&timing, r, &job, err));
    KG_TRY(kg_bench_put_rate(r, &rate, &timing, err));
    return traffic_row(r, name, &t->traffic, (double)repeats * t->n_seqs * t->seq_len,
                       repeats, "40 and 16 and 1 and 1", err);
}

kg_status kg_bench_train(struct kg_bench_report *r, struct kg_err *err)
{
    struct training small = {0}, half_b = {0};
    kg_status status;

    KG_TRY_GOTO(out, training_init(&small, r, &kg_bench_small, err));
    KG_TRY_GOTO(out, training_rows(&small, 8, 256, err));
    KG_TRY_GOTO(out, train_row(r, &small, kg_bench_small.name, 5, 0.5, err));
    KG_TRY_GOTO(out, training_init(&half_b, r, &kg_bench_half_b, err));
    KG_TRY_GOTO(out, training_rows(&half_b, 8, 256, err));
    KG_TRY_GOTO(out, train_row(r, &half_b, kg_bench_half_b.name, 2, 0.5, err));
    KG_TRY_GOTO(out, training_rows(&half_b, 1, 2048, err));
    status = train_row(r, &half_b, kg_bench_half_b.name, 2, 0, err);
out:
    training_release(&small);
    training_release(&half_b);
    return status;
}

kg_status kg_bench_step_seconds(double *seconds, struct kg_bench_report *r, int n_seqs,
                                int seq_len, struct kg_err *err)
{
    struct training t = {0};
    struct kg_bench_job job = {.run = forward_backward, .user = &t, .repeats = 2};
    struct kg_bench_timing timing;
    kg_status status;

    KG_TRY_GOTO(out, training_init(&t, r, &kg_bench_half_b, err));
    KG_TRY_GOTO(out, training_rows(&t, n_seqs, seq_len, err));
    KG_TRY_GOTO(out, kg_bench_time(&timing, r, &job, err));
    *seconds = kg_bench_best(&timing);
out:
    training_release(&t);
    return status;
}

/* ---- a busy neighbour ---- */

/* A process of one thread that computes and never waits. It dies with this one. */
static kg_status neighbour_start(pid_t *pid, struct kg_err *err)
{
    volatile uint64_t turns = 0;
    pid_t parent = getpid();

    *pid = fork();
    if (*pid < 0)
        return kg_fail(err, KG_EIO, "expected to start a busy process beside: %s",
                       strerror(errno));
    if (*pid > 0)
        return KG_OK;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (getppid() == parent)
        for (int i = 0; i < 1 << 24; i++)
            turns++;
    _exit(0);
}

static void neighbour_stop(pid_t pid)
{
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        continue;
}

/* ---- decoding ---- */

struct decoding {
    struct kg_rollout *engine; /* owned */
    const int32_t *prompt;
    int batch;
    int tokens;
};

/* Seconds of a decode step, by the engine's own clock. */
static kg_status run_decoding(double *seconds, void *user, struct kg_err *err)
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
    if (status == KG_OK)
        *seconds = stats->decode_seconds / (double)stats->decode_steps;
    for (int i = 0; i < d->batch; i++)
        kg_traj_release(&trajs[i]);
    kg_mem_free(trajs);
    return status;
}

static kg_status run_beside_neighbour(double *seconds, void *user, struct kg_err *err)
{
    pid_t pid;
    kg_status status;

    KG_TRY(neighbour_start(&pid, err));
    status = run_decoding(seconds, user, err);
    neighbour_stop(pid);
    return status;
}

/* Alone and beside a neighbour by turns, so that both see the same machine. */
static kg_status decode_turns(struct kg_bench_timing *alone,
                              struct kg_bench_timing *beside, struct kg_bench_report *r,
                              struct decoding *d, struct kg_err *err)
{
    struct kg_bench_job alone_job = {
        .run = run_decoding, .user = d, .warm = true, .ceiling = KG_BENCH_MEMORY};
    struct kg_bench_job beside_job = {.run = run_beside_neighbour, .user = d};

    if (d->batch > 1) {
        alone_job.ceiling = KG_BENCH_GEMM;
        alone_job.per_byte = 2.0 * d->batch / (double)kg_dtype_traits(r->ct)->bytes;
    }
    KG_TRY(kg_bench_time(alone, r, &alone_job, err)); /* warm */
    *beside = (struct kg_bench_timing){.n = 0};
    for (int i = 0; i < 3; i++) {
        KG_TRY(kg_bench_repeat(alone, r, &alone_job, err));
        KG_TRY(kg_bench_repeat(beside, r, &beside_job, err));
    }
    return KG_OK;
}

static kg_status decode_rows(struct kg_bench_report *r, const struct kg_model *m,
                             struct decoding *d, struct kg_err *err)
{
    double n = product_parameters(m);
    double bytes = n * (double)kg_dtype_traits(m->ct)->bytes;
    struct kg_bench_timing alone, beside;
    char name[80];
    struct kg_bench_rate rate = {
        name,
        d->batch == 1 ? bytes : 2 * n * d->batch,
        d->batch == 1 ? "GB/s" : "GFLOP/s",
        {d->batch == 1 ? 0.7 : 0.4, false},
    };
    struct kg_bench_share share = {name,        0, 0, "tokens/s", "the rate alone",
                                   {0.5, false}};

    snprintf(name, sizeof name, "decode 0.5B shape, batch %d", d->batch);
    KG_TRY(decode_turns(&alone, &beside, r, d, err));
    KG_TRY(kg_bench_put_rate(r, &rate, &alone, err));
    share.part = d->batch / kg_bench_best(&beside);
    share.whole = d->batch / kg_bench_best(&alone);
    snprintf(name, sizeof name, "decode 0.5B shape, batch %d, beside a busy process",
             d->batch);
    return kg_bench_put_share(r, &share, err);
}

/* Of a run behind others, which have chosen plans and made tables. Up of a token: its id,
 * position, rows of cache and head, temperature and target; its sequence, its blocks, how
 * it is drawn. Down: log sum exp, log-prob and entropy; what was drawn. */
static kg_status decode_bus(struct kg_bench_report *r, struct decoding *d,
                            struct kg_err *err)
{
    const int64_t blocks = (8 + d->tokens + KG_KV_BLOCK - 1) / KG_KV_BLOCK;
    const struct kg_rollout_stats *stats = kg_rollout_stats(d->engine);
    char name[80], planned[80];
    double seconds;

    KG_TRY(run_decoding(&seconds, d, err));
    snprintf(planned, sizeof planned, "%zu and %zu and 2 and 1",
             (6 + (size_t)blocks) * sizeof(int32_t) + sizeof(struct kg_attn_seq) +
                 sizeof(struct kg_draw),
             sizeof(double) + 2 * sizeof(float) + sizeof(struct kg_drawn));
    snprintf(name, sizeof name, "decode, batch %d", d->batch);
    return traffic_row(r, name, &stats->decode_traffic, (double)stats->decode_tokens,
                       (double)stats->decode_steps, planned, err);
}

static const int32_t some_prompt[8] = {11, 12, 13, 14, 15, 16, 17, 18};

static kg_status start_decoding(struct decoding *d, const struct kg_model *m, int batch,
                                int tokens, struct kg_err *err)
{
    struct kg_rollout_opts opts = {.max_batch = batch, .max_len = 128};

    *d = (struct decoding){.prompt = some_prompt, .batch = batch, .tokens = tokens};
    return kg_rollout_create(&d->engine, m, NULL, &opts, err);
}

kg_status kg_bench_decode_bus(struct kg_bench_report *r, const struct kg_model *m,
                              int batch, int tokens, struct kg_err *err)
{
    struct decoding d;
    double seconds;
    kg_status status;

    KG_TRY(start_decoding(&d, m, batch, tokens, err));
    KG_TRY_GOTO(out, run_decoding(&seconds, &d, err));
    status = decode_bus(r, &d, err);
out:
    kg_rollout_free(d.engine);
    return status;
}

static kg_status decode_batch(struct kg_bench_report *r, const struct kg_model *m,
                              int batch, int tokens, struct kg_err *err)
{
    struct decoding d;
    kg_status status;

    KG_TRY(start_decoding(&d, m, batch, tokens, err));
    KG_TRY_GOTO(out, decode_rows(r, m, &d, err));
    status = decode_bus(r, &d, err);
out:
    kg_rollout_free(d.engine);
    return status;
}

kg_status kg_bench_decode(struct kg_bench_report *r, struct kg_err *err)
{
    struct kg_model *m;
    kg_status status;

    KG_TRY(kg_bench_model(&m, r, &kg_bench_half_b, false, err));
    status = decode_batch(r, m, 1, 40, err);
    if (status == KG_OK)
        status = decode_batch(r, m, 64, 10, err);
    kg_model_free(m);
    return status;
}
