/* Checkpoints: what opening accepts and refuses, what saving writes, and that neither
 * leaks. */
#include "model/model_internal.h"
#include "model/model_testing.h"

#include "base/str.h"

static const char qwen2_dir[] = "tests/data/reference/qwen2";
static const char qwen3_dir[] = "tests/data/reference/qwen3";
static const char llama_dir[] = "tests/data/reference/llama";
enum { MOST_TENSORS = 96 };
static const char experts_dir[] = "tests/data/reference/qwen3_moe";

/* ---- variants of a checkpoint ---- */
enum change { NOTHING, DROP, TRANSPOSE, RETYPE, ADD_COPY, ADD_ZEROS };

/* `name`: the tensor to change, or the one to add as a copy of the embedding or as zeros
 * of its shape. */
struct edit {
    enum change what;
    const char *name;
};

struct tensor_out {
    struct kg_st_decl decl;
    const unsigned char *data; /* NULL: zeros */
    size_t bytes;
};

static void copy_named(const char *to, const char *from, const char *name)
{
    char a[192];
    char b[192];
    snprintf(a, sizeof a, "%s/%s", from, name);
    snprintf(b, sizeof b, "%s/%s", to, name);
    NEED(kg_file_copy(a, b, err));
}

static struct tensor_out tensor_from(const struct kg_st_tensor *t)
{
    struct tensor_out o = {{t->name, t->dtype, t->n_dims, {0}}, t->data, t->bytes};
    memcpy(o.decl.shape, t->shape, sizeof o.decl.shape);
    return o;
}

static void change_tensor(struct tensor_out *o, enum change what)
{
    if (what == TRANSPOSE) {
        const int64_t rows = o->decl.shape[0];
        o->decl.shape[0] = o->decl.shape[1];
        o->decl.shape[1] = rows;
    }
    if (what == RETYPE) {
        o->bytes = o->bytes / (o->decl.dtype[0] == 'B' ? 2 : 4) * 8;
        o->decl.dtype = "I64";
        o->data = NULL;
    }
}

static void write_tensors(const char *dir, const struct tensor_out *all, size_t n)
{
    char path[192];
    struct kg_st_writer *w = NULL;
    struct kg_st_decl decls[MOST_TENSORS];
    assert_true(n <= MOST_TENSORS);
    static const unsigned char zeros[1 << 17];
    for (size_t i = 0; i < n; i++)
        decls[i] = all[i].decl;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    NEED(kg_st_writer_open(&w, path, decls, n, err));
    for (size_t i = 0; i < n; i++) {
        assert_true(all[i].bytes <= sizeof zeros);
        NEED(kg_st_writer_put(w, i, 0, all[i].data ? all[i].data : zeros, all[i].bytes,
                              err));
    }
    NEED(kg_st_writer_close(w, err));
}

/* Writes `to` as the checkpoint `from` with one edit. */
static void write_variant(const char *to, const char *from, struct edit e)
{
    struct kg_st_set *set = NULL;
    struct tensor_out all[MOST_TENSORS];
    size_t n = 0;
    NEED(kg_st_open_dir(&set, from, err));
    for (size_t i = 0; i < kg_st_count(set); i++) {
        const struct kg_st_tensor *t = kg_st_at(set, i);
        const bool hit = e.name && strcmp(t->name, e.name) == 0;
        if (hit && e.what == DROP)
            continue;
        all[n] = tensor_from(t);
        if (hit)
            change_tensor(&all[n], e.what);
        n++;
    }
    if (e.what == ADD_COPY || e.what == ADD_ZEROS) {
        all[n] = tensor_from(kg_st_find(set, "model.embed_tokens.weight"));
        all[n].decl.name = e.name;
        all[n].data = e.what == ADD_COPY ? all[n].data : NULL;
        n++;
    }
    write_tensors(to, all, n);
    kg_st_close(set);
    copy_named(to, from, "config.json");
}

static kg_status try_open(const char *dir, bool trainable, struct kg_err *err)
{
    const struct kg_model_opts opts = {.ct = KG_F32, .trainable = trainable};
    struct kg_model *m = NULL;
    const kg_status status = kg_model_open(&m, dir, &opts, err);
    assert_true(status == KG_OK ? m != NULL : m == NULL);
    kg_model_free(m);
    return status;
}

