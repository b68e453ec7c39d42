/* The pages of docs/ that are generated from tables are up to date; `make docs` rewrites
 * them. */
#include "cli/cli.h"

#include "base/file.h"
#include "lab/algorithms.h"
#include "policy/presets.h"
#include "recipe/options.h"
#include "report/metrics.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_PAGE = 1 << 20 };

static struct kg_err err;

static void ok(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

/* The page ends with `want`, which follows `lead` or, if lead is NULL, begins the
 * page. */
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

/* docs/performance.md names every benchmark of the help, which is printed from their
 * table. */
static void every_benchmark_is_named(void **state)
{
    const struct kg_command *c = kg_command_find("bench");
    struct kg_str page = {0};
    char command[64], part[64];
    struct kg_term t;

    (void)state;
    ok(kg_file_read(&page, "docs/performance.md", MAX_PAGE, &err));
    for (int i = 0; c->term(&t, i); i++) {
        snprintf(command, sizeof command, "`kedge bench %s", t.name);
        snprintf(part, sizeof part, "| `%s`: ", t.name);
        if (!strstr(kg_str_text(&page), command) && !strstr(kg_str_text(&page), part))
            fail_msg("docs/performance.md has no row of %s", command);
    }
    kg_str_release(&page);
}

/* README gives the right number of presets. */
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

/* ---- links ---- */

/* Compares a heading with GitHub's anchor: letters and digits in lower case, spaces as
 * '-'. */
static bool is_heading(const char *line, const char *anchor, size_t n)
{
    size_t at = 0;

    line += strspn(line, "#");
    line += *line == ' ';
    for (; *line && *line != '\n'; line++) {
        char c = *line == ' ' ? '-' : (char)tolower((unsigned char)*line);

        if (!isalnum((unsigned char)c) && c != '-' && c != '_')
            continue;
        if (at == n || anchor[at++] != c)
            return false;
    }
    return at == n;
}

static bool has_anchor(const char *page, const char *anchor, size_t n)
{
    char id[256];

    snprintf(id, sizeof id, "<a id=\"%.*s\">", (int)n, anchor);
    if (strstr(page, id))
        return true;
    for (const char *at = page; at; at = strstr(at, "\n#"), at += at != NULL)
        if (*at == '#' && is_heading(at, anchor, n))
            return true;
    return false;
}

/* from: the page; folder: its folder; to: the n bytes after "](" */
static void check_link(const char *from, const char *folder, const char *to, size_t n)
{
    size_t path_n = strcspn(to, "#)");
    struct kg_str page = {0}, path = {0};

    if (n >= 4 && strncmp(to, "http", 4) == 0)
        return;
    ok(path_n ? kg_str_printf(&path, &err, "%s%.*s", folder, (int)path_n, to)
              : kg_str_puts(&path, from, &err));
    if (!kg_file_exists(path.data))
        fail_msg("%s: link to %.*s, which is not there", from, (int)n, to);
    if (path_n < n && !kg_file_is_dir(path.data)) {
        ok(kg_file_read(&page, path.data, MAX_PAGE, &err));
        if (!has_anchor(kg_str_text(&page), to + path_n + 1, n - path_n - 1))
            fail_msg("%s: link to %.*s, which has no such heading", from, (int)n, to);
    }
    kg_str_release(&page);
    kg_str_release(&path);
}

/* returns the number of links */
static size_t check_links(const char *path, const char *folder)
{
    struct kg_str page = {0};
    size_t n = 0;

    ok(kg_file_read(&page, path, MAX_PAGE, &err));
    for (const char *at = kg_str_text(&page); (at = strstr(at, "](")); n++) {
        at += 2;
        check_link(path, folder, at, strcspn(at, ") \n"));
    }
    kg_str_release(&page);
    return n;
}

static void every_link_leads_to_a_file_and_a_heading(void **state)
{
    char path[300], **names;
    size_t n, links = check_links("README.md", "") +
                      check_links("guests/lab/README.md", "guests/lab/") +
                      check_links("guests/retriever/README.md", "guests/retriever/");

    (void)state;
    ok(kg_file_list(&names, &n, "docs", &err));
    for (size_t i = 0; i < n; i++) {
        snprintf(path, sizeof path, "docs/%.250s", names[i]);
        if (strstr(names[i], ".md"))
            links += check_links(path, "docs/");
    }
    kg_file_names_free(names, n);
    assert_true(links > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_of_algorithms_is_current),
        cmocka_unit_test(the_page_of_metrics_is_current),
        cmocka_unit_test(the_page_of_keys_is_current),
        cmocka_unit_test(the_presets_are_counted_right),
        cmocka_unit_test(every_benchmark_is_named),
        cmocka_unit_test(every_link_leads_to_a_file_and_a_heading),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
