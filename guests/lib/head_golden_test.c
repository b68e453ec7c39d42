/* The golden vectors of the authors' code through the vocabulary head in fp32.
 *
 * Hidden states are the logits of a case and the head's weights are the identity, so that
 * the gradient of logits is the head's dhidden. The head is reached through libkedge, and
 * judged three times:
 *   its rows against those in double, to 1e-5 max(1, |x|);
 *   its backward against the master rule in double from the same coefficients and the
 *     same hidden states, which are fp32, to 1e-5 of each row's norm: also where p_y is
 *     within 1e-7 of 1, or the anchor is the policy but for those roundings, and the
 *     coefficients nearly cancel in the row;
 *   the numbers of the case, end to end, to its float tolerance of 1e-5 max(1, |x|).
 */
#include "kedge.h"

#include "base/file.h"
#include "base/mem.h"
#include "lab/golden/golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* What a check did, so that main can require that it did something. */
struct through {
    int64_t forwards, backwards, exact;
    int64_t cancelled;    /* rows whose norm is under 1e-3 of their coefficients */
    double worst;         /* of the forward */
    double worst_of_norm; /* of the backward */
};

/* fp32 copies of one call's input, and zeroed results. */
struct arrays {
    float *hidden, *anchor, *identity, *dhidden; /* (N,V), (V,V) */
    double *lse, *anchor_lse;                    /* (N) */
    double *logp, *entropy, *kl;                 /* (N) scratch of a backward */
};

static void *room(int64_t n, size_t size)
{
    void *p = calloc((size_t)(n > 0 ? n : 1), size);

    if (!p)
        fail_msg("no memory for %lld elements", (long long)n);
    return p;
}

static float *floats(const double *x, int64_t n)
{
    float *f = room(n, sizeof *f);

    for (int64_t i = 0; x && i < n; i++)
        f[i] = (float)x[i];
    return f;
}

static struct arrays arrays_of(const struct kg_golden_rows *r)
{
    struct arrays a = {
        .hidden = floats(r->logits, r->n * r->vocab),
        .anchor = r->anchor ? floats(r->anchor, r->n * r->vocab) : NULL,
        .identity = room(r->vocab * r->vocab, sizeof *a.identity),
        .dhidden = room(r->n * r->vocab, sizeof *a.dhidden),
        .lse = room(r->n, sizeof *a.lse),
        .anchor_lse = room(r->n, sizeof *a.anchor_lse),
        .logp = room(r->n, sizeof *a.logp),
        .entropy = room(r->n, sizeof *a.entropy),
        .kl = room(r->n, sizeof *a.kl),
    };

    for (int64_t v = 0; v < r->vocab; v++)
        a.identity[v * r->vocab + v] = 1;
    return a;
}

static void arrays_release(struct arrays *a)
{
    free(a->hidden), free(a->anchor), free(a->identity), free(a->dhidden);
    free(a->lse), free(a->anchor_lse), free(a->logp), free(a->entropy), free(a->kl);
}

static struct kedge_head head_of(const struct kg_golden_rows *r, const struct arrays *a)
{
    return (struct kedge_head){
        .size = sizeof(struct kedge_head),
        .n_rows = r->n,
        .width = r->vocab,
        .vocab = r->vocab,
        .hidden = a->hidden,
        .weight = a->identity,
        .tokens = r->tokens,
        .k = (int)r->k,
        .ids = r->k > 0 ? r->ids : NULL,
        .anchor_hidden = a->anchor,
        .anchor_weight = a->anchor ? a->identity : NULL,
    };
}

static kg_status report(int status, const struct kedge_err *e, struct kg_err *err)
{
    return status == KEDGE_OK ? KG_OK : kg_fail(err, (kg_status)status, "%s", e->message);
}

/* The anchor's log-probs at the ids: a forward of the anchor's head alone. */
static int anchor_at(const struct kg_golden_rows *r, const struct kedge_head *both,
                     struct kedge_err *e)
{
    struct kedge_head_rows out = {.size = sizeof out, .logp_at = r->anchor_at};
    struct kedge_head h = *both;

    if (!both->anchor_hidden || r->k == 0)
        return KEDGE_OK;
    h.hidden = both->anchor_hidden;
    h.anchor_hidden = h.anchor_weight = NULL;
    return kedge_head(&out, &h, e);
}

static int statistics(struct kg_golden_rows *r, struct arrays *a, double *logp,
                      struct kedge_err *e)
{
    struct kedge_head h = head_of(r, a);
    struct kedge_head_rows out = {
        .size = sizeof out,
        .lse = a->lse,
        .logp = logp,
        .logp_at = r->k > 0 ? r->logp_at : NULL,
        .entropy = r->entropy,
        .kl_reverse = r->kl == KG_GOLDEN_REVERSE ? r->kl_exact : NULL,
        .kl_forward = r->kl == KG_GOLDEN_FORWARD ? r->kl_exact : NULL,
        .anchor_lse = a->anchor ? a->anchor_lse : NULL,
    };
    int status = kedge_head(&out, &h, e);