/* Opening dir fails with `code` and a message of one line that contains both words, for
 * inference and training. */
static void assert_refused(const char *dir, kg_status code, const char *word1,
                           const char *word2)
{
    const uint64_t before = kg_mem_current_bytes();
    for (int trainable = 0; trainable <= 1; trainable++) {
        struct kg_err why = {0};
        const kg_status status = try_open(dir, trainable, &why);
        if (status != code || !strstr(why.message, word1) ||
            !strstr(why.message, word2) || strchr(why.message, '\n'))
            fail_msg("expected status %d with '%s' and '%s', found %d: %s", (int)code,
                     word1, word2, (int)status, why.message);
    }
    assert_int_equal(kg_mem_current_bytes(), before);
}

/* ---- opening ---- */
static void test_parameters_are_listed_in_checkpoint_order(void **state)
{
    (void)state;
    struct kg_model *m = test_open(qwen2_dir, KG_F32, false);
    assert_int_equal(m->n_params, 2 + 2 * 12);
    assert_string_equal(m->params[0].name, "model.embed_tokens.weight");
    assert_string_equal(m->params[1].name, "model.layers.0.self_attn.q_proj.weight");
    assert_ptr_equal(m->layers[1].bk, &m->params[1 + 12 + 3]);
    assert_string_equal(m->layers[1].bk->name, "model.layers.1.self_attn.k_proj.bias");
    assert_ptr_equal(m->head, m->embed);
    assert_null(m->layers[0].qnorm);
    assert_null(m->master.data);
    kg_model_free(m);
    m = test_open(llama_dir, KG_F32, false);
    assert_string_equal(m->params[m->n_params - 1].name, "lm_head.weight");
    assert_ptr_equal(m->head, &m->params[m->n_params - 1]);
    assert_null(m->layers[0].bq);
    kg_model_free(m);
}

/* Element i of a tensor, as fp32. */
static float weight_at(const struct kg_param *p, int64_t i)
{
    float x;
    uint16_t narrow;
    if (p->compute.dtype == KG_F32) {
        kg_mat_read(&x, p->compute, i, 1);
        return x;
    }
    kg_mat_read(&narrow, p->compute, i, 1);
    return kg_bf16_to_f32(narrow);
}

static void test_a_mapped_model_equals_a_trainable_one(void **state)
{
    (void)state;
    for (int i = 0; i < TEST_ALL_ARCHS; i++) {
        for (int ct = KG_F32; ct <= KG_BF16; ct++) {
            char dir[128];
            snprintf(dir, sizeof dir, "tests/data/reference/%s", test_archs[i]);
            struct kg_model *a = test_open(dir, (enum kg_dtype)ct, false);
            struct kg_model *b = test_open(dir, (enum kg_dtype)ct, true);
            for (size_t p = 0; p < a->n_params; p++) {
                const struct kg_mat x = a->params[p].compute;
                const struct kg_mat y = b->params[p].compute;
                assert_int_equal(x.dtype,
                                 a->params[p].is_product ? (enum kg_dtype)ct : KG_F32);
                assert_int_equal(x.dtype, y.dtype);
                assert_int_equal(x.layout, y.layout);
                assert_memory_equal(x.data, y.data,
                                    x.layout == KG_ROWS
                                        ? (size_t)x.cols * sizeof(float)
                                        : kg_panels_bytes(x.dtype, x.rows, x.cols));
            }
            kg_model_free(a);
            kg_model_free(b);
        }
    }
}

/* Both have the same tensors, by name, shape and bytes. */
static void assert_same_tensors(const char *from, const char *to)
{
    struct kg_st_set *a = NULL;
    struct kg_st_set *b = NULL;
    NEED(kg_st_open_dir(&a, from, err));
    NEED(kg_st_open_dir(&b, to, err));
    assert_int_equal(kg_st_count(a), kg_st_count(b));
    for (size_t i = 0; i < kg_st_count(a); i++) {
        const struct kg_st_tensor *x = kg_st_at(a, i);
        const struct kg_st_tensor *y = kg_st_find(b, x->name);
        if (!y || x->n_dims != y->n_dims || x->bytes != y->bytes ||
            memcmp(x->shape, y->shape, (size_t)x->n_dims * sizeof *x->shape) != 0 ||
            memcmp(x->data, y->data, x->bytes) != 0)
            fail_msg("%s: %s is not what was read", to, x->name);
    }
    kg_st_close(a);
    kg_st_close(b);
}

