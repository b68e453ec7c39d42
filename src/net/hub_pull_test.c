/* Tests of downloads from a hub: what the cache holds afterwards, which hosts receive the
 * token, and every way in which a reply can be wrong. */
#include "base/folder_testing.h"

#include "net/hub_internal.h"
#include "net/hub_testing.h"

#include <errno.h>

enum { WEIGHTS = 300000 };

#define TOKEN    "hf_OpenSesame"
#define FOLDER   "hub/models--org--tiny"
#define SNAPSHOT FOLDER "/snapshots/" HUB_COMMIT

static char weights[WEIGHTS];
static struct kg_hub_pulled pulled;

/* ---- the folder and the hub ---- */

static void forget_variables(void)
{
    static const char *const names[] = {
        "HF_HOME",        "HF_HUB_CACHE",  "HUGGINGFACE_HUB_CACHE",
        "HF_TOKEN",       "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN",
        "HF_HUB_OFFLINE", "HF_ENDPOINT"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
}

static void usual_files(void)
{
    hub_reset();
    hub_add("config.json", "{\"hidden_size\": 8}\n", 19, false);
    hub_add("tokenizer.json", "{}", 2, true);
    hub_add("model.safetensors", weights, WEIGHTS, true);
    hub_add("1_Pooling/config.json", "{\"mode\": \"mean\"}\n", 17, false);
    hub_add("empty.json", "", 0, false);
    hub_add("twice.json", "{}", 2, true);
    hub_add("pytorch_model.bin", weights, 100, true);
    hub_add("consolidated.safetensors", weights, 200, true);
    hub_add("README.md", "# tiny\n", 7, false);
}

static int set_up(void **state)
{
    char url[64];

    if (make_dir(state) != 0)
        return 1;
    forget_variables();
    kg_file_skip_syncs(true);
    for (size_t i = 0; i < WEIGHTS; i++)
        weights[i] = (char)(i * i % 251 + i / 1000);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/", hub_hosts[HUB_HOST].port);
    setenv("HF_ENDPOINT", url, 1);
    setenv("HF_HOME", dir, 1);
    usual_files();
    return 0;
}

static int tear_down(void **state)
{
    forget_variables();
    return remove_dir(state);
}

static int start(void **state)
{
    (void)state;
    return hub_start();
}

static int stop(void **state)
{
    (void)state;
    hub_stop();
    return 0;
}

/* ---- pulling ---- */

static kg_status pull_with(struct kg_hub_pull_opts opts, const char *name,
                           enum kg_hub_kind kind)
{
    opts.in_flight = opts.in_flight > 0 ? opts.in_flight : 3;
    opts.backoff_ms = 1;
    memset(&err, 0, sizeof err);
    if (kg_hub_name_read(&opts.name, name, kind, &err) != KG_OK)
        return err.code;
    return kg_hub_pull(&pulled, &opts, &err);
}

static kg_status pull(const char *name)
{
    return pull_with((struct kg_hub_pull_opts){0}, name, KG_HUB_MODEL);
}

static void pulls(const char *name)
{
    if (pull(name) != KG_OK)
        fail_msg("%s: %s", name, err.message);
}

/* The error has this code and these words, is one line, and never contains the token. */
static void said(kg_status code, const char *words)
{
    if (err.code != code || !strstr(err.message, words))
        fail_msg("expected %s with '%s', found %s: %s", kg_status_name(code), words,
                 kg_status_name(err.code), err.message);
    assert_null(strchr(err.message, '\n'));
    assert_null(strstr(err.message, TOKEN));
    assert_null(strstr(err.message, "sesame")); /* nor a signature */
}

static void refuses(const char *name, kg_status code, const char *words)
{
    assert_int_not_equal(pull(name), KG_OK);
    said(code, words);
}

static void is_there(const char *name, const char *bytes, size_t n)
{
    struct kg_str text = {0};

    assert_int_equal(kg_file_read(&text, in_dir(name), 1 << 20, &err), KG_OK);
    assert_int_equal(text.len, n);
    assert_memory_equal(kg_str_text(&text), bytes, n);
    kg_str_release(&text);
}

static void is_whole(void)
{
    is_there(SNAPSHOT "/config.json", "{\"hidden_size\": 8}\n", 19);
    is_there(SNAPSHOT "/1_Pooling/config.json", "{\"mode\": \"mean\"}\n", 17);
    is_there(SNAPSHOT "/empty.json", "", 0);
    is_there(SNAPSHOT "/twice.json", "{}", 2);
    is_there(SNAPSHOT "/model.safetensors", weights, WEIGHTS);
    is_there(FOLDER "/refs/main", HUB_COMMIT, 40);
}

/* There is no snapshot, and no file under the name of its digest. */
static void nothing_is_there(void)
{
    char **names;
    size_t n;

    assert_false(kg_file_exists(in_dir(FOLDER "/refs")));
    assert_false(kg_file_exists(in_dir(FOLDER "/snapshots")));
    if (!kg_file_is_dir(in_dir(FOLDER "/blobs")))
        return;
    assert_int_equal(kg_file_list(&names, &n, in_dir(FOLDER "/blobs"), &err), KG_OK);
    for (size_t i = 0; i < n; i++)
        if (!strstr(names[i], ".kedge-") && strlen(names[i]) == 64) {
            struct kg_str text = {0};
            char name[120];

            snprintf(name, sizeof name, FOLDER "/blobs/%.64s", names[i]);
            assert_int_equal(kg_file_read(&text, in_dir(name), 1 << 20, &err), KG_OK);
            assert_int_not_equal(text.len, WEIGHTS);
            kg_str_release(&text);
        }
    kg_file_names_free(names, n);
}

/* ---- what is downloaded ---- */

static void a_model_lies_as_others_lay_it(void **state)
{
    struct kg_hub_found found;
    char target[256], digest[KG_DIGEST_TEXT], expected[128];
    ssize_t n;

    (void)state;
    pulls("org/tiny");
    is_whole();
    assert_string_equal(pulled.commit, HUB_COMMIT);
    assert_int_equal(pulled.files, 6);
    assert_int_equal(pulled.bytes, WEIGHTS + 19 + 2 + 17 + 0 + 2);
    assert_int_equal(pulled.fetched, WEIGHTS + 19 + 2 + 17); /* two share a blob */
    hub_digest(digest, &hub.files[2]);
    snprintf(expected, sizeof expected, "../../blobs/%s", digest);
    n = readlink(in_dir(SNAPSHOT "/model.safetensors"), target, sizeof target - 1);
    assert_true(n > 0);
    target[n] = '\0';
    assert_string_equal(target, expected);
    n = readlink(in_dir(SNAPSHOT "/1_Pooling/config.json"), target, sizeof target - 1);
    assert_true(n > 0);
    assert_memory_equal(target, "../../../blobs/", 15);
    assert_int_equal(kg_hub_find_model(&found, "org/tiny", &err), KG_OK);
    assert_string_equal(found.path.text, pulled.dir.text);
    assert_false(kg_file_exists(in_dir(SNAPSHOT "/pytorch_model.bin")));
    assert_false(kg_file_exists(in_dir(SNAPSHOT "/consolidated.safetensors")));
    assert_false(kg_file_exists(in_dir(SNAPSHOT "/README.md")));
}

/* The hub redirects requests for its oldest models, which are named without an ORG. The
 * files are cached under the name that the user gave. Redirected requests to the hub
 * carry the token; those to the store do not. */
static void a_model_without_an_org_is_where_a_redirection_leads(void **state)
{
    static const char folder[] = "hub/models--tiny/snapshots/" HUB_COMMIT;
    struct kg_hub_found found;

    (void)state;
    hub.renamed = true;
    setenv("HF_TOKEN", TOKEN, 1);
    pulls("tiny");
    is_there("hub/models--tiny/refs/main", HUB_COMMIT, 40);
    assert_string_equal(pulled.dir.text, in_dir(folder));
    assert_int_equal(kg_hub_find_model(&found, "tiny", &err), KG_OK);
    assert_string_equal(found.path.text, in_dir(folder));
    assert_string_equal(found.pinned, "tiny@" HUB_COMMIT);
    is_there("hub/models--tiny/snapshots/" HUB_COMMIT "/model.safetensors", weights,
             WEIGHTS);
    assert_true(hub_count("hub /api/models/org/tiny/revision/main") > 0);
    assert_int_equal(hub_count_keys("store", "Bearer"), 0);
    assert_int_equal(hub_count_keys("hub", "\n"), 0);
}

static void files_of_one_digest_are_fetched_once(void **state)
{
    (void)state;
    hub.n = 1;
    hub_add("b.json", "[2]", 3, false);
    hub_add("a.json", "[1]", 3, false);
    hub_add("b2.json", "[2]", 3, false);
    hub_add("a2.json", "[1]", 3, false);
    hub_add("b3.json", "[2]", 3, false);
    hub_add("model.safetensors", weights, 10, true);
    pulls("org/tiny");
    assert_int_equal(hub_count("/resolve/"), 4);
    is_there(SNAPSHOT "/b3.json", "[2]", 3);
    is_there(SNAPSHOT "/a2.json", "[1]", 3);
}

static void what_is_there_is_not_fetched_again(void **state)
{
    (void)state;
    pulls("org/tiny");
    pulls("org/tiny");
    assert_int_equal(pulled.fetched, 0);
    assert_int_equal(hub_count("/api/models/org/tiny/revision/main?blobs=true"), 2);
    assert_int_equal(hub_count("store "), 2); /* both by the first pull */
    is_whole();
}

static void a_revision_is_what_is_asked_for(void **state)
{
    (void)state;
    pulls("org/tiny@refs/pr/1");
    assert_int_equal(hub_count("/revision/refs%2Fpr%2F1?"), 1);
    is_there(FOLDER "/refs/refs/pr/1", HUB_COMMIT, 40);
    assert_false(kg_file_exists(in_dir(FOLDER "/refs/main")));
    pulls("org/tiny@" HUB_COMMIT);
    assert_false(kg_file_exists(in_dir(FOLDER "/refs/" HUB_COMMIT)));
}

static void another_commit_than_asked_for_is_refused(void **state)
{
    (void)state;
    hub.commit = "ffffffffffffffffffffffffffffffffffffffff";
    refuses("org/tiny@" HUB_COMMIT, KG_EFORMAT,
            "org/tiny: expected the commit " HUB_COMMIT
            ", found ffffffffffffffffffffffffffffffffffffffff");
    nothing_is_there();
    assert_int_equal(hub_count("/resolve/"), 0);
}

static void a_newer_commit_stands_beside_the_old_one(void **state)
{
    static const char newer[] = "ffffffffffffffffffffffffffffffffffffffff";

    (void)state;
    pulls("org/tiny");
    hub.commit = newer;
    hub.files[0].bytes = "{\"hidden_size\": 9}\n";
    pulls("org/tiny");
    assert_int_equal(pulled.fetched, 19);
    is_there(FOLDER "/refs/main", newer, 40);
    is_there(SNAPSHOT "/config.json", "{\"hidden_size\": 8}\n", 19);
    is_there(FOLDER "/snapshots/ffffffffffffffffffffffffffffffffffffffff/config.json",
             "{\"hidden_size\": 9}\n", 19);
}

static void patterns_choose_other_files(void **state)
{
    static const char *const bins[] = {"*.bin", "README*"}, *const none[] = {"*.gguf"};

    (void)state;
    assert_int_equal(pull_with((struct kg_hub_pull_opts){.include = bins, .n_include = 2},
                               "org/tiny", KG_HUB_MODEL),
                     KG_OK);
    assert_int_equal(pulled.files, 2);
    is_there(SNAPSHOT "/pytorch_model.bin", weights, 100);
    assert_int_not_equal(
        pull_with((struct kg_hub_pull_opts){.include = none, .n_include = 1}, "org/tiny",
                  KG_HUB_MODEL),
        KG_OK);
    said(KG_ENOTFOUND, "expected a file that matches, found none among its 9 files");
    hub.files[2].path = "model.bin";
    refuses("org/tiny", KG_EUNSUPPORTED, "*.safetensors");
}

static void a_data_set_comes_whole_or_by_file(void **state)
{
    (void)state;
    hub_reset();
    hub_add("data/train.jsonl", "{\"a\": 1}\n", 9, true);
    hub_add("README.md", "# sums\n", 7, false);
    assert_int_equal(pull_with((struct kg_hub_pull_opts){0},
                               "hf://org/sums/data/train.jsonl", KG_HUB_MODEL),
                     KG_OK);
    assert_int_equal(pulled.files, 1);
    is_there("hub/datasets--org--sums/snapshots/" HUB_COMMIT "/data/train.jsonl",
             "{\"a\": 1}\n", 9);
    assert_int_equal(hub_count("/api/datasets/org/sums/revision/main?blobs=true"), 1);
    assert_int_equal(
        hub_count("/datasets/org/sums/resolve/" HUB_COMMIT "/data/train.jsonl"), 1);
    assert_int_equal(pull_with((struct kg_hub_pull_opts){0}, "org/sums", KG_HUB_DATA),
                     KG_OK);
    assert_int_equal(pulled.files, 2);
    refuses(
        "hf://org/sums/data/test.jsonl", KG_ENOTFOUND,
        "expected the file data/test.jsonl, found none among its 2 files, such as data/");
}

/* ---- which hosts receive the token ---- */

static void the_token_is_told_to_the_hub_alone(void **state)
{
    (void)state;
    setenv("HF_TOKEN", TOKEN, 1);
    pulls("org/tiny");
    assert_true(hub_count("hub ") > 3);
    assert_int_equal(hub_count("key=Bearer " TOKEN "\n"), hub_count("hub "));
    assert_int_equal(hub_count_keys("store", ""), 2);
    assert_int_equal(hub_count_keys("store", "\n"), 2);
}

static void without_a_token_nobody_is_told_one(void **state)
{
    (void)state;
    pulls("org/tiny");
    assert_int_equal(hub_count("Bearer"), 0);
}

static void the_token_may_lie_in_a_file(void **state)
{
    (void)state;
    put("token", TOKEN "\n");
    pulls("org/tiny");
    assert_int_equal(hub_count("key=Bearer " TOKEN "\n"), hub_count("hub "));
    put("other", "hf_other");
    setenv("HF_TOKEN_PATH", in_dir("other"), 1);
    pulls("org/tiny");
    assert_int_equal(hub_count("key=Bearer hf_other\n"), 1);
    setenv("HF_TOKEN", "hf_first", 1);
    pulls("org/tiny");
    assert_int_equal(hub_count("key=Bearer hf_first\n"), 1);
    setenv("HF_TOKEN", TOKEN "\nX: y", 1);
    refuses("org/tiny", KG_EINVAL, "HF_TOKEN: expected a token without blanks");
}

/* ---- transfers that end early ---- */

static void a_cut_transfer_goes_on_where_it_was_cut(void **state)
{
    (void)state;
    hub.cuts = 4;
    hub.cut_after = 10000;
    pulls("org/tiny");
    is_whole();
    assert_int_equal(hub.cuts, 0);
    assert_int_equal(pulled.fetched, WEIGHTS + 19 + 2 + 17);
    assert_int_equal(hub_count("range=10000- "), 2); /* from hub and store */
    assert_int_equal(hub_count("range=40000- "), 2);
}

static void an_interrupted_pull_goes_on(void **state)
{
    (void)state;
    hub.cuts = 1000;
    hub.cut_after = 500; /* a file may be cut 50 times */
    refuses("org/tiny", KG_EIO, "the same pull continues there");
    nothing_is_there();
    hub.cuts = 0;
    pulls("org/tiny");
    is_whole();
    assert_true(pulled.fetched < WEIGHTS);
}

/* Leaves a partial download, as an interrupted pull does. */
static void leave(const struct hub_file *f, const char *bytes, size_t n)
{
    char digest[KG_DIGEST_TEXT], name[120];

    hub_digest(digest, f);
    assert_int_equal(kg_file_make_dirs(in_dir(FOLDER "/blobs"), &err), KG_OK);
    snprintf(name, sizeof name, FOLDER "/blobs/%s.kedge-part", digest);
    assert_int_equal(kg_file_write_atomic(in_dir(name), bytes, n, &err), KG_OK);
}

/* The cache is below a read-only folder or below a file, whichever variable names it. */
static void a_cache_that_cannot_be_written_is_named(void **state)
{
    static const char *const variables[] = {
        "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HOME"};
    struct kg_path file;

    (void)state;
    put("file", "");
    file = kg_path_in(dir, "file");
    for (int i = 0; i < 10; i++) {
        const char *variable = variables[i / 2], *before = getenv(variable);
        char *kept = before ? strdup(before) : NULL;
        unsetenv("HF_HOME");
        unsetenv("XDG_CACHE_HOME");
        setenv(variable, i % 2 ? file.text : "/proc", 1);
        kg_status status = pull("org/tiny");
        if (kept)
            setenv(variable, kept, 1);
        else
            unsetenv(variable);
        free(kept);
        assert_int_not_equal(status, KG_OK);
        said(status, i % 2 ? file.text : "/proc");
        said(status, "expected a writable folder");
        said(status, "HF_HOME=DIR names another");
    }
}

static void what_is_left_goes_on_or_begins_again(void **state)
{
    static const char zeros[WEIGHTS + 1];
    static const struct {
        const char *bytes;
        size_t n, fetched;
    } left[] = {{weights, 100000, WEIGHTS - 100000},
                {weights, WEIGHTS, 0},
                {weights, 0, WEIGHTS},
                {zeros, 100000, WEIGHTS - 100000 + WEIGHTS},
                {zeros, WEIGHTS, WEIGHTS},
                {zeros, WEIGHTS + 1, WEIGHTS}};

    (void)state;
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        assert_int_equal(kg_file_remove_tree(in_dir("hub"), &err), KG_OK);
        leave(&hub.files[2], left[i].bytes, left[i].n);
        pulls("org/tiny");
        is_whole();
        assert_int_equal(pulled.fetched, left[i].fetched + 19 + 2 + 17);
    }
}

