/* Completion for bash, zsh and fish, written from the tables of commands and of recipe
 * keys: commands, flags, the choices of a flag, section.key= and its choices.
 *
 * A shell gets one script without kedge running behind it. What is neither a flag nor a
 * key is a file. */
#include "cli/cli.h"

#include "recipe/options.h"

#include <string.h>

/* A key that has no row: the command line accepts it for algo.preset. */
static const char PRESET_HELP[] = "a method or recipe by name, kedge presets lists them";

/* Whether the command takes section.key=value. */
static bool takes_keys(const struct kg_command *c)
{
    return strstr(c->usage, "section.key=value") != NULL;
}

/* "a|b|c" with another separator. */
static kg_status put_choices(struct kg_str *out, const char *choices, char between,
                             struct kg_err *err)
{
    for (const char *p = choices; *p; p++)
        KG_TRY(kg_str_putc(out, *p == '|' ? between : *p, err));
    return KG_OK;
}

/* The choices of a key, NULL for none. */
static const char *choices_of(const struct kg_opt_row *row)
{
    return row->type == KG_OPT_BOOL && !row->choices ? "true|false" : row->choices;
}

/* Up to the first end of a sentence, for a list; without what a shell's quotes end at. */
static kg_status put_help(struct kg_str *out, const char *text, struct kg_err *err)
{
    for (const char *p = text; *p && *p != ';' && *p != '\n' && *p != '('; p++) {
        if (!kg_char_in("'\\:[]`$\"", *p))
            KG_TRY(kg_str_putc(out, *p, err));
    }
    return KG_OK;
}

/* ---- bash ---- */

static const char BASH_HEAD[] =
    "# bash completion for kedge\n"
    "_kedge()\n{\n"
    "    local word=${COMP_WORDS[COMP_CWORD]} flags= keys= values= choices=\n"
    "    local before=${COMP_WORDS[COMP_CWORD-1]} one\n"
    "    # = parts words for readline: the whole word stands in the line\n"
    "    [ -z \"$COMP_LINE\" ] || { word=${COMP_LINE:0:$COMP_POINT}; word=${word##*[ "
    "\t]}; }\n";

static const char BASH_TAIL[] =
    "    # behind a flag with choices, or behind its =\n"
    "    case $word in -*=*) before=${word%%=*} word=${word#*=} ;; esac\n"
    "    for one in $choices; do\n"
    "        [ \"$before\" = \"${one%%=*}\" ] || continue\n"
    "        one=${one#*=}\n"
    "        COMPREPLY=($(compgen -W \"${one//|/ }\" -- \"$word\"))\n"
    "        return\n"
    "    done\n"
    "    case $word in\n"
    "        -*) COMPREPLY=($(compgen -W \"$flags\" -- \"$word\")) ;;\n"
    "        *=*) _kedge_values \"${word%%=*}\"\n"
    "            if [ -n \"$values\" ]; then COMPREPLY=($(compgen -W \"$values\" -- "
    "\"${word#*=}\"))\n"
    "            else COMPREPLY=($(compgen -f -- \"${word#*=}\")); fi ;;\n"
    "        *) COMPREPLY=($(compgen -W \"$keys\" -- \"$word\"))\n"
    "            if [ ${#COMPREPLY[@]} -gt 0 ]; then compopt -o nospace 2>/dev/null\n"
    "            else COMPREPLY=($(compgen -f -- \"$word\")); fi ;;\n"
    "    esac\n}\n"
    "complete -o filenames -F _kedge kedge\n";

static kg_status put_bash_keys(struct kg_str *out, struct kg_err *err)
{
    const struct kg_opt_row *row;

    KG_TRY(kg_str_puts(out, "_kedge_keys=\"", err));
    for (size_t i = 0; (row = kg_recipe_row(i)); i++)
        KG_TRY(kg_str_printf(out, err, "%s= ", row->key));
    KG_TRY(kg_str_puts(out, "preset=\"\n_kedge_values()\n{\n    case $1 in\n", err));
    for (size_t i = 0; (row = kg_recipe_row(i)); i++) {
        if (!choices_of(row))
            continue;
        KG_TRY(kg_str_printf(out, err, "        %s) values=\"", row->key));
        KG_TRY(put_choices(out, choices_of(row), ' ', err));
        KG_TRY(kg_str_puts(out, "\" ;;\n", err));
    }
    return kg_str_puts(out, "    esac\n}\n", err);
}

static kg_status put_bash_command(struct kg_str *out, const struct kg_command *c,
                                  struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "        %s) flags=\"--help", c->name));
    struct kg_flag_walk walk = {c->flags, NULL};
    for (const struct kg_flag *f; (f = kg_flag_next(&walk));)
        KG_TRY(kg_str_printf(out, err, " --%s", f->name));
    KG_TRY(kg_str_puts(out, "\" choices=\"", err));
    walk = (struct kg_flag_walk){c->flags, NULL};
    for (const struct kg_flag *f; (f = kg_flag_next(&walk));) {
        if (f->choices)
            KG_TRY(kg_str_printf(out, err, " --%s=%s", f->name, f->choices));
        if (f->choices && f->short_name)
            KG_TRY(kg_str_printf(out, err, " -%c=%s", f->short_name, f->choices));
    }
    return kg_str_puts(out, takes_keys(c) ? "\" keys=$_kedge_keys ;;\n" : "\" ;;\n", err);
}

