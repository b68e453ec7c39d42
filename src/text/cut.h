/* Splits text at matches of a pattern or at characters of a class. Implements Split of
 * tokenizer.json with all its behaviours; Digits, Punctuation, Whitespace and similar
 * types are special cases. */
#ifndef KG_TEXT_CUT_H
#define KG_TEXT_CUT_H

#include "text/pretoken.h"

#include <stdint.h>

enum kg_cut_behavior {
    KG_CUT_ISOLATED,      /* a match is a piece of its own */
    KG_CUT_REMOVED,       /* matches are dropped */
    KG_CUT_CONTIGUOUS,    /* adjacent matches form one piece */
    KG_CUT_WITH_PREVIOUS, /* a match joins the piece before it */
    KG_CUT_WITH_NEXT,     /* a match joins the piece after it */
};
struct kg_cutter {
    struct kg_pretoken *pattern; /* owned; NULL: `is` is used */
    bool (*is)(uint32_t cp);     /* a class: each of its characters is a match */
    enum kg_cut_behavior behavior;
    bool invert; /* swaps matches and the text between them */
};
void kg_cut_release(struct kg_cutter *cut);

struct kg_cut_segment {
    size_t start;
    size_t len; /* 0: end of text */
    bool match;
};

/* A walk over the pieces of a text. One per thread. */
struct kg_cut_scan {
    const struct kg_cutter *cut; /* borrowed */
    struct kg_pretoken_scan found;
    const char *text; /* borrowed, valid UTF-8 */
    size_t n;
    size_t at;                  /* without pattern: all before it was examined */
    struct kg_cut_segment seen; /* len > 0: found, not yet returned */
};
kg_status kg_cut_scan_init(struct kg_cut_scan *scan, const struct kg_cutter *cut,
                           struct kg_err *err) KG_MUST_CHECK;
void kg_cut_scan_release(struct kg_cut_scan *scan);
void kg_cut_scan_start(struct kg_cut_scan *scan, const char *text, size_t n);

/* The next piece, [*start, *start + *len) of the text; *len is 0 at the end.
 * errors: those of kg_pretoken_scan_next */
kg_status kg_cut_scan_next(struct kg_cut_scan *scan, size_t *start, size_t *len,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
