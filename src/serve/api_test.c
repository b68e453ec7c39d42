/* Tests of the API without a server: how prompts become tokens, and the form of answers.
 * api_fields_test.c tests the fields of requests. */
#include "serve/api_testing.h"

static void prompts_become_tokens(void **state)
{
    static const int32_t ids[] = {5, 6, 14};
    (void)state;
    need(encode(KG_API_COMPLETION, "{\"prompt\":\"12,\"}"));
    assert_int_equal(r.n_prompts, 1);
    assert_memory_equal(r.prompts[0].ids.ids, ids, sizeof ids);
    assert_int_equal(r.max_tokens, KG_API_DEFAULT_TOKENS);
    need(encode(KG_API_COMPLETION, "{\"prompt\":[5,6,14],\"echo\":true}"));
    assert_memory_equal(r.prompts[0].ids.ids, ids, sizeof ids);
    assert_string_equal(kg_str_text(&r.prompts[0].text), "12,");
    need(encode(KG_API_COMPLETION, "{\"prompt\":[\"1\",\"12,\"],\"n\":128}"));
    assert_int_equal(r.n_prompts, 2);
    need(encode(KG_API_COMPLETION, "{\"prompt\":[[5,6,14],[1]]}"));
    assert_int_equal(r.prompts[1].ids.n, 1);
    /* fields of an answer that clients send back are accepted, and unused ones ignored */
    need(encode(
        KG_API_CHAT,
        "{\"messages\":[{\"role\":\"user\",\"name\":\"x\",\"content\":\"1\"},"
        "{\"role\":\"assistant\",\"content\":\"2\",\"refusal\":null,\"audio\":null,"
        "\"function_call\":null,\"annotations\":[],\"tool_calls\":null,"
        "\"reasoning_content\":null}]}"));
    need(encode(KG_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"12,\"}]}"));
    assert_int_equal(r.max_tokens, 64 - (int64_t)r.prompts[0].ids.n);
    assert_memory_equal(r.prompts[0].ids.ids, ids, sizeof ids);
}

static const char TOOLS[] =
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";

static kg_status ask_with_tools(const char *more)
{
    char body[512];
    snprintf(body, sizeof body,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"1\"},{\"role\":"
             "\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":"
             "\"2\",\"arguments\":\"{\\\"a\\\": 5}\"}}]},{\"role\":\"tool\",\"content\":"
             "\"6\"}],%s%s}",
             TOOLS, more);
    return encode(KG_API_CHAT, body);
}

/* The template gets the tools, and the arguments of a call as an object instead of
 * text. */
static void tools_go_to_the_template(void **state)
{
    (void)state;
    with_template(
        "{{ messages[0].content }}{% for c in messages[1].tool_calls %}"
        "{{ c.function.name }}{{ c.function.arguments.a }}{% endfor %}"
        "{{ messages[2].content }}{% if tools %}{{ tools | length }}{% endif %}");
    need(ask_with_tools(""));
    assert_int_equal(r.prompts[0].ids.n, 5);
    assert_int_equal(r.prompts[0].ids.ids[2], 9);
    assert_false(r.reads_calls); /* the template has another form of calls */
    need(ask_with_tools(",\"tool_choice\":\"none\",\"parallel_tool_calls\":false"));
    assert_int_equal(r.prompts[0].ids.n, 4);
    need(ask_with_tools(",\"tool_choice\":\"auto\",\"parallel_tool_calls\":true"));
    assert_int_equal(r.prompts[0].ids.n, 5);
    with_template("{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ "
                  "c.function.name }}{% endfor %}"
                  "{% endfor %}");
    refused(ask_with_tools(""), "tools", "does not support tools");
    assert_string_equal(fault.code, "unsupported_parameter");
    with_template(NULL);
    refused(encode(KG_API_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"content\":null,"
                                "\"tool_calls\":[{\"function\":{\"name\":\"f\","
                                "\"arguments\":\"[]\"}}]}]}"),
            "messages", "message 0: tool_calls: call 0: arguments");
    refused(encode(KG_API_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"content\":null,"
                                "\"tool_calls\":[]}]}"),
            "messages", "content");
}

static void is_rendered_as(const char *messages, const char *expected)
{
    struct kg_ids ids = {0};
    char body[600];

    snprintf(body, sizeof body, "{\"messages\":[%s]}", messages);
    need(encode(KG_API_CHAT, body));
    need(kg_tokenizer_encode(&ids, model().tok, expected, strlen(expected),
                             (struct kg_encode_opts){.parse_special = true}, &err));
    if (ids.n != r.prompts[0].ids.n)
        fail_msg("%s: expected %zu tokens, found %zu", messages, ids.n,
                 r.prompts[0].ids.n);
    assert_memory_equal(r.prompts[0].ids.ids, ids.ids, ids.n * sizeof *ids.ids);
    kg_ids_release(&ids);
}

