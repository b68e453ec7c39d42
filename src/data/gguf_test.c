/* GGUF files: values equal those of the `gguf` package, broken files are refused with the
 * offset, and metadata becomes the files of a model folder. */
#include "data/gguf_model.h"

#include "base/file.h"
#include "base/half.h"
#include "base/mem.h"
#include "data/json.h"
#include "data/source.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static struct kg_err err;
static char dir[64];

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/kg_gguf_test_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return kg_file_remove_tree(dir, &err) == KG_OK ? 0 : -1;
}

static void need(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

/* ---- types ---- */

/* Converts one block, or a single value, to fp32. */
static void widen(float *to, const struct kg_quant *type, const unsigned char *data)
{
    if (type->widen)
        type->widen(to, data);
    else if (strcmp(type->name, "F16") == 0)
        to[0] = kg_half_float((uint16_t)(data[0] | data[1] << 8));
    else
        memcpy(to, (unsigned char[4]){0, 0, data[0], data[1]}, 4);
}

static size_t compare_type(const struct kg_gguf_tensor *t,
                           const struct kg_gguf_tensor *want)
{
    float x[KG_QUANT_MAX];
    size_t n = 0;

    for (uint64_t at = 0; at < t->bytes; at += (uint64_t)t->type->bytes) {
        widen(x, t->type, t->data + at);
        for (int i = 0; i < t->type->values; i++, n++)
            if (memcmp(&x[i], want->data + 4 * n, 4) != 0)
                fail_msg("%s: value %zu: expected the package's bits, found %a", t->name,
                         n, (double)x[i]);
    }
    return n;
}

/* tools/oracle/make_gguf.py writes a tensor NAME.f32 with the package's values of
 * NAME. */
static void values_are_those_of_the_gguf_package(void **state)
{
    struct kg_gguf g;
    size_t types = 0, values = 0;

    (void)state;
    need(kg_gguf_open(&g, "tests/data/gguf/quants.gguf", &err));
    for (size_t i = 0; i < g.n_tensors; i++) {
        char name[KG_GGUF_NAME + 5];

        snprintf(name, sizeof name, "%s.f32", g.tensors[i].name);
        if (!kg_gguf_find(&g, name))
            continue;
        values += compare_type(&g.tensors[i], kg_gguf_find(&g, name));
        types++;
    }
    assert_int_equal(types, 15);
    assert_int_equal(values, 15 * 512);
    kg_gguf_close(&g);
}

/* Expected blocks come from the `gguf` package or, for types that it cannot write, from
 * llama.cpp. */
static void blocks_are_those_of_llama_cpp(void **state)
{
    static const char *const types[][2] = {{"Q8_0", "weights"},
                                           {"Q4_0", "weights"},
                                           {"Q4_K", "weights_k"},
                                           {"Q6_K", "weights_k"}};
    struct kg_gguf g;

    (void)state;
    need(kg_gguf_open(&g, "tests/data/gguf/quants.gguf", &err));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const struct kg_quant *type = kg_quant_named(types[i][0]);
        const struct kg_gguf_tensor *weights = kg_gguf_find(&g, types[i][1]), *want;
        char name[16];

        snprintf(name, sizeof name, "%s.of", type->name);
        want = kg_gguf_find(&g, name);
        const size_t size = (size_t)type->bytes, n = want->bytes / size;
        assert_true(n >= 16 && weights->bytes == n * (size_t)type->values * 4);
        for (size_t b = 0; b < n; b++) {
            unsigned char block[KG_QUANT_MAX];
            float x[KG_QUANT_MAX];

            memcpy(x, weights->data + b * (size_t)type->values * 4,
                   (size_t)type->values * 4);
            type->narrow(block, x);
            if (memcmp(block, want->data + b * size, size) != 0)
                fail_msg("%s: block %zu is not llama.cpp's", type->name, b);
        }
    }
    kg_gguf_close(&g);
}

/* A block whose scale is NaN becomes NaN or infinity throughout, so that later checks of
 * values find it. */
static void scales_that_are_no_numbers_stay_so(void **state)
{
    static const uint32_t ids[] = {2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23};
    const struct kg_quant *type;

    (void)state;
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        unsigned char block[256];
        float x[KG_QUANT_MAX];
        int finite = 0;

        memset(block, 0xff, sizeof block); /* every half is NaN */
        need(kg_quant_find(&type, ids[i], &err));
        type->widen(x, block);
        for (int k = 0; k < type->values; k++)
            finite += isfinite(x[k]) != 0;
        assert_int_equal(finite, 0);
    }
}

/* ---- files ---- */

