/* routed_experts: an answer reports the experts that a forward over its tokens chooses,
 * in the form that released clients read. */
#include "rollout/rollout_testing.h"

#include "model/rows.h"
#include "net/http_client.h"
#include "serve/serve_testing.h"
#include "text/bytelevel.h"

enum { MOST = 64, MOST_CHOICES = 16, BYTES = 9 * MOST };

struct heard {
    int status;
    struct kg_str body;
};

static kg_status take(void *user, const struct kg_http_answer *a, struct kg_err *err)
{
    struct heard *h = user;
    h->status = a->http_status;
    kg_str_clear(&h->body);
    return kg_str_append(&h->body, a->body, a->body_n, err);
}

static void ask(struct heard *h, const char *path, const char *body)
{
    struct kg_http_client_opts opts = {.tries = 1};
    struct kg_http_client *c = NULL;
    char url[96];
    snprintf(url, sizeof url, "http://127.0.0.1:%d%s", kg_serve_port(server), path);
    NEED(kg_http_client_open(&c, &opts, err));
    NEED(kg_http_client_submit(c, url, body, strlen(body), 0, err));
    while (kg_http_client_waiting(c) > 0)
        NEED(kg_http_client_poll(c, 1000, take, h, err));
    kg_http_client_close(c);
}

static struct kg_model *open_model(const char *name)
{
    char dir[128];
    struct kg_model *m = NULL;
    const struct kg_model_opts opts = {.ct = KG_BF16};
    snprintf(dir, sizeof dir, "tests/data/reference/%s", name);
    NEED(kg_model_open(&m, dir, &opts, err));
    return m;
}

/* The experts that one forward over the tokens chooses, as bytes of [n - 1, layers,
 * k]. */
static size_t expected(unsigned char *out, const struct kg_model *m, const int32_t *ids,
                       size_t n)
{
    const struct kg_rows_opts opts = {.max_tokens = MOST};
    const size_t choices = (size_t)kg_model_config_choices(&m->config);
    const int32_t k_n = m->config.experts.k;
    uint16_t own[MOST * MOST_CHOICES];
    struct kg_rows *p = NULL;
    size_t at = 0;
    NEED(kg_rows_create(&p, m, &opts, err));
    kg_rows_add(p, ids, n);
    kg_rows_want(p, 0, -1, 1, NULL);
    NEED(kg_rows_forward(p, false, err));
    NEED(kg_rows_experts(own, p, 0, (int64_t)n, err));
    kg_rows_free(p);
    for (size_t j = 0; j + 1 < n; j++)
        for (int32_t l = 0, routed = 0; l < m->config.layers; l++) {
            const bool has = (kg_model_config_layer(&m->config, l) & KG_EXPERTS) != 0;
            for (int32_t k = 0; k < k_n; k++)
                out[at++] = has ? (unsigned char)
                                      own[j * choices + (size_t)(routed * k_n + k)]
                                : 0;
            routed += has;
        }
    return at;
}

/* The sequence is the prompt 5, 9, 3 and the ids of the answer; `from` is the first
 * position reported. */
static void check_choice(const struct kg_model *m, const struct kg_json *choice, int from)
{
    const struct kg_json *routed = kg_json_get(choice, "routed_experts");
    const struct kg_json *said = kg_json_get(choice, "token_ids");
    const struct kg_json *shape = kg_json_get(routed, "shape");
    int32_t ids[MOST] = {5, 9, 3};
    unsigned char want[BYTES];
    struct kg_str data = {0};
    size_t n = 3, text_n, row = (size_t)(m->config.layers * m->config.experts.k);
    bool valid;
    for (size_t i = 0; i < kg_json_size(said); i++)
        ids[n++] = (int32_t)kg_json_int(kg_json_at(said, i), -1);
    const char *text = kg_json_text(kg_json_get(routed, "data"), &text_n);
    assert_non_null(text);
    NEED(kg_base64_decode(&data, text, text_n, &valid, err));
    assert_true(valid);
    assert_int_equal(expected(want, m, ids, n), (n - 1) * row);
    assert_int_equal(data.len, (n - 1 - (size_t)from) * row);
    assert_memory_equal(data.data, want + (size_t)from * row, data.len);
    assert_int_equal(kg_json_int(kg_json_at(shape, 0), -1), n - 1 - (size_t)from);
    assert_int_equal(kg_json_int(kg_json_at(shape, 1), -1), m->config.layers);
    assert_int_equal(kg_json_int(kg_json_at(shape, 2), -1), m->config.experts.k);
    assert_int_equal(kg_json_int(kg_json_get(routed, "start"), -1), from);
    assert_string_equal(kg_json_text(kg_json_get(routed, "dtype"), NULL), "uint8");
    kg_str_release(&data);
}