/* The template renders 7 for tool calls and 8 for a name, then reasoning and content. */
static void messages_come_as_clients_send_them(void **state)
{
#define USER   "{\"role\":\"user\",\"content\":\"1\"}"
#define HIS(x) USER ",{\"role\":\"assistant\"," x "}"
#define CALL   "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{\"}}]"
    static const char *const rows[][2] = {
        {"{\"role\":\"user\",\"content\":\"1\",\"name\":null}", "1"},
        {"{\"role\":\"user\",\"content\":\"1\",\"name\":\"x\"}", "81"},
        {HIS("\"content\":\"2\",\"tool_calls\":null"), "12"},
        {HIS("\"content\":\"2\",\"tool_calls\":[]"), "12"},
        {HIS("\"content\":null," CALL), "17"},
        {HIS(CALL), "17"},
        {HIS("\"content\":\"\"," CALL), "17"},
        {HIS("\"content\":\"2\",\"reasoning_content\":null"), "12"},
        {HIS("\"content\":\"2\",\"reasoning_content\":\"3\""), "132"},
        {HIS("\"content\":\"2\",\"reasoning\":\"3\""), "132"},
        {HIS("\"content\":\"2\",\"thinking\":\"3\""), "132"},
        {HIS("\"content\":\"2\",\"thinking\":\"3\",\"reasoning\":\"4\""), "132"},
        {HIS("\"content\":\"2\",\"reasoning\":\"4\",\"reasoning_content\":null"), "142"},
        {HIS("\"content\":null,\"reasoning\":\"3\""), "13"},
        {HIS("\"content\":null,\"thinking\":\"3\"," CALL), "173"},
        {HIS("\"content\":\"2\",\"refusal\":null,\"audio\":null,\"parsed\":null"), "12"},
    };

    (void)state;
    with_template("{% for m in messages %}{% if 'tool_calls' in m %}7{% endif %}{% if "
                  "m.name is defined %}8{% endif %}{{ m.reasoning_content }}{{ m.content "
                  "}}{% endfor %}");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        is_rendered_as(rows[i][0], rows[i][1]);
    with_template(NULL);
    refused(encode(KG_API_CHAT, "{\"messages\":[" HIS("\"content\":null") "]}"),
            "messages", "message 1: content");
    refused(parse(KG_API_CHAT,
                  "{\"messages\":[" HIS("\"content\":\"2\",\"thoughts\":\"3\"") "]}"),
            "messages", "unknown field 'thoughts'");
#undef USER
#undef HIS
#undef CALL
}

static void the_day_is_the_servers(void **state)
{
    struct kg_api_model m = model();

    (void)state;
    with_template("{{ strftime_now('%d') }}{{ messages[0].content }}");
    m.chat = chat;
    m.date = "2025-07-19";
    need(parse(KG_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"1\"}]}"));
    need(kg_api_encode(&r, &fault, &m, &err));
    assert_int_equal(r.prompts[0].ids.n, 3);
    assert_int_equal(r.prompts[0].ids.ids[0], r.prompts[0].ids.ids[2]); /* day 191 */
    m.date = NULL;
    need(parse(KG_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"1\"}]}"));
    need(kg_api_encode(&r, &fault, &m, &err));
    assert_int_equal(r.prompts[0].ids.n, 3);
    with_template(NULL);
}

static void max_tokens_has_a_default(void **state)
{
    static const char chat_body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"1\"}]}";
    struct kg_api_model m = model();
    (void)state;
    need(encode(KG_API_CHAT, chat_body));
    assert_int_equal(r.max_tokens, 64 - (int)r.prompts[0].ids.n);
    need(encode(KG_API_COMPLETION, "{\"prompt\":\"1\"}"));
    assert_int_equal(r.max_tokens, KG_API_DEFAULT_TOKENS);
    m.default_tokens = 20;
    need(parse(KG_API_CHAT, chat_body));
    need(kg_api_encode(&r, &fault, &m, &err));
    assert_int_equal(r.max_tokens, 20);
    need(parse(KG_API_COMPLETION, "{\"prompt\":\"1\",\"max_tokens\":30}"));
    need(kg_api_encode(&r, &fault, &m, &err));
    assert_int_equal(r.max_tokens, 30);
    m.default_tokens = 1000;
    need(parse(KG_API_COMPLETION, "{\"prompt\":\"1\"}"));
    need(kg_api_encode(&r, &fault, &m, &err));
    assert_int_equal(r.max_tokens, 63);
}

static void content_may_come_in_parts(void **state)
{
    struct kg_ids whole;
    (void)state;
    need(encode(KG_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"12\"}]}"));
    whole = r.prompts[0].ids;
    r.prompts[0].ids = (struct kg_ids){0};
    need(encode(KG_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
                             "\"text\",\"text\":\"12\"}]}]}"));
    assert_int_equal(r.prompts[0].ids.n, whole.n);
    assert_memory_equal(r.prompts[0].ids.ids, whole.ids, whole.n * sizeof *whole.ids);
    kg_ids_release(&whole);
    refused(encode(KG_API_CHAT,
                   "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
                   "\"image_url\",\"image_url\":{}}]}]}"),
            "messages", "message 0: content part 0");
}

static void what_the_template_leaves_out_is_refused(void **state)
{
    (void)state;
    with_template("{% for m in messages if m.role in ['system', 'user'] %}"
                  "{{ m.content }}{% endfor %}");
    refused(encode(KG_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"12\"},"
                                "{\"role\":\"usr\",\"content\":\"1\"}]}"),
            "messages",
            "message 1: expected a chat template that writes the text of role 'usr'");
    need(encode(KG_API_CHAT, "{\"messages\":[{\"role\":\"developer\",\"content\":\"12\"},"
                             "{\"role\":\"user\",\"content\":\"1\"}]}"));
    assert_int_equal(r.prompts[0].ids.n, 3); /* as with the role system */
    with_template(NULL);
}

