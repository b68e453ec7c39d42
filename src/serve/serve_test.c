/* Tests of the server in this process: clients that connect and leave, failures that
 * affect one request only, the drain, and memory that is freed. */
#include "rollout/rollout_testing.h"

#include "base/rng.h"
#include "net/http_client.h"
#include "serve/serve_testing.h"
#include "tensor/backend_testing.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static struct kg_model *model;
static struct kg_tokenizer *tok;
static struct kg_http_client *client;
static pthread_t thread;

static int setup(void **state)
{
    (void)state;
    model = make_model(KG_F32, TEST_V);
    tok = letters();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kg_model_free(model);
    kg_tokenizer_close(tok);
    return 0; /* no leak check: OpenMP threads may keep scratch after the server */
}

static void start(struct kg_serve_opts opts)
{
    struct kg_http_client_opts c = {.max_in_flight = 64, .tries = 1};
    opts.model = opts.model ? opts.model : model;
    opts.tok = tok;
    opts.name = "letters";
    opts.max_batch = opts.max_batch > 0 ? opts.max_batch : 8;
    atomic_store(&stop, false);
    NEED(kg_serve_open(&server, &opts, err));
    NEED(kg_http_client_open(&client, &c, err));
    assert_int_equal(pthread_create(&thread, NULL, serve_main, NULL), 0);
}

static void end_run(void)
{
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
}

static void end(void)
{
    end_run();
    kg_http_client_close(client);
    kg_serve_close(server);
}

/* ---- requests ---- */

struct answers {
    int n;
    int status[64];
    char body[64][8192];
};
static struct answers got;

static kg_status take(void *user, const struct kg_http_answer *a, struct kg_err *err)
{
    (void)user;
    (void)err;
    assert_int_equal(a->status, KG_OK);
    got.status[a->ticket] = a->http_status;
    snprintf(got.body[a->ticket], sizeof got.body[0], "%s", a->body);
    got.n++;
    return KG_OK;
}

static void ask_at(uint64_t ticket, const char *path, const char *body)
{
    char where[96];
    snprintf(where, sizeof where, "http://127.0.0.1:%d%s", kg_serve_port(server), path);
    NEED(kg_http_client_submit(client, where, body, strlen(body), ticket, err));
}

static void ask(uint64_t ticket, const char *body)
{
    ask_at(ticket, "/v1/completions", body);
}

static void wait_answers(void)
{
    double until = kg_clock_seconds() + 20;
    got.n = 0;
    while (kg_http_client_waiting(client) > 0 && kg_clock_seconds() < until)
        NEED(kg_http_client_poll(client, 100, take, NULL, err));
    assert_int_equal(kg_http_client_waiting(client), 0);
}

/* The ids in the array "token_ids", as text. */
static void ids_of(char *out, size_t size, const char *body)
{
    const char *at = strstr(body, "\"token_ids\": ");
    assert_non_null(at);
    snprintf(out, size, "%.*s", (int)strcspn(at, "]"), at);
}

static int raw_request(const char *body)
{
    char text[2048];
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)kg_serve_port(server)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    snprintf(text, sizeof text,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
             "Content-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
    return fd;
}

/* ---- tests ---- */

#define IDS_8  "1,2,3,4,5,6,7,8"
#define IDS_64 IDS_8 "," IDS_8 "," IDS_8 "," IDS_8 "," IDS_8 "," IDS_8 "," IDS_8 "," IDS_8

static void answers_do_not_depend_on_company(void **state)
{
    char body[256];
    char alone[8][512];
    char now[512];
    (void)state;
    start((struct kg_serve_opts){.max_batch = 3});
    for (uint64_t i = 0; i < 8; i++) {
        snprintf(body, sizeof body,
                 "{\"prompt\":[%d,5],\"max_tokens\":20,\"seed\":%d,\"return_token_ids\":"
                 "true}",
                 (int)i, (int)i);
        ask(i, body);
        wait_answers();
        assert_int_equal(got.status[i], 200);
        ids_of(alone[i], sizeof alone[i], got.body[i]);
    }
    for (uint64_t i = 0; i < 8; i++) {
        snprintf(body, sizeof body,
                 "{\"prompt\":[%d,5],\"max_tokens\":20,\"seed\":%d,\"return_token_ids\":"
                 "true,\"n\":%d}",
                 (int)i, (int)i, 1 + (int)i % 3);
        ask(i, body);
    }
    wait_answers();
    for (uint64_t i = 0; i < 8; i++) {
        assert_int_equal(got.status[i], 200);
        ids_of(now, sizeof now, got.body[i]);
        assert_string_equal(now, alone[i]);
    }
    end();
}

/* ---- adapters ---- */

enum { ADAPTERS = 2, ASKED = 9 };

