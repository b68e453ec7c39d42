/* Models with experts: log-probs equal transformers', bits do not depend on the batch,
 * gradients equal finite differences, checkpoints are written and read, and what is
 * refused.
 *
 * forward_test.c and backward_test.c compare logits and gradients of the same four with
 * torch's.
 */
#define _GNU_SOURCE /* memmem */
#include "model/acts_internal.h"
#include "model/model_testing.h"

#include "base/str.h"
#include "data/jsonl.h"

#define REFERENCE "tests/data/reference/"
#define MORE      "../shared/data/models/more/"

enum { LONG = 96, MOST = 64 };

static const char *const names[] = {"qwen3_moe", "qwen2_moe", "mixtral", "olmoe"};
enum { N_NAMES = sizeof names / sizeof *names };

static const char *folder(const char *name)
{
    static char dir[128];
    snprintf(dir, sizeof dir, REFERENCE "%s", name);
    return dir;
}

/* A larger model of the same architecture, with expected log-probs. */
static const char *larger(const char *name)
{
    static char dir[128];
    snprintf(dir, sizeof dir, MORE "%s", name);
    if (kg_file_is_dir(dir))
        return dir;
    print_message("skip: %s is not there\n", dir);
    skip();
    return NULL;
}

static struct test_pack pack_of(const int32_t *tokens, int32_t n)
{
    return test_pack_of(&tokens, &n, 1);
}

/* ---- log-probs ---- */
static double line_difference(const struct kg_model *m, const struct kg_json *line)
{
    const struct kg_json *ids = kg_json_get(line, "input_ids");
    const struct kg_json *want = kg_json_get(line, "token_logprobs");
    const int32_t n = (int32_t)kg_json_size(ids);
    int32_t *tokens = test_alloc((size_t)n, sizeof *tokens);
    float *logp = test_alloc((size_t)n, sizeof *logp);
    struct kg_acts *acts = NULL;
    struct kg_mat hidden;
    double most = 0;
    for (int32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)kg_json_int(kg_json_at(ids, (size_t)i), -1);
    struct test_pack t = pack_of(tokens, n);
    const struct kg_forward f = {.pack = test_pack_get(&t)};
    NEED(kg_acts_create(&acts, m, n, true, err));
    NEED(kg_model_forward(&hidden, m, acts, &f, err));
    const struct kg_head head = {
        .hidden = hidden, .weight = m->head->compute, .target = t.target};
    NEED(kg_op_head(m->backend, &(struct kg_head_out){.logp = logp}, &head, err));
    assert_int_equal(kg_json_size(want), n - 1);
    for (int32_t i = 0; i + 1 < n; i++) {
        const double d = fabs((double)logp[i] -
                              kg_json_real(kg_json_at(want, (size_t)i), NAN));
        most = d > most || isnan(d) ? d : most;
    }
    kg_acts_free(acts);
    test_pack_release(&t);
    kg_mem_free(tokens);
    kg_mem_free(logp);
    return most;
}

static void log_probs_of_larger_ones_are_those_of_transformers(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        const char *dir = larger(names[i]);
        struct kg_model *m = test_open(dir, KG_F32, false);
        struct kg_jsonl *lines = NULL;
        struct kg_json_doc line = {0};
        bool more;
        char path[192];
        double most = 0;
        int n = 0;
        snprintf(path, sizeof path, "%s/expected_logprobs.jsonl", dir);
        NEED(kg_jsonl_open(&lines, path, err));
        for (;; n++) {
            NEED(kg_jsonl_next(lines, &line, &more, err));
            if (!more)
                break;
            most = fmax(most, line_difference(m, line.root));
        }
        kg_json_release(&line);
        kg_jsonl_close(lines);
        printf("%s: largest difference of %d lines' log-probs %.1e\n", names[i], n, most);
        assert_true(n == 5 && most < 1e-4);
        kg_model_free(m);
    }
}

