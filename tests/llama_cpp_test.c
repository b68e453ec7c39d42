/* Files of `kedge export` in llama.cpp: for each architecture, and for exported adapters,
 * kedge's greedy completions are llama.cpp's (llama-cpp-python 0.3.36, fp32, cache in
 * F32). Their ids are in tests/data/gguf/greedy.jsonl, with the hashes of the files that
 * llama.cpp loaded; today's export must still have these hashes.
 *
 * Conversations (chats.jsonl), through the chat template and the tokenizer of such a
 * file, must give llama.cpp's tokens, too.
 *
 * A line has a config.json. Its weights are computed from their positions, so no
 * checkpoint is stored. `llama_cpp_test LINES DIR` writes the folders and files for
 * tools/oracle/make_llama_cpp.py, which makes the lines.
 */
#include "base/file.h"
#include "base/hash.h"
#include "base/need_testing.h"
#include "base/rng.h"
#include "base/str.h"
#include "data/jsonl.h"
#include "gguf/export.h"
#include "model/lora.h"
#include "rollout/rollout.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define LINES "tests/data/gguf/greedy.jsonl"
#define CHATS "tests/data/gguf/chats.jsonl"
enum { PROMPTS = 20, NEW = 64, LONGEST = 32 };

/* id i is letter i */
static const char letters[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/* A line, and the paths of the files that are written for it. */
struct line {
    struct kg_json_doc doc;
    const char *name;
    const struct kg_json *lora; /* NULL: without adapters */
    char dir[160], adapter[160], file[160], lora_file[160];
};

/* ---- weights ---- */

static void fill(struct kg_model *m, size_t i, float around, float size)
{
    struct kg_param *p = &m->params[i];
    const struct kg_rng_key key = {7, KG_RNG_TEST};
    for (int64_t e = 0; e < p->rows * p->cols; e++) {
        uint32_t words[4];
        kg_rng_words(words, key, i, (uint32_t)e, 0);
        p->master[e] = around + size * ((float)(words[0] >> 8) * 0x1p-23f - 1);
    }
}

static void write_model(const struct line *l)
{
    const struct kg_model_opts opts = {.ct = KG_F32, .trainable = true};
    struct kg_model_config c;
    struct kg_model *m = NULL;
    struct kg_str text = {0};
    NEED(kg_json_put_value(&text, kg_json_get(l->doc.root, "config"), err));
    NEED(kg_model_config_parse(&c, kg_str_text(&text), text.len, l->name, err));
    NEED(kg_model_create(&m, &c, &opts, 1, err));
    for (size_t i = 0; i < m->n_base; i++) {
        const struct kg_param *p = &m->params[i];
        const float matrix = p != m->embed ? 0.5f : m->norm->plus_one ? 0.2f : 0.7f;
        if (strstr(p->name, "norm"))
            fill(m, i, p->plus_one ? 0 : 1, 0.4f);
        else
            fill(m, i, 0, matrix);
    }
    NEED(kg_model_save(m, l->dir, &(struct kg_model_save){.dtype = KG_F32}, err));
    kg_model_free(m);
    kg_str_release(&text);
}

static struct kg_model *open_model(const struct line *l, const char *path, bool adapted,
                                   bool train)
{
    struct kg_lora lora;
    struct kg_str text = {0};
    struct kg_model_opts opts = {.ct = KG_F32, .trainable = train};
    struct kg_model *m = NULL;
    if (adapted) {
        NEED(kg_json_put_value(&text, l->lora, err));
        NEED(kg_lora_parse(&lora, kg_str_text(&text), text.len, l->name, err));
        opts.lora = &lora;
        opts.adapter = train ? NULL : l->adapter;
    }
    NEED(kg_model_open(&m, path, &opts, err));
    kg_str_release(&text);
    return m;
}

static void write_adapter(const struct line *l)
{
    struct kg_model *m = open_model(l, l->dir, true, true);
    for (size_t i = m->n_base; i < m->n_params; i++)
        fill(m, i, 0, 0.3f);
    NEED(kg_model_save(m, l->adapter, &(struct kg_model_save){.dtype = KG_F32}, err));
    kg_model_free(m);
}

/* If the line has conversations, writes its tokenizer and chat template. */
static void write_tokenizer(const struct line *l)
{
    const char *tokenizer = kg_json_text(kg_json_get(l->doc.root, "tokenizer"), NULL);
    const char *chat = kg_json_text(kg_json_get(l->doc.root, "template"), NULL);
    char copy[512];
    if (!tokenizer)
        return;
    snprintf(copy, sizeof copy, "cp tests/data/tokenizer/%s/* %s", tokenizer, l->dir);
    assert_int_equal(system(copy), 0);
    NEED(kg_file_write_atomic(kg_path_in(l->dir, "chat_template.jinja").text, chat,
                              strlen(chat), err));
}

static void write_line(struct line *l, const char *dir)
{
    struct kg_export_opts opts = {.type = NULL};
    l->name = kg_json_text(kg_json_get(l->doc.root, "name"), NULL);
    l->lora = kg_json_get(l->doc.root, "lora");
    snprintf(l->dir, sizeof l->dir, "%s/%s", dir, l->name);
    snprintf(l->adapter, sizeof l->adapter, "%s/%s.adapter", dir, l->name);
    snprintf(l->file, sizeof l->file, "%s/%s.gguf", dir, l->name);
    snprintf(l->lora_file, sizeof l->lora_file, "%s/%s.lora.gguf", dir, l->name);
    write_model(l);
    write_tokenizer(l);
    NEED(kg_model_export(l->dir, l->file, &opts, err));
    if (!l->lora)
        return;
    write_adapter(l);
    opts.adapter = l->adapter;
    NEED(kg_model_export(l->dir, l->lora_file, &opts, err));
}

/* ---- completions ---- */

static size_t ids_of(int32_t *ids, const struct kg_json *text)
{
    const char *t = kg_json_text(text, NULL);
    size_t n = 0;
    for (; t && t[n] && n < LONGEST; n++)
        ids[n] = (int32_t)(kg_char_find(letters, t[n]) - letters);
    return n;
}

static void check_completions(const struct line *l, const char *path, bool adapted)
{
    const struct kg_json *prompts = kg_json_get(l->doc.root, "prompts");
    const struct kg_json *want = kg_json_get(l->doc.root, adapted ? "lora_completions"
                                                                  : "completions");
    const struct kg_rollout_opts opts = {.max_batch = PROMPTS, .max_len = LONGEST + NEW};
    const struct kg_sampling greedy = {.top_p = 1, .max_tokens = NEW, .ignore_eos = true};
    struct kg_model *m = open_model(l, path, adapted, false);
    static int32_t ids[PROMPTS][LONGEST];
    struct kg_request requests[PROMPTS];
    struct kg_traj trajs[PROMPTS];
    struct kg_rollout *r = NULL;
    assert_int_equal(kg_json_size(want), PROMPTS);
    for (size_t i = 0; i < PROMPTS; i++)
        requests[i] = (struct kg_request){
            .prompt = ids[i],
            .prompt_n = ids_of(ids[i], kg_json_at(prompts, i)),
            .n_samples = 1};
    NEED(kg_rollout_create(&r, m, NULL, &opts, err));
    NEED(kg_rollout_run(r, trajs, requests, PROMPTS, &greedy, NULL, NULL, err));
    for (size_t i = 0; i < PROMPTS; i++) {
        char found[NEW + 1] = "";
        for (size_t t = trajs[i].prompt_n; t < trajs[i].n; t++)
            found[t - trajs[i].prompt_n] = letters[trajs[i].tokens[t]];
        if (strcmp(found, kg_json_text(kg_json_at(want, i), NULL)) != 0)
            fail_msg("%s%s: prompt %zu: expected llama.cpp's %s, found %s", path,
                     adapted ? " with adapters" : "", i,
                     kg_json_text(kg_json_at(want, i), NULL), found);
        kg_traj_release(&trajs[i]);
    }
    kg_rollout_free(r);
    kg_model_free(m);
}

static void hash_of(char text[17], const char *file)
{
    struct kg_str bytes = {0};
    NEED(kg_file_read(&bytes, file, 1 << 24, err));
    snprintf(text, 17, "%016llx",
             (unsigned long long)kg_hash_bytes(bytes.data, bytes.len));
    kg_str_release(&bytes);
}

/* The hash of the line's model file and, if it has adapters, that of the adapter file. */
static void hashes_of(char text[48], const struct line *l)
{
    hash_of(text, l->file);
    if (l->lora) {
        text[16] = ' ';
        hash_of(text + 17, l->lora_file);
    }
}

static void check_files(const struct line *l)
{
    const char *want = kg_json_text(kg_json_get(l->doc.root, "hashes"), NULL);
    char found[48];
    hashes_of(found, l);
    if (!want || strcmp(want, found) != 0)
        fail_msg("%s: expected the files that llama.cpp loaded, %s, found %s", l->name,
                 want ? want : "none", found);
}

/* ---- tests ---- */

static void print_line(const struct line *l)
{
    char hashes[48];
    hashes_of(hashes, l);
    puts(hashes);
}

static size_t each_line(const char *lines, const char *dir,
                        void (*fn)(const struct line *l))
{
    struct kg_jsonl *r;
    struct line l = {.lora = NULL};
    size_t n = 0;
    bool more = true;
    NEED(kg_jsonl_open(&r, lines, err));
    for (;; n++) {
        NEED(kg_jsonl_next(r, &l.doc, &more, err));
        if (!more)
            break;
        write_line(&l, dir);
        fn(&l);
        kg_json_release(&l.doc);
    }
    kg_jsonl_close(r);
    return n;
}

static void check_line(const struct line *l)
{
    check_files(l);
    check_completions(l, l->dir, false);
    check_completions(l, l->file, false);
    if (l->lora)
        check_completions(l, l->dir, true);
}

static void completions_are_those_of_llama_cpp(void **state)
{
    char dir[] = "/tmp/kedge-llama-cpp-XXXXXX";
    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_true(each_line(LINES, dir, check_line) >= 14);
    NEED(kg_file_remove_tree(dir, err));
}

/* ---- the command ---- */

static char work[] = "/tmp/kedge-export-XXXXXX";

static void write_chat(const char *text)
{
    const struct kg_path path = kg_path_in(kg_path_in(work, "m").text,
                                           "chat_template.jinja");
    NEED(kg_file_write_atomic(path.text, text, strlen(text), err));
}

/* Runs `./kedge args` in the test's folder, so paths are relative to it. */
static void run(int wanted, const char *words, const char *args)
{
    char line[1024];
    struct kg_str said = {0};
    snprintf(line, sizeof line, "top=$PWD; cd %s && $top/kedge %s 2> said", work, args);
    const int status = system(line);
    NEED(kg_file_read(&said, kg_path_in(work, "said").text, 1 << 20, err));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != wanted ||
        !strstr(kg_str_text(&said), words))
        fail_msg("%s: expected status %d and '%s', found: %s", args, wanted, words,
                 kg_str_text(&said));
    kg_str_release(&said);
}

