/* The inputs of a run: the keys of its recipe that name files on which its bits depend.
 *
 * The same list is written (manifest.json at the start) and compared (on resume). A key
 * that this run does not read, such as sft.data without SFT, names no input.
 */
#include "train/keep/inputs.h"

#include "base/file.h"
#include "data/inputs.h"
#include "recipe/options.h"
#include "train/open/init.h"
#include "train/open/open.h"

#include <stdio.h>
#include <string.h>

/* Files of a list have the labels key, "key 2", "key 3" and so on. */
static kg_status put_list(struct kg_str *out, struct kg_opt_list files, const char *key,
                          struct kg_err *err)
{
    for (size_t i = 0; i < files.n; i++) {
        char label[64];

        snprintf(label, sizeof label, i > 0 ? "%s %zu" : "%s", key, i + 1);
        KG_TRY(kg_inputs_put_file(out, label, files.items[i], err));
    }
    return KG_OK;
}

/* Files of init.from and of the model. A run that has a checkpoint of its own no longer
 * reads init.from. */
static kg_status put_models(struct kg_str *out, const struct kg_recipe *r,
                            const struct kg_init *init, struct kg_err *err)
{
    if (*init->dir.text && !init->own)
        KG_TRY(kg_inputs_put_model(out, "init.from", init->dir.text, err));
    if (init->model && init->own)
        return KG_OK;
    if (*r->model.adapter)
        KG_TRY(kg_inputs_put_model(out, "model.adapter", r->model.adapter, err));
    return kg_inputs_put_model(out, init->model ? "init.from/model" : "model.path",
                               kg_init_model_dir(init, r).text, err);
}

/* For keys that may hold a word or an address. An index file is an input, because results
 * depend on its content; a server's content cannot be compared. */
static kg_status put_if_file(struct kg_str *out, const char *key, const char *path,
                             struct kg_err *err)
{
    return kg_file_exists(path) ? kg_inputs_put_file(out, key, path, err) : KG_OK;
}

static kg_status put_inputs(struct kg_str *out, const struct kg_recipe *r,
                            struct kg_err *err)
{
    struct kg_init init;

    KG_TRY(put_list(out, r->data.train, "data.train", err));
    KG_TRY(put_list(out, r->data.val, "data.val", err));
    if (kg_recipe_has_sft(r) && *r->sft.data)
        KG_TRY(kg_inputs_put_file(out, "sft.data", r->sft.data, err));
    if (*r->sft.val)
        KG_TRY(kg_inputs_put_file(out, "sft.val", r->sft.val, err));
    KG_TRY(put_if_file(out, "data.chat_template", r->data.chat_template, err));
    if (strcmp(r->episode_env, "search") == 0)
        KG_TRY(put_if_file(out, "search.where", r->episode.env_opts.retriever, err));
    if (*r->anchor_path)
        KG_TRY(kg_inputs_put_model(out, "anchor.path", r->anchor_path, err));
    KG_TRY(kg_init_find(&init, r, KG_INIT_NEWEST, err));
    return put_models(out, r, &init, err);
}

kg_status kg_inputs_json(struct kg_str *out, const struct kg_recipe *r,
                         struct kg_err *err)
{
    KG_TRY(kg_str_putc(out, '{', err));
    KG_TRY(put_inputs(out, r, err));
    return kg_str_putc(out, '}', err);
}

/* All files, also those that may change on a resume. */
static kg_status put_more(struct kg_str *out, const struct kg_recipe *r,
                          struct kg_err *err)
{
    KG_TRY(kg_str_putc(out, '{', err));
    KG_TRY(put_inputs(out, r, err));
    if (*r->rollout.data)
        KG_TRY(kg_inputs_put_file(out, "rollout.data", r->rollout.data, err));
    if (*r->eval.reference)
        KG_TRY(kg_inputs_put_model(out, "eval.reference", r->eval.reference, err));
    return kg_str_putc(out, '}', err);
}

kg_status kg_inputs_put_all(struct kg_str *facts, const struct kg_recipe *r,
                            struct kg_err *err)
{
    struct kg_str inputs = {0};
    struct kg_err why;
    kg_status status = put_more(&inputs, r, &why);

    if (status == KG_OK)
        status = kg_inputs_put_facts(facts, inputs.data, err);
    else if (status == KG_ENOMEM)
        *err = why;
    else
        status = kg_str_printf(facts, err, "files\t%s\n", why.message);
    kg_str_release(&inputs);
    return status;
}

kg_status kg_inputs_check(const struct kg_recipe *r, const char *manifest,
                          struct kg_err *err)
{
    struct kg_str now = {0};
    struct kg_init init;
    kg_status status;

    KG_TRY_GOTO(out, kg_init_find(&init, r, KG_INIT_NEWEST, err));
    KG_TRY_GOTO(out, kg_inputs_json(&now, r, err));
    status = kg_inputs_compare(manifest, now.data, init.own ? "init.from/" : NULL, err);
out:
    kg_str_release(&now);
    return status;
}
