/* The executor: runs forward, head and sampling for given tokens.
 *
 * The caller gives tokens, positions, cache blocks and sampling parameters; the executor
 * packs, runs the forward and the head, and draws. It has no queues, requests or
 * trajectories.
 */
#ifndef KG_ROLLOUT_EXECUTOR_H
#define KG_ROLLOUT_EXECUTOR_H

#include "model/rows.h"
#include "rollout/rollout.h"
#include "rollout/sampler.h"

/* Tokens to compute before a sequence can draw. */
struct kg_exec_prompt {
    const int32_t *tokens; /* (n) borrowed */
    int32_t n;
    int32_t cached;                        /* number of tokens whose keys are cached */
    struct kg_kv_tables blocks;            /* borrowed: from position 0 on */
    int32_t adapter;                       /* see struct kg_pack_seq */
    const struct kg_sampling *sampling;    /* borrowed: temperature and record widths */
    const struct kg_prompt_scores *scores; /* borrowed; NULL: no scores */
    int64_t index;                         /* index of the prompt, for errors */
    uint16_t *experts; /* (n,C) borrowed; out: experts of computed tokens; or NULL */
    /* a later pass draws further tokens after this prompt; at most one prompt has it */
    bool again;
    int64_t row;      /* out: >= 0 if a token can be drawn after this pass */
    kg_status status; /* out: if not OK, scoring failed with err */
    struct kg_err err;

    /* private to the executor */
    int32_t piece_n;
    int64_t piece_row; /* row of the prompt's piece in the current pack */
    int64_t score_row; /* the first of n_scored rows to score */
    int32_t n_scored;
};

/* Draws one token of one sequence. */
struct kg_exec_step {
    int32_t who;          /* the caller's number of the sequence */
    const int32_t *token; /* the newest token, to be fed; all pointers are borrowed */
    int32_t from;         /* row of the last pass whose token is fed instead; -1: none */
    int32_t pos;          /* position of the fed token */
    struct kg_kv_tables blocks;
    int32_t adapter;
    const struct kg_sampling *sampling;
    const int32_t *text; /* (n_text) see struct kg_sampler_row */
    size_t n_text, n_prompt;
    double u; /* in [0, 1) */
    /* outputs */
    struct kg_sampler_pick pick;
    const int32_t *top_ids; /* (record_top_k) valid until the next pass */
    const float *top_logp;
    const uint16_t *experts; /* (C) experts of the fed token; NULL: not recorded */
    kg_status status;        /* if not OK, nothing was drawn; err has the reason */
    struct kg_err err;
};

/* A decode pass: one token for each step. */
struct kg_exec_pass {
    struct kg_exec_step *steps; /* (rows) */
    int32_t n;
    int top_k;            /* maximum over its sequences */
    bool keeps;           /* some sequence records kept sets */
    bool records_experts; /* some sequence records experts */
};
enum { KG_EXEC_PASSES = 2 };

struct kg_exec {
    const struct kg_model *m; /* borrowed */
    int64_t parameters;       /* number in m, including frozen ones */
    int32_t max_batch, prefill_chunk;
    /* maximum rows of a decode step, including padding rows without a sequence */
    int32_t rows;
    int32_t spare[KG_KV_KINDS]; /* the cache block of rows without a sequence */
    struct kg_kv *kv;           /* owned */
    struct kg_worker *workers;  /* (n_workers) owned: buffers per thread */
    int n_workers;
    int32_t *top_ids; /* (rows,top_capacity) owned, as top_logp; row r at r*top_k */
    float *top_logp;
    uint16_t *experts; /* (rows,C) owned; NULL: not recorded */
    int top_capacity;
    int top_k;           /* width of the arrays now: maximum over sequences */
    double draw_seconds; /* time to draw in the last pass taken, mean over threads */
    bool ahead;          /* a pass may be launched before the previous is taken */
    /* pass n is at n % KG_EXEC_PASSES; n counts all passes of all sessions */
    struct kg_exec_pass passes[KG_EXEC_PASSES];
    int64_t launched, taken;

