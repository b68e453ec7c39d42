/* Writes and checks the list of a folder's files.
 *
 * The one idea: each piece is hashed alone, so all threads hash a file of any size, and a
 * difference can be located.
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

enum { FORMAT = 1, HEX = 16, MAX_DEPTH = 8, MAX_FILES = 1 << 20 };
static const uint64_t piece_bytes = (uint64_t)64 << 20;
static const uint64_t max_manifest_bytes = (uint64_t)64 << 20;

/* ---- the hashes of one file ---- */

static size_t count_pieces(uint64_t bytes)
{
    return (size_t)((bytes + piece_bytes - 1) / piece_bytes);
}

/* hashes: of pieces [first, end) of the map */
static void hash_pieces(uint64_t *hashes, const struct kg_map *map, size_t first,
                        size_t end)
{
    const unsigned char *data = map->data;

#pragma omp parallel for schedule(dynamic)
    for (size_t i = first; i < end; i++) {
        uint64_t at = i * piece_bytes, left = map->bytes - at;

        hashes[i - first] = kg_hash_bytes(data + at,
                                          left < piece_bytes ? left : piece_bytes);
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
            hash_pieces(*hashes, &map, 0, count_pieces(map.bytes));
        else
            status = KG_ENOMEM;
    }
    kg_map_close(&map);
    return status;
}

/* ---- writing ---- */

/* A file below the folder. */
struct kg_manifest_file {
    char *name; /* owned; relative to the folder */
    uint64_t bytes;
    size_t first; /* index of its first piece among all pieces */
};

static kg_status add_file(struct kg_manifest *m, const char *path, const char *name,
                          struct kg_err *err)
{
    KG_TRY(kg_mem_grow(&m->files, &m->room, m->n + 1, sizeof *m->files, MAX_FILES,
                       "files of a manifest", err));
    struct kg_manifest_file *f = &m->files[m->n];
    *f = (struct kg_manifest_file){.first = m->n_pieces};
    KG_TRY(kg_file_size(&f->bytes, path, err));
    f->name = kg_mem_strdup(name, err);
    if (!f->name)
        return err->code;
    m->n++;
    m->n_pieces += count_pieces(f->bytes);
    return KG_OK;
}

static kg_status add_folder(struct kg_manifest *m, const char *below, int depth,
                            struct kg_err *err);

/* below: path of the entry's folder from the root, "" or ending in "/" */
static kg_status add_entry(struct kg_manifest *m, const char *below, const char *entry,
                           int depth, struct kg_err *err)
{
    struct kg_str name = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_str_printf(&name, err, "%s%s", below, entry));
    if (strcmp(kg_str_text(&name), KG_MANIFEST_NAME) == 0)
        goto out;
    struct kg_path path = kg_path_in(m->dir, kg_str_text(&name));
    if (!kg_file_is_dir(path.text))
        status = add_file(m, path.text, kg_str_text(&name), err);
    else if ((status = kg_str_putc(&name, '/', err)) == KG_OK)
        status = add_folder(m, kg_str_text(&name), depth + 1, err);
out:
    kg_str_release(&name);
    return status;
}

static kg_status add_folder(struct kg_manifest *m, const char *below, int depth,
                            struct kg_err *err)
{
    char **names;
    size_t n;
    kg_status status = KG_OK;

    if (depth > MAX_DEPTH)
        return kg_fail(err, KG_EINVAL, "%s/%s: expected folders at most %d deep", m->dir,
                       below, MAX_DEPTH);
    KG_TRY(kg_file_list(&names, &n, kg_path_in(m->dir, below).text, err));
    for (size_t i = 0; i < n && status == KG_OK; i++)
        status = add_entry(m, below, names[i], depth, err);
    kg_file_names_free(names, n);
    return status;
}

kg_status kg_manifest_list(struct kg_manifest *m, const char *dir, struct kg_err *err)
{
    *m = (struct kg_manifest){.dir = dir};
    kg_status status = add_folder(m, "", 0, err);

    if (status == KG_OK) {
        m->hashes = kg_mem_calloc(m->n_pieces + 1, sizeof *m->hashes, "hashes", err);
        status = m->hashes ? KG_OK : KG_ENOMEM;
    }
    if (status != KG_OK)
        kg_manifest_release(m);
    return status;
}

