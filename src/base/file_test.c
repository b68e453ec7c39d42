/* Tests of reading, mapping and writing files; each system call fails once. */
#include "base/file.h"

#include "base/file_internal.h"
#include "base/folder_testing.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* The folder holds exactly that many files. */
static void has_files(size_t expected)
{
    char **names;
    size_t n;

    assert_int_equal(kg_file_list(&names, &n, dir, &err), KG_OK);
    kg_file_names_free(names, n);
    assert_int_equal(n, expected);
}

static void reads_what_was_written(void **state)
{
    struct kg_str text = {0};

    (void)state;
    put("a", "hello");
    assert_int_equal(kg_str_puts(&text, ">", &err), KG_OK);
    assert_int_equal(kg_file_read(&text, in_dir("a"), 5, &err), KG_OK);
    assert_string_equal(text.data, ">hello");
    kg_str_release(&text);
}

static void refuses_too_large_missing_and_folders(void **state)
{
    struct kg_str text = {0};

    (void)state;
    put("a", "hello");
    assert_int_equal(kg_file_read(&text, in_dir("a"), 4, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "/a: expected at most 4 bytes, found 5"));
    assert_int_equal(kg_file_read(&text, in_dir("none"), 4, &err), KG_ENOTFOUND);
    assert_non_null(strstr(err.message, "/none: cannot open: No such file"));
    assert_int_equal(kg_file_read(&text, dir, 4, &err), KG_EIO);
    assert_non_null(strstr(err.message, "expected a file, found a folder"));
    assert_int_equal(text.len, 0);
    kg_str_release(&text);
}

static void reads_pipes_up_to_the_limit(void **state)
{
    struct kg_str text = {0};
    char path[64];
    int fd[2];

    (void)state;
    for (uint64_t limit = 5; limit >= 4; limit--) {
        assert_int_equal(pipe(fd), 0);
        assert_int_equal(write(fd[1], "hello", 5), 5);
        close(fd[1]);
        snprintf(path, sizeof path, "/dev/fd/%d", fd[0]);
        assert_int_equal(kg_file_read_stream(&text, path, limit, &err),
                         limit == 5 ? KG_OK : KG_EFORMAT);
        assert_string_equal(kg_str_text(&text),
                            "hello"); /* a failed read appends nothing */
        close(fd[0]);
    }
    kg_str_release(&text);
}

static void maps_files_even_empty_ones(void **state)
{
    struct kg_map map;

    (void)state;
    put("a", "hello");
    put("empty", "");
    assert_int_equal(kg_map_open(&map, in_dir("a"), &err), KG_OK);
    assert_int_equal(map.bytes, 5);
    assert_memory_equal(map.data, "hello", 5);
    kg_map_close(&map);
    assert_int_equal(kg_map_open(&map, in_dir("empty"), &err), KG_OK);
    assert_null(map.data);
    assert_int_equal(map.bytes, 0);
    kg_map_close(&map);
    assert_int_equal(kg_map_open(&map, in_dir("none"), &err), KG_ENOTFOUND);
    kg_map_close(&map);
}

static void atomic_write_replaces(void **state)
{
    (void)state;
    put("a", "old");
    put("a", "new");
    holds("a", "new");
    has_files(1);
}

static void failed_atomic_write_leaves_the_old_file(void **state)
{
    int failures = 0;
    kg_status status;

    (void)state;
    put("a", "old");
    for (uint64_t n = 1;; n++) {
        kg_file_fail_at(n, ENOSPC);
        status = kg_file_write_atomic(in_dir("a"), "new", 3, &err);
        kg_file_fail_at(0, 0);
        if (status == KG_OK)
            break;
        failures++;
        assert_int_equal(status, KG_ENOSPACE);
        assert_non_null(strstr(err.message, "No space left"));
        has_files(1);
        if (n <= 4) /* open, write, sync, rename: after that the new file is in place */
            holds("a", "old");
    }
    /* these four, then opening and syncing the folder; that it cannot be listed for stale
     * files is no error */
    assert_int_equal(failures, 6);
    holds("a", "new");
}

