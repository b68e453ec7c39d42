/* The fused head for the library's user: the operation of tensor/ on the caller's arrays.
 *
 * The caller's rows are double, as in the policy; inside, log-probs are float. Only
 * arrays (N) and (N,K) are copied, never matrices.
 */
#include "lib/lib_internal.h"

#include "base/clock.h"
#include "base/mem.h"
#include "tensor/backend.h"

#include <stdatomic.h>

static _Atomic int threads; /* 0: the number of the caller's OpenMP */

void kedge_set_threads(int n) { atomic_store(&threads, n > 0 ? n : 0); }

int kedge_get_threads(void)
{
    int n = atomic_load(&threads);

    return n > 0 ? n : kg_threads_get();
}

/* ---- a call that multiplies ---- */
/* The thread's floating-point mode before enter(), which leave() restores. On a thread
 * that was not in enter()'s team it is KG_FP_EXACT, and leave() changes nothing. */
static _Thread_local unsigned mode = KG_FP_EXACT;

/* Sets the library's number of threads, and KG_FP_EXACT on each of them.
 * returns the caller's number of threads, for leave() */
static int enter(void)
{
    int before = kg_threads_swap(atomic_load(&threads));

#pragma omp parallel
    mode = kg_fp_enter();
    return before;
}

static void leave(int before)
{
#pragma omp parallel
    kg_fp_leave(mode);
    (void)kg_threads_swap(before);
}

/* ---- float copies of rows ---- */

enum { MOST_COPIES = 6 };

/* Each copy has its own block; all are freed together. */
struct copies {
    float *block[MOST_COPIES]; /* owned */
    int n;
};

static void copies_release(struct copies *c)
{
    while (c->n > 0)
        kg_mem_free(c->block[--c->n]);
}

/* *to: n floats, with the values of `from` unless it is NULL; NULL if not wanted.
 * copies_release frees them. */
static kg_status copy(struct copies *c, float **to, bool wanted, const double *from,
                      int64_t n, struct kg_err *err)
{
    *to = NULL;
    if (!wanted)
        return KG_OK;
    KG_TRY(kg_mem_new(to, (size_t)n, sizeof **to, "rows of the head", err));
    c->block[c->n++] = *to;
    for (int64_t i = 0; from && i < n; i++)
        (*to)[i] = (float)from[i];
    return KG_OK;
}

static kg_status copy_in(struct copies *c, const float **to, const double *from,
                         int64_t n, struct kg_err *err)
{
    float *own;

    KG_TRY(copy(c, &own, from != NULL, from, n, err));
    *to = own;
    return KG_OK;
}

static void widen(double *to, const float *from, int64_t n)
{
    for (int64_t i = 0; to && i < n; i++)
        to[i] = (double)from[i];
}

/* ---- the head ---- */

struct job {
    const struct kg_backend *be;
    struct kedge_head own;
    struct kg_head head;
    struct kg_head_anchor anchor;
    struct copies copies;
};

static kg_status check_dims(const struct kedge_head *h, struct kg_err *err)
{
    if (h->dtype != KEDGE_F32 && h->dtype != KEDGE_BF16)
        return kg_fail(err, KG_EDTYPE,
                       "head.dtype: expected KEDGE_F32 (0) or KEDGE_BF16 (1), found %d",
                       h->dtype);
    if (h->n_rows < 0 || h->width < 1 || h->vocab < 1 || h->anchor_width < 0)
        return kg_fail(err, KG_ESHAPE,
                       "head: expected n_rows 0 or more, width and vocab 1 or more, "
                       "found %lld, %lld and %lld (anchor_width %lld)",
                       (long long)h->n_rows, (long long)h->width, (long long)h->vocab,
                       (long long)h->anchor_width);
    if (!h->anchor_hidden != !h->anchor_weight)
        return kg_fail(err, KG_EINVAL,
                       "head: expected anchor_hidden and anchor_weight, or neither");
    if (h->ids && h->k < 1)
        return kg_fail(err, KG_EINVAL, "head.k: expected 1 or more with ids, found %d",
                       h->k);
    KG_TRY(kg_lib_given(h->hidden, "head.hidden", err));
    return kg_lib_given(h->weight, "head.weight", err);
}

