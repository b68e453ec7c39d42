/* The run of a suite: load, continue, sample, grade, count, write. Sets are sampled one
 * after the other. Metrics use a sample as it is read back from its line, so
 * continued and new evaluations give the same numbers. Samples are graded in small
 * groups, because external graders take batches; after a failure, pending samples are
 * still graded and kept. Ranks exchange lines, and the first rank reads them as it reads
 * those of a journal. */
#include "eval/runner.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/phase.h"
#include "data/inputs.h"
#include "ranks/lanes.h"
#include "ranks/ranks.h"
#include "ranks/same.h"
#include "text/unicode.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    PENDING = 32, /* samples that a grader gets at once */
    ROUND = 512   /* samples of a rank between two exchanges */
};

/* A set while it is evaluated. */
struct set_work {
    struct kg_eval_set *set;
    struct kg_eval_answer *answers; /* (n) owned */
    bool *there;                    /* (n) owned */
    struct kg_result_place *places; /* (n) owned; where each line is kept */
    size_t n;
    size_t done;
    size_t right;
    int phase; /* while it is sampled */
};

/* A sample that waits for its grade. */
struct pending {
    struct kg_eval_fresh fresh;
    struct kg_str text;             /* owned */
    struct kg_episode_text episode; /* owned; empty for a completion of one turn */
    struct kg_traj verdict;         /* of an environment; without tokens */
    struct kg_eval_answer sums;     /* if the sample was scored */
};

struct work {
    const struct kg_eval_run *run;
    struct kg_ranks *ranks; /* those of the run, or one rank */
    struct set_work *sets;  /* (n) owned */
    size_t n;
    struct set_work *now;
    struct pending pending[PENDING];
    size_t n_pending;
    struct kg_results results;
    bool kept;           /* results are kept in a folder */
    struct kg_str lines; /* without a folder: kept here, if they are dumped */
    struct kg_str sent;  /* of ranks but the first: lines for the first rank */
    struct kg_str line;
};

/* ---- lines of samples ---- */

static kg_status put_text(struct kg_str *out, const char *key, const char *text, size_t n,
                          struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, ", \"%s\": ", key));
    return kg_json_put_string(out, text, n, err);
}

static kg_status put_number(struct kg_str *out, const char *key, double x,
                            struct kg_err *err)
{
    KG_TRY(kg_json_put_text(out, ", ", key, err));
    KG_TRY(kg_str_puts(out, ": ", err));
    return kg_json_put_cell(out, x, err);
}

/* Rewards of several graders, null if not graded, and further numbers of graders. */
static kg_status put_parts(struct kg_str *out, const struct kg_grade *g,
                           const struct kg_eval_ks *ks, struct kg_err *err)
{
    for (int k = 0; k < g->n_parts; k++) {
        KG_TRY(kg_str_printf(out, err, "%s\"%s\": ", k ? ", " : ", \"rewards\": {",
                             kg_task_rewards_name(ks->rewards, k)));
        KG_TRY(kg_json_put_cell(out, g->part[k], err));
    }
    if (g->n_parts > 0)
        KG_TRY(kg_str_putc(out, '}', err));
    if (g->further.said == 0)
        return KG_OK;
    KG_TRY(kg_str_puts(out, ", \"further\": ", err));
    return kg_further_put_json(out, &g->further, ks->further, g->further.said, err);
}

static kg_status put_numbers(struct kg_str *out, const struct kg_eval_answer *a,
                             const struct kg_eval_ks *ks, struct kg_err *err)
{
    KG_TRY(put_number(out, "reward", a->grade.reward, err));
    KG_TRY(put_parts(out, &a->grade, ks, err));
    if (a->scored) {
        KG_TRY(put_number(out, "entropy", a->entropy, err));
        KG_TRY(put_number(out, "kl_k1", a->kl_k1, err));
        KG_TRY(put_number(out, "kl_k3", a->kl_k3, err));
    }
    for (int i = 0; i < ks->n_extra; i++)
        KG_TRY(put_number(out, ks->extra[i], a->extra[i], err));
    return KG_OK;
}

/* Segments of an episode in order, each with its source. */
static kg_status put_segments(struct kg_str *out, const struct kg_episode_text *e,
                              struct kg_err *err)
{
    static const char *const names[KG_SOURCE_COUNT] = {"prompt", "model", "tool"};

