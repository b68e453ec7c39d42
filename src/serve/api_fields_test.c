/* Tests of request fields: what is accepted, and how the rest is refused. */
#include "serve/api_testing.h"

static void every_used_field_is_taken(void **state)
{
    (void)state;
    need(parse(
        KG_API_COMPLETION,
        "{\"model\":\"m\",\"prompt\":[1,2],\"max_tokens\":3,\"temperature\":0.5,"
        "\"top_p\":0.9,\"top_k\":-1,\"min_p\":0.1,\"n\":2,\"seed\":1000000000000000000,"
        "\"stop\":[\"a\","
        "\"bc\"],\"stream\":true,\"stream_options\":{\"include_usage\":true},"
        "\"logprobs\":4,\"ignore_eos\":true,\"return_token_ids\":true,\"user\":{},"
        "\"presence_penalty\":0.0,\"suffix\":null,\"logit_bias\":{},\"best_of\":1}"));
    assert_string_equal(r.model, "m");
    assert_int_equal(r.max_tokens, 3);
    assert_true(r.sampling.temperature == 0.5 && r.sampling.top_p == 0.9f &&
                r.sampling.min_p == 0.1f && r.sampling.top_k == 0);
    assert_true(r.seeded && r.seed == 1000000000000000000u && r.n == 2);
    assert_int_equal(r.n_stops, 2);
    assert_string_equal(r.stops[1], "bc");
    assert_true(r.stream && r.include_usage && r.logprobs && r.ignore_eos && r.token_ids);
    assert_int_equal(r.top_logprobs, 4);
    need(parse(KG_API_CHAT, "{\"messages\":[{}],\"logprobs\":true,\"top_logprobs\":2,"
                            "\"max_completion_tokens\":9,\"max_tokens\":9,"
                            "\"chat_template_kwargs\":{\"enable_thinking\":false},"
                            "\"tools\":[],\"tool_choice\":\"none\","
                            "\"response_format\":{\"type\":\"text\"}}"));
    assert_int_equal(r.max_tokens, 9);
    assert_non_null(r.template_vars);
}

static void null_is_the_default(void **state)
{
    static const char *const asked[KG_API_KINDS] = {
        "\"prompt\": \"1\"", "\"messages\": [{}]", "\"token_ids\": [1]",
        "\"prompt\": \"1\"", "\"tokens\": []"};
    (void)state;
    for (const struct kg_api_field *f = kg_api_fields; f->name; f++) {
        char body[256];
        int kind = 0;
        while (kind < KG_API_KINDS && !(f->kinds & 1u << kind))
            kind++;
        bool nested = kind == KG_API_KINDS;
        kind = nested ? KG_API_GENERATE : kind;
        bool own = strncmp(asked[kind] + 1, f->name, strlen(f->name)) == 0;
        snprintf(body, sizeof body,
                 nested ? "{%s, \"sampling_params\": {\"%s\": null}}"
                        : "{%s, \"%s\": null}",
                 asked[kind], own ? "model" : f->name);
        need(parse((enum kg_api_kind)kind, body));
        assert_true(r.sampling.temperature == 1 && r.sampling.top_p == 1 && r.n == 1 &&
                    !r.seeded);
    }
}

