/* The program in an environment that it did not choose: a terminal that obeys control
 * characters, signals inherited as ignored, closed standard files, a small stack. ./kedge
 * is run.
 */
#define _GNU_SOURCE /* ptys */
#include "base/file.h"
#include "base/need_testing.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROOT     "build/test-surroundings"
#define MODEL    ROOT "/model"
#define DATA     ROOT "/data.jsonl"
#define TEMPLATE "tests/data/chat_templates/Qwen-Qwen1.5-72B-Chat.jinja"

/* Sets a title, rings the bell, overwrites the line and clears the screen; U+009B is a
 * one-character CSI. */
static const char line[] =
    "{\"prompt\": \"1,4:9,2\\u001b]0;t\\u0007\\r\\u009b2J\", \"completion\": \"7\"}\n";

static int set_up(void **state)
{
    (void)state;
    NEED(kg_file_remove_tree(ROOT, err));
    NEED(kg_file_make_dirs(ROOT, err));
    NEED(kg_file_write_atomic(DATA, line, sizeof line - 1, err));
    if (access("./kedge", X_OK) != 0)
        return 0;
    return system(
        "./kedge new --hidden 32 --ffn 32 --layers 1 --heads 1 --vocab 300 "
        "--max-positions 1024 --train-tokenizer tests/data/tokenizer/corpus.txt " MODEL
        " > " ROOT "/said 2>&1");
}

static void need_kedge(void)
{
    if (access("./kedge", X_OK) == 0)
        return;
    print_message("skip: ./kedge is not built\n");
    skip();
}

/* Reads fd until its writer has closed it, which a terminal reports as EIO. */
static void read_all(struct kg_str *out, int fd)
{
    char bytes[4096];
    ssize_t n;

    while ((n = read(fd, bytes, sizeof bytes)) > 0 || (n < 0 && errno == EINTR))
        if (n > 0)
            NEED(kg_str_append(out, bytes, (size_t)n, err));
    close(fd);
}

/* Runs argv with a terminal as its stdout and stderr.   returns the exit status */
static int on_terminal(struct kg_str *out, const char *const *argv)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY), status = 0;
    pid_t pid;

    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) {
        print_message("skip: no terminal to be had: %s\n", strerror(errno));
        skip();
    }
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int slave = open(ptsname(master), O_RDWR | O_NOCTTY);

        dup2(slave, STDOUT_FILENO);
        dup2(slave, STDERR_FILENO);
        close(slave);
        close(master);
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    kg_str_clear(out);
    read_all(out, master);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Fails on control characters that kedge does not write on purpose: it writes only ESC [
 * K (progress) and line ends, which the terminal may change. */
static void is_clean(const struct kg_str *out)
{
    for (size_t i = 0; i < out->len; i++) {
        unsigned char c = (unsigned char)out->data[i];
        bool own = c == '\r' || c == '\n' || c == '\t' ||
                   (c == 0x1b && strncmp(out->data + i, "\x1b[K", 3) == 0);

        if ((c < 0x20 && !own) || c == 0x7f)
            fail_msg("byte \\x%02x in: %s", c, out->data);
    }
    assert_null(strstr(kg_str_text(out), "\xc2\x9b"));
}

static void a_data_file_does_not_command_the_terminal(void **state)
{
    static const char *const lines[][10] = {
        {"./kedge", "data", "check", "-m", MODEL, DATA},
        {"./kedge", "data", "check", "--user-turn", "--chat-template", TEMPLATE, DATA},
        {"./kedge", "data", "head", DATA}, /* prints JSON, U+009B unescaped */
        {"./kedge", "train", "--dry-run", "model.path=" MODEL, "data.train=" DATA,
         "data.val=", "run.dir=" ROOT "/run", "train.steps=1", "task.name=math"},
        {"./kedge", "eval", "--dry-run", "-m", MODEL, "--task", "math", "--data", DATA},
    };
    struct kg_str out = {0};

    (void)state;
    need_kedge();
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        if (on_terminal(&out, lines[i]) != 0)
            fail_msg("%s", kg_str_text(&out));
        is_clean(&out);
        assert_non_null(strstr(kg_str_text(&out), "1,4:9,2"));
    }
    kg_str_release(&out);
}

