/* Episodes with an environment that follows a script: every token has the source that the
 * script says, the bits do not depend on which episode waits for which, and the log-probs
 * equal the score's. */
#include "rollout/episode.h"
#include "rollout/rollout_testing.h"
#include "text/unicode.h"

enum {
    VOCAB = 270,
    N_PROMPTS = 7,
    GROUP = 3,
    N = N_PROMPTS * GROUP,
    CONTEXT = 200,
    TURNS = 3,
    TURN_TOKENS = 14,
    OBS_TOKENS = 20,
    TOP = 3
};

static struct kg_model *model;
static struct kg_tokenizer *tok;
static int32_t prompt_ids[N_PROMPTS][100];
static struct kg_request requests[N_PROMPTS];
static struct kg_record records[N_PROMPTS + 1];
static struct kg_dataset data = {.records = records, .n = N_PROMPTS + 1};
static int64_t rows[N_PROMPTS];
static const struct kg_prompts prompts = {.data = &data, .record = rows, .n = N_PROMPTS};

/* ---- an environment that follows a script ---- */

/* The environment's reply depends on the model's text alone. */
enum move { ANSWERS, IS_WRONG, CALLS, CALLS_AND_FAILS };
static uint32_t hash(const char *text, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)text[i]) * 16777619u;
    return h ^ h >> 15;
}
static enum move move_of(const char *text, size_t n)
{
    static const enum move moves[] = {ANSWERS,         IS_WRONG, CALLS, CALLS,
                                      CALLS_AND_FAILS, CALLS,    CALLS};
    return moves[hash(text, n) % 7];
}
/* The observation contains the text of a special token, a stop string and invalid
 * UTF-8. */
static kg_status observation_of(struct kg_str *out, const char *text, size_t n,
                                struct kg_err *err)
{
    uint32_t words = 1 + hash(text, n) / 7 % 9;
    for (uint32_t i = 0; i < words; i++)
        KG_TRY(kg_str_printf(out, err, "<|endoftext|> an e\xff%u ", hash(text, n) >> i));
    return KG_OK;
}

struct script {
    bool waits;          /* observations arrive through poll */
    int slow;            /* polls until one arrives */
    int fail_at;         /* step that fails; 0: none */
    bool never_delivers; /* poll never delivers, against its contract */
    bool continues;      /* episodes have other numbers than in the first run */
    int steps;
    uint64_t asked[N];
    char texts[N][512]; /* the model's text, for each entry of asked */
    size_t lengths[N];
    int n_asked, polls;
};
static struct script script; /* set before open */

static kg_status script_open(void **state, const struct kg_env_opts *opts,
                             struct kg_err *err)
{
    assert_int_equal(opts->topk, 5);
    (void)err;
    script.n_asked = script.polls = script.steps = 0;
    *state = &script;
    return KG_OK;
}

static void script_close(void *state) { (void)state; }

static kg_status script_step(struct kg_env_result *result, struct kg_str *observation,
                             void *state, const struct kg_env_turn *turn,
                             struct kg_err *err)
{
    struct script *s = state;
    enum move move = move_of(turn->text, turn->n);
    if (++s->steps == s->fail_at)
        return kg_fail(err, KG_EIO, "the tool is down");
    if (!s->continues)
        assert_ptr_equal(turn->record,
                         &records[1 + (turn->episode & UINT32_MAX) / GROUP]);
    *result = (struct kg_env_result){.valid = move != IS_WRONG,
                                     .answered = move == ANSWERS};
    if (move == ANSWERS || turn->last)
        return KG_OK;
    result->called = move != IS_WRONG;
    if (move == IS_WRONG || !s->waits) {
        result->next = KG_ENV_OBSERVE;
        result->failed = move == CALLS_AND_FAILS;
        return observation_of(observation, turn->text, turn->n, err);
    }
    result->next = KG_ENV_WAIT;
    assert_true(turn->n < sizeof s->texts[0]);
    s->asked[s->n_asked] = turn->episode;
    memcpy(s->texts[s->n_asked], turn->text, turn->n);
    s->lengths[s->n_asked++] = turn->n;
    return KG_OK;
}

