/* A run over ranks with a device each is the run of one device: weights, moments, anchor
 * and log. Ranks exchange data through the host's memory; gradients and weights may go by
 * NCCL, here a stand-in for it. A run that lost a rank and was resumed on another number
 * of ranks, with the other link, must give the same results.
 *
 * Two backends stand for devices, each rank in its own process: `far`, whose memory the
 * host cannot touch, tries every path by which data travels; the emulated GPU kernels run
 * attention and products by the matrix instruction, on the smallest model that has them.
 */
#define ROOT "build/test-runs/ranks-device"
#include "ranks_run_testing.h"

#include "base/clock.h"
#include "bench/bench.h"
#include "data/json.h"
#include "emu/emu.h"
#include "emu/nccl_testing.h"
#include "tensor/selfcheck.h"

#define MODEL ROOT "/model"
#define NCCL  ROOT "/nccl"

/* All completions are wrong and the first anchor is the model, so only the entropy has a
 * gradient. */
static const char *const base[] = {"run.threads=1",
                                   "algo.entropy_coef=0.5",
                                   "model.dtype=bf16",
                                   "train.steps=1",
                                   "train.updates_per_step=1",
                                   "rollout.prompts=2",
                                   "rollout.samples=2",
                                   "rollout.max_tokens=4",
                                   "data.val=",
                                   "kl.estimator=k3",
                                   "kl.beta=0.05",
                                   "anchor.kind=ema",
                                   "anchor.period=1",
                                   NULL};

/* A process measures its machine's speed once, for the log. Measuring the CPU here serves
 * all processes that are forked later; emulated kernels would take 15 seconds. */
static void measure_once(void)
{
    double flops;

    NEED(kg_bench_compute_flops(&flops, kg_backend_cpu_variant(0), KG_BF16, err));
}

/* Writes a model of one layer with one head of 64. */
static int write_model(void **state)
{
    struct kg_model_opts opts = {.ct = KG_F32};
    struct kg_model_save save = {.dtype = KG_F32, .source_dir = DIGITS};
    struct kg_model_config c;
    struct kg_model *m;

    (void)state;
    kg_threads_set(1); /* this process will fork */
    measure_once();
    fresh(ROOT);
    NEED(kg_model_config_read(&c, DIGITS, err));
    c.hidden = 64;
    c.ffn = 64;
    c.layers = 1;
    c.heads = c.kv_heads = 1;
    c.head_dim = 64;
    c.init_range = 0.1f;
    NEED(kg_model_create(&m, &c, &opts, 5, err));
    NEED(kg_model_save(m, MODEL, &save, err));
    kg_model_free(m);
    return 0;
}

/* Trains on one rank; every step must have a gradient. */
static void train_alone(const char *const *extra)
{
    double norm[4];
    int n;

    fresh(ROOT "/1");
    train_on(1, ROOT "/1", false, extra);
    n = metrics_of(norm, 4, ROOT "/1", "optim/grad_norm");
    assert_true(n > 0);
    for (int i = 0; i < n; i++)
        assert_true(norm[i] > 0);
}

/* ---- memory that the host cannot touch ---- */

enum { MOST = 3 };
static const struct {
    const char *name;
    const char *extra[12];
    struct {
        int n;
        const char *also[4]; /* keys that change no bit */
        bool nccl;           /* NCCL, which changes no bit either */
    } ranks[MOST];
} runs[] = {
    {"cuts of weights, moments and anchor",
     {"train.lanes=3", "train.micro_tokens=16", "train.updates_per_step=2", NULL},
     {{2, {NULL}, false},
      {3, {"ranks.shard=none", NULL}, false},
      {3, {"ranks.shard=gradients", NULL}, false}}},
    {"gradients by buckets of a lane that goes from rank to rank",
     {"train.lanes=1", "train.micro_tokens=16", NULL},
     {{2, {"ranks.shard=gradients", NULL}, false},
      {3, {"ranks.shard=gradients", NULL}, true}}},
    {"weights, moments and anchor on the host",
     {"train.lanes=2", "optim.place=host", "anchor.place=host", NULL},
     {{2, {"ranks.shard=none", NULL}, false},
      {2, {NULL}, true},
      {2, {"ranks.shard=gradients", NULL}, true}}},
    {"a rank that samples beside those that train",
     {"train.lanes=2", "rollout.lag=1", "train.steps=3", NULL},
     {{2, {"ranks.rollout=1", NULL}, false}, {3, {"ranks.rollout=1", NULL}, true}}},
};

