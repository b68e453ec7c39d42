/* The list of a run's memory, and its text.
 *
 * Each item is computed by the module that will allocate the memory (model, rows,
 * engine, optimizer), with the settings of the run. The savings of a key are the
 * difference of two lists, with and without this key.
 */
#include "train/open/memory.h"

#include "train/step/anchor.h"
#include "train/step/lane_exchange.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static double gb(uint64_t bytes) { return (double)bytes / 1e9; }

static void add(struct kg_memory *m, const char *what, struct kg_bytes b)
{
    if (kg_bytes_sum(b) == 0)
        return;
    assert(m->n < KG_MEMORY_ITEMS);
    m->item[m->n++] = (struct kg_memory_item){what, b};
    m->sum.there += b.there;
    m->sum.host += b.host;
}

/* On a device, or in host memory. */
static struct kg_bytes in(bool there, uint64_t bytes)
{
    return there ? (struct kg_bytes){bytes, 0} : (struct kg_bytes){0, bytes};
}

/* The larger of two needs that never overlap in time. */
static struct kg_bytes larger(struct kg_bytes a, struct kg_bytes b)
{
    return (struct kg_bytes){a.there > b.there ? a.there : b.there,
                             a.host > b.host ? a.host : b.host};
}

static void add_model(struct kg_memory *m, const struct kg_model *model, bool trainable,
                      const char *master, const char *read)
{
    if (!model)
        return;
    struct kg_model_memory b = kg_model_memory(model, trainable);
    add(m, master, b.master);
    add(m, read, b.read);
}

/* Whether master weights and optimizer state are on the device. */
static bool master_is_there(const struct kg_model *m)
{
    return kg_model_memory(m, true).master.host == 0;
}

/* Model and anchor are refreshed one after the other. */
static struct kg_bytes refresh_bytes(const struct kg_run *run)
{
    const bool nccl = run->in.recipe.ranks.nccl;
    const struct kg_bytes b = kg_model_refresh_bytes(run->state.model, nccl);

    return run->state.anchor ? larger(b, kg_model_refresh_bytes(run->state.anchor, nccl))
                             : b;
}

/* To exchange gradients or weights with other ranks, one after the other. */
static struct kg_bytes exchange_bytes(const struct kg_run *run)
{
    const struct kg_model *m = run->state.model;
    const bool nccl = run->in.recipe.ranks.nccl;
    uint64_t gradients = kg_lane_exchange_bytes(
        m->n_elements, m->backend, run->in.recipe.train.lanes, run->work.ranks->n, nccl);

    return larger(in(nccl, gradients), refresh_bytes(run));
}

/* To send master weights to rollout ranks. This memory is kept, so it adds to that of the
 * trainers' exchange. Weights on the host need none. */
static struct kg_bytes ahead_bytes(const struct kg_run *run)
{
    const struct kg_ahead *a = &run->work.ahead;
    const struct kg_model *m = run->state.model;

    if (a->trainers == 0 || !master_is_there(m))
        return (struct kg_bytes){0};
    return in(run->in.recipe.ranks.nccl, kg_slab_wire_bytes(m->backend, a->all->n));
}

/* Gradients of which each rank has its shard. */
static void add_divided(struct kg_memory *m, const struct kg_run *run)
{
    const struct kg_model *model = run->state.model;
    const struct kg_lane_buckets buckets = kg_lane_buckets_of(model);
    const bool direct = run->in.recipe.ranks.nccl;
    struct kg_lane_stream_memory s = kg_lane_stream_memory(
        &buckets, model->backend, run->in.recipe.train.lanes, run->work.ranks->n, direct);
    const struct kg_bytes weights = refresh_bytes(run);
    uint64_t cut = (uint64_t)model->cut.n * sizeof(float);

    add(m, "gradients", (struct kg_bytes){cut + s.bucket, 0});
    add(m, "sums of lanes", (struct kg_bytes){0, s.stripes});
    add(m, "exchange",
        (struct kg_bytes){weights.there + (direct ? s.room : 0),
                          weights.host + s.near + (direct ? 0 : s.room)});
}