static void test_what_is_saved_is_what_was_read(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * TEST_ALL_ARCHS; i++) {
        char from[128];
        char to[128];
        snprintf(from, sizeof from, "tests/data/reference/%s", test_archs[i / 2]);
        test_dir(to, "again");
        /* the file of qwen2 is bf16: in fp32 its products would be other bytes */
        const bool narrow = strcmp(test_archs[i / 2], "qwen2") == 0;
        struct kg_model *m = test_open(from, KG_F32, i % 2);
        const struct kg_model_save opts = {.dtype = narrow ? KG_BF16 : KG_F32,
                                           .shard_bytes = i % 2 ? 5000 : 0};
        NEED(kg_model_save(m, to, &opts, err));
        assert_same_tensors(from, to);
        kg_model_free(m);

        struct kg_model_config a;
        struct kg_model_config b;
        NEED(kg_model_config_read(&a, from, err));
        NEED(kg_model_config_read(&b, to, err));
        a.dtype_name = b.dtype_name;
        assert_memory_equal(&a, &b, sizeof a);
        test_dir_remove(to);
    }
}

static void test_opening_for_inference_holds_the_weights_once(void **state)
{
    (void)state;
    need_host_memory();
    const uint64_t before = kg_mem_current_bytes();
    struct kg_model *m = test_open("tests/data/models/synthetic_tiny_qwen3", KG_BF16,
                                   false);
    uint64_t weights = 0;
    for (size_t i = 0; i < m->n_params; i++)
        weights += (uint64_t)(m->params[i].rows * m->params[i].cols) * 2;
    const uint64_t held = kg_mem_current_bytes() - before;
    printf("%llu bytes of weights, %llu held\n", (unsigned long long)weights,
           (unsigned long long)held);
    assert_true(held >= weights && held < weights + weights / 4);
    kg_model_free(m);
    assert_int_equal(kg_mem_current_bytes(), before);
}

static void test_a_tied_head_may_be_stored_if_it_is_the_embedding(void **state)
{
    (void)state;
    char dir[128];
    struct kg_err why;
    test_dir(dir, "tied");
    write_variant(dir, qwen2_dir, (struct edit){ADD_COPY, "lm_head.weight"});
    assert_int_equal(try_open(dir, false, &why), KG_OK);
    assert_int_equal(try_open(dir, true, &why), KG_OK);
    test_dir_remove(dir);
}

static void test_rotary_buffers_of_old_checkpoints_are_skipped(void **state)
{
    (void)state;
    char dir[128];
    struct kg_err why;
    test_dir(dir, "rotary");
    write_variant(
        dir, llama_dir,
        (struct edit){ADD_ZEROS, "model.layers.0.self_attn.rotary_emb.inv_freq"});
    assert_int_equal(try_open(dir, false, &why), KG_OK);
    test_dir_remove(dir);
}

