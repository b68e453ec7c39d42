/* What the script of `kedge completion` completes in bash. tests/install_test.sh tests
 * zsh.
 */
#include "base/file.h"
#include "base/need_testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROOT "build/test-completion"

static int set_up(void **state)
{
    (void)state;
    NEED(kg_file_make_dirs(ROOT, err));
    return 0;
}

/* Writes the script for `shell` to ROOT/SHELL. Skips the test without ./kedge or the
 * shell. */
static void need(const char *shell)
{
    char line[256];

    snprintf(line, sizeof line, "%s -c true 2>/dev/null", shell);
    if (access("./kedge", X_OK) != 0 || system(line) != 0) {
        print_message("skip: no %s or no ./kedge\n", shell);
        skip();
    }
    snprintf(line, sizeof line, "./kedge completion %s > " ROOT "/%s", shell, shell);
    assert_int_equal(system(line), 0);
}

/* Expects the candidates `wanted` for a command line that readline has split into
 * `words`, with the cursor in the last one. */
static void bash_gives(const char *words, const char *wanted)
{
    char line[1024];

    snprintf(line, sizeof line,
             "bash -c 'source " ROOT "/bash; COMP_WORDS=(%s); "
             "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _kedge; found=\"${COMPREPLY[*]}\"; "
             "[ \"$found\" = \"%s\" ] || { echo \"found $found\"; exit 1; }'",
             words, wanted);
    if (system(line) != 0)
        fail_msg("%s: expected %s", words, wanted);
}

static void bash_completes_commands_flags_keys_and_choices(void **state)
{
    (void)state;
    need("bash");
    bash_gives("kedge gen", "generate");
    bash_gives("kedge new --he", "--help --heads --head-dim");
    bash_gives("kedge score --dtype \"\"", "bf16 fp32");
    bash_gives("kedge score --dtype f", "fp32");
    bash_gives("kedge score --dtype=b", "bf16");
    bash_gives("kedge train anchor.kind=it", "iterative");
    bash_gives("kedge train pres", "preset=");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bash_completes_commands_flags_keys_and_choices),
    };

    return cmocka_run_group_tests_name("completion", tests, set_up, NULL);
}
