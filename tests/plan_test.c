/* The list of a run's memory (train/open/memory.h): compared with the bytes that a run
 * takes, on memory that the host cannot touch and on emulated kernels; for models of 1.5
 * to 14 billion parameters, without weights; and as the reason to refuse a run. */
#define ROOT  "build/test-runs/plan"
#define MODEL ROOT "/model"
#include "run_testing.h"

#include "emu/pages.h"
#include "train/open/memory.h"

static struct kg_memory memory_of(const char *dir, const char *const *extra)
{
    struct kg_config *config = config_of(dir, extra);
    struct kg_memory m;
    struct kg_run run;

    NEED(kg_run_open(&run, config, err));
    kg_run_memory(&m, &run);
    kg_run_close(&run);
    kg_config_free(config);
    return m;
}

static uint64_t there(const struct kg_memory *m, const char *what)
{
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->item[i].what, what) == 0)
            return m->item[i].bytes.there;
    return 0;
}

/* ---- against the bytes that a run takes ---- */

/* bytes that the list leaves out: block tables, frequencies, a piece of a checkpoint in
 * transfer */
enum { REMAINDER = 64 << 10 };

/* scratch: bytes that operations may take here, at most the planned ones */
static void assert_taken(const char *const *extra, uint64_t scratch)
{
    struct kg_memory m = memory_of(ROOT "/taken", extra);
    uint64_t listed = m.sum.there - there(&m, KG_MEMORY_OPERATIONS), held, taken;

    assert_true(scratch < there(&m, KG_MEMORY_OPERATIONS));
    fresh(ROOT "/taken");
    held = kg_pages_memory().held;
    (void)kg_pages_memory(); /* starts a new maximum */
    must_train(ROOT "/taken", false, extra);
    taken = kg_pages_memory().most - held;
    if (taken + REMAINDER < listed || taken > listed + REMAINDER + scratch)
        fail_msg("%s: listed %llu, taken %llu", extra[0], (unsigned long long)listed,
                 (unsigned long long)taken);
}

static void a_run_takes_what_its_plan_lists(void **state)
{
    static const char *const plain[] = {"train.steps=1", "eval.every=1", NULL};
    static const char *const ema[] = {"anchor.kind=ema",
                                      "kl.estimator=exact-reverse",
                                      "kl.beta=0.05",
                                      "train.steps=2",
                                      "optim.moments=bf16",
                                      "eval.every=1",
                                      NULL};
    static const char *const host[] = {"anchor.kind=ema",  "kl.estimator=k3",
                                       "kl.beta=0.05",     "anchor.place=host",
                                       "model.dtype=bf16", "train.steps=2",
                                       "train.lanes=4",    "eval.every=1",
                                       "eval.anchor=true", NULL};
    static const char *const lag[] = {"rollout.lag=1",    "rollout.dtype=bf16",
                                      "model.dtype=fp32", "train.steps=2",
                                      "eval.every=1",     NULL};
    static const char *const free[] = {"optim.kind=schedule-free",
                                       "optim.schedule=constant",
                                       "train.checkpoint_layers=false",
                                       "train.steps=1",
                                       "eval.every=1",
                                       NULL};
    static const char *const updates[] = {"optim.place=host",
                                          "anchor.kind=ema",
                                          "kl.estimator=k3",
                                          "kl.beta=0.05",
                                          "train.steps=2",
                                          "eval.every=1",
                                          NULL};
    static const char *const all[] = {
        "anchor.kind=ema",  "kl.estimator=k3",        "kl.beta=0.05",
        "train.lanes=2",    "rollout.lag=1",          "rollout.dtype=bf16",
        "model.dtype=fp32", "eval.reference=" DIGITS, "eval.anchor=true",
        "eval.every=1",     "train.steps=2",          NULL};
    static const char *const *const runs[] = {plain, ema, host, lag, free, updates, all};

    (void)state;
    setenv("KEDGE_TEST_BACKEND", "far", 1);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        assert_taken(runs[i], 0);
    unsetenv("KEDGE_TEST_BACKEND");
}

