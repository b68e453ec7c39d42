/* The headers of FLINT, Arb and Calcium: apart before FLINT 3, together since. */
#ifndef KG_MATH_FLINT_INTERNAL_H
#define KG_MATH_FLINT_INTERNAL_H

#if __has_include(<flint/ca.h>)
#include <flint/acb.h>
#include <flint/arith.h>
#include <flint/ca.h>
#include <flint/fmpq.h>
#else
#include <acb.h>
#include <calcium/ca.h>
#include <flint/arith.h>
#include <flint/fmpq.h>
#endif

#include "math/math_internal.h"

#include <setjmp.h>

/* One evaluation: a tree at a point. A symbol's value is a function of its name and of
 * the number of the point. */
struct kg_math_eval {
    const struct kg_math_tree *tree;
    int point;
    bool whole;     /* symbols are whole numbers: they stand in exponents or factorials */
    bool undefined; /* a division by zero or its like was met */
    bool opaque;    /* something that is not evaluated stood for a value of its own */
    bool large;     /* a number beyond the limits was met */
    bool negative;  /* symbols may be negative */
    slong prec;
    ca_ctx_struct *ctx;
};

/* Each fills out and returns true, or false where the tree has no such value.
 * fmpq: rational numbers alone; acb: rigorous balls; ca: exact numbers. */
bool kg_math_eval_fmpq(struct kg_math_eval *e, fmpq_t out, int node);
bool kg_math_eval_acb(struct kg_math_eval *e, acb_t out, int node);
bool kg_math_eval_ca(struct kg_math_eval *e, ca_t out, int node);
/* A whole number that fits.   returns false where the node is none */
bool kg_math_eval_whole(struct kg_math_eval *e, slong *out, int node, slong limit);

/* ---- the session: FLINT's memory, and the way out when it asks for too much ---- */
enum kg_math_stop {
    KG_MATH_STOP_NONE,
    KG_MATH_STOP_MEMORY, /* more than one answer may take */
    KG_MATH_STOP_WORK,
    KG_MATH_STOP_TIME,
    KG_MATH_STOP_LIBRARY, /* FLINT gave up */
    KG_MATH_STOP_NOMEM,   /* the door of memory refused */
};
struct kg_math_session {
    jmp_buf out;
    struct kg_math_budget *budget;
};
void kg_math_session_begin(struct kg_math_session *s, struct kg_math_budget *budget);
/* stopped: after the jump; frees what the interrupted call held. */
void kg_math_session_end(bool stopped);
/* Count one evaluated node. */
void kg_math_step(void);
const char *kg_math_stop_reason(enum kg_math_stop stop);

#endif
