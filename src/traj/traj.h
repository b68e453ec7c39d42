/* A trajectory: an array of tokens, each with its source and the values recorded with it.
 *
 * Text is derived from the tokens. A trajectory is append-only: nothing is re-tokenised,
 * and every mask is computed from the source tags, never from token values.
 */
#ifndef KG_TRAJ_TRAJ_H
#define KG_TRAJ_TRAJ_H

#include "base/idset.h"
#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

/* Additional numbers that a user's grader returns besides the score; each becomes a
 * metric.
 *
 * The names are known only when a grader returns them, so a table of names grows as they
 * appear. A completion stores the numbers that it has by index. Output is sorted by name,
 * so it does not depend on the order of appearance.
 */
enum {
    KG_FURTHER = 16,      /* numbers per run */
    KG_FURTHER_NAME = 64, /* bytes of a name, with its NUL */
};

struct kg_further_names {
    char name[KG_FURTHER][KG_FURTHER_NAME];
    int n;
};
struct kg_further {
    uint32_t said; /* bit k: x[k] is set for this completion */
    /* bit k: number k is set for at least one completion graded in the same batch */
    uint32_t named;
    double x[KG_FURTHER];
};

/* *k <- the index of a name, which is added if new. name: below KG_FURTHER_NAME bytes
 * errors: EFORMAT (too many names) */
kg_status kg_further_find(int *k, struct kg_further_names *names, const char *name,
                          struct kg_err *err) KG_MUST_CHECK;
/* The indices sorted by name; sets order[0..names->n). */
void kg_further_order(int order[KG_FURTHER], const struct kg_further_names *names);
/* Appends {NAME: number, ...} for the numbers in mask; null if not set. */
kg_status kg_further_put_json(struct kg_str *out, const struct kg_further *f,
                              const struct kg_further_names *names, uint32_t mask,
                              struct kg_err *err) KG_MUST_CHECK;

enum kg_source {
    KG_SOURCE_PROMPT = 0,
    KG_SOURCE_MODEL, /* sampled by the policy: the only tokens with a loss */
    KG_SOURCE_TOOL,  /* observation */
    KG_SOURCE_COUNT
};
/* 'p', 'm', 't': the letters used in dumps */
char kg_source_letter(enum kg_source source);

enum kg_finish {
    KG_FINISH_NONE = 0,  /* not finished */
    KG_FINISH_STOP,      /* an EOS id */
    KG_FINISH_STRING,    /* a stop string */
    KG_FINISH_LENGTH,    /* the token limit */
    KG_FINISH_CANCELLED, /* cancelled by the caller */
    KG_FINISH_COUNT
};
/* "none", "stop", "stop_string", "length", "cancelled" */
const char *kg_finish_name(enum kg_finish finish);
/* errors: EFORMAT (unknown name, lists the valid ones), prefixed with `where` */
kg_status kg_finish_find(enum kg_finish *finish, const char *name, const char *where,
                         struct kg_err *err) KG_MUST_CHECK;

/* The course of an episode; turns is 0 for single-turn samples. */
struct kg_traj_episode {
    int32_t turns;   /* turns of the model */
    int32_t calls;   /* tool calls executed */
    int32_t invalid; /* turns without a legal action */
    int32_t failed;  /* calls that failed */
    bool answered;   /* ended by the model's final answer */
    bool cut;        /* ended because the context or answer_tokens was used up */
    size_t begin;    /* first token of the newest turn */
    /* > 0: paused after a tool call; the weights of this many steps later continue it,
     * beginning with the observation */
    int32_t asked;
    enum kg_finish ended; /* how the turn of that call ended */
};

/* A turn that was sampled with a shortened context: tokens from `begin` up to the next
 * window were drawn given tokens [from, ..) only. */
struct kg_traj_window {
    size_t begin, from;
};

/* Tokens from `begin` on, up to the next entry, were sampled by the weights after
 * `version` steps of the run. */
struct kg_traj_version {
    size_t begin;
    int64_t version;
};

enum { KG_TRAJ_CHOOSES = UINT16_MAX };

enum { KG_TRAJ_PARTS = 8 }; /* maximum number of separate rewards of a trajectory */