static void a_run_on_kernels_takes_its_scratch_besides(void **state)
{
    static const char *const extra[] = {
        "train.steps=1",       "rollout.prompts=1",   "rollout.samples=2",
        "eval.every=0",        "eval.at_start=false", "train.updates_per_step=1",
        "rollout.max_batch=2", "model.dtype=bf16",    NULL};
    const struct kg_backend *be;
    struct kg_err err;

    (void)state;
    if (kg_backend_open(&be, "emu", &err) != KG_OK)
        skip(); /* no C++ compiler */
    setenv("KEDGE_TEST_BACKEND", "emu", 1);
    assert_taken(extra, 1 << 20);
    unsetenv("KEDGE_TEST_BACKEND");
}

/* ---- large models ---- */

static const char qwen[] =
    "{\"architectures\": [\"Qwen2ForCausalLM\"], \"model_type\": \"qwen2\", "
    "\"hidden_size\": %d, \"intermediate_size\": %d, \"num_hidden_layers\": %d, "
    "\"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"vocab_size\": %d, "
    "\"tie_word_embeddings\": %s, \"rms_norm_eps\": 1e-06, \"rope_theta\": 1000000.0, "
    "\"max_position_embeddings\": 131072, \"eos_token_id\": 151643, "
    "\"hidden_act\": \"silu\", \"torch_dtype\": \"bfloat16\"}";

/* Shapes of Qwen2.5. */
static const struct shape {
    const char *name;
    int hidden, ffn, layers, heads, kv_heads, vocab;
    const char *tied;
} shapes[] = {{"1.5B", 1536, 8960, 28, 12, 2, 151936, "true"},
              {"3B", 2048, 11008, 36, 16, 2, 151936, "true"},
              {"7B", 3584, 18944, 28, 28, 4, 152064, "false"},
              {"14B", 5120, 13824, 48, 40, 8, 152064, "false"}};

/* Writes a folder that has only the config.json of a shape. */
static void write_config(const char *name)
{
    const struct shape *s = shapes;
    char text[1024];

    while (strcmp(s->name, name) != 0)
        s++;
    snprintf(text, sizeof text, qwen, s->hidden, s->ffn, s->layers, s->heads, s->kv_heads,
             s->vocab, s->tied);
    fresh(MODEL);
    NEED(kg_file_make_dirs(MODEL, err));
    NEED(kg_file_write_atomic(MODEL "/config.json", text, strlen(text), err));
}

/* EMA-PG: 64 prompts of up to 1,024 tokens, completions of up to 2,048. */
static const char *const ema_pg[] = {"model.path=" MODEL,
                                     "model.device=cuda",
                                     "model.dtype=bf16",
                                     "run.dir=" ROOT "/plan",
                                     "task.name=math",
                                     "data.train=train.jsonl",
                                     "data.val=val.jsonl",
                                     "rollout.prompts=64",
                                     "rollout.samples=8",
                                     "rollout.max_tokens=2048",
                                     "anchor.kind=ema",
                                     "anchor.eta=0.9",
                                     "anchor.period=10",
                                     "kl.estimator=topk-reverse",
                                     "kl.top_k=32",
                                     "kl.beta=0.001",
                                     "train.steps=100",
                                     "train.micro_tokens=8192",
                                     NULL};

#define H200 141000000000

static kg_status plan_on(struct kg_str *out, int ranks, uint64_t memory,
                         const char *const *extra, struct kg_err *err)
{
    const char *const *const lists[] = {ema_pg, extra};
    struct kg_config *config = config_from(ROOT "/plan", lists, 2);
    kg_status status = kg_train_plan_memory(out, config, false, ranks, memory, err);

    kg_config_free(config);
    return status;
}

static kg_status plan(struct kg_str *out, uint64_t memory, const char *const *extra,
                      struct kg_err *err)
{
    return plan_on(out, 1, memory, extra, err);
}

/* Each of 8 ranks has an eighth of the sharded slabs and all of the rest. "needed" is the
 * smallest number of ranks on which the run fits. */
