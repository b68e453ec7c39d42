/* Tests of encoders: tiny random ones agree with vectors that numpy computed
 * (tools/oracle/make_encoder.py), give the same bits for any batch, number of threads and
 * backend, and unsuitable folders are refused.
 */
#include "retriever/encoder/encoder.h"

#include "base/folder_testing.h"
#include "base/pool.h"
#include "data/jsonl.h"
#include "tensor/backend_testing.h"

#include <errno.h>
#include <math.h>
#include <omp.h>

#define DATA "tests/data/encoder/"

enum { MANY = 64, DIM = 8 };

static void must(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

static struct kg_encoder *open_with(const char *folder, struct kg_encoder_opts opts)
{
    struct kg_encoder *e;

    must(kg_backend_open(&opts.backend, backend_name, &err));
    must(kg_encoder_open(&e, folder, &opts, &err));
    return e;
}

static void embed(float *out, const struct kg_encoder *e, const char *const *texts,
                  size_t n, enum kg_text_side side)
{
    struct kg_text in[MANY];
    struct kg_embedder *m;

    for (size_t i = 0; i < n; i++)
        in[i] = (struct kg_text){texts[i], strlen(texts[i])};
    must(kg_embedder_open(&m, e, &err));
    must(kg_embed(out, m, in, n, side, &err));
    kg_embedder_close(m);
}

/* Pool threads keep scratch of the CPU's operations, so a test must only return to the
 * memory that was held before it. */
static uint64_t held;

static int begin(void **state)
{
    held = kg_mem_current_bytes();
    return make_dir(state);
}

static int end(void **state)
{
    (void)state;
    kg_mem_fail_at(0);
    return kg_file_remove_tree(dir, &err) != KG_OK || kg_mem_current_bytes() != held;
}

/* ---- against numpy ---- */
static void check_golden(const char *folder)
{
    struct kg_encoder *e = open_with(folder, (struct kg_encoder_opts){0});
    struct kg_json_doc doc = {0};
    struct kg_jsonl *in;
    bool more = true;
    int lines = 0;

    must(kg_jsonl_open(&in, kg_path_in(folder, "golden.jsonl").text, &err));
    for (;; lines++) {
        float got[DIM];
        const char *text;

        must(kg_jsonl_next(in, &doc, &more, &err));
        if (!more)
            break;
        must(kg_json_need_text(&text, &doc, doc.root, "text", &err));
        embed(got, e, &text, 1, KG_TEXT_PLAIN);
        for (size_t d = 0; d < DIM; d++) {
            const struct kg_json *want = kg_json_at(kg_json_get(doc.root, "vector"), d);

            assert_float_equal(got[d], kg_json_real(want, NAN), 1e-6);
        }
    }
    assert_int_equal(lines, 6);
    kg_json_release(&doc);
    kg_jsonl_close(in);
    kg_encoder_close(e);
}

static void vectors_are_those_of_numpy(void **state)
{
    (void)state;
    check_golden(DATA "bert");        /* mean, token types, fp32 */
    check_golden(DATA "xlm-roberta"); /* cls, positions after padding, fp16, a prefix */
}

/* ---- one text, one vector ---- */
/* 64 texts of 2 to more than 16 tokens, of which 16 are read.   at (MANY): the texts */
static void make_texts(const char **at, char (*texts)[128])
{
    static const char *const words[] = {"cat", "dog", "running", "q", "house", "."};

    for (int i = 0; i < MANY; i++) {
        texts[i][0] = '\0';
        for (int j = 0; j < i % 23; j++) {
            strcat(texts[i], words[(i * 7 + j * 3) % 6]);
            strcat(texts[i], " ");
        }
        at[i] = texts[i];
    }
}

static void a_vector_does_not_depend_on_its_batch_or_on_threads(void **state)
{
    static const size_t batches[] = {1, 2, 3, 7, 16, 33, MANY};
    const int threads = omp_get_max_threads();
    struct kg_encoder *e = open_with(DATA "bert", (struct kg_encoder_opts){0});
    char texts[MANY][128];
    const char *at[MANY];
    float want[MANY * DIM], got[MANY * DIM];

    (void)state;
    make_texts(at, texts);
    omp_set_num_threads(1);
    embed(want, e, at, MANY, KG_TEXT_PLAIN);
    for (int t = 1; t <= 3; t++) {
        omp_set_num_threads(t);
        for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
            for (size_t i = 0; i < MANY; i += batches[b])
                embed(got + i * DIM, e, at + i,
                      MANY - i < batches[b] ? MANY - i : batches[b], KG_TEXT_PLAIN);
            assert_memory_equal(got, want, sizeof want);
        }
    }
    omp_set_num_threads(threads);
    kg_encoder_close(e);
}

