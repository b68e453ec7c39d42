/* What names in a recipe become (commits, paths, the day) when a run starts, and when it
 * resumes. */
#include "base/folder_testing.h"

#include "data/hub.h"
#include "recipe/options.h"
#include "train/keep/inputs.h"
#include "train/open/pin.h"

#define COMMIT_A "aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd"
#define COMMIT_B "0123456789012345678901234567890123456789"

static void put_snapshot(const char *commit, const char *config)
{
    char name[120];

    snprintf(name, sizeof name, "hub/models--org--tiny/snapshots/%s", commit);
    assert_int_equal(kg_file_make_dirs(in_dir(name), &err), KG_OK);
    snprintf(name, sizeof name, "hub/models--org--tiny/snapshots/%s/config.json", commit);
    put(name, config);
}

static int make_cache(void **state)
{
    if (make_dir(state) != 0)
        return 1;
    unsetenv("HF_HUB_CACHE");
    unsetenv("HUGGINGFACE_HUB_CACHE");
    setenv("HF_HOME", dir, 1);
    put_snapshot(COMMIT_A, "{}");
    put_snapshot(COMMIT_B, "{}");
    assert_int_equal(kg_file_make_dirs(in_dir("hub/models--org--tiny/refs"), &err),
                     KG_OK);
    put("hub/models--org--tiny/refs/main", COMMIT_A);
    assert_int_equal(
        kg_file_make_dirs(in_dir("hub/datasets--org--sums/snapshots/" COMMIT_B), &err),
        KG_OK);
    assert_int_equal(kg_file_make_dirs(in_dir("hub/datasets--org--sums/refs"), &err),
                     KG_OK);
    put("hub/datasets--org--sums/refs/main", COMMIT_B);
    put("hub/datasets--org--sums/snapshots/" COMMIT_B "/a.jsonl", "{}\n");
    assert_int_equal(kg_file_make_dirs(in_dir("run"), &err), KG_OK);
    return 0;
}

static int remove_cache(void **state)
{
    unsetenv("HF_HOME");
    return remove_dir(state);
}

