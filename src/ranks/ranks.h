/* Ranks: several processes that share one run, and their communication.
 *
 * All ranks make the same calls in the same order. Nothing here adds numbers: bytes are
 * moved, and the receiver adds them in its own fixed order (ranks/lanes.h). A transport
 * has one operation, exchange; everything else is built on it.
 *
 * A failure of one rank is a failure of all, at the next agreement: a rank that fails
 * skips all exchanges and goes to the next kg_ranks_agree, where the others receive its
 * error. So every exchange must come after an agreement. An error that all ranks have
 * received is not sent again. If no rank failed, all must be at the same agreement;
 * otherwise the ranks differ, and the run ends.
 */
#ifndef KG_RANKS_RANKS_H
#define KG_RANKS_RANKS_H

#include "base/status.h"
#include "base/str.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kg_ranks;

/* Exit statuses. LOST: a rank was lost, and a restart may help. UNLIKE: the ranks do
 * not belong to one run, and a restart does not help. */
enum { KG_RANKS_EXIT_LOST = 75, KG_RANKS_EXIT_UNLIKE = 2 };

/* Bytes to or from a rank; n 0: none. */
struct kg_ranks_part {
    void *data;
    size_t n;
};

/* Uses received bytes in place: `use` gets bytes [at, at+n) of each part, aligned to 64
 * bytes. It may write to them; they are invalid after the call. lent: one pointer per
 * rank; NULL for a rank that sends nothing */
struct kg_ranks_user {
    void (*use)(void *context, void *const *lent, size_t at, size_t n);
    void *context;
};

enum { KG_RANKS_AHEAD = 4 };
struct kg_ranks_transport {
    const char *name;
    /* Sends out[p] to rank p and receives in[p] from it (arrays over the ranks). Both
     * sides must agree on the sizes and on `what`, which the message header carries
     * (ranks/message.h). The rank's own entries are empty. One thread at a time.
     * errors: EIO (a rank is gone), ETIMEOUT (no data from a rank for r->wait_s), both
     * with its number; ECONFLICT (unexpected message) */
    kg_status (*exchange)(const struct kg_ranks *r, const struct kg_ranks_part *out,
                          const struct kg_ranks_part *in, const char *what,
                          struct kg_err *err);
    /* `exchange` in two halves. Up to KG_RANKS_AHEAD exchanges may be begun before the
     * first is finished; they finish in order. Both NULL: kg_ranks_begin calls
     * `exchange`, which does not wait until the other ranks have used the data. */
    kg_status (*begin)(const struct kg_ranks *r, const struct kg_ranks_part *out,
                       const struct kg_ranks_part *in, const char *what,
                       struct kg_err *err);
    kg_status (*finish)(const struct kg_ranks *r, const char *what, struct kg_err *err);
    /* As exchange without copying received data: the parts of `in` have data NULL and
     * equal sizes, or size 0. NULL: not supported */
    kg_status (*lend)(const struct kg_ranks *r, const struct kg_ranks_part *out,
                      const struct kg_ranks_part *in, const struct kg_ranks_user *user,
                      const char *what, struct kg_err *err);
    void (*close)(struct kg_ranks *r);
};

struct kg_ranks_loss; /* ranks/lost.h */
struct kg_ranks_nccl; /* ranks/nccl.h */

enum { KG_RANKS_HOST = 64 };

/* Seconds that a rank spent on communication: waiting in agreements, and exchanging data
 * after them. */
struct kg_ranks_clock {
    double waiting, exchange;
};

/* {0}: a single process; every call below then returns at once. */
struct kg_ranks {
    int me;
    int n;
    int first; /* for a part (kg_ranks_split): number of its rank 0 in the whole */
    struct kg_ranks *whole; /* borrowed; NULL: not a part */
    char (
        *host)[KG_RANKS_HOST];  /* (n) owned; NULL: unknown before kg_ranks_check_alike */
    struct kg_ranks_loss *loss; /* borrowed; NULL: losses are not shared */
    /* number of ranks that share this one's cores, including itself; 0: only this one */
    int here;
    double wait_s;   /* timeout for a rank; 0: none */
    int exit_status; /* exit status of this process if MPI_Finalize does not return */
    const struct kg_ranks_transport *transport;
    void *wire;                  /* state of the transport, which owns it */
    struct kg_ranks_nccl *nccl;  /* owned; NULL: none, or owned by the whole */
    uint64_t sent;               /* bytes sent to other ranks so far, by NCCL too */
    struct kg_ranks_clock clock; /* times so far; for a part: of the whole */
    bool agreeing;               /* the current exchange is an agreement */
    const char *kind;            /* kind in message headers; NULL: the caller's `what` */
    bool told;                   /* all ranks know the failure being returned */
    bool named;           /* only some know the failure; its message names the rank */
    bool lost;            /* the transport failed: no more communication */
    bool unlike;          /* ranks of different runs, or at different points of one */
    struct kg_err broken; /* if lost: the error that all later calls return */
};
void kg_ranks_close(struct kg_ranks *r); /* {0} is allowed, and is the state afterwards */

