/* The pre_tokenizer of a tokenizer.json: a row for every type, read into stages.
 *
 * Most types split text at the matches of a pattern or at characters of a class, so each
 * is one or two stages of the same kind with its own settings. Patterns of known families
 * are constants. ByteLevel determines how the vocabulary is spelled, so the reader looks
 * for it before it reads the model. It must be the last step.
 */
#include "text/classes.h"
#include "text/tokenizer_read.h"
#include "text/unicode.h"

#include <string.h>

const char KG_PATTERN_GPT2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char KG_PATTERN_QWEN2[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{"
                                "L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                                "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char KG_PATTERN_LLAMA3[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p"
                                 "{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                                 "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static const char PATH[] = "pre_tokenizer";
enum { MAX_LOOK_DEPTH = 8 };

/* ---- stages ---- */

/* NULL with err set if there are too many stages, or if ByteLevel precedes this one. */
static struct kg_pretoken_stage *add_stage(struct kg_reader *r,
                                           enum kg_pretoken_kind kind)
{
    struct kg_tokenizer *tok = r->tok;
    if (r->byte_level) {
        kg_fail(r->err, KG_EUNSUPPORTED,
                "%s: pre_tokenizer: expected nothing after ByteLevel, found more",
                r->where);
        return NULL;
    }
    if (tok->n_stages < KG_MAX_STAGES) {
        tok->stages[tok->n_stages].kind = kind;
        return &tok->stages[tok->n_stages++];
    }
    kg_fail(r->err, KG_EUNSUPPORTED, "%s: pre_tokenizer has more than %d steps", r->where,
            KG_MAX_STAGES);
    return NULL;
}

kg_status kg_reader_cut(struct kg_reader *r, const char *pattern, size_t n, bool literal)
{
    struct kg_pretoken_stage *stage = add_stage(r, KG_PRETOKEN_CUT);
    if (!stage)
        return r->err->code;
    if (kg_pretoken_create(&stage->cut.pattern, pattern, n, literal, r->err) != KG_OK)
        return kg_err_prefix(r->err, "%s: pre_tokenizer", r->where);
    return KG_OK;
}

/* Adds a cut at the characters of a class. */
static kg_status add_class(struct kg_reader *r, bool (*is)(uint32_t cp),
                           enum kg_cut_behavior behavior)
{
    struct kg_pretoken_stage *stage = add_stage(r, KG_PRETOKEN_CUT);
    if (!stage)
        return r->err->code;
    stage->cut.is = is;
    stage->cut.behavior = behavior;
    return KG_OK;
}

static kg_status read_behavior(struct kg_reader *r, const struct kg_json *value,
                               enum kg_cut_behavior *behavior)
{
    static const char *const names[] = {
        [KG_CUT_ISOLATED] = "Isolated",
        [KG_CUT_REMOVED] = "Removed",
        [KG_CUT_CONTIGUOUS] = "Contiguous",
        [KG_CUT_WITH_PREVIOUS] = "MergedWithPrevious",
        [KG_CUT_WITH_NEXT] = "MergedWithNext",
    };
    const struct kg_json *found = kg_json_get(value, "behavior");
    const char *text = kg_json_text(found, NULL);
    for (size_t i = 0; text && i < sizeof names / sizeof *names; i++) {
        if (strcmp(text, names[i]) != 0)
            continue;
        *behavior = (enum kg_cut_behavior)i;
        return KG_OK;
    }
    return kg_reader_refuse(r, PATH, "behavior", found,
                            "Isolated, Removed, Contiguous, MergedWithPrevious or "
                            "MergedWithNext");
}

/* ---- types ---- */

static kg_status read_byte_level(struct kg_reader *r, const struct kg_json *value)
{
    KG_TRY(kg_reader_byte_level(r, PATH, value));
    if (kg_json_bool(kg_json_get(value, "add_prefix_space"), true) &&
        !add_stage(r, KG_PRETOKEN_SPACE))
        return r->err->code;
    if (kg_json_bool(kg_json_get(value, "use_regex"), true))
        KG_TRY(kg_reader_cut(r, KG_PATTERN_GPT2, strlen(KG_PATTERN_GPT2), false));
    r->byte_level = true;
    return KG_OK;
}

static kg_status read_split(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_field fields[] = {
        {"type", KG_FIELD_READ},     {"pattern", KG_FIELD_READ},
        {"behavior", KG_FIELD_READ}, {"invert", KG_FIELD_BOOL},
        {NULL, KG_FIELD_READ},
    };
    static const struct kg_field kinds[] = {
        {"Regex", KG_FIELD_READ}, {"String", KG_FIELD_READ}, {NULL, KG_FIELD_READ}};
    enum kg_cut_behavior behavior;
    size_t n = 0;
    KG_TRY(kg_reader_check(r, PATH, value, fields));
    KG_TRY(read_behavior(r, value, &behavior));
    const struct kg_json *pattern = kg_json_get(value, "pattern");
    KG_TRY(kg_reader_check(r, "pre_tokenizer.pattern", pattern, kinds));
    const char *text = kg_json_text(kg_json_get(pattern, "Regex"), &n);
    bool literal = !text;
    if (literal)
        text = kg_json_text(kg_json_get(pattern, "String"), &n);
    if (!text || kg_json_size(pattern) != 1)
        return kg_reader_refuse(r, PATH, "pattern", pattern,
                                "{\"Regex\": text} or {\"String\": text}");
    KG_TRY(kg_reader_cut(r, text, n, literal));
    struct kg_cutter *cut = &r->tok->stages[r->tok->n_stages - 1].cut;
    cut->behavior = behavior;
    cut->invert = kg_json_bool(kg_json_get(value, "invert"), false);
    return KG_OK;
}

static kg_status read_digits(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_field fields[] = {{"type", KG_FIELD_READ},
                                             {"individual_digits", KG_FIELD_BOOL},
                                             {NULL, KG_FIELD_READ}};
    KG_TRY(kg_reader_check(r, PATH, value, fields));
    return add_class(r, kg_class_is_number,
                     kg_json_bool(kg_json_get(value, "individual_digits"), false)
                         ? KG_CUT_ISOLATED
                         : KG_CUT_CONTIGUOUS);
}

static kg_status read_punctuation(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_field fields[] = {
        {"type", KG_FIELD_READ}, {"behavior", KG_FIELD_READ}, {NULL, KG_FIELD_READ}};
    enum kg_cut_behavior behavior = KG_CUT_ISOLATED;
    KG_TRY(kg_reader_check(r, PATH, value, fields));
    if (kg_json_get(value, "behavior"))
        KG_TRY(read_behavior(r, value, &behavior));
    return add_class(r, kg_class_is_punctuation, behavior);
}

static kg_status read_whitespace_split(struct kg_reader *r, const struct kg_json *value)
{
    KG_TRY(kg_reader_bare(r, PATH, value));
    return add_class(r, kg_unicode_is_space, KG_CUT_REMOVED);
}

/* \w+|[^\w\s]+ : the text between white space, cut where words begin and end */
static kg_status read_whitespace(struct kg_reader *r, const struct kg_json *value)
{
    KG_TRY(read_whitespace_split(r, value));
    return add_class(r, kg_class_is_word, KG_CUT_CONTIGUOUS);
}

static kg_status read_bert(struct kg_reader *r, const struct kg_json *value)
{
    KG_TRY(read_whitespace_split(r, value));
    return add_class(r, kg_class_is_punctuation, KG_CUT_ISOLATED);
}

static bool is_character(const char *text)
{
    uint32_t cp;
    return text && kg_utf8_decode(&cp, text) == strlen(text);
}

static kg_status read_delimiter(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_field fields[] = {
        {"type", KG_FIELD_READ}, {"delimiter", KG_FIELD_READ}, {NULL, KG_FIELD_READ}};
    KG_TRY(kg_reader_check(r, PATH, value, fields));
    const char *delimiter = kg_reader_text(value, "delimiter");
    if (!is_character(delimiter))
        return kg_reader_refuse(r, PATH, "delimiter", kg_json_get(value, "delimiter"),
                                "one character");
    KG_TRY(kg_reader_cut(r, delimiter, strlen(delimiter), true));
    r->tok->stages[r->tok->n_stages - 1].cut.behavior = KG_CUT_REMOVED;
    return KG_OK;
}

static kg_status read_front(struct kg_reader *r, const char *path,
                            const struct kg_json *value, enum kg_mark_front *front)
{
    static const char *const names[] = {[KG_MARK_ALWAYS] = "always",
                                        [KG_MARK_FIRST] = "first",
                                        [KG_MARK_NEVER] = "never"};
    const struct kg_json *scheme = kg_json_get(value, "prepend_scheme");
    const char *text = scheme ? kg_json_text(scheme, NULL) : names[KG_MARK_ALWAYS];
    for (size_t i = 0; text && i < sizeof names / sizeof *names; i++) {
        if (strcmp(text, names[i]) != 0)
            continue;
        *front = (enum kg_mark_front)i;
        /* older files have only add_prefix_space */
        if (kg_json_bool(kg_json_get(value, "add_prefix_space"), true))
            return KG_OK;
        if (scheme && *front != KG_MARK_NEVER)
            break;
        *front = KG_MARK_NEVER;
        return KG_OK;
    }
    return kg_reader_refuse(r, path, "prepend_scheme", scheme,
                            "\"always\", \"first\" or \"never\", as add_prefix_space");
}

kg_status kg_reader_mark(struct kg_reader *r, const char *path,
                         const struct kg_json *value, const char **mark,
                         enum kg_mark_front *front)
{
    static const struct kg_field fields[] = {
        {"type", KG_FIELD_READ},
        {"replacement", KG_FIELD_READ},
        {"str_rep", KG_FIELD_READ},
        {"add_prefix_space", KG_FIELD_BOOL},
        {"prepend_scheme", KG_FIELD_READ},
        {"split", KG_FIELD_BOOL},
        {NULL, KG_FIELD_READ},
    };
    KG_TRY(kg_reader_check(r, path, value, fields));
    *mark = kg_reader_text(value, "replacement");
    if (!is_character(*mark))
        return kg_reader_refuse(r, path, "replacement", kg_json_get(value, "replacement"),
                                "one character");
    return read_front(r, path, value, front);
}

static kg_status read_mark(struct kg_reader *r, const struct kg_json *value)
{
    const char *mark;
    enum kg_mark_front front;
    KG_TRY(kg_reader_mark(r, PATH, value, &mark, &front));
    struct kg_pretoken_stage *stage = add_stage(r, KG_PRETOKEN_MARK);
    if (!stage)
        return r->err->code;
    stage->front = front;
    stage->split = kg_json_bool(kg_json_get(value, "split"), true);
    return kg_str_puts(&stage->mark, mark, r->err);
}

/* ---- the whole pre_tokenizer ---- */

bool kg_reader_has_byte_level(const struct kg_json *value, int depth)
{
    const struct kg_json *list = kg_json_get(value, "pretokenizers");
    if (kg_reader_has_type(value, "ByteLevel"))
        return true;
    if (!kg_reader_has_type(value, "Sequence") || depth == MAX_LOOK_DEPTH ||
        kg_json_type(list) != KG_JSON_ARRAY)
        return false;
    for (size_t i = 0; i < kg_json_size(list); i++)
        if (kg_reader_has_byte_level(kg_json_at(list, i), depth + 1))
            return true;
    return false;
}

static const struct kg_step_row ROWS[] = {
    {"ByteLevel", read_byte_level},
    {"Split", read_split},
    {"Digits", read_digits},
    {"Punctuation", read_punctuation},
    {"Whitespace", read_whitespace},
    {"WhitespaceSplit", read_whitespace_split},
    {"CharDelimiterSplit", read_delimiter},
    {"BertPreTokenizer", read_bert},
    {"Metaspace", read_mark},
    {NULL, NULL},
};

kg_status kg_reader_pre_tokenizer(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_step_table table = {PATH, "pretokenizers", ROWS};
    return kg_reader_steps(r, &table, value);
}
