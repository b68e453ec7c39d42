/* The engine: promise 1 (the sampler's log-prob is the score's, bit for bit), promise 3
 * (a trajectory does not depend on batch, chunks, threads, neighbours or cache size), and
 * how sequences end. */
#include "rollout/rollout.h"

#include "model/slab_testing.h"
#include "rollout/rollout_testing.h"
#include "rollout/score.h"

#include <math.h>

enum {
    V = TEST_V,
    N_PROMPTS = 6,
    N_SAMPLES = 3,
    N_TRAJS = N_PROMPTS * N_SAMPLES,
    NEW = 24
};
static const size_t prompt_len[N_PROMPTS] = {1, 5, 63, 64, 65, 130};
static int32_t prompts[N_PROMPTS][130];
static struct kg_request requests[N_PROMPTS];
static struct kg_model *models[KG_DTYPE_COUNT]; /* by compute dtype */

static int setup(void **state)
{
    (void)state;
    for (int i = 0; i < N_PROMPTS; i++) {
        for (size_t t = 0; t < prompt_len[i]; t++)
            prompts[i][t] = (int32_t)kg_rng_below((struct kg_rng_key){3, KG_RNG_TEST},
                                                  (uint64_t)i, (uint32_t)t, 0, V);
        requests[i] = (struct kg_request){.prompt = prompts[i],
                                          .prompt_n = prompt_len[i],
                                          .prompt_index = i,
                                          .draw = 100 + (uint64_t)i,
                                          .n_samples = N_SAMPLES};
    }
    models[KG_F32] = make_model(KG_F32, V);
    models[KG_BF16] = make_model(KG_BF16, V);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < KG_DTYPE_COUNT; i++)
        kg_model_free(models[i]);
    return 0;
}

static struct kg_sampling sampling(void)
{
    return (struct kg_sampling){.temperature = 1,
                                .top_p = 1,
                                .max_tokens = NEW,
                                .record_top_k = 4,
                                .rng = {42, KG_RNG_SAMPLE}};
}

static struct kg_rollout_opts options(int32_t max_batch, int32_t chunk)
{
    return (struct kg_rollout_opts){
        .max_batch = max_batch, .prefill_chunk = chunk, .max_len = 130 + NEW};
}

static void run_with(struct kg_traj *t, const struct kg_model *m,
                     const struct kg_rollout_opts *o, const struct kg_sampling *s)
{
    struct kg_rollout *r = NULL;
    assert_int_equal(kg_rollout_create(&r, m, NULL, o, &refusal), KG_OK);
    kg_status status = kg_rollout_run(r, t, requests, N_PROMPTS, s, NULL, NULL, &refusal);
    if (status != KG_OK)
        fail_msg("%s", refusal.message);
    kg_rollout_free(r);
}

static void assert_same(const struct kg_traj *a, const struct kg_traj *b)
{
    for (size_t i = 0; i < N_TRAJS; i++)
        assert_same_traj(&a[i], &b[i]);
}

static bool same_tokens(const struct kg_traj *a, const struct kg_traj *b)
{
    return a->n == b->n && memcmp(a->tokens, b->tokens, a->n * sizeof *a->tokens) == 0;
}

/* ---- promise 1 ---- */

/* Scores all trajectories together and compares log-probs and top-k of the
 * completions. */