static void add_training(struct kg_memory *m, const struct kg_run *run)
{
    const struct kg_model *model = run->state.model;
    uint64_t slab = (uint64_t)model->n_elements * sizeof(float);
    int lanes = run->in.recipe.train.lanes;
    uint64_t sums = (uint64_t)kg_lane_sum_slabs(lanes, run->work.ranks->n);

    if (run->work.ranks->n > 1 && kg_run_divides_gradients(&run->in)) {
        add_divided(m, run);
    } else {
        add(m, "gradients", (struct kg_bytes){slab, 0});
        add(m, "sums of lanes", (struct kg_bytes){sums * slab, 0});
        add(m, "exchange", exchange_bytes(run));
    }
    /* SFT's optimizer has moments of the same type, so it is not larger */
    add(m, "optimizer",
        in(master_is_there(model),
           kg_optim_state_bytes(&run->in.rl_optim, model->cut.n)));
}

static uint64_t beyond(uint64_t bytes, uint64_t others)
{
    return bytes > others ? bytes - others : 0;
}

/* The engine of validation replaces that of the rollout (kg_run_validate): what it needs
 * beyond that. */
static void add_validation(struct kg_memory *m, const struct kg_run *run,
                           struct kg_bytes sampling)
{
    const struct kg_rollout_opts *opts = &run->work.validation_opts;
    uint64_t cache;

    if (opts->max_batch == 0)
        return;
    struct kg_bytes all = kg_rollout_memory(&cache, run->state.model, opts);
    add(m, "validation",
        (struct kg_bytes){beyond(all.there, sampling.there),
                          beyond(all.host, sampling.host)});
}

static void add_sampling(struct kg_memory *m, const struct kg_run *run)
{
    uint64_t cache;
    const struct kg_bytes all = kg_rollout_memory(&cache, kg_run_sampler(&run->state),
                                                  &run->work.engine_opts);

    add(m, "KV cache", (struct kg_bytes){cache, 0});
    add(m, "decoding", (struct kg_bytes){all.there - cache, all.host});
    add_validation(m, run, all);
}

/* With rollout.router_replay: all completions of a step at their longest, in host memory,
 * on every rank. */
static struct kg_bytes recorded_experts(const struct kg_run *run)
{
    const struct kg_recipe *r = &run->in.recipe;
    uint64_t tokens = (uint64_t)r->rollout.prompts * (uint64_t)r->rollout.samples *
                      (uint64_t)run->work.engine_opts.max_len;
    uint64_t choices = (uint64_t)kg_model_config_choices(&run->state.model->config);

    return (struct kg_bytes){
        0, r->rollout.router_replay ? tokens * choices * sizeof(uint16_t) : 0};
}

/* Request and result per row of the head (tensor/cuda/head*.cu: numbers, ids with their
 * coefficients, largest ids), and its set, one bit per id. */
static uint64_t row_bytes(const struct kg_model *m, const struct kg_rows_opts *o)
{
    enum { NUMBERS = 216, EACH_ID = 12, EACH_LARGEST = 8 };
    uint64_t set = o->sets ? ((uint64_t)m->config.vocab + 7) / 8 : 0;

    return NUMBERS + EACH_ID * (uint64_t)o->max_k + EACH_LARGEST * (uint64_t)o->top_k +
           set;
}

/* WORK: logits and candidates of the rows computed at once, the largest scratch memory
 * that does not grow with a batch. LOADED: kernels that the driver loads at their first
 * use, and records of steps. */
struct kg_bytes kg_memory_operations(const struct kg_model *m,
                                     const struct kg_rows_opts *rows)
{
    enum { WORK = 320 << 20, LOADED = 256 << 20 };

    if (m->host == m->backend)
        return (struct kg_bytes){0};
    uint64_t n = (uint64_t)(rows->max_rows > 0 ? rows->max_rows : rows->max_tokens);
    return (struct kg_bytes){
        kg_model_product_bytes(m) + WORK + LOADED + n * row_bytes(m, rows), 0};
}

