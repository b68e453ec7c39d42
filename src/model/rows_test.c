/* The gradient of a micro-batch: against finite differences for every kind of
 * coefficient, and independent of the packing; rows belong to their tokens with other
 * tokens in between.
 */
#include "model/rows_testing.h"
#include "tensor/backend_testing.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 24, K = 3, N_SEQS = 3, MOST = 16, ROOM = 64 };

/* Three sequences. In the second, some tokens in the middle are not wanted, like an
 * observation. */
static const struct {
    int32_t n;
    uint32_t wanted; /* bit t: the log-prob of token t */
} shapes[N_SEQS] = {{9, 0x1f8}, {14, 0x3c3c}, {5, 0x0c}};

struct world {
    struct kg_model *model, *anchor;
    struct kg_rows *rows;
    float *grads; /* (n_elements) */
};

static struct world open_world(bool checkpoint)
{
    struct world w = {.model = small_model(VOCAB, 1), .anchor = small_model(VOCAB, 2)};
    struct kg_rows_opts opts = {.max_tokens = ROOM,
                                .max_k = K,
                                .backward = true,
                                .checkpoint = checkpoint,
                                .kl = true,
                                .anchor = w.anchor};

    NEED(kg_rows_create(&w.rows, w.model, &opts, err));
    w.grads = buffer_of(w.model->n_elements, sizeof *w.grads);
    return w;
}

static void close_world(struct world *w)
{
    buffer_free(w->grads);
    kg_rows_free(w->rows);
    kg_model_free(w->anchor);
    kg_model_free(w->model);
}

/* A number in [-1, 1) that is a hash of (i, salt). */
static double noise(uint32_t i, uint32_t salt)
{
    uint32_t x = (i + 1) * 2654435761u ^ (salt + 1) * 2246822519u;

    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (double)x / 2147483648.0 - 1;
}

static int32_t token_of(int s, int32_t t) { return (5 * s + 7 * t + t * t) % VOCAB; }

/* Packs sequences [first, last); `all` wants every token but the first. */
static void pack(struct kg_rows *p, const struct kg_model *m, int first, int last, int k,
                 bool all)
{
    kg_rows_begin(p, m, k);
    for (int s = first; s < last; s++) {
        int32_t tokens[MOST];
        int64_t row;

        for (int32_t t = 0; t < shapes[s].n; t++)
            tokens[t] = token_of(s, t);
        row = kg_rows_add(p, tokens, (size_t)shapes[s].n);
        for (int32_t t = 1; t < shapes[s].n; t++) {
            int32_t ids[K] = {(tokens[t] + 1) % VOCAB, tokens[t], -1};

            if (all || (shapes[s].wanted >> t & 1))
                kg_rows_want(p, row + t - 1, tokens[t], 0.8f, ids);
        }
    }
}

enum kind { LOGP, AT, ENTROPY, REVERSE, FORWARD, KINDS };
static const char *const kind_names[] = {"logp", "logp_at", "entropy", "reverse KL",
                                         "forward KL"};

static struct kg_rows_ask ask_for(const struct world *w, enum kind kind)
{
    return (struct kg_rows_ask){.entropy = kind == ENTROPY,
                                .kl = kind == REVERSE   ? KG_ROWS_KL_REVERSE
                                      : kind == FORWARD ? KG_ROWS_KL_FORWARD
                                                        : KG_ROWS_KL_NONE,
                                .anchor = w->anchor};
}

/* Sets the coefficients of a linear loss; `first`: the number of wanted rows in earlier
 * packs. */
static void fill(struct kg_rows *p, enum kind kind, int64_t first)
{
    for (int64_t i = 0; i < p->n_rows; i++) {
        uint32_t at = (uint32_t)(first + i);

        p->a_logp[i] = kind == LOGP ? noise(at, 1) : 0;
        p->a_entropy[i] = kind == ENTROPY ? noise(at, 2) : 0;
        p->a_kl[i] = kind == REVERSE || kind == FORWARD ? noise(at, 3) : 0;
        for (int k = 0; k < p->k; k++)
            p->a_at[i * p->k + k] = kind == AT ? noise(at * K + (uint32_t)k, 4) : 0;
    }
}

