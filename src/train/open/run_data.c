/* Loads the data of a run: its files with their templates and weights, joined; the
 * sequences of SFT.
 *
 * The lists of the recipe (data.train, data.weights, data.templates) correspond: entry i
 * of each belongs to file i, and a list of another length is refused. A problem keeps the
 * name of its source, for metrics. If two files have the same name, their sources include
 * as much of the paths as distinguishes them.
 */
#include "train/open/open.h"

#include "base/log.h"
#include "base/mem.h"
#include "recipe/options.h"
#include "task/wording.h"
#include "train/step/sums.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- lists of files ---- */

/* A list of data files. */
struct source {
    const char *key; /* of the list */
    struct kg_opt_list files;
    const char *templates_key;
    struct kg_opt_list templates; /* one for each file, or none */
    size_t limit;                 /* prompts used of each file; 0: all */
};

/* The template of file i; "{prompt}" alone leaves the prompt unchanged. */
static const char *file_template(const struct kg_run_inputs *in,
                                 const struct source *from, size_t i)
{
    if (from->templates.n == 0)
        return in->prompt.template_text;
    const char *text = from->templates.items[i];
    return strcmp(text, "{prompt}") == 0 ? "" : text;
}

/* Checks the number of files, each of which is a part (KG_EPOCHS_PARTS), and that a list
 * with items for files has one for each, or none. */
static kg_status check_list(const char *key, size_t n, const char *files, size_t expected,
                            struct kg_err *err)
{
    if (expected > KG_EPOCHS_PARTS)
        return kg_fail(err, KG_EINVAL, "%s: expected at most %d files, found %zu", files,
                       KG_EPOCHS_PARTS, expected);
    if (n == 0 || n == expected)
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "%s: expected an item for each of the %zu files of %s, or none; found "
                   "%zu",
                   key, expected, files, n);
}

/* ---- weights ---- */

static kg_status read_weight(uint32_t *weight, const char *text, struct kg_err *err)
{
    char *end;
    long value = strtol(text, &end, 10);

    if (*text < '0' || *text > '9' || *end || value < 1 || value > 10000)
        return kg_fail(err, KG_EINVAL,
                       "data.weights: expected whole numbers from 1 to 10000, found "
                       "'%.40s'",
                       text);
    *weight = (uint32_t)value;
    return KG_OK;
}

/* Reads the weights of parts; without data.weights they stay 0. */
static kg_status read_weights(struct kg_run_inputs *in, struct kg_err *err)
{
    struct kg_opt_list weights = in->recipe.data.weights;
    uint64_t sum = 0;

    KG_TRY(check_list("data.weights", weights.n, "data.train", in->recipe.data.train.n,
                      err));
    for (size_t i = 0; i < weights.n; i++) {
        KG_TRY(read_weight(&in->parts[i].weight, weights.items[i], err));
        sum += in->parts[i].weight;
    }
    if (sum <= KG_EPOCHS_ROUND)
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "data.weights: expected a sum of at most %d, found %llu",
                   KG_EPOCHS_ROUND, (unsigned long long)sum);
}

kg_status kg_run_prompts_at(uint32_t *index, size_t n, uint64_t first,
                            const struct kg_run_inputs *in, struct kg_err *err)
{
    struct kg_rng_key key = {in->recipe.run.seed, KG_RNG_SHUFFLE};

    if (in->n_parts == 0 || in->parts[0].weight == 0)
        return kg_epochs_take(index, n, first, in->train.n, key, err);
    return kg_epochs_mix(index, n, first, in->parts, in->n_parts, in->recipe.run.seed,
                         err);
}

/* ---- loading ---- */

static void fill_task_opts(struct kg_run_inputs *in, struct kg_further_names *further)
{
    in->task_opts = in->recipe.task_opts;
    in->task_opts.seed = in->recipe.run.seed;
    in->task_opts.prompt = in->prompt;
    in->task_opts.further = further;
}

/* The last n parts of a path, or all of it. */
static const char *tail(const char *path, int n)
{
    const char *p = path + strlen(path);

    while (p > path && (p[-1] != '/' || --n > 0))
        p--;
    return p;
}

/* Whether another file of the list ends in the same n parts. */
static bool is_shared(struct kg_opt_list files, const char *path, int n)
{
    for (size_t i = 0; i < files.n; i++)
        if (strcmp(files.items[i], path) != 0 &&
            strcmp(tail(files.items[i], n), tail(path, n)) == 0)
            return true;
    return false;
}