static void a_model_is_found_by_its_name(void **state)
{
    const struct kg_api_model models[] = {{.name = "base"}, {.name = "poet"}};
    const struct kg_api_model *m;
    (void)state;
    need(kg_api_find(&m, models, 2, NULL, &err));
    assert_ptr_equal(m, &models[0]);
    need(kg_api_find(&m, models, 2, "poet", &err));
    assert_ptr_equal(m, &models[1]);
    assert_int_equal(kg_api_find(&m, models, 2, "gpt-4o", &err), KG_ENOTFOUND);
    assert_string_equal(err.message,
                        "the model 'gpt-4o' does not exist; there are 'base', 'poet'");
    assert_int_equal(kg_api_find(&m, models, 1, "poet", &err), KG_ENOTFOUND);
    assert_string_equal(err.message, "the model 'poet' does not exist; there is 'base'");
}

static void what_does_not_fit_the_model_is_refused(void **state)
{
    (void)state;
    refused(encode(KG_API_COMPLETION, "{\"prompt\":\"x\"}"), "prompt", "'x'");
    refused(encode(KG_API_COMPLETION, "{\"prompt\":\"\"}"), "prompt", "at least one");
    refused(encode(KG_API_COMPLETION, "{\"prompt\":[16]}"), "prompt", "from 0 to 15");
    refused(encode(KG_API_COMPLETION, "{\"prompt\":[1,\"2\"]}"), "prompt", "token 1");
    refused(encode(KG_API_COMPLETION, "{\"prompt\":[\"1\",true]}"), "prompt", "prompt 1");
    refused(encode(KG_API_COMPLETION, "{\"prompt\":\"1\",\"max_tokens\":64}"), "prompt",
            "64 tokens: a prompt of 1 and a completion of 64");
    assert_string_equal(fault.code, "context_length_exceeded");
    static const char *const no_ids[] = {"16", "-1", "01", "1.0", "", "12345678901", "a"};
    for (size_t i = 0; i < sizeof no_ids / sizeof *no_ids; i++) {
        char body[80];
        snprintf(body, sizeof body, "{\"prompt\":\"1\",\"logit_bias\":{\"%s\":1}}",
                 no_ids[i]);
        refused(encode(KG_API_COMPLETION, body), "logit_bias", "an id from 0 to 15");
    }
    refused(encode(KG_API_COMPLETION, "{\"prompt\":[[1],[2],[3]],\"n\":100}"), "n",
            "more than 256");
    refused(encode(KG_API_CHAT, "{\"messages\":[7]}"), "messages", "message 0");
    refused(encode(KG_API_CHAT, "{\"messages\":[{\"role\":1,\"content\":\"1\"}]}"),
            "messages", "role");
    refused(
        encode(KG_API_CHAT, "{\"messages\":[{\"role\":\"system\",\"content\":\"1\"}]}"),
        "messages", "System role not supported");
    chat = (kg_chat_template_close(chat), NULL);
    refused(encode(KG_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"1\"}]}"),
            "messages", "no chat template");
    need(kg_chat_template_open(&chat, DIGITS, NULL, &err));
}

/* ---- answers ---- */

/* Prompt "1" and completion "2,", with two other likely tokens for each token. */
static void make_traj(struct kg_traj *t)
{
    const int32_t prompt = 5;
    const int32_t top[2] = {7, 8};
    const float logp[2] = {-0.5f, -1.0f / 0.0f};
    struct kg_traj_step step = {
        .token = 6, .logp = -1.5f, .top_ids = top, .top_logp = logp};
    *t = (struct kg_traj){.top_k = 2};
    need(kg_traj_append(t, &prompt, 1, KG_SOURCE_PROMPT, &err));
    need(kg_traj_push(t, &step, &err));
    step.token = 14;
    need(kg_traj_push(t, &step, &err));
    t->finish = KG_FINISH_STOP;
}

static void answer_is(enum kg_api_kind kind, const char *body, bool piece,
                      const char *expected)
{
    struct kg_traj t;
    struct kg_str out = {0};
    struct kg_json_doc doc = {0};
    struct kg_api_model m = model();
    struct kg_api_answer a = {.r = &r, .m = &m, .id = "id", .created = 7, .seed = 9};
    struct kg_api_usage usage = {1, 2};
    need(encode(kind, body));
    make_traj(&t);
    struct kg_api_offset offset = {0};
    struct kg_api_choice c = {.first = true,
                              .offset = &offset,
                              .text = "2,",
                              .text_n = 2,
                              .t = &t,
                              .from = 1,
                              .to = 3,
                              .finish = KG_FINISH_STOP};
    need(kg_api_put_begin(&out, &a, piece, true, &err));
    need(kg_api_put_choice(&out, &a, piece, &c, &err));
    need(kg_api_put_end(&out, &a, piece, piece ? NULL : &usage, &err));
    assert_string_equal(out.data, expected);
    need(kg_json_parse(&doc, out.data, out.len, "answer", &err));
    kg_json_release(&doc);
    kg_str_release(&out);
    kg_traj_release(&t);
}