static void assert_scored_alike(const struct kg_model *m, const struct kg_traj *t,
                                int64_t pack)
{
    enum { LEN = 130 + NEW, K = 4 };
    static float logp[N_TRAJS][LEN], top_logp[N_TRAJS][LEN * K];
    static int32_t top_ids[N_TRAJS][LEN * K];
    struct kg_score_seq seqs[N_TRAJS] = {0};
    struct kg_rows_opts room = {.max_tokens = pack, .top_k = K};
    struct kg_rows *rows = NULL;
    for (int i = 0; i < N_TRAJS; i++) {
        seqs[i] = (struct kg_score_seq){.tokens = t[i].tokens,
                                        .n = t[i].n,
                                        .from = t[i].prompt_n,
                                        .temperature = t[i].temperature,
                                        .logp = logp[i],
                                        .top_ids = top_ids[i],
                                        .top_logp = top_logp[i]};
    }
    assert_int_equal(kg_rows_create(&rows, m, &room, &refusal), KG_OK);
    kg_status status = kg_score(rows, m, seqs, N_TRAJS, 0, K, &refusal);
    if (status != KG_OK)
        fail_msg("%s", refusal.message);
    kg_rows_free(rows);
    for (int i = 0; i < N_TRAJS; i++) {
        size_t p = t[i].prompt_n;
        size_t n = t[i].n - p;
        assert_memory_equal(logp[i], t[i].logp, t[i].n * sizeof(float));
        assert_memory_equal(top_ids[i] + p * K, t[i].top_ids + p * K,
                            n * K * sizeof(int32_t));
        assert_memory_equal(top_logp[i] + p * K, t[i].top_logp + p * K,
                            n * K * sizeof(float));
    }
}

static void check_promise_1(enum kg_dtype ct, const struct kg_sampling *s)
{
    const int32_t batches[] = {1, 2, 3, 5, 8, 17, 33, 64};
    const int32_t chunks[] = {1, 7, 64, 512};
    struct kg_traj first[N_TRAJS];
    struct kg_traj again[N_TRAJS];
    const struct kg_model *m = models[ct];
    struct kg_rollout_opts o = options(4, 512);
    kg_threads_set(1);
    run_with(first, m, &o, s);
    assert_scored_alike(m, first, 130 + NEW);
    for (int threads = 1; threads <= 2; threads++) {
        kg_threads_set(threads);
        assert_scored_alike(m, first, 2048);
        for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
            o = options(batches[i], chunks[i % 4]);
            run_with(again, m, &o, s);
            assert_same(first, again);
            release(again, N_TRAJS);
        }
    }
    release(first, N_TRAJS);
}

static void recorded_log_probs_are_the_scores_in_fp32(void **state)
{
    (void)state;
    struct kg_sampling s = sampling();
    check_promise_1(KG_F32, &s);
}

static void recorded_log_probs_are_the_scores_in_bf16(void **state)
{
    (void)state;
    struct kg_sampling s = sampling();
    if (models[KG_BF16] == NULL) {
        print_message("skip: this machine has no bf16 product\n");
        skip();
    }
    check_promise_1(KG_BF16, &s);
}

static void promise_1_holds_at_other_temperatures_and_truncations(void **state)
{
    (void)state;
    struct kg_sampling s = sampling();
    s.temperature = 0.7f;
    check_promise_1(KG_F32, &s);
    s.top_p = 0.9f;
    s.top_k = 20;
    s.min_p = 0.01f;
    check_promise_1(KG_F32, &s);
    s.temperature = 0;
    check_promise_1(KG_F32, &s);
}

static void every_batch_size_up_to_64_gives_the_same_bits(void **state)
{
    (void)state;
    struct kg_sampling s = sampling();
    struct kg_rollout_opts o = options(64, 512);
    struct kg_traj first[N_TRAJS];
    struct kg_traj again[N_TRAJS];
    s.max_tokens = 4;
    kg_threads_set(2);
    run_with(first, models[KG_F32], &o, &s);
    for (int32_t batch = 1; batch < 64; batch++) {
        o = options(batch, 100);
        run_with(again, models[KG_F32], &o, &s);
        assert_same(first, again);
        release(again, N_TRAJS);
    }
    release(first, N_TRAJS);
}

/* ---- promise 3 ---- */

