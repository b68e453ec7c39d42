/* Tokens that a device's kernels sample equal those of the host's sampler, bit for bit:
 * on the logits that the same head gives to the host, for rows that are hard to sample
 * from, with every sampling parameter. */
#include "rollout/rollout_testing.h"
#include "rollout/sampler.h"

#include "base/phase.h"
#include "base/rng.h"
#include "tensor/backend_testing.h"
#include "tensor/draw_inline.h"

#include <math.h>

/* ROWS: one row for each way to sample */
enum { ROWS = 13, MOST_V = 524801 };

static struct kg_err err;
static const struct kg_rng_key key = {11, KG_RNG_TEST};

/* ---- rows ---- */
/* The hidden state of a row is one number; logit v is that number times weights[v]. */
enum kind { NORMAL, FLAT, PEAKED, TIES, FORBIDDEN, FALLING, TWO, KINDS };

static float weight_of(enum kind kind, int32_t v, int32_t vocab, float normal)
{
    switch (kind) {
    case FLAT:
        return 0.25f;
    case PEAKED:
        return v == vocab / 3 ? 40 : normal;
    case TIES:
        return roundf(normal * 2) / 2;
    case FORBIDDEN:
        return v % 3 == 1 && vocab > 2 ? -INFINITY : normal;
    case FALLING:
        return -0.01f * (float)v;
    case TWO:
        return v == 0 || v == vocab - 1 ? 3 : -90;
    default:
        return normal * 3;
    }
}

struct problem {
    int32_t vocab;
    int64_t n;
    struct kg_head head;
    struct kg_sampling sampling[ROWS];
    double u[ROWS];
    double lse[ROWS];
    float *logits; /* (n,V) */
};

static const struct kg_sampling samplings[] = {
    {.temperature = 1, .top_p = 1},
    {.temperature = 0, .top_p = 0.5f},
    {.temperature = 1, .top_p = 0.9f},
    {.temperature = 1, .top_p = 1},
    {.temperature = 1, .top_p = 1, .top_k = 1},
    {.temperature = 1, .top_p = 1, .top_k = 40},
    {.temperature = 1, .top_p = 0.999f},
    {.temperature = 1, .top_p = 1, .min_p = 0.05f},
    {.temperature = 1, .top_p = 1, .min_p = 1e-6f},
    {.temperature = 1, .top_p = 0.8f, .top_k = 20},
    {.temperature = 1, .top_p = 0.95f, .top_k = 40, .min_p = 0.1f},
    {.temperature = 1, .top_p = 0.7f, .min_p = 0.02f},
    {.temperature = 1, .top_p = 1e-9f},
};

static double u_of(uint64_t number, int64_t row)
{
    return (number + (uint64_t)row) % 5 == 0 ? 0.0
           : (number + (uint64_t)row) % 5 == 1
               ? nextafter(1.0, 0.0)
               : kg_rng_uniform(key, number, (uint32_t)row, 1);
}

/* Hidden states are 1 and others; a negative one turns FORBIDDEN's weights of -inf into
 * logits of +inf. */
