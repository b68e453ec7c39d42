/* libkedge through its public header alone: every call agrees with the plain formula,
 * numbers are read and written where the header says, and wrong input is refused by
 * name. */
#include "kedge.h"

#include "base/fpmode.h"
#include "base/mem.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 6, D = 8, V = 40, K = 3, S = 3 };

static struct kedge_err err;

static void must(int status)
{
    if (status != KEDGE_OK)
        fail_msg("%s", err.message);
}

static double noise(int i) { return sin(12.9898 * i + 4.1) * 1.3; }

/* ---- algorithms ---- */

static bool is_key(const char *key)
{
    for (size_t i = 0; kedge_key(i); i++)
        if (strcmp(kedge_key(i), key) == 0)
            return true;
    return false;
}

static void a_preset_is_its_values_and_keys_read_back(void **state)
{
    struct kedge_algo *algo;
    struct kedge_about about = {.size = sizeof about};
    const char *key, *value;
    char text[64];

    (void)state;
    for (size_t i = 0; kedge_preset(&about, i); i++) {
        must(kedge_algo_create(&algo, about.name, &err));
        for (size_t j = 0; kedge_preset_value(&key, &value, i, j); j++) {
            if (!is_key(key))
                continue;
            must(kedge_algo_get(algo, key, text, sizeof text, &err));
            assert_true(strcmp(text, value) == 0 || atof(text) == atof(value));
        }
        for (size_t j = 0; kedge_key(j); j++) {
            must(kedge_algo_get(algo, kedge_key(j), text, sizeof text, &err));
            must(kedge_algo_set(algo, kedge_key(j), text, &err));
        }
        kedge_algo_free(algo);
    }
    assert_true(strcmp(about.table, "method") == 0 || strcmp(about.table, "recipe") == 0);
}

/* Two of the presets need algo.length_norm from the user. */
static void every_preset_can_be_computed(void **state)
{
    struct kedge_about about = {.size = sizeof about};
    struct kedge_algo *algo;

    (void)state;
    for (size_t i = 0; kedge_preset(&about, i); i++) {
        must(kedge_algo_create(&algo, about.name, &err));
        if (kedge_algo_check(algo, NULL, &err) != KEDGE_OK) {
            assert_non_null(strstr(err.message, "algo.length_norm"));
            must(kedge_algo_set(algo, "algo.length_norm", "100", &err));
            must(kedge_algo_check(algo, NULL, &err));
        }
        kedge_algo_free(algo);
    }
}

static void rows_of_every_table_are_listed_and_accepted(void **state)
{
    struct kedge_about about = {.size = sizeof about};
    struct kedge_algo *algo;
    int tables = 0;
    const char *table = "";

    (void)state;
    must(kedge_algo_create(&algo, NULL, &err));
    for (size_t i = 0; kedge_row(&about, i); i++) {
        tables += strcmp(table, about.table) != 0;
        table = about.table;
        assert_true(about.help[0] != '\0');
        must(kedge_algo_set(algo, about.table, about.name, &err));
    }
    assert_true(tables >= 6);
    kedge_algo_free(algo);
}

static void refuses(int status, int code, const char *word)
{
    assert_int_equal(status, code);
    assert_int_equal(err.code, code);
    if (!strstr(err.message, word))
        fail_msg("expected '%s' in: %s", word, err.message);
}

static void unknown_names_and_what_cannot_be_computed_are_refused(void **state)
{
    struct kedge_setting setting = {.size = sizeof setting};
    struct kedge_algo *algo;
    char tiny[2];

    (void)state;
    refuses(kedge_algo_create(&algo, "grop", &err), KEDGE_ENOTFOUND, "ema-pg");
    must(kedge_algo_create(&algo, "ema-pg", &err));
    must(kedge_algo_check(algo, NULL, &err));
    refuses(kedge_algo_set(algo, "kl.betta", "1", &err), KEDGE_ENOTFOUND, "kl.beta");
    refuses(kedge_algo_set(algo, "kl.estimator", "k9", &err), KEDGE_ENOTFOUND, "k3++");
    refuses(kedge_algo_get(algo, "kl.estimator", tiny, sizeof tiny, &err), KEDGE_EINVAL,
            "room");
    refuses(kedge_algo_set(NULL, "kl.beta", "1", &err), KEDGE_EINVAL, "algo");
    assert_int_equal(kedge_algo_set(NULL, "kl.beta", "1", NULL), KEDGE_EINVAL);
    must(kedge_algo_set(algo, "anchor.kind", "none", &err));
    refuses(kedge_algo_check(algo, NULL, &err), KEDGE_EINVAL, "anchor.kind");
    must(kedge_algo_set(algo, "anchor.kind", "fixed", &err));
    must(kedge_algo_set(algo, "algo.advantage", "gae", &err));
    refuses(kedge_algo_check(algo, &setting, &err), KEDGE_EUNSUPPORTED, "critic");
    setting.provides = KEDGE_NEED_VALUES;
    must(kedge_algo_check(algo, &setting, &err));
    kedge_algo_free(algo);
}

/* Without recomputed log-probs the weight of TIS is always 1. The struct of an older
 * caller ends before the field that tells. */
