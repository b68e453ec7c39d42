/* A run over ranks is the run of one: the same checkpoints, dumps and log for every
 * number of ranks and every algorithm; and checkpoints that one rank does not finish.
 * Other faults: tests/ranks_faults_test.c.
 */
#define ROOT "build/test-runs/ranks"
#include "ranks_run_testing.h"

#include "data/manifest.h"
#include "train/agent_testing.h"

#include <sys/resource.h>

#define SKIPPED "rollouts/skipped-000004.jsonl.zst"

/* Returns a score and a further number, whose name depends on the length. */
#define GRADER                                                                           \
    "task.command=awk '{printf(\"{\\\"score\\\": %d, \\\"w%d\\\": 2}\\n\", length($0) "  \
    "% 3, "                                                                              \
    "length($0) % 5); fflush()}'"

/* Largest file, in bytes, that the next started rank may write, as on a full disk; 0: no
 * limit. */
static rlim_t largest_file;

static void limit_files(void)
{
    const struct rlimit most = {largest_file, largest_file};

    if (largest_file == 0)
        return;
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &most) != 0)
        _exit(127);
}

static pid_t start_rank(struct rank_sockets *s, int me, const char *dir, bool resume,
                        const char *const *extra)
{
    static const struct upset none;
    struct kg_config *config = config_of(dir, extra);
    struct kg_ranks ranks;
    pid_t child = fork();

    if (child == 0) {
        ranks_part(s, me);
        limit_files();
        NEED_IN_CHILD(kg_ranks_on_sockets(&ranks, me, s->n, s->fd[me], s->rings, err));
        be_rank(&ranks, config, resume, &none);
    }
    kg_config_free(config);
    return child;
}

/* Checks that every file of the newest checkpoint of b_dir is intact and has the bytes of
 * a_dir's, by the hashes. state.json may differ, because it has the length of the log. */
static void assert_same_checkpoint(const char *a_dir, const char *b_dir)
{
    struct kg_str a = {0}, b = {0};
    const char *p, *q;
    size_t n;

    NEED(kg_manifest_check(NULL, kg_path_in(b_dir, "checkpoints/latest").text, err));
    read_in(&a, a_dir, "checkpoints/latest/manifest.json");
    read_in(&b, b_dir, "checkpoints/latest/manifest.json");
    for (p = a.data, q = b.data; *p && *q;
         p += n + (p[n] != 0), q += strcspn(q, "\n") + 1) {
        n = strcspn(p, "\n");
        if (!strstr(p, "\"state.json\"") || strstr(p, "\"state.json\"") > p + n)
            assert_memory_equal(p, q, n);
    }
    kg_str_release(&a);
    kg_str_release(&b);
}