void kg_run_memory(struct kg_memory *m, const struct kg_run *run)
{
    const struct kg_run_state *s = &run->state;
    const struct kg_run_work *w = &run->work;

    *m = (struct kg_memory){0};
    if (s->model->lora)
        add_model(m, s->model, true, "adapters (fp32)", "base and adapters");
    else
        add_model(m, s->model, true, "weights (fp32)", "weights for products");
    add_training(m, run);
    add_model(m, s->anchor, kg_run_anchor_moves(&run->in), "anchor (fp32)",
              "anchor for products");
    add_model(m, s->sampler, true, "sampler (fp32)", "sampler for products");
    if (s->lag > 0)
        add(m, "lagged weights",
            in(master_is_there(s->model),
               ((uint64_t)s->lag + 1) * (uint64_t)s->model->cut.n * sizeof(float)));
    add(m, "weights to samplers", ahead_bytes(run));
    add_model(m, run->in.reference, false, "", "reference");
    add(m, "micro-batch", kg_rows_memory(s->model, &w->rows_opts));
    if (w->sampler_opts.max_tokens > 0)
        add(m, "scoring", kg_rows_memory(s->sampler, &w->sampler_opts));
    add_sampling(m, run);
    add(m, "index", (struct kg_bytes){w->index_bytes, 0});
    add(m, "recorded experts", recorded_experts(run));
    add(m, KG_MEMORY_OPERATIONS, kg_memory_operations(s->model, &w->rows_opts));
}

/* ---- keys that save memory ---- */

static bool bf16_moments(struct kg_run *run)
{
    bool helps = run->in.rl_optim.moments != KG_BF16;

    run->in.rl_optim.moments = KG_BF16;
    return helps;
}

static bool anchor_on_host(struct kg_run *run)
{
    struct kg_model *anchor = run->state.anchor; /* a copy */
    bool helps = anchor && anchor->on_host != KG_HOST_LAYERS;

    if (helps)
        anchor->on_host = KG_HOST_LAYERS;
    return helps;
}

static bool optim_on_host(struct kg_run *run)
{
    struct kg_model *const models[] = {run->state.model, run->state.anchor,
                                       run->state.sampler}; /* copies */
    bool helps = false;

    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (models[i] && models[i]->on_host == KG_HOST_NONE) {
            models[i]->on_host = KG_HOST_MASTER;
            helps = true;
        }
    return helps;
}

static bool one_layer_kept(struct kg_run *run)
{
    bool helps = !run->work.rows_opts.checkpoint;

    run->work.rows_opts.checkpoint = true;
    return helps;
}

static bool half_the_batch(struct kg_run *run)
{
    struct kg_rollout_opts *const engines[] = {&run->work.engine_opts,
                                               &run->work.validation_opts};

    for (size_t i = 0; i < 2; i++) {
        engines[i]->max_batch /= 2;
        engines[i]->max_open /= 2;
        engines[i]->kv_tokens /= 2;
    }
    return run->work.engine_opts.max_batch > 0;
}

static const struct {
    const char *key;
    /* sets the key in a copy of a run.   returns whether that changed it */
    bool (*change)(struct kg_run *run);
} ways[] = {
    {"optim.moments=bf16", bf16_moments},
    {"anchor.place=host", anchor_on_host},
    {"optim.place=host", optim_on_host},
    {"train.checkpoint_layers=true", one_layer_kept},
    {"half of rollout.max_batch", half_the_batch},
};

static struct kg_model *copy(struct kg_model *to, const struct kg_model *from)
{
    if (from)
        *to = *from;
    return from ? to : NULL;
}

/* A copy of a model with the shard that a rank would have. */
static struct kg_model *cut_copy(struct kg_model *to, const struct kg_model *from,
                                 struct kg_ranks *ranks)
{
    if (!copy(to, from))
        return NULL;
    to->ranks = ranks;
    to->cut = kg_cut_of(to->n_elements, ranks->me, ranks->n);
    return to;
}

void kg_run_memory_plan(struct kg_memory_plan *plan, const struct kg_run *run, int n)
{
    const int rollout = run->in.recipe.ranks.rollout;

    plan->run = *run;
    plan->all = (struct kg_ranks){.n = n + rollout};
    if (rollout > 0)
        plan->run.work.ahead = (struct kg_ahead){.all = &plan->all, .trainers = n};
    if (n < 2)
        return;
    plan->ranks = (struct kg_ranks){.n = n};
    plan->run.work.ranks = &plan->ranks;
    if (run->in.recipe.ranks.shard == KG_SHARD_NONE)
        return;
    plan->run.state.model = cut_copy(&plan->model, run->state.model, &plan->ranks);
    plan->run.state.anchor = cut_copy(&plan->anchor, run->state.anchor, &plan->ranks);
    plan->run.state.sampler = cut_copy(&plan->sampler, run->state.sampler, &plan->ranks);
}

