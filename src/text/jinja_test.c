/* Tests of chat templates: output byte-equal to that of the reference engine, limits,
 * error messages, model folders. tests/data/chat_templates/README.md describes the
 * data. */
#include "base/folder_testing.h"
#include "data/jsonl.h"
#include "text/chat_template.h"

#define DATA   "tests/data/chat_templates"
#define SHARED "../shared/data/chat_templates"

/* 2025-07-10 12:00:00 UTC, the time at which the renderings were recorded */
static const struct kg_chat_opts opts = {.now_s = 1752148800};

static kg_status render_text(struct kg_str *out, const char *text, size_t n,
                             const struct kg_json *variables,
                             const struct kg_chat_opts *with)
{
    struct kg_chat_template *t;

    KG_TRY(kg_chat_template_parse(&t, text, n, "t", &err));
    kg_status status = kg_chat_template_render(out, t, variables, with, &err);
    kg_chat_template_close(t);
    return status;
}

/* ---- recorded renderings ---- */

static struct kg_json_doc common; /* variables of records that name none */

static int read_common(void **state)
{
    (void)state;
    return kg_json_read(&common, DATA "/features_inputs.json", 1 << 20, &err) != KG_OK;
}

static int read_values(void **state)
{
    (void)state;
    return kg_json_read(&common, DATA "/values_inputs.json", 1 << 20, &err) != KG_OK;
}

static int release_common(void **state)
{
    (void)state;
    kg_json_release(&common);
    return 0;
}

static kg_status render_record(struct kg_str *out, const struct kg_json *record,
                               const char *folder)
{
    const struct kg_json *inputs = kg_json_get(record, "inputs");
    const char *file = kg_json_text(kg_json_get(record, "template_file"), NULL);
    char path[512];
    struct kg_chat_template *t;
    kg_status status;
    size_t n;

    inputs = inputs ? inputs : common.root;
    if (!file) {
        const char *text = kg_json_text(kg_json_get(record, "template"), &n);

        assert_non_null(text);
        return render_text(out, text, n, inputs, &opts);
    }
    snprintf(path, sizeof path, "%s/%s", folder, file);
    KG_TRY(kg_chat_template_open(&t, path, NULL, &err));
    status = kg_chat_template_render(out, t, inputs, &opts, &err);
    kg_chat_template_close(t);
    return status;
}

/* Recorded before transformers 5, which removes null keys before the template sees
 * them. */
static bool is_outdated(const struct kg_json *record)
{
    const char *name = kg_json_text(kg_json_get(record, "name"), NULL);

    return name && strcmp(name, "meetkai/functionary-medium-v2.2") == 0 &&
           kg_json_type(kg_json_get(
               kg_json_at(kg_json_get(kg_json_get(record, "inputs"), "messages"), 0),
               "content")) == KG_JSON_NULL;
}

/* Renders every record on which the reference engines agree; `expected` null means that
 * the engine refused it. */
static int replay(const char *folder, const char *name)
{
    struct kg_jsonl *lines;
    struct kg_json_doc doc = {0};
    char path[512];
    bool more = true;
    int n = 0;
    int wrong = 0;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(kg_jsonl_open(&lines, path, &err), KG_OK);
    for (;;) {
        struct kg_str out = {0};
        size_t len = 0;

        if (kg_jsonl_next(lines, &doc, &more, &err) != KG_OK)
            fail_msg("%s", err.message);
        if (!more)
            break;
        if (!kg_json_bool(kg_json_get(doc.root, "python_jinja2_agrees"), true) ||
            is_outdated(doc.root))
            continue;
        const char *expected = kg_json_text(kg_json_get(doc.root, "expected"), &len);
        kg_status status = render_record(&out, doc.root, folder);
        bool right = expected ? status == KG_OK && out.len == len &&
                                    memcmp(kg_str_text(&out), expected, len) == 0
                              : status == KG_EFORMAT;

        n++;
        wrong += !right;
        if (!right)
            print_error("%s line %lld: expected <%s>, found <%s>\n", path,
                        (long long)kg_jsonl_line(lines), expected ? expected : "error",
                        status == KG_OK ? kg_str_text(&out) : err.message);
        kg_str_release(&out);
    }
    kg_json_release(&doc);
    kg_jsonl_close(lines);
    assert_int_equal(wrong, 0);
    return n;
}