/* Casts const away: the head only reads through these views. */
static struct kg_mat view(const void *data, int dtype, int64_t rows, int64_t cols)
{
    return kg_mat((void *)(uintptr_t)data, dtype == KEDGE_BF16 ? KG_BF16 : KG_F32, rows,
                  cols);
}

static kg_status take_head(struct job *job, const struct kedge_head *head,
                           struct kg_err *err)
{
    struct kedge_head *h = &job->own;

    job->copies.n = 0;
    KG_TRY(kg_backend_open(&job->be, "cpu", err));
    KG_LIB_TAKE(*h, head, err);
    KG_TRY(check_dims(h, err));
    job->head = (struct kg_head){
        .hidden = view(h->hidden, h->dtype, h->n_rows, h->width),
        .weight = view(h->weight, h->dtype, h->vocab, h->width),
        .target = h->tokens,
        .indices = h->ids,
        .k = h->ids ? h->k : 0,
        .top_k = h->top_k,
    };
    KG_TRY(copy_in(&job->copies, &job->head.inv_temp, h->inv_temp, h->n_rows, err));
    if (!h->anchor_hidden)
        return KG_OK;
    if (h->anchor_width == 0)
        h->anchor_width = h->width;
    job->anchor = (struct kg_head_anchor){
        .hidden = view(h->anchor_hidden, h->dtype, h->n_rows, h->anchor_width),
        .weight = view(h->anchor_weight, h->dtype, h->vocab, h->anchor_width),
        .inv_temp = job->head.inv_temp,
    };
    if (h->anchor_inv_temp)
        KG_TRY(copy_in(&job->copies, &job->anchor.inv_temp, h->anchor_inv_temp, h->n_rows,
                       err));
    job->head.anchor = &job->anchor;
    return KG_OK;
}

/* ---- forward ---- */

static kg_status check_wanted(const struct kedge_head_rows *r, const struct kedge_head *h,
                              struct kg_err *err)
{
    if ((r->logp && !h->tokens) || (r->logp_at && !h->ids))
        return kg_fail(err, KG_EINVAL, "head: expected %s for %s, found NULL",
                       r->logp && !h->tokens ? "tokens" : "ids",
                       r->logp && !h->tokens ? "logp" : "logp_at");
    if ((r->top_ids || r->top_logp) && h->top_k < 1)
        return kg_fail(err, KG_EINVAL,
                       "head.top_k: expected 1 or more with top_ids, found %d", h->top_k);
    return KG_OK;
}

static kg_status room_for(struct kg_head_out *out, struct job *job,
                          const struct kedge_head_rows *r, struct kg_err *err)
{
    struct copies *c = &job->copies;
    int64_t n = job->own.n_rows;

    *out = (struct kg_head_out){.lse = r->lse,
                                .top_ids = r->top_ids,
                                .kl_reverse = r->kl_reverse,
                                .kl_forward = r->kl_forward,
                                .anchor_lse = r->anchor_lse};
    KG_TRY(copy(c, &out->logp, r->logp, NULL, n, err));
    KG_TRY(copy(c, &out->logp_at, r->logp_at, NULL, n * job->own.k, err));
    KG_TRY(copy(c, &out->entropy, r->entropy, NULL, n, err));
    return copy(c, &out->top_logp, r->top_logp, NULL, n * job->own.top_k, err);
}

static kg_status forward(struct kedge_head_rows *rows, const struct kedge_head *head,
                         struct kg_err *err)
{
    struct kedge_head_rows own;
    struct kg_head_out out;
    struct job job;
    kg_status status;

