/* Order, idempotence and refusals of Tinker's API, without its SDK; and a training run
 * that a client repeats with forward_backward and optim_step, which ends with the same
 * weights.
 */
#define DIR "build/test-tinker"
#include "tinker/tinker_client_testing.h"

#include "data/jsonl.h"
#include "recipe/config_testing.h"

#include <math.h>
#include <zstd.h>

/* ---- order and idempotence ---- */

/* Requests 3, 2 and 1 arrive in this order; each waits until the one before it is
 * done. */
static void requests_run_by_their_sequence_numbers(void **state)
{
    char late[32], middle[32], first[32];
    struct kg_str one = {0}, two = {0};
    (void)state;
    begin(4);
    put_head(&one, model_id, 1, "cross_entropy");
    put_supervised(&one, tokens, 8);
    put_head(&two, model_id, 2, "cross_entropy");
    put_supervised(&two, tokens, 6);
    step(late, 3, "\"learning_rate\": 0.01");
    learn(middle, &two);
    learn(first, &one);
    done(first, "loss:sum");
    done(middle, "loss:sum");
    done(late, "grad_norm:mean");
    kg_str_release(&one);
    kg_str_release(&two);
    close_server();
}

static void a_request_sent_twice_has_one_future(void **state)
{
    struct kg_str s = {0};
    struct answer a = {0};
    char id[32], again[32];
    (void)state;
    begin(4);
    put_head(&s, model_id, 1, "cross_entropy");
    put_supervised(&s, tokens, 8);
    learn(id, &s);
    done(id, "loss:sum");
    learn(again, &s);
    assert_string_equal(id, again);
    put_supervised(&s, tokens, 8);
    ask(&a, "POST", "/api/v1/forward_backward", s.data, s.len);
    assert_int_equal(a.status, 409);
    assert_non_null(strstr(kg_str_text(&a.body), "as before for sequence number 1"));
    retrieve(&a, "999");
    assert_int_equal(a.status, 410);
    kg_str_release(&a.body);
    kg_str_release(&s);
    close_server();
}

static int count_waiting(void)
{
    int n = 0;
    pthread_mutex_lock(&server->lock);
    for (const struct kg_tinker_waiter *w = server->waiters; w; w = w->next)
        n++;
    pthread_mutex_unlock(&server->lock);
    return n;
}

/* Several clients may wait for one future; all of them get its result. */
static void all_who_wait_for_a_future_get_it(void **state)
{
    enum { MOST = 12 };
    (void)state;
    begin(4);
    for (int n = 1, seq = 1; n <= MOST; n++, seq += 2) {
        struct answer a = {0};
        char id[32], first[32], body[64];
        int fd[MOST];
        step(id, seq + 1, "\"learning_rate\": 0.01");
        snprintf(body, sizeof body, "{\"request_id\": \"%s\"}", id);
        for (int i = 0; i < n; i++)
            fd[i] = send_with("", "POST", "/api/v1/retrieve_future", body, strlen(body));
        step(first, seq, "\"learning_rate\": 0.01");
        for (int i = 0; i < n; i++) {
            hear(&a, fd[i]);
            if (a.status != 200 || !has(&a.body, "grad_norm:mean"))
                fail_msg("client %d of %d: %d %s", i, n, a.status, kg_str_text(&a.body));
        }
        kg_str_release(&a.body);
    }
    close_server();
}

/* kg_tinker_expire ends only waits that are over; those clients get 408 and may ask
 * again. */
static void a_wait_that_is_over_is_told_to_each(void **state)
{
    struct answer a = {0};
    char id[32], body[64];
    int fd[3];
    (void)state;
    begin(4);
    step(id, 2, "\"learning_rate\": 0.01");
    snprintf(body, sizeof body, "{\"request_id\": \"%s\"}", id);
    for (int i = 0; i < 3; i++)
        fd[i] = send_with("", "POST", "/api/v1/retrieve_future", body, strlen(body));
    while (count_waiting() < 3)
        usleep(1000);
    kg_tinker_expire(server, 0);
    assert_int_equal(count_waiting(), 3);
    kg_tinker_expire(server, HUGE_VAL);
    for (int i = 0; i < 3; i++) {
        hear(&a, fd[i]);
        assert_true(a.status == 408 || has(&a.body, "never received"));
    }
    assert_int_equal(count_waiting(), 0);
    kg_str_release(&a.body);
    close_server();
}

/* ---- bodies ---- */

static void pack(struct kg_str *out, const void *bytes, size_t n)
{
    char to[8192];
    const size_t packed = ZSTD_compress(to, sizeof to, bytes, n, 3);
    assert_false(ZSTD_isError(packed));
    kg_str_clear(out);
    NEED(kg_str_append(out, to, packed, err));
}

#define ZSTD "Content-Encoding: zstd\r\n"

