/* Gives every input under tests/fuzz to its fuzz target again.
 *
 * The targets are compiled in, so that they run in every variant of the build, also under
 * sanitizers. A new target needs one #include and one row.
 */
#include "data/gguf_fuzz.c"
#include "data/json_fuzz.c"
#include "data/options_fuzz.c"
#include "data/parquet_fuzz.c"
#include "data/records_fuzz.c"
#include "data/safetensors_fuzz.c"
#include "math/math_fuzz.c"
#include "model/config_fuzz.c"
#include "net/http_parse_fuzz.c"
#include "net/http_server_fuzz.c"
#include "net/hub_list_fuzz.c"
#include "retriever/index_fuzz.c"
#include "retriever/vectors_fuzz.c"
#include "search/retrieve_fuzz.c"
#include "serve/api_fuzz.c"
#include "task/env_fuzz.c"
#include "task/grade_fuzz.c"
#include "text/jinja_fuzz.c"
#include "text/tokenizer_fuzz.c"
#include "tinker/tinker_fuzz.c"
#include "train/resume_fuzz.c"

#include "base/file.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

struct target {
    const char *folder;
    int (*run)(const uint8_t *bytes, size_t n);
};
static const struct target targets[] = {
    {"tests/fuzz/options", kg_fuzz_options},
    {"tests/fuzz/json", kg_fuzz_json},
    {"tests/fuzz/gguf", kg_fuzz_gguf},
    {"tests/fuzz/parquet", kg_fuzz_parquet},
    {"tests/fuzz/safetensors", kg_fuzz_safetensors},
    {"tests/fuzz/vectors", kg_fuzz_vectors},
    {"tests/fuzz/tinker", kg_fuzz_tinker},
    {"tests/fuzz/tokenizer", kg_fuzz_tokenizer},
    {"tests/fuzz/config", kg_fuzz_config},
    {"tests/fuzz/grade", kg_fuzz_grade},
    {"tests/fuzz/env", kg_fuzz_env},
    {"tests/fuzz/math", kg_fuzz_math},
    {"tests/fuzz/api", kg_fuzz_api},
    {"tests/fuzz/jinja", kg_fuzz_jinja},
    {"tests/fuzz/retrieve", kg_fuzz_retrieve},
    {"tests/fuzz/records", kg_fuzz_records},
    {"tests/fuzz/index", kg_fuzz_index},
    {"tests/fuzz/http_parse", kg_fuzz_http_parse},
    {"tests/fuzz/http_server", kg_fuzz_http_server},
    {"tests/fuzz/hub_list", kg_fuzz_hub_list},
    {"tests/fuzz/resume", kg_fuzz_resume},
};
enum { TARGETS = sizeof targets / sizeof *targets };

static void replay_file(const struct target *t, const char *name)
{
    struct kg_err err;
    struct kg_str bytes = {0};
    char *path = kg_path_join(t->folder, name, &err);

    assert_non_null(path);
    if (kg_file_read(&bytes, path, 16 << 20, &err) != KG_OK)
        fail_msg("%s", err.message);
    assert_int_equal(t->run((const uint8_t *)kg_str_text(&bytes), bytes.len), 0);
    kg_str_release(&bytes);
    kg_mem_free(path);
}

static void corpus_replays(void **state)
{
    const struct target *t = *state;
    struct kg_err err;
    char **names;
    size_t n;

    if (kg_file_list(&names, &n, t->folder, &err) != KG_OK)
        fail_msg("%s", err.message);
    assert_true(n > 0);
    for (size_t i = 0; i < n; i++)
        replay_file(t, names[i]);
    kg_file_names_free(names, n);
    assert_int_equal(kg_mem_current_bytes(), 0);
}

/* A target must accept any input: an empty one, zeros, and a text cut at every length. */
static void short_inputs_replay(void **state)
{
    static const uint8_t text[] = "{\"a\": [1, 2.5, \"x\\n\"], \"b\": {\"c\": null}}\n";
    static const uint8_t zeros[64];
    const struct target *t = *state;

    for (size_t n = 0; n < sizeof text; n++)
        assert_int_equal(t->run(text, n), 0);
    for (size_t n = 0; n <= sizeof zeros; n++)
        assert_int_equal(t->run(zeros, n), 0);
    assert_int_equal(kg_mem_current_bytes(), 0);
}

/* A seed that is refused at its first key would test nothing. */
static void seeds_of_resume_get_past_the_format(void **state)
{
    struct kg_counters counters = {0};
    struct kg_manifest_size size = {.files = 1};
    struct kg_str seed = {0};
    struct kg_err err;

    (void)state;
    if (kg_checkpoint_counters(&counters, "tests/fuzz/resume/state", &err) != KG_OK)
        fail_msg("%s", err.message);
    assert_int_equal(counters.step, 2);
    assert_int_equal(kg_file_make_dirs("build/test-fuzz-seeds", &err), KG_OK);
    assert_int_equal(
        kg_file_read(&seed, "tests/fuzz/resume/manifest-empty", 1 << 20, &err), KG_OK);
    assert_int_equal(kg_file_write_atomic("build/test-fuzz-seeds/" KG_MANIFEST_NAME,
                                          seed.data, seed.len, &err),
                     KG_OK);
    kg_str_release(&seed);
    if (kg_manifest_check(&size, "build/test-fuzz-seeds", &err) != KG_OK)
        fail_msg("%s", err.message);
    assert_int_equal(size.files, 0);
}

int main(void)
{
    struct CMUnitTest tests[2 * TARGETS + 1];

    for (size_t i = 0; i < TARGETS; i++) {
        void *t = (void *)(uintptr_t)&targets[i];
        tests[2 * i] = (struct CMUnitTest){targets[i].folder, corpus_replays, NULL, NULL,
                                           t};
        tests[2 * i + 1] = (struct CMUnitTest){"short inputs", short_inputs_replay, NULL,
                                               NULL, t};
    }
    tests[2 * TARGETS] = (struct CMUnitTest)cmocka_unit_test(
        seeds_of_resume_get_past_the_format);
    return cmocka_run_group_tests_name("fuzz corpora", tests, NULL, NULL);
}
