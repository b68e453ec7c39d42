/* Measures the gain from completions that span versions (rollout.max_staleness): training
 * steps per hour, relative to a run whose steps wait for their longest completion.
 *
 * Every token ends a completion, or a turn, with the same chance, so lengths vary tenfold
 * and more. A second measurement has a tool that takes 200 ms. Both runs train one model
 * with random weights that hardly change. They sample the same completions in the same
 * order and alternate every few steps, so that both see the same machine. In one process
 * sampling and training share all threads. With two ranks the run that spans versions
 * samples on one while the other trains; in the other both do both.
 */
#include "lab/bench/lab_bench.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/signal.h"
#include "data/options.h"
#include "recipe/options.h"
#include "text/bpe.h"
#include "train/keep/run_dir.h"
#include "train/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STALENESS = 2, ENDS = 12 /* of 257 ids */, KEYS = 40, OWN = 9, KEY_BYTES = 400 };
enum { EPISODES = 128 }; /* at most, per step */

static kg_status make_model(const char *dir, const struct kg_bench_async_size *size,
                            struct kg_err *err)
{
    static const char *const text = "text", *const end[] = {"<end>"};
    const struct kg_bpe_train train = {
        .vocab_size = 257, .specials = end, .n_specials = 1};
    const struct kg_path tokenizer = kg_path_in(dir, "tokenizer");
    const struct kg_model_save save = {.dtype = KG_F32, .source_dir = tokenizer.text};
    const struct kg_model_opts opts = {.ct = KG_F32, .trainable = true};
    struct kg_model_config c = {.vocab = 257,
                                .hidden = size->hidden,
                                .ffn = 2 * size->hidden,
                                .layers = size->layers,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = size->hidden / 4,
                                .max_positions = 512,
                                .norm_eps = 1e-6f,
                                .rope_theta = 10000,
                                .tied = true,
                                .qkv_bias = true,
                                .init_range = 0.02f,
                                .bos = -1,
                                .dtype_name = "float32"};
    struct kg_model *m = NULL;

    while (c.n_eos < ENDS)
        c.eos[c.n_eos] = c.n_eos, c.n_eos++;
    KG_TRY(kg_file_make_dirs(tokenizer.text, err));
    KG_TRY(kg_bpe_train_write(tokenizer.text, &text, 1, &train, err));
    KG_TRY(kg_arch_find(&c.arch, "qwen2", err));
    KG_TRY(kg_model_create(&m, &c, &opts, 1, err));
    kg_status status = kg_model_save(m, kg_path_in(dir, "model").text, &save, err);
    kg_model_free(m);
    return status;
}

/* ---- a slow tool ---- */

struct tool {
    double latency;           /* seconds */
    uint64_t asked[EPISODES]; /* (n) episodes of open calls, in order of time */
    double due[EPISODES];
    int n;
};

/* opts->retriever holds the latency in seconds. */
static kg_status tool_open(void **state, const struct kg_env_opts *opts,
                           struct kg_err *err)
{
    struct tool *t = kg_mem_calloc(1, sizeof *t, "tool", err);

    if (!t)
        return err->code;
    t->latency = strtod(opts->retriever, NULL);
    *state = t;
    return KG_OK;
}

static void tool_close(void *state) { kg_mem_free(state); }

static kg_status tool_step(struct kg_env_result *result, struct kg_str *observation,
                           void *state, const struct kg_env_turn *turn,
                           struct kg_err *err)
{
    struct tool *t = state;

    (void)observation;
    (void)err;
    *result = (struct kg_env_result){.valid = true, .called = !turn->last};
    if (turn->last)
        return KG_OK;
    result->next = KG_ENV_WAIT;
    t->asked[t->n] = turn->episode;
    t->due[t->n++] = kg_clock_seconds() + t->latency;
    return KG_OK;
}

static kg_status deliver_due(struct tool *t, double now, int *n,
                             kg_env_deliver_fn deliver, void *user, struct kg_err *err)
{
    static const char text[] = "forty bytes of text that a tool gave back";
    int due = 0;

    while (due < t->n && t->due[due] <= now)
        due++;
    *n = due;
    for (int i = 0; i < due; i++) {
        struct kg_env_delivery d = {
            .episode = t->asked[i], .observation = text, .n = sizeof text - 1};

        KG_TRY(deliver(user, &d, err));
    }
    t->n -= due;
    memmove(t->asked, t->asked + due, (size_t)t->n * sizeof *t->asked);
    memmove(t->due, t->due + due, (size_t)t->n * sizeof *t->due);
    return KG_OK;
}

