/* Flags: from argv into the targets of a table: --name VALUE, --name=VALUE, -x VALUE,
 * a.b=VALUE where the table allows it, and -- to end flags. Errors name the flag, what
 * was expected and found, and the nearest flag if it is unknown. After all of argv is
 * read, a flag that lacks what its row needs (data/needs.h) is refused. */
#include "cli/cli.h"

#include "data/needs.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { MAX_FLAGS = 128 };

struct given {
    struct kg_flag_keys flags; /* with values */
    const char *action, *argument;
};

const struct kg_flag *kg_flag_next(struct kg_flag_walk *walk)
{
    const struct kg_flag *f = walk->next;

    if (f && !f->name && walk->back) {
        f = walk->back;
        walk->back = NULL;
    }
    if (f && f->group) {
        walk->back = f + 1;
        f = f->group;
    }
    walk->next = f && f->name ? f + 1 : f;
    return f && f->name ? f : NULL;
}

static bool takes_value(const struct kg_flag *f) { return f->type != KG_OPT_BOOL; }

static kg_status add_item(const struct kg_flag *f, const char *value, struct kg_err *err)
{
    struct kg_flag_list *list = f->target;
    if (list->n == KG_FLAG_LIST_MAX)
        return kg_fail(err, KG_EINVAL, "--%s: given more than %d times", f->name,
                       KG_FLAG_LIST_MAX);
    list->items[list->n++] = value;
    return KG_OK;
}

static void keep(struct kg_flag_keys *keys, const struct kg_flag *f, const char *value)
{
    int i = 0;

    while (i < keys->n && keys->flags[i] != f)
        i++;
    assert(i < KG_FLAG_KEYS_MAX);
    keys->flags[i] = f;
    keys->texts[i] = value;
    keys->n = i == keys->n ? i + 1 : keys->n;
}

static kg_status set_value(struct given *given, const struct kg_flag *f,
                           const char *value, struct kg_err *err)
{
    char key[64];
    struct kg_opt_row row = {.key = key,
                             .type = f->type,
                             .min = f->min,
                             .max = f->max,
                             .choices = f->choices,
                             .or_zero = f->or_zero};

    keep(&given->flags, f, value);
    if (f->type == KG_OPT_LIST)
        return add_item(f, value, err);
    snprintf(key, sizeof key, "--%s", f->name);
    if (f->type != KG_OPT_STRING || f->choices) /* paths may have any bytes */
        KG_TRY(kg_opt_check(&row, value, NULL, err));
    if (f->key)
        keep(f->target, f, value);
    else
        kg_opt_put(f->target, &row, value);
    return KG_OK;
}

/* The flag that arg names: "--name", "--name=value" or "-x".   *value: text after '=', or
 * NULL; walk: left after the flag */
static const struct kg_flag *find_flag(struct kg_flag_walk *walk, const char *arg,
                                       const char **value)
{
    size_t n = strcspn(arg + 2, "=");
    bool is_short = arg[1] != '-';

    *value = NULL;
    for (const struct kg_flag *f; (f = kg_flag_next(walk));) {
        if (is_short && f->short_name && f->short_name == arg[1] && arg[2] == 0)
            return f;
        if (is_short || strlen(f->name) != n || memcmp(f->name, arg + 2, n) != 0)
            continue;
        *value = arg[2 + n] ? arg + 3 + n : NULL;
        return f;
    }
    return NULL;
}

/* If the command accepts keys, the user may have meant a key. */
static kg_status unknown_flag(const struct kg_command *c, const char *arg,
                              struct kg_err *err)
{
    struct kg_flag_walk walk = {c->flags, NULL};
    const bool has_keys = c->usage && strstr(c->usage, "section.key=value");
    const char *names[MAX_FLAGS], *near = NULL;
    size_t n = 0;