static void tis_needs_recomputed_log_probs(void **state)
{
    struct kedge_setting setting = {.size = sizeof setting, .provides = ~0u};
    struct kedge_algo *algo;

    (void)state;
    must(kedge_algo_create(&algo, "tis", &err));
    must(kedge_algo_check(algo, &setting, &err));
    setting.sampled_old = 1;
    refuses(kedge_algo_check(algo, &setting, &err), KEDGE_EINVAL, "algo.tis");
    setting.size = offsetof(struct kedge_setting, sampled_old);
    must(kedge_algo_check(algo, &setting, &err));
    kedge_algo_free(algo);
}

static void needs_say_how_many_ids_a_row_has(void **state)
{
    struct kedge_needs needs = {.size = sizeof needs};
    struct kedge_algo *algo;

    (void)state;
    must(kedge_algo_create(&algo, "ema-pg", &err));
    must(kedge_algo_needs(&needs, algo, &err));
    assert_int_equal(needs.sampler_top_k, 32);
    assert_int_equal(needs.anchor_top_k, 0);
    assert_true(needs.needs & KEDGE_NEED_ANCHOR);
    assert_true(needs.needs & KEDGE_NEED_TOP_SAMPLER);
    must(kedge_algo_set(algo, "kl.estimator", "topk-forward", &err));
    must(kedge_algo_needs(&needs, algo, &err));
    assert_int_equal(needs.sampler_top_k, 0);
    assert_int_equal(needs.anchor_top_k, 32);
    kedge_algo_free(algo);
}

/* ---- versions ---- */

/* A caller's header may be newer than the library: its struct has one field more. */
static void structs_of_another_version_work_or_are_refused(void **state)
{
    struct {
        struct kedge_needs needs;
        long more;
    } later = {{sizeof later, 0, 0, 0, 0}, 0};
    struct kedge_needs earlier = {sizeof earlier, 0, 0, 77, 88};
    struct kedge_algo *algo;

    (void)state;
    must(kedge_algo_create(&algo, "ema-pg", &err));
    must(kedge_algo_needs(&later.needs, algo, &err));
    assert_int_equal(later.needs.sampler_top_k, 32);
    later.more = 1;
    refuses(kedge_algo_needs(&later.needs, algo, &err), KEDGE_EINVAL, "does not know");
    earlier.size = offsetof(struct kedge_needs, sampler_top_k);
    must(kedge_algo_needs(&earlier, algo, &err));
    assert_int_equal(earlier.sampler_top_k, 77);
    assert_int_equal(earlier.anchor_top_k, 88);
    earlier.size = 0;
    refuses(kedge_algo_needs(&earlier, algo, &err), KEDGE_EINVAL, "sizeof");
    kedge_algo_free(algo);
}

/* ---- advantages and weights ---- */

/* gdpo divides each reward by its own deviation in the group, which differs from dividing
 * the sum. */
static void several_rewards_are_taken_one_by_one(void **state)
{
    double reward[4], seq[4], token[4], sum[4], squares = 0;
    const double part[8] = {1, 0, 0, 3, 1, 3, 0, 3}, weight[2] = {1, 0.5};
    int64_t group_begin[2] = {0, 4}, seq_begin[5] = {0, 1, 2, 3, 4};
    struct kedge_scores scores = {.size = sizeof scores};
    struct kedge_advantage out = {.size = sizeof out};
    struct kedge_needs needs = {.size = sizeof needs};
    struct kedge_algo *algo;

    (void)state;
    for (int i = 0; i < 4; i++)
        reward[i] = part[2 * i] + 0.5 * part[2 * i + 1];
    scores.n_seqs = 4, scores.n_groups = 1, scores.reward = reward;
    scores.group_begin = group_begin, scores.seq_begin = seq_begin;
    out.seq = seq, out.token = token;
    must(kedge_algo_create(&algo, "gdpo", &err));
    must(kedge_algo_set(algo, "algo.advantage", "gdpo", &err));
    must(kedge_algo_set(algo, "algo.std_eps", "1e-12", &err));
    must(kedge_algo_needs(&needs, algo, &err));
    assert_true(needs.needs & KEDGE_NEED_PARTS);
    refuses(kedge_advantages(&out, algo, &scores, &err), KEDGE_EINVAL, "several rewards");
    scores.part = part, scores.part_weight = weight, scores.n_parts = 2;
    must(kedge_advantages(&out, algo, &scores, &err));
    /* Parts (1,0,1,0) and (0,3,3,3): centred they are +-1/2, and -9/4 and 3/4; their
     * deviations (n - 1) are 1/sqrt(3) and 3/2. The weighted sum is divided by its own
     * deviation. */
    for (int i = 0; i < 4; i++) {
        sum[i] = (part[2 * i] - 0.5) * sqrt(3) + 0.5 * (part[2 * i + 1] - 2.25) / 1.5;
        squares += sum[i] * sum[i];
    }
    for (int i = 0; i < 4; i++) {
        assert_true(fabs(seq[i] - sum[i] / sqrt(squares / 3)) < 1e-10);
        assert_true(token[i] == seq[i]);
    }
    scores.n_parts = 0;
    refuses(kedge_advantages(&out, algo, &scores, &err), KEDGE_EINVAL, "scores.n_parts");
    scores.n_parts = 2, scores.part_weight = NULL;
    refuses(kedge_advantages(&out, algo, &scores, &err), KEDGE_EINVAL,
            "scores.part_weight");
    scores.part_weight = weight;
    must(kedge_algo_set(algo, "algo.advantage", "grpo", &err));
    refuses(kedge_advantages(&out, algo, &scores, &err), KEDGE_EINVAL,
            "expected none for algo.advantage grpo");
    kedge_algo_free(algo);
}

