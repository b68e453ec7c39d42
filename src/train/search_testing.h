/* For tests of runs that search: a hybrid index over the records of the test, in ROOT,
 * which the including file must define. */
#ifndef KG_TRAIN_SEARCH_TESTING_H
#define KG_TRAIN_SEARCH_TESTING_H

#include "retriever/build.h"
#include "retriever/encoder/encoder.h"
#include "train/agent_testing.h"

#define ENCODER "tests/data/encoder/bert"

static void build_both(void)
{
    const struct kg_encoder_opts how = {0};
    struct kg_index_build_opts opts = {
        .corpus = ROOT "/corpus.jsonl", .path = ROOT "/both", .bm25 = kg_bm25_default};
    struct kg_encoder *encoder;
    struct kg_index_info info;

    put_records(ROOT, "corpus.jsonl", "{\"title\": \"%d\", \"text\": \"%d and %d.\"}\n");
    NEED(kg_encoder_open(&encoder, ENCODER, &how, err));
    opts.encoder = encoder;
    NEED(kg_index_build(&info, &opts, err));
    kg_encoder_close(encoder);
}

#endif