static kg_status hand_out(struct script *s, int i, kg_env_deliver_fn deliver, void *user,
                          struct kg_err *err)
{
    struct kg_str text = {0};
    struct kg_env_delivery d = {.episode = s->asked[i]};
    kg_status status = observation_of(&text, s->texts[i], s->lengths[i], err);
    d.failed = move_of(s->texts[i], s->lengths[i]) == CALLS_AND_FAILS;
    d.observation = kg_str_text(&text);
    d.n = text.len;
    s->n_asked--;
    s->asked[i] = s->asked[s->n_asked];
    memcpy(s->texts[i], s->texts[s->n_asked], sizeof s->texts[i]);
    s->lengths[i] = s->lengths[s->n_asked];
    if (status == KG_OK)
        status = deliver(user, &d, err);
    kg_str_release(&text);
    return status;
}

static kg_status script_poll(void *state, int timeout_ms, kg_env_deliver_fn deliver,
                             void *user, struct kg_err *err)
{
    struct script *s = state;
    if (s->never_delivers || s->n_asked == 0)
        return KG_OK;
    if (s->slow > 0 && ++s->polls % s->slow != 0)
        return KG_OK;
    int i = (int)((unsigned)s->polls * 7u % (unsigned)s->n_asked);
    (void)timeout_ms;
    return hand_out(s, i, deliver, user, err);
}

static const char *const script_stops[] = {"e", "</x>"};
static const struct kg_env_row env = {.name = "script",
                                      .stops = script_stops,
                                      .n_stops = 2,
                                      .open = script_open,
                                      .close = script_close,
                                      .step = script_step,
                                      .poll = script_poll};

/* ---- set-up ---- */

static void make_tokenizer(void)
{
    static const char *const specials[] = {"<|endoftext|>"};
    static const char *const texts[] = {
        "the endoftext of an e is the text that ends an end of the text, and an e"};
    char dir[] = "/tmp/kedge-episode-XXXXXX";
    struct kg_bpe_train train = {
        .vocab_size = VOCAB, .specials = specials, .n_specials = 1};
    assert_non_null(mkdtemp(dir));
    NEED(kg_bpe_train_write(dir, texts, 1, &train, err));
    NEED(kg_tokenizer_open(&tok, dir, err));
    NEED(kg_file_remove_tree(dir, err));
}

static int setup(void **state)
{
    (void)state;
    make_tokenizer();
    model = make_model(KG_F32, VOCAB);
    model->config.eos[model->config.n_eos++] = kg_tokenizer_find(tok, "<|endoftext|>");
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        size_t n = 2 + 13 * i;
        for (uint32_t t = 0; t < n; t++)
            prompt_ids[i][t] = (int32_t)kg_rng_below((struct kg_rng_key){9, KG_RNG_TEST},
                                                     i, t, 0, VOCAB);
        rows[i] = 1 + i;
        requests[i] = (struct kg_request){.prompt = prompt_ids[i],
                                          .prompt_n = n,
                                          .prompt_index = i,
                                          .draw = 3 * i,
                                          .n_samples = GROUP};
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kg_tokenizer_close(tok);
    kg_model_free(model);
    return 0;
}

struct way {
    int32_t batch, open;
    int threads;
    bool waits;
    int slow;
    int32_t context; /* 0: CONTEXT */
    int32_t answer, window;
};

static struct kg_episode_opts options(const struct way *w)
{
    return (struct kg_episode_opts){.env = &env,
                                    .env_opts = {.topk = 5},
                                    .turns = TURNS,
                                    .turn_tokens = TURN_TOKENS,
                                    .obs_tokens = OBS_TOKENS,
                                    .context = w->context ? w->context : CONTEXT,
                                    .answer_tokens = w->answer,
                                    .window = w->window,
                                    .open = w->open};
}

