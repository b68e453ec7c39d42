/* Tests of options: types, sources and their priority, every error message, dumping and
 * loading again. */
#include "data/options.h"

#include "base/file.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct said {
    const char *dir;
    int64_t seed;
    float temperature;
    struct kg_opt_list stop;
    bool fp32;
    double lr;
    int64_t offset;
    bool save;
    double sft_lr;
    const char *deep;
};
#define AT(field) KG_OPT_AT(struct said, field)

static const struct kg_opt_row first_rows[] = {
    {"run.dir", AT(dir), NULL, 0, 0, NULL, "folder of the run", true},
    {"run.seed", AT(seed), "1", 0, 1e15, NULL, "seed", false},
    {"rollout.temperature", AT(temperature), "1", 1e-3, 100, NULL, "temperature", false},
    {"rollout.stop", AT(stop), "", 0, 0, NULL, "stop strings", false},
    {"rollout.dtype", AT(fp32), "bf16", 0, 0, "bf16|fp32", "element type", false},
    {0},
};
static const struct kg_opt_row second_rows[] = {
    {"optim.lr", AT(lr), "1e-6", 0, 1, NULL, "learning rate", false},
    {"optim.offset", AT(offset), "-3", 0, 0, NULL, "any integer", false},
    {"run.save", AT(save), "true", 0, 0, NULL, "save at the end", false},
    {"sft.lr", AT(sft_lr), "1e-3", 0, 0, NULL, "learning rate of sft", false},
    {"a.b.c", AT(deep), "deep", 0, 0, NULL, "nested", false},
    {0},
};
static const struct kg_opt_row *const tables[] = {first_rows, second_rows};

static struct kg_err err;
static struct kg_config *config;

static int make_config(void **state)
{
    (void)state;
    memset(&err, 0, sizeof err);
    return kg_config_create(&config, tables, 2, &err) != KG_OK;
}

static int free_config(void **state)
{
    (void)state;
    kg_mem_fail_at(0);
    kg_config_free(config);
    return kg_mem_current_bytes() != 0;
}

static kg_status parse(const char *text)
{
    return kg_config_parse_yaml(config, text, strlen(text), "x.yaml", &err);
}

static void loads(const char *text)
{
    if (parse(text) != KG_OK)
        fail_msg("%s", err.message);
}

static void refuses(const char *text, kg_status code, const char *message)
{
    kg_status status = parse(text);

    if (status == KG_OK)
        fail_msg("accepted: %s", text);
    assert_string_equal(err.message, message);
    assert_int_equal(status, code);
}

static void override_fails(const char *assignment, const char *message)
{
    assert_int_equal(kg_config_override(config, assignment, "command line", &err),
                     KG_EINVAL);
    assert_string_equal(err.message, message);
}

static struct said said_in(const struct kg_config *from)
{
    struct said said = {0};

    for (size_t i = 0; i < 2; i++)
        kg_config_fill(&said, from, tables[i]);
    return said;
}

static void item_is(size_t i, const char *expected)
{
    assert_string_equal(said_in(config).stop.items[i], expected);
}

/* ---- values ---- */

static void defaults_stand_without_any_source(void **state)
{
    (void)state;
    assert_int_equal(said_in(config).seed, 1);
    assert_float_equal(said_in(config).lr, 1e-6, 0);
    assert_true(said_in(config).save);
    assert_string_equal(kg_config_text(config, "rollout.dtype"), "bf16");
    assert_int_equal(said_in(config).stop.n, 0);
    assert_string_equal(kg_config_text(config, "run.dir"), "");
    assert_false(kg_config_is_set(config, "run.dir"));
    assert_true(kg_config_is_set(config, "run.seed"));
    assert_false(kg_config_is_given(config, "run.seed"));
    assert_string_equal(kg_config_source(config, "run.seed"), "default");
    assert_int_equal(kg_config_rows(config), 10);
    assert_string_equal(kg_config_row(config, 5)->key, "optim.lr");
}