/* More texts than one pack has room for, so the packs split them at various places. */
static void packs_are_cut_anywhere(void **state)
{
    enum { TIMES = 6 };
    struct kg_encoder *e = open_with(DATA "bert", (struct kg_encoder_opts){0});
    struct kg_text in[TIMES * MANY];
    float *got = calloc(TIMES * MANY * DIM, sizeof *got);
    char texts[MANY][128];
    const char *at[MANY];
    struct kg_embedder *m;

    (void)state;
    make_texts(at, texts);
    for (int i = 0; i < TIMES * MANY; i++)
        in[i] = (struct kg_text){at[i % MANY], strlen(at[i % MANY])};
    must(kg_embedder_open(&m, e, &err));
    must(kg_embed(got, m, in, TIMES * MANY, KG_TEXT_PLAIN, &err));
    for (int t = 1; t < TIMES; t++)
        assert_memory_equal(got, got + (size_t)t * MANY * DIM, MANY * DIM * sizeof *got);
    kg_embedder_close(m);
    kg_encoder_close(e);
    free(got);
}

/* Texts in one pack and texts alone have the CPU's vectors, bit for bit. */
static void a_vector_is_the_cpus(void **state)
{
    static const char *const folders[] = {DATA "bert", DATA "xlm-roberta"};
    const char *const computes = backend_name;
    char texts[MANY][128];
    const char *at[MANY];
    float want[MANY * DIM], got[MANY * DIM];

    (void)state;
    make_texts(at, texts);
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++) {
        struct kg_encoder *e;

        backend_name = "cpu";
        e = open_with(folders[f], (struct kg_encoder_opts){0});
        embed(want, e, at, MANY, KG_TEXT_PASSAGE);
        kg_encoder_close(e);
        backend_name = computes;
        e = open_with(folders[f], (struct kg_encoder_opts){0});
        embed(got, e, at, MANY, KG_TEXT_PASSAGE);
        assert_memory_equal(got, want, sizeof want);
        for (int i = 0; i < MANY; i += 9) {
            embed(got, e, at + i, 1, KG_TEXT_PASSAGE);
            assert_memory_equal(got, want + i * DIM, DIM * sizeof *got);
        }
        kg_encoder_close(e);
    }
}

/* The plan of a backend's memory is exact to the byte. */
static void a_plan_is_what_is_taken(void **state)
{
    struct kg_encoder_memory plan;
    const char *const text = "a dog";
    const struct kg_backend *be;
    struct kg_encoder *e;
    float out[DIM];
    uint64_t before;

    (void)state;
    must(kg_backend_open(&be, backend_name, &err));
    must(kg_encoder_plan(&plan, DATA "bert", be, &err));
    before = kg_pages_memory().held; /* the peak is counted from here */
    e = open_with(DATA "bert", (struct kg_encoder_opts){0});
    embed(out, e, &text, 1, KG_TEXT_PLAIN);
    kg_encoder_close(e);
    assert_int_equal(kg_pages_memory().most - before,
                     plan.weights + (plan.staged > plan.pack ? plan.staged : plan.pack));
    assert_int_equal(kg_pages_memory().held, before);
}

