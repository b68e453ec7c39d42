/* pass@k, maj@k, means and their errors. Both are exact averages over all ways to choose
 * k of the n samples, so they add no noise. pass@k is a product; maj@k is a sum over the
 * number of votes of the winner, built up class by class, in long doubles for their
 * range. The task defines which answers are equal; a class is as right as its first
 * answer. */
#include "eval/metrics.h"

#include "base/mem.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- pass@k ---- */

/* The product of (n-c-i)/(n-i) for i below k: C(n-c,k)/C(n,k) without large numbers. */
double kg_eval_pass_at_k(int32_t n, int32_t c, int32_t k)
{
    double none = 1;

    assert(c >= 0 && c <= n && k >= 1 && k <= n);
    for (int32_t i = 0; i < k && none > 0; i++)
        none *= i < n - c ? (double)(n - c - i) / (double)(n - i) : 0;
    return 1 - none;
}

/* ---- maj@k ---- */

/* ways[j * (ties + 1) + g]: ways to take j samples from the other classes, at most t of
 * each, so that g classes give exactly t. long double holds C(4096, 2048). */
struct vote {
    const int32_t *count;
    const bool *right;
    size_t classes;
    int32_t n;
    int32_t k;
    int32_t ties;      /* the largest g for the current t */
    long double *ways; /* (k + 1, k + 1) owned */
    long double *next;
};

static long double choose(int32_t n, int32_t k)
{
    long double c = 1;

    for (int32_t i = 0; i < k; i++)
        c = c * (long double)(n - i) / (long double)(i + 1);
    return c;
}

/* Adds a group of `count` equal samples, of which at most `most` are taken. Taking
 * exactly `full` is a tie. */
static void add_group(struct vote *v, int32_t count, int32_t most, int32_t full)
{
    size_t width = (size_t)v->ties + 1;
    long double c = 1;

    memset(v->next, 0, ((size_t)v->k + 1) * width * sizeof *v->next);
    for (int32_t take = 0; take <= most; take++) {
        size_t tie = take == full;

        for (int32_t j = 0; j + take <= v->k; j++)
            for (size_t g = 0; g + tie < width; g++)
                v->next[(size_t)(j + take) * width + g + tie] +=
                    c * v->ways[(size_t)j * width + g];
        c = c * (long double)(count - take) / (long double)(take + 1);
    }
    long double *done = v->next;
    v->next = v->ways;
    v->ways = done;
}

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

/* Ways in which class r wins with exactly t votes; a win with g ties counts 1/(g+1). */
static long double wins(struct vote *v, size_t r, int32_t t)
{
    long double sum = 0;
    int32_t silent = v->n;

    v->ties = (v->k - t) / t;
    memset(v->ways, 0, ((size_t)v->k + 1) * ((size_t)v->ties + 1) * sizeof *v->ways);
    v->ways[0] = 1;
    for (size_t i = 0; i < v->classes; i++) {
        silent -= v->count[i];
        if (i != r)
            add_group(v, v->count[i], least(v->count[i], t), t);
    }
    add_group(v, silent, least(silent, v->k), -1);
    for (int32_t g = 0; g <= v->ties; g++)
        sum += v->ways[(size_t)(v->k - t) * ((size_t)v->ties + 1) + (size_t)g] /
               (long double)(g + 1);
    return sum * choose(v->count[r], t);
}

kg_status kg_eval_maj_at_k(double *out, const int32_t *count, const bool *right,
                           size_t classes, int32_t n, int32_t k, struct kg_err *err)
{
    size_t states = (size_t)(k + 1) * (size_t)(k + 1);
    struct vote v = {.count = count, .right = right, .classes = classes, .n = n, .k = k};
    long double *block = kg_mem_calloc(2 * states, sizeof *block, "votes", err);
    long double sum = 0;

    assert(k >= 1 && k <= n && k <= KG_EVAL_MAX_VOTES && n <= KG_EVAL_MAX_N);
    if (!block)
        return err->code;
    v.ways = block;
    v.next = block + states;
    for (size_t r = 0; r < classes; r++)
        for (int32_t t = 1; right[r] && t <= least(count[r], k); t++)
            sum += wins(&v, r, t);
    kg_mem_free(block);
    *out = (double)(sum / choose(n, k));
    return KG_OK;
}

/* ---- classes ---- */

void kg_eval_answers_release(struct kg_eval_answer *answers, size_t n)
{
    for (size_t i = 0; answers && i < n; i++) {
        kg_mem_free(answers[i].extracted);
        answers[i].extracted = NULL;
    }
}

