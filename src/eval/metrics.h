/* Numbers of an evaluation: from graded answers to estimates with standard errors.
 *
 * Pure functions of n answers to each of P problems. A metric is one value per problem;
 * its estimate is the mean over problems, and its standard error is taken over problems,
 * so that the n answers of one problem never count as independent:
 *     stderr = sqrt( sum_p (x_p - mean)^2 / (P - 1) / P ),   0 for one problem
 * A mean over sets is unweighted; its error is sqrt(sum_s stderr_s^2) / S.
 * docs/evaluate.md says each formula in words.
 */
#ifndef KG_EVAL_METRICS_H
#define KG_EVAL_METRICS_H

#include "base/status.h"
#include "task/task.h"
#include "traj/traj.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    KG_EVAL_KS = 64,         /* k's of pass@k, and of maj@k */
    KG_EVAL_MAX_N = 4096,    /* answers to a problem */
    KG_EVAL_MAX_VOTES = 512, /* k of maj@k */
    KG_EVAL_EXTRAS = 8,      /* numbers of its own that a set may have */
    KG_EVAL_NAME_BYTES = 96, /* of a metric, with its NUL */
};

/* 1 - C(n-c, k) / C(n, k): the chance that k of n answers, c of which are right, hold a
 * right one (Chen et al. 2021). Unbiased for 1 - (1-p)^k.   0 <= c <= n, 1 <= k <= n */
double kg_eval_pass_at_k(int32_t n, int32_t c, int32_t k);

/* The chance that the vote of k of n answers, drawn without replacement, is right. Class
 * i has count[i] answers; what is in no class does not vote. Classes that tie for the
 * most votes win in equal shares; no votes at all are wrong. Unbiased for the vote of k
 * fresh answers.   count, right (classes); sum of count <= n, 1 <= k <= n, k at most
 * KG_EVAL_MAX_VOTES */
kg_status kg_eval_maj_at_k(double *out, const int32_t *count, const bool *right,
                           size_t classes, int32_t n, int32_t k,
                           struct kg_err *err) KG_MUST_CHECK;

/* One answer, whatever gave it. {0} is one that is not there yet. */
struct kg_eval_answer {
    bool there;
    struct kg_grade grade;
    int64_t tokens; /* that the model gave */
    enum kg_finish finish;
    char *extracted; /* owned; what the task's `extract` found, NULL: not looked for */
    bool scored;     /* the three sums over its tokens are there */
    double entropy;
    double kl_k1;
    double kl_k3;
    double extra[KG_EVAL_EXTRAS];
};
void kg_eval_answers_release(struct kg_eval_answer *answers,
                             size_t n); /* not the array */

/* What is counted, beside what always is. */
struct kg_eval_ks {
    int32_t pass[KG_EVAL_KS];
    int n_pass;
    int32_t maj[KG_EVAL_KS];
    int n_maj;
    const char *const *extra; /* (n_extra) names, borrowed */
    int n_extra;
    const struct kg_task_rewards *rewards;  /* NULL: one; borrowed, as the next */
    const struct kg_further_names *further; /* NULL: graders say nothing besides */
};

struct kg_eval_metric {
    char name[KG_EVAL_NAME_BYTES];
    double value;
    double stderror;
    /* (problems) owned; NULL in a mean over sets, and where a problem has no value: no
     * answer of which the number was said; it is then over those that have one */
    double *by_problem;
};
/* accuracy (avg@n), pass@k.., maj@k.., reward, truncated, undecided, tokens, extras;
 * part/NAME and part_ungraded/NAME of several rewards; further/NAME. */
struct kg_eval_score {
    struct kg_eval_metric *metrics; /* owned */
    size_t n;
    int64_t problems;
    int32_t samples;
};
void kg_eval_score_release(struct kg_eval_score *s);

/* answers (problems * samples), those of a problem together. class_of: the class of each
 * answer within its problem, -1 for no vote; NULL where ks has no maj.
 * errors: EINVAL (k over the number of samples), ENOMEM */
kg_status kg_eval_score_init(struct kg_eval_score *s,
                             const struct kg_eval_answer *answers,
                             const int32_t *class_of, int64_t problems, int32_t samples,
                             const struct kg_eval_ks *ks,
                             struct kg_err *err) KG_MUST_CHECK;
/* The metrics that all of n >= 1 scores have, as unweighted means. */
kg_status kg_eval_score_mean(struct kg_eval_score *mean,
                             const struct kg_eval_score *const *scores, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;
/* NULL when there is none of that name. */
const struct kg_eval_metric *kg_eval_metric_find(const struct kg_eval_score *s,
                                                 const char *name);

/* Classes of equal answers within each problem: an answer joins the class of the first
 * answer that the task calls the same as it. One in which nothing was found is in none.
 * errors: EUNSUPPORTED (the task does not say when two answers are the same), ENOMEM */
kg_status kg_eval_classes(int32_t *class_of, const struct kg_eval_answer *answers,
                          int64_t problems, int32_t samples,
                          const struct kg_task_row *task, const struct kg_task_opts *opts,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
