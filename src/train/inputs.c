/* The inputs of a run: which keys of its config name them. */
#include "train/inputs.h"

#include "data/inputs.h"
#include "recipe/options.h"
#include "train/init.h"
#include "train/run_data.h"

#include <stdio.h>

/* A list of files: the key for one, "key 2" and so on for those after it. */
static kg_status put_list(struct kg_str *out, const struct kg_config *config,
                          const char *key, struct kg_err *err)
{
    kg_status status = KG_OK;

    for (size_t i = 0; i < kg_config_list_size(config, key) && status == KG_OK; i++) {
        struct kg_str path = {0};
        char label[64];

        snprintf(label, sizeof label, i > 0 ? "%s %zu" : "%s", key, i + 1);
        status = kg_config_list_at(&path, config, key, i, err);
        if (status == KG_OK)
            status = kg_inputs_put_file(out, label, kg_str_text(&path), err);
        kg_str_release(&path);
    }
    return status;
}

/* Where the model comes from, and what init.from gives besides; of the latter nothing
 * where the run has its own. */
static kg_status put_models(struct kg_str *out, const struct kg_config *config,
                            const struct kg_init *init, struct kg_err *err)
{
    if (*init->dir.text && !init->own)
        KG_TRY(kg_inputs_put_model(out, "init.from", init->dir.text, err));
    if (init->model && init->own)
        return KG_OK;
    return kg_inputs_put_model(out, init->model ? "init.from/model" : "model.path",
                               kg_init_model_dir(init, config).text, err);
}

kg_status kg_inputs_json(struct kg_str *out, const struct kg_config *config,
                         struct kg_err *err)
{
    struct kg_init init;

    KG_TRY(kg_str_putc(out, '{', err));
    KG_TRY(put_list(out, config, "data.train", err));
    KG_TRY(put_list(out, config, "data.val", err));
    if (kg_config_has_sft(config) && *kg_config_text(config, "sft.data"))
        KG_TRY(
            kg_inputs_put_file(out, "sft.data", kg_config_text(config, "sft.data"), err));
    if (*kg_config_text(config, "sft.val"))
        KG_TRY(
            kg_inputs_put_file(out, "sft.val", kg_config_text(config, "sft.val"), err));
    KG_TRY(kg_init_find(&init, config, KG_INIT_NEWEST, err));
    KG_TRY(put_models(out, config, &init, err));
    return kg_str_putc(out, '}', err);
}

kg_status kg_inputs_check(const struct kg_config *config, const char *manifest,
                          struct kg_err *err)
{
    struct kg_str now = {0};
    struct kg_init init;
    kg_status status;

    KG_TRY_GOTO(out, kg_init_find(&init, config, KG_INIT_NEWEST, err));
    KG_TRY_GOTO(out, kg_inputs_json(&now, config, err));
    status = kg_inputs_compare(manifest, now.data, init.own ? "init.from/" : NULL, err);
out:
    kg_str_release(&now);
    return status;
}
