/* Reads a dump back, and computes its gradients part by part. A replay is an RL step
 * whose sampler is a file: flattening, passes and update are the same code as in
 * training. What the dump lacks (kept sets, more ids than were recorded) is computed with
 * the weights that sampled. Gradients of groups are computed one at a time, and only
 * their sums are kept; those of the exact KL are all kept if memory allows, to compare KL
 * terms per group. */
#include "lab/replay.h"

#include "base/mem.h"
#include "data/json.h"
#include "data/jsonl.h"
#include "data/safetensors.h"
#include "policy/presets.h"
#include "recipe/options.h"
#include "rollout/sampler.h"
#include "rollout/score.h"
#include "train/open/pin.h"
#include "train/step/anchor.h"
#include "train/step/begun.h"
#include "train/step/rl_step.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *kg_replay_part_name(enum kg_replay_part part)
{
    static const char *const names[KG_REPLAY_PARTS] = {"loss", "policy term", "KL term",
                                                       "objective", "exact KL"};

    return names[part];
}

struct replay {
    struct kg_replay *out;
    struct kg_run run;
    struct kg_rl_batch batch;
    double *advantage; /* (n_trajs) owned: as recorded */
    size_t advantage_room;
    struct kg_model *kept;    /* owned: the run's anchor, if the algorithm has none */
    struct kg_slab sum;       /* owned: gradient of the current part */
    struct kg_slab exact;     /* owned: gradient of the exact KL */
    struct kg_slab objective; /* owned: gradient of the exact objective */
    double squares;           /* sum over groups of |G_i|^2 */
    /* (groups) owned: gradient of the exact KL per group; NULL: not kept */
    struct kg_slab *exact_of;
    enum kg_replay_part part; /* the current part */
    size_t group;             /* the next group of the current part */
    double apart_squares;     /* sum over groups of |G_i - exact_of[i]|^2 */
};

/* ---- the config of the run, with another algorithm ---- */

/* Keys that a replay may set: those of the algorithm, and train.old_logp. */
static bool is_set_here(const char *key)
{
    return kg_config_of_algorithm(key) || strncmp(key, "train.old_logp", 14) == 0;
}

/* Takes only the algorithm's keys: a preset's sizes may differ from the run's. */
static kg_status apply_preset(struct kg_config *config, const char *name,
                              struct kg_err *err)
{
    const struct kg_preset *preset;

    KG_TRY(kg_preset_find(&preset, name, err));
    /* Keys that the preset leaves open get their defaults, not the values of the run. A
     * key without a default keeps the value of the run, unless the preset sets it. */
    const struct kg_opt_row *row;

    for (size_t i = 0; (row = kg_recipe_row(i)); i++)
        if (is_set_here(row->key) && row->fallback)
            KG_TRY(kg_config_set(config, row->key, row->fallback, false, "default", err));
    for (const struct kg_preset_value *v = preset->values; v->key; v++)
        if (is_set_here(v->key))
            KG_TRY(kg_config_set(config, v->key, v->value, false, v->from, err));
    return kg_config_set(config, "algo.preset", name, false, "command line", err);
}

static const char *preset_of(const char *assignment)
{
    const char *at = strncmp(assignment, "algo.", 5) == 0 ? assignment + 5 : assignment;

    return strncmp(at, "preset=", 7) == 0 ? at + 7 : NULL;
}

static kg_status apply(struct kg_config *config, char *const *assignments, size_t n,
                       struct kg_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (preset_of(assignments[i]))
            KG_TRY(apply_preset(config, preset_of(assignments[i]), err));
    for (size_t i = 0; i < n; i++) {
        if (preset_of(assignments[i]))
            continue;
        if (!is_set_here(assignments[i]))
            return kg_fail(err, KG_EINVAL,
                           "expected preset=NAME, train.old_logp or a key of algo, kl or "
                           "anchor, found '%s': other keys are those of the run",
                           assignments[i]);
        KG_TRY(kg_config_override(config, assignments[i], "command line", err));
    }
    return KG_OK;
}

static kg_status make_config(struct kg_config **config, const char *dir,
                             char *const *assignments, size_t n, struct kg_err *err)
{
    struct kg_path path = kg_path_in(dir, "config.yaml");
    kg_status status;

    if (!kg_file_exists(path.text))
        return kg_fail(err, KG_ENOTFOUND, "%s: expected a run, found no config.yaml",
                       dir);
    KG_TRY(kg_train_config(config, path.text, NULL, 0, err));
    KG_TRY_GOTO(fail, kg_config_set(*config, "run.dir", dir, false, "replay", err));
    KG_TRY_GOTO(fail, apply(*config, assignments, n, err));
    KG_TRY_GOTO(fail, kg_pin_names(*config, err));
    return KG_OK;
fail:
    kg_config_free(*config);
    *config = NULL;
    return status;
}

/* ---- the weights ---- */

