/* Training steps against torch, the schedule, clipping, and the anchor. */
#include "model/model_testing.h"

#include "model/optim.h"

static const struct kg_optim_opts reference_opts = {
    .lr = 1e-3,
    .beta1 = 0.9,
    .beta2 = 0.999,
    .eps = 1e-8,
    .weight_decay = 0.01,
    .decay_all = true,
    .clip_norm = 1.0,
    .schedule = KG_SCHEDULE_CONSTANT,
};

static double train_step(struct kg_model *m, struct kg_optim *o, struct kg_acts *acts,
                         struct test_pack *t, double *norm)
{
    double lr = 0.0;
    NEED(kg_slab_zero(&o->grads, err));
    const double loss = test_nll(m, acts, t, 1.0 / TEST_REF_TARGETS, o->grads.data);
    NEED(kg_optim_update(o, m, norm, &lr, err));
    return loss;
}

static void check_curve_of(const char *arch)
{
    struct test_reference r;
    test_reference_open(&r, arch);
    struct kg_model *m = test_open(r.dir, KG_F32, true);
    struct kg_optim *o = NULL;
    struct kg_acts *acts = NULL;
    NEED(kg_optim_create(&o, m, &reference_opts, err));
    NEED(kg_acts_create(&acts, m, TEST_REF_TOKENS, true, err));
    double most = 0.0;
    for (int i = 0; i < TEST_REF_STEPS; i++) {
        double norm = 0.0;
        most = fmax(most, fabs(train_step(m, o, acts, &r.pack, &norm) - r.losses[i]));
        assert_true(fabs(norm - r.norms[i]) < 1e-4 * r.norms[i]);
    }
    const double last = test_nll(m, acts, &r.pack, 1.0 / TEST_REF_TARGETS, NULL);
    most = fmax(most, fabs(last - r.losses[TEST_REF_STEPS]));
    printf("%s: loss %.4f to %.4f, largest difference from torch %.2e\n", arch,
           r.losses[0], last, most);
    assert_true(most < 1e-4);
    kg_acts_free(acts);
    kg_optim_free(o);
    kg_model_free(m);
    test_reference_close(&r);
}

static void test_ten_steps_follow_torch(void **state)
{
    (void)state;
    for (int i = 0; i < TEST_ALL_ARCHS; i++)
        check_curve_of(test_archs[i]);
}

/* ---- schedule-free AdamW ---- */
static const struct kg_optim_opts free_opts = {
    .lr = 3e-3,
    .beta1 = 0.9,
    .beta2 = 0.999,
    .eps = 1e-8,
    .weight_decay = 0.01,
    .decay_all = true,
    .clip_norm = 1.0,
    .warmup_updates = 3,
};

static struct kg_optim_opts schedule_free(void)
{
    struct kg_optim_opts opts = free_opts;
    NEED(kg_optim_find(&opts.row, "schedule-free", err));
    return opts;
}

struct free_curve {
    double losses[TEST_REF_STEPS];
    double norms[TEST_REF_STEPS];
    double averages[TEST_REF_STEPS];
};

static void read_free_curve(struct free_curve *c, const char *dir)
{
    struct kg_json_doc doc;
    char path[192];
    snprintf(path, sizeof path, "%s/schedule_free.json", dir);
    NEED(kg_json_read(&doc, path, 1 << 20, err));
    test_read_doubles(c->losses, TEST_REF_STEPS, kg_json_get(doc.root, "losses"));
    test_read_doubles(c->norms, TEST_REF_STEPS, kg_json_get(doc.root, "grad_norms"));
    test_read_doubles(c->averages, TEST_REF_STEPS,
                      kg_json_get(doc.root, "average_losses"));
    kg_json_release(&doc);
}

/* NLL of the averaged weights; the second exchange restores the trained weights bit for
 * bit. */
static double average_nll(struct kg_model *m, struct kg_optim *o, struct kg_acts *acts,
                          struct test_pack *t)
{
    const size_t bytes = (size_t)m->n_elements * sizeof(float);
    const struct kg_slab *weights;
    float *before = test_alloc((size_t)m->n_elements, sizeof *before);
    memcpy(before, m->master.data, bytes);
    NEED(kg_optim_weights(&weights, o, m, err));
    NEED(kg_optim_exchange(o, m, err));
    const double loss = test_nll(m, acts, t, 1.0 / TEST_REF_TARGETS, NULL);
    NEED(kg_optim_exchange(o, m, err));
    assert_memory_equal(m->master.data, before, bytes);
    kg_mem_free(before);
    return loss;
}

