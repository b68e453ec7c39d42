/* From a loss to the weights: the gradient that backward computes in an fp32 model,
 * against finite differences of the model and the plain version of the loss, for every
 * surrogate and every KL estimator.
 *
 * Along a direction u of the weights the loss has the slope <g, u>. How the log-probs
 * change along u is measured once, over the whole vocabulary, by differences of the
 * forward. How the loss depends on log-probs comes from plain_testing.h, with everything
 * constant that a formula detaches. Their product must be the slope.
 */
#include "model/rows_testing.h"

#include "policy/plain_testing.h"
#include "policy/policy_testing.h"
#include "tensor/backend_testing.h"

enum {
    V = PLAIN_V,
    N_SEQS = 3,
    MOST = 16,
    ROOM = 48,
    DIRECTIONS = 5,
    TOP = 5,
    ROWS = 22
};

/* relative to the gradient's norm; a direction is standard normal in every weight */
static const double tolerance = 5e-4;

static const int lengths[N_SEQS] = {9, 12, 4};

static struct kg_model *model, *anchor;
static struct kg_rows *wanted;
static float *grads, *from;
static struct plain plain;
static struct kg_algo algo;
static double moved[DIRECTIONS][ROWS][V]; /* d(log-prob)/d(direction) */
static bool selected[PLAIN_N];

/* ---- numbers ---- */

static double noise(uint64_t i, uint32_t which)
{
    struct kg_rng_key key = {77, KG_RNG_TEST};
    float z[4];

    kg_rng_normal4(z, key, which, (uint32_t)(i >> 2), 0);
    return (double)z[i & 3];
}

static double direction(int64_t i, int d)
{
    return noise((uint64_t)i, 100 + (uint32_t)d);
}

/* Packs the sequences and asks for every token but the first, at every id. */
static void pack(struct kg_rows *p, const struct kg_model *m)
{
    int32_t every[V];

    for (int v = 0; v < V; v++)
        every[v] = v;
    kg_rows_begin(p, m, V);
    for (int s = 0; s < N_SEQS; s++) {
        int32_t tokens[MOST];
        int64_t row;

        for (int t = 0; t < lengths[s]; t++)
            tokens[t] = (5 * s + 7 * t + t * t) % V;
        row = kg_rows_add(p, tokens, (size_t)lengths[s]);
        for (int t = 1; t < lengths[s]; t++)
            kg_rows_want(p, row + t - 1, tokens[t], 0.8f, every);
    }
}

static void forward(enum kg_rows_kl kl)
{
    struct kg_rows_ask ask = {.entropy = true, .kl = kl, .anchor = anchor};

    pack(wanted, model);
    NEED(kg_rows_forward(wanted, true, err));
    NEED(kg_rows_ask(wanted, &ask, err));
    assert_int_equal(wanted->n_rows, ROWS);
}

/* ---- change of log-probs along a direction: fourth-order differences ---- */

static void add_difference(int d, double at, double factor)
{
    for (int64_t i = 0; i < model->n_elements; i++)
        model->master.data[i] = (float)(from[i] + at * direction(i, d));
    NEED(kg_model_refresh(model, err));
    forward(KG_ROWS_KL_NONE);
    for (int n = 0; n < ROWS; n++)
        for (int v = 0; v < V; v++)
            moved[d][n][v] += factor * (double)wanted->logp_at[n * V + v];
}

static void measure_directions(void)
{
    const double h = 6e-4;

    memcpy(from, model->master.data, (size_t)model->n_elements * sizeof *from);
    for (int d = 0; d < DIRECTIONS; d++) {
        add_difference(d, h, 8 / (12 * h));
        add_difference(d, -h, -8 / (12 * h));
        add_difference(d, 2 * h, -1 / (12 * h));
        add_difference(d, -2 * h, 1 / (12 * h));
    }
    memcpy(model->master.data, from, (size_t)model->n_elements * sizeof *from);
    NEED(kg_model_refresh(model, err));
}

