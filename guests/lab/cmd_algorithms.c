/* kedge algorithms: the tables of policy/ as a page of Markdown.
 *
 * docs/algorithms.md is this output, and a test compares them. Only the rows have formula
 * and source, next to the functions that compute them.
 */
#include "lab/algorithms.h"

#include "cli/cli.h"
#include "model/optim.h"
#include "policy/algo.h"
#include "policy/presets.h"
#include "policy/unbiased.h"

#include <string.h>

static bool as_json;

const struct kg_flag kg_algorithms_flags[] = {
    {"json", 0, KG_IF("=check", as_json), NULL,
     "one JSON line for each row and distance"},
    {0},
};

static const char intro[] =
    "# Algorithms\n"
    "\n"
    "An algorithm is one row from each of seven tables, plus numbers (`algo.*`,\n"
    "`kl.*`, `anchor.*`; see [config.md](config.md)). A preset (`algo.preset`) sets\n"
    "the values that you do not give. `kedge algorithms` prints this page: do not\n"
    "edit it.\n"
    "\n"
    "Letters: `p` is the policy in training, `mu` the sampler, `q` the anchor, and "
    "`old`\nthe policy in the denominator of the ratio (the sampler, unless "
    "`train.old_logp` is\n`recompute`). `y` is the sampled token, `A` its advantage, `R` "
    "the reward of a\ncompletion, `L` its length. At `y`, `r = p/old`, `d = log p - log "
    "q`, `w = q/p`,\n`u = p/q`.\n\n`sg` holds its argument constant. `c` is the "
    "derivative of a loss or KL estimator\nwith respect to `log p`. `H` and `G` are the "
    "k likeliest ids of the sampler and of\nthe anchor. `s` is the importance weight "
    "p/old (1 without `kl.importance`).\n"
    "\n"
    "If a row needs something that the run cannot provide, the run is refused before\n"
    "it starts, with the reason (`kedge train --dry-run`). A key is also refused if "
    "none\nof the chosen rows reads it but other rows do.\n";

static const struct {
    enum kg_policy_table table;
    const char *title;
} sections[] = {
    {KG_TABLE_ADVANTAGE, "Advantages"}, {KG_TABLE_SURROGATE, "Surrogates"},
    {KG_TABLE_MASK, "Sequence masks"},  {KG_TABLE_AGGREGATE, "Aggregation"},
    {KG_TABLE_KL, "KL estimators"},     {KG_TABLE_PLACE, "Place of the KL"},
    {KG_TABLE_ANCHOR, "Anchors"},
};

static const struct {
    unsigned need;
    const char *text;
} needs[] = {
    {KG_NEED_ANCHOR, "anchor"},
    {KG_NEED_TOP_SAMPLER, "the sampler's top ids"},
    {KG_NEED_TOP_ANCHOR, "the anchor's top ids"},
    {KG_NEED_MU_AT, "the sampler's log-probs at them"},
    {KG_NEED_EXACT_REVERSE, "exact KL(p, q)"},
    {KG_NEED_EXACT_FORWARD, "exact KL(q, p)"},
    {KG_NEED_GREEDY, "a greedy completion"},
    {KG_NEED_VALUES, "a critic"},
    {KG_NEED_SUM_SQ, "sum of p^2"},
    {KG_NEED_GROUP, "2 samples a prompt"},
    {KG_NEED_ON_POLICY_OR_IW, "on-policy, or kl.importance"},
    {KG_NEED_ENTROPY, "entropy"},
    {KG_NEED_SELECTION, "a first pass over the batch"},
    {KG_NEED_PARTS, "several rewards"},
};

kg_status kg_algorithms_put_cell(struct kg_str *out, const char *text, struct kg_err *err)
{
    for (const char *c = text; *c; c++) {
        if (*c == '|')
            KG_TRY(kg_str_putc(out, '\\', err));
        KG_TRY(kg_str_putc(out, *c, err));
    }
    return KG_OK;
}

kg_status kg_algorithms_put_needs(struct kg_str *out, const struct kg_policy_about *a,
                                  struct kg_err *err)
{
    const char *lead = "";

    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        if (!(a->needs & needs[i].need))
            continue;
        KG_TRY(kg_str_printf(out, err, "%s%s", lead, needs[i].text));
        lead = ", ";
    }
    return KG_OK;
}

/* ---- rows, with their claims ---- */