static void check_free_curve_of(const char *arch)
{
    const struct kg_optim_opts opts = schedule_free();
    struct test_reference r;
    struct free_curve c;
    struct kg_optim *o = NULL;
    struct kg_acts *acts = NULL;
    double most = 0.0;
    test_reference_open(&r, arch);
    read_free_curve(&c, r.dir);
    struct kg_model *m = test_open(r.dir, KG_F32, true);
    NEED(kg_optim_create(&o, m, &opts, err));
    NEED(kg_acts_create(&acts, m, TEST_REF_TOKENS, true, err));
    for (int i = 0; i < TEST_REF_STEPS; i++) {
        double norm = 0.0;
        most = fmax(most, fabs(train_step(m, o, acts, &r.pack, &norm) - c.losses[i]));
        assert_true(fabs(norm - c.norms[i]) < 1e-4 * c.norms[i]);
        most = fmax(most, fabs(average_nll(m, o, acts, &r.pack) - c.averages[i]));
    }
    printf("%s: loss of the average %.4f to %.4f, largest difference from torch %.2e\n",
           arch, c.averages[0], c.averages[TEST_REF_STEPS - 1], most);
    assert_true(most < 1e-4);
    kg_acts_free(acts);
    kg_optim_free(o);
    kg_model_free(m);
    test_reference_close(&r);
}

static void test_ten_schedule_free_steps_follow_torch(void **state)
{
    (void)state;
    for (int i = 0; i < TEST_FREE_ARCHS; i++)
        check_free_curve_of(test_archs[i]);
}

static void test_schedule_free_refuses_a_schedule_and_no_momentum(void **state)
{
    (void)state;
    struct kg_model *m = test_open("tests/data/reference/qwen2", KG_F32, true);
    struct kg_optim_opts opts = schedule_free();
    struct kg_optim *o = NULL;
    struct kg_err why;
    opts.schedule = KG_SCHEDULE_COSINE;
    assert_int_equal(kg_optim_create(&o, m, &opts, &why), KG_EINVAL);
    assert_non_null(strstr(why.message, "optim.schedule"));
    opts = schedule_free();
    opts.beta1 = 0.0;
    assert_int_equal(kg_optim_create(&o, m, &opts, &why), KG_EINVAL);
    assert_non_null(strstr(why.message, "optim.beta1"));
    assert_int_equal(kg_optim_find(&opts.row, "sgd", &why), KG_ENOTFOUND);
    assert_non_null(strstr(why.message, "adamw, schedule-free"));
    kg_model_free(m);
}

static void test_bf16_training_lowers_the_loss(void **state)
{
    (void)state;
    struct test_reference r;
    test_reference_open(&r, "qwen2");
    struct kg_model *m = test_open(r.dir, KG_BF16, true);
    struct kg_optim *o = NULL;
    struct kg_acts *acts = NULL;
    NEED(kg_optim_create(&o, m, &reference_opts, err));
    NEED(kg_acts_create(&acts, m, TEST_REF_TOKENS, false, err));
    for (int i = 0; i < TEST_REF_STEPS; i++) {
        double norm = 0.0;
        assert_true(fabs(train_step(m, o, acts, &r.pack, &norm) - r.losses[i]) < 0.05);
    }
    kg_acts_free(acts);
    kg_optim_free(o);
    kg_model_free(m);
    test_reference_close(&r);
}

/* Takes steps, saves, loads and takes further steps: the bits equal the uninterrupted
 * run. new_stage counts updates from 0 again, which changes nothing at a constant
 * rate. */