static kg_status put_bash(struct kg_str *out, struct kg_err *err)
{
    KG_TRY(put_bash_keys(out, err));
    KG_TRY(kg_str_puts(out, BASH_HEAD, err));
    KG_TRY(kg_str_puts(out,
                       "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
                       "        COMPREPLY=($(compgen -W \"",
                       err));
    for (const struct kg_command *c = kg_commands; c->name; c++)
        KG_TRY(kg_str_printf(out, err, "%s ", c->name));
    KG_TRY(kg_str_puts(out,
                       "--help --version\" -- \"$word\"))\n        return\n    fi\n"
                       "    case ${COMP_WORDS[1]} in\n",
                       err));
    for (const struct kg_command *c = kg_commands; c->name; c++)
        KG_TRY(put_bash_command(out, c, err));
    KG_TRY(kg_str_puts(out, "    esac\n", err));
    return kg_str_puts(out, BASH_TAIL, err);
}

/* ---- zsh ---- */

static const char ZSH_TAIL[] =
    "    local before=$words[CURRENT-1]\n"
    "    if [[ $PREFIX == -*=* ]]; then before=${PREFIX%%=*}; fi\n"
    "    if [[ -n ${choices[$before]} ]]; then\n"
    "        [[ $PREFIX == -*=* ]] && compset -P '*='\n"
    "        compadd -- ${=choices[$before]}\n"
    "    elif [[ $PREFIX == -* ]]; then\n"
    "        _describe -o flag flags\n"
    "    elif (( with_keys )) && [[ $PREFIX == *=* ]]; then\n"
    "        local key=${PREFIX%%=*}\n"
    "        compset -P '*='\n"
    "        if [[ -n ${_kedge_values[$key]} ]]; then compadd -- "
    "${=_kedge_values[$key]}; else _files; fi\n"
    "    else\n"
    "        (( with_keys )) && _describe -t keys key _kedge_keys -S '='\n"
    "        _files\n"
    "    fi\n}\n"
    "if [[ $funcstack[1] == _kedge ]]; then _kedge \"$@\"; else compdef _kedge kedge; "
    "fi\n";

static kg_status put_zsh_keys(struct kg_str *out, struct kg_err *err)
{
    const struct kg_opt_row *row;

    KG_TRY(kg_str_puts(out, "typeset -ga _kedge_keys\n_kedge_keys=(\n", err));
    for (size_t i = 0; (row = kg_recipe_row(i)); i++) {
        KG_TRY(kg_str_printf(out, err, "    '%s:", row->key));
        KG_TRY(put_help(out, row->help, err));
        KG_TRY(kg_str_puts(out, "'\n", err));
    }
    KG_TRY(kg_str_printf(out, err, "    'preset:%s'\n", PRESET_HELP));
    KG_TRY(kg_str_puts(out, ")\ntypeset -gA _kedge_values\n_kedge_values=(\n", err));
    for (size_t i = 0; (row = kg_recipe_row(i)); i++) {
        if (!choices_of(row))
            continue;
        KG_TRY(kg_str_printf(out, err, "    %s '", row->key));
        KG_TRY(put_choices(out, choices_of(row), ' ', err));
        KG_TRY(kg_str_puts(out, "'\n", err));
    }
    return kg_str_puts(out, ")\n", err);
}

static kg_status put_zsh_choices(struct kg_str *out, const struct kg_flag *f,
                                 struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, " --%s '", f->name));
    KG_TRY(put_choices(out, f->choices, ' ', err));
    if (f->short_name) {
        KG_TRY(kg_str_printf(out, err, "' -%c '", f->short_name));
        KG_TRY(put_choices(out, f->choices, ' ', err));
    }
    return kg_str_putc(out, '\'', err);
}

static kg_status put_flag_help(struct kg_str *out, const struct kg_flag *f,
                               struct kg_err *err)
{
    struct kg_str help = {0};
    kg_status status = kg_flag_help(&help, f, err);

    if (status == KG_OK)
        status = put_help(out, kg_str_text(&help), err);
    kg_str_release(&help);
    return status;
}

static kg_status put_zsh_command(struct kg_str *out, const struct kg_command *c,
                                 struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "        %s) with_keys=%d flags=('--help:this help'",
                         c->name, takes_keys(c)));
    struct kg_flag_walk walk = {c->flags, NULL};
    for (const struct kg_flag *f; (f = kg_flag_next(&walk));) {
        KG_TRY(kg_str_printf(out, err, " '--%s:", f->name));
        KG_TRY(put_flag_help(out, f, err));
        KG_TRY(kg_str_putc(out, '\'', err));
    }
    KG_TRY(kg_str_puts(out, ") choices=(", err));
    walk = (struct kg_flag_walk){c->flags, NULL};
    for (const struct kg_flag *f; (f = kg_flag_next(&walk));)
        if (f->choices)
            KG_TRY(put_zsh_choices(out, f, err));
    return kg_str_puts(out, ") ;;\n", err);
}

