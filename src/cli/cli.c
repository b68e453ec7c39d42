/* From argv to a command, and from its end to an exit status.
 *
 * Only this file and the commands write to stdout and stderr. Output to stdout is checked
 * to the last byte, so that a full disk is a failure and not a short file. Messages quote
 * files and servers, so they are made printable.
 */
#include "cli/cli.h"

#include "base/file.h"
#include "base/library.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/signal.h"
#include "base/status.h"
#include "base/str.h"
#include "base/watch.h"
#include "cli/load.h"
#include "data/jsonl.h"
#include "ranks/launch.h"
#include "tensor/device.h"
#include "tensor/selfcheck.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <errno.h>
#include <pcre2.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utf8proc.h>
#include <yaml.h>
#include <zstd.h>

static const char *command_name = ""; /* of the running command, for messages */

/* ---- messages ---- */

/* Makes text printable, because messages quote files and servers. No allocation, as
 * memory may be exhausted; one write, so that lines of several ranks do not mix. */
static void say(const char *text)
{
    char line[4 * KG_ERR_MESSAGE_BYTES + 128];
    size_t at = (size_t)snprintf(line, 100, "kedge%s%s: ", command_name[0] ? " " : "",
                                 command_name);

    kg_log_progress_end();
    for (size_t n = strlen(text); n > 0 && at + 8 < sizeof line;) {
        size_t width = kg_printable_at(text, n, true);

        if (width)
            memcpy(line + at, text, width);
        else
            snprintf(line + at, 5, "\\x%02x", (unsigned char)*text);
        at += width ? width : 4;
        text += width ? width : 1;
        n -= width ? width : 1;
    }
    line[at++] = '\n';
    fwrite(line, 1, at, stderr);
}

int kg_cli_status(kg_status status)
{
    int number = kg_signal_number();

    if (status != KG_EINTERRUPTED)
        return status == KG_OK ? KG_EXIT_OK : KG_EXIT_FAILURE;
    return KG_EXIT_SIGNAL + (number > 0 ? number : SIGTERM);
}

int kg_cli_fail(const struct kg_err *err)
{
    say(err->message);
    return err->code == KG_EINTERRUPTED ? kg_cli_status(err->code) : KG_EXIT_FAILURE;
}

int kg_cli_exit(kg_status status, const struct kg_err *err)
{
    return status == KG_OK ? KG_EXIT_OK : kg_cli_fail(err);
}

int kg_cli_usage(const char *fmt, ...)
{
    char text[1024];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    say(text);
    fprintf(stderr, "`kedge %s%s--help` shows the usage\n", command_name,
            command_name[0] ? " " : "");
    return KG_EXIT_USAGE;
}

int kg_cli_usage_unknown(const char *found, const void *names, size_t n, size_t stride)
{
    struct kg_err err;

    (void)!kg_str_unknown(KG_EINVAL, NULL, found, names, n, stride, &err);
    return kg_cli_usage("%s", err.message);
}