static void a_server_without_ranges_gives_whole_files(void **state)
{
    (void)state;
    hub.no_ranges = true;
    hub.cuts = 2;
    hub.cut_after = 100000;
    pulls("org/tiny");
    is_whole();
    assert_int_equal(hub_count("store /store/model.safetensors"), 3);
}

/* The signed address may have expired when the rest is requested, so the hub is asked for
 * a new one. */
static void the_rest_is_asked_of_the_hub(void **state)
{
    (void)state;
    hub.cuts = 2;
    hub.cut_after = 100000;
    pulls("org/tiny");
    is_whole();
    assert_int_equal(hub_count("/resolve/" HUB_COMMIT "/model.safetensors"), 3);
    assert_int_equal(hub_count("store /store/model.safetensors?Signature=sesame"), 3);
}

static void a_refusal_of_the_store_is_one(void **state)
{
    (void)state;
    hub.refuses = true;
    refuses("org/tiny", KG_EINVAL, "403");
    nothing_is_there();
}

/* ---- files with other contents ---- */

static void another_digest_is_refused(void **state)
{
    (void)state;
    hub.flip = true;
    refuses("org/tiny", KG_EFORMAT, "expected the digest ");
    nothing_is_there();
    assert_false(kg_file_exists(in_dir(SNAPSHOT)));
    hub.flip = false;
    pulls("org/tiny"); /* what the failed pull left and does not match is fetched again */
    is_whole();
}