static void ranks_divide_what_is_in_cuts(void **state)
{
    static const char *const lanes[] = {"train.lanes=8", NULL};
    static const char *const whole[] = {"train.lanes=8", "ranks.shard=none", NULL};
    static const char *const divided[] = {"train.lanes=8", "ranks.shard=gradients", NULL};
    static const char *const one[] = {"ranks.shard=gradients", NULL};
    static const char *const host[] = {"train.lanes=8", "anchor.place=host",
                                       "model.device=cpu", NULL};
    struct kg_str out = {0};
    struct kg_err why;

    (void)state;
    write_config("7B");
    NEED(plan_on(&out, 8, H200, lanes, err));
    assert_non_null(strstr(kg_str_text(&out), "ranks       8 that train: the numbers "
                                              "below are per rank; together 756."));
    assert_non_null(strstr(kg_str_text(&out),
                           "device 94.44 GB: weights (fp32) 3.81, "
                           "weights for products 15.23, gradients "
                           "30.46, optimizer 7.62, anchor (fp32) 3.81, "
                           "anchor for products 15.23"));
    assert_non_null(strstr(kg_str_text(&out),
                           "needed      4 ranks (train.lanes=8), each with "
                           "140.13 GB of such a device"));
    /* transfers go by pieces of 4 MB: 8 blocks, 8 ranks */
    assert_non_null(strstr(kg_str_text(&out), "exchange 0.07"));
    kg_str_clear(&out);
    NEED(plan_on(&out, 8, H200, divided, err)); /* a bucket is the head: 2.18 GB */
    assert_non_null(strstr(kg_str_text(&out), "device 69.96 GB: weights (fp32) 3.81, "
                                              "weights for products 15.23, gradients "
                                              "5.99, optimizer 7.62"));
    assert_non_null(strstr(kg_str_text(&out), "sums of lanes 15.23, exchange 0.1"));
    kg_str_clear(&out);
    NEED(plan_on(&out, 9, H200, one, err)); /* one lane for 9 ranks */
    assert_non_null(strstr(kg_str_text(&out), "gradients 5.56, "));
    assert_non_null(strstr(kg_str_text(&out), "sums of lanes 3.38"));
    assert_non_null(strstr(kg_str_text(&out), "(train.lanes=1)"));
    kg_str_clear(&out);
    assert_int_equal(plan_on(&out, 8, H200, whole, &why), KG_ENOMEM);
    assert_non_null(strstr(kg_str_text(&out), "weights (fp32) 30.46"));
    kg_str_clear(&out);
    assert_int_equal(plan_on(&out, 8, 0, host, &why), KG_EINVAL); /* as in a run */
    assert_non_null(strstr(why.message, "anchor.place: on CPUs"));
    kg_str_clear(&out);
    assert_int_equal(plan_on(&out, 1, 40000000000, lanes, &why), KG_ENOMEM);
    assert_non_null(
        strstr(kg_str_text(&out), "needed      more memory than sharding saves"));
    kg_str_clear(&out);
    assert_int_equal(plan_on(&out, 9, H200, lanes, &why), KG_EINVAL);
    assert_non_null(strstr(why.message, "at least one for each of 9 ranks, found 8"));
    kg_str_release(&out);
}

/* 8 MB per rank, in the memory that has the weights: the device's with NCCL. */
static void what_goes_to_ranks_that_sample_is_counted(void **state)
{
    static const char *const none[] = {"train.lanes=8", "rollout.lag=1", NULL};
    static const char *const host[] = {"train.lanes=8", "rollout.lag=1",
                                       "ranks.rollout=2", NULL};
    static const char *const nccl[] = {"train.lanes=8", "rollout.lag=1",
                                       "ranks.rollout=2", "ranks.link=nccl", NULL};
    static const char *const near[] = {"train.lanes=8",    "rollout.lag=1",
                                       "ranks.rollout=2",  "ranks.link=nccl",
                                       "optim.place=host", NULL};
    static const struct {
        const char *const *extra;
        bool listed, there;
    } cases[] = {{none, false, false},
                 {host, true, false},
                 {nccl, true, true},
                 {near, false, false}};
    struct kg_str out = {0};

    (void)state;
    write_config("1.5B");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *on_host, *item;

        kg_str_clear(&out);
        NEED(plan_on(&out, 8, H200, cases[i].extra, err));
        item = strstr(kg_str_text(&out), "weights to samplers");
        assert_int_equal(item != NULL, cases[i].listed);
        if (!item)
            continue;
        on_host = strstr(kg_str_text(&out), "            host ");
        assert_non_null(on_host);
        assert_memory_equal(item, "weights to samplers 0.07", 24); /* 67,108,864 B */
        assert_int_equal(item < on_host, cases[i].there);
    }
    kg_str_release(&out);
}

