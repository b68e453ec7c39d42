/* Generated problems: problem i is a pure function of seed, level, part (train or
 * held-out) and index. A hash of its canonical text decides the part of a problem, so
 * data sets of different parts share no problem, whatever their seeds, levels and ranges.
 * A draw that falls into the other part is repeated under the same index. */
#include "task/task_internal.h"

#include <stdio.h>
#include <string.h>

enum {
    PARTS = 5, /* one problem in PARTS is held out */
    MAX_ATTEMPTS = 4096,
    /* far from the draws of the problem, so that faults do not change it */
    FAULT_DRAW = 1u << 20,
    MAX_LEVELS = 8,
};

uint64_t kg_task_draw_below(struct kg_task_draw *draw, uint64_t n)
{
    return kg_rng_below(draw->key, draw->index, draw->next++, draw->variant, n);
}

/* FNV-1a, then mixed so that the low digits depend on every byte. */
static uint64_t hash(const struct kg_str *text)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < text->len; i++)
        h = (h ^ (unsigned char)text->data[i]) * 0x100000001b3u;
    h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93u;
    return h ^ (h >> 32);
}

static void made_clear(struct kg_task_made *made)
{
    kg_str_clear(&made->prompt);
    kg_str_clear(&made->ground_truth);
    kg_str_clear(&made->solution);
    kg_str_clear(&made->problem);
}

static void made_release(struct kg_task_made *made)
{
    kg_str_release(&made->prompt);
    kg_str_release(&made->ground_truth);
    kg_str_release(&made->solution);
    kg_str_release(&made->problem);
}

struct picked {
    const struct kg_task_level *level[MAX_LEVELS];
    uint32_t number[MAX_LEVELS]; /* in the table: keys the draws */
    size_t n;
};

static kg_status pick_one(struct picked *picked, const struct kg_task_level *levels,
                          const char *name, size_t n, struct kg_err *err)
{
    char found[64];
    uint32_t i = 0;

    for (; levels[i].name; i++) {
        if (strlen(levels[i].name) == n && memcmp(levels[i].name, name, n) == 0) {
            picked->level[picked->n] = &levels[i];
            picked->number[picked->n++] = i;
            return KG_OK;
        }
    }
    snprintf(found, sizeof found, "%.*s", (int)n, name);
    return kg_str_unknown(KG_EINVAL, "levels, joined by '+'", found, levels, i,
                          sizeof *levels, err);
}

static kg_status pick_levels(struct picked *picked, const struct kg_task_level *levels,
                             const char *text, struct kg_err *err)
{
    while (picked->n < MAX_LEVELS) {
        size_t n = strcspn(text, "+");

        KG_TRY(pick_one(picked, levels, text, n, err));
        if (text[n] == 0)
            return KG_OK;
        text += n + 1;
    }
    return kg_fail(err, KG_EINVAL, "expected at most %d levels, found more", MAX_LEVELS);
}

static bool is_faulty(struct kg_task_draw draw, double rate)
{
    draw.next = FAULT_DRAW;
    return (double)kg_task_draw_below(&draw, 1u << 30) < rate * (double)(1u << 30);
}

/* Draws the problem of an index until it falls into the wanted part. */
static kg_status make(struct kg_task_made *made, const struct picked *picked,
                      const struct kg_task_opts *opts, uint64_t index, struct kg_err *err)
{
    size_t turn = (size_t)(index % picked->n);
    const struct kg_task_level *level = picked->level[turn];

    for (uint32_t attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
        struct kg_task_draw draw = {
            .key = {opts->seed, KG_RNG_TASK},
            .index = index,
            .variant = picked->number[turn] * MAX_ATTEMPTS + attempt,
        };

        made_clear(made);
        KG_TRY(level->make(made, &draw, level->data, is_faulty(draw, opts->fault_rate),
                           err));
        if ((hash(&made->problem) % PARTS == 0) == opts->held_out)
            return KG_OK;
    }
    return kg_fail(err, KG_EINVAL,
                   "level %s: expected a problem of the %s part in %d draws, found none",
                   level->name, opts->held_out ? "held-out" : "training", MAX_ATTEMPTS);
}

static kg_status fill(struct kg_dataset *d, const char *task, const struct picked *picked,
                      const struct kg_task_opts *opts, struct kg_err *err)
{
    struct kg_task_made made = {0};
    struct kg_str source = {0};
    kg_status status = KG_OK;

    for (int64_t i = 0; i < opts->count; i++) {
        uint64_t index = opts->first_index + (uint64_t)i;
        struct kg_record r = {.line = (int64_t)index};

        kg_str_clear(&source);
        KG_TRY_GOTO(out, kg_str_printf(&source, err, "%s/%s", task,
                                       picked->level[index % picked->n]->name));
        r.data_source = source.data;
        KG_TRY_GOTO(out, make(&made, picked, opts, index, err));
        struct kg_record full = r;

        full.prompt = made.prompt.data;
        full.ground_truth = made.ground_truth.data;
        full.solution = made.solution.data;
        KG_TRY_GOTO(out, kg_dataset_push(d, &full, err));
    }
out:
    kg_str_release(&source);
    made_release(&made);
    return status;
}

static kg_status put_name(struct kg_dataset *d, const char *task,
                          const struct kg_task_opts *opts, struct kg_err *err)
{
    struct kg_str name = {0};
    kg_status status = kg_str_printf(&name, err, "%s (%s%s)", task, opts->level,
                                     opts->held_out ? ", held out" : "");

    d->name = status == KG_OK ? kg_str_take(&name, err) : NULL;
    kg_str_release(&name);
    return d->name ? KG_OK : err->code;
}

kg_status kg_task_generate(struct kg_dataset *d, const char *task,
                           const struct kg_task_level *levels,
                           const struct kg_task_opts *opts, struct kg_err *err)
{
    struct picked picked = {.n = 0};

    memset(d, 0, sizeof *d);
    if (opts->count < 1)
        return kg_fail(err, KG_EINVAL, "task %s: expected at least 1 problem, found %lld",
                       task, (long long)opts->count);
    if (!(opts->fault_rate >= 0 && opts->fault_rate <= 1))
        return kg_fail(err, KG_EINVAL, "task %s: expected a fault rate of 0..1, found %g",
                       task, opts->fault_rate);
    kg_status status = pick_levels(&picked, levels, opts->level ? opts->level : "", err);
    if (status != KG_OK)
        return kg_err_prefix(err, "task %s", task);
    KG_TRY_GOTO(fail, put_name(d, task, opts, err));
    KG_TRY_GOTO(fail, fill(d, task, &picked, opts, err));
    return KG_OK;
fail:
    kg_dataset_release(d);
    return status;
}
