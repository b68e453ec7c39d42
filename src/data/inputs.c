/* Hashes the files that a result depends on, and compares them with a manifest.
 *
 * Both sides of the comparison are JSON objects of the same form: the manifest's, and one
 * for the current files. So a reader of the manifest sees what is compared.
 */
#include "data/inputs.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/hub.h"
#include "data/json.h"
#include "data/source.h"

#include <string.h>

enum { MAX_MANIFEST_BYTES = 1 << 20 };

/* ---- writing ---- */

kg_status kg_inputs_put_file(struct kg_str *out, const char *label, const char *path,
                             struct kg_err *err)
{
    bool first = out->data[out->len - 1] == '{';
    uint64_t hash, bytes;

    if (kg_file_exists(path) && !kg_file_is_regular(path)) {
        kg_log_warn("%s: %s is not a regular file: --resume cannot detect changes", label,
                    path);
        return KG_OK;
    }
    KG_TRY(kg_hash_file(&hash, &bytes, path, err));
    KG_TRY(kg_json_put_text(out, first ? "" : ", ", label, err));
    return kg_str_printf(out, err, ": {\"bytes\": %llu, \"hash\": \"%016llx\"}",
                         (unsigned long long)bytes, (unsigned long long)hash);
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n >= m && strcmp(name + n - m, end) == 0;
}

static kg_status put_model_file(struct kg_str *out, const char *in, const char *dir,
                                const char *name, struct kg_err *err)
{
    if (!ends_with(name, ".json") && !ends_with(name, ".safetensors") &&
        strcmp(name, "chat_template.jinja") != 0)
        return KG_OK;
    return kg_inputs_put_file(out, kg_path_in(in, name).text, kg_path_in(dir, name).text,
                              err);
}

/* Records a model of the hub's cache under the label itself; its files are label/NAME. */
static kg_status put_commit(struct kg_str *out, const char *label, const char *dir,
                            struct kg_err *err)
{
    char id[KG_HUB_ID_MAX + 1], commit[41];
    bool first = out->data[out->len - 1] == '{';

    if (!kg_hub_is_snapshot(id, commit, dir))
        return KG_OK;
    KG_TRY(kg_json_put_text(out, first ? "" : ", ", label, err));
    return kg_str_printf(out, err, ": {\"hub\": \"%s\", \"commit\": \"%s\"}", id, commit);
}

kg_status kg_inputs_put_model(struct kg_str *out, const char *label, const char *dir,
                              struct kg_err *err)
{
    char **names;
    size_t n;
    kg_status status = KG_OK;

    if (kg_source_is_file(dir))
        return kg_inputs_put_file(out, label, dir, err);
    KG_TRY(put_commit(out, label, dir, err));
    KG_TRY(kg_file_list(&names, &n, dir, err));
    for (size_t i = 0; i < n && status == KG_OK; i++)
        status = put_model_file(out, label, dir, names[i], err);
    kg_file_names_free(names, n);
    return status;
}

/* ---- comparing ---- */

/* returns NULL if the entry has no such text */
static const char *text_of(const struct kg_json *entry, const char *key)
{
    return kg_json_text(kg_json_get(entry, key), NULL);
}

static const char *hash_of(const struct kg_json *file) { return text_of(file, "hash"); }

static bool same_text(const char *x, const char *y)
{
    return x && y && strcmp(x, y) == 0;
}

static int64_t bytes_of(const struct kg_json *file)
{
    return kg_json_int(kg_json_get(file, "bytes"), -1);
}

/* a, b: NULL if that side has no such file */
static bool same(const struct kg_json *a, const struct kg_json *b)
{
    if (text_of(a, "commit") || text_of(b, "commit"))
        return same_text(text_of(a, "commit"), text_of(b, "commit")) &&
               same_text(text_of(a, "hub"), text_of(b, "hub"));
    return same_text(hash_of(a), hash_of(b)) && bytes_of(a) == bytes_of(b);
}

static kg_status put_side(struct kg_str *out, const struct kg_json *file,
                          struct kg_err *err)
{
    if (text_of(file, "commit") && text_of(file, "hub"))
        return kg_str_printf(out, err, "%s of the hub at commit %s", text_of(file, "hub"),
                             text_of(file, "commit"));
    if (!hash_of(file))
        return kg_str_puts(out, "no such file", err);
    return kg_str_printf(out, err, "%lld bytes (hash %s)", (long long)bytes_of(file),
                         hash_of(file));
}

kg_status kg_inputs_put_facts(struct kg_str *out, const char *inputs, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    kg_status status;

    KG_TRY(kg_json_parse(&doc, inputs, strlen(inputs), "the files", err));
    for (size_t i = 0; i < kg_json_size(doc.root); i++) {
        KG_TRY_GOTO(out, kg_str_printf(out, err, "file %s", kg_json_key_at(doc.root, i)));
        KG_TRY_GOTO(out, kg_str_putc(out, '\t', err));
        KG_TRY_GOTO(out, put_side(out, kg_json_value_at(doc.root, i), err));
        KG_TRY_GOTO(out, kg_str_putc(out, '\n', err));
    }
    status = KG_OK;
out:
    kg_json_release(&doc);
    return status;
}

static kg_status put_difference(struct kg_str *out, const char *label,
                                const struct kg_json *before, const struct kg_json *now,
                                struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "%s%s: expected ", out->len ? "; " : "", label));
    KG_TRY(put_side(out, before, err));
    KG_TRY(kg_str_puts(out, ", found ", err));
    return put_side(out, now, err);
}

static kg_status compare(struct kg_str *diff, const struct kg_json *before,
                         const struct kg_json *now, const char *past, struct kg_err *err)
{
    for (size_t i = 0; i < kg_json_size(before); i++) {
        const char *label = kg_json_key_at(before, i);
        const struct kg_json *was = kg_json_value_at(before, i),
                             *is = kg_json_get(now, label);

        if (past && strncmp(label, past, strlen(past)) == 0)
            continue;
        if (!same(was, is))
            KG_TRY(put_difference(diff, label, was, is, err));
    }
    for (size_t i = 0; i < kg_json_size(now); i++) {
        const char *label = kg_json_key_at(now, i);

        if (!kg_json_get(before, label))
            KG_TRY(put_difference(diff, label, NULL, kg_json_value_at(now, i), err));
    }
    return KG_OK;
}

static kg_status check_against(const struct kg_json *before, const struct kg_json *now,
                               const char *manifest, const char *past, struct kg_err *err)
{
    struct kg_str diff = {0};
    kg_status status = compare(&diff, before, now, past, err);

    if (status == KG_OK && diff.len > 0)
        status = kg_fail(err, KG_ECONFLICT,
                         "%s: expected the input files that the run started with: %s",
                         manifest, diff.data);
    kg_str_release(&diff);
    return status;
}

kg_status kg_inputs_compare(const char *manifest, const char *present, const char *past,
                            struct kg_err *err)
{
    struct kg_json_doc before = {0}, now = {0};
    const struct kg_json *inputs;
    kg_status status;

    KG_TRY(kg_json_read(&before, manifest, MAX_MANIFEST_BYTES, err));
    KG_TRY_GOTO(
        out, kg_json_need(&inputs, &before, before.root, "inputs", KG_JSON_OBJECT, err));
    KG_TRY_GOTO(out,
                kg_json_parse(&now, present, strlen(present), "the present files", err));
    status = check_against(inputs, now.root, manifest, past, err);
out:
    kg_json_release(&now);
    kg_json_release(&before);
    return status;
}
