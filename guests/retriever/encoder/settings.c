/* How a text becomes a vector: the files of sentence-transformers next to config.json.
 *
 *   modules.json                       what follows the transformer: pooling, its length
 *   1_Pooling/config.json              mean of all tokens, or the first one; whether the
 *                                      prompt's are among them (they must be)
 *   sentence_bert_config.json          max_seq_length; do_lower_case (it must be false)
 *   config_sentence_transformers.json  prompts: words in front of a query or a passage
 *
 * Each may be absent, but the pooling must be known or given, never guessed. A vector is
 * normalised unless modules.json exists and does not mention it.
 */
#include "retriever/encoder/encoder_internal.h"

#include "base/file.h"
#include "base/mem.h"
#include "data/hub.h"
#include "data/json.h"

#include <string.h>

enum { FILE_BYTES = 1 << 20 };

const char *const kg_pooling_names[KG_POOLINGS + 1] = {"mean", "cls", NULL};

/* *there: whether the file exists */
static kg_status read_if(struct kg_json_doc *doc, bool *there, const char *dir,
                         const char *name, struct kg_err *err)
{
    const struct kg_path path = kg_path_in(dir, name);

    *there = kg_file_exists(path.text);
    return *there ? kg_json_read(doc, path.text, FILE_BYTES, err) : KG_OK;
}

/* Refuses the other value of a flag, with which vectors would differ from kedge's. */
static kg_status need_flag(const struct kg_json_doc *doc, const char *key, bool good,
                           struct kg_err *err)
{
    static const char *const words[] = {"false", "true"};
    const struct kg_json *flag = kg_json_get(doc->root, key);
    const bool is_flag = kg_json_type(flag) == KG_JSON_BOOL;

    if (!flag || (is_flag && kg_json_bool(flag, good) == good))
        return KG_OK;
    return kg_fail(err, KG_EUNSUPPORTED, "%s: %s: expected %s, found %s", doc->where, key,
                   words[good], is_flag ? words[!good] : kg_json_type_name(flag));
}

/* ---- modules.json ---- */
struct modules {
    bool there, normalised;
    char *pooling; /* owned; folder of the pooling, or NULL */
};

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);

    return n >= m && strcmp(text + n - m, end) == 0;
}

static kg_status take_module(struct modules *m, const struct kg_json_doc *doc,
                             const struct kg_json *module, struct kg_err *err)
{
    const char *type, *path;

    KG_TRY(kg_json_need_text(&type, doc, module, "type", err));
    KG_TRY(kg_json_need_text(&path, doc, module, "path", err));
    if (ends_with(type, ".Normalize")) {
        m->normalised = true;
        return KG_OK;
    }
    if (ends_with(type, ".Transformer"))
        return path[0] == '\0' ? KG_OK
                               : kg_fail(err, KG_EUNSUPPORTED,
                                         "%s: expected the transformer in the folder of "
                                         "modules.json (path \"\"), found it in '%s'",
                                         doc->where, path);
    if (!ends_with(type, ".Pooling") || m->pooling)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "%s: expected only a transformer, one pooling and a "
                       "normalisation, found a further module %s",
                       doc->where, type);
    if (!kg_hub_is_inside(path))
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected the pooling in a folder inside that of "
                       "modules.json, found '%.200s'",
                       doc->where, path);
    m->pooling = kg_mem_strdup(path, err);
    return m->pooling ? KG_OK : KG_ENOMEM;
}

static kg_status take_modules(struct modules *m, const struct kg_json_doc *doc,
                              struct kg_err *err)
{
    if (kg_json_type(doc->root) != KG_JSON_ARRAY)
        return kg_fail(err, KG_EFORMAT, "%s: expected an array, found %s", doc->where,
                       kg_json_type_name(doc->root));
    for (size_t i = 0; i < kg_json_size(doc->root); i++)
        KG_TRY(take_module(m, doc, kg_json_at(doc->root, i), err));
    return KG_OK;
}

static kg_status read_modules(struct modules *m, const char *dir, struct kg_err *err)
{
    struct kg_json_doc doc = {0};

    *m = (struct modules){.normalised = true};
    KG_TRY(read_if(&doc, &m->there, dir, "modules.json", err));
    if (!m->there)
        return KG_OK;
    m->normalised = false;
    kg_status status = take_modules(m, &doc, err);
    kg_json_release(&doc);
    return status;
}

/* ---- pooling ---- */
static kg_status take_pooling(struct kg_encoder_settings *s,
                              const struct kg_json_doc *doc, struct kg_err *err)
{
    static const char mode[] = "pooling_mode_";
    const bool cls = kg_json_bool(kg_json_get(doc->root, "pooling_mode_cls_token"),
                                  false);

    s->pooling = cls ? KG_POOLING_CLS : KG_POOLING_MEAN;
    for (size_t i = 0; i < kg_json_size(doc->root); i++) {
        const char *key = kg_json_key_at(doc->root, i);
        const char *good = cls ? "cls_token" : "mean_tokens";

        if (strncmp(key, mode, sizeof mode - 1) == 0 &&
            kg_json_bool(kg_json_value_at(doc->root, i), false) &&
            strcmp(key + sizeof mode - 1, good) != 0)
            return kg_fail(err, KG_EUNSUPPORTED,
                           "%s: expected pooling by mean_tokens or by cls_token alone, "
                           "found %s",
                           doc->where, key);
    }
    if (cls || kg_json_bool(kg_json_get(doc->root, "pooling_mode_mean_tokens"), false))
        return KG_OK;
    return kg_fail(err, KG_EUNSUPPORTED,
                   "%s: expected pooling_mode_mean_tokens or pooling_mode_cls_token, "
                   "found neither",
                   doc->where);
}

