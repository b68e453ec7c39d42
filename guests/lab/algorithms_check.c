/* kedge algorithms check: compares rows of policy/ with the exact gradient (exact.h).
 *
 * One line per row, with one number per divergence in each cell, so that a reader can
 * compare the numbers of a column. The lines of docs/which.md begin with these cells, and
 * a test compares them. JSON has all numbers, one line per row and divergence.
 */
#include "lab/algorithms.h"

#include "base/mem.h"
#include "data/json.h"
#include "lab/exact.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct check {
    struct kg_str *out;
    struct kg_exact *exact; /* owned */
    const char **name;      /* (n_names) borrowed; empty: all rows */
    size_t n_names;
    struct kg_exact_keys keys;
    bool json;
};

static const enum kg_policy_table tables[] = {KG_TABLE_KL, KG_TABLE_SURROGATE,
                                              KG_TABLE_MASK};
enum { TABLES = sizeof tables / sizeof *tables };

static const char kl_text[] =
    "## KL estimators: `kl.estimator`\n"
    "\n"
    "The table is for one context with 10 ids; `kl.top_k` is 3 if not given. Three "
    "numbers\nare for KL(p||q) = 0.01, 0.1 and 1 nats; a single number means that all "
    "three are equal.\nBias and noise (one standard deviation for one sampled token) are "
    "in % of the divergence\nin column `of`, or of its exact gradient. `stale` is the "
    "bias of the gradient at 0.1\nnats, with and without `kl.importance`, if y is drawn "
    "from a policy that is as far from\np as q is. `advantage` is the bias of the "
    "gradient with `kl.in=advantage`.\n"
    "\n"
    "| row | of | needs | memory | value bias | value noise | gradient bias "
    "| gradient noise | stale | advantage |\n"
    "|---|---|---|---|---|---|---|---|---|---|\n";
static const char region_text[] =
    "## Surrogates and masks: `algo.surrogate`, `algo.mask`\n"
    "\n"
    "The table is for all 1,000 completions of 3 tokens out of 10 ids; one in four is "
    "right.\nThree numbers are for KL(mu||p) = 0.001, 0.01 and 0.1 nats per token. The "
    "expected\n"
    "gradient is compared with that of -E_p[A]: cosine, length (1: equal), and the "
    "noise\n"
    "of one completion in units of the exact gradient's length. `stopped`: % of tokens\n"
    "without a gradient, by probability. Bounds are the given ones, else those "
    "of\n`kedge presets`, else the defaults; `algo.top_k` is 3 if not given. A dash "
    "means that the\nrow has no bound by default: give the key in column `reads` of "
    "`kedge algorithms`.\n"
    "\n"
    "| row | bounds | needs | memory | cosine | length | noise | stopped |\n"
    "|---|---|---|---|---|---|---|---|\n";

/* ---- cells ---- */

enum form { PERCENT, PLAIN };

static void write_number(char text[32], double x, enum form form)
{
    double size = fabs(form == PERCENT ? 100 * x : x);
    double shown = form == PERCENT ? 100 * x : x;

    if (isnan(x))
        snprintf(text, 32, "-");
    else if (size < 1e-7)
        snprintf(text, 32, "0");
    else if (form == PLAIN)
        snprintf(text, 32, "%.2f", x);
    else
        snprintf(text, 32, size < 9.95 ? "%.1f" : "%.0f", shown);
}

/* Three numbers, or one if all three print alike. */
static kg_status put_numbers(struct kg_str *out, const double x[KG_EXACT_PLACES],
                             enum form form, struct kg_err *err)
{
    char text[KG_EXACT_PLACES][32];

    for (int i = 0; i < KG_EXACT_PLACES; i++)
        write_number(text[i], x[i], form);
    if (strcmp(text[0], text[1]) == 0 && strcmp(text[1], text[2]) == 0)
        return kg_str_printf(out, err, " %s |", text[0]);
    return kg_str_printf(out, err, " %s / %s / %s |", text[0], text[1], text[2]);
}

static kg_status put_head(struct kg_str *out, enum kg_policy_table table, size_t i,
                          const char *form, const char *about, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "| `%s`%s | ", kg_policy_row(table, i)->name, form));
    KG_TRY(kg_algorithms_put_cell(out, about, err));
    KG_TRY(kg_str_puts(out, " | ", err));
    return kg_algorithms_put_needs(out, kg_policy_row(table, i), err);
}

static kg_status put_json_head(struct kg_str *out, enum kg_policy_table table, size_t i,
                               double nats, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "{\"key\": \"%s\", \"name\": \"%s\", \"nats\": ",
                         kg_policy_table_key(table), kg_policy_row(table, i)->name));
    return kg_json_put_double(out, nats, err);
}

static kg_status put_json(struct kg_str *out, const char *name, double x,
                          struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, ", \"%s\": ", name));
    return kg_json_put_cell(out, x, err);
}