static void test_wrong_tensors_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *from;
        struct edit edit;
        kg_status code;
        const char *word;
    } cases[] = {
        {llama_dir, {DROP, "lm_head.weight"}, KG_ENOTFOUND, "missing"},
        {qwen2_dir,
         {DROP, "model.layers.1.self_attn.k_proj.bias"},
         KG_ENOTFOUND,
         "missing"},
        {qwen3_dir,
         {DROP, "model.layers.0.self_attn.q_norm.weight"},
         KG_ENOTFOUND,
         "missing"},
        {qwen2_dir,
         {TRANSPOSE, "model.layers.0.mlp.up_proj.weight"},
         KG_ESHAPE,
         "[32, 72]"},
        {qwen2_dir, {TRANSPOSE, "model.embed_tokens.weight"}, KG_ESHAPE, "[128, 32]"},
        {qwen2_dir, {RETYPE, "model.layers.0.mlp.up_proj.weight"}, KG_EDTYPE, "I64"},
        {qwen2_dir, {RETYPE, "model.norm.weight"}, KG_EDTYPE, "I64"},
        {qwen3_dir,
         {ADD_ZEROS, "model.layers.2.mlp.up_proj.weight"},
         KG_EUNSUPPORTED,
         "qwen3"},
        {llama_dir, {ADD_ZEROS, "scores.weight"}, KG_EUNSUPPORTED, "llama"},
        /* one of six experts lacks a matrix, or there is a seventh expert */
        {experts_dir,
         {DROP, "model.layers.2.mlp.experts.3.down_proj.weight"},
         KG_ENOTFOUND,
         "missing"},
        {experts_dir, {DROP, "model.layers.0.mlp.gate.weight"}, KG_ENOTFOUND, "missing"},
        {experts_dir,
         {TRANSPOSE, "model.layers.0.mlp.experts.5.up_proj.weight"},
         KG_ESHAPE,
         "[12, 16]"},
        {experts_dir,
         {ADD_ZEROS, "model.layers.0.mlp.experts.6.gate_proj.weight"},
         KG_EUNSUPPORTED,
         "qwen3_moe"},
        {experts_dir,
         {ADD_ZEROS, "model.layers.1.mlp.experts.0.gate_proj.weight"},
         KG_EUNSUPPORTED,
         "qwen3_moe"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[128];
        test_dir(dir, "wrong");
        write_variant(dir, cases[i].from, cases[i].edit);
        assert_refused(dir, cases[i].code, cases[i].edit.name, cases[i].word);
        test_dir_remove(dir);
    }
}

static void test_missing_and_truncated_files_are_refused(void **state)
{
    (void)state;
    char dir[128];
    char path[192];
    struct kg_str bytes = {0};
    test_dir(dir, "cut");
    assert_refused(dir, KG_ENOTFOUND, dir, "config.json");
    copy_named(dir, qwen2_dir, "config.json");
    assert_refused(dir, KG_ENOTFOUND, dir, "safetensors");
    NEED(kg_file_read(&bytes, "tests/data/reference/qwen2/model.safetensors", 1 << 20,
                      err));
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    for (size_t cut = 0; cut < bytes.len; cut = cut < 16 ? cut + 1 : cut * 3) {
        NEED(kg_file_write_atomic(path, bytes.data, cut, err));
        assert_refused(dir, KG_EFORMAT, "model.safetensors", "");
    }
    NEED(kg_file_write_atomic(path, bytes.data, bytes.len - 1, err));
    assert_refused(dir, KG_EFORMAT, "model.safetensors", "");
    kg_str_release(&bytes);
    test_dir_remove(dir);
}

static void test_an_index_that_names_an_absent_shard_is_refused(void **state)
{
    (void)state;
    char dir[128];
    test_dir(dir, "shard");
    copy_named(dir, llama_dir, "config.json");
    copy_named(dir, llama_dir, "model.safetensors.index.json");
    copy_named(dir, llama_dir, "model-00001-of-00002.safetensors");
    assert_refused(dir, KG_ENOTFOUND, "model-00002-of-00002.safetensors", "");
    test_dir_remove(dir);
}

/* ---- creating ---- */
static void test_fresh_weights_depend_on_the_seed_alone(void **state)
{
    (void)state;
    struct kg_model *shape = test_open(qwen2_dir, KG_F32, false);
    const struct kg_model_opts opts = {.ct = KG_F32, .trainable = true};
    struct kg_model *m[3];
    const uint64_t seeds[] = {7, 7, 8};
    for (int i = 0; i < 3; i++) {
        kg_threads_set(i + 1);
        NEED(kg_model_create(&m[i], &shape->config, &opts, seeds[i], err));
    }
    kg_threads_set(0);
    const size_t bytes = (size_t)m[0]->n_elements * sizeof(float);
    assert_memory_equal(m[0]->master.data, m[1]->master.data, bytes);
    assert_memory_not_equal(m[0]->master.data, m[2]->master.data, bytes);
    for (int i = 0; i < 3; i++)
        kg_model_free(m[i]);
    kg_model_free(shape);
}

