/* Runs the steps one after the other, between two buffers.
 *
 * A step reads one buffer and writes the other, so two suffice for any number of steps.
 * First a cheap test (a search, or a table of characters that are certainly NFC) tells
 * whether the step may change anything; if not, the text is not copied. So most text is
 * never copied. A step sees only its part of the text; the caller tells whether that part
 * begins the whole text. A step is a row of STEPS: a map of single characters, or its own
 * function.
 */
#include "text/normalizer.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "text/classes.h"
#include "text/unicode.h"

#include <string.h>

/* Replacements of replacements could make a text grow without limit. */
enum { MAX_GROWTH = 256, MAX_GROWTH_FLOOR = 1 << 20 };

void kg_normalizer_release(struct kg_normalizer *norm)
{
    for (size_t i = 0; i < KG_MAX_NORMALIZER_STEPS; i++) {
        kg_str_release(&norm->steps[i].from);
        kg_str_release(&norm->steps[i].to);
        kg_pretoken_free(norm->steps[i].pattern);
        kg_charsmap_free(norm->steps[i].map);
    }
    *norm = (struct kg_normalizer){0};
}

void kg_normalizer_work_release(struct kg_normalizer_work *work)
{
    kg_str_release(&work->buffers[0]);
    kg_str_release(&work->buffers[1]);
}

kg_status kg_normalizer_add(struct kg_normalizer *norm, enum kg_normalizer_kind kind,
                            const char *from, const char *to, struct kg_err *err)
{
    if (norm->n == KG_MAX_NORMALIZER_STEPS)
        return kg_fail(err, KG_EUNSUPPORTED, "more than %d steps",
                       KG_MAX_NORMALIZER_STEPS);
    struct kg_normalizer_step *step = &norm->steps[norm->n++];
    step->kind = kind;
    KG_TRY(kg_str_puts(&step->from, from ? from : "", err));
    return kg_str_puts(&step->to, to ? to : "", err);
}

struct kg_normalizer_step *kg_normalizer_newest(struct kg_normalizer *norm)
{
    return &norm->steps[norm->n - 1];
}

/* Start of the first `what` in text, or the end of text. */
static const char *find(const char *text, size_t n, const struct kg_str *what)
{
    const char *end = text + n;
    while ((size_t)(end - text) >= what->len) {
        text = memchr(text, what->data[0], (size_t)(end - text) - what->len + 1);
        if (!text)
            return end;
        if (memcmp(text, what->data, what->len) == 0)
            return text;
        text++;
    }
    return end;
}

kg_status kg_replace_all(struct kg_str *out, const char *text, size_t n,
                         const struct kg_str *from, const struct kg_str *to,
                         struct kg_err *err)
{
    const char *end = text + n;
    while (text < end) {
        const char *at = find(text, (size_t)(end - text), from);
        KG_TRY(kg_str_append(out, text, (size_t)(at - text), err));
        if (at == end)
            break;
        KG_TRY(kg_str_append(out, kg_str_text(to), to->len, err));
        text = at + from->len;
    }
    return KG_OK;
}

/* ---- the steps ---- */

static kg_status run_nfc(struct kg_str *out, const struct kg_normalizer_step *step,
                         const char *text, size_t n, struct kg_err *err)
{
    (void)step;
    return kg_unicode_nfc(out, text, n, err);
}

static kg_status run_form(struct kg_str *out, const struct kg_normalizer_step *step,
                          const char *text, size_t n, struct kg_err *err)
{
    const enum kg_unicode_form form = step->kind == KG_NORMALIZE_NFD    ? KG_UNICODE_NFD
                                      : step->kind == KG_NORMALIZE_NFKC ? KG_UNICODE_NFKC
                                                                        : KG_UNICODE_NFKD;
    return kg_unicode_normalize(out, form, text, n, err);
}

static kg_status run_map(struct kg_str *out, kg_class_map *map, const char *text,
                         size_t n, struct kg_err *err)
{
    for (size_t i = 0; i < n;) {
        char becomes[KG_CLASS_BYTES];
        uint32_t cp;

        i += kg_utf8_decode(&cp, text + i);
        KG_TRY(kg_str_append(out, becomes, map(becomes, cp), err));
    }
    return KG_OK;
}

static kg_status strip_left(struct kg_str *out, const struct kg_normalizer_step *step,
                            const char *text, size_t n, struct kg_err *err)
{
    size_t i = kg_unicode_strip_left(text, 0, n);

    (void)step;
    return kg_str_append(out, text + i, n - i, err);
}