/* A compressed body means the same request on every path, and gets the same future. */
static void a_compressed_body_is_the_same_request(void **state)
{
    static const struct {
        const char *path, *body;
        int status;
    } rows[] = {
        {"create_session", "{\"sdk_version\": \"0.38.0\"}", 200},
        {"create_session", "{\"sdk_version\": \"0.1.0\"}", 422},
        {"client/config", "{}", 200},
        {"telemetry", "[1, 2]", 200},
        {"get_info", "{\"model_id\": \"x\"}", 404},
        {"weights_info", "{\"tinker_path\": \"tinker://a/weights/c\"}", 404},
        {"session_heartbeat", "{\"session_id\": \"x\"}", 404},
        {"retrieve_future", "{\"request_id\": \"999\"}", 410},
        {"create_model", "{\"session_id\": \"x\", \"model_seq_id\": 0}", 404},
        {"asample", "{}", 422},
    };
    struct kg_str s = {0}, packed = {0};
    struct answer a = {0};
    char path[64], id[32], again[32];
    (void)state;
    begin(4);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        pack(&packed, rows[i].body, strlen(rows[i].body));
        snprintf(path, sizeof path, "/api/v1/%s", rows[i].path);
        ask_with(&a, ZSTD, "POST", path, packed.data, packed.len);
        if (a.status != rows[i].status)
            fail_msg("%s: %d %s", rows[i].path, a.status, kg_str_text(&a.body));
    }
    put_head(&s, model_id, 1, "cross_entropy");
    put_supervised(&s, tokens, 8);
    pack(&packed, s.data, s.len);
    ask_with(&a, ZSTD, "POST", "/api/v1/forward_backward", packed.data, packed.len);
    assert_int_equal(a.status, 200);
    text_of(id, sizeof id, &a, "request_id");
    done(id, "loss:sum");
    learn(again, &s);
    assert_string_equal(id, again);
    kg_str_release(&s);
    kg_str_release(&packed);
    kg_str_release(&a.body);
    close_server();
}

