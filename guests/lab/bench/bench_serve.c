/* kedge bench serve: clients, rounds, and the report. The cost of a server is a few per
 * cent, less than a machine varies from minute to minute. So both sides run alternately
 * in one process, on the same sequences. The report has the ratios of neighbouring runs,
 * their median, and processor time, which a busy machine distorts less. Clients are one
 * thread over many sockets. Networks are not measured. */
#include "cli/cli.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/sort.h"
#include "data/json.h"
#include "net/http_client.h"
#include "rollout/sampling.h"
#include "serve/serve.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PROMPT = 16, MAX_ROUNDS = 4096, MAX_STREAMS = 512, ANSWER_MS = 600000 };

struct load {
    struct kg_serve_load_opts opts;
    struct kg_rollout *engine; /* for runs without the server */
    struct kg_request *requests;
    struct kg_traj *trajs;
    int32_t (*prompts)[PROMPT];
    struct kg_serve *server;
    pthread_t thread; /* of the server */
    bool thread_runs;
    atomic_bool stop;
    kg_status served; /* status of the thread */
    struct kg_err served_err;
    struct kg_http_client *client;
    char url[80];
    double *alone_s, *served_s, *ratio; /* (rounds) */
    double alone_cpu, served_cpu;       /* seconds of all threads, summed */
};

/* ---- both sides get the same sequences ---- */

static int32_t max_len(const struct load *l) { return PROMPT + l->opts.tokens; }

static struct kg_sampling sampling(const struct load *l)
{
    return (struct kg_sampling){.temperature = 1,
                                KG_TRUNCATION_OFF,
                                .max_tokens = l->opts.tokens,
                                .ignore_eos = true,
                                .rng = kg_seed_key()};
}

static kg_status make_requests(struct load *l, struct kg_err *err)
{
    size_t n = (size_t)l->opts.streams;
    l->prompts = kg_mem_calloc(n, sizeof *l->prompts, "load", err);
    l->requests = kg_mem_calloc(n, sizeof *l->requests, "load", err);
    l->trajs = kg_mem_calloc(n, sizeof *l->trajs, "load", err);
    l->alone_s = kg_mem_calloc(3 * (size_t)l->opts.rounds, sizeof(double), "load", err);
    if (!l->prompts || !l->requests || !l->trajs || !l->alone_s)
        return err->code;
    l->served_s = l->alone_s + l->opts.rounds;
    l->ratio = l->served_s + l->opts.rounds;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < PROMPT; k++)
            l->prompts[i][k] = (int32_t)((i * 131 + k * 17 + 3) %
                                         (size_t)l->opts.model->config.vocab);
    for (size_t i = 0; i < n; i++)
        l->requests[i] = (struct kg_request){.prompt = l->prompts[i],
                                             .prompt_n = PROMPT,
                                             .n_samples = 1,
                                             .draw = kg_seed_draw(i),
                                             .first_sample = kg_seed_sample(i)};
    return KG_OK;
}

static void release_trajs(struct load *l)
{
    for (int i = 0; l->trajs && i < l->opts.streams; i++)
        kg_traj_release(&l->trajs[i]);
}

static kg_status run_alone(double *seconds, struct load *l, struct kg_err *err)
{
    struct kg_sampling s = sampling(l);
    release_trajs(l);
    double start = kg_clock_seconds();
    KG_TRY(kg_rollout_run(l->engine, l->trajs, l->requests, (size_t)l->opts.streams, &s,
                          NULL, NULL, err));
    *seconds = kg_clock_seconds() - start;
    return KG_OK;
}

/* Processor time of all threads: a busy machine distorts it less than elapsed time. */
static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the server ---- */

static bool stop_asked(void *user)
{
    struct load *l = user;
    return atomic_load(&l->stop);
}

static void *serve_main(void *user)
{
    struct load *l = user;
    l->served = kg_serve_run(l->server, stop_asked, l, &l->served_err);
    return NULL;
}