static void another_length_is_refused(void **state)
{
    (void)state;
    hub.n = 1;
    hub.files[0].path = "model.safetensors";
    hub.longer = 1;
    refuses("org/tiny", KG_EFORMAT, "model.safetensors: expected 20 bytes, found 19");
    nothing_is_there();
    hub.no_ranges = true;
    refuses("org/tiny", KG_EFORMAT, "model.safetensors: expected 20 bytes, found 19");
    nothing_is_there();
    hub.longer = (size_t)1 << 60;
    refuses("org/tiny", KG_ENOSPACE, "expected room for 1152921504.61 GB, found ");
    nothing_is_there();
}

static void a_page_in_the_place_of_a_file_is_refused(void **state)
{
    (void)state;
    hub.n = 1;
    hub.files[0].path = "model.safetensors";
    hub.file_answer = "200 OK\r\nContent-Type: text/html";
    hub.file_page = "<html>Sign in to the network</html>";
    refuses("org/tiny", KG_EFORMAT, "expected 19 bytes, found 35");
    assert_memory_equal(err.message, "model.safetensors: expected", 27);
    hub.file_answer = "206 Partial Content\r\nContent-Range: bytes 5-6/19";
    refuses("org/tiny", KG_EFORMAT, "expected bytes 0 to ");
    hub.file_answer = "206 Partial Content";
    refuses("org/tiny", KG_EFORMAT, "expected bytes FIRST-LAST/ALL");
    nothing_is_there();
}

