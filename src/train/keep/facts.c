/* Writes, compares and extends the lists of a manifest. The rest of the manifest is
 * written back unchanged.
 */
#include "train/keep/facts.h"

#include "base/file.h"
#include "data/json.h"
#include "ranks/mpi.h"
#include "ranks/nccl.h"

#include <stdio.h>
#include <string.h>

enum { MAX_MANIFEST_BYTES = 1 << 20 };

/* ---- the current entry ---- */

static kg_status put(struct kg_str *out, const char *lead, const char *name,
                     const char *text, struct kg_err *err)
{
    KG_TRY(kg_json_put_text(out, lead, name, err));
    return kg_json_put_text(out, ": ", text, err);
}

static kg_status put_device(struct kg_str *out, const struct kg_backend *be,
                            const struct kg_ranks *r, struct kg_err *err)
{
    struct kg_trait traits[KG_TRAITS];
    const int n = be->traits ? be->traits(traits) : 0;

    (void)r;
    KG_TRY(put(out, "{", "kind", be->traits ? be->name : "cpu", err));
    for (int i = 0; i < n; i++)
        KG_TRY(put(out, ", ", traits[i].name, traits[i].value, err));
    return kg_str_putc(out, '}', err);
}

static kg_status put_ranks(struct kg_str *out, const struct kg_backend *be,
                           const struct kg_ranks *r, struct kg_err *err)
{
    const char *nccl = kg_ranks_nccl_version(r);
    char n[16], mpi[KG_MPI_TEXT], over[32 + KG_MPI_TEXT];

    (void)be;
    snprintf(n, sizeof n, "%d", r->n > 1 ? r->n : 1);
    KG_TRY(put(out, "{", "n", n, err));
    if (r->n > 1) {
        kg_ranks_mpi_library(mpi, r);
        snprintf(over, sizeof over, *mpi ? "%s (%s)" : "%s", r->transport->name, mpi);
        KG_TRY(put(out, ", ", "over", over, err));
        KG_TRY(put(out, ", ", "link", nccl ? "nccl" : "host", err));
    }
    if (r->n > 1 && nccl) {
        KG_TRY(put(out, ", ", "nccl", nccl, err));
        KG_TRY(put(out, ", ", "library", kg_ranks_nccl_path(r), err));
    }
    return kg_str_putc(out, '}', err);
}

static const struct list {
    const char *name, *before; /* the first entry if the manifest has no such list */
    kg_status (*put)(struct kg_str *out, const struct kg_backend *be,
                     const struct kg_ranks *r, struct kg_err *err);
} lists[] = {{"devices", "{\"kind\": \"cpu\"}", put_device},
             {"ranks", "{\"n\": \"not written\"}", put_ranks}};

kg_status kg_facts_json(struct kg_str *out, const struct kg_backend *be,
                        const struct kg_ranks *ranks, struct kg_err *err)
{
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        KG_TRY(kg_json_put_text(out, i ? ", " : "", lists[i].name, err));
        KG_TRY(kg_str_puts(out, ": [", err));
        KG_TRY(lists[i].put(out, be, ranks, err));
        KG_TRY(kg_str_putc(out, ']', err));
    }
    return KG_OK;
}

/* ---- comparing ---- */

static const char *text_of(const struct kg_json *entry, const char *name)
{
    const char *text = kg_json_text(kg_json_get(entry, name), NULL);

    return text ? text : "";
}

/* Appends differences between two entries, for facts in `names` that are not in `but`. */
static kg_status put_differences(struct kg_str *diff, const struct kg_json *names,
                                 const struct kg_json *but, const struct kg_json *before,
                                 const struct kg_json *now, struct kg_err *err)
{
    for (size_t i = 0; i < kg_json_size(names); i++) {
        const char *name = kg_json_key_at(names, i);
        const char *was = text_of(before, name), *is = text_of(now, name);

        if (strcmp(name, "since") == 0 || strcmp(was, is) == 0 || kg_json_get(but, name))
            continue;
        KG_TRY(kg_str_printf(diff, err, "%s%s: expected %s, found %s",
                             diff->len ? "; " : "", name, *was ? was : "none",
                             *is ? is : "none"));
    }
    return KG_OK;
}

