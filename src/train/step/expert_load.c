/* Counts uses of experts, logs them, and computes the coefficients of their loss. */
#include "train/step/expert_load.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

static size_t cells(const struct kg_expert_load *l)
{
    return (size_t)l->layers * (size_t)l->experts;
}

kg_status kg_expert_load_init(struct kg_expert_load *l, const struct kg_model_config *c,
                              struct kg_err *err)
{
    *l = (struct kg_expert_load){.layers = kg_model_config_routed(c, c->layers),
                                 .experts = c->experts.n,
                                 .k = c->experts.k};
    if (l->layers == 0)
        return KG_OK;
    l->counts = kg_mem_calloc(cells(l), sizeof *l->counts, "load of experts", err);
    l->balance = kg_mem_calloc((size_t)l->experts, sizeof *l->balance, "load of experts",
                               err);
    l->p_sum = kg_mem_calloc((size_t)l->experts, sizeof *l->p_sum, "load of experts",
                             err);
    return l->counts && l->balance && l->p_sum ? KG_OK : KG_ENOMEM;
}

void kg_expert_load_release(struct kg_expert_load *l)
{
    kg_mem_free(l->counts);
    kg_mem_free(l->balance);
    kg_mem_free(l->p_sum);
    *l = (struct kg_expert_load){0};
}

void kg_expert_load_clear(struct kg_expert_load *l)
{
    if (l->layers > 0)
        memset(l->counts, 0, cells(l) * sizeof *l->counts);
}

kg_status kg_expert_load_add(struct kg_expert_load *l, const struct kg_rows *p,
                             struct kg_err *err)
{
    return l->layers > 0 ? kg_rows_load(l->counts, p, err) : KG_OK;
}

kg_status kg_expert_load_gather(struct kg_expert_load *l, struct kg_ranks *ranks,
                                struct kg_err *err)
{
    const size_t n = cells(l), bytes = n * sizeof *l->counts;
    int64_t *all;
    kg_status status;

    if (l->layers == 0 || ranks->n < 2)
        return KG_OK;
    KG_TRY_GOTO(out, kg_ranks_gather_own(&all, ranks, KG_OK, l->counts, bytes,
                                         "load of experts", err));
    kg_expert_load_clear(l);
    for (size_t i = 0; i < (size_t)ranks->n * n; i++)
        l->counts[i % n] += all[i];
out:
    kg_mem_free(all);
    return status;
}

/* ---- metrics ---- */

/* Sums over the experts of one layer. */
struct shares {
    double total, most, entropy;
    int32_t unused;
};

static struct shares shares_of(const int64_t *counts, int32_t experts)
{
    struct shares s = {0};

    for (int32_t e = 0; e < experts; e++) {
        s.total += (double)counts[e];
        s.most = fmax(s.most, (double)counts[e]);
        s.unused += counts[e] == 0;
    }
    for (int32_t e = 0; e < experts; e++) {
        double share = (double)counts[e] / s.total;

        s.entropy -= share > 0 ? share * log(share) : 0;
    }
    return s;
}

void kg_expert_load_put(struct kg_metrics *log, const struct kg_expert_load *l)
{
    double most = 0, worst = 0, entropy = 0, unused = 0;

    for (int32_t i = 0; i < l->layers; i++) {
        struct shares s = shares_of(l->counts + (size_t)i * (size_t)l->experts,
                                    l->experts);

        if (s.total == 0)
            return;
        most += s.most * l->experts / s.total / l->layers;
        worst = fmax(worst, s.most * l->experts / s.total);
        entropy += s.entropy / l->layers;
        unused += (double)s.unused / l->experts / l->layers;
    }
    if (l->layers == 0)
        return;
    kg_metrics_put(log, "experts/load_max", most);
    kg_metrics_put(log, "experts/load_worst", worst);
    kg_metrics_put(log, "experts/unused", unused);
    kg_metrics_put(log, "experts/entropy", entropy);
}

/* ---- the balancing loss ---- */

kg_status kg_expert_load_balance(struct kg_expert_load *l, const struct kg_rows *p,
                                 double c, struct kg_err *err)
{
    double all = 0; /* Lx N */

    for (size_t i = 0; i < cells(l); i++)
        all += (double)l->counts[i] / l->k;
    for (int32_t e = 0; e < l->experts; e++) {
        double n = 0;

        for (int32_t i = 0; i < l->layers; i++)
            n += (double)l->counts[(size_t)i * (size_t)l->experts + (size_t)e];
        l->balance[e] = (float)(all > 0 ? c * l->experts * (n / all) / all : 0);
    }
    return kg_rows_balance(p, l->balance, err);
}

kg_status kg_expert_load_loss(double *loss, struct kg_expert_load *l,
                              const struct kg_rows *p, struct kg_err *err)
{
    KG_TRY(kg_rows_p_sum(l->p_sum, p, err));
    *loss = 0;
    for (int32_t e = 0; e < l->experts; e++)
        *loss += (double)l->balance[e] * (double)l->p_sum[e];
    return KG_OK;
}
