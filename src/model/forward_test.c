/* The forward against transformers, against an independent float64 implementation, and
 * against itself: cached, chunked, batched, threaded and nested runs give the bits of one
 * full forward. */
#include "model/model_testing.h"

#include "data/jsonl.h"

enum { LONG = 150, SHORT = 9, MIDDLE = 70, COMPANIONS = 3 };

/* ---- parity ---- */
static void head_logits(const struct kg_model *m, struct kg_mat hidden, float *logits,
                        float *entropy)
{
    const struct kg_head head = {.hidden = hidden,
                                 .weight = m->head->compute,
                                 .softcap = (float)m->config.logit_softcap};
    double *lse = test_alloc((size_t)hidden.rows, sizeof *lse);
    const struct kg_head_out out = {.lse = lse, .entropy = entropy, .logits = logits};
    NEED(kg_op_head(m->backend, &out, &head, err));
    kg_mem_free(lse);
}

static double largest_difference(const float *a, const float *b, size_t n)
{
    double most = 0.0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        most = d > most || isnan(d) ? d : most;
    }
    return most;
}

static void check_logits_of(const char *arch)
{
    struct test_reference r;
    test_reference_open(&r, arch);
    struct kg_model *m = test_open(r.dir, KG_F32, false);
    struct kg_acts *acts = NULL;
    struct kg_st_set *set = NULL;
    char path[192];
    snprintf(path, sizeof path, "%s/logits.safetensors", r.dir);
    NEED(kg_st_open_file(&set, path, err));
    NEED(kg_acts_create(&acts, m, TEST_REF_TOKENS, true, err));

    struct kg_mat hidden;
    const struct kg_forward f = {.pack = test_pack_get(&r.pack)};
    NEED(kg_model_forward(&hidden, m, acts, &f, err));
    const size_t vocab = (size_t)m->config.vocab;
    float *logits = test_alloc(TEST_REF_TOKENS * vocab, sizeof *logits);
    head_logits(m, hidden, logits, NULL);
    for (int i = 0; i < 2; i++) {
        const struct kg_st_tensor *t = kg_st_find(set, i ? "logits.1" : "logits.0");
        float *want = test_alloc(1, t->bytes);
        memcpy(want, t->data, t->bytes);
        const size_t first = (size_t)(i * r.pack.seqs[0].n) * vocab;
        const double diff = largest_difference(logits + first, want,
                                               t->bytes / sizeof *want);
        printf("%s sequence %d: largest difference of logits %.2e\n", arch, i, diff);
        assert_true(diff < 1e-4);
        kg_mem_free(want);
    }
    kg_mem_free(logits);
    kg_acts_free(acts);
    kg_st_close(set);
    kg_model_free(m);
    test_reference_close(&r);
}

static void test_logits_are_those_of_transformers(void **state)
{
    (void)state;
    for (int i = 0; i < TEST_ALL_ARCHS; i++)
        check_logits_of(test_archs[i]);
}

static double array_difference(const float *have, const struct kg_json *want)
{
    double most = 0.0;
    for (size_t i = 0; i < kg_json_size(want); i++) {
        const double d = fabs((double)have[i] - kg_json_real(kg_json_at(want, i), NAN));
        most = d > most || isnan(d) ? d : most;
    }
    return most;
}

