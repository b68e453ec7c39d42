/* The post_processor and the decoder of a tokenizer.json: a row for every type.
 *
 * A post-processor puts tokens around a text. A decoder is applied to each token alone,
 * when the file is read, because the bytes of an id never depend on its neighbours; only
 * a text's first token may lose spaces. A decoder that needs more is refused by name.
 */
#include "text/tokenizer_read.h"

#include <string.h>

/* ---- post_processor ---- */

static kg_status process_bytes(struct kg_reader *r, const struct kg_json *value)
{
    return kg_reader_byte_level(r, "post_processor", value); /* it affects only offsets */
}

/* A second post-processor would add its tokens around those of the first. */
static kg_status need_first(struct kg_reader *r, const struct kg_json *value)
{
    if (r->has_template)
        return kg_reader_refuse(r, "post_processor", "type", kg_json_get(value, "type"),
                                "at most one step that adds tokens");
    r->has_template = true;
    return KG_OK;
}

static kg_status push_template_ids(struct kg_reader *r, const struct kg_json *template,
                                   const struct kg_json *item, struct kg_ids *ids)
{
    const struct kg_json *name = kg_json_get(item, "id");
    const char *key = kg_json_text(name, NULL);
    const struct kg_json *special = kg_json_get(kg_json_get(template, "special_tokens"),
                                                key ? key : "");
    const struct kg_json *list;
    KG_TRY(kg_reader_list(r, "post_processor.special_tokens", special, "ids", &list));
    for (size_t i = 0; i < kg_json_size(list); i++) {
        size_t n;
        int64_t id = kg_json_int(kg_json_at(list, i), -1);
        if (id < 0 || id > INT32_MAX || !kg_vocab_bytes(&r->tok->vocab, (int32_t)id, &n))
            return kg_reader_refuse(r, "post_processor.special_tokens", key, special,
                                    "ids of known tokens");
        KG_TRY(kg_ids_push(ids, (int32_t)id, r->err));
    }
    return KG_OK;
}

static kg_status read_template(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_field fields[] = {
        {"type", KG_FIELD_READ}, {"single", KG_FIELD_READ},
        {"pair", KG_FIELD_READ}, {"special_tokens", KG_FIELD_READ},
        {NULL, KG_FIELD_READ},
    };
    static const struct kg_field kinds[] = {{"SpecialToken", KG_FIELD_READ},
                                            {"Sequence", KG_FIELD_READ},
                                            {NULL, KG_FIELD_READ}};
    const struct kg_json *list;
    size_t n_texts = 0;
    KG_TRY(kg_reader_check(r, "post_processor", value, fields));
    KG_TRY(kg_reader_list(r, "post_processor", value, "single", &list));
    KG_TRY(need_first(r, value));
    for (size_t i = 0; i < kg_json_size(list); i++) {
        const struct kg_json *item = kg_json_at(list, i);
        KG_TRY(kg_reader_check(r, "post_processor.single", item, kinds));
        const struct kg_json *special = kg_json_get(item, "SpecialToken");
        n_texts += !special;
        if (special)
            KG_TRY(push_template_ids(r, value, special,
                                     n_texts ? &r->tok->suffix : &r->tok->prefix));
    }
    if (n_texts != 1)
        return kg_reader_refuse(r, "post_processor", "single", list,
                                "the text (Sequence A) exactly once");
    return KG_OK;
}

/* ["[SEP]", 102] */
static kg_status push_pair(struct kg_reader *r, const struct kg_json *value,
                           const char *key, struct kg_ids *ids)
{
    const struct kg_json *pair = kg_json_get(value, key);
    int64_t id = kg_json_int(kg_json_at(pair, 1), -1);
    size_t n;
    if (kg_json_size(pair) != 2 || id < 0 || id > INT32_MAX ||
        !kg_vocab_bytes(&r->tok->vocab, (int32_t)id, &n))
        return kg_reader_refuse(r, "post_processor", key, pair,
                                "[text, id] of a known token");
    return kg_ids_push(ids, (int32_t)id, r->err);
}

/* BertProcessing, and RobertaProcessing, whose other fields affect only offsets. */
static kg_status read_around(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_field fields[] = {
        {"type", KG_FIELD_READ},
        {"sep", KG_FIELD_READ},
        {"cls", KG_FIELD_READ},
        {"trim_offsets", KG_FIELD_BOOL},
        {"add_prefix_space", KG_FIELD_BOOL},
        {NULL, KG_FIELD_READ},
    };
    KG_TRY(kg_reader_check(r, "post_processor", value, fields));
    KG_TRY(need_first(r, value));
    KG_TRY(push_pair(r, value, "cls", &r->tok->prefix));
    return push_pair(r, value, "sep", &r->tok->suffix);
}

kg_status kg_reader_post_processor(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_step_row rows[] = {
        {"ByteLevel", process_bytes},
        {"TemplateProcessing", read_template},
        {"BertProcessing", read_around},
        {"RobertaProcessing", read_around},
        {NULL, NULL},
    };
    static const struct kg_step_table table = {"post_processor", "processors", rows};
    return kg_reader_steps(r, &table, value);
}

/* ---- decoder ---- */

static const char PATH[] = "decoder";