static struct kg_sampling sampling(void)
{
    return (struct kg_sampling){.temperature = 1,
                                .top_p = 0.98f,
                                .max_tokens = 1,
                                .record_top_k = TOP,
                                .record_kept = true,
                                .rng = {21, KG_RNG_SAMPLE}};
}

static void make_engine(struct kg_rollout **r, const struct kg_episodes *e,
                        const struct way *w)
{
    struct kg_rollout_opts o = {.max_batch = w->batch, .prefill_chunk = 40};
    kg_episodes_fit(&o, e);
    assert_int_equal(o.max_len, w->context ? w->context : CONTEXT);
    NEED(kg_rollout_create(r, model, tok, &o, err));
}

static void run_way(struct kg_traj *t, const struct way *w)
{
    struct kg_episode_opts opts = options(w);
    struct kg_sampling s = sampling();
    struct kg_episodes *e = NULL;
    struct kg_rollout *r = NULL;
    double idle = 0;
    kg_threads_set(w->threads);
    script = (struct script){.waits = w->waits, .slow = w->slow};
    NEED(kg_episodes_open(&e, tok, &opts, err));
    make_engine(&r, e, w);
    NEED(kg_episodes_run(e, r, t, requests, N_PROMPTS, &s, &prompts, &idle, err));
    assert_true(w->waits || idle == 0); /* answered at once: something always decodes */
    kg_rollout_free(r);
    kg_episodes_close(e);
    kg_threads_set(1);
}

/* ---- what the script says must have happened ---- */

struct walk {
    const struct kg_traj *t;
    size_t at;
    struct kg_traj_episode seen;
};

/* Walks over the model's tokens at w->at; text: these tokens decoded. */
static void walk_turn(struct walk *w, struct kg_str *text)
{
    size_t from = w->at;
    while (w->at < w->t->n && w->t->source[w->at] == KG_SOURCE_MODEL)
        w->at++;
    assert_true(w->at > from && w->at - from <= TURN_TOKENS);
    /* the environment's first stop ends the turn: only the last token may contain it */
    kg_str_clear(text);
    NEED(
        kg_tokenizer_decode(text, tok, w->t->tokens + from, w->at - from - 1, true, err));
    assert_null(strchr(kg_str_text(text), 'e'));
    kg_str_clear(text);
    NEED(kg_tokenizer_decode(text, tok, w->t->tokens + from, w->at - from, true, err));
    w->seen.turns++;
}

/* Walks over the observation that the text causes: its tokens follow, or did not fit. */
static bool walk_observation(struct walk *w, const struct kg_str *text, size_t context)
{
    struct kg_str raw = {0}, valid = {0};
    struct kg_ids ids = {0};
    struct kg_encode_opts plain = {0};
    NEED(observation_of(&raw, kg_str_text(text), text->len, err));
    for (size_t i = 0; i < raw.len; i++)
        if (raw.data[i] == '\xff')
            NEED(kg_str_puts(&valid, "\uFFFD", err));
        else
            NEED(kg_str_putc(&valid, raw.data[i], err));
    NEED(kg_tokenizer_encode(&ids, tok, kg_str_text(&valid), valid.len, plain, err));
    size_t n = ids.n < OBS_TOKENS ? ids.n : OBS_TOKENS;
    bool fits = w->at + n < context;
    if (fits && n > 0)
        assert_memory_equal(ids.ids, w->t->tokens + w->at, n * sizeof *ids.ids);
    for (size_t i = 0; fits && i < n; i++, w->at++) {
        assert_int_equal(w->t->source[w->at], KG_SOURCE_TOOL);
        assert_int_not_equal(w->t->tokens[w->at], model->config.eos[0]);
        assert_true(w->t->logp[w->at] == 0 && w->t->kept_n[w->at] == 0);
    }
    kg_str_release(&raw);
    kg_str_release(&valid);
    kg_ids_release(&ids);
    return fits;
}