enum { MOST = 4 };
static const struct recipe {
    const char *name;
    int ranks[MOST]; /* numbers of ranks to train on */
    const char *extra[28];
} recipes[] = {
    {"two updates, an EMA anchor at each",
     {2, 3, 4, 5},
     {"train.lanes=8", "train.micro_tokens=64", "kl.estimator=k3", "kl.beta=0.05",
      "anchor.kind=ema", "anchor.period=1", NULL}},
    {"fp32, dynamic sampling, exact KL, selection over the batch, a copied anchor",
     {2, 3},
     {"train.lanes=5", "model.dtype=fp32", "rollout.dynamic=true",
      "rollout.dynamic_metric=reward", "sft.steps=6", "sft.lr=1e-3",
      "rollout.oversample=1.5", "rollout.max_refills=20", "algo.surrogate=clip-cov",
      "algo.cov_ratio=0.2", "kl.estimator=exact-reverse", "kl.beta=0.05",
      "anchor.kind=copy", "anchor.period=2", NULL}},
    {"warm start, few prompts, lag, schedule-free, greedy baseline",
     {2, 5},
     {"train.lanes=6", "sft.steps=3", "sft.batch=8", "rollout.prompts=2", "rollout.lag=1",
      "optim.kind=schedule-free", "algo.advantage=remax", "anchor.kind=ema",
      "kl.estimator=k2", "kl.beta=0.01", "rollout.top_p=0.9", NULL}},
    {"adapters, with a warm start and an EMA anchor of theirs",
     {2, 3},
     {"train.lanes=6", "lora.rank=4", "lora.targets=[q_proj, down_proj]",
      "checkpoint.dtype=bf16", "sft.steps=3", "sft.batch=8", "kl.estimator=k3",
      "kl.beta=0.05", "anchor.kind=ema", NULL}},
    {"rewards of programs that say more, recomputed ratios, KL in the advantage",
     {3},
     {"train.lanes=8", "task.name=external", GRADER,
      "task.rewards=[a=external, b=external]", "algo.tis=2", "train.old_logp=recompute",
      "kl.in=advantage-future", "kl.estimator=k1", "kl.beta=0.01", "anchor.kind=ema",
      NULL}},
    {"episodes with a tool, sampled by windows, learned by parts",
     {2, 4},
     {"train.lanes=4", EPISODES, "episode.window=72", NULL}},
    {"episodes with a tool that span versions",
     {2, 3, 5},
     {"train.lanes=5", EPISODES, "rollout.max_staleness=2", NULL}},
    {"adapters in so few elements that most cuts are empty, a warm start, bf16 moments",
     {2, 5},
     {"train.lanes=5", "lora.rank=2", "checkpoint.dtype=bf16", "optim.moments=bf16",
      "sft.steps=2", "sft.batch=8", "kl.estimator=k3", "kl.beta=0.05", "anchor.kind=ema",
      "anchor.period=1", NULL}},
    {"bf16 checkpoints and moments, decay of matrices alone, a lagging fp32 sampler",
     {3},
     {"train.lanes=4", "checkpoint.dtype=bf16", "optim.moments=bf16",
      "optim.weight_decay=0.1", "optim.decay=matrices", "rollout.dtype=fp32",
      "rollout.lag=1", "kl.estimator=k3", "kl.beta=0.05", "anchor.kind=ema", NULL}},
    {"weights that blow up: the steps behind that are skipped by all",
     {3},
     {"train.lanes=4", "optim.lr=10", "optim.weight_decay=10", "train.max_skips=9",
      "kl.estimator=k3", "kl.beta=0.05", "anchor.kind=ema", "data.val=", NULL}},
    {"gradients divided, more ranks than lanes, lanes of many micro-batches",
     {2, 3, 4, 5},
     {"train.lanes=3", "ranks.shard=gradients", "train.micro_tokens=64",
      "kl.estimator=k3", "kl.beta=0.05", "anchor.kind=ema", "anchor.period=1", NULL}},
    {"gradients divided, one lane",
     {3},
     {"ranks.shard=gradients", "train.micro_tokens=64", "sft.steps=2", "sft.batch=8",
      "kl.estimator=k3", "kl.beta=0.05", "anchor.kind=ema", NULL}},
    {"completions that span versions, recorded Top-k ids",
     {2, 3, 5},
     {"train.lanes=6", "rollout.max_staleness=2", "rollout.prompts=2", "sft.steps=3",
      "sft.batch=8", "algo.preset=ema-pg", "kl.beta=0.05", "anchor.period=1", NULL}},
    {"completions that span versions behind a lag",
     {4},
     {"train.lanes=4", "rollout.max_staleness=3", "rollout.lag=1", "kl.estimator=k3",
      "kl.beta=0.05", "anchor.kind=ema", NULL}},
    {"nothing divided",
     {3},
     {"train.lanes=4", "ranks.shard=none", "kl.estimator=k3", "kl.beta=0.05",
      "anchor.kind=ema", NULL}},
};

/* A run on `ranks` ranks must equal the run in ROOT/1. */
static void assert_as_one(int ranks, const char *const *extra)
{
    fresh(ROOT "/n");
    train_on(ranks, ROOT "/n", false, extra);
    assert_same_run(ROOT "/1", ROOT "/n", 4);
    assert_same_checkpoint(ROOT "/1", ROOT "/n");
    if (kg_file_exists(ROOT "/1/" SKIPPED))
        assert_same_file(ROOT "/1", ROOT "/n", SKIPPED);
}

enum { DIVIDED = sizeof recipes->extra / sizeof *recipes->extra + 1 };

/* divided <- the recipe with ranks.shard=gradients.   returns false if it sets
 * ranks.shard itself */
static bool divides_gradients(const char **divided, const char *const *extra)
{
    size_t n = 0;

    for (; extra[n]; n++) {
        divided[n] = extra[n];
        if (strncmp(extra[n], "ranks.shard", strlen("ranks.shard")) == 0)
            return false;
    }
    divided[n] = "ranks.shard=gradients";
    divided[n + 1] = NULL;
    return true;
}

static void every_number_of_ranks_makes_the_run_of_one(void **state)
{
    int skipped = 0, number = 0;

    (void)state;
    for (const struct recipe *r = recipes; r < recipes + sizeof recipes / sizeof *recipes;
         r++, number++) {
        const char *divided[DIVIDED];

        print_message("  %s\n", r->name);
        fresh(ROOT "/1");
        train_on(1, ROOT "/1", false, r->extra);
        skipped += kg_file_exists(ROOT "/1/" SKIPPED);
        for (int i = 0; i < MOST && r->ranks[i] > 0; i++)
            assert_as_one(r->ranks[i], r->extra);
        if (divides_gradients(divided, r->extra))
            assert_as_one(2 + number % 4, divided);
    }
    assert_int_equal(skipped, 1);
}

