/* Tests of names on the hub and of finding them in a cache that has the layout of
 * HuggingFace's libraries. */
#include "base/folder_testing.h"

#include "data/hub.h"

#include <unistd.h>

#define COMMIT_A "aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd"
#define COMMIT_B "0123456789012345678901234567890123456789"

/* ---- the folder ---- */

static void folder(const char *name)
{
    assert_int_equal(kg_file_make_dirs(in_dir(name), &err), KG_OK);
}

static void link_to(const char *target, const char *name)
{
    assert_int_equal(symlink(target, in_dir(name)), 0);
}

static void forget_variables(void)
{
    static const char *const names[] = {"HF_HOME", "HF_HUB_CACHE",
                                        "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
}

/* A cache in DIR/hub: a model with a branch and a tag, and a data set. */
static int make_cache(void **state)
{
    if (make_dir(state) != 0)
        return 1;
    forget_variables();
    setenv("HF_HOME", dir, 1);
    folder("hub/models--org--tiny/blobs");
    folder("hub/models--org--tiny/refs/refs/pr");
    folder("hub/models--org--tiny/snapshots/" COMMIT_A);
    folder("hub/models--org--tiny/snapshots/" COMMIT_B);
    put("hub/models--org--tiny/blobs/1234", "{}");
    put("hub/models--org--tiny/refs/main", COMMIT_A);
    put("hub/models--org--tiny/refs/refs/pr/1", COMMIT_B "\n");
    link_to("../../blobs/1234",
            "hub/models--org--tiny/snapshots/" COMMIT_A "/config.json");
    link_to("../../blobs/1234",
            "hub/models--org--tiny/snapshots/" COMMIT_B "/config.json");
    folder("hub/datasets--org--sums/refs");
    folder("hub/datasets--org--sums/snapshots/" COMMIT_B "/data");
    put("hub/datasets--org--sums/refs/main", COMMIT_B);
    put("hub/datasets--org--sums/snapshots/" COMMIT_B "/data/train.jsonl", "{}\n");
    return 0;
}

static int remove_cache(void **state)
{
    forget_variables();
    return remove_dir(state);
}

typedef kg_status find_fn(struct kg_hub_found *out, const char *text, struct kg_err *err);

static void finds(find_fn find, const char *text, const char *path, const char *pinned)
{
    struct kg_hub_found found;

    if (find(&found, text, &err) != KG_OK)
        fail_msg("%s: %s", text, err.message);
    assert_true(found.cached);
    assert_string_equal(found.path.text, in_dir(path));
    assert_string_equal(found.pinned, pinned);
}

static void leaves(find_fn find, const char *text)
{
    struct kg_hub_found found;

    assert_int_equal(find(&found, text, &err), KG_OK);
    assert_false(found.cached);
    assert_string_equal(found.path.text, text);
}

static void refuses(find_fn find, const char *text, kg_status code, const char *words)
{
    struct kg_hub_found found;

    memset(&err, 0, sizeof err);
    assert_int_equal(find(&found, text, &err), code);
    assert_null(strchr(err.message, '\n'));
    if (!strstr(err.message, words))
        fail_msg("%s: expected a message with '%s', found: %s", text, words, err.message);
}

/* ---- names ---- */

static void ids_have_one_part_or_two(void **state)
{
    static const char *const good[] = {
        "Qwen/Qwen2.5-0.5B",   "a/b",  "org/tiny@v1.0",       "org/tiny@refs/pr/1",
        "o-r.g/_n_@" COMMIT_A, "gpt2", "bert-base-uncased@v1"};
    static const char *const bad[] = {"-tiny",
                                      "a/b/c",
                                      "./a",
                                      "../a",
                                      "a/..",
                                      "/a/b",
                                      "a//b",
                                      "a--b/c",
                                      "a/b..c",
                                      "-a/b",
                                      "a/b-",
                                      "a/b.",
                                      "a b/c",
                                      "a/b@",
                                      "a/b@../x",
                                      "a/b@-x",
                                      "a/b@x//y",
                                      "a/b@/x",
                                      "a/b@x/../../",
                                      "hf://a/b",
                                      "a/b\n",
                                      "a@",
                                      "a/",
                                      "/a",
                                      "",
                                      "a/b@x\ny",
                                      "a/b@x/",
                                      "a/b@..",
                                      "~/b",
                                      "a\\b/c",
                                      "a/b@x y",
                                      "http://a/b",
                                      "x.safetensors",
                                      "config.json@v1"};

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!kg_hub_is_id(good[i]))
            fail_msg("%s is none", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (kg_hub_is_id(bad[i]))
            fail_msg("'%s' is one", bad[i]);
}

static void an_address_is_taken_apart(void **state)
{
    struct kg_hub_name n;

    (void)state;
    assert_int_equal(kg_hub_name_read(&n, "hf://datasets/org/sums@v1/data/a.parquet",
                                      KG_HUB_MODEL, &err),
                     KG_OK);
    assert_int_equal(n.kind, KG_HUB_DATA);
    assert_string_equal(n.id, "org/sums");
    assert_string_equal(n.revision, "v1");
    assert_string_equal(n.file, "data/a.parquet");
    assert_int_equal(kg_hub_name_read(&n,
                                      "hf://org/sums@refs/convert/parquet/x/y.parquet",
                                      KG_HUB_MODEL, &err),
                     KG_OK);
    assert_string_equal(n.revision, "refs/convert/parquet");
    assert_string_equal(n.file, "x/y.parquet");
    assert_true(n.revised);
    assert_int_equal(kg_hub_name_read(&n, "hf://org/sums", KG_HUB_MODEL, &err), KG_OK);
    assert_string_equal(n.revision, "main");
    assert_false(n.revised);
}

static void paths_stay_inside(void **state)
{
    static const char *const bad[] = {"",     "/a",  "..",   "a/../b", "../a",
                                      "a/..", "./a", "a//b", "a/.",    "a\\b",
                                      "a\nb", "a/",  "a\x7f"};
    char *text = kg_mem_calloc(KG_HUB_FILE_MAX + 2, 1, "name", &err);

    (void)state;
    assert_true(kg_hub_is_inside("a/b.c/..d/e.."));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (kg_hub_is_inside(bad[i]))
            fail_msg("'%s' is inside", bad[i]);
    memset(text, 'a', KG_HUB_FILE_MAX);
    assert_true(kg_hub_is_inside(text));
    text[KG_HUB_FILE_MAX] = 'a';
    assert_false(kg_hub_is_inside(text));
    kg_mem_free(text);
}

/* ---- where the cache is ---- */

static void is_root(const char *expected)
{
    struct kg_path root;

    assert_int_equal(kg_hub_root(&root, &err), KG_OK);
    assert_string_equal(root.text, expected);
}

static void the_root_is_where_others_look(void **state)
{
    char *home = getenv("HOME") ? kg_mem_strdup(getenv("HOME"), &err) : NULL;
    struct kg_path root;

    (void)state;
    forget_variables();
    setenv("HOME", "/h", 1);
    is_root("/h/.cache/huggingface/hub");
    setenv("XDG_CACHE_HOME", "/x", 1);
    is_root("/x/huggingface/hub");
    setenv("HF_HOME", "~/hf", 1);
    is_root("/h/hf/hub");
    setenv("HUGGINGFACE_HUB_CACHE", "/old", 1);
    is_root("/old");
    setenv("HF_HUB_CACHE", "/cache", 1);
    is_root("/cache");
    setenv("HF_HUB_CACHE", "", 1); /* empty counts as unset */
    is_root("/old");
    forget_variables();
    unsetenv("HOME");
    assert_int_equal(kg_hub_root(&root, &err), KG_ENOTFOUND);
    if (home)
        setenv("HOME", home, 1);
    kg_mem_free(home);
}

/* ---- finding ---- */

static void a_model_is_found_by_name_and_revision(void **state)
{
    (void)state;
    finds(kg_hub_find_model, "org/tiny", "hub/models--org--tiny/snapshots/" COMMIT_A,
          "org/tiny@" COMMIT_A);
    finds(kg_hub_find_model, "org/tiny@main", "hub/models--org--tiny/snapshots/" COMMIT_A,
          "org/tiny@" COMMIT_A);
    finds(kg_hub_find_model, "org/tiny@refs/pr/1",
          "hub/models--org--tiny/snapshots/" COMMIT_B, "org/tiny@" COMMIT_B);
    finds(kg_hub_find_model, "org/tiny@" COMMIT_B,
          "hub/models--org--tiny/snapshots/" COMMIT_B, "org/tiny@" COMMIT_B);
}

/* The hub's oldest models have no ORG; transformers caches them under the bare name. */
static void a_model_without_an_org_is_found(void **state)
{
    const char *path = "hub/models--gpt2/snapshots/" COMMIT_B;
    char id[KG_HUB_ID_MAX + 1], commit[41];
    struct kg_hub_name n;

    (void)state;
    refuses(kg_hub_find_model, "gpt2", KG_ENOTFOUND, "kedge pull gpt2");
    folder("hub/models--gpt2/refs");
    folder(path);
    put("hub/models--gpt2/refs/main", COMMIT_B);
    put("hub/models--gpt2/snapshots/" COMMIT_B "/config.json", "{}");
    finds(kg_hub_find_model, "gpt2", path, "gpt2@" COMMIT_B);
    finds(kg_hub_find_model, "gpt2@main", path, "gpt2@" COMMIT_B);
    assert_true(kg_hub_is_snapshot(id, commit, in_dir(path)));
    assert_string_equal(id, "gpt2");
    assert_string_equal(commit, COMMIT_B);
    assert_int_equal(kg_hub_name_read(&n, "squad", KG_HUB_DATA, &err), KG_EINVAL);
    refuses(kg_hub_find_file, "hf://squad", KG_EINVAL, "hf://ORG/NAME");
}

static void a_file_of_a_data_set_is_found(void **state)
{
    const char *path = "hub/datasets--org--sums/snapshots/" COMMIT_B "/data/train.jsonl";

    (void)state;
    finds(kg_hub_find_file, "hf://org/sums/data/train.jsonl", path,
          "hf://org/sums@" COMMIT_B "/data/train.jsonl");
    finds(kg_hub_find_file, "hf://datasets/org/sums@main/data/train.jsonl", path,
          "hf://org/sums@" COMMIT_B "/data/train.jsonl");
}

static void what_is_no_name_is_left_as_it_is(void **state)
{
    (void)state;
    leaves(kg_hub_find_model, "/org/tiny");
    leaves(kg_hub_find_model, "./org/tiny");
    leaves(kg_hub_find_model, "some/where/else");
    leaves(kg_hub_find_file, "org/tiny");
    leaves(kg_hub_find_file, "data.jsonl");
}

static void a_folder_of_that_name_wins(void **state)
{
    char here[4096];

    (void)state;
    assert_non_null(getcwd(here, sizeof here));
    folder("org/tiny");
    assert_int_equal(chdir(dir), 0);
    leaves(kg_hub_find_model, "org/tiny");
    assert_int_equal(chdir(here), 0);
    finds(kg_hub_find_model, "org/tiny", "hub/models--org--tiny/snapshots/" COMMIT_A,
          "org/tiny@" COMMIT_A);
}

static void what_is_nowhere_names_the_pull(void **state)
{
    (void)state;
    refuses(kg_hub_find_model, "org/other", KG_ENOTFOUND, "kedge pull org/other");
    refuses(kg_hub_find_model, "org/tiny@v9", KG_ENOTFOUND, "kedge pull org/tiny@v9");
    refuses(kg_hub_find_model, "org/tiny@dddddddddddddddddddddddddddddddddddddddd",
            KG_ENOTFOUND, "kedge pull org/tiny@ddd");
    refuses(kg_hub_find_file, "hf://org/sums/data/test.jsonl", KG_ENOTFOUND,
            "kedge pull hf://org/sums/data/test.jsonl");
    refuses(kg_hub_find_file, "hf://org/sums", KG_EINVAL, "hf://ORG/NAME/FILE");
    refuses(kg_hub_find_file, "hf://org/sums/../../x", KG_EINVAL, "inside");
    refuses(kg_hub_find_file, "hf://org/sums@../x", KG_EINVAL, "after @");
    refuses(kg_hub_find_file, "hf:///etc/passwd", KG_EINVAL, "hf://ORG/NAME");
}

static void links_that_leave_the_cache_are_refused(void **state)
{
    const char *config = "hub/models--org--tiny/snapshots/" COMMIT_A "/config.json";

    (void)state;
    assert_int_equal(unlink(in_dir(config)), 0);
    link_to("/etc/passwd", config);
    refuses(kg_hub_find_model, "org/tiny", KG_EFORMAT, "leaves it, to /etc/passwd");
    assert_int_equal(unlink(in_dir(config)), 0);
    link_to("../../blobs/none", config);
    refuses(kg_hub_find_model, "org/tiny", KG_EFORMAT, "dangling link");
    assert_int_equal(unlink(in_dir(config)), 0);
    link_to("../../blobs/1234", config);
    folder("hub/models--org--tiny/snapshots/" COMMIT_A "/1_Pooling");
    link_to("/etc/passwd", "hub/models--org--tiny/snapshots/" COMMIT_A "/1_Pooling/x");
    refuses(kg_hub_find_model, "org/tiny", KG_EFORMAT, "leaves it, to /etc/passwd");
    link_to("../../../../away", "hub/datasets--org--sums/snapshots/" COMMIT_B "/a");
    folder("away");
    put("away/x", "");
    refuses(kg_hub_find_file, "hf://org/sums/a/x", KG_EFORMAT, "leaves it");
}

static void a_ref_holds_a_commit(void **state)
{
    static const char *const texts[] = {"", "main", "../../..", COMMIT_A "0",
                                        "AAAAAAAAAABBBBBBBBBBCCCCCCCCCCDDDDDDDDDD"};

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put("hub/models--org--tiny/refs/main", texts[i]);
        refuses(kg_hub_find_model, "org/tiny", KG_EFORMAT, "40 hexadecimal digits");
    }
}

