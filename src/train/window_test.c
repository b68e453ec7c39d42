/* Training on episodes whose later turns were sampled from the newest tokens only: each
 * turn is learned in the context that it was sampled from. A reproduction learns the
 * whole text and reports how this changes the ratios.
 *
 * The policy is a small model over a byte-level tokenizer, so its turns are noise; the
 * calculator answers all of them with a remark.
 */
#include "train/rl_testing.h"

#include "data/jsonl.h"
#include "lab/replay.h"
#include "rollout/score_testing.h"
#include "tensor/backend_testing.h"
#include "train/agent_testing.h"
#include "train/same_testing.h"
#include "train/step/sums.h"

#define ROOT "build/test-runs/window"

static const char *const base[] = {
    "model.path=" ROOT "/model",
    "model.dtype=fp32",
    "task.name=arithmetic",
    "task.level=easy",
    "task.count=40",
    "task.val_count=5",
    "rollout.prompts=3",
    "rollout.samples=3",
    "rollout.max_batch=4",
    "episode.env=calculator",
    "episode.turns=4",
    "episode.turn_tokens=9",
    "episode.obs_tokens=15",
    "episode.context=200",
    "episode.answer_tokens=120",
    "episode.window=70",
    "optim.lr=1e-2",
    "train.steps=3",
    "train.updates_per_step=1",
    "kl.estimator=topk-reverse",
    "kl.top_k=3",
    "kl.beta=0.1",
    "anchor.kind=ema",
    "algo.advantage=grpo",
    "algo.entropy_coef=0.01",
    "rollout.overlong_buffer=40",
    "eval.at_start=false",
    "eval.problems=4",
    "eval.reference=" ROOT "/model",
    "checkpoint.every=1",
    "run.threads=1",
    NULL,
};
static const char *const reproduction[] = {"algo.reproduction=true", NULL};

static int setup(void **state)
{
    (void)state;
    fresh(ROOT);
    make_agent(ROOT, "1 + 2 = 3 and 4 * 5 = 20 <result> </result>", 7, false);
    return 0;
}

static struct kg_config *config(const char *dir, const char *const *extra)
{
    const char *const *const lists[] = {base, extra};

    return config_from(dir, lists, 2);
}

static bool has_metric(const char *dir, const char *name)
{
    struct kg_str text = {0};
    char path[256], key[128];
    bool found;

    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    snprintf(key, sizeof key, "\"%s\": ", name);
    NEED(kg_file_read(&text, path, 1u << 24, err));
    found = strstr(kg_str_text(&text), key) != NULL;
    kg_str_release(&text);
    return found;
}

static void open_window(struct opened *o, const char *dir, const char *const *extra)
{
    NEED(kg_file_remove_tree(dir, err));
    open_config(o, config(dir, extra));
}

static void sample(struct kg_rl_batch *b, struct opened *o)
{
    disturb(o->run.state.anchor);
    NEED(kg_rl_sample(b, &o->run.in, &o->run.state, &o->run.work, err));
    NEED(kg_rl_prepare(b, &o->run.in, &o->run.state, &o->run.work, err));
}

/* Log-probs of tokens [from, end) by one forward over them, into logp[from ..]. */
static void score(float *logp, const struct kg_model *m, const struct kg_traj *t,
                  size_t from, size_t end)
{
    struct kg_score_seq seq = {.tokens = t->tokens + from,
                               .n = end - from,
                               .temperature = t->temperature,
                               .logp = logp + from};

    score_one(m, &seq, 0, 0);
}

/* The first token of the window in which token j was sampled. */
static size_t seen_from(const struct kg_traj *t, size_t j)
{
    size_t from = 0;

    for (size_t i = 0; i < t->n_windows && t->windows[i].begin <= j; i++)
        from = t->windows[i].from;
    return from;
}

/* ---- contexts of log-probs ---- */

static void check_batch(const struct kg_rl_batch *b, const struct kg_run *run)
{
    float whole[256], own[256], anchor[256], held[256];

    for (size_t i = 0; i < b->n_trajs; i++) {
        const struct kg_traj *t = &b->trajs[i];
        int64_t at = b->begin[i];

        score(whole, run->state.model, t, 0, t->n);
        score(anchor, run->state.anchor, t, 0, t->n);
        for (size_t j = 0; j < t->n; j++) {
            size_t from = seen_from(t, j);

            if (t->source[j] != KG_SOURCE_MODEL)
                continue;
            score(own, run->state.model, t, from, t->n);
            score(held, run->state.anchor, t, from, t->n);
            assert_true(b->mu_logp[at] == (double)own[j]);
            assert_true(b->old_logp[at] == (double)(b->whole ? whole : own)[j]);
            assert_true(b->anchor_logp[at] == (double)(b->whole ? anchor : held)[j]);
            at++;
        }
        assert_int_equal(at, b->begin[i + 1]);
    }
}