static void put(struct kg_str *s, uint64_t x, int bytes)
{
    for (; bytes-- > 0; x >>= 8)
        need(kg_str_putc(s, (char)(x & 255), &err));
}

static void put_text(struct kg_str *s, const char *text)
{
    put(s, strlen(text), 8);
    need(kg_str_puts(s, text, &err));
}

static void put_key(struct kg_str *s, const char *key, enum kg_gguf_type type)
{
    put_text(s, key);
    put(s, type, 4);
}

static void put_u32(struct kg_str *s, const char *key, uint64_t x)
{
    put_key(s, key, KG_GGUF_U32);
    put(s, x, 4);
}

static void put_tensor(struct kg_str *s, const char *name, uint64_t rows, uint64_t cols,
                       uint32_t type, uint64_t at)
{
    put_text(s, name);
    put(s, 2, 4);
    put(s, cols, 8);
    put(s, rows, 8);
    put(s, type, 4);
    put(s, at, 8);
}

/* Version 3 with an architecture, an array of texts, a 2 x 32 F32 tensor and a 2 x 32
 * Q8_0 tensor. */
static void build(struct kg_str *s)
{
    kg_str_clear(s);
    need(kg_str_puts(s, "GGUF", &err));
    put(s, 3, 4);
    put(s, 2, 8);
    put(s, 3, 8);
    put_key(s, "general.architecture", KG_GGUF_TEXT); /* byte 24 */
    put_text(s, "llama");
    put_key(s, "names", KG_GGUF_ARRAY);
    put(s, KG_GGUF_TEXT, 4);
    put(s, 2, 8);
    put_text(s, "a");
    put_text(s, "bc");
    put_u32(s, "llama.block_count", 1);
    put_tensor(s, "token_embd.weight", 2, 32, 0, 0);
    put_tensor(s, "blk.0.attn_q.weight", 2, 32, 8, 256);
    while (s->len % 32)
        put(s, 0, 1);
    for (int i = 0; i < 256 + 68; i++)
        put(s, (uint64_t)i & 63, 1);
}

/* Offset of the first `text` in the file. */
static size_t find(const struct kg_str *s, const char *text)
{
    size_t at = 0;

    while (at + strlen(text) < s->len && memcmp(s->data + at, text, strlen(text)) != 0)
        at++;
    assert_true(at + strlen(text) < s->len);
    return at;
}

static void refused(const struct kg_str *s, const char *with)
{
    struct kg_gguf g;
    char *exact = kg_mem_copy(s->data, s->len, "a file", &err);
    const kg_status status = kg_gguf_open_bytes(&g, exact, s->len, "x.gguf", &err);

    kg_mem_free(exact);
    assert_true(status == KG_EFORMAT || status == KG_EUNSUPPORTED);
    if (strncmp(err.message, "x.gguf: ", 8) != 0 || !strstr(err.message, with))
        fail_msg("expected '%s' in: %s", with, err.message);
}

static void a_file_is_read(void **state)
{
    struct kg_str s = {0};
    struct kg_gguf g;
    struct kg_gguf_walk walk;

    (void)state;
    build(&s);
    need(kg_gguf_open_bytes(&g, s.data, s.len, "x.gguf", &err));
    assert_int_equal(g.n_values, 3);
    assert_int_equal(kg_gguf_int(kg_gguf_get(&g, "llama.block_count"), -1), 1);
    assert_true(kg_gguf_is(kg_gguf_get(&g, "general.architecture"), "llama"));
    walk = (struct kg_gguf_walk){.array = kg_gguf_get(&g, "names")};
    assert_true(kg_gguf_next(&walk) && kg_gguf_is(&walk.item, "a"));
    assert_true(kg_gguf_next(&walk) && kg_gguf_is(&walk.item, "bc"));
    assert_false(kg_gguf_next(&walk));
    assert_int_equal(g.n_tensors, 2);
    assert_int_equal(g.tensors[1].shape[0], 2);
    assert_int_equal(g.tensors[1].shape[1], 32);
    assert_int_equal(g.tensors[1].bytes, 68);
    assert_ptr_equal(g.tensors[1].data, g.tensors[0].data + 256);
    kg_gguf_close(&g);
    kg_str_release(&s);
}

/* Every truncation of a file is refused, without a read past its end. */
static void no_beginning_of_a_file_opens(void **state)
{
    struct kg_str s = {0};

    (void)state;
    build(&s);
    for (size_t n = s.len - 1; n > 0; n--) {
        s.len = n;
        refused(&s, "byte ");
    }
    kg_str_release(&s);
}

