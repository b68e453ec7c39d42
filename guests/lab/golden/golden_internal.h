/* Internal to golden/: a case, its tolerance, and its rows as a batch for policy/.
 *
 * Each family of cases has a function that evaluates one case. It returns an error if the
 * case cannot be judged (EFORMAT: malformed; EUNSUPPORTED: not supported), and records a
 * wrong number with kg_golden_compare, which never ends the evaluation.
 */
#ifndef KG_GOLDEN_GOLDEN_INTERNAL_H
#define KG_GOLDEN_GOLDEN_INTERNAL_H

#include "data/json.h"
#include "lab/golden/golden.h"
#include "policy/policy.h"

#define KG_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- a case ---- */

struct kg_golden_case {
    const struct kg_json *json;
    const struct kg_golden_head *head;
    struct kg_golden_tolerance tolerance; /* a family may widen it, see `excepted` */
    bool excepted;
    struct kg_err bad; /* the first wrong number; code KG_OK: none */
    double worst;
    int64_t compared;
    void **blocks; /* owned: memory from kg_golden_room, freed with the case */
    size_t n_blocks, capacity;
};

/* Zeroed memory that lives as long as the case.   returns NULL with err set */
void *kg_golden_room(struct kg_golden_case *g, int64_t n, size_t size,
                     struct kg_err *err) KG_MUST_CHECK;
kg_status kg_golden_reals(double **x, struct kg_golden_case *g, int64_t n,
                          struct kg_err *err) KG_MUST_CHECK;

/* "" if absent or null.   errors: EFORMAT (not a string) */
kg_status kg_golden_text(const char **text, const struct kg_golden_case *g,
                         const char *key, struct kg_err *err) KG_MUST_CHECK;
/* errors: EFORMAT (neither number nor null) */
kg_status kg_golden_real(double *x, const struct kg_golden_case *g, const char *key,
                         double fallback, struct kg_err *err) KG_MUST_CHECK;
/* kg_golden_real without a fallback: the number is required. */
kg_status kg_golden_need_real(double *x, const struct kg_golden_case *g, const char *key,
                              struct kg_err *err) KG_MUST_CHECK;
kg_status kg_golden_bool(bool *x, const struct kg_golden_case *g, const char *key,
                         struct kg_err *err) KG_MUST_CHECK;
const struct kg_json *kg_golden_at(const struct kg_golden_case *g, const char *section,
                                   const char *key); /* NULL if absent or null */

/* Translates a published name. The last row has from NULL.
 * errors: EUNSUPPORTED (EFORMAT if absent), listing the names */
struct kg_golden_name {
    const char *from, *to;
};
kg_status kg_golden_rename(const char **to, const struct kg_golden_name *rows,
                           const char *key, const char *from,
                           struct kg_err *err) KG_MUST_CHECK;

struct kg_golden_array {
    const double *x; /* (n) borrowed from the case; NULL when absent */
    int64_t n;
    int rank;
    int64_t d[3];
};
struct kg_golden_shape {
    int rank;
    int64_t d[3]; /* -1: any */
};
/* An array of "inputs", "expected" or "grad"; absent or null gives x NULL.
 * errors: EFORMAT (shape and data disagree, unexpected shape, not numbers) */
kg_status kg_golden_array(struct kg_golden_array *a, struct kg_golden_case *g,
                          const char *section, const char *key,
                          struct kg_golden_shape shape, struct kg_err *err) KG_MUST_CHECK;
/* A required array of "inputs". */
kg_status kg_golden_input(struct kg_golden_array *a, struct kg_golden_case *g,
                          const char *key, struct kg_golden_shape shape,
                          struct kg_err *err) KG_MUST_CHECK;
/* Integers in 0 .. below-1.   errors: EFORMAT */
kg_status kg_golden_ids(const struct kg_golden_array *a, const char *key, int64_t below,
                        struct kg_err *err) KG_MUST_CHECK;

/* ---- judging ---- */
void kg_golden_compare(struct kg_golden_case *g, const char *what, int64_t i,
                       double found, double expected);
/* Compares with a number of "expected" or of its "metrics", if present. */
kg_status kg_golden_expect(struct kg_golden_case *g, const char *key, double found,
                           struct kg_err *err) KG_MUST_CHECK;
kg_status kg_golden_metric(struct kg_golden_case *g, const char *key, double found,
                           struct kg_err *err) KG_MUST_CHECK;
/* Compares a metric of micro-batch i of n. A published list has an item per micro-batch;
 * a single number belongs to the last one. */
struct kg_golden_part {
    int64_t i, n;
    int64_t rows; /* per micro-batch */
};
kg_status kg_golden_metric_of(struct kg_golden_case *g, const char *key,
                              struct kg_golden_part part, double found,
                              struct kg_err *err) KG_MUST_CHECK;

