/* A persistent grader program: started once, used for every batch. The first batch
 * distinguishes two kinds of programs. One replies line by line and stays. The other
 * reads all of its input first, or buffers its output: when it falls silent, its input is
 * closed, and from then on it is started for every batch. A program that dies after a
 * reply is restarted and gets the batch again; one that dies before is an error. */
#include "base/log.h"
#include "base/mem.h"
#include "task/task_internal.h"

#include <pthread.h>

enum { SETTLE_MS = 20 }; /* of listening for surplus answers after a batch */

struct kg_task_grader {
    struct kg_task_command command; /* text owned */
    enum kg_task_life life;
    pthread_mutex_t lock;        /* protects the members below */
    struct kg_task_child *child; /* owned; NULL: none runs */
    int64_t served;              /* batches by this child */
    bool to_the_end;             /* it reads all of its input before it answers */
    struct kg_task_grader_stats stats;
};

kg_status kg_task_grader_open(struct kg_task_grader **grader,
                              const struct kg_task_opts *opts, struct kg_err *err)
{
    char *command, *env;

    *grader = NULL;
    KG_TRY(kg_task_external_check(opts, err));
    KG_TRY(kg_task_env_check(opts->env, err));
    struct kg_task_grader *g = kg_mem_calloc(1, sizeof *g, "grader", err);
    command = g ? kg_mem_strdup(opts->command, err) : NULL;
    env = command ? kg_mem_strdup(opts->env ? opts->env : "", err) : NULL;
    if (!env) {
        kg_mem_free(command);
        kg_mem_free(g);
        return err->code;
    }
    *g = (struct kg_task_grader){
        .command = {.command = command, .env = env, .timeout_ms = opts->timeout_ms},
        .life = opts->life};
    pthread_mutex_init(&g->lock, NULL);
    *grader = g;
    return KG_OK;
}

void kg_task_grader_close(struct kg_task_grader *g)
{
    if (!g)
        return;
    kg_task_child_kill(g->child);
    pthread_mutex_destroy(&g->lock);
    kg_mem_free((void *)(uintptr_t)g->command.command);
    kg_mem_free((void *)(uintptr_t)g->command.env);
    kg_mem_free(g);
}

struct kg_task_grader_stats kg_task_grader_stats(struct kg_task_grader *g)
{
    struct kg_task_grader_stats stats;

    pthread_mutex_lock(&g->lock);
    stats = g->stats;
    pthread_mutex_unlock(&g->lock);
    return stats;
}

static bool is_single(const struct kg_task_grader *g)
{
    return g->life == KG_TASK_LIFE_BATCH || g->to_the_end;
}

static void note_single(struct kg_task_grader *g)
{
    kg_log_info(
        "'%.80s': handles one batch, so kedge starts it for every batch; a grader that "
        "writes and flushes a line per input line keeps running",
        g->command.command);
    g->to_the_end = true;
}

/* Removes a child that has served and is gone. If it ended without an error it takes one
 * batch per start, unless the user says that it stays. */
static void bury(struct kg_task_grader *g)
{
    struct kg_err why = {0};
    struct kg_task_child *child = g->child;
    kg_status status = KG_OK;

    g->child = NULL;
    if (kg_task_child_ended(child))
        status = kg_task_child_end(child, &why);
    else
        kg_task_child_kill(child);
    if (status == KG_OK && g->life == KG_TASK_LIFE_AUTO) {
        note_single(g);
        return;
    }
    kg_log_warn("restarting a grader after %lld batches: %s", (long long)g->served,
                status == KG_OK ? "it ended" : why.message);
    g->stats.restarts++;
}

static kg_status make_ready(struct kg_task_grader *g, struct kg_err *err)
{
    if (g->child && (kg_task_child_ended(g->child) || !kg_task_child_listens(g->child)))
        bury(g);
    if (g->child)
        return KG_OK;
    KG_TRY(kg_task_child_start(&g->child, &g->command, err));
    g->served = 0;
    g->stats.starts++;
    return KG_OK;
}

/* The child has ended: reaps it, and fails unless its exit status is 0. */
static kg_status see_off(struct kg_task_grader *g, struct kg_err *err)
{
    struct kg_task_child *child = g->child;

    g->child = NULL;
    return kg_task_child_end(child, err);
}

/* Fails on surplus answers, which would be taken for answers to the next batch. */
static kg_status check_quiet(struct kg_str *out, struct kg_task_grader *g, int wait_ms,
                             struct kg_err *err)
{
    const struct kg_task_talk nothing = {.max_output = 1 << 16};
    size_t before = out->len;

    KG_TRY(kg_task_child_hear(out, g->child, &nothing, wait_ms, err));
    if (out->len == before)
        return KG_OK;
    return kg_fail(
        err, KG_EFORMAT, "'%.80s': expected one answer for each line, found more: '%.*s'",
        g->command.command, (int)(out->len - before > 80 ? 80 : out->len - before),
        out->data + before);
}

static kg_status ask(struct kg_str *out, struct kg_task_grader *g,
                     const struct kg_task_talk *batch, struct kg_err *err)
{
    struct kg_task_talk talk = *batch;

    talk.end = is_single(g);
    talk.patient = g->life == KG_TASK_LIFE_AUTO && g->stats.batches == 0 && !talk.end;
    KG_TRY(kg_task_child_ask(out, g->child, &talk, err));
    if (!talk.end && kg_task_child_is_done(g->child))
        note_single(g);
    return KG_OK;
}

/* Number of lines from `begin` on; the last one needs no newline. */
static size_t answers(const struct kg_str *out, size_t begin)
{
    size_t lines = 0;

    for (size_t i = begin; i < out->len; i++)
        lines += out->data[i] == '\n';
    return lines + (out->len > begin && out->data[out->len - 1] != '\n');
}

/* *again: the child died in this batch after earlier ones; its answers are dropped */
static kg_status try_batch(struct kg_str *out, struct kg_task_grader *g,
                           const struct kg_task_talk *talk, bool *again,
                           struct kg_err *err)
{
    size_t begin = out->len;

    *again = false;
    KG_TRY(make_ready(g, err));
    if (g->served > 0)
        KG_TRY(check_quiet(out, g, 0, err));
    KG_TRY(ask(out, g, talk, err));
    if (is_single(g))
        return see_off(g, err);
    if (answers(out, begin) >= talk->lines) {
        g->served++;
        return check_quiet(out, g, SETTLE_MS, err);
    }
    if (g->served == 0 || !kg_task_child_ended(g->child))
        return see_off(g, err);
    bury(g);
    out->len = begin;
    *again = true;
    return KG_OK;
}

kg_status kg_task_grader_ask(struct kg_str *out, struct kg_task_grader *g,
                             const struct kg_task_talk *talk, struct kg_err *err)
{
    bool again = true;
    kg_status status = KG_OK;

    pthread_mutex_lock(&g->lock); /* one program: one batch at a time */
    while (again && status == KG_OK)
        status = try_batch(out, g, talk, &again, err);
    if (status != KG_OK) {
        kg_task_child_kill(g->child);
        g->child = NULL;
    }
    g->stats.batches += status == KG_OK;
    pthread_mutex_unlock(&g->lock);
    return status;
}