kg_status kg_cli_put_as_it_is(struct kg_str *s, struct kg_err *err)
{
    size_t done = 0;
    while (done < s->len) {
        ssize_t n = write(STDOUT_FILENO, s->data + done, s->len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return kg_fail(err, KG_EIO, "cannot write to standard output: %s",
                           strerror(errno));
        done += (size_t)n;
    }
    kg_str_clear(s);
    return KG_OK;
}

kg_status kg_cli_put(struct kg_str *s, struct kg_err *err)
{
    struct kg_str clean = {0};

    if (isatty(STDOUT_FILENO) != 1)
        return kg_cli_put_as_it_is(s, err);
    kg_status status = kg_printable_put(&clean, kg_str_text(s), s->len, true, err);
    kg_str_clear(s);
    if (status == KG_OK)
        status = kg_cli_put_as_it_is(&clean, err);
    kg_str_release(&clean);
    return status;
}

kg_status kg_cli_print(kg_status written, struct kg_str *s, struct kg_err *err)
{
    kg_status status = written == KG_OK ? kg_cli_put(s, err) : written;

    kg_str_release(s);
    return status;
}

/* A device, pipe or link, which a new file must not replace. */
static bool stays_itself(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0 && !S_ISREG(st.st_mode);
}

kg_status kg_cli_target_open(struct kg_cli_target *t, const char *path,
                             struct kg_err *err)
{
    *t = (struct kg_cli_target){.path = path, .as_it_is = stays_itself(path)};
    if (t->as_it_is)
        return kg_str_puts(&t->name, path, err);
    KG_TRY(kg_file_remove_stale(path, err));
    return kg_file_temporary(&t->name, path, err);
}

kg_status kg_cli_target_settle(struct kg_cli_target *t, struct kg_err *err)
{
    if (t->as_it_is)
        return KG_OK;
    kg_status status = kg_file_replace(t->name.data, t->path, err);
    if (status != KG_OK)
        unlink(t->name.data);
    return status;
}

void kg_cli_target_release(struct kg_cli_target *t)
{
    kg_str_release(&t->name);
    *t = (struct kg_cli_target){0};
}

kg_status kg_cli_write_file(const char *path, const struct kg_str *s, struct kg_err *err)
{
    struct kg_file_writer file;

    if (!stays_itself(path))
        return kg_file_write_atomic(path, s->data, s->len, err);
    KG_TRY(kg_file_writer_open(&file, path, err));
    kg_status status = kg_file_writer_put(&file, s->data, s->len, err);
    if (status == KG_OK)
        return kg_file_writer_close(&file, err);
    kg_file_writer_abort(&file);
    return status;
}

void kg_cli_bytes(char text[32], double bytes)
{
    const char *units[] = {"bytes", "kB", "MB", "GB", "TB"};
    size_t u = 0;
    for (; bytes >= 1000 && u < 4; u++)
        bytes /= 1000;
    snprintf(text, 32, u == 0 ? "%.0f %s" : "%.2f %s", bytes, units[u]);
}

/* Prints a text of help.c. */
static int print_text(kg_status (*write_text)(struct kg_str *, struct kg_err *))
{
    struct kg_str out = {0};
    struct kg_err err;

    return kg_cli_exit(kg_cli_print(write_text(&out, &err), &out, &err), &err);
}

static int print_help(const struct kg_command *c)
{
    struct kg_str out = {0};
    struct kg_err err;

    return kg_cli_exit(kg_cli_print(kg_command_help(&out, c, &err), &out, &err), &err);
}

int kg_cmd_man(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return print_text(kg_cli_man);
}

int kg_cmd_completion(int argc, char **argv)
{
    struct kg_str out = {0};
    struct kg_err err;
    kg_status status = kg_cli_completion(&out, argc > 0 ? argv[0] : "bash", &err);

    return kg_cli_exit(kg_cli_print(status, &out, &err), &err);
}

/* ---- running a command ---- */

static int unknown_command(const char *name)
{
    size_t n = 0;
    while (kg_commands[n].name)
        n++;
    const char *near = kg_str_nearest(name, &kg_commands[0].name, n, sizeof *kg_commands);
    return kg_cli_usage("unknown command '%s'%s%s%s", name, near ? ", did you mean " : "",
                        near ? near : "", near ? "?" : "");
}

/* Refuses commands that every process of a launcher would repeat as a whole. */
static kg_status check_single(const struct kg_command *c, struct kg_err *err)
{
    int n = kg_ranks_launched();

    if (n == 1 || !kg_command_is_single(c))
        return KG_OK;
    return kg_fail(
        err, KG_EINVAL,
        "expected one process, found a launcher with %d processes, each of which would "
        "repeat the whole command: start it without mpirun or srun, or unset "
        "OMPI_COMM_WORLD_SIZE, PMI_SIZE, PMIX_RANK and SLURM_STEP_NUM_TASKS in one "
        "process; only train, sft, distill and eval divide work among processes",
        n);
}

void kg_cli_watch(void)
{
    struct kg_err err;
    if (kg_watch_start(&err) != KG_OK) /* kedge works without it */
        kg_log_warn("%s", err.message);
}

static int run_command(const struct kg_command *c, int argc, char **argv)
{
    bool help = false;
    struct kg_err err;
    command_name = c->name;
    if (c->run == NULL)
        return kg_cli_exit(kg_guest_missing("this command", c->guest, &err), &err);
    if (c->flags == NULL)
        return c->run(argc, argv);
    if (kg_flags_parse(c, &argc, argv, &help, &err) != KG_OK)
        return kg_cli_usage("%s", err.message);
    if (help)
        return print_help(c);
    if (check_single(c, &err) != KG_OK)
        return kg_cli_fail(&err);
    if (kg_cli_find_flags(c, &err) != KG_OK)
        return kg_cli_fail(&err);
    kg_cli_watch();
    return c->run(argc, argv);
}

int kg_cli_main(int argc, char **argv)
{
    kg_log_set_stream(stderr, isatty(STDERR_FILENO) == 1);
    kg_signal_ignore_writes();
    signal(SIGCHLD, SIG_DFL); /* if it is inherited as ignored, waitpid fails */
    if (argc < 2)
        return kg_cli_usage("expected a command");
    const char *first = argv[1];
    const bool helps = strcmp(first, "help") == 0;
    if ((helps && argc < 3) || strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0)
        return print_text(kg_cli_overview);
    if (helps) {
        const struct kg_command *c = kg_command_find(argv[2]);

        return c ? print_help(c) : unknown_command(argv[2]);
    }
    if (strcmp(first, "--version") == 0)
        return print_text(kg_cli_version);
    const struct kg_command *c = kg_command_find(first);
    return c ? run_command(c, argc - 2, argv + 2) : unknown_command(first);
}

/* ---- filters ---- */

static kg_status answer_lines(struct kg_jsonl *in, kg_cli_line_fn *answer, void *context,
                              struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_str out = {0};
    bool more = true;
    size_t n = 0;
    kg_status status = KG_OK;

    for (;; n++) {
        KG_TRY_GOTO(out, kg_jsonl_next(in, &doc, &more, err));
        if (!more)
            break;
        KG_TRY_GOTO(out, answer(&out, &doc, context, err));
        KG_TRY_GOTO(out, kg_cli_put(&out, err));
    }
    if (n == 0)
        status = kg_fail(err, KG_EFORMAT,
                         "stdin: expected at least one line, found none");
out:
    kg_json_release(&doc);
    kg_str_release(&out);
    return status;
}

kg_status kg_cli_filter(kg_cli_line_fn *answer, void *context, struct kg_err *err)
{
    struct kg_jsonl *in;

    KG_TRY(kg_jsonl_open_stream(&in, stdin, "stdin", err));
    kg_status status = answer_lines(in, answer, context, err);
    kg_jsonl_close(in);
    return status;
}

/* ---- installed files ---- */

const char *kg_cli_shared(char **own, const char *path, struct kg_err *err)
{
    char program[KG_PROGRAM_PATH];
    struct kg_str found = {0};
    struct kg_err ignored;

    *own = NULL;
    if (*path == '/' || kg_file_exists(path))
        return path;
    if (kg_program_path(program, &ignored) != KG_OK)
        return path;
    *strrchr(program, '/') = '\0';
    if (kg_str_printf(&found, err, "%s/../share/kedge/%s", program, path) != KG_OK)
        return NULL;
    if (!kg_file_exists(found.data)) {
        kg_str_release(&found);
        return path;
    }
    *own = kg_str_take(&found, err);
    if (*own)
        kg_log_info("%s: using the installed file, %s", path, *own);
    return *own;
}

/* ---- version ---- */

kg_status kg_cli_version(struct kg_str *out, struct kg_err *err)
{
    char features[256];
    char backend[256];
    char pcre[64] = "";
    pcre2_config(PCRE2_CONFIG_VERSION, pcre);
    const struct kg_backend *be;

    KG_TRY(kg_backend_open(&be, NULL, err));
    kg_selfcheck_cpu_features(features, sizeof features);
    be->describe(backend, sizeof backend);
    KG_TRY(kg_str_printf(out, err, "kedge %s\n", KG_VERSION));
    KG_TRY(kg_str_printf(
        out, err, "libraries: libyaml %s, PCRE2 %s, utf8proc %s, zstd %s\n",
        yaml_get_version_string(), pcre, utf8proc_version(), ZSTD_versionString()));
    KG_TRY(kg_str_printf(out, err, "backend: %s\n", backend));
    KG_TRY(kg_str_printf(out, err, "processor: %s\ncuda: ", features));
    KG_TRY(kg_device_say(out, err));
    return kg_str_putc(out, '\n', err);
}