static void yaml_gives_every_type(void **state)
{
    (void)state;
    loads("# a comment\n"
          "run:\n"
          "  dir: runs/a b\n"
          "  seed: 1000\n"
          "  save: false\n"
          "rollout:\n"
          "  temperature: 0.7\n"
          "  stop: [\"\\n\\n\", '###', \"a\\\\b\", \"\\\\n\"]\n"
          "  dtype: fp32\n"
          "optim: {lr: 1e-6, offset: -12}\n"
          "a: {b: {c: \"\"}}\n"
          "sft:\n");
    assert_string_equal(kg_config_text(config, "run.dir"), "runs/a b");
    assert_int_equal(said_in(config).seed, 1000);
    assert_false(said_in(config).save);
    assert_float_equal(said_in(config).temperature, 0.7, 0);
    assert_string_equal(kg_config_text(config, "rollout.dtype"), "fp32");
    assert_int_equal(said_in(config).offset, -12);
    assert_string_equal(kg_config_text(config, "a.b.c"), "");
    assert_true(kg_config_is_given(config, "a.b.c"));
    assert_int_equal(said_in(config).stop.n, 4);
    item_is(0, "\n\n");
    item_is(1, "###");
    item_is(2, "a\\b");
    item_is(3, "\\n");
    assert_string_equal(kg_config_source(config, "run.seed"), "x.yaml line 4");
    assert_string_equal(kg_config_source(config, "rollout.stop"), "x.yaml line 8");
}

static void keys_may_be_joined_by_dots(void **state)
{
    (void)state;
    loads("run.seed: 7\na.b: {c: x}\n");
    assert_int_equal(said_in(config).seed, 7);
    assert_string_equal(kg_config_text(config, "a.b.c"), "x");
}

static void empty_documents_change_nothing(void **state)
{
    (void)state;
    loads("");
    loads("# only a comment\n");
    loads("---\n");
    loads("run:\n  # nothing\n");
    assert_false(kg_config_is_given(config, "run.seed"));
}

static void overrides_beat_the_file(void **state)
{
    (void)state;
    loads("run: {seed: 5}\n");
    assert_int_equal(kg_config_override(config, "run.seed=6", "command line", &err),
                     KG_OK);
    assert_int_equal(kg_config_override(config, "run.dir=a=b", "command line", &err),
                     KG_OK);
    assert_int_equal(said_in(config).seed, 6);
    assert_string_equal(kg_config_text(config, "run.dir"), "a=b");
    assert_string_equal(kg_config_source(config, "run.seed"), "command line");
}

static void list_overrides(void **state)
{
    (void)state;
    assert_int_equal(
        kg_config_override(config, "rollout.stop=[a, \"b\\n\"]", "cli", &err), KG_OK);
    assert_int_equal(said_in(config).stop.n, 2);
    item_is(0, "a");
    item_is(1, "b\n");
    assert_string_equal(kg_config_source(config, "rollout.stop"), "cli");
    assert_int_equal(kg_config_override(config, "rollout.stop=Question: #", "cli", &err),
                     KG_OK);
    assert_int_equal(said_in(config).stop.n, 1);
    item_is(0, "Question: #");
    assert_int_equal(kg_config_override(config, "rollout.stop=", "cli", &err), KG_OK);
    assert_int_equal(said_in(config).stop.n, 0);
    assert_int_equal(kg_config_override(config, "rollout.stop=[a", "cli", &err),
                     KG_EFORMAT);
    assert_memory_equal(err.message, "cli: rollout.stop: expected YAML", 32);
    assert_int_equal(kg_config_override(config, "rollout.stop=[*a]", "cli", &err),
                     KG_EFORMAT);
    assert_string_equal(err.message, "cli: rollout.stop: expected plain values, found "
                                     "the alias 'a'");
    assert_int_equal(kg_config_override(config, "rollout.stop=['']", "cli", &err),
                     KG_EINVAL);
    assert_string_equal(err.message, "cli: rollout.stop: expected a list of texts, found "
                                     "an empty item");
}