/* The sums of an evaluation also use the contexts that were sampled from. */
static void check_sums(const struct kg_rl_batch *b, const struct kg_run *run)
{
    struct kg_eval_answer sums[9];
    float own[256], held[256];

    assert_int_equal(b->n_trajs, 9);
    NEED(kg_eval_token_sums(sums, run->state.model, run->state.anchor, run->work.rows,
                            b->trajs, 9, err));
    for (size_t i = 0; i < 9; i++) {
        const struct kg_traj *t = &b->trajs[i];
        double k1 = 0;

        for (size_t j = 0; j < t->n; j++) {
            size_t from = seen_from(t, j);

            if (t->source[j] != KG_SOURCE_MODEL)
                continue;
            score(own, run->state.model, t, from, t->n);
            score(held, run->state.anchor, t, from, t->n);
            k1 += (double)own[j] - (double)held[j];
        }
        assert_true(k1 != 0 && sums[i].kl_k1 == k1);
    }
}

static size_t windows_of(const struct kg_rl_batch *b)
{
    size_t n = 0;

    for (size_t i = 0; i < b->n_trajs; i++)
        n += b->trajs[i].n_windows;
    return n;
}

static void log_probs_are_of_the_context_that_is_trained(void **state)
{
    static const char *const *const ways[] = {NULL, reproduction};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct kg_rl_batch b = {0};
        struct opened o;

        open_window(&o, ROOT "/numbers", ways[i]);
        sample(&b, &o);
        assert_true(windows_of(&b) > 9);
        assert_true(b.whole == (i == 1));
        check_batch(&b, &o.run);
        check_sums(&b, &o.run);
        kg_rl_batch_release(&b);
        close_run(&o);
    }
}

/* Top ids come from the context of the ratio, which is the whole text. */
static void a_reproduction_takes_top_ids_of_the_whole_text(void **state)
{
    struct kg_rl_batch b = {0};
    struct opened o;
    int64_t apart = 0, at = 0;

    (void)state;
    open_window(&o, ROOT "/top", reproduction);
    sample(&b, &o);
    for (size_t i = 0; i < b.n_trajs; i++) {
        const struct kg_traj *t = &b.trajs[i];
        int32_t ids[256 * 3];
        float logp[256], top[256 * 3];
        struct kg_score_seq seq = {.tokens = t->tokens,
                                   .n = t->n,
                                   .temperature = t->temperature,
                                   .logp = logp,
                                   .top_ids = ids,
                                   .top_logp = top};

        score_one(o.run.state.model, &seq, 0, 3);
        for (size_t j = 0; j < t->n; j++) {
            if (t->source[j] != KG_SOURCE_MODEL)
                continue;
            assert_memory_equal(b.ids + at * b.k, ids + j * 3, 3 * sizeof *ids);
            assert_true(b.mu_at[at * b.k] == (double)top[j * 3]);
            apart += memcmp(ids + j * 3, t->top_ids + j * 3, 3 * sizeof *ids) != 0;
            at++;
        }
    }
    assert_true(apart > 5); /* the recorded ids differ */
    kg_rl_batch_release(&b);
    close_run(&o);
}

/* The anchor that is the sampling policy uses the context of the ratio, too. */
static void an_iterative_anchor_is_the_policy_there_too(void **state)
{
    static const char *const iterative[] = {"algo.reproduction=true",
                                            "anchor.kind=iterative", "kl.estimator=k3",
                                            "kl.top_k=32", NULL};
    struct kg_rl_batch b = {0};
    struct opened o;

    (void)state;
    open_window(&o, ROOT "/iterative", iterative);
    NEED(kg_rl_sample(&b, &o.run.in, &o.run.state, &o.run.work, err));
    NEED(kg_rl_prepare(&b, &o.run.in, &o.run.state, &o.run.work, err));
    assert_true(windows_of(&b) > 0);
    assert_memory_equal(b.anchor_logp, b.old_logp, (size_t)b.n * sizeof *b.old_logp);
    kg_rl_batch_release(&b);
    close_run(&o);
}

