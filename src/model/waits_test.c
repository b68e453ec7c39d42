/* What the host waits for in a micro-batch on a device, and how many bytes are copied. It
 * waits once, for log-probs, from which it computes the coefficients of the backward. The
 * experts that tokens had, and the sums that train.router_aux reads, are copied with
 * them. Counted on emulated kernels, whose copies and marks are those of a device.
 */
#include "model/rows_testing.h"

#include "tensor/backend_testing.h"

#include <stdio.h>

enum { VOCAB = 24, K = 3, N_SEQS = 3, LENGTH = 12, ROOM = N_SEQS * LENGTH, BATCHES = 4 };

/* Waits in the phases of one micro-batch. */
struct waits {
    uint64_t forward, ask, load, backward;
};

/* The parameters of a world. */
struct how {
    const char *products, *model;
    enum kg_dtype ct;
    int rank;  /* 0: all weights are trained */
    bool kl;   /* against an anchor, exact */
    bool load; /* expert load, read with the log-probs */
    bool aux;  /* train.router_aux: gradients of a balance, and its loss */
    int same;  /* tokens that all sequences begin with, computed once; 0: none */
};

struct world {
    struct kg_model *model, *anchor;
    struct kg_rows *rows;
    float *grads;
    int64_t *counts; /* tokens of each expert; NULL: no experts */
    float *p_sum;    /* (E) as counts */
    const struct how *how;
};

static const struct kg_backend *emu(void)
{
    const struct kg_backend *be = NULL;

    NEED(kg_backend_open(&be, "emu", err));
    return be;
}

static struct kg_model *model_on(const struct kg_backend *be, const struct how *how,
                                 int rank)
{
    const struct kg_lora lora = {.rank = rank, .alpha = 2};
    const struct kg_model_opts opts = {
        .backend = be, .ct = how->ct, .trainable = true, .lora = rank > 0 ? &lora : NULL};
    struct kg_model *m = NULL;

    NEED(kg_model_open(&m, how->model, &opts, err));
    return m;
}

static struct world open_world(const struct kg_backend *be, const struct how *how)
{
    struct world w = {.model = model_on(be, how, how->rank),
                      .anchor = model_on(be, how, 0),
                      .how = how};
    const struct kg_rows_opts opts = {.max_tokens = ROOM,
                                      .max_k = K,
                                      .backward = true,
                                      .kl = true,
                                      .anchor = w.anchor,
                                      .share = how->same > 0};

    struct kg_err e;

    NEED(kg_rows_create(&w.rows, w.model, &opts, err));
    w.grads = kg_buf_alloc(be, (uint64_t)w.model->n_elements * sizeof *w.grads, "test",
                           &e);
    assert_non_null(w.grads);
    if (w.model->config.experts.n > 0) {
        const size_t n = (size_t)w.model->config.experts.n;

        w.counts = must_alloc((size_t)w.model->config.layers * n, sizeof *w.counts);
        w.p_sum = must_alloc(n, sizeof *w.p_sum);
    }
    return w;
}

static void close_world(struct world *w)
{
    kg_buf_free(w->model->backend, w->grads);
    kg_rows_free(w->rows);
    kg_model_free(w->anchor);
    kg_model_free(w->model);
    kg_mem_free(w->counts);
    kg_mem_free(w->p_sum);
}

static void pack(struct world *w, int batch)
{
    kg_rows_begin(w->rows, w->model, K);
    for (int s = 0; s < N_SEQS; s++) {
        const int first = w->how->same > 0 ? w->how->same : 1;
        int32_t tokens[LENGTH];
        const struct kg_rows_seq q = {
            .tokens = tokens, .n = LENGTH, .most = (size_t)w->how->same};

        for (int t = 0; t < LENGTH; t++)
            tokens[t] = ((t < w->how->same ? 0 : 5 * s) + 7 * t + t * t + batch) % VOCAB;
        kg_rows_add_seq(w->rows, &q);
        for (int t = first; t < LENGTH; t++) {
            const int32_t ids[K] = {(tokens[t] + 1) % VOCAB, tokens[t], -1};

            kg_rows_want(w->rows, kg_rows_at(w->rows, (size_t)t - 1), tokens[t], 0.9f,
                         ids);
        }
    }
}

static void fill_coefficients(struct kg_rows *p)
{
    for (int64_t i = 0; i < p->n_rows; i++) {
        p->a_logp[i] = -p->logp[i];
        p->a_entropy[i] = 0.1;
        p->a_kl[i] = 0.2;
        for (int k = 0; k < K; k++)
            p->a_at[i * K + k] = 0.01 * k;
    }
}

static uint64_t waited(const struct world *w, uint64_t before)
{
    return kg_buf_traffic(w->model->backend).waits - before;
}

static struct waits micro_batch(struct world *w, int batch)
{
    const struct kg_rows_ask ask = {.entropy = true,
                                    .load = w->how->load,
                                    .kl = w->how->kl ? KG_ROWS_KL_REVERSE
                                                     : KG_ROWS_KL_NONE,
                                    .anchor = w->anchor};
    const uint64_t before = waited(w, 0);
    struct waits n;

    pack(w, batch);
    NEED(kg_rows_forward(w->rows, true, err));
    n.forward = waited(w, before);
    NEED(kg_rows_ask(w->rows, &ask, err));
    n.ask = waited(w, before + n.forward);
    if (w->counts)
        NEED(kg_rows_load(w->counts, w->rows, err));
    if (w->how->aux)
        NEED(kg_rows_p_sum(w->p_sum, w->rows, err));
    n.load = waited(w, before + n.forward + n.ask);
    fill_coefficients(w->rows);
    NEED(kg_rows_backward(w->rows, w->grads, true, err));
    n.backward = waited(w, before + n.forward + n.ask + n.load);
    return n;
}

