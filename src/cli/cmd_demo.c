/* kedge demo: a model from random weights, SFT, then RL by two methods, and one table.
 *
 * The demo is a script of commands of this program (demo.sh, which the program contains).
 * It shows what a user would type, and needs only the program and sh. This file reads the
 * flags, checks the folder and becomes sh. */
#include "cli/cli.h"

#include "base/file.h"
#include "base/library.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_KEYS = 32 };

__asm__(".pushsection .rodata\n"
        "kg_demo_script: .incbin \"src/cli/demo.sh\"\n.byte 0\n"
        ".popsection");
/* hidden, as in policy/presets.c */
__attribute__((visibility("hidden"))) extern const char kg_demo_script[];

static const char *out;
static bool quick;
static int64_t warm_steps;

const struct kg_flag kg_demo_flags[] = {
    {"quick", 0, KG_IF("--warm=", quick), NULL,
     "smaller runs, which show that every part works, not how well"},
    {"out", 'o', KG_TO(out), "DIR",
     "working folder (default runs/demo, with --quick runs/demo-quick)"},
    {"warm", 0, KG_TO(warm_steps), "STEPS",
     "make only the model before RL, by STEPS steps of SFT with these keys, and print "
     "its folder",
     1, 1 << 20},
    {0},
};

/* Arguments of the script. */
struct budget {
    char problems[24];
    char sft_steps[24];
    char rl_steps[24];
};

static struct budget budget_get(void)
{
    struct budget b;
    int64_t sft = warm_steps > 0 ? warm_steps : quick ? 30 : 350;
    int rl = warm_steps > 0 ? 0 : quick ? 3 : 50;

    snprintf(b.problems, sizeof b.problems, "%d", quick ? 100 : 1000);
    snprintf(b.sft_steps, sizeof b.sft_steps, "%lld", (long long)sft);
    snprintf(b.rl_steps, sizeof b.rl_steps, "%d", rl);
    return b;
}

/* Returns only if there is no sh. */
static kg_status run_script(char **keys, int n, struct kg_err *err)
{
    char program[KG_PROGRAM_PATH];
    const struct budget b = budget_get();
    const char *argv[8 + MAX_KEYS + 1] = {"sh", "-c",       kg_demo_script, program,
                                          out,  b.problems, b.sft_steps,    b.rl_steps};

    for (int i = 0; i < n; i++)
        argv[8 + i] = keys[i];
    KG_TRY(kg_program_path(program, err));
    execv("/bin/sh", (void *)argv); /* execv does not change them */
    return kg_fail(err, KG_EIO, "/bin/sh: cannot start: %s", strerror(errno));
}

static kg_status demo(char **keys, int n, struct kg_err *err)
{
    struct kg_err why;

    if (out == NULL)
        out = quick ? "runs/demo-quick" : "runs/demo";
    if (kg_file_try_dirs(out, &why) != KG_OK)
        return kg_fail(
            err, why.code,
            "%s: expected a writable folder, found: %s; --out DIR names another", out,
            why.message);
    KG_TRY(kg_file_make_dirs(out, err));
    return run_script(keys, n, err);
}

int kg_cmd_demo(int argc, char **argv)
{
    struct kg_err err;

    if (argc > 0 && warm_steps == 0)
        return kg_cli_usage("expected no arguments without --warm, found '%s'", argv[0]);
    if (argc > MAX_KEYS)
        return kg_cli_usage("expected at most %d keys, found %d", MAX_KEYS, argc);
    return kg_cli_exit(demo(argv, argc, &err), &err);
}
