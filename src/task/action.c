/* Pairs of tags by plain search: one search for an opening tag, one for its closing tag.
 *
 * A pair without a closing tag does not count. If the first opening tag has no closing
 * tag after it, no later one of that kind has one. So each kind is searched for once,
 * however often its tag is repeated, and the time is linear. There is no nesting and no
 * escaping, because a model writes tags and not XML. White space is that of Python's
 * strip, other scripts' included, because the published rule strips a query with it.
 */
#define _GNU_SOURCE /* memmem */
#include "task/action.h"

#include "text/unicode.h"

#include <string.h>

const struct kg_action_tags kg_search_tags = {
    .tool = {"<search>", "</search>"},
    .answer = {"<answer>", "</answer>"},
};
const struct kg_tag_pair kg_information_tags = {"<information>", "</information>"};

void kg_tagged_next(struct kg_tagged *out, const struct kg_tag_pair *pair,
                    const char *text, size_t n, size_t from)
{
    size_t open_n = strlen(pair->open);
    const char *open;
    const char *close;

    *out = (struct kg_tagged){.text = NULL};
    if (from >= n)
        return;
    open = memmem(text + from, n - from, pair->open, open_n);
    if (!open)
        return;
    close = memmem(open + open_n, n - (size_t)(open + open_n - text), pair->close,
                   strlen(pair->close));
    if (!close)
        return;
    out->text = open + open_n;
    out->n = (size_t)(close - out->text);
    out->begin = (size_t)(open - text);
    out->end = (size_t)(close - text) + strlen(pair->close);
}

/* Length of the character at the start of n > 0 bytes when it is white space, else 0. */
static size_t blank_at(const char *text, size_t n)
{
    uint32_t cp;
    size_t head = n < 4 ? n : 4;

    if (kg_utf8_valid_prefix(text, head) == 0)
        return 0;
    head = kg_utf8_decode(&cp, text);
    return kg_unicode_is_blank(cp) ? head : 0;
}

/* Like blank_at, for the character that ends at byte n. */
static size_t blank_before(const char *text, size_t n)
{
    size_t back = 1;

    while (back < 4 && back < n && ((unsigned char)text[n - back] & 0xC0) == 0x80)
        back++;
    return blank_at(text + n - back, back) == back ? back : 0;
}

const char *kg_text_trim(size_t *out_n, const char *text, size_t n)
{
    size_t from = 0;
    size_t width;

    while (from < n && (width = blank_at(text + from, n - from)) > 0)
        from += width;
    while (n > from && (width = blank_before(text + from, n - from)) > 0)
        n -= width;
    *out_n = n - from;
    return text + from;
}

void kg_action_read(struct kg_action *out, const struct kg_action_tags *tags,
                    const char *text, size_t n)
{
    struct kg_tagged tool;
    struct kg_tagged answer;

    kg_tagged_next(&tool, &tags->tool, text, n, 0);
    kg_tagged_next(&answer, &tags->answer, text, n, 0);
    *out = (struct kg_action){.kind = KG_ACTION_NONE};
    if (tool.text && (!answer.text || tool.begin < answer.begin)) {
        out->kind = KG_ACTION_TOOL;
        out->raw = tool;
    } else if (answer.text) {
        out->kind = KG_ACTION_ANSWER;
        out->raw = answer;
    } else {
        return;
    }
    out->text = kg_text_trim(&out->n, out->raw.text, out->raw.n);
}