static void test_fresh_weights_have_the_configured_spread(void **state)
{
    (void)state;
    struct kg_model *shape = test_open(qwen2_dir, KG_F32, false);
    const struct kg_model_opts opts = {.ct = KG_F32, .trainable = true};
    struct kg_model *m = NULL;
    NEED(kg_model_create(&m, &shape->config, &opts, 1, err));
    for (size_t i = 0; i < m->n_params; i++) {
        const struct kg_param *p = &m->params[i];
        const int64_t n = p->rows * p->cols;
        double sum = 0.0;
        double squares = 0.0;
        for (int64_t j = 0; j < n; j++) {
            sum += p->master[j];
            squares += (double)p->master[j] * p->master[j];
        }
        const bool is_bias = strstr(p->name, ".bias") != NULL;
        const double range = m->config.init_range;
        if (p->is_product)
            assert_true(fabs(sqrt(squares / (double)n) - range) < 0.15 * range);
        else
            assert_true(sum == (is_bias ? 0.0 : (double)n) && squares == sum);
    }
    kg_model_free(m);
    kg_model_free(shape);
}

static void test_a_clone_has_weights_of_its_own(void **state)
{
    (void)state;
    for (int trainable = 0; trainable <= 1; trainable++) {
        struct kg_model *m = test_open(qwen3_dir, KG_BF16, trainable);
        struct kg_model *c = NULL;
        NEED(kg_model_clone(&c, m, &(struct kg_model_opts){.ct = m->ct}, err));
        assert_string_equal(c->dir, qwen3_dir);
        for (size_t i = 0; i < m->n_params; i++)
            assert_memory_equal(m->params[i].compute.data, c->params[i].compute.data,
                                (size_t)m->params[i].cols * 2);
        c->params[1].master[0] += 1.0f;
        NEED(kg_model_refresh(c, err));
        assert_true(weight_at(&c->params[1], 0) != weight_at(&m->params[1], 0));
        kg_model_free(m);
        kg_model_free(c);
    }
}

/* ---- saving ---- */
static void assert_same_weights(const struct kg_model *a, const struct kg_model *b)
{
    assert_int_equal(a->n_params, b->n_params);
    for (size_t i = 0; i < a->n_params; i++) {
        for (int64_t j = 0; j < a->params[i].rows * a->params[i].cols; j++)
            assert_true(weight_at(&a->params[i], j) == weight_at(&b->params[i], j));
    }
}

static void check_round_trip(const char *from, uint64_t shard_bytes, enum kg_dtype dtype)
{
    char dir[128];
    test_dir(dir, "saved");
    struct kg_model *m = test_open(from, dtype, true);
    const struct kg_model_save save = {.dtype = dtype, .shard_bytes = shard_bytes};
    NEED(kg_model_save(m, dir, &save, err));
    struct kg_model *again = test_open(dir, dtype, false);
    if (dtype == KG_F32) {
        assert_same_weights(m, again);
    } else { /* only norms and biases are rounded now */
        for (size_t i = 0; i < m->n_params; i++)
            assert_true(weight_at(&again->params[i], 0) ==
                        kg_bf16_to_f32(kg_f32_to_bf16(m->params[i].master[0])));
    }
    kg_model_free(again);
    kg_model_free(m);
    test_dir_remove(dir);
}

static void test_a_saved_model_opens_with_the_same_weights(void **state)
{
    (void)state;
    static const char *const dirs[] = {qwen2_dir, qwen3_dir, llama_dir};
    for (int i = 0; i < 3; i++) {
        check_round_trip(dirs[i], 0, KG_F32);
        check_round_trip(dirs[i], 20000, KG_F32);
        check_round_trip(dirs[i], 1, KG_F32);
        check_round_trip(dirs[i], 0, KG_BF16);
        check_round_trip(dirs[i], 20000, KG_BF16);
    }
}

static bool has_index(const struct kg_model *m, uint64_t shard_bytes)
{
    char dir[128], path[192];
    bool found;
    test_dir(dir, "index");
    const struct kg_model_save save = {.dtype = KG_F32, .shard_bytes = shard_bytes};
    NEED(kg_model_save(m, dir, &save, err));
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    found = access(path, F_OK) == 0;
    test_dir_remove(dir);
    return found;
}

/* Readers that find an index expect several shards. */
static void test_one_file_has_no_index(void **state)
{
    (void)state;
    struct kg_model *m = test_open(qwen2_dir, KG_F32, false);
    uint64_t all = 0;
    for (size_t i = 0; i < m->n_params; i++)
        all += (uint64_t)(m->params[i].rows * m->params[i].cols) * sizeof(float);
    assert_false(has_index(m, 0));
    assert_true(has_index(m, 20000));
    assert_false(has_index(m, all)); /* exactly the limit */
    assert_true(has_index(m, all - 1));
    kg_model_free(m);
}

