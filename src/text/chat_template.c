/* Chat templates from a file or a model's folder, and the start of a rendering. A
 * template is parsed once, into its own pool; every rendering has another pool. What
 * apply_chat_template does to messages before rendering is done here, for every command.
 * A template file overrides tokenizer_config.json, as in transformers. The language is in
 * jinja*.c. */
#define _GNU_SOURCE /* strptime, timegm */
#include "text/chat_template.h"

#include "base/file.h"
#include "base/mem.h"
#include "data/source.h"
#include "text/jinja_internal.h"
#include "text/unicode.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MAX_CONFIG_BYTES = 64 << 20, MAX_TREE_BYTES = 256 << 20, FIRST_BYTES = 16 << 10 };

/* ---- creating a template ---- */

/* Line ends become LF; one at the end of the template is dropped. */
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

    if (n > KG_CHAT_TEMPLATE_MAX_BYTES)
        return kg_fail(err, KG_EFORMAT, "%s: expected at most %d bytes, found %zu",
                       t->where, KG_CHAT_TEMPLATE_MAX_BYTES, n);
    if (kg_utf8_check(text, n, err) != KG_OK)
        return kg_err_prefix(err, "%s", t->where);
    char *source = kg_pool_alloc(&t->pool, n + 1, 1, err);
    if (!source)
        return err->code;
    n = normalise(source, text, n);
    source[n] = 0;
    KG_TRY(kg_jinja_lex(&tokens, t, source, n, err));
    return kg_jinja_parse(t, tokens, err);
}

/* An empty template with its name. */
static kg_status create(struct kg_chat_template **t, const char *where,
                        struct kg_err *err)
{
    KG_TRY(kg_mem_new(t, 1, sizeof **t, "chat template", err));
    (*t)->pool = (struct kg_pool){.name = "chat template", .max_bytes = MAX_TREE_BYTES};
    (*t)->where = kg_mem_strdup(where, err);
    return (*t)->where ? KG_OK : err->code;
}

