/* The pages of docs/ that are printed from tables say what the tables say today. `make
 * docs` rewrites them. */
#include "cli/cli.h"

#include "base/file.h"
#include "policy/presets.h"
#include "train/metric_table.h"
#include "train/published.h"
#include "train/train_options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_PAGE = 1 << 20 };

static struct kg_err err;

static void ok(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

/* The page ends with `want`; nothing stands before it where lead is NULL, else lead. */
static void ends_with(const char *path, const char *lead, const struct kg_str *want)
{
    struct kg_str page = {0};
    const char *from;

    ok(kg_file_read(&page, path, MAX_PAGE, &err));
    from = lead ? strstr(kg_str_text(&page), lead) : page.data;
    if (!from || strcmp(from + (lead ? strlen(lead) : 0), kg_str_text(want)) != 0)
        fail_msg("%s is not what the tables say: run make docs", path);
    kg_str_release(&page);
}

static void the_page_of_algorithms_is_current(void **state)
{
    struct kg_str want = {0};

    (void)state;
    ok(kg_cli_algorithms(&want, &err));
    ends_with("docs/algorithms.md", NULL, &want);
    kg_str_release(&want);
}

static void the_page_of_metrics_is_current(void **state)
{
    struct kg_str want = {0};

    (void)state;
    ok(kg_metric_page(&want, &err));
    ends_with("docs/metrics.md", NULL, &want);
    kg_str_release(&want);
}

static void the_page_of_published_runs_is_current(void **state)
{
    struct kg_str want = {0};

    (void)state;
    ok(kg_published_page(&want, &err));
    ends_with("docs/published.md", NULL, &want);
    kg_str_release(&want);
}

static void the_page_of_keys_is_current(void **state)
{
    struct kg_config *config;
    struct kg_str want = {0};

    (void)state;
    ok(kg_train_config(&config, NULL, NULL, 0, &err));
    ok(kg_config_dump_yaml(&want, config, true, &err));
    ok(kg_str_puts(&want, "```\n", &err));
    ends_with("docs/config.md", "```yaml\n", &want);
    kg_str_release(&want);
    kg_config_free(config);
}

/* What README says of the presets is how many there are. */
static void the_presets_are_counted_right(void **state)
{
    struct kg_str page = {0}, want = {0};
    int methods = 0, recipes = 0;

    (void)state;
    for (size_t i = 0; i < kg_preset_count(); i++)
        *(kg_preset_at(i)->kind == KG_PRESET_METHOD ? &methods : &recipes) += 1;
    ok(kg_str_printf(&want, &err, "* %d methods and %d published recipes as presets",
                     methods, recipes));
    ok(kg_file_read(&page, "README.md", MAX_PAGE, &err));
    if (!strstr(kg_str_text(&page), kg_str_text(&want)))
        fail_msg("README.md does not say '%s'", kg_str_text(&want));
    kg_str_release(&page);
    kg_str_release(&want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_of_algorithms_is_current),
        cmocka_unit_test(the_page_of_metrics_is_current),
        cmocka_unit_test(the_page_of_published_runs_is_current),
        cmocka_unit_test(the_page_of_keys_is_current),
        cmocka_unit_test(the_presets_are_counted_right),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