static void renderings_kept_here_are_byte_equal(void **state)
{
    (void)state;
    assert_true(replay(DATA, "renderings.jsonl") >= 35);
}

static void features_render_as_the_reference_engine_does(void **state)
{
    (void)state;
    assert_true(replay(DATA, "features.jsonl") >= 250);
}

/* str, repr, Markup, numbers, ranges, dict views, and filters of none and of
 * undefined. */
static void values_are_those_of_python(void **state)
{
    (void)state;
    assert_true(replay(DATA, "values.jsonl") >= 600);
}

/* Null keys, the three names of reasoning, and tools, as apply_chat_template passes
 * them. */
static void messages_come_as_transformers_hands_them_over(void **state)
{
    (void)state;
    assert_true(replay(DATA, "messages.jsonl") >= 150);
}

static void published_and_derived_renderings_are_byte_equal(void **state)
{
    (void)state;
    if (!kg_file_exists(SHARED "/renderings_published.jsonl")) {
        print_message("skipped: no " SHARED "\n");
        skip();
    }
    assert_int_equal(replay(SHARED, "renderings_published.jsonl"), 33);
    assert_int_equal(replay(SHARED, "renderings_derived.jsonl"), 70);
}

/* ---- messages and limits ---- */

static kg_status render_with(struct kg_str *out, const char *text, const char *json,
                             const struct kg_chat_opts *with)
{
    struct kg_json_doc doc;
    kg_status status;

    assert_int_equal(kg_json_parse(&doc, json, strlen(json), "vars", &err), KG_OK);
    status = render_text(out, text, strlen(text), doc.root, with);
    kg_json_release(&doc);
    return status;
}

static void a_macro_calls_back_who_calls_it(void **state)
{
    struct kg_str out = {0};

    (void)state;
    assert_int_equal(render_with(&out,
                                 "{% macro m() %}<{{ caller() }}>{% endmacro %}"
                                 "{% call m() %}x{% endcall %}",
                                 "{}", &opts),
                     KG_OK);
    assert_string_equal(kg_str_text(&out), "<x>");
    kg_str_release(&out);
}

static void errors_name_line_and_column(void **state)
{
    static const char *const cases[][2] = {
        {"a\n  {{ x.y.z }}", "t line 2 column 9: expected a value with 'z', 'y' is"},
        {"{% if a %}", "t line 1 column 11: expected elif else endif, found the end"},
        {"{{ 'a }}", "t line 1 column 4: expected a closing quote"},
        {"ab {{ 1 + }}", "t line 1 column 11: expected an expression, found '}}'"},
        {"{% include 'x' %}", "t line 1 column 4: expected if, for, set, macro"},
        {"{{ a b }}", "t line 1 column 6: expected }}, found 'b'"},
        {"\xC3\xA9{{ x|nope }}", "t line 1 column 7: expected the name of a filter"},
        {"{{ raise_exception('no ' ~ 1) }}", "column 19: the template refuses: no 1"},
        {"{{ x.append(1) }}", "expected a method without side effects"},
        {"{% break %}", "expected a loop around break"},
        {"{{ [1, 2) }}", "expected ']', found another bracket"},
        {"{# open", "t line 1 column 1: expected #} to end this comment"},
        {"{{ '%n' % 1 }}", "expected %s, %r"},
        {"{{ 9223372036854775807 + 1 }}", "expected a whole number of 64 bits"},
        {"{{ 1 // 0 }}", "expected a divisor, found 0"},
    };
    struct kg_str out = {0};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kg_status status = render_with(&out, cases[i][0], "{\"x\": [{\"y\": 1}]}", &opts);

        assert_int_equal(status, KG_EFORMAT);
        if (!strstr(err.message, cases[i][1]))
            fail_msg("%s: expected \"%s\", found \"%s\"", cases[i][0], cases[i][1],
                     err.message);
        assert_int_equal(out.len, 0);
    }
    kg_str_release(&out);
}

