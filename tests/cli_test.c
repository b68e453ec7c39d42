/* The program from outside: runs ./kedge and checks exit status, stdout and stderr.
 *
 * Log-probs are compared as text. They are printed so that they read back as the same
 * float32, so equal text means equal bits.
 */
#include "base/file.h"
#include "base/str.h"
#include "data/json.h"
#include "data/manifest.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define DIGITS "tests/data/verl_digit_llama"
#define QWEN2  "tests/data/models/synthetic_tiny_qwen2"
#define QWEN3  "tests/data/models/synthetic_tiny_qwen3"
#define LLAMA  "tests/data/models/synthetic_tiny_llama"

static char work[] = "/tmp/kedge-cli-XXXXXX";
static struct kg_err err;
static struct kg_str out;  /* stdout of the last run */
static struct kg_str said; /* stderr of the last run */

static int setup(void **state)
{
    (void)state;
    return mkdtemp(work) == NULL;
}

static int teardown(void **state)
{
    (void)state;
    kg_str_release(&out);
    kg_str_release(&said);
    return kg_file_remove_tree(work, &err) != KG_OK;
}

static void need_kedge(void)
{
    if (access("./kedge", X_OK) == 0)
        return;
    print_message("skip: ./kedge is not built\n");
    skip();
}

static void read_back(struct kg_str *s, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", work, name);
    kg_str_clear(s);
    if (kg_file_read(s, path, 64 << 20, &err) != KG_OK)
        fail_msg("%s", err.message);
}

static void write_work(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", work, name);
    if (kg_file_write_atomic(path, text, strlen(text), &err) != KG_OK)
        fail_msg("%s", err.message);
}

/* Runs `./kedge args` in a shell with `input` on stdin.   returns the exit status */
static int kedge(const char *input, const char *fmt, ...)
{
    char args[1024];
    char line[2048];
    va_list list;
    va_start(list, fmt);
    vsnprintf(args, sizeof args, fmt, list);
    va_end(list);
    write_work("in", input);
    snprintf(line, sizeof line, "./kedge %s < %s/in > %s/out 2> %s/err", args, work, work,
             work);
    int status = system(line);
    read_back(&out, "out");
    read_back(&said, "err");
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void expect(int wanted, int status)
{
    if (status != wanted)
        fail_msg("expected status %d, found %d: %s", wanted, status, kg_str_text(&said));
}

static void expect_said(const char *words)
{
    if (strstr(kg_str_text(&said), words) == NULL)
        fail_msg("expected '%s' on stderr, found: %s", words, kg_str_text(&said));
}

/* Expects one line on stderr, and with status 2 also the hint at --help. */
static void expect_refusal(int wanted, int status, const char *words)
{
    expect(wanted, status);
    expect_said(words);
    size_t lines = 0;
    for (size_t i = 0; i < said.len; i++)
        lines += said.data[i] == '\n';
    assert_int_equal(lines, wanted == 2 ? 2 : 1);
}

/* Parses line i of stdout, from 0. */
static void parse_line(struct kg_json_doc *doc, size_t i)
{
    const char *p = kg_str_text(&out);
    for (; i > 0; i--) {
        p = strchr(p, '\n');
        assert_non_null(p);
        p++;
    }
    if (kg_json_parse(doc, p, strcspn(p, "\n"), "out", &err) != KG_OK)
        fail_msg("%s", err.message);
}

static size_t count_lines(const struct kg_str *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->len; i++)
        n += s->data[i] == '\n';
    return n;
}

/* ---- a page of runs ---- */

static void report_writes_a_page_of_runs(void **state)
{
    (void)state;
    need_kedge();
    expect_refusal(2, kedge("", "report"), "expected 1 to 32 runs, found 0");
    expect_refusal(2, kedge("", "report a b"), "expected --out FILE with several runs");
    expect_refusal(2, kedge("", "report --metrics a"), "has an effect only without RUN");
    expect_refusal(1, kedge("", "report %s/none", work), "expected a run");
    expect(0, kedge("",
                    "train task.name=digits model.path=" DIGITS " data.train=" DIGITS
                    "/train.jsonl rollout.prompts=2 rollout.samples=2 train.steps=1 "
                    "rollout.max_tokens=4 log.report=false run.dir=%s/plots",
                    work));
    assert_null(strstr(kg_str_text(&said), "report.html"));
    expect(0, kedge("",
                    "train task.name=digits model.path=" DIGITS " data.train=" DIGITS
                    "/train.jsonl rollout.prompts=2 rollout.samples=2 train.steps=1 "
                    "rollout.max_tokens=4 run.dir=%s/paged",
                    work));
    expect_said("the page of this run: ");
    expect_said("/paged/report.html\n");
    expect(0, kedge("", "report %s/plots", work));
    expect_said("/plots/report.html");
    read_back(&out, "plots/report.html");
    assert_non_null(strstr(out.data, "<title>plots</title>"));
    expect(0, kedge("", "report %s/plots %s/plots --out %s/two.html", work, work, work));
    read_back(&out, "two.html");
    assert_non_null(strstr(out.data, "/plots</label>"));
    expect(0, kedge("", "report %s/plots -o /dev/stdout", work));
    assert_non_null(strstr(out.data, "</html>"));
    expect(0, kedge("", "report --metrics"));
    assert_non_null(strstr(out.data, "| rl | `kl/value` | mean KL term of a token"));
}

/* ---- the command line ---- */