static const char claims_text[] =
    "\n"
    "`Unbiased` columns give on-policy (y drawn from p) / off-policy (y drawn from an\n"
    "older policy, with the importance weight if the row uses one), at a fixed\n"
    "context, while no clip, clamp, mask or truncation is active.\n"
    "`src/policy/claims_test.c` enumerates every cell; a dash means no claim.\n"
    "\n";

static const char against_kl[] =
    "`Unbiased` refers to value and gradient of the divergence in column `of`. Rows "
    "\"from tokens\nsampled by q\" (`rpg-*`, `jeffreys*`) are for `anchor.kind: "
    "iterative`: q sampled the batch.\nOn-policy p = q, so divergence, value and "
    "expected gradient are 0. For topk rows the words\nbefore a bracket apply to "
    "`kl.gradient=corrected`. The gradient is `c grad log p(y)`, and\n`a_j grad log p_j` "
    "for the ids of a head.\n";
static const char against_other[] =
    "`Unbiased` refers to value and gradient of `-E_p[A]`, where the advantage depends "
    "only\non y; for the rpg rows and ipo, `kl.beta` times a KL to the old policy is "
    "added. The\ngradient is `c grad log p(y)`, with column `gradient` for tokens that "
    "are not clipped.\n\nA ratio of one token is exact only at a fixed context, because "
    "it omits the ratio of\nthe prefix, as is usual in practice. Score functions (`-A "
    "log p`) have the gradient\nbut not the value.\n\nColumn `bounds` shows what the "
    "row's trust region bounds. A token beyond the bound\nhas no gradient if its step "
    "would lead further. `softly` means that the gradient\nshrinks or changes its sign "
    "instead. A token with a bounded weight keeps a gradient,\nwith the weight at its "
    "bound.\n";

const char *kg_algorithms_target(enum kg_target target)
{
    static const char *const texts[] = {
        [KG_TARGET_NONE] = "-",           [KG_TARGET_REVERSE] = "KL(p||q)",
        [KG_TARGET_FORWARD] = "KL(q||p)", [KG_TARGET_JEFFREYS] = "half of both",
        [KG_TARGET_RETURN] = "return",
    };

    return texts[target];
}

static const char *yes(unsigned claimed, unsigned bit)
{
    return claimed & bit ? "yes" : "no";
}

/* "yes / no": on-policy / off-policy. */
static kg_status put_claim(struct kg_str *out, const struct kg_policy_claims *c,
                           unsigned bit, struct kg_err *err)
{
    if (c->target == KG_TARGET_NONE)
        return kg_str_puts(out, "- | ", err);
    KG_TRY(kg_str_printf(out, err, "%s / %s", yes(c->on_policy, bit),
                         yes(c->off_policy, bit)));
    if (c->published && ((c->published ^ c->on_policy) & bit))
        KG_TRY(kg_str_printf(out, err, " (published: %s)", yes(c->published, bit)));
    return kg_str_puts(out, " | ", err);
}

static kg_status put_claims(struct kg_str *out, enum kg_policy_table table,
                            const struct kg_policy_claims *c, struct kg_err *err)
{
    const char *tick = c->gradient && *c->gradient ? "`" : "";

    KG_TRY(kg_str_puts(out, tick, err));
    KG_TRY(kg_algorithms_put_cell(out, c->gradient ? c->gradient : "", err));
    KG_TRY(kg_str_printf(out, err, "%s | ", tick));
    if (table == KG_TABLE_KL) {
        KG_TRY(kg_algorithms_put_cell(out, kg_algorithms_target(c->target), err));
        KG_TRY(kg_str_puts(out, " | ", err));
    }
    KG_TRY(put_claim(out, c, KG_UNBIASED_VALUE, err));
    KG_TRY(put_claim(out, c, KG_UNBIASED_GRADIENT, err));
    KG_TRY(kg_str_printf(out, err, "%s | ", c->memory ? c->memory : ""));
    if (table == KG_TABLE_KL)
        return KG_OK;
    KG_TRY(kg_algorithms_put_cell(out, c->bounds ? c->bounds : "", err));
    return kg_str_puts(out, " | ", err);
}

static kg_status put_row(struct kg_str *out, enum kg_policy_table table, size_t i,
                         struct kg_err *err)
{
    const struct kg_policy_about *a = kg_policy_row(table, i);
    const struct kg_policy_claims *c = kg_policy_row_claims(table, i);
    const char *tick = *a->formula ? "`" : "";

