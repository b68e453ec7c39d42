/* A clause is a list of atoms, of which at least one must hold; a text is a list of
 * clauses, all of which must hold. Keys are looked up as texts, already checked by rows.
 */
#include "data/needs.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 128 };

/* "KEY", or "KEY", an operator and "VALUES"; "@TEXT:KEYS" is split in the same way */
struct atom {
    const char *key, *values;
    size_t key_n, values_n;
    char op; /* 0: the key is alone */
};

/* Reads an atom.   returns what follows it: '|', '&' or the end */
static const char *read_atom(struct atom *a, const char *at)
{
    const size_t n = strcspn(at, "|&");

    *a = (struct atom){.key = at,
                       .key_n = *at == '@' ? strcspn(at, ":") : strcspn(at, "=!>~|&")};
    a->op = a->key_n < n ? at[a->key_n] : '\0';
    a->values = at + a->key_n + (a->op != '\0');
    a->values_n = n - (size_t)(a->values - at);
    return at + n;
}

static const char *text_of(const char *key, size_t n, const struct kg_needs_in *in)
{
    char full[KEY_BYTES];

    snprintf(full, sizeof full, "%s%.*s", in->before, (int)n, key);
    return in->config ? kg_config_text(in->config, full) : in->text(in->user, full);
}

/* Whether an item of the list "a,b*" (n bytes) equals the text or, with *, begins it. */
static bool is_among(const char *values, size_t n, const char *text, size_t text_n)
{
    for (const char *end = values + n; values <= end; values++) {
        size_t one = 0;

        while (values + one < end && values[one] != ',')
            one++;
        const bool begins = one > 0 && values[one - 1] == '*';
        const size_t same = one - begins;

        if ((begins ? same <= text_n : same == text_n) && memcmp(values, text, same) == 0)
            return true;
        values += one;
    }
    return false;
}

/* Whether a list has an item NAME=VALUE, or NAME=VALUE MORE, with a value of the atom. */
static bool names(const char *list, const struct atom *a)
{
    for (const char *at = strchr(list, '='); at; at = strchr(at, '=')) {
        at++;
        if (is_among(a->values, a->values_n, at, strcspn(at, " \n")))
            return true;
        at += strcspn(at, "\n");
    }
    return false;
}

static bool holds(const struct atom *a, const struct kg_needs_in *in)
{
    if (*a->key == '@')
        return in->is_so(in->user, a->key + 1);
    const char *text = text_of(a->key, a->key_n, in);
    switch (a->op) {
    case '=':
        return is_among(a->values, a->values_n, text, strlen(text));
    case '!':
        return !is_among(a->values, a->values_n, text, strlen(text));
    case '>':
        return strtod(text, NULL) > strtod(a->values, NULL);
    case '~':
        return names(text, a);
    default:
        return *text;
    }
}

const char *kg_needs_next(const char **from, const struct kg_needs_in *in)
{
    for (const char *clause; from && *from && **from;) {
        const char *at = clause = *from;
        bool any = false;

        for (struct atom a; *at && *at != '&'; at += *at == '|') {
            at = read_atom(&a, at);
            any = any || holds(&a, in);
        }
        *from = at + (*at == '&');
        if (!any)
            return clause;
    }
    return NULL;
}

static void KG_PRINTF(3, 4) append(char *text, size_t bytes, const char *fmt, ...)
{
    const size_t n = strlen(text);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text + n, bytes - n, fmt, ap);
    va_end(ap);
}

static void say_atom(char *text, size_t bytes, const struct atom *a)
{
    static const struct {
        char op;
        const char *words;
    } words[] = {{'!', " other than "}, {'>', " above "}, {'~', " with "}, {'=', " "}};

    if (*a->key == '@') {
        append(text, bytes, "%.*s", (int)a->key_n - 1, a->key + 1);
        return;
    }
    append(text, bytes, "%.*s", (int)a->key_n, a->key);
    for (size_t i = 0; a->key_n * a->values_n > 0 && i < sizeof words / sizeof *words;
         i++)
        if (words[i].op == a->op)
            append(text, bytes, "%s", words[i].words);
    /* "a,b,c" becomes "a, b or c" */
    for (size_t i = 0; i < a->values_n; i++) {
        const bool last = !memchr(a->values + i + 1, ',', a->values_n - i - 1);

        if (a->values[i] != ',')
            append(text, bytes, "%c", a->values[i]);
        else
            append(text, bytes, "%s", last ? " or " : ", ");
    }
}

/* Whether the atom requires an empty key, or an action other than its values. */
static bool is_without(const struct atom *a)
{
    return (a->op == '=' && a->values_n == 0) || (a->op == '!' && a->key_n == 0);
}

void kg_needs_say(char *text, size_t bytes, const char *clause)
{
    bool with = false;

    *text = '\0';
    for (struct atom a; *clause && *clause != '&'; clause += *clause == '|') {
        clause = read_atom(&a, clause);
        append(text, bytes, "%s%s", *text ? " or " : "",
               is_without(&a) ? "without "
               : with         ? ""
                              : "with ");
        with = !is_without(&a);
        say_atom(text, bytes, &a);
    }
}

static bool any_of(const char *keys, size_t n, const struct kg_needs_in *in,
                   bool (*is)(const struct kg_config *config, const char *key))
{
    char full[KEY_BYTES];

    for (size_t i = 0, one; i < n; i += one + 1) {
        const char *comma = memchr(keys + i, ',', n - i);

        one = comma ? (size_t)(comma - keys) - i : n - i;
        snprintf(full, sizeof full, "%s%.*s", in->before, (int)one, keys + i);
        if (is(in->config, full))
            return true;
    }
    return false;
}

bool kg_needs_any(const char *clause, const struct kg_needs_in *in,
                  bool (*is)(const struct kg_config *config, const char *key))
{
    bool any = false;

    for (struct atom a; *clause && *clause != '&'; clause += *clause == '|') {
        clause = read_atom(&a, clause);
        any = any || (*a.key == '@' ? any_of(a.values, a.values_n, in, is)
                                    : any_of(a.key, a.key_n, in, is));
    }
    return any;
}