static void a_snapshot_is_known_by_its_path(void **state)
{
    char id[KG_HUB_ID_MAX + 1], commit[41];

    (void)state;
    assert_true(kg_hub_is_snapshot(
        id, commit, in_dir("hub/models--org--tiny/snapshots/" COMMIT_A "/")));
    assert_string_equal(id, "org/tiny");
    assert_string_equal(commit, COMMIT_A);
    assert_false(kg_hub_is_snapshot(id, commit, in_dir("hub/models--org--tiny")));
    assert_false(kg_hub_is_snapshot(
        id, commit, in_dir("hub/datasets--org--sums/snapshots/" COMMIT_B)));
    folder("runs/" COMMIT_A);
    assert_false(kg_hub_is_snapshot(id, commit, in_dir("runs/" COMMIT_A)));
    assert_false(kg_hub_is_snapshot(id, commit, in_dir("none")));
}

#define IN_CACHE(test) cmocka_unit_test_setup_teardown(test, make_cache, remove_cache)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_CACHE(ids_have_one_part_or_two),
        IN_CACHE(an_address_is_taken_apart),
        IN_CACHE(paths_stay_inside),
        IN_CACHE(the_root_is_where_others_look),
        IN_CACHE(a_model_is_found_by_name_and_revision),
        IN_CACHE(a_model_without_an_org_is_found),
        IN_CACHE(a_file_of_a_data_set_is_found),
        IN_CACHE(what_is_no_name_is_left_as_it_is),
        IN_CACHE(a_folder_of_that_name_wins),
        IN_CACHE(what_is_nowhere_names_the_pull),
        IN_CACHE(links_that_leave_the_cache_are_refused),
        IN_CACHE(a_ref_holds_a_commit),
        IN_CACHE(a_snapshot_is_known_by_its_path),
    };

    return cmocka_run_group_tests_name("hub", tests, NULL, NULL);
}