/* The linear loss with the coefficients that fill() set. */
static double loss_of(const struct kg_rows *p, enum kind kind)
{
    double loss = 0;

    for (int64_t i = 0; i < p->n_rows; i++) {
        if (kind == LOGP)
            loss += p->a_logp[i] * (double)p->logp[i];
        if (kind == ENTROPY)
            loss += p->a_entropy[i] * (double)p->entropy[i];
        if (kind == REVERSE || kind == FORWARD)
            loss += p->a_kl[i] * p->kl[i];
        for (int k = 0; kind == AT && k < p->k; k++)
            if (p->ids[i * p->k + k] >= 0)
                loss += p->a_at[i * p->k + k] * (double)p->logp_at[i * p->k + k];
    }
    return loss;
}

static void gradient(struct world *w, enum kind kind)
{
    struct kg_rows_ask ask = ask_for(w, kind);

    memset(w->grads, 0, (size_t)w->model->n_elements * sizeof *w->grads);
    pack(w->rows, w->model, 0, N_SEQS, K, false);
    NEED(kg_rows_forward(w->rows, true, err));
    NEED(kg_rows_ask(w->rows, &ask, err));
    fill(w->rows, kind, 0);
    NEED(kg_rows_backward(w->rows, w->grads, kind == ENTROPY, err));
}

/* The tokens that pack() left out are selected after the others and dropped after the
 * forward: the gradient equals one that never selected them, bit for bit. */
static void rows_dropped_after_the_forward_have_no_gradient(void **state)
{
    struct world w = open_world(false);
    const size_t bytes = (size_t)w.model->n_elements * sizeof *w.grads;
    float *without = must_alloc((size_t)w.model->n_elements, sizeof *without);

    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct kg_rows_ask ask = ask_for(&w, (enum kind)kind);
        int64_t row = 0;

        gradient(&w, (enum kind)kind);
        memcpy(without, w.grads, bytes);
        memset(w.grads, 0, bytes);
        pack(w.rows, w.model, 0, N_SEQS, K, false);
        const int64_t n = w.rows->n_rows;
        for (int s = 0; s < N_SEQS; row += shapes[s++].n)
            for (int32_t t = 1; t < shapes[s].n; t++)
                if (!(shapes[s].wanted >> t & 1))
                    kg_rows_want(w.rows, row + t - 1, token_of(s, t), 1, NULL);
        assert_true(w.rows->n_rows > n);
        NEED(kg_rows_forward(w.rows, true, err));
        kg_rows_forget(w.rows, n);
        NEED(kg_rows_ask(w.rows, &ask, err));
        fill(w.rows, (enum kind)kind, 0);
        NEED(kg_rows_backward(w.rows, w.grads, kind == ENTROPY, err));
        assert_memory_equal(w.grads, without, bytes);
    }
    kg_mem_free(without);
    close_world(&w);
}

/* ---- finite differences ---- */

static double moved_loss(struct world *w, enum kind kind, const struct kg_param *q,
                         const float *from, double step)
{
    struct kg_rows_ask ask = ask_for(w, kind);
    int64_t n = q->rows * q->cols;

    for (int64_t i = 0; i < n; i++)
        q->master[i] = (float)(from[i] + step * w->grads[q->offset + i]);
    NEED(kg_model_refresh(w->model, err));
    NEED(kg_rows_forward(w->rows, true, err));
    NEED(kg_rows_ask(w->rows, &ask, err));
    return loss_of(w->rows, kind);
}

/* If g is the gradient of one tensor, the slope of the loss along g is |g|^2. */
static void check_tensor(struct world *w, enum kind kind, const struct kg_param *q)
{
    int64_t n = q->rows * q->cols;
    float *from = must_alloc((size_t)n, sizeof *from);
    double square = 0, step, slope;

    memcpy(from, q->master, (size_t)n * sizeof *from);
    for (int64_t i = 0; i < n; i++)
        square += (double)w->grads[q->offset + i] * w->grads[q->offset + i];
    if (square > 1e-8) { /* else nothing but noise: a key's bias has no gradient */
        step = 4e-3 / sqrt(square);
        slope = (moved_loss(w, kind, q, from, step) -
                 moved_loss(w, kind, q, from, -step)) /
                (2 * step);
        if (!(fabs(slope - square) < 5e-3 * square + 3e-4 * sqrt(square)))
            fail_msg("%s, %s: gradient %g, finite difference %g", kind_names[kind],
                     q->name, sqrt(square), slope / sqrt(square));
    }
    memcpy(q->master, from, (size_t)n * sizeof *from);
    kg_mem_free(from);
}