static void seven_billion_fit_with_an_anchor_on_the_host_and_bf16_moments(void **state)
{
    static const char *const keys[] = {"anchor.place=host", "optim.moments=bf16", NULL};
    static const char *const none[] = {NULL};
    struct kg_str out = {0};
    struct kg_err err;

    (void)state;
    write_config("7B");
    if (plan(&out, H200, keys, &err) != KG_OK)
        fail_msg("%s\n%s", err.message, kg_str_text(&out));
    assert_non_null(strstr(kg_str_text(&out), "memory      device 127.54 GB: weights "));
    assert_non_null(strstr(kg_str_text(&out), "has 141.00 GB, 141.00 of them free; "
                                              "13.46 are left"));
    assert_non_null(strstr(kg_str_text(&out), "            host 43.56 GB: anchor "));
    kg_str_clear(&out);
    assert_int_equal(plan(&out, H200, none, &err), KG_ENOMEM);
    assert_non_null(strstr(kg_str_text(&out), "60.05 are missing"));
    assert_string_equal(err.message,
                        "memory: expected at most 141.00 GB on the device, found 201.05 "
                        "GB: optim.moments=bf16 saves 30.46 GB, anchor.place=host saves "
                        "43.05 GB, optim.place=host saves 121.85 GB, half of "
                        "rollout.max_batch saves 5.64 GB");
    kg_str_release(&out);
}

/* ---- the table of docs/gpu.md ---- */

/* out <- the number that the plan prints after `before` */
static void number_in(char out[32], const struct kg_str *plan, const char *before)
{
    const char *at = strstr(kg_str_text(plan), before);

    assert_non_null(at);
    snprintf(out, 32, "%.*s", (int)strspn(at + strlen(before), "0123456789."),
             at + strlen(before));
}

/* keys: separated by a blank, as in the table */
static void assert_row(const struct kg_str *doc, const char *name, const char *memory,
                       const char *keys, bool fits)
{
    char list[160], row[320], device[32], host[32];
    const char *extra[8] = {NULL};
    struct kg_str out = {0};
    struct kg_err err;
    size_t n = 0;

    snprintf(list, sizeof list, "%s", keys);
    for (char *rest = list, *key; (key = strtok_r(rest, " ", &rest));)
        extra[n++] = key;
    write_config(name);
    assert_int_equal(plan(&out, strtoull(memory, NULL, 10) * 1000000000, extra, &err),
                     fits ? KG_OK : KG_ENOMEM);
    number_in(device, &out, "memory      device ");
    number_in(host, &out, "            host ");
    snprintf(row, sizeof row, "\n| %s | %s | %s%s%s | %s | %s | %s |\n", name, memory,
             n ? "`" : "as it is", keys, n ? "`" : "", fits ? "yes" : "no", device, host);
    if (!strstr(kg_str_text(doc), row))
        fail_msg("docs/gpu.md lacks the row%s", row);
    kg_str_release(&out);
}

static void the_table_of_the_docs_is_what_plans_say(void **state)
{
    static const char both[] = "anchor.place=host optim.place=host rollout.max_batch=24";
    struct kg_str doc = {0};

    (void)state;
    NEED(kg_file_read(&doc, "docs/gpu.md", 1 << 20, err));
    assert_row(&doc, "1.5B", "80", "", true);
    assert_row(&doc, "3B", "80", "anchor.place=host", true);
    assert_row(&doc, "3B", "141", "", true);
    assert_row(&doc, "7B", "80", both, true);
    assert_row(&doc, "7B", "141", "anchor.place=host optim.moments=bf16", true);
    assert_row(&doc, "7B", "141", "optim.place=host", true);
    assert_row(&doc, "14B", "80", both, false);
    assert_row(&doc, "14B", "141", both, true);
    kg_str_release(&doc);
}

/* ---- operations ---- */

/* Operations reserve what products need for trials (to the byte), an amount per row, and,
 * with truncated sampling, one bit per row and id. */
