/* Completion for bash and zsh, written from the tables of commands and of recipe keys:
 * commands, flags, the choices of a flag, section.key= and its choices.
 *
 * Both shells get the same script, which does not run kedge; zsh reads it through its
 * bashcompinit, for which a word with = is one word. A word that is neither a flag nor a
 * key is completed as a file. */
#include "cli/cli.h"

#include "recipe/options.h"

#include <string.h>

/* Whether the command accepts section.key=value. */
static bool takes_keys(const struct kg_command *c)
{
    return strstr(c->usage, "section.key=value") != NULL;
}

/* "a|b|c" as "a b c". */
static kg_status put_choices(struct kg_str *out, const char *choices, struct kg_err *err)
{
    for (const char *p = choices; *p; p++)
        KG_TRY(kg_str_putc(out, *p == '|' ? ' ' : *p, err));
    return KG_OK;
}

/* The choices of a key; NULL: none. */
static const char *choices_of(const struct kg_opt_row *row)
{
    return row->type == KG_OPT_BOOL && !row->choices ? "true|false" : row->choices;
}

static const char HEAD[] =
    "[ -z \"$ZSH_VERSION\" ] || { autoload -U +X bashcompinit && bashcompinit; }\n"
    "_kedge()\n{\n"
    "    local word=${COMP_WORDS[COMP_CWORD]} flags= keys= values= choices=\n"
    "    local before=${COMP_WORDS[COMP_CWORD-1]} one lead=\n"
    "    # = parts words for readline: the whole word stands in the line\n"
    "    [ -z \"$COMP_LINE\" ] || { word=${COMP_LINE:0:$COMP_POINT}; word=${word##*[ "
    "\t]}; }\n";

static const char TAIL[] =
    "    # after a flag with choices, or after its =\n"
    "    case $word in -*=*) before=${word%%=*} lead=${word%%=*}= word=${word#*=} ;; "
    "esac\n"
    "    for one in $choices; do\n"
    "        [ \"$before\" = \"${one%%=*}\" ] || continue\n"
    "        one=${one#*=}\n"
    "        COMPREPLY=($(compgen -W \"${one//|/ }\" -- \"$word\"))\n"
    "        [ -z \"$ZSH_VERSION\" ] || COMPREPLY=(\"${COMPREPLY[@]/#/$lead}\")\n"
    "        return\n"
    "    done\n"
    "    case $word in\n"
    "        -*) COMPREPLY=($(compgen -W \"$flags\" -- \"$word\")) ;;\n"
    "        *=*) _kedge_values \"${word%%=*}\"\n"
    "            if [ -n \"$values\" ]; then COMPREPLY=($(compgen -W \"$values\" -- "
    "\"${word#*=}\"))\n"
    "            else COMPREPLY=($(compgen -f -- \"${word#*=}\")); fi\n"
    "            [ -z \"$ZSH_VERSION\" ] ||\n"
    "                COMPREPLY=(\"${COMPREPLY[@]/#/${word%%=*}=}\") ;;\n"
    "        *) COMPREPLY=($(compgen -W \"$keys\" -- \"$word\"))\n"
    "            if [ ${#COMPREPLY[@]} -gt 0 ]; then compopt -o nospace 2>/dev/null\n"
    "            else COMPREPLY=($(compgen -f -- \"$word\")); fi ;;\n"
    "    esac\n}\n"
    "complete -o filenames -F _kedge kedge\n";

static kg_status put_keys(struct kg_str *out, struct kg_err *err)
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
        KG_TRY(put_choices(out, choices_of(row), err));
        KG_TRY(kg_str_puts(out, "\" ;;\n", err));
    }
    return kg_str_puts(out, "    esac\n}\n", err);
}

static kg_status put_command(struct kg_str *out, const struct kg_command *c,
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

static kg_status put_script(struct kg_str *out, struct kg_err *err)
{
    KG_TRY(put_keys(out, err));
    KG_TRY(kg_str_puts(out, HEAD, err));
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
        KG_TRY(put_command(out, c, err));
    KG_TRY(kg_str_puts(out, "    esac\n", err));
    return kg_str_puts(out, TAIL, err);
}

kg_status kg_cli_completion(struct kg_str *out, const char *shell, struct kg_err *err)
{
    static const char *const shells[] = {"bash", "zsh"};
    size_t i;

    KG_TRY(kg_str_pick(&i, KG_EINVAL, "shell", shell, shells,
                       sizeof shells / sizeof *shells, sizeof *shells, err));
    return put_script(out, err);
}