static void gradient_is_the_finite_difference_of_the_loss(void **state)
{
    struct world w = open_world(false);

    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        gradient(&w, (enum kind)kind);
        for (size_t i = 0; i < w.model->n_params; i++)
            check_tensor(&w, (enum kind)kind, &w.model->params[i]);
        NEED(kg_model_refresh(w.model, err));
    }
    close_world(&w);
}

/* ---- packing ---- */

static double difference(const float *a, const float *b, int64_t n)
{
    double apart = 0, size = 0;

    for (int64_t i = 0; i < n; i++) {
        apart += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    assert_true(size > 0);
    return sqrt(apart / size);
}

static void sequences_in_packs_of_their_own_give_the_same_gradient(void **state)
{
    struct world w = open_world(true);
    size_t n = (size_t)w.model->n_elements;
    float *apart = buffer_of((int64_t)n, sizeof *apart);

    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct kg_rows_ask ask = ask_for(&w, (enum kind)kind);
        int64_t rows = 0;

        gradient(&w, (enum kind)kind);
        memset(apart, 0, n * sizeof *apart);
        for (int s = 0; s < N_SEQS; s++) {
            pack(w.rows, w.model, s, s + 1, K, false);
            NEED(kg_rows_forward(w.rows, true, err));
            NEED(kg_rows_ask(w.rows, &ask, err));
            fill(w.rows, (enum kind)kind, rows);
            NEED(kg_rows_backward(w.rows, apart, kind == ENTROPY, err));
            rows += w.rows->n_rows;
        }
        assert_true(difference(apart, w.grads, (int64_t)n) < 1e-5);
    }
    buffer_free(apart);
    close_world(&w);
}

static void checkpointed_layers_give_the_same_bits(void **state)
{
    struct world kept = open_world(false), again = open_world(true);
    size_t n = (size_t)kept.model->n_elements;

    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        gradient(&kept, (enum kind)kind);
        gradient(&again, (enum kind)kind);
        assert_memory_equal(kept.grads, again.grads, n * sizeof *kept.grads);
    }
    close_world(&again);
    close_world(&kept);
}

static void refused_backward(struct world *w, bool use_entropy, const char *says)
{
    struct kg_err e;

    assert_int_equal(kg_rows_backward(w->rows, w->grads, use_entropy, &e), KG_EINVAL);
    if (!strstr(e.message, says))
        fail_msg("expected '%s', found '%s'", says, e.message);
}

/* A device keeps the head's outputs for the rows and quantities of the last
 * kg_rows_ask. */
static void a_backward_of_what_was_not_asked_is_refused(void **state)
{
    struct world w = open_world(false);
    const struct kg_rows_ask ask = ask_for(&w, LOGP);

    (void)state;
    pack(w.rows, w.model, 0, N_SEQS, K, false);
    NEED(kg_rows_forward(w.rows, true, err));
    refused_backward(&w, false, "expected outputs of the head, found none");
    NEED(kg_rows_ask(w.rows, &ask, err));
    fill(w.rows, LOGP, 0);
    refused_backward(&w, true, "expected the head to compute the entropy");
    kg_rows_forget(w.rows, w.rows->n_rows - 1);
    refused_backward(&w, false, "rows of the head's outputs, found");
    close_world(&w);
}

/* ---- rows ---- */

