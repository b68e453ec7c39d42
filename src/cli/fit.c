/* What fits on a device, said before anything is taken: to generate and to serve as those
 * commands do when nothing else is said, and to train by GRPO as it is and with
 * the keys that move memory away.
 *
 * Everything is asked of those who would take it, by an outline of the model, so that no
 * number stands here twice.
 */
#include "cli/load.h"

#include "model/model.h"
#include "recipe/options.h"
#include "rollout/rollout.h"
#include "serve/serve.h"
#include "tensor/device.h"
#include "train/open/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GENERATED_TOKENS = 4096, TRAIN_KEYS = 4, LISTED = 4, PATH = 4096 };

struct device {
    uint64_t total, free;
};

struct plan {
    const char *what;
    const char *keys; /* of a recipe, or what else it is like; "": as it is */
    char how[64];
    struct kg_bytes bytes;
};

/* ---- answers ---- */

static struct kg_bytes answering(const struct kg_model *m,
                                 const struct kg_rollout_opts *opts)
{
    const struct kg_rows_opts rows = {.max_tokens = opts->max_batch};
    const struct kg_bytes of_operations = kg_memory_operations(m, &rows),
                          weights = kg_model_memory(m, false).read;
    uint64_t cache;
    struct kg_bytes b = kg_rollout_memory(&cache, m, opts);

    b.there += weights.there + of_operations.there;
    b.host += weights.host + of_operations.host;
    return b;
}

static void plan_generate(struct plan *p, const struct kg_model *m)
{
    const int32_t most = m->config.max_positions;
    const struct kg_rollout_opts opts = {
        .max_batch = KG_GENERATE_BATCH,
        .max_len = most < GENERATED_TOKENS ? most : GENERATED_TOKENS};

    *p = (struct plan){.what = "generate", .keys = "", .bytes = answering(m, &opts)};
    snprintf(p->how, sizeof p->how, "%d sequences of %d tokens", opts.max_batch,
             opts.max_len);
}

static void plan_serve(struct plan *p, const struct kg_model *m)
{
    const struct kg_serve_opts serve = {.model = m};
    const struct kg_rollout_opts opts = kg_serve_engine_opts(&serve);

    *p = (struct plan){.what = "serve", .keys = "", .bytes = answering(m, &opts)};
    snprintf(p->how, sizeof p->how, "%d sequences, a cache of %lld tokens",
             opts.max_batch, (long long)opts.kv_tokens);
}

static kg_status plan_answers(struct plan plans[2], const struct kg_load_args *args,
                              struct kg_err *err)
{
    struct kg_model_opts opts = {.backend = kg_device_planned(),
                                 .ignore = kg_load_ignored(args)};
    struct kg_model_config config;
    struct kg_model *m;

    KG_TRY(kg_load_dtype(&opts.ct, args->dtype, err));
    KG_TRY(kg_model_config_open(&config, args->dir, &opts.ignore, err));
    KG_TRY(kg_model_outline(&m, &config, &opts, err));
    plan_generate(&plans[0], m);
    plan_serve(&plans[1], m);
    kg_model_free(m);
    return KG_OK;
}

/* ---- training ---- */

/* Each beside those of all: from what costs nothing to what costs most. */
static const char *const trained[LISTED] = {"", "optim.moments=bf16",
                                            "optim.moments=bf16 anchor.place=host",
                                            "anchor.place=host optim.place=host"};

static kg_status run_with(struct plan *p, char *const *keys, size_t n, uint64_t bytes,
                          struct kg_err *err)
{
    struct kg_config *config;
    struct kg_memory m;
    struct kg_run run;

    KG_TRY(kg_train_config(&config, NULL, keys, n, err));
    kg_status status = kg_run_outline(&run, config, bytes, err);
    if (status == KG_OK) {
        const struct kg_recipe *r = &run.in.recipe;

        kg_run_memory(&m, &run);
        p->bytes = m.sum;
        snprintf(p->how, sizeof p->how, "grpo, %lld answers of %lld tokens",
                 (long long)r->rollout.engine.max_batch,
                 (long long)kg_recipe_answer_tokens(r));
        kg_run_close(&run);
    }
    kg_config_free(config);
    return status;
}

/* --ignore as a recipe spells it. */
static void put_ignored(char *to, size_t bytes, const struct kg_load_args *args)
{
    size_t used = (size_t)snprintf(to, bytes, "model.ignore=");

    for (int i = 0; i < args->ignore.n && used < bytes; i++)
        used += (size_t)snprintf(to + used, bytes - used, "%s%s", i ? ", " : "[",
                                 args->ignore.items[i]);
    if (used < bytes)
        snprintf(to + used, bytes - used, "]");
}

static kg_status plan_train(struct plan *p, const char *keys,
                            const struct kg_load_args *args, uint64_t bytes,
                            struct kg_err *err)
{
    char list[128], ignore[1024], model[PATH + 16], dtype[32],
        device[] = "model.device=cuda", preset[] = "algo.preset=grpo";
    char *all[TRAIN_KEYS + 5] = {model, dtype, device, preset};
    size_t n = TRAIN_KEYS;

