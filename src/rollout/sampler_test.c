/* The sampler against plain versions: the inverse CDF, and truncation as a mask over a
 * full sort. */
#include "rollout/sampler.h"

#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_V = 600001 }; /* more than one level of sums */
static float z[MAX_V];
static double p[MAX_V];
static bool mask[MAX_V];
static struct kg_sampler_scratch scratch;
static struct kg_sampler_pick pick;
static struct kg_err err;
static const struct kg_rng_key key = {7, KG_RNG_TEST};

static struct kg_sampling plain(void)
{
    return (struct kg_sampling){.temperature = 1, .top_p = 1, .max_tokens = 1};
}

/* A row of normals times scale; with `ties` rounded so that equal logits occur. */
static struct kg_sampler_row make_row(int32_t V, uint64_t number, float scale, bool ties)
{
    for (int32_t v = 0; v < V; v += 4) {
        float x[4];
        kg_rng_normal4(x, key, number, (uint32_t)v, 0);
        for (int32_t i = 0; i < 4 && v + i < V; i++)
            z[v + i] = ties ? roundf(x[i] * scale * 2) / 2 : x[i] * scale;
    }
    double largest = -INFINITY;
    double sum = 0;
    for (int32_t v = 0; v < V; v++)
        largest = z[v] > largest ? z[v] : largest;
    for (int32_t v = 0; v < V; v++)
        sum += exp(z[v] - largest);
    struct kg_sampler_row row = {.z = z, .vocab = V, .lse = largest + log(sum)};
    for (int32_t v = 0; v < V; v++)
        p[v] = exp(z[v] - row.lse);
    return row;
}

static void untruncated_draw_is_the_inverse_cdf(void **state)
{
    (void)state;
    /* rising: nothing was summed before; falling: sums of a larger row are left */
    const int32_t sizes[] = {1,      2,     16,     511,    512,  513, 5000,
                             151936, MAX_V, 524288, 262144, 5000, 512, 2};
    struct kg_sampling s = plain();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct kg_sampler_row row = make_row(sizes[i], i, 3, false);
        for (uint32_t d = 0; d < (sizes[i] < 200000 ? 200 : 40); d++) {
            double u = kg_rng_uniform(key, 100 + i, d, 0);
            assert_int_equal(kg_sampler_draw(&pick, NULL, &row, &s, u, &err), KG_OK);
            double before = 0;
            for (int32_t v = 0; v < pick.token; v++)
                before += p[v];
            assert_true(before <= u + 2e-6);
            assert_true(before + p[pick.token] >= u - 2e-6);
            assert_true(pick.logp == (float)((double)z[pick.token] - row.lse));
        }
    }
}

static void ends_of_the_interval_draw_ids_with_probability(void **state)
{
    (void)state;
    struct kg_sampling s = plain();
    struct kg_sampler_row row = make_row(2000, 1, 1, false);
    z[0] = -1000;
    z[1999] = -1000;
    assert_int_equal(kg_sampler_draw(&pick, NULL, &row, &s, 0.0, &err), KG_OK);
    assert_int_equal(pick.token, 1);
    assert_int_equal(kg_sampler_draw(&pick, NULL, &row, &s, nextafter(1.0, 0), &err),
                     KG_OK);
    assert_int_equal(pick.token, 1998);
}

static double chi_square(const struct kg_sampler_row *row, const struct kg_sampling *s,
                         const double *expected, int32_t n_draws)
{
    double count[64] = {0};
    for (int32_t d = 0; d < n_draws; d++) {
        double u = kg_rng_uniform(key, 5000, (uint32_t)d, 1);
        assert_int_equal(kg_sampler_draw(&pick, &scratch, row, s, u, &err), KG_OK);
        count[pick.token]++;
    }
    double sum = 0;
    for (int32_t v = 0; v < row->vocab; v++) {
        double e = expected[v] * n_draws;
        if (e == 0)
            assert_true(count[v] == 0);
        else
            sum += (count[v] - e) * (count[v] - e) / e;
    }
    return sum;
}

static void frequencies_follow_the_softmax(void **state)
{
    (void)state;
    struct kg_sampling s = plain();
    struct kg_sampler_row row = make_row(16, 3, 1, false);
    assert_true(chi_square(&row, &s, p, 40000) < 37.7); /* 15 degrees of freedom, 0.1 % */
}

