/* Whole models: their shapes, and decoding. The shapes are real, the weights random: no
 * time depends on the weights, except through the experts that they choose. */
#include "bench/measure.h"

#include "base/mem.h"
#include "rollout/rollout.h"

#include <stdio.h>

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
const struct kg_bench_shape kg_bench_narrow = {
    .name = "135M shape",
    .hidden = 576,
    .ffn = 1536,
    .layers = 30,
    .heads = 9,
    .kv_heads = 3,
    .vocab = 49152,
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
    const double idle = m->config.experts.n - m->config.experts.k; /* unused by a token */
    double n = 0;

    for (size_t i = 0; i < m->n_params; i++)
        n += m->params[i].is_product ? (double)(m->params[i].rows * m->params[i].cols)
                                     : 0;
    for (int32_t l = 0; l < m->config.layers; l++)
        if (m->layers[l].egate)
            n -= 3 * idle * m->config.hidden * m->config.experts.ffn;
    return n; /* a tied head is the embedding: counted once, as one product */
}

/* Prints what crosses between host and device, per token and per step. planned: the five
 * numbers as planned (docs/gpu.md). */
kg_status kg_bench_put_traffic(struct kg_bench_report *r, const char *name,
                               const struct kg_traffic *t, double tokens, double steps,
                               const char *planned, struct kg_err *err)
{
    char label[128], text[200] = "nothing crosses: the memory is host memory";

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
    int prompt_n;              /* of `prompt` */
    int batch;
    int tokens;
    double vocab;
};
enum { PROMPT = 8, LONG_PROMPT = 512 };
static int32_t prompt[LONG_PROMPT]; /* any tokens */

/* One session: prompts and a first step, then the steps that are measured. */
static kg_status decode_steps(double *seconds, struct decoding *d, struct kg_traj *trajs,
                              struct kg_err *err)
{
    const struct kg_sampling s = {.temperature = 1,
                                  .top_p = 1,
                                  .max_tokens = d->tokens,
                                  .ignore_eos = true,
                                  .rng = {1, KG_RNG_TEST}};
    const struct kg_request request = {
        .prompt = prompt, .prompt_n = (size_t)d->prompt_n, .n_samples = d->batch};
    const struct kg_rollout_session session = {.sampling = &s};
    const struct kg_rollout_stats *stats = kg_rollout_stats(d->engine);
    struct kg_rollout_load load;

    KG_TRY(kg_rollout_begin(d->engine, &session, err));
    KG_TRY(kg_rollout_submit(d->engine, &request, trajs, err));
    KG_TRY(kg_rollout_step(d->engine, &load, err));
    struct kg_rollout_stats first = *stats;
    kg_bench_parts_begin();
    while (load.running + load.waiting > 0)
        KG_TRY(kg_rollout_step(d->engine, &load, err));
    double steps = (double)(stats->decode_steps - first.decode_steps);
    *seconds = (stats->decode_seconds - first.decode_seconds) / steps;
    kg_bench_parts_draw(stats->draw_seconds - first.draw_seconds, steps * d->batch,
                        d->vocab, steps);
    return KG_OK;
}

/* *seconds: time of a decode step, by the engine's clock. */
static kg_status run_decoding(double *seconds, void *user, struct kg_err *err)
{
    struct decoding *d = user;
    struct kg_traj *trajs = kg_mem_calloc((size_t)d->batch, sizeof *trajs,
                                          "decoded sequences", err);

    if (!trajs)
        return err->code;
    kg_status status = decode_steps(seconds, d, trajs, err);
    for (int i = 0; i < d->batch; i++)
        kg_traj_release(&trajs[i]);
    kg_mem_free(trajs);
    return status;
}