static void need(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

static struct kg_config *recipe_with(const char *model)
{
    char path[128], run[128],
        data[] = "data.train=[here.jsonl, \"hf://org/sums/a.jsonl\"]",
        anchor[] = "anchor.path=org/tiny@" COMMIT_B;
    char *given[] = {path, run, data, anchor};
    struct kg_config *config;

    snprintf(path, sizeof path, "model.path=%s", model);
    snprintf(run, sizeof run, "run.dir=%s", in_dir("run"));
    need(kg_train_config(&config, NULL, given, sizeof given / sizeof *given, &err));
    return config;
}

static void is_pinned(const struct kg_config *config, const char *commit)
{
    char pinned[128], path[256];
    struct kg_recipe r;

    kg_recipe_read(&r, config);
    snprintf(pinned, sizeof pinned, "org/tiny@%s", commit);
    snprintf(path, sizeof path, "%s/hub/models--org--tiny/snapshots/%s", dir, commit);
    assert_string_equal(kg_config_text(config, "model.path"), pinned);
    assert_string_equal(r.model.path, path);
}

/* Writes the config as the run's folder has it. */
static void keep_config(const struct kg_config *config)
{
    struct kg_str text = {0};

    assert_int_equal(kg_config_dump_yaml(&text, config, false, &err), KG_OK);
    put("run/config.yaml", text.data);
    kg_str_release(&text);
}

static void names_become_commits_and_fields_paths(void **state)
{
    struct kg_config *config = recipe_with("org/tiny");
    struct kg_opt_list said;
    struct kg_recipe r;

    (void)state;
    need(kg_pin(config, false, kg_chat_today(), &err));
    is_pinned(config, COMMIT_A);
    kg_recipe_read(&r, config);
    said = kg_config_list(config, "data.train");
    assert_int_equal(said.n, 2);
    assert_string_equal(said.items[0], "here.jsonl");
    assert_string_equal(said.items[1], "hf://org/sums@" COMMIT_B "/a.jsonl");
    assert_int_equal(r.data.train.n, 2);
    assert_string_equal(r.data.train.items[0], "here.jsonl");
    assert_string_equal(r.data.train.items[1],
                        in_dir("hub/datasets--org--sums/snapshots/" COMMIT_B "/a.jsonl"));
    assert_string_equal(r.anchor_path,
                        in_dir("hub/models--org--tiny/snapshots/" COMMIT_B));
    assert_string_equal(kg_config_source(config, "model.path"), "command line");
    kg_config_free(config);
}

static void a_new_value_is_not_what_the_old_one_stood_for(void **state)
{
    struct kg_config *config = recipe_with("org/tiny");
    struct kg_recipe r;

    (void)state;
    need(kg_pin(config, false, kg_chat_today(), &err));
    need(kg_config_override(config, "model.path=here", "test", &err));
    need(kg_config_override(config, "data.train=[x, y, z]", "test", &err));
    kg_recipe_read(&r, config);
    assert_string_equal(r.model.path, "here");
    assert_int_equal(r.data.train.n, 3);
    assert_string_equal(r.data.train.items[1], "y");
    kg_config_free(config);
}

static void a_resumed_run_keeps_its_commit(void **state)
{
    struct kg_config *config = recipe_with("org/tiny");

    (void)state;
    need(kg_pin(config, false, kg_chat_today(), &err));
    keep_config(config);
    kg_config_free(config);
    put("hub/models--org--tiny/refs/main", COMMIT_B); /* a newer commit was fetched */
    config = recipe_with("org/tiny");
    need(kg_pin(config, true, kg_chat_today(), &err));
    is_pinned(config, COMMIT_A);
    kg_config_free(config);
    config = recipe_with("org/tiny@" COMMIT_B); /* the comparison of configs refuses it */
    need(kg_pin(config, true, kg_chat_today(), &err));
    is_pinned(config, COMMIT_B);
    kg_config_free(config);
    config = recipe_with("org/tiny@main"); /* as given: what main is now */
    need(kg_pin(config, true, kg_chat_today(), &err));
    is_pinned(config, COMMIT_B);
    kg_config_free(config);
    config = recipe_with("org/tiny");
    need(kg_pin(config, false, kg_chat_today(), &err));
    is_pinned(config, COMMIT_B);
    kg_config_free(config);
}

static void a_resumed_run_asks_for_its_own_commit(void **state)
{
    struct kg_config *config = recipe_with("org/tiny");

    (void)state;
    need(kg_pin(config, false, kg_chat_today(), &err));
    keep_config(config);
    kg_config_free(config);
    put("hub/models--org--tiny/refs/main", COMMIT_B);
    need(kg_file_remove_tree(in_dir("hub/models--org--tiny/snapshots/" COMMIT_A), &err));
    config = recipe_with("org/tiny");
    assert_int_equal(kg_pin(config, true, kg_chat_today(), &err), KG_ENOTFOUND);
    assert_non_null(strstr(err.message, "model.path: org/tiny@" COMMIT_A));
    assert_non_null(strstr(err.message, "kedge pull org/tiny@" COMMIT_A));
    kg_config_free(config);
}

static void has_date(bool resume, const char *more, const char *date)
{
    struct kg_config *config = recipe_with("org/tiny");

    if (more)
        need(kg_config_override(config, more, "test", &err));
    need(kg_pin(config, resume, kg_chat_today(), &err));
    assert_string_equal(kg_config_text(config, "data.date"), date);
    kg_config_free(config);
}

/* If the template asks for the day, a run gets the day of its start. A resumed run keeps
 * its day, and a given day stays. */
static void a_run_keeps_the_day_that_its_template_asks_for(void **state)
{
    static const char dated[] = "{{ strftime_now('%d %b %Y') }}{{ messages }}";
    const char *model = "hub/models--org--tiny/snapshots/" COMMIT_A
                        "/chat_template.jinja";
    struct kg_config *config = recipe_with("org/tiny");
    struct kg_chat_day before = kg_chat_today(), after;
    const char *date;

    (void)state;
    has_date(false, NULL, ""); /* no template */
    put(model, "{{ messages }}");
    has_date(false, NULL, "");
    put(model, dated);
    need(kg_pin(config, false, kg_chat_today(), &err));
    after = kg_chat_today();
    date = kg_config_text(config, "data.date");
    assert_true(strcmp(date, before.text) == 0 || strcmp(date, after.text) == 0);
    need(kg_config_override(config, "data.date=2020-02-29", "test", &err));
    need(kg_pin(config, false, kg_chat_today(), &err));
    assert_string_equal(kg_config_text(config, "data.date"), "2020-02-29");
    keep_config(config);
    kg_config_free(config);
    has_date(true, NULL, "2020-02-29");
    has_date(true, "data.date=2020-03-01", "2020-03-01"); /* refused by the comparison */
    has_date(false, "data.chat_template=none", "");
    has_date(false, "data.train=[]", ""); /* plain text: no template is read */
    put(model, "{% if");                  /* reported when the run opens it */
    has_date(false, NULL, "");
}

/* The inputs of a run that started from the commit that `from` names. */
static void manifest_of(struct kg_str *out, const char *from)
{
    struct kg_config *config = recipe_with(from);
    struct kg_recipe r;

    need(kg_config_override(config, "data.train=[]", "test", &err));
    need(kg_pin(config, false, kg_chat_today(), &err));
    kg_recipe_read(&r, config);
    need(kg_str_puts(out, "{\"inputs\": ", &err));
    need(kg_inputs_json(out, &r, &err));
    need(kg_str_putc(out, '}', &err));
    kg_config_free(config);
}

static void the_manifest_has_the_commit(void **state)
{
    struct kg_config *config = recipe_with("org/tiny@" COMMIT_B);
    struct kg_str text = {0};
    struct kg_recipe r;

    (void)state;
    manifest_of(&text, "org/tiny");
    assert_non_null(strstr(
        text.data, "\"model.path\": {\"hub\": \"org/tiny\", \"commit\": \"" COMMIT_A));
    put("manifest.json", text.data);
    kg_str_clear(&text);
    need(kg_config_override(config, "data.train=[]", "test", &err));
    need(kg_pin(config, false, kg_chat_today(), &err));
    kg_recipe_read(&r, config);
    /* the same bytes under another commit */
    assert_int_equal(kg_inputs_check(&r, in_dir("manifest.json"), &err), KG_ECONFLICT);
    assert_non_null(strstr(err.message,
                           "model.path: expected org/tiny of the hub at commit " COMMIT_A
                           ", found org/tiny of the hub at commit " COMMIT_B));
    manifest_of(&text, "org/tiny@" COMMIT_B);
    put("manifest.json", text.data);
    need(kg_inputs_check(&r, in_dir("manifest.json"), &err));
    kg_config_free(config);
    kg_str_release(&text);
}

static void every_failed_allocation_is_a_status(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct kg_config *config = recipe_with("org/tiny");
        kg_status status;

        kg_mem_fail_at(n);
        status = kg_pin(config, false, kg_chat_today(), &err);
        kg_mem_fail_at(0);
        kg_config_free(config);
        if (status == KG_OK)
            return;
        assert_int_equal(status, KG_ENOMEM);
    }
}