static kg_status named_pooling(struct kg_encoder_settings *s, const char *name,
                               struct kg_err *err)
{
    size_t i;

    KG_TRY(kg_str_pick(&i, KG_EINVAL, "pooling", name, kg_pooling_names, KG_POOLINGS,
                       sizeof *kg_pooling_names, err));
    s->pooling = (enum kg_pooling)i;
    return KG_OK;
}

static kg_status read_pooling(struct kg_encoder_settings *s, const char *dir,
                              const struct modules *m, const char *asked,
                              struct kg_err *err)
{
    const char *own = m->pooling ? m->pooling : "1_Pooling";
    const struct kg_path folder = kg_path_in(dir, own);
    struct kg_json_doc doc = {0};
    kg_status status;
    bool there;

    KG_TRY(read_if(&doc, &there, folder.text, "config.json", err));
    if (!there && !asked)
        return kg_fail(
            err, KG_EINVAL,
            "%s: expected %.200s/config.json, or --pooling mean or cls, found neither",
            dir, own);
    /* include_prompt applies also if --pooling replaces the file's mode */
    KG_TRY_GOTO(out, need_flag(&doc, "include_prompt", true, err));
    status = asked ? named_pooling(s, asked, err) : take_pooling(s, &doc, err);
out:
    kg_json_release(&doc);
    return status;
}

/* ---- lengths and prefixes ---- */
/* max_seq_length; `most`, the number of positions, if it is absent, null or larger. */
static kg_status take_length(int32_t *out, const struct kg_json_doc *doc, int32_t most,
                             struct kg_err *err)
{
    const struct kg_json *found = kg_json_get(doc->root, "max_seq_length");
    const bool none = !found || kg_json_type(found) == KG_JSON_NULL;
    const int64_t n = none ? most : kg_json_int(found, 0);

    *out = n > most ? most : (int32_t)n;
    if (n >= 1)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "%s: max_seq_length: expected an integer of at least 1, found another "
                   "value, of type %s",
                   doc->where, kg_json_type_name(found));
}

static kg_status read_max_tokens(struct kg_encoder_settings *s, const char *dir,
                                 const struct kg_encoder_config *c, int32_t asked,
                                 struct kg_err *err)
{
    const int32_t most = c->rows - c->first;
    struct kg_json_doc doc = {0};
    bool there;

    KG_TRY(read_if(&doc, &there, dir, "sentence_bert_config.json", err));
    kg_status status = need_flag(&doc, "do_lower_case", false, err);
    if (status == KG_OK)
        status = take_length(&s->max_tokens, &doc, most, err);
    kg_json_release(&doc);
    if (status != KG_OK)
        return status;
    if (asked > most || asked < 0)
        return kg_fail(
            err, KG_EINVAL,
            "%s: max_tokens: expected at most the encoder's %d positions, found %d", dir,
            (int)most, (int)asked);
    if (asked)
        s->max_tokens = asked;
    return KG_OK;
}

/* The prompt `name`, else `other`, else "". */
static const char *prompt_of(const struct kg_json *prompts, const char *name,
                             const char *other)
{
    const char *text = kg_json_text(kg_json_get(prompts, name), NULL);

    if (!text && other)
        text = kg_json_text(kg_json_get(prompts, other), NULL);
    return text ? text : "";
}

static kg_status read_prefixes(struct kg_encoder_settings *s, const char *dir,
                               const struct kg_encoder_opts *opts, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    const struct kg_json *prompts;
    bool there;

    KG_TRY(read_if(&doc, &there, dir, "config_sentence_transformers.json", err));
    prompts = kg_json_get(doc.root, "prompts");
    s->query_prefix = kg_mem_strdup(
        opts->query_prefix ? opts->query_prefix : prompt_of(prompts, "query", NULL), err);
    s->passage_prefix = kg_mem_strdup(opts->passage_prefix
                                          ? opts->passage_prefix
                                          : prompt_of(prompts, "passage", "document"),
                                      err);
    kg_json_release(&doc);
    return s->query_prefix && s->passage_prefix ? KG_OK : KG_ENOMEM;
}

kg_status kg_encoder_settings_read(struct kg_encoder_settings *s, const char *dir,
                                   const struct kg_encoder_config *c,
                                   const struct kg_encoder_opts *opts, struct kg_err *err)
{
    struct modules m;
    kg_status status;

    *s = (struct kg_encoder_settings){0};
    KG_TRY_GOTO(out, read_modules(&m, dir, err));
    s->normalised = m.normalised;
    KG_TRY_GOTO(out, read_pooling(s, dir, &m, opts->pooling, err));
    KG_TRY_GOTO(out, read_max_tokens(s, dir, c, opts->max_tokens, err));
    status = read_prefixes(s, dir, opts, err);
out:
    kg_mem_free(m.pooling);
    if (status != KG_OK)
        kg_encoder_settings_release(s);
    return status;
}

void kg_encoder_settings_release(struct kg_encoder_settings *s)
{
    kg_mem_free(s->query_prefix);
    kg_mem_free(s->passage_prefix);
    *s = (struct kg_encoder_settings){0};
}
