/* Open addressing with steps of one, at most two thirds full.
 *
 * A hash is its own place in the table, as it is random already, and what is taken
 * leads to the next place; so a look-up reads neighbours and stays within a line or two
 * of the cache. Nothing is ever removed, which is what makes this table so short. Equal
 * hashes may stand here several times and are handed out one after the other: whether
 * the texts are equal, too, the caller finds out where an entry points.
 */
#include "search/seen.h"

#include "base/mem.h"

void kg_seen_release(struct kg_seen *seen)
{
    kg_mem_free(seen->entries);
    *seen = (struct kg_seen){0};
}

const struct kg_seen_entry *kg_seen_find(const struct kg_seen *seen, uint64_t hash,
                                         size_t *at)
{
    size_t mask = seen->capacity - 1;

    if (seen->capacity == 0)
        return NULL;
    if (*at == SIZE_MAX)
        *at = hash & mask;
    while (seen->entries[*at & mask].hash != 0) {
        const struct kg_seen_entry *e = &seen->entries[(*at)++ & mask];

        if (e->hash == hash)
            return e;
    }
    return NULL;
}

static void place(struct kg_seen *seen, const struct kg_seen_entry *entry)
{
    size_t mask = seen->capacity - 1;
    size_t at = entry->hash & mask;

    while (seen->entries[at].hash != 0)
        at = (at + 1) & mask;
    seen->entries[at] = *entry;
    seen->used++;
}

static kg_status widen(struct kg_seen *seen, struct kg_err *err)
{
    struct kg_seen wider = {.capacity = seen->capacity ? 2 * seen->capacity : 1024};

    wider.entries = kg_mem_calloc(wider.capacity, sizeof *wider.entries, "ids", err);
    if (!wider.entries)
        return KG_ENOMEM;
    for (size_t i = 0; i < seen->capacity; i++)
        if (seen->entries[i].hash != 0)
            place(&wider, &seen->entries[i]);
    kg_seen_release(seen);
    *seen = wider;
    return KG_OK;
}

kg_status kg_seen_add(struct kg_seen *seen, const struct kg_seen_entry *entry,
                      struct kg_err *err)
{
    if (3 * (seen->used + 1) > 2 * seen->capacity)
        KG_TRY(widen(seen, err));
    place(seen, entry);
    return KG_OK;
}
