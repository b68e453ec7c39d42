/* The exit status says whether the program finished: 0, or 128 plus the signal that
 * stopped it. The finished part is saved, and the same command continues from it. */
#define ROOT "build/test-runs/stopped"
#include "run_testing.h"

#include <fcntl.h>

#define BASE                                                                             \
    "model.path=" DIGITS " task.name=digits data.train=" DIGITS "/train.jsonl data.val=" \
    " rollout.prompts=4 rollout.samples=4 rollout.max_tokens=8 optim.lr=1e-3"            \
    " run.threads=1 eval.at_start=false checkpoint.every=0 checkpoint.dtype=fp32"
#define ENDLESS BASE " train.steps=1000000"
#define SFT     "sft.batch=4 sft.data=" DIGITS "/train.jsonl sft.max_tokens=64 "
#define OUT     ROOT "/out"
#define ERR     ROOT "/err"
#define RUN     " run.dir=" ROOT "/run"
#define LOG     ROOT "/run/metrics.jsonl"

static const struct {
    const char *name, *command;
    const char *file, *shows; /* output that shows its progress */
    int signal, status;
    const char *says;
} cases[] = {
    {"train", "train " ENDLESS RUN, LOG, "\"rl\"", SIGINT, 130, "is saved; --resume"},
    {"train", "train " ENDLESS RUN, LOG, "\"rl\"", SIGTERM, 143,
     "by a signal after step"},
    {"train", "train " ENDLESS RUN, LOG, "\"rl\"", SIGHUP, 129, "of 1000000"},
    {"its warm start", "train " ENDLESS " sft.steps=1000000 " SFT RUN, LOG, "\"sft\"",
     SIGTERM, 143, "after update"},
    {"sft", "sft " BASE " sft.steps=1000000 " SFT RUN, LOG, "\"sft\"", SIGINT, 130,
     "of 1000000"},
    {"distill",
     "distill " ENDLESS " anchor.path=" DIGITS RUN " kl.estimator=exact-reverse", LOG,
     "\"rl\"", SIGTERM, 143, "is saved"},
    {"ranks", "train --ranks 2 train.lanes=2 " ENDLESS RUN, LOG, "\"rl\"", SIGTERM, 143,
     "by a signal after step"},
    {"ranks", "train --ranks 2 train.lanes=2 " ENDLESS RUN, LOG, "\"rl\"", SIGINT, 130,
     "by a signal after step"},
    {"eval",
     "eval --model " DIGITS " --task digits --data " DIGITS "/train.jsonl --n 1024"
     " --problems 800 --max-tokens 8 --threads 1 --out " ROOT "/run",
     ERR, "val: ", SIGTERM, 143, "the same command continues"},
    {"eval",
     "eval --model " DIGITS " --task digits --data " DIGITS "/train.jsonl --n 1024"
     " --problems 800 --max-tokens 8 --threads 1",
     ERR, "val: ", SIGINT, 130, "stopped by a signal"},
    {"generate", "generate --model " DIGITS " --n 1000000 --threads 1 0,1:9,3", ERR,
     "of 1000000 completions", SIGHUP, 129, "stopped by a signal"},
    {"search index", "search index /dev/stdin " ROOT "/i.db", ERR, "indexing", SIGTERM,
     143, "nothing written"},
    {"serve", "serve --model " DIGITS " --port 0 --threads 1", ERR, "serving", SIGTERM, 0,
     "serving"},
    {"serve", "serve --model " DIGITS " --port 0 --threads 1", ERR, "serving", SIGINT, 0,
     "serving"},
};

static void begin(void)
{
    if (access("./kedge", X_OK) != 0) {
        print_message("skip: ./kedge is not built\n");
        skip();
    }
    fresh(ROOT "/run");
}

static void read_file(struct kg_str *text, const char *path)
{
    struct kg_err unused;

    kg_str_clear(text);
    if (kg_file_read(text, path, 1 << 26, &unused) != KG_OK)
        kg_str_clear(text);
}