static kg_status put_json_gradient(struct kg_str *out, const char *name,
                                   const struct kg_exact_gradient *g, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, ", \"%s\": {\"bias\": ", name));
    KG_TRY(kg_json_put_cell(out, g->bias, err));
    KG_TRY(put_json(out, "noise", g->noise, err));
    KG_TRY(put_json(out, "cosine", g->cosine, err));
    KG_TRY(put_json(out, "length", g->length, err));
    return kg_str_putc(out, '}', err);
}

/* ---- KL rows ---- */

static kg_status put_kl_json(const struct check *c, size_t i, const char *form,
                             const struct kg_exact_kl *k, struct kg_err *err)
{
    struct kg_str *out = c->out;

    for (int at = 0; at < KG_EXACT_PLACES; at++, k++) {
        KG_TRY(put_json_head(out, KG_TABLE_KL, i, kg_exact_kl_nats[at], err));
        if (*form)
            KG_TRY(kg_str_printf(out, err, ", \"gradient\": \"%s\"", form + 1));
        KG_TRY(put_json(out, "exact", k->kl, err));
        KG_TRY(put_json(out, "value_bias", k->value_bias, err));
        KG_TRY(put_json(out, "value_noise", k->value_noise, err));
        KG_TRY(put_json_gradient(out, "loss", &k->in_loss, err));
        KG_TRY(put_json_gradient(out, "advantage", &k->in_advantage, err));
        KG_TRY(put_json_gradient(out, "stale", &k->stale, err));
        KG_TRY(put_json_gradient(out, "stale_unweighted", &k->stale_unweighted, err));
        KG_TRY(kg_str_puts(out, "}\n", err));
    }
    return KG_OK;
}

static kg_status put_stale(struct kg_str *out, const struct kg_exact_kl *k,
                           struct kg_err *err)
{
    char with[32], without[32];

    write_number(with, k->stale.bias, PERCENT);
    write_number(without, k->stale_unweighted.bias, PERCENT);
    if (strcmp(with, without) == 0)
        return kg_str_printf(out, err, " %s |", with);
    return kg_str_printf(out, err, " %s, %s |", with, without);
}

static kg_status put_kl(const struct check *c, size_t i, const char *form,
                        const struct kg_exact_kl *k, struct kg_err *err)
{
    const struct kg_policy_claims *claims = kg_policy_row_claims(KG_TABLE_KL, i);
    double column[5][KG_EXACT_PLACES];

    for (int at = 0; at < KG_EXACT_PLACES; at++) {
        column[0][at] = k[at].value_bias;
        column[1][at] = k[at].value_noise;
        column[2][at] = k[at].in_loss.bias;
        column[3][at] = k[at].in_loss.noise;
        column[4][at] = k[at].in_advantage.bias;
    }
    KG_TRY(put_head(c->out, KG_TABLE_KL, i, form, kg_algorithms_target(claims->target),
                    err));
    KG_TRY(kg_str_printf(c->out, err, " | %s |", claims->memory));
    for (int j = 0; j < 4; j++)
        KG_TRY(put_numbers(c->out, column[j], PERCENT, err));
    KG_TRY(put_stale(c->out, &k[1], err));
    return put_numbers(c->out, column[4], PERCENT, err);
}

static kg_status check_kl(struct check *c, size_t i, bool published, struct kg_err *err)
{
    const char *keys[] = {"kl.gradient"}, *values[] = {"published"};
    const struct kg_exact_keys form = {keys, values, 1};
    struct kg_exact_kl k[KG_EXACT_PLACES];

    KG_TRY(kg_exact_kl_row(k, c->exact, i, published ? &form : &c->keys, err));
    if (c->json)
        return put_kl_json(c, i, published ? " published" : "", k, err);
    KG_TRY(put_kl(c, i, published ? " published" : "", k, err));
    return kg_str_putc(c->out, '\n', err);
}

/* ---- surrogates and masks ---- */

static kg_status put_region_json(const struct check *c, enum kg_policy_table table,
                                 size_t i, const struct kg_exact_region *r,
                                 struct kg_err *err)
{
    for (int at = 0; at < KG_EXACT_PLACES; at++, r++) {
        KG_TRY(put_json_head(c->out, table, i, kg_exact_stale_nats[at], err));
        KG_TRY(put_json_gradient(c->out, "loss", &r->gradient, err));
        KG_TRY(put_json(c->out, "stopped", r->stopped, err));
        KG_TRY(kg_str_puts(c->out, "}\n", err));
    }
    return KG_OK;
}

static kg_status check_region(struct check *c, enum kg_policy_table table, size_t i,
                              struct kg_err *err)
{
    const struct kg_policy_claims *claims = kg_policy_row_claims(table, i);
    struct kg_exact_region r[KG_EXACT_PLACES];
    double column[4][KG_EXACT_PLACES];