struct kg_traj {
    int32_t *tokens; /* (T) owned */
    uint8_t *source; /* (T) enum kg_source */
    /* (T) the sampler's log-prob of the token; 0 where source is not MODEL */
    float *logp;
    /* (T,K) the sampling policy's K most likely ids at the position; NULL when K is 0 */
    int32_t *top_ids;
    float *top_logp; /* (T,K) their log-probs */
    /* (T) number of ids kept by truncated sampling, 0: the whole vocabulary; NULL if
     * unused */
    int32_t *kept_n;
    uint32_t *kept_bytes; /* (T) bytes of each kept set (base/idset.h); NULL as kept_n */
    uint8_t *kept;        /* the sets of all positions in order, kept_total bytes */
    size_t kept_total;
    size_t kept_capacity;
    int32_t kept_bound; /* vocabulary size, if sets are kept */
    /* number of tokens sampled from a truncated distribution, whether or not sets are
     * recorded, and the sum of -log of the kept masses */
    int64_t cut_n;
    double cut_nats;
    int choices; /* C: experts per token over all layers; 0: not recorded */
    /* (T,C) experts chosen by the sampler; KG_TRAJ_CHOOSES if it never computed the
     * token, as for the last one, which is never fed back. NULL if C is 0 */
    uint16_t *experts;
    size_t n; /* T */
    size_t capacity;
    int top_k;       /* K */
    size_t prompt_n; /* tokens of the prompt */
    enum kg_finish finish;
    int64_t prompt_index;       /* row of the data set */
    uint64_t draw;              /* draw number of the prompt in the run; keys the RNG */
    int32_t sample;             /* index within the group */
    double reward;              /* the task's */
    int n_parts;                /* number of separate rewards; 0: a single one */
    double part[KG_TRAJ_PARTS]; /* (n_parts) unweighted; NaN: could not be graded */
    struct kg_further further;  /* additional numbers of graders */
    double shaping;             /* length shaping added in training; 0 outside training */
    bool graded;       /* false: could not be graded (counted, never silently 0) */
    float temperature; /* sampling temperature */
    struct kg_traj_episode episode;
    struct kg_traj_window *windows; /* (n_windows) owned, in order; 0: none */
    size_t n_windows;
    size_t windows_capacity;
    /* (n_versions) owned, in order; 0: one version sampled all of it */
    struct kg_traj_version *versions;
    size_t n_versions;
    size_t versions_capacity;
};

void kg_traj_release(struct kg_traj *t);
/* Appends tokens of one source without records (prompt, observation).   errors: ENOMEM */
kg_status kg_traj_append(struct kg_traj *t, const int32_t *tokens, size_t n,
                         enum kg_source source, struct kg_err *err) KG_MUST_CHECK;
/* Appends one sampled token with its records. top_ids and top_logp have length t->top_k.
 * The bound of `kept` must be the same throughout a trajectory. */
struct kg_traj_step {
    int32_t token;
    float logp;
    const int32_t *top_ids;
    const float *top_logp;
    float cut;            /* -log of the mass left by truncation; 0: no truncation */
    struct kg_idset kept; /* n 0: all ids, or not recorded */
};
kg_status kg_traj_push(struct kg_traj *t, const struct kg_traj_step *step,
                       struct kg_err *err) KG_MUST_CHECK;
/* Records the kept set of token j. Tokens are given in order; none from j on may have a
 * set.
 * errors: ENOMEM */
kg_status kg_traj_keep(struct kg_traj *t, size_t j, const struct kg_idset *kept,
                       struct kg_err *err) KG_MUST_CHECK;
/* The kept set of token j; its bytes begin at *at of t->kept, and *at moves past them. */
struct kg_idset kg_traj_kept(const struct kg_traj *t, size_t j, size_t *at);
/* Appends tokens [begin, end) of another trajectory: the MODEL tokens with their records,
 * the others as observations. Neither may record experts.   errors: ENOMEM */
kg_status kg_traj_extend(struct kg_traj *t, const struct kg_traj *from, size_t begin,
                         size_t end, struct kg_err *err) KG_MUST_CHECK;
/* Records the experts (n,C) of tokens [j, j+n). */
void kg_traj_route(struct kg_traj *t, size_t j, size_t n, const uint16_t *experts);
/* Number of MODEL tokens. */
size_t kg_traj_model_tokens(const struct kg_traj *t);