/* A fresh adapter with B changed from zero, so that it changes the answers. */
static struct kg_model *adapted(int32_t rank)
{
    const struct kg_lora lora = {.rank = rank, .alpha = 40};
    const struct kg_model_opts opts = {.ct = KG_F32, .lora = &lora, .seed = 2};
    struct kg_model *m;
    NEED(kg_model_share(&m, model, &opts, err));
    for (size_t i = m->n_base; i < m->n_params; i++)
        for (int64_t j = 0; j < m->params[i].rows * m->params[i].cols; j++) {
            const float w = (float)((j * 7 + (int64_t)i) % 11 - 5) * 0.05f;
            NEED(kg_slab_write(&m->master, m->params[i].offset + j, &w, 1, err));
        }
    NEED(kg_model_refresh(m, err));
    return m;
}

static void ask_model(uint64_t ticket, const char *name)
{
    char body[256];
    snprintf(body, sizeof body,
             "{\"model\":\"%s\",\"prompt\":[%d,5,7],\"max_tokens\":12,\"seed\":%d,"
             "\"logprobs\":2,\"return_token_ids\":true}",
             name, (int)ticket, (int)ticket);
    ask(ticket, body);
}

/* Everything from "choices" on, because what is before it names the model. */
static void choices_of(char *out, size_t size, const char *body)
{
    const char *at = strstr(body, "\"choices\"");
    assert_non_null(at);
    snprintf(out, size, "%s", at);
}

/* Serves the model, then each adapter as the only model; each gets the requests that are
 * its own in the mixed run. */
static void answers_alone(char answers[ASKED][4096], struct kg_model *const *others)
{
    for (int a = 0; a <= ADAPTERS; a++) {
        start((struct kg_serve_opts){.model = a > 0 ? others[a - 1] : NULL});
        for (uint64_t i = (uint64_t)a; i < ASKED; i += 1 + ADAPTERS) {
            ask_model(i, "letters");
            wait_answers();
            assert_int_equal(got.status[i], 200);
            choices_of(answers[i], sizeof answers[i], got.body[i]);
        }
        end();
    }
}

static void adapters_are_served_by_name_and_answer_as_alone(void **state)
{
    static const char *const names[] = {"letters", "poet", "clerk"};
    static char alone[ASKED][4096];
    char now[4096];
    struct kg_model *others[ADAPTERS] = {adapted(3), adapted(8)};
    const struct kg_serve_adapter list[] = {{names[1], others[0]}, {names[2], others[1]}};
    (void)state;
    answers_alone(alone, others);
    assert_string_not_equal(strchr(alone[0], '['), strchr(alone[1], '['));
    NEED(kg_model_mix(model, (const struct kg_model *const *)others, ADAPTERS, err));
    start((struct kg_serve_opts){.adapters = list, .n_adapters = ADAPTERS});
    for (uint64_t i = 0; i < ASKED; i++)
        ask_model(i, names[i % (1 + ADAPTERS)]);
    wait_answers();
    for (uint64_t i = 0; i < ASKED; i++) {
        assert_int_equal(got.status[i], 200);
        assert_non_null(strstr(got.body[i], names[i % (1 + ADAPTERS)]));
        choices_of(now, sizeof now, got.body[i]);
        assert_string_equal(now, alone[i]);
    }
    ask_model(0, "pet");
    wait_answers();
    assert_int_equal(got.status[0], 404);
    assert_non_null(strstr(got.body[0], "there are 'letters', 'poet', 'clerk'"));
    end();
    NEED(kg_model_mix(model, NULL, 0, err));
    for (int i = 0; i < ADAPTERS; i++)
        kg_model_free(others[i]);
}

static void two_models_of_one_name_are_refused(void **state)
{
    struct kg_model *other = adapted(3);
    const struct kg_model *others[] = {other};
    const struct kg_serve_adapter list[] = {{"letters", other}};
    const struct kg_serve_opts opts = {
        .model = model, .tok = tok, .name = "letters", .adapters = list, .n_adapters = 1};
    (void)state;
    NEED(kg_model_mix(model, others, 1, err));
    assert_int_equal(kg_serve_open(&server, &opts, &refusal), KG_EINVAL);
    assert_non_null(strstr(refusal.message, "found 'letters' twice"));
    NEED(kg_model_mix(model, NULL, 0, err));
    kg_model_free(other);
}

/* ---- how an answer ends ---- */

static size_t numbers_of(int32_t *out, const char *body, const char *name)
{
    const char *at = strstr(body, name);
    size_t n = 0;
    assert_non_null(at);
    at = strchr(at, '[') + 1;
    while (*at != ']' && n < 64) {
        out[n++] = atoi(at);
        at += strcspn(at, ",]");
        at += *at == ',';
    }
    return n;
}

/* Concatenates the texts of all chunks of a stream. */
static void texts_of(char *out, size_t size, const char *body)
{
    out[0] = '\0';
    while ((body = strstr(body, "\"text\": \"")) != NULL) {
        body += 9;
        size_t n = strlen(out);
        snprintf(out + n, size - n, "%.*s", (int)strcspn(body, "\""), body);
    }
}

