/* Every checkpoint of ../shared/data/models/more, made by transformers and PEFT: decoding
 * through the cache has the bits of the full forward, a saved copy reads as the same, and
 * gradients equal finite differences.
 *
 * forward_test.c, experts_test.c and lora_test.c compare log-probs with theirs. Here no
 * folder may be left out: one without a row is an error.
 */
#include "model/lora.h"
#include "model/model_testing.h"

#include <dirent.h>

#define MORE "../shared/data/models/more/"

enum { LONG = 80, BLOCKS = (LONG + KG_KV_BLOCK - 1) / KG_KV_BLOCK, SLOPES = 6 };

static const char *const folders[] = {
    "mistral_window", "qwen2_window", "llama_yarn", "llama_linear", "llama_dynamic",
    "llama_bias",     "qwen3_bias",   "smollm3",    "olmo2",        "granite",
    "phi3",           "gemma2",       "gemma3",     "qwen3_moe",    "qwen2_moe",
    "mixtral",        "olmoe",        "lora_0",     "lora_1"};
enum { N_FOLDERS = sizeof folders / sizeof *folders };

static void need_folders(void)
{
    if (kg_file_is_dir(MORE))
        return;
    print_message("skip: " MORE " is absent\n");
    skip();
}

static bool is_adapter(const char *name) { return strncmp(name, "lora_", 5) == 0; }

/* Opens the checkpoint, or base and adapter.   from: a saved copy, or NULL */
static struct kg_model *open_folder(const char *name, enum kg_dtype ct, const char *from)
{
    struct kg_model_opts opts = {.ct = ct, .trainable = true};
    struct kg_lora lora;
    struct kg_model *m = NULL;
    char dir[128], adapter[160];
    snprintf(dir, sizeof dir, MORE "%s%s", name, is_adapter(name) ? "/base" : "");
    snprintf(adapter, sizeof adapter, MORE "%s/adapter", name);
    if (is_adapter(name)) {
        opts.adapter = from ? from : adapter;
        opts.lora = &lora;
        NEED(kg_lora_read(&lora, opts.adapter, err));
    }
    NEED(kg_model_open(&m, from && !is_adapter(name) ? from : dir, &opts, err));
    return m;
}

static void no_folder_is_left_out(void **state)
{
    (void)state;
    need_folders();
    DIR *all = opendir(MORE);
    assert_non_null(all);
    for (struct dirent *e; (e = readdir(all));) {
        bool known = e->d_name[0] == '.' || strcmp(e->d_name, "README.md") == 0;
        for (int i = 0; i < N_FOLDERS; i++)
            known |= strcmp(e->d_name, folders[i]) == 0;
        if (!known)
            fail_msg(MORE "%s is in no test", e->d_name);
    }
    closedir(all);
}

/* ---- bits ---- */
/* Computes hidden states in chunks through a cache; chunk 1: token by token. */
static void through_cache(char *rows, size_t row_bytes, const struct kg_model *m,
                          const int32_t *tokens, int32_t chunk)
{
    struct kg_acts *acts = NULL;
    struct kg_kv *kv = NULL;
    int32_t blocks[BLOCKS];
    for (int32_t i = 0; i < BLOCKS; i++)
        blocks[i] = BLOCKS - 1 - i;
    NEED(kg_acts_create(&acts, m, LONG, true, err));
    NEED(kg_kv_create(&kv, m, kg_kv_alike(BLOCKS), err));
    for (int32_t at = 0, n; at < LONG; at += n) {
        n = LONG - at < chunk ? LONG - at : chunk;
        const struct kg_pack_seq seq = {n, at, kg_kv_table(blocks), 0};
        const struct kg_pack pack = {tokens + at, n, &seq, 1, NULL, 0};
        const struct kg_forward f = {.pack = &pack, .kv = kv};
        struct kg_mat hidden;
        NEED(kg_model_forward(&hidden, m, acts, &f, err));
        memcpy(rows + (size_t)at * row_bytes, hidden.data, (size_t)n * row_bytes);
    }
    kg_kv_free(kv);
    kg_acts_free(acts);
}