/* ---- bits ---- */
/* A sequence and its final hidden states from one full forward. */
struct subject {
    struct kg_model *m;
    int32_t tokens[LONG];
    unsigned char *rows; /* (LONG) rows of row_bytes */
    size_t row_bytes;
};

static void subject_open(struct subject *s, const char *dir, enum kg_dtype ct)
{
    struct kg_acts *acts = NULL;
    struct kg_mat hidden;
    s->m = test_open(dir, ct, false);
    s->row_bytes = (size_t)s->m->config.hidden * kg_dtype_traits(ct)->bytes;
    s->rows = test_alloc(LONG, s->row_bytes);
    test_tokens(s->tokens, LONG, s->m->config.vocab, 1);
    struct test_pack t = pack_of(s->tokens, LONG);
    const struct kg_forward f = {.pack = test_pack_get(&t)};
    NEED(kg_acts_create(&acts, s->m, LONG, true, err));
    NEED(kg_model_forward(&hidden, s->m, acts, &f, err));
    memcpy(s->rows, hidden.data, LONG * s->row_bytes);
    kg_acts_free(acts);
    test_pack_release(&t);
}

static void subject_close(struct subject *s)
{
    kg_mem_free(s->rows);
    kg_model_free(s->m);
}

static void assert_row(const struct subject *s, int32_t row, struct kg_mat hidden,
                       int64_t at, const char *how)
{
    const unsigned char *got = (const unsigned char *)hidden.data +
                               (size_t)at * s->row_bytes;
    if (memcmp(got, s->rows + (size_t)row * s->row_bytes, s->row_bytes) != 0)
        fail_msg("%s: row %d %s has other bits than in the whole forward", s->m->dir,
                 (int)row, how);
}

/* Decodes token by token through a cache; the subject is the last of `batch`
 * sequences. */
static void check_decode(const struct subject *s, int32_t batch)
{
    enum { BLOCKS = (LONG + KG_KV_BLOCK - 1) / KG_KV_BLOCK };
    struct kg_acts *acts = NULL;
    struct kg_kv *kv = NULL;
    struct kg_pack_seq seqs[MOST];
    int32_t blocks[MOST][BLOCKS], tokens[MOST];
    NEED(kg_acts_create(&acts, s->m, batch, true, err));
    NEED(kg_kv_create(&kv, s->m, kg_kv_alike(batch * BLOCKS), err));
    for (int32_t b = 0; b < batch; b++)
        for (int32_t i = 0; i < BLOCKS; i++)
            blocks[b][i] = b * BLOCKS + i;
    for (int32_t i = 0; i < LONG; i++) {
        struct kg_mat hidden;
        for (int32_t b = 0; b < batch; b++) {
            seqs[b] = (struct kg_pack_seq){1, i, kg_kv_table(blocks[b]), 0};
            tokens[b] = b + 1 < batch ? (i * 7 + b * 31) % s->m->config.vocab
                                      : s->tokens[i];
        }
        const struct kg_pack pack = {tokens, batch, seqs, batch, NULL, 0};
        const struct kg_forward f = {.pack = &pack, .kv = kv};
        NEED(kg_model_forward(&hidden, s->m, acts, &f, err));
        assert_row(s, i, hidden, batch - 1, "decoded");
    }
    kg_kv_free(kv);
    kg_acts_free(acts);
}

/* The subject after others in one pack, kept for a backward or not. */
static void check_packed(const struct subject *s)
{
    struct kg_acts *acts = NULL;
    struct kg_mat hidden;
    int32_t before[LONG];
    test_tokens(before, LONG, s->m->config.vocab, 5);
    const int32_t lengths[] = {9, 40, LONG, 33};
    struct test_pack t = test_pack_of(
        (const int32_t *const[]){before, before + 9, s->tokens, before}, lengths, 4);
    for (int keep = 0; keep <= 1; keep++) {
        const struct kg_forward f = {.pack = test_pack_get(&t), .keep = keep};
        NEED(kg_acts_create(&acts, s->m, t.pack.n, false, err));
        NEED(kg_model_forward(&hidden, s->m, acts, &f, err));
        for (int32_t i = 0; i < LONG; i++)
            assert_row(s, i, hidden, 49 + i, keep ? "kept" : "packed");
        kg_acts_free(acts);
    }
    test_pack_release(&t);
}