#define ASKED "\"messages\":[{\"role\":\"user\",\"content\":\"1\"}]"
#define USAGE                                                                            \
    "\"usage\": {\"prompt_tokens\": 1, \"completion_tokens\": 2, \"total_tokens\": 3}"

static void answers_have_the_shapes_of_the_api(void **state)
{
    (void)state;
    answer_is(KG_API_COMPLETION, "{\"prompt\":\"1\",\"logprobs\":2}", false,
              "{\"id\": \"id\", \"object\": \"text_completion\", \"created\": 7, "
              "\"model\": \"digits\", \"choices\": [{\"index\": 0, \"text\": \"2,\", "
              "\"logprobs\": {\"tokens\": [\"2\", \",\"], \"token_logprobs\": [-1.5, "
              "-1.5], \"top_logprobs\": [{\"3\": -0.5, \"4\": -9999.0, \"2\": -1.5}, "
              "{\"3\": -0.5, \"4\": -9999.0, \",\": -1.5}], \"text_offset\": [0, 1]}, "
              "\"finish_reason\": \"stop\"}], " USAGE ", \"seed\": 9}");
    answer_is(KG_API_CHAT, "{" ASKED "}", false,
              "{\"id\": \"id\", \"object\": \"chat.completion\", \"created\": 7, "
              "\"model\": \"digits\", \"choices\": [{\"index\": 0, \"message\": "
              "{\"role\": \"assistant\", \"content\": \"2,\", \"refusal\": null}, "
              "\"logprobs\": null, \"finish_reason\": \"stop\"}], " USAGE
              ", \"seed\": 9}");
    answer_is(KG_API_CHAT,
              "{" ASKED ",\"stream\":true,\"stream_options\":{\"include_usage\":"
              "true},\"return_token_ids\":true}",
              true,
              "{\"id\": \"id\", \"object\": \"chat.completion.chunk\", \"created\": 7, "
              "\"model\": \"digits\", \"prompt_token_ids\": [5], \"choices\": "
              "[{\"index\": 0, \"delta\": {\"role\": "
              "\"assistant\", \"content\": \"2,\"}, \"logprobs\": null, "
              "\"finish_reason\": \"stop\", \"prompt_token_ids\": [5], \"token_ids\": "
              "[6,14]}], \"usage\": null, \"seed\": 9}");
    answer_is(
        KG_API_CHAT,
        "{" ASKED ",\"logprobs\":true,\"top_logprobs\":2,\"return_token_ids\":true,"
        "\"return_tokens_as_token_ids\":true}",
        false,
        "{\"id\": \"id\", \"object\": \"chat.completion\", \"created\": 7, "
        "\"model\": \"digits\", \"prompt_token_ids\": [5], \"choices\": [{\"index\": 0, "
        "\"message\": {\"role\": \"assistant\", \"content\": \"2,\", \"refusal\": "
        "null}, \"logprobs\": {\"content\": [{\"token\": \"token_id:6\", \"logprob\": "
        "-1.5, \"bytes\": [50], \"top_logprobs\": [{\"token\": \"token_id:7\", "
        "\"logprob\": -0.5, \"bytes\": [51]}, {\"token\": \"token_id:8\", \"logprob\": "
        "-9999.0, \"bytes\": [52]}]}, {\"token\": \"token_id:14\", "
        "\"logprob\": -1.5, \"bytes\": [44], \"top_logprobs\": [{\"token\": "
        "\"token_id:7\", \"logprob\": -0.5, \"bytes\": [51]}, {\"token\": "
        "\"token_id:8\", \"logprob\": -9999.0, \"bytes\": [52]}]}], \"refusal\": "
        "null}, \"finish_reason\": \"stop\", \"prompt_token_ids\": [5], "
        "\"token_ids\": [6,14]}], " USAGE ", \"seed\": 9}");
    answer_is(
        KG_API_COMPLETION,
        "{\"prompt\":\"1\",\"logprobs\":2,\"return_tokens_as_token_ids\":true}", false,
        "{\"id\": \"id\", \"object\": \"text_completion\", \"created\": 7, "
        "\"model\": \"digits\", \"choices\": [{\"index\": 0, \"text\": \"2,\", "
        "\"logprobs\": {\"tokens\": [\"token_id:6\", \"token_id:14\"], "
        "\"token_logprobs\": [-1.5, -1.5], \"top_logprobs\": [{\"token_id:7\": -0.5, "
        "\"token_id:8\": -9999.0, \"token_id:6\": -1.5}, {\"token_id:7\": -0.5, "
        "\"token_id:8\": -9999.0, \"token_id:14\": -1.5}], \"text_offset\": [0, 1]}, "
        "\"finish_reason\": \"stop\"}], " USAGE ", \"seed\": 9}");
}

#define SCORED(id, logp, rank)                                                           \
    "{\"token\": \"token_id:" id "\", \"token_id\": " id ", \"logprob\": " logp          \
    ", \"rank\": " rank
#define TOPS  ", \"top_logprobs\": ["
#define EIGHT "}, " SCORED("8", "-0.5", "1") "}]}"