/* Sets class_of[j]: the class of an equal earlier sample, or a new one (++*classes). */
static kg_status classify(int32_t *class_of, int32_t *classes, int32_t j,
                          const struct kg_eval_answer *a, const struct kg_task_row *task,
                          const struct kg_task_opts *opts, struct kg_err *err)
{
    int32_t seen = 0; /* classes whose first sample was compared */
    bool same = false;

    class_of[j] = -1;
    if (!a[j].extracted || !*a[j].extracted)
        return KG_OK;
    for (int32_t i = 0; i < j && !same; i++) {
        if (class_of[i] != seen)
            continue; /* not the first sample of a class */
        KG_TRY(task->same(&same, opts, a[j].extracted, a[i].extracted, err));
        class_of[j] = class_of[i];
        seen++;
    }
    if (!same)
        class_of[j] = (*classes)++;
    return KG_OK;
}

kg_status kg_eval_classes(int32_t *class_of, const struct kg_eval_answer *answers,
                          int64_t problems, int32_t samples,
                          const struct kg_task_row *task, const struct kg_task_opts *opts,
                          struct kg_err *err)
{
    if (!task->extract || !task->same)
        return kg_fail(
            err, KG_EUNSUPPORTED,
            "maj@k: expected a task that can compare two answers, found %s, which cannot",
            task->name);
    for (int64_t p = 0; p < problems; p++) {
        int32_t classes = 0;

        for (int32_t j = 0; j < samples; j++)
            KG_TRY(classify(class_of + p * samples, &classes, j, answers + p * samples,
                            task, opts, err));
    }
    return KG_OK;
}

/* ---- scores ---- */

void kg_eval_score_release(struct kg_eval_score *s)
{
    for (size_t i = 0; s->metrics && i < s->n; i++)
        kg_mem_free(s->metrics[i].by_problem);
    kg_mem_free(s->metrics);
    memset(s, 0, sizeof *s);
}

const struct kg_eval_metric *kg_eval_metric_find(const struct kg_eval_score *s,
                                                 const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->metrics[i].name, name) == 0)
            return &s->metrics[i];
    return NULL;
}

/* Appends a metric and allocates its values. */
static kg_status add_metric(struct kg_eval_metric **m, struct kg_eval_score *s,
                            const char *name, int32_t k, struct kg_err *err)
{
    *m = &s->metrics[s->n];
    if (k > 0)
        snprintf((*m)->name, sizeof(*m)->name, "%s@%d", name, k);
    else
        snprintf((*m)->name, sizeof(*m)->name, "%s", name);
    (*m)->by_problem = kg_mem_calloc((size_t)s->problems, sizeof(double), "metric", err);
    if (!(*m)->by_problem)
        return err->code;
    s->n++;
    return KG_OK;
}

/* Two passes, so that equal values have a standard error of exactly 0. */
static void finish_metric(struct kg_eval_metric *m, int64_t problems)
{
    double P = (double)problems, sum = 0, square = 0;

    for (int64_t p = 0; p < problems; p++)
        sum += m->by_problem[p];
    m->value = sum / P;
    for (int64_t p = 0; p < problems; p++)
        square += (m->by_problem[p] - m->value) * (m->by_problem[p] - m->value);
    m->stderror = problems > 1 ? sqrt(square / (P - 1) / P) : 0;
}

enum plain { ACCURACY, REWARD, TRUNCATED, UNDECIDED, TOKENS, PLAIN_COUNT };
static const char *const plain_names[] = {"accuracy", "reward", "truncated", "undecided",
                                          "tokens"};

static bool is_right(const struct kg_eval_answer *a)
{
    return a->grade.graded && a->grade.correct;
}

static double plain_value(const struct kg_eval_answer *a, enum plain what)
{
    switch (what) {
    case ACCURACY:
        return is_right(a);
    case REWARD:
        return kg_grade_reward(&a->grade);
    case TRUNCATED:
        return a->finish == KG_FINISH_LENGTH;
    case UNDECIDED:
        return !a->grade.graded;
    case TOKENS:
    default:
        return (double)a->tokens;
    }
}

struct answers {
    const struct kg_eval_answer *a; /* (P * n) */
    const int32_t *class_of;
    int64_t P;
    int32_t n;
};

static kg_status add_plain(struct kg_eval_score *s, const struct answers *from,
                           enum plain what, struct kg_err *err)
{
    struct kg_eval_metric *m;

    KG_TRY(add_metric(&m, s, plain_names[what], 0, err));
    for (int64_t p = 0; p < from->P; p++) {
        for (int32_t j = 0; j < from->n; j++)
            m->by_problem[p] += plain_value(&from->a[p * from->n + j], what);
        m->by_problem[p] /= from->n;
    }
    finish_metric(m, s->problems);
    return KG_OK;
}