static void whole(char *rows, size_t row_bytes, const struct kg_model *m,
                  const int32_t *tokens)
{
    const int32_t n = LONG;
    struct test_pack t = test_pack_of(&tokens, &n, 1);
    struct kg_acts *acts = NULL;
    struct kg_mat hidden;
    const struct kg_forward f = {.pack = test_pack_get(&t)};
    NEED(kg_acts_create(&acts, m, LONG, true, err));
    NEED(kg_model_forward(&hidden, m, acts, &f, err));
    memcpy(rows, hidden.data, LONG * row_bytes);
    kg_acts_free(acts);
    test_pack_release(&t);
}

static void check_decoding(const char *name, enum kg_dtype ct)
{
    struct kg_model *m = open_folder(name, ct, NULL);
    const size_t row_bytes = (size_t)m->config.hidden * kg_dtype_traits(ct)->bytes;
    char *full = test_alloc(LONG, row_bytes), *parts = test_alloc(LONG, row_bytes);
    int32_t tokens[LONG];
    test_tokens(tokens, LONG, m->config.vocab, 1);
    whole(full, row_bytes, m, tokens);
    for (int32_t chunk = 1; chunk < LONG / 2; chunk += 26) {
        through_cache(parts, row_bytes, m, tokens, chunk);
        if (memcmp(full, parts, LONG * row_bytes) != 0)
            fail_msg("%s, %s: chunks of %d have other bits than the full forward", name,
                     kg_dtype_traits(ct)->name, (int)chunk);
    }
    kg_mem_free(full);
    kg_mem_free(parts);
    kg_model_free(m);
}

static void decoding_has_the_bits_of_the_full_forward(void **state)
{
    (void)state;
    need_folders();
    for (int i = 0; i < N_FOLDERS; i++) {
        check_decoding(folders[i], KG_F32);
        check_decoding(folders[i], KG_BF16);
    }
}

/* ---- files ---- */
static void what_is_saved_reads_as_the_same(void **state)
{
    (void)state;
    need_folders();
    for (int i = 0; i < N_FOLDERS; i++) {
        struct kg_model *m = open_folder(folders[i], KG_F32, NULL);
        char dir[128];
        test_dir(dir, folders[i]);
        NEED(kg_model_save(m, dir, &(struct kg_model_save){.dtype = KG_F32}, err));
        struct kg_model *again = open_folder(folders[i], KG_F32, dir);
        assert_int_equal(again->n_params, m->n_params);
        assert_int_equal(again->n_elements, m->n_elements);
        assert_memory_equal(again->master.data, m->master.data,
                            (size_t)m->n_elements * sizeof(float));
        kg_model_free(again);
        kg_model_free(m);
        test_dir_remove(dir);
    }
}

/* ---- gradients ---- */
/* Checks SLOPES tensors from first to last, each where its gradient is largest. */
static void check_gradients(const char *name)
{
    const int32_t n = LONG;
    struct kg_model *m = open_folder(name, KG_F32, NULL);
    const size_t first = kg_model_first_trained(m), some = m->n_params - first;
    struct kg_acts *acts = NULL;
    int32_t tokens[LONG];
    test_tokens(tokens, LONG, m->config.vocab, 2);
    struct test_pack t = test_pack_of((const int32_t *const[]){tokens}, &n, 1);
    float *g = buffer_of(m->n_elements, sizeof *g);
    NEED(kg_acts_create(&acts, m, LONG, true, err));
    test_nll(m, acts, &t, 1.0 / LONG, g);
    for (size_t i = 0; i < SLOPES; i++)
        test_largest_slope(m, acts, &t, &m->params[first + i * (some - 1) / (SLOPES - 1)],
                           1.0 / LONG, g);
    buffer_free(g);
    kg_acts_free(acts);
    test_pack_release(&t);
    kg_model_free(m);
}

static void gradients_are_differences_of_the_loss(void **state)
{
    (void)state;
    need_folders();
    for (int i = 0; i < N_FOLDERS; i++)
        check_gradients(folders[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_folder_is_left_out),
        cmocka_unit_test(decoding_has_the_bits_of_the_full_forward),
        cmocka_unit_test(what_is_saved_reads_as_the_same),
        cmocka_unit_test(gradients_are_differences_of_the_loss),
    };
    return RUN_SHOWN(tests, NULL, NULL);
}