static void operations_are_what_is_reserved_and_asked_for(void **state)
{
    static const char *const few[] = {"model.dtype=bf16", "train.micro_tokens=1000",
                                      NULL};
    static const char *const many[] = {"model.dtype=bf16", "train.micro_tokens=9000",
                                       NULL};
    static const char *const sets[] = {"model.dtype=bf16", "train.micro_tokens=9000",
                                       "rollout.top_p=0.9", NULL};
    static const char *const exact[] = {"model.dtype=fp32", "train.micro_tokens=1000",
                                        NULL};
    uint64_t of_few, of_many, of_sets, of_exact;
    struct kg_model_opts opts = {.ct = KG_BF16};
    struct kg_model *m;
    struct kg_memory list;

    (void)state;
    setenv("KEDGE_TEST_BACKEND", "far", 1);
    list = memory_of(ROOT "/taken", few);
    of_few = there(&list, KG_MEMORY_OPERATIONS);
    list = memory_of(ROOT "/taken", many);
    of_many = there(&list, KG_MEMORY_OPERATIONS);
    list = memory_of(ROOT "/taken", sets);
    of_sets = there(&list, KG_MEMORY_OPERATIONS);
    list = memory_of(ROOT "/taken", exact);
    of_exact = there(&list, KG_MEMORY_OPERATIONS);
    unsetenv("KEDGE_TEST_BACKEND");
    NEED(kg_model_open(&m, DIGITS, &opts, err));
    assert_true(of_few - of_exact == kg_model_product_bytes(m));
    assert_true(of_many - of_few >= 8000 * 216ull);
    assert_true(of_sets - of_many >= 9000 * (uint64_t)(m->config.vocab / 8));
    kg_model_free(m);
}

/* ---- refusals ---- */

static void what_cannot_fit_is_refused_before_it_is_taken(void **state)
{
    static const char *const extra[] = {"anchor.kind=ema", "kl.estimator=k3",
                                        "kl.beta=0.05", NULL};
    struct kg_err err;
    uint64_t held;

    (void)state;
    fresh(ROOT "/refused");
    setenv("KEDGE_TEST_BACKEND", "far", 1);
    setenv("KEDGE_TEST_MEMORY", "420000000", 1);
    held = kg_pages_memory().held;
    (void)kg_pages_memory();
    assert_int_equal(train(ROOT "/refused", false, extra, &err), KG_ENOMEM);
    unsetenv("KEDGE_TEST_MEMORY");
    unsetenv("KEDGE_TEST_BACKEND");
    assert_non_null(
        strstr(err.message, "memory: expected at most 0.42 GB on the device"));
    assert_non_null(
        strstr(err.message, ", found 0.69 GB: optim.place=host saves 0.01 GB"));
    assert_true(kg_pages_memory().most - held < REMAINDER);
    assert_false(kg_file_exists(ROOT "/refused"));
}

/* The run would fit if another process did not hold part of the memory; the message says
 * so. */
static void memory_that_others_hold_is_said(void **state)
{
    static const char *const plain[] = {"train.steps=1", NULL};
    const struct kg_backend *be;
    struct kg_err err = {0};
    void *others;

    (void)state;
    fresh(ROOT "/refused");
    setenv("KEDGE_TEST_BACKEND", "far", 1);
    setenv("KEDGE_TEST_MEMORY", "800000000", 1);
    assert_int_equal(kg_backend_open(&be, "far", &err), KG_OK);
    others = kg_buf_alloc(be, 300000000, "others", &err);
    assert_non_null(others);
    assert_int_equal(train(ROOT "/refused", false, plain, &err), KG_ENOMEM);
    kg_buf_free(be, others);
    assert_non_null(strstr(err.message, "memory: expected at most 0.50 GB on the device "
                                        "(other processes use the rest), found 0."));
    assert_false(kg_file_exists(ROOT "/refused"));
    assert_int_equal(train(ROOT "/refused", false, plain, &err), KG_OK);
    unsetenv("KEDGE_TEST_MEMORY");
    unsetenv("KEDGE_TEST_BACKEND");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_takes_what_its_plan_lists),
        cmocka_unit_test(a_run_on_kernels_takes_its_scratch_besides),
        cmocka_unit_test(ranks_divide_what_is_in_cuts),
        cmocka_unit_test(what_goes_to_ranks_that_sample_is_counted),
        cmocka_unit_test(seven_billion_fit_with_an_anchor_on_the_host_and_bf16_moments),
        cmocka_unit_test(the_table_of_the_docs_is_what_plans_say),
        cmocka_unit_test(operations_are_what_is_reserved_and_asked_for),
        cmocka_unit_test(what_cannot_fit_is_refused_before_it_is_taken),
        cmocka_unit_test(memory_that_others_hold_is_said),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