static void frequencies_under_truncation_are_renormalised(void **state)
{
    (void)state;
    struct kg_sampling s = plain();
    s.top_k = 6;
    struct kg_sampler_row row = make_row(16, 4, 1, false);
    double q[16];
    double sum = 0;
    for (int v = 0; v < 16; v++) {
        int larger = 0;
        for (int w = 0; w < 16; w++)
            larger += z[w] > z[v];
        q[v] = larger < 6 ? p[v] : 0;
        sum += q[v];
    }
    for (int v = 0; v < 16; v++)
        q[v] /= sum;
    assert_true(chi_square(&row, &s, q, 40000) < 20.5); /* 5 degrees of freedom, 0.1 % */
}

static void greedy_takes_the_smaller_of_equal_ids(void **state)
{
    (void)state;
    struct kg_sampling s = plain();
    s.temperature = 0;
    s.top_k = 1; /* has no effect */
    struct kg_sampler_row row = make_row(100, 5, 1, false);
    z[41] = z[17] = z[90] = 9;
    assert_int_equal(kg_sampler_draw(&pick, NULL, &row, &s, 0.99, &err), KG_OK);
    assert_int_equal(pick.token, 17);
    assert_int_equal(pick.n_kept, 0);
}

/* ---- truncation against a plain version ---- */

static int32_t order[MAX_V];

static int by_p(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a;
    int32_t y = *(const int32_t *)b;
    if (z[x] != z[y])
        return z[x] > z[y] ? -1 : 1;
    return x - y;
}

/* HuggingFace's three logits processors in their order, on a mask; each sums over the ids
 * that are still kept. */
static int32_t plain_mask(int32_t V, const struct kg_sampling *s)
{
    for (int32_t v = 0; v < V; v++) {
        mask[v] = true;
        order[v] = v;
    }
    qsort(order, (size_t)V, sizeof *order, by_p);
    if (s->top_k > 0 && s->top_k < V)
        for (int32_t v = 0; v < V; v++)
            mask[v] = z[v] >= z[order[s->top_k - 1]];
    double total = 0;
    double sum = 0;
    for (int32_t i = 0; i < V; i++)
        total += mask[order[i]] ? p[order[i]] : 0;
    for (int32_t i = 0; i < V && s->top_p < 1; i++) {
        int32_t v = order[i];
        bool keep = i == 0 || sum < (double)s->top_p * total;
        sum += mask[v] ? p[v] : 0;
        mask[v] = mask[v] && keep;
    }
    int32_t n = 0;
    for (int32_t i = 0; i < V; i++) {
        int32_t v = order[i];
        if (s->min_p > 0 && p[v] < (double)s->min_p * p[order[0]])
            mask[v] = false;
        n += mask[v];
    }
    return n;
}

/* Checks that the kept ids equal the mask; mass: their probability. */
static void check_kept(int32_t V, int32_t n, double mass)
{
    struct kg_idset_walk w;
    assert_int_equal(pick.kept.n, n);
    assert_true(fabs((double)pick.cut - (pick.n_kept > 0 ? -log(mass) : 0)) < 1e-5);
    if (n == 0)
        return;
    kg_idset_begin(&w, &pick.kept);
    for (int32_t v = 0; v < V; v++)
        if (mask[v]) {
            assert_int_equal(w.id, v);
            kg_idset_next(&w, &pick.kept);
        }
    assert_int_equal(w.id, V);
}

static void check_against_plain(int32_t V, const struct kg_sampling *s, uint64_t number,
                                bool ties)
{
    struct kg_sampler_row row = make_row(V, number, ties ? 1.5f : 3, ties);
    int32_t n = plain_mask(V, s);
    double sum = 0;
    double before = 0;
    double u = kg_rng_uniform(key, 300, (uint32_t)number, 0);
    for (int32_t v = 0; v < V; v++)
        sum += mask[v] ? p[v] : 0;
    kg_status status = kg_sampler_draw(&pick, &scratch, &row, s, u, &err);
    assert_int_equal(status, KG_OK);
    assert_int_equal(pick.n_kept, n == V ? 0 : n);
    check_kept(V, s->record_kept ? pick.n_kept : 0, sum);
    assert_true(mask[pick.token]);
    if (!kg_sampler_truncates(s, V)) /* then it walks in the order of ids */
        return;
    for (int32_t i = 0; i < V && order[i] != pick.token; i++)
        before += p[order[i]];
    assert_true(before <= (u + 1e-9) * sum && before + p[pick.token] >= (u - 1e-9) * sum);
}