static void check_save_load_step(enum kg_dtype ct, const struct kg_optim_opts *opts,
                                 bool new_stage)
{
    struct test_reference r;
    test_reference_open(&r, "qwen3");
    struct kg_model *m = test_open(r.dir, ct, true);
    struct kg_optim *o = NULL;
    struct kg_optim *resumed_o = NULL;
    struct kg_acts *acts = NULL;
    char dir[128];
    double norm = 0.0;
    test_dir(dir, "resume");
    NEED(kg_optim_create(&o, m, opts, err));
    NEED(kg_acts_create(&acts, m, TEST_REF_TOKENS, false, err));
    train_step(m, o, acts, &r.pack, &norm);
    train_step(m, o, acts, &r.pack, &norm);

    NEED(kg_model_save(m, dir, &(struct kg_model_save){.dtype = KG_F32}, err));
    struct kg_model *resumed = test_open(dir, ct, true);
    NEED(kg_optim_create(&resumed_o, resumed, opts, err));
    for (int i = 0; i < KG_OPTIM_STATES; i++)
        NEED(kg_slab_copy(&resumed_o->state[i], &o->state[i], err));
    if (new_stage)
        resumed_o->before = o->step;
    else
        kg_optim_resume(resumed_o, o->step);
    for (int i = 0; i < 2; i++) {
        const double loss = train_step(m, o, acts, &r.pack, &norm);
        assert_true(train_step(resumed, resumed_o, acts, &r.pack, &norm) == loss);
    }
    assert_memory_equal(m->master.data, resumed->master.data,
                        (size_t)m->n_elements * sizeof *m->master.data);
    test_dir_remove(dir);
    kg_acts_free(acts);
    kg_optim_free(o);
    kg_optim_free(resumed_o);
    kg_model_free(m);
    kg_model_free(resumed);
    test_reference_close(&r);
}

static void test_saving_and_loading_between_steps_changes_no_bit(void **state)
{
    (void)state;
    const struct kg_optim_opts averaged = schedule_free();
    check_save_load_step(KG_F32, &reference_opts, false);
    check_save_load_step(KG_F32, &averaged, false);
    check_save_load_step(KG_F32, &reference_opts, true);
    check_save_load_step(KG_BF16, &reference_opts, false);
    struct kg_optim_opts drawn = reference_opts;
    drawn.moments = KG_BF16;
    check_save_load_step(KG_F32, &drawn, false);
    check_save_load_step(KG_F32, &drawn, true);
}

/* An update gives the same moments in one call as in one call for each kind of parameter,
 * as when only matrices decay; another key gives other moments. */
static void test_draws_do_not_depend_on_the_calls_of_an_update(void **state)
{
    (void)state;
    struct test_reference r;
    test_reference_open(&r, "qwen2");
    struct kg_optim_opts opts = reference_opts;
    uint64_t hash[3][KG_OPTIM_STATES];
    opts.moments = KG_BF16;
    for (int i = 0; i < 3; i++) {
        struct kg_model *m = test_open(r.dir, KG_F32, true);
        struct kg_optim *o = NULL;
        struct kg_acts *acts = NULL;
        double norm = 0.0;
        opts.decay_all = i != 1;
        opts.rounding.seed = i == 2;
        NEED(kg_optim_create(&o, m, &opts, err));
        NEED(kg_acts_create(&acts, m, TEST_REF_TOKENS, false, err));
        train_step(m, o, acts, &r.pack, &norm);
        for (int s = 0; s < KG_OPTIM_STATES; s++)
            NEED(kg_slab_hash(&hash[i][s], &o->state[s], err));
        kg_acts_free(acts);
        kg_model_free(m);
        kg_optim_free(o);
    }
    for (int s = 0; s < KG_OPTIM_STATES; s++) {
        assert_true(hash[0][s] == hash[1][s]);
        assert_true(hash[0][s] != hash[2][s]);
    }
    test_reference_close(&r);
}

static void test_the_learning_rate_follows_its_schedule(void **state)
{
    (void)state;
    struct kg_optim_opts o = {
        .lr = 1.0, .warmup_updates = 4, .total_updates = 12, .min_lr = 0.2};
    assert_float_equal(kg_optim_lr(&o, 1), 0.25, 1e-12);
    assert_float_equal(kg_optim_lr(&o, 4), 1.0, 1e-12);
    assert_float_equal(kg_optim_lr(&o, 1000), 1.0, 1e-12);
    o.schedule = KG_SCHEDULE_LINEAR;
    assert_float_equal(kg_optim_lr(&o, 2), 0.5, 1e-12);
    assert_float_equal(kg_optim_lr(&o, 8), 0.6, 1e-12);
    assert_float_equal(kg_optim_lr(&o, 12), 0.2, 1e-12);
    assert_float_equal(kg_optim_lr(&o, 99), 0.2, 1e-12);
    o.schedule = KG_SCHEDULE_COSINE;
    assert_float_equal(kg_optim_lr(&o, 4), 1.0, 1e-12);
    assert_float_equal(kg_optim_lr(&o, 6), 0.2 + 0.4 * (1.0 + sqrt(0.5)), 1e-12);
    assert_float_equal(kg_optim_lr(&o, 12), 0.2, 1e-12);
    o.warmup_updates = 0;
    o.schedule = KG_SCHEDULE_CONSTANT;
    assert_float_equal(kg_optim_lr(&o, 1), 1.0, 1e-12);
}