/* ---- replies that are no answers ---- */

static void answered(const char *answer, const char *page, kg_status code,
                     const char *words)
{
    hub.answer = answer;
    hub.page = page;
    refuses("org/tiny", code, words);
    nothing_is_there();
}

static void gated_answers_say_where_to_sign(void **state)
{
    (void)state;
    answered(
        "401 Unauthorized\r\nX-Error-Code: GatedRepo\r\nX-Error-Message: Access to model "
        "org/tiny is restricted.",
        "", KG_EINVAL, "/org/tiny and set HF_TOKEN");
    said(KG_EINVAL, "Access to model org/tiny is restricted.");
    setenv("HF_TOKEN", TOKEN, 1);
    answered("403 Forbidden\r\nX-Error-Code: GatedRepo", "{\"error\": \"no access\"}",
             KG_EINVAL, "(no access): accept the licence at http://127.0.0.1");
    said(KG_EINVAL, "with the account of the token");
}

static void what_is_not_there_is_named(void **state)
{
    (void)state;
    answered("401 Unauthorized\r\nX-Error-Code: RepoNotFound",
             "{\"error\": \"Invalid username or password.\"}", KG_EINVAL,
             "no public model of that name");
    said(KG_EINVAL, "set HF_TOKEN");
    answered("404 Not Found\r\nX-Error-Code: RepoNotFound",
             "{\"error\": \"Repository not found\"}", KG_ENOTFOUND,
             "expected a model at http://127.0.0.1");
    hub.answer = "404 Not Found\r\nX-Error-Code: RevisionNotFound";
    refuses("org/tiny@v9", KG_ENOTFOUND,
            "expected a branch, tag or commit, found no 'v9'");
}