static void atomic_write_survives_every_failed_allocation(void **state)
{
    (void)state;
    put("a", "old");
    for (uint64_t n = 1;; n++) {
        kg_mem_fail_at(n);
        kg_status status = kg_file_write_atomic(in_dir("a"), "new", 3, &err);
        kg_mem_fail_at(0);
        if (status == KG_OK)
            break;
        assert_int_equal(status, KG_ENOMEM);
        assert_int_equal(kg_mem_current_bytes(), 0);
        has_files(1);
    }
    holds("a", "new");
}

static void writer_takes_small_and_large_pieces(void **state)
{
    struct kg_file_writer w;
    enum { LARGE = 1 << 20 };
    unsigned char *large = calloc(LARGE, 1);
    uint64_t size;
    struct kg_map map;

    (void)state;
    for (int i = 0; i < LARGE; i++)
        large[i] = (unsigned char)(i * 7 + i / 251);
    assert_int_equal(kg_file_writer_open(&w, in_dir("a"), &err), KG_OK);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(kg_file_writer_put(&w, large + i * 300, 300, &err), KG_OK);
    assert_int_equal(kg_file_writer_put(&w, large + 300000, LARGE - 300000, &err), KG_OK);
    assert_int_equal(kg_file_writer_put(&w, large, 0, &err), KG_OK);
    assert_int_equal(w.written, LARGE);
    assert_int_equal(kg_file_writer_close(&w, &err), KG_OK);
    assert_int_equal(kg_file_size(&size, in_dir("a"), &err), KG_OK);
    assert_int_equal(size, LARGE);
    assert_int_equal(kg_map_open(&map, in_dir("a"), &err), KG_OK);
    assert_memory_equal(map.data, large, LARGE);
    kg_map_close(&map);
    free(large);
}

static void writer_goes_where_it_is_sent(void **state)
{
    struct kg_file_writer w;

    (void)state;
    assert_int_equal(kg_file_writer_open(&w, in_dir("a"), &err), KG_OK);
    assert_int_equal(kg_file_writer_seek(&w, 4, &err), KG_OK);
    assert_int_equal(kg_file_writer_put(&w, "ef", 2, &err), KG_OK);
    assert_int_equal(kg_file_writer_seek(&w, 6, &err), KG_OK); /* already there */
    assert_int_equal(kg_file_writer_put(&w, "gh", 2, &err), KG_OK);
    assert_int_equal(kg_file_writer_seek(&w, 0, &err), KG_OK);
    assert_int_equal(kg_file_writer_put(&w, "abcd", 4, &err), KG_OK);
    assert_int_equal(kg_file_writer_close(&w, &err), KG_OK);
    holds("a", "abcdefgh");
}

static void a_file_is_extended_and_never_cut(void **state)
{
    struct kg_file_writer w;
    uint64_t size;

    (void)state;
    assert_int_equal(kg_file_writer_open(&w, in_dir("f"), &err), KG_OK);
    assert_int_equal(kg_file_writer_put(&w, "abc", 3, &err), KG_OK);
    assert_int_equal(kg_file_writer_extend(&w, 2, &err), KG_OK);
    assert_int_equal(kg_file_writer_extend(&w, 9, &err), KG_OK);
    assert_int_equal(kg_file_writer_put(&w, "d", 1, &err), KG_OK);
    assert_int_equal(kg_file_writer_close(&w, &err), KG_OK);
    assert_int_equal(kg_file_size(&size, in_dir("f"), &err), KG_OK);
    assert_int_equal(size, 9);
    holds("f", "abcd"); /* then zeros */
}

static void flush_makes_bytes_visible(void **state)
{
    struct kg_file_writer w;

    (void)state;
    assert_int_equal(kg_file_writer_open(&w, in_dir("a"), &err), KG_OK);
    assert_int_equal(kg_file_writer_put(&w, "abc", 3, &err), KG_OK);
    holds("a", "");
    assert_int_equal(kg_file_writer_flush(&w, &err), KG_OK);
    holds("a", "abc");
    kg_file_writer_abort(&w);
    assert_false(kg_file_exists(in_dir("a")));
    kg_file_writer_abort(&w); /* aborting twice is harmless */
}