    for (const struct kg_flag *f; n < MAX_FLAGS && (f = kg_flag_next(&walk));)
        names[n++] = f->name;
    if (arg[1] == '-')
        near = kg_str_nearest(arg + 2, names, n, sizeof *names);
    if (!near && has_keys)
        return kg_fail(err, KG_EINVAL,
                       "unknown flag %s; a recipe's keys have no dashes: model.path=DIR",
                       arg);
    return kg_fail(err, KG_EINVAL, "unknown flag %s%s%s%s", arg,
                   near ? ", did you mean --" : "", near ? near : "", near ? "?" : "");
}

/* Parses the flag argv[*i], with the next argument if that is its value. */
static kg_status parse_flag(struct given *given, const struct kg_command *c, int argc,
                            char **argv, int *i, struct kg_err *err)
{
    struct kg_flag_walk walk = {c->flags, NULL};
    const char *value;
    const struct kg_flag *f = find_flag(&walk, argv[*i], &value);
    if (f == NULL)
        return unknown_flag(c, argv[*i], err);
    if (value && !takes_value(f))
        return kg_fail(err, KG_EINVAL, "--%s takes no value, found '%s'", f->name, value);
    if (!takes_value(f))
        return set_value(given, f, f->clears ? "false" : "true", err);
    if (value == NULL) {
        if (*i + 1 == argc)
            return kg_fail(
                err, KG_EINVAL,
                "--%s: expected a value (%s), found the end of the command line", f->name,
                f->arg_name);
        value = argv[++*i];
    }
    return set_value(given, f, value, err);
}

/* The flag that the key in "a.b=VALUE" sets; NULL: none.   *value: text after '=' */
static const struct kg_flag *find_key(struct kg_flag_walk *walk, const char *arg,
                                      const char **value)
{
    const size_t n = strcspn(arg, "=");

    for (const struct kg_flag *f; arg[n] && (f = kg_flag_next(walk));)
        if (f->also && strlen(f->also) == n && memcmp(f->also, arg, n) == 0) {
            *value = arg + n + 1;
            return f;
        }
    return NULL;
}

static bool takes_keys(const struct kg_command *c)
{
    return c->max_args < 0 || (c->usage && strstr(c->usage, "section.key=value"));
}

/* "section.key=..." */
static bool is_key(const char *arg)
{
    const size_t n = strspn(arg, "abcdefghijklmnopqrstuvwxyz_.");

    return n > 0 && arg[0] != '.' && arg[n] == '=' && memchr(arg, '.', n);
}

/* Refuses a key in a command without a recipe, and suggests a flag of the same name. */
static kg_status refuse_key(const struct kg_command *c, const char *arg,
                            struct kg_err *err)
{
    const size_t end = strcspn(arg, "=");
    const bool is_model = strncmp(arg, "model.path=", end + 1) == 0;
    const char *own = is_model ? "model" : arg + strcspn(arg, ".") + 1;
    struct kg_flag_walk walk = {c->flags, NULL};
    const char *value;
    char name[64];

    snprintf(name, sizeof name, "--%.*s", (int)strcspn(own, "="), own);
    for (char *at = name; *at; at++)
        *at = *at == '_' ? '-' : *at;
    const struct kg_flag *f = find_flag(&walk, name, &value);

    return kg_fail(err, KG_EINVAL,
                   "unexpected argument '%.200s': this command reads no recipe%s%s%s%s%s",
                   arg, f ? "; did you mean --" : "", f ? f->name : "",
                   f && takes_value(f) ? " " : "",
                   f && takes_value(f) ? arg + end + 1 : "", f ? "?" : "");
}

/* Parses argv[*i] (and the next argument if it is a value) as a flag or its key.
 * *is_other: it is neither, and nothing was parsed */
static kg_status parse_one(bool *is_other, struct given *given,
                           const struct kg_command *c, int argc, char **argv, int *i,
                           struct kg_err *err)
{
    struct kg_flag_walk walk = {c->flags, NULL};
    const char *value = NULL;

    *is_other = false;
    if (argv[*i][0] == '-' && argv[*i][1] != 0)
        return parse_flag(given, c, argc, argv, i, err);
    const struct kg_flag *f = find_key(&walk, argv[*i], &value);
    *is_other = f == NULL;
    if (!f && !takes_keys(c) && is_key(argv[*i]))
        return refuse_key(c, argv[*i], err);
    return f ? set_value(given, f, value, err) : KG_OK;
}

