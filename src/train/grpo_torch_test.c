/* GRPO with a KL to an anchor over five optimizer steps, against torch's autograd on
 * transformers' models: every architecture of tests/data/reference
 * (tools/oracle/make_grpo_reference.py defines the loss). For three of them (a window in
 * every layer; softcaps; experts) also the gradient of every tensor.
 */
#include "model/model_testing.h"

#include "model/optim.h"
#include "model/rows.h"
#include "policy/policy_testing.h"

enum { PROMPT = 3, SEQS = 2, STEPS = 5, TOKENS = TEST_REF_TOKENS - SEQS * PROMPT };
static const float inverse_temperature = 1 / 0.8f;

static const struct kg_optim_opts optim_opts = {
    .lr = 3e-3,
    .beta1 = 0.9,
    .beta2 = 0.999,
    .eps = 1e-8,
    .weight_decay = 0.01,
    .decay_all = true,
    .clip_norm = 1.0,
    .schedule = KG_SCHEDULE_CONSTANT,
};

struct golden {
    struct test_reference r;
    struct kg_algo algo;
    int64_t begin[SEQS + 1]; /* of completions, among their tokens */
    double advantage[TOKENS], old[TOKENS], anchor[TOKENS];
    double weight[3][TOKENS]; /* of policy, KL and entropy */
    double losses[STEPS + 1], norms[STEPS];
};

static void read_tokens(double *out, const struct kg_json *of_seqs)
{
    for (size_t s = 0, n = 0; s < SEQS; s++)
        for (size_t i = 0; i < kg_json_size(kg_json_at(of_seqs, s)); i++) {
            assert_true(n < TOKENS);
            out[n++] = kg_json_real(kg_json_at(kg_json_at(of_seqs, s), i), NAN);
        }
}

static void choose(struct kg_algo *algo)
{
    kg_algo_init(algo);
    must_set(algo, "algo.surrogate", "ppo-clip");
    must_set(algo, "algo.aggregate", "seq-mean-token-mean");
    must_set(algo, "anchor.kind", "fixed");
    must_set(algo, "kl.estimator", "k3");
    must_set(algo, "kl.importance", "false");
    must_set(algo, "kl.clamp", "false"); /* as in the formula */
    must_set(algo, "kl.beta", "0.1");
}

static void weigh(struct golden *g, const struct kg_json *advantage)
{
    const struct kg_policy_shape shape = {SEQS, g->begin, NULL};
    struct kg_policy_weights w = {g->weight[0], g->weight[1], g->weight[2]};
    for (int64_t s = 0; s < SEQS; s++) {
        g->begin[s + 1] = g->begin[s] + g->r.pack.seqs[s].n - PROMPT;
        for (int64_t i = g->begin[s]; i < g->begin[s + 1]; i++)
            g->advantage[i] = kg_json_real(kg_json_at(advantage, (size_t)s), NAN);
    }
    NEED(kg_policy_weights(&w, &g->algo, &shape, err));
}

static void golden_open(struct golden *g, const char *arch)
{
    struct kg_json_doc doc = {0};
    *g = (struct golden){0};
    test_reference_open(&g->r, arch);
    NEED(kg_json_read(&doc, kg_path_in(g->r.dir, "grpo.json").text, 1 << 20, err));
    choose(&g->algo);
    weigh(g, kg_json_get(doc.root, "advantage"));
    read_tokens(g->old, kg_json_get(doc.root, "old_logp"));
    read_tokens(g->anchor, kg_json_get(doc.root, "anchor_logp"));
    test_read_doubles(g->losses, STEPS + 1, kg_json_get(doc.root, "losses"));
    test_read_doubles(g->norms, STEPS, kg_json_get(doc.root, "grad_norms"));
    kg_json_release(&doc);
}