/* kg_param_read reads the fp32 weights, else those that products read, in panels or in
 * rows; or a given slab instead. */
static void test_any_stretch_of_a_parameter_can_be_read(void **state)
{
    (void)state;
    const struct kg_backend *be;
    NEED(kg_backend_open(&be, NULL, err));
    for (int i = 0; i < 4; i++) {
        struct kg_backend laid = *be;
        struct kg_model *m;
        laid.weights = i < 2 ? be->weights : KG_ROWS;
        NEED(kg_model_open(&m, qwen2_dir,
                           &(struct kg_model_opts){
                               .backend = &laid, .ct = KG_BF16, .trainable = i % 2 == 0},
                           err));
        const struct kg_slab *own = m->master.data ? &m->master : NULL;
        struct kg_slab others;
        float few[3];
        NEED(kg_slab_init(&others, m->backend, m->n_elements, "others", err));
        for (int64_t j = 0; j < others.n; j++)
            others.data[j] = (float)j;
        if (own)
            own->data[m->params[0].offset] = 1.0f / 3; /* not a bf16 */
        for (size_t k = 0; k < m->n_params; k++) {
            const struct kg_param *p = &m->params[k];
            const int64_t n = p->rows * p->cols;
            for (int64_t first = 0; first + 3 <= n; first += (n - 3) / 2 + 1) {
                NEED(kg_param_read(few, KG_F32, m, p, own, first, 3, err));
                for (int64_t j = 0; j < 3; j++)
                    assert_true(few[j] == (p->master ? p->master[first + j]
                                                     : weight_at(p, first + j)));
                NEED(kg_param_read(few, KG_F32, m, p, &others, first, 3, err));
                for (int64_t j = 0; j < 3; j++)
                    assert_true(few[j] == (float)(p->offset + first + j));
            }
        }
        kg_slab_release(&others);
        kg_model_free(m);
    }
}

static uint64_t reserved;
static kg_status reserve(uint64_t bytes, struct kg_err *err)
{
    (void)err;
    reserved = bytes;
    return KG_OK;
}

/* Reserves for the largest weight that is multiplied, and two tiles of a head; nothing in
 * fp32. */
static void test_opening_reserves_what_products_take(void **state)
{
    (void)state;
    const struct kg_backend *be;
    struct kg_model *m;
    NEED(kg_backend_open(&be, NULL, err));
    struct kg_backend keeps = *be;
    keeps.reserve = reserve;
    for (int i = 0; i < 4; i++) {
        const bool wide = i % 2 == 0;
        NEED(kg_model_open(&m, qwen2_dir,
                           &(struct kg_model_opts){.backend = &keeps,
                                                   .ct = wide ? KG_F32 : KG_BF16,
                                                   .trainable = i < 2},
                           err));
        assert_true(m->head == m->embed && m->head->rows > m->config.ffn);
        assert_true(m->head->rows < 512);
        assert_true(reserved == (wide ? 0 : kg_product_room(m->head->rows, 32)));
        kg_model_free(m);
    }
    NEED(kg_model_open(&m, qwen2_dir,
                       &(struct kg_model_opts){.backend = be, .ct = KG_BF16}, err));
    m->head->rows = 100000; /* its elements are not read */
    assert_true(kg_model_product_bytes(m) == kg_product_room(4096, 32));
    m->head = &m->params[m->n_params - 1]; /* untied: no product reads the table */
    assert_false(m->head->is_product);
    assert_true(kg_model_product_bytes(m) == kg_product_room(m->config.ffn, 32));
    kg_model_free(m);
}

