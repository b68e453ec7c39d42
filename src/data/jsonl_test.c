/* Tests of reading lines of JSON and of writing and reading zstd frames. */
#include "data/jsonl.h"

#include "base/folder_testing.h"

#include <errno.h>
#include <unistd.h>

static struct kg_jsonl *open_text(const char *text, size_t n)
{
    struct kg_jsonl *r;

    assert_int_equal(kg_file_write_atomic(in_dir("x"), text, n, &err), KG_OK);
    assert_int_equal(kg_jsonl_open(&r, in_dir("x"), &err), KG_OK);
    return r;
}

/* ---- reading ---- */

static void reads_objects_with_their_line_numbers(void **state)
{
    const char *text = "{\"a\": 1}\n\n  \t\r\n{\"a\": 2}\r\n{\"a\": 3}";
    const int64_t lines[] = {1, 4, 5};
    struct kg_jsonl *r = open_text(text, strlen(text));
    struct kg_json_doc doc = {0};
    bool more;

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kg_jsonl_next(r, &doc, &more, &err), KG_OK);
        assert_true(more);
        assert_int_equal(kg_json_int(kg_json_get(doc.root, "a"), 0), i + 1);
        assert_int_equal(kg_jsonl_line(r), lines[i]);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kg_jsonl_next(r, &doc, &more, &err), KG_OK);
        assert_false(more);
        assert_null(doc.root);
    }
    kg_jsonl_close(r);
}

static void reads_a_borrowed_stream(void **state)
{
    char text[] = "{\"a\": 1}\n[2]\n";
    FILE *stream = fmemopen(text, sizeof text - 1, "r");
    struct kg_json_doc doc = {0};
    struct kg_jsonl *r;
    bool more;

    (void)state;
    assert_int_equal(kg_jsonl_open_stream(&r, stream, "stdin", &err), KG_OK);
    assert_int_equal(kg_jsonl_next(r, &doc, &more, &err), KG_OK);
    assert_int_equal(kg_jsonl_next(r, &doc, &more, &err), KG_EFORMAT);
    assert_string_equal(err.message, "stdin line 2: expected a JSON object, found array");
    assert_null(doc.root);
    kg_jsonl_close(r);
    fclose(stream);
}

static void an_empty_file_has_no_objects(void **state)
{
    struct kg_json_doc doc = {0};
    bool more = true;
    struct kg_jsonl *r = open_text("", 0);

    (void)state;
    assert_int_equal(kg_jsonl_next(r, &doc, &more, &err), KG_OK);
    assert_false(more);
    kg_jsonl_close(r);
}

static void malformed_lines_are_named(void **state)
{
    static const struct {
        const char *text;
        size_t n;
    } cases[] = {{"{\"a\": 1}\n{\"a\": \n", 16},
                 {"{\"a\": 1}\nnull\n", 14},
                 {"{\"a\": 1}\n{\"a\": \"\xff\"}\n", 19},
                 {"{\"a\": 1}\n\0\n", 11}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kg_jsonl *r = open_text(cases[i].text, cases[i].n);
        struct kg_json_doc doc = {0};
        bool more;
        assert_int_equal(kg_jsonl_next(r, &doc, &more, &err), KG_OK);
        assert_int_equal(kg_jsonl_next(r, &doc, &more, &err), KG_EFORMAT);
        assert_non_null(strstr(err.message, "/x line 2"));
        assert_null(doc.root);
        kg_jsonl_close(r);
    }
}

static void missing_files_and_folders_are_refused(void **state)
{
    struct kg_jsonl *r;

    (void)state;
    assert_int_equal(kg_jsonl_open(&r, in_dir("none"), &err), KG_ENOTFOUND);
    assert_null(r);
    assert_int_equal(kg_jsonl_open(&r, dir, &err), KG_EIO);
    assert_non_null(strstr(err.message, "expected a file of JSON lines, found a folder"));
}

static void long_lines_pass_and_longer_ones_do_not(void **state)
{
    enum { N = 100000 };
    char *text = malloc(N + 16);
    struct kg_json_doc doc = {0};
    struct kg_jsonl *r;
    size_t len;
    bool more;

    (void)state;
    memset(text, 'x', N + 16);
    memcpy(text, "{\"a\":\"", 6);
    memcpy(text + N, "\"}\n", 3);
    r = open_text(text, N + 3);
    assert_int_equal(kg_jsonl_next(r, &doc, &more, &err), KG_OK);
    assert_non_null(kg_json_text(kg_json_get(doc.root, "a"), &len));
    assert_int_equal(len, N - 6);
    kg_json_release(&doc);
    kg_jsonl_close(r);
    free(text);

    FILE *zeros = fopen("/dev/zero", "r");
    if (!zeros) {
        print_message("skip: no /dev/zero here\n");
        skip();
    }
    assert_int_equal(kg_jsonl_open_stream(&r, zeros, "zeros", &err), KG_OK);
    assert_int_equal(kg_jsonl_next(r, &doc, &more, &err), KG_EFORMAT);
    assert_string_equal(
        err.message,
        "zeros line 1: expected at most 67108864 bytes, found a longer line");
    kg_jsonl_close(r);
    fclose(zeros);
}