/* Log-probs of an answer, as text; of /generate or of a completion. */
static void logps_of(char *out, size_t size, const char *body)
{
    const char *at = strstr(body, "\"token_logprobs\": [");
    out[0] = '\0';
    if (at) {
        at += strlen("\"token_logprobs\": [");
        snprintf(out, size, "%.*s, ", (int)strcspn(at, "]"), at);
        return;
    }
    while ((at = strstr(body, "{\"token\": ")) != NULL) {
        const char *value = strstr(at, "\"logprob\": ") + strlen("\"logprob\": ");
        size_t n = strlen(out);
        snprintf(out + n, size - n, "%.*s, ", (int)strcspn(value, ","), value);
        body = strstr(value, "]}"); /* skips the top log-probs, which repeat the token */
    }
}

/* /generate gives the ids and log-probs that a completion gives, whole or streamed; the
 * sampling mask has top_k ids. */
static void ids_are_answered_as_text_is(void **state)
{
    enum { SEEDS = 12, LONG = 10 };
    static const char *const how[] = {"", ",\"temperature\":0.7", ",\"top_k\":5",
                                      ",\"top_p\":0.6,\"top_k\":9"};
    char body[512], ids[2][512], logps[2][2048];
    (void)state;
    start((struct kg_serve_opts){0});
    for (int seed = 0; seed < SEEDS; seed++) {
        const char *more = how[seed % 4];
        snprintf(body, sizeof body,
                 "{\"prompt\":[3,1,4],\"max_tokens\":%d,\"seed\":%d,\"logprobs\":0,"
                 "\"return_token_ids\":true%s}",
                 LONG, seed, more);
        ask(0, body);
        for (uint64_t i = 1; i < 3; i++) {
            snprintf(body, sizeof body,
                     "{\"token_ids\":[3,1,4],\"stream\":%s,\"sampling_params\":{"
                     "\"max_tokens\":%d,\"seed\":%d,\"logprobs\":1%s}}",
                     i == 1 ? "false" : "true", LONG, seed, more);
            ask_at(i, "/inference/v1/generate", body);
        }
        wait_answers();
        ids_of(ids[0], sizeof ids[0], got.body[0]);
        ids_of(ids[1], sizeof ids[1], got.body[1]);
        assert_string_equal(ids[1], ids[0]);
        logps_of(logps[0], sizeof logps[0], got.body[0]);
        logps_of(logps[1], sizeof logps[1], got.body[1]);
        assert_string_equal(logps[1], logps[0]);
        logps_of(logps[1], sizeof logps[1], got.body[2]);
        assert_string_equal(logps[1], logps[0]);
        assert_null(strstr(got.body[1], "\"text\""));
        const char *mask = strstr(got.body[1], "\"sampling_mask\": ");
        assert_non_null(mask);
        assert_int_equal(mask[17] == '[', strstr(more, "top_k") != NULL);
        int32_t kept[64];
        if (mask[17] == '[')
            assert_in_range(numbers_of(kept, mask + 17, "["), 1, 9);
    }
    end();
}

/* With output_mode "text", an answer in ids also has the completion's text, whole or
 * streamed, and its tokens have names and bytes. */
static void ids_have_their_text(void **state)
{
    static const char *const how[] = {"",
                                      ",\"stop\":\"a\"",
                                      ",\"temperature\":0.7",
                                      ",\"stop\":[\"b\",\"cd\",\"e\"]",
                                      ",\"stop_token_ids\":[3,7,11]",
                                      ",\"skip_special_tokens\":false"};
    char body[512], texts[3][512], ids[2][512], logps[2][2048];
    (void)state;
    start((struct kg_serve_opts){0});
    for (int seed = 0; seed < 18; seed++) {
        snprintf(body, sizeof body,
                 "{\"prompt\":[3,1,4],\"max_tokens\":14,\"seed\":%d,\"logprobs\":0,"
                 "\"return_token_ids\":true%s}",
                 seed, how[seed % 6]);
        ask(0, body);
        for (uint64_t i = 1; i < 3; i++) {
            snprintf(body, sizeof body,
                     "{\"token_ids\":[3,1,4],\"output_mode\":\"text\",\"stream\":%s,"
                     "\"sampling_params\":{\"max_tokens\":14,\"seed\":%d,\"logprobs\":1"
                     "%s}}",
                     i == 1 ? "false" : "true", seed, how[seed % 6]);
            ask_at(i, "/inference/v1/generate", body);
        }
        wait_answers();
        for (int i = 0; i < 3; i++) {
            assert_int_equal(got.status[i], 200);
            texts_of(texts[i], sizeof texts[i], got.body[i]);
            assert_string_equal(texts[i], texts[0]);
            assert_true(i == 0 || strstr(got.body[i], "\"output_mode\": \"text\""));
            assert_true(i == 0 || (strstr(got.body[i], "\"bytes\": [") &&
                                   !strstr(got.body[i], "token_id:")));
        }
        ids_of(ids[0], sizeof ids[0], got.body[0]);
        ids_of(ids[1], sizeof ids[1], got.body[1]);
        assert_string_equal(ids[1], ids[0]);
        logps_of(logps[0], sizeof logps[0], got.body[0]);
        logps_of(logps[1], sizeof logps[1], got.body[1]);
        assert_string_equal(logps[1], logps[0]);
    }
    end();
}