static kg_status decode_spelled(struct kg_reader *r, const struct kg_json *value)
{
    KG_TRY(kg_reader_byte_level(r, PATH, value));
    if (!r->spelled || r->decodes_spelled)
        return kg_reader_refuse(r, PATH, "type", kg_json_get(value, "type"),
                                "at most one such step, with a ByteLevel pre_tokenizer");
    r->decodes_spelled = true;
    return KG_OK;
}

/* A step after ByteFallback or Fuse would see more than one token. */
static kg_status need_tokens(struct kg_reader *r, const struct kg_json *value)
{
    if (!r->decodes_bytes && !r->fused)
        return KG_OK;
    return kg_reader_refuse(r, PATH, "type", kg_json_get(value, "type"),
                            "this step to come before ByteFallback and Fuse");
}

static kg_status decode_mark(struct kg_reader *r, const struct kg_json *value)
{
    const char *mark;
    enum kg_mark_front front;
    KG_TRY(need_tokens(r, value));
    KG_TRY(kg_reader_mark(r, PATH, value, &mark, &front));
    /* all leading marks of the first token are dropped */
    r->tok->lead = front == KG_MARK_NEVER ? r->tok->lead : INT32_MAX;
    return kg_reader_add_step(r, PATH, &r->texts, KG_NORMALIZE_REPLACE, mark, " ");
}

static kg_status decode_strip(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_field fields[] = {
        {"type", KG_FIELD_READ}, {"content", KG_FIELD_READ}, {"start", KG_FIELD_READ},
        {"stop", KG_FIELD_ZERO}, {NULL, KG_FIELD_READ},
    };
    KG_TRY(kg_reader_check(r, PATH, value, fields));
    const char *content = kg_reader_text(value, "content");
    int64_t start = kg_json_int(kg_json_get(value, "start"), -1);
    if (!content || strcmp(content, " ") != 0)
        return kg_reader_refuse(r, PATH, "content", kg_json_get(value, "content"),
                                "a space");
    if (start < 0 || start > 1 || r->tok->lead > 0)
        return kg_reader_refuse(r, PATH, "start", kg_json_get(value, "start"),
                                "0 or 1, in one step only");
    if (!r->fused)
        return kg_reader_refuse(r, PATH, "type", kg_json_get(value, "type"),
                                "this step to come after Fuse");
    r->tok->lead = (int32_t)start;
    return KG_OK;
}

static kg_status decode_replace(struct kg_reader *r, const struct kg_json *value)
{
    KG_TRY(need_tokens(r, value));
    return kg_reader_replace(r, PATH, value, &r->texts);
}

static kg_status decode_byte_names(struct kg_reader *r, const struct kg_json *value)
{
    r->decodes_bytes = true;
    return kg_reader_bare(r, PATH, value);
}

static kg_status fuse(struct kg_reader *r, const struct kg_json *value)
{
    r->fused = true;
    return kg_reader_bare(r, PATH, value);
}

/* BERT's decoder cleans up each token after putting a space before it. */
static kg_status tidy_up(struct kg_reader *r)
{
    static const char *const rows[][2] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        KG_TRY(kg_reader_add_step(r, PATH, &r->texts, KG_NORMALIZE_REPLACE, rows[i][0],
                                  rows[i][1]));
    return KG_OK;
}

/* Puts a space before every token that does not continue a word, except the first. */
static kg_status decode_words(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_field fields[] = {{"type", KG_FIELD_READ},
                                             {"prefix", KG_FIELD_READ},
                                             {"cleanup", KG_FIELD_BOOL},
                                             {NULL, KG_FIELD_READ}};
    KG_TRY(kg_reader_check(r, PATH, value, fields));
    KG_TRY(need_tokens(r, value));
    const char *prefix = kg_reader_text(value, "prefix");
    if (!prefix)
        return kg_reader_refuse(r, PATH, "prefix", kg_json_get(value, "prefix"), "text");
    KG_TRY(kg_reader_add_step(r, PATH, &r->texts, KG_NORMALIZE_WORD, prefix, NULL));
    r->tok->lead = 1;
    return kg_json_bool(kg_json_get(value, "cleanup"), true) ? tidy_up(r) : KG_OK;
}

static const struct kg_step_row DECODERS[] = {
    {"ByteLevel", decode_spelled},
    {"Replace", decode_replace},
    {"ByteFallback", decode_byte_names},
    {"Fuse", fuse},
    {"Strip", decode_strip},
    {"Metaspace", decode_mark},
    {"WordPiece", decode_words},
    {NULL, NULL},
};

kg_status kg_reader_decoder(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_step_table table = {PATH, "decoders", DECODERS};
    KG_TRY(kg_reader_steps(r, &table, value));
    if (r->spelled && (!r->decodes_spelled || r->texts.n || r->tok->lead || r->fused))
        return kg_reader_refuse(r, "tokenizer.json", PATH, value, "one ByteLevel");
    if (r->tok->byte_fallback && !r->decodes_bytes)
        return kg_reader_refuse(r, "tokenizer.json", PATH, value,
                                "a ByteFallback step (model.byte_fallback is true)");
    if (kg_json_type(value) != KG_JSON_NULL)
        return KG_OK;
    r->tok->lead = 1; /* without a decoder tokens are joined with spaces */
    return kg_reader_add_step(r, PATH, &r->texts, KG_NORMALIZE_PREPEND, NULL, " ");
}
