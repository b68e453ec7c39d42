/* Reads actions from model text: the first complete pair of tags.
 *
 * A pair is an opening tag and the nearest closing tag of its kind after it; the text
 * between them is taken unchanged, other tags and line breaks included. If there are
 * several complete pairs, the one that opens first wins (Search-R1's rule). The tags are
 * data, so other dialects use the same code.
 *
 * The input is one turn of the model, without prompt and tool output. It may be any
 * bytes; the time is linear in its length.
 */
#ifndef KG_TASK_ACTION_H
#define KG_TASK_ACTION_H

#include <stddef.h>

struct kg_tag_pair {
    const char *open;
    const char *close;
};

/* The text between the first `open` at or after byte `from` and the nearest `close` after
 * it. */
struct kg_tagged {
    const char *text; /* borrowed from the text; NULL: no such pair */
    size_t n;
    size_t begin; /* first byte of the opening tag */
    size_t end;   /* byte after the closing tag */
};
void kg_tagged_next(struct kg_tagged *out, const struct kg_tag_pair *pair,
                    const char *text, size_t n, size_t from);

/* The text without Unicode white space at its ends: *out_n bytes, borrowed from text */
const char *kg_text_trim(size_t *out_n, const char *text, size_t n);

enum kg_action_kind { KG_ACTION_NONE, KG_ACTION_TOOL, KG_ACTION_ANSWER };
struct kg_action_tags {
    struct kg_tag_pair tool;
    struct kg_tag_pair answer;
};
struct kg_action {
    enum kg_action_kind kind;
    struct kg_tagged raw; /* as written */
    const char *text;     /* trimmed: the query or the final answer; borrowed */
    size_t n;
};
void kg_action_read(struct kg_action *out, const struct kg_action_tags *tags,
                    const char *text, size_t n);

/* <search>, <information>, <answer>: Search-R1's tags. */
extern const struct kg_action_tags kg_search_tags;
extern const struct kg_tag_pair kg_information_tags;

#endif