/* Writes passages for an index until the reader closes the pipe. */
static void feed(int fd)
{
    char line[96];
    int n = 1;

    for (int i = 0; n > 0; i++) {
        n = snprintf(line, sizeof line, "{\"id\": \"%d\", \"contents\": \"a b\"}\n", i);
        n = (int)write(fd, line, (size_t)n);
    }
    _exit(0);
}

/* Runs a command given as a shell's words. With exec, the process is the program
 * itself. */
static pid_t start(const char *words)
{
    static char command[4096];
    int ends[2];
    pid_t child, feeder;

    snprintf(command, sizeof command, "exec ./kedge %s", words);
    unlink(ERR); /* from the previous command */
    assert_int_equal(pipe(ends), 0);
    child = fork();
    if (child == 0) {
        signal(SIGHUP, SIG_DFL); /* the tests may run under nohup */
        close(ends[1]);
        if (dup2(ends[0], STDIN_FILENO) == STDIN_FILENO && freopen(OUT, "w", stdout) &&
            freopen(ERR, "w", stderr))
            execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(ends[0]);
    feeder = fork();
    if (feeder == 0) {
        signal(SIGPIPE, SIG_DFL);
        feed(ends[1]);
    }
    close(ends[1]);
    assert_true(child > 0 && feeder > 0);
    return child;
}

static void until_it_shows(const char *file, const char *shows, pid_t child)
{
    struct kg_str text = {0};
    siginfo_t ended = {.si_pid = 0};

    do {
        usleep(5000);
        read_file(&text, file);
        assert_int_equal(waitid(P_PID, (id_t)child, &ended, WEXITED | WNOHANG | WNOWAIT),
                         0);
    } while (!strstr(kg_str_text(&text), shows) && ended.si_pid == 0);
    kg_str_release(&text);
}

static int status_of(pid_t child)
{
    int status;

    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(wait(NULL) > 0); /* the feeder, whose reader is gone */
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void expect(const char *name, int status, int found, const char *says)
{
    struct kg_str text = {0};

    read_file(&text, ERR);
    if (found != status || !strstr(kg_str_text(&text), says))
        fail_msg("%s: expected status %d and '%s', found %d and:\n%s", name, status, says,
                 found, kg_str_text(&text));
    kg_str_release(&text);
}

static void the_status_says_which_signal_stopped_it(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pid_t child;

        begin();
        child = start(cases[i].command);
        until_it_shows(cases[i].file, cases[i].shows, child);
        assert_int_equal(kill(child, cases[i].signal), 0);
        expect(cases[i].name, cases[i].status, status_of(child), cases[i].says);
    }
}

/* Only the child gets a signal. The first rank, which got none, must end as by
 * SIGTERM. */
static void a_rank_that_stops_stops_the_command(void **state)
{
    char path[64], pid[32] = "";
    pid_t child;
    int fd;

    (void)state;
    begin();
    child = start("train --ranks 2 train.lanes=2 " ENDLESS RUN);
    until_it_shows(LOG, "\"rl\"", child);
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", child, child);
    fd = open(path, O_RDONLY);
    if (fd < 0 || read(fd, pid, sizeof pid - 1) <= 0) {
        print_message("skip: /proc does not list children here\n");
        kill(child, SIGTERM);
        status_of(child);
        skip();
    }
    close(fd);
    assert_int_equal(kill(atoi(pid), SIGINT), 0);
    expect("a rank", 143, status_of(child), "by a signal after step");
}

/* A stopped run is resumed to its end, with status 0. Resuming it again also gives 0. */
static void what_was_stopped_goes_on_to_its_end(void **state)
{
    pid_t child;

    (void)state;
    begin();
    child = start("train " ENDLESS RUN);
    until_it_shows(LOG, "\"rl\"", child);
    kill(child, SIGTERM);
    expect("train", 143, status_of(child), "--resume continues");
    for (int i = 0; i < 2; i++)
        assert_int_equal(status_of(start("train --resume " BASE " train.steps=40" RUN)),
                         0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_status_says_which_signal_stopped_it),
        cmocka_unit_test(a_rank_that_stops_stops_the_command),
        cmocka_unit_test(what_was_stopped_goes_on_to_its_end),
    };

    return cmocka_run_group_tests_name("stopped", tests, NULL, NULL);
}