/* The launches are those that docs/gpu.md counts. */
static void a_pack_is_few_launches(void **state)
{
    enum { BEFORE = 5, OF_A_LAYER = 16 };
    const char *const texts[] = {"a dog", "cats", ""};
    struct kg_encoder *e = open_with(DATA "bert", (struct kg_encoder_opts){0});
    struct kg_encoder_info info;
    float out[3 * DIM];
    int64_t before;

    (void)state;
    kg_encoder_info(&info, e);
    before = kg_emu_lose(-1);
    embed(out, e, texts, 3, KG_TEXT_PLAIN);
    assert_int_equal(kg_emu_lose(-1) - before, BEFORE + OF_A_LAYER * info.layers);
    kg_encoder_close(e);
}

/* ---- settings ---- */
static void prefixes_stand_in_front(void **state)
{
    static const char *const texts[] = {"a dog", "query: a dog", "passage: a dog"};
    const struct kg_encoder_opts e5 = {.query_prefix = "query: ",
                                       .passage_prefix = "passage: "};
    struct kg_encoder *e = open_with(DATA "bert", e5);
    float want[3 * DIM], got[DIM];

    (void)state;
    embed(want, e, texts, 3, KG_TEXT_PLAIN);
    embed(got, e, texts, 1, KG_TEXT_QUERY);
    assert_memory_equal(got, want + DIM, sizeof got);
    embed(got, e, texts, 1, KG_TEXT_PASSAGE);
    assert_memory_equal(got, want + 2 * DIM, sizeof got);
    assert_memory_not_equal(want, got, sizeof got);
    kg_encoder_close(e);
}

static uint64_t hash_with(struct kg_encoder_opts opts)
{
    struct kg_encoder_info info;
    struct kg_encoder *e = open_with(DATA "bert", opts);

    kg_encoder_info(&info, e);
    kg_encoder_close(e);
    return info.hash;
}

static void a_hash_says_which_encoder_it_is(void **state)
{
    const struct kg_encoder_opts same = {.pooling = "mean", .max_tokens = 16};
    const uint64_t hash = hash_with((struct kg_encoder_opts){0});

    (void)state;
    assert_true(hash == hash_with(same));
    assert_true(hash != hash_with((struct kg_encoder_opts){.pooling = "cls"}));
    assert_true(hash != hash_with((struct kg_encoder_opts){.max_tokens = 8}));
    assert_true(hash != hash_with((struct kg_encoder_opts){.query_prefix = "x"}));
    assert_true(hash != hash_with((struct kg_encoder_opts){.passage_prefix = "x"}));
}

/* ---- other folders ---- */
static const char *const files[] = {"config.json",       "modules.json",
                                    "tokenizer.json",    "sentence_bert_config.json",
                                    "model.safetensors", "1_Pooling/config.json"};

static void copy_folder(void)
{
    must(kg_file_make_dirs(in_dir("1_Pooling"), &err));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        must(
            kg_file_copy(kg_path_in(DATA "bert", files[i]).text, in_dir(files[i]), &err));
}

/* Replaces `old` by `new` in the file. */
static void change(const char *name, const char *old, const char *new)
{
    struct kg_str text = {0}, out = {0};
    const char *at;

    must(kg_file_read(&text, in_dir(name), 1 << 20, &err));
    at = strstr(kg_str_text(&text), old);
    assert_non_null(at);
    must(kg_str_append(&out, text.data, (size_t)(at - text.data), &err));
    must(kg_str_puts(&out, new, &err));
    must(kg_str_puts(&out, at + strlen(old), &err));
    put(name, out.data);
    kg_str_release(&text);
    kg_str_release(&out);
}

static void refuses(struct kg_encoder_opts opts, kg_status status, const char *part)
{
    struct kg_encoder *e;

    assert_int_equal(kg_encoder_open(&e, dir, &opts, &err), status);
    assert_null(e);
    if (!strstr(err.message, part))
        fail_msg("expected \"%s\" in \"%s\"", part, err.message);
}