static const char IDS_WHOLE[] =
    "{\"request_id\": \"a\\\"b\", \"model\": \"digits\", \"created\": 7, "
    "\"output_mode\": "
    "\"tokens\", \"prompt_token_ids\": [5], \"choices\": [{\"index\": 0, \"token_ids\": "
    "[6,14,2], \"logprobs\": {\"content\": [" /* 6 is the likeliest, then 8 */
    SCORED("6", "-0.5", "1") TOPS SCORED("6", "-0.5", "1") "}, " SCORED(
        "8", "-1.25", "2") "}]}, " SCORED("14", "-1.25", "2")
        TOPS SCORED("14", "-1.25", "2") EIGHT ", " SCORED("2", "-3.0", "null")
            TOPS SCORED("2", "-3.0", "null") EIGHT
    "]}, \"finish_reason\": \"stop\", \"sampling_mask\": [[6,8], "
    "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15], [14]], \"routed_experts\": null, "
    "\"weight_versions\": [{\"version\": \"0\", \"start\": 0, \"end\": 3}]}], \"usage\": "
    "{\"prompt_tokens\": 1, \"completion_tokens\": 3, \"total_tokens\": 4}, \"seed\": 9}";
static const char IDS_PIECE[] =
    "{\"index\": 3, \"token_ids\": [14], \"logprobs\": {\"content\": [" SCORED(
        "14", "-1.25", "2") TOPS SCORED("14", "-1.25", "2") EIGHT
    "]}, \"finish_reason\": null, \"sampling_mask\": "
    "[[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]], \"routed_experts\": null, "
    "\"weight_versions\": null}";

/* Prompt 5, completion 6, 14, 2; the second token was sampled without truncation. */
static void make_truncated(struct kg_traj *t)
{
    static const int32_t first[] = {6, 8}, second[] = {8, 14};
    static const float logp[] = {-0.5f, -1.25f};
    static const uint8_t bits[2][2] = {{0x40, 0x01}, {0x00, 0x40}};
    const struct kg_traj_step steps[] = {
        {6, -0.5f, first, logp, .kept = {bits[0], 2, 2, 16}},
        {14, -1.25f, second, logp, .cut = 0},
        {2, -3, second, logp, .kept = {bits[1], 2, 1, 16}},
    };
    const int32_t prompt = 5;
    *t = (struct kg_traj){.top_k = 2, .finish = KG_FINISH_STOP};
    need(kg_traj_append(t, &prompt, 1, KG_SOURCE_PROMPT, &err));
    for (int i = 0; i < 3; i++)
        need(kg_traj_push(t, &steps[i], &err));
}

/* For each token, the sampled one comes first, then the likeliest others; the sampling
 * mask lists what truncation kept. */
static void answers_in_ids_have_the_shape_of_vllm(void **state)
{
    struct kg_traj t;
    struct kg_api_model m = model();
    struct kg_api_answer a = {.r = &r, .m = &m, .id = "id", .created = 7, .seed = 9};
    struct kg_api_usage usage = {1, 3};
    struct kg_str out = {0};
    (void)state;
    need(encode(KG_API_GENERATE, "{\"token_ids\":[5],\"request_id\":\"a\\\"b\","
                                 "\"return_token_ids\":true,\"sampling_params\":"
                                 "{\"logprobs\":2}}"));
    make_truncated(&t);
    struct kg_api_choice c = {.t = &t, .from = 1, .to = 4, .finish = KG_FINISH_STOP};
    need(kg_api_put_begin(&out, &a, false, true, &err));
    need(kg_api_put_choice(&out, &a, false, &c, &err));
    need(kg_api_put_end(&out, &a, false, &usage, &err));
    assert_string_equal(out.data, IDS_WHOLE);
    kg_str_clear(&out);
    c = (struct kg_api_choice){.index = 3, .t = &t, .from = 2, .to = 3};
    need(kg_api_put_choice(&out, &a, true, &c, &err));
    assert_string_equal(out.data, IDS_PIECE);
    t.logp[2] = -1.0f / 0.0f; /* refused: a client might train on a made-up number */
    assert_int_equal(kg_api_put_choice(&out, &a, false, &c, &err), KG_ENONFINITE);
    kg_str_release(&out);
    kg_traj_release(&t);
}

/* The prompt is a token without text, then "12"; the completion is "," or empty (n 0). */
static void echo_is(const char *body, size_t n, const char *expected)
{
    int32_t ids[] = {5, 5, 6}, top_ids[] = {-1, 7, 6};
    float logp[] = {0, -0.25f, -2}, top_logp[] = {0, -0.25f, -0.125f};
    const int32_t top = 8;
    const float top_answer = -0.5f;
    struct kg_api_model m = model();
    struct kg_api_answer a = {.r = &r, .m = &m, .id = "id"};
    struct kg_traj t = {.top_k = 1, .finish = KG_FINISH_LENGTH};
    struct kg_traj_step step = {
        .token = 14, .logp = -1.5f, .top_ids = &top, .top_logp = &top_answer};
    struct kg_api_prompt prompt = {.added = 1, .scores = {logp, top_ids, top_logp}};
    struct kg_api_offset offset = {.characters = 2};
    struct kg_str out = {0};
    need(parse(KG_API_COMPLETION, body));
    need(kg_traj_append(&t, ids, 3, KG_SOURCE_PROMPT, &err));
    if (n > 0)
        need(kg_traj_push(&t, &step, &err));
    struct kg_api_choice c = {.first = true,
                              .offset = &offset,
                              .text = "12,",
                              .text_n = 2 + n,
                              .t = &t,
                              .from = 3,
                              .to = 3 + n,
                              .prompt = &prompt,
                              .finish = KG_FINISH_LENGTH};
    need(kg_api_put_choice(&out, &a, false, &c, &err));
    assert_string_equal(out.data, expected);
    kg_str_release(&out);
    kg_traj_release(&t);
}