static void check_bits(const char *dir, enum kg_dtype ct)
{
    static const int32_t batches[] = {1, 2, 7, 32, MOST};
    struct subject s;
    subject_open(&s, dir, ct);
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        kg_threads_set(1 + (int)(i % 2));
        check_decode(&s, batches[i]);
    }
    for (int threads = 1; threads <= 4; threads++) {
        kg_threads_set(threads);
        check_packed(&s);
    }
    kg_threads_set(0);
    subject_close(&s);
}

static void batch_threads_and_packs_change_no_bit(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        check_bits(folder(names[i]), KG_F32);
        check_bits(folder(names[i]), KG_BF16);
    }
}

/* ---- gradients ---- */
/* Every 7th tensor: among them attention, routers, experts and shared experts. */
static void gradients_are_finite_differences_of_the_loss(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        struct kg_model *m = test_open(folder(names[i]), KG_F32, true);
        int32_t tokens[LONG];
        struct kg_acts *acts = NULL;
        int checked = 0;
        test_tokens(tokens, LONG, m->config.vocab, 2);
        struct test_pack t = pack_of(tokens, LONG);
        float *g = buffer_of(m->n_elements, sizeof *g);
        NEED(kg_acts_create(&acts, m, LONG, true, err));
        test_nll(m, acts, &t, 1.0 / LONG, g);
        for (size_t j = 0; j < m->n_params; j += 7, checked++)
            test_largest_slope(m, acts, &t, &m->params[j], 1.0 / LONG, g);
        assert_true(checked > 5);
        buffer_free(g);
        kg_acts_free(acts);
        test_pack_release(&t);
        kg_model_free(m);
    }
}

/* Activations kept, recomputed, or computed by four threads: the gradient is the same. */
static void gradients_have_the_same_bits_checkpointed_and_threaded(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * N_NAMES; i++) {
        struct kg_model *m = test_open(folder(names[i / 2]), i % 2 ? KG_BF16 : KG_F32,
                                       true);
        int32_t tokens[LONG];
        test_tokens(tokens, LONG, m->config.vocab, 2);
        struct test_pack t = pack_of(tokens, LONG);
        const size_t bytes = (size_t)m->n_elements * sizeof(float);
        float *g[3];
        for (int way = 0; way < 3; way++) {
            struct kg_acts *acts = NULL;
            g[way] = buffer_of(m->n_elements, sizeof(float));
            kg_threads_set(way == 2 ? 4 : 1);
            NEED(kg_acts_create(&acts, m, LONG + 5, way == 1, err));
            test_nll(m, acts, &t, 1.0 / LONG, g[way]);
            kg_acts_free(acts);
        }
        assert_memory_equal(g[0], g[1], bytes);
        assert_memory_equal(g[0], g[2], bytes);
        for (int way = 0; way < 3; way++)
            buffer_free(g[way]);
        kg_threads_set(0);
        test_pack_release(&t);
        kg_model_free(m);
    }
}

/* Backward of the last layer's experts for a fixed dy.   returns grads, followed by dh.
 * within: dy is stored in dh, as in a branch that ends with a norm */