struct flaw {
    const char *file, *old, *new;
    kg_status status;
    const char *part;
};

static void refuse_all(const struct flaw *flaws, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        copy_folder();
        change(flaws[i].file, flaws[i].old, flaws[i].new);
        refuses((struct kg_encoder_opts){0}, flaws[i].status, flaws[i].part);
    }
}

static void values_that_are_none_are_refused(void **state)
{
    static const struct flaw flaws[] = {
        {"config.json", "\"layer_norm_eps\": 1e-12", "\"layer_norm_eps\": \"x\"",
         KG_EFORMAT, "layer_norm_eps: expected a number between 0 and 1, found"},
        {"config.json", "\"layer_norm_eps\": 1e-12", "\"layer_norm_eps\": -1", KG_EFORMAT,
         "layer_norm_eps: expected a number between 0 and 1, found"},
        {"modules.json", "\"1_Pooling\"", "\"../1_Pooling\"", KG_EFORMAT,
         "in a folder inside that of modules.json, found '../1_Pooling'"},
        {"modules.json", "\"1_Pooling\"", "\"2_Pooling\"", KG_EINVAL,
         "expected 2_Pooling/config.json, or --pooling"},
        {"sentence_bert_config.json", "\"max_seq_length\": 16", "\"max_seq_length\": 0",
         KG_EFORMAT, "max_seq_length: expected an integer of at least 1, found"},
        {"sentence_bert_config.json", "\"max_seq_length\": 16",
         "\"max_seq_length\": \"12\"", KG_EFORMAT,
         "max_seq_length: expected an integer of at least 1, found another value, of "
         "type "
         "string"},
    };

    (void)state;
    refuse_all(flaws, sizeof flaws / sizeof *flaws);
}

static void folders_that_are_none_are_refused(void **state)
{
    static const struct flaw flaws[] = {
        {"config.json", "\"bert\"", "\"qwen2\"", KG_EUNSUPPORTED,
         "model_type of an encoder: expected one of bert, roberta, xlm-roberta; found "
         "'qwen2'"},
        {"config.json", "\"gelu\"", "\"relu\"", KG_EUNSUPPORTED,
         "hidden_act: expected 'gelu', found 'relu'"},
        {"config.json", "\"absolute\"", "\"relative_key\"", KG_EUNSUPPORTED,
         "position_embedding_type: expected 'absolute'"},
        {"config.json", "{", "{\"is_decoder\": true,", KG_EUNSUPPORTED,
         "is_decoder: expected false for an encoder"},
        {"config.json", "\"num_attention_heads\": 2", "\"num_attention_heads\": 3",
         KG_EFORMAT, "expected a multiple of the 3 heads, found 8"},
        {"config.json", "\"intermediate_size\": 12", "\"intermediate_size\": 13",
         KG_ESHAPE, "expected 13 x 8 by config.json, found 2 dimensions, 12 x 8"},
        {"config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3",
         KG_ENOTFOUND, "tensor encoder.layer.2.attention.self.query.weight is missing"},
        {"config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1",
         KG_EUNSUPPORTED, "not a tensor of a bert encoder with this config.json"},
        {"config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 16000000",
         KG_EFORMAT, "num_hidden_layers': expected an integer of 1..1024, found"},
        {"modules.json", "models.Normalize", "models.Dense", KG_EUNSUPPORTED,
         "one pooling and a normalisation, found a further module "
         "sentence_transformers.models.Dense"},
        {"1_Pooling/config.json", "\"pooling_mode_max_tokens\": false",
         "\"pooling_mode_max_tokens\": true", KG_EUNSUPPORTED,
         "by mean_tokens or by cls_token alone, found pooling_mode_max_tokens"},
        {"1_Pooling/config.json", "\"pooling_mode_mean_tokens\": true",
         "\"pooling_mode_mean_tokens\": false", KG_EUNSUPPORTED, "found neither"},
        {"1_Pooling/config.json", "{", "{\"include_prompt\": false,", KG_EUNSUPPORTED,
         "1_Pooling/config.json: include_prompt: expected true, found false"},
        {"sentence_bert_config.json", "\"do_lower_case\": false",
         "\"do_lower_case\": true", KG_EUNSUPPORTED,
         "sentence_bert_config.json: do_lower_case: expected false, found true"},
        {"sentence_bert_config.json", "\"do_lower_case\": false", "\"do_lower_case\": 1",
         KG_EUNSUPPORTED, "do_lower_case: expected false, found integer"},
    };

    (void)state;
    refuse_all(flaws, sizeof flaws / sizeof *flaws);
    copy_folder();
    change("1_Pooling/config.json", "{", "{\"include_prompt\": false,");
    refuses((struct kg_encoder_opts){.pooling = "mean"}, KG_EUNSUPPORTED,
            "include_prompt: expected true, found false");
    copy_folder();
    change("1_Pooling/config.json", "{", "{\"include_prompt\": true,");
    kg_encoder_close(open_with(dir, (struct kg_encoder_opts){0}));
    copy_folder();
    refuses((struct kg_encoder_opts){.pooling = "max"}, KG_EINVAL,
            "pooling: expected one of mean, cls; found 'max'");
    refuses((struct kg_encoder_opts){.max_tokens = 25}, KG_EINVAL,
            "max_tokens: expected at most the encoder's 24 positions, found 25");
    refuses((struct kg_encoder_opts){.max_tokens = 2}, KG_EINVAL,
            "max_tokens: expected more than the tokenizer's 2 special tokens, found 2");
}