static int32_t largest_index(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

/* Checks one line of expected_logits.jsonl.   returns the largest difference */
static double check_line(const struct kg_model *m, struct kg_acts *acts,
                         const struct kg_json *line)
{
    const struct kg_json *ids = kg_json_get(line, "input_ids");
    const int32_t n = (int32_t)kg_json_size(ids);
    const int32_t vocab = m->config.vocab;
    int32_t *tokens = test_alloc((size_t)n, sizeof *tokens);
    for (int32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)kg_json_int(kg_json_at(ids, (size_t)i), -1);
    struct test_pack t = test_pack_of((const int32_t *const[]){tokens}, &n, 1);
    struct kg_mat hidden;
    const struct kg_forward f = {.pack = test_pack_get(&t)};
    NEED(kg_model_forward(&hidden, m, acts, &f, err));

    float *logits = test_alloc((size_t)n * (size_t)vocab, sizeof *logits);
    float *entropy = test_alloc((size_t)n, sizeof *entropy);
    float *logp = test_alloc((size_t)n, sizeof *logp);
    head_logits(m, hidden, logits, entropy);
    const struct kg_head head = {.hidden = hidden,
                                 .weight = m->head->compute,
                                 .softcap = (float)m->config.logit_softcap,
                                 .target = t.target};
    NEED(kg_op_head(m->backend, &(struct kg_head_out){.logp = logp}, &head, err));

    double most = array_difference(logp, kg_json_get(line, "token_logprobs"));
    most = fmax(most, array_difference(entropy, kg_json_get(line, "entropy")));
    most = fmax(most, array_difference(logits + (size_t)(n - 1) * (size_t)vocab,
                                       kg_json_get(line, "last_logits")));
    for (int32_t i = 0; i < n; i++)
        assert_int_equal(
            largest_index(logits + (size_t)i * (size_t)vocab, vocab),
            kg_json_int(kg_json_at(kg_json_get(line, "argmax"), (size_t)i), -1));
    kg_mem_free(tokens);
    kg_mem_free(logits);
    kg_mem_free(entropy);
    kg_mem_free(logp);
    test_pack_release(&t);
    return most;
}

static void check_expected_file(const char *dir, const char *name)
{
    char path[192];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    struct kg_model *m = test_open(dir, KG_F32, false);
    struct kg_acts *acts = NULL;
    struct kg_jsonl *lines = NULL;
    NEED(kg_acts_create(&acts, m, 4096, true, err));
    NEED(kg_jsonl_open(&lines, path, err));
    struct kg_json_doc doc = {0};
    double most = 0.0;
    int n = 0;
    for (bool more = true; more; n += more) {
        NEED(kg_jsonl_next(lines, &doc, &more, err));
        if (more)
            most = fmax(most, check_line(m, acts, doc.root));
    }
    printf("%s: %d lines, largest difference %.2e\n", dir, n, most);
    assert_true(n > 0);
    assert_true(most < 1e-4);
    kg_json_release(&doc);
    kg_jsonl_close(lines);
    kg_acts_free(acts);
    kg_model_free(m);
}

static void test_expected_logits_of_every_checkpoint(void **state)
{
    (void)state;
    check_expected_file("tests/data/models/synthetic_tiny_qwen2",
                        "expected_logits.jsonl");
    check_expected_file("tests/data/models/synthetic_tiny_qwen3",
                        "expected_logits.jsonl");
    check_expected_file("tests/data/models/synthetic_tiny_llama",
                        "expected_logits.jsonl");
}

static void test_expected_logits_of_the_digit_checkpoint(void **state)
{
    (void)state;
    if (!kg_file_exists("tests/data/verl_digit_llama/expected_logits.jsonl")) {
        printf("skip: tests/data/verl_digit_llama is absent\n");
        skip();
    }
    check_expected_file("tests/data/verl_digit_llama", "expected_logits.jsonl");
}

/* These models have other sizes than those in tests/data/reference. */
static void test_expected_log_probs_of_every_architecture(void **state)
{
    static const char *const names[] = {
        "mistral_window", "qwen2_window", "llama_yarn", "llama_linear", "llama_dynamic",
        "llama_bias",     "qwen3_bias",   "smollm3",    "olmo2",        "granite",
        "phi3",           "gemma2",       "gemma3"};
    (void)state;
    if (!kg_file_is_dir("../shared/data/models/more")) {
        printf("skip: ../shared/data/models/more is absent\n");
        skip();
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char dir[128];
        snprintf(dir, sizeof dir, "../shared/data/models/more/%s", names[i]);
        check_expected_file(dir, "expected_logprobs.jsonl");
    }
}

/* ---- one sequence alone, the reference for what follows ---- */
struct subject {
    struct kg_model *m;
    int32_t tokens[LONG];
    unsigned char *rows; /* (LONG,D) ct: hidden states of the full forward */
    size_t row_bytes;
};

static void subject_open(struct subject *s, const char *dir, enum kg_dtype ct)
{
    struct kg_acts *acts = NULL;
    struct kg_mat hidden;
    const int32_t n = LONG;
    s->m = test_open(dir, ct, false);
    test_tokens(s->tokens, LONG, s->m->config.vocab, 1);
    struct test_pack t = test_pack_of((const int32_t *const[]){s->tokens}, &n, 1);
    NEED(kg_acts_create(&acts, s->m, LONG, true, err));
    NEED(kg_model_forward(&hidden, s->m, acts,
                          &(struct kg_forward){.pack = test_pack_get(&t)}, err));
    s->row_bytes = (size_t)s->m->config.hidden * kg_dtype_traits(ct)->bytes;
    s->rows = test_alloc(LONG, s->row_bytes);
    memcpy(s->rows, hidden.data, LONG * s->row_bytes);
    kg_acts_free(acts);
    test_pack_release(&t);
}

static void subject_close(struct subject *s)
{
    kg_mem_free(s->rows);
    kg_model_free(s->m);
}

static void assert_rows(const struct subject *s, int32_t first, int32_t n,
                        const void *rows)
{
    if (memcmp(s->rows + (size_t)first * s->row_bytes, rows, (size_t)n * s->row_bytes) !=
        0)
        fail_msg("%s: rows %d..%d are not the bits of the full forward", s->m->dir,
                 (int)first, (int)(first + n - 1));
}

/* ---- through the cache ---- */
/* A growing sequence in a cache: its tokens and blocks. */
struct cached {
    const int32_t *tokens;
    int32_t done;
    int32_t blocks[(LONG + KG_KV_BLOCK - 1) / KG_KV_BLOCK + 1];
    int32_t n_blocks;
};

/* taken: blocks of the cache in use */
static void grow(int32_t *taken, struct cached *c, int32_t upto)
{
    while (c->n_blocks * KG_KV_BLOCK < upto)
        c->blocks[c->n_blocks++] = (*taken)++;
}

/* A pack under construction; batch_add appends the next chunk of c. */
struct batch {
    int32_t tokens[4 * LONG];
    struct kg_pack_seq seqs[COMPANIONS + 1];
    int32_t n, n_seqs;
};

static void batch_add(struct batch *b, int32_t *taken, struct cached *c, int32_t chunk)
{
    const int32_t n = c->done + chunk > LONG ? LONG - c->done : chunk;
    if (n == 0)
        return;
    grow(taken, c, c->done + n);
    b->seqs[b->n_seqs++] = (struct kg_pack_seq){n, c->done, kg_kv_table(c->blocks), 0};
    for (int32_t i = 0; i < n; i++, b->n++)
        b->tokens[b->n] = c->tokens[c->done + i];
    c->done += n;
}

static struct kg_mat batch_run(const struct batch *b, const struct kg_model *m,
                               struct kg_acts *acts, struct kg_kv *kv)
{
    struct kg_mat hidden;
    const struct kg_pack pack = {b->tokens, b->n, b->seqs, b->n_seqs, NULL, 0};
    const struct kg_forward f = {.pack = &pack, .kv = kv};
    NEED(kg_model_forward(&hidden, m, acts, &f, err));
    return hidden;
}

/* Computes the subject in chunks, batched with `companions` other sequences at other
 * positions. */
static void check_chunked(const struct subject *s, int32_t chunk, int companions)
{
    struct kg_acts *acts = NULL;
    struct kg_kv *kv = NULL;
    int32_t others[COMPANIONS][LONG], taken = 0;
    struct cached c[COMPANIONS + 1] = {{.tokens = s->tokens}};
    NEED(kg_acts_create(&acts, s->m, 4 * LONG, true, err));
    NEED(kg_kv_create(&kv, s->m, kg_kv_alike(16), err));
    struct batch *b = test_alloc(1, sizeof *b);
    for (int i = 0; i < companions; i++) {
        test_tokens(others[i], LONG, s->m->config.vocab, (uint32_t)i + 7);
        c[i + 1].tokens = others[i];
    }
    for (int step = 0; c[0].done < LONG; step++) {
        memset(b, 0, sizeof *b);
        for (int i = 0; i < companions; i++)
            batch_add(b, &taken, &c[i + 1], 1 + (step + 5 * i) % 11);
        const int32_t first = c[0].done;
        const int32_t row = b->n;
        batch_add(b, &taken, &c[0], chunk);
        const struct kg_mat hidden = batch_run(b, s->m, acts, kv);
        assert_rows(s, first, c[0].done - first,
                    (const unsigned char *)hidden.data + (size_t)row * s->row_bytes);
    }
    kg_mem_free(b);
    kg_kv_free(kv);
    kg_acts_free(acts);
}

static void check_cached(const char *dir, enum kg_dtype ct)
{
    static const int32_t chunks[] = {1, 7, 65, 1, 2, 16, 33, 64, LONG};
    struct subject s;
    subject_open(&s, dir, ct);
    const size_t n = s.m->config.hidden < 32 ? 3 : sizeof chunks / sizeof *chunks;
    for (size_t i = 0; i < n; i++) {
        kg_threads_set(1 + (int)(i % 2));
        check_chunked(&s, chunks[i], 0);
        check_chunked(&s, chunks[i], COMPANIONS);
    }
    kg_threads_set(0);
    subject_close(&s);
}

static char wide_dir[128];

static int save_wide(void **state)
{
    (void)state;
    struct kg_model *m = test_create_wide(KG_F32);
    test_dir(wide_dir, "wide");
    NEED(kg_model_save(m, wide_dir, &(struct kg_model_save){.dtype = KG_F32}, err));
    kg_model_free(m);
    return 0;
}

static int remove_wide(void **state)
{
    (void)state;
    test_dir_remove(wide_dir);
    return 0;
}

static void for_every_model(void (*check)(const char *dir, enum kg_dtype ct))
{
    for (int i = 0; i <= TEST_ARCHS; i++) {
        char dir[128];
        snprintf(dir, sizeof dir, "tests/data/reference/%s",
                 i < TEST_ARCHS ? test_archs[i] : "");
        check(i < TEST_ARCHS ? dir : wide_dir, KG_F32);
        check(i < TEST_ARCHS ? dir : wide_dir, KG_BF16);
    }
}

static void test_cached_decode_is_the_full_forward_bit_for_bit(void **state)
{
    (void)state;
    for_every_model(check_cached);
}

/* Two samples share the first block of a prompt; the second sample gets a copy of the
 * unfinished block. */
static void check_forked(const char *dir, enum kg_dtype ct)
{
    struct subject s;
    struct kg_acts *acts = NULL;
    struct kg_kv *kv = NULL;
    int32_t taken = 0;
    subject_open(&s, dir, ct);
    NEED(kg_acts_create(&acts, s.m, LONG, true, err));
    NEED(kg_kv_create(&kv, s.m, kg_kv_alike(8), err));
    struct batch *b = test_alloc(1, sizeof *b);
    struct cached first = {.tokens = s.tokens};
    batch_add(b, &taken, &first, 100);
    batch_run(b, s.m, acts, kv);

    struct cached second = first;
    second.blocks[1] = taken++;
    for (int kind = 0; kind < KG_KV_KINDS; kind++)
        if (kv->n_blocks.of[kind] > 0)
            NEED(kg_kv_copy_block(kv, (enum kg_kv_kind)kind, second.blocks[1],
                                  first.blocks[1], err));
    for (int i = 100; i < LONG; i++) {
        memset(b, 0, sizeof *b);
        batch_add(b, &taken, &first, 1);
        batch_add(b, &taken, &second, 1);
        const struct kg_mat hidden = batch_run(b, s.m, acts, kv);
        assert_rows(&s, i, 1, hidden.data);
        assert_rows(&s, i, 1, (const unsigned char *)hidden.data + s.row_bytes);
    }
    kg_mem_free(b);
    kg_kv_free(kv);
    kg_acts_free(acts);
    subject_close(&s);
}

static void test_samples_that_share_a_prompt_decode_the_same_bits(void **state)
{
    (void)state;
    for_every_model(check_forked);
}

/* ---- without a cache: packs, threads, nesting ---- */
static void check_packed(const char *dir, enum kg_dtype ct)
{
    struct subject s;
    struct kg_acts *acts = NULL;
    struct kg_mat hidden;
    subject_open(&s, dir, ct);
    int32_t a[SHORT];
    int32_t z[MIDDLE];
    test_tokens(a, SHORT, s.m->config.vocab, 3);
    test_tokens(z, MIDDLE, s.m->config.vocab, 4);
    const int32_t lengths[] = {SHORT, LONG, MIDDLE};
    struct test_pack t = test_pack_of((const int32_t *const[]){a, s.tokens, z}, lengths,
                                      3);
    for (int threads = 1; threads <= 2; threads++) {
        for (int keep = 0; keep <= 1; keep++) {
            kg_threads_set(threads);
            NEED(kg_acts_create(&acts, s.m, SHORT + LONG + MIDDLE, false, err));
            const struct kg_forward f = {.pack = test_pack_get(&t), .keep = keep};
            NEED(kg_model_forward(&hidden, s.m, acts, &f, err));
            assert_rows(&s, 0, LONG,
                        (const unsigned char *)hidden.data + SHORT * s.row_bytes);
            kg_acts_free(acts);
        }
    }
    kg_threads_set(0);
    test_pack_release(&t);
    subject_close(&s);
}

static void test_a_row_does_not_depend_on_its_pack_or_on_threads(void **state)
{
    (void)state;
    for_every_model(check_packed);
}

static void check_nested(const char *dir, enum kg_dtype ct)
{
    struct subject s;
    subject_open(&s, dir, ct);
    const int32_t n = LONG;
    int wrong = 0;
    struct test_pack t = test_pack_of((const int32_t *const[]){s.tokens}, &n, 1);
    const struct kg_pack *pack = test_pack_get(&t);
#pragma omp parallel for num_threads(2) schedule(static, 1) reduction(+ : wrong)
    for (int i = 0; i < 4; i++) {
        struct kg_err err;
        struct kg_acts *acts = NULL;
        struct kg_mat hidden;
        const struct kg_forward f = {.pack = pack};
        if (kg_acts_create(&acts, s.m, LONG, true, &err) != KG_OK ||
            kg_model_forward(&hidden, s.m, acts, &f, &err) != KG_OK)
            wrong += 100;
        else
            wrong += memcmp(hidden.data, s.rows, LONG * s.row_bytes) != 0;
        kg_acts_free(acts);
    }
    assert_int_equal(wrong, 0);
    test_pack_release(&t);
    subject_close(&s);
}

static void test_a_nested_parallel_region_gives_the_same_bits(void **state)
{
    (void)state;
    need_host_memory();
    for_every_model(check_nested);
}

/* ---- refusals ---- */
static kg_status try_forward(const struct kg_model *m, struct kg_acts *acts,
                             const struct kg_pack *pack, struct kg_err *err)
{
    struct kg_mat hidden;
    const struct kg_forward f = {.pack = pack};
    return kg_model_forward(&hidden, m, acts, &f, err);
}

static void test_a_pack_that_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct kg_err why;
    struct kg_acts *acts = NULL;
    struct kg_model *m = test_open("tests/data/reference/llama", KG_F32, false);
    NEED(kg_acts_create(&acts, m, 4, true, err));
    int32_t tokens[] = {1, 2, 127, 3, 4};
    struct kg_pack_seq seq = {.n = 5};
    struct kg_pack pack = {tokens, 5, &seq, 1, NULL, 0};
    assert_int_equal(try_forward(m, acts, &pack, &why), KG_ESHAPE);
    pack.n = 0;
    assert_int_equal(try_forward(m, acts, &pack, &why), KG_ESHAPE);
    pack.n = 4;
    assert_int_equal(try_forward(m, acts, &pack, &why), KG_ESHAPE);
    seq.n = 3;
    assert_int_equal(try_forward(m, acts, &pack, &why), KG_ESHAPE);
    seq.n = 4;
    assert_int_equal(try_forward(m, acts, &pack, &why), KG_OK);
    seq.pos = 1;
    assert_int_equal(try_forward(m, acts, &pack, &why), KG_EINVAL);
    seq.pos = 0;
    tokens[2] = 128;
    assert_int_equal(try_forward(m, acts, &pack, &why), KG_EINVAL);
    tokens[2] = -1;
    assert_int_equal(try_forward(m, acts, &pack, &why), KG_EINVAL);
    kg_acts_free(acts);
    kg_model_free(m);
}