/* Row r of the wanted tokens is what the sequence alone gives for that token. */
static void rows_belong_to_their_tokens_with_others_in_between(void **state)
{
    struct world w = open_world(false);
    struct kg_rows *alone;
    int64_t r = 0;

    (void)state;
    NEED(
        kg_rows_create(&alone, w.model, &(struct kg_rows_opts){.max_tokens = MOST}, err));
    pack(w.rows, w.model, 0, N_SEQS, K, false);
    NEED(kg_rows_forward(w.rows, false, err));
    NEED(kg_rows_ask(w.rows, NULL, err));
    for (int s = 0; s < N_SEQS; s++) {
        pack(alone, w.model, s, s + 1, 0, true);
        NEED(kg_rows_forward(alone, false, err));
        NEED(kg_rows_ask(alone, NULL, err));
        for (int32_t t = 1; t < shapes[s].n; t++) {
            if (!(shapes[s].wanted >> t & 1))
                continue;
            assert_int_equal(w.rows->target[r], token_of(s, t));
            assert_true(w.rows->logp[r] == alone->logp[t - 1]);
            assert_true(w.rows->logp_at[r * K + 1] == alone->logp[t - 1]);
            assert_true(isinf(w.rows->logp_at[r * K + 2]));
            r++;
        }
    }
    assert_int_equal(r, w.rows->n_rows);
    kg_rows_free(alone);
    close_world(&w);
}

/* A wanted row whose coefficient is 0 contributes nothing. */
static void tokens_that_are_not_wanted_carry_no_gradient(void **state)
{
    struct world w = open_world(false);
    size_t n = (size_t)w.model->n_elements;
    float *few = must_alloc(n, sizeof *few);
    int64_t r = 0, wanted = 0;

    (void)state;
    gradient(&w, LOGP);
    memcpy(few, w.grads, n * sizeof *few);
    memset(w.grads, 0, n * sizeof *w.grads);
    pack(w.rows, w.model, 0, N_SEQS, K, true);
    NEED(kg_rows_forward(w.rows, true, err));
    NEED(kg_rows_ask(w.rows, NULL, err));
    fill(w.rows, KINDS, 0); /* all 0 */
    for (int s = 0; s < N_SEQS; s++)
        for (int32_t t = 1; t < shapes[s].n; t++, r++)
            if (shapes[s].wanted >> t & 1)
                w.rows->a_logp[r] = noise((uint32_t)wanted++, 1);
    NEED(kg_rows_backward(w.rows, w.grads, false, err));
    assert_true(difference(w.grads, few, (int64_t)n) < 1e-6);
    kg_mem_free(few);
    close_world(&w);
}

/* ---- the anchor ---- */

static void an_anchor_equal_to_the_policy_gives_exactly_zero(void **state)
{
    struct world w = open_world(true);

    (void)state;
    kg_model_free(w.anchor);
    w.anchor = NULL;
    NEED(kg_model_clone(&w.anchor, w.model, &(struct kg_model_opts){.ct = KG_F32}, err));
    for (int kind = REVERSE; kind <= FORWARD; kind++) {
        gradient(&w, (enum kind)kind);
        for (int64_t i = 0; i < w.rows->n_rows; i++)
            assert_true(w.rows->kl[i] == 0);
        for (int64_t i = 0; i < w.model->n_elements; i++)
            assert_true(w.grads[i] == 0);
    }
    close_world(&w);
}

/* Log-probs of the whole vocabulary at every position of the first sequence. */
static void every_logp(struct kg_rows *p, const struct kg_model *m)
{
    int32_t tokens[MOST], every[VOCAB];

    for (int32_t v = 0; v < VOCAB; v++)
        every[v] = v;
    for (int32_t t = 0; t < shapes[0].n; t++)
        tokens[t] = token_of(0, t);
    kg_rows_begin(p, m, VOCAB);
    kg_rows_add(p, tokens, (size_t)shapes[0].n);
    for (int32_t t = 1; t < shapes[0].n; t++)
        kg_rows_want(p, t - 1, tokens[t], 0.8f, every);
    NEED(kg_rows_forward(p, false, err));
    NEED(kg_rows_ask(p, NULL, err));
}

