/* Actions in what a model wrote: the first pair of tags that means something.
 *
 * A pair is an opening tag and the nearest closing tag of its kind behind it; what lies
 * between is taken as it stands, other tags and line ends included. Of the pairs that are
 * complete the one that opens first counts: Search-R1's rule. Which tags those are is
 * data, so that other dialects are read by the same code.
 *
 * The text is one turn of the model and nothing else: no prompt, nothing that a tool
 * returned. Bytes are bytes; time is linear in them.
 */
#ifndef KG_TASK_ACTION_H
#define KG_TASK_ACTION_H

#include <stddef.h>

struct kg_tag_pair {
    const char *open;
    const char *close;
};

/* What stands between the first `open` at or behind byte `from` and the nearest `close`
 * behind it. */
struct kg_tagged {
    const char *text; /* borrowed from the text; NULL: there is no such pair */
    size_t n;
    size_t begin; /* byte where the opening tag begins */
    size_t end;   /* byte behind the closing tag */
};
void kg_tagged_next(struct kg_tagged *out, const struct kg_tag_pair *pair,
                    const char *text, size_t n, size_t from);

/* The text without white space (Unicode's) at its ends.   out: borrowed from text */
const char *kg_text_trim(size_t *out_n, const char *text, size_t n);

enum kg_action_kind { KG_ACTION_NONE, KG_ACTION_TOOL, KG_ACTION_ANSWER };
struct kg_action_tags {
    struct kg_tag_pair tool;
    struct kg_tag_pair answer;
};
struct kg_action {
    enum kg_action_kind kind;
    struct kg_tagged raw; /* as written */
    const char *text;     /* trimmed: the query or the answer; borrowed */
    size_t n;
};
void kg_action_read(struct kg_action *out, const struct kg_action_tags *tags,
                    const char *text, size_t n);

/* <search>, <information>, <answer>: Search-R1's tags. */
extern const struct kg_action_tags kg_search_tags;
extern const struct kg_tag_pair kg_information_tags;

#endif
