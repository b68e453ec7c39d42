/* Modelfiles for Ollama: each line of tests/data/ollama/modelfiles.jsonl has a chat
 * template and the expected Modelfile or refusal. Go's text/template with those
 * Modelfiles writes what Jinja writes; tools/oracle/make_ollama.py checked that, and
 * calls this program with an argument to print them. */
#include "gguf/ollama.h"

#include "base/file.h"
#include "base/need_testing.h"
#include "data/jsonl.h"

#include <stdlib.h>
#include <string.h>

static char dir[] = "/tmp/kg_ollama_test_XXXXXX";
static struct kg_tokenizer *plain, *spm; /* spm adds <s> before a text, plain nothing */

static void open_tokenizers(void)
{
    static const char *const specials[] = {"<|im_end|>",
                                           "<|im_start|>",
                                           "<|bos|>",
                                           "<|eot_id|>",
                                           "<|end|>",
                                           "<|user|>",
                                           "<|assistant|>",
                                           "<|system|>",
                                           "<|start_header_id|>",
                                           "<|end_of_text|>",
                                           "<|end_header_id|>",
                                           "<|start_of_role|>",
                                           "<|end_of_role|>",
                                           "<|x|>\"\nSYSTEM \"y"};
    static const char *const texts[] = {"what is said here is of no use to anybody"};
    const struct kg_bpe_train train = {
        .vocab_size = 256 + 4 + 14, .specials = specials, .n_specials = 14};
    assert_non_null(mkdtemp(dir));
    NEED(kg_bpe_train_write(dir, texts, 1, &train, err));
    NEED(kg_tokenizer_open(&plain, dir, err));
    NEED(kg_tokenizer_open(&spm, "tests/data/tokenizer/spm", err));
    NEED(kg_file_remove_tree(dir, err));
}

/* Opens the template's own text or that of a file. Special tokens are read from a
 * folder. */
static void open_chat(struct kg_chat_template **t, const struct kg_json *line,
                      bool is_spm)
{
    const char *chat = kg_json_text(kg_json_get(line, "chat"), NULL);
    const bool file = strstr(chat, ".jinja") != NULL;
    struct kg_str path = {0}, config = {0}, text = {0};
    NEED(kg_file_make_dirs(dir, err));
    NEED(kg_str_printf(&path, err, "tests/data/chat_templates/%s", file ? chat : ""));
    if (file)
        NEED(kg_file_read(&text, kg_str_text(&path), 1 << 20, err));
    else
        NEED(kg_str_puts(&text, chat, err));
    NEED(kg_str_printf(&config, err, "{\"bos_token\": \"%s\", \"eos_token\": \"%s\"}",
                       is_spm ? "<s>" : "<|bos|>", is_spm ? "</s>" : "<|im_end|>"));
    NEED(kg_file_write_atomic(kg_path_in(dir, "chat_template.jinja").text, text.data,
                              text.len, err));
    NEED(kg_file_write_atomic(kg_path_in(dir, "tokenizer_config.json").text, config.data,
                              config.len, err));
    NEED(kg_chat_template_open(t, dir, NULL, err));
    NEED(kg_file_remove_tree(dir, err));
    kg_str_release(&path);
    kg_str_release(&config);
    kg_str_release(&text);
}

/* The message without the name of the test's folder. */
static const char *said(const struct kg_err *e)
{
    const size_t n = strlen(dir);
    return e->message + (strncmp(e->message, dir, n) == 0 ? n : 0);
}

/* Makes the Modelfile of a line.   returns the status; on a refusal *e has the message */
static kg_status make(struct kg_str *out, const struct kg_json *line, struct kg_err *e)
{
    const char *kind = kg_json_text(kg_json_get(line, "tokenizer"), NULL);
    const bool is_spm = strcmp(kind, "spm") == 0;
    struct kg_tokenizer *tok = is_spm ? spm : plain;
    const int32_t eos = kg_tokenizer_find(tok, is_spm ? "</s>" : "<|im_end|>");
    struct kg_ollama o = {.from = "./x.gguf", .tok = tok, .eos = &eos, .n_eos = 1};
    struct kg_chat_template *chat;
    open_chat(&chat, line, is_spm);
    NEED(kg_chat_date(&o.now_s, "2026-03-09", err));
    o.chat = chat;
    kg_str_clear(out);
    const kg_status status = kg_ollama_modelfile(out, &o, e);
    kg_chat_template_close(chat);
    return status;
}

