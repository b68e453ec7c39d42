/* Inside lib/: the way in and out of the library.
 *
 * Public structs carry their size, so that a program built against an older or newer
 * header works: what the caller's struct lacks is zero, and what this library does not
 * know must be zero. Everything behind that is the modules' own.
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

/* own (own_bytes) out: the caller's struct as far as both know it, the rest zero.
 * errors: EINVAL (NULL, size not set, a field set that this library does not know) */
kg_status kg_lib_take(void *own, size_t own_bytes, const void *theirs, const char *name,
                      struct kg_err *err) KG_MUST_CHECK;
/* The same struct back to the caller, as far as both know it. */
void kg_lib_give(void *theirs, const void *own, size_t own_bytes);

#define KG_LIB_TAKE(own, theirs, err)                                                    \
    KG_TRY(kg_lib_take(&(own), sizeof(own), theirs, #theirs, err))

/* Status and error to the caller, whose err may be NULL. */
int kg_lib_report(kg_status status, const struct kg_err *mine, struct kedge_err *err);

/* errors: EINVAL, when a pointer that must be given is NULL */
kg_status kg_lib_given(const void *pointer, const char *name,
                       struct kg_err *err) KG_MUST_CHECK;

/* begin (S+1) starts at 0, never falls and ends at n (n < 0: anywhere).
 * errors: EINVAL */
kg_status kg_lib_check_begin(const int64_t *begin, int64_t n_seqs, int64_t n,
                             const char *name, struct kg_err *err) KG_MUST_CHECK;

/* Of (n) log-probs no finite one is above 1: rounding leaves one a little above 0, more
 * is something else. NULL is allowed.   errors: EINVAL */
kg_status kg_lib_check_logp(const double *x, int64_t n, const char *name,
                            struct kg_err *err) KG_MUST_CHECK;

/* The numbers of the algorithm and what its rows need of each other; every need counts
 * as met, and compositions that mislead pass. */
kg_status kg_lib_check_algo(const struct kedge_algo *algo,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