/* r->kept: the checkpoint's anchor, if it has one and the algorithm opened none. */
static kg_status keep_anchor(struct replay *r, const char *path, struct kg_err *err)
{
    struct kg_run *run = &r->run;
    struct kg_st_set *set;
    kg_status status = KG_OK;

    KG_TRY(kg_st_open_file(&set, path, err));
    const struct kg_st_tensor *t = kg_st_find(set, "anchor");
    if (!t && kg_run_anchor_saved(&run->state))
        status = kg_fail(err, KG_ENOTFOUND,
                         "anchor.kind: the run kept no anchor with weights; name one: "
                         "anchor.kind=fixed anchor.path=DIR");
    if (status == KG_OK && t && !run->state.anchor) {
        status = kg_model_clone(
            &r->kept, run->state.model,
            &(struct kg_model_opts){.ct = run->state.model->ct,
                                    .on_host = run->state.model->on_host},
            err);
        if (status == KG_OK)
            status = kg_checkpoint_take(&r->kept->master, r->kept, set, "anchor", path,
                                        err);
        if (status == KG_OK)
            status = kg_model_refresh(r->kept, err);
    }
    kg_st_close(set);
    return status;
}

static kg_status load_weights(struct replay *r, const char *dir, struct kg_err *err)
{
    struct kg_replay *out = r->out;
    struct kg_run *run = &r->run;
    struct kg_path root = kg_path_in(dir, "checkpoints"), path;

    KG_TRY(kg_checkpoint_before(out->checkpoint, dir, out->step - 1, err));
    if (!out->checkpoint[0] && run->in.sft_steps > 0)
        return kg_fail(err, KG_ENOTFOUND,
                       "%s: expected a checkpoint at or before step %lld, found none "
                       "(checkpoint.every, checkpoint.keep)",
                       root.text, (long long)out->step - 1);
    if (!out->checkpoint[0]) {
        KG_TRY(kg_run_start_rl(&run->in, &run->state, err));
        KG_TRY(kg_init_rl(&run->in, &run->state, err));
        out->weights_step = run->state.count.step;
        return kg_run_refresh_sampler(&run->state, err);
    }
    path = kg_path_in(root.text, out->checkpoint);
    KG_TRY(keep_anchor(r, kg_path_in(path.text, "state.safetensors").text, err));
    KG_TRY(kg_checkpoint_read(&run->in, &run->state, path.text, err));
    out->weights_step = run->state.count.step;
    return kg_run_refresh_sampler(&run->state, err);
}

/* Allocates the gradients, and if needed new rows with room for the exact KL's anchor. */
static kg_status make_room(struct replay *r, struct kg_err *err)
{
    struct kg_run *run = &r->run;
    const struct kg_slab *grads = &run->state.optim->grads;

    KG_TRY(kg_slab_init(&r->sum, grads->backend, grads->n, "gradient", err));
    KG_TRY(kg_slab_init(&r->exact, grads->backend, grads->n, "gradient", err));
    KG_TRY(kg_slab_init(&r->objective, grads->backend, grads->n, "gradient", err));
    if (!run->state.anchor)
        run->state.anchor = r->kept;
    r->kept = NULL;
    if (!run->state.anchor || run->work.rows->kl)
        return KG_OK;
    kg_rows_free(run->work.rows);
    run->work.rows = NULL;
    run->work.rows_opts.kl = true;
    run->work.rows_opts.anchor = run->state.anchor;
    return kg_rows_create(&run->work.rows, run->state.model, &run->work.rows_opts, err);
}

/* ---- the dump ---- */

static kg_status read_numbers(struct kg_traj *t, const struct kg_json_doc *doc,
                              struct kg_err *err)
{
    const char *finish;
    int64_t draw, sample;

    KG_TRY(kg_json_need_int(&t->prompt_index, doc, doc->root, "prompt_index", 0,
                            INT64_MAX, err));
    KG_TRY(kg_json_need_int(&draw, doc, doc->root, "draw", 0, INT64_MAX, err));
    KG_TRY(kg_json_need_int(&sample, doc, doc->root, "sample", 0, INT32_MAX, err));
    KG_TRY(kg_json_need_text(&finish, doc, doc->root, "finish", err));
    t->draw = (uint64_t)draw;
    t->sample = (int32_t)sample;
    KG_TRY(kg_finish_find(&t->finish, finish, doc->where, err));
    t->graded = kg_json_bool(kg_json_get(doc->root, "graded"), false);
    t->reward = kg_json_real(kg_json_get(doc->root, "reward"), 0);
    t->shaping = kg_json_real(kg_json_get(doc->root, "shaping"), 0);
    t->temperature = (float)kg_json_real(kg_json_get(doc->root, "temperature"), 1);
    return KG_OK;
}

/* Reads separate rewards by their names. */
static kg_status read_parts(struct kg_traj *t, const struct kg_json_doc *doc,
                            const struct kg_task_rewards *rewards, struct kg_err *err)
{
    const struct kg_json *parts = kg_json_get(doc->root, "rewards");

    t->n_parts = kg_task_rewards_n(rewards);
    for (int k = 0; k < t->n_parts; k++) {
        const char *name = kg_task_rewards_name(rewards, k);
        const struct kg_json *one = kg_json_get(parts, name);

        if (!one)
            return kg_fail(err, KG_EFORMAT, "%s: expected reward %s, found none",
                           doc->where, name);
        t->part[k] = kg_json_real(one, NAN);
        t->graded |= !isnan(t->part[k]); /* kg_rl_compare_sums may clear it */
    }
    return KG_OK;
}

