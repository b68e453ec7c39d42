/* Tests of an index whose vectors another program made: the index is the one that the
 * encoder makes, and a file that does not match the passages leaves no index.
 */
#include "retriever/dense/dense_internal.h"

#include "base/folder_testing.h"
#include "retriever/vectors.h"

#include <math.h>

#define MODEL "tests/data/encoder/bert"
#define FILES "tests/data/vectors/"

enum { DIM = 8, MANY = 150 };

static char texts[MANY][64];
static float made[MANY][DIM]; /* vectors of the texts, by the encoder */

static void must(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

/* Does not check for leaks: pool threads keep scratch of the CPU's operations. Memory is
 * counted where only one thread works. */
static int end(void **state)
{
    (void)state;
    kg_mem_fail_at(0);
    return kg_file_remove_tree(dir, &err) != KG_OK;
}

static struct kg_encoder *open_encoder(const char *folder)
{
    struct kg_encoder *e;

    must(kg_encoder_open(&e, folder, &(struct kg_encoder_opts){0}, &err));
    return e;
}

/* ---- a corpus, and its vectors ---- */
static void make_texts(void)
{
    static const char *const words[] = {"cat",  "dog",  "mat", "house", "king",
                                        "play", "blue", "ran", "zebra", "fish"};

    for (size_t i = 0; i < MANY; i++)
        snprintf(texts[i], sizeof texts[i], "%s %s %s and %s %d", words[i % 10],
                 words[i * 7 / 3 % 10], words[i / 11 % 10], words[i / 5 % 7], (int)i);
}

static void embed_all(const char *folder)
{
    struct kg_encoder *e = open_encoder(folder);
    struct kg_text in[MANY];
    struct kg_embedder *m;

    for (int i = 0; i < MANY; i++)
        in[i] = (struct kg_text){texts[i], strlen(texts[i])};
    must(kg_embedder_open(&m, e, &err));
    must(kg_embed(made[0], m, in, MANY, KG_TEXT_PASSAGE, &err));
    kg_embedder_close(m);
    kg_encoder_close(e);
}

static void put_corpus(int n)
{
    struct kg_str corpus = {0};

    for (int i = 0; i < n; i++)
        must(kg_str_printf(&corpus, &err, "{\"id\": %d, \"contents\": \"%s\"}\n", i,
                           texts[i]));
    put("corpus", corpus.data);
    kg_str_release(&corpus);
}

static void put_npy(const float *x, int64_t n, int64_t cols)
{
    struct kg_npy npy;

    must(kg_npy_open(&npy, in_dir("vectors"), cols, &err));
    must(kg_npy_put(&npy, x, n, &err));
    must(kg_npy_close(&npy, &err));
}

/* Writes all vectors as FAISS writes a flat index. */
static void put_faiss(bool distances)
{
    char file[45 + sizeof made] = "IxFI";
    const int32_t cols = DIM, metric = distances;
    const int64_t rows = MANY, count = MANY * DIM;

    if (distances)
        file[3] = '2';
    memcpy(file + 4, &cols, 4);
    memcpy(file + 8, &rows, 8);
    file[32] = 1;
    memcpy(file + 33, &metric, 4);
    memcpy(file + 37, &count, 8);
    memcpy(file + 45, made, sizeof made);
    must(kg_file_write_atomic(in_dir("vectors"), file, sizeof file, &err));
}

static void all_made(void)
{
    make_texts();
    embed_all(MODEL);
    put_corpus(MANY);
}

/* Builds an index of the corpus. vectors: a file of vectors; NULL: the encoder makes
 * them */
static kg_status try_index(struct kg_index_info *info, const char *folder,
                           const char *vectors)
{
    struct kg_index_build_opts o = {.corpus = in_dir("corpus"),
                                    .path = in_dir("index"),
                                    .bm25 = kg_bm25_default,
                                    .vectors = vectors};
    struct kg_encoder *e = NULL;
    kg_status status;

    KG_TRY(kg_encoder_open(&e, folder, &(struct kg_encoder_opts){0}, &err));
    o.encoder = e;
    status = kg_index_build(info, &o, &err);
    kg_encoder_close(e);
    return status;
}

static void read_index(struct kg_str *out, const char *folder, const char *vectors)
{
    struct kg_index_info info;

    must(try_index(&info, folder, vectors));
    must(kg_file_read(out, in_dir("index"), 1 << 24, &err));
}

/* The index with given vectors equals, byte for byte, the one with the encoder's. */
static void same_index(const char *folder, const char *vectors)
{
    struct kg_str found = {0}, want = {0};

    read_index(&found, folder, vectors);
    read_index(&want, folder, NULL);
    assert_int_equal(found.len, want.len);
    assert_memory_equal(found.data, want.data, want.len);
    kg_str_release(&found);
    kg_str_release(&want);
}

/* The file `vectors` is refused with this error, and no index is left. */
static void refused(const char *folder, kg_status code, const char *part)
{
    struct kg_index_info info;
    kg_status status = try_index(&info, folder, in_dir("vectors"));
    char **names;
    size_t n;

    if (status != code || !strstr(err.message, part))
        fail_msg("expected status %d and \"%s\", found %d: %s", code, part, status,
                 err.message);
    must(kg_file_list(&names, &n, dir, &err));
    for (size_t i = 0; i < n; i++)
        assert_null(strstr(names[i], "index"));
    kg_file_names_free(names, n);
}

/* Refuses the vectors with one number replaced; the matrix in memory stays as it was. */
static void refused_with(int row, float number, kg_status code, const char *part)
{
    const float was = made[row][3];

    made[row][3] = number;
    put_npy(made[0], MANY, DIM);
    made[row][3] = was;
    refused(MODEL, code, part);
}

/* ---- tests ---- */
static void vectors_from_elsewhere_make_the_same_index(void **state)
{
    (void)state;
    all_made();
    put_npy(made[0], MANY, DIM);
    same_index(MODEL, in_dir("vectors"));
    put_faiss(false);
    same_index(MODEL, in_dir("vectors"));
    put_faiss(true);
    same_index(MODEL, in_dir("vectors"));
}

/* Makes a corpus of lines {"text": .., "vector": ..}: the text becomes the contents, and
 * the key `vector` is not read. */
static void put_golden(void)
{
    struct kg_str golden = {0}, corpus = {0};
    int n = 0;

    must(kg_file_read(&golden, MODEL "/golden.jsonl", 1 << 20, &err));
    for (char *line = strtok(golden.data, "\n"); line; line = strtok(NULL, "\n"))
        must(kg_str_printf(&corpus, &err, "{\"id\": %d, \"contents\":%s\n", n++,
                           line + strlen("{\"text\":")));
    put("corpus", corpus.data);
    kg_str_release(&corpus);
    kg_str_release(&golden);
}

/* The files have vectors that numpy computed; rounded to fp16 they equal kedge's own. */
static void files_of_other_programs_make_the_same_index(void **state)
{
    static const char *const files[] = {FILES "flat.index", FILES "distances.index",
                                        FILES "fp32.npy", FILES "fp16.npy"};

    (void)state;
    put_golden();
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        same_index(MODEL, files[i]);
}

static void every_passage_has_one_vector(void **state)
{
    (void)state;
    all_made();
    put_npy(made[0], MANY - 1, DIM);
    refused(MODEL, KG_EFORMAT,
            "expected a vector of each passage, found 149 vectors for more passages");
    /* more vectors than passages: sampled vectors match until the passages run out */
    put_npy(made[0], MANY, DIM);
    put_corpus(1);
    refused(MODEL, KG_EFORMAT, "expected a vector of each of 1 passages, found 150");
    put_corpus(MANY - 1);
    refused(MODEL, KG_EFORMAT, "expected a vector of each of 149 passages, found 150");
    put_npy(made[0], MANY * 2, DIM / 2);
    refused(MODEL, KG_EFORMAT, "expected vectors of the encoder's 8 numbers, found 4");
    put("vectors", "PK");
    refused(MODEL, KG_EFORMAT, "vectors: expected a flat FAISS index");
}

/* Row 77 is not in the sample that is compared with the encoder, row 149 is: numbers are
 * checked in both. */
static void a_vector_is_numbers_of_length_one(void **state)
{
    (void)state;
    all_made();
    refused_with(77, NAN, KG_EFORMAT,
                 "vector 78: expected numbers, found NaN or infinity");
    refused_with(77, -INFINITY, KG_EFORMAT, "vector 78: expected numbers");
    refused_with(77, 2, KG_EFORMAT,
                 "vector 78: expected length 1 like the encoder's vectors (within ");
    refused_with(149, NAN, KG_EFORMAT, "vector 150: expected numbers");
    memset(made[77], 0, sizeof made[77]);
    put_npy(made[0], MANY, DIM);
    refused(MODEL, KG_EFORMAT, "found 0");
}

/* fp16 rounding may leave a vector slightly longer than 1. Products allow that, but L2
 * distances would then order passages differently. */
static void distances_want_lengths_that_are_equal(void **state)
{
    struct kg_index_info info;

    (void)state;
    all_made();
    for (int d = 0; d < DIM; d++)
        made[77][d] *= 1.001f;
    put_faiss(true);
    refused(MODEL, KG_EFORMAT,
            "vector 78: expected length 1 like the encoder's vectors (within 0.0001)");
    put_faiss(false);
    must(try_index(&info, MODEL, in_dir("vectors")));
}

static void copy_encoder(const char *to, const char *modules)
{
    static const char *const files[] = {"config.json", "tokenizer.json",
                                        "model.safetensors", "1_Pooling/config.json"};
    struct kg_path path = kg_path_in(to, "1_Pooling");

    must(kg_file_make_dirs(path.text, &err));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        must(kg_file_copy(kg_path_in(MODEL, files[i]).text, kg_path_in(to, files[i]).text,
                          &err));
    path = kg_path_in(to, "modules.json");
    must(kg_file_write_atomic(path.text, modules, strlen(modules), &err));
}

static void lengths_are_free_where_the_encoder_leaves_them(void **state)
{
    static const char modules[] =
        "[{\"path\": \"\", \"type\": \"sentence_transformers.models.Transformer\"}, "
        "{\"path\": \"1_Pooling\", \"type\": \"sentence_transformers.models.Pooling\"}]";
    const struct kg_path folder = kg_path_in(dir, "free");

    (void)state;
    copy_encoder(folder.text, modules);
    make_texts();
    put_corpus(MANY);
    embed_all(folder.text);
    put_faiss(false);
    same_index(folder.text, in_dir("vectors"));
    assert_int_equal(remove(in_dir("index")), 0);
    put_faiss(true);
    refused(folder.text, KG_EUNSUPPORTED, "found an index of L2 distances (IxF2)");
    put_npy(made[0], MANY, DIM);
    refused(MODEL, KG_EFORMAT, "vector 1: expected length 1 like the encoder's");
}

static void swap(int a, int b)
{
    float was[DIM];

    memcpy(was, made[a], sizeof was);
    memcpy(made[a], made[b], sizeof was);
    memcpy(made[b], was, sizeof was);
    put_npy(made[0], MANY, DIM);
}

static void another_encoder_or_order_is_found_out(void **state)
{
    (void)state;
    all_made();
    memmove(made[0], made[1], sizeof made - sizeof made[0]);
    put_npy(made[0], MANY, DIM);
    refused(MODEL, KG_ECONFLICT,
            "vector 1: expected the encoder's vector of passage 1 (cosine at least "
            "0.999), found cosine ");
    embed_all(MODEL);
    swap(0, 1);
    refused(MODEL, KG_ECONFLICT, "vector 1: ");
    swap(0, 1);
    swap(148, 149);
    refused(MODEL, KG_ECONFLICT, "vector 150: ");
    embed_all("tests/data/encoder/xlm-roberta");
    put_npy(made[0], MANY, DIM);
    refused(MODEL, KG_ECONFLICT, "vector 1: ");
}

/* A failed build keeps the previous index. */
static void an_index_gives_way_to_a_whole_one_alone(void **state)
{
    struct kg_index_info want, info;
    struct kg_index *index;

    (void)state;
    all_made();
    must(try_index(&want, MODEL, NULL));
    put_npy(made[0], MANY - 1, DIM);
    assert_int_equal(try_index(&info, MODEL, in_dir("vectors")), KG_EFORMAT);
    must(kg_index_open(&index, in_dir("index"), NULL, &err));
    kg_index_info(&info, index);
    assert_true(info.hash == want.hash);
    kg_index_close(index);
}

static void a_sample_is_spread_and_has_both_ends(void **state)
{
    (void)state;
    for (int64_t rows = 1; rows < 700; rows++) {
        const struct kg_vectors v = {.rows = rows};
        int64_t n = 0, last = -1, widest = 0;

        for (int64_t row = 0; row < rows; row++) {
            if (!kg_given_sampled(&v, row))
                continue;
            widest = row - last > widest ? row - last : widest;
            last = row;
            n++;
        }
        assert_true(kg_given_sampled(&v, 0) && last == rows - 1);
        assert_int_equal(n, rows < KG_GIVEN_SAMPLE ? rows : KG_GIVEN_SAMPLE);
        assert_true(widest <= rows / (KG_GIVEN_SAMPLE - 1) + 1);
    }
}

static void a_sample_is_so_of_as_many_as_there_can_be(void **state)
{
    const struct kg_vectors v = {.rows = KG_DENSE_PASSAGES_MAX};
    int n = 0;

    (void)state;
    for (int64_t row = 0; row < v.rows; row++)
        n += kg_given_sampled(&v, row);
    assert_int_equal(n, KG_GIVEN_SAMPLE);
    assert_true(kg_given_sampled(&v, 0) && kg_given_sampled(&v, v.rows - 1));
}

/* Only the direction counts, not the length. The angles have cosines just above and just
 * below the limit. */
static void a_cosine_is_of_directions_alone(void **state)
{
    static const float made_here[] = {0.6f, 0.8f}, zeros[2];
    const double angle = atan2(0.8, 0.6), off = acos(KG_GIVEN_COSINE);

    (void)state;
    for (double length = 0.5; length < 3; length += 1) {
        const float near[] = {(float)(length * cos(angle + off * 0.999)),
                              (float)(length * sin(angle + off * 0.999))};
        const float far[] = {(float)(length * cos(angle + off * 1.001)),
                             (float)(length * sin(angle + off * 1.001))};

        must(kg_given_compare(made_here, near, 2, "f", 6, &err));
        assert_int_equal(kg_given_compare(made_here, far, 2, "f", 6, &err), KG_ECONFLICT);
        assert_non_null(strstr(
            err.message, "f: vector 7: expected the encoder's vector of passage 7"));
    }
    assert_int_equal(kg_given_compare(made_here, zeros, 2, "f", 6, &err), KG_ECONFLICT);
}

static void without_memory_nothing_is_left(void **state)
{
    struct kg_index_info info;
    uint64_t before;
    bool done = false;

    (void)state;
    all_made();
    put_npy(made[0], MANY, DIM);
    must(try_index(&info, MODEL, in_dir("vectors"))); /* makes this thread's scratch */
    before = kg_mem_current_bytes();
    for (uint64_t n = 1; !done; n++) {
        assert_true(n < 3000);
        kg_mem_fail_at(n);
        done = try_index(&info, MODEL, in_dir("vectors")) == KG_OK;
        kg_mem_fail_at(0);
        assert_true(kg_mem_current_bytes() == before);
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, make_dir, end)
    const struct CMUnitTest tests[] = {
        T(vectors_from_elsewhere_make_the_same_index),
        T(files_of_other_programs_make_the_same_index),
        T(every_passage_has_one_vector),
        T(a_vector_is_numbers_of_length_one),
        T(distances_want_lengths_that_are_equal),
        T(lengths_are_free_where_the_encoder_leaves_them),
        T(another_encoder_or_order_is_found_out),
        T(an_index_gives_way_to_a_whole_one_alone),
        T(a_sample_is_spread_and_has_both_ends),
        T(a_sample_is_so_of_as_many_as_there_can_be),
        T(a_cosine_is_of_directions_alone),
        T(without_memory_nothing_is_left),
    };

    kg_file_skip_syncs(true);
    return cmocka_run_group_tests_name("vectors that are given", tests, NULL, NULL);
}
