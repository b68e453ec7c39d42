/* Options: a value for every row of the tables, filled from YAML, assignments and
 * presets.
 *
 * Not a YAML library: of YAML's grammar only mappings, lists of scalars and scalars are
 * accepted. Anchors, tags, `yes` for true, duplicate keys and several documents are
 * refused, and the message gives the line. The idea: a value is kept as the given text
 * and checked against its row when it arrives. Every error therefore names the place that
 * the value came from, and the dump has the text that the user wrote.
 *
 * A list is kept joined by line breaks; inside an item a backslash and a line break are
 * written \\ and \n, so that any text can be an item. libyaml allocates by itself, so the
 * size and depth of what it reads are bounded here.
 */
#include "data/options.h"

#include "base/mem.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

enum {
    MAX_FILE_BYTES = 1 << 20,
    MAX_KEY_BYTES = 128,
    MAX_DEPTH = 8,
    MAX_ROWS = 1 << 16,
};

struct value {
    const char *key; /* row->key; the first member, for kg_str_nearest */
    const struct kg_opt_row *row;
    char *text;              /* owned; NULL: not given */
    char *source;            /* owned; NULL: not given */
    struct kg_opt_list list; /* of a LIST: the text's items; its block is owned */
    char **instead; /* NULL, or (count_items) stand-ins for the items, or for the text:
                     * owned, like their strings; NULL: no stand-in */
    struct kg_opt_list filled; /* LIST with stand-ins: items of kg_config_fill; owned */
    bool weak;
    unsigned parse; /* number of the last parse that gave it, to find duplicates */
};

struct kg_config {
    struct value *values; /* owned (n), in table order */
    size_t n;
    unsigned parses;
};

/* ---- the table ---- */

static bool in_section(const char *key, const char *section, size_t n)
{
    return strncmp(key, section, n) == 0 && key[n] == '.';
}

static size_t section_bytes(const char *key)
{
    const char *dot = strrchr(key, '.');

    return dot ? (size_t)(dot - key) : 0;
}

static bool is_section(const struct kg_config *config, const char *path)
{
    size_t n = strlen(path);

    for (size_t i = 0; i < config->n; i++)
        if (in_section(config->values[i].key, path, n))
            return true;
    return false;
}

static struct value *find(const struct kg_config *config, const char *key)
{
    for (size_t i = 0; i < config->n; i++)
        if (strcmp(config->values[i].key, key) == 0)
            return &config->values[i];
    return NULL;
}

static const struct value *need(const struct kg_config *config, const char *key)
{
    const struct value *v = find(config, key);

    assert(v && "the key is in the table");
    return v;
}

static const char *text_of(const struct value *v)
{
    if (v->text)
        return v->text;
    return v->row->fallback ? v->row->fallback : "";
}

/* ---- names for "did you mean" ---- */

struct names {
    struct kg_str pool; /* names, each with its NUL */
    const char **at;    /* owned (n), into the pool; made by names_hint */
    size_t n;
};

static bool names_have(const struct names *names, const char *text, size_t n)
{
    for (size_t i = 0; i < names->pool.len; i += strlen(names->pool.data + i) + 1)
        if (strlen(names->pool.data + i) == n &&
            memcmp(names->pool.data + i, text, n) == 0)
            return true;
    return false;
}

static kg_status names_add(struct names *names, const char *text, size_t n,
                           struct kg_err *err)
{
    if (names_have(names, text, n))
        return KG_OK;
    KG_TRY(kg_str_append(&names->pool, text, n, err));
    KG_TRY(kg_str_putc(&names->pool, '\0', err));
    names->n++;
    return KG_OK;
}

/* Appends "; did you mean 'x'?", or the valid names if none is near. */
static kg_status names_hint(struct kg_str *out, struct names *names, const char *text,
                            struct kg_err *err)
{
    const char *p = names->pool.data;

    KG_TRY(kg_mem_new(&names->at, names->n, sizeof *names->at, "names", err));
    for (size_t i = 0; i < names->n; i++, p += strlen(p) + 1)
        names->at[i] = p;
    const char *near = kg_str_nearest(text, names->at, names->n, sizeof *names->at);
    if (near)
        return kg_str_printf(out, err, "; did you mean '%s'?", near);
    for (size_t i = 0; i < names->n; i++)
        KG_TRY(kg_str_printf(out, err, "%s%s", i ? ", " : "; valid: ", names->at[i]));
    return KG_OK;
}