static void a_trajectory_does_not_depend_on_its_neighbours(void **state)
{
    (void)state;
    struct kg_sampling s = sampling();
    struct kg_rollout_opts o = options(8, 512);
    struct kg_traj all[N_TRAJS];
    struct kg_traj some[N_TRAJS];
    struct kg_rollout *r = NULL;
    run_with(all, models[KG_F32], &o, &s);
    assert_int_equal(kg_rollout_create(&r, models[KG_F32], NULL, &o, &refusal), KG_OK);
    struct kg_request picked[2] = {requests[4],
                                   requests[1]}; /* other order, no other request */
    assert_int_equal(kg_rollout_run(r, some, picked, 2, &s, NULL, NULL, &refusal), KG_OK);
    for (int i = 0; i < N_SAMPLES; i++) {
        assert_same_traj(&some[i], &all[4 * N_SAMPLES + i]);
        assert_same_traj(&some[N_SAMPLES + i], &all[1 * N_SAMPLES + i]);
    }
    release(some, 2 * N_SAMPLES);
    release(all, N_TRAJS);
    kg_rollout_free(r);
}

static void seed_draw_number_and_sample_each_change_the_answer(void **state)
{
    (void)state;
    struct kg_sampling s = sampling();
    struct kg_rollout_opts o = options(8, 512);
    struct kg_traj a[N_TRAJS];
    struct kg_traj b[N_TRAJS];
    struct kg_traj c[N_TRAJS];
    run_with(a, models[KG_F32], &o, &s);
    s.rng.seed++;
    run_with(b, models[KG_F32], &o, &s);
    s.rng.seed--;
    requests[2].draw = 9999;
    run_with(c, models[KG_F32], &o, &s);
    requests[2].draw = 102;
    for (int i = 0; i < N_TRAJS; i++) {
        assert_false(same_tokens(&a[i], &b[i]));
        assert_int_equal(same_tokens(&a[i], &c[i]), i / N_SAMPLES != 2);
        assert_false(i % N_SAMPLES > 0 && same_tokens(&a[i], &a[i - 1]));
        assert_int_equal(a[i].sample, i % N_SAMPLES);
        assert_int_equal(a[i].draw, requests[i / N_SAMPLES].draw);
    }
    release(a, N_TRAJS);
    release(b, N_TRAJS);
    release(c, N_TRAJS);
}

/* A seed names one sample: a group with the seeds s, s + 1, ... equals its samples
 * requested one by one. */
static void a_seed_is_one_sample_of_a_draw(void **state)
{
    (void)state;
    const uint64_t seed = 77 * KG_SEED_SAMPLES + 5;
    struct kg_sampling s = sampling();
    struct kg_rollout_opts o = options(8, 512);
    struct kg_traj group[N_SAMPLES];
    struct kg_traj one[1];
    struct kg_rollout *r = NULL;
    struct kg_request q = requests[2];
    s.rng = kg_seed_key();
    q.draw = kg_seed_draw(seed);
    q.first_sample = kg_seed_sample(seed);
    assert_int_equal(q.draw, 77);
    assert_int_equal(q.first_sample, 5);
    assert_int_equal(kg_rollout_create(&r, models[KG_F32], NULL, &o, &refusal), KG_OK);
    assert_int_equal(kg_rollout_run(r, group, &q, 1, &s, NULL, NULL, &refusal), KG_OK);
    for (int32_t i = 0; i < N_SAMPLES; i++) {
        q.n_samples = 1;
        q.first_sample = kg_seed_sample(seed + (uint64_t)i);
        assert_int_equal(kg_rollout_run(r, one, &q, 1, &s, NULL, NULL, &refusal), KG_OK);
        assert_same_traj(one, &group[i]);
        assert_int_equal(group[i].sample, 5 + i);
        release(one, 1);
    }
    q.first_sample = -1;
    assert_int_equal(kg_rollout_run(r, one, &q, 1, &s, NULL, NULL, &refusal), KG_EINVAL);
    release(group, N_SAMPLES);
    kg_rollout_free(r);
}

