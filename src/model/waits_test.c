/* What the host waits for in a micro-batch on a device: once for its log-probs, of which
 * it makes the coefficients of the backward, and for nothing else (what is logged of
 * experts is fetched by train/expert_load.h, and is not in here). Counted on emulated
 * kernels, whose copies and marks are those of a device.
 */
#include "model/rows_testing.h"

#include "tensor/backend_testing.h"

#include <stdio.h>

enum { VOCAB = 24, K = 3, N_SEQS = 3, LENGTH = 12, ROOM = N_SEQS * LENGTH, BATCHES = 4 };

/* Of one micro-batch. */
struct waits {
    uint64_t forward, ask, backward;
};

struct world {
    struct kg_model *model, *anchor;
    struct kg_rows *rows;
    float *grads;
};

static const struct kg_backend *emu(void)
{
    const struct kg_backend *be = NULL;

    NEED(kg_backend_open(&be, "emu", err));
    return be;
}

/* rank 0: all weights are trained */
static struct kg_model *model_on(const struct kg_backend *be, enum kg_dtype ct, int rank)
{
    const struct kg_lora lora = {.rank = rank, .alpha = 2};
    const struct kg_model_opts opts = {
        .backend = be, .ct = ct, .trainable = true, .lora = rank > 0 ? &lora : NULL};
    struct kg_model *m = NULL;

    NEED(kg_model_open(&m, "tests/data/reference/qwen2", &opts, err));
    return m;
}

static struct world open_world(const struct kg_backend *be, enum kg_dtype ct, int rank)
{
    struct world w = {.model = model_on(be, ct, rank), .anchor = model_on(be, ct, 0)};
    const struct kg_rows_opts opts = {
        .max_tokens = ROOM, .max_k = K, .backward = true, .kl = true, .anchor = w.anchor};

    struct kg_err e;

    NEED(kg_rows_create(&w.rows, w.model, &opts, err));
    w.grads = kg_buf_alloc(be, (uint64_t)w.model->n_elements * sizeof *w.grads, "test",
                           &e);
    assert_non_null(w.grads);
    return w;
}

static void close_world(struct world *w)
{
    kg_buf_free(w->model->backend, w->grads);
    kg_rows_free(w->rows);
    kg_model_free(w->anchor);
    kg_model_free(w->model);
}

static void pack(struct world *w, int batch)
{
    kg_rows_begin(w->rows, w->model, K);
    for (int s = 0; s < N_SEQS; s++) {
        int32_t tokens[LENGTH];
        int64_t row;

        for (int t = 0; t < LENGTH; t++)
            tokens[t] = (5 * s + 7 * t + t * t + batch) % VOCAB;
        row = kg_rows_add(w->rows, tokens, LENGTH);
        for (int t = 1; t < LENGTH; t++) {
            const int32_t ids[K] = {(tokens[t] + 1) % VOCAB, tokens[t], -1};

            kg_rows_want(w->rows, row + t - 1, tokens[t], 0.9f, ids);
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
    const struct kg_rows_ask ask = {
        .entropy = true, .kl = KG_ROWS_KL_REVERSE, .anchor = w->anchor};
    const uint64_t before = waited(w, 0);
    struct waits n;

    pack(w, batch);
    NEED(kg_rows_forward(w->rows, true, err));
    n.forward = waited(w, before);
    NEED(kg_rows_ask(w->rows, &ask, err));
    n.ask = waited(w, before + n.forward);
    fill_coefficients(w->rows);
    NEED(kg_rows_backward(w->rows, w->grads, true, err));
    n.backward = waited(w, before + n.forward + n.ask);
    return n;
}

/* Of the last of some: before it room has grown. */
static struct waits waits_on(const struct kg_backend *be, enum kg_dtype ct, int rank)
{
    struct world w = open_world(be, ct, rank);
    struct waits n = {0};

    for (int i = 0; i < BATCHES; i++)
        n = micro_batch(&w, i);
    NEED(kg_buf_settle(be, err));
    close_world(&w);
    return n;
}

static void log_probs_are_all_that_a_micro_batch_waits_for(void **state)
{
    static const struct {
        const char *products;
        enum kg_dtype ct;
        int rank;
    } cases[] = {{"exact", KG_F32, 0}, {"own", KG_BF16, 0}, {"own", KG_BF16, 2}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct waits n;

        setenv("KEDGE_TEST_PRODUCTS", cases[i].products, 1);
        n = waits_on(emu(), cases[i].ct, cases[i].rank);
        if (n.forward != 0 || n.ask != 1 || n.backward != 0)
            fail_msg("case %zu: %llu, %llu and %llu waits, expected 0, 1 and 0", i,
                     (unsigned long long)n.forward, (unsigned long long)n.ask,
                     (unsigned long long)n.backward);
    }
}

/* ---- faults, planted ---- */
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

    (void)state;
    operation.swiglu_bwd = waits_first;
    copy.put_later = puts_at_once;
    setenv("KEDGE_TEST_PRODUCTS", "exact", 1);
    assert_int_equal(waits_on(&operation, KG_F32, 0).backward, 2); /* layers */
    assert_int_equal(waits_on(&copy, KG_F32, 0).forward, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_probs_are_all_that_a_micro_batch_waits_for),
        cmocka_unit_test(an_operation_or_a_copy_that_waits_is_seen),
    };

    return RUN_OPENING_EMULATION(tests);
}
