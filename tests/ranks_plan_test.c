/* The memory per rank in docs/ranks.md and in the heads of recipes, against the plans:
 * models of 7 to 30 billion parameters, by their shapes alone.
 */
#define ROOT "build/test-runs/ranks-plan"
#include "run_testing.h"

#include "base/clock.h"

#define DENSE_7B    ROOT "/7b"
#define DENSE_8B    ROOT "/8b"
#define DENSE_32B   ROOT "/32b"
#define EXPERTS_30B "tests/data/configs/qwen3_30b_a3b"
#define RECIPE(name, model)                                                              \
    {                                                                                    \
        "recipes/" name ".yaml", { "model.path=" model, "run.dir=" ROOT "/plan" }        \
    }

/* ---- runs ---- */

static const char qwen2[] =
    "{\"model_type\": \"qwen2\", \"hidden_size\": 3584, \"intermediate_size\": 18944, "
    "\"num_hidden_layers\": 28, \"num_attention_heads\": 28, \"num_key_value_heads\": 4, "
    "\"vocab_size\": 152064, \"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-06, "
    "\"rope_theta\": 1000000.0, \"max_position_embeddings\": 131072, "
    "\"eos_token_id\": 151643, \"hidden_act\": \"silu\", \"torch_dtype\": \"bfloat16\"}";
static const char qwen3[] =
    "{\"model_type\": \"qwen3\", \"hidden_size\": 4096, \"intermediate_size\": 12288, "
    "\"num_hidden_layers\": 36, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, "
    "\"head_dim\": 128, \"vocab_size\": 151936, \"tie_word_embeddings\": false, "
    "\"rms_norm_eps\": 1e-06, \"rope_theta\": 1000000.0, "
    "\"max_position_embeddings\": 32768, \"eos_token_id\": 151643, "
    "\"hidden_act\": \"silu\", \"torch_dtype\": \"bfloat16\"}";

static const char qwen2_32b[] =
    "{\"model_type\": \"qwen2\", \"hidden_size\": 5120, \"intermediate_size\": 27648, "
    "\"num_hidden_layers\": 64, \"num_attention_heads\": 40, \"num_key_value_heads\": 8, "
    "\"vocab_size\": 152064, \"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-06, "
    "\"rope_theta\": 1000000.0, \"max_position_embeddings\": 131072, "
    "\"eos_token_id\": 151643, \"hidden_act\": \"silu\", \"torch_dtype\": \"bfloat16\"}";

static void write_shape(const char *dir, const char *config)
{
    NEED(kg_file_make_dirs(dir, err));
    NEED(kg_file_write_atomic(kg_path_in(dir, "config.json").text, config, strlen(config),
                              err));
}

static int write_shapes(void **state)
{
    (void)state;
    kg_threads_set(2); /* each thread has memory of its own */
    fresh(ROOT);
    write_shape(DENSE_7B, qwen2);
    write_shape(DENSE_8B, qwen3);
    write_shape(DENSE_32B, qwen2_32b);
    return 0;
}

enum { KEYS = 24 };
struct run {
    const char *recipe; /* NULL: none */
    const char *keys[KEYS];
};
/* EMA-PG as in docs/ranks.md, and recipes unchanged. */
static const struct run ema_pg = {
    NULL,
    {"model.path=" DENSE_7B, "model.dtype=bf16", "run.dir=" ROOT "/plan",
     "task.name=math", "data.train=train.jsonl", "data.val=val.jsonl",
     "rollout.prompts=64", "rollout.samples=8", "rollout.max_tokens=2048",
     "anchor.kind=ema", "anchor.eta=0.9", "anchor.period=10", "kl.estimator=topk-reverse",
     "kl.top_k=32", "kl.beta=0.001", "train.steps=100", "train.micro_tokens=8192"}};
static const struct run dense_8b = RECIPE("dppo-math-8b", DENSE_8B);
static const struct run experts_30b = RECIPE("dppo-math-30b", EXPERTS_30B);

/* ---- a plan ---- */

struct plan {
    double whole, cuts, everywhere, sums, cache; /* GB, as they are printed */
    double products, gradients;
};

static double item(const struct kg_str *plan, const char *name)
{
    const char *at = strstr(kg_str_text(plan), name);

    return at ? strtod(at + strlen(name), NULL) : 0;
}

static struct plan plan_of(const struct run *run, int ranks, int lanes, const char *shard)
{
    char lanes_key[32], shard_key[40];
    char *keys[KEYS + 2];
    struct kg_config *config = NULL;
    struct kg_str out = {0};
    struct plan p;
    size_t n = 0;

    while (run->keys[n]) {
        keys[n] = (char *)(uintptr_t)run->keys[n];
        n++;
    }
    snprintf(lanes_key, sizeof lanes_key, "train.lanes=%d", lanes);
    snprintf(shard_key, sizeof shard_key, "ranks.shard=%s", shard);
    keys[n++] = lanes_key;
    keys[n++] = shard_key;
    NEED(kg_train_config(&config, run->recipe, keys, n, err));
    NEED(kg_train_plan_memory(&out, config, false, ranks, 0, err));
    p = (struct plan){.whole = item(&out, "\nmemory      "),
                      .cache = item(&out, "KV cache "),
                      .products = item(&out, "weights for products "),
                      .gradients = item(&out, "gradients "),
                      .sums = item(&out, "sums of lanes ")};
    p.cuts = item(&out, "weights (fp32) ") + item(&out, "optimizer ") +
             item(&out, "anchor (fp32) ");
    p.everywhere = p.products + p.gradients + item(&out, "anchor for products ");
    kg_str_release(&out);
    kg_config_free(config);
    return p;
}