/* Rewards 1, 0, 0 and one without a verdict, whose number must not matter. The struct of
 * an older caller ends before `drop`. */
static void an_answer_without_a_verdict_is_left_out(void **state)
{
    double reward[4] = {1, 0, 0, NAN}, seq[4];
    const unsigned char drop[4] = {0, 0, 0, 2};
    int64_t group_begin[2] = {0, 4}, seq_begin[5] = {0, 1, 2, 3, 4};
    struct kedge_scores scores = {.size = sizeof scores};
    struct kedge_advantage out = {.size = sizeof out, .seq = seq};
    struct kedge_algo *algo;

    (void)state;
    scores.n_seqs = 4, scores.n_groups = 1, scores.reward = reward;
    scores.group_begin = group_begin, scores.seq_begin = seq_begin;
    must(kedge_algo_create(&algo, "dr-grpo", &err));
    must(kedge_algo_set(algo, "algo.length_norm", "8", &err));
    refuses(kedge_advantages(&out, algo, &scores, &err), KEDGE_ENONFINITE,
            "trajectory 3");
    scores.drop = drop;
    must(kedge_advantages(&out, algo, &scores, &err));
    assert_true(fabs(seq[0] - 2 / 3.0) < 1e-15 && fabs(seq[1] + 1 / 3.0) < 1e-15);
    assert_true(seq[2] == seq[1] && seq[3] == 0 && out.groups_equal == 0);
    assert_true(fabs(out.mean) < 1e-15 && out.max == seq[0]);
    scores.size = offsetof(struct kedge_scores, drop);
    reward[3] = 1;
    must(kedge_advantages(&out, algo, &scores, &err));
    assert_true(seq[3] == 0.5);
    kedge_algo_free(algo);
}

static void advantages_are_group_relative(void **state)
{
    double reward[4] = {1, 0, 5, 5}, seq[4], token[6];
    int64_t group_begin[3] = {0, 2, 4}, seq_begin[5] = {0, 1, 3, 4, 6};
    struct kedge_scores scores = {.size = sizeof scores};
    struct kedge_advantage out = {.size = sizeof out};
    struct kedge_algo *algo;

    (void)state;
    scores.n_seqs = 4, scores.n_groups = 2;
    scores.reward = reward;
    scores.group_begin = group_begin;
    scores.seq_begin = seq_begin;
    out.seq = seq, out.token = token;
    must(kedge_algo_create(&algo, "dr-grpo", &err));
    must(kedge_algo_set(algo, "algo.length_norm", "8", &err));
    must(kedge_advantages(&out, algo, &scores, &err));
    assert_true(seq[0] == 0.5 && seq[1] == -0.5 && seq[2] == 0 && token[2] == -0.5);
    assert_int_equal(out.groups_equal, 1);
    group_begin[2] = 3;
    refuses(kedge_advantages(&out, algo, &scores, &err), KEDGE_EINVAL, "group_begin[2]");
    kedge_algo_free(algo);
}

/* A_t = delta_t + gamma lambda A_{t+1} for one completion of three tokens with its reward
 * at the last. */
static void gae_is_there_for_who_has_a_critic(void **state)
{
    double reward = 1, value[3] = {0.2, 0.4, 0.1}, token[3], returns[3], plain[3];
    int64_t group_begin[2] = {0, 1}, seq_begin[2] = {0, 3};
    struct kedge_scores scores = {.size = sizeof scores};
    struct kedge_advantage out = {.size = sizeof out};
    struct kedge_algo *algo;
    double mean, std;

    (void)state;
    scores.n_seqs = scores.n_groups = 1;
    scores.reward = &reward, scores.value = value;
    scores.group_begin = group_begin, scores.seq_begin = seq_begin;
    out.token = token, out.returns = returns;
    must(kedge_algo_create(&algo, NULL, &err));
    must(kedge_algo_set(algo, "algo.advantage", "gae", &err));
    must(kedge_algo_set(algo, "algo.gamma", "0.9", &err));
    must(kedge_algo_set(algo, "algo.lambda", "0.8", &err));
    must(kedge_advantages(&out, algo, &scores, &err));
    plain[2] = 1 - 0.1;
    plain[1] = 0.9 * 0.1 - 0.4 + 0.72 * plain[2];
    plain[0] = 0.9 * 0.4 - 0.2 + 0.72 * plain[1];
    mean = (plain[0] + plain[1] + plain[2]) / 3;
    std = 0;
    for (int t = 0; t < 3; t++) {
        assert_true(fabs(returns[t] - plain[t] - value[t]) < 1e-12);
        std += (plain[t] - mean) * (plain[t] - mean) / 2;
    }
    for (int t = 0; t < 3; t++) /* whitened over the batch, as published */
        assert_true(fabs(token[t] - (plain[t] - mean) / sqrt(std + 1e-8)) < 1e-9);
    kedge_algo_free(algo);
}