static kg_status read_tokens(struct kg_traj *t, const struct kg_json_doc *doc,
                             const struct kg_run_inputs *in,
                             const struct kg_run_state *state, struct kg_err *err)
{
    const struct kg_json *tokens = kg_json_get(doc->root, "tokens"),
                         *logp = kg_json_get(doc->root, "logp");
    size_t n = kg_json_size(tokens), letters;
    const char *source = kg_json_text(kg_json_get(doc->root, "source"), &letters);
    int32_t none[KG_MAX_TOP_K] = {0};
    float nothing[KG_MAX_TOP_K] = {0};

    if (!source || letters != n || kg_json_size(logp) != n)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected tokens, source and logp of one length", doc->where);
    t->top_k = kg_algo_recorded_top_k(&in->algo);
    if (in->recipe.rollout.router_replay)
        t->choices = kg_model_config_choices(&state->model->config);
    for (size_t i = 0; i < n; i++) {
        int32_t token = (int32_t)kg_json_int(kg_json_at(tokens, i), -1);
        struct kg_traj_step step = {.token = token,
                                    .logp = (float)kg_json_real(kg_json_at(logp, i), 0),
                                    .top_ids = none,
                                    .top_logp = nothing};
        enum kg_source from = source[i] == 't' ? KG_SOURCE_TOOL : KG_SOURCE_PROMPT;

        if (!kg_char_in("pmt", source[i]))
            return kg_fail(err, KG_EFORMAT,
                           "%s: expected letters p, m and t as source, found '%c'",
                           doc->where, source[i]);
        if (token < 0 || token >= state->model->config.vocab)
            return kg_fail(err, KG_EFORMAT, "%s: expected a token below %lld, found %d",
                           doc->where, (long long)state->model->config.vocab, token);
        if (source[i] == 'm' && !kg_json_is_number(kg_json_at(logp, i)))
            return kg_fail(err, KG_EFORMAT,
                           "%s: expected a log-prob of token %zu, found none (it was not "
                           "finite)",
                           doc->where, i);
        KG_TRY(source[i] == 'm' ? kg_traj_push(t, &step, err)
                                : kg_traj_append(t, &token, 1, from, err));
    }
    return KG_OK;
}

/* Experts of token i: ids for all layers, or null. */
static kg_status read_experts_of(struct kg_traj *t, size_t i, const struct kg_json *ids,
                                 const struct kg_json_doc *doc, int32_t experts,
                                 struct kg_err *err)
{
    size_t c = (size_t)t->choices;

    if (kg_json_type(ids) == KG_JSON_NULL)
        return KG_OK;
    if (kg_json_size(ids) != c)
        return kg_fail(err, KG_EFORMAT,
                       "%s: experts of token %zu: expected %zu, found %zu", doc->where, i,
                       c, kg_json_size(ids));
    for (size_t j = 0; j < c; j++) {
        int64_t e = kg_json_int(kg_json_at(ids, j), -1);

        if (e < 0 || e >= experts)
            return kg_fail(err, KG_EFORMAT,
                           "%s: experts of token %zu: expected one below %d, found %lld",
                           doc->where, i, (int)experts, (long long)e);
        t->experts[i * c + j] = (uint16_t)e;
    }
    return KG_OK;
}

/* Reads the experts that the sampler's router chose. */
static kg_status read_experts(struct kg_traj *t, const struct kg_json_doc *doc,
                              const struct kg_model_config *c, struct kg_err *err)
{
    const struct kg_json *experts = kg_json_get(doc->root, "experts");

    if (t->choices == 0)
        return KG_OK;
    if (kg_json_size(experts) != t->n)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected experts of %zu tokens (rollout.router_replay), "
                       "found %zu",
                       doc->where, t->n, kg_json_size(experts));
    for (size_t i = 0; i < t->n; i++)
        KG_TRY(read_experts_of(t, i, kg_json_at(experts, i), doc, c->experts.n, err));
    return KG_OK;
}

/* Reads the turns that saw only a window: [turn's first token, window's first token]. */
static kg_status read_windows(struct kg_traj *t, const struct kg_json_doc *doc,
                              struct kg_err *err)
{
    const struct kg_json *windows = kg_json_get(doc->root, "windows");
    int64_t last = (int64_t)t->prompt_n;

