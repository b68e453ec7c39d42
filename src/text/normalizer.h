/* What is done to a stretch of text before it is cut into tokens: a list of steps.
 *
 * A step that changes nothing copies nothing, so text that is NFC already passes through
 * as it is.
 */
#ifndef KG_TEXT_NORMALIZER_H
#define KG_TEXT_NORMALIZER_H

#include "base/status.h"
#include "base/str.h"
#include "text/charsmap.h"
#include "text/pretoken.h"

#include <stdbool.h>

/* A row of the table in normalizer.c. */
enum kg_normalizer_kind {
    KG_NORMALIZE_NFC,
    KG_NORMALIZE_NFD,
    KG_NORMALIZE_NFKC,
    KG_NORMALIZE_NFKD,
    KG_NORMALIZE_LOWER,
    KG_NORMALIZE_DROP_MARKS,
    KG_NORMALIZE_DROP_NONSPACING,
    KG_NORMALIZE_CLEAN, /* BERT's: controls go, white space is a space */
    KG_NORMALIZE_CJK,   /* BERT's: spaces around ideographs */
    KG_NORMALIZE_NMT,
    KG_NORMALIZE_STRIP_LEFT, /* white space at the beginning goes */
    KG_NORMALIZE_STRIP_RIGHT,
    KG_NORMALIZE_SQUEEZE,  /* SentencePiece's: spaces at the ends, and all but one of
                            * several in a row */
    KG_NORMALIZE_CLUSTERS, /* `map`, as kg_charsmap_clusters */
    KG_NORMALIZE_LONGEST,  /* `map`, as kg_charsmap_longest */
    KG_NORMALIZE_PREPEND,  /* `to` goes in front of text that is not empty */
    KG_NORMALIZE_REPLACE,  /* every `from` becomes `to`; left to right, no overlap */
    KG_NORMALIZE_PATTERN,  /* every match of `pattern` becomes `to` */
    KG_NORMALIZE_WORD,     /* of WordPiece's decoder: `from` in front goes, and what lacks
                            * it gets a space in front */
};

struct kg_normalizer_step {
    enum kg_normalizer_kind kind;
    struct kg_str from;          /* owned; not empty for REPLACE */
    struct kg_str to;            /* owned */
    struct kg_pretoken *pattern; /* owned; of PATTERN */
    struct kg_charsmap *map;     /* owned; of CLUSTERS and LONGEST */
};

enum { KG_MAX_NORMALIZER_STEPS = 32 };
struct kg_normalizer { /* {0} changes nothing */
    struct kg_normalizer_step steps[KG_MAX_NORMALIZER_STEPS];
    size_t n;
};
void kg_normalizer_release(struct kg_normalizer *norm);
/* Takes from and to (C strings; NULL is empty) over as copies.
 * errors: UNSUPPORTED (too many steps), ENOMEM */
kg_status kg_normalizer_add(struct kg_normalizer *norm, enum kg_normalizer_kind kind,
                            const char *from, const char *to,
                            struct kg_err *err) KG_MUST_CHECK;
/* The step that the newest add made. */
struct kg_normalizer_step *kg_normalizer_newest(struct kg_normalizer *norm);

/* Working memory of a thread. {0} is ready. */
struct kg_normalizer_work {
    struct kg_str buffers[2];
};
void kg_normalizer_work_release(struct kg_normalizer_work *work);

/* *out is text itself or in work, until its next use. prepends: false where the text goes
 * on behind other text, so that nothing is put in front.   text: valid UTF-8.
 * errors: ENOMEM, EFORMAT (a pattern gave up) */
kg_status kg_normalize(const char **out, size_t *out_n, const struct kg_normalizer *norm,
                       const char *text, size_t n, bool prepends,
                       struct kg_normalizer_work *work, struct kg_err *err) KG_MUST_CHECK;

/* Append text with every `from` (not empty) replaced by `to`.   errors: ENOMEM */
kg_status kg_replace_all(struct kg_str *out, const char *text, size_t n,
                         const struct kg_str *from, const struct kg_str *to,
                         struct kg_err *err) KG_MUST_CHECK;

#endif