/* ---- the batch: old policy and sampler near the model, and an anchor model ---- */

static void top_of(int *top, const double *lp)
{
    bool used[V] = {false};

    for (int j = 0; j < TOP; j++) {
        top[j] = -1;
        for (int v = 0; v < V; v++)
            if (!used[v] && (top[j] < 0 || lp[v] > lp[top[j]]))
                top[j] = v;
        used[top[j]] = true;
    }
}

static void near_policy(double *lp, int n, uint32_t which, double spread)
{
    double sum = 0;

    for (int v = 0; v < V; v++)
        lp[v] = plain.z[n][v] + spread * noise((uint64_t)(n * V + v), which);
    for (int v = 0; v < V; v++)
        sum += exp(lp[v]);
    for (int v = 0; v < V; v++)
        lp[v] -= log(sum);
}

static void make_batch(void)
{
    memset(&plain, 0, sizeof plain);
    plain.algo = &algo;
    plain.vocab = V;
    plain.n_seqs = N_SEQS;
    for (int s = 0; s < N_SEQS; s++) {
        plain.begin[s + 1] = plain.begin[s] + lengths[s] - 1;
        for (int n = plain.begin[s]; n < plain.begin[s + 1]; n++)
            plain.advantage[n] = s == 1 ? -0.8 : 0.9;
    }
    forward(KG_ROWS_KL_NONE);
    for (int n = 0; n < ROWS; n++) {
        for (int v = 0; v < V; v++)
            plain.z[n][v] = (double)wanted->logp_at[n * V + v];
        plain.y[n] = wanted->target[n];
        plain.is[n] = 1;
        near_policy(plain.lo[n], n, 1, 0.25);
        near_policy(plain.mu[n], n, 2, 0.25);
        top_of(plain.sampler_top[n], plain.mu[n]);
    }
}

/* The anchor's log-probs come from the same pack through the anchor. */
static void read_anchor(void)
{
    struct kg_rows_opts opts = {.max_tokens = ROOM, .max_k = V};
    struct kg_rows *p = NULL;

    NEED(kg_rows_create(&p, anchor, &opts, err));
    pack(p, anchor);
    NEED(kg_rows_forward(p, false, err));
    NEED(kg_rows_ask(p, NULL, err));
    for (int n = 0; n < ROWS; n++) {
        for (int v = 0; v < V; v++)
            plain.lq[n][v] = (double)p->logp_at[n * V + v];
        top_of(plain.anchor_top[n], plain.lq[n]);
    }
    kg_rows_free(p);
}

static int open_all(void **state)
{
    struct kg_rows_opts opts = {
        .max_tokens = ROOM, .max_k = V, .backward = true, .kl = true};

    (void)state;
    model = small_model(V, 1);
    anchor = small_model(V, 2);
    /* near the model, because clamps are not tested here */
    for (int64_t i = 0; i < model->n_elements; i++)
        anchor->master.data[i] = 0.8f * model->master.data[i] +
                                 0.2f * anchor->master.data[i];
    NEED(kg_model_refresh(anchor, err));
    opts.anchor = anchor;
    NEED(kg_rows_create(&wanted, model, &opts, err));
    grads = buffer_of(model->n_elements, sizeof *grads);
    from = must_alloc((size_t)model->n_elements, sizeof *from);
    kg_algo_init(&algo);
    make_batch();
    read_anchor();
    measure_directions();
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    kg_mem_free(from);
    buffer_free(grads);
    kg_rows_free(wanted);
    kg_model_free(anchor);
    kg_model_free(model);
    return 0;
}

/* ---- the loss as in a training step ---- */

