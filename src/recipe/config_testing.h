/* Shared by tests of runs: a config from lists of assignments.
 *
 * Included by *_test.c and *_testing.h only.
 */
#ifndef KG_RECIPE_CONFIG_TESTING_H
#define KG_RECIPE_CONFIG_TESTING_H

#include "base/file.h"
#include "base/need_testing.h"
#include "recipe/options.h"

#include <stdio.h>

/* Makes a config with run.dir = dir; later lists override earlier ones. A list ends with
 * NULL, and may be NULL. Also disables waiting for syncs, which are slow on a busy disk
 * and protect only from power loss. */
static inline struct kg_config *config_from(const char *dir,
                                            const char *const *const *lists, size_t n)
{
    char run_dir[256];
    char *assignments[96];
    size_t count = 0;
    struct kg_config *config = NULL;

    kg_file_skip_syncs(true);
    snprintf(run_dir, sizeof run_dir, "run.dir=%s", dir);
    for (size_t i = 0; i < n; i++)
        for (const char *const *a = lists[i]; a && *a; a++) {
            assert_true(count + 1 < sizeof assignments / sizeof *assignments);
            assignments[count++] = (char *)(uintptr_t)*a;
        }
    assignments[count++] = run_dir;
    NEED(kg_train_config(&config, NULL, assignments, count, err));
    return config;
}

#endif