    KG_TRY(kg_str_puts(out, ", \"segments\": [", err));
    for (size_t i = 0; i < e->n_spans; i++) {
        KG_TRY(kg_str_printf(out, err, "%s{\"source\": \"%s\", \"text\": ", i ? ", " : "",
                             names[e->spans[i].source]));
        KG_TRY(kg_json_put_string(out, e->spans[i].text, e->spans[i].n, err));
        KG_TRY(kg_str_putc(out, '}', err));
    }
    return kg_str_putc(out, ']', err);
}

static kg_status put_line(struct kg_str *out, const struct kg_eval_set *set, size_t i,
                          const struct kg_eval_answer *a, const struct pending *p,
                          struct kg_err *err)
{
    size_t samples = (size_t)set->samples;
    const struct kg_record *r = &set->data.records[i / samples];
    int32_t sample = (int32_t)(i % samples);
    uint64_t seed = kg_eval_seed(set->sampling.rng.seed, set->name, r->line, sample);

    kg_str_clear(out);
    KG_TRY(kg_str_printf(out, err, "{\"set\": \"%s\", \"problem\": %lld", set->name,
                         (long long)r->line));
    if (r->id)
        KG_TRY(put_text(out, "id", r->id, strlen(r->id), err));
    KG_TRY(kg_str_printf(out, err,
                         ", \"sample\": %d, \"seed\": %llu, \"finish_reason\": \"%s\", "
                         "\"tokens\": %lld, \"graded\": %s, \"correct\": %s",
                         sample, (unsigned long long)seed, kg_finish_name(a->finish),
                         (long long)a->tokens, a->grade.graded ? "true" : "false",
                         a->grade.correct ? "true" : "false"));
    KG_TRY(put_numbers(out, a, &set->ks, err));
    if (a->extracted)
        KG_TRY(put_text(out, "extracted", a->extracted, strlen(a->extracted), err));
    KG_TRY(put_text(out, "prompt", r->prompt, strlen(r->prompt), err));
    KG_TRY(put_text(out, "ground_truth", r->ground_truth, strlen(r->ground_truth), err));
    KG_TRY(put_text(out, "response", kg_str_text(&p->text), p->text.len, err));
    if (p->episode.spans)
        KG_TRY(put_segments(out, &p->episode, err));
    return kg_str_puts(out, "}\n", err);
}

/* ---- samples that are kept ---- */

static struct set_work *set_of(struct work *w, const char *name)
{
    for (size_t i = 0; i < w->n; i++)
        if (strcmp(w->sets[i].set->name, name) == 0)
            return &w->sets[i];
    return NULL;
}

