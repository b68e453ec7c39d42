/* The sets of a trajectory from its weights: one forward over the sequence (over each of
 * the contexts that it was sampled in), the head on a few rows at a time, as their logits
 * are the whole vocabulary wide. */
#include "rollout/keep.h"

#include "base/mem.h"
#include "rollout/sampler.h"

enum { ROWS = 32 };

struct keeper {
    struct kg_traj *t;
    const struct kg_model *m;
    const struct kg_sampling *s;
    struct kg_sampler_scratch scratch; /* owned, as all below */
    struct kg_sampler_pick pick;
    int32_t *pos;        /* (T) */
    int32_t place[ROWS]; /* tokens that the rows predict */
    int32_t from[ROWS];  /* the rows before them */
    float inv_temp[ROWS];
    double lse[ROWS];
    float *logits; /* (ROWS,V) */
    void *hidden;  /* (ROWS,D) ct */
};

static void keeper_release(struct keeper *k)
{
    kg_sampler_scratch_release(&k->scratch);
    kg_sampler_pick_release(&k->pick);
    kg_mem_free(k->pos);
    kg_mem_free(k->logits);
    kg_mem_free(k->hidden);
}

static kg_status keeper_init(struct keeper *k, struct kg_err *err)
{
    static const char what[] = "kept ids of a trajectory";
    const struct kg_model_config *c = &k->m->config;

    KG_TRY(kg_sampler_scratch_grow(&k->scratch, k->s, c->vocab, err));
    k->pos = kg_mem_calloc(k->t->n, sizeof *k->pos, what, err);
    k->logits = k->pos ? kg_mem_calloc((size_t)ROWS * (size_t)c->vocab, sizeof *k->logits,
                                       what, err)
                       : NULL;
    k->hidden = k->logits ? kg_mem_calloc((size_t)ROWS * (size_t)c->hidden,
                                          kg_dtype_traits(k->m->ct)->bytes, what, err)
                          : NULL;
    for (size_t i = 0; k->hidden && i < k->t->n; i++)
        k->pos[i] = (int32_t)i;
    return k->hidden ? KG_OK : err->code;
}

/* The next rows of a part that predict a MODEL token, from token *j on.
 * returns how many */
static int64_t next_rows(struct keeper *k, const struct kg_traj_part *part, size_t *j)
{
    int64_t n = 0;

    for (; *j < part->end && n < ROWS; ++*j) {
        if (k->t->source[*j] != KG_SOURCE_MODEL)
            continue;
        k->place[n] = (int32_t)*j;
        k->from[n] = (int32_t)(*j - part->from) - 1;
        k->inv_temp[n++] = kg_inv_temperature(k->t->temperature);
    }
    return n;
}

static kg_status keep_rows(struct keeper *k, struct kg_mat hidden, int64_t n,
                           struct kg_err *err)
{
    int32_t vocab = k->m->config.vocab;
    struct kg_mat rows = kg_mat(k->hidden, k->m->ct, n, k->m->config.hidden);
    struct kg_head h = {
        .hidden = rows, .weight = k->m->head->compute, .inv_temp = k->inv_temp};
    struct kg_head_out out = {.lse = k->lse, .logits = k->logits};

    KG_TRY(kg_op_gather_rows(k->m->backend, rows, hidden, k->from, err));
    KG_TRY(kg_op_head(k->m->backend, &out, &h, err));
    for (int64_t i = 0; i < n; i++) {
        struct kg_sampler_row row = {
            .z = k->logits + i * vocab, .vocab = vocab, .lse = k->lse[i]};

        KG_TRY(kg_sampler_keep(&k->pick, &k->scratch, &row, k->s, err));
        KG_TRY(kg_traj_keep(k->t, (size_t)k->place[i], &k->pick.kept, err));
    }
    return KG_OK;
}

static kg_status keep_part(struct keeper *k, struct kg_acts *acts,
                           const struct kg_traj_part *part, struct kg_err *err)
{
    int64_t n = (int64_t)(part->end - part->from);
    struct kg_attn_seq seq = {.n_rows = (int32_t)n};
    struct kg_pack pack = {k->t->tokens + part->from, k->pos, n, &seq, 1};
    struct kg_forward f = {.pack = &pack};
    struct kg_mat hidden;
    size_t j = part->begin;

    KG_TRY(kg_model_forward(&hidden, k->m, acts, &f, err));
    for (int64_t rows; (rows = next_rows(k, part, &j)) > 0;)
        KG_TRY(keep_rows(k, hidden, rows, err));
    return KG_OK;
}

static kg_status keep_all(struct keeper *k, struct kg_acts *acts, struct kg_err *err)
{
    for (size_t i = 0; i < kg_traj_n_parts(k->t, false); i++) {
        struct kg_traj_part part = kg_traj_part(k->t, i, false);

        KG_TRY(keep_part(k, acts, &part, err));
    }
    return KG_OK;
}

kg_status kg_rollout_keep(struct kg_traj *t, const struct kg_model *m,
                          struct kg_acts *acts, const struct kg_sampling *s,
                          struct kg_err *err)
{
    struct keeper k = {.t = t, .m = m, .s = s};
    kg_status status;

    if (!kg_sampler_truncates(s, m->config.vocab))
        return KG_OK;
    status = keeper_init(&k, err);
    if (status == KG_OK)
        status = keep_all(&k, acts, err);
    keeper_release(&k);
    return status;
}