static kg_status tool_poll(void *state, int timeout_ms, kg_env_deliver_fn deliver,
                           void *user, struct kg_err *err)
{
    struct tool *t = state;
    double now = kg_clock_seconds(), end = now + 1e-3 * timeout_ms;
    int n;

    KG_TRY(deliver_due(t, now, &n, deliver, user, err));
    if (n == 0 && t->n > 0 && timeout_ms > 0) {
        double pause = (t->due[0] < end ? t->due[0] : end) - now;
        struct timespec rest = {.tv_nsec = (long)(1e9 * pause)};

        nanosleep(&rest, NULL);
        return deliver_due(t, kg_clock_seconds(), &n, deliver, user, err);
    }
    return KG_OK;
}

static const struct kg_env_row bench_tool = {.name = "bench",
                                             .open = tool_open,
                                             .close = tool_close,
                                             .step = tool_step,
                                             .poll = tool_poll};

/* ---- a run ---- */

static const char *const of_all[] = {
    "task.name=arithmetic", "task.level=easy", "task.count=512", "task.val_count=1",
    "rollout.samples=8", "rollout.max_batch=64", "rollout.max_tokens=160",
    "train.steps=1000", "train.updates_per_step=1", "optim.lr=1e-12",
    "checkpoint.every=0", "eval.at_start=false", "log.report=false",
    /* without this all rewards would be 0, and no update would be made */
    "rollout.overlong_buffer=140", NULL};
static const char *const of_tools[] = {"episode.env=calculator", "episode.turns=2",
                                       "episode.turn_tokens=48", "episode.obs_tokens=64",
                                       "episode.context=512",    NULL};

struct running {
    struct kg_config *config; /* owned */
    struct kg_run run;
    bool open;
    double seconds; /* of its timed steps */
};

struct comparison {
    struct kg_bench_report *r;
    const struct kg_bench_async_size *size;
    struct kg_ranks *ranks;
    const char *dir;
    bool tool;
    struct running waits, spans;
};

static void stop(struct running *x)
{
    if (x->open)
        kg_run_close(&x->run);
    kg_config_free(x->config);
}

static kg_status make_config(struct running *x, const struct comparison *c, int staleness,
                             struct kg_err *err)
{
    const int lag = c->ranks->n > 1 && staleness > 0;
    char own[OWN][KEY_BYTES];
    char *keys[KEYS];
    size_t n = 0;

    snprintf(own[0], KEY_BYTES, "model.path=%s/model", c->dir);
    snprintf(own[1], KEY_BYTES, "model.dtype=%s", kg_dtype_traits(c->r->ct)->name);
    snprintf(own[2], KEY_BYTES, "run.dir=%s/run-%d", c->dir, staleness);
    snprintf(own[3], KEY_BYTES, "rollout.max_staleness=%d", staleness + lag);
    snprintf(own[4], KEY_BYTES, "rollout.prompts=%d", c->size->prompts);
    snprintf(own[5], KEY_BYTES, "rollout.lag=%d", lag);
    snprintf(own[6], KEY_BYTES, "ranks.rollout=%d", lag);
    snprintf(own[7], KEY_BYTES, "train.lanes=%d", c->ranks->n > 1 ? c->ranks->n : 1);
    snprintf(own[8], KEY_BYTES, "run.threads=%d", kg_threads_get());
    for (int i = 0; i < OWN; i++)
        keys[n++] = own[i];
    for (int i = 0; of_all[i]; i++)
        keys[n++] = (char *)(uintptr_t)of_all[i];
    for (int i = 0; c->tool && of_tools[i]; i++)
        keys[n++] = (char *)(uintptr_t)of_tools[i];
    return kg_train_config(&x->config, NULL, keys, n, err);
}

/* Replaces the calculator by the tool. */
static kg_status take_tool(struct kg_run *run, struct kg_err *err)
{
    kg_episodes_close(run->work.episodes);
    run->work.episodes = NULL;
    run->in.episode_opts.env = &bench_tool;
    run->in.episode_opts.env_opts.retriever = "0.2";
    run->in.recipe.rollout.tool_steps = run->in.recipe.rollout.max_staleness > 0;
    return kg_episodes_open(&run->work.episodes, run->in.tok, &run->in.episode_opts, err);
}

static kg_status begin(struct running *x, const struct comparison *c, int staleness,
                       struct kg_err *err)
{
    struct kg_run *run = &x->run;

    KG_TRY(make_config(x, c, staleness, err));
    KG_TRY(kg_run_open_on(run, c->ranks, x->config, err));
    x->open = true;
    if (c->tool)
        KG_TRY(take_tool(run, err));
    if (!run->log.elsewhere) {
        KG_TRY(kg_run_dir_create(&run->in, &run->state, c->ranks, &run->log, err));
        KG_TRY(kg_run_dir_cut(&run->in, &run->state, c->ranks, &run->log, err));
    }
    return run->work.ahead.samples ? KG_OK : kg_run_start_rl(&run->in, &run->state, err);
}