/* Expects that a forward of one token is refused; kv may be NULL. */
static void refuses_seq(const struct kg_model *m, struct kg_acts *acts, struct kg_kv *kv,
                        struct kg_pack_seq seq, kg_status code, const char *words)
{
    const int32_t token = 1;
    const struct kg_pack pack = {&token, 1, &seq, 1, NULL, 0};
    const struct kg_forward f = {.pack = &pack, .kv = kv};
    struct kg_mat hidden;
    struct kg_err why;
    assert_int_equal(kg_model_forward(&hidden, m, acts, &f, &why), code);
    assert_non_null(strstr(why.message, words));
}

static void test_a_sequence_that_cannot_be_is_refused(void **state)
{
    (void)state;
    struct kg_acts *acts = NULL;
    struct kg_kv *kv = NULL;
    struct kg_model *m = test_open("tests/data/reference/llama", KG_F32, false);
    const int32_t blocks[] = {0, 2}, below[] = {-1};
    NEED(kg_acts_create(&acts, m, 4, true, err));
    NEED(kg_kv_create(&kv, m, kg_kv_alike(2), err));
    refuses_seq(m, acts, NULL, (struct kg_pack_seq){.n = 0, .pos = 0}, KG_ESHAPE,
                "sequence 0 of the pack: expected at least 1 token");
    refuses_seq(m, acts, kv, (struct kg_pack_seq){1, -1, kg_kv_table(blocks), 0},
                KG_ESHAPE, "found 1 tokens and position -1");
    refuses_seq(m, acts, NULL, (struct kg_pack_seq){1, 0, kg_kv_table(blocks), 0},
                KG_EINVAL, "expected a whole sequence without cache");
    refuses_seq(m, acts, NULL, (struct kg_pack_seq){.n = 1, .pos = 3}, KG_EINVAL,
                "expected a whole sequence without cache");
    refuses_seq(m, acts, kv, (struct kg_pack_seq){.n = 1, .pos = 0}, KG_EINVAL,
                "expected cache blocks");
    refuses_seq(m, acts, kv, (struct kg_pack_seq){1, 0, kg_kv_table(below), 0}, KG_EINVAL,
                "blocks");
    /* the second block is invalid, but only read when it is needed */
    refuses_seq(m, acts, kv, (struct kg_pack_seq){1, KG_KV_BLOCK, kg_kv_table(blocks), 0},
                KG_EINVAL, "blocks");
    refuses_seq(m, acts, kv, (struct kg_pack_seq){2, 0, kg_kv_table(blocks), 0},
                KG_ESHAPE, "its sequences cover 2 of 1 tokens");
    refuses_seq(m, acts, kv, (struct kg_pack_seq){1, 0, kg_kv_table(blocks), 1},
                KG_EINVAL, "expected adapter 0 to 0, found 1");
    kg_kv_free(kv);
    kg_acts_free(acts);
    kg_model_free(m);
}

