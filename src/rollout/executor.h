/* The executor: prompts and newest tokens in, drawn tokens out.
 *
 * Whoever calls it says what is fed at which positions, in which blocks of the cache, and
 * how a token is drawn; it packs, runs the forward and the head, and draws. It does not
 * know why: no queue, no request, no trajectory.
 */
#ifndef KG_ROLLOUT_EXECUTOR_H
#define KG_ROLLOUT_EXECUTOR_H

#include "model/rows.h"
#include "rollout/rollout.h"
#include "rollout/sampler.h"

/* Tokens to compute before somebody can draw. */
struct kg_exec_prompt {
    const int32_t *tokens; /* (n) borrowed */
    int32_t n;
    int32_t cached;                        /* tokens whose keys are in the cache */
    struct kg_kv_tables blocks;            /* borrowed: from position 0 on */
    int32_t adapter;                       /* see struct kg_pack_seq */
    const struct kg_sampling *sampling;    /* borrowed: temperature, width of records */
    const struct kg_prompt_scores *scores; /* borrowed; NULL: not wanted */
    int64_t index;                         /* of the prompt, for errors */
    uint16_t *experts; /* (n,C) borrowed; out: of tokens that are computed; or NULL */
    bool again;        /* more will be drawn behind it in a later pass: of one alone */
    int64_t row; /* out: >= 0: a token can be drawn in this pass; the executor's else */
    kg_status status; /* out: other than OK: it could not be scored, with err */
    struct kg_err err;

    /* the executor's */
    int32_t piece_n;
    int64_t piece_row; /* its rows of the current pack */
    int64_t score_row; /* the first of n_scored rows that are wanted for its scores */
    int32_t n_scored;
};

/* One token for one sequence. */
struct kg_exec_step {
    int32_t who;          /* the caller's */
    const int32_t *token; /* borrowed, as all that is pointed to: the newest one, fed */
    int32_t from; /* or that which this row of the pass launched last will have; -1 */
    int32_t pos;  /* of it */
    struct kg_kv_tables blocks;
    int32_t adapter;
    const struct kg_sampling *sampling;
    const int32_t *text; /* (n_text) as the next: see struct kg_sampler_row */
    size_t n_text, n_prompt;
    double u; /* in [0, 1) */
    /* out */
    struct kg_sampler_pick pick;
    const int32_t *top_ids; /* (record_top_k) valid until the next pass, as the next */
    const float *top_logp;
    const uint16_t *experts; /* (C) of the token that was fed; NULL: not recorded */
    kg_status status;        /* other than OK: nothing was drawn, with err */
    struct kg_err err;
};

/* A decode pass: one token for each of its steps. */
struct kg_exec_pass {
    struct kg_exec_step *steps; /* (rows) */
    int32_t n;
    int top_k;            /* the widest of its sequences */
    bool keeps;           /* a sequence of it records what was kept */
    bool records_experts; /* or experts */
};
enum { KG_EXEC_PASSES = 2 };

struct kg_exec {
    const struct kg_model *m; /* borrowed */
    int64_t parameters;       /* of m, frozen ones too */
    int32_t max_batch, prefill_chunk;
    int32_t rows; /* of a decode step at most, those without a sequence too */
    int32_t spare[KG_KV_KINDS]; /* the block of these rows */
    struct kg_kv *kv;           /* owned */
    struct kg_worker *workers;  /* (n_workers) owned: what one thread needs */
    int n_workers;
    int32_t *top_ids; /* (rows,top_capacity) owned, as the next; rows of top_k */
    float *top_logp;
    uint16_t *experts; /* (rows,C) owned; NULL: none records */
    int top_capacity;
    int top_k;           /* of what is in the arrays now: the widest of its sequences */
    double draw_seconds; /* of the pass taken last, by its threads together */
    bool ahead;          /* a pass may be launched before the one before it was taken */
    /* pass n is n % KG_EXEC_PASSES; numbers go on through all sessions */
    struct kg_exec_pass passes[KG_EXEC_PASSES];
    int64_t launched, taken;

    struct kg_block memory;         /* owned: what follows stands in it */
    struct kg_exec_prompt *prompts; /* (max_batch+1) by the caller's numbers */
    struct kg_exec_prompt **wanted; /* (max_batch+1) of the current pass, in order */
    struct kg_exec_step *steps;     /* (KG_EXEC_PASSES rows) */
    int32_t *from;                  /* (rows) as of steps, where passes go ahead */
    double *prompt_lse;             /* (prefill_chunk) of a prompt that is scored */
    float *logits;                  /* (max_batch,V) of rows that are drawn here */
    double *lse;                    /* (rows) */
    struct kg_draw *how;            /* (rows) where the backend draws, as below */
    struct kg_drawn *drawn;         /* (rows) */
    float **adjusted;               /* (rows) see struct kg_draws */
    uint64_t *kept;                 /* (rows,(V+63)/64) owned; NULL: none records */
};

/* n_blocks: of the cache.   errors: ENOMEM, EINVAL; release it all the same */
kg_status kg_exec_init(struct kg_exec *x, const struct kg_model *m,
                       const struct kg_rollout_opts *opts, struct kg_kv_size n_blocks,
                       struct kg_err *err) KG_MUST_CHECK;
void kg_exec_release(struct kg_exec *x);
/* Blocks that its cache has where n are asked for: more by those of nobody's rows. */
struct kg_kv_size kg_exec_blocks(const struct kg_model *m, struct kg_kv_size n);
/* What it will hold beside the cache. */
struct kg_bytes kg_exec_memory(const struct kg_model *m,
                               const struct kg_rollout_opts *opts);
/* As many workers as there are threads now; no pass is in flight.   errors: ENOMEM */
kg_status kg_exec_begin(struct kg_exec *x, struct kg_err *err) KG_MUST_CHECK;
/* Room for what this sampling needs and records; not within a pass.   errors: ENOMEM */
kg_status kg_exec_reserve(struct kg_exec *x, const struct kg_sampling *s,
                          struct kg_err *err) KG_MUST_CHECK;

/* A pass: compute the first n that are wanted, in order, pieces of several beside each
 * other: one chunk, or all that is missing. Of those that are complete the last row is
 * asked about; of one that is complete already it was kept.
 * n_tokens: added to, tokens that were computed */
kg_status kg_exec_prompts(struct kg_exec *x, int32_t n, bool one_chunk, int64_t *n_tokens,
                          struct kg_err *err) KG_MUST_CHECK;
/* A token behind a prompt that is ready; nothing is fed. A failure is the step's own. */
void kg_exec_draw(struct kg_exec *x, struct kg_exec_step *step,
                  const struct kg_exec_prompt *prompt);
/* The pass that is launched next: its first n steps say what is fed and how a token is
 * drawn. With `ahead` one more may be launched before the first is taken. */
static inline struct kg_exec_pass *kg_exec_next(struct kg_exec *x)
{
    return &x->passes[x->launched % KG_EXEC_PASSES];
}
static inline bool kg_exec_flies(const struct kg_exec *x)
{
    return x->taken < x->launched;
}
kg_status kg_exec_launch(struct kg_exec *x, int32_t n, struct kg_err *err) KG_MUST_CHECK;
/* Wait for the first that is in flight: its tokens. Drawing fails one by one.
 * *out: valid until the next but one is filled in */
kg_status kg_exec_take(const struct kg_exec_pass **out, struct kg_exec *x,
                       struct kg_err *err) KG_MUST_CHECK;
/* Wait for what is in flight, of which nothing is wanted. */
kg_status kg_exec_drop(struct kg_exec *x, struct kg_err *err) KG_MUST_CHECK;

#endif