static void truncation_keeps_what_a_full_sort_keeps(void **state)
{
    (void)state;
    const int32_t sizes[] = {1, 2, 7, 50, 700, 3000};
    const struct kg_sampling params[] = {
        {.top_k = 1, .top_p = 1},
        {.top_k = 5, .top_p = 1},
        {.top_k = 100, .top_p = 1},
        {.top_p = 0.1f},
        {.top_p = 0.9f},
        {.top_p = 0.999f},
        {.top_p = 1, .min_p = 0.05f},
        {.top_p = 1, .min_p = 1},
        {.top_p = 1, .min_p = 1e-6f},
        {.top_k = 20, .top_p = 0.8f},
        {.top_k = 40, .top_p = 0.95f, .min_p = 0.1f},
        {.top_p = 0.7f, .min_p = 0.02f},
        {.top_p = 1e-9f},
    };
    uint64_t number = 1000;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t j = 0; j < sizeof params / sizeof *params; j++)
            for (int repeat = 0; repeat < 6; repeat++) {
                struct kg_sampling s = params[j];
                s.temperature = 1;
                s.record_kept = true;
                check_against_plain(sizes[i], &s, number++, repeat % 2 == 1);
            }
}

/* The token equals that of a row whose logits were adjusted beforehand; the log-prob is
 * that of the model's own logits. */
static void check_adjusted(const struct kg_sampler_row *row, const struct kg_sampling *s,
                           double u)
{
    static float plain_z[MAX_V];
    const struct kg_adjust *a = s->adjust;
    float inv_temp = kg_inv_temperature(s->temperature);
    struct kg_sampling unadjusted = *s;
    struct kg_sampler_pick expected;
    double sum = 0;
    unadjusted.adjust = NULL;
    for (int32_t v = 0; v < row->vocab; v++) {
        int times = 0;
        plain_z[v] = row->z[v];
        for (size_t i = 0; i < a->n_bias; i++)
            plain_z[v] += a->bias[i].id == v ? a->bias[i].add * inv_temp : 0;
        for (size_t i = row->n_prompt; i < row->n_text; i++)
            times += row->text[i] == v;
        if (a->repetition > 0 && (times > 0 || v == row->text[0]))
            plain_z[v] *= plain_z[v] > 0 ? 1 / a->repetition : a->repetition;
        plain_z[v] -= times > 0 ? inv_temp * (a->presence + a->frequency * (float)times)
                                : 0;
        sum += exp((double)plain_z[v]);
    }
    struct kg_sampler_row written = {.z = plain_z, .vocab = row->vocab, .lse = log(sum)};
    assert_int_equal(kg_sampler_draw(&pick, &scratch, row, s, u, &err), KG_OK);
    assert_int_equal(kg_sampler_draw(&expected, &scratch, &written, &unadjusted, u, &err),
                     KG_OK);
    assert_int_equal(pick.token, expected.token);
    assert_true(pick.logp == (float)((double)row->z[pick.token] - row->lse));
}

