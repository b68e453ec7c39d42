/* The table of formats that a model can have instead of HuggingFace's folder.
 *
 * A row makes the text of a file of that folder on request. Nothing is cached between
 * requests, because opening a file again is cheap.
 */
#include "data/source.h"

#include "base/file.h"
#include "data/gguf_model.h"

#include <string.h>

/* A model in one file whose name ends in `end`.
 * read: like kg_source_read */
struct format {
    const char *end;
    kg_status (*read)(struct kg_str *out, const char *model, const char *file,
                      struct kg_err *err);
    kg_status (*tensors)(struct kg_st_set **set, const char *model, struct kg_err *err);
};
static const struct format FORMATS[] = {
    {".gguf", kg_gguf_read, kg_gguf_tensors},
    {NULL, NULL, NULL},
};

/* Decides by the name alone, so that errors of a file that cannot be opened name its
 * format.   returns NULL for a folder */
static const struct format *format_of(const char *model)
{
    const size_t n = strlen(model);

    for (const struct format *f = FORMATS; f->end; f++) {
        const size_t end = strlen(f->end);

        if (n > end && strcmp(model + n - end, f->end) == 0 && !kg_file_is_dir(model))
            return f;
    }
    return NULL;
}

bool kg_source_is_file(const char *model) { return format_of(model) != NULL; }

bool kg_source_is_model(const char *model)
{
    return kg_file_is_dir(model) ||
           (kg_source_is_file(model) && kg_file_is_regular(model));
}

kg_status kg_source_read(struct kg_str *out, const char *model, const char *file,
                         uint64_t max_bytes, struct kg_err *err)
{
    const struct format *format = format_of(model);

    if (format && !kg_file_exists(model)) /* ENOTFOUND would mean a missing `file` only */
        return kg_fail(err, KG_EINVAL, "%s: expected a model, found no such file", model);
    return format ? format->read(out, model, file, err)
                  : kg_file_read(out, kg_path_in(model, file).text, max_bytes, err);
}

kg_status kg_source_json(struct kg_json_doc *doc, const char *model, const char *file,
                         uint64_t max_bytes, struct kg_err *err)
{
    const struct kg_path path = kg_path_in(model, file);
    struct kg_str text = {0};

    if (!kg_source_is_file(model))
        return kg_json_read(doc, path.text, max_bytes, err);
    kg_status status = kg_source_read(&text, model, file, max_bytes, err);
    if (status == KG_OK)
        status = kg_json_parse(doc, kg_str_text(&text), text.len, path.text, err);
    kg_str_release(&text);
    return status;
}

kg_status kg_source_json_or_none(struct kg_json_doc *doc, const char *model,
                                 const char *file, uint64_t max_bytes, struct kg_err *err)
{
    const kg_status status = kg_source_json(doc, model, file, max_bytes, err);

    if (status != KG_ENOTFOUND)
        return status;
    *doc = (struct kg_json_doc){0};
    return KG_OK;
}

kg_status kg_source_tensors(struct kg_st_set **set, const char *model, struct kg_err *err)
{
    const struct format *format = format_of(model);

    return format ? format->tensors(set, model, err) : kg_st_open_dir(set, model, err);
}
