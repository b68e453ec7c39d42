/* Building the sequences of supervised training. Prompt and response are tokenised apart,
 * as they are at rollout. */
#include "train/sft_data.h"

#include "base/mem.h"
#include "data/records.h"

#include <stdint.h>
#include <string.h>

struct pair {
    const char *prompt; /* "" for plain text */
    size_t prompt_n;
    const char *response;
    size_t response_n;
};

static kg_status add_pair(struct kg_sft_set *set, const struct pair *pair,
                          const struct kg_tokenizer *tok, const struct kg_sft_opts *opts,
                          struct kg_err *err)
{
    size_t first = set->tokens.n, loss_from, n;
    struct kg_encode_opts enc = {.parse_special = true, .add_special = opts->add_special};

    KG_TRY(kg_mem_grow(&set->begin, &set->begin_capacity, set->n + 2, sizeof *set->begin,
                       SIZE_MAX / 16, "sequences", err));
    KG_TRY(kg_mem_grow(&set->loss_from, &set->loss_capacity, set->n + 1,
                       sizeof *set->loss_from, SIZE_MAX / 16, "sequences", err));
    if (pair->prompt_n > 0 || opts->add_special)
        KG_TRY(kg_tokenizer_encode(&set->tokens, tok, pair->prompt, pair->prompt_n, enc,
                                   err));
    loss_from = set->tokens.n - first;
    enc.add_special = false;
    KG_TRY(kg_tokenizer_encode(&set->tokens, tok, pair->response, pair->response_n, enc,
                               err));
    if (opts->eos >= 0)
        KG_TRY(kg_ids_push(&set->tokens, opts->eos, err));
    n = set->tokens.n - first;
    loss_from = loss_from > 0 ? loss_from
                              : 1; /* the first token has nothing to be predicted from */
    if (n > opts->max_tokens) {
        set->tokens.n = first;
        set->dropped_too_long++;
        return KG_OK;
    }
    if (n <= loss_from) {
        set->tokens.n = first;
        return kg_fail(err, KG_EINVAL,
                       "expected a response of at least one token, found none");
    }
    set->longest = n > set->longest ? n : set->longest;
    set->loss_from[set->n++] = loss_from;
    set->begin[set->n] = set->tokens.n;
    return KG_OK;
}

static kg_status finish(struct kg_sft_set *set, kg_status status, const char *name,
                        size_t max_tokens, struct kg_err *err)
{
    if (status == KG_OK && set->n == 0)
        status = kg_fail(err, KG_EINVAL,
                         "%s: expected a sequence of at most %zu tokens, found none",
                         name, max_tokens);
    if (status != KG_OK)
        kg_sft_set_release(set);
    return status;
}

kg_status kg_sft_from_dataset(struct kg_sft_set *set, const struct kg_dataset *data,
                              const struct kg_tokenizer *tok,
                              const struct kg_sft_opts *opts, struct kg_err *err)
{
    kg_status status = KG_OK;

    memset(set, 0, sizeof *set);
    for (size_t i = 0; i < data->n && status == KG_OK; i++) {
        const struct kg_record *r = &data->records[i];
        struct pair pair = {r->prompt, strlen(r->prompt), r->solution,
                            r->solution ? strlen(r->solution) : 0};

        status = r->solution
                     ? add_pair(set, &pair, tok, opts, err)
                     : kg_fail(err, KG_EINVAL, "expected a worked solution, found none");
        if (status != KG_OK)
            kg_err_prefix(err, "%s: record %lld", kg_dataset_file(data, i),
                          (long long)r->line);
    }
    return finish(set, status, data->name, opts->max_tokens, err);
}

static const char *first_text(const struct kg_json *object, const char *const *keys,
                              size_t *n)
{
    for (; *keys; keys++) {
        const char *text = kg_json_text(kg_json_get(object, *keys), n);

        if (text)
            return text;
    }
    return NULL;
}

/* The prompt in its template, or as it is. */
static kg_status apply_template(struct kg_str *out, const char *template_text,
                                const char *prompt, size_t n, struct kg_err *err)
{
    static const char slot[] = "{prompt}";
    const char *at = template_text ? strstr(template_text, slot) : NULL;

    kg_str_clear(out);
    if (!at)
        return kg_str_append(out, prompt, n, err);
    KG_TRY(kg_str_append(out, template_text, (size_t)(at - template_text), err));
    KG_TRY(kg_str_append(out, prompt, n, err));
    return kg_str_puts(out, at + sizeof slot - 1, err);
}

static kg_status add_object(struct kg_sft_set *set, const struct kg_json *object,
                            const char *template_text, const struct kg_tokenizer *tok,
                            const struct kg_sft_opts *opts, struct kg_err *err)
{
    static const char *const prompt_keys[] = {"prompt", "question", "problem", NULL};
    static const char *const response_keys[] = {"response", "completion", "solution",
                                                "answer", NULL};
    static const char *const text_keys[] = {"text", NULL};
    struct pair pair = {"", 0, NULL, 0};
    struct kg_str prompt = {0};
    const char *raw;
    kg_status status;

    pair.response = first_text(object, text_keys, &pair.response_n);
    if (pair.response)
        return add_pair(set, &pair, tok, opts, err);
    raw = first_text(object, prompt_keys, &pair.prompt_n);
    pair.response = first_text(object, response_keys, &pair.response_n);
    if (!raw || !pair.response)
        return kg_fail(err, KG_EFORMAT,
                       "expected \"text\", or \"prompt\" and \"response\", found %s",
                       raw ? "no response" : "no prompt");
    KG_TRY_GOTO(out, apply_template(&prompt, template_text, raw, pair.prompt_n, err));
    pair.prompt = kg_str_text(&prompt);
    pair.prompt_n = prompt.len;
    status = add_pair(set, &pair, tok, opts, err);
out:
    kg_str_release(&prompt);
    return status;
}

kg_status kg_sft_from_jsonl(struct kg_sft_set *set, const char *path,
                            const char *template_text, const struct kg_tokenizer *tok,
                            const struct kg_sft_opts *opts, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_records *reader;
    kg_status status;

    memset(set, 0, sizeof *set);
    KG_TRY(kg_records_open(&reader, path, err));
    for (;;) {
        bool more;

        status = kg_records_next(reader, &doc, &more, err);
        if (status != KG_OK || !more)
            break;
        status = add_object(set, doc.root, template_text, tok, opts, err);
        if (status != KG_OK) {
            kg_err_prefix(err, "%s %s %lld", path, kg_records_unit(reader),
                          (long long)kg_records_number(reader));
            break;
        }
    }
    kg_json_release(&doc);
    kg_records_close(reader);
    return finish(set, status, path, opts->max_tokens, err);
}

void kg_sft_set_release(struct kg_sft_set *set)
{
    kg_ids_release(&set->tokens);
    kg_mem_free(set->begin);
    kg_mem_free(set->loss_from);
    memset(set, 0, sizeof *set);
}