/* ---- errors about keys ---- */

/* Rows of other sections with the same last part, such as optim.lr for train.lr. */
static kg_status hint_same_name(struct kg_str *out, const struct kg_config *config,
                                const char *path, struct kg_err *err)
{
    const char *dot = strrchr(path, '.');
    const char *name = dot ? dot + 1 : path;
    const char *before = "; did you mean ";

    for (size_t i = 0; i < config->n; i++) {
        const char *key = config->values[i].key;
        if (strcmp(key + section_bytes(key) + (section_bytes(key) > 0), name) != 0)
            continue;
        KG_TRY(kg_str_printf(out, err, "%s'%s'", before, key));
        before = " or ";
    }
    return out->len > 0 ? kg_str_putc(out, '?', err) : KG_OK;
}

/* The nearest key of a known section by its last part; the section agrees already. */
static kg_status nearest_in_section(const char **near, const struct kg_config *config,
                                    const char *path, size_t section, struct kg_err *err)
{
    size_t n = 0;
    const char **at = kg_mem_calloc(config->n, sizeof *at, "names", err);

    if (!at)
        return KG_ENOMEM;
    for (size_t i = 0; i < config->n; i++)
        if (in_section(config->values[i].key, path, section))
            at[n++] = config->values[i].key + section + 1;
    *near = kg_str_nearest(path + section + 1, at, n, sizeof *at);
    if (*near)
        *near -= section + 1; /* back to the start of the key */
    kg_mem_free(at);
    return KG_OK;
}

/* Lists the keys of a known section, else the sections. */
static kg_status hint_valid(struct kg_str *out, const struct kg_config *config,
                            const char *path, size_t section, struct kg_err *err)
{
    struct names names = {0};
    char name[MAX_KEY_BYTES]; /* is compared with the valid names */
    kg_status status = KG_OK;

    snprintf(name, sizeof name, "%s", path);
    if (section == 0 && section_bytes(path) > 0)
        name[section_bytes(path)] = '\0';
    for (size_t i = 0; i < config->n && status == KG_OK; i++) {
        const char *key = config->values[i].key;
        if (section == 0)
            status = names_add(&names, key, section_bytes(key), err);
        else if (in_section(key, path, section))
            status = names_add(&names, key, strlen(key), err);
    }
    if (status == KG_OK)
        status = names_hint(out, &names, name, err);
    kg_str_release(&names.pool);
    kg_mem_free(names.at);
    return status;
}

/* Nearest key, else the same name in other sections, else the valid names. */
static kg_status hint_key(struct kg_str *out, const struct kg_config *config,
                          const char *path, bool known_section, struct kg_err *err)
{
    size_t section = section_bytes(path);
    const char *near = NULL;

    if (known_section)
        KG_TRY(nearest_in_section(&near, config, path, section, err));
    else if (section)
        near = kg_str_nearest(path, config->values, config->n, sizeof *config->values);
    if (near)
        return kg_str_printf(out, err, "; did you mean '%s'?", near);
    KG_TRY(hint_same_name(out, config, path, err));
    if (out->len > 0)
        return KG_OK;
    return hint_valid(out, config, path, known_section ? section : 0, err);
}

static kg_status fail_unknown(const struct kg_config *config, const char *path,
                              const char *where, struct kg_err *err)
{
    struct kg_str hint = {0};
    char section[MAX_KEY_BYTES];
    size_t n = section_bytes(path);

    snprintf(section, sizeof section, "%.*s", (int)n, path);
    bool known = n > 0 && is_section(config, section);
    kg_status status = hint_key(&hint, config, path, known, err);
    if (status == KG_OK && n > 0 && !known)
        status = kg_fail(err, KG_EINVAL, "%s: unknown section '%s' in '%s'%s", where,
                         section, path, kg_str_text(&hint));
    else if (status == KG_OK)
        status = kg_fail(err, KG_EINVAL, "%s: unknown %s '%s'%s", where,
                         known ? "key" : "section", path, kg_str_text(&hint));
    kg_str_release(&hint);
    return status;
}

/* ---- lists ---- */

