/* For every architecture, the memory that models, caches, activations, rows and engines
 * take from a backend equals the plan, to the byte. */
#include "rollout/rollout_testing.h"

#include "model/rows.h"

/* ---- a backend that counts ---- */

enum { BLOCKS = 4096 };
static const struct kg_backend *cpu;
static struct {
    void *memory[BLOCKS];
    uint64_t bytes[BLOCKS], held;
} taken;

static int slot_of(const void *memory)
{
    int i = 0;

    while (i < BLOCKS && taken.memory[i] != memory)
        i++;
    assert_true(i < BLOCKS);
    return i;
}

static void *count_alloc(uint64_t bytes, const char *what, struct kg_err *err)
{
    int i = slot_of(NULL);

    taken.memory[i] = cpu->alloc(bytes, what, err);
    taken.bytes[i] = bytes;
    taken.held += bytes;
    return taken.memory[i];
}

static void count_free(void *memory)
{
    int i = slot_of(memory);

    cpu->free(memory);
    taken.memory[i] = NULL;
    taken.held -= taken.bytes[i];
}

static struct kg_backend counting;

static int begin(void **state)
{
    (void)state;
    NEED(kg_backend_open_cpu(&cpu, err));
    counting = *cpu;
    counting.alloc = count_alloc;
    counting.free = count_free;
    return 0;
}

/* ---- every architecture ---- */

#define ALL "tests/data/reference/"
static const struct kg_lora small_lora = {.rank = 2, .alpha = 8};

static struct kg_model *open_counted(const char *name, enum kg_dtype ct, bool trainable,
                                     const struct kg_lora *lora)
{
    const struct kg_model_opts opts = {
        .backend = &counting, .ct = ct, .trainable = trainable, .lora = lora};
    char dir[128];
    struct kg_model *m;

    snprintf(dir, sizeof dir, ALL "%s", name);
    NEED(kg_model_open(&m, dir, &opts, err));
    return m;
}

/* A model also holds the frequencies of its rotary embedding, which no plan lists. */
static void assert_model(const struct kg_model *m, bool trainable)
{
    const struct kg_model_memory b = kg_model_memory(m, trainable);
    const uint64_t frequencies = (uint64_t)(m->inv_freq.n + m->local_inv_freq.n) *
                                 sizeof(float);

    assert_int_equal(taken.held,
                     kg_bytes_sum(b.master) + kg_bytes_sum(b.read) + frequencies);
}

static void assert_acts(const struct kg_model *m)
{
    for (int checkpoint = 0; checkpoint <= 1; checkpoint++) {
        const uint64_t before = taken.held;
        struct kg_acts *a;

        NEED(kg_acts_create(&a, m, 70, checkpoint, err));
        assert_int_equal(taken.held - before, kg_acts_bytes(m, 70, checkpoint, 0).there);
        kg_acts_free(a);
        assert_int_equal(taken.held, before);
    }
}

static void assert_rows(const struct kg_model *m)
{
    const struct kg_rows_opts opts[] = {
        {.max_tokens = 90, .max_rows = 7},
        {.max_tokens = 90, .max_k = 5, .top_k = 5, .backward = true},
        {.max_tokens = 65,
         .sets = true,
         .sum_sq = true,
         .backward = true,
         .checkpoint = true},
        {.max_tokens = 80, .max_k = 3, .backward = true, .kl = true, .anchor = m},
        {.max_tokens = 80, .backward = true, .share = true},
        {.max_tokens = 80, .backward = true, .experts = m->config.experts.n > 0}};

    for (size_t i = 0; i < sizeof opts / sizeof *opts; i++) {
        const uint64_t before = taken.held;
        struct kg_rows *p;

        NEED(kg_rows_create(&p, m, &opts[i], err));
        assert_int_equal(taken.held - before, kg_rows_memory(m, &opts[i]).there);
        kg_rows_free(p);
        assert_int_equal(taken.held, before);
    }
}

static void assert_engine(const struct kg_model *m)
{
    const struct kg_rollout_opts opts[] = {
        {.max_batch = 1, .max_len = 200},
        {.max_batch = 5, .max_len = 130, .prefill_chunk = 33},
        {.max_batch = 4, .max_open = 9, .max_len = 300, .episodes = true},
        {.max_batch = 3, .max_len = 128, .kv_tokens = 640}};

    for (size_t i = 0; i < sizeof opts / sizeof *opts; i++) {
        const uint64_t before = taken.held;
        const struct kg_rollout_session session = {0};
        struct kg_rollout *r;
        uint64_t cache;

        NEED(kg_rollout_create(&r, m, NULL, &opts[i], err));
        (void)kg_rollout_memory(&cache, m, &opts[i]);
        assert_int_equal(taken.held - before, cache);
        NEED(kg_rollout_begin(r, &session, err));
        assert_int_equal(taken.held - before,
                         kg_rollout_memory(&cache, m, &opts[i]).there);
        kg_rollout_free(r);
        assert_int_equal(taken.held, before);
    }
}

static void assert_plans(const char *name, enum kg_dtype ct, bool trainable,
                         const struct kg_lora *lora)
{
    struct kg_model *m = open_counted(name, ct, trainable, lora);

    assert_model(m, trainable);
    assert_acts(m);
    assert_rows(m);
    assert_engine(m);
    kg_model_free(m);
    assert_int_equal(taken.held, 0);
}

static void what_is_planned_is_what_is_taken(void **state)
{
    char **names;
    size_t n, models = 0;

    (void)state;
    NEED(kg_file_list(&names, &n, ALL, err));
    for (size_t i = 0; i < n; i++) {
        if (strcmp(names[i], "README.md") == 0)
            continue;
        for (int ct = 0; ct < 2; ct++)
            for (int trainable = 0; trainable < 2; trainable++)
                assert_plans(names[i], ct ? KG_BF16 : KG_F32, trainable, NULL);
        assert_plans(names[i], KG_BF16, true, &small_lora);
        models++;
    }
    assert_true(models >= 20);
    kg_file_names_free(names, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_planned_is_what_is_taken),
    };

    return cmocka_run_group_tests(tests, begin, NULL);
}