/* The shortest end of the path that no other file of the list has: the file's name, and
 * as many folders before it as needed. */
static const char *name_of(struct kg_opt_list files, const char *path)
{
    int n = 1;

    while (is_shared(files, path, n))
        n++;
    return tail(path, n);
}

/* With several files, records without a data_source get the name of their file. */
static kg_status name_sources(struct kg_dataset *d, const char *base, struct kg_err *err)
{
    for (size_t i = 0; i < d->n; i++) {
        struct kg_record *r = &d->records[i];

        if (r->data_source[0])
            continue;
        kg_mem_free(r->data_source);
        r->data_source = kg_mem_strdup(base, err);
        if (!r->data_source)
            return err->code;
    }
    return KG_OK;
}

/* Loads the problems of a file, or with path NULL of the generator. */
static kg_status load_file(struct kg_prompts *p, struct kg_dataset *d,
                           const struct kg_run_inputs *in,
                           const struct kg_task_opts *task_opts, const char *path,
                           size_t limit, struct kg_err *err)
{
    struct kg_prompts_opts opts = {
        .max_tokens = in->recipe.data.max_prompt_tokens,
        .drop_overlong = in->recipe.data.drop_overlong,
        .special = in->recipe.data.add_special,
        .limit = limit,
    };

    KG_TRY(kg_task_load(d, in->task, task_opts, path, err));
    KG_TRY(kg_prompts_init(p, d, in->tok, &opts, err));
    kg_log_info("%s: %zu prompts, longest %zu tokens; left out: %lld without prompt, "
                "%lld over %zu tokens, %lld by task.exclude, %lld whose gold answer is "
                "not graded as right, %lld repeated",
                d->name, p->n, p->longest, (long long)d->dropped_no_prompt,
                (long long)p->dropped_too_long, opts.max_tokens,
                (long long)d->dropped_excluded, (long long)d->dropped_golds,
                (long long)d->dropped_repeated);
    if (task_opts->held_out)
        kg_dataset_warn_repeated(d, "data.unique=true");
    return KG_OK;
}

/* Adds file i of a list to p and d. */
static kg_status add_file(struct kg_prompts *p, struct kg_dataset *d,
                          const struct kg_run_inputs *in, const struct source *from,
                          size_t i, struct kg_task_opts opts, struct kg_err *err)
{
    struct kg_prompts more = {0};
    struct kg_dataset more_data = {0};
    const char *path = from->files.items[i];
    kg_status status;

    opts.prompt.template_text = file_template(in, from, i);
    KG_TRY_GOTO(out, load_file(i > 0 ? &more : p, i > 0 ? &more_data : d, in, &opts, path,
                               from->limit, err));
    if (from->files.n > 1)
        KG_TRY_GOTO(
            out, name_sources(i > 0 ? &more_data : d, name_of(from->files, path), err));
    if (i > 0)
        status = kg_prompts_join(p, d, &more, &more_data, err);
out:
    kg_prompts_release(&more);
    kg_dataset_release(&more_data);
    return status;
}

/* Loads all files of a list, or the generator's problems if there is no list. */
static kg_status load_list(struct kg_prompts *p, struct kg_dataset *d,
                           struct kg_run_inputs *in, const struct source *from,
                           const struct kg_task_opts *opts, struct kg_err *err)
{
    size_t n = from->files.n;
    bool train = p == &in->train;

    KG_TRY(check_list(from->templates_key, from->templates.n, from->key, n, err));
    if (n == 0)
        return load_file(p, d, in, opts, NULL, from->limit, err);
    for (size_t i = 0; i < n; i++) {
        size_t before = p->n;

        KG_TRY(add_file(p, d, in, from, i, *opts, err));
        if (train)
            in->parts[in->n_parts++].n = p->n - before;
    }
    return KG_OK;
}

/* Whether the run is only SFT on sft.data. */
static bool is_sft_alone(const struct kg_recipe *r)
{
    return r->train.steps == 0 && *r->sft.data;
}

/* Whether training problems are read. With rollout.data, or with SFT on sft.data only,
 * they are optional. */
static bool has_problems(const struct kg_run_inputs *in)
{
    const struct kg_recipe *r = &in->recipe;

    if (r->data.train.n > 0)
        return true;
    return !*r->rollout.data && (in->task->levels || !is_sft_alone(r));
}