static void check_episode(const struct kg_traj *t, size_t context)
{
    struct walk w = {.t = t, .at = t->prompt_n};
    struct kg_str text = {0};
    bool over = false;
    for (size_t i = 0; i < t->prompt_n; i++)
        assert_int_equal(t->source[i], KG_SOURCE_PROMPT);
    for (int turn = 0; !over; turn++) {
        walk_turn(&w, &text);
        enum move move = move_of(kg_str_text(&text), text.len);
        bool full = w.at == context;
        bool last = turn == TURNS || full;
        bool calls = !last && (move == CALLS || move == CALLS_AND_FAILS);
        w.seen.invalid += move == IS_WRONG;
        w.seen.calls += calls;
        w.seen.failed += calls && move == CALLS_AND_FAILS;
        w.seen.answered = move == ANSWERS;
        w.seen.cut = full && move != ANSWERS;
        over = last || move == ANSWERS;
        if (!over && !walk_observation(&w, &text, context))
            over = w.seen.cut = true;
        else if (!over)
            assert_true(w.at < t->n);
    }
    assert_int_equal(w.at, t->n);
    assert_memory_equal(&w.seen, &t->episode, sizeof w.seen);
    if (t->episode.cut)
        assert_int_equal(t->finish, KG_FINISH_LENGTH);
    assert_int_not_equal(t->finish, KG_FINISH_NONE);
    kg_str_release(&text);
}

static void assert_scored_alike(const struct kg_traj *t)
{
    assert_scored_in_parts(model, t, TOP);
}

static struct kg_episode_sums sum_up(const struct kg_traj *t)
{
    struct kg_episode_sums sums = {0};
    for (size_t i = 0; i < N; i++)
        kg_episode_add(&sums, &t[i]);
    return sums;
}

static void every_token_is_of_the_source_that_the_script_says(void **state)
{
    (void)state;
    struct kg_traj t[N];
    run_way(t, &(struct way){.batch = 8, .threads = 1, .waits = true, .slow = 3});
    for (size_t i = 0; i < N; i++) {
        check_episode(&t[i], CONTEXT);
        assert_scored_alike(&t[i]);
    }
    struct kg_episode_sums sums = sum_up(t);
    assert_int_equal(sums.episodes, N);
    assert_true(sums.turns > 2 * N && sums.calls > N && sums.invalid > 2);
    assert_true(sums.failed > 2 && sums.answered > 2);
    release(t, N);
}

static void who_waits_for_whom_is_not_seen_in_the_bits(void **state)
{
    (void)state;
    static const struct way ways[] = {
        {.batch = 1, .open = 1, .threads = 1},
        {.batch = 3, .open = 4, .threads = 2, .waits = true, .slow = 5},
        {.batch = 5, .open = 50, .threads = 1, .waits = true},
        {.batch = 30, .threads = 2, .waits = true, .slow = 40},
        {.batch = 2, .threads = 1, .waits = true, .slow = 2},
    };
    struct kg_traj first[N], again[N];
    run_way(first, &(struct way){.batch = 8, .threads = 1, .waits = true});
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        run_way(again, &ways[k]);
        for (size_t i = 0; i < N; i++) {
            assert_same_traj(&first[i], &again[i]);
            assert_memory_equal(&first[i].episode, &again[i].episode,
                                sizeof first[i].episode);
        }
        release(again, N);
    }
    release(first, N);
}

/* ---- calls that outlast a run ---- */

