/* Segments, and pieces made of them.
 *
 * A text is a sequence of segments: matches and the gaps between them, alternately. A
 * pattern finds long matches, a class finds single characters. Every behaviour joins or
 * drops segments and looks at most one ahead, so pieces are returned one by one and only
 * that segment is stored. MergedWithPrevious joins a match to the gap before it, but only
 * the first of several adjacent matches; MergedWithNext joins only the last.
 */
#include "text/cut.h"

#include "text/unicode.h"

void kg_cut_release(struct kg_cutter *cut)
{
    kg_pretoken_free(cut->pattern);
    *cut = (struct kg_cutter){0};
}

kg_status kg_cut_scan_init(struct kg_cut_scan *scan, const struct kg_cutter *cut,
                           struct kg_err *err)
{
    *scan = (struct kg_cut_scan){.cut = cut};
    return cut->pattern ? kg_pretoken_scan_init(&scan->found, cut->pattern, err) : KG_OK;
}

void kg_cut_scan_release(struct kg_cut_scan *scan)
{
    kg_pretoken_scan_release(&scan->found);
    *scan = (struct kg_cut_scan){0};
}

void kg_cut_scan_start(struct kg_cut_scan *scan, const char *text, size_t n)
{
    scan->text = text;
    scan->n = n;
    scan->at = 0;
    scan->seen.len = 0;
    if (scan->cut->pattern)
        kg_pretoken_scan_start(&scan->found, text, n);
}

/* One character of the class, or all characters before the next one. */
static void class_segment(struct kg_cut_scan *scan, struct kg_cut_segment *s)
{
    *s = (struct kg_cut_segment){.start = scan->at};
    while (scan->at < scan->n) {
        uint32_t cp;
        size_t n = kg_utf8_decode(&cp, scan->text + scan->at);
        bool match = scan->cut->is(cp);

        if (match && s->len > 0)
            return;
        s->len += n;
        scan->at += n;
        s->match = match;
        if (match)
            return;
    }
}

static kg_status next_segment(struct kg_cut_scan *scan, struct kg_cut_segment *s,
                              struct kg_err *err)
{
    if (scan->seen.len > 0) {
        *s = scan->seen;
        scan->seen.len = 0;
        return KG_OK;
    }
    if (scan->cut->pattern) {
        KG_TRY(kg_pretoken_scan_next(&scan->found, &s->start, &s->len, err));
        s->match = scan->found.matched;
    } else {
        class_segment(scan, s);
    }
    s->match ^= scan->cut->invert;
    return KG_OK;
}

/* Whether a piece whose last segment has `match` also takes the next, with `ahead`. */
static bool joins(enum kg_cut_behavior behavior, bool match, bool ahead)
{
    switch (behavior) {
    case KG_CUT_CONTIGUOUS:
        return match == ahead;
    case KG_CUT_WITH_PREVIOUS:
        return !match && ahead;
    case KG_CUT_WITH_NEXT:
        return match && !ahead;
    case KG_CUT_ISOLATED:
    case KG_CUT_REMOVED:
        return false;
    }
    return false;
}

kg_status kg_cut_scan_next(struct kg_cut_scan *scan, size_t *start, size_t *len,
                           struct kg_err *err)
{
    const enum kg_cut_behavior behavior = scan->cut->behavior;
    struct kg_cut_segment s;

    if (behavior == KG_CUT_ISOLATED && scan->cut->pattern) /* pieces as they are found */
        return kg_pretoken_scan_next(&scan->found, start, len, err);
    do {
        KG_TRY(next_segment(scan, &s, err));
    } while (behavior == KG_CUT_REMOVED && s.len > 0 && s.match);
    *start = s.start;
    *len = s.len;
    if (behavior == KG_CUT_ISOLATED || behavior == KG_CUT_REMOVED || s.len == 0)
        return KG_OK;
    for (;;) {
        KG_TRY(next_segment(scan, &scan->seen, err));
        if (scan->seen.len == 0 || !joins(behavior, s.match, scan->seen.match))
            return KG_OK;
        *len += scan->seen.len;
        scan->seen.len = 0;
        if (behavior != KG_CUT_CONTIGUOUS)
            return KG_OK;
    }
}
