/* Writes version 3, with the usual alignment. The tables are built in memory and written
 * before the data, which is streamed.
 */
#include "gguf/gguf_write.h"

#include <string.h>

enum { VERSION = 3, ALIGNMENT = 32 };

static kg_status put(struct kg_str *out, uint64_t x, int bytes, struct kg_err *err)
{
    unsigned char raw[8];

    for (int i = 0; i < bytes; i++, x >>= 8)
        raw[i] = (unsigned char)(x & 255);
    return kg_str_append(out, raw, (size_t)bytes, err);
}

static kg_status put_text(struct kg_str *out, const char *text, size_t n,
                          struct kg_err *err)
{
    KG_TRY(put(out, n, 8, err));
    return kg_str_append(out, text, n, err);
}

static kg_status put_key(struct kg_gguf_writer *w, const char *key,
                         enum kg_gguf_type type, struct kg_err *err)
{
    w->n_values++;
    KG_TRY(put_text(&w->values, key, strlen(key), err));
    return put(&w->values, type, 4, err);
}

static uint64_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

kg_status kg_gguf_put_int(struct kg_gguf_writer *w, const char *key, int64_t x,
                          struct kg_err *err)
{
    KG_TRY(put_key(w, key, KG_GGUF_U32, err));
    return put(&w->values, (uint64_t)x, 4, err);
}

kg_status kg_gguf_put_real(struct kg_gguf_writer *w, const char *key, double x,
                           struct kg_err *err)
{
    KG_TRY(put_key(w, key, KG_GGUF_F32, err));
    return put(&w->values, bits_of((float)x), 4, err);
}

kg_status kg_gguf_put_bool(struct kg_gguf_writer *w, const char *key, bool x,
                           struct kg_err *err)
{
    KG_TRY(put_key(w, key, KG_GGUF_BOOL, err));
    return put(&w->values, x, 1, err);
}

kg_status kg_gguf_put_text(struct kg_gguf_writer *w, const char *key, const char *text,
                           size_t n, struct kg_err *err)
{
    KG_TRY(put_key(w, key, KG_GGUF_TEXT, err));
    return put_text(&w->values, text, n, err);
}

kg_status kg_gguf_put_array(struct kg_gguf_writer *w, const char *key,
                            enum kg_gguf_type of, uint64_t n, struct kg_err *err)
{
    KG_TRY(put_key(w, key, KG_GGUF_ARRAY, err));
    KG_TRY(put(&w->values, of, 4, err));
    return put(&w->values, n, 8, err);
}

kg_status kg_gguf_item_int(struct kg_gguf_writer *w, int32_t x, struct kg_err *err)
{
    return put(&w->values, (uint32_t)x, 4, err);
}

kg_status kg_gguf_item_real(struct kg_gguf_writer *w, float x, struct kg_err *err)
{
    return put(&w->values, bits_of(x), 4, err);
}

kg_status kg_gguf_item_text(struct kg_gguf_writer *w, const char *text, size_t n,
                            struct kg_err *err)
{
    return put_text(&w->values, text, n, err);
}

kg_status kg_gguf_put_value(struct kg_gguf_writer *w, const struct kg_gguf_value *v,
                            struct kg_err *err)
{
    KG_TRY(put_key(w, v->key, v->type, err));
    if (v->type == KG_GGUF_TEXT || v->type == KG_GGUF_ARRAY) {
        if (v->type == KG_GGUF_ARRAY)
            KG_TRY(put(&w->values, v->of, 4, err));
        KG_TRY(put(&w->values, v->n, 8, err));
    }
    return kg_str_append(&w->values, v->at, kg_gguf_bytes(v), err);
}

static uint64_t aligned(uint64_t n)
{
    return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

kg_status kg_gguf_declare(struct kg_gguf_writer *w, const char *name, int n_dims,
                          const int64_t *shape, const struct kg_quant *type,
                          struct kg_err *err)
{
    uint64_t n = 1;

    KG_TRY(put_text(&w->tensors, name, strlen(name), err));
    KG_TRY(put(&w->tensors, (uint64_t)n_dims, 4, err));
    for (int i = n_dims - 1; i >= 0; i--) {
        KG_TRY(put(&w->tensors, (uint64_t)shape[i], 8, err));
        n *= (uint64_t)shape[i];
    }
    KG_TRY(put(&w->tensors, type->id, 4, err));
    KG_TRY(put(&w->tensors, w->end, 8, err));
    w->end = aligned(w->end + n / (uint64_t)type->values * (uint64_t)type->bytes);
    w->n_tensors++;
    return KG_OK;
}

kg_status kg_gguf_begin(struct kg_gguf_writer *w, const char *path, struct kg_err *err)
{
    struct kg_str head = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_str_puts(&head, "GGUF", err));
    KG_TRY_GOTO(out, put(&head, VERSION, 4, err));
    KG_TRY_GOTO(out, put(&head, w->n_tensors, 8, err));
    KG_TRY_GOTO(out, put(&head, w->n_values, 8, err));
    KG_TRY_GOTO(out, kg_file_writer_open(&w->file, path, err));
    w->open = true;
    KG_TRY_GOTO(out, kg_gguf_put(w, head.data, head.len, err));
    KG_TRY_GOTO(out, kg_gguf_put(w, kg_str_text(&w->values), w->values.len, err));
    KG_TRY_GOTO(out, kg_gguf_put(w, kg_str_text(&w->tensors), w->tensors.len, err));
    status = kg_gguf_pad(w, err);
out:
    kg_str_release(&head);
    return status;
}

kg_status kg_gguf_put(struct kg_gguf_writer *w, const void *bytes, size_t n,
                      struct kg_err *err)
{
    return kg_file_writer_put(&w->file, bytes, n, err);
}

kg_status kg_gguf_pad(struct kg_gguf_writer *w, struct kg_err *err)
{
    static const unsigned char zeros[ALIGNMENT];

    return kg_gguf_put(w, zeros, aligned(w->file.written) - w->file.written, err);
}

kg_status kg_gguf_end(struct kg_gguf_writer *w, struct kg_err *err)
{
    w->open = false;
    return kg_file_writer_close(&w->file, err);
}

void kg_gguf_writer_release(struct kg_gguf_writer *w)
{
    if (w->open)
        kg_file_writer_abort(&w->file);
    kg_str_release(&w->values);
    kg_str_release(&w->tensors);
    *w = (struct kg_gguf_writer){0};
}
