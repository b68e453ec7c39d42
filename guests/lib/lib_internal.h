/* Internal to lib/: conversion of arguments and results.
 *
 * Public structs carry their size, so that programs built against an older or newer
 * header work: fields missing in the caller's struct are taken as zero, and fields that
 * this library does not know must be zero.
 */
#ifndef KG_LIB_LIB_INTERNAL_H
#define KG_LIB_LIB_INTERNAL_H

#include "kedge.h"

#include "base/fpmode.h"
#include "base/status.h"
#include "policy/policy.h"

struct kedge_algo {
    struct kg_algo algo;
};

/* Copies into own (own_bytes) the fields of the caller's struct `theirs` that both
 * versions have; the rest of own is zero. name: of the struct, in messages.
 * errors: EINVAL (theirs is NULL, its size is not set, or an unknown field is set) */
kg_status kg_lib_take(void *own, size_t own_bytes, const void *theirs, const char *name,
                      struct kg_err *err) KG_MUST_CHECK;
/* Copies from own to `theirs` the fields that both versions have. */
void kg_lib_give(void *theirs, const void *own, size_t own_bytes);

#define KG_LIB_TAKE(own, theirs, err)                                                    \
    KG_TRY(kg_lib_take(&(own), sizeof(own), theirs, #theirs, err))

/* Fills the caller's err (NULL is allowed) if status is an error.   returns status */
int kg_lib_report(kg_status status, const struct kg_err *mine, struct kedge_err *err);

/* errors: EINVAL, if a required pointer is NULL */
kg_status kg_lib_given(const void *pointer, const char *name,
                       struct kg_err *err) KG_MUST_CHECK;

/* begin (S+1) must start at 0, never decrease, and end at n (n < 0: anywhere). n_name:
 * name of n in messages; name: name of begin.   errors: EINVAL */
kg_status kg_lib_check_begin(const int64_t *begin, int64_t n_seqs, int64_t n,
                             const char *n_name, const char *name,
                             struct kg_err *err) KG_MUST_CHECK;

/* Checks that none of x (n) is finite and above 1: rounding may leave a log-prob slightly
 * above 0, and 1 is far beyond that. x NULL: nothing to check.   errors: EINVAL */
kg_status kg_lib_check_logp(const double *x, int64_t n, const char *name,
                            struct kg_err *err) KG_MUST_CHECK;

/* Checks the algorithm's numbers and the requirements between its rows; treats all needs
 * as met and allows published combinations that have a wrong gradient. */
kg_status kg_lib_check_algo(const struct kedge_algo *algo,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