static kg_status add_extra(struct kg_eval_score *s, const struct answers *from,
                           const char *name, int extra, struct kg_err *err)
{
    struct kg_eval_metric *m;

    KG_TRY(add_metric(&m, s, name, 0, err));
    for (int64_t p = 0; p < from->P; p++) {
        for (int32_t j = 0; j < from->n; j++)
            m->by_problem[p] += from->a[p * from->n + j].extra[extra];
        m->by_problem[p] /= from->n;
    }
    finish_metric(m, s->problems);
    return KG_OK;
}

/* A number that only some samples have.   returns NAN if this sample has none */
typedef double (*some_value_fn)(const struct kg_eval_answer *a, int k);

static double part_value(const struct kg_eval_answer *a, int k)
{
    return k < a->grade.n_parts ? a->grade.part[k] : NAN;
}

static double further_value(const struct kg_eval_answer *a, int k)
{
    return a->grade.further.said >> k & 1 ? a->grade.further.x[k] : NAN;
}

static double ungraded_value(const struct kg_eval_answer *a, int k)
{
    return isnan(part_value(a, k));
}

/* The mean over those samples of a problem that have the number; NAN if none has. */
static double some_mean(const struct answers *from, int64_t p, some_value_fn value, int k)
{
    double sum = 0, n = 0;

    for (int32_t j = 0; j < from->n; j++) {
        double x = value(&from->a[p * from->n + j], k);

        if (isnan(x))
            continue;
        sum += x;
        n++;
    }
    return n > 0 ? sum / n : NAN;
}

/* The mean over the problems that have the number; if none has, no metric is added. */
static kg_status add_some(struct kg_eval_score *s, const struct answers *from,
                          const char *group, const char *what, some_value_fn value, int k,
                          struct kg_err *err)
{
    char name[KG_EVAL_NAME_BYTES];
    struct kg_eval_metric *m;
    int64_t there = 0;

    snprintf(name, sizeof name, "%s/%s", group, what);
    KG_TRY(add_metric(&m, s, name, 0, err));
    for (int64_t p = 0; p < from->P; p++) {
        double x = some_mean(from, p, value, k);

        if (!isnan(x))
            m->by_problem[there++] = x;
    }
    if (there > 0)
        finish_metric(m, there);
    if (there == from->P)
        return KG_OK;
    kg_mem_free(m->by_problem);
    m->by_problem = NULL;
    if (there == 0)
        *m = (struct kg_eval_metric){.name = ""};
    s->n -= there == 0;
    return KG_OK;
}

static kg_status add_parts(struct kg_eval_score *s, const struct answers *from,
                           const struct kg_eval_ks *ks, struct kg_err *err)
{
    int order[KG_FURTHER], n = ks->further ? ks->further->n : 0;

    for (int k = 0; k < kg_task_rewards_n(ks->rewards); k++) {
        const char *name = kg_task_rewards_name(ks->rewards, k);

        KG_TRY(add_some(s, from, "part", name, part_value, k, err));
        KG_TRY(add_some(s, from, "part_ungraded", name, ungraded_value, k, err));
    }
    if (n > 0)
        kg_further_order(order, ks->further);
    for (int i = 0; i < n; i++)
        KG_TRY(add_some(s, from, "further", ks->further->name[order[i]], further_value,
                        order[i], err));
    return KG_OK;
}

static kg_status add_pass(struct kg_eval_score *s, const struct answers *from, int32_t k,
                          struct kg_err *err)
{
    struct kg_eval_metric *m;

    KG_TRY(add_metric(&m, s, "pass", k, err));
    for (int64_t p = 0; p < from->P; p++) {
        int32_t c = 0;

        for (int32_t j = 0; j < from->n; j++)
            c += is_right(&from->a[p * from->n + j]);
        m->by_problem[p] = kg_eval_pass_at_k(from->n, c, k);
    }
    finish_metric(m, s->problems);
    return KG_OK;
}

/* Counts the classes of problem p; a class is as right as its first sample. */
static size_t count_classes(int32_t *count, bool *right, const struct answers *from,
                            int64_t p)
{
    size_t classes = 0;

    for (int32_t j = 0; j < from->n; j++) {
        int32_t c = from->class_of[p * from->n + j];

        if (c < 0)
            continue;
        if ((size_t)c == classes) {
            right[classes] = is_right(&from->a[p * from->n + j]);
            count[classes++] = 0;
        }
        count[c]++;
    }
    return classes;
}