static void help_and_version_of_everything_exit_0(void **state)
{
    (void)state;
    need_kedge();
    const char *commands[] = {"generate", "score", "tokenize",  "inspect",
                              "new",      "man",   "completion"};
    expect(0, kedge("", "--help"));
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        assert_non_null(strstr(out.data, commands[i]));
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        expect(0, kedge("", "%s --help", commands[i]));
        assert_non_null(strstr(out.data, "usage: kedge"));
        assert_int_equal(said.len, 0);
    }
    expect(0, kedge("", "--version"));
    assert_non_null(strstr(out.data, "libyaml"));
    assert_non_null(strstr(out.data, "bf16 by"));
    assert_non_null(strstr(out.data, "\ncuda: "));
    expect(0, kedge("", "man"));
    assert_non_null(strstr(out.data, ".TH KEDGE 1"));
    assert_non_null(strstr(out.data, "\\-\\-max\\-tokens"));
    expect(0, kedge("", "completion"));
    assert_non_null(strstr(out.data, "complete -o filenames -F _kedge kedge"));
}

static void wrong_command_lines_exit_2_and_name_what_is_near(void **state)
{
    (void)state;
    need_kedge();
    expect_refusal(2, kedge("", " "), "expected a command");
    expect_refusal(2, kedge("", "generat"), "did you mean generate?");
    expect_refusal(2, kedge("", "score --modell x"), "did you mean --model?");
    expect_refusal(2, kedge("", "help trian"), "did you mean train?");
    expect_refusal(2, kedge("", "score --qqqqqqqqqqqq"), "unknown flag --qqqqqqqqqqqq");
    expect_refusal(2, kedge("", "score"), "expected --model DIR");
    expect_refusal(2, kedge("", "score --model"), "(MODEL), found the end");
    expect_refusal(2, kedge("", "score --model x y"), "unexpected argument 'y'");
    expect_refusal(2, kedge("", "score --model x --dtype fp8"), "fp32, found 'fp8'");
    expect_refusal(2, kedge("", "score --model x --temperature warm"),
                   "expected a number from");
    expect_refusal(2, kedge("", "score --model x --entropy=1"), "takes no value");
    expect_refusal(2, kedge("", "search query --port 1 x.db hi"), "only with serve, f");
    expect_refusal(2, kedge("", "eval compare --temperature 1 x y"), "without compare");
    expect_refusal(1, kedge("", "search bench http://h/x q --k1 1"), "has its own s");
    expect_refusal(1, kedge("", "search bench x.db q --clients 2"), "expected a server");
    expect_refusal(2, kedge("", "generate --model x --top-p 1.5 hi"),
                   "from 1e-09 to 1, found '1.5'");
    expect_refusal(2, kedge("", "generate --model x --top-p 0 hi"),
                   "from 1e-09 to 1, found '0'");
    expect_refusal(2, kedge("", "generate --model x --n 0 hi"),
                   "--n: expected an integer");
    expect_refusal(2, kedge("", "generate --model ./x"),
                   "either a PROMPT or --jsonl, found neither");
    expect_refusal(2, kedge("", "generate --model ./x --jsonl hi"), "found both");
    expect_refusal(2, kedge("", "inspect"), "expected DIR");
    expect_refusal(2, kedge("", "new"), "expected DIR");
    expect_refusal(2, kedge("", "new %s/x", work), "--vocab N or --tokenizer DIR");
}

static void output_that_cannot_be_written_exits_1(void **state)
{
    (void)state;
    need_kedge();
    char line[256];
    if (access("/dev/full", W_OK) != 0) {
        print_message("skip: no /dev/full\n");
        skip();
    }
    write_work("in", "{\"text\": \"1,2\"}\n");
    snprintf(line, sizeof line,
             "./kedge tokenize --model %s < %s/in > /dev/full 2> %s/err", DIGITS, work,
             work);
    int status = system(line);
    read_back(&said, "err");
    expect_refusal(1, WEXITSTATUS(status), "No space left on device");
    snprintf(line, sizeof line,
             "(sleep 0.2; ./kedge --help 2> %s/err; echo $? > %s/code) | true", work,
             work);
    assert_int_equal(system(line), 0);
    read_back(&out, "code");
    assert_string_equal(out.data, "1\n");
}

/* The log may go to a pipe whose reader has exited: the run continues and saves. */
static void a_run_whose_log_nobody_reads_saves_and_exits_0(void **state)
{
    (void)state;
    need_kedge();
    char line[1024];
    snprintf(line, sizeof line,
             "(sleep 0.2; ./kedge train model.path=%s task.name=digits "
             "data.train=%s/train.jsonl rollout.prompts=2 rollout.samples=2 "
             "rollout.max_tokens=4 train.steps=3 run.dir=%s/run 2>&1; echo $? > %s/code) "
             "| true",
             DIGITS, DIGITS, work, work);
    assert_int_equal(system(line), 0);
    read_back(&out, "code");
    assert_string_equal(out.data, "0\n");
    read_back(&out, "run/checkpoints/step-000003/state.json");
    read_back(&out, "run/metrics.jsonl");
    assert_int_equal(count_lines(&out), 3);
}

/* ---- generate and score ---- */

/* Elements of the array `key` from `first`, as text, separated by ", ". */
static void array_text(struct kg_str *to, const struct kg_json_doc *doc, const char *key,
                       size_t first)
{
    const struct kg_json *v = kg_json_get(doc->root, key);
    assert_int_equal(kg_json_type(v), KG_JSON_ARRAY);
    for (size_t i = first; i < kg_json_size(v); i++) {
        assert_int_equal(kg_str_puts(to, to->len > 0 ? ", " : "", &err), KG_OK);
        assert_int_equal(kg_json_put_value(to, kg_json_at(v, i), &err), KG_OK);
    }
}

/* Promise 1: `generate --logprobs` on prompts of ids, then `score` on prompt and
 * completion, print the same characters. */
