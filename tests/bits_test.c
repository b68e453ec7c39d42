/* The same bits on every machine: whole runs whose weights are known by hash, on every
 * instruction set of this processor. The hashes hold for any compiler, optimization level
 * and C library. A commit that means to change arithmetic changes them here and says so.
 *
 * The hashes of runs that train all weights are older than lanes and ranks, and hold with
 * train.lanes=1 and one process: lanes, trees and exchanges changed no bit of such a run.
 */
#define ROOT "build/test-runs/bits"
#include "run_testing.h"

#include "base/hash.h"
#include "tensor/backend_testing.h"
#include "tensor/selfcheck.h"

#include <inttypes.h>

struct known {
    const char *name;
    const char *extra[12]; /* ends with NULL */
    uint64_t weights;      /* of the checkpoint after two steps */
};

/* Each completion with its own copy of the prompt, as before completions shared it. */
#define APART "train.share_prefix=false"

static const struct known runs[] = {
    {"grpo", {"model.dtype=bf16", APART}, 0xa9a27d66a9a1debb},
    {"grpo-fp32", {"model.dtype=fp32", APART}, 0x1ab4a6f9df303bab},
    {"top-k-and-average",
     {"model.dtype=bf16", "algo.preset=ema-pg", "optim.kind=schedule-free", "sft.steps=2",
      "sft.batch=8", "optim.warmup_steps=2", APART},
     0xf6acac9e9bc02f1e},
    {"exact-kl-in-a-nucleus",
     {"model.dtype=bf16", "kl.estimator=exact-reverse", "anchor.kind=ema",
      "rollout.top_p=0.9", APART},
     0x8780a3ee5cb1ac64},
    {"adapters",
     {"checkpoint.dtype=bf16", "model.dtype=bf16", "lora.rank=4", "lora.alpha=8",
      "algo.preset=ema-pg", "sft.steps=2", "sft.batch=8", APART},
     0xcd34b29595504aab},
    {"shared-prompts", {"model.dtype=bf16"}, 0x64970d71b6bfbe29},
    {"shared-prompts-fp32", {"model.dtype=fp32"}, 0x1ebf902b3f62769e},
    {"shared-prompts-exact-kl",
     {"model.dtype=bf16", "kl.estimator=exact-reverse", "anchor.kind=ema", "sft.steps=2",
      "sft.batch=8"},
     0xcd4da2155e10cee7},
};

/* The file of the trained weights: the model's, or the adapter's. */
static const char *weights_of(const char *dir)
{
    static struct kg_path path;

    path = kg_path_in(dir, "checkpoints/latest/model/model.safetensors");
    if (!kg_file_exists(path.text))
        path = kg_path_in(dir, "checkpoints/latest/adapter/adapter_model.safetensors");
    return path.text;
}

/* Trains run k on the instruction set in use.   returns whether the hash is the known
 * one */
static bool as_known(const struct known *k, int variant)
{
    char dir[128], by[128];
    uint64_t hash, bytes;

    snprintf(dir, sizeof dir, ROOT "/%s-%d", k->name, variant);
    fresh(dir);
    must_train(dir, false, k->extra);
    NEED(kg_hash_file(&hash, &bytes, weights_of(dir), err));
    backend()->describe(by, sizeof by);
    if (hash != k->weights)
        print_error("%s, %s: expected weights of hash 0x%016" PRIx64
                    ", found 0x%016" PRIx64 "\n",
                    k->name, by, k->weights, hash);
    return hash == k->weights;
}

static void weights_are_those_of_every_machine(void **state)
{
    int wrong = 0;

    (void)state;
    for (int v = 0; kg_backend_cpu_use(v) && (v == 0 || !by_kernels()); v++)
        for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
            wrong += !as_known(&runs[i], v);
    kg_backend_cpu_use(0);
    assert_int_equal(wrong, 0);
}

int main(void)
{
    static const char *const small[] = {"train.steps=2", "rollout.prompts=2",
                                        "rollout.max_tokens=8", "eval.problems=1", NULL};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_those_of_every_machine),
    };

    run_also = small;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
