/* Tests of vectors on a device: the answers of the CPU, to the last bit of every score
 * and in the same order, however queries share a pass and passes are split; memory and
 * transfers are as planned; threads take turns.
 *
 * On a backend whose memory no test may touch, and on emulated kernels in every schedule.
 */
#include "retriever/dense/dense_internal.h"

#include "base/folder_testing.h"
#include "tensor/backend_testing.h"

#include "search/retriever.h"

#include <dirent.h>
#include <pthread.h>

#define MODEL "tests/data/encoder/bert"

enum {
    DIM = 8,
    PASSAGES = KG_DENSE_BLOCK + 70, /* more than one upload holds */
    TEXTS = 611, /* different texts: six or seven passages share a score */
    FEW = 20,
    QUERIES = KG_DENSE_QUERIES,
    THREADS = 3,
    ASKED = 12,   /* queries of all threads */
    SMALL = 4096, /* scores of a block: for 1 query 4096 passages, for 64 only 64 */
};

static const struct kg_search_how ways[] = {
    {.kind = "dense", .model = MODEL, .weight = 0.5},
    {.kind = "dense", .model = MODEL, .vectors = "int8", .weight = 0.5},
    {.kind = "hybrid", .model = MODEL, .weight = 0.5},
    {.kind = "hybrid",
     .model = MODEL,
     .vectors = "int8",
     .fusion = "score",
     .weight = 0.3},
};
enum { WAYS = sizeof ways / sizeof *ways };