    KG_TRY(kg_exact_region_row(r, c->exact, table, i, &c->keys, err));
    if (c->json)
        return put_region_json(c, table, i, r, err);
    for (int at = 0; at < KG_EXACT_PLACES; at++) {
        column[0][at] = r[at].gradient.cosine;
        column[1][at] = r[at].gradient.length;
        column[2][at] = r[at].gradient.noise;
        column[3][at] = r[at].stopped;
    }
    KG_TRY(put_head(c->out, table, i, "",
                    claims ? claims->bounds : kg_policy_row(table, i)->help, err));
    KG_TRY(kg_str_printf(c->out, err, " | %s |", claims ? claims->memory : "O(1)"));
    for (int j = 0; j < 4; j++)
        KG_TRY(put_numbers(c->out, column[j], j == 3 ? PERCENT : PLAIN, err));
    return kg_str_putc(c->out, '\n', err);
}

/* ---- which rows ---- */

static bool is_checked(const struct check *c, const char *row)
{
    bool named = c->n_names == 0;

    for (size_t i = 0; i < c->n_names; i++)
        named = named || strcmp(c->name[i], row) == 0;
    return named && strcmp(row, "none") != 0;
}

static kg_status check_row(struct check *c, enum kg_policy_table table, size_t i,
                           struct kg_err *err)
{
    if (table != KG_TABLE_KL)
        return check_region(c, table, i, err);
    KG_TRY(check_kl(c, i, false, err));
    if (kg_policy_row_claims(table, i)->published && c->keys.n == 0)
        return check_kl(c, i, true, err);
    return KG_OK;
}

static kg_status check_table(struct check *c, enum kg_policy_table table, bool *titled,
                             struct kg_err *err)
{
    for (size_t i = 0; i < kg_policy_n_rows(table); i++) {
        if (!is_checked(c, kg_policy_row(table, i)->name))
            continue;
        if (!*titled && !c->json)
            KG_TRY(
                kg_str_puts(c->out, table == KG_TABLE_KL ? kl_text : region_text, err));
        *titled = true;
        KG_TRY(check_row(c, table, i, err));
    }
    return KG_OK;
}

/* Refuses names that are no row. check_keys refuses keys that no checked row reads. */
static kg_status check_names(const struct check *c, struct kg_err *err)
{
    for (size_t n = 0; n < c->n_names; n++) {
        bool known = false;

        for (size_t t = 0; t < TABLES; t++)
            for (size_t i = 0; i < kg_policy_n_rows(tables[t]); i++)
                known = known ||
                        strcmp(kg_policy_row(tables[t], i)->name, c->name[n]) == 0;
        if (!known || strcmp(c->name[n], "none") == 0)
            return kg_fail(err, KG_ENOTFOUND,
                           "check: expected a row of kl.estimator, "
                           "algo.surrogate or algo.mask (`kedge algorithms` lists them), "
                           "found '%s'",
                           c->name[n]);
    }
    return KG_OK;
}

static kg_status check_keys(const struct check *c, struct kg_err *err)
{
    for (size_t k = 0; k < c->keys.n; k++) {
        bool read = false;

        for (size_t t = 0; t < TABLES; t++)
            for (size_t i = 0; i < kg_policy_n_rows(tables[t]); i++)
                read = read || (is_checked(c, kg_policy_row(tables[t], i)->name) &&
                                kg_exact_takes(tables[t], i, c->keys.key[k]));
        if (!read)
            return kg_fail(err, KG_EINVAL,
                           "check: expected a key that a checked row reads "
                           "(column reads of `kedge algorithms`), found '%s'",
                           c->keys.key[k]);
    }
    return KG_OK;
}

static kg_status check_all(struct check *c, struct kg_err *err)
{
    bool kl = false, region = false;

    KG_TRY(check_names(c, err));
    KG_TRY(check_keys(c, err));
    KG_TRY(kg_exact_create(&c->exact, err));
    for (size_t t = 0; t < TABLES; t++)
        KG_TRY(check_table(c, tables[t], tables[t] == KG_TABLE_KL ? &kl : &region, err));
    return KG_OK;
}

kg_status kg_algorithms_check(struct kg_str *out, char *const *args, size_t n, bool json,
                              struct kg_err *err)
{
    const char **words = kg_mem_calloc(3 * n + 1, sizeof *words, "arguments", err);
    struct check c = {.out = out, .name = words, .json = json};
    kg_status status;

    if (!words)
        return err->code;
    c.keys = (struct kg_exact_keys){words + n, words + 2 * n, 0};
    for (size_t i = 0; i < n; i++) {
        char *equals = strchr(args[i], '=');

        if (!equals) {
            c.name[c.n_names++] = args[i];
            continue;
        }
        *equals = '\0';
        c.keys.key[c.keys.n] = args[i];
        c.keys.value[c.keys.n++] = equals + 1;
    }
    status = check_all(&c, err);
    kg_exact_free(c.exact);
    kg_mem_free(words);
    return status;
}
