/* The bytes that ranks send, counted, are those of the formulas in docs/ranks.md, for
 * each rank of 2, 3 and 4.
 *
 * In a step of U updates of n weights with C lanes over W ranks, rank r sends
 *
 *     gradient   U 4 b_r (n - c_r)   its b_r blocks of lanes to the owners of the shards;
 *                                    c_r weights are its own shard. With
 *                                    ranks.shard=none also U 4 (W-1) c_r: its part of
 *                                    the sum, to all others
 *     weights    (U + a) (W-1) w_r   its shard as products read it: 4 bytes per weight of
 *                                    a norm, else the dtype of products; a: how often
 *                                    the anchor moves
 *     squares    (U + 2) 8 (W-1) ceil(c_r / 16384)   of the gradient, and of the distance
 *                                    to an anchor
 *
 * Weights and squares are sent only if weights are sharded. A checkpoint sends 8 (W-1)
 * bytes per hash, and the first rank 8 (W-1) more. The test subtracts a run of one step
 * from a run of three, which leaves two steps without the start. Agreements (some kB) are
 * not counted.
 */
#define ROOT "build/test-runs/ranks-traffic"
#include "run_testing.h"

#include "base/clock.h"
#include "model/model.h"
#include "ranks/lanes.h"
#include "ranks/ranks_testing.h"

#include <sys/mman.h>

enum { LANES = 8, UPDATES = 2, STEPS = 2 };
/* HASHES: those of a run's one checkpoint */
enum kind { GRADIENT, WEIGHTS, SQUARES, HASHES, KINDS };
static const char *const names[KINDS] = {"gradient exchange", "weights", "sum of squares",
                                         "hashes"};
struct sent {
    uint64_t bytes[KINDS];
};

/* ---- counted ---- */
static const struct kg_ranks_transport *true_one;
static struct sent *counted; /* (RANKS_MOST) in memory that all ranks see */

static kg_status count(const struct kg_ranks *r, const struct kg_ranks_part *out,
                       const struct kg_ranks_part *in, const char *what,
                       struct kg_err *err)
{
    for (int k = 0; k < KINDS && !r->agreeing; k++)
        for (int p = 0; p < r->n && strcmp(what, names[k]) == 0; p++)
            counted[r->me].bytes[k] += out[p].n;
    return true_one->exchange(r, out, in, what, err);
}
static const struct kg_ranks_transport counting = {.name = "counting", .exchange = count};

static int as_rank(struct kg_ranks *r, void *config)
{
    struct kg_err err;

    true_one = r->transport;
    r->transport = &counting;
    if (kg_train_run_on(r, config, false, false, &err) == KG_OK)
        return 0;
    fprintf(stderr, "rank %d: %s\n", r->me, err.message);
    return 1;
}

/* to <- the bytes that each rank sends in a run of `steps` steps */
static void run(struct sent *to, int ranks, const char *steps, const char *const *extra)
{
    const char *const last[] = {steps, NULL};
    const char *const *const lists[] = {run_base, run_also, extra, last};
    struct kg_config *config;
    int ended[RANKS_MOST];

    fresh(ROOT "/n");
    config = config_from(ROOT "/n", lists, 4);
    memset(counted, 0, RANKS_MOST * sizeof *counted);
    ranks_run(ended, ranks, as_rank, config);
    kg_config_free(config);
    for (int r = 0; r < ranks; r++)
        assert_int_equal(ended[r], 0);
    memcpy(to, counted, RANKS_MOST * sizeof *to);
}

/* ---- by formula ---- */
static uint64_t blocks_of(int rank, int ranks)
{
    struct kg_share s = kg_share_of(LANES, rank, ranks);
    int levels[2 * KG_TREE_LEVELS];

    return (uint64_t)kg_tree_cover(levels, (int)s.first, (int)s.end);
}

/* Bytes of a shard as products read it. */
static uint64_t read_bytes(const struct kg_model *m, struct kg_cut cut)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < m->n_params; i++) {
        const struct kg_param *p = &m->params[i];
        const int64_t n = kg_cut_within(cut, p->offset, p->rows * p->cols).n;

        bytes += (uint64_t)n * (p->is_product ? kg_dtype_traits(m->ct)->bytes : 4);
    }
    return bytes;
}