static const struct bad {
    enum kg_api_kind kind;
    const char *body, *param, *part;
} bads[] = {
    {KG_API_COMPLETION, "", NULL, "the body"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\"", NULL, "column 13"},
    {KG_API_COMPLETION, "{\"prompt\":\"\377\"}", NULL, "the body"},
    {KG_API_COMPLETION, "[1]", NULL, "expected a JSON object, found array"},
    {KG_API_COMPLETION, "{}", "prompt", "expected the field"},
    {KG_API_COMPLETION, "{\"a\\\"b\":1}", "a\"b",
     "Unrecognized request argument supplied: a\"b"},
    {KG_API_CHAT, "{}", "messages", "expected the field"},
    {KG_API_TOKENIZE, "{}", "prompt", "expected the field"},
    {KG_API_TOKENIZE, "{\"prompt\":\"1\",\"messages\":[{}]}", "messages", "found both"},
    {KG_API_TOKENIZE, "{\"prompt\":[1]}", "prompt", "a string"},
    {KG_API_TOKENIZE, "{\"prompt\":\"1\",\"max_tokens\":1}", "max_tokens",
     "Unrecognized request argument supplied: max_tokens (it belongs"},
    {KG_API_TOKENIZE, "{\"prompt\":\"1\",\"return_token_strs\":true}",
     "return_token_strs", "not supported"},
    {KG_API_TOKENIZE, "{\"prompt\":\"1\",\"add_special_tokens\":1}", "add_special_tokens",
     "true or false"},
    {KG_API_TOKENIZE, "{\"prompt\":\"1\",\"tools\":[]}", "tools",
     "expected messages with it"},
    {KG_API_TOKENIZE, "{\"tool_choice\":\"none\",\"prompt\":\"1\"}", "tool_choice",
     "expected messages with it"},
    {KG_API_TOKENIZE, "{\"prompt\":\"1\",\"chat_template_kwargs\":{}}",
     "chat_template_kwargs", "expected messages with it"},
    {KG_API_DETOKENIZE, "{}", "tokens", "expected the field"},
    {KG_API_DETOKENIZE, "{\"tokens\":\"1\"}", "tokens", "an array of token ids"},
    {KG_API_DETOKENIZE, "{\"prompt\":\"1\"}", "prompt", "supplied: prompt (it"},
    {KG_API_CHAT, "{\"messages\":[]}", "messages", "at least one message"},
    {KG_API_CHAT, "{\"messages\":\"hi\"}", "messages", "found string"},
    {KG_API_CHAT, "{\"messages\":[{}],\"prompt\":\"x\"}", "prompt", "Unrecognized"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"colour\":1}", "colour",
     "Unrecognized request argument supplied: colour"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"messages\":[]}", "messages", "Unrecognized"},
    {KG_API_COMPLETION, "{\"prompt\":1}", "prompt", "found integer 1"},
    {KG_API_COMPLETION, "{\"prompt\":[]}", "prompt", "non-empty array"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"model\":3}", "model", "a string"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"temperature\":\"1\"}", "temperature",
     "found string \"1\""},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"temperature\":-1}", "temperature", "from 0"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"top_p\":0}", "top_p", "from 1e-09 to 1"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"top_p\":1.5}", "top_p", "from 1e-09 to 1"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"n\":0}", "n", "from 1 to 128"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"n\":1.0}", "n", "found"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"max_tokens\":0}", "max_tokens", "from 1"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"seed\":\"x\"}", "seed", "an integer"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"seed\":-1}", "seed",
     "an integer from 0 to 1000000000000000000, found integer -1"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"seed\":1000000000000000001}", "seed",
     "found integer 1000000000000000001"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"seed\":1e18}", "seed", "found number"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"stream\":1}", "stream", "true or false"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"stop\":\"\"}", "stop", "stop string"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"stop\":[1]}", "stop", "found integer"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"stop\":\"a\\u0000b\"}", "stop", "NUL"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"logprobs\":true}", "logprobs", "0 to 20"},
    {KG_API_CHAT, "{\"messages\":[{}],\"logprobs\":1}", "logprobs", "true or false"},
    {KG_API_CHAT, "{\"messages\":[{}],\"top_logprobs\":1}", "top_logprobs", "logprobs"},
    {KG_API_CHAT, "{\"messages\":[{}],\"max_tokens\":1,\"max_completion_tokens\":2}",
     "max_completion_tokens", "differ"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"stream_options\":{}, \"n\": {}}", "n", ""},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"stream_options\":{\"include_usage\":true}}",
     "stream_options", "stream to be true"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"stream_options\":{\"x\":true}}",
     "stream_options", "'x'"},
    {KG_API_CHAT, "{\"messages\":[{}],\"max_tokens\":0}", "max_tokens", "from 1"},
    {KG_API_CHAT, "{\"messages\":[{}],\"echo\":true}", "echo", "Unrecognized"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"repetition_penalty\":0}",
     "repetition_penalty", "from 0.0001 to 10000"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"repetition_penalty\":-1.5}",
     "repetition_penalty", "found number -1.5"},
    {KG_API_CHAT, "{\"messages\":[{}],\"repetition_penalty\":\"1\"}",
     "repetition_penalty", "found string"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"frequency_penalty\":2.5}",
     "frequency_penalty", "from -2 to 2"},
    {KG_API_CHAT, "{\"messages\":[{}],\"presence_penalty\":\"x\"}", "presence_penalty",
     "from -2 to 2"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"logit_bias\":{\"1\":101}}", "logit_bias",
     "'1': expected a number from -100 to 100"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"logit_bias\":[1]}", "logit_bias",
     "an object of ids"},
    {KG_API_CHAT, "{\"messages\":[{}],\"tools\":[{}]}", "tools", "tool 0: expected"},
    {KG_API_CHAT,
     "{\"messages\":[{}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
     "\"a\\u0000b\"}}]}",
     "tools", "tool 0: expected"},
    {KG_API_CHAT, "{\"messages\":[{}],\"tools\":{}}", "tools", "an array of tools"},
    {KG_API_CHAT, "{\"messages\":[{}],\"tool_choice\":\"required\"}", "tool_choice",
     "only \"none\" or \"auto\" can be given, found required"},
    {KG_API_CHAT, "{\"messages\":[{}],\"tool_choice\":{\"type\":\"function\"}}",
     "tool_choice", "found object"},
    {KG_API_CHAT,
     "{\"messages\":[{}],\"parallel_tool_calls\":false,\"tools\":[{\"type\":\"function\","
     "\"function\":{\"name\":\"f\"}}]}",
     "parallel_tool_calls", "not supported"},
    {KG_API_CHAT, "{\"messages\":[{}],\"functions\":[{}]}", "functions", "not supported"},
    {KG_API_CHAT, "{\"messages\":[{}],\"response_format\":{\"type\":\"json_object\"}}",
     "response_format",
     "only {\"type\":\"text\"} can be given, found {\"type\":\"json_object\"}; "
     "constrained answers are not supported"},
    {KG_API_COMPLETION,
     "{\"prompt\":\"1\",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{"
     "\"name\":\"x\",\"schema\":{\"type\":\"object\"},\"strict\":true}}}",
     "response_format", "not supported: describe the form in the prompt"},
    {KG_API_CHAT, "{\"messages\":[{}],\"response_format\":{\"type\":\"structural_tag\"}}",
     "response_format", "constrained answers are not"},
    {KG_API_CHAT, "{\"messages\":[{}],\"structured_outputs\":{\"json\":{}}}",
     "structured_outputs",
     "only null can be given, found {\"json\":{}}; constrained answers"},
    {KG_API_CHAT, "{\"messages\":[{}],\"guided_json\":{\"type\":\"object\"}}",
     "guided_json", "constrained answers are not"},
    {KG_API_CHAT, "{\"messages\":[{}],\"guided_choice\":[\"yes\",\"no\"]}",
     "guided_choice", "constrained answers are not"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"guided_regex\":\"[0-9]+\"}", "guided_regex",
     "constrained answers are not"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"guided_grammar\":\"null\"}",
     "guided_grammar", "constrained answers are not"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"grammar\":\"root ::= x\"}", "grammar",
     "constrained answers are not"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"json_schema\":\"{}\"}", "json_schema",
     "constrained answers are not"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"regex\":\"a+\"}", "regex",
     "constrained answers are not"},
    {KG_API_CHAT, "{\"messages\":[{}],\"min_tokens\":4}", "min_tokens", "only 0"},
    {KG_API_CHAT, "{\"messages\":[{}],\"include_reasoning\":false}", "include_reasoning",
     "only true can be given, found false; reasoning is part"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"prompt_logprobs\":0}", "prompt_logprobs",
     "only null can be given, found 0; use echo"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"stop_token_ids\":5}", "stop_token_ids",
     "an array of token ids, found integer 5"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"stop_token_ids\":[1,\"2\"]}",
     "stop_token_ids", "a token id, found string \"2\""},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"stop_token_ids\":[1.0]}", "stop_token_ids",
     "a token id, found number"},
    {KG_API_CHAT, "{\"messages\":[{}],\"return_tokens_as_token_ids\":1}",
     "return_tokens_as_token_ids", "true or false"},
    {KG_API_CHAT,
     "{\"messages\":[{}],\"return_token_ids\":true,\"logprobs\":true,"
     "\"repetition_penalty\":1.1}",
     "repetition_penalty", "together with return_token_ids and logprobs"},
    {KG_API_CHAT,
     "{\"messages\":[{}],\"return_token_ids\":true,\"logprobs\":true,"
     "\"presence_penalty\":1.5}",
     "presence_penalty", "not be sampled from the listed log-probs"},
    {KG_API_COMPLETION,
     "{\"prompt\":\"1\",\"return_token_ids\":true,\"logprobs\":0,"
     "\"frequency_penalty\":-1}",
     "frequency_penalty", "leave one of them out"},
    {KG_API_COMPLETION,
     "{\"prompt\":\"1\",\"return_token_ids\":true,\"logprobs\":0,"
     "\"logit_bias\":{\"1\":1}}",
     "logit_bias", "leave one of them out"},
    {KG_API_CHAT, "{\"messages\":[{}],\"chat_template_kwargs\":{\"messages\":1}}",
     "chat_template_kwargs", "'messages'"},
    {KG_API_CHAT, "{\"messages\":[{},{\"role\":\"user\",\"contents\":\"1\"}]}",
     "messages", "messages: message 1: unknown field 'contents'"},
    {KG_API_CHAT, "{\"messages\":[{\"refusal\":\"no\"}]}", "messages",
     "message 0: refusal: not supported: only null can be given, found string"},
    {KG_API_CHAT, "{\"messages\":[{\"audio\":{\"id\":\"x\"}}]}", "messages",
     "audio: not"},
    {KG_API_CHAT, "{\"messages\":[{\"function_call\":{}}]}", "messages",
     "function_call: "},
    {KG_API_CHAT,
     "{\"messages\":[{\"content\":[{\"type\":\"text\",\"text\":\"1\",\"lang\":\"de\"}]}]"
     "}",
     "messages", "message 0: content: unknown field 'lang'"},
    {KG_API_CHAT, "{\"messages\":[{}],\"reasoning_effort\":\"loud\"}", "reasoning_effort",
     "or xhigh or max, found string \"loud\""},
    {KG_API_CHAT, "{\"messages\":[{}],\"reasoning_effort\":\"\"}", "reasoning_effort",
     "found string \"\""},
    {KG_API_CHAT, "{\"messages\":[{}],\"reasoning_effort\":\"low or medium\"}",
     "reasoning_effort", "found string \"low or medium\""},
    {KG_API_CHAT, "{\"messages\":[{}],\"reasoning_effort\":\"lo\"}", "reasoning_effort",
     "found string \"lo\""},
    {KG_API_CHAT, "{\"messages\":[{}],\"reasoning_effort\":2}", "reasoning_effort",
     "none or minimal or low"},
    {KG_API_CHAT, "{\"messages\":[{}],\"verbosity\":\"none\"}", "verbosity",
     "low or medium or high"},
    {KG_API_GENERATE, "{}", "token_ids", "expected the field 'token_ids'"},
    {KG_API_GENERATE, "{\"token_ids\":\"1\"}", "token_ids", "an array of token ids"},
    {KG_API_GENERATE, "{\"prompt\":\"1\"}", "prompt", "Unrecognized"},
    {KG_API_GENERATE, "{\"token_ids\":[1],\"temperature\":1}", "temperature",
     "it belongs to another kind of request"},
    {KG_API_GENERATE, "{\"token_ids\":[1],\"sampling_params\":[]}", "sampling_params",
     "expected an object"},
    {KG_API_GENERATE, "{\"token_ids\":[1],\"sampling_params\":{\"colour\":1}}", "colour",
     "Unrecognized request argument supplied: colour"},
    {KG_API_GENERATE, "{\"token_ids\":[1],\"sampling_params\":{\"stream\":true}}",
     "stream", "it belongs to another kind of request"},
    {KG_API_GENERATE, "{\"token_ids\":[1],\"sampling_params\":{\"temperature\":-1}}",
     "temperature", "from 0"},
    {KG_API_GENERATE, "{\"token_ids\":[1],\"sampling_params\":{\"max_tokens\":0}}",
     "max_tokens", "an integer from 1"},
    {KG_API_GENERATE, "{\"token_ids\":[1],\"sampling_params\":{\"logprobs\":true}}",
     "logprobs", "from 0 to 20"},
    {KG_API_GENERATE, "{\"token_ids\":[1],\"sampling_params\":{\"prompt_logprobs\":21}}",
     "prompt_logprobs", "from 0 to 20"},
    {KG_API_GENERATE,
     "{\"token_ids\":[1],\"stream\":true,\"sampling_params\":{\"prompt_logprobs\":0}}",
     "prompt_logprobs", "not supported in a stream"},
    {KG_API_GENERATE,
     "{\"token_ids\":[1],\"sampling_params\":{\"logprobs\":1,\"repetition_penalty\":1.2}"
     "}",
     "repetition_penalty", "not supported together with logprobs"},
    {KG_API_GENERATE,
     "{\"token_ids\":[1],\"sampling_params\":{\"logprobs\":0,\"logit_bias\":{\"1\":2}}}",
     "logit_bias", "not be sampled from the listed log-probs"},
    {KG_API_GENERATE, "{\"token_ids\":[1],\"output_mode\":\"logits\"}", "output_mode",
     "expected tokens or text, found string \"logits\""},
    {KG_API_GENERATE, "{\"token_ids\":[1],\"output_mode\":[\"text\"]}", "output_mode",
     "expected tokens or text, found array"},
    {KG_API_GENERATE,
     "{\"token_ids\":[1],\"output_mode\":\"text\",\"sampling_params\":{\"detokenize\":"
     "false}}",
     "detokenize", "expected true together with output_mode \"text\""},
    {KG_API_GENERATE,
     "{\"token_ids\":[1],\"output_mode\":\"text\",\"sampling_params\":{"
     "\"include_stop_str_in_output\":true}}",
     "include_stop_str_in_output", "expected false together"},
    {KG_API_GENERATE,
     "{\"token_ids\":[1],\"output_mode\":\"text\",\"sampling_params\":{"
     "\"spaces_between_special_tokens\":false}}",
     "spaces_between_special_tokens", "expected true together"},
    {KG_API_GENERATE, "{\"token_ids\":[1],\"content_parts\":[{\"type\":\"image_url\"}]}",
     "content_parts", "prompts are ids alone"},
    {KG_API_GENERATE, "{\"token_ids\":[1],\"features\":{}}", "features", "ids alone"},
    {KG_API_GENERATE, "{\"token_ids\":[1],\"request_id\":7}", "request_id", "a string"},
    {KG_API_GENERATE, "{\"token_ids\":[1],\"stream_options\":{\"include_usage\":true}}",
     "stream_options", "stream to be true"},
    {KG_API_COMPLETION, "{\"prompt\":\"1\",\"reasoning_effort\":\"low\"}",
     "reasoning_effort", "it belongs to another kind of request"},
    {KG_API_TOKENIZE, "{\"prompt\":\"1\",\"verbosity\":\"low\"}", "verbosity",
     "expected messages with it"},
};

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        refused(parse(bads[i].kind, bads[i].body), bads[i].param, bads[i].part);
        assert_int_equal(fault.status, 400);
    }
}

