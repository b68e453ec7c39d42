/* Fuzz target: any request body is accepted, or refused with a 4xx status and a JSON
 * error. For any answer, what a stream sends before the tool calls is exactly the
 * content. */
#include "serve/api.h"

#include <stdlib.h>

int kg_fuzz_api(const uint8_t *bytes, size_t n);

static void fuzz_error(const struct kg_api_fault *fault, const char *message)
{
    struct kg_str body = {0};
    struct kg_json_doc doc = {0};
    struct kg_err err;
    if (fault->status < 400 || fault->status > 499)
        abort();
    if (kg_api_put_error(&body, fault, message, &err) != KG_OK ||
        kg_json_parse(&doc, body.data, body.len, "error", &err) != KG_OK)
        abort();
    kg_json_release(&doc);
    kg_str_release(&body);
}

static void fuzz_calls(const char *text, size_t n)
{
    struct kg_tool_calls grown = {0};
    struct kg_tool_calls whole = {0};
    struct kg_err err;
    size_t settled = 0;
    for (size_t seen = 0; seen < n; seen += 1 + n / 16) {
        if (kg_tool_calls_read(&grown, text, seen, &err) != KG_OK ||
            grown.content_n < settled || grown.content_n > seen)
            abort();
        settled = grown.content_n;
    }
    if (kg_tool_calls_end(&grown, text, n, &err) != KG_OK ||
        kg_tool_calls_end(&whole, text, n, &err) != KG_OK)
        abort();
    if (whole.content_n > n || settled > whole.content_n || whole.n != grown.n ||
        whole.content_n != grown.content_n)
        abort();
    kg_tool_calls_release(&grown);
    kg_tool_calls_release(&whole);
}

/* The first byte chooses the kind of request. */
int kg_fuzz_api(const uint8_t *bytes, size_t n)
{
    static const char words[] = "{{ messages[0].content }}{{ x }}{{ tools }}";
    const struct kg_api_model m = {.name = "m", .vocab = 16, .max_len = 64};
    struct kg_api_model with_chat = m;
    struct kg_chat_template *chat = NULL;
    struct kg_api_request r;
    struct kg_api_fault fault = {0};
    struct kg_err err;
    if (n == 0)
        return 0;
    fuzz_calls((const char *)bytes + 1, n - 1);
    if (kg_chat_template_parse(&chat, words, sizeof words - 1, "fuzz", &err) != KG_OK)
        return 0;
    with_chat.chat = chat;
    kg_status status = kg_api_parse(&r, &fault, bytes[0] % KG_API_KINDS,
                                    (const char *)bytes + 1, n - 1, &err);
    if (status == KG_OK)
        status = kg_api_encode(&r, &fault, &with_chat, &err);
    if (status == KG_OK && kg_api_is_answered(r.kind) &&
        (r.max_tokens < (r.echo ? 0 : 1) || r.max_tokens > 63))
        abort();
    if (status != KG_OK)
        fuzz_error(&fault, err.message);
    kg_api_release(&r);
    kg_chat_template_close(chat);
    return 0;
}
