/* The hub from outside: ./kedge pulls from a server in this test, and every command that
 * takes a folder takes the name of a pulled repository.
 */
#include "base/folder_testing.h"

#include "net/hub_testing.h"

#include <signal.h>
#include <sys/wait.h>

#define DIGITS "tests/data/verl_digit_llama/"
#define TOKEN  "hf_OpenSesame"
#define NEWER  "ffffffffffffffffffffffffffffffffffffffff"
#define CACHE  "hub/models--org--digits"

static struct kg_str files[8];
static struct kg_str out, said; /* stdout and stderr of the last run */

/* ---- the hub ---- */

static void add(const char *name, bool lfs)
{
    struct kg_str *text = &files[hub.n];

    if (text->len == 0 &&
        kg_file_read(text, kg_path_in(DIGITS, name).text, 64 << 20, &err) != KG_OK)
        fail_msg("%s", err.message);
    hub_add(name, kg_str_text(text), text->len, lfs);
}

static void serve_digits(void)
{
    hub_reset();
    add("config.json", false);
    add("generation_config.json", false);
    add("model.safetensors", true);
    add("token_ids.json", true);
    add("tokenizer_config.json", false);
    add("train.jsonl", true);
    add("test.jsonl", false);
}

static int set_up(void **state)
{
    static const char *const unset[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE",
                                        "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN",
                                        "HF_HUB_OFFLINE"};
    char url[64];

    (void)state;
    snprintf(dir, sizeof dir, "/tmp/kedge-hub-XXXXXX");
    if (!mkdtemp(dir) || hub_start() != 0)
        return 1;
    for (size_t i = 0; i < sizeof unset / sizeof *unset; i++)
        unsetenv(unset[i]);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", hub_hosts[HUB_HOST].port);
    setenv("HF_ENDPOINT", url, 1);
    setenv("HF_HOME", dir, 1);
    setenv("HF_TOKEN", TOKEN, 1);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    hub_stop();
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        kg_str_release(&files[i]);
    kg_str_release(&out);
    kg_str_release(&said);
    return kg_file_remove_tree(dir, &err) != KG_OK;
}

/* ---- running kedge ---- */

static void read_back(struct kg_str *s, const char *name)
{
    kg_str_clear(s);
    assert_int_equal(kg_file_read(s, in_dir(name), 64 << 20, &err), KG_OK);
}