static void a_body_that_cannot_be_unpacked_is_refused(void **state)
{
    static const char text[] = "{\"sdk_version\": \"0.38.0\"}";
    char *zeros = kg_mem_calloc(3 << 20, 1, "zeros", &(struct kg_err){0});
    struct kg_str good = {0}, bomb = {0};
    struct answer a = {0};
    (void)state;
    begin(4);
    server->opts.max_body_bytes = 2 << 20;
    pack(&bomb, zeros, 3 << 20);
    pack(&good, text, strlen(text));
    const struct {
        const char *header, *bytes;
        size_t n;
        const char *part;
    } rows[] = {
        {ZSTD, bomb.data, bomb.len, "at most 2097152 bytes"},
        {ZSTD, text, strlen(text), "expected zstd frames"},
        {ZSTD, good.data, good.len - 1, "expected a whole last frame"},
        {ZSTD, good.data, 5, "expected a whole last frame"},
        {ZSTD, "\x28\xb5\x2f\xfd\xff\xff\xff\xff", 8, "expected"},
        {ZSTD, "", 0, "create_session"},
        {"", good.data, good.len, "create_session"},
        {"Content-Encoding: gzip\r\n", text, strlen(text), "zstd or none, found gzip"},
        {"Content-Encoding: br\r\n", text, strlen(text), "zstd or none, found br"},
        {"Content-Encoding: zstd, zstd\r\n", good.data, good.len, "found zstd, zstd"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ask_with(&a, rows[i].header, "POST", "/api/v1/create_session", rows[i].bytes,
                 rows[i].n);
        if (a.status != 422 || !strstr(kg_str_text(&a.body), rows[i].part))
            fail_msg("row %zu: expected %s, found %d %s", i, rows[i].part, a.status,
                     kg_str_text(&a.body));
    }
    kg_str_release(&good);
    kg_str_release(&bomb);
    kg_str_release(&a.body);
    kg_mem_free(zeros);
    close_server();
}

/* The path is absolute, so that a client in any folder finds the tokenizer. */
static void the_tokenizers_folder_is_absolute(void **state)
{
    struct answer a = {0};
    char body[256], folder[512];
    (void)state;
    begin(4);
    snprintf(body, sizeof body, "{\"model_id\": \"%s\"}", model_id);
    post(&a, "get_info", body);
    text_of(folder, sizeof folder, &a, "tokenizer_id");
    assert_int_equal(folder[0], '/');
    strcat(folder, "/config.json");
    assert_true(kg_file_exists(folder));
    kg_str_release(&a.body);
    close_server();
}

/* ---- lost requests ---- */

/* Sets the clock to the end of time, so that every wait is over. */
static void expire(void) { kg_tinker_expire(server, HUGE_VAL); }

/* Request 1 never arrives: the requests that wait for it fail, and later ones run. */
static void a_request_that_never_comes_holds_up_no_other(void **state)
{
    char id[5][32];
    (void)state;
    begin(4);
    step(id[0], 3, "\"learning_rate\": 0.01");
    step(id[1], 2, "\"learning_rate\": 0.01");
    expire();
    done(id[0], "request 1, which precedes this one, was never");
    done(id[1], "request 1, which precedes this one, was never");
    step(id[2], 5, "\"learning_rate\": 0.01");
    step(id[3], 4, "\"learning_rate\": 0.01");
    expire(); /* they arrived out of order, but none is missing */
    done(id[2], "grad_norm:mean");
    done(id[3], "grad_norm:mean");
    step(id[4], 1, "\"learning_rate\": 0.01");
    done(id[4], "the request came too late");
    close_server();
}

/* Beyond the limit the oldest results are dropped. */
static void results_are_kept_within_their_limit(void **state)
{
    struct answer a = {0};
    char id[4][32];
    (void)state;
    begin(4);
    server->opts.max_held_bytes = 128;
    for (int i = 0; i < 4; i++) {
        step(id[i], i + 1, "\"learning_rate\": 0.01");
        done(id[i], "grad_norm:mean");
    }
    retrieve(&a, id[0]);
    assert_int_equal(a.status, 410);
    done(id[2], "grad_norm:mean");
    done(id[3], "grad_norm:mean");
    kg_str_release(&a.body);
    close_server();
}

/* ---- refusals ---- */

#define FIFTH "aaaaaaaaaaaaaaaaaaa"
#define LONG  FIFTH FIFTH FIFTH FIFTH FIFTH /* 95 bytes, the longest name */

static void what_is_wrong_is_refused_by_name(void **state)
{
    static const struct {
        const char *method, *path, *body;
        int status;
        const char *part;
    } cases[] = {
        {"POST", "create_session", "{\"sdk_version\": \"0.37.0\"}", 422,
         "(those tested): expected one of 0.38.0; found '0.37.0'"},
        {"POST", "create_session", "{}", 422, "sdk_version"},
        {"POST", "create_session", "{", 422, "create_session"},
        {"POST", "session_heartbeat", "{\"session_id\": \"x\"}", 404, "no session x"},
        {"POST", "create_model", "{\"session_id\": \"x\", \"model_seq_id\": 0}", 404,
         "no session x"},
        {"POST", "create_model", "{\"model_seq_id\": 0}", 422, "session_id"},
        {"POST", "optim_step", "{\"model_id\": \"x\"}", 422, "seq_id"},
        {"POST", "optim_step", "{\"model_id\": \"../x\", \"seq_id\": 1}", 404, "../x"},
        {"POST", "get_info", "{\"model_id\": \"x\"}", 404, "training run: x"},
        {"POST", "get_info", "{\"model_id\": \"../..\"}", 404, "no model ../.."},
        {"POST", "weights_info", "{\"tinker_path\": \"tinker://a/b/c\"}", 422,
         "tinker://MODEL_ID/weights/NAME"},
        {"POST", "weights_info", "{\"tinker_path\": \"tinker://../weights/c\"}", 422,
         "found 'tinker://../weights/c'"},
        {"POST", "weights_info", "{\"tinker_path\": \"tinker://a/weights/" LONG "/\"}",
         422, "found 'tinker://a/weights/aaa"},
        {"POST", "weights_info", "{\"tinker_path\": \"tinker://a/weights/" LONG "b\"}",
         422, "found 'tinker://a/weights/aaa"},
        {"POST", "weights_info", "{\"tinker_path\": \"tinker://a/weights/" LONG "\"}",
         404, "no such weights"},
        {"POST", "forward_backward", "no protocol buffer", 422, "protocol buffer"},
        {"POST", "retrieve_future", "{\"request_id\": 1}", 422, "request_id"},
        {"GET", "samplers/none", "", 404, "no sampling session none"},
        {"GET", "training_runs/none", "", 404, "training run: none"},
        {"GET", "training_runs/" LONG "b", "", 404, "no such path"},
        {"GET", "training_runs/x/y", "", 404, "no such path"},
        {"GET", "nothing", "", 404, "no such path"},
        {"GET", "optim_step", "", 405, "takes POST"},
        {"POST", "auth/token", "{}", 404, "no such path"},
    };
    struct answer a = {0};
    (void)state;
    begin(4);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[160];
        snprintf(path, sizeof path, "/api/v1/%s", cases[i].path);
        ask(&a, cases[i].method, path, cases[i].body, strlen(cases[i].body));
        if (a.status != cases[i].status || !strstr(kg_str_text(&a.body), cases[i].part))
            fail_msg("%s %s: expected %d %s, found %d %s", cases[i].path, cases[i].body,
                     cases[i].status, cases[i].part, a.status, kg_str_text(&a.body));
    }
    kg_str_release(&a.body);
    close_server();
}

/* A job that fails reports the error in its future, and later jobs run. */
static void failures_of_jobs_are_told_and_the_next_runs(void **state)
{
    static const char *const params[] = {
        "\"beta1\": 1",          "\"beta2\": -1",          "\"eps\": 0",
        "\"learning_rate\": -1", "\"grad_clip_norm\": -1", "\"type\": \"dimuon\""};
    char id[32];
    int64_t seq = 1;
    (void)state;
    begin(4);
    for (size_t i = 0; i < sizeof params / sizeof *params; i++) {
        step(id, seq++, params[i]);
        done(id, "optim_params: expected");
    }
    step(id, seq, "\"learning_rate\": 0.01");
    done(id, "grad_norm:mean");
    close_server();
}

