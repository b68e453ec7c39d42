/* What a server of Tinker's API keeps: exclusive use of its folder; checkpoints that
 * resume exactly and are checked for damage; and the meaning of a request, which is
 * refused rather than reinterpreted.
 */
#define DIR "build/test-tinker-keep"
#include "tinker/tinker_client_testing.h"

#include <sys/wait.h>

static void put_setting(struct kg_str *s, const char *key, const char *value)
{
    struct kg_str entry = {0}, text = {0};
    put_bytes(&entry, 1, key, strlen(key));
    put_bytes(&text, 2, value, strlen(value));
    put_inside(&entry, 2, &text);
    put_inside(s, 7, &entry);
}

/* Computes a loss with an anchor of this kind, period and eta.   *out: its result */
static void learn_anchored(struct kg_str *out, int64_t seq, const char *const rule[3])
{
    static const char *const keys[] = {"anchor.kind", "anchor.period", "anchor.eta"};
    static const float logp[7] = {-1, -2, -1, -2, -1, -2, -1}, ones[7] = {1, 1, 1, 1};
    struct kg_str s = {0}, datum = {0};
    struct answer a = {0};
    int64_t target[7];
    char id[32];
    for (size_t i = 0; i < 7; i++)
        target[i] = tokens[i + 1];
    put_head(&s, model_id, seq, "importance");
    put_tokens(&datum, tokens, 7);
    put_input(&datum, "target_tokens", INT64, target, sizeof target);
    put_input(&datum, "logprobs", FLOAT32, logp, sizeof logp);
    put_input(&datum, "advantages", FLOAT32, ones, sizeof ones);
    put_inside(&s, 3, &datum);
    put_setting(&s, "kl.estimator", "k3");
    put_setting(&s, "kl.beta", "0.5");
    for (int i = 0; i < 3; i++)
        if (rule[i])
            put_setting(&s, keys[i], rule[i]);
    learn(id, &s);
    done(id, "loss:sum");
    retrieve(&a, id);
    kg_str_clear(out);
    NEED(kg_str_append(out, a.body.data, a.body.len, err));
    kg_str_release(&a.body);
    kg_str_release(&s);
}

/* Opens another model from the checkpoint, and uses it from now on. */
static void resume(const char *name)
{
    char body[512], id[32];
    snprintf(body, sizeof body,
             "{\"session_id\": \"%s\", \"model_seq_id\": 9, \"optimizer\": true, "
             "\"path\": \"tinker://%s/weights/%s\"}",
             session, model_id, name);
    future(id, "load_weights", body);
    done(id, "\"model_id\": ");
    snprintf(model_id, sizeof model_id, "%s:train:9", session);
}

/* The exit status of the child says whether the second server was refused with these
 * words. */