static void check_promise_1(const char *model, const char *flags, const char *score_flags)
{
    static const char *prompts[] = {"5", "4, 14, 4, 15",
                                    "1, 7, 3, 9, 11, 2, 6, 8, 10, 12"};
    struct kg_str expected[9] = {0};
    struct kg_str lines = {0};
    expect(0, kedge("{\"ids\": [5]}\n{\"ids\": [4, 14, 4, 15]}\n\n"
                    "{\"ids\": [1, 7, 3, 9, 11, 2, 6, 8, 10, 12]}\n",
                    "generate --jsonl --logprobs --n 3 --max-tokens 40 --ignore-eos "
                    "--model %s %s",
                    model, flags));
    expect_said(" ms to start\n");
    assert_int_equal(count_lines(&out), 9);
    for (size_t i = 0; i < 9; i++) {
        struct kg_json_doc doc = {0};
        struct kg_str ids = {0};
        parse_line(&doc, i);
        array_text(&ids, &doc, "ids", 0);
        array_text(&expected[i], &doc, "logprobs", 0);
        assert_int_equal(kg_json_size(kg_json_get(doc.root, "ids")), 40);
        assert_string_equal(kg_json_text(kg_json_get(doc.root, "finish_reason"), NULL),
                            "length");
        assert_int_equal(kg_str_printf(&lines, &err, "{\"ids\": [%s, %s]}\n",
                                       prompts[i / 3], ids.data),
                         KG_OK);
        kg_str_release(&ids);
        kg_json_release(&doc);
    }
    expect(0, kedge(lines.data, "score --model %s %s", model, score_flags));
    for (size_t i = 0; i < 9; i++) {
        struct kg_json_doc doc = {0};
        struct kg_str found = {0};
        parse_line(&doc, i);
        size_t n = kg_json_size(kg_json_get(doc.root, "logprobs"));
        assert_int_equal(kg_json_type(kg_json_at(kg_json_get(doc.root, "logprobs"), 0)),
                         KG_JSON_NULL);
        array_text(&found, &doc, "logprobs", n - 40);
        assert_string_equal(found.data, expected[i].data);
        kg_str_release(&found);
        kg_str_release(&expected[i]);
        kg_json_release(&doc);
    }
    kg_str_release(&lines);
}

static void generate_and_score_agree_bit_for_bit(void **state)
{
    (void)state;
    need_kedge();
    const char *models[] = {DIGITS, QWEN2, QWEN3, LLAMA};
    for (size_t i = 0; i < 4; i++) {
        check_promise_1(models[i], "--dtype fp32", "--dtype fp32");
        check_promise_1(models[i], "--seed 3 --max-batch 2 --threads 1", "--threads 2");
    }
    check_promise_1(QWEN2, "--temperature 0.7 --prefill-chunk 1", "--temperature 0.7");
    check_promise_1(QWEN3, "--temperature 0", "--temperature 1");
    check_promise_1(LLAMA, "--top-p 0.8 --top-k 30 --min-p 0.01", "");
}

static void answers_depend_on_seed_and_input_only(void **state)
{
    (void)state;
    need_kedge();
    const char *in = "{\"ids\": [5, 6]}\n{\"ids\": [7]}\n{\"ids\": [5, 6]}\n";
    const char *variants[] = {"", "--max-batch 1", "--threads 1",
                              "--prefill-chunk 1 --max-batch 3"};
    struct kg_str first = {0};
    for (size_t i = 0; i < 4; i++) {
        expect(0, kedge(in,
                        "generate --jsonl --logprobs --n 4 --max-tokens 20 --model %s %s",
                        QWEN2, variants[i]));
        if (i == 0)
            assert_int_equal(kg_str_puts(&first, out.data, &err), KG_OK);
        assert_string_equal(out.data, first.data);
    }
    expect(0,
           kedge(in,
                 "generate --jsonl --logprobs --n 4 --max-tokens 20 --seed 1 --model %s",
                 QWEN2));
    assert_string_not_equal(out.data, first.data);
    kg_str_release(&first);
}

static void scores_are_those_of_the_reference(void **state)
{
    (void)state;
    need_kedge();
    struct kg_str file = {0};
    struct kg_str lines = {0};
    struct kg_json_doc reference = {0};
    struct kg_json_doc doc = {0};
    size_t n = 0;
    assert_int_equal(kg_file_read(&file, QWEN3 "/expected_logits.jsonl", 1 << 22, &err),
                     KG_OK);
    for (const char *p = file.data; *p; p += strcspn(p, "\n") + 1, n++) {
        struct kg_str ids = {0};
        assert_int_equal(kg_json_parse(&doc, p, strcspn(p, "\n"), "file", &err), KG_OK);
        array_text(&ids, &doc, "input_ids", 0);
        assert_int_equal(kg_str_printf(&lines, &err, "{\"ids\": [%s]}\n", ids.data),
                         KG_OK);
        kg_str_release(&ids);
        kg_json_release(&doc);
    }
    expect(0, kedge(lines.data, "score --entropy --dtype fp32 --model %s", QWEN3));
    assert_int_equal(count_lines(&out), n);
    const char *p = file.data;
    for (size_t i = 0; i < n; i++, p += strcspn(p, "\n") + 1) {
        assert_int_equal(kg_json_parse(&reference, p, strcspn(p, "\n"), "file", &err),
                         KG_OK);
        parse_line(&doc, i);
        const struct kg_json *lp = kg_json_get(reference.root, "token_logprobs");
        const struct kg_json *h = kg_json_get(reference.root, "entropy");
        for (size_t t = 0; t < kg_json_size(lp); t++) {
            double found = kg_json_real(
                kg_json_at(kg_json_get(doc.root, "logprobs"), t + 1), NAN);
            double entropy = kg_json_real(
                kg_json_at(kg_json_get(doc.root, "entropy"), t + 1), NAN);
            assert_true(fabs(found - kg_json_real(kg_json_at(lp, t), 0)) < 1e-4);
            assert_true(fabs(entropy - kg_json_real(kg_json_at(h, t), 0)) < 1e-4);
        }
        kg_json_release(&reference);
        kg_json_release(&doc);
    }
    kg_str_release(&file);
    kg_str_release(&lines);
}