static kg_status start_server(struct load *l, struct kg_err *err)
{
    struct kg_serve_opts opts = {.model = l->opts.model,
                                 .tok = l->opts.tok,
                                 .name = "load",
                                 .max_batch = l->opts.streams,
                                 .max_len = max_len(l),
                                 .max_requests = 4 * l->opts.streams,
                                 .max_connections = 4 * l->opts.streams,
                                 .piece_seconds = l->opts.piece_seconds};
    KG_TRY(kg_serve_open(&l->server, &opts, err));
    int code = pthread_create(&l->thread, NULL, serve_main, l);
    l->thread_runs = code == 0;
    if (code != 0)
        return kg_fail(err, KG_EIO, "cannot start a thread: %s", strerror(code));
    snprintf(l->url, sizeof l->url, "http://127.0.0.1:%d/v1/completions",
             kg_serve_port(l->server));
    return KG_OK;
}

static kg_status stop_server(struct load *l, struct kg_err *err)
{
    atomic_store(&l->stop, true);
    if (l->thread_runs)
        pthread_join(l->thread, NULL);
    kg_serve_close(l->server);
    if (l->served != KG_OK)
        *err = l->served_err;
    return l->served;
}

/* ---- the clients ---- */

static kg_status on_answer(void *user, const struct kg_http_answer *a, struct kg_err *err)
{
    (void)user;
    if (a->status != KG_OK)
        return kg_fail(err, KG_EIO, "a stream failed: %s", a->reason);
    if (a->http_status != 200 || a->body_n < 16 ||
        strcmp(a->body + a->body_n - 14, "data: [DONE]\n\n") != 0)
        return kg_fail(err, KG_EIO, "a stream ended with status %d: ...%.200s",
                       a->http_status, a->body + (a->body_n > 200 ? a->body_n - 200 : 0));
    return KG_OK;
}

static kg_status open_client(struct load *l, struct kg_err *err)
{
    struct kg_http_client_opts opts = {
        .max_in_flight = l->opts.streams, .timeout_ms = ANSWER_MS, .tries = 1};
    return kg_http_client_open(&l->client, &opts, err);
}

static kg_status ask(struct load *l, int i, struct kg_err *err)
{
    struct kg_str body = {0};
    kg_status status = kg_str_puts(&body, "{\"prompt\": ", err);
    if (status == KG_OK)
        status = kg_json_put_ints(&body, l->prompts[i], PROMPT, err);
    if (status == KG_OK)
        status = kg_str_printf(
            &body, err,
            ", \"max_tokens\": %d, \"ignore_eos\": true, \"seed\": %d, "
            "\"stream\": true%s}",
            l->opts.tokens, i, l->opts.tok ? "" : ", \"return_token_ids\": true");
    if (status == KG_OK)
        status = kg_http_client_submit(l->client, l->url, body.data, body.len,
                                       (uint64_t)i, err);
    kg_str_release(&body);
    return status;
}

static kg_status run_served(double *seconds, struct load *l, struct kg_err *err)
{
    double start = kg_clock_seconds();
    for (int i = 0; i < l->opts.streams; i++)
        KG_TRY(ask(l, i, err));
    while (kg_http_client_waiting(l->client) > 0) {
        KG_TRY(kg_http_client_poll(l->client, 10, on_answer, l, err));
        usleep(5000); /* clients share the server's cores: read many chunks at a time */
    }
    *seconds = kg_clock_seconds() - start;
    return KG_OK;
}

/* ---- the report ---- */

static double median(const double *values, int n)
{
    double sorted[MAX_ROUNDS];
    memcpy(sorted, values, (size_t)n * sizeof *values);
    kg_sort_doubles(sorted, (size_t)n);
    return sorted[n / 2];
}

static double least(const double *values, int n)
{
    double best = values[0];
    for (int i = 1; i < n; i++)
        best = values[i] < best ? values[i] : best;
    return best;
}

static kg_status put_row(struct kg_str *out, const struct load *l, const char *name,
                         double best, double middle, const char *unit, struct kg_err *err)
{
    return kg_str_printf(out, err,
                         l->opts.json ? "{\"name\": \"%s\", \"best\": %.6g, \"median\": "
                                        "%.6g, \"unit\": \"%s\"}\n"
                                      : "%-50s %10.4g best %10.4g median  %s\n",
                         name, best, middle, unit);
}