static void pages_and_nonsense_are_no_list(void **state)
{
    (void)state;
    answered("500 Oops\r\nContent-Type: text/html", "<html><b>down\nfor</b> repair",
             KG_EIO, "found 500 (an HTML page)");
    answered("200 OK\r\nContent-Type: text/html", "<!doctype html><p>hello", KG_EFORMAT,
             "expected JSON, found an HTML page");
    answered("418 Teapot", "{\"error\": \"I am\\u001b[2J short\"}", KG_EFORMAT,
             "found 418");
    assert_null(strstr(err.message, "\x1b"));
    answered("200 OK", "[1, 2", KG_EFORMAT, "the list of ");
    answered("200 OK", "[]", KG_EFORMAT, "expected an object");
    answered("200 OK", "{\"sha\": \"main\", \"siblings\": []}", KG_EFORMAT,
             "40 hexadecimal");
}

static void redirections_end(void **state)
{
    char away[128];

    (void)state;
    snprintf(away, sizeof away, "302 Found\r\nLocation: /api/elsewhere");
    answered(away, "", KG_EFORMAT, "more than 5 redirections");
    answered("302 Found\r\nLocation: file:///etc/passwd", "", KG_EFORMAT,
             "expected a redirection to an address");
    answered("302 Found", "", KG_EFORMAT, "found 302");
    hub.answer = NULL;
    hub.location = "ftp://127.0.0.1/model?secret";
    refuses("org/tiny", KG_EFORMAT, "expected a redirection to an address");
    nothing_is_there();
}

