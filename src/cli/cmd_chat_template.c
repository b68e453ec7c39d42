/* kedge chat-template: a filter from lines of messages to the prompts that a model's chat
 * template makes of them.
 *
 * The output for a line is written before the next line is read, so the command works in
 * a pipe. The template is found as in training (text/chat_template.h), so the output is
 * the prompt that a run would give to the model.
 */
#include "cli/cli.h"
#include "cli/load.h"

#include "base/file.h"
#include "data/json.h"
#include "text/chat_template.h"

static const char *model;
static const char *chosen;
static const char *name;
static bool list;
static int64_t now_s;

const struct kg_flag kg_chat_template_flags[] = {
    {"model", 'm', KG_TO(model), KG_MODEL_ARG,
     "model folder, ORG/NAME of the hub's cache, or a file with a template"},
    {"chat-template", 0, KG_TO(chosen), "FILE",
     "a template file; --model then gives only the special tokens"},
    {"name", 0, KG_IF("--chat-template=&--list=", name), "NAME",
     "name of the template in a folder with several (default: tool_use for lines with "
     "tools, if there is one, else `default`)"},
    {"list", 0, KG_IF("--chat-template=", list), NULL,
     "print the names of a folder's templates"},
    {"now", 0, KG_IF("--list=", now_s), "SECONDS",
     "time of strftime_now, in seconds since 1970 UTC (default: the clock)", 0, 4e9},
    {0},
};

static kg_status render_line(struct kg_str *out, const struct kg_json_doc *doc,
                             void *chat_template, struct kg_err *err)
{
    const struct kg_chat_opts opts = {.now_s = now_s};
    const struct kg_json *messages;
    struct kg_str text = {0};
    kg_status status;

    KG_TRY(kg_json_need(&messages, doc, doc->root, "messages", KG_JSON_ARRAY, err));
    status = kg_chat_template_render(&text, chat_template, doc->root, &opts, err);
    if (status != KG_OK)
        status = kg_err_prefix(err, "%s", doc->where);
    KG_TRY_GOTO(out, status);
    KG_TRY_GOTO(out, kg_str_puts(out, "{\"text\": ", err));
    KG_TRY_GOTO(out, kg_json_put_string(out, kg_str_text(&text), text.len, err));
    status = kg_str_puts(out, "}\n", err);
out:
    kg_str_release(&text);
    return status;
}

static kg_status print_names(struct kg_err *err)
{
    struct kg_str names = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_chat_template_names(&names, model, err));
    if (names.len == 0) {
        status = kg_fail(err, KG_ENOTFOUND,
                         "%s: expected a folder with chat templates, found none", model);
        goto out;
    }
    KG_TRY_GOTO(out, kg_str_putc(&names, '\n', err));
    status = kg_cli_put(&names, err);
out:
    kg_str_release(&names);
    return status;
}

int kg_cmd_chat_template(int argc, char **argv)
{
    struct kg_chat_template *t = NULL;
    struct kg_err err;
    kg_status status = KG_OK;

    (void)argc;
    (void)argv;
    if (model == NULL && chosen == NULL)
        return kg_cli_usage("expected --model DIR or --chat-template FILE");
    if (chosen && !kg_file_exists(chosen))
        return kg_cli_usage("--chat-template: expected a file, found '%.200s'", chosen);
    if (list) {
        status = print_names(&err);
        goto out;
    }
    KG_TRY_GOTO(out, chosen ? kg_chat_template_choose(&t, chosen, model, &err)
                            : kg_chat_template_open(&t, model, name, &err));
    status = kg_cli_filter(render_line, t, &err);
out:
    kg_chat_template_close(t);
    return kg_cli_exit(status, &err);
}