static void append_cuts_and_continues(void **state)
{
    struct kg_file_writer w;

    (void)state;
    put("log", "one\ntwo\nthr");
    assert_int_equal(kg_file_writer_append(&w, in_dir("log"), 8, &err), KG_OK);
    assert_int_equal(w.written, 8);
    assert_int_equal(kg_file_writer_put(&w, "three\n", 6, &err), KG_OK);
    assert_int_equal(w.written, 14);
    assert_int_equal(kg_file_writer_close(&w, &err), KG_OK);
    holds("log", "one\ntwo\nthree\n");
    assert_int_equal(kg_file_writer_append(&w, in_dir("log"), 4, &err), KG_OK);
    kg_file_writer_abort(&w);
    holds("log", "one\n");
}

static void append_wants_the_bytes_it_keeps(void **state)
{
    struct kg_file_writer w;

    (void)state;
    put("log", "one\n");
    assert_int_equal(kg_file_writer_append(&w, in_dir("log"), 5, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "expected at least 5 bytes, found 4"));
    holds("log", "one\n");
    assert_int_equal(kg_file_writer_append(&w, in_dir("none"), 1, &err), KG_ENOTFOUND);
    assert_int_equal(kg_file_writer_append(&w, in_dir("new"), 0, &err), KG_OK);
    assert_int_equal(kg_file_writer_close(&w, &err), KG_OK);
    holds("new", "");
}

static void failed_close_removes_a_fresh_file(void **state)
{
    struct kg_file_writer w;

    (void)state;
    for (uint64_t n = 1; n <= 2; n++) {
        assert_int_equal(kg_file_writer_open(&w, in_dir("a"), &err), KG_OK);
        assert_int_equal(kg_file_writer_put(&w, "abc", 3, &err), KG_OK);
        kg_file_fail_at(n, EIO);
        assert_int_equal(kg_file_writer_close(&w, &err), KG_EIO);
        assert_null(w.path);
        has_files(0);
    }
}

static void a_full_disk_is_its_own_status(void **state)
{
    struct kg_file_writer w;

    (void)state;
    if (access("/dev/full", W_OK) != 0) {
        print_message("skip: no /dev/full here\n");
        skip();
    }
    assert_int_equal(kg_file_writer_append(&w, "/dev/full", 0, &err), KG_EIO);
    assert_int_equal(symlink("/dev/full", in_dir("full")), 0);
    assert_int_equal(kg_file_writer_open(&w, in_dir("full"), &err), KG_OK);
    assert_int_equal(kg_file_writer_put(&w, "abc", 3, &err), KG_OK);
    assert_int_equal(kg_file_writer_flush(&w, &err), KG_ENOSPACE);
    assert_non_null(strstr(err.message, "/full: cannot write: No space left on device"));
    kg_file_writer_abort(&w);
    assert_true(kg_file_exists(in_dir("full"))); /* a device is not removed */
}

static void copy_is_whole_or_absent(void **state)
{
    char text[200001];
    int failures = 0;

    (void)state;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    put("a", text);
    for (uint64_t n = 1;; n++) {
        kg_file_fail_at(n, EIO);
        kg_status status = kg_file_copy(in_dir("a"), in_dir("b"), &err);
        kg_file_fail_at(0, 0);
        if (status == KG_OK)
            break;
        assert_int_equal(status, KG_EIO);
        if (kg_file_exists(in_dir("b"))) /* only the sync of the folder failed */
            holds("b", text);
        else
            has_files(1);
        assert_int_equal(kg_file_remove_tree(in_dir("b"), &err), KG_OK);
        failures++;
    }
    assert_true(failures >= 8);
    holds("b", text);
    has_files(2);
}

/* Tries the lock in a child process.   returns 0: it got the lock, 1: a refusal that
 * names the parent */
static int lock_in_a_child(const char *path, pid_t parent)
{
    char words[64];
    int status;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        struct kg_file_lock lock;

        if (kg_file_lock_take(&lock, path, &err) == KG_OK)
            _exit(0);
        snprintf(words, sizeof words, "found process %ld", (long)parent);
        _exit(err.code == KG_ECONFLICT && strstr(err.message, words) ? 1 : 2);
    }
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