static void the_command_says_what_it_cannot_write(void **state)
{
    static const char messages[] =
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>"
        "{% endfor %}[assistant]";
    struct kg_str text = {0};
    (void)state;
    if (access("./kedge", X_OK) != 0)
        skip();
    assert_non_null(mkdtemp(work));
    run(0, "",
        "new --arch llama --tokenizer $top/tests/data/tokenizer/spm --hidden 32 "
        "--layers 1 m");
    run(1, "expected --to FILE.gguf", "export m");
    run(2, "bf16, q8_0, q4_0, q4_k, q6_k, found", "export m --to x.gguf --type q5_k");
    run(1, "none.gguf: expected a model, found no", "export none.gguf --to x.gguf");
    run(1, "found adapters: write them by `kedge export BASE --adapter",
        "export $top/tests/data/peft/qwen3/adapter --to x.gguf");
    run(1, "--ollama: expected no --adapter",
        "export m --adapter $top/tests/data/peft/qwen3/adapter --to x.gguf --ollama");
    run(1, "expected a chat template", "export m --to x.gguf --ollama");
    write_chat("{{ messages[0].content }}");
    run(1, "found one that leaves out a message", "export m --to x.gguf --ollama");
    assert_false(kg_file_exists(kg_path_in(work, "x.gguf").text));
    assert_false(kg_file_exists(kg_path_in(work, "Modelfile").text));
    write_chat(messages);
    run(0, "Q8_0", "export m --to x.gguf --type q4_k --ollama");
    run(0, "", "export x.gguf --to y.gguf --ollama");
    NEED(kg_file_read(&text, kg_path_in(work, "Modelfile").text, 1 << 20, err));
    assert_memory_equal(kg_str_text(&text), "FROM ./y.gguf\nTEMPLATE \"\"\"{{ if", 31);
    assert_non_null(strstr(kg_str_text(&text), "\nPARAMETER stop \"</s>\"\n"));
    kg_str_release(&text);
    NEED(kg_file_remove_tree(work, err));
}

