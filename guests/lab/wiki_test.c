/* Tests of the made-up world: the held-out part is held out, answers follow from the
 * corpus, and episodes repeat what the environment returned. */
#include "lab/wiki_internal.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/need_testing.h"
#include "data/json.h"
#include "data/records.h"
#include "retriever/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKS = 64 };
static char dir[64];
static struct kg_wiki *world;
static struct kg_wiki_counts counts;

static int set_up(void **state)
{
    const struct kg_wiki_opts opts = {.seed = 5, .works = WORKS};
    struct kg_err err;

    (void)state;
    snprintf(dir, sizeof dir, "/tmp/kedge-wiki-XXXXXX");
    if (!mkdtemp(dir) || kg_wiki_create(&world, &opts, &err) != KG_OK)
        return -1;
    kg_wiki_count(&counts, world);
    return kg_wiki_write(world, dir, &err) == KG_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    struct kg_err err;

    (void)state;
    kg_wiki_free(world);
    return kg_file_remove_tree(dir, &err) == KG_OK ? 0 : -1;
}

static void read_file(struct kg_str *out, const char *folder, const char *name)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    NEED(kg_file_read(out, path, 1 << 24, err));
}

static char name_buffers[4][KG_WIKI_NAME];
static const char *name(int64_t k)
{
    static int next;
    char *out = name_buffers[next++ % 4];

    kg_wiki_name(out, world, k);
    return out;
}

/* Whether the text contains the sentence that the format makes of two names. */
static bool says(const struct kg_str *text, const char *format, int64_t a, int64_t b)
{
    char sentence[128];

    snprintf(sentence, sizeof sentence, format, name(a), name(b));
    return strstr(text->data, sentence) != NULL;
}

static bool wrote(const struct kg_str *text, int64_t author, int64_t work)
{
    return says(text, "%s is a novel by %s.\"", work, author) ||
           says(text, "%s is a play by %s.\"", work, author) ||
           says(text, "%s is a poem by %s.\"", work, author) ||
           says(text, "%s is a film by %s.\"", work, author);
}

/* ---- names ---- */

static int compare(const void *a, const void *b) { return strcmp(a, b); }

static void names_differ_and_have_two_syllables(void **state)
{
    char(*all)[KG_WIKI_NAME] = test_calloc((size_t)counts.names, sizeof *all);

    (void)state;
    for (int64_t k = 0; k < counts.names; k++) {
        kg_wiki_name(all[k], world, k);
        assert_int_equal(strlen(all[k]), 6);
        assert_true(all[k][0] >= 'B' && all[k][0] <= 'Z');
    }
    qsort(all, (size_t)counts.names, sizeof *all, compare);
    for (int64_t k = 1; k < counts.names; k++)
        assert_string_not_equal(all[k - 1], all[k]);
    test_free(all);
}

/* ---- training and test part ---- */

static void nothing_that_the_test_asks_about_is_in_what_training_reads(void **state)
{
    struct kg_str train = {0}, test = {0};

    (void)state;
    read_file(&train, dir, "train.jsonl");
    read_file(&test, dir, "test.jsonl");
    for (int64_t k = 0; k < counts.names; k++)
        if (strstr(test.data, name(k)))
            assert_null(strstr(train.data, name(k)));
    for (int64_t i = 0; i < counts.questions[KG_WIKI_TEST]; i++) {
        struct kg_wiki_question q;

        kg_wiki_question(&q, world, KG_WIKI_TEST, i);
        assert_non_null(strstr(test.data, name(q.asked)));
        assert_non_null(strstr(test.data, name(q.answer)));
        assert_null(strstr(train.data, name(q.bridge)));
    }
    kg_str_release(&train);
    kg_str_release(&test);
}

static void answers_follow_from_the_corpus_in_two_steps(void **state)
{
    struct kg_str corpus = {0};

    (void)state;
    read_file(&corpus, dir, "corpus.jsonl");
    for (int part = 0; part < KG_WIKI_PARTS; part++)
        for (int64_t i = 0; i < counts.questions[part]; i++) {
            struct kg_wiki_question q;
            bool river;

            kg_wiki_question(&q, world, part, i);
            river = strcmp(q.source, "river") == 0;
            assert_true(river || wrote(&corpus, q.bridge, q.asked));
            assert_true(!river ||
                        says(&corpus, "%s was born in %s and", q.asked, q.bridge));
            assert_true(!river ||
                        says(&corpus, "%s lies on the river %s.\"", q.bridge, q.answer));
            assert_true(river || says(&corpus, "%s was born in %s and studied under ",
                                      q.bridge, q.answer));
            assert_true(river || says(&corpus, "studied under %s.\"", q.other, 0));
            assert_true(q.answer != q.other && q.answer != q.bridge);
        }
    kg_str_release(&corpus);
}

