/* Finds out which rank was lost when a rank waited too long.
 *
 * A rank may wait for one that itself waits for a third; the third must be named. A rank
 * close to its timeout polls all others. Ranks blocked in a wait reply with the ranks
 * they are waiting for, in any operation; busy, hung or disconnected ranks do not reply.
 * The lost rank is the lowest-numbered rank that did not reply and that some replying
 * rank is waiting for. If all replied (they wait in a ring), the lost rank is the one
 * that this rank waits for. Every step has a timeout, so the process always ends.
 */
#ifndef KG_RANKS_LOST_H
#define KG_RANKS_LOST_H

#include "ranks/ranks.h"

/* Maximum number of ranks that share memory, on one machine. */
enum { KG_RANKS_SOCKETS = 64 };

/* The first rank that was lost. The rank that finds it gone or silent writes it here
 * before it leaves. All ranks of one machine share this memory, so that a rank that left
 * because of the loss is not taken for its cause. {0}: none */
struct kg_ranks_loss {
    atomic_int who; /* the rank's number + 1 if gone; -(number + 1) if silent */
    atomic_int by;  /* the rank that reports the loss to the user; set after `who` */
    /* the lost rank left by itself, because of an unexpected message */
    atomic_bool unlike;
    /* if memory is shared: number of polls so far, and each rank's reply */
    atomic_uint question;
    struct {
        atomic_uint to;         /* the last poll that the rank replied to */
        _Atomic uint64_t waits; /* bit p: the rank waits for rank p */
    } answer[KG_RANKS_SOCKETS];
};

/* Decides when a waiting rank polls and when it gives up. */
struct kg_poll_clock {
    double since; /* the time of the last progress */
    double asked; /* time of the poll since then; 0: none */
};
enum kg_poll_moment { KG_POLL_WAIT, KG_POLL_ASK, KG_POLL_OVER };
void kg_poll_moved(struct kg_poll_clock *c);
/* The next act in a wait of at most wait_s (0: no limit). ASK, the poll, comes min(wait_s
 * / 2, 5 s) before the end; the others have that long to reply, counted from the poll, in
 * case this process was stopped before it. */
enum kg_poll_moment kg_poll_look(struct kg_poll_clock *c, double wait_s);

/* The replies to a poll. */
struct kg_poll {
    int n, me;
    unsigned char *here;   /* (n) borrowed; the rank replied */
    unsigned char *wanted; /* (n) borrowed; a replying rank waits for it */
};
/* Begins a poll; this rank's own reply is the first. room: (2 n) borrowed; waits: (n),
 * not 0 for ranks that this rank waits for */
void kg_poll_begin(struct kg_poll *roll, unsigned char *room, int n, int me,
                   const unsigned char *waits);
void kg_poll_answer(struct kg_poll *roll, int rank, const unsigned char *waits);
/* The lost rank; `direct` if all awaited ranks replied. */
int kg_poll_missing(const struct kg_poll *roll, int direct);
/* The lowest rank that replied. */
int kg_poll_lowest(const struct kg_poll *roll);

/* Fails with the error of a loss. who: as in kg_ranks_loss; takes: the rank did not
 * receive; else did not send.   returns EIO (gone), ETIMEOUT (silent), ECONFLICT */
kg_status kg_ranks_say_lost(const struct kg_ranks *r, int who, bool takes,
                            const char *what, struct kg_err *err);

#endif