/* Log-probs of a prompt, as text; in each entry the prompt's own token comes first. */
static void prompt_logps_of(char *out, size_t size, const char *body)
{
    const char *at = strstr(body, "\"prompt_logprobs\": [null");
    assert_non_null(at);
    snprintf(out, size, "null, ");
    while ((at = strchr(at, '{')) != NULL && at[1] == '"') {
        size_t n = strlen(out);
        at = strstr(at, "\"logprob\": ") + strlen("\"logprob\": ");
        snprintf(out + n, size - n, "%.*s, ", (int)strcspn(at, ","), at);
        at = strstr(at, "}}");
        if (at[2] == ']')
            break;
        at += 2;
    }
}

/* The same log-probs as a completion with echo lists, however many top log-probs are
 * requested. */
static void a_prompt_in_ids_is_scored_as_text_is(void **state)
{
    char body[256], echoed[1024], scored[1024];
    (void)state;
    start((struct kg_serve_opts){.prefill_chunk = 8});
    for (int n = 2; n < 14; n++) {
        char ids[64] = "7";
        for (int i = 1; i < n; i++)
            snprintf(ids + strlen(ids), 8, ",%d", (13 * i * n) % TEST_V);
        snprintf(body, sizeof body,
                 "{\"prompt\":[%s],\"max_tokens\":0,\"echo\":true,\"logprobs\":0}", ids);
        ask(0, body);
        snprintf(body, sizeof body,
                 "{\"token_ids\":[%s],\"sampling_params\":{\"max_tokens\":1,"
                 "\"prompt_logprobs\":%d,\"logprobs\":%d,\"n\":2}}",
                 ids, n % 4, n % 3);
        ask_at(1, "/inference/v1/generate", body);
        wait_answers();
        logps_of(echoed, sizeof echoed, got.body[0]);
        prompt_logps_of(scored, sizeof scored, got.body[1]);
        assert_string_equal(scored, echoed);
    }
    end();
}

/* 2 MiB hold 32,768 ids of masks. With min_p near 0 a mask has the whole vocabulary, so
 * two answers of 168 tokens fit and two of 169 do not. */
static void masks_do_not_fill_the_memory(void **state)
{
    static const char form[] =
        "{\"token_ids\":[3],\"sampling_params\":{\"max_tokens\":%d,"
        "\"ignore_eos\":true,\"n\":2,\"min_p\":1e-30}}";
    char body[256];
    (void)state;
    start((struct kg_serve_opts){.max_held_bytes = 2 << 20});
    for (int i = 0; i < 2; i++) {
        snprintf(body, sizeof body, form, 168 + i);
        ask_at((uint64_t)i, "/inference/v1/generate", body);
        wait_answers();
    }
    assert_int_equal(got.status[0], 200);
    assert_int_equal(got.status[1], 400);
    assert_non_null(strstr(got.body[1], "sampling_mask: expected at most 32768 ids"));
    end();
}

/* As in vLLM: the stop id is listed and has no text; before it the answer is the same as
 * without a stop. A stream gives the same, with or without ignore_eos. */
static void an_answer_ends_by_stop_id(void **state)
{
    enum { SEEDS = 12, LONG = 24 };
    char body[1024], whole[512], text[512];
    int32_t all[64], cut[64];
    (void)state;
    start((struct kg_serve_opts){0});
    for (int seed = 0; seed < SEEDS; seed++) {
        const char *form = "{\"prompt\":\"ab\",\"max_tokens\":%d,\"seed\":%d,"
                           "\"ignore_eos\":true,\"return_token_ids\":true%s}";
        snprintf(body, sizeof body, form, LONG, seed, "");
        ask(0, body);
        wait_answers();
        size_t n = numbers_of(all, got.body[0], "\"token_ids\"");
        assert_int_equal(n, LONG);
        int32_t id = all[2 + seed];
        size_t end = 0;
        while (all[end] != id)
            end++;
        snprintf(whole, sizeof whole, ",\"stop_token_ids\":[%d,%d]", TEST_V - 1, id);
        for (size_t i = 0; i < end; i++)
            end = all[i] == TEST_V - 1 ? i : end;
        snprintf(body, sizeof body, form, LONG, seed, whole);
        ask(1, body);
        strcat(whole, ",\"stream\":true");
        snprintf(body, sizeof body, form, LONG, seed, whole);
        ask(2, body);
        wait_answers();
        assert_int_equal(numbers_of(cut, got.body[1], "\"token_ids\""), end + 1);
        assert_memory_equal(cut, all, (end + 1) * sizeof *cut);
        assert_non_null(strstr(got.body[1], "\"finish_reason\": \"stop\""));
        texts_of(whole, sizeof whole, got.body[1]);
        texts_of(text, sizeof text, got.body[2]);
        assert_string_equal(text, whole);
        assert_non_null(strstr(got.body[2], "\"finish_reason\": \"stop\""));
        /* the text before it is that of an answer cut off there by max_tokens */
        snprintf(body, sizeof body, form, (int)(end > 0 ? end : 1), seed, "");
        ask(3, body);
        wait_answers();
        texts_of(text, sizeof text, got.body[3]);
        assert_string_equal(end > 0 ? text : "", whole);
    }
    end();
}

