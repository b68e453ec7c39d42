/* Writing and checking the list of what a folder holds.
 *
 * The one idea: a piece is hashed alone, so a file of any size is hashed by all threads
 * and a difference has a place.
 */
#include "data/manifest.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/phase.h"
#include "base/str.h"
#include "data/json.h"

#include <stdio.h>
#include <string.h>

enum { FORMAT = 1, HEX = 16, MAX_DEPTH = 8 };
static const uint64_t piece_bytes = (uint64_t)64 << 20;
static const uint64_t max_manifest_bytes = (uint64_t)64 << 20;

/* ---- the hashes of one file ---- */

static size_t count_pieces(uint64_t bytes)
{
    return (size_t)((bytes + piece_bytes - 1) / piece_bytes);
}

/* hashes: one for each piece of the map */
static void hash_pieces(uint64_t *hashes, const struct kg_map *map)
{
    const unsigned char *data = map->data;
    size_t n = count_pieces(map->bytes);

#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < n; i++) {
        uint64_t at = i * piece_bytes, left = map->bytes - at;

        hashes[i] = kg_hash_bytes(data + at, left < piece_bytes ? left : piece_bytes);
    }
}

/* hashes out: owned, one for each piece; NULL for an empty file */
static kg_status hash_file(uint64_t **hashes, uint64_t *bytes, const char *path,
                           struct kg_err *err)
{
    struct kg_map map;
    kg_status status = KG_OK;

    *hashes = NULL;
    KG_TRY(kg_map_open(&map, path, err));
    *bytes = map.bytes;
    if (map.bytes > 0) {
        *hashes = kg_mem_calloc(count_pieces(map.bytes), sizeof **hashes, "hashes", err);
        if (*hashes)
            hash_pieces(*hashes, &map);
        else
            status = KG_ENOMEM;
    }
    kg_map_close(&map);
    return status;
}

/* ---- writing ---- */

static kg_status put_file(struct kg_str *out, const char *path, const char *name,
                          struct kg_err *err)
{
    uint64_t *hashes, bytes;
    kg_status status = hash_file(&hashes, &bytes, path, err);

    KG_TRY_GOTO(out, status);
    KG_TRY_GOTO(out,
                kg_str_puts(out, out->data[out->len - 1] == '[' ? "\n" : ",\n", err));
    KG_TRY_GOTO(out, kg_json_put_text(out, " {\"path\": ", name, err));
    KG_TRY_GOTO(out, kg_str_printf(out, err, ", \"bytes\": %llu, \"pieces\": [",
                                   (unsigned long long)bytes));
    for (size_t i = 0; i < count_pieces(bytes); i++)
        KG_TRY_GOTO(out, kg_str_printf(out, err, "%s\"%016llx\"", i > 0 ? ", " : "",
                                       (unsigned long long)hashes[i]));
    status = kg_str_puts(out, "]}", err);
out:
    kg_mem_free(hashes);
    return status;
}

static kg_status put_folder(struct kg_str *out, const char *root, const char *below,
                            int depth, struct kg_err *err);

/* below: the path of its folder from the root, "" or with "/" at its end */
static kg_status put_entry(struct kg_str *out, const char *root, const char *below,
                           const char *entry, int depth, struct kg_err *err)
{
    struct kg_str name = {0};
    struct kg_path path;
    kg_status status;

    KG_TRY_GOTO(out, kg_str_printf(&name, err, "%s%s", below, entry));
    if (strcmp(kg_str_text(&name), KG_MANIFEST_NAME) == 0)
        goto out;
    path = kg_path_in(root, kg_str_text(&name));
    if (!kg_file_is_dir(path.text))
        status = put_file(out, path.text, kg_str_text(&name), err);
    else if ((status = kg_str_putc(&name, '/', err)) == KG_OK)
        status = put_folder(out, root, kg_str_text(&name), depth + 1, err);
out:
    kg_str_release(&name);
    return status;
}

static kg_status put_folder(struct kg_str *out, const char *root, const char *below,
                            int depth, struct kg_err *err)
{
    char **names;
    size_t n;
    kg_status status = KG_OK;

    if (depth > MAX_DEPTH)
        return kg_fail(err, KG_EINVAL, "%s/%s: expected folders at most %d deep", root,
                       below, MAX_DEPTH);
    KG_TRY(kg_file_list(&names, &n, kg_path_in(root, below).text, err));
    for (size_t i = 0; i < n && status == KG_OK; i++)
        status = put_entry(out, root, below, names[i], depth, err);
    kg_file_names_free(names, n);
    return status;
}

kg_status kg_manifest_write(const char *dir, struct kg_err *err)
{
    int phase = kg_phase_begin(0, NULL, "hashing %s", dir);
    struct kg_str text = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_str_printf(&text, err,
                                   "{\"format\": %d, \"piece_bytes\": %llu, \"files\": [",
                                   FORMAT, (unsigned long long)piece_bytes));
    KG_TRY_GOTO(out, put_folder(&text, dir, "", 0, err));
    KG_TRY_GOTO(out, kg_str_puts(&text, "\n]}\n", err));
    status = kg_file_write_atomic(kg_path_in(dir, KG_MANIFEST_NAME).text, text.data,
                                  text.len, err);