/* RoBERTa's positions begin after that of padding, so fewer are left for a text. */
static void positions_begin_behind_padding(void **state)
{
    (void)state;
    copy_folder();
    change("config.json", "\"bert\"", "\"xlm-roberta\"");
    refuses((struct kg_encoder_opts){.max_tokens = 24}, KG_EINVAL,
            "expected at most the encoder's 23 positions, found 24");
    change("config.json", "\"pad_token_id\": 0", "\"pad_token_id\": 1");
    refuses((struct kg_encoder_opts){.max_tokens = 23}, KG_EINVAL,
            "expected at most the encoder's 22 positions, found 23");
    kg_encoder_close(open_with(dir, (struct kg_encoder_opts){.max_tokens = 22}));
    change("config.json", "\"pad_token_id\": 1", "\"pad_token_id\": 23");
    refuses((struct kg_encoder_opts){0}, KG_EFORMAT,
            "pad_token_id': expected an integer of 0..22, found");
    change("config.json", "\"pad_token_id\"", "\"pad\"");
    refuses((struct kg_encoder_opts){0}, KG_EFORMAT, "pad_token_id");
}

static void pooling_is_known_or_asked_for(void **state)
{
    struct kg_encoder *e;
    float here[DIM], there[DIM];
    const char *text = "a dog";

    (void)state;
    copy_folder();
    must(kg_file_remove_tree(in_dir("1_Pooling"), &err));
    must(kg_file_remove_tree(in_dir("modules.json"), &err));
    refuses((struct kg_encoder_opts){0}, KG_EINVAL,
            "expected 1_Pooling/config.json, or --pooling mean or cls");
    e = open_with(dir, (struct kg_encoder_opts){.pooling = "mean"});
    embed(here, e, &text, 1, KG_TEXT_PLAIN);
    kg_encoder_close(e);
    e = open_with(DATA "bert", (struct kg_encoder_opts){0});
    embed(there, e, &text, 1, KG_TEXT_PLAIN);
    kg_encoder_close(e);
    assert_memory_equal(here, there, sizeof here);
}