/* ---- chats ---- */

/* Compares the `ids` of each conversation of a line with those of kedge's completions. */
static void check_ids(const struct kg_json *chats, const char *completions)
{
    struct kg_jsonl *r;
    struct kg_json_doc doc = {0};
    bool more = true;
    NEED(kg_jsonl_open(&r, completions, err));
    for (size_t i = 0; i < kg_json_size(chats); i++) {
        struct kg_str want = {0}, found = {0};
        NEED(kg_jsonl_next(r, &doc, &more, err));
        assert_true(more);
        NEED(kg_json_put_value(&want, kg_json_get(kg_json_at(chats, i), "ids"), err));
        NEED(kg_json_put_value(&found, kg_json_get(doc.root, "ids"), err));
        if (strcmp(kg_str_text(&want), kg_str_text(&found)) != 0)
            fail_msg("conversation %zu: expected llama.cpp's %s, found %s", i,
                     kg_str_text(&want), kg_str_text(&found));
        kg_str_release(&want);
        kg_str_release(&found);
        kg_json_release(&doc);
    }
    kg_jsonl_close(r);
}

static void check_chats(const struct line *l)
{
    const struct kg_json *chats = kg_json_get(l->doc.root, "chats");
    struct kg_str asked = {0};
    char args[512];
    check_files(l);
    for (size_t i = 0; i < kg_json_size(chats); i++) {
        NEED(kg_str_puts(&asked, "{\"prompt\": ", err));
        NEED(kg_json_put_value(&asked, kg_json_get(kg_json_at(chats, i), "prompt"), err));
        NEED(kg_str_puts(&asked, "}\n", err));
    }
    NEED(
        kg_file_write_atomic(kg_path_in(work, "asked").text, asked.data, asked.len, err));
    kg_str_release(&asked);
    snprintf(args, sizeof args,
             "generate --model %s --dtype fp32 --jsonl -t 0 --max-tokens %d --ignore-eos "
             "<asked >completions",
             l->file, NEW);
    run(0, "", args);
    check_ids(chats, kg_path_in(work, "completions").text);
}

static void chats_are_those_of_llama_cpp(void **state)
{
    (void)state;
    if (access("./kedge", X_OK) != 0)
        skip();
    strcpy(work, "/tmp/kedge-export-XXXXXX");
    assert_non_null(mkdtemp(work));
    assert_int_equal(each_line(CHATS, work, check_chats), 6);
    NEED(kg_file_remove_tree(work, err));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completions_are_those_of_llama_cpp),
        cmocka_unit_test(the_command_says_what_it_cannot_write),
        cmocka_unit_test(chats_are_those_of_llama_cpp),
    };
    kg_file_skip_syncs(true);
    if (argc == 3)
        return each_line(argv[1], argv[2], print_line) == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
