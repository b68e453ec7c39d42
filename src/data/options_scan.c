/* Reads the names of the mappings in one section of a YAML file before there is a table:
 * the caller makes the rows of each name, and then loads the file.
 *
 * Nothing is checked here. If the file is not YAML or has another shape, the names found
 * so far are returned, and loading the file reports the error.
 */
#include "data/options.h"

#include "base/file.h"
#include "base/mem.h"

#include <string.h>
#include <yaml.h>

enum { MAX_FILE_BYTES = 1 << 20, MAX_NAMES = 1024 };

struct scan {
    yaml_parser_t yaml;
    yaml_event_t event;
    char **names; /* owned (n) */
    size_t n;
    size_t capacity;
    struct kg_err *err;
};

/* returns false at the end, or at an error */
static bool next(struct scan *s)
{
    yaml_event_delete(&s->event);
    return yaml_parser_parse(&s->yaml, &s->event) &&
           s->event.type != YAML_STREAM_END_EVENT;
}

static bool begins(const struct scan *s)
{
    return s->event.type == YAML_MAPPING_START_EVENT ||
           s->event.type == YAML_SEQUENCE_START_EVENT;
}

static bool ends(const struct scan *s)
{
    return s->event.type == YAML_MAPPING_END_EVENT ||
           s->event.type == YAML_SEQUENCE_END_EVENT;
}

/* Moves from the first event of a value to its last. */
static bool skip_value(struct scan *s)
{
    int depth = begins(s);

    while (depth > 0 && next(s))
        depth += begins(s) - ends(s);
    return depth == 0;
}

/* Adds "name" to the list, for a key "name" or "name.key". */
static kg_status note(struct scan *s, const char *key)
{
    size_t n = strcspn(key, ".");

    for (size_t i = 0; i < s->n; i++)
        if (strlen(s->names[i]) == n && memcmp(s->names[i], key, n) == 0)
            return KG_OK;
    KG_TRY(kg_mem_grow(&s->names, &s->capacity, s->n + 1, sizeof *s->names, MAX_NAMES,
                       "names of sections", s->err));
    s->names[s->n] = kg_mem_calloc(n + 1, 1, "name of a section", s->err);
    if (!s->names[s->n])
        return s->err->code;
    memcpy(s->names[s->n++], key, n);
    return KG_OK;
}

/* Starts at the beginning of a mapping. section NULL: notes its keys; otherwise: notes
 * the keys of the mapping that is the value of `section`. */
static kg_status read_keys(struct scan *s, const char *section)
{
    while (next(s) && s->event.type == YAML_SCALAR_EVENT) {
        const char *key = (const char *)s->event.data.scalar.value;
        bool wanted = section && strcmp(key, section) == 0;

        if (!section)
            KG_TRY(note(s, key));
        if (!next(s))
            return KG_OK;
        if (wanted && s->event.type == YAML_MAPPING_START_EVENT)
            KG_TRY(read_keys(s, NULL));
        else if (!skip_value(s))
            return KG_OK;
    }
    return KG_OK;
}

static kg_status scan_text(struct scan *s, const struct kg_str *text, const char *section)
{
    kg_status status = KG_OK;

    if (!yaml_parser_initialize(&s->yaml))
        return kg_fail(s->err, KG_ENOMEM, "out of memory while reading YAML");
    yaml_parser_set_encoding(&s->yaml, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&s->yaml, (const unsigned char *)kg_str_text(text),
                                 text->len);
    while (next(s) && (s->event.type == YAML_STREAM_START_EVENT ||
                       s->event.type == YAML_DOCUMENT_START_EVENT))
        ;
    if (s->event.type == YAML_MAPPING_START_EVENT)
        status = read_keys(s, section);
    yaml_event_delete(&s->event);
    yaml_parser_delete(&s->yaml);
    return status;
}

kg_status kg_yaml_read(struct kg_str *text, const char *path, struct kg_err *err)
{
    static const char mark[] = {'\xef', '\xbb', '\xbf'};

    KG_TRY(kg_file_read_stream(text, path, MAX_FILE_BYTES, err));
    if (text->len >= sizeof mark && memcmp(text->data, mark, sizeof mark) == 0) {
        text->len -= sizeof mark;
        memmove(text->data, text->data + sizeof mark, text->len + 1);
    }
    return KG_OK;
}

kg_status kg_config_scan(char ***names, size_t *n, const char *path, const char *section,
                         struct kg_err *err)
{
    struct scan s = {.err = err};
    struct kg_str text = {0};
    kg_status status = kg_yaml_read(&text, path, err);

    if (status == KG_OK)
        status = scan_text(&s, &text, section);
    kg_str_release(&text);
    if (status != KG_OK) {
        kg_file_names_free(s.names, s.n);
        return status;
    }
    *names = s.names;
    *n = s.n;
    return KG_OK;
}