/* str() and list() of each slice in Python 3.11; none if a bound exceeds 64 bits. */
static void slices_of_ranges_are_those_of_python(void **state)
{
    static const char *const rows[][2] = {
        {"range(10)[::2**60]", "range(0, 10, 1152921504606846976) [0]"},
        {"range(10)[::2**60][::3]",
         "range(0, 1152921504606846976, 3458764513820540928) [0]"},
        {"range(10)[::2**60][::4]",
         "range(0, 1152921504606846976, 4611686018427387904) [0]"},
        {"range(10)[::2**60][::-4]",
         "range(0, -1152921504606846976, -4611686018427387904) [0]"},
        {"range(10)[::2**60][::-8]",
         "range(0, -1152921504606846976, -9223372036854775808) [0]"},
        {"range(10)[::-(2**60)][::-4]",
         "range(9, 1152921504606846985, 4611686018427387904) [9]"},
        {"range(0, 2**60, 2**59)[::-1]",
         "range(576460752303423488, -576460752303423488, -576460752303423488) "
         "[576460752303423488, 0]"},
        {"range(-(2**60), 2**60, 2**60)[::2]",
         "range(-1152921504606846976, 1152921504606846976, 2305843009213693952) "
         "[-1152921504606846976]"},
        {"range(2**60 - 1, 2**60)[::2**60][::4]",
         "range(1152921504606846975, 2305843009213693951, 4611686018427387904) "
         "[1152921504606846975]"},
        {"range(2**60, 0, -1000000000000000000)[::2]",
         "range(1152921504606846976, -847078495393153024, -2000000000000000000) "
         "[1152921504606846976]"},
        {"range(10)[::2**60][::8]", NULL},
        {"range(10)[::-(2**60)][::2**60]", NULL},
        {"range(0,10)[::1152921504606846976][::1152921504606846976]", NULL},
        {"range(2**60 - 1, 2**60)[::2**60][::-4][::-1][::-2]",
         "range(1152921504606846975, -3458764513820540929, -9223372036854775808) "
         "[1152921504606846975]"},
    };
    struct kg_str out = {0};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[200];
        kg_status status;

        snprintf(text, sizeof text, "{%% set r = %s %%}{{ r }} {{ r|list }}", rows[i][0]);
        kg_str_clear(&out);
        status = render_with(&out, text, "{}", &opts);
        if (status != (rows[i][1] ? KG_OK : KG_EFORMAT) ||
            (rows[i][1] ? strcmp(kg_str_text(&out), rows[i][1]) != 0
                        : !strstr(err.message, "expected a smaller step")))
            fail_msg("%s: expected %s, found %s", rows[i][0],
                     rows[i][1] ? rows[i][1] : "an error",
                     status == KG_OK ? kg_str_text(&out) : err.message);
    }
    kg_str_release(&out);
}

static void limits_stop_a_rendering(void **state)
{
    static const char *const hostile[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor "
        "%}",
        "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(99) %}"
        "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{{ 'aaaaaaaaaaaaaaaa' * 1000000000000 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns }}",
        "{{ [0] * 99999999999 }}",
        "{{ 'a'|center(99999999999) }}",
        "{{ range(10000000) }}",
        "{% for x in range(100000) %}{{ range(100000)|list|length }}{% endfor %}",
        "{{ 7 ** 999999999999 }}",
        "{{ ((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((("
        "(((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((1",
    };
    const struct kg_chat_opts small = {
        .limits = {.steps = 1000000, .memory_bytes = 32 << 20, .output_bytes = 1 << 20}};
    struct kg_str out = {0};
    uint64_t before = kg_mem_current_bytes();

    (void)state;
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        kg_status status = render_with(&out, hostile[i], "{}", &small);

        assert_true(status == KG_EFORMAT || status == KG_ENOMEM);
        assert_int_equal(out.len, 0);
    }
    kg_str_release(&out);
    assert_int_equal(kg_mem_current_bytes(), before);
}

