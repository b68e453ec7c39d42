/* Adapters: gradients, bits in the cache and in batches, files, models that share a base,
 * and what is refused.
 *
 * Adapters made by PEFT, with log-probs of transformers, are in
 * ../shared/data/models/more; without that folder, their tests are skipped.
 */
#include "model/model_testing.h"

#include "model/optim.h"

#define QWEN2  "tests/data/reference/qwen2"
#define SHARED "../shared/data/models/more"

enum { MOE_ARCHS = 4 };
static const char *const moe_archs[MOE_ARCHS] = {
    "tests/data/reference/qwen3_moe", "tests/data/reference/qwen2_moe",
    "tests/data/reference/mixtral", "tests/data/reference/olmoe"};

static struct kg_lora lora_of(int32_t rank, const char *targets)
{
    struct kg_lora l = {.rank = rank, .alpha = 2.0 * rank};
    char copy[128];

    snprintf(copy, sizeof copy, "%s", targets);
    for (char *at = strtok(copy, " "); at; at = strtok(NULL, " "))
        NEED(kg_lora_add_target(&l, at, "targets", err));
    return l;
}

/* Adapters on every matrix; some have another rank or alpha. */
static struct kg_lora uneven(void)
{
    struct kg_lora l = lora_of(4, "");
    NEED(kg_lora_add_rule(&l, KG_LORA_RANK, "o_proj", 2, "rules", err));
    NEED(kg_lora_add_rule(&l, KG_LORA_RANK, "layers\\.0\\..*", 6, "rules", err));
    NEED(kg_lora_add_rule(&l, KG_LORA_ALPHA, "layers\\.1\\..*", 3, "rules", err));
    return l;
}

static struct kg_model *open_with(const char *dir, enum kg_dtype ct,
                                  const struct kg_lora *lora, const char *adapter)
{
    const struct kg_model_opts opts = {
        .ct = ct, .trainable = true, .lora = lora, .adapter = adapter, .seed = 3};
    struct kg_model *m = NULL;
    NEED(kg_model_open(&m, dir, &opts, err));
    return m;
}

/* Fills all of A and B with random values, as a training step might leave them. */
static void move(struct kg_model *m, uint32_t salt)
{
    float *w = test_alloc((size_t)m->n_elements, sizeof *w);
    uint32_t x = 2463534242u + 977u * salt;
    for (size_t i = m->n_base; i < m->n_params; i++) {
        const struct kg_param *p = &m->params[i];
        for (int64_t j = 0; j < p->rows * p->cols; j++) {
            x = x * 1664525u + 1013904223u;
            w[p->offset + j] = 0.1f * ((float)(x >> 8) * 0x1p-23f - 1.0f);
        }
    }
    NEED(kg_slab_write(&m->master, 0, w, m->n_elements, err));
    NEED(kg_model_refresh(m, err));
    kg_mem_free(w);
}

/* ---- adapters made by PEFT ---- */

static void open_golden(struct kg_model **m, char dir[64], int which)
{
    struct kg_lora lora;
    char base[96], adapter[96];

    snprintf(dir, 64, SHARED "/lora_%d", which);
    if (!kg_file_is_dir(dir))
        skip();
    snprintf(base, sizeof base, "%s/base", dir);
    snprintf(adapter, sizeof adapter, "%s/adapter", dir);
    NEED(kg_lora_read(&lora, adapter, err));
    *m = open_with(base, KG_F32, &lora, adapter);
}

/* The largest difference of the line's log-probs. */
static double line_differs(const struct kg_model *m, const struct kg_json *line)
{
    const struct kg_json *ids = kg_json_get(line, "input_ids");
    const struct kg_json *want = kg_json_get(line, "token_logprobs");
    const int32_t n = (int32_t)kg_json_size(ids);
    int32_t *tokens = test_alloc((size_t)n, sizeof *tokens);
    double most = 0;
    for (int32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)kg_json_int(kg_json_at(ids, (size_t)i), -1);
    for (int32_t i = 1; i < n; i++) { /* the nll of a prefix less that of a shorter one */
        struct test_pack t = test_pack_of((const int32_t *const[]){tokens},
                                          &(int32_t){i + 1}, 1);
        struct kg_acts *acts = NULL;
        for (int32_t j = 0; j < i - 1; j++)
            t.target[j] = -1;
        NEED(kg_acts_create(&acts, m, n, true, err));
        const double got = -test_nll(m, acts, &t, 1.0, NULL);
        most = fmax(most, fabs(got - kg_json_real(kg_json_at(want, (size_t)i - 1), NAN)));
        kg_acts_free(acts);
        test_pack_release(&t);
    }
    kg_mem_free(tokens);
    return most;
}

