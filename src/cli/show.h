/* The output of kedge show: one line of a dump as pieces of text with their sources and,
 * if the dump has tokens, the values recorded with them.
 *
 * Accepted keys of a line: tokens, source, logp (a trajectory, traj/traj.h); prompt and
 * segments (an episode as text); prompt and one of response, completion, text.
 */
#ifndef KG_CLI_SHOW_H
#define KG_CLI_SHOW_H

#include "base/str.h"
#include "data/json.h"
#include "text/tokenizer.h"
#include "traj/traj.h"

#include <stdbool.h>
#include <stddef.h>

struct kg_shown_piece {
    size_t from, n; /* bytes of the text */
    enum kg_source source;
    int32_t token; /* -1: a piece of text */
    bool sampled;  /* has logp */
    double logp;
    bool compared; /* has divergence */
    double divergence;
};

struct kg_shown {
    int64_t line;
    struct kg_str text;            /* owned */
    struct kg_shown_piece *pieces; /* (n) owned, in order */
    size_t n;
    size_t capacity;
    struct kg_str heading; /* owned: the line's other values */
    bool has_advantage;
    double advantage;
};
void kg_shown_release(struct kg_shown *s);

/* Columns printed next to a model token. */
struct kg_show_columns {
    bool logp, advantage, divergence;
};

/* Reads a line; s is overwritten. tok: NULL if no line has tokens
 * errors: EFORMAT with the line and key, EINVAL (tokens without tok) */
kg_status kg_show_read(struct kg_shown *s, const struct kg_json_doc *doc,
                       const struct kg_tokenizer *tok, struct kg_err *err) KG_MUST_CHECK;

/* Part i of a line of n tokens: tokens [begin, end) were drawn in the context [from, ..).
 * Part 0 is before the first window; part i is window i - 1.   errors: EFORMAT */
struct kg_shown_part {
    size_t from, begin, end;
};
kg_status kg_show_part_at(struct kg_shown_part *p, const struct kg_json_doc *doc,
                          size_t i, size_t n, struct kg_err *err) KG_MUST_CHECK;
/* Appends a line of tokens as {"draw", "sample", "reward", "trace"}.
 * errors: EFORMAT with the line and key */
kg_status kg_show_trace(struct kg_str *out, const struct kg_json_doc *doc,
                        struct kg_err *err) KG_MUST_CHECK;

/* Appends the pieces for a terminal. Without colour, tags mark the sources. Control
 * characters become \xNN. */
kg_status kg_show_text(struct kg_str *out, const struct kg_shown *s,
                       const struct kg_show_columns *columns, bool colour,
                       struct kg_err *err) KG_MUST_CHECK;

/* The meaning of the colours, one line for a terminal. */
kg_status kg_show_legend(struct kg_str *out, struct kg_err *err) KG_MUST_CHECK;

#endif