static void a_folder_has_one_server(void **state)
{
    const struct kg_serve_opts opts = {.model = model, .tok = tok, .name = "digits"};
    struct kg_tinker *second;
    struct kg_err refused;
    int status;
    (void)state;
    start(DIR "/checkpoints", NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(kg_tinker_open(&second, &opts, DIR "/checkpoints", &refused) ==
                          KG_ECONFLICT &&
                      strstr(refused.message, "--train: each server needs a folder") &&
                      strstr(refused.message, "expected no other process at work")
                  ? 0
                  : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    kg_tinker_close(server);
    NEED(kg_tinker_open(&server, &opts, DIR "/checkpoints", err)); /* it is free again */
    close_server();
}

/* A request with the same bytes and sequence number at another endpoint is another
 * request, and conflicts with the first. */
static void a_request_to_another_endpoint_is_another(void **state)
{
    static const char *const paths[] = {"save_weights", "save_weights_for_sampler",
                                        "load_weights", "optim_step"};
    enum { PATHS = sizeof paths / sizeof *paths };
    char body[256], id[32];
    struct answer a = {0};
    (void)state;
    begin(4);
    for (int i = 0; i < PATHS; i++)
        for (int k = 0; k < PATHS; k++) {
            snprintf(body, sizeof body, "{\"model_id\": \"%s\", \"seq_id\": %d}",
                     model_id, i + 1);
            if (k == 0)
                future(id, paths[i], body);
            post(&a, paths[k], body);
            assert_int_equal(a.status, k == i ? 200 : 409);
        }
    kg_str_release(&a.body);
    close_server();
}

/* A model is unloaded and created again with the same number: no result of the first
 * counts for the second. */
static void a_model_that_was_unloaded_begins_anew(void **state)
{
    char body[256], id[32], before[3][32] = {"", "", ""};
    (void)state;
    begin(4);
    for (int i = 0; i < 3; i++) {
        if (i > 0)
            open_model(4);
        step(id, 1, "\"learning_rate\": 0.01");
        done(id, "grad_norm:mean");
        for (int k = 0; k < i; k++)
            assert_string_not_equal(id, before[k]);
        snprintf(before[i], sizeof before[i], "%s", id);
        snprintf(body, sizeof body, "{\"model_id\": \"%s\"}", model_id);
        future(id, "unload_model", body);
        done(id, "unload_model");
        future(id, "unload_model", body); /* as if its reply had been lost */
        done(id, "unload_model");
        done(before[i], "grad_norm:mean"); /* results are kept */
        step(id, 2, "\"learning_rate\": 0.01");
        done(id, "no model");
    }
    close_server();
}

/* A field of a wrong type is refused, not replaced by its default. %s: a session, or a
 * model */
static void fields_of_another_type_are_refused(void **state)
{
#define CREATE(x)                                                                        \
    "create_model", "{\"session_id\": \"%s\", \"model_seq_id\": 7, " x "}", session
#define STEP(x) "optim_step", "{\"model_id\": \"%s\", \"seq_id\": 1, " x "}", model_id
#define SAVE(x) "save_weights", "{\"model_id\": \"%s\", \"seq_id\": 1, " x "}", model_id
#define DRAW(x)                                                                          \
    "asample", "{\"sampling_session_id\": \"%s:sample:0\", \"seq_id\": 1, " x "}", session
    static const struct {
        const char *path, *body, *of, *part;
    } cases[] = {
        {CREATE("\"lora_config\": {\"rank\": \"16\"}"), "'rank': expected integer"},
        {CREATE("\"lora_config\": {\"rank\": 4.5}"), "'rank': expected integer, found"},
        {CREATE("\"lora_config\": {\"rank\": true}"), "'rank': expected integer, found"},
        {CREATE("\"lora_config\": \"16\""), "'lora_config': expected object, found"},
        {CREATE("\"lora_config\": [16]"), "'lora_config': expected object, found array"},
        {CREATE("\"lora_config\": {\"rank\": 4, \"seed\": \"1\"}"), "'seed': expected"},
        {CREATE("\"lora_config\": {\"rank\": 4, \"train_mlp\": 0}"), "'train_mlp'"},
        {CREATE("\"lora_config\": {\"rank\": 4, \"alpha\": 16}"),
         "lora_config: expected one of rank, seed"},
        {CREATE("\"base_model\": 1"), "'base_model': expected string, found integer"},
        {CREATE("\"user_metadata\": \"x\""), "'user_metadata': expected object"},
        {STEP("\"adam_params\": {\"learning_rate\": \"1e-1\"}"), "'learning_rate'"},
        {STEP("\"adam_params\": {\"beta1\": true}"), "'beta1': expected"},
        {STEP("\"adam_params\": {\"lr\": 1}"), "adam_params: expected one of type"},
        {STEP("\"optim_params\": {\"eps\": []}"), "'eps': expected"},
        {STEP("\"optimizer_params\": 1"), "'optimizer_params': expected object"},
        {SAVE("\"path\": 5"), "'path': expected string, found integer"},
        {SAVE("\"overwrite\": \"yes\""), "'overwrite': expected"},
        {DRAW("\"num_samples\": \"8\""), "'num_samples': expected integer"},
        {DRAW("\"prompt_logprobs\": 1"), "'prompt_logprobs': expected"},
        {DRAW("\"topk_prompt_logprobs\": true"), "'topk_prompt_logprobs': expected"},
        {DRAW("\"sampling_params\": {\"max_tokens\": \"abc\"}"), "'max_tokens'"},
        {DRAW("\"sampling_params\": {\"max_tokens\": 4.5}"), "'max_tokens': expected"},
        {DRAW("\"sampling_params\": {\"temperature\": \"0\"}"), "'temperature'"},
        {DRAW("\"sampling_params\": {\"seed\": 1.5}"), "'seed': expected integer"},
        {DRAW("\"sampling_params\": {\"top_p\": {}}"), "'top_p': expected"},
        {DRAW("\"sampling_params\": {\"min_p\": 0.1}"),
         "sampling_params: expected one of max_tokens"},
    };
    char body[512], id[32];
    struct answer a = {0};
    (void)state;
    begin(4);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(body, sizeof body, cases[i].body, cases[i].of);
        post(&a, cases[i].path, body);
        if (a.status != 422 || !strstr(kg_str_text(&a.body), cases[i].part))
            fail_msg("%s: expected %s, found %d %s", body, cases[i].part, a.status,
                     kg_str_text(&a.body));
    }
    kg_str_release(&a.body);
    snprintf(body, sizeof body,
             "{\"session_id\": \"%s\", \"model_seq_id\": 8, \"lora_config\": {}}",
             session);
    future(id, "create_model", body);
    done(id, "lora_config.rank: expected 0 (all weights) to 1024, found none");
    snprintf(body, sizeof body,
             "{\"session_id\": \"%s\", \"model_seq_id\": 9, \"lora_config\": {\"rank\": "
             "2, \"seed\": null}, \"of_a_newer_sdk\": 1}",
             session);
    future(id, "create_model", body);
    done(id, "\"model_id\": ");
    snprintf(body, sizeof body,
             "{\"session_id\": \"%s\", \"model_seq_id\": 10, \"lora_config\": null}",
             session);
    future(id, "create_model", body);
    done(id, "\"model_id\": ");
    close_server();
}

/* Keys that the client's training loop implements have no effect here, so they are
 * refused. */
static void keys_of_a_loop_are_refused(void **state)
{
    static const char *const keys[][2] = {
        {"algo.advantage", "grpo"},   {"algo.mask_truncated", "true"},
        {"algo.mask_truncated", "1"}, {"anchor.kappa", "0.1"},
        {"anchor.unit", "updates"},   {"kl.target", "0.1"},
        {"kl.in", "reward"}};
    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        struct kg_tinker_batch b = {.loss = "importance", .n_settings = 1};
        struct kg_algo algo;
        struct kg_err err;
        snprintf(b.settings[0].key, KG_TINKER_TEXT, "%s", keys[i][0]);
        snprintf(b.settings[0].value, KG_TINKER_TEXT, "%s", keys[i][1]);
        assert_int_equal(kg_tinker_algo(&algo, &b, 16, &err), KG_EUNSUPPORTED);
        assert_non_null(strstr(err.message, keys[i][0]));
        assert_non_null(strstr(err.message, "a key of the training loop"));
    }
}