static void a_key_is_needed_where_there_is_one(void **state)
{
    static const struct {
        const char *header;
        int status;
    } cases[] = {{"", 401},
                 {"X-API-Key: tml-other\r\n", 401},
                 {"X-API-Key: tml-secre\r\n", 401},
                 {"Authorization: Bearer tml-other\r\n", 401},
                 {"Authorization: Bearer tml-secret\r\n", 200},
                 {"X-API-Key: tml-secret\r\n", 200},
                 {"x-api-key: tml-secret\r\n", 200}};
    struct answer a = {0};
    (void)state;
    start(DIR "/checkpoints", "tml-secret");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ask_with(&a, cases[i].header, "GET", "/api/v1/get_server_capabilities", "", 0);
        assert_int_equal(a.status, cases[i].status);
    }
    ask(&a, "GET", "/api/v1/healthz", "", 0);
    assert_int_equal(a.status, 200);
    kg_str_release(&a.body);
    close_server();
}

/* ---- malformed batches ---- */

struct change {
    const char *name;
    unsigned dtype;
    size_t bytes;
    const char *part;
};

static void a_batch_is_checked_before_anything_is_computed(void **state)
{
    static const float reals[16] = {1};
    static const struct change changes[] = {
        {"weights", FLOAT32, 24, "weights: expected 7 values, found 6"},
        {"weights", FLOAT32, 30, "expected elements of 4 bytes, found 30"},
        {"weights", 4, 28, "expected dtype float32, int64 or int32, found number 4"},
        {"weights", 0, 28, "found number 0"},
        {"weight", FLOAT32, 28, "expected one of target_tokens, weights"},
        {"advantages", FLOAT32, 0, "advantages: expected 7 values, found 0"},
        {"topk_ids", INT64, 56, "topk_ids and topk_logprobs together"},
        {"topk_logprobs", FLOAT32, 28, "topk_ids and topk_logprobs together"},
        {"mask", INT64, 64, "mask: expected 7 values, found 8"},
        {"", FLOAT32, 28, "expected one of target_tokens"},
        {"target_tokens", FLOAT32, 28, "expected an id below 16"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct kg_str s = {0}, datum = {0};
        struct kg_tinker_batch b;
        struct kg_err err;
        const int64_t target[7] = {1, 2, 3, 4, 5, 6, 7};
        put_head(&s, "m", 1, "ppo");
        put_tokens(&datum, tokens, 7);
        put_input(&datum, "target_tokens", INT64, target, sizeof target);
        put_input(&datum, changes[i].name, changes[i].dtype, reals, changes[i].bytes);
        put_inside(&s, 3, &datum);
        if (kg_tinker_read_batch(&b, s.data, s.len, 16, &err) == KG_OK ||
            !strstr(err.message, changes[i].part) || !strstr(err.message, "data[0]"))
            fail_msg("%s: expected %s, found %s", changes[i].name, changes[i].part,
                     err.message);
        kg_tinker_batch_release(&b);
        kg_str_release(&s);
    }
}

/* Truncated anywhere, a batch is refused or has fewer data. */
static void a_batch_that_is_cut_off_is_no_other_batch(void **state)
{
    struct kg_str s = {0};
    struct kg_tinker_batch b;
    struct kg_err err;
    (void)state;
    put_head(&s, "m", 1, "cross_entropy");
    put_supervised(&s, tokens, 8);
    put_supervised(&s, tokens, 5);
    assert_int_equal(kg_tinker_read_batch(&b, s.data, s.len, 16, &err), KG_OK);
    assert_int_equal(b.n, 11);
    kg_tinker_batch_release(&b);
    for (size_t n = 0; n < s.len; n++) {
        if (kg_tinker_read_batch(&b, s.data, n, 16, &err) == KG_OK)
            assert_int_equal(b.n_data, 1);
        kg_tinker_batch_release(&b);
    }
    kg_str_release(&s);
}

/* ---- a loss and its settings ---- */

/* A loss has Tinker's defaults; a request may override them or is refused. */
static void settings_of_a_loss_are_those_of_the_request(void **state)
{
    static const struct {
        const char *loss, *key, *value;
        double low, high, beta;
        const char *part;
    } cases[] = {
        {"ppo", NULL, NULL, 0.2, 0.2, 0, NULL},
        {"ppo", "clip_low_threshold", "0.5", 0.5, 0.2, 0, NULL},
        {"ppo", "clip_high_threshold", "1.5", 0.2, 0.5, 0, NULL},
        {"ppo", "algo.clip_low", "0.1", 0.1, 0.2, 0, NULL},
        {"gspo", "algo.clip_high", "0.1", 0.2, 0.1, 0, NULL},
        {"cispo", NULL, NULL, 1, 3, 0, NULL},
        {"cispo", "algo.clip_high", "5", 1, 5, 0, NULL},
        {"dro", NULL, NULL, 0.2, 0.2, 0.05, NULL},
        {"dro", "beta", "0.5", 0.2, 0.2, 0.5, NULL},
        {"dro", "kl.beta", "0.25", 0.2, 0.2, 0.25, NULL},
        {"dro", "beta", "", 0, 0, 0, "beta: expected 0 or more, found ''"},
        {"dro", "beta", "nan", 0, 0, 0, "found 'nan'"},
        {"ppo", "clip_low_threshold", "", 0, 0, 0, "expected 0 to 1, found ''"},
        {"ppo", "clip_low_threshold", "1.5", 0, 0, 0, "expected 0 to 1"},
        {"ppo", "clip_high_threshold", "0.5x", 0, 0, 0, "expected 1 or more"},
        {"ppo", "beta", "1", 0, 0, 0, "beta has no effect with ppo"},
        {"ppo", "kl.target", "1", 0, 0, 0, "a key of the training loop"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kg_tinker_batch b = {.n_settings = cases[i].key != NULL};
        struct kg_algo algo;
        struct kg_err err;
        snprintf(b.loss, sizeof b.loss, "%s", cases[i].loss);
        if (cases[i].key) {
            snprintf(b.settings->key, KG_TINKER_TEXT, "%s", cases[i].key);
            snprintf(b.settings->value, KG_TINKER_TEXT, "%s", cases[i].value);
        }
        const kg_status status = kg_tinker_algo(&algo, &b, 16, &err);
        if (cases[i].part && (status == KG_OK || !strstr(err.message, cases[i].part)))
            fail_msg("case %zu: expected %s", i, cases[i].part);
        if (cases[i].part)
            continue;
        if (status != KG_OK)
            fail_msg("case %zu: %s", i, err.message);
        assert_float_equal(algo.clip_low, cases[i].low, 1e-15);
        assert_float_equal(algo.clip_high, cases[i].high, 1e-15);
        assert_float_equal(algo.kl_beta, cases[i].beta, 1e-15);
    }
}

/* A setting is a 64-bit number or a text, and tokens are bytes; other wire types are
 * refused. */
static void a_value_of_another_wire_type_is_refused(void **state)
{
    static const struct {
        const char *value; /* field 2 of the map entry, encoded */
        size_t n;
        const char *part;
    } cases[] = {
        {"\x10\x01", 2, "loss_fn_config: beta: expected a number or a text"},
        {"\x15\0\0\0\0", 5, "loss_fn_config: beta: expected a number or a text"},
        {"\x12\x02\x18\x01", 4, "loss_fn_config: beta: expected a number or a text"},
        {"", 0, "loss_fn_config: beta: expected a number or a text"},
        {"\x11\0\0\0\0\0\0\0\0", 9, "at least one datum"},
        {"\x12\x03\x12\x01x", 5, "at least one datum"},
    };
    static const char datum[] =
        "\x1a\x06\x0a\x04\x0a\x02\x08\x07"; /* a token as a varint */
    struct kg_tinker_batch b;
    struct kg_err why;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kg_str s = {0}, entry = {0};
        put_bytes(&entry, 1, "beta", 4);
        NEED(kg_str_append(&entry, cases[i].value, cases[i].n, err));
        put_inside(&s, i < 2 ? 5 : 7, &entry);
        if (kg_tinker_read_batch(&b, s.data, s.len, 16, &why) == KG_OK ||
            !strstr(why.message, cases[i].part))
            fail_msg("case %zu: expected %s, found %s", i, cases[i].part, why.message);
        kg_tinker_batch_release(&b);
        kg_str_release(&s);
    }
    assert_int_not_equal(kg_tinker_read_batch(&b, datum, 8, 16, &why), KG_OK);
    assert_non_null(strstr(why.message, "expected tokens of 4 bytes"));
    kg_tinker_batch_release(&b);
}

/* ---- repeating a run ---- */

/* Writes a line of a dump as a datum.   *any: set if it has an advantage */
static void put_line(struct kg_str *s, const struct kg_json *line, bool *any)
{
    enum { MOST = 64 };
    const struct kg_json *ids = kg_json_get(line, "tokens");
    const char *source = kg_json_text(kg_json_get(line, "source"), NULL);
    const double advantage = kg_json_real(kg_json_get(line, "advantage"), 0);
    const size_t n = kg_json_size(ids);
    int32_t input[MOST];
    int64_t target[MOST];
    float logp[MOST] = {0}, adv[MOST] = {0};
    struct kg_str datum = {0};
    assert_true(n > 1 && n <= MOST && (double)(float)advantage == advantage);
    for (size_t i = 0; i < n; i++)
        input[i] = (int32_t)kg_json_int(kg_json_at(ids, i), 0);
    for (size_t i = 0; i + 1 < n; i++) {
        const struct kg_json *p = kg_json_at(kg_json_get(line, "logp"), i + 1);
        target[i] = input[i + 1];
        logp[i] = source[i + 1] == 'm' ? (float)kg_json_real(p, 0) : 0;
        adv[i] = source[i + 1] == 'm' ? (float)advantage : 0;
    }
    *any = *any || advantage != 0;
    put_tokens(&datum, input, n - 1);
    put_input(&datum, "target_tokens", INT64, target, (n - 1) * sizeof *target);
    put_input(&datum, "logprobs", FLOAT32, logp, (n - 1) * sizeof *logp);
    put_input(&datum, "advantages", FLOAT32, adv, (n - 1) * sizeof *adv);
    put_inside(s, 3, &datum);
}

/* Repeats a step from its dump.   returns the next sequence number */
static int64_t repeat(const char *dump, int64_t seq)
{
    struct kg_str text = {0}, s = {0};
    bool any = false;
    char id[32], moved[32];
    NEED(kg_zst_read(&text, dump, 1 << 24, err));
    put_head(&s, model_id, seq, "ppo-clip");
    for (char *at = text.data, *end; (end = strchr(at, '\n')); at = end + 1) {
        struct kg_json_doc doc;
        NEED(kg_json_parse(&doc, at, (size_t)(end - at), dump, err));
        put_line(&s, doc.root, &any);
        kg_json_release(&doc);
    }
    if (any) { /* a run makes no update if no sequence has an advantage */
        learn(id, &s);
        step(moved, seq + 1,
             "\"learning_rate\": 1e-3, \"beta1\": 0.9, \"beta2\": 0.999, \"eps\": 1e-8, "
             "\"weight_decay\": 0.01, \"grad_clip_norm\": 1.0");
        done(id, "loss:sum");
        done(moved, "grad_norm:mean");
    }
    kg_str_release(&text);
    kg_str_release(&s);
    return any ? seq + 2 : seq;
}

static void repeats(const char *const *more, int rank, const char *file)
{
    static const char *const keys[] = {"model.path=" DIGITS,
                                       "model.dtype=fp32",
                                       "task.name=digits",
                                       "data.train=" DIR "/train.jsonl",
                                       "rollout.prompts=4",
                                       "rollout.samples=4",
                                       "rollout.max_tokens=12",
                                       "train.steps=3",
                                       "train.share_prefix=false",
                                       "checkpoint.every=3",
                                       "algo.advantage=dr-grpo",
                                       "algo.aggregate=token-sum",
                                       "optim.lr=1e-3",
                                       NULL};
    /* completions of 8 tokens with the end: rewards are eighths, so advantages are exact
     * in fp32 */
    static const char data[] = "{\"prompt\": \"8,3:9,4\", \"completion\": \"7,2,6,1\"}\n"
                               "{\"prompt\": \"1,1:9,4\", \"completion\": \"2,3,5,8\"}\n"
                               "{\"prompt\": \"2,2:9,4\", \"completion\": \"4,6,1,7\"}\n"
                               "{\"prompt\": \"1,2:9,4\", \"completion\": \"3,5,8,4\"}\n";
    const char *const *const lists[] = {keys, more};
    char id[32], body[256], ours[256], theirs[256];
    int64_t seq = 1;
    NEED(kg_file_make_dirs(DIR, err));
    NEED(kg_file_remove_tree(DIR "/run", err));
    NEED(kg_file_write_atomic(DIR "/train.jsonl", data, sizeof data - 1, err));
    struct kg_config *config = config_from(DIR "/run", lists, 2);
    NEED(kg_train_run(config, false, false, err));
    kg_config_free(config);
    begin(rank);
    for (int i = 1; i <= 3; i++) {
        snprintf(body, sizeof body, DIR "/run/rollouts/step-%06d.jsonl.zst", i);
        seq = repeat(body, seq);
    }
    assert_true(seq > 1);
    snprintf(body, sizeof body,
             "{\"model_id\": \"%s\", \"seq_id\": %lld, \"path\": \"end\"}", model_id,
             (long long)seq);
    future(id, "save_weights", body);
    done(id, "/weights/end");
    snprintf(ours, sizeof ours, DIR "/checkpoints/%s/weights/end/%s", model_id, file);
    snprintf(theirs, sizeof theirs, DIR "/run/checkpoints/latest/%s", file);
    same_file(ours, theirs);
    close_server();
}

static void all_weights_are_those_of_the_run(void **state)
{
    static const char *const more[] = {"checkpoint.dtype=fp32", NULL};
    (void)state;
    repeats(more, 0, "model/model.safetensors");
}

static void adapters_are_those_of_the_run(void **state)
{
    static const char *const more[] = {"lora.rank=4", "lora.alpha=32", "run.seed=1",
                                       NULL};
    (void)state;
    repeats(more, 4, "adapter/adapter_model.safetensors");
}

/* ---- a checkpoint ---- */

static void save_sampler(int64_t seq, const char *name, const char *part)
{
    char body[256], id[32];
    snprintf(body, sizeof body,
             "{\"model_id\": \"%s\", \"seq_id\": %lld, \"path\": \"%s\", \"overwrite\": "
             "true}",
             model_id, (long long)seq, name);
    future(id, "save_weights_for_sampler", body);
    done(id, part);
}

/* Creates a sampling session for the model's weights; a gets the reply. */
static void open_sampler(struct answer *a, int seq, const char *name)
{
    char body[512];
    snprintf(body, sizeof body,
             "{\"session_id\": \"%s\", \"sampling_session_seq_id\": %d, \"model_path\": "
             "\"tinker://%s/%s\"}",
             session, seq, model_id, name);
    post(a, "create_sampling_session", body);
}

/* Samples with a fixed prompt and seed; a gets the tokens and their log-probs. */
static void sample(struct answer *a, int sampler, int64_t seq)
{
    char body[512], id[32];
    snprintf(body, sizeof body,
             "{\"sampling_session_id\": \"%s:sample:%d\", \"seq_id\": %lld, \"prompt\": "
             "{\"chunks\": [{\"tokens\": [3, 10, 4]}]}, \"sampling_params\": "
             "{\"max_tokens\": 4, \"seed\": 7}}",
             session, sampler, (long long)seq);
    future(id, "asample", body);
    retrieve(a, id);
}

static bool same(const struct answer *a, const struct answer *b)
{
    return a->body.len == b->body.len &&
           memcmp(a->body.data, b->body.data, a->body.len) == 0;
}

static void weights_saved_over_others_are_those_that_are_sampled(void **state)
{
    struct answer old = {0}, over = {0}, fresh = {0};
    (void)state;
    begin(4);
    save_sampler(1, "one", "sampler_weights/one");
    open_sampler(&old, 1, "sampler_weights/one");
    sample(&old, 1, 1);
    learn_once(2);
    save_sampler(4, "one", "sampler_weights/one");
    save_sampler(5, "two", "sampler_weights/two");
    sample(&over, 1, 2);
    open_sampler(&fresh, 2, "sampler_weights/two");
    sample(&fresh, 2, 1);
    assert_true(same(&over, &fresh) && !same(&over, &old));
    kg_str_release(&old.body);
    kg_str_release(&over.body);
    kg_str_release(&fresh.body);
    close_server();
}

/* After an error of the server, the same request may be sent again and is computed. */
static void a_sample_that_the_server_failed_at_is_tried_again(void **state)
{
    struct answer a = {0};
    char file[256], away[256];
    (void)state;
    begin(4);
    save_sampler(1, "one", "sampler_weights/one");
    open_sampler(&a, 1, "sampler_weights/one");
    snprintf(file, sizeof file,
             DIR "/checkpoints/%s/sampler_weights/one/adapter/adapter_model.safetensors",
             model_id);
    snprintf(away, sizeof away, DIR "/checkpoints/away");
    assert_int_equal(rename(file, away), 0);
    NEED(kg_file_make_dirs(file, err));
    sample(&a, 1, 1);
    assert_non_null(strstr(kg_str_text(&a.body), "\"category\": \"server\""));
    assert_int_equal(rmdir(file), 0);
    assert_int_equal(rename(away, file), 0);
    sample(&a, 1, 1);
    assert_false(has(&a.body, "error"));
    assert_int_equal(kg_tinker_http_status(KG_ENOSPACE), 500);
    kg_str_release(&a.body);
    close_server();
}

static void names_of_the_server_are_refused(void **state)
{
    static const char *const names[] = {"snapshot-000000", "snapshot-", "seq-000001",
                                        "seq-x"};
    static const char *const good[] = {"snapshots", "snapshot", "sequence", "a-seq-1"};
    int64_t seq = 1;
    (void)state;
    begin(4);
    for (int i = 0; i < 4; i++) {
        save_sampler(seq++, names[i], "does not begin with snapshot- or seq-");
        save_sampler(seq++, good[i], good[i]);
    }
    close_server();
}

/* Writes the facts of a checkpoint as another server would have. */
static void write_facts(const char *name, const char *base, const char *when)
{
    char file[256], text[256];
    snprintf(file, sizeof file, DIR "/checkpoints/%s/%s", model_id, name);
    NEED(kg_file_make_dirs(file, err));
    snprintf(file + strlen(file), sizeof file - strlen(file), "/tinker.json");
    snprintf(text, sizeof text,
             "{\"base_model\": \"%s\", \"is_lora\": true, \"lora_rank\": 4, \"time\": "
             "\"%s\"}",
             base, when);
    NEED(kg_file_write_atomic(file, text, strlen(text), err));
}

static void weights_of_another_base_are_refused(void **state)
{
    static const char expected[] = "expected weights of digits, found weights of 'other'";
    struct answer a = {0};
    char file[256], body[512], id[32];
    (void)state;
    begin(4);
    save(file, 1, "one");
    open_sampler(&a, 1, "weights/one");
    assert_int_equal(a.status, 200);
    write_facts("weights/one", "other", "2026-01-01T00:00:00Z");
    open_sampler(&a, 2, "weights/one");
    assert_int_equal(a.status, 422);
    assert_non_null(strstr(kg_str_text(&a.body), expected));
    sample(&a, 1, 1);
    assert_non_null(strstr(kg_str_text(&a.body), expected));
    snprintf(body, sizeof body,
             "{\"session_id\": \"%s\", \"model_seq_id\": 9, \"path\": "
             "\"tinker://%s/weights/one\"}",
             session, model_id);
    future(id, "load_weights", body);
    done(id, expected);
    snprintf(body, sizeof body, "{\"tinker_path\": \"tinker://%s/weights/one\"}",
             model_id);
    post(&a, "weights_info", body);
    assert_non_null(strstr(kg_str_text(&a.body), "\"base_model\": \"other\""));
    kg_str_release(&a.body);
    close_server();
}

/* Folders without facts or with hidden names do not count. Of the rest, the newest is the
 * last; of equal times, the name decides. */
static void the_last_checkpoint_is_that_of_the_last_time(void **state)
{
    struct answer a = {0};
    char path[256];
    (void)state;
    begin(4);
    write_facts("weights/b", "digits", "2026-01-02T00:00:00Z");
    write_facts("weights/c", "digits", "2026-01-01T00:00:00Z");
    write_facts("weights/a", "digits", "2026-01-02T00:00:00Z");
    write_facts("weights/.d", "digits", "2027-01-01T00:00:00Z");
    snprintf(path, sizeof path, DIR "/checkpoints/%s/weights/z", model_id);
    NEED(kg_file_make_dirs(path, err));
    snprintf(path, sizeof path, DIR "/checkpoints/%s/sampler_weights/z", model_id);
    NEED(kg_file_make_dirs(path, err));
    snprintf(path, sizeof path, "/api/v1/training_runs/%s", model_id);
    ask(&a, "GET", path, "", 0);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body.data, "\"last_checkpoint\": {\"checkpoint_id\": "
                                        "\"weights/b\""));
    assert_non_null(strstr(a.body.data, "\"last_sampler_checkpoint\": null"));
    kg_str_release(&a.body);
    close_server();
}

