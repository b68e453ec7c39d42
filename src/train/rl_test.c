/* An RL step on the digit checkpoint: flat arrays against hand-made trajectories with
 * observations in between, the exact KL, selection over the batch, and steps that must
 * not change a weight.
 */
#include "train/rl_testing.h"

#include "recipe/options.h"
#include "rollout/score_testing.h"
#include "tensor/backend_testing.h"

#define ROOT "build/test-runs/rl"

/* All log-probs of a trajectory's tokens, one trajectory at a time. */
struct scores {
    float logp[MOST];
    float at[MOST][VOCAB];
};

static void score(struct scores *s, const struct kg_model *m, const struct kg_traj *t)
{
    int32_t ids[MOST * VOCAB];
    struct kg_score_seq q = {.tokens = t->tokens,
                             .n = t->n,
                             .temperature = t->temperature,
                             .indices = ids,
                             .logp = s->logp,
                             .logp_at = s->at[0]};

    assert_true(t->n <= MOST);
    for (int i = 0; i < MOST * VOCAB; i++)
        ids[i] = i % VOCAB;
    score_one(m, &q, VOCAB, 0);
}

/* Compares loss token `at` of the batch with token j of t. */
static void check_token(const struct kg_rl_batch *b, int64_t at, const struct kg_traj *t,
                        size_t j, const struct scores *anchor, const struct scores *model)
{
    const int32_t *ids = b->ids + at * b->k;
    const struct kg_idset *kept = &b->kept[at];
    struct kg_idset_walk w;
    bool found = kept->n == 0;
    double mass = kept->n == 0;

    assert_int_equal(b->tokens[at], t->tokens[j]);
    assert_true(b->mu_logp[at] == (double)t->logp[j]);
    assert_true(b->old_logp[at] == (double)t->logp[j]);
    assert_true(b->anchor_logp[at] == (double)anchor->logp[j]);
    for (int k = 0; k < TOP; k++) {
        assert_int_equal(ids[k], t->top_ids[j * TOP + (size_t)k]);
        assert_true(b->mu_at[at * TOP + k] == (double)t->top_logp[j * TOP + (size_t)k]);
        assert_true(b->anchor_at[at * TOP + k] == (double)anchor->at[j][ids[k]]);
    }
    assert_int_equal(kept->n, t->kept_n ? 1 + (int32_t)j % 4 : 0);
    if (kept->n > 0)
        for (kg_idset_begin(&w, kept); w.id < VOCAB; kg_idset_next(&w, kept)) {
            mass += exp((double)model->at[j][w.id]);
            found = found || w.id == t->tokens[j];
        }
    assert_true(found);
    assert_true(fabs(b->old_log_kept[at] - log(mass)) < 1e-6);
}

static void flat_arrays_hold_the_model_tokens_and_nothing_else(void **state)
{
    static const char *const extra[] = {
        "kl.estimator=topk-reverse", "kl.top_k=3",        "kl.beta=0.1",
        "anchor.kind=fixed",         "rollout.top_p=0.9", NULL};
    struct opened o;
    struct kg_rl_batch b = {0};
    int64_t at = 0;

    (void)state;
    open_run(&o, ROOT "/flat", extra);
    disturb(o.run.state.anchor);
    make_trajs(&b, TOP, true);
    NEED(kg_rl_prepare(&b, &o.run.in, &o.run.state, &o.run.work, err));
    assert_int_equal(b.k_sampler, TOP);
    assert_int_equal(b.k_anchor, 0);
    for (size_t i = 0; i < N_TRAJS; i++) {
        struct scores anchor, model;

        score(&anchor, o.run.state.anchor, &b.trajs[i]);
        score(&model, o.run.state.model, &b.trajs[i]);
        assert_int_equal(b.begin[i], at);
        for (size_t j = 0; j < b.trajs[i].n; j++)
            if (layouts[i][j] == 'm')
                check_token(&b, at++, &b.trajs[i], j, &anchor, &model);
    }
    assert_int_equal(b.begin[N_TRAJS], at);
    assert_int_equal(b.n, at);
    kg_rl_batch_release(&b);
    close_run(&o);
}

/* An update on completions, one of which was cut by the limit. */
struct filtered {
    uint64_t weights; /* their hash */
    double trained_tokens;
    int64_t kl_tokens, n, cut;
    bool asked; /* whether the anchor scored the cut one */
};