/* Makes ranks [first, first+n) of `whole` a separate group. Each of them calls this;
 * messages name them as in the whole. A failure that the part knows is sent to the whole
 * at the whole's next agreement. part (out): need not be closed; whole: borrowed */
void kg_ranks_split(struct kg_ranks *part, struct kg_ranks *whole, int first, int n);
/* "rank 3 (gpu07)", without the host if unknown. */
struct kg_ranks_name {
    char text[24 + KG_RANKS_HOST];
};
struct kg_ranks_name kg_ranks_name(const struct kg_ranks *r, int rank);

/* Waits for all ranks. status: of this rank, with *err if it failed. If some failed, all
 * return the error of the lowest such rank, "rank 3 (gpu07): ..". `what`: the current
 * activity, for messages.   errors: ECONFLICT (none failed, but `what` differs) */
kg_status kg_ranks_agree(struct kg_ranks *r, kg_status status, const char *what,
                         struct kg_err *err) KG_MUST_CHECK;
/* Marks the failure that all ranks know of as handled, so that the next one is sent. */
void kg_ranks_forgive(struct kg_ranks *r);

/* *x <- true if *x is true on any rank. */
kg_status kg_ranks_any(struct kg_ranks *r, bool *x, const char *what,
                       struct kg_err *err) KG_MUST_CHECK;
/* Allgather: rank p's bytes end at ends[p] of `all`; each rank fills its own part and
 * gets the others. */
kg_status kg_ranks_gather(struct kg_ranks *r, void *all, const uint64_t *ends,
                          const char *what, struct kg_err *err) KG_MUST_CHECK;
/* kg_ranks_gather with n bytes per rank. */
kg_status kg_ranks_gather_equal(struct kg_ranks *r, void *all, size_t n, const char *what,
                                struct kg_err *err) KG_MUST_CHECK;
/* Gathers own (n bytes) of every rank into a new array (ranks, n). all: address of a
 * pointer to it, which the caller frees, also after an error. made: status of making own.
 * errors: of any rank */
kg_status kg_ranks_gather_own(void *all, struct kg_ranks *r, kg_status made,
                              const void *own, size_t n, const char *what,
                              struct kg_err *err) KG_MUST_CHECK;
/* Broadcasts n bytes of rank 0. */
kg_status kg_ranks_share(struct kg_ranks *r, void *bytes, size_t n, const char *what,
                         struct kg_err *err) KG_MUST_CHECK;
/* As the transport's exchange; a rank's own part is copied. */
kg_status kg_ranks_exchange(struct kg_ranks *r, const struct kg_ranks_part *out,
                            const struct kg_ranks_part *in, const char *what,
                            struct kg_err *err) KG_MUST_CHECK;
/* kg_ranks_exchange in two halves: if the transport can, bytes move while the caller
 * works. Do not touch the buffers until the second half has returned. At most
 * KG_RANKS_AHEAD exchanges may be open, begun by all ranks in the same order and finished
 * in that order, without other communication in between. The first half copies a rank's
 * own part. */
kg_status kg_ranks_begin(struct kg_ranks *r, const struct kg_ranks_part *out,
                         const struct kg_ranks_part *in, const char *what,
                         struct kg_err *err) KG_MUST_CHECK;
kg_status kg_ranks_finish(struct kg_ranks *r, const char *what,
                          struct kg_err *err) KG_MUST_CHECK;
/* Whether received parts can be used in place, because all ranks share memory. */
bool kg_ranks_lends(const struct kg_ranks *r);
/* If kg_ranks_lends: sends out[p] to each rank p, and `user` gets the n bytes from each
 * other rank in place. A rank's own part is not moved. */
kg_status kg_ranks_lend(struct kg_ranks *r, const struct kg_ranks_part *out, size_t n,
                        const struct kg_ranks_user *user, const char *what,
                        struct kg_err *err) KG_MUST_CHECK;

/* The strings of all ranks, of any lengths, concatenated: rank p's ends at ends[p]. */
struct kg_ranks_bytes {
    char *bytes;    /* owned */
    uint64_t *ends; /* (n of the ranks) owned */
};
/* errors: of any rank, ENOMEM. The caller releases *all, also after an error. */
kg_status kg_ranks_bytes_gather(struct kg_ranks_bytes *all, const struct kg_str *own,
                                struct kg_ranks *r, const char *what,
                                struct kg_err *err) KG_MUST_CHECK;
/* kg_ranks_bytes_gather to rank 0 only; on other ranks *all stays empty. */
kg_status kg_ranks_bytes_collect(struct kg_ranks_bytes *all, const struct kg_str *own,
                                 struct kg_ranks *r, const char *what,
                                 struct kg_err *err) KG_MUST_CHECK;
/* Replaces *said on every rank by the concatenation of all ranks' texts.
 * errors: those of kg_ranks_bytes_gather, on all ranks */
kg_status kg_ranks_str_gather(struct kg_str *said, struct kg_ranks *r, const char *what,
                              struct kg_err *err) KG_MUST_CHECK;
void kg_ranks_bytes_release(struct kg_ranks_bytes *all); /* {0} is allowed */

#endif
