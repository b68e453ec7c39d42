/* Shared by the tests of Tinker's API without its SDK: batches, a session and a model.
 * DIR is the test's folder.
 *
 * Included by *_test.c only. Failing helpers fail the test.
 */
#ifndef KG_TINKER_CLIENT_TESTING_H
#define KG_TINKER_CLIENT_TESTING_H

#include "tinker/tinker_testing.h"

/* ---- a ForwardBackwardRequest, encoded by hand ---- */

TEST_UNUSED static void put_varint(struct kg_str *s, uint64_t x)
{
    for (; x >= 0x80; x >>= 7)
        NEED(kg_str_putc(s, (char)(x | 0x80), err));
    NEED(kg_str_putc(s, (char)x, err));
}

TEST_UNUSED static void put_bytes(struct kg_str *s, unsigned field, const void *bytes,
                                  size_t n)
{
    put_varint(s, field << 3 | 2);
    put_varint(s, n);
    NEED(kg_str_append(s, bytes, n, err));
}

TEST_UNUSED static void put_number(struct kg_str *s, unsigned field, uint64_t x)
{
    put_varint(s, field << 3);
    put_varint(s, x);
}

TEST_UNUSED static void put_inside(struct kg_str *s, unsigned field, struct kg_str *inner)
{
    put_bytes(s, field, kg_str_text(inner), inner->len);
    kg_str_release(inner);
}

TEST_UNUSED static void put_input(struct kg_str *datum, const char *name, unsigned dtype,
                                  const void *values, size_t bytes)
{
    struct kg_str entry = {0}, tensor = {0};
    put_bytes(&tensor, 1, values, bytes);
    put_number(&tensor, 3, dtype);
    put_bytes(&entry, 1, name, strlen(name));
    put_inside(&entry, 2, &tensor);
    put_inside(datum, 2, &entry);
}

enum { FLOAT32 = 1, INT64 = 2 };

TEST_UNUSED static void put_tokens(struct kg_str *datum, const int32_t *tokens, size_t n)
{
    struct kg_str chunk = {0}, text = {0};
    put_bytes(&text, 1, tokens, n * sizeof *tokens);
    put_inside(&chunk, 1, &text);
    put_inside(datum, 1, &chunk);
}

TEST_UNUSED static void put_head(struct kg_str *s, const char *model_id, int64_t seq,
                                 const char *loss)
{
    put_bytes(s, 1, model_id, strlen(model_id));
    put_number(s, 2, (uint64_t)seq);
    put_bytes(s, 4, loss, strlen(loss));
}

TEST_UNUSED static void put_supervised(struct kg_str *s, const int32_t *tokens, size_t n)
{
    struct kg_str datum = {0};
    int64_t target[64];
    for (size_t i = 0; i + 1 < n; i++)
        target[i] = tokens[i + 1];
    put_tokens(&datum, tokens, n - 1);
    put_input(&datum, "target_tokens", INT64, target, (n - 1) * sizeof *target);
    put_inside(s, 3, &datum);
}

TEST_UNUSED static const int32_t tokens[] = {3, 10, 4, 12, 5, 6, 7, 8};

/* ---- a session ---- */

TEST_UNUSED static char session[KG_TINKER_ID];
TEST_UNUSED static char model_id[KG_TINKER_ID + 16];

TEST_UNUSED static void open_session(void)
{
    struct answer a = {0};
    post(&a, "create_session", "{\"tags\": [], \"sdk_version\": \"0.38.0\"}");
    assert_int_equal(a.status, 200);
    text_of(session, sizeof session, &a, "session_id");
    kg_str_release(&a.body);
}

/* Posts a request; id gets its future. */
TEST_UNUSED static void future(char id[32], const char *path, const char *body)
{
    struct answer a = {0};
    post(&a, path, body);
    if (a.status != 200)
        fail_msg("%s: %s", path, kg_str_text(&a.body));
    text_of(id, 32, &a, "request_id");
    kg_str_release(&a.body);
}

TEST_UNUSED static bool has(const struct kg_str *s, const char *part)
{
    const size_t n = strlen(part);
    for (size_t at = 0; at + n <= s->len; at++)
        if (memcmp(s->data + at, part, n) == 0)
            return true;
    return false;
}

/* Waits for the future; its result must contain `part`. */
TEST_UNUSED static void done(const char *id, const char *part)
{
    struct answer a = {0};
    retrieve(&a, id);
    if (a.status != 200 || !has(&a.body, part))
        fail_msg("expected %s, found %d %s", part, a.status, kg_str_text(&a.body));
    kg_str_release(&a.body);
}

TEST_UNUSED static void open_model(int rank)
{
    char body[256], id[32];
    snprintf(body, sizeof body,
             "{\"session_id\": \"%s\", \"model_seq_id\": %d, \"base_model\": \"digits\", "
             "\"lora_config\": {\"rank\": %d, \"seed\": 1}}",
             session, rank, rank);
    future(id, "create_model", body);
    done(id, "\"model_id\": ");
    snprintf(model_id, sizeof model_id, "%s:train:%d", session, rank);
}

TEST_UNUSED static void learn(char id[32], const struct kg_str *s)
{
    struct answer a = {0};
    ask(&a, "POST", "/api/v1/forward_backward", s->data, s->len);
    if (a.status != 200)
        fail_msg("%s", kg_str_text(&a.body));
    text_of(id, 32, &a, "request_id");
    kg_str_release(&a.body);
}

TEST_UNUSED static void step(char id[32], int64_t seq, const char *params)
{
    char body[512];
    snprintf(body, sizeof body,
             "{\"model_id\": \"%s\", \"seq_id\": %lld, \"adam_params\": {%s}}", model_id,
             (long long)seq, params);
    future(id, "optim_step", body);
}

TEST_UNUSED static void close_server(void)
{
    kg_tinker_close(server);
    NEED(kg_file_remove_tree(DIR "/checkpoints", err));
}

TEST_UNUSED static void begin(int rank)
{
    NEED(kg_file_make_dirs(DIR, err));
    start(DIR "/checkpoints", NULL);
    open_session();
    open_model(rank);
}

TEST_UNUSED static void learn_once(int64_t seq)
{
    struct kg_str s = {0};
    char id[32];
    put_head(&s, model_id, seq, "cross_entropy");
    put_supervised(&s, tokens, 8);
    learn(id, &s);
    done(id, "loss:sum");
    step(id, seq + 1, "\"learning_rate\": 0.01");
    done(id, "grad_norm:mean");
    kg_str_release(&s);
}

/* Saves the model's state under a name; file gets the path of its weights. */
TEST_UNUSED static void save(char file[256], int64_t seq, const char *name)
{
    char body[256], id[32];
    snprintf(body, sizeof body,
             "{\"model_id\": \"%s\", \"seq_id\": %lld, \"path\": \"%s\"}", model_id,
             (long long)seq, name);
    future(id, "save_weights", body);
    done(id, name);
    snprintf(file, 256, DIR "/checkpoints/%s/weights/%s/state.safetensors", model_id,
             name);
}

TEST_UNUSED static void same_file(const char *a, const char *b)
{
    struct kg_str x = {0}, y = {0};
    NEED(kg_file_read(&x, a, 1u << 28, err));
    NEED(kg_file_read(&y, b, 1u << 28, err));
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.data, y.data, x.len);
    kg_str_release(&x);
    kg_str_release(&y);
}

#endif