static void a_prompt_of_text_is_answered_with_text(void **state)
{
    (void)state;
    need_kedge();
    struct kg_json_doc doc = {0};
    expect(0, kedge("", "generate --model %s --max-tokens 12 --ignore-eos '1,2:3,4S'",
                    DIGITS));
    assert_int_equal(count_lines(&out), 1);
    expect(0, kedge("{\"prompt\": \"1,2:3,4S\"}",
                    "generate --jsonl --model %s --max-tokens 60", DIGITS));
    parse_line(&doc, 0);
    const struct kg_json *ids = kg_json_get(doc.root, "ids");
    const char *text = kg_json_text(kg_json_get(doc.root, "text"), NULL);
    const char *why = kg_json_text(kg_json_get(doc.root, "finish_reason"), NULL);
    assert_non_null(text);
    assert_null(strchr(text, 'E'));
    assert_null(kg_json_get(doc.root, "logprobs"));
    if (strcmp(why, "stop") == 0)
        assert_int_equal(kg_json_int(kg_json_at(ids, kg_json_size(ids) - 1), -1), 1);
    kg_json_release(&doc);
}

static void a_stop_string_cuts_the_text_and_not_the_ids(void **state)
{
    (void)state;
    need_kedge();
    struct kg_json_doc doc = {0};
    expect(0, kedge("{\"prompt\": \"1,2:3,4S\"}",
                    "generate --jsonl --ignore-eos --max-tokens 500 --stop ,1 --stop 9 "
                    "--model %s",
                    DIGITS));
    parse_line(&doc, 0);
    const char *text = kg_json_text(kg_json_get(doc.root, "text"), NULL);
    const struct kg_json *ids = kg_json_get(doc.root, "ids");
    int64_t last = kg_json_int(kg_json_at(ids, kg_json_size(ids) - 1), -1);
    assert_string_equal(kg_json_text(kg_json_get(doc.root, "finish_reason"), NULL),
                        "stop_string");
    assert_true(last == 13 || last == 5);
    assert_null(strstr(text, ",1"));
    assert_null(strchr(text, '9'));
    kg_json_release(&doc);
}

/* ---- tokenize ---- */

static void tokenize_goes_both_ways(void **state)
{
    (void)state;
    need_kedge();
    expect(0, kedge("{\"text\": \"0,0:9,0SE\"}\n{\"text\": \"\"}\n",
                    "tokenize --model %s", DIGITS));
    assert_string_equal(out.data, "{\"ids\": [4,14,4,15,13,14,4,0,1]}\n{\"ids\": []}\n");
    struct kg_str ids = {0};
    assert_int_equal(kg_str_puts(&ids, out.data, &err), KG_OK);
    expect(0, kedge(ids.data, "tokenize --decode --model %s", DIGITS));
    assert_string_equal(out.data, "{\"text\": \"0,0:9,0SE\"}\n{\"text\": \"\"}\n");
    kg_str_release(&ids);
    /* a row of the model without a token has no text, as in HuggingFace's decode */
    char line[400];
    snprintf(line, sizeof line,
             "mkdir %s/wide && cp %s/token_ids.json %s/wide && "
             "echo '{\"vocab_size\": 20}' > %s/wide/config.json",
             work, DIGITS, work, work);
    assert_int_equal(system(line), 0);
    expect(0, kedge("{\"ids\": [4,19,5]}\n", "tokenize --decode --model %s/wide", work));
    assert_string_equal(out.data, "{\"text\": \"01\"}\n");
    expect_refusal(1,
                   kedge("{\"ids\": [20]}\n", "tokenize --decode --model %s/wide", work),
                   "between 0 and 19");
}

static void what_computes_is_named_by_flag_or_key(void **state)
{
    (void)state;
    need_kedge();
    expect_refusal(1, kedge("", "score --model " DIGITS " --device gpu"),
                   "--device: expected cpu, cuda, cuda:N or auto, found 'gpu'");
    expect_refusal(1,
                   kedge("", "train recipes/digits.yaml model.path=" DIGITS
                             " model.device=cuda:one --dry-run"),
                   "model.device: expected cuda or cuda:N with N below");
    expect_refusal(2, kedge("", "bench products --device cpu"),
                   "--device: has an effect only with");
    expect_refusal(2, kedge("", "score --model " DIGITS " --products own"),
                   "--products: has an effect only with --device");
}

/* ---- chat-template ---- */

#define CHAT_TEMPLATE "tests/data/chat_templates/Qwen-Qwen3-0.6B.jinja"

static void chat_template_renders_messages(void **state)
{
    (void)state;
    need_kedge();
    expect(0, kedge("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], "
                    "\"add_generation_prompt\": true, \"enable_thinking\": false}\n"
                    "{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}]}\n",
                    "chat-template --model %s", CHAT_TEMPLATE));
    assert_string_equal(out.data,
                        "{\"text\": \"<|im_start|>user\\na<|im_end|>\\n<|im_start|>"
                        "assistant\\n<think>\\n\\n</think>\\n\\n\"}\n"
                        "{\"text\": \"<|im_start|>user\\nb<|im_end|>\\n\"}\n");
    expect(0, kedge("{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}]}\n",
                    "chat-template --chat-template %s", CHAT_TEMPLATE));
    assert_string_equal(out.data, "{\"text\": \"<|im_start|>user\\nb<|im_end|>\\n\"}\n");
}

