/* Algorithms that are mathematically the same must give the same bits, over whole
 * training steps.
 *
 * With one update per step and no mismatch every ratio is 1. GRPO without KL, the DPPO
 * regions, CISPO and the RPG losses with equal advantage, aggregation and sampling are
 * then one algorithm. Also: corrected Top-k against an equal anchor must not move a
 * weight.
 */
#include "tensor/backend_testing.h"
#include "train/rl_testing.h"

#define ROOT "build/test-runs/equal"

enum { STEPS = 5, STILL_STEPS = 100, MOST_EXTRA = 16 };

/* Weights after n steps; the caller frees them.   elements out */
static float *weights_after(int64_t *elements, double *moved, const char *const *extra,
                            int n)
{
    struct opened o;
    struct kg_err e;
    float *before, *after;
    size_t bytes;

    open_run(&o, ROOT "/run", extra);
    disturb(o.run.state.model);
    NEED(kg_run_start_rl(&o.run.in, &o.run.state, err));
    *elements = o.run.state.model->n_elements;
    bytes = (size_t)*elements * sizeof *after;
    before = kg_mem_calloc(1, bytes, "test", &e);
    after = kg_mem_calloc(1, bytes, "test", &e);
    assert_true(before && after);
    memcpy(before, o.run.state.model->master.data, bytes);
    for (int i = 0; i < n; i++)
        NEED(kg_rl_step(&o.run, err));
    memcpy(after, o.run.state.model->master.data, bytes);
    *moved = 0;
    for (int64_t i = 0; i < *elements; i++)
        *moved = fmax(*moved, fabs((double)after[i] - before[i]));
    kg_mem_free(before);
    close_run(&o);
    return after;
}

/* ---- the families are one algorithm on-policy ---- */

static const struct family {
    const char *surrogate;
    const char *more[3];
} families[] = {
    {"ppo-clip", {NULL}},
    {"dppo-binary-tv", {NULL}},
    {"dppo-binary-kl", {NULL}},
    {"dppo-topk-tv", {"algo.top_k=4", NULL}},
    {"dppo-topk-kl", {"algo.top_k=4", NULL}},
    {"cispo", {NULL}},
    {"rpg-ufkl", {NULL}},
    {"rpg-urkl", {NULL}},
    /* with a coefficient, too: log r = 0, and the advantage is detached */
    {"rpg-ufkl", {"kl.beta=0.1", NULL}},
    {"rpg-urkl", {"kl.beta=0.1", "algo.rpg_detach=true", NULL}},
};

static float *train_family(int64_t *n, const struct family *f, const char *dtype,
                           const char *aggregate)
{
    char surrogate[64];
    const char *extra[MOST_EXTRA] = {surrogate,
                                     dtype,
                                     aggregate,
                                     "algo.advantage=dr-grpo",
                                     "train.updates_per_step=1",
                                     "train.micro_tokens=64",
                                     "log.rollouts=false",
                                     "rollout.prompts=3"};
    size_t at = 8;
    double moved;
    float *w;

    snprintf(surrogate, sizeof surrogate, "algo.surrogate=%s", f->surrogate);
    for (const char *const *m = f->more; *m; m++)
        extra[at++] = *m;
    w = weights_after(n, &moved, extra, STEPS);
    if (!(moved > 1e-3))
        fail_msg("%s: the weights moved by %g", f->surrogate, moved);
    return w;
}

static void families_agree(const char *dtype, const char *aggregate)
{
    int64_t n;
    float *first = train_family(&n, &families[0], dtype, aggregate);

    for (size_t i = 1; i < sizeof families / sizeof *families; i++) {
        float *w = train_family(&n, &families[i], dtype, aggregate);

        if (memcmp(first, w, (size_t)n * sizeof *w) != 0)
            fail_msg("%s (%s, %s): other weights than %s after %d steps",
                     families[i].surrogate, dtype, aggregate, families[0].surrogate,
                     STEPS);
        kg_mem_free(w);
    }
    kg_mem_free(first);
}

static void families_give_the_same_weights_with_one_update_a_step(void **state)
{
    (void)state;
    families_agree("model.dtype=fp32", "algo.aggregate=token-mean");
    families_agree("model.dtype=auto", "algo.aggregate=seq-mean-token-mean");
}

/* Proves that the test can tell algorithms apart: the second of two updates is
 * off-policy, so a narrow clip differs from no clip. */
static void two_updates_a_step_tell_them_apart(void **state)
{
    const char *extra[] = {"algo.surrogate=ppo-clip",
                           "train.updates_per_step=2",
                           "model.dtype=fp32",
                           "algo.advantage=dr-grpo",
                           "algo.clip_low=1e-3",
                           "algo.clip_high=1e-3",
                           NULL};
    int64_t n;
    double moved;
    float *clipped = weights_after(&n, &moved, extra, 2), *unclipped;

    (void)state;
    extra[0] = "algo.surrogate=importance";
    extra[4] = NULL; /* it has no clip */
    unclipped = weights_after(&n, &moved, extra, 2);
    assert_true(memcmp(clipped, unclipped, (size_t)n * sizeof *clipped) != 0);
    kg_mem_free(clipped);
    kg_mem_free(unclipped);
}

/* ---- corrected Top-k has no gradient where anchor and policy are equal ---- */

static double moved_by(const char *estimator, const char *gradient, int steps)
{
    const char *extra[] = {"task.name=external",
                           "task.command=sed -u 's/.*/{\"score\": 0}/'",
                           estimator,
                           gradient,
                           "kl.top_k=4",
                           "kl.beta=0.1",
                           "anchor.kind=ema",
                           "anchor.period=2",
                           "train.updates_per_step=2",
                           "rollout.prompts=2",
                           "rollout.samples=2",
                           "rollout.max_tokens=4",
                           "log.rollouts=false",
                           NULL};
    int64_t n;
    double moved;

    kg_mem_free(weights_after(&n, &moved, extra, steps));
    return moved;
}

static void without_reward_corrected_top_k_moves_no_weight_in_100_steps(void **state)
{
    (void)state;
    assert_true(
        moved_by("kl.estimator=topk-reverse", "kl.gradient=corrected", STILL_STEPS) == 0);
    assert_true(
        moved_by("kl.estimator=topk-forward", "kl.gradient=corrected", STILL_STEPS) == 0);
}

static void without_reward_published_top_k_moves_them(void **state)
{
    (void)state;
    assert_true(moved_by("kl.estimator=topk-reverse", "kl.gradient=published", 2) > 0);
    assert_true(moved_by("kl.estimator=topk-forward", "kl.gradient=published", 2) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_give_the_same_weights_with_one_update_a_step),
        cmocka_unit_test(two_updates_a_step_tell_them_apart),
        cmocka_unit_test(without_reward_corrected_top_k_moves_no_weight_in_100_steps),
        cmocka_unit_test(without_reward_published_top_k_moves_them),
    };

    return RUN_SHOWN(tests, NULL, NULL);
}
