/* The double array, walked with care.
 *
 * A unit of the array is a node: the low byte and the top bit are the character that
 * leads to it (a value has the top bit, so it is never taken for one), bit 8 says that a
 * word ends there, the rest is where its children begin, relative to it by exclusive or.
 * The value of a word stands in the first of these children.
 */
#include "text/charsmap.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "text/unicode.h"

#include <string.h>

struct kg_charsmap {
    uint32_t *units; /* owned */
    size_t n_units;
    char *texts; /* owned; ended by a NUL */
    size_t n_texts;
};

enum { MAX_BYTES = 1 << 26, CLUSTER_BYTES = 6 };

void kg_charsmap_free(struct kg_charsmap *map)
{
    if (!map)
        return;
    kg_mem_free(map->units);
    kg_mem_free(map->texts);
    kg_mem_free(map);
}

static uint32_t little_endian(const unsigned char *b)
{
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 |
           (uint32_t)b[3] << 24;
}

static kg_status fill(struct kg_charsmap *map, const unsigned char *bytes, size_t n,
                      struct kg_err *err)
{
    const size_t trie = n >= 4 ? little_endian(bytes) : 0;

    if (trie == 0 || trie % 4 != 0 || trie > n - 4 || n > MAX_BYTES)
        return kg_fail(err, KG_EFORMAT,
                       "precompiled map of characters: expected a trie within %zu bytes, "
                       "found one of %zu",
                       n, trie);
    map->n_units = trie / 4;
    map->n_texts = n - 4 - trie;
    if (!kg_utf8_is_valid((const char *)bytes + 4 + trie, map->n_texts))
        return kg_fail(err, KG_EFORMAT,
                       "precompiled map of characters: its texts are not UTF-8");
    map->units = kg_mem_calloc(map->n_units, sizeof *map->units, "character map", err);
    if (!map->units)
        return err->code;
    for (size_t i = 0; i < map->n_units; i++)
        map->units[i] = little_endian(bytes + 4 + 4 * i);
    map->texts = kg_mem_calloc(map->n_texts + 1, 1, "character map", err);
    if (!map->texts)
        return err->code;
    memcpy(map->texts, bytes + 4 + trie, map->n_texts);
    return KG_OK;
}

kg_status kg_charsmap_create(struct kg_charsmap **out, const void *bytes, size_t n,
                             struct kg_err *err)
{
    struct kg_charsmap *map = kg_mem_calloc(1, sizeof *map, "character map", err);

    if (!map)
        return err->code;
    if (fill(map, bytes, n, err) != KG_OK) {
        kg_charsmap_free(map);
        return err->code;
    }
    *out = map;
    return KG_OK;
}

/* ---- looking up ---- */

static uint32_t children_of(uint32_t unit)
{
    return (unit >> 10) << ((unit & 1u << 9) >> 6);
}

/* The text of a value, or NULL where the file points outside or into a character. */
static const char *text_of(const struct kg_charsmap *map, uint32_t value)
{
    value &= ~(1u << 31);
    if (value >= map->n_texts || ((unsigned char)map->texts[value] & 0xC0) == 0x80)
        return NULL;
    return map->texts + value;
}

/* What the longest word (the shortest, if so asked) at the start of text becomes, its
 * bytes in *used; NULL when there is none. */
static const char *look_up(const struct kg_charsmap *map, const char *text, size_t n,
                           bool shortest, size_t *used)
{
    const char *found = NULL;
    size_t at = children_of(map->units[0]);

    for (size_t i = 0; i < n && text[i]; i++) {
        const unsigned char c = (unsigned char)text[i];

        at ^= c;
        if (at >= map->n_units || (map->units[at] & (1u << 31 | 0xFF)) != c)
            break;
        const bool ends = map->units[at] >> 8 & 1;
        at ^= children_of(map->units[at]);
        if (!ends || at >= map->n_units)
            continue;
        const char *becomes = text_of(map, map->units[at]);
        if (!becomes)
            continue;
        found = becomes;
        *used = i + 1;
        if (shortest)
            break;
    }
    return found;
}

kg_status kg_charsmap_longest(struct kg_str *out, const struct kg_charsmap *map,
                              const char *text, size_t n, struct kg_err *err)
{
    for (size_t at = 0; at < n;) {
        size_t used;
        const char *becomes = look_up(map, text + at, n - at, false, &used);

        /* a word of the file may end within a character: that is none */
        if (becomes &&
            (at + used == n || ((unsigned char)text[at + used] & 0xC0) != 0x80)) {
            KG_TRY(kg_str_puts(out, becomes, err));
        } else {
            uint32_t cp;
            used = kg_utf8_decode(&cp, text + at);
            KG_TRY(kg_str_append(out, text + at, used, err));
        }
        at += used;
    }
    return KG_OK;
}

/* The whole of these bytes becomes the text of the shortest word they begin with.
 * *done: false when there is no such word, and nothing was appended */
static kg_status map_whole(struct kg_str *out, const struct kg_charsmap *map,
                           const char *text, size_t n, bool *done, struct kg_err *err)
{
    size_t used;
    const char *becomes = look_up(map, text, n, true, &used);

    *done = becomes != NULL;
    return becomes ? kg_str_puts(out, becomes, err) : KG_OK;
}

kg_status kg_charsmap_clusters(struct kg_str *out, const struct kg_charsmap *map,
                               const char *text, size_t n, struct kg_err *err)
{
    for (size_t at = 0; at < n;) {
        const size_t end = at + kg_unicode_grapheme(text + at, n - at);
        bool done = false;

        if (end - at < CLUSTER_BYTES)
            KG_TRY(map_whole(out, map, text + at, end - at, &done, err));
        while (!done && at < end) {
            bool mapped;
            uint32_t cp;
            const size_t len = kg_utf8_decode(&cp, text + at);
            KG_TRY(map_whole(out, map, text + at, len, &mapped, err));
            if (!mapped)
                KG_TRY(kg_str_append(out, text + at, len, err));
            at += len;
        }
        at = end;
    }
    return KG_OK;
}