/* *seconds: time of a prompt, after which one token is sampled. */
static kg_status run_prefill(double *seconds, void *user, struct kg_err *err)
{
    struct decoding *d = user;
    const struct kg_sampling s = {.temperature = 1, .top_p = 1, .max_tokens = 1};
    const struct kg_request request = {
        .prompt = prompt, .prompt_n = (size_t)d->prompt_n, .n_samples = 1};
    struct kg_traj traj;

    kg_status status = kg_rollout_run(d->engine, &traj, &request, 1, &s, NULL, NULL, err);
    *seconds = kg_rollout_stats(d->engine)->prefill_seconds;
    kg_traj_release(&traj);
    return status;
}

/* Measures a run after another one, which has chosen plans and built tables. Up per
 * token: its id or a reference to it, position, rows of cache and head, temperature and
 * target; its sequence, blocks and draw. Down: log sum exp, log-prob and entropy; the
 * drawn token. */
static kg_status decode_bus(struct kg_bench_report *r, struct decoding *d,
                            struct kg_err *err)
{
    const int64_t blocks = (PROMPT + d->tokens + KG_KV_BLOCK - 1) / KG_KV_BLOCK;
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

static kg_status start_decoding(struct decoding *d, const struct kg_model *m, int batch,
                                int prompt_n, int tokens, struct kg_err *err)
{
    struct kg_rollout_opts opts = {.max_batch = batch, .max_len = prompt_n + tokens};

    *d = (struct decoding){
        .prompt_n = prompt_n, .batch = batch, .tokens = tokens, .vocab = m->config.vocab};
    for (int i = 0; i < LONG_PROMPT; i++)
        prompt[i] = 11 + i % 97;
    return kg_rollout_create(&d->engine, m, NULL, &opts, err);
}

kg_status kg_bench_decode_bus(struct kg_bench_report *r, const struct kg_model *m,
                              int batch, int tokens, struct kg_err *err)
{
    struct decoding d;
    double seconds;
    kg_status status;

    KG_TRY(start_decoding(&d, m, batch, PROMPT, tokens, err));
    KG_TRY_GOTO(out, run_decoding(&seconds, &d, err));
    status = decode_bus(r, &d, err);
out:
    kg_rollout_free(d.engine);
    return status;
}

struct decode_row {
    const struct kg_bench_shape *shape;
    int batch, tokens; /* decoded tokens of each sequence; 0: prefill */
    double bar;
};
static const struct decode_row decode_rows[] = {
    {&kg_bench_half_b, 1, 40, 0.85},  {&kg_bench_half_b, 16, 20, 0.65},
    {&kg_bench_half_b, 64, 10, 0.65}, {&kg_bench_narrow, 1, 100, 0.85},
    {&kg_bench_narrow, 16, 60, 0.65}, {&kg_bench_narrow, 64, 40, 0.65},
    {&kg_bench_half_b, 1, 0, 0},      {&kg_bench_narrow, 1, 0, 0},
};

static kg_status decode_row(struct kg_bench_report *r, const struct kg_model *m,
                            const struct decode_row *row, const char *name,
                            struct decoding *d, struct kg_err *err)
{
    const double n = kg_bench_parameters(m);
    const bool one = row->batch == 1;
    const struct kg_bench_rate rate = {name,
                                       one ? n * (double)kg_dtype_traits(m->ct)->bytes
                                           : 2 * n * row->batch,
                                       one ? "GB/s" : "GFLOP/s",
                                       {row->bar, false}};
    struct kg_bench_job job = {.run = run_decoding,
                               .user = d,
                               .repeats = 4,
                               .warm = true,
                               .ceiling = KG_BENCH_MEMORY};
    struct kg_bench_timing t;

