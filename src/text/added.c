/* Search for added tokens: by the first byte, then the candidates longest first.
 *
 * A special token that is not requested, or a `single_word` that touches a word, is
 * skipped as a whole, so a shorter token inside it is not found either; HuggingFace's
 * search (an Aho-Corasick automaton over all tokens, filtered afterwards) does the same.
 */
#include "text/added.h"

#include "base/mem.h"
#include "text/classes.h"
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ADDED = 1 << 20 };

void kg_added_release(struct kg_added *set)
{
    for (size_t i = 0; i < set->n; i++)
        kg_mem_free(set->tokens[i].content);
    kg_mem_free(set->tokens);
    *set = (struct kg_added){0};
}

kg_status kg_added_push(struct kg_added *set, const struct kg_added_token *token,
                        struct kg_err *err)
{
    if (token->n == 0)
        return kg_fail(err, KG_EFORMAT, "added token %d is empty", token->id);
    KG_TRY(kg_mem_grow(&set->tokens, &set->capacity, set->n + 1, sizeof *set->tokens,
                       MAX_ADDED, "added tokens", err));
    struct kg_added_token *slot = &set->tokens[set->n];
    *slot = *token;
    slot->place = set->n;
    slot->content = kg_mem_copy(token->content, token->n, "added token", err);
    if (!slot->content)
        return err->code;
    set->n++;
    return KG_OK;
}

static int by_first_byte_longest(const void *a, const void *b)
{
    const struct kg_added_token *x = a;
    const struct kg_added_token *y = b;
    if (x->content[0] != y->content[0])
        return (unsigned char)x->content[0] < (unsigned char)y->content[0] ? -1 : 1;
    if (x->n != y->n)
        return x->n > y->n ? -1 : 1;
    const int order = memcmp(x->content, y->content, x->n);
    return order != 0 ? order : x->place > y->place ? 1 : -1;
}

void kg_added_sort(struct kg_added *set)
{
    size_t i = 0;
    if (set->n)
        qsort(set->tokens, set->n, sizeof *set->tokens, by_first_byte_longest);
    for (int byte = 0; byte < 257; byte++) {
        while (i < set->n && (unsigned char)set->tokens[i].content[0] < byte)
            i++;
        set->first[byte] = (uint32_t)i;
    }
}

/* The longest token at the start of text, or NULL. */
static const struct kg_added_token *token_at(const struct kg_added *set, const char *text,
                                             size_t n)
{
    unsigned char byte = (unsigned char)text[0];
    for (uint32_t i = set->first[byte]; i < set->first[byte + 1]; i++) {
        const struct kg_added_token *token = &set->tokens[i];
        if (token->n <= n && memcmp(token->content, text, token->n) == 0)
            return token;
    }
    return NULL;
}

const struct kg_added_token *kg_added_find(const struct kg_added *set,
                                           const char *content, size_t n)
{
    for (size_t i = 0; i < set->n; i++)
        if (set->tokens[i].n == n && memcmp(set->tokens[i].content, content, n) == 0)
            return &set->tokens[i];
    return NULL;
}

void kg_added_scan_start(struct kg_added_scan *scan, const struct kg_added *set,
                         const char *text, size_t n, bool with_special)
{
    *scan = (struct kg_added_scan){
        .set = set, .text = text, .n = n, .with_special = with_special};
}

/* Whether [start, end) of the text touches no word. */
static bool stands_alone(const struct kg_added_scan *scan, size_t start, size_t end)
{
    const char *text = scan->text;
    uint32_t cp;

    if (end < scan->n) {
        kg_utf8_decode(&cp, text + end);
        if (kg_class_is_word(cp))
            return false;
    }
    if (start == 0)
        return true;
    while (start > 0 && ((unsigned char)text[--start] & 0xC0) == 0x80)
        continue;
    kg_utf8_decode(&cp, text + start);
    return !kg_class_is_word(cp);
}

/* The next requested token at or after scan->searched, or NULL.   *at <- its offset */
static const struct kg_added_token *search(struct kg_added_scan *scan, size_t *at)
{
    while (scan->set->n && scan->searched < scan->n) {
        size_t i = scan->searched;
        const struct kg_added_token *token = token_at(scan->set, scan->text + i,
                                                      scan->n - i);
        scan->searched += token ? token->n : 1;
        if (token && (scan->with_special || !token->special) &&
            (!token->single_word || stands_alone(scan, i, scan->searched))) {
            *at = i;
            return token;
        }
    }
    return NULL;
}

bool kg_added_scan_next(struct kg_added_scan *scan, struct kg_added_piece *piece)
{
    size_t start = scan->n;
    const struct kg_added_token *token = scan->waiting;
    if (token) {
        *piece = (struct kg_added_piece){scan->at, scan->waiting_end - scan->at, token};
        scan->at = scan->waiting_end;
        scan->waiting = NULL;
        return true;
    }
    if (scan->at == scan->n)
        return false;
    token = search(scan, &start);
    if (token) {
        scan->waiting = token;
        scan->waiting_end = token->rstrip ? kg_unicode_strip_left(scan->text,
                                                                  scan->searched, scan->n)
                                          : scan->searched;
        scan->searched = scan->waiting_end;
        if (token->lstrip)
            start = kg_unicode_strip_right(scan->text, scan->at, start);
        if (start == scan->at)
            return kg_added_scan_next(scan, piece);
    }
    *piece = (struct kg_added_piece){scan->at, start - scan->at, NULL};
    scan->at = start;
    return true;
}