void kg_chat_template_close(struct kg_chat_template *t)
{
    if (!t)
        return;
    kg_pool_release(&t->pool);
    kg_json_release(&t->config);
    kg_chat_template_close(t->with_tools);
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

/* The templates of a folder: chat_template.jinja is `default`, and those of
 * additional_chat_templates/ have the names of their files. Only without these files are
 * the templates of tokenizer_config.json used. */
#define MORE "additional_chat_templates"

static const char *name_of(const struct kg_json *item)
{
    return kg_json_text(kg_json_get(item, "name"), NULL);
}

/* The template of this name, or NULL. v: a text (`default`), an object of templates, or a
 * list of {"name", "template"}, where the last one counts. */
static const struct kg_json *find_named(const struct kg_json *v, const char *name)
{
    if (kg_json_type(v) == KG_JSON_OBJECT)
        return kg_json_get(v, name);
    if (kg_json_type(v) != KG_JSON_ARRAY)
        return strcmp(name, "default") == 0 ? v : NULL;
    for (size_t i = kg_json_size(v); i-- > 0;) {
        const char *has = name_of(kg_json_at(v, i));

        if (has && strcmp(has, name) == 0)
            return kg_json_get(kg_json_at(v, i), "template");
    }
    return NULL;
}

/* The path of the file for the template of this name. */
static kg_status file_of(struct kg_str *path, const char *dir, const char *name,
                         struct kg_err *err)
{
    if (strcmp(name, "default") == 0)
        return kg_str_printf(path, err, "%s/chat_template.jinja", dir);
    if (strchr(name, '/'))
        return kg_fail(err, KG_EINVAL,
                       "expected the name of a chat template, found '%.80s'", name);
    return kg_str_printf(path, err, "%s/" MORE "/%s.jinja", dir, name);
}

static kg_status add_name(struct kg_str *names, const char *name, size_t n,
                          struct kg_err *err)
{
    KG_TRY(kg_str_puts(names, names->len ? "\n" : "", err));
    return kg_str_append(names, name, n, err);
}

/* An absent file leaves doc empty. */
static kg_status read_config(struct kg_json_doc *doc, const char *dir, struct kg_err *err)
{
    return kg_source_json_or_none(doc, dir, "tokenizer_config.json", MAX_CONFIG_BYTES,
                                  err);
}

static kg_status add_files(struct kg_str *names, const char *dir, struct kg_err *err)
{
    const struct kg_path more = kg_path_in(dir, MORE);
    char **files = NULL;
    size_t n = 0;
    kg_status status = KG_OK;

    if (kg_file_exists(kg_path_in(dir, "chat_template.jinja").text))
        KG_TRY(add_name(names, "default", strlen("default"), err));
    if (kg_file_is_dir(more.text))
        status = kg_file_list(&files, &n, more.text, err);
    for (size_t i = 0; i < n && status == KG_OK; i++) {
        size_t len = strlen(files[i]);

        if (len > 6 && strcmp(files[i] + len - 6, ".jinja") == 0)
            status = add_name(names, files[i], len - 6, err);
    }
    kg_file_names_free(files, n);
    return status;
}

static kg_status add_configured(struct kg_str *names, const struct kg_json *v,
                                struct kg_err *err)
{
    if (kg_json_type(v) == KG_JSON_STRING)
        return add_name(names, "default", strlen("default"), err);
    for (size_t i = 0; kg_json_type(v) == KG_JSON_OBJECT && i < kg_json_size(v); i++)
        KG_TRY(add_name(names, kg_json_key_at(v, i), strlen(kg_json_key_at(v, i)), err));
    for (size_t i = 0; kg_json_type(v) == KG_JSON_ARRAY && i < kg_json_size(v); i++) {
        const char *name = name_of(kg_json_at(v, i));

        if (name)
            KG_TRY(add_name(names, name, strlen(name), err));
    }
    return KG_OK;
}

kg_status kg_chat_template_names(struct kg_str *names, const char *dir,
                                 struct kg_err *err)
{
    struct kg_json_doc doc = {0};

    KG_TRY(add_files(names, dir, err));
    if (names->len > 0)
        return KG_OK;
    KG_TRY(read_config(&doc, dir, err));
    kg_status status = add_configured(names, kg_json_get(doc.root, "chat_template"), err);
    kg_json_release(&doc);
    return status;
}

static kg_status fail_named(const char *dir, const char *name, struct kg_err *err)
{
    struct kg_str names = {0};
    struct kg_err ignored;

    if (kg_chat_template_names(&names, dir, &ignored) != KG_OK)
        kg_str_clear(&names);
    for (size_t i = 0; i < names.len; i++)
        names.data[i] = names.data[i] == '\n' ? ' ' : names.data[i];
    kg_status status = kg_fail(err, KG_ENOTFOUND,
                               "%s: expected a chat template named '%.80s' in "
                               "chat_template.jinja, " MORE
                               " or tokenizer_config.json, found %.300s",
                               dir, name, names.len ? names.data : "none");
    kg_str_release(&names);
    return status;
}

static kg_status open_config(struct kg_chat_template *t, const char *dir,
                             const char *name, struct kg_err *err)
{
    const struct kg_json *v = kg_json_get(t->config.root, "chat_template");
    size_t n;
    const char *text = kg_json_text(find_named(v, name), &n);

    return text ? parse(t, text, n, err) : fail_named(dir, name, err);
}

/* If a folder has template files, those of tokenizer_config.json are not used. */
static kg_status open_folder(struct kg_chat_template *t, const char *dir,
                             const char *name, struct kg_err *err)
{
    struct kg_str file = {0}, files = {0};
    kg_status status;

    KG_TRY_GOTO(out, file_of(&file, dir, name, err));
    KG_TRY_GOTO(out, add_files(&files, dir, err));
    KG_TRY_GOTO(out, read_config(&t->config, dir, err));
    if (kg_file_exists(file.data))
        status = open_file(t, file.data, err);
    else if (files.len > 0)
        status = fail_named(dir, name, err);
    else
        status = open_config(t, dir, name, err);
out:
    kg_str_release(&files);
    kg_str_release(&file);
    return status;
}

/* Opens one template, without that for tools. */
static kg_status open_one(struct kg_chat_template **t, const char *path, const char *name,
                          struct kg_err *err)
{
    kg_status status;

    *t = NULL;
    KG_TRY_GOTO(out, create(t, path, err));
    KG_TRY_GOTO(out, kg_source_is_model(path)
                         ? open_folder(*t, path, name ? name : "default", err)
                         : open_file(*t, path, err));
out:
    if (status != KG_OK) {
        kg_chat_template_close(*t);
        *t = NULL;
    }
    return status;
}

kg_status kg_chat_template_open(struct kg_chat_template **t, const char *path,
                                const char *name, struct kg_err *err)
{
    KG_TRY(open_one(t, path, name, err));
    if (name || !kg_source_is_model(path))
        return KG_OK;
    kg_status status = open_one(&(*t)->with_tools, path, "tool_use", err);
    if (status == KG_OK || status == KG_ENOTFOUND)
        return KG_OK;
    kg_chat_template_close(*t);
    *t = NULL;
    return status;
}

/* ---- rendering ---- */

static kg_status put_member(struct kg_jinja *j, struct kg_jv_dict *d, const char *name,
                            const struct kg_jv *value)
{
    struct kg_jv key = kg_jv_text(name, strlen(name));

    return kg_jv_dict_set(j, d, &key, value);
}

static kg_status set(struct kg_jinja *j, const char *name, const struct kg_jv *value)
{
    return put_member(j, &j->scope->vars, name, value);
}

const struct kg_json *kg_chat_thought(const struct kg_json *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct kg_json *v = kg_json_get(message, names[i]);

        if (kg_json_type(v) != KG_JSON_NULL)
            return v;
    }
    return NULL;
}