static float *last_layer_bwd(struct kg_model *m, struct test_pack *t, bool within)
{
    const int64_t d = m->config.hidden, n = t->pack.n;
    const int32_t l = m->config.layers - 1;
    struct kg_acts *acts = NULL;
    NEED(kg_acts_create(&acts, m, n, false, err));
    float *g = buffer_of(m->n_elements + n * d, sizeof *g);
    float *dy = within ? g + m->n_elements : buffer_of(n * d, sizeof *dy);
    struct kg_mat hidden;
    const struct kg_forward f = {.pack = test_pack_get(t), .keep = true};
    NEED(kg_model_forward(&hidden, m, acts, &f, err));
    memset(g, 0, (size_t)m->n_elements * sizeof *g);
    for (int64_t i = 0; i < n * d; i++)
        dy[i] = (float)((i * 37) % 101 - 50) / 50;
    const struct kg_walk p = {.m = m, .acts = acts, .pack = &acts->pack, .keep = true};
    const struct kg_layer_acts a = kg_walk_layer(&p, l);
    NEED(kg_experts_bwd(&p, l, &a, kg_mat(dy, KG_F32, n, d),
                        kg_mat(g + m->n_elements, KG_F32, n, d), kg_grads_all(g), err));
    if (!within)
        buffer_free(dy);
    kg_acts_free(acts);
    return g;
}

static void the_gradient_that_comes_may_stand_where_the_one_that_goes_does(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        struct kg_model *m = test_open(folder(names[i]), KG_F32, true);
        int32_t tokens[LONG];
        test_tokens(tokens, LONG, m->config.vocab, 3);
        struct test_pack t = pack_of(tokens, LONG);
        float *apart = last_layer_bwd(m, &t, false),
              *within = last_layer_bwd(m, &t, true);
        assert_memory_equal(apart, within,
                            (size_t)(m->n_elements + LONG * (int64_t)m->config.hidden) *
                                sizeof *apart);
        buffer_free(apart);
        buffer_free(within);
        test_pack_release(&t);
        kg_model_free(m);
    }
}

/* ---- checkpoints ---- */
static void a_checkpoint_that_is_written_reads_as_the_same(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        char dir[128];
        struct kg_model *m = test_open(folder(names[i]), KG_F32, true);
        const struct kg_model_save opts = {.dtype = KG_F32, .shard_bytes = 20000};
        struct kg_model_config read;
        test_dir(dir, names[i]);
        NEED(kg_model_save(m, dir, &opts, err));
        NEED(kg_model_config_read(&read, dir, err));
        assert_memory_equal(&read.experts, &m->config.experts, sizeof read.experts);
        struct kg_model *again = test_open(dir, KG_F32, true);
        assert_int_equal(again->n_params, m->n_params);
        assert_memory_equal(again->master.data, m->master.data,
                            (size_t)m->n_elements * sizeof(float));
        kg_model_free(again);
        kg_model_free(m);
        test_dir_remove(dir);
    }
}

static void parameters_are_counted_all_and_of_a_token(void **state)
{
    (void)state;
    struct kg_model *m = test_open(folder("qwen3_moe"), KG_F32, false);
    int64_t all = 0;
    for (size_t i = 0; i < m->n_params; i++)
        all += m->params[i].rows * m->params[i].cols;
    assert_int_equal(kg_model_parameters(m), all);
    /* two layers, in each four experts that a token does not use */
    assert_int_equal(kg_model_active_parameters(m), all - 2 * 4 * 3 * 12 * 16);
    kg_model_free(m);
}

/* ---- layers one at a time ---- */
/* Layers with and without experts share one buffer, which has the size of the larger. */
static void layers_that_are_made_as_they_come_have_the_same_bits(void **state)
{
    (void)state;
    const struct kg_model_opts opts = {
        .ct = KG_BF16, .trainable = true, .on_host = KG_HOST_LAYERS};
    struct kg_model *m = test_open(folder("qwen3_moe"), KG_BF16, true), *one = NULL;
    int32_t tokens[LONG];
    struct kg_acts *acts = NULL, *other = NULL;
    NEED(kg_model_open(&one, m->dir, &opts, err));
    test_tokens(tokens, LONG, m->config.vocab, 2);
    struct test_pack t = pack_of(tokens, LONG);
    NEED(kg_acts_create(&acts, m, LONG, true, err));
    NEED(kg_acts_create(&other, one, LONG, true, err));
    assert_true(kg_model_compute_bytes(one) < kg_model_compute_bytes(m) / 2);
    assert_true(test_nll(m, acts, &t, 1, NULL) == test_nll(one, other, &t, 1, NULL));
    kg_acts_free(acts);
    kg_acts_free(other);
    test_pack_release(&t);
    kg_model_free(m);
    kg_model_free(one);
}