static kg_status load_lists(struct kg_run_inputs *in, struct kg_err *err)
{
    const struct kg_recipe *r = &in->recipe;
    struct source train = {"data.train", r->data.train, "data.templates",
                           r->data.templates, 0};
    struct source val = {"data.val", r->data.val, "data.val_templates",
                         r->data.val_templates, r->eval.problems};

    if (has_problems(in))
        KG_TRY(load_list(&in->train, &in->train_data, in, &train, &in->task_opts, err));
    struct kg_task_opts held_out = in->task_opts;
    held_out.held_out = true;
    held_out.count = r->task.val_count;
    if (r->data.val.n == 0 && !in->task->levels)
        return KG_OK; /* no validation set */
    return load_list(&in->val, &in->val_data, in, &val, &held_out, err);
}

/* load_lists with task.exclude: a name that no record has is an error. */
static kg_status load_without(struct kg_run_inputs *in, struct kg_err *err)
{
    struct kg_task_opts *opts = &in->task_opts;
    bool *excluded = kg_mem_calloc(kg_task_names(opts->exclude), sizeof *excluded,
                                   "task.exclude", err);

    if (!excluded)
        return err->code;
    opts->excluded = excluded;
    kg_status status = load_lists(in, err);
    if (status == KG_OK && has_problems(in))
        status = kg_task_check_excluded(opts, err);
    opts->excluded = NULL;
    kg_mem_free(excluded);
    return status;
}

/* The model's own chat template is loaded if prompts may be messages, which only files
 * have, or if a key needs it. */
kg_status kg_run_choose_prompt(struct kg_chat_template **t, struct kg_prompt_opts *how,
                               const struct kg_recipe *r, const char *model_dir,
                               struct kg_err *err)
{
    const char *choice = r->data.chat_template;
    bool files = r->data.train.n > 0 || r->data.val.n > 0 || *r->sft.data ||
                 *r->rollout.data;

    *t = NULL;
    *how = (struct kg_prompt_opts){
        .template_text = r->task_opts.prompt.template_text,
        .user_turn = r->task_opts.prompt.user_turn,
        .system = r->task_opts.prompt.system,
        .opening = r->task_opts.prompt.opening,
        .date = r->task_opts.prompt.date,
        .prefix = "data.",
    };
    if (files || how->user_turn || strcmp(choice, "auto") != 0)
        KG_TRY(kg_prompt_choose(t, how, choice, model_dir, err));
    return kg_prompt_check(how, err);
}

static const struct kg_task_rewards_keys reward_keys = {
    "task.rewards", "task.reward_weights", "task.command"};

kg_status kg_run_data_open(struct kg_run *run, struct kg_err *err)
{
    const struct kg_recipe *r = &run->in.recipe;
    bool offline = *r->rollout.data;

    KG_TRY(kg_task_find(&run->in.task, r->task.name, err));
    if (!run->in.task->levels && !offline && !is_sft_alone(r))
        KG_TRY(kg_config_require(run->in.config, "data.train", err));
    KG_TRY(kg_run_choose_prompt(&run->in.chat, &run->in.prompt, r, run->state.model->dir,
                                err));
    fill_task_opts(&run->in, &run->log.further);
    KG_TRY(kg_task_rewards_read(&run->in.task_opts.rewards, &reward_keys, r->task.rewards,
                                r->task.reward_weights, &run->in.task_opts, err));
    if (run->in.task_opts.wrong_reward != 0 && !run->in.task->exact_reward)
        return kg_fail(err, KG_EINVAL,
                       "task.wrong_reward: expected 0 for task %s, whose reward is not "
                       "only 0 or 1, found %g",
                       run->in.task->name, run->in.task_opts.wrong_reward);
    KG_TRY(read_weights(&run->in, err));
    KG_TRY(kg_task_names(run->in.task_opts.exclude) == 0 ? load_lists(&run->in, err)
                                                         : load_without(&run->in, err));
    if (kg_task_is_external(run->in.task) && !run->in.task_opts.rewards)
        KG_TRY(kg_task_grader_open(&run->in.task_opts.running, &run->in.task_opts, err));
    KG_TRY(kg_sources_check(&run->in.train, "data.train", err));
    return kg_sources_check(&run->in.val, "data.val", err);
}

enum { LOG_BYTES = 1500 }; /* bytes of a prompt in the log */