/* moved: changes the anchor's log-probs of the cut completion */
static void train_filtered(struct filtered *f, const char *after_filter, bool moved)
{
    const char *const extra[] = {"kl.estimator=k3",
                                 "kl.beta=0.1",
                                 "anchor.kind=fixed",
                                 "algo.mask_truncated=true",
                                 "train.updates_per_step=1",
                                 after_filter,
                                 NULL};
    struct opened o;
    struct kg_rl_batch b = {0};
    struct kg_rl_totals totals = {0};
    struct kg_policy_advantage a = {0};

    open_run(&o, ROOT "/filtered", extra);
    disturb(o.run.state.anchor);
    make_trajs(&b, 0, false);
    b.trajs[1].finish = KG_FINISH_LENGTH;
    NEED(kg_rl_prepare(&b, &o.run.in, &o.run.state, &o.run.work, err));
    f->cut = b.begin[2] - b.begin[1];
    f->asked = b.anchor_logp[b.begin[1]] != 0;
    assert_true(b.anchor_logp[b.begin[0]] != 0 && b.anchor_logp[b.begin[2]] != 0);
    for (int64_t t = b.begin[1]; moved && t < b.begin[2]; t++)
        b.anchor_logp[t] = -3;
    f->n = b.n;
    NEED(kg_rl_train(&totals, &a, &b, &o.run, err));
    assert_int_equal((int)totals.updates, 1);
    f->trained_tokens = totals.trained_tokens;
    f->kl_tokens = totals.metrics.kl_tokens;
    NEED(kg_slab_hash(&f->weights, &o.run.state.model->master, err));
    kg_rl_batch_release(&b);
    close_run(&o);
}

/* As in trainers that drop truncated completions before the update: these cost no KL
 * gradient, no forward and no pass of the anchor. */
static void filtered_answers_have_no_kl_and_cost_nothing(void **state)
{
    struct filtered out, out_moved, in, in_moved;

    (void)state;
    train_filtered(&out, "kl.after_filter=true", false);
    train_filtered(&out_moved, "kl.after_filter=true", true);
    train_filtered(&in, "kl.after_filter=false", false);
    train_filtered(&in_moved, "kl.after_filter=false", true);
    assert_true(out.cut > 0 && !out.asked && in.asked);
    assert_true((int64_t)out.trained_tokens == out.n - out.cut);
    assert_int_equal(out.kl_tokens, out.n - out.cut);
    assert_true(out.weights == out_moved.weights);
    assert_true((int64_t)in.trained_tokens == in.n);
    assert_int_equal(in.kl_tokens, in.n);
    assert_true(in.weights != in_moved.weights && in.weights != out.weights);
}

/* The number `name` in the first line of the run that has it. */
static double first_metric(const char *dir, const char *name)
{
    struct kg_str text = {0};
    char key[64];
    const char *at;
    double value;

    snprintf(key, sizeof key, "\"%s\":", name);
    NEED(kg_file_read(&text, kg_path_in(dir, "metrics.jsonl").text, 1 << 20, err));
    at = strstr(kg_str_text(&text), key);
    assert_non_null(at);
    value = strtod(at + strlen(key), NULL);
    kg_str_release(&text);
    return value;
}

/* Result of steps with truncated sampling: weights, and the metrics of its batch. */
struct truncated {
    bool recorded;
    float *weights; /* (n) owned */
    size_t n;
    double cut, cut_nats, gap;
};

static void step_truncated(struct truncated *out, const char *dir, const char *flag)
{
    const char *const extra[] = {"rollout.top_p=0.8", "train.updates_per_step=2",
                                 "optim.lr=1e-3", flag, NULL};
    struct opened o;
    struct kg_err why;
    struct kg_rl_batch b = {0};

    fresh(dir);
    open_run(&o, dir, extra);
    NEED(kg_rl_sample(&b, &o.run.in, &o.run.state, &o.run.work, err));
    NEED(kg_rl_prepare(&b, &o.run.in, &o.run.state, &o.run.work, err));
    out->recorded = b.kept != NULL;
    assert_true(out->recorded == (b.old_log_kept != NULL));
    assert_true(out->recorded == (b.own_passes > 0));
    kg_rl_batch_release(&b);
    for (int i = 0; i < 4; i++)
        NEED(kg_rl_step(&o.run, err));
    out->n = (size_t)o.run.state.model->n_elements;
    out->weights = kg_mem_calloc(out->n, sizeof *out->weights, "test", &why);
    assert_non_null(out->weights);
    memcpy(out->weights, o.run.state.model->master.data, out->n * sizeof *out->weights);
    close_run(&o);
    out->cut = first_metric(dir, "mismatch/cut");
    out->cut_nats = first_metric(dir, "mismatch/cut_nats");
    out->gap = first_metric(dir, "mismatch/first_update_max");
}