/* Resumes the paused episodes.   returns their number */
static int play_on(struct kg_traj *t, struct kg_episodes *e, struct kg_rollout *r)
{
    struct kg_request requests_on[N];
    struct kg_sampling s = sampling();
    struct kg_traj pieces[N];
    int n = 0;

    for (int i = 0; i < N; i++) {
        int32_t drawn = (int32_t)kg_traj_model_tokens(&t[i]);

        if (t[i].finish == KG_FINISH_NONE)
            requests_on[n++] = (struct kg_request){.prompt = t[i].tokens,
                                                   .prompt_n = t[i].n,
                                                   .prompt_index = t[i].prompt_index,
                                                   .draw = t[i].draw,
                                                   .n_samples = 1,
                                                   .first_sample = t[i].sample,
                                                   .drawn = drawn,
                                                   .begun = drawn,
                                                   .tool_steps = 1,
                                                   .paused = &t[i]};
    }
    if (n == 0)
        return 0;
    NEED(kg_episodes_run(e, r, pieces, requests_on, (size_t)n, &s, &prompts, NULL, err));
    for (int i = 0, k = 0; i < N; i++) {
        if (t[i].finish != KG_FINISH_NONE)
            continue;
        NEED(kg_traj_extend(&t[i], &pieces[k], t[i].n, pieces[k].n, err));
        t[i].cut_n += pieces[k].cut_n;
        t[i].cut_nats += pieces[k].cut_nats;
        t[i].finish = pieces[k].finish;
        t[i].episode = pieces[k++].episode;
    }
    release(pieces, (size_t)n);
    return n;
}

/* Runs in pieces until all episodes have ended. elsewhere: each piece opens its own
 * environment, as another process would.   returns turns that the environment read */
static int run_in_pieces(struct kg_traj *t, const struct way *w, bool elsewhere)
{
    struct kg_request paused[N_PROMPTS];
    struct kg_episode_opts opts = options(w);
    struct kg_sampling s = sampling();
    struct kg_episodes *e = NULL;
    struct kg_rollout *r = NULL;
    int runs = 0;

    for (int i = 0; i < N_PROMPTS; i++) {
        paused[i] = requests[i];
        paused[i].tool_steps = 1;
    }
    script = (struct script){.waits = true, .slow = w->slow};
    NEED(kg_episodes_open(&e, tok, &opts, err));
    make_engine(&r, e, w);
    NEED(kg_episodes_run(e, r, t, paused, N_PROMPTS, &s, &prompts, NULL, err));
    script.continues = true;
    do {
        int steps = script.steps;

        if (elsewhere) {
            kg_episodes_close(e);
            NEED(kg_episodes_open(&e, tok, &opts, err));
            script.steps = steps;
        }
        runs++;
    } while (play_on(t, e, r) > 0);
    assert_true(runs > 2);
    kg_rollout_free(r);
    kg_episodes_close(e);
    return script.steps;
}

/* Pausing changes no bit, and no call is made twice, except where another process made
 * the first one. */
static void pauses_for_tools_are_not_seen_in_the_bits(void **state)
{
    (void)state;
    static const struct way ways[] = {{.batch = 8}, {.batch = 2, .slow = 9, .open = 3}};
    struct kg_traj whole[N], pieces[N];
    run_way(whole, &(struct way){.batch = 8, .threads = 1, .waits = true});
    const int steps = script.steps;
    for (int k = 0; k < 4; k++) {
        int read = run_in_pieces(pieces, &ways[k % 2], k >= 2);
        for (size_t i = 0; i < N; i++) {
            assert_same_traj(&whole[i], &pieces[i]);
            assert_int_equal(whole[i].episode.turns, pieces[i].episode.turns);
            assert_int_equal(whole[i].episode.calls, pieces[i].episode.calls);
            assert_int_equal(whole[i].episode.failed, pieces[i].episode.failed);
            assert_int_equal(whole[i].episode.cut, pieces[i].episode.cut);
        }
        assert_int_equal(read, k >= 2 ? steps + sum_up(whole).calls : steps);
        release(pieces, N);
    }
    release(whole, N);
}

static void an_episode_ends_where_its_context_is_full(void **state)
{
    (void)state;
    struct kg_traj t[N];
    run_way(t, &(struct way){.batch = 8, .threads = 1, .context = 95});
    for (size_t i = 0; i < N; i++) {
        assert_true(t[i].n <= 95);
        check_episode(&t[i], 95);
        assert_scored_alike(&t[i]);
    }
    assert_true(sum_up(t).cut > 3);
    release(t, N);
}