static void what_is_too_long_is_said(void **state)
{
    struct kg_str s = {0};
    struct answer a = {0};
    char body[256], id[32];
    (void)state;
    begin(4);
    snprintf(body, sizeof body,
             "{\"session_id\": \"%s\", \"sampling_session_seq_id\": 0, \"base_model\": "
             "\"digits\"}",
             session);
    post(&a, "create_sampling_session", body);
    assert_int_equal(a.status, 200);
    for (int n = 63; n <= 66; n++) {
        kg_str_clear(&s);
        NEED(kg_str_printf(&s, err,
                           "{\"sampling_session_id\": \"%s:sample:0\", \"seq_id\": %d, "
                           "\"prompt\": {\"chunks\": [{\"tokens\": [3",
                           session, n));
        for (int i = 1; i < n; i++)
            NEED(kg_str_puts(&s, ", 4", err));
        NEED(kg_str_puts(&s, "]}]}}", err));
        future(id, "asample", kg_str_text(&s));
        snprintf(body, sizeof body,
                 "prompt: expected at most 63 tokens, one less than "
                 "--max-len, found %d",
                 n);
        done(id, n > 63 ? body : "");
    }
    kg_str_clear(&s);
    NEED(kg_str_printf(&s, err,
                       "{\"session_id\": \"%s\", \"model_seq_id\": 9, "
                       "\"user_metadata\": {\"x\": \"%040000d\"}}",
                       session, 1));
    future(id, "create_model", kg_str_text(&s));
    done(id, "user_metadata: expected at most 32768 bytes of JSON, found more");
    kg_str_release(&s);
    kg_str_release(&a.body);
    close_server();
}

/* A loss without anchor keys moves the anchor by the rule of the last loss that had them;
 * so it must after a checkpoint. */