/* Tokens pushed from now on are drawn given tokens [from, ..) only; 0 < from < t->n.
 * errors: ENOMEM */
kg_status kg_traj_open_window(struct kg_traj *t, size_t from,
                              struct kg_err *err) KG_MUST_CHECK;

/* Records that this version sampled the MODEL tokens from `begin` on.   errors: ENOMEM */
kg_status kg_traj_set_version(struct kg_traj *t, size_t begin, int64_t version,
                              struct kg_err *err) KG_MUST_CHECK;

/* A part is a range that is computed as one sequence to reproduce the recorded log-probs:
 * tokens [from, end). Tokens [begin, end) were drawn in this context. The parts cover
 * every MODEL token once, in order. Without windows, or with `whole`, there is one part:
 * the whole trajectory. A trajectory without completion has no part. */
struct kg_traj_part {
    size_t from, begin, end;
};
size_t kg_traj_n_parts(const struct kg_traj *t, bool whole);
struct kg_traj_part kg_traj_part(const struct kg_traj *t, size_t i, bool whole);
/* Number of tokens of all parts: the length of a forward pass over the trajectory. */
size_t kg_traj_span(const struct kg_traj *t, bool whole);

/* Appends one line of JSON, the dump format of rollouts:
 *   prompt_index, draw, sample   identify the trajectory
 *   finish                       "stop", "stop_string", "length", "cancelled";
 *                                "none": unfinished
 *   reward, graded               reward is null if it could not be graded
 *   shaping                      added to the reward for length (0: none)
 *   rewards {NAME: number}       only with several rewards: each unweighted, null if it
 *                                could not be graded
 *   further {NAME: number}       additional numbers of graders, if there are any; null
 *                                if this trajectory lacks the number
 *   advantage                    null if not given
 *   temperature, prompt_n        the first prompt_n tokens are the prompt
 *   tokens [int]                 every token in order
 *   source "ppmmt"               one letter per token: p prompt, m model, t tool
 *   logp [number or null]       one per token: the sampler's log-prob; null except for m
 *   experts [[int] or null]      if recorded: C ids per token, layer by layer; null if
 *                                the sampler never computed the token
 *   anchor_logp [number or null] the same for the anchor; only if given
 *   turns, calls, invalid, failed, answered, cut     only for episodes: struct
 *                                kg_traj_episode
 *   windows [[begin, from]]      only for episodes: struct kg_traj_window
 *   versions [[begin, version]]  only with rollout.max_staleness: struct
 *                                kg_traj_version
 *   text                         only if given
 * Numbers read back as the same float32 (logp, temperature) or float64 (reward,
 * advantage). */
struct kg_traj_notes {
    const double *advantage;               /* advantage of the trajectory; NULL: none */
    const double *anchor_logp;             /* of the MODEL tokens in order; NULL: none */
    const struct kg_str *text;             /* NULL: none */
    const char *part_names[KG_TRAJ_PARTS]; /* (n_parts) names of its rewards */
    /* NULL: none; bits of further_mask: numbers that occur in the file */
    const struct kg_further_names *further;
    uint32_t further_mask;
};
kg_status kg_traj_put_json(struct kg_str *out, const struct kg_traj *t,
                           const struct kg_traj_notes *notes,
                           struct kg_err *err) KG_MUST_CHECK;

/* Serializes trajectories for transfer between processes of a run: all fields, bit for
 * bit, for a reader of the same build. */

/* Appends t.   errors: ENOMEM */
kg_status kg_traj_pack(struct kg_str *out, const struct kg_traj *t,
                       struct kg_err *err) KG_MUST_CHECK;

/* Input bytes, consumed from the front. */
struct kg_traj_bytes {
    const char *at; /* borrowed */
    size_t left;
};
/* Copies the next n bytes; n = 0 always succeeds.   errors: EFORMAT (fewer are left) */
kg_status kg_traj_bytes_take(void *to, struct kg_traj_bytes *from, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;
/* *t: {0} before; the caller releases it, also after an error
 * errors: EFORMAT (the bytes end early), ENOMEM */
kg_status kg_traj_unpack(struct kg_traj *t, struct kg_traj_bytes *from,
                         struct kg_err *err) KG_MUST_CHECK;

#endif