static void an_episode_ends_where_its_answer_is_full(void **state)
{
    (void)state;
    struct kg_traj t[N], less[N];
    size_t cut = 0;
    run_way(t, &(struct way){.batch = 8, .threads = 1});
    run_way(less, &(struct way){.batch = 8, .threads = 1, .answer = 40});
    for (size_t i = 0; i < N; i++) {
        size_t n = less[i].n;
        check_episode(&less[i], less[i].prompt_n + 40);
        assert_true(n <= less[i].prompt_n + 40 && n <= t[i].n);
        assert_memory_equal(less[i].tokens, t[i].tokens, n * sizeof *t[i].tokens);
        cut += less[i].episode.cut;
    }
    assert_true(cut > 3);
    release(t, N);
    release(less, N);
}

/* A window's tokens do not depend on which episodes share the batch, and the environment
 * sees the same texts. */
static void a_window_is_the_same_whoever_shares_the_batch(void **state)
{
    (void)state;
    static const struct way ways[] = {
        {.batch = 1, .open = 1, .threads = 1, .window = 85},
        {.batch = 3, .open = 4, .threads = 2, .waits = true, .slow = 5, .window = 85},
        {.batch = 30, .threads = 2, .waits = true, .slow = 40, .window = 85},
    };
    struct kg_traj first[N], again[N];
    run_way(first, &(struct way){.batch = 8, .threads = 1, .waits = true, .window = 85});
    for (size_t i = 0; i < N; i++) {
        check_episode(&first[i], CONTEXT);
        assert_scored_alike(&first[i]);
    }
    assert_true(sum_up(first).windowed > 5);
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        run_way(again, &ways[k]);
        for (size_t i = 0; i < N; i++)
            assert_same_traj(&first[i], &again[i]);
        release(again, N);
    }
    release(first, N);
}

/* kg_episodes_span bounds the positions of every episode, however many windows it has. */
static void the_span_bounds_what_is_computed(void **state)
{
    (void)state;
    struct way w = {.batch = 8, .threads = 1, .window = 85};
    struct kg_episode_opts opts = options(&w);
    struct kg_traj t[N];
    run_way(t, &w);
    assert_int_equal(kg_episodes_positions(&opts), 85 + TURN_TOKENS);
    for (size_t i = 0; i < N; i++) {
        assert_true(kg_traj_span(&t[i], false) <=
                    (size_t)kg_episodes_span(&opts, t[i].prompt_n));
        assert_int_equal(kg_traj_span(&t[i], true), t[i].n);
    }
    /* turns 2, 3 and 4 begin with at most 84, 118 and 152 tokens: two exceed 85 */
    assert_int_equal(kg_episodes_span(&opts, 50), 3 * (85 + TURN_TOKENS));
    opts.window = 0;
    assert_int_equal(kg_episodes_positions(&opts), CONTEXT);
    assert_int_equal(kg_episodes_span(&opts, 50), CONTEXT);
    opts.answer_tokens = 30;
    assert_int_equal(kg_episodes_span(&opts, 50), 80);
    assert_int_equal(kg_episodes_longest(&opts), 30);
    release(t, N);
}

static void its_text_is_told_apart_by_who_wrote_it(void **state)
{
    (void)state;
    struct kg_traj t[N];
    run_way(t, &(struct way){.batch = 8, .threads = 1});
    for (size_t i = 0; i < N; i++) {
        struct kg_episode_text x;
        struct kg_str bytes = {0}, plain = {0};
        size_t at = 0, model_at = 0;
        NEED(kg_episode_text_init(&x, tok, &t[i], err));
        NEED(kg_rollout_text(&bytes, tok, &t[i], script_stops, 2, err));
        NEED(kg_utf8_make_valid(&plain, kg_str_text(&bytes), bytes.len, err));
        assert_int_equal(plain.len, x.all.len);
        assert_memory_equal(kg_str_text(&plain), kg_str_text(&x.all), plain.len);
        for (size_t k = 0; k < x.n_spans; k++) {
            const struct kg_span *span = &x.spans[k];
            assert_ptr_equal(span->text, kg_str_text(&x.all) + at);
            assert_true(k == 0 || span->source != x.spans[k - 1].source);
            if (span->source == KG_SOURCE_MODEL) {
                assert_memory_equal(kg_str_text(&x.model) + model_at, span->text,
                                    span->n);
                model_at += span->n;
            }
            at += span->n;
        }
        assert_int_equal(at, x.all.len);
        assert_int_equal(model_at, x.model.len);
        kg_str_release(&bytes);
        kg_str_release(&plain);
        kg_episode_text_release(&x);
    }
    release(t, N);
}