/* ---- side by side ---- */

/* One step, as in train/loop.c. */
static kg_status take_step(struct kg_run *run, struct kg_err *err)
{
    struct kg_ahead *a = &run->work.ahead;
    kg_status status;

    KG_TRY(kg_ahead_begin(run, err));
    if (kg_signal_stop_requested())
        status = kg_fail(err, KG_EINTERRUPTED, "stopped by a signal");
    else
        status = a->samples ? kg_ahead_sample(run, err) : kg_rl_step(run, err);
    KG_TRY(kg_ahead_agree(a, status, "step", err));
    return kg_ahead_pass(run, err);
}

/* The first steps are not timed. They fill the pipeline and the machine's caches, and use
 * up tool replies that became due during the other run's steps. */
static kg_status take_steps(struct running *x, int first, int n, struct kg_err *err)
{
    double since = 0;

    for (int i = 0; i < first + n; i++) {
        if (i == first)
            since = kg_clock_seconds();
        KG_TRY(take_step(&x->run, err));
    }
    x->seconds += kg_clock_seconds() - since;
    return KG_OK;
}

static kg_status compare(struct comparison *c, struct kg_err *err)
{
    const double n = 3600.0 * c->size->steps * c->size->rounds;
    struct kg_bench_share share = {
        .name = c->tool ? "training, max_staleness 2, a tool of 200 ms"
                        : "training, max_staleness 2, lengths of 1 to 160",
        .unit = "steps/h",
        .of = "max_staleness 0",
        .bar = {1.5, false}};
    kg_status status = KG_OK;

    if (c->ranks->me == 0)
        status = make_model(c->dir, c->size, err);
    KG_TRY(kg_ranks_agree(c->ranks, status, "model", err));
    KG_TRY(kg_ranks_agree(c->ranks, begin(&c->waits, c, 0, err), "opening", err));
    KG_TRY(kg_ranks_agree(c->ranks, begin(&c->spans, c, STALENESS, err), "opening", err));
    for (int i = 0; i < c->size->rounds; i++) {
        KG_TRY(take_steps(&c->waits, 1, c->size->steps, err));
        KG_TRY(take_steps(&c->spans, i == 0 ? STALENESS + 2 : 2, c->size->steps, err));
    }
    share.part = n / c->spans.seconds;
    share.whole = n / c->waits.seconds;
    return kg_bench_put_share(c->r, &share, err);
}

/* One folder for all ranks. */
static kg_status make_dir(char dir[KEY_BYTES], struct kg_ranks *ranks, struct kg_err *err)
{
    const char *tmp = getenv("TMPDIR");
    struct kg_str name = {0};
    kg_status status = KG_OK;

    if (ranks->me == 0)
        status = kg_file_temporary(
            &name, kg_path_in(tmp && *tmp ? tmp : "/tmp", "kedge-bench").text, err);
    snprintf(dir, KEY_BYTES, "%s", kg_str_text(&name));
    kg_str_release(&name);
    KG_TRY(kg_ranks_agree(ranks, status, "folder", err));
    return kg_ranks_share(ranks, dir, KEY_BYTES, "folder", err);
}

kg_status kg_bench_async_of(struct kg_bench_report *r,
                            const struct kg_bench_async_size *size, struct kg_err *err)
{
    struct kg_ranks alone = {0}, *ranks = r->ranks ? r->ranks : &alone;
    char dir[KEY_BYTES];
    struct kg_err ignored;
    kg_status status = make_dir(dir, ranks, err);

    for (int tool = 0; tool < 2 && status == KG_OK; tool++) {
        struct comparison c = {
            .r = r, .size = size, .ranks = ranks, .dir = dir, .tool = tool};

        status = compare(&c, err);
        stop(&c.waits);
        stop(&c.spans);
        if (ranks->me == 0 && kg_file_remove_tree(dir, &ignored) != KG_OK &&
            status == KG_OK)
            status = kg_fail(err, KG_EIO, "%s", ignored.message);
    }
    return status;
}

kg_status kg_bench_async(struct kg_bench_report *r, struct kg_err *err)
{
    static const struct kg_bench_async_size size = {
        .steps = 8, .rounds = 3, .prompts = 2, .hidden = 256, .layers = 4};

    kg_signal_install(); /* so that Ctrl-C removes the folder of the runs */
    return kg_bench_async_of(r, &size, err);
}