static void the_exact_kl_is_the_sum_over_the_vocabulary(void **state)
{
    struct world w = open_world(false);
    struct kg_rows_opts opts = {.max_tokens = MOST, .max_k = VOCAB};
    struct kg_rows *p, *q;

    (void)state;
    NEED(kg_rows_create(&p, w.model, &opts, err));
    NEED(kg_rows_create(&q, w.anchor, &opts, err));
    every_logp(p, w.model);
    every_logp(q, w.anchor);
    for (int kind = REVERSE; kind <= FORWARD; kind++) {
        struct kg_rows_ask ask = ask_for(&w, (enum kind)kind);

        pack(w.rows, w.model, 0, 1, K, true);
        NEED(kg_rows_forward(w.rows, true, err));
        NEED(kg_rows_ask(w.rows, &ask, err));
        for (int32_t t = 1; t < shapes[0].n; t++) {
            const float *a = (kind == REVERSE ? p : q)->logp_at + (t - 1) * VOCAB;
            const float *b = (kind == REVERSE ? q : p)->logp_at + (t - 1) * VOCAB;
            double kl = 0;

            for (int v = 0; v < VOCAB; v++)
                kl += exp((double)a[v]) * ((double)a[v] - b[v]);
            assert_true(kl > 1e-3);
            assert_true(fabs(w.rows->kl[t - 1] - kl) < 1e-5 * kl + 1e-6);
        }
    }
    kg_rows_free(p);
    kg_rows_free(q);
    close_world(&w);
}

/* ---- several packs, and a cache ---- */

/* One kg_rows_ask for the rows of two packs gives those of one pack. */
static void rows_stay_while_packs_go_by(void **state)
{
    struct world w = open_world(false);
    float whole[ROOM];
    int64_t n;

    (void)state;
    pack(w.rows, w.model, 0, 2, K, true);
    NEED(kg_rows_forward(w.rows, false, err));
    NEED(kg_rows_ask(w.rows, NULL, err));
    n = w.rows->n_rows;
    memcpy(whole, w.rows->logp, (size_t)n * sizeof *whole);
    kg_rows_begin(w.rows, w.model, K);
    for (int s = 0; s < 2; s++) {
        int32_t tokens[MOST];

        for (int32_t t = 0; t < shapes[s].n; t++)
            tokens[t] = token_of(s, t);
        if (s > 0)
            kg_rows_next(w.rows);
        assert_int_equal(kg_rows_tokens(w.rows), 0);
        kg_rows_add(w.rows, tokens, (size_t)shapes[s].n);
        for (int32_t t = 1; t < shapes[s].n; t++)
            kg_rows_want(w.rows, t - 1, tokens[t], 0.8f, NULL);
        NEED(kg_rows_forward(w.rows, false, err));
    }
    NEED(kg_rows_ask(w.rows, NULL, err));
    assert_int_equal(w.rows->n_rows, n);
    assert_memory_equal(w.rows->logp, whole, (size_t)n * sizeof *whole);
    close_world(&w);
}

/* Forgetting rows of this pack leaves the others as they were. */
static void forgotten_rows_are_not_asked_about(void **state)
{
    struct world w = open_world(false);
    float few[MOST];
    int32_t n = shapes[0].n - 1;

    (void)state;
    pack(w.rows, w.model, 0, 1, K, true);
    NEED(kg_rows_forward(w.rows, false, err));
    NEED(kg_rows_ask(w.rows, NULL, err));
    memcpy(few, w.rows->logp, (size_t)n * sizeof *few);
    pack(w.rows, w.model, 0, 2, K, true);
    kg_rows_forget(w.rows, n);
    NEED(kg_rows_forward(w.rows, false, err));
    NEED(kg_rows_ask(w.rows, NULL, err));
    assert_int_equal(w.rows->n_rows, n);
    assert_memory_equal(w.rows->logp, few, (size_t)n * sizeof *few);
    close_world(&w);
}

/* kg_rows_read: a part of the rows, into arrays of the caller: log-probs as kg_rows_ask
 * gives them, and the largest ids, which only a prompt's last row wants. */