static const char *text_of(const void *user, const char *key)
{
    const struct given *given = user;

    for (int i = 0; i < given->flags.n && *key == '-'; i++)
        if (strcmp(given->flags.flags[i]->name, key + 2) == 0)
            return given->flags.texts[i];
    return *key == '-' ? "" : *key ? given->argument : given->action;
}

static kg_status check_needs(const struct given *given, const char *name,
                             const char *needs, struct kg_err *err)
{
    const struct kg_needs_in in = {.before = "", .text = text_of, .user = given};
    const char *clause = kg_needs_next(&needs, &in);
    char text[200];

    if (!clause)
        return KG_OK;
    kg_needs_say(text, sizeof text, clause);
    return kg_fail(err, KG_EINVAL, "--%s: has an effect only %s%s%s", name, text,
                   *clause == '=' ? ", found " : "",
                   *clause != '='   ? ""
                   : *given->action ? given->action
                                    : "none of them");
}

/* Checks the needs of each given flag, of its group, and of the command if the flag is
 * not an action. */
static kg_status check(const struct given *given, const struct kg_command *c,
                       struct kg_err *err)
{
    struct kg_flag_walk walk = {c->flags, NULL};

    for (const struct kg_flag *f; (f = kg_flag_next(&walk));) {
        int i = 0;

        while (i < given->flags.n && given->flags.flags[i] != f)
            i++;
        if (i == given->flags.n)
            continue;
        if (!f->needs || !kg_char_in("=!", *f->needs))
            KG_TRY(check_needs(given, f->name, c->needs, err));
        KG_TRY(check_needs(given, f->name, f->needs, err));
        if (walk.back)
            KG_TRY(check_needs(given, f->name, walk.back[-1].needs, err));
    }
    return KG_OK;
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

kg_status kg_flags_parse(const struct kg_command *c, int *argc, char **argv, bool *help,
                         struct kg_err *err)
{
    struct given given = {0};
    int n = 0;
    bool flags_ended = false;
    *help = asks_for_help(*argc, argv);
    if (*help)
        return KG_OK;
    for (int i = 0; i < *argc; i++) {
        bool is_other = flags_ended;
        if (!flags_ended && strcmp(argv[i], "--") == 0)
            flags_ended = true;
        else if (!flags_ended)
            KG_TRY(parse_one(&is_other, &given, c, *argc, argv, &i, err));
        if (is_other)
            argv[n++] = argv[i];
    }
    if (c->max_args >= 0 && n > c->max_args)
        return kg_fail(err, KG_EINVAL, "unexpected argument '%s'", argv[c->max_args]);
    *argc = n;
    given.argument = n > 0 ? argv[0] : "";
    given.action = c->action ? *c->action : given.argument;
    return check(&given, c, err);
}

kg_status kg_flag_spell(struct kg_str *out, const struct kg_flag *f, struct kg_err *err)
{
    if (f->short_name)
        KG_TRY(kg_str_printf(out, err, "-%c, ", f->short_name));
    if (f->also)
        KG_TRY(kg_str_printf(out, err, "%s=%s, ", f->also, f->arg_name));
    return kg_str_printf(out, err, "--%s%s%s", f->name, takes_value(f) ? " " : "",
                         takes_value(f) ? f->arg_name : "");
}

kg_status kg_flag_help(struct kg_str *out, const struct kg_flag *f, struct kg_err *err)
{
    const char *needs = f->needs && *f->needs == '=' ? f->needs + 1 : "";
    const size_t n = *needs == '*' ? 0 : strcspn(needs, "&");

    for (size_t i = 0; i < n; i++)
        KG_TRY(needs[i] == ',' ? kg_str_puts(out, ", ", err)
                               : kg_str_putc(out, needs[i], err));
    return kg_str_printf(out, err, "%s%s", n ? ": " : "", f->help);
}
