/* The headers of FLINT, Arb and Calcium: apart before FLINT 3, together since. */
#ifndef KG_MATH_FLINT_INTERNAL_H
#define KG_MATH_FLINT_INTERNAL_H

#if __has_include(<flint/ca.h>)
#include <flint/acb.h>
#include <flint/arith.h>
#include <flint/ca.h>
#include <flint/fmpq.h>
#include <flint/fmpq_vec.h>
#else
#include <acb.h>
#include <calcium/ca.h>
#include <flint/arith.h>
#include <flint/fmpq.h>
#include <flint/fmpq_vec.h>
#endif

#include "math/math_internal.h"

#include <setjmp.h>

/* A name that stands for a whole number, or for all numbers of a ball. */
struct kg_math_bound {
    const char *name;
    slong value;
    const arb_struct *range; /* NULL: value */
    const struct kg_math_bound *outer;
};
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
    bool real;      /* roots of negative numbers have no value */
    const struct kg_math_bound *bound; /* the innermost */
    slong prec;
    ca_ctx_struct *ctx;
};

/* Each fills out and returns true, or false where the tree has no such value.
 * fmpq: rational numbers alone; acb: rigorous balls; ca: exact numbers. */
bool kg_math_eval_fmpq(struct kg_math_eval *e, fmpq_t out, int node);
bool kg_math_eval_acb(struct kg_math_eval *e, acb_t out, int node);
bool kg_math_eval_ca(struct kg_math_eval *e, ca_t out, int node);

static inline bool kg_math_is_within(const fmpz_t n, slong limit)
{
    return fmpz_cmp_si(n, -limit) >= 0 && fmpz_cmp_si(n, limit) <= 0;
}

/* ---- the walk over a tree, one for all kinds of numbers (eval.c) ---- */
enum kg_math_answer { KG_MATH_NO, KG_MATH_YES, KG_MATH_WALK /* it is for the walk */ };
/* What a kind of numbers does. z and x are its numbers, z is changed in place; what
 * returns false, or NO, has no value. */
struct kg_math_algebra {
    uint32_t functions; /* bit n: enum kg_math_func n */
    slong terms;        /* of a sum, at most */
    void (*init)(struct kg_math_eval *e, void *z);
    void (*clear)(struct kg_math_eval *e, void *z);
    enum kg_math_answer (*direct)(struct kg_math_eval *e, void *z, int node);
    bool (*constant)(struct kg_math_eval *e, void *z, int op);
    /* z + x, z x, z / x, z^x; the last not of a kind without exponentials */
    bool (*binary)(struct kg_math_eval *e, void *z, const void *x, int kind);
    void (*negate)(struct kg_math_eval *e, void *z);
    void (*divide)(struct kg_math_eval *e, void *z, ulong by);
    bool (*function)(struct kg_math_eval *e, void *z, int op);
    enum kg_math_answer (*power)(struct kg_math_eval *e, void *z, const fmpz_t exponent);
    bool (*root)(struct kg_math_eval *e, void *z, slong index); /* 1 <= index */
};
bool kg_math_walk(const struct kg_math_algebra *a, struct kg_math_eval *e, void *z,
                  int node);
/* What a BOUND name stands for; NULL for nothing. */
const struct kg_math_bound *kg_math_bound_find(const struct kg_math_eval *e, int node);
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
const char *kg_math_stop_reason(enum kg_math_stop why);

#endif
