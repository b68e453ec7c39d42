/* What `kedge completion` prints, in the shells that are there: ./kedge is run.
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

/* Skips without the shell; else its script is in ROOT/SHELL. */
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

static const char *script(struct kg_str *text, const char *shell)
{
    char path[64];

    snprintf(path, sizeof path, ROOT "/%s", shell);
    NEED(kg_file_read(text, path, 1 << 20, err));
    return kg_str_text(text);
}

/* The line up to the cursor, as readline parts it in words, becomes these. */
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

static void zsh_knows_commands_flags_keys_and_choices(void **state)
{
    struct kg_str text = {0};
    const char *all;

    (void)state;
    need("zsh");
    all = script(&text, "zsh");
    assert_non_null(strstr(all, " --dtype 'bf16 fp32'"));
    assert_non_null(strstr(all, "\n    'preset:"));
    assert_int_equal(system("zsh -n " ROOT "/zsh"), 0);
    /* what the function offers behind a flag with choices, and behind its = */
    assert_int_equal(
        system("zsh -fc 'compdef() { :; }; compadd() { shift; print -r -- \"$*\"; }; "
               "compset() { PREFIX=${PREFIX#*=}; }; source " ROOT "/zsh; words=(kedge "
               "score --dtype \"\"); CURRENT=4 PREFIX=; _kedge; words=(kedge score "
               "--dtype=); CURRENT=3 PREFIX=--dtype=; _kedge' > " ROOT "/out"),
        0);
    kg_str_clear(&text);
    assert_string_equal(script(&text, "out"), "bf16 fp32\nbf16 fp32\n");
    kg_str_release(&text);
}

static void fish_knows_commands_flags_keys_and_choices(void **state)
{
    struct kg_str text = {0};
    const char *all;

    (void)state;
    need("fish");
    all = script(&text, "fish");
    assert_non_null(strstr(all, "-l dtype"));
    assert_non_null(strstr(all, "-a 'bf16 fp32'"));
    assert_non_null(strstr(all, "-a 'preset='"));
    assert_int_equal(system("fish --no-execute " ROOT "/fish"), 0);
    kg_str_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bash_completes_commands_flags_keys_and_choices),
        cmocka_unit_test(zsh_knows_commands_flags_keys_and_choices),
        cmocka_unit_test(fish_knows_commands_flags_keys_and_choices),
    };

    return cmocka_run_group_tests_name("completion", tests, set_up, NULL);
}