static void must(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

/* ---- an index ---- */
static void text_of(char text[static 96], int i)
{
    static const char *const words[] = {"cat",  "dog", "mat",  "house", "king", "queen",
                                        "play", "ran", "blue", "zebra", "fish", "tree"};
    uint32_t seed = (uint32_t)(i % TEXTS) * 2654435761u + 5;

    text[0] = '\0';
    for (int j = 0; j < 3 + i % TEXTS % 4; j++) {
        seed = seed * 1664525u + 1013904223u;
        strcat(strcat(text, words[(seed >> 16) % 12]), " ");
    }
    snprintf(text + strlen(text), 16, "%d", i % TEXTS);
}

static void build(const char *name, int n)
{
    const struct kg_encoder_opts opts = {.query_prefix = "query: "};
    struct kg_index_build_opts o = {.bm25 = kg_bm25_default};
    struct kg_str corpus = {0};
    struct kg_index_info info;
    struct kg_encoder *e;
    char text[96];

    for (int i = 0; i < n; i++) {
        text_of(text, i);
        must(kg_str_printf(&corpus, &err, "{\"id\": %d, \"contents\": \"%s\"}\n", i,
                           text));
    }
    put("corpus", corpus.data);
    kg_str_release(&corpus);
    must(kg_encoder_open(&e, MODEL, &opts, &err));
    o.corpus = in_dir("corpus");
    o.path = in_dir(name);
    o.encoder = e;
    must(kg_index_build(&info, &o, &err));
    kg_encoder_close(e);
}

/* Built once for all groups of tests, because no test changes a file. */
static int make_indexes(void **state)
{
    if (dir[0])
        return 0;
    if (make_dir(state) != 0)
        return 1;
    build("index", PASSAGES);
    build("few", FEW);
    return 0;
}

struct engine {
    struct kg_index *index;
    struct kg_searcher *s;
};

/* be: NULL for the CPU */
static void start(struct engine *e, const char *name, const struct kg_search_how *way,
                  const struct kg_backend *be)
{
    struct kg_search_how how = *way;

    how.backend = be;
    must(kg_index_open(&e->index, in_dir(name), NULL, &err));
    must(kg_index_ask(e->index, &how, &err));
    must(kg_searcher_open(&e->s, e->index, &err));
}

static void stop(struct engine *e)
{
    kg_searcher_close(e->s);
    kg_index_close(e->index);
}

static struct kg_dense_device *device_of(const struct engine *e)
{
    return e->index->dense->device;
}

/* ---- the CPU's answers ---- */
static void query_of(char text[static 96], int i) { text_of(text, i * 37 + 3); }

static void find(struct kg_hits *hits, struct kg_searcher *s, int query, int topk)
{
    char text[96];

    query_of(text, query);
    must(kg_searcher_find(hits, s, text, strlen(text), topk, &err));
}

/* Equal answers. *ties: incremented for each pair of neighbours with equal scores, which
 * must be in the order of the corpus. */
static void same(const struct kg_hits *got, const struct kg_hits *want, int *ties)
{
    assert_int_equal(got->n, want->n);
    assert_int_equal(got->rows, want->rows);
    for (size_t i = 0; i < got->n; i++) {
        const struct kg_passage *p = &got->passages[i];

        assert_string_equal(p->id, want->passages[i].id);
        assert_memory_equal(&p->score, &want->passages[i].score, sizeof p->score);
        if (i > 0 && p[-1].score == p->score) {
            assert_true(atoi(p[-1].id) < atoi(p->id));
            ++*ties;
        }
    }
}

static void look_ahead(struct kg_searcher *s, int n, int topk)
{
    static char texts[QUERIES][96];
    struct kg_query ahead[QUERIES];

    for (int i = 0; i < n; i++) {
        query_of(texts[i], i);
        ahead[i] = (struct kg_query){texts[i], strlen(texts[i])};
    }
    must(kg_searcher_ahead(s, ahead, (size_t)n, topk, &err));
}

/* Compares queries 0..n-1, searched in one pass. */
static void compare(const struct engine *far, const struct engine *here, int n, int topk,
                    int *ties)
{
    struct kg_hits got, want;

    look_ahead(far->s, n, topk);
    look_ahead(here->s, n, topk);
    for (int i = 0; i < n; i++) {
        find(&got, far->s, i, topk);
        find(&want, here->s, i, topk);
        same(&got, &want, ties);
    }
}

/* One query and 64 queries per pass, in one block and in several. */
static void answers_are_the_cpus(void **state)
{
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        struct engine far, here;
        int ties = 0;

        start(&far, "index", &ways[w], backend());
        start(&here, "index", &ways[w], NULL);
        assert_non_null(device_of(&far));
        assert_null(device_of(&here));
        compare(&far, &here, 1, 5, &ties);
        compare(&far, &here, 3, 150, &ties);
        kg_dense_device_limit(device_of(&far), SMALL);
        compare(&far, &here, 1, 1, &ties);
        compare(&far, &here, QUERIES, 50, &ties);
        assert_true(strcmp(ways[w].kind, "dense") != 0 || ties > 100);
        stop(&here);
        stop(&far);
    }
}

static void more_than_there_are_is_all(void **state)
{
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        struct engine far, here;
        struct kg_hits hits;
        int ties = 0;

        start(&far, "few", &ways[w], backend());
        start(&here, "few", &ways[w], NULL);
        compare(&far, &here, 1, KG_INDEX_TOPK_MAX, &ties);
        compare(&far, &here, 9, FEW + 1, &ties);
        find(&hits, far.s, 2, FEW + 1);
        assert_int_equal(hits.n, FEW);
        stop(&here);
        stop(&far);
    }
}

/* ---- memory ---- */
static const struct kg_dense *vectors_of(const struct engine *e)
{
    return e->index->dense;
}

static void plan_of(struct kg_dense_memory *plan, const char *name, enum kg_code code)
{
    must(kg_dense_plan(plan, MODEL, backend(), code,
                       strcmp(name, "few") == 0 ? FEW : PASSAGES, DIM, &err));
}

/* Plans the index as a run does. */
static void must_plan(const struct kg_index *index, const struct kg_search_how *way,
                      uint64_t expected)
{
    struct kg_search_how how = *way;
    uint64_t bytes;

    must(kg_index_device_plan(&bytes, index, &how, &err));
    assert_int_equal(bytes, 0);
    how.backend = backend();
    must(kg_index_device_plan(&bytes, index, &how, &err));
    assert_int_equal(bytes, expected);
}

