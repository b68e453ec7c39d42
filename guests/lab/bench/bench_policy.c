/* The policy mathematics of a step of 4,096 tokens, for every preset, as a share of the
 * training step that it belongs to.
 *
 * All that a step computes on the host between the head's forward and its backward is
 * timed: the head's rows widened to double, advantages, weights, the loss and its sparse
 * gradient.
 */
#include "lab/bench/lab_bench.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "policy/policy.h"
#include "policy/presets.h"

#include <stdio.h>
#include <string.h>

enum { SEQS = 16, SEQ_LEN = 256, GROUP = 8, N = SEQS * SEQ_LEN, K = 32, COLS = 2 * K };
enum { PARTS = 2 }; /* rewards of an answer, for advantages that take each by itself */

/* One step's loss tokens, as the head leaves them and as the mathematics reads them. */
struct step {
    struct kg_algo algo;
    double reward[SEQS], greedy[SEQS];
    double part[SEQS * PARTS];
    int64_t group_begin[SEQS / GROUP + 1];
    int64_t seq_begin[SEQS + 1];
    int32_t tokens[N];
    int k_sampler, k_anchor; /* columns that the algorithm asks for */
    int32_t ids[N * COLS];
    float head_logp[N]; /* of the forward */
    float head_at[N * COLS];
    float head_entropy[N];
    double logp[N], entropy[N], at[N * COLS];
    double old_logp[N], anchor_logp[N], kl_exact[N];
    double sum_sq[N];
    double anchor_at[N * COLS], mu_at[N * COLS];
    uint8_t selected[N];
    double advantage[N], pg_weight[N], kl_weight[N], entropy_weight[N];
    double a_logp[N], a_entropy[N], a_exact[N], a_at[N * COLS];
};

static int columns(const struct step *s) { return s->k_sampler + s->k_anchor; }

/* Log-probs of a distribution over ids that falls by ranks, three policies near each
 * other. */
static void fill_token(struct step *s, int n)
{
    struct kg_rng_key key = {5, KG_RNG_TEST};

    s->tokens[n] = (int32_t)kg_rng_below(key, (uint64_t)n, 0, 0, 2 * K);
    s->head_logp[n] = -1 - 0.05f * (float)s->tokens[n];
    s->old_logp[n] = (double)s->head_logp[n] +
                     0.2 * (kg_rng_uniform(key, (uint64_t)n, 0, 1) - 0.5);
    s->anchor_logp[n] = (double)s->head_logp[n] +
                        0.2 * (kg_rng_uniform(key, (uint64_t)n, 0, 2) - 0.5);
    s->head_entropy[n] = 2;
    s->kl_exact[n] = 0.01;
    s->sum_sq[n] = 0.2;
    for (int k = 0; k < columns(s); k++) {
        int i = n * columns(s) + k;
        double jitter = 0.2 * (kg_rng_uniform(key, (uint64_t)i, 1, 0) - 0.5);

        s->ids[i] = k % K;
        s->head_at[i] = -2 - 0.1f * (float)(k % K);
        s->anchor_at[i] = (double)s->head_at[i] + jitter;
        s->mu_at[i] = (double)s->head_at[i] - jitter;
    }
}

static void fill_step(struct step *s)
{
    for (int i = 0; i < SEQS; i++) {
        s->reward[i] = i % 3 == 0;
        s->part[i * PARTS] = i % 3 == 0;
        s->part[i * PARTS + 1] = i % 5 == 0;
        s->seq_begin[i + 1] = (int64_t)(i + 1) * SEQ_LEN;
    }
    for (int g = 0; g < SEQS / GROUP; g++)
        s->group_begin[g + 1] = (int64_t)(g + 1) * GROUP;
    for (int n = 0; n < N; n++)
        fill_token(s, n);
}

static kg_status choose(struct step *s, const struct kg_preset *preset,
                        struct kg_err *err)
{
    struct kg_algo *algo = &s->algo;

    kg_algo_init(algo);
    KG_TRY(kg_preset_apply(algo, preset, err));
    algo->length_norm = SEQ_LEN;
    algo->top_k = K;
    algo->kl_top_k = K;
    s->k_sampler = kg_algo_recorded_top_k(algo);
    s->k_anchor = kg_algo_anchor_top_k(algo);
    return KG_OK;
}

/* ---- what a step does ---- */

static kg_status advantages_and_weights(struct step *s, struct kg_err *err)
{
    static const double part_weight[PARTS] = {1, 0.5};
    struct kg_policy_scores scores = {.n_seqs = SEQS,
                                      .n_groups = SEQS / GROUP,
                                      .reward = s->reward,
                                      .n_parts = PARTS,
                                      .part = s->part,
                                      .part_weight = part_weight,
                                      .group_begin = s->group_begin,
                                      .seq_begin = s->seq_begin,
                                      .greedy = s->greedy,
                                      .old_logp = s->old_logp,
                                      .sum_sq = s->sum_sq};
    struct kg_policy_advantage a = {.token = s->advantage};
    struct kg_policy_shape shape = {.n_seqs = SEQS, .seq_begin = s->seq_begin};
    struct kg_policy_weights w = {s->pg_weight, s->kl_weight, s->entropy_weight};

    KG_TRY(kg_policy_advantages(&a, &s->algo, &scores, err));
    return kg_policy_weights(&w, &s->algo, &shape, err);
}