static void weights_sum_to_one(void **state)
{
    static const char *const modes[] = {"token-mean", "seq-mean-token-mean"};
    int64_t seq_begin[4] = {0, 1, 3, 6};
    unsigned char drop[3] = {0, 1, 0};
    double pg[6], kl[6], sum_pg, sum_kl;
    struct kedge_weights w = {sizeof w, pg, kl, NULL};
    struct kedge_algo *algo;

    (void)state;
    must(kedge_algo_create(&algo, NULL, &err));
    for (int m = 0; m < 2; m++) {
        must(kedge_algo_set(algo, "algo.aggregate", modes[m], &err));
        must(kedge_weights(&w, algo, 3, seq_begin, drop, &err));
        sum_pg = sum_kl = 0;
        for (int n = 0; n < 6; n++)
            sum_pg += pg[n], sum_kl += kl[n];
        assert_true(fabs(sum_pg - 1) < 1e-12 && fabs(sum_kl - 1) < 1e-12);
        assert_true(pg[1] == 0 && kl[1] > 0);
    }
    seq_begin[2] = 0;
    refuses(kedge_weights(&w, algo, 3, seq_begin, drop, &err), KEDGE_EINVAL,
            "seq_begin[2]");
    kedge_algo_free(algo);
}

/* ---- the head ---- */

struct world {
    float hidden[N * D], weight[V * D], anchor_hidden[N * D], anchor_weight[V * D];
    int32_t tokens[N], ids[N * K];
    double inv_temp[N];
    struct kedge_head head;
};

static void world_init(struct world *w)
{
    *w = (struct world){.head = {.size = sizeof w->head}};
    for (int i = 0; i < N * D; i++) {
        w->hidden[i] = (float)noise(i);
        w->anchor_hidden[i] = (float)noise(i + 1000);
    }
    for (int i = 0; i < V * D; i++) {
        w->weight[i] = (float)noise(i + 2000);
        w->anchor_weight[i] = (float)noise(i + 3000);
    }
    for (int n = 0; n < N; n++) {
        w->tokens[n] = (n * 17) % V;
        w->inv_temp[n] = 1 + 0.1 * n;
        for (int j = 0; j < K; j++)
            w->ids[n * K + j] = j == 0 ? w->tokens[n] : (n * 5 + j * 11 + 1) % V;
    }
    w->head.n_rows = N, w->head.width = D, w->head.vocab = V;
    w->head.hidden = w->hidden, w->head.weight = w->weight;
    w->head.inv_temp = w->inv_temp;
    w->head.tokens = w->tokens;
    w->head.k = K, w->head.ids = w->ids;
    w->head.top_k = 2;
    w->head.anchor_hidden = w->anchor_hidden, w->head.anchor_weight = w->anchor_weight;
}

struct stats {
    double lse[N], logp[N], at[N * K], entropy[N], top[2 * N], reverse[N], forward[N];
    double anchor_lse[N];
    int32_t top_ids[2 * N];
};

static struct kedge_head_rows rows_into(struct stats *s)
{
    struct kedge_head_rows rows = {.size = sizeof rows};

    rows.lse = s->lse, rows.logp = s->logp, rows.logp_at = s->at;
    rows.entropy = s->entropy, rows.top_ids = s->top_ids, rows.top_logp = s->top;
    rows.kl_reverse = s->reverse, rows.kl_forward = s->forward;
    rows.anchor_lse = s->anchor_lse;
    return rows;
}

/* logp (V) of one row by plain softmax */
static void plain_softmax(double *lp, const float *hidden, const float *weight, double t)
{
    double sum = 0;

    for (int v = 0; v < V; v++) {
        lp[v] = 0;
        for (int d = 0; d < D; d++)
            lp[v] += (double)hidden[d] * (double)weight[v * D + d] * t;
        sum += exp(lp[v]);
    }
    for (int v = 0; v < V; v++)
        lp[v] -= log(sum);
}

static void close_to(double got, double want)
{
    if (!(fabs(got - want) < 2e-5 * (1 + fabs(want))))
        fail_msg("expected %.9g, found %.9g", want, got);
}

static void the_head_agrees_with_a_plain_softmax(void **state)
{
    struct world w;
    struct stats s;
    struct kedge_head_rows rows = rows_into(&s);
    double p[V], q[V];

    (void)state;
    world_init(&w);
    must(kedge_head(&rows, &w.head, &err));
    for (int n = 0; n < N; n++) {
        double h = 0, reverse = 0, forward = 0;
        int best = 0;

        plain_softmax(p, w.hidden + n * D, w.weight, w.inv_temp[n]);
        plain_softmax(q, w.anchor_hidden + n * D, w.anchor_weight, w.inv_temp[n]);
        for (int v = 0; v < V; v++) {
            h -= exp(p[v]) * p[v];
            reverse += exp(p[v]) * (p[v] - q[v]);
            forward += exp(q[v]) * (q[v] - p[v]);
            best = p[v] > p[best] ? v : best;
        }
        close_to(s.logp[n], p[w.tokens[n]]);
        close_to(s.at[n * K + 2], p[w.ids[n * K + 2]]);
        close_to(s.entropy[n], h);
        close_to(s.reverse[n], reverse);
        close_to(s.forward[n], forward);
        assert_int_equal(s.top_ids[2 * n], best);
        close_to(s.top[2 * n], p[best]);
    }
}

