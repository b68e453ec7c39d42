/* Selects which matrices of a model have adapters, with which rank and alpha: matches a
 * recipe or adapter_config.json with the names of the model's modules. Settings are
 * stored as given, so they are written back unchanged. For each matrix they are applied
 * in PEFT's order: excluded, a target, in a selected layer; then the first pattern of
 * ranks and of alphas that matches. A setting that matches nothing is an error, because
 * it is probably a typo. */
#include "model/model_internal.h"

#include "text/pattern.h"

#include <stdio.h>
#include <string.h>

/* ---- settings ---- */

kg_status kg_lora_add_target(struct kg_lora *l, const char *name, const char *what,
                             struct kg_err *err)
{
    const size_t len = strlen(name);

    if (len == 0 || len >= KG_LORA_NAME)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected names of 1 to %d bytes, found '%.60s'", what,
                       KG_LORA_NAME - 1, name);
    for (int i = 0; i < l->n_targets; i++)
        if (strcmp(l->target[i], name) == 0)
            return kg_fail(err, KG_EINVAL, "%s: expected each name once, found %s twice",
                           what, name);
    if (l->n_targets == KG_LORA_TARGETS)
        return kg_fail(err, KG_EINVAL, "%s: expected at most %d names, found more", what,
                       KG_LORA_TARGETS);
    memcpy(l->target[l->n_targets++], name, len + 1);
    return KG_OK;
}

/* The key of a kind of rule, and how its text is matched. */
static const struct {
    const char *key;
    bool is_pattern;
    enum kg_pattern_fit fit;
} kinds[] = {
    [KG_LORA_TARGET_RE] = {"target_modules", true, KG_PATTERN_WHOLE},
    [KG_LORA_EXCLUDE] = {"exclude_modules", false, KG_PATTERN_END},
    [KG_LORA_EXCLUDE_RE] = {"exclude_modules", true, KG_PATTERN_WHOLE},
    [KG_LORA_LAYER] = {"layers_to_transform", false, KG_PATTERN_END},
    [KG_LORA_RANK] = {"rank_pattern", true, KG_PATTERN_END},
    [KG_LORA_ALPHA] = {"alpha_pattern", true, KG_PATTERN_END},
};

kg_status kg_lora_add_rule(struct kg_lora *l, enum kg_lora_kind kind, const char *text,
                           double value, const char *what, struct kg_err *err)
{
    const size_t bytes = strlen(text) + 1, sum = (size_t)l->n_text + bytes;

    if (l->n_rules == KG_LORA_RULES)
        return kg_fail(
            err, KG_EINVAL,
            "%s: key '%s': expected at most %d names and patterns in the file, "
            "found one more, '%.60s'",
            what, kinds[kind].key, KG_LORA_RULES, text);
    if (sum > sizeof l->text)
        return kg_fail(err, KG_EINVAL,
                       "%s: key '%s': expected names and patterns of at most %zu bytes "
                       "together, found %zu up to this one",
                       what, kinds[kind].key, sizeof l->text, sum);
    l->rule[l->n_rules++] = (struct kg_lora_rule){kind, l->n_text, value};
    memcpy(l->text + l->n_text, text, bytes);
    l->n_text += (int32_t)bytes;
    return KG_OK;
}

int kg_lora_count(const struct kg_lora *l, enum kg_lora_kind kind)
{
    int n = 0;

    for (int i = 0; i < l->n_rules; i++)
        n += l->rule[i].kind == kind;
    return n;
}

/* ---- names ---- */

/* "model.layers.3.self_attn.q_proj.weight": q_proj, of *n bytes; NULL: not in a layer */
static const char *module_of(size_t *n, const struct kg_param *p)
{
    const size_t end = kg_module_bytes(p);
    size_t begin = end;

    if (!p->is_product || strncmp(p->name, "model.layers.", 13) != 0)
        return NULL;
    while (p->name[begin - 1] != '.')
        begin--;
    *n = end - begin;
    return p->name + begin;
}

/* Whether a name of n bytes is `end`, or ends in it after a dot. */
static bool ends_in(const char *name, size_t n, const char *end)
{
    const size_t len = strlen(end);

    return len <= n && memcmp(name + n - len, end, len) == 0 &&
           (len == n || name[n - len - 1] == '.');
}

/* Whether p is the matrix of a module whose name is `name` or ends in it after a dot. */
static bool is_module(const struct kg_param *p, const char *name)
{
    size_t n;

    return module_of(&n, p) && ends_in(p->name, kg_module_bytes(p), name);
}

/* Name of the module of p; "": p is not a matrix of a layer. */
struct module {
    char name[KG_NAME_BYTES];
};

static struct module named(const struct kg_param *p)
{
    struct module m = {""};
    size_t n;

