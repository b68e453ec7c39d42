/* Settings of the runs, how they ended, and differences of configs. Each row is a
 * function of one run; rows that no run has are omitted. Configs are shown as differences
 * between runs, or of a single run from the defaults, without keys for paths. How a run
 * ended: the first and the last value of metrics, with errors. */
#include "report/report_internal.h"

#include "recipe/options.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- facts about runs ---- */

/* Prints the cell of a run. */
typedef kg_status cell_fn(struct kg_report *r, const struct kg_report_run *run);

static const struct kg_json *manifest(const struct kg_report_run *run, const char *key)
{
    return kg_json_get(run->manifest.root, key);
}

static kg_status version(struct kg_report *r, const struct kg_report_run *run)
{
    const char *text = kg_json_text(manifest(run, "kedge"), NULL);

    return kg_report_text(r, text ? text : "not known");
}

static kg_status started(struct kg_report *r, const struct kg_report_run *run)
{
    time_t when = (time_t)kg_json_real(manifest(run, "started_unix"), 0);
    char text[40];
    struct tm utc;

    if (!gmtime_r(&when, &utc) || !strftime(text, sizeof text, "%F %R UTC", &utc))
        return kg_report_text(r, "not known");
    return kg_report_text(r, text);
}

static kg_status machine(struct kg_report *r, const struct kg_report_run *run)
{
    const char *system = kg_json_text(manifest(run, "system"), NULL);
    const char *dtype = kg_json_text(manifest(run, "compute_dtype"), NULL);
    long long threads = kg_json_int(manifest(run, "threads"), 0);

    KG_TRY(kg_report_text(r, system ? system : "not known"));
    if (threads == 0)
        return KG_OK;
    return kg_str_printf(r->out, r->err, ", %lld threads, %s", threads,
                         dtype ? dtype : "");
}

static kg_status model(struct kg_report *r, const struct kg_report_run *run)
{
    const char *from = run->recipe.init.from;
    double n = kg_json_real(manifest(run, "parameters"), 0);

    KG_TRY(kg_report_text(r, *from ? from : run->recipe.model.path));
    if (n < 1e6)
        return kg_str_printf(r->out, r->err, ", %.0f parameters", n);
    return kg_str_printf(r->out, r->err, ", %.4g %s parameters",
                         n / (n < 1e9 ? 1e6 : 1e9), n < 1e9 ? "million" : "billion");
}

static kg_status task(struct kg_report *r, const struct kg_report_run *run)
{
    KG_TRY(kg_report_text(r, run->recipe.task.name));
    return kg_str_printf(r->out, r->err, ", %lld prompts, %lld for validation",
                         (long long)kg_json_int(manifest(run, "train_prompts"), 0),
                         (long long)kg_json_int(manifest(run, "validation_prompts"), 0));
}

static kg_status algorithm(struct kg_report *r, const struct kg_report_run *run)
{
    struct kg_str text = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_recipe_algorithm(&text, &run->recipe, r->err));
    status = kg_report_text(r, kg_str_text(&text));
out:
    kg_str_release(&text);
    return status;
}

static kg_status steps(struct kg_report *r, const struct kg_report_run *run)
{
    int64_t sft = run->recipe.sft.steps;

    KG_TRY(kg_str_printf(r->out, r->err, "%lld of %lld",
                         (long long)kg_history_phase(&run->history, "rl")->last_step,
                         (long long)run->recipe.train.steps));
    if (run->recipe.sft.epochs > 0)
        return kg_str_printf(
            r->out, r->err, ", %lld of SFT",
            (long long)kg_history_phase(&run->history, "sft")->last_step);
    if (sft == 0)
        return KG_OK;
    return kg_str_printf(r->out, r->err, ", %lld of %lld of SFT",
                         (long long)kg_history_phase(&run->history, "sft")->last_step,
                         (long long)sft);
}

static kg_status batch(struct kg_report *r, const struct kg_report_run *run)
{
    return kg_str_printf(r->out, r->err, "%lld prompts x %lld completions, %lld updates",
                         (long long)run->recipe.rollout.prompts,
                         (long long)run->recipe.rollout.samples,
                         (long long)run->recipe.train.updates_per_step);
}

static double sum_of(const struct kg_report_run *run, const char *phase, const char *name)
{
    const struct kg_series *s = kg_history_find(&run->history, phase, name);

    return s ? s->sum : 0;
}

/* The sum of timed phases; writing checkpoints is not timed. */
static kg_status wall_time(struct kg_report *r, const struct kg_report_run *run)
{
    double seconds = sum_of(run, "sft", "seconds") + sum_of(run, "rl", "seconds/step") +
                     sum_of(run, "validation", "val/seconds") +
                     sum_of(run, "validation", "val_anchor/seconds");

    if (seconds < 120)
        return kg_str_printf(r->out, r->err, "%.1f s", seconds);
    if (seconds < 7200)
        return kg_str_printf(r->out, r->err, "%.1f min", seconds / 60);
    return kg_str_printf(r->out, r->err, "%.1f h", seconds / 3600);
}