    for (size_t i = 0; i < kg_json_size(windows); i++) {
        const struct kg_json *pair = kg_json_at(windows, i);
        int64_t begin = kg_json_int(kg_json_at(pair, 0), 0);
        int64_t from = kg_json_int(kg_json_at(pair, 1), 0);

        if (begin <= last || begin >= (int64_t)t->n || from <= 0 || from >= begin)
            return kg_fail(err, KG_EFORMAT,
                           "%s: window %zu: expected a first token between %lld and %zu "
                           "and a context that starts before it, found %lld and %lld",
                           doc->where, i, (long long)last + 1, t->n - 1, (long long)begin,
                           (long long)from);
        KG_TRY(kg_mem_grow(&t->windows, &t->windows_capacity, i + 1, sizeof *t->windows,
                           t->n, "windows of an episode", err));
        t->windows[t->n_windows++] = (struct kg_traj_window){(size_t)begin, (size_t)from};
        last = begin;
    }
    return KG_OK;
}

/* All contexts of a trajectory must fit in one pack. */
static kg_status check_span(const struct kg_traj *t, const struct kg_json_doc *doc,
                            bool whole, const struct kg_rows *rows, struct kg_err *err)
{
    size_t span = kg_traj_span(t, whole);

    if (span <= (size_t)rows->max_tokens)
        return KG_OK;
    return kg_fail(
        err, KG_EFORMAT,
        "%s: expected a sequence of at most %lld tokens with all its windows, found %zu",
        doc->where, (long long)rows->max_tokens, span);
}

static kg_status add_line(struct replay *r, const struct kg_json_doc *doc, size_t *room,
                          struct kg_err *err)
{
    struct kg_rl_batch *b = &r->batch;

    if (!kg_json_is_number(kg_json_get(doc->root, "advantage"))) {
        r->out->left_out++;
        return KG_OK;
    }
    KG_TRY(kg_mem_grow(&b->trajs, room, b->n_trajs + 1, sizeof *b->trajs, 1 << 28,
                       "trajectories", err));
    KG_TRY(kg_mem_grow(&r->advantage, &r->advantage_room, b->n_trajs + 1,
                       sizeof *r->advantage, 1 << 28, "advantages", err));
    r->advantage[b->n_trajs] = kg_json_real(kg_json_get(doc->root, "advantage"), 0);
    struct kg_traj *t = &b->trajs[b->n_trajs++];
    memset(t, 0, sizeof *t);
    KG_TRY(read_numbers(t, doc, err));
    KG_TRY(read_parts(t, doc, r->run.in.task_opts.rewards, err));
    KG_TRY(read_tokens(t, doc, &r->run.in, &r->run.state, err));
    KG_TRY(read_experts(t, doc, &r->run.state.model->config, err));
    KG_TRY(read_windows(t, doc, err));
    return check_span(t, doc, r->run.in.recipe.reproduction, r->run.work.rows, err);
}

static kg_status read_lines(struct replay *r, const struct kg_str *text, const char *path,
                            struct kg_err *err)
{
    size_t room = 0, line = 0;

    for (const char *p = kg_str_text(text); *p; p += strcspn(p, "\n"), p += *p == '\n') {
        char where[sizeof(struct kg_path) + 32];
        struct kg_json_doc doc;

        snprintf(where, sizeof where, "%s: line %zu", path, ++line);
        KG_TRY(kg_json_parse(&doc, p, strcspn(p, "\n"), where, err));
        kg_status status = add_line(r, &doc, &room, err);
        kg_json_release(&doc);
        if (status != KG_OK)
            return status;
    }
    return KG_OK;
}

static kg_status read_dump(struct replay *r, const char *dir, struct kg_err *err)
{
    struct kg_rl_batch *b = &r->batch;
    struct kg_str text = {0};
    char name[64];

    snprintf(name, sizeof name, "rollouts/step-%06lld.jsonl.zst",
             (long long)r->out->step);
    struct kg_path path = kg_path_in(dir, name);
    if (!kg_file_exists(path.text))
        return kg_fail(err, KG_ENOTFOUND,
                       "%s: expected the dump of a step, found none (log.rollouts writes "
                       "them)",
                       path.text);
    kg_status status = kg_zst_read(&text, path.text, KG_REPLAY_MOST_BYTES, err);
    if (status == KG_OK)
        status = read_lines(r, &text, path.text, err);
    kg_str_release(&text);
    KG_TRY(status);
    b->group = r->run.in.recipe.rollout.samples;
    b->judges = kg_task_judges(r->run.in.task, &r->run.in.task_opts);
    if (b->n_trajs == 0 || b->n_trajs % (size_t)b->group != 0)
        return kg_fail(
            err, KG_EFORMAT,
            "%s: expected groups of %d samples to learn from, found %zu samples",
            path.text, b->group, b->n_trajs);
    kg_rl_compare_sums(b->trajs, b->n_trajs, (size_t)b->group, &r->run.in);
    b->n_learned = b->n_trajs;
    return kg_mem_new(&b->grades, b->n_trajs, sizeof *b->grades, "grades", err);
}

/* ---- ids kept by truncated sampling ---- */

/* One forward over each context that a trajectory was sampled in. The head runs on a few
 * rows at a time, because their logits have the width of the vocabulary; the sampler
 * itself decides on each row, so the set is the one that the token was drawn from. */