/* algo.reproduction takes ratios of the full softmax under nucleus sampling, as published
 * search runs do: no kept ids are recorded, the weights differ, and the log has the mass
 * that was cut. */
static void a_reproduction_has_ratios_of_the_full_softmax(void **state)
{
    struct truncated on, off;

    (void)state;
    step_truncated(&on, ROOT "/reproduction", "algo.reproduction=true");
    step_truncated(&off, ROOT "/renormalised", "algo.reproduction=false");
    assert_true(!on.recorded && off.recorded);
    assert_true(memcmp(on.weights, off.weights, on.n * sizeof *on.weights) != 0);
    assert_true(on.cut > 0.1 && on.cut_nats > 0.01 && on.cut_nats < -log(0.8));
    assert_true(on.cut == off.cut && on.cut_nats == off.cut_nats); /* the same samples */
    assert_true(on.gap == 0 && off.gap == 0);
    kg_mem_free(on.weights);
    kg_mem_free(off.weights);
}

/* Passes of a sampler with another dtype need activations of that dtype. */
static void a_sampler_of_another_dtype_is_asked_too(void **state)
{
    static const char *const asks[][4] = {
        {"rollout.top_p=0.9"},
        {"algo.advantage=token-baseline"},
        {"anchor.kind=iterative", "kl.estimator=topk-forward", "kl.beta=0.1",
         "kl.top_k=3"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        const char *const extra[] = {
            "model.dtype=auto", "rollout.dtype=fp32", asks[i][0], asks[i][1],
            asks[i][2],         asks[i][3],           NULL};
        struct opened o;
        struct kg_rl_batch b = {0};
        struct kg_rl_totals totals = {0};
        struct kg_policy_advantage a = {0};

        open_run(&o, ROOT "/dtype", extra);
        assert_int_not_equal(o.run.state.sampler->ct, o.run.state.model->ct);
        NEED(kg_rl_sample(&b, &o.run.in, &o.run.state, &o.run.work, err));
        NEED(kg_rl_prepare(&b, &o.run.in, &o.run.state, &o.run.work, err));
        NEED(kg_rl_train(&totals, &a, &b, &o.run, err));
        kg_rl_batch_release(&b);
        close_run(&o);
    }
}

/* The recorded log-probs are, to the bit, those of a pass with the sampler's weights. */
static void the_iterative_anchor_is_the_record(void **state)
{
    static const char *const extra[] = {
        "kl.estimator=topk-reverse", "kl.top_k=3",        "kl.beta=0.1",
        "anchor.kind=iterative",     "rollout.top_p=0.9", NULL};
    struct opened o;
    struct kg_rl_batch b = {0};
    struct scores model;

    (void)state;
    open_run(&o, ROOT "/iterative", extra);
    assert_false(kg_rl_asks_anchor(&o.run.in.algo, o.run.state.anchor));
    NEED(kg_rl_sample(&b, &o.run.in, &o.run.state, &o.run.work, err));
    NEED(kg_rl_prepare(&b, &o.run.in, &o.run.state, &o.run.work, err));
    assert_true(b.n > 0);
    for (size_t i = 0; i < b.n_trajs; i++) {
        const struct kg_traj *t = &b.trajs[i];

        score(&model, o.run.state.model, t);
        for (int64_t n = b.begin[i]; n < b.begin[i + 1]; n++) {
            size_t j = t->prompt_n + (size_t)(n - b.begin[i]);

            assert_true(b.anchor_logp[n] == (double)model.logp[j]);
            for (int k = 0; k < TOP; k++)
                assert_true(b.anchor_at[n * TOP + k] ==
                            (double)model.at[j][b.ids[n * b.k + k]]);
        }
    }
    kg_rl_batch_release(&b);
    close_run(&o);
}

static void recomputed_old_log_probs_leave_the_record_alone(void **state)
{
    static const char *const extra[] = {"train.old_logp=recompute", NULL};
    struct opened o;
    struct kg_rl_batch b = {0};
    int64_t at = 0;

    (void)state;
    open_run(&o, ROOT "/recompute", extra);
    make_trajs(&b, 0, false);
    NEED(kg_rl_prepare(&b, &o.run.in, &o.run.state, &o.run.work, err));
    assert_null(b.anchor_logp);
    for (size_t i = 0; i < N_TRAJS; i++) {
        struct scores model;

        score(&model, o.run.state.model, &b.trajs[i]);
        for (size_t j = 0; j < b.trajs[i].n; j++) {
            if (layouts[i][j] != 'm')
                continue;
            assert_true(b.old_logp[at] == (double)model.logp[j]);
            assert_true(b.mu_logp[at++] == (double)b.trajs[i].logp[j]);
        }
    }
    kg_rl_batch_release(&b);
    close_run(&o);
}

/* The update's packed rows give every model token the scorer's log-prob to the bit, with
 * observations in between or without. */
static void an_update_sees_the_tokens_that_were_recorded(void **state)
{
    static const char *const cut[] = {"rollout.top_p=0.9", "train.micro_tokens=16", NULL};
    struct opened o;
    struct kg_rl_batch b = {0};
    struct kg_rl_totals totals = {0};
    struct kg_policy_advantage a;

    (void)state;
    open_run(&o, ROOT "/recorded", cut);
    make_trajs(&b, 0, true);
    for (size_t i = 0; i < N_TRAJS; i++) {
        struct scores model;

        score(&model, o.run.state.model, &b.trajs[i]);
        for (size_t j = 0; j < b.trajs[i].n; j++)
            if (layouts[i][j] == 'm')
                b.trajs[i].logp[j] = model.logp[j];
    }
    NEED(kg_rl_prepare(&b, &o.run.in, &o.run.state, &o.run.work, err));
    NEED(kg_rl_train(&totals, &a, &b, &o.run, err));
    assert_int_equal(totals.updates, 1);
    assert_int_equal(totals.first_metrics.tokens, b.n);
    assert_int_equal(totals.first_metrics.ratios, b.n);
    assert_true(totals.first_metrics.gap_max == 0);
    assert_true(totals.first_metrics.ratio_min == 1);
    assert_true(totals.first_metrics.ratio_max == 1);
    kg_rl_batch_release(&b);
    close_run(&o);
}

/* ---- the exact KL ---- */

struct result {
    double loss, kl, norm;
};

/* One step against a disturbed anchor. record: ids per token, if above 0. They are set
 * here, because a config that asks for the whole vocabulary gets the exact KL instead. */
static struct result one_step(const char *dir, const char *const *extra, int record)
{
    struct opened o;
    struct result r;

    open_run(&o, dir, extra);
    disturb(o.run.state.anchor);
    if (record > 0) {
        o.run.in.algo.kl_top_k = o.run.work.rows_opts.max_k = o.run.work.rows_opts.top_k =
            record;
        kg_rows_free(o.run.work.rows);
        NEED(kg_rows_create(&o.run.work.rows, o.run.state.model, &o.run.work.rows_opts,
                            err));
    }
    NEED(kg_rl_step(&o.run, err));
    close_run(&o);
    r.loss = last_metric(dir, "loss/total");
    r.kl = last_metric(dir, "loss/kl");
    r.norm = last_metric(dir, "optim/grad_norm");
    return r;
}

static void assert_close(double a, double b)
{
    if (!(fabs(a - b) <= 1e-5 * fabs(b)))
        fail_msg("%.9g against %.9g", a, b);
}

static void the_exact_kl_equals_top_k_over_the_whole_vocabulary(void **state)
{
    static const char *const directions[] = {"reverse", "forward"};
    static const char *const dtypes[] = {"model.dtype=fp32", "model.dtype=auto"};

    (void)state;
    for (int i = 0; i < 4; i++) {
        char exact[64], topk[64];
        const char *extra[] = {exact,
                               "kl.beta=0.5",
                               dtypes[i / 2],
                               "anchor.kind=fixed",
                               "train.micro_tokens=64",
                               NULL,
                               NULL};
        struct result a, b;

        snprintf(exact, sizeof exact, "kl.estimator=exact-%s", directions[i % 2]);
        snprintf(topk, sizeof topk, "kl.estimator=topk-%s", directions[i % 2]);
        a = one_step(ROOT "/exact", extra, 0);
        extra[0] = topk;
        extra[5] = "kl.top_k=15";
        b = one_step(ROOT "/topk", extra, VOCAB);
        assert_true(b.kl > 1e-4 && b.norm > 1e-4);
        assert_close(a.kl, b.kl);
        assert_close(a.loss, b.loss);
        assert_close(a.norm, b.norm);
    }
}

enum { WORDS = 512, CORPUS = 2000 };
#define WORDY ROOT "/wordy"

/* Trains a tokenizer on the texts of the arithmetic task. */
static void make_tokenizer(void)
{
    static const char *const eos[] = {"<|endoftext|>"};
    static const char *texts[CORPUS][2];
    struct kg_bpe_train opts = {.vocab_size = WORDS, .specials = eos, .n_specials = 1};
    struct kg_task_opts task = {.seed = 3, .level = "easy+medium", .count = CORPUS};
    const struct kg_task_row *row;
    struct kg_dataset data = {0};

    NEED(kg_task_find(&row, "arithmetic", err));
    NEED(kg_task_load(&data, row, &task, NULL, err));
    assert_int_equal(data.n, CORPUS);
    for (int i = 0; i < CORPUS; i++) {
        texts[i][0] = data.records[i].prompt;
        texts[i][1] = data.records[i].solution;
    }
    NEED(kg_bpe_train_write(WORDY "/tokenizer", texts[0], 2 * CORPUS, &opts, err));
    kg_dataset_release(&data);
}

/* Its logits are far from uniform, so that a KL has something to measure. */
static void make_wordy_model(void)
{
    struct kg_model_opts opts = {.ct = KG_F32};
    struct kg_model_save save = {.dtype = KG_F32, .source_dir = WORDY "/tokenizer"};
    struct kg_model_config config;
    struct kg_model *m;

    NEED(kg_model_config_read(&config, DATA, err));
    config.vocab = WORDS;
    config.hidden = 48;
    config.ffn = 64;
    config.layers = 2;
    config.heads = config.kv_heads = 3;
    config.head_dim = 16;
    config.eos[0] = WORDS - 1;
    config.n_eos = 1;
    config.init_range = 0.3f;
    NEED(kg_model_create(&m, &config, &opts, 5, err));
    NEED(kg_model_save(m, WORDY "/model", &save, err));
    kg_model_free(m);
}

/* A vocabulary that spans several tiles, with a tokenizer that merges. */
static void the_exact_kl_equals_all_ids_of_the_arithmetic_vocabulary(void **state)
{
    static const char *const pairs[][2] = {
        {"kl.estimator=exact-reverse", "kl.estimator=topk-reverse"},
        {"kl.estimator=exact-forward", "kl.estimator=topk-forward"}};

    (void)state;
    fresh(WORDY);
    NEED(kg_file_make_dirs(WORDY "/tokenizer", err));
    make_tokenizer();
    make_wordy_model();
    for (int i = 0; i < 2; i++) {
        const char *extra[] = {pairs[i][0],
                               "kl.beta=0.5",
                               "anchor.kind=fixed",
                               "model.path=" WORDY "/model",
                               "task.name=arithmetic",
                               "task.level=easy",
                               "task.count=8",
                               "data.train=",
                               "data.val=",
                               "train.micro_tokens=64",
                               NULL,
                               NULL};
        struct result a = one_step(ROOT "/exact", extra, 0), b;

        extra[0] = pairs[i][1];
        extra[sizeof extra / sizeof *extra - 2] = "kl.top_k=400";
        b = one_step(ROOT "/topk", extra, WORDS);
        assert_true(b.kl > 1e-2 && b.norm > 1e-4);
        assert_close(a.kl, b.kl);
        assert_close(a.loss, b.loss);
        assert_close(a.norm, b.norm);
    }
}

/* row <- the estimator that `estimator` becomes with k ids in a vocabulary of this
 * size. */
static kg_status algo_row(char row[32], const char *estimator, const char *anchor, int k,
                          int64_t vocab, struct kg_err *err)
{
    char top[32];
    const char *extra[] = {estimator, anchor, top, "kl.beta=0.1", NULL};
    struct kg_config *config;
    struct kg_recipe recipe;
    struct kg_algo algo;
    kg_status status;

    snprintf(top, sizeof top, "kl.top_k=%d", k);
    config = config_of(ROOT "/none", extra);
    kg_recipe_read(&recipe, config);
    status = kg_algo_from_recipe(&algo, &recipe, config, vocab, err);
    if (status == KG_OK)
        snprintf(row, 32, "%s %d", kg_algo_row_name(&algo, KG_TABLE_KL),
                 kg_algo_width(&algo));
    kg_config_free(config);
    return status;
}

static void a_top_k_as_wide_as_the_vocabulary_becomes_exact(void **state)
{
    const char *reverse = "kl.estimator=topk-reverse", *ema = "anchor.kind=ema";
    const char *iterative = "anchor.kind=iterative";
    char row[32];
    struct kg_err e;

    (void)state;
    NEED(algo_row(row, reverse, ema, 151936, 151936, err));
    assert_string_equal(row, "exact-reverse 0");
    NEED(algo_row(row, "kl.estimator=topk-forward", ema, 1000000, 151936, err));
    assert_string_equal(row, "exact-forward 0");
    NEED(algo_row(row, reverse, ema, 15, 16, err));
    assert_string_equal(row, "topk-reverse 15");
    NEED(algo_row(row, reverse, iterative, 32, 16, err));
    assert_string_equal(row, "topk-reverse 16");
    assert_int_equal(algo_row(row, reverse, iterative, 151936, 151936, &e), KG_EINVAL);
    assert_non_null(strstr(e.message, "512"));
    assert_int_equal(algo_row(row, "kl.estimator=exact-reverse", iterative, 1, 16, &e),
                     KG_EUNSUPPORTED);
    assert_non_null(strstr(e.message, "iterative"));
}

/* ---- selection over the batch ---- */

static void batch_scope_does_not_depend_on_the_cut_into_micro_batches(void **state)
{
    static const char *const surrogates[][2] = {
        {"algo.surrogate=kl-cov", "algo.cov_coef=5"},
        {"algo.surrogate=clip-cov", "algo.cov_low=-1"}};

    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *extra[] = {
            surrogates[i][0],        "train.updates_per_step=2", "algo.cov_ratio=0.25",
            surrogates[i][1],        "model.dtype=fp32",         "anchor.kind=fixed",
            "train.micro_tokens=16", "kl.estimator=k3",          NULL};
        struct result small, large;

        small = one_step(ROOT "/small", extra, 0);
        extra[6] = "train.micro_tokens=4096";
        large = one_step(ROOT "/large", extra, 0);
        assert_true(large.norm > 1e-4);
        if (!(fabs(small.norm / large.norm - 1) < 1e-4))
            fail_msg("%s: %g against %g", surrogates[i][0], small.norm, large.norm);
    }
}