static void a_lock_is_held_by_one_process(void **state)
{
    struct kg_file_lock lock = {0};

    (void)state;
    assert_int_equal(kg_file_lock_take(&lock, in_dir("absent/lock"), &err), KG_ENOTFOUND);
    assert_false(lock.held);
    kg_file_fail_at(2, ENOLCK); /* call 1 is the open */
    assert_int_equal(kg_file_lock_take(&lock, in_dir("lock"), &err), KG_EIO);
    assert_non_null(strstr(err.message, "/lock: cannot lock: "));
    assert_int_equal(kg_file_lock_take(&lock, in_dir("lock"), &err), KG_OK);
    assert_int_equal(lock_in_a_child(in_dir("lock"), getpid()), 1);
    kg_file_lock_release(&lock);
    kg_file_lock_release(&lock);
    assert_int_equal(lock_in_a_child(in_dir("lock"), getpid()), 0);
    assert_int_equal(kg_file_lock_take(&lock, in_dir("lock"), &err), KG_OK);
    kg_file_lock_release(&lock);
}

static pid_t gone_process(void)
{
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0)
        _exit(0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    return child;
}

/* Creates a temporary file; %ld is the process number. */
static void put_temporary(char name[64], const char *format, long pid)
{
    snprintf(name, 64, format, pid);
    put(name, "half");
}

static void only_what_a_gone_process_left_is_removed(void **state)
{
    static const char *const go[] = {"a.tmp-%ld", "a.tmp-%ld-0", "a.tmp-%ld-12"};
    static const char *const stay[] = {"a.tmp-%ldx",   "a.tmp-%ld-1-2",
                                       "a.tmp-x%ld",   "b.tmp-%ld-0",
                                       "ba.tmp-%ld-0", "a.tmp-9%ld0000000000000000000"};
    long gone = gone_process();
    char name[64];

    (void)state;
    for (size_t i = 0; i < 3; i++)
        put_temporary(name, go[i], gone);
    for (size_t i = 0; i < 6; i++)
        put_temporary(name, stay[i], gone);
    put_temporary(name, "a.tmp-%ld-0", (long)getpid());
    put_temporary(name, "a.tmp-%ld-0", (long)getppid());
    snprintf(name, sizeof name, "a.tmp-%ld-7", gone);
    assert_int_equal(kg_file_make_dirs(in_dir(name), &err), KG_OK);
    assert_int_equal(kg_file_remove_stale(in_dir("a"), &err), KG_OK);
    assert_true(kg_file_is_dir(in_dir(name))); /* a folder: writers make only files */
    has_files(6 + 2 + 1);
    assert_int_equal(kg_file_remove_stale(in_dir("absent/a"), &err), KG_ENOTFOUND);
}

/* Opening a pipe would block. Sockets and devices are refused too. */
static void what_is_no_regular_file_is_refused_at_once(void **state)
{
    struct kg_str text = {0};
    struct kg_map map;

    (void)state;
    assert_int_equal(mkfifo(in_dir("pipe"), 0600), 0);
    assert_int_equal(kg_file_read(&text, in_dir("pipe"), 100, &err), KG_EIO);
    assert_non_null(strstr(err.message, "pipe: expected a file, found a pipe"));
    assert_int_equal(kg_map_open(&map, in_dir("pipe"), &err), KG_EIO);
    assert_int_equal(kg_file_copy(in_dir("pipe"), in_dir("copy"), &err), KG_EIO);
    assert_int_equal(kg_map_open(&map, "/dev/zero", &err), KG_EIO);
    assert_non_null(strstr(err.message, "found a device"));
    assert_int_equal(kg_file_read(&text, "/dev/zero", 100, &err), KG_EIO);
    assert_int_equal(kg_file_read_stream(&text, "/dev/null", 100, &err), KG_OK);
    kg_str_release(&text);
}

/* A dangling link counts as existing, so that reading it gives an error instead of being
 * treated as absent. */
static void a_link_to_nowhere_exists(void **state)
{
    struct kg_str text = {0};

    (void)state;
    assert_int_equal(symlink("loop", in_dir("loop")), 0);
    assert_int_equal(symlink("nothing", in_dir("dangling")), 0);
    assert_true(kg_file_exists(in_dir("loop")));
    assert_true(kg_file_exists(in_dir("dangling")));
    assert_false(kg_file_exists(in_dir("nothing")));
    /* a path that cannot be examined, as in another user's folder, counts as existing */
    assert_true(kg_file_exists(in_dir("loop/below")));
    assert_int_equal(kg_file_read(&text, in_dir("loop"), 100, &err), KG_EIO);
    assert_non_null(strstr(err.message, "loop: cannot open: Too many levels"));
    assert_int_equal(kg_file_read(&text, in_dir("dangling"), 100, &err), KG_EIO);
    assert_non_null(strstr(err.message, "a link that leads nowhere"));
    assert_int_equal(unlink(in_dir("loop")) + unlink(in_dir("dangling")), 0);
    kg_str_release(&text);
}