static void an_echoed_prompt_is_listed_before_the_answer(void **state)
{
    (void)state;
    echo_is("{\"prompt\":\"12\",\"echo\":true,\"logprobs\":1,\"return_token_ids\":true}",
            1,
            "{\"index\": 0, \"text\": \"12,\", \"logprobs\": {\"tokens\": [\"1\", \"1\", "
            "\"2\", \",\"], \"token_logprobs\": [null, -0.25, -2.0, -1.5], "
            "\"top_logprobs\": [null, {\"3\": -0.25, \"1\": -0.25}, {\"2\": -0.125}, "
            "{\"4\": -0.5, \",\": -1.5}], \"text_offset\": [0, 0, 1, 2]}, "
            "\"finish_reason\": \"length\", \"prompt_token_ids\": [5,5,6], "
            "\"token_ids\": [14]}");
    echo_is("{\"prompt\":\"12\",\"echo\":true,\"logprobs\":1,\"max_tokens\":0}", 0,
            "{\"index\": 0, \"text\": \"12\", \"logprobs\": {\"tokens\": [\"1\", \"1\", "
            "\"2\"], \"token_logprobs\": [null, -0.25, -2.0], \"top_logprobs\": [null, "
            "{\"3\": -0.25, \"1\": -0.25}, {\"2\": -0.125}], \"text_offset\": [0, 0, "
            "1]}, \"finish_reason\": \"length\"}");
}

/* An end token has a name in the log-probs and no bytes in the text. */
static void special_tokens_take_no_place_in_a_text(void **state)
{
    struct kg_tokenizer *small;
    need(kg_tokenizer_open(&small, "tests/data/tokenizer/small", &err));
    const int32_t end = kg_tokenizer_find(small, "<|im_end|>");
    const int32_t ids[] = {65, end, 66, 67, end}; /* A, then B and C */
    struct kg_api_model m = {.name = "small", .tok = small};
    struct kg_api_answer a = {.r = &r, .m = &m, .id = "id"};
    struct kg_traj t = {.finish = KG_FINISH_STOP};
    struct kg_api_offset offset = {0};
    struct kg_str out = {0};
    (void)state;
    need(parse(KG_API_COMPLETION, "{\"prompt\":\"1\",\"logprobs\":0}"));
    need(kg_traj_append(&t, ids, 1, KG_SOURCE_PROMPT, &err));
    for (size_t i = 1; i < sizeof ids / sizeof *ids; i++)
        need(kg_traj_push(&t, &(struct kg_traj_step){.token = ids[i]}, &err));
    struct kg_api_choice c = {.first = true,
                              .offset = &offset,
                              .text = "BC",
                              .text_n = 2,
                              .t = &t,
                              .from = 1,
                              .to = t.n,
                              .finish = KG_FINISH_STOP};
    need(kg_api_put_choice(&out, &a, false, &c, &err));
    assert_non_null(strstr(kg_str_text(&out), "\"<|im_end|>\", \"B\", \"C\""));
    assert_non_null(strstr(kg_str_text(&out), "\"text_offset\": [0, 0, 1, 2]"));
    kg_tokenizer_close(small);
    kg_str_release(&out);
    kg_traj_release(&t);
}

static void calls_are(const char *text, enum kg_finish finish, bool piece,
                      const char *expected)
{
    struct kg_api_model m = model();
    struct kg_api_answer a = {.r = &r, .m = &m, .id = "id"};
    struct kg_traj t = {.finish = finish};
    struct kg_api_offset offset = {0};
    struct kg_tool_calls calls = {0};
    struct kg_str out = {0};
    need(parse(KG_API_CHAT, "{\"messages\":[{}]}"));
    need(kg_tool_calls_end(&calls, text, strlen(text), &err));
    struct kg_api_choice c = {.index = 2,
                              .offset = &offset,
                              .text = text,
                              .text_n = calls.content_n,
                              .t = &t,
                              .calls = &calls,
                              .finish = finish};
    need(kg_api_put_choice(&out, &a, piece, &c, &err));
    assert_string_equal(out.data, expected);
    kg_tool_calls_release(&calls);
    kg_str_release(&out);
}

static void calls_have_the_shape_of_the_api(void **state)
{
    static const char two[] =
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x\"}}</tool_call>\n"
        "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";
    (void)state;
    calls_are(
        two, KG_FINISH_STOP, false,
        "{\"index\": 2, \"message\": {\"role\": \"assistant\", \"content\": null, "
        "\"tool_calls\": [{\"id\": \"call_id-2-0\", \"type\": \"function\", "
        "\"function\": {\"name\": \"f\", \"arguments\": "
        "\"{\\\"a\\\":\\\"x\\\"}\"}}, {\"id\": \"call_id-2-1\", \"type\": "
        "\"function\", \"function\": {\"name\": \"g\", \"arguments\": \"{}\"}}], "
        "\"refusal\": null}, \"logprobs\": null, \"finish_reason\": \"tool_calls\"}");
    calls_are(strchr(two, '\n') + 1, KG_FINISH_NONE, true,
              "{\"index\": 2, \"delta\": {\"tool_calls\": [{\"index\": 0, \"id\": "
              "\"call_id-2-0\", \"type\": \"function\", \"function\": {\"name\": \"g\", "
              "\"arguments\": \"{}\"}}]}, \"logprobs\": null, \"finish_reason\": null}");
    calls_are(strchr(two, '\n') + 1, KG_FINISH_LENGTH, true,
              "{\"index\": 2, \"delta\": {}, \"logprobs\": null, \"finish_reason\": "
              "\"tool_calls\"}"); /* the answer was not cut off */
}