static void what_a_broken_run_asked_for_is_dropped(void **state)
{
    (void)state;
    struct way w = {.batch = 8, .threads = 1, .waits = true, .slow = 4};
    struct kg_episode_opts opts = options(&w);
    struct kg_sampling s = sampling();
    struct kg_episodes *e = NULL;
    struct kg_rollout *r = NULL;
    struct kg_traj first[N], t[N];
    run_way(first, &w);
    script = (struct script){.waits = true, .slow = 4, .fail_at = 15};
    NEED(kg_episodes_open(&e, tok, &opts, err));
    make_engine(&r, e, &w);
    assert_int_equal(
        kg_episodes_run(e, r, t, requests, N_PROMPTS, &s, &prompts, NULL, &refusal),
        KG_EIO);
    assert_string_equal(refusal.message, "the tool is down");
    assert_true(script.n_asked > 0);
    release(t, N);
    NEED(kg_episodes_run(e, r, t, requests, N_PROMPTS, &s, &prompts, NULL, err));
    for (size_t i = 0; i < N; i++)
        assert_same_traj(&first[i], &t[i]);
    release(t, N);
    release(first, N);
    kg_rollout_free(r);
    kg_episodes_close(e);
}

static void expect_refusal(const struct way *w, const struct kg_sampling *s,
                           const struct kg_request *q, const char *word)
{
    struct kg_episode_opts opts = options(w);
    struct kg_episodes *e = NULL;
    struct kg_rollout *r = NULL;
    struct kg_traj t[GROUP];
    NEED(kg_episodes_open(&e, tok, &opts, err));
    make_engine(&r, e, w);
    assert_int_equal(kg_episodes_run(e, r, t, q, 1, s, &prompts, NULL, &refusal),
                     KG_EINVAL);
    if (strstr(refusal.message, word) == NULL)
        fail_msg("expected '%s' in: %s", word, refusal.message);
    release(t, GROUP);
    kg_rollout_free(r);
    kg_episodes_close(e);
}

static void what_cannot_be_an_episode_is_refused(void **state)
{
    (void)state;
    static const char *const many[] = {"a", "b", "c", "d", "f", "g", "h", "i",
                                       "j", "k", "l", "m", "n", "o", "p"};
    struct way w = {.batch = 4, .threads = 1};
    struct kg_sampling s = sampling();
    struct kg_request q = requests[6]; /* 80 tokens */
    struct kg_episode_opts opts = options(&w);
    struct kg_episodes *e;
    script = (struct script){.waits = false};
    w.context = 80;
    expect_refusal(&w, &s, &q, "fewer tokens than an episode's 80, found 80");
    w.context = 0;
    q.sampling = &s;
    expect_refusal(&w, &s, &q, "found its own");
    q.sampling = NULL;
    s.stops = many;
    s.n_stops = 15;
    expect_refusal(&w, &s, &q, "expected at most 16 stop strings, found 15 and");
    s = sampling();
    script = (struct script){.waits = true, .never_delivers = true};
    expect_refusal(&w, &s, &requests[0], "none is pending");
    opts.turn_tokens = 0;
    assert_int_equal(kg_episodes_open(&e, tok, &opts, &refusal), KG_EINVAL);
    w = (struct way){.batch = 4, .threads = 1, .window = 79};
    expect_refusal(&w, &s, &requests[6], "at most the window's 79 tokens, found 80");
    w.window = CONTEXT;
    opts = options(&w);
    assert_int_equal(kg_episodes_open(&e, tok, &opts, &refusal), KG_EINVAL);
    assert_non_null(strstr(refusal.message, "a window below the context's 200"));
    w = (struct way){.answer = CONTEXT};
    opts = options(&w);
    assert_int_equal(kg_episodes_open(&e, tok, &opts, &refusal), KG_EINVAL);
    assert_non_null(
        strstr(refusal.message, "answer_tokens below the context's 200 tokens"));
}

