/* Writes a trained byte-level BPE as tokenizer.json and tokenizer_config.json, in
 * HuggingFace's form.
 *
 * The pipeline is Qwen2's: NFC, one pattern, bytes, merges. Special tokens are not
 * normalized, so text and vocabulary cannot form them by accident.
 */
#include "text/bpe.h"

#include "base/file.h"
#include "data/json.h"
#include "text/bytelevel.h"
#include "text/tokenizer_internal.h"

#include <string.h>

enum { N_BYTES = 256, MAX_VOCAB = 1 << 20 };

struct writer {
    const struct kg_bpe_result *result;
    const struct kg_bpe_train *opts;
    struct kg_str *out; /* borrowed */
    struct kg_str spelled;
    struct kg_err *err;
};

static kg_status put_text(struct writer *w, const char *text)
{
    return kg_json_put_string(w->out, text, strlen(text), w->err);
}

static kg_status spell(struct writer *w, int32_t id)
{
    size_t n;
    const char *bytes = kg_vocab_bytes(&w->result->vocab, id, &n);
    return kg_bytelevel_spell(&w->spelled, bytes, n, w->err);
}

static kg_status put_added(struct writer *w)
{
    for (size_t i = 0; i < w->opts->n_specials; i++) {
        KG_TRY(kg_str_printf(w->out, w->err, "%s\n    {\"id\": %d, \"content\": ",
                             i ? "," : "", w->result->n_tokens + (int)i));
        KG_TRY(put_text(w, w->opts->specials[i]));
        KG_TRY(
            kg_str_puts(w->out,
                        ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                        "\"normalized\": false, \"special\": true}",
                        w->err));
    }
    return KG_OK;
}

static kg_status put_vocab(struct writer *w)
{
    for (int32_t id = 0; id < w->result->n_tokens; id++) {
        KG_TRY(kg_str_puts(w->out, id ? ",\n      " : "\n      ", w->err));
        kg_str_clear(&w->spelled);
        KG_TRY(spell(w, id));
        KG_TRY(put_text(w, kg_str_text(&w->spelled)));
        KG_TRY(kg_str_printf(w->out, w->err, ": %d", id));
    }
    return KG_OK;
}

static kg_status put_merges(struct writer *w)
{
    for (size_t i = 0; i < w->result->n_merges; i++) {
        KG_TRY(kg_str_puts(w->out, i ? ",\n      " : "\n      ", w->err));
        kg_str_clear(&w->spelled);
        KG_TRY(spell(w, w->result->merges[i][0]));
        KG_TRY(kg_str_putc(&w->spelled, ' ', w->err));
        KG_TRY(spell(w, w->result->merges[i][1]));
        KG_TRY(put_text(w, kg_str_text(&w->spelled)));
    }
    return KG_OK;
}

static kg_status put_tokenizer(struct writer *w)
{
    static const char byte_level[] =
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
        "\"trim_offsets\": false, \"use_regex\": false}";
    KG_TRY(kg_str_puts(
        w->out,
        "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
        "  \"added_tokens\": [",
        w->err));
    KG_TRY(put_added(w));
    KG_TRY(kg_str_puts(
        w->out,
        "\n  ],\n  \"normalizer\": {\"type\": \"NFC\"},\n  \"pre_tokenizer\": {\"type\": "
        "\"Sequence\", \"pretokenizers\": [\n    {\"type\": \"Split\", \"pattern\": "
        "{\"Regex\": ",
        w->err));
    KG_TRY(put_text(w, w->opts->pattern ? w->opts->pattern : KG_PATTERN_QWEN2));
    KG_TRY(kg_str_printf(
        w->out, w->err,
        "}, \"behavior\": \"Isolated\", \"invert\": false},\n    %s\n  ]},\n"
        "  \"post_processor\": %s,\n  \"decoder\": %s,\n",
        byte_level, byte_level, byte_level));
    KG_TRY(kg_str_puts(
        w->out,
        "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    "
        "\"unk_token\": null,\n"
        "    \"continuing_subword_prefix\": \"\",\n    \"end_of_word_suffix\": \"\",\n"
        "    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n    \"ignore_merges\": "
        "false,\n"
        "    \"vocab\": {",
        w->err));
    KG_TRY(put_vocab(w));
    KG_TRY(kg_str_puts(w->out, "\n    },\n    \"merges\": [", w->err));
    KG_TRY(put_merges(w));
    return kg_str_puts(w->out, "\n    ]\n  }\n}\n", w->err);
}