static void names_that_lead_out_are_refused(void **state)
{
    static const char *const paths[] = {"../x.json", "/etc/x.json", "a/../../x.json",
                                        "a//x.json", "x\\\\y.json"};

    (void)state;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        hub.files[0].path = paths[i];
        refuses("org/tiny", KG_EFORMAT, "which leads out");
        nothing_is_there();
    }
}

static void a_list_with_another_digest_is_refused(void **state)
{
    static const char *const lists[] = {
        "{\"rfilename\": \"a.json\", \"size\": 1, \"blobId\": \"../../../../x\"}",
        "{\"rfilename\": \"a.json\", \"size\": 1}",
        "{\"rfilename\": \"a.json\", \"blobId\": "
        "\"0123456789012345678901234567890123456789\"}",
        "{\"rfilename\": \"a.json\", \"size\": -1, "
        "\"blobId\": \"0123456789012345678901234567890123456789\"}",
        "{\"rfilename\": \"a.json\", \"size\": 1, \"lfs\": {\"sha256\": \"12\", "
        "\"size\": 1}}",
        "{\"rfilename\": 1}",
        "7"};
    char list[512];

    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        snprintf(list, sizeof list, "{\"sha\": \"" HUB_COMMIT "\", \"siblings\": [%s]}",
                 lists[i]);
        hub.list = list;
        refuses("org/tiny", KG_EFORMAT, "the list of ");
        nothing_is_there();
    }
}