static kg_status whole(struct kg_traj *t, struct kg_err *err)
{
    struct way w = {.batch = 2, .threads = 1};
    struct kg_episode_opts opts = options(&w);
    struct kg_rollout_opts o = {.max_batch = 2};
    struct kg_sampling s = sampling();
    struct kg_episodes *e = NULL;
    struct kg_rollout *r = NULL;
    struct kg_episode_text x = {0};
    struct kg_request q = requests[0];
    kg_status status;
    opts.turns = 1;
    opts.window = (int32_t)q.prompt_n;
    q.n_samples = 1;
    KG_TRY_GOTO(out, kg_episodes_open(&e, tok, &opts, err));
    kg_episodes_fit(&o, e);
    KG_TRY_GOTO(out, kg_rollout_create(&r, model, tok, &o, err));
    KG_TRY_GOTO(out, kg_episodes_run(e, r, t, &q, 1, &s, &prompts, NULL, err));
    status = kg_episode_text_init(&x, tok, t, err);
out:
    kg_episode_text_release(&x);
    kg_rollout_free(r);
    kg_episodes_close(e);
    return status;
}

static void the_engine_has_room_for_the_episodes(void **state)
{
    static const struct {
        int32_t open, batch, room;
    } cases[] = {{0, 8, 16}, {2, 8, 8}, {8, 8, 8}, {20, 8, 20}};
    struct kg_rollout_opts none = {.max_batch = 3, .max_len = 7, .max_open = 5};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct way w = {.open = cases[i].open, .context = 90};
        struct kg_episode_opts opts = options(&w);
        struct kg_rollout_opts o = {.max_batch = cases[i].batch};
        struct kg_episodes *e;
        NEED(kg_episodes_open(&e, tok, &opts, err));
        kg_episodes_fit(&o, e);
        assert_int_equal(o.max_open, cases[i].room);
        assert_int_equal(o.max_len, 90);
        kg_episodes_close(e);
    }
    kg_episodes_fit(&none, NULL); /* completions of one turn */
    assert_true(none.max_len == 7 && none.max_open == 5);
}

static void running_out_of_memory_is_a_status_and_leaks_nothing(void **state)
{
    (void)state;
    uint64_t before = kg_mem_current_bytes();
    kg_status status = KG_ENOMEM;
    script = (struct script){.waits = true};
    for (uint64_t n = 1; status == KG_ENOMEM; n++) {
        struct kg_traj t[GROUP] = {0};
        kg_mem_fail_at(n);
        status = whole(t, &refusal);
        kg_mem_fail_at(0);
        release(t, GROUP);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
    assert_int_equal(status, KG_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_token_is_of_the_source_that_the_script_says),
        cmocka_unit_test(who_waits_for_whom_is_not_seen_in_the_bits),
        cmocka_unit_test(pauses_for_tools_are_not_seen_in_the_bits),
        cmocka_unit_test(an_episode_ends_where_its_context_is_full),
        cmocka_unit_test(an_episode_ends_where_its_answer_is_full),
        cmocka_unit_test(a_window_is_the_same_whoever_shares_the_batch),
        cmocka_unit_test(the_span_bounds_what_is_computed),
        cmocka_unit_test(its_text_is_told_apart_by_who_wrote_it),
        cmocka_unit_test(what_a_broken_run_asked_for_is_dropped),
        cmocka_unit_test(what_cannot_be_an_episode_is_refused),
        cmocka_unit_test(the_engine_has_room_for_the_episodes),
        cmocka_unit_test(running_out_of_memory_is_a_status_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