    if (module_of(&n, p))
        snprintf(m.name, sizeof m.name, "%.*s", (int)kg_module_bytes(p), p->name);
    return m;
}

/* The name of some module of the model, for errors. */
static struct module example_of(const struct kg_model *m)
{
    struct module example = {""};

    for (size_t i = 0; i < m->n_base && !*example.name; i++)
        example = named(&m->params[i]);
    return example;
}

enum { MAX_MODULES = 32 };

/* Names of the layers' linear modules, once each. */
static size_t list_modules(char names[MAX_MODULES][KG_LORA_NAME],
                           const char *list[MAX_MODULES], const struct kg_model *m)
{
    size_t count = 0;

    for (size_t i = 0; i < m->n_base && count < MAX_MODULES; i++) {
        size_t n = 0, at = 0;
        const char *module = module_of(&n, &m->params[i]);

        while (module && at < count && !is_module(&m->params[i], names[at]))
            at++;
        if (!module || at < count)
            continue;
        snprintf(names[count], KG_LORA_NAME, "%.*s", (int)n, module);
        list[count] = names[count];
        count++;
    }
    return count;
}

/* ---- errors ---- */

/* Keys for errors: of a recipe, and of adapter_config.json. */
static const char *const keys[][2] = {
    {"lora.targets", "key 'target_modules'"},
    {"lora.rank", "key 'r'"},
};
enum { TARGETS, RANK };

struct selection {
    struct kg_model *m;
    bool of_folder;
    struct kg_pattern *pattern[KG_LORA_RULES]; /* owned; NULL: the rule has none */
    bool used[KG_LORA_RULES];
    int64_t steps; /* of all matches so far */
};

static const char *key_of(const struct selection *s, int which)
{
    return keys[which][s->of_folder];
}

/* Fails: no module has this name, or matches this pattern. */
static kg_status unknown_name(const struct kg_model *m, const char *what,
                              const char *name, bool is_pattern, struct kg_err *err)
{
    char names[MAX_MODULES][KG_LORA_NAME];
    const char *list[MAX_MODULES];
    const size_t n = list_modules(names, list, m);
    const char *nearest = kg_str_nearest(name, list, n, sizeof *list);

    if (nearest)
        return kg_fail(err, KG_EINVAL,
                       "%s: no layer has a matrix %.60s; did you mean %s?", what, name,
                       nearest);
    if (is_pattern)
        return kg_fail(
            err, KG_EINVAL,
            "%s: '%.60s' matches no module, expected suffixes of names such as %s", what,
            name, example_of(m).name);
    return kg_str_unknown(KG_EINVAL, what, name, list, n, sizeof *list, err);
}

/* ---- targets ---- */

static kg_status check_target(const struct selection *s, const char *name,
                              struct kg_err *err)
{
    for (size_t i = 0; i < s->m->n_base; i++)
        if (is_module(&s->m->params[i], name))
            return KG_OK;
    return unknown_name(s->m, key_of(s, TARGETS), name, false, err);
}

/* Every name must be that of a module of some layer. No targets: the names of all. */
static kg_status settle_targets(const struct selection *s, struct kg_err *err)
{
    char names[MAX_MODULES][KG_LORA_NAME];
    const char *list[MAX_MODULES];
    struct kg_lora *l = s->m->lora;
    const size_t n = list_modules(names, list, s->m);
    const bool all = l->n_targets == 0 && kg_lora_count(l, KG_LORA_TARGET_RE) == 0;

    for (size_t i = 0; l->n_targets < (int)n && all; i++)
        KG_TRY(kg_lora_add_target(l, list[i], key_of(s, TARGETS), err));
    for (int i = 0; i < l->n_targets; i++)
        KG_TRY(check_target(s, l->target[i], err));
    return KG_OK;
}

/* ---- rules ---- */

static kg_status open_patterns(struct selection *s, struct kg_err *err)
{
    const struct kg_lora *l = s->m->lora;

    for (int i = 0; i < l->n_rules; i++) {
        const enum kg_lora_kind kind = l->rule[i].kind;

        if (kinds[kind].is_pattern &&
            kg_pattern_create(&s->pattern[i], kg_lora_rule_text(l, i), kinds[kind].fit,
                              err) != KG_OK)
            return kg_err_prefix(err, "key '%s'", kinds[kind].key);
    }
    return KG_OK;
}

/* "model.layers.3.mlp.up_proj": 3 */
static bool is_of_layer(const char *name, double layer)
{
    char begin[32];
    const int n = snprintf(begin, sizeof begin, "model.layers.%.0f.", layer);

    return strncmp(name, begin, (size_t)n) == 0;
}

/* Folders are untrusted. Each match is bounded, but there may be a thousand expressions
 * for each of twenty thousand matrices. The limit takes some seconds; a usual expression
 * takes 64 steps per matrix. */