/* A value takes 2 bytes of text and more in memory: the line is short enough, but has too
 * many values. */
static void a_line_of_too_many_values_is_refused(void **state)
{
    enum { VALUES = KG_JSONL_MAX_LINE_BYTES / KG_JSON_VALUE_BYTES };
    static const char start[] = "{\"a\":[0", end[] = "]}";
    size_t n = sizeof start - 1 + 2 * (size_t)VALUES;
    char *text = malloc(n + sizeof end);
    struct kg_json_doc doc = {0};
    struct kg_jsonl *r;
    bool more;

    (void)state;
    memcpy(text, start, sizeof start - 1);
    for (size_t i = sizeof start - 1; i < n; i += 2)
        memcpy(text + i, ",0", 2);
    memcpy(text + n, end, sizeof end);
    r = open_text(text, n + sizeof end - 1);
    free(text);
    assert_int_equal(kg_jsonl_next(r, &doc, &more, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "/x line 1: expected a record of at most "
                                        "67108864 bytes (strings, keys and 8"));
    kg_jsonl_close(r);
}

static void reading_survives_every_failed_allocation(void **state)
{
    const char *text = "{\"a\": [1, 2, \"x\"]}\n{\"b\": {}}\n";
    kg_status status;
    uint64_t n = 0;

    (void)state;
    assert_int_equal(kg_file_write_atomic(in_dir("x"), text, strlen(text), &err), KG_OK);
    do {
        struct kg_json_doc doc = {0};
        struct kg_jsonl *r = NULL;
        bool more = true;
        kg_mem_fail_at(++n);
        status = kg_jsonl_open(&r, in_dir("x"), &err);
        while (status == KG_OK && more)
            status = kg_jsonl_next(r, &doc, &more, &err);
        kg_mem_fail_at(0);
        kg_json_release(&doc);
        kg_jsonl_close(r);
        assert_true(status == KG_OK || status == KG_ENOMEM);
        assert_int_equal(kg_mem_current_bytes(), 0);
    } while (status != KG_OK);
    assert_true(n > 5);
}

/* ---- zstd ---- */

static void put_frame(struct kg_zst_writer *w, const char *text, uint64_t *bytes)
{
    assert_int_equal(kg_zst_put(w, text, strlen(text), &err), KG_OK);
    assert_int_equal(kg_zst_end_frame(w, bytes, &err), KG_OK);
}

static void unpacks_to(const char *expected)
{
    struct kg_str text = {0};

    if (kg_zst_read(&text, in_dir("z"), 1 << 20, &err) != KG_OK)
        fail_msg("%s", err.message);
    assert_string_equal(kg_str_text(&text), expected);
    kg_str_release(&text);
}

static void frames_read_back_as_one_text(void **state)
{
    struct kg_zst_writer *w;
    uint64_t one, two, size;

    (void)state;
    assert_int_equal(kg_zst_open(&w, in_dir("z"), 0, &err), KG_OK);
    put_frame(w, "first\n", &one);
    put_frame(w, "second\n", &two);
    assert_int_equal(kg_file_size(&size, in_dir("z"), &err), KG_OK);
    assert_int_equal(size, two); /* an ended frame is in the file, not only in a buffer */
    assert_int_equal(kg_zst_put(w, "third\n", 6, &err), KG_OK);
    assert_int_equal(kg_zst_close(w, &err), KG_OK); /* ends the open frame */
    assert_true(two > one);
    unpacks_to("first\nsecond\nthird\n");
}

static void a_file_is_cut_between_frames_and_continued(void **state)
{
    struct kg_zst_writer *w;
    uint64_t one, two;

    (void)state;
    assert_int_equal(kg_zst_open(&w, in_dir("z"), 0, &err), KG_OK);
    put_frame(w, "first\n", &one);
    put_frame(w, "wrong\n", &two);
    assert_int_equal(kg_zst_close(w, &err), KG_OK);
    assert_int_equal(kg_zst_open(&w, in_dir("z"), one, &err), KG_OK);
    put_frame(w, "second\n", &two);
    assert_int_equal(kg_zst_close(w, &err), KG_OK);
    unpacks_to("first\nsecond\n");
    assert_int_equal(kg_zst_open(&w, in_dir("z"), two + 1, &err), KG_EFORMAT);
    assert_null(w);
}

static void nothing_written_is_an_empty_text(void **state)
{
    struct kg_zst_writer *w;
    uint64_t bytes;

    (void)state;
    assert_int_equal(kg_zst_open(&w, in_dir("z"), 0, &err), KG_OK);
    assert_int_equal(kg_zst_end_frame(w, &bytes, &err), KG_OK);
    assert_int_equal(bytes, 0);
    assert_int_equal(kg_zst_close(w, &err), KG_OK);
    unpacks_to("");
    assert_int_equal(kg_zst_close(NULL, &err), KG_OK);
}