/* Without the Normalize module a vector keeps its length. */
static void modules_say_whether_vectors_have_length_1(void **state)
{
    const char *text = "a dog";
    struct kg_encoder *e;
    double squares = 0;
    float v[DIM];

    (void)state;
    copy_folder();
    put("modules.json", "[{\"type\": \"x.Transformer\", \"path\": \"\"}, "
                        "{\"type\": \"x.Pooling\", \"path\": \"1_Pooling\"}]");
    e = open_with(dir, (struct kg_encoder_opts){0});
    embed(v, e, &text, 1, KG_TEXT_PLAIN);
    kg_encoder_close(e);
    for (int d = 0; d < DIM; d++)
        squares += (double)v[d] * (double)v[d];
    assert_true(fabs(squares - 1) > 0.1);
}

static void a_folder_may_have_prompts(void **state)
{
    struct kg_encoder_info info;
    struct kg_encoder *e;

    (void)state;
    copy_folder();
    put("config_sentence_transformers.json",
        "{\"prompts\": {\"query\": \"q: \", \"document\": \"d: \"}}");
    e = open_with(dir, (struct kg_encoder_opts){.passage_prefix = ""});
    kg_encoder_info(&info, e);
    assert_string_equal(info.query_prefix, "q: ");
    assert_string_equal(info.passage_prefix, "");
    kg_encoder_close(e);
    e = open_with(dir, (struct kg_encoder_opts){0});
    kg_encoder_info(&info, e);
    assert_string_equal(info.passage_prefix, "d: ");
    kg_encoder_close(e);
}

/* ---- bad vectors and texts ---- */
static void what_is_no_number_is_no_vector(void **state)
{
    const struct kg_text texts[] = {{"dog", 3}, {"cat", 3}};
    struct kg_str file = {0};
    struct kg_encoder *e;
    struct kg_embedder *m;
    float out[2 * DIM];

    (void)state;
    copy_folder();
    must(kg_file_read(&file, in_dir("model.safetensors"), 1 << 20, &err));
    memset(file.data + file.len - 64, 0xff, 64); /* NaN in the last tensor */
    must(kg_file_write_atomic(in_dir("model.safetensors"), file.data, file.len, &err));
    kg_str_release(&file);
    e = open_with(dir, (struct kg_encoder_opts){0});
    must(kg_embedder_open(&m, e, &err));
    assert_int_equal(kg_embed(out, m, texts, 2, KG_TEXT_PLAIN, &err), KG_ENONFINITE);
    assert_non_null(strstr(err.message, "expected a finite vector"));
    kg_embedder_close(m);
    kg_encoder_close(e);
}

/* With random weights: 300 texts need several packs, and each has the vector that it has
 * alone, of length 1. */
static void tokens_of_random_weights_have_vectors(void **state)
{
    enum { TEXTS = 300, LONG = 20 };
    static const struct kg_encoder_shape shape = {
        .dim = DIM, .ffn = 12, .layers = 2, .heads = 2, .vocab = 30, .max_tokens = LONG};
    static int32_t ids[TEXTS * LONG], lengths[TEXTS];
    static float together[TEXTS][DIM];
    struct kg_encoder *e;
    struct kg_embedder *m;
    int32_t at = 0;

    (void)state;
    for (int i = 0; i < TEXTS; i++) {
        lengths[i] = 1 + i % LONG;
        for (int32_t j = 0; j < lengths[i]; j++)
            ids[at++] = (i * 7 + j * 3) % 30;
    }
    must(kg_encoder_create(&e, &shape, &err));
    must(kg_embedder_open(&m, e, &err));
    must(kg_embed_ids(together[0], m, ids, lengths, TEXTS, &err));
    at = 0;
    for (int i = 0; i < TEXTS; at += lengths[i++]) {
        double squares = 0;
        float alone[DIM];

        must(kg_embed_ids(alone, m, ids + at, &lengths[i], 1, &err));
        assert_memory_equal(alone, together[i], sizeof alone);
        for (int d = 0; d < DIM; d++)
            squares += (double)alone[d] * (double)alone[d];
        assert_float_equal(squares, 1, 1e-6);
    }
    assert_memory_not_equal(together[0], together[1], sizeof together[0]);
    kg_embedder_close(m);
    kg_encoder_close(e);
}

