/* The tables as text: the overview, the help of a command, the man page.
 *
 * The texts are in the tables of commands and flags; this file wraps them into lines and
 * columns. The man page has the same texts in roff, where a dot at the start of a line
 * and a bare dash must be escaped. No text is written for one command alone,
 * so all of them look alike.
 */
#include "cli/cli.h"

#include <string.h>

enum { WIDTH = 88, FLAG_COLUMN = 28 };

/* Wraps text into lines of WIDTH with an indent; newlines are kept. */
static kg_status put_wrapped(struct kg_str *out, const char *text, int indent, int column,
                             struct kg_err *err)
{
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, " \n");
        if (column > indent && column + 1 + (int)n > WIDTH) {
            KG_TRY(kg_str_printf(out, err, "\n%*s", indent, ""));
            column = indent;
        } else if (column > indent) {
            KG_TRY(kg_str_putc(out, ' ', err));
            column++;
        }
        KG_TRY(kg_str_append(out, p, n, err));
        column += (int)n;
        p += n;
        while (*p == ' ')
            p++;
        for (; *p == '\n'; p++) {
            KG_TRY(kg_str_printf(out, err, "\n%*s", indent, ""));
            column = indent;
        }
    }
    return kg_str_putc(out, '\n', err);
}

/* Adds the help text to the line that began at `start`. */
static kg_status put_help(struct kg_str *out, size_t start, const char *help,
                          struct kg_err *err)
{
    int column = (int)(out->len - start);
    if (column >= FLAG_COLUMN) {
        KG_TRY(kg_str_printf(out, err, "\n%*s", FLAG_COLUMN, ""));
        column = FLAG_COLUMN;
    }
    KG_TRY(kg_str_printf(out, err, "%*s", FLAG_COLUMN - column, ""));
    return put_wrapped(out, help, FLAG_COLUMN, FLAG_COLUMN, err);
}

static kg_status put_flag(struct kg_str *out, const struct kg_flag *f, struct kg_err *err)
{
    const size_t start = out->len;
    struct kg_str help = {0};

    KG_TRY(kg_str_puts(out, "  ", err));
    KG_TRY(kg_flag_spell(out, f, err));
    kg_status status = kg_flag_help(&help, f, err);
    if (status == KG_OK)
        status = put_help(out, start, kg_str_text(&help), err);
    kg_str_release(&help);
    return status;
}

static kg_status put_terms(struct kg_str *out, const struct kg_command *c,
                           struct kg_err *err)
{
    struct kg_term t;

    KG_TRY(kg_str_puts(out, "\nNAME:\n", err));
    for (int i = 0; c->term(&t, i); i++) {
        const size_t start = out->len;

        KG_TRY(kg_str_printf(out, err, "  %s", t.name));
        KG_TRY(put_help(out, start, t.help, err));
    }
    return KG_OK;
}

kg_status kg_command_help(struct kg_str *out, const struct kg_command *c,
                          struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "kedge %s: %s\n\nusage: kedge %s %s\n", c->name,
                         c->summary, c->name, c->usage));
    if (c->details) {
        KG_TRY(kg_str_putc(out, '\n', err));
        KG_TRY(put_wrapped(out, c->details, 0, 0, err));
    }
    if (c->term)
        KG_TRY(put_terms(out, c, err));
    if (c->flags && c->flags->name)
        KG_TRY(kg_str_puts(out, "\nflags:\n", err));
    struct kg_flag_walk walk = {c->flags, NULL};
    for (const struct kg_flag *f; (f = kg_flag_next(&walk));)
        KG_TRY(put_flag(out, f, err));
    return KG_OK;
}

kg_status kg_cli_overview(struct kg_str *out, struct kg_err *err)
{
    KG_TRY(
        kg_str_puts(out,
                    "kedge: reinforcement-learning post-training of language models\n\n"
                    "usage: kedge COMMAND [flags] [arguments]\n\ncommands:\n",
                    err));
    for (const struct kg_command *c = kg_commands; c->name; c++)
        KG_TRY(kg_str_printf(out, err, "  %-12s %s%s\n", c->name, c->summary,
                             c->run ? "" : " (not in this build)"));
    return kg_str_puts(
        out,
        "\n`kedge help COMMAND`, or `kedge COMMAND --help`, describes a command, `kedge "
        "--version` this build.\nSee also `man kedge` and docs/.\n",
        err);
}