enum { KEEP_ROWS = 32 };

struct keeper {
    struct kg_traj *t;
    struct kg_rows *rows; /* borrowed */
    const struct kg_sampling *s;
    struct kg_sampler_scratch scratch; /* owned, as are all below */
    struct kg_sampler_pick pick;
    double lse[KEEP_ROWS];
    float *logits; /* (KEEP_ROWS,V) */
};

static bool is_sampled(const struct keeper *k, size_t j)
{
    return k->t->source[j] == KG_SOURCE_MODEL;
}

/* Rows [first, first + n) of a part: its sampled tokens from *j on; advances *j. */
static kg_status keep_rows(struct keeper *k, size_t *j, int64_t first, int64_t n,
                           struct kg_err *err)
{
    int32_t vocab = k->rows->model->config.vocab;
    struct kg_head_out out = {.lse = k->lse, .logits = k->logits};

    KG_TRY(kg_rows_read(&out, k->rows, first, n, 0, err));
    for (int64_t i = 0; i < n; i++, ++*j) {
        struct kg_sampler_row row = {
            .z = k->logits + i * vocab, .vocab = vocab, .lse = k->lse[i]};

        while (!is_sampled(k, *j))
            ++*j;
        KG_TRY(kg_sampler_keep(&k->pick, &k->scratch, &row, k->s, err));
        KG_TRY(kg_traj_keep(k->t, *j, &k->pick.kept, err));
    }
    return KG_OK;
}

static kg_status keep_part(struct keeper *k, const struct kg_model *m,
                           const struct kg_traj_part *part, struct kg_err *err)
{
    struct kg_rows *p = k->rows;
    size_t next = part->begin;

    kg_rows_begin(p, m, 0);
    (void)kg_traj_want(p, k->t, *part, false, NULL, 0, NULL);
    KG_TRY(kg_rows_forward(p, false, err));
    for (int64_t i = 0; i < p->n_rows; i += KEEP_ROWS)
        KG_TRY(keep_rows(k, &next, i,
                         p->n_rows - i < KEEP_ROWS ? p->n_rows - i : KEEP_ROWS, err));
    return KG_OK;
}

static kg_status keep_all(struct keeper *k, const struct kg_model *m, struct kg_err *err)
{
    KG_TRY(kg_sampler_scratch_grow(&k->scratch, k->s, m->config.vocab, err));
    k->logits = kg_mem_calloc((size_t)KEEP_ROWS * (size_t)m->config.vocab,
                              sizeof *k->logits, "kept ids of a trajectory", err);
    if (!k->logits)
        return err->code;
    for (size_t i = 0; i < kg_traj_n_parts(k->t, false); i++) {
        struct kg_traj_part part = kg_traj_part(k->t, i, false);

        KG_TRY(keep_part(k, m, &part, err));
    }
    return KG_OK;
}

/* Records the kept set of every MODEL token of t under s, as a rollout with record_kept
 * does; t has none yet, and the rows have room for its longest part. */
static kg_status find_kept(struct kg_traj *t, const struct kg_model *m,
                           struct kg_rows *rows, const struct kg_sampling *s,
                           struct kg_err *err)
{
    struct keeper k = {.t = t, .rows = rows, .s = s};

    if (!kg_sampler_truncates(s, m->config.vocab))
        return KG_OK;
    kg_status status = keep_all(&k, m, err);
    kg_sampler_scratch_release(&k.scratch);
    kg_sampler_pick_release(&k.pick);
    kg_mem_free(k.logits);
    return status;
}

/* ---- data that the dump lacks ---- */

/* A dump lacks the sampler's most likely ids and the ids that truncation kept. Loaded
 * weights reproduce them, bit for bit if they are those of the step before. */
static kg_status record_part(struct replay *r, struct kg_traj *t,
                             struct kg_traj_part part, float *logp, struct kg_err *err)
{
    struct kg_run *run = &r->run;
    const struct kg_model *sampler = kg_run_sampler(&run->state);
    size_t at = part.from * (size_t)t->top_k;
    struct kg_score_seq seq = {.tokens = t->tokens + part.from,
                               .n = part.end - part.from,
                               .from = part.begin - part.from,
                               .temperature = t->temperature,
                               .logp = logp,
                               .top_ids = t->top_k > 0 ? t->top_ids + at : NULL,
                               .top_logp = t->top_k > 0 ? t->top_logp + at : NULL};

    KG_TRY(kg_score(kg_run_rows(&run->state, &run->work, sampler), sampler, &seq, 1, 0,
                    t->top_k, err));
    for (size_t j = part.begin; j < part.end; j++)
        if (t->source[j] == KG_SOURCE_MODEL)
            r->out->apart_max = fmax(r->out->apart_max, fabs((double)logp[j - part.from] -
                                                             (double)t->logp[j]));
    return KG_OK;
}