static kg_status speed(struct kg_report *r, const struct kg_report_run *run)
{
    double trained = sum_of(run, "rl", "policy/tokens");
    double train = sum_of(run, "rl", "seconds/train"),
           step = sum_of(run, "rl", "seconds/step");
    char whole[KG_NUMBER], alone[KG_NUMBER];

    if (!(step > 0 && train > 0))
        return kg_report_text(r, "no step yet");
    return kg_str_printf(r->out, r->err, "%s in a whole step, %s in training",
                         kg_number(whole, trained / step, 4),
                         kg_number(alone, trained / train, 4));
}

/* Seconds that a rank waited for others in all steps; NULL: no such rank. */
static const struct kg_series *waiting_of(const struct kg_report_run *run, int rank)
{
    char name[KG_METRIC_NAME];

    snprintf(name, sizeof name, "seconds/waiting/rank/%d", rank);
    return kg_history_find(&run->history, "rl", name);
}

/* The rank that waited least, over all steps: the others waited for it. */
static kg_status slowest_rank(struct kg_report *r, const struct kg_report_run *run)
{
    const struct kg_series *s = waiting_of(run, 0);
    double least = s ? s->sum : 0, most = least;
    int slowest = 0;

    if (!s)
        return kg_report_text(r, "one process");
    for (int rank = 1; (s = waiting_of(run, rank)); rank++) {
        slowest = s->sum < least ? rank : slowest;
        least = fmin(least, s->sum);
        most = fmax(most, s->sum);
    }
    return kg_str_printf(r->out, r->err,
                         "rank %d, which waited %.1f s; others up to %.1f s", slowest,
                         least, most);
}

static bool has_ranks(const struct kg_report *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (waiting_of(r->runs[i], 0))
            return true;
    return false;
}

static kg_status on_policy(struct kg_report *r, const struct kg_report_run *run)
{
    const struct kg_series *gap = kg_history_find(&run->history, "rl",
                                                  "mismatch/first_update_max");
    char text[KG_NUMBER];

    KG_TRY(kg_report_text(r, kg_recipe_off_policy(&run->recipe) ? "no" : "yes"));
    if (!gap || gap->n == 0)
        return KG_OK;
    return kg_str_printf(r->out, r->err,
                         "; log-probs of sampler and trainer differ by %s at most",
                         kg_number(text, gap->high, 3));
}

static int64_t beyond(const struct kg_report_run *run)
{
    int64_t n = 0;

    for (int i = 0; i < KG_HISTORY_PHASES; i++)
        n += run->history.phase[i].beyond;
    return n;
}

static bool something_is_left_out(const struct kg_report *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->runs[i]->history.unreadable > 0 || beyond(r->runs[i]) > 0)
            return true;
    return false;
}

static kg_status left_out(struct kg_report *r, const struct kg_report_run *run)
{
    const struct kg_history *h = &run->history;

    if (h->unreadable > 0)
        KG_TRY(
            kg_str_printf(r->out, r->err,
                          "lines of metrics.jsonl that cannot be read: %lld, the first "
                          "is line %lld. ",
                          (long long)h->unreadable, (long long)h->first_unreadable));
    if (beyond(run) > 0)
        KG_TRY(kg_str_printf(r->out, r->err,
                             "metrics after the first %d of their phase: %lld.",
                             KG_HISTORY_SERIES, (long long)beyond(run)));
    return KG_OK;
}

static const struct {
    const char *name;
    cell_fn *put;
    bool (*when)(const struct kg_report *r); /* NULL: always */
} facts[] = {{"kedge", version, NULL},
             {"started", started, NULL},
             {"model", model, NULL},
             {"task", task, NULL},
             {"algorithm", algorithm, NULL},
             {"steps", steps, NULL},
             {"a step", batch, NULL},
             {"on-policy", on_policy, NULL},
             {"time of steps and validations", wall_time, NULL},
             {"tokens a second", speed, NULL},
             {"machine", machine, NULL},
             {"slowest rank", slowest_rank, has_ranks},
             {"left out", left_out, something_is_left_out}};

/* ---- how runs ended ---- */

static const struct {
    const char *phase, *name;
} finals[] = {{"validation", "val/accuracy"},
              {"validation", "val/reward"},
              {"validation", "val/kl"},
              {"validation", "val/entropy"},
              {"validation", "val_anchor/reward"},
              {"rl", "reward/mean"},
              {"rl", "reward/accuracy"},
              {"rl", "kl/value"},
              {"rl", "policy/entropy"},
              {"rl", "policy/clip_fraction"},
              {"rl", "optim/grad_norm"},
              {"rl", "length/mean"},
              {"rl", "length/truncated"},
              {"rl", "optim/skipped_steps"},
              {"rl", "seconds/step"},
              {"rl", "memory/peak_gb"},
              {"sft", "loss"}};