static void presets_are_weaker_in_any_order(void **state)
{
    (void)state;
    assert_int_equal(kg_config_set(config, "run.seed", "2", true, "preset", &err), KG_OK);
    assert_int_equal(kg_config_set(config, "optim.lr", "2e-3", true, "preset", &err),
                     KG_OK);
    loads("run: {seed: 5}\nsft: {lr: 0.5}\n");
    assert_int_equal(kg_config_set(config, "sft.lr", "0.25", true, "preset", &err),
                     KG_OK);
    assert_int_equal(kg_config_set(config, "optim.lr", "3e-3", true, "other", &err),
                     KG_OK);
    assert_int_equal(said_in(config).seed, 5);
    assert_float_equal(said_in(config).sft_lr, 0.5, 0);
    assert_float_equal(said_in(config).lr, 3e-3, 0);
    assert_string_equal(kg_config_source(config, "optim.lr"), "other");
    assert_int_equal(kg_config_set(config, "run.seed", "x", true, "preset", &err),
                     KG_EINVAL);
    assert_int_equal(kg_config_set(config, "run.seed", "8", false, "strong", &err),
                     KG_OK);
    assert_int_equal(said_in(config).seed, 8);
}

static void require_names_key_and_help(void **state)
{
    (void)state;
    assert_int_equal(kg_config_require(config, "run.seed", &err), KG_OK);
    assert_int_equal(kg_config_require(config, "run.dir", &err), KG_EINVAL);
    assert_string_equal(err.message,
                        "expected a value for run.dir (folder of the run), found none");
}

/* ---- errors ---- */

static void unknown_names_are_answered_with_the_nearest(void **state)
{
    (void)state;
    refuses("run:\n  sede: 5\n", KG_EINVAL,
            "x.yaml line 2: unknown key 'run.sede'; did you mean 'run.seed'?");
    refuses("rolout:\n  stop: []\n", KG_EINVAL,
            "x.yaml line 1: unknown section 'rolout'; did you mean 'rollout'?");
    refuses("\nrun:\n  lr: 5\n", KG_EINVAL,
            "x.yaml line 3: unknown key 'run.lr'; did you mean 'optim.lr' or 'sft.lr'?");
    refuses("seed: 5\n", KG_EINVAL,
            "x.yaml line 1: unknown section 'seed'; did you mean 'run.seed'?");
    refuses("optim: {qqqqq: 1}\n", KG_EINVAL,
            "x.yaml line 1: unknown key 'optim.qqqqq'; valid: optim.lr, optim.offset");
    refuses(
        "qqqqq: 1\n", KG_EINVAL,
        "x.yaml line 1: unknown section 'qqqqq'; valid: run, rollout, optim, sft, a.b");
    override_fails("optimm.lr=1",
                   "command line: unknown section 'optimm' in 'optimm.lr'; "
                   "did you mean 'optim.lr'?");
    override_fails(
        "rum.qqqqq=1",
        "command line: unknown section 'rum' in 'rum.qqqqq'; did you mean 'run'?");
    refuses("optim: {lrr: 1}\n", KG_EINVAL,
            "x.yaml line 1: unknown key 'optim.lrr'; did you mean 'optim.lr'?");
    refuses("optim: {ofset: 1}\n", KG_EINVAL,
            "x.yaml line 1: unknown key 'optim.ofset'; did you mean 'optim.offset'?");
    override_fails("run=1", "command line: unknown section 'run'; did you mean 'run'?");
}