static kg_status record_traj(struct replay *r, struct kg_traj *t, struct kg_err *err)
{
    struct kg_run *run = &r->run;
    const struct kg_model *sampler = kg_run_sampler(&run->state);
    struct kg_sampling sampling = kg_run_sampling(&run->in);
    float *logp = kg_mem_calloc(t->n, sizeof *logp, "log-probs", err);
    kg_status status = logp ? KG_OK : err->code;

    for (size_t i = 0; status == KG_OK && i < kg_traj_n_parts(t, false); i++)
        status = record_part(r, t, kg_traj_part(t, i, false), logp, err);
    kg_mem_free(logp);
    if (status == KG_OK && sampling.record_kept)
        status = find_kept(t, sampler, kg_run_rows(&run->state, &run->work, sampler),
                           &sampling, err);
    return status;
}

static kg_status check_dump(const struct kg_run_inputs *in, struct kg_err *err)
{
    const struct kg_algo *algo = &in->algo;

    if (kg_begun_steps(&in->recipe) > 0)
        return kg_fail(
            err, KG_EUNSUPPORTED,
            "rollout.max_staleness: expected completions of one version of the weights, "
            "found a run whose completions span several versions");
    if (kg_algo_needs(algo) & KG_NEED_GREEDY)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "the dump lacks the greedy completions that %s needs",
                       kg_algo_row_name(algo, KG_TABLE_ADVANTAGE));
    return KG_OK;
}

/* ---- gradients ---- */

static kg_status dot(double *out, const struct kg_slab *x, const struct kg_slab *y,
                     struct kg_err *err)
{
    const struct kg_backend *be = x->backend;
    const struct kg_vec a = kg_slab_all(x), b = kg_slab_all(y), none = {0};
    double xx, yy, apart;

    KG_TRY(kg_op_sum_squares(be, &xx, a, none, err));
    KG_TRY(kg_op_sum_squares(be, &yy, b, none, err));
    KG_TRY(kg_op_sum_squares(be, &apart, a, b, err));
    *out = (xx + yy - apart) / 2;
    return KG_OK;
}

static kg_status keep_or_compare(struct replay *r, const struct kg_slab *grads,
                                 struct kg_err *err)
{
    struct kg_slab *exact = &r->exact_of[r->group++];
    double apart;

    if (r->part == KG_REPLAY_EXACT) {
        KG_TRY(kg_slab_init(exact, grads->backend, grads->n, "gradient of a group", err));
        return kg_slab_copy(exact, grads, err);
    }
    KG_TRY(kg_op_sum_squares(grads->backend, &apart, kg_slab_all(grads),
                             kg_slab_all(exact), err));
    r->apart_squares += apart;
    return KG_OK;
}

static kg_status add_group(void *user, const struct kg_slab *grads, struct kg_err *err)
{
    struct replay *r = user;
    double squares;

    KG_TRY(kg_op_sum_squares(grads->backend, &squares, kg_slab_all(grads),
                             (struct kg_vec){0}, err));
    r->squares += squares;
    if (r->exact_of && (r->part == KG_REPLAY_EXACT || r->part == KG_REPLAY_KL))
        KG_TRY(keep_or_compare(r, grads, err));
    return kg_slab_add(&r->sum, grads, err);
}

/* Only the whole loss has the auxiliary loss that balances experts. */
static kg_status gradients(struct kg_rl_totals *totals, struct replay *r,
                           enum kg_replay_part part, const struct kg_algo *algo,
                           struct kg_err *err)
{
    double *aux = &r->run.in.recipe.train.router_aux;
    const double c = *aux;
    kg_status status;

    *aux = part == KG_REPLAY_LOSS ? c : 0;
    status = kg_rl_gradients(totals, &r->batch, &r->run, algo, add_group, r, err);
    *aux = c;
    return status;
}

static kg_status measure(struct replay *r, enum kg_replay_part part,
                         const struct kg_algo *algo, struct kg_rl_totals *totals,
                         struct kg_err *err)
{
    struct kg_replay_row *row = &r->out->row[part];
    double n = (double)r->out->groups, all;

    KG_TRY(kg_slab_zero(&r->sum, err));
    r->squares = r->apart_squares = 0;
    r->group = 0;
    r->part = part;
    KG_TRY(gradients(totals, r, part, algo, err));
    KG_TRY(dot(&all, &r->sum, &r->sum, err));
    *row = (struct kg_replay_row){.there = true,
                                  .value = totals->loss,
                                  .norm = sqrt(all),
                                  .cosine = NAN,
                                  .to_objective = NAN,
                                  .noise = NAN,
                                  .bias_squared = NAN};
    if (n > 1)
        row->variance = fmax(0, n / (n - 1) * (r->squares - all / n));
    return KG_OK;
}

/* Cosine of the current part's gradient and a kept one. */
static kg_status compare(double *cosine, struct replay *r, enum kg_replay_part part,
                         enum kg_replay_part with, const struct kg_slab *kept,
                         struct kg_err *err)
{
    double norms = r->out->row[part].norm * r->out->row[with].norm, product;

    if (!(norms > 0))
        return KG_OK;
    KG_TRY(dot(&product, &r->sum, kept, err));
    *cosine = product / norms;
    return KG_OK;
}