static void chat_template_refuses_what_it_cannot_render(void **state)
{
    (void)state;
    need_kedge();
    expect_refusal(2, kedge("", "chat-template"), "expected --model");
    expect_refusal(1, kedge("", "chat-template --model %s", CHAT_TEMPLATE),
                   "at least one line");
    expect_refusal(
        1, kedge("{\"messages\": 1}\n", "chat-template --model %s", CHAT_TEMPLATE),
        "stdin line 1: key 'messages': expected array, found integer");
    expect_refusal(
        1, kedge("{\"messages\": []}\n", "chat-template --model %s", CHAT_TEMPLATE),
        "stdin line 1: " CHAT_TEMPLATE " line 13 column 23: expected a value with");
    expect_refusal(1, kedge("", "chat-template --model tests/data/tokenizer"),
                   "expected a chat template named 'default' in");
    expect_refusal(1, kedge("", "chat-template --list --model tests/data/tokenizer"),
                   "expected a folder with chat templates, found none");
    write_work("bad.jinja", "a\n{% if x %}");
    expect_refusal(1, kedge("", "chat-template --model %s/bad.jinja", work),
                   "line 2 column 11: expected elif else endif, found the end");
}

/* ---- inspect and new ---- */

static void inspect_tells_what_is_there(void **state)
{
    (void)state;
    need_kedge();
    struct kg_json_doc doc = {0};
    expect(0, kedge("", "inspect %s", QWEN2));
    assert_non_null(strstr(out.data, "Qwen2ForCausalLM"));
    expect(0, kedge("", "inspect --json %s", DIGITS));
    parse_line(&doc, 0);
    assert_string_equal(kg_json_text(kg_json_get(doc.root, "architecture"), NULL),
                        "LlamaForCausalLM");
    assert_int_equal(kg_json_size(kg_json_get(doc.root, "tensors")), 39);
    assert_int_equal(kg_json_int(kg_json_get(doc.root, "parameters"), 0), 795776);
    assert_string_equal(
        kg_json_text(kg_json_get(kg_json_get(doc.root, "tokenizer"), "kind"), NULL),
        "chars");
    kg_json_release(&doc);
}

static void new_checkpoints_can_be_used_at_once(void **state)
{
    (void)state;
    need_kedge();
    const char *archs[] = {"qwen2", "qwen3", "llama", "olmo2", "phi3", "gemma3_text"};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        expect(0, kedge("",
                        "new --arch %s --vocab 96 --hidden 64 --layers 2 --heads 4 "
                        "--kv-heads 2 %s "
                        "--seed 5 %s/%s/",
                        archs[i], i == 1 ? "--no-tie --dtype fp32" : "", work, archs[i]));
        expect(0, kedge("", "inspect --json %s/%s", work, archs[i]));
        expect(0, kedge("{\"ids\": [3, 4]}\n{\"ids\": [3]}\n", "score --model %s/%s",
                        work, archs[i]));
        assert_non_null(strstr(out.data, "{\"logprobs\": [null]}\n"));
        expect_refusal(1, kedge("", "new --vocab 96 %s/%s", work, archs[i]),
                       "expected an absent or empty folder");
    }
    expect(0, kedge("", "new --tokenizer %s --hidden 64 --layers 1 %s/digits", DIGITS,
                    work));
    expect(0,
           kedge("", "generate --model %s/digits --max-tokens 5 --ignore-eos 1,2", work));
}

static void new_trains_a_tokenizer(void **state)
{
    (void)state;
    need_kedge();
    struct kg_str text = {0};
    const char *syllables[] = {"ka", "lo", "mir", "ten", "su", "vi", "pro", "gan"};
    for (int i = 0; i < 400; i++)
        assert_int_equal(kg_str_printf(&text, &err, "what is %s%s and %s%s?\n",
                                       syllables[i % 8], syllables[i / 8 % 8],
                                       syllables[i / 3 % 8], syllables[i / 5 % 8]),
                         KG_OK);
    write_work("text", text.data);
    expect(
        0,
        kedge("",
              "new --train-tokenizer %s/text --vocab 300 --hidden 64 --layers 1 %s/bpe",
              work, work));
    expect(0, kedge("{\"text\": \"what is 17 plus 51? \\u00e9<|endoftext|>\"}\n",
                    "tokenize --model %s/bpe", work));
    struct kg_str ids = {0};
    assert_int_equal(kg_str_puts(&ids, out.data, &err), KG_OK);
    expect(0, kedge(ids.data, "tokenize --decode --model %s/bpe", work));
    assert_string_equal(out.data,
                        "{\"text\": \"what is 17 plus 51? \xc3\xa9<|endoftext|>\"}\n");
    expect(0, kedge("", "generate --model %s/bpe --max-tokens 5 'what is'", work));
    kg_str_release(&ids);
    kg_str_release(&text);
}

/* ---- bad input ---- */

