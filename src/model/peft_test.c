/* An adapter that kedge writes, as PEFT reads it. kedge wrote
 * tests/data/peft/NAME/adapter, or NAME.CASE/adapter, for the base
 * tests/data/reference/NAME. PEFT loaded it, and its log-probs and gradients are in the
 * files next to it (tools/oracle/make_peft_reference.py). What kedge writes today equals
 * that folder byte for byte.
 */
#include "model/model_testing.h"

#include "model/rows.h"

static const char *const names[] = {
    "qwen3",          "qwen3_moe",   "mixtral",         "phi3",
    "qwen3.patterns", "phi3.layers", "qwen3_moe.regex",
};
enum { NAMES = sizeof names / sizeof *names };

struct base {
    char name[32];
};
static struct base base_of(const char *name)
{
    struct base b;
    snprintf(b.name, sizeof b.name, "%.*s", (int)strcspn(name, "."), name);
    return b;
}

static struct kg_model *open_adapted(const char *base, const char *folder)
{
    struct kg_lora lora;
    const struct kg_model_opts opts = {
        .ct = KG_F32, .trainable = true, .lora = &lora, .adapter = folder};
    struct kg_model *m = NULL;
    NEED(kg_lora_read(&lora, folder, err));
    NEED(kg_model_open(&m, base, &opts, err));
    return m;
}

/* Wants every token but the first of each sequence. */
static void want_all(struct kg_rows *p, const struct test_reference *r)
{
    const int32_t *tokens = r->pack.tokens;
    kg_rows_begin(p, p->model, 0);
    for (int s = 0; s < r->pack.pack.n_seqs; s++) {
        const int32_t n = r->pack.seqs[s].n;
        const int64_t row = kg_rows_add(p, tokens, (size_t)n);
        for (int32_t i = 1; i < n; i++)
            kg_rows_want(p, row + i - 1, tokens[i], 1.0f, NULL);
        tokens += n;
    }
}

static double log_probs_differ(const struct kg_model *m, const struct test_reference *r,
                               const struct kg_json *want)
{
    const struct kg_rows_opts opts = {.max_tokens = TEST_REF_TOKENS};
    struct kg_rows *p = NULL;
    double most = 0.0;
    int64_t row = 0;
    NEED(kg_rows_create(&p, m, &opts, err));
    p->model = m;
    want_all(p, r);
    NEED(kg_rows_forward(p, false, err));
    NEED(kg_rows_ask(p, NULL, err));
    for (size_t s = 0; s < kg_json_size(want); s++) {
        const struct kg_json *of_seq = kg_json_at(want, s);
        for (size_t i = 0; i < kg_json_size(of_seq); i++, row++)
            most = fmax(most, fabs((double)p->logp[row] -
                                   kg_json_real(kg_json_at(of_seq, i), NAN)));
    }
    assert_int_equal(row, TEST_REF_TARGETS);
    kg_rows_free(p);
    return most;
}

static double grads_differ(const struct kg_model *m, struct test_reference *r,
                           const char *folder)
{
    struct kg_acts *acts = NULL;
    float *g = buffer_of(m->n_elements, sizeof *g);
    NEED(kg_acts_create(&acts, m, TEST_REF_TOKENS, false, err));
    test_nll(m, acts, &r->pack, 1.0 / TEST_REF_TARGETS, g);
    const double most = test_against_torch(m, g, folder, "grads.safetensors");
    buffer_free(g);
    kg_acts_free(acts);
    return most;
}

static void check(const char *name)
{
    char folder[128];
    struct test_reference r;
    struct kg_json_doc doc = {0};
    const struct base b = base_of(name);
    snprintf(folder, sizeof folder, "tests/data/peft/%s", name);
    test_reference_open(&r, b.name);
    NEED(kg_json_read(&doc, kg_path_in(folder, "logprobs.json").text, 1 << 20, err));
    struct kg_model *m = open_adapted(r.dir, kg_path_in(folder, "adapter").text);
    const double apart = log_probs_differ(m, &r, kg_json_get(doc.root, "logprobs"));
    const double grads = grads_differ(m, &r, folder);
    printf("%s: log-probs within %.2e of PEFT's, gradients of A and B %.2e relative\n",
           name, apart, grads);
    assert_true(apart < 1e-5);
    kg_model_free(m);
    kg_json_release(&doc);
    test_reference_close(&r);
}

static void test_peft_computes_the_same_with_our_folder(void **state)
{
    (void)state;
    for (int i = 0; i < NAMES; i++)
        check(names[i]);
}

static void same_file(const char *a, const char *b, const char *name)
{
    struct kg_str x = {0}, y = {0};
    NEED(kg_file_read(&x, kg_path_in(a, name).text, 1 << 20, err));
    NEED(kg_file_read(&y, kg_path_in(b, name).text, 1 << 20, err));
    if (x.len != y.len || memcmp(x.data, y.data, x.len) != 0)
        fail_msg("%s/%s is not %s/%s", a, name, b, name);
    kg_str_release(&x);
    kg_str_release(&y);
}

static void test_the_folder_is_what_is_written(void **state)
{
    static const char *const files[] = {"adapter_config.json",
                                        "adapter_model.safetensors", "kedge_base.json"};
    (void)state;
    for (int i = 0; i < NAMES; i++) {
        char base[128], folder[128], again[128];
        const struct base b = base_of(names[i]);
        snprintf(base, sizeof base, "tests/data/reference/%s", b.name);
        snprintf(folder, sizeof folder, "tests/data/peft/%s/adapter", names[i]);
        test_dir(again, "peft");
        struct kg_model *m = open_adapted(base, folder);
        NEED(kg_model_save(m, again, &(struct kg_model_save){.dtype = KG_F32}, err));
        for (size_t f = 0; f < sizeof files / sizeof *files; f++)
            same_file(again, folder, files[f]);
        kg_model_free(m);
        test_dir_remove(again);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peft_computes_the_same_with_our_folder),
        cmocka_unit_test(test_the_folder_is_what_is_written),
    };
    return RUN_SHOWN(tests, NULL, NULL);
}