void kg_manifest_release(struct kg_manifest *m)
{
    for (size_t i = 0; i < m->n; i++)
        kg_mem_free(m->files[i].name);
    kg_mem_free(m->files);
    kg_mem_free(m->hashes);
    *m = (struct kg_manifest){0};
}

/* Hashes those pieces of the file whose index among all pieces is in [first, end). */
static kg_status hash_some(struct kg_manifest *m, const struct kg_manifest_file *f,
                           size_t first, size_t end, struct kg_err *err)
{
    size_t last = f->first + count_pieces(f->bytes);
    kg_status status = KG_OK;
    struct kg_map map;

    first = first > f->first ? first : f->first;
    end = end < last ? end : last;
    if (first >= end)
        return KG_OK;
    KG_TRY(kg_map_open(&map, kg_path_in(m->dir, f->name).text, err));
    if (map.bytes != f->bytes)
        status = kg_fail(err, KG_EIO,
                         "%s/%s: expected %llu bytes, found %llu: the file changed while "
                         "its folder was hashed; nothing else may write there",
                         m->dir, f->name, (unsigned long long)f->bytes,
                         (unsigned long long)map.bytes);
    else
        hash_pieces(m->hashes + first, &map, first - f->first, end - f->first);
    kg_map_close(&map);
    return status;
}

kg_status kg_manifest_hash(struct kg_manifest *m, size_t first, size_t end,
                           struct kg_err *err)
{
    int phase = kg_phase_begin(0, NULL, "hashing %s", m->dir);
    kg_status status = KG_OK;

    for (size_t i = 0; i < m->n && status == KG_OK; i++)
        status = hash_some(m, &m->files[i], first, end, err);
    kg_phase_end(phase);
    return status;
}

static kg_status put_file(struct kg_str *out, const struct kg_manifest *m, size_t i,
                          struct kg_err *err)
{
    const struct kg_manifest_file *f = &m->files[i];

    KG_TRY(kg_str_puts(out, i == 0 ? "\n" : ",\n", err));
    KG_TRY(kg_json_put_text(out, " {\"path\": ", f->name, err));
    KG_TRY(kg_str_printf(out, err, ", \"bytes\": %llu, \"pieces\": [",
                         (unsigned long long)f->bytes));
    for (size_t p = 0; p < count_pieces(f->bytes); p++)
        KG_TRY(kg_str_printf(out, err, "%s\"%016llx\"", p > 0 ? ", " : "",
                             (unsigned long long)m->hashes[f->first + p]));
    return kg_str_puts(out, "]}", err);
}

kg_status kg_manifest_put(const struct kg_manifest *m, struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_str_printf(&text, err,
                                   "{\"format\": %d, \"piece_bytes\": %llu, \"files\": [",
                                   FORMAT, (unsigned long long)piece_bytes));
    for (size_t i = 0; i < m->n; i++)
        KG_TRY_GOTO(out, put_file(&text, m, i, err));
    KG_TRY_GOTO(out, kg_str_puts(&text, "\n]}\n", err));
    status = kg_file_write_atomic(kg_path_in(m->dir, KG_MANIFEST_NAME).text, text.data,
                                  text.len, err);
out:
    kg_str_release(&text);
    return status;
}

kg_status kg_manifest_write(const char *dir, struct kg_err *err)
{
    struct kg_manifest m;

    KG_TRY(kg_manifest_list(&m, dir, err));
    kg_status status = kg_manifest_hash(&m, 0, m.n_pieces, err);
    if (status == KG_OK)
        status = kg_manifest_put(&m, err);
    kg_manifest_release(&m);
    return status;
}

/* ---- checking ---- */

/* One entry of the list, borrowed from the document. */
struct entry {
    const char *path;
    int64_t bytes;
    const struct kg_json *pieces;
};

/* Whether a path stays below the folder. */
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
            return kg_fail(
                err, KG_EFORMAT,
                "%s: damaged: the piece at byte %llu has hash %s, expected %s as saved",
                path, (unsigned long long)(i * piece_bytes), is, was ? was : "none");
    }
    return KG_OK;
}

static kg_status check_file(const struct entry *e, const char *dir, struct kg_err *err)
{
    const struct kg_path path = kg_path_in(dir, e->path);
    uint64_t *hashes, bytes;

    KG_TRY(hash_file(&hashes, &bytes, path.text, err));
    kg_status status = compare(e, path.text, hashes, bytes, err);
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
            "%s: expected the list of saved files with their hashes, found none",
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