/* ---- the gradient ---- */

static int group_called;
static kg_status add_up(void *user, const struct kg_slab *grads, struct kg_err *e)
{
    group_called++;
    return kg_slab_add(user, grads, e);
}

static struct kg_slab gradient(struct kg_rl_batch *b, struct kg_run *run)
{
    struct kg_rl_totals totals = {0};
    const struct kg_slab *like = &run->state.model->master;
    struct kg_slab sum;

    NEED(kg_slab_init(&sum, like->backend, like->n, "gradient", err));
    NEED(kg_rl_gradients(&totals, b, run, &run->in.algo, add_up, &sum, err));
    return sum;
}

/* out <- part x of t as a trajectory of its own, whose prompt is the context of the
 * part. */
static void part_alone(struct kg_traj *out, const struct kg_traj *t, size_t x)
{
    struct kg_traj_part p = kg_traj_part(t, x, false);
    size_t k = (size_t)t->top_k;

    *out = (struct kg_traj){.top_k = t->top_k,
                            .prompt_index = t->prompt_index,
                            .temperature = t->temperature,
                            .finish = KG_FINISH_STOP,
                            .graded = true};
    NEED(
        kg_traj_append(out, t->tokens + p.from, p.begin - p.from, KG_SOURCE_PROMPT, err));
    for (size_t j = p.begin; j < p.end; j++) {
        struct kg_traj_step step = {.token = t->tokens[j],
                                    .logp = t->logp[j],
                                    .top_ids = t->top_ids + j * k,
                                    .top_logp = t->top_logp + j * k};

        NEED(t->source[j] == KG_SOURCE_MODEL
                 ? kg_traj_push(out, &step, err)
                 : kg_traj_append(out, &step.token, 1, t->source[j], err));
    }
}

/* out <- the batch with each part as a trajectory; token-mean counts tokens, so the loss
 * stays the same. */
static void split(struct kg_rl_batch *out, const struct kg_rl_batch *b)
{
    size_t n = windows_of(b) + b->n_trajs, to = 0;

    *out = (struct kg_rl_batch){.group = 1, .n_trajs = n, .n_learned = n};
    out->trajs = kg_mem_calloc(n, sizeof *out->trajs, "test", &(struct kg_err){0});
    out->grades = kg_mem_calloc(n, sizeof *out->grades, "test", &(struct kg_err){0});
    for (size_t i = 0; i < b->n_trajs; i++)
        for (size_t x = 0; x < kg_traj_n_parts(&b->trajs[i], false); x++)
            part_alone(&out->trajs[to++], &b->trajs[i], x);
}

/* A trajectory with several contexts has the gradient of its turns, each by itself. */
static void the_gradient_is_that_of_every_turn_in_its_context(void **state)
{
    struct kg_rl_batch b = {0}, turns;
    struct opened o;
    double apart = 0, size = 0;
    struct kg_slab whole, parts;

    (void)state;
    open_window(&o, ROOT "/gradient", NULL);
    sample(&b, &o);
    assert_true(windows_of(&b) > 9);
    split(&turns, &b);
    NEED(kg_rl_prepare(&turns, &o.run.in, &o.run.state, &o.run.work, err));
    assert_int_equal(turns.n, b.n);
    assert_memory_equal(turns.tokens, b.tokens, (size_t)b.n * sizeof *b.tokens);
    for (int64_t i = 0; i < b.n; i++)
        turns.advantage[i] = b.advantage[i] = (double)(i * i % 7) - 3;
    for (int64_t i = 0; i < o.run.state.model->n_elements; i++) /* ratios other than 1 */
        o.run.state.model->master.data[i] *= 1 + 0.02f * (float)(i % 5 - 2);
    NEED(kg_model_refresh(o.run.state.model, err));
    whole = gradient(&b, &o.run);
    parts = gradient(&turns, &o.run);
    for (int64_t i = 0; i < o.run.state.model->n_elements; i++) {
        apart += pow((double)whole.data[i] - (double)parts.data[i], 2);
        size += (double)whole.data[i] * (double)whole.data[i];
    }
    assert_true(size > 1e-9);
    assert_true(sqrt(apart / size) < 1e-5);
    assert_int_equal(group_called, 3 + (int)turns.n_trajs);
    kg_slab_release(&whole);
    kg_slab_release(&parts);
    kg_rl_batch_release(&turns);
    kg_rl_batch_release(&b);
    close_run(&o);
}