/* A loss of every result of a row, f = sum_n c.rows[n]: its central differences in fp32
 * must equal the backward. */
static double everything(const struct world *w, struct stats *s)
{
    struct kedge_head_rows rows = rows_into(s);
    double f = 0;

    must(kedge_head(&rows, &w->head, &err));
    for (int n = 0; n < N; n++) {
        f += 0.7 * s->logp[n] + 0.3 * s->entropy[n] + 0.2 * s->reverse[n];
        f -= 0.4 * s->forward[n] - 0.5 * s->at[n * K + 1];
    }
    return f;
}

static double slope(struct world *w, float *x)
{
    const float step = 1e-2f, keep = *x;
    struct stats s;
    double up, down;

    *x = keep + step;
    up = everything(w, &s);
    *x = keep - step;
    down = everything(w, &s);
    *x = keep;
    return (up - down) / (2 * (double)step);
}

static void the_backward_is_the_derivative_of_the_forward(void **state)
{
    static float dhidden[N * D], dweight[V * D];
    double a[5][N], a_at[N * K] = {0};
    struct kedge_head_grad g = {.size = sizeof g};
    struct world w;
    struct stats s;

    (void)state;
    world_init(&w);
    everything(&w, &s);
    for (int n = 0; n < N; n++) {
        a[0][n] = 0.7, a[1][n] = 0.3, a[2][n] = 0.2, a[3][n] = -0.4;
        a_at[n * K + 1] = 0.5;
    }
    memset(dweight, 0, sizeof dweight);
    g.lse = s.lse, g.a_logp = a[0], g.a_at = a_at;
    g.a_entropy = a[1], g.entropy = s.entropy;
    g.a_kl_reverse = a[2], g.kl_reverse = s.reverse;
    g.a_kl_forward = a[3], g.anchor_lse = s.anchor_lse;
    g.dhidden = dhidden, g.dweight = dweight;
    must(kedge_head_backward(&g, &w.head, &err));
    for (int i = 0; i < N * D; i += 5)
        assert_true(fabs(slope(&w, &w.hidden[i]) - (double)dhidden[i]) < 4e-3);
    for (int i = 0; i < V * D; i += 37)
        assert_true(fabs(slope(&w, &w.weight[i]) - (double)dweight[i]) < 4e-3);
    g.entropy = NULL;
    refuses(kedge_head_backward(&g, &w.head, &err), KEDGE_EINVAL, "forward");
}

/* A program linked with -ffast-math starts its threads with denormals flushed; another
 * one may truncate instead of rounding. */
static void the_mode_of_the_caller_changes_no_bit(void **state)
{
    static const unsigned modes[] = {KG_FP_FLUSH, KG_FP_CUT | KG_FP_FLUSH};
    unsigned before = kg_fp_mode();
    struct world w;
    struct stats want = {0}, got = {0};

    (void)state;
    world_init(&w);
    kedge_set_threads(3);
    everything(&w, &want);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        struct kedge_head_rows rows = rows_into(&got);
#pragma omp parallel num_threads(3)
        kg_fp_set_mode(modes[i]);
        int status = kedge_head(&rows, &w.head, &err);
        unsigned after = kg_fp_mode();
#pragma omp parallel num_threads(3)
        kg_fp_set_mode(before);
        must(status);
        assert_int_equal(after & ~(unsigned)KG_FP_FLAGS, modes[i]);
        assert_memory_equal(&got, &want, sizeof got);
    }
    kedge_set_threads(0);
}

static void the_head_refuses_what_does_not_fit(void **state)
{
    struct world w;
    struct stats s;
    struct kedge_head_rows rows = rows_into(&s);

    (void)state;
    world_init(&w);
    w.head.dtype = 7;
    refuses(kedge_head(&rows, &w.head, &err), KEDGE_EDTYPE, "KEDGE_BF16");
    w.head.dtype = KEDGE_F32;
    w.head.anchor_weight = NULL;
    refuses(kedge_head(&rows, &w.head, &err), KEDGE_EINVAL, "anchor_hidden");
    w.head.anchor_hidden = NULL;
    refuses(kedge_head(&rows, &w.head, &err), KEDGE_EINVAL, "anchor");
    rows.kl_reverse = rows.kl_forward = rows.anchor_lse = NULL;
    must(kedge_head(&rows, &w.head, &err));
    w.tokens[2] = V;
    refuses(kedge_head(&rows, &w.head, &err), KEDGE_EINVAL, "target");
    w.head.tokens = NULL;
    refuses(kedge_head(&rows, &w.head, &err), KEDGE_EINVAL, "tokens");
    w.head.vocab = 0;
    refuses(kedge_head(&rows, &w.head, &err), KEDGE_ESHAPE, "vocab");
}

static void threads_change_no_bit(void **state)
{
    struct world w;
    struct stats one, two;
    struct kedge_head_rows rows = rows_into(&one);

    (void)state;
    world_init(&w);
    kedge_set_threads(1);
    assert_int_equal(kedge_get_threads(), 1);
    must(kedge_head(&rows, &w.head, &err));
    kedge_set_threads(2);
    rows = rows_into(&two);
    must(kedge_head(&rows, &w.head, &err));
    kedge_set_threads(0);
    assert_memory_equal(&one, &two, sizeof one);
}