/* ---- steps that must not change a weight ---- */

/* Runs n steps from the start of RL and expects unchanged weights and anchor. */
static struct kg_counters steps_that_stand_still(const char *dir,
                                                 const char *const *extra, int n)
{
    struct opened o;
    struct kg_counters count;
    size_t bytes;
    float *before;
    struct kg_err e;

    open_run(&o, dir, extra);
    disturb(o.run.state.model);
    NEED(kg_run_start_rl(&o.run.in, &o.run.state, err));
    bytes = (size_t)o.run.state.model->n_elements * sizeof *before;
    before = kg_mem_calloc(1, bytes, "test", &e);
    assert_non_null(before);
    memcpy(before, o.run.state.model->master.data, bytes);
    for (int i = 0; i < n; i++)
        NEED(kg_rl_step(&o.run, err));
    assert_memory_equal(o.run.state.model->master.data, before, bytes);
    if (o.run.state.anchor)
        assert_memory_equal(o.run.state.anchor->master.data, before, bytes);
    count = o.run.state.count;
    kg_mem_free(before);
    close_run(&o);
    return count;
}

#define NO_REWARD                                                                        \
    "task.name=external", "task.command=sed -u 's/.*/{\"score\": 0}/'", "optim.lr=0.1"

static void a_batch_without_advantages_makes_no_update(void **state)
{
    static const char *const extra[] = {NO_REWARD, "optim.weight_decay=0.1",
                                        "train.updates_per_step=2", NULL};
    struct kg_counters count = steps_that_stand_still(ROOT "/idle", extra, 3);

    (void)state;
    assert_int_equal(count.step, 3);
    assert_int_equal(count.idle_updates, 6);
    assert_int_equal(count.optim_step, 0);
    assert_true(last_metric(ROOT "/idle", "optim/idle_updates") == 6);
    assert_true(last_metric(ROOT "/idle", "optim/updates") == 0);
}