/* The plan is the device memory that any number of searchers take together. */
static void a_plan_is_what_is_taken(void **state)
{
    static const char *const names[] = {"few", "index"};

    (void)state;
    for (int i = 0; i < 2; i++)
        for (int code = 0; code < KG_CODES; code++) {
            const uint64_t before = kg_pages_memory().held;
            struct kg_index_device has;
            struct kg_searcher *another;
            struct kg_dense_memory plan;
            struct kg_hits hits;
            struct engine e;

            plan_of(&plan, names[i], (enum kg_code)code);
            start(&e, names[i], &ways[code], backend());
            must_plan(e.index, &ways[code], plan.vectors + plan.encoder + plan.beside);
            must(kg_searcher_open(&another, e.index, &err));
            find(&hits, another, 1, 3);
            assert_int_equal(kg_pages_memory().held - before,
                             plan.vectors + plan.encoder + plan.beside);
            assert_int_equal(kg_pages_memory().most - before, plan.most);
            kg_index_device(&has, e.index);
            assert_int_equal(has.bytes, kg_pages_memory().held - before);
            assert_null(vectors_of(&e)->codes.data); /* the host holds no codes */
            kg_searcher_close(another);
            stop(&e);
            assert_int_equal(kg_pages_memory().held, before);
        }
}

static kg_status ask_with(uint64_t bytes, const struct kg_search_how *way)
{
    struct kg_search_how how = *way;
    struct kg_index *index;
    char text[32];
    kg_status status;

    snprintf(text, sizeof text, "%llu", (unsigned long long)bytes);
    setenv("KEDGE_TEST_MEMORY", text, 1);
    how.backend = backend();
    must(kg_index_open(&index, in_dir("index"), NULL, &err));
    status = kg_index_ask(index, &how, &err);
    kg_index_close(index);
    unsetenv("KEDGE_TEST_MEMORY");
    return status;
}

static void a_byte_too_few_is_refused_with_the_numbers(void **state)
{
    const uint64_t held = kg_pages_memory().held;
    struct kg_dense_memory plan;
    char numbers[96];

    (void)state;
    plan_of(&plan, "index", KG_CODE_I8);
    must(ask_with(held + plan.most, &ways[1]));
    assert_int_equal(ask_with(held + plan.most - 1, &ways[1]), KG_ENOMEM);
    snprintf(numbers, sizeof numbers, "%llu bytes on %s, found %llu free",
             (unsigned long long)plan.most, backend()->name,
             (unsigned long long)(plan.most - 1));
    if (!strstr(err.message, numbers) ||
        !strstr(err.message, "as int8 0.000 GB (as fp16 0.000 GB)"))
        fail_msg("expected \"%s\" in \"%s\"", numbers, err.message);
    assert_int_equal(kg_pages_memory().held, held);
}

/* ---- transfers ---- */
static void check_traffic(struct engine *e, int n, int64_t blocks)
{
    const int64_t width = (PASSAGES + KG_PANEL - 1) / KG_PANEL * KG_PANEL;
    struct kg_traffic t0, texts, pass;
    static float vectors[QUERIES * DIM];
    static char words[QUERIES][96];
    struct kg_text in[QUERIES];
    int64_t launched[3];

    for (int i = 0; i < n; i++) {
        query_of(words[i], i);
        in[i] = (struct kg_text){words[i], strlen(words[i])};
    }
    t0 = kg_buf_traffic(backend());
    launched[0] = emulated() ? kg_emu_lose(-1) : 0;
    must(kg_dense_device_embed(vectors, device_of(e), in, (size_t)n, &err));
    texts = kg_buf_traffic(backend());
    launched[1] = emulated() ? kg_emu_lose(-1) : 0;
    look_ahead(e->s, n, 3);
    pass = kg_buf_traffic(backend());
    launched[2] = emulated() ? kg_emu_lose(-1) : 0;
    if (!emulated()) /* only the emulation counts */
        return;
    assert_int_equal(pass.up - texts.up - (texts.up - t0.up),
                     (uint64_t)(blocks * n * DIM) * sizeof(float));
    assert_int_equal(pass.down - texts.down - (texts.down - t0.down),
                     (uint64_t)(n * width) * sizeof(float));
    assert_int_equal(pass.ups - texts.ups - (texts.ups - t0.ups), blocks);
    assert_int_equal(pass.downs - texts.downs - (texts.downs - t0.downs), blocks);
    assert_int_equal(launched[2] - launched[1] - (launched[1] - launched[0]), blocks);
}