static void want_answers(struct kg_rows *p, const struct kg_model *m,
                         const struct golden *g)
{
    const int32_t *tokens = g->r.pack.tokens;
    kg_rows_begin(p, m, 0);
    for (int s = 0; s < SEQS; s++) {
        const int32_t n = g->r.pack.seqs[s].n;
        const int64_t row = kg_rows_add(p, tokens, (size_t)n);
        for (int32_t i = PROMPT; i < n; i++)
            kg_rows_want(p, row + i - 1, tokens[i], inverse_temperature, NULL);
        tokens += n;
    }
    assert_int_equal(p->n_rows, TOKENS);
}

/* The loss, and its gradient added to grads unless NULL. */
static double loss_of(struct kg_rows *p, const struct kg_model *m, const struct golden *g,
                      float *grads)
{
    double logp[TOKENS];
    struct kg_policy_grad out = {.a_logp = p->a_logp};
    const struct kg_policy_batch b = {.n_seqs = SEQS,
                                      .n_tokens = TOKENS,
                                      .seq_begin = g->begin,
                                      .logp = logp,
                                      .old_logp = g->old,
                                      .anchor_logp = g->anchor,
                                      .advantage = g->advantage,
                                      .pg_weight = g->weight[0],
                                      .kl_weight = g->weight[1],
                                      .entropy_weight = g->weight[2]};
    want_answers(p, m, g);
    NEED(kg_rows_forward(p, true, err));
    NEED(kg_rows_ask(p, NULL, err));
    for (int64_t i = 0; i < TOKENS; i++)
        logp[i] = (double)p->logp[i];
    NEED(kg_policy_loss(&out, &g->algo, &b, err));
    if (grads)
        NEED(kg_rows_backward(p, grads, false, err));
    return out.loss;
}

/* Relative error; the floor of 0.1 is the size of losses (norms are near 1). */
static double apart(double found, double expected)
{
    return fabs(found - expected) / fmax(fabs(expected), 0.1);
}

/* with_grads: also compares every tensor's gradient in the first step */
static void check(const char *arch, bool with_grads)
{
    const struct kg_rows_opts room = {.max_tokens = TEST_REF_TOKENS, .backward = true};
    struct golden g;
    golden_open(&g, arch);
    struct kg_model *m = test_open(g.r.dir, KG_F32, true);
    struct kg_rows *p = NULL;
    struct kg_optim *o = NULL;
    double losses = 0.0, norms = 0.0, norm = 0.0, lr = 0.0;
    NEED(kg_rows_create(&p, m, &room, err));
    NEED(kg_optim_create(&o, m, &optim_opts, err));
    for (int i = 0; i < STEPS; i++) {
        NEED(kg_slab_zero(&o->grads, err));
        losses = fmax(losses, apart(loss_of(p, m, &g, o->grads.data), g.losses[i]));
        if (i == 0 && with_grads)
            printf(
                "%s: a tensor's gradient within %.2e of torch's\n", arch,
                test_against_torch(m, o->grads.data, g.r.dir, "grpo_grads.safetensors"));
        NEED(kg_optim_update(o, m, &norm, &lr, err));
        norms = fmax(norms, apart(norm, g.norms[i]));
    }
    losses = fmax(losses, apart(loss_of(p, m, &g, NULL), g.losses[STEPS]));
    printf("%s: losses within %.2e, norms within %.2e of torch's\n", arch, losses, norms);
    if (losses > 1e-4 || norms > 1e-4)
        fail_msg("%s: expected 1e-4", arch);
    kg_optim_free(o);
    kg_rows_free(p);
    kg_model_free(m);
    test_reference_close(&g.r);
}

static void test_grpo_follows_torch(void **state)
{
    static const char *const with_grads[] = {"mistral", "gemma2", "olmoe"};
    int compared = 0;
    (void)state;
    for (int i = 0; i < TEST_ALL_ARCHS; i++) {
        bool with = false;
        for (size_t j = 0; j < sizeof with_grads / sizeof *with_grads; j++)
            with |= strcmp(test_archs[i], with_grads[j]) == 0;
        check(test_archs[i], with);
        compared += with;
    }
    assert_int_equal(compared, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_grpo_follows_torch)};
    return RUN_SHOWN(tests, NULL, NULL);
}
