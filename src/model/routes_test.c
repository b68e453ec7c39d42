/* Experts that are given to tokens: those that the routers would choose change no bit,
 * others are used instead, and the loss under given experts is smooth.
 */
#include "model/model_testing.h"
#include "model/rows.h"

enum { LONG = 70, MOST_CHOICES = 16 };

static const char *const names[] = {"qwen3_moe", "qwen2_moe", "mixtral", "olmoe"};
enum { N_NAMES = sizeof names / sizeof *names };

/* One sequence, its rows, and the gradient of its mean negative log-likelihood. */
struct subject {
    struct kg_model *m;
    struct kg_rows *rows;
    int32_t tokens[LONG];
    size_t c;
    float *grads; /* (n_elements) */
    float logp[LONG];
};

static void subject_open(struct subject *s, const char *name, enum kg_dtype ct,
                         bool checkpoint)
{
    const struct kg_rows_opts opts = {.max_tokens = 2 * LONG,
                                      .experts = true,
                                      .backward = true,
                                      .checkpoint = checkpoint};
    char dir[128];
    snprintf(dir, sizeof dir, "tests/data/reference/%s", name);
    s->m = test_open(dir, ct, true);
    s->c = (size_t)kg_model_config_choices(&s->m->config);
    assert_true(s->c > 0 && s->c <= MOST_CHOICES);
    NEED(kg_rows_create(&s->rows, s->m, &opts, err));
    test_tokens(s->tokens, LONG, s->m->config.vocab, 4);
    s->grads = buffer_of(s->m->n_elements, sizeof *s->grads);
}

static void subject_close(struct subject *s)
{
    buffer_free(s->grads);
    kg_rows_free(s->rows);
    kg_model_free(s->m);
}

/* experts: (LONG,C), or NULL.   backward: s->grads <- the gradient.   returns the loss */
static double run(struct subject *s, const uint16_t *experts, bool backward)
{
    struct kg_rows *p = s->rows;
    double loss = 0;
    kg_rows_begin(p, s->m, 0);
    kg_rows_add_seq(p, &(struct kg_rows_seq){s->tokens, LONG, 0, experts});
    for (int32_t i = 0; i + 1 < LONG; i++)
        kg_rows_want(p, i, s->tokens[i + 1], 1, NULL);
    NEED(kg_rows_forward(p, backward, err));
    NEED(kg_rows_ask(p, NULL, err));
    for (int64_t i = 0; i < p->n_rows; i++) {
        s->logp[i] = p->logp[i];
        loss -= (double)p->logp[i] / LONG;
        p->a_logp[i] = -1.0 / LONG;
    }
    if (backward) {
        memset(s->grads, 0, (size_t)s->m->n_elements * sizeof *s->grads);
        NEED(kg_rows_backward(p, s->grads, false, err));
    }
    return loss;
}

static void check_own_choices(const char *name, enum kg_dtype ct, bool checkpoint)
{
    struct subject s;
    uint16_t own[LONG * MOST_CHOICES], again[LONG * MOST_CHOICES];
    float logp[LONG];
    subject_open(&s, name, ct, checkpoint);
    const size_t bytes = (size_t)s.m->n_elements * sizeof *s.grads;
    float *grads = test_alloc(1, bytes);
    run(&s, NULL, true);
    NEED(kg_rows_experts(own, s.rows, 0, LONG, err));
    memcpy(grads, s.grads, bytes);
    memcpy(logp, s.logp, sizeof logp);
    /* as in a trajectory, whose last token has none */
    for (size_t i = 0; i < s.c; i++)
        own[(LONG - 1) * s.c + i] = KG_NO_EXPERT;
    run(&s, own, true);
    assert_memory_equal(s.logp, logp, (LONG - 1) * sizeof *logp);
    assert_memory_equal(s.grads, grads, bytes);
    NEED(kg_rows_experts(again, s.rows, 0, LONG, err));
    assert_memory_equal(again, own, (LONG - 1) * s.c * sizeof *own);
    assert_true(again[(LONG - 1) * s.c] < s.m->config.experts.n);
    kg_mem_free(grads);
    subject_close(&s);
}

static void own_choices_change_no_bit(void **state)
{
    (void)state;
    for (int i = 0; i < 4 * N_NAMES; i++)
        check_own_choices(names[i / 4], i % 2 ? KG_BF16 : KG_F32, i / 2 % 2);
}