static void the_smallest_cache_that_fits_gives_the_same_bits(void **state)
{
    (void)state;
    struct kg_sampling s = sampling();
    struct kg_rollout_opts o = options(16, 512);
    struct kg_traj a[N_TRAJS];
    struct kg_traj b[N_TRAJS];
    run_with(a, models[KG_F32], &o, &s);
    o.kv_tokens =
        4 *
        KG_KV_BLOCK; /* 130 + 24 - 1 tokens, and the copy of the prompt's last block */
    run_with(b, models[KG_F32], &o, &s);
    assert_same(a, b);
    release(b, N_TRAJS);
    release(a, N_TRAJS);
}

static void an_engine_follows_weights_that_change(void **state)
{
    (void)state;
    struct kg_sampling s = sampling();
    struct kg_rollout_opts o = options(8, 512);
    struct kg_model *m = make_model(KG_F32, V);
    struct kg_rollout *r = NULL;
    struct kg_traj t[N_TRAJS];
    assert_int_equal(kg_rollout_create(&r, m, NULL, &o, &refusal), KG_OK);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(
            kg_rollout_run(r, t, requests, N_PROMPTS, &s, NULL, NULL, &refusal), KG_OK);
        assert_scored_alike(m, t, 2048);
        release(t, N_TRAJS);
        scale_slab(&m->master, 0.9f, 0, 1);
        assert_int_equal(kg_model_refresh(m, &refusal), KG_OK);
    }
    kg_rollout_free(r);
    kg_model_free(m);
}

/* ---- ends ---- */

static void limits_are_kept_by_request(void **state)
{
    (void)state;
    struct kg_sampling s = sampling();
    struct kg_rollout_opts o = options(5, 512);
    struct kg_traj t[N_TRAJS];
    s.max_tokens = 7;
    requests[3].max_tokens = 1;
    requests[4].max_tokens = 20;
    run_with(t, models[KG_F32], &o, &s);
    for (int i = 0; i < N_TRAJS; i++) {
        size_t limit = i / N_SAMPLES == 3 ? 1 : i / N_SAMPLES == 4 ? 20 : 7;
        assert_int_equal(t[i].n - t[i].prompt_n, limit);
        assert_int_equal(t[i].finish, KG_FINISH_LENGTH);
    }
    requests[3].max_tokens = requests[4].max_tokens = 0;
    release(t, N_TRAJS);
}

static void any_id_of_the_eos_set_ends_a_sequence(void **state)
{
    (void)state;
    struct kg_sampling s = sampling();
    struct kg_rollout_opts o = options(7, 512);
    struct kg_traj free_run[N_TRAJS];
    struct kg_traj t[N_TRAJS];
    struct kg_model *m = models[KG_F32];
    int stopped = 0;
    run_with(free_run, m, &o, &s);
    m->config.n_eos = 12;
    for (int i = 0; i < 12; i++)
        m->config.eos[i] = 5 + 7 * i;
    run_with(t, m, &o, &s);
    for (int i = 0; i < N_TRAJS; i++) {
        size_t n = t[i].prompt_n;
        while (n < free_run[i].n &&
               !kg_model_config_is_eos(&m->config, free_run[i].tokens[n]))
            n++;
        bool stop = n < free_run[i].n;
        stopped += stop;
        assert_int_equal(t[i].n, n + stop);
        assert_int_equal(t[i].finish, stop ? KG_FINISH_STOP : KG_FINISH_LENGTH);
        assert_memory_equal(t[i].tokens, free_run[i].tokens, t[i].n * sizeof(int32_t));
    }
    assert_true(stopped > 3);
    release(t, N_TRAJS);
    s.ignore_eos = true;
    run_with(t, m, &o, &s);
    assert_same(t, free_run);
    m->config.n_eos = 0;
    release(t, N_TRAJS);
    release(free_run, N_TRAJS);
}

