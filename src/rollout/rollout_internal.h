/* The engine from inside: sequences, groups, workers. Shared by rollout.c (life and the
 * run), queue.c (what callers submit, cancel, resume), admit.c (from the queue to running
 * sequences: prompts, first tokens) and decode.c (forward, head and draw; what follows
 * from a token).
 *
 * The life of a sequence:
 *
 *   queue -> STARTING (has a row and blocks, waits for its prompt) -> RUNNING -> ENDED
 *     (reported after the pass that ended it) -> free, or PARKED (an episode: keeps its
 *     blocks) -> RESUMING (waits for a row) -> STARTING ...
 *
 * running[] is in no order that could matter: a row's bits depend on its own sequence
 * alone. Every block that a sequence can ever need is taken when it starts, so a running
 * sequence never waits for memory and nothing has to be preempted.
 */
#ifndef KG_ROLLOUT_ROLLOUT_INTERNAL_H
#define KG_ROLLOUT_ROLLOUT_INTERNAL_H

#include "model/rows.h"
#include "rollout/rollout.h"
#include "rollout/sampler.h"

enum kg_seq_state {
    KG_SEQ_FREE = 0,
    KG_SEQ_STARTING,
    KG_SEQ_RUNNING,
    KG_SEQ_ENDED,
    KG_SEQ_PARKED,
    KG_SEQ_RESUMING
};

/* A request of which no sample has started. */
struct kg_pending {
    const struct kg_request *request; /* borrowed */
    struct kg_traj *trajs;            /* (n_samples) borrowed */
};

/* Tokens to compute before sequences can decode: the prompt of a request whose samples
 * are starting, or what a resumed sequence was given. A prompt's group owns one reference
 * to each of its blocks. */
struct kg_group {
    const struct kg_request *request; /* borrowed */
    struct kg_traj *trajs;            /* (n_samples) borrowed */
    struct kg_seq *resumed;           /* NULL: a prompt */
    const int32_t *tokens;            /* (n_tokens) borrowed */
    int32_t n_tokens;
    int32_t *blocks; /* (blocks_per_seq) within the engine's slab */
    int32_t n_blocks;
    /* blocks from here on are written by samples (the one that the prompt fills in part,
     * or all): the last sample shares them and goes on in them, the others copy them */
    int32_t n_shared;
    int32_t cached;  /* tokens whose keys are in the cache */
    int32_t started; /* samples; cancelled ones are passed over */
    int32_t waiting; /* sequences that have no token yet */
    /* of its last hidden state among the rows that wait for their first token; -1: not
     * there */
    int32_t row;
    int64_t piece_row; /* its rows of the current pack of prompts */
    int32_t piece_n;
    int64_t score_row; /* the first of n_scored rows that are wanted for its scores */
    int32_t n_scored;
    kg_status status; /* other than OK: its prompt could not be scored, with err */
    struct kg_err err;
};

struct kg_seq {
    enum kg_seq_state state;
    const struct kg_request *request;   /* borrowed */
    const struct kg_sampling *sampling; /* borrowed */
    struct kg_traj *traj;               /* borrowed */
    int32_t *blocks;                    /* (blocks_per_seq) within the engine's slab */
    int32_t n_blocks;
    struct kg_group *group; /* while STARTING */
    int32_t generated;      /* tokens so far, in all turns */
    int32_t base;   /* first token of the trajectory that its keys are of: position 0 */
    int32_t cached; /* RESUMING: tokens whose keys are in the cache */
    int32_t limit;  /* `generated` at which the turn ends */
    bool ended;     /* by its newest token, or failed */
    bool silent;    /* cancelled within a callback: removed when that is safe */
    struct kg_str text; /* owned: what this turn generated, when stop strings are looked
                         * for */
    kg_status status;   /* other than OK: it failed, with err */
    struct kg_err err;
};

/* What one thread needs to compute a part of a batch. */
struct kg_worker {
    struct kg_rows *rows;              /* owned */
    struct kg_sampler_scratch scratch; /* when sampling truncates or adjusts */
    kg_status status;
    struct kg_err err;
};

struct kg_rollout {
    const struct kg_model *m;       /* borrowed */
    const struct kg_tokenizer *tok; /* borrowed, may be NULL */
    struct kg_rollout_opts opts;
    struct kg_kv *kv;        /* owned */
    int32_t blocks_per_seq;  /* of a sequence of max_len */
    struct kg_seq *seqs;     /* (max_open) owned */
    struct kg_group *groups; /* (max_batch+1) owned: one a row, and one that is open */
    /* ((max_open+max_batch+1)*blocks_per_seq) owned: block lists of seqs and groups */
    int32_t *block_slab;
    struct kg_worker *workers; /* (n_workers) owned */
    int n_workers;
    struct kg_sampler_pick *picks; /* (max_batch) owned: of the current step */
    double *prompt_lse;            /* (prefill_chunk) owned: of a prompt that is scored */
    float *logits;                 /* (max_batch,V) owned */
    double *lse;                   /* (max_batch) owned */
    int32_t *top_ids;              /* (max_batch,top_capacity) owned; rows of top_k */
    float *top_logp;
    int top_capacity;