/* moves: how often an anchor moves along with the weights */
static struct sent of_step(const struct kg_model *m, int rank, int ranks, bool cut,
                           int moves)
{
    const struct kg_cut own = kg_cut_of(m->n_elements, rank, ranks);
    const uint64_t others = (uint64_t)ranks - 1, n = (uint64_t)m->n_elements;
    struct sent s = {{0}};

    s.bytes[GRADIENT] = UPDATES * 4 * blocks_of(rank, ranks) * (n - (uint64_t)own.n);
    if (!cut) {
        s.bytes[GRADIENT] += UPDATES * 4 * others * (uint64_t)own.n;
        return s;
    }
    s.bytes[WEIGHTS] = (uint64_t)(UPDATES + moves) * others * read_bytes(m, own);
    s.bytes[SQUARES] = (UPDATES + 2) * 8 * others * (uint64_t)kg_slab_pieces(own.n);
    return s;
}

/* One per file, because no file of the checkpoint is longer than a piece. */
static int64_t pieces_of_checkpoint(void)
{
    struct kg_str text = {0};
    int64_t n = 0;

    read_in(&text, ROOT "/n", "checkpoints/latest/manifest.json");
    for (const char *at = kg_str_text(&text); (at = strstr(at, "\"path\": ")); at++)
        n++;
    kg_str_release(&text);
    return n;
}

static uint64_t of_checkpoint(int rank, int ranks)
{
    const struct kg_share own = kg_share_of(pieces_of_checkpoint(), rank, ranks);

    return 8 * ((uint64_t)ranks - 1) * (uint64_t)(own.end - own.first + (rank == 0));
}

/* ---- counted against formula ---- */
static void compare(enum kg_dtype ct, bool cut, int moves, const char *const *extra)
{
    struct kg_model_opts opts = {.ct = ct};
    struct kg_model_config config;
    struct kg_model *m;

    NEED(kg_model_config_read(&config, DIGITS, err));
    NEED(kg_model_create(&m, &config, &opts, 7, err));
    for (int ranks = 2; ranks <= 4; ranks++) {
        struct sent one[RANKS_MOST], three[RANKS_MOST];

        run(one, ranks, "train.steps=1", extra);
        run(three, ranks, "train.steps=3", extra);
        for (int r = 0; r < ranks; r++) {
            assert_int_equal(three[r].bytes[HASHES], cut ? of_checkpoint(r, ranks) : 0);
            const struct sent s = of_step(m, r, ranks, cut, moves);

            for (int k = 0; k < HASHES; k++) {
                const uint64_t found = three[r].bytes[k] - one[r].bytes[k];

                if (found != STEPS * s.bytes[k])
                    fail_msg("%s, rank %d of %d: expected 2 x %llu bytes, found %llu",
                             names[k], r, ranks, (unsigned long long)s.bytes[k],
                             (unsigned long long)found);
            }
        }
    }
    kg_model_free(m);
}

static void a_step_sends_what_the_formula_says(void **state)
{
    static const char *const plain[] = {NULL};

    (void)state;
    compare(KG_BF16, true, 0, plain);
}

static void an_anchor_that_moves_sends_its_weights_too(void **state)
{
    static const char *const extra[] = {"model.dtype=fp32", "kl.estimator=k3",
                                        "kl.beta=0.05",     "anchor.kind=ema",
                                        "anchor.period=1",  NULL};

    (void)state;
    compare(KG_F32, true, 1, extra);
}

static void where_nothing_is_cut_all_get_the_sum(void **state)
{
    static const char *const extra[] = {"ranks.shard=none", NULL};

    (void)state;
    compare(KG_BF16, false, 0, extra);
}

static int setup(void **state)
{
    (void)state;
    counted = mmap(NULL, RANKS_MOST * sizeof *counted, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return counted == MAP_FAILED;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_sends_what_the_formula_says),
        cmocka_unit_test(an_anchor_that_moves_sends_its_weights_too),
        cmocka_unit_test(where_nothing_is_cut_all_get_the_sum),
    };
    static const char *const also[] = {
        "run.threads=1",       "train.lanes=8",      "data.val=", "algo.preset=grpo",
        "eval.at_start=false", "checkpoint.every=0", NULL};

    run_also = also;
    kg_threads_set(1); /* ranks are forked after a model is made */
    return cmocka_run_group_tests(tests, setup, NULL);
}