/* A message as apply_chat_template passes it: without null members, and with its thought
 * as `reasoning_content`, for most templates, and as `thinking`, for gpt-oss. */
static kg_status put_message(struct kg_jv *out, struct kg_jinja *j,
                             const struct kg_json *message)
{
    const struct kg_json *thought = kg_chat_thought(message);
    struct kg_jv v, thinking;

    KG_TRY(kg_jv_dict_new(out, j));
    KG_TRY(kg_jv_from_json(&thinking, j, thought));
    if (thought)
        KG_TRY(put_member(j, out->u.dict, "thinking", &thinking));
    for (size_t i = 0; i < kg_json_size(message); i++) {
        const struct kg_json *value = kg_json_value_at(message, i);

        if (kg_json_type(value) == KG_JSON_NULL)
            continue;
        KG_TRY(kg_jv_from_json(&v, j, value));
        KG_TRY(put_member(j, out->u.dict, kg_json_key_at(message, i), &v));
    }
    return thought ? put_member(j, out->u.dict, "reasoning_content", &thinking) : KG_OK;
}

static kg_status put_messages(struct kg_jv *out, struct kg_jinja *j,
                              const struct kg_json *messages)
{
    if (kg_json_type(messages) != KG_JSON_ARRAY)
        return kg_jv_from_json(out, j, messages);
    KG_TRY(kg_jv_list_new(out, j, kg_json_size(messages), KG_JV_PLAIN));
    for (size_t i = 0; i < kg_json_size(messages); i++) {
        const struct kg_json *m = kg_json_at(messages, i);
        struct kg_jv v;

        KG_TRY(kg_json_type(m) == KG_JSON_OBJECT ? put_message(&v, j, m)
                                                 : kg_jv_from_json(&v, j, m));
        KG_TRY(kg_jv_push(j, out, &v));
    }
    return KG_OK;
}

/* Sets the keys of an object that end in `end` and have a token: text, or {"content"}. */
static kg_status set_tokens(struct kg_jinja *j, const struct kg_json *tokens,
                            const char *end)
{
    for (size_t i = 0; kg_json_type(tokens) == KG_JSON_OBJECT && i < kg_json_size(tokens);
         i++) {
        const char *name = kg_json_key_at(tokens, i);
        const struct kg_json *token = kg_json_value_at(tokens, i);
        size_t n, k = strlen(name), m = strlen(end);

        if (kg_json_type(token) == KG_JSON_OBJECT)
            token = kg_json_get(token, "content");
        const char *text = kg_json_text(token, &n);
        if (!text || k < m || strcmp(name + k - m, end) != 0)
            continue;
        struct kg_jv v = kg_jv_text(text, n);
        KG_TRY(set(j, name, &v));
    }
    return KG_OK;
}

/* The variables that exist without being passed: special tokens, and those that
 * apply_chat_template always sets. */
static kg_status set_defaults(struct kg_jinja *j)
{
    const struct kg_json *config = j->t->config.root;
    struct kg_jv v = kg_jv_none();

    KG_TRY(set(j, "tools", &v));
    KG_TRY(set(j, "documents", &v));
    v = kg_jv_bool(false);
    KG_TRY(set(j, "add_generation_prompt", &v));
    KG_TRY(set_tokens(j, config, "_token"));
    KG_TRY(set_tokens(j, kg_json_get(config, "extra_special_tokens"), ""));
    return set_tokens(j, kg_json_get(config, "model_specific_special_tokens"), "");
}