static kg_status log_prompt(const struct kg_run_inputs *in, const struct kg_prompts *p,
                            const char *what, struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status = KG_OK;

    if (p->n > 0)
        status = kg_prompts_show(&text, p, 0, in->tok, "  ", LOG_BYTES, err);
    if (text.len > 0)
        kg_log_info("first prompt of %s: %s", what, kg_str_text(&text));
    kg_str_release(&text);
    return status;
}

kg_status kg_run_data_log(const struct kg_run_inputs *in, struct kg_err *err)
{
    KG_TRY(log_prompt(in, &in->train, "training", err));
    return log_prompt(in, &in->val, "validation", err);
}

/* ---- SFT ---- */

static struct kg_sft_opts sft_opts(const struct kg_run_inputs *in,
                                   const struct kg_run_state *state)
{
    const struct kg_recipe *r = &in->recipe;

    return (struct kg_sft_opts){
        .max_tokens = r->sft.max_tokens,
        .special = r->data.add_special,
        .eos = state->model->config.n_eos ? state->model->config.eos[0] : -1,
        .prompt = in->prompt,
    };
}

static kg_status load_generated(struct kg_run_inputs *in, const struct kg_sft_opts *opts,
                                struct kg_err *err)
{
    const struct kg_recipe *r = &in->recipe;
    const char *level = r->sft.level;
    struct kg_task_opts task_opts = in->task_opts;
    struct kg_dataset data = {0};

    task_opts.level = *level ? level : task_opts.level;
    task_opts.count = r->sft.count;
    task_opts.fault_rate = r->sft.fault_rate;
    KG_TRY(kg_task_load(&data, in->task, &task_opts, NULL, err));
    kg_status status = kg_sft_from_dataset(&in->sft, &data, in->tok, opts, err);
    kg_dataset_release(&data);
    return status;
}

/* Sequences of SFT come from sft.data, or else from the task's worked solutions. */
static kg_status load_sft(struct kg_run_inputs *in, const struct kg_run_state *state,
                          struct kg_err *err)
{
    const char *path = in->recipe.sft.data, *val = in->recipe.sft.val;
    struct kg_sft_opts opts = sft_opts(in, state);

    if (*val)
        KG_TRY(kg_sft_from_jsonl(&in->sft_val, val, in->tok, &opts, err));
    if (*path)
        return kg_sft_from_jsonl(&in->sft, path, in->tok, &opts, err);
    if (!in->task->levels)
        return kg_sft_from_dataset(&in->sft, &in->train_data, in->tok, &opts, err);
    return load_generated(in, &opts, err);
}

static kg_status count_steps(struct kg_run_inputs *in, struct kg_err *err)
{
    double epochs = in->recipe.sft.epochs;
    double batch = (double)in->recipe.sft.batch;

    in->sft_steps = in->recipe.sft.steps;
    if (epochs > 0 && in->sft_steps > 0)
        return kg_fail(
            err, KG_EINVAL,
            "sft.epochs: expected 0, because sft.steps sets the length of SFT, found %g",
            epochs);
    if (epochs > 0)
        in->sft_steps = (int64_t)ceil(epochs * (double)in->sft.n / batch);
    return KG_OK;
}

static void log_sft(const struct kg_run_inputs *in, const struct kg_sft_set *s,
                    const char *what)
{
    if (s->n > 0)
        kg_log_info("%s: %zu sequences, longest %zu tokens; left out: %lld over %lld "
                    "tokens",
                    what, s->n, s->longest, (long long)s->dropped_too_long,
                    (long long)in->recipe.sft.max_tokens);
}

size_t kg_run_sft_longest(const struct kg_run_inputs *in)
{
    return in->sft.longest > in->sft_val.longest ? in->sft.longest : in->sft_val.longest;
}

kg_status kg_run_sft_open(struct kg_run_inputs *in, const struct kg_run_state *state,
                          struct kg_err *err)
{
    if (!kg_recipe_has_sft(&in->recipe)) {
        if (*in->recipe.sft.val)
            return kg_fail(err, KG_EINVAL,
                           "sft.val: expected none without SFT (sft.steps, sft.epochs), "
                           "found %.200s",
                           in->recipe.sft.val);
        return KG_OK;
    }
    KG_TRY(load_sft(in, state, err));
    KG_TRY(count_steps(in, err));
    log_sft(in, &in->sft, "SFT");
    log_sft(in, &in->sft_val, "held-out SFT data");
    return KG_OK;
}