static void a_text_is_utf8(void **state)
{
    const struct kg_text texts[] = {{"dog", 3}, {"c\xfft", 3}};
    struct kg_encoder *e = open_with(DATA "bert", (struct kg_encoder_opts){0});
    struct kg_embedder *m;
    float out[2 * DIM];

    (void)state;
    must(kg_embedder_open(&m, e, &err));
    assert_int_equal(kg_embed(out, m, texts, 2, KG_TEXT_PLAIN, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "text 1"));
    kg_embedder_close(m);
    kg_encoder_close(e);
}

static void without_memory_nothing_is_left(void **state)
{
    const struct kg_text text = {"a dog", 5};
    const uint64_t before = kg_mem_current_bytes();
    bool done = false;

    (void)state;
    for (uint64_t n = 1; !done; n++) {
        struct kg_encoder_opts opts = {0};
        struct kg_encoder *e = NULL;
        struct kg_embedder *m = NULL;
        float out[DIM];

        assert_true(n < 3000);
        kg_mem_fail_at(n);
        done = kg_encoder_open(&e, DATA "bert", &opts, &err) == KG_OK &&
               kg_embedder_open(&m, e, &err) == KG_OK &&
               kg_embed(out, m, &text, 1, KG_TEXT_PLAIN, &err) == KG_OK;
        kg_mem_fail_at(0);
        kg_embedder_close(m);
        kg_encoder_close(e);
        assert_true(kg_mem_current_bytes() == before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_are_those_of_numpy),
        cmocka_unit_test(a_vector_does_not_depend_on_its_batch_or_on_threads),
        cmocka_unit_test(packs_are_cut_anywhere),
        cmocka_unit_test(prefixes_stand_in_front),
        cmocka_unit_test(a_hash_says_which_encoder_it_is),
        cmocka_unit_test_setup_teardown(folders_that_are_none_are_refused, begin, end),
        cmocka_unit_test_setup_teardown(values_that_are_none_are_refused, begin, end),
        cmocka_unit_test_setup_teardown(positions_begin_behind_padding, begin, end),
        cmocka_unit_test_setup_teardown(pooling_is_known_or_asked_for, begin, end),
        cmocka_unit_test_setup_teardown(modules_say_whether_vectors_have_length_1, begin,
                                        end),
        cmocka_unit_test_setup_teardown(a_folder_may_have_prompts, begin, end),
        cmocka_unit_test_setup_teardown(what_is_no_number_is_no_vector, begin, end),
        cmocka_unit_test(tokens_of_random_weights_have_vectors),
        cmocka_unit_test(a_text_is_utf8),
        cmocka_unit_test(without_memory_nothing_is_left),
    };
    const struct CMUnitTest elsewhere[] = {
        cmocka_unit_test(vectors_are_those_of_numpy),
        cmocka_unit_test(a_vector_is_the_cpus),
        cmocka_unit_test(packs_are_cut_anywhere),
    };
    const struct CMUnitTest launched[] = {cmocka_unit_test(a_pack_is_few_launches)};
    const struct CMUnitTest planned[] = {cmocka_unit_test(a_plan_is_what_is_taken)};
    int failed = cmocka_run_group_tests_name("encoder", tests, NULL, NULL);

    /* a backend whose memory no test may touch */
    backend_name = "far";
    failed += cmocka_run_group_tests_name("encoder, far", elsewhere, NULL, NULL);
    failed += cmocka_run_group_tests_name("encoder, far, memory", planned, NULL, NULL);
    backend_name = "emu";
    if (kg_emu_open)
        failed += cmocka_run_group_tests_name("encoder, emu", launched, NULL, NULL);
    for (int i = 0; kg_emu_open && i < SCHEDULES; i++)
        failed += cmocka_run_group_tests_name(use_emulation((enum kg_emu_schedule)i),
                                              elsewhere, NULL, NULL);
    return failed;
}