static kg_status put_config(struct writer *w)
{
    KG_TRY(kg_str_puts(
        w->out,
        "{\n  \"add_prefix_space\": false,\n  \"clean_up_tokenization_spaces\": false,\n"
        "  \"bos_token\": null,\n  \"unk_token\": null,\n",
        w->err));
    for (int i = 0; w->opts->n_specials && i < 2; i++) {
        KG_TRY(
            kg_str_puts(w->out, i ? "  \"pad_token\": " : "  \"eos_token\": ", w->err));
        KG_TRY(put_text(w, w->opts->specials[0]));
        KG_TRY(kg_str_puts(w->out, ",\n", w->err));
    }
    return kg_str_puts(w->out, "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n",
                       w->err);
}

static kg_status write_file(const struct kg_str *text, const char *dir, const char *name,
                            struct kg_err *err)
{
    return kg_file_write_atomic(kg_path_in(dir, name).text, kg_str_text(text), text->len,
                                err);
}

static kg_status check_opts(const struct kg_bpe_train *opts, struct kg_err *err)
{
    int64_t least = N_BYTES + (int64_t)opts->n_specials;
    if (opts->vocab_size < least || opts->vocab_size > MAX_VOCAB)
        return kg_fail(err, KG_EINVAL,
                       "vocabulary of %d tokens: expected %lld (256 bytes and %zu "
                       "special tokens) to %d",
                       opts->vocab_size, (long long)least, opts->n_specials, MAX_VOCAB);
    for (size_t i = 0; i < opts->n_specials; i++) {
        const char *special = opts->specials[i];
        if (!special[0] || !special[1])
            return kg_fail(err, KG_EINVAL,
                           "special token '%s': expected at least two bytes", special);
        for (size_t k = 0; k < i; k++)
            if (strcmp(special, opts->specials[k]) == 0)
                return kg_fail(err, KG_EINVAL, "special token '%.40s' is given twice",
                               special);
    }
    return KG_OK;
}

kg_status kg_bpe_train_json(struct kg_str *out, const char *const *texts, size_t n,
                            const struct kg_bpe_train *opts, struct kg_err *err)
{
    kg_status status;
    struct kg_bpe_result result = {0};
    struct writer w = {.result = &result, .opts = opts, .out = out, .err = err};
    KG_TRY(check_opts(opts, err));
    KG_TRY_GOTO(out, kg_bpe_learn(&result, texts, n, opts,
                                  opts->vocab_size - (int32_t)opts->n_specials, err));
    status = put_tokenizer(&w);
out:
    kg_bpe_result_release(&result);
    kg_str_release(&w.spelled);
    return status;
}

kg_status kg_bpe_train_write(const char *dir, const char *const *texts, size_t n,
                             const struct kg_bpe_train *opts, struct kg_err *err)
{
    kg_status status;
    struct kg_str text = {0};
    struct writer w = {.opts = opts, .out = &text, .err = err};
    KG_TRY_GOTO(out, kg_bpe_train_json(&text, texts, n, opts, err));
    KG_TRY_GOTO(out, kg_file_make_dirs(dir, err));
    KG_TRY_GOTO(out, write_file(&text, dir, "tokenizer.json", err));
    kg_str_clear(&text);
    KG_TRY_GOTO(out, put_config(&w));
    status = write_file(&text, dir, "tokenizer_config.json", err);
out:
    kg_str_release(&text);
    return status;
}
