/* Ranks: several processes that make one run, each a share of it, and what they say to
 * each other.
 *
 * All ranks call the same things in the same order. Nothing here adds numbers: bytes go
 * from where they are to where they are wanted, and who adds them does it in an order of
 * his own (ranks/tree.h). A transport has one operation, exchange; everything else is
 * made of it.
 *
 * A failure of one rank is a failure of all, at the next place where they agree: the rank
 * that fails goes on to no further exchange but to the next kg_ranks_agree, where the
 * others hear of it. So whatever is exchanged stands behind an agreement, and a status
 * that all have heard is not told again. Where nobody failed all must agree at one place:
 * else the ranks are unlike, and end.
 */
#ifndef KG_RANKS_RANKS_H
#define KG_RANKS_RANKS_H

#include "base/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kg_ranks;

/* How a process ends whose run may go on when it is started again: a rank was lost; and
 * of ranks that would not make one run, which it does not help to start again. */
enum { KG_RANKS_EXIT_LOST = 75, KG_RANKS_EXIT_UNLIKE = 2 };

/* Bytes to or from a rank; n 0: nothing. */
struct kg_ranks_part {
    void *data;
    size_t n;
};

/* Who uses what came where it lies, stretch by stretch: of each part bytes [at, at+n),
 * aligned to 64, which may be written to and are gone behind the call.   lent (n of the
 * ranks); NULL: of a rank that sends nothing */
struct kg_ranks_user {
    void (*use)(void *context, void *const *lent, size_t at, size_t n);
    void *context;
};

enum { KG_RANKS_AHEAD = 4 };
struct kg_ranks_transport {
    const char *name;
    /* out[p] to rank p, in[p] from it, (n of the ranks) each, whose sizes the two agree
     * on, and on `what` it is: a message has a head that says both (ranks/message.h).
     * out and in of the rank itself are empty. One thread at a time.
     * errors: EIO (a rank is gone), ETIMEOUT (nothing came from one for r->wait_s), both
     * with its number; ECONFLICT (a message is not the expected one) */
    kg_status (*exchange)(const struct kg_ranks *r, const struct kg_ranks_part *out,
                          const struct kg_ranks_part *in, const char *what,
                          struct kg_err *err);
    /* The same in two halves, of which KG_RANKS_AHEAD may be between them; the second is
     * of the one that was begun first. NULL, both: `exchange` does not wait for what the
     * others do with it. */
    kg_status (*begin)(const struct kg_ranks *r, const struct kg_ranks_part *out,
                       const struct kg_ranks_part *in, const char *what,
                       struct kg_err *err);
    kg_status (*finish)(const struct kg_ranks *r, const char *what, struct kg_err *err);
    /* As exchange, but what comes is not copied: parts of `in` have no data, and sizes
     * that are alike or 0. NULL: it cannot */
    kg_status (*lend)(const struct kg_ranks *r, const struct kg_ranks_part *out,
                      const struct kg_ranks_part *in, const struct kg_ranks_user *user,
                      const char *what, struct kg_err *err);
    void (*close)(struct kg_ranks *r);
};

struct kg_ranks_loss; /* ranks/lost.h */
struct kg_ranks_nccl; /* ranks/nccl.h */

enum { KG_RANKS_HOST = 64 };

/* Seconds that a rank spent with the others: where they agree, which is waiting, and with
 * what they exchange behind that. */
struct kg_ranks_clock {
    double waiting, exchange;
};

