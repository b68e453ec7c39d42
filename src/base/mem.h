/* All heap memory of kedge is allocated here.
 *
 * Blocks are zeroed and 64-byte aligned; those of a megabyte or more are fresh pages,
 * which take no memory until touched. There are a process-wide cap, current and peak byte
 * counts, and a switch that makes the n-th allocation fail, so that tests can walk every
 * out-of-memory path. All functions may be called from any thread.
 */
#ifndef KG_BASE_MEM_H
#define KG_BASE_MEM_H

#include "base/status.h"

#include <stdint.h>

/* Zeroed block of count*size bytes, 64-byte aligned; `what` names it in the error.
 * returns owned pointer (never NULL for a zero size), or NULL with err set.
 * errors: ENOMEM */
void *kg_mem_calloc(size_t count, size_t size, const char *what,
                    struct kg_err *err) KG_MUST_CHECK;

/* kg_mem_calloc, returning a status. *block is NULL after an error; `block`
 * is the address of a pointer variable. */
kg_status kg_mem_new(void *block, size_t count, size_t size, const char *what,
                     struct kg_err *err) KG_MUST_CHECK;

/* Copies n bytes / a C string.   returns an owned block, or NULL on ENOMEM */
void *kg_mem_copy(const void *bytes, size_t n, const char *what,
                  struct kg_err *err) KG_MUST_CHECK;
char *kg_mem_strdup(const char *text, struct kg_err *err) KG_MUST_CHECK;

/* Makes room for `need` elements of `size` bytes in *block, doubling *capacity (elements)
 * as needed; keeps the contents and zeroes the new part. `max` is the largest allowed
 * element count. `block` is the address of a pointer variable.
 * errors: ENOMEM (also if need > max) */
kg_status kg_mem_grow(void *block, size_t *capacity, size_t need, size_t size, size_t max,
                      const char *what, struct kg_err *err) KG_MUST_CHECK;

/* NULL is allowed. */
void kg_mem_free(void *block);

/* Bytes held now, and the maximum since the last kg_mem_reset_peak. */
uint64_t kg_mem_current_bytes(void);
uint64_t kg_mem_peak_bytes(void);
void kg_mem_reset_peak(void);

/* Refuses allocations that would make kg_mem_current_bytes exceed `bytes`; 0: no cap. */
void kg_mem_set_cap(uint64_t bytes);

/* Tests only: the n-th allocation from now (1 = the next) fails once; 0 is off. */
void kg_mem_fail_at(uint64_t n);

/* Anonymous resident memory of the process in bytes, as the kernel counts it; 0 if
 * unknown. */
uint64_t kg_mem_resident_bytes(void);

#endif