static void wrong_values_say_what_was_expected(void **state)
{
    (void)state;
    refuses("run:\n  seed: abc\n", KG_EINVAL,
            "x.yaml line 2: run.seed: expected an integer from 0 to 1e+15, "
            "found 'abc'");
    refuses("optim: {lr: 1.5}\n", KG_EINVAL,
            "x.yaml line 1: optim.lr: expected a number from 0 to 1, found '1.5'");
    refuses("optim: {offset: 1.5}\n", KG_EINVAL,
            "x.yaml line 1: optim.offset: expected an integer, found '1.5'");
    refuses("run: {save: yes}\n", KG_EINVAL,
            "x.yaml line 1: run.save: expected true or false, found 'yes'");
    refuses("rollout: {dtype: bf61}\n", KG_EINVAL,
            "x.yaml line 1: rollout.dtype: expected one of bf16, fp32, found 'bf61'; "
            "did you mean 'bf16'?");
    refuses("run: {seed: }\n", KG_EINVAL,
            "x.yaml line 1: run.seed: expected an integer from 0 to 1e+15, found "
            "nothing (write '' for the empty text)");
    refuses("run: {dir: null}\n", KG_EINVAL,
            "x.yaml line 1: run.dir: expected text, found nothing (write '' for the "
            "empty text)");
    refuses("run: {seed: [1]}\n", KG_EINVAL,
            "x.yaml line 1: run.seed: expected an integer from 0 to 1e+15, "
            "found a "
            "list");
    refuses("run: {dir: {x: 1}}\n", KG_EINVAL,
            "x.yaml line 1: run.dir: expected text, found a mapping of keys");
    refuses("rollout:\n  stop:\n    - a\n    - [b]\n", KG_EINVAL,
            "x.yaml line 4: rollout.stop: expected a list of texts, found a collection "
            "inside the "
            "list");
    refuses("rollout:\n  stop: [a, '']\n", KG_EINVAL,
            "x.yaml line 2: rollout.stop: expected a list of texts, found an empty item");
    override_fails("optim.lr=-1",
                   "command line: optim.lr: expected a number from 0 to 1, found '-1'");
    override_fails("optim.lr",
                   "command line: expected section.key=value, found 'optim.lr'");
    override_fails("=1", "command line: expected section.key=value, found '=1'");
}

static void number_grammar_is_decimal(void **state)
{
    static const char *const bad_ints[] = {
        "1_000", "1e3", "0x10", "", "+", "1 ", " 1", "1.0", "99999999999999999999",
        "--1",   "inf"};
    static const char *const good_ints[] = {"0", "-1", "+5", "0012",
                                            "9223372036854775807"};
    static const char *const bad_reals[] = {"nan", "inf",   "-inf", "0x1p3",
                                            "1e",  "e5",    ".",    "1,5",
                                            "1e+", "1e999", "1.5f", "1..2"};
    static const char *const good_reals[] = {"1",     "1.",     ".5",    "-1e-6",
                                             "+1E+2", "1e-400", "007.50"};

    (void)state;
    for (size_t i = 0; i < sizeof bad_ints / sizeof *bad_ints; i++)
        assert_int_equal(
            kg_config_set(config, "optim.offset", bad_ints[i], false, "t", &err),
            KG_EINVAL);
    for (size_t i = 0; i < sizeof good_ints / sizeof *good_ints; i++)
        assert_int_equal(
            kg_config_set(config, "optim.offset", good_ints[i], false, "t", &err), KG_OK);
    assert_int_equal(said_in(config).offset, INT64_MAX);
    for (size_t i = 0; i < sizeof bad_reals / sizeof *bad_reals; i++)
        assert_int_equal(kg_config_set(config, "sft.lr", bad_reals[i], false, "t", &err),
                         KG_EINVAL);
    for (size_t i = 0; i < sizeof good_reals / sizeof *good_reals; i++)
        assert_int_equal(kg_config_set(config, "sft.lr", good_reals[i], false, "t", &err),
                         KG_OK);
    assert_float_equal(said_in(config).sft_lr, 7.5, 0);
}