static void adjusting_changes_what_is_drawn_and_no_log_prob(void **state)
{
    static const struct kg_logit_bias bias[] = {{3, 2}, {500, -100}, {0, 1.5f}};
    static const int32_t text[] = {9, 7, 9, 7, 3, 7}; /* the first is the prompt */
    static const struct kg_adjust ways[] = {
        {0},
        {.bias = bias, .n_bias = 3},
        {.presence = 1.5f},
        {.frequency = 0.75f},
        {.bias = bias, .n_bias = 3, .presence = -2, .frequency = -1},
        {.repetition = 2},
        {.repetition = 0.5f, .bias = bias, .n_bias = 3, .presence = 1},
    };
    static const struct kg_sampling samplings[] = {
        {.temperature = 1, .top_p = 1},
        {.temperature = 0.5f, .top_p = 0.9f},
        {.temperature = 1.3f, .top_p = 1, .top_k = 7, .min_p = 0.01f},
        {.temperature = 0, .top_p = 1},
    };
    struct kg_sampler_row row = make_row(1500, 77, 2, false);
    (void)state;
    row.text = text;
    row.n_text = 6;
    row.n_prompt = 1;
    z[7] += 4; /* likely enough to be sampled */
    row.lse += 1;
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
        for (size_t j = 0; j < sizeof samplings / sizeof *samplings; j++)
            for (uint32_t d = 0; d < 60; d++) {
                struct kg_sampling s = samplings[j];
                s.adjust = &ways[w];
                check_adjusted(&row, &s, kg_rng_uniform(key, 900 + j, d, 0));
            }
}

/* Tokens that the reference samples from LOGITS: apply_repetition_penalties_torch of vLLM
 * and the steps of its sampler around it (bias before; frequency, presence, temperature
 * after), in numpy's fp32, with an inverse CDF over rising ids. */
static const float LOGITS[] = {2, -1, 0.5f, 3, -0.25f, 1.5f, 0, -3, 2.5f, 1};
static const double AT[] = {0.01, 0.13, 0.27, 0.41, 0.55, 0.69, 0.83, 0.96};
static const struct {
    int32_t text[10];
    size_t n_text, n_prompt;
    struct kg_logit_bias bias[2];
    size_t n_bias;
    float repetition, frequency, presence, temperature;
    int32_t greedy, drawn[8];
} penalised[] = {
    {{3, 8}, 2, 2, {{0}}, 0, 1.3f, 0, 0, 1, 3, {0, 0, 3, 3, 3, 5, 8, 9}},
    {{3, 3, 8}, 3, 0, {{0}}, 0, 1.3f, 0, 0, 1, 3, {0, 0, 3, 3, 3, 5, 8, 9}},
    {{3, 8, 0}, 3, 1, {{0}}, 0, 1.3f, 0, 0, 1, 3, {0, 0, 3, 3, 5, 6, 8, 9}},
    {{1, 4, 7, 1}, 4, 3, {{0}}, 0, 2, 0, 0, 1, 3, {0, 0, 3, 3, 3, 6, 8, 9}},
    {{3, 8, 0, 5}, 4, 3, {{0}}, 0, 0.8f, 0, 0, 1, 3, {0, 0, 3, 3, 3, 5, 8, 8}},
    {{1, 7, 4}, 3, 2, {{0}}, 0, 0.5f, 0, 0, 1, 3, {0, 0, 3, 3, 3, 6, 8, 9}},
    {{3, 8}, 2, 1, {{0}}, 0, 1.1f, 0.5f, 0.25f, 1, 3, {0, 0, 3, 3, 3, 5, 8, 9}},
    {{3, 3, 3, 3, 8}, 5, 2, {{0}}, 0, 1.5f, 0.3f, -0.5f, 1, 0, {0, 0, 2, 3, 5, 6, 8, 9}},
    {{6, 6}, 2, 1, {{0}}, 0, 10, 0, 0, 1, 3, {0, 0, 3, 3, 3, 6, 8, 9}},
    {{0, 3, 8}, 3, 2, {{0}}, 0, 1.3f, 0, 0, 0.5f, 3, {0, 3, 3, 3, 3, 5, 8, 8}},
    {{0, 3, 8}, 3, 2, {{0}}, 0, 1.3f, 0, 0, 1.7f, 3, {0, 0, 3, 3, 5, 6, 8, 9}},
    {{3, 1}, 2, 1, {{3, -4}, {1, 2.5f}}, 2, 1.4f, 0, 0, 1, 8, {0, 0, 1, 5, 6, 8, 8, 9}},
    {{3, 8}, 2, 1, {{7, 6}}, 1, 1.2f, 0, 0, 0.8f, 7, {0, 2, 3, 5, 7, 7, 7, 8}},
    {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
     10,
     5,
     {{0}},
     0,
     1.25f,
     0,
     0,
     1,
     3,
     {0, 0, 3, 3, 4, 6, 8, 9}},
    {{3, 8, 0}, 3, 3, {{0}}, 0, 100, 0, 0, 1, 5, {0, 2, 3, 5, 5, 6, 9, 9}},
    {{3, 8}, 2, 1, {{0}}, 0, 0.01f, 0, 0, 1, 3, {3, 3, 3, 3, 3, 3, 3, 3}},
};

