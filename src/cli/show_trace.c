/* A line of a dump as OpenEnv's TrainingTrace: a turn for each run of sampled tokens,
 * whose prompt is the whole context in which the run was sampled. Turns of the episode
 * without a token between them become one. */
#include "cli/show.h"

#include <string.h>

struct line {
    const struct kg_json_doc *doc;
    const struct kg_json *tokens, *logp;
    const char *source;
    size_t turns; /* turns written so far */
};

kg_status kg_show_part_at(struct kg_shown_part *p, const struct kg_json_doc *doc,
                          size_t i, size_t n, struct kg_err *err)
{
    const struct kg_json *windows = kg_json_get(doc->root, "windows");
    const struct kg_json *own = i > 0 ? kg_json_at(windows, i - 1) : NULL;
    const struct kg_json *next = i < kg_json_size(windows) ? kg_json_at(windows, i)
                                                           : NULL;
    int64_t begin = own ? kg_json_int(kg_json_at(own, 0), -1) : 0;
    int64_t from = own ? kg_json_int(kg_json_at(own, 1), -1) : 0;
    int64_t end = next ? kg_json_int(kg_json_at(next, 0), -1) : (int64_t)n;

    if (from < 0 || from > begin || begin >= end || end > (int64_t)n)
        return kg_fail(err, KG_EFORMAT,
                       "%s: key 'windows': expected pairs [begin, from] in order, within "
                       "%zu tokens",
                       doc->where, n);
    *p = (struct kg_shown_part){(size_t)from, (size_t)begin, (size_t)end};
    return KG_OK;
}

static kg_status put_list(struct kg_str *out, const struct line *l, const char *key,
                          const struct kg_json *values, size_t begin, size_t end,
                          struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, ", \"%s\": [", key));
    for (size_t i = begin; i < end; i++) {
        const struct kg_json *v = kg_json_at(values, i);

        if (!kg_json_is_number(v))
            return kg_fail(err, KG_EFORMAT,
                           "%s: %s: expected a number for token %zu, "
                           "found %s",
                           l->doc->where, key, i, kg_json_type_name(v));
        KG_TRY(kg_str_puts(out, i > begin ? "," : "", err));
        KG_TRY(kg_json_put_value(out, v, err));
    }
    return kg_str_putc(out, ']', err);
}

static kg_status put_turn(struct kg_str *out, struct line *l, size_t from, size_t begin,
                          size_t end, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "%s{\"node_id\": \"n%zu\"", l->turns ? ", " : "",
                         l->turns));
    l->turns++;
    KG_TRY(put_list(out, l, "prompt_token_ids", l->tokens, from, begin, err));
    KG_TRY(put_list(out, l, "completion_token_ids", l->tokens, begin, end, err));
    KG_TRY(put_list(out, l, "per_token_logps", l->logp, begin, end, err));
    KG_TRY(kg_str_puts(out, ", \"loss_mask\": [", err));
    for (size_t i = from; i < end; i++)
        KG_TRY(kg_str_printf(out, err, "%s%d", i > from ? "," : "", i >= begin));
    return kg_str_puts(out, "]}", err);
}

static kg_status put_turns(struct kg_str *out, struct line *l,
                           const struct kg_shown_part *p, struct kg_err *err)
{
    const char model = kg_source_letter(KG_SOURCE_MODEL);

    for (size_t i = p->begin, to; i < p->end; i = to + 1) {
        for (to = i; to < p->end && l->source[to] == model; to++)
            ;
        if (to > i)
            KG_TRY(put_turn(out, l, p->from, i, to, err));
    }
    return KG_OK;
}

kg_status kg_show_trace(struct kg_str *out, const struct kg_json_doc *doc,
                        struct kg_err *err)
{
    static const char *const own[] = {"draw", "sample", "reward"};
    struct line l = {.doc = doc};
    size_t n;

    KG_TRY(kg_json_need(&l.tokens, doc, doc->root, "tokens", KG_JSON_ARRAY, err));
    KG_TRY(kg_json_need(&l.logp, doc, doc->root, "logp", KG_JSON_ARRAY, err));
    KG_TRY(kg_json_need_text(&l.source, doc, doc->root, "source", err));
    n = kg_json_size(l.tokens);
    if (strlen(l.source) != n || kg_json_size(l.logp) != n)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected source and logp of %zu tokens, found %zu and %zu",
                       doc->where, n, strlen(l.source), kg_json_size(l.logp));
    for (size_t i = 0; i < 3; i++) {
        KG_TRY(kg_str_printf(out, err, "%s\"%s\": ", i ? ", " : "{", own[i]));
        KG_TRY(kg_json_put_value(out, kg_json_get(doc->root, own[i]), err));
    }
    KG_TRY(kg_str_puts(out, ", \"trace\": {\"schema_version\": 1, \"turns\": [", err));
    for (size_t i = 0; i <= kg_json_size(kg_json_get(doc->root, "windows")); i++) {
        struct kg_shown_part part = {0};

        KG_TRY(kg_show_part_at(&part, doc, i, n, err));
        KG_TRY(put_turns(out, &l, &part, err));
    }
    return kg_str_puts(out, "]}}\n", err);
}