/* Appends differences between the manifest's last entry and this one. */
static kg_status compare(struct kg_str *diff, const struct kg_json *manifest,
                         const struct list *list, const struct kg_str *entry,
                         struct kg_err *err)
{
    const struct kg_json *all = kg_json_get(manifest, list->name), *last;
    struct kg_json_doc before = {0}, now = {0};
    kg_status status;

    KG_TRY_GOTO(
        out, kg_json_parse(&before, list->before, strlen(list->before), list->name, err));
    KG_TRY_GOTO(out, kg_json_parse(&now, entry->data, entry->len, list->name, err));
    last = kg_json_size(all) > 0 ? kg_json_at(all, kg_json_size(all) - 1) : before.root;
    KG_TRY_GOTO(out, put_differences(diff, last, NULL, last, now.root, err));
    status = put_differences(diff, now.root, last, last, now.root, err);
out:
    kg_json_release(&now);
    kg_json_release(&before);
    return status;
}

/* ---- adding ---- */

static kg_status put_list(struct kg_str *out, const struct kg_json *all,
                          const struct list *list, const struct kg_str *entry,
                          const char *since, struct kg_err *err)
{
    KG_TRY(kg_json_put_text(out, "", list->name, err));
    KG_TRY(kg_str_puts(out, ": [", err));
    for (size_t i = 0; i < kg_json_size(all); i++) {
        KG_TRY(kg_json_put_value(out, kg_json_at(all, i), err));
        KG_TRY(kg_str_puts(out, ", ", err));
    }
    if (kg_json_size(all) == 0)
        KG_TRY(kg_str_printf(out, err, "%s, ", list->before));
    KG_TRY(kg_str_append(out, entry->data, entry->len - 1, err)); /* without its brace */
    KG_TRY(put(out, ", ", "since", since, err));
    return kg_str_puts(out, "}]}\n", err);
}

static kg_status put_manifest(struct kg_str *out, const struct kg_json *root,
                              const struct list *list, const struct kg_str *entry,
                              const char *since, struct kg_err *err)
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
    return put_list(out, kg_json_get(root, list->name), list, entry, since, err);
}

/* Appends differences between the manifest's last entry and the current one. If there are
 * any and since is not NULL, adds the current entry to the manifest. */
static kg_status meet(struct kg_str *diff, const char *manifest, const struct list *list,
                      const struct kg_backend *be, const struct kg_ranks *ranks,
                      const char *since, struct kg_err *err)
{
    struct kg_str entry = {0}, text = {0};
    struct kg_json_doc doc = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_json_read(&doc, manifest, MAX_MANIFEST_BYTES, err));
    KG_TRY_GOTO(out, list->put(&entry, be, ranks, err));
    status = compare(diff, doc.root, list, &entry, err);
    if (status != KG_OK || diff->len == 0 || !since)
        goto out;
    KG_TRY_GOTO(out, put_manifest(&text, doc.root, list, &entry, since, err));
    status = kg_file_write_atomic(manifest, text.data, text.len, err);
out:
    kg_str_release(&text);
    kg_str_release(&entry);
    kg_json_release(&doc);
    return status;
}

/* ---- resuming ---- */

kg_status kg_facts_check(const char *manifest, const struct kg_backend *be,
                         struct kg_err *err)
{
    struct kg_str diff = {0};
    kg_status status = meet(&diff, manifest, &lists[0], be, NULL, NULL, err);

    if (status == KG_OK && diff.len > 0)
        status = kg_fail(
            err, KG_ECONFLICT,
            "%s: expected the device that the run has used so far, because other devices "
            "give other bits: %s (device.may_change=true allows a change)",
            manifest, kg_str_text(&diff));
    kg_str_release(&diff);
    return status;
}

kg_status kg_facts_note(bool *moved, const char *manifest, const struct kg_backend *be,
                        const struct kg_ranks *ranks, const char *since,
                        struct kg_err *err)
{
    struct kg_str diff = {0};
    kg_status status = meet(&diff, manifest, &lists[0], be, ranks, since, err);

    *moved = diff.len > 0;
    kg_str_clear(&diff);
    if (status == KG_OK)
        status = meet(&diff, manifest, &lists[1], be, ranks, since, err);
    kg_str_release(&diff);
    return status;
}
