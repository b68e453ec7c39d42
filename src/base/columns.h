/* The arrays of a struct as a table: which field, how many, of what.
 *
 * A struct of arrays names them once, in a static table; what is needed and what is
 * placed come from the same rows, all arrays stand in one block, and freeing is one call.
 * A block is used again where it is large enough: what a step needs the next one has.
 * Counts are given by number, so that a table stays constant:
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
    size_t field; /* where the pointer stands in the struct */
    size_t size;  /* bytes of an element; 0 ends a table */
    size_t count; /* number of the count */
};
#define KG_COLUMN(type, name, number)                                                    \
    {                                                                                    \
        offsetof(type, name), sizeof *((type *)0)->name, (number)                        \
    }
/* What the arrays of a struct stand in. {0}: nothing yet. */
struct kg_block {
    void *memory;    /* owned */
    size_t capacity; /* bytes */
};

/* As a count: the field is NULL. (A count of 0 gives a pointer to nothing.) */
#define KG_COLUMN_ABSENT SIZE_MAX

/* Bytes of a block, each array on a line of the cache of its own; UINT64_MAX where they
 * are more than memory can hold. */
uint64_t kg_columns_bytes(const struct kg_column *columns, const size_t *counts);

/* All arrays, zero, in *block; `object` is the struct whose fields are set. What stood in
 * the block before is gone. `what` names it in errors.   errors: ENOMEM, then all fields
 * are NULL */
kg_status kg_columns_take(struct kg_block *block, void *object,
                          const struct kg_column *columns, const size_t *counts,
                          const char *what, struct kg_err *err) KG_MUST_CHECK;
/* The same in memory that the caller has, of kg_columns_bytes: it is not touched. */
void kg_columns_place(void *memory, void *object, const struct kg_column *columns,
                      const size_t *counts);
/* Frees the block and makes the fields NULL. */
void kg_columns_free(struct kg_block *block, void *object,
                     const struct kg_column *columns);

#endif