/* `less -R` and `train ... 2> log` later show the same bytes on a terminal. */
static void nor_does_it_where_a_log_is_read_later(void **state)
{
    struct kg_str out = {0};

    (void)state;
    need_kedge();
    assert_int_equal(system("{ ./kedge data check -m " MODEL " " DATA
                            " && ./kedge data check --user-turn --chat-template " TEMPLATE
                            " " DATA "; } > " ROOT "/out 2>&1"),
                     0);
    NEED(kg_file_read(&out, ROOT "/out", 1 << 20, err));
    is_clean(&out);
    assert_non_null(strstr(out.data, "| 1,4:9,2\\x1b]0;t\\x07\\x0d\\xc2\\x9b2J"));
    kg_str_release(&out);
}

/* As under a supervisor that ignores SIGCHLD. */
static void a_grader_works_where_sigchld_is_ignored(void **state)
{
    struct kg_str out = {0};

    (void)state;
    need_kedge();
    NEED(
        kg_file_write_atomic(ROOT "/grader", "sed 's/.*/{\"score\": 0.25}/'\n", 28, err));
    assert_int_equal(
        system("(trap '' CHLD; exec ./kedge train --dry-run model.path=" MODEL
               " data.train=" DATA " data.val= run.dir=" ROOT "/run train.steps=1 "
               "task.name=external 'task.command=sh " ROOT "/grader' "
               "task.timeout_ms=20000) > " ROOT "/out 2>&1"),
        0);
    NEED(kg_file_read(&out, ROOT "/out", 1 << 20, err));
    assert_non_null(strstr(out.data, "score 0.25"));
    kg_str_release(&out);
}

/* As in a daemon, standard files are closed: output must not go into a file of the
 * run. */
static void closed_standard_files_are_nobody_elses(void **state)
{
    struct kg_str lock = {0}, out = {0};

    (void)state;
    need_kedge();
    assert_int_equal(system("./kedge train preset=grpo model.path=" MODEL
                            " task.name=none "
                            "data.train=" DATA " run.dir=" ROOT "/closed train.steps=1 "
                            "rollout.prompts=1 rollout.samples=2 rollout.max_tokens=4 "
                            "<&- >&- 2>&-"),
                     0);
    NEED(kg_file_read(&lock, ROOT "/closed/lock", 1 << 20, err));
    assert_int_equal(lock.len, 0);
    assert_int_not_equal(
        system("./kedge generate -m " MODEL " --jsonl <&- > " ROOT "/out 2>&1"), 0);
    NEED(kg_file_read(&out, ROOT "/out", 1 << 20, err));
    assert_non_null(strstr(out.data, "Bad file descriptor"));
    kg_str_release(&out);
    kg_str_release(&lock);
}

/* Run structs are copied by value, so they must stay small. */
static void a_plan_is_made_in_a_small_stack(void **state)
{
    (void)state;
    need_kedge();
    assert_int_equal(system("(ulimit -s 512; exec ./kedge train recipes/digits.yaml "
                            "run.dir=" ROOT "/run --dry-run --config-only) > " ROOT
                            "/out 2>&1"),
                     0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_data_file_does_not_command_the_terminal),
        cmocka_unit_test(nor_does_it_where_a_log_is_read_later),
        cmocka_unit_test(a_grader_works_where_sigchld_is_ignored),
        cmocka_unit_test(closed_standard_files_are_nobody_elses),
        cmocka_unit_test(a_plan_is_made_in_a_small_stack),
    };

    return cmocka_run_group_tests_name("surroundings", tests, set_up, NULL);
}
