/* Devices of a run in its manifest: written, compared, added to.
 *
 * Both sides of the comparison are JSON objects of one shape, as with inputs: the
 * manifest's last entry, and one written anew. All of the manifest but the list is
 * written back as it was read.
 */
#include "train/device.h"

#include "base/file.h"
#include "data/json.h"

#include <string.h>

enum { MAX_MANIFEST_BYTES = 1 << 20 };

/* {"kind": .., trait: .., "since": ..}; since NULL: left out */
static kg_status put_entry(struct kg_str *out, const struct kg_backend *be,
                           const char *since, struct kg_err *err)
{
    struct kg_trait traits[KG_TRAITS];
    int n = be->traits ? be->traits(traits) : 0;

    KG_TRY(kg_json_put_text(out, "{\"kind\": ", be->traits ? be->name : "cpu", err));
    for (int i = 0; i < n; i++) {
        KG_TRY(kg_json_put_text(out, ", ", traits[i].name, err));
        KG_TRY(kg_json_put_text(out, ": ", traits[i].value, err));
    }
    if (since)
        KG_TRY(kg_json_put_text(out, ", \"since\": ", since, err));
    return kg_str_putc(out, '}', err);
}

kg_status kg_run_device_json(struct kg_str *out, const struct kg_backend *be,
                             struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, "\"devices\": [", err));
    KG_TRY(put_entry(out, be, NULL, err));
    return kg_str_putc(out, ']', err);
}

/* ---- comparing ---- */
static const char *text_of(const struct kg_json *entry, const char *name)
{
    const char *text = kg_json_text(kg_json_get(entry, name), NULL);

    return text ? text : "";
}

static kg_status put_difference(struct kg_str *diff, const char *name, const char *was,
                                const char *is, struct kg_err *err)
{
    if (strcmp(name, "since") == 0 || strcmp(was, is) == 0)
        return KG_OK;
    return kg_str_printf(diff, err, "%s%s: expected %s, found %s", diff->len ? "; " : "",
                         name, *was ? was : "none", *is ? is : "none");
}

/* before NULL: an earlier kedge's, on a CPU */
static kg_status compare(struct kg_str *diff, const struct kg_json *before,
                         const struct kg_json *now, struct kg_err *err)
{
    KG_TRY(put_difference(diff, "kind", before ? text_of(before, "kind") : "cpu",
                          text_of(now, "kind"), err));
    for (size_t i = 0; i < kg_json_size(before); i++) {
        const char *name = kg_json_key_at(before, i);

        if (strcmp(name, "kind") != 0)
            KG_TRY(put_difference(diff, name, text_of(before, name), text_of(now, name),
                                  err));
    }
    for (size_t i = 0; i < kg_json_size(now); i++) {
        const char *name = kg_json_key_at(now, i);

        if (strcmp(name, "kind") != 0 && !kg_json_get(before, name))
            KG_TRY(put_difference(diff, name, "", text_of(now, name), err));
    }
    return KG_OK;
}

static const struct kg_json *last_of(const struct kg_json_doc *manifest)
{
    const struct kg_json *list = kg_json_get(manifest->root, "devices");

    return kg_json_size(list) > 0 ? kg_json_at(list, kg_json_size(list) - 1) : NULL;
}

static kg_status differences(struct kg_str *diff, const char *manifest,
                             const struct kg_backend *be, struct kg_err *err)
{
    struct kg_json_doc before = {0}, now = {0};
    struct kg_str text = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_json_read(&before, manifest, MAX_MANIFEST_BYTES, err));
    KG_TRY_GOTO(out, put_entry(&text, be, NULL, err));
    KG_TRY_GOTO(out, kg_json_parse(&now, text.data, text.len, "device", err));
    status = compare(diff, last_of(&before), now.root, err);
out:
    kg_str_release(&text);
    kg_json_release(&now);
    kg_json_release(&before);
    return status;
}

kg_status kg_run_device_check(bool *other, const char *manifest,
                              const struct kg_backend *be, bool may_differ,
                              struct kg_err *err)
{
    struct kg_str diff = {0};
    kg_status status = differences(&diff, manifest, be, err);

    *other = diff.len > 0;
    if (status == KG_OK && *other && !may_differ)
        status = kg_fail(err, KG_ECONFLICT,
                         "%s: expected the device that the run has computed on, whose "
                         "bits it has: %s (device.may_change=true goes on with others)",
                         manifest, kg_str_text(&diff));
    kg_str_release(&diff);
    return status;
}

/* ---- adding ---- */
static kg_status put_list(struct kg_str *out, const struct kg_json *list,
                          const struct kg_backend *be, const char *since,
                          struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, "\"devices\": [", err));
    for (size_t i = 0; i < kg_json_size(list); i++) {
        KG_TRY(kg_json_put_value(out, kg_json_at(list, i), err));
        KG_TRY(kg_str_puts(out, ", ", err));
    }
    if (kg_json_size(list) == 0)
        KG_TRY(kg_str_puts(out, "{\"kind\": \"cpu\"}, ", err));
    KG_TRY(put_entry(out, be, since, err));
    return kg_str_putc(out, ']', err);
}

static kg_status put_manifest(struct kg_str *out, const struct kg_json *root,
                              const struct kg_backend *be, const char *since,
                              struct kg_err *err)
{
    KG_TRY(kg_str_putc(out, '{', err));
    for (size_t i = 0; i < kg_json_size(root); i++) {
        const char *key = kg_json_key_at(root, i);

        if (strcmp(key, "devices") == 0)
            continue;
        KG_TRY(kg_json_put_text(out, "", key, err));
        KG_TRY(kg_str_puts(out, ": ", err));
        KG_TRY(kg_json_put_value(out, kg_json_value_at(root, i), err));
        KG_TRY(kg_str_puts(out, ", ", err));
    }
    KG_TRY(put_list(out, kg_json_get(root, "devices"), be, since, err));
    return kg_str_puts(out, "}\n", err);
}

kg_status kg_run_device_add(const char *manifest, const struct kg_backend *be,
                            const char *since, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_str text = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_json_read(&doc, manifest, MAX_MANIFEST_BYTES, err));
    KG_TRY_GOTO(out, put_manifest(&text, doc.root, be, since, err));
    status = kg_file_write_atomic(manifest, text.data, text.len, err);
out:
    kg_str_release(&text);
    kg_json_release(&doc);
    return status;
}