static void surprising_yaml_is_refused_with_its_line(void **state)
{
    (void)state;
    refuses("run:\n  seed: 1\n  seed: 2\n", KG_EFORMAT,
            "x.yaml line 3: expected 'run.seed' once, found it again");
    refuses("run: {seed: 1}\nrun.seed: 2\n", KG_EFORMAT,
            "x.yaml line 2: expected 'run.seed' once, found it again");
    refuses("run:\n  seed: 1\noptim:\n  lr: 1\nrun:\n  save: true\n", KG_EFORMAT,
            "x.yaml line 6: expected section 'run' once, found it again");
    refuses("run:\n  seed: &s 1\n", KG_EFORMAT,
            "x.yaml line 2: expected plain values, found the anchor 's'");
    refuses("run: &r\n  seed: 1\n", KG_EFORMAT,
            "x.yaml line 1: expected plain values, found the anchor 'r'");
    refuses("run:\n  seed: *s\n", KG_EFORMAT,
            "x.yaml line 2: expected plain values, found the alias 's'");
    refuses(
        "run:\n  seed: !!int 1\n", KG_EFORMAT,
        "x.yaml line 2: expected plain values, found the tag 'tag:yaml.org,2002:int'");
    refuses("run: {seed: 1}\n---\nrun: {seed: 2}\n", KG_EFORMAT,
            "x.yaml line 2: expected one YAML document, found a second");
    refuses("- run\n", KG_EFORMAT,
            "x.yaml line 1: expected sections with keys, such as 'train:', found a list");
    refuses(
        "run\n", KG_EFORMAT,
        "x.yaml line 1: expected sections with keys, such as 'train:', found a value");
    refuses("run: 5\n", KG_EINVAL,
            "x.yaml line 1: expected keys below the section 'run', found a value");
    refuses(
        "run: [seed]\n", KG_EINVAL,
        "x.yaml line 1: expected keys below the section 'run', found another collection");
    refuses("{[a]: 1}\n", KG_EFORMAT,
            "x.yaml line 1: expected a key such as 'train', found a collection");
    refuses("run: {dir: \"a\\0b\"}\n", KG_EFORMAT,
            "x.yaml line 1: expected text without NUL characters, found one");
}

static void broken_yaml_names_line_and_column(void **state)
{
    (void)state;
    assert_int_equal(parse("rollout:\n  stop: [1\n"), KG_EFORMAT);
    assert_non_null(
        strstr(err.message, "x.yaml line 3: expected YAML, found at column 1: "));
    assert_int_equal(parse("run:\n\tseed: 1\n"), KG_EFORMAT);
    assert_non_null(
        strstr(err.message, "x.yaml line 2: expected YAML, found at column 1: "));
    assert_int_equal(parse("run: {dir: \xff}\n"), KG_EFORMAT);
    assert_non_null(
        strstr(err.message, "x.yaml: expected YAML in UTF-8, found at byte 11: "));
}

static void text_that_is_not_utf8_is_refused(void **state)
{
    static const char *const bad[] = {
        "\x80", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe2\x82"};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(kg_config_set(config, "run.dir", bad[i], false, "t", &err),
                         KG_EINVAL);
    override_fails("run.dir=ab\xff",
                   "command line: run.dir: expected UTF-8 text, found byte 0xff at 2");
}

static void sizes_are_bounded(void **state)
{
    struct kg_str text = {0};

    (void)state;
    for (int i = 0; i < 10000; i++)
        assert_int_equal(kg_str_puts(&text, "a: {b: {", &err), KG_OK);
    assert_int_equal(parse(text.data), KG_EINVAL);
    kg_str_clear(&text);
    for (int i = 0; i < 20000; i++)
        assert_int_equal(kg_str_puts(&text, "[", &err), KG_OK);
    assert_int_equal(parse(text.data), KG_EFORMAT);
    kg_str_clear(&text);
    for (int i = 0; i < 200; i++)
        assert_int_equal(kg_str_puts(&text, "k", &err), KG_OK);
    assert_int_equal(kg_str_puts(&text, ": 1\n", &err), KG_OK);
    assert_int_equal(parse(text.data), KG_EFORMAT);
    kg_str_clear(&text);
    while (text.len <= 1 << 20)
        assert_int_equal(kg_str_puts(&text, "# a long comment\n", &err), KG_OK);
    assert_int_equal(parse(text.data), KG_EFORMAT);
    assert_non_null(strstr(err.message, "expected at most 1048576 bytes of YAML"));
    kg_str_release(&text);
}