static void check_golden(int which)
{
    char dir[64], path[96], text[1 << 14];
    struct kg_model *m;
    double most = 0;
    int lines = 0;

    open_golden(&m, dir, which);
    snprintf(path, sizeof path, "%s/expected_logprobs.jsonl", dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(text, sizeof text, f)) {
        struct kg_json_doc doc = {0};
        NEED(kg_json_parse(&doc, text, strlen(text), path, err));
        most = fmax(most, line_differs(m, doc.root));
        kg_json_release(&doc);
        lines++;
    }
    fclose(f);
    printf("%s: %d lines, largest difference %.2e\n", dir, lines, most);
    assert_true(lines > 0 && most < 1e-4);
    kg_model_free(m);
}

static void test_log_probs_are_those_of_peft(void **state)
{
    (void)state;
    check_golden(0);
}

static void test_rank_stabilised_ones_of_all_layers_too(void **state)
{
    (void)state;
    check_golden(1);
}

/* ---- gradients ---- */

static double nll_of(const struct kg_model *m, struct kg_acts *acts, struct test_pack *t)
{
    return test_nll(m, acts, t, 1.0, NULL);
}

/* The slope of the loss along the gradient of p, from steps of this size. */
static double slope_along(struct kg_model *m, const struct kg_param *p, const float *g,
                          double length, double step, struct kg_acts *acts,
                          struct test_pack *t)
{
    const int64_t n = p->rows * p->cols;
    float *was = test_alloc((size_t)n, sizeof *was),
          *to = test_alloc((size_t)n, sizeof *to);
    double at[2];
    NEED(kg_slab_read(was, &m->master, p->offset, n, err));
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < n; i++)
            to[i] = was[i] + (float)((side ? step : -step) * g[p->offset + i] / length);
        NEED(kg_slab_write(&m->master, p->offset, to, n, err));
        NEED(kg_model_refresh(m, err));
        at[side] = nll_of(m, acts, t);
    }
    NEED(kg_slab_write(&m->master, p->offset, was, n, err));
    NEED(kg_model_refresh(m, err));
    kg_mem_free(was);
    kg_mem_free(to);
    return (at[1] - at[0]) / (2 * step);
}

/* Along p's own gradient, of length g, the slope of the loss is g. If a step crosses a
 * tie of two experts, the loss jumps, so for models with experts a smaller step may
 * agree. */
static void check_direction(struct kg_model *m, const struct kg_param *p, const float *g,
                            struct kg_acts *acts, struct test_pack *t)
{
    static const double steps[] = {0.01, 0.002, 0.0005, 0.00015};
    const int n_steps = m->config.experts.n > 0 ? 4 : 1;
    double length = 0, found = 0;
    for (int64_t i = 0; i < p->rows * p->cols; i++)
        length += (double)g[p->offset + i] * g[p->offset + i];
    length = sqrt(length);
    if (length == 0 && m->config.experts.n > 0)
        return; /* an expert that no token chose */
    for (int i = 0; i < n_steps && length > 1e-3; i++) {
        found = slope_along(m, p, g, length, steps[i], acts, t);
        if (fabs(found - length) < (i > 0 ? 2e-2 : 5e-3) * length + 5e-4)
            return;
    }
    fail_msg("%s: expected a slope of %g, found %g", p->name, length, found);
}

/* every: checks one of so many A and B */
static void check_slopes(const char *arch, struct kg_lora lora, size_t every)
{
    struct test_reference r;
    struct kg_acts *acts = NULL;
    test_reference_open(&r, arch);
    struct kg_model *m = open_with(r.dir, KG_F32, &lora, NULL);
    move(m, 1);
    float *g = buffer_of(m->n_elements, sizeof *g);
    NEED(kg_acts_create(&acts, m, TEST_REF_TOKENS, false, err));
    test_nll(m, acts, &r.pack, 1.0, g);
    for (size_t i = m->n_base; i < m->n_params; i += every)
        check_direction(m, &m->params[i], g, acts, &r.pack);
    kg_acts_free(acts);
    buffer_free(g);
    kg_model_free(m);
    test_reference_close(&r);
}

static void test_gradients_are_slopes(void **state)
{
    (void)state;
    for (int a = 0; a < TEST_ARCHS; a++)
        check_slopes(test_archs[a], lora_of(4, ""), 1);
}

static void test_of_experts_routers_and_shared_ones_too(void **state)
{
    (void)state;
    const struct kg_lora all = lora_of(4, "");
    check_slopes("qwen3_moe", all, 5);
    check_slopes("qwen2_moe", all, 5); /* has shared experts */
    check_slopes("mixtral", all, 4);
    check_slopes("olmoe", all, 6);
}

static void test_of_uneven_ranks_too(void **state)
{
    (void)state;
    check_slopes("qwen2", uneven(), 2);
    check_slopes("phi3", uneven(), 2);
    check_slopes("qwen3_moe", uneven(), 5);
}