/* n answers with seed s are the answers of n requests with seeds s, s + 1, ..., also
 * where a new draw begins (at seed 4096). */
static void answer_i_is_drawn_with_seed_plus_i(void **state)
{
    static const char form[] =
        "{\"prompt\":\"ab\",\"max_tokens\":20,\"seed\":%d,\"n\":%d,"
        "\"return_token_ids\":true}";
    char body[256];
    char one[512];
    (void)state;
    start((struct kg_serve_opts){0});
    for (int i = 0; i < 3; i++) {
        snprintf(body, sizeof body, form, 4094 + i, 1);
        ask((uint64_t)i, body);
    }
    snprintf(body, sizeof body, form, 4094, 3);
    ask(3, body);
    wait_answers();
    for (int i = 0; i < 3; i++) {
        ids_of(one, sizeof one, got.body[i]);
        if (strstr(got.body[3], one) == NULL)
            fail_msg("answer %d, %s, is not in %s", i, one, got.body[3]);
    }
    end();
}

/* The same prompt twice gets different answers: those that n would have given. */
static void every_prompt_has_seeds_of_its_own(void **state)
{
    char one[512];
    const char *at;
    (void)state;
    start((struct kg_serve_opts){0});
    ask(0, "{\"prompt\":[\"ab\",\"ab\"],\"n\":2,\"max_tokens\":20,\"seed\":4093,"
           "\"return_token_ids\":true}");
    ask(1, "{\"prompt\":\"ab\",\"n\":4,\"max_tokens\":20,\"seed\":4093,"
           "\"return_token_ids\":true}");
    wait_answers();
    at = strstr(got.body[0], "\"choices\"");
    for (int i = 0; i < 4; i++) {
        at = strstr(at, "\"token_ids\"");
        assert_non_null(at);
        ids_of(one, sizeof one, at++);
        if (strstr(got.body[1], one) == NULL || strstr(at, one) != NULL)
            fail_msg("answer %d: %s of %s, against %s", i, one, got.body[0], got.body[1]);
    }
    end();
}

static void a_failure_is_an_answer_and_the_server_lives_on(void **state)
{
    float *weight = model->norm->compute.data;
    float good = weight[0];
    (void)state;
    start((struct kg_serve_opts){0});
    weight[0] = NAN;
    ask(0, "{\"prompt\":\"ab\",\"max_tokens\":5}");
    wait_answers();
    assert_int_equal(got.status[0], 500);
    assert_non_null(strstr(got.body[0], "\"type\": \"server_error\""));
    ask(0, "{\"prompt\":\"ab\",\"max_tokens\":5,\"stream\":true}");
    wait_answers();
    assert_int_equal(got.status[0], 500); /* 500, because nothing had been streamed yet */
    weight[0] = good;
    ask(0, "{\"prompt\":\"ab\",\"max_tokens\":5}");
    wait_answers();
    assert_int_equal(got.status[0], 200);
    end();
}

static void what_can_never_run_is_refused(void **state)
{
    (void)state;
    start((struct kg_serve_opts){.kv_tokens = 64});
    ask(0, "{\"prompt\":\"ab\",\"max_tokens\":400}");
    wait_answers();
    assert_int_equal(got.status[0], 400);
    assert_non_null(strstr(got.body[0], "cache of"));
    ask(0, "{\"prompt\":\"ab\",\"max_tokens\":40}");
    wait_answers();
    assert_int_equal(got.status[0], 200);
    end();
}

static void what_is_open_after_the_drain_gets_an_error(void **state)
{
    char text[1 << 14];
    size_t n = 0;
    ssize_t more;
    (void)state;
    start((struct kg_serve_opts){.drain_s = 1, .max_batch = 1});
    /* some minutes of work */
    int fd = raw_request("{\"prompt\":\"ab\",\"max_tokens\":500,\"ignore_eos\":true,"
                         "\"n\":128}");
    usleep(100000);
    int second = raw_request("{\"prompt\":[[1],[2],[3]],\"max_tokens\":500,"
                             "\"ignore_eos\":true,\"n\":64}");
    usleep(100000);
    end();
    for (int i = 0; i < 2; i++, fd = second) {
        for (n = 0; (more = recv(fd, text + n, sizeof text - 1 - n, 0)) > 0;)
            n += (size_t)more;
        text[n] = '\0';
        if (strstr(text, "HTTP/1.1 503") == NULL && strstr(text, "HTTP/1.1 200") == NULL)
            fail_msg("expected an answer, got: %s", text);
        close(fd);
    }
}