static void test_saving_twice_gives_the_same_bytes(void **state)
{
    (void)state;
    char dir[2][128];
    struct kg_str text[2] = {{0}, {0}};
    struct kg_model *m = test_open(qwen3_dir, KG_F32, true);
    for (int i = 0; i < 2; i++) {
        char path[192];
        test_dir(dir[i], i ? "twice-b" : "twice-a");
        NEED(kg_model_save(m, dir[i], &(struct kg_model_save){.dtype = KG_BF16}, err));
        snprintf(path, sizeof path, "%s/model.safetensors", dir[i]);
        NEED(kg_file_read(&text[i], path, 1 << 20, err));
        test_dir_remove(dir[i]);
    }
    assert_int_equal(text[0].len, text[1].len);
    assert_memory_equal(text[0].data, text[1].data, text[0].len);
    assert_true(kg_model_save_bytes(m, KG_BF16) >= text[0].len);
    kg_str_release(&text[0]);
    kg_str_release(&text[1]);
    kg_model_free(m);
}

static void test_other_weights_of_the_same_layout_can_be_saved(void **state)
{
    (void)state;
    char dir[128];
    test_dir(dir, "average");
    struct kg_model *m = test_open(qwen2_dir, KG_F32, true);
    struct kg_slab average;
    NEED(kg_slab_init(&average, m->backend, m->n_elements, "average", err));
    for (int64_t i = 0; i < average.n; i++)
        average.data[i] = 0.5f * m->master.data[i];
    const struct kg_model_save save = {.dtype = KG_F32, .weights = &average};
    NEED(kg_model_save(m, dir, &save, err));
    struct kg_model *again = test_open(dir, KG_F32, false);
    for (size_t i = 0; i < m->n_params; i++)
        assert_true(weight_at(&again->params[i], 1) ==
                    average.data[m->params[i].offset + 1]);
    kg_slab_release(&average);
    kg_model_free(again);
    kg_model_free(m);
    test_dir_remove(dir);
}

static void test_sidecars_travel_along_byte_for_byte(void **state)
{
    (void)state;
    char from[128];
    char to[128];
    char path[192];
    struct kg_str text = {0};
    static const char tokenizer[] = "{\"not\": \"read here\"}\r\n";
    test_dir(from, "source");
    test_dir(to, "target");
    write_variant(from, qwen2_dir, (struct edit){NOTHING, NULL});
    snprintf(path, sizeof path, "%s/tokenizer.json", from);
    NEED(kg_file_write_atomic(path, tokenizer, sizeof tokenizer - 1, err));
    snprintf(path, sizeof path, "%s/tokenizer.model", from);
    NEED(kg_file_write_atomic(path, "\n\0\xFF", 3, err));
    snprintf(path, sizeof path, "%s/notes.txt", from);
    NEED(kg_file_write_atomic(path, "x", 1, err));

    struct kg_model *m = test_open(from, KG_F32, false);
    NEED(kg_model_save(m, to, &(struct kg_model_save){.dtype = KG_F32}, err));
    snprintf(path, sizeof path, "%s/tokenizer.json", to);
    NEED(kg_file_read(&text, path, 1 << 10, err));
    assert_string_equal(kg_str_text(&text), tokenizer);
    kg_str_clear(&text);
    snprintf(path, sizeof path, "%s/tokenizer.model", to);
    NEED(kg_file_read(&text, path, 1 << 10, err));
    assert_int_equal(text.len, 3);
    assert_memory_equal(text.data, "\n\0\xFF", 3);
    snprintf(path, sizeof path, "%s/notes.txt", to);
    assert_false(kg_file_exists(path));

    /* a second save into the same folder, and one whose source was removed */
    struct kg_err why;
    const struct kg_model_save save = {.dtype = KG_F32};
    assert_int_equal(kg_model_save(m, to, &save, &why), KG_ECONFLICT);
    test_dir(to, "target");
    test_dir_remove(from);
    assert_int_equal(kg_model_save(m, to, &save, &why), KG_ENOTFOUND);
    assert_non_null(strstr(why.message, from));
    kg_str_release(&text);
    kg_model_free(m);
    test_dir_remove(to);
}