static void decode_answer(struct kg_str *out, const struct kg_tokenizer *tok,
                          const struct kg_traj *t)
{
    kg_str_clear(out);
    assert_int_equal(kg_tokenizer_decode(out, tok, t->tokens + t->prompt_n,
                                         t->n - t->prompt_n, false, &refusal),
                     KG_OK);
}

static void a_stop_string_over_several_tokens_ends_a_sequence(void **state)
{
    (void)state;
    struct kg_sampling s = sampling();
    struct kg_rollout_opts o = options(7, 512);
    struct kg_traj free_run[N_TRAJS];
    struct kg_traj t[N_TRAJS];
    struct kg_rollout *r = NULL;
    struct kg_tokenizer *tok = letters();
    struct kg_str whole = {0};
    struct kg_str text = {0};
    run_with(free_run, models[KG_F32], &o, &s);
    /* characters 6..8 of the first completion: three tokens, some of several bytes */
    decode_answer(&whole, tok, &free_run[0]);
    struct kg_str stop = {0};
    assert_int_equal(kg_tokenizer_decode(&stop, tok,
                                         free_run[0].tokens + free_run[0].prompt_n + 6, 3,
                                         false, &refusal),
                     KG_OK);
    const char *stops[] = {"never in there", stop.data};
    s.stops = stops;
    s.n_stops = 2;
    assert_int_equal(kg_rollout_create(&r, models[KG_F32], tok, &o, &refusal), KG_OK);
    assert_int_equal(kg_rollout_run(r, t, requests, N_PROMPTS, &s, NULL, NULL, &refusal),
                     KG_OK);
    for (int i = 0; i < N_TRAJS; i++) {
        decode_answer(&whole, tok, &free_run[i]);
        const char *at = strstr(kg_str_text(&whole), stop.data);
        size_t shown = at ? (size_t)(at - whole.data) : whole.len;
        assert_int_equal(t[i].finish, at ? KG_FINISH_STRING : KG_FINISH_LENGTH);
        kg_str_clear(&text);
        assert_int_equal(kg_rollout_text(&text, tok, &t[i], stops, 2, &refusal), KG_OK);
        assert_int_equal(text.len, shown);
        assert_memory_equal(kg_str_text(&text), kg_str_text(&whole), shown);
        assert_memory_equal(t[i].tokens, free_run[i].tokens, t[i].n * sizeof(int32_t));
    }
    assert_int_equal(t[0].finish, KG_FINISH_STRING);
    assert_true(t[0].n <= t[0].prompt_n + 9);
    kg_rollout_free(r);
    kg_tokenizer_close(tok);
    release(t, N_TRAJS);
    release(free_run, N_TRAJS);
    kg_str_release(&whole);
    kg_str_release(&text);
    kg_str_release(&stop);
}

/* ---- records ---- */

static bool has_id(const struct kg_idset *s, int32_t id)
{
    struct kg_idset_walk w;
    if (s->n == 0)
        return false;
    for (kg_idset_begin(&w, s); w.id < id; kg_idset_next(&w, s))
        continue;
    return w.id == id;
}

static void kept_ids_are_recorded_with_the_token_among_them(void **state)
{
    (void)state;
    struct kg_sampling s = sampling();
    struct kg_rollout_opts o = options(7, 512);
    struct kg_traj t[N_TRAJS];
    s.top_p = 0.6f;
    s.record_kept = true;
    run_with(t, models[KG_F32], &o, &s);
    for (int i = 0; i < N_TRAJS; i++) {
        size_t at = 0;
        for (size_t p = 0; p < t[i].n; p++) {
            struct kg_idset kept = kg_traj_kept(&t[i], p, &at);
            assert_int_equal(has_id(&kept, t[i].tokens[p]), p >= t[i].prompt_n);
        }
        assert_int_equal(at, t[i].kept_total);
    }
    release(t, N_TRAJS);
}