/* Several buffers of bytes that hardly compress. */
static void large_frames_pass_whole(void **state)
{
    enum { N = 300000 };
    unsigned char *bytes = malloc(N);
    struct kg_zst_writer *w;
    struct kg_str back = {0};
    uint32_t x = 1;

    (void)state;
    for (int i = 0; i < N; i++)
        bytes[i] = (unsigned char)((x = x * 1664525u + 1013904223u) >> 24);
    assert_int_equal(kg_zst_open(&w, in_dir("z"), 0, &err), KG_OK);
    assert_int_equal(kg_zst_put(w, bytes, N, &err), KG_OK);
    assert_int_equal(kg_zst_close(w, &err), KG_OK);
    assert_int_equal(kg_zst_read(&back, in_dir("z"), N, &err), KG_OK);
    assert_int_equal(back.len, N);
    assert_memory_equal(back.data, bytes, N);
    kg_str_clear(&back);
    assert_int_equal(kg_zst_read(&back, in_dir("z"), N - 1, &err), KG_EFORMAT);
    assert_non_null(strstr(
        err.message, "expected at most 299999 bytes when decompressed, found more"));
    kg_str_release(&back);
    free(bytes);
}

static void damaged_files_are_refused(void **state)
{
    struct kg_str raw = {0};
    struct kg_str text = {0};
    struct kg_zst_writer *w;
    uint64_t one, size;

    (void)state;
    assert_int_equal(kg_zst_open(&w, in_dir("z"), 0, &err), KG_OK);
    put_frame(w, "first, with some text that is long enough to be cut\n", &one);
    put_frame(w, "second, with some text that is long enough to be cut\n", &size);
    assert_int_equal(kg_zst_close(w, &err), KG_OK);
    assert_int_equal(kg_file_read(&raw, in_dir("z"), 1 << 20, &err), KG_OK);
    for (size_t n = 1; n < raw.len; n++) {
        kg_str_clear(&text);
        assert_int_equal(kg_file_write_atomic(in_dir("cut"), raw.data, n, &err), KG_OK);
        kg_status status = kg_zst_read(&text, in_dir("cut"), 1 << 20, &err);
        assert_int_equal(status, n == one ? KG_OK : KG_EFORMAT);
    }
    raw.data[raw.len - 6] ^= 1; /* inside the text, so only the checksum shows it */
    assert_int_equal(kg_file_write_atomic(in_dir("bad"), raw.data, raw.len, &err), KG_OK);
    assert_int_equal(kg_zst_read(&text, in_dir("bad"), 1 << 20, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "/bad: expected zstd frames, found at byte "));
    kg_str_release(&raw);
    kg_str_release(&text);
}

/* A new file that could not be finished is removed, and nothing leaks. */
static void failed_writing_leaves_nothing(void **state)
{
    int failures = 0;

    (void)state;
    for (uint64_t n = 1;; n++) {
        struct kg_zst_writer *w = NULL;
        struct kg_err second;
        uint64_t bytes;
        kg_file_fail_at(n, ENOSPC);
        kg_status status = kg_zst_open(&w, in_dir("z"), 0, &err);
        if (status == KG_OK)
            status = kg_zst_put(w, "text", 4, &err);
        if (status == KG_OK)
            status = kg_zst_end_frame(w, &bytes, &err);
        kg_status closed = kg_zst_close(w, status == KG_OK ? &err : &second);
        kg_file_fail_at(0, 0);
        assert_int_equal(kg_mem_current_bytes(), 0);
        if (status == KG_OK && closed == KG_OK)
            break;
        assert_int_equal(err.code, KG_ENOSPACE);
        assert_false(kg_file_exists(in_dir("z")));
        failures++;
    }
    assert_int_equal(failures, 3); /* open, write, sync */
    unpacks_to("text");
}

static void writing_survives_every_failed_allocation(void **state)
{
    kg_status status;
    uint64_t n = 0;

    (void)state;
    do {
        struct kg_zst_writer *w;
        kg_mem_fail_at(++n);
        status = kg_zst_open(&w, in_dir("z"), 0, &err);
        kg_mem_fail_at(0);
        assert_true(status == KG_OK || status == KG_ENOMEM);
        if (status == KG_OK)
            status = kg_zst_close(w, &err);
        assert_int_equal(kg_mem_current_bytes(), 0);
    } while (status != KG_OK);
    assert_true(n > 3);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_dir, remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(reads_objects_with_their_line_numbers),
        TEST(reads_a_borrowed_stream),
        TEST(an_empty_file_has_no_objects),
        TEST(malformed_lines_are_named),
        TEST(missing_files_and_folders_are_refused),
        TEST(long_lines_pass_and_longer_ones_do_not),
        TEST(a_line_of_too_many_values_is_refused),
        TEST(reading_survives_every_failed_allocation),
        TEST(frames_read_back_as_one_text),
        TEST(a_file_is_cut_between_frames_and_continued),
        TEST(nothing_written_is_an_empty_text),
        TEST(large_frames_pass_whole),
        TEST(damaged_files_are_refused),
        TEST(failed_writing_leaves_nothing),
        TEST(writing_survives_every_failed_allocation),
    };

    return cmocka_run_group_tests_name("jsonl", tests, NULL, NULL);
}