static size_t count_lines(const struct kg_str *text)
{
    size_t n = 0;

    for (size_t i = 0; i < text->len; i++)
        n += text->data[i] == '\n';
    return n;
}

static void the_corpus_has_a_passage_for_everything_with_one(void **state)
{
    struct kg_str corpus = {0}, tokenizer = {0};

    (void)state;
    read_file(&corpus, dir, "corpus.jsonl");
    assert_int_equal(count_lines(&corpus), counts.passages);
    /* the test part is an eighth; there are two people for three works, and one place */
    assert_int_equal(counts.passages, WORKS + 2 * WORKS / 3 + WORKS / 3 + WORKS / 8 +
                                          WORKS / 12 + WORKS / 24);
    assert_int_equal(counts.questions[KG_WIKI_TRAIN], WORKS + 2 * WORKS / 3);
    for (int64_t k = 0; k < counts.names; k++)
        assert_non_null(strstr(corpus.data, name(k)));
    /* the tokenizer's text has no names, so that it teaches no facts */
    read_file(&tokenizer, dir, "tokenizer.jsonl");
    for (int64_t k = 0; k < counts.names; k++)
        assert_null(strstr(tokenizer.data, name(k)));
    kg_str_release(&corpus);
    kg_str_release(&tokenizer);
}

/* Published measurements use such worlds, so a seed must always make the same world. */
static void a_seed_makes_the_world_that_it_made(void **state)
{
    static const struct {
        const char *file;
        uint64_t hash;
    } rows[] = {
        {"corpus.jsonl", 0x88976fe2d475f750},
        {"train.jsonl", 0xd3297ce7c48d7cca},
        {"test.jsonl", 0x49f1324406853d26},
        {"tokenizer.jsonl", 0xfe90c3435e30f834},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_str text = {0};

        read_file(&text, dir, rows[i].file);
        if (kg_hash_bytes(text.data, text.len) != rows[i].hash)
            fail_msg("%s: other bytes, of hash 0x%016llx", rows[i].file,
                     (unsigned long long)kg_hash_bytes(text.data, text.len));
        kg_str_release(&text);
    }
}

static void a_world_follows_from_its_seed(void **state)
{
    static const char *const files[] = {"corpus.jsonl", "train.jsonl", "test.jsonl",
                                        "tokenizer.jsonl"};
    char other[96];

    (void)state;
    snprintf(other, sizeof other, "%s/other", dir);
    for (uint64_t seed = 5; seed < 7; seed++) {
        const struct kg_wiki_opts opts = {.seed = seed, .works = WORKS};
        struct kg_wiki *w;

        NEED(kg_wiki_create(&w, &opts, err));
        NEED(kg_wiki_write(w, other, err));
        kg_wiki_free(w);
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            struct kg_str a = {0}, b = {0};

            read_file(&a, dir, files[i]);
            read_file(&b, other, files[i]);
            assert_int_equal(strcmp(a.data, b.data) == 0, seed == 5);
            kg_str_release(&a);
            kg_str_release(&b);
        }
        NEED(kg_file_remove_tree(other, err));
    }
}

/* Only files that this command wrote are replaced. */
static void files_of_others_stay(void **state)
{
    static const char mine[] = "mine";
    struct kg_wiki *another;
    struct kg_str text = {0};
    struct kg_err why;
    char path[128], other[96];

    (void)state;
    NEED(kg_wiki_write(world, dir, err));
    NEED(kg_wiki_create(&another, &(struct kg_wiki_opts){.seed = 99, .works = 8}, err));
    assert_int_equal(kg_wiki_write(another, dir, &why), KG_EINVAL);
    assert_non_null(
        strstr(why.message, "corpus.jsonl: expected no file, or one that this command"));
    snprintf(other, sizeof other, "%s/others", dir);
    snprintf(path, sizeof path, "%s/test.jsonl", other);
    NEED(kg_file_make_dirs(other, err));
    NEED(kg_file_write_atomic(path, mine, strlen(mine), err));
    assert_int_equal(kg_wiki_write(another, other, &why), KG_EINVAL);
    read_file(&text, other, "test.jsonl");
    assert_string_equal(text.data, mine);
    snprintf(path, sizeof path, "%s/corpus.jsonl", other);
    assert_false(kg_file_exists(path));
    kg_str_release(&text);
    kg_wiki_free(another);
}

