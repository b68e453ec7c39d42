/* Fuzz target: if a file opens, every text of its metadata and every byte of its tensors
 * can be read, and the files of its folder are made or refused. */
#include "data/gguf_model.h"

int kg_fuzz_gguf(const uint8_t *bytes, size_t n);

static unsigned gguf_bytes(const unsigned char *at, uint64_t n)
{
    unsigned sum = 0;

    for (uint64_t i = 0; i < n; i++)
        sum += at[i];
    return sum;
}

static unsigned gguf_items(const struct kg_gguf_value *array)
{
    struct kg_gguf_walk walk = {.array = array};
    unsigned sum = 0;

    while (kg_gguf_next(&walk))
        sum += gguf_bytes(walk.item.at, walk.item.n) + (kg_gguf_real(&walk.item, 0) > 0);
    return sum;
}

static unsigned gguf_tensor(const struct kg_gguf_tensor *t)
{
    unsigned sum = gguf_bytes(t->data, t->bytes);
    float x[KG_QUANT_MAX];

    if (t->type->widen && t->bytes > 0)
        t->type->widen(x, t->data);
    return sum;
}

int kg_fuzz_gguf(const uint8_t *bytes, size_t n)
{
    static kg_status (*const files[])(struct kg_str *, const struct kg_gguf *,
                                      struct kg_err *) = {
        kg_gguf_config, kg_gguf_tokenizer_json, kg_gguf_tokenizer_model,
        kg_gguf_tokenizer_config};
    volatile unsigned sum = 0;
    struct kg_str out = {0};
    struct kg_gguf g;
    struct kg_err err;

    if (kg_gguf_open_bytes(&g, bytes, n, "fuzz", &err) != KG_OK)
        return 0;
    for (size_t i = 0; i < g.n_values; i++)
        sum += gguf_bytes(g.values[i].at,
                          g.values[i].type == KG_GGUF_TEXT ? g.values[i].n : 0) +
               gguf_items(&g.values[i]);
    for (size_t i = 0; i < g.n_tensors; i++)
        sum += gguf_tensor(&g.tensors[i]);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        kg_str_clear(&out);
        sum += files[i](&out, &g, &err) == KG_OK;
    }
    kg_str_release(&out);
    kg_gguf_close(&g);
    return 0;
}