static void broken_files_are_refused_with_the_byte(void **state)
{
    static const struct {
        const char *at; /* the edit begins here, .. */
        int behind;     /* .. this many bytes after it */
        uint64_t value;
        int bytes;
        const char *with;
    } edits[] = {
        {"GGUF", 0, 0x46554746, 4, "byte 0: expected the letters GGUF, found bytes 46"},
        {"GGUF", 4, 1, 4, "byte 4: expected version 2 or 3, found 1"},
        {"GGUF", 4, 4, 4, "byte 4: expected version 2 or 3, found 4"},
        {"GGUF", 4, 0x03000000, 4, "little-endian file, found a big-endian one"},
        {"GGUF", 8, UINT64_MAX, 8, "byte 8: expected at most the"},
        {"GGUF", 16, (uint64_t)1 << 40, 8, "byte 16: expected at most the"},
        {"GGUF", 24, 1000, 8, "byte 24: expected a key of 1 to 127"},
        {"GGUF", 24, 0, 8, "byte 24: expected a key of 1 to 127"},
        {"general", 3, 0x07, 1, "found a length of 20, not all of them printable"},
        {"general", 20, 13, 4, "expected the type of general.architecture from 0 to 12"},
        {"general", 24, UINT64_MAX, 8, "general.architecture (18446744073709551615"},
        {"names", 9, KG_GGUF_ARRAY, 4, "found one of arrays"},
        {"names", 13, (uint64_t)1 << 61, 8, "items that"},
        {"token_embd.weight", 17, 0, 4, "expected 1 to 4 dimensions, found 0"},
        {"token_embd.weight", 17, 5, 4, "expected 1 to 4 dimensions, found 5"},
        {"token_embd.weight", 21, 0, 8,
         "expected a dimension from 1 to 2^63 - 1, found 0"},
        {"token_embd.weight", 29, (uint64_t)1 << 62, 8, "less than 2^64 bytes"},
        {"token_embd.weight", 37, 16, 4, "found 16 (IQ2_XXS)"},
        {"token_embd.weight", 37, 99, 4, "found 99 (unknown)"},
        {"token_embd.weight", 41, 32, 8, "expected its data at offset 0"},
        {"blk.0.attn_q", 23, 33, 8, "rows of whole blocks of 32 values (Q8_0)"},
        {"blk.0.attn_q", 31, 3, 8, "expected blk.0.attn_q.weight (102 bytes), found 68"},
        {"blk.0.attn_q", 43, 0, 8,
         "expected its data at offset 256, right after the previous"},
    };
    struct kg_str s = {0};

    (void)state;
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        build(&s);
        const size_t at = find(&s, edits[i].at) + (size_t)edits[i].behind;
        for (int k = 0; k < edits[i].bytes; k++)
            s.data[at + (size_t)k] = (char)(edits[i].value >> 8 * k & 255);
        refused(&s, edits[i].with);
    }
    kg_str_release(&s);
}

/* ---- a file as a model folder ---- */

static void put_whole(struct kg_str *s, const char *arch, void (*more)(struct kg_str *),
                      uint64_t n_more)
{
    static const struct {
        const char *key;
        uint64_t value;
    } sizes[] = {{"block_count", 1},
                 {"context_length", 64},
                 {"embedding_length", 32},
                 {"feed_forward_length", 64},
                 {"attention.head_count", 2}};
    char key[64];

    kg_str_clear(s);
    need(kg_str_puts(s, "GGUF", &err));
    put(s, 3, 4);
    put(s, 1, 8);
    put(s, 6 + n_more, 8);
    put_key(s, "general.architecture", KG_GGUF_TEXT);
    put_text(s, arch);
    for (size_t i = 0; i < 5; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, sizes[i].key);
        put_u32(s, key, sizes[i].value);
    }
    if (more)
        more(s);
    put_tensor(s, "token_embd.weight", 2, 32, 0, 0);
    while (s->len % 32)
        put(s, 0, 1);
    for (int i = 0; i < 256; i++)
        put(s, 0, 1);
}

static void write_file(const struct kg_str *s, char path[128])
{
    snprintf(path, 128, "%s/x.gguf", dir);
    need(kg_file_write_atomic(path, s->data, s->len, &err));
}

static void unknown_keys(struct kg_str *s)
{
    put_u32(s, "llama.attention.new_thing", 7);
    put_u32(s, "llama.attention.value_length", 15);
    put_u32(s, "other.block_count", 3);
}