static void nobody_studied_under_themselves(void **state)
{
    char other[96];
    int teachers = 0;

    (void)state;
    snprintf(other, sizeof other, "%s/small", dir);
    for (uint64_t seed = 0; seed < 40; seed++) {
        const struct kg_wiki_opts opts = {.seed = seed, .works = 8};
        struct kg_str corpus = {0};
        struct kg_wiki *w;

        NEED(kg_wiki_create(&w, &opts, err));
        NEED(kg_wiki_write(w, other, err));
        kg_wiki_free(w);
        read_file(&corpus, other, "corpus.jsonl");
        for (char *at = corpus.data; (at = strstr(at, " was born in ")) != NULL; at++) {
            char who[16], where[16], under[16];

            assert_true(at - corpus.data > 6);
            if (sscanf(at - 6,
                       "%6[A-Za-z] was born in %15[A-Za-z] and studied under "
                       "%15[A-Za-z]",
                       who, where, under) != 3)
                continue;
            teachers++;
            if (strcmp(who, under) == 0)
                fail_msg("seed %d: %s studied under %s", (int)seed, who, under);
        }
        kg_str_release(&corpus);
        NEED(kg_file_remove_tree(other, err));
    }
    assert_true(teachers >= 40 * 5);
}

/* The test part is an eighth of the works, and at least as many as questions need. */
static void the_test_has_its_share_of_any_world(void **state)
{
    static const int64_t works[] = {8, 32, 40, 80}, shares[] = {4, 4, 5, 10};
    int64_t questions[4];

    (void)state;
    for (int i = 0; i < 4; i++) {
        const struct kg_wiki_opts opts = {.seed = 1, .works = works[i]};
        struct kg_wiki_counts c;
        struct kg_wiki *w;

        NEED(kg_wiki_create(&w, &opts, err));
        kg_wiki_count(&c, w);
        questions[i] = c.questions[KG_WIKI_TEST];
        kg_wiki_free(w);
        assert_true(questions[i] >= shares[i]);
    }
    assert_int_equal(questions[0], questions[1]);
    assert_true(questions[1] < questions[2] && questions[2] < questions[3]);
}

static void a_world_of_no_size_is_refused(void **state)
{
    const struct kg_wiki_opts small = {.works = 7}, large = {.works = 3001},
                              least = {.works = 8}, most = {.works = 3000};
    struct kg_wiki *w;
    struct kg_err why;

    (void)state;
    assert_int_equal(kg_wiki_create(&w, &small, &why), KG_EINVAL);
    assert_non_null(strstr(why.message, "expected 8 to 3000 works, found 7"));
    assert_int_equal(kg_wiki_create(&w, &large, &why), KG_EINVAL);
    NEED(kg_wiki_create(&w, &least, err));
    kg_wiki_free(w);
    NEED(kg_wiki_create(&w, &most, err));
    kg_wiki_free(w);
}

/* ---- episodes ---- */

/* An environment that returns the query in brackets and the names that a search would
 * find: at once for even episodes, later for odd ones. */
struct echo {
    char text[96];
    uint64_t episode;
    int polls;
};

static kg_status echo_step(struct kg_env_result *result, struct kg_str *observation,
                           void *state, const struct kg_env_turn *turn,
                           struct kg_err *err)
{
    struct echo *e = state;
    struct kg_wiki_question q;
    int64_t stranger, place, i = (int64_t)turn->episode;

    kg_wiki_question(&q, world, KG_WIKI_TRAIN, i % counts.questions[KG_WIKI_TRAIN]);
    kg_wiki_stranger(&stranger, &place, world, i);
    assert_true(turn->n < sizeof e->text - 32);
    snprintf(e->text, sizeof e->text, "[%.*s]", (int)turn->n, turn->text);
    for (int k = 0; k < 3; k++)
        strcat(strcat(e->text, " "), name(k == 0 ? q.bridge : k == 1 ? q.answer : place));
    e->episode = turn->episode;
    result->valid = true;
    result->next = turn->episode % 2 ? KG_ENV_WAIT : KG_ENV_OBSERVE;
    return result->next == KG_ENV_OBSERVE ? kg_str_puts(observation, e->text, err)
                                          : KG_OK;
}

