/* Builds the sequences of SFT from the pieces of records.
 *
 * Each piece is tokenised separately and tagged with its source, so the loss finds the
 * model's tokens without marks in a text. A sequence longer than the limit is dropped and
 * counted, never truncated. A record without a token of the model is an error.
 */
#include "train/open/sft_data.h"

#include "base/mem.h"
#include "data/records.h"
#include "train/open/sft_record.h"

#include <stdint.h>
#include <string.h>

/* Sets the source of the tokens from `from` on. */
static kg_status tag(struct kg_sft_set *set, size_t from, enum kg_source source,
                     struct kg_err *err)
{
    size_t n = set->tokens.n - from;

    KG_TRY(kg_mem_grow(&set->source, &set->source_capacity, set->tokens.n, 1,
                       SIZE_MAX / 16, "sources of tokens", err));
    if (n > 0)
        memset(set->source + from, source, n);
    return KG_OK;
}

static kg_status encode(struct kg_sft_set *set, const struct kg_sft_piece *p,
                        const char *text, bool first, bool add_special,
                        const struct kg_tokenizer *tok, struct kg_err *err)
{
    struct kg_encode_opts enc = {
        .parse_special = !p->plain, .add_special = add_special, .continues = !first};
    size_t from = set->tokens.n;

    KG_TRY(kg_tokenizer_encode(&set->tokens, tok, text + p->at, p->n, enc, err));
    return tag(set, from, p->source, err);
}

static bool starts_with_prompt(const struct kg_sft_record *r)
{
    return r->n > 0 && r->pieces[0].source == KG_SOURCE_PROMPT;
}

static kg_status append_record(struct kg_sft_set *set, const struct kg_sft_record *r,
                               const struct kg_tokenizer *tok,
                               const struct kg_sft_opts *opts, struct kg_err *err)
{
    static const struct kg_sft_piece empty = {.source = KG_SOURCE_PROMPT};
    bool add = kg_special_adds(opts->special, r->rendered);

    if (add && !starts_with_prompt(r)) {
        KG_TRY(encode(set, &empty, "", true, true, tok, err));
        add = false;
    }
    for (size_t i = 0; i < r->n; i++) {
        KG_TRY(encode(set, &r->pieces[i], kg_str_text(&r->text), i == 0, add, tok, err));
        add = false;
    }
    return KG_OK;
}

static bool ends_with_model(const struct kg_sft_record *r)
{
    return r->n > 0 && r->pieces[r->n - 1].source == KG_SOURCE_MODEL;
}

/* A sequence that ends with the model's text gets an end token. Its first token is not
 * learned, because nothing precedes it. */
static kg_status close_sequence(struct kg_sft_set *set, size_t first, bool model,
                                int32_t eos, struct kg_err *err)
{
    size_t end = set->tokens.n;

    if (model && eos >= 0 && (end == first || set->tokens.ids[end - 1] != eos)) {
        KG_TRY(kg_ids_push(&set->tokens, eos, err));
        KG_TRY(tag(set, end, KG_SOURCE_MODEL, err));
    }
    if (set->tokens.n > first && set->source[first] == KG_SOURCE_MODEL)
        set->source[first] = KG_SOURCE_PROMPT;
    return KG_OK;
}

static size_t count_learned(const struct kg_sft_set *set, size_t first)
{
    size_t n = 0;

    for (size_t t = first; t < set->tokens.n; t++)
        n += set->source[t] == KG_SOURCE_MODEL;
    return n;
}

static kg_status add_record(struct kg_sft_set *set, const struct kg_sft_record *r,
                            const struct kg_tokenizer *tok,
                            const struct kg_sft_opts *opts, struct kg_err *err)
{
    size_t first = set->tokens.n, n, learned;

    KG_TRY(kg_mem_grow(&set->begin, &set->begin_capacity, set->n + 2, sizeof *set->begin,
                       SIZE_MAX / 16, "sequences", err));
    KG_TRY(kg_mem_grow(&set->learned, &set->learned_capacity, set->n + 1,
                       sizeof *set->learned, SIZE_MAX / 16, "sequences", err));
    KG_TRY(append_record(set, r, tok, opts, err));
    KG_TRY(close_sequence(set, first, ends_with_model(r), opts->eos, err));
    n = set->tokens.n - first;
    learned = count_learned(set, first);
    if (n > opts->max_tokens || learned == 0)
        set->tokens.n = first;
    if (n > opts->max_tokens) {
        set->dropped_too_long++;
        return KG_OK;
    }
    if (learned == 0)
        return kg_fail(err, KG_EINVAL,
                       "expected at least one token of the model's text, found none");
    set->longest = n > set->longest ? n : set->longest;
    set->learned[set->n++] = learned;
    set->begin[set->n] = set->tokens.n;
    return KG_OK;
}