/* {0}: alone; every call below is then done at once. */
struct kg_ranks {
    int me;
    int n;
    int first;              /* of a part (kg_ranks_split): its rank 0 among the whole */
    struct kg_ranks *whole; /* borrowed; NULL: it is no part */
    char (*host)[KG_RANKS_HOST]; /* (n) owned; NULL: not known (kg_ranks_check_alike) */
    struct kg_ranks_loss *loss;  /* borrowed; NULL: who finds one alone knows it */
    int here;        /* ranks that share this one's cores, itself too; 0: none but it */
    double wait_s;   /* for a rank, at most; 0: for ever */
    int exit_status; /* of this process, where a library does not return from its end */
    const struct kg_ranks_transport *transport;
    void *wire;                  /* the transport's */
    struct kg_ranks_nccl *nccl;  /* owned; NULL: there is none, or it is the whole's */
    uint64_t sent;               /* bytes to other ranks so far, by it too */
    struct kg_ranks_clock clock; /* so far; of a part: the whole's */
    bool agreeing;               /* the exchange at work is waiting */
    const char *kind;            /* of its messages; NULL: as it is called */
    bool told;                   /* the failure that is on its way up is known to all */
    bool named;                  /* to a part alone, with the name of who failed */
    bool lost;                   /* the transport failed: nothing more can be said */
    bool unlike;                 /* the ranks would not make one run, or are not at one
                                  * place of it */
    struct kg_err broken;        /* how */
};
void kg_ranks_close(struct kg_ranks *r); /* {0} is allowed, and is what it leaves */

/* Ranks [first, first+n) of a whole by themselves, for one of them; they are named by
 * their numbers in the whole. A failure that such a part knows of is told to the whole at
 * its next agreement.   part (out): no need to close it; whole: borrowed */
void kg_ranks_split(struct kg_ranks *part, struct kg_ranks *whole, int first, int n);
/* "rank 3 (gpu07)", without a host where it is not known. */
struct kg_ranks_name {
    char text[24 + KG_RANKS_HOST];
};
struct kg_ranks_name kg_ranks_name(const struct kg_ranks *r, int rank);

/* Whether all ranks came here without a failure: else all return the error of the lowest
 * that failed, "rank 3 (gpu07): ..".   what: what they were at, for who waits
 * errors: ECONFLICT (nobody failed, and one is at another place) */
kg_status kg_ranks_agree(struct kg_ranks *r, kg_status status, const char *what,
                         struct kg_err *err) KG_MUST_CHECK;
/* The failure that all know of is dealt with: what fails next is told again. */
void kg_ranks_forgive(struct kg_ranks *r);

/* *x: whether it was set on any rank. */
kg_status kg_ranks_any(struct kg_ranks *r, bool *x, const char *what,
                       struct kg_err *err) KG_MUST_CHECK;
/* Of `all`, rank p's bytes end at ends[p]: each has its own, and gets the others'. */
kg_status kg_ranks_gather(struct kg_ranks *r, void *all, const uint64_t *ends,
                          const char *what, struct kg_err *err) KG_MUST_CHECK;
/* The same of n bytes each. */
kg_status kg_ranks_gather_equal(struct kg_ranks *r, void *all, size_t n, const char *what,
                                struct kg_err *err) KG_MUST_CHECK;
/* n bytes of rank 0 to all. */
kg_status kg_ranks_share(struct kg_ranks *r, void *bytes, size_t n, const char *what,
                         struct kg_err *err) KG_MUST_CHECK;
/* As the transport's; a rank's own part is copied. */
kg_status kg_ranks_exchange(struct kg_ranks *r, const struct kg_ranks_part *out,
                            const struct kg_ranks_part *in, const char *what,
                            struct kg_err *err) KG_MUST_CHECK;
/* The same in two halves: what is done between them is done while bytes are on their way,
 * where the transport can; until the second half what they are in is not to be touched.
 * KG_RANKS_AHEAD may be begun at once, by all ranks in one order, and the first of them
 * is finished first. Nothing else is said between. A rank's own part is copied by the
 * first half. */
kg_status kg_ranks_begin(struct kg_ranks *r, const struct kg_ranks_part *out,
                         const struct kg_ranks_part *in, const char *what,
                         struct kg_err *err) KG_MUST_CHECK;
kg_status kg_ranks_finish(struct kg_ranks *r, const char *what,
                          struct kg_err *err) KG_MUST_CHECK;
/* Whether parts can be used where they lie, on all ranks alike: their memory is one. */
bool kg_ranks_lends(const struct kg_ranks *r);
/* Of such ranks: out[p] to each, n bytes from each other one, in the hands of `user`. A
 * rank's own part is not moved. */
kg_status kg_ranks_lend(struct kg_ranks *r, const struct kg_ranks_part *out, size_t n,
                        const struct kg_ranks_user *user, const char *what,
                        struct kg_err *err) KG_MUST_CHECK;

#endif