/* Experts that no router would choose: they change with the token and the layer. */
static void others(uint16_t *to, const struct subject *s)
{
    const size_t k = (size_t)s->m->config.experts.k;
    for (size_t i = 0; i < LONG * s->c; i++)
        to[i] = (uint16_t)((i / s->c + i / k % 3 + 2 * (i % k)) %
                           (size_t)s->m->config.experts.n);
}

/* With given experts the loss has no jumps, so every slope agrees at one step. */
static void gradients_of_given_experts_are_slopes(void **state)
{
    (void)state;
    const float h = 0.005f;
    for (int n = 0; n < N_NAMES; n++) {
        struct subject s;
        uint16_t given[LONG * MOST_CHOICES], had[LONG * MOST_CHOICES];
        subject_open(&s, names[n], KG_F32, true);
        others(given, &s);
        run(&s, given, true);
        NEED(kg_rows_experts(had, s.rows, 0, LONG, err));
        assert_memory_equal(had, given, LONG * s.c * sizeof *had);
        for (size_t i = 0; i < s.m->n_params; i += 5) {
            const struct kg_param *p = &s.m->params[i];
            const int64_t at = test_largest(s.grads + p->offset, p->rows * p->cols);
            const double have = (double)s.grads[p->offset + at];
            float *w = p->master + at, old = *w;
            *w = old + h;
            NEED(kg_model_refresh(s.m, err));
            const double above = run(&s, given, false);
            *w = old - h;
            NEED(kg_model_refresh(s.m, err));
            const double below = run(&s, given, false);
            *w = old;
            if (fabs(have - (above - below) / (2 * (double)h)) >
                1e-4 + 0.005 * fabs(have))
                fail_msg("%s %s[%lld]: gradient %g, finite difference %g", names[n],
                         p->name, (long long)at, have, (above - below) / (2 * (double)h));
        }
        subject_close(&s);
    }
}

/* A sequence without given experts chooses as it does in a forward of its own. */
static void a_sequence_beside_one_that_is_given_experts_chooses(void **state)
{
    struct subject s;
    uint16_t given[LONG * MOST_CHOICES], own[LONG * MOST_CHOICES];
    uint16_t had[LONG * MOST_CHOICES];
    (void)state;
    subject_open(&s, "qwen2_moe", KG_F32, true);
    others(given, &s);
    run(&s, NULL, false);
    NEED(kg_rows_experts(own, s.rows, 0, LONG, err));
    assert_memory_not_equal(own, given, LONG * s.c * sizeof *own);
    kg_rows_begin(s.rows, s.m, 0);
    kg_rows_add(s.rows, s.tokens, LONG);
    kg_rows_add_seq(s.rows, &(struct kg_rows_seq){s.tokens, LONG, 0, given});
    kg_rows_want(s.rows, 0, -1, 1, NULL);
    NEED(kg_rows_forward(s.rows, false, err));
    NEED(kg_rows_experts(had, s.rows, 0, LONG, err));
    assert_memory_equal(had, own, LONG * s.c * sizeof *own);
    NEED(kg_rows_experts(had, s.rows, LONG, LONG, err));
    assert_memory_equal(had, given, LONG * s.c * sizeof *own);
    subject_close(&s);
}

static void an_expert_that_is_none_is_refused(void **state)
{
    struct subject s;
    struct kg_err why;
    uint16_t given[LONG * MOST_CHOICES];
    (void)state;
    subject_open(&s, "mixtral", KG_F32, true);
    others(given, &s);
    given[7 * s.c + 3] = 4;
    kg_rows_begin(s.rows, s.m, 0);
    kg_rows_add_seq(s.rows, &(struct kg_rows_seq){s.tokens, LONG, 0, given});
    kg_rows_want(s.rows, 0, -1, 1, NULL);
    assert_int_equal(kg_rows_forward(s.rows, false, &why), KG_EINVAL);
    assert_string_equal(why.message, "pack: token 7 has expert 4, expected one of 4");
    subject_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_choices_change_no_bit),
        cmocka_unit_test(gradients_of_given_experts_are_slopes),
        cmocka_unit_test(a_sequence_beside_one_that_is_given_experts_chooses),
        cmocka_unit_test(an_expert_that_is_none_is_refused),
    };
    return RUN_SHOWN(tests, NULL, NULL);
}