/* The parts share one A, whose gradient is the sum over the parts, and one B, of which
 * each part has its own rows. */
static void test_parts_of_a_fused_tensor_share_an_a(void **state)
{
    (void)state;
    const struct kg_lora lora = lora_of(4, "qkv_proj gate_up_proj");
    struct kg_model *m = open_with("tests/data/reference/phi3", KG_F32, &lora, NULL);
    const struct kg_layer_params *w = &m->layers[0];
    const struct kg_param *b = w->wq->adapter->b;
    assert_true(w->wk->adapter->a == w->wq->adapter->a);
    assert_true(w->wv->adapter->a == w->wq->adapter->a);
    assert_true(w->wup->adapter->a == w->wgate->adapter->a);
    assert_int_equal(m->n_params - m->n_base, m->config.layers * (2 + 3 + 2));
    assert_int_equal(b->file_rows, w->wq->rows + w->wk->rows + w->wv->rows);
    assert_int_equal(w->wv->adapter->b->file_row, w->wq->rows + w->wk->rows);
    assert_string_equal(w->wv->adapter->b->name, b->name);
    kg_model_free(m);
}

static int products_back;
static kg_status (*real_matmul)(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                                enum kg_matmul_kind kind, bool accumulate,
                                struct kg_err *err);

static kg_status counted_matmul(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                                enum kg_matmul_kind kind, bool accumulate,
                                struct kg_err *err)
{
    products_back += kind == KG_MATMUL_NN;
    return real_matmul(c, a, b, kind, accumulate, err);
}

/* Counts the products that take a gradient to the side of x: dy W, dy B, u A. */
static int count_products_back(const char *targets)
{
    const struct kg_lora lora = lora_of(4, targets);
    struct kg_backend counted = *backend();
    struct kg_acts *acts = NULL;
    struct test_reference r;
    test_reference_open(&r, "qwen2");
    struct kg_model *m = open_with(r.dir, KG_F32, &lora, NULL);
    float *g = buffer_of(m->n_elements, sizeof *g);
    real_matmul = counted.matmul;
    counted.matmul = counted_matmul;
    counted.matmul_two = NULL; /* falls back to two products, which are counted */
    products_back = 0;
    NEED(kg_acts_create(&acts, m, TEST_REF_TOKENS, false, err));
    m->backend = &counted;
    test_nll(m, acts, &r.pack, 1.0, g);
    m->backend = backend();
    kg_acts_free(acts);
    buffer_free(g);
    kg_model_free(m);
    test_reference_close(&r);
    return products_back;
}

/* Two layers of seven matrices: dy W of each, dy B and u A of each adapter. In layer 0,
 * nothing is computed below the lowest branch that has an adapter, and q, k and v, whose
 * input needs no gradient, have dy B alone. */
static void test_nothing_goes_below_the_lowest_adapter(void **state)
{
    (void)state;
    assert_int_equal(count_products_back(""), (7 + 14) + (4 + 8 + 3));
    assert_int_equal(count_products_back("v_proj"), (7 + 2) + (4 + 1));
    assert_int_equal(count_products_back("up_proj"), (7 + 2) + (3 + 2));
}

static void test_gradients_repeat_with_checkpointing_and_threads(void **state)
{
    (void)state;
    struct test_reference r;
    const struct kg_lora lora = lora_of(3, "q_proj down_proj o_proj");
    float *g[2];
    test_reference_open(&r, "qwen3");
    struct kg_model *m = open_with(r.dir, KG_BF16, &lora, NULL);
    move(m, 2);
    for (int i = 0; i < 2; i++) {
        struct kg_acts *acts = NULL;
        g[i] = buffer_of(m->n_elements, sizeof *g[i]);
        kg_threads_set(i + 1);
        NEED(kg_acts_create(&acts, m, TEST_REF_TOKENS, i == 1, err));
        test_nll(m, acts, &r.pack, 1.0, g[i]);
        kg_acts_free(acts);
    }
    kg_threads_set(0);
    assert_memory_equal(g[0], g[1], (size_t)m->n_elements * sizeof *g[0]);
    buffer_free(g[0]);
    buffer_free(g[1]);
    kg_model_free(m);
    test_reference_close(&r);
}

/* ---- bits ---- */

enum { LENGTH = 150 };

/* Computes hidden states of the sequence in chunks through a cache. */
static void through_cache(char *rows, size_t bytes, const struct kg_model *m,
                          const int32_t *tokens, int32_t chunk)
{
    static const int32_t blocks[] = {2, 0, 1};
    struct kg_acts *acts = NULL;
    struct kg_kv *kv = NULL;
    NEED(kg_acts_create(&acts, m, LENGTH, true, err));
    NEED(kg_kv_create(&kv, m, kg_kv_alike(3), err));
    for (int32_t at = 0, n; at < LENGTH; at += n) {
        n = LENGTH - at < chunk ? LENGTH - at : chunk;
        const struct kg_pack_seq seq = {n, at, kg_kv_table(blocks), 0};
        const struct kg_pack pack = {tokens + at, n, &seq, 1, NULL, 0};
        const struct kg_forward f = {.pack = &pack, .kv = kv};
        struct kg_mat hidden;
        NEED(kg_model_forward(&hidden, m, acts, &f, err));
        memcpy(rows + (size_t)at * bytes, hidden.data, (size_t)n * bytes);
    }
    kg_kv_free(kv);
    kg_acts_free(acts);
}

