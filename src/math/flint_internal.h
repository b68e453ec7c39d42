/* The headers of FLINT, Arb and Calcium, which FLINT 3 unites. */
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

/* The value of a bound name: an integer, or all numbers of a ball. */
struct kg_math_bound {
    const char *name;
    slong value;
    const arb_struct *range; /* NULL: value */
    const struct kg_math_bound *outer;
};
/* One evaluation of a tree at a sample point. A symbol's value is a function of its name
 * and the number of the point. */
struct kg_math_eval {
    const struct kg_math_tree *tree;
    int point;
    bool whole; /* symbols are integers, because they occur in exponents or factorials */
    bool undefined; /* set by a division by zero and similar cases */
    bool opaque;    /* a part that is not evaluated counts as an unknown value */
    bool large;     /* set by a number that exceeds the limits */
    bool negative;  /* symbols may be negative */
    bool real;      /* roots of negative numbers are undefined */
    const struct kg_math_bound *bound; /* the innermost */
    slong prec;
    ca_ctx_struct *ctx;
};

/* Each sets out and returns true, or returns false if the node has no value of this kind.
 * fmpq: rationals; acb: rigorous balls; ca: Calcium's exact numbers. */
bool kg_math_eval_fmpq(struct kg_math_eval *e, fmpq_t out, int node);
bool kg_math_eval_acb(struct kg_math_eval *e, acb_t out, int node);
bool kg_math_eval_ca(struct kg_math_eval *e, ca_t out, int node);

static inline bool kg_math_is_within(const fmpz_t n, slong limit)
{
    return fmpz_cmp_si(n, -limit) >= 0 && fmpz_cmp_si(n, limit) <= 0;
}

/* ---- the walk over a tree, shared by all kinds of numbers (eval.c) ---- */
enum kg_math_answer { KG_MATH_NO, KG_MATH_YES, KG_MATH_WALK /* do the generic walk */ };
/* Operations of one kind of numbers. z and x are of that kind, and z is changed in place.
 * They return false or NO if there is no value. */
struct kg_math_algebra {
    uint32_t functions; /* bit n: enum kg_math_func n */
    slong terms;        /* maximum number of terms of a sum */
    void (*init)(struct kg_math_eval *e, void *z);
    void (*clear)(struct kg_math_eval *e, void *z);
    enum kg_math_answer (*direct)(struct kg_math_eval *e, void *z, int node);
    bool (*constant)(struct kg_math_eval *e, void *z, int op);
    /* z + x, z x, z / x, z^x; z^x only for kinds with exponentials */
    bool (*binary)(struct kg_math_eval *e, void *z, const void *x, int kind);
    void (*negate)(struct kg_math_eval *e, void *z);
    void (*divide)(struct kg_math_eval *e, void *z, ulong by);
    bool (*function)(struct kg_math_eval *e, void *z, int op);
    enum kg_math_answer (*power)(struct kg_math_eval *e, void *z, const fmpz_t exponent);
    bool (*root)(struct kg_math_eval *e, void *z, slong index); /* 1 <= index */
};
bool kg_math_walk(const struct kg_math_algebra *a, struct kg_math_eval *e, void *z,
                  int node);
/* The binding of a BOUND name; NULL if there is none. */
const struct kg_math_bound *kg_math_bound_find(const struct kg_math_eval *e, int node);
/* Evaluates a node; returns false unless it is an integer from -limit to limit. */
bool kg_math_eval_whole(struct kg_math_eval *e, slong *out, int node, slong limit);

/* ---- the session: FLINT's memory, and the jump out of FLINT at a limit ---- */
enum kg_math_stop {
    KG_MATH_STOP_NONE,
    KG_MATH_STOP_MEMORY, /* the limit per answer */
    KG_MATH_STOP_WORK,
    KG_MATH_STOP_TIME,
    KG_MATH_STOP_LIBRARY, /* FLINT failed */
    KG_MATH_STOP_NOMEM,   /* base/mem refused memory */
};
struct kg_math_session {
    jmp_buf out;
    struct kg_math_budget *budget;
};
void kg_math_session_begin(struct kg_math_session *s, struct kg_math_budget *budget);
/* stopped: FLINT jumped to `out`; then frees the memory of the interrupted call. */
void kg_math_session_end(bool stopped);
/* Counts one evaluated node. */
void kg_math_step(void);
const char *kg_math_stop_reason(enum kg_math_stop why);

#endif
