/* The size of an encoder before it is opened; one that need not be here, too: a run that
 * asks a server says what that one needs, and the server has the model.
 */
#include "retriever/encoder/encoder_internal.h"

#include "base/file.h"

/* By their config.json. */
static const struct known {
    const char *name;
    struct kg_encoder_config config;
} KNOWN[] = {
    {"intfloat/e5-small-v2", {NULL, 384, 12, 12, 1536, 30522, 512, 2, 0, 1e-12f}},
    {"intfloat/e5-base-v2", {NULL, 768, 12, 12, 3072, 30522, 512, 2, 0, 1e-12f}},
    {"intfloat/e5-large-v2", {NULL, 1024, 24, 16, 4096, 30522, 512, 2, 0, 1e-12f}},
};

static kg_status find(struct kg_encoder_config *c, const char *name, struct kg_err *err)
{
    size_t i;

    if (kg_str_pick(&i, KG_ENOTFOUND, "a folder, or the name of an encoder", name, KNOWN,
                    sizeof KNOWN / sizeof *KNOWN, sizeof *KNOWN, err) != KG_OK)
        return err->code;
    *c = KNOWN[i].config;
    return KG_OK;
}

kg_status kg_encoder_outline(struct kg_encoder_outline *out, const char *model,
                             struct kg_err *err)
{
    struct kg_encoder_config c;
    const struct kg_backend *be;

    KG_TRY(kg_backend_open(&be, NULL, err));
    if (kg_file_is_dir(model))
        KG_TRY(kg_encoder_config_read(&c, model, err));
    else
        KG_TRY(find(&c, model, err));
    *out = (struct kg_encoder_outline){c.dim, kg_encoder_weights_bytes(be, &c)};
    return KG_OK;
}

kg_status kg_encoder_plan(struct kg_encoder_memory *out, const char *dir,
                          const struct kg_backend *be, struct kg_err *err)
{
    struct kg_encoder_config c;

    KG_TRY(kg_encoder_config_read(&c, dir, err));
    *out = (struct kg_encoder_memory){kg_encoder_weights_bytes(be, &c),
                                      kg_encoder_staged_bytes(&c),
                                      kg_encoder_pack_bytes(&c, c.rows)};
    return KG_OK;
}