static void loading_names_the_file(void **state)
{
    char path[] = "/tmp/kedge-options-test-XXXXXX";
    int fd = mkstemp(path);
    char expected[200];

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "run: {seed: q}\n", 15), 15);
    close(fd);
    assert_int_equal(kg_config_load_yaml(config, path, &err), KG_EINVAL);
    snprintf(expected, sizeof expected, "%s line 1: run.seed: expected an integer", path);
    assert_memory_equal(err.message, expected, strlen(expected));
    unlink(path);
    assert_int_equal(kg_config_load_yaml(config, path, &err), KG_ENOTFOUND);
}

/* A byte-order mark is ignored before a key, before "---" and before a comment. */
static void a_byte_order_mark_in_front_is_passed_over(void **state)
{
    static const char *const texts[] = {
        "\xef\xbb\xbfrun:\n  seed: 3\noptim:\n  lr: 0.5\n",
        "\xef\xbb\xbf---\nrun: {seed: 3}\n", "\xef\xbb\xbf# c\nrun: {seed: 3}\n"};

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char path[] = "/tmp/kedge-options-test-XXXXXX";
        int fd = mkstemp(path);

        assert_true(write(fd, texts[i], strlen(texts[i])) == (ssize_t)strlen(texts[i]));
        close(fd);
        if (kg_config_load_yaml(config, path, &err) != KG_OK)
            fail_msg("text %zu: %s", i, err.message);
        assert_string_equal(kg_config_text(config, "run.seed"), "3");
        unlink(path);
    }
}

/* ---- dump and difference ---- */

static void dump_into(struct kg_str *out, const struct kg_config *from, bool with_help)
{
    kg_str_clear(out);
    assert_int_equal(kg_config_dump_yaml(out, from, with_help, &err), KG_OK);
}

static void dump_is_the_whole_table_by_section(void **state)
{
    struct kg_str out = {0};

    (void)state;
    loads("rollout: {stop: [\"a\\nb\", \"q\\\"\"]}\n");
    dump_into(&out, config, false);
    assert_string_equal(out.data, "run:\n"
                                  "  # dir is not set\n"
                                  "  seed: 1\n"
                                  "  save: true\n"
                                  "\n"
                                  "rollout:\n"
                                  "  temperature: 1\n"
                                  "  stop: [\"a\\nb\", \"q\\\"\"]\n"
                                  "  dtype: bf16\n"
                                  "\n"
                                  "optim:\n"
                                  "  lr: 1e-6\n"
                                  "  offset: -3\n"
                                  "\n"
                                  "sft:\n"
                                  "  lr: 1e-3\n"
                                  "\n"
                                  "a:\n"
                                  "  b.c: \"deep\"\n");
    dump_into(&out, config, true);
    assert_non_null(strstr(out.data, "  # element type (bf16|fp32)\n  dtype: bf16\n"));
    assert_non_null(strstr(out.data, "  # learning rate (0 to 1)\n  lr: 1e-6\n"));
    kg_str_release(&out);
}

