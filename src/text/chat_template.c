/* Chat templates from a file or a model's folder, and the start of a rendering. */
#include "text/chat_template.h"

#include "base/file.h"
#include "base/mem.h"
#include "text/jinja_internal.h"
#include "text/unicode.h"

#include <string.h>

enum { MAX_CONFIG_BYTES = 64 << 20 };

/* ---- making one ---- */

/* Line ends become LF, and one at the end of the template goes. */
static size_t normalise(char *to, const char *text, size_t n)
{
    size_t k = 0;

    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n')
            continue;
        to[k++] = text[i] == '\r' ? '\n' : text[i];
    }
    return k - (k > 0 && to[k - 1] == '\n');
}

static kg_status parse(struct kg_chat_template *t, const char *text, size_t n,
                       struct kg_err *err)
{
    struct kg_jinja_token *tokens;
    char *source;

    if (n > KG_CHAT_TEMPLATE_MAX_BYTES)
        return kg_fail(err, KG_EFORMAT, "%s: expected at most %d bytes, found %zu",
                       t->where, KG_CHAT_TEMPLATE_MAX_BYTES, n);
    if (kg_utf8_check(text, n, err) != KG_OK)
        return kg_err_prefix(err, "%s", t->where);
    source = kg_jinja_alloc(&t->pool, n + 1, 1, err);
    if (!source)
        return err->code;
    n = normalise(source, text, n);
    source[n] = 0;
    KG_TRY(kg_jinja_lex(&tokens, t, source, n, err));
    return kg_jinja_parse(t, tokens, err);
}

/* An empty one that knows its name. */
static kg_status create(struct kg_chat_template **t, const char *where,
                        struct kg_err *err)
{
    *t = kg_mem_calloc(1, sizeof **t, "chat template", err);
    if (!*t)
        return err->code;
    (*t)->pool.max_bytes = (size_t)1 << 30;
    (*t)->where = kg_mem_strdup(where, err);
    return (*t)->where ? KG_OK : err->code;
}

void kg_chat_template_close(struct kg_chat_template *t)
{
    if (!t)
        return;
    kg_jinja_pool_release(&t->pool);
    kg_json_release(&t->config);
    kg_mem_free(t->where);
    kg_mem_free(t);
}

kg_status kg_chat_template_parse(struct kg_chat_template **t, const char *text, size_t n,
                                 const char *where, struct kg_err *err)
{
    kg_status status;

    *t = NULL;
    KG_TRY_GOTO(out, create(t, where, err));
    KG_TRY_GOTO(out, parse(*t, text, n, err));
out:
    if (status != KG_OK) {
        kg_chat_template_close(*t);
        *t = NULL;
    }
    return status;
}

static kg_status open_file(struct kg_chat_template *t, const char *path,
                           struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status = kg_file_read(&text, path, KG_CHAT_TEMPLATE_MAX_BYTES, err);

    if (status == KG_OK)
        status = parse(t, kg_str_text(&text), text.len, err);
    kg_str_release(&text);
    return status;
}

/* ---- from a model's folder ---- */

/* The template of this name in a list of {"name", "template"}, or NULL. */
static const struct kg_json *find_named(const struct kg_json *list, const char *name)
{
    for (size_t i = 0; i < kg_json_size(list); i++) {
        const struct kg_json *item = kg_json_at(list, i);
        const char *has = kg_json_text(kg_json_get(item, "name"), NULL);

        if (has && strcmp(has, name) == 0)
            return kg_json_get(item, "template");
    }
    return NULL;
}

static kg_status open_config(struct kg_chat_template *t, const char *path,
                             const char *name, struct kg_err *err)
{
    const struct kg_json *v = kg_json_get(t->config.root, "chat_template");
    const char *text;
    size_t n;

    if (kg_json_type(v) == KG_JSON_ARRAY)
        v = find_named(v, name ? name : "default");
    else if (name && strcmp(name, "default") != 0)
        v = NULL;
    text = kg_json_text(v, &n);
    if (!text)
        return kg_fail(err, KG_ENOTFOUND,
                       "%s: expected chat_template.jinja, or a chat_template named '%s' "
                       "in tokenizer_config.json, found neither",
                       path, name ? name : "default");
    return parse(t, text, n, err);
}

static kg_status open_folder(struct kg_chat_template *t, const char *path,
                             const char *name, struct kg_err *err)
{
    char *config = kg_path_join(path, "tokenizer_config.json", err);
    char *file = config ? kg_path_join(path, "chat_template.jinja", err) : NULL;
    kg_status status = file ? KG_OK : err->code;

    if (file && kg_file_exists(config))
        status = kg_json_read(&t->config, config, MAX_CONFIG_BYTES, err);
    if (status == KG_OK && kg_file_exists(file) && !name)
        status = open_file(t, file, err);
    else if (status == KG_OK)
        status = open_config(t, path, name, err);
    kg_mem_free(config);
    kg_mem_free(file);
    return status;
}

kg_status kg_chat_template_open(struct kg_chat_template **t, const char *path,
                                const char *name, struct kg_err *err)
{
    kg_status status;

    *t = NULL;
    KG_TRY_GOTO(out, create(t, path, err));
    KG_TRY_GOTO(out, kg_file_is_dir(path) ? open_folder(*t, path, name, err)
                                          : open_file(*t, path, err));
out:
    if (status != KG_OK) {
        kg_chat_template_close(*t);
        *t = NULL;
    }
    return status;
}