static void some_rows_are_read_into_arrays_of_the_caller(void **state)
{
    enum { FIRST = 3, N = 4, TOP = 2 };
    struct world w = open_world(false);
    double lse[N];
    float logp[N], top_logp[N * TOP];
    int32_t top_ids[N * TOP];
    struct kg_head_out out = {
        .lse = lse, .logp = logp, .top_ids = top_ids, .top_logp = top_logp};

    (void)state;
    pack(w.rows, w.model, 0, 1, 0, true);
    NEED(kg_rows_forward(w.rows, false, err));
    NEED(kg_rows_ask(w.rows, NULL, err));
    NEED(kg_rows_read(&out, w.rows, FIRST, N, TOP, err));
    assert_memory_equal(logp, w.rows->logp + FIRST, sizeof logp);
    assert_memory_equal(lse, w.rows->lse + FIRST, sizeof lse);
    for (int i = 0; i < N; i++) {
        assert_true(top_logp[i * TOP] >= top_logp[i * TOP + 1]);
        assert_true(top_logp[i * TOP] >= logp[i]);
    }
    /* without a target nothing is looked up */
    out = (struct kg_head_out){.lse = lse};
    NEED(kg_rows_read(&out, w.rows, 0, 1, 0, err));
    assert_true(lse[0] == w.rows->lse[0]);
    close_world(&w);
}

/* A row that was held gives the same distribution among other rows, at any
 * temperature. */
static void a_held_row_is_recalled_among_others(void **state)
{
    struct world w = open_world(false);
    double held, lse;
    struct kg_head_out out = {.lse = &lse};
    int64_t again;

    (void)state;
    pack(w.rows, w.model, 0, 1, 0, true);
    NEED(kg_rows_forward(w.rows, false, err));
    NEED(kg_rows_ask(w.rows, NULL, err));
    held = w.rows->lse[4];
    NEED(kg_rows_hold(w.rows, 4, err));
    kg_rows_begin(w.rows, w.model, 0);
    NEED(kg_rows_recall(&again, w.rows, 0.8f, err));
    assert_int_equal(again, 0);
    kg_rows_add(w.rows, (const int32_t[]){1, 2}, 2);
    assert_int_equal(kg_rows_want(w.rows, 1, 3, 0.8f, NULL), 1);
    NEED(kg_rows_forward(w.rows, false, err));
    NEED(kg_rows_read(&out, w.rows, again, 1, 0, err));
    assert_true(lse == held);
    NEED(kg_rows_read(&out, w.rows, 1, 1, 0, err));
    assert_true(lse != held);
    kg_rows_next(w.rows);
    NEED(kg_rows_recall(&again, w.rows, 1.6f, err));
    assert_int_equal(again, 2);
    NEED(kg_rows_read(&out, w.rows, again, 1, 0, err));
    assert_true(lse != held);
    close_world(&w);
}

/* A sequence in two parts through a cache has the bits of the whole. */
static void a_continued_sequence_is_the_whole_one(void **state)
{
    enum { CUT = 5 };
    struct world w = open_world(false);
    const int32_t blocks[] = {1}, n = shapes[1].n;
    struct kg_rows *cached;
    struct kg_kv *kv;
    int32_t tokens[MOST];

    (void)state;
    NEED(kg_kv_create(&kv, w.model, kg_kv_alike(2), err));
    NEED(kg_rows_create(&cached, w.model,
                        &(struct kg_rows_opts){.max_tokens = MOST, .kv = kv}, err));
    for (int32_t t = 0; t < n; t++)
        tokens[t] = token_of(1, t);
    pack(w.rows, w.model, 1, 2, 0, true);
    NEED(kg_rows_forward(w.rows, false, err));
    NEED(kg_rows_ask(w.rows, NULL, err));
    kg_rows_begin(cached, w.model, 0);
    for (int32_t from = 0; from < n; from = from ? n : CUT) {
        int32_t end = from ? n : CUT;

        kg_rows_next(cached);
        kg_rows_continue(cached, tokens + from, (size_t)(end - from), from,
                         kg_kv_table(blocks), 0);
        for (int32_t t = from; t < end && t + 1 < n; t++)
            kg_rows_want(cached, t - from, tokens[t + 1], 0.8f, NULL);
        NEED(kg_rows_forward(cached, false, err));
    }
    NEED(kg_rows_ask(cached, NULL, err));
    assert_int_equal(cached->n_rows, w.rows->n_rows);
    assert_memory_equal(cached->logp, w.rows->logp,
                        (size_t)cached->n_rows * sizeof *cached->logp);
    kg_rows_free(cached);
    kg_kv_free(kv);
    close_world(&w);
}