#define IN_CACHE(test) cmocka_unit_test_setup_teardown(test, make_cache, remove_cache)

static struct kg_config *searching(const char *where)
{
    char given[] = "search.model=org/tiny", at[128];
    char *all[] = {given, at};
    struct kg_config *config;

    snprintf(at, sizeof at, "search.where=%s", where);
    need(kg_train_config(&config, NULL, all, 2, &err));
    need(kg_pin(config, false, kg_chat_today(), &err));
    return config;
}

/* A local index needs its encoder, so that model is pinned. A server has its own. */
static void the_encoder_of_an_index_is_a_model_too(void **state)
{
    struct kg_config *own = searching("wiki.db"),
                     *of_others = searching("http://127.0.0.1:1/retrieve");
    struct kg_recipe r;

    (void)state;
    assert_string_equal(kg_config_text(own, "search.model"), "org/tiny@" COMMIT_A);
    kg_recipe_read(&r, own);
    assert_string_equal(r.episode.env_opts.how.model,
                        in_dir("hub/models--org--tiny/snapshots/" COMMIT_A));
    assert_string_equal(kg_config_text(of_others, "search.model"), "org/tiny");
    kg_config_free(own);
    kg_config_free(of_others);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_CACHE(names_become_commits_and_fields_paths),
        IN_CACHE(a_new_value_is_not_what_the_old_one_stood_for),
        IN_CACHE(a_resumed_run_keeps_its_commit),
        IN_CACHE(a_run_keeps_the_day_that_its_template_asks_for),
        IN_CACHE(a_resumed_run_asks_for_its_own_commit),
        IN_CACHE(the_manifest_has_the_commit),
        IN_CACHE(the_encoder_of_an_index_is_a_model_too),
        IN_CACHE(every_failed_allocation_is_a_status),
    };

    return cmocka_run_group_tests_name("pin", tests, NULL, NULL);
}