/* Runs a forward whose n-th allocation fails.   returns whether it was the pack's */
static bool lacks_room(const struct kg_model *m, struct kg_acts *acts,
                       const struct kg_forward *f, uint64_t n)
{
    struct kg_mat hidden;
    struct kg_err why;
    kg_mem_fail_at(n);
    const kg_status status = kg_model_forward(&hidden, m, acts, f, &why);
    kg_mem_fail_at(0);
    assert_int_equal(status, KG_ENOMEM);
    return strncmp(why.message, "pack:", 5) == 0;
}

/* The block table of a long context is larger than what was reserved for one token. */
static void test_room_for_a_block_table_is_taken_once_or_is_a_status(void **state)
{
    enum { BLOCKS = 40 };
    (void)state;
    need_host_memory();
    const int32_t token = 1, blocks[BLOCKS] = {0};
    struct kg_pack_seq seq = {1, BLOCKS * KG_KV_BLOCK - 1, kg_kv_table(blocks), 0};
    const struct kg_pack pack = {&token, 1, &seq, 1, NULL, 0};
    struct kg_acts *acts = NULL;
    struct kg_kv *kv = NULL;
    struct kg_mat hidden;
    struct kg_model *m = test_open("tests/data/reference/llama", KG_F32, false);
    NEED(kg_acts_create(&acts, m, 1, true, err));
    NEED(kg_kv_create(&kv, m, kg_kv_alike(1), err));
    const struct kg_forward f = {.pack = &pack, .kv = kv};
    assert_true(lacks_room(m, acts, &f, 1)); /* on the host */
    assert_true(lacks_room(m, acts, &f, 2)); /* on the device */
    NEED(kg_model_forward(&hidden, m, acts, &f, err));
    assert_false(lacks_room(m, acts, &f, 1));
    kg_kv_free(kv);
    kg_acts_free(acts);
    kg_model_free(m);
}