static kg_status set_variables(struct kg_jinja *j, const struct kg_json *variables)
{
    if (kg_json_type(variables) != KG_JSON_OBJECT)
        return kg_fail(j->err, KG_EFORMAT,
                       "%s: expected an object of variables, found %s", j->t->where,
                       kg_json_type_name(variables));
    KG_TRY(set_defaults(j));
    for (size_t i = 0; i < kg_json_size(variables); i++) {
        const char *name = kg_json_key_at(variables, i);
        const struct kg_json *value = kg_json_value_at(variables, i);
        struct kg_jv v;

        KG_TRY(strcmp(name, "messages") == 0 ? put_messages(&v, j, value)
                                             : kg_jv_from_json(&v, j, value));
        KG_TRY(set(j, name, &v));
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
    bool tools = kg_json_type(kg_json_get(variables, "tools")) != KG_JSON_NULL;
    struct kg_jinja_scope globals = {0};
    struct kg_jinja j = {.t = tools && t->with_tools ? t->with_tools : t,
                         .opts = opts,
                         .limits = resolve(&opts->limits),
                         .out = out,
                         .out_begin = out->len,
                         .scope = &globals,
                         .err = err};
    size_t out_max = out->max;
    kg_status status;

    j.pool = (struct kg_pool){.name = "chat template",
                              .max_bytes = j.limits.memory_bytes,
                              .first_bytes = FIRST_BYTES};
    j.steps = j.limits.steps;
    if (!out_max || out_max > j.out_begin + j.limits.output_bytes)
        out->max = j.out_begin + j.limits.output_bytes; /* caps the buffer's growth */
    KG_TRY_GOTO(out, set_variables(&j, variables));
    KG_TRY_GOTO(out, kg_jinja_run(&j, j.t->root));
out:
    out->max = out_max;
    kg_pool_release(&j.pool);
    if (status != KG_OK && out->data) {
        out->len = j.out_begin;
        out->data[out->len] = 0;
    }
    return status;
}

/* ---- the date ---- */

bool kg_chat_template_asks_date(const struct kg_chat_template *t)
{
    return t && (t->asks_date || kg_chat_template_asks_date(t->with_tools));
}

struct kg_chat_day kg_chat_today(void)
{
    struct kg_chat_day day = {""};
    time_t now = time(NULL);
    struct tm tm;

    if (localtime_r(&now, &tm))
        strftime(day.text, sizeof day.text, "%Y-%m-%d", &tm);
    return day;
}

kg_status kg_chat_date(int64_t *now_s, const char *text, struct kg_err *err)
{
    struct tm tm = {.tm_hour = 12};
    char again[16] = "";

    *now_s = 0;
    if (!text || !*text)
        return KG_OK;
    if (strptime(text, "%Y-%m-%d", &tm)) {
        *now_s = timegm(&tm); /* turns February 30 into a day of March */
        strftime(again, sizeof again, "%Y-%m-%d", &tm);
    }
    if (strcmp(text, again) == 0)
        return KG_OK;
    return kg_fail(err, KG_EINVAL, "expected a day as YYYY-MM-DD, found '%.40s'", text);
}

/* ---- prompts ---- */

/* A folder with templates but no `default` does not tell which one to use. */
static kg_status check_none(const char *dir, struct kg_err *err)
{
    struct kg_str names = {0};
    kg_status status = kg_chat_template_names(&names, dir, err);

    if (status == KG_OK && names.len > 0) {
        status = fail_named(dir, "default", err);
        kg_err_prefix(err, "chat template auto (or pass a file)");
    }
    kg_str_release(&names);
    return status;
}

kg_status kg_chat_template_choose(struct kg_chat_template **t, const char *choice,
                                  const char *model_dir, struct kg_err *err)
{
    bool is_auto = strcmp(choice, "auto") == 0;

    *t = NULL;
    if (strcmp(choice, "none") == 0)
        return KG_OK;
    kg_status status = kg_chat_template_open(t, is_auto ? model_dir : choice, NULL, err);
    if (is_auto && status == KG_ENOTFOUND)
        return check_none(model_dir, err);
    KG_TRY(status);
    /* a template from a file uses the special tokens of the model's folder */
    if (kg_source_is_model(choice) || is_auto || !model_dir ||
        read_config(&(*t)->config, model_dir, err) == KG_OK)
        return KG_OK;
    kg_chat_template_close(*t);
    *t = NULL;
    return err->code;
}

/* ---- the trial rendering ---- */

const struct kg_chat_opts kg_chat_trial = {.limits = {.steps = 2 * 1000 * 1000,
                                                      .memory_bytes = 64 << 20,
                                                      .output_bytes = 1 << 20},
                                           .now_s = 1752148800};

static kg_status try_on(struct kg_str *out, const struct kg_chat_template *t,
                        const char *word, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    char vars[128];

    snprintf(vars, sizeof vars,
             "{\"add_generation_prompt\": true, \"messages\": [{\"role\": \"user\", "
             "\"content\": \"%s\"}]}",
             word);
    KG_TRY(kg_json_parse(&doc, vars, strlen(vars), "trial", err));
    kg_status status = kg_chat_template_render(out, t, doc.root, &kg_chat_trial, err);
    kg_json_release(&doc);
    return status;
}

kg_status kg_chat_template_try(const struct kg_chat_template *t, struct kg_err *err)
{
    struct kg_str one = {0}, other = {0};
    kg_status status = try_on(&one, t, "Hello", err);

    if (status == KG_OK)
        status = try_on(&other, t, "Thanks", err);
    if (status == KG_OK && strcmp(kg_str_text(&one), kg_str_text(&other)) == 0)
        status = kg_fail(err, KG_EFORMAT,
                         "expected a chat template that writes the user's text, found "
                         "one that leaves it out");
    kg_str_release(&one);
    kg_str_release(&other);
    return status;
}
