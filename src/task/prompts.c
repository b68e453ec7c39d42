/* Tokenises the prompts of a data set. A prompt is never truncated, since its gold answer
 * would be wrong: it fits, is dropped and counted, or stops the run. A record keeps its
 * number in the file, which randomness and dumps use, also when others are dropped.
 * Joined data sets move their tokens and do not copy them. */
#include "task/prompts.h"

#include "base/mem.h"
#include "base/phase.h"

#include <assert.h>
#include <string.h>

static const char *place_name(const struct kg_dataset *data)
{
    return data->is_file ? data->unit : "problem";
}

static kg_status encode_one(struct kg_ids *ids, const struct kg_dataset *data, size_t row,
                            const struct kg_tokenizer *tok, enum kg_special special,
                            struct kg_err *err)
{
    const struct kg_record *r = &data->records[row];
    kg_status status = kg_prompt_encode(ids, tok, r->prompt, strlen(r->prompt),
                                        r->rendered, special, err);

    if (status == KG_OK && ids->n == 0)
        status = kg_fail(err, KG_EINVAL,
                         "expected a prompt of at least one token, found none");
    if (status != KG_OK) {
        kg_ids_release(ids);
        kg_err_prefix(err, "%s %s %lld", data->name, place_name(data),
                      (long long)r->line);
    }
    return status;
}

kg_status kg_prompts_init(struct kg_prompts *p, const struct kg_dataset *data,
                          const struct kg_tokenizer *tok,
                          const struct kg_prompts_opts *opts, struct kg_err *err)
{
    size_t n = opts->limit && opts->limit < data->n ? opts->limit : data->n;
    kg_status status;

    memset(p, 0, sizeof *p);
    p->data = data;
    p->special = opts->special;
    p->ids = kg_mem_calloc(n, sizeof *p->ids, "prompts", err);
    p->record = p->ids ? kg_mem_calloc(n, sizeof *p->record, "prompt rows", err) : NULL;
    if (!p->record) {
        kg_prompts_release(p);
        return err->code;
    }
    for (size_t row = 0; row < n; row++) {
        struct kg_ids *ids = &p->ids[p->n];

        kg_phase_tick();
        KG_TRY_GOTO(fail, encode_one(ids, data, row, tok, opts->special, err));
        if (ids->n <= opts->max_tokens) {
            p->longest = ids->n > p->longest ? ids->n : p->longest;
            p->record[p->n++] = (int64_t)row;
            continue;
        }
        if (!opts->drop_overlong) {
            status = kg_fail(
                err, KG_EINVAL,
                "%s %s %lld: expected a prompt of at most %zu tokens, found %zu",
                data->name, place_name(data), (long long)data->records[row].line,
                opts->max_tokens, ids->n);
            p->n++;
            goto fail;
        }
        kg_ids_release(ids);
        p->dropped_too_long++;
    }
    if (p->n > 0)
        return KG_OK;
    status = kg_fail(
        err, KG_EINVAL,
        "%s: expected a prompt of at most %zu tokens, found none among %zu records",
        data->name, opts->max_tokens, n);
fail:
    kg_prompts_release(p);
    return status;
}

void kg_prompts_release(struct kg_prompts *p)
{
    for (size_t i = 0; p->ids && i < p->n; i++)
        kg_ids_release(&p->ids[i]);
    kg_mem_free(p->ids);
    kg_mem_free(p->record);
    memset(p, 0, sizeof *p);
}

kg_status kg_prompts_join(struct kg_prompts *p, struct kg_dataset *d,
                          struct kg_prompts *more, struct kg_dataset *more_data,
                          struct kg_err *err)
{
    size_t ids = p->n, records = p->n, behind = d->n;

    assert(p->data == d);
    KG_TRY(kg_mem_grow(&p->ids, &ids, p->n + more->n, sizeof *p->ids, SIZE_MAX / 64,
                       "prompts", err));
    KG_TRY(kg_mem_grow(&p->record, &records, p->n + more->n, sizeof *p->record,
                       SIZE_MAX / 64, "prompt rows", err));
    KG_TRY(kg_dataset_join(d, more_data, err));
    for (size_t i = 0; i < more->n; i++) {
        p->ids[p->n] = more->ids[i];
        p->record[p->n++] = more->record[i] + (int64_t)behind;
    }
    p->dropped_too_long += more->dropped_too_long;
    p->longest = more->longest > p->longest ? more->longest : p->longest;
    more->n = 0; /* moved */
    kg_prompts_release(more);
    return KG_OK;
}

kg_status kg_prompts_show(struct kg_str *out, const struct kg_prompts *p, size_t i,
                          const struct kg_tokenizer *tok, const char *indent,
                          size_t max_bytes, struct kg_err *err)
{
    return kg_prompt_show(out, tok, &p->ids[i], p->data->records[p->record[i]].rendered,
                          p->special, indent, max_bytes, err);
}
