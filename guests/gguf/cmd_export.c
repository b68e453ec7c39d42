/* kedge export: a checkpoint, or its adapters, as a GGUF file; and a Modelfile for
 * Ollama.
 */
#include "cli/cli.h"
#include "cli/load.h"

#include "base/file.h"
#include "base/signal.h"
#include "data/source.h"
#include "gguf/export.h"
#include "gguf/ollama.h"

#include <string.h>

static const char *to;
static const char *adapter;
static bool ollama;
static const char *type; /* NULL: as stored */

const struct kg_flag kg_export_flags[] = {
    KG_FLAGS_OF(kg_ignore_flags),
    {"to", 'o', KG_TO(to), "FILE", "the file to write, FILE.gguf"},
    {"type", 0, KG_TO(type), "TYPE",
     "type of matrices: f32, f16, bf16, q8_0, q4_0, q4_k or q6_k (default: as stored)", 0,
     0, KG_EXPORT_TYPES},
    {"adapter", 0, KG_TO(adapter), KG_MODEL_ARG,
     "PEFT folder of adapters of MODEL: write the adapters instead of MODEL, for "
     "llama.cpp's --lora"},
    {"ollama", 0, KG_TO(ollama), NULL,
     "also write a Modelfile next to FILE: chat template and stop tokens"},
    {0},
};

static kg_status make_modelfile(struct kg_str *out, const char *model,
                                const struct kg_export_opts *opts, struct kg_err *err)
{
    const char *slash = strrchr(to, '/');
    struct kg_model_config c;
    struct kg_tokenizer *tok = NULL;
    struct kg_chat_template *chat = NULL;
    struct kg_str from = {0};
    kg_status status;

    if (adapter)
        return kg_fail(
            err, KG_EINVAL,
            "--ollama: expected no --adapter, found one: a Modelfile describes a model");
    if (strcmp(slash ? slash + 1 : to, "Modelfile") == 0)
        return kg_fail(err, KG_EINVAL,
                       "--to: expected another name than Modelfile, which --ollama "
                       "writes, found %s",
                       to);
    KG_TRY(kg_model_config_open(&c, model, &opts->ignore, err));
    KG_TRY_GOTO(out, kg_tokenizer_open(&tok, model, err));
    KG_TRY_GOTO(out, kg_model_config_add_eos(&c, kg_tokenizer_eos(tok), err));
    KG_TRY_GOTO(out, kg_chat_template_open(&chat, model, NULL, err));
    KG_TRY_GOTO(out, kg_str_printf(&from, err, "./%s", slash ? slash + 1 : to));
    status = kg_ollama_modelfile(out,
                                 &(struct kg_ollama){.from = kg_str_text(&from),
                                                     .chat = chat,
                                                     .tok = tok,
                                                     .eos = c.eos,
                                                     .n_eos = (size_t)c.n_eos},
                                 err);
out:
    kg_str_release(&from);
    kg_chat_template_close(chat);
    kg_tokenizer_close(tok);
    return status;
}

static kg_status put_modelfile(const struct kg_str *text, struct kg_err *err)
{
    const char *slash = strrchr(to, '/');
    struct kg_str path = {0};
    kg_status status = kg_str_printf(&path, err, "%.*sModelfile",
                                     slash ? (int)(slash + 1 - to) : 0, to);

    if (status == KG_OK)
        status = kg_cli_write_file(kg_str_text(&path), text, err);
    kg_str_release(&path);
    return status;
}

static kg_status check_model(const char *model, struct kg_err *err)
{
    if (kg_source_is_file(model) ||
        kg_file_exists(kg_path_in(model, "config.json").text) ||
        !kg_file_exists(kg_path_in(model, "adapter_config.json").text))
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "%s: expected a model, found adapters: write them by `kedge export "
                   "BASE --adapter %s --to %s`",
                   model, model, to);
}

static kg_status export(const char *model, struct kg_err *err)
{
    const struct kg_export_opts opts = {adapter, type, kg_load_ignored(&kg_load)};
    struct kg_str modelfile = {0};
    kg_status status = KG_OK;

    if (!to)
        return kg_fail(err, KG_EINVAL, "expected --to FILE.gguf, found no --to");
    KG_TRY(kg_cli_find_model(&model, err));
    KG_TRY(check_model(model, err));
    kg_signal_install();
    if (ollama)
        status = make_modelfile(&modelfile, model, &opts, err);
    if (status == KG_OK)
        status = kg_model_export(model, to, &opts, err);
    if (status == KG_OK && ollama)
        status = put_modelfile(&modelfile, err);
    kg_str_release(&modelfile);
    return status;
}

int kg_cmd_export(int argc, char **argv)
{
    struct kg_err err;

    if (argc != 1)
        return kg_cli_usage("expected MODEL, the folder or file to export");
    return kg_cli_exit(export(argv[0], &err), &err);
}
