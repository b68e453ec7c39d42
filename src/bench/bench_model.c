/* Whole models: their shapes, and decoding, alone and beside a busy process.
 *
 * The shapes are real, the weights random: no time depends on what they are, but for
 * which experts a token has. A busy process beside is one that never waits; on shared
 * machines that is the usual case, and a program whose threads wait for each other loses
 * much more than its share.
 */
#include "bench/measure.h"

#include "base/clock.h"
#include "base/mem.h"
#include "rollout/rollout.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- models of a given shape ---- */

const struct kg_bench_shape kg_bench_small = {
    .name = "D=512 L=8",
    .hidden = 512,
    .ffn = 1408,
    .layers = 8,
    .heads = 8,
    .kv_heads = 4,
    .vocab = 4096,
};
const struct kg_bench_shape kg_bench_half_b = {
    .name = "0.5B shape",
    .hidden = 896,
    .ffn = 4864,
    .layers = 24,
    .heads = 14,
    .kv_heads = 2,
    .vocab = 151936,
};

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

    if (s->experts > 0) {
        c.qkv_bias = false;
        c.experts = (struct kg_experts_config){.n = s->experts,
                                               .k = s->per_token,
                                               .ffn = s->ffn / s->per_token,
                                               .normalise = true,
                                               .step = 1};
    }
    KG_TRY(kg_arch_find(&c.arch, s->experts > 0 ? "qwen3_moe" : "qwen2", err));
    return kg_model_create(m, &c, &opts, 1, err);
}

double kg_bench_parameters(const struct kg_model *m)
{
    const double idle = m->config.experts.n - m->config.experts.k; /* of a token */
    double n = 0;

    for (size_t i = 0; i < m->n_params; i++)
        n += m->params[i].is_product ? (double)(m->params[i].rows * m->params[i].cols)
                                     : 0;
    for (int32_t l = 0; l < m->config.layers; l++)
        if (m->layers[l].egate)
            n -= 3 * idle * m->config.hidden * m->config.experts.ffn;
    return n; /* a tied head is the embedding: counted once, as it is one product */
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

/* What crosses to a device and back, of so many tokens and steps; beside it what is
 * planned: positions, ids and numbers of tokens. */
kg_status kg_bench_put_traffic(struct kg_bench_report *r, const char *name,
                               const struct kg_traffic *t, double tokens, double steps,
                               const char *planned, struct kg_err *err)
{
    char label[128], text[200] = "nothing crosses: the memory is the host's";

    if (r->be->traffic)
        snprintf(text, sizeof text,
                 "%.1f bytes up and %.1f down a token, %.1f and %.1f copies and %.1f "
                 "waits a step; planned %s; %.0f %% of steps launched as one",
                 (double)t->up / tokens, (double)t->down / tokens, (double)t->ups / steps,
                 (double)t->downs / steps, (double)t->waits / steps, planned,
                 100 * (double)t->replays / steps);
    snprintf(label, sizeof label, "%s, bus", name);
    return kg_bench_put_note(r, label, text, err);
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
        alone_job.ceiling = kg_bench_compute(r, false);
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
    double n = kg_bench_parameters(m);
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

/* Of a run behind others, which have chosen plans and made tables. Up of a token: its id
 * or whose token it is, position, rows of cache and head, temperature and target; its
 * sequence, its blocks, how it is drawn. Down: log sum exp, log-prob and entropy; what
 * was drawn. */
static kg_status decode_bus(struct kg_bench_report *r, struct decoding *d,
                            struct kg_err *err)
{
    const int64_t blocks = (8 + d->tokens + KG_KV_BLOCK - 1) / KG_KV_BLOCK;
    const struct kg_rollout_stats *stats = kg_rollout_stats(d->engine);
    char name[80], planned[80];
    double seconds;

    KG_TRY(run_decoding(&seconds, d, err));
    snprintf(planned, sizeof planned, "%zu and %zu and 1 and 1 and 1",
             (7 + (size_t)blocks) * sizeof(int32_t) + sizeof(struct kg_attn_seq) +
                 sizeof(struct kg_draw),
             sizeof(double) + 2 * sizeof(float) + sizeof(struct kg_drawn));
    snprintf(name, sizeof name, "decode, batch %d", d->batch);
    return kg_bench_put_traffic(r, name, &stats->decode_traffic,
                                (double)stats->decode_tokens, (double)stats->decode_steps,
                                planned, err);
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

kg_status kg_bench_decode_one(struct kg_bench_report *r, const struct kg_model *m,
                              const char *name, double bar, struct kg_err *err)
{
    const double bytes = kg_bench_parameters(m) * (double)kg_dtype_traits(m->ct)->bytes;
    struct decoding d;
    const struct kg_bench_job job = {.run = run_decoding,
                                     .user = &d,
                                     .repeats = 3,
                                     .warm = true,
                                     .ceiling = KG_BENCH_MEMORY};
    const struct kg_bench_rate rate = {name, bytes, "GB/s", {bar, false}};
    struct kg_bench_timing timing;
    kg_status status;

    KG_TRY(start_decoding(&d, m, 1, 40, err));
    KG_TRY_GOTO(out, kg_bench_time(&timing, r, &job, err));
    status = kg_bench_put_rate(r, &rate, &timing, err);
out:
    kg_rollout_free(d.engine);
    return status;
}
