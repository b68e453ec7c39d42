/* What waiting for a tool costs: a rollout of episodes against a tool that answers after
 * 200 ms, beside the same rollout against one that answers at once.
 *
 * Turns end at random (an end token, or the limit), so that episodes fall out of step as
 * they do in training. Both rollouts sample the same tokens.
 */
#include "lab/bench/lab_bench.h"

#include "base/clock.h"
#include "base/mem.h"
#include "rollout/episode.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EPISODES = 128, ROWS = 64, PROMPT = 32, REPEATS = 3 };
static const char INSTANT[] = "0", SLOW[] = "0.2";

/* ---- a tool that takes its time ---- */

struct tool {
    double latency;           /* seconds */
    uint64_t asked[EPISODES]; /* (n) in order of time */
    double due[EPISODES];
    int n;
};

/* Where a retriever would be named stand the seconds that an answer takes. */
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

const struct kg_env_row kg_bench_tool = {.name = "bench",
                                         .open = tool_open,
                                         .close = tool_close,
                                         .step = tool_step,
                                         .poll = tool_poll};

/* ---- the rollout ---- */

struct rollout {
    struct kg_model *model;   /* owned, as the next four */
    struct kg_tokenizer *tok; /* of bytes */
    struct kg_episodes *instant, *slow;
    struct kg_rollout *engine;
    int32_t prompt[EPISODES][PROMPT];
    struct kg_request requests[EPISODES];
    struct kg_record record;
    struct kg_dataset data;
    struct kg_prompts prompts;
    int64_t rows[EPISODES];
    struct kg_episodes *asked; /* of the two, borrowed */
    double idle;               /* seconds of the last run in which nothing decoded */
};

static kg_status make_tokenizer(struct kg_tokenizer **tok, struct kg_err *err)
{
    static const char *const texts[] = {"text"};
    static const char *const end[] = {"<end>"};
    struct kg_bpe_train train = {.vocab_size = 257, .specials = end, .n_specials = 1};
    struct kg_str json = {0};
    kg_status status = kg_bpe_train_json(&json, texts, 1, &train, err);

    if (status == KG_OK)
        status = kg_tokenizer_parse(tok, json.data, json.len, "tokenizer.json", err);
    kg_str_release(&json);
    return status;
}

static void make_requests(struct rollout *x)
{
    struct kg_rng_key key = {1, KG_RNG_TEST};

    for (uint32_t i = 0; i < EPISODES; i++) {
        for (uint32_t k = 0; k < PROMPT; k++)
            x->prompt[i][k] = (int32_t)kg_rng_below(key, i, k, 0, 256);
        x->requests[i] = (struct kg_request){.prompt = x->prompt[i],
                                             .prompt_n = PROMPT,
                                             .prompt_index = i,
                                             .draw = i,
                                             .n_samples = 1};
    }
    x->data = (struct kg_dataset){.records = &x->record, .n = 1};
    x->prompts = (struct kg_prompts){.data = &x->data, .record = x->rows, .n = EPISODES};
}

static kg_status init(struct rollout *x, const struct kg_bench_report *r,
                      struct kg_err *err)
{
    struct kg_bench_shape shape = kg_bench_small;
    struct kg_episode_opts opts = {.env = &kg_bench_tool,
                                   .turns = 2,
                                   .turn_tokens = 48,
                                   .obs_tokens = 64,
                                   .context = 512};
    struct kg_rollout_opts ro = {.max_batch = ROWS};

    shape.vocab = 257;
    KG_TRY(kg_bench_model(&x->model, r, &shape, false, err));
    for (int32_t i = 0; i < KG_MAX_EOS && i < 12; i++) /* 1 of 21 tokens ends a turn */
        x->model->config.eos[x->model->config.n_eos++] = i;
    KG_TRY(make_tokenizer(&x->tok, err));
    opts.env_opts.retriever = INSTANT;
    KG_TRY(kg_episodes_open(&x->instant, x->tok, &opts, err));
    opts.env_opts.retriever = SLOW;
    KG_TRY(kg_episodes_open(&x->slow, x->tok, &opts, err));
    kg_episodes_fit(&ro, x->slow);
    make_requests(x);
    return kg_rollout_create(&x->engine, x->model, x->tok, &ro, err);
}

static kg_status run(double *seconds, void *user, struct kg_err *err)
{
    struct rollout *x = user;
    struct kg_sampling s = {
        .temperature = 1, .top_p = 1, .max_tokens = 1, .rng = {1, KG_RNG_TEST}};
    struct kg_traj *trajs = kg_mem_calloc(EPISODES, sizeof *trajs, "episodes", err);
    double start = kg_clock_seconds();
    kg_status status;

    if (!trajs)
        return err->code;
    x->idle = 0;
    status = kg_episodes_run(x->asked, x->engine, trajs, x->requests, EPISODES, &s,
                             &x->prompts, &x->idle, err);
    *seconds = kg_clock_seconds() - start;
    for (int i = 0; i < EPISODES; i++)
        kg_traj_release(&trajs[i]);
    kg_mem_free(trajs);
    return status;
}

/* By turns, so that both see the same machine. */
static kg_status compare(struct kg_bench_report *r, struct rollout *x, struct kg_err *err)
{
    struct kg_bench_job job = {.run = run, .user = x};
    struct kg_bench_timing instant = {.n = 0}, slow = {.n = 0};
    struct kg_bench_share share = {"rollout of 128 episodes, 64 rows, tool of 200 ms",
                                   0,
                                   0,
                                   "s",
                                   "the same, an instant tool",
                                   {1.10, true}};
    struct kg_bench_share idle = {"rollout of 128 episodes: all waited, nothing decoded",
                                  0,
                                  0,
                                  "s",
                                  "the rollout",
                                  {0.10, true}};

    for (int i = 0; i < REPEATS; i++) {
        x->asked = x->instant;
        KG_TRY(kg_bench_repeat(&instant, r, &job, err));
        x->asked = x->slow;
        KG_TRY(kg_bench_repeat(&slow, r, &job, err));
    }
    share.part = kg_bench_best(&slow);
    share.whole = kg_bench_best(&instant);
    idle.part = x->idle;
    idle.whole = slow.seconds[slow.n - 1];
    KG_TRY(kg_bench_put_share(r, &share, err));
    return kg_bench_put_share(r, &idle, err);
}

kg_status kg_bench_episodes(struct kg_bench_report *r, struct kg_err *err)
{
    struct rollout *x = kg_mem_calloc(1, sizeof *x, "episodes", err);

    if (!x)
        return err->code;
    kg_status status = init(x, r, err);
    if (status == KG_OK)
        status = compare(r, x, err);
    kg_rollout_free(x->engine);
    kg_episodes_close(x->instant);
    kg_episodes_close(x->slow);
    kg_tokenizer_close(x->tok);
    kg_model_free(x->model);
    kg_mem_free(x);
    return status;
}