    KG_LIB_TAKE(own, rows, err);
    KG_TRY_GOTO(out, take_head(&job, head, err));
    KG_TRY_GOTO(out, check_wanted(&own, &job.own, err));
    KG_TRY_GOTO(out, room_for(&out, &job, &own, err));
    KG_TRY_GOTO(out, kg_op_head(job.be, &out, &job.head, err));
    int64_t n = job.own.n_rows;

    widen(own.logp, out.logp, n);
    widen(own.logp_at, out.logp_at, n * job.own.k);
    widen(own.entropy, out.entropy, n);
    widen(own.top_logp, out.top_logp, n * job.own.top_k);
out:
    copies_release(&job.copies);
    return status;
}

int kedge_head(struct kedge_head_rows *rows, const struct kedge_head *head,
               struct kedge_err *err)
{
    int before = enter();
    struct kg_err e;
    kg_status status = forward(rows, head, &e);

    leave(before);
    return kg_lib_report(status, &e, err);
}

/* ---- backward ---- */

static kg_status take_grad(struct kg_head_grad *g, struct job *job,
                           const struct kedge_head_grad *own, struct kg_err *err)
{
    const struct kedge_head *h = &job->own;

    KG_TRY(kg_lib_given(own->lse, "grad.lse", err));
    KG_TRY(kg_lib_given(own->dhidden, "grad.dhidden", err));
    *g = (struct kg_head_grad){
        .lse = own->lse,
        .a_target = own->a_logp,
        .a_indices = own->a_at,
        .a_entropy = own->a_entropy,
        .a_kl_reverse = own->a_kl_reverse,
        .a_kl_forward = own->a_kl_forward,
        .kl_reverse = own->kl_reverse,
        .anchor_lse = own->anchor_lse,
        .dhidden = kg_mat(own->dhidden, KG_F32, h->n_rows, h->width),
        .dweight = kg_mat(own->dweight, KG_F32, h->vocab, h->width),
    };
    if (own->a_entropy)
        KG_TRY(copy_in(&job->copies, &g->entropy, own->entropy, h->n_rows, err));
    return KG_OK;
}

static kg_status backward(const struct kedge_head_grad *grad,
                          const struct kedge_head *head, struct kg_err *err)
{
    struct kedge_head_grad own;
    struct kg_head_grad g;
    struct job job;
    kg_status status;

    KG_LIB_TAKE(own, grad, err);
    KG_TRY_GOTO(out, take_head(&job, head, err));
    KG_TRY_GOTO(out, take_grad(&g, &job, &own, err));
    KG_TRY_GOTO(out, kg_op_head_bwd(job.be, &g, &job.head, err));
out:
    copies_release(&job.copies);
    return status;
}

int kedge_head_backward(const struct kedge_head_grad *grad, const struct kedge_head *head,
                        struct kedge_err *err)
{
    int before = enter();
    struct kg_err e;
    kg_status status = backward(grad, head, &e);

    leave(before);
    return kg_lib_report(status, &e, err);
}

/* ---- the anchor's weights ---- */

int kedge_ema(float *anchor, const float *theta, int64_t n, double eta,
              struct kedge_err *err)
{
    int before = enter();
    const struct kg_backend *be = NULL;
    struct kg_err e;
    kg_status status = kg_lib_given(n > 0 ? anchor : (const void *)"", "anchor", &e);

    if (status == KG_OK && n > 0)
        status = kg_lib_given(theta, "theta", &e);
    if (status == KG_OK)
        status = kg_backend_open(&be, "cpu", &e);
    if (status == KG_OK)
        status = kg_op_ema(be, kg_vec(anchor, n > 0 ? n : 0),
                           kg_vec((float *)(uintptr_t)theta, n > 0 ? n : 0), (float)eta,
                           &e);
    leave(before);
    return kg_lib_report(status, &e, err);
}