static kg_status echo_poll(void *state, int timeout_ms, kg_env_deliver_fn deliver,
                           void *user, struct kg_err *err)
{
    struct echo *e = state;
    const struct kg_env_delivery d = {
        .episode = e->episode, .observation = e->text, .n = strlen(e->text)};

    assert_true(timeout_ms > 0);
    return ++e->polls % 2 ? KG_OK : deliver(user, &d, err); /* the first finds nothing */
}

static const struct kg_env_row echo_row = {
    .name = "echo", .step = echo_step, .poll = echo_poll};

static const char *text_at(const struct kg_json *segments, size_t i, const char *source)
{
    const struct kg_json *s = kg_json_at(segments, i);

    assert_string_equal(kg_json_text(kg_json_get(s, "source"), NULL), source);
    return kg_json_text(kg_json_get(s, "text"), NULL);
}

/* Segments alternate between model and tool; the tool's text is what the environment
 * returned; the model ends with an answer. */
static void check_shape(const struct kg_json *segments)
{
    size_t n = kg_json_size(segments);

    assert_true(n % 2 == 1 && n <= 5);
    for (size_t i = 0; i + 1 < n; i += 2) {
        const char *search = text_at(segments, i, "model"),
                   *found = text_at(segments, i + 1, "tool");

        assert_memory_equal(search, "<search> ", 9);
        assert_memory_equal(found + 1, search, strlen(search));
        assert_memory_equal(found + 1 + strlen(search), "] ", 2);
    }
    assert_memory_equal(text_at(segments, n - 1, "model"), "<answer> ", 9);
}

static void check_right(const struct kg_json *segments, int64_t number)
{
    struct kg_wiki_question q;

    kg_wiki_question(&q, world, KG_WIKI_TRAIN, number % counts.questions[KG_WIKI_TRAIN]);
    assert_int_equal(kg_json_size(segments), 5);
    assert_memory_equal(text_at(segments, 0, "model") + 9, name(q.asked), 6);
    assert_memory_equal(text_at(segments, 2, "model") + 9, name(q.bridge), 6);
    assert_memory_equal(text_at(segments, 4, "model") + 9, name(q.answer), 6);
}

static int64_t read_episodes(const char *path)
{
    struct kg_json_doc doc = {0};
    struct kg_records *r;
    int64_t n = 0;

    NEED(kg_records_open(&r, path, err));
    for (;; n++) {
        const struct kg_json *segments;
        bool more;

        NEED(kg_records_next(r, &doc, &more, err));
        if (!more)
            break;
        segments = kg_json_get(doc.root, "segments");
        check_shape(segments);
        if (strcmp(kg_json_text(kg_json_get(doc.root, "way"), NULL), "right") == 0)
            check_right(segments, n);
    }
    kg_json_release(&doc);
    kg_records_close(r);
    return n;
}

static void episodes_say_what_the_environment_said(void **state)
{
    struct echo echo = {.polls = 0};
    struct kg_wiki_play play = {
        .row = &echo_row, .env = &echo, .count = 500, .fault_rate = 0.6};
    struct kg_wiki_played played;
    struct kg_str episodes = {0};
    char path[96];

    (void)state;
    snprintf(path, sizeof path, "%s/episodes.jsonl", dir);
    NEED(kg_wiki_episodes(&played, world, &play, path, err));
    assert_int_equal(read_episodes(path), 500);
    assert_string_equal(played.ways[0].name, "right");
    assert_in_range(played.ways[0].n, 160, 240);
    for (int k = 1; k < KG_WIKI_WAYS; k++)
        assert_in_range(played.ways[k].n, 2, 220);
    /* nothing from the test part */
    read_file(&episodes, dir, "episodes.jsonl");
    for (int64_t i = 0; i < counts.questions[KG_WIKI_TEST]; i++) {
        struct kg_wiki_question q;

        kg_wiki_question(&q, world, KG_WIKI_TEST, i);
        assert_null(strstr(episodes.data, name(q.asked)));
        assert_null(strstr(episodes.data, name(q.bridge)));
        assert_null(strstr(episodes.data, name(q.answer)));
    }
    kg_str_release(&episodes);
}