static void assert_has(const char *path, const char *expected)
{
    struct kg_str text = {0};

    NEED(kg_file_read(&text, path, 1 << 20, err));
    if (!strstr(kg_str_text(&text), expected))
        fail_msg("%s lacks: %s", path, expected);
    kg_str_release(&text);
}

#define PAGE "docs/ranks.md"

/* ---- tests ---- */

static void the_table_of_what_is_divided_is_what_plans_say(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        const struct plan p = plan_of(&ema_pg, ranks, 8, "optimizer");
        char row[128], sums[16];

        snprintf(sums, sizeof sums, p.sums > 0 ? "%.2f" : "%.0f", p.sums);
        snprintf(row, sizeof row, "\n| %d | %.2f | %.2f | %.2f | %s |\n", ranks, p.whole,
                 p.cuts, p.everywhere, sums);
        assert_has(PAGE, row);
    }
}

static void the_table_of_divided_gradients_is_what_plans_say(void **state)
{
    static const struct {
        const char *name;
        const struct run *run;
        int ranks, lanes;
    } rows[] = {{"7B, EMA-PG", &ema_pg, 2, 8},
                {"", &ema_pg, 4, 8},
                {"", &ema_pg, 8, 8},
                {"8B, `recipes/dppo-math-8b.yaml`", &dense_8b, 8, 8},
                {"30B-A3B, `recipes/dppo-math-30b.yaml`", &experts_30b, 8, 8},
                {"", &experts_30b, 16, 16}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int ranks = rows[i].ranks, lanes = rows[i].lanes;
        char row[160];

        snprintf(row, sizeof row, "\n| %s%s| %d | %d | %.2f | %.2f | %.2f |\n",
                 rows[i].name, *rows[i].name ? " " : "", ranks, lanes,
                 plan_of(rows[i].run, ranks, lanes, "optimizer").whole,
                 plan_of(rows[i].run, ranks, lanes, "gradients").whole,
                 plan_of(rows[i].run, ranks, 1, "gradients").whole);
        assert_has(PAGE, row);
    }
}

static void what_is_said_of_recipes_is_what_plans_say(void **state)
{
    const struct plan one = plan_of(&dense_8b, 1, 8, "optimizer");
    const struct plan eight = plan_of(&dense_8b, 8, 8, "optimizer");
    const struct plan sixteen = plan_of(&experts_30b, 16, 16, "optimizer");
    char text[320];

    (void)state;
    snprintf(text, sizeof text,
             "takes %.2f GB in one process and %.2f GB on each of 8\n  ranks. %.2f GB of",
             one.whole, eight.whole, eight.cache);
    assert_has(PAGE, text);
    snprintf(text, sizeof text,
             "takes %.2f GB on each of 16 ranks,\n  including %.2f GB for weights of "
             "products and gradient and %.2f GB for the KV cache",
             sixteen.whole, sixteen.products + sixteen.gradients, sixteen.cache);
    assert_has(PAGE, text);
    snprintf(
        text, sizeof text,
        "%.2f of one process with train.lanes=8, %.2f of each of 8 ranks, %.2f with\n"
        "# gradients divided, %.2f with these and one lane; %.2f of each are",
        one.whole, eight.whole, plan_of(&dense_8b, 8, 8, "gradients").whole,
        plan_of(&dense_8b, 8, 1, "gradients").whole, eight.cache);
    assert_has(dense_8b.recipe, text);
}

/* With one lane per rank. */
static void what_heads_of_recipes_say_of_ranks_is_what_plans_say(void **state)
{
    static const struct {
        struct run run;
        int ranks;
    } heads[] = {{RECIPE("dppo-math-30b", EXPERTS_30B), 16},
                 {RECIPE("dppo-verl", EXPERTS_30B), 16},
                 {RECIPE("dppo-math-30b-lora", EXPERTS_30B), 8},
                 {RECIPE("dapo-32b", DENSE_32B), 16}};

    (void)state;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        const struct run *run = &heads[i].run;
        const int n = heads[i].ranks;
        const struct plan whole = plan_of(run, n, n, "optimizer");
        char text[320];

        snprintf(text, sizeof text,
                 "of each of %d ranks with train.lanes=%d: %.2f, with gradients divided "
                 "%.2f, with\n# these and one lane %.2f; %.2f of each are the KV cache",
                 n, n, whole.whole, plan_of(run, n, n, "gradients").whole,
                 plan_of(run, n, 1, "gradients").whole, whole.cache);
        assert_has(run->recipe, text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_of_what_is_divided_is_what_plans_say),
        cmocka_unit_test(the_table_of_divided_gradients_is_what_plans_say),
        cmocka_unit_test(what_is_said_of_recipes_is_what_plans_say),
        cmocka_unit_test(what_heads_of_recipes_say_of_ranks_is_what_plans_say),
    };

    return cmocka_run_group_tests(tests, write_shapes, NULL);
}