    *p = (struct plan){.what = "train", .keys = keys};
    snprintf(model, sizeof model, "model.path=%s", args->dir);
    snprintf(dtype, sizeof dtype, "model.dtype=%s", args->dtype ? args->dtype : "bf16");
    snprintf(list, sizeof list, "%s", keys);
    if (args->ignore.n > 0) {
        put_ignored(ignore, sizeof ignore, args);
        all[n++] = ignore;
    }
    for (char *rest = list, *key; (key = strtok_r(rest, " ", &rest));)
        all[n++] = key;
    return run_with(p, all, n, bytes, err);
}

/* ---- what is said ---- */

static double gb(uint64_t bytes) { return (double)bytes / 1e9; }

static kg_status put_line(struct kg_str *out, const struct plan *p,
                          const struct device *d, struct kg_err *err)
{
    const uint64_t there = p->bytes.there;
    const bool fits = there <= d->free;

    KG_TRY(kg_str_printf(out, err, "%-9s  %-5s %8.2f GB, %.2f %s", p->what,
                         fits ? "fits" : "no", gb(there),
                         gb(fits ? d->free - there : there - d->free),
                         fits ? "left" : "missing"));
    if (p->bytes.host > 0)
        KG_TRY(kg_str_printf(out, err, ", on the host %.2f", gb(p->bytes.host)));
    return kg_str_printf(out, err, " (%s%s%s)\n", p->how, *p->keys ? "; " : "", p->keys);
}

static kg_status put_object(struct kg_str *out, const struct plan *p,
                            const struct device *d, struct kg_err *err)
{
    return kg_str_printf(out, err,
                         "{\"what\": \"%s\", \"keys\": \"%s\", \"device_bytes\": %llu, "
                         "\"host_bytes\": %llu, \"fits\": %s}",
                         p->what, p->keys, (unsigned long long)p->bytes.there,
                         (unsigned long long)p->bytes.host,
                         p->bytes.there <= d->free ? "true" : "false");
}

static kg_status put_json(struct kg_str *out, const struct plan *plans, size_t n,
                          const struct device *d, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err,
                         "{\"total_bytes\": %llu, \"free_bytes\": %llu, \"plans\": [",
                         (unsigned long long)d->total, (unsigned long long)d->free));
    for (size_t i = 0; i < n; i++) {
        KG_TRY(kg_str_puts(out, i > 0 ? ", " : "", err));
        KG_TRY(put_object(out, &plans[i], d, err));
    }
    return kg_str_puts(out, "]}\n", err);
}

static kg_status put_text(struct kg_str *out, const struct plan *plans, size_t n,
                          const struct device *d, const char *dtype, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "device     %.2f GB, %.2f of them free; in %s\n",
                         gb(d->total), gb(d->free), dtype ? dtype : "bf16"));
    for (size_t i = 0; i < n; i++)
        KG_TRY(put_line(out, &plans[i], d, err));
    return KG_OK;
}

/* ---- the device ---- */

kg_status kg_fit_read_size(uint64_t *bytes, const char *flag, const char *text,
                           struct kg_err *err)
{
    char *unit;
    double n = strtod(text, &unit);
    bool binary = strcmp(unit, "GiB") == 0;

    if (unit == text || !(n > 0 && n < 1e6) || (!binary && strcmp(unit, "GB") != 0))
        return kg_fail(err, KG_EINVAL,
                       "%s: expected a size as 141GB or 80GiB, found '%s'", flag, text);
    *bytes = (uint64_t)(n * (binary ? (double)(1 << 30) : 1e9));
    return KG_OK;
}

static kg_status ask(struct device *d, const struct kg_load_args *args, const char *size,
                     struct kg_err *err)
{
    const struct kg_backend *be;
    enum kg_dtype ct;

    if (size) {
        KG_TRY(kg_fit_read_size(&d->total, "--device-memory", size, err));
        d->free = d->total;
        return KG_OK;
    }
    KG_TRY(kg_load_dtype(&ct, args->dtype, err));
    KG_TRY(kg_load_device(&be, args, ct, err));
    if (!be->memory)
        return kg_fail(err, KG_EINVAL,
                       "--device: expected a GPU, found the CPU: without the flag "
                       "inspect prints the host memory needed");
    return be->memory(&d->total, &d->free, err);
}

kg_status kg_fit_say(struct kg_str *out, const struct kg_load_args *args,
                     const char *size, bool json, struct kg_err *err)
{
    enum { ANSWERS = 2, ALL = ANSWERS + LISTED };
    struct plan plans[ALL];
    struct device d;

    if (strlen(args->dir) > PATH)
        return kg_fail(err, KG_EINVAL,
                       "DIR: expected a path of at most %d bytes, found %zu", PATH,
                       strlen(args->dir));
    KG_TRY(ask(&d, args, size, err));
    KG_TRY(plan_answers(plans, args, err));
    for (size_t i = 0; i < LISTED; i++)
        KG_TRY(plan_train(&plans[ANSWERS + i], trained[i], args, d.free, err));
    return json ? put_json(out, plans, ALL, &d, err)
                : put_text(out, plans, ALL, &d, args->dtype, err);
}