static kg_status add_maj(struct kg_eval_score *s, const struct answers *from, int32_t k,
                         struct kg_err *err)
{
    struct kg_eval_metric *m;
    int32_t *count = kg_mem_calloc((size_t)from->n, sizeof *count, "votes", err);
    bool *right = count ? kg_mem_calloc((size_t)from->n, sizeof *right, "votes", err)
                        : NULL;
    kg_status status = right ? KG_OK : err->code;

    if (status == KG_OK)
        KG_TRY_GOTO(out, add_metric(&m, s, "maj", k, err));
    for (int64_t p = 0; status == KG_OK && p < from->P; p++) {
        size_t classes = count_classes(count, right, from, p);

        status = kg_eval_maj_at_k(&m->by_problem[p], count, right, classes, from->n, k,
                                  err);
    }
    if (status == KG_OK)
        finish_metric(m, s->problems);
out:
    kg_mem_free(count);
    kg_mem_free(right);
    return status;
}

static kg_status check_ks(const struct kg_eval_ks *ks, int32_t samples,
                          struct kg_err *err)
{
    for (int i = 0; i < ks->n_pass + ks->n_maj; i++) {
        bool pass = i < ks->n_pass;
        int32_t k = pass ? ks->pass[i] : ks->maj[i - ks->n_pass];

        if (k < 1 || k > samples)
            return kg_fail(err, KG_EINVAL,
                           "%s@%d: expected k from 1 to the number of samples, %d",
                           pass ? "pass" : "maj", k, samples);
        if (!pass && k > KG_EVAL_MAX_VOTES)
            return kg_fail(err, KG_EINVAL, "maj@%d: expected k of at most %d", k,
                           KG_EVAL_MAX_VOTES);
    }
    return KG_OK;
}

kg_status kg_eval_score_init(struct kg_eval_score *s,
                             const struct kg_eval_answer *answers,
                             const int32_t *class_of, int64_t problems, int32_t samples,
                             const struct kg_eval_ks *ks, struct kg_err *err)
{
    struct answers from = {answers, class_of, problems, samples};
    size_t most = (size_t)(PLAIN_COUNT + ks->n_pass + ks->n_maj + ks->n_extra +
                           2 * KG_TRAJ_PARTS + KG_FURTHER);
    kg_status status;

    *s = (struct kg_eval_score){.problems = problems, .samples = samples};
    KG_TRY(check_ks(ks, samples, err));
    KG_TRY(kg_mem_new(&s->metrics, most, sizeof *s->metrics, "metrics", err));
    KG_TRY_GOTO(fail, add_plain(s, &from, ACCURACY, err));
    for (int i = 0; i < ks->n_pass; i++)
        KG_TRY_GOTO(fail, add_pass(s, &from, ks->pass[i], err));
    for (int i = 0; i < ks->n_maj; i++)
        KG_TRY_GOTO(fail, add_maj(s, &from, ks->maj[i], err));
    for (enum plain what = REWARD; what < PLAIN_COUNT; what++)
        KG_TRY_GOTO(fail, add_plain(s, &from, what, err));
    for (int i = 0; i < ks->n_extra; i++)
        KG_TRY_GOTO(fail, add_extra(s, &from, ks->extra[i], i, err));
    KG_TRY_GOTO(fail, add_parts(s, &from, ks, err));
    return KG_OK;
fail:
    kg_eval_score_release(s);
    return status;
}

/* *out: the mean of its metric over the scores; false if a score lacks the metric. */
static bool mean_of(struct kg_eval_metric *out, const struct kg_eval_score *const *scores,
                    size_t n)
{
    double square = 0;

    for (size_t i = 0; i < n; i++) {
        const struct kg_eval_metric *m = kg_eval_metric_find(scores[i], out->name);

        if (!m)
            return false;
        out->value += m->value / (double)n;
        square += m->stderror * m->stderror;
    }
    out->stderror = sqrt(square) / (double)n;
    return true;
}

kg_status kg_eval_score_mean(struct kg_eval_score *mean,
                             const struct kg_eval_score *const *scores, size_t n,
                             struct kg_err *err)
{
    *mean = (struct kg_eval_score){0};
    KG_TRY(
        kg_mem_new(&mean->metrics, scores[0]->n, sizeof *mean->metrics, "metrics", err));
    for (size_t i = 0; i < n; i++)
        mean->problems += scores[i]->problems;
    for (size_t i = 0; i < scores[0]->n; i++) {
        struct kg_eval_metric m = {0};

        memcpy(m.name, scores[0]->metrics[i].name, sizeof m.name);
        if (mean_of(&m, scores, n))
            mean->metrics[mean->n++] = m;
    }
    return KG_OK;
}