static bool anywhere(const struct kg_report *r, const char *phase, const char *name)
{
    for (size_t i = 0; i < r->n; i++) {
        const struct kg_series *s = kg_history_find(&r->runs[i]->history, phase, name);

        if (s && s->n > 0)
            return true;
    }
    return false;
}

/* Prints "0.41 +- 0.02 -> 0.97 +- 0.01". */
static kg_status put_change(struct kg_report *r, const struct kg_series *s)
{
    if (!s || s->n == 0)
        return KG_OK;
    if (s->n > 1) {
        KG_TRY(kg_report_number(r, s->first, s->first_error));
        KG_TRY(kg_str_puts(r->out, " &rarr; ", r->err));
    }
    KG_TRY(kg_str_puts(r->out, "<b>", r->err));
    KG_TRY(kg_report_number(r, s->last, s->last_error));
    return kg_str_puts(r->out, "</b>", r->err);
}

static kg_status put_finals(struct kg_report *r)
{
    KG_TRY(
        kg_str_puts(r->out, "<h2 id=\"numbers\">First and last numbers</h2>\n", r->err));
    KG_TRY(kg_report_table(r, ""));
    for (size_t i = 0; i < sizeof finals / sizeof *finals; i++) {
        if (!anywhere(r, finals[i].phase, finals[i].name))
            continue;
        KG_TRY(kg_report_row(r, finals[i].name));
        for (size_t run = 0; run < r->n; run++) {
            KG_TRY(kg_str_puts(r->out, "<td class=\"n\">", r->err));
            KG_TRY(put_change(r, kg_history_find(&r->runs[run]->history, finals[i].phase,
                                                 finals[i].name)));
        }
        KG_TRY(kg_report_last_cell(r));
        KG_TRY(kg_report_meaning(r, finals[i].name,
                                 kg_metric_find(finals[i].phase, finals[i].name)));
    }
    return kg_str_puts(r->out, "</table></div>\n", r->err);
}

/* ---- configs ---- */

static const char *value_of(const struct kg_config *c, const char *key)
{
    return kg_config_is_set(c, key) ? kg_config_text(c, key) : "";
}

/* Whether a key differs between runs. A run's folder does not count. */
static bool differs(const struct kg_report *r, const struct kg_config *defaults,
                    const char *key)
{
    const struct kg_config *first = defaults ? defaults : r->runs[0]->config;

    if (strcmp(key, "run.dir") == 0)
        return false;
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(value_of(first, key), value_of(r->runs[i]->config, key)) != 0)
            return true;
    return false;
}

static kg_status put_value(struct kg_report *r, const struct kg_config *c,
                           const char *key)
{
    KG_TRY(kg_str_puts(r->out, "<td><code>", r->err));
    return kg_report_text(r, value_of(c, key));
}

/* defaults: printed as a column after the runs; NULL: no such column */
static kg_status put_config_rows(struct kg_report *r, const struct kg_config *defaults)
{
    const struct kg_config *c = r->runs[0]->config;

    for (size_t i = 0; i < kg_config_rows(c); i++) {
        const struct kg_opt_row *row = kg_config_row(c, i);

        if (!differs(r, defaults, row->key))
            continue;
        KG_TRY(kg_report_row(r, row->key));
        for (size_t run = 0; run < r->n; run++)
            KG_TRY(put_value(r, r->runs[run]->config, row->key));
        if (defaults)
            KG_TRY(put_value(r, defaults, row->key));
        KG_TRY(kg_report_last_cell(r));
        KG_TRY(kg_report_help(r, row->help));
    }
    return kg_str_puts(r->out, "</table></div></details>\n", r->err);
}

/* Several runs are compared with each other, a single run with the defaults. */
static kg_status put_config(struct kg_report *r)
{
    struct kg_config *defaults = NULL;

    KG_TRY(kg_str_printf(r->out, r->err,
                         "<details id=\"config\"%s><summary>Config: what differs%s"
                         "</summary>\n",
                         r->n > 1 ? " open" : "", r->n > 1 ? "" : " from the defaults"));
    KG_TRY(kg_report_table(r, "key"));
    if (r->n > 1)
        return put_config_rows(r, NULL);
    KG_TRY(kg_str_puts(r->out, "<th>default", r->err));
    KG_TRY(kg_train_config(&defaults, NULL, NULL, 0, r->err));
    kg_status status = put_config_rows(r, defaults);
    kg_config_free(defaults);
    return status;
}

kg_status kg_report_tables(struct kg_report *r)
{
    KG_TRY(kg_str_puts(r->out, "<h2 id=\"run\">The run</h2>\n", r->err));
    KG_TRY(kg_report_table(r, ""));
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        if (facts[i].when && !facts[i].when(r))
            continue;
        KG_TRY(kg_report_row(r, facts[i].name));
        for (size_t run = 0; run < r->n; run++) {
            KG_TRY(kg_str_puts(r->out, "<td>", r->err));
            KG_TRY(facts[i].put(r, r->runs[run]));
        }
    }
    KG_TRY(kg_str_puts(r->out, "</table></div>\n", r->err));
    KG_TRY(put_finals(r));
    return put_config(r);
}
