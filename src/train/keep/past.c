/* Lists of a manifest: written, compared, added to.
 *
 * Both sides of a comparison are JSON objects of one shape, as with inputs: the
 * manifest's last entry, and one written anew. All of the manifest but the list is
 * written back as it was read.
 */
#include "train/keep/past.h"

#include "base/file.h"
#include "data/json.h"

#include <string.h>

enum { MAX_MANIFEST_BYTES = 1 << 20 };

/* {name: text, .., "since": ..}; since NULL: left out */
static kg_status put_entry(struct kg_str *out, const struct kg_past_entry *entry,
                           const char *since, struct kg_err *err)
{
    for (int i = 0; i < entry->n; i++) {
        KG_TRY(kg_json_put_text(out, i ? ", " : "{", entry->fact[i].name, err));
        KG_TRY(kg_json_put_text(out, ": ", entry->fact[i].text, err));
    }
    if (since)
        KG_TRY(kg_json_put_text(out, ", \"since\": ", since, err));
    return kg_str_putc(out, '}', err);
}

static struct kg_past_entry before_all(const struct kg_past_list *list)
{
    return (struct kg_past_entry){.fact = {list->before}, .n = 1};
}

kg_status kg_past_json(struct kg_str *out, const struct kg_past_list *list,
                       const struct kg_past_entry *entry, struct kg_err *err)
{
    KG_TRY(kg_json_put_text(out, "", list->name, err));
    KG_TRY(kg_str_puts(out, ": [", err));
    KG_TRY(put_entry(out, entry, NULL, err));
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

static kg_status compare(struct kg_str *diff, const struct kg_json *before,
                         const struct kg_json *now, struct kg_err *err)
{
    for (size_t i = 0; i < kg_json_size(before); i++) {
        const char *name = kg_json_key_at(before, i);

        KG_TRY(
            put_difference(diff, name, text_of(before, name), text_of(now, name), err));
    }
    for (size_t i = 0; i < kg_json_size(now); i++) {
        const char *name = kg_json_key_at(now, i);

        if (!kg_json_get(before, name))
            KG_TRY(put_difference(diff, name, "", text_of(now, name), err));
    }
    return KG_OK;
}

/* The last entry; of a manifest without the list what its run is taken to have had. */
static kg_status put_last(struct kg_str *out, const struct kg_json_doc *manifest,
                          const struct kg_past_list *list, struct kg_err *err)
{
    const struct kg_json *all = kg_json_get(manifest->root, list->name);
    const struct kg_past_entry before = before_all(list);

    if (kg_json_size(all) == 0)
        return put_entry(out, &before, NULL, err);
    return kg_json_put_value(out, kg_json_at(all, kg_json_size(all) - 1), err);
}

static kg_status parse(struct kg_json_doc *doc, const struct kg_str *text,
                       const struct kg_past_list *list, struct kg_err *err)
{
    return kg_json_parse(doc, text->data, text->len, list->name, err);
}

kg_status kg_past_compare(struct kg_str *diff, const char *manifest,
                          const struct kg_past_list *list,
                          const struct kg_past_entry *entry, struct kg_err *err)
{
    struct kg_json_doc doc = {0}, before = {0}, now = {0};
    struct kg_str was = {0}, is = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_json_read(&doc, manifest, MAX_MANIFEST_BYTES, err));
    KG_TRY_GOTO(out, put_last(&was, &doc, list, err));
    KG_TRY_GOTO(out, parse(&before, &was, list, err));
    KG_TRY_GOTO(out, put_entry(&is, entry, NULL, err));
    KG_TRY_GOTO(out, parse(&now, &is, list, err));
    status = compare(diff, before.root, now.root, err);
out:
    kg_str_release(&was);
    kg_str_release(&is);
    kg_json_release(&now);
    kg_json_release(&before);
    kg_json_release(&doc);
    return status;
}

/* ---- adding ---- */

static kg_status put_list(struct kg_str *out, const struct kg_json *all,
                          const struct kg_past_list *list,
                          const struct kg_past_entry *entry, const char *since,
                          struct kg_err *err)
{
    const struct kg_past_entry before = before_all(list);

    KG_TRY(kg_json_put_text(out, "", list->name, err));
    KG_TRY(kg_str_puts(out, ": [", err));
    for (size_t i = 0; i < kg_json_size(all); i++) {
        KG_TRY(kg_json_put_value(out, kg_json_at(all, i), err));
        KG_TRY(kg_str_puts(out, ", ", err));
    }
    if (kg_json_size(all) == 0) {
        KG_TRY(put_entry(out, &before, NULL, err));
        KG_TRY(kg_str_puts(out, ", ", err));
    }
    KG_TRY(put_entry(out, entry, since, err));
    return kg_str_putc(out, ']', err);
}

static kg_status put_manifest(struct kg_str *out, const struct kg_json *root,
                              const struct kg_past_list *list,
                              const struct kg_past_entry *entry, const char *since,
                              struct kg_err *err)
{
    KG_TRY(kg_str_putc(out, '{', err));
    for (size_t i = 0; i < kg_json_size(root); i++) {
        const char *key = kg_json_key_at(root, i);

        if (strcmp(key, list->name) == 0)
            continue;
        KG_TRY(kg_json_put_text(out, "", key, err));
        KG_TRY(kg_str_puts(out, ": ", err));
        KG_TRY(kg_json_put_value(out, kg_json_value_at(root, i), err));
        KG_TRY(kg_str_puts(out, ", ", err));
    }
    KG_TRY(put_list(out, kg_json_get(root, list->name), list, entry, since, err));
    return kg_str_puts(out, "}\n", err);
}

kg_status kg_past_add(const char *manifest, const struct kg_past_list *list,
                      const struct kg_past_entry *entry, const char *since,
                      struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_str text = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_json_read(&doc, manifest, MAX_MANIFEST_BYTES, err));
    KG_TRY_GOTO(out, put_manifest(&text, doc.root, list, entry, since, err));
    status = kg_file_write_atomic(manifest, text.data, text.len, err);
out:
    kg_str_release(&text);
    kg_json_release(&doc);
    return status;
}