static kg_status strip_right(struct kg_str *out, const struct kg_normalizer_step *step,
                             const char *text, size_t n, struct kg_err *err)
{
    (void)step;
    return kg_str_append(out, text, kg_unicode_strip_right(text, 0, n), err);
}

static kg_status squeeze(struct kg_str *out, const struct kg_normalizer_step *step,
                         const char *text, size_t n, struct kg_err *err)
{
    bool space = true; /* the last byte was a space, or this is the start */

    (void)step;
    while (n > 0 && text[n - 1] == ' ')
        n--;
    for (size_t i = 0; i < n; i++) {
        if (text[i] != ' ' || !space)
            KG_TRY(kg_str_putc(out, text[i], err));
        space = text[i] == ' ';
    }
    return KG_OK;
}

static kg_status run_charsmap(struct kg_str *out, const struct kg_normalizer_step *step,
                              const char *text, size_t n, struct kg_err *err)
{
    return step->kind == KG_NORMALIZE_CLUSTERS
               ? kg_charsmap_clusters(out, step->map, text, n, err)
               : kg_charsmap_longest(out, step->map, text, n, err);
}

static kg_status prepend(struct kg_str *out, const struct kg_normalizer_step *step,
                         const char *text, size_t n, struct kg_err *err)
{
    KG_TRY(kg_str_append(out, kg_str_text(&step->to), step->to.len, err));
    return kg_str_append(out, text, n, err);
}

static kg_status replace(struct kg_str *out, const struct kg_normalizer_step *step,
                         const char *text, size_t n, struct kg_err *err)
{
    return kg_replace_all(out, text, n, &step->from, &step->to, err);
}

static kg_status replace_matches(struct kg_str *out,
                                 const struct kg_normalizer_step *step, const char *text,
                                 size_t n, struct kg_err *err)
{
    struct kg_pretoken_scan scan;
    kg_status status = kg_pretoken_scan_init(&scan, step->pattern, err);
    size_t start, len = 1;

    if (status == KG_OK)
        kg_pretoken_scan_start(&scan, text, n);
    while (status == KG_OK && len > 0) {
        status = kg_pretoken_scan_next(&scan, &start, &len, err);
        if (status == KG_OK && len > 0)
            status = scan.matched
                         ? kg_str_append(out, kg_str_text(&step->to), step->to.len, err)
                         : kg_str_append(out, text + start, len, err);
    }
    kg_pretoken_scan_release(&scan);
    return status;
}

static kg_status word_text(struct kg_str *out, const struct kg_normalizer_step *step,
                           const char *text, size_t n, struct kg_err *err)
{
    const size_t front = step->from.len;

    if (n >= front && memcmp(text, kg_str_text(&step->from), front) == 0)
        return kg_str_append(out, text + front, n - front, err);
    KG_TRY(kg_str_putc(out, ' ', err));
    return kg_str_append(out, text, n, err);
}

/* ---- quick tests for no change ---- */

static bool maybe_not_nfc(const struct kg_normalizer_step *step, const char *text,
                          size_t n, bool prepends)
{
    (void)step;
    (void)prepends;
    return !kg_unicode_is_surely_nfc(text, n);
}

/* For steps that do not change ASCII. */
static bool beyond_ascii(const struct kg_normalizer_step *step, const char *text,
                         size_t n, bool prepends)
{
    (void)step;
    (void)prepends;
    return kg_utf8_ascii_prefix(text, n) < n;
}

static bool prepends_here(const struct kg_normalizer_step *step, const char *text,
                          size_t n, bool prepends)
{
    (void)step;
    (void)text;
    return prepends && n > 0;
}

static bool has_from(const struct kg_normalizer_step *step, const char *text, size_t n,
                     bool prepends)
{
    (void)prepends;
    return find(text, n, &step->from) != text + n;
}