/* Splits a list's text into items.   returns one block: the pointers, then the bytes */
static const char *const *split_list(size_t *n, const char *text, struct kg_err *err)
{
    size_t bytes = strlen(text) + 1;
    char **items, *to;

    *n = *text ? 1 : 0;
    for (const char *p = text; *p; p++)
        *n += *p == '\n';
    items = kg_mem_calloc(1, *n * sizeof *items + bytes, "list", err);
    if (!items)
        return NULL;
    to = (char *)(items + *n);
    for (size_t i = 0; i < *n; i++, text++) {
        items[i] = to;
        for (; *text && *text != '\n'; text++) {
            bool escaped = *text == '\\' && text[1] && text[1] != '\n';

            text += escaped;
            *to++ = escaped && *text == 'n' ? '\n' : *text;
        }
        *to++ = '\0';
    }
    return (const char *const *)items;
}

static size_t count_items(const struct value *v)
{
    return v->row->type == KG_OPT_LIST ? v->list.n : 1;
}

static void forget_instead(struct value *v)
{
    for (size_t i = 0; v->instead && i < count_items(v); i++)
        kg_mem_free(v->instead[i]);
    kg_mem_free(v->instead);
    kg_mem_free((void *)(uintptr_t)v->filled.items);
    v->instead = NULL;
    v->filled = (struct kg_opt_list){0};
}

static void free_list(struct value *v)
{
    forget_instead(v);
    kg_mem_free((void *)(uintptr_t)v->list.items);
    v->list = (struct kg_opt_list){0};
}

static kg_status fill_list(struct value *v, const char *text, struct kg_err *err)
{
    struct kg_opt_list list = {0};

    if (v->row->type != KG_OPT_LIST)
        return KG_OK;
    list.items = split_list(&list.n, text, err);
    if (!list.items)
        return KG_ENOMEM;
    free_list(v);
    v->list = list;
    return KG_OK;
}

static kg_status give(struct value *v, const char *text, bool weak, const char *where,
                      struct kg_err *err)
{
    KG_TRY(kg_opt_check(v->row, text, where, err));
    if (weak && v->text && !v->weak)
        return KG_OK;
    KG_TRY(fill_list(v, text, err));
    char *fresh = kg_mem_strdup(text, err);
    char *source = fresh ? kg_mem_strdup(where, err) : NULL;
    if (!source) {
        kg_mem_free(fresh);
        return KG_ENOMEM;
    }
    forget_instead(v);
    kg_mem_free(v->text);
    kg_mem_free(v->source);
    v->text = fresh;
    v->source = source;
    v->weak = weak;
    return KG_OK;
}

static kg_status put_item(struct kg_str *out, const char *item, struct kg_err *err)
{
    if (out->len > 0)
        KG_TRY(kg_str_putc(out, '\n', err));
    for (; *item; item++) {
        if (*item == '\\' || *item == '\n') {
            KG_TRY(kg_str_puts(out, *item == '\n' ? "\\n" : "\\\\", err));
            continue;
        }
        KG_TRY(kg_str_putc(out, *item, err));
    }
    return KG_OK;
}

/* ---- YAML ---- */

struct parse {
    yaml_parser_t yaml;
    yaml_event_t event; /* the current one; owned */
    struct kg_config *config;
    const char *name; /* of the source, borrowed */
    const char *key;  /* the source is a value of this key; NULL: a file, with lines */
    char where[KG_ERR_MESSAGE_BYTES / 2]; /* place of the event in errors */
    struct kg_str sections;               /* "\nsection\n..." seen so far */
    struct kg_err *err;
};

static const char *place(struct parse *p, size_t line)
{
    if (p->key)
        snprintf(p->where, sizeof p->where, "%.300s: %s", p->name, p->key);
    else
        snprintf(p->where, sizeof p->where, "%.300s line %zu", p->name, line + 1);
    return p->where;
}

/* The place, for messages that name the key themselves. */
static const char *source_of(const struct parse *p)
{
    return p->key ? p->name : p->where;
}

static kg_status refuse_value(struct parse *p, const struct value *v, const char *found)
{
    return kg_opt_refuse(v->row, found, source_of(p), p->err);
}

