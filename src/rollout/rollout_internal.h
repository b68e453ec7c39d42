/* The engine from inside: slots, groups, workers. Shared by rollout.c (life and the run),
 * admit.c (requests to slots, prompts, first tokens) and decode.c (forward, head and
 * draw; what follows from a token).
 *
 * Slots 0..n_running-1 are the running sequences, in no order that could matter: a row's
 * bits depend on its own sequence alone. Every block that a sequence can ever need is
 * taken when it starts, so a running sequence never waits for memory and nothing has to
 * be preempted.
 */
#ifndef KG_ROLLOUT_ROLLOUT_INTERNAL_H
#define KG_ROLLOUT_ROLLOUT_INTERNAL_H

#include "rollout/rollout.h"
#include "rollout/sampler.h"

/* A prompt whose samples are starting. It owns one reference to each of its blocks. */
struct kg_group {
    const struct kg_request *request; /* borrowed */
    struct kg_traj *trajs;            /* (n_samples) borrowed */
    int32_t *blocks;                  /* (blocks_per_seq) within the engine's slab */
    int32_t n_blocks;
    /* the block that the prompt fills in part, copied for each sample; -1 for none */
    int32_t partial;
    bool partial_moved; /* the last sample has taken it over */
    int32_t cached;     /* prompt tokens whose keys are in the cache */
    int32_t started;    /* samples */
};

struct kg_slot {
    const struct kg_request *request; /* borrowed */
    struct kg_traj *traj;             /* borrowed */
    int32_t *blocks;                  /* (blocks_per_seq) within the engine's slab */
    int32_t n_blocks;
    int32_t group;     /* while it starts */
    int32_t generated; /* tokens so far */
    int32_t limit;     /* tokens at most */
    bool finished;
    struct kg_str text; /* owned: what was generated, when stop strings are looked for */
    struct kg_sampler_pick pick; /* of the current step */
};

/* What one thread needs to compute a part of a batch. */
struct kg_worker {
    struct kg_acts *acts; /* owned */
    int64_t max_rows;
    int32_t *tokens;          /* (max_rows) owned, as the next three */
    int32_t *pos;             /* (max_rows) */
    int32_t *kv_rows;         /* (max_rows) */
    struct kg_attn_seq *seqs; /* (max_rows) */
    int32_t n_seqs;
    int64_t n_rows;
    struct kg_sampler_scratch scratch; /* when sampling truncates */
    kg_status status;
    struct kg_err err;
};

struct kg_rollout {
    const struct kg_model *m;       /* borrowed */
    const struct kg_tokenizer *tok; /* borrowed, may be NULL */
    struct kg_rollout_opts opts;
    struct kg_kv *kv;        /* owned */
    int32_t blocks_per_seq;  /* of a sequence of max_len */
    struct kg_slot *slots;   /* (max_batch) owned */
    struct kg_group *groups; /* (max_batch) owned */
    /* (2*max_batch*blocks_per_seq) owned: slots' and groups' block lists */
    int32_t *block_slab;
    struct kg_worker *workers; /* (n_workers) owned */
    int n_workers;
    /* (max_batch,D) ct, owned data: last prompt row of each group */
    struct kg_mat group_hidden;
    int32_t *last_rows; /* (max_batch) owned: where they stand in a pack */
    float *logits;      /* (max_batch,V) owned */
    double *lse;        /* (max_batch) owned */
    float *inv_temp;    /* (max_batch) owned */
    int32_t *top_ids;   /* (max_batch,top_k) owned, grown to the run's top_k */
    float *top_logp;
    int top_capacity;

    /* the run under way */
    const struct kg_sampling *s;
    const struct kg_request *requests;
    size_t n_requests;
    size_t next_request; /* the next one to open a group for */
    struct kg_traj *next_traj;
    int32_t n_running;
    int32_t n_groups;
    int32_t first_new; /* slots from here on start in this pass */
    kg_rollout_done_fn done;
    void *user;
    struct kg_rollout_stats stats;
};

static inline int32_t kg_rollout_blocks(int64_t tokens)
{
    return (int32_t)((tokens + KG_KV_BLOCK - 1) / KG_KV_BLOCK);
}
static inline int32_t kg_rollout_limit(const struct kg_sampling *s,
                                       const struct kg_request *q)
{
    return q->max_tokens > 0 ? q->max_tokens : s->max_tokens;
}
/* Blocks of one whole sequence: the last token is never fed back, so its key is never
 * stored. */
static inline int32_t kg_rollout_need(const struct kg_sampling *s,
                                      const struct kg_request *q)
{
    return kg_rollout_blocks((int64_t)q->prompt_n + kg_rollout_limit(s, q) - 1);
}

/* decode.c */
/* Start a pack; add a sequence's tokens [pos, pos+n) to it; run it.   hidden: borrowed
 * from the worker's acts */
void kg_worker_clear(struct kg_worker *w);
void kg_worker_add(struct kg_worker *w, const int32_t *tokens, const int32_t *blocks,
                   int32_t pos, int32_t n);
kg_status kg_worker_forward(struct kg_mat *hidden, struct kg_worker *w,
                            struct kg_rollout *r, struct kg_err *err) KG_MUST_CHECK;
/* Log-probs and logits of hidden states into rows [first, first+hidden.rows) of the
 * engine's arrays. */
kg_status kg_rollout_head(struct kg_rollout *r, struct kg_mat hidden, int64_t first,
                          struct kg_err *err) KG_MUST_CHECK;
/* Draw the slot's next token from a row. */
kg_status kg_rollout_draw(struct kg_rollout *r, struct kg_worker *w, struct kg_slot *slot,
                          int64_t row, struct kg_err *err) KG_MUST_CHECK;
/* Append the drawn token with row's records; decide whether the sequence is finished. */
kg_status kg_rollout_commit(struct kg_rollout *r, struct kg_slot *slot, int64_t row,
                            struct kg_err *err) KG_MUST_CHECK;
/* Give back the slots of finished sequences. */
void kg_rollout_sweep(struct kg_rollout *r);
/* One token for every running sequence. */
kg_status kg_rollout_decode(struct kg_rollout *r, struct kg_err *err) KG_MUST_CHECK;

/* admit.c */
/* Start what has room: fill slots from the queue, compute prompts, draw first tokens. */
kg_status kg_rollout_admit(struct kg_rollout *r, struct kg_err *err) KG_MUST_CHECK;

#endif
