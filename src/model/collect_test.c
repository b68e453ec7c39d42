/* The weights that products read, collected by NCCL from GPU to GPU: each rank sends the
 * bytes of its shard, and a call that fails on one rank fails on all.
 * tests/ranks_device_test shows that the result equals that of one process.
 */
#include "model/model.h"

#include "base/clock.h"
#include "base/folder_testing.h"
#include "emu/nccl_testing.h"
#include "ranks/message.h"
#include "ranks/ranks_testing.h"

#include <string.h>

#define FOLDER "tests/data/reference/qwen2"
enum { RANKS = 3 };

struct asked {
    const char *folder;
    const char *fails; /* FAKE_NCCL after the first refresh; NULL: none */
};

/* Bytes that a rank sends. To each other rank: its shard as products read it, and four
 * agreements: at both ends, and before and after the one bucket. */
static uint64_t foretold(const struct kg_model *m, const struct kg_ranks *r)
{
    uint64_t bytes = 4 * sizeof(struct kg_ranks_word);

    for (size_t i = 0; i < m->n_params; i++) {
        const struct kg_param *p = &m->params[i];
        const int64_t n = kg_cut_within(m->cut, p->offset, p->rows * p->cols).n;

        bytes += (uint64_t)n * (p->is_product ? 2 : 4);
    }
    return bytes * (uint64_t)(r->n - 1);
}

static int refresh(struct kg_model *m, struct kg_ranks *r, const struct asked *a)
{
    const uint64_t before = r->sent;
    struct kg_err e = {0};
    kg_status status;

    if (a->fails)
        setenv("FAKE_NCCL", a->fails, true);
    status = kg_model_refresh(m, &e);
    if (a->fails)
        return status != KG_EDEVICE || !strstr(e.message, "weights: nccl 2.28.9: ");
    return status != KG_OK || r->sent - before != foretold(m, r);
}

static int as_rank(struct kg_ranks *r, void *user)
{
    struct kg_model_opts opts = {.ct = KG_BF16, .trainable = true, .ranks = r};
    const struct asked *a = user;
    struct kg_model_config c;
    struct kg_model *m;
    struct kg_err e = {0};
    kg_status status;

    if (kg_backend_open(&opts.backend, "far", &e) != KG_OK ||
        kg_ranks_nccl_open(r, opts.backend, a->folder, &e) != KG_OK ||
        kg_model_config_read(&c, FOLDER, &e) != KG_OK ||
        kg_model_create(&m, &c, &opts, 5, &e) != KG_OK)
        return 2;
    if (refresh(m, r, a) != 0)
        return 3;
    kg_ranks_forgive(r);
    status = kg_ranks_agree(r, KG_OK, "afterwards", &e);
    kg_model_free(m);
    kg_ranks_close(r);
    return status != KG_OK;
}

static void all_end_well(struct asked a)
{
    ranks_end_well(RANKS, as_rank, &a, a.fails ? a.fails : "nothing fails");
}

static void a_cut_goes_to_all_in_its_bytes(void **state)
{
    (void)state;
    make_good_nccl(in_dir("there"));
    all_end_well((struct asked){in_dir("there"), NULL});
}

static void all_hear_of_a_call_that_fails_on_one(void **state)
{
    (void)state;
    make_good_nccl(in_dir("there"));
    for (size_t i = 0; i < NCCL_FAILURES; i++)
        all_end_well((struct asked){in_dir("there"), nccl_failures[i]});
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_cut_goes_to_all_in_its_bytes),
        IN_FOLDER(all_hear_of_a_call_that_fails_on_one),
    };

    kg_threads_set(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