static void malformed_lines_are_named_and_print_nothing(void **state)
{
    (void)state;
    need_kedge();
    const struct {
        const char *args;
        const char *input;
        const char *words;
        size_t answered;
    } cases[] = {
        {"score --model " QWEN2, "", "expected at least one line", 0},
        {"score --model " QWEN2, "{\"ids\": [1, 2]}\n{\"ids\": [1, 2\n", "stdin line 2",
         1},
        {"score --model " QWEN2, "{\"ids\": [1, 2]}\n\n[1]\n", "stdin line 3", 1},
        {"score --model " QWEN2, "{\"ids\": [1, 320]}\n",
         "stdin line 1: ids[1]: expected an id between 0 and 319, found 320", 0},
        {"score --model " QWEN2, "{\"ids\": [1, -1]}\n", "found -1", 0},
        {"score --model " QWEN2, "{\"ids\": [1, \"x\"]}\n",
         "expected a token id, found string", 0},
        {"score --model " QWEN2, "{\"ids\": [1, 2.5]}\n", "expected a token id, found",
         0},
        {"score --model " QWEN2, "{\"ids\": []}\n",
         "stdin line 1: expected at least one id", 0},
        {"score --model " QWEN2, "{\"text\": \"x\"}\n", "'ids'", 0},
        {"generate --jsonl --model " QWEN2, "", "expected at least one line", 0},
        {"generate --jsonl --model " QWEN2, "{\"ids\": [1]}\n{\"prompt\": \"x\"}\n",
         "stdin line 2: a prompt of text needs a tokenizer", 0},
        {"generate --jsonl --model " QWEN2, "{\"ids\": [1]}\n{}\n",
         "stdin line 2: expected \"prompt\"", 0},
        {"generate --jsonl --model " DIGITS, "{\"prompt\": \"\"}\n", "at least one token",
         0},
        {"generate --jsonl --model " DIGITS, "{\"prompt\": 5}\n", "stdin line 1", 0},
        {"generate --model " QWEN2 " --stop x --jsonl", "{\"ids\": [1]}\n",
         "need a tokenizer", 0},
        {"tokenize --model " DIGITS, "{\"text\": 5}\n", "stdin line 1", 0},
        {"tokenize --model " DIGITS, "{\"text\": \"1\"}\nnothing\n", "stdin line 2", 1},
        {"tokenize --decode --model " DIGITS, "{\"ids\": [16]}\n", "between 0 and 15", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_refusal(1, kedge(cases[i].input, "%s", cases[i].args), cases[i].words);
        assert_int_equal(count_lines(&out), cases[i].answered);
    }
}

static void sequences_beyond_the_models_positions_are_refused(void **state)
{
    (void)state;
    need_kedge();
    struct kg_str line = {0};
    assert_int_equal(kg_str_puts(&line, "{\"ids\": [1", &err), KG_OK);
    for (int i = 0; i < 1024; i++)
        assert_int_equal(kg_str_puts(&line, ", 1", &err), KG_OK);
    assert_int_equal(kg_str_puts(&line, "]}\n", &err), KG_OK);
    expect_refusal(1, kedge(line.data, "score --model %s", QWEN2),
                   "1025 ids exceed the model's limit of 1024 positions");
    expect_refusal(1, kedge(line.data, "generate --jsonl --model %s", QWEN2),
                   "a prompt of 1025 tokens leaves no room");
    kg_str_release(&line);
}

static void copy_model(const char *name)
{
    char line[256];
    snprintf(line, sizeof line, "rm -rf %s/m && cp -r %s %s/m && chmod -R u+w %s/m", work,
             name, work, work);
    assert_int_equal(system(line), 0);
}

/* `inspect --verify` accepts a training checkpoint and its model/, and names the file if
 * a bit of it changed. */
static void inspect_verifies_what_was_saved(void **state)
{
    char line[256];

    (void)state;
    need_kedge();
    snprintf(line, sizeof line, "%s/saved/model", work);
    assert_int_equal(kg_file_make_dirs(line, &err), KG_OK);
    snprintf(line, sizeof line, "cp %s/* %s/saved/model", DIGITS, work);
    assert_int_equal(system(line), 0);
    expect_refusal(1, kedge("", "inspect --verify %s/saved/model", work),
                   "expected a checkpoint of a run, with manifest.json");
    snprintf(line, sizeof line, "%s/saved", work);
    assert_int_equal(kg_manifest_write(line, &err), KG_OK);
    expect(0, kedge("", "inspect --verify %s/saved", work));
    assert_non_null(strstr(out.data, "all match the saved hashes"));
    expect(0, kedge("", "inspect --verify --json %s/saved/model", work));
    assert_non_null(strstr(out.data, "\"files\": "));
    snprintf(line, sizeof line, "printf x >>%s/saved/model/config.json", work);
    assert_int_equal(system(line), 0);
    expect_refusal(1, kedge("", "inspect --verify %s/saved/model", work),
                   "model/config.json: expected the ");
    expect_refusal(2, kedge("", "inspect --verify --tensors %s/saved", work),
                   "--tensors: has an effect only without --verify");
}

static void broken_checkpoints_are_refused_by_inspect_and_score_alike(void **state)
{
    (void)state;
    need_kedge();
    const struct {
        const char *break_it; /* in the folder of the copy */
        const char *words;
    } cases[] = {
        {"rm model.safetensors", "model.safetensors"},
        {"rm config.json", "config.json"},
        {"truncate -s -10 model.safetensors", "model.safetensors"},
        {"truncate -s 4 model.safetensors", "model.safetensors"},
        {"sed -i 's/\"hidden_size\": 64/\"hidden_size\": 128/' config.json", "expected"},
        {"sed -i 's/\"num_hidden_layers\": 3/\"num_hidden_layers\": 4/' config.json",
         "layers.3"},
        {"sed -i 's/\"num_hidden_layers\": 3/\"num_hidden_layers\": 2/' config.json",
         "layers.2"},
        {"sed -i 's/\"model_type\": \"qwen2\"/\"model_type\": \"mamba\"/' config.json",
         "mamba"},
        {"sed -i 's/\"hidden_act\": \"silu\"/\"hidden_act\": \"gelu\"/' config.json",
         "hidden_act"},
        {"sed -i 's/\"hidden_size\"/\"hiden_size\"/' config.json", "hid"},
        {"echo '{' > config.json", "config.json"},
        {"echo '{}' > tokenizer.json", "tokenizer.json"},
    };
    char line[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        copy_model(QWEN2);
        snprintf(line, sizeof line, "cd %s/m && %s", work, cases[i].break_it);
        assert_int_equal(system(line), 0);
        expect_refusal(1, kedge("", "inspect %s/m", work), cases[i].words);
        expect_refusal(1, kedge("{\"ids\": [1]}\n", "score --model %s/m", work),
                       cases[i].words);
        assert_int_equal(out.len, 0);
    }
    copy_model(LLAMA);
    snprintf(line, sizeof line, "rm %s/m/model-00002-of-00002.safetensors", work);
    assert_int_equal(system(line), 0);
    expect_refusal(1, kedge("", "inspect %s/m", work),
                   "model-00002-of-00002.safetensors");
    expect_refusal(1, kedge("", "inspect %s/absent", work), "absent");
}

static void failures_of_new_leave_nothing_behind(void **state)
{
    (void)state;
    need_kedge();
    char line[256];
    const char *cases[][2] = {
        {"--vocab 96 --heads 3 --kv-heads 2 --hidden 96", "heads"},
        {"--vocab 96 --arch mamba", "mamba"},
        {"--tokenizer /nowhere", "/nowhere"},
        {"--tokenizer " DIGITS " --vocab 3", "at least the 16 ids"},
        {"--train-tokenizer /nowhere --vocab 300", "/nowhere"},
    };
    snprintf(line, sizeof line, "mkdir -p %s/empty && test -z \"$(ls -A %s/empty)\"",
             work, work);
    assert_int_equal(system(line), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_refusal(1, kedge("", "new %s %s/empty/x", cases[i][0], work), cases[i][1]);
        assert_int_equal(system(line), 0);
    }
    expect(1, kedge("", "new --vocab 96 --hidden 64 --layers 1 /proc/x"));
}

/* ---- data files ---- */

#define PARQUET "tests/data/parquet/"

static void data_checks_what_comes_through_a_pipe(void **state)
{
    char line[400];
    (void)state;
    need_kedge();
    snprintf(line, sizeof line,
             "mkfifo %s/fifo && { timeout 20 cat %s/test.jsonl > %s/fifo & }", work,
             DIGITS, work);
    assert_int_equal(system(line), 0);
    snprintf(line, sizeof line,
             "timeout 20 ./kedge data check %s/fifo > %s/of_fifo && "
             "timeout 20 ./kedge data check %s/test.jsonl > %s/of_file && "
             "cat %s/test.jsonl | timeout 20 ./kedge data check /dev/stdin > %s/of_pipe",
             work, work, DIGITS, work, DIGITS, work);
    assert_int_equal(system(line), 0);
    snprintf(line, sizeof line,
             "cd %s && sed -i 's/^[^ ]*: //' of_* && cmp of_fifo of_file && "
             "cmp of_pipe of_file",
             work);
    assert_int_equal(system(line), 0);
}

static void data_files_of_every_format_convert_to_the_same_lines(void **state)
{
    struct kg_str lines = {0};
    char zst[128], gz[128];

    (void)state;
    need_kedge();
    snprintf(gz, sizeof gz, "%s/x.jsonl.gz", work);
    snprintf(zst, sizeof zst, "%s/x.zst", work);
    expect(0, kedge("", "data convert " PARQUET "duckdb_snappy.parquet"));
    assert_int_equal(count_lines(&out), 300);
    assert_int_equal(kg_str_append(&lines, out.data, out.len, &err), KG_OK);
    expect(0, kedge("", "data convert " PARQUET "duckdb.jsonl"));
    assert_string_equal(kg_str_text(&lines), kg_str_text(&out));
    expect(0, kedge("", "data convert " PARQUET "duckdb_zstd.parquet -o %s", zst));
    assert_int_equal(out.len, 0);
    expect(0, kedge("", "data convert %s", zst));
    assert_string_equal(kg_str_text(&lines), kg_str_text(&out));
    expect(0, kedge("", "data convert %s -o %s", zst, gz));
    expect(0, kedge("", "data check %s", gz));
    assert_non_null(strstr(kg_str_text(&out), ", gzip"));
    expect(0, kedge("", "data convert %s", gz));
    assert_string_equal(kg_str_text(&lines), kg_str_text(&out));
    expect(1, kedge("", "data convert %s -o %s/x.parquet", zst, work));
    assert_non_null(strstr(kg_str_text(&said), "found .parquet, which kedge reads but "));
    expect(0, kedge("", "data head -n 2 %s", zst));
    assert_int_equal(count_lines(&out), 2);
    assert_true(strncmp(out.data, lines.data, out.len) == 0);
    kg_str_release(&lines);
}

static void expect_file(const char *path, const struct kg_str *text)
{
    struct kg_str found = {0};

    assert_int_equal(kg_file_read(&found, path, 1 << 20, &err), KG_OK);
    assert_int_equal(found.len, text->len);
    assert_memory_equal(found.data, text->data, text->len);
    kg_str_release(&found);
}

/* The source of a conversion may also be its target: the old file stays until the new one
 * is complete. Holds for all formats. */
static void a_converted_file_takes_its_name_when_it_is_whole(void **state)
{
    static const char *const names[] = {"c.jsonl", "c.jsonl.gz", "c.jsonl.zst"};
    struct kg_str lines = {0}, kept = {0};
    char path[128], line[512];

    (void)state;
    need_kedge();
    expect(0, kedge("", "data convert " PARQUET "duckdb.jsonl"));
    assert_int_equal(kg_str_append(&lines, out.data, out.len, &err), KG_OK);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", work, names[i]);
        expect(0, kedge("", "data convert " PARQUET "duckdb.jsonl -o %s", path));
        expect(0, kedge("", "data convert %s -o %s", path, path));
        expect(0, kedge("", "data convert %s", path));
        assert_string_equal(kg_str_text(&lines), kg_str_text(&out));
        kg_str_clear(&kept);
        assert_int_equal(kg_file_read(&kept, path, 1 << 20, &err), KG_OK);
        expect_refusal(
            1, kedge("{\"a\": 1}\n{\"a\"\n", "data convert %s/in -o %s", work, path),
            "line 2");
        expect_file(path, &kept);
    }
    snprintf(line, sizeof line, "ln -s c.jsonl %s/link && ! ls %s | grep tmp-", work,
             work);
    assert_int_equal(system(line), 0);
    snprintf(path, sizeof path, "%s/c.jsonl", work);
    expect_refusal(1, kedge("", "data convert %s -o %s/link", path, work),
                   "expected an output file other than the input");
    expect_file(path, &lines);
    kg_str_release(&lines);
    kg_str_release(&kept);
}