/* A flat distribution: the nucleus is nearly the whole vocabulary. */
static struct kg_model *flat_model(void)
{
    struct kg_model *m = make_model(KG_F32, 3000);
    scale_slab(&m->master, 0.05f, 0, 1);
    assert_int_equal(kg_model_refresh(m, &refusal), KG_OK);
    return m;
}

static void a_wide_nucleus_is_recorded(void **state)
{
    (void)state;
    struct kg_model *m = flat_model();
    struct kg_sampling s = sampling();
    struct kg_rollout_opts o = options(4, 512);
    struct kg_rollout *r = NULL;
    struct kg_traj t[N_SAMPLES];
    s.top_p = 0.95f;
    s.record_kept = true;
    assert_int_equal(kg_rollout_create(&r, m, NULL, &o, &refusal), KG_OK);
    assert_int_equal(kg_rollout_run(r, t, requests, 1, &s, NULL, NULL, &refusal), KG_OK);
    for (int i = 0; i < N_SAMPLES; i++) {
        assert_true(t[i].kept_n[t[i].n - 1] > 2500);
        assert_int_equal(t[i].cut_n, kg_traj_model_tokens(&t[i]));
    }
    release(t, N_SAMPLES);
    kg_rollout_free(r);
    kg_model_free(m);
}

static kg_status count_done(void *user, const struct kg_traj *t, struct kg_err *e)
{
    int *left = user;
    assert_int_not_equal(t->finish, KG_FINISH_NONE);
    if (--*left == 0)
        return kg_fail(e, KG_EIO, "enough");
    return KG_OK;
}

static void each_finished_trajectory_is_reported_once(void **state)
{
    (void)state;
    struct kg_sampling s = sampling();
    struct kg_rollout_opts o = options(7, 512);
    struct kg_rollout *r = NULL;
    struct kg_traj t[N_TRAJS];
    int left = N_TRAJS + 1;
    assert_int_equal(kg_rollout_create(&r, models[KG_F32], NULL, &o, &refusal), KG_OK);
    assert_int_equal(
        kg_rollout_run(r, t, requests, N_PROMPTS, &s, count_done, &left, &refusal),
        KG_OK);
    assert_int_equal(left, 1);
    release(t, N_TRAJS);
    left = 5;
    assert_int_equal(
        kg_rollout_run(r, t, requests, N_PROMPTS, &s, count_done, &left, &refusal),
        KG_EIO);
    release(t, N_TRAJS);
    left = N_TRAJS + 1; /* and the engine is still usable */
    assert_int_equal(
        kg_rollout_run(r, t, requests, N_PROMPTS, &s, count_done, &left, &refusal),
        KG_OK);
    release(t, N_TRAJS);
    kg_rollout_free(r);
}

static void a_prompt_is_computed_once_for_its_group(void **state)
{
    (void)state;
    struct kg_sampling s = sampling();
    struct kg_rollout_opts o = options(2, 512);
    struct kg_rollout *r = NULL;
    struct kg_traj t[N_TRAJS];
    assert_int_equal(kg_rollout_create(&r, models[KG_F32], NULL, &o, &refusal), KG_OK);
    assert_int_equal(kg_rollout_run(r, t, requests, N_PROMPTS, &s, NULL, NULL, &refusal),
                     KG_OK);
    assert_int_equal(kg_rollout_stats(r)->prefill_tokens, 1 + 5 + 63 + 64 + 65 + 130);
    assert_int_equal(kg_rollout_stats(r)->decode_tokens, N_TRAJS * (NEW - 1));
    release(t, N_TRAJS);
    kg_rollout_free(r);
}

/* Each trajectory equals the one without stop ids, up to and including the first stop
 * id. */
