/* Memory that the host cannot access, on a machine without a device: for test backends.
 *
 * A buffer has its own pages, inaccessible until opened, between guard pages that never
 * open. So a stray access, or one beyond the end, faults where it happens. Addresses of
 * freed buffers stay inaccessible and are not reused.
 */
#ifndef KG_EMU_PAGES_H
#define KG_EMU_PAGES_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed, aligned to 64 bytes; the buffer ends at the end of its pages, as far as
 * alignment allows.
 * returns owned pointer, or NULL with err set.   errors: ENOMEM */
void *kg_pages_alloc(uint64_t bytes, const char *what, struct kg_err *err) KG_MUST_CHECK;
void kg_pages_free(void *memory);

/* total: the limit in variable KEDGE_TEST_MEMORY, or practically unlimited; held: bytes
 * allocated; most: maximum since the last call. */
struct kg_pages_memory {
    uint64_t total;
    uint64_t held;
    uint64_t most;
};
struct kg_pages_memory kg_pages_memory(void);
/* As the backend's slot `memory`. */
kg_status kg_pages_free_bytes(uint64_t *total, uint64_t *free,
                              struct kg_err *err) KG_MUST_CHECK;

/* Whether p points into a buffer; an empty view may point to its end. */
bool kg_pages_hold(const void *p);

/* Makes only the buffers of n views accessible (NULL: none); and undoes it. */
void kg_pages_lend(const void *const *views, size_t n);
void kg_pages_take_back(const void *const *views, size_t n);

/* Whether the host may access buffers that are not lent: for tests that use operands in
 * place. Operations do not notice. */
void kg_pages_show(bool on);

#endif
