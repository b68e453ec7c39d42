/* Several rewards of one completion: a list of graders, each with its name and weight.
 *
 * An entry is "NAME=GRADER": a task of the table (its grader, with the options of the
 * run's task) or "external COMMAND". The reward of a completion is the weighted sum of
 * the rewards that could be graded. It is correct if the first reward's grade is, and
 * graded if any reward could be.
 */
#include "base/mem.h"
#include "task/task_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct part {
    char name[KG_TASK_PART_NAME];
    double weight;
    const struct kg_task_row *row;
    struct kg_task_opts opts; /* command and running are owned */
};

struct kg_task_rewards {
    struct part part[KG_TRAJ_PARTS];
    int n;
};

/* ---- the list ---- */

static kg_status read_name(struct part *p, const struct kg_task_rewards *r,
                           const char *spec, const char **grader, struct kg_err *err)
{
    size_t n = strcspn(spec, "=");
    bool good = n > 0 && n < sizeof p->name && spec[n] == '=' && spec[n + 1];

    for (size_t i = 0; good && i < n; i++)
        good = isalnum((unsigned char)spec[i]) || kg_char_in("_-.", spec[i]);
    if (!good)
        return kg_fail(err, KG_EINVAL,
                       "expected NAME=GRADER with a NAME of up to %d letters, digits, "
                       "'_', '-' and '.', found '%.80s'",
                       KG_TASK_PART_NAME - 1, spec);
    memcpy(p->name, spec, n);
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->part[i].name, p->name) == 0)
            return kg_fail(err, KG_EINVAL, "expected different names, found '%s' twice",
                           p->name);
    *grader = spec + n + 1;
    return KG_OK;
}

static kg_status open_external(struct part *p, const char *command,
                               const struct kg_task_opts *opts, struct kg_err *err)
{
    char *own;

    while (*command == ' ')
        command++;
    own = kg_mem_strdup(*command ? command : opts->command ? opts->command : "", err);
    if (!own)
        return err->code;
    p->opts.command = own;
    if (!*own)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected a command after external, found none", p->name);
    return kg_task_grader_open(&p->opts.running, &p->opts, err);
}

static kg_status open_part(struct kg_task_rewards *r, const char *spec, double weight,
                           const struct kg_task_opts *opts, struct kg_err *err)
{
    struct part *p = &r->part[r->n];
    const char *grader = "";
    size_t n;
    char task[KG_TASK_PART_NAME] = "";

    *p = (struct part){.weight = weight, .opts = *opts};
    p->opts.rewards = NULL;
    p->opts.running = NULL;
    p->opts.command = NULL;
    p->opts.further_of = p->name;
    KG_TRY(read_name(p, r, spec, &grader, err));
    r->n++;
    n = strcspn(grader, " ");
    memcpy(task, grader, n < sizeof task ? n : sizeof task - 1);
    KG_TRY(kg_task_find(&p->row, task, err));
    if (kg_task_is_external(p->row))
        return open_external(p, grader + n, opts, err);
    if (grader[n])
        return kg_fail(err, KG_EINVAL, "expected nothing after task %s, found '%.80s'",
                       task, grader + n);
    return KG_OK;
}

kg_status kg_task_rewards_open(struct kg_task_rewards **rewards, const char *const *specs,
                               const double *weights, size_t n,
                               const struct kg_task_opts *opts, struct kg_err *err)
{
    struct kg_task_rewards *r = kg_mem_calloc(1, sizeof *r, "rewards", err);
    kg_status status;

    *rewards = r;
    if (!r)
        return err->code;
    if (n > KG_TRAJ_PARTS) {
        status = kg_fail(err, KG_EINVAL, "expected at most %d rewards, found %zu",
                         KG_TRAJ_PARTS, n);
        goto fail;
    }
    for (size_t i = 0; i < n; i++)
        KG_TRY_GOTO(fail, open_part(r, specs[i], weights ? weights[i] : 1, opts, err));
    return KG_OK;
fail:
    kg_task_rewards_close(r);
    *rewards = NULL;
    return status;
}

void kg_task_rewards_close(struct kg_task_rewards *r)
{
    for (int i = 0; r && i < r->n; i++) {
        kg_task_grader_close(r->part[i].opts.running);
        kg_mem_free((void *)(uintptr_t)r->part[i].opts.command);
    }
    kg_mem_free(r);
}

int kg_task_rewards_n(const struct kg_task_rewards *r) { return r ? r->n : 0; }

const char *kg_task_rewards_name(const struct kg_task_rewards *r, int i)
{
    return r->part[i].name;
}

double kg_task_rewards_weight(const struct kg_task_rewards *r, int i)
{
    return r->part[i].weight;
}

