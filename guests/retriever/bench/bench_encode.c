/* Embedding: 64 texts of 128 tokens at the shapes of MiniLM and E5-base, with random
 * weights, compared with the best product in fp32, the type of encoders.
 *
 * Work counts the products of the layers and attention, in which each token sees its
 * whole text. The input is ids: tokenisation is not measured.
 */
#include "retriever/bench/retriever_bench.h"

#include "base/clock.h"
#include "base/mem.h"

#include <stdio.h>

enum { TEXTS = 64, TOKENS = 128, REPEATS = 3 };
static const double ASKED = 0.6; /* target, as a share of the best product */

static const struct {
    const char *name;
    struct kg_encoder_shape shape;
} encoders[] = {
    {"MiniLM", {.dim = 384, .ffn = 1536, .layers = 6, .heads = 12}},
    {"E5-base", {.dim = 768, .ffn = 3072, .layers = 12, .heads = 12}},
};

struct embedding {
    struct kg_embedder *embedder; /* owned */
    int32_t *ids;                 /* (texts, tokens) owned */
    int32_t *lengths;             /* (texts) owned */
    float *vectors;               /* (texts, D) owned */
    size_t texts;
};

static kg_status run(double *seconds, void *user, struct kg_err *err)
{
    struct embedding *e = user;
    const double start = kg_clock_seconds();

    KG_TRY(kg_embed_ids(e->vectors, e->embedder, e->ids, e->lengths, e->texts, err));
    *seconds = kg_clock_seconds() - start;
    return KG_OK;
}

static kg_status take(struct embedding *e, const struct kg_encoder_shape *s,
                      struct kg_err *err)
{
    const size_t n = e->texts * (size_t)s->max_tokens;

    e->ids = kg_mem_calloc(n, sizeof *e->ids, "tokens", err);
    e->lengths = kg_mem_calloc(e->texts, sizeof *e->lengths, "lengths", err);
    e->vectors = kg_mem_calloc(e->texts, (size_t)s->dim * sizeof *e->vectors, "vectors",
                               err);
    if (!e->ids || !e->lengths || !e->vectors)
        return KG_ENOMEM;
    for (size_t i = 0; i < n; i++)
        e->ids[i] = (int32_t)(i * 7 % (size_t)s->vocab);
    for (size_t i = 0; i < e->texts; i++)
        e->lengths[i] = s->max_tokens;
    return KG_OK;
}

/* Multiply-adds twice: four D x D and two D x F products a token, and attention. */
static double work_of(const struct kg_encoder_shape *s, size_t texts)
{
    const double D = s->dim, tokens = (double)texts * s->max_tokens;

    return tokens * s->layers * (8 * D * D + 4 * D * s->ffn + 4 * D * s->max_tokens);
}

static kg_status measure(struct kg_bench_report *r, const char *name,
                         const struct kg_encoder_shape *s, struct embedding *e,
                         int repeats, struct kg_err *err)
{
    const struct kg_bench_job job = {.run = run,
                                     .user = e,
                                     .repeats = repeats,
                                     .warm = true,
                                     .ceiling = KG_BENCH_PEAK_FP32};
    char label[80];
    const struct kg_bench_rate rate = {.name = label,
                                       .work = work_of(s, e->texts),
                                       .unit = "GFLOP/s",
                                       .bar = {.limit = ASKED, .at_most = false}};
    struct kg_bench_timing t;

    snprintf(label, sizeof label, "embedding, %s, %zu x %d tokens", name, e->texts,
             (int)s->max_tokens);
    KG_TRY(kg_bench_time(&t, r, &job, err));
    return kg_bench_put_rate(r, &rate, &t, err);
}

kg_status kg_bench_encode_of(struct kg_bench_report *r, const char *name,
                             const struct kg_encoder_shape *shape, size_t texts,
                             int repeats, struct kg_err *err)
{
    struct embedding e = {.texts = texts};
    struct kg_encoder *encoder = NULL;
    kg_status status;

    KG_TRY_GOTO(out, kg_encoder_create(&encoder, shape, err));
    KG_TRY_GOTO(out, kg_embedder_open(&e.embedder, encoder, err));
    KG_TRY_GOTO(out, take(&e, shape, err));
    status = measure(r, name, shape, &e, repeats, err);
out:
    kg_embedder_close(e.embedder);
    kg_encoder_close(encoder);
    kg_mem_free(e.ids);
    kg_mem_free(e.lengths);
    kg_mem_free(e.vectors);
    return status;
}

kg_status kg_bench_encode(struct kg_bench_report *r, struct kg_err *err)
{
    for (size_t i = 0; i < sizeof encoders / sizeof *encoders; i++) {
        struct kg_encoder_shape shape = encoders[i].shape;

        shape.vocab = 1000;
        shape.max_tokens = TOKENS;
        KG_TRY(kg_bench_encode_of(r, encoders[i].name, &shape, TEXTS, REPEATS, err));
    }
    return KG_OK;
}
