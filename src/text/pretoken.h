/* The regular expression that splits text into pre-tokens.
 *
 * Patterns of tokenizer.json are written for Oniguruma (Ruby syntax), but pretoken.c uses
 * PCRE2. So a pattern is translated first; constructs that the two engines read
 * differently are rewritten or refused by name:
 *   - \s and \S become the White_Space property spelled out, as Oniguruma has it (PCRE2
 *     would add U+180E);
 *   - \w \W \b \B \h \H \v \R \X ^ $ and digits after a backslash, nested classes, &&
 *     and possessive {n,m}+ are refused: they differ, and no supported tokenizer uses
 *     them;
 *   - \p{L} and \p{N} get the letters and numbers of Unicode 15 and 16 added (9,392
 *     characters), which the tables of PCRE2 10.42 (Unicode 14) lack and HuggingFace's
 *     present builds (Unicode 16) have. With these, the patterns of GPT-2 and Qwen split
 *     at every one of the 1,112,064 characters as HuggingFace does. Other properties
 *     (\p{Lu}, \p{M}, scripts) are PCRE2's own and may lack characters assigned after
 *     Unicode 14.
 * A different split changes ids, never the decoded text.
 */
#ifndef KG_TEXT_PRETOKEN_H
#define KG_TEXT_PRETOKEN_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>

struct kg_pretoken; /* a compiled pattern; immutable, usable from any thread */

/* literal: the pattern is plain text.
 * errors: EUNSUPPORTED (a construct named above; a pattern that matches the empty text),
 * EFORMAT (syntax, with offset) */
kg_status kg_pretoken_create(struct kg_pretoken **out, const char *pattern, size_t n,
                             bool literal, struct kg_err *err) KG_MUST_CHECK;
void kg_pretoken_free(struct kg_pretoken *p);

/* A walk over the pieces of a text: the matches and the text between them ("Isolated").
 * One per thread. */
struct kg_pretoken_scan {
    const struct kg_pretoken *pattern; /* borrowed */
    void *match;                       /* owned */
    const char *text;                  /* borrowed, valid UTF-8 */
    size_t n;
    size_t at; /* everything before it was returned */
    /* > at: the match [at, match_end) follows a gap and is not yet returned */
    size_t match_end;
    bool matched; /* the last piece is a match */
};
kg_status kg_pretoken_scan_init(struct kg_pretoken_scan *scan,
                                const struct kg_pretoken *pattern,
                                struct kg_err *err) KG_MUST_CHECK;
void kg_pretoken_scan_release(struct kg_pretoken_scan *scan);
void kg_pretoken_scan_start(struct kg_pretoken_scan *scan, const char *text, size_t n);

/* The next piece, [*start, *start + *len) of the text; *len is 0 at the end.
 * errors: EFORMAT (the pattern backtracks beyond the engine's limit, with offset),
 * ENOMEM */
kg_status kg_pretoken_scan_next(struct kg_pretoken_scan *scan, size_t *start, size_t *len,
                                struct kg_err *err) KG_MUST_CHECK;

#endif
