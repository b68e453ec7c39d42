/* Flags: from argv into the targets of a table.
 *
 * --name VALUE, --name=VALUE, -x VALUE, and -- to end the flags. An error names the flag,
 * what was expected and what was found; an unknown flag gets the nearest one that exists.
 */
#include "cli/cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool takes_value(const struct kg_flag *f)
{
    return f->type != KG_FLAG_TRUE && f->type != KG_FLAG_FALSE;
}

static kg_status out_of_range(const struct kg_flag *f, const char *value,
                              const char *kind, struct kg_err *err)
{
    if (f->min == 0 && f->max == 0)
        return kg_fail(err, KG_EINVAL, "--%s: expected %s, found '%s'", f->name, kind,
                       value);
    if (f->max >= 1e15)
        return kg_fail(err, KG_EINVAL, "--%s: expected %s of at least %.17g, found '%s'",
                       f->name, kind, f->min, value);
    return kg_fail(err, KG_EINVAL,
                   "--%s: expected %s between %.17g and %.17g, found '%s'", f->name, kind,
                   f->min, f->max, value);
}

static bool in_range(const struct kg_flag *f, double x)
{
    return (f->min == 0 && f->max == 0) || (x >= f->min && x <= f->max);
}

static kg_status set_int(const struct kg_flag *f, const char *value, struct kg_err *err)
{
    char *end;
    errno = 0;
    long long x = strtoll(value, &end, 10);
    if (end == value || *end != 0 || errno != 0 || !in_range(f, (double)x))
        return out_of_range(f, value, "a whole number", err);
    *(int64_t *)f->target = x;
    return KG_OK;
}

static kg_status set_real(const struct kg_flag *f, const char *value, struct kg_err *err)
{
    char *end;
    double x = strtod(value, &end);
    if (end == value || *end != 0 || !isfinite(x) || !in_range(f, x))
        return out_of_range(f, value, "a number", err);
    *(double *)f->target = x;
    return KG_OK;
}

/* One of "a|b|c". */
static kg_status set_choice(const struct kg_flag *f, const char *value,
                            struct kg_err *err)
{
    size_t n = strlen(value);
    for (const char *c = f->choices; *c;) {
        size_t len = strcspn(c, "|");
        if (len == n && memcmp(c, value, n) == 0) {
            *(const char **)f->target = value;
            return KG_OK;
        }
        c += len + (c[len] == '|');
    }
    return kg_fail(err, KG_EINVAL, "--%s: expected one of %s, found '%s'", f->name,
                   f->choices, value);
}

static kg_status add_item(const struct kg_flag *f, const char *value, struct kg_err *err)
{
    struct kg_flag_list *list = f->target;
    if (list->n == KG_FLAG_LIST_MAX)
        return kg_fail(err, KG_EINVAL, "--%s: given more than %d times", f->name,
                       KG_FLAG_LIST_MAX);
    list->items[list->n++] = value;
    return KG_OK;
}

static kg_status set_value(const struct kg_flag *f, const char *value, struct kg_err *err)
{
    switch (f->type) {
    case KG_FLAG_TRUE:
    case KG_FLAG_FALSE:
        *(bool *)f->target = f->type == KG_FLAG_TRUE;
        return KG_OK;
    case KG_FLAG_INT:
        return set_int(f, value, err);
    case KG_FLAG_REAL:
        return set_real(f, value, err);
    case KG_FLAG_TEXT:
        *(const char **)f->target = value;
        return KG_OK;
    case KG_FLAG_CHOICE:
        return set_choice(f, value, err);
    case KG_FLAG_LIST:
        return add_item(f, value, err);
    }
    return KG_OK;
}

/* The flag that arg names, "--name", "--name=value" or "-x".   *value: behind '=', or
 * NULL */
static const struct kg_flag *find_flag(const struct kg_flag *flags, const char *arg,
                                       const char **value)
{
    *value = NULL;
    if (arg[1] != '-') {
        for (const struct kg_flag *f = flags; f->name; f++)
            if (f->short_name && f->short_name == arg[1] && arg[2] == 0)
                return f;
        return NULL;
    }
    size_t n = strcspn(arg + 2, "=");
    for (const struct kg_flag *f = flags; f->name; f++)
        if (strlen(f->name) == n && memcmp(f->name, arg + 2, n) == 0) {
            *value = arg[2 + n] ? arg + 3 + n : NULL;
            return f;
        }
    return NULL;
}

static kg_status unknown_flag(const struct kg_flag *flags, const char *arg,
                              struct kg_err *err)
{
    size_t n = 0;
    while (flags[n].name)
        n++;
    const char *near = arg[1] == '-' && n > 0
                           ? kg_str_nearest(arg + 2, &flags[0].name, n, sizeof *flags)
                           : NULL;
    return kg_fail(err, KG_EINVAL, "unknown flag %s%s%s%s", arg,
                   near ? ", did you mean --" : "", near ? near : "", near ? "?" : "");
}

/* argv[*i] is a flag; takes the next argument too when it is the flag's value. */
static kg_status parse_flag(const struct kg_flag *flags, int argc, char **argv, int *i,
                            struct kg_err *err)
{
    const char *value;
    const struct kg_flag *f = find_flag(flags, argv[*i], &value);
    if (f == NULL)
        return unknown_flag(flags, argv[*i], err);
    if (value && !takes_value(f))
        return kg_fail(err, KG_EINVAL, "--%s takes no value, found '%s'", f->name, value);
    if (!takes_value(f))
        return set_value(f, NULL, err);
    if (value == NULL) {
        if (*i + 1 == argc)
            return kg_fail(err, KG_EINVAL, "--%s: expected a value (%s), found the end",
                           f->name, f->arg_name);
        value = argv[++*i];
    }
    return set_value(f, value, err);
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
    int n = 0;
    bool flags_ended = false;
    *help = asks_for_help(*argc, argv);
    if (*help)
        return KG_OK;
    for (int i = 0; i < *argc; i++) {
        if (!flags_ended && strcmp(argv[i], "--") == 0)
            flags_ended = true;
        else if (!flags_ended && argv[i][0] == '-' && argv[i][1] != 0)
            KG_TRY(parse_flag(c->flags, *argc, argv, &i, err));
        else
            argv[n++] = argv[i];
    }
    if (c->max_args >= 0 && n > c->max_args)
        return kg_fail(err, KG_EINVAL, "unexpected argument '%s'", argv[c->max_args]);
    *argc = n;
    return KG_OK;
}

kg_status kg_flag_spell(struct kg_str *out, const struct kg_flag *f, struct kg_err *err)
{
    if (f->short_name)
        KG_TRY(kg_str_printf(out, err, "-%c, ", f->short_name));
    return kg_str_printf(out, err, "--%s%s%s", f->name, takes_value(f) ? " " : "",
                         takes_value(f) ? f->arg_name : "");
}
