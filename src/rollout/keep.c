/* Recomputes the sets of a trajectory from the weights: the ids that truncated sampling
 * kept at each token.
 *
 * It runs one forward over the sequence (over each context that it was sampled in). The
 * head runs on a few rows at a time, because their logits have the width of the
 * vocabulary. The sampler itself decides on each row, so the set is the one that the
 * token was drawn from.
 */
#include "rollout/keep.h"

#include "base/mem.h"
#include "rollout/sampler.h"
#include "rollout/score.h"

enum { ROWS = 32 };

struct keeper {
    struct kg_traj *t;
    struct kg_rows *rows; /* borrowed */
    const struct kg_sampling *s;
    struct kg_sampler_scratch scratch; /* owned, as all below */
    struct kg_sampler_pick pick;
    double lse[ROWS];
    float *logits; /* (ROWS,V) */
};

static bool is_sampled(const struct keeper *k, size_t j)
{
    return k->t->source[j] == KG_SOURCE_MODEL;
}

/* Rows [first, first + n) of a part: those of its sampled tokens from *j on. */
static kg_status keep_rows(struct keeper *k, size_t *j, int64_t first, int64_t n,
                           struct kg_err *err)
{
    int32_t vocab = k->rows->model->config.vocab;
    struct kg_head_out out = {.lse = k->lse, .logits = k->logits};

    KG_TRY(kg_rows_read(&out, k->rows, first, n, 0, err));
    for (int64_t i = 0; i < n; i++, ++*j) {
        struct kg_sampler_row row = {
            .z = k->logits + i * vocab, .vocab = vocab, .lse = k->lse[i]};

        while (!is_sampled(k, *j))
            ++*j;
        KG_TRY(kg_sampler_keep(&k->pick, &k->scratch, &row, k->s, err));
        KG_TRY(kg_traj_keep(k->t, *j, &k->pick.kept, err));
    }
    return KG_OK;
}

static kg_status keep_part(struct keeper *k, const struct kg_model *m,
                           const struct kg_traj_part *part, struct kg_err *err)
{
    struct kg_rows *p = k->rows;
    size_t next = part->begin;

    kg_rows_begin(p, m, 0);
    (void)kg_traj_want(p, k->t, *part, false, NULL, 0, NULL);
    KG_TRY(kg_rows_forward(p, false, err));
    for (int64_t i = 0; i < p->n_rows; i += ROWS)
        KG_TRY(keep_rows(k, &next, i, p->n_rows - i < ROWS ? p->n_rows - i : ROWS, err));
    return KG_OK;
}

static kg_status keep_all(struct keeper *k, const struct kg_model *m, struct kg_err *err)
{
    KG_TRY(kg_sampler_scratch_grow(&k->scratch, k->s, m->config.vocab, err));
    k->logits = kg_mem_calloc((size_t)ROWS * (size_t)m->config.vocab, sizeof *k->logits,
                              "kept ids of a trajectory", err);
    if (!k->logits)
        return err->code;
    for (size_t i = 0; i < kg_traj_n_parts(k->t, false); i++) {
        struct kg_traj_part part = kg_traj_part(k->t, i, false);

        KG_TRY(keep_part(k, m, &part, err));
    }
    return KG_OK;
}

kg_status kg_rollout_keep(struct kg_traj *t, const struct kg_model *m,
                          struct kg_rows *rows, const struct kg_sampling *s,
                          struct kg_err *err)
{
    struct keeper k = {.t = t, .rows = rows, .s = s};

    if (!kg_sampler_truncates(s, m->config.vocab))
        return KG_OK;
    kg_status status = keep_all(&k, m, err);
    kg_sampler_scratch_release(&k.scratch);
    kg_sampler_pick_release(&k.pick);
    kg_mem_free(k.logits);
    return status;
}