static kg_status put_zsh(struct kg_str *out, struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, "#compdef kedge\n", err));
    KG_TRY(put_zsh_keys(out, err));
    KG_TRY(kg_str_puts(out,
                       "_kedge()\n{\n    local -a flags commands\n"
                       "    local -A choices\n"
                       "    local -i with_keys=0\n    commands=(\n",
                       err));
    for (const struct kg_command *c = kg_commands; c->name; c++) {
        KG_TRY(kg_str_printf(out, err, "        '%s:", c->name));
        KG_TRY(put_help(out, c->summary, err));
        KG_TRY(kg_str_puts(out, "'\n", err));
    }
    KG_TRY(kg_str_puts(out,
                       "    )\n    if (( CURRENT == 2 )); then _describe command "
                       "commands; return; fi\n    case $words[2] in\n",
                       err));
    for (const struct kg_command *c = kg_commands; c->name; c++)
        KG_TRY(put_zsh_command(out, c, err));
    KG_TRY(kg_str_puts(out, "    esac\n", err));
    return kg_str_puts(out, ZSH_TAIL, err);
}

/* ---- fish ---- */

static kg_status put_fish_line(struct kg_str *out, const char *what, const char *help,
                               struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "%s -d '", what));
    KG_TRY(put_help(out, help, err));
    return kg_str_puts(out, "'\n", err);
}

static kg_status put_fish_flag(struct kg_str *out, const struct kg_command *c,
                               const struct kg_flag *f, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err,
                         "complete -c kedge -n '__fish_seen_subcommand_from %s' -l %s",
                         c->name, f->name));
    if (f->short_name)
        KG_TRY(kg_str_printf(out, err, " -s %c", f->short_name));
    if (f->arg_name)
        KG_TRY(kg_str_puts(out, " -r", err));
    if (f->choices) {
        KG_TRY(kg_str_puts(out, " -f -a '", err));
        KG_TRY(put_choices(out, f->choices, ' ', err));
        KG_TRY(kg_str_putc(out, '\'', err));
    }
    KG_TRY(kg_str_puts(out, " -d '", err));
    KG_TRY(put_flag_help(out, f, err));
    return kg_str_puts(out, "'\n", err);
}

static kg_status put_fish_keys(struct kg_str *out, struct kg_err *err)
{
    const struct kg_opt_row *row;

    KG_TRY(kg_str_puts(out, "set -g __kedge_with_keys", err));
    for (const struct kg_command *c = kg_commands; c->name; c++) {
        if (takes_keys(c))
            KG_TRY(kg_str_printf(out, err, " %s", c->name));
    }
    KG_TRY(kg_str_putc(out, '\n', err));
    for (size_t i = 0; (row = kg_recipe_row(i)); i++) {
        KG_TRY(kg_str_printf(out, err,
                             "complete -c kedge -n '__fish_seen_subcommand_from "
                             "$__kedge_with_keys' -a '"));
        if (!choices_of(row))
            KG_TRY(kg_str_printf(out, err, "%s=", row->key));
        for (const char *p = choices_of(row); p;
             p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
            KG_TRY(
                kg_str_printf(out, err, "%s=%.*s ", row->key, (int)strcspn(p, "|"), p));
        KG_TRY(put_fish_line(out, "'", row->help, err));
    }
    return put_fish_line(out,
                         "complete -c kedge -n '__fish_seen_subcommand_from "
                         "$__kedge_with_keys' -a 'preset='",
                         PRESET_HELP, err);
}

static kg_status put_fish(struct kg_str *out, struct kg_err *err)
{
    struct kg_flag_walk walk;

    KG_TRY(kg_str_puts(out, "# fish completion for kedge\n", err));
    for (const struct kg_command *c = kg_commands; c->name; c++) {
        KG_TRY(kg_str_printf(
            out, err, "complete -c kedge -n __fish_use_subcommand -f -a %s", c->name));
        KG_TRY(put_fish_line(out, "", c->summary, err));
        walk = (struct kg_flag_walk){c->flags, NULL};
        for (const struct kg_flag *f; (f = kg_flag_next(&walk));)
            KG_TRY(put_fish_flag(out, c, f, err));
    }
    return put_fish_keys(out, err);
}

/* ---- the shells ---- */

static const struct shell {
    const char *name;
    kg_status (*put)(struct kg_str *out, struct kg_err *err);
} shells[] = {{"bash", put_bash}, {"zsh", put_zsh}, {"fish", put_fish}};

kg_status kg_cli_completion(struct kg_str *out, const char *shell, struct kg_err *err)
{
    size_t i;

    KG_TRY(kg_str_pick(&i, KG_EINVAL, "shell", shell, shells,
                       sizeof shells / sizeof *shells, sizeof *shells, err));
    return shells[i].put(out, err);
}