/* Every text that a user can give survives a dump and a load. */
static void dump_loads_back_to_the_same_values(void **state)
{
    static const char *const texts[] = {"",
                                        " ",
                                        "null",
                                        "~",
                                        "true",
                                        "1",
                                        "- a",
                                        "a: b",
                                        "# no",
                                        "\"",
                                        "'",
                                        "\\",
                                        "\\n",
                                        "a\nb",
                                        "\t",
                                        "\r\n",
                                        "\x01\x1f\x7f",
                                        "\xc2\x85",
                                        "\xc2\xa0",
                                        "\xe2\x80\xa8",
                                        "\xef\xbb\xbf",
                                        "\xef\xbf\xbe",
                                        "\xef\xbf\xbd",
                                        "\xf0\x9f\x98\x80",
                                        "\xf4\x8f\xbf\xbf",
                                        "%YAML",
                                        "---",
                                        "  lead",
                                        "trail  ",
                                        "{x}",
                                        "[x]",
                                        "&a",
                                        "*a",
                                        "!t",
                                        "|",
                                        ">",
                                        "a #b",
                                        "\xe4\xbd\xa0"};
    struct kg_str out = {0};
    struct kg_config *other;

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(kg_config_set(config, "run.dir", texts[i], false, "t", &err),
                         KG_OK);
        assert_int_equal(kg_config_set(config, "a.b.c", texts[i], false, "t", &err),
                         KG_OK);
        dump_into(&out, config, i % 2);
        assert_int_equal(kg_config_create(&other, tables, 2, &err), KG_OK);
        if (kg_config_parse_yaml(other, out.data, out.len, "dump", &err) != KG_OK)
            fail_msg("%s", err.message);
        assert_string_equal(kg_config_text(other, "run.dir"), texts[i]);
        assert_string_equal(kg_config_text(other, "a.b.c"), texts[i]);
        kg_config_free(other);
    }
    kg_str_release(&out);
}

static void a_second_dump_is_equal(void **state)
{
    struct kg_str one = {0};
    struct kg_str two = {0};
    struct kg_config *other;

    (void)state;
    loads("run: {dir: \"x\\ty\", seed: 12}\nrollout: {stop: [\"\\n\", \"\\\\\", "
          "\"\\\\n\", '#']}\n");
    dump_into(&one, config, true);
    assert_int_equal(kg_config_create(&other, tables, 2, &err), KG_OK);
    assert_int_equal(kg_config_parse_yaml(other, one.data, one.len, "dump", &err), KG_OK);
    dump_into(&two, other, true);
    assert_string_equal(one.data, two.data);
    kg_config_free(other);
    kg_str_release(&one);
    kg_str_release(&two);
}

static void difference_compares_values_not_spelling(void **state)
{
    struct kg_str out = {0};
    struct kg_config *other;
    size_t n;

    (void)state;
    assert_int_equal(kg_config_create(&other, tables, 2, &err), KG_OK);
    loads("run: {dir: here}\noptim: {lr: 0.000001, offset: -03}\n");
    assert_int_equal(kg_config_diff(&out, &n, config, other, &err), KG_OK);
    assert_int_equal(n, 0); /* run.dir may differ, and the numbers are equal */
    loads("run: {seed: 2}\nrollout: {stop: [a]}\na.b.c: x\n");
    assert_int_equal(kg_config_diff(&out, &n, config, other, &err), KG_OK);
    assert_int_equal(n, 3);
    assert_string_equal(out.data, "run.seed: 2 -> 1; rollout.stop: [\"a\"] -> []; "
                                  "a.b.c: \"x\" -> \"deep\"");
    kg_config_free(other);
    kg_str_release(&out);
}

/* ---- failed allocations ---- */

static kg_status whole_life(void)
{
    static const char text[] =
        "run: {dir: \"x\\ty\", seed: 12}\nrollout: {stop: [a, \"b\\n\"]}\n";
    static const char wrong[] = "rum: {dir: x}\n";
    struct kg_config *c = NULL;
    struct kg_str out = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_config_create(&c, tables, 2, &err));
    KG_TRY_GOTO(out, kg_config_parse_yaml(c, text, sizeof text - 1, "x", &err));
    KG_TRY_GOTO(out, kg_config_override(c, "rollout.stop=[q, w]", "cli", &err));
    KG_TRY_GOTO(out, kg_config_set(c, "rollout.dtype", "fp32", true, "preset", &err));
    KG_TRY_GOTO(out, kg_config_dump_yaml(&out, c, true, &err));
    status = kg_config_parse_yaml(c, wrong, sizeof wrong - 1, "x", &err);
    status = status == KG_EINVAL ? KG_OK : status;