/* At most the pool and two copies of the output, while it moves to a larger buffer. Each
 * template reaches its limit through another kind of allocation. */
static void memory_stays_below_its_limit(void **state)
{
    static const char *const greedy[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% set x = [a, b] %}"
        "{% endfor %}{% endfor %}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor "
        "%}",
        "{% for x in range(100000) %}{{ range(100000)|list|length }}{% endfor %}",
        "{% for x in range(100000) %}{% set y = {'a': x, 'b': [x, x]}|dictsort %}"
        "{% endfor %}",
        "{% for x in range(100000) %}{% set y %}{{ x }}abcdefghijkl{% endset %}"
        "{% endfor %}",
        "{% macro m(a) %}{% set b = a ~ 'b' %}{% endmacro %}"
        "{% for x in range(100000) %}{{ m(x) }}{% endfor %}",
        "{% for x in range(100000) %}{{ 'abcdefgh' * 100 }}{% endfor %}",
    };
    const struct kg_chat_limits limits = {
        .steps = 50000000, .memory_bytes = 4 << 20, .output_bytes = 1 << 20};
    const struct kg_chat_opts small = {.limits = limits};

    (void)state;
    for (size_t i = 0; i < sizeof greedy / sizeof *greedy; i++) {
        struct kg_str out = {0};

        kg_mem_reset_peak();
        uint64_t before = kg_mem_current_bytes();
        assert_int_not_equal(render_with(&out, greedy[i], "{}", &small), KG_OK);
        kg_str_release(&out);
        assert_in_range(kg_mem_peak_bytes() - before, limits.output_bytes / 2,
                        limits.memory_bytes + 2 * limits.output_bytes + (64 << 10));
    }
}

static void every_failed_allocation_is_reported(void **state)
{
    static const char text[] = "{% macro m(a, b=2) %}{{ a ~ b }}{% endmacro %}"
                               "{% for k, v in d|dictsort %}{{ m(k) ~ v|tojson }}"
                               "{% endfor %}";
    static const char json[] = "{\"d\": {\"b\": 1, \"a\": [2]}}";
    struct kg_str out = {0};
    uint64_t before = kg_mem_current_bytes();
    bool failed = true;
    struct kg_json_doc doc;

    (void)state;
    assert_int_equal(kg_json_parse(&doc, json, strlen(json), "v", &err), KG_OK);
    for (uint64_t n = 1; failed; n++) {
        kg_mem_fail_at(n);
        failed = render_text(&out, text, sizeof text - 1, doc.root, &opts) != KG_OK;
        kg_mem_fail_at(0);
        assert_true(!failed || err.code == KG_ENOMEM);
        assert_true(n < 1000);
    }
    assert_string_equal(kg_str_text(&out), "a2[2]b21");
    kg_json_release(&doc);
    kg_str_release(&out);
    assert_int_equal(kg_mem_current_bytes(), before);
}