/* A choice's text and log-probs, without its index and the reason for its end. */
static void choice_of(char *out, size_t size, const char *body)
{
    const char *at = strstr(body, "\"text\": ");
    assert_non_null(at);
    const char *end = strstr(at, "\"finish_reason\"");
    assert_non_null(end);
    snprintf(out, size, "%.*s", (int)(end - at), at);
}

/* Seeds 4095 and 4096 belong to different draws (KG_SEED_SAMPLES), so the request has two
 * groups; the prompt is scored in one of them and listed for both. */
static void a_scored_prompt_is_listed_across_a_change_of_draw(void **state)
{
    static const char form[] = "{\"prompt\":\"abcd\",\"max_tokens\":6,\"seed\":%d,"
                               "\"n\":%d,\"echo\":true,\"logprobs\":2}";
    char body[256];
    char one[4096];
    (void)state;
    start((struct kg_serve_opts){0});
    for (int i = 0; i < 3; i++) {
        snprintf(body, sizeof body, form, 4095 + i, 1);
        ask((uint64_t)i, body);
    }
    snprintf(body, sizeof body, form, 4095, 3);
    ask(3, body);
    wait_answers();
    for (int i = 0; i < 3; i++) {
        choice_of(one, sizeof one, got.body[i]);
        assert_non_null(strstr(one, "\"token_logprobs\": [null, -"));
        if (strstr(got.body[3], one) == NULL)
            fail_msg("answer %d, %s, is not in %s", i, one, got.body[3]);
    }
    end();
}

/* Streams that are read, closed at once, closed half-way, or never read. Afterwards the
 * server is idle and answers as before. */