#define GENERATE(more, params)                                                           \
    "{\"token_ids\": [5, 9, 3], " more "\"sampling_params\": {\"max_tokens\": 9, "       \
    "\"seed\": 4" params "}}"

static void an_answer_tells_its_experts(void **state)
{
    static const struct {
        const char *path, *body;
        int from, choices; /* choices 0: none is reported */
    } rows[] = {
        {"/inference/v1/generate", GENERATE("", ""), 0, 1},
        {"/inference/v1/generate", GENERATE("", ", \"n\": 3"), 0, 3},
        {"/inference/v1/generate", GENERATE("", ", \"routed_experts_prompt_start\": 2"),
         2, 1},
        {"/inference/v1/generate", GENERATE("\"stream\": true, ", ""), 0, 0},
        {"/v1/completions",
         "{\"prompt\": [5, 9, 3], \"max_tokens\": 4, \"return_token_ids\": true}", 0, 1},
    };
    static const char *const names[] = {"qwen3_moe", "qwen3_moe_window", "olmoe"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct kg_model *m = open_model(names[i]);
        struct kg_serve_opts opts = {.model = m, .name = "m", .routed_experts = true};
        struct heard h = {0};
        pthread_t thread;
        atomic_store(&stop, false);
        NEED(kg_serve_open(&server, &opts, err));
        assert_int_equal(pthread_create(&thread, NULL, serve_main, NULL), 0);
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
            struct kg_json_doc doc = {0};
            ask(&h, rows[k].path, rows[k].body);
            assert_int_equal(h.status, 200);
            assert_int_equal(strstr(h.body.data, "\"routed_experts\":{\"data\":\"") !=
                                 NULL,
                             rows[k].choices > 0);
            if (rows[k].choices == 0)
                continue;
            NEED(kg_json_parse(&doc, h.body.data, h.body.len, "answer", err));
            const struct kg_json *choices = kg_json_get(doc.root, "choices");
            assert_int_equal(kg_json_size(choices), rows[k].choices);
            for (int c = 0; c < rows[k].choices; c++)
                check_choice(m, kg_json_at(choices, (size_t)c), rows[k].from);
            kg_json_release(&doc);
        }
        atomic_store(&stop, true);
        pthread_join(thread, NULL);
        kg_serve_close(server);
        kg_str_release(&h.body);
        kg_model_free(m);
    }
}

/* Refused: an answer whose experts need more than the memory limit, and a model without
 * experts. */
static void experts_that_cannot_be_told_are_refused(void **state)
{
    struct kg_model *dense = open_model("qwen3"), *m = open_model("olmoe");
    struct kg_serve_opts opts = {.model = dense, .name = "m", .routed_experts = true};
    struct kg_err e = {0};
    struct heard h = {0};
    pthread_t thread;
    (void)state;
    assert_int_equal(kg_serve_open(&server, &opts, &e), KG_EINVAL);
    assert_non_null(strstr(e.message, "--routed-experts: expected a model with experts"));
    opts.model = m;
    opts.max_held_bytes = 16 * 20 * (size_t)kg_model_config_choices(&m->config);
    atomic_store(&stop, false);
    NEED(kg_serve_open(&server, &opts, err));
    assert_int_equal(pthread_create(&thread, NULL, serve_main, NULL), 0);
    ask(&h, "/inference/v1/generate", GENERATE("", ", \"ignore_eos\": true"));
    assert_int_equal(h.status, 200);
    ask(&h, "/inference/v1/generate", GENERATE("", ", \"ignore_eos\": true, \"n\": 2"));
    assert_int_equal(h.status, 400);
    assert_non_null(strstr(h.body.data, "routed_experts: expected at most"));
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    kg_serve_close(server);
    kg_str_release(&h.body);
    kg_model_free(m);
    kg_model_free(dense);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_tells_its_experts),
        cmocka_unit_test(experts_that_cannot_be_told_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