/* A thread with its own data; it stops at the first status that is not OK. */
struct caller {
    struct world world;
    struct stats stats;
    int status;
};

static void *call_often(void *self)
{
    struct caller *c = self;
    struct kedge_head_rows rows = rows_into(&c->stats);

    for (int i = 0; i < 20 && c->status == KEDGE_OK; i++)
        c->status = kedge_head(&rows, &c->world.head, NULL);
    return NULL;
}

static void callers_at_the_same_time_change_no_bit(void **state)
{
    struct caller callers[3] = {0};
    pthread_t threads[2];

    (void)state;
    for (int i = 0; i < 3; i++)
        world_init(&callers[i].world);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, &callers[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    call_often(&callers[2]);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(callers[i].status, KEDGE_OK);
        assert_memory_equal(&callers[i].stats, &callers[2].stats, sizeof(struct stats));
    }
}

/* ---- the loss ---- */

struct batch {
    double logp[N], old[N], anchor[N], advantage[N], entropy[N];
    int64_t begin[S + 1];
    double a_logp[N], a_entropy[N];
    struct kedge_rows rows;
    struct kedge_grad grad;
};

static void batch_init(struct batch *b)
{
    *b = (struct batch){.begin = {0, 1, 3, N}};
    for (int n = 0; n < N; n++) {
        b->old[n] = -1 - 0.2 * n;
        b->logp[n] = b->old[n] + 0.05 * noise(n);
        b->anchor[n] = b->old[n] + 0.2 * noise(n + 9);
        b->advantage[n] = n < 1 ? 1 : n < 3 ? -1 : 0.5;
        b->entropy[n] = 1 + 0.1 * n;
    }
    b->rows.size = sizeof b->rows;
    b->rows.n_seqs = S, b->rows.n_tokens = N, b->rows.seq_begin = b->begin;
    b->rows.logp = b->logp, b->rows.old_logp = b->old, b->rows.anchor_logp = b->anchor;
    b->rows.advantage = b->advantage, b->rows.entropy = b->entropy;
    b->grad.size = sizeof b->grad;
    b->grad.a_logp = b->a_logp, b->grad.a_entropy = b->a_entropy;
}

static struct kedge_algo *grpo_with_entropy(void)
{
    struct kedge_algo *algo;

    must(kedge_algo_create(&algo, "grpo", &err));
    must(kedge_algo_set(algo, "kl.beta", "0.1", &err));
    must(kedge_algo_set(algo, "algo.entropy_coef", "0.01", &err));
    return algo;
}

/* mean_i mean_t [ -min(r A, clip(r) A) + beta k3 ] - c mean H; no ratio is clipped
 * here */
static void grpo_is_the_formula_of_the_paper(void **state)
{
    struct kedge_algo *algo = grpo_with_entropy();
    struct batch b;
    double loss = 0;

    (void)state;
    batch_init(&b);
    must(kedge_loss(&b.grad, algo, &b.rows, &err));
    for (int n = 0; n < N; n++) {
        double w = 1.0 / 3 / (n < 1 ? 1 : n < 3 ? 2 : 3);
        double r = exp(b.logp[n] - b.old[n]), d = b.anchor[n] - b.logp[n];

        loss += w * (-r * b.advantage[n] + 0.1 * (exp(d) - d - 1) - 0.01 * b.entropy[n]);
        assert_true(fabs(b.a_logp[n] - w * (-r * b.advantage[n] + 0.1 * (1 - exp(d)))) <
                    1e-12);
        assert_true(fabs(b.a_entropy[n] + 0.01 * w) < 1e-15);
    }
    assert_true(fabs(b.grad.loss - loss) < 1e-12);
    assert_int_equal(b.grad.any, 1);
    kedge_algo_free(algo);
}

static double metric(const struct kedge_metrics *m, const struct kedge_algo *algo,
                     const char *name)
{
    const char *found;
    double value;

    for (size_t i = 0; kedge_metric(&found, &value, m, algo, i); i++)
        if (strcmp(found, name) == 0)
            return value;
    fail_msg("no metric %s", name);
    return 0;
}

/* With weights of the whole batch, sequences that are passed one by one add up to the
 * same sums and metrics. */
static void micro_batches_add_up(void **state)
{
    struct kedge_algo *algo = grpo_with_entropy();
    double weight[N], a_whole[N], loss = 0, gap;
    struct kedge_weights w = {sizeof w, weight, NULL, NULL};
    struct kedge_metrics *whole, *parts;
    struct batch b;
    double whole_loss;

    (void)state;
    batch_init(&b);
    must(kedge_metrics_create(&whole, &err));
    must(kedge_metrics_create(&parts, &err));
    b.grad.metrics = whole;
    must(kedge_loss(&b.grad, algo, &b.rows, &err));
    whole_loss = b.grad.loss;
    memcpy(a_whole, b.a_logp, sizeof a_whole);
    must(kedge_weights(&w, algo, S, b.begin, NULL, &err));
    b.grad.metrics = parts;
    for (int i = 0; i < S; i++) {
        int64_t at = b.begin[i], part[2] = {0, b.begin[i + 1] - at};
        struct kedge_rows r = b.rows;

        r.n_seqs = 1, r.n_tokens = part[1], r.seq_begin = part;
        r.logp += at, r.old_logp += at, r.anchor_logp += at, r.advantage += at;
        r.entropy += at;
        r.pg_weight = r.kl_weight = r.entropy_weight = weight + at;
        b.grad.a_logp = b.a_logp + at;
        must(kedge_loss(&b.grad, algo, &r, &err));
        loss += b.grad.loss;
    }
    assert_true(fabs(loss - whole_loss) < 1e-14);
    assert_memory_equal(a_whole, b.a_logp, sizeof a_whole);
    gap = metric(whole, algo, "policy/ratio_max") -
          metric(parts, algo, "policy/ratio_max");
    assert_true(gap == 0);
    kedge_metrics_clear(parts);
    kedge_metrics_free(parts);
    kedge_metrics_free(whole);
    kedge_algo_free(algo);
}

