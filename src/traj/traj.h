/* A trajectory: an array of tokens, each with the source it came from and what was
 * recorded with it.
 *
 * Text is a view of it. It is append-only: nothing is ever re-tokenised, and every mask
 * is made from the tags, never from token values.
 */
#ifndef KG_TRAJ_TRAJ_H
#define KG_TRAJ_TRAJ_H

#include "base/idset.h"
#include "base/status.h"
#include "base/str.h"
#include "traj/further.h"

#include <stdbool.h>
#include <stdint.h>

enum kg_source {
    KG_SOURCE_PROMPT = 0,
    KG_SOURCE_MODEL, /* sampled by the policy: the only tokens that carry a loss */
    KG_SOURCE_TOOL,  /* observation */
    KG_SOURCE_COUNT
};
/* 'p', 'm', 't': how dumps write a source */
char kg_source_letter(enum kg_source source);

enum kg_finish {
    KG_FINISH_NONE = 0,  /* still going */
    KG_FINISH_STOP,      /* an EOS id */
    KG_FINISH_STRING,    /* a stop string */
    KG_FINISH_LENGTH,    /* the token limit */
    KG_FINISH_CANCELLED, /* given up by whoever asked for it */
    KG_FINISH_COUNT
};
/* "none", "stop", "stop_string", "length", "cancelled" */
const char *kg_finish_name(enum kg_finish finish);
/* errors: EFORMAT (a name of none: those that there are), with `where` in front */
kg_status kg_finish_find(enum kg_finish *finish, const char *name, const char *where,
                         struct kg_err *err) KG_MUST_CHECK;

/* What happened in an episode; turns 0: an answer of one turn. */
struct kg_traj_episode {
    int32_t turns;   /* of the model */
    int32_t calls;   /* tool calls that were carried out */
    int32_t invalid; /* turns without a legal action */
    int32_t failed;  /* calls that no tool answered */
    bool answered;   /* it ended by the model's answer */
    bool cut;        /* it ended because the context was full */
};

/* A turn that was sampled from less than all text before it: tokens from `begin` on, up
 * to the next of these, were drawn given tokens [from, ..) alone. */
struct kg_traj_window {
    size_t begin, from;
};

enum { KG_TRAJ_CHOOSES = UINT16_MAX };

enum { KG_TRAJ_PARTS = 8 }; /* rewards of an answer that are kept by themselves */

struct kg_traj {
    int32_t *tokens; /* (T) owned */
    uint8_t *source; /* (T) enum kg_source */
    /* (T) the sampler's log-prob of the token; 0 where source is not MODEL */
    float *logp;
    /* (T,K) the sampling policy's K most likely ids at the position; NULL when K is 0 */
    int32_t *top_ids;
    float *top_logp; /* (T,K) their log-probs */
    /* (T) number of ids kept by truncated sampling, 0 for all of the vocabulary; NULL
     * when unused */
    int32_t *kept_n;
    uint32_t *kept_bytes; /* (T) of them as sets (base/idset.h); NULL as kept_n */
    uint8_t *kept;        /* the sets of all positions in order, kept_total bytes */
    size_t kept_total;
    size_t kept_capacity;
    int32_t kept_bound; /* ids of the vocabulary, where something is kept */
    /* tokens drawn from less than the vocabulary, recorded or not, and the sum of -log of
     * the mass that they were drawn from */
    int64_t cut_n;
    double cut_nats;
    int choices; /* C: experts that a token has over all layers; 0: not recorded */
    /* (T,C) those that the sampler chose; KG_TRAJ_CHOOSES where it has not computed the
     * token: the last one was drawn and never fed. NULL when C is 0 */
    uint16_t *experts;
    size_t n; /* T */
    size_t capacity;
    int top_k;       /* K */
    size_t prompt_n; /* tokens of the prompt */
    enum kg_finish finish;
    int64_t prompt_index;       /* row of the data set */
    uint64_t draw;              /* draw number of the prompt in the run: keys the RNG */
    int32_t sample;             /* index within the group */
    double reward;              /* the task's */
    int n_parts;                /* several rewards: how many; else 0 */
    double part[KG_TRAJ_PARTS]; /* (n_parts) without weight; NaN: could not be graded */
    struct kg_further further;  /* said by graders besides */
    double shaping;    /* what training adds to it for length; 0 outside training */
    bool graded;       /* false: could not be graded (counted, never a silent 0) */
    float temperature; /* sampled at */
    struct kg_traj_episode episode;
    struct kg_traj_window *windows; /* (n_windows) owned, in order; 0: there are none */
    size_t n_windows;
    size_t windows_capacity;
};