static void ranks_on_devices_make_the_run_of_one(void **state)
{
    static const struct upset joined = {.nccl = NCCL}, none;

    (void)state;
    setenv("KEDGE_TEST_BACKEND", "far", true);
    make_good_nccl(NCCL);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        const char *last;
        int64_t steps = 1;

        for (int k = 0; (last = runs[i].extra[k]); k++)
            if (strncmp(last, "train.steps=", 12) == 0)
                steps = atoi(last + 12);
        print_message("  %s\n", runs[i].name);
        train_alone(runs[i].extra);
        for (int k = 0; k < MOST && runs[i].ranks[k].n > 0; k++) {
            const char *extra[16];
            int n = 0;

            for (int j = 0; runs[i].extra[j]; j++)
                extra[n++] = runs[i].extra[j];
            for (int j = 0; runs[i].ranks[k].also[j]; j++)
                extra[n++] = runs[i].ranks[k].also[j];
            extra[n] = NULL;
            fresh(ROOT "/n");
            train_with(runs[i].ranks[k].n, ROOT "/n", false, extra,
                       runs[i].ranks[k].nccl ? &joined : &none);
            assert_same_run(ROOT "/1", ROOT "/n", steps);
        }
    }
}

/* ---- joined by NCCL ---- */

static void ranks_joined_by_nccl_make_the_run_of_one(void **state)
{
    static const char *const extra[] = {"train.lanes=5", "train.micro_tokens=16",
                                        "train.updates_per_step=2", NULL};
    static const char *const whole[] = {"train.lanes=5", "train.micro_tokens=16",
                                        "train.updates_per_step=2", "ranks.shard=none",
                                        NULL};
    static const char *const divided[] = {"train.lanes=5", "train.micro_tokens=16",
                                          "train.updates_per_step=2",
                                          "ranks.shard=gradients", NULL};
    static const char *const *const by[] = {extra, whole, divided};
    static const struct upset joined = {.nccl = NCCL};

    (void)state;
    setenv("KEDGE_TEST_BACKEND", "far", true);
    make_good_nccl(NCCL);
    train_alone(extra);
    for (int i = 0; i < 3; i++) {
        fresh(ROOT "/n");
        train_with(i ? 3 : 2, ROOT "/n", false, by[i], &joined);
        assert_same_run(ROOT "/1", ROOT "/n", 1);
    }
}

#define STANDS ROOT "/n/checkpoints/step-000001"

/* After the first checkpoint, that is in the second step, sending by NCCL fails. */
static void one_fails_to_send(int me)
{
    (void)me;
    setenv("FAKE_NCCL", "send@1", true);
    setenv("FAKE_NCCL_BEHIND", STANDS, true);
}

static void a_run_whose_link_fails_ends_with_one_line(void **state)
{
    static const char *const extra[] = {"train.lanes=2", "train.steps=2", NULL};
    static const struct upset upset = {
        .before = one_fails_to_send, .nccl = NCCL, .said = ROOT "/said"};
    pid_t child[2];
    int ended[2];
    struct kg_str said = {0};

    (void)state;
    setenv("KEDGE_TEST_BACKEND", "far", true);
    make_good_nccl(NCCL);
    fresh(ROOT "/n");
    start_ranks(child, 2, ROOT "/n", false, extra, &upset);
    ranks_wait(ended, child, 2);
    read_in(&said, ROOT, "said");
    for (int p = 0; p < 2; p++)
        assert_int_equal(WEXITSTATUS(ended[p]), 1);
    if (!strstr(kg_str_text(&said), "gradient exchange: nccl 2.28.9: unhandled system "
                                    "error"))
        fail_msg("%s", kg_str_text(&said));
    kg_str_release(&said);
}

/* ---- a rank that is lost ---- */

static void one_dies_sending(int me)
{
    (void)me;
    setenv("FAKE_NCCL", "dies@1", true);
    setenv("FAKE_NCCL_BEHIND", STANDS, true);
}

/* A run whose rank 1 is killed after its first checkpoint: during a send by NCCL, or at
 * any point. */
static void lose_one(int n, bool by_nccl, const char *const *extra)
{
    const struct upset upset = {.before = by_nccl ? one_dies_sending : NULL,
                                .nccl = by_nccl ? NCCL : NULL,
                                .wait_s = 60,
                                .said = ROOT "/said"};
    pid_t child[RANKS_MOST];
    int ended[RANKS_MOST];

    fresh(ROOT "/n");
    start_ranks(child, n, ROOT "/n", false, extra, &upset);
    if (!by_nccl) {
        wait_for(ROOT "/n", "checkpoints/step-000001", child[0]);
        kill(child[1], SIGKILL);
    }
    all_end(ended, child, n, -1);
    for (int p = 0; p < n; p++)
        if (p == 1)
            assert_true(WIFSIGNALED(ended[p]) && WTERMSIG(ended[p]) == SIGKILL);
        else
            assert_true(WIFEXITED(ended[p]) &&
                        WEXITSTATUS(ended[p]) == KG_RANKS_EXIT_LOST);
}