static void rows_of_batch_scope_select_by_themselves_or_by_hand(void **state)
{
    struct kedge_algo *algo;
    unsigned char selected[N];
    double by_itself, weight[N];
    struct kedge_weights w = {sizeof w, weight, NULL, NULL};
    struct batch b;

    (void)state;
    batch_init(&b);
    must(kedge_algo_create(&algo, NULL, &err));
    must(kedge_algo_set(algo, "algo.surrogate", "kl-cov", &err));
    must(kedge_loss(&b.grad, algo, &b.rows, &err));
    by_itself = b.grad.loss;
    must(kedge_weights(&w, algo, S, b.begin, NULL, &err));
    b.rows.pg_weight = weight;
    refuses(kedge_loss(&b.grad, algo, &b.rows, &err), KEDGE_EINVAL, "selected");
    must(kedge_select(selected, algo, &b.rows, &err));
    b.rows.selected = selected;
    must(kedge_loss(&b.grad, algo, &b.rows, &err));
    assert_true(b.grad.loss == by_itself);
    kedge_algo_free(algo);
}

static void scores_are_held_to_a_size(void **state)
{
    double reward[4] = {1e308, -1e308, 1e308, 0}, seq[4];
    int64_t begin[5] = {0, 1, 2, 3, 4}, group[2] = {0, 4};
    struct kedge_scores scores = {.size = sizeof scores,
                                  .n_seqs = 4,
                                  .n_groups = 1,
                                  .reward = reward,
                                  .seq_begin = begin,
                                  .group_begin = group};
    struct kedge_advantage out = {.size = sizeof out, .seq = seq};
    struct kedge_algo *algo;

    (void)state;
    must(kedge_algo_create(&algo, "grpo", &err));
    refuses(kedge_advantages(&out, algo, &scores, &err), KEDGE_EINVAL,
            "scores.reward[0]: expected at most 1e+09 in size, found 1e+308");
    kedge_algo_free(algo);
}

static void the_loss_refuses_what_is_absent_or_not_finite(void **state)
{
    struct kedge_algo *algo = grpo_with_entropy();
    struct batch b;

    (void)state;
    batch_init(&b);
    b.rows.anchor_logp = NULL;
    refuses(kedge_loss(&b.grad, algo, &b.rows, &err), KEDGE_EINVAL, "anchor_logp");
    batch_init(&b);
    b.logp[4] = NAN;
    refuses(kedge_loss(&b.grad, algo, &b.rows, &err), KEDGE_ENONFINITE,
            "sequence 2, loss token 1");
    batch_init(&b);
    b.logp[4] = 1e308;
    refuses(kedge_loss(&b.grad, algo, &b.rows, &err), KEDGE_EINVAL,
            "rows.logp[4]: expected a log-prob of at most 0, found 1e+308");
    batch_init(&b);
    b.begin[S] = N + 1;
    refuses(kedge_loss(&b.grad, algo, &b.rows, &err), KEDGE_EINVAL, "seq_begin[3]");
    batch_init(&b);
    must(kedge_algo_set(algo, "algo.clip_low", "-1", &err));
    refuses(kedge_loss(&b.grad, algo, &b.rows, &err), KEDGE_EINVAL, "algo.clip_low");
    kedge_algo_free(algo);
}

/* ---- around the loss ---- */