static kg_status fail_yaml(struct parse *p)
{
    const yaml_parser_t *y = &p->yaml;

    if (y->error == YAML_MEMORY_ERROR)
        return kg_fail(p->err, KG_ENOMEM, "%s: out of memory while reading YAML",
                       p->name);
    if (y->error == YAML_READER_ERROR)
        return kg_fail(p->err, KG_EFORMAT,
                       "%s: expected YAML in UTF-8, found at byte %zu: %s",
                       p->key ? place(p, 0) : p->name, y->problem_offset, y->problem);
    return kg_fail(p->err, KG_EFORMAT, "%s: expected YAML, found at column %zu: %s",
                   place(p, y->problem_mark.line), y->problem_mark.column + 1,
                   y->problem ? y->problem : "an error");
}

static kg_status refuse_tricks(struct parse *p)
{
    const yaml_event_t *e = &p->event;
    const void *anchor = NULL;
    const void *tag = NULL;

    if (e->type == YAML_ALIAS_EVENT)
        anchor = e->data.alias.anchor;
    if (e->type == YAML_SCALAR_EVENT) {
        anchor = e->data.scalar.anchor;
        tag = e->data.scalar.tag;
    }
    if (e->type == YAML_SEQUENCE_START_EVENT) {
        anchor = e->data.sequence_start.anchor;
        tag = e->data.sequence_start.tag;
    }
    if (e->type == YAML_MAPPING_START_EVENT) {
        anchor = e->data.mapping_start.anchor;
        tag = e->data.mapping_start.tag;
    }
    if (anchor)
        return kg_fail(p->err, KG_EFORMAT, "%s: expected plain values, found %s '%s'",
                       p->where, e->type == YAML_ALIAS_EVENT ? "the alias" : "the anchor",
                       (const char *)anchor);
    if (tag)
        return kg_fail(p->err, KG_EFORMAT,
                       "%s: expected plain values, found the tag '%s'", p->where,
                       (const char *)tag);
    return KG_OK;
}

static kg_status next_event(struct parse *p)
{
    yaml_event_delete(&p->event);
    if (!yaml_parser_parse(&p->yaml, &p->event))
        return fail_yaml(p);
    place(p, p->event.start_mark.line);
    return refuse_tricks(p);
}

static const char *scalar_text(const struct parse *p)
{
    return (const char *)p->event.data.scalar.value;
}