static kg_status report(struct kg_str *out, const struct load *l, struct kg_err *err)
{
    int n = l->opts.rounds;
    double work = (double)l->opts.streams * l->opts.tokens;
    double alone = median(l->alone_s, n);
    double served = median(l->served_s, n);
    KG_TRY(put_row(out, l, "engine alone", work / least(l->alone_s, n), work / alone,
                   "tokens/s", err));
    KG_TRY(put_row(out, l, "served, all streams", work / least(l->served_s, n),
                   work / served, "tokens/s", err));
    KG_TRY(put_row(out, l, "served / alone, paired rounds", 100 / least(l->ratio, n),
                   100 / median(l->ratio, n), "% (target: 90)", err));
    return put_row(out, l, "processor time, alone and served (with clients)",
                   1e6 * l->alone_cpu / (work * n), 1e6 * l->served_cpu / (work * n),
                   "us a token", err);
}

/* ---- the benchmark ---- */

static kg_status run_rounds(struct load *l, struct kg_err *err)
{
    double unused;
    KG_TRY(run_served(&unused, l, err)); /* opens connections, warms caches */
    for (int i = 0; i < l->opts.rounds; i++) {
        double start = cpu_seconds();
        KG_TRY(run_alone(&l->alone_s[i], l, err));
        double middle = cpu_seconds();
        KG_TRY(run_served(&l->served_s[i], l, err));
        l->alone_cpu += middle - start;
        l->served_cpu += cpu_seconds() - middle;
        l->ratio[i] = l->served_s[i] / l->alone_s[i];
    }
    return KG_OK;
}

static void release(struct load *l)
{
    release_trajs(l);
    kg_mem_free(l->trajs);
    kg_mem_free(l->requests);
    kg_mem_free(l->prompts);
    kg_mem_free(l->alone_s);
    kg_rollout_free(l->engine);
    kg_http_client_close(l->client);
}

static kg_status take_opts(struct load *l, const struct kg_serve_load_opts *opts,
                           struct kg_err *err)
{
    l->opts = *opts;
    l->opts.streams = opts->streams > 0 ? opts->streams : 64;
    l->opts.tokens = opts->tokens > 0 ? opts->tokens : 256;
    l->opts.rounds = opts->rounds > 0 ? opts->rounds : 5;
    if (l->opts.streams > MAX_STREAMS || l->opts.rounds > MAX_ROUNDS)
        return kg_fail(err, KG_EINVAL,
                       "expected at most %d streams and %d rounds, found %d and %d",
                       MAX_STREAMS, MAX_ROUNDS, l->opts.streams, l->opts.rounds);
    if (max_len(l) > opts->model->config.max_positions)
        return kg_fail(
            err, KG_EINVAL,
            "expected prompt and completion to fit the model's %d positions, found %d "
            "prompt tokens and %d new ones",
            opts->model->config.max_positions, PROMPT, l->opts.tokens);
    return KG_OK;
}

kg_status kg_serve_load(struct kg_str *out, const struct kg_serve_load_opts *opts,
                        struct kg_err *err)
{
    struct load l = {0};
    struct kg_err unread;
    kg_status status;
    KG_TRY(take_opts(&l, opts, err));
    struct kg_rollout_opts engine = {.max_batch = l.opts.streams, .max_len = max_len(&l)};
    KG_TRY_GOTO(out, make_requests(&l, err));
    KG_TRY_GOTO(out, kg_rollout_create(&l.engine, opts->model, opts->tok, &engine, err));
    KG_TRY_GOTO(out, open_client(&l, err));
    KG_TRY_GOTO(out, start_server(&l, err));
    KG_TRY_GOTO(out, run_rounds(&l, err));
    status = report(out, &l, err);
out:
    if (stop_server(&l, &unread) != KG_OK && status == KG_OK) {
        *err = unread;
        status = unread.code;
    }
    release(&l);
    return status;
}