    struct kg_block memory;         /* owned: holds the arrays below */
    struct kg_exec_prompt *prompts; /* (max_batch+1) indexed by the caller */
    struct kg_exec_prompt **wanted; /* (max_batch+1) the current pass's prompts */
    struct kg_exec_step *steps;     /* (KG_EXEC_PASSES rows) */
    int32_t *from;          /* (rows) kg_exec_step.from, if passes are launched ahead */
    double *prompt_lse;     /* (prefill_chunk) for scoring prompts */
    float *logits;          /* (max_batch,V) logits of rows sampled on the host */
    double *lse;            /* (rows) */
    struct kg_draw *how;    /* (rows) parameters for sampling by the backend */
    struct kg_drawn *drawn; /* (rows) */
    float **adjusted;       /* (rows) see struct kg_draws */
    uint64_t *kept;         /* (rows,(V+63)/64) owned; NULL: not recorded */
};

/* n_blocks: of the cache.   errors: ENOMEM, EINVAL. Release x also after an error. */
kg_status kg_exec_init(struct kg_exec *x, const struct kg_model *m,
                       const struct kg_rollout_opts *opts, struct kg_kv_size n_blocks,
                       struct kg_err *err) KG_MUST_CHECK;
void kg_exec_release(struct kg_exec *x);
/* Number of cache blocks allocated when n are requested: adds those of rows without a
 * sequence. */
struct kg_kv_size kg_exec_blocks(const struct kg_model *m, struct kg_kv_size n);
/* Memory besides the cache. */
struct kg_bytes kg_exec_memory(const struct kg_model *m,
                               const struct kg_rollout_opts *opts);
/* Discards passes in flight, and creates one worker for each current thread, or one
 * worker if the backend must be called from one thread.   errors: ENOMEM */
kg_status kg_exec_begin(struct kg_exec *x, struct kg_err *err) KG_MUST_CHECK;
/* Reserves memory for this sampling and its records; not during a pass.   errors:
 * ENOMEM */
kg_status kg_exec_reserve(struct kg_exec *x, const struct kg_sampling *s,
                          struct kg_err *err) KG_MUST_CHECK;

/* One prefill pass over the first n of `wanted`, in order: computes one chunk, or all
 * missing tokens, with pieces of several prompts in a pack. Runs the head on the last row
 * of each complete prompt; if a prompt was complete before, its row was kept (`again`).
 * n_tokens: increased by the number of computed tokens */
kg_status kg_exec_prompts(struct kg_exec *x, int32_t n, bool one_chunk, int64_t *n_tokens,
                          struct kg_err *err) KG_MUST_CHECK;
/* Draws a token after a complete prompt; nothing is fed. A failure is stored in the
 * step. */
void kg_exec_draw(struct kg_exec *x, struct kg_exec_step *step,
                  const struct kg_exec_prompt *prompt);
/* The pass to be launched next, whose first n steps the caller fills. With `ahead` one
 * more may be launched before the first is taken. */
static inline struct kg_exec_pass *kg_exec_next(struct kg_exec *x)
{
    return &x->passes[x->launched % KG_EXEC_PASSES];
}
static inline bool kg_exec_flies(const struct kg_exec *x)
{
    return x->taken < x->launched;
}
kg_status kg_exec_launch(struct kg_exec *x, int32_t n, struct kg_err *err) KG_MUST_CHECK;
/* Waits for the oldest pass in flight and returns its tokens. Failures are per step.
 * *out: valid until the pass after the next is filled */
kg_status kg_exec_take(const struct kg_exec_pass **out, struct kg_exec *x,
                       struct kg_err *err) KG_MUST_CHECK;
/* Waits for the passes in flight and discards them. */
kg_status kg_exec_drop(struct kg_exec *x, struct kg_err *err) KG_MUST_CHECK;

#endif