/* The waits of the last of several micro-batches: in earlier ones, buffers grow. */
static struct waits waits_on(const struct kg_backend *be, const struct how *how)
{
    struct world w = open_world(be, how);
    struct waits n = {0};

    if (how->aux) { /* coefficients that balance the experts */
        for (int64_t e = 0; e < w.model->config.experts.n; e++)
            w.p_sum[e] = 0.01f * (float)e;
        NEED(kg_rows_balance(w.rows, w.p_sum, err));
    }
    for (int i = 0; i < BATCHES; i++)
        n = micro_batch(&w, i);
    NEED(kg_buf_settle(be, err));
    close_world(&w);
    return n;
}

#define DENSE  "tests/data/reference/qwen2"
#define ROUTED "tests/data/reference/qwen2_moe"
static const struct how plain = {"exact", DENSE, KG_F32, 0, true, true, false, 0};

static void log_probs_are_all_that_a_micro_batch_waits_for(void **state)
{
    static const struct how cases[] = {
        {"exact", DENSE, KG_F32, 0, true, true, false, 0},
        {"own", DENSE, KG_BF16, 0, true, true, false, 0},
        {"own", DENSE, KG_BF16, 2, true, true, false, 0},
        {"exact", ROUTED, KG_F32, 0, true, true, false, 0},
        {"exact", ROUTED, KG_F32, 0, true, true, true, 0},
        {"own", DENSE, KG_BF16, 0, true, true, false, 5},
        {"exact", ROUTED, KG_F32, 0, true, true, false, 5},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct waits n;

        setenv("KEDGE_TEST_PRODUCTS", cases[i].products, 1);
        n = waits_on(emu(), &cases[i]);
        if (n.forward != 0 || n.ask != 1 || n.load != 0 || n.backward != 0)
            fail_msg("case %zu: %llu, %llu, %llu and %llu waits, expected 0, 1, 0 and 0",
                     i, (unsigned long long)n.forward, (unsigned long long)n.ask,
                     (unsigned long long)n.load, (unsigned long long)n.backward);
    }
}

/* ---- bytes copied ---- */
/* Bytes of an array in a transfer: arrays are aligned to 256 bytes. */
static uint64_t piece(int64_t n, size_t each)
{
    return ((uint64_t)n * each + 255) / 256 * 256;
}

/* docs/gpu.md, "Training": N tokens of S sequences, R wanted rows of k ids, a temperature
 * that is not 1, entropy but no exact KL; with `same`, tables of J keys. */
static void must_move(int same)
{
    enum { S = N_SEQS, J = ROOM };
    const struct how how = {"exact", DENSE, KG_F32, 0, false, false, false, same};
    const int64_t N = ROOM - (S - 1) * same, R = S * (LENGTH - (same > 0 ? same : 1));
    const int64_t tables = same > 0 ? N + 2 * J : 0;
    const int64_t seq = sizeof(struct kg_attn_seq) / sizeof(int32_t);
    const int64_t ints = 3 * N + R + seq * S;
    const uint64_t pack = sizeof(int32_t) * (uint64_t)(ints + ints % 2 + tables);
    const uint64_t asked = 2 * piece(R, 4) + piece(R * K, 4);
    /* row indices; coefficients of log-prob, entropy and the ids */
    const uint64_t graded = piece(R, 4) + 2 * piece(R, 8) + piece(R * K, 8);
    const uint64_t answers = piece(R, 8) + 2 * piece(R, 4) + piece(R * K, 4);
    struct kg_traffic was, is;
    struct world w;

    setenv("KEDGE_TEST_PRODUCTS", how.products, 1);
    w = open_world(emu(), &how);
    micro_batch(&w, 0);
    was = kg_buf_traffic(emu());
    micro_batch(&w, 1);
    is = kg_buf_traffic(emu());
    assert_int_equal(is.up - was.up, pack + asked + graded);
    assert_int_equal(is.ups - was.ups, 3);
    assert_int_equal(is.down - was.down, answers);
    assert_int_equal(is.downs - was.downs, 1);
    NEED(kg_buf_settle(emu(), err));
    close_world(&w);
}

static void a_micro_batch_moves_what_is_said(void **state)
{
    (void)state;
    must_move(0);
    must_move(5);
}

/* ---- planted faults ---- */
static kg_status waits_first(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
                             struct kg_mat gate, struct kg_mat up, struct kg_err *e)
{
    KG_TRY(kg_buf_settle(emu(), e));
    return emu()->swiglu_bwd(dgate, dup, dh, gate, up, e);
}
static kg_status puts_at_once(void *to, const void *from, uint64_t bytes,
                              struct kg_err *e)
{
    return emu()->put(to, from, bytes, e);
}

static void an_operation_or_a_copy_that_waits_is_seen(void **state)
{
    struct kg_backend operation = *emu(), copy = *emu();
    struct how alone = {"exact", ROUTED, KG_F32, 0, true, false, true, 0};

    (void)state;
    operation.swiglu_bwd = waits_first;
    copy.put_later = puts_at_once;
    setenv("KEDGE_TEST_PRODUCTS", "exact", 1);
    assert_int_equal(waits_on(&operation, &plain).backward, 2); /* one per layer */
    assert_int_equal(waits_on(&copy, &plain).forward, 1);
    assert_int_equal(waits_on(emu(), &alone).load, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_probs_are_all_that_a_micro_batch_waits_for),
        cmocka_unit_test(a_micro_batch_moves_what_is_said),
        cmocka_unit_test(an_operation_or_a_copy_that_waits_is_seen),
    };

    return RUN_OPENING_EMULATION(tests);
}