static void check_chunks(const char *dir, enum kg_dtype ct, struct kg_lora lora)
{
    struct kg_model *m = open_with(dir, ct, &lora, NULL);
    const size_t bytes = (size_t)m->config.hidden * kg_dtype_traits(ct)->bytes;
    char *whole = test_alloc(LENGTH, bytes), *parts = test_alloc(LENGTH, bytes);
    int32_t tokens[LENGTH];
    move(m, 3);
    test_tokens(tokens, LENGTH, m->config.vocab, 1);
    through_cache(whole, bytes, m, tokens, LENGTH);
    for (int32_t chunk = 1; chunk < LENGTH; chunk = 3 * chunk + 1) {
        through_cache(parts, bytes, m, tokens, chunk);
        assert_memory_equal(whole, parts, LENGTH * bytes);
    }
    kg_mem_free(whole);
    kg_mem_free(parts);
    kg_model_free(m);
}

static void test_decoding_has_the_bits_of_the_whole(void **state)
{
    (void)state;
    check_chunks(QWEN2, KG_F32, lora_of(4, ""));
    check_chunks(QWEN2, KG_BF16, lora_of(4, ""));
    check_chunks(QWEN2, KG_BF16, lora_of(4, "v_proj gate_proj"));
    check_chunks(QWEN2, KG_BF16, uneven());
    check_chunks(moe_archs[0], KG_BF16, uneven());
    for (int a = 0; a < MOE_ARCHS; a++)
        check_chunks(moe_archs[a], KG_BF16, lora_of(4, ""));
}

static double nll_alone(const struct kg_model *m, struct test_reference *r)
{
    struct kg_acts *acts = NULL;
    NEED(kg_acts_create(&acts, m, TEST_REF_TOKENS, true, err));
    const double nll = nll_of(m, acts, &r->pack);
    kg_acts_free(acts);
    return nll;
}

/* B is 0 at first, so nothing is added. */
static void test_fresh_adapters_are_the_base(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        const enum kg_dtype ct = t ? KG_BF16 : KG_F32;
        const struct kg_lora lora = lora_of(8, "");
        struct test_reference r;
        test_reference_open(&r, "qwen2");
        struct kg_model *base = test_open(r.dir, ct, false);
        struct kg_model *m = open_with(r.dir, ct, &lora, NULL);
        assert_true(nll_alone(base, &r) == nll_alone(m, &r));
        kg_model_free(base);
        kg_model_free(m);
        test_reference_close(&r);
    }
}

/* ---- memory ---- */

static void test_slabs_hold_adapters_alone(void **state)
{
    (void)state;
    const struct kg_lora lora = lora_of(4, "q_proj v_proj");
    struct kg_model *m = open_with(QWEN2, KG_BF16, &lora, NULL);
    int64_t n = 0;
    for (int32_t l = 0; l < m->config.layers; l++) {
        const struct kg_layer_params *w = &m->layers[l];
        assert_non_null(w->wq->adapter);
        assert_null(w->wk->adapter);
        n += 4 * (w->wq->rows + w->wq->cols + w->wv->rows + w->wv->cols);
    }
    assert_true(n <= m->n_elements && m->n_elements < n + 32 * (int64_t)m->n_params);
    assert_int_equal(m->master.n, m->n_elements);
    assert_true(m->embed->offset == -1 && !m->embed->master && !m->norm->master);
    assert_int_equal(kg_model_memory(m, true).master.there, 4 * m->n_elements);
    kg_model_free(m);
}

/* A clone shares the base and has its own adapters: it changes only by kg_anchor_update,
 * and must have the same compute type. */