    /* the session */
    struct kg_rollout_session session;
    struct kg_pending *pending; /* (pending_capacity) owned: pending_n from pending_at */
    size_t pending_capacity;
    size_t pending_at;
    size_t pending_n;
    int64_t n_waiting;        /* samples that have not started */
    struct kg_seq **spare;    /* (max_open) owned, as the next four: free sequences */
    struct kg_seq **running;  /* (max_batch) */
    struct kg_seq **starting; /* (max_batch) in order */
    struct kg_seq **resuming; /* (max_open) in order */
    struct kg_seq **over;     /* (max_batch) ended in this pass, not reported yet */
    int32_t n_spare, n_running, n_starting, n_resuming, n_over, n_parked;
    struct kg_group **order; /* (max_batch+1) owned: the first n_groups in order */
    int32_t n_groups;
    struct kg_group *open; /* the one group with samples that wait for room, or NULL */
    int top_k;             /* of the current pass: the widest of its sequences */
    bool committing;       /* token callbacks are being called */
    bool any_silent;
    struct kg_rollout_stats stats;
    size_t longest; /* tokens that a sequence of the session has reached */
};

static inline int32_t kg_rollout_blocks(int64_t tokens)
{
    return (int32_t)((tokens + KG_KV_BLOCK - 1) / KG_KV_BLOCK);
}
static inline const struct kg_sampling *kg_rollout_sampling(const struct kg_rollout *r,
                                                            const struct kg_request *q)
{
    return q->sampling ? q->sampling : r->session.sampling;
}
static inline int32_t kg_rollout_limit(const struct kg_sampling *s, int32_t max_tokens)
{
    return max_tokens > 0 ? max_tokens : s->max_tokens;
}
/* New tokens of a request's first turn at most. */
static inline int32_t kg_rollout_first_limit(const struct kg_rollout *r,
                                             const struct kg_request *q)
{
    if (q->max_tokens == KG_PROMPT_ONLY)
        return 0;
    return kg_rollout_limit(kg_rollout_sampling(r, q), q->max_tokens);
}
/* Tokens of the prompt and all that can follow. */
static inline int64_t kg_rollout_longest(const struct kg_rollout *r,
                                         const struct kg_request *q)
{
    if (q->context > 0)
        return q->context;
    return (int64_t)q->prompt_n + kg_rollout_first_limit(r, q);
}
/* Whether a turn of it may begin with more text than its window. Then all blocks of its
 * sequences are their own: they will be filled again, and a prompt's would still be
 * others'. */
static inline bool kg_rollout_rewinds(const struct kg_request *q)
{
    return q->window > 0 && q->window < q->context - 1;
}
/* Blocks of one whole sequence: the last token is never fed back unless it is the
 * prompt's, so its key is never stored. */
static inline int32_t kg_rollout_need(const struct kg_rollout *r,
                                      const struct kg_request *q)
{
    int64_t turn = (int64_t)q->window + kg_rollout_first_limit(r, q);
    int64_t longest = kg_rollout_longest(r, q);
    int64_t stored = (kg_rollout_rewinds(q) && turn < longest ? turn : longest) - 1;
    return kg_rollout_blocks(stored > (int64_t)q->prompt_n ? stored
                                                           : (int64_t)q->prompt_n);
}
/* The first of the prompt's blocks that a sample has for itself: the one that the prompt
 * fills in part, or all. */
static inline int32_t kg_rollout_shared(const struct kg_request *q)
{
    return kg_rollout_rewinds(q) ? 0 : (int32_t)(q->prompt_n / KG_KV_BLOCK);
}
/* The copies that the first of several samples needs of them. */
static inline int32_t kg_rollout_copies(const struct kg_request *q)
{
    int32_t all = kg_rollout_blocks((int64_t)q->prompt_n);
    return q->n_samples > 1 ? all - kg_rollout_shared(q) : 0;
}

/* decode.c */
/* Log-probs and logits of the wanted rows of p into the engine's arrays from `first` on;
 * top_k is that of the pass. */
kg_status kg_rollout_head(struct kg_rollout *r, const struct kg_rows *p, int64_t first,
                          struct kg_err *err) KG_MUST_CHECK;
/* Draw the sequence's next token from a row. A failure is the sequence's own. */
void kg_rollout_draw(struct kg_sampler_pick *pick, struct kg_rollout *r,
                     struct kg_worker *w, struct kg_seq *seq, int64_t row);
/* Append the drawn token with row's records; decide whether the turn is over; tell the
 * caller.   errors: of the callback */
kg_status kg_rollout_commit(struct kg_rollout *r, struct kg_seq *seq,
                            const struct kg_sampler_pick *pick, int64_t row,
                            struct kg_err *err) KG_MUST_CHECK;
/* One token for every running sequence, and reports of those that ended. */
kg_status kg_rollout_decode(struct kg_rollout *r, struct kg_err *err) KG_MUST_CHECK;

/* admit.c */
/* Start what has room: rows from the queue, prompts, first tokens. */
kg_status kg_rollout_admit(struct kg_rollout *r, struct kg_err *err) KG_MUST_CHECK;
/* Drop the groups that no sequence waits for any more. */
void kg_rollout_close_groups(struct kg_rollout *r);

/* queue.c */
void kg_rollout_reset(struct kg_rollout *r);
/* Its turn is over: to `over`, without its row. */
void kg_rollout_end(struct kg_rollout *r, struct kg_seq *seq);
/* Take out what was cancelled while token callbacks were called. */
void kg_rollout_purge(struct kg_rollout *r);
/* Tell the caller of those that are over. */
kg_status kg_rollout_report(struct kg_rollout *r, struct kg_err *err) KG_MUST_CHECK;
/* Pass over samples that were cancelled before they started; the group is no longer open
 * when none is left. */
void kg_rollout_skip_cancelled(struct kg_rollout *r, struct kg_group *g);

#endif