static void problem_init(struct problem *p, enum kind kind, int32_t vocab, int64_t n,
                         uint64_t number)
{
    static const float states[] = {1, 1, 0.3f, 2, 1, 0.01f, 1, -1, 1, 8, 1};
    float *hidden = buffer_of(n, sizeof *hidden);
    float *weights = buffer_of(vocab, sizeof *weights);

    *p = (struct problem){.vocab = vocab, .n = n};
    for (int32_t v = 0; v < vocab; v += 4) {
        float x[4];

        kg_rng_normal4(x, key, number, (uint32_t)v, 0);
        for (int32_t i = 0; i < 4 && v + i < vocab; i++)
            weights[v + i] = weight_of(kind, v + i, vocab, x[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        size_t which = (size_t)(number * 7 + (uint64_t)i);

        hidden[i] = states[which % (sizeof states / sizeof *states)];
        p->sampling[i] = samplings[which % (sizeof samplings / sizeof *samplings)];
        p->sampling[i].record_kept = true;
        p->u[i] = u_of(number, i);
    }
    p->head.hidden = kg_mat(hidden, KG_F32, n, 1);
    p->head.weight = kg_mat(weights, KG_F32, vocab, 1);
    p->logits = kg_mem_calloc((size_t)(n * vocab), sizeof *p->logits, "test", &err);
    assert_non_null(p->logits);
    assert_int_equal(kg_op_head(backend(),
                                &(struct kg_head_out){.lse = p->lse, .logits = p->logits},
                                &p->head, &err),
                     KG_OK);
}

static void problem_release(struct problem *p)
{
    buffer_free(p->head.hidden.data);
    buffer_free(p->head.weight.data);
    kg_mem_free(p->logits);
}

static struct kg_draw *how_of(const struct problem *p)
{
    struct kg_draw *how = buffer_of(p->n, sizeof *how);

    for (int64_t i = 0; i < p->n; i++)
        how[i] = kg_sampler_draw_of(&p->sampling[i], p->u[i]);
    return how;
}

/* ---- the device against the host ---- */
static void same_pick(const struct kg_sampler_pick *a, const struct kg_sampler_pick *b)
{
    assert_int_equal(a->token, b->token);
    assert_memory_equal(&a->logp, &b->logp, sizeof a->logp);
    assert_int_equal(a->n_kept, b->n_kept);
    assert_memory_equal(&a->cut, &b->cut, sizeof a->cut);
    assert_int_equal(a->kept.n, b->kept.n);
    assert_int_equal(a->kept.bytes, b->kept.bytes);
    if (a->kept.bytes > 0)
        assert_memory_equal(a->kept.data, b->kept.data, a->kept.bytes);
}

/* returns 1 if the row can be sampled from, else 0 */
static int check_row(const struct problem *p, int64_t i, const struct kg_drawn *drawn,
                     double lse, const uint64_t *kept, struct kg_sampler_scratch *scratch)
{
    struct kg_sampler_pick here = {0}, there = {0};
    struct kg_sampler_row row = {
        .z = p->logits + i * p->vocab, .vocab = p->vocab, .lse = p->lse[i]};
    struct kg_err other;
    kg_status status = kg_sampler_draw(&here, scratch, &row, &p->sampling[i], p->u[i],
                                       &err);

    assert_int_equal(status, kg_sampler_take(&there, drawn, lse, kept, p->vocab, &other));
    if (status == KG_OK) {
        assert_memory_equal(&lse, &p->lse[i], sizeof lse);
        same_pick(&here, &there);
    } else {
        assert_int_equal(status, KG_ENONFINITE);
        assert_string_equal(err.message, other.message);
    }
    kg_sampler_pick_release(&here);
    kg_sampler_pick_release(&there);
    return status == KG_OK;
}

static int check(enum kind kind, int32_t vocab, int64_t n, uint64_t number)
{
    const size_t words = ((size_t)vocab + 63) / 64;
    struct kg_sampling all = {.temperature = 1, .top_p = 0.5f};
    struct kg_sampler_scratch scratch = {0};
    struct kg_drawn *drawn = buffer_of(n, sizeof *drawn);
    double *lse = buffer_of(n, sizeof *lse);
    uint64_t *kept = buffer_of(n * (int64_t)words, sizeof *kept);
    struct kg_draw *how;
    struct problem p;
    int good = 0;

    problem_init(&p, kind, vocab, n, number);
    how = how_of(&p);
    assert_int_equal(
        kg_op_draw(backend(),
                   &(struct kg_draws){
                       .how = how, .truncates = true, .drawn = drawn, .kept = kept},
                   &(struct kg_head_out){.lse = lse}, &p.head, &err),
        KG_OK);
    buffer_free(how);
    assert_int_equal(kg_sampler_scratch_grow(&scratch, &all, vocab, &err), KG_OK);
    for (int64_t i = 0; i < n; i++)
        good += check_row(&p, i, &drawn[i], lse[i], kept + (size_t)i * words, &scratch);
    kg_sampler_scratch_release(&scratch);
    problem_release(&p);
    buffer_free(drawn);
    buffer_free(lse);
    buffer_free(kept);
    return good;
}

static void tokens_are_the_samplers(void **state)
{
    const int32_t sizes[] = {1, 2, 33, 511, 512, 513, 2049};
    uint64_t number = 0;
    int rows = 0, good = 0;

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i += SANITIZED ? 3 : 1)
        for (int kind = 0; kind < KINDS; kind++) {
            good += check((enum kind)kind, sizes[i], ROWS, number++);
            rows += ROWS;
        }
    assert_true(good > rows / 10 * 9 && good < rows); /* some rows have +inf or NaN */
}

/* The largest vocabulary has one row, which is not truncated. */
static void many_spans_are_walked_alike(void **state)
{
    (void)state;
    assert_int_equal(check(NORMAL, MOST_V, 1, 52), 1);
    assert_true(check(FLAT, 9001, 13, 700) > 9);
    assert_true(check(NORMAL, 9001, 13, 701) > 9);
}

/* Reference for kg_draw_find: adds one term at a time. */
static int32_t find_plainly(double *target, const double *x, int32_t n)
{
    double before = 0, rest = 0;
    int32_t found = 0;

    for (int32_t i = 0; i < n && before <= *target; before += x[i++])
        if (x[i] > 0) {
            found = i;
            rest = *target - before;
        }
    *target = rest;
    return found;
}

/* Terms with zeros at both ends and in between; targets at every partial sum and beyond
 * the total. */
static void what_a_target_falls_in_is_found(void **state)
{
    const int32_t sizes[] = {1, 2, 15, 16, 17, 31, 32, 33, 48, 297, 512};
    double x[512];

    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (int32_t zeros = 0; 2 * zeros < sizes[k]; zeros += 1 + sizes[k] / 7) {
            const int32_t n = sizes[k];
            double sum = 0;

            for (int32_t i = 0; i < n; i++)
                x[i] = i < zeros || i >= n - zeros || i % 5 == 3 ? 0 : 1e-3 + 0.1 * i;
            for (int32_t i = 0; i <= n; i++) {
                double want = i < n ? sum : 2 * sum + 1, got = want;

                assert_int_equal(kg_draw_find(&got, x, n), find_plainly(&want, x, n));
                assert_true(got == want);
                sum += i < n ? x[i] : 0;
            }
        }
}

/* ---- other outputs ---- */
static void logits_of_single_rows_come_to_the_host(void **state)
{
    enum { V = 700, N = 9 };
    static float z[2][V];
    float *const logits[N] = {[2] = z[0], [7] = z[1]};
    struct kg_drawn *drawn = buffer_of(N, sizeof *drawn);
    double *lse = buffer_of(N, sizeof *lse);
    struct kg_draw *how;
    struct problem p;

    (void)state;
    problem_init(&p, NORMAL, V, N, 5);
    how = how_of(&p);
    assert_int_equal(
        kg_op_draw(backend(),
                   &(struct kg_draws){
                       .how = how, .truncates = true, .drawn = drawn, .logits = logits},
                   &(struct kg_head_out){.lse = lse}, &p.head, &err),
        KG_OK);
    buffer_free(how);
    assert_memory_equal(z[0], p.logits + (size_t)2 * V, sizeof z[0]);
    assert_memory_equal(z[1], p.logits + (size_t)7 * V, sizeof z[1]);
    buffer_free(drawn);
    buffer_free(lse);
    problem_release(&p);
}

static void a_call_that_makes_no_sense_is_refused(void **state)
{
    struct kg_draw how[2] = {{.top_p = 1}, {.top_p = 1}};
    struct kg_drawn drawn[2];
    double lse[2];
    float z[6];
    const struct kg_draws draws = {.how = how, .drawn = drawn};
    const float inv_temp[2] = {1, 1};
    const struct kg_backend *cpu;
    struct kg_head head;
    struct problem p;

    (void)state;
    problem_init(&p, NORMAL, 3, 2, 6);
    assert_int_equal(kg_op_draw(backend(), &draws,
                                &(struct kg_head_out){.lse = lse, .logits = z}, &p.head,
                                &err),
                     KG_EINVAL);
    assert_int_equal(
        kg_op_draw(backend(), &draws, &(struct kg_head_out){0}, &p.head, &err),
        KG_EINVAL);
    head = p.head;
    head.inv_temp = inv_temp;
    assert_int_equal(
        kg_op_draw(backend(), &draws, &(struct kg_head_out){.lse = lse}, &head, &err),
        KG_EINVAL);
    assert_int_equal(kg_backend_open(&cpu, "cpu", &err), KG_OK);
    assert_int_equal(
        kg_op_draw(cpu, &draws, &(struct kg_head_out){.lse = lse}, &p.head, &err),
        KG_EUNSUPPORTED);
    problem_release(&p);
}

/* ---- the engine ---- */
enum { N_REQ = 14, NEW = 12, ENGINE_V = 300 };

static const struct kg_logit_bias bias[] = {{3, 2}, {200, -100}};
static const struct kg_adjust adjust = {
    .bias = bias, .n_bias = 2, .presence = 0.5f, .frequency = 0.25f};

/* One request for each way to sample; the last one adjusts its logits. */
static void make_requests(struct kg_request q[N_REQ], struct kg_sampling s[N_REQ])
{
    static const int32_t prompt[] = {1, 250, 7, 13};
    const size_t n = sizeof samplings / sizeof *samplings;

    for (int i = 0; i < N_REQ; i++) {
        s[i] = samplings[(size_t)i % n];
        s[i].temperature *= i % 4 > 1 ? 0.7f : 1;
        s[i].max_tokens = NEW;
        s[i].record_top_k = i % 4;
        s[i].record_kept = i % 3 > 0 && i < N_REQ - 1;
        s[i].adjust = i == N_REQ - 1 ? &adjust : NULL;
        s[i].rng = (struct kg_rng_key){(uint64_t)i, KG_RNG_SAMPLE};
        q[i] = (struct kg_request){.prompt = prompt,
                                   .prompt_n = 1 + (size_t)i % 4,
                                   .prompt_index = i,
                                   .n_samples = 1,
                                   .sampling = &s[i]};
    }
}

/* replays: calls of the slot; ran: calls of the bodies it was given; ran_by: `ran` at the
 * end of each round */
enum { ROUNDS = 3 };
static int replays, ran, ran_by[ROUNDS];

struct given {
    kg_status (*body)(void *arg, struct kg_err *err);
    void *arg;
};
static kg_status counted_body(void *arg, struct kg_err *e)
{
    const struct given *g = arg;

    ran++;
    return g->body(g->arg, e);
}
static kg_status counted_replay(uint64_t of,
                                kg_status (*body)(void *arg, struct kg_err *err),
                                void *arg, struct kg_err *e)
{
    replays++;
    return backend()->replay(of, counted_body, &(struct given){body, arg}, e);
}

/* Changes the weights in place, as a training step does. */
static void change_weights(const struct kg_model *m)
{
    const struct kg_mat w = m->head->compute;

    assert_int_equal(kg_buf_swap(m->backend, kg_mat_rows(w, 0, 1).data,
                                 kg_mat_rows(w, w.rows / 2, 1).data,
                                 (uint64_t)w.cols * sizeof(float), &err),
                     KG_OK);
}

/* rounds: runs of one engine, with other weights in each.   t: of the last round */
static void generate(struct kg_traj t[N_REQ], const struct kg_backend *be, int width,
                     int32_t vocab, int rounds)
{
    const struct kg_rollout_opts opts = {
        .max_batch = width, .prefill_chunk = 32, .max_len = NEW + 4};
    struct kg_model_opts on = {.backend = be, .ct = KG_F32, .trainable = true};
    struct kg_model_config c = config(vocab);
    struct kg_sampling s[N_REQ];
    struct kg_request q[N_REQ];
    struct kg_rollout *r = NULL;
    struct kg_model *m = NULL;

    make_requests(q, s);
    assert_int_equal(kg_model_create(&m, &c, &on, 11, &err), KG_OK);
    assert_int_equal(kg_rollout_create(&r, m, NULL, &opts, &err), KG_OK);
    for (int i = 0; i < rounds; i++) {
        if (i > 0) {
            release(t, N_REQ);
            change_weights(m);
        }
        if (kg_rollout_run(r, t, q, N_REQ, &s[0], NULL, NULL, &err) != KG_OK)
            fail_msg("%s", err.message);
        ran_by[i] = ran;
    }
    kg_rollout_free(r);
    kg_model_free(m);
}

static void assert_same_kept(const struct kg_traj *a, const struct kg_traj *b)
{
    assert_int_equal(a->kept_n != NULL, b->kept_n != NULL);
    assert_int_equal(a->kept_total, b->kept_total);
    assert_int_equal(a->cut_n, b->cut_n);
    assert_memory_equal(&a->cut_nats, &b->cut_nats, sizeof a->cut_nats);
    if (!a->kept_n)
        return;
    assert_memory_equal(a->kept_n, b->kept_n, a->n * sizeof *a->kept_n);
    assert_memory_equal(a->kept, b->kept, a->kept_total);
}

/* On a backend without the slot `draw`, the host's sampler samples; trajectories are the
 * same. */
static void a_rollout_does_not_show_who_drew(void **state)
{
    struct kg_backend without = *backend();
    struct kg_traj there[N_REQ], here[N_REQ];
    size_t kept = 0;

    (void)state;
    without.draw = NULL;
    generate(there, backend(), N_REQ - 3, ENGINE_V, 1);
    generate(here, &without, N_REQ - 3, ENGINE_V, 1);
    for (int i = 0; i < N_REQ; i++) {
        assert_same_traj(&there[i], &here[i]);
        assert_same_kept(&there[i], &here[i]);
        kept += there[i].kept_total;
    }
    assert_true(kept > 100);
    release(there, N_REQ);
    release(here, N_REQ);
}

/* Models are created one after the other, so one may get the addresses of a freed one,
 * whose recorded steps must not be replayed. Sequences end one by one, so steps have many
 * sizes. */
static void a_rollout_does_not_show_what_is_replayed(void **state)
{
    static const struct {
        int width;
        int32_t vocab;
        int rounds;
    } rows[] = {{3, 260, 1}, {7, ENGINE_V, ROUNDS}};
    struct kg_backend with = *backend(), without = *backend();
    struct kg_traj there[N_REQ], here[N_REQ];

    (void)state;
    if (!backend()->replay)
        skip();
    with.replay = counted_replay;
    without.replay = NULL;
    replays = ran = 0;
    for (size_t k = 0; k < (SANITIZED ? 1 : sizeof rows / sizeof *rows); k++) {
        generate(there, &with, rows[k].width, rows[k].vocab, rows[k].rounds);
        for (int i = 2; i < rows[k].rounds; i++) /* recorded steps outlive weights */
            assert_int_equal(ran_by[i], ran_by[1]);
        generate(here, &without, rows[k].width, rows[k].vocab, rows[k].rounds);
        for (int i = 0; i < N_REQ; i++) {
            assert_same_traj(&there[i], &here[i]);
            assert_same_kept(&there[i], &here[i]);
        }
        release(there, N_REQ);
        release(here, N_REQ);
    }
    assert_true(replays > (SANITIZED ? 10 : 30) && ran < replays);
}

/* Decodes two sequences, greedy and top-p. */
static struct kg_rollout_stats decode(int32_t vocab)
{
    static const int32_t prompt[] = {1, 2, 3};
    const struct kg_rollout_opts opts = {
        .max_batch = 2, .prefill_chunk = 32, .max_len = NEW + 4};
    struct kg_model_opts on = {.backend = backend(), .ct = KG_F32, .trainable = true};
    struct kg_model_config c = config(vocab);
    struct kg_sampling s[2] = {samplings[1], samplings[2]};
    struct kg_rollout_stats stats;
    struct kg_rollout *r = NULL;
    struct kg_request q[2];
    struct kg_model *m = NULL;
    struct kg_traj t[2];

    for (int i = 0; i < 2; i++) {
        s[i].temperature *= 0.8f;
        s[i].max_tokens = NEW;
        q[i] = (struct kg_request){
            .prompt = prompt, .prompt_n = 3, .n_samples = 1, .sampling = &s[i]};
    }
    assert_int_equal(kg_model_create(&m, &c, &on, 11, &err), KG_OK);
    assert_int_equal(kg_rollout_create(&r, m, NULL, &opts, &err), KG_OK);
    assert_int_equal(kg_rollout_run(r, t, q, 2, &s[0], NULL, NULL, &err), KG_OK);
    stats = *kg_rollout_stats(r);
    release(t, 2);
    kg_rollout_free(r);
    kg_model_free(m);
    return stats;
}

static void what_crosses_in_a_step_does_not_grow_with_the_vocabulary(void **state)
{
    const struct kg_rollout_stats small = decode(100), large = decode(3000);
    const uint64_t steps = (uint64_t)small.decode_steps;

    (void)state;
    assert_int_equal(steps, NEW - 1);
    assert_memory_equal(&small.decode_traffic, &large.decode_traffic,
                        sizeof small.decode_traffic);
    assert_int_equal(small.decode_traffic.ups, steps);
    assert_int_equal(small.decode_traffic.downs, steps);
    assert_int_equal(small.decode_traffic.replays, backend()->replay ? steps - 1 : 0);
    assert_true(small.decode_traffic.up < 1500 * steps);
    assert_true(small.decode_traffic.down < 1000 * steps);
}

/* A step that is replayed as one launch calls no layer, and no sequence ends in it; it
 * has to count as progress all the same. */
static void every_step_is_progress(void **state)
{
    static const int32_t prompt[] = {1, 2, 3};
    const struct kg_rollout_opts opts = {.max_batch = 1, .max_len = NEW + 4};
    const struct kg_rollout_session session = {0};
    struct kg_model_opts on = {.backend = backend(), .ct = KG_F32, .trainable = true};
    struct kg_sampling s = samplings[0];
    struct kg_request q = {
        .prompt = prompt, .prompt_n = 3, .n_samples = 1, .sampling = &s};
    struct kg_model_config c = config(100);
    struct kg_phase_stack before, after;
    struct kg_rollout *r = NULL;
    struct kg_model *m = NULL;
    struct kg_traj t = {0};
    int phase;

    (void)state;
    s.max_tokens = NEW;
    assert_int_equal(kg_model_create(&m, &c, &on, 11, &err), KG_OK);
    assert_int_equal(kg_rollout_create(&r, m, NULL, &opts, &err), KG_OK);
    assert_int_equal(kg_rollout_begin(r, &session, &err), KG_OK);
    assert_int_equal(kg_rollout_submit(r, &q, &t, &err), KG_OK);
    phase = kg_phase_begin(1, "sequences", "generating");
    for (int i = 1; i < NEW; i++) {
        assert_true(kg_phase_look(&before, 0));
        assert_int_equal(kg_rollout_step(r, NULL, &err), KG_OK);
        kg_rollout_show(phase, r, 1);
        assert_true(kg_phase_look(&after, 0));
        assert_true(after.progress != before.progress);
    }
    kg_phase_end(phase);
    assert_int_equal(t.finish, KG_FINISH_LENGTH);
    assert_int_equal(kg_rollout_stats(r)->decode_traffic.replays,
                     backend()->replay ? NEW - 2 : 0);
    release(&t, 1);
    kg_rollout_free(r);
    kg_model_free(m);
}

/* Sequences grow past the number of keys that one thread block takes at a time, with a
 * head size of the matrix instruction: the launches that a step records depend on the
 * number of keys. */
static void long_contexts_are_scored_alike(void **state)
{
    enum { SEQS = 2, PROMPT = 1020 };
    static int32_t prompt[PROMPT];
    const struct kg_rollout_opts opts = {.max_batch = SEQS, .max_len = PROMPT + NEW};
    struct kg_model_opts on = {.backend = backend(), .ct = KG_BF16};
    struct kg_model_config c = config(ENGINE_V);
    struct kg_sampling s = samplings[0];
    struct kg_rollout *r = NULL;
    struct kg_model *m = NULL;
    struct kg_request q[SEQS];
    struct kg_traj t[SEQS];

    (void)state;
    s.max_tokens = NEW;
    c.heads = 2;
    c.kv_heads = 1;
    c.head_dim = 64;
    c.max_positions = 2 * PROMPT;
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = i * i % ENGINE_V;
    for (int i = 0; i < SEQS; i++)
        q[i] = (struct kg_request){.prompt = prompt + 600 * i,
                                   .prompt_n = PROMPT - 600 * (size_t)i,
                                   .prompt_index = i,
                                   .n_samples = 1,
                                   .sampling = &s};
    assert_int_equal(kg_model_create(&m, &c, &on, 11, &err), KG_OK);
    assert_int_equal(kg_rollout_create(&r, m, NULL, &opts, &err), KG_OK);
    if (kg_rollout_run(r, t, q, SEQS, &s, NULL, NULL, &err) != KG_OK)
        fail_msg("%s", err.message);
    if (backend()->replay) /* the first step of each kind is recorded, not replayed */
        assert_int_equal(kg_rollout_stats(r)->decode_traffic.replays, NEW - 3);
    for (int i = 0; i < SEQS; i++)
        assert_scored_in_parts(m, &t[i], 0);
    release(t, SEQS);
    kg_rollout_free(r);
    kg_model_free(m);
}

int main(void)
{
    const struct CMUnitTest of_kernels[] = {
        cmocka_unit_test(what_a_target_falls_in_is_found),
        cmocka_unit_test(tokens_are_the_samplers),
        cmocka_unit_test(many_spans_are_walked_alike),
        cmocka_unit_test(logits_of_single_rows_come_to_the_host),
    };
    const struct CMUnitTest of_the_engine[] = {
        cmocka_unit_test(a_call_that_makes_no_sense_is_refused),
        cmocka_unit_test(a_rollout_does_not_show_who_drew),
        cmocka_unit_test(a_rollout_does_not_show_what_is_replayed),
        cmocka_unit_test(what_crosses_in_a_step_does_not_grow_with_the_vocabulary),
        cmocka_unit_test(every_step_is_progress),
        cmocka_unit_test(long_contexts_are_scored_alike),
    };
    const int failed = RUN_EMULATED(of_kernels, NULL, NULL);

    return failed + RUN_EMULATED_ONCE(of_the_engine, NULL, NULL);
}