    if (!one) {
        job.ceiling = kg_bench_compute(r, false);
        job.per_byte = 2.0 * row->batch / (double)kg_dtype_traits(r->ct)->bytes;
    }
    KG_TRY(kg_bench_time(&t, r, &job, err));
    KG_TRY(kg_bench_put_rate(r, &rate, &t, err));
    return decode_bus(r, d, err);
}

/* FLOP of the layers, with attention; the head computes one row only. */
static kg_status prefill_row(struct kg_bench_report *r, const struct kg_model *m,
                             const struct decode_row *row, const char *name,
                             struct decoding *d, struct kg_err *err)
{
    const struct kg_model_config *c = &m->config;
    const double n = kg_bench_parameters(m) - (double)c->vocab * c->hidden;
    const double pairs = (double)d->prompt_n * d->prompt_n * c->layers;
    const struct kg_bench_rate rate = {name,
                                       2 * n * d->prompt_n +
                                           2 * pairs * c->heads * c->head_dim,
                                       "GFLOP/s",
                                       {row->bar, false}};
    const struct kg_bench_job job = {.run = run_prefill,
                                     .user = d,
                                     .repeats = 4,
                                     .warm = true,
                                     .ceiling = kg_bench_compute(r, false)};
    struct kg_bench_timing t;

    KG_TRY(kg_bench_time(&t, r, &job, err));
    return kg_bench_put_rate(r, &rate, &t, err);
}

/* Measures a row with a model that was made for it. */
typedef kg_status (*measure_fn)(struct kg_bench_report *r, const struct kg_model *m,
                                const struct decode_row *row, const char *name,
                                struct decoding *d, struct kg_err *err);

static kg_status one_row(struct kg_bench_report *r, const struct decode_row *row,
                         measure_fn measure, struct kg_err *err)
{
    struct decoding d = {0};
    struct kg_model *m;
    const bool prefill = row->tokens == 0;
    char name[80];
    kg_status status;

    if (prefill)
        snprintf(name, sizeof name, "prefill %s, %d tokens", row->shape->name,
                 LONG_PROMPT);
    else
        snprintf(name, sizeof name, "decode %s, batch %d", row->shape->name, row->batch);
    if (!kg_bench_wants(r, name))
        return KG_OK;
    KG_TRY(kg_bench_model(&m, r, row->shape, false, err));
    KG_TRY_GOTO(out, start_decoding(&d, m, row->batch, prefill ? LONG_PROMPT : PROMPT,
                                    prefill ? 1 : row->tokens, err));
    status = measure(r, m, row, name, &d, err);
out:
    kg_rollout_free(d.engine);
    kg_model_free(m);
    return status;
}

static kg_status each_row(struct kg_bench_report *r, bool prefill, measure_fn measure,
                          struct kg_err *err)
{
    for (size_t i = 0; i < sizeof decode_rows / sizeof *decode_rows; i++)
        if (prefill == (decode_rows[i].tokens == 0))
            KG_TRY(one_row(r, &decode_rows[i], measure, err));
    return KG_OK;
}

kg_status kg_bench_decode(struct kg_bench_report *r, struct kg_err *err)
{
    return each_row(r, false, decode_row, err);
}

kg_status kg_bench_prefill(struct kg_bench_report *r, struct kg_err *err)
{
    return each_row(r, true, prefill_row, err);
}

static kg_status row_parts(struct kg_bench_report *r, const struct kg_model *m,
                           const struct decode_row *row, const char *name,
                           struct decoding *d, struct kg_err *err)
{
    (void)m;
    return kg_bench_best_parts(r, name, row->tokens == 0 ? run_prefill : run_decoding, d,
                               err);
}

kg_status kg_bench_decode_parts_of(struct kg_bench_report *r,
                                   const struct kg_bench_shape *s, int batch, int tokens,
                                   struct kg_err *err)
{
    const struct decode_row row = {.shape = s, .batch = batch, .tokens = tokens};

    return one_row(r, &row, row_parts, err);
}

kg_status kg_bench_decode_parts(struct kg_bench_report *r, struct kg_err *err)
{
    return each_row(r, false, row_parts, err);
}

kg_status kg_bench_prefill_parts(struct kg_bench_report *r, struct kg_err *err)
{
    return each_row(r, true, row_parts, err);
}