bool kg_task_rewards_stats(struct kg_task_grader_stats *sum,
                           const struct kg_task_rewards *r)
{
    bool any = false;

    for (int i = 0; r && i < r->n; i++) {
        if (!r->part[i].opts.running)
            continue;
        struct kg_task_grader_stats one = kg_task_grader_stats(r->part[i].opts.running);
        sum->starts += one.starts;
        sum->restarts += one.restarts;
        sum->batches += one.batches;
        any = true;
    }
    return any;
}

bool kg_task_runs_program(const struct kg_task_row *row, const struct kg_task_opts *opts)
{
    const struct kg_task_rewards *r = opts->rewards;

    if (!r)
        return kg_task_is_external(row);
    for (int i = 0; i < r->n; i++)
        if (kg_task_is_external(r->part[i].row))
            return true;
    return false;
}

/* ---- lists of a config ---- */

static kg_status read_weight(double *weight, const char *text, const char *key,
                             struct kg_err *err)
{
    char *end;

    *weight = strtod(text, &end);
    if (end == text || *end || !isfinite(*weight))
        return kg_fail(err, KG_EINVAL, "%s: expected numbers, found '%.80s'", key, text);
    return KG_OK;
}

static kg_status check_sizes(const struct kg_task_rewards_keys *keys, size_t n,
                             size_t weights, struct kg_err *err)
{
    if (weights != 0 && weights != n)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected one weight for each reward of %s (%zu), found %zu",
                       keys->weights, keys->rewards, n, weights);
    if (n > KG_TRAJ_PARTS)
        return kg_fail(err, KG_EINVAL, "%s: expected at most %d rewards, found %zu",
                       keys->rewards, KG_TRAJ_PARTS, n);
    return KG_OK;
}

/* The task's command serves only rewards that are exactly NAME=external. */
static kg_status check_command(struct kg_opt_list specs,
                               const struct kg_task_rewards_keys *keys,
                               const char *command, struct kg_err *err)
{
    for (size_t i = 0; i < specs.n; i++)
        if (strcmp(specs.items[i] + strcspn(specs.items[i], "="), "=external") == 0)
            return KG_OK;
    if (!command || !*command)
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "%s: expected no command, found '%.80s': no entry of %s is exactly "
                   "NAME=external, so it would never run; remove it or add such an entry",
                   keys->command, command, keys->rewards);
}

kg_status kg_task_rewards_read(struct kg_task_rewards **rewards,
                               const struct kg_task_rewards_keys *keys,
                               struct kg_opt_list specs, struct kg_opt_list weights,
                               const struct kg_task_opts *opts, struct kg_err *err)
{
    double of[KG_TRAJ_PARTS];
    kg_status status;

    *rewards = NULL;
    KG_TRY(check_sizes(keys, specs.n, weights.n, err));
    for (size_t i = 0; i < weights.n; i++)
        KG_TRY(read_weight(&of[i], weights.items[i], keys->weights, err));
    if (specs.n == 0)
        return KG_OK;
    KG_TRY(check_command(specs, keys, opts->command, err));
    status = kg_task_rewards_open(rewards, specs.items, weights.n ? of : NULL, specs.n,
                                  opts, err);
    return status == KG_OK ? KG_OK : kg_err_prefix(err, "%s", keys->rewards);
}

/* ---- grading ---- */

static void combine(struct kg_grade *g, const struct kg_grade *one, int k, double weight)
{
    g->part[k] = one->graded ? one->reward : NAN;
    g->undecided |= one->undecided;
    if (k == 0)
        g->correct = one->graded && one->correct;
    g->graded = g->graded || one->graded;
    g->reward += weight * kg_grade_reward(one);
    for (int i = 0; i < KG_FURTHER; i++)
        if (one->further.said >> i & 1)
            g->further.x[i] = one->further.x[i];
    g->further.said |= one->further.said;
}

kg_status kg_task_rewards_grade(struct kg_grade *grades, const struct kg_task_opts *opts,
                                const struct kg_grade_item *items, size_t n,
                                struct kg_err *err)
{
    const struct kg_task_rewards *r = opts->rewards;
    struct kg_grade *one = kg_mem_calloc(n, sizeof *one, "rewards of a batch", err);
    kg_status status = one ? KG_OK : err->code;

    for (size_t i = 0; i < n; i++)
        grades[i] = (struct kg_grade){.n_parts = r->n};
    for (int k = 0; status == KG_OK && k < r->n; k++) {
        const struct part *p = &r->part[k];
        struct kg_task_opts of_part = p->opts;

        of_part.undecided = opts->undecided;
        memset(one, 0, n * sizeof *one);
        status = kg_task_grade(one, p->row, &of_part, items, n, err);
        if (status != KG_OK)
            (void)kg_err_prefix(err, "reward %s", p->name);
        for (size_t i = 0; status == KG_OK && i < n; i++)
            combine(&grades[i], &one[i], k, p->weight);
    }
    kg_mem_free(one);
    return status;
}