    return status == KEDGE_OK ? anchor_at(r, &h, e) : status;
}

/* Compares found (n) with expected.   errors: ECONFLICT */
static kg_status judge(struct through *t, const char *what, const double *found,
                       const double *expected, int64_t n, struct kg_err *err)
{
    for (int64_t i = 0; i < n; i++) {
        double size = fmax(1, fabs(expected[i])), gap = fabs(found[i] - expected[i]);

        t->worst = fmax(t->worst, gap / size);
        if (!(gap <= 1e-5 * size))
            return kg_fail(err, KG_ECONFLICT, "%s[%lld]: expected %.9g, found %.9g", what,
                           (long long)i, expected[i], found[i]);
    }
    return KG_OK;
}

static kg_status judge_rows(struct through *t, const struct kg_golden_rows *rows,
                            struct kg_err *err)
{
    int64_t n = rows->n, nk = rows->n * rows->k;
    double *block = room(3 * n + 2 * nk, sizeof *block);
    struct kg_golden_rows plain = *rows;
    kg_status status;

    plain.logp = block, plain.entropy = block + n, plain.kl_exact = block + 2 * n;
    plain.logp_at = block + 3 * n, plain.anchor_at = plain.logp_at + nk;
    KG_TRY_GOTO(out, kg_golden_plain_head.forward(&plain, NULL, err));
    KG_TRY_GOTO(out, judge(t, "logp", rows->logp, plain.logp, n, err));
    KG_TRY_GOTO(out, judge(t, "entropy", rows->entropy, plain.entropy, n, err));
    if (rows->kl != KG_GOLDEN_NO_KL)
        KG_TRY_GOTO(out, judge(t, "kl_exact", rows->kl_exact, plain.kl_exact, n, err));
    KG_TRY_GOTO(out, judge(t, "logp_at", rows->logp_at, plain.logp_at, nk, err));
    if (rows->anchor)
        status = judge(t, "anchor_at", rows->anchor_at, plain.anchor_at, nk, err);
out:
    free(block);
    return status;
}

static kg_status forward(struct kg_golden_rows *rows, void *self, struct kg_err *err)
{
    struct through *t = self;
    struct arrays a = arrays_of(rows);
    struct kedge_err e;
    int status = statistics(rows, &a, rows->logp, &e);

    t->forwards += rows->n;
    t->exact += rows->kl != KG_GOLDEN_NO_KL ? rows->n : 0;
    arrays_release(&a);
    KG_TRY(report(status, &e, err));
    return judge_rows(t, rows, err);
}

/* Repeats the forward, because the backward needs its results, then runs the backward. */
static int gradients(struct arrays *a, const struct kg_golden_rows *rows,
                     const struct kg_golden_coefs *c, struct kedge_err *e)
{
    struct kg_golden_rows again = *rows;
    struct kedge_head h = head_of(rows, a);
    bool reverse = rows->kl == KG_GOLDEN_REVERSE && c->kl_exact;
    bool forwards = rows->kl == KG_GOLDEN_FORWARD && c->kl_exact;
    struct kedge_head_grad g = {
        .size = sizeof g,
        .lse = a->lse,
        .a_logp = c->logp,
        .a_at = rows->k > 0 ? c->logp_at : NULL,
        .a_entropy = c->entropy,
        .entropy = a->entropy,
        .a_kl_reverse = reverse ? c->kl_exact : NULL,
        .kl_reverse = a->kl,
        .a_kl_forward = forwards ? c->kl_exact : NULL,
        .anchor_lse = a->anchor ? a->anchor_lse : NULL,
        .dhidden = a->dhidden,
    };
    int status;

    again.entropy = a->entropy, again.kl_exact = a->kl;
    status = statistics(&again, a, a->logp, e);
    return status == KEDGE_OK ? kedge_head_backward(&g, &h, e) : status;
}