/* ---- runs ---- */

static void train(const char *dir, bool resume, const char *const *extra)
{
    struct kg_config *c = config(dir, extra);

    if (!resume)
        NEED(kg_file_remove_tree(dir, err));
    NEED(kg_train_run(c, resume, false, err));
    kg_config_free(c);
}

static void a_step_counts_its_windows(void **state)
{
    static const char *const one[] = {"train.steps=1", NULL};
    static const char *const full[] = {"train.steps=1", "algo.reproduction=true", NULL};
    static const char *const plain[] = {"train.steps=1", "algo.reproduction=true",
                                        "episode.window=0", NULL};

    (void)state;
    train(ROOT "/own", false, one);
    assert_true(last_metric(ROOT "/own", "episode/windowed") > 1);
    assert_true(last_metric(ROOT "/own", "val/episode/windowed") > 1);
    assert_true(last_metric(ROOT "/own", "mismatch/first_update_max") == 0);
    assert_true(last_metric(ROOT "/own", "policy/mismatch_max") == 0);
    assert_true(fabs(last_metric(ROOT "/own", "val/kl")) < 1); /* KL to the start */
    assert_false(has_metric(ROOT "/own", "mismatch/window"));
    train(ROOT "/full", false, full);
    assert_true(last_metric(ROOT "/full", "mismatch/first_update_max") == 0);
    assert_true(last_metric(ROOT "/full", "policy/mismatch_max") > 1e-3);
    assert_true(last_metric(ROOT "/full", "mismatch/window") > 0.2);
    assert_true(last_metric(ROOT "/full", "mismatch/window") < 0.9);
    assert_true(last_metric(ROOT "/full", "mismatch/window_nats") > 1e-3);
    train(ROOT "/plain", false, plain);
    assert_true(last_metric(ROOT "/plain", "episode/windowed") == 0);
    assert_true(last_metric(ROOT "/plain", "policy/mismatch_max") == 0);
    assert_false(has_metric(ROOT "/plain", "mismatch/window"));
}

static void a_resumed_run_gives_the_same_bits_in_any_batch(void **state)
{
    static const char *const two[] = {"train.steps=2", NULL};
    static const char *const other[] = {"rollout.max_batch=9", "episode.open=11", NULL};

    (void)state;
    train(ROOT "/once", false, NULL);
    train(ROOT "/twice", false, two);
    train(ROOT "/twice", true, other);
    assert_same_file(ROOT "/once", ROOT "/twice",
                     "checkpoints/step-000003/model/model.safetensors");
    assert_same_file(ROOT "/once", ROOT "/twice", "rollouts/step-000003.jsonl.zst");
}

/* A dump has the windows, so a replay computes the gradients of the step. */
static void a_replay_reads_every_turn_in_its_context(void **state)
{
    static const char *const two[] = {"train.steps=2", "rollout.top_p=0.9", NULL};
    struct kg_replay r;

    (void)state;
    train(ROOT "/replayed", false, two);
    NEED(kg_replay_run(&r, ROOT "/replayed", 2, NULL, 0, err));
    assert_true(r.apart_max == 0);
    assert_true(fabs(r.row[KG_REPLAY_LOSS].value -
                     last_metric(ROOT "/replayed", "loss/total")) < 1e-9);
}

/* Edits a dump: every token after the first window becomes a turn with a window from
 * token 1. */
static void widen(const char *dump)
{
    struct kg_zst_writer *w;
    struct kg_str text = {0}, out = {0};
    struct kg_json_doc doc;
    const char *at, *line;
    size_t n;
    int64_t begin;

    NEED(kg_zst_read(&text, dump, 1 << 24, err));
    at = strstr(kg_str_text(&text), "\"windows\":[[");
    assert_non_null(at);
    for (line = at; line > text.data && line[-1] != '\n';)
        line--;
    NEED(kg_json_parse(&doc, line, strcspn(line, "\n"), "line", err));
    n = kg_json_size(kg_json_get(doc.root, "tokens"));
    begin = kg_json_int(kg_json_at(kg_json_at(kg_json_get(doc.root, "windows"), 0), 0),
                        0);
    kg_json_release(&doc);
    NEED(kg_str_append(&out, text.data, (size_t)(at - text.data), err));
    for (int64_t t = begin; t < (int64_t)n; t++)
        NEED(kg_str_printf(&out, err, "%s[%lld,1]", t == begin ? "\"windows\":[" : ",",
                           (long long)t));
    NEED(kg_str_puts(&out, strstr(at, "]]") + 1, err));
    NEED(kg_zst_open(&w, dump, 0, err));
    NEED(kg_zst_put(w, out.data, out.len, err));
    NEED(kg_zst_close(w, err));
    kg_str_release(&text);
    kg_str_release(&out);
}