static void who_plays_right_finds_every_answer_in_a_real_index(void **state)
{
    char corpus[96], index[96], path[96];
    struct kg_index_build_opts build = {
        .corpus = corpus, .path = index, .bm25 = kg_bm25_default};
    struct kg_env_opts opts = {.retriever = index, .topk = 2, .stop_when_down = true};
    struct kg_wiki_play play = {.count = counts.questions[KG_WIKI_TRAIN]};
    struct kg_wiki_played played;
    struct kg_index_info info;

    (void)state;
    snprintf(corpus, sizeof corpus, "%s/corpus.jsonl", dir);
    snprintf(index, sizeof index, "%s/index.db", dir);
    snprintf(path, sizeof path, "%s/right.jsonl", dir);
    NEED(kg_index_build(&info, &build, err));
    assert_int_equal(info.passages, counts.passages);
    NEED(kg_env_find(&play.row, "search", err));
    NEED(play.row->open(&play.env, &opts, err));
    NEED(kg_wiki_episodes(&played, world, &play, path, err));
    play.row->close(play.env);
    assert_int_equal(played.ways[0].n, play.count);
}

/* Worlds with another seed and with another size. */
static void an_index_of_another_world_is_refused(void **state)
{
    static const struct kg_wiki_opts others[] = {{.seed = 77, .works = 60},
                                                 {.seed = 5, .works = 40}};
    char index[96], path[96];
    struct kg_env_opts opts = {.retriever = index, .topk = 2, .stop_when_down = true};
    struct kg_wiki_play play = {.count = 200, .fault_rate = 1};
    struct kg_wiki_played played;
    struct kg_err why;

    (void)state;
    snprintf(index, sizeof index, "%s/index.db", dir);
    snprintf(path, sizeof path, "%s/other.jsonl", dir);
    NEED(kg_env_find(&play.row, "search", err));
    NEED(play.row->open(&play.env, &opts, err));
    NEED(kg_wiki_episodes(&played, world, &play, path, err));
    NEED(kg_file_remove_tree(path, err));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct kg_wiki *other;

        NEED(kg_wiki_create(&other, &others[i], err));
        assert_int_equal(kg_wiki_episodes(&played, other, &play, path, &why), KG_EFORMAT);
        assert_non_null(strstr(why.message, "the index is not of this world's corpus"));
        assert_false(kg_file_exists(path));
        kg_wiki_free(other);
    }
    play.row->close(play.env);
}

static kg_status ending_step(struct kg_env_result *result, struct kg_str *observation,
                             void *state, const struct kg_env_turn *turn,
                             struct kg_err *err)
{
    (void)observation;
    (void)state;
    (void)turn;
    (void)err;
    *result = (struct kg_env_result){.next = KG_ENV_DONE, .valid = true};
    return KG_OK;
}

static void what_cannot_be_played_is_refused(void **state)
{
    static const struct kg_env_row ending = {.name = "ending", .step = ending_step};
    struct kg_wiki_play play = {.row = &ending, .count = 1, .fault_rate = 2};
    struct kg_wiki_played played;
    struct kg_err err;
    char path[96];

    (void)state;
    snprintf(path, sizeof path, "%s/refused.jsonl", dir);
    assert_int_equal(kg_wiki_episodes(&played, world, &play, path, &err), KG_EINVAL);
    play.fault_rate = 0;
    play.count = 0;
    assert_int_equal(kg_wiki_episodes(&played, world, &play, path, &err), KG_EINVAL);
    play.count = 1;
    assert_int_equal(kg_wiki_episodes(&played, world, &play, path, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "episode 1: expected an environment that"));
    assert_false(kg_file_exists(path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_differ_and_have_two_syllables),
        cmocka_unit_test(nothing_that_the_test_asks_about_is_in_what_training_reads),
        cmocka_unit_test(answers_follow_from_the_corpus_in_two_steps),
        cmocka_unit_test(the_corpus_has_a_passage_for_everything_with_one),
        cmocka_unit_test(a_seed_makes_the_world_that_it_made),
        cmocka_unit_test(a_world_follows_from_its_seed),
        cmocka_unit_test(files_of_others_stay),
        cmocka_unit_test(nobody_studied_under_themselves),
        cmocka_unit_test(the_test_has_its_share_of_any_world),
        cmocka_unit_test(a_world_of_no_size_is_refused),
        cmocka_unit_test(episodes_say_what_the_environment_said),
        cmocka_unit_test(who_plays_right_finds_every_answer_in_a_real_index),
        cmocka_unit_test(an_index_of_another_world_is_refused),
        cmocka_unit_test(what_cannot_be_played_is_refused),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