static void test_a_clone_shares_the_base(void **state)
{
    (void)state;
    const struct kg_lora lora = lora_of(4, "");
    struct test_reference r;
    test_reference_open(&r, "qwen3");
    struct kg_model *m = open_with(r.dir, KG_BF16, &lora, NULL), *anchor = NULL;
    move(m, 4);
    const double before = nll_alone(m, &r);
    NEED(kg_model_clone(&anchor, m, &(struct kg_model_opts){.ct = m->ct}, err));
    assert_ptr_equal(anchor->layers[0].wq->compute.data, m->layers[0].wq->compute.data);
    assert_true(anchor->layers[0].wq->adapter->a->compute.data !=
                m->layers[0].wq->adapter->a->compute.data);
    assert_true(kg_model_memory(anchor, true).read.there <
                kg_model_memory(m, true).read.there / 2);
    move(m, 5);
    assert_true(nll_alone(anchor, &r) == before);
    assert_true(nll_alone(m, &r) != before);
    NEED(kg_anchor_update(anchor, m, 0.0, err));
    assert_true(nll_alone(anchor, &r) == nll_alone(m, &r));
    kg_model_free(anchor);
    struct kg_err err = {0};
    assert_int_equal(
        kg_model_clone(&anchor, m, &(struct kg_model_opts){.ct = KG_F32}, &err),
        KG_EUNSUPPORTED);
    kg_model_free(m);
    test_reference_close(&r);
}

static void test_several_adapters_share_a_base(void **state)
{
    (void)state;
    const struct kg_lora some = lora_of(4, "q_proj"), all = lora_of(2, "");
    struct kg_model *base = test_open(QWEN2, KG_BF16, false), *m[3];
    struct test_reference r;
    double nll[3];
    test_reference_open(&r, "qwen2");
    for (int i = 0; i < 3; i++) {
        const struct kg_model_opts opts = {.ct = base->ct,
                                           .lora = i == 0   ? NULL
                                                   : i == 1 ? &some
                                                            : &all};
        NEED(kg_model_share(&m[i], base, &opts, err));
        assert_int_equal(m[i]->base_hash != 0, i > 0);
        if (i > 0)
            move(m[i], (uint32_t)i);
    }
    assert_int_equal(base->base_hash, 0); /* no adapter file needs it */
    assert_true(m[1]->base_hash == m[2]->base_hash);
    for (int i = 0; i < 3; i++)
        nll[i] = nll_alone(m[i], &r);
    assert_true(nll[0] == nll_alone(base, &r));
    assert_true(nll[0] != nll[1] && nll[1] != nll[2] && nll[0] != nll[2]);
    for (int i = 0; i < 3; i++)
        kg_model_free(m[i]);
    kg_model_free(base);
    test_reference_close(&r);
}

/* ---- files ---- */

static void test_what_is_saved_is_loaded(void **state)
{
    (void)state;
    const struct kg_lora lora = lora_of(4, "up_proj k_proj");
    struct kg_lora back;
    char dir[128];
    test_dir(dir, "adapter");
    struct kg_model *m = open_with(QWEN2, KG_BF16, &lora, NULL), *again;
    move(m, 6);
    NEED(kg_model_save(m, dir, &(struct kg_model_save){.dtype = KG_BF16}, err));
    assert_false(kg_file_exists(kg_path_in(dir, "model.safetensors").text));
    assert_false(kg_file_exists(kg_path_in(dir, "config.json").text));
    NEED(kg_lora_read(&back, dir, err));
    assert_true(back.rank == 4 && back.alpha == 8 && !back.rslora && back.n_targets == 2);
    again = open_with(QWEN2, KG_BF16, &back, dir);
    assert_int_equal(again->n_elements, m->n_elements);
    assert_memory_equal(again->master.data, m->master.data,
                        (size_t)m->n_elements * sizeof(float));
    kg_model_free(m);
    kg_model_free(again);
    test_dir_remove(dir);
}

static void check_merged(const char *name, struct kg_lora lora)
{
    struct test_reference r;
    char dir[128];
    test_dir(dir, "merged");
    test_reference_open(&r, name);
    struct kg_model *m = open_with(r.dir, KG_F32, &lora, NULL);
    struct kg_model *base = test_open(r.dir, KG_F32, false);
    move(m, 7);
    NEED(kg_model_save(m, dir, &(struct kg_model_save){.dtype = KG_F32, .merge = true},
                       err));
    struct kg_model *merged = test_open(dir, KG_F32, false);
    const double want = nll_alone(m, &r), got = nll_alone(merged, &r);
    assert_true(fabs(want - got) < 1e-5 * want);
    assert_true(fabs(nll_alone(base, &r) - got) > 1e-2);
    kg_model_free(m);
    kg_model_free(merged);
    kg_model_free(base);
    test_reference_close(&r);
    test_dir_remove(dir);
}

static void test_a_merged_checkpoint_computes_the_same(void **state)
{
    (void)state;
    check_merged("qwen2", lora_of(4, ""));
    check_merged("phi3", lora_of(4, ""));
    check_merged("phi3", uneven());
}

/* ---- refusals ---- */