/* Each has either `map` or `run`. */
static const struct {
    kg_class_map *map;
    kg_status (*run)(struct kg_str *out, const struct kg_normalizer_step *step,
                     const char *text, size_t n, struct kg_err *err);
    bool (*changes)(const struct kg_normalizer_step *step, const char *text, size_t n,
                    bool prepends); /* NULL: perhaps */
} STEPS[] = {
    [KG_NORMALIZE_NFC] = {.run = run_nfc, .changes = maybe_not_nfc},
    [KG_NORMALIZE_NFD] = {.run = run_form, .changes = beyond_ascii},
    [KG_NORMALIZE_NFKC] = {.run = run_form, .changes = beyond_ascii},
    [KG_NORMALIZE_NFKD] = {.run = run_form, .changes = beyond_ascii},
    [KG_NORMALIZE_LOWER] = {.map = kg_class_lower},
    [KG_NORMALIZE_DROP_MARKS] = {.map = kg_class_drop_marks, .changes = beyond_ascii},
    [KG_NORMALIZE_DROP_NONSPACING] = {.map = kg_class_drop_nonspacing,
                                      .changes = beyond_ascii},
    [KG_NORMALIZE_CLEAN] = {.map = kg_class_clean},
    [KG_NORMALIZE_CJK] = {.map = kg_class_space_cjk, .changes = beyond_ascii},
    [KG_NORMALIZE_NMT] = {.map = kg_class_nmt},
    [KG_NORMALIZE_STRIP_LEFT] = {.run = strip_left},
    [KG_NORMALIZE_STRIP_RIGHT] = {.run = strip_right},
    [KG_NORMALIZE_SQUEEZE] = {.run = squeeze},
    [KG_NORMALIZE_CLUSTERS] = {.run = run_charsmap},
    [KG_NORMALIZE_LONGEST] = {.run = run_charsmap},
    [KG_NORMALIZE_PREPEND] = {.run = prepend, .changes = prepends_here},
    [KG_NORMALIZE_REPLACE] = {.run = replace, .changes = has_from},
    [KG_NORMALIZE_PATTERN] = {.run = replace_matches},
    [KG_NORMALIZE_WORD] = {.run = word_text},
};

static bool changes(const struct kg_normalizer_step *step, const char *text, size_t n,
                    bool prepends)
{
    return !STEPS[step->kind].changes ||
           STEPS[step->kind].changes(step, text, n, prepends);
}

static kg_status run_step(struct kg_str *out, const struct kg_normalizer_step *step,
                          const char *text, size_t n, struct kg_err *err)
{
    if (STEPS[step->kind].map)
        return run_map(out, STEPS[step->kind].map, text, n, err);
    return STEPS[step->kind].run(out, step, text, n, err);
}

kg_status kg_normalize(const char **out, size_t *out_n, const struct kg_normalizer *norm,
                       const char *text, size_t n, bool prepends,
                       struct kg_normalizer_work *work, struct kg_err *err)
{
    const size_t most = MAX_GROWTH_FLOOR + MAX_GROWTH * n;
    size_t next = 0;
    for (size_t i = 0; i < norm->n; i++) {
        if (!changes(&norm->steps[i], text, n, prepends))
            continue;
        struct kg_str *buffer = &work->buffers[next];
        kg_str_clear(buffer);
        KG_TRY(run_step(buffer, &norm->steps[i], text, n, err));
        text = kg_str_text(buffer);
        n = buffer->len;
        next = 1 - next;
        if (n > most)
            return kg_fail(err, KG_EFORMAT, "a normalized text has more than %zu bytes",
                           most);
    }
    *out = text;
    *out_n = n;
    return KG_OK;
}

/* The double-array trie of a character map; the file is untrusted, so indices are
 * checked.
 *
 * A unit is a node. Its low byte and top bit are the byte that leads to it (values have
 * the top bit, so they match no byte). Bit 8 tells that a word ends there. The rest is
 * the offset of its children, to be combined with its own index by exclusive or. If a
 * word ends at a node, its child for byte 0 is the word's value. */

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
    KG_TRY(
        kg_mem_new(&map->units, map->n_units, sizeof *map->units, "character map", err));
    for (size_t i = 0; i < map->n_units; i++)
        map->units[i] = little_endian(bytes + 4 + 4 * i);
    KG_TRY(kg_mem_new(&map->texts, map->n_texts + 1, 1, "character map", err));
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

/* The text of a value; NULL if the file points outside or into a character. */
static const char *text_of(const struct kg_charsmap *map, uint32_t value)
{
    value &= ~(1u << 31);
    if (value >= map->n_texts || ((unsigned char)map->texts[value] & 0xC0) == 0x80)
        return NULL;
    return map->texts + value;
}

/* The replacement of the longest (or shortest) word that text begins with, or NULL.
 * *used <- bytes of the word */
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

        /* skip words of the file that end inside a character */
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

/* Replaces all n bytes by the replacement of the shortest word that they begin with.
 * *done <- false if there is no such word; then nothing was appended */
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