static void metadata_becomes_config_json(void **state)
{
    struct kg_json_doc doc;
    struct kg_str s = {0};
    char path[128];

    (void)state;
    put_whole(&s, "llama", unknown_keys, 3);
    write_file(&s, path);
    need(kg_source_json(&doc, path, "config.json", 1 << 20, &err));
    assert_int_equal(kg_json_int(kg_json_get(doc.root, "num_hidden_layers"), 0), 1);
    assert_int_equal(kg_json_int(kg_json_get(doc.root, "vocab_size"), 0), 2);
    assert_true(kg_json_bool(kg_json_get(doc.root, "tie_word_embeddings"), false));
    /* an unknown key keeps its name, so it is checked as an unknown field of
     * config.json */
    assert_int_equal(kg_json_int(kg_json_get(doc.root, "llama.attention.new_thing"), 0),
                     7);
    assert_int_equal(
        kg_json_int(kg_json_get(doc.root, "llama.attention.value_length"), 0), 15);
    assert_null(kg_json_get(doc.root, "other.block_count"));
    kg_json_release(&doc);
    kg_str_release(&s);
}

static void two_scalings(struct kg_str *s)
{
    put_key(s, "llama.rope.scaling.type", KG_GGUF_TEXT);
    put_text(s, "linear");
    put_u32(s, "llama.rope.scaling.factor", 2);
    put_key(s, "llama.expert_weights_norm", KG_GGUF_BOOL);
    put(s, 0, 1);
    put_u32(s, "llama.expert_gating_func", 2);
    put_key(s, "llama.attention.causal", KG_GGUF_BOOL);
    put(s, 0, 1);
    put_u32(s, "llama.rope.dimension_count", 8);
    put_u32(s, "llama.attention.sliding_window", 9);
    put_u32(s, "llama.attn_logit_softcapping", 9);
    put_u32(s, "llama.rope.scaling.attn_factor", 3);
    put_u32(s, "llama.rope.scaling.yarn_ext_factor", 3);
}

/* Keys that a llama cannot have keep their names, so the rules of config.json refuse
 * them. */
static void keys_of_other_architectures_are_fields_of_their_name(void **state)
{
    static const char *const keys[] = {"llama.expert_weights_norm",
                                       "llama.expert_gating_func",
                                       "llama.attention.causal",
                                       "llama.rope.dimension_count",
                                       "llama.attention.sliding_window",
                                       "llama.attn_logit_softcapping",
                                       "llama.rope.scaling.attn_factor",
                                       "llama.rope.scaling.yarn_ext_factor",
                                       "rope_scaling"};
    struct kg_json_doc doc;
    struct kg_str s = {0};
    char path[128];

    (void)state;
    put_whole(&s, "llama", two_scalings, 10);
    write_file(&s, path);
    need(kg_source_json(&doc, path, "config.json", 1 << 20, &err));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!kg_json_get(doc.root, keys[i]))
            fail_msg("expected a field %s", keys[i]);
    assert_null(kg_json_get(doc.root, "sliding_window"));
    kg_json_release(&doc);
    kg_str_release(&s);
}

static void architectures_are_told_by_name(void **state)
{
    static const struct {
        const char *name, *model_type; /* model_type NULL: refused with .. */
        const char *with;
    } archs[] = {{"llama", "llama", NULL},        {"qwen2", "qwen2", NULL},
                 {"qwen3", "qwen3", NULL},        {"gemma2", "gemma2", NULL},
                 {"gemma3", "gemma3_text", NULL}, {"phi3", "phi3", NULL},
                 {"granite", "granite", NULL},    {"olmo2", "olmo2", NULL},
                 {"smollm3", "smollm3", NULL},    {"mamba", NULL, "one of llama"},
                 {"qwem2", NULL, "did you mean"}, {"qwen2moe", NULL, "expected experts"},
                 {"clip", NULL, "found 'clip'"}};
    struct kg_json_doc doc;
    struct kg_str s = {0};
    char path[128];

    (void)state;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        put_whole(&s, archs[i].name, NULL, 0);
        write_file(&s, path);
        const kg_status status = kg_source_json(&doc, path, "config.json", 1 << 20, &err);
        if (!archs[i].model_type) {
            assert_int_equal(status, KG_EUNSUPPORTED);
            if (!strstr(err.message, archs[i].with))
                fail_msg("expected '%s' in: %s", archs[i].with, err.message);
            continue;
        }
        need(status);
        assert_string_equal(kg_json_text(kg_json_get(doc.root, "model_type"), NULL),
                            archs[i].model_type);
        kg_json_release(&doc);
    }
    kg_str_release(&s);
}