static void test_the_memory_plan_is_what_is_allocated(void **state)
{
    (void)state;
    need_host_memory();
    struct kg_model *m = test_open("tests/data/reference/qwen3", KG_F32, false);
    for (int checkpoint = 0; checkpoint <= 1; checkpoint++) {
        struct kg_acts *acts = NULL;
        const uint64_t before = kg_mem_current_bytes();
        NEED(kg_acts_create(&acts, m, 1000, checkpoint, err));
        const uint64_t held = kg_mem_current_bytes() - before;
        const uint64_t plan = kg_bytes_sum(kg_acts_bytes(m, 1000, checkpoint, 0));
        assert_true(held >= plan && held - plan < 16384);
        kg_acts_free(acts);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
    kg_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_are_those_of_transformers),
        cmocka_unit_test(test_expected_logits_of_every_checkpoint),
        cmocka_unit_test(test_expected_logits_of_the_digit_checkpoint),
        cmocka_unit_test(test_expected_log_probs_of_every_architecture),
        cmocka_unit_test(test_cached_decode_is_the_full_forward_bit_for_bit),
        cmocka_unit_test(test_samples_that_share_a_prompt_decode_the_same_bits),
        cmocka_unit_test(test_a_row_does_not_depend_on_its_pack_or_on_threads),
        cmocka_unit_test(test_a_nested_parallel_region_gives_the_same_bits),
        cmocka_unit_test(test_a_pack_that_does_not_fit_is_refused),
        cmocka_unit_test(test_a_sequence_that_cannot_be_is_refused),
        cmocka_unit_test(test_room_for_a_block_table_is_taken_once_or_is_a_status),
        cmocka_unit_test(test_the_memory_plan_is_what_is_allocated),
    };
    return RUN_SHOWN(tests, save_wide, remove_wide);
}