static kg_status finish(struct kg_sft_set *set, kg_status status, const char *name,
                        size_t max_tokens, struct kg_err *err)
{
    if (status == KG_OK && set->n == 0)
        status = kg_fail(err, KG_EINVAL,
                         "%s: expected a sequence of at most %zu tokens "
                         "(sft.max_tokens), found only longer ones (%zu)",
                         name, max_tokens, set->dropped_too_long);
    if (status != KG_OK)
        kg_sft_set_release(set);
    return status;
}

static kg_status add_solution(struct kg_sft_set *set, struct kg_sft_record *pair,
                              const struct kg_record *r, const struct kg_tokenizer *tok,
                              const struct kg_sft_opts *opts, struct kg_err *err)
{
    if (!r->solution)
        return kg_fail(err, KG_EINVAL,
                       "expected a worked solution to learn from (key solution, "
                       "completion or response, or an answer that ends in \"#### x\"), "
                       "found none; set sft.data to a file that has them");
    kg_sft_record_clear(pair);
    pair->rendered = r->rendered;
    KG_TRY(kg_sft_record_add(pair, KG_SOURCE_PROMPT, false, r->prompt, strlen(r->prompt),
                             err));
    KG_TRY(kg_sft_record_add(pair, KG_SOURCE_MODEL, false, r->solution,
                             strlen(r->solution), err));
    return add_record(set, pair, tok, opts, err);
}

kg_status kg_sft_from_dataset(struct kg_sft_set *set, const struct kg_dataset *data,
                              const struct kg_tokenizer *tok,
                              const struct kg_sft_opts *opts, struct kg_err *err)
{
    struct kg_sft_record pair = {.n = 0};
    kg_status status = KG_OK;

    memset(set, 0, sizeof *set);
    for (size_t i = 0; i < data->n && status == KG_OK; i++) {
        status = add_solution(set, &pair, &data->records[i], tok, opts, err);
        if (status != KG_OK)
            kg_err_prefix(err, "%s: record %lld", kg_dataset_file(data, i),
                          (long long)data->records[i].line);
    }
    kg_sft_record_release(&pair);
    return finish(set, status, data->name, opts->max_tokens, err);
}

/* ---- files ---- */

static kg_status add_objects(struct kg_sft_set *set, struct kg_records *reader,
                             const char *path, const struct kg_sft_reading *how,
                             const struct kg_tokenizer *tok,
                             const struct kg_sft_opts *opts, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_sft_record record = {.n = 0};
    bool more = true;
    kg_status status = KG_OK;

    while (status == KG_OK) {
        KG_TRY_GOTO(out, kg_records_next(reader, &doc, &more, err));
        if (!more)
            break;
        status = kg_sft_record_read(&record, doc.root, how, err);
        if (status == KG_OK)
            status = add_record(set, &record, tok, opts, err);
        if (status != KG_OK)
            kg_err_prefix(err, "%s %s %lld", path, kg_records_unit(reader),
                          (long long)kg_records_number(reader));
    }
out:
    kg_sft_record_release(&record);
    kg_json_release(&doc);
    return status;
}

kg_status kg_sft_from_jsonl(struct kg_sft_set *set, const char *path,
                            const struct kg_tokenizer *tok,
                            const struct kg_sft_opts *opts, struct kg_err *err)
{
    struct kg_str end = {0};
    struct kg_sft_reading how = {.prompt = &opts->prompt};
    struct kg_records *reader = NULL;
    kg_status status;

    memset(set, 0, sizeof *set);
    if (opts->eos >= 0)
        KG_TRY_GOTO(out, kg_tokenizer_decode(&end, tok, &opts->eos, 1, false, err));
    how.end = kg_str_text(&end);
    KG_TRY_GOTO(out, kg_records_open(&reader, path, err));
    status = add_objects(set, reader, path, &how, tok, opts, err);
out:
    kg_records_close(reader);
    kg_str_release(&end);
    return finish(set, status, path, opts->max_tokens, err);
}

void kg_sft_set_release(struct kg_sft_set *set)
{
    kg_ids_release(&set->tokens);
    kg_mem_free(set->source);
    kg_mem_free(set->begin);
    kg_mem_free(set->learned);
    memset(set, 0, sizeof *set);
}