enum { MAX_STEPS = 1 << 28 };

static kg_status match(bool *out, struct selection *s, int i, const char *name,
                       struct kg_err *err)
{
    KG_TRY(kg_pattern_matches(out, &s->steps, s->pattern[i], name, err));
    if (s->steps <= MAX_STEPS)
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "regular expressions: expected at most %d matching steps in total, "
                   "found more at '%.60s' on %.95s",
                   MAX_STEPS, kg_lora_rule_text(s->m->lora, i), name);
}

static kg_status matches(bool *out, struct selection *s, int i, const char *name,
                         struct kg_err *err)
{
    const struct kg_lora *l = s->m->lora;
    const enum kg_lora_kind kind = l->rule[i].kind;

    if (kind == KG_LORA_EXCLUDE)
        *out = ends_in(name, strlen(name), kg_lora_rule_text(l, i));
    else if (kind == KG_LORA_LAYER)
        *out = is_of_layer(name, l->rule[i].value);
    else if (match(out, s, i, name, err) != KG_OK)
        return kg_err_prefix(err, "key '%s'", kinds[kind].key);
    s->used[i] |= *out;
    return KG_OK;
}

/* *out: the first rule of a kind that matches; -1: none does */
static kg_status first_of(int *out, struct selection *s, enum kg_lora_kind kind,
                          const char *name, struct kg_err *err)
{
    const struct kg_lora *l = s->m->lora;
    bool found = false;

    *out = -1;
    for (int i = 0; i < l->n_rules && !found; i++) {
        if (l->rule[i].kind == kind)
            KG_TRY(matches(&found, s, i, name, err));
        *out = found ? i : -1;
    }
    return KG_OK;
}

static kg_status is_excluded(bool *out, struct selection *s, const char *name,
                             struct kg_err *err)
{
    int by_name, by_pattern;

    KG_TRY(first_of(&by_name, s, KG_LORA_EXCLUDE, name, err));
    KG_TRY(first_of(&by_pattern, s, KG_LORA_EXCLUDE_RE, name, err));
    *out = by_name >= 0 || by_pattern >= 0;
    return KG_OK;
}

/* Layers restrict names that match a target by their end, but not by their full text. */
static kg_status is_listed(bool *out, struct selection *s, const char *name,
                           struct kg_err *err)
{
    const struct kg_lora *l = s->m->lora;
    bool whole = false, end = false;
    int layer = 0;

    for (int i = 0; i < l->n_targets; i++) {
        whole |= strcmp(name, l->target[i]) == 0;
        end |= ends_in(name, strlen(name), l->target[i]);
    }
    if (end && !whole && kg_lora_count(l, KG_LORA_LAYER) > 0)
        KG_TRY(first_of(&layer, s, KG_LORA_LAYER, name, err));
    *out = end && layer >= 0;
    return KG_OK;
}

static kg_status is_target(bool *out, struct selection *s, const char *name,
                           struct kg_err *err)
{
    bool excluded;
    int rule;

    KG_TRY(is_excluded(&excluded, s, name, err));
    *out = false;
    if (excluded)
        return KG_OK;
    if (kg_lora_count(s->m->lora, KG_LORA_TARGET_RE) == 0)
        return is_listed(out, s, name, err);
    KG_TRY(first_of(&rule, s, KG_LORA_TARGET_RE, name, err));
    *out = rule >= 0;
    return KG_OK;
}

/* ---- settings that match nothing ---- */

/* Embedding and head are not targets, but a pattern may name them. */
static kg_status try_outer(bool *out, struct selection *s, int rule, struct kg_err *err)
{
    static const char *const outer[] = {"model.embed_tokens", "lm_head"};

    *out = s->used[rule];
    for (size_t i = 0; i < sizeof outer / sizeof *outer && !*out; i++)
        KG_TRY(matches(out, s, rule, outer[i], err));
    return KG_OK;
}

/* A pattern of a rank or an alpha may name matrices that are not targets. */
static kg_status check_pattern(struct selection *s, int rule, struct kg_err *err)
{
    const struct kg_model *m = s->m;
    const char *text = kg_lora_rule_text(m->lora, rule);
    char what[64];
    bool found;

    KG_TRY(try_outer(&found, s, rule, err));
    for (size_t i = 0; i < m->n_base && !found; i++) {
        const struct module name = named(&m->params[i]);

        if (*name.name)
            KG_TRY(matches(&found, s, rule, name.name, err));
    }
    snprintf(what, sizeof what, "key '%s'", kinds[m->lora->rule[rule].kind].key);
    return found ? KG_OK : unknown_name(m, what, text, true, err);
}

