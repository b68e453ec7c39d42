/* Memory for test backends that the host cannot access, on a machine without a device.
 *
 * A buffer has its own pages, inaccessible until kg_pages_lend, between guard pages that
 * are always inaccessible. So a stray access, also past the end, faults where it happens.
 * Addresses of freed buffers stay inaccessible and are not reused.
 */
#ifndef KG_EMU_PAGES_H
#define KG_EMU_PAGES_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The buffer is zeroed, aligned to 64 bytes, and ends at the end of its pages as far as
 * alignment allows.
 * returns owned pointer, or NULL with err set.   errors: ENOMEM */
void *kg_pages_alloc(uint64_t bytes, const char *what, struct kg_err *err) KG_MUST_CHECK;
void kg_pages_free(void *memory);

/* total: the limit in KEDGE_TEST_MEMORY, or practically unlimited; held: bytes allocated
 * now; most: maximum of held since the last call. */
struct kg_pages_memory {
    uint64_t total;
    uint64_t held;
    uint64_t most;
};
struct kg_pages_memory kg_pages_memory(void);
/* The backend's slot `memory`. */
kg_status kg_pages_free_bytes(uint64_t *total, uint64_t *free,
                              struct kg_err *err) KG_MUST_CHECK;

/* Whether p points into a buffer, or to its end, as an empty view may. */
bool kg_pages_hold(const void *p);

/* kg_pages_lend makes only the buffers of n views accessible; it skips NULL views.
 * kg_pages_take_back undoes kg_pages_lend. */
void kg_pages_lend(const void *const *views, size_t n);
void kg_pages_take_back(const void *const *views, size_t n);

/* Whether the host may access buffers between operations, for tests that use operands in
 * place. During an operation, only lent buffers are accessible. */
void kg_pages_show(bool on);

#endif