/* Accepted and ignored: fields that cannot change an answer, or that request what happens
 * anyway. */
static void hints_of_clients_are_passed_over(void **state)
{
    static const char *const hints[] = {
        "\"session_id\":\"a-1\"",
        "\"session_id\":\"a b\"",
        "\"cache_salt\":\"x\"",
        "\"priority\":-3",
        "\"priority\":9",
        "\"request_id\":\"r\"",
        "\"prompt_cache_options\":{\"mode\":\"implicit\"}",
        "\"user\":\"u\",\"metadata\":{\"a\":\"b\"}",
        "\"session_id\":\"a\",\"cache_salt\":\"b\",\"priority\":0,\"request_id\":\"c\"",
        "\"repetition_penalty\":1.0,\"presence_penalty\":0,\"frequency_penalty\":0.0,"
        "\"top_k\":-1,\"min_p\":0,\"top_p\":1",
        "\"min_tokens\":0,\"length_penalty\":1.0,\"bad_words\":[],\"stop_token_ids\":[],"
        "\"include_stop_str_in_output\":false,\"structured_outputs\":null",
        "\"return_tokens_as_token_ids\":null,\"response_format\":{\"type\":\"text\"}",
    };
    (void)state;
    for (size_t i = 0; i < 2 * (sizeof hints / sizeof *hints); i++) {
        char body[512];
        snprintf(body, sizeof body, "{%s,%s}",
                 i % 2 ? "\"messages\":[{}]" : "\"prompt\":\"1\"", hints[i / 2]);
        need(parse(i % 2 ? KG_API_CHAT : KG_API_COMPLETION, body));
        assert_true(r.sampling.temperature == 1 && r.repetition == 1 && r.presence == 0);
        assert_true(r.sampling.top_k == 0 && r.n_bias == 0 && !r.ids_for_names &&
                    !r.stream);
    }
}

