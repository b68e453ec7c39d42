/* See encoder.h. */
#include "cli/encoder.h"

struct kg_encoder_opts kg_encoder_how;

const struct kg_flag kg_encoder_flags[] = {
    {"pooling", 0, KG_TO(kg_encoder_how.pooling), "HOW",
     "mean or cls: rows of a text to its vector (default: as the folder says)", 0, 0,
     "mean|cls"},
    {"max-tokens", 0, KG_TO(kg_encoder_how.max_tokens), "N",
     "tokens of a text, the rest is left out (default: as the folder says)", 1, 1 << 20,
     NULL},
    {"query-prefix", 0, KG_TO(kg_encoder_how.query_prefix), "TEXT",
     "in front of a query; E5: \"query: \" (default: as the folder says, or none)", 0, 0,
     NULL},
    {"passage-prefix", 0, KG_TO(kg_encoder_how.passage_prefix), "TEXT",
     "in front of a passage; E5: \"passage: \" (default: as the folder says, or none)", 0,
     0, NULL},
    {0},
};