static struct kg_sampler_row penalised_row(size_t i, float temperature)
{
    double sum = 0;
    for (int v = 0; v < 10; v++) {
        z[v] = LOGITS[v] * kg_inv_temperature(temperature);
        sum += exp((double)z[v]);
    }
    return (struct kg_sampler_row){.z = z,
                                   .vocab = 10,
                                   .lse = log(sum),
                                   .text = penalised[i].text,
                                   .n_text = penalised[i].n_text,
                                   .n_prompt = penalised[i].n_prompt};
}

static void penalties_draw_what_the_reference_draws(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof penalised / sizeof *penalised; i++) {
        const struct kg_adjust a = {.bias = penalised[i].bias,
                                    .n_bias = penalised[i].n_bias,
                                    .repetition = penalised[i].repetition,
                                    .presence = penalised[i].presence,
                                    .frequency = penalised[i].frequency};
        struct kg_sampling s = plain();
        s.adjust = &a;
        assert_int_equal(kg_sampler_check(&s, &err), KG_OK);
        for (int j = 0; j < 9; j++) {
            s.temperature = j < 8 ? penalised[i].temperature : 0;
            struct kg_sampler_row row = penalised_row(i, s.temperature);
            double u = j < 8 ? AT[j] : 0.5;
            int32_t expected = j < 8 ? penalised[i].drawn[j] : penalised[i].greedy;
            assert_int_equal(kg_sampler_draw(&pick, &scratch, &row, &s, u, &err), KG_OK);
            if (pick.token != expected)
                fail_msg("case %zu, draw %d: expected %d, found %d", i, j, expected,
                         pick.token);
            assert_true(pick.logp == (float)((double)z[pick.token] - row.lse));
        }
    }
}

static void a_bias_forces_and_forbids(void **state)
{
    const struct kg_logit_bias up = {5, 100}, down[] = {{0, -100}, {1, -100}};
    const struct kg_adjust force = {.bias = &up, .n_bias = 1};
    const struct kg_adjust forbid = {.bias = down, .n_bias = 2};
    struct kg_sampler_row row = make_row(3, 5, 1, false);
    struct kg_sampling s = plain();
    (void)state;
    s.adjust = &forbid;
    for (uint32_t d = 0; d < 100; d++) {
        double u = kg_rng_uniform(key, 1000, d, 0);
        assert_int_equal(kg_sampler_draw(&pick, &scratch, &row, &s, u, &err), KG_OK);
        assert_int_equal(pick.token, 2);
    }
    row = make_row(10, 5, 1, false);
    s.adjust = &force;
    assert_int_equal(kg_sampler_draw(&pick, &scratch, &row, &s, 0.99, &err), KG_OK);
    assert_int_equal(pick.token, 5);
}

static void what_is_kept_is_known_without_a_draw(void **state)
{
    (void)state;
    struct kg_sampling s = plain();
    struct kg_sampler_row row = make_row(3000, 9, 0.1f, false);
    s.top_p = 0.99f;
    assert_int_equal(kg_sampler_draw(&pick, &scratch, &row, &s, 0.5, &err), KG_OK);
    assert_int_equal(pick.kept.n, 0); /* not requested */
    assert_true(pick.n_kept > 2900 && pick.n_kept < 3000);
    assert_true(pick.cut > 0.005f && pick.cut <= 0.0101f);
    assert_int_equal(kg_sampler_keep(&pick, &scratch, &row, &s, &err), KG_OK);
    plain_mask(3000, &s);
    check_kept(3000, pick.n_kept, exp(-(double)pick.cut));
    assert_int_equal(pick.kept.bytes, kg_idset_most(3000));
}