static void scores_are_wanted_for_echo_with_logprobs(void **state)
{
    (void)state;
    need(encode(KG_API_COMPLETION, "{\"prompt\":[\"1\",\"12,\"],\"echo\":true,"
                                   "\"logprobs\":3,\"max_tokens\":0}"));
    assert_int_equal(r.max_tokens, 0);
    assert_non_null(r.prompts[1].scores.logp);
    assert_non_null(r.prompts[1].scores.top_ids);
    assert_int_equal(r.prompts[1].added, 0);
    need(encode(KG_API_COMPLETION, "{\"prompt\":\"1\",\"echo\":true,\"logprobs\":0}"));
    assert_non_null(r.prompts[0].scores.logp);
    assert_null(r.prompts[0].scores.top_ids);
    need(encode(KG_API_COMPLETION, "{\"prompt\":\"1\",\"echo\":true}"));
    assert_null(r.prompts[0].scores.logp);
    need(encode(KG_API_COMPLETION, "{\"prompt\":\"1\",\"logprobs\":2}"));
    assert_null(r.prompts[0].scores.logp);
    struct kg_api_model ids_only = {.name = "ids", .vocab = 16, .max_len = 64};
    need(parse(KG_API_COMPLETION, "{\"prompt\":[1,2],\"echo\":true,\"logprobs\":0}"));
    need(kg_api_encode(&r, &fault, &ids_only, &err));
    assert_non_null(r.prompts[0].scores.logp);
    need(parse(KG_API_DETOKENIZE, "{\"tokens\":[1,2]}"));
    refused(kg_api_encode(&r, &fault, &ids_only, &err), "tokens", "no tokenizer");
}

static kg_status list_prompt(int tokens, int n, int top, bool stream)
{
    struct kg_api_model m = {.name = "ids", .vocab = 16, .max_len = 1 << 17};
    struct kg_str body = {0};
    need(kg_str_printf(&body, &err,
                       "{\"echo\":true,\"max_tokens\":0,\"n\":%d,\"logprobs\":%d,"
                       "\"stream\":%s,\"prompt\":[1",
                       n, top, stream ? "true" : "false"));
    for (int i = 1; i < tokens; i++)
        need(kg_str_puts(&body, ",1", &err));
    need(kg_str_puts(&body, "]}", &err));
    need(parse(KG_API_COMPLETION, kg_str_text(&body)));
    kg_str_release(&body);
    return kg_api_encode(&r, &fault, &m, &err);
}

static void what_is_listed_of_prompts_has_a_bound(void **state)
{
    (void)state;
    assert_int_equal(KG_API_MAX_LISTED, 128 * 4096 * 2);
    need(list_prompt(4096, 128, 1, false));
    refused(list_prompt(4097, 128, 1, false), "logprobs", "at most 1048576 log-probs");
    refused(list_prompt(4096, 128, 2, false), "logprobs", "found 1572864");
    need(list_prompt(4096, 12, 20, false));
    need(list_prompt(4096, 2, 1, true));
    refused(list_prompt(4096, 3, 1, true), "logprobs", "at most 16384 log-probs");
}

static void tokens_are(enum kg_api_kind kind, const char *body, const char *expected)
{
    struct kg_api_model m = model();
    struct kg_str out = {0};
    need(encode(kind, body));
    need(kg_api_put_tokens(&out, &r, &m, &err));
    assert_string_equal(kg_str_text(&out), expected);
    kg_str_release(&out);
}

/* As data.system and data.opening do in training. A system prompt in the messages is
 * kept. */
static void a_conversation_gets_system_prompt_and_opening(void **state)
{
    static const char turns[] = "{% for m in messages %}{{ m.content }},{% endfor %}";
    static const char *const bodies[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"2\"}]}",
        "{\"messages\":[{\"role\":\"system\",\"content\":\"1\"},{\"role\":\"user\","
        "\"content\":\"2\"}]}"};
    static const int32_t ids[] = {5, 14, 6, 14, 5}; /* 1,2,1 */
    struct kg_api_model m = model();
    struct kg_chat_template *own;
    (void)state;
    need(kg_chat_template_parse(&own, turns, sizeof turns - 1, "t", &err));
    m.chat = own;
    m.opening = "1";
    for (int i = 0; i < 2; i++) {
        m.system = i ? "9" : "1";
        need(parse(KG_API_CHAT, bodies[i]));
        need(kg_api_encode(&r, &fault, &m, &err));
        assert_int_equal(r.prompts[0].ids.n, 5);
        assert_memory_equal(r.prompts[0].ids.ids, ids, sizeof ids);
    }
    kg_chat_template_close(own);
}