static void the_memory_plan_is_what_is_taken(void **state)
{
    struct kg_model *m;

    (void)state;
    need_host_memory();
    m = small_model(VOCAB, 1);
    for (int anchor = 0; anchor < 2; anchor++) {
        struct kg_rows_opts opts = {.max_tokens = 4096,
                                    .max_k = K,
                                    .backward = true,
                                    .kl = anchor,
                                    .anchor = anchor ? m : NULL};
        uint64_t before = kg_mem_current_bytes();
        uint64_t plan = kg_bytes_sum(kg_rows_memory(m, &opts));
        struct kg_rows *p = NULL;
        double taken;

        NEED(kg_rows_create(&p, m, &opts, err));
        taken = (double)(kg_mem_current_bytes() - before);
        assert_true(fabs(taken / (double)plan - 1) < 0.01);
        kg_rows_free(p);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
    kg_model_free(m);
}

/* Every token of a full pack is given experts, and the host reads them back. One thread:
 * with several, it varies which thread allocates which scratch. */
static void a_pack_that_is_given_experts_takes_what_is_planned(void **state)
{
    const int threads = omp_get_max_threads();
    enum { N = 4096 };
    const struct kg_model_opts tiny = {.ct = KG_F32, .trainable = true};
    const struct kg_rows_opts opts = {.max_tokens = N, .max_rows = 1, .experts = true};
    struct kg_model_config c;
    struct kg_model *m = NULL;
    struct kg_rows *p = NULL;
    uint64_t before, plan;
    uint16_t *experts;
    int32_t *tokens;

    (void)state;
    need_host_memory();
    NEED(kg_model_config_read(&c, "tests/data/reference/qwen2_moe", err));
    c.max_positions = N;
    NEED(kg_model_create(&m, &c, &tiny, 3, err));
    experts = must_alloc(N * (size_t)kg_model_config_choices(&c), sizeof *experts);
    tokens = must_alloc(N, sizeof *tokens);
    plan = kg_bytes_sum(kg_rows_memory(m, &opts));
    omp_set_num_threads(1);
    for (int round = 0; round < 2; round++) { /* the first allocates scratch */
        before = kg_mem_current_bytes();
        NEED(kg_rows_create(&p, m, &opts, err));
        kg_rows_begin(p, m, 0);
        for (int64_t i = 0; i < N; i += 64)
            kg_rows_add_seq(p, &(struct kg_rows_seq){tokens, 64, 0, experts});
        kg_rows_want(p, N - 1, 1, 1, NULL);
        NEED(kg_rows_forward(p, false, err));
        NEED(kg_rows_experts(experts, p, 0, N, err));
        assert_true(round == 0 ||
                    fabs((double)(kg_mem_current_bytes() - before) / (double)plan - 1) <
                        0.01);
        kg_rows_free(p);
    }
    omp_set_num_threads(threads);
    kg_mem_free(experts);
    kg_mem_free(tokens);
    kg_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_dropped_after_the_forward_have_no_gradient),
        cmocka_unit_test(gradient_is_the_finite_difference_of_the_loss),
        cmocka_unit_test(sequences_in_packs_of_their_own_give_the_same_gradient),
        cmocka_unit_test(checkpointed_layers_give_the_same_bits),
        cmocka_unit_test(a_backward_of_what_was_not_asked_is_refused),
        cmocka_unit_test(rows_belong_to_their_tokens_with_others_in_between),
        cmocka_unit_test(tokens_that_are_not_wanted_carry_no_gradient),
        cmocka_unit_test(an_anchor_equal_to_the_policy_gives_exactly_zero),
        cmocka_unit_test(the_exact_kl_is_the_sum_over_the_vocabulary),
        cmocka_unit_test(rows_stay_while_packs_go_by),
        cmocka_unit_test(forgotten_rows_are_not_asked_about),
        cmocka_unit_test(some_rows_are_read_into_arrays_of_the_caller),
        cmocka_unit_test(a_held_row_is_recalled_among_others),
        cmocka_unit_test(a_continued_sequence_is_the_whole_one),
        cmocka_unit_test(the_memory_plan_is_what_is_taken),
        cmocka_unit_test(a_pack_that_is_given_experts_takes_what_is_planned),
    };

    return RUN_SHOWN(tests, NULL, NULL);
}