static struct rows {
    int64_t begin[N_SEQS + 1];
    int32_t tokens[ROWS], ids[ROWS * 2 * TOP];
    uint8_t selected[ROWS];
    double logp[ROWS], old[ROWS], mu[ROWS], anchor[ROWS], exact[ROWS], entropy[ROWS];
    double at[ROWS * 2 * TOP], anchor_at[ROWS * 2 * TOP], mu_at[ROWS * 2 * TOP];
    double weight[ROWS], kl_weight[ROWS], entropy_weight[ROWS];
    double a[ROWS], a_at[ROWS * 2 * TOP], a_entropy[ROWS], a_exact[ROWS];
} rows;

static void read_row(int n)
{
    int y = plain.y[n];

    rows.tokens[n] = y;
    rows.logp[n] = wanted->logp[n];
    rows.entropy[n] = wanted->entropy[n];
    rows.exact[n] = wanted->kl[n];
    rows.old[n] = plain.lo[n][y], rows.mu[n] = plain.mu[n][y];
    rows.anchor[n] = plain.lq[n][y];
    rows.selected[n] = selected[n];
    for (int j = 0; j < 2 * TOP; j++) {
        int v = j < TOP ? plain.sampler_top[n][j] : plain.anchor_top[n][j - TOP];
        int at = n * 2 * TOP + j;

        rows.ids[at] = v;
        rows.at[at] = (double)wanted->logp_at[n * V + v];
        rows.anchor_at[at] = plain.lq[n][v];
        rows.mu_at[at] = plain.mu[n][v];
    }
}

static void write_row(int n)
{
    wanted->a_logp[n] = rows.a[n];
    wanted->a_entropy[n] = rows.a_entropy[n];
    wanted->a_kl[n] = rows.a_exact[n];
    memset(wanted->a_at + n * V, 0, V * sizeof *wanted->a_at);
    for (int j = 0; j < 2 * TOP; j++)
        wanted->a_at[n * V + rows.ids[n * 2 * TOP + j]] += rows.a_at[n * 2 * TOP + j];
}

static void policy(void)
{
    struct kg_policy_shape shape = {N_SEQS, rows.begin, NULL};
    struct kg_policy_weights w = {rows.weight, rows.kl_weight, rows.entropy_weight};
    struct kg_policy_batch b = {.n_seqs = N_SEQS,
                                .n_tokens = ROWS,
                                .seq_begin = rows.begin,
                                .tokens = rows.tokens,
                                .logp = rows.logp,
                                .old_logp = rows.old,
                                .mu_logp = rows.mu,
                                .anchor_logp = rows.anchor,
                                .advantage = plain.advantage,
                                .entropy = rows.entropy,
                                .kl_exact = rows.exact,
                                .k_sampler = TOP,
                                .k_anchor = TOP,
                                .ids = rows.ids,
                                .logp_at = rows.at,
                                .anchor_at = rows.anchor_at,
                                .mu_at = rows.mu_at,
                                .pg_weight = rows.weight,
                                .kl_weight = rows.kl_weight,
                                .entropy_weight = rows.entropy_weight,
                                .selected = rows.selected};
    struct kg_policy_grad g = {.a_logp = rows.a,
                               .a_at = rows.a_at,
                               .a_entropy = rows.a_entropy,
                               .a_kl_exact = rows.a_exact};

    for (int n = 0; n < ROWS; n++)
        read_row(n);
    for (int s = 0; s <= N_SEQS; s++)
        rows.begin[s] = plain.begin[s];
    NEED(kg_policy_weights(&w, &algo, &shape, err));
    NEED(kg_policy_loss(&g, &algo, &b, err));
    for (int n = 0; n < ROWS; n++)
        write_row(n);
}

/* ---- comparison ---- */

static void gradient(void)
{
    unsigned needs = kg_algo_needs(&algo);

    forward(needs & KG_NEED_EXACT_FORWARD ? KG_ROWS_KL_FORWARD : KG_ROWS_KL_REVERSE);
    policy();
    if (!(needs & (KG_NEED_EXACT_FORWARD | KG_NEED_EXACT_REVERSE)))
        memset(wanted->a_kl, 0, ROWS * sizeof *wanted->a_kl);
    memset(grads, 0, (size_t)model->n_elements * sizeof *grads);
    NEED(kg_rows_backward(wanted, grads, true, err));
}