static void a_write_takes_away_what_a_killed_one_left(void **state)
{
    char name[64];

    (void)state;
    put_temporary(name, "page.tmp-%ld-0", gone_process());
    assert_true(kg_file_exists(in_dir(name)));
    assert_int_equal(kg_file_write_atomic(in_dir("page"), "x", 1, &err), KG_OK);
    assert_false(kg_file_exists(in_dir(name)));
}

static void skipped_syncs_still_count_and_fail(void **state)
{
    (void)state;
    assert_int_equal(kg_file_sync_fd(-1), -1);
    kg_file_skip_syncs(true);
    assert_int_equal(kg_file_sync_fd(-1), 0);
    kg_file_fail_at(2, ENOSPC);
    assert_int_equal(kg_file_sync_fd(-1), 0);
    assert_int_equal(kg_file_sync_fd(-1), -1);
    assert_int_equal(errno, ENOSPC);
    kg_file_skip_syncs(false);
    assert_int_equal(kg_file_sync_fd(-1), -1);
}

/* ---- maps of a file that is truncated ---- */

enum { PAGES = 4 * 65536 };

/* Maps a file, truncates it and reads past its end.   returns the exit status for a
 * child */
static int touch_what_is_gone(void)
{
    struct kg_map map;
    struct kg_err e;

    kg_map_guard();
    if (kg_map_open(&map, in_dir("whole"), &e) != KG_OK ||
        truncate(in_dir("whole"), 100) != 0)
        return 50;
    if (map.data[0] != 'x')
        return 51;
    if (map.data[PAGES - 1] != 0 || map.data[PAGES / 2] != 0)
        return 52;
    kg_map_close(&map);
    return 53;
}

static int child_that_touches(char said[512])
{
    int fd[2];
    int status;
    size_t n = 0;
    ssize_t got;

    assert_int_equal(pipe(fd), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fd[1], STDERR_FILENO);
        _exit(touch_what_is_gone());
    }
    close(fd[1]);
    while (n < 511 && (got = read(fd[0], said + n, 511 - n)) > 0)
        n += (size_t)got;
    said[n] = '\0';
    close(fd[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void a_map_that_is_cut_off_ends_in_one_line(void **state)
{
    static char text[PAGES];
    char said[512];
    char line[512];

    (void)state;
    memset(text, 'x', PAGES);
    assert_int_equal(kg_file_write_atomic(in_dir("whole"), text, PAGES, &err), KG_OK);
    assert_int_equal(child_that_touches(said), 1);
    snprintf(line, sizeof line, "kedge: %s: the file was cut off while it was in use\n",
             in_dir("whole"));
    assert_string_equal(said, line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_map_that_is_cut_off_ends_in_one_line, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(reads_what_was_written, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(refuses_too_large_missing_and_folders, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(reads_pipes_up_to_the_limit, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(maps_files_even_empty_ones, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(what_is_no_regular_file_is_refused_at_once,
                                        make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_link_to_nowhere_exists, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_write_takes_away_what_a_killed_one_left,
                                        make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(atomic_write_replaces, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(failed_atomic_write_leaves_the_old_file, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(atomic_write_survives_every_failed_allocation,
                                        make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(writer_takes_small_and_large_pieces, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(writer_goes_where_it_is_sent, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(a_file_is_extended_and_never_cut, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(flush_makes_bytes_visible, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(append_cuts_and_continues, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(append_wants_the_bytes_it_keeps, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(failed_close_removes_a_fresh_file, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(a_full_disk_is_its_own_status, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(copy_is_whole_or_absent, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_lock_is_held_by_one_process, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(only_what_a_gone_process_left_is_removed,
                                        make_dir, remove_dir),
        cmocka_unit_test(skipped_syncs_still_count_and_fail),
    };

    return cmocka_run_group_tests_name("file", tests, NULL, NULL);
}
