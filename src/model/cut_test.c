/* A model whose master weights, moments and anchor are sharded among ranks, here threads,
 * equals the same model in one piece: every shard, what products read, norms, distances
 * and files.
 */
#include "model/cut.h"
#include "model/model_testing.h"

#include "base/clock.h"
#include "model/model_internal.h"
#include "model/optim.h"
#include "ranks/ranks_testing.h"

#include <pthread.h>

enum { RANKS = RANKS_MOST, STEPS = 2 };

struct shape {
    const char *what;
    enum kg_dtype ct, moments;
    const char *optim;
    int32_t lora; /* rank; so small that most shards are empty */
};
static const struct shape shapes[] = {
    {"adamw, fp32", KG_F32, KG_F32, "adamw", 0},
    {"adamw, bf16 weights and moments", KG_BF16, KG_BF16, "adamw", 0},
    {"schedule-free", KG_BF16, KG_F32, "schedule-free", 0},
    {"adapters", KG_F32, KG_F32, "adamw", 2},
};

/* One rank's model, and the results of its training. */
struct trained {
    struct kg_ranks ranks;
    const struct shape *shape;
    const char *dir; /* where the model is saved */
    struct kg_model *m, *anchor;
    struct kg_optim *o;
    double norm[STEPS], apart, relative;
};

static void open_model(struct trained *t)
{
    struct kg_lora lora = {.rank = t->shape->lora, .alpha = 4};
    struct kg_model_opts opts = {
        .ct = t->shape->ct, .trainable = true, .ranks = &t->ranks, .seed = 3};
    struct kg_model_config c;
    if (t->shape->lora > 0) {
        NEED(kg_lora_add_target(&lora, "q_proj", "targets", err));
        opts.lora = &lora;
        NEED(kg_model_open(&t->m, "tests/data/reference/qwen2", &opts, err));
        return;
    }
    NEED(kg_model_config_read(&c, "tests/data/reference/qwen2", err));
    c.vocab = 1999; /* no shard ends where a parameter ends */
    c.init_range = 0.05f;
    NEED(kg_model_create(&t->m, &c, &opts, 5, err));
}

/* Writes the gradient of a step into this rank's shard, and NaN, which must not be read,
 * elsewhere. */
static void put_gradient(struct trained *t, int step)
{
    const int64_t n = t->o->grads.n;
    float *grads = test_alloc((size_t)n, sizeof *grads);
    for (int64_t i = 0; i < n; i++) {
        const bool own = kg_cut_within(t->m->cut, i, 1).n > 0;
        grads[i] = own ? 1e-3f * (float)((i + step) * 7 % 1009 - 504) : NAN;
    }
    for (size_t p = kg_model_first_trained(t->m); p + 1 < t->m->n_params; p++) {
        const struct kg_param *a = &t->m->params[p], *b = a + 1;
        for (int64_t i = a->offset + kg_param_count(a); i < b->offset; i++)
            grads[i] = 0; /* gap between parameters */
    }
    NEED(kg_slab_write(&t->o->grads, 0, grads, n, err));
    kg_mem_free(grads);
}

static void save(struct trained *t)
{
    struct kg_model_save save = {.dtype = KG_F32, .source_dir = NULL};
    NEED(kg_optim_weights(&save.weights, t->o, t->m, err));
    save.part = t->m->ranks ? KG_SAVE_FRAME : KG_SAVE_ALL;
    if (t->ranks.me == 0)
        NEED(kg_model_save(t->m, t->dir, &save, err));
    NEED(kg_ranks_agree(&t->ranks, KG_OK, "frame", err));
    save.part = KG_SAVE_VALUES;
    if (t->m->ranks)
        NEED(kg_model_save(t->m, t->dir, &save, err));
}

static void *train(void *trained)
{
    struct trained *t = trained;
    struct kg_optim_opts opts = {.lr = 1e-2,
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .eps = 1e-8,
                                 .weight_decay = 0.1,
                                 .clip_norm = 0.5,
                                 .moments = t->shape->moments};
    const struct kg_model_opts same = {.ct = t->shape->ct};
    double lr;
    kg_threads_set(1);
    open_model(t);
    NEED(kg_optim_find(&opts.row, t->shape->optim, err));
    NEED(kg_optim_create(&t->o, t->m, &opts, err));
    NEED(kg_model_clone(&t->anchor, t->m, &same, err));
    for (int i = 0; i < STEPS; i++) {
        put_gradient(t, i);
        NEED(kg_optim_update(t->o, t->m, &t->norm[i], &lr, err));
        NEED(kg_anchor_update(t->anchor, t->m, 0.75, err));
    }
    NEED(kg_anchor_distance(&t->apart, &t->relative, t->m, t->anchor, err));
    save(t);
    NEED(kg_optim_exchange(t->o, t->m, err));
    return NULL;
}

static void release(struct trained *t)
{
    kg_optim_free(t->o);
    kg_model_free(t->anchor);
    kg_model_free(t->m);
    kg_ranks_close(&t->ranks);
}

/* ---- ranks ---- */

static void train_on(struct trained *t, int n, const struct shape *shape, const char *dir)
{
    struct rank_sockets s;
    pthread_t thread[RANKS];
    ranks_join(&s, n);
    for (int r = 0; r < n; r++) {
        t[r] = (struct trained){.shape = shape, .dir = dir};
        NEED(kg_ranks_on_sockets(&t[r].ranks, r, n, s.fd[r], s.rings, err));
        assert_int_equal(pthread_create(&thread[r], NULL, train, &t[r]), 0);
    }
    for (int r = 0; r < n; r++)
        pthread_join(thread[r], NULL);
    ranks_part(&s, -1);
}