/* Bias and noise of the loss's KL: see replay.h. */
static kg_status hold_against_exact(struct replay *r, struct kg_err *err)
{
    struct kg_replay_row *row = &r->out->row[KG_REPLAY_KL];
    double n = (double)r->out->groups, unit = r->out->row[KG_REPLAY_EXACT].norm, all,
           noise;

    if (!r->exact_of || n < 2 || !(unit > 0))
        return KG_OK;
    KG_TRY(kg_op_sum_squares(r->sum.backend, &all, kg_slab_all(&r->sum),
                             kg_slab_all(&r->exact), err));
    noise = fmax(0, n / (n - 1) * (r->apart_squares - all / n));
    row->noise = sqrt(noise) / unit;
    row->bias_squared = (all - noise) / (unit * unit);
    return KG_OK;
}

static kg_status keep_groups(struct replay *r, struct kg_err *err)
{
    uint64_t bytes = (uint64_t)r->sum.n * sizeof(float) * r->out->groups;

    r->out->group_bytes = bytes;
    if (!r->run.state.anchor || bytes > KG_REPLAY_MOST_BYTES)
        return KG_OK;
    return kg_mem_new(&r->exact_of, r->out->groups, sizeof *r->exact_of,
                      "gradients of groups", err);
}

/* ---- the parts of the loss ---- */

static kg_status exact_part(struct kg_algo *out, const struct kg_algo *algo,
                            struct kg_err *err)
{
    const char *name = kg_algo_row_name(algo, KG_TABLE_KL);
    enum kg_target target = KG_TARGET_NONE;

    for (size_t i = 0; i < kg_policy_n_rows(KG_TABLE_KL); i++)
        if (strcmp(kg_policy_row(KG_TABLE_KL, i)->name, name) == 0)
            target = kg_policy_row_claims(KG_TABLE_KL, i)->target;
    *out = *algo;
    out->entropy_coef = 0;
    out->kl_beta = algo->kl_beta > 0 ? algo->kl_beta : 1;
    KG_TRY(kg_algo_set(out, "kl.in", "loss", err));
    KG_TRY(kg_algo_set(out, "algo.surrogate", "none", err));
    return kg_algo_set(out, "kl.estimator",
                       target == KG_TARGET_FORWARD ? "exact-forward" : "exact-reverse",
                       err);
}

/* The surrogate is vespo, whose weight W^k exp(lambda (1 - W)) is W at k 1 and lambda 0.
 * A KL to the sampler (iterative) is left out: `anchor` is not its anchor. */
static kg_status objective_part(struct kg_algo *out, const struct kg_algo *algo,
                                const struct kg_model *anchor, struct kg_err *err)
{
    bool kl = kg_algo_kl_in_loss(algo) && algo->kl_beta > 0;
    bool pg = strcmp(kg_algo_row_name(algo, KG_TABLE_SURROGATE), "none") != 0;

    *out = *algo;
    if (kl && anchor && algo->anchor->kind != KG_ANCHOR_ITERATIVE)
        KG_TRY(exact_part(out, algo, err));
    else
        KG_TRY(kg_algo_set(out, "kl.estimator", "none", err));
    out->entropy_coef = algo->entropy_coef;
    out->vespo_k_pos = out->vespo_k_neg = 1;
    out->vespo_lambda_pos = out->vespo_lambda_neg = 0;
    out->tis = 0;
    KG_TRY(kg_algo_set(out, "algo.mask", "none", err));
    return kg_algo_set(out, "algo.surrogate", pg ? "vespo" : "none", err);
}

/* out: the algorithm whose loss is this part of algo's.   *there: algo has this part */
static kg_status part_of(struct kg_algo *out, bool *there, const struct kg_algo *algo,
                         const struct kg_model *anchor, enum kg_replay_part part,
                         struct kg_err *err)
{
    bool kl = kg_algo_kl_in_loss(algo) && algo->kl_beta > 0;

    *out = *algo;
    *there = true;
    if (part == KG_REPLAY_EXACT) {
        *there = anchor != NULL;
        return exact_part(out, algo, err);
    }
    if (part == KG_REPLAY_OBJECTIVE)
        return objective_part(out, algo, anchor, err);
    if (part == KG_REPLAY_POLICY)
        return kg_algo_set(out, "kl.estimator", kl ? "none" : "", err);
    if (part != KG_REPLAY_KL)
        return KG_OK;
    *there = kl;
    out->entropy_coef = 0;
    return kg_algo_set(out, "algo.surrogate", "none", err);
}

static void compare_advantages(struct replay *r)
{
    const struct kg_rl_batch *b = &r->batch;

    for (size_t i = 0; i < b->n_trajs; i++)
        if (b->begin[i] < b->begin[i + 1])
            r->out->advantage_apart_max = fmax(
                r->out->advantage_apart_max,
                fabs(b->advantage[b->begin[i]] - r->advantage[i]));
}

