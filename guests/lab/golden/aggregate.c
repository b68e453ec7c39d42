/* Family agg_loss: reductions of a matrix of token losses.
 *
 * A mask becomes lengths of rows, and the reduction is the policy's own, on weights of
 * tokens. Where published code differs from itself (an eps in a mean, empty rows counted
 * or not) totals are set, not formulas.
 */
#include "lab/golden/golden_internal.h"

/* Lengths of the rows under a 0/1 mask. */
static kg_status lengths(int64_t **begin, struct kg_golden_case *g,
                         const struct kg_golden_array *mask, const char *key,
                         struct kg_err *err)
{
    int64_t n = 0;

    KG_TRY(kg_golden_ids(mask, key, 2, err));
    *begin = kg_golden_room(g, mask->d[0] + 1, sizeof **begin, err);
    if (!*begin)
        return err->code;
    for (int64_t r = 0; r < mask->d[0]; r++) {
        for (int64_t t = 0; t < mask->d[1]; t++)
            n += mask->x[r * mask->d[1] + t] != 0;
        (*begin)[r + 1] = n;
    }
    return KG_OK;
}

kg_status kg_golden_agg_loss(struct kg_golden_case *g, struct kg_err *err)
{
    struct kg_golden_array x, mask, want;
    struct kg_golden_shape shape = {2, {-1, -1}};
    struct kg_golden_reduction how = {.info = kg_json_get(g->json, "config")};
    struct kg_golden_batch e;
    struct kg_policy_totals totals;
    double *w, loss = 0, scale;
    int64_t *begin, n = 0;

    KG_TRY(kg_golden_input(&x, g, "loss_mat", shape, err));
    shape = (struct kg_golden_shape){2, {x.d[0], x.d[1]}};
    KG_TRY(kg_golden_input(&mask, g, "loss_mask", shape, err));
    KG_TRY(kg_golden_array(&want, g, "grad", "loss_mat", shape, err));
    KG_TRY(kg_golden_text(&how.variant, g, "variant", err));
    KG_TRY(kg_golden_text(&how.mode, g, "loss_agg_mode", err));
    KG_TRY(kg_golden_start(&e, g, err));
    KG_TRY(kg_algo_set(&e.algo, "algo.aggregate", how.mode, err));
    KG_TRY(lengths(&begin, g, &mask, "loss_mask", err));
    how.rows = (double)x.d[0], how.width = (double)x.d[1];
    kg_policy_totals(&totals, &e.algo, x.d[0], begin, NULL);
    scale = kg_golden_totals(&totals, &how);
    KG_TRY(kg_golden_reals(&w, g, x.n, err));
    KG_TRY(kg_policy_weights_of(w, &e.algo, &totals, x.d[0], begin, NULL, err));
    for (int64_t i = 0; i < x.n; i++) {
        double a = mask.x[i] != 0 ? scale * w[n++] : 0;

        loss += a != 0 ? a * x.x[i] : 0;
        if (want.x)
            kg_golden_compare(g, "grad.loss_mat", i, a, want.x[i]);
    }
    return kg_golden_expect(g, "loss", loss, err);
}