    KG_TRY(kg_str_printf(out, err, "| `%s` | ", a->name));
    KG_TRY(kg_algorithms_put_cell(out, a->help, err));
    KG_TRY(kg_str_printf(out, err, " | %s", tick));
    KG_TRY(kg_algorithms_put_cell(out, a->formula, err));
    KG_TRY(kg_str_printf(out, err, "%s | ", tick));
    if (c)
        KG_TRY(put_claims(out, table, c, err));
    KG_TRY(kg_algorithms_put_cell(out, a->source, err));
    KG_TRY(kg_str_puts(out, " | ", err));
    KG_TRY(kg_algorithms_put_needs(out, a, err));
    KG_TRY(kg_str_puts(out, " | ", err));
    size_t n;

    for (const char *at = a->reads ? a->reads : ""; *at; at += n + (at[n] == ' ')) {
        n = strcspn(at, " ");
        KG_TRY(
            kg_str_printf(out, err, "%s`%.*s`", at == a->reads ? "" : ", ", (int)n, at));
    }
    return kg_str_puts(out, " |\n", err);
}

static kg_status put_table(struct kg_str *out, enum kg_policy_table table,
                           const char *title, struct kg_err *err)
{
    bool claims = kg_policy_row_claims(table, 0) != NULL, kl = table == KG_TABLE_KL;

    KG_TRY(kg_str_printf(out, err,
                         "\n## %s: `%s`\n%s%s\n| name | what | formula | %s%s%s%ssource "
                         "| needs | reads |\n|---|---|---|%s%s---|---|---|\n",
                         title, kg_policy_table_key(table), claims ? claims_text : "",
                         !claims ? ""
                         : kl    ? against_kl
                                 : against_other,
                         claims ? "gradient | " : "", kl ? "of | " : "",
                         claims ? "value unbiased | gradient unbiased | memory | " : "",
                         claims && !kl ? "bounds | " : "",
                         claims ? "---|---|---|---|" : "", claims ? "---|" : ""));
    for (size_t i = 0; i < kg_policy_n_rows(table); i++)
        KG_TRY(put_row(out, table, i, err));
    return KG_OK;
}

/* ---- presets ---- */

static const char presets_text[] =
    "\n"
    "## Presets: `algo.preset`\n"
    "\n"
    "Write `preset=NAME` on the command line of `kedge train`, or `algo.preset` in a\n"
    "recipe. Your values override a preset, and a preset overrides the one that it\n"
    "builds on. `kedge presets NAME` prints every resolved value and its source.\n";

static kg_status put_preset(struct kg_str *out, const struct kg_preset *p,
                            struct kg_err *err)
{
    const char *lead = "";

    KG_TRY(kg_str_printf(out, err, "| `%s` | ", p->name));
    if (p->base)
        KG_TRY(kg_str_printf(out, err, "`%s`", p->base));
    KG_TRY(kg_str_puts(out, " | ", err));
    KG_TRY(kg_algorithms_put_cell(out, p->help, err));
    KG_TRY(kg_str_puts(out, " | ", err));
    KG_TRY(kg_algorithms_put_cell(out, p->source, err));
    KG_TRY(kg_str_puts(out, " | ", err));
    for (const struct kg_preset_value *v = p->values; v->from == p->name;
         v++, lead = ", ")
        KG_TRY(kg_str_printf(out, err, "%s`%s=%s`", lead, v->key, v->value));
    return kg_str_puts(out, " |\n", err);
}

static kg_status put_presets(struct kg_str *out, enum kg_preset_kind kind,
                             const char *title, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err,
                         "\n### %s\n\n| name | builds on | what | source | its values "
                         "|\n|---|---|---|---|---|\n",
                         title));
    for (size_t i = 0; i < kg_preset_count(); i++)
        if (kg_preset_at(i)->kind == kind)
            KG_TRY(put_preset(out, kg_preset_at(i), err));
    return KG_OK;
}

/* ---- averages over completions ---- */