/* Every field of vLLM's schema that clients send. */
static void a_request_in_ids_is_read(void **state)
{
    (void)state;
    need(encode(
        KG_API_GENERATE,
        "{\"model\":\"digits\",\"token_ids\":[5,6,14],\"cache_salt\":\"s\",\"priority\":"
        "0,"
        "\"request_id\":\"r-1\",\"stream\":false,\"return_token_ids\":true,"
        "\"output_mode\":\"tokens\",\"content_parts\":null,\"features\":null,"
        "\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"reasoning_ended\":"
        "null,"
        "\"sampling_params\":{\"temperature\":0.5,\"top_p\":0.9,\"top_k\":-1,\"min_p\":0,"
        "\"max_tokens\":7,\"seed\":7,\"n\":2,\"stop_token_ids\":[15,1],\"logprobs\":3,"
        "\"skip_special_tokens\":false,\"routed_experts_prompt_start\":2,"
        "\"repetition_penalty\":1.0,\"presence_penalty\":0,\"reasoning_effort\":\"low\","
        "\"detokenize\":false,\"min_tokens\":0,\"bad_words\":[],\"stop\":\"9\"}}"));
    assert_string_equal(r.id, "r-1");
    assert_int_equal(r.n_prompts, 1);
    assert_int_equal(r.prompts[0].ids.n, 3);
    assert_true(r.sampling.temperature == 0.5 && r.sampling.top_p == 0.9f &&
                r.sampling.top_k == 0 && r.n == 2);
    assert_true(r.max_tokens == 7 && r.seeded && r.seed == 7 && r.token_ids);
    assert_true(r.logprobs && r.top_logprobs == 3);
    assert_int_equal(r.n_stop_ids, 2);
    assert_string_equal(r.stops[0], "9");
    need(encode(KG_API_GENERATE,
                "{\"token_ids\":[5],\"sampling_params\":{\"logprobs\":1}}"));
    assert_true(r.logprobs && r.top_logprobs == 0);
    assert_int_equal(r.max_tokens, 63); /* the rest of the context, not 16 */
    need(encode(KG_API_GENERATE, "{\"token_ids\":[5]}"));
    assert_true(!r.logprobs && r.id == NULL);
    refused(encode(KG_API_GENERATE, "{\"token_ids\":[]}"), "token_ids", "at least one");
    refused(encode(KG_API_GENERATE, "{\"token_ids\":[-1]}"), "token_ids", "found -1");
    refused(encode(KG_API_GENERATE, "{\"token_ids\":[16]}"), "token_ids", "from 0 to 15");
    refused(encode(KG_API_GENERATE, "{\"token_ids\":[[1]]}"), "token_ids", "token 0");
    refused(encode(KG_API_GENERATE,
                   "{\"token_ids\":[1,2],\"sampling_params\":{\"max_tokens\":63}}"),
            "token_ids", "maximum context length is 64 tokens");
    assert_string_equal(fault.code, "context_length_exceeded");
}