/* ---- refusals ---- */
static void expect_config(const char *from, const char *cut, const char *put,
                          const char *says)
{
    struct kg_str text = {0}, changed = {0};
    struct kg_model_config c;
    struct kg_err why;
    char path[192];
    snprintf(path, sizeof path, "%s/config.json", folder(from));
    NEED(kg_file_read(&text, path, 1 << 20, err));
    const char *at = strstr(kg_str_text(&text), cut);
    assert_non_null(at);
    NEED(kg_str_append(&changed, text.data, (size_t)(at - text.data), err));
    NEED(kg_str_puts(&changed, put, err));
    NEED(kg_str_puts(&changed, at + strlen(cut), err));
    assert_int_not_equal(
        kg_model_config_parse(&c, changed.data, changed.len, "config.json", &why), KG_OK);
    if (!strstr(why.message, says))
        fail_msg("expected \"%s\" in \"%s\"", says, why.message);
    kg_str_release(&text);
    kg_str_release(&changed);
}

static void fields_that_cannot_be_are_refused_by_name(void **state)
{
    (void)state;
    expect_config("qwen3_moe", "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9",
                  "num_experts_per_tok is 9, expected at most the 6 of num_experts");
    expect_config("qwen3_moe", "\"num_experts\": 6,", "", "num_experts");
    expect_config("qwen3_moe", "\"mlp_only_layers\": [\n    1\n  ]",
                  "\"mlp_only_layers\": [4]",
                  "mlp_only_layers[0]: expected a layer from "
                  "0 to 2");
    expect_config("qwen3_moe", "\"norm_topk_prob\": true", "\"norm_topk_prob\": 1",
                  "norm_topk_prob is 1, expected true or false");
    expect_config("qwen2_moe", "\"qkv_bias\": true", "\"qkv_bias\": 0",
                  "qkv_bias is 0, expected true or false");
    expect_config("mixtral", "\"num_hidden_layers\"",
                  "\"use_sliding_window\": true, \"num_hidden_layers\"",
                  "use_sliding_window is true, expected false for this model_type");
    expect_config("mixtral", "\"router_jitter_noise\": 0.0",
                  "\"router_jitter_noise\": 0.1",
                  "router_jitter_noise is 0.1, expected 0");
    expect_config("mixtral", "\"num_local_experts\": 4", "\"num_local_experts\": 5000",
                  "num_local_experts");
    expect_config("mixtral", "\"output_router_logits\": false",
                  "\"output_router_logits\": true", "output_router_logits is true");
    /* a kind of routing that no class here has */
    expect_config("qwen3_moe", "\"num_hidden_layers\"",
                  "\"n_group\": 4, \"num_hidden_layers\"", "n_group");
    /* a class without experts */
    expect_config("qwen3_bias", "\"num_hidden_layers\"",
                  "\"num_experts\": 4, \"num_hidden_layers\"",
                  "num_experts is 4, expected no such field");
}

/* Copies mixtral's file `name` to dir, with `put` instead of the text `cut`. */
static void change_file(const char *dir, const char *name, const char *cut,
                        const char *put)
{
    struct kg_str text = {0}, changed = {0};
    char path[192];
    snprintf(path, sizeof path, "%s/%s", folder("mixtral"), name);
    NEED(kg_file_read(&text, path, 16 << 20, err));
    const char *at = memmem(text.data, text.len, cut, strlen(cut));
    assert_non_null(at);
    const size_t before = (size_t)(at - text.data), behind = before + strlen(cut);
    NEED(kg_str_append(&changed, text.data, before, err));
    NEED(kg_str_puts(&changed, put, err));
    NEED(kg_str_append(&changed, text.data + behind, text.len - behind, err));
    snprintf(path, sizeof path, "%s/%s", dir, name);
    NEED(kg_file_write_atomic(path, changed.data, changed.len, err));
    kg_str_release(&text);
    kg_str_release(&changed);
}