static double expected_slope(int d, double dense[ROWS][V])
{
    double sum = 0;

    for (int n = 0; n < ROWS; n++)
        for (int v = 0; v < V; v++)
            sum += dense[n][v] * moved[d][n][v];
    return sum;
}

static double worst_of(const char *where)
{
    static double dense[ROWS][V];
    double worst = 0, norm = 0;

    gradient();
    for (int64_t i = 0; i < model->n_elements; i++)
        norm += (double)grads[i] * grads[i];
    norm = sqrt(norm);
    assert_true(norm > 1e-4);
    for (int s = 0; s < N_SEQS; s++)
        for (int n = plain.begin[s]; n < plain.begin[s + 1]; n++)
            for (int v = 0; v < V; v++)
                dense[n][v] = cimag(plain_loss(&plain, selected, s, n, v, 1e-20)) / 1e-20;
    for (int d = 0; d < DIRECTIONS; d++) {
        double slope = 0, want = expected_slope(d, dense);

        for (int64_t i = 0; i < model->n_elements; i++)
            slope += (double)grads[i] * direction(i, d);
        worst = fmax(worst, fabs(slope - want) / norm);
        if (!(fabs(slope - want) <= tolerance * norm))
            fail_msg("%s: slope %g, expected %g, of a gradient of norm %g", where, slope,
                     want, norm);
    }
    return worst;
}

static void choose(const char *surrogate, const char *kl, const char *aggregate)
{
    kg_algo_init(&algo);
    must_set(&algo, "algo.surrogate", surrogate);
    must_set(&algo, "kl.estimator", kl);
    must_set(&algo, "anchor.kind", "fixed");
    must_set(&algo, "algo.aggregate", aggregate);
    algo.clip_high = 0.28, algo.dual_clip = 3, algo.truncate = 1.5;
    algo.delta_low = algo.delta_high = 0.05;
    algo.kl_beta = 0.3, algo.kl_top_k = algo.top_k = TOP;
    algo.entropy_coef = 0.05, algo.length_norm = 16, algo.cov_coef = 0.5;
    for (int n = 0; n < ROWS; n++)
        selected[n] = kg_algo_scope(&algo) == KG_SCOPE_BATCH && n % 3 == 0;
}

static void every_surrogate_reaches_the_weights(void **state)
{
    double worst = 0;

    (void)state;
    for (size_t i = 0; i < kg_policy_n_rows(KG_TABLE_SURROGATE); i++) {
        const char *row = kg_policy_row(KG_TABLE_SURROGATE, i)->name;
        size_t m = i % kg_policy_n_rows(KG_TABLE_AGGREGATE);

        if (plain_is(row, "none"))
            continue; /* no term */
        choose(row, "none", kg_policy_row(KG_TABLE_AGGREGATE, m)->name);
        worst = fmax(worst, worst_of(row));
    }
    printf("    at most %.1e of the gradient's norm\n", worst);
}

static void every_kl_estimator_reaches_the_weights(void **state)
{
    double worst = 0;

    (void)state;
    for (size_t i = 0; i < kg_policy_n_rows(KG_TABLE_KL); i++) {
        const struct kg_policy_about *row = kg_policy_row(KG_TABLE_KL, i);

        if (strncmp(row->name, "reward-", 7) == 0)
            continue; /* refused as a loss */
        for (int published = 0; published < 2; published++) {
            choose("reinforce", row->name, "token-mean");
            algo.kl_corrected = !published;
            algo.kl_beta = 3; /* it outweighs the policy term */
            worst = fmax(worst, worst_of(row->name));
        }
    }
    printf("    at most %.1e of the gradient's norm\n", worst);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_surrogate_reaches_the_weights),
        cmocka_unit_test(every_kl_estimator_reaches_the_weights),
    };

    return RUN_SHOWN(tests, open_all, close_all);
}