static void stop_ids_are_read(void **state)
{
    (void)state;
    need(encode(KG_API_COMPLETION, "{\"prompt\":\"1\",\"stop_token_ids\":[15,0,3]}"));
    assert_int_equal(r.n_stop_ids, 3);
    assert_true(r.stop_ids[0] == 15 && r.stop_ids[1] == 0 && r.stop_ids[2] == 3);
    need(encode(KG_API_COMPLETION, "{\"prompt\":\"1\",\"stop_token_ids\":[]}"));
    assert_int_equal(r.n_stop_ids, 0);
    refused(encode(KG_API_COMPLETION, "{\"prompt\":\"1\",\"stop_token_ids\":[2,16]}"),
            "stop_token_ids", "expected ids from 0 to 15, found 16");
    refused(encode(KG_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"1\"}],"
                                "\"stop_token_ids\":[-1]}"),
            "stop_token_ids", "found -1");
}

static void what_is_added_to_logits_is_read(void **state)
{
    (void)state;
    need(encode(KG_API_COMPLETION,
                "{\"prompt\":\"1\",\"presence_penalty\":-2,\"frequency_penalty\":0.5,"
                "\"logit_bias\":{\"0\":-100,\"15\":2.5}}"));
    assert_true(r.presence == -2 && r.frequency == 0.5);
    assert_int_equal(r.n_bias, 2);
    assert_true(r.bias_ids[0].id == 0 && r.bias_ids[0].add == -100);
    assert_true(r.bias_ids[1].id == 15 && r.bias_ids[1].add == 2.5f);
}