static struct kg_policy_batch batch_of(const struct step *s)
{
    return (struct kg_policy_batch){.n_seqs = SEQS,
                                    .n_tokens = N,
                                    .seq_begin = s->seq_begin,
                                    .tokens = s->tokens,
                                    .logp = s->logp,
                                    .old_logp = s->old_logp,
                                    .mu_logp = s->old_logp,
                                    .anchor_logp = s->anchor_logp,
                                    .advantage = s->advantage,
                                    .entropy = s->entropy,
                                    .kl_exact = s->kl_exact,
                                    .k_sampler = s->k_sampler,
                                    .k_anchor = s->k_anchor,
                                    .ids = s->ids,
                                    .logp_at = s->at,
                                    .anchor_at = s->anchor_at,
                                    .mu_at = s->mu_at,
                                    .pg_weight = s->pg_weight,
                                    .kl_weight = s->kl_weight,
                                    .entropy_weight = s->entropy_weight,
                                    .selected = s->selected};
}

static kg_status run_step(double *seconds, void *user, struct kg_err *err)
{
    struct step *s = user;
    double start = kg_clock_seconds();
    struct kg_policy_batch batch = batch_of(s);
    struct kg_policy_grad grad = {.a_logp = s->a_logp,
                                  .a_at = s->a_at,
                                  .a_entropy = s->a_entropy,
                                  .a_kl_exact = s->a_exact};

    for (int n = 0; n < N; n++) {
        s->logp[n] = (double)s->head_logp[n];
        s->entropy[n] = (double)s->head_entropy[n];
    }
    for (int i = 0; i < N * columns(s); i++)
        s->at[i] = (double)s->head_at[i];
    KG_TRY(advantages_and_weights(s, err));
    if (kg_algo_scope(&s->algo) == KG_SCOPE_BATCH)
        KG_TRY(kg_policy_select(s->selected, &s->algo, &batch, err));
    KG_TRY(kg_policy_loss(&grad, &s->algo, &batch, err));
    *seconds = kg_clock_seconds() - start;
    return KG_OK;
}

/* ---- every preset ---- */

static kg_status time_preset(double *seconds, struct kg_bench_report *r, struct step *s,
                             struct kg_err *err)
{
    struct kg_bench_job job = {.run = run_step, .user = s, .repeats = 3, .warm = true};
    struct kg_bench_timing t;

    fill_step(s);
    KG_TRY(kg_bench_time(&t, r, &job, err));
    *seconds = kg_bench_best(&t);
    return KG_OK;
}

static kg_status time_presets(struct kg_bench_policy_seconds *out,
                              struct kg_bench_report *r, struct step *s,
                              struct kg_err *err)
{
    *out = (struct kg_bench_policy_seconds){.name = ""};
    for (size_t i = 0; i < kg_preset_count(); i++) {
        const struct kg_preset *preset = kg_preset_at(i);
        double seconds;

        KG_TRY(choose(s, preset, err));
        KG_TRY(time_preset(&seconds, r, s, err));
        if (strcmp(preset->name, "ema-pg") == 0)
            out->ema_pg = seconds;
        if (seconds > out->dearest) {
            out->dearest = seconds;
            out->name = preset->name;
        }
    }
    return KG_OK;
}

kg_status kg_bench_policy_seconds(struct kg_bench_policy_seconds *out,
                                  struct kg_bench_report *r, struct kg_err *err)
{
    struct step *s = kg_mem_calloc(1, sizeof *s, "policy benchmark", err);
    kg_status status = s ? time_presets(out, r, s, err) : err->code;

    kg_mem_free(s);
    return status;
}

/* ---- the rows of the report ---- */

static kg_status share_row(struct kg_bench_report *r, const char *preset, double seconds,
                           double step, struct kg_err *err)
{
    char name[80];
    struct kg_bench_share share = {name, seconds,           step,
                                   "s",  "a training step", {0.02, true}};

    snprintf(name, sizeof name, "policy of 4096 tokens, k=32: %s", preset);
    return kg_bench_put_share(r, &share, err);
}

/* The step is four forwards and backwards of 1,024 tokens; its update is left out, which
 * makes the share larger and the benchmark shorter. */
kg_status kg_bench_policy(struct kg_bench_report *r, struct kg_err *err)
{
    struct kg_bench_policy_seconds t;
    double quarter;

    KG_TRY(kg_bench_head(r, err));
    KG_TRY(kg_bench_exact_kl(r, err));
    KG_TRY(kg_bench_selection(r, err));
    KG_TRY(kg_bench_policy_seconds(&t, r, err));
    KG_TRY(kg_bench_step_seconds(&quarter, r, 4, 256, err));
    KG_TRY(share_row(r, "ema-pg", t.ema_pg, 4 * quarter, err));
    return share_row(r, t.name, t.dearest, 4 * quarter, err);
}
