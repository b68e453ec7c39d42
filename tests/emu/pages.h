/* Memory that the host cannot touch, on a machine that has no other: for backends that
 * tests run on.
 *
 * A buffer is pages of its own, closed until they are opened, between pages that never
 * open. So a stray access faults where it happens, and one beyond the end of a buffer
 * as well. A freed buffer's addresses stay closed and are not handed out again.
 */
#ifndef KG_EMU_PAGES_H
#define KG_EMU_PAGES_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeros, aligned to 64 bytes; the buffer ends where its pages end, as far as that allows.
 * returns owned pointer, or NULL with err set   errors: ENOMEM */
void *kg_pages_alloc(uint64_t bytes, const char *what, struct kg_err *err) KG_MUST_CHECK;
void kg_pages_free(void *memory);

/* How much there is: so many bytes as the variable KEDGE_TEST_MEMORY says, beyond which
 * nothing is given, or as good as endless; what is held of it; the most that was held
 * since this was asked last. */
struct kg_pages_memory {
    uint64_t total;
    uint64_t held;
    uint64_t most;
};
struct kg_pages_memory kg_pages_memory(void);
/* As the slot of a table. */
kg_status kg_pages_free_bytes(uint64_t *total, uint64_t *free,
                              struct kg_err *err) KG_MUST_CHECK;

/* Whether p stands in a buffer; a view of no rows may stand at its end. */
bool kg_pages_hold(const void *p);

/* All buffers are closed, but those of n views (NULL: none); and back to what was. */
void kg_pages_lend(const void *const *views, size_t n);
void kg_pages_take_back(const void *const *views, size_t n);

/* From here on the host may touch them while they are not lent, or no more: for tests
 * that fill operands and read results in place. Operations see no difference. */
void kg_pages_show(bool on);

#endif
