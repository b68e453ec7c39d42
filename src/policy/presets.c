/* Presets: the files of recipes/presets/ as rows, and look-ups in them. The program
 * embeds both files. The first look-up cuts their text in place into names, keys and
 * values, which live as long as the process. The files use only `NAME:`, then lines `
 * field: text` and ` section: {key: value, ...}` (asserted).
 *
 * A row has the values of its preset, then those of its base that it does not give, and
 * so on. Nothing here knows what a key means: an algorithm takes the keys that algorithms
 * have, like keys of a user; the rest is for the run. */
#include "policy/presets.h"

#include "base/str.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PRESETS = 160, MAX_VALUES = 4096, MAX_KEY_BYTES = 40 };

__asm__(".pushsection .data\n"
        "kg_preset_methods: .incbin \"recipes/presets/methods.yaml\"\n.byte 0\n"
        "kg_preset_recipes: .incbin \"recipes/presets/published.yaml\"\n.byte 0\n"
        ".popsection");
/* hidden: addresses bypass the GOT, which on aarch64 has one entry per section */
__attribute__((visibility("hidden"))) extern char kg_preset_methods[],
    kg_preset_recipes[];

static struct kg_preset rows[MAX_PRESETS];
static size_t n_rows;
static struct kg_preset_value values[MAX_VALUES]; /* of all rows; {0} ends a list */
static size_t n_values;
static char keys[MAX_VALUES][MAX_KEY_BYTES];

static const struct kg_preset *named(const char *name)
{
    for (size_t i = 0; i < n_rows; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

/* ---- the files ---- */

/* Adds a value to the newest row, whose list ends at n_values, or replaces the key's. */
static void put_value(const char *key, const char *value)
{
    size_t i = (size_t)(rows[n_rows - 1].values - values);

    while (i < n_values && strcmp(values[i].key, key) != 0)
        i++;
    if (i == n_values)
        values[n_values++].key = key;
    assert(n_values < MAX_VALUES);
    values[i].value = value;
    values[i].from = rows[n_rows - 1].name;
}

/* *text <- the text at *at up to one of `ends`, which is returned; *at moves past it */
static char cut(char **text, char **at, const char *ends)
{
    *at += strspn(*at, " \n");
    if (**at == '"')
        ends = "\"", ++*at;
    *text = *at;
    *at += strcspn(*at, ends);
    char end = **at;
    assert(end);
    *(*at)++ = '\0';
    return end;
}

static void read_section(char **at, const char *section)
{
    char *key, *value, end;

    do {
        cut(&key, at, ":");
        end = cut(&value, at, ",}");
        snprintf(keys[n_values], MAX_KEY_BYTES, "%s.%s", section, key);
        put_value(keys[n_values], value);
    } while (end == ',');
}

static void put_field(struct kg_preset *row, const char *field, const char *text)
{
    const struct kg_preset *other = named(text);

    assert(other || (*field != 'l' && *field != 'b'));
    if (strcmp(field, "like") == 0) {
        row->base = other->base, row->help = other->help, row->source = other->source;
        for (const struct kg_preset_value *v = other->values; v->key; v++)
            if (v->from == other->name)
                put_value(v->key, v->value);
    } else if (strcmp(field, "base") == 0) {
        row->base = text;
        row->source = row->source ? row->source : other->source;
    } else {
        assert(strcmp(field, "help") == 0 || strcmp(field, "source") == 0);
        *(*field == 'h' ? &row->help : &row->source) = text;
    }
}

/* The newest row has all its own values; adds those of its base. */
static void end_row(void)
{
    const char *base = n_rows > 0 ? rows[n_rows - 1].base : NULL;

    for (const struct kg_preset_value *v = base ? named(base)->values : NULL; v && v->key;
         v++)
        if (!kg_preset_get(&rows[n_rows - 1], v->key))
            values[n_values++] = *v;
    assert(n_values + 1 < MAX_VALUES);
}

static void read_file(char *at, enum kg_preset_kind kind)
{
    char *name, *text;

    for (; *at; at += strspn(at, "\n")) {
        bool top = *at != ' ';

        if (*at == '#') {
            at += strcspn(at, "\n");
            continue;
        }
        cut(&name, &at, ":");
        if (top) {
            end_row();
            assert(n_rows < MAX_PRESETS && !named(name));
            rows[n_rows++] = (struct kg_preset){
                .name = name, .kind = kind, .values = &values[++n_values]};
        } else if (at[1] == '{') {
            at += 2;
            read_section(&at, name);
        } else {
            cut(&text, &at, "\n");
            put_field(&rows[n_rows - 1], name, text);
        }
    }
}

static void read_files(void)
{
    read_file(kg_preset_methods, KG_PRESET_METHOD);
    read_file(kg_preset_recipes, KG_PRESET_RECIPE);
    end_row();
}

static void load(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, read_files);
}

/* ---- look-ups ---- */

size_t kg_preset_count(void)
{
    load();
    return n_rows;
}

const struct kg_preset *kg_preset_at(size_t i)
{
    return i < kg_preset_count() ? &rows[i] : NULL;
}

const char *kg_preset_get(const struct kg_preset *preset, const char *key)
{
    for (const struct kg_preset_value *v = preset->values; v->key; v++)
        if (strcmp(v->key, key) == 0)
            return v->value;
    return NULL;
}

kg_status kg_preset_apply(struct kg_algo *algo, const struct kg_preset *preset,
                          struct kg_err *err)
{
    for (size_t i = 0; i < kg_algo_n_keys(); i++) {
        const char *value = kg_preset_get(preset, kg_algo_key(i));

        if (value)
            KG_TRY(kg_algo_set(algo, kg_algo_key(i), value, err));
    }
    return KG_OK;
}

const char *kg_preset_kind_name(enum kg_preset_kind kind)
{
    return kind == KG_PRESET_METHOD ? "method" : "recipe";
}

/* Lists only the names of methods, because recipes are many; the command lists them. */
static kg_status unknown(const char *name, struct kg_err *err)
{
    struct kg_str names = {.max = KG_ERR_MESSAGE_BYTES};
    kg_status status = KG_OK;
    const char *near = NULL;
    size_t best = 4;

    for (size_t i = 0; i < kg_preset_count(); i++) {
        const struct kg_preset *p = kg_preset_at(i);

        if (kg_str_distance(name, p->name) < best)
            best = kg_str_distance(name, p->name), near = p->name;
        if (p->kind == KG_PRESET_METHOD && status == KG_OK)
            status = kg_str_printf(&names, err, "%s%s", i > 0 ? ", " : "", p->name);
    }
    status = kg_fail(err, KG_ENOTFOUND,
                     "algo.preset: found '%s'%s%s%s; expected a recipe (`kedge presets`) "
                     "or one of %s",
                     name, near ? ", nearest is '" : "", near ? near : "",
                     near ? "'" : "", kg_str_text(&names));
    kg_str_release(&names);
    return status;
}

kg_status kg_preset_find(const struct kg_preset **preset, const char *name,
                         struct kg_err *err)
{
    load();
    *preset = named(name);
    return *preset ? KG_OK : unknown(name, err);
}