/* For Q queries, 4 Q bytes per passage are downloaded and 4 Q D per block uploaded; one
 * launch per block. */
static void a_pass_crosses_as_much_as_is_said(void **state)
{
    struct engine e;

    (void)state;
    start(&e, "index", &ways[0], backend());
    check_traffic(&e, 1, 1);
    check_traffic(&e, QUERIES, 1);
    kg_dense_device_limit(device_of(&e), SMALL);
    check_traffic(&e, 1, 2);
    check_traffic(&e, QUERIES, (PASSAGES + 63) / 64);
    stop(&e);
}

/* ---- threads ---- */
struct asker {
    pthread_t thread;
    struct kg_searcher *s;
    int first;
    bool wrong;
    char ids[ASKED][3][8]; /* expected ids */
};

static void *ask(void *user)
{
    struct asker *a = user;

    for (int i = a->first; i < ASKED; i += THREADS) {
        struct kg_hits hits;
        struct kg_err why;
        char text[96];

        query_of(text, i);
        if (kg_searcher_find(&hits, a->s, text, strlen(text), 3, &why) != KG_OK) {
            a->wrong = true;
            return NULL;
        }
        for (size_t j = 0; j < hits.n; j++)
            a->wrong |= strcmp(hits.passages[j].id, a->ids[i][j]) != 0;
    }
    return NULL;
}

/* With int8 and two blocks, so that other threads run between the blocks. */
static void threads_take_turns(void **state)
{
    static struct asker askers[THREADS];
    struct engine far, here;

    (void)state;
    start(&far, "index", &ways[1], backend());
    start(&here, "index", &ways[1], NULL);
    kg_dense_device_limit(device_of(&far), SMALL);
    for (int t = 0; t < THREADS; t++) {
        askers[t] = (struct asker){.first = t};
        for (int i = t; i < ASKED; i += THREADS) {
            struct kg_hits hits;

            find(&hits, here.s, i, 3);
            for (size_t j = 0; j < 3; j++)
                strcpy(askers[t].ids[i][j], hits.passages[j].id);
        }
        must(kg_searcher_open(&askers[t].s, far.index, &err));
    }
    for (int t = 0; t < THREADS; t++)
        assert_int_equal(pthread_create(&askers[t].thread, NULL, ask, &askers[t]), 0);
    for (int t = 0; t < THREADS; t++) {
        assert_int_equal(pthread_join(askers[t].thread, NULL), 0);
        kg_searcher_close(askers[t].s);
        assert_false(askers[t].wrong);
    }
    stop(&here);
    stop(&far);
}

/* ---- a run's retriever ---- */
static int threads_now(void)
{
    int n = 0;
    DIR *all = opendir("/proc/self/task");

    assert_non_null(all);
    while (readdir(all))
        n++;
    closedir(all);
    return n;
}

enum { RUN_TOPK = 3 };
struct heard {
    const struct engine *here;
    int n;
};

static kg_status hear(void *user, const struct kg_retrieved *a, struct kg_err *e)
{
    struct heard *h = user;
    struct kg_hits want;

    (void)e;
    find(&want, h->here->s, (int)a->ticket, RUN_TOPK);
    assert_false(a->failed);
    assert_int_equal(a->n, want.n);
    for (size_t i = 0; i < a->n; i++) {
        assert_string_equal(a->passages[i].id, want.passages[i].id);
        assert_true(a->passages[i].score == want.passages[i].score);
    }
    h->n++;
    return KG_OK;
}