static void a_row_that_is_not_finite_is_refused(void **state)
{
    (void)state;
    struct kg_sampling s = plain();
    struct kg_sampler_row row = make_row(10, 9, 1, false);
    row.lse = NAN;
    assert_int_equal(kg_sampler_draw(&pick, NULL, &row, &s, 0.5, &err), KG_ENONFINITE);
    row.lse = INFINITY;
    assert_int_equal(kg_sampler_draw(&pick, NULL, &row, &s, 0.5, &err), KG_ENONFINITE);
}

static void parameters_out_of_range_are_named(void **state)
{
    (void)state;
    const char *empty[] = {""};
    const struct kg_logit_bias nan = {4, NAN};
    const struct kg_adjust endless = {.presence = INFINITY}, none = {0};
    const struct kg_adjust below = {.repetition = -1}, above = {.repetition = 10001};
    const struct kg_adjust biased = {.bias = &nan, .n_bias = 1};
    const struct {
        struct kg_sampling s;
        const char *word;
    } cases[] = {
        {{.temperature = -1, .top_p = 1, .max_tokens = 1},
         "temperature: expected a number from 0.0001 to 10000, or 0"},
        {{.temperature = NAN, .top_p = 1, .max_tokens = 1},
         "temperature: expected a number from 0.0001 to 10000, or 0"},
        {{.temperature = 1, .top_p = 0, .max_tokens = 1},
         "top_p: expected a number from 1e-09 to 1"},
        {{.temperature = 1, .top_p = 1.5f, .max_tokens = 1},
         "top_p: expected a number from 1e-09 to 1"},
        {{.temperature = 1, .top_p = 1, .top_k = -1, .max_tokens = 1},
         "top_k: expected an integer from 0"},
        {{.temperature = 1, .top_p = 1, .min_p = 2, .max_tokens = 1},
         "min_p: expected a number from 0 to 1, found 2"},
        {{.temperature = 1, .top_p = 1, .max_tokens = 0},
         "max_tokens: expected at least 1"},
        {{.temperature = 1, .top_p = 1, .max_tokens = 1, .stops = empty, .n_stops = 1},
         "stop"},
        {{.temperature = 1, .top_p = 1, .max_tokens = 1, .n_stops = 17}, "stop strings"},
        {{.temperature = 1, .top_p = 1, .max_tokens = 1, .adjust = &endless},
         "penalties"},
        {{.temperature = 1, .top_p = 1, .max_tokens = 1, .adjust = &below},
         "repetition: expected 0"},
        {{.temperature = 1, .top_p = 1, .max_tokens = 1, .adjust = &above},
         "found 10001"},
        {{.temperature = 1, .top_p = 1, .max_tokens = 1, .adjust = &biased},
         "bias of id 4"},
        {{.temperature = 1,
          .top_p = 1,
          .max_tokens = 1,
          .adjust = &none,
          .record_kept = true},
         "kept ids"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(kg_sampler_check(&cases[i].s, &err), KG_EINVAL);
        assert_non_null(strstr(err.message, cases[i].word));
    }
    struct kg_sampling good = plain();
    assert_int_equal(kg_sampler_check(&good, &err), KG_OK);
}

static int setup(void **state)
{
    (void)state;
    static const struct kg_adjust none;
    struct kg_sampling all = plain();
    all.top_p = 0.5f;
    all.adjust = &none;
    return kg_sampler_scratch_grow(&scratch, &all, MAX_V, &err) != KG_OK;
}

static int teardown(void **state)
{
    (void)state;
    kg_sampler_scratch_release(&scratch);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(untruncated_draw_is_the_inverse_cdf),
        cmocka_unit_test(ends_of_the_interval_draw_ids_with_probability),
        cmocka_unit_test(frequencies_follow_the_softmax),
        cmocka_unit_test(frequencies_under_truncation_are_renormalised),
        cmocka_unit_test(greedy_takes_the_smaller_of_equal_ids),
        cmocka_unit_test(truncation_keeps_what_a_full_sort_keeps),
        cmocka_unit_test(adjusting_changes_what_is_drawn_and_no_log_prob),
        cmocka_unit_test(penalties_draw_what_the_reference_draws),
        cmocka_unit_test(a_bias_forces_and_forbids),
        cmocka_unit_test(what_is_kept_is_known_without_a_draw),
        cmocka_unit_test(a_row_that_is_not_finite_is_refused),
        cmocka_unit_test(parameters_out_of_range_are_named),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