static void test_what_fits_no_layer_is_refused(void **state)
{
    static const struct {
        int32_t rank;
        const char *targets;
        const char *said;
    } rows[] = {{4, "q_prj", "did you mean q_proj"},
                {4, "proj", "no layer has"}, /* an end of a name, but not after a dot */
                {4, "mlp.q_proj", "mlp.q_proj"},
                {4, "model.layers.7.self_attn.q_proj", "expected one of"},
                {4, "lm_head", "expected one of"},
                {4, "embed_tokens", "expected one of"},
                {33, "k_proj", "expected at most"}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct kg_lora lora = lora_of(rows[i].rank, rows[i].targets);
        const struct kg_model_opts opts = {.ct = KG_F32, .lora = &lora};
        struct kg_model *m;
        struct kg_err err = {0};
        assert_int_equal(kg_model_open(&m, QWEN2, &opts, &err), KG_EINVAL);
        if (!strstr(err.message, rows[i].said))
            fail_msg("expected '%s' in '%s'", rows[i].said, err.message);
    }
}

static void test_one_expert_alone_is_refused(void **state)
{
    const struct kg_lora lora = lora_of(2, "experts.3.up_proj");
    const struct kg_model_opts opts = {.ct = KG_F32, .lora = &lora};
    struct kg_model *m;
    struct kg_err err = {0};

    (void)state;
    assert_int_equal(kg_model_open(&m, moe_archs[0], &opts, &err), KG_EUNSUPPORTED);
    assert_non_null(strstr(
        err.message, "lora.targets: expected adapters on every expert's matrix of a "
                     "layer or on none, found "
                     "model.layers.0.mlp.experts.3.up_proj.weight alone"));
}

/* As PEFT writes all-linear for a small model: ends of names, or whole names. */
static void test_a_target_is_the_end_of_a_name(void **state)
{
    static const char *const has[] = {"model.layers.0.self_attn.q_proj.weight",
                                      "model.layers.1.self_attn.q_proj.weight",
                                      "model.layers.1.mlp.down_proj.weight"};
    const struct kg_lora lora = lora_of(4,
                                        "self_attn.q_proj model.layers.1.mlp.down_proj");
    struct kg_model *m = open_with(QWEN2, KG_F32, &lora, NULL), *again;
    struct kg_lora back;
    size_t at = 0;
    char dir[128];

    (void)state;
    for (size_t i = 0; i < m->n_base; i++)
        if (m->params[i].adapter)
            assert_string_equal(m->params[i].name, has[at++]);
    assert_int_equal(at, 3);
    move(m, 1);
    test_dir(dir, "ends");
    NEED(kg_model_save(m, dir, &(struct kg_model_save){.dtype = KG_F32}, err));
    NEED(kg_lora_read(&back, dir, err));
    again = open_with(QWEN2, KG_F32, &back, dir);
    assert_int_equal(again->n_elements, m->n_elements);
    assert_memory_equal(again->master.data, m->master.data,
                        (size_t)m->n_elements * sizeof(float));
    kg_model_free(again);
    kg_model_free(m);
    test_dir_remove(dir);
}

static void test_an_adapter_of_another_base_is_refused(void **state)
{
    (void)state;
    const struct kg_lora lora = lora_of(4, "q_proj"), more = lora_of(4, "q_proj v_proj"),
                         thin = lora_of(2, "q_proj");
    const struct kg_lora *const asked[] = {&more, &thin};
    const enum kg_status codes[] = {KG_ENOTFOUND, KG_ESHAPE};
    char dir[128];
    test_dir(dir, "other");
    struct kg_model *m = open_with("tests/data/reference/qwen3", KG_F32, &lora, NULL);
    NEED(kg_model_save(m, dir, &(struct kg_model_save){.dtype = KG_F32}, err));
    for (int i = 0; i < 2; i++) {
        struct kg_err err = {0};
        struct kg_model *no;
        const struct kg_model_opts opts = {
            .ct = KG_F32, .lora = asked[i], .adapter = dir};
        assert_int_equal(kg_model_open(&no, "tests/data/reference/qwen3", &opts, &err),
                         codes[i]);
        assert_non_null(strstr(err.message, "lora_A"));
    }
    kg_model_free(m);
    test_dir_remove(dir);
}

/* Saves the base, one weight changed by moved_by, in shards of one tensor each. */
static void save_base(const char *dir, float moved_by)
{
    const struct kg_model_save how = {.dtype = KG_F32, .shard_bytes = 1};
    struct kg_model *m = test_open("tests/data/reference/qwen3", KG_F32, true);
    m->layers[1].wk->master[5] += moved_by;
    NEED(kg_model_save(m, dir, &how, err));
    kg_model_free(m);
}

/* Opens the adapter together with its base, and on a base that is open already; both give
 * the error `expected`, or succeed if NULL. */