/* ---- rendering ---- */

static kg_status set(struct kg_jinja *j, const char *name, const struct kg_jv *value)
{
    struct kg_jv key = kg_jv_text(name, strlen(name));

    return kg_jv_dict_set(j, &j->scope->vars, &key, value);
}

/* What a template finds when nobody gave it: special tokens, and what apply_chat_template
 * always passes. */
static kg_status set_defaults(struct kg_jinja *j)
{
    static const char *const tokens[] = {"bos_token", "eos_token", "unk_token",
                                         "sep_token", "pad_token", "cls_token",
                                         "mask_token"};
    struct kg_jv v = kg_jv_none();

    KG_TRY(set(j, "tools", &v));
    KG_TRY(set(j, "documents", &v));
    v = kg_jv_bool(false);
    KG_TRY(set(j, "add_generation_prompt", &v));
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        const struct kg_json *token = kg_json_get(j->t->config.root, tokens[i]);
        size_t n;
        const char *text;

        if (kg_json_type(token) == KG_JSON_OBJECT)
            token = kg_json_get(token, "content");
        text = kg_json_text(token, &n);
        if (!text)
            continue;
        v = kg_jv_text(text, n);
        KG_TRY(set(j, tokens[i], &v));
    }
    return KG_OK;
}

static kg_status set_variables(struct kg_jinja *j, const struct kg_json *variables)
{
    if (kg_json_type(variables) != KG_JSON_OBJECT)
        return kg_fail(j->err, KG_EFORMAT,
                       "%s: expected an object of variables, found %s", j->t->where,
                       kg_json_type_name(variables));
    KG_TRY(set_defaults(j));
    for (size_t i = 0; i < kg_json_size(variables); i++) {
        struct kg_jv v;

        KG_TRY(kg_jv_from_json(&v, j, kg_json_value_at(variables, i)));
        KG_TRY(set(j, kg_json_key_at(variables, i), &v));
    }
    return KG_OK;
}

static struct kg_chat_limits resolve(const struct kg_chat_limits *l)
{
    return (struct kg_chat_limits){
        .steps = l->steps ? l->steps : 50 * 1000 * 1000,
        .memory_bytes = l->memory_bytes ? l->memory_bytes : (size_t)256 << 20,
        .output_bytes = l->output_bytes ? l->output_bytes : (size_t)64 << 20,
        .depth = l->depth ? l->depth : 200,
    };
}

kg_status kg_chat_template_render(struct kg_str *out, const struct kg_chat_template *t,
                                  const struct kg_json *variables,
                                  const struct kg_chat_opts *opts, struct kg_err *err)
{
    struct kg_jinja_scope globals = {0};
    struct kg_jinja j = {.t = t,
                         .opts = opts,
                         .limits = resolve(&opts->limits),
                         .out = out,
                         .out_begin = out->len,
                         .scope = &globals,
                         .err = err};
    kg_status status;

    j.pool.max_bytes = j.limits.memory_bytes;
    j.steps = j.limits.steps;
    KG_TRY_GOTO(out, set_variables(&j, variables));
    KG_TRY_GOTO(out, kg_jinja_run(&j, t->root));
out:
    kg_jinja_pool_release(&j.pool);
    if (status != KG_OK && out->data) {
        out->len = j.out_begin;
        out->data[out->len] = 0;
    }
    return status;
}

/* ---- prompts ---- */

kg_status kg_chat_template_choose(struct kg_chat_template **t, const char *choice,
                                  const char *model_dir, struct kg_err *err)
{
    bool is_auto = strcmp(choice, "auto") == 0;
    kg_status status;

    *t = NULL;
    if (strcmp(choice, "none") == 0)
        return KG_OK;
    status = kg_chat_template_open(t, is_auto ? model_dir : choice, NULL, err);
    return is_auto && status == KG_ENOTFOUND ? KG_OK : status;
}

kg_status kg_chat_template_prompt(struct kg_str *out, const struct kg_chat_template *t,
                                  const struct kg_json *messages,
                                  const struct kg_json *tools, struct kg_err *err)
{
    const struct kg_chat_opts opts = {.no_clock = true};
    struct kg_json_doc doc = {0};
    struct kg_str json = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_str_puts(&json, "{\"add_generation_prompt\": true, ", err));
    if (tools) {
        KG_TRY_GOTO(out, kg_str_puts(&json, "\"tools\": ", err));
        KG_TRY_GOTO(out, kg_json_put_value(&json, tools, err));
        KG_TRY_GOTO(out, kg_str_puts(&json, ", ", err));
    }
    KG_TRY_GOTO(out, kg_str_puts(&json, "\"messages\": ", err));
    KG_TRY_GOTO(out, kg_json_put_value(&json, messages, err));
    KG_TRY_GOTO(out, kg_str_puts(&json, "}", err));
    KG_TRY_GOTO(out, kg_json_parse(&doc, json.data, json.len, "messages", err));
    status = kg_chat_template_render(out, t, doc.root, &opts, err);
out:
    kg_json_release(&doc);
    kg_str_release(&json);
    return status;
}