static double norm(const double *x, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

/* Sum of the sizes of the coefficients that may cancel in row n. */
static double size_of(const struct kg_golden_rows *r, const struct kg_golden_coefs *c,
                      int64_t n)
{
    double sum = 0;

    for (int64_t j = n * r->k; c->logp_at && j < (n + 1) * r->k; j++)
        sum += fabs(c->logp_at[j]);
    sum += c->logp ? fabs(c->logp[n]) : 0;
    sum += c->entropy ? fabs(c->entropy[n]) : 0;
    return sum + (c->kl_exact && r->kl != KG_GOLDEN_NO_KL ? fabs(c->kl_exact[n]) : 0);
}

static kg_status judge_row(struct through *t, double *gap, const double *expected,
                           int64_t vocab, double size, struct kg_err *err)
{
    double length = norm(expected, vocab), off;

    for (int64_t v = 0; v < vocab; v++)
        gap[v] -= expected[v];
    off = norm(gap, vocab);
    t->cancelled += length < 1e-3 * size;
    if (length > 0)
        t->worst_of_norm = fmax(t->worst_of_norm, off / length);
    return off <= 1e-5 * length
               ? KG_OK
               : kg_fail(err, KG_ECONFLICT, "a row of dhidden is off by %.2e of %.2e",
                         off, length);
}

/* The inputs that the head got, and its entropy and KL in double. */
static kg_status plain_rows(struct kg_golden_rows *plain, const struct arrays *a,
                            double *logits, double *anchor, struct kg_err *err)
{
    for (int64_t i = 0; i < plain->n * plain->vocab; i++) {
        logits[i] = (double)a->hidden[i];
        anchor[i] = a->anchor ? (double)a->anchor[i] : 0;
    }
    plain->logits = logits;
    plain->anchor = a->anchor ? anchor : NULL;
    plain->logp = a->logp, plain->entropy = a->entropy, plain->kl_exact = a->kl;
    return kg_golden_plain_head.forward(plain, NULL, err);
}

static kg_status judge_backward(struct through *t, const struct arrays *a,
                                const struct kg_golden_rows *rows,
                                const struct kg_golden_coefs *c, struct kg_err *err)
{
    int64_t n = rows->n, V = rows->vocab;
    double *block = room((3 * n + 1) * V + 2 * n * rows->k, sizeof *block);
    double *expected = block + 2 * n * V, *gap = expected + n * V;
    struct kg_golden_rows plain = *rows;
    kg_status status;

    plain.logp_at = gap + V, plain.anchor_at = plain.logp_at + n * rows->k;
    KG_TRY_GOTO(out, plain_rows(&plain, a, block, block + n * V, err));
    KG_TRY_GOTO(out, kg_golden_plain_head.backward(expected, &plain, c, NULL, err));
    for (int64_t i = 0; i < n; i++) {
        for (int64_t v = 0; v < V; v++)
            gap[v] = (double)a->dhidden[i * V + v];
        KG_TRY_GOTO(out,
                    judge_row(t, gap, expected + i * V, V, size_of(rows, c, i), err));
    }
out:
    free(block);
    return status;
}

static kg_status backward(double *dlogits, const struct kg_golden_rows *rows,
                          const struct kg_golden_coefs *coefs, void *self,
                          struct kg_err *err)
{
    struct through *t = self;
    struct arrays a = arrays_of(rows);
    struct kedge_err e;
    kg_status status;

    KG_TRY_GOTO(out, report(gradients(&a, rows, coefs, &e), &e, err));
    for (int64_t i = 0; i < rows->n * rows->vocab; i++)
        dlogits[i] = (double)a.dhidden[i];
    t->backwards += rows->n;
    status = judge_backward(t, &a, rows, coefs, err);
out:
    arrays_release(&a);
    return status;
}

/* ---- folders ---- */

static kg_status show(const struct kg_golden_result *r, void *context, struct kg_err *err)
{
    (void)context, (void)err;
    if (r->outcome != KG_GOLDEN_PASSED)
        printf("    %s: %s: %s\n", r->file, r->name, r->why);
    return KG_OK;
}

static struct kg_golden_report check(const char *folder)
{
    struct through t = {0};
    const struct kg_golden_head head = {forward, backward, &t};
    const struct kg_golden_options options = {
        .head = &head,
        .tolerance = {.rel = 1e-5, .single = true},
        .seen = show,
    };
    struct kg_golden_report r;
    struct kg_err err;

    if (kg_golden_check(&r, folder, &options, &err))
        fail_msg("%s", err.message);
    printf("    %s: %lld passed, %lld failed, %lld skipped, worst %.1e\n", folder,
           (long long)r.passed, (long long)r.failed, (long long)r.skipped, r.worst);
    printf("    forward: %lld rows, %lld with an exact KL, worst %.1e; backward: %lld "
           "rows, worst %.1e of the norm, %lld that cancel\n",
           (long long)t.forwards, (long long)t.exact, t.worst, (long long)t.backwards,
           t.worst_of_norm, (long long)t.cancelled);
    assert_int_equal(r.failed, 0);
    assert_int_equal(r.skipped, 0);
    assert_true(t.exact > 0 && t.cancelled > 0);
    assert_true(t.worst_of_norm <= 1e-5);
    return r;
}

#include "lab/golden_testing.h"