static kg_status check_rules(struct selection *s, struct kg_err *err)
{
    const struct kg_lora *l = s->m->lora;

    for (int i = 0; i < l->n_rules; i++) {
        const enum kg_lora_kind kind = l->rule[i].kind;

        if (kind == KG_LORA_LAYER && l->rule[i].value >= s->m->config.layers)
            return kg_fail(err, KG_EINVAL,
                           "key 'layers_to_transform': expected layers of 0 to %d, found "
                           "%.0f",
                           s->m->config.layers - 1, l->rule[i].value);
        if (kind == KG_LORA_RANK || kind == KG_LORA_ALPHA)
            KG_TRY(check_pattern(s, i, err));
    }
    return KG_OK;
}

/* A regular expression of targets that matched nothing; -1: none, or its matches may have
 * been excluded. */
static int idle_target(const struct selection *s)
{
    const struct kg_lora *l = s->m->lora;
    bool excluded = false;
    int idle = -1;

    for (int i = 0; i < l->n_rules; i++) {
        const enum kg_lora_kind kind = l->rule[i].kind;

        excluded |= s->used[i] && kind != KG_LORA_TARGET_RE;
        idle = kind == KG_LORA_TARGET_RE && !s->used[i] ? i : idle;
    }
    return excluded ? -1 : idle;
}

/* Fails: no target is left. Names in a list are not the cause: settle_targets found each
 * in some layer. */
static kg_status nothing_left(const struct selection *s, struct kg_err *err)
{
    const struct kg_model *m = s->m;
    const int idle = idle_target(s);

    if (idle >= 0)
        return kg_fail(err, KG_EINVAL,
                       "key 'target_modules': the regular expression '%.60s' matches no "
                       "matrix of a layer, expected whole names such as %s",
                       kg_lora_rule_text(m->lora, idle), example_of(m).name);
    return kg_fail(err, KG_EINVAL,
                   "%s: exclude_modules and layers_to_transform leave no target; "
                   "expected at least one",
                   key_of(s, TARGETS));
}

/* ---- the choice ---- */

/* A rank above the smaller side of a tensor adds nothing. A matrix of one row (the gate
 * of a shared expert) may have it, because it is usually one target among others. */
static kg_status check_rank(const struct selection *s, const struct kg_param *w,
                            const struct kg_lora_choice *c, struct kg_err *err)
{
    const int64_t rows = w->file_rows, least = rows < w->cols ? rows : w->cols;
    const struct kg_lora *l = s->m->lora;

    if (c->rank <= least || rows == 1)
        return KG_OK;
    kg_fail(err, KG_EINVAL,
            "expected at most %lld, the smaller side of %s [%lld, %lld], found %d",
            (long long)least, w->name, (long long)rows, (long long)w->cols, c->rank);
    return c->rank_rule < 0 ? kg_err_prefix(err, "%s", key_of(s, RANK))
                            : kg_err_prefix(err, "key 'rank_pattern': '%.60s'",
                                            kg_lora_rule_text(l, c->rank_rule));
}

static kg_status choose(struct kg_lora_choice *c, struct selection *s,
                        const struct kg_param *w, struct kg_err *err)
{
    const struct kg_lora *l = s->m->lora;
    const struct module of = named(w);
    bool wanted = false;
    int alpha;

    *c = (struct kg_lora_choice){.rank_rule = -1};
    if (*of.name)
        KG_TRY(is_target(&wanted, s, of.name, err));
    if (!wanted)
        return KG_OK;
    KG_TRY(first_of(&c->rank_rule, s, KG_LORA_RANK, of.name, err));
    KG_TRY(first_of(&alpha, s, KG_LORA_ALPHA, of.name, err));
    c->rank = c->rank_rule < 0 ? l->rank : (int32_t)l->rule[c->rank_rule].value;
    c->alpha = alpha < 0 ? l->alpha : l->rule[alpha].value;
    return check_rank(s, w, c, err);
}

static kg_status choose_all(struct kg_lora_choice *out, struct selection *s,
                            struct kg_err *err)
{
    bool some = false;

    KG_TRY(open_patterns(s, err));
    KG_TRY(settle_targets(s, err));
    for (size_t i = 0; i < s->m->n_base; i++) {
        KG_TRY(choose(&out[i], s, &s->m->params[i], err));
        some |= out[i].rank > 0;
    }
    return some ? check_rules(s, err) : nothing_left(s, err);
}

kg_status kg_lora_choose(struct kg_lora_choice *out, struct kg_model *m, bool of_folder,
                         struct kg_err *err)
{
    struct selection s = {.m = m, .of_folder = of_folder};
    const kg_status status = choose_all(out, &s, err);

    for (int i = 0; i < s.m->lora->n_rules; i++)
        kg_pattern_free(s.pattern[i]);
    return status;
}