/* ---- man page ---- */

/* Escapes text for roff: backslashes, dashes, and a dot or quote that begins a line. */
static kg_status put_roff(struct kg_str *out, const char *text, struct kg_err *err)
{
    bool line_start = true;
    for (const char *p = text; *p; p++) {
        if (line_start && (*p == '.' || *p == '\''))
            KG_TRY(kg_str_puts(out, "\\&", err));
        line_start = *p == '\n';
        if (*p == '\n' && p[1] == '\n') {
            KG_TRY(kg_str_puts(out, "\n.PP\n", err));
            p++;
        } else if (*p == '\\') {
            KG_TRY(kg_str_puts(out, "\\e", err));
        } else if (*p == '-') {
            KG_TRY(kg_str_puts(out, "\\-", err));
        } else {
            KG_TRY(kg_str_putc(out, *p, err));
        }
    }
    return KG_OK;
}

static kg_status put_man_term(struct kg_str *out, const char *name, const char *help,
                              struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, ".TP\n.B ", err));
    KG_TRY(put_roff(out, name, err));
    KG_TRY(kg_str_putc(out, '\n', err));
    KG_TRY(put_roff(out, help, err));
    return kg_str_putc(out, '\n', err);
}

static kg_status put_man_flag(struct kg_str *out, const struct kg_flag *f,
                              struct kg_err *err)
{
    struct kg_str spelled = {0}, help = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_flag_spell(&spelled, f, err));
    KG_TRY_GOTO(out, kg_flag_help(&help, f, err));
    status = put_man_term(out, kg_str_text(&spelled), kg_str_text(&help), err);
out:
    kg_str_release(&spelled);
    kg_str_release(&help);
    return status;
}

static kg_status put_man_command(struct kg_str *out, const struct kg_command *c,
                                 struct kg_err *err)
{
    int i = 0;

    KG_TRY(kg_str_printf(out, err, ".SS kedge %s ", c->name));
    KG_TRY(put_roff(out, c->usage, err));
    KG_TRY(kg_str_puts(out, "\n", err));
    KG_TRY(put_roff(out, c->summary, err));
    KG_TRY(kg_str_puts(out, ".\n", err));
    if (c->details) {
        KG_TRY(kg_str_puts(out, ".PP\n", err));
        KG_TRY(put_roff(out, c->details, err));
        KG_TRY(kg_str_puts(out, "\n", err));
    }
    for (struct kg_term t; c->term && c->term(&t, i); i++)
        KG_TRY(put_man_term(out, t.name, t.help, err));
    struct kg_flag_walk walk = {c->flags, NULL};
    for (const struct kg_flag *f; (f = kg_flag_next(&walk));)
        KG_TRY(put_man_flag(out, f, err));
    return KG_OK;
}

kg_status kg_cli_man(struct kg_str *out, struct kg_err *err)
{
    KG_TRY(kg_str_puts(out,
                       ".TH KEDGE 1 \"\" \"kedge " KG_VERSION "\" \"User Commands\"\n"
                       ".SH NAME\nkedge \\- reinforcement\\-learning post\\-training of "
                       "language models\n"
                       ".SH SYNOPSIS\n.B kedge\n.I COMMAND\n[flags] [arguments]\n"
                       ".SH COMMANDS\n",
                       err));
    for (const struct kg_command *c = kg_commands; c->name; c++)
        KG_TRY(put_man_command(out, c, err));
    return kg_str_puts(
        out,
        ".SH EXIT STATUS\n0: done; 1: the work failed; 2: wrong command line; 75: "
        "another rank was lost; 128 + N: signal N stopped it before it was done (130 "
        "SIGINT, 143 SIGTERM). A server ended by a signal exits with 0.\n",
        err);
}