out:
    kg_str_release(&text);
    kg_phase_end(phase);
    return status;
}

/* ---- checking ---- */

/* One entry of the list, borrowed from the document. */
struct entry {
    const char *path;
    int64_t bytes;
    const struct kg_json *pieces;
};

/* A name that leaves the folder is no name of a file in it. */
static bool is_inside(const char *path)
{
    return path[0] != '/' && path[0] != '\0' && strcmp(path, "..") != 0 &&
           strncmp(path, "../", 3) != 0 && !strstr(path, "/../");
}

static kg_status read_entry(struct entry *e, const struct kg_json_doc *doc,
                            const struct kg_json *file, struct kg_err *err)
{
    KG_TRY(kg_json_need_text(&e->path, doc, file, "path", err));
    KG_TRY(kg_json_need_int(&e->bytes, doc, file, "bytes", 0, INT64_MAX, err));
    KG_TRY(kg_json_need(&e->pieces, doc, file, "pieces", KG_JSON_ARRAY, err));
    if (!is_inside(e->path))
        return kg_fail(err, KG_EFORMAT, "%s: expected a file below the folder, found %s",
                       doc->where, e->path);
    if (kg_json_size(e->pieces) == count_pieces((uint64_t)e->bytes))
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "%s: %s: expected %zu hashes for %lld bytes, found %zu", doc->where,
                   e->path, count_pieces((uint64_t)e->bytes), (long long)e->bytes,
                   kg_json_size(e->pieces));
}

static kg_status compare(const struct entry *e, const char *path, const uint64_t *hashes,
                         uint64_t bytes, struct kg_err *err)
{
    if (bytes != (uint64_t)e->bytes)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected the %lld bytes that were saved, found %llu", path,
                       (long long)e->bytes, (unsigned long long)bytes);
    for (size_t i = 0; i < count_pieces(bytes); i++) {
        const char *was = kg_json_text(kg_json_at(e->pieces, i), NULL);
        char is[HEX + 1];

        snprintf(is, sizeof is, "%016llx", (unsigned long long)hashes[i]);
        if (!was || strcmp(was, is) != 0)
            return kg_fail(err, KG_EFORMAT,
                           "%s: damaged: its bytes from %llu on have the hash %s, those "
                           "that were saved had %s",
                           path, (unsigned long long)(i * piece_bytes), is,
                           was ? was : "none");
    }
    return KG_OK;
}

static kg_status check_file(const struct entry *e, const char *dir, struct kg_err *err)
{
    const struct kg_path path = kg_path_in(dir, e->path);
    uint64_t *hashes, bytes;
    kg_status status;

    KG_TRY(hash_file(&hashes, &bytes, path.text, err));
    status = compare(e, path.text, hashes, bytes, err);
    kg_mem_free(hashes);
    return status;
}

static kg_status check_files(struct kg_manifest_size *size, const struct kg_json_doc *doc,
                             const char *dir, struct kg_err *err)
{
    const struct kg_json *files;
    int64_t format, piece;

    KG_TRY(kg_json_need_int(&format, doc, doc->root, "format", FORMAT, FORMAT, err));
    KG_TRY(kg_json_need_int(&piece, doc, doc->root, "piece_bytes", (int64_t)piece_bytes,
                            (int64_t)piece_bytes, err));
    KG_TRY(kg_json_need(&files, doc, doc->root, "files", KG_JSON_ARRAY, err));
    for (size_t i = 0; i < kg_json_size(files); i++) {
        struct entry e;

        KG_TRY(read_entry(&e, doc, kg_json_at(files, i), err));
        KG_TRY(check_file(&e, dir, err));
        size->files++;
        size->bytes += (uint64_t)e.bytes;
    }
    return KG_OK;
}

kg_status kg_manifest_check(struct kg_manifest_size *size, const char *dir,
                            struct kg_err *err)
{
    struct kg_manifest_size own;
    struct kg_json_doc doc = {0};
    const struct kg_path path = kg_path_in(dir, KG_MANIFEST_NAME);
    kg_status status;
    int phase = kg_phase_begin(0, NULL, "checking %s", dir);

    size = size ? size : &own;
    *size = (struct kg_manifest_size){0};
    if (!kg_file_exists(path.text)) {
        status = kg_fail(
            err, KG_ENOTFOUND,
            "%s: expected the list of what was saved, with its hashes, found "
            "no such file",
            path.text);
        goto out;
    }
    KG_TRY_GOTO(out, kg_json_read(&doc, path.text, max_manifest_bytes, err));
    status = check_files(size, &doc, dir, err);
out:
    kg_json_release(&doc);
    kg_phase_end(phase);
    return status;
}
