/* Who was lost, when a rank was waited for too long.
 *
 * A rank may wait for one that itself waits for a third. The third is to be named, and by
 * one of them. So a rank that comes near its limit asks all others; who waits too, for
 * whomever and in whatever operation, answers for whom, since a wait looks for questions;
 * who computes, hangs or is cut off does not. At the limit the lost rank is the lowest
 * that did not answer of those for whom somebody waits who did. Every step is behind a
 * limit, so it ends whoever answers; where all answer (they wait in a ring) the one that
 * is waited for directly is named.
 */
#ifndef KG_RANKS_LOST_H
#define KG_RANKS_LOST_H

#include "ranks/ranks.h"

/* Ranks that may share memory. */
enum { KG_RANKS_SOCKETS = 64 };

/* The first rank that was lost: whoever finds it gone or silent writes it here before it
 * leaves. In memory that all ranks see, where they are of one machine: nobody takes one
 * that left for the cause. {0}: none */
struct kg_ranks_loss {
    atomic_int who; /* its number + 1; below 0 that of a silent one: -(number + 1) */
    atomic_int by;  /* who says it; set behind `who` */
    /* it left by itself, as what another sent it is not what it expects */
    atomic_bool unlike;
    /* where memory is shared: questions so far, and what each rank answered */
    atomic_uint question;
    struct {
        atomic_uint to;         /* the last question that it answered */
        _Atomic uint64_t waits; /* bit p: it waits for rank p */
    } answer[KG_RANKS_SOCKETS];
};

/* When a rank that waits has to do what. */
struct kg_roll_clock {
    double since; /* something moved */
    double asked; /* 0: it did not since */
};
enum kg_roll_moment { KG_ROLL_WAIT, KG_ROLL_ASK, KG_ROLL_OVER };
void kg_roll_moved(struct kg_roll_clock *c);
/* Now, of a wait of wait_s at most (0: for ever): it is to ask half of it before the end,
 * 5 s at most, and the others have that time to answer, even where this rank was stopped
 * meanwhile. */
enum kg_roll_moment kg_roll_look(struct kg_roll_clock *c, double wait_s);

/* What was answered to a question. */
struct kg_roll {
    int n, me;
    unsigned char *here;   /* (n) borrowed; it answered */
    unsigned char *wanted; /* (n) borrowed; one that is here waits for it */
};
/* Nobody has answered but this rank.   room: (2 n) borrowed; waits: (n) not 0: this rank
 * waits for it */
void kg_roll_begin(struct kg_roll *roll, unsigned char *room, int n, int me,
                   const unsigned char *waits);
void kg_roll_answer(struct kg_roll *roll, int rank, const unsigned char *waits);
/* The rank that was lost; `direct` where all that are waited for are here. */
int kg_roll_missing(const struct kg_roll *roll, int direct);
/* The lowest rank that is here. */
int kg_roll_lowest(const struct kg_roll *roll);

/* The error of a loss.   who: as kg_ranks_loss has it; takes: it takes nothing, where it
 * owes nothing.   returns EIO (gone), ETIMEOUT (silent) */
kg_status kg_ranks_say_lost(const struct kg_ranks *r, int who, bool takes,
                            const char *what, struct kg_err *err);

#endif