static void windows_beyond_a_pack_are_an_error(void **state)
{
    static const char *const two[] = {"train.steps=2", "train.micro_tokens=512", NULL};
    struct kg_replay r;
    struct kg_err e;

    (void)state;
    train(ROOT "/widened", false, two);
    widen(ROOT "/widened/rollouts/step-000002.jsonl.zst");
    assert_int_equal(kg_replay_run(&r, ROOT "/widened", 2, NULL, 0, &e), KG_EFORMAT);
    if (!strstr(e.message, "with all its windows, found"))
        fail_msg("%s", e.message);
}

/* ---- refusals ---- */

static void expect_refusal(const char *const *extra, const char *word)
{
    struct kg_config *c = config(ROOT "/refused", extra);
    struct kg_run run;
    struct kg_err e = {0};

    assert_int_equal(kg_run_open(&run, c, &e), KG_EINVAL);
    if (!strstr(e.message, word))
        fail_msg("expected '%s' in: %s", word, e.message);
    kg_config_free(c);
}

static void limits_that_are_none_are_refused(void **state)
{
    static const char *const wide[] = {"episode.window=200", NULL};
    static const char *const narrow[] = {"episode.window=2", NULL};
    static const char *const long_answer[] = {"episode.answer_tokens=200", NULL};
    static const char *const far[] = {"episode.window=250", "episode.context=400",
                                      "episode.answer_tokens=0", NULL};
    static const char *const whole[] = {"episode.context=400", "algo.reproduction=true",
                                        "episode.answer_tokens=0", NULL};

    (void)state;
    expect_refusal(wide, "episode.window: expected fewer than episode.context (200)");
    expect_refusal(narrow, "episode.window: expected at least the longest prompt's");
    expect_refusal(long_answer, "episode.answer_tokens: expected fewer than");
    expect_refusal(far, "the model's 256 positions, found 259");
    expect_refusal(whole, "the model's 256 positions, found 400");
}

/* A model with 256 positions can play episodes of 400 tokens, window by window. */
static void an_episode_may_be_longer_than_the_models_positions(void **state)
{
    static const char *const long_ones[] = {
        "episode.context=400",       "episode.answer_tokens=0", "episode.turns=15",
        "rollout.overlong_buffer=0", "train.steps=1",           NULL};
    struct kg_config *c = config(ROOT "/long", long_ones);
    struct kg_str out = {0};

    (void)state;
    NEED(kg_train_plan(&out, c, false, 1, err));
    assert_non_null(strstr(out.data, "a turn is sampled from the newest 70 tokens and "
                                     "trained in the same context"));
    kg_str_release(&out);
    kg_config_free(c);
    train(ROOT "/long", false, long_ones);
    assert_true(last_metric(ROOT "/long", "mismatch/first_update_max") == 0);
    assert_true(last_metric(ROOT "/long", "episode/windowed") > 8);
    assert_true(last_metric(ROOT "/long", "length/max") +
                    last_metric(ROOT "/long", "episode/observed_tokens") >
                256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_probs_are_of_the_context_that_is_trained),
        cmocka_unit_test(a_reproduction_takes_top_ids_of_the_whole_text),
        cmocka_unit_test(an_iterative_anchor_is_the_policy_there_too),
        cmocka_unit_test(the_gradient_is_that_of_every_turn_in_its_context),
        cmocka_unit_test(a_step_counts_its_windows),
        cmocka_unit_test(a_resumed_run_gives_the_same_bits_in_any_batch),
        cmocka_unit_test(a_replay_reads_every_turn_in_its_context),
        cmocka_unit_test(windows_beyond_a_pack_are_an_error),
        cmocka_unit_test(limits_that_are_none_are_refused),
        cmocka_unit_test(an_episode_may_be_longer_than_the_models_positions),
    };

    return RUN_SHOWN(tests, setup, NULL);
}