out:
    kg_str_release(&out);
    kg_config_free(c);
    return status;
}

static void every_failed_allocation_is_a_status(void **state)
{
    uint64_t n = 0;
    kg_status status;
    uint64_t before = kg_mem_current_bytes();

    (void)state;
    do {
        kg_mem_fail_at(++n);
        status = whole_life();
        kg_mem_fail_at(0);
        assert_true(status == KG_OK || status == KG_ENOMEM);
        assert_int_equal(kg_mem_current_bytes(), before);
    } while (status != KG_OK);
    assert_true(n > 20);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_config, free_config)

/* ---- names before the tables exist ---- */

static void scans_to(const char *yaml, const char *expected)
{
    char path[] = "/tmp/kedge-scan-XXXXXX", found[200] = "";
    int fd = mkstemp(path);
    char **names;
    size_t n;

    assert_true(fd >= 0 && write(fd, yaml, strlen(yaml)) == (ssize_t)strlen(yaml));
    close(fd);
    assert_int_equal(kg_config_scan(&names, &n, path, "sets", &err), KG_OK);
    for (size_t i = 0; i < n; i++)
        snprintf(found + strlen(found), sizeof found - strlen(found), "%s;", names[i]);
    assert_string_equal(found, expected);
    kg_file_names_free(names, n);
    unlink(path);
}

static void names_of_a_section_are_found_in_order(void **state)
{
    char **names;
    size_t n;

    (void)state;
    scans_to("a: 1\nsets:\n  x:\n    sets: {y: 1}\n  b: [1, {c: 2}]\nz: {sets: {q: 1}}\n",
             "x;b;");
    scans_to("sets: {b.k: 1, a: {}, b.l: 2, b: {}}", "b;a;");
    scans_to("? [sets]\n: 1\n", "");
    scans_to("sets:\n", "");
    scans_to("\xef\xbb\xbf"
             "sets:\n  x: 1\nz: 1\n",
             "x;");
    scans_to("sets: [a, b]\n", "");
    scans_to("- sets: {a: 1}\n", "");
    scans_to("", "");
    scans_to("sets: {a: 1, b: {x", "a;b;"); /* loading reports the error */
    scans_to("a: &x [*x, *x]\nsets: {c: *x}\n", "c;");
    assert_int_equal(kg_config_scan(&names, &n, "/nonexistent/x", "sets", &err),
                     KG_ENOTFOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_a_section_are_found_in_order),
        TEST(defaults_stand_without_any_source),
        TEST(yaml_gives_every_type),
        TEST(keys_may_be_joined_by_dots),
        TEST(empty_documents_change_nothing),
        TEST(overrides_beat_the_file),
        TEST(list_overrides),
        TEST(presets_are_weaker_in_any_order),
        TEST(require_names_key_and_help),
        TEST(unknown_names_are_answered_with_the_nearest),
        TEST(wrong_values_say_what_was_expected),
        TEST(number_grammar_is_decimal),
        TEST(surprising_yaml_is_refused_with_its_line),
        TEST(broken_yaml_names_line_and_column),
        TEST(text_that_is_not_utf8_is_refused),
        TEST(sizes_are_bounded),
        TEST(loading_names_the_file),
        TEST(a_byte_order_mark_in_front_is_passed_over),
        TEST(dump_is_the_whole_table_by_section),
        TEST(dump_loads_back_to_the_same_values),
        TEST(a_second_dump_is_equal),
        TEST(difference_compares_values_not_spelling),
        TEST(every_failed_allocation_is_a_status),
    };

    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