/* The template gets what vLLM's build_chat_params passes: the field and, unless the
 * request sets it, enable_thinking. */
static void effort_goes_to_the_template(void **state)
{
    static const struct {
        const char *body, *seen;
    } rows[] = {
        {"", "9,,"},
        {",\"reasoning_effort\":null", "9,,"},
        {",\"reasoning_effort\":\"low\"", "93,,1"},
        {",\"reasoning_effort\":\"high\"", "94,,1"},
        {",\"reasoning_effort\":\"none\"", "94,,0"},
        {",\"reasoning_effort\":\"minimal\"", "97,,1"},
        {",\"verbosity\":\"medium\"", "9,6,"},
        {",\"verbosity\":\"low\",\"reasoning_effort\":\"max\"", "93,3,1"},
        {",\"chat_template_kwargs\":{\"enable_thinking\":false}", "9,,0"},
        {",\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"enable_thinking\":"
         "false}",
         "93,,0"},
        {",\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{\"enable_thinking\":"
         "true}",
         "94,,1"},
        {",\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"reasoning_effort\":"
         "\"medium\"}",
         "93,,1"},
        {",\"chat_template_kwargs\":{\"reasoning_effort\":\"medium\"}", "96,,"},
        {",\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"verbosity\":"
         "\"high\"}",
         "93,4,1"},
    };
    (void)state;
    with_template("{{ messages[0].content }}{{ reasoning_effort | length if "
                  "reasoning_effort is defined }},{{ verbosity | length if verbosity is "
                  "defined }},{{ enable_thinking | int if enable_thinking is defined }}");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[256];
        struct kg_str text = {0};
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"9\"}]%s}",
                 rows[i].body);
        need(encode(i % 2 ? KG_API_CHAT : KG_API_TOKENIZE, body));
        need(kg_tokenizer_decode(&text, tok, r.prompts[0].ids.ids, r.prompts[0].ids.n,
                                 false, &err));
        assert_string_equal(kg_str_text(&text), rows[i].seen);
        kg_str_release(&text);
    }
    with_template(NULL);
}

/* docs/serve.md names every field. */
static void every_field_is_documented(void **state)
{
    struct kg_str page = {0};
    char name[80];
    (void)state;
    need(kg_file_read(&page, "docs/serve.md", 1 << 20, &err));
    for (const struct kg_api_field *f = kg_api_fields; f->name; f++) {
        snprintf(name, sizeof name, "`%s`", f->name);
        if (strstr(kg_str_text(&page), name) == NULL)
            fail_msg("docs/serve.md does not name the field %s", name);
    }
    kg_str_release(&page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_used_field_is_taken, release),
        cmocka_unit_test_teardown(null_is_the_default, release),
        cmocka_unit_test_teardown(what_is_wrong_is_named, release),
        cmocka_unit_test_teardown(hints_of_clients_are_passed_over, release),
        cmocka_unit_test_teardown(a_request_in_ids_is_read, release),
        cmocka_unit_test_teardown(stop_ids_are_read, release),
        cmocka_unit_test_teardown(effort_goes_to_the_template, release),
        cmocka_unit_test_teardown(what_is_added_to_logits_is_read, release),
        cmocka_unit_test(every_field_is_documented),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