/* verl's warm-up: all updates of a step have one rate; in the first step it is 0. */
static void test_a_warm_up_may_rise_by_the_step(void **state)
{
    (void)state;
    struct kg_optim_opts o = {.lr = 1.0, .warmup_updates = 12, .warmup_stair = 3};
    for (int64_t update = 1; update <= 20; update++) {
        double step = (double)((update - 1) / 3);
        assert_true(kg_optim_lr(&o, update) == (step < 4 ? step / 4 : 1.0));
    }
}

static struct kg_model *fresh(struct kg_optim **o, const struct kg_optim_opts *opts)
{
    struct kg_model *m = test_open("tests/data/reference/qwen2", KG_F32, true);
    NEED(kg_optim_create(o, m, opts, err));
    return m;
}

/* As in the released RPG, which never calls eval(): the trained weights are evaluated,
 * not their average. */
static void test_what_is_trained_may_be_what_is_evaluated(void **state)
{
    (void)state;
    struct kg_optim_opts opts = schedule_free(),
                         adamw = {.decay_all = true, .keep_trained = true};
    struct kg_optim *o;
    const struct kg_slab *weights;
    opts.keep_trained = true;
    struct kg_model *m = fresh(&o, &opts);
    for (int64_t i = 0; i < o->grads.n; i++)
        o->grads.data[i] = 1;
    NEED(kg_optim_weights(&weights, o, m, err));
    assert_true(weights == &m->master);
    float before = m->master.data[0];
    NEED(kg_optim_exchange(o, m, err));
    assert_true(m->master.data[0] == before && o->grads.data[0] == 1);
    kg_optim_free(o);
    kg_model_free(m);
    struct kg_err why;
    assert_int_equal(kg_optim_check(&adamw, &why), KG_EINVAL);
    assert_non_null(strstr(why.message, "optim.evaluate"));
}

static void test_a_gradient_that_is_not_finite_changes_nothing(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY};
    for (int i = 0; i < 2; i++) {
        struct kg_optim *o = NULL;
        struct kg_err why;
        double norm = 0.0;
        double lr = 0.0;
        struct kg_model *m = fresh(&o, &reference_opts);
        struct kg_model *before = NULL;
        NEED(kg_model_clone(&before, m, &(struct kg_model_opts){.ct = m->ct}, err));
        o->grads.data[o->grads.n / 2] = bad[i];
        assert_int_equal(kg_optim_update(o, m, &norm, &lr, &why), KG_ENONFINITE);
        assert_false(isfinite(norm));
        assert_int_equal(o->step, 0);
        assert_memory_equal(m->master.data, before->master.data,
                            (size_t)o->grads.n * sizeof(float));
        kg_model_free(before);
        kg_model_free(m);
        kg_optim_free(o);
    }
}

static void test_decay_can_be_kept_to_matrices(void **state)
{
    (void)state;
    struct kg_optim_opts opts = reference_opts;
    opts.decay_all = false;
    opts.weight_decay = 0.5;
    opts.lr = 0.1;
    struct kg_optim *o = NULL;
    double norm = 0.0;
    double lr = 0.0;
    struct kg_model *m = fresh(&o, &opts);
    struct kg_model *before = NULL;
    NEED(kg_model_clone(&before, m, &(struct kg_model_opts){.ct = m->ct}, err));
    NEED(kg_optim_update(o, m, &norm, &lr, err)); /* gradients are zero: only decay */
    assert_true(norm == 0.0);
    for (size_t i = 0; i < m->n_params; i++) {
        const struct kg_param *p = &m->params[i];
        const float factor = p->is_product ? 0.95f : 1.0f;
        for (int64_t j = 0; j < p->rows * p->cols; j++)
            assert_true(fabsf(p->master[j] - factor * before->params[i].master[j]) <
                        1e-6f);
    }
    kg_model_free(before);
    kg_model_free(m);
    kg_optim_free(o);
}

static void test_the_gaps_between_tensors_stay_zero(void **state)
{
    (void)state;
    struct test_reference r;
    test_reference_open(&r, "llama");
    struct kg_model *m = test_open(r.dir, KG_F32, true);
    int64_t end = 0;
    for (size_t i = 0; i < m->n_params; i++) {
        const struct kg_param *p = &m->params[i];
        assert_int_equal(p->offset % 32, 0);
        assert_true(p->offset >= end);
        for (int64_t j = end; j < p->offset; j++)
            assert_true(m->master.data[j] == 0.0f);
        end = p->offset + p->rows * p->cols;
    }
    assert_true(m->n_elements >= end);
    kg_model_free(m);
    test_reference_close(&r);
}

