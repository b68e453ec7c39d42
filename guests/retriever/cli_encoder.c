/* Opens the encoder for a command after checking that it fits. */
#include "retriever/cli_encoder.h"

#include "base/log.h"

struct kg_encoder_opts kg_encoder_how;

const struct kg_flag kg_encoder_flags[] = {
    {"pooling", 0, KG_TO(kg_encoder_how.pooling), "HOW",
     "pooling: mean or cls (default: as in the folder)", 0, 0, "mean|cls"},
    {"max-tokens", 0, KG_TO(kg_encoder_how.max_tokens), "N",
     "longest text in tokens; the rest is cut (default: as in the folder)", 1, 1 << 20},
    {"query-prefix", 0, KG_TO(kg_encoder_how.query_prefix), "TEXT",
     "prefix of a query; E5: \"query: \" (default: as in the folder, or none)"},
    {"passage-prefix", 0, KG_TO(kg_encoder_how.passage_prefix), "TEXT",
     "prefix of a passage; E5: \"passage: \" (default: as in the folder, or none)"},
    {0},
};

/* Checks that the encoder fits, if the backend knows its memory. */
static kg_status check_memory(const struct kg_backend *be, const char *dir,
                              struct kg_err *err)
{
    char weights[32], beside[32], left[32];
    struct kg_encoder_memory m;
    uint64_t total, free, most;

    if (!be->memory)
        return KG_OK;
    KG_TRY(kg_encoder_plan(&m, dir, be, err));
    KG_TRY(be->memory(&total, &free, err));
    most = m.staged > m.pack ? m.staged : m.pack;
    kg_cli_bytes(weights, (double)m.weights);
    kg_cli_bytes(beside, (double)most);
    kg_cli_bytes(left, (double)free);
    if (m.weights + most > free)
        return kg_fail(err, KG_ENOMEM,
                       "--device: expected memory for weights (%s) and a pack of texts "
                       "(%s), found %s free on %s",
                       weights, beside, left, be->name);
    kg_log_info("%s: on %s, weights %s, a pack of texts %s, of %s that are free", dir,
                be->name, weights, beside, left);
    return KG_OK;
}

kg_status kg_cli_encoder(struct kg_encoder **e, const char *dir, struct kg_err *err)
{
    struct kg_encoder_opts opts = kg_encoder_how;

    KG_TRY(kg_load_device(&opts.backend, &kg_load, KG_F32, err));
    KG_TRY(check_memory(opts.backend, dir, err));
    return kg_encoder_open(e, dir, &opts, err);
}