static bool is_plain(const struct parse *p)
{
    return p->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

static bool is_null(const struct parse *p)
{
    const char *text = scalar_text(p);

    return is_plain(p) && (!*text || strcmp(text, "~") == 0 || strcmp(text, "null") == 0);
}

static kg_status no_nul(struct parse *p)
{
    if (strlen(scalar_text(p)) == p->event.data.scalar.length)
        return KG_OK;
    return kg_fail(p->err, KG_EFORMAT,
                   "%s: expected text without NUL characters, found one", p->where);
}

/* The current event is a key; path <- prefix.key */
static kg_status read_key(char path[MAX_KEY_BYTES], struct parse *p, const char *prefix)
{
    if (p->event.type != YAML_SCALAR_EVENT || is_null(p))
        return kg_fail(p->err, KG_EFORMAT, "%s: expected a key such as 'train', found %s",
                       p->where,
                       p->event.type == YAML_SCALAR_EVENT ? "nothing" : "a collection");
    KG_TRY(no_nul(p));
    int n = snprintf(path, MAX_KEY_BYTES, "%s%s%s", prefix, *prefix ? "." : "",
                     scalar_text(p));
    if (n >= MAX_KEY_BYTES)
        return kg_fail(
            p->err, KG_EFORMAT,
            "%s: expected a key of at most %d bytes, found %d, beginning '%.40s'",
            p->where, MAX_KEY_BYTES - 1, n, path);
    return KG_OK;
}

static kg_status read_items(struct parse *p, struct value *v)
{
    struct kg_str items = {0};
    size_t first_line = p->event.start_mark.line;
    kg_status status;

    for (;;) {
        KG_TRY_GOTO(out, next_event(p));
        if (p->event.type == YAML_SEQUENCE_END_EVENT)
            break;
        if (p->event.type != YAML_SCALAR_EVENT) {
            status = refuse_value(p, v, "a collection inside the list");
            goto out;
        }
        KG_TRY_GOTO(out, no_nul(p));
        if (is_null(p) || !*scalar_text(p)) {
            status = refuse_value(p, v, "an empty item");
            goto out;
        }
        KG_TRY_GOTO(out, put_item(&items, scalar_text(p), p->err));
    }
    place(p, first_line);
    status = give(v, kg_str_text(&items), false, source_of(p), p->err);
out:
    kg_str_release(&items);
    return status;
}

static kg_status read_scalar(struct parse *p, struct value *v)
{
    struct kg_str item = {0};

    KG_TRY(no_nul(p));
    if (is_null(p))
        return refuse_value(p, v, "nothing (write '' for the empty text)");
    if (v->row->type != KG_OPT_LIST)
        return give(v, scalar_text(p), false, source_of(p), p->err);
    kg_status status = put_item(&item, scalar_text(p), p->err);
    if (status == KG_OK)
        status = give(v, kg_str_text(&item), false, source_of(p), p->err);
    kg_str_release(&item);
    return status;
}

/* The current event begins the value of v. */
static kg_status read_value(struct parse *p, struct value *v)
{
    if (v->parse == p->config->parses)
        return kg_fail(p->err, KG_EFORMAT, "%s: expected '%s' once, found it again",
                       p->where, v->key);
    v->parse = p->config->parses;
    if (p->event.type == YAML_SCALAR_EVENT)
        return read_scalar(p, v);
    if (p->event.type == YAML_SEQUENCE_START_EVENT && v->row->type == KG_OPT_LIST)
        return read_items(p, v);
    return refuse_value(p, v,
                        p->event.type == YAML_SEQUENCE_START_EVENT ? "a list"
                                                                   : "a mapping of keys");
}

static kg_status read_mapping(struct parse *p, const char *prefix, int depth);

/* The current event begins the contents of a section. A section may have none. */
static kg_status read_section(struct parse *p, const char *path, int depth)
{
    char marked[MAX_KEY_BYTES + 4];

    snprintf(marked, sizeof marked, "\n%s\n", path);
    if (strstr(kg_str_text(&p->sections), marked))
        return kg_fail(p->err, KG_EFORMAT,
                       "%s: expected section '%s' once, found it again", p->where, path);
    KG_TRY(kg_str_puts(&p->sections, marked, p->err));
    if (p->event.type == YAML_MAPPING_START_EVENT && depth < MAX_DEPTH)
        return read_mapping(p, path, depth + 1);
    if (p->event.type == YAML_SCALAR_EVENT && is_null(p))
        return KG_OK;
    return kg_fail(p->err, KG_EINVAL,
                   "%s: expected keys below the section '%s', found %s", p->where, path,
                   p->event.type == YAML_SCALAR_EVENT ? "a value" : "another collection");
}

static kg_status read_mapping(struct parse *p, const char *prefix, int depth)
{
    char path[MAX_KEY_BYTES];

    for (;;) {
        KG_TRY(next_event(p));
        if (p->event.type == YAML_MAPPING_END_EVENT)
            return KG_OK;
        KG_TRY(read_key(path, p, prefix));
        struct value *v = find(p->config, path);
        if (!v && !is_section(p->config, path))
            return fail_unknown(p->config, path, p->where, p->err);
        KG_TRY(next_event(p));
        KG_TRY(v ? read_value(p, v) : read_section(p, path, depth));
    }
}

/* Reads one document: a value of v, or, if v is NULL, a mapping of sections. */
static kg_status read_document(struct parse *p, struct value *v)
{
    KG_TRY(next_event(p)); /* stream start */
    KG_TRY(next_event(p));
    if (p->event.type == YAML_STREAM_END_EVENT)
        return KG_OK;
    KG_TRY(next_event(p));
    if (v)
        KG_TRY(read_value(p, v));
    else if (p->event.type == YAML_MAPPING_START_EVENT)
        KG_TRY(read_mapping(p, "", 1));
    else if (p->event.type != YAML_SCALAR_EVENT || !is_null(p))
        return kg_fail(p->err, KG_EFORMAT,
                       "%s: expected sections with keys, such as 'train:', found %s",
                       p->where,
                       p->event.type == YAML_SCALAR_EVENT ? "a value" : "a list");
    KG_TRY(next_event(p)); /* document end */
    KG_TRY(next_event(p));
    if (p->event.type != YAML_STREAM_END_EVENT)
        return kg_fail(p->err, KG_EFORMAT,
                       "%s: expected one YAML document, found a second", p->where);
    return KG_OK;
}

static kg_status parse_text(struct kg_config *config, struct value *v, const char *text,
                            size_t n, const char *where, struct kg_err *err)
{
    struct parse p = {
        .config = config, .name = where, .key = v ? v->key : NULL, .err = err};

    if (n > MAX_FILE_BYTES)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected at most %d bytes of YAML, found %zu", where,
                       MAX_FILE_BYTES, n);
    if (!yaml_parser_initialize(&p.yaml))
        return kg_fail(err, KG_ENOMEM, "%s: out of memory while reading YAML", where);
    yaml_parser_set_encoding(&p.yaml, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&p.yaml, (const unsigned char *)text, n);
    config->parses++;
    kg_status status = read_document(&p, v);
    yaml_event_delete(&p.event);
    yaml_parser_delete(&p.yaml);
    kg_str_release(&p.sections);
    return status;
}