static void assert_text(const struct kg_json *entry, const char *name, const char *text)
{
    const char *found = kg_json_text(kg_json_get(entry, name), NULL);

    assert_string_equal(found ? found : "", text);
}

/* Checks entry i of the manifest's "ranks". */
static void assert_written(size_t i, int n, bool by_nccl, const char *since)
{
    struct kg_json_doc doc = {0};
    const struct kg_json *entry;
    char number[16];

    snprintf(number, sizeof number, "%d", n);
    NEED(kg_json_read(&doc, ROOT "/n/manifest.json", 1 << 20, err));
    entry = kg_json_at(kg_json_get(doc.root, "ranks"), i);
    assert_text(entry, "n", number);
    assert_text(entry, "over", "shared memory");
    assert_text(entry, "link", by_nccl ? "nccl" : "host");
    assert_text(entry, "nccl", by_nccl ? "2.28.9" : "");
    assert_text(entry, "library", by_nccl ? NCCL "/" KG_NCCL_LIBRARY : "");
    assert_text(entry, "since", since);
    kg_json_release(&doc);
}

/* A run that lost a rank, resumed on `then` ranks with the other link, must equal the run
 * of one. */
static void lost_and_resumed(int n, bool by_nccl, int then, const char *const *extra,
                             int steps)
{
    const struct upset other = {.nccl = by_nccl ? NULL : NCCL};

    lose_one(n, by_nccl, extra);
    assert_true(kg_file_exists(STANDS));
    train_with(then, ROOT "/n", true, extra, &other);
    assert_same_run(ROOT "/1", ROOT "/n", steps);
    assert_written(0, n, by_nccl, "");
    assert_written(1, then, !by_nccl, "step-000001");
}

static void a_killed_rank_leaves_no_trace_by_another_number_and_link(void **state)
{
    static const char *const extra[] = {"train.lanes=4", "train.micro_tokens=16",
                                        "train.steps=3", NULL};

    (void)state;
    setenv("KEDGE_TEST_BACKEND", "far", true);
    make_good_nccl(NCCL);
    train_alone(extra);
    lost_and_resumed(3, true, 2, extra, 3);
    lost_and_resumed(2, false, 4, extra, 3);
}

/* ---- emulated kernels ---- */

#define EMULATED                                                                         \
    "model.path=" MODEL, "train.lanes=2", "train.micro_tokens=16",                       \
        "rollout.max_tokens=3", "train.steps=2"

static void ranks_on_emulated_kernels_make_the_run_of_one(void **state)
{
    static const char *const extra[] = {EMULATED, NULL};
    static const char *const divided[] = {EMULATED, "ranks.shard=gradients", NULL};
    struct kg_json_doc manifest = {0};

    (void)state;
    if (!kg_emu_open) {
        print_message("skip: no kernels are emulated in this build\n");
        skip();
    }
    setenv("KEDGE_TEST_BACKEND", "emu", true);
    setenv("KEDGE_TEST_PRODUCTS", "own", false);
    make_good_nccl(NCCL);
    train_alone(extra);
    fresh(ROOT "/n");
    train_on(2, ROOT "/n", false, extra);
    assert_same_run(ROOT "/1", ROOT "/n", 2);
    lose_one(2, true, extra);
    train_on(3, ROOT "/n", true, divided);
    assert_same_run(ROOT "/1", ROOT "/n", 2);
    NEED(kg_json_read(&manifest, ROOT "/n/manifest.json", 1 << 20, err));
    assert_text(kg_json_at(kg_json_get(manifest.root, "devices"), 0), "gpu", "emulated");
    kg_json_release(&manifest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_on_devices_make_the_run_of_one),
        cmocka_unit_test(ranks_joined_by_nccl_make_the_run_of_one),
        cmocka_unit_test(a_run_whose_link_fails_ends_with_one_line),
        cmocka_unit_test(a_killed_rank_leaves_no_trace_by_another_number_and_link),
        cmocka_unit_test(ranks_on_emulated_kernels_make_the_run_of_one),
    };

    run_also = base;
    return cmocka_run_group_tests(tests, write_model, NULL);
}