static const char averages[] =
    "\n"
    "## Averages over completions: estimator, aggregation, filter\n"
    "\n"
    "The columns above refer to one context. Over completions an estimator is\n"
    "averaged with weights. A weight may depend on the samples: through "
    "the\ncompletion's length, or through a filter that reads the completion. Estimator "
    "and\nweight are then not independent, which may cause a bias.\n\nA cell answers, "
    "for every context: is the expected gradient equal to the gradient of the\nexact KL "
    "at this context, times the expected weight of the context? There are "
    "four\nsituations:\n\n1. without a filter (truncated completions may be left out of "
    "the policy term);\n2. with dynamic sampling and the KL of every sampled completion; "
    "the number of these\n   completions depends on the rewards;\n3. with dynamic "
    "sampling and `kl.after_filter`: prompts whose completions all have\n   the same "
    "reward are also left out of the KL;\n4. with truncated completions left out of the "
    "KL, by `algo.mask_truncated` and\n   `kl.after_filter`.\n"
    "\n"
    "`fades`: biased, with a bias that falls as 1 / N with the number of completions\n"
    "per update. Cells hold on- and off-policy (with importance weight), for 0 < k < V.\n"
    "`src/policy/tree_test.c` enumerates every cell (for a `fades` in the second\n"
    "situation, it checks that there is a bias).\n"
    "\n";

static const char *average_text(enum kg_average average)
{
    return average == KG_AVERAGE_UNBIASED ? "yes"
           : average == KG_AVERAGE_FADES  ? "fades"
                                          : "no";
}

static kg_status put_averages_row(struct kg_str *out, size_t kl, bool published,
                                  struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "| `%s`%s |", kg_policy_row(KG_TABLE_KL, kl)->name,
                         published ? " published" : ""));
    for (size_t m = 0; m < kg_policy_n_rows(KG_TABLE_AGGREGATE); m++) {
        const char *lead = " ";

        for (int f = 0; f < KG_FILTER_COUNT; f++, lead = ", ")
            KG_TRY(kg_str_printf(out, err, "%s%s", lead,
                                 average_text(kg_policy_average(
                                     kl, published, m, (enum kg_policy_filter)f))));
        KG_TRY(kg_str_puts(out, " |", err));
    }
    return kg_str_putc(out, '\n', err);
}

static kg_status put_averages(struct kg_str *out, struct kg_err *err)
{
    size_t n = kg_policy_n_rows(KG_TABLE_AGGREGATE);

    KG_TRY(kg_str_puts(out, averages, err));
    KG_TRY(kg_str_puts(out, "| `kl.estimator` |", err));
    for (size_t m = 0; m < n; m++)
        KG_TRY(kg_str_printf(out, err, " `%s` |",
                             kg_policy_row(KG_TABLE_AGGREGATE, m)->name));
    KG_TRY(kg_str_puts(out, "\n|---|", err));
    for (size_t m = 0; m < n; m++)
        KG_TRY(kg_str_puts(out, "---|", err));
    KG_TRY(kg_str_putc(out, '\n', err));
    for (size_t i = 0; i < kg_policy_n_rows(KG_TABLE_KL); i++) {
        const struct kg_policy_claims *claims = kg_policy_row_claims(KG_TABLE_KL, i);

        if (claims->target == KG_TARGET_NONE)
            continue;
        KG_TRY(put_averages_row(out, i, false, err));
        if (claims->published) /* the estimator has a published form, too */
            KG_TRY(put_averages_row(out, i, true, err));
    }
    return KG_OK;
}

kg_status kg_cli_algorithms(struct kg_str *out, struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, intro, err));
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++)
        KG_TRY(put_table(out, sections[i].table, sections[i].title, err));
    KG_TRY(put_averages(out, err));
    KG_TRY(kg_str_puts(out,
                       "\n## Optimizers: `optim.kind`\n\n| name | what | source |\n"
                       "|---|---|---|\n",
                       err));
    for (size_t i = 0; i < kg_optim_n_rows(); i++) {
        const struct kg_optim_row *row = kg_optim_row_at(i);

        KG_TRY(kg_str_printf(out, err, "| `%s` | %s | %s |\n", row->name, row->help,
                             row->source));
    }
    KG_TRY(kg_str_puts(out, presets_text, err));
    KG_TRY(put_presets(out, KG_PRESET_METHOD, "Methods: without sizes of a run", err));
    return put_presets(out, KG_PRESET_RECIPE, "Recipes: published runs, with their sizes",
                       err);
}

int kg_cmd_algorithms(int argc, char **argv)
{
    struct kg_str out = {0};
    struct kg_err err;
    kg_status status;

    if (argc > 0 && strcmp(argv[0], "check") != 0)
        return kg_cli_usage("expected nothing or check, found '%s'", argv[0]);
    status = argc > 0
                 ? kg_algorithms_check(&out, argv + 1, (size_t)argc - 1, as_json, &err)
                 : kg_cli_algorithms(&out, &err);
    return kg_cli_exit(kg_cli_print(status, &out, &err), &err);
}