/* Runs ./kedge with arguments as in a shell. Its output must never contain the token. */
static int kedge(const char *fmt, ...)
{
    char args[1024], line[2048];
    va_list list;
    int status;

    if (access("./kedge", X_OK) != 0) {
        print_message("skip: ./kedge is not built\n");
        skip();
    }
    va_start(list, fmt);
    vsnprintf(args, sizeof args, fmt, list);
    va_end(list);
    snprintf(line, sizeof line, "./kedge < /dev/null > %s/out 2> %s/err %s", dir, dir,
             args);
    status = system(line);
    read_back(&out, "out");
    read_back(&said, "err");
    assert_null(strstr(kg_str_text(&out), TOKEN));
    assert_null(strstr(kg_str_text(&said), TOKEN));
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void does(const char *args)
{
    if (kedge("%s", args) != 0)
        fail_msg("kedge %s: %s", args, kg_str_text(&said));
}

static void has(const struct kg_str *s, const char *words)
{
    if (!strstr(kg_str_text(s), words))
        fail_msg("expected '%s', found: %s", words, kg_str_text(s));
}

/* Expects status 1 and one line that contains `words`. */
static void refuses(const char *args, const char *words)
{
    const char *end;

    if (kedge("%s", args) != 1)
        fail_msg("kedge %s: expected status 1: %s", args, kg_str_text(&said));
    has(&said, words);
    end = strchr(kg_str_text(&said), '\n');
    if (!end || end[1])
        fail_msg("expected one line, found: %s", kg_str_text(&said));
}

static void pull_digits(void)
{
    serve_digits();
    does("pull org/digits");
}

/* ---- tests ---- */

static void a_pull_prints_the_folder(void **state)
{
    char expected[256];

    (void)state;
    pull_digits();
    snprintf(expected, sizeof expected, "%s/" CACHE "/snapshots/" HUB_COMMIT "\n", dir);
    assert_string_equal(kg_str_text(&out), expected);
    has(&said, "org/digits@" HUB_COMMIT ": 5 files, ");
    assert_true(hub_count("key=Bearer " TOKEN) > 0);
    assert_true(hub_count_keys("store", "") > 0);
    assert_int_equal(hub_count_keys("store", "\n"), hub_count_keys("store", ""));
    does("pull hf://org/digits/train.jsonl");
    snprintf(expected, sizeof expected,
             "%s/hub/datasets--org--digits/snapshots/" HUB_COMMIT "/train.jsonl\n", dir);
    assert_string_equal(kg_str_text(&out), expected);
    does("pull --data-set org/digits --include 't*.jsonl'");
    has(&said, ": 2 files, ");
}

static void commands_take_the_name(void **state)
{
    (void)state;
    pull_digits();
    does("pull hf://org/digits/test.jsonl");
    put("lines", "{\"text\": \"1,2\"}\n");
    does("inspect org/digits");
    does("inspect org/digits@main");
    has(&said, "org/digits@main: org/digits@" HUB_COMMIT " in the hub's cache");
    does("tokenize --model org/digits < $HF_HOME/lines");
    does("generate --model org/digits --threads 1 --max-tokens 2 '1,2:3'");
    does("data head -n 1 hf://org/digits/test.jsonl");
    does("new --arch llama --hidden 32 --layers 1 --heads 2 --ffn 32 --tokenizer "
         "org/digits "
         "$HF_HOME/new-tokenizer");
    does("eval --model org/digits --threads 1 --task digits --data "
         "hf://org/digits/test.jsonl "
         "--problems 2 --max-tokens 2 --out $HF_HOME/eval");
    read_back(&out, "eval/config.yaml");
    has(&out, "org/digits@" HUB_COMMIT);
    read_back(&out, "eval/manifest.json");
    has(&out, "\"model\": {\"hub\": \"org/digits\", \"commit\": \"" HUB_COMMIT "\"}");
}

static void a_name_that_is_nowhere_says_how_to_get_it(void **state)
{
    static const char *const commands[] = {
        "inspect org/none",
        "embed --model org/none",
        "tokenize --model org/none",
        "generate --model org/none x",
        "chat --model org/none",
        "serve --model org/none",
        "score --model org/none",
        "chat-template --model org/none",
        "eval --model org/none --task digits",
        "new --tokenizer org/none $HF_HOME/new",
        "show --model org/none x",
        "merge --model org/none --adapter org/none $HF_HOME/merged",
        "train model.path=org/none run.dir=$HF_HOME/none",
        "sft model.path=org/none run.dir=$HF_HOME/none",
        "train --dry-run model.path=org/none run.dir=$HF_HOME/none",
        "train model.path=" DIGITS " anchor.path=org/none run.dir=$HF_HOME/none",
        "train model.path=" DIGITS " model.adapter=org/none run.dir=$HF_HOME/none",
    };

    (void)state;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        refuses(commands[i], "kedge pull org/none");
    refuses("inspect gpt2", "found neither");
    has(&said, "kedge pull gpt2");
    refuses("train model.path=" DIGITS
            " data.train=hf://org/none/a.jsonl run.dir=$HF_HOME/none",
            "data.train: hf://org/none/a.jsonl: expected that data set");
    has(&said, "kedge pull hf://org/none/a.jsonl");
    refuses("data head hf://org/none/../x", "inside");
    assert_false(kg_file_exists(in_dir("none")));
    assert_false(kg_file_exists(in_dir("new")));
}

#define RUN                                                                              \
    "recipes/digits.yaml run.dir=$HF_HOME/run run.threads=1 sft.steps=0 "                \
    "rollout.prompts=2 "                                                                 \
    "rollout.samples=2 eval.every=0 eval.at_start=false "                                \
    "data.train=hf://org/digits/train.jsonl "                                            \
    "data.val=" DIGITS "test.jsonl "

static void a_run_keeps_the_commit_that_it_began_with(void **state)
{
    (void)state;
    pull_digits();
    does("pull hf://org/digits/train.jsonl");
    does("train " RUN "model.path=org/digits train.steps=1");
    read_back(&out, "run/config.yaml");
    has(&out, "org/digits@" HUB_COMMIT);
    has(&out, "hf://org/digits@" HUB_COMMIT "/train.jsonl");
    read_back(&out, "run/manifest.json");
    has(&out,
        "\"model.path\": {\"hub\": \"org/digits\", \"commit\": \"" HUB_COMMIT "\"}");
    hub.commit = NEWER;
    does("pull org/digits");
    assert_int_equal(
        kedge("train --resume " RUN "model.path=org/digits@" NEWER " train.steps=2"), 1);
    has(&said, "model.path: \"org/digits@" HUB_COMMIT "\" -> \"org/digits@" NEWER "\"");
    does("train --resume " RUN "model.path=org/digits train.steps=2");
    has(&said, "org/digits@" HUB_COMMIT ": as at the start of the run");
}

/* Starts a child that pulls; returns when the hub has sent it part of a large file. */
static pid_t begin_pull(void)
{
    pid_t pid;

    hub_holds = true;
    hub.hold = true;
    hub.cut_after = 100;
    pid = fork();
    if (pid == 0) {
        freopen(in_dir("err"), "w", stderr);
        freopen("/dev/null", "w", stdout);
        execl("./kedge", "kedge", "pull", "org/digits", (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 10000; i++) {
        if (strstr(hub_log, "store "))
            return pid;
        usleep(1000);
    }
    fail_msg("the pull has not begun");
    return pid;
}

static int end_pull(pid_t pid, int signal_number)
{
    int status;

    assert_int_equal(kill(pid, signal_number), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    hub_holds = false;
    assert_false(kg_file_exists(in_dir(CACHE "/snapshots")));
    assert_false(kg_file_exists(in_dir(CACHE "/refs")));
    return status;
}

static void a_pull_that_was_stopped_goes_on(void **state)
{
    int status;

    (void)state;
    if (access("./kedge", X_OK) != 0)
        skip();
    serve_digits();
    assert_int_equal(kg_file_remove_tree(in_dir("hub"), &err), KG_OK);
    status = end_pull(begin_pull(), SIGINT);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGINT);
    read_back(&said, "err");
    has(&said, "the same pull continues there");
    serve_digits();
    status = end_pull(begin_pull(), SIGKILL);
    assert_true(WIFSIGNALED(status));
    serve_digits();
    does("pull org/digits");
    does("inspect org/digits");
}

static void a_hub_that_refuses_is_told_in_a_line(void **state)
{
    (void)state;
    serve_digits();
    hub.answer = "401 Unauthorized\r\nX-Error-Code: GatedRepo";
    refuses("pull org/gated", "accept the licence at http://127.0.0.1");
    hub.answer = "404 Not Found";
    hub.page = "<html>\n<b>nothing</b>\n</html>";
    refuses("pull org/none", "expected a model at");
    refuses("pull ../none", "expected [ORG/]NAME[@");
    refuses("pull --data-set none", "expected ORG/NAME");
    refuses("pull hf://org/none/../../x", "inside");
    refuses("pull hf://org/none/x --include '*'", "--include");
    assert_int_equal(kedge("pull"), 2);
    assert_int_equal(kedge("pull a/b c/d"), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_that_is_nowhere_says_how_to_get_it),
        cmocka_unit_test(a_pull_prints_the_folder),
        cmocka_unit_test(commands_take_the_name),
        cmocka_unit_test(a_run_keeps_the_commit_that_it_began_with),
        cmocka_unit_test(a_pull_that_was_stopped_goes_on),
        cmocka_unit_test(a_hub_that_refuses_is_told_in_a_line),
    };

    return cmocka_run_group_tests_name("hub", tests, set_up, tear_down);
}