static void check_beside(const char *base_dir, const char *adapter, const char *expected)
{
    const struct kg_lora lora = lora_of(4, "q_proj");
    const struct kg_model_opts opts = {.ct = KG_F32, .lora = &lora, .adapter = adapter};
    struct kg_model *base = test_open(base_dir, KG_F32, false), *m[2] = {NULL, NULL};
    struct kg_err why[2] = {0};
    const kg_status found[] = {kg_model_open(&m[0], base_dir, &opts, &why[0]),
                               kg_model_share(&m[1], base, &opts, &why[1])};
    for (int i = 0; i < 2; i++) {
        if ((found[i] == KG_OK) != !expected ||
            (expected && !strstr(why[i].message, expected)))
            fail_msg("expected '%s', found '%s'", expected ? expected : "OK",
                     why[i].message);
        kg_model_free(m[i]);
    }
    kg_model_free(base);
}

static void put_text(const char *dir, const char *text)
{
    NEED(kg_file_write_atomic(kg_path_in(dir, "kedge_base.json").text, text, strlen(text),
                              err));
}

/* Shapes are equal, so only the hash tells bases apart; it does not depend on shards. */
static void test_an_adapter_of_another_base_is_refused_by_hash(void **state)
{
    const struct kg_lora lora = lora_of(4, "q_proj");
    char adapter[128], same[128], other[128];

    (void)state;
    test_dir(adapter, "hashed");
    test_dir(same, "same");
    test_dir(other, "moved");
    struct kg_model *m = open_with("tests/data/reference/qwen3", KG_F32, &lora, NULL);
    NEED(kg_model_save(m, adapter, &(struct kg_model_save){.dtype = KG_F32}, err));
    kg_model_free(m);
    save_base(same, 0.0f);
    save_base(other, 1e-3f);
    check_beside(same, adapter, NULL);
    check_beside(other, adapter, "expected the adapter's base model");
    check_beside(other, adapter, other);
    put_text(adapter, "{\"format\": 2, \"hash\": \"00\"}");
    check_beside(same, adapter, "key 'format'");
    put_text(adapter, "{\"format\": 1}");
    check_beside(same, adapter, "'hash'");
    NEED(kg_file_remove_tree(kg_path_in(adapter, "kedge_base.json").text, err));
    check_beside(other, adapter, NULL); /* no hash, like PEFT's folders */
    test_dir_remove(adapter);
    test_dir_remove(same);
    test_dir_remove(other);
}