/* Whether the KL is the whole loss, as in distillation. */
static bool is_kl_alone(const struct kg_run_inputs *in)
{
    const struct kg_algo *a = &in->algo;

    return strcmp(kg_algo_row_name(a, KG_TABLE_SURROGATE), "none") == 0 &&
           kg_algo_kl_in_loss(a) && a->kl_beta > 0 && !(a->entropy_coef > 0) &&
           !(in->recipe.train.router_aux > 0);
}

/* In reverse: all parts are compared with the last two, exact KL and objective. */
static kg_status all_parts(struct replay *r, struct kg_err *err)
{
    struct kg_policy_advantage a = {0};
    struct kg_rl_totals totals = {0};
    const bool kl_alone = is_kl_alone(&r->run.in);

    KG_TRY(kg_rl_advantages(&a, &totals, &r->batch, &r->run.in.algo,
                            r->run.in.task_opts.rewards, err));
    compare_advantages(r);
    KG_TRY(keep_groups(r, err));
    for (int i = KG_REPLAY_PARTS - 1; i >= 0; i--) {
        enum kg_replay_part part = (enum kg_replay_part)i;
        struct kg_rl_totals sums = {.kl_divisor = a.batch_std > 0 ? a.batch_std + 1e-6
                                                                  : 0};
        struct kg_algo algo;
        bool there;

        KG_TRY(part_of(&algo, &there, &r->run.in.algo, r->run.state.anchor, part, err));
        if (!there || (kl_alone && part < KG_REPLAY_KL))
            continue;
        KG_TRY(measure(r, part, &algo, &sums, err));
        if (part == KG_REPLAY_EXACT || part == KG_REPLAY_OBJECTIVE)
            KG_TRY(kg_slab_copy(part == KG_REPLAY_EXACT ? &r->exact : &r->objective,
                                &r->sum, err));
        struct kg_replay_row *row = &r->out->row[part];

        KG_TRY(compare(&row->cosine, r, part, KG_REPLAY_EXACT, &r->exact, err));
        KG_TRY(compare(&row->to_objective, r, part, KG_REPLAY_OBJECTIVE, &r->objective,
                       err));
        if (part == KG_REPLAY_KL)
            KG_TRY(hold_against_exact(r, err));
    }
    if (kl_alone)
        r->out->row[KG_REPLAY_LOSS] = r->out->row[KG_REPLAY_KL];
    return KG_OK;
}

/* ---- the replay ---- */

static void describe(struct kg_replay *out, const struct kg_algo *a)
{
    snprintf(out->algorithm, sizeof out->algorithm,
             "advantage %s, surrogate %s, %s; KL %s x %g against %s anchor",
             kg_algo_row_name(a, KG_TABLE_ADVANTAGE),
             kg_algo_row_name(a, KG_TABLE_SURROGATE),
             kg_algo_row_name(a, KG_TABLE_AGGREGATE), kg_algo_row_name(a, KG_TABLE_KL),
             a->kl_beta, kg_algo_row_name(a, KG_TABLE_ANCHOR));
}

static kg_status replay(struct replay *r, const char *dir, bool own, struct kg_err *err)
{
    KG_TRY(check_dump(&r->run.in, err));
    KG_TRY(load_weights(r, dir, err));
    if (own && r->run.in.algo.kl_target > 0)
        r->run.in.algo.kl_beta = r->run.state.count.kl_beta;
    describe(r->out, &r->run.in.algo);
    KG_TRY(read_dump(r, dir, err));
    r->out->answers = r->batch.n_trajs;
    r->out->groups = r->batch.n_trajs / (size_t)r->batch.group;
    struct kg_rl_batch *b = &r->batch;

    for (size_t i = 0; i < b->n_trajs; i++)
        KG_TRY(record_traj(r, &b->trajs[i], err));
    KG_TRY(kg_rl_prepare(&r->batch, &r->run.in, &r->run.state, &r->run.work, err));
    KG_TRY(make_room(r, err));
    return all_parts(r, err);
}

kg_status kg_replay_run(struct kg_replay *out, const char *dir, int64_t step,
                        char *const *assignments, size_t n, struct kg_err *err)
{
    struct kg_config *config;
    struct replay r = {.out = out};

    *out = (struct kg_replay){.step = step};
    for (int i = 0; i < KG_REPLAY_PARTS; i++)
        out->row[i].noise = out->row[i].bias_squared = NAN;
    KG_TRY(make_config(&config, dir, assignments, n, err));
    kg_status status = kg_run_open_at(&r.run, config, step - 1, err);
    if (status == KG_OK) {
        status = replay(&r, dir, n == 0, err);
        kg_rl_batch_release(&r.batch);
        kg_model_free(r.kept);
        kg_run_close(&r.run);
    }
    kg_mem_free(r.advantage);
    for (size_t i = 0; r.exact_of && i < out->groups; i++)
        kg_slab_release(&r.exact_of[i]);
    kg_mem_free(r.exact_of);
    kg_slab_release(&r.sum);
    kg_slab_release(&r.exact);
    kg_slab_release(&r.objective);
    kg_config_free(config);
    return status;
}