static void the_environment_is_checked(void **state)
{
    static const char *const urls[] = {
        "huggingface.co",      "ftp://x",           "http://a b",
        "https://me@x",        "http://",           "https:///path",
        "http://host:",        "http://host:/path", "http://host:8o",
        "http://:80",          "http://[::1",       "http://[]",
        "http://[::1]:",       "http://[::1]x",     "http://host:8:8",
        "http://host:0",       "http://host:65536", "https://me:sesame@x",
        "http://h/?key=sesame"};
    static const char *const good[] = {"http://host", "https://host:443/hub/",
                                       "http://[::1]", "http://[::1]:80/hub"};
    struct kg_hub_site site;

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        setenv("HF_ENDPOINT", good[i], 1);
        assert_int_equal(kg_hub_site_open(&site, &err), KG_OK);
        kg_hub_site_close(&site);
    }
    setenv("HF_HUB_OFFLINE", "1", 1);
    refuses("org/tiny", KG_EINVAL, "HF_HUB_OFFLINE=1");
    unsetenv("HF_HUB_OFFLINE");
    setenv("TRANSFORMERS_OFFLINE", "Yes", 1);
    refuses("org/tiny", KG_EINVAL, "TRANSFORMERS_OFFLINE=Yes");
    setenv("HF_HUB_OFFLINE", "0", 1); /* HF_HUB_OFFLINE has priority */
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        setenv("HF_ENDPOINT", urls[i], 1);
        refuses("org/tiny", KG_EINVAL, "HF_ENDPOINT");
    }
    unsetenv("TRANSFORMERS_OFFLINE");
    assert_int_equal(hub_count("GET"), 0);
}

static void origins_are_scheme_host_and_port(void **state)
{
    const struct kg_http_answer down = {.redirect = "http://x/y?secret"},
                                up = {.redirect = "https://x/y"};

    (void)state;
    assert_true(kg_http_same_origin("https://h", "https://H/a"));
    assert_true(kg_http_same_origin("https://h/a?b", "https://h?c"));
    assert_false(kg_http_same_origin("https://h", "https://h.evil/a"));
    assert_false(kg_http_same_origin("https://h", "https://h:444/a"));
    assert_false(kg_http_same_origin("https://h", "http://h/a"));
    assert_false(kg_http_same_origin("https://h", "https://h@evil/a"));
    assert_false(kg_http_same_origin("", ""));
    assert_int_equal(kg_hub_check_redirect("https://h/", &down, &err), KG_EFORMAT);
    assert_null(strstr(err.message, "secret"));
    assert_int_equal(kg_hub_check_redirect("https://h/", &up, &err), KG_OK);
    assert_int_equal(kg_hub_check_redirect("http://h/", &down, &err), KG_OK);
}

/* ---- failures of the machine ---- */

static void every_failed_request_to_the_disk_is_a_status(void **state)
{
    (void)state;
    hub.n = 2; /* config.json, tokenizer.json */
    hub.files[1].path = "model.safetensors";
    for (uint64_t n = 1;; n++) {
        kg_status status;

        assert_int_equal(kg_file_remove_tree(in_dir("hub"), &err), KG_OK);
        kg_file_fail_at(n, 5);
        status = pull("org/tiny");
        kg_file_fail_at(0, 0);
        if (status == KG_OK)
            break;
        if (kg_file_exists(in_dir(FOLDER "/refs/main")))
            is_there(SNAPSHOT "/model.safetensors", "{}", 2);
    }
}