static void without_reward_the_anchor_holds_the_policy_where_it_is(void **state)
{
    static const char *const etas[] = {"anchor.eta=0.9", "anchor.eta=0.1"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *extra[] = {NO_REWARD,
                               etas[i],
                               "kl.estimator=topk-reverse",
                               "kl.gradient=corrected",
                               "kl.top_k=4",
                               "kl.beta=1",
                               "anchor.kind=ema",
                               "anchor.period=1",
                               "train.updates_per_step=2",
                               NULL};
        struct kg_counters count = steps_that_stand_still(ROOT "/still", extra, 4);

        assert_int_equal(count.anchor_updates, 4);
        assert_true(last_metric(ROOT "/still", "kl/value") == 0);
        assert_true(last_metric(ROOT "/still", "anchor/distance") == 0);
    }
}

/* The exact KL has a coefficient at every token, so these updates are made, but their
 * gradient is exactly zero. */
static void an_exact_kl_to_an_equal_anchor_has_no_gradient(void **state)
{
    static const char *const estimators[] = {"kl.estimator=exact-reverse",
                                             "kl.estimator=exact-forward"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *extra[] = {NO_REWARD,         estimators[i],     "kl.beta=1",
                               "anchor.kind=ema", "anchor.period=1", NULL};

        (void)steps_that_stand_still(ROOT "/exact-still", extra, 3);
        assert_true(last_metric(ROOT "/exact-still", "optim/grad_norm") == 0);
        assert_true(last_metric(ROOT "/exact-still", "loss/kl") == 0);
    }
}