/* Bytes of the device that ways[i] saves. */
static uint64_t saved(const struct kg_run *run, uint64_t needed, size_t i)
{
    struct kg_run other = *run;
    struct kg_model model, anchor, sampler;
    struct kg_memory m;

    other.state.model = copy(&model, run->state.model);
    other.state.anchor = copy(&anchor, run->state.anchor);
    other.state.sampler = copy(&sampler, run->state.sampler);
    if (!ways[i].change(&other))
        return 0;
    kg_run_memory(&m, &other);
    return beyond(needed, m.sum.there);
}

/* Smaller savings are not mentioned. */
enum { LEAST_SAVED = 5 * 1000 * 1000 };

static kg_status put_ways(struct kg_str *out, const struct kg_run *run, uint64_t needed,
                          struct kg_err *err)
{
    const char *before = ": ";

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        uint64_t bytes = saved(run, needed, i);

        if (bytes < LEAST_SAVED)
            continue;
        KG_TRY(kg_str_printf(out, err, "%s%s saves %.2f GB", before, ways[i].key,
                             gb(bytes)));
        before = ", ";
    }
    return KG_OK;
}

kg_status kg_run_memory_check(const struct kg_run *run, struct kg_err *err)
{
    uint64_t free = run->work.device_free, total = run->work.device_total;
    struct kg_str help = {0};
    struct kg_memory m;
    kg_status status;

    kg_run_memory(&m, run);
    if (free == 0 || m.sum.there <= free)
        return KG_OK;
    KG_TRY_GOTO(out, put_ways(&help, run, m.sum.there, err));
    status = kg_fail(err, KG_ENOMEM,
                     "memory: expected at most %.2f GB on the device%s, found %.2f GB%s",
                     gb(free), free < total ? " (other processes use the rest)" : "",
                     gb(m.sum.there), kg_str_text(&help));
out:
    kg_str_release(&help);
    return status;
}

/* ---- lines ---- */

/* "memory      on the host 3.10 GB: anchor 2.00, ..." */
static kg_status put_list(struct kg_str *out, const char *begin, uint64_t sum, bool host,
                          const struct kg_memory *m, struct kg_err *err)
{
    const char *before = "";

    KG_TRY(kg_str_printf(out, err, "%s%.2f GB: ", begin, gb(sum)));
    for (int i = 0; i < m->n; i++) {
        struct kg_bytes b = m->item[i].bytes;
        uint64_t bytes = host ? b.host : b.there;

        if (bytes == 0)
            continue;
        KG_TRY(kg_str_printf(out, err, "%s%s %.2f", before, m->item[i].what, gb(bytes)));
        before = ", ";
    }
    return kg_str_putc(out, '\n', err);
}

static kg_status put_device(struct kg_str *out, const struct kg_run_work *w,
                            uint64_t needed, struct kg_err *err)
{
    bool fits = needed <= w->device_free;

    if (w->device_free == 0)
        return KG_OK;
    return kg_str_printf(
        out, err,
        "            the device has %.2f GB, %.2f of them free; %.2f are "
        "%s\n",
        gb(w->device_total), gb(w->device_free),
        gb(fits ? w->device_free - needed : needed - w->device_free),
        fits ? "left" : "missing");
}

kg_status kg_run_memory_say(struct kg_str *out, const struct kg_run *run,
                            struct kg_err *err)
{
    const struct kg_model *model = run->state.model;
    int ranks = run->work.ranks->n;
    struct kg_memory m;

    kg_run_memory(&m, run);
    if (ranks > 1)
        KG_TRY(kg_str_printf(out, err,
                             "ranks       %d that train: the numbers below are per rank; "
                             "together %.2f GB\n",
                             ranks, ranks * gb(kg_bytes_sum(m.sum))));
    if (model->host == model->backend) { /* one memory */
        for (int i = 0; i < m.n; i++) {
            m.item[i].bytes.there = kg_bytes_sum(m.item[i].bytes);
            m.item[i].bytes.host = 0;
        }
        return put_list(out, "memory      ", kg_bytes_sum(m.sum), false, &m, err);
    }
    KG_TRY(put_list(out, "memory      device ", m.sum.there, false, &m, err));
    KG_TRY(put_device(out, &run->work, m.sum.there, err));
    return put_list(out, "            host ", m.sum.host, true, &m, err);
}