void kg_traj_release(struct kg_traj *t);
/* Append tokens of one source without records (prompt, observation).   errors: ENOMEM */
kg_status kg_traj_append(struct kg_traj *t, const int32_t *tokens, size_t n,
                         enum kg_source source, struct kg_err *err) KG_MUST_CHECK;
/* Append one sampled token with its records; top_ids/top_logp of length t->top_k; the
 * bound of kept is the same in all of a trajectory. */
struct kg_traj_step {
    int32_t token;
    float logp;
    const int32_t *top_ids;
    const float *top_logp;
    float cut;            /* -log of the mass that truncation left; 0: all of it */
    struct kg_idset kept; /* n 0: all ids, or not recorded */
};
kg_status kg_traj_push(struct kg_traj *t, const struct kg_traj_step *step,
                       struct kg_err *err) KG_MUST_CHECK;
/* Record what was kept at token j: tokens in order, none of which has a set from j on.
 * errors: ENOMEM */
kg_status kg_traj_keep(struct kg_traj *t, size_t j, const struct kg_idset *kept,
                       struct kg_err *err) KG_MUST_CHECK;
/* The set of token j, whose bytes begin at *at of t->kept; moves *at behind it. */
struct kg_idset kg_traj_kept(const struct kg_traj *t, size_t j, size_t *at);
/* Record the experts (n,C) of tokens [j, j+n). */
void kg_traj_route(struct kg_traj *t, size_t j, size_t n, const uint16_t *experts);
/* Number of MODEL tokens. */
size_t kg_traj_model_tokens(const struct kg_traj *t);

/* What is pushed from here on is drawn given tokens [from, ..) alone; 0 < from < t->n.
 * errors: ENOMEM */
kg_status kg_traj_open_window(struct kg_traj *t, size_t from,
                              struct kg_err *err) KG_MUST_CHECK;

/* What is computed as one sequence to meet the log-probs that were recorded: tokens
 * [from, end), of which [begin, end) were drawn in this context. The parts hold every
 * MODEL token once, in order; without windows, or `whole`, there is one, all of it. */
struct kg_traj_part {
    size_t from, begin, end;
};
size_t kg_traj_n_parts(const struct kg_traj *t, bool whole);
struct kg_traj_part kg_traj_part(const struct kg_traj *t, size_t i, bool whole);
/* Tokens of all parts: what a forward pass over the trajectory computes. */
size_t kg_traj_span(const struct kg_traj *t, bool whole);

/* One line of JSON, the dump format of rollouts:
 *   prompt_index, draw, sample   which trajectory this is
 *   finish                       "stop", "stop_string", "length", "cancelled";
 *                                "none": goes on
 *   reward, graded               reward is null when the response could not be graded
 *   shaping                      added to the reward for length (0: none)
 *   rewards {NAME: number}       of several rewards alone: each without its weight, null
 *                                when it could not be graded
 *   further {NAME: number}       what graders said besides, where one said something:
 *                                null where it was not said of this answer
 *   advantage                    null when not given
 *   temperature, prompt_n        prompt_n tokens of the prompt come first
 *   tokens [int]                 every token in order
 *   source "ppmmt"               one letter a token: p prompt, m model, t tool
 *   logp [number or null]        one a token: the sampler's log-prob; null outside m
 *   experts [[int] or null]      where they are recorded: C ids a token, layer by layer;
 *                                null where the sampler has not computed it
 *   anchor_logp [number or null] the anchor's, likewise; only when given
 *   turns, calls, invalid, failed, answered, cut     of episodes alone: struct
 *                                kg_traj_episode
 *   windows [[begin, from]]      of episodes alone: struct kg_traj_window
 *   text                         only when given
 * Numbers read back as the same float32 (logp, temperature) or float64 (reward,
 * advantage).
 * appended with a newline */
struct kg_traj_notes {
    const double *advantage;               /* of the trajectory; NULL: none */
    const double *anchor_logp;             /* of its MODEL tokens in order; NULL: none */
    const struct kg_str *text;             /* NULL: none */
    const char *part_names[KG_TRAJ_PARTS]; /* (n_parts) of its rewards */
    /* NULL: none; of the numbers that the lines of a file have, bit by bit */
    const struct kg_further_names *further;
    uint32_t further_mask;
};
kg_status kg_traj_put_json(struct kg_str *out, const struct kg_traj *t,
                           const struct kg_traj_notes *notes,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