/* ---- faults ---- */

static void kill_one_as_it_writes(const char *const *extra)
{
    struct kg_path folder = kg_path_in(ROOT, "n/checkpoints");
    struct rank_sockets s;
    int ended;
    pid_t child[3];

    fresh(ROOT "/n");
    ranks_join(&s, 3);
    for (int r = 0; r < 3; r++)
        child[r] = start_rank(&s, r, ROOT "/n", false, extra);
    ranks_part(&s, -1);
    while (!kg_file_exists(kg_path_in(folder.text, "step-000001").text) ||
           !kg_file_is_dir(kg_path_in(folder.text, ".saving").text))
        usleep(100);
    kill(child[2], SIGSTOP); /* as the second save begins */
    usleep(300000);
    assert_true(kg_file_is_dir(kg_path_in(folder.text, ".saving").text));
    assert_false(kg_file_exists(kg_path_in(folder.text, "step-000002").text));
    kill(child[2], SIGKILL);
    for (int r = 0; r < 3; r++)
        assert_int_equal(waitpid(child[r], &ended, 0), child[r]);
    NEED(kg_manifest_check(NULL, kg_path_in(folder.text, "latest").text, err));
}

/* A checkpoint gets its name only after all ranks have written their parts. If a rank is
 * killed while it writes, the previous checkpoint stays intact, and two ranks resume from
 * it with the other kind of sharding. */
static void a_rank_killed_as_it_writes_leaves_the_checkpoint_before(void **state)
{
    const char *const *extra = recipes[0].extra;
    const char *divided[DIVIDED];

    (void)state;
    assert_true(divides_gradients(divided, extra));
    fresh(ROOT "/1");
    train_on(1, ROOT "/1", false, extra);
    for (int first = 0; first < 2; first++) {
        kill_one_as_it_writes(first ? divided : extra);
        train_on(2, ROOT "/n", true, first ? extra : divided);
        assert_same_run(ROOT "/1", ROOT "/n", 4);
        assert_same_checkpoint(ROOT "/1", ROOT "/n");
    }
}

/* If a rank cannot write its part, all ranks end and nothing of that checkpoint
 * remains. */
static void a_rank_that_cannot_write_ends_all(void **state)
{
    const char *const *extra = recipes[0].extra;
    struct rank_sockets s;
    int ended;
    pid_t child[3];

    (void)state;
    fresh(ROOT "/n");
    ranks_join(&s, 3);
    for (int r = 0; r < 3; r++) {
        largest_file = r == 2 ? 1 << 20 : 0;
        child[r] = start_rank(&s, r, ROOT "/n", false, extra);
    }
    largest_file = 0;
    ranks_part(&s, -1);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(waitpid(child[r], &ended, 0), child[r]);
        assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 1);
    }
    assert_false(kg_file_exists(ROOT "/n/checkpoints/.saving"));
    assert_false(kg_file_exists(ROOT "/n/checkpoints/latest"));
}

/* ---- the program ---- */

/* Runs `kedge NAME --ranks N` with the recipe; NAME is train or distill.   returns its
 * exit status */
static int kedge_does(const char *name, const char *ranks, const char *dir,
                      const char *const *extra, char *said, size_t size)
{
    char command[4096];
    size_t n = (size_t)snprintf(command, sizeof command,
                                "./kedge %s --ranks %s run.dir=%s", name, ranks, dir);
    const char *const *const lists[] = {run_base, run_also, extra};
    FILE *pipe;

    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (const char *const *a = lists[i]; a && *a; a++)
            n += (size_t)snprintf(command + n, sizeof command - n, " '%s'", *a);
    snprintf(command + n, sizeof command - n, " 2>&1");
    pipe = popen(command, "r");
    assert_non_null(pipe);
    said[fread(said, 1, size - 1, pipe)] = '\0';
    return WEXITSTATUS(pclose(pipe));
}

static int kedge_on(const char *ranks, const char *dir, const char *const *extra,
                    char *said, size_t size)
{
    return kedge_does("train", ranks, dir, extra, said, size);
}

static int how_often(const char *text, const char *what)
{
    int n = 0;

    for (const char *at = text; (at = strstr(at, what)); at++)
        n++;
    return n;
}