static void stop_ids_end_a_trajectory(void **state)
{
    struct kg_sampling s = sampling();
    struct kg_rollout_opts o = options(4, 64);
    struct kg_rollout *r = NULL;
    struct kg_traj whole[N_TRAJS], t[N_TRAJS];
    int cut = 0;
    (void)state;
    s.ignore_eos = true;
    assert_int_equal(kg_rollout_create(&r, models[KG_F32], NULL, &o, &refusal), KG_OK);
    NEED(kg_rollout_run(r, whole, requests, N_PROMPTS, &s, NULL, NULL, err));
    for (int32_t id = 0; id < V; id += 8) {
        const int32_t ids[] = {id, (id + 3) % V};
        s.stop_ids = ids;
        s.n_stop_ids = 2;
        NEED(kg_rollout_run(r, t, requests, N_PROMPTS, &s, NULL, NULL, err));
        for (int i = 0; i < N_TRAJS; i++) {
            size_t n = whole[i].prompt_n;
            while (n < whole[i].n && whole[i].tokens[n] != ids[0] &&
                   whole[i].tokens[n] != ids[1])
                n++;
            bool stopped = n < whole[i].n;
            n += stopped;
            assert_int_equal(t[i].n, n);
            assert_int_equal(t[i].finish, stopped ? KG_FINISH_STOP : KG_FINISH_LENGTH);
            assert_memory_equal(t[i].tokens, whole[i].tokens, n * sizeof *t[i].tokens);
            assert_memory_equal(t[i].logp, whole[i].logp, n * sizeof *t[i].logp);
            cut += stopped;
        }
        release(t, N_TRAJS);
    }
    assert_in_range(cut, 10, 13 * N_TRAJS - 1);
    release(whole, N_TRAJS);
    kg_rollout_free(r);
}

/* ---- refusals ---- */

static void expect_refusal(const struct kg_rollout_opts *o, const struct kg_request *q,
                           const struct kg_sampling *s, const char *word)
{
    struct kg_rollout *r = NULL;
    struct kg_traj t[N_SAMPLES];
    assert_int_equal(kg_rollout_create(&r, models[KG_F32], NULL, o, &refusal), KG_OK);
    assert_int_equal(kg_rollout_run(r, t, q, 1, s, NULL, NULL, &refusal), KG_EINVAL);
    if (strstr(refusal.message, word) == NULL)
        fail_msg("expected '%s' in: %s", word, refusal.message);
    kg_rollout_free(r);
}

static void impossible_requests_are_refused_before_anything_runs(void **state)
{
    (void)state;
    struct kg_sampling s = sampling();
    struct kg_rollout_opts o = options(2, 512);
    struct kg_request q = requests[5];
    int32_t bad[3] = {1, V, 2};
    const char *stops[] = {"x"};
    q.prompt_n = 0;
    expect_refusal(&o, &q, &s, "empty prompt");
    q = requests[5];
    q.max_tokens = NEW + 1;
    expect_refusal(&o, &q, &s, "exceed the limit of 154 tokens");
    q = requests[5];
    o.kv_tokens = 3 * KG_KV_BLOCK;
    expect_refusal(&o, &q, &s, "need a cache of 256 tokens, found 192");
    o.kv_tokens = 0;
    q.prompt = bad;
    q.prompt_n = 3;
    expect_refusal(&o, &q, &s, "token 1 is 97, expected an id between 0 and 96");
    q = requests[5];
    q.n_samples = 0;
    expect_refusal(&o, &q, &s, "at least one sample");
    s.record_top_k = V + 1;
    expect_refusal(&o, &requests[5], &s, "0 to the vocabulary's 97");
    s = sampling();
    s.stops = stops;
    s.n_stops = 1;
    expect_refusal(&o, &requests[5], &s, "need a tokenizer");
    s = sampling();
    s.top_p = 2;
    expect_refusal(&o, &requests[5], &s, "top_p");
    s = sampling();
    s.stop_ids = bad;
    s.n_stop_ids = 3;
    expect_refusal(&o, &requests[5], &s, "stop id 1 is 97, expected an id between 0");
}