static void what_stands_around_the_loss(void **state)
{
    double reward[3] = {0, 0, 1}, old[3] = {-1, -2, -3}, anchor[3] = {-1.5, -2, -2}, mean;
    double off[3] = {0, 0, 0}, above[3] = {-1, 1e308, -2}, most;
    int64_t begin[2] = {0, 3};
    float a[2] = {1, 2}, theta[2] = {3, 2};
    struct kedge_algo *algo;
    double dv;
    int clipped;

    (void)state;
    must(kedge_algo_create(&algo, NULL, &err));
    must(kedge_algo_set(algo, "kl.estimator", "k1", &err));
    must(kedge_algo_set(algo, "kl.beta", "0.5", &err));
    must(kedge_algo_set(algo, "anchor.kind", "ema", &err));
    must(kedge_kl_reward(reward, &mean, algo, 1, begin, old, anchor, &err));
    assert_true(reward[0] == -0.25 && reward[1] == 0 && reward[2] == 1.5);
    assert_true(fabs(mean + 0.5 / 3) < 1e-15);
    refuses(kedge_kl_reward(reward, &mean, algo, 1, begin, old, above, &err),
            KEDGE_EINVAL,
            "anchor_logp[1]: expected a log-prob of at most 0, found 1e+308");
    refuses(kedge_kl_advantage(reward, &mean, NULL, algo, 1, begin, old, anchor, &err),
            KEDGE_EINVAL, "kl.in: expected advantage or advantage-future, found loss");
    must(kedge_algo_set(algo, "kl.in", "advantage-future", &err));
    must(kedge_kl_advantage(off, &mean, &most, algo, 1, begin, old, anchor, &err));
    assert_true(off[0] == 0.25 && off[1] == 0.5 && off[2] == 0.5 && most == 0);
    assert_true(fabs(mean + 0.5 / 3) < 1e-15);
    must(kedge_algo_set(algo, "kl.in", "advantage", &err));
    must(kedge_kl_advantage(off, NULL, NULL, algo, 1, begin, old, anchor, &err));
    assert_true(off[0] == 0 && off[1] == 0.5 && off[2] == 1);
    assert_true(kedge_overlong(95, 100, 10, 2) == -1);
    assert_true(kedge_adaptive_kl(0.1, 0.4, 0.2, 100, 10) == 0.1 * (1 + 0.2 * 0.1));
    assert_int_equal(kedge_anchor_due(algo, 10), 1);
    assert_int_equal(kedge_anchor_due(algo, 11), 0);
    must(kedge_ema(a, theta, 2, 0.5, &err));
    assert_true(a[0] == 2 && a[1] == 2);
    refuses(kedge_ema(a, theta, 2, 1.5, &err), KEDGE_EINVAL, "eta");
    assert_true(kedge_value_loss(&dv, &clipped, 1, 0, 0.1, 0.5) == 0.5 * 0.9 * 0.9);
    assert_true(clipped == 0 && dv == 0.9);
    assert_true(kedge_value_loss(NULL, NULL, 1, 0, 2, 0.5) == 0.5 * 1.5 * 1.5);
    kedge_algo_free(algo);
}

/* ---- memory ---- */

static int everything_once(void)
{
    double weight[N];
    struct kedge_weights w = {sizeof w, weight, NULL, NULL};
    struct kedge_algo *algo = NULL;
    struct kedge_metrics *metrics = NULL;
    struct batch b;
    struct world world;
    struct stats s;
    struct kedge_head_rows rows = rows_into(&s);
    int status = kedge_algo_create(&algo, "grpo", &err);

    batch_init(&b);
    world_init(&world);
    if (status == KEDGE_OK)
        status = kedge_metrics_create(&metrics, &err);
    b.grad.metrics = metrics;
    if (status == KEDGE_OK)
        status = kedge_weights(&w, algo, S, b.begin, NULL, &err);
    if (status == KEDGE_OK)
        status = kedge_loss(&b.grad, algo, &b.rows, &err);
    if (status == KEDGE_OK)
        status = kedge_head(&rows, &world.head, &err);
    kedge_metrics_free(metrics);
    kedge_algo_free(algo);
    return status;
}

static void an_allocation_that_fails_is_a_status_and_no_leak(void **state)
{
    int failures = 0, status;

    (void)state;
    must(everything_once()); /* allocates tables that live as long as the process */
    for (uint64_t n = 1;; n++) {
        uint64_t before = kg_mem_current_bytes();

        kg_mem_fail_at(n);
        status = everything_once();
        kg_mem_fail_at(0);
        assert_int_equal(kg_mem_current_bytes(), before);
        if (status == KEDGE_OK)
            break;
        assert_int_equal(status, KEDGE_ENOMEM);
        failures++;
    }
    assert_true(failures > 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_preset_is_its_values_and_keys_read_back),
        cmocka_unit_test(every_preset_can_be_computed),
        cmocka_unit_test(rows_of_every_table_are_listed_and_accepted),
        cmocka_unit_test(unknown_names_and_what_cannot_be_computed_are_refused),
        cmocka_unit_test(tis_needs_recomputed_log_probs),
        cmocka_unit_test(needs_say_how_many_ids_a_row_has),
        cmocka_unit_test(structs_of_another_version_work_or_are_refused),
        cmocka_unit_test(an_answer_without_a_verdict_is_left_out),
        cmocka_unit_test(advantages_are_group_relative),
        cmocka_unit_test(several_rewards_are_taken_one_by_one),
        cmocka_unit_test(gae_is_there_for_who_has_a_critic),
        cmocka_unit_test(weights_sum_to_one),
        cmocka_unit_test(the_head_agrees_with_a_plain_softmax),
        cmocka_unit_test(the_backward_is_the_derivative_of_the_forward),
        cmocka_unit_test(the_head_refuses_what_does_not_fit),
        cmocka_unit_test(the_mode_of_the_caller_changes_no_bit),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(callers_at_the_same_time_change_no_bit),
        cmocka_unit_test(grpo_is_the_formula_of_the_paper),
        cmocka_unit_test(micro_batches_add_up),
        cmocka_unit_test(rows_of_batch_scope_select_by_themselves_or_by_hand),
        cmocka_unit_test(scores_are_held_to_a_size),
        cmocka_unit_test(the_loss_refuses_what_is_absent_or_not_finite),
        cmocka_unit_test(what_stands_around_the_loss),
        cmocka_unit_test(an_allocation_that_fails_is_a_status_and_no_leak),
    };

    return cmocka_run_group_tests_name("libkedge", tests, NULL, NULL);
}
