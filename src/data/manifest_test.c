/* Tests of the list of a folder's files: any changed bit, in the list or in a file, is
 * found and named. */
#include "base/folder_testing.h"

#include "base/str.h"
#include "data/manifest.h"

enum { LONG_BYTES = 40000, PIECE = 64 << 20 };

static int make_folder(void **state)
{
    char text[LONG_BYTES + 1];

    if (make_dir(state) != 0)
        return 1;
    for (int i = 0; i < LONG_BYTES; i++)
        text[i] = (char)('a' + i * i % 23);
    text[LONG_BYTES] = '\0';
    put("state", text);
    put("empty", "");
    assert_int_equal(kg_file_make_dirs(in_dir("model"), &err), KG_OK);
    put("model/config.json", "{\"hidden_size\": 8}\n");
    assert_int_equal(kg_manifest_write(dir, &err), KG_OK);
    return 0;
}

static void refused(kg_status code, const char *words)
{
    memset(&err, 0, sizeof err);
    assert_int_equal(kg_manifest_check(NULL, dir, &err), code);
    if (!strstr(err.message, words))
        fail_msg("expected a message with '%s', found: %s", words, err.message);
}

/* XORs the byte at offset `at` of a file with `mask`. */
static void flip(const char *name, long at, int mask)
{
    FILE *f = fopen(in_dir(name), "r+b");
    int c;

    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    c = fgetc(f);
    assert_true(c != EOF);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_true(fputc(c ^ mask, f) != EOF);
    assert_int_equal(fclose(f), 0);
}

static void an_untouched_folder_is_what_was_saved(void **state)
{
    struct kg_manifest_size size;

    (void)state;
    assert_int_equal(kg_manifest_check(&size, dir, &err), KG_OK);
    assert_int_equal(size.files, 3);
    assert_int_equal(size.bytes, LONG_BYTES + strlen("{\"hidden_size\": 8}\n"));
}

static void every_flipped_bit_is_found(void **state)
{
    (void)state;
    for (long at = 0; at < LONG_BYTES; at += 997)
        for (int bit = 0; bit < 8; bit++) {
            flip("state", at, 1 << bit);
            refused(KG_EFORMAT, "/state: damaged");
            flip("state", at, 1 << bit);
        }
    flip("model/config.json", 17, 2);
    refused(KG_EFORMAT, "/model/config.json: damaged");
    flip("model/config.json", 17, 2);
    assert_int_equal(kg_manifest_check(NULL, dir, &err), KG_OK);
}

/* Every byte of the list is flipped in turn, except white space: each change must be an
 * error. */
static void a_damaged_list_is_found(void **state)
{
    struct kg_str text = {0};

    (void)state;
    assert_int_equal(kg_file_read(&text, in_dir(KG_MANIFEST_NAME), 1 << 20, &err), KG_OK);
    for (size_t at = 0; at < text.len; at++) {
        if (kg_char_in(" \n", text.data[at]))
            continue;
        flip(KG_MANIFEST_NAME, (long)at, 1);
        memset(&err, 0, sizeof err);
        if (kg_manifest_check(NULL, dir, &err) == KG_OK)
            fail_msg("byte %zu, '%c', was changed unseen", at, text.data[at]);
        flip(KG_MANIFEST_NAME, (long)at, 1);
    }
    kg_str_release(&text);
}

static void other_lengths_and_lost_files_are_named(void **state)
{
    (void)state;
    put("empty", "x");
    refused(KG_EFORMAT, "/empty: expected the 0 bytes that were saved, found 1");
    put("empty", "");
    put("model/config.json", "{\"hidden_size\": 8}");
    refused(KG_EFORMAT, "expected the 19 bytes that were saved, found 18");
    assert_int_equal(remove(in_dir("model/config.json")), 0);
    refused(KG_ENOTFOUND, "config.json");
    assert_int_equal(remove(in_dir(KG_MANIFEST_NAME)), 0);
    refused(KG_ENOTFOUND, "manifest.json: expected the list of saved files");
}

static void a_list_names_nothing_outside(void **state)
{
    static const char *const paths[] = {"../x", "/etc/passwd", "a/../../x", "..", ""};

    (void)state;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        char text[256];

        snprintf(text, sizeof text,
                 "{\"format\": 1, \"piece_bytes\": %d, \"files\": [{\"path\": \"%s\", "
                 "\"bytes\": 0, \"pieces\": []}]}",
                 PIECE, paths[i]);
        put(KG_MANIFEST_NAME, text);
        refused(KG_EFORMAT, "expected a file below the folder");
    }
}