static void an_anchor_moves_after_a_checkpoint_as_before(void **state)
{
    static const struct {
        const char *kind, *period, *eta;
    } cases[] = {{"ema", "1", "0.9"},  {"ema", "1", "0.25"}, {"ema", "2", "0.3"},
                 {"ema", "3", "0.9"},  {"ema", "1", "1"},    {"copy", "1", NULL},
                 {"copy", "2", NULL},  {"copy", "3", NULL},  {"ema", "9", "0.9"},
                 {"fixed", NULL, NULL}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const rule[] = {cases[i].kind, cases[i].period, cases[i].eta};
        struct kg_str direct = {0}, resumed = {0};
        char file[256], other[256];
        begin(4);
        learn_anchored(&direct, 1, rule);
        learn_once(2);
        save(file, 4, "first");
        learn_once(5);
        learn_once(7);
        learn_anchored(&direct, 9, rule);
        save(file, 10, "direct");
        resume("first");
        learn_once(1);
        learn_once(3);
        learn_anchored(&resumed, 5, rule);
        save(other, 6, "resumed");
        assert_int_equal(direct.len, resumed.len);
        assert_memory_equal(direct.data, resumed.data, direct.len);
        same_file(file, other);
        kg_str_release(&direct);
        kg_str_release(&resumed);
        close_server();
    }
}

/* Damage anywhere in saved weights is found before they are used for sampling. */
static void damaged_weights_are_not_sampled(void **state)
{
    static const char body[] =
        "{\"sampling_session_id\": \"%s:sample:%d\", \"seq_id\": 0, \"prompt\": "
        "{\"chunks\": [{\"tokens\": [3, 4]}]}, \"sampling_params\": {\"max_tokens\": 2}}";
    char text[512], file[256], id[32];
    struct answer a = {0};
    struct kg_str bytes = {0};
    (void)state;
    begin(4);
    snprintf(text, sizeof text, "{\"model_id\": \"%s\", \"seq_id\": 1, \"path\": \"w\"}",
             model_id);
    future(id, "save_weights_for_sampler", text);
    done(id, "sampler_weights/w");
    snprintf(file, sizeof file,
             DIR "/checkpoints/%s/sampler_weights/w/adapter/adapter_model.safetensors",
             model_id);
    NEED(kg_file_read(&bytes, file, 1 << 24, err));
    for (int i = 0; i <= 10; i++) {
        const size_t at = bytes.len - 1 - (size_t)i * (bytes.len / 11);
        snprintf(text, sizeof text,
                 "{\"session_id\": \"%s\", \"sampling_session_seq_id\": %d, %s%s%s}",
                 session, 2 * i, "\"model_path\": \"tinker://", model_id,
                 "/sampler_weights/w\"");
        post(&a, "create_sampling_session", text);
        assert_int_equal(a.status, 200);
        bytes.data[at] ^= 1;
        NEED(kg_file_write_atomic(file, bytes.data, bytes.len, err));
        snprintf(text, sizeof text, body, session, 2 * i);
        future(id, "asample", text);
        done(id, "adapter_model.safetensors: ");
        bytes.data[at] ^= 1;
    }
    NEED(kg_file_write_atomic(file, bytes.data, bytes.len, err));
    snprintf(text, sizeof text,
             "{\"session_id\": \"%s\", \"sampling_session_seq_id\": 99, %s%s%s}", session,
             "\"model_path\": \"tinker://", model_id, "/sampler_weights/w\"");
    post(&a, "create_sampling_session", text);
    snprintf(text, sizeof text, body, session, 99);
    future(id, "asample", text);
    retrieve(&a, id);
    assert_int_equal(a.status, 200);
    assert_null(strstr(kg_str_text(&a.body), "error"));
    kg_str_release(&a.body);
    kg_str_release(&bytes);
    close_server();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_has_one_server),
        cmocka_unit_test(a_request_to_another_endpoint_is_another),
        cmocka_unit_test(a_model_that_was_unloaded_begins_anew),
        cmocka_unit_test(fields_of_another_type_are_refused),
        cmocka_unit_test(keys_of_a_loop_are_refused),
        cmocka_unit_test(what_is_too_long_is_said),
        cmocka_unit_test(an_anchor_moves_after_a_checkpoint_as_before),
        cmocka_unit_test(damaged_weights_are_not_sampled),
    };
    return cmocka_run_group_tests(tests, load_digits, free_digits);
}
