/* kedge tokenize: a filter between lines of text and lines of ids, in both directions.
 *
 * Each line is answered before the next is read. Encoding and decoding use the code of
 * training and sampling, so the command shows the input of a model.
 */
#include "cli/cli.h"
#include "cli/load.h"

static const char *model_dir;
static bool decode;
static bool parse_special = true;
static bool add_special;

const struct kg_flag kg_tokenize_flags[] = {
    {"model", 'm', KG_TO(model_dir), KG_MODEL_ARG,
     "folder with tokenizer.json, tokenizer.model or token_ids.json"},
    {"decode", 'd', KG_TO(decode), NULL, "convert ids to text, including special tokens"},
    {"no-parse-special", 0, KG_CLEARS_IF("--decode=", parse_special), NULL,
     "read special tokens in the text as plain text"},
    {"add-special", 0, KG_IF("--decode=", add_special), NULL,
     "add the special tokens of the tokenizer's post-processor (BOS)"},
    {0},
};

static kg_status encode_line(struct kg_str *out, const struct kg_tokenizer *tok,
                             const struct kg_json_doc *doc, struct kg_err *err)
{
    const struct kg_json *v;
    struct kg_ids ids = {0};
    size_t n;
    struct kg_encode_opts opts = {.parse_special = parse_special,
                                  .add_special = add_special};
    KG_TRY(kg_json_need(&v, doc, doc->root, "text", KG_JSON_STRING, err));
    const char *text = kg_json_text(v, &n);
    kg_status status = kg_tokenizer_encode(&ids, tok, text, n, opts, err);
    if (status != KG_OK)
        status = kg_err_prefix(err, "%s", doc->where);
    KG_TRY_GOTO(out, status);
    KG_TRY_GOTO(out, kg_str_puts(out, "{\"ids\": ", err));
    KG_TRY_GOTO(out, kg_json_put_ints(out, ids.ids, ids.n, err));
    status = kg_str_puts(out, "}\n", err);
out:
    kg_ids_release(&ids);
    return status;
}

static kg_status decode_line(struct kg_str *out, const struct kg_tokenizer *tok,
                             const struct kg_json_doc *doc, struct kg_err *err)
{
    struct kg_ids ids = {0};
    struct kg_str text = {0};
    kg_status status = KG_OK;
    KG_TRY_GOTO(out, kg_load_ids(&ids, doc, kg_tokenizer_n_ids(tok), err));
    status = kg_tokenizer_decode_text(&text, tok, ids.ids, ids.n, false, err);
    if (status != KG_OK)
        status = kg_err_prefix(err, "%s", doc->where);
    KG_TRY_GOTO(out, status);
    KG_TRY_GOTO(out, kg_str_puts(out, "{\"text\": ", err));
    KG_TRY_GOTO(out, kg_json_put_string(out, kg_str_text(&text), text.len, err));
    status = kg_str_puts(out, "}\n", err);
out:
    kg_ids_release(&ids);
    kg_str_release(&text);
    return status;
}

static kg_status answer(struct kg_str *out, const struct kg_json_doc *doc, void *tok,
                        struct kg_err *err)
{
    return decode ? decode_line(out, tok, doc, err) : encode_line(out, tok, doc, err);
}

int kg_cmd_tokenize(int argc, char **argv)
{
    struct kg_tokenizer *tok = NULL;
    struct kg_err err;
    kg_status status = KG_OK;
    (void)argc;
    (void)argv;
    if (model_dir == NULL)
        return kg_cli_usage("expected --model DIR");
    KG_TRY_GOTO(out, kg_tokenizer_open(&tok, model_dir, &err));
    status = kg_cli_filter(answer, tok, &err);
out:
    kg_tokenizer_close(tok);
    return kg_cli_exit(status, &err);
}