static void test_the_anchor_moves_by_its_rate(void **state)
{
    (void)state;
    struct kg_optim *o = NULL;
    struct kg_model *m = fresh(&o, &reference_opts);
    struct kg_model *anchor = NULL;
    double absolute = 1.0;
    double relative = 1.0;
    NEED(kg_model_clone(&anchor, m, &(struct kg_model_opts){.ct = m->ct}, err));
    NEED(kg_anchor_distance(&absolute, &relative, m, anchor, err));
    assert_true(absolute == 0.0 && relative == 0.0);
    m->master.data[0] += 3.0f;
    m->master.data[m->params[1].offset] += 4.0f;
    NEED(kg_anchor_distance(&absolute, &relative, m, anchor, err));
    assert_float_equal(absolute, 5.0, 1e-6);
    assert_true(relative > 0.0 && relative < absolute);
    NEED(kg_anchor_update(anchor, m, 0.75, err));
    NEED(kg_anchor_distance(&absolute, &relative, m, anchor, err));
    assert_float_equal(absolute, 3.75, 1e-6);
    kg_model_free(anchor);
    kg_model_free(m);
    kg_optim_free(o);
}

/* ---- weights and state on the host ---- */

/* vocab: if large, the embedding's gradients take more than one run */
static struct kg_model *place(struct kg_optim **o, const struct kg_backend *be,
                              enum kg_on_host on_host, int32_t vocab,
                              const struct kg_optim_opts *opts)
{
    const struct kg_model_opts own = {
        .backend = be, .ct = KG_BF16, .trainable = true, .on_host = on_host};
    struct kg_model_config c;
    struct kg_model *m = NULL;
    NEED(kg_model_config_read(&c, "tests/data/reference/qwen2", err));
    c.vocab = vocab;
    c.init_range = 0.05f;
    NEED(kg_model_create(&m, &c, &own, 5, err));
    NEED(kg_optim_create(o, m, opts, err));
    return m;
}

static void update_placed(struct kg_optim *o, struct kg_model *m, int step)
{
    const int64_t n = o->grads.n;
    float *grads = test_alloc((size_t)n, sizeof *grads);
    double norm, lr;
    for (int64_t i = 0; i < n; i++)
        grads[i] = 1e-3f * (float)((i + step) * 7 % 1009 - 504);
    NEED(kg_slab_write(&o->grads, 0, grads, n, err));
    NEED(kg_optim_update(o, m, &norm, &lr, err));
    kg_mem_free(grads);
}

static void assert_same_slab(const struct kg_slab *a, const struct kg_slab *b)
{
    const size_t n = (size_t)a->n, bytes = kg_dtype_traits(a->dtype)->bytes;
    char *x = test_alloc(n, bytes), *y = test_alloc(n, bytes);
    assert_true(a->n == b->n && a->dtype == b->dtype);
    NEED(kg_slab_read(x, a, 0, a->n, err));
    NEED(kg_slab_read(y, b, 0, b->n, err));
    assert_memory_equal(x, y, n * bytes);
    kg_mem_free(x);
    kg_mem_free(y);
}

static void assert_same_products(const struct kg_model *a, const struct kg_model *b)
{
    for (size_t i = 0; i < a->n_params; i++) {
        const struct kg_param *p = &a->params[i];
        const uint64_t bytes = p->is_product
                                   ? kg_weights_bytes(a->backend, a->ct, p->rows, p->cols)
                                   : (uint64_t)p->cols * sizeof(float);
        char *x = test_alloc(bytes, 1), *y = test_alloc(bytes, 1);
        NEED(kg_buf_get(a->backend, x, p->compute.data, bytes, err));
        NEED(kg_buf_get(b->backend, y, b->params[i].compute.data, bytes, err));
        assert_memory_equal(x, y, bytes);
        kg_mem_free(x);
        kg_mem_free(y);
    }
}