static void test_a_config_is_understood_or_refused(void **state)
{
#define HEAD "{\"peft_type\": \"LORA\", \"r\": 8, \"lora_alpha\": 16"
#define T    ", \"target_modules\": [\"q_proj\"]"
    static const struct {
        const char *json;
        const char *said; /* NULL: accepted */
    } rows[] = {
        {HEAD T "}", NULL},
        {HEAD ", \"target_modules\": \"all-linear\", \"use_rslora\": true}", NULL},
        {HEAD T ", \"something_new\": null, \"other\": {}, \"bias\": \"none\"}", NULL},
        {HEAD T ", \"init_lora_weights\": true, \"loftq_config\": {}}", NULL},
        {HEAD T ", \"init_lora_weights\": \"gaussian\", \"corda_config\": null}", NULL},
        {HEAD T ", \"init_lora_weights\": \"pissa_niter_4\"}", "'init_lora_weights'"},
        {HEAD T ", \"loftq_config\": {\"loftq_bits\": 4}}", "'loftq_config'"},
        {HEAD T ", \"use_rslora\": \"true\"}", "'use_rslora'"},
        {HEAD T ", \"use_dora\": true}", "'use_dora'"},
        {HEAD T ", \"bias\": \"all\"}", "'bias'"},
        {HEAD T ", \"rank_pattern\": {\"q_proj\": 0}}",
         "key 'rank_pattern': 'q_proj': expected an integer above 0, found 0"},
        {HEAD T ", \"rank_pattern\": {\"q_proj\": 2.5}}", "found 2.5"},
        {HEAD T ", \"rank_pattern\": [2]}", "expected an object of names and numbers"},
        {HEAD T ", \"alpha_pattern\": {\"q_proj\": -3}}",
         "key 'alpha_pattern': 'q_proj': expected a number above 0, at most 1e6, found "
         "-3"},
        {HEAD T ", \"alpha_pattern\": {\"q_proj\": \"3\"}}", "found \"3\""},
        {HEAD T ", \"rank_pattern\": null, \"alpha_pattern\": {\"q_proj\": 2.5}}", NULL},
        {HEAD T ", \"exclude_modules\": [], \"layers_pattern\": null}", NULL},
        {HEAD T ", \"exclude_modules\": [3]}", "'exclude_modules': expected names"},
        {HEAD T ", \"exclude_modules\": 3}", "a regular expression, found 3"},
        {HEAD T ", \"layers_to_transform\": [0, 1], \"layers_pattern\": [\"layers\"]}",
         NULL},
        {HEAD T ", \"layers_to_transform\": 1, \"layers_pattern\": \"h\"}",
         "key 'layers_pattern': expected \"layers\", found \"h\""},
        {HEAD T ", \"layers_to_transform\": [-1]}",
         "expected layer numbers from 0, found -1"},
        {HEAD T ", \"layers_pattern\": \"layers\"}",
         "expected none without layers_to_transform"},
        {HEAD ", \"target_modules\": \".*q_proj\", \"layers_to_transform\": [0]}",
         "none unless target_modules is a list of names"},
        {HEAD T ", \"target_parameters\": [\"mlp.experts.gate_up_proj\"]}",
         "'target_parameters': expected no value"},
        {HEAD T ", \"modules_to_save\": [\"lm_head\"]}", "'modules_to_save'"},
        {HEAD ", \"target_modules\": \".*q_proj\"}", NULL},
        {HEAD ", \"target_modules\": \"\"}", "or all-linear, found \"\""},
        {HEAD ", \"target_modules\": [\"q_proj\", \"q_proj\"]}", "twice"},
        {HEAD "}", "'target_modules'"},
        {"{\"peft_type\": \"IA3\", \"r\": 8}", "expected LORA"},
        {"{\"peft_type\": \"LORA\", \"r\": 0, \"lora_alpha\": 1" T "}", "'r'"},
        {"{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 0" T "}", "'lora_alpha'"},
        {"{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 1e300" T "}", "1e6"},
        {"[]", "object"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_lora l;
        struct kg_err err = {0};
        const kg_status status = kg_lora_parse(&l, rows[i].json, strlen(rows[i].json),
                                               "adapter_config.json", &err);
        if (!rows[i].said)
            assert_true(status == KG_OK && l.rank == 8 && l.alpha == 16);
        else if (status == KG_OK || !strstr(err.message, rows[i].said))
            fail_msg("%s: expected '%s', found '%s'", rows[i].json, rows[i].said,
                     err.message);
    }
}

static void test_a_config_has_no_nul(void **state)
{
    static const struct {
        const char *json, *said;
    } rows[] = {
        {HEAD ", \"target_modules\": \".*q_proj\\u0000)\"}",
         "key 'target_modules': expected text without NUL, found one at byte 8"},
        {HEAD ", \"target_modules\": [\"v_proj\", \"q_proj\\u0000x\"]}",
         "key 'target_modules': expected text without NUL, found one at byte 6"},
        {HEAD T ", \"exclude_modules\": \"v\\u0000x\"}",
         "'exclude_modules': expected text"},
        {HEAD T ", \"exclude_modules\": [\"v\\u0000x\"]}", "without NUL"},
        {HEAD T ", \"init_lora_weights\": \"eva\\u0000x\"}", "without NUL"},
        {HEAD T ", \"bias\": \"none\\u0000x\"}", "without NUL"},
        {HEAD T ", \"loftq_config\": {\"a\": \"\\u0000x\"}}", "without NUL"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_lora l;
        struct kg_err err = {0};
        assert_int_equal(kg_lora_parse(&l, rows[i].json, strlen(rows[i].json),
                                       "adapter_config.json", &err),
                         KG_EFORMAT);
        if (!strstr(err.message, rows[i].said))
            fail_msg("%s: expected '%s', found '%s'", rows[i].json, rows[i].said,
                     err.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log_probs_are_those_of_peft),
        cmocka_unit_test(test_rank_stabilised_ones_of_all_layers_too),
        cmocka_unit_test(test_gradients_are_slopes),
        cmocka_unit_test(test_of_experts_routers_and_shared_ones_too),
        cmocka_unit_test(test_of_uneven_ranks_too),
        cmocka_unit_test(test_parts_of_a_fused_tensor_share_an_a),
        cmocka_unit_test(test_nothing_goes_below_the_lowest_adapter),
        cmocka_unit_test(test_gradients_repeat_with_checkpointing_and_threads),
        cmocka_unit_test(test_decoding_has_the_bits_of_the_whole),
        cmocka_unit_test(test_fresh_adapters_are_the_base),
        cmocka_unit_test(test_slabs_hold_adapters_alone),
        cmocka_unit_test(test_a_clone_shares_the_base),
        cmocka_unit_test(test_several_adapters_share_a_base),
        cmocka_unit_test(test_what_is_saved_is_loaded),
        cmocka_unit_test(test_a_merged_checkpoint_computes_the_same),
        cmocka_unit_test(test_what_fits_no_layer_is_refused),
        cmocka_unit_test(test_one_expert_alone_is_refused),
        cmocka_unit_test(test_a_target_is_the_end_of_a_name),
        cmocka_unit_test(test_an_adapter_of_another_base_is_refused),
        cmocka_unit_test(test_an_adapter_of_another_base_is_refused_by_hash),
        cmocka_unit_test(test_a_config_is_understood_or_refused),
        cmocka_unit_test(test_a_config_has_no_nul),
    };
    return RUN_SHOWN(tests, NULL, NULL);
}