/* config: a text of config.json and its replacement; tensors: the same for the tensors'
 * file, of equal length. */
static void try_open(const char *const config[2], const char *const tensors[2],
                     const char *says)
{
    const struct kg_model_opts opts = {.ct = KG_F32};
    struct kg_model *m = NULL;
    struct kg_err why;
    char dir[128];
    test_dir(dir, "refused");
    change_file(dir, "config.json", config[0], config[1]);
    change_file(dir, "model.safetensors", tensors[0], tensors[1]);
    assert_int_not_equal(kg_model_open(&m, dir, &opts, &why), KG_OK);
    if (!strstr(why.message, says))
        fail_msg("expected \"%s\" in \"%s\"", says, why.message);
    test_dir_remove(dir);
}

static void missing_and_extra_experts_are_named(void **state)
{
    static const char *const same[2] = {"0", "0"};
    static const char *const fewer[2] = {"\"num_local_experts\": 4",
                                         "\"num_local_experts\": 3"};
    static const char *const wider[2] = {"\"intermediate_size\": 12",
                                         "\"intermediate_size\": 10"};
    static const char *const less[2] = {"\"num_hidden_layers\": 3",
                                        "\"num_hidden_layers\": 2"};
    static const char *const renamed[2] = {"1.block_sparse_moe.experts.3.w2",
                                           "1.block_sparse_moe.experts.7.w2"};

    (void)state;
    try_open(same, renamed,
             "tensor model.layers.1.block_sparse_moe.experts.3.w2.weight is missing");
    try_open(fewer, same,
             "tensor model.layers.0.block_sparse_moe.gate.weight: expected shape [3, 16] "
             "(from config.json), found [4, 16]");
    try_open(wider, same, "expected shape [10, 16] (from config.json), found [12, 16]");
    try_open(
        less, same,
        "tensor model.layers.2.block_sparse_moe.experts.0.w1.weight: not a tensor of "
        "a mixtral model with this config.json");
}

static void a_device_without_their_operations_is_refused(void **state)
{
    (void)state;
    struct kg_backend some = *backend();
    struct kg_model_config c;
    struct kg_model *m = NULL;
    struct kg_err why;
    some.name = "some";
    some.matmul_groups = NULL;
    const struct kg_model_opts opts = {.backend = &some, .ct = KG_F32};
    NEED(kg_model_config_read(&c, folder("qwen3_moe"), err));
    assert_int_equal(kg_model_outline(&m, &c, &opts, &why), KG_EUNSUPPORTED);
    assert_string_equal(why.message,
                        "model_type qwen3_moe: backend some has no operation "
                        "matmul_groups, which models with experts need");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_probs_of_larger_ones_are_those_of_transformers),
        cmocka_unit_test(batch_threads_and_packs_change_no_bit),
        cmocka_unit_test(gradients_are_finite_differences_of_the_loss),
        cmocka_unit_test(gradients_have_the_same_bits_checkpointed_and_threaded),
        cmocka_unit_test(the_gradient_that_comes_may_stand_where_the_one_that_goes_does),
        cmocka_unit_test(a_checkpoint_that_is_written_reads_as_the_same),
        cmocka_unit_test(parameters_are_counted_all_and_of_a_token),
        cmocka_unit_test(layers_that_are_made_as_they_come_have_the_same_bits),
        cmocka_unit_test(fields_that_cannot_be_are_refused_by_name),
        cmocka_unit_test(missing_and_extra_experts_are_named),
        cmocka_unit_test(a_device_without_their_operations_is_refused),
    };
    return RUN_SHOWN(tests, NULL, NULL);
}