static void misbehave(uint32_t round)
{
    const struct kg_rng_key key = {5, KG_RNG_TEST};
    static const char stream[] = "{\"prompt\":\"abc\",\"max_tokens\":60,\"ignore_eos\":"
                                 "true,\"n\":3,\"stream\":true,"
                                 "\"logprobs\":3,\"stop\":[\"zz\"]}";
    /* long prompts, scored over several steps for two groups of samples */
    static const char scored[] = "{\"prompt\":[" IDS_64 "," IDS_64 "," IDS_64 "," IDS_64
                                 "],\"max_tokens\":60,\"ignore_eos\":true,\"echo\":true,"
                                 "\"logprobs\":3,\"n\":3,\"seed\":4095}";
    int fds[24];
    for (uint32_t i = 0; i < 24; i++) {
        fds[i] = raw_request(i % 3 ? stream : scored);
        if (kg_rng_below(key, round, i, 0, 3) == 0) {
            close(fds[i]);
            fds[i] = -1;
        }
    }
    for (uint64_t i = 0; i < 16; i++)
        ask(i, i % 2 ? stream : "{\"prompt\":[1,2],\"max_tokens\":30,\"n\":2}");
    wait_answers();
    for (int i = 0; i < 16; i++)
        assert_int_equal(got.status[i], 200);
    for (uint32_t i = 0; i < 24; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

static void wait_idle(void)
{
    struct kg_http_client_opts c = {.max_in_flight = 64, .tries = 1};
    char where[80];
    bool idle = false;
    kg_http_client_close(client); /* closes its connections too */
    NEED(kg_http_client_open(&client, &c, err));
    snprintf(where, sizeof where, "http://127.0.0.1:%d/metrics", kg_serve_port(server));
    for (int i = 0; i < 500 && !idle; i++) {
        NEED(kg_http_client_submit(client, where, NULL, 0, 0, err));
        wait_answers();
        idle = strstr(got.body[0], "\nkedge_requests_open 0\n") &&
               strstr(got.body[0], "\nkedge_sequences_running 0\n") &&
               strstr(got.body[0], "\nkedge_http_connections 1\n");
        usleep(5000);
    }
    if (!idle)
        fail_msg("still busy: %s", got.body[0]);
}

/* Token 7 makes its answer fail; the other answer of the request could have continued. */
static void a_failed_answer_ends_its_siblings(void **state)
{
    struct kg_model *good = model;
    struct kg_model_config c = config(TEST_V);
    struct kg_model_opts opts = {.ct = KG_F32, .trainable = true};
    c.tied = false;
    (void)state;
    NEED(kg_model_create(&model, &c, &opts, 11, err));
    const float nan = NAN;
    kg_mat_write(model->embed->compute, &nan, (int64_t)7 * c.hidden, 1);
    start((struct kg_serve_opts){0});
    ask(0, "{\"prompt\":[[7],[1]],\"max_tokens\":400,\"top_k\":1,\"ignore_eos\":true}");
    wait_answers();
    assert_int_equal(got.status[0], 500);
    wait_idle();
    const char *count = strstr(got.body[0], "\nkedge_completion_tokens_total ");
    assert_non_null(count);
    assert_in_range(atoi(strchr(count, ' ')), 0, 4);
    end();
    kg_model_free(model);
    model = good;
}

/* Counts prompt and completion tokens over every prompt of a request. */
static void tokens_of_prompts_and_answers_are_counted(void **state)
{
    (void)state;
    start((struct kg_serve_opts){0});
    ask(0, "{\"prompt\":[[5],[6,7]],\"max_tokens\":2,\"ignore_eos\":true}");
    wait_answers();
    assert_int_equal(got.status[0], 200);
    wait_idle();
    assert_non_null(strstr(got.body[0], "\nkedge_prompt_tokens_total 3\n"));
    assert_non_null(strstr(got.body[0], "\nkedge_completion_tokens_total 4\n"));
    end();
}

/* 64 x 12 x 21 log-probs, nearly the maximum: a client that reads gets all of them. */
static void a_stream_of_a_long_list_arrives(void **state)
{
    (void)state;
    start((struct kg_serve_opts){0});
    ask(0, "{\"prompt\":[" IDS_64 "],\"max_tokens\":1,\"n\":12,\"echo\":true,"
           "\"logprobs\":20,\"stream\":true}");
    wait_answers();
    assert_int_equal(got.status[0], 200);
    wait_idle();
    assert_non_null(strstr(got.body[0], "\nkedge_clients_left_total 0\n"));
    end();
}

static void clients_that_leave_take_their_memory_with_them(void **state)
{
    /* the request queue keeps its largest size, and how many requests queue at once
     * varies */
    enum { ROUNDS = 6, MORE = 8192 };
    uint64_t after_first = 0;
    (void)state;
    start(
        (struct kg_serve_opts){.max_batch = 16, .kv_tokens = 16384, .prefill_chunk = 32});
    for (uint32_t round = 0; round < ROUNDS; round++) {
        misbehave(round);
        wait_idle();
        uint64_t now = kg_mem_current_bytes();
        if (round == 1)
            after_first = now;
        if (round > 1 && now > after_first + MORE)
            fail_msg("round %u: %llu bytes, after the second %llu", round,
                     (unsigned long long)now, (unsigned long long)after_first);
    }
    end();
}

/* Allocation n fails, in whichever thread makes it: that request is answered or its
 * connection closed, and the next request is answered. */
static void memory_that_runs_out_ends_one_answer(void **state)
{
    const struct timeval patience = {.tv_sec = 5};
    char text[256];
    int out_of_memory = 0;
    (void)state;
    start((struct kg_serve_opts){.max_batch = 2});
    for (uint64_t n = 1; n <= 150; n++) {
        kg_mem_fail_at(n);
        int fd = raw_request(n % 2 ? "{\"prompt\":\"ab\",\"max_tokens\":3,\"logprobs\":2}"
                                   : "{\"prompt\":\"ab\",\"max_tokens\":3,\"logprobs\":2,"
                                     "\"echo\":true,\"stream\":true}");
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        ssize_t some = recv(fd, text, sizeof text - 1, 0);
        assert_true(some >= 0 || errno == ECONNRESET); /* not a hang */
        text[some > 0 ? some : 0] = '\0';
        out_of_memory += strstr(text, "HTTP/1.1 503") != NULL;
        kg_mem_fail_at(0);
        close(fd);
    }
    wait_idle();
    const char *count = strstr(got.body[0], "\nkedge_out_of_memory_total ");
    assert_non_null(count);
    assert_in_range(atoi(strchr(count, ' ')), 1, 150);
    assert_true(out_of_memory > 0);
    ask(0, "{\"prompt\":\"ab\",\"max_tokens\":5}");
    wait_answers();
    assert_int_equal(got.status[0], 200);
    end();
}

/* Sends a request for /tokenize and never reads the answer. */
static int ask_for_tokens(size_t letters)
{
    static char text[4 << 20];
    const int little = 4096;
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)kg_serve_port(server)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t n;
    ssize_t got_out;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    n = (size_t)snprintf(text, sizeof text,
                         "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
                         "Content-Length: %zu\r\n\r\n{\"prompt\":\"",
                         letters + 13);
    memset(text + n, 'a', letters);
    memcpy(text + n + letters, "\"}", 2);
    n += letters + 2;
    for (size_t at = 0; at < n; at += (size_t)got_out) {
        got_out = send(fd, text + at, n - at, MSG_NOSIGNAL);
        assert_true(got_out > 0);
    }
    return fd;
}

/* Number of /tokenize answers with this status, from the metrics in got.body[0]. */
static int tokenized(int status)
{
    char key[64];
    snprintf(key, sizeof key, "endpoint=\"tokenize\",status=\"%d\"} ", status);
    const char *at = strstr(got.body[0], key);
    return at ? atoi(at + strlen(key)) : 0;
}

static bool all_tokenized(int n) { return tokenized(200) + tokenized(503) == n; }

/* The HTTP server counts an answer a moment after the API does. Its 5xx count is at least
 * the API's 503s, because it also counts requests that it refuses itself. */
static bool counted_below(int n)
{
    const char *errors = strstr(got.body[0], "\nkedge_http_errors_5xx_total ");
    return all_tokenized(n) && errors && atoi(strchr(errors, ' ')) >= tokenized(503);
}

static void wait_metrics(bool (*until)(int n), int n)
{
    char where[80];
    snprintf(where, sizeof where, "http://127.0.0.1:%d/metrics", kg_serve_port(server));
    for (int i = 0; i < 2000; i++) {
        NEED(kg_http_client_submit(client, where, NULL, 0, 0, err));
        wait_answers();
        if (until(n))
            return;
        usleep(5000);
    }
    const char *errors = strstr(got.body[0], "\nkedge_http_errors_5xx_total ");
    fail_msg("%d and %d answered; %.40s", tokenized(200), tokenized(503),
             errors ? errors + 1 : got.body[0]);
}

/* An answer that finds no room in memory becomes a 503, and is counted as one. */
static void an_answer_without_room_is_counted_as_what_it_becomes(void **state)
{
    enum { MANY = 4, LETTERS = 3 << 20 };
    int fds[MANY];
    (void)state;
    start((struct kg_serve_opts){.max_held_bytes = 20 << 20});
    for (int i = 0; i < MANY; i++) {
        fds[i] = ask_for_tokens(LETTERS);
        wait_metrics(all_tokenized, i + 1);
    }
    assert_in_range(tokenized(503), 1, MANY - 1);
    wait_metrics(counted_below, MANY);
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
    end();
}

static void a_server_that_cannot_get_memory_does_not_open(void **state)
{
    struct kg_serve_opts opts = {.model = model, .tok = tok, .name = "m", .max_batch = 2};
    uint64_t before = kg_mem_current_bytes();
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct kg_err err;
        kg_mem_fail_at(n);
        kg_status status = kg_serve_open(&server, &opts, &err);
        kg_mem_fail_at(0);
        if (status == KG_OK)
            break;
        assert_int_equal(status, KG_ENOMEM);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
    kg_serve_close(server);
    assert_int_equal(kg_mem_current_bytes(), before);
}

/* A template that fails on every chat request is refused before the server listens. */
static void a_template_that_fails_is_found_before_listening(void **state)
{
    static const char *const texts[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% set x = [a, b] %}"
        "{% endfor %}{% endfor %}",
        "{{ raise_exception('no messages, please') }}",
        "constant",
    };
    static const char *const words[] = {"hostile", "no messages, please",
                                        "leaves it out"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct kg_chat_template *chat;
        struct kg_err why;
        NEED(kg_chat_template_parse(&chat, texts[i], strlen(texts[i]), "hostile", err));
        struct kg_serve_opts opts = {
            .model = model, .tok = tok, .name = "letters", .max_batch = 2, .chat = chat};
        assert_int_not_equal(kg_serve_open(&server, &opts, &why), KG_OK);
        assert_null(server);
        assert_non_null(strstr(why.message, "tried on one short message"));
        assert_non_null(strstr(why.message, words[i]));
        kg_chat_template_close(chat);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_template_that_fails_is_found_before_listening),
        cmocka_unit_test(answers_do_not_depend_on_company),
        cmocka_unit_test(adapters_are_served_by_name_and_answer_as_alone),
        cmocka_unit_test(two_models_of_one_name_are_refused),
        cmocka_unit_test(an_answer_ends_by_stop_id),
        cmocka_unit_test(ids_are_answered_as_text_is),
        cmocka_unit_test(ids_have_their_text),
        cmocka_unit_test(a_prompt_in_ids_is_scored_as_text_is),
        cmocka_unit_test(masks_do_not_fill_the_memory),
        cmocka_unit_test(answer_i_is_drawn_with_seed_plus_i),
        cmocka_unit_test(a_scored_prompt_is_listed_across_a_change_of_draw),
        cmocka_unit_test(every_prompt_has_seeds_of_its_own),
        cmocka_unit_test(a_failure_is_an_answer_and_the_server_lives_on),
        cmocka_unit_test(what_can_never_run_is_refused),
        cmocka_unit_test(what_is_open_after_the_drain_gets_an_error),
        cmocka_unit_test(a_failed_answer_ends_its_siblings),
        cmocka_unit_test(tokens_of_prompts_and_answers_are_counted),
        cmocka_unit_test(a_stream_of_a_long_list_arrives),
        cmocka_unit_test(clients_that_leave_take_their_memory_with_them),
        cmocka_unit_test(memory_that_runs_out_ends_one_answer),
        cmocka_unit_test(an_answer_without_room_is_counted_as_what_it_becomes),
        cmocka_unit_test(a_server_that_cannot_get_memory_does_not_open),
    };
    return RUN_SHOWN(tests, setup, teardown);
}