/* Records are sorted by number.   returns set->data.n if there is none */
static size_t record_of(const struct kg_eval_set *set, int64_t number)
{
    size_t low = 0, high = set->data.n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (set->data.records[middle].line < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < set->data.n && set->data.records[low].line == number ? low : set->data.n;
}

static kg_status read_parts(struct kg_grade *g, const struct kg_task_rewards *rewards,
                            const struct kg_json_doc *line, struct kg_err *err)
{
    const struct kg_json *parts = kg_json_get(line->root, "rewards");

    g->n_parts = kg_task_rewards_n(rewards);
    for (int k = 0; k < g->n_parts; k++) {
        const char *name = kg_task_rewards_name(rewards, k);
        const struct kg_json *one = kg_json_get(parts, name);

        if (!one)
            return kg_fail(err, KG_EFORMAT, "%s: expected reward %s, found none",
                           line->where, name);
        g->part[k] = kg_json_real(one, NAN);
    }
    return KG_OK;
}

static kg_status read_further(struct kg_grade *g, struct kg_further_names *names,
                              const struct kg_json_doc *line, struct kg_err *err)
{
    const struct kg_json *said = kg_json_get(line->root, "further");

    for (size_t i = 0; said && i < kg_json_size(said); i++) {
        const char *name = kg_json_key_at(said, i);
        int k;

        if (!name || strlen(name) >= KG_FURTHER_NAME)
            return kg_fail(err, KG_EFORMAT,
                           "%s: expected numbers whose names have fewer than %d bytes",
                           line->where, KG_FURTHER_NAME);
        KG_TRY(kg_further_find(&k, names, name, err));
        g->further.said |= (uint32_t)1 << k;
        g->further.x[k] = kg_json_real(kg_json_value_at(said, i), 0);
    }
    return KG_OK;
}

static kg_status read_answer(struct kg_eval_answer *a, struct kg_eval_set *set,
                             const struct kg_json_doc *line, struct kg_err *err)
{
    const struct kg_eval_ks *ks = &set->ks;
    const struct kg_json *o = line->root;
    const char *extracted = kg_json_text(kg_json_get(o, "extracted"), NULL);
    const struct kg_json *graded, *correct, *reward, *extra;
    const char *finish;

    KG_TRY(kg_json_need(&graded, line, o, "graded", KG_JSON_BOOL, err));
    KG_TRY(kg_json_need(&correct, line, o, "correct", KG_JSON_BOOL, err));
    KG_TRY(kg_json_need(&reward, line, o, "reward", KG_JSON_REAL, err));
    KG_TRY(kg_json_need_text(&finish, line, o, "finish_reason", err));
    a->grade.graded = kg_json_bool(graded, false);
    a->grade.correct = kg_json_bool(correct, false);
    a->grade.reward = kg_json_real(reward, 0);
    KG_TRY(read_parts(&a->grade, set->task_opts.rewards, line, err));
    KG_TRY(read_further(&a->grade, &set->further, line, err));
    a->scored = kg_json_get(o, "entropy") != NULL;
    a->entropy = kg_json_real(kg_json_get(o, "entropy"), 0);
    a->kl_k1 = kg_json_real(kg_json_get(o, "kl_k1"), 0);
    a->kl_k3 = kg_json_real(kg_json_get(o, "kl_k3"), 0);
    for (int i = 0; i < ks->n_extra; i++) {
        KG_TRY(kg_json_need(&extra, line, o, ks->extra[i], KG_JSON_REAL, err));
        a->extra[i] = kg_json_real(extra, 0);
    }
    KG_TRY(kg_finish_find(&a->finish, finish, line->where, err));
    KG_TRY(kg_json_need_int(&a->tokens, line, o, "tokens", 0, INT64_MAX, err));
    a->extracted = extracted ? kg_mem_strdup(extracted, err) : NULL;
    return extracted && !a->extracted ? err->code : KG_OK;
}

static kg_status take_kept(void *user, const struct kg_json_doc *line,
                           struct kg_result_place place, struct kg_err *err)
{
    struct work *w = user;
    const char *name;
    int64_t problem, sample;

    KG_TRY(kg_json_need_text(&name, line, line->root, "set", err));
    KG_TRY(kg_json_need_int(&problem, line, line->root, "problem", 0, INT64_MAX, err));
    KG_TRY(kg_json_need_int(&sample, line, line->root, "sample", 0, KG_EVAL_MAX_N, err));
    struct set_work *s = set_of(w, name);
    size_t at = s ? record_of(s->set, problem) : 0;
    if (!s || at == s->set->data.n || sample >= s->set->samples)
        return kg_fail(
            err, KG_ECONFLICT,
            "%s: expected a sample of this suite, found sample %lld of problem "
            "%lld of set %.60s",
            line->where, (long long)sample, (long long)problem, name);
    at = at * (size_t)s->set->samples + (size_t)sample;
    if (s->there[at])
        return kg_fail(
            err, KG_EFORMAT,
            "%s: expected every sample once, found sample %lld of problem %lld "
            "of set %.60s again",
            line->where, (long long)sample, (long long)problem, name);
    KG_TRY(read_answer(&s->answers[at], s->set, line, err));
    s->answers[at].there = s->there[at] = true;
    s->places[at] = place;
    s->done++;
    s->right += s->answers[at].grade.correct;
    return KG_OK;
}

/* ---- new samples ---- */

static kg_status keep_line(struct work *w, struct kg_result_place *place,
                           struct kg_err *err)
{
    if (w->ranks->me > 0)
        return kg_str_append(&w->sent, w->line.data, w->line.len, err);
    if (w->kept)
        return kg_results_put(&w->results, place, &w->line, err);
    *place = (struct kg_result_place){w->lines.len, w->line.len};
    return w->run->dump ? kg_str_append(&w->lines, w->line.data, w->line.len, err)
                        : KG_OK;
}

/* Valid UTF-8, as it is read back, so that votes are the same before and after. */
static kg_status extract(struct kg_eval_answer *a, const struct kg_eval_set *set,
                         const struct kg_grade_item *item, struct kg_err *err)
{
    struct kg_str found = {0}, valid = {0};
    kg_status status = KG_OK;

    if (!set->task->extract)
        return KG_OK;
    KG_TRY_GOTO(out, set->task->extract(&found, &set->task_opts, item, err));
    KG_TRY_GOTO(out, kg_utf8_make_valid(&valid, kg_str_text(&found), found.len, err));
    a->extracted = kg_mem_strdup(kg_str_text(&valid), err);
    status = a->extracted ? KG_OK : err->code;
out:
    kg_str_release(&found);
    kg_str_release(&valid);
    return status;
}

static kg_status settle(struct work *w, struct pending *p, const struct kg_grade *grade,
                        const struct kg_grade_item *item, struct kg_err *err)
{
    struct set_work *s = w->now;
    size_t at = p->fresh.problem * (size_t)s->set->samples + (size_t)p->fresh.sample;
    struct kg_eval_answer *a = &s->answers[at];

    *a = p->sums;
    a->grade = *grade;
    a->grade.reward = grade->graded ? grade->reward : 0;
    a->tokens = p->fresh.tokens;
    a->finish = p->fresh.finish;
    memcpy(a->extra, p->fresh.extra, sizeof a->extra);
    KG_TRY(extract(a, s->set, item, err));
    KG_TRY(put_line(&w->line, s->set, at, a, p, err));
    KG_TRY(keep_line(w, &s->places[at], err));
    a->there = s->there[at] = true;
    s->done++;
    s->right += a->grade.graded && a->grade.correct;
    kg_phase_at(s->phase, (int64_t)s->done);
    kg_log_progress(10000, "%s: %zu of %zu samples, %.1f %% right", s->set->name, s->done,
                    s->n, 100.0 * (double)s->right / (double)s->done);
    return KG_OK;
}

static kg_status grade_pending(struct work *w, struct kg_err *err)
{
    const struct kg_eval_set *set = w->now->set;
    struct kg_grade grades[PENDING];
    struct kg_grade_item items[PENDING];
    kg_status status = KG_OK;

    memset(grades, 0, sizeof grades);
    for (size_t i = 0; i < w->n_pending; i++)
        items[i] = (struct kg_grade_item){
            .record = &set->data.records[w->pending[i].fresh.problem],
            .response = kg_str_text(&w->pending[i].text),
            .n = w->pending[i].text.len,
            .spans = w->pending[i].episode.spans,
            .n_spans = w->pending[i].episode.n_spans,
            .traj = &w->pending[i].verdict};
    if (w->n_pending > 0)
        status = kg_task_grade(grades, set->task, &set->task_opts, items, w->n_pending,
                               err);
    for (size_t i = 0; i < w->n_pending && status == KG_OK; i++)
        status = settle(w, &w->pending[i], &grades[i], &items[i], err);
    for (size_t i = 0; i < w->n_pending; i++) {
        kg_str_release(&w->pending[i].text);
        kg_episode_text_release(&w->pending[i].episode);
    }
    w->n_pending = 0;
    return status;
}

static kg_status take_fresh(void *user, const struct kg_eval_fresh *fresh,
                            struct kg_err *err)
{
    struct work *w = user;
    bool in_batches = kg_task_runs_program(w->now->set->task, &w->now->set->task_opts);

    if (w->now->set->episode.env && !fresh->episode)
        return kg_fail(
            err, KG_EUNSUPPORTED,
            "env %s needs multi-turn episodes, which a remote server cannot run",
            w->now->set->episode.env->name);
    struct pending *p = &w->pending[w->n_pending];
    *p = (struct pending){.fresh = *fresh};
    if (fresh->sums)
        p->sums = *fresh->sums;
    /* graded text is the text that is kept and that a server can send */
    KG_TRY(kg_utf8_make_valid(&p->text, fresh->text, fresh->n, err));
    w->n_pending++; /* complete: graded even after a failure */
    if (fresh->episode) {
        p->episode = *fresh->episode;
        *fresh->episode = (struct kg_episode_text){0};
        p->verdict = (struct kg_traj){.graded = fresh->verdict->graded,
                                      .reward = fresh->verdict->reward,
                                      .further = fresh->verdict->further};
    }
    return in_batches && w->n_pending < PENDING ? KG_OK : grade_pending(w, err);
}

/* Samples everything that is not marked. After a failure or a signal, finished samples
 * are still graded and kept. */
static kg_status answer_some(struct work *w, struct set_work *s, const bool *marked,
                             struct kg_err *err)
{
    struct kg_eval_source *source = w->run->source;
    kg_status status = source->answer(source, s->set, marked, take_fresh, w, err);

    if (status == KG_OK)
        return grade_pending(w, err);
    struct kg_err first = *err;
    (void)!grade_pending(w, err);
    *err = first;
    return status;
}

/* ---- among ranks ---- */

/* Deals the next round of a set, from sample `from` on: of the missing samples each rank
 * gets a contiguous share; *marked: false for this rank's.   returns the round's end */
static size_t deal_round(bool *marked, const struct set_work *s, size_t from,
                         const struct kg_ranks *ranks)
{
    int64_t n = 0, most = (int64_t)ROUND * ranks->n, at = 0;
    size_t end = from;

    for (; end < s->n && n < most; end++)
        n += !s->there[end];
    struct kg_share mine = kg_share_of(n, ranks->me, ranks->n);
    memset(marked, true, s->n * sizeof *marked);
    for (size_t i = from; i < end; i++)
        if (!s->there[i]) {
            marked[i] = at < mine.first || at >= mine.end;
            at++;
        }
    return end;
}

/* Takes a line of another rank as if it had been kept. */
static kg_status take_line(struct work *w, const char *line, size_t n, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_result_place place;
    kg_status status;

    kg_str_clear(&w->line);
    KG_TRY_GOTO(out, kg_str_append(&w->line, line, n, err));
    KG_TRY_GOTO(out, keep_line(w, &place, err));
    KG_TRY_GOTO(out, kg_json_parse(&doc, line, n, "a rank's answer", err));
    status = take_kept(w, &doc, place, err);
out:
    kg_json_release(&doc);
    return status;
}

static kg_status take_lines(struct work *w, const char *lines, size_t n,
                            struct kg_err *err)
{
    for (size_t at = 0, length; at < n; at += length) {
        const char *end = memchr(lines + at, '\n', n - at);

        if (!end)
            return kg_fail(
                err, KG_EFORMAT,
                "samples: expected complete lines from all ranks, found a truncated one");
        length = (size_t)(end + 1 - (lines + at));
        KG_TRY(take_line(w, lines + at, length, err));
    }
    return KG_OK;
}

/* Sends this rank's lines to the first rank, even after a failure (status, on the failed
 * rank); then all ranks learn of the failure. */
static kg_status meet(struct work *w, kg_status status, struct kg_err *err)
{
    struct kg_ranks_bytes all = {0};
    struct kg_err why = {0};
    kg_status taken = KG_OK;

    if (w->ranks->lost)
        return status;
    taken = kg_ranks_bytes_collect(&all, &w->sent, w->ranks, "samples", &why);
    kg_str_clear(&w->sent);
    if (taken == KG_OK && w->ranks->me == 0)
        taken = take_lines(w, all.bytes, (size_t)all.ends[w->ranks->n - 1], &why);
    kg_ranks_bytes_release(&all);
    if (status == KG_OK && taken != KG_OK) {
        *err = why;
        status = taken;
    }
    return kg_ranks_agree(w->ranks, status, "samples", err);
}

static kg_status answer_rounds(struct work *w, struct set_work *s, struct kg_err *err)
{
    bool *marked = kg_mem_calloc(s->n, sizeof *marked, "shares of samples", err);
    kg_status status = kg_ranks_agree(w->ranks, marked ? KG_OK : err->code, "samples",
                                      err);

    for (size_t at = 0; at < s->n && status == KG_OK;) {
        at = deal_round(marked, s, at, w->ranks);
        status = meet(w, answer_some(w, s, marked, err), err);
        kg_phase_at(s->phase, (int64_t)s->done);
    }
    kg_mem_free(marked);
    return status;
}

/* ---- a set ---- */

static kg_status answer_set(struct work *w, struct set_work *s, struct kg_err *err)
{
    w->now = s;
    s->phase = kg_phase_begin((int64_t)s->n, "samples", "set %s", s->set->name);
    kg_phase_at(s->phase, (int64_t)s->done);
    kg_status status = w->ranks->n > 1 ? answer_rounds(w, s, err)
                                       : answer_some(w, s, s->there, err);
    if (status == KG_OK) {
        kg_phase_end(s->phase);
        return status;
    }
    if (status == KG_EINTERRUPTED && w->kept)
        kg_log_info("%s: finished samples are kept; the same command continues",
                    w->run->out);
    return kg_err_prefix(err, "set %s", s->set->name);
}

/* ---- metrics ---- */

static int64_t count_cut(const struct set_work *s)
{
    int32_t samples = s->set->samples, most = s->set->sampling.max_tokens;
    int64_t n = 0;

    for (size_t p = 0; p < s->set->data.n && !s->set->episode.env; p++) {
        const struct kg_eval_answer *a = s->answers + p * (size_t)samples;
        bool cut = false;

        for (int32_t i = 0; i < samples; i++)
            cut |= a[i].finish == KG_FINISH_LENGTH && a[i].tokens < most;
        n += cut;
    }
    return n;
}

/* Episodes without a verdict of the environment count as wrong; this warns about them. */
static kg_status check_verdicts(const struct set_work *s, struct kg_err *err)
{
    size_t none = 0;

    for (size_t i = 0; i < s->n; i++)
        none += !s->answers[i].grade.graded;
    if (none == 0 || !s->set->episode.env || s->set->episode.env->open)
        return KG_OK;
    if (none == s->n)
        return kg_fail(err, KG_EFORMAT,
                       "expected episodes with a verdict of the environment, found none "
                       "in %zu; fix the environment and use another --out",
                       none);
    kg_log_warn("set %s: %zu of %zu episodes have no verdict of the environment and "
                "count as wrong (further/status/* and undecided say how many)",
                s->set->name, none, s->n);
    return KG_OK;
}

static kg_status score_set(struct kg_eval_set_report *r, struct set_work *s,
                           struct kg_err *err)
{
    const struct kg_eval_set *set = s->set;
    int64_t problems = (int64_t)set->data.n;
    int32_t *class_of = NULL;
    kg_status status = check_verdicts(s, err);

    if (status == KG_OK && set->ks.n_maj > 0) {
        class_of = kg_mem_calloc(s->n, sizeof *class_of, "votes", err);
        status = class_of ? kg_eval_classes(class_of, s->answers, problems, set->samples,
                                            set->task, &set->task_opts, err)
                          : err->code;
    }
    if (status == KG_OK)
        status = kg_eval_score_init(&r->score, s->answers, class_of, problems,
                                    set->samples, &set->ks, err);
    kg_mem_free(class_of);
    if (status != KG_OK)
        return kg_err_prefix(err, "set %s", set->name);
    r->cut_short = count_cut(s);
    r->answers = s->answers; /* moved into the report */
    r->n = s->n;
    s->answers = NULL;
    return KG_OK;
}

/* The mean over the sets of a group; group NULL: over all sets. */
static kg_status mean_of(struct kg_eval_score *mean, size_t *count,
                         const struct kg_eval_report *r, const struct work *w,
                         const char *group, struct kg_err *err)
{
    const struct kg_eval_score **scores = kg_mem_calloc(w->n, sizeof *scores, "means",
                                                        err);

    *count = 0;
    if (!scores)
        return err->code;
    for (size_t i = 0; i < w->n; i++)
        if (!group || strcmp(w->sets[i].set->group, group) == 0)
            scores[(*count)++] = &r->sets[i].score;
    kg_status status = kg_eval_score_mean(mean, scores, *count, err);
    kg_mem_free(scores);
    return status;
}

static bool is_first_of_group(const struct work *w, size_t i)
{
    const char *group = w->sets[i].set->group;

    for (size_t j = 0; j < i; j++)
        if (strcmp(w->sets[j].set->group, group) == 0)
            return false;
    return *group != 0;
}

static kg_status score_all(struct kg_eval_report *r, struct work *w, struct kg_err *err)
{
    size_t count;

    r->sets = kg_mem_calloc(w->n, sizeof *r->sets, "report", err);
    r->groups = r->sets ? kg_mem_calloc(w->n, sizeof *r->groups, "report", err) : NULL;
    if (!r->groups)
        return err->code;
    for (; r->n_sets < w->n; r->n_sets++)
        KG_TRY(score_set(&r->sets[r->n_sets], &w->sets[r->n_sets], err));
    for (size_t i = 0; i < w->n; i++) {
        struct kg_eval_group_report *g = &r->groups[r->n_groups];

        if (!is_first_of_group(w, i))
            continue;
        g->name = w->sets[i].set->group;
        KG_TRY(mean_of(&g->mean, &g->sets, r, w, g->name, err));
        r->n_groups++;
    }
    return mean_of(&r->mean, &count, r, w, NULL, err);
}

void kg_eval_report_release(struct kg_eval_report *r)
{
    for (size_t i = 0; i < r->n_sets; i++) {
        kg_eval_answers_release(r->sets[i].answers, r->sets[i].n);
        kg_mem_free(r->sets[i].answers);
        kg_eval_score_release(&r->sets[i].score);
    }
    for (size_t i = 0; i < r->n_groups; i++)
        kg_eval_score_release(&r->groups[i].mean);
    kg_eval_score_release(&r->mean);
    kg_mem_free(r->groups);
    kg_mem_free(r->sets);
    *r = (struct kg_eval_report){0};
}

/* ---- the folder ---- */

/* The hash of an index file: results depend on its content. A server has none. */
static kg_status put_index(struct kg_str *out, const struct kg_eval_set *set,
                           struct kg_err *err)
{
    const char *where = set->episode.env ? set->episode.env_opts.retriever : "";
    char label[KG_SUITE_NAME_BYTES + 24];

    if (!*where || !kg_file_exists(where))
        return KG_OK;
    snprintf(label, sizeof label, "sets.%s.search", set->name);
    return kg_inputs_put_file(out, label, where, err);
}

static kg_status put_template(struct kg_str *out, const struct kg_eval_set *set,
                              struct kg_err *err)
{
    char label[KG_SUITE_NAME_BYTES + 24];

    if (!kg_file_exists(set->chat_name))
        return KG_OK;
    snprintf(label, sizeof label, "sets.%s.chat_template", set->name);
    return kg_inputs_put_file(out, label, set->chat_name, err);
}

static kg_status put_inputs(struct kg_str *out, const struct work *w, struct kg_err *err)
{
    struct kg_eval_source *source = w->run->source;
    char label[KG_SUITE_NAME_BYTES + 16];

    KG_TRY(kg_str_putc(out, '{', err));
    for (size_t i = 0; i < w->n; i++) {
        const struct kg_eval_set *set = w->sets[i].set;

        snprintf(label, sizeof label, "sets.%s.data", set->name);
        if (set->path.len)
            KG_TRY(kg_inputs_put_file(out, label, set->path.data, err));
        KG_TRY(put_template(out, set, err));
        KG_TRY(put_index(out, set, err));
    }
    if (source->put_inputs)
        KG_TRY(source->put_inputs(source, out, err));
    return kg_str_putc(out, '}', err);
}

/* Every rank reads the files itself, so their hashes are compared. */
static kg_status check_files(const struct work *w, const char *inputs, struct kg_err *err)
{
    struct kg_str facts = {0};
    kg_status status = kg_inputs_put_facts(&facts, inputs, err);

    status = kg_ranks_check_same(w->ranks, status, &facts, "files", err);
    kg_str_release(&facts);
    return status;
}

static kg_status take_up(struct work *w, const char *inputs, struct kg_err *err)
{
    const struct kg_suite *suite = w->run->suite;
    size_t done = 0, n = 0;

    KG_TRY(kg_results_open(&w->results, w->run->out, suite, inputs, err));
    w->kept = true;
    KG_TRY(kg_results_read(&w->results, take_kept, w, err));
    for (size_t i = 0; i < w->n; i++) {
        done += w->sets[i].done;
        n += w->sets[i].n;
    }
    if (w->results.complete && done < n)
        return kg_fail(err, KG_ECONFLICT,
                       "%s: expected %zu samples in a finished evaluation, found %zu; to "
                       "sample all of them again, remove its results.json",
                       w->run->out, n, done);
    if (done > 0)
        kg_log_info("%s: %zu of %zu samples exist already", w->run->out, done, n);
    return KG_OK;
}

/* Hashes the input files: ranks must have the same, and a folder keeps them. */
static kg_status begin_run(struct work *w, struct kg_err *err)
{
    struct kg_str inputs = {0};
    kg_status status = KG_OK;

    if (w->run->out || w->ranks->n > 1)
        status = put_inputs(&inputs, w, err);
    status = kg_ranks_agree(w->ranks, status, "files", err);
    if (status == KG_OK && w->ranks->n > 1)
        status = check_files(w, inputs.data, err);
    if (status == KG_OK && w->run->out && w->ranks->me == 0)
        status = take_up(w, inputs.data, err);
    kg_str_release(&inputs);
    return status;
}

/* The places of all lines in order, and the ends of the sets. */
static kg_status in_order(struct kg_result_place **places, size_t **ends,
                          const struct work *w, struct kg_err *err)
{
    size_t n = 0, at = 0;

    for (size_t i = 0; i < w->n; i++)
        n += w->sets[i].n;
    *places = kg_mem_calloc(n, sizeof **places, "lines of samples", err);
    *ends = *places ? kg_mem_calloc(w->n, sizeof **ends, "lines of samples", err) : NULL;
    if (!*ends)
        return err->code;
    for (size_t i = 0; i < w->n; i++) {
        memcpy(*places + at, w->sets[i].places, w->sets[i].n * sizeof **places);
        at += w->sets[i].n;
        (*ends)[i] = at;
    }
    return KG_OK;
}

static kg_status write_folder(struct work *w, const struct kg_eval_report *r,
                              struct kg_err *err)
{
    struct kg_str problems = {0}, results = {0};
    struct kg_result_place *places = NULL;
    size_t *ends = NULL;
    kg_status status;

    KG_TRY_GOTO(out, kg_eval_report_problems(&problems, r, w->run->sets, err));
    KG_TRY_GOTO(out, kg_eval_report_json(&results, r, w->run->suite, w->run->sets, err));
    KG_TRY_GOTO(out, in_order(&places, &ends, w, err));
    status = kg_results_finish(
        &w->results, &(struct kg_results_end){places, ends, w->n, &problems, &results},
        err);
out:
    kg_mem_free(places);
    kg_mem_free(ends);
    kg_str_release(&results);
    kg_str_release(&problems);
    return status;
}

static kg_status dump_lines(struct work *w, struct kg_err *err)
{
    for (size_t i = 0; i < w->n; i++)
        for (size_t j = 0; j < w->sets[i].n; j++)
            KG_TRY(w->run->dump(w->run->user, w->lines.data + w->sets[i].places[j].at,
                                w->sets[i].places[j].n, err));
    return KG_OK;
}

/* ---- the run ---- */

static struct kg_ranks *ranks_of(const struct kg_eval_run *run)
{
    static struct kg_ranks alone;

    return run->ranks ? run->ranks : &alone;
}

static kg_status work_init(struct work *w, const struct kg_eval_run *run,
                           struct kg_err *err)
{

    w->run = run;
    w->ranks = ranks_of(run);
    w->lines.max = w->sent.max = SIZE_MAX / 2;
    KG_TRY(kg_mem_new(&w->sets, run->suite->n, sizeof *w->sets, "sets", err));
    for (; w->n < run->suite->n; w->n++) {
        struct set_work *s = &w->sets[w->n];

        s->set = &run->sets[w->n];
        KG_TRY(run->source->prepare(run->source, s->set, err));
        s->n = s->set->data.n * (size_t)s->set->samples;
        s->answers = kg_mem_calloc(s->n, sizeof *s->answers, "samples", err);
        s->there = kg_mem_calloc(s->n, sizeof *s->there, "samples", err);
        s->places = kg_mem_calloc(s->n, sizeof *s->places, "samples", err);
        if (!s->answers || !s->there || !s->places) {
            w->n++;
            return KG_ENOMEM;
        }
    }
    return kg_suite_check_excluded(run->suite, run->sets, err);
}

static void work_release(struct work *w)
{
    for (size_t i = 0; i < w->n; i++) {
        kg_eval_answers_release(w->sets[i].answers, w->sets[i].n);
        kg_mem_free(w->sets[i].answers);
        kg_mem_free(w->sets[i].there);
        kg_mem_free(w->sets[i].places);
    }
    kg_mem_free(w->sets);
    for (size_t i = 0; i < w->n_pending; i++)
        kg_str_release(&w->pending[i].text);
    kg_str_release(&w->lines);
    kg_str_release(&w->sent);
    kg_str_release(&w->line);
    kg_results_close(&w->results);
    kg_mem_free(w);
}

static kg_status work_run(struct kg_eval_report *report, struct work *w,
                          struct kg_err *err)
{
    bool first = w->ranks->me == 0;

    KG_TRY(kg_ranks_agree(w->ranks, begin_run(w, err), "folder of results", err));
    /* samples that the first rank's folder holds are finished on all ranks */
    for (size_t i = 0; i < w->n; i++)
        KG_TRY(kg_ranks_share(w->ranks, w->sets[i].there,
                              w->sets[i].n * sizeof *w->sets[i].there, "finished samples",
                              err));
    for (size_t i = 0; i < w->n; i++) {
        KG_TRY(answer_set(w, &w->sets[i], err));
        kg_log_progress_end(); /* logs the last state of the set */
    }
    if (!first)
        return KG_OK;
    KG_TRY(score_all(report, w, err));
    if (w->kept && !w->results.complete)
        KG_TRY(write_folder(w, report, err));
    return !w->kept && w->run->dump ? dump_lines(w, err) : KG_OK;
}

kg_status kg_eval_suite(struct kg_eval_report *report, const struct kg_eval_run *run,
                        struct kg_err *err)
{
    double start = kg_clock_seconds();
    struct work *w = kg_mem_calloc(1, sizeof *w, "evaluation", err);

    *report = (struct kg_eval_report){0};
    kg_status status = w ? work_init(w, run, err) : err->code;
    status = kg_ranks_agree(ranks_of(run), status, "evaluation", err);
    if (!w)
        return status;
    if (status == KG_OK)
        status = kg_ranks_agree(w->ranks, work_run(report, w, err), "evaluation", err);
    kg_log_progress_end();
    work_release(w);
    report->seconds = kg_clock_seconds() - start;
    if (status != KG_OK)
        kg_eval_report_release(report);
    return status;
}
