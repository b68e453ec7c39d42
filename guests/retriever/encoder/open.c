/* Opens an encoder: settings, tokenizer, weights, and the hash that identifies it.
 */
#include "retriever/encoder/encoder_internal.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"

#include <string.h>

/* Encoders need operations that some backends lack; a planned device has none. */
static kg_status check_backend(const struct kg_backend *be, struct kg_err *err)
{
    if (be->layernorm && be->gelu)
        return KG_OK;
    return kg_fail(err, KG_EUNSUPPORTED,
                   "encoders: expected a backend with the operations of an encoder, "
                   "found %s, which has no operation %s",
                   be->name, be->layernorm ? "gelu" : "layernorm");
}

/* e->ends: number of special tokens after a text; a long text is cut before them. */
static kg_status find_ends(struct kg_encoder *e, struct kg_err *err)
{
    const struct kg_encode_opts alone = {0}, ended = {.add_special = true};
    struct kg_ids in = {0}, out = {0};
    kg_status status;
    size_t at = 0;

    KG_TRY_GOTO(out, kg_tokenizer_encode(&in, e->tok, "a", 1, alone, err));
    KG_TRY_GOTO(out, kg_tokenizer_encode(&out, e->tok, "a", 1, ended, err));
    while (at + in.n <= out.n && memcmp(out.ids + at, in.ids, in.n * sizeof *in.ids) != 0)
        at++;
    if (at + in.n > out.n)
        status = kg_fail(err, KG_EUNSUPPORTED,
                         "%s: expected a tokenizer that puts special tokens around a "
                         "text, found one that changes it",
                         e->dir);
    else
        e->ends = out.n - at - in.n;
    if (status == KG_OK && (int64_t)(out.n - in.n) >= e->settings.max_tokens)
        status = kg_fail(
            err, KG_EINVAL,
            "%s: max_tokens: expected more than the tokenizer's %zu special tokens, "
            "found %d",
            e->dir, out.n - in.n, (int)e->settings.max_tokens);
out:
    kg_ids_release(&in);
    kg_ids_release(&out);
    return status;
}

static kg_status check_vocab(const struct kg_encoder *e, struct kg_err *err)
{
    if (kg_tokenizer_vocab_size(e->tok) <= e->config.vocab)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "%s: expected a tokenizer of at most the %d tokens of config.json, "
                   "found %d",
                   e->dir, (int)e->config.vocab, (int)kg_tokenizer_vocab_size(e->tok));
}

static kg_status hash_all(struct kg_encoder *e, struct kg_err *err)
{
    const struct kg_encoder_settings *s = &e->settings;
    const char *const tokenizers[] = {"tokenizer.json", "tokenizer.model",
                                      "token_ids.json", NULL};
    const char *const *name = tokenizers;
    uint64_t h[8] = {e->hash,
                     (uint64_t)s->pooling,
                     s->normalised,
                     (uint64_t)s->max_tokens,
                     kg_hash_bytes(s->query_prefix, strlen(s->query_prefix)),
                     kg_hash_bytes(s->passage_prefix, strlen(s->passage_prefix))};
    uint64_t bytes;

    while (*name && !kg_file_exists(kg_path_in(e->dir, *name).text))
        name++;
    if (*name)
        KG_TRY(kg_hash_file(&h[6], &bytes, kg_path_in(e->dir, *name).text, err));
    KG_TRY(kg_hash_file(&h[7], &bytes, kg_path_in(e->dir, "config.json").text, err));
    e->hash = kg_hash_bytes(h, sizeof h);
    return KG_OK;
}

static kg_status fill(struct kg_encoder *e, const char *dir,
                      const struct kg_encoder_opts *opts, struct kg_err *err)
{
    e->dir = kg_mem_strdup(dir, err);
    if (!e->dir)
        return KG_ENOMEM;
    e->backend = opts->backend;
    if (!e->backend)
        KG_TRY(kg_backend_open(&e->backend, NULL, err));
    KG_TRY(check_backend(e->backend, err));
    KG_TRY(kg_encoder_config_read(&e->config, dir, err));
    KG_TRY(kg_encoder_settings_read(&e->settings, dir, &e->config, opts, err));
    KG_TRY(kg_tokenizer_open(&e->tok, dir, err));
    KG_TRY(check_vocab(e, err));
    KG_TRY(find_ends(e, err));
    KG_TRY(kg_encoder_weights_read(e, err));
    return hash_all(e, err);
}

kg_status kg_encoder_open(struct kg_encoder **e, const char *dir,
                          const struct kg_encoder_opts *opts, struct kg_err *err)
{
    struct kg_encoder *fresh = kg_mem_calloc(1, sizeof *fresh, "encoder", err);

    *e = NULL;
    if (!fresh)
        return KG_ENOMEM;
    kg_status status = fill(fresh, dir, opts, err);
    if (status != KG_OK) {
        kg_encoder_close(fresh);
        return status;
    }
    *e = fresh;
    return KG_OK;
}

static kg_status make(struct kg_encoder *e, const struct kg_encoder_shape *shape,
                      struct kg_err *err)
{
    e->dir = kg_mem_strdup("random weights", err);
    if (!e->dir)
        return KG_ENOMEM;
    KG_TRY(kg_backend_open(&e->backend, NULL, err));
    KG_TRY(check_backend(e->backend, err));
    kg_encoder_config_of(&e->config, shape);
    e->settings = (struct kg_encoder_settings){
        .pooling = KG_POOLING_MEAN, .normalised = true, .max_tokens = shape->max_tokens};
    return kg_encoder_weights_draw(e, err);
}

kg_status kg_encoder_create(struct kg_encoder **e, const struct kg_encoder_shape *shape,
                            struct kg_err *err)
{
    struct kg_encoder *fresh = kg_mem_calloc(1, sizeof *fresh, "encoder", err);

    *e = NULL;
    if (!fresh)
        return KG_ENOMEM;
    kg_status status = make(fresh, shape, err);
    if (status != KG_OK) {
        kg_encoder_close(fresh);
        return status;
    }
    *e = fresh;
    return KG_OK;
}

void kg_encoder_close(struct kg_encoder *e)
{
    if (!e)
        return;
    if (e->backend)
        kg_buf_free(e->backend, e->memory);
    kg_tokenizer_close(e->tok);
    kg_encoder_settings_release(&e->settings);
    kg_mem_free(e->layers);
    kg_mem_free(e->dir);
    kg_mem_free(e);
}

void kg_encoder_info(struct kg_encoder_info *out, const struct kg_encoder *e)
{
    const struct kg_encoder_settings *s = &e->settings;

    *out = (struct kg_encoder_info){.model_type = e->config.row->model_type,
                                    .dim = e->config.dim,
                                    .layers = e->config.layers,
                                    .heads = e->config.heads,
                                    .max_tokens = s->max_tokens,
                                    .pooling = s->pooling,
                                    .normalised = s->normalised,
                                    .query_prefix = s->query_prefix,
                                    .passage_prefix = s->passage_prefix,
                                    .hash = e->hash};
}