static void the_program_trains_as_several_processes(void **state)
{
    static char said[1 << 16];
    static const char *const few[] = {"train.lanes=2", NULL};
    static const char *const host[] = {"train.lanes=2",     "kl.estimator=k3",
                                       "kl.beta=0.05",      "anchor.kind=ema",
                                       "anchor.place=host", NULL};

    (void)state;
    if (!kg_file_exists("./kedge")) {
        print_message("skip: ./kedge is not built\n");
        skip();
    }
    fresh(ROOT "/1");
    train_on(1, ROOT "/1", false, recipes[0].extra);
    fresh(ROOT "/n");
    assert_int_equal(kedge_on("3", ROOT "/n", recipes[0].extra, said, sizeof said), 0);
    assert_same_run(ROOT "/1", ROOT "/n", 4);
    assert_int_equal(how_often(said, "step 4 val"), 1); /* only one rank logs */
    assert_true(how_often(said, "  slowest rank ") > 0);
    fresh(ROOT "/few");
    assert_int_equal(kedge_on("3", ROOT "/few", few, said, sizeof said), 1);
    assert_int_equal(how_often(said, "at least one for each of 3 ranks, found 2"), 1);
    assert_false(kg_file_exists(ROOT "/few/config.yaml"));
    assert_int_equal(kedge_on("2", ROOT "/few", host, said, sizeof said), 1);
    assert_int_equal(how_often(said, "device, or ranks.shard=none, found host"), 1);
    assert_false(kg_file_exists(ROOT "/few/config.yaml"));
}

/* On the student's own completions and on those of a file. */
static void distillation_over_ranks_is_that_of_one(void **state)
{
    static const char *const kinds[][14] = {
        {"anchor.path=" ROOT "/teacher/checkpoints/latest/model", "kl.top_k=6",
         "train.steps=2", "train.lanes=4", "train.micro_tokens=64", "rollout.samples=1",
         "train.updates_per_step=1", NULL},
        {"anchor.path=" ROOT "/teacher/checkpoints/latest/model", "kl.top_k=6",
         "train.steps=2", "train.lanes=4", "train.micro_tokens=64", "rollout.samples=1",
         "train.updates_per_step=1", "rollout.data=" DIGITS "/train.jsonl",
         "data.train=", "data.template={prompt}S", NULL}};
    static const char *const sft[] = {"sft.steps=4", "sft.lr=1e-3", "train.steps=0",
                                      "eval.at_start=false", NULL};
    static const char *const files[] = {"checkpoints/latest/model/model.safetensors",
                                        "checkpoints/latest/state.safetensors",
                                        "rollouts/step-000002.jsonl.zst"};
    static char said[1 << 16];

    (void)state;
    if (!kg_file_exists("./kedge")) {
        print_message("skip: ./kedge is not built\n");
        skip();
    }
    train_on(1, ROOT "/teacher", false, sft);
    for (int kind = 0; kind < 2; kind++)
        for (int ranks = 1; ranks <= 3; ranks++) {
            const char *dir = ranks == 1 ? ROOT "/1" : ROOT "/n";
            const char number[] = {(char)('0' + ranks), '\0'};

            fresh(dir);
            if (kedge_does("distill", number, dir, kinds[kind], said, sizeof said) != 0)
                fail_msg("%s", said);
            for (int i = 0; i < 3 && ranks > 1; i++)
                assert_same_file(ROOT "/1", dir, files[i]);
            assert_same_log(ROOT "/1", dir);
            assert_same_checkpoint(ROOT "/1", dir);
        }
}

/* The largest number of ranks: most have no prompt and few samples, and a shard of few
 * pieces or none. */
static void sixty_four_ranks_make_the_run_of_one(void **state)
{
    static char said[1 << 16];
    static const char *const many[] = {"train.lanes=64",  "train.steps=1",
                                       "kl.estimator=k3", "kl.beta=0.05",
                                       "anchor.kind=ema", NULL};

    (void)state;
    if (!kg_file_exists("./kedge")) {
        print_message("skip: ./kedge is not built\n");
        skip();
    }
    fresh(ROOT "/1");
    train_on(1, ROOT "/1", false, many);
    fresh(ROOT "/n");
    assert_int_equal(kedge_on("64", ROOT "/n", many, said, sizeof said), 0);
    assert_same_run(ROOT "/1", ROOT "/n", 1);
}

static int make_policy(void **state)
{
    (void)state;
    fresh(ROOT);
    return make_agent_apart(ROOT, "1 + 2 = 3 and 4 * 5 = 20 <result> </result>", 7,
                            false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_ranks_makes_the_run_of_one),
        cmocka_unit_test(the_program_trains_as_several_processes),
        cmocka_unit_test(sixty_four_ranks_make_the_run_of_one),
        cmocka_unit_test(distillation_over_ranks_is_that_of_one),
        cmocka_unit_test(a_rank_killed_as_it_writes_leaves_the_checkpoint_before),
        cmocka_unit_test(a_rank_that_cannot_write_ends_all),
    };
    static const char *const also[] = {"run.threads=1", NULL};

    run_also = also;
    return cmocka_run_group_tests(tests, make_policy, NULL);
}