static void text_becomes_ids_and_ids_text(void **state)
{
    static const char ids[] = "{\"count\": 3, \"max_model_len\": 64, \"tokens\": "
                              "[5,6,14], \"token_strs\": null}";
    (void)state;
    tokens_are(KG_API_TOKENIZE, "{\"prompt\":\"12,\",\"add_special_tokens\":false}", ids);
    tokens_are(KG_API_TOKENIZE,
               "{\"messages\":[{\"role\":\"user\",\"content\":\"12,\"}],\"model\":"
               "\"digits\",\"add_generation_prompt\":true}",
               ids);
    tokens_are(
        KG_API_TOKENIZE, "{\"prompt\":\"\"}",
        "{\"count\": 0, \"max_model_len\": 64, \"tokens\": [], \"token_strs\": null}");
    tokens_are(KG_API_DETOKENIZE, "{\"tokens\":[5,6,14]}", "{\"prompt\": \"12,\"}");
    tokens_are(KG_API_DETOKENIZE, "{\"tokens\":[]}", "{\"prompt\": \"\"}");
    refused(encode(KG_API_DETOKENIZE, "{\"tokens\":[16]}"), "tokens", "from 0 to 15");
    refused(encode(KG_API_DETOKENIZE, "{\"tokens\":[[1]]}"), "tokens", "token 0");
}

/* The offset of each byte is the same whether the text comes as one token or byte by
 * byte. */
static void offset_is(const char *text, const char *expected)
{
    struct kg_api_offset whole = {0};
    struct kg_api_offset bytes = {0};
    char found[64] = "";
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        kg_api_offset_add(&bytes, text + i, 1);
        snprintf(found + strlen(found), 4, "%zu ", bytes.characters);
    }
    kg_api_offset_add(&whole, text, n);
    assert_string_equal(found, expected);
    assert_int_equal(whole.characters, bytes.characters);
}

static void a_character_counts_when_it_is_complete(void **state)
{
    (void)state;
    offset_is("a\303\251\342\202\254", "1 1 2 2 2 3 ");
    offset_is("\360\237\230\200x", "0 0 0 1 2 ");
    offset_is("\377\342\202", "1 1 1 "); /* the end may still become one */
    offset_is("\342\202x", "0 0 2 ");    /* cut: one U+FFFD for both bytes */
    offset_is("\342\303\251", "0 1 2 ");
    offset_is("\340\200\200", "0 0 3 ");
}

static void runs_out(enum kg_api_kind kind, const char *body)
{
    struct kg_api_model m = model();
    for (uint64_t n = 1;; n++) {
        kg_mem_fail_at(n);
        kg_status status = kg_api_parse(&r, &fault, kind, body, strlen(body), &err);
        if (status == KG_OK)
            status = kg_api_encode(&r, &fault, &m, &err);
        kg_mem_fail_at(0);
        kg_api_release(&r);
        if (status == KG_OK)
            break;
        assert_int_equal(status, KG_ENOMEM);
    }
}

static void memory_that_runs_out_is_a_status(void **state)
{
    static const char *const bodies[KG_API_KINDS] = {
        "{\"prompt\":[\"1\",\"2\"],\"echo\":true,\"logprobs\":2,\"logit_bias\":{\"1\":2},"
        "\"stop_token_ids\":[3]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
        "\"12\"}]"
        "}],\"stop\":[\"a\"],\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{"
        "\"a\":1}}",
        "{\"token_ids\":[5,6],\"sampling_params\":{\"stop_token_ids\":[3],\"logprobs\":2}"
        "}",
        "{\"prompt\":\"12,\"}", "{\"tokens\":[5,6]}"};
    (void)state;
    for (int kind = 0; kind < KG_API_KINDS; kind++)
        runs_out(kind, bodies[kind]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(prompts_become_tokens, release),
        cmocka_unit_test_teardown(tools_go_to_the_template, release),
        cmocka_unit_test_teardown(messages_come_as_clients_send_them, release),
        cmocka_unit_test_teardown(the_day_is_the_servers, release),
        cmocka_unit_test_teardown(max_tokens_has_a_default, release),
        cmocka_unit_test_teardown(content_may_come_in_parts, release),
        cmocka_unit_test_teardown(what_the_template_leaves_out_is_refused, release),
        cmocka_unit_test(a_model_is_found_by_its_name),
        cmocka_unit_test_teardown(what_does_not_fit_the_model_is_refused, release),
        cmocka_unit_test_teardown(answers_have_the_shapes_of_the_api, release),
        cmocka_unit_test_teardown(answers_in_ids_have_the_shape_of_vllm, release),
        cmocka_unit_test_teardown(an_echoed_prompt_is_listed_before_the_answer, release),
        cmocka_unit_test_teardown(calls_have_the_shape_of_the_api, release),
        cmocka_unit_test_teardown(special_tokens_take_no_place_in_a_text, release),
        cmocka_unit_test_teardown(scores_are_wanted_for_echo_with_logprobs, release),
        cmocka_unit_test_teardown(what_is_listed_of_prompts_has_a_bound, release),
        cmocka_unit_test_teardown(a_conversation_gets_system_prompt_and_opening, release),
        cmocka_unit_test_teardown(text_becomes_ids_and_ids_text, release),
        cmocka_unit_test(a_character_counts_when_it_is_complete),
        cmocka_unit_test_teardown(memory_that_runs_out_is_a_status, release),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