static void running_out_of_memory_is_a_status_and_leaks_nothing(void **state)
{
    (void)state;
    struct kg_sampling s = sampling();
    struct kg_rollout_opts o = options(3, 64);
    uint64_t before = kg_mem_current_bytes();
    kg_status status = KG_ENOMEM;
    s.max_tokens = 3;
    s.top_p = 0.5f;
    s.record_kept = true;
    kg_threads_set(1);
    for (uint64_t n = 1; status == KG_ENOMEM; n++) {
        struct kg_rollout *r = NULL;
        struct kg_traj t[N_TRAJS] = {0};
        kg_mem_fail_at(n);
        status = kg_rollout_create(&r, models[KG_F32], NULL, &o, &refusal);
        if (status == KG_OK)
            status = kg_rollout_run(r, t, requests, N_PROMPTS, &s, NULL, NULL, &refusal);
        kg_mem_fail_at(0);
        release(t, N_TRAJS);
        kg_rollout_free(r);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
    assert_int_equal(status, KG_OK);
}

/* A completion made by two requests equals that of one: the second request continues the
 * random numbers of the first. */
static void a_request_goes_on_where_another_ended(void **state)
{
    struct kg_sampling s = sampling();
    const struct kg_rollout_opts o = options(4, 0);
    struct kg_rollout *r = NULL;
    struct kg_traj whole[N_TRAJS] = {0};

    (void)state;
    s.ignore_eos = true;
    run_with(whole, models[KG_F32], &o, &s);
    assert_int_equal(kg_rollout_create(&r, models[KG_F32], NULL, &o, &refusal), KG_OK);
    for (int i = 0; i < N_TRAJS; i++) {
        const struct kg_traj *w = &whole[i];
        struct kg_request q = requests[i / N_SAMPLES];
        struct kg_traj rest = {0};

        q.prompt = w->tokens;
        q.drawn = 1 + i; /* 1 to 18 of 24 */
        q.prompt_n += (size_t)q.drawn;
        q.n_samples = 1;
        q.first_sample = w->sample;
        q.max_tokens = NEW - q.drawn;
        assert_int_equal(kg_rollout_run(r, &rest, &q, 1, &s, NULL, NULL, &refusal),
                         KG_OK);
        assert_true(same_tokens(&rest, w));
        kg_traj_release(&rest);
        kg_traj_release(&whole[i]);
    }
    kg_rollout_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_goes_on_where_another_ended),
        cmocka_unit_test(recorded_log_probs_are_the_scores_in_fp32),
        cmocka_unit_test(recorded_log_probs_are_the_scores_in_bf16),
        cmocka_unit_test(promise_1_holds_at_other_temperatures_and_truncations),
        cmocka_unit_test(every_batch_size_up_to_64_gives_the_same_bits),
        cmocka_unit_test(a_trajectory_does_not_depend_on_its_neighbours),
        cmocka_unit_test(seed_draw_number_and_sample_each_change_the_answer),
        cmocka_unit_test(a_seed_is_one_sample_of_a_draw),
        cmocka_unit_test(the_smallest_cache_that_fits_gives_the_same_bits),
        cmocka_unit_test(an_engine_follows_weights_that_change),
        cmocka_unit_test(limits_are_kept_by_request),
        cmocka_unit_test(any_id_of_the_eos_set_ends_a_sequence),
        cmocka_unit_test(a_stop_string_over_several_tokens_ends_a_sequence),
        cmocka_unit_test(kept_ids_are_recorded_with_the_token_among_them),
        cmocka_unit_test(a_wide_nucleus_is_recorded),
        cmocka_unit_test(each_finished_trajectory_is_reported_once),
        cmocka_unit_test(a_prompt_is_computed_once_for_its_group),
        cmocka_unit_test(stop_ids_end_a_trajectory),
        cmocka_unit_test(impossible_requests_are_refused_before_anything_runs),
        cmocka_unit_test(running_out_of_memory_is_a_status_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