/* ---- public functions ---- */

static kg_status add_table(struct kg_config *config, const struct kg_opt_row *rows,
                           struct kg_err *err)
{
    for (; rows->key; rows++) {
        assert(!find(config, rows->key) && "a key stands in one row");
        config->values[config->n++] = (struct value){.key = rows->key, .row = rows};
        if (!rows->fallback)
            continue;
        KG_TRY(kg_opt_check(rows, rows->fallback, "default", err));
        KG_TRY(fill_list(&config->values[config->n - 1], rows->fallback, err));
    }
    return KG_OK;
}

kg_status kg_config_create(struct kg_config **config,
                           const struct kg_opt_row *const *tables, size_t n,
                           struct kg_err *err)
{
    size_t rows = 0;
    struct kg_config *c = kg_mem_calloc(1, sizeof *c, "config", err);
    kg_status status = KG_ENOMEM;

    *config = NULL;
    if (!c)
        return KG_ENOMEM;
    for (size_t i = 0; i < n; i++)
        for (const struct kg_opt_row *row = tables[i]; row->key; row++)
            rows++;
    assert(rows <= MAX_ROWS);
    c->values = kg_mem_calloc(rows, sizeof *c->values, "config", err);
    if (!c->values)
        goto out;
    for (size_t i = 0; i < n; i++)
        KG_TRY_GOTO(out, add_table(c, tables[i], err));
    *config = c;
    return KG_OK;
out:
    kg_config_free(c);
    return status;
}

void kg_config_free(struct kg_config *config)
{
    if (!config)
        return;
    for (size_t i = 0; i < config->n; i++) {
        kg_mem_free(config->values[i].text);
        kg_mem_free(config->values[i].source);
        free_list(&config->values[i]);
    }
    kg_mem_free(config->values);
    kg_mem_free(config);
}

kg_status kg_config_load_yaml(struct kg_config *config, const char *path,
                              struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status = kg_yaml_read(&text, path, err);

    if (status == KG_OK)
        status = parse_text(config, NULL, kg_str_text(&text), text.len, path, err);
    kg_str_release(&text);
    return status;
}

kg_status kg_config_parse_yaml(struct kg_config *config, const char *text, size_t n,
                               const char *where, struct kg_err *err)
{
    return parse_text(config, NULL, text, n, where, err);
}

kg_status kg_config_override(struct kg_config *config, const char *assignment,
                             const char *where, struct kg_err *err)
{
    char key[MAX_KEY_BYTES];
    size_t n = strcspn(assignment, "=");
    struct kg_str item = {0};

    if (!assignment[n] || n == 0 || n >= sizeof key)
        return kg_fail(err, KG_EINVAL, "%s: expected section.key=value, found '%.80s'",
                       where, assignment);
    snprintf(key, sizeof key, "%.*s", (int)n, assignment);
    const char *text = assignment + n + 1;
    struct value *v = find(config, key);
    if (!v)
        return fail_unknown(config, key, where, err);
    if (v->row->type != KG_OPT_LIST)
        return give(v, text, false, where, err);
    if (*text == '[')
        return parse_text(config, v, text, strlen(text), where, err);
    kg_status status = put_item(&item, text, err);
    if (status == KG_OK)
        status = give(v, kg_str_text(&item), false, where, err);
    kg_str_release(&item);
    return status;
}

kg_status kg_config_set(struct kg_config *config, const char *key, const char *value,
                        bool weak, const char *where, struct kg_err *err)
{
    struct value *v = find(config, key);

    if (!v)
        return fail_unknown(config, key, where, err);
    return give(v, value, weak, where, err);
}

