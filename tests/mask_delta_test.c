/* The mask-delta diagnostic of DPPO (preset dppo-mask-delta-stability) in a short run:
 * PG-IS without the tokens of A < 0 whose probability fell by more than delta. Its
 * metrics are counted again from the dump and the checkpoints' weights. With a delta that
 * no token exceeds, the run must equal PG-IS. */
#define ROOT "build/test-runs/mask-delta"
#include "run_testing.h"

#include "data/jsonl.h"
#include "model/model.h"
#include "rollout/score_testing.h"

#include <math.h>

enum { STEPS = 6, MOST = 16, LONGEST = 64 };
static const double DELTA = 0.5;

/* The sampler is two steps old and the learning rate is high, so probabilities fall. */
#define SMALL                                                                            \
    "rollout.prompts=8", "rollout.samples=8", "rollout.max_tokens=12",                   \
        "data.max_prompt_tokens=64", "train.updates_per_step=1", "optim.lr=5e-2",        \
        "rollout.lag=2", "train.steps=6", "checkpoint.every=1", "checkpoint.keep=20",    \
        "checkpoint.dtype=fp32", "eval.at_start=false", "eval.every=0",                  \
        "eval.samples=1", "model.dtype=fp32", "run.threads=1"

static const char *const diagnostic[] = {"algo.preset=dppo-mask-delta-stability", SMALL,
                                         NULL};
static const char *const nothing_falls[] = {"algo.preset=dppo-mask-delta-stability",
                                            SMALL, "algo.delta_low=1", NULL};
static const char *const pg_is[] = {"algo.preset=pg-is-stability", SMALL, NULL};

static int make_runs(void **state)
{
    (void)state;
    fresh(ROOT "/own");
    fresh(ROOT "/open");
    fresh(ROOT "/pg-is");
    must_train(ROOT "/own", false, diagnostic);
    must_train(ROOT "/open", false, nothing_falls);
    must_train(ROOT "/pg-is", false, pg_is);
    return 0;
}

/* ---- metrics counted again ---- */

struct counts {
    double tokens, positive, negative;
    double dropped, p, mu; /* A < 0, mu - p > DELTA: count, sums */
    double risen;          /* with A > 0 and p - mu > DELTA: not masked */
    double least;          /* smallest p - mu */
};

static void add_answer(struct counts *c, const struct kg_model *m,
                       const struct kg_json *line)
{
    const struct kg_json *tokens = kg_json_get(line, "tokens"),
                         *logp = kg_json_get(line, "logp");
    const char *source = kg_json_text(kg_json_get(line, "source"), NULL);
    double advantage = kg_json_real(kg_json_get(line, "advantage"), NAN);
    size_t n = kg_json_size(tokens);
    int32_t ids[LONGEST];
    float now[LONGEST];
    struct kg_score_seq seq = {.tokens = ids, .n = n, .temperature = 1, .logp = now};

    assert_true(n <= LONGEST && !isnan(advantage));
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)kg_json_int(kg_json_at(tokens, i), -1);
    score_one(m, &seq, 0, 0);
    for (size_t i = 0; i < n; i++) {
        double p = exp(now[i]), mu = exp(kg_json_real(kg_json_at(logp, i), 0));
        bool drop = advantage < 0 && mu - p > DELTA;

        if (source[i] != 'm')
            continue;
        c->tokens++;
        c->positive += advantage > 0;
        c->negative += advantage < 0;
        c->dropped += drop;
        c->p += drop ? p : 0;
        c->mu += drop ? mu : 0;
        c->risen += advantage > 0 && p - mu > DELTA;
        c->least = fmin(c->least, p - mu);
    }
}

static struct counts count_step(const char *dir, int step)
{
    const struct kg_model_opts opts = {.ct = KG_F32, .trainable = false};
    struct counts c = {0};
    struct kg_str text = {0};
    struct kg_model *m;
    char path[256];

    snprintf(path, sizeof path, "%s/checkpoints/step-%06d/model", dir, step - 1);
    NEED(kg_model_open(&m, path, &opts, err));
    snprintf(path, sizeof path, "%s/rollouts/step-%06d.jsonl.zst", dir, step);
    NEED(kg_zst_read(&text, path, 1 << 24, err));
    for (const char *p = text.data; *p; p += strcspn(p, "\n") + 1) {
        struct kg_json_doc doc;

        NEED(kg_json_parse(&doc, p, strcspn(p, "\n"), path, err));
        add_answer(&c, m, doc.root);
        kg_json_release(&doc);
    }
    kg_str_release(&text);
    kg_model_free(m);
    return c;
}

static double logged(const char *dir, const char *name, int step)
{
    double values[MOST];

    assert_true(step <= metrics_of(values, MOST, dir, name));
    return values[step - 1];
}

static bool near(double x, double y) { return fabs(x - y) < 1e-5; }

static void the_metrics_say_what_was_dropped(void **state)
{
    static const char dir[] = ROOT "/own";
    double dropped = 0, risen = 0;

    (void)state;
    for (int step = 2; step <= STEPS; step++) {
        struct counts c = count_step(dir, step);

        dropped += c.dropped;
        risen += c.risen;
        assert_true(near(logged(dir, "policy/prob_gap_min", step), c.least));
        assert_true(logged(dir, "region/masked_positive", step) == 0);
        assert_true(near(logged(dir, "region/masked_negative", step),
                         c.negative > 0 ? c.dropped / c.negative : 0));
        assert_true(near(logged(dir, "region/masked", step), c.dropped / c.tokens));
        if (c.dropped == 0)
            continue;
        assert_true(near(logged(dir, "region/masked_negative_p", step), c.p / c.dropped));
        assert_true(
            near(logged(dir, "region/masked_negative_mu", step), c.mu / c.dropped));
    }
    assert_true(dropped >= 5); /* some tokens fell */
    assert_true(risen >= 1);   /* some rose, which are not masked */
}

static void without_a_token_that_fell_it_is_pg_is(void **state)
{
    static const char weights[] = "checkpoints/latest/model/model.safetensors";

    (void)state;
    assert_same_file(ROOT "/open", ROOT "/pg-is", weights);
    assert_false(same_file(ROOT "/own", ROOT "/pg-is", weights));
    for (int step = 1; step <= STEPS; step++)
        assert_true(logged(ROOT "/open", "region/masked", step) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_metrics_say_what_was_dropped),
        cmocka_unit_test(without_a_token_that_fell_it_is_pg_is),
    };

    return cmocka_run_group_tests_name("mask-delta", tests, make_runs, NULL);
}