static void a_source_has_the_files_of_its_folder(void **state)
{
    struct kg_json_doc doc = {0};
    struct kg_str s = {0};
    char path[128];

    (void)state;
    put_whole(&s, "llama", NULL, 0);
    write_file(&s, path);
    assert_true(kg_source_is_file(path) && kg_source_is_model(path));
    assert_true(kg_source_is_model(dir) && !kg_source_is_file(dir));
    assert_false(kg_source_is_model("tests/data/gguf/none.gguf"));
    assert_int_equal(kg_source_json(&doc, path, "generation_config.json", 9, &err),
                     KG_ENOTFOUND);
    assert_int_equal(kg_source_json(&doc, path, "tokenizer.json", 9, &err), KG_ENOTFOUND);
    need(kg_source_json_or_none(&doc, dir, "config.json", 99, &err));
    assert_null(doc.root);
    kg_str_release(&s);
}

/* Whichever part is read first, a missing model is an error, not a model without that
 * part. */
static void a_missing_file_is_named(void **state)
{
    static const char *const parts[] = {"config.json", "tokenizer.json",
                                        "tokenizer.model", "tokenizer_config.json",
                                        "generation_config.json"};
    static const char *const names[] = {"none.gguf", "/none/none.gguf", "a b.gguf"};
    struct kg_json_doc doc;
    struct kg_st_set *set;
    char words[64];

    (void)state;
    for (size_t i = 0; i < 3 * 5; i++) {
        snprintf(words, sizeof words, "%s: expected a model, found no such",
                 names[i / 5]);
        assert_int_equal(
            kg_source_json_or_none(&doc, names[i / 5], parts[i % 5], 9, &err), KG_EINVAL);
        assert_memory_equal(err.message, words, strlen(words));
        assert_false(kg_source_is_model(names[i / 5]));
        assert_int_equal(kg_source_tensors(&set, names[i / 5], &err), KG_ENOTFOUND);
        assert_memory_equal(err.message, names[i / 5], strlen(names[i / 5]));
    }
}

/* ---- split sets ---- */

static void split(struct kg_str *s, uint64_t no, const char *tensor)
{
    kg_str_clear(s);
    need(kg_str_puts(s, "GGUF", &err));
    put(s, 3, 4);
    put(s, 1, 8);
    put(s, 2, 8);
    put_u32(s, "split.no", no);
    put_u32(s, "split.count", 2);
    put_tensor(s, tensor, 1, 8, 0, 0);
    while (s->len % 32)
        put(s, 0, 1);
    for (int i = 0; i < 32; i++)
        put(s, no, 1);
}

static void write_part(struct kg_str *s, const char *name, char path[128])
{
    snprintf(path, 128, "%s/%s", dir, name);
    need(kg_file_write_atomic(path, s->data, s->len, &err));
}

static void a_split_set_is_read_by_its_first_file(void **state)
{
    struct kg_str s = {0};
    struct kg_gguf g;
    char first[128], second[128], other[128];

    (void)state;
    split(&s, 1, "b");
    write_part(&s, "m-00002-of-00002.gguf", second);
    split(&s, 0, "a");
    write_part(&s, "other.gguf", other);
    write_part(&s, "m-00001-of-00002.gguf", first);
    need(kg_gguf_open(&g, first, &err));
    assert_int_equal(g.n_tensors, 2);
    assert_int_equal(kg_gguf_find(&g, "b")->data[0], 1);
    assert_string_equal(kg_gguf_find(&g, "b")->file, second);
    kg_gguf_close(&g);

    assert_int_equal(kg_gguf_open(&g, second, &err), KG_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "found part 2: name the set by its first file"));
    assert_int_equal(kg_gguf_open(&g, other, &err), KG_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "ends in -00001-of-00002.gguf"));
    assert_int_equal(unlink(second), 0);
    assert_int_equal(kg_gguf_open(&g, first, &err), KG_ENOTFOUND);
    assert_int_equal(unlink(first), 0);
    assert_int_equal(unlink(other), 0);
    kg_str_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_the_gguf_package),
        cmocka_unit_test(blocks_are_those_of_llama_cpp),
        cmocka_unit_test(scales_that_are_no_numbers_stay_so),
        cmocka_unit_test(a_file_is_read),
        cmocka_unit_test(no_beginning_of_a_file_opens),
        cmocka_unit_test(broken_files_are_refused_with_the_byte),
        cmocka_unit_test(metadata_becomes_config_json),
        cmocka_unit_test(keys_of_other_architectures_are_fields_of_their_name),
        cmocka_unit_test(architectures_are_told_by_name),
        cmocka_unit_test(a_source_has_the_files_of_its_folder),
        cmocka_unit_test(a_missing_file_is_named),
        cmocka_unit_test(a_split_set_is_read_by_its_first_file),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