/* ---- comparisons ---- */

static void assert_cut(const struct kg_slab *part, const struct kg_slab *whole,
                       struct kg_cut cut)
{
    const size_t each = kg_dtype_traits(whole->dtype)->bytes;
    char *a = test_alloc((size_t)cut.n + 1, each),
         *b = test_alloc((size_t)cut.n + 1, each);
    assert_int_equal(part->n, cut.n);
    NEED(kg_slab_read(a, part, 0, cut.n, err));
    NEED(kg_slab_read(b, whole, cut.first, cut.n, err));
    assert_memory_equal(a, b, (size_t)cut.n * each);
    kg_mem_free(a);
    kg_mem_free(b);
}

static void assert_read_alike(const struct kg_model *a, const struct kg_model *b)
{
    for (size_t i = 0; i < a->n_params; i++) {
        const int64_t n = kg_param_count(&a->params[i]);
        float *x = test_alloc((size_t)n, sizeof *x),
              *y = test_alloc((size_t)n, sizeof *y);
        NEED(kg_param_read(x, KG_F32, a, &a->params[i], NULL, 0, n, err));
        NEED(kg_param_read(y, KG_F32, b, &b->params[i], NULL, 0, n, err));
        assert_memory_equal(x, y, (size_t)n * sizeof *x);
        kg_mem_free(x);
        kg_mem_free(y);
    }
}

static void assert_part_of(const struct trained *t, const struct trained *whole)
{
    const struct kg_cut cut = kg_cut_of(whole->m->n_elements, t->ranks.me, t->ranks.n);
    assert_cut(&t->m->master, &whole->m->master, cut);
    assert_cut(&t->anchor->master, &whole->anchor->master, cut);
    for (int i = 0; i < KG_OPTIM_STATES; i++)
        assert_cut(&t->o->state[i], &whole->o->state[i], cut);
    assert_read_alike(t->m, whole->m);
    assert_read_alike(t->anchor, whole->anchor);
    assert_memory_equal(t->norm, whole->norm, sizeof t->norm);
    assert_true(t->apart == whole->apart && t->relative == whole->relative);
}

static void assert_same_files(const char *a, const char *b, const char *name)
{
    struct kg_str x = {0}, y = {0};
    NEED(kg_file_read(&x, kg_path_in(a, name).text, 1 << 26, err));
    NEED(kg_file_read(&y, kg_path_in(b, name).text, 1 << 26, err));
    assert_true(x.len == y.len && memcmp(x.data, y.data, x.len) == 0);
    kg_str_release(&x);
    kg_str_release(&y);
}

static void test_cuts_are_the_whole_on_every_number_of_ranks(void **state)
{
    (void)state;
    need_host_memory(); /* ranks are threads here: no other backend has two at once */
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        struct trained whole, t[RANKS];
        char one[128], dir[128];
        print_message("  %s\n", shapes[s].what);
        test_dir(one, "whole");
        train_on(&whole, 1, &shapes[s], one);
        for (int n = 2; n <= RANKS; n++) {
            test_dir(dir, "cut");
            train_on(t, n, &shapes[s], dir);
            for (int r = 0; r < n; r++)
                assert_part_of(&t[r], &whole);
            assert_same_files(one, dir,
                              shapes[s].lora > 0 ? "adapter_model.safetensors"
                                                 : "model.safetensors");
            for (int r = 0; r < n; r++)
                release(&t[r]);
        }
        release(&whole);
        test_dir_remove(one);
        test_dir_remove(dir);
    }
}

/* Devices pad an adapter factor of one row to a panel of sixteen. */
static void test_a_refresh_has_room_for_the_padded_panels_of_a_run(void **state)
{
    (void)state;
    const struct kg_backend *far;
    struct kg_ranks two = {.n = 2};
    struct kg_lora lora = {.rank = 1, .alpha = 1};
    struct kg_model_opts opts = {.ct = KG_F32, .ranks = &two, .lora = &lora};
    struct kg_model_config c;
    struct kg_model *m = NULL;
    NEED(kg_backend_open(&far, "far", err));
    opts.backend = far;
    NEED(kg_lora_add_target(&lora, "q_proj", "targets", err));
    NEED(kg_model_config_read(&c, "tests/data/reference/qwen2", err));
    c.layers = 1;
    NEED(kg_model_outline(&m, &c, &opts, err));
    uint64_t bucket = 0, most = 0;
    for (size_t i = kg_model_first_trained(m); i < m->n_params; i++) {
        const struct kg_param *p = &m->params[i];
        const uint64_t bytes = kg_weights_bytes(far, KG_F32, p->rows, p->cols);
        bucket += (uint64_t)(p->rows * p->cols) * sizeof(float);
        most = bytes > most ? bytes : most;
    }
    assert_true(most > 2 * bucket);
    const uint64_t wide = KG_SLAB_RUN * sizeof(float); /* a run of master weights */
    assert_int_equal(kg_model_refresh_bytes(m, false).host, bucket + most + wide);
    kg_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_refresh_has_room_for_the_padded_panels_of_a_run),
        cmocka_unit_test(test_cuts_are_the_whole_on_every_number_of_ranks),
    };
    kg_threads_set(1);
    return RUN_SHOWN(tests, NULL, NULL);
}