/* What is left of a partial file is a prefix of the whole file. */
static void what_is_left_is_a_beginning(const char *digest)
{
    struct kg_str bytes = {0};
    char name[120];

    snprintf(name, sizeof name, FOLDER "/blobs/%s.kedge-part", digest);
    if (!kg_file_exists(in_dir(name)))
        return;
    assert_int_equal(kg_file_read(&bytes, in_dir(name), 1 << 20, &err), KG_OK);
    assert_in_range(bytes.len, 0, WEIGHTS);
    assert_memory_equal(kg_str_text(&bytes), weights, bytes.len);
    kg_str_release(&bytes);
}

/* Whichever write fails, only a prefix of the file is left, from which the next pull can
 * continue. */
static void nothing_but_a_beginning_is_left(void **state)
{
    char digest[KG_DIGEST_TEXT];
    kg_status status = KG_EIO;

    (void)state;
    hub.files[0] = (struct hub_file){"model.safetensors", weights, WEIGHTS, true};
    hub.n = 1;
    hub_digest(digest, &hub.files[0]);
    for (uint64_t n = 1; status != KG_OK; n++) {
        assert_int_equal(kg_file_remove_tree(in_dir("hub"), &err), KG_OK);
        kg_file_fail_at(n, ENOSPC);
        status = pull("org/tiny");
        kg_file_fail_at(0, 0);
        what_is_left_is_a_beginning(digest);
    }
    is_there(SNAPSHOT "/model.safetensors", weights, WEIGHTS);
}

static void every_failed_allocation_is_a_status(void **state)
{
    (void)state;
    hub.n = 2;
    hub.files[1].path = "model.safetensors";
    for (uint64_t n = 1;; n++) {
        kg_status status;

        assert_int_equal(kg_file_remove_tree(in_dir("hub"), &err), KG_OK);
        kg_mem_fail_at(n);
        status = pull("org/tiny");
        kg_mem_fail_at(0);
        if (status == KG_OK)
            break;
    }
}

#define WITH_HUB(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_HUB(a_model_lies_as_others_lay_it),
        WITH_HUB(a_model_without_an_org_is_where_a_redirection_leads),
        WITH_HUB(files_of_one_digest_are_fetched_once),
        WITH_HUB(what_is_there_is_not_fetched_again),
        WITH_HUB(a_revision_is_what_is_asked_for),
        WITH_HUB(another_commit_than_asked_for_is_refused),
        WITH_HUB(a_newer_commit_stands_beside_the_old_one),
        WITH_HUB(patterns_choose_other_files),
        WITH_HUB(a_data_set_comes_whole_or_by_file),
        WITH_HUB(the_token_is_told_to_the_hub_alone),
        WITH_HUB(without_a_token_nobody_is_told_one),
        WITH_HUB(the_token_may_lie_in_a_file),
        WITH_HUB(a_cut_transfer_goes_on_where_it_was_cut),
        WITH_HUB(an_interrupted_pull_goes_on),
        WITH_HUB(what_is_left_goes_on_or_begins_again),
        WITH_HUB(a_cache_that_cannot_be_written_is_named),
        WITH_HUB(a_server_without_ranges_gives_whole_files),
        WITH_HUB(the_rest_is_asked_of_the_hub),
        WITH_HUB(a_refusal_of_the_store_is_one),
        WITH_HUB(another_digest_is_refused),
        WITH_HUB(another_length_is_refused),
        WITH_HUB(a_page_in_the_place_of_a_file_is_refused),
        WITH_HUB(gated_answers_say_where_to_sign),
        WITH_HUB(what_is_not_there_is_named),
        WITH_HUB(pages_and_nonsense_are_no_list),
        WITH_HUB(redirections_end),
        WITH_HUB(names_that_lead_out_are_refused),
        WITH_HUB(a_list_with_another_digest_is_refused),
        WITH_HUB(the_environment_is_checked),
        WITH_HUB(origins_are_scheme_host_and_port),
        WITH_HUB(every_failed_request_to_the_disk_is_a_status),
        WITH_HUB(nothing_but_a_beginning_is_left),
        WITH_HUB(every_failed_allocation_is_a_status),
    };

    return cmocka_run_group_tests_name("hub pull", tests, start, stop);
}