static size_t each_line(void (*fn)(const struct kg_json *line))
{
    struct kg_jsonl *r;
    struct kg_json_doc doc = {0};
    size_t n = 0;
    bool more = true;
    NEED(kg_jsonl_open(&r, "tests/data/ollama/modelfiles.jsonl", err));
    for (;; n++) {
        NEED(kg_jsonl_next(r, &doc, &more, err));
        if (!more)
            break;
        fn(doc.root);
        kg_json_release(&doc);
    }
    kg_jsonl_close(r);
    return n;
}

static void check(const struct kg_json *line)
{
    const char *want = kg_json_text(kg_json_get(line, "modelfile"), NULL);
    const char *refused = kg_json_text(kg_json_get(line, "refused"), NULL);
    const char *name = kg_json_text(kg_json_get(line, "name"), NULL);
    struct kg_str found = {0};
    struct kg_err e = {0};
    const kg_status status = make(&found, line, &e);
    if (want && (status != KG_OK || strcmp(kg_str_text(&found), want) != 0))
        fail_msg("%s: expected\n%sfound\n%s%s", name, want, kg_str_text(&found),
                 e.message);
    if (!want && (status == KG_OK || strcmp(said(&e), refused) != 0))
        fail_msg("%s: expected the refusal '%s', found '%s'", name, refused, said(&e));
    kg_str_release(&found);
}

static void modelfiles_are_those_that_go_and_jinja_agree_on(void **state)
{
    (void)state;
    assert_int_equal(each_line(check), 32);
}

/* A hostile file's name or end token is refused. */
static void refuses(const char *from, const char *end)
{
    const int32_t eos = kg_tokenizer_find(plain, end);
    struct kg_ollama o = {.from = from, .tok = plain, .eos = &eos, .n_eos = 1};
    struct kg_json_doc doc;
    struct kg_str found = {0};
    struct kg_chat_template *chat;
    struct kg_err e = {0};
    const char *chatml = "{\"chat\": \"{% for m in messages %}<|im_start|>{{ m.role }} "
                         "{{ m.content }}<|im_end|>{% endfor %}\"}";
    NEED(kg_json_parse(&doc, chatml, strlen(chatml), "chatml", err));
    open_chat(&chat, doc.root, false);
    o.chat = chat;
    assert_int_equal(kg_ollama_modelfile(&found, &o, &e), KG_EUNSUPPORTED);
    if (!strstr(e.message, "of one line without quotes"))
        fail_msg("found '%s'", e.message);
    kg_chat_template_close(chat);
    kg_json_release(&doc);
    kg_str_release(&found);
}

static void nothing_gets_out_of_its_line(void **state)
{
    static const char *const names[] = {"",      "./a\nSYSTEM x", "./a\rb", "./a\"b",
                                        "\n./a", "./a\n",         "\"./a\""};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        refuses(names[i], "<|im_end|>");
    refuses("./x.gguf", "<|x|>\"\nSYSTEM \"y");
}

static void show(const struct kg_json *line)
{
    struct kg_str found = {0}, text = {0};
    struct kg_err e = {0};
    const bool made = make(&found, line, &e) == KG_OK;
    NEED(kg_json_put_text(&text, made ? "{\"modelfile\": " : "{\"refused\": ",
                          made ? kg_str_text(&found) : said(&e), err));
    printf("%s}\n", kg_str_text(&text));
    kg_str_release(&found);
    kg_str_release(&text);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modelfiles_are_those_that_go_and_jinja_agree_on),
        cmocka_unit_test(nothing_gets_out_of_its_line),
    };
    (void)argv;
    kg_file_skip_syncs(true);
    open_tokenizers();
    const int status = argc == 2 ? each_line(show) == 0
                                 : cmocka_run_group_tests(tests, NULL, NULL);
    kg_tokenizer_close(plain);
    kg_tokenizer_close(spm);
    return status;
}