/* Valid days, and texts that are no day. */
static void a_day_is_read(void **state)
{
    static const struct {
        const char *text, *written; /* NULL: refused */
    } rows[] = {
        {"2025-07-10", "2025-07-10 12:00 Thu"},
        {"2024-02-29", "2024-02-29 12:00 Thu"},
        {"1970-01-01", "1970-01-01 12:00 Thu"},
        {"1969-12-31", "1969-12-31 12:00 Wed"},
        {"2038-01-20", "2038-01-20 12:00 Wed"},
        {"9999-12-31", "9999-12-31 12:00 Fri"},
        {"2025-02-29", NULL},
        {"2025-13-01", NULL},
        {"2025-7-10", NULL},
        {"10 Jul 2025", NULL},
        {"2025-07-10T00:00", NULL},
        {"today", NULL},
        {"2025/07/10", NULL},
        {"2025-07-1x", NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_chat_opts on = {.now_s = 0};
        kg_status status = kg_chat_date(&on.now_s, rows[i].text, &err);
        struct kg_str out = {0};

        assert_int_equal(status, rows[i].written ? KG_OK : KG_EINVAL);
        if (!rows[i].written) {
            assert_non_null(strstr(err.message, "expected a day as YYYY-MM-DD, found '"));
            continue;
        }
        assert_int_equal(
            render_with(&out, "{{ strftime_now('%Y-%m-%d %H:%M %a') }}", "{}", &on),
            KG_OK);
        assert_string_equal(kg_str_text(&out), rows[i].written);
        kg_str_release(&out);
    }
}

static bool asks(const char *text)
{
    struct kg_chat_template *t;
    bool does;

    assert_int_equal(kg_chat_template_parse(&t, text, strlen(text), "t", &err), KG_OK);
    does = kg_chat_template_asks_date(t);
    kg_chat_template_close(t);
    return does;
}

static void a_template_that_names_the_clock_asks_for_the_day(void **state)
{
    (void)state;
    assert_true(asks("{{ strftime_now('%Y') }}"));
    assert_true(asks("{% if strftime_now is defined %}a{% endif %}"));
    assert_true(asks("{% macro m() %}{{ strftime_now('%Y') }}{% endmacro %}"));
    assert_false(asks("{{ 'strftime_now' }} strftime_now {# strftime_now #}"));
    assert_false(asks("{{ messages.strftime_now }}"));
}

/* ---- model folders ---- */

static kg_status render_folder(struct kg_str *out, const char *name)
{
    struct kg_chat_template *t;
    struct kg_json_doc doc;

    KG_TRY(kg_chat_template_open(&t, in_dir(""), name, &err));
    assert_int_equal(kg_json_parse(&doc, "{\"x\": 1}", 8, "vars", &err), KG_OK);
    kg_status status = kg_chat_template_render(out, t, doc.root, &opts, &err);
    kg_json_release(&doc);
    kg_chat_template_close(t);
    return status;
}

static void a_folder_gives_template_and_special_tokens(void **state)
{
    struct kg_str out = {0};

    (void)state;
    put("tokenizer_config.json",
        "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\", "
        "\"pad_token\": null, \"chat_template\": "
        "\"{{ bos_token }}{{ x }}{{ eos_token }}{{ pad_token }}\"}");
    assert_int_equal(render_folder(&out, NULL), KG_OK);
    assert_string_equal(kg_str_text(&out), "<s>1</s>");
    kg_str_clear(&out);
    put("tokenizer_config.json",
        "{\"eos_token\": \"!\", \"chat_template\": [{\"name\": \"default\", "
        "\"template\": \"d\"}, {\"name\": \"rag\", \"template\": \"r\"}]}");
    assert_int_equal(render_folder(&out, NULL), KG_OK);
    assert_int_equal(render_folder(&out, "rag"), KG_OK);
    assert_string_equal(kg_str_text(&out), "dr");
    assert_int_equal(render_folder(&out, "other"), KG_ENOTFOUND);
    kg_str_clear(&out);
    assert_non_null(strstr(err.message, "named 'other' in chat_template.jinja, "
                                        "additional_chat_templates or "
                                        "tokenizer_config.json, found default rag"));
    put("chat_template.jinja", "file{{ eos_token }}\n");
    assert_int_equal(render_folder(&out, NULL), KG_OK);
    assert_string_equal(kg_str_text(&out), "file!");
    assert_int_equal(render_folder(&out, "rag"), KG_ENOTFOUND);
    assert_int_equal(render_folder(&out, "../x"), KG_EINVAL);
    kg_str_release(&out);
}

static void renders(const char *name, const char *variables, const char *expected)
{
    struct kg_chat_template *t;
    struct kg_str out = {0};
    struct kg_json_doc doc;

    assert_int_equal(kg_chat_template_open(&t, in_dir(""), name, &err), KG_OK);
    assert_int_equal(kg_json_parse(&doc, variables, strlen(variables), "vars", &err),
                     KG_OK);
    assert_int_equal(kg_chat_template_render(&out, t, doc.root, &opts, &err), KG_OK);
    assert_string_equal(kg_str_text(&out), expected);
    kg_str_release(&out);
    kg_json_release(&doc);
    kg_chat_template_close(t);
}

/* transformers uses the template named tool_use if tools are given, even an empty list,
 * but not null. */
static void tools_take_the_template_for_tools(void **state)
{
    (void)state;
    put("tokenizer_config.json",
        "{\"eos_token\": \"!\", \"chat_template\": [{\"name\": \"tool_use\", "
        "\"template\": \"t{{ tools|length }}{{ eos_token }}\"}, {\"name\": \"default\", "
        "\"template\": \"d\"}]}");
    renders(NULL, "{\"x\": 1}", "d");
    renders(NULL, "{\"tools\": null}", "d");
    renders(NULL, "{\"tools\": []}", "t0!");
    renders(NULL, "{\"tools\": [1, 2]}", "t2!");
    renders("default", "{\"tools\": [1, 2]}", "d");
    renders("tool_use", "{\"tools\": [1]}", "t1!");
}

static void templates_in_files_are_named_by_them(void **state)
{
    struct kg_str names = {0};

    (void)state;
    put("tokenizer_config.json", "{\"eos_token\": \"!\", \"chat_template\": \"c\"}");
    assert_int_equal(kg_chat_template_names(&names, in_dir(""), &err), KG_OK);
    assert_string_equal(names.data, "default");
    assert_int_equal(kg_file_make_dirs(in_dir("additional_chat_templates"), &err), KG_OK);
    put("additional_chat_templates/tool_use.jinja", "tools{{ eos_token }}");
    put("additional_chat_templates/rag.jinja", "rag");
    put("chat_template.jinja", "file");
    renders(NULL, "{\"x\": 1}", "file");
    renders(NULL, "{\"tools\": [1]}", "tools!");
    renders("default", "{\"tools\": [1]}", "file");
    renders("rag", "{\"x\": 1}", "rag");
    kg_str_clear(&names);
    assert_int_equal(kg_chat_template_names(&names, in_dir(""), &err), KG_OK);
    assert_string_equal(names.data, "default\nrag\ntool_use");
    kg_str_release(&names);
}

static void names_are(const char *expected)
{
    struct kg_str names = {0};

    assert_int_equal(kg_chat_template_names(&names, in_dir(""), &err), KG_OK);
    assert_string_equal(kg_str_text(&names), expected);
    kg_str_release(&names);
}

static kg_status choose_auto(const char **message)
{
    struct kg_chat_template *t;
    kg_status status = kg_chat_template_choose(&t, "auto", in_dir(""), &err);

    *message = status == KG_OK ? t ? "one" : "none" : err.message;
    kg_chat_template_close(t);
    return status;
}

/* As in transformers: if the folder has template files, only they count; of two with one
 * name the last counts; several without a default are refused. */
static void templates_are_found_as_transformers_finds_them(void **state)
{
    const char *said;

    (void)state;
    put("tokenizer_config.json", "{\"bos_token\": \"<s>\"}");
    assert_int_equal(choose_auto(&said), KG_OK);
    assert_string_equal(said, "none");
    put("tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"default\", \"template\": \"1\"}, {\"name\": "
        "\"rag\", \"template\": \"r\"}, {\"name\": \"default\", \"template\": \"2\"}]}");
    renders(NULL, "{}", "2");
    put("tokenizer_config.json",
        "{\"chat_template\": {\"default\": \"d\", \"tool_use\": \"t\"}}");
    names_are("default\ntool_use");
    renders(NULL, "{}", "d");
    renders(NULL, "{\"tools\": []}", "t");
    put("tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"r\"}, {\"name\": "
        "\"tool_use\", \"template\": \"t\"}]}");
    assert_int_equal(choose_auto(&said), KG_ENOTFOUND);
    assert_non_null(strstr(said, "chat template auto (or pass a file)"));
    assert_non_null(strstr(said, "expected a chat template named 'default' in"));
    assert_non_null(strstr(said, "found rag tool_use"));
    renders("rag", "{}", "r");
    put("tokenizer_config.json", "{\"chat_template\": \"c\"}");
    renders(NULL, "{}", "c");
    assert_int_equal(kg_file_make_dirs(in_dir("additional_chat_templates"), &err), KG_OK);
    renders(NULL, "{}", "c"); /* an empty folder changes nothing */
    put("additional_chat_templates/rag.jinja", "file");
    assert_int_equal(choose_auto(&said), KG_ENOTFOUND);
    assert_non_null(strstr(said, "found rag"));
    renders("rag", "{}", "file");
}

/* Every string of the config whose key ends in _token, and the model's own special
 * tokens. */
static void special_tokens_are_variables(void **state)
{
    (void)state;
    put("tokenizer_config.json",
        "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\", \"pad_token\": "
        "null, \"image_token\": \"<i>\", \"add_bos_token\": true, \"tokenizer_class\": "
        "\"X\", \"extra_special_tokens\": {\"audio\": \"<a>\"}, "
        "\"model_specific_special_tokens\": {\"video_token\": {\"content\": \"<v>\"}}, "
        "\"chat_template\": \"{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ "
        "image_token }}{{ add_bos_token is defined }}{{ tokenizer_class is defined }}{{ "
        "audio }}{{ video_token }}\"}");
    renders(NULL, "{}", "<s></s>False<i>FalseFalse<a><v>");
    renders(NULL, "{\"bos_token\": \"!\"}", "!</s>False<i>FalseFalse<a><v>");
}

static void a_broken_template_for_tools_is_an_error(void **state)
{
    struct kg_chat_template *t;

    (void)state;
    put("tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"{% if\"}, "
        "{\"name\": \"default\", \"template\": \"d\"}]}");
    assert_int_equal(kg_chat_template_open(&t, in_dir(""), NULL, &err), KG_EFORMAT);
    assert_null(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renderings_kept_here_are_byte_equal),
        cmocka_unit_test_setup_teardown(features_render_as_the_reference_engine_does,
                                        read_common, release_common),
        cmocka_unit_test_setup_teardown(values_are_those_of_python, read_values,
                                        release_common),
        cmocka_unit_test(messages_come_as_transformers_hands_them_over),
        cmocka_unit_test(published_and_derived_renderings_are_byte_equal),
        cmocka_unit_test(a_macro_calls_back_who_calls_it),
        cmocka_unit_test(errors_name_line_and_column),
        cmocka_unit_test(slices_of_ranges_are_those_of_python),
        cmocka_unit_test(limits_stop_a_rendering),
        cmocka_unit_test(memory_stays_below_its_limit),
        cmocka_unit_test(every_failed_allocation_is_reported),
        cmocka_unit_test(a_day_is_read),
        cmocka_unit_test(a_template_that_names_the_clock_asks_for_the_day),
        cmocka_unit_test_setup_teardown(tools_take_the_template_for_tools, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(templates_in_files_are_named_by_them, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(templates_are_found_as_transformers_finds_them,
                                        make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(special_tokens_are_variables, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(a_broken_template_for_tools_is_an_error, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(a_folder_gives_template_and_special_tokens,
                                        make_dir, remove_dir),
    };

    return cmocka_run_group_tests_name("jinja", tests, NULL, NULL);
}