static void data_is_checked_as_training_reads_it(void **state)
{
    struct kg_json_doc doc;

    (void)state;
    need_kedge();
    expect(0,
           kedge("", "data check --json --need-answer " PARQUET "duckdb_zstd.parquet"));
    parse_line(&doc, 0);
    assert_string_equal(kg_json_text(kg_json_get(doc.root, "format"), NULL), "Parquet");
    assert_int_equal(kg_json_int(kg_json_get(doc.root, "records"), 0), 300);
    assert_int_equal(kg_json_int(kg_json_get(doc.root, "answers"), 0), 300);
    kg_json_release(&doc);
    expect_refusal(1,
                   kedge("", "data check --need-answer " PARQUET "digits-test.parquet"),
                   "digits-test.parquet row 1: expected an answer");
    expect_refusal(1, kedge("[{\"prompt\": \"x\"},\n{}]", "data check %s/in", work),
                   "in element 2 (line 2): expected a prompt");
    expect_refusal(1, kedge("", "data check " PARQUET "no_rows.parquet"),
                   "expected at least one record, found none");
    expect_refusal(1, kedge("PAR1 and no more", "data check %s/in", work),
                   "expected PAR1 at the end, found none: the file is cut");
    expect_refusal(2, kedge("", "data chek x"), "found 'chek'; did you mean 'check'?");
    expect_refusal(2, kedge("", "data check"), "and a file");
}

