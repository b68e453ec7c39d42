/* One function walks over a table: without a block it counts bytes, with one it also sets
 * pointers. So planned and used bytes cannot differ. Sizes are rounded up to 64 bytes,
 * so that arrays are aligned and threads that fill two arrays share no cache line. */
#include "base/columns.h"

#include "base/mem.h"

#include <string.h>

enum { LINE = 64 };

static void set(void *object, const struct kg_column *c, void *array)
{
    memcpy((char *)object + c->field, &array, sizeof array);
}

/* returns the bytes of all arrays; UINT64_MAX on overflow */
static uint64_t walk(void *object, char *block, const struct kg_column *columns,
                     const size_t *counts)
{
    size_t at = 0, bytes;

    for (const struct kg_column *c = columns; c->size > 0; c++) {
        size_t count = counts[c->count];

        if (count == KG_COLUMN_ABSENT) {
            if (block)
                set(object, c, NULL);
            continue;
        }
        if (block)
            set(object, c, block + at);
        if (__builtin_mul_overflow(count, c->size, &bytes) ||
            bytes > SIZE_MAX / 4 - LINE - at)
            return UINT64_MAX;
        at += (bytes + LINE - 1) / LINE * LINE;
    }
    return at;
}

uint64_t kg_columns_bytes(const struct kg_column *columns, const size_t *counts)
{
    return walk(NULL, NULL, columns, counts);
}

/* Makes the block hold at least `bytes`, zeroed. */
static kg_status reserve(struct kg_block *block, size_t bytes, const char *what,
                         struct kg_err *err)
{
    if (block->memory && bytes <= block->capacity) {
        memset(block->memory, 0, bytes);
        return KG_OK;
    }
    kg_mem_free(block->memory);
    block->capacity = 0;
    KG_TRY(kg_mem_new(&block->memory, bytes, 1, what, err));
    block->capacity = bytes;
    return KG_OK;
}

void kg_columns_place(void *memory, void *object, const struct kg_column *columns,
                      const size_t *counts)
{
    walk(object, memory, columns, counts);
}

kg_status kg_columns_take(struct kg_block *block, void *object,
                          const struct kg_column *columns, const size_t *counts,
                          const char *what, struct kg_err *err)
{
    kg_status status = reserve(block, kg_columns_bytes(columns, counts), what, err);

    if (status == KG_OK)
        walk(object, block->memory, columns, counts);
    else
        kg_columns_free(block, object, columns);
    return status;
}

void kg_columns_free(struct kg_block *block, void *object,
                     const struct kg_column *columns)
{
    kg_mem_free(block->memory);
    *block = (struct kg_block){0};
    for (const struct kg_column *c = columns; c->size > 0; c++)
        set(object, c, NULL);
}