/* clip-cov gives selected tokens no gradient. Bounds that select all tokens leave no
 * gradient, in the batch that moved the weights above. */
static void a_batch_that_is_selected_altogether_makes_no_update(void **state)
{
    static const char *const extra[] = {"algo.surrogate=clip-cov",  "algo.cov_ratio=1",
                                        "algo.cov_low=-1e6",        "algo.cov_high=1e6",
                                        "train.micro_tokens=16",    "model.dtype=fp32",
                                        "train.updates_per_step=2", NULL};
    struct kg_counters count = steps_that_stand_still(ROOT "/selected", extra, 1);

    (void)state;
    assert_int_equal(count.idle_updates, 2);
    assert_true(last_metric(ROOT "/selected", "advantage/max") > 0);
}

/* ---- the whole run ---- */

static void a_run_relates_its_speed_to_the_ceiling(void **state)
{
    static const char *const extra[] = {"train.steps=1", NULL};
    struct kg_config *config = config_of(ROOT "/speed", extra);
    double share;

    (void)state;
    fresh(ROOT "/speed");
    NEED(kg_train_run(config, false, false, err));
    share = last_metric(ROOT "/speed", "share_of_gemm_ceiling");
    kg_config_free(config);
    /* above 1 if the machine was busy when the ceiling was measured */
    if (!(share > 0 && share < 10))
        fail_msg("expected a share of the ceiling, found %g", share);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flat_arrays_hold_the_model_tokens_and_nothing_else),
        cmocka_unit_test(a_reproduction_has_ratios_of_the_full_softmax),
        cmocka_unit_test(filtered_answers_have_no_kl_and_cost_nothing),
        cmocka_unit_test(a_sampler_of_another_dtype_is_asked_too),
        cmocka_unit_test(the_iterative_anchor_is_the_record),
        cmocka_unit_test(recomputed_old_log_probs_leave_the_record_alone),
        cmocka_unit_test(an_update_sees_the_tokens_that_were_recorded),
        cmocka_unit_test(the_exact_kl_equals_top_k_over_the_whole_vocabulary),
        cmocka_unit_test(the_exact_kl_equals_all_ids_of_the_arithmetic_vocabulary),
        cmocka_unit_test(a_top_k_as_wide_as_the_vocabulary_becomes_exact),
        cmocka_unit_test(batch_scope_does_not_depend_on_the_cut_into_micro_batches),
        cmocka_unit_test(a_batch_without_advantages_makes_no_update),
        cmocka_unit_test(without_reward_the_anchor_holds_the_policy_where_it_is),
        cmocka_unit_test(an_exact_kl_to_an_equal_anchor_has_no_gradient),
        cmocka_unit_test(a_batch_that_is_selected_altogether_makes_no_update),
        cmocka_unit_test(a_run_relates_its_speed_to_the_ceiling),
    };

    return RUN_SHOWN(tests, NULL, NULL);
}