/* Two updates give the same weights and moments as one update, a checkpoint and another
 * update. */
static void a_model_goes_on_from_its_checkpoint_with_the_same_bits(void **state)
{
    char body[512], first[256], direct[256], resumed[256], id[32];
    (void)state;
    begin(4);
    learn_once(1);
    save(first, 3, "first");
    learn_once(4);
    save(direct, 6, "direct");
    snprintf(body, sizeof body,
             "{\"session_id\": \"%s\", \"model_seq_id\": 9, \"optimizer\": true, "
             "\"path\": \"tinker://%s/weights/first\"}",
             session, model_id);
    future(id, "load_weights", body);
    done(id, "\"model_id\": ");
    snprintf(model_id, sizeof model_id, "%s:train:9", session);
    learn_once(1);
    save(resumed, 3, "resumed");
    same_file(direct, resumed);
    close_server();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_is_checked_before_anything_is_computed),
        cmocka_unit_test(a_batch_that_is_cut_off_is_no_other_batch),
        cmocka_unit_test(settings_of_a_loss_are_those_of_the_request),
        cmocka_unit_test(a_value_of_another_wire_type_is_refused),
        cmocka_unit_test(requests_run_by_their_sequence_numbers),
        cmocka_unit_test(a_request_that_never_comes_holds_up_no_other),
        cmocka_unit_test(results_are_kept_within_their_limit),
        cmocka_unit_test(a_request_sent_twice_has_one_future),
        cmocka_unit_test(all_who_wait_for_a_future_get_it),
        cmocka_unit_test(a_wait_that_is_over_is_told_to_each),
        cmocka_unit_test(a_compressed_body_is_the_same_request),
        cmocka_unit_test(a_body_that_cannot_be_unpacked_is_refused),
        cmocka_unit_test(the_tokenizers_folder_is_absolute),
        cmocka_unit_test(what_is_wrong_is_refused_by_name),
        cmocka_unit_test(failures_of_jobs_are_told_and_the_next_runs),
        cmocka_unit_test(a_key_is_needed_where_there_is_one),
        cmocka_unit_test(a_model_goes_on_from_its_checkpoint_with_the_same_bits),
        cmocka_unit_test(weights_saved_over_others_are_those_that_are_sampled),
        cmocka_unit_test(a_sample_that_the_server_failed_at_is_tried_again),
        cmocka_unit_test(names_of_the_server_are_refused),
        cmocka_unit_test(the_last_checkpoint_is_that_of_the_last_time),
        cmocka_unit_test(weights_of_another_base_are_refused),
        cmocka_unit_test(all_weights_are_those_of_the_run),
        cmocka_unit_test(adapters_are_those_of_the_run),
    };
    return cmocka_run_group_tests(tests, load_digits, free_digits);
}
