/* The base that an adapter was trained on: kedge_base.json in its folder.
 *
 *     {"format": 1, "hash": "9f0c46ab12de7788", "base_dtype": "Q8_0"}
 *
 * base_dtype is present if the base was stored in blocks during the training.
 *
 * Names and shapes tell architectures apart, but not a model from its fine-tuned form, on
 * which the adapter would compute nonsense. PEFT's files have no field for this, and PEFT
 * ignores other files. The hash covers the tensors in the order of the list: name, type,
 * shape, and four blocks of 1 KiB, including the first and the last (everything of a
 * tensor of up to 4 KiB). So it costs four pages per tensor and does not depend on
 * shards. It detects other files, not deliberate forgery. */
#include "model/model_internal.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/json.h"

#include <stdio.h>
#include <string.h>

enum { FORMAT = 1, PIECES = 4, PIECE_BYTES = 1024 };

static const char file_name[] = "kedge_base.json";

/* ---- the hash ---- */

static uint64_t mix(uint64_t hash, const void *bytes, size_t n)
{
    const uint64_t words[] = {hash, kg_hash_bytes(bytes, n)};

    return kg_hash_bytes(words, sizeof words);
}

static uint64_t mix_values(uint64_t hash, const struct kg_st_tensor *t)
{
    const size_t bytes = (size_t)t->bytes;

    if (bytes <= (size_t)PIECES * PIECE_BYTES)
        return mix(hash, t->data, bytes);
    for (size_t i = 0; i < PIECES - 1; i++)
        hash = mix(hash, t->data + (bytes - PIECE_BYTES) / (PIECES - 1) * i, PIECE_BYTES);
    return mix(hash, t->data + bytes - PIECE_BYTES, PIECE_BYTES);
}

static uint64_t mix_tensor(uint64_t hash, const struct kg_st_tensor *t)
{
    hash = mix(hash, t->name, strlen(t->name));
    hash = mix(hash, t->dtype, strlen(t->dtype));
    hash = mix(hash, t->shape, (size_t)t->n_dims * sizeof *t->shape);
    return mix_values(hash, t);
}

uint64_t kg_lora_base_hash(const struct kg_model *m, const struct kg_st_set *set)
{
    uint64_t hash = FORMAT;

    for (size_t i = 0; i < m->n_base; i++) /* parts of one tensor: once */
        if (m->params[i].file_row == 0)
            hash = mix_tensor(hash, kg_st_find(set, m->params[i].name));
    return hash;
}

kg_status kg_lora_read_base(struct kg_model *m, struct kg_err *err)
{
    struct kg_st_set *set;

    KG_TRY(kg_model_open_files(&set, m, m->dir, err));
    m->base_hash = kg_lora_base_hash(m, set);
    kg_st_close(set);
    return KG_OK;
}

/* ---- the file ---- */

/* The type to which the base's values were rounded; "": not rounded. */
static const char *rounded(const struct kg_model *m)
{
    return m->base_dtype && strcmp(m->base_dtype, "as_stored") != 0 ? m->base_dtype : "";
}

kg_status kg_lora_write_base(const struct kg_model *m, const char *dir,
                             struct kg_err *err)
{
    const struct kg_path path = kg_path_in(dir, file_name);
    struct kg_str text = {0};
    kg_status status;

    if (!m->dir)
        return KG_OK;
    status = kg_str_printf(&text, err, "{\"format\": %d, \"hash\": \"%016llx\"", FORMAT,
                           (unsigned long long)m->base_hash);
    if (status == KG_OK && *rounded(m))
        status = kg_str_printf(&text, err, ", \"base_dtype\": \"%s\"", rounded(m));
    if (status == KG_OK)
        status = kg_str_printf(&text, err, "}\n");
    if (status == KG_OK)
        status = kg_file_write_atomic(path.text, kg_str_text(&text), text.len, err);
    kg_str_release(&text);
    return status;
}

static kg_status compare(const struct kg_model *m, const struct kg_json_doc *doc,
                         struct kg_err *err)
{
    const char *expected, *type;
    int64_t format;
    char found[24];

    KG_TRY(kg_json_need_int(&format, doc, doc->root, "format", FORMAT, FORMAT, err));
    KG_TRY(kg_json_need_text(&expected, doc, doc->root, "hash", err));
    type = kg_json_text(kg_json_get(doc->root, "base_dtype"), NULL);
    type = type ? type : "";
    if (strcmp(type, rounded(m)) != 0)
        kg_log_warn("%s: the adapter was trained with its base in %s, found %s",
                    doc->where, *type ? type : "bf16 or fp32",
                    *rounded(m) ? rounded(m) : "bf16 or fp32");
    snprintf(found, sizeof found, "%016llx", (unsigned long long)m->base_hash);
    if (strcmp(expected, found) == 0)
        return KG_OK;
    return kg_fail(err, KG_ECONFLICT,
                   "%s: expected the adapter's base model with hash %.40s, found %s at "
                   "%.200s (the same weights in another dtype have another hash; without "
                   "this file only names and shapes are checked)",
                   doc->where, expected, found, m->dir);
}

kg_status kg_lora_check_base(const struct kg_model *m, const char *dir,
                             struct kg_err *err)
{
    enum { MAX_BYTES = 1 << 16 };
    const struct kg_path path = kg_path_in(dir, file_name);
    struct kg_json_doc doc = {0};

    if (!m->dir || !kg_file_exists(path.text))
        return KG_OK;
    KG_TRY(kg_json_read(&doc, path.text, MAX_BYTES, err));
    kg_status status = compare(m, &doc, err);
    kg_json_release(&doc);
    return status;
}