static void check_places(const struct kg_optim_opts *opts, int32_t vocab)
{
    static const enum kg_on_host where[] = {KG_HOST_NONE, KG_HOST_MASTER};
    const struct kg_backend *far;
    const struct kg_slab *learned[2];
    struct kg_model *m[2];
    struct kg_optim *o[2];
    NEED(kg_backend_open(&far, "far", err));
    for (int i = 0; i < 2; i++) {
        m[i] = place(&o[i], far, where[i], vocab, opts);
        for (int step = 0; step < 2; step++)
            update_placed(o[i], m[i], step);
        NEED(kg_optim_weights(&learned[i], o[i], m[i], err));
    }
    assert_true(m[1]->master.backend->host_memory && !far->host_memory);
    assert_true(o[1]->room && !o[0]->room);
    assert_same_slab(learned[0], learned[1]);
    for (int i = 0; i < KG_OPTIM_STATES; i++)
        assert_same_slab(&o[0]->state[i], &o[1]->state[i]);
    for (int i = 0; i < 2; i++)
        NEED(kg_optim_exchange(o[i], m[i], err));
    assert_same_slab(&m[0]->master, &m[1]->master);
    assert_same_products(m[0], m[1]);
    for (int i = 0; i < 2; i++) {
        kg_optim_free(o[i]);
        kg_model_free(m[i]);
    }
}

static void test_updates_on_the_host_have_the_same_bits(void **state)
{
    struct kg_optim_opts bf16 = reference_opts, averaged = schedule_free();
    struct kg_model_config c;
    (void)state;
    NEED(kg_model_config_read(&c, "tests/data/reference/qwen2", err));
    const int32_t vocab = KG_SLAB_RUN / c.hidden + 100;
    bf16.moments = KG_BF16;
    bf16.rounding = (struct kg_rng_key){1, KG_RNG_ROUND};
    bf16.decay_all = false;
    check_places(&reference_opts, vocab);
    check_places(&bf16, vocab);
    check_places(&averaged, vocab);
}

/* As docs/gpu.md says: an update copies gradients to the host, and the weights that
 * products read, norms and biases to the device. */
static void test_an_update_on_the_host_moves_what_it_must(void **state)
{
    enum { NORM = 1 << 16 }; /* sums of the gradient's norm */
    const struct kg_backend *be;
    struct kg_optim *o;
    struct kg_err e;
    (void)state;
    if (kg_backend_open(&be, "emu", &e) != KG_OK)
        skip(); /* no C++ compiler */
    struct kg_model *m = place(&o, be, KG_HOST_MASTER, 64, &reference_opts);
    double norm, lr;
    const struct kg_traffic before = kg_buf_traffic(be);
    NEED(kg_optim_update(o, m, &norm, &lr, err));
    const struct kg_traffic after = kg_buf_traffic(be);
    const uint64_t down = after.down - before.down, grads = 4u * (uint64_t)o->grads.n;
    assert_true(down >= grads && down <= grads + NORM);
    assert_true(after.up - before.up == kg_model_memory(m, true).read.there);
    kg_optim_free(o);
    kg_model_free(m);
}

static void test_an_optimizer_needs_master_weights(void **state)
{
    (void)state;
    struct kg_err why;
    struct kg_optim *o = NULL;
    struct kg_model *m = test_open("tests/data/reference/qwen2", KG_F32, false);
    assert_int_equal(kg_optim_create(&o, m, &reference_opts, &why), KG_EINVAL);
    assert_null(o);
    kg_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ten_steps_follow_torch),
        cmocka_unit_test(test_ten_schedule_free_steps_follow_torch),
        cmocka_unit_test(test_schedule_free_refuses_a_schedule_and_no_momentum),
        cmocka_unit_test(test_bf16_training_lowers_the_loss),
        cmocka_unit_test(test_saving_and_loading_between_steps_changes_no_bit),
        cmocka_unit_test(test_draws_do_not_depend_on_the_calls_of_an_update),
        cmocka_unit_test(test_the_learning_rate_follows_its_schedule),
        cmocka_unit_test(test_a_warm_up_may_rise_by_the_step),
        cmocka_unit_test(test_what_is_trained_may_be_what_is_evaluated),
        cmocka_unit_test(test_a_gradient_that_is_not_finite_changes_nothing),
        cmocka_unit_test(test_decay_can_be_kept_to_matrices),
        cmocka_unit_test(test_the_gaps_between_tensors_stay_zero),
        cmocka_unit_test(test_the_anchor_moves_by_its_rate),
        cmocka_unit_test(test_updates_on_the_host_have_the_same_bits),
        cmocka_unit_test(test_an_update_on_the_host_moves_what_it_must),
        cmocka_unit_test(test_an_optimizer_needs_master_weights),
    };
    return RUN_SHOWN(tests, NULL, NULL);
}