static void files_that_came_later_are_left_alone(void **state)
{
    (void)state;
    put("model/README.md", "mine");
    assert_int_equal(kg_manifest_check(NULL, dir, &err), KG_OK);
}

/* Three manifests hash a third of the pieces each; joined, they write the list that one
 * process writes. */
static void hashing_may_be_shared(void **state)
{
    struct kg_manifest m[3];
    struct kg_str alone = {0}, shared = {0};
    FILE *f = fopen(in_dir("long"), "wb");

    (void)state;
    assert_non_null(f);
    assert_int_equal(fseek(f, 2L * PIECE + 5, SEEK_SET), 0); /* leaves a hole */
    assert_int_equal(fputc('x', f), 'x');
    assert_int_equal(fclose(f), 0);
    assert_int_equal(kg_manifest_write(dir, &err), KG_OK);
    assert_int_equal(kg_file_read(&alone, in_dir(KG_MANIFEST_NAME), 1 << 16, &err),
                     KG_OK);
    assert_int_equal(remove(in_dir(KG_MANIFEST_NAME)), 0);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(kg_manifest_list(&m[i], dir, &err), KG_OK);
        assert_int_equal(m[i].n_pieces, 5); /* an empty file has no piece */
        assert_int_equal(kg_manifest_hash(&m[i], 5 * i / 3, 5 * (i + 1) / 3, &err),
                         KG_OK);
    }
    for (size_t p = 0; p < 5; p++)
        m[0].hashes[p] |= m[1].hashes[p] | m[2].hashes[p];
    assert_int_equal(kg_manifest_put(&m[0], &err), KG_OK);
    assert_int_equal(kg_file_read(&shared, in_dir(KG_MANIFEST_NAME), 1 << 16, &err),
                     KG_OK);
    assert_string_equal(kg_str_text(&alone), kg_str_text(&shared));
    put("state", "shorter");
    assert_int_equal(kg_manifest_hash(&m[1], 0, 5, &err), KG_EIO);
    assert_non_null(strstr(err.message, "state: expected 40000 bytes, found 7: the"));
    for (size_t i = 0; i < 3; i++)
        kg_manifest_release(&m[i]);
    kg_str_release(&alone);
    kg_str_release(&shared);
}

/* A file of more than one piece: the message gives the offset of the damaged piece. */
static void the_piece_is_named(void **state)
{
    FILE *f = fopen(in_dir("long"), "wb");

    (void)state;
    assert_non_null(f);
    assert_int_equal(fseek(f, PIECE + 5, SEEK_SET), 0); /* a hole: no disk is used */
    assert_int_equal(fputc('x', f), 'x');
    assert_int_equal(fclose(f), 0);
    assert_int_equal(kg_manifest_write(dir, &err), KG_OK);
    assert_int_equal(kg_manifest_check(NULL, dir, &err), KG_OK);
    flip("long", PIECE + 2, 1);
    refused(KG_EFORMAT, "the piece at byte 67108864");
}

static void failing_memory_is_a_status(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        kg_status status;

        kg_mem_fail_at(n);
        status = kg_manifest_write(dir, &err);
        if (status == KG_OK)
            status = kg_manifest_check(NULL, dir, &err);
        kg_mem_fail_at(0);
        if (status == KG_OK)
            break;
        assert_int_equal(status, KG_ENOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_untouched_folder_is_what_was_saved,
                                        make_folder, remove_dir),
        cmocka_unit_test_setup_teardown(every_flipped_bit_is_found, make_folder,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(a_damaged_list_is_found, make_folder, remove_dir),
        cmocka_unit_test_setup_teardown(other_lengths_and_lost_files_are_named,
                                        make_folder, remove_dir),
        cmocka_unit_test_setup_teardown(a_list_names_nothing_outside, make_folder,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(files_that_came_later_are_left_alone, make_folder,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(hashing_may_be_shared, make_folder, remove_dir),
        cmocka_unit_test_setup_teardown(the_piece_is_named, make_folder, remove_dir),
        cmocka_unit_test_setup_teardown(failing_memory_is_a_status, make_folder,
                                        remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
