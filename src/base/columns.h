/* The arrays of a struct as a table of fields, counts and element sizes.
 *
 * A struct lists its arrays once, in a static table. Counting, placing and freeing read
 * the same rows; all arrays share one block, which one call frees. A block that is large
 * enough is reused, so later steps allocate nothing. Rows refer to counts by index, so
 * that the table is constant:
 *
 *     enum { TOKENS, IDS, COUNTS };
 *     static const struct kg_column columns[] = {
 *         KG_COLUMN(struct batch, tokens, TOKENS),
 *         KG_COLUMN(struct batch, logp_at, IDS),
 *         {0},
 *     };
 *     const size_t counts[COUNTS] = {n, k > 0 ? n * k : KG_COLUMN_ABSENT};
 *     KG_TRY(kg_columns_take(&b->block, b, columns, counts, "loss tokens", err));
 *     ...
 *     kg_columns_free(&b->block, b, columns);
 */
#ifndef KG_BASE_COLUMNS_H
#define KG_BASE_COLUMNS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct kg_column {
    size_t field; /* offset of the pointer in the struct */
    size_t size;  /* bytes of an element; 0 ends a table */
    size_t count; /* index into counts */
};
#define KG_COLUMN(type, name, number)                                                    \
    {                                                                                    \
        offsetof(type, name), sizeof *((type *)0)->name, (number)                        \
    }
/* The block that holds a struct's arrays. {0}: none yet. */
struct kg_block {
    void *memory;    /* owned */
    size_t capacity; /* bytes */
};

/* The field of an array with this count becomes NULL. (With a count of 0 it becomes a
 * valid pointer to zero elements.) */
#define KG_COLUMN_ABSENT SIZE_MAX

/* Bytes of a block in which each array starts on its own cache line; UINT64_MAX on
 * overflow. */
uint64_t kg_columns_bytes(const struct kg_column *columns, const size_t *counts);

/* Places all arrays, zeroed, in *block and sets the fields of `object`. The previous
 * contents of the block are lost. `what` names the block in errors.   errors: ENOMEM,
 * then all fields are NULL */
kg_status kg_columns_take(struct kg_block *block, void *object,
                          const struct kg_column *columns, const size_t *counts,
                          const char *what, struct kg_err *err) KG_MUST_CHECK;
/* kg_columns_take in the caller's kg_columns_bytes() bytes, which are not zeroed. */
void kg_columns_place(void *memory, void *object, const struct kg_column *columns,
                      const size_t *counts);
/* Frees the block and makes the fields NULL. */
void kg_columns_free(struct kg_block *block, void *object,
                     const struct kg_column *columns);

#endif
