/* Golden cases: compares policy/ with published numbers, from any folder of such files.
 *
 * A file is {"family", "cases": [{"name", "config", "inputs", "expected", "grad"}]}:
 * losses, advantages, KL estimators and their gradients, computed by other code from
 * logits. Every case is evaluated through the public functions of policy/. A
 * kg_golden_head computes the rows of log-probs from the logits, so the same cases also
 * test the vocabulary head of tensor/. docs/formats.md describes the files.
 *
 * A case fails if a number is wrong or the case is malformed. It is skipped if it needs
 * something that kedge lacks. The result gives the reason.
 */
#ifndef KG_GOLDEN_GOLDEN_H
#define KG_GOLDEN_GOLDEN_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- the head ---- */

enum kg_golden_kl { KG_GOLDEN_NO_KL, KG_GOLDEN_REVERSE, KG_GOLDEN_FORWARD };

/* N positions over a vocabulary of V, K ids each. */
struct kg_golden_rows {
    int64_t n, vocab, k;
    const double *logits;  /* (N,V) divided by the temperature */
    const double *anchor;  /* the anchor's logits, in the same form; or NULL */
    const int32_t *tokens; /* (N) sampled ids */
    const int32_t *ids;    /* (N,K) */
    enum kg_golden_kl kl;  /* which exact KL is computed; needs anchor */
    double *logp;          /* (N) out: log softmax at tokens */
    double *entropy;       /* (N) out */
    double *kl_exact;      /* (N) out, if computed */
    double *logp_at;       /* (N,K) out */
    double *anchor_at;     /* (N,K) out, if there is an anchor */
};

/* The derivative of the loss with respect to each output, from policy/. NULL: zero. */
struct kg_golden_coefs {
    const double *logp;     /* (N) */
    const double *logp_at;  /* (N,K) */
    const double *entropy;  /* (N) */
    const double *kl_exact; /* (N) */
};

struct kg_golden_head {
    kg_status (*forward)(struct kg_golden_rows *rows, void *self, struct kg_err *err);
    /* dloss/dlogits (N,V) out, overwritten */
    kg_status (*backward)(double *dlogits, const struct kg_golden_rows *rows,
                          const struct kg_golden_coefs *coefs, void *self,
                          struct kg_err *err);
    void *self; /* borrowed */
};

/* The reference head: softmax and its gradient (head.c), whole rows in double. */
extern const struct kg_golden_head kg_golden_plain_head;

/* ---- the check ---- */

struct kg_golden_tolerance {
    double rel, abs; /* |found - expected| <= rel |expected| + abs */
    /* for a head in single precision: rel max(1, |expected|) */
    bool single;
};

enum kg_golden_outcome { KG_GOLDEN_PASSED, KG_GOLDEN_FAILED, KG_GOLDEN_SKIPPED };

struct kg_golden_result {
    const char *file; /* name in the folder */
    const char *name; /* name of the case; "" for an unreadable file */
    enum kg_golden_outcome outcome;
    const char *why;  /* reason of a failure or a skip; "" */
    bool excepted;    /* judged with a wider tolerance, that of a known exception */
    double worst;     /* relative error: |found - expected| / (|expected| + abs / rel) */
    int64_t compared; /* how many numbers were compared */
};

struct kg_golden_options {
    const struct kg_golden_head *head;    /* NULL: the plain one */
    struct kg_golden_tolerance tolerance; /* {0}: rel 1e-10, abs 1e-12 */
    /* called for every case, in order; NULL is allowed. result: valid during the call */
    kg_status (*seen)(const struct kg_golden_result *result, void *context,
                      struct kg_err *err);
    void *context;
};

struct kg_golden_report {
    int64_t files, passed, failed, skipped;
    int64_t excepted;      /* number of cases judged as exceptions */
    int64_t compared;      /* how many numbers were compared */
    double worst;          /* largest `worst` of cases that are no exceptions */
    double worst_excepted; /* largest `worst` of exceptions */
};

/* Checks every case of every *.json in the folder, in name order.
 * errors: ENOTFOUND (no folder, or no such file), ENOMEM, the status of `seen` */
kg_status kg_golden_check(struct kg_golden_report *report, const char *folder,
                          const struct kg_golden_options *options,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