/* Puts the text of v, with `said` instead of the item. */
static kg_status put_with(struct kg_str *out, const struct value *v, size_t item,
                          const char *said, struct kg_err *err)
{
    if (v->row->type != KG_OPT_LIST)
        return kg_str_puts(out, said, err);
    for (size_t i = 0; i < v->list.n; i++)
        KG_TRY(put_item(out, i == item ? said : v->list.items[i], err));
    return KG_OK;
}

/* Changes the text of an item or of v, and keeps its source, weakness and stand-ins. */
static kg_status say_instead(struct value *v, size_t item, const char *said,
                             struct kg_err *err)
{
    struct kg_str text = {0}, source = {0};
    char **kept = v->instead;
    kg_status status;

    v->instead = NULL;
    KG_TRY_GOTO(out, put_with(&text, v, item, said, err));
    KG_TRY_GOTO(out, kg_str_puts(&source, v->source ? v->source : "default", err));
    status = give(v, kg_str_text(&text), v->weak, kg_str_text(&source), err);
out:
    v->instead = kept;
    kg_str_release(&source);
    kg_str_release(&text);
    return status;
}

/* Makes v->filled: stand-ins where there are any, items elsewhere. */
static kg_status fill_instead(struct value *v, struct kg_err *err)
{
    if (v->row->type != KG_OPT_LIST)
        return KG_OK;
    const char **items = kg_mem_calloc(v->list.n, sizeof *items, "list", err);
    if (!items)
        return KG_ENOMEM;
    for (size_t i = 0; i < v->list.n; i++)
        items[i] = v->instead[i] ? v->instead[i] : v->list.items[i];
    kg_mem_free((void *)(uintptr_t)v->filled.items);
    v->filled = (struct kg_opt_list){.items = items, .n = v->list.n};
    return KG_OK;
}

kg_status kg_config_settle(struct kg_config *config, const char *key, size_t item,
                           const char *said, const char *stands_for, struct kg_err *err)
{
    struct value *v = find(config, key);

    assert(v && item < count_items(v));
    KG_TRY(say_instead(v, item, said, err));
    if (!v->instead)
        v->instead = kg_mem_calloc(count_items(v), sizeof *v->instead, "stand-ins", err);
    char *copy = v->instead ? kg_mem_strdup(stands_for, err) : NULL;
    if (!copy)
        return KG_ENOMEM;
    kg_mem_free(v->instead[item]);
    v->instead[item] = copy;
    return fill_instead(v, err);
}

void kg_config_fill(void *into, const struct kg_config *config,
                    const struct kg_opt_row *rows)
{
    for (; rows->key; rows++) {
        const struct value *v = need(config, rows->key);

        if (rows->type == KG_OPT_LIST)
            *(struct kg_opt_list *)(void *)((char *)into + rows->at) = v->instead
                                                                           ? v->filled
                                                                           : v->list;
        else if (v->instead)
            kg_opt_put(into, rows, v->instead[0]);
        else if (v->text || rows->fallback || rows->type == KG_OPT_STRING)
            kg_opt_put(into, rows, text_of(v));
    }
}

const char *kg_config_text(const struct kg_config *config, const char *key)
{
    return text_of(need(config, key));
}

struct kg_opt_list kg_config_list(const struct kg_config *config, const char *key)
{
    return need(config, key)->list;
}

bool kg_config_is_set(const struct kg_config *config, const char *key)
{
    const struct value *v = need(config, key);

    return v->text || v->row->fallback;
}

bool kg_config_is_given(const struct kg_config *config, const char *key)
{
    return need(config, key)->text != NULL;
}

const char *kg_config_source(const struct kg_config *config, const char *key)
{
    const struct value *v = need(config, key);

    return v->source ? v->source : "default";
}

kg_status kg_config_require(const struct kg_config *config, const char *key,
                            struct kg_err *err)
{
    if (kg_config_is_set(config, key))
        return KG_OK;
    return kg_fail(err, KG_EINVAL, "expected a value for %s (%s), found none", key,
                   need(config, key)->row->help);
}

size_t kg_config_rows(const struct kg_config *config) { return config->n; }

const struct kg_opt_row *kg_config_row(const struct kg_config *config, size_t i)
{
    assert(i < config->n);
    return config->values[i].row;
}