/* The thread that polls calls the device, because it also decodes. */
static void a_retriever_on_a_device_has_no_thread(void **state)
{
    struct kg_retriever_opts opts = {
        .where = in_dir("index"), .how = ways[2], .topk = RUN_TOPK};
    struct heard h = {0};
    struct engine here;
    struct kg_retriever *r;
    char text[96];
    int before;

    (void)state;
    start(&here, "index", &ways[2], NULL);
    h.here = &here;
    opts.how.backend = backend();
    before = threads_now();
    must(kg_retriever_open(&r, &opts, &err));
    assert_int_equal(threads_now(), before);
    for (int i = 0; i < QUERIES + 2; i++) { /* more than one pass takes */
        query_of(text, i);
        must(kg_retriever_ask(r, text, strlen(text), (uint64_t)i, &err));
    }
    while (kg_retriever_waiting(r) > 0)
        must(kg_retriever_poll(r, 0, hear, &h, &err)); /* never waits */
    assert_int_equal(h.n, QUERIES + 2);
    kg_retriever_close(r);
    stop(&here);
}

/* ---- what goes wrong ---- */
static void a_device_that_is_lost_is_told(void **state)
{
    struct engine far, here;
    struct kg_hits hits;
    int ties = 0;
    char text[96];

    (void)state;
    if (!emulated())
        return;
    start(&far, "few", &ways[0], backend());
    start(&here, "few", &ways[0], NULL);
    query_of(text, 5);
    kg_emu_lose(0);
    assert_int_equal(kg_searcher_find(&hits, far.s, text, strlen(text), 3, &err),
                     KG_EDEVICE);
    kg_emu_lose(-1);
    compare(&far, &here, 2, 3, &ties);
    stop(&here);
    stop(&far);
}

static void without_memory_nothing_is_left(void **state)
{
    const uint64_t before = kg_mem_current_bytes();
    bool done = false;

    (void)state;
    for (uint64_t n = 1; !done; n += 3) {
        struct kg_search_how how = ways[3];
        struct kg_searcher *s = NULL;
        struct kg_index *index = NULL;
        struct kg_hits hits;

        assert_true(n < 3000);
        how.backend = backend();
        kg_mem_fail_at(n);
        done = kg_index_open(&index, in_dir("few"), NULL, &err) == KG_OK &&
               kg_index_ask(index, &how, &err) == KG_OK &&
               kg_searcher_open(&s, index, &err) == KG_OK &&
               kg_searcher_find(&hits, s, "cat", 3, 3, &err) == KG_OK;
        kg_mem_fail_at(0);
        kg_searcher_close(s);
        kg_index_close(index);
        assert_true(kg_mem_current_bytes() == before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_the_cpus),
        cmocka_unit_test(more_than_there_are_is_all),
        cmocka_unit_test(a_plan_is_what_is_taken),
        cmocka_unit_test(a_byte_too_few_is_refused_with_the_numbers),
        cmocka_unit_test(a_pass_crosses_as_much_as_is_said),
        cmocka_unit_test(threads_take_turns),
        cmocka_unit_test(a_retriever_on_a_device_has_no_thread),
        cmocka_unit_test(a_device_that_is_lost_is_told),
    };
    const struct CMUnitTest counted[] = {
        cmocka_unit_test(without_memory_nothing_is_left),
    };
    int failed;

    kg_file_skip_syncs(true);
    backend_name = "far";
    failed = cmocka_run_group_tests_name("far", tests, make_indexes, NULL);
    failed += cmocka_run_group_tests_name("far, memory", counted, make_indexes, NULL);
    backend_name = "emu";
    for (int i = 0; kg_emu_open && i < SCHEDULES; i++)
        failed += cmocka_run_group_tests_name(use_emulation((enum kg_emu_schedule)i),
                                              tests, make_indexes, NULL);
    return failed + (kg_file_remove_tree(dir, &err) != KG_OK);
}