/* ---- a batch ---- */

/* Rows first .. first+B-1 of the case; policy/ gets only the N tokens of the mask. */
struct kg_golden_batch {
    struct kg_golden_case *g;
    struct kg_algo algo;
    struct kg_policy_batch b;
    struct kg_policy_grad grad;
    struct kg_policy_totals totals;
    struct kg_golden_rows rows;
    double scale; /* factor of every weight: dp_size and similar */
    double temperature;
    int64_t T, V, all_rows; /* of the case */
    int64_t B, first;
    int64_t *at;     /* (N) position of a token in the case's [B,T] */
    double *dlogits; /* (all_rows*T*V) added up by kg_golden_backward */
};

/* Starts a batch with the default algorithm and a fixed anchor. */
kg_status kg_golden_start(struct kg_golden_batch *e, struct kg_golden_case *g,
                          struct kg_err *err) KG_MUST_CHECK;
/* Reads all inputs of the case; the algorithm must be set. n_rows 0: all */
kg_status kg_golden_load(struct kg_golden_batch *e, int64_t first, int64_t n_rows,
                         struct kg_err *err) KG_MUST_CHECK;
/* Ids [B,T,K] with log-probs at them; call before kg_golden_run. anchor_part: the
 * anchor's ids */
kg_status kg_golden_columns(struct kg_golden_batch *e, const char *key, bool anchor_part,
                            struct kg_err *err) KG_MUST_CHECK;
/* Computes rows, weights (by e->totals), and the loss with its gradient for log-probs. */
kg_status kg_golden_run(struct kg_golden_batch *e, bool with_pg,
                        struct kg_err *err) KG_MUST_CHECK;
/* dlogits += factor times the gradient with respect to the logits before the
 * temperature */
kg_status kg_golden_backward(struct kg_golden_batch *e, double factor,
                             struct kg_err *err) KG_MUST_CHECK;
/* Compares values at the tokens of the mask, times factor, with [B,T] of the case. */
kg_status kg_golden_expect_tokens(struct kg_golden_batch *e, const char *section,
                                  const char *key, const double *found, double factor,
                                  struct kg_err *err) KG_MUST_CHECK;
kg_status kg_golden_expect_logits(struct kg_golden_batch *e,
                                  struct kg_err *err) KG_MUST_CHECK;
/* Runs and compares loss, its gradients and log-probs. */
kg_status kg_golden_finish(struct kg_golden_batch *e, struct kg_err *err) KG_MUST_CHECK;

/* Read options that several families share. */
kg_status kg_golden_clips(struct kg_golden_batch *e, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_golden_importance(struct kg_golden_batch *e,
                               struct kg_err *err) KG_MUST_CHECK;
/* Sets kl.estimator from its published name. */
kg_status kg_golden_estimator(struct kg_golden_batch *e, const char *key,
                              struct kg_err *err) KG_MUST_CHECK;

/* A published reduction, which determines the divisor; `info` may override it. */
struct kg_golden_reduction {
    const char *variant, *mode;
    const struct kg_json *info; /* or NULL */
    double rows, width;         /* B and T */
};
/* totals in and out.   returns the factor of every weight */
double kg_golden_totals(struct kg_policy_totals *totals,
                        const struct kg_golden_reduction *how);

/* ---- families ---- */
kg_status kg_golden_kl_sampled(struct kg_golden_case *g, struct kg_err *err);
kg_status kg_golden_kl_topk(struct kg_golden_case *g, struct kg_err *err);
kg_status kg_golden_kl_full(struct kg_golden_case *g, struct kg_err *err);
kg_status kg_golden_kl_finish(struct kg_golden_batch *e, const char *per_token,
                              struct kg_err *err);
kg_status kg_golden_agg_loss(struct kg_golden_case *g, struct kg_err *err);
kg_status kg_golden_policy_losses(struct kg_golden_case *g, struct kg_err *err);
kg_status kg_golden_dppo_loss(struct kg_golden_case *g, struct kg_err *err);
kg_status kg_golden_actor_loss(struct kg_golden_case *g, struct kg_err *err);
kg_status kg_golden_rpg_loss(struct kg_golden_case *g, struct kg_err *err);
kg_status kg_golden_advantages(struct kg_golden_case *g, struct kg_err *err);
kg_status kg_golden_corrections(struct kg_golden_case *g, struct kg_err *err);
kg_status kg_golden_misc(struct kg_golden_case *g, struct kg_err *err);
kg_status kg_golden_ema_update(struct kg_golden_case *g, struct kg_err *err);

#endif