/* ---- out of memory ---- */
static kg_status open_and_run(const char *dir, enum kg_dtype ct, bool trainable,
                              struct kg_err *err)
{
    const struct kg_model_opts opts = {.ct = ct, .trainable = trainable};
    struct kg_model *m = NULL;
    struct kg_acts *acts = NULL;
    struct kg_kv *kv = NULL;
    struct kg_mat hidden;
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    const struct kg_pack_seq seq = {.n = 10};
    const struct kg_pack pack = {tokens, 10, &seq, 1, NULL, 0};
    const struct kg_forward f = {.pack = &pack};
    kg_status status = kg_model_open(&m, dir, &opts, err);
    if (status == KG_OK)
        status = kg_acts_create(&acts, m, 10, true, err);
    if (status == KG_OK)
        status = kg_kv_create(&kv, m, kg_kv_alike(2), err);
    if (status == KG_OK)
        status = kg_model_forward(&hidden, m, acts, &f, err);
    kg_kv_free(kv);
    kg_acts_free(acts);
    kg_model_free(m);
    return status;
}

static int torture_open(const char *dir, bool trainable)
{
    struct kg_err why;
    assert_int_equal(open_and_run(dir, KG_F32, trainable, &why), KG_OK);
    const uint64_t before = kg_mem_current_bytes();
    int n = 1;
    for (;; n++) {
        kg_mem_fail_at((uint64_t)n);
        const kg_status status = open_and_run(dir, KG_F32, trainable, &why);
        kg_mem_fail_at(0);
        assert_int_equal(kg_mem_current_bytes(), before);
        if (status == KG_OK)
            return n - 1;
        if (status != KG_ENOMEM)
            fail_msg("allocation %d: %s", n, why.message);
        assert_true(n < 5000);
    }
}

static void test_every_failed_allocation_of_opening_is_a_status(void **state)
{
    (void)state;
    int n = torture_open(qwen2_dir, false);
    n += torture_open(llama_dir, true);
    printf("%d allocations failed in turn\n", n);
    assert_true(n > 20);
}

static int torture_save(const struct kg_model *m)
{
    char dir[128];
    for (int n = 1;; n++) {
        struct kg_err why;
        test_dir(dir, "torture");
        const uint64_t before = kg_mem_current_bytes();
        const struct kg_model_save save = {.dtype = KG_BF16, .shard_bytes = 30000};
        kg_mem_fail_at((uint64_t)n);
        const kg_status status = kg_model_save(m, dir, &save, &why);
        kg_mem_fail_at(0);
        assert_int_equal(kg_mem_current_bytes(), before);
        test_dir_remove(dir);
        if (status == KG_OK)
            return n - 1;
        assert_int_equal(status, KG_ENOMEM);
        assert_true(n < 5000);
    }
}

static void test_every_failed_allocation_of_saving_is_a_status(void **state)
{
    (void)state;
    struct kg_model *m = test_open(qwen2_dir, KG_F32, true);
    assert_true(torture_save(m) > 5);
    kg_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameters_are_listed_in_checkpoint_order),
        cmocka_unit_test(test_a_mapped_model_equals_a_trainable_one),
        cmocka_unit_test(test_what_is_saved_is_what_was_read),
        cmocka_unit_test(test_opening_for_inference_holds_the_weights_once),
        cmocka_unit_test(test_a_tied_head_may_be_stored_if_it_is_the_embedding),
        cmocka_unit_test(test_rotary_buffers_of_old_checkpoints_are_skipped),
        cmocka_unit_test(test_wrong_tensors_are_refused_by_name),
        cmocka_unit_test(test_missing_and_truncated_files_are_refused),
        cmocka_unit_test(test_an_index_that_names_an_absent_shard_is_refused),
        cmocka_unit_test(test_fresh_weights_depend_on_the_seed_alone),
        cmocka_unit_test(test_fresh_weights_have_the_configured_spread),
        cmocka_unit_test(test_a_clone_has_weights_of_its_own),
        cmocka_unit_test(test_a_saved_model_opens_with_the_same_weights),
        cmocka_unit_test(test_one_file_has_no_index),
        cmocka_unit_test(test_any_stretch_of_a_parameter_can_be_read),
        cmocka_unit_test(test_opening_reserves_what_products_take),
        cmocka_unit_test(test_saving_twice_gives_the_same_bytes),
        cmocka_unit_test(test_other_weights_of_the_same_layout_can_be_saved),
        cmocka_unit_test(test_sidecars_travel_along_byte_for_byte),
        cmocka_unit_test(test_every_failed_allocation_of_opening_is_a_status),
        cmocka_unit_test(test_every_failed_allocation_of_saving_is_a_status),
    };
    return RUN_SHOWN(tests, NULL, NULL);
}
