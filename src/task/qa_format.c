/* The format of a search episode as a state machine: tags and white space in their order.
 *
 * Published code splits one text at its tags, passages included. With spans, a tool's
 * output is one event, whatever it contains, and <information> tags in the model's text
 * are invalid.
 */
#define _GNU_SOURCE /* memmem */
#include "task/qa.h"

#include <string.h>

enum state {
    START,
    IN_THINK,
    AFTER_THINK,
    IN_SEARCH,
    AFTER_SEARCH,
    IN_INFORMATION,
    AFTER_INFORMATION,
    IN_ANSWER,
    END,
    INVALID
};

/* A tag is legal in one state (two for <think>) and leads to the next. */
static const struct move {
    const char *tag;
    enum state from[2];
    enum state to;
} moves[] = {
    {"<think>", {START, AFTER_INFORMATION}, IN_THINK},
    {"</think>", {IN_THINK, IN_THINK}, AFTER_THINK},
    {"<search>", {AFTER_THINK, AFTER_THINK}, IN_SEARCH},
    {"</search>", {IN_SEARCH, IN_SEARCH}, AFTER_SEARCH},
    {"<information>", {AFTER_SEARCH, AFTER_SEARCH}, IN_INFORMATION},
    {"</information>", {IN_INFORMATION, IN_INFORMATION}, AFTER_INFORMATION},
    {"<answer>", {AFTER_THINK, AFTER_THINK}, IN_ANSWER},
    {"</answer>", {IN_ANSWER, IN_ANSWER}, END},
};
enum { MOVES = sizeof moves / sizeof *moves };

static const char MARKER[] = "<|im_start|>assistant";

static bool is_inside(enum state s)
{
    return s == IN_THINK || s == IN_SEARCH || s == IN_INFORMATION || s == IN_ANSWER;
}

/* The tag that begins at text, or NULL. */
static const struct move *tag_at(const char *text, size_t n)
{
    for (size_t i = 0; i < MOVES; i++) {
        size_t len = strlen(moves[i].tag);

        if (len <= n && memcmp(text, moves[i].tag, len) == 0)
            return &moves[i];
    }
    return NULL;
}

static enum state take_tag(enum state s, const struct move *m)
{
    return s == m->from[0] || s == m->from[1] ? m->to : INVALID;
}

static enum state take_words(enum state s, const char *text, size_t n)
{
    kg_text_trim(&n, text, n);
    return n == 0 || is_inside(s) ? s : INVALID;
}

static enum state take_text(enum state s, const char *text, size_t n)
{
    const char *at = text;
    const char *end = text + n;

    while (s != INVALID && at < end) {
        const char *next = memchr(at, '<', (size_t)(end - at));
        const struct move *m = NULL;

        for (; next; next = memchr(next + 1, '<', (size_t)(end - next - 1))) {
            m = tag_at(next, (size_t)(end - next));
            if (m)
                break;
        }
        s = take_words(s, at, (size_t)((m ? next : end) - at));
        if (!m)
            return s;
        s = s == INVALID ? s : take_tag(s, m);
        at = next + strlen(m->tag);
    }
    return s;
}

bool kg_qa_is_information(const struct kg_span *s)
{
    size_t open_n = strlen(kg_information_tags.open);
    size_t n;
    const char *text = kg_text_trim(&n, s->text, s->n);

    return n >= open_n && memcmp(text, kg_information_tags.open, open_n) == 0;
}

static bool has_information_tag(const struct kg_span *s)
{
    return memmem(s->text, s->n, kg_information_tags.open,
                  strlen(kg_information_tags.open)) ||
           memmem(s->text, s->n, kg_information_tags.close,
                  strlen(kg_information_tags.close));
}

bool kg_qa_is_valid(const struct kg_qa_episode *e)
{
    enum state state = START;

    for (size_t i = 0; i < e->n_spans && state != INVALID; i++) {
        const struct kg_span *s = &e->spans[i];

        if (s->source == KG_SOURCE_PROMPT)
            continue;
        if (s->source == KG_SOURCE_MODEL)
            state = has_information_tag(s) ? INVALID : take_text(state, s->text, s->n);
        else /* a passage, or a remark on an illegal turn */
            state = state == AFTER_SEARCH && kg_qa_is_information(s) ? AFTER_INFORMATION
                                                                     : INVALID;
    }
    return state == END;
}

bool kg_qa_is_valid_text(const char *text, size_t n, bool marker)
{
    const char *at = memmem(text, n, MARKER, strlen(MARKER));

    if (!at && marker)
        return false;
    at = at ? at + strlen(MARKER) : text;
    return take_text(START, at, (size_t)(text + n - at)) == END;
}
