/* Pins every key that names a model folder or a data file of the hub to a commit.
 *
 * A config keeps the pinned name, so that config.yaml and the comparison on resume do not
 * depend on the place of the cache. The fields of a recipe get the path in the cache.
 */
#include "train/open/pin.h"

#include "base/file.h"
#include "base/log.h"
#include "data/hub.h"
#include "train/open/init.h"
#include "train/open/open.h"

#include <string.h>

typedef kg_status (*find_fn)(struct kg_hub_found *out, const char *text,
                             struct kg_err *err);

static const struct {
    const char *key;
    find_fn find;
} keys[] = {
    {"model.path", kg_hub_find_model},  {"model.adapter", kg_hub_find_model},
    {"anchor.path", kg_hub_find_model}, {"eval.reference", kg_hub_find_model},
    {"data.train", kg_hub_find_file},   {"data.val", kg_hub_find_file},
    {"sft.data", kg_hub_find_file},     {"sft.val", kg_hub_find_file},
    {"rollout.data", kg_hub_find_file}, {"search.model", kg_hub_find_model},
};

/* search.model is not read with a search server, which has its own encoder. */
static bool is_read(const struct kg_config *c, const char *key)
{
    return strcmp(key, "search.model") != 0 ||
           !strstr(kg_config_text(c, "search.where"), "://");
}

/* Item i of a list; of a single text, item 0 is the text. NULL: no such item. */
static const char *item_of(const struct kg_config *c, const char *key, size_t i)
{
    struct kg_opt_list list = kg_config_list(c, key);
    const char *text = kg_config_text(c, key);

    if (list.items)
        return i < list.n ? list.items[i] : NULL;
    return i == 0 && *text ? text : NULL;
}

/* For a name without revision: the pinned name in the run's config; NULL: none there. */
static const char *as_before(const struct kg_config *before, const char *key, size_t i,
                             const char *text)
{
    const char *found = before ? item_of(before, key, i) : NULL;
    struct kg_hub_name now, then;
    struct kg_err ignored;
    bool file = kg_hub_is_address(text);

    if (!found || file != kg_hub_is_address(found) || (!file && !kg_hub_is_id(text)) ||
        kg_hub_name_read(&now, text, KG_HUB_MODEL, &ignored) != KG_OK ||
        kg_hub_name_read(&then, found, KG_HUB_MODEL, &ignored) != KG_OK)
        return NULL;
    return !now.revised && kg_hub_is_commit(then.revision) &&
                   strcmp(now.id, then.id) == 0 && strcmp(now.file, then.file) == 0
               ? found
               : NULL;
}

static kg_status settle(struct kg_config *config, const struct kg_config *before,
                        size_t k, size_t i, struct kg_err *err)
{
    const char *key = keys[k].key, *text = item_of(config, key, i);
    const char *then = kg_file_exists(text) ? NULL : as_before(before, key, i, text);
    struct kg_hub_found found;

    if (keys[k].find(&found, then ? then : text, err) != KG_OK)
        return kg_err_prefix(err, "%s", key);
    if (!found.cached)
        return KG_OK;
    if (strcmp(text, found.pinned) != 0)
        kg_log_info("%s: %s: %s", key, found.pinned,
                    then ? "as at the start of the run" : "in the hub's cache");
    return kg_config_settle(config, key, i, found.pinned, found.path.text, err);
}

static kg_status pin_names(struct kg_config *config, const struct kg_config *before,
                           struct kg_err *err)
{
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        for (size_t i = 0;
             is_read(config, keys[k].key) && item_of(config, keys[k].key, i); i++)
            KG_TRY(settle(config, before, k, i, err));
    return KG_OK;
}

kg_status kg_pin_names(struct kg_config *config, struct kg_err *err)
{
    return pin_names(config, NULL, err);
}

/* Sets data.date to `date` if the chat template asks for a day. Errors of the template
 * are reported when the run opens it. */
static kg_status pin_date(struct kg_config *config, const char *date, struct kg_err *err)
{
    struct kg_chat_template *t = NULL;
    struct kg_prompt_opts how;
    struct kg_init init;
    struct kg_recipe r;
    kg_status status;

    kg_recipe_read(&r, config);
    if (*r.task_opts.prompt.date)
        return KG_OK;
    KG_TRY(kg_init_find(&init, &r, KG_INIT_NEWEST, err));
    status = kg_run_choose_prompt(&t, &how, &r, kg_init_model_dir(&init, &r).text, err);
    bool asks = status == KG_OK && kg_chat_template_asks_date(t);
    kg_chat_template_close(t);
    if (status == KG_ENOMEM)
        return status;
    if (!asks)
        return KG_OK;
    kg_log_info("data.date: %s, because the chat template uses the date", date);
    return kg_config_set(config, "data.date", date, false, "the start of the run", err);
}

kg_status kg_pin(struct kg_config *config, bool resume, struct kg_chat_day today,
                 struct kg_err *err)
{
    struct kg_config *before = NULL;
    struct kg_recipe r;
    kg_status status;

    kg_recipe_read(&r, config);
    struct kg_path path = kg_path_in(r.run.dir, "config.yaml");
    if (resume &&
        kg_file_is_regular(path.text)) /* else run_dir.c reports this as an error */
        KG_TRY(kg_train_config(&before, path.text, NULL, 0, err));
    KG_TRY_GOTO(out, pin_names(config, before, err));
    KG_TRY_GOTO(out, kg_init_pin(config, resume, err));
    const char *then = before ? kg_config_text(before, "data.date") : "";
    status = pin_date(config, *then ? then : today.text, err);
out:
    kg_config_free(before);
    return status;
}