/* verl's lists of messages, with and without the chat template that training uses. */
static void data_check_makes_prompts_as_training_does(void **state)
{
    static const char lines[] =
        "{\"prompt\": [{\"role\": \"system\", \"content\": \"be brief\"}, {\"role\": "
        "\"user\", \"content\": \"1+1?\"}], \"reward_model\": {\"ground_truth\": "
        "\"2\"}}\n{\"prompt\": [{\"role\": \"user\", \"content\": \"2+2?\"}], "
        "\"reward_model\": {\"ground_truth\": \"4\"}}\n";

    (void)state;
    need_kedge();
    expect(0, kedge(lines, "data check --need-answer %s/in", work));
    assert_non_null(strstr(kg_str_text(&out), "2 records with a prompt"));
    assert_non_null(strstr(kg_str_text(&out),
                           "2 prompts are lists of messages, which training renders"));
    expect(0, kedge(lines, "data check --chat-template " CHAT_TEMPLATE " %s/in", work));
    assert_non_null(strstr(kg_str_text(&out),
                           "2 prompts are rendered by the chat template\nfirst prompt:\n"
                           "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\n"
                           "1+1?<|im_end|>\n<|im_start|>assistant\n"));
    expect_refusal(1, kedge(lines, "data check --chat-template none %s/in", work),
                   "in line 1: expected one message of text, or a chat template");
    expect_refusal(1, kedge(lines, "data check --system s %s/in", work),
                   "in line 1: --system: expected messages without a system prompt");
    expect(1, kedge("{\"problem\": \"p\", \"answer\": \"\"}\n",
                    "data check --task math %s/in", work));
    expect_said("expected gold answers that are graded as right");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_and_version_of_everything_exit_0),
        cmocka_unit_test(what_computes_is_named_by_flag_or_key),
        cmocka_unit_test(report_writes_a_page_of_runs),
        cmocka_unit_test(wrong_command_lines_exit_2_and_name_what_is_near),
        cmocka_unit_test(output_that_cannot_be_written_exits_1),
        cmocka_unit_test(a_run_whose_log_nobody_reads_saves_and_exits_0),
        cmocka_unit_test(generate_and_score_agree_bit_for_bit),
        cmocka_unit_test(answers_depend_on_seed_and_input_only),
        cmocka_unit_test(scores_are_those_of_the_reference),
        cmocka_unit_test(a_prompt_of_text_is_answered_with_text),
        cmocka_unit_test(a_stop_string_cuts_the_text_and_not_the_ids),
        cmocka_unit_test(tokenize_goes_both_ways),
        cmocka_unit_test(chat_template_renders_messages),
        cmocka_unit_test(chat_template_refuses_what_it_cannot_render),
        cmocka_unit_test(inspect_tells_what_is_there),
        cmocka_unit_test(new_checkpoints_can_be_used_at_once),
        cmocka_unit_test(new_trains_a_tokenizer),
        cmocka_unit_test(malformed_lines_are_named_and_print_nothing),
        cmocka_unit_test(sequences_beyond_the_models_positions_are_refused),
        cmocka_unit_test(inspect_verifies_what_was_saved),
        cmocka_unit_test(broken_checkpoints_are_refused_by_inspect_and_score_alike),
        cmocka_unit_test(failures_of_new_leave_nothing_behind),
        cmocka_unit_test(data_checks_what_comes_through_a_pipe),
        cmocka_unit_test(data_files_of_every_format_convert_to_the_same_lines),
        cmocka_unit_test(a_converted_file_takes_its_name_when_it_is_whole),
        cmocka_unit_test(data_is_checked_as_training_reads_it),
        cmocka_unit_test(data_check_makes_prompts_as_training_does),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
